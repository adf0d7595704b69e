#include "node/node_session.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/exhaustion.h"
#include "base/status_macros.h"
#include "job/job.h"
#include "job/resume_check.h"
#include "node/log.h"
#include "node/network_check.h"

namespace tandem::node {
namespace {

constexpr absl::Duration kStopGrace = absl::Seconds(1);
constexpr absl::Duration kReportLeaves = absl::Milliseconds(200);
// without an answer; the scheduler may still come
constexpr absl::Duration kSayNoAnswer = absl::Seconds(5);

// The name until a view gives one. `index`: the requested index; -1: any.
EndpointId FirstName(Register::Role role, int index) {
  switch (role) {
    case Register::SERVER:
      return EndpointId::Shard(std::max(index, 0), 0);
    case Register::WORKER:
      return EndpointId::Worker(std::max(index, 0));
    default:
      return EndpointId::Reader(0);
  }
}

NodeLink::Options LinkOptions(const NodeSession::Options& options) {
  char host[256] = "";
  (void)gethostname(host, sizeof host - 1);
  NodeLink::Options link;
  link.scheduler = options.scheduler;
  link.self = FirstName(options.role, options.index);
  link.why_no_answer = WhyNoAnswer;
  link.answers_as_zmq = AnswersAsZmq;
  link.registration.set_role(options.role);
  link.registration.set_index(options.index);
  link.registration.set_incarnation(options.incarnation);
  for (const std::string& endpoint : options.endpoints) link.registration.add_endpoint(endpoint);
  link.registration.set_pid(getpid());
  link.registration.set_host(host);
  link.registration.set_driver(getppid());
  link.registration.set_job_hash(options.job_hash);
  if (options.job != nullptr) {
    link.found_within = absl::Seconds(options.job->limits().startup_timeout_seconds());
  }
  link.lost_after = options.silence.death;
  return link;
}

// The first few differences from the job `text` to `own`: "table[0].dim: 8 -> 4".
std::string Differences(const std::string& text, const Job& own) {
  constexpr size_t kMax = 5;
  const absl::StatusOr<Job> theirs = job::ParseJob(text, "the scheduler's job", {});
  if (!theirs.ok()) return "";
  std::vector<std::string> lines = job::AllDifferences(*theirs, own);
  if (lines.size() > kMax) {
    lines.resize(kMax);
    lines.push_back("...");
  }
  return absl::StrJoin(lines, ", ");
}

}  // namespace

NodeSession::NodeSession(transport::Transport& transport, Options options)
    : transport_(transport),
      options_(std::move(options)),
      self_(FirstName(options_.role, options_.index)),
      link_(transport, LinkOptions(options_)) {
  progress_.SetActivity({"registering", EndpointId()});
}

absl::Status NodeSession::Start() {
  TANDEM_RETURN_IF_ERROR(link_.Start(MonotonicNow()));
  say_no_answer_ = MonotonicNow() + kSayNoAnswer;
  if (IsProgramOfOurs()) {
    Log(options_.role == Register::SERVER ? "server" : "worker", options_.index)
        .Info(absl::StrCat("asks the scheduler at ", options_.scheduler, " to join"));
  }
  if (options_.make_transport == nullptr) return absl::OkStatus();
  std::vector<const LoopProgress*> loops = {&progress_};
  loops.insert(loops.end(), options_.loops.begin(), options_.loops.end());
  beats_ = std::make_unique<BeatThread>(
      [make = options_.make_transport, self = self_] { return make(self); }, options_.scheduler,
      self_, options_.incarnation, std::move(loops), options_.silence.heartbeat);
  return absl::OkStatus();
}

// The scheduler sends its job to a node that has a different one. The node does not fail by that
// itself, but keeps the differences for the error that the scheduler sends next.
void NodeSession::OnEvent(absl::Time now, const transport::TransportEvent& event) {
  link_.OnEvent(now, event, &inbox_);
  if (options_.job == nullptr) return;
  const auto other = [](const Control& control) { return control.has_reader_welcome(); };
  for (const Control& control : inbox_) {
    if (!other(control)) continue;
    differences_ = Differences(control.reader_welcome().job(), *options_.job);
  }
  inbox_.erase(std::remove_if(inbox_.begin(), inbox_.end(), other), inbox_.end());
}

absl::Status NodeSession::OnTick(absl::Time now) {
  link_.OnTick(now);
  if (now >= say_no_answer_) {
    say_no_answer_ = absl::InfiniteFuture();
    if (!link_.heard() && IsProgramOfOurs()) {
      Log(options_.role == Register::SERVER ? "server" : "worker", options_.index)
          .Warning(absl::StrCat("no answer yet from the scheduler at ", options_.scheduler, ": ",
                                WhyNoAnswer(options_.scheduler)));
    }
  }
  if (options_.stop != nullptr && options_.stop->load() && stopped_.ok()) {
    stopped_ = absl::CancelledError("stopped by a signal");
    give_up_ = in_view_ ? now + kStopGrace : now;
    link_.ReportOwnFailure(stopped_, absl::nullopt);
  }
  const absl::Status& failure = link_.failure();
  if (!failure.ok() && !differences_.empty()) {
    return absl::Status(
        failure.code(),
        absl::StrCat(failure.message(),
                     "; changes from the scheduler's job to this one: ", differences_));
  }
  TANDEM_RETURN_IF_ERROR(failure);
  return now >= give_up_ ? stopped_ : absl::OkStatus();
}

std::vector<Control> NodeSession::TakeInbox() { return std::exchange(inbox_, {}); }

absl::StatusOr<int> NodeSession::FindSelf(const View& view) {
  const bool server = options_.role == Register::SERVER;
  const auto& members = server ? view.server() : view.worker();
  for (int i = 0; i < members.size(); ++i) {
    if (members[i].incarnation() != options_.incarnation) continue;
    if (!in_view_ && IsProgramOfOurs()) {
      Log(server ? "server" : "worker", i)
          .Info(absl::StrCat("ready: all nodes have joined, ", view.server_size(),
                             " server(s) and ", view.worker_size(), " worker(s)"));
    }
    in_view_ = true;
    self_ = server ? EndpointId::Shard(i, 0) : EndpointId::Worker(i);
    link_.set_self(self_);
    return i;
  }
  return absl::InternalError(absl::StrCat("view ", view.number(), " does not contain this ",
                                          server ? "server" : "worker"));
}

absl::Status NodeSession::RunLoop(const std::function<absl::Status()>& loop) {
  bool returned = false;
  const absl::Status ended = CatchExceptions([&] {
    absl::Status status = loop();
    returned = true;
    return status;
  });
  return returned ? ended : Fail(ended);
}

absl::Status NodeSession::Fail(absl::Status why, absl::optional<EndpointId> culprit) {
  if (culprit.has_value()) {
    link_.ReportFailure(why, *culprit);
  } else {
    absl::optional<int64_t> step;
    if (options_.role == Register::WORKER) step = static_cast<int64_t>(progress_.step());
    link_.ReportOwnFailure(why, step);
  }
  std::vector<transport::TransportEvent> events;
  transport_.Poll(kReportLeaves, &events);
  return why;
}

}  // namespace tandem::node
