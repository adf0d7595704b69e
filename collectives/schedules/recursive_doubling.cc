// Recursive doubling (Thakur, Rabenseifner & Gropp 2005), for any p: butterfly.h describes the core
// and how other ranks fold in and out. L = log2 of the size of the core.
//
//   all-reduce  L messages of S: L (alpha + S beta + S gamma)
//   allgather   L messages: L alpha + (p-1)/p S beta
//
// If p is not a power of two, folding in and out adds 2 (alpha + S beta) + S gamma to the
// all-reduce, and 2 alpha + S beta to the allgather.
//
// Order of additions: (c0 + c1) + (c2 + c3) ..., the same for every element wherever it lies, so
// cutting the vector changes nothing. But the order differs from rank order. Both partners add the
// same two numbers, so all ranks have the same bits.
//
// From the second round on (in place: from the first) a rank adds into the memory that it is
// sending. The addition waits until the message has left, which happens if a link can hold one
// message. Therefore the vector is cut into messages of shape.segment elements. Allgather does not
// cut its messages.
#include "collectives/schedules/build.h"
#include "collectives/schedules/butterfly.h"

namespace tandem::collectives {
namespace {

Schedule AllReduceOfPart(const CollectiveShape& part) {
  FoldedAllReduce folded(part);
  const ButterflyCore& core = folded.core();
  const Piece all{0, part.count};
  for (int k = 0; k < core.rounds(); ++k) {
    Step& step = folded.AddStep();
    if (folded.outside()) continue;
    const Piece sum = k == 0 ? folded.Begun(all) : all;
    const int peer = core.Rank(folded.number() ^ (1 << k));
    step.Send(sum, peer).Reduce(all, sum, peer);
  }
  return folded.Finish();
}

Schedule RecursiveDoublingAllReduce(const CollectiveShape& shape) {
  return InParts(Primitive::kAllReduce, shape, shape.segment, AllReduceOfPart);
}

Schedule RecursiveDoublingAllGather(const CollectiveShape& shape) {
  const ButterflyCore core(shape.ranks);
  const int rank = shape.rank, v = core.Number(rank);
  const bool outside = core.Outside(rank), stands = core.Stands(rank);
  Schedule s = NewSchedule(Primitive::kAllGather, shape);
  const Piece own{0, s.input}, all{0, s.output}, block = shape.BlockOf(rank);
  // Where the blocks of core rank `number` begin.
  const auto begin = [&](int number) {
    return number == core.size() ? s.output : shape.BlockOf(core.Rank(number)).begin;
  };
  if (core.extra() > 0) {
    Step& fold_in = s.AddStep();
    if (outside) fold_in.Send(In(own), rank - 1);
    if (!outside && !shape.in_place) fold_in.Copy(block, In(own));
    if (stands) fold_in.Receive(shape.BlockOf(rank + 1), rank + 1);
  }
  for (int k = 0; k < core.rounds(); ++k) {
    Step& step = s.AddStep();
    if (outside) continue;
    const int length = 1 << k, mine = v / length * length, other = mine ^ length;
    const int peer = core.Rank(v ^ length);
    const Piece have{begin(mine), begin(mine + length) - begin(mine)};
    const Piece want{begin(other), begin(other + length) - begin(other)};
    const bool first = k == 0 && core.extra() == 0;
    step.Send(first ? In(own) : have, peer);
    if (first && !shape.in_place) step.Copy(block, In(own));
    step.Receive(want, peer);
  }
  if (core.extra() > 0) {
    Step& fold_out = s.AddStep();
    if (stands) fold_out.Send(all, rank + 1);
    if (outside) fold_out.Receive(all, rank - 1);
  }
  return s;
}

// ---- Traffic, by formula ----

Traffic AllReduceTraffic(const CollectiveShape& shape) {
  const ButterflyCore core(shape.ranks);
  const bool outside = core.Outside(shape.rank), stands = core.Stands(shape.rank);
  const int sends = outside ? 1 : core.rounds() + (stands ? 1 : 0);
  return OverParts(shape.count, shape.segment, [&](int64_t n) { return Times(sends, n); });
}

Traffic AllGatherTraffic(const CollectiveShape& shape) {
  const int r = shape.rank, p = shape.ranks;
  const ButterflyCore core(p);
  if (core.Outside(r)) return {1, shape.CountOf(r)};
  Traffic traffic;
  for (int length = 1; length < core.size(); length *= 2) {
    const int v = core.Number(r) / length * length, end = v + length;
    const int last = end == core.size() ? p : core.Rank(end);
    traffic = traffic + Traffic{1, BlockSum(shape, core.Rank(v), last - core.Rank(v))};
  }
  return core.Stands(r) ? traffic + Traffic{1, shape.Total()} : traffic;
}

int ChannelOf(const CollectiveShape&) { return 1; }

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kAllReduce, RecursiveDoublingAllReduce, AllReduceTraffic, kCuts, ChannelOf},
    {Primitive::kAllGather, RecursiveDoublingAllGather, AllGatherTraffic, kWhole},
};

}  // namespace

extern const AlgorithmRow kRecursiveDoublingRow = {Algorithm::kRecursiveDoubling,
                                                   "recursive_doubling", kOtherOrder, kSupported};

}  // namespace tandem::collectives
