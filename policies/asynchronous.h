// Policies that apply each update when it arrives: ASP bounds nothing, SSP bounds the clock gap.
#ifndef TANDEM_POLICIES_ASYNCHRONOUS_H_
#define TANDEM_POLICIES_ASYNCHRONOUS_H_

#include <memory>

#include "policies/policy.h"

namespace tandem {

// Asynchronous parallel: a worker waits for nobody; it reads its own writes up to its depth.
// `scale` multiplies each update beside 1/n (1, or 1/workers).
std::unique_ptr<UpdatePolicy> NewAsp(float scale);

// Stale synchronous parallel (Ho et al. 2013): a worker is at most `bound` steps ahead of the slowest
// one that still has data, and a read for step k sees all steps before k - bound of everybody.
std::unique_ptr<UpdatePolicy> NewSsp(int bound, float scale);

}  // namespace tandem

#endif  // TANDEM_POLICIES_ASYNCHRONOUS_H_
