// ArrowBatches reads a stream of Arrow in batches of any size: the ids and numbers of the columns
// that a program chooses. It cuts and joins the batches of the stream, and holds at most one of
// these at a time.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_CAPI_ARROW_BATCHES_H_
#define TANDEM_CAPI_ARROW_BATCHES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/arrow_columns.h"
#include "data/cells.h"
#include "data/typed_cells.h"

namespace tandem::capi {

class ArrowBatches {
 public:
  enum class As {
    kId,       // the id of a value, the same as that of a cell of a DELIMITED file
    kIds,      // the same; the column may have lists of values
    kRawIds,   // values are whole numbers, which are the ids
    kNumbers,  // floats
  };
  // The values of a column in the current batch.
  struct Column {
    size_t at = 0;  // among the columns of the stream
    As as = As::kId;
    data::FieldHash hash;
    bool is_list = false;
    std::vector<float> numbers;    // kNumbers
    std::vector<int64_t> ids;      // others
    std::vector<int64_t> offsets;  // is_list: [rows + 1]
  };

  explicit ArrowBatches(std::unique_ptr<data::ArrowStream> stream)
      : source_(stream->name()), names_(stream->columns()), stream_(std::move(stream)) {}

  const std::vector<std::string>& names() const { return names_; }
  // Chooses column `column`, before any row is read. INVALID_ARGUMENT: its type cannot be read in
  // this way, or rows were read already.
  absl::Status Read(size_t column, As as);
  // Reads the next rows, `most` or as many as are left, which replace the earlier ones. Returns
  // their number; 0: the end. Errors name source, row (from 0) and column.
  absl::StatusOr<int64_t> Next(int64_t most) { return Advance(most, /*keep=*/true); }
  // Skips rows as Next, without computing their values.
  absl::StatusOr<int64_t> Skip(int64_t most) { return Advance(most, /*keep=*/false); }
  // The values of a column, or nullptr if it is not read. Valid until the next call.
  const Column* Find(size_t column) const;

 private:
  absl::StatusOr<int64_t> Advance(int64_t most, bool keep);
  absl::StatusOr<int64_t> ReadRows(int64_t most, bool keep);
  absl::Status Append(size_t i, int64_t begin, int64_t end);
  absl::Status AppendCell(Column* column, data::TypedCell* cell);
  absl::Status AppendId(Column* column, data::TypedCell* cell);

  const std::string source_;
  const std::vector<std::string> names_;
  std::unique_ptr<data::ArrowStream> stream_;  // nullptr after its end or an error
  std::vector<Column> columns_;
  std::vector<size_t> wanted_;  // Column::at of each
  bool begun_ = false;
  int64_t next_ = 0, rows_ = 0;  // in the batch of the stream
  int64_t earlier_ = 0;          // rows of the batches before it
  absl::Status failed_;          // the first error, which ends the stream
  data::TypedCell cell_;
  std::string text_;
};

}  // namespace tandem::capi

#endif  // TANDEM_CAPI_ARROW_BATCHES_H_
