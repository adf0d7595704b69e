#include "server/checkpoint/range_file.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstring>
#include <fstream>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "optim/row_rounding.h"
#include "xxhash.h"

namespace tandem::server {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr uint32_t kMagic = 0x46524454;  // "TDRF"
// Without, and with, heads of rows (optim::RowTypes::has_heads).
constexpr uint32_t kRangeFormat = 3, kHeadsFormat = 4;
// Formats of earlier versions, which are only read: for tables without limits, and with limits.
constexpr uint32_t kOldFormat = 1, kOldLimitedFormat = 2;
constexpr size_t kAlign = 8;
constexpr size_t kChecksumBytes = 8;

constexpr uint64_t kMaxDim = 1 << 20;
constexpr uint64_t kMaxSlots = 1 << 22;
constexpr uint64_t kMaxWorkers = 1 << 16;
constexpr uint64_t kMaxRows = uint64_t{1} << 32;
constexpr uint64_t kMaxHeldBytes = uint64_t{1} << 40;

// The header as it is in the file. range_file.md explains the fields.
struct Header {
  uint32_t magic;
  uint32_t format;
  uint64_t file_bytes;
  uint32_t dim;
  uint32_t slots_per_row;
  uint64_t rows;
  uint64_t begin;
  uint64_t end;
  int64_t version;
  uint32_t workers;
  uint32_t table_bytes;
  uint32_t optimizer_bytes;
  uint32_t limited;     // 0 in the old formats
  uint64_t held_bytes;  // kOldFormat ends here
  uint64_t candidates;  // kOldLimitedFormat ends here
  int64_t stamp;
  int64_t step_base;
  uint32_t row_type;
  uint32_t state_type;
  uint32_t numbers_per_row;
  uint32_t flags;  // kRangeFormat ends here
  uint64_t hot_rows;
  uint64_t hot_updates;
  uint32_t hot_type;
  uint32_t unused;
};
static_assert(sizeof(Header) == 144);
constexpr size_t kMinHeaderBytes = offsetof(Header, candidates);

bool IsOurFormat(uint32_t format) { return format >= kOldFormat && format <= kHeadsFormat; }
bool IsOld(const Header& h) { return h.format < kRangeFormat; }
size_t HeaderBytes(const Header& h) {
  return h.format == kOldFormat          ? kMinHeaderBytes
         : h.format == kOldLimitedFormat ? offsetof(Header, stamp)
         : h.format == kRangeFormat      ? offsetof(Header, hot_rows)
                                         : sizeof(Header);
}
bool IsLimited(const Header& h) { return h.format == kOldLimitedFormat || h.limited == 1; }

struct WorkerEntry {
  uint64_t incarnation;
  int64_t admitted;
  int64_t applied;
  uint64_t finished;
};
static_assert(sizeof(WorkerEntry) == 32);

// The types of rows have the numbers of Table::Dtype, less one, so that F32 is 0.
Table::Dtype TypeOf(uint32_t number) { return static_cast<Table::Dtype>(number + Table::F32); }
uint32_t NumberOf(Table::Dtype type) {
  return static_cast<uint32_t>(std::max(type, Table::F32) - Table::F32);
}

uint64_t Padded(uint64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

// The length of each section without its padding, in file order. Within the limits above, no
// product or sum comes near 2^64.
struct Sections {
  explicit Sections(const Header& h)
      : bytes{uint64_t{h.workers} * sizeof(WorkerEntry),
              uint64_t{h.table_bytes} + h.optimizer_bytes,
              h.rows * sizeof(uint64_t),
              h.format == kHeadsFormat ? h.rows * sizeof(optim::RowHead) : 0,
              (h.rows - h.hot_rows) * h.dim * optim::ElementBytes(TypeOf(h.row_type)),
              h.hot_rows * h.dim * optim::ElementBytes(TypeOf(h.hot_type)),
              h.rows * (h.slots_per_row - h.numbers_per_row) *
                  optim::ElementBytes(TypeOf(h.state_type)),
              h.rows * h.numbers_per_row * sizeof(float),
              IsLimited(h) ? h.rows * sizeof(uint32_t) : 0,
              h.candidates * sizeof(Candidate),
              h.held_bytes},
        others(HeaderBytes(h) + kChecksumBytes) {}

  uint64_t FileBytes() const {
    uint64_t sum = others;
    for (const uint64_t section : bytes) sum += Padded(section);
    return sum;
  }

  uint64_t bytes[11];
  uint64_t others;
};

uint64_t Checksum(const void* data, size_t bytes) { return XXH3_64bits(data, bytes); }

// Reads sections one after the other. The caller has checked that the bytes contain all of them.
class Reader {
 public:
  explicit Reader(absl::Span<const uint8_t> bytes) : bytes_(bytes) {}

  void Bytes(void* to, size_t bytes) {
    if (bytes > 0) std::memcpy(to, bytes_.data() + offset_, bytes);
    offset_ += bytes;
  }
  template <typename T>
  absl::Status Array(std::vector<T>& values, uint64_t count) {
    values.resize(count);
    Bytes(values.data(), values.size() * sizeof(T));
    return Pad();
  }
  // `count` values of each row, as those from `first` on of its `width` floats.
  absl::Status Floats(Table::Dtype type, uint64_t rows, size_t count, size_t width, size_t first,
                      absl::Span<float> to) {
    const size_t bytes = count * optim::ElementBytes(type);
    for (uint64_t i = 0; i < rows && count > 0; ++i, offset_ += bytes) {
      optim::ExpandRow(type, count, bytes_.data() + offset_, &to[i * width + first]);
    }
    return Pad();
  }
  // The weights of the hot rows if `hot`, else those of the others.
  absl::Status Weights(const RangeImage& image, bool hot, absl::Span<float> to) {
    const auto dim = static_cast<size_t>(image.dim);
    if (image.heads.empty()) {
      return Floats(image.types.row, hot ? 0 : image.keys.size(), dim, dim, 0, to);
    }
    const Table::Dtype type = hot ? image.types.hot : image.types.row;
    std::vector<int8_t> row(optim::WeightBytes(type, dim));
    for (size_t i = 0; i < image.keys.size(); ++i) {
      const optim::RowHead head = image.heads[i];
      if (head.hot() != hot) continue;
      row.back() = head.exponent;  // INT8 has its exponent behind its integers
      const size_t at = offset_;
      Bytes(row.data(), dim * optim::ElementBytes(type));
      if (type == Table::INT8 && std::count(row.begin(), row.end() - 1, -128) > 0) {
        return absl::InvalidArgumentError(absl::StrCat("range file: a weight of the row at offset ",
                                                       at, " is -128, expected -127 to 127"));
      }
      optim::ExpandRow(type, dim, row.data(), &to[i * dim]);
    }
    return Pad();
  }
  absl::Status String(std::string& value, uint64_t bytes) {
    value.resize(bytes);
    Bytes(value.data(), bytes);
    return absl::OkStatus();
  }
  absl::Status Pad() {
    for (; offset_ % kAlign != 0; ++offset_) {
      if (bytes_[offset_] == 0) continue;
      return absl::InvalidArgumentError(
          absl::StrFormat("range file: padding at offset %d is %#x, expected 0", offset_,
                          static_cast<unsigned>(bytes_[offset_])));
    }
    return absl::OkStatus();
  }
  size_t offset() const { return offset_; }

 private:
  absl::Span<const uint8_t> bytes_;
  size_t offset_ = 0;
};

// Checks length and checksum before any other field is used. Each check relies on the one before:
// the magic number says whether the file is ours at all, the format whether file_bytes has this
// meaning, and the length tells a file cut short from one with changed bytes.
absl::Status CheckWhole(absl::Span<const uint8_t> bytes) {
  constexpr size_t kMin = kMinHeaderBytes + kChecksumBytes;
  if (bytes.size() < kMin) {
    return absl::DataLossError(
        absl::StrCat("range file: have ", bytes.size(), " bytes, the smallest has ", kMin));
  }
  Header h = {};
  std::memcpy(&h, bytes.data(), kMinHeaderBytes);
  if (h.magic != kMagic) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "range file: magic at offset 0 is %#x, expected %#x: is it one of ours?", h.magic, kMagic));
  }
  if (!IsOurFormat(h.format)) {
    return absl::InvalidArgumentError(absl::StrCat("range file: format at offset 4 is ", h.format,
                                                   ", this program reads 1 to ", kHeadsFormat));
  }
  if (h.file_bytes != bytes.size()) {
    return absl::DataLossError(absl::StrCat("range file: file_bytes at offset 8 is ", h.file_bytes,
                                            ", have ", bytes.size(), " bytes"));
  }
  const size_t at = bytes.size() - kChecksumBytes;
  uint64_t stored;
  std::memcpy(&stored, bytes.data() + at, sizeof(stored));
  const uint64_t computed = Checksum(bytes.data(), at);
  if (stored == computed) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrFormat("range file: checksum at offset %d is %#x, the bytes before it give %#x", at,
                      stored, computed));
}

