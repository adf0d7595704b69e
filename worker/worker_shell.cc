#include "worker/worker_shell.h"

#include <cmath>
#include <filesystem>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/exhaustion.h"
#include "base/file.h"
#include "base/no_room.h"
#include "base/status_macros.h"
#include "collectives/errors.h"
#include "collectives/trace.h"
#include "data/files.h"
#include "data/service_trace.h"
#include "data/statistics.h"
#include "job/silence_times.h"
#include "job/user_module.h"
#include "node/log.h"
#include "node/node_session.h"
#include "node/work_thread.h"
#include "proto/serialize.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "transport/peer_map.h"
#include "worker/dense/join_group.h"
#include "worker/embedded_server.h"
#include "worker/resume_position.h"
#include "worker/slow_down.h"
#include "worker/task_runner.h"
#include "worker/trainer_core.h"

namespace tandem::worker {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);
// After this time the user is told that a resumed worker reads rows again.
constexpr absl::Duration kLongRead = absl::Seconds(5);

// A finished task of another thread, on its way back to the comm thread.
struct DoneTask {
  TrainerTask task;
  absl::Status status;
};

class DoneQueue {
 public:
  explicit DoneQueue(transport::Transport& transport) : transport_(transport) {}
  void Push(DoneTask done) {
    {
      absl::MutexLock lock(&mutex_);
      done_.push_back(std::move(done));
    }
    transport_.Wake();
  }
  void Take(std::vector<DoneTask>* out) {
    absl::MutexLock lock(&mutex_);
    out->swap(done_);
  }

 private:
  transport::Transport& transport_;
  absl::Mutex mutex_;
  std::vector<DoneTask> done_ ABSL_GUARDED_BY(mutex_);
};

using TaskThread = node::WorkThread<TrainerTask>;

constexpr int64_t kAlways = -1;  // step of trace entries that do not depend on trace_steps

bool IsRead(const TrainerTask& task) {
  return std::holds_alternative<FetchTask>(task) || std::holds_alternative<FetchTestTask>(task);
}

// Whether the task writes files of a checkpoint. Such tasks have a thread of their own, so that no
// step waits for the disk.
bool IsWrite(const TrainerTask& task) {
  return std::holds_alternative<WriteDenseTask>(task) ||
         std::holds_alternative<WriteWorkerTask>(task) ||
         std::holds_alternative<CommitCheckpointTask>(task) ||
         std::holds_alternative<AbandonCheckpointTask>(task);
}

// The run record of a checkpoint.
absl::StatusOr<RunRecord> RecordIn(const server::CheckpointReader& saved) {
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, saved.ReadRecord());
  RunRecord record;
  if (record.ParseFromString(bytes)) return record;
  return absl::DataLossError(
      absl::StrCat(saved.folder(), ": its run record is damaged; hint: use another checkpoint"));
}

// Makes room on the disk of a checkpoint. `free_bytes`: receives the room that there is afterwards.
void MakeRoom(const std::string& checkpoint, const server::CheckpointHead& head,
              const node::Log& log, int64_t* free_bytes) {
  const std::string folder = server::ModelFolderOf(checkpoint);
  const int removed = server::MakeRoom(checkpoint, head);
  *free_bytes = FreeBytes(folder);
  if (removed == 0) return;
  log.Info(absl::StrCat("removed ", removed, " older ", removed == 1 ? "checkpoint" : "checkpoints",
                        " in ", folder, " to make room for the next one"));
}

// Returns the number of this worker's GPU, if the job computes on GPUs. All workers call it at the
// same time, before they read data. `warning`: for the user; only worker 0 gets it.
absl::StatusOr<int> TakeDevice(const job::ResolvedJob& plan, int rank, const Rendezvous& rendezvous,
                               const node::Log& log, AbortableWatch* watch, std::string* warning) {
  if (plan.job.dense().device() != Dense::CUDA) return 0;
  std::vector<VisibleDevices> visible = {FindDevices()};
  const size_t seen = visible[0].size();
  if (plan.workers() > 1) {
    TANDEM_ASSIGN_OR_RETURN(visible,
                            ShareDevices(plan, rank, rendezvous, std::move(visible[0]), watch));
  }
  const DealtDevices dealt = DealDevices(visible);
  const int gpu = dealt.of_worker[static_cast<size_t>(rank)];
  if (gpu < 0) return 0;  // no GPU: making the model fails and says so
  log.Info(absl::StrCat("computes on GPU ", gpu, " of ", seen));
  if (rank == 0) *warning = dealt.warning;
  return gpu;
}

class Worker {
 public:
  explicit Worker(const WorkerOptions& options) : options_(options), plan_(options.plan) {}

