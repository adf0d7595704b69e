// ArrowFile reads Parquet and Arrow files, also in S3, through libtandem_arrow.so
// (data/arrow/module.h). The first call opens this library beside the programs or in ../lib, and
// takes Arrow's libraries from pyarrow: from the folder $TANDEM_PYARROW, or from where the
// interpreter ($TANDEM_PYTHON, else python3) finds the package.
//
// Thread safety: functions from any thread; an ArrowFile by one thread at a time.
#ifndef TANDEM_DATA_ARROW_FILES_H_
#define TANDEM_DATA_ARROW_FILES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "data/arrow_columns.h"

namespace tandem::data {

// Whether a name is an address (URI), such as s3://bucket/rows.parquet, and not a path.
bool IsAddress(absl::string_view name);

class ArrowFile {
 public:
  // FAILED_PRECONDITION: the library or pyarrow is missing; the message has the command that helps.
  // Other errors name the file.
  static absl::StatusOr<std::unique_ptr<ArrowFile>> Open(const std::string& path);
  virtual ~ArrowFile() = default;

  const std::string& path() const { return path_; }
  // The names of the columns.
  const std::vector<std::string>& columns() const { return columns_; }
  // INVALID_ARGUMENT: cells cannot have the type; the message names file and column.
  absl::StatusOr<const ArrowType*> TypeOf(size_t column) const;
  // The rows of each block: of a row group, or a record batch of an Arrow file.
  const std::vector<int64_t>& block_rows() const { return block_rows_; }
  // The rows of a block, with some columns, in this order.
  virtual absl::StatusOr<std::unique_ptr<ArrowStream>> Read(size_t block,
                                                            const std::vector<size_t>& columns) = 0;

 protected:
  explicit ArrowFile(std::string path) : path_(std::move(path)) {}
  const std::string path_;
  std::vector<std::string> columns_;
  std::vector<absl::StatusOr<ArrowType>> types_;
  std::vector<int64_t> block_rows_;
};

// Whether Parquet files can be read and written; else FAILED_PRECONDITION as ArrowFile::Open.
absl::Status CheckParquet();

// Size and modification time (nanoseconds since 1970) of an address. -1 bytes: there is no file.
struct AddressInfo {
  int64_t bytes = -1, changed_ns = 0;
};
absl::StatusOr<AddressInfo> InfoOfAddress(const std::string& address);
// The addresses of the files that match an address, in the order of their names. Its last part may
// have the wildcards of glob(3). As with paths, wildcards skip names that begin with `_` or `.`.
absl::StatusOr<std::vector<std::string>> ExpandAddress(const std::string& address);

// Writes a Parquet file with the rows of `stream`, which it releases. The file appears whole, or
// not at all. Errors name the file.
absl::Status WriteParquet(const std::string& path, ArrowArrayStream* stream,
                          int64_t rows_per_group);

}  // namespace tandem::data

#endif  // TANDEM_DATA_ARROW_FILES_H_
