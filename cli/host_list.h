// ParseHostFile and ParseHostList read the hosts of a launch, as DeepSpeed and Horovod write them.
#ifndef TANDEM_CLI_HOST_LIST_H_
#define TANDEM_CLI_HOST_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::cli {

struct HostSlots {
  std::string host;
  int slots = 1;  // how many ranks run there
};

// A line for each host, "host slots=2" or "host". Text behind # is a comment. `name`: of the file,
// for errors. INVALID_ARGUMENT names the line: no slots, a host that is there twice, or another
// word.
absl::StatusOr<std::vector<HostSlots>> ParseHostFile(const std::string& name,
                                                     const std::string& text);

// "a:2,b:2" or "a,b".
absl::StatusOr<std::vector<HostSlots>> ParseHostList(const std::string& text);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_HOST_LIST_H_
