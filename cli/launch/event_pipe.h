// EventPipe is a pipe for lines of JSON. `tandem run` reads the events that the scheduler writes to
// its end (scheduler_shell.h lists them). Another pipe tells the scheduler how workers end.
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_LAUNCH_EVENT_PIPE_H_
#define TANDEM_CLI_LAUNCH_EVENT_PIPE_H_

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/owned_fd.h"

namespace tandem::cli {

class EventPipe {
 public:
  absl::Status Open();
  int write_fd() const { return write_end_.get(); }
  int read_fd() const { return read_end_.get(); }
  void CloseWriter() { write_end_ = OwnedFd(); }
  // Waits up to `timeout` for events.
  std::vector<nlohmann::json> Read(absl::Duration timeout);
  // Writes one line, for a reader in another process. Does nothing if the pipe is not open, or if
  // the reader has gone.
  void Write(const nlohmann::json& event);

 private:
  OwnedFd read_end_, write_end_;
  std::string text_;
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_EVENT_PIPE_H_
