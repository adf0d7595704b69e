// ChosenColumns gives the texts of some columns of a job's rows, in the order of the rows. Output
// files with a line for each row, such as its score, use these texts to identify the row.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_CHOSEN_COLUMNS_H_
#define TANDEM_DATA_CHOSEN_COLUMNS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "data/row_source.h"
#include "proto/job.pb.h"

namespace tandem::data {

class ChosenColumns {
 public:
  // Opens the files. Columns are named as the files name them: by name if the files have a header
  // or are Parquet files, by number from 0 in CRITEO and other files without a header, "user" and
  // "item" in NCF.
  // INVALID_ARGUMENT if a file lacks one of the columns or if the format has no columns.
  static absl::StatusOr<std::unique_ptr<ChosenColumns>> Open(const Data& data,
                                                             const std::vector<std::string>& files,
                                                             const std::vector<std::string>& names);

  // The names of the columns, each followed by the delimiter of the files.
  std::string Header() const;
  // Appends the cells of the next row, each followed by the delimiter and in quotes if necessary.
  // Errors name file and line, or say that there is no further row.
  absl::Status AppendNext(std::string* text);
  // The same without delimiters: appends cell i to cells[i].
  absl::Status AppendNext(absl::Span<std::vector<std::string>> cells);
  // FAILED_PRECONDITION, with file and line, if there is a further row.
  absl::Status CheckEnd();

 private:
  static absl::StatusOr<std::unique_ptr<ChosenColumns>> OpenPairs(
      const std::vector<std::string>& files, const std::vector<std::string>& names);
  ChosenColumns(std::vector<std::string> files, std::vector<std::string> names,
                std::string delimiter, std::unique_ptr<RowParser> parser, std::vector<size_t> texts)
      : files_(std::move(files)),
        names_(std::move(names)),
        delimiter_(std::move(delimiter)),
        parser_(std::move(parser)),
        texts_(std::move(texts)),
        walk_(&files_, parser_.get(), RowSelection()) {}
  absl::Status ReadNext();
  void AppendCell(absl::string_view cell, std::string* text) const;

  const std::vector<std::string> files_, names_;
  const std::string delimiter_;
  const std::unique_ptr<RowParser> parser_;
  const std::vector<size_t> texts_;  // index in the parser's texts, for each name
  RowWalk walk_;
  Row row_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_CHOSEN_COLUMNS_H_
