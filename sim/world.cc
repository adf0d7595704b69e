#include "sim/world.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "sim/toy_runner.h"

namespace tandem {
namespace {

constexpr absl::Duration kLinkDelay = absl::Microseconds(300);
constexpr absl::Duration kBeat = absl::Seconds(1);

constexpr size_t kFrameBytes = 32;  // of values in a frame: so few that most requests are cut

// Nodes: servers from 0, then workers.
int NodeOf(const JobPlan& plan, EndpointId id) {
  return id.role == Role::kServer ? id.index : plan.servers() + id.index;
}

Control BeatOf(uint64_t progress, uint64_t step, const Activity& activity) {
  Control control;
  Beat& beat = *control.mutable_beat();
  beat.set_progress(progress);
  beat.set_step(step);
  beat.set_activity(activity.text);
  beat.set_waits_for(activity.waits_for.Pack());
  return control;
}

}  // namespace

absl::StatusOr<std::unique_ptr<World>> World::New(const JobPlan& plan,
                                                  const WorldOptions& options) {
  std::unique_ptr<World> world(new World(plan, options));
  TANDEM_RETURN_IF_ERROR(world->Init());
  return world;
}

World::World(const JobPlan& plan, const WorldOptions& options)
    : plan_(plan),
      options_(options),
      trace_(options.trace_lines),
      random_(options.seed),
      network_(options.network, options.seed + 1) {}

World::~World() = default;

absl::Status World::Init() {
  scheduler_ = std::make_unique<SchedulerCore>(plan_);
  links_.resize(static_cast<size_t>(plan_.servers() + plan_.workers()));
  for (size_t node = 0; node < links_.size(); ++node) links_[node].connection = node;
  if (!options_.make_runner) MakeToy();
  TANDEM_RETURN_IF_ERROR(InitServers());
  return InitWorkers();
}

void World::MakeToy() {
  model_ = std::make_unique<ToyModel>(plan_, options_.model);
  Judge::Options judge;
  judge.explain = options_.explain;
  judge.keep_ranges = options_.log_events;
  judge.fail = [this](const std::string& what) { Fail(what); };
  judge.step_of = [this](int rank) { return workers_[rank]->core->step(); };
  judge_ = std::make_unique<Judge>(plan_, *model_, std::move(judge));
}

absl::StatusOr<std::unique_ptr<TaskRunner>> World::NewRunner(int rank) {
  if (options_.make_runner) return options_.make_runner(plan_, rank);
  return ToyRunner::New(plan_, rank, *model_, options_.evaluate, *judge_);
}

absl::Status World::InitServers() {
  for (int index = 0; index < plan_.servers(); ++index) {
    auto server = std::make_unique<Server>();
    server->incarnation = 1000 + static_cast<uint64_t>(index);
    server->core = std::make_unique<ServerCore>(plan_, server->incarnation);
    server->heard.resize(static_cast<size_t>(plan_.shards_per_server()), now_);
    server->tasks.resize(static_cast<size_t>(plan_.shards_per_server()));
    server->saves.resize(static_cast<size_t>(plan_.shards_per_server()));
    for (int s = 0; s < plan_.shards_per_server(); ++s) {
      TANDEM_ASSIGN_OR_RETURN(auto core, ShardCore::New(plan_, EndpointId::Shard(index, s),
                                                        server->incarnation, buffers_));
      server->shards.push_back(std::move(core));
    }
    servers_.push_back(std::move(server));
  }
  return absl::OkStatus();
}

absl::Status World::InitWorkers() {
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    auto worker = std::make_unique<Worker>();
    worker->incarnation = 2000 + static_cast<uint64_t>(rank);
    worker->random = std::make_unique<Random>(HashCombine(options_.seed, worker->incarnation));
    TANDEM_ASSIGN_OR_RETURN(worker->runner, NewRunner(rank));
    DenseParameters& dense = worker->runner->dense();
    TrainerCore::Options options;
    options.rank = rank;
    options.incarnation = worker->incarnation;
    options.client.resend_after = kResend;
    options.client.frame_bytes = kFrameBytes;
    options.control_resend = kResend;
    options.save = options_.save_at_end;
    options.save_path = "model";
    options.evaluate = options_.evaluate && worker->runner->has_test_data();
    options.estimated_rows = worker->runner->EstimatedRows();
    TANDEM_ASSIGN_OR_RETURN(worker->core, TrainerCore::New(plan_, options, dense, buffers_));
    if (!DenseOnServers()) {
      TANDEM_ASSIGN_OR_RETURN(worker->collectives,
                              SimCollectives::New(plan_, rank, dense, buffers_, kResend));
    }
    workers_.push_back(std::move(worker));
  }
  return absl::OkStatus();
}

