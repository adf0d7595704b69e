#include "data/cache_rows.h"

#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "data/arrow_files.h"
#include "data/cells.h"
#include "data/files.h"
#include "data/row_data.h"
#include "data/statistics.h"
#include "data/transforms.h"
#include "job/row_shape.h"

namespace tandem::data {
namespace {

constexpr uint8_t kPositive = 1, kBad = 2, kBags = 4, kWeights = 8;
constexpr char kMake[] = "; hint: tandem cache JOB";

// ---- what a cache was made of ----

struct SourceStamp {
  int64_t bytes = -1, written_ns = 0, inode = 0;
  friend bool operator==(const SourceStamp&, const SourceStamp&) = default;
};

std::string WholePath(const std::string& source) {
  if (IsAddress(source)) return source;
  return std::filesystem::absolute(source).lexically_normal().string();
}

absl::StatusOr<SourceStamp> SourceStampOf(const std::string& source) {
  if (IsAddress(source)) {
    TANDEM_ASSIGN_OR_RETURN(const AddressInfo info, InfoOfAddress(source));
    return SourceStamp{info.bytes, info.changed_ns, 0};
  }
  const FileStamp stamp = StampOf(source);
  return SourceStamp{stamp.bytes, stamp.written_s * 1'000'000'000 + stamp.written_ns,
                     static_cast<int64_t>(stamp.inode)};
}

// XXH3 of the first `bytes` bytes of a file.
absl::StatusOr<uint64_t> HashOfFile(const std::string& file, int64_t bytes) {
  constexpr int64_t kPiece = int64_t{4} << 20;
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state{XXH3_createState(),
                                                                       &XXH3_freeState};
  XXH3_64bits_reset(state.get());
  for (int64_t at = 0; at < bytes; at += kPiece) {
    TANDEM_ASSIGN_OR_RETURN(const std::string piece,
                            ReadFilePart(file, static_cast<uint64_t>(at),
                                         static_cast<uint64_t>(std::min(kPiece, bytes - at))));
    XXH3_64bits_update(state.get(), piece.data(), piece.size());
  }
  return XXH3_64bits_digest(state.get());
}

// The fields of `data` that decide how a row is parsed.
Data Described(const Data& data) {
  Data described;
  described.set_format(data.format());
  described.set_max_ids(data.max_ids());
  if (data.has_columns()) *described.mutable_columns() = data.columns();
  described.mutable_columns()->clear_statistics_rows();
  return described;
}

// The name of the field in which two messages of one type differ. Clears fields of both.
std::string Difference(google::protobuf::Message* a, google::protobuf::Message* b) {
  const google::protobuf::Descriptor& type = *a->GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    a->GetReflection()->ClearField(a, type.field(i));
    b->GetReflection()->ClearField(b, type.field(i));
    if (a->SerializeAsString() == b->SerializeAsString()) return type.field(i)->name();
  }
  return "";
}

std::string Difference(const Data& was, const Data& is) {
  Data a = was, b = is;
  a.clear_columns();
  b.clear_columns();
  if (a.SerializeAsString() != b.SerializeAsString())
    return absl::StrCat("data.", Difference(&a, &b));
  Columns before = was.columns(), after = is.columns();
  return absl::StrCat("data.columns.", Difference(&before, &after));
}

// ---- rows as bytes ----

template <typename T>
void Put(const T* numbers, size_t count, std::string* bytes) {
  static_assert(std::is_arithmetic_v<T>);
  bytes->append(reinterpret_cast<const char*>(numbers), count * sizeof(T));
}

// False if there are too few bytes.
template <typename T>
bool Take(absl::string_view* bytes, size_t count, T* numbers) {
  if (count > bytes->size() / sizeof(T)) return false;
  if (count > 0) std::memcpy(numbers, bytes->data(), count * sizeof(T));
  bytes->remove_prefix(count * sizeof(T));
  return true;
}

bool TakeText(absl::string_view* bytes, absl::string_view* text) {
  uint64_t size = 0;
  if (!TakeVarint(bytes, &size) || size > bytes->size()) return false;
  *text = bytes->substr(0, size);
  bytes->remove_prefix(size);
  return true;
}

void PutGoodRow(uint64_t hash, const Row& row, absl::Span<const double> values,
                std::string* bytes) {
  const bool bags = !row.offsets.empty(), weights = !row.weights.empty();
  Put(&hash, 1, bytes);
  bytes->push_back(static_cast<char>((row.label == 1 ? kPositive : 0) | (bags ? kBags : 0) |
                                     (weights ? kWeights : 0)));
  if (values.empty()) {
    Put(row.numbers.data(), row.numbers.size(), bytes);
  } else {
    Put(values.data(), values.size(), bytes);
  }
  for (size_t f = 0; f + 1 < row.offsets.size(); ++f) {
    AppendVarint(row.offsets[f + 1] - row.offsets[f], bytes);
  }
  Put(row.keys.data(), row.keys.size(), bytes);
  Put(row.weights.data(), row.weights.size(), bytes);
}

// `fresh`: the error of a parser that has seen no row of the file.
void PutBadRow(uint64_t hash, absl::string_view error, absl::string_view fresh,
               std::string* bytes) {
  Put(&hash, 1, bytes);
  bytes->push_back(static_cast<char>(kBad));
  for (const absl::string_view text : {error, fresh}) {
    AppendVarint(text.size(), bytes);
    absl::StrAppend(bytes, text);
  }
}

// ---- reading ----

class CacheRows final : public RowFile {
 public:
  CacheRows(std::unique_ptr<CacheFile> file, std::string name, RowParser* parser)
      : RowFile(parser), file_(std::move(file)), name_(std::move(name)) {
    if (!blocks().empty()) first_line_ = "a cached row";
    Enter(Block());
  }

