// The constructors behind NewDenseModel, one for each file of this folder. Each refuses inputs that
// do not fit with INVALID_ARGUMENT and a hint.
#ifndef TANDEM_MODELS_MODELS_H_
#define TANDEM_MODELS_MODELS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "models/model.h"
#include "proto/job.pb.h"

namespace tandem::models {

using NewModelResult = absl::StatusOr<std::unique_ptr<DenseModel>>;

NewModelResult NewLogisticRegression(const ModelInputs& inputs, int threads);
NewModelResult NewMlp(const Mlp& config, const ModelInputs& inputs, int threads);
NewModelResult NewDlrm(const Dlrm& config, const ModelInputs& inputs, int threads);
NewModelResult NewGmf(const ModelInputs& inputs, int threads);
NewModelResult NewNeuMf(const NeuMf& config, const ModelInputs& inputs, int threads);
NewModelResult NewScriptModel(const Script& config, const ModelInputs& inputs, int threads);

// Helpers of the constructors.

// The floats of all pooled embeddings of a sample, without its numbers.
int64_t CellFloats(const ModelInputs& inputs);

// INVALID_ARGUMENT unless every width is between 1 and 65,536.
absl::Status CheckWidths(absl::string_view what, absl::Span<const int> widths);

}  // namespace tandem::models

#endif  // TANDEM_MODELS_MODELS_H_
