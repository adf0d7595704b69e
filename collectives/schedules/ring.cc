// Ring (Patarasuk & Yuan 2009): every rank talks to its two neighbours only.
//
//   all-reduce      2(p-1) messages, 2(p-1)/p S sent:
//                   2(p-1) alpha + 2(p-1)/p S beta + (p-1)/p S gamma
//   reduce-scatter  p-1 messages: (p-1) alpha + (p-1)/p S (beta + gamma)
//   allgather       p-1 messages: (p-1) alpha + (p-1)/p S beta
//
// No algorithm sends less, but the latency grows with p. If the vector is cut into segments, as
// many segments travel at the same time as there are steps, and additions overlap with sends.
//
// Order of additions: the sum of block b starts at the rank that sends it first. So the order
// depends on the place of an element, and cutting the vector elsewhere gives other bits. In that
// sense ring is not reproducible; but the same call gives the same bits, and all ranks get the same
// bits.
#include "collectives/schedules/build.h"

namespace tandem::collectives {
namespace {

// Block b starts at rank b and moves right, and each hop adds one contribution. The finished sum
// then makes one more lap. Nothing is copied: the first message is the input itself, and each sum
// arises at its place in the output.
Schedule RingOfPart(const CollectiveShape& shape) {
  const Blocks block(shape.count, shape.ranks);
  const int rank = shape.rank, p = shape.ranks, left = Mod(rank - 1, p), right = Mod(rank + 1, p);
  Schedule s = NewSchedule(Primitive::kAllReduce, shape);
  for (int t = 0; t < p - 1; ++t) {  // Reduce-scatter.
    const Piece mine = block(rank - t), next = block(rank - t - 1);
    s.AddStep().Send(t == 0 ? In(mine) : mine, right).Reduce(next, In(next), left);
  }
  for (int t = 0; t < p - 1; ++t) {  // Allgather.
    s.AddStep().Send(block(rank + 1 - t), right).Receive(block(rank - t), left);
  }
  return s;
}

// Block b starts at rank b + 1 and ends at rank b. Sums in transit alternate between two slots of
// scratch, so that one slot is filled while the other is sent.
void ReduceScatterOfPart(const BlockPart& block, Schedule* s) {
  const int rank = s->rank, p = s->ranks, left = Mod(rank - 1, p), right = Mod(rank + 1, p);
  const int64_t slot = block.Longest();
  s->scratch = p > 2 ? 2 * slot : 0;
  const auto on_its_way = [&](int t) {  // received in step t
    return Piece{t % 2 * slot, block(rank - 2 - t).count, Region::kScratch};
  };
  for (int t = 0; t < p - 1; ++t) {
    const Piece next = In(block(rank - 2 - t));
    s->AddStep()
        .Send(t == 0 ? In(block(rank - 1)) : on_its_way(t - 1), right)
        .Reduce(t == p - 2 ? Out(block.own) : on_its_way(t), next, left);
  }
}

Schedule RingAllReduce(const CollectiveShape& shape) {
  return InParts(Primitive::kAllReduce, shape, shape.segment * shape.ranks, RingOfPart);
}

Schedule RingReduceScatter(const CollectiveShape& shape) {
  return InBlockParts(Primitive::kReduceScatter, shape, ReduceScatterOfPart);
}

Schedule RingAllGather(const CollectiveShape& shape) {
  return InBlockParts(Primitive::kAllGather, shape, [&](const BlockPart& block, Schedule* s) {
    const int rank = s->rank, p = s->ranks, left = Mod(rank - 1, p), right = Mod(rank + 1, p);
    for (int t = 0; t < p - 1; ++t) {
      Step& step = s->AddStep();
      step.Send(t == 0 ? In(block.own) : block(rank - t), right);
      if (t == 0 && !shape.in_place) step.Copy(block(rank), In(block.own));
      step.Receive(block(rank - 1 - t), left);
    }
  });
}

// ---- Traffic, by formula ----

// Two laps; each lap sends all blocks but one.
Traffic AllReduceTraffic(const CollectiveShape& shape) {
  const int r = shape.rank, p = shape.ranks;
  return OverParts(shape.count, p * shape.segment, [&](int64_t n) -> Traffic {
    const Blocks block(n, p);
    return {2 * (p - 1), 2 * n - block(r + 1).count - block(r + 2).count};
  });
}

Traffic ReduceScatterTraffic(const CollectiveShape& shape) {
  return OverBlockParts(shape, {shape.ranks - 1, shape.Total() - shape.CountOf(shape.rank)});
}

Traffic AllGatherTraffic(const CollectiveShape& shape) {
  const int right = Mod(shape.rank + 1, shape.ranks);
  return OverBlockParts(shape, {shape.ranks - 1, shape.Total() - shape.CountOf(right)});
}

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kAllReduce, RingAllReduce, AllReduceTraffic, kCuts},
    {Primitive::kReduceScatter, RingReduceScatter, ReduceScatterTraffic, kCuts},
    {Primitive::kAllGather, RingAllGather, AllGatherTraffic, kCuts},
};

}  // namespace

extern const AlgorithmRow kRingRow = {Algorithm::kRing, "ring", kOtherOrder, kSupported};

}  // namespace tandem::collectives
