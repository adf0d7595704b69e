// For algorithms in which a power of two of ranks exchange pieces in log2 rounds.
//
// For other numbers of ranks, p = size + extra with the largest such size: before the rounds each
// of the odd ranks below 2 * extra hands its data to the even rank before it, and gets its result
// from there after them (Thakur, Rabenseifner & Gropp 2005).
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
  // Outside the core: hands its data to rank - 1.
  bool Outside(int rank) const { return rank < 2 * extra() && rank % 2 == 1; }
  // In the core, and rank + 1 hands it its data.
  bool Stands(int rank) const { return rank < 2 * extra() && rank % 2 == 0; }
  // Number in the core of a rank (also of one outside: that of its stand-in), and back.
  int Number(int rank) const { return rank < 2 * extra() ? rank / 2 : rank - extra(); }
  int Rank(int number) const { return number < extra() ? 2 * number : number + extra(); }

 private:
  int ranks_, rounds_;
};

// What is around the rounds of an all-reduce of one part: ranks outside the core hand in their
// vectors, and get the result. The caller adds a step for each round, empty outside the core.
class FoldedAllReduce {
 public:
  explicit FoldedAllReduce(const CollectiveShape& part);

  const ButterflyCore& core() const { return core_; }
  bool outside() const { return core_.Outside(rank_); }
  int number() const { return core_.Number(rank_); }  // in the core
  // Where a rank of the core has its contribution before the rounds: in its input, or, if it
  // stands for another, with that one's added in its output.
  Piece Begun(Piece piece) const { return core_.Stands(rank_) ? piece : In(piece); }
  // One for each round.
  Step& AddStep() { return schedule_.AddStep(); }
  // After the rounds.
  Schedule Finish();

 private:
  const ButterflyCore core_;
  const int rank_;
  const Piece all_;
  Schedule schedule_;
};

// All-reduce of one part, in any core order: in round k the core ranks v and partner(v, k) halve
// the range of blocks that they share, and each goes on with the half in which its own block,
// position(v), lies. Then the same way back. Requires that partner is an involution in every round,
// and position a permutation such that partners share their range.
Schedule ButterflyAllReduce(const CollectiveShape& part,
                            absl::FunctionRef<int(int v, int k)> partner,
                            absl::FunctionRef<int(int v)> position);

// Positions for halving-doubling (that of core rank v among 2^rounds), and for Swing (of all).
int HalvingPosition(int v, int rounds);
std::vector<int> SwingPositions(int rounds);

// What shape.rank sends in a ButterflyAllReduce; `position` is that of its core number.
Traffic ButterflyTraffic(const CollectiveShape& shape, int position);

// Most elements of a part such that no message of ButterflyAllReduce is longer than a segment.
int64_t ButterflyPart(const CollectiveShape& shape);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_SCHEDULES_BUTTERFLY_H_