  absl::Status Run() {
    TANDEM_ASSIGN_OR_RETURN(transport_, options_.member.make_transport(self_));
    peers_ = std::make_unique<transport::PeerMap>(*transport_);
    done_queue_ = std::make_unique<DoneQueue>(*transport_);
    node::NodeSession::Options member = options_.member;
    member.role = Register::WORKER;
    member.job_hash = options_.plan.hash;
    member.job = &options_.plan.job;
    member.silence = job::SilenceTimes(options_.plan.job);
    member.endpoints = {transport_->address()};
    member_ = std::make_unique<node::NodeSession>(*transport_, std::move(member));
    TANDEM_RETURN_IF_ERROR(member_->Start());
    if (options_.plan.workers_serve) StartEmbeddedServer();
    const absl::Status status = member_->RunLoop([this] { return Loop(); });
    // The order matters. The dump is requested while the group still shows what it waited for. Then
    // every wait that other threads may be in ends: collectives (watch_), sleeps, and tasks of a
    // program (on_end). Only then can the threads be joined. The trace is written after the threads
    // that add to it. The own server is last, because other workers read its rows until the
    // scheduler ends the job.
    {
      absl::MutexLock lock(&group_mutex_);
      if (group_.runner != nullptr && !status.ok()) group_.runner->RequestDump();
    }
    watch_.Abort(absl::CancelledError("the worker ends"));
    slow_down_.End();
    if (options_.on_end) options_.on_end(status);
    opener_.reset();
    reader_.reset();
    computer_.reset();
    writer_.reset();
    if (trace_ != nullptr) {
      const absl::Status written = trace_->Write(options_.trace_path);
      if (!written.ok()) log_.Error(absl::StrCat("cannot write the trace: ", written.ToString()));
    }
    if (embedded_server_ == nullptr) return status;
    const absl::Status served = embedded_server_->Join(status);
    return status.ok() ? served : status;
  }

 private:
  void StartEmbeddedServer() {
    server::ServerOptions server;
    server.plan = options_.plan;
    server.member = options_.member;
    server.record_dir = options_.record_dir;
    server.replay = options_.replay;
    server.checkpoint = checkpoint_;
    embedded_server_ = std::make_unique<EmbeddedServer>(std::move(server));
  }

  absl::Status Loop() {
    // The report has the step that this worker has reached by now.
    const auto fail = [this](absl::Status why, absl::optional<EndpointId> culprit) {
      if (trainer_ != nullptr) {
        member_->progress().Advance(static_cast<uint64_t>(trainer_->step()));
      }
      return member_->Fail(std::move(why), culprit);
    };
    std::vector<transport::TransportEvent> events;
    std::vector<DoneTask> done;
    absl::Time next_tick = MonotonicNow();
    // Frames and views go before finished tasks, so that the trainer sees the newest state. The end
    // of the training is checked before member_->OnTick, which fails when the scheduler has gone: a
    // scheduler that sent STOP may exit at once.
    for (;;) {
      transport_->Poll(kTick, &events);
      absl::Time now = MonotonicNow();
      for (const transport::TransportEvent& event : events) OnEvent(now, event);
      events.clear();
      TANDEM_RETURN_IF_ERROR(HandleInbox(now));
      SayForTheDriver(now);
      done_queue_->Take(&done);
      for (const DoneTask& item : done) {
        const bool read = std::holds_alternative<FetchTask>(item.task) && item.status.ok();
        if (read) SayReadAgain(now, /*over=*/true);
        trainer_->OnTaskDone(now, item.task, item.status, &effects_);
        Flush();
      }
      done.clear();
      ReportGroup();
      now = MonotonicNow();
      if (now >= next_tick) {
        next_tick = now + kTick;
        OnTick(now);
      }
      if (trainer_ != nullptr && trainer_->finished()) return absl::OkStatus();
      TANDEM_RETURN_IF_ERROR(member_->OnTick(now));
      if (embedded_server_ != nullptr) {
        // The scheduler names the failed node if it knows the node.
        if (absl::Status why = embedded_server_->failure(); !why.ok()) return member_->Fail(why);
      }
      if (options_.interrupted) {
        if (absl::Status why = options_.interrupted(); !why.ok()) return fail(why, absl::nullopt);
      }
      if (trainer_ == nullptr) continue;
      if (!trainer_->failure().ok() && !WaitForTheCause(now)) {
        return fail(trainer_->failure(), client::SilentShard(trainer_->failure()));
      }
    }
  }

  // A worker that only lost its link to another worker reports the loss to the scheduler, and waits
  // for the scheduler's decision: the scheduler alone decides which node has failed.
  bool WaitForTheCause(absl::Time now) {
    const absl::optional<int> lost = collectives::LostPeer(trainer_->failure());
    if (!lost.has_value()) return false;
    if (cause_by_ == absl::InfiniteFuture()) {
      cause_by_ = now + job::SilenceTimes(plan_.job).verdict;
      member_->link().ReportFailure(trainer_->failure(), EndpointId::Worker(*lost));
    }
    return now < cause_by_;
  }