// ---- time -------------------------------------------------------------------------------------

void World::At(absl::Time at, std::function<void()> run) {
  queue_.push_back({at, order_++, std::move(run)});
  std::push_heap(queue_.begin(), queue_.end());
}

void World::Tick(std::function<void()> tick, absl::Duration every) {
  After(every, [this, tick = std::move(tick), every] {
    tick();
    Tick(tick, every);
  });
}

void World::StartClocks() {
  const auto clock = [this](std::function<void()> tick) {  // each at its own phase
    After(options_.tick * random_.NextDouble(),
          [this, tick = std::move(tick)] { Tick(tick, options_.tick); });
  };
  clock([this] { StepScheduler(SchedulerEvent()); });
  for (int index = 0; index < plan_.servers(); ++index) {
    for (int s = 0; s < plan_.shards_per_server(); ++s) {
      const EndpointId id = EndpointId::Shard(index, s);
      clock([this, id] {
        shard(id).OnTick(now_, &shard_effects_);
        AfterShard(id);
      });
    }
    Tick(
        [this, index] {
          ToScheduler(
              EndpointId::Shard(index, 0),
              BeatOf(++servers_[index]->beats, 0, servers_[index]->shards[0]->Waiting(now_)));
        },
        kBeat);
  }
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    clock([this, rank] {
      workers_[rank]->core->OnTick(now_, &trainer_effects_);
      AfterTrainer(rank);
      ProgressCollectives(rank);  // what was lost is sent again
    });
    Tick(
        [this, rank] {
          const TrainerCore& core = *workers_[rank]->core;
          ToScheduler(EndpointId::Worker(rank),
                      BeatOf(core.progress_count(), static_cast<uint64_t>(core.step()),
                             core.Doing(now_, WaitingForOthers(rank))));
        },
        kBeat);
  }
  if (network_.options().cuts_per_second > 0) CutSomebodyOff();
  if (options_.moves_per_second > 0) MoveSomeRange();
  if (options_.breaks_per_second > 0) BreakSomeLink();
  for (const absl::Duration save : options_.saves) {
    After(save, [this] {
      SchedulerEvent event;
      event.kind = SchedulerEvent::Kind::kSave;
      event.text = "in the middle";
      StepScheduler(event);
    });
  }
}

bool World::Ended() const { return scheduler_->done() || !failure_.ok(); }

absl::Status World::Run() {
  for (int index = 0; index < plan_.servers(); ++index) Register(EndpointId::Shard(index, 0));
  for (int rank = 0; rank < plan_.workers(); ++rank) Register(EndpointId::Worker(rank));
  StartClocks();
  while (!Ended()) NextEvent();
  if (failure_.ok() && !scheduler_->result().ok()) Fail(scheduler_->result().ToString());
  while (failure_.ok() && !Settled()) NextEvent();  // ranges on their way arrive
  if (failure_.ok()) CheckEnd();
  return failure_;
}

void World::NextEvent() {
  std::pop_heap(queue_.begin(), queue_.end());
  const Event event = std::move(queue_.back());
  queue_.pop_back();
  now_ = event.at;
  if (elapsed() > options_.limit) {
    return Fail(absl::StrCat("not ended after ", absl::FormatDuration(options_.limit)));
  }
  event.run();
}

