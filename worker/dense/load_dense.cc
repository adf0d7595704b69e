#include "worker/dense/load_dense.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/checkpoint/range_file.h"

namespace tandem::worker {

absl::Status LoadDense(const job::ResolvedJob& plan, const server::CheckpointReader& saved,
                       const std::vector<server::CheckpointParameter>& parameters,
                       DenseParameters* dense) {
  if (plan.dense_table < 0) TANDEM_RETURN_IF_ERROR(saved.CheckDenseIsWhole());
  TANDEM_ASSIGN_OR_RETURN(const server::RangeImage image, saved.ReadDense(parameters));
  const absl::Status loaded = dense->Load(image);
  // The best model is the one that was evaluated, without the updates that were held then.
  if (loaded.ok() && saved.manifest().best) dense->ForgetUpdatesInFlight();
  if (loaded.ok()) return loaded;
  return absl::Status(loaded.code(), absl::StrCat(saved.folder(), ": ", loaded.message()));
}

}  // namespace tandem::worker
