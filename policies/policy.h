// An update policy: data in, decisions out. Four of them, over what a range knows of its workers:
//   start  may this worker begin its next step?
//   serve  may this read be answered now?
//   apply  is an arriving update applied, held or dropped, and how is it changed on its way to the
//          optimizer?
//   tick   by how much does the version move now? With it goes the oldest part of what is held.
//
// The same objects run on shards, on workers (start) and in the simulator. A policy keeps no state.
// All that it may look at is in its arguments, and all of that moves and is saved with the range:
// RangeProgress, the buffer of held updates (Buffered says what a policy sees of it), the numbers of
// each update and, if it asks for them, rows as they were read. What it says of itself to those
// who check, budget or judge a job is in Properties; nobody else asks what kind it is.
//
// To add one: a file beside backup_workers.cc, a row in kinds.cc, a kind (and its knob, if it has
// one) in proto/job.proto, a row in tests/unit/policy_test.cc and one in docs/JOB.md.
#ifndef TANDEM_POLICIES_POLICY_H_
#define TANDEM_POLICIES_POLICY_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "policies/properties.h"
#include "proto/job.pb.h"

namespace tandem::policies {

// The clock of a worker that has run out of data this epoch: it holds nobody back.
inline constexpr int64_t kInfiniteClock = std::numeric_limits<int64_t>::max();

// How fast a worker pushes, by the times at which the range admitted its pushes: microseconds of its
// owner's monotonic clock (Update::admitted_at). Kept for policies that ask for it
// (Properties::measures_steps).
struct WorkerPace {
  int64_t last_push = -1;  // -1: of another owner's clock, or of an epoch before, or none yet
  int64_t step_time = 0;   // between the last two; 0: not known yet
  bool known() const { return last_push >= 0 && step_time > 0; }
};

// A push was admitted. `whole_step`: of data; what ends an epoch, or begins the next, says nothing of the
// pace.
void MeasureStep(WorkerPace* pace, int64_t admitted_at, bool whole_step);

// What a range remembers of one worker. `admitted` is at once the exactly-once memory (a push of a
// step below it is a duplicate) and the sequence (the next push must be that step).
struct WorkerProgress {
  uint64_t incarnation = 0;
  int64_t admitted = 0;   // steps admitted: held, applied, merged or dropped
  int64_t applied = 0;    // steps whose update readers see (BSP: of closed steps)
  bool finished = false;  // out of data until its next push: clock infinite

  friend bool operator==(const WorkerProgress&, const WorkerProgress&) = default;
};

class Clocks;  // policies/clocks.h

struct RangeProgress {
  int64_t version = 0;                  // ticks so far
  std::vector<WorkerProgress> workers;  // by rank
  std::vector<WorkerPace> paces;        // by rank, if they are measured
  // Of very many workers: has the answers to what is asked below of all of them. Null: these are found by
  // looking at each. Outlives this.
  const Clocks* clocks = nullptr;

  // Smallest applied clock over workers that still have data; kInfiniteClock if none has.
  int64_t MinClock() const;
  int64_t MinAdmitted() const;      // likewise, of `admitted`, finished workers included
  int64_t MinAdmittedLive() const;  // ... and not included
  int Live() const;                 // workers that still have data
  int Slowest() const;              // the rank with data left that has the fewest steps admitted
  // Steps from `step` on, of all workers; `step` is Properties::switch_step of the policy.
  int64_t AdmittedBeyond(int64_t step) const;

  // Of what was admitted; not of when.
  friend bool operator==(const RangeProgress& a, const RangeProgress& b) {
    return a.version == b.version && a.workers == b.workers;
  }
};

// The numbers of one worker's update of one range: the gradient sums of a step.
struct Update {
  int rank = 0;
  int64_t step = 0;
  uint64_t samples = 0;      // n of the sums
  int64_t version_read = 0;  // of the range, when the rows were read
  // When the owner of the range admitted it: microseconds of that owner's monotonic clock
  // (base/clock.h), so only stamps of one owner can be compared. Stamped once; it moves and is saved
  // with what is held, and is never read from a clock again.
  int64_t admitted_at = 0;
  // Reads of the range, by any worker, before the one that this update comes from; -1: not counted
  // (Properties::counts_reads), or by another run. One that had nothing to read here counts when it
  // arrives.
  int64_t read_number = -1;
};

// What a policy sees of the updates it holds. They lie in groups, oldest first, each of which is
// folded into one step of the optimizer when its tick comes.
struct Buffered {
  int64_t groups = 0;
  int64_t oldest =
      0;  // updates with samples in the oldest group, whether or not they have rows here
};

enum class Arrival {
  kApply,  // now, by itself
  kHold,   // in the buffer
  kDrop,
};

// How a gradient changes on its way to the optimizer, beside the division by n:
//   factor * (g + compensation * g * g * (row now - row as read)), element by element, of a mean g.
// The compensation (Zheng et al. 2017) needs Properties::rows_as_read; without it, or where a row is
// not remembered, there is none. An update with factor 0 is dropped; in a fold its n counts.
struct Transform {
  float factor = 1;
  float compensation = 0;
};

class UpdatePolicy {
 public:
  virtual ~UpdatePolicy() = default;

  // As written in summaries: "SSP(4)".
  virtual std::string name() const = 0;
  virtual Properties properties() const = 0;

  // start: may a worker begin `step`, when the largest minimum clock any shard has reported to it is
  // `min_clock` (a lower bound of the true one, so the check is safe)?
  virtual bool MayStart(int64_t step, int64_t min_clock) const = 0;

  // serve: may worker `rank` read the range for `step` now, when it reads `depth` steps ahead?
  virtual bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const = 0;

  // apply: what becomes of an update that has just been admitted (it counts in `progress`).
  virtual Arrival OnArrival(const RangeProgress& progress, const Update& update) const = 0;

  // apply: asked when an update reaches the optimizer, by itself or in a fold.
  virtual Transform OnApply(const RangeProgress& progress, const Update& update) const = 0;

  // tick: by how much the version moves, `steps` steps of one worker having just been admitted (and
  // applied, held or dropped). Policies that hold are asked again, with steps 0, until they say 0:
  // each tick closes the oldest group, if there is one.
  virtual int64_t Ticks(const RangeProgress& progress, const Buffered& buffered,
                        int64_t steps) const = 0;
};

// `config` must be resolved: kind set, and the knobs that the kind needs.
absl::StatusOr<std::unique_ptr<UpdatePolicy>> NewUpdatePolicy(const Policy& config, int workers);

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_POLICY_H_
