#include "scheduler/scheduler_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "job/job_budget.h"
#include "proto/serialize.h"
#include "scheduler/deal_ranges.h"

namespace tandem::scheduler {
namespace {

UserAnswer Answer(absl::StatusCode code, const std::string& text) {
  UserAnswer answer;
  answer.set_code(static_cast<int32_t>(code));
  answer.set_text(text);
  return answer;
}

// Whether the view names this process, and not an earlier one in its place.
bool IsInView(const Node& node, const View& view) {
  const auto& members = node.role == Role::kServer ? view.server() : view.worker();
  return node.index >= 0 && node.index < members.size() &&
         members[node.index].incarnation() == node.incarnation;
}

Failure FailureOfNode(const Node& node, const absl::Status& why) {
  return FailureOf(node.Name(), std::string(why.message()), why.code());
}

// About the bytes of the range files of a checkpoint now.
int64_t CheckpointBytes(const job::ResolvedJob& plan, const std::vector<ShardReport>& shards) {
  double bytes = 0;
  for (const job::TablePlan& table : plan.tables) {
    const double row = job::StoredBytesOfRow(plan, table) + sizeof(uint64_t);
    for (const ShardReport& shard : shards) {
      for (const TableReport& report : shard.table()) {
        if (report.table() != table.name) continue;
        bytes += static_cast<double>(report.rows()) * row;  // of the first copies, which are saved
        bytes += static_cast<double>(report.hot_rows()) * job::HotBytesOfRow(table);
      }
    }
  }
  return static_cast<int64_t>(bytes);
}

bool HasStore(const job::ResolvedJob& plan) {
  return std::any_of(plan.tables.begin(), plan.tables.end(),
                     [](const job::TablePlan& table) { return table.store; });
}

// The text of the job. `reader`: number of the reader; -1 if the peer is a node.
ReaderWelcome WelcomeTo(const job::ResolvedJob& plan, int reader) {
  ReaderWelcome welcome;
  welcome.set_job(job::ResolvedText(plan));
  welcome.set_job_hash(plan.hash);
  welcome.set_reader(reader);
  return welcome;
}

}  // namespace

SchedulerCore::SchedulerCore(const job::ResolvedJob& plan, Options options)
    : plan_(plan),
      options_(std::move(options)),
      members_(plan_),
      barriers_(plan_.workers()),
      checkpoints_(plan_.job.checkpoint(), options_.models.checkpoint_folder,
                   options_.models.resume ? options_.models.step : -1, &members_, &commands_,
                   &barriers_),
      reports_(plan_, options_.times, JobLimits(plan_.job), options_.models.before),
      life_(options_.times, &members_),
      stalls_(options_.times, JobLimits(plan_.job).stall, job::SumsByQuorum(plan_.job), &members_,
              &barriers_, &commands_, &checkpoints_.queue()),
      overdue_(options_.times, JobLimits(plan_.job), &members_, &barriers_, &commands_),
      judge_(options_.times, &members_),
      replacements_(plan_, options_.replacements,
                    {&members_, &commands_, &barriers_, &checkpoints_, &reports_}) {
  TANDEM_CHECK(plan_.workers() > 0 && plan_.servers() >= 0);
  TANDEM_CHECK(plan_.servers() == 0 || plan_.shards_per_server() > 0);
}

void SchedulerCore::Step(absl::Time now, const SchedulerEvent& event, SchedulerEffects* effects) {
  TANDEM_CHECK(!first_step_.has_value() || now >= now_);
  // A pause of this process is added to the times before the event is handled, because handlers
  // compare these times with `now`.
  if (const absl::Duration pause = pauses_.Tick(now); pause > absl::ZeroDuration()) {
    members_.Forgive(pause);
    commands_.Forgive(pause);
    barriers_.Forgive(pause);
    replacements_.Forgive(pause);
    checkpoints_.room().Forgive(pause);
    phase_since_ += pause;
    if (first_step_.has_value()) *first_step_ += pause;
  }
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
    case SchedulerEvent::Kind::kCheckpoint:
      if (agents_.IsSameRequest(now_, Agents::Request::kCheckpoint, Agents::kUserRank)) break;
      OnCheckpointRequest(event.text);
      break;
    case SchedulerEvent::Kind::kEnd:
      if (agents_.IsSameRequest(now_, Agents::Request::kEnd, Agents::kUserRank)) break;
      OnEndRequest(event.text, /*signal=*/true);
      break;
    case SchedulerEvent::Kind::kAbort:
      Fail(FailureOf("scheduler", event.text, absl::StatusCode::kCancelled));
      break;
    case SchedulerEvent::Kind::kMoveRange:
      OnMoveRange(event);
      break;
    case SchedulerEvent::Kind::kExited:
      OnExited(event);
      break;
  }
  effects_ = nullptr;
  const Node* const first = view_.number() > 0 ? members_.worker(0) : nullptr;
  const bool runs = phase_ == Phase::kRunning || phase_ == Phase::kStopping;
  const bool there = runs && first->connected && !first->gone && !replacements_.Awaits(*first);
  effects->rank_zero = there ? std::optional<uint64_t>(first->main) : std::nullopt;
}

