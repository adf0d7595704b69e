// Replicas with local steps: each worker takes optimizer steps with its own gradients. Every so
// many steps the workers have a sync round, which brings their replicas together. A derived class
// defines the sync round: local_sgd.h takes an average, elastic_averaging.h moves replicas towards
// a centre.
//
// A step. A worker's gradient is divided by its own samples. The optimizer state is the worker's
// own, and no sync round changes it. A step between two sync rounds needs no collective. So the
// step costs no traffic, no worker waits, and no worker learns anything about the others.
//
// A sync round is one all-reduce, `every` steps after the last one. With its share of the model
// each worker sends its weight (its samples since the last sync round, divided by those of `every`
// full batches) and, in an element of its own, the number of its steps with a batch. A worker
// without samples since the last sync round adds zeros. Such a worker does not hold the others
// back, and takes their result.
//
// The end of an epoch. Workers may have different amounts of data, and between sync rounds a worker
// cannot tell the others that it has run out. So a worker without data continues with empty steps
// (its pushes are empty) and takes part in the sync rounds. The epoch is over after the first sync
// round to which no worker brings samples. All workers see that at the same step, after at most 2 x
// `every` - 1 empty steps. Lockstep policies of tables report the end at once; then the workers
// have one more sync round in the next step. In both cases an epoch ends with a sync round, so
// evaluations and checkpoints see one model. The next sync round comes `every` steps later.
//
// Steps before `warmup_steps` are those of AllReduceGradients instead (post-local SGD).
//
// A checkpoint may come between sync rounds, and changes nothing. Each worker writes its own
// replica with optimizer state, counts, and the memory of the derived class (State). The dense file
// contains the model at that moment, as the derived class defines it.
//
// Thread safety: as DenseReduction.
#ifndef TANDEM_WORKER_DENSE_LOCAL_STEPS_H_
#define TANDEM_WORKER_DENSE_LOCAL_STEPS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/dense/allreduce_gradients.h"
#include "worker/dense/dense_reduction.h"

namespace tandem::worker {

class LocalSteps : public DenseReduction {
 public:
  struct Options {
    int rank = 0, ranks = 1;
    int64_t every = 1;
    int64_t warmup_steps = 0;
    int64_t batch = 1;                                 // samples of a full step of one worker
    absl::optional<collectives::Algorithm> algorithm;  // none: the group chooses
  };
  static Options OptionsOf(const job::ResolvedJob& plan, int rank);

  void BeforeStep() final;
  void Begin(absl::Span<float> gradient, const Step& step) final;
  void Ready(int64_t first) final;
  void Close() final;
  void BeginGather() final;
  std::string State() final;
  absl::Status SetState(absl::string_view state) final;
  const Request* Next() final;
  void OnDone() final;
  int64_t needs_from() const final { return 0; }
  bool waits_for_close() const final { return stage_ == Stage::kStep; }
  bool over() const final { return stage_ == Stage::kIdle; }
  double samples_of_all() const final { return samples_of_all_; }
  int64_t empty_steps() const final { return empty_steps_; }

 protected:
  // `dense` outlives this object.
  LocalSteps(DenseParameters& dense, const Options& options);

  // The sum of a sync round, and this worker's weight in it.
  struct SyncRound {
    absl::Span<const float> sum;  // sum of the shares written by WriteShare
    float weight = 0;             // the sum of weights; 0: no worker has samples
    float own_weight = 0;
  };
  // Writes this worker's share of the sum, without padding. Requires: its weight is above 0.
  virtual void WriteShare(float weight, absl::Span<float> share) = 0;
  // Takes the result of a sync round. All workers get the same sum. Requires: its weight is above
  // 0.
  virtual void TakeSyncRound(const SyncRound& sync_round) = 0;
  // Replicas are equal, and the first period of local steps begins.
  virtual void BeginLocalSteps() {}
  // From the end of an epoch until the next step the parameters are the model that is evaluated
  // (ShowModel); then they are this worker's replica again (ShowReplica).
  virtual void ShowModel() {}
  virtual void ShowReplica() {}
  // The model for a checkpoint between two sync rounds, padded; empty: the replica is the model. If
  // `CheckpointsSum`, the model is made of a sum of shares; the sum is computed only if there were
  // steps since the last sync round.
  virtual bool CheckpointsSum() const = 0;
  virtual std::vector<float> ModelToCheckpoint(const SyncRound& sync_round) const = 0;
  // Further vectors that belong to the state. Their sizes never change.
  virtual std::vector<std::vector<float>*> Remembered() = 0;

  DenseParameters& dense() const { return dense_; }
  const Options& options() const { return options_; }

 private:
  enum class Stage {
    kIdle,
    kTogether,   // a common step, of `together_`
    kStep,       // a local step; waits for Close
    kSyncRound,  // all-reduce of a sync round
    kGather,     // the same all-reduce for a checkpoint
  };

  void PrepareSyncRound(Stage stage);
  SyncRound SyncRoundOf() const;
  void EndSyncRound();
  void EndTogether();
  void SetShown(bool model);
  absl::Span<float> share() { return absl::MakeSpan(buffer_).first(dense_.values().size()); }

  DenseParameters& dense_;
  const Options options_;
  // for steps before warmup_steps; null: there are none
  const std::unique_ptr<AllReduceGradients> together_;
  Stage stage_ = Stage::kIdle;
  Request request_;
  bool under_way_ = false;
  absl::Span<float> gradient_;
  Step step_;
  // The model, then the weight, then by worker the number of its steps with a batch.
  std::vector<float> buffer_;

  // Since the last sync round.
  int64_t steps_ = 0;      // steps taken, including empty ones
  int64_t own_steps_ = 0;  // steps with a batch of this worker
  int64_t own_samples_ = 0;
  int64_t empty_before_ = 0;   // trailing steps of the last period without samples
  bool shows_model_ = false;   // the parameters are the model (ShowModel)
  double samples_of_all_ = 0;  // n of the last step, over all workers
  int64_t empty_steps_ = 1;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_LOCAL_STEPS_H_
