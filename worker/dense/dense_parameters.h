// The dense parameters of a worker: one flat buffer cut into blocks of kDenseBlockFloats, each with
// its own optimizer state. The dense table on servers has the same blocks as rows, so both ways of
// synchronising do the same arithmetic on the same pieces.
//
// Thread safety: none; one thread at a time.
#ifndef TANDEM_WORKER_DENSE_DENSE_PARAMETERS_H_
#define TANDEM_WORKER_DENSE_DENSE_PARAMETERS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "collectives/schedules/schedule.h"
#include "job/job.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/range_file.h"

namespace tandem::worker {

class DenseParameters {
 public:
  // `count` floats, all zero until they are set. `parameters`: the tensors that they are, in order;
  // without them, all floats are one tensor. Required for MUON, whose matrices are the tensors with
  // two dimensions. INVALID_ARGUMENT if MUON gets none.
  static absl::StatusOr<std::unique_ptr<DenseParameters>> New(
      const Optimizer& optimizer, int64_t count,
      absl::Span<const server::CheckpointParameter> parameters = {});

  int64_t count() const { return count_; }
  int64_t blocks() const { return static_cast<int64_t>(block_keys_.size()); }
  absl::Span<float> values() { return absl::MakeSpan(values_).first(count_); }
  absl::Span<const float> values() const { return absl::MakeSpan(values_).first(count_); }

  // Where each parameter tensor lies in values(), in their order.
  absl::Span<const collectives::Piece> parameters() const { return parameters_; }

  // Whole blocks, the last one padded with zeros: [blocks, kDenseBlockFloats].
  absl::Span<float> padded() { return absl::MakeSpan(values_); }
  // Block numbers 0 .. blocks - 1: the keys of the dense table.
  absl::Span<const uint64_t> block_keys() const { return block_keys_; }

  // Takes one optimizer step with gradient sums [blocks, kDenseBlockFloats], each multiplied by
  // `factor`. Changes only the blocks whose optimizer state is here. The schedule of the learning
  // rate follows `sample_clock`, the progress of the job.
  void Apply(absl::Span<const float> padded_gradient, float factor, int64_t sample_clock = 0);
  // With the optimizer PROGRAM, Apply calls this function: the program changes values() itself.
  using Program = std::function<void(absl::Span<const float> padded_gradient, float factor)>;
  void set_program(Program program);
  // A digest of values(), for a comparison with the other replicas. `taken`: a function that takes
  // the digest, for programs that may change values() at any time; without it, DigestOf does.
  uint64_t Digest() const;
  void set_digest(std::function<uint64_t()> taken) { digest_ = std::move(taken); }

  // Keeps the optimizer state of `blocks` alone (a sharded optimizer, ZeRO stage 1, Rajbhandari et
  // al. 2020): after each step the values of the other blocks come from other workers. Before a
  // checkpoint SetAllSlots must set the state of all blocks; the next Apply forgets it.
  void KeepSlotsOf(collectives::Piece blocks);
  absl::Span<const float> kept_slots() const { return slots_; }
  int slots_per_block() const { return slots_per_block_; }
  void SetAllSlots(std::vector<float> slots) { all_slots_ = std::move(slots); }

  // Before a checkpoint, if this replica is not the model: the values of the model, padded, which
  // EncodeFile writes until other values are set. Empty: EncodeFile writes the replica's own
  // values.
  void SetValuesToCheckpoint(std::vector<float> values) {
    values_to_checkpoint_ = std::move(values);
  }

  // Each block followed by its optimizer state, as in checkpoints and in the assignment to servers.
  int row_floats() const { return job::kDenseBlockFloats + slots_per_block_; }
  std::vector<float> RowsWithSlots() const;
  absl::Status SetRowsWithSlots(absl::Span<const float> rows);

  // Encodes a range file of the table "dense"; Load reads one. INVALID_ARGUMENT if the file is of
  // another model or optimizer.
  std::string EncodeFile() const;
  // If the file is of another optimizer, the optimizer state keeps its initial values.
  absl::Status Load(const server::RangeImage& image);
  // After Load, if the updates in flight were lost: no settling (RowOptimizer::settles) will change
  // the values that were loaded.
  void ForgetUpdatesInFlight();

 private:
  DenseParameters(std::unique_ptr<optim::RowOptimizer> optimizer,
                  std::unique_ptr<optim::Schedule> schedule,
                  std::vector<collectives::Piece> parameters, bool is_program, int64_t count);

  const std::unique_ptr<optim::RowOptimizer> optimizer_;
  const std::unique_ptr<optim::Schedule> schedule_;  // null: the learning rate is constant
  const int64_t count_;
  const int slots_per_block_;
  const std::vector<collectives::Piece> parameters_;
  const bool is_program_;  // the optimizer is PROGRAM
  Program program_;
  std::function<uint64_t()> digest_;
  std::vector<uint64_t> block_keys_;
  collectives::Piece kept_;  // blocks whose state is in slots_
  std::vector<float> values_, slots_;
  std::vector<float> all_slots_;  // for a checkpoint with a sharded optimizer; otherwise empty
  std::vector<float> values_to_checkpoint_;
  std::vector<float*> value_rows_, slot_rows_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_DENSE_PARAMETERS_H_
