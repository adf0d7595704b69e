#include "base/check.h"
#include "base/hash.h"
#include "models/model.h"
#include "optim/initializer.h"

namespace tandem::models {

void InitParameters(absl::Span<const ParameterInfo> parameters, uint64_t job_seed,
                    absl::Span<float> flat) {
  for (const ParameterInfo& parameter : parameters) {
    TANDEM_CHECK(parameter.offset >= 0 && parameter.size >= 0 &&
                 parameter.offset + parameter.size <= static_cast<int64_t>(flat.size()));
    // Each parameter is one long row of a table of its own. Its initial values therefore depend on
    // its name, and not on the parameters before it.
    const uint64_t seed = HashCombine(job_seed, HashName(parameter.name));
    optim::InitRow(parameter.initializer, seed, /*key=*/0,
                   flat.subspan(parameter.offset, parameter.size));
  }
}

void DenseModel::InitialValues(uint64_t job_seed, absl::Span<float> flat) const {
  InitParameters(parameters(), job_seed, flat);
}

absl::Status DenseModel::SetState(const std::string& state) {
  if (state.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("state of a module, and this model has none");
}

}  // namespace tandem::models
