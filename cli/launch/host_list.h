// ParseHostFile and ParseHostList read the hosts of a launch, as DeepSpeed and Horovod write them.
// A host is anything that ssh accepts: a name, an alias from its configuration, or an address. A
// user may precede it ("user@host").
#ifndef TANDEM_CLI_LAUNCH_HOST_LIST_H_
#define TANDEM_CLI_LAUNCH_HOST_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

struct HostSlots {
  std::string host;  // as ssh takes it: an IPv6 address has no brackets
  int slots = 1;     // how many ranks run there
};

// A line for each host, "host slots=2" or "host". Text behind # is a comment. `name`: of the file,
// for errors. INVALID_ARGUMENT names the line: no slots, the same host twice, or another word.
absl::StatusOr<std::vector<HostSlots>> ParseHostFile(const std::string& name,
                                                     const std::string& text);

// "a:2,b:2" or "a,b". An IPv6 address is in brackets: "[::1]:2".
absl::StatusOr<std::vector<HostSlots>> ParseHostList(const std::string& text);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_HOST_LIST_H_
