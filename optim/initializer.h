// Initial values of rows and of dense parameters. They are a pure function of (seed, key or index).
// They do not depend on the order in which rows are created or on who owns the rows.
#ifndef TANDEM_OPTIM_INITIALIZER_H_
#define TANDEM_OPTIM_INITIALIZER_H_

#include <cstdint>

#include "absl/types/span.h"
#include "proto/job.pb.h"

namespace tandem::optim {

// Fills `row` with the initial values of `key`. `seed` already mixes the job's seed and the table's
// or parameter's name. A default config (INITIALIZER_UNSPECIFIED) means UNIFORM with scale
// 1/sqrt(row.size()).
void InitRow(const Initializer& config, uint64_t seed, uint64_t key, absl::Span<float> row);

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_INITIALIZER_H_
