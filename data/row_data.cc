#include "data/row_data.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "data/byte_source.h"
#include "data/cache_rows.h"
#include "data/line_reader.h"
#include "job/row_shape.h"

namespace tandem::data {
namespace {

// With fewer bytes for each worker, it is cheap to read all files. Shares of ROWS are then better,
// because they differ by one row at most.
constexpr int64_t kMinShareBytes = int64_t{1} << 20;
// Smallest size of a block (data/deal_blocks.cc says what a change needs). If quoted cells may
// continue in the next line, a reader may need as many bytes as the longest row to find the first
// row of a block.
constexpr int64_t kMinBlockBytes = int64_t{64} << 10;
constexpr int64_t kMinBlockBytesWithQuotes = int64_t{kMaxLineBytes};
// The largest share, as a multiple of the mean, for which a job gets BLOCKS without naming it.
constexpr double kUneven = 1.25;

template <typename Names>
absl::Status SetFiles(absl::string_view knob, const Names& names, RowPart* part) {
  TANDEM_ASSIGN_OR_RETURN(part->files, ExpandAllFiles(knob, {names.begin(), names.end()}));
  for (const std::string& file : part->files) part->stamps.push_back(StampOf(file));
  return absl::OkStatus();
}

// ---- the parts of the training files ----------------------------------------------------------

// The number of rows that are taken off the end of `rows` rows.
absl::StatusOr<int64_t> RowsTaken(absl::string_view knob, absl::string_view what, double fraction,
                                  int64_t rows) {
  if (rows == 0) return absl::InvalidArgumentError("data.train: there is no row in these files");
  const int64_t taken = std::llround(static_cast<double>(rows) * fraction);
  if (taken > 0 && taken < rows) return taken;
  return absl::InvalidArgumentError(absl::StrCat(
      knob, " ", fraction, " of ", rows, " rows leaves no ", taken <= 0 ? what : "training",
      " row; hint: change it or name files of their own"));
}

// Finds where row `row` is. `counts`: the rows of each file.
absl::StatusOr<RowAt> PlaceOfRow(const std::vector<std::string>& files,
                                 const std::vector<int64_t>& counts, int64_t row,
                                 RowParser* parser) {
  RowAt at = {row, 0, 0, 0};
  int64_t before = 0;  // rows of earlier files
  while (at.file < files.size() && before + counts[at.file] <= row) before += counts[at.file++];
  if (at.file == files.size()) return at;  // the end
  TANDEM_ASSIGN_OR_RETURN(const auto file, parser->Open(files[at.file]));
  absl::string_view line;
  TANDEM_RETURN_IF_ERROR(file->Skip(row - before).status());
  TANDEM_ASSIGN_OR_RETURN(const bool more, file->Next(&line));
  if (!more) {
    return absl::FailedPreconditionError(
        absl::StrCat(files[at.file],
                     ": the file has fewer rows than a moment ago; hint: train on "
                     "a copy that nobody writes to"));
  }
  at.offset = file->offset();
  at.line = file->line();
  return at;
}

bool SplitsTest(const Data& data) { return data.test().empty() && data.test_fraction() != 0; }

// Whether parts end inside the training files, and the workers need to know where.
bool NeedsBorders(const job::ResolvedJob& plan) {
  const Data& data = plan.job.data();
  if (SplitsTest(data) || data.validation().last_fraction() > 0) return true;
  return data.max_rows() > 0 && (data.deal() == Data::BLOCKS ||
                                 (data.deal() == Data::DEAL_UNSPECIFIED && plan.workers() > 1));
}

// The ends of the training, validation and test rows in the training files. Counts the rows unless
// the job has them.
absl::StatusOr<std::vector<RowAt>> FindBorders(const Data& data,
                                               const std::vector<std::string>& files,
                                               RowParser* parser) {
  std::vector<RowAt> borders;
  for (const RowBorder& border : data.border()) {
    borders.push_back(
        {border.row(), static_cast<size_t>(border.file()), border.offset(), border.line()});
  }
  if (!borders.empty()) return borders;
  // One row more than the job uses, so that the end is known.
  int64_t left = data.max_rows() > 0 ? std::min(data.max_rows(), kNoEnd - 1) + 1 : kNoEnd;
  std::vector<int64_t> counts;
  for (const std::string& file : files) {
    TANDEM_ASSIGN_OR_RETURN(counts.emplace_back(), CountRows({file}, parser, left));
    left -= counts.back();
  }
  int64_t row = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  if (data.max_rows() > 0) row = std::min(row, data.max_rows());
  std::array<int64_t, 3> ends = {row, row, row};
  if (SplitsTest(data)) {
    TANDEM_ASSIGN_OR_RETURN(const int64_t taken,
                            RowsTaken("data.test_fraction", "test", data.test_fraction(), row));
    ends[0] = ends[1] = row - taken;
  }
  if (data.validation().last_fraction() > 0) {
    TANDEM_ASSIGN_OR_RETURN(const int64_t taken,
                            RowsTaken("data.validation.last_fraction", "validation",
                                      data.validation().last_fraction(), ends[1]));
    ends[0] -= taken;
  }
  for (const int64_t end : ends) {  // PlaceOfRow reads the file again, so call it once for each end
    if (!borders.empty() && borders.back().row == end) {
      borders.push_back(borders.back());
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(borders.emplace_back(), PlaceOfRow(files, counts, end, parser));
  }
  return borders;
}

// The rows of `from` between two borders.
RowPart PartBetween(const RowPart& from, const RowAt& begin, const RowAt& end) {
  RowPart part = from;
  part.rows.begin = begin;
  part.rows.end = end;
  return part;
}

void PickByChance(double chance, uint64_t seed, RowPart* from, RowPart* to) {
  from->rows.chance = chance;
  from->rows.seed = HashCombine(seed, HashName("validation"));
  *to = *from;
  to->rows.part = RowSelection::Part::kPicked;
  from->rows.part = RowSelection::Part::kOthers;
}

// ---- dealing the rows of a part ---------------------------------------------------------------

// Unpacked bytes per stored byte at the start of a compressed file.
absl::StatusOr<double> UnpackedPerByte(const std::string& name, int64_t stored) {
  TANDEM_ASSIGN_OR_RETURN(const auto bytes, OpenFile(name));
  std::vector<char> buffer(size_t{128} << 10);
  double unpacked = 0;
  while (unpacked < static_cast<double>(kLargeSampleBytes)) {
    const absl::StatusOr<size_t> got = bytes->Read(buffer.data(), buffer.size());
    if (!got.ok()) {
      return absl::Status(got.status().code(), absl::StrCat(name, ": ", got.status().message()));
    }
    if (*got == 0) break;
    unpacked += static_cast<double>(*got);
  }
  const double read = bytes->Progress() * static_cast<double>(stored);
  return read > 0 ? unpacked / read : 1.0;
}

struct PartFiles {
  std::vector<DealtFile> files;
  int64_t bytes = 0;  // stored
  int64_t plain_bytes = 0;
  int whole = 0;          // pieces that cannot be cut
  std::string whole_are;  // what these are
};

// The pieces of a part's files, without the rows before and after the part's rows.
absl::StatusOr<PartFiles> FilesToDeal(const RowPart& part, RowParser* parser) {
  PartFiles found;
  for (size_t i = part.rows.begin.file; i < part.files.size(); ++i) {
    if (i > part.rows.end.file || (i == part.rows.end.file && part.rows.end.offset == 0)) break;
    TANDEM_ASSIGN_OR_RETURN(const auto file, parser->Open(part.files[i]));
    const int64_t stored = std::max<int64_t>(0, part.stamps[i].bytes);
    found.whole_are = std::string(file->whole_piece());
    bool cut = true;
    for (DealtFile piece : file->Pieces(stored)) {
      const Block all = piece.bytes;
      piece.bytes.file = i;
      if (i == part.rows.begin.file) {
        piece.bytes.begin = std::max(all.begin, part.rows.begin.offset);
      }
      if (i == part.rows.end.file) piece.bytes.end = std::min(all.end, part.rows.end.offset);
      const int64_t size = piece.bytes.end - piece.bytes.begin;
      if (size <= 0) continue;
      cut &= !piece.whole;
      if (piece.whole) {
        ++found.whole;
        if (all.end != kNoEnd)
          piece.unpacked = piece.unpacked * static_cast<double>(size) / (all.end - all.begin);
      } else {
        found.plain_bytes += size;
      }
      found.files.push_back(piece);
    }
    if (!cut) found.bytes += stored;
  }
  found.bytes += found.plain_bytes;
  if (found.whole == 0 || found.plain_bytes == 0) return found;
  // Shares should be equal in rows, so estimate the plain text in each compressed file.
  const auto first = std::find_if(found.files.begin(), found.files.end(),
                                  [](const DealtFile& file) { return file.whole; });
  TANDEM_ASSIGN_OR_RETURN(
      const double factor,
      UnpackedPerByte(part.files[first->bytes.file], static_cast<int64_t>(first->unpacked)));
  for (DealtFile& file : found.files) file.unpacked *= factor;
  return found;
}

std::string WholeFor(const PartFiles& found, int workers) {
  return absl::StrCat(found.whole, " ", found.whole_are, found.whole == 1 ? "" : "s", " for ",
                      workers, " workers");
}

// Deals the rows in blocks if the files allow it. `asked`: the job names BLOCKS. `why`: why large
// files are not dealt in blocks.
absl::Status DealInBlocks(int workers, int64_t min_bytes, bool asked, RowParser* parser,
                          RowPart* part, std::string* why) {
  TANDEM_ASSIGN_OR_RETURN(const PartFiles found, FilesToDeal(*part, parser));
  if (!asked && found.bytes / workers < kMinShareBytes) return absl::OkStatus();
  BlockDeal deal = DealBlocks(found.files, workers, min_bytes);
  if (deal.everyone && (asked || deal.largest <= kUneven)) {
    part->blocks = std::move(deal.of);
    return absl::OkStatus();
  }
  if (!asked) {
    *why = absl::StrCat(WholeFor(found, workers), " cannot be dealt evenly");
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "data.deal: BLOCKS leaves a worker without a block: data.train has ",
      WholeFor(found, workers), " and ", found.plain_bytes, " bytes of plain files, and a ",
      found.whole_are, " cannot be cut; hint: set data.deal: ROWS, or unpack or split the files"));
}

int64_t SizeOnDisk(const RowPart& part) {
  int64_t bytes = 0;
  for (const FileStamp& stamp : part.stamps) bytes += std::max<int64_t>(0, stamp.bytes);
  return bytes;
}

// Workers that cut other files, or find a border at another row, would lose rows or train on them
// twice.
absl::Status CheckTrainBytes(const Data& data, const RowPart& train) {
  const int64_t bytes = SizeOnDisk(train);
  if (data.train_bytes() == 0 || data.train_bytes() == bytes) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "data.train: the files have ", bytes, " bytes, and had ", data.train_bytes(),
      " where the job was started; hint: all hosts need the same files, and nobody may write to "
      "them"));
}

