#include "data/row_source.h"

#include <sys/stat.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "data/files.h"
#include "data/row_dealer.h"

namespace tandem::data {

RowFile::RowFile(std::unique_ptr<LineReader> lines, RowParser* parser)
    : lines_(std::move(lines)), parser_(parser) {}

absl::StatusOr<bool> RowFile::Next(absl::string_view* line) {
  if (started_) return NextRow(line);
  started_ = true;
  return First(line);
}

absl::StatusOr<bool> RowFile::NextRow(absl::string_view* line) {
  do {
    TANDEM_ASSIGN_OR_RETURN(const bool more, lines_->Next(line));
    if (!more) return false;
  } while (!parser_->IsRow(*line));
  if (parser_->EndsInQuotes(*line, false)) TANDEM_RETURN_IF_ERROR(JoinQuoted(line));
  return true;
}

// Joins lines until the quote ends. If the quote does not end, the row is its first line, which the
// parser then refuses.
absl::Status RowFile::JoinQuoted(absl::string_view* line) {
  for (bool inside = true; inside;) {
    const size_t before = line->size();
    TANDEM_ASSIGN_OR_RETURN(const bool more, lines_->Extend(line));
    if (!more) {
      lines_->Retract(line);
      return absl::OkStatus();
    }
    inside = parser_->EndsInQuotes(line->substr(before), true);
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> RowFile::First(absl::string_view* line) {
  TANDEM_ASSIGN_OR_RETURN(const bool more, NextRow(line));
  if (!more) return false;
  first_line_ = std::string(*line);
  if (absl::Status status = parser_->StartFile(*line); !status.ok()) {
    return lines_->Error(status.message());
  }
  return parser_->has_header() ? NextRow(line) : true;
}

absl::StatusOr<bool> RowFile::ReadAt(int64_t offset, int64_t line_number, absl::string_view* line) {
  TANDEM_ASSIGN_OR_RETURN(const bool any, Next(line));  // the parser must see the first line
  if (!any) return false;
  TANDEM_RETURN_IF_ERROR(lines_->Seek(offset, line_number));
  return NextRow(line);
}

absl::Status RowFile::Parse(absl::string_view line, Row* row) const {
  absl::Status status = parser_->Parse(line, row);
  return status.ok() ? status : lines_->Error(status.message());
}

bool RowSelection::Has(int64_t row) const {
  if (row < begin || row >= end) return false;
  if (part == Part::kAll) return true;
  const uint64_t word = HashCombine(seed, static_cast<uint64_t>(row));
  const bool picked = static_cast<double>(word >> 11) * 0x1.0p-53 < chance;
  return picked == (part == Part::kPicked);
}

absl::Status BadRows::Add(const absl::Status& bad) {
  if (most_ == 0) return bad;
  if (count() >= most_) {
    return absl::InvalidArgumentError(absl::StrCat(bad.message(), " (bad row ", most_ + 1,
                                                   "; data.max_bad_rows is ", most_, ")"));
  }
  texts_.emplace_back(bad.message());
  return absl::OkStatus();
}

absl::StatusOr<bool> RowWalk::NextLine(absl::string_view* line) {
  for (;;) {
    if (file_.has_value()) {
      TANDEM_ASSIGN_OR_RETURN(const bool more, file_->Next(line));
      if (more) return true;
      file_.reset();
    }
    if (next_file_ == files_->size()) return false;
    TANDEM_ASSIGN_OR_RETURN(auto lines, OpenLines((*files_)[next_file_++]));
    file_.emplace(std::move(lines), parser_);
  }
}

absl::StatusOr<bool> RowWalk::Next(absl::string_view* line) {
  while (row_ < selection_.end) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, NextLine(line));
    if (!more) return false;
    if (selection_.Has(row_++)) return true;
  }
  return false;
}

absl::Status RowWalk::ContinueAt(const ReadPlace& place) {
  const bool known = place.file() >= 0 && place.file() < static_cast<int64_t>(files_->size());
  if (!known || place.offset() < 0 || place.row() < 0 || !selection_.Has(place.row())) {
    return absl::DataLossError(absl::StrCat(
        "the checkpoint is damaged: the place of a worker is row ", place.row(), " in file ",
        place.file(), ", expected a training row in one of ", files_->size(),
        " files, counted from 0; hint: copy the checkpoint again, or begin a new run with "
        "--init-from"));
  }
  next_file_ = static_cast<size_t>(place.file());
  const std::string& name = (*files_)[next_file_++];
  TANDEM_ASSIGN_OR_RETURN(auto lines, OpenLines(name));
  file_.emplace(std::move(lines), parser_);
  row_ = place.row() + 1;
  absl::string_view line;
  TANDEM_ASSIGN_OR_RETURN(const bool found, file_->ReadAt(place.offset(), place.line(), &line));
  if (found && file_->lines().line_number() == place.line() && HashName(line) == place.hash()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(name, ":", place.line(), ": expected at byte ", place.offset(),
                   " the row that was there when the checkpoint was made, and the file has ",
                   found ? "another one" : "none", "; hint: bring back the file as it was"));
}

RowPass::RowPass(const std::vector<std::string>* files, RowParser* parser, RowSelection selection,
                 RowShare share, int64_t skip)
    : parser_(parser),
      share_(share),
      bad_rows_(skip),
      walk_(std::in_place, files, parser, selection) {}

RowPass::RowPass(std::shared_ptr<RowDealer> dealer, RowParser* parser, int rank, int64_t skip)
    : parser_(parser), share_({rank, 1}), bad_rows_(skip), dealer_(std::move(dealer)) {}

absl::StatusOr<bool> RowPass::Next(Row* row) {
  return walk_.has_value() ? NextRead(row) : NextDealt(row);
}

absl::optional<ReadPlace> RowPass::Place(int64_t rows) const {
  if (!walk_.has_value() || !walk_->file().lines().seekable()) return absl::nullopt;
  ReadPlace place;
  place.set_rows(rows);
  place.set_file(static_cast<int64_t>(walk_->file_index()));
  place.set_offset(walk_->file().lines().line_offset());
  place.set_line(walk_->file().lines().line_number());
  place.set_row(walk_->row());
  place.set_hash(HashName(line_));
  place.set_bad_rows(bad_rows_.count());
  place.set_negative(parser_->LearnedNegative());
  return place;
}

absl::StatusOr<bool> RowPass::ContinueAt(const ReadPlace& place) {
  if (!walk_.has_value()) return false;
  TANDEM_RETURN_IF_ERROR(walk_->ContinueAt(place));
  if (walk_->OwnerOf(share_.workers) != share_.rank) {
    return absl::DataLossError(absl::StrCat(
        "the checkpoint is damaged: the place of a worker (rank ", share_.rank, " of ",
        share_.workers, ") is row ", place.row(),
        ", which another worker reads; hint: copy the checkpoint again, or begin a new run with "
        "--init-from"));
  }
  bad_rows_.set_earlier(place.bad_rows());
  parser_->LearnNegative(place.negative());
  return true;
}

absl::StatusOr<bool> RowPass::NextRead(Row* row) {
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, walk_->Next(&line_));
    if (!more) return false;
    if (walk_->OwnerOf(share_.workers) != share_.rank) continue;
    const absl::Status parsed = walk_->file().Parse(line_, row);
    if (parsed.ok()) return true;
    TANDEM_RETURN_IF_ERROR(bad_rows_.Add(parsed));
  }
}

