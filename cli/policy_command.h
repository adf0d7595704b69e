// tandem policy check: tries a policy of the user, in a shared library, with random schedules
// (tools/sim/policy_check.h). A job loads the library only after that (docs/PLUGINS.md).
#ifndef TANDEM_CLI_POLICY_COMMAND_H_
#define TANDEM_CLI_POLICY_COMMAND_H_

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace tandem::cli {

struct PolicyFlags {
  std::string library;
  std::string options;  // policy.options
  int64_t schedules = 500;
  uint64_t seed = 1;
};

void AddPolicy(CLI::App* app, PolicyFlags* flags);

// Prints the result in a line and, if the policy keeps its promises, writes LIBRARY.checked.
// Returns the exit code: 0, 1 if the policy breaks a promise, crashes or does not return, or 2 if
// the library or a flag is refused.
int PolicyCommand(const PolicyFlags& flags);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_POLICY_COMMAND_H_
