// Double binary tree all-reduce (Sanders, Speck & Traeff 2009): two binary trees over the ranks.
// Each tree reduces one half of the vector to its root and broadcasts the sum. An inner node of one
// tree is a leaf of the other, so different ranks do the work of the two halves.
//
// A rank sends at most 2 S and gets as much. With k parts of the vector, each of two halves of at
// most a segment, and D = floor(log2 p): about (k + D - 1) (4 alpha + 2 S/k beta + S/k gamma).
//
// Order of additions: own, left child, right child, up the tree. The order differs between the two
// halves, so the result changes if the vector is cut elsewhere: not reproducible.
#include <array>

#include "collectives/schedules/build.h"

namespace tandem::collectives {
namespace {

struct Node {
  int parent = -1;
  int left = -1, right = -1;  // children; -1: none
  int depth = 0;              // 0: the root
};

// The root of the binary tree over the places [first, last), in order. The left side of a node is a
// full tree, as large as fits. Even places are leaves.
int RootOf(int first, int last) {
  return first < last ? first + (1 << FloorLog2(last - first)) - 1 : -1;
}

Node NodeAt(int place, int ranks) {
  Node node;
  int first = 0, last = ranks;
  for (int at = RootOf(first, last); at != place; at = RootOf(first, last)) {
    node.parent = at;
    ++node.depth;
    (place < at ? last : first) = place < at ? at : at + 1;
  }
  node.left = RootOf(first, place);
  node.right = RootOf(place + 1, last);
  return node;
}

// One of the two trees. The second tree is the mirror image of the first; for odd p it is the first
// one moved by one place. Both changes turn even places into odd ones, so leaves become inner
// nodes.
class Tree {
 public:
  Tree(bool second, int rank, int ranks) : second_(second), ranks_(ranks) {
    node_ = NodeAt(Place(rank), ranks);
    node_.parent = RankAt(node_.parent);
    node_.left = RankAt(node_.left);
    node_.right = RankAt(node_.right);
  }
  const Node& node() const { return node_; }
  bool leaf() const { return node_.left < 0 && node_.right < 0; }
  int depth() const { return FloorLog2(ranks_); }

 private:
  int Place(int rank) const {
    if (!second_) return rank;
    return ranks_ % 2 == 0 ? ranks_ - 1 - rank : Mod(rank + 1, ranks_);
  }
  int RankAt(int place) const {
    if (!second_ || place < 0) return place;
    return ranks_ % 2 == 0 ? ranks_ - 1 - place : Mod(place - 1, ranks_);
  }

  const bool second_;
  const int ranks_;
  Node node_;
};

// A node of depth d sends up in step D - d, and down in step D + d.
void AddSends(const Tree& tree, int t, Piece half, Step* step) {
  const Node& node = tree.node();
  if (node.parent >= 0 && t == tree.depth() - node.depth) {
    step->Send(tree.leaf() ? In(half) : half, node.parent);
  }
  if (t != tree.depth() + node.depth) return;
  if (node.left >= 0) step->Send(half, node.left);
  if (node.right >= 0) step->Send(half, node.right);
}

void AddReceipts(const Tree& tree, int t, Piece half, Step* step) {
  const Node& node = tree.node();
  if (t == tree.depth() - node.depth - 1) {
    if (node.left >= 0) step->Reduce(half, In(half), node.left);
    if (node.right >= 0) step->Reduce(half, node.left >= 0 ? half : In(half), node.right);
  }
  if (node.parent >= 0 && t == tree.depth() + node.depth - 1) step->Receive(half, node.parent);
}

Schedule DoubleTreeAllReduce(const CollectiveShape& shape) {
  const std::array<Tree, 2> trees = {Tree(false, shape.rank, shape.ranks),
                                     Tree(true, shape.rank, shape.ranks)};
  const auto one = [&](const CollectiveShape& part) {
    Schedule s = NewSchedule(Primitive::kAllReduce, part);
    const Blocks half(part.count, 2);
    for (int t = 0; t < 2 * trees[0].depth(); ++t) {
      Step& step = s.AddStep();
      for (int i = 0; i < 2; ++i) AddSends(trees[static_cast<size_t>(i)], t, half(i), &step);
      for (int i = 0; i < 2; ++i) AddReceipts(trees[static_cast<size_t>(i)], t, half(i), &step);
    }
    return s;
  };
  return InParts(Primitive::kAllReduce, shape, 2 * shape.segment, one);
}

// ---- Traffic, by formula ----

// Formulas count nodes from 1: odd nodes are leaves.
int Sends(int node, int p) {
  const int children = node % 2 == 1 ? 0 : node < p ? 2 : 1;
  return children + (node == 1 << FloorLog2(p) ? 0 : 1);
}

Traffic AllReduceTraffic(const CollectiveShape& shape) {
  const int r = shape.rank, p = shape.ranks;
  return OverParts(shape.count, 2 * shape.segment, [&](int64_t n) {
    const Blocks half(n, 2);
    const int second = p % 2 == 0 ? p - r : (r + 1) % p + 1;
    return Times(Sends(r + 1, p), half(0).count) + Times(Sends(second, p), half(1).count);
  });
}

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kAllReduce, DoubleTreeAllReduce, AllReduceTraffic, kCuts},
};

}  // namespace

extern const AlgorithmRow kDoubleTreeRow = {Algorithm::kDoubleTree, "double_tree", kOtherOrder,
                                            kSupported};

}  // namespace tandem::collectives
