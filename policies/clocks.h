// Clocks answers the questions that policies ask of all workers (RangeProgress) for ranges with
// thousands of workers. It updates the answers each time a step is admitted, so that no answer has
// to look at each worker. With only a few workers, looking at each is as fast.
//
// The clocks are kept as a tournament tree: each node holds the smaller of the two clocks below it.
// A step therefore changes the nodes above its worker only as far as that worker was the slowest
// below them: two nodes on average, log2(workers) at most.
//
// Thread safety: none needed; a range owns its Clocks.
#ifndef TANDEM_POLICIES_CLOCKS_H_
#define TANDEM_POLICIES_CLOCKS_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "policies/policy.h"

namespace tandem::policies {

class Clocks {
 public:
  // Begins with no step admitted for any worker. AdmittedBeyond counts the steps from `beyond` on.
  Clocks(int workers, int64_t beyond);

  // Records that the range has admitted `admitted` steps of worker `rank`; the number never falls.
  // `finished`: the worker is out of data.
  void Set(int rank, int64_t admitted, bool finished);
  // Sets the answer of MinClock. The range computes it, since the range decides which updates
  // readers see.
  void set_min_clock(int64_t clock) { min_clock_ = clock; }

  int64_t MinClock() const { return min_clock_; }
  int64_t MinAdmittedLive() const { return least_[1]; }
  int Live() const { return live_; }
  int Slowest() const;
  // The number of steps admitted from step `beyond` on, summed over all workers.
  int64_t AdmittedBeyond() const { return beyond_sum_; }

 private:
  struct Worker {
    int64_t admitted = 0;
    bool finished = false;
  };

  const size_t leaves_;  // a power of two
  const int64_t beyond_;
  std::vector<int64_t> least_;  // children of node n: 2n and 2n + 1; leaves begin at `leaves_`
  std::vector<Worker> workers_;
  int live_;
  int64_t beyond_sum_ = 0;
  int64_t min_clock_ = 0;
};

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_CLOCKS_H_
