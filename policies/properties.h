// The promises and the needs of an update policy. Code that checks, budgets, judges or reports a
// job reads only these properties. Nothing but the policy itself depends on its kind.
#ifndef TANDEM_POLICIES_PROPERTIES_H_
#define TANDEM_POLICIES_PROPERTIES_H_

#include <cstdint>
#include <limits>

namespace tandem::policies {

inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

struct Properties {
  // All workers take each step together: each worker pushes every step, with n = 0 if it has no
  // data, and the epoch ends at the step whose sum of n is 0. A read of step k sees exactly the
  // steps below k - read_bound.
  bool lockstep = false;
  // The result does not depend on the order in which updates arrive.
  bool order_free = false;
  bool holds = false;  // updates wait in the range's buffer
  // 0: each held group is a step, folded in rank order. More than 0: there is one open group of at
  // most `batch` updates, which are held and folded in the order of their arrival.
  int64_t batch = 0;
  // With `batch`: a fold is the mean over the workers of each worker's mean. The open group has any
  // number of updates of a worker. Their gradients are added up while they wait, so that they take
  // at most about twice the memory of the rows of `batch` workers.
  bool fold_by_worker = false;
  // The version counts applied updates with samples, or batches of them, alone. So the steps of the
  // workers do not tell the version. A policy that drops updates does so in each range by itself,
  // so the ranges of a table may have different versions at the same steps.
  bool counts_applied = false;
  int64_t delay = 0;  // closed groups that wait before the oldest one is applied
  // A worker starts step k only if all other workers with data have pushed the steps below k -
  // clock_bound.
  int64_t clock_bound = kUnbounded;
  // A read of step k sees every update below step k - read_bound, except dropped ones.
  int64_t read_bound = kUnbounded;
  // More than 0: a read of a step below switch_step sees exactly the steps below its own, as if the
  // workers took each step together. Updates of later steps are applied as they arrive, but the
  // range does not admit them while a step below switch_step is open. A worker need not push a step
  // that it has no data for.
  int64_t switch_step = 0;
  // An update that comes too late may be dropped: the model never gets its gradient.
  bool drops = false;
  // A worker whose update came too late is told so and continues at the open step. Therefore
  // nothing else in the job may take every step together.
  bool skips = false;
  bool rows_as_read = false;    // ranges remember each row as the worker read it
  bool counts_reads = false;    // ranges number the reads (Update::read_number)
  bool measures_steps = false;  // ranges measure the pace of each worker (WorkerPace)
  bool keeps_rows = false;      // workers keep rows that they have read (client/row_cache.h)
  int64_t cache_rows = 0;       // ... at most so many of a table; 0: all that they read
  // A read that waits is asked for again after every push, whatever the push changed.
  bool asks_again = false;
  uint64_t state_bytes = 0;  // that ranges keep for the policy (RangeProgress::state)
  bool store = false;        // no updates: programs write whole rows, and ranges number the writes
  // More than 0: ranges keep a mean square of each element's gradients and divide
  // Transform::compensation by its root. At each gradient the mean square keeps this share of its
  // old value.
  double mean_square_decay = 0;
};

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_PROPERTIES_H_
