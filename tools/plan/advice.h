// Advice in sentences, from the facts of a job: what the user should check in the current job, and
// what would make another strategy the fastest. Nothing here changes a job.
//
// Pure; any thread.
#ifndef TANDEM_TOOLS_PLAN_ADVICE_H_
#define TANDEM_TOOLS_PLAN_ADVICE_H_

#include <functional>
#include <string>
#include <vector>

#include "job/job.h"
#include "tools/plan/estimate.h"
#include "tools/plan/facts.h"

namespace tandem::plan {

// One line for each problem, with its number. A staleness bound that waits for a worker which is
// always slow, and whether ASP would help despite the other waits of the job. Backup workers
// although no worker is slow. A delay at which only small learning rates are stable.
std::vector<std::string> Warnings(const job::ResolvedJob& plan, const Facts& facts);

// Settings of the job that the model (tools/plan/estimate.h) does not cover. One line each, which
// says whether the estimate of the current job is too high or too low because of it. For the
// proposed strategies only the lines about dense replicas matter, if the strategy has replicas.
std::vector<std::string> NotCounted(const job::ResolvedJob& plan);

// The largest learning rate that is stable at a constant delay of `delay` updates, divided by the
// largest without a delay: sin(pi / (2 (2 delay + 1))), for plain SGD on a quadratic.
double StableShare(double delay);

// Link speeds and numbers of workers at which another strategy becomes faster than the currently
// fastest one, by more than the error of the model (kAlike). Considers strategies for which `may`
// returns true.
std::vector<std::string> WhatWouldChange(
    const Facts& facts, const std::function<bool(const Strategy&, int workers)>& may);

}  // namespace tandem::plan

#endif  // TANDEM_TOOLS_PLAN_ADVICE_H_