bool World::Settled() const {
  for (const auto& server : servers_) {
    for (const auto& core : server->shards) {
      if (core->view() != scheduler_->view().number() || !core->Settled()) return false;
    }
  }
  return true;
}

// ---- the network between shards and workers ---------------------------------------------------

void World::Send(EndpointId from, std::vector<Outgoing>* out) {
  for (const Outgoing& o : *out) {
    if (o.to == EndpointId::Scheduler()) {
      absl::StatusOr<ParsedFrame> frame = DecodeFrame(o.frame);
      TANDEM_CHECK(frame.ok());
      const absl::StatusOr<Control> control = frame->ParseControl();
      TANDEM_CHECK(control.ok());
      ToScheduler(from, *control);
    } else {
      SendData(o);
    }
  }
  out->clear();
}

void World::SendData(const Outgoing& out) {
  absl::StatusOr<ParsedFrame> frame = DecodeFrame(out.frame);
  if (!frame.ok())
    return Fail(absl::StrCat("a core sent a bad frame: ", frame.status().ToString()));
  const FrameHeader& h = frame->header;
  if (h.kind == FrameKind::kPush && (h.flags & kFlagAssign) == 0) {
    if (judge_ != nullptr) judge_->OnPush(h.sender.index, h.step);
  }
  std::vector<absl::Time> arrivals;
  network_.Route(now_, frame->header.sender, out.to, &arrivals);
  trace_.Frame(now_, arrivals.empty() ? "lost" : "sent", out.to, frame->header);
  for (const absl::Time at : arrivals) {
    At(at, [this, to = out.to, bytes = out.frame] { Deliver(to, bytes); });
  }
}

void World::Deliver(EndpointId to, const Frame& bytes) {
  absl::StatusOr<ParsedFrame> frame = DecodeFrame(bytes);
  TANDEM_CHECK(frame.ok());
  trace_.Frame(now_, "arrives", to, frame->header);
  if (to.role == Role::kServer) {
    shard(to).OnFrame(now_, *frame, &shard_effects_);
    AfterShard(to);
  } else {
    if (frame->header.kind == FrameKind::kSegment) {
      const absl::Status taken = workers_[to.index]->collectives->OnFrame(now_, *frame);
      if (!taken.ok()) return Fail(taken.ToString());
      return ProgressCollectives(to.index);
    }
    if (workers_[to.index]->stopped) return;
    workers_[to.index]->core->OnFrame(now_, *frame, &trainer_effects_);
    AfterTrainer(to.index);
  }
}

void World::CutSomebodyOff() {
  After(network_.UntilNextCut(), [this] {
    const auto anybody = [this] {
      const uint64_t i = random_.Uniform(static_cast<uint64_t>(plan_.shards() + plan_.workers()));
      const int n = static_cast<int>(i);
      if (n >= plan_.shards()) return EndpointId::Worker(n - plan_.shards());
      return EndpointId::Shard(n / plan_.shards_per_server(), n % plan_.shards_per_server());
    };
    const EndpointId a = anybody(), b = anybody();
    const absl::Duration length = network_.LengthOfCut();
    trace_.Line(now_, absl::StrCat("cut between ", a.DebugString(), " and ", b.DebugString(),
                                   " for ", absl::FormatDuration(length)));
    network_.Cut(a, b, now_ + length);
    CutSomebodyOff();
  });
}

// ---- the scheduler and its links --------------------------------------------------------------