  // Runs on the compute thread, the reader thread or the writer thread.
  absl::Status RunTask(const TrainerTask& task) {
    if (trace_ == nullptr) return RunJoined(task);
    const absl::Time begun = MonotonicNow();
    absl::Status status = RunJoined(task);
    const TaskName name = NameOf(task);
    AddToTrace(name.step, name.what, begun, MonotonicNow(), name.lane);
    return status;
  }

  struct TaskName {
    int64_t step = 0;
    const char* what = "";
    const char* lane = "";
  };
  static TaskName NameOf(const TrainerTask& task) {
    const auto checkpoint = [](const char* what) { return TaskName{kAlways, what, "checkpoint"}; };
    const auto evaluation = [](const char* what) { return TaskName{kAlways, what, "evaluation"}; };
    return std::visit(Overloaded{
                          [](const FetchTask& t) {
                            return TaskName{t.slot->step, "read", "read"};
                          },
                          [](const ComputeTask& t) {
                            return TaskName{t.slot->step, "compute", "compute"};
                          },
                          [](const SynchroniseTask& t) {
                            return TaskName{t.slot->step, "synchronise", "compute"};
                          },
                          [](const EpochEndTask&) {
                            return TaskName{kAlways, "last sum", "compute"};
                          },
                          [&](const FetchTestTask&) { return evaluation("read rows"); },
                          [&](const ScoreTask&) { return evaluation("score"); },
                          [&](const FillShareTask&) { return evaluation("sum up"); },
                          [&](const MergeSharesTask&) { return evaluation("merge"); },
                          [&](const GatherDenseTask&) { return checkpoint("gather dense"); },
                          [&](const CopyWorkerTask&) { return checkpoint("copy its own"); },
                          [&](const WriteDenseTask&) { return checkpoint("write dense"); },
                          [&](const WriteWorkerTask&) { return checkpoint("write its own"); },
                          [&](const CommitCheckpointTask&) { return checkpoint("commit"); },
                          [&](const AbandonCheckpointTask&) { return checkpoint("abandon"); },
                      },
                      task);
  }

  // Traces the first steps, and everything that is not a step.
  void AddToTrace(int64_t step, const char* what, absl::Time start, absl::Time end,
                  const char* lane) {
    if (step >= options_.trace_steps) return;
    trace_->Add(
        {step == kAlways ? what : absl::StrCat(what, " ", step), what, start, end - start, lane});
  }

  absl::Status RunJoined(const TrainerTask& task) {
    return std::visit(
        Overloaded{
            [&](const FetchTask& t) { return Fetch(t.slot); },
            [&](const FetchTestTask& t) { return runner_->FetchTest(t.slot, t.first, t.rows); },
            [&](const ComputeTask& t) { return Compute(t.slot); },
            [&](const SynchroniseTask& t) { return Synchronise(t.slot); },
            [&](const EpochEndTask& t) { return EndEpoch(t); },
            [&](const ScoreTask& t) { return runner_->Score(t.slot); },
            [&](const FillShareTask& t) { return runner_->FillShare(t.share, t.payload); },
            [&](const MergeSharesTask& t) { return MergeShares(t); },
            [&](const GatherDenseTask& t) { return GatherDense(t); },
            [&](const CopyWorkerTask& t) { return CopyWorker(t); },
            [&](const WriteDenseTask& t) { return server::WriteDenseFile(*t.directory, *t.bytes); },
            [&](const WriteWorkerTask& t) { return WriteWorker(t); },
            [&](const CommitCheckpointTask& t) { return Commit(t); },
            [&](const AbandonCheckpointTask& t) {
              server::AbandonCheckpoint(*t.directory);
              if (t.makes_room) MakeRoom(*t.directory, Head(t.checkpoint), log_, t.free_bytes);
              return absl::OkStatus();
            },
        },
        task);
  }

  absl::Status Fetch(StepSlot* slot) {
    const absl::Time begun = MonotonicNow();
    absl::Status status = runner_->Fetch(slot);
    slot->fetched = MonotonicNow() - begun;
    return status;
  }

  static DenseReduction::Step StepOf(const StepSlot& slot) {
    return {slot.step, slot.samples(), slot.last, slot.skipped, slot.sample_clock};
  }

