// Which workers a sum of gradients waits for, where it need not wait for all (dense.quorum: Li, Ben-Nun,
// Di Girolamo, Alistarh, Hoefler 2020, "Taming unbalanced training workloads in deep learning with partial
// collective operations", eager-SGD). A pure core: one object, at rank 0, hears what workers do and says
// which sum begins and who goes on.
//
// A sum. All workers take part in each, whether they have anything or not: whoever has no gradient yet
// adds zeros. Sums stand for steps: the sum of step k begins once so many workers as the quorum has
// said are through step k (one under SOLO, more than half of all under MAJORITY). They go on with
// what it has brought. Who is through step k later goes on at once, with the sums that there are by then;
// its gradient is in the next sum, beside one of a later step, if need be.
//
// The grace. With one, a sum whose quorum has come waits so long for the others, and no longer than until
// all have come; not for one that is further behind, which would be waited for each time (Liu et al. 2024, "Asynchronous local-SGD training for language modeling").
//
// The bound. The sum of step k does not begin while a worker is not through step k - bound. So no worker
// is more than `bound` steps behind the sums, and a gradient misses at most `bound` of them: between the
// moment at which a step's parameters are read and the sum that its gradient is in, no more than that begin.
//
// Steps left out. A worker whose step came too late for its tables may go on at a later one
// (BACKUP_WORKERS). It says so as if it had a gradient of the last step that it leaves out: else those who
// wait for it at that step would wait for its next gradient, and that is behind the save for which it may
// stand still.
//
// The end of the data. A worker that has none left holds nobody back: it counts as one that is through
// every step. Where those left are fewer than the quorum, the first of them begins the next sum.
//
// Settling: once all have said so, one more sum has what is left of everybody (before evaluations and
// saves). A worker that waits for that counts like one without data. The first sum of all waits until
// every worker has been heard of.
//
// No deadlock with tables that let a worker run ahead of the slowest by a bound (SSP): the worker that is
// least far waits for a sum only if all are past it, and then that sum begins.
//
// Thread safety: none.
#ifndef TANDEM_WORKER_QUORUM_LEADER_H_
#define TANDEM_WORKER_QUORUM_LEADER_H_

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "job/job.h"
#include "proto/job.pb.h"

namespace tandem::worker {

class QuorumLeader {
 public:
  struct Options {
    int workers = 1;
    Dense::Quorum quorum = Dense::ALL;
    int64_t bound = 1;  // at least 1
    int count = 0;      // above 0: so many are the quorum, whatever `quorum` says
    // How long a sum waits for the other workers once its quorum has come.
    absl::Duration grace = absl::ZeroDuration();
  };
  static Options OptionsOf(const job::JobPlan& plan);
  explicit QuorumLeader(const Options& options);

  // A worker's gradient of `step` will be in the next sum that it hears of, or it has left out the steps up
  // to that one. Its steps grow.
  void OnGradient(int worker, int64_t step);
  void OnOutOfData(int worker);
  // It adds nothing before all have settled. `new_epoch`: it has data again then; all workers stand at
  // `step`.
  void OnSettle(int worker, bool new_epoch, int64_t step);

  // What begins now; asked after each event until it is nothing, and when `wake` has come. The time
  // matters only where there is a grace.
  enum class Begins { kNothing, kSum, kLastSum };
  Begins Next(absl::Time now = absl::InfinitePast());
  // When the grace of a sum ends; InfiniteFuture: none has one now.
  absl::Time wake() const { return grace_ends_; }
  // Who goes on with all sums begun so far, since they were last forgotten.
  const std::vector<int>& released() const { return released_; }
  void ForgetReleased() { released_.clear(); }

  bool waits(int worker) const { return of(worker).waits; }
  // Whom those that wait look for: who is least far of those that are to bring a gradient; -1: nobody.
  int WaitingFor() const;

 private:
  struct Worker {
    int64_t through = -1;  // steps below it; -1: not heard of
    bool waits = false, out = false, settles = false, new_epoch = false;
    bool brings() const { return !out && !settles; }  // more gradients, some time
  };
  const Worker& of(int worker) const { return workers_[static_cast<size_t>(worker)]; }
  Worker& of(int worker) { return workers_[static_cast<size_t>(worker)]; }
  size_t Needed() const;
  void Release(int worker);
  Begins Settle();

  const Options options_;
  std::vector<Worker> workers_;
  int64_t summed_ = 0;  // sums of the steps below it have begun
  absl::Time grace_ends_ = absl::InfiniteFuture();
  std::vector<int> released_;
  std::vector<int64_t> sorted_;  // scratch
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_QUORUM_LEADER_H_
