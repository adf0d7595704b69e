// The agents of a job: programs that have started roles on other hosts and watch them
// (cli/agent_command.h). An agent is a reader (readers.h) that also tells how its roles end. If an
// agent is lost, its roles end with it, so the job names the agent and not one of the roles.
//
// Thread safety: none needed; part of the scheduler core.
#ifndef TANDEM_SCHEDULER_AGENTS_H_
#define TANDEM_SCHEDULER_AGENTS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/wire.pb.h"
#include "scheduler/effects.h"
#include "scheduler/membership.h"

namespace tandem::scheduler {

struct Agent {
  int rank = 0;  // in the launch
  std::string host;
  int64_t pid = 0;
  uint64_t connection = 0;  // 0: lost
};

class Agents {
 public:
  static constexpr size_t kMost = 1024;

  // ALREADY_EXISTS: an agent of the same rank is connected; another launch may have the same
  // address. RESOURCE_EXHAUSTED: there are kMost agents.
  absl::Status Add(uint64_t connection, const Register& request);
  // The connection broke, or the agent closed it.
  void OnLost(uint64_t connection);
  void OnClosed(uint64_t connection);

  // Null if the connection is not that of an agent.
  const Agent* ByConnection(uint64_t connection) const;
  // A role of the agent has ended. Returns the failure that ends the job: a signal has ended the
  // role, or it failed without a report of its own.
  absl::optional<Failure> OnExit(const Agent& agent, const RoleExit& exit, Membership* members,
                                 SchedulerEffects* effects) const;
  // A signal asks for a checkpoint: by an agent, or by the user's command, which is the agent of
  // rank 0. True: another rank has asked a moment ago, because launchers signal all ranks at once.
  bool RepeatsCheckpoint(absl::Time now, bool by_agent);
  // The job fails. Adds the host if an agent has started the failed node. If that agent is lost,
  // its host is named instead of the node.
  void NameCause(const Membership& members, Failure* failure) const;

 private:
  // The agent that has started the node; one that is lost, if there are several. Null: none.
  const Agent* AgentOf(const Node& node) const;

  std::map<uint64_t, Agent> agents_;         // by incarnation
  absl::Time asked_ = absl::InfinitePast();  // for a checkpoint, the last time that counted
  bool asked_by_agent_ = false;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_AGENTS_H_