nlohmann::json SchedulerCore::Status() const {
  StatusFacts facts;
  facts.now = now_;
  facts.state = NameOf(phase_);
  facts.plan = &plan_;
  facts.members = &members_;
  facts.view = &view_;
  facts.checkpoints = &checkpoints_;
  facts.shards = &reports_.shards();
  facts.progress = reports_.last();
  facts.report = phase_ > Phase::kRunning ? report_ : reports_.Total(now_);
  if (phase_ == Phase::kRunning) facts.waits = stalls_.WaitStates();
  facts.estimate = options_.estimate;
  if (phase_ >= Phase::kFailing) facts.failure = failure_;
  return StatusJson(facts);
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
  if (event.control.has_user_request()) {
    return OnUserRequest(event.connection, event.control.user_request());
  }
  if (readers_.Has(event.connection)) {  // its answers to commands are not awaited
    const Agent* const agent = agents_.ByConnection(event.connection);
    if (agent == nullptr || phase_ >= Phase::kStopping) return;
    const AgentNote& note = event.control.agent_note();
    if (note.has_exit()) {
      const auto cause = agents_.OnExit(*agent, note.exit(), &members_, effects_);
      if (cause.has_value()) return Fail(*cause);
    }
    const std::string why = absl::StrCat("stopped by a signal on host ", agent->host);
    if (note.stops() > 1) return Fail(FailureOf("scheduler", why, absl::StatusCode::kCancelled));
    if (note.stops() == 1) checkpoints_.room().OnSignal(now_);
    // While the last checkpoint is written, only a second signal of one agent ends the job at once.
    if (note.stops() == 1 && !checkpoints_.ending() &&
        !agents_.IsSameRequest(now_, Agents::Request::kEnd, agent->rank)) {
      OnEndRequest(why, /*signal=*/true);
    }
    const std::string& folder = options_.models.checkpoint_folder;
    if (note.checkpoint() && !folder.empty() &&
        !agents_.IsSameRequest(now_, Agents::Request::kCheckpoint, agent->rank)) {
      OnCheckpointRequest(folder);
    }
    return;
  }
  Node* const node = members_.Find(event.connection, event.incarnation);
  if (node == nullptr &&
      members_.IsFenced(event.incarnation)) {  // a dead process that was only silent
    return effects_->SendFailure(
        event.connection, FailureOf("scheduler", "another process has taken the place of this one",
                                    absl::StatusCode::kAlreadyExists));
  }
  if (node == nullptr && event.control.has_beat()) return;  // its registration will arrive soon
  if (node == nullptr || node->gone) {
    OnGarbage(event.connection,
              absl::NotFoundError("a message from a node that is not registered"));
    return;
  }
  life_.OnHeard(now_, node, effects_);
  OnMemberControl(node, event);
}

void SchedulerCore::OnMemberControl(Node* node, const SchedulerEvent& event) {
  const Control& control = event.control;
  if (phase_ == Phase::kFailing) {  // the node may not have received the failure
    if (control.has_beat()) effects_->SendFailure(event.connection, failure_);
    return;
  }
  switch (control.body_case()) {
    case Control::kBeat: {
      Control answer;
      answer.mutable_beat_ack();
      effects_->SendOn(event.connection, std::move(answer));
      return node->OnBeat(now_, control.beat());
    }
    case Control::kBarrierEnter:
      return OnBarrierEnter(*node, control.barrier_enter());
    case Control::kCommandDone:
      return OnCommandDone(node, control.command_done());
    case Control::kProgress:
    case Control::kShardReport:
    case Control::kPaths:
    case Control::kCollectives:
    case Control::kProgramNote:
    case Control::kWorkerNote:
      return OnReport(*node, control);
    case Control::kMemoryFull:
      return OnMemoryFull(*node, Clip(control.memory_full().reason()));
    case Control::kFailure: {
      if (phase_ == Phase::kStopping) return;  // all results have arrived
      const auto cause = judge_.OnReport(now_, node, control.failure(), effects_);
      if (cause.has_value()) ReplaceOrFail(*cause);
      return;
    }
    default:
      return Fail(FailureOfNode(
          *node, absl::InvalidArgumentError(absl::StrCat("sent the scheduler a message of kind ",
                                                         static_cast<int>(control.body_case()),
                                                         ", which is not for it"))));
  }
}

