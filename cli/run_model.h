// What the model of `tandem plan` says of a run on hosts with limited links, from what steps computed in it.
#ifndef TANDEM_CLI_RUN_MODEL_H_
#define TANDEM_CLI_RUN_MODEL_H_

#include <string>

#include "absl/status/status.h"
#include "study/study.pb.h"

namespace tandem::cli {

// Sees to it that study::ModelFile of the run in `folder` is there, and says what follows from `network`.
// `build`: any text that tells builds apart, since another one may have another model. It does nothing
// where that is so already.
absl::Status WriteModelOfRun(const std::string& folder, const study::Network& network,
                             bool servers_beside_workers, const std::string& build);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_RUN_MODEL_H_
