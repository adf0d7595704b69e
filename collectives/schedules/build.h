// The common tools of the algorithm files: the row that each file defines, functions that cut
// buffers into parts, and building blocks for traffic formulas.
//
// Every function of a row requires a shape of at least two ranks that MakeSchedule has checked. The
// schedules of all ranks have the same number of steps. A message sent in step t is received in
// step t. The sends of a step come first. These rules allow parts to be pipelined and phases to be
// run one after another.
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

// A schedule without steps. The input and output have their sizes, scratch is empty.
Schedule NewSchedule(Primitive primitive, const CollectiveShape& shape);

// Cuts [0, count) into consecutive pieces of at most `part` elements. Returns at least one piece;
// exactly one if part = 0.
std::vector<Piece> Parts(int64_t count, int64_t part);

// Makes a pipeline of schedules, one for each consecutive part of the vector with at most `part`
// elements. `one` gets the shape of a part and makes a schedule for it as if the part were the
// whole vector; its pieces are moved to the place of the part afterwards. So an algorithm needs no
// code of its own for pipelining.
Schedule InParts(Primitive primitive, const CollectiveShape& shape, int64_t part,
                 absl::FunctionRef<Schedule(const CollectiveShape&)> one);

// The same elements of every block. block[r] is the piece of rank r's block, as a place in the
// vector of all blocks. `own` is the piece of the own block, counted from the begin of that block.
struct BlockPart {
  std::vector<Piece> block;
  Piece own;
  // The piece of rank r mod p; r may be negative.
  Piece operator()(int r) const;
  int64_t Longest() const;
};
// Makes a pipeline over parts of all blocks: at most shape.segment elements of each block. `one`
// adds the steps and the scratch of one part.
Schedule InBlockParts(Primitive primitive, const CollectiveShape& shape,
                      absl::FunctionRef<void(const BlockPart&, Schedule*)> one);

// Blocks of an all-to-all, by peer.
Piece SendBlock(const CollectiveShape& shape, int to);
Piece ReceiveBlock(const CollectiveShape& shape, int from);

// The shape of `rank`, with its row and column of counts_by_rank if that is not empty (see
// MakeSchedules).
CollectiveShape ShapeOf(const CollectiveShape& shape, int rank,
                        absl::Span<const std::vector<int64_t>> counts_by_rank);

int Mod(int64_t a, int p);  // never negative
int CeilLog2(int64_t n);    // 0 for n = 1
int FloorLog2(int64_t n);
std::vector<int> RankOrder(int p);

// ---- The table ----

// How an algorithm does one primitive.
struct PrimitiveRow {
  Primitive primitive;
  Schedule (*make)(const CollectiveShape& shape);
  // The messages and elements that shape.rank sends. Write it from the definition of the algorithm
  // and not from `make`, because the checker compares the two.
  Traffic (*traffic)(const CollectiveShape& shape);
  bool cuts;  // no message is longer than shape.segment
  // ChannelNeeded for at least two ranks; null: 0.
  int (*channel)(const CollectiveShape& shape) = nullptr;
  // UNIMPLEMENTED for a well-formed shape that the algorithm does not support; null: every shape is
  // supported.
  absl::Status (*fits)(const CollectiveShape& shape) = nullptr;
};
inline constexpr bool kCuts = true, kWhole = false;

// All facts about an algorithm: an `extern const` at the end of the algorithm's file. algorithms.cc
// lists the rows, and all other code reads them from there.
struct AlgorithmRow {
  Algorithm algorithm;
  absl::string_view name;
  bool rank_order;  // AddsInRankOrder
  absl::Span<const PrimitiveRow> primitives;
};
inline constexpr bool kRankOrder = true, kOtherOrder = false;

// ---- Building blocks for traffic formulas ----

Traffic operator+(Traffic a, Traffic b);
Traffic Times(int64_t messages, int64_t elements_each);
// Sums the traffic over the parts of a vector. All parts but the last have `part` elements; there
// is one part if part = 0.
Traffic OverParts(int64_t count, int64_t part, absl::FunctionRef<Traffic(int64_t n)> of_part);
// Traffic of a collective whose blocks are cut by shape.segment: `whole.messages` for each part of
// the longest block, and the elements of `whole`.
Traffic OverBlockParts(const CollectiveShape& shape, Traffic whole);
// Elements of the blocks of ranks first, first + 1, ..., mod p.
int64_t BlockSum(const CollectiveShape& shape, int first, int blocks);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_SCHEDULES_BUILD_H_
