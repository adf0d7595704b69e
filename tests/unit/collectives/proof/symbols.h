// Symbolic memory: its elements are not numbers but sums of contributions. A sum says which
// elements of whose input were added, and in which order. For the checker.
//
// Neighbouring elements with the same history are one segment, so ten billion elements cost as
// little as ten.
#ifndef TANDEM_TESTS_UNIT_COLLECTIVES_PROOF_SYMBOLS_H_
#define TANDEM_TESTS_UNIT_COLLECTIVES_PROOF_SYMBOLS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"

namespace tandem {

// Every sum that was ever made; sums are never removed. A sum is a tree of additions.
class Sums {
 public:
  // Element x of a segment with base b contains, of each contribution, the input element x - b +
  // offset.
  struct Contribution {
    int rank = 0;
    int64_t offset = 0;
  };
  // The input of `rank`, as a sum of one contribution with offset 0.
  int Leaf(int rank);
  // left + right. The base of `right` is `shift` elements before the base of `left`.
  int Add(int left, int right, int64_t shift);
  bool IsLeaf(int sum, int rank) const { return At(sum).rank == rank; }
  // The contributions in the order of the tree, left before right.
  std::vector<Contribution> Contributions(int sum) const;
  // Whether the sum is ((c0 + c1) + c2) + ... + c(ranks - 1). The sides of an addition may be
  // swapped, because addition commutes; other groupings count as different.
  bool InRankOrder(int sum, int ranks) const;
  std::string DebugString(int sum) const;  // ranks: "0 + 1 + (2 + 3)"

 private:
  struct Node {
    int rank;  // -1: an addition
    int left, right;
    int64_t shift;
  };
  const Node& At(int sum) const { return nodes_[static_cast<size_t>(sum)]; }
  std::vector<Node> nodes_;
};

// Elements [begin, end) with the same sum.
struct Segment {
  int64_t begin = 0, end = 0;
  int sum = 0;
  int64_t base = 0;
};
// Consecutive segments without gaps.
using Segments = absl::InlinedVector<Segment, 2>;

// Moves segments by `by` elements; their bases move too, so they keep their meaning.
void Move(Segments* segments, int64_t by);
// x + y, element by element. The two arguments must cover the same elements.
Segments AddSegments(const Segments& x, const Segments& y, Sums* sums);

// One region of one rank. Elements that were never written are undefined.
class SymbolicMemory {
 public:
  // The written part of [begin, end), from `begin` up to the first gap. If the last segment ends at
  // `end`, all of it was written.
  Segments Read(int64_t begin, int64_t end) const;
  void Write(const Segments& segments);

 private:
  std::vector<Segment> segments_;  // by begin; may have gaps
};

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_COLLECTIVES_PROOF_SYMBOLS_H_
