// Replicas that step by themselves: each worker takes optimizer steps with its own gradients, and every
// so many steps the workers meet and bring their replicas together. What they do there is a derived
// class's: local_sgd.h takes an average, elastic_averaging.h draws them towards a centre.
//
// A step. A worker's gradient is divided by its own samples, and the optimizer's slots are its own: no
// meeting touches them. A step between two meetings asks for no collective, so it costs no traffic,
// nobody waits, and nobody learns what the others do.
//
// A meeting is one all-reduce, after `every` steps since the last one. Beside its share of the model
// each worker brings its weight (its samples since the last meeting, over those of `every` full
// batches) and, in an element of its own, in how many steps it had any. A worker that had none since
// the last meeting adds nothing, so it does not hold the others back, and takes what they have come to.
//
// The end of an epoch. Workers may have different amounts of data, and between meetings there is
// nothing by which one could tell another that it has run out. So a worker without data goes on taking
// steps in name (their pushes are empty), and goes to the meetings; the epoch is over after the first
// one to which nobody brings samples, which everybody sees at the same step. That takes at most
// 2 x `every` - 1 steps in name. Where policies of tables take each step together, they tell the end at
// once, and workers meet once more in the step after that. Either way an epoch ends with a meeting: what
// is evaluated and saved then is one model. The next meeting comes `every` steps after that one.
//
// Steps before `from_step` are those of AllReduceGradients instead (post-local SGD).
//
// A save may come between meetings, and changes nothing: each worker writes its own replica with slots,
// counts and what the derived class remembers (State); the dense file has what is the model at that
// moment, by the derived class's own rule.
//
// Thread safety: as DenseReduction.
#ifndef TANDEM_WORKER_LOCAL_STEPS_H_
#define TANDEM_WORKER_LOCAL_STEPS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/allreduce_gradients.h"
#include "worker/dense_reduction.h"

namespace tandem::worker {

class LocalSteps : public DenseReduction {
 public:
  struct Options {
    int rank = 0, ranks = 1;
    int64_t every = 1;
    int64_t from_step = 0;
    int64_t batch = 1;                                 // samples of a full step of one worker
    absl::optional<collectives::Algorithm> algorithm;  // none: the group chooses
  };
  static Options OptionsOf(const job::JobPlan& plan, int rank);

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
  // `dense` outlives this.
  LocalSteps(DenseParameters& dense, const Options& options);

  // What all have brought to a meeting, and this worker to it.
  struct Meeting {
    absl::Span<const float> sum;  // of what WriteShare wrote
    float weight = 0;             // the sum of weights; 0: nobody brings anything
    float own_weight = 0;
  };
  // Writes this worker's share of the sum, without padding; its weight is above 0.
  virtual void WriteShare(float weight, absl::Span<float> share) = 0;
  // Takes the result. All workers get the same sum; its weight is above 0.
  virtual void TakeMeeting(const Meeting& meeting) = 0;
  // Replicas are equal, and a first period of steps of their own begins.
  virtual void BeginLocalSteps() {}
  // From the end of an epoch until the next step the parameters are the model that is evaluated, and
  // then this worker's again.
  virtual void ShowModel() {}
  virtual void ShowReplica() {}
  // The model for a save, padded, between two meetings; empty: the replica is the model. By a sum of
  // shares if `SavesSum`, which only asks if anything has happened since the last meeting.
  virtual bool SavesSum() const = 0;
  virtual std::vector<float> ModelToSave(const Meeting& meeting) const = 0;
  // What else is in the state: vectors of padded size.
  virtual std::vector<std::vector<float>*> Remembered() = 0;

  DenseParameters& dense() const { return dense_; }
  const Options& options() const { return options_; }

 private:
  enum class Stage {
    kIdle,
    kTogether,  // a step of `together_`
    kStep,      // of its own; waits for Close
    kMeet,      // all-reduce
    kGather,    // the same, for a save
  };

  void PrepareMeeting(Stage stage);
  Meeting MeetingOf() const;
  void EndMeeting();
  void EndTogether();
  void SetShown(bool model);
  absl::Span<float> share() { return absl::MakeSpan(buffer_).first(dense_.values().size()); }

  DenseParameters& dense_;
  const Options options_;
  const std::unique_ptr<AllReduceGradients> together_;  // before from_step; null: never
  Stage stage_ = Stage::kIdle;
  Request request_;
  bool under_way_ = false;
  absl::Span<float> gradient_;
  Step step_;
  // The model, then the weight, then by worker how many steps with samples it had.
  std::vector<float> buffer_;

  // Since the last meeting.
  int64_t steps_ = 0;      // taken, some in name only
  int64_t own_steps_ = 0;  // with samples of this worker
  int64_t own_samples_ = 0;
  int64_t empty_before_ = 0;   // steps at the end of the period before that nobody had samples for
  bool shows_model_ = false;   // ShowModel holds
  double samples_of_all_ = 0;  // of the last step
  int64_t empty_steps_ = 1;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_LOCAL_STEPS_H_
