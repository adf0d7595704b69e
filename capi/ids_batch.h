// IdsBatch makes a batch of unique keys from the ids of fields, as a program gives them.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_CAPI_IDS_BATCH_H_
#define TANDEM_CAPI_IDS_BATCH_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "capi/tandem.h"
#include "data/batch.h"
#include "data/batch_builder.h"
#include "job/job.h"

namespace tandem::capi {

class IdsBatch {
 public:
  // The plan must outlive this object.
  explicit IdsBatch(const job::ResolvedJob& plan) : plan_(plan) {}

  // Fills a batch, as tandem_give describes. INVALID_ARGUMENT names the invalid field.
  absl::Status Fill(int64_t samples, const tandem_field* fields, const uint8_t* unpooled,
                    data::Batch* batch);

 private:
  absl::Status Check(const job::TablePlan& table, int64_t samples,
                     absl::Span<const tandem_field> fields) const;
  void AddCells(int64_t samples, absl::Span<const tandem_field> fields, data::SparseInput* input);
  void AddIds(absl::Span<const tandem_field> fields);

  const job::ResolvedJob& plan_;
  data::KeyIndex index_;
  std::vector<uint64_t> occurrences_;
};

}  // namespace tandem::capi

#endif  // TANDEM_CAPI_IDS_BATCH_H_
