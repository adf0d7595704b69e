// A worker whose training loop belongs to a program. The usual worker (worker_shell.h) runs on
// threads of its own, and asks the program for batches and gradients instead of readers and a
// compiled model. The worker does steps, policies, prefetch, ends of epochs, staleness, evaluations
// and checkpoints. The program does what the worker requests:
//
//   TANDEM_ASSIGN_OR_RETURN(auto worker, AttachedWorker::Join(options));
//   ... WaitJoined() ...; the rank is known
//   worker->Start(parameters, initial_values)
//   for (;;) switch (worker->Next(deadline)->kind) {
//     kBatch, kTestBatch: GiveBatch(), with no samples if there are no more
//     kCompute:           Rows() of each input; forward, backward; Finish()
//     kUpdate:            MeanGradient(); the program's own optimizer changes dense(); Updated()
//     kState:             CheckpointState()
//     kStepDone:          dense() has the values for the next step
//     kScore:             Rows() of each input; forward; Score()
//     kEnd:               Close()
//   }
//
// Thread safety: one thread at a time, except Fail, which any thread may call.
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
#include "proto/wire.pb.h"
#include "server/checkpoint/manifest.h"
#include "worker/attached_runner.h"
#include "worker/job_news.h"
#include "worker/request_queue.h"
#include "worker/worker_shell.h"

namespace tandem::worker {

// The program's result for a step: sums over its samples, all multiplied by `scale`.
struct StepGradients {
  double loss_sum = 0;  // not scaled
  bool has_loss = true;
  // By input of the batch: gradients of its cells, in the layout of Rows; empty: zeros.
  std::vector<absl::Span<const float>> cells = {};
  absl::Span<const float> dense = {};  // in the layout of the flat buffer; empty: zeros
  float scale = 1;
  // The norm to which the mean gradient of the worker's samples is shortened, dense parameters and
  // rows (not frozen ones) together; 0: no limit.
  float clip_norm = 0;
  // The program has no gradient of the batch, for example because it has overflowed. The step
  // counts as one without samples of this worker; the other fields are ignored.
  bool skip = false;
};

class AttachedWorker {
 public:
  enum class Files {
    kShared,  // the worker and the program share one table of file descriptors
    // The worker's threads have a descriptor table of their own. A process that the program forks
    // then has none of the worker's sockets, and cannot keep a connection open after the worker has
    // died. Requires: the options open no file before make_transport is called. Where the kernel
    // refuses, as kShared.
    kOwn,
  };
  // Registers at the scheduler, in the background. Join itself sets make_runner and the callbacks
  // of the options. `keeps_state`: the program answers kState, which the worker requests for each
  // checkpoint, so its run can resume from one. INVALID_ARGUMENT: the job is not for a program.
  static absl::StatusOr<std::unique_ptr<AttachedWorker>> Join(WorkerOptions options,
                                                              Files files = Files::kShared,
                                                              bool keeps_state = false);
  // Does the same as Close.
  ~AttachedWorker();
  AttachedWorker(const AttachedWorker&) = delete;
  AttachedWorker& operator=(const AttachedWorker&) = delete;

  // True: all nodes have registered, and the rank is known. False: not by the deadline.
  absl::StatusOr<bool> WaitJoined(absl::Time deadline);
  int rank() const { return rank_; }  // once joined
  const job::ResolvedJob& plan() const { return options_.plan; }

  // Says what is trained: the dense parameters in their order, and their values one after another.
  // There may be no parameters. Called once.
  absl::Status Start(std::vector<server::CheckpointParameter> parameters,
                     absl::Span<const float> values);
  // True: dense() has its initial values, those of rank 0 or of a checkpoint. False: not by the
  // deadline.
  absl::StatusOr<bool> WaitStarted(absl::Time deadline);
  // The dense parameters, for the life of this object. Their values change between Finish and
  // kStepDone.
  absl::Span<float> dense();

  // Once started: where the run resumes, and the states of the programs.
  const AttachedRunner::Resumed& resumed() const { return resumed_; }

  // The worker's open request. It stays the same until the program has done it, except that a batch
  // may be requested while the program computes gradients or scores. kNothing: no request by the
  // deadline. An error: why the job has failed, here or elsewhere.
  absl::StatusOr<Request> Next(absl::Time deadline);

  // Answers kBatch and kTestBatch. Takes the contents of `batch`; numbers, labels and groups in it
  // are the program's own. INVALID_ARGUMENT: more samples or ids than the job allows.
  absl::Status GiveBatch(data::Batch* batch);
  // For kCompute and kScore: the pooled rows of input `input`, [cells, dim]. Once for each input,
  // because the call frees the rows. INVALID_ARGUMENT: wrong size.
  absl::Status Rows(size_t input, absl::Span<float> cells);
  // Answers kCompute.
  absl::Status Finish(const StepGradients& gradients);
  // For kUpdate: the mean over the samples of all workers, as many floats as dense().
  absl::Status MeanGradient(absl::Span<float> gradient);
  absl::Status Updated();
  // Answers kState: any bytes (at least one) that the program needs to resume from the checkpoint,
  // without what the worker has already.
  absl::Status CheckpointState(absl::Span<const char> state);
  // Answers kScore: a logit for each sample, and its label (0 or 1). Both empty: the batch does not
  // count. INVALID_ARGUMENT: wrong counts or other labels; the batch can be scored again.
  absl::Status Score(absl::Span<const float> logits, absl::Span<const float> labels);