absl::Status CheckField(absl::string_view name, size_t offset, uint64_t value, uint64_t least,
                        uint64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("range file: ", name, " at offset ", offset,
                                                 " is ", value, ", expected ", least, " to ",
                                                 most));
}

// Checks each field against its limit first: within the limits the lengths of the sections cannot
// overflow. Then compares their sum with the length of the file, so that every section is inside
// it.
absl::Status CheckHeader(const Header& h) {
  TANDEM_RETURN_IF_ERROR(CheckField("dim", 16, h.dim, 1, kMaxDim));
  TANDEM_RETURN_IF_ERROR(CheckField("slots_per_row", 20, h.slots_per_row, 0, kMaxSlots));
  TANDEM_RETURN_IF_ERROR(CheckField("rows", 24, h.rows, 0, kMaxRows));
  TANDEM_RETURN_IF_ERROR(CheckField("workers", 56, h.workers, 0, kMaxWorkers));
  TANDEM_RETURN_IF_ERROR(CheckField("table_bytes", 60, h.table_bytes, 0, kMaxNameBytes));
  TANDEM_RETURN_IF_ERROR(CheckField("optimizer_bytes", 64, h.optimizer_bytes, 0, kMaxNameBytes));
  TANDEM_RETURN_IF_ERROR(CheckField("limited", 68, h.limited, 0, IsOld(h) ? 0 : 1));
  TANDEM_RETURN_IF_ERROR(CheckField("held_bytes", 72, h.held_bytes, 0, kMaxHeldBytes));
  TANDEM_RETURN_IF_ERROR(
      CheckField("candidates", 80, h.candidates, 0, IsLimited(h) ? kMaxRows : 0));
  const bool heads = h.format == kHeadsFormat;
  const uint64_t last_type = NumberOf(heads ? Table::INT8 : Table::F16);
  TANDEM_RETURN_IF_ERROR(CheckField("row_type", 104, h.row_type, 0, last_type));
  TANDEM_RETURN_IF_ERROR(CheckField("state_type", 108, h.state_type, 0, NumberOf(Table::BF16)));
  const uint64_t most_numbers = h.state_type == 0 ? 0 : h.slots_per_row;
  TANDEM_RETURN_IF_ERROR(CheckField("numbers_per_row", 112, h.numbers_per_row, 0, most_numbers));
  TANDEM_RETURN_IF_ERROR(CheckField("flags", 116, h.flags, 0, 0));
  // Rows of INT8 have heads, and so do rows that become hot. No others do.
  const bool needs_hot = heads && TypeOf(h.row_type) != Table::INT8;
  TANDEM_RETURN_IF_ERROR(CheckField("hot_updates", 128, h.hot_updates, needs_hot ? 1 : 0,
                                    heads ? std::numeric_limits<int64_t>::max() : 0));
  TANDEM_RETURN_IF_ERROR(
      CheckField("hot_rows", 120, h.hot_rows, 0, h.hot_updates > 0 ? h.rows : 0));
  TANDEM_RETURN_IF_ERROR(
      CheckField("hot_type", 136, h.hot_type, 0, h.hot_updates > 0 ? NumberOf(Table::F16) : 0));
  TANDEM_RETURN_IF_ERROR(CheckField("unused", 140, h.unused, 0, 0));
  if (h.version < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("range file: version at offset 48 is ", h.version));
  }
  if (h.step_base < 0 || h.step_base > h.stamp) {
    return absl::InvalidArgumentError(absl::StrCat("range file: step_base at offset 96 is ",
                                                   h.step_base, ", expected 0 to the stamp, ",
                                                   h.stamp));
  }
  if (h.end != 0 && h.end <= h.begin) {
    return absl::InvalidArgumentError(
        absl::StrCat("range file: range at offset 32 is [", h.begin, ", ", h.end, ")"));
  }
  const uint64_t sum = Sections(h).FileBytes();
  if (sum == h.file_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "range file: its counts need ", sum, " bytes, file_bytes at offset 8 is ", h.file_bytes));
}

