#include "data/row_source.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "data/files.h"
#include "data/parse_ahead.h"
#include "data/row_dealer.h"

namespace tandem::data {

absl::StatusOr<int64_t> RowFile::Skip(int64_t rows) {
  absl::string_view row;
  for (int64_t skipped = 0; skipped < rows; ++skipped) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, Next(&row));
    if (!more) return skipped;
  }
  return rows;
}

absl::Status RowFile::Error(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(name(), ":", line(), ": ", what));
}

absl::Status RowFile::Parse(absl::string_view row, Row* parsed) const {
  absl::Status status = parser_->Parse(row, parsed);
  return status.ok() ? status : Error(status.message());
}

bool RowSelection::Has(const RowAt& at) const {
  if (at.row < begin.row || at.row >= end.row) return false;
  if (part == Part::kAll) return true;
  const uint64_t offset = static_cast<uint64_t>(at.offset);
  const uint64_t word =
      HashCombine(seed, by_place ? HashCombine(at.file, offset) : static_cast<uint64_t>(at.row));
  const bool picked = static_cast<double>(word >> 11) * 0x1.0p-53 < chance;
  return picked == (part == Part::kPicked);
}

bool BadRows::Skip() {
  if (count() >= most_) return false;
  ++without_text_;
  return true;
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

RowWalk::RowWalk(const std::vector<std::string>* files, RowParser* parser,
                 const RowSelection& selection)
    : files_(files), parser_(parser), selection_(selection), row_(selection.begin.row) {
  for (size_t file = selection.begin.file; file < files->size(); ++file) {
    blocks_.push_back({file, 0, kNoEnd, 0});
  }
  if (blocks_.empty()) return;
  blocks_[0].begin = selection.begin.offset;
  blocks_[0].line = selection.begin.line;
}

RowWalk::RowWalk(const std::vector<std::string>* files, RowParser* parser,
                 const RowSelection& selection, std::vector<Block> blocks)
    : files_(files), parser_(parser), selection_(selection), blocks_(std::move(blocks)) {
  selection_.begin = RowSelection().begin;
  selection_.end = RowSelection().end;
}

absl::Status RowWalk::Open(size_t file) {
  TANDEM_ASSIGN_OR_RETURN(file_, parser_->Open((*files_)[file]));
  file_index_ = file;
  return absl::OkStatus();
}

absl::StatusOr<bool> RowWalk::NextLine(absl::string_view* line) {
  for (;;) {
    if (in_block_) {
      TANDEM_ASSIGN_OR_RETURN(in_block_, file_->Next(line));
      if (in_block_) return true;
    }
    if (next_block_ == blocks_.size()) {
      file_.reset();
      return false;
    }
    const Block& block = blocks_[next_block_++];
    if (file_ == nullptr || file_index_ != block.file) {
      TANDEM_RETURN_IF_ERROR(Open(block.file));
    }
    file_->Enter(block);
    in_block_ = true;
  }
}

absl::StatusOr<bool> RowWalk::Next(absl::string_view* line) {
  while (row_ < selection_.end.row) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, NextLine(line));
    if (!more) return false;
    ++row_;
    if (selection_.Has(at())) return true;
  }
  return false;
}

absl::Status RowWalk::ContinueAt(const ReadPlace& place) {
  const auto file = static_cast<size_t>(place.file());
  const auto block = std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& b) {
    return b.file == file && b.begin <= place.offset() && place.offset() < b.end;
  });
  const RowAt at = {place.row(), file, place.offset(), place.line()};
  const bool known = place.file() >= 0 && place.offset() >= 0 && place.row() >= 0;
  if (!known || block == blocks_.end() || !selection_.Has(at)) {
    return absl::DataLossError(absl::StrCat(
        "the checkpoint is damaged: the place of a worker is row ", place.row(), ", at byte ",
        place.offset(), " of file ", place.file(),
        ", expected a training row of this worker in one of ", files_->size(),
        " files, counted from 0; hint: copy the checkpoint again, or begin a new run with "
        "--init-from"));
  }
  next_block_ = static_cast<size_t>(block - blocks_.begin()) + 1;
  in_block_ = true;
  row_ = place.row() + 1;
  TANDEM_RETURN_IF_ERROR(Open(file));
  absl::string_view line;
  TANDEM_ASSIGN_OR_RETURN(const bool found,
                          file_->ReadAt(*block, place.offset(), place.line(), &line));
  if (found && file_->offset() == place.offset() && parser_->HashOfRow(line) == place.hash()) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat((*files_)[file], place.line() > 0 ? absl::StrCat(":", place.line()) : "",
                   ": expected at ", file_->rows() < 0 ? "byte " : "row ", place.offset(),
                   " the row that was there when the checkpoint was made, and the file has ",
                   found ? "another one" : "none", "; hint: bring back the file as it was"));
}

