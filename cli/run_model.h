// What the model of `tandem plan` says of a run on hosts with limited links, from what steps computed in it.
#ifndef TANDEM_CLI_RUN_MODEL_H_
#define TANDEM_CLI_RUN_MODEL_H_

#include <string>

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "study/study.pb.h"

namespace tandem::cli {

// Of the run in `folder`, whose job is the file `job`: what study::ModelFile holds.
absl::StatusOr<nlohmann::json> ModelOfRun(const std::string& folder, const std::string& job,
                                          const study::Network& network,
                                          bool servers_beside_workers);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_RUN_MODEL_H_
