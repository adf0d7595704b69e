#include "worker/attached_worker.h"

#include <linux/close_range.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "data/pooling.h"
#include "job/job_budget.h"
#include "proto/program_note.h"
#include "worker/dense/replica_digests.h"

namespace tandem::worker {
namespace {

constexpr absl::Duration kResend = absl::Seconds(1);  // for messages without an answer
constexpr size_t kMaxNotes = 1000;                    // notes without an answer

std::string BarrierName(int64_t number) { return absl::StrCat("program ", number); }

size_t CellsOf(const data::SparseInput& input) {
  return input.offsets.empty() ? input.index.size() : input.offsets.size() - 1;
}

absl::Status TooMany(size_t values) {
  return absl::InvalidArgumentError(
      absl::StrCat("a report of ", values, " values, expected 1 to ", kMaxReported));
}

absl::Status WrongSize(absl::string_view what, size_t size, size_t want) {
  return absl::InvalidArgumentError(absl::StrCat(what, ": ", size, " floats, expected ", want));
}

// Shortens the gradient of a step to `norm`, that of a mean over its samples. `dense`: the part of
// dense parameters. Repeated ids are merged already, so each row has one gradient.
void Clip(const std::vector<job::TablePlan>& tables, float norm, absl::Span<float> dense,
          StepSlot* slot) {
  const std::vector<data::SparseInput>& inputs = slot->batch.sparse;
  const auto each_part = [&](const auto& act) {
    act(dense);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const job::TablePlan& table = tables[inputs[i].table];
      if (table.frozen) continue;
      for (float* const row : slot->gradients[i]) {
        act(absl::Span<float>(row, static_cast<size_t>(table.dim)));
      }
    }
  };
  double squares = 0;
  each_part([&](absl::Span<const float> part) {
    for (const float g : part) squares += static_cast<double>(g) * g;
  });
  constexpr double kTiny = 1e-6;  // as in torch.nn.utils.clip_grad_norm_
  const double mean = std::sqrt(squares) / static_cast<double>(slot->batch.samples);
  const double factor = norm / (mean + kTiny);
  if (factor >= 1) return;
  each_part([&](absl::Span<float> part) {
    for (float& g : part) g *= static_cast<float>(factor);
  });
}

// Makes the step of the slot one without a gradient.
void Skip(StepSlot* slot) {
  for (client::PulledRows& rows : slot->rows) rows.Clear();
  std::fill(slot->dense_gradient.begin(), slot->dense_gradient.end(), 0.0f);
  slot->loss_sum = 0;
  slot->has_loss = false;
  slot->skipped = true;
}

}  // namespace

// ---- start and end ----------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<AttachedWorker>> AttachedWorker::Join(WorkerOptions options,
                                                                     Files files,
                                                                     bool keeps_state) {
  if (!options.plan.job.model().has_program()) {
    return absl::InvalidArgumentError(
        "the job has a compiled model; for a program say data { format: PROGRAM } and model { "
        "program {} }");
  }
  std::unique_ptr<AttachedWorker> worker(new AttachedWorker(std::move(options), keeps_state));
  AttachedWorker* const self = worker.get();
  self->options_.make_runner = [self](const job::ResolvedJob& plan, int rank, int /*gpu*/,
                                      std::shared_ptr<const server::CheckpointReader> saved) {
    return self->MakeRunner(plan, rank, std::move(saved));
  };
  self->options_.on_open = [self] {
    absl::MutexLock lock(&self->mutex_);
    self->resumed_ = self->runner_->resumed();
    self->open_ = true;
    self->changed_.SignalAll();
  };
  self->options_.interrupted = [self] { return self->Interrupted(); };
  self->options_.say = [self](absl::Time now, std::vector<Control>* out) { self->Say(now, out); };
  self->options_.hear = [self](const Control& control) { self->Hear(control); };
  self->options_.on_end = [self](const absl::Status& how) {
    {
      absl::MutexLock lock(&self->mutex_);
      self->ended_ = true;
      self->how_ = how;
      self->changed_.SignalAll();
    }
    self->news_.End(how);
    self->requests_.Close(how);
  };
  self->thread_ = std::thread([self, files] { self->Run(files); });
  return worker;
}