// Of a worker; not before the job has begun, nor when it has been told to stop: then links close.
void World::BreakSomeLink() {
  After(absl::Seconds(random_.Exponential() / options_.breaks_per_second), [this] {
    if (Ended() || stopping_) return;
    const int rank = static_cast<int>(random_.Uniform(static_cast<uint64_t>(plan_.workers())));
    SchedulerLink& link = links_[NodeOf(plan_, EndpointId::Worker(rank))];
    if (scheduler_->view().number() > 0 && !link.broken) {
      trace_.Line(now_, absl::StrCat("worker ", rank, " loses its link to the scheduler"));
      SchedulerEvent event;
      event.kind = SchedulerEvent::Kind::kLost;
      event.connection = link.connection;
      event.why = absl::UnavailableError("broken");
      link.broken = true;
      link.connection += links_.size();
      ++breaks_;
      StepScheduler(event);
      // Shorter than the time it has to come back.
      const absl::Duration length = options_.break_length * random_.Exponential();
      After(std::min(length, absl::Seconds(1)), [this, rank] {
        links_[NodeOf(plan_, EndpointId::Worker(rank))].broken = false;
        Register(EndpointId::Worker(rank));
      });
    }
    BreakSomeLink();
  });
}

void World::Register(EndpointId id) {
  const bool server = id.role == Role::kServer;
  Control control;
  tandem::Register& request = *control.mutable_register_();
  request.set_role(server ? tandem::Register::SERVER : tandem::Register::WORKER);
  request.set_index(id.index);
  request.set_incarnation(server ? servers_[id.index]->incarnation
                                 : workers_[id.index]->incarnation);
  const int endpoints = server ? plan_.shards_per_server() : 1;
  for (int i = 0; i < endpoints; ++i)
    request.add_endpoint(absl::StrCat("sim://", id.index, "/", i));
  request.set_host("sim");
  request.set_pid(1);
  request.set_job_hash(plan_.hash);
  ToScheduler(id, control);
}

void World::ToScheduler(EndpointId from, const Control& control) {
  if (control.barrier_enter().action() == BarrierEnter::SAVE) {
    saving_.insert(control.barrier_enter().name());
  }
  if (control.has_barrier_enter() && random_.Bernoulli(options_.barrier_drop)) return;
  if (control.has_progress()) workers_[from.index]->reported_step = control.progress().step();
  // After an evaluation all workers have said how far they are: what is shown is of one moment.
  if (absl::StartsWith(control.barrier_enter().name(), "evaluated ") &&
      workers_[from.index]->reported_step != workers_[from.index]->core->step()) {
    Fail(absl::StrCat("worker ", from.index, " is through an evaluation at step ",
                      workers_[from.index]->core->step(), ", its last report was of step ",
                      workers_[from.index]->reported_step));
  }
  SchedulerLink& link = links_[NodeOf(plan_, from)];
  if (link.broken) return;
  SchedulerEvent event;
  event.kind = SchedulerEvent::Kind::kControl;
  event.connection = link.connection;
  event.control = control;
  link.last_up = std::max(link.last_up, now_ + kLinkDelay * (1 + random_.Exponential()));
  At(link.last_up, [this, event, &link] {
    if (event.connection == link.connection) StepScheduler(event);
  });
}

void World::StepScheduler(const SchedulerEvent& event) {
  scheduler_->Step(now_, event, &scheduler_effects_);
  for (const std::string& line : scheduler_effects_.logs) {
    trace_.Line(now_, absl::StrCat("scheduler: ", line));
  }
  for (const SchedulerEffects::Send& send : scheduler_effects_.sends) {
    if (send.control.has_barrier_release() && random_.Bernoulli(options_.barrier_drop)) continue;
    stopping_ |= send.control.command().kind() == Command::STOP;
    const int node = static_cast<int>(send.connection % links_.size());
    SchedulerLink& link = links_[node];
    link.last_down = std::max(link.last_down, now_ + kLinkDelay * (1 + random_.Exponential()));
    At(link.last_down, [this, send, node] {
      if (send.connection == links_[node].connection) FromScheduler(node, send.control);
    });
  }
  scheduler_effects_.Clear();
}

