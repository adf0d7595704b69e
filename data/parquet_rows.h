// The rows of a Parquet or Arrow file. A row is the cells of the columns that a job reads, one
// after another (data/typed_cells.h); its place is its number in the file, from 0. Other columns
// are not read.
//
// A row group is decoded from its first row on: a worker that begins in the middle of one decodes
// the rows before, too.
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
  bool splits = false;    // kIds: a text has several values
  bool dated = false;     // kNumber: texts and integers are dates of a form
  bool optional = false;  // the file may lack the column; its cells are then null
};

// Opens a file and checks its columns. Errors name the file.
absl::StatusOr<std::unique_ptr<RowFile>> OpenParquet(const std::string& path,
                                                     const std::vector<ParquetColumn>& columns,
                                                     RowParser* parser);

}  // namespace tandem::data

#endif  // TANDEM_DATA_PARQUET_ROWS_H_
