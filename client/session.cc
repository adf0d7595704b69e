#include "client/session.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "node/job_token.h"
#include "node/role_flags.h"
#include "node/transport_choice.h"
#include "transport/zmq_transport.h"

namespace tandem::client {
namespace {

constexpr absl::Duration kRound = absl::Milliseconds(50);
constexpr absl::Duration kEnterAgain = absl::Seconds(1);
constexpr absl::Duration kLinger = absl::Seconds(1);

}  // namespace

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const std::string& scheduler) {
  Options options;
  options.scheduler = scheduler;
  return Open(options);
}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(const Options& options) {
  std::unique_ptr<Session> session(new Session(options));
  TANDEM_RETURN_IF_ERROR(session->Start());
  return session;
}

// Opens in three steps. The scheduler first sends the job to a reader: a rank needs the job's hash
// to register, so it registers only then. Rows are read and written last, once the job has begun
// and a view says where the shards are.
absl::Status Session::Start() {
  const absl::Time deadline = MonotonicNow() + options_.open_within;
  incarnation_ = node::NewIncarnation();
  TANDEM_ASSIGN_OR_RETURN(keys_, node::FindKeys(/*folder=*/""));
  zmq_ = std::make_shared<transport::ZmqContext>(/*io_threads=*/1);
  TANDEM_RETURN_IF_ERROR(NewMember(Register::READER));
  TANDEM_RETURN_IF_ERROR(
      RoundsUntil(deadline, "no answer from the scheduler", [this] { return welcome_; }));
  if (options_.rank.has_value()) TANDEM_RETURN_IF_ERROR(NewMember(Register::WORKER));
  TANDEM_RETURN_IF_ERROR(RoundsUntil(deadline, "the job has not begun", [this] { return begun_; }));
  TANDEM_RETURN_IF_ERROR(MakeClient());
  thread_ = std::thread([this] { Follow(); });
  return absl::OkStatus();
}

Session::~Session() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::unique_ptr<transport::Transport>> Session::NewControlEndpoint() const {
  transport::ZmqOptions zmq;
  zmq.context = zmq_;
  zmq.bind = options_.bind;
  zmq.incarnation = incarnation_;
  zmq.keys = keys_;
  zmq.encrypted = false;
  zmq.encrypted_peer = options_.scheduler;
  zmq.linger = kLinger;
  const job::SilenceTimes silence(plan_.job);  // the default before the job is known
  zmq.silence_timeout = silence.connection;
  zmq.heartbeat_interval = silence.heartbeat;
  return transport::NewZmqTransport(zmq);
}

absl::Status Session::NewMember(Register::Role role) {
  role_ = role;
  member_.reset();
  TANDEM_ASSIGN_OR_RETURN(transport_, NewControlEndpoint());
  node::NodeSession::Options options;
  options.role = role;
  options.incarnation = incarnation_;
  options.scheduler = options_.scheduler;
  options.silence = job::SilenceTimes(plan_.job);
  if (role == Register::WORKER) {
    options.index = *options_.rank;
    options.job_hash = plan_.hash;
    options.endpoints = {transport_->address()};
    options.make_transport = [this](EndpointId) { return NewControlEndpoint(); };
  }
  begun_ = false;
  member_ = std::make_unique<node::NodeSession>(*transport_, std::move(options));
  return member_->Start();
}

absl::Status Session::MakeClient() {
  node::RoleFlags network;
  network.bind = options_.bind;
  network.scheduler = options_.scheduler;
  network.keys = keys_;
  network.encrypt_all = plan_.job.security().encrypt() == Security::ALL;
  network.silence = job::SilenceTimes(plan_.job);
  Client::Options client;
  client.self = self_;
  client.incarnation = incarnation_;
  client.max_in_flight = options_.max_in_flight;
  client.deadline = options_.deadline;
  client.core.resend_after = network.silence.resend;
  client.core.silence_limit = network.silence.shard;
  TANDEM_ASSIGN_OR_RETURN(auto transport,
                          node::EndpointFactory(network, plan_.serving(), incarnation_,
                                                std::make_shared<transport::PathLog>())(self_));
  TANDEM_ASSIGN_OR_RETURN(client_, Client::New(plan_, std::move(transport), client));
  return client_->SetView(view_);
}

// ---- messages of the scheduler
// -------------------------------------------------------------------

template <typename Over>
absl::Status Session::RoundsUntil(absl::Time deadline, const char* what, Over over) {
  while (!over()) {
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(options_.scheduler, ": ", what, " within ",
                                                      absl::FormatDuration(options_.open_within)));
    }
    TANDEM_RETURN_IF_ERROR(Round());
    if (ended_) return absl::CancelledError("the job has ended");
  }
  return absl::OkStatus();
}