// The dealer only hands out rows. The parser of this worker is therefore told of a new file when
// its first row comes. The dealer's own parser has already checked the head of each file.
absl::StatusOr<bool> RowPass::NextDealt(Row* row) {
  RowDealer::Dealt dealt;
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, dealer_->Next(share_.rank, &dealt));
    if (!more) return false;
    if (file_ != dealt.file) {
      if (absl::Status begun = parser_->StartFile(dealer_->first_line(dealt.file)); !begun.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(dealer_->name(dealt.file), ":1: ", begun.message()));
      }
      file_ = dealt.file;
    }
    const absl::Status parsed = parser_->Parse(dealt.line, row);
    if (parsed.ok()) return true;
    TANDEM_RETURN_IF_ERROR(bad_rows_.Add(absl::InvalidArgumentError(
        absl::StrCat(dealer_->name(dealt.file), ":", dealt.line_number, ": ", parsed.message()))));
  }
}

absl::StatusOr<int64_t> CountRows(const std::vector<std::string>& files, RowParser* parser,
                                  int64_t limit) {
  int64_t rows = 0;
  for (const std::string& name : files) {
    TANDEM_ASSIGN_OR_RETURN(auto lines, OpenLines(name));
    RowFile file(std::move(lines), parser);
    absl::string_view line;
    while (rows < limit) {
      TANDEM_ASSIGN_OR_RETURN(const bool more, file.Next(&line));
      if (!more) break;
      ++rows;
    }
  }
  return rows;
}

