// What the algorithm files share: the row that each of them defines, cutting buffers into parts, and
// what formulas of traffic are made of.
//
// Every function of a row requires a shape that MakeSchedule has checked, of at least two ranks. All
// ranks get schedules of as many steps, a message sent in step t is received in step t, and the
// sends of a step come first: so that parts can be pipelined and phases put after one another.
#ifndef TANDEM_COLLECTIVES_SCHEDULES_BUILD_H_
#define TANDEM_COLLECTIVES_SCHEDULES_BUILD_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"

namespace tandem::collectives {

// Elements of the input and of the output of shape.rank.
int64_t InputElements(Primitive primitive, const CollectiveShape& shape);
int64_t OutputElements(Primitive primitive, const CollectiveShape& shape);

// Without steps; the regions have their sizes, scratch is empty.
Schedule NewSchedule(Primitive primitive, const CollectiveShape& shape);

// [0, count) cut into consecutive pieces of at most `part` elements, at least one; one if part = 0.
std::vector<Piece> Parts(int64_t count, int64_t part);

// A pipeline of schedules of consecutive parts of the vector, at most `part` elements each. `one`
// gets the shape of a part and makes its schedule as if there were nothing else.
Schedule InParts(Primitive primitive, const CollectiveShape& shape, int64_t part,
                 absl::FunctionRef<Schedule(const CollectiveShape&)> one);

// The same elements of every block: block[r] lies in the vector of all blocks, `own` is the piece
// of the own block counted from the begin of that.
struct BlockPart {
  std::vector<Piece> block;
  Piece own;
  // Taken mod p, also when negative.
  Piece operator()(int r) const;
  int64_t Longest() const;
};
// A pipeline over parts of all blocks, at most shape.segment elements of each. `one` adds the steps
// and the scratch of one part.
Schedule InBlockParts(Primitive primitive, const CollectiveShape& shape,
                      absl::FunctionRef<void(const BlockPart&, Schedule*)> one);

// Blocks of an all-to-all, by peer.
Piece SendBlock(const CollectiveShape& shape, int to);
Piece ReceiveBlock(const CollectiveShape& shape, int from);

// Of `rank`, with its row and column of counts_by_rank, if there are any (see MakeSchedules).
CollectiveShape ShapeOf(const CollectiveShape& shape, int rank,
                        absl::Span<const std::vector<int64_t>> counts_by_rank);

int Mod(int64_t a, int p);  // never negative
int CeilLog2(int64_t n);    // 0 for n = 1
int FloorLog2(int64_t n);
std::vector<int> RankOrder(int p);

// ---- The table ----

// How an algorithm does one of the collectives.
struct AlgorithmWay {
  Primitive primitive;
  Schedule (*make)(const CollectiveShape& shape);
  // What shape.rank sends, written from the definition of the algorithm and not from `make`: the
  // checker compares the two.
  Traffic (*traffic)(const CollectiveShape& shape);
  bool cuts;  // no message is longer than shape.segment
  // ChannelNeeded of two ranks or more; null: 0.
  int (*channel)(const CollectiveShape& shape) = nullptr;
  // What it cannot do with a well-formed shape; null: nothing.
  absl::Status (*fits)(const CollectiveShape& shape) = nullptr;
};
inline constexpr bool kCuts = true, kWhole = false;

// All that is known of an algorithm: an `extern const` at the end of its file. algorithms.cc lists
// them, and everything reads them there.
struct AlgorithmRow {
  Algorithm algorithm;
  absl::string_view name;
  bool rank_order;  // AddsInRankOrder
  absl::Span<const AlgorithmWay> ways;
};
inline constexpr bool kRankOrder = true, kOtherOrder = false;

// ---- What traffic is made of ----

Traffic operator+(Traffic a, Traffic b);
Traffic Times(int64_t messages, int64_t elements_each);
// Sum over the parts of a vector: all but the last are of `part` elements; one if part = 0.
Traffic OverParts(int64_t count, int64_t part, absl::FunctionRef<Traffic(int64_t n)> of_part);
// Of a collective on blocks that are cut by shape.segment: `whole.messages` for each part of the
// longest block, and the elements of `whole`.
Traffic OverBlockParts(const CollectiveShape& shape, Traffic whole);
// Elements of the blocks of ranks first, first + 1, ..., taken mod p.
int64_t BlockSum(const CollectiveShape& shape, int first, int blocks);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_SCHEDULES_BUILD_H_