absl::Status Session::Round() {
  events_.clear();
  transport_->Poll(kRound, &events_);
  const absl::Time now = MonotonicNow();
  for (const transport::TransportEvent& event : events_) member_->OnEvent(now, event);
  member_->progress().Advance(0);
  if (client_ != nullptr && role_ == Register::WORKER) {
    std::string waiting = client_->Waiting();
    member_->progress().SetActivity(
        {waiting.empty() ? "runs its program" : std::move(waiting), {}});
  }
  for (const Control& control : member_->TakeInbox()) {
    TANDEM_RETURN_IF_ERROR(OnControl(control));
  }
  // After an orderly end the scheduler closes the connection, which is no failure then.
  return ended_ ? absl::OkStatus() : member_->OnTick(now);
}

absl::Status Session::OnControl(const Control& control) {
  if (control.has_reader_welcome() && !welcome_) return TakePlan(control.reader_welcome());
  if (control.has_view()) return OnView(control.view());
  const Command& command = control.command();
  if (command.kind() == Command::CHECKPOINT) {
    member_->link().SendDone(
        command.id(),
        absl::UnimplementedError("a rank that is a session (client/session.h) takes no part in "
                                 "checkpoints; hint: use tandem-worker or the Python package"));
  }
  begun_ = begun_ || command.kind() == Command::START;
  ended_ = ended_ || command.kind() == Command::STOP;
  return absl::OkStatus();
}

absl::Status Session::TakePlan(const ReaderWelcome& welcome) {
  TANDEM_ASSIGN_OR_RETURN(const Job job, job::ParseJob(welcome.job(), options_.scheduler, {}));
  TANDEM_ASSIGN_OR_RETURN(plan_, job::Resolve(job));
  if (plan_.hash != welcome.job_hash()) {
    return absl::FailedPreconditionError(
        absl::StrCat(options_.scheduler,
                     ": this program reads the scheduler's job differently; hint: use the same "
                     "version of Tandem"));
  }
  if (options_.rank.has_value() && plan_.workers_serve) {
    return absl::FailedPreconditionError(
        absl::StrCat(options_.scheduler,
                     ": the job has tables on workers, which a session cannot "
                     "hold; run tandem-worker as rank ",
                     *options_.rank, ", or give the tables placement: SERVERS"));
  }
  self_ = EndpointId::Reader(welcome.reader());
  member_->link().set_self(self_);
  welcome_ = true;
  return absl::OkStatus();
}

absl::Status Session::OnView(const View& view) {
  view_ = view;
  if (role_ == Register::WORKER) {
    TANDEM_ASSIGN_OR_RETURN(const int rank, member_->FindSelf(view));
    self_ = EndpointId::Worker(rank);
  }
  if (client_ != nullptr) TANDEM_RETURN_IF_ERROR(client_->SetView(view));
  member_->link().SendDone(view.number(), absl::OkStatus());
  return absl::OkStatus();
}

// The session's own thread after Open: keeps the membership alive, follows views, and enters the
// barrier "end" once Finish() was called, every second until the job has ended.
void Session::Follow() {
  absl::Time next_enter = absl::InfinitePast();
  absl::Status why;
  while (why.ok()) {
    why = Round();
    if (why.ok() && ended_) why = absl::CancelledError("the job has ended");
    absl::MutexLock lock(&mutex_);
    if (closing_) break;
    if (!finish_ || MonotonicNow() < next_enter) continue;
    next_enter = MonotonicNow() + kEnterAgain;
    Control control;
    control.mutable_barrier_enter()->set_name("end");
    control.mutable_barrier_enter()->set_parties(plan_.workers());
    control.mutable_barrier_enter()->set_action(BarrierEnter::END);
    member_->link().Send(control);
  }
  // Close the connection: the scheduler of an ended job waits until all ranks have done so.
  member_.reset();
  transport_.reset();
  if (why.ok()) return;
  client_->Fail(why);
  absl::MutexLock lock(&mutex_);
  status_ = why;
  ended_well_ = ended_;
  changed_.SignalAll();
}

// ---- callers ------------------------------------------------------------------------------------

const job::TablePlan* Session::FindTable(absl::string_view name) const {
  for (const job::TablePlan& table : plan_.tables) {
    if (table.name == name) return &table;
  }
  return nullptr;
}

size_t Session::RowFloats(absl::string_view table) const {
  const job::TablePlan* const plan = FindTable(table);
  return plan == nullptr ? 0 : static_cast<size_t>(plan->dim);
}

absl::Status Session::Read(absl::string_view table, absl::Span<const uint64_t> ids,
                           absl::Span<float> rows, absl::Duration within) {
  const job::TablePlan* const plan = FindTable(table);
  if (plan == nullptr) {
    return absl::NotFoundError(absl::StrCat("the job has no table '", table, "'"));
  }
  return client_->Read(plan->id, ids, rows, within).status();
}

absl::Status Session::status() const {
  absl::MutexLock lock(&mutex_);
  return status_;
}

absl::Status Session::Finish() {
  if (!options_.rank.has_value()) {
    return absl::FailedPreconditionError(
        "a reader cannot finish, because nobody waits for it; only a rank can");
  }
  absl::MutexLock lock(&mutex_);
  finish_ = true;
  while (status_.ok()) changed_.Wait(&mutex_);
  return ended_well_ ? absl::OkStatus() : status_;
}

}  // namespace tandem::client
