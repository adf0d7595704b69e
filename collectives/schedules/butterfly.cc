#include "collectives/schedules/butterfly.h"

#include <algorithm>
#include <utility>

#include "collectives/schedules/build.h"

namespace tandem::collectives {

ButterflyCore::ButterflyCore(int ranks) : ranks_(ranks), rounds_(FloorLog2(ranks)) {}

// ---- FoldedAllReduce ----

FoldedAllReduce::FoldedAllReduce(const CollectiveShape& part)
    : core_(part.ranks),
      rank_(part.rank),
      all_{0, part.count},
      schedule_(NewSchedule(Primitive::kAllReduce, part)) {
  if (core_.extra() == 0) return;
  Step& fold_in = schedule_.AddStep();
  if (outside()) fold_in.Send(In(all_), rank_ - 1);
  if (core_.Stands(rank_)) fold_in.Reduce(all_, In(all_), rank_ + 1);
}

Schedule FoldedAllReduce::Finish() {
  if (core_.extra() > 0) {
    Step& fold_out = schedule_.AddStep();
    if (core_.Stands(rank_)) fold_out.Send(all_, rank_ + 1);
    if (outside()) fold_out.Receive(all_, rank_ - 1);
  }
  return std::move(schedule_);
}

// ---- Halving and doubling ----

Schedule ButterflyAllReduce(const CollectiveShape& part,
                            absl::FunctionRef<int(int v, int k)> partner,
                            absl::FunctionRef<int(int v)> position) {
  FoldedAllReduce folded(part);
  const ButterflyCore& core = folded.core();
  const Blocks block(part.count, core.size());
  const int v = folded.number(), own = folded.outside() ? 0 : position(v);
  // Returns one of the 2^k ranges of round k: the range that has block `own`, or its neighbour.
  const auto range = [&](int k, bool beside) {
    const int64_t length = core.size() >> k, index = (own / length) ^ (beside ? 1 : 0);
    return block.Range(index * length, (index + 1) * length);
  };
  for (int k = 0; k < core.rounds(); ++k) {  // Reduce-scatter.
    Step& step = folded.AddStep();
    if (folded.outside()) continue;
    const Piece give = range(k + 1, true), keep = range(k + 1, false);
    const int peer = core.Rank(partner(v, k));
    step.Send(k == 0 ? folded.Begun(give) : give, peer)
        .Reduce(keep, k == 0 ? folded.Begun(keep) : keep, peer);
  }
  for (int k = core.rounds() - 1; k >= 0; --k) {  // Allgather.
    Step& step = folded.AddStep();
    if (folded.outside()) continue;
    const int peer = core.Rank(partner(v, k));
    step.Send(range(k + 1, false), peer).Receive(range(k + 1, true), peer);
  }
  return folded.Finish();
}

int64_t ButterflyPart(const CollectiveShape& shape) {
  // The first message is half of the blocks of a part. If ranks fold in, their message is the whole
  // part.
  const ButterflyCore core(shape.ranks);
  if (core.extra() > 0) return shape.segment;
  return std::max(shape.segment, 2 * shape.segment / core.size() * core.size());
}

Traffic ButterflyTraffic(const CollectiveShape& shape, int position) {
  const ButterflyCore core(shape.ranks);
  return OverParts(shape.count, ButterflyPart(shape), [&](int64_t n) {
    if (core.Outside(shape.rank)) return Traffic{1, n};
    const Blocks block(n, core.size());
    // Halving sends everything but the own block; doubling sends all that the rank has so far.
    Traffic traffic{2 * core.rounds(), n - block(position).count};
    for (int length = 1; length < core.size(); length *= 2) {
      const int first = position / length * length;
      traffic.elements += block.Range(first, first + length).count;
    }
    return core.Stands(shape.rank) ? traffic + Traffic{1, n} : traffic;
  });
}

}  // namespace tandem::collectives