void SchedulerCore::OnRegister(uint64_t connection, const tandem::Register& request) {
  if (phase_ == Phase::kFailing) return effects_->SendFailure(connection, failure_);
  if (HasEnded(phase_)) return;
  if (request.scheduler() != 0 && request.scheduler() != options_.incarnation) {
    return refusals_.Refuse(
        connection,
        absl::FailedPreconditionError("a process of an earlier attempt of the job; it must end"),
        effects_);
  }
  if (request.role() == Register::READER || request.role() == Register::AGENT) {
    return OnReader(connection, request);
  }
  const absl::StatusOr<Membership::Registration> registration =
      members_.Register(now_, connection, request);
  if (!registration.ok()) {
    // Send our job to a node that has a different one, so that its error can name the difference.
    if (request.job_hash() != plan_.hash) {
      Control control;
      *control.mutable_reader_welcome() = WelcomeTo(plan_, -1);
      effects_->SendOn(connection, std::move(control));
    }
    return refusals_.Refuse(connection, registration.status(), effects_);
  }
  const Node& node = *registration->node;
  if (registration->is_new) {
    effects_->Log(absl::StrCat(node.Name(), " registered from ", node.host));
    if (view_.number() == 0 && members_.complete()) PublishFirstView();
    if (replacements_.AddToView(&view_)) PublishView();
    return;
  }
  if (registration->reconnected) {
    effects_->Warn(absl::StrCat(node.Name(), " is back on a new connection"));
  }
  // A repeated registration on the same connection needs no answer: the View is on its way. A new
  // process in the place of another one may not be in the view yet.
  if (view_.number() > 0 && registration->reconnected && IsInView(node, view_)) Welcome(node);
}

// Sends a reader everything it needs, at each registration, since an earlier answer may have been
// lost.
void SchedulerCore::OnReader(uint64_t connection, const tandem::Register& request) {
  if (request.role() == Register::AGENT) {
    if (const absl::Status added = agents_.Add(connection, request); !added.ok()) {
      return refusals_.Refuse(connection, added, effects_);
    }
  }
  const absl::StatusOr<int> number = readers_.Add(connection);
  if (!number.ok()) return refusals_.Refuse(connection, number.status(), effects_);
  const auto tell = [&](const Control& control) { effects_->SendOn(connection, control); };
  Control control;
  *control.mutable_reader_welcome() = WelcomeTo(plan_, *number);
  control.mutable_reader_welcome()->set_run(options_.run);
  control.mutable_reader_welcome()->set_launch(options_.launch);
  control.mutable_reader_welcome()->set_out(options_.out);
  tell(control);
  if (view_.number() == 0) return;
  effects_->Log(absl::StrCat("reader ", *number, " registered"));
  effects_->sends.push_back({connection, view_message_});
  if (phase_ == Phase::kStarting) return;
  control.mutable_command()->set_kind(Command::START);
  control.mutable_command()->set_id(start_command_);
  tell(control);
  if (phase_ != Phase::kStopping) return;
  *control.mutable_command() = commands_.New(Command::STOP);
  tell(control);
}

// Sends a node everything that it may have missed: the view, START, commands that wait for its
// answer, STOP. A new process in the place of a worker gets the rest when all servers know it.
void SchedulerCore::Welcome(const Node& node) {
  effects_->SendTo(node, view_message_);
  if (phase_ == Phase::kStarting || replacements_.Awaits(node)) return;
  Control control;
  control.mutable_command()->set_kind(Command::START);
  control.mutable_command()->set_id(start_command_);
  effects_->SendTo(node, control);
  for (Command& command : commands_.Repeat(node)) {
    *control.mutable_command() = std::move(command);
    effects_->SendTo(node, control);
  }
  if (phase_ != Phase::kStopping) return;
  *control.mutable_command() = commands_.New(Command::STOP);
  effects_->SendTo(node, control);
}

void SchedulerCore::OnBarrierEnter(const Node& node, const BarrierEnter& enter) {
  const int rank = node.role == Role::kWorker && view_.number() > 0 ? node.index : -1;
  if (enter.action() == BarrierEnter::PAUSE_CHECKPOINTS && !plan_.job.train().has_keep_best()) {
    return Fail(FailureOfNode(
        node, absl::InvalidArgumentError(
                  "barrier that pauses checkpoints in a job without train.keep_best")));
  }
  absl::StatusOr<Barriers::Entry> entry = barriers_.Enter(now_, rank, enter);
  if (entry.ok() && enter.action() == BarrierEnter::CHECKPOINT && enter.may_fail()) {
    for (const int absent : checkpoints_.excused()) {
      if (*entry == Barriers::Entry::kWaiting) {
        entry = barriers_.EnterForAbsent(now_, absent, enter.name());
      }
    }
  }
  if (!entry.ok()) return Fail(FailureOfNode(node, entry.status()));
  if (*entry == Barriers::Entry::kComplete) CompleteBarrier(enter.name());
  if (*entry == Barriers::Entry::kReleased) {
    Control control;
    *control.mutable_barrier_release() = barriers_.Released(enter.name());
    effects_->SendTo(node, control);
  }
}

void SchedulerCore::OnCommandDone(Node* node, const CommandDone& done) {
  const bool is_view = done.id() > 0 && done.id() <= view_.number();
  if (!is_view && commands_.IsAnswered(done.id())) return;  // repeated after a reconnect
  if (done.code() != 0 && !checkpoints_.NoteFailure(*node, done)) {
    const std::string what =
        is_view ? absl::StrCat("view ", done.id()) : commands_.Describe(done.id());
    Failure failure = FailureOfNode(
        *node, absl::Status(CodeOf(done.code()), absl::StrCat(what, ": ", Clip(done.message()))));
    failure.set_memory_full(done.memory_full());
    failure.set_no_room(done.no_room());
    return Fail(failure);
  }
  if (is_view) return AcknowledgeView(node, static_cast<uint32_t>(done.id()));
  commands_.OnDone(*node, done.id());
  FinishCommands();
}

