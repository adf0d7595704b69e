// One-shot all-reduce: all ranks send their whole vector to all others, and each rank folds all
// vectors.
//
// p-1 messages of S, all at once: (p-1) alpha (overlappable: one latency) + (p-1) S (beta + gamma).
// For vectors so small that only the latency counts.
//
// Order of additions: rank order, rounded once, for every element: the same bits as direct.
//
// In place, the fold overwrites the memory that is being sent, so it waits until the messages have
// left, which happens if a link can hold one message. Therefore the vector is cut into messages of
// shape.segment elements.
#include "collectives/schedules/build.h"

namespace tandem::collectives {

namespace {

Schedule OneShotAllReduce(const CollectiveShape& shape) {
  const auto one = [](const CollectiveShape& part) {
    Schedule s = NewSchedule(Primitive::kAllReduce, part);
    const Piece all{0, part.count};
    const int fold = s.AddFold(RankOrder(s.ranks));
    Step& step = s.AddStep();
    for (int d = 1; d < s.ranks; ++d) step.Send(In(all), Mod(s.rank + d, s.ranks));
    step.Fold(all, In(all), fold);
    return s;
  };
  return InParts(Primitive::kAllReduce, shape, shape.segment, one);
}

Traffic AllReduceTraffic(const CollectiveShape& shape) {
  return OverParts(shape.count, shape.segment,
                   [&](int64_t n) { return Times(shape.ranks - 1, n); });
}

int ChannelOf(const CollectiveShape& shape) { return shape.in_place ? 1 : 0; }

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kAllReduce, OneShotAllReduce, AllReduceTraffic, kCuts, ChannelOf},
};

}  // namespace

extern const AlgorithmRow kOneShotRow = {Algorithm::kOneShot, "one_shot", kRankOrder, kSupported};

}  // namespace tandem::collectives