  absl::Status Compute(StepSlot* slot) {
    // Join the other workers before the compute time is measured: the wait counts as `joined`. With
    // overlap the steps begin before the model runs, because the backward pass calls Ready.
    const bool joins = steps_ == nullptr;
    const absl::Time came = MonotonicNow();
    TANDEM_RETURN_IF_ERROR(JoinOthers());
    const absl::Time begun = MonotonicNow();
    if (joins && steps_ != nullptr) slot->joined = begun - came;
    if (steps_ != nullptr) steps_->BeforeStep();
    if (steps_ != nullptr && steps_->overlaps()) {
      steps_->Begin(absl::MakeSpan(slot->dense_gradient), StepOf(*slot));
    }
    TANDEM_RETURN_IF_ERROR(runner_->Compute(slot));
    slot->computed = MonotonicNow() - begun;
    if (slow_down_.any()) SleepTheRest(begun, slot);
    return absl::OkStatus();
  }

  void SleepTheRest(absl::Time begun, StepSlot* slot) {
    slot->slept = slow_down_.WaitOut(slot->step, begun);
    if (trace_ == nullptr || slot->slept <= absl::ZeroDuration()) return;
    const absl::Time end = MonotonicNow();
    AddToTrace(slot->step, "sleep on purpose", end - slot->slept, end, "compute");
  }

  absl::Status Synchronise(StepSlot* slot) {
    TANDEM_RETURN_IF_ERROR(JoinOthers());
    DenseSteps::StepResult result;
    TANDEM_RETURN_IF_ERROR(
        steps_->Finish(absl::MakeSpan(slot->dense_gradient), StepOf(*slot), &result));
    slot->samples_of_all = result.samples_of_all;
    slot->empty_steps = result.empty_steps;
    slot->bytes_sent = group_runner_->TakeBytes();
    slot->missed = std::move(result.missed);
    // Without a gradient these were skipped steps.
    if (!slot->dense_gradient.empty()) runner_->OnSynchronised();
    return absl::OkStatus();
  }

  absl::Status EndEpoch(const EpochEndTask& task) {
    TANDEM_RETURN_IF_ERROR(JoinOthers());
    if (!task.all) return steps_->OutOfData();
    TANDEM_RETURN_IF_ERROR(steps_->Settle(/*new_epoch=*/true, task.step, task.missed));
    *task.bytes_sent = group_runner_->TakeBytes();
    return absl::OkStatus();
  }

  absl::Status GatherDense(const GatherDenseTask& task) {
    TANDEM_RETURN_IF_ERROR(JoinOthers());
    TANDEM_RETURN_IF_ERROR(steps_->Settle(/*new_epoch=*/false, /*step=*/0, task.missed));
    *task.bytes_sent = group_runner_->TakeBytes();
    return absl::OkStatus();
  }

  absl::Status CopyWorker(const CopyWorkerTask& task) {
    *task.state = steps_ == nullptr ? own_state_ : steps_->State();
    TANDEM_ASSIGN_OR_RETURN(
        *task.program,
        runner_->ProgramState(task.step, task.epoch, task.checkpoint == CheckpointId::kFinal));
    return absl::OkStatus();
  }

  absl::Status WriteWorker(const WriteWorkerTask& task) {
    if (!task.state->empty()) {
      TANDEM_RETURN_IF_ERROR(server::WriteWorkerFile(*task.directory, self_.index, *task.state));
    }
    if (task.program->empty()) return absl::OkStatus();
    return server::WriteProgramFile(*task.directory, self_.index, *task.program);
  }

  server::CheckpointHead Head(CheckpointId id) const {
    server::CheckpointHead head;
    head.run = run_;
    head.attempt = attempt_;
    head.keep = plan_.job.checkpoint().keep();
    head.resumed_from = resumed_from_;
    head.best = id == CheckpointId::kBest;
    return head;
  }

  absl::Status Commit(const CommitCheckpointTask& task) {
    server::CheckpointHead head = Head(task.checkpoint);
    head.step = task.step;
    RunRecord record;
    TANDEM_CHECK(record.ParseFromString(*task.record));
    record.mutable_train()->Assign(files_.begin(), files_.end());
    record.set_blocks(plan_.job.data().deal() == Data::BLOCKS);
    head.record = Serialize(record);
    std::string stay;
    const absl::Status committed =
        server::CommitCheckpoint(*task.directory, plan_, head, runner_->Parameters(), &stay);
    if (!stay.empty() && !std::exchange(said_that_they_stay_, true)) log_.Warning(stay);
    if (task.makes_room && IsNoRoom(committed))
      MakeRoom(*task.directory, head, log_, task.free_bytes);
    return committed;
  }

  absl::Status MergeShares(const MergeSharesTask& task) {
    TANDEM_ASSIGN_OR_RETURN(*task.json, runner_->MergeShares(*task.shares, *task.payloads));
    return absl::OkStatus();
  }

  OwnModule Module() const { return {runner_->Parameters(), runner_->ModuleContents()}; }

