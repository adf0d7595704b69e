// Clocks keeps the steps of the workers of a range, and the sums and minima over all workers that
// policies need (RangeProgress). It updates these at each step, so that no query looks at each
// worker.
//
// The smallest clocks are kept as a tournament tree: each node holds the smaller ones of the clocks
// below it. A step therefore changes the nodes above its worker only as far as that worker was the
// slowest below them: two nodes on average, log2(workers) at most.
//
// Thread safety: none needed; a range owns its Clocks.
#ifndef TANDEM_POLICIES_CLOCKS_H_
#define TANDEM_POLICIES_CLOCKS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policies/policy.h"

namespace tandem::policies {

class Clocks {
 public:
  // `progress` outlives this object. The constructor gives it `workers` workers without a step, and
  // sets RangeProgress::clocks. From then on only this object changes the steps of the workers,
  // until Reset.
  Clocks(int workers, const Properties& properties, RangeProgress* progress);
  Clocks(const Clocks&) = delete;
  Clocks& operator=(const Clocks&) = delete;

  // The caller has replaced the version and the workers of the progress, for example by those of a
  // checkpoint. Their number must be the same. Looks at each worker.
  void Reset();

  // The range has admitted `admitted` steps of worker `rank`; the number never falls. `finished`:
  // the worker is out of data.
  void Admit(int rank, int64_t admitted, bool finished);

  // Sets `applied` of each worker. If the policy holds the updates of a step until the step closes,
  // readers see the closed steps, and after the switch (Properties::switch_step) all steps. Under
  // any other policy readers see all admitted steps. With batches, call it only if none is open.
  // Looks only at workers whose number may have changed: over a run, once for each admitted step.
  void ShowApplied();

  int64_t MinClock() const { return tree_[1].applied_live; }
  int64_t MinApplied() const { return tree_[1].applied; }
  int64_t MinAdmitted() const { return tree_[1].admitted; }
  int64_t MinAdmittedLive() const { return tree_[1].admitted_live; }
  int Live() const { return live_; }
  int Slowest() const;
  int64_t Admitted() const { return admitted_sum_; }
  // The number of steps admitted from Properties::switch_step on, summed over all workers.
  int64_t AdmittedBeyond() const { return beyond_sum_; }

 private:
  // The smallest clocks of some workers: of all of them, and of those that have data.
  struct Least {
    int64_t admitted = kInfiniteClock, applied = kInfiniteClock;
    int64_t admitted_live = kInfiniteClock, applied_live = kInfiniteClock;
    friend bool operator==(const Least&, const Least&) = default;
  };
  static Least Of(const WorkerProgress& worker);
  static Least Smaller(const Least& a, const Least& b);

  void Update(int rank);
  void Expect(int rank);

  RangeProgress& progress_;
  const bool holds_, by_step_;
  const int64_t switch_step_;
  const size_t leaves_;      // a power of two
  std::vector<Least> tree_;  // children of node n: 2n and 2n + 1; leaves begin at `leaves_`
  int live_ = 0;
  int64_t admitted_sum_ = 0, beyond_sum_ = 0;
  // The workers whose `applied` may be behind `admitted`, each once. The first `waiting_` of them
  // change only when the version is no longer `shown_version_`.
  std::vector<int> behind_;
  std::vector<bool> is_behind_;  // by rank
  size_t waiting_ = 0;
  int64_t shown_version_ = -1;
};

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_CLOCKS_H_
