#include "tools/sim/sim_scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::sim {
namespace {

constexpr absl::Duration kLinkDelay = absl::Microseconds(300);

// Shorter than the time that a worker has for registering again.
constexpr absl::Duration kLongestBreak = absl::Seconds(1);

// A supervisor looks for ended processes this often. It kills a process whose place is vacant after
// kMayEnd. A new process registers after kShortestStart at the earliest, so the supervisor has seen
// by then which processes have ended at the same time as the old one.
constexpr absl::Duration kSupervision = absl::Milliseconds(100);
constexpr absl::Duration kMayEnd = absl::Seconds(1);
constexpr absl::Duration kShortestStart = absl::Milliseconds(200);

scheduler::SchedulerCore::Options CoreOptions(const WorldOptions& options) {
  scheduler::SchedulerCore::Options core;
  core.models.run = options.run;
  core.models.attempt = options.attempt;
  core.models.resume = options.resume.has_value();
  // If the memory of a server is full, the job writes its last checkpoint there and ends.
  if (options.row_bytes > 0) core.models.checkpoint_folder = "model";
  core.replacements = options.replacements;
  if (!options.resume.has_value()) return core;
  core.models.init_from = options.resume->folder;
  core.models.step = options.resume->step;
  core.models.before = options.resume->record;
  return core;
}

}  // namespace

SimScheduler::SimScheduler(SimContext& context, Arrive arrive, Replace replace)
    : context_(context),
      arrive_(std::move(arrive)),
      replace_(std::move(replace)),
      core_(context.plan, CoreOptions(context.options)) {
  connections_.resize(static_cast<size_t>(context.plan.servers() + context.plan.workers()));
  for (size_t node = 0; node < connections_.size(); ++node) connections_[node].number = node;
}

size_t SimScheduler::NodeOf(EndpointId id) const {
  const int first = id.role == Role::kServer ? 0 : context_.plan.servers();
  return static_cast<size_t>(first + id.index);
}

EndpointId SimScheduler::EndpointOf(size_t node) const {
  const int n = static_cast<int>(node), servers = context_.plan.servers();
  return n < servers ? EndpointId::Shard(n, 0) : EndpointId::Worker(n - servers);
}

void SimScheduler::Register() {
  for (int index = 0; index < context_.plan.servers(); ++index) {
    Register(EndpointId::Shard(index, 0));
  }
  for (int rank = 0; rank < context_.plan.workers(); ++rank) Register(EndpointId::Worker(rank));
}

void SimScheduler::StartClock() {
  context_.StartClock(EndpointId::Scheduler(), [this] { Step(scheduler::SchedulerEvent()); });
}

void SimScheduler::StartAccidents() {
  if (context_.options.moves_per_second > 0) MoveSomeRange();
  if (context_.options.breaks_per_second > 0) BreakSomeConnection();
  RequestCheckpoints();
}

void SimScheduler::RequestCheckpoints() {
  for (const absl::Duration checkpoint : context_.options.checkpoints) {
    context_.processes.After(EndpointId::Scheduler(), checkpoint, [this] {
      scheduler::SchedulerEvent event;
      event.kind = scheduler::SchedulerEvent::Kind::kCheckpoint;
      event.text = "in the middle";
      Step(event);
    });
  }
}

// ---- messages ---------------------------------------------------------------------------------

void SimScheduler::Register(EndpointId id) {
  const bool server = id.role == Role::kServer;
  Control control;
  tandem::Register& request = *control.mutable_register_();
  request.set_role(server ? tandem::Register::SERVER : tandem::Register::WORKER);
  const bool of_worker = server && id.index >= context_.plan.server_processes();
  request.set_index(of_worker ? -1 : id.index);
  request.set_incarnation(context_.processes.IncarnationOf(id));
  const int endpoints = server ? context_.plan.shards_per_server() : 1;
  for (int i = 0; i < endpoints; ++i) {
    request.add_endpoint(absl::StrCat("sim://", id.index, "/", i));
  }
  request.set_host("sim");
  request.set_pid(static_cast<int64_t>(context_.processes.IncarnationOf(id)));
  request.set_job_hash(context_.plan.hash);
  Send(id, control);
}

void SimScheduler::Beat(EndpointId from, uint64_t progress, int64_t step,
                        const Activity& activity) {
  Control control;
  tandem::Beat& beat = *control.mutable_beat();
  beat.set_progress(progress);
  beat.set_step(static_cast<uint64_t>(step));
  beat.set_activity(activity.text);
  beat.set_waits_for(activity.waits_for.Pack());
  Send(from, control);
}