  // Joins the other replicas before the first common operation. Jobs in which each worker has its
  // own module join while the worker opens (ShareModules), before the first step.
  absl::Status JoinOthers() {
    if (steps_ != nullptr || options_.plan.dense_table >= 0) return absl::OkStatus();
    const bool on_device = options_.plan.job.dense().device() == Dense::CUDA;
    TANDEM_ASSIGN_OR_RETURN(
        WorkerGroup group,
        JoinWorkers(options_.plan, self_.index, rendezvous_, options_.dump_folder, Module(),
                    runner_->dense(), on_device ? runner_->LeaveGradientOnDevice() : nullptr,
                    &watch_));
    TANDEM_RETURN_IF_ERROR(group.steps->SetState(own_state_));
    steps_ = group.steps.get();
    group_runner_ = group.runner.get();
    group_runner_->set_trace(trace_.get());
    // With slow_down_ the gradients of a step count as ready only at the end of its longer time.
    if (steps_->overlaps() && !slow_down_.any()) {
      runner_->set_gradient_ready([this](int64_t first) { steps_->Ready(first); });
    }
    absl::MutexLock lock(&group_mutex_);
    group_ = std::move(group);
    return absl::OkStatus();
  }

  // After the rendezvous of the workers: each worker reports its links to the scheduler, and rank 0
  // reports the chosen algorithms. Also requests a dump when a signal asks for one.
  void ReportGroup() {
    absl::MutexLock lock(&group_mutex_);
    if (group_.runner == nullptr) return;
    const int signals = options_.dump_signals == nullptr ? 0 : options_.dump_signals->load();
    if (signals != seen_dump_signals_) group_.runner->RequestDump();
    seen_dump_signals_ = signals;
    Control control;
    for (Path& path : group_.paths) *control.mutable_paths()->add_path() = std::move(path);
    group_.paths.clear();
    if (control.has_paths()) member_->link().Send(control);
    if (group_.tuning.json.empty()) return;
    control.mutable_collectives()->set_json(std::move(group_.tuning.json));
    control.mutable_collectives()->set_line(std::move(group_.tuning.line));
    group_.tuning.json.clear();
    member_->link().Send(control);
  }

  Activity SynchroniserWaitsFor() {
    absl::MutexLock lock(&group_mutex_);
    if (group_.steps == nullptr) return {};
    Activity waiting = group_.runner->WaitingFor();
    return waiting.text.empty() ? group_.steps->WaitingFor() : waiting;
  }

  void OnTick(absl::Time now) {
    if (trainer_ == nullptr) return;
    SayReadAgain(now, /*over=*/false);
    ReportPaths();
    trainer_->OnTick(now, &effects_);
    const uint64_t progress =
        trainer_->progress_count() +
        static_cast<uint64_t>(runner_->RowsReadAgain() + slow_down_.moments_slept());
    if (progress != seen_progress_) {
      seen_progress_ = progress;
      member_->progress().Advance(static_cast<uint64_t>(trainer_->step()));
    }
    member_->progress().SetActivity(trainer_->Doing(now, SynchroniserWaitsFor()));
    Flush();
  }

  // In a resumed run: logs how many rows this worker has read again before its first batch (`over`:
  // it has the batch). If that takes long, the line of rank 0 reaches the user, too.
  void SayReadAgain(absl::Time now, bool over) {
    if (read_since_ == absl::InfiniteFuture()) return;
    const int64_t rows = runner_->RowsReadAgain();
    const double seconds = absl::ToDoubleSeconds(now - read_since_);
    const bool is_long = rows > 0 && now - read_since_ > kLongRead;
    if (!over && (!is_long || said_long_read_)) return;
    said_long_read_ = true;
    if (over) read_since_ = absl::InfiniteFuture();
    const std::string line =
        over ? absl::StrFormat("has read %d rows again to resume, in %.1f s", rows, seconds)
             : absl::StrFormat("reads rows again to resume, so far %d in %.1f s", rows, seconds);
    log_.Info(line);
    if (!is_long || self_.index != 0) return;
    Control control;
    control.mutable_worker_note()->set_text(line);
    member_->link().Send(control);
  }

  void OnEvent(absl::Time now, const transport::TransportEvent& event) {
    const EndpointId lost = peers_->OnEvent(event);
    if (lost != EndpointId() && trainer_ != nullptr) {
      trainer_->OnLost(now, lost, event.why.message());
    }
    member_->OnEvent(now, event);
    if (const std::string trouble = transport::TroubleIn(event); !trouble.empty()) {
      troubles_.Warning(log_, trouble);
    }
    if (event.kind != transport::TransportEvent::Kind::kFrame || trainer_ == nullptr) return;
    trainer_->OnFrame(now, event.frame, &effects_);
    Flush();
  }

