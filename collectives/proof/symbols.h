// Memory whose elements are not numbers but symbols: which elements of whose input were added up to
// make them, and in which order. For the checker.
//
// Neighbouring elements that were treated alike are one segment, so ten billion elements cost as
// little as ten.
#ifndef TANDEM_COLLECTIVES_PROOF_SYMBOLS_H_
#define TANDEM_COLLECTIVES_PROOF_SYMBOLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace tandem::collectives {

// Sums of contributions, never forgotten. A sum is kept as a tree of additions.
class Sums {
 public:
  // Element x of a segment with base b holds, of each contribution, input element x - b + offset.
  struct Contribution {
    int rank = 0;
    int64_t offset = 0;
  };
  // Input of `rank`; the contribution has offset 0.
  int Leaf(int rank);
  // left + right, where right is based `shift` elements before left.
  int Add(int left, int right, int64_t shift);
  bool IsLeaf(int sum, int rank) const { return At(sum).rank == rank; }
  // In the order of the tree, left before right.
  std::vector<Contribution> Contributions(int sum) const;
  // Whether it is ((c0 + c1) + c2) + ... + c(ranks - 1). Addition commutes, but does not associate.
  bool InRankOrder(int sum, int ranks) const;
  std::string DebugString(int sum) const;  // "0 + 1 + (2 + 3)", of ranks

 private:
  struct Node {
    int rank;  // -1: an addition
    int left, right;
    int64_t shift;
  };
  const Node& At(int sum) const { return nodes_[static_cast<size_t>(sum)]; }
  std::vector<Node> nodes_;
};

// Elements [begin, end), all made by the same sum.
struct Segment {
  int64_t begin = 0, end = 0;
  int sum = 0;
  int64_t base = 0;
};
// Consecutive, without gaps.
using Segments = absl::InlinedVector<Segment, 2>;

// Moves segments by `by` elements, with what they mean.
void Move(Segments* segments, int64_t by);
// x + y, element by element; both cover the same elements.
Segments AddSegments(const Segments& x, const Segments& y, Sums* sums);

// One region of one rank. Elements that were never written are undefined.
class SymbolicMemory {
 public:
  // The written part of [begin, end): all of it, if the segments reach from begin to end.
  Segments Read(int64_t begin, int64_t end) const;
  void Write(const Segments& segments);

 private:
  std::vector<Segment> segments_;  // by begin; may have gaps
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_PROOF_SYMBOLS_H_