void World::FromScheduler(int node, const Control& control) {
  if (control.has_beat_ack()) return;
  trace_.Line(now_, absl::StrCat("scheduler -> node ", node, ": ",
                                 control.has_view() ? absl::StrCat("view ", control.view().number())
                                                    : control.ShortDebugString()));
  if (control.has_failure()) {
    return Fail(absl::StrCat("the scheduler ends the job: ", control.failure().node(), ": ",
                             control.failure().reason()));
  }
  if (control.has_barrier_release()) saving_.erase(control.barrier_release().name());
  const int servers = plan_.servers();
  if (node < servers) {
    OnServerControl(node, control);
  } else {
    OnWorkerControl(node - servers, control);
  }
  const bool stop = control.has_command() && control.command().kind() == Command::STOP;
  if (!stop) return;
  if (node >= servers) workers_[node - servers]->stopped = true;
  SchedulerEvent event;
  event.kind = SchedulerEvent::Kind::kClosed;
  event.connection = links_[node].connection;
  After(kLinkDelay, [this, event] { StepScheduler(event); });
}

// Not while a save is under way: a range on its way is in nobody's files.
void World::MoveSomeRange() {
  After(absl::Seconds(random_.Exponential() / options_.moves_per_second), [this] {
    const uint64_t ranges = static_cast<uint64_t>(scheduler_->view().range_size());
    if (Ended()) return;
    if (ranges > 0 && saving_.empty()) {
      SchedulerEvent event;
      event.kind = SchedulerEvent::Kind::kMoveRange;
      event.range = static_cast<uint32_t>(random_.Uniform(ranges));
      event.server = static_cast<int>(random_.Uniform(static_cast<uint64_t>(plan_.servers())));
      event.shard =
          static_cast<int>(random_.Uniform(static_cast<uint64_t>(plan_.shards_per_server())));
      trace_.Line(now_, absl::StrCat("move range ", event.range, " to server ", event.server,
                                     " shard ", event.shard));
      ++moves_;
      StepScheduler(event);
    }
    MoveSomeRange();
  });
}

// ---- servers and workers: what their shells and models would do -------------------------------

void World::AfterShard(EndpointId id) {
  if (options_.log_events) LogEvents(id);
  for (const std::string& line : shard_effects_.log) {
    trace_.Line(now_, absl::StrCat(id.DebugString(), ": ", line));
    if (absl::StrContains(line, "refused") || absl::StrContains(line, "unusable")) Fail(line);
  }
  for (const UpdateRecord& record : shard_effects_.records) {
    records_.push_back(record);
    if (judge_ != nullptr) judge_->OnRecord(record);
  }
  CountOpenSteps(id);
  Send(id, &shard_effects_.out);
  shard_effects_.Clear();
}

void World::CountOpenSteps(EndpointId id) {
  for (const Range* range : shard(id).OwnedRanges()) {
    if (!plan_.groups[range->table().plan->group].properties.holds) continue;
    for (const WorkerProgress& worker : range->progress().workers) {
      most_open_steps_ = std::max(most_open_steps_, worker.admitted - range->progress().version);
    }
  }
}

// What an observer sees: progress that has grown, then reads that were answered.
void World::LogEvents(EndpointId id) {
  for (const Range* range : shard(id).OwnedRanges()) {
    std::vector<int64_t>& known = admitted_[range->id()];
    known.resize(static_cast<size_t>(plan_.workers()));
    for (int rank = 0; rank < plan_.workers(); ++rank) {
      const int64_t admitted = range->progress().workers[static_cast<size_t>(rank)].admitted;
      if (admitted == known[rank]) continue;
      events_[range->id()].push_back({false, rank, known[rank], admitted - 1});
      known[rank] = admitted;
    }
  }
  for (const Outgoing& out : shard_effects_.out) {
    const absl::StatusOr<ParsedFrame> frame = DecodeFrame(out.frame);
    if (!frame.ok() || frame->header.kind != FrameKind::kRows) continue;
    if ((frame->header.flags & kFlagEvaluate) != 0) continue;
    for (uint32_t i = 0; i < frame->entry_count; ++i) {
      const SliceEntry e = frame->Entry(i);
      if (e.status != SliceStatus::kOk) continue;
      events_[e.range].push_back({true, out.to.index, frame->header.step, frame->header.step});
    }
  }
}