  // Hands views to the trainer. The first message of the scheduler is a view; all its other
  // messages reach the trainer through OnEvent. A view is acknowledged only when the trainer has
  // it.
  absl::Status HandleInbox(absl::Time now) {
    for (Control& control : member_->TakeInbox()) {
      if (options_.hear) options_.hear(control);
      if (control.has_view()) views_.push_back(std::move(*control.mutable_view()));
    }
    if (views_.empty()) return absl::OkStatus();
    if (trainer_ == nullptr) {
      if (absl::Status made = MakeTrainer(views_[0]); !made.ok()) return member_->Fail(made);
      if (trainer_ == nullptr) return absl::OkStatus();  // the trainer is not open yet
    }
    for (const View& view : views_) {
      TANDEM_ASSIGN_OR_RETURN(auto map, RangeMap::FromView(view, options_.plan.sizes()));
      SetAddresses(now, view);
      trainer_->OnView(now, std::move(map), &effects_);
      member_->link().SendDone(view.number(), absl::OkStatus());
      Flush();
    }
    views_.clear();
    return absl::OkStatus();
  }

  void SayForTheDriver(absl::Time now) {
    if (!options_.say || opener_ == nullptr) return;  // no view yet
    std::vector<Control> said;
    options_.say(now, &said);
    for (const Control& control : said) member_->link().Send(control);
  }

  // Called again and again until the trainer exists or opening it has failed.
  absl::Status MakeTrainer(const View& view) {
    if (opener_ == nullptr) return StartOpening(view);
    {
      absl::MutexLock lock(&opened_mutex_);
      if (!opened_.has_value()) return absl::OkStatus();
      TANDEM_RETURN_IF_ERROR(*opened_);
    }
    return FinishOpening(view);
  }

  absl::Status StartOpening(const View& view) {
    TANDEM_ASSIGN_OR_RETURN(const int rank, member_->FindSelf(view));
    self_ = EndpointId::Worker(rank);
    log_ = node::Log("worker", rank);
    rendezvous_ = {view.coordinator(), options_.security};
    member_->progress().SetActivity({"opening data and model", {}});
    if (view.worker(rank).has_start()) replaces_ = view.worker(rank).start();
    if (!options_.trace_path.empty()) {
      trace_ = std::make_unique<collectives::Trace>(absl::StrCat("worker ", rank), rank);
    }
    const bool resume = view.resume();
    if (resume) resumed_from_ = std::filesystem::path(view.init_from()).filename().string();
    opener_ = std::make_unique<node::WorkThread<std::string>>(
        [this, resume](const std::string& init_from) {
          absl::Status opened = CatchExceptions([&] { return Open(init_from, resume); });
          {
            absl::MutexLock lock(&opened_mutex_);
            opened_ = std::move(opened);
          }
          transport_->Wake();
        });
    // The dense part is loaded only with a whole checkpoint, not with a single table (only_table).
    opener_->Add(view.only_table().empty() ? view.init_from() : "");
    return absl::OkStatus();
  }

  // Runs on the opening thread, while no other thread uses the members that it sets.
  absl::Status Open(const std::string& init_from, bool resume) {
    TANDEM_ASSIGN_OR_RETURN(const int gpu, TakeDevice(plan_, self_.index, rendezvous_, log_,
                                                      &watch_, &device_warning_));
    std::shared_ptr<const server::CheckpointReader> saved;
    if (!init_from.empty()) {
      TANDEM_ASSIGN_OR_RETURN(saved, checkpoint_->Open(init_from));
      if (resume) {  // the rows are dealt as before
        TANDEM_ASSIGN_OR_RETURN(const RunRecord record, RecordIn(*saved));
        TANDEM_RETURN_IF_ERROR(data::AdoptDeal(record, plan_.job.mutable_data()));
      }
    }
    // The meaning of the model's inputs (data statistics) comes from the checkpoint if there is
    // one, otherwise from the training rows.
    TANDEM_RETURN_IF_ERROR(
        data::FillFromData(saved == nullptr ? "" : saved->manifest().data, &plan_));
    TANDEM_ASSIGN_OR_RETURN(files_, data::TrainingFiles(plan_.job.data()));
    TANDEM_ASSIGN_OR_RETURN(files_hash_, data::HashTrainingFiles(plan_.job.data()));
    if (replaces_.has_value()) {  // the others use the files as the dead process saw them
      TANDEM_RETURN_IF_ERROR(
          data::CheckTrainingFilesUnchanged(replaces_->position().files_hash(), plan_.job.data()));
    }
    TANDEM_ASSIGN_OR_RETURN(job::StepTimes times,
                            data::OpenStepTimes(plan_, plan_.job.seed(), self_.index));
    slow_down_.set_times(std::move(times));
    TANDEM_ASSIGN_OR_RETURN(runner_, options_.make_runner(plan_, self_.index, gpu, saved));
    if (replaces_.has_value()) {
      start_ = replaces_->position();
      if (replaces_->has_best()) best_ = replaces_->best();
      epochs_to_first_judged_ = replaces_->epochs_to_first_judged();
      TANDEM_RETURN_IF_ERROR(runner_->StartAt(*start_));
    } else if (resume) {
      TANDEM_ASSIGN_OR_RETURN(start_, FindStart(*saved));
    }
    if (job::HasOwnModule(plan_.job.model())) TANDEM_RETURN_IF_ERROR(ShareModules());
    if (options_.on_open) options_.on_open();
    return absl::OkStatus();
  }

