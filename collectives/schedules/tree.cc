// Binomial tree (the classical one; its cost is given by Thakur, Rabenseifner & Gropp 2005). Ranks
// are counted from the root: v = rank - root mod p. The parent of v is v without its lowest bit.
//
//   broadcast       L = ceil(log2 p) rounds: L (alpha + S beta)
//   reduce          L (alpha + S beta + S gamma)
//   all-reduce      a reduce to rank 0, then a broadcast
//   gather, scatter L alpha + (p-1)/p S beta
//
// If the vector is cut into segments, broadcast and reduce forward one segment while the next
// arrives; the root still sends up to L times S. Gather and scatter do not cut their messages.
//
// Order of additions: a node adds its children in the order 1, 2, 4, ... The order is the same for
// every element, so cutting the vector changes nothing. But the order differs from rank order.
#include <algorithm>
#include <vector>

#include "collectives/schedules/build.h"

namespace tandem::collectives {
namespace {

class BinomialTree {
 public:
  explicit BinomialTree(const CollectiveShape& shape)
      : v_(Mod(shape.rank - shape.root, shape.ranks)), root_(shape.root), p_(shape.ranks) {}
  int v() const { return v_; }
  int rounds() const { return CeilLog2(p_); }
  int Rank(int v) const { return Mod(v + root_, p_); }
  // The four functions below are for the round whose edges have length `bit`.
  bool HasParent(int bit) const { return v_ % (2 * bit) == bit; }
  bool HasChild(int bit) const { return v_ % (2 * bit) == 0 && v_ + bit < p_; }
  int Parent(int bit) const { return Rank(v_ - bit); }
  int Child(int bit) const { return Rank(v_ + bit); }
  // The nodes of the subtree of v are [v, end), if the edges to v's children are shorter than
  // `bit`.
  int End(int v, int bit) const { return std::min(v + bit, p_); }

 private:
  const int v_, root_, p_;
};

// Adds the steps of a reduce. Leaves send their input; other nodes add in `sums`.
void AddReduce(const BinomialTree& tree, Piece sums, Schedule* s) {
  bool leaf = true;
  for (int k = 0; k < tree.rounds(); ++k) {
    const int bit = 1 << k;
    Step& step = s->AddStep();
    if (tree.HasParent(bit)) step.Send(leaf ? In(sums) : sums, tree.Parent(bit));
    if (tree.HasChild(bit)) {
      step.Reduce(sums, leaf ? In(sums) : sums, tree.Child(bit));
      leaf = false;
    }
  }
}

// Adds the steps of a broadcast. The root sends `from`.
void AddBroadcast(const BinomialTree& tree, Piece from, Schedule* s) {
  const Piece all = Out(from);
  for (int k = tree.rounds() - 1; k >= 0; --k) {
    const int bit = 1 << k;
    Step& step = s->AddStep();
    if (tree.HasChild(bit)) step.Send(tree.v() == 0 ? from : all, tree.Child(bit));
    if (tree.HasParent(bit)) step.Receive(all, tree.Parent(bit));
  }
}

// The places of the blocks of nodes [first, last), counted from the root. In the vector of all
// blocks they wrap around at most once. Scratch memory begins with the block of node `base`.
class TreeBlocks {
 public:
  TreeBlocks(const CollectiveShape& shape, const BinomialTree& tree) : shape_(shape), tree_(tree) {
    at_.push_back(0);
    for (int v = 0; v < shape.ranks; ++v) at_.push_back(at_.back() + shape.CountOf(tree.Rank(v)));
  }
  // Cuts at the wrap-around. Sender and receiver cut alike, whatever memory they use, so their
  // messages match.
  std::vector<Piece> Pieces(int first, int last, int base) const {
    const int wrap = shape_.ranks - shape_.root;
    if (first < wrap && wrap < last) return {One(first, wrap, base), One(wrap, last, base)};
    return {One(first, last, base)};
  }

 private:
  Piece One(int first, int last, int base) const {
    const int64_t count = At(last) - At(first);
    if (tree_.v() == 0) return {shape_.BlockOf(tree_.Rank(first)).begin, count};
    return {At(first) - At(base), count, Region::kScratch};
  }
  int64_t At(int v) const { return at_[static_cast<size_t>(v)]; }