absl::Status ReadWorkers(Reader& reader, uint32_t count,
                         std::vector<policies::WorkerProgress>& workers) {
  workers.resize(count);
  for (policies::WorkerProgress& worker : workers) {
    const size_t at = reader.offset();
    WorkerEntry entry;
    reader.Bytes(&entry, sizeof(entry));
    if (entry.admitted < 0 || entry.applied < 0 || entry.finished > 1) {
      return absl::InvalidArgumentError(absl::StrCat("range file: worker at offset ", at,
                                                     " has admitted ", entry.admitted, ", applied ",
                                                     entry.applied, ", finished ", entry.finished));
    }
    worker.incarnation = entry.incarnation;
    worker.admitted = entry.admitted;
    worker.applied = entry.applied;
    worker.finished = entry.finished == 1;
  }
  return absl::OkStatus();
}

absl::Status ReadCandidates(Reader& reader, uint64_t count, std::vector<Candidate>& candidates) {
  const size_t at = reader.offset();
  TANDEM_RETURN_IF_ERROR(reader.Array(candidates, count));
  for (size_t i = 0; i < candidates.size(); ++i) {
    TANDEM_RETURN_IF_ERROR(CheckField("count of a candidate", at + i * sizeof(Candidate) + 8,
                                      candidates[i].count, 1, CandidateValues::kMaxCount));
  }
  return absl::OkStatus();
}

