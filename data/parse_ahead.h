// ParseAhead reads the rows of a worker ahead of their use and parses them on several threads
// (data.readers). Rows, their order, their places and their errors are those of one reader.
//
// The threads take turns to read: each reads a chunk of consecutive rows, lets the next thread
// read, and parses its chunk. The number of chunks and their size are bounded. The destructor ends
// the threads.
//
// Thread safety: one thread calls. Until the object is gone, nobody else uses the walk and its
// parser.
#ifndef TANDEM_DATA_PARSE_AHEAD_H_
#define TANDEM_DATA_PARSE_AHEAD_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "data/row.h"
#include "data/row_source.h"

namespace tandem::data {

class ParseAhead {
 public:
  // Continues `walk`, which must outlive this, with a thread for each of `parsers`. No parser may
  // have a label to learn.
  ParseAhead(RowWalk* walk, RowShare share, std::vector<std::unique_ptr<RowParser>> parsers);
  ~ParseAhead();
  ParseAhead(const ParseAhead&) = delete;
  ParseAhead& operator=(const ParseAhead&) = delete;

  // The next row of the share; false if there is none. `parsed`: whether the row is good, and
  // therefore in `row`. After an error of the walk, each call returns this error.
  absl::StatusOr<bool> Next(Row* row, bool* parsed);

  // The place of the row that was returned last, its text, and whether its file is seekable.
  const RowAt& at() const { return now_->rows[row_].at; }
  absl::string_view text() const { return now_->TextOf(row_); }
  bool seekable() const { return now_->StartOf(row_).seekable; }
  // Returns the error of the bad row that was returned last, as one reader gives it. `after_good`:
  // an earlier row of its file was good. Ends the threads; Next returns this error from now on.
  absl::Status Fail(bool after_good);

 private:
  // The first row of a chunk, or of a file in it.
  struct Start {
    size_t row = 0;
    std::string name, first_line;
    bool seekable = false;
  };
  struct ReadRow {
    RowAt at;
    size_t end = 0;  // where its text ends in Chunk::text
    Row row;
    bool good = false;
  };
  struct Chunk {
    std::string text;           // the texts of all rows, one after another
    std::vector<ReadRow> rows;  // the first `size` are in use
    size_t size = 0;
    std::vector<Start> starts;
    absl::StatusOr<bool> more = true;  // the walk's result after the last row
    bool done = false;                 // the rows are parsed

    absl::string_view TextOf(size_t row) const;
    const Start& StartOf(size_t row) const;
  };

  void Loop(RowParser* parser);
  Chunk* FreeChunk() ABSL_LOCKS_EXCLUDED(mutex_);
  void Read(Chunk* chunk) ABSL_EXCLUSIVE_LOCKS_REQUIRED(read_mutex_);
  // `file`: the file of the parser's last row, kNoFile before the first one.
  static void Parse(RowParser* parser, size_t* file, Chunk* chunk);
  void Stop();
  bool HasFree() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !free_.empty(); }
  bool HasDone() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !queue_.empty() && queue_.front()->done;
  }

  const RowShare share_;
  const std::vector<std::unique_ptr<RowParser>> parsers_;
  std::vector<std::unique_ptr<Chunk>> chunks_;
  Chunk* now_ = nullptr;  // the chunk whose rows are returned; null: none yet
  size_t row_ = 0, next_row_ = 0;
  absl::Status failed_;

  absl::Mutex read_mutex_;  // before mutex_
  RowWalk* const walk_ ABSL_PT_GUARDED_BY(read_mutex_);
  bool ended_ ABSL_GUARDED_BY(read_mutex_) = false;

  absl::Mutex mutex_;
  std::vector<Chunk*> free_ ABSL_GUARDED_BY(mutex_);
  std::deque<Chunk*> queue_ ABSL_GUARDED_BY(mutex_);  // in the order of the rows
  std::atomic<bool> stop_{false};                     // set under mutex_
  std::vector<std::thread> threads_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_PARSE_AHEAD_H_
