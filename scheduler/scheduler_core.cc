#include "scheduler/scheduler_core.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "scheduler/deal_ranges.h"

namespace tandem {
namespace {

constexpr int kMaxStrangerLogs = 100;
constexpr double kDefaultStallSeconds = 600, kDefaultStartSeconds = 60, kDefaultReportSeconds = 1;

absl::Duration SecondsOr(double seconds, double otherwise) {
  return absl::Seconds(seconds > 0 ? seconds : otherwise);
}

// A failure that may be the echo of somebody else's death.
bool BlamesOthers(const Failure& failure) {
  const auto code = static_cast<absl::StatusCode>(failure.code());
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kAborted ||
         code == absl::StatusCode::kDeadlineExceeded;
}

absl::StatusCode CodeOf(int32_t code) {
  const bool known = code > 0 && code <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  return known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

Member MemberOf(const Node& node) {
  Member member;
  member.set_incarnation(node.incarnation);
  for (const std::string& endpoint : node.endpoints) member.add_endpoint(endpoint);
  member.set_host(node.host);
  member.set_pid(node.pid);
  return member;
}

}  // namespace

SchedulerCore::SchedulerCore(const JobPlan& plan, Options options)
    : plan_(plan),
      options_(std::move(options)),
      stall_limit_(SecondsOr(plan.job.limits().stall_limit_seconds(), kDefaultStallSeconds)),
      start_limit_(SecondsOr(plan.job.limits().start_seconds(), kDefaultStartSeconds)),
      report_interval_(SecondsOr(plan.job.limits().report_seconds(), kDefaultReportSeconds)),
      members_(plan_),
      barriers_(plan_.workers()),
      book_(plan_) {
  TANDEM_CHECK(plan_.workers() > 0 && plan_.servers() >= 0);
  TANDEM_CHECK(plan_.servers() == 0 || plan_.shards_per_server() > 0);
}

void SchedulerCore::Step(absl::Time now, const SchedulerEvent& event, SchedulerEffects* effects) {
  TANDEM_CHECK(!first_step_.has_value() || now >= now_);
  if (first_step_.has_value() && now - now_ > absl::Seconds(2)) ForgivePause(now - now_);
  now_ = now;
  if (!first_step_.has_value()) first_step_ = now;
  effects_ = effects;
  switch (event.kind) {
    case SchedulerEvent::Kind::kControl:
      OnControl(event);
      break;
    case SchedulerEvent::Kind::kLost:
      OnLost(event.connection, Clip(event.why.message()));
      break;
    case SchedulerEvent::Kind::kClosed:
      OnClosed(event.connection);
      break;
    case SchedulerEvent::Kind::kGarbage:
      OnGarbage(event.connection, event.why);
      break;
    case SchedulerEvent::Kind::kTick:
      OnTick();
      break;
    case SchedulerEvent::Kind::kSave:
      OnSaveRequest(event.text);
      break;
    case SchedulerEvent::Kind::kAbort:
      Fail("scheduler", event.text, absl::StatusCode::kCancelled);
      break;
    case SchedulerEvent::Kind::kMoveRange:
      OnMoveRange(event);
      break;
  }
  effects_ = nullptr;
}

absl::Status SchedulerCore::result() const {
  if (phase_ != Phase::kFailing && phase_ != Phase::kFailed) return absl::OkStatus();
  return absl::Status(CodeOf(failure_.code()),
                      absl::StrCat(failure_.node(), ": ", failure_.reason()));
}

// ---- messages of nodes ------------------------------------------------------------------------

void SchedulerCore::OnControl(const SchedulerEvent& event) {
  if (event.control.has_register_()) {
    OnRegister(event.connection, event.control.register_());
    return;
  }
  Node* const node = members_.Find(event.connection, event.incarnation);
  if (node == nullptr && event.control.has_beat()) return;  // its registration is on its way
  if (node == nullptr || node->gone) {
    OnGarbage(event.connection,
              absl::NotFoundError("a message from a node that is not registered"));
    return;
  }
  node->heard = now_;
  if (node->silence_reported) {
    node->silence_reported = false;
    Warn(absl::StrCat(node->Name(), " is back"));
  }
  OnMemberControl(node, event);
}

void SchedulerCore::OnMemberControl(Node* node, const SchedulerEvent& event) {
  const Control& control = event.control;
  if (phase_ == Phase::kFailing) {  // it may have missed the news
    if (control.has_beat()) SendFailure(event.connection);
    return;
  }
  switch (control.body_case()) {
    case Control::kBeat:
      return OnBeat(node, event.connection, control.beat());
    case Control::kBarrierEnter:
      return OnBarrierEnter(node, control.barrier_enter());
    case Control::kCommandDone:
      return OnCommandDone(node, control.command_done());
    case Control::kProgress:
      return OnProgress(node, control.progress());
    case Control::kShardReport:
      return OnShardReport(node, control.shard_report());
    case Control::kPaths:
      return OnPaths(node, control.paths());
    case Control::kCollectives:
      return OnCollectives(node, control.collectives());
    case Control::kFailure:
      return OnFailureReport(node, control.failure());
    default:
      return FailNode(*node,
                      absl::StrCat("sent the scheduler a message of kind ",
                                   static_cast<int>(control.body_case()), ", which is not for it"),
                      absl::StatusCode::kInvalidArgument);
  }
}

void SchedulerCore::OnRegister(uint64_t connection, const tandem::Register& request) {
  if (phase_ == Phase::kFailing) return SendFailure(connection);
  if (ended()) return;
  const absl::StatusOr<Membership::Registration> registration =
      members_.Register(now_, connection, request);
  if (!registration.ok()) return Refuse(connection, registration.status());
  if (registration->is_new) {
    Log(absl::StrCat(registration->node->Name(), " registered from ", registration->node->host));
    if (members_.complete()) PublishFirstView();
    return;
  }
  if (registration->reconnected) {
    Warn(absl::StrCat(registration->node->Name(), " is back on a new connection"));
  }
  // A repetition that crossed the View on the way needs no answer.
  if (view_.number() > 0 && registration->reconnected) Welcome(*registration->node);
}

void SchedulerCore::Refuse(uint64_t connection, const absl::Status& why) {
  Control control;
  control.mutable_failure()->set_node("scheduler");
  control.mutable_failure()->set_reason(std::string(why.message()));
  control.mutable_failure()->set_code(static_cast<int32_t>(why.code()));
  effects_->sends.push_back({connection, std::move(control)});
  if (stranger_logs_++ < kMaxStrangerLogs) Warn(absl::StrCat("refused: ", why.message()));
}

// Whatever the node may have missed: the view, START, commands that wait for it, STOP.
void SchedulerCore::Welcome(const Node& node) {
  Control control;
  *control.mutable_view() = view_;
  SendTo(node, control);
  if (phase_ == Phase::kStarting) return;
  control.mutable_command()->set_kind(Command::START);
  control.mutable_command()->set_id(start_command_);
  SendTo(node, control);
  for (const auto& [id, pending] : commands_) {
    const std::set<int>& missing = node.role == Role::kServer ? pending.servers : pending.workers;
    if (missing.count(node.index) == 0) continue;
    *control.mutable_command() = pending.command;
    SendTo(node, control);
  }
  if (phase_ != Phase::kStopping) return;
  *control.mutable_command() = NewCommand(Command::STOP, "");
  SendTo(node, control);
}

void SchedulerCore::OnBeat(Node* node, uint64_t connection, const Beat& beat) {
  effects_->sends.emplace_back().connection = connection;
  effects_->sends.back().control.mutable_beat_ack();
  const bool stepped = beat.step() != node->step;
  if (stepped || beat.progress() != node->progress) node->moved_at = now_;
  if (stepped) node->step_at = now_;
  node->step = beat.step();
  node->progress = beat.progress();
  node->activity = Clip(beat.activity());
  if (beat.waits_for() == 0) {
    node->waits_for.reset();
    return;
  }
  if (!node->waits_for.has_value()) node->wait_started = now_;
  node->waits_for = EndpointId::Unpack(beat.waits_for());
}

void SchedulerCore::OnBarrierEnter(Node* node, const BarrierEnter& enter) {
  const int rank = node->role == Role::kWorker && view_.number() > 0 ? node->index : -1;
  const absl::StatusOr<Barriers::Entry> entry = barriers_.Enter(now_, rank, enter);
  if (!entry.ok()) {
    return FailNode(*node, std::string(entry.status().message()), entry.status().code());
  }
  if (*entry == Barriers::Entry::kComplete) CompleteBarrier(enter.name());
  if (*entry == Barriers::Entry::kReleased) {
    Control control;
    *control.mutable_barrier_release() = barriers_.Released(enter.name());
    SendTo(*node, control);
  }
}

void SchedulerCore::OnCommandDone(Node* node, const CommandDone& done) {
  const auto it = commands_.find(done.id());
  const bool is_view = done.id() > 0 && done.id() <= view_.number();
  if (done.code() != 0) {
    const std::string what = is_view ? absl::StrCat("view ", done.id())
                             : it != commands_.end()
                                 ? absl::StrCat(Command::Kind_Name(it->second.command.kind()), " ",
                                                it->second.command.path())
                                 : "a command";
    return FailNode(*node, absl::StrCat(what, ": ", Clip(done.message())), CodeOf(done.code()));
  }
  if (is_view) return AcknowledgeView(node, static_cast<uint32_t>(done.id()));
  if (it == commands_.end()) return;
  (node->role == Role::kServer ? it->second.servers : it->second.workers).erase(node->index);
  FinishCommands();
}

void SchedulerCore::AcknowledgeView(Node* node, uint32_t number) {
  node->acknowledged_view = std::max(node->acknowledged_view, number);
  if (phase_ != Phase::kStarting) return;
  const std::vector<Node>& nodes = members_.nodes();
  const bool all = std::all_of(nodes.begin(), nodes.end(),
                               [](const Node& n) { return n.acknowledged_view > 0; });
  if (all) StartJob();
}

void SchedulerCore::OnProgress(Node* node, const Progress& progress) {
  const int rank = node->role == Role::kWorker ? node->index : -1;
  const absl::Status added = book_.AddProgress(rank, progress);
  if (!added.ok()) return FailNode(*node, std::string(added.message()), added.code());
  if (!progress.evaluation_json().empty()) {
    Notify(SchedulerNotice::Kind::kEvaluation, node->Name(), progress.evaluation_json());
  }
}

void SchedulerCore::OnShardReport(Node* node, const ShardReport& report) {
  const bool own =
      node->role == Role::kServer && report.server() == static_cast<uint32_t>(node->index);
  const absl::Status added =
      own ? book_.AddShardReport(report)
          : absl::InvalidArgumentError(absl::StrCat("report of server ", report.server()));
  if (!added.ok()) return FailNode(*node, std::string(added.message()), added.code());
  for (auto& [id, pending] : commands_) {
    pending.shards.erase({node->index, static_cast<int>(report.shard())});
  }
  FinishCommands();
}

void SchedulerCore::OnPaths(Node* node, const Paths& paths) {
  for (const Path& path : paths.path()) {
    if (!book_.AddPath(node->Name(), path)) return;
    Log(absl::StrCat(node->Name(), " reaches ", path.to(),
                     path.purpose().empty() ? "" : absl::StrCat(" for ", path.purpose()), " by ",
                     path.way(), ": ", path.why()));
  }
}

void SchedulerCore::OnCollectives(Node* node, const Collectives& collectives) {
  const int rank = node->role == Role::kWorker ? node->index : -1;
  const absl::Status added = book_.SetCollectives(rank, collectives);
  if (!added.ok()) return FailNode(*node, std::string(added.message()), added.code());
  Log(collectives.line());
}

void SchedulerCore::OnFailureReport(Node* node, const Failure& failure) {
  const absl::optional<EndpointId> blamed = ParseNodeName(failure.node());
  const Node* const culprit = blamed.has_value() ? members_.ByEndpoint(*blamed) : nullptr;
  Failure cause;
  cause.set_node(culprit != nullptr ? culprit->Name() : node->Name());
  cause.set_reason(Clip(failure.reason()));
  if (culprit != nullptr && culprit != node) {
    absl::StrAppend(cause.mutable_reason(), " (reported by ", node->Name(), ")");
  }
  cause.set_code(static_cast<int32_t>(CodeOf(failure.code())));
  node->reported_failure = true;
  Log(absl::StrCat(node->Name(), " reports a failure of ", cause.node(), ": ", cause.reason()));
  if (phase_ == Phase::kStopping) return;  // all results are in
  if (!BlamesOthers(cause)) return Fail(cause.node(), cause.reason(), CodeOf(cause.code()));
  if (!held_.has_value())
    held_ = HeldFailure{cause, node->Name(), now_ + options_.times.blame_delay};
  CheckHeldFailure();
}

// ---- connections ------------------------------------------------------------------------------

void SchedulerCore::OnLost(uint64_t connection, const std::string& why) {
  Node* const node = members_.Forget(connection);
  if (node == nullptr || node->gone) return;
  if (phase_ == Phase::kStopping || phase_ == Phase::kFailing) {
    node->gone = !node->connected;
    return CheckEnd();
  }
  if (!node->lost_since.has_value()) {
    node->lost_since = now_;
    node->lost_why = why;
    Warn(absl::StrCat(node->Name(), ": connection lost (", why, "), waiting ",
                      absl::FormatDuration(options_.times.reconnect_grace), " for it to return"));
  }
  CheckHeldFailure();
}

void SchedulerCore::OnClosed(uint64_t connection) {
  Node* const node = members_.Forget(connection);
  if (node == nullptr || node->gone || node->connected) return;
  if (phase_ == Phase::kStopping || phase_ == Phase::kFailing) {
    node->gone = true;
    return CheckEnd();
  }
  if (node->reported_failure && held_.has_value()) {  // it has said why it leaves
    node->gone = true;
    return;
  }
  NodeDied(node, "left before the end of the job");
}

// A stranger (a port scanner, a node of another job) is ignored; a member that sends what it must
// not is a member we do not understand.
void SchedulerCore::OnGarbage(uint64_t connection, const absl::Status& why) {
  const Node* const node = members_.ByConnection(connection);
  if (node != nullptr && !node->gone) {
    return FailNode(*node, absl::StrCat("sent garbage: ", Clip(why.message())),
                    absl::StatusCode::kInvalidArgument);
  }
  if (stranger_logs_++ < kMaxStrangerLogs) {
    Log(absl::StrCat("ignored from a stranger: ", Clip(why.message())));
  }
}

// ---- from outside -----------------------------------------------------------------------------

void SchedulerCore::OnSaveRequest(const std::string& path) {
  if (phase_ != Phase::kRunning || saves_closed_) {
    return Warn(absl::StrCat("save request ignored: the job is ",
                             saves_closed_ ? "at its end" : "not running"));
  }
  const bool waits_already = !saves_.empty() && std::count(saves_.begin() + 1, saves_.end(), path);
  if (!waits_already) saves_.push_back(path);
  if (saves_.size() == 1) return StartSave();
  Log(absl::StrCat("a save is under way; the one to ", path, " follows",
                   waits_already ? " for this request too" : ""));
}

// Asks all workers for the first of `saves_`. One that has lost its connection is asked when it is
// back (Welcome).
void SchedulerCore::StartSave() {
  PendingCommand pending;
  pending.command = NewCommand(Command::SAVE, saves_.front());
  pending.since = now_;
  Control control;
  *control.mutable_command() = pending.command;
  for (int rank = 0; rank < members_.workers(); ++rank) {
    pending.workers.insert(rank);
    SendTo(*members_.worker(rank), control);
  }
  commands_.emplace(pending.command.id(), std::move(pending));
  Log(absl::StrCat("asked the workers to save to ", saves_.front()));
}

void SchedulerCore::OnMoveRange(const SchedulerEvent& event) {
  const bool valid = phase_ == Phase::kRunning &&
                     event.range < static_cast<uint32_t>(view_.range_size()) && event.server >= 0 &&
                     event.server < plan_.servers() && event.shard >= 0 &&
                     event.shard < plan_.shards_per_server();
  if (!valid) {
    return Warn(absl::StrCat("move of range ", event.range, " to server ", event.server, " shard ",
                             event.shard, " ignored: no such range or shard, or not running"));
  }
  RangeInfo* const range = view_.mutable_range(static_cast<int>(event.range));
  const int old_owner = static_cast<int>(range->server());
  if (old_owner == event.server && static_cast<int>(range->shard()) == event.shard) return;
  range->set_server(static_cast<uint32_t>(event.server));
  range->set_shard(static_cast<uint32_t>(event.shard));
  PublishView();
  Control control;
  control.mutable_move_range()->set_range(event.range);
  control.mutable_move_range()->set_view(view_.number());
  SendTo(*members_.server(old_owner), control);
}

// ---- views, commands, barriers ----------------------------------------------------------------

void SchedulerCore::PublishFirstView() {
  members_.Number();
  for (const Node& node : members_.nodes()) {
    *(node.role == Role::kServer ? view_.add_server() : view_.add_worker()) = MemberOf(node);
  }
  view_.set_coordinator(options_.coordinator);
  for (RangeInfo& range : DealRanges(plan_)) *view_.add_range() = std::move(range);
  phase_ = Phase::kStarting;
  phase_since_ = next_start_report_ = now_;
  PublishView();
}

void SchedulerCore::PublishView() {
  view_.set_number(view_.number() + 1);
  Control control;
  *control.mutable_view() = view_;
  SendToAll(control);
  Log(absl::StrCat("view ", view_.number(), ": ", members_.servers(), " servers, ",
                   members_.workers(), " workers, ", view_.range_size(), " ranges"));
}

void SchedulerCore::StartJob() {
  phase_ = Phase::kRunning;
  phase_since_ = now_;
  book_.Start(now_);
  next_progress_ = now_ + report_interval_;
  next_shard_reports_ = now_ + options_.times.shard_reports;
  for (Node& node : members_.nodes()) node.moved_at = node.step_at = now_;
  Control control;
  *control.mutable_command() = NewCommand(Command::START, "");
  start_command_ = control.command().id();
  SendToAll(control);
  Notify(SchedulerNotice::Kind::kStarted, "", "");
}

Command SchedulerCore::NewCommand(Command::Kind kind, const std::string& path) {
  Command command;
  command.set_kind(kind);
  command.set_id(next_command_++);
  command.set_path(path);
  return command;
}

void SchedulerCore::CompleteBarrier(const std::string& name) {
  const Barrier& barrier = barriers_.open().at(name);
  const bool closes =
      barrier.action == BarrierEnter::LAST_SAVE || barrier.action == BarrierEnter::END;
  saves_closed_ |= closes;
  if (closes && !saves_.empty()) {
    waits_for_saves_ = name;  // completed again when they are finished
    return;
  }
  switch (barrier.action) {
    case BarrierEnter::SAVE:
      return CommandServers(Command::SAVE, barrier.path, name);
    case BarrierEnter::FINISH_DELAYED:
      return CommandServers(Command::FINISH_DELAYED, "", name);
    case BarrierEnter::END:
      return CommandServers(Command::REPORT, "", name);
    default:
      return ReleaseBarrier(name);
  }
}

void SchedulerCore::CommandServers(Command::Kind kind, const std::string& path,
                                   const std::string& barrier) {
  PendingCommand pending;
  pending.command = NewCommand(kind, path);
  pending.barrier = barrier;
  pending.since = now_;
  Control control;
  *control.mutable_command() = pending.command;
  for (int server = 0; server < members_.servers(); ++server) {
    pending.servers.insert(server);
    SendTo(*members_.server(server), control);
    for (int shard = 0; kind == Command::REPORT && shard < plan_.shards_per_server(); ++shard) {
      pending.shards.insert({server, shard});
    }
  }
  commands_.emplace(pending.command.id(), std::move(pending));
  FinishCommands();  // at once if there are no servers
}

void SchedulerCore::FinishCommands() {
  const auto answered = [](const auto& command) {
    const PendingCommand& pending = command.second;
    return pending.servers.empty() && pending.workers.empty() && pending.shards.empty();
  };
  // What follows a command may add others: each time the search begins anew.
  for (;;) {
    const auto it = std::find_if(commands_.begin(), commands_.end(), answered);
    if (it == commands_.end()) return;
    const PendingCommand done = std::move(it->second);
    commands_.erase(it);
    FinishCommand(done);
  }
}

void SchedulerCore::FinishCommand(const PendingCommand& done) {
  if (!done.barrier.empty()) return ReleaseBarrier(done.barrier);
  if (done.command.kind() != Command::SAVE) return;
  saves_.pop_front();
  Log(absl::StrCat("saved to ", done.command.path()));
  if (!saves_.empty()) return StartSave();
  if (!waits_for_saves_.empty()) CompleteBarrier(std::exchange(waits_for_saves_, ""));
}

void SchedulerCore::ReleaseBarrier(const std::string& name) {
  const Barrier& barrier = barriers_.open().at(name);
  const std::vector<bool> entered = barrier.entered;
  const bool end = barrier.action == BarrierEnter::END;
  Control control;
  *control.mutable_barrier_release() = barriers_.Release(name);
  for (size_t rank = 0; rank < entered.size(); ++rank) {
    if (entered[rank]) SendTo(*members_.worker(static_cast<int>(rank)), control);
  }
  if (end) StopJob();
}

void SchedulerCore::StopJob() {
  report_ = book_.Total(now_);
  phase_ = Phase::kStopping;
  phase_since_ = now_;
  held_.reset();
  Control control;
  *control.mutable_command() = NewCommand(Command::STOP, "");
  SendToAll(control);
}

// ---- endings ----------------------------------------------------------------------------------

void SchedulerCore::Fail(const std::string& node, const std::string& reason,
                         absl::StatusCode code) {
  if (phase_ == Phase::kFailing || phase_ == Phase::kStopping || ended()) return;
  phase_ = Phase::kFailing;
  phase_since_ = now_;
  held_.reset();
  failure_.set_node(node);
  failure_.set_reason(reason);
  failure_.set_code(static_cast<int32_t>(code));
  Control control;
  *control.mutable_failure() = failure_;
  SendToAll(control);
  Log(absl::StrCat("the job fails: ", node, ": ", reason));
  Notify(SchedulerNotice::Kind::kFailed, node, reason);
  effects_->notices.back().code = code;
  CheckEnd();
}

void SchedulerCore::FailNode(const Node& node, const std::string& reason, absl::StatusCode code) {
  Fail(node.Name(), reason, code);
}

void SchedulerCore::NodeDied(Node* node, const std::string& reason) {
  node->gone = true;
  FailNode(*node, reason, absl::StatusCode::kUnavailable);
}

void SchedulerCore::CheckEnd() {
  if (phase_ != Phase::kStopping && phase_ != Phase::kFailing) return;
  const std::vector<Node>& nodes = members_.nodes();
  std::vector<std::string> left;
  for (const Node& node : nodes) {
    // One that lost its connection before it was told to stop may come back for that.
    const bool returns = phase_ == Phase::kStopping && node.lost_since.has_value();
    if ((node.connected || returns) && !node.gone) left.push_back(node.Name());
  }
  const bool patient = now_ - phase_since_ < options_.times.close_bound;
  if (!left.empty() && patient) return;
  if (!left.empty()) Warn(absl::StrCat("still connected at the end: ", absl::StrJoin(left, ", ")));
  if (phase_ == Phase::kFailing) {
    phase_ = Phase::kFailed;
    return;
  }
  phase_ = Phase::kFinished;
  Notify(SchedulerNotice::Kind::kFinished, "", "");
}

// ---- effects ----------------------------------------------------------------------------------

void SchedulerCore::SendTo(const Node& node, const Control& control) {
  if (node.connected && !node.gone) effects_->sends.push_back({node.main, control});
}

void SchedulerCore::SendToAll(const Control& control) {
  for (const Node& node : members_.nodes()) SendTo(node, control);
}

void SchedulerCore::SendFailure(uint64_t connection) {
  effects_->sends.emplace_back().connection = connection;
  *effects_->sends.back().control.mutable_failure() = failure_;
}

void SchedulerCore::Log(std::string line) { effects_->logs.push_back(std::move(line)); }

void SchedulerCore::Warn(const std::string& line) {
  effects_->warnings.push_back(line);
  Log(line);
}

void SchedulerCore::Notify(SchedulerNotice::Kind kind, std::string node, std::string text) {
  SchedulerNotice& notice = effects_->notices.emplace_back();
  notice.kind = kind;
  notice.node = std::move(node);
  notice.text = std::move(text);
}

int SchedulerCore::NodeIndex(const Node* node) const {
  return node == nullptr ? -1 : static_cast<int>(node - members_.nodes().data());
}

}  // namespace tandem
