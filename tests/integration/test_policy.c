// A policy that does what its options say: "honest", or one of the faults that `tandem policy check`
// must find. Honest, it is ASP that keeps the admitted steps of each worker in the state of the
// range.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tandem_policy.h"

enum Fault {
  kHonest,
  kBound,       // promises a bound that serve does not keep
  kStart,       // promises a bound that start does not keep
  kOrderFree,   // promises that the order does not matter
  kNeverStarts,
  kNeverServes,
  kHolds,       // holds without saying so
  kDrops,       // drops without saying so
  kKeeps,       // holds updates for ever
  kCrash,
  kNonsense,    // arrive returns 7
  kNan,
  kTicks,       // never stops to tick
  kExit,        // ends the process as if all were well
  kLockstep,    // says lockstep without holding
  kNoName,
};
static const char* const kNames[] = {"honest", "bound", "start", "order_free", "never_starts",
                                     "never_serves", "holds", "drops", "keeps", "crash",
                                     "nonsense", "nan", "ticks", "exit", "lockstep", "no_name"};

static int FaultOf(const tandem_policy_properties* p) { return (int)p->number[0]; }

static const char* Describe(const tandem_policy_job* job, tandem_policy_properties* p) {
  int fault = -1;
  for (int i = 0; i < (int)(sizeof kNames / sizeof kNames[0]); ++i) {
    if (strcmp(job->options, kNames[i]) == 0) fault = i;
  }
  if (fault < 0) return "unknown fault";
  if (fault != kNoName) snprintf(p->name, sizeof p->name, "TEST(%s)", kNames[fault]);
  p->number[0] = fault;
  p->state_bytes = sizeof(int64_t) * (uint64_t)job->workers;
  if (fault == kBound) p->read_bound = 1;
  if (fault == kStart) p->clock_bound = 1;
  p->order_free = fault == kOrderFree;
  p->lockstep = fault == kLockstep;
  p->holds = fault == kKeeps || fault == kTicks;
  return NULL;
}

static int Start(const tandem_policy_properties* p, int64_t step, int64_t min_clock) {
  (void)min_clock;
  return FaultOf(p) != kNeverStarts || step < 2;
}

static int Serve(const tandem_policy_properties* p, const tandem_policy_range* range, int32_t rank,
                 int64_t step, int32_t depth) {
  if (FaultOf(p) == kNeverServes && step > 1) return 0;
  return range->worker[rank].admitted >= step - depth;
}

// The range knows what the state must be. One push may admit several steps of its worker.
static int Arrive(const tandem_policy_properties* p, const tandem_policy_range* range,
                  const tandem_policy_update* update, void* state) {
  int64_t* const admitted = (int64_t*)state;
  if (FaultOf(p) == kCrash && update->step > 1) abort();
  if (FaultOf(p) == kExit && update->step > 1) exit(0);
  for (int rank = 0; rank < range->workers; ++rank) {
    const int64_t now = range->worker[rank].admitted;
    if (rank == update->rank ? admitted[rank] < now : admitted[rank] == now) continue;
    fprintf(stderr, "worker %d has admitted %lld steps, the state says %lld\n", rank,
            (long long)now, (long long)admitted[rank]);
    exit(3);
  }
  admitted[update->rank] = range->worker[update->rank].admitted;
  switch (FaultOf(p)) {
    case kHolds:
    case kKeeps:
      return update->samples > 0 ? TANDEM_POLICY_HOLD : TANDEM_POLICY_APPLY;
    case kDrops:
      return update->step == 2 ? TANDEM_POLICY_DROP : TANDEM_POLICY_APPLY;
    case kNonsense:
      return update->step == 2 ? 7 : TANDEM_POLICY_APPLY;
    default:
      return TANDEM_POLICY_APPLY;
  }
}

static void Apply(const tandem_policy_properties* p, const tandem_policy_range* range,
                  const tandem_policy_update* update, const tandem_policy_group* group,
                  tandem_policy_transform* transform) {
  (void)range;
  (void)update;
  (void)group;
  if (FaultOf(p) == kNan) transform->factor = NAN;
}

static int64_t Tick(const tandem_policy_properties* p, const tandem_policy_range* range,
                    const tandem_policy_held* held, const tandem_policy_pushed* pushed) {
  (void)range;
  (void)held;
  if (FaultOf(p) == kKeeps) return 0;
  return FaultOf(p) == kTicks ? 1 : pushed->steps;
}

const tandem_policy_v1* tandem_policy(void) {
  static const tandem_policy_v1 policy = {sizeof policy, TANDEM_POLICY_VERSION, Describe, Start,
                                          Serve, Arrive, Apply, Tick};
  return &policy;
}
