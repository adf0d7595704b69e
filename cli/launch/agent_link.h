// AgentLink is the connection of an agent (agent_command.h) to the scheduler of its job: the job,
// views, START, STOP and failures come in, and ends of roles and requests go out.
//
// Thread safety: one thread.
#ifndef TANDEM_CLI_LAUNCH_AGENT_LINK_H_
#define TANDEM_CLI_LAUNCH_AGENT_LINK_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/launch/children.h"
#include "node/node_session.h"
#include "node/role_flags.h"
#include "proto/wire.pb.h"
#include "transport/transport.h"

namespace tandem::cli {

class AgentLink {
 public:
  // `scheduler`: its address. `rank`: of this agent in the launch. `role`: keys and silence times
  // of the job.
  static absl::StatusOr<std::unique_ptr<AgentLink>> Open(const std::string& scheduler, int rank,
                                                         const node::RoleFlags& role);

  // Waits up to `timeout` for messages, and returns them. Sets status().
  std::vector<Control> Poll(absl::Duration timeout);
  // OK while the scheduler is there and the job has not failed. Otherwise "worker 1: loss is NaN",
  // or "scheduler: ..." if it has gone.
  const absl::Status& status() const { return status_; }
  // The job has failed and, as the scheduler says, no new attempt follows.
  bool last_attempt() const;

  void SendExit(const Children::Exit& exit);
  void SendCheckpoint();  // asks for a checkpoint
  // Asks for the end of the job: after a checkpoint, or, if `at_once`, without.
  void SendStop(bool at_once);

 private:
  AgentLink(std::string scheduler, std::unique_ptr<transport::Transport> transport)
      : scheduler_(std::move(scheduler)), transport_(std::move(transport)) {}
  void CheckScheduler(absl::Time now);

  const std::string scheduler_;
  const std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<node::NodeSession> member_;
  std::vector<transport::TransportEvent> events_;
  absl::Status status_;
  absl::Time next_probe_ = absl::InfinitePast();
};

}  // namespace tandem::cli

#endif  // TANDEM_CLI_LAUNCH_AGENT_LINK_H_