  const CollectiveShape& shape_;
  const BinomialTree& tree_;
  std::vector<int64_t> at_;  // by node
};

Schedule TreeReduce(const CollectiveShape& shape) {
  return InParts(Primitive::kReduce, shape, shape.segment, [](const CollectiveShape& part) {
    Schedule s = NewSchedule(Primitive::kReduce, part);
    const BinomialTree tree(part);
    const bool inner = tree.v() != 0 && tree.HasChild(1);
    if (inner) s.scratch = part.count;
    AddReduce(tree, {0, part.count, inner ? Region::kScratch : Region::kOutput}, &s);
    return s;
  });
}

Schedule TreeBroadcast(const CollectiveShape& shape) {
  return InParts(Primitive::kBroadcast, shape, shape.segment, [](const CollectiveShape& part) {
    Schedule s = NewSchedule(Primitive::kBroadcast, part);
    const BinomialTree tree(part);
    const Piece all{0, part.count};
    AddBroadcast(tree, In(all), &s);
    if (tree.v() == 0 && !part.in_place) s.steps.back().Copy(all, In(all));
    return s;
  });
}

Schedule TreeAllReduce(const CollectiveShape& shape) {
  return InParts(Primitive::kAllReduce, shape, shape.segment, [](const CollectiveShape& part) {
    CollectiveShape from_zero = part;
    from_zero.root = 0;
    const BinomialTree tree(from_zero);
    Schedule s = NewSchedule(Primitive::kAllReduce, part);
    AddReduce(tree, {0, part.count}, &s);
    AddBroadcast(tree, {0, part.count}, &s);
    return s;
  });
}

// Moves blocks along the edges of the tree. A gather moves them up to the root and begins with the
// shortest edges. A scatter moves them down from the root and begins with the longest edges.
Schedule MoveBlocks(Primitive primitive, const CollectiveShape& shape) {
  const bool up = primitive == Primitive::kGather;
  Schedule s = NewSchedule(primitive, shape);
  const BinomialTree tree(shape);
  const TreeBlocks blocks(shape, tree);
  const int v = tree.v();
  const bool root = v == 0, leaf = !tree.HasChild(1);
  const auto at_root = [&](Piece piece) { return root && !up ? In(piece) : piece; };
  const Piece own = up ? In(Piece{0, s.input}) : Piece{0, s.output};
  // Copies the own block from or to the blocks that the node holds for others. A leaf holds none.
  const auto copy_own = [&](Step* step) {
    if (root ? shape.in_place : leaf) return;
    const Piece held = root ? at_root(shape.BlockOf(s.rank)) : Scratch(own);
    step->Copy(up ? held : own, up ? own : held);
  };
  for (int k = 0; k < tree.rounds(); ++k) {
    const int bit = 1 << (up ? k : tree.rounds() - 1 - k);
    Step& step = s.AddStep();
    if (tree.HasParent(bit)) {
      for (const Piece& piece : blocks.Pieces(v, tree.End(v, bit), v)) {
        const Piece held = leaf ? own : piece;
        up ? step.Send(held, tree.Parent(bit)) : step.Receive(held, tree.Parent(bit));
        if (!leaf) s.scratch += piece.count;
      }
    }
    // A gather copies the own block in the first step, before a later step sends it on. A scatter
    // copies it at the end, when it has arrived.
    if (up && k == 0) copy_own(&step);
    if (!tree.HasChild(bit)) continue;
    for (const Piece& piece : blocks.Pieces(v + bit, tree.End(v + bit, bit), v)) {
      up ? step.Receive(piece, tree.Child(bit)) : step.Send(at_root(piece), tree.Child(bit));
    }
  }
  if (!up) copy_own(&s.steps.back());
  return s;
}

Schedule TreeGather(const CollectiveShape& shape) { return MoveBlocks(Primitive::kGather, shape); }

Schedule TreeScatter(const CollectiveShape& shape) {
  return MoveBlocks(Primitive::kScatter, shape);
}

// ---- Traffic, by formula ----

// The children of node v are v + 1, v + 2, v + 4, ... below its lowest bit.
int Children(int v, int p) {
  if (v == 0) return CeilLog2(p);
  int zeros = 0;
  while (((v >> zeros) & 1) == 0) ++zeros;
  return std::min(zeros, CeilLog2(p - v));
}

// One edge carries the blocks of `nodes` nodes from node v on, counted from the root: two messages
// if they wrap around.
Traffic Edge(const CollectiveShape& shape, int v, int nodes) {
  const int end = std::min(v + nodes, shape.ranks), wrap = shape.ranks - shape.root;
  return {v < wrap && wrap < end ? 2 : 1, BlockSum(shape, v + shape.root, end - v)};
}

Traffic AllReduceTraffic(const CollectiveShape& shape) {
  const int r = shape.rank, sends = (r == 0 ? 0 : 1) + Children(r, shape.ranks);
  return OverParts(shape.count, shape.segment, [&](int64_t n) { return Times(sends, n); });
}

Traffic ReduceTraffic(const CollectiveShape& shape) {
  const int sends = shape.rank == shape.root ? 0 : 1;
  return OverParts(shape.count, shape.segment, [&](int64_t n) { return Times(sends, n); });
}

Traffic BroadcastTraffic(const CollectiveShape& shape) {
  const int sends = Children(Mod(shape.rank - shape.root, shape.ranks), shape.ranks);
  return OverParts(shape.count, shape.segment, [&](int64_t n) { return Times(sends, n); });
}

Traffic GatherTraffic(const CollectiveShape& shape) {
  const int v = Mod(shape.rank - shape.root, shape.ranks);
  return v == 0 ? Traffic{} : Edge(shape, v, v & -v);
}

Traffic ScatterTraffic(const CollectiveShape& shape) {
  const int v = Mod(shape.rank - shape.root, shape.ranks);
  Traffic traffic;
  for (int i = 0; i < Children(v, shape.ranks); ++i) {
    traffic = traffic + Edge(shape, v + (1 << i), 1 << i);
  }
  return traffic;
}

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kAllReduce, TreeAllReduce, AllReduceTraffic, kCuts},
    {Primitive::kReduce, TreeReduce, ReduceTraffic, kCuts},
    {Primitive::kBroadcast, TreeBroadcast, BroadcastTraffic, kCuts},
    {Primitive::kGather, TreeGather, GatherTraffic, kWhole},
    {Primitive::kScatter, TreeScatter, ScatterTraffic, kWhole},
};

}  // namespace

extern const AlgorithmRow kTreeRow = {Algorithm::kTree, "tree", kOtherOrder, kSupported};

}  // namespace tandem::collectives