absl::Time SimScheduler::Arrival(absl::Time* last) {
  const double more = context_.options.control_jitter ? context_.random.Exponential() : 0;
  return *last = std::max(*last, context_.agenda.now() + kLinkDelay * (1 + more));
}

void SimScheduler::Send(EndpointId from, const Control& control) {
  if (scheduler::IsMark(control.barrier_enter().action())) {
    marks_.insert(control.barrier_enter().name());
  }
  if (control.has_barrier_enter() && context_.random.Bernoulli(context_.options.barrier_drop)) {
    return;
  }
  if (control.has_command_done()) answered_[from] = control.command_done().id();
  Connection& connection = connections_[NodeOf(from)];
  if (connection.broken) return;
  scheduler::SchedulerEvent event;
  event.kind = scheduler::SchedulerEvent::Kind::kControl;
  event.connection = connection.number;
  event.incarnation = context_.processes.IncarnationOf(from);
  event.control = control;
  const auto arrives = [this, event, from, &connection] {
    const bool is_open = event.connection == connection.number;
    const bool is_old = event.incarnation != context_.processes.IncarnationOf(from);
    if (!is_open && !is_old) return;  // the connection has broken
    if (is_open) connection.away = false;
    Step(event);
  };
  context_.processes.At(EndpointId::Scheduler(), Arrival(&connection.last_up), arrives);
}

void SimScheduler::Step(const scheduler::SchedulerEvent& event) {
  core_.Step(context_.agenda.now(), event, &effects_);
  for (const std::string& line : effects_.logs) context_.Log(absl::StrCat("scheduler: ", line));
  for (const scheduler::SchedulerNotice& notice : effects_.notices) StartAgain(notice);
  if (context_.options.on_notice) {
    for (const scheduler::SchedulerNotice& notice : effects_.notices) {
      context_.options.on_notice(context_.agenda.elapsed(), notice);
    }
  }
  for (const scheduler::SchedulerEffects::Send& send : effects_.sends) {
    if (send.control->has_barrier_release() &&
        context_.random.Bernoulli(context_.options.barrier_drop)) {
      continue;
    }
    started_ |= send.control->command().kind() == Command::START;
    stopping_ |= send.control->command().kind() == Command::STOP;
    if (send.control->command().kind() == Command::REPORT) report_ = send.control->command().id();
    const size_t node = send.connection % connections_.size();
    context_.processes.At(EndpointOf(node), Arrival(&connections_[node].last_down),
                          [this, send, node] {
                            if (send.connection == connections_[node].number)
                              Deliver(node, *send.control);
                          });
  }
  effects_.Clear();
}

// As a supervisor does: ends what is left of the old process, and starts a new one.
void SimScheduler::StartAgain(const scheduler::SchedulerNotice& notice) {
  if (notice.kind == scheduler::SchedulerNotice::Kind::kReplaced) ++replaced_;
  if (notice.kind != scheduler::SchedulerNotice::Kind::kVacant) return;
  int rank = 0;
  while (context_.processes.NameOf(EndpointId::Worker(rank)) != notice.node) ++rank;
  const EndpointId worker = EndpointId::Worker(rank);
  ++vacated_;
  vacant_.insert(worker);
  const absl::Duration more = context_.options.start_time - kShortestStart;
  absl::Duration start = kShortestStart + more * context_.random.NextDouble();
  if (!context_.processes.alive(worker)) {
    ++revived_;
  } else {
    start += kMayEnd;
    context_.agenda.After(kMayEnd, [this, worker] {
      context_.processes.Kill(worker);
      Disconnect(worker, scheduler::SchedulerEvent::Kind::kLost);
      Exits(worker);
    });
  }
  context_.agenda.After(start, [this, worker] {
    context_.Log(absl::StrCat("a new process of worker ", worker.index));
    vacant_.erase(worker);
    replace_(worker.index);
  });
}

void SimScheduler::Exits(EndpointId worker) {
  scheduler::SchedulerEvent event;
  event.kind = scheduler::SchedulerEvent::Kind::kExited;
  event.rank = worker.index;
  event.pid = static_cast<int64_t>(context_.processes.IncarnationOf(worker));
  event.text = "was ended by signal 9 (Killed)";
  context_.processes.After(EndpointId::Scheduler(), kSupervision * context_.random.NextDouble(),
                           [this, event] { Step(event); });
}

void SimScheduler::Comes(EndpointId worker) {
  Connection& connection = connections_[NodeOf(worker)];
  connection.number += connections_.size();
  connection.broken = false;
  connection.away = true;
  connection.last_up = connection.last_down = context_.agenda.now();
  Register(worker);
}

