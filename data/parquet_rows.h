// OpenParquet opens a Parquet or Arrow file as a RowFile. A row has the cells of the columns that a
// job reads, one after another (data/typed_cells.h). Its place is its number in the file, from 0.
// Other columns are not read.
//
// Rows are decoded by row group (of an Arrow file: by record batch), from its first row on. A
// worker that begins in the middle of a row group decodes the earlier rows, too.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_PARQUET_ROWS_H_
#define TANDEM_DATA_PARQUET_ROWS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/arrow_files.h"
#include "data/row_file.h"

namespace tandem::data {

// A column that a job reads.
struct ParquetColumn {
  enum class Role { kLabel, kNumber, kId, kIds };
  std::string name;
  Role role = Role::kId;
  bool splits = false;    // kIds: a text has several values (Column.separator)
  bool dated = false;     // kNumber: texts and integers are dates (Column.date)
  bool optional = false;  // the file may lack the column; its cells are then null
};

// Opens a file and checks its columns. Errors name the file.
absl::StatusOr<std::unique_ptr<RowFile>> OpenParquet(const std::string& path,
                                                     const std::vector<ParquetColumn>& columns,
                                                     RowParser* parser);

}  // namespace tandem::data

#endif  // TANDEM_DATA_PARQUET_ROWS_H_
