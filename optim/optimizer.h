// How a gradient changes a row: one library for rows on servers, dense blocks on servers and the
// workers' flat dense buffer (torch::optim is not used), so that comparing policies compares
// nothing else. Built with -ffp-contract=off; the same inputs give the same bits in every caller.
//
// An optimizer keeps no state of its own: all that a row must remember is in its slots, so that
// saved files and range moves carry it. Methods are const and may run on many threads at once.
#ifndef TANDEM_OPTIM_OPTIMIZER_H_
#define TANDEM_OPTIM_OPTIMIZER_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"

namespace tandem::optim {

class RowOptimizer {
 public:
  virtual ~RowOptimizer() = default;

  // Stored in files; changes whenever the meaning of the slots changes.
  virtual std::string name() const = 0;

  // Floats each row needs beside its `dim` weights: 0 for SGD, dim for Adagrad, 1 for row-wise
  // Adagrad, 2 * dim + 1 for Adam (m, v, step count t).
  virtual int slots_per_row(int dim) const = 0;

  // The value of each slot of a new row.
  virtual void InitSlots(int dim, absl::Span<float> slots) const = 0;

  // Row i: weights at rows[i][0..dim), slots at slots[i][0..slots_per_row), gradient at
  // gradients[i*dim .. (i+1)*dim). Rows are distinct. `scale` multiplies each gradient first; then
  // the row's gradient is clipped to clip_norm; then weight_decay times the weight is added. A
  // row's new bits depend on that row alone, not on how many others share the call.
  virtual void Apply(int dim, float scale, absl::Span<const float> gradients,
                     absl::Span<float* const> rows, absl::Span<float* const> slots) const = 0;
};

// INVALID_ARGUMENT for a setting out of range, naming it. A setting of 0 takes the default that
// proto/job.proto states; the learning rate has none and must be given. `program_slots`: of a row, if
// the optimizer is PROGRAM.
absl::StatusOr<std::unique_ptr<RowOptimizer>> NewRowOptimizer(const Optimizer& config,
                                                              int program_slots = 0);

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_OPTIMIZER_H_