  void Enter(const Block& block) override {
    end_ = block.end;
    const bool from_start = blocks().empty() || block.begin <= blocks()[0].offset;
    numbered_ = file_->meta().numbered || from_start || block.line > 0;
    SeekTo(block.begin);
  }

  absl::StatusOr<bool> Next(absl::string_view* row) override {
    if (!started_) {
      started_ = true;
      if (!blocks().empty()) TANDEM_RETURN_IF_ERROR(parser()->StartFile(first_line_));
    }
    do {
      TANDEM_ASSIGN_OR_RETURN(const bool more, Step(row));
      if (!more) return false;
    } while (offset_ < begin_);
    return offset_ < end_;
  }

  absl::StatusOr<bool> ReadAt(const Block& block, int64_t offset, int64_t line_number,
                              absl::string_view* row) override {
    Enter(block);
    numbered_ = file_->meta().numbered || line_number > 0 || offset == 0;
    SeekTo(offset);
    return Next(row);
  }

  // Whole blocks are not read.
  absl::StatusOr<int64_t> Skip(int64_t rows) override {
    int64_t skipped = 0;
    const auto whole = [&] {
      return end_ == kNoEnd && rest_.empty() && next_ < blocks().size() &&
             begin_ <= blocks()[next_].offset &&
             static_cast<int64_t>(blocks()[next_].rows) <= rows - skipped;
    };
    while (whole()) skipped += static_cast<int64_t>(blocks()[next_++].rows);
    TANDEM_ASSIGN_OR_RETURN(const int64_t more, RowFile::Skip(rows - skipped));
    return skipped + more;
  }

  const std::string& name() const override { return name_; }
  int64_t offset() const override { return offset_; }
  int64_t line() const override { return numbered_ ? line_ : 0; }
  absl::Status Error(absl::string_view what) const override {
    return absl::InvalidArgumentError(absl::StrCat(name(), ":", line_, ": ", what));
  }
  bool seekable() const override { return file_->meta().seekable; }
  const std::string& first_line() const override { return first_line_; }
  int64_t rows() const override { return file_->meta().rows; }
  std::vector<DealtFile> Pieces(int64_t /*stored*/) const override { return file_->meta().pieces; }
  absl::string_view whole_piece() const override { return file_->meta().whole_piece; }

 private:
  const std::vector<CacheBlock>& blocks() const { return file_->blocks(); }

  // Goes to the block that has the first row at `offset` or later, or the row before that row. Step
  // returns the rows of this block and the later ones.
  void SeekTo(int64_t offset) {
    const auto after = std::upper_bound(
        blocks().begin(), blocks().end(), offset,
        [](int64_t place, const CacheBlock& block) { return place < block.offset; });
    next_ = static_cast<size_t>(std::max<ptrdiff_t>(1, after - blocks().begin())) - 1;
    begin_ = offset;
    rest_ = absl::string_view();
  }

