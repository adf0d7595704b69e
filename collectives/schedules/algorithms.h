// Algorithm: the algorithms of the collectives. Each is a pure function from a shape to one rank's
// schedule, in a file of its own that states its cost and its source. The names are those of the
// literature.
//
// In the costs p is the number of ranks and S the size of the vector. alpha is the time of a
// message of any size, beta the time to send a byte, gamma the time to add a byte. A cost is the
// time of the slowest rank, for example p alpha + S beta.
//
// To add an algorithm, write its file with its schedules, its traffic and its row (build.h), add
// the row to the table of algorithms.cc, and add a value to Algorithm below. All other code reads
// the row, and the tests of checker and engine cover the new algorithm. For jobs, add a value of
// the same name to Dense.Algorithm.
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

// Elements of input -> output by primitive, for `count` elements and p ranks ("-": unused).
enum class Primitive : uint8_t {
  kAllReduce,      // count -> count: the reduction of all inputs, on every rank
  kReduce,         // count -> count at the root: the reduction; other outputs unused
  kBroadcast,      // count at the root -> count: the root's input
  kReduceScatter,  // sum of counts -> counts[rank]: the reduction of block `rank`
  kAllGather,      // counts[rank] -> sum of counts: all inputs in rank order
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
// Bus bandwidth = bytes / seconds * BusFactor, by the convention of nccl-tests. The result can be
// compared to the speed of the link for any number of ranks. `bytes` is the size of the vector of
// all blocks; in an all-to-all it is the size of what a rank sends. 0 if nothing travels.
double BusFactor(Primitive primitive, int ranks);

enum class Algorithm : uint8_t {
  kRing,
  kDirect,   // each rank folds its block in rank order: reproducible
  kOneShot,  // everybody sends all to all and folds in rank order: one latency
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
  kNaive,          // all to rank 0, and back: the textbook baseline
};
// Whether a number that a peer has sent is a value of Algorithm.
bool IsAlgorithm(int number);
absl::Span<const Algorithm> Algorithms();              // all values, in this order
absl::string_view AlgorithmName(Algorithm algorithm);  // "ring", "recursive_doubling", ...
absl::StatusOr<Algorithm> ParseAlgorithm(absl::string_view name);

struct CollectiveShape {
  int rank = 0;
  int ranks = 1;
  int root = 0;
  int64_t count = 0;            // elements; unused in v-variants
  std::vector<int64_t> counts;  // by rank, for the v-variants; empty: `count` each
  // All-to-all(v): elements that this rank sends to, and gets from, each rank. Empty: `count` each.
  std::vector<int64_t> send_counts, receive_counts;
  // Messages are cut into at most this many elements and pipelined; 0: not cut. Algorithms that
  // cannot be pipelined ignore it.
  int64_t segment = 0;
  bool in_place = false;
  bool agree = false;  // add an agreement: AddAgreement (schedule.h)
  // kHierarchical: the host of each rank, numbered from 0; empty: all ranks on one host.
  std::vector<int> host_of_rank;
  // kHierarchical: the algorithms within hosts and across them. Default: direct and ring; trees for
  // reduce and broadcast.
  absl::optional<Algorithm> inner, outer;

  int64_t CountOf(int r) const { return counts.empty() ? count : counts[static_cast<size_t>(r)]; }
  // Block r of a vector that has every rank's elements in rank order. Total is the size of the
  // vector.
  Piece BlockOf(int r) const;
  int64_t Total() const;
};

// In place, input element i is output element i + offset. (An all-to-all in place has offset 0 and
// goes through scratch memory.)
int64_t InPlaceOffset(Primitive primitive, const CollectiveShape& shape);

bool Supports(Primitive primitive, Algorithm algorithm);
// The algorithms that support the primitive, in the order of Algorithm.
std::vector<Algorithm> AlgorithmsFor(Primitive primitive);

// Whether no message is longer than shape.segment, provided that shape.segment is set.
bool CutsMessages(Primitive primitive, Algorithm algorithm);
// Whether every element is ((c0 + c1) + c2) + ..., rounded once, no matter how the vector is cut.
bool AddsInRankOrder(Algorithm algorithm);
// The number of messages that the link between two ranks must be able to hold so that the schedules
// cannot deadlock. The number is 1 if ranks that exchange messages overwrite the memory that they
// send, else 0. Algorithms of the second kind cut their messages, so shape.segment bounds the
// length of that message.
int ChannelNeeded(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape);

// The messages that one rank sends, and their elements.
struct Traffic {
  int64_t messages = 0;
  int64_t elements = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};
// The traffic of shape.rank by formula. Exact for any count (even one that is not a multiple of the
// ranks) and for any segment. Requires that MakeSchedule accepts the arguments.
Traffic AlgorithmTraffic(Primitive primitive, Algorithm algorithm, const CollectiveShape& shape);

// INVALID_ARGUMENT if the shape is malformed; UNIMPLEMENTED if the algorithm cannot do the
// primitive.
absl::StatusOr<Schedule> MakeSchedule(Primitive primitive, Algorithm algorithm,
                                      const CollectiveShape& shape);
// The schedules of all ranks, for the checker and for the cost model; `shape` is the shape of any
// rank. All-to-all with uneven counts: `counts_by_rank[i][j]` elements travel from i to j.
absl::StatusOr<std::vector<Schedule>> MakeSchedules(
    Primitive primitive, Algorithm algorithm, const CollectiveShape& shape,
    absl::Span<const std::vector<int64_t>> counts_by_rank = {});

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_SCHEDULES_ALGORITHMS_H_
