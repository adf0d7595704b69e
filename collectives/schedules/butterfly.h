// ButterflyCore: the ranks of algorithms in which a power of two of ranks exchange pieces in log2
// rounds.
//
// For other numbers of ranks, let p = size + extra with the largest power of two `size`. The odd
// ranks below 2 * extra stay outside the rounds. Before the rounds, each of them hands its data to
// the even rank before it. After the rounds it gets its result from that rank (Thakur, Rabenseifner
// & Gropp 2005).
#ifndef TANDEM_COLLECTIVES_SCHEDULES_BUTTERFLY_H_
#define TANDEM_COLLECTIVES_SCHEDULES_BUTTERFLY_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"

namespace tandem::collectives {

class ButterflyCore {
 public:
  explicit ButterflyCore(int ranks);
  int size() const { return 1 << rounds_; }
  int rounds() const { return rounds_; }
  int extra() const { return ranks_ - size(); }
  // The rank is outside the core and hands its data to rank - 1.
  bool Outside(int rank) const { return rank < 2 * extra() && rank % 2 == 1; }
  // The rank is in the core and stands for rank + 1, which hands it its data.
  bool Stands(int rank) const { return rank < 2 * extra() && rank % 2 == 0; }
  // The number of a rank in the core (for a rank outside: the number of its stand-in), and back.
  int Number(int rank) const { return rank < 2 * extra() ? rank / 2 : rank - extra(); }
  int Rank(int number) const { return number < extra() ? 2 * number : number + extra(); }

 private:
  int ranks_, rounds_;
};

// The frame around the rounds of an all-reduce of one part: ranks outside the core hand in their
// vectors before the rounds and get the result after them. The caller adds one step for each round,
// empty for ranks outside the core.
class FoldedAllReduce {
 public:
  explicit FoldedAllReduce(const CollectiveShape& part);

  const ButterflyCore& core() const { return core_; }
  bool outside() const { return core_.Outside(rank_); }
  int number() const { return core_.Number(rank_); }  // number in the core
  // Where a rank of the core has its contribution before the rounds. Normally it is in the input.
  // If the rank stands for another rank, it is in the output, with the other rank's contribution
  // added already.
  Piece Begun(Piece piece) const { return core_.Stands(rank_) ? piece : In(piece); }
  // Adds the step of the next round.
  Step& AddStep() { return schedule_.AddStep(); }
  // Adds the step after the rounds and returns the schedule.
  Schedule Finish();

 private:
  const ButterflyCore core_;
  const int rank_;
  const Piece all_;
  Schedule schedule_;
};

// All-reduce of one part, in any order of the core. In round k the core ranks v and partner(v, k)
// halve the range of blocks that they share; each keeps the half that contains its own block,
// position(v). Then the same rounds run backwards as an allgather. Requires that partner is an
// involution in every round, and that position is a permutation such that partners share their
// range.
Schedule ButterflyAllReduce(const CollectiveShape& part,
                            absl::FunctionRef<int(int v, int k)> partner,
                            absl::FunctionRef<int(int v)> position);

// The position of core rank v among 2^rounds for halving-doubling, and the positions of all core
// ranks for Swing.
int HalvingPosition(int v, int rounds);
std::vector<int> SwingPositions(int rounds);

// The traffic of shape.rank in a ButterflyAllReduce; `position` is the position of its core number.
Traffic ButterflyTraffic(const CollectiveShape& shape, int position);

// The most elements of a part such that no message of ButterflyAllReduce is longer than a segment.
int64_t ButterflyPart(const CollectiveShape& shape);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_SCHEDULES_BUTTERFLY_H_