// Checks each head against the types, and the number of hot rows against the header.
absl::Status ReadHeads(Reader& reader, const Header& h, std::vector<optim::RowHead>& heads) {
  const size_t at = reader.offset();
  TANDEM_RETURN_IF_ERROR(reader.Array(heads, h.rows));
  uint64_t hot = 0;
  for (size_t i = 0; i < heads.size(); ++i) {
    const optim::RowHead head = heads[i];
    const bool scaled = TypeOf(h.row_type) == Table::INT8 && !head.hot();
    const bool good =
        scaled ? head.exponent >= optim::kMinExponent && head.exponent <= optim::kMaxExponent
               : head.exponent == optim::RowHead::kNoExponent;
    if (!good || (h.hot_updates == 0 && head.updates != 0)) {
      return absl::InvalidArgumentError(
          absl::StrCat("range file: head of a row at offset ", at + i * sizeof head,
                       " has exponent ", int{head.exponent}, " and count ", int{head.updates}));
    }
    hot += head.hot() ? 1 : 0;
  }
  if (hot == h.hot_rows) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("range file: ", hot, " heads of hot rows at offset ", at,
                   ", expected hot_rows at offset 120, ", h.hot_rows));
}

Header HeaderOf(const RangeImage& head, const RangeEncoder::Counts& counts) {
  Header h = {};
  h.magic = kMagic;
  h.format = head.types.has_heads() ? kHeadsFormat : kRangeFormat;
  h.hot_rows = counts.hot_rows;
  h.hot_updates = static_cast<uint64_t>(head.types.hot_updates);
  if (head.types.hot_updates > 0) h.hot_type = NumberOf(head.types.hot);
  h.limited = head.limited ? 1 : 0;
  h.candidates = counts.candidates;
  h.stamp = head.stamp;
  h.step_base = head.step_base;
  h.row_type = NumberOf(head.types.row);
  h.state_type = NumberOf(head.types.state);
  h.numbers_per_row = static_cast<uint32_t>(head.numbers_per_row);
  h.dim = static_cast<uint32_t>(head.dim);
  h.slots_per_row = static_cast<uint32_t>(head.slots_per_row);
  h.rows = counts.rows;
  h.begin = head.begin;
  h.end = head.end;
  h.version = head.progress.version;
  h.workers = static_cast<uint32_t>(head.progress.workers.size());
  h.table_bytes = static_cast<uint32_t>(head.table.size());
  h.optimizer_bytes = static_cast<uint32_t>(head.optimizer.size());
  h.held_bytes = counts.held_bytes;
  h.file_bytes = Sections(h).FileBytes();
  return h;
}

absl::Status Mismatch(absl::string_view what, absl::string_view file, absl::string_view store) {
  return absl::InvalidArgumentError(absl::StrCat("range file of table with ", what, " \"", file,
                                                 "\" cannot be loaded into one with ", what, " \"",
                                                 store, "\""));
}

absl::Status CheckSameShape(const RangeImage& image, const RowTable& store) {
  const std::string& table = store.options().table;
  const std::string optimizer = store.options().optimizer->name();
  if (!table.empty() && image.table != table) return Mismatch("name", image.table, table);
  if (image.dim != store.dim()) {
    return Mismatch("dim", absl::StrCat(image.dim), absl::StrCat(store.dim()));
  }
  if (image.optimizer != optimizer) return Mismatch("optimizer", image.optimizer, optimizer);
  if (image.slots_per_row != store.slots_per_row()) {
    return Mismatch("slots_per_row", absl::StrCat(image.slots_per_row),
                    absl::StrCat(store.slots_per_row()));
  }
  return absl::OkStatus();
}

