#include "scheduler/agents.h"

#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/endpoint.h"
#include "scheduler/failure/failure_judge.h"

namespace tandem::scheduler {

absl::Status Agents::Add(uint64_t connection, const Register& request) {
  for (const auto& [incarnation, agent] : agents_) {
    if (agent.rank == request.index() && agent.connection != 0 &&
        incarnation != request.incarnation()) {
      return absl::AlreadyExistsError(
          absl::StrCat("the job has an agent of rank ", agent.rank, ", on host ", agent.host,
                       "; hint: another launch may use the same --out or --scheduler"));
    }
  }
  if (agents_.size() >= kMax && agents_.count(request.incarnation()) == 0) {
    return absl::ResourceExhaustedError(absl::StrCat("the job has ", kMax, " agents already"));
  }
  agents_[request.incarnation()] = {request.index(), Clip(request.host()), request.pid(),
                                    connection};
  return absl::OkStatus();
}

void Agents::OnLost(uint64_t connection) {
  for (auto& [incarnation, agent] : agents_) {
    if (agent.connection == connection) agent.connection = 0;
  }
}

void Agents::OnClosed(uint64_t connection) {
  for (auto it = agents_.begin(); it != agents_.end();) {
    it = it->second.connection == connection ? agents_.erase(it) : std::next(it);
  }
}

const Agent* Agents::ByConnection(uint64_t connection) const {
  for (const auto& [incarnation, agent] : agents_) {
    if (agent.connection == connection) return &agent;
  }
  return nullptr;
}

absl::optional<Failure> Agents::OnExit(const Agent& agent, const RoleExit& exit,
                                       Membership* members, SchedulerEffects* effects) const {
  const EndpointId role = EndpointId::Unpack(exit.role());
  if (role.role != Role::kServer && role.role != Role::kWorker) return absl::nullopt;
  Node* const node = members->ByEndpoint(role);
  // Another process may have the place of a role that was refused.
  if (node != nullptr && (node->pid != exit.pid() || node->host != agent.host)) {
    return absl::nullopt;
  }
  const std::string name =
      absl::StrCat(role.role == Role::kServer ? "server " : "worker ", role.index);
  const std::string how = absl::StrCat(Clip(exit.text()), " on host ", agent.host);
  effects->Log(absl::StrCat(name, " ", how));
  if (exit.signal() == 0 && exit.code() == 0) return absl::nullopt;
  if (exit.signal() == 0 && node != nullptr && node->reported_failure) return absl::nullopt;
  if (node != nullptr) node->gone = true;
  return FailureOf(name, how, absl::StatusCode::kUnavailable);
}

bool Agents::IsSameRequest(absl::Time now, Request request, int rank) {
  constexpr absl::Duration kAllRanks = absl::Seconds(5);  // a launcher signals its ranks within it
  Requested& last = requested_[request];
  const bool is_new_rank = last.ranks.insert(rank).second;
  if (is_new_rank && now - last.since < kAllRanks) return true;
  last.since = now;
  last.ranks = {rank};
  return false;
}

void Agents::NameCause(const Membership& members, Failure* failure) const {
  for (const Node& node : members.nodes()) {
    const Agent* const agent = node.Name() == failure->node() ? AgentOf(node) : nullptr;
    if (agent == nullptr) continue;
    const std::string host = absl::StrCat("host ", agent->host);
    if (agent->connection != 0) {
      if (!absl::StrContains(failure->reason(), host)) {
        absl::StrAppend(failure->mutable_reason(), "; on ", host);
      }
      return;
    }
    failure->set_reason(absl::StrCat("the agent of rank ", agent->rank, " (pid ", agent->pid,
                                     ") has gone, and its roles with it; ", failure->node(), ": ",
                                     failure->reason()));
    failure->set_node(host);
    return;
  }
}

const Agent* Agents::AgentOf(const Node& node) const {
  const Agent* found = nullptr;
  for (const auto& [incarnation, agent] : agents_) {
    if (agent.host != node.host || agent.pid != node.driver) continue;
    if (found == nullptr || agent.connection == 0) found = &agent;
  }
  return found;
}

}  // namespace tandem::scheduler
