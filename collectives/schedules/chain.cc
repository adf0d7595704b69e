// Pipelined chain: the root and the ranks after it form a line, and segments travel along it one
// after another. k = ceil(S / segment) segments.
//
//   broadcast  each rank but the last sends k messages, S: (k + p - 2) (alpha + S/k beta)
//   reduce     each rank but the root sends S: (k + p - 2) (alpha + S/k (beta + gamma))
//
// A rank cannot send less than this, but the latency grows with p.
//
// Order of additions: from the end of the line to the root, one at a time: c[root - 1] first,
// c[root] last. The order is the same for every element, so cutting the vector changes nothing.
#include "collectives/schedules/build.h"

namespace tandem::collectives {

namespace {

Schedule ChainBroadcast(const CollectiveShape& shape) {
  return InParts(Primitive::kBroadcast, shape, shape.segment, [](const CollectiveShape& part) {
    Schedule s = NewSchedule(Primitive::kBroadcast, part);
    const int v = Mod(s.rank - part.root, s.ranks);
    const Piece all{0, part.count};
    for (int t = 0; t < s.ranks - 1; ++t) {
      Step& step = s.AddStep();
      if (t == v) step.Send(v == 0 ? In(all) : all, Mod(s.rank + 1, s.ranks));
      if (t == 0 && v == 0 && !part.in_place) step.Copy(all, In(all));
      if (t == v - 1) step.Receive(all, Mod(s.rank - 1, s.ranks));
    }
    return s;
  });
}

Schedule ChainReduce(const CollectiveShape& shape) {
  return InParts(Primitive::kReduce, shape, shape.segment, [](const CollectiveShape& part) {
    Schedule s = NewSchedule(Primitive::kReduce, part);
    const int last = s.ranks - 1, v = Mod(s.rank - part.root, s.ranks);
    const Piece all{0, part.count}, sum = v == 0 ? all : Scratch(all);
    if (v != 0 && v != last) s.scratch = part.count;
    for (int t = 0; t < last; ++t) {
      Step& step = s.AddStep();
      if (t == last - v && v > 0) step.Send(v == last ? In(all) : sum, Mod(s.rank - 1, s.ranks));
      if (t == last - v - 1) step.Reduce(sum, In(all), Mod(s.rank + 1, s.ranks));
    }
    return s;
  });
}

Traffic BroadcastTraffic(const CollectiveShape& shape) {
  const int sends = Mod(shape.rank - shape.root, shape.ranks) == shape.ranks - 1 ? 0 : 1;
  return OverParts(shape.count, shape.segment, [&](int64_t n) { return Times(sends, n); });
}

Traffic ReduceTraffic(const CollectiveShape& shape) {
  const int sends = shape.rank == shape.root ? 0 : 1;
  return OverParts(shape.count, shape.segment, [&](int64_t n) { return Times(sends, n); });
}

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kReduce, ChainReduce, ReduceTraffic, kCuts},
    {Primitive::kBroadcast, ChainBroadcast, BroadcastTraffic, kCuts},
};

}  // namespace

extern const AlgorithmRow kChainRow = {Algorithm::kChain, "chain", kOtherOrder, kSupported};

}  // namespace tandem::collectives