RowPass::RowPass(const std::vector<std::string>* files, RowParser* parser, RowSelection selection,
                 RowShare share, int64_t skip)
    : parser_(parser),
      share_(share),
      bad_rows_(skip),
      walk_(std::in_place, files, parser, selection) {}

RowPass::RowPass(const std::vector<std::string>* files, RowParser* parser,
                 const RowSelection& selection, const std::vector<Block>& blocks, int64_t skip)
    : parser_(parser),
      share_({0, 1}),
      bad_rows_(skip),
      walk_(std::in_place, files, parser, selection, blocks) {}

RowPass::RowPass(std::shared_ptr<RowDealer> dealer, RowParser* parser, int rank, int64_t skip)
    : parser_(parser), share_({rank, 1}), bad_rows_(skip), dealer_(std::move(dealer)) {}

RowPass::~RowPass() = default;

void RowPass::set_readers(int readers, MakeParser make_parser) {
  readers_ = readers;
  make_parser_ = std::move(make_parser);
}

absl::StatusOr<bool> RowPass::Next(Row* row) {
  if (!walk_.has_value()) return NextDealt(row);
  if (ahead_ == nullptr && readers_ > 1 && !parser_->Learns()) {
    TANDEM_RETURN_IF_ERROR(StartAhead());
  }
  return ahead_ == nullptr ? NextRead(row) : NextAhead(row);
}

absl::optional<ReadPlace> RowPass::Place(int64_t rows) const {
  if (!walk_.has_value()) return absl::nullopt;
  if (!(ahead_ == nullptr ? walk_->file().seekable() : ahead_->seekable())) return absl::nullopt;
  ReadPlace place;
  place.set_rows(rows);
  const RowAt at = ahead_ == nullptr ? walk_->at() : ahead_->at();
  place.set_file(static_cast<int64_t>(at.file));
  place.set_offset(at.offset);
  place.set_line(at.line);
  place.set_row(at.row);
  place.set_hash(parser_->HashOfRow(ahead_ == nullptr ? line_ : ahead_->text()));
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
  good_file_ = walk_->file_index();
  return true;
}

absl::StatusOr<bool> RowPass::NextRead(Row* row) {
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, walk_->Next(&line_));
    if (!more) return false;
    if (walk_->OwnerOf(share_.workers) != share_.rank) continue;
    const absl::Status parsed = parser_->Parse(line_, row);
    if (parsed.ok()) good_file_ = walk_->file_index();
    if (parsed.ok()) return true;
    if (absl::IsDataLoss(parsed)) {  // of a cache: the row of the data file is not bad
      return absl::DataLossError(absl::StrCat(walk_->file().name(), ": ", parsed.message()));
    }
    if (bad_rows_.Skip()) continue;
    return bad_rows_.Add(walk_->file().Error(parsed.message()));
  }
}

absl::Status RowPass::StartAhead() {
  std::vector<std::unique_ptr<RowParser>> parsers;
  for (int i = 0; i < readers_; ++i) {
    TANDEM_ASSIGN_OR_RETURN(parsers.emplace_back(), make_parser_());
    parsers.back()->LearnNegative(parser_->LearnedNegative());
  }
  ahead_ = std::make_unique<ParseAhead>(&*walk_, share_, std::move(parsers));
  return absl::OkStatus();
}

absl::StatusOr<bool> RowPass::NextAhead(Row* row) {
  for (;;) {
    bool parsed = false;
    TANDEM_ASSIGN_OR_RETURN(const bool more, ahead_->Next(row, &parsed));
    if (!more) return false;
    if (parsed) good_file_ = ahead_->at().file;
    if (parsed) return true;
    if (bad_rows_.Skip()) continue;
    return bad_rows_.Add(ahead_->Fail(good_file_ == ahead_->at().file));
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
    if (bad_rows_.Skip()) continue;
    return bad_rows_.Add(absl::InvalidArgumentError(
        absl::StrCat(dealer_->name(dealt.file), ":", dealt.line_number, ": ", parsed.message())));
  }
}

