// A worker whose training loop is a program's: today's worker (worker_shell.h) on threads of its
// own, which asks the program for batches and gradients in place of readers and a compiled model.
// Steps, policies, read-ahead, ends of epochs, staleness, evaluations and saves are the worker's;
// the program does what is wanted next:
//
//   TANDEM_ASSIGN_OR_RETURN(auto worker, AttachedWorker::Join(options));
//   ... WaitJoined() ...; the rank is known
//   worker->Start(parameters, first_values)
//   for (;;) switch (worker->Next(deadline)->kind) {
//     kBatch, kTestBatch: GiveBatch(), with no samples if there are no more
//     kCompute:           Rows() of each input; forward, backward; Finish()
//     kUpdate:            MeanGradient(); the program's own optimizer changes dense(); Updated()
//     kState:             SaveState()
//     kStepDone:          dense() has the values for the next step
//     kScore:             Rows() of each input; forward; Score()
//     kEnd:               Close()
//   }
//
// Thread safety: one thread at a time, but for Fail, which is for any.
#ifndef TANDEM_WORKER_ATTACHED_WORKER_H_
#define TANDEM_WORKER_ATTACHED_WORKER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "data/batch.h"
#include "job/job.h"
#include "server/manifest.h"
#include "worker/attached_runner.h"
#include "worker/want_queue.h"
#include "worker/worker_shell.h"

namespace tandem::worker {

// What a program has computed for a step: sums over its samples, all times `scale`.
struct StepGradients {
  double loss_sum = 0;  // not scaled
  bool has_loss = true;
  // By input of the batch: of its cells, laid out as Rows gives them; empty: zeros.
  std::vector<absl::Span<const float>> cells = {};
  absl::Span<const float> dense = {};  // of the flat buffer; empty: zeros
  float scale = 1;
};

class AttachedWorker {
 public:
  enum class Files {
    kShared,  // with the program
    // The worker's threads have a table of descriptors of their own, so that a process which the
    // program forks has none of their sockets and cannot keep a connection open that a dead worker
    // leaves. What the options hold may open nothing before make_transport is called. Where the
    // kernel refuses, as kShared.
    kOwn,
  };
  // Registers at the scheduler, in the background. Of the options, make_runner and what is called
  // back is set here. `keeps_state`: the program answers kState, which is wanted for each save, and
  // its run can go on from one. INVALID_ARGUMENT: the job is not one of a program.
  static absl::StatusOr<std::unique_ptr<AttachedWorker>> Join(WorkerOptions options,
                                                              Files files = Files::kShared,
                                                              bool keeps_state = false);
  // As Close.
  ~AttachedWorker();
  AttachedWorker(const AttachedWorker&) = delete;
  AttachedWorker& operator=(const AttachedWorker&) = delete;

  // True: all nodes are there, and the rank is known. False: not by the deadline.
  absl::StatusOr<bool> WaitJoined(absl::Time deadline);
  int rank() const { return rank_; }  // once joined
  const job::JobPlan& plan() const { return options_.plan; }

  // Says what is trained: the dense parameters in their order, and their values laid end to end,
  // which may be none. Once.
  absl::Status Start(std::vector<server::SavedParameter> parameters,
                     absl::Span<const float> values);
  // True: dense() has its first values: those of rank 0, or of a save. False: not by the deadline.
  absl::StatusOr<bool> WaitStarted(absl::Time deadline);
  // The dense parameters, for the life of this object. Between Finish and kStepDone they change.
  absl::Span<float> dense();

  // Once started: where the run goes on, and with which state of programs.
  const AttachedRunner::Resumed& resumed() const { return resumed_; }

  // What is wanted: the same until it is done, but that a batch may come to be wanted while gradients
  // or scores are computed. kNothing: nothing by the deadline. An error: how the job has failed, here
  // or elsewhere.
  absl::StatusOr<Want> Next(absl::Time deadline);

  // kBatch, kTestBatch. Takes the contents of `batch`, of which numbers, labels and groups are the
  // program's own. INVALID_ARGUMENT: more samples or ids than the job has said.
  absl::Status GiveBatch(data::Batch* batch);
  // kCompute, kScore: pooled rows of input `input`, [cells, dim]; once for each input, since rows
  // are given back. INVALID_ARGUMENT: another size.
  absl::Status Rows(size_t input, absl::Span<float> cells);
  // kCompute.
  absl::Status Finish(const StepGradients& gradients);
  // kUpdate: the mean over the samples of all workers, as many floats as dense().
  absl::Status MeanGradient(absl::Span<float> gradient);
  absl::Status Updated();
  // kState: all that the program has to find again if the run goes on from the save, but what it has
  // given to the worker: any bytes, at least one.
  absl::Status SaveState(absl::Span<const char> state);
  // kScore: a logit for each sample, and its label (0 or 1); both empty: the batch does not count.
  // INVALID_ARGUMENT: other numbers of them, or other labels; the batch can be scored again.
  absl::Status Score(absl::Span<const float> logits, absl::Span<const float> labels);

