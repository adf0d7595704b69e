#include "scheduler/failure/stall_watch.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/failure/failure_judge.h"

namespace tandem::scheduler {

absl::optional<Failure> StallWatch::Check(absl::Time now, SchedulerEffects* effects) {
  std::vector<bool> stalled(members_.nodes().size());
  for (const StalledRoot& stall : FindStalls(now, times_.stall_after, WaitStates())) {
    stalled[stall.root] = true;
    Node& root = members_.nodes()[stall.root];
    const std::string text = Describe(now, stall);
    if (now - stall.since >= limit_) {
      return FailureOf(root.Name(), text, absl::StatusCode::kDeadlineExceeded);
    }
    if (root.stall_reported) continue;
    root.stall_reported = true;
    effects->Log(absl::StrCat(root.Name(), ": ", text));
    effects->Notify(SchedulerNotice::Kind::kStall, root.Name(), text);
  }
  for (Node& node : members_.nodes()) {
    if (!node.stall_reported || stalled[IndexOf(&node)]) continue;
    node.stall_reported = false;
    effects->Log(absl::StrCat(node.Name(), " makes progress again"));
    effects->Notify(SchedulerNotice::Kind::kStallOver, node.Name(), "");
  }
  return absl::nullopt;
}

// The waits of all nodes. Heartbeats come first; then waits in barriers, which the scheduler knows
// better, replace them.
std::vector<WaitState> StallWatch::WaitStates() const {
  std::vector<WaitState> states;
  for (const Node& node : members_.nodes()) {
    WaitState& state = states.emplace_back();
    state.passes_on = node.role == Role::kServer;
    state.moved_at = node.moved_at;
    if (!node.waits_for.has_value()) continue;
    state.waits_for = IndexOf(members_.ByEndpoint(*node.waits_for));
    if (state.waits_for == IndexOf(&node)) state.waits_for = -1;
    state.wait_since = std::max(node.wait_started, node.step_at);
  }
  AddBarrierWaits(&states);
  return states;
}

void StallWatch::AddBarrierWaits(std::vector<WaitState>* states) const {
  for (const auto& [name, barrier] : barriers_.open()) {
    if (InBackground(barrier)) continue;
    const int holds_up = HoldsUp(name, barrier);
    for (int rank = 0; holds_up >= 0 && rank < members_.workers(); ++rank) {
      if (!barrier.entered[rank] || holds_up == IndexOf(members_.worker(rank))) continue;
      WaitState& state = (*states)[IndexOf(members_.worker(rank))];
      state.waits_for = holds_up;
      state.at_barrier = true;
      state.wait_since = barrier.entered_at[rank];
    }
  }
}

// Whether training continues although workers are in the barrier: at the second barrier of a
// requested checkpoint, unless workers take no step after the checkpoint.
bool StallWatch::InBackground(const Barrier& barrier) const {
  if (barrier.action != BarrierEnter::CHECKPOINT || !barrier.may_fail || files_hold_up_) {
    return false;
  }
  return std::none_of(commands_.pending().begin(), commands_.pending().end(),
                      [](const auto& pending) { return pending.second.command.hold(); });
}

// The node that the workers in a barrier wait for: a worker that has not entered, a server that has
// not finished the action before the release, or a node that has not finished a requested
// checkpoint. -1: none.
int StallWatch::HoldsUp(const std::string& name, const Barrier& barrier) const {
  if (checkpoints_.HoldsUp(name)) return WritesCheckpoint();
  int holds_up = -1;
  if (!barrier.complete) {
    const std::vector<int> missing = barrier.MissingRanks();
    if (!missing.empty()) holds_up = IndexOf(members_.worker(missing.front()));
  }
  for (const auto& [id, pending] : commands_.pending()) {
    if (pending.barrier != name) continue;
    const std::set<int> servers = pending.MissingServers();
    holds_up = servers.empty() ? -1 : IndexOf(members_.server(*servers.begin()));
  }
  return holds_up;
}

// The node for which the requested checkpoint waits: a server, a worker that has not written its
// part, or worker 0, which commits. -1: none.
int StallWatch::WritesCheckpoint() const {
  int writes = -1;
  for (const auto& [id, pending] : commands_.pending()) {
    if (pending.command.kind() != Command::CHECKPOINT) continue;
    const std::set<int> servers = pending.MissingServers();
    if (!servers.empty()) return IndexOf(members_.server(*servers.begin()));
    if (!pending.workers.empty()) writes = IndexOf(members_.worker(*pending.workers.begin()));
  }
  for (const auto& [name, barrier] : barriers_.open()) {
    if (barrier.action != BarrierEnter::CHECKPOINT || barrier.complete) continue;
    const std::vector<int> missing = barrier.MissingRanks();
    if (!missing.empty()) writes = IndexOf(members_.worker(missing.front()));
  }
  return writes;
}

std::string StallWatch::Describe(absl::Time now, const StalledRoot& stalled) const {
  const std::string root = members_.nodes()[stalled.root].Doing();
  const std::string seconds = InSeconds(now - stalled.since);
  std::vector<std::string> names;
  for (const int i : stalled.victims) names.push_back(members_.nodes()[i].Name());
  const std::string victims = SomeOf(names);
  if (stalled.at_work) return absl::StrCat("waited for by ", victims, " for ", seconds, ": ", root);
  const std::string text = absl::StrCat("no progress for ", seconds, ": ", root);
  if (victims.empty()) return text;
  return absl::StrCat(text, stalled.circle ? "; in a circle of waits with " : "; waited for by ",
                      victims);
}

int StallWatch::IndexOf(const Node* node) const {
  return node == nullptr ? -1 : static_cast<int>(node - members_.nodes().data());
}

}  // namespace tandem::scheduler
