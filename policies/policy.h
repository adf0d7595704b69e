// The interface of an update policy: data in, decisions out. A policy decides four things from what
// a range knows of its workers:
//   start  may this worker begin its next step?
//   serve  may the range answer this read now?
//   apply  is an arriving update applied, held or dropped, and how does it change on its way to the
//          optimizer?
//   tick   by how much does the version move now? Each tick also closes the oldest group of held
//          updates.
//
// The same objects run on shards, on workers (start only) and in the simulator. An object keeps no
// state: it sees only its arguments. These are RangeProgress, the sizes of the buffer of held
// updates (Buffered), the last push (Pushed), the numbers of each update, the updates that are
// applied with it (Group) and, if the policy asks for them, rows as they were read. The range takes
// its progress and held updates along when it moves, and checkpoints contain them. Pushed and Group
// exist for one call. Code that checks, budgets or judges a job reads the policy's Properties and
// never asks for its kind.
//
// To add a policy, write a file like backup_workers.cc, and add a row in kinds.cc, a kind (and its
// field, if it has one) in proto/job.proto and a row in tests/unit/policies/policy_test.cc.
#ifndef TANDEM_POLICIES_POLICY_H_
#define TANDEM_POLICIES_POLICY_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "policies/properties.h"
#include "proto/job.pb.h"

namespace tandem::policies {

// The clock of a worker that has run out of data in this epoch, so that nobody waits for it.
inline constexpr int64_t kInfiniteClock = std::numeric_limits<int64_t>::max();

// How fast a worker pushes, measured by the times at which the range admitted its pushes:
// microseconds of the range owner's monotonic clock (Update::admitted_at). The range keeps it only
// for policies that ask for it (Properties::measures_steps).
struct WorkerPace {
  int64_t last_push = -1;  // -1: no push yet, or none by this owner's clock in this epoch
  int64_t step_time = 0;   // time between the last two pushes; 0: not known yet
  bool known() const { return last_push >= 0 && step_time > 0; }
};

// Records that a push was admitted. `whole_step`: the push carries a step with data. Any other
// push, which ends an epoch or begins the next one, says nothing about the pace and starts the
// measurement anew.
void MeasureStep(WorkerPace* pace, int64_t admitted_at, bool whole_step);

// The memory that a range has of one worker. `admitted` serves two purposes. It makes pushes count
// exactly once: a push of a step below `admitted` is a duplicate. It also keeps the sequence: the
// next push must be of step `admitted`.
struct WorkerProgress {
  uint64_t incarnation = 0;
  int64_t admitted = 0;   // steps admitted: held, applied, merged or dropped
  int64_t applied = 0;    // steps whose updates readers see (BSP: closed steps)
  bool finished = false;  // out of data until its next push: clock infinite

  friend bool operator==(const WorkerProgress&, const WorkerProgress&) = default;
};

class Clocks;  // policies/clocks.h

struct RangeProgress {
  int64_t version = 0;                  // ticks so far
  std::vector<WorkerProgress> workers;  // by rank
  std::vector<WorkerPace> paces;        // by rank, if they are measured
  std::vector<uint8_t> state;           // of the policy: Properties::state_bytes
  // Set in the progress of a range: holds the answers to the questions below, and changes with
  // each step. If it is null, as in a checkpoint, the methods look at each worker. A copy of the
  // progress must not keep it.
  const Clocks* clocks = nullptr;

  // The smallest `applied` over workers that still have data; kInfiniteClock if no worker has data.
  int64_t MinClock() const;
  int64_t MinApplied() const;       // smallest `applied` over all workers
  int64_t MinAdmitted() const;      // smallest `admitted` over all workers
  int64_t MinAdmittedLive() const;  // ... over workers with data
  int Live() const;                 // workers that still have data
  int Slowest() const;              // rank with the fewest admitted steps among workers with data
  int64_t Admitted() const;         // sum of `admitted` over all workers
  // The number of admitted steps from `step` on, summed over all workers. `step` must be the
  // policy's Properties::switch_step.
  int64_t AdmittedBeyond(int64_t step) const;

  // Compares what was admitted, not when it was admitted.
  friend bool operator==(const RangeProgress& a, const RangeProgress& b) {
    return a.version == b.version && a.workers == b.workers;
  }
};

// The part of a range's progress that reads of all workers may wait for.
struct Front {
  // If the policy holds the updates of a step until the step closes; else 0. Stays at
  // Properties::switch_step after a switch.
  int64_t version = 0;
  int64_t min_clock = 0;  // RangeProgress::MinClock
  int slowest = 0;        // RangeProgress::Slowest, if the policy measures steps; else 0
  int64_t admitted = 0;   // RangeProgress::Admitted, if the policy asks again; else 0
  friend bool operator==(const Front&, const Front&) = default;
};
Front FrontOf(const RangeProgress& progress, const Properties& properties);

inline constexpr uint64_t kUnknownPositives = std::numeric_limits<uint64_t>::max();

// The numbers of one worker's update of one range: the gradient sums of a step.
struct Update {
  int rank = 0;
  int64_t step = 0;
  uint64_t samples = 0;      // n: how many samples the sums are over
  bool skipped = false;      // no samples, because the worker has skipped its batch of this step
  int64_t version_read = 0;  // version of the range when the worker read the rows
  // When the owner of the range admitted the update, in microseconds of the owner's monotonic clock
  // (base/clock.h). Only stamps of the same owner can be compared. The stamp is set once;
  // afterwards it moves with the held update and is part of checkpoints.
  int64_t admitted_at = 0;
  // How many reads of the range, by any worker, came before the read that this update is computed
  // from. -1: reads are not counted (Properties::counts_reads), or the read was made by another
  // run. A read without rows in this range counts when it arrives.
  int64_t read_number = -1;
  // The progress of the job at this step, in nominal samples (Schedule in proto/job.proto).
  int64_t sample_clock = 0;
  // How many of the samples have label 1; kUnknownPositives: the worker does not know labels.
  uint64_t positives = kUnknownPositives;
};

// The view that a policy has of the updates that the range holds. The updates lie in groups, the
// oldest first. A tick folds the oldest group into one step of the optimizer.
struct Buffered {
  int64_t groups = 0;
  // Updates with samples in the oldest group, whether or not they have rows in this range.
  int64_t oldest = 0;
  // With Properties::fold_by_worker: the oldest group has an update of each worker that still has
  // data. False if no group is open.
  bool from_all = false;
};

// The view that a policy has of the updates that one step of the optimizer applies: an update by
// itself, or a group in the order in which its updates are added. Updates without rows in this
// range are not listed (unless Properties::fold_by_worker), but samples() counts them. Valid while
// the range keeps the updates.
class Group {
 public:
  explicit Group(const Update& only) : Group(&only, sizeof only, 1, only.samples) {}
  // U derives from Update.
  template <typename U>
  Group(absl::Span<const U> updates, uint64_t samples)
      : Group(updates.data(), sizeof(U), updates.size(), samples) {}

