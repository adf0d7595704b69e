#include "data/parse_ahead.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::data {
namespace {

// A chunk has at most this many rows, and no further row once it has this much text.
constexpr size_t kChunkRows = 256;
constexpr size_t kChunkText = size_t{128} << 10;
constexpr size_t kNoFile = ~size_t{0};

}  // namespace

absl::string_view ParseAhead::Chunk::TextOf(size_t row) const {
  const size_t begin = row == 0 ? 0 : rows[row - 1].end;
  return absl::string_view(text).substr(begin, rows[row].end - begin);
}

const ParseAhead::Start& ParseAhead::Chunk::StartOf(size_t row) const {
  const auto after =
      std::find_if(starts.begin(), starts.end(), [row](const Start& s) { return s.row > row; });
  return *(after - 1);
}

ParseAhead::ParseAhead(RowWalk* walk, RowShare share,
                       std::vector<std::unique_ptr<RowParser>> parsers)
    : share_(share), parsers_(std::move(parsers)), walk_(walk) {
  // Two for each thread, one of which it reads or parses, and one for the caller.
  for (size_t i = 0; i < 2 * parsers_.size() + 1; ++i) {
    chunks_.push_back(std::make_unique<Chunk>());
    chunks_.back()->rows.resize(kChunkRows);
    free_.push_back(chunks_.back().get());
  }
  for (const auto& parser : parsers_) {
    threads_.emplace_back([this, p = parser.get()] { Loop(p); });
  }
}

ParseAhead::~ParseAhead() { Stop(); }

void ParseAhead::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

// ---- the threads ----

void ParseAhead::Loop(RowParser* parser) {
  size_t file = kNoFile;
  for (;;) {
    Chunk* chunk = nullptr;
    {
      absl::MutexLock reading(&read_mutex_);
      if (ended_) return;
      chunk = FreeChunk();
      if (chunk == nullptr) return;
      Read(chunk);
      ended_ = !chunk->more.ok() || !*chunk->more;
    }
    Parse(parser, &file, chunk);
    absl::MutexLock lock(&mutex_);
    chunk->done = true;
  }
}

// Waits for a free chunk and puts it behind those that were read before. Null: the object ends.
ParseAhead::Chunk* ParseAhead::FreeChunk() {
  absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(this, &ParseAhead::HasFree));
  if (stop_) return nullptr;
  Chunk* const chunk = free_.back();
  free_.pop_back();
  chunk->done = false;
  queue_.push_back(chunk);
  return chunk;
}

void ParseAhead::Read(Chunk* chunk) {
  chunk->text.clear();
  chunk->starts.clear();
  chunk->size = 0;
  absl::string_view line;
  while (chunk->size < kChunkRows && chunk->text.size() < kChunkText && !stop_) {
    chunk->more = walk_->Next(&line);
    if (!chunk->more.ok() || !*chunk->more) return;
    if (walk_->OwnerOf(share_.workers) != share_.rank) continue;
    ReadRow& row = chunk->rows[chunk->size];
    row.at = walk_->at();
    if (chunk->size == 0 || chunk->rows[chunk->size - 1].at.file != row.at.file) {
      const RowFile& file = walk_->file();
      chunk->starts.push_back({chunk->size, file.name(), file.first_line(), file.seekable()});
    }
    absl::StrAppend(&chunk->text, line);
    row.end = chunk->text.size();
    ++chunk->size;
  }
}

void ParseAhead::Parse(RowParser* parser, size_t* file, Chunk* chunk) {
  for (size_t i = 0; i < chunk->size; ++i) {
    ReadRow& row = chunk->rows[i];
    if (row.at.file != *file) {
      const bool started = parser->StartFile(chunk->StartOf(i).first_line).ok();
      *file = started ? row.at.file : kNoFile;
    }
    row.good = *file != kNoFile && parser->Parse(chunk->TextOf(i), &row.row).ok();
  }
}

// ---- the caller ----

absl::StatusOr<bool> ParseAhead::Next(Row* row, bool* parsed) {
  if (!failed_.ok()) return failed_;
  while (now_ == nullptr || next_row_ == now_->size) {
    if (now_ != nullptr && (!now_->more.ok() || !*now_->more)) return now_->more;
    absl::MutexLock lock(&mutex_);
    if (now_ != nullptr) free_.push_back(now_);
    mutex_.Await(absl::Condition(this, &ParseAhead::HasDone));
    now_ = queue_.front();
    queue_.pop_front();
    next_row_ = 0;
  }
  row_ = next_row_++;
  *parsed = now_->rows[row_].good;
  if (*parsed) std::swap(*row, now_->rows[row_].row);
  return true;
}

// Parses the row again with a parser in the state that the parser of one reader would have.
absl::Status ParseAhead::Fail(bool after_good) {
  Stop();
  RowParser* const parser = parsers_[0].get();
  const Start& start = now_->StartOf(row_);
  failed_ = parser->StartFile(start.first_line);
  if (after_good) parser->LearnNegative("");
  Row ignored;
  if (failed_.ok()) failed_ = parser->Parse(text(), &ignored);
  TANDEM_CHECK(!failed_.ok());
  if (at().line > 0) {
    failed_ = absl::InvalidArgumentError(
        absl::StrCat(start.name, ":", at().line, ": ", failed_.message()));
    return failed_;
  }
  // The walk began in the middle of the file. Only the file itself can find the line number.
  TANDEM_ASSIGN_OR_RETURN(const auto file, parser->Open(start.name));
  absl::string_view line;
  Block whole;
  whole.file = at().file;
  TANDEM_RETURN_IF_ERROR(file->ReadAt(whole, at().offset, at().line, &line).status());
  failed_ = file->Error(failed_.message());
  return failed_;
}

}  // namespace tandem::data