absl::Status DealParts(const job::ResolvedJob& plan, RowParser* parser, RowParts* parts) {
  const Data& data = plan.job.data();
  const int64_t least = parser->spans_lines() ? kMinBlockBytesWithQuotes : kMinBlockBytes;
  const bool asked = data.deal() == Data::BLOCKS;
  if (data.deal() == Data::ROWS || data.score_only()) return absl::OkStatus();
  if (plan.workers() == 1 && !asked) return absl::OkStatus();  // there is nothing to deal
  TANDEM_RETURN_IF_ERROR(
      DealInBlocks(plan.workers(), least, asked, parser, &parts->train, &parts->why_rows));
  if (parts->train.blocks.empty()) return absl::OkStatus();
  parts->deal = Data::BLOCKS;
  parts->train.rows.by_place = true;
  std::string ignored;
  for (RowPart* const part : {&parts->validation, &parts->test}) {
    if (part->rows.part != RowSelection::Part::kAll) {
      part->rows.by_place = true;
      part->blocks = parts->train.blocks;
    } else if (!part->files.empty()) {
      TANDEM_RETURN_IF_ERROR(
          DealInBlocks(plan.workers(), least, /*asked=*/false, parser, part, &ignored));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowParser>> NewRowParser(const Data& data,
                                                        const DataStatistics* statistics) {
  if (!data.cache().empty() && !data.score_only()) {
    Data source = data;
    source.clear_cache();
    TANDEM_ASSIGN_OR_RETURN(auto parser, NewRowParser(source, nullptr));
    return NewCacheParser(data, std::move(parser), statistics);
  }
  switch (data.format()) {
    case Data::CRITEO:
      return NewCriteoParser(data.score_only());
    case Data::LIBSVM:
      return NewLibsvmParser(data.max_ids(), data.columns(), data.score_only());
    case Data::DELIMITED:
      return NewDelimitedParser(data.columns(), statistics, data.score_only(),
                                data.statistics().columns());
    case Data::PARQUET:
      return NewParquetParser(data.columns(), statistics, data.score_only());
    default:
      return absl::InvalidArgumentError("data.format is not set, or not one with a row a line");
  }
}

absl::StatusOr<RowParts> FindRowParts(const job::ResolvedJob& plan, RowParser* parser) {
  const Data& data = plan.job.data();
  const Validation& validation = data.validation();
  RowParts parts;
  if (data.train().empty() && !data.score_only()) {
    return absl::InvalidArgumentError("data.train is not set, expected at least one file or glob");
  }
  TANDEM_RETURN_IF_ERROR(SetFiles("data.train", data.train(), &parts.train));
  TANDEM_RETURN_IF_ERROR(CheckTrainBytes(data, parts.train));
  TANDEM_RETURN_IF_ERROR(SetFiles("data.test", data.test(), &parts.test));
  TANDEM_RETURN_IF_ERROR(SetFiles("data.validation.files", validation.files(), &parts.validation));
  if (NeedsBorders(plan)) {
    TANDEM_ASSIGN_OR_RETURN(parts.borders, FindBorders(data, parts.train.files, parser));
    const RowPart all = parts.train;
    const std::vector<RowAt>& ends = parts.borders;
    parts.train.rows.end = ends[0];
    if (validation.last_fraction() > 0) parts.validation = PartBetween(all, ends[0], ends[1]);
    if (SplitsTest(data)) parts.test = PartBetween(all, ends[1], ends[2]);
  } else if (data.max_rows() > 0) {
    parts.train.rows.end.row = data.max_rows();
  }
  if (validation.fraction() > 0) {
    PickByChance(validation.fraction(), plan.job.seed(), &parts.train, &parts.validation);
  }
  TANDEM_RETURN_IF_ERROR(DealParts(plan, parser, &parts));
  return parts;
}

absl::Status FillDeal(job::ResolvedJob* plan) {
  Data* const data = plan->job.mutable_data();
  if (!job::HasRowsInLines(*data) || data->score_only()) return absl::OkStatus();
  const bool filled =
      data->deal() == Data::ROWS || (data->deal() == Data::BLOCKS && data->train_bytes() > 0);
  if (filled && (!NeedsBorders(*plan) || !data->border().empty())) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const auto parser, NewRowParser(*data, nullptr));
  TANDEM_ASSIGN_OR_RETURN(const RowParts parts, FindRowParts(*plan, parser.get()));
  data->set_deal(parts.deal);
  if (parts.deal == Data::BLOCKS || !parts.borders.empty()) {
    data->set_train_bytes(SizeOnDisk(parts.train));
  }
  data->clear_border();
  for (const RowAt& at : parts.borders) {
    RowBorder* const border = data->add_border();
    border->set_row(at.row);
    border->set_file(static_cast<int64_t>(at.file));
    border->set_offset(at.offset);
    border->set_line(at.line);
  }
  return absl::OkStatus();
}

void ClearMeasured(Data* data) {
  data->clear_statistics();
  data->clear_border();
  data->clear_train_bytes();
}

}  // namespace tandem::data
