// How a row lies in memory: its weights as one type, and its slots as another. The last slots may
// be numbers that the row has once (RowOptimizer::numbers_per_row), always as f32.
//
// If rows become hot, a byte behind the weights counts the updates of the row. A hot row has its
// weights elsewhere (server/rows/hot_rows.h). In their place is the number of the row there.
//
// Thread safety: immutable.
#ifndef TANDEM_OPTIM_ROW_FORMAT_H_
#define TANDEM_OPTIM_ROW_FORMAT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "optim/initializer.h"
#include "optim/optimizer.h"
#include "optim/row_rounding.h"
#include "proto/job.pb.h"

namespace tandem::optim {

class RowFormat {
 public:
  RowFormat(RowTypes types, int dim, const RowOptimizer& optimizer)
      : types_(types),
        dim_(static_cast<size_t>(dim)),
        counter_at_(std::max(WeightBytes(types.row, dim_),
                             types.hot_updates > 0 ? sizeof(uint32_t) : size_t{0})),
        numbers_(static_cast<size_t>(optimizer.numbers_per_row())),
        elements_(static_cast<size_t>(optimizer.slots_per_row(dim)) - numbers_) {}

  const RowTypes& types() const { return types_; }
  size_t weight_bytes() const { return counter_at_ + (types_.hot_updates > 0 ? 1 : 0); }
  size_t slot_bytes() const {
    return elements_ * ElementBytes(types_.state) + numbers_ * sizeof(float);
  }
  size_t row_bytes() const { return weight_bytes() + slot_bytes(); }
  size_t hot_bytes() const { return WeightBytes(types_.hot, dim_); }  // of the weights of a hot row
  // Whether weights, and slots, are arrays of f32, which the optimizer can change where they lie.
  bool f32_weights() const { return ElementBytes(types_.row) == sizeof(float); }
  bool f32_slots() const { return elements_ == 0 || ElementBytes(types_.state) == sizeof(float); }

  // The row as floats, if it is not hot. `dim`: as of DispatchDim.
  template <typename Dim>
  void ReadWeights(Dim dim, const void* stored, float* out) const {
    ExpandRow(types_.row, dim, stored, out);
  }
  void ReadSlots(const void* stored, float* out) const {
    ExpandRow(types_.state, elements_, stored, out);
    if (numbers_ > 0) std::memcpy(out + elements_, Numbers(stored), numbers_ * sizeof(float));
  }

  // Stores the row, each value rounded once: at random with the bits of this update, or to nearest.
  // False if the type cannot hold a value.
  template <typename Dim>
  bool WriteWeights(Dim dim, const float* from, const RoundingBits& bits, void* stored) const {
    return StoreRow(types_.row, dim, from, bits, stored);
  }
  bool WriteWeights(const float* from, void* stored, int exponent = RowHead::kNoExponent) const {
    return StoreNearest(types_.row, {from, dim_}, stored, exponent);
  }
  void WriteSlots(const float* from, const RoundingBits& bits, void* stored) const {
    StoreRow(types_.state, elements_, from, bits, stored);
    WriteNumbers(from, stored);
  }
  void WriteSlots(const float* from, void* stored) const {
    StoreNearest(types_.state, {from, elements_}, stored);
    WriteNumbers(from, stored);
  }

  RowHead Head(const void* stored) const {
    RowHead head;
    if (types_.hot_updates > 0) head.updates = static_cast<const uint8_t*>(stored)[counter_at_];
    if (types_.row == Table::INT8 && !head.hot()) {
      head.exponent = static_cast<const int8_t*>(stored)[dim_];
    }
    return head;
  }
  // Requires: rows become hot.
  bool IsHot(const void* stored) const {
    return static_cast<const uint8_t*>(stored)[counter_at_] == RowHead::kHot;
  }
  void SetUpdates(uint8_t updates, void* stored) const {
    static_cast<uint8_t*>(stored)[counter_at_] = updates;
  }
  // The number of a hot row among the hot rows.
  uint32_t HotNumber(const void* stored) const {
    uint32_t number;
    std::memcpy(&number, stored, sizeof number);
    return number;
  }
  void SetHot(uint32_t number, void* stored) const {
    std::memcpy(stored, &number, sizeof number);
    SetUpdates(RowHead::kHot, stored);
  }

  // The initial values of a row as they are stored: InitRow, rounded to nearest. `out` has dim
  // floats.
  void InitWeights(const Initializer& config, uint64_t seed, uint64_t key, float* out) const {
    InitRow(config, seed, key, {out, dim_});
    RoundToNearest(types_.row, {out, dim_});
  }

 private:
  const void* Numbers(const void* stored) const {
    return static_cast<const char*>(stored) + elements_ * ElementBytes(types_.state);
  }
  void WriteNumbers(const float* from, void* stored) const {
    if (numbers_ == 0) return;
    std::memcpy(const_cast<void*>(Numbers(stored)), from + elements_, numbers_ * sizeof(float));
  }

  RowTypes types_;
  size_t dim_;
  size_t counter_at_;          // where the count of updates lies
  size_t numbers_, elements_;  // of the slots
};

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_ROW_FORMAT_H_
