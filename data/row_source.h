// Batches from files of rows. A source walks the files and keeps this worker's rows, or walks only
// its blocks. It shuffles the rows in a bounded buffer and cuts them into batches. RowParsers know
// the formats.
//
// Rows are counted over all files, without headers, blank lines and comments.
#ifndef TANDEM_DATA_ROW_SOURCE_H_
#define TANDEM_DATA_ROW_SOURCE_H_

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/optional.h"
#include "base/random.h"
#include "data/batch_builder.h"
#include "data/batch_source.h"
#include "data/deal_blocks.h"
#include "data/files.h"
#include "data/row.h"
#include "data/row_file.h"
#include "proto/wire.pb.h"

namespace tandem::data {

// Where a row is.
struct RowAt {
  int64_t row = 0;     // its number over all files, from 0
  size_t file = 0;     // index of its file
  int64_t offset = 0;  // its place there: in text the (unpacked) bytes before it
  int64_t line = 0;    // RowFile::line()
};

// A selection of rows: those with the numbers [begin, end), and of these either all, or those
// picked by chance, or the others. Whether a row is picked depends on the seed and the row alone:
// on its number or, with `by_place`, on its file and offset.
struct RowSelection {
  enum class Part { kAll, kPicked, kOthers };
  RowAt begin;
  RowAt end = {kNoEnd, std::numeric_limits<size_t>::max(), 0, 0};
  Part part = Part::kAll;
  double chance = 0;
  uint64_t seed = 0;
  bool by_place = false;

  bool Has(const RowAt& at) const;
};

// Rows that did not parse and are skipped, up to a given number.
class BadRows {
 public:
  explicit BadRows(int64_t most) : most_(most) {}
  // Counts a bad row without its text. If there are too many, returns false and counts nothing. The
  // caller then gets the error from Add.
  bool Skip();
  // Keeps the error `bad`, or returns an error if there are too many.
  absl::Status Add(const absl::Status& bad);
  const std::vector<std::string>& texts() const { return texts_; }  // one line each
  int64_t count() const { return without_text_ + static_cast<int64_t>(texts_.size()); }
  void set_earlier(int64_t rows) { without_text_ = rows; }

 private:
  const int64_t most_;
  int64_t without_text_ = 0;
  std::vector<std::string> texts_;
};

// The share of one worker in a pass. Row i belongs to worker i mod `workers`, where i counts from
// the first row of the selection.
struct RowShare {
  int rank = 0, workers = 1;
};

// The texts of the selected rows of several files, in their order.
class RowWalk {
 public:
  // `files` and `parser` must outlive this. The first constructor walks the files from the begin to
  // the end of the selection. The second one walks only `blocks`, and ignores begin and end.
  RowWalk(const std::vector<std::string>* files, RowParser* parser, const RowSelection& selection);
  RowWalk(const std::vector<std::string>* files, RowParser* parser, const RowSelection& selection,
          std::vector<Block> blocks);

  // The next row; false if there are no more.
  absl::StatusOr<bool> Next(absl::string_view* line);
  // About the row that was returned last: the worker that it belongs to, the index of its file, the
  // file, and where it is. In a walk over blocks, row numbers count only the rows of these blocks.
  int OwnerOf(int workers) const {
    return static_cast<int>((row_ - 1 - selection_.begin.row) % workers);
  }
  size_t file_index() const { return file_index_; }
  const RowFile& file() const { return *file_; }
  RowAt at() const { return {row_ - 1, file_index_, file_->offset(), file_->line()}; }

  // Before the first Next: continues behind the row at `place`. FAILED_PRECONDITION if the files
  // have another row there.
  absl::Status ContinueAt(const ReadPlace& place);

 private:
  absl::StatusOr<bool> NextLine(absl::string_view* line);
  absl::Status Open(size_t file);