// Unshares the descriptor table for this thread and the threads that it starts. In the new table,
// everything except the standard streams is closed: otherwise a pipe of the program would never
// reach its end.
void AttachedWorker::Run(Files files) {
  if (files == Files::kOwn) (void)close_range(STDERR_FILENO + 1, ~0u, CLOSE_RANGE_UNSHARE);
  const absl::Status how = RunWorker(options_);
  // Destroys the transport factory here, because its descriptors are valid only in this thread's
  // table.
  options_.member.make_transport = nullptr;
  // Repeats on_end for a worker that failed before its loop began.
  options_.on_end(how);
}

AttachedWorker::~AttachedWorker() { (void)Close(); }

void AttachedWorker::Fail(absl::Status why) {
  absl::MutexLock lock(&mutex_);
  if (!failure_.ok() || why.ok()) return;
  failure_ = std::move(why);
  failed_.store(true);
}

absl::Status AttachedWorker::Interrupted() {
  if (!failed_.load()) return absl::OkStatus();
  absl::MutexLock lock(&mutex_);
  return failure_;
}

// ---- barriers of the programs -----------------------------------------------------------------

absl::Status AttachedWorker::EnterBarrier(const ProgramValues& values, int64_t step,
                                          bool of_evaluation) {
  const bool reports = !values.value().empty();
  for (const auto& [name, value] : values.value()) {
    TANDEM_RETURN_IF_ERROR(CheckReportedName(name));
  }
  if (static_cast<size_t>(values.value_size()) > kMaxReported) return TooMany(values.value_size());
  if (of_evaluation) TANDEM_RETURN_IF_ERROR(requests_.Expect(Request::Kind::kTestBatch).status());
  absl::MutexLock lock(&mutex_);
  if (!joined_)
    return absl::FailedPreconditionError("cannot enter a barrier before the job is joined");
  if (in_barrier_)
    return absl::FailedPreconditionError("cannot enter a barrier while waiting at another one");
  in_barrier_ = true;
  released_ = false;
  ++barrier_;
  next_entry_ = absl::InfinitePast();
  entry_.Clear();
  entry_.set_name(BarrierName(barrier_));
  entry_.set_parties(plan().workers());
  entry_.set_value(step);
  if (reports) *entry_.mutable_values() = values;
  release_values_.clear();
  of_evaluation_ = of_evaluation;
  return absl::OkStatus();
}

absl::StatusOr<bool> AttachedWorker::WaitBarrier(absl::Time deadline,
                                                 std::map<std::string, double>* reduced) {
  absl::MutexLock lock(&mutex_);
  if (!in_barrier_)
    return absl::FailedPreconditionError("cannot wait at a barrier before entering it");
  absl::StatusOr<bool> released = WaitFor(released_, deadline);
  if (ended_ && how_.ok() && !released_) {
    if (!Stopped())
      return absl::FailedPreconditionError(
          "the job has ended before all workers entered the barrier");
    released = true;
  }
  if (!released.ok() || !*released) return released;
  in_barrier_ = false;
  if (reduced != nullptr) *reduced = release_values_;
  if (!of_evaluation_) return true;
  const absl::StatusOr<RequestQueue::Use> open = requests_.Expect(Request::Kind::kTestBatch);
  if (open.ok()) runner_->AddReported(release_values_);  // else the job has ended
  return true;
}

void AttachedWorker::Say(absl::Time now, std::vector<Control>* out) {
  absl::MutexLock lock(&mutex_);
  if (now >= next_notes_) notes_said_ = 0;            // a note may have been lost
  if (notes_said_ == 0) next_notes_ = now + kResend;  // notes that follow do not delay the resend
  for (; notes_said_ < notes_.size(); ++notes_said_) {
    *out->emplace_back().mutable_program_note() = notes_[notes_said_];
  }
  if (now >= next_end_) {
    next_end_ = now + kResend;
    out->emplace_back().mutable_user_request()->set_kind(UserRequest::END);
  }
  if (!in_barrier_ || released_ || now < next_entry_) return;
  next_entry_ = now + kResend;
  *out->emplace_back().mutable_barrier_enter() = entry_;
}

