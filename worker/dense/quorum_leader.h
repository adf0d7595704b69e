// Decides which workers a sum of gradients waits for, if it need not wait for all (dense.quorum:
// Li, Ben-Nun, Di Girolamo, Alistarh, Hoefler 2020, "Taming unbalanced training workloads in deep
// learning with partial collective operations", eager-SGD). A pure core: one object, at rank 0,
// receives the workers' news and decides which sum begins and which workers may continue.
//
// A sum. All workers take part in every sum; a worker without a gradient adds zeros. Sums are
// numbered by steps: the sum of step k begins once a quorum of workers has finished step k (one
// worker under SOLO, more than half of all under MAJORITY). These workers continue with the result
// of the sum. A worker that finishes step k later continues at once, with the sums so far. Its
// gradient is in the next sum, possibly together with its gradient of a later step.
//
// The grace. With a grace, a sum whose quorum is complete waits for the other workers, at most for
// the length of the grace, and only until all have come. The sum does not wait for a worker that is
// further behind, because every sum would have to wait for such a worker (Liu et al. 2024,
// "Asynchronous local-SGD training for language modeling").
//
// The bound. The sum of step k does not begin before every worker has finished step k - bound. So
// no worker is more than `bound` steps behind the sums, and a gradient misses at most `bound` sums:
// at most that many sums begin between the read of a step's parameters and the sum that contains
// the step's gradient.
//
// Skipped steps. A worker whose step came too late for its tables may continue at a later step
// (BACKUP_WORKERS). The worker then sends the same news as for a gradient of the last skipped step.
// Otherwise workers that wait for it at that step would wait for its next gradient, while the
// worker may be waiting for them, at a checkpoint before that gradient.
//
// The end of the data. A worker without data holds nobody back: the leader counts it as if it had
// finished every step. If the workers with data are fewer than the quorum, the first of them begins
// the next sum.
//
// Settling. Before evaluations and checkpoints, once all workers have asked for it, one more sum
// takes the remaining gradients of all workers. A worker that waits for this sum counts like one
// without data. The very first sum waits until rank 0 has news of every worker.
//
// No deadlock with tables that let a worker run ahead of the slowest by a bound (SSP): the slowest
// worker waits for a sum only if all other workers have finished that step, and then that sum
// begins.
//
// Thread safety: none.
#ifndef TANDEM_WORKER_DENSE_QUORUM_LEADER_H_
#define TANDEM_WORKER_DENSE_QUORUM_LEADER_H_

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
    int count = 0;      // above 0: size of the quorum, in place of `quorum`
    // How long a sum waits for the other workers once its quorum is complete.
    absl::Duration grace = absl::ZeroDuration();

    friend bool operator==(const Options&, const Options&) = default;
  };
  static Options OptionsOf(const job::ResolvedJob& plan);
  explicit QuorumLeader(const Options& options);

  // The next sum that the worker hears of will contain its gradient of `step`; or the worker has
  // skipped the steps up to `step`. The steps of one worker grow.
  void OnGradient(int worker, int64_t step);
  void OnOutOfData(int worker);
  // The worker adds nothing before all workers have settled. `new_epoch`: the worker has data again
  // afterwards, and all workers stand at `step`.
  void OnSettle(int worker, bool new_epoch, int64_t step);

  // The sum that begins now. Call it after each event until it returns kNothing, and again at the
  // time `wake`. `now` matters only with a grace.
  enum class Begins { kNothing, kSum, kLastSum };
  Begins Next(absl::Time now = absl::InfinitePast());
  // When the grace of a sum ends; InfiniteFuture: no grace is running.
  absl::Time wake() const { return grace_ends_; }
  // The workers that may continue, with all sums begun so far, since the last ForgetReleased.
  const std::vector<int>& released() const { return released_; }
  void ForgetReleased() { released_.clear(); }

  bool waits(int worker) const { return of(worker).waits; }
  // The worker that the waiting workers wait for: the slowest of those that will still bring a
  // gradient; -1: no worker.
  int WaitingFor() const;

 private:
  struct Worker {
    int64_t through = -1;  // has finished the steps below; -1: no news yet
    bool waits = false, out = false, settles = false, new_epoch = false;
    bool brings() const { return !out && !settles; }  // will bring more gradients
  };
  const Worker& of(int worker) const { return workers_[static_cast<size_t>(worker)]; }
  Worker& of(int worker) { return workers_[static_cast<size_t>(worker)]; }
  size_t Needed() const;
  void Release(int worker);
  Begins Settle();

  const Options options_;
  std::vector<Worker> workers_;
  int64_t summed_ = 0;  // sums of the steps below have begun
  absl::Time grace_ends_ = absl::InfiniteFuture();
  std::vector<int> released_;
  std::vector<int64_t> sorted_;  // scratch memory
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_QUORUM_LEADER_H_
