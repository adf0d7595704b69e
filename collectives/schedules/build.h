// What the algorithm files share: the functions they define (one a primitive and algorithm, listed
// in algorithms.cc), and cutting buffers into parts.
//
// Every function requires a shape that MakeSchedule has checked, of at least two ranks. All ranks
// get schedules of as many steps, a message sent in step t is received in step t, and the sends of
// a step come first: so that parts can be pipelined and phases put after one another.
#ifndef TANDEM_COLLECTIVES_SCHEDULES_BUILD_H_
#define TANDEM_COLLECTIVES_SCHEDULES_BUILD_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"

namespace tandem {

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

// ---- The algorithms ----

Schedule RingAllReduce(const CollectiveShape& shape);
Schedule RingReduceScatter(const CollectiveShape& shape);
Schedule RingAllGather(const CollectiveShape& shape);

Schedule DirectAllReduce(const CollectiveShape& shape);
Schedule DirectReduce(const CollectiveShape& shape);
Schedule DirectBroadcast(const CollectiveShape& shape);
Schedule DirectReduceScatter(const CollectiveShape& shape);
Schedule DirectAllGather(const CollectiveShape& shape);
Schedule DirectGather(const CollectiveShape& shape);
Schedule DirectScatter(const CollectiveShape& shape);

Schedule OneShotAllReduce(const CollectiveShape& shape);

Schedule RecursiveDoublingAllReduce(const CollectiveShape& shape);
Schedule RecursiveDoublingAllGather(const CollectiveShape& shape);

Schedule HalvingDoublingAllReduce(const CollectiveShape& shape);
Schedule HalvingReduceScatter(const CollectiveShape& shape);

Schedule SwingAllReduce(const CollectiveShape& shape);

Schedule DoubleTreeAllReduce(const CollectiveShape& shape);

Schedule ChainReduce(const CollectiveShape& shape);
Schedule ChainBroadcast(const CollectiveShape& shape);

Schedule BruckAllGather(const CollectiveShape& shape);
Schedule BruckAllToAll(const CollectiveShape& shape);

Schedule TreeAllReduce(const CollectiveShape& shape);
Schedule TreeReduce(const CollectiveShape& shape);
Schedule TreeBroadcast(const CollectiveShape& shape);
Schedule TreeGather(const CollectiveShape& shape);
Schedule TreeScatter(const CollectiveShape& shape);

Schedule PairwiseAllToAll(const CollectiveShape& shape);

Schedule DisseminationBarrier(const CollectiveShape& shape);

// Require that Hierarchy::Check, TwoLevel::Check (hierarchical.h) find nothing.
Schedule HierarchicalAllReduce(const CollectiveShape& shape);
Schedule HierarchicalReduce(const CollectiveShape& shape);
Schedule HierarchicalBroadcast(const CollectiveShape& shape);
Schedule HierarchicalReduceScatter(const CollectiveShape& shape);
Schedule HierarchicalAllGather(const CollectiveShape& shape);

}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_SCHEDULES_BUILD_H_