void AttachedWorker::Hear(const Control& control) {
  news_.Hear(control);
  const Command& command = control.command();
  if (command.kind() == Command::CHECKPOINT && command.hold()) stopped_.store(true);
  if (control.has_view()) checkpoints_models_.store(!control.view().checkpoint_folder().empty());
  absl::MutexLock lock(&mutex_);
  if (control.has_user_answer()) next_end_ = absl::InfiniteFuture();
  if (control.has_command_done()) {
    const auto taken = static_cast<int64_t>(control.command_done().id());
    while (!notes_.empty() && notes_.front().number() <= taken) {
      notes_.pop_front();
      if (notes_said_ > 0) --notes_said_;
    }
    changed_.SignalAll();
  }
  if (!control.has_barrier_release()) return;
  const BarrierRelease& release = control.barrier_release();
  if (!in_barrier_ || release.name() != BarrierName(barrier_)) return;
  released_ = true;
  release_values_ = {release.value().begin(), release.value().end()};
  changed_.SignalAll();
}

// ---- reports of programs ----------------------------------------------------------------------

absl::StatusOr<bool> AttachedWorker::Report(const std::map<std::string, double>& values,
                                            int64_t step, absl::Time deadline) {
  if (values.empty() || values.size() > kMaxReported) return TooMany(values.size());
  for (const auto& [name, value] : values) TANDEM_RETURN_IF_ERROR(CheckReportedName(name));
  absl::MutexLock lock(&mutex_);
  if (!joined_)
    return absl::FailedPreconditionError("cannot report values before the job is joined");
  while (notes_.size() >= kMaxNotes && !ended_) {
    if (changed_.WaitUntil(&mutex_, deadline)) return false;
  }
  if (ended_ && Stopped()) return true;
  if (ended_) return absl::FailedPreconditionError("cannot report values: the job has ended");
  ProgramNote note;
  note.set_step(step);
  for (const auto& [name, value] : values) (*note.mutable_value())[name] = value;
  AddNote(std::move(note));
  return true;
}

absl::Status AttachedWorker::RequestCheckpoint(int64_t step) {
  absl::MutexLock lock(&mutex_);
  if (ended_ && Stopped()) return absl::OkStatus();
  if (!joined_ || ended_) {
    return absl::FailedPreconditionError(
        ended_ ? "cannot request a checkpoint: the job has ended"
               : "cannot request a checkpoint before the job is joined");
  }
  ++checkpoints_;
  ProgramNote note;
  note.set_step(step);
  AddNote(std::move(note));
  return absl::OkStatus();
}

void AttachedWorker::RequestEnd() {
  absl::MutexLock lock(&mutex_);
  next_end_ = absl::InfinitePast();
}

void AttachedWorker::AddNote(ProgramNote note) {
  note.set_number(++last_note_);
  note.set_checkpoints(checkpoints_);
  notes_.push_back(std::move(note));
}

absl::Status AttachedWorker::Close() {
  Fail(absl::CancelledError("the program has left before the job had ended"));
  if (thread_.joinable()) thread_.join();
  absl::MutexLock lock(&mutex_);
  return how_;
}

// Waits for a flag that other threads set under the mutex.
absl::StatusOr<bool> AttachedWorker::WaitFor(const bool& what, absl::Time deadline) {
  while (!what && !ended_) {
    if (changed_.WaitUntil(&mutex_, deadline)) break;
  }
  if (what) return true;
  if (!ended_) return false;
  return how_.ok() ? absl::InternalError("the job ended before training began") : how_;
}

absl::StatusOr<bool> AttachedWorker::WaitJoined(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  return WaitFor(joined_, deadline);
}

absl::Status AttachedWorker::Start(std::vector<server::CheckpointParameter> parameters,
                                   absl::Span<const float> values) {
  int64_t floats = 0;
  for (const server::CheckpointParameter& parameter : parameters) {
    int64_t size = 1;
    for (const int64_t extent : parameter.shape) size *= extent;
    floats += size;
  }
  if (floats != static_cast<int64_t>(values.size())) {
    return WrongSize("dense parameters", values.size(), static_cast<size_t>(floats));
  }
  absl::MutexLock lock(&mutex_);
  if (started_) return absl::FailedPreconditionError("Start was called before");
  parameters_ = std::move(parameters);
  values_.assign(values.begin(), values.end());
  started_ = true;
  changed_.SignalAll();
  return absl::OkStatus();
}

absl::StatusOr<bool> AttachedWorker::WaitStarted(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  return WaitFor(open_, deadline);
}

absl::Span<float> AttachedWorker::dense() {
  absl::MutexLock lock(&mutex_);
  return dense_ == nullptr ? absl::Span<float>() : dense_->values();
}

