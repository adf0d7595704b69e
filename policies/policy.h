// An update policy is four decisions over what a range knows of its workers' progress:
//   start  may this worker begin its next step?
//   serve  may this read be answered now?
//   apply  is an arriving update applied, held or dropped, and with what factor?
//   tick   when does the version move, and which held updates are folded then?
//
// The same objects run on shards, on workers (start) and in the simulator. A policy keeps no state:
// all that it may look at is in RangeProgress, which moves and is saved with its range.
// To add one: a file beside bsp.cc, a line in factory.cc, a row in tests/unit/policy_test.cc.
#ifndef TANDEM_POLICIES_POLICY_H_
#define TANDEM_POLICIES_POLICY_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/job.pb.h"

namespace tandem {

// The clock of a worker that has run out of data this epoch: it holds nobody back.
inline constexpr int64_t kInfiniteClock = std::numeric_limits<int64_t>::max();

// What a range remembers of one worker. `admitted` is at once the exactly-once memory (a push of a
// step below it is a duplicate) and the sequence (the next push must be that step).
struct WorkerProgress {
  uint64_t incarnation = 0;
  int64_t admitted = 0;    // steps admitted: held, applied, merged or dropped
  int64_t applied = 0;     // steps whose update readers see (BSP: of closed steps)
  bool finished = false;   // out of data until its next push: clock infinite

  friend bool operator==(const WorkerProgress&, const WorkerProgress&) = default;
};

struct RangeProgress {
  int64_t version = 0;                  // ticks so far
  std::vector<WorkerProgress> workers;  // by rank

  // Smallest applied clock over workers that still have data; kInfiniteClock if none has.
  int64_t MinClock() const;
  int64_t MinAdmitted() const;  // likewise, of `admitted`, finished workers included
  int Slowest() const;          // the rank with data left that has the fewest steps admitted

  friend bool operator==(const RangeProgress&, const RangeProgress&) = default;
};

enum class Arrival {
  kApply,  // now, by itself
  kHold,   // until the step closes
  kDrop,
};

class UpdatePolicy {
 public:
  virtual ~UpdatePolicy() = default;

  // As written in summaries: "SSP(4)".
  virtual std::string name() const = 0;

  // start: may a worker begin `step`, when the largest minimum clock any shard has reported to it is
  // `min_clock` (a lower bound of the true one, so the check is safe)?
  virtual bool MayStart(int64_t step, int64_t min_clock) const = 0;

  // serve: may worker `rank` read the range for `step` now, when it reads `depth` steps ahead?
  virtual bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const = 0;

  // apply: what happens to the update of `rank` for `step`, which has just been admitted.
  virtual Arrival OnArrival(const RangeProgress& progress, int rank, int64_t step) const = 0;

  // apply: the factor of an update applied by itself, beside 1/n; 1 for folds.
  virtual float Scale(const RangeProgress& progress, int rank, int64_t step) const = 0;

  // tick: may the oldest open step (number progress.version) close now, its held updates be folded
  // in rank order and the version move? Only asked of policies that hold.
  virtual bool MayClose(const RangeProgress& progress) const = 0;

  // How many closed, folded steps wait in the queue before the oldest is applied (fixed delay).
  virtual int64_t Delay() const = 0;

  // True if all workers take each step together (the epoch ends at the step with sum of n = 0).
  virtual bool Lockstep() const = 0;
};

// `config` must be resolved: kind set, and bound or delay where the kind needs one.
absl::StatusOr<std::unique_ptr<UpdatePolicy>> NewUpdatePolicy(const Policy& config, int workers);

}  // namespace tandem

#endif  // TANDEM_POLICIES_POLICY_H_