void SimScheduler::Deliver(size_t node, const Control& control) {
  if (control.has_beat_ack()) return;
  context_.Log(absl::StrCat("scheduler -> node ", node, ": ",
                            control.has_view() ? absl::StrCat("view ", control.view().number())
                                               : control.ShortDebugString()));
  if (control.has_failure()) {
    // The process leaves: its connections close in an orderly way.
    const EndpointId process = context_.processes.Of(EndpointOf(node));
    context_.processes.Kill(process);
    return Disconnect(process, scheduler::SchedulerEvent::Kind::kClosed);
  }
  if (control.has_barrier_release()) marks_.erase(control.barrier_release().name());
  arrive_(EndpointOf(node), control);
  if (!control.has_command() || control.command().kind() != Command::STOP) return;
  Disconnect(node, scheduler::SchedulerEvent::Kind::kClosed);
}

void SimScheduler::Disconnect(size_t node, scheduler::SchedulerEvent::Kind kind) {
  scheduler::SchedulerEvent event;
  event.kind = kind;
  event.connection = connections_[node].number;
  event.why = absl::UnavailableError("closed by the peer's system");
  const absl::Time at = std::max(connections_[node].last_up, context_.agenda.now() + kLinkDelay);
  context_.processes.At(EndpointId::Scheduler(), at, [this, event] { Step(event); });
}

void SimScheduler::Disconnect(EndpointId process, scheduler::SchedulerEvent::Kind kind) {
  for (size_t node = 0; node < connections_.size(); ++node) {
    if (context_.processes.Of(EndpointOf(node)) == process) Disconnect(node, kind);
  }
}

void SimScheduler::HoldBack(EndpointId process, bool up, absl::Duration length) {
  for (size_t node = 0; node < connections_.size(); ++node) {
    if (context_.processes.Of(EndpointOf(node)) != process) continue;
    Connection& connection = connections_[node];
    absl::Time& last = up ? connection.last_up : connection.last_down;
    last = std::max(last, context_.agenda.now() + length);
  }
}

// ---- accidents --------------------------------------------------------------------------------

// Breaks the connection of a process at random times. Not before the job has begun, and not after
// the stop command, because connections then close. Not while the process is away after an earlier
// break, because both breaks together could be too long.
void SimScheduler::BreakSomeConnection() {
  const absl::Duration wait =
      absl::Seconds(context_.random.Exponential() / context_.options.breaks_per_second);
  context_.processes.After(EndpointId::Scheduler(), wait, [this] {
    if (core_.done() || stopping_) return;
    Connection& connection = connections_[context_.random.Uniform(connections_.size())];
    const EndpointId node = EndpointOf(connection.number % connections_.size());
    const bool there = context_.processes.alive(node) && !connection.away;
    if (core_.view().number() > 0 && there) Break(node, &connection);
    BreakSomeConnection();
  });
}

void SimScheduler::Break(EndpointId node, Connection* connection) {
  context_.Log(absl::StrCat(node.role == Role::kServer ? "server " : "worker ", node.index,
                            " loses its link to the scheduler"));
  scheduler::SchedulerEvent event;
  event.kind = scheduler::SchedulerEvent::Kind::kLost;
  event.connection = connection->number;
  event.why = absl::UnavailableError("broken");
  connection->broken = connection->away = true;
  connection->number += connections_.size();
  ++breaks_;
  Step(event);
  const absl::Duration length = context_.options.break_length * context_.random.Exponential();
  context_.processes.After(node, std::min(length, kLongestBreak), [this, node, connection] {
    connection->broken = false;
    Register(node);
  });
}

// Moves a random range. Not while a checkpoint is marked, because no server marks a moving range.
void SimScheduler::MoveSomeRange() {
  const absl::Duration wait =
      absl::Seconds(context_.random.Exponential() / context_.options.moves_per_second);
  context_.processes.After(EndpointId::Scheduler(), wait, [this] {
    if (core_.done()) return;
    const uint64_t ranges = static_cast<uint64_t>(core_.view().range_size());
    if (ranges > 0 && marks_.empty()) {
      const auto one_of = [this](int count) {
        return static_cast<int>(context_.random.Uniform(static_cast<uint64_t>(count)));
      };
      scheduler::SchedulerEvent event;
      event.kind = scheduler::SchedulerEvent::Kind::kMoveRange;
      event.range = static_cast<uint32_t>(context_.random.Uniform(ranges));
      event.server = one_of(context_.plan.servers());
      event.shard = one_of(context_.plan.shards_per_server());
      context_.Log(absl::StrCat("move range ", event.range, " to server ", event.server, " shard ",
                                event.shard));
      ++moves_;
      Step(event);
    }
    MoveSomeRange();
  });
}

}  // namespace tandem::sim