// Reads parts of a range file, without the rest. The range file may be a part of a segment.
class PartReader {
 public:
  // The range file at [offset, offset + bytes) of a file; bytes 0: to the end. NOT_FOUND if there
  // is no file, DATA_LOSS if the range file is not whole.
  static absl::StatusOr<PartReader> Open(const std::string& path, uint64_t offset, uint64_t bytes) {
    PartReader reader(path, offset);
    if (!reader.file_) return absl::NotFoundError(absl::StrCat(path, ": cannot be opened"));
    const auto size = static_cast<uint64_t>(reader.file_.tellg());
    reader.bytes_ = bytes > 0 ? bytes : size - std::min(size, offset);
    Header& h = reader.header_;
    TANDEM_RETURN_IF_ERROR(reader.Read(0, &h, kMinHeaderBytes));
    if (h.magic != kMagic || !IsOurFormat(h.format)) return reader.NotWhole();
    TANDEM_RETURN_IF_ERROR(
        reader.Read(kMinHeaderBytes, &h.candidates, HeaderBytes(h) - kMinHeaderBytes));
    if (IsOld(h)) h.stamp = h.version;
    if (!CheckHeader(h).ok() || h.file_bytes != reader.bytes_) return reader.NotWhole();
    return reader;
  }
  absl::Status Read(uint64_t at, void* to, size_t count) {
    file_.seekg(static_cast<std::streamoff>(offset_ + at));
    file_.read(static_cast<char*>(to), static_cast<std::streamsize>(count));
    return file_ ? absl::OkStatus() : NotWhole();
  }
  const Header& header() const { return header_; }
  uint64_t bytes() const { return bytes_; }
  uint64_t names_at() const { return HeaderBytes(header_) + Padded(Sections(header_).bytes[0]); }

 private:
  PartReader(const std::string& path, uint64_t offset)
      : path_(path), offset_(offset), file_(path, std::ios::binary | std::ios::ate) {}
  absl::Status NotWhole() const {
    return absl::DataLossError(absl::StrCat(path_, ": ", bytes_, " bytes at offset ", offset_,
                                            " that are not a whole range file"));
  }

  std::string path_;
  uint64_t offset_;
  std::ifstream file_;
  uint64_t bytes_ = 0;
  Header header_ = {};
};

}  // namespace

struct RangeEncoder::Checksum {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state{XXH3_createState(),
                                                                       &XXH3_freeState};
};

RangeEncoder::RangeEncoder(const RangeImage& head, const Counts& counts, ByteSink sink)
    : sink_(std::move(sink)), piece_(new char[kPieceBytes]), checksum_(new Checksum) {
  TANDEM_CHECK(head.dim > 0 && head.slots_per_row >= 0);
  TANDEM_CHECK(head.limited || counts.candidates == 0);
  TANDEM_CHECK(checksum_->state != nullptr);
  XXH3_64bits_reset(checksum_->state.get());
  const Header header = HeaderOf(head, counts);
  TANDEM_CHECK_OK(CheckHeader(header));
  file_bytes_ = header.file_bytes;
  Bytes(&header, HeaderBytes(header));
  for (const policies::WorkerProgress& worker : head.progress.workers) {
    WorkerEntry entry = {};
    entry.incarnation = worker.incarnation;
    entry.admitted = worker.admitted;
    entry.applied = worker.applied;
    entry.finished = worker.finished ? 1 : 0;
    Bytes(&entry, sizeof(entry));
  }
  Bytes(head.table.data(), head.table.size());
  Bytes(head.optimizer.data(), head.optimizer.size());
  EndSection();
}

RangeEncoder::~RangeEncoder() = default;

// Passes what is in the piece. Passes long arrays as they are, without a copy.
void RangeEncoder::BytesBeyondPiece(const void* data, size_t bytes) {
  Pass(piece_.get(), used_);
  used_ = 0;
  if (bytes < kPieceBytes) return Bytes(data, bytes);
  Pass(static_cast<const char*>(data), bytes);
}

void RangeEncoder::Pass(const char* data, size_t bytes) {
  passed_ += bytes;
  if (!status_.ok() || bytes == 0) return;
  XXH3_64bits_update(checksum_->state.get(), data, bytes);
  status_ = sink_({data, bytes});
}

