// The agents of a job: programs that have started roles on other hosts and watch them
// (cli/agent_command.h). An agent is a reader (readers.h) that also tells how its roles end. If an
// agent is lost, its roles end with it, so the job names the agent and not one of the roles.
//
// Thread safety: none needed; part of the scheduler core.
#ifndef TANDEM_SCHEDULER_AGENTS_H_
#define TANDEM_SCHEDULER_AGENTS_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>

#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "proto/wire.pb.h"
#include "scheduler/state/effects.h"
#include "scheduler/state/membership.h"

namespace tandem::scheduler {

struct Agent {
  int rank = 0;  // in the launch
  std::string host;
  int64_t pid = 0;
  uint64_t connection = 0;  // 0: lost
};

class Agents {
 public:
  static constexpr size_t kMax = 1024;
  enum class Request { kCheckpoint, kEnd };

  // ALREADY_EXISTS: an agent of the same rank is connected; another launch may have the same
  // address. RESOURCE_EXHAUSTED: there are kMax agents.
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
  // Rank `rank` has got a signal. A launcher signals all its ranks, and their signals are one
  // request. Returns true if other ranks got the same signal a few seconds ago, and this rank did
  // not. A second signal of a rank is a new request. kUserRank: the rank of the user's command.
  static constexpr int kUserRank = 0;
  bool IsSameRequest(absl::Time now, Request request, int rank);
  // The job fails. Adds the host if an agent has started the failed node. If that agent is lost,
  // its host is named instead of the node.
  void NameCause(const Membership& members, Failure* failure) const;

 private:
  // The agent that has started the node; one that is lost, if there are several. Null: none.
  const Agent* AgentOf(const Node& node) const;

  // The last request of a kind: when it came first, and the ranks that have made it.
  struct Requested {
    absl::Time since = absl::InfinitePast();
    std::set<int> ranks;
  };

  std::map<uint64_t, Agent> agents_;  // by incarnation
  std::map<Request, Requested> requested_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_AGENTS_H_
