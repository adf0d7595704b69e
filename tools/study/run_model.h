// Applies the model of `tandem plan` to a run on hosts with limited links, with the run's
// compute times.
#ifndef TANDEM_TOOLS_STUDY_RUN_MODEL_H_
#define TANDEM_TOOLS_STUDY_RUN_MODEL_H_

#include <string>

#include "absl/status/status.h"
#include "tools/study/study.pb.h"

namespace tandem::study {

// Writes study::ModelFile of the run in `folder` for the assumptions `network`. Does nothing if the
// file is up to date. `build`: any text that tells builds apart, because another build may have
// another model.
absl::Status WriteModelOfRun(const std::string& folder, const study::Network& network,
                             bool colocate_servers, const std::string& build);

}  // namespace tandem::study

#endif  // TANDEM_TOOLS_STUDY_RUN_MODEL_H_