void World::OnWorkerControl(int rank, const Control& control) {
  Worker& worker = *workers_[rank];
  if (control.has_view()) {
    absl::StatusOr<std::shared_ptr<const RangeMap>> map =
        RangeMap::FromView(control.view(), plan_.sizes());
    if (!map.ok()) return Fail(map.status().ToString());
    After(options_.view_delay * random_.NextDouble(), [this, rank, map = *map] {
      trace_.Line(now_, absl::StrCat("worker ", rank, " learns view ", map->view()));
      workers_[rank]->core->OnView(now_, map, &trainer_effects_);
      AfterTrainer(rank);
      Control done;
      done.mutable_command_done()->set_id(map->view());
      ToScheduler(EndpointId::Worker(rank), done);
    });
    return;
  }
  FrameHeader header;
  header.sender = EndpointId::Scheduler();
  const absl::StatusOr<ParsedFrame> frame =
      DecodeFrame(EncodeControlFrame(buffers_, header, control));
  TANDEM_CHECK(frame.ok());
  worker.core->OnFrame(now_, *frame, &trainer_effects_);
  AfterTrainer(rank);
}

void World::AfterTrainer(int rank) {
  Worker& worker = *workers_[rank];
  if (!worker.core->failure().ok()) {
    Fail(absl::StrCat("worker ", rank, ": ", worker.core->failure().ToString()));
  }
  for (const std::string& line : trainer_effects_.log) {
    trace_.Line(now_, absl::StrCat("worker ", rank, ": ", line));
  }
  std::vector<TrainerTask> tasks;
  tasks.swap(trainer_effects_.tasks);
  Send(EndpointId::Worker(rank), &trainer_effects_.out);
  trainer_effects_.Clear();
  for (TrainerTask& task : tasks) StartTask(rank, std::move(task));
}

void World::StartTask(int rank, TrainerTask task) {
  if (std::holds_alternative<SynchroniseTask>(task) ||
      std::holds_alternative<GatherDenseTask>(task)) {
    return StartCollective(rank, std::move(task));
  }
  absl::Duration delay = options_.fetch;
  if (const auto* const compute = std::get_if<ComputeTask>(&task)) {
    if (judge_ != nullptr) judge_->CheckGap(rank, compute->slot->step);
    delay = options_.compute.Draw(rank, workers_[rank]->random.get());
  }
  After(delay, [this, rank, task = std::move(task)] { FinishTask(rank, task); });
}

// Its end is when all workers have done their parts.
void World::StartCollective(int rank, TrainerTask task) {
  Worker& worker = *workers_[rank];
  TANDEM_CHECK(!worker.waits_for_others.has_value());
  if (const auto* const synchronise = std::get_if<SynchroniseTask>(&task)) {
    StepSlot& slot = *synchronise->slot;
    worker.collectives->Begin(absl::MakeSpan(slot.dense_gradient), slot.batch.samples);
  } else {
    worker.collectives->BeginGather();
  }
  worker.waits_for_others = std::move(task);
  ProgressCollectives(rank);
}

void World::ProgressCollectives(int rank) {
  Worker& worker = *workers_[rank];
  if (worker.collectives == nullptr) return;
  const absl::Status status = worker.collectives->Progress(now_, &segments_);
  if (!status.ok()) return Fail(status.ToString());
  for (const Outgoing& segment : segments_) SendData(segment);
  segments_.clear();
  if (!worker.waits_for_others.has_value() || !worker.collectives->over()) return;
  After(absl::ZeroDuration(),
        [this, rank, task = *std::move(worker.waits_for_others)] { FinishTask(rank, task); });
  worker.waits_for_others.reset();
}

Activity World::WaitingForOthers(int rank) const {
  const Worker& worker = *workers_[rank];
  return worker.collectives == nullptr ? Activity() : worker.collectives->WaitingFor(now_);
}

