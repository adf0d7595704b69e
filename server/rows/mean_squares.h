// The mean square of the gradients of each element of each row of a range. For policies that ask
// for it (Properties::mean_square_decay).
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_ROWS_MEAN_SQUARES_H_
#define TANDEM_SERVER_ROWS_MEAN_SQUARES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "server/rows/row_table.h"

namespace tandem::server {

class MeanSquares {
 public:
  explicit MeanSquares(int dim) : dim_(static_cast<size_t>(dim)) {}

  // Makes room for rows of the store with numbers below `rows`. New values are 0.
  void Reserve(size_t rows) {
    if (rows * dim_ > values_.size()) values_.resize(rows * dim_);
  }
  // [dim]; valid until the next Reserve.
  float* Row(uint32_t row) { return values_.data() + row * dim_; }

  size_t bytes() const { return values_.capacity() * sizeof(float); }

  // Copies the values of a row: [dim].
  void CopyRow(uint32_t row, float* to) const {
    const size_t begin = size_t{row} * dim_;
    if (begin + dim_ <= values_.size()) {
      std::copy_n(values_.data() + begin, dim_, to);
    } else {
      std::fill_n(to, dim_, 0.0f);
    }
  }
  // Takes the mean squares that RangeCopy::Encode has encoded off the front of `bytes`. Keeps the
  // values of rows with positions in [begin, end). DATA_LOSS: not its bytes; RESOURCE_EXHAUSTED: as
  // RowTable.
  absl::Status Decode(uint64_t begin, uint64_t end, RowTable* store, absl::string_view* bytes);

 private:
  const size_t dim_;
  std::vector<float> values_;  // [rows, dim], by row number
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_MEAN_SQUARES_H_
