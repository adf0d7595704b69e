// The algorithms of the collectives: each a pure function from a shape to one rank's schedule, in a
// file of its own with its cost and its source. The names are those of the literature.
//
// To add an algorithm: its file, with its schedules, its traffic and its row (build.h), a place in
// the table of algorithms.cc, and a value of Algorithm below. Everything else reads the row, and the
// tests of checker and engine cover it. A job names it by a value of Dense.Algorithm of that name.
#ifndef TANDEM_COLLECTIVES_SCHEDULES_ALGORITHMS_H_
#define TANDEM_COLLECTIVES_SCHEDULES_ALGORITHMS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "collectives/schedules/schedule.h"

namespace tandem::collectives {

// Elements of input and output by primitive, for `count` elements and p ranks ("-": unused):
enum class Primitive : uint8_t {
  kAllReduce,      // count -> count: the reduction of all, everywhere
  kReduce,         // count -> count at the root: the reduction of all; output of others unused
  kBroadcast,      // count at the root -> count: the root's
  kReduceScatter,  // sum of counts -> counts[rank]: the reduction of block `rank`
  kAllGather,      // counts[rank] -> sum of counts: everybody's, in rank order
  kGather,         // counts[rank] -> sum of counts at the root
  kScatter,        // sum of counts at the root -> counts[rank]
  kAllToAll,       // sum of send_counts -> sum of receive_counts: block j of rank i is block i of j
  kBarrier,        // -
  kPointToPoint,   // sends and receives of one group call (group.h); no algorithm to choose
};
inline constexpr Primitive kPrimitives[] = {
    Primitive::kAllReduce,     Primitive::kReduce,    Primitive::kBroadcast,
    Primitive::kReduceScatter, Primitive::kAllGather, Primitive::kGather,
    Primitive::kScatter,       Primitive::kAllToAll,  Primitive::kBarrier};
absl::string_view PrimitiveName(Primitive primitive);  // "allreduce", "reduce_scatter", ...
absl::StatusOr<Primitive> ParsePrimitive(absl::string_view name);
bool Reduces(Primitive primitive);  // uses the reduction operation
bool HasRoot(Primitive primitive);
// Bus bandwidth = bytes / seconds * this (the convention of nccl-tests): comparable to the speed of
// the link whatever the number of ranks. `bytes` are those of the vector of all blocks, or of what
// a rank sends in an all-to-all. 0 where nothing travels.
double BusFactor(Primitive primitive, int ranks);

enum class Algorithm : uint8_t {
  kRing,
  kDirect,   // each rank folds its block in rank order: the reproducible one
  kOneShot,  // everybody sends everything to everybody, each folds in rank order: one latency
  kRecursiveDoubling,
  kHalvingDoubling,
  kTree,   // binomial
  kChain,  // pipelined
  kPairwise,
  kBruck,
  kDoubleTree,
  kSwing,
  kHierarchical,   // within hosts, then across them
  kDissemination,  // barrier
  kNaive,          // all to rank 0, and back: the baseline of textbooks
};
// Whether a number that a peer has sent is one of them.
bool IsAlgorithm(int number);
absl::Span<const Algorithm> Algorithms();              // all, in this order
absl::string_view AlgorithmName(Algorithm algorithm);  // "ring", "recursive_doubling", ...
absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view name);

struct CollectiveShape {
  int rank = 0;
  int ranks = 1;
  int root = 0;
  int64_t count = 0;            // elements; with v-variants unused
  std::vector<int64_t> counts;  // by rank, for the v-variants; empty: `count` each
  // all-to-all(v): elements of this rank's block to, and from, each rank; empty: `count` each.
  std::vector<int64_t> send_counts, receive_counts;
  // Cut messages into at most so many elements and pipeline them; 0: do not. Algorithms that cannot
  // be pipelined ignore it.
  int64_t segment = 0;
  bool in_place = false;
  bool agree = false;  // AddAgreement (schedule.h)
  // kHierarchical: the host of each rank, numbered from 0; empty: all on one. And what it is made
  // of, within hosts and across them; none: direct and ring, for reduce and broadcast trees.
  std::vector<int> host_of_rank;
  absl::optional<Algorithm> inner, outer;

  int64_t CountOf(int r) const { return counts.empty() ? count : counts[static_cast<size_t>(r)]; }
  // Block r of a vector of everybody's elements in rank order, and its size.
  Piece BlockOf(int r) const;
  int64_t Total() const;
};

// In place, input element i is output element i + offset. (An all-to-all in place has offset 0 and
// goes through scratch memory.)
int64_t InPlaceOffset(Primitive primitive, const CollectiveShape& shape);

bool Supports(Primitive primitive, Algorithm algorithm);
// Those that support the primitive, in the order of Algorithm.
std::vector<Algorithm> AlgorithmsFor(Primitive primitive);

// Whether no message is longer than shape.segment, if that is set.
bool CutsMessages(Primitive primitive, Algorithm algorithm);
// Whether every element is ((c0 + c1) + c2) + ..., rounded once, however the vector is cut.
bool AddsInRankOrder(Algorithm algorithm);
// Messages that the link between any two ranks must hold lest the schedules deadlock: 0, or 1, when
// ranks that exchange messages overwrite what they send. Those algorithms cut their messages; the
// length of one is then bounded by shape.segment.
int ChannelNeeded(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape);

// What one rank sends.
struct Traffic {
  int64_t messages = 0;
  int64_t elements = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};
// By formula, of shape.rank. Exact for any count, also one that the ranks do not divide, and for
// any segment. Requires that MakeSchedule accepts the arguments.
Traffic AlgorithmTraffic(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape);

// INVALID_ARGUMENT if the shape is malformed, or UNIMPLEMENTED if the algorithm does not do that.
absl::StatusOr<Schedule> MakeSchedule(Primitive primitive, Algorithm algorithm,
                                      const CollectiveShape& shape);
// The schedules of all ranks, for the checker and for playing them; `shape` is that of any rank.
// all-to-all with uneven counts: `counts_by_rank[i][j]` elements travel from i to j.
absl::StatusOr<std::vector<Schedule>> MakeSchedules(
    Primitive primitive, Algorithm algorithm, const CollectiveShape& shape,
    absl::Span<const std::vector<int64_t>> counts_by_rank = {});

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_SCHEDULES_ALGORITHMS_H_
