// What follows from the facts of a job, in sentences: what it should mind as it is, and what would make
// another way the fastest. Nothing here changes a job.
//
// Pure; any thread.
#ifndef TANDEM_PLAN_ADVICE_H_
#define TANDEM_PLAN_ADVICE_H_

#include <functional>
#include <string>
#include <vector>

#include "job/job.h"
#include "plan/estimate.h"
#include "plan/facts.h"

namespace tandem::plan {

// One line each, with the number: a bound that waits for a worker which is always slow, and whether
// ASP would help beside what else the job waits by; backup workers where nobody is slow; a delay
// that leaves little of the steps that are stable.
std::vector<std::string> Warnings(const job::JobPlan& plan, const Facts& facts);

// What the job says that the model (plan/estimate.h) takes for something else, one line each, with which way the
// figures of the job as it is are off by it. Of the proposed ways only what is said of dense replicas
// matters, where they have them.
std::vector<std::string> NotCounted(const job::JobPlan& plan);

// The largest learning rate that is stable at a constant delay of `delay` updates, as a part of the
// largest without: plain SGD on a quadratic, sin(pi / (2 (2 delay + 1))).
double StableShare(double delay);

// Where another way becomes faster than the fastest of now by more than the model cannot tell: with
// slower or faster links, and with more workers. Of ways that `may` be taken with so many workers.
std::vector<std::string> WhatWouldChange(const Facts& facts,
                                         const std::function<bool(const Way&, int workers)>& may);

}  // namespace tandem::plan

#endif  // TANDEM_PLAN_ADVICE_H_