void RangeEncoder::Floats(Table::Dtype type, absl::Span<const float> values) {
  if (optim::ElementBytes(type) == sizeof(float)) {
    return Bytes(values.data(), values.size() * sizeof(float));
  }
  uint16_t some[256];
  while (!values.empty()) {
    const absl::Span<const float> first = values.first(std::min(values.size(), std::size(some)));
    optim::StoreNearest(type, first, some);
    Bytes(some, first.size() * sizeof some[0]);
    values.remove_prefix(first.size());
  }
}

void RangeEncoder::Weights(const optim::RowTypes& types, optim::RowHead head,
                           absl::Span<const float> weights) {
  if (head.hot()) return Floats(types.hot, weights);
  if (types.row != Table::INT8) return Floats(types.row, weights);
  int8_row_.resize(optim::WeightBytes(types.row, weights.size()));
  optim::StoreNearest(types.row, weights, int8_row_.data(), head.exponent);
  Bytes(int8_row_.data(), weights.size());
}

void RangeEncoder::EndSection() {
  constexpr char kZeros[kAlign] = {};
  const uint64_t at = passed_ + used_;
  Bytes(kZeros, Padded(at) - at);
}

absl::Status RangeEncoder::Finish() {
  Pass(piece_.get(), used_);
  used_ = 0;
  TANDEM_CHECK(passed_ + kChecksumBytes == file_bytes_);
  if (!status_.ok()) return status_;
  const uint64_t checksum = XXH3_64bits_digest(checksum_->state.get());
  return sink_({reinterpret_cast<const char*>(&checksum), sizeof(checksum)});
}

std::string EncodeRange(const RangeImage& image) {
  const size_t rows = image.keys.size();
  const auto dim = static_cast<size_t>(image.dim);
  const bool has_heads = image.types.has_heads();
  TANDEM_CHECK(image.heads.size() == (has_heads ? rows : 0));
  TANDEM_CHECK(image.weights.size() == rows * dim);
  TANDEM_CHECK(image.slots.size() == rows * static_cast<size_t>(image.slots_per_row));
  TANDEM_CHECK(image.ages.size() == (image.limited ? rows : 0));
  std::string bytes;
  const auto hot_rows = static_cast<uint64_t>(std::count_if(
      image.heads.begin(), image.heads.end(), [](optim::RowHead head) { return head.hot(); }));
  RangeEncoder encoder(image, {rows, hot_rows, image.candidates.size(), image.held.size()},
                       [&bytes](absl::string_view piece) {
                         absl::StrAppend(&bytes, piece);
                         return absl::OkStatus();
                       });
  bytes.reserve(encoder.file_bytes());
  const auto add = [&encoder](const auto& values) {
    encoder.Bytes(values.data(), values.size() * sizeof(*values.data()));
    encoder.EndSection();
  };
  add(image.keys);
  add(image.heads);
  for (const bool hot : {false, true}) {
    for (size_t i = 0; i < rows; ++i) {
      const optim::RowHead head = has_heads ? image.heads[i] : optim::RowHead();
      if (head.hot() != hot) continue;
      encoder.Weights(image.types, head, absl::MakeConstSpan(image.weights).subspan(i * dim, dim));
    }
    encoder.EndSection();
  }
  const auto width = static_cast<size_t>(image.slots_per_row);
  const auto numbers = static_cast<size_t>(image.numbers_per_row);
  for (size_t i = 0; i < rows; ++i) {
    const auto slots = absl::MakeConstSpan(image.slots).subspan(i * width, width);
    encoder.Floats(image.types.state, slots.first(width - numbers));
  }
  encoder.EndSection();
  for (size_t i = 0; i < rows; ++i) {
    const auto slots = absl::MakeConstSpan(image.slots).subspan(i * width, width);
    encoder.Floats(Table::F32, slots.last(numbers));
  }
  encoder.EndSection();
  if (image.limited) {
    add(image.ages);
    add(image.candidates);
  }
  add(image.held);
  TANDEM_CHECK_OK(encoder.Finish());
  return bytes;
}