  // Each worker makes or loads its own module. Gives all modules the values of rank 0 before
  // on_open, since programs may read their parameters at once.
  absl::Status ShareModules() {
    if (plan_.dense_table < 0 || plan_.workers() == 1) return JoinOthers();
    TANDEM_ASSIGN_OR_RETURN(modules_, ShareModule(options_.plan, self_.index, rendezvous_, Module(),
                                                  runner_->dense().values(), &watch_));
    return absl::OkStatus();
  }

  absl::Status FinishOpening(const View& view) {
    if (!device_warning_.empty()) {
      Control control;
      control.mutable_worker_note()->set_text(absl::StrCat("warns: ", device_warning_));
      member_->link().Send(control);
    }
    TrainerCore::Options trainer;
    trainer.take_back = [runner = runner_.get()](int64_t step) { return runner->TakeBack(step); };
    const job::SilenceTimes silence(plan_.job);
    trainer.client.resend_after = silence.resend;
    trainer.client.silence_limit = silence.shard;
    trainer.rank = self_.index;
    trainer.incarnation = options_.member.incarnation;
    trainer.checkpoint = !view.checkpoint_folder().empty();
    trainer.checkpoint_path = view.checkpoint_folder();
    run_ = view.run();
    attempt_ = view.attempt();
    trainer.start = start_;
    trainer.replaces = replaces_;
    trainer.files_hash = files_hash_;
    const Data::Format format = plan_.job.data().format();  // NCF skips rows without reading them
    resumes_in_files_ = start_.has_value() && start_->rows() > 0 && !start_->epoch_over() &&
                        format != Data::PROGRAM && format != Data::NCF;
    if (self_.index == 0) trainer.best = best_;
    if (self_.index == 0) trainer.epochs_to_first_judged = epochs_to_first_judged_;
    trainer.evaluate = runner_->has_test_data();
    trainer.estimated_rows = runner_->EstimatedRows();
    TANDEM_ASSIGN_OR_RETURN(trainer_,
                            TrainerCore::New(plan_, trainer, runner_->dense(), *transport_));
    const auto run = [this](TrainerTask task) {
      absl::Status status = CatchExceptions([&] { return RunTask(task); });
      done_queue_->Push({std::move(task), std::move(status)});
    };
    reader_ = std::make_unique<TaskThread>(run);
    computer_ = std::make_unique<TaskThread>(run);
    writer_ = std::make_unique<TaskThread>(run);
    return absl::OkStatus();
  }

  // Finds where this worker resumes in the run that wrote the checkpoint.
  absl::StatusOr<TrainPosition> FindStart(const server::CheckpointReader& saved) {
    TANDEM_ASSIGN_OR_RETURN(const RunRecord record, RecordIn(saved));
    TANDEM_RETURN_IF_ERROR(data::CheckSameFiles(record, plan_.job.data()));
    TANDEM_ASSIGN_OR_RETURN(
        const TrainPosition start,
        ResumePosition(record, self_.index, plan_.workers(), plan_.job.train().max_steps()));
    if (record.worker(0).has_best()) best_ = record.worker(0).best();
    epochs_to_first_judged_ = record.worker(0).epochs_to_first_judged();
    TANDEM_RETURN_IF_ERROR(runner_->StartAt(start));
    TANDEM_ASSIGN_OR_RETURN(own_state_, saved.ReadWorkerState(self_.index));
    return start;
  }

  void SetAddresses(absl::Time now, const View& view) {
    for (int s = 0; s < view.server_size(); ++s) {
      for (int t = 0; t < view.server(s).endpoint_size(); ++t) {
        const EndpointId shard = EndpointId::Shard(s, t);
        const bool moved = peers_->SetAddress(shard, view.server(s).endpoint(t));
        if (moved && trainer_ != nullptr) trainer_->OnLost(now, shard, "");
      }
    }
    for (int w = 0; w < view.worker_size(); ++w) {
      if (w != self_.index) peers_->SetAddress(EndpointId::Worker(w), view.worker(w).endpoint(0));
    }
  }