void SchedulerCore::OnReport(const Node& node, const Control& control) {
  const absl::Status added = reports_.Add(now_, node, control, effects_);
  if (!added.ok()) return Fail(FailureOfNode(node, added));
  if (control.has_progress()) {
    checkpoints_.OnStep(control.progress().step());
    replacements_.OnProgress(now_, node, control.progress(), effects_);
  }
  if (control.has_program_note())
    checkpoints_.OnAsked(node, control.program_note().checkpoints(), effects_);
  if (!control.has_shard_report()) return;
  if (control.shard_report().has_forgotten()) replacements_.OnForgotten(control.shard_report());
  commands_.OnReport(node.index, static_cast<int>(control.shard_report().shard()));
  FinishCommands();
}

void SchedulerCore::AcknowledgeView(Node* node, uint32_t number) {
  node->acknowledged_view = std::max(node->acknowledged_view, number);
  if (const Node* const started = replacements_.TakeStarted(now_)) Welcome(*started);
  if (phase_ != Phase::kStarting) return;
  const std::vector<Node>& nodes = members_.nodes();
  const bool all = std::all_of(nodes.begin(), nodes.end(),
                               [](const Node& n) { return n.acknowledged_view > 0; });
  if (all) StartJob();
}

// ---- connections ------------------------------------------------------------------------------

void SchedulerCore::OnLost(uint64_t connection, const std::string& why) {
  agents_.OnLost(connection);
  if (readers_.Remove(connection)) return;
  Node* const node = members_.Forget(connection);
  if (node == nullptr || node->gone) return;
  if (phase_ == Phase::kStopping || phase_ == Phase::kFailing) {
    node->gone = !node->connected;
    return CheckEnd();
  }
  if (!node->lost_since.has_value()) {
    node->lost_since = now_;
    node->lost_why = why;
    effects_->Warn(absl::StrCat(node->Name(), ": connection lost (", why, "), waiting ",
                                absl::FormatDuration(options_.times.reconnect_grace),
                                " for it to return"));
  }
  const absl::optional<Failure> cause = judge_.Check(now_);
  if (cause.has_value()) ReplaceOrFail(*cause);
}

void SchedulerCore::OnClosed(uint64_t connection) {
  agents_.OnClosed(connection);
  if (readers_.Remove(connection)) return;
  Node* const node = members_.Forget(connection);
  if (node == nullptr || node->gone || node->connected) return;
  if (phase_ == Phase::kStopping || phase_ == Phase::kFailing) {
    node->gone = true;
    return CheckEnd();
  }
  if (node->reported_failure && judge_.holds()) {  // the node has reported why it leaves
    node->gone = true;
    return;
  }
  ReplaceOrFail(DeathOf(node, "left before the end of the job"));
}

// The supervisor sees the end of a process sooner than its connections show it.
void SchedulerCore::OnExited(const SchedulerEvent& event) {
  if (phase_ != Phase::kRunning) return;
  const std::string how = Clip(event.text);
  if (const auto failure = replacements_.OnExited(event.rank, event.pid, how)) {
    return Fail(*failure);
  }
  Node* const node = members_.worker(event.rank);
  // The worker's report or its lost connection may have come before. The reported failure says
  // more.
  if (node == nullptr || node->pid != event.pid || node->gone || node->reported_failure) return;
  ReplaceOrFail(DeathOf(node, how));
}

// Ignores garbage from a stranger (a port scanner, a node of another job). Garbage from a member
// ends the job, since nothing that this member sends can be trusted.
void SchedulerCore::OnGarbage(uint64_t connection, const absl::Status& why) {
  const Node* const node = members_.ByConnection(connection);
  if (node != nullptr && !node->gone) {
    return Fail(FailureOfNode(
        *node, absl::InvalidArgumentError(absl::StrCat("sent garbage: ", Clip(why.message())))));
  }
  refusals_.Ignore(why, effects_);
}

// ---- requests of users and of the schedule ----------------------------------------------------

// Unlike a second signal, a second END changes nothing: two people or scripts may ask.
void SchedulerCore::OnUserRequest(uint64_t connection, const UserRequest& request) {
  UserAnswer answer;
  const bool ends = request.kind() == UserRequest::END || request.kind() == UserRequest::ABORT;
  if (request.kind() != UserRequest::CHECKPOINT && !ends) {
    answer = Answer(absl::StatusCode::kInvalidArgument,
                    absl::StrCat("a request of kind ", static_cast<int>(request.kind()),
                                 ", which this scheduler does not know"));
  } else if (ends ? phase_ > Phase::kRunning : phase_ != Phase::kRunning) {
    answer = Answer(absl::StatusCode::kFailedPrecondition,
                    absl::StrCat("the job is ", NameOf(phase_), ", expected: running"));
  } else if (request.kind() == UserRequest::CHECKPOINT) {
    answer = checkpoints_.Request(now_, options_.models.checkpoint_folder, effects_);
  } else if (request.kind() == UserRequest::ABORT) {
    Fail(FailureOf("scheduler", kStoppedByTool, absl::StatusCode::kCancelled));
    answer.set_text("the job ends at once");
  } else if (checkpoints_.ending() || checkpoints_.queue().closed()) {
    answer.set_text("the job makes its last checkpoint already");
  } else {
    const Node* const script = members_.ByConnection(connection);
    const std::string who = script == nullptr ? "tandem stop" : script->Name();
    OnEndRequest(script == nullptr ? kStoppedByTool : kEndedByScript, /*signal=*/false);
    const bool at_once = phase_ != Phase::kRunning;
    answer.set_text(at_once ? "the job ends at once" : "the job makes a checkpoint, then ends");
    if (!at_once) {
      effects_->Warn(absl::StrCat(who, script == nullptr ? "" : " has closed the job",
                                  ": making a checkpoint first"));
    }
  }
  Control control;
  *control.mutable_user_answer() = std::move(answer);
  effects_->SendOn(connection, std::move(control));
}

