// What a synchronous job must compute, as the simplest loop that could: rows in a
// std::unordered_map, all workers played in turn, one after the other. No ranges, versions, frames
// or threads. Of the system it shares only the arithmetic (optim/, the conversion to 16 bits), the
// readers and the dense model.
#ifndef TANDEM_TESTS_INTEGRATION_PLAIN_LOOP_H_
#define TANDEM_TESTS_INTEGRATION_PLAIN_LOOP_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "job/job.h"
#include "tests/integration/model_bits.h"

namespace tandem {

struct PlainLoopResult {
  ModelBits model;
  int64_t steps = 0;         // closed, those without a sample at the ends of epochs included
  int64_t samples = 0;       // trained on
  int64_t uneven_steps = 0;  // in which some workers had no data, but not all
  int64_t short_batches = 0;
};

// Policies: BSP and FIXED_DELAY, of each table and of dense parameters on servers. A fixed delay is
// a queue of folded steps, which is applied in order at the end. Dense gradients: a 16-bit wire as
// `direct` adds it up, and the codecs TOP_K and SIGN, in double precision. Rows that `start` has
// begin with its weights and slots.
absl::StatusOr<PlainLoopResult> RunPlainLoop(const job::ResolvedJob& plan, const ModelBits& start);

}  // namespace tandem

#endif  // TANDEM_TESTS_INTEGRATION_PLAIN_LOOP_H_
