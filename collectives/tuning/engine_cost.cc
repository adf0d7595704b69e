#include "collectives/tuning/engine_cost.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::collectives {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// Plays schedules: ranks run on cores, each as soon as it can.
class Player {
 public:
  Player(absl::Span<const Schedule> schedules, int element_bytes, int64_t vector_bytes,
         const EngineCosts& costs)
      : schedules_(schedules),
        element_(element_bytes),
        costs_(costs),
        byte_(costs.For(vector_bytes)),
        places_(schedules.size()),
        ready_(schedules.size()),
        core_of_(schedules.size()),
        links_(schedules.size() * schedules.size()) {}

  void AssignCores(int cores, absl::Span<const int> host_of_rank) {
    std::map<int, std::vector<int>> hosts;
    for (size_t r = 0; r < schedules_.size(); ++r) {
      hosts[host_of_rank.empty() ? 0 : host_of_rank[r]].push_back(static_cast<int>(r));
    }
    for (const auto& [host, ranks] : hosts) {
      const size_t first = cores_.size();
      const size_t used = std::min(ranks.size(), static_cast<size_t>(std::max(cores, 1)));
      cores_.resize(first + used);
      for (size_t i = 0; i < ranks.size(); ++i) {
        cores_[first + i % used].ranks.push_back(ranks[i]);
        core_of_[static_cast<size_t>(ranks[i])] = first + i % used;
      }
    }
    for (Core& core : cores_) {
      core.time = costs_.operation * static_cast<double>(core.ranks.size());
    }
  }

  absl::StatusOr<double> Run() {
    double last = 0;
    for (size_t r = 0; r < ready_.size(); ++r) Look(static_cast<int>(r));
    while (true) {
      Core& core = *std::min_element(cores_.begin(), cores_.end(),
                                     [](const Core& a, const Core& b) { return a.next < b.next; });
      if (core.next == kNever) break;
      const int rank = Turn(core);
      const Op& op = *CurrentOp(rank);
      Do(core, rank, op);
      last = std::max(last, core.time);
      ++places_[static_cast<size_t>(rank)].index;
      // An op can only free its own rank and the rank that it has sent to.
      Look(rank);
      if (op.kind == OpKind::kSend) Look(op.peer);
    }
    for (size_t r = 0; r < places_.size(); ++r) {
      if (CurrentOp(static_cast<int>(r)) != nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("rank ", r, " waits forever: the schedules do not fit together"));
      }
    }
    return last;
  }

 private:
  struct Place {
    size_t step = 0, index = 0;
  };
  struct Core {
    double time = 0;
    double next = kNever;  // when it can run an op
    std::vector<int> ranks;
    size_t current = 0;
  };
  struct Message {
    double begins, ends;  // when its begin and its end become visible
  };
  // The messages from one rank to another, first in, first out, as indexes into sent_.
  struct Queue {
    int32_t head = -1, tail = -1;
  };
  struct Sent {
    Message message;
    int32_t next = -1;
  };
  Queue& Between(int from, int to) {
    return links_[static_cast<size_t>(from) * schedules_.size() + static_cast<size_t>(to)];
  }
  void Send(Queue& queue, const Message& message) {
    const int32_t place = static_cast<int32_t>(sent_.size());
    sent_.push_back({message, -1});
    if (queue.head < 0) {
      queue.head = place;
    } else {
      sent_[static_cast<size_t>(queue.tail)].next = place;
    }
    queue.tail = place;
  }

  const Op* CurrentOp(int rank) {
    const std::vector<Step>& steps = schedules_[static_cast<size_t>(rank)].steps;
    Place& at = places_[static_cast<size_t>(rank)];
    while (at.step < steps.size() && at.index == steps[at.step].ops.size()) {
      ++at.step;
      at.index = 0;
    }
    return at.step < steps.size() ? &steps[at.step].ops[at.index] : nullptr;
  }

  absl::Span<const int> Sources(int rank, const Op& op) const {
    if (op.kind == OpKind::kFold) {
      return schedules_[static_cast<size_t>(rank)].folds[static_cast<size_t>(op.peer)];
    }
    return op.ReceivesOne() ? absl::MakeConstSpan(&op.peer, 1) : absl::Span<const int>();
  }

  // When all messages of the op are visible; kNever if one of them has not been sent yet.
  Message Inbox(int rank, const Op& op) {
    Message all = {0, 0};
    for (const int from : Sources(rank, op)) {
      if (from == rank) continue;
      const int32_t head = Between(from, rank).head;
      if (head < 0) return {kNever, kNever};
      const Message& message = sent_[static_cast<size_t>(head)].message;
      all.begins = std::max(all.begins, message.begins);
      all.ends = std::max(all.ends, message.ends);
    }
    return all;
  }

  // Updates when this rank can run its next op, and when its core can run an op of any of its
  // ranks.
  void Look(int rank) {
    const Op* const op = CurrentOp(rank);
    ready_[static_cast<size_t>(rank)] = op != nullptr ? Inbox(rank, *op).begins : kNever;
    Core& core = cores_[core_of_[static_cast<size_t>(rank)]];
    core.next = kNever;
    for (const int r : core.ranks) {
      core.next = std::min(core.next, std::max(core.time, ready_[static_cast<size_t>(r)]));
    }
  }

  // Advances the core to core.next and returns the rank that runs then.
  int Turn(Core& core) {
    for (size_t i = 0; i < core.ranks.size(); ++i) {
      const size_t turn = (core.current + i) % core.ranks.size();
      const int rank = core.ranks[turn];
      if (ready_[static_cast<size_t>(rank)] > core.next) continue;
      // Each rank in between got its turn and could not run.
      core.time = core.next + static_cast<double>(i) * costs_.turn;
      core.current = turn;
      return rank;
    }
    TANDEM_CHECK(false && "some rank is ready at core.next");
    return -1;
  }

  void Do(Core& core, int rank, const Op& op) {
    const double bytes = static_cast<double>(op.piece.count) * element_;
    const double begin = core.time;
    if (op.kind == OpKind::kSend) {
      core.time += costs_.message + bytes * byte_.write;
      Send(Between(rank, op.peer),
           {begin + costs_.message + costs_.latency, core.time + costs_.latency});
      return;
    }
    if (op.kind == OpKind::kCopy || op.kind == OpKind::kCombine) {
      core.time += bytes * byte_.copy;
      return;
    }
    const Message inbox = Inbox(rank, op);
    const double each = op.kind == OpKind::kReceive ? byte_.read : byte_.fold;
    for (const int from : Sources(rank, op)) {
      if (from == rank) continue;
      core.time += costs_.message + bytes * each;
      Queue& queue = Between(from, rank);
      queue.head = sent_[static_cast<size_t>(queue.head)].next;
    }
    core.time = std::max(core.time, inbox.ends);
  }

  absl::Span<const Schedule> schedules_;
  const double element_;
  const EngineCosts& costs_;
  const ByteCosts byte_;
  std::vector<Core> cores_;
  std::vector<Place> places_;
  std::vector<double> ready_;    // when the current op of each rank can begin
  std::vector<size_t> core_of_;  // by rank
  std::vector<Queue> links_;     // by (from, to)
  std::vector<Sent> sent_;
};

}  // namespace

