// ArrowTable is a table in memory. ToStream exports it as a stream of Arrow's C interface
// (data/arrow_abi.h) with one batch, for example to write a Parquet file.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_ARROW_TABLE_H_
#define TANDEM_DATA_ARROW_TABLE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "data/arrow_abi.h"

namespace tandem::data {

class ArrowTable {
 public:
  // Columns of `rows` values each.
  explicit ArrowTable(int64_t rows) : rows_(rows) {}
  void AddText(std::string name, absl::Span<const std::string> values);
  void AddDoubles(std::string name, std::vector<double> values);

  // Moves the table into a stream.
  ArrowArrayStream ToStream() &&;

 private:
  struct Column {
    std::string name, bytes;       // bytes: of all texts
    std::vector<int64_t> offsets;  // of texts
    std::vector<double> doubles;
  };
  struct Stream;
  const int64_t rows_;
  std::vector<Column> columns_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_ARROW_TABLE_H_
