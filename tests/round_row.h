// A row after it was stored in the types of its table and read again, for models of the store.
#ifndef TANDEM_TESTS_ROUND_ROW_H_
#define TANDEM_TESTS_ROUND_ROW_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "optim/optimizer.h"
#include "optim/row_rounding.h"

namespace tandem {

// Rounds at random with the bits of the update `stamp`, as the store does after an update.
inline void RoundRow(optim::RowTypes types, const optim::RowOptimizer& optimizer, uint64_t seed,
                     int64_t stamp, uint64_t key, absl::Span<float> weights,
                     absl::Span<float> slots) {
  const auto round = [&](Table::Dtype type, optim::RoundingBits::Stream stream,
                         absl::Span<float> values) {
    std::vector<float> stored(values.size());
    optim::StoreRow(type, values.size(), values.data(), {seed, stamp, key, stream}, stored.data());
    optim::ExpandRow(type, values.size(), stored.data(), values.data());
  };
  const auto numbers = static_cast<size_t>(optimizer.numbers_per_row());
  round(types.row, optim::RoundingBits::kWeights, weights);
  round(types.state, optim::RoundingBits::kState, slots.first(slots.size() - numbers));
}

}  // namespace tandem

#endif  // TANDEM_TESTS_ROUND_ROW_H_