  // The next row of the file.
  absl::StatusOr<bool> Step(absl::string_view* row) {
    if (rest_.empty()) {
      if (next_ == blocks().size()) return false;
      if (held_ != next_) {
        held_ = blocks().size();  // none, until the block is read
        TANDEM_RETURN_IF_ERROR(file_->Read(next_, &bytes_));
        held_ = next_;
      }
      rest_ = bytes_;
      offset_ = blocks()[next_].offset;
      line_ = blocks()[next_++].line;
    }
    uint64_t offset = 0, line = 0;
    if (!TakeVarint(&rest_, &offset) || !TakeVarint(&rest_, &line) || !TakeText(&rest_, row) ||
        offset > static_cast<uint64_t>(kNoEnd - offset_) ||
        line > static_cast<uint64_t>(kNoEnd - line_)) {
      rest_ = absl::string_view();
      return file_->Damaged(held_);
    }
    offset_ += static_cast<int64_t>(offset);
    line_ += static_cast<int64_t>(line);
    return true;
  }

  const std::unique_ptr<CacheFile> file_;
  const std::string name_;
  std::string first_line_;
  bool started_ = false, numbered_ = true;
  int64_t begin_ = 0, end_ = kNoEnd;                  // places of the rows to return
  size_t next_ = 0;                                   // the block after that of rest_
  size_t held_ = std::numeric_limits<size_t>::max();  // the block whose bytes are bytes_
  std::string bytes_;
  absl::string_view rest_;  // of bytes_: the rows that were not read yet
  int64_t offset_ = 0, line_ = 0;
};

class CacheParser final : public RowParser {
 public:
  CacheParser(const Data& data, std::unique_ptr<RowParser> source,
              std::vector<NumberTransform> transforms)
      : data_(data),
        folder_(data.cache()),
        source_(std::move(source)),
        transforms_(std::move(transforms)),
        shape_(job::RowShapeOf(data)),
        bags_(std::any_of(shape_.bags.begin(), shape_.bags.end(),
                          [](const job::BagShape& bag) { return bag.bag; })),
        weighted_(!shape_.bags.empty() && shape_.bags[0].weighted) {
    values_.resize(transforms_.size());
  }

  absl::StatusOr<std::unique_ptr<RowFile>> Open(const std::string& source) override {
    TANDEM_ASSIGN_OR_RETURN(const std::string folder, CacheFolder("data.cache", folder_));
    const std::string path = CachePath(folder, source);
    absl::StatusOr<std::unique_ptr<CacheFile>> file = CacheFile::Open(path);
    if (absl::IsNotFound(file.status())) {
      return absl::FailedPreconditionError(
          absl::StrCat(source, ": has no cache in data.cache, expected ", path, kMake));
    }
    TANDEM_RETURN_IF_ERROR(file.status());
    const CacheMeta& meta = (*file)->meta();
    TANDEM_RETURN_IF_ERROR(CheckMade(**file, source));
    TANDEM_RETURN_IF_ERROR(CheckSource(meta, source, path));
    columns_ = static_cast<size_t>(meta.columns);
    return NewCacheRows(*std::move(file), source, this);
  }

  bool has_header() const override { return source_->has_header(); }
  bool spans_lines() const override { return source_->spans_lines(); }
  size_t columns() const override { return columns_; }
  absl::Status StartFile(absl::string_view /*first_line*/) override {
    at_first_row_ = true;
    return absl::OkStatus();
  }
  uint64_t HashOfRow(absl::string_view row) const override {
    uint64_t hash = 0;
    Take(&row, 1, &hash);
    return hash;
  }

  absl::Status Parse(absl::string_view bytes, Row* row) override {
    uint64_t hash = 0;
    uint8_t flags = 0;
    if (!Take(&bytes, 1, &hash) || !Take(&bytes, 1, &flags)) return Damaged();
    if ((flags & kBad) != 0) return BadRow(bytes);
    if (((flags & kBags) != 0) != bags_) return Damaged();
    row->label = (flags & kPositive) != 0 ? 1.0f : 0.0f;
    if (!TakeNumbers(&bytes, row)) return Damaged();
    row->offsets.clear();
    if (bags_ && !TakeBags(&bytes, &row->offsets)) return Damaged();
    const size_t keys = bags_ ? row->offsets.back() : shape_.fields.size();
    const size_t weights = (flags & kWeights) != 0 ? keys : 0;
    if (weights < keys && weighted_) return Damaged();
    if (bytes.size() != keys * sizeof(uint64_t) + weights * sizeof(float)) return Damaged();
    row->keys.resize(keys);
    row->weights.resize(weights);
    if (!Take(&bytes, keys, row->keys.data()) || !Take(&bytes, weights, row->weights.data())) {
      return Damaged();
    }
    if (row->label == 0 && learned_.empty()) learned_ = learnable_;
    at_first_row_ = false;
    return absl::OkStatus();
  }

