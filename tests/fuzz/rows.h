// What the fuzz targets of the row formats share: every row of any bytes, with what must hold of
// it.
#ifndef TANDEM_TESTS_FUZZ_ROWS_H_
#define TANDEM_TESTS_FUZZ_ROWS_H_

#include <cmath>
#include <memory>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "data/batch_builder.h"
#include "data/text_rows.h"

namespace tandem {

// An error is one line that names the input.
inline void CheckError(const absl::Status& status) {
  TANDEM_CHECK(!status.ok());
  TANDEM_CHECK(status.message().find("fuzz") == 0);
  TANDEM_CHECK(status.message().find('\n') == absl::string_view::npos);
}

inline void CheckRow(const data::Row& row, int numeric, int fields) {
  TANDEM_CHECK(row.label == 0 || row.label == 1);
  TANDEM_CHECK(row.numbers.size() == static_cast<size_t>(numeric));
  for (const float x : row.numbers) TANDEM_CHECK(std::isfinite(x));
  const size_t bags = fields > 0 ? static_cast<size_t>(fields) : 1;
  if (row.offsets.empty()) {
    TANDEM_CHECK(row.keys.size() == bags && row.weights.empty());
  } else {
    TANDEM_CHECK(row.offsets.size() == bags + 1 && row.offsets.back() == row.keys.size());
  }
  TANDEM_CHECK(row.weights.empty() || row.weights.size() == row.keys.size());
}

// Reads all rows of `bytes` and builds a batch of them. fields == 0: a bag of any size (libsvm).
// `bags`: fields may have several ids, with weights.
inline void ReadAllRows(absl::string_view bytes, data::RowParser* parser, int numeric, int fields,
                        bool bags = false) {
  data::TextRows file(std::make_unique<data::LineReader>("fuzz", data::MemoryBytes(bytes)), parser);
  data::TableLayout layout;
  for (int f = 0; f < (fields > 0 ? fields : 1); ++f) layout.fields.push_back(f);
  layout.bags = layout.weighted = bags || fields == 0;
  data::BatchBuilder builder(numeric, {layout});
  data::Batch batch;
  builder.Start(&batch);
  data::Row row;
  for (absl::string_view line;;) {
    const absl::StatusOr<bool> more = file.Next(&line);
    if (!more.ok()) return CheckError(more.status());
    if (!*more) break;
    const absl::Status status = file.Parse(line, &row);
    if (!status.ok()) return CheckError(status);
    CheckRow(row, numeric, fields);
    builder.Append(row, &batch);
  }
  builder.Finish(&batch);
}

}  // namespace tandem

#endif  // TANDEM_TESTS_FUZZ_ROWS_H_