  // A barrier of the programs, once joined: the n-th barrier of this worker is the n-th of the
  // others. WaitBarrier returns true when all workers have entered, or when the job was told to
  // end; false: not by the deadline. FAILED_PRECONDITION: EnterBarrier while in a barrier,
  // WaitBarrier without one, or the job has ended.
  // `values`: reduced over the workers. `of_evaluation`: they become a part of the evaluation whose
  // kTestBatch is requested. FAILED_PRECONDITION: none is.
  absl::Status EnterBarrier(const ProgramValues& values = {}, int64_t step = 0,
                            bool of_evaluation = false);
  // *reduced: the reduced values. Empty: there were none, or the job was told to end.
  absl::StatusOr<bool> WaitBarrier(absl::Time deadline,
                                   std::map<std::string, double>* reduced = nullptr);

  // Messages of the scheduler for the program. The caller may use them after the end of the job.
  JobNews& news() { return news_; }

  // Once joined: reports values of `step` for metrics.jsonl and summary.json. False: too many
  // earlier reports were still not acknowledged by the scheduler at the deadline. INVALID_ARGUMENT:
  // CheckReportedName. FAILED_PRECONDITION: the job has ended; but if the job was told to end, the
  // report is dropped without an error.
  absl::StatusOr<bool> Report(const std::map<std::string, double>& values, int64_t step,
                              absl::Time deadline);
  // Once joined: requests a checkpoint, which is made soon. The n-th calls of all workers request
  // the same checkpoint. FAILED_PRECONDITION: as Report.
  absl::Status RequestCheckpoint(int64_t step);
  // Once joined: requests a last checkpoint and the end of the job, for all workers. The end comes
  // soon; the program answers requests until then.
  void RequestEnd();
  // The program computes no more steps. When the job is told to end, the checkpoint therefore
  // leaves out the step that is requested now.
  void Rest() { requests_.Rest(); }
  // The job was told to end early. May be called at any time.
  bool stopped() const { return stopped_.load(); }
  // Once joined: the job writes checkpoints, so the worker may request the program's state.
  bool checkpoints() const { return checkpoints_models_.load(); }

  // Ends the job for all nodes, with this reason; the first reason counts. Returns at once.
  void Fail(absl::Status why);
  // Waits for the end of the worker's threads. If the job has not ended yet, it fails, because its
  // program has left. Returns how the job ended.
  absl::Status Close();

 private:
  AttachedWorker(WorkerOptions options, bool keeps_state)
      : options_(std::move(options)), keeps_state_(keeps_state) {}
  void Run(Files files);
  absl::StatusOr<std::unique_ptr<TaskRunner>> MakeRunner(
      const job::ResolvedJob& plan, int rank,
      std::shared_ptr<const server::CheckpointReader> saved);
  absl::Status Interrupted();
  void Say(absl::Time now, std::vector<Control>* out);
  void Hear(const Control& control);
  absl::Status CheckBatch(const data::Batch& batch, bool test) const;
  // The job has ended because it was told to: later calls of the program have no effect, and are no
  // error.
  bool Stopped() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return how_.ok() && stopped_.load();
  }
  void AddNote(ProgramNote note) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<bool> WaitFor(const bool& what, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  WorkerOptions options_;
  const bool keeps_state_;
  RequestQueue requests_;
  JobNews news_;
  int rank_ = -1;

  absl::Mutex mutex_;
  CondVar changed_;
  bool joined_ ABSL_GUARDED_BY(mutex_) = false;   // the rank is known
  bool started_ ABSL_GUARDED_BY(mutex_) = false;  // parameters_ and values_ are set
  bool open_ ABSL_GUARDED_BY(mutex_) = false;     // dense_ has its initial values
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status how_ ABSL_GUARDED_BY(mutex_);     // how it ended
  int64_t barrier_ ABSL_GUARDED_BY(mutex_) = 0;  // number of the last barrier entered
  bool in_barrier_ ABSL_GUARDED_BY(mutex_) = false, released_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time next_entry_ ABSL_GUARDED_BY(mutex_);  // when the entry is sent again
  BarrierEnter entry_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, double> release_values_ ABSL_GUARDED_BY(mutex_);
  std::deque<ProgramNote> notes_ ABSL_GUARDED_BY(mutex_);  // not acknowledged by the scheduler
  size_t notes_said_ ABSL_GUARDED_BY(mutex_) = 0;          // number of notes_ sent
  int64_t last_note_ ABSL_GUARDED_BY(mutex_) = 0, checkpoints_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Time next_notes_ ABSL_GUARDED_BY(mutex_);  // when all notes are sent again
  // When the request to end the job is sent again; InfiniteFuture: there is none.
  absl::Time next_end_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  std::atomic<bool> stopped_{false}, checkpoints_models_{false};
  std::vector<server::CheckpointParameter> parameters_ ABSL_GUARDED_BY(mutex_);
  std::vector<float> values_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);  // error given by the program
  std::shared_ptr<DenseParameters> dense_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};
  AttachedRunner* runner_ = nullptr;  // valid while a request is open
  AttachedRunner::Resumed resumed_;   // set before on_open

  // Used by the program's thread.
  std::vector<float> scaled_;
  bool of_evaluation_ = false;  // the values of the last barrier
  std::thread thread_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_ATTACHED_WORKER_H_
