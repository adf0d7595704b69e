#include "collectives/legacy/cost.h"

#include <algorithm>
#include <vector>

#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/legacy/replay.h"

namespace tandem {
inline namespace legacy {
namespace {

// Traffic is written as a sum of blocks, each sent `times` times.
void AddPiece(Piece piece, int64_t times, Traffic* traffic) {
  traffic->elements += times * piece.count;
  traffic->messages += times;
}
void AddAllBlocks(int ranks, int64_t count, int64_t times, Traffic* traffic) {
  traffic->elements += times * count;
  traffic->messages += times * ranks;
}

class Clocks : public ReplayVisitor {
 public:
  Clocks(size_t ranks, const CostModel& model) : model_(model), now_(ranks), link_free_(ranks) {}

  void OnSend(const ReplayMessage& message) override {
    double& free = link_free_[message.from];
    free = std::max(free, now_[message.from]) + model_.alpha + Bytes(message.piece) * model_.beta;
    arrives_.push_back(free);
  }

  void OnApply(int rank, int /*step*/, const Op& op, const ReplayMessage* message) override {
    if (message != nullptr) now_[rank] = std::max(now_[rank], arrives_[message->id]);
    if (op.kind == OpKind::kReduce || op.kind == OpKind::kAddAside) {
      now_[rank] += Bytes(op.piece) * model_.gamma;
    }
  }

  double Last() const {
    double last = 0;
    for (const double t : now_) last = std::max(last, t);
    for (const double t : link_free_) last = std::max(last, t);
    return last;
  }

 private:
  static double Bytes(Piece piece) { return static_cast<double>(piece.count) * sizeof(float); }

  const CostModel model_;
  std::vector<double> now_, link_free_;  // by rank
  std::vector<double> arrives_;          // by message id
};

}  // namespace

Traffic AllReduceTraffic(AllReduceAlgorithm algorithm, int rank, int ranks, int64_t count) {
  const Blocks block(count, ranks);
  Traffic traffic;
  if (ranks == 1) return traffic;
  switch (algorithm) {
    case AllReduceAlgorithm::kRing:  // Two laps, each of all blocks but one.
      AddAllBlocks(ranks, count, 2, &traffic);
      AddPiece(block(rank + 1), -1, &traffic);
      AddPiece(block(rank + 2), -1, &traffic);
      break;
    case AllReduceAlgorithm::kDirect:  // Every other block once, its own to everybody.
      AddAllBlocks(ranks, count, 1, &traffic);
      AddPiece(block(rank), -1 + (ranks - 1), &traffic);
      break;
  }
  return traffic;
}

Traffic ScheduleTraffic(const Schedule& schedule) {
  Traffic traffic;
  for (const Step& step : schedule.steps) {
    for (const Op& op : step.ops) {
      if (op.kind == OpKind::kSend) AddPiece(op.piece, 1, &traffic);
    }
  }
  return traffic;
}

double AllReduceSeconds(AllReduceAlgorithm algorithm, int ranks, double bytes, const CostModel& m) {
  const double p = ranks;
  switch (algorithm) {
    case AllReduceAlgorithm::kRing:
    case AllReduceAlgorithm::kDirect:
      return 2 * (p - 1) * m.alpha + 2 * (p - 1) / p * bytes * m.beta +
             (p - 1) / p * bytes * m.gamma;
  }
  TANDEM_CHECK(false);
}

absl::StatusOr<double> ScheduleSeconds(absl::Span<const Schedule> schedules,
                                       const CostModel& model) {
  Clocks clocks(schedules.size(), model);
  TANDEM_RETURN_IF_ERROR(Replay(schedules, /*max_in_flight=*/1, clocks));
  return clocks.Last();
}

double AllReduceBusFactor(int ranks) { return 2.0 * (ranks - 1) / ranks; }

}  // namespace legacy
}  // namespace tandem
