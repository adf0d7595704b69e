// LocalRoles are the processes that this process starts in one attempt of a run. Start starts the
// servers and workers of this rank. On rank 0 the caller adds the scheduler to children().
// LocalRoles also reads the output of scripts.
//
// Not here: the commands (role_commands.h), and what the end of a process means (supervisor.h).
// Thread safety: one thread.
#ifndef TANDEM_CLI_LAUNCH_LOCAL_ROLES_H_
#define TANDEM_CLI_LAUNCH_LOCAL_ROLES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/launch/children.h"
#include "cli/launch/deal_roles.h"
#include "cli/launch/log_tail.h"
#include "cli/launch/role_commands.h"

namespace tandem::cli {

class LocalRoles {
 public:
  // Starts the servers and workers of `dealt`. `scheduler`: its address. `shows_scripts`: the
  // workers are scripts whose output ReadScripts returns.
  absl::Status Start(const DealtRoles& dealt, const RoleCommands& commands,
                     const std::string& scheduler, bool shows_scripts);

  // The lines that scripts have printed since the last call: "worker 0 | text". `last`: the scripts
  // have ended.
  std::vector<std::string> ReadScripts(bool last);
  // Whether ReadScripts returns the output of this role.
  bool Shows(const std::string& name) const;

  Children& children() { return children_; }
  const Children& children() const { return children_; }

 private:
  Children children_;
  std::vector<LogTail> scripts_;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_LOCAL_ROLES_H_
