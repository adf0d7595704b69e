#include "cli/launch/local_roles.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::cli {

absl::Status LocalRoles::Start(const DealtRoles& dealt, const RoleCommands& commands,
                               const std::string& scheduler, bool shows_scripts) {
  for (const int server : dealt.servers) {
    TANDEM_RETURN_IF_ERROR(children_.Start(commands.Server(server, scheduler)));
  }
  for (const int worker : dealt.workers) {
    const Children::Command command = commands.Worker(worker, scheduler);
    if (shows_scripts) {
      scripts_.emplace_back(command.name, command.log);
      scripts_.back().SkipExisting();
    }
    TANDEM_RETURN_IF_ERROR(children_.Start(command));
  }
  return absl::OkStatus();
}

std::vector<std::string> LocalRoles::ReadScripts(bool last) {
  std::vector<std::string> lines;
  for (LogTail& script : scripts_) {
    for (const std::string& line : script.Read(last)) {
      lines.push_back(absl::StrCat(script.name(), " | ", line));
    }
  }
  return lines;
}

bool LocalRoles::Shows(const std::string& name) const {
  return std::any_of(scripts_.begin(), scripts_.end(),
                     [&name](const LogTail& script) { return script.name() == name; });
}

}  // namespace tandem::cli