  // `tandem cache` knew all labels. A worker learns the label from the same row as from text.
  std::string LearnedNegative() const override { return learned_; }
  void LearnNegative(absl::string_view label) override {
    at_first_row_ = false;
    if (!label.empty()) learned_ = std::string(label);
  }
  bool Learns() const override { return learned_.empty() && source_->Learns(); }
  absl::Span<const double> values() const override { return values_; }

 private:
  static absl::Status Damaged() {
    return absl::DataLossError("the cached row is damaged; hint: tandem cache JOB again");
  }

  absl::Status BadRow(absl::string_view bytes) const {
    absl::string_view error, fresh;
    if (!TakeText(&bytes, &error) || !TakeText(&bytes, &fresh)) return Damaged();
    const bool is_fresh = data_.format() == Data::LIBSVM ? learned_.empty() : at_first_row_;
    return absl::InvalidArgumentError(is_fresh ? fresh : error);
  }

  bool TakeNumbers(absl::string_view* bytes, Row* row) {
    const auto numbers = static_cast<size_t>(shape_.numbers);
    row->numbers.resize(numbers);
    if (transforms_.empty()) return Take(bytes, numbers, row->numbers.data());
    if (!Take(bytes, numbers, values_.data())) return false;
    for (size_t i = 0; i < numbers; ++i) row->numbers[i] = transforms_[i].Scaled(values_[i]);
    return true;
  }

  // Takes the number of ids of each field.
  bool TakeBags(absl::string_view* bytes, std::vector<uint32_t>* offsets) const {
    offsets->push_back(0);
    for (const job::BagShape& bag : shape_.bags) {
      uint64_t ids = 0;
      if (!TakeVarint(bytes, &ids) || (!bag.bag && ids != 1)) return false;
      if (offsets->back() > bytes->size() / sizeof(uint64_t)) return false;
      if (ids > bytes->size() / sizeof(uint64_t) - offsets->back()) return false;
      offsets->push_back(offsets->back() + static_cast<uint32_t>(ids));
    }
    return true;
  }

  // Refuses a cache that was made for other columns or by another version.
  absl::Status CheckMade(const CacheFile& file, const std::string& source) {
    const CacheMeta& meta = file.meta();
    const auto refuse = [&](absl::string_view what) {
      return absl::FailedPreconditionError(absl::StrCat(file.path(), ": ", what, kMake));
    };
    if (meta.hashing != kKeyHashing) {
      return refuse(absl::StrCat("was made with the key function '", meta.hashing, "', expected '",
                                 kKeyHashing, "'"));
    }
    Data was, is = Described(data_);
    if (!was.ParseFromString(meta.described)) return refuse("has a damaged header");
    if (meta.source != WholePath(source)) {
      return refuse(absl::StrCat("was made of ", meta.source, ", expected ", WholePath(source)));
    }
    // The job may leave open which label counts as 0. The caches of all files must agree on it.
    std::string learnable = meta.negative;
    if (is.columns().negative().empty() && !is.columns().positive().empty()) {
      *is.mutable_columns()->mutable_negative() = was.columns().negative();
      learnable = was.columns().negative_size() > 0 ? was.columns().negative(0) : "";
    }
    if (was.SerializeAsString() != is.SerializeAsString()) {
      return refuse(absl::StrCat("was made for another ", Difference(was, is)));
    }
    if (!learnable_.empty() && !learnable.empty() && learnable != learnable_) {
      return refuse(absl::StrCat("was made with label ", Quote(learnable),
                                 " as 0, and an earlier "
                                 "file with ",
                                 Quote(learnable_)));
    }
    if (learnable_.empty()) learnable_ = std::move(learnable);
    return absl::OkStatus();
  }

