// A row after it was stored in the types of its table and read again, for models of the store.
#ifndef TANDEM_TESTS_ROUND_ROW_H_
#define TANDEM_TESTS_ROUND_ROW_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "optim/optimizer.h"
#include "optim/row_rounding.h"
#include "optim/update_count.h"

namespace tandem {

inline bool FitsInt8(absl::Span<const float> weights, int exponent) {
  return std::all_of(weights.begin(), weights.end(), [exponent](float weight) {
    return std::abs(weight) <= std::ldexp(127.0, exponent);
  });
}

// The exponent of an INT8 row with these weights, if it had `before`.
inline int8_t Int8Exponent(absl::Span<const float> weights, int before) {
  const bool stays = before != optim::RowHead::kNoExponent && FitsInt8(weights, before) &&
                     (before - 2 < optim::kMinExponent || !FitsInt8(weights, before - 2));
  int exponent = stays ? before : optim::kMinExponent;
  while (!FitsInt8(weights, exponent)) ++exponent;
  return static_cast<int8_t>(exponent);
}

// The head of a row that is created with these weights.
inline optim::RowHead FirstHead(optim::RowTypes types, absl::Span<const float> weights) {
  optim::RowHead head;
  if (types.row == Table::INT8) {
    head.exponent = Int8Exponent(weights, optim::RowHead::kNoExponent);
  }
  return head;
}

inline void RoundInt8(const optim::RoundingBits& bits, int exponent, absl::Span<float> weights) {
  const double step = std::ldexp(1.0, exponent);
  for (size_t j = 0; j < weights.size(); ++j) {
    const double units = std::floor(std::abs(weights[j]) / step * 65536);
    const double number = std::floor((units + bits(j)) / 65536);
    weights[j] = static_cast<float>(number == 0 ? 0 : std::copysign(number * step, weights[j]));
  }
}

// Rounds at random with the bits of the update `stamp`, as the store does after an update. `head`:
// of the row, which may change.
inline void RoundRow(optim::RowTypes types, const optim::RowOptimizer& optimizer, uint64_t seed,
                     int64_t stamp, uint64_t key, absl::Span<float> weights,
                     absl::Span<float> slots, optim::RowHead* head) {
  using optim::RoundingBits;
  const auto round = [&](Table::Dtype type, RoundingBits::Stream stream, absl::Span<float> values) {
    std::vector<float> stored(values.size());
    optim::StoreRow(type, values.size(), values.data(), {seed, stamp, key, stream}, stored.data());
    optim::ExpandRow(type, values.size(), stored.data(), values.data());
  };
  if (types.hot_updates > 0 && !head->hot()) {
    const RoundingBits bits(seed, stamp, key, RoundingBits::kUpdates);
    head->updates = optim::UpdateCount::Next(head->updates, bits(0));
    if (optim::UpdateCount::Updates(head->updates) >= types.hot_updates) {
      *head = {optim::RowHead::kNoExponent, optim::RowHead::kHot};
    }
  }
  if (types.row == Table::INT8 && !head->hot()) {
    head->exponent = Int8Exponent(weights, head->exponent);
    RoundInt8({seed, stamp, key, RoundingBits::kWeights}, head->exponent, weights);
  } else {
    round(head->hot() ? types.hot : types.row, RoundingBits::kWeights, weights);
  }
  const auto numbers = static_cast<size_t>(optimizer.numbers_per_row());
  round(types.state, RoundingBits::kState, slots.first(slots.size() - numbers));
}

}  // namespace tandem

#endif  // TANDEM_TESTS_ROUND_ROW_H_
