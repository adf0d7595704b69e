// Direct all-reduce: each rank owns one block, collects it from everybody, folds it in rank order
// and hands the sum to everybody. Per rank: 2(p-1) messages, independent of one another within each
// half, 2(p-1)/p * count elements sent (near-equal blocks), (p-1)/p * count added. Time:
// 2(p-1)*alpha, overlappable, + 2(p-1)/p * S*beta + (p-1)/p * S*gamma. Every element is summed as
// ((c0 + c1) + c2) + ..., wherever it lies and however the vector is cut: the reproducible
// algorithm, and the order in which servers fold (optim/fold.h).
#include "collectives/legacy/schedule.h"

namespace tandem {
inline namespace legacy {
namespace {

// Block `mine` of `rank` becomes the sum over ranks, starting from a copy of rank 0's contribution.
void FoldInRankOrder(int rank, int ranks, Piece mine, Step& step) {
  if (rank > 0) step.SetAside(mine).Receive(mine, 0);
  for (int from = 1; from < ranks; ++from) {
    if (from == rank) {
      step.AddAside(mine);
    } else {
      step.Reduce(mine, from);
    }
  }
}

}  // namespace

Schedule DirectAllReduce(int rank, int ranks, int64_t count) {
  const Blocks block(count, ranks);
  Schedule s{.rank = rank, .ranks = ranks, .count = count, .steps = {}};
  if (ranks == 1) return s;
  // Peers in the order rank + 1, rank + 2, ...: at no time does everybody send to the same rank.
  Step& scatter = s.AddStep();
  for (int d = 1; d < ranks; ++d) scatter.Send(block(rank + d), (rank + d) % ranks);
  FoldInRankOrder(rank, ranks, block(rank), scatter);

  Step& gather = s.AddStep();
  for (int d = 1; d < ranks; ++d) gather.Send(block(rank), (rank + d) % ranks);
  for (int d = 1; d < ranks; ++d) gather.Receive(block(rank - d), (rank - d + ranks) % ranks);
  return s;
}

}  // namespace legacy
}  // namespace tandem