// A request of a signal, of a program or of the schedule: nobody waits for the answer.
void SchedulerCore::OnCheckpointRequest(const std::string& folder) {
  if (phase_ != Phase::kRunning) {
    return effects_->Warn("checkpoint request ignored: the job is not running");
  }
  const bool starts = checkpoints_.queue().empty() && !checkpoints_.queue().paused();
  const UserAnswer answer = checkpoints_.Request(now_, folder, effects_);
  if (answer.code() != 0) {
    return effects_->Warn(absl::StrCat("checkpoint request ignored: ", answer.text()));
  }
  if (!starts) effects_->Log(answer.text());
}

// The first request writes a checkpoint and then ends the job. A second request, or a job without a
// model folder, ends it at once. A job that a full server ends makes that checkpoint already.
void SchedulerCore::OnEndRequest(const std::string& why, bool signal) {
  if (signal) checkpoints_.room().OnSignal(now_);
  const bool first = !std::exchange(end_requested_, true);
  if (first && memory_full_.has_value()) {
    return effects_->Log("the job makes its last checkpoint already");
  }
  const std::string& folder = options_.models.checkpoint_folder;
  if (checkpoints_.ending() || phase_ != Phase::kRunning || folder.empty()) {
    return Fail(FailureOf("scheduler", why, absl::StatusCode::kCancelled));
  }
  checkpoints_.SetEnding(why);
  effects_->Notify(SchedulerNotice::Kind::kEnding, "", "");
  OnCheckpointRequest(folder);
}

// Ignored if the job already ends: the margin is then enough until the end, or the server fails.
void SchedulerCore::OnMemoryFull(const Node& node, const std::string& reason) {
  if (node.role != Role::kServer) {
    return Fail(FailureOfNode(
        node, absl::InvalidArgumentError("sent MemoryFull, expected only from servers")));
  }
  if (memory_full_.has_value() || phase_ != Phase::kRunning || checkpoints_.ending() ||
      checkpoints_.queue().closed()) {
    return;
  }
  Failure failure = FailureOf(node.Name(), reason, absl::StatusCode::kResourceExhausted);
  failure.set_memory_full(true);
  const std::string& folder = options_.models.checkpoint_folder;
  if (folder.empty()) return Fail(failure);
  effects_->Warn(absl::StrCat(node.Name(), ": ", reason, "; making a last checkpoint"));
  memory_full_ = std::move(failure);
  checkpoints_.SetEnding("the memory of a server");
  OnCheckpointRequest(folder);
}

