// The shape of a row of the data, as far as the job determines it: how many numbers it has, and the
// names of its categorical fields. A new data format needs only a case here and a parser
// (data/row.h).
//
// Thread safety: pure functions.
#ifndef TANDEM_JOB_ROW_SHAPE_H_
#define TANDEM_JOB_ROW_SHAPE_H_

#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace tandem::job {

// How many ids a row has in one field.
struct BagShape {
  bool bag = false;  // true: any number of ids up to max_ids; false: one id
  int max_ids = 1;
  bool weighted = false;
};

struct RowShape {
  int numbers = 0;
  std::vector<std::string> fields;  // in the order of Row::keys
  std::vector<BagShape> bags;       // likewise
};

// The shape is empty for a job that does not name its format.
RowShape RowShapeOf(const Data& data);

// Whether each line of a file, or several for quoted cells, is one row that stands for itself.
inline bool HasRowsInLines(const Data& data) {
  return data.format() != Data::FORMAT_UNSPECIFIED && data.format() != Data::NCF &&
         data.format() != Data::PROGRAM;
}

// Whether data.columns describes the rows.
inline bool HasColumns(const Data& data) {
  return data.format() == Data::DELIMITED || data.format() == Data::PARQUET;
}

// Whether a cell of this column holds several ids. Otherwise the whole cell is one id.
inline bool HasManyIds(const Column& column) {
  return !column.separator().empty() || column.pooling() != Column::POOLING_UNSPECIFIED;
}

// The form of the column's dates for absl::ParseTime. %Y becomes exactly four digits, so that
// %Y%m%d can be read.
std::string DateForm(const Column& column);

// Fills in the labels of DELIMITED rows that the job does not name: 1 and True count as 1, 0 and
// False as 0. A text that the job declares as missing is never a label. If the job names only
// `positive`, the data determine which label counts as 0.
void FillLabels(Columns* columns);

inline constexpr int kCriteoNumbers = 13;
inline constexpr int kCriteoFields = 26;  // C1 to C26

}  // namespace tandem::job

#endif  // TANDEM_JOB_ROW_SHAPE_H_
