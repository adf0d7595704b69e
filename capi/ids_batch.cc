#include "capi/ids_batch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::capi {
namespace {

constexpr int64_t kMaxIds = int64_t{1} << 30;  // ids in a field; the limit of KeyIndex

}  // namespace

absl::Status IdsBatch::Check(const job::TablePlan& table, int64_t samples,
                             absl::Span<const tandem_field> fields) const {
  int64_t ids = 0;  // number in all fields
  for (size_t f = 0; f < fields.size(); ++f) {
    const tandem_field& field = fields[f];
    const auto refuse = [&](const auto&... what) {
      return absl::InvalidArgumentError(
          absl::StrCat("field ", table.fields[f], " of table ", table.name, ": ", what...));
    };
    if (field.ids == nullptr) {
      if (field.count != 0) return refuse(field.count, " ids, but the pointer to them is null");
      continue;
    }
    if (field.count < 0 || field.count > kMaxIds - ids) return refuse(field.count, " ids");
    ids += field.count;
    if (field.stride == 0 && field.count > 1) {
      return refuse("a stride of 0 for ", field.count, " ids; expected 1, one id after the other");
    }
    if (field.stride > kMaxIds || field.stride < -kMaxIds) {
      return refuse("a stride of ", field.stride, " ids is too large");
    }
    if (field.offsets == nullptr && field.count != samples) {
      return refuse(field.count, " ids for ", samples,
                    " samples, expected one a sample; or give offsets");
    }
    if (field.offsets == nullptr) continue;
    const int64_t* const end = field.offsets + samples;
    if (field.offsets[0] != 0 || *end != field.count || !std::is_sorted(field.offsets, end + 1)) {
      return refuse("offsets must rise from 0 to the number of ids, ", field.count);
    }
  }
  return absl::OkStatus();
}

// Adds cells sample by sample, and for each sample field by field. Without offsets and weights
// every cell has one id.
void IdsBatch::AddCells(int64_t samples, absl::Span<const tandem_field> fields,
                        data::SparseInput* input) {
  const bool plain = std::all_of(fields.begin(), fields.end(), [](const tandem_field& field) {
    return field.ids != nullptr && field.offsets == nullptr && field.weights == nullptr;
  });
  const bool weighted = std::any_of(fields.begin(), fields.end(), [](const tandem_field& field) {
    return field.weights != nullptr;
  });
  if (!plain) input->offsets.push_back(0);
  for (int64_t s = 0; s < samples; ++s) {
    for (const tandem_field& field : fields) {
      const bool none = field.ids == nullptr;
      const int64_t begin = none ? 0 : field.offsets == nullptr ? s : field.offsets[s];
      const int64_t end = none ? 0 : field.offsets == nullptr ? s + 1 : field.offsets[s + 1];
      for (int64_t i = begin; i < end; ++i) {
        occurrences_.push_back(static_cast<uint64_t>(field.ids[i * field.stride]));
        if (weighted) input->weights.push_back(field.weights == nullptr ? 1 : field.weights[i]);
      }
      if (!plain) input->offsets.push_back(static_cast<uint32_t>(occurrences_.size()));
    }
  }
}

void IdsBatch::AddIds(absl::Span<const tandem_field> fields) {
  for (const tandem_field& field : fields) {
    for (int64_t i = 0; i < field.count; ++i) {
      occurrences_.push_back(static_cast<uint64_t>(field.ids[i * field.stride]));
    }
  }
}

absl::Status IdsBatch::Fill(int64_t samples, const tandem_field* fields, const uint8_t* unpooled,
                            data::Batch* batch) {
  batch->Clear();
  if (samples < 0) {
    return absl::InvalidArgumentError(absl::StrCat(samples, " samples; expected 0 or more"));
  }
  if (samples == 0) return absl::OkStatus();
  const int64_t train = plan_.job.train().batch_size(), test = plan_.job.evaluation().batch_size();
  if (samples > std::max(train, test)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", samples, " samples, and train.batch_size is ", train,
                     ", evaluation.batch_size ", test, "; give fewer, or raise it"));
  }
  if (fields == nullptr) return absl::InvalidArgumentError("a batch without fields");
  batch->sparse.resize(plan_.model_tables());
  for (data::SparseInput& input : batch->sparse) {
    const auto t = static_cast<size_t>(&input - batch->sparse.data());
    const job::TablePlan& table = plan_.tables[t];
    const absl::Span<const tandem_field> own(fields, table.fields.size());
    fields += table.fields.size();
    TANDEM_RETURN_IF_ERROR(Check(table, samples, own));
    input.table = table.id;
    input.fields = static_cast<int>(own.size());
    occurrences_.clear();
    if (unpooled != nullptr && unpooled[t] != 0) {
      AddIds(own);
    } else {
      AddCells(samples, own, &input);
    }
    index_.Unique(occurrences_, &input.keys, &input.index);
  }
  batch->samples = samples;
  return absl::OkStatus();
}

}  // namespace tandem::capi