absl::StatusOr<RangeImage> DecodeRange(absl::Span<const uint8_t> bytes) {
  TANDEM_RETURN_IF_ERROR(CheckWhole(bytes));
  Reader reader(bytes);
  Header h = {};
  reader.Bytes(&h, kMinHeaderBytes);
  if (bytes.size() < HeaderBytes(h) + kChecksumBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("range file: ", bytes.size(), " bytes are too few for format ", h.format));
  }
  reader.Bytes(&h.candidates, HeaderBytes(h) - kMinHeaderBytes);
  if (IsOld(h)) h.stamp = h.version;
  TANDEM_RETURN_IF_ERROR(CheckHeader(h));  // after this, the bytes contain every section
  RangeImage image;
  image.limited = IsLimited(h);
  image.stamp = h.stamp;
  image.step_base = h.step_base;
  image.dim = static_cast<int>(h.dim);
  image.slots_per_row = static_cast<int>(h.slots_per_row);
  image.begin = h.begin;
  image.end = h.end;
  image.progress.version = h.version;
  TANDEM_RETURN_IF_ERROR(ReadWorkers(reader, h.workers, image.progress.workers));
  TANDEM_RETURN_IF_ERROR(reader.String(image.table, h.table_bytes));
  TANDEM_RETURN_IF_ERROR(reader.String(image.optimizer, h.optimizer_bytes));
  TANDEM_RETURN_IF_ERROR(reader.Pad());
  TANDEM_RETURN_IF_ERROR(reader.Array(image.keys, h.rows));
  image.types = {TypeOf(h.row_type), TypeOf(h.state_type), TypeOf(h.hot_type),
                 static_cast<int64_t>(h.hot_updates)};
  if (image.types.has_heads()) TANDEM_RETURN_IF_ERROR(ReadHeads(reader, h, image.heads));
  image.numbers_per_row = static_cast<int>(h.numbers_per_row);
  image.weights.resize(h.rows * h.dim);
  image.slots.resize(h.rows * h.slots_per_row);
  const size_t elements = h.slots_per_row - h.numbers_per_row;
  const auto weights = absl::MakeSpan(image.weights), slots = absl::MakeSpan(image.slots);
  TANDEM_RETURN_IF_ERROR(reader.Weights(image, /*hot=*/false, weights));
  TANDEM_RETURN_IF_ERROR(reader.Weights(image, /*hot=*/true, weights));
  TANDEM_RETURN_IF_ERROR(
      reader.Floats(image.types.state, h.rows, elements, h.slots_per_row, 0, slots));
  TANDEM_RETURN_IF_ERROR(
      reader.Floats(Table::F32, h.rows, h.numbers_per_row, h.slots_per_row, elements, slots));
  if (image.limited) {
    TANDEM_RETURN_IF_ERROR(reader.Array(image.ages, h.rows));
    TANDEM_RETURN_IF_ERROR(ReadCandidates(reader, h.candidates, image.candidates));
  }
  TANDEM_RETURN_IF_ERROR(reader.String(image.held, h.held_bytes));
  TANDEM_RETURN_IF_ERROR(reader.Pad());
  return image;
}

namespace {

// The indices [first, last) of the elements with positions in [begin, end). The elements are in
// order of position.
template <typename Element, typename KeyOf>
std::pair<size_t, size_t> Inside(uint64_t salt, const std::vector<Element>& elements,
                                 const KeyOf& key_of, uint64_t begin, uint64_t end) {
  const auto first_from = [&](uint64_t position) {
    const auto at = std::partition_point(
        elements.begin(), elements.end(),
        [&](const Element& element) { return Position(salt, key_of(element)) < position; });
    return static_cast<size_t>(at - elements.begin());
  };
  return {first_from(begin), end == 0 ? elements.size() : first_from(end)};
}

// Puts rows of `width` values in the order of (position, row).
template <typename Value>
void Reorder(const std::vector<std::pair<uint64_t, size_t>>& order, size_t width,
             std::vector<Value>* values) {
  std::vector<Value> ordered(values->size());
  for (size_t i = 0; i < order.size(); ++i) {
    std::copy_n(values->begin() + static_cast<std::ptrdiff_t>(order[i].second * width), width,
                ordered.begin() + static_cast<std::ptrdiff_t>(i * width));
  }
  *values = std::move(ordered);
}

}  // namespace