absl::StatusOr<int64_t> CountRows(const std::vector<std::string>& files, RowParser* parser,
                                  int64_t limit) {
  int64_t rows = 0;
  for (const std::string& name : files) {
    TANDEM_ASSIGN_OR_RETURN(const auto file, parser->Open(name));
    TANDEM_ASSIGN_OR_RETURN(const int64_t skipped, file->Skip(limit - rows));
    rows += skipped;
  }
  return rows;
}

namespace {

int64_t StoredBytes(const std::string& file) { return std::max<int64_t>(0, StampOf(file).bytes); }

// The rows per stored byte at the start of `name`. zlib reads ahead by a chunk, so a small sample
// of a large compressed file would be biased. Its sample has therefore several chunks.
absl::StatusOr<double> RowsPerByte(const std::string& name, int64_t sample_bytes,
                                   RowParser* parser) {
  TANDEM_ASSIGN_OR_RETURN(const auto file, parser->Open(name));
  const auto stored = static_cast<double>(StoredBytes(name));
  if (file->rows() >= 0) return stored > 0 ? static_cast<double>(file->rows()) / stored : 0.0;
  const int64_t enough = file->seekable() ? sample_bytes : kLargeSampleBytes;
  absl::string_view line;
  int64_t rows = 0, bytes = 0;
  while (bytes < enough) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, file->Next(&line));
    if (!more) break;
    ++rows;
    bytes += static_cast<int64_t>(line.size()) + 1;
  }
  const double read = file->StoredBytesRead(StoredBytes(name));
  return read > 0 ? static_cast<double>(rows) / read : 0.0;
}

}  // namespace

absl::StatusOr<int64_t> EstimateRows(const std::vector<std::string>& files, int64_t sample_bytes,
                                     RowParser* parser) {
  double rows_per_byte = 0;  // of the first file that has a row
  for (size_t i = 0; i < files.size() && rows_per_byte == 0; ++i) {
    TANDEM_ASSIGN_OR_RETURN(rows_per_byte, RowsPerByte(files[i], sample_bytes, parser));
  }
  int64_t bytes = 0;
  for (const std::string& file : files) bytes += StoredBytes(file);
  return static_cast<int64_t>(rows_per_byte * static_cast<double>(bytes) + 0.5);
}

namespace {

class RowSource final : public BatchSource {
 public:
  RowSource(RowSourceOptions options, std::unique_ptr<RowParser> parser, BatchBuilder builder)
      : options_(std::move(options)), parser_(std::move(parser)), builder_(std::move(builder)) {}

  absl::Status StartEpoch(int64_t epoch) override {
    TANDEM_RETURN_IF_ERROR(CheckUnchanged());
    if (options_.blocks.has_value()) {
      pass_.emplace(&options_.files, parser_.get(), options_.selection, *options_.blocks,
                    options_.max_bad_rows);
    } else if (options_.dealers == nullptr) {
      pass_.emplace(&options_.files, parser_.get(), options_.selection, options_.share,
                    options_.max_bad_rows);
    } else {
      pass_.reset();  // frees the old pass if no other worker holds it
      TANDEM_ASSIGN_OR_RETURN(auto dealer, options_.dealers->Begin(options_.share.rank, epoch));
      pass_.emplace(std::move(dealer), parser_.get(), options_.share.rank, options_.max_bad_rows);
    }
    pass_->set_readers(options_.readers, options_.make_parser);
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
    const absl::StatusOr<bool> more = pass_->Next(row);
    more_ = more.value_or(false);
    if (!more.ok()) return more.status();
    if (!more_) TANDEM_RETURN_IF_ERROR(CheckUnchanged());
    return more_;
  }

  // Refuses files that have changed. A run must train on the rows that were checked and split, and
  // a different file under the same name would make it another run.
  absl::Status CheckUnchanged() const {
    for (size_t i = 0; i < options_.files.size(); ++i) {
      const FileStamp& then = options_.stamps[i];
      const FileStamp now = StampOf(options_.files[i]);
      if (now == then) continue;
      if (now.bytes < 0) {
        return absl::FailedPreconditionError(
            absl::StrCat(options_.files[i], " is gone, and was there when the run began; ",
                         "hint: keep the files of a job until it has ended"));
      }
      return absl::FailedPreconditionError(absl::StrCat(
          options_.files[i], " has changed since the run began: ", then.bytes, " bytes then, ",
          now.bytes, " now", now.bytes == then.bytes ? ", written anew" : "",
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