// Runs on the worker's opening thread, and waits there until the program has called Start.
absl::StatusOr<std::unique_ptr<TaskRunner>> AttachedWorker::MakeRunner(
    const job::ResolvedJob& plan, int rank, std::shared_ptr<const server::CheckpointReader> saved) {
  absl::MutexLock lock(&mutex_);
  rank_ = rank;
  joined_ = true;
  changed_.SignalAll();
  while (!started_ && !ended_) changed_.Wait(&mutex_);
  if (ended_) return absl::CancelledError("the job is over for this worker");
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<AttachedRunner> runner,
      AttachedRunner::New(plan, std::move(saved), keeps_state_, parameters_, values_, requests_));
  values_ = {};
  dense_ = runner->shared_dense();
  runner_ = runner.get();
  return runner;
}

// ---- tasks for the program --------------------------------------------------------------------

absl::Status AttachedWorker::CheckBatch(const data::Batch& batch, bool test) const {
  const job::ResolvedJob& job = plan();
  const int64_t most = test ? job.job.evaluation().batch_size() : job.job.train().batch_size();
  if (batch.samples > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", batch.samples, " samples, and ",
                     test ? "evaluation.batch_size" : "train.batch_size", " is ", most,
                     "; give fewer, or raise it"));
  }
  for (const data::SparseInput& input : batch.sparse) {
    TANDEM_CHECK(input.table < job.tables.size());
    const job::TablePlan& table = job.tables[input.table];
    const int64_t ids = job::MaxIdsOfBatch(job, table) / job.job.train().batch_size() * most;
    if (static_cast<int64_t>(input.index.size()) <= ids) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "a batch has ", input.index.size(), " ids for table ", table.name, ", but only ", ids,
        " are allowed; raise the table's ids_per_field in the job"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Request> AttachedWorker::Next(absl::Time deadline) {
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(Request next, requests_.Next(deadline));
    if (next.kind != Request::Kind::kDigest) return next;
    TANDEM_ASSIGN_OR_RETURN(RequestQueue::Use request, requests_.Expect(Request::Kind::kDigest));
    *request->digest = DigestOf(dense());
    request.Answer(absl::OkStatus());
  }
}