  // A barrier of the programs, once joined: the n-th of this worker is the n-th of the others.
  // WaitBarrier is true when all have entered it, or the job was told to end; false: not by the
  // deadline. FAILED_PRECONDITION: the worker is in one, or in none; or the job has come to its end.
  absl::Status EnterBarrier();
  absl::StatusOr<bool> WaitBarrier(absl::Time deadline);

  // Once joined. Values for metrics.jsonl and summary.json, said of `step`. False: by the deadline the
  // scheduler had not taken enough of those before. INVALID_ARGUMENT: CheckReported.
  // FAILED_PRECONDITION: the job has come to its end; if it was told to end, what is said is dropped.
  absl::StatusOr<bool> Report(const std::map<std::string, double>& values, int64_t step,
                              absl::Time deadline);
  // Once joined. Asks for a save, at the next step that all workers can still reach. The n-th calls of
  // all workers ask for one save. FAILED_PRECONDITION: as Report.
  absl::Status AskForSave(int64_t step);
  // The program computes no more steps: when the job is told to end, the one that is wanted is left
  // out of what is saved.
  void Rest() { wants_.Rest(); }
  // The job was told to end before its end. Any time.
  bool stopped() const { return stopped_.load(); }
  // Once joined: the job saves models, so the program's state may be wanted.
  bool saves() const { return saves_models_.load(); }

  // Ends the job for all, with this reason; the first one counts. Returns at once.
  void Fail(absl::Status why);
  // Waits for the end of the worker's threads. A job that has not ended fails: its program has
  // left. Returns how the job ended.
  absl::Status Close();

 private:
  AttachedWorker(WorkerOptions options, bool keeps_state)
      : options_(std::move(options)), keeps_state_(keeps_state) {}
  void Run(Files files);
  absl::StatusOr<std::unique_ptr<TaskRunner>> MakeRunner(const job::JobPlan& plan, int rank,
                                                         const std::string& init_from);
  absl::Status Interrupted();
  void Say(absl::Time now, std::vector<Control>* out);
  void Hear(const Control& control);
  absl::Status CheckBatch(const data::Batch& batch, bool test) const;
  // The job has ended since it was told to: what the program still does behind its loop is in vain.
  bool Stopped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return how_.ok() && stopped_.load();
  }
  void AddNote(ProgramNote note) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> WaitFor(const bool& what, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  WorkerOptions options_;
  const bool keeps_state_;
  WantQueue wants_;
  int rank_ = -1;

  absl::Mutex mutex_;
  CondVar changed_;
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;   // the rank is known
  bool started_ ABSL_GUARDED_BY(mutex_) = false;  // parameters_ and values_ are there
  bool open_ ABSL_GUARDED_BY(mutex_) = false;     // dense_ has its first values
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status how_ ABSL_GUARDED_BY(mutex_);     // it ended
  int64_t barrier_ ABSL_GUARDED_BY(mutex_) = 0;  // number of the last one entered
  bool in_barrier_ ABSL_GUARDED_BY(mutex_) = false, released_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time next_entry_ ABSL_GUARDED_BY(mutex_);          // when it is said again
  std::deque<ProgramNote> notes_ ABSL_GUARDED_BY(mutex_);  // that the scheduler has not taken
  size_t notes_said_ ABSL_GUARDED_BY(mutex_) = 0;          // of them
  int64_t last_note_ ABSL_GUARDED_BY(mutex_) = 0, saves_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time next_notes_ ABSL_GUARDED_BY(mutex_);  // when all are said again
  std::atomic<bool> stopped_{false}, saves_models_{false};
  std::vector<server::SavedParameter> parameters_ ABSL_GUARDED_BY(mutex_);
  std::vector<float> values_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // the program's own
  std::shared_ptr<DenseParameters> dense_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};
  AttachedRunner* runner_ = nullptr;  // valid while something is wanted
  AttachedRunner::Resumed resumed_;   // as of on_open

  // The program's thread.
  std::vector<float> scaled_;
  std::thread thread_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_ATTACHED_WORKER_H_