  size_t size() const { return size_; }
  const Update& operator[](size_t i) const {
    return *reinterpret_cast<const Update*>(reinterpret_cast<const char*>(first_) + i * stride_);
  }
  uint64_t samples() const { return samples_; }

 private:
  Group(const Update* first, size_t stride, size_t size, uint64_t samples)
      : first_(first), stride_(stride), size_(size), samples_(samples) {}

  const Update* first_;
  size_t stride_, size_;  // bytes from one update to the next; updates
  uint64_t samples_;
};

// The result of one push of a worker.
struct Pushed {
  int64_t steps = 0;    // admitted: applied, held or dropped
  int64_t applied = 0;  // updates that were applied by themselves: 1 or 0. An update without
                        // samples, or with factor 0, does not count.
};

enum class Arrival {
  kApply,  // now, by itself
  kHold,   // in the buffer
  kDrop,
};

// How a gradient changes on its way to the optimizer, in addition to the division by n. A mean
// gradient g becomes, element by element,
//   factor * (g + compensation * g * g * (row now - row as read)).
// The compensation (Zheng et al. 2017) needs Properties::rows_as_read; without it, or if the range
// no longer remembers the row, the gradient is not compensated. An update with factor 0 is dropped.
// In a fold its n still counts in the divisor.
struct Transform {
  float factor = 1;
  float compensation = 0;
  // The factor of the learning rate, which Adam feels, unlike `factor`. A fold takes the smallest
  // one of its updates.
  float rate = 1;
  // The part of `factor` that all updates of the policy have (Policy.async_scale), so that it says
  // nothing about this one. Above 0.
  float weight = 1;
  // For momentum in groups of updates (policies/ordered_momentum.cc); optim::OptimizerStep has the
  // same. Not in a fold.
  int64_t groups_late = -1;
  bool begins_group = false;

  // How much of the update counts.
  float share() const { return factor * rate / weight; }
};

class UpdatePolicy {
 public:
  virtual ~UpdatePolicy() = default;

  // The name in summaries, for example "SSP(4)".
  virtual std::string name() const = 0;
  virtual Properties properties() const = 0;

  // start: may a worker begin `step`? `min_clock` is the largest minimum clock that any shard has
  // reported to the worker. It is a lower bound of the true minimum, so the check is safe.
  virtual bool MayStart(int64_t step, int64_t min_clock) const = 0;

  // serve: may the range answer worker `rank`'s read for `step` now? `depth`: how many steps ahead
  // the worker prefetches.
  //
  // The decision may depend on the front of the range (FrontOf), on the reader's own progress and
  // pace, and on the pace of the slowest worker. Unless the policy asks again
  // (Properties::asks_again), it must not depend on anything else: a read that
  // has to wait is decided again only after a push of its own worker or a change of the front. (The
  // pace of the slowest worker changes with its push, which also changes the front.)
  virtual bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const = 0;

  // apply: what happens to an update that has just been admitted. `progress` already counts it.
  virtual Arrival OnArrival(const RangeProgress& progress, const Update& update) const = 0;

  // After OnArrival, for policies that have state: changes the state of the range. `progress` is as
  // in OnArrival, and its state is the one that changes.
  virtual void Remember(const RangeProgress& /*progress*/, const Update& /*update*/,
                        absl::Span<uint8_t> /*state*/) const {}

  // apply: how the update changes when it reaches the optimizer, by itself or in a fold. `group`:
  // the updates that are applied with it, and the update.
  virtual Transform OnApply(const RangeProgress& progress, const Update& update,
                            const Group& group) const = 0;
  // The same for an update by itself.
  Transform OnApply(const RangeProgress& progress, const Update& update) const {
    return OnApply(progress, update, Group(update));
  }

  // tick: by how much the version moves after a push. If the policy holds updates, the range asks
  // again, with zeros in `pushed`, until the policy returns 0. Each tick closes the oldest group,
  // if a group is open.
  virtual int64_t Ticks(const RangeProgress& progress, const Buffered& buffered,
                        const Pushed& pushed) const = 0;
};

// Constructs the policy. `config` must be resolved: its kind and the fields that the kind needs are
// set, and their values have passed the checks of a job.
absl::StatusOr<std::unique_ptr<UpdatePolicy>> NewUpdatePolicy(const Policy& config, int workers);

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_POLICY_H_
