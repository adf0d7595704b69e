#include "scheduler/failure/stalls.h"

#include <algorithm>
#include <map>

namespace tandem::scheduler {
namespace {

struct Root {
  int node = 0;
  bool circle = false;
};

absl::Time StuckSince(const WaitState& node) {
  return node.waits_for >= 0 && !node.passes_on ? node.wait_since : node.moved_at;
}

// Follows the waits from `start`. A server whose own loop makes no progress ends the chain: it is
// the cause itself. After as many hops as there are nodes, the chain must be inside a circle.
template <typename Stuck>
Root FollowWaits(absl::Span<const WaitState> nodes, int start, const Stuck& stuck) {
  int at = start;
  for (size_t hop = 0; hop < nodes.size(); ++hop) {
    const bool ends = nodes[at].waits_for < 0 || (nodes[at].passes_on && stuck(at));
    if (ends) return {.node = at, .circle = false};
    at = nodes[at].waits_for;
  }
  int lowest = at;
  for (int i = nodes[at].waits_for; i != at; i = nodes[i].waits_for) lowest = std::min(lowest, i);
  return {.node = lowest, .circle = true};
}

}  // namespace

std::vector<StalledRoot> FindStalls(absl::Time now, absl::Duration stall_after,
                                    absl::Span<const WaitState> nodes) {
  const auto stuck = [&](int i) { return now - StuckSince(nodes[i]) >= stall_after; };
  std::map<int, StalledRoot> found;
  for (int i = 0; i < static_cast<int>(nodes.size()); ++i) {
    if (!stuck(i)) continue;
    const Root root = FollowWaits(nodes, i, stuck);
    const bool root_at_work = !root.circle && !stuck(root.node);
    if (nodes[i].at_barrier && root_at_work) continue;
    const absl::Time since = StuckSince(nodes[root_at_work ? i : root.node]);
    auto [it, inserted] =
        found.try_emplace(root.node, StalledRoot{root.node, since, {}, root.circle, root_at_work});
    it->second.since = std::min(it->second.since, since);
    if (i != root.node) it->second.victims.push_back(i);
  }
  std::vector<StalledRoot> result;
  for (auto& [node, stalled] : found) result.push_back(std::move(stalled));
  return result;
}

}  // namespace tandem::scheduler