  absl::Status CheckSource(const CacheMeta& meta, const std::string& source,
                           const std::string& path) {
    TANDEM_ASSIGN_OR_RETURN(const SourceStamp now, SourceStampOf(source));
    if (now.bytes < 0) return CannotOpen(absl::StrCat(source, ": cannot open"), ENOENT);
    const auto changed = [&] {
      return absl::FailedPreconditionError(
          absl::StrCat(source, ": has changed since ", path, " was made", kMake));
    };
    if (now.bytes != meta.source_bytes) return changed();
    const SourceStamp then = {meta.source_bytes, meta.source_written_ns, meta.source_inode};
    if (now == then) return absl::OkStatus();
    if (meta.source_hash == 0) return changed();
    // A copy of the file, perhaps. Its contents are compared once: a note beside the cache tells
    // other processes and later runs.
    const std::string note = absl::StrCat(path, ".same");
    const std::string text = absl::StrCat(absl::Hex(meta.source_hash), " ", now.bytes, " ",
                                          now.written_ns, " ", now.inode, "\n");
    if (const auto known = ReadWholeFile(note); known.ok() && *known == text) {
      return absl::OkStatus();
    }
    TANDEM_ASSIGN_OR_RETURN(const uint64_t hash, HashOfFile(source, now.bytes));
    if (hash != meta.source_hash) return changed();
    (void)WriteFileAtomically(note, text);  // where nothing can be written, it is compared again
    return absl::OkStatus();
  }

  const Data data_;
  const std::string folder_;
  const std::unique_ptr<RowParser> source_;
  const std::vector<NumberTransform> transforms_;  // empty: numbers are stored as they are used
  const job::RowShape shape_;
  const bool bags_, weighted_;
  size_t columns_ = 0;
  bool at_first_row_ = false;
  std::string learnable_, learned_;
  std::vector<double> values_;
};

// ---- making ----

// Parses a row and encodes it.
class RowPacker {
 public:
  RowPacker(const Data& data, RowParser* parser, RowFile* file)
      : data_(data), parser_(parser), file_(file), wide_(NeedsStatistics(data)) {}

  absl::Status Pack(absl::string_view line, std::string* bytes) {
    bytes->clear();
    const uint64_t hash = parser_->HashOfRow(line);
    const absl::Status parsed = parser_->Parse(line, &row_);
    if (parsed.ok()) {
      PutGoodRow(hash, row_, wide_ ? parser_->values() : absl::Span<const double>(), bytes);
      return absl::OkStatus();
    }
    ++bad_rows_;
    if (first_bad_.empty()) first_bad_ = std::string(file_->Error(parsed.message()).message());
    TANDEM_ASSIGN_OR_RETURN(const auto fresh, NewRowParser(data_, nullptr));
    TANDEM_RETURN_IF_ERROR(fresh->StartFile(file_->first_line()));
    const absl::Status first = fresh->Parse(line, &row_);
    const std::string learned = fresh->LearnedNegative();
    if (first.ok() || (!learned.empty() && learned != parser_->LearnedNegative())) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_->Error(parsed.message()).message(),
                       "; such a row cannot be cached, since the rows before it decide which label "
                       "counts as 0"));
    }
    fresh->LearnNegative(parser_->LearnedNegative());
    const absl::Status later = fresh->Parse(line, &row_);
    PutBadRow(hash, later.message(), first.message(), bytes);
    return absl::OkStatus();
  }

  int64_t bad_rows() const { return bad_rows_; }
  const std::string& first_bad() const { return first_bad_; }

 private:
  const Data& data_;
  RowParser* const parser_;
  RowFile* const file_;
  const bool wide_;
  Row row_;
  int64_t bad_rows_ = 0;
  std::string first_bad_;
};

absl::Status CheckStays(const std::string& source, const SourceStamp& before) {
  TANDEM_ASSIGN_OR_RETURN(const SourceStamp now, SourceStampOf(source));
  if (now == before) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      source, ": has changed while it was read; hint: cache a copy that nobody writes to"));
}

// Returns the report of an existing cache. An error means that the cache must be made again: a run
// of this job would refuse it, or would read the data file to compare its contents, or the cache
// has another compression level.
absl::StatusOr<CacheReport> ValidCache(const Data& data, const std::string& source,
                                       const std::string& path, int zstd_level) {
  TANDEM_ASSIGN_OR_RETURN(const auto parser, NewRowParser(data, nullptr));
  TANDEM_RETURN_IF_ERROR(parser->Open(source).status());
  TANDEM_ASSIGN_OR_RETURN(const auto file, CacheFile::Open(path));
  TANDEM_RETURN_IF_ERROR(file->CheckBlocks());
  const CacheMeta& meta = file->meta();
  TANDEM_ASSIGN_OR_RETURN(const SourceStamp stamp, SourceStampOf(source));
  const SourceStamp then = {meta.source_bytes, meta.source_written_ns, meta.source_inode};
  if (meta.zstd_level != zstd_level || then != stamp) {
    return absl::NotFoundError("packed otherwise, or written anew");
  }
  return CacheReport{meta.rows, meta.bad_rows, StampOf(path).bytes, "", meta.negative, true};
}

}  // namespace

