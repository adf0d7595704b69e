#include "collectives/legacy/checker.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/legacy/cost.h"
#include "collectives/legacy/replay.h"

namespace tandem {
inline namespace legacy {
namespace {

// A symbolic sum: whose contributions, in the order they were added.
struct Sum {
  std::vector<int> order;
  // True if it is (...((a + b) + c) + ...): one contribution added at a time.
  bool one_by_one = true;
};

// Float addition commutes, bit for bit, but does not associate: x + (a + b) is not (x + a) + b.
Sum Add(const Sum& x, const Sum& y) {
  const bool swap =
      x.order.size() < y.order.size() || (x.order.size() == y.order.size() && x.order > y.order);
  const Sum& first = swap ? y : x;
  const Sum& second = swap ? x : y;
  Sum sum = first;
  sum.order.insert(sum.order.end(), second.order.begin(), second.order.end());
  sum.one_by_one = first.one_by_one && second.order.size() == 1;
  return sum;
}

// The vector cut wherever some op of some rank cuts it.
class Cuts {
 public:
  explicit Cuts(absl::Span<const Schedule> schedules) {
    if (!schedules.empty()) at_ = {0, schedules[0].count};
    for (const Schedule& schedule : schedules) {
      for (const Step& step : schedule.steps) {
        for (const Op& op : step.ops) {
          at_.push_back(op.piece.begin);
          at_.push_back(op.piece.end());
        }
      }
    }
    std::sort(at_.begin(), at_.end());
    at_.erase(std::unique(at_.begin(), at_.end()), at_.end());
  }
  size_t size() const { return at_.empty() ? 0 : at_.size() - 1; }
  // Requires that `at` is a cut.
  size_t Index(int64_t at) const {
    return static_cast<size_t>(std::lower_bound(at_.begin(), at_.end(), at) - at_.begin());
  }
  Piece At(size_t i) const { return {at_[i], at_[i + 1] - at_[i]}; }

 private:
  std::vector<int64_t> at_;
};

class SymbolicRun : public ReplayVisitor {
 public:
  explicit SymbolicRun(absl::Span<const Schedule> schedules)
      : cuts_(schedules), vectors_(schedules.size()), aside_(schedules.size()) {
    for (size_t rank = 0; rank < vectors_.size(); ++rank) {
      vectors_[rank].assign(cuts_.size(), Sum{{static_cast<int>(rank)}});
    }
  }

  void OnSend(const ReplayMessage& message) override {
    payloads_.push_back(Copy(message.from, message.piece));
  }

  void OnApply(int rank, int /*step*/, const Op& op, const ReplayMessage* message) override {
    switch (op.kind) {
      case OpKind::kSend:
        TANDEM_CHECK(false);
      case OpKind::kReceive:
        Overwrite(rank, op.piece, TakePayload(*message));
        break;
      case OpKind::kReduce:
        AddTo(rank, op.piece, TakePayload(*message));
        break;
      case OpKind::kSetAside:
        aside_[rank] = Copy(rank, op.piece);
        break;
      case OpKind::kAddAside:
        AddTo(rank, op.piece, aside_[rank]);
        break;
    }
  }

  // Requires that the replay went well.
  absl::Status CheckSums(bool rank_order) const {
    for (size_t rank = 0; rank < vectors_.size(); ++rank) {
      for (size_t i = 0; i < cuts_.size(); ++i) {
        const absl::Status status = CheckSum(vectors_[rank][i], rank_order);
        if (status.ok()) continue;
        return absl::Status(status.code(),
                            absl::StrCat("rank ", rank, ", elements ", cuts_.At(i).DebugString(),
                                         ": ", status.message()));
      }
    }
    return absl::OkStatus();
  }

 private:
  absl::Status CheckSum(const Sum& sum, bool rank_order) const {
    std::vector<int> times(vectors_.size());
    for (const int rank : sum.order) ++times[rank];
    for (size_t rank = 0; rank < times.size(); ++rank) {
      if (times[rank] == 1) continue;
      return absl::InvalidArgumentError(
          times[rank] == 0 ? absl::StrCat("the contribution of rank ", rank, " is missing")
                           : absl::StrCat("the contribution of rank ", rank, " is added ",
                                          times[rank], " times"));
    }
    if (rank_order && !(sum.one_by_one && std::is_sorted(sum.order.begin(), sum.order.end()))) {
      return absl::InvalidArgumentError(absl::StrCat("not added in rank order, but ",
                                                     absl::StrJoin(sum.order, " + "),
                                                     sum.one_by_one ? "" : " with partial sums"));
    }
    return absl::OkStatus();
  }

  std::vector<Sum> Copy(int rank, Piece piece) const {
    const auto begin = vectors_[rank].begin();
    return {begin + static_cast<int64_t>(cuts_.Index(piece.begin)),
            begin + static_cast<int64_t>(cuts_.Index(piece.end()))};
  }
  void Overwrite(int rank, Piece piece, std::vector<Sum> sums) {
    std::move(sums.begin(), sums.end(),
              vectors_[rank].begin() + static_cast<int64_t>(cuts_.Index(piece.begin)));
  }
  void AddTo(int rank, Piece piece, const std::vector<Sum>& sums) {
    const size_t first = cuts_.Index(piece.begin);
    for (size_t i = 0; i < sums.size(); ++i) {
      Sum& mine = vectors_[rank][first + i];
      mine = Add(mine, sums[i]);
    }
  }
  // A message is received once.
  std::vector<Sum> TakePayload(const ReplayMessage& message) {
    return std::move(payloads_[message.id]);
  }

  const Cuts cuts_;
  std::vector<std::vector<Sum>> vectors_;   // [rank][cut]
  std::vector<std::vector<Sum>> aside_;     // [rank]
  std::vector<std::vector<Sum>> payloads_;  // [message id]
};

}  // namespace

absl::Status CheckAllReduce(absl::Span<const Schedule> schedules, const CheckOptions& options) {
  SymbolicRun run(schedules);
  TANDEM_RETURN_IF_ERROR(Replay(schedules, options.max_in_flight, run));
  return run.CheckSums(options.rank_order);
}

absl::Status CheckAllReduceTraffic(AllReduceAlgorithm algorithm,
                                   absl::Span<const Schedule> schedules) {
  for (const Schedule& s : schedules) {
    const Traffic want = AllReduceTraffic(algorithm, s.rank, s.ranks, s.count);
    const Traffic have = ScheduleTraffic(s);
    if (have == want) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", s.rank, " of ", s.ranks, " sends ", have.elements, " elements in ",
                     have.messages, " messages; ", AllReduceAlgorithmName(algorithm),
                     " should send ", want.elements, " in ", want.messages));
  }
  return absl::OkStatus();
}

absl::Status CheckAllReduceAlgorithm(AllReduceAlgorithm algorithm, int ranks, int64_t count) {
  const std::vector<Schedule> schedules = AllReduceSchedules(algorithm, ranks, count);
  TANDEM_RETURN_IF_ERROR(CheckAllReduceTraffic(algorithm, schedules));
  return CheckAllReduce(
      schedules, {.max_in_flight = 1, .rank_order = algorithm == AllReduceAlgorithm::kDirect});
}

}  // namespace legacy
}  // namespace tandem
