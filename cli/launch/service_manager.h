// NotifyServiceManager tells systemd about the state of a job that runs as a service with
// Type=notify: "READY=1" once all roles train, "STOPPING=1" when the job begins to end.
//
// The protocol is a datagram to the socket that NOTIFY_SOCKET names, as in sd_notify(3).
#ifndef TANDEM_CLI_LAUNCH_SERVICE_MANAGER_H_
#define TANDEM_CLI_LAUNCH_SERVICE_MANAGER_H_

#include "absl/strings/string_view.h"

namespace tandem::cli {

// Does nothing if no service manager waits. A message that cannot be sent is ignored: the service
// manager then waits until its own timeout, and the job is not harmed. Any thread may call it.
void NotifyServiceManager(absl::string_view state);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_SERVICE_MANAGER_H_
