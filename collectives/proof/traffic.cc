#include "collectives/proof/traffic.h"

#include <algorithm>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/check.h"
#include "collectives/schedules/build.h"
#include "collectives/schedules/butterfly.h"
#include "collectives/schedules/hierarchical.h"

namespace tandem {
namespace {

// The formulas are written from the definitions of the algorithms, not from their code: the checker
// compares the two.

Traffic Times(int64_t messages, int64_t elements_each) {
  return {messages, messages * elements_each};
}
Traffic operator+(Traffic a, Traffic b) {
  return {a.messages + b.messages, a.elements + b.elements};
}

// Sum over the parts of a vector: all but the last are as long.
Traffic OverParts(int64_t count, int64_t part, absl::FunctionRef<Traffic(int64_t n)> of_part) {
  if (part == 0 || count <= part) return of_part(count);
  const Traffic full = of_part(part);
  const int64_t times = count / part, rest = count % part;
  const Traffic all = {times * full.messages, times * full.elements};
  return rest == 0 ? all : all + of_part(rest);
}

// As many messages more for parts of blocks; the elements do not change.
Traffic OverBlockParts(const CollectiveShape& shape, Traffic whole) {
  int64_t longest = 0;
  for (int r = 0; r < shape.ranks; ++r) longest = std::max(longest, shape.CountOf(r));
  if (shape.segment > 0 && longest > shape.segment) {
    whole.messages *= (longest + shape.segment - 1) / shape.segment;
  }
  return whole;
}

// Elements of the blocks of ranks first, first + 1, ..., taken mod p.
int64_t BlockSum(const CollectiveShape& shape, int first, int blocks) {
  int64_t sum = 0;
  for (int i = 0; i < blocks; ++i) sum += shape.CountOf(Mod(first + i, shape.ranks));
  return sum;
}

// Binomial tree: node v has the children v + 1, v + 2, v + 4, ... below its lowest bit.
int TreeChildren(int v, int p) {
  if (v == 0) return CeilLog2(p);
  int zeros = 0;
  while (((v >> zeros) & 1) == 0) ++zeros;
  return std::min(zeros, CeilLog2(p - v));
}

// The blocks of `nodes` nodes from node v, counted from the root: two messages if they wrap around.
Traffic TreeEdge(const CollectiveShape& shape, int v, int nodes) {
  const int end = std::min(v + nodes, shape.ranks), wrap = shape.ranks - shape.root;
  return {v < wrap && wrap < end ? 2 : 1, BlockSum(shape, v + shape.root, end - v)};
}

// Nodes of the double tree, counted from 1: odd ones are leaves.
int DoubleTreeSends(int node, int p) {
  const int children = node % 2 == 1 ? 0 : node < p ? 2 : 1;
  return children + (node == 1 << FloorLog2(p) ? 0 : 1);
}

Traffic ButterflyTraffic(const CollectiveShape& shape, int64_t n, bool swing) {
  const ButterflyCore core(shape.ranks);
  if (core.Outside(shape.rank)) return {1, n};
  const int v = core.Number(shape.rank), rounds = core.rounds();
  const int own =
      swing ? SwingPositions(rounds)[static_cast<size_t>(v)] : HalvingPosition(v, rounds);
  const Blocks block(n, core.size());
  // Halving gives everything away but the own block; doubling sends what there is.
  Traffic traffic{2 * rounds, n - block(own).count};
  for (int length = 1; length < core.size(); length *= 2) {
    const int first = own / length * length;
    traffic.elements += block.Range(first, first + length).count;
  }
  return core.Stands(shape.rank) ? traffic + Traffic{1, n} : traffic;
}

Traffic HierarchicalTraffic(const CollectiveShape& shape, int64_t n) {
  const Hierarchy h(shape);
  Traffic traffic = AlgorithmTraffic(h.First().primitive, h.First().algorithm, h.FirstShape(n)) +
                    AlgorithmTraffic(h.Last().primitive, h.Last().algorithm, h.LastShape(n));
  if (!h.InLane()) return traffic;
  return traffic + AlgorithmTraffic(Primitive::kAllReduce, OuterOf(Primitive::kAllReduce, shape),
                                    h.OuterShape(n));
}

// The levels, and what those who are in no lane hand to their stand-ins, or get from them.
Traffic TwoLevelTraffic(Primitive primitive, const CollectiveShape& shape) {
  const TwoLevel levels(primitive, shape);
  const auto of = [](const Level& level) {
    return level.shape.ranks == 1
               ? Traffic{}
               : AlgorithmTraffic(level.phase.primitive, level.phase.algorithm, level.shape);
  };
  Traffic traffic = of(levels.Inner());
  if (levels.InOuter()) traffic = traffic + of(levels.Outer());
  if (primitive == Primitive::kAllGather && !levels.InOuter()) {
    traffic = traffic + Traffic{1, shape.CountOf(shape.rank)};
  }
  if (primitive == Primitive::kReduceScatter && levels.InOuter()) {
    for (const int other : levels.StandsFor()) {
      traffic = traffic + Traffic{1, shape.CountOf(other)};
    }
  }
  return traffic;
}

Traffic AllReduceTraffic(Algorithm algorithm, const CollectiveShape& shape) {
  const int r = shape.rank, p = shape.ranks;
  const auto over = [&](int64_t part, absl::FunctionRef<Traffic(int64_t n)> of_part) {
    return OverParts(shape.count, part, of_part);
  };
  const ButterflyCore core(p);
  switch (algorithm) {
    case Algorithm::kRing:  // Two laps, each of all blocks but one.
      return over(p * shape.segment, [&](int64_t n) -> Traffic {
        const Blocks block(n, p);
        return {2 * (p - 1), 2 * n - block(r + 1).count - block(r + 2).count};
      });
    case Algorithm::kDirect:  // Every other block once, its own to everybody.
      return over(p * shape.segment, [&](int64_t n) -> Traffic {
        const int64_t own = Blocks(n, p)(r).count;
        return {2 * (p - 1), n - own + (p - 1) * own};
      });
    case Algorithm::kOneShot:
      return over(shape.segment, [&](int64_t n) { return Times(p - 1, n); });
    case Algorithm::kRecursiveDoubling:
      return over(shape.segment, [&](int64_t n) {
        if (core.Outside(r)) return Times(1, n);
        return Times(core.rounds() + (core.Stands(r) ? 1 : 0), n);
      });
    case Algorithm::kHalvingDoubling:
    case Algorithm::kSwing:
      return over(ButterflyPart(shape), [&](int64_t n) {
        return ButterflyTraffic(shape, n, algorithm == Algorithm::kSwing);
      });
    case Algorithm::kTree:
      return over(shape.segment,
                  [&](int64_t n) { return Times((r == 0 ? 0 : 1) + TreeChildren(r, p), n); });
    case Algorithm::kDoubleTree:
      return over(2 * shape.segment, [&](int64_t n) {
        const Blocks half(n, 2);
        const int second = p % 2 == 0 ? p - r : (r + 1) % p + 1;
        return Times(DoubleTreeSends(r + 1, p), half(0).count) +
               Times(DoubleTreeSends(second, p), half(1).count);
      });
    case Algorithm::kHierarchical:
      return over(Hierarchy(shape).Part(),
                  [&](int64_t n) { return HierarchicalTraffic(shape, n); });
    default:
      TANDEM_CHECK(false);
  }
}

Traffic RootedTraffic(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape) {
  if (algorithm == Algorithm::kHierarchical) {
    return OverParts(shape.count, shape.segment, [&](int64_t n) {
      CollectiveShape part = shape;
      part.count = n;
      part.segment = 0;
      return TwoLevelTraffic(primitive, part);
    });
  }
  const int p = shape.ranks, v = Mod(shape.rank - shape.root, p);
  int sends = v == 0 ? 0 : 1;  // Reduce: to the parent.
  if (primitive == Primitive::kBroadcast) {
    if (algorithm == Algorithm::kDirect) return v == 0 ? Times(p - 1, shape.count) : Traffic{};
    sends = algorithm == Algorithm::kTree ? TreeChildren(v, p) : v == p - 1 ? 0 : 1;
  }
  return OverParts(shape.count, shape.segment, [&](int64_t n) { return Times(sends, n); });
}

Traffic ReduceScatterTraffic(Algorithm algorithm, const CollectiveShape& shape) {
  const int r = shape.rank, p = shape.ranks;
  const int64_t total = shape.Total();
  if (algorithm == Algorithm::kHierarchical) {
    return TwoLevelTraffic(Primitive::kReduceScatter, shape);
  }
  if (algorithm != Algorithm::kHalvingDoubling) {
    return OverBlockParts(shape, {p - 1, total - shape.CountOf(r)});
  }
  const ButterflyCore core(p);
  if (core.Outside(r)) return {1, total};
  if (!core.Stands(r)) return {core.rounds(), total - shape.CountOf(r)};
  return {core.rounds() + 1, total - shape.CountOf(r)};  // What it keeps, and hands out at the end.
}

Traffic AllGatherTraffic(Algorithm algorithm, const CollectiveShape& shape) {
  const int r = shape.rank, p = shape.ranks;
  const int64_t own = shape.CountOf(r);
  if (algorithm == Algorithm::kHierarchical) {
    return TwoLevelTraffic(Primitive::kAllGather, shape);
  }
  if (algorithm == Algorithm::kRing) {
    return OverBlockParts(shape, {p - 1, shape.Total() - shape.CountOf(Mod(r + 1, p))});
  }
  if (algorithm == Algorithm::kDirect) return Times(p - 1, own);
  Traffic traffic;
  if (algorithm == Algorithm::kBruck) {
    for (int have = 1; have < p; have *= 2) {
      traffic = traffic + Traffic{1, BlockSum(shape, r, std::min(have, p - have))};
    }
    return traffic;
  }
  const ButterflyCore core(p);
  if (core.Outside(r)) return {1, own};
  for (int length = 1; length < core.size(); length *= 2) {
    const int v = core.Number(r) / length * length, end = v + length;
    const int last = end == core.size() ? p : core.Rank(end);
    traffic = traffic + Traffic{1, BlockSum(shape, core.Rank(v), last - core.Rank(v))};
  }
  return core.Stands(r) ? traffic + Traffic{1, shape.Total()} : traffic;
}

Traffic GatherTraffic(Algorithm algorithm, const CollectiveShape& shape) {
  const int v = Mod(shape.rank - shape.root, shape.ranks);
  if (v == 0) return {};
  if (algorithm == Algorithm::kDirect) return {1, shape.CountOf(shape.rank)};
  return TreeEdge(shape, v, v & -v);
}

Traffic ScatterTraffic(Algorithm algorithm, const CollectiveShape& shape) {
  const int p = shape.ranks, v = Mod(shape.rank - shape.root, p);
  if (algorithm == Algorithm::kDirect) {
    return v == 0 ? Traffic{p - 1, shape.Total() - shape.CountOf(shape.rank)} : Traffic{};
  }
  Traffic traffic;
  for (int i = 0; i < TreeChildren(v, p); ++i) {
    traffic = traffic + TreeEdge(shape, v + (1 << i), 1 << i);
  }
  return traffic;
}

Traffic AllToAllTraffic(Algorithm algorithm, const CollectiveShape& shape) {
  const int p = shape.ranks;
  if (algorithm == Algorithm::kPairwise) {
    return {p - 1, InputElements(Primitive::kAllToAll, shape) - SendBlock(shape, shape.rank).count};
  }
  Traffic traffic;
  for (int d = 1; d < p; ++d) {  // Each block moves once for every bit of its distance.
    traffic.elements += __builtin_popcount(static_cast<unsigned>(d)) * shape.count;
  }
  traffic.messages = CeilLog2(p);
  return traffic;
}

}  // namespace

Traffic AlgorithmTraffic(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape) {
  if (shape.ranks == 1) return {};
  switch (primitive) {
    case Primitive::kAllReduce:
      return AllReduceTraffic(algorithm, shape);
    case Primitive::kReduce:
    case Primitive::kBroadcast:
      return RootedTraffic(primitive, algorithm, shape);
    case Primitive::kReduceScatter:
      return ReduceScatterTraffic(algorithm, shape);
    case Primitive::kAllGather:
      return AllGatherTraffic(algorithm, shape);
    case Primitive::kGather:
      return GatherTraffic(algorithm, shape);
    case Primitive::kScatter:
      return ScatterTraffic(algorithm, shape);
    case Primitive::kAllToAll:
      return AllToAllTraffic(algorithm, shape);
    case Primitive::kBarrier:
      return {CeilLog2(shape.ranks), 0};
    case Primitive::kPointToPoint:
      break;
  }
  TANDEM_CHECK(false);
}

Traffic ScheduleTraffic(const Schedule& schedule) {
  Traffic traffic;
  for (const Step& step : schedule.steps) {
    for (const Op& op : step.ops) {
      if (op.kind == OpKind::kSend) traffic = traffic + Traffic{1, op.piece.count};
    }
  }
  return traffic;
}

double BusFactor(Primitive primitive, int ranks) {
  const double share = static_cast<double>(ranks - 1) / ranks;
  switch (primitive) {
    case Primitive::kAllReduce:
      return 2 * share;
    case Primitive::kReduceScatter:
    case Primitive::kAllGather:
    case Primitive::kGather:
    case Primitive::kScatter:
    case Primitive::kAllToAll:
      return share;
    case Primitive::kReduce:
    case Primitive::kBroadcast:
    case Primitive::kPointToPoint:
      return ranks > 1 ? 1 : 0;
    case Primitive::kBarrier:
      return 0;
  }
  return 0;
}

}  // namespace tandem