absl::StatusOr<std::string> CacheFolder(absl::string_view knob, const std::string& name) {
  absl::StatusOr<std::string> folder = ExpandName(name);
  if (folder.ok()) return folder;
  return absl::Status(folder.status().code(), absl::StrCat(knob, ": ", folder.status().message()));
}

std::string CachePath(const std::string& folder, const std::string& source) {
  constexpr size_t kMaxShown = 100;  // names of files have a limit
  const std::string base = source.substr(source.rfind('/') + 1, kMaxShown);
  return absl::StrFormat("%s/%s-%016x.cache", folder, base, HashName(WholePath(source)));
}

absl::StatusOr<std::unique_ptr<RowParser>> NewCacheParser(const Data& data,
                                                          std::unique_ptr<RowParser> source,
                                                          const DataStatistics* statistics) {
  std::vector<NumberTransform> transforms;
  if (NeedsStatistics(data)) {
    TANDEM_ASSIGN_OR_RETURN(transforms, TransformsOf(data.columns(), statistics));
  }
  return std::make_unique<CacheParser>(data, std::move(source), std::move(transforms));
}

std::unique_ptr<RowFile> NewCacheRows(std::unique_ptr<CacheFile> file, std::string name,
                                      RowParser* parser) {
  return std::make_unique<CacheRows>(std::move(file), std::move(name), parser);
}

absl::StatusOr<CacheReport> MakeCache(const Data& data, const std::string& source,
                                      const std::string& folder, int zstd_level,
                                      const std::string& negative) {
  const std::string path = CachePath(folder, source);
  Data cached = data, text = data;
  cached.set_cache(folder);
  text.clear_cache();
  absl::StatusOr<CacheReport> valid = ValidCache(cached, source, path, zstd_level);
  if (valid.ok() && (negative.empty() || valid->negative.empty() || valid->negative == negative)) {
    return valid;
  }
  TANDEM_ASSIGN_OR_RETURN(const SourceStamp stamp, SourceStampOf(source));
  TANDEM_ASSIGN_OR_RETURN(const auto parser, NewRowParser(text, nullptr));
  parser->LearnNegative(negative);
  TANDEM_ASSIGN_OR_RETURN(const auto file, parser->Open(source));
  TANDEM_ASSIGN_OR_RETURN(const auto writer, CacheWriter::Create(path, zstd_level));
  RowPacker packer(text, parser.get(), file.get());
  CacheMeta meta;
  std::string bytes;
  for (absl::string_view line;; ++meta.rows) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, file->Next(&line));
    if (!more) break;
    TANDEM_RETURN_IF_ERROR(packer.Pack(line, &bytes));
    TANDEM_RETURN_IF_ERROR(writer->Add(file->offset(), file->line(), bytes));
  }
  if (!IsAddress(source)) {
    TANDEM_ASSIGN_OR_RETURN(meta.source_hash, HashOfFile(source, stamp.bytes));
  }
  TANDEM_RETURN_IF_ERROR(CheckStays(source, stamp));
  meta.source = WholePath(source);
  meta.source_bytes = stamp.bytes;
  meta.source_written_ns = stamp.written_ns;
  meta.source_inode = stamp.inode;
  meta.described = Described(data).SerializeAsString();
  meta.hashing = kKeyHashing;
  meta.negative = parser->LearnedNegative();
  meta.bad_rows = packer.bad_rows();
  meta.columns = static_cast<int64_t>(parser->columns());
  meta.zstd_level = zstd_level;
  meta.seekable = file->seekable();
  meta.numbered = !file->seekable() || data.format() == Data::PARQUET;
  meta.pieces = file->Pieces(stamp.bytes);
  meta.whole_piece = std::string(file->whole_piece());
  TANDEM_RETURN_IF_ERROR(writer->Finish(meta));
  TANDEM_RETURN_IF_ERROR(FlushFolder(folder));
  return CacheReport{meta.rows,          packer.bad_rows(), static_cast<int64_t>(writer->bytes()),
                     packer.first_bad(), meta.negative,     false};
}

}  // namespace tandem::data
