// Ring all-reduce (Patarasuk & Yuan 2009).
// Per rank: 2(p-1) messages, 2(p-1)/p * count elements sent, (p-1)/p * count added.
// Time: 2(p-1)*alpha + 2(p-1)/p * S*beta + (p-1)/p * S*gamma: the least traffic there can be, with
// a latency that grows with p. Block b is added up starting at rank b, so the order of additions
// depends on where an element lies in the vector: cutting the vector differently gives other bits.
#include "collectives/legacy/schedule.h"

namespace tandem {
inline namespace legacy {

// Block b starts at rank b and moves right, gaining one addend a hop; the finished sum then makes
// one more lap.
Schedule RingAllReduce(int rank, int ranks, int64_t count) {
  const Blocks block(count, ranks);
  const int left = (rank + ranks - 1) % ranks, right = (rank + 1) % ranks;
  Schedule s{.rank = rank, .ranks = ranks, .count = count, .steps = {}};
  for (int t = 0; t < ranks - 1; ++t) {  // Reduce-scatter.
    s.AddStep().Send(block(rank - t), right).Reduce(block(rank - t - 1), left);
  }
  for (int t = 0; t < ranks - 1; ++t) {  // Allgather.
    s.AddStep().Send(block(rank + 1 - t), right).Receive(block(rank - t), left);
  }
  return s;
}

}  // namespace legacy
}  // namespace tandem
