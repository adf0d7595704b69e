#include "data/row_data.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "data/files.h"

namespace tandem::data {
namespace {

template <typename Names>
absl::StatusOr<std::vector<std::string>> Files(absl::string_view knob, const Names& names) {
  return ExpandAllFiles(knob, {names.begin(), names.end()});
}

// Moves the last `fraction` of `from` to `to`. The end of `from` must be a counted row.
absl::Status SplitOff(absl::string_view knob, absl::string_view what, double fraction,
                      RowPart* from, RowPart* to) {
  const int64_t rows = from->rows.end - from->rows.begin;
  if (rows == 0) return absl::InvalidArgumentError("data.train: there is no row in these files");
  const int64_t taken = std::llround(static_cast<double>(rows) * fraction);
  if (taken <= 0 || taken >= rows) {
    return absl::InvalidArgumentError(absl::StrCat(
        knob, " ", fraction, " of ", rows, " rows leaves no ", taken <= 0 ? what : "training",
        " row; hint: change it or name files of their own"));
  }
  *to = *from;
  from->rows.end -= taken;
  to->rows.begin = from->rows.end;
  return absl::OkStatus();
}

void PickByChance(double chance, uint64_t seed, RowPart* from, RowPart* to) {
  from->rows.chance = chance;
  from->rows.seed = HashCombine(seed, HashName("validation"));
  *to = *from;
  to->rows.part = RowSelection::Part::kPicked;
  from->rows.part = RowSelection::Part::kOthers;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RowParser>> NewRowParser(const Data& data,
                                                        const DataStatistics* statistics) {
  switch (data.format()) {
    case Data::CRITEO:
      return NewCriteoParser(data.score_only());
    case Data::LIBSVM:
      return NewLibsvmParser(data.max_ids(), data.columns(), data.score_only());
    case Data::DELIMITED:
      return NewDelimitedParser(data.columns(), statistics, data.score_only(),
                                data.statistics().columns());
    default:
      return absl::InvalidArgumentError("data.format is not set, or not one with a row a line");
  }
}

absl::StatusOr<RowParts> FindRowParts(const job::ResolvedJob& plan, RowParser* parser) {
  const Data& data = plan.job.data();
  const Validation& validation = data.validation();
  RowParts parts;
  if (data.train().empty() && !data.score_only()) {
    return absl::InvalidArgumentError("data.train is not set, expected at least one file or glob");
  }
  TANDEM_ASSIGN_OR_RETURN(parts.train.files, Files("data.train", data.train()));
  TANDEM_ASSIGN_OR_RETURN(parts.test.files, Files("data.test", data.test()));
  TANDEM_ASSIGN_OR_RETURN(parts.validation.files,
                          Files("data.validation.files", validation.files()));
  if (data.max_rows() > 0) parts.train.rows.end = data.max_rows();
  const bool splits_test = data.test().empty() && data.test_fraction() != 0;
  if (splits_test || validation.last_fraction() > 0) {
    TANDEM_ASSIGN_OR_RETURN(parts.train.rows.end,
                            CountRows(parts.train.files, parser, parts.train.rows.end));
  }
  if (splits_test) {
    TANDEM_RETURN_IF_ERROR(
        SplitOff("data.test_fraction", "test", data.test_fraction(), &parts.train, &parts.test));
  }
  if (validation.last_fraction() > 0) {
    TANDEM_RETURN_IF_ERROR(SplitOff("data.validation.last_fraction", "validation",
                                    validation.last_fraction(), &parts.train, &parts.validation));
  }
  if (validation.fraction() > 0) {
    PickByChance(validation.fraction(), plan.job.seed(), &parts.train, &parts.validation);
  }
  return parts;
}

}  // namespace tandem::data