absl::Status AttachedWorker::GiveBatch(data::Batch* batch) {
  TANDEM_ASSIGN_OR_RETURN(RequestQueue::Use request,
                          requests_.Expect(Request::Kind::kBatch, Request::Kind::kTestBatch));
  TANDEM_RETURN_IF_ERROR(CheckBatch(*batch, request->kind == Request::Kind::kTestBatch));
  const bool last = request->kind == Request::Kind::kTestBatch && batch->samples == 0;
  std::swap(request->slot->batch, *batch);
  if (last) news_.OnEvaluationGiven();
  request.Answer(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status AttachedWorker::Rows(size_t input, absl::Span<float> cells) {
  TANDEM_ASSIGN_OR_RETURN(RequestQueue::Use request,
                          requests_.Expect(Request::Kind::kCompute, Request::Kind::kScore));
  StepSlot& slot = *request->slot;
  if (input >= slot.batch.sparse.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no input ", input, ": this batch has ", slot.batch.sparse.size(), " inputs"));
  }
  const data::SparseInput& sparse = slot.batch.sparse[input];
  const auto dim = static_cast<size_t>(plan().tables[sparse.table].dim);
  if (cells.size() != CellsOf(sparse) * dim) {
    return WrongSize("rows", cells.size(), CellsOf(sparse) * dim);
  }
  if (slot.rows[input].at().size() != sparse.keys.size()) {
    return absl::FailedPreconditionError(
        "the rows of this input were already taken for this batch");
  }
  data::PoolRows(sparse, static_cast<int>(dim), slot.rows[input].at(), cells);
  slot.rows[input].Clear();
  return absl::OkStatus();
}

absl::Status AttachedWorker::Finish(const StepGradients& gradients) {
  TANDEM_ASSIGN_OR_RETURN(RequestQueue::Use request, requests_.Expect(Request::Kind::kCompute));
  // All sizes are checked before anything is written, so that the program can repeat a refused
  // call.
  StepSlot& slot = *request->slot;
  if (gradients.skip) {
    Skip(&slot);
    request.AnswerCompute(/*done=*/plan().dense_table >= 0);
    return absl::OkStatus();
  }
  const std::vector<data::SparseInput>& inputs = slot.batch.sparse;
  const size_t count = dense().size();
  if (!gradients.dense.empty() && gradients.dense.size() != count) {
    return WrongSize("dense gradient", gradients.dense.size(), count);
  }
  for (size_t i = 0; i < gradients.cells.size(); ++i) {
    const size_t floats =
        i < inputs.size()
            ? CellsOf(inputs[i]) * static_cast<size_t>(plan().tables[inputs[i].table].dim)
            : 0;
    if (gradients.cells[i].empty() || gradients.cells[i].size() == floats) continue;
    return WrongSize(absl::StrCat("gradient of input ", i), gradients.cells[i].size(), floats);
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    const int dim = plan().tables[inputs[i].table].dim;
    slot.rows[i].Clear();
    absl::Span<const float> cells =
        i < gradients.cells.size() ? gradients.cells[i] : absl::Span<const float>();
    if (cells.empty()) {
      for (float* const row : slot.gradients[i]) std::fill_n(row, dim, 0.0f);
      continue;
    }
    if (gradients.scale != 1) {
      scaled_.resize(cells.size());
      std::transform(cells.begin(), cells.end(), scaled_.begin(),
                     [&](float g) { return g * gradients.scale; });
      cells = scaled_;
    }
    data::MergeGradients(inputs[i], dim, cells, slot.gradients[i]);
  }
  float* const to = slot.dense_gradient.data();
  if (gradients.dense.empty()) {
    std::fill_n(to, count, 0.0f);
  } else {
    std::transform(gradients.dense.begin(), gradients.dense.end(), to,
                   [&](float g) { return g * gradients.scale; });
  }
  if (gradients.clip_norm > 0) Clip(plan().tables, gradients.clip_norm, {to, count}, &slot);
  slot.loss_sum = gradients.loss_sum;
  slot.has_loss = gradients.has_loss;
  request.AnswerCompute(/*done=*/plan().dense_table >= 0);
  return absl::OkStatus();
}

absl::Status AttachedWorker::MeanGradient(absl::Span<float> gradient) {
  TANDEM_ASSIGN_OR_RETURN(RequestQueue::Use request, requests_.Expect(Request::Kind::kUpdate));
  if (gradient.size() != dense().size()) {
    return WrongSize("dense gradient", gradient.size(), dense().size());
  }
  for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = request->gradient[i] * request->factor;
  return absl::OkStatus();
}

absl::Status AttachedWorker::Updated() {
  TANDEM_ASSIGN_OR_RETURN(RequestQueue::Use request, requests_.Expect(Request::Kind::kUpdate));
  request.Answer(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status AttachedWorker::CheckpointState(absl::Span<const char> state) {
  if (state.empty()) return absl::InvalidArgumentError("the program's state: no bytes");
  TANDEM_ASSIGN_OR_RETURN(RequestQueue::Use request, requests_.Expect(Request::Kind::kState));
  request->state->assign(state.data(), state.size());
  request.Answer(absl::OkStatus());
  return absl::OkStatus();
}

absl::Status AttachedWorker::Score(absl::Span<const float> logits, absl::Span<const float> labels) {
  TANDEM_ASSIGN_OR_RETURN(RequestQueue::Use request, requests_.Expect(Request::Kind::kScore));
  data::Batch& batch = request->slot->batch;
  const auto samples = static_cast<size_t>(batch.samples);
  const bool counts = !logits.empty() || !labels.empty();
  if (counts && (logits.size() != samples || labels.size() != samples)) {
    return absl::InvalidArgumentError(absl::StrCat("scores of ", logits.size(), " samples with ",
                                                   labels.size(), " labels for a batch of ",
                                                   samples));
  }
  const auto wrong =
      std::find_if(labels.begin(), labels.end(), [](float y) { return y != 0 && y != 1; });
  if (wrong != labels.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "label ", *wrong, " of sample ", wrong - labels.begin(), "; expected labels of 0 or 1"));
  }
  for (client::PulledRows& rows : request->slot->rows) rows.Clear();
  if (counts) {
    batch.labels.assign(labels.begin(), labels.end());
    runner_->AddScores(batch, logits);
  }
  request.Answer(absl::OkStatus());
  return absl::OkStatus();
}

}  // namespace tandem::worker
