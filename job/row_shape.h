// What a row of the data has, as far as the job says it: numbers, and categorical fields by name. A
// format of data is a case here, a parser (data/row.h), and nothing else.
//
// Thread safety: pure functions.
#ifndef TANDEM_JOB_ROW_SHAPE_H_
#define TANDEM_JOB_ROW_SHAPE_H_

#include <string>
#include <vector>

#include "proto/job.pb.h"

namespace tandem::job {

// The ids that a row has in one field.
struct BagShape {
  bool bag = false;  // any number of ids up to most_ids; else one
  int most_ids = 1;
  bool weighted = false;
};

struct RowShape {
  int numbers = 0;
  std::vector<std::string> fields;  // in the order of Row::keys
  std::vector<BagShape> bags;       // likewise
};

// Nothing for a job that does not say its format.
RowShape RowShapeOf(const Data& data);

// Whether all values of a cell of this column are ids, and not the cell as it is.
inline bool HasManyIds(const Column& column) { return !column.separator().empty(); }

// The form of the column's dates as absl::ParseTime has it: %Y is four digits, so that %Y%m%d can be read.
std::string DateForm(const Column& column);

// The labels of DELIMITED rows that the job does not name: 1 and True, 0 and False. No text that the job
// calls missing is one of them. With `positive` alone, the data say what counts as 0.
void FillLabels(Columns* columns);

inline constexpr int kCriteoNumbers = 13;
inline constexpr int kCriteoFields = 26;  // C1 to C26

}  // namespace tandem::job

#endif  // TANDEM_JOB_ROW_SHAPE_H_
