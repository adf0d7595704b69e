// The texts of some columns of a job's rows, in the order of the rows: for a file that says something of
// each row and names it, such as its score.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_CHOSEN_COLUMNS_H_
#define TANDEM_DATA_CHOSEN_COLUMNS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/row_source.h"
#include "proto/job.pb.h"

namespace tandem::data {

class ChosenColumns {
 public:
  // Columns as the files call them: by their names if they have a header, by their numbers from 0 in CRITEO
  // and other files without one, "user" and "item" in NCF. INVALID_ARGUMENT: a file does not have one of
  // them; or the format has no columns.
  static absl::StatusOr<std::unique_ptr<ChosenColumns>> Open(const Data& data,
                                                             const std::vector<std::string>& files,
                                                             const std::vector<std::string>& names);

  // The names of the columns, each with the delimiter of the files behind it.
  std::string Header() const;
  // Appends the cells of the next row in the same way; in quotes where they need some. An error names file
  // and line, or says that there is no row any more.
  absl::Status AppendNext(std::string* text);
  // FAILED_PRECONDITION, with file and line: there is one more row.
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
  void AppendCell(absl::string_view cell, std::string* text) const;

  const std::vector<std::string> files_, names_;
  const std::string delimiter_;
  const std::unique_ptr<RowParser> parser_;
  const std::vector<size_t> texts_;  // of the parser's, one a name
  RowWalk walk_;
  Row row_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_CHOSEN_COLUMNS_H_