namespace {

int64_t StoredBytes(const std::string& file) {
  struct stat info;
  return stat(file.c_str(), &info) == 0 ? info.st_size : 0;
}

// The rows per stored byte at the start of `name`. zlib reads ahead by a chunk, so a small sample
// of a large file would be biased. The sample has therefore several chunks.
absl::StatusOr<double> RowsPerByte(const std::string& name, RowParser* parser) {
  constexpr int64_t kSampleBytes = int64_t{4} << 20;
  TANDEM_ASSIGN_OR_RETURN(auto lines, OpenLines(name));
  RowFile file(std::move(lines), parser);
  absl::string_view line;
  int64_t rows = 0, bytes = 0;
  while (bytes < kSampleBytes) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, file.Next(&line));
    if (!more) break;
    ++rows;
    bytes += static_cast<int64_t>(line.size()) + 1;
  }
  const double stored = file.lines().Progress() * static_cast<double>(StoredBytes(name));
  return stored > 0 ? static_cast<double>(rows) / stored : 0.0;
}

}  // namespace

absl::StatusOr<int64_t> EstimateRows(const std::vector<std::string>& files, RowParser* parser) {
  double rows_per_byte = 0;  // of the first file that has a row
  for (size_t i = 0; i < files.size() && rows_per_byte == 0; ++i) {
    TANDEM_ASSIGN_OR_RETURN(rows_per_byte, RowsPerByte(files[i], parser));
  }
  int64_t bytes = 0;
  for (const std::string& file : files) bytes += StoredBytes(file);
  return static_cast<int64_t>(rows_per_byte * static_cast<double>(bytes) + 0.5);
}

namespace {

class RowSource final : public BatchSource {
 public:
  RowSource(RowSourceOptions options, std::unique_ptr<RowParser> parser, BatchBuilder builder)
      : options_(std::move(options)), parser_(std::move(parser)), builder_(std::move(builder)) {
    for (const std::string& file : options_.files) stamps_.push_back(StampOf(file));
  }

  absl::Status StartEpoch(int64_t epoch) override {
    TANDEM_RETURN_IF_ERROR(CheckUnchanged());
    if (options_.dealers == nullptr) {
      pass_.emplace(&options_.files, parser_.get(), options_.selection, options_.share,
                    options_.max_bad_rows);
    } else {
      pass_.reset();  // frees the old pass if no other worker holds it
      TANDEM_ASSIGN_OR_RETURN(auto dealer, options_.dealers->Begin(options_.share.rank, epoch));
      pass_.emplace(std::move(dealer), parser_.get(), options_.share.rank, options_.max_bad_rows);
    }
    random_ = Random(HashCombine(HashCombine(options_.seed, HashName("shuffle")),
                                 HashCombine(static_cast<uint64_t>(epoch), options_.share.rank)));
    held_ = 0;
    more_ = true;
    rows_ = 0;
    return absl::OkStatus();
  }

  absl::Status Next(Batch* batch) override {
    TANDEM_CHECK(pass_.has_value());  // StartEpoch comes first
    builder_.Start(batch);
    while (batch->samples < options_.batch) {
      TANDEM_ASSIGN_OR_RETURN(const bool got, NextRow());
      if (!got) break;
      builder_.Append(row_, batch);
    }
    builder_.Finish(batch);
    rows_ += batch->samples;
    return absl::OkStatus();
  }

