// The optimizers: how a gradient changes a row. Rows on servers, dense blocks on servers and the
// workers' flat dense buffer all use this library (and not torch::optim), so that a comparison of
// policies compares nothing else. The folder is built with -ffp-contract=off; the same inputs give
// the same bits in every caller.
//
// An optimizer keeps no state of its own. A row's slots hold everything that the optimizer must
// remember about the row, and the caller counts the steps of the table (server/range.h). So
// checkpoints and range moves carry both. Methods are const and may run on many threads at once.
#ifndef TANDEM_OPTIM_OPTIMIZER_H_
#define TANDEM_OPTIM_OPTIMIZER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/job.pb.h"

namespace tandem::optim {

// One step of the optimizer over some rows.
struct OptimizerStep {
  // The number of this step of the table, from 1; 0 for dense parameters, which need none. Only
  // the kinds of Adam that count by table read it.
  int64_t number = 0;
  // The factor of the learning rate: that of the schedule, times that of the policy.
  float rate = 1;
  // A number of the step that never repeats, for the random bits of rounding (row_rounding.h). Rows
  // of f32 need none.
  int64_t stamp = 0;
  // At least 0: the momentum decays once for each group of updates, and only MOMENTUM can do that.
  // The gradient comes so many groups after its own. -1: it decays with each update.
  int64_t groups_late = -1;
  bool begins_group = false;  // the first update of a group
  // No update, and the gradients are 0: no update is in flight any more (RowOptimizer::settles).
  bool settles = false;
};

// A matrix among dense parameters: [rows, cols] floats, row by row from element `offset` of their
// flat buffer.
struct MatrixPlace {
  int64_t offset = 0, rows = 0, cols = 0;
};

class RowOptimizer {
 public:
  virtual ~RowOptimizer() = default;

  // The name stored in files. It must change whenever the meaning of the slots changes.
  virtual std::string name() const = 0;

  // How many floats each row needs in addition to its `dim` weights, such as 0 for SGD, dim for
  // Adagrad, 1 for row-wise Adagrad, 2 * dim for Adam (m, v), one more if each row counts its own
  // steps.
  virtual int slots_per_row(int dim) const = 0;

  // How many of the slots, the last ones, are numbers that a row has once, such as a count of its
  // steps or a mean over its elements. They are stored as f32 whatever the type of the state is.
  virtual int numbers_per_row() const { return 0; }

  // Fills in the slots of a new row.
  virtual void InitSlots(int dim, absl::Span<float> slots) const = 0;

  // Updates rows: row i has its weights at rows[i][0..dim), its slots at slots[i][0..slots_per_row)
  // and its gradient at gradients[i*dim .. (i+1)*dim). The rows must be distinct. For each row,
  // `scale` first multiplies the gradient. The gradient is then clipped to clip_norm. Last,
  // weight_decay times the weight is added, unless the kind decays weights by itself.
  // A row's new bits depend on that row and the step alone, not on how many others share the call.
  // MUON is the exception: its rows are all blocks of the dense parameters, in their order, and the
  // elements of a matrix depend on each other.
  virtual void Apply(int dim, float scale, const OptimizerStep& step,
                     absl::Span<const float> gradients, absl::Span<float* const> rows,
                     absl::Span<float* const> slots) const = 0;

  // True if rows have moved in advance by updates that are in flight (Optimizer::error_feedback). A
  // step with OptimizerStep::settles takes that back; a second one in a row changes nothing.
  virtual bool settles() const { return false; }

  // True if rows also move in steps that they are not in (Optimizer::catch_up). The stored weights
  // and slots are those of the row's last update, and Apply makes up for the missed steps. A reader
  // of weights calls CatchUp.
  virtual bool catches_up() const { return false; }

  // Computes a row as it is after `now` steps of the table from its stored weights and slots. Sets
  // out[0..dim), and out_slots[0..slots_per_row) unless null. They may be the inputs. Missed steps
  // have the rate factor 1. Copies the row if the optimizer does not catch up.
  virtual void CatchUp(int dim, int64_t now, const float* weights, const float* slots, float* out,
                       float* out_slots) const;
};

// Constructs the optimizer. INVALID_ARGUMENT names a setting that is out of range. A setting of 0
// takes the default that proto/job.proto states; the learning rate has no default and must be
// given. `program_slots`: the slots of each row, if the optimizer is PROGRAM. `matrices`: for MUON
// alone, in the order of the buffer, and none overlaps another. MUON is ADAMW outside of them.
absl::StatusOr<std::unique_ptr<RowOptimizer>> NewRowOptimizer(
    const Optimizer& config, int program_slots = 0, absl::Span<const MatrixPlace> matrices = {});

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_OPTIMIZER_H_
