// Direct: every rank sends its data straight to the ranks that need them. In a reduction each rank
// owns a block, collects it from all ranks and folds it in rank order.
//
//   all-reduce      2(p-1) messages, independent of one another within each half, 2(p-1)/p S sent:
//                   2(p-1) alpha (overlappable) + 2(p-1)/p S beta + (p-1)/p S gamma
//   reduce-scatter  p-1 messages: (p-1) alpha + (p-1)/p S (beta + gamma)
//   allgather       p-1 messages: (p-1) alpha + (p-1)/p S beta
//   reduce          each sends S to the root: (p-1) (alpha + S beta + S gamma) there
//   broadcast       the root sends S to each: (p-1) (alpha + S beta)
//   gather, scatter (p-1) alpha + (p-1)/p S beta at the root
//
// Order of additions: ((c0 + c1) + c2) + ..., rounded once. The order is the same for every
// element, wherever the element lies and however the vector is cut. Direct is the reproducible
// algorithm. Servers fold in the same order (optim/fold.h).
#include "collectives/schedules/build.h"

namespace tandem::collectives {
namespace {

// The order of peers is rank + 1, rank + 2, ..., so that the ranks do not all send to the same rank
// at the same time.
int After(const Schedule& s, int d) { return Mod(s.rank + d, s.ranks); }
int Before(const Schedule& s, int d) { return Mod(s.rank - d, s.ranks); }

// Sends piece_for(r) to every other rank r.
template <typename PieceFor>
void SendToOthers(const Schedule& s, const PieceFor& piece_for, Step* step) {
  for (int d = 1; d < s.ranks; ++d) step->Send(piece_for(After(s, d)), After(s, d));
}

// Receives block(r) from every other rank r.
template <typename BlockOf>
void ReceiveFromOthers(const Schedule& s, const BlockOf& block, Step* step) {
  for (int d = 1; d < s.ranks; ++d) step->Receive(block(Before(s, d)), Before(s, d));
}

// Puts the blocks of all ranks together; the own block comes from the input.
void CollectBlocks(const CollectiveShape& shape, Schedule* s, Step* step) {
  const auto block = [&](int rank) { return shape.BlockOf(rank); };
  if (!shape.in_place) step->Copy(block(s->rank), In(Piece{0, s->input}));
  ReceiveFromOthers(*s, block, step);
}

Schedule AllReduceOfPart(const CollectiveShape& shape) {
  const Blocks block(shape.count, shape.ranks);
  Schedule s = NewSchedule(Primitive::kAllReduce, shape);
  const int fold = s.AddFold(RankOrder(s.ranks));
  const Piece mine = block(s.rank);
  Step& scatter = s.AddStep();
  SendToOthers(
      s, [&](int rank) { return In(block(rank)); }, &scatter);
  scatter.Fold(mine, In(mine), fold);

  Step& gather = s.AddStep();
  SendToOthers(
      s, [&](int) { return mine; }, &gather);
  ReceiveFromOthers(s, block, &gather);
  return s;
}

Schedule ReduceOfPart(const CollectiveShape& shape) {
  Schedule s = NewSchedule(Primitive::kReduce, shape);
  const Piece all{0, shape.count};
  Step& step = s.AddStep();
  if (s.rank != shape.root) {
    step.Send(In(all), shape.root);
  } else {
    const int fold = s.AddFold(RankOrder(s.ranks));
    step.Fold(all, In(all), fold);
  }
  return s;
}

Schedule DirectAllReduce(const CollectiveShape& shape) {
  return InParts(Primitive::kAllReduce, shape, shape.segment * shape.ranks, AllReduceOfPart);
}

Schedule DirectReduce(const CollectiveShape& shape) {
  return InParts(Primitive::kReduce, shape, shape.segment, ReduceOfPart);
}

Schedule DirectReduceScatter(const CollectiveShape& shape) {
  return InBlockParts(Primitive::kReduceScatter, shape, [](const BlockPart& block, Schedule* s) {
    const int fold = s->AddFold(RankOrder(s->ranks));
    Step& step = s->AddStep();
    SendToOthers(
        *s, [&](int rank) { return In(block(rank)); }, &step);
    step.Fold(block.own, In(block(s->rank)), fold);
  });
}

// Messages are not cut here: no message waits for another one and nothing is added, so a pipeline
// would gain nothing.
Schedule DirectBroadcast(const CollectiveShape& shape) {
  Schedule s = NewSchedule(Primitive::kBroadcast, shape);
  const Piece all{0, shape.count};
  Step& step = s.AddStep();
  if (s.rank != shape.root) {
    step.Receive(all, shape.root);
    return s;
  }
  SendToOthers(
      s, [&](int) { return In(all); }, &step);
  if (!shape.in_place) step.Copy(all, In(all));
  return s;
}

Schedule DirectAllGather(const CollectiveShape& shape) {
  Schedule s = NewSchedule(Primitive::kAllGather, shape);
  Step& step = s.AddStep();
  SendToOthers(
      s,
      [&](int) {
        return In(Piece{0, s.input});
      },
      &step);
  CollectBlocks(shape, &s, &step);
  return s;
}

Schedule DirectGather(const CollectiveShape& shape) {
  Schedule s = NewSchedule(Primitive::kGather, shape);
  Step& step = s.AddStep();
  if (s.rank == shape.root) {
    CollectBlocks(shape, &s, &step);
  } else {
    step.Send(In(Piece{0, s.input}), shape.root);
  }
  return s;
}

Schedule DirectScatter(const CollectiveShape& shape) {
  Schedule s = NewSchedule(Primitive::kScatter, shape);
  const Piece own{0, s.output};
  Step& step = s.AddStep();
  if (s.rank != shape.root) {
    step.Receive(own, shape.root);
    return s;
  }
  SendToOthers(
      s, [&](int rank) { return In(shape.BlockOf(rank)); }, &step);
  if (!shape.in_place) step.Copy(own, In(shape.BlockOf(s.rank)));
  return s;
}

// ---- Traffic, by formula ----

// Every other rank's block once, and the own block to every other rank.
Traffic AllReduceTraffic(const CollectiveShape& shape) {
  const int p = shape.ranks;
  return OverParts(shape.count, p * shape.segment, [&](int64_t n) -> Traffic {
    const int64_t own = Blocks(n, p)(shape.rank).count;
    return {2 * (p - 1), n - own + (p - 1) * own};
  });
}

Traffic ReduceTraffic(const CollectiveShape& shape) {
  const int sends = shape.rank == shape.root ? 0 : 1;
  return OverParts(shape.count, shape.segment, [&](int64_t n) { return Times(sends, n); });
}

Traffic BroadcastTraffic(const CollectiveShape& shape) {
  return shape.rank == shape.root ? Times(shape.ranks - 1, shape.count) : Traffic{};
}

Traffic ReduceScatterTraffic(const CollectiveShape& shape) {
  return OverBlockParts(shape, {shape.ranks - 1, shape.Total() - shape.CountOf(shape.rank)});
}

Traffic AllGatherTraffic(const CollectiveShape& shape) {
  return Times(shape.ranks - 1, shape.CountOf(shape.rank));
}

Traffic GatherTraffic(const CollectiveShape& shape) {
  return shape.rank == shape.root ? Traffic{} : Traffic{1, shape.CountOf(shape.rank)};
}

Traffic ScatterTraffic(const CollectiveShape& shape) {
  if (shape.rank != shape.root) return {};
  return {shape.ranks - 1, shape.Total() - shape.CountOf(shape.rank)};
}

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kAllReduce, DirectAllReduce, AllReduceTraffic, kCuts},
    {Primitive::kReduce, DirectReduce, ReduceTraffic, kCuts},
    {Primitive::kBroadcast, DirectBroadcast, BroadcastTraffic, kWhole},
    {Primitive::kReduceScatter, DirectReduceScatter, ReduceScatterTraffic, kCuts},
    {Primitive::kAllGather, DirectAllGather, AllGatherTraffic, kWhole},
    {Primitive::kGather, DirectGather, GatherTraffic, kWhole},
    {Primitive::kScatter, DirectScatter, ScatterTraffic, kWhole},
};

}  // namespace

extern const AlgorithmRow kDirectRow = {Algorithm::kDirect, "direct", kRankOrder, kSupported};

}  // namespace tandem::collectives
