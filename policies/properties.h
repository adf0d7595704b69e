// What an update policy promises and what it needs. All that those who check, budget, judge or report
// a job look at; nobody but the policy itself asks what kind it is.
#ifndef TANDEM_POLICIES_PROPERTIES_H_
#define TANDEM_POLICIES_PROPERTIES_H_

#include <cstdint>
#include <limits>

namespace tandem::policies {

inline constexpr int64_t kUnbounded = std::numeric_limits<int64_t>::max();

struct Properties {
  // All workers take each step together: every one pushes every step, with n = 0 if it has no data,
  // and the epoch ends at the step whose sum of n is 0. A read of step k sees exactly the steps
  // below k - read_bound.
  bool lockstep = false;
  // The result does not depend on the order in which updates arrive.
  bool order_free = false;
  bool holds = false;  // updates wait in the range's buffer
  // 0: its groups are steps, folded in rank order. Else there is one group, of at most so many
  // updates in the order in which they arrive, and they are folded in that order.
  int64_t batch = 0;
  int64_t delay = 0;  // closed groups that wait before the oldest is applied
  // A worker starts step k only if all others with data have pushed the steps below k - clock_bound.
  int64_t clock_bound = kUnbounded;
  // A read of step k sees every update below step k - read_bound that is not dropped.
  int64_t read_bound = kUnbounded;
  // More than 0: a read of a step below this one sees exactly the steps below its own, as if all took
  // each step together; updates of steps from this one on are applied as they arrive, and wait before
  // they are admitted while a step before it is open. A step that a worker has no data for need not
  // be pushed.
  int64_t switch_step = 0;
  // A worker whose update came too late is told so, and goes on at the step that is open; so nothing
  // else in the job may take every step together.
  bool skips = false;
  bool rows_as_read = false;    // its ranges remember each row as the worker read it
  bool counts_reads = false;    // ... and number the reads (Update::read_number)
  bool measures_steps = false;  // ... and the pace of each worker (WorkerProgress::pace)
  bool keeps_rows = false;      // workers keep rows that they have read (client/row_cache.h)
  int64_t cache_rows = 0;       // ... so many of a table; 0: all they read
  bool store = false;           // no updates: programs write whole rows, and its ranges number that
  // More than 0: its ranges keep a mean square of each element's gradients, which keeps this share of
  // itself at each of them, and Transform::compensation is divided by its root.
  double mean_square_decay = 0;
};

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_PROPERTIES_H_
