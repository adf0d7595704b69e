// SSP (Ho et al. 2013) as a policy of your own: a worker may be `bound` steps ahead of the slowest
// one, and each update is applied when it arrives. Options: "bound=2".
//
//   cc -O2 -shared -fPIC -Ipolicies -o libssp.so examples/policy/ssp.c
//   tandem policy check libssp.so --options bound=2
//   tandem run JOB --set 'policy={kind: PLUGIN library: "libssp.so" options: "bound=2"}'
#include <stdio.h>

#include "tandem_policy.h"

static const char* Describe(const tandem_policy_job* job, tandem_policy_properties* p) {
  long bound;
  char rest;
  if (sscanf(job->options, "bound=%ld%c", &bound, &rest) != 1 || bound < 0 || bound > 1048576) {
    return "expected bound=N, with N from 0 to 1048576";
  }
  snprintf(p->name, sizeof p->name, "SSP(%ld)", bound);
  p->clock_bound = p->read_bound = bound;
  return NULL;
}

static int Start(const tandem_policy_properties* p, int64_t step, int64_t min_clock) {
  return min_clock >= step - p->clock_bound;
}

// A reader also sees its own updates, but for those of the steps that it reads ahead.
static int Serve(const tandem_policy_properties* p, const tandem_policy_range* range, int32_t rank,
                 int64_t step, int32_t depth) {
  return range->min_clock >= step - p->read_bound && range->worker[rank].applied >= step - depth;
}

static int Arrive(const tandem_policy_properties* p, const tandem_policy_range* range,
                  const tandem_policy_update* update, void* state) {
  return TANDEM_POLICY_APPLY;
}

static void Apply(const tandem_policy_properties* p, const tandem_policy_range* range,
                  const tandem_policy_update* update, const tandem_policy_group* group,
                  tandem_policy_transform* transform) {}

static int64_t Tick(const tandem_policy_properties* p, const tandem_policy_range* range,
                    const tandem_policy_held* held, const tandem_policy_pushed* pushed) {
  return pushed->steps;
}

const tandem_policy_v1* tandem_policy(void) {
  static const tandem_policy_v1 policy = {sizeof policy, TANDEM_POLICY_VERSION, Describe, Start,
                                          Serve, Arrive, Apply, Tick};
  return &policy;
}