absl::Status LoadInto(const RangeImage& image, uint64_t begin, uint64_t end, RowTable* store) {
  TANDEM_RETURN_IF_ERROR(CheckSameShape(image, *store));
  const size_t dim = static_cast<size_t>(image.dim);
  const size_t slots = static_cast<size_t>(image.slots_per_row);
  const uint64_t salt = store->options().salt;
  const auto inside = [&](size_t i) { return InRange(Position(salt, image.keys[i]), begin, end); };
  const bool ordered = image.ordered_under == salt;
  const auto key_of = [](uint64_t key) { return key; };
  const auto [begin_row, rows] = ordered ? Inside(salt, image.keys, key_of, begin, end)
                                         : std::make_pair(size_t{0}, image.keys.size());
  for (size_t first = begin_row;
       first < rows;) {  // assigns each run of consecutive rows inside at once
    size_t last = first;
    while (last < rows && inside(last)) ++last;
    const size_t count = last - first;
    const auto keys = absl::MakeConstSpan(image.keys).subspan(first, count);
    const auto weights = absl::MakeConstSpan(image.weights).subspan(first * dim, count * dim);
    const auto some_slots = absl::MakeConstSpan(image.slots).subspan(first * slots, count * slots);
    auto ages = absl::MakeConstSpan(image.ages);
    if (!ages.empty()) ages = ages.subspan(first, count);
    auto heads = absl::MakeConstSpan(image.heads);
    if (!heads.empty()) heads = heads.subspan(first, count);
    TANDEM_RETURN_IF_ERROR(store->Load(keys, weights, some_slots, ages, heads));
    first = last + 1;  // `last` is outside, or the end
  }
  if (!store->limited()) return absl::OkStatus();
  const auto key_of_candidate = [](const Candidate& candidate) { return candidate.key; };
  const auto [begin_candidate, candidates] =
      ordered ? Inside(salt, image.candidates, key_of_candidate, begin, end)
              : std::make_pair(size_t{0}, image.candidates.size());
  for (size_t i = begin_candidate; i < candidates; ++i) {
    const Candidate& candidate = image.candidates[i];
    if (!InRange(Position(salt, candidate.key), begin, end)) continue;
    TANDEM_RETURN_IF_ERROR(store->SetCandidate(candidate));
  }
  return absl::OkStatus();
}

void OrderByPosition(uint64_t salt, RangeImage* image) {
  image->ordered_under = salt;
  const auto by_position = [salt](const Candidate& a, const Candidate& b) {
    return Position(salt, a.key) < Position(salt, b.key);
  };
  std::stable_sort(image->candidates.begin(), image->candidates.end(), by_position);
  std::vector<uint64_t>& keys = image->keys;
  const auto key_by_position = [salt](uint64_t a, uint64_t b) {
    return Position(salt, a) < Position(salt, b);
  };
  if (std::is_sorted(keys.begin(), keys.end(), key_by_position)) return;
  std::vector<std::pair<uint64_t, size_t>> order(keys.size());  // position, row
  static_assert(sizeof order[0] == kOrderBytes);
  for (size_t i = 0; i < keys.size(); ++i) order[i] = {Position(salt, keys[i]), i};
  std::sort(order.begin(), order.end());
  Reorder(order, 1, &keys);
  Reorder(order, static_cast<size_t>(image->dim), &image->weights);
  Reorder(order, static_cast<size_t>(image->slots_per_row), &image->slots);
  if (image->limited) Reorder(order, 1, &image->ages);
  if (image->types.has_heads()) Reorder(order, 1, &image->heads);
}

uint64_t StoredChecksum(absl::Span<const uint8_t> bytes) {
  TANDEM_CHECK(bytes.size() >= kChecksumBytes);
  uint64_t checksum = 0;
  std::memcpy(&checksum, bytes.data() + bytes.size() - kChecksumBytes, sizeof checksum);
  return checksum;
}

absl::StatusOr<RangeFileEnds> ReadRangeFileEnds(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(PartReader file, PartReader::Open(path, 0, 0));
  RangeFileEnds ends;
  ends.table.resize(file.header().table_bytes);
  TANDEM_RETURN_IF_ERROR(file.Read(file.names_at(), ends.table.data(), ends.table.size()));
  TANDEM_RETURN_IF_ERROR(
      file.Read(file.bytes() - kChecksumBytes, &ends.checksum, sizeof ends.checksum));
  ends.begin = file.header().begin;
  ends.end = file.header().end;
  ends.bytes = file.bytes();
  ends.rows = file.header().rows;
  return ends;
}

absl::StatusOr<std::vector<uint64_t>> ReadRangeFileKeys(const std::string& path, uint64_t offset,
                                                        uint64_t bytes) {
  TANDEM_ASSIGN_OR_RETURN(PartReader file, PartReader::Open(path, offset, bytes));
  std::vector<uint64_t> keys(file.header().rows);
  const uint64_t at = file.names_at() + Padded(Sections(file.header()).bytes[1]);
  TANDEM_RETURN_IF_ERROR(file.Read(at, keys.data(), keys.size() * sizeof(uint64_t)));
  return keys;
}

}  // namespace tandem::server
