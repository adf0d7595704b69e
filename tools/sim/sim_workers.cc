#include "tools/sim/sim_workers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/diverged.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "data/service_trace.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "worker/dense/load_dense.h"
#include "worker/resume_position.h"

namespace tandem::sim {

absl::Status SimWorkers::Init(const worker::MakeTaskRunner& make_runner) {
  make_runner_ = make_runner;
  for (int rank = 0; rank < context_.plan.workers(); ++rank) {
    TANDEM_ASSIGN_OR_RETURN(auto worker, NewWorker(rank, /*start=*/nullptr));
    workers_.push_back(std::move(worker));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SimWorkers::Worker>> SimWorkers::NewWorker(
    int rank, const WorkerStart* start) {
  const job::ResolvedJob& plan = context_.plan;
  auto worker = std::make_unique<Worker>();
  const uint64_t seed =
      context_.options.service_seed.value_or(HashCombine(plan.job.seed(), context_.options.seed));
  TANDEM_ASSIGN_OR_RETURN(worker->step_times, data::OpenStepTimes(plan, seed, rank));
  TANDEM_ASSIGN_OR_RETURN(worker->runner, make_runner_(plan, rank));
  worker::DenseParameters& dense = worker->runner->dense();
  worker::TrainerCore::Options options;
  options.rank = rank;
  options.incarnation = context_.processes.IncarnationOf(EndpointId::Worker(rank));
  options.client.resend_after = context_.options.resend;
  options.client.frame_bytes = context_.options.frame_bytes;
  options.control_resend = context_.options.resend;
  options.checkpoint = context_.options.checkpoint_at_end;
  options.checkpoint_path = "model";
  options.evaluate = context_.options.evaluate && worker->runner->has_test_data();
  options.estimated_rows = worker->runner->EstimatedRows();
  std::string own_state;
  if (start != nullptr) {
    TANDEM_RETURN_IF_ERROR(Begin(rank, *start, worker->runner.get(), &options));
  } else if (context_.options.resume.has_value()) {
    TANDEM_RETURN_IF_ERROR(LoadCheckpoint(rank, worker->runner.get(), &options, &own_state));
  }
  TANDEM_ASSIGN_OR_RETURN(worker->core,
                          worker::TrainerCore::New(plan, options, dense, context_.buffers));
  if (plan.dense_table < 0) {
    TANDEM_ASSIGN_OR_RETURN(worker->collectives, NewCollectives(rank, worker.get()));
    TANDEM_RETURN_IF_ERROR(worker->collectives->reduction().SetState(own_state));
  }
  return worker;
}

// As a live worker does it before its trainer exists.
absl::Status SimWorkers::Begin(int rank, const WorkerStart& start, worker::TaskRunner* runner,
                               worker::TrainerCore::Options* options) {
  options->start = start.position();
  options->replaces = start;
  if (start.has_best()) options->best = start.best();
  options->epochs_to_first_judged = start.epochs_to_first_judged();
  context_.observer.OnReplace(rank, start.evaluations());
  TANDEM_RETURN_IF_ERROR(runner->StartAt(start.position()));
  if (!context_.options.resume.has_value()) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const auto saved,
                          server::CheckpointReader::Open(context_.options.resume->folder));
  return worker::LoadDense(context_.plan, saved, runner->Parameters(), &runner->dense());
}

// The same.
absl::Status SimWorkers::LoadCheckpoint(int rank, worker::TaskRunner* runner,
                                        worker::TrainerCore::Options* options,
                                        std::string* own_state) {
  const job::ResolvedJob& plan = context_.plan;
  if (job::SumsByQuorum(plan.job)) {
    return absl::UnimplementedError("the simulated world resumes no sums of a quorum");
  }
  const RunRecord& record = context_.options.resume->record;
  const std::string& folder = context_.options.resume->folder;
  TANDEM_ASSIGN_OR_RETURN(options->start, worker::ResumePosition(record, rank, plan.workers(),
                                                                 plan.job.train().max_steps()));
  first_epoch_ = options->start->epoch();
  if (rank == 0 && record.worker(0).has_best()) options->best = record.worker(0).best();
  if (rank == 0) options->epochs_to_first_judged = record.worker(0).epochs_to_first_judged();
  context_.observer.OnResume(rank, *options->start);
  TANDEM_RETURN_IF_ERROR(runner->StartAt(*options->start));
  TANDEM_ASSIGN_OR_RETURN(const auto saved, server::CheckpointReader::Open(folder));
  TANDEM_RETURN_IF_ERROR(worker::LoadDense(plan, saved, runner->Parameters(), &runner->dense()));
  TANDEM_ASSIGN_OR_RETURN(*own_state, saved.ReadWorkerState(rank));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<SimCollectives>> SimWorkers::NewCollectives(int rank,
                                                                           Worker* worker) {
  const job::ResolvedJob& plan = context_.plan;
  worker::DenseParameters& dense = worker->runner->dense();
  std::unique_ptr<worker::DenseReduction> reduction;
  if (job::SumsByQuorum(plan.job)) {
    SimQuorum::Outside outside;
    outside.post = [this, rank](int to, const SimQuorum::Letter& letter) {
      Post(rank, to, letter);
    };
    outside.now = [this] { return context_.agenda.now(); };
    outside.wake = [this, rank](absl::Time at) {
      context_.processes.At(EndpointId::Worker(rank), at, [this, rank] {
        this->worker(rank).quorum->Wake();
        ProgressCollectives(rank);
      });
    };
    TANDEM_ASSIGN_OR_RETURN(auto quorum, SimQuorum::New(plan, rank, dense, context_.observer.sums(),
                                                        std::move(outside)));
    worker->quorum = quorum.get();
    reduction = std::move(quorum);
  } else {
    reduction = worker::NewDenseReduction(
        plan, rank, std::max<int64_t>(0, plan.job.dense().bucket_bytes()), dense);
  }
  return SimCollectives::New(plan, rank, std::move(reduction), context_.buffers);
}

void SimWorkers::StartClocks() {
  for (int rank = 0; rank < context_.plan.workers(); ++rank) StartClocksOf(rank);
}

void SimWorkers::StartClocksOf(int rank) {
  context_.StartClock(EndpointId::Worker(rank), [this, rank] {
    worker(rank).core->OnTick(context_.agenda.now(), &effects_);
    AfterTrainer(rank);
    ProgressCollectives(rank);  // resends lost frames
  });
  context_.processes.Every(EndpointId::Worker(rank), kSimBeat, [this, rank] {
    const worker::TrainerCore& core = *worker(rank).core;
    scheduler_.Beat(EndpointId::Worker(rank), core.progress_count(), core.step(),
                    core.Doing(context_.agenda.now(), WaitingForOthers(rank)));
  });
}

std::string SimWorkers::WhoWaits() const {
  std::string out;
  for (int rank = 0; rank < context_.plan.workers(); ++rank) {
    const worker::TrainerCore& core = *worker(rank).core;
    const Activity doing = core.Doing(context_.agenda.now(), WaitingForOthers(rank));
    absl::StrAppend(&out, "  worker ", rank, " epoch ", core.epoch(), " step ", core.step(), ": ",
                    core.finished() ? "finished" : doing.text, "\n");
  }
  return out;
}

// ---- messages ---------------------------------------------------------------------------------

void SimWorkers::OnControl(int rank, const Control& control) {
  if (control.has_view()) return OnView(rank, control.view());
  if (worker(rank).replaced) return;
  FrameHeader header;
  header.sender = EndpointId::Scheduler();
  const absl::StatusOr<ParsedFrame> frame =
      DecodeFrame(EncodeControlFrame(context_.buffers, header, control));
  TANDEM_CHECK(frame.ok());
  worker(rank).core->OnFrame(context_.agenda.now(), *frame, &effects_);
  AfterTrainer(rank);
  worker(rank).stopped |= control.command().kind() == Command::STOP;
}

void SimWorkers::OnView(int rank, const View& view) {
  absl::StatusOr<std::shared_ptr<const RangeMap>> map =
      RangeMap::FromView(view, context_.plan.sizes());
  if (!map.ok()) return context_.Fail(map.status().ToString());
  if (worker(rank).replaced) {
    if (!view.worker(rank).has_start()) return context_.Fail("a new process without a start");
    auto made = NewWorker(rank, &view.worker(rank).start());
    if (!made.ok()) return context_.Fail(made.status().ToString());
    dead_.push_back(std::exchange(workers_[static_cast<size_t>(rank)], *std::move(made)));
    context_.processes.Connect(EndpointId::Worker(rank));
    StartClocksOf(rank);
  }
  const absl::Duration delay = context_.ViewDelay();
  context_.processes.After(EndpointId::Worker(rank), delay, [this, rank, map = *map] {
    context_.Log(absl::StrCat("worker ", rank, " learns view ", map->view()));
    worker(rank).core->OnView(context_.agenda.now(), map, &effects_);
    AfterTrainer(rank);
    Control done;
    done.mutable_command_done()->set_id(map->view());
    ToScheduler(rank, done);
  });
}

void SimWorkers::OnFrame(int rank, const ParsedFrame& frame) {
  if (frame.header.kind == FrameKind::kSegment) {
    const absl::Status taken = worker(rank).collectives->OnFrame(frame);
    if (!taken.ok()) return context_.Fail(taken.ToString());
    return ProgressCollectives(rank);
  }
  if (worker(rank).stopped || worker(rank).replaced) return;
  worker(rank).core->OnFrame(context_.agenda.now(), frame, &effects_);
  AfterTrainer(rank);
}

void SimWorkers::AfterTrainer(int rank) {
  const worker::TrainerCore& core = *worker(rank).core;
  if (!core.failure().ok()) {
    context_.Fail(absl::StrCat("worker ", rank, ": ", core.failure().message()));
    if (IsDiverged(core.failure())) MarkDiverged(&context_.failure);
  }
  for (const std::string& line : effects_.log) {
    context_.Log(absl::StrCat("worker ", rank, ": ", line));
  }
  std::vector<worker::TrainerTask> tasks;
  tasks.swap(effects_.tasks);
  for (const Outgoing& out : effects_.out) Send(rank, out);
  effects_.Clear();
  for (worker::TrainerTask& task : tasks) StartTask(rank, std::move(task));
}

void SimWorkers::Send(int rank, const Outgoing& out) {
  if (!(out.to == EndpointId::Scheduler())) return frames_.Send(out);
  const absl::StatusOr<ParsedFrame> frame = DecodeFrame(out.frame);
  TANDEM_CHECK(frame.ok());
  const absl::StatusOr<Control> control = frame->ParseControl();
  TANDEM_CHECK(control.ok());
  ToScheduler(rank, *control);
}

// Delivers letters from rank 0 to itself at once.
void SimWorkers::Post(int from, int to, const SimQuorum::Letter& letter) {
  if (from == to) return worker(to).quorum->OnLetter(from, letter);
  constexpr size_t kLetterBytes = 64;  // three numbers, and the header of a message
  frames_.SendLetter(from, to, kLetterBytes, [this, from, to, letter] {
    worker(to).quorum->OnLetter(from, letter);
    ProgressCollectives(to);
  });
}

void SimWorkers::ToScheduler(int rank, const Control& control) {
  Worker& sender = worker(rank);
  if (control.has_progress()) sender.reported_step = control.progress().step();
  // At the end of an evaluation each worker must have reported its current step, so that the
  // scheduler shows all workers at the same moment.
  if (absl::StartsWith(control.barrier_enter().name(), "evaluated ") &&
      sender.reported_step != sender.core->step()) {
    context_.Fail(absl::StrCat("worker ", rank, " is through an evaluation at step ",
                               sender.core->step(), ", its last report was of step ",
                               sender.reported_step));
  }
  scheduler_.Send(EndpointId::Worker(rank), control);
}

// A process of the world has died, and the system of its host has closed its connections. As in a
// live worker, the client resends, and a lost link to another worker is reported to the scheduler.
void SimWorkers::OnDeath(EndpointId process) {
  for (int rank = 0; rank < context_.plan.workers(); ++rank) {
    const absl::Duration delay = context_.options.network.delay + context_.ViewDelay();
    context_.processes.After(EndpointId::Worker(rank), delay, [this, rank, process] {
      Worker& w = worker(rank);
      for (int s = 0; s < context_.plan.shards(); ++s) {
        const EndpointId shard = EndpointId::Shard(s / context_.plan.shards_per_server(),
                                                   s % context_.plan.shards_per_server());
        if (context_.processes.Of(shard) != process) continue;
        w.core->OnLost(context_.agenda.now(), shard, "broken");
      }
      if (process.role != Role::kWorker) return;
      w.core->OnLost(context_.agenda.now(), process, "broken");
      if (w.collectives == nullptr || w.stopped) return;
      Control control;
      control.mutable_failure()->set_culprit(process.Pack());
      control.mutable_failure()->set_code(static_cast<int>(absl::StatusCode::kUnavailable));
      control.mutable_failure()->set_reason("the link is broken");
      scheduler_.Send(EndpointId::Worker(rank), control);
    });
  }
}

// ---- tasks ------------------------------------------------------------------------------------

void SimWorkers::StartTask(int rank, worker::TrainerTask task) {
  if (std::holds_alternative<worker::SynchroniseTask>(task) ||
      std::holds_alternative<worker::EpochEndTask>(task) ||
      std::holds_alternative<worker::GatherDenseTask>(task)) {
    return StartCollective(rank, std::move(task));
  }
  absl::Duration delay = context_.options.fetch;
  if (const auto* const compute = std::get_if<worker::ComputeTask>(&task)) {
    context_.observer.OnStep(rank, compute->slot->step);
    Worker& w = worker(rank);
    if (w.collectives != nullptr) w.collectives->BeforeStep();
    const job::StepTimes& times = w.step_times;
    delay = times.any() ? times.Of(compute->slot->step) : context_.options.compute;
    const std::vector<absl::Duration>& least = context_.options.min_compute;
    if (!least.empty()) delay = std::max(delay, least[static_cast<size_t>(rank)]);
    compute->slot->computed = delay;
  }
  context_.processes.After(EndpointId::Worker(rank), delay,
                           [this, rank, task = std::move(task)] { FinishTask(rank, task); });
}

// Starts a task that ends when all workers have done their parts.
void SimWorkers::StartCollective(int rank, worker::TrainerTask task) {
  Worker& w = worker(rank);
  w.with_others.push_back(std::move(task));
  if (w.with_others.size() > 1) return;
  BeginCollective(&w);
  ProgressCollectives(rank);
}

void SimWorkers::BeginCollective(Worker* worker) {
  const worker::TrainerTask& task = worker->with_others.front();
  if (const auto* const synchronise = std::get_if<worker::SynchroniseTask>(&task)) {
    worker::StepSlot& slot = *synchronise->slot;
    worker->collectives->Begin(absl::MakeSpan(slot.dense_gradient),
                               {slot.step, slot.batch.samples, slot.last,
                                /*skipped=*/false, slot.sample_clock});
  } else if (const auto* const end = std::get_if<worker::EpochEndTask>(&task)) {
    if (end->all) {
      worker->quorum->BeginEndOfEpoch(end->step);
    } else {
      worker->quorum->OutOfData();
    }
  } else {
    worker->collectives->BeginGather();
  }
}

void SimWorkers::ProgressCollectives(int rank) {
  Worker& w = worker(rank);
  if (w.collectives == nullptr) return;
  for (;;) {
    const absl::Status status = w.collectives->Progress(context_.agenda.now(), &segments_);
    if (!status.ok()) return context_.Fail(status.ToString());
    for (const Outgoing& segment : segments_) frames_.Send(segment);
    segments_.clear();
    if (w.with_others.empty() || !w.collectives->over()) return;
    context_.processes.After(
        EndpointId::Worker(rank), absl::ZeroDuration(),
        [this, rank, task = std::move(w.with_others.front())] { FinishTask(rank, task); });
    w.with_others.pop_front();
    if (w.with_others.empty()) return;
    BeginCollective(&w);
  }
}

Activity SimWorkers::WaitingForOthers(int rank) const {
  const Worker& w = worker(rank);
  if (w.collectives == nullptr) return {};
  const Activity sum = w.collectives->WaitingFor(context_.agenda.now());
  return w.quorum != nullptr && sum.text.empty() ? w.quorum->WaitingFor() : sum;
}

void SimWorkers::FinishTask(int rank, const worker::TrainerTask& task) {
  const absl::Status status = RunTask(rank, task);
  if (!context_.processes.alive(EndpointId::Worker(rank))) return;  // it has died while it wrote
  worker(rank).core->OnTaskDone(context_.agenda.now(), task, status, &effects_);
  AfterTrainer(rank);
}

absl::Status SimWorkers::RunTask(int rank, const worker::TrainerTask& task) {
  Worker& w = worker(rank);
  worker::TaskRunner& runner = *w.runner;
  return std::visit(
      worker::Overloaded{
          [&](const worker::FetchTask& t) { return runner.Fetch(t.slot); },
          [&](const worker::ComputeTask& t) { return runner.Compute(t.slot); },
          [&](const worker::SynchroniseTask& t) {
            t.slot->samples_of_all = w.collectives->reduction().samples_of_all();
            t.slot->empty_steps = w.collectives->reduction().empty_steps();
            t.slot->bytes_sent = w.collectives->TakeBytes();
            t.slot->missed.clear();
            if (w.quorum != nullptr) w.quorum->TakeMissed(&t.slot->missed);
            return absl::OkStatus();
          },
          [&](const worker::EpochEndTask& t) {
            if (!t.all) return absl::OkStatus();
            w.quorum->TakeMissed(t.missed);
            *t.bytes_sent = w.collectives->TakeBytes();
            return absl::OkStatus();
          },
          [&](const worker::FetchTestTask& t) { return runner.FetchTest(t.slot, t.first, t.rows); },
          [&](const worker::ScoreTask& t) { return runner.Score(t.slot); },
          [&](const worker::FillShareTask& t) { return runner.FillShare(t.share, t.payload); },
          [&](const worker::MergeSharesTask& t) { return MergeShares(rank, t); },
          [&](const worker::GatherDenseTask& t) {
            // Counts are taken first, because ResumeDense replaces the objects that have them.
            if (w.quorum != nullptr) w.quorum->TakeMissed(t.missed);
            *t.bytes_sent = w.collectives->TakeBytes();
            ++gathered_[t.checkpoint].workers;
            return ResumeDense(t.checkpoint);
          },
          [&](const worker::WriteDenseTask& t) {
            // A further try for want of room writes what was gathered before.
            if (gathered_[t.checkpoint].workers > 0) {
              gathered_[t.checkpoint].file = t.bytes;
              TANDEM_RETURN_IF_ERROR(ResumeDense(t.checkpoint));
            }
            return checkpoints_.AddDense(*t.directory, *t.bytes);
          },
          [&](const worker::CopyWorkerTask& t) { return CopyWorker(rank, t); },
          [&](const worker::WriteWorkerTask& t) {
            return checkpoints_.AddWorker(*t.directory, rank, *t.state, *t.program);
          },
          [&](const worker::AbandonCheckpointTask& t) {
            checkpoints_.Abandon(*t.directory);
            return absl::OkStatus();
          },
          [&](const worker::CommitCheckpointTask& t) {
            return checkpoints_.Commit(*t.directory, *servers_.ranges(), t.step,
                                       t.checkpoint == worker::CheckpointId::kBest, *t.record);
          },
      },
      task);
}

// Resumes the dense part of all workers once all have gathered and rank 0 has written. No worker
// knows yet that the checkpoint is complete, so no worker computes. Does nothing if another
// checkpoint or the end of an epoch has begun.
absl::Status SimWorkers::ResumeDense(worker::CheckpointId checkpoint) {
  Gathered& gathered = gathered_[checkpoint];
  if (gathered.workers < context_.plan.workers() || gathered.file == nullptr) {
    return absl::OkStatus();
  }
  const std::string& file = *std::exchange(gathered, Gathered()).file;
  if (!context_.options.resume_dense) return absl::OkStatus();
  for (const auto& w : workers_) {
    if (w->quorum == nullptr || !w->with_others.empty()) return absl::OkStatus();
  }
  for (const auto& w : workers_) TANDEM_RETURN_IF_ERROR(w->quorum->Resume(file));
  ++resumes_;
  return absl::OkStatus();
}

// Only somebody who receives files needs the state.
absl::Status SimWorkers::CopyWorker(int rank, const worker::CopyWorkerTask& task) {
  if (context_.options.files == nullptr) return absl::OkStatus();
  Worker& w = worker(rank);
  if (w.collectives != nullptr) *task.state = w.collectives->reduction().State();
  TANDEM_ASSIGN_OR_RETURN(*task.program,
                          w.runner->ProgramState(task.step, task.epoch,
                                                 task.checkpoint == worker::CheckpointId::kFinal));
  return absl::OkStatus();
}

absl::Status SimWorkers::MergeShares(int rank, const worker::MergeSharesTask& task) {
  TANDEM_ASSIGN_OR_RETURN(*task.json,
                          worker(rank).runner->MergeShares(*task.shares, *task.payloads));
  ++evaluations_;
  return absl::OkStatus();
}

// ---- counters ---------------------------------------------------------------------------------

uint64_t SimWorkers::updates_sent(uint32_t table) const {
  uint64_t sent = 0;
  for (const auto& w : workers_) sent += w->core->client().updates_sent()[table];
  return sent;
}

uint64_t SimWorkers::rows_cached() const {
  uint64_t total = 0;
  for (const auto* all : {&workers_, &dead_}) {
    for (const auto& w : *all) total += w->core->client().counters().rows_cached;
  }
  return total;
}

uint64_t SimWorkers::frames_resent() const {
  uint64_t total = 0;
  for (const auto* all : {&workers_, &dead_}) {
    for (const auto& w : *all) total += w->core->client().counters().frames_resent;
  }
  return total;
}

}  // namespace tandem::sim
