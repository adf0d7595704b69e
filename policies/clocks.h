// The clocks of very many workers: what policies ask of all of them (RangeProgress) is kept as steps are
// admitted, so that no answer looks at each worker. For ranges with thousands of workers; where a range has a
// few, looking at each is as fast.
//
// A tournament: each node has the smaller of its two clocks, so a step changes the nodes above its worker as
// far as that worker was the slowest below them: two of them on average, log2(workers) at most.
//
// Thread safety: none needed; belongs to a range.
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
  // Nobody has been admitted anything. AdmittedBeyond is kept for steps from `beyond` on.
  Clocks(int workers, int64_t beyond);

  // `admitted` steps of the worker, which grow; `finished`: out of data.
  void Set(int rank, int64_t admitted, bool finished);
  // RangeProgress::MinClock; which updates readers see is for the range to say.
  void set_min_clock(int64_t clock) { min_clock_ = clock; }

  int64_t MinClock() const { return min_clock_; }
  int64_t MinAdmittedLive() const { return least_[1]; }
  int Live() const { return live_; }
  int Slowest() const;
  // Steps admitted from `beyond` on, of all workers.
  int64_t AdmittedBeyond() const { return beyond_sum_; }

 private:
  struct Worker {
    int64_t admitted = 0;
    bool finished = false;
  };

  const size_t leaves_;  // a power of two
  const int64_t beyond_;
  std::vector<int64_t> least_;  // node n has 2n and 2n + 1 below it; leaves from `leaves_` on
  std::vector<Worker> workers_;
  int live_;
  int64_t beyond_sum_ = 0;
  int64_t min_clock_ = 0;
};

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_CLOCKS_H_
