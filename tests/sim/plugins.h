// Policies in shared libraries, for random jobs.
#ifndef TANDEM_TESTS_SIM_PLUGINS_H_
#define TANDEM_TESTS_SIM_PLUGINS_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "policies/plugin.h"
#include "proto/job.pb.h"

namespace tandem {

// The text of a policy that a library of this build decides. The library counts as checked.
inline std::string PluginPolicy(const std::string& library, const std::string& options) {
  Policy config;
  config.set_kind(Policy::PLUGIN);
  config.set_library(absl::StrCat(TANDEM_POLICIES, "/", library));
  config.set_options(options);
  if (!policies::NewPlugin(config, /*workers=*/1).ok()) {  // the first time
    const absl::StatusOr<uint64_t> hash = policies::HashOfLibrary(config.library());
    EXPECT_TRUE(hash.ok()) << hash.status();
    // Another test may write the same file at the same time. Without the file a job is refused.
    if (hash.ok()) policies::MarkChecked(config.library(), *hash).IgnoreError();
  }
  return absl::StrCat("kind: PLUGIN library: \"", config.library(), "\" options: \"", options,
                      "\"");
}

// SSP, or ASP with a state that must fit the steps of the workers.
inline std::string RandomPlugin(int bound, Random* random) {
  return random->Bernoulli(0.5) ? PluginPolicy("libssp.so", absl::StrCat("bound=", bound))
                                : PluginPolicy("libtest_policy.so", "honest");
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_PLUGINS_H_