const ByteCosts& EngineCosts::For(int64_t vector_bytes) const {
  TANDEM_CHECK(!bytes.empty());
  const auto distance = [&](const ByteCosts& at) {
    return std::abs(std::log(static_cast<double>(std::max<int64_t>(vector_bytes, 1))) -
                    std::log(static_cast<double>(std::max<int64_t>(at.bytes, 1))));
  };
  return *std::min_element(bytes.begin(), bytes.end(), [&](const ByteCosts& a, const ByteCosts& b) {
    return distance(a) < distance(b);
  });
}

absl::StatusOr<double> EngineSeconds(absl::Span<const Schedule> schedules, int element_bytes,
                                     int64_t vector_bytes, const EngineCosts& costs, int cores,
                                     absl::Span<const int> host_of_rank) {
  if (costs.bytes.empty()) return absl::InvalidArgumentError("the costs have no line for bytes");
  Player player(schedules, element_bytes, vector_bytes, costs);
  player.AssignCores(cores, host_of_rank);
  return player.Run();
}

absl::StatusOr<double> PredictEngineSeconds(Primitive primitive, Algorithm algorithm,
                                            CollectiveShape shape, int64_t bytes,
                                            int64_t segment_bytes, const EngineCosts& costs,
                                            int cores) {
  constexpr int64_t kElement = 4;
  const auto seconds = [&](int64_t count) -> absl::StatusOr<double> {
    shape.count = count;
    shape.segment = segment_bytes / kElement;
    TANDEM_ASSIGN_OR_RETURN(const auto schedules, MakeSchedules(primitive, algorithm, shape));
    return EngineSeconds(schedules, kElement, bytes, costs, cores, shape.host_of_rank);
  };
  const bool in_blocks = primitive == Primitive::kReduceScatter ||
                         primitive == Primitive::kAllGather || primitive == Primitive::kGather ||
                         primitive == Primitive::kScatter || primitive == Primitive::kAllToAll;
  const int64_t count = bytes / kElement / (in_blocks ? shape.ranks : 1);
  // Enough elements for a pipeline of several parts, whatever a part is in the algorithm.
  const int64_t few = 8 * shape.ranks * (segment_bytes / kElement);
  if (segment_bytes == 0 || count <= 2 * few) return seconds(count);
  TANDEM_ASSIGN_OR_RETURN(const double shorter, seconds(few));
  TANDEM_ASSIGN_OR_RETURN(const double longer, seconds(2 * few));
  return longer +
         (longer - shorter) / static_cast<double>(few) * static_cast<double>(count - 2 * few);
}

}  // namespace tandem::collectives