void World::FinishTask(int rank, const TrainerTask& task) {
  const absl::Status status = RunTask(rank, task);
  workers_[rank]->core->OnTaskDone(now_, task, status, &trainer_effects_);
  AfterTrainer(rank);
}

absl::Status World::RunTask(int rank, const TrainerTask& task) {
  Worker& worker = *workers_[rank];
  TaskRunner& runner = *worker.runner;
  return std::visit(
      Overloaded{
          [&](const FetchTask& t) { return runner.Fetch(t.slot); },
          [&](const ComputeTask& t) { return runner.Compute(t.slot); },
          [&](const SynchroniseTask& t) {
            t.slot->samples_of_all = worker.collectives->samples_of_all();
            return absl::OkStatus();
          },
          [&](const FetchTestTask& t) { return runner.FetchTest(t.slot, t.first); },
          [&](const ScoreTask& t) { return runner.Score(t.slot); },
          [&](const FillShareTask& t) { return runner.FillShare(t.share, t.payload); },
          [&](const MergeSharesTask& t) { return MergeShares(rank, t); },
          [&](const GatherDenseTask&) { return absl::OkStatus(); },
          [&](const WriteDenseTask& t) { return CheckSave(*t.bytes); },
          [&](const CommitSaveTask& t) {
            CommitSave(*t.directory);
            return absl::OkStatus();
          },
      },
      task);
}

absl::Status World::MergeShares(int rank, const MergeSharesTask& task) {
  TANDEM_ASSIGN_OR_RETURN(*task.json,
                          workers_[rank]->runner->MergeShares(*task.shares, *task.payloads));
  ++evaluations_;
  return absl::OkStatus();
}

// Rank 0 writes the dense file once every worker stands still.
absl::Status World::CheckSave(const std::string& dense_file) {
  TANDEM_ASSIGN_OR_RETURN(
      const auto dense,
      DenseParameters::New(plan_.job.dense().optimizer(), workers_[0]->runner->dense().count()));
  TANDEM_ASSIGN_OR_RETURN(
      const RangeImage image,
      DecodeRange({reinterpret_cast<const uint8_t*>(dense_file.data()), dense_file.size()}));
  TANDEM_RETURN_IF_ERROR(dense->Load(image));
  if (judge_ != nullptr) judge_->CheckDenseEvaluated(0, dense->values());
  return absl::OkStatus();
}

// All files of a save are there: each range once, and all at the same point of the job.
void World::CommitSave(const std::string& directory) {
  ++saves_done_;
  const std::map<std::string, RangeImage> saved = std::move(saved_[directory]);
  saved_.erase(directory);
  size_t ranges = 0;
  for (const RangeMap::Range& range : first_map_->ranges()) {
    const TablePlan& table = plan_.tables[range.table];
    if (!table.dense || plan_.groups[table.group].policy.delay() > 0) ++ranges;
  }
  if (saved.size() != ranges) {
    Fail(absl::StrCat(directory, " has ", saved.size(), " of ", ranges, " ranges"));
  }
  std::map<std::string, size_t> delayed;  // by table: steps held back
  for (const auto& [file, image] : saved) {
    HeldQueue queue;
    const absl::Status held = SavedQueue(image, buffers_, &queue);
    if (!held.ok()) Fail(absl::StrCat(file, ": ", held.ToString()));
    if (delayed.emplace(image.table, queue.size()).first->second != queue.size()) {
      Fail(absl::StrCat(file, " holds back ", queue.size(), " steps, another of its table ",
                        delayed[image.table]));
    }
    const RangeImage& first = saved.begin()->second;
    for (size_t rank = 0; rank < image.progress.workers.size(); ++rank) {
      if (image.progress.workers[rank].admitted == first.progress.workers[rank].admitted) continue;
      Fail(absl::StrCat(file, " has worker ", rank, " at step ",
                        image.progress.workers[rank].admitted, ", ", saved.begin()->first, " at ",
                        first.progress.workers[rank].admitted));
    }
  }
}

}  // namespace tandem
