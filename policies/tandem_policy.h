// An update policy of your own: a shared library in C, for `policy { kind: PLUGIN }`. The library
// exports tandem_policy, which returns a table of functions. docs/PLUGINS.md shows one, and
// policies/policy.h explains the decisions and the order in which they are asked for.
//
// A policy keeps no memory of its own. Each function sees only its arguments, and the same
// arguments must give the same results: runs are recorded, repeated and continued elsewhere. A
// policy that must remember something asks for `state_bytes`, which each range keeps for it.
// Any thread may call any function at any time.
#ifndef TANDEM_POLICIES_TANDEM_POLICY_H_
#define TANDEM_POLICIES_TANDEM_POLICY_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define TANDEM_POLICY_VERSION 1
#define TANDEM_POLICY_UNBOUNDED INT64_MAX
#define TANDEM_POLICY_MAX_STATE 4096

// The job that the policy serves.
typedef struct {
  int32_t workers;
  const char* options;  // policy.options of the job, "" if there are none
} tandem_policy_job;

// The promises and the needs of the policy. Before `describe`, all fields are 0 and both bounds are
// TANDEM_POLICY_UNBOUNDED: the policy promises nothing. `tandem policy check` finds promises that
// are not kept. `lockstep`, `batch` and `delay` need `holds`.
typedef struct {
  char name[64];         // for summaries, such as "SSP(4)"; required
  int32_t lockstep;      // 1: all workers take each step together; see policies/properties.h
  int32_t order_free;    // 1: the result does not depend on the order of arrival
  int32_t holds;         // 1: `arrive` may return TANDEM_POLICY_HOLD
  int32_t skips;         // 1: `arrive` may return TANDEM_POLICY_DROP; needs held steps
  int32_t counts_reads;  // 1: tandem_policy_update.read_number is needed
  int32_t rows_as_read;  // 1: tandem_policy_transform.compensation is used
  int64_t batch;         // updates of a held group, to 65,536, if groups are no steps; else 0
  int64_t delay;         // closed groups, to 1,024, that wait before the oldest one is applied
  // A worker starts step k only after all other workers with data have pushed the steps below
  // k - clock_bound.
  int64_t clock_bound;
  int64_t read_bound;    // a read of step k sees all updates below k - read_bound
  uint64_t state_bytes;  // of each range, zero at first; at most TANDEM_POLICY_MAX_STATE
  double number[8];      // for the policy itself, such as its options as numbers
} tandem_policy_properties;

// A worker, as a range knows it.
typedef struct {
  uint64_t process;  // number of its process; 0: none has pushed yet
  int64_t admitted;  // steps admitted: held, applied or dropped
  int64_t applied;   // steps whose updates readers see
  uint8_t finished;  // 1: out of data until its next push
} tandem_policy_worker;

// A range. The minima are over all workers (INT64_MAX if there are none).
typedef struct {
  int64_t version;  // ticks so far
  int32_t workers;
  int32_t live;                        // workers with data
  const tandem_policy_worker* worker;  // by rank
  int64_t min_clock;                   // smallest `applied` of workers with data
  int64_t min_applied;
  int64_t min_admitted;
  int64_t min_admitted_live;  // of workers with data
  int64_t admitted;           // sum of `admitted`
  const void* state;          // state_bytes
} tandem_policy_range;

// One worker's update of a range.
typedef struct {
  int32_t rank;
  int32_t skipped;  // 1: no samples, because the worker has skipped its batch
  int64_t step;
  uint64_t samples;
  int64_t version_read;  // version of the range when the worker read the rows
  int64_t read_number;   // how many reads of the range came before its own; -1: unknown
} tandem_policy_update;

// The updates that one step of the optimizer applies.
typedef struct {
  uint64_t updates;
  uint64_t samples;
} tandem_policy_group;

// How an update changes on its way to the optimizer; see Transform in policies/policy.h.
typedef struct {
  float factor;        // 1 at first; 0 drops the update
  float rate;          // 1 at first; a factor of the learning rate, at least 0; 1 with `holds`
  float compensation;  // 0 at first; only with `rows_as_read`
} tandem_policy_transform;

// The held updates of a range.
typedef struct {
  int64_t groups;
  int64_t oldest;  // updates with samples in the oldest group
} tandem_policy_held;

// The last push. Zeros if the range calls `tick` again after a tick.
typedef struct {
  int64_t steps;
  int64_t applied;  // updates applied by themselves
} tandem_policy_pushed;

enum { TANDEM_POLICY_APPLY = 0, TANDEM_POLICY_HOLD = 1, TANDEM_POLICY_DROP = 2 };

typedef struct {
  uint64_t size;     // sizeof(tandem_policy_v1)
  uint32_t version;  // TANDEM_POLICY_VERSION

  // Fills in the properties. NULL, or why the options are refused: text that stays valid.
  const char* (*describe)(const tandem_policy_job* job, tandem_policy_properties* properties);
  // May a worker begin `step`? `min_clock`: a lower bound of the smallest clock. 0 or 1.
  int (*start)(const tandem_policy_properties* properties, int64_t step, int64_t min_clock);
  // May the range answer worker `rank`'s read for `step` now? The worker reads `depth` steps ahead.
  // After each push to the range, the range calls `serve` again for every waiting read. 0 or 1.
  int (*serve)(const tandem_policy_properties* properties, const tandem_policy_range* range,
               int32_t rank, int64_t step, int32_t depth);
  // An update was admitted, and the range counts it. Returns what happens to it, and may change
  // `state`, which range->state points to and which is aligned for any type. With `state_bytes`
  // the range calls it twice for an update: first with a copy of the state, whose answer counts,
  // then with the state.
  int (*arrive)(const tandem_policy_properties* properties, const tandem_policy_range* range,
                const tandem_policy_update* update, void* state);
  // Changes `transform`.
  void (*apply)(const tandem_policy_properties* properties, const tandem_policy_range* range,
                const tandem_policy_update* update, const tandem_policy_group* group,
                tandem_policy_transform* transform);
  // By how much the version moves after a push, 0 to 2^20. Each tick closes the oldest held group.
  // With `holds` the range calls it until it returns 0. It must return 0 if pushed->steps and
  // held->groups are 0.
  int64_t (*tick)(const tandem_policy_properties* properties, const tandem_policy_range* range,
                  const tandem_policy_held* held, const tandem_policy_pushed* pushed);
} tandem_policy_v1;

// The library exports this function.
const tandem_policy_v1* tandem_policy(void);

#ifdef __cplusplus
}
#endif

#endif  // TANDEM_POLICIES_TANDEM_POLICY_H_