  const std::vector<std::string>* const files_;
  RowParser* const parser_;
  RowSelection selection_;
  std::vector<Block> blocks_;  // in the order of the files
  size_t next_block_ = 0;
  bool in_block_ = false;          // in the one before next_block_
  std::unique_ptr<RowFile> file_;  // the open file
  size_t file_index_ = 0;
  int64_t row_ = 0;  // number of the next row of the pass
};

class ParseAhead;  // data/parse_ahead.h
class RowDealer;   // data/row_dealer.h
class RowDealers;  // data/row_dealer.h

using MakeParser = std::function<absl::StatusOr<std::unique_ptr<RowParser>>()>;

// One worker's rows in one pass over several files.
class RowPass {
 public:
  // `files` and `parser` must outlive the pass. Up to `skip` rows that do not parse are left out.
  RowPass(const std::vector<std::string>* files, RowParser* parser, RowSelection selection,
          RowShare share, int64_t skip);
  // The same for a worker whose share is these blocks.
  RowPass(const std::vector<std::string>* files, RowParser* parser, const RowSelection& selection,
          const std::vector<Block>& blocks, int64_t skip);
  // The same for one of many workers in a process that read the files together.
  RowPass(std::shared_ptr<RowDealer> dealer, RowParser* parser, int rank, int64_t skip);
  ~RowPass();

  // Before the first Next: parses rows ahead, on `readers` threads with a parser each. The rows,
  // places and errors do not depend on it. As long as the parser has a label to learn, and if a
  // RowDealer reads, rows are parsed as they are asked for. The threads end with the pass.
  void set_readers(int readers, MakeParser make_parser);

  // The next row of the share; false if there is none.
  absl::StatusOr<bool> Next(Row* row);

  // The place of the row that was returned last, which is the worker's row number `rows`, counted
  // from 1. None if a RowDealer reads, or if the file is compressed.
  absl::optional<ReadPlace> Place(int64_t rows) const;
  // Before the first Next: as RowWalk::ContinueAt. False if a RowDealer reads.
  absl::StatusOr<bool> ContinueAt(const ReadPlace& place);

 private:
  absl::StatusOr<bool> NextRead(Row* row);
  absl::StatusOr<bool> NextAhead(Row* row);
  absl::StatusOr<bool> NextDealt(Row* row);
  absl::Status StartAhead();

  RowParser* const parser_;
  const RowShare share_;
  BadRows bad_rows_;
  std::optional<RowWalk> walk_;  // empty if a RowDealer reads
  absl::string_view line_;       // the last row that was read
  int readers_ = 1;
  MakeParser make_parser_;
  std::unique_ptr<ParseAhead> ahead_;  // uses walk_; null: rows are parsed here
  absl::optional<size_t> good_file_;   // of the last row that walk_ gave and that parsed
  const std::shared_ptr<RowDealer> dealer_;
  absl::optional<size_t> file_;  // the file of the last dealt row
};

// Counts the rows of all files together, up to `limit`. Reads the files.
absl::StatusOr<int64_t> CountRows(const std::vector<std::string>& files, RowParser* parser,
                                  int64_t limit);

// Estimates the rows of all files together from the sizes on disk and the first `sample_bytes` of
// the first file with a row (kLargeSampleBytes, unpacked, if it is compressed). Exact for a single
// small file.
inline constexpr int64_t kLargeSampleBytes = int64_t{4} << 20;
absl::StatusOr<int64_t> EstimateRows(const std::vector<std::string>& files, int64_t sample_bytes,
                                     RowParser* parser);

struct RowSourceOptions {
  std::vector<std::string> files;
  std::vector<FileStamp> stamps;  // of `files`, from before they were read for the first time
  RowSelection selection;
  RowShare share;
  absl::optional<std::vector<Block>> blocks = absl::nullopt;  // the share, if blocks are dealt
  int64_t max_bad_rows = 0;
  int64_t batch = 1;           // rows
  int64_t shuffle_buffer = 0;  // rows; 0 keeps file order
  uint64_t seed = 0;
  int64_t estimated_rows = 0;  // rows of this worker
  int readers = 1;             // threads that parse; ignored if `dealers` is set
  MakeParser make_parser{};    // for each of several readers
  // The passes of all workers of this process, which must outlive the source. Null: the source
  // reads the files, or its blocks, itself.
  RowDealers* dealers = nullptr;
};

std::unique_ptr<BatchSource> NewRowSource(RowSourceOptions options,
                                          std::unique_ptr<RowParser> parser, BatchBuilder builder);

}  // namespace tandem::data

#endif  // TANDEM_DATA_ROW_SOURCE_H_