void SchedulerCore::OnMoveRange(const SchedulerEvent& event) {
  // While a worker is replaced, the servers count its steps in the ranges that they have.
  if (replacements_.vacant()) return effects_->Log("move of a range ignored: a worker is replaced");
  const bool valid = phase_ == Phase::kRunning &&
                     event.range < static_cast<uint32_t>(view_.range_size()) && event.server >= 0 &&
                     event.server < plan_.servers() && event.shard >= 0 &&
                     event.shard < plan_.shards_per_server();
  if (!valid) {
    return effects_->Warn(absl::StrCat("move of range ", event.range, " to server ", event.server,
                                       " shard ", event.shard,
                                       " ignored: no such range or shard, or not running"));
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
  effects_->SendTo(*members_.server(old_owner), control);
}

// ---- views, commands, barriers ----------------------------------------------------------------

void SchedulerCore::PublishFirstView() {
  members_.Number();
  for (const Node& node : members_.nodes()) {
    *(node.role == Role::kServer ? view_.add_server() : view_.add_worker()) = node.AsMember();
  }
  view_.set_coordinator(options_.coordinator);
  view_.set_run(options_.run);
  view_.set_init_from(options_.models.init_from);
  for (const std::string& table : options_.models.only_tables) view_.add_only_table(table);
  view_.set_checkpoint_folder(options_.models.checkpoint_folder);
  view_.set_resume(options_.models.resume);
  view_.set_attempt(static_cast<int32_t>(options_.models.attempt));
  for (RangeInfo& range : DealRanges(plan_)) *view_.add_range() = std::move(range);
  phase_ = Phase::kStarting;
  phase_since_ = now_;
  PublishView();
}

void SchedulerCore::PublishView() {
  view_.set_number(view_.number() + 1);
  Control control;
  *control.mutable_view() = view_;
  view_message_ = std::make_shared<const Control>(std::move(control));
  effects_->SendToAll(members_.nodes(), readers_, view_message_);
  effects_->Log(absl::StrCat("view ", view_.number(), ": ", members_.servers(), " servers, ",
                             members_.workers(), " workers, ", view_.range_size(), " ranges"));
}

void SchedulerCore::StartJob() {
  phase_ = Phase::kRunning;
  phase_since_ = now_;
  reports_.Start(now_, options_.trains_since);
  checkpoints_.Start(now_);
  for (Node& node : members_.nodes()) node.moved_at = node.step_at = now_;
  Control control;
  *control.mutable_command() = commands_.New(Command::START);
  start_command_ = control.command().id();
  effects_->SendToAll(members_.nodes(), readers_, control);
  effects_->Notify(SchedulerNotice::Kind::kStarted, "", "")->seconds =
      reports_.book().Seconds(now_);
}

// All parties are in the barrier: performs its action. An action that needs the servers sends them
// a command, and their last answer releases the barrier (FinishCommand). Other barriers are
// released at once. The parties wait in the barrier meanwhile, so their state cannot change under
// the action. The CHECKPOINT barrier of a requested checkpoint is an exception: training continues.
//
// Requested checkpoints come first: a barrier that closes or pauses them waits until the queue is
// empty, and is completed again then. A checkpoint in progress still needs all workers, at barriers
// of its own, so none may pass the end of the job before.
void SchedulerCore::CompleteBarrier(const std::string& name) {
  Barrier& barrier = barriers_.open().at(name);
  // FINISH_DELAYED closes the queue, too. A checkpoint contains rows and, beside them, the updates
  // that policies hold back. Those must not be applied while a checkpoint is in progress, and no
  // checkpoint may begin afterwards.
  const bool closes = barrier.action == BarrierEnter::LAST_CHECKPOINT ||
                      barrier.action == BarrierEnter::END ||
                      barrier.action == BarrierEnter::FINISH_DELAYED;
  // FinishCommand will complete it again
  if (closes && checkpoints_.queue().CloseFor(name)) return;
  // A further try for want of room finds the queue paused.
  const bool pauses =
      barrier.action == BarrierEnter::PAUSE_CHECKPOINTS && !checkpoints_.queue().paused();
  if (pauses && checkpoints_.queue().PauseFor(name)) return;  // likewise
  if (IsMark(barrier.action)) {
    const bool waits = checkpoints_.room().waiting();
    if (waits && checkpoints_.room().Holds(now_, name, barrier,
                                           CheckpointBytes(plan_, reports_.shards()), effects_)) {
      return;  // OnTick will complete it again
    }
    const int64_t attempt = options_.models.attempt;
    return CommandServers(checkpoints_.Mark(options_.run, attempt, &barrier), name);
  }
  switch (barrier.action) {
    case BarrierEnter::CHECKPOINT:
      return CommandServers(checkpoints_.Write(barrier), name);
    case BarrierEnter::FINISH_DELAYED:
      return CommandServers(commands_.New(Command::FINISH_DELAYED), name);
    case BarrierEnter::END:
      return CommandServers(commands_.New(Command::REPORT), name);
    default:
      return ReleaseBarrier(name);
  }
}

void SchedulerCore::CommandServers(const Command& command, const std::string& barrier) {
  commands_.Await(now_, command, members_.servers(), plan_.shards_per_server(), /*workers=*/0,
                  barrier);
  Control control;
  *control.mutable_command() = command;
  for (int server = 0; server < members_.servers(); ++server) {
    effects_->SendTo(*members_.server(server), control);
  }
  FinishCommands();  // finishes it at once if there are no servers
}

// Does what has waited for commands that all nodes have answered. A command of a barrier releases
// the barrier. The REPORT of a requested end stops the job. CHECKPOINT to the workers ends a
// checkpoint; then follows, in this order, the requested end of the job, the next requested
// checkpoint, or a barrier that has waited for the checkpoints to end.
void SchedulerCore::FinishCommands() {
  for (auto done = commands_.TakeAnswered(); done.has_value(); done = commands_.TakeAnswered()) {
    const Command::Kind kind = done->command.kind();
    if (!done->barrier.empty()) {
      ReleaseBarrier(done->barrier);
    } else if (done->command.id() == last_report_) {
      if (memory_full_.has_value()) return Fail(*memory_full_);
      StopJob();
    } else if (kind == Command::FORGET_WORKER) {
      if (const auto failure = replacements_.OnServersAnswered()) return Fail(*failure);
      if (replacements_.AddToView(&view_)) PublishView();
    } else if (kind == Command::CHECKPOINT) {
      checkpoints_.Finish(now_, effects_);
      if (done->command.hold()) {
        // The workers take no more steps. So later checkpoints, and barriers that waited for this
        // one, are not needed any more.
        const Command report = commands_.New(Command::REPORT);
        last_report_ = report.id();
        CommandServers(report, "");
      } else if (!checkpoints_.queue().empty()) {
        checkpoints_.Ask(now_, effects_);
      } else if (const std::string waiting = checkpoints_.queue().TakeBarrier(); !waiting.empty()) {
        CompleteBarrier(waiting);
      }
    }
  }
}

// Releases the barrier to the workers that have entered it. At a mark, keeps the run record as it
// is now: no worker trains until the release, so the record fits the checkpoint. In jobs with a
// quorum, workers finish late sums after the mark and train only after the CHECKPOINT barrier, so
// the record is made there. For a CHECKPOINT barrier, notes how it went before the barrier is
// forgotten, and gives rank 0 the record. If a disk is full, and the job depends on the checkpoint,
// the workers are told to try again.
void SchedulerCore::ReleaseBarrier(const std::string& name) {
  Barrier& barrier = barriers_.open().at(name);
  const std::vector<bool> entered = barrier.entered;
  const bool end = barrier.action == BarrierEnter::END;
  const bool checkpoints = barrier.action == BarrierEnter::CHECKPOINT;
  const bool commits = barrier.action == BarrierEnter::COMMITTED;
  if (checkpoints || commits) checkpoints_.OnBarrier(barrier);
  RoomWait& room = checkpoints_.room();
  const bool waited = room.waiting();
  if (barrier.no_room && checkpoints_.DependsOn(barrier)) {
    barrier.again = room.TryAgain(now_, barrier);
    if (!barrier.again && !barrier.may_fail) return Fail(checkpoints_.NoRoom(barrier));
  }
  const bool committed = commits && barrier.failure.empty();
  if (committed) room.End(now_, effects_);
  // Programs may write to KEY_VALUE tables, and must not while the job waits.
  if (room.waiting() != waited && HasStore(plan_)) {
    Command refuse = commands_.New(Command::REFUSE_WRITES);
    if (!waited) refuse.set_reason("the job waits for room for a checkpoint; hint: write later");
    CommandServers(refuse, "");
  }
  const bool makes_record = checkpoints ? job::SumsByQuorum(plan_.job) : IsMark(barrier.action);
  if (makes_record) {
    checkpoints_.OnMark(Serialize(reports_.Record(now_)), barrier.action == BarrierEnter::MARK);
  }
  // All other barriers are at the ends of epochs and in evaluations.
  if (!checkpoints && barrier.action != BarrierEnter::MARK) reports_.book().ForgetPlaces();
  const std::string record = checkpoints ? checkpoints_.record() : "";
  Control control;
  *control.mutable_barrier_release() = barriers_.Release(name, record);
  for (size_t rank = 0; rank < entered.size(); ++rank) {
    if (entered[rank]) effects_->SendTo(*members_.worker(static_cast<int>(rank)), control);
    control.mutable_barrier_release()->clear_record();  // only rank 0 needs it
  }
  reports_.OnRelease(control.barrier_release(), effects_);
  if (end) StopJob();
  if (committed && checkpoints_.queue().paused() && checkpoints_.Resume(now_, effects_))
    checkpoints_.Ask(now_, effects_);
}

void SchedulerCore::StopJob() {
  reports_.End(now_, effects_);
  report_ = reports_.Total(now_);
  report_.attempts = options_.models.attempt;
  if (last_report_ != 0) report_.stop.emplace(checkpoints_.Last());
  effects_->Notify(SchedulerNotice::Kind::kEnding, "", "");
  phase_ = Phase::kStopping;
  phase_since_ = now_;
  judge_.Drop();
  Control control;
  *control.mutable_command() = commands_.New(Command::STOP);
  effects_->SendToAll(members_.nodes(), readers_, control);
}

// ---- time and endings -------------------------------------------------------------------------

void SchedulerCore::OnTick() {
  if (phase_ == Phase::kStopping || phase_ == Phase::kFailing) return CheckEnd();
  if (HasEnded(phase_)) return;
  const absl::optional<Failure> cause = CheckTime();
  if (cause.has_value()) return ReplaceOrFail(*cause);
  if (phase_ != Phase::kRunning) return;
  if (const auto failure = replacements_.Check(now_)) return Fail(*failure);
  const std::string due = checkpoints_.room().TakeDue(now_, effects_);
  if (!due.empty()) CompleteBarrier(due);
  reports_.Tick(now_, effects_);
  if (checkpoints_.Due(now_)) OnCheckpointRequest(options_.models.checkpoint_folder);
  const bool busy = members_.servers() == 0 || commands_.ServersAreBusy();
  if (reports_.AskShards(now_, busy)) CommandServers(commands_.New(Command::REPORT), "");
}

// The failure that ends the job, if something has lasted too long. The order says which node is
// named. Deaths come before overdue acknowledgements and commands, and before stalls, since a dead
// node explains those. A failure that a node has reported comes right after deaths, since it
// explains them too. Only while nodes still register does the overdue registration come first:
// before the first view nobody waits for anything else.
absl::optional<Failure> SchedulerCore::CheckTime() {
  absl::optional<Failure> cause;
  if (phase_ == Phase::kRegistering) {
    cause = overdue_.CheckRegistration(now_, *first_step_, effects_);
  }
  if (!cause.has_value()) cause = life_.Check(now_, effects_);
  if (!cause.has_value()) cause = judge_.Check(now_);
  if (!cause.has_value() && phase_ == Phase::kStarting) {
    cause = overdue_.CheckAcknowledgements(now_, phase_since_, effects_);
  }
  if (cause.has_value() || phase_ != Phase::kRunning) return cause;
  overdue_.CheckBarriers(now_, effects_);
  cause = overdue_.CheckCommands(now_, effects_);
  // Others may wait for a worker that is replaced.
  if (cause.has_value() || replacements_.vacant()) return cause;
  return stalls_.Check(now_, effects_);
}

// A worker that has died may be replaced. A checkpoint that the worker has marked continues without
// it: the others' barrier may be complete now, and the request may be answered.
void SchedulerCore::ReplaceOrFail(const Failure& cause) {
  if (const auto failure = replacements_.OnFailure(cause)) return Fail(*failure);
  const bool running = phase_ == Phase::kRunning && !checkpoints_.ending();
  const int rank = replacements_.Begin(now_, running, cause, effects_);
  if (rank < 0) return Fail(cause);
  judge_.Drop();  // only the dead worker has reported a failure
  std::string complete;
  for (const auto& [name, barrier] : barriers_.open()) {
    if (barrier.absent_may_be_replaced) continue;  // waits for the new process
    // At most one is left: that of the checkpoint.
    const auto entry = barriers_.EnterForAbsent(now_, rank, name);
    if (entry == Barriers::Entry::kComplete) complete = name;
  }
  if (!complete.empty()) CompleteBarrier(complete);
  FinishCommands();
}

void SchedulerCore::Fail(const Failure& failure) {
  if (phase_ == Phase::kFailing || phase_ == Phase::kStopping || HasEnded(phase_)) return;
  if (phase_ == Phase::kRunning) {
    report_ = reports_.Total(now_);
    report_.attempts = options_.models.attempt;
  }
  const Phase phase_before = std::exchange(phase_, Phase::kFailing);
  phase_since_ = now_;
  judge_.Drop();
  failure_ = failure;
  if (!options_.models.resume) failure_.clear_damaged_checkpoint();
  agents_.NameCause(members_, &failure_);
  if (memory_full_.has_value()) failure_ = *memory_full_;  // whatever came after it
  if (IsRequestedEnd(failure_.reason())) {
    report_.stop.emplace(
        JobReport::Stop{checkpoints_.Last().checkpointed_step, /*failure=*/"", failure_.reason()});
  }
  if (failure_.memory_full()) failure_.set_reason(checkpoints_.WithWaysOut(failure_.reason()));
  const bool comes_again = ComesAgain(failure_) || checkpoints_.ending() ||
                           checkpoints_.room().gave_up() ||
                           (phase_before == Phase::kRegistering &&
                            CodeOf(failure_.code()) == absl::StatusCode::kDeadlineExceeded);
  const bool attempts_left = options_.restarts_left > 0 || now_ >= options_.restarts_from;
  // An attempt that could not load its checkpoint does not count.
  const bool loads_another = !failure_.damaged_checkpoint().empty();
  failure_.set_last_attempt(!loads_another && (comes_again || !attempts_left));
  Control control;
  *control.mutable_failure() = failure_;
  const bool resumable = checkpoints_.Last().checkpointed_step >= 0 || options_.models.resume;
  if (options_.by_hand && resumable) {
    control.mutable_failure()->set_reason(
        absl::StrCat(failure_.reason(), "; continue with --resume ", options_.out));
  }
  effects_->SendToAll(members_.nodes(), readers_, control);
  effects_->Log(absl::StrCat("the job fails: ", failure_.node(), ": ", failure_.reason()));
  SchedulerNotice* const notice =
      effects_->Notify(SchedulerNotice::Kind::kFailed, failure_.node(), failure_.reason());
  notice->code = static_cast<absl::StatusCode>(failure_.code());
  notice->diverged = failure_.diverged();
  notice->comes_again = comes_again;
  notice->no_room = failure_.no_room();
  notice->damaged_checkpoint = failure_.damaged_checkpoint();
  notice->step = failure_.has_step() ? failure_.step() : -1;
  CheckEnd();
}

void SchedulerCore::CheckEnd() {
  if (phase_ != Phase::kStopping && phase_ != Phase::kFailing) return;
  const std::vector<Node>& nodes = members_.nodes();
  std::vector<std::string> left;
  for (const Node& node : nodes) {
    // A node that lost its connection before STOP may come back to receive it.
    const bool returns = phase_ == Phase::kStopping && node.lost_since.has_value();
    if ((node.connected || returns) && !node.gone) left.push_back(node.Name());
  }
  const bool patient = now_ - phase_since_ < options_.times.close_bound;
  if (!left.empty() && patient) return;
  if (!left.empty())
    effects_->Warn(absl::StrCat("still connected at the end: ", absl::StrJoin(left, ", ")));
  if (phase_ == Phase::kFailing) {
    phase_ = Phase::kFailed;
    return;
  }
  phase_ = Phase::kFinished;
  effects_->Notify(SchedulerNotice::Kind::kFinished, "", "");
}

}  // namespace tandem::scheduler