  absl::StatusOr<int64_t> Skip(int64_t rows) override {
    TANDEM_CHECK(pass_.has_value());
    for (int64_t row = 0; row < rows; ++row) {
      TANDEM_ASSIGN_OR_RETURN(const bool got, NextRow());
      if (!got) return row;
      ++rows_;
    }
    return rows;
  }

  // At the end of the rows the place of the last one is no longer known.
  absl::optional<ReadPlace> Place() const override {
    if (options_.shuffle_buffer > 0 || rows_ == 0 || !more_) return absl::nullopt;
    return pass_->Place(rows_);
  }

  absl::StatusOr<int64_t> ContinueAt(const ReadPlace& place) override {
    TANDEM_CHECK(pass_.has_value() && rows_ == 0);
    if (options_.shuffle_buffer > 0 || place.rows() <= 0) return 0;
    TANDEM_ASSIGN_OR_RETURN(const bool moved, pass_->ContinueAt(place));
    if (moved) rows_ = place.rows();
    return rows_;
  }

  int64_t EstimatedRows() const override { return options_.estimated_rows; }

 private:
  absl::StatusOr<bool> ReadRow(Row* row) {
    if (!more_) return false;
    TANDEM_ASSIGN_OR_RETURN(more_, pass_->Next(row));
    if (!more_) TANDEM_RETURN_IF_ERROR(CheckUnchanged());
    return more_;
  }

  // Refuses files that have changed. A run must train on the rows that were checked and split, and
  // a different file under the same name would make it another run.
  absl::Status CheckUnchanged() const {
    for (size_t i = 0; i < stamps_.size(); ++i) {
      const FileStamp now = StampOf(options_.files[i]);
      if (now == stamps_[i]) continue;
      if (now.bytes < 0) {
        return absl::FailedPreconditionError(
            absl::StrCat(options_.files[i], " is gone, and was there when the run began; ",
                         "hint: keep the files of a job until it has ended"));
      }
      return absl::FailedPreconditionError(absl::StrCat(
          options_.files[i], " has changed since the run began: ", stamps_[i].bytes,
          " bytes then, ", now.bytes, " now", now.bytes == stamps_[i].bytes ? ", written anew" : "",
          "; hint: train on a copy that nobody writes to"));
    }
    return absl::OkStatus();
  }

  // Puts the next row into row_: a random one of the held rows. The next row of the pass takes its
  // place.
  absl::StatusOr<bool> NextRow() {
    if (options_.shuffle_buffer == 0) return ReadRow(&row_);
    TANDEM_RETURN_IF_ERROR(FillBuffer());
    if (held_ == 0) return false;
    const size_t pick = random_.Uniform(held_);
    std::swap(row_, buffer_[pick]);
    TANDEM_ASSIGN_OR_RETURN(const bool refilled, ReadRow(&buffer_[pick]));
    if (!refilled) std::swap(buffer_[pick], buffer_[--held_]);
    return true;
  }

  absl::Status FillBuffer() {
    while (more_ && held_ < static_cast<size_t>(options_.shuffle_buffer)) {
      if (held_ == buffer_.size()) buffer_.emplace_back();
      TANDEM_ASSIGN_OR_RETURN(const bool got, ReadRow(&buffer_[held_]));
      if (got) ++held_;
    }
    return absl::OkStatus();
  }

  const RowSourceOptions options_;
  const std::unique_ptr<RowParser> parser_;
  BatchBuilder builder_;
  std::vector<FileStamp> stamps_;  // stamps of the files at construction
  std::optional<RowPass> pass_;
  Random random_{0};
  bool more_ = false;        // the pass has not ended
  int64_t rows_ = 0;         // rows of the pass that were returned or skipped
  std::vector<Row> buffer_;  // rows [0, held_) wait in the buffer
  size_t held_ = 0;
  Row row_;
};

}  // namespace

std::unique_ptr<BatchSource> NewRowSource(RowSourceOptions options,
                                          std::unique_ptr<RowParser> parser, BatchBuilder builder) {
  return std::make_unique<RowSource>(std::move(options), std::move(parser), std::move(builder));
}

}  // namespace tandem::data
