// Replaces the dense models in builds without LibTorch.
#include "models/model.h"

namespace tandem::models {

absl::StatusOr<std::unique_ptr<DenseModel>> NewDenseModel(const Model&, const ModelInputs&, int,
                                                          ModelDevice, int) {
  return absl::UnimplementedError(
      "this build has no LibTorch, which compiled models need; hint: build the source with "
      "libtorch-dev, or have no model (--timing-only, --problem)");
}

int CudaDevices() { return 0; }

}  // namespace tandem::models