  void Flush() {
    for (Outgoing& out : effects_.out) {
      if (out.to == EndpointId::Scheduler()) {
        member_->link().SendFrame(std::move(out.frame));
      } else {
        SendToPeer(std::move(out));
      }
    }
    for (TrainerTask& task : effects_.tasks) {
      if (resumes_in_files_ && std::holds_alternative<FetchTask>(task)) {
        read_since_ = MonotonicNow();
        resumes_in_files_ = false;
      }
      (IsRead(task) ? reader_ : IsWrite(task) ? writer_ : computer_)->Add(std::move(task));
    }
    if (trace_ != nullptr) {
      for (const TransferTrace& t : effects_.transfers) {
        AddToTrace(t.step, t.push ? "push" : "pull", t.start, t.end, t.push ? "push" : "pull");
      }
    }
    for (const std::string& line : effects_.log) log_.Info(line);
    effects_.Clear();
  }

  // A frame that cannot be sent now (RESOURCE_EXHAUSTED) is resent later.
  void SendToPeer(Outgoing out) {
    const EndpointId to = out.to;
    const absl::Status sent = peers_->Send(std::move(out));
    if (sent.ok() || absl::IsResourceExhausted(sent)) return;
    trainer_->OnLost(MonotonicNow(), to, sent.message());
  }

  // Tells the scheduler how this worker reaches its peers.
  void ReportPaths() {
    if (options_.paths == nullptr) return;
    Control control;
    for (const transport::PathChoice& choice : options_.paths->Take()) {
      const EndpointId to = peers_->EndpointAt(choice.address);
      if (to == EndpointId()) continue;  // the scheduler
      Path* const path = control.mutable_paths()->add_path();
      path->set_to(to.DebugString());
      path->set_way(choice.way);
      path->set_why(choice.why);
    }
    if (control.has_paths()) member_->link().Send(control);
  }

  const WorkerOptions& options_;
  job::ResolvedJob plan_;  // plan of the options, with data statistics
  EndpointId self_ = EndpointId::Worker(0);
  node::Log log_{"worker"};
  std::string device_warning_;        // for the user; on worker 0 only
  bool said_that_they_stay_ = false;  // older checkpoints; for the thread that commits
  node::BoundedLog troubles_;
  uint64_t seen_progress_ = 0;
  std::unique_ptr<transport::Transport> transport_;
  std::unique_ptr<transport::PeerMap> peers_;
  std::unique_ptr<node::NodeSession> member_;
  std::unique_ptr<DoneQueue> done_queue_;
  std::vector<View> views_;  // not acknowledged
  std::unique_ptr<node::WorkThread<std::string>> opener_;
  absl::Mutex opened_mutex_;
  absl::optional<absl::Status> opened_ ABSL_GUARDED_BY(opened_mutex_);
  std::unique_ptr<TaskRunner> runner_;
  std::unique_ptr<TrainerCore> trainer_;
  absl::Time cause_by_ = absl::InfiniteFuture();
  bool resumes_in_files_ = false;  // the next FetchTask is the first one of a resumed epoch
  absl::Time read_since_ = absl::InfiniteFuture();  // when that task began; only while it runs
  bool said_long_read_ = false;
  Rendezvous rendezvous_;
  uint64_t run_ = 0;          // View.run
  int64_t attempt_ = 0;       // View.attempt
  std::string resumed_from_;  // the folder of the checkpoint, without its path
  // The place where this process begins instead of a dead one; nullopt: it replaces none.
  absl::optional<WorkerStart> replaces_;
  // Position in the checkpoint from which the run resumes, and the best evaluation before it.
  absl::optional<TrainPosition> start_;
  absl::optional<BestEvaluation> best_;
  int64_t epochs_to_first_judged_ = 0;           // from that checkpoint
  std::string own_state_;                        // DenseSteps::State, from that checkpoint
  std::vector<DataFile> files_;                  // training files as they were opened
  uint64_t files_hash_ = 0;                      // likewise
  std::unique_ptr<collectives::Trace> trace_;    // made before the threads that add to it
  AbortableWatch watch_;                         // used by the group; outlives it
  std::unique_ptr<collectives::Group> modules_;  // if dense parameters are on servers
  absl::Mutex group_mutex_;
  WorkerGroup group_ ABSL_GUARDED_BY(group_mutex_);  // made by the compute thread
  // Point into group_. Used by the opening thread, later by the compute thread.
  DenseSteps* steps_ = nullptr;
  GroupRunner* group_runner_ = nullptr;
  int seen_dump_signals_ = 0;
  TrainerEffects effects_;
  // The checkpoint with which the job begins; the embedded server has it, too.
  const std::shared_ptr<server::SharedCheckpoint> checkpoint_ =
      std::make_shared<server::SharedCheckpoint>();
  std::unique_ptr<EmbeddedServer> embedded_server_;  // for tables on workers
  SlowDown slow_down_;                               // outlives the compute thread
  std::unique_ptr<TaskThread> reader_, computer_, writer_;
};

}  // namespace

absl::Status RunWorker(const WorkerOptions& options) {
  return CatchExceptions([&] {
    Worker worker(options);
    return worker.Run();
  });
}

}  // namespace tandem::worker
