#include "scheduler/scheduler_shell.h"

#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "collectives/meeting/coordinator.h"
#include "node/log.h"
#include "scheduler/output_files.h"
#include "scheduler/summary.h"
#include "transport/zmq_transport.h"

namespace tandem::scheduler {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kLinger = absl::Seconds(1);  // at the end, for nodes that do not read
constexpr size_t kMaxUnsentFrames = 1024;             // per peer, beyond the transport's own queue

class Shell {
 public:
  Shell(const SchedulerOptions& options, transport::Transport& transport,
        absl::string_view transport_name, const std::string& coordinator)
      : options_(options),
        transport_(transport),
        transport_name_(transport_name),
        core_(options.plan, {options.times, coordinator, options.incarnation, options.models}) {}

  absl::Status Run() {
    if (!options_.out_dir.empty()) {
      TANDEM_ASSIGN_OR_RETURN(metrics_, LineFile::Create(options_.out_dir, "metrics.jsonl"));
    }
    if (!options_.out_dir.empty()) {  // for programs that want to read rows
      TANDEM_RETURN_IF_ERROR(
          WriteFileAtomically(options_.out_dir + "/address", transport_.address() + "\n"));
    }
    Emit({{"event", "address"}, {"address", transport_.address()}});
    if (options_.save != nullptr) save_seen_ = *options_.save;
    while (!core_.done()) Round();
    return Finish();
  }

 private:
  std::string ModelDir() const { return absl::StrCat(options_.out_dir, "/model"); }

  void Round() {
    events_.clear();
    transport_.Poll(kTick, &events_);
    for (transport::TransportEvent& event : events_) OnTransport(event);
    CheckFlags();
    if (const absl::Time now = MonotonicNow(); now >= next_tick_) {
      next_tick_ = now + kTick;
      StepCore(SchedulerEvent());
    }
  }

  // Signals reach us as flags; each abort or save is told to the core once.
  void CheckFlags() {
    SchedulerEvent event;
    if (options_.abort != nullptr && *options_.abort && !aborted_) {
      aborted_ = true;
      event.kind = SchedulerEvent::Kind::kAbort;
      event.text = "interrupted";
      StepCore(event);
    }
    const int saves = options_.save == nullptr ? save_seen_ : options_.save->load();
    if (saves != save_seen_) {
      save_seen_ = saves;
      if (options_.out_dir.empty()) {
        return Emit(
            {{"event", "log"},
             {"text", "a save was asked for, but there is no folder for it: start with --out"}});
      }
      event.kind = SchedulerEvent::Kind::kSave;
      event.text = ModelDir();
      StepCore(event);
    }
  }

  void OnTransport(const transport::TransportEvent& from) {
    SchedulerEvent event;
    event.connection = from.peer;
    event.why = from.why;
    switch (from.kind) {
      case transport::TransportEvent::Kind::kWritable:
        return Flush(from.peer);
      case transport::TransportEvent::Kind::kPeerLost:
        unsent_.erase(from.peer);
        event.kind = SchedulerEvent::Kind::kLost;
        break;
      case transport::TransportEvent::Kind::kPeerClosed:
        unsent_.erase(from.peer);
        event.kind = SchedulerEvent::Kind::kClosed;
        break;
      case transport::TransportEvent::Kind::kGarbage:
        event.kind = SchedulerEvent::Kind::kGarbage;
        break;
      case transport::TransportEvent::Kind::kFrame:
        OnFrame(from.frame, &event);
        break;
    }
    StepCore(event);
  }

  void OnFrame(const ParsedFrame& frame, SchedulerEvent* event) {
    absl::StatusOr<Control> control = frame.ParseControl();
    if (!control.ok()) {
      event->kind = SchedulerEvent::Kind::kGarbage;
      event->why = control.status();
      return;
    }
    event->kind = SchedulerEvent::Kind::kControl;
    event->incarnation = frame.header.incarnation;
    event->control = *std::move(control);
  }

  void StepCore(const SchedulerEvent& event) {
    effects_.Clear();
    core_.Step(MonotonicNow(), event, &effects_);
    for (const std::string& line : effects_.logs) log_.Info(line);
    for (const std::string& line : effects_.warnings) Emit({{"event", "log"}, {"text", line}});
    for (const SchedulerNotice& notice : effects_.notices) OnNotice(notice);
    std::vector<transport::PeerId> stuck;
    for (const SchedulerEffects::Send& send : effects_.sends) {
      if (!SendOrQueue(send.connection, Encode(send.control))) stuck.push_back(send.connection);
    }
    for (const transport::PeerId peer : stuck) GiveUp(peer);
  }

  Frame Encode(const Control& control) {
    FrameHeader header;
    header.sender = EndpointId::Scheduler();
    header.incarnation = options_.incarnation;
    header.view = core_.view().number();
    return EncodeControlFrame(transport_, header, control);
  }

  // False if the peer has more unread frames than is reasonable.
  bool SendOrQueue(transport::PeerId peer, Frame frame) {
    std::deque<Frame>& queue = unsent_[peer];
    if (queue.empty() &&
        transport_.Send(peer, frame).code() != absl::StatusCode::kResourceExhausted) {
      unsent_.erase(peer);  // sent; or the peer is gone, and an event says so
      return true;
    }
    if (queue.size() >= kMaxUnsentFrames) return false;
    queue.push_back(std::move(frame));
    return true;
  }

  void Flush(transport::PeerId peer) {
    const auto it = unsent_.find(peer);
    if (it == unsent_.end()) return;
    std::deque<Frame>& queue = it->second;
    while (!queue.empty()) {
      const absl::Status sent = transport_.Send(peer, queue.front());
      if (sent.code() == absl::StatusCode::kResourceExhausted) return;
      queue.pop_front();
    }
    unsent_.erase(it);
  }

  void GiveUp(transport::PeerId peer) {
    if (unsent_.erase(peer) == 0) return;  // twice in one step
    transport_.Close(peer);
    SchedulerEvent event;
    event.kind = SchedulerEvent::Kind::kLost;
    event.connection = peer;
    event.why = absl::ResourceExhaustedError("it does not read what the scheduler sends");
    StepCore(event);
  }

  void OnNotice(const SchedulerNotice& notice) {
    switch (notice.kind) {
      case SchedulerNotice::Kind::kStarted:
        return Emit({{"event", "started"}});
      case SchedulerNotice::Kind::kProgress:
        return EmitMetric("progress", ProgressJson(notice.progress));
      case SchedulerNotice::Kind::kEvaluation:
        return EmitMetric("evaluation", EvaluationJson(notice.text));
      case SchedulerNotice::Kind::kStall:
        return Emit({{"event", "stall"}, {"node", notice.node}, {"text", notice.text}});
      case SchedulerNotice::Kind::kStallOver:
        return Emit({{"event", "stall_over"}, {"node", notice.node}});
      case SchedulerNotice::Kind::kFailed:
        return EmitFailed(notice.node, notice.text, notice.code);
      case SchedulerNotice::Kind::kFinished:
        return;  // once the files are written: Finish()
    }
  }

  void EmitFailed(const std::string& node, const std::string& reason, absl::StatusCode code) {
    EmitMetric("failed",
               {{"node", node}, {"reason", reason}, {"code", absl::StatusCodeToString(code)}});
  }

  void EmitMetric(const char* event, nlohmann::json json) {
    json["event"] = event;
    json["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
    Emit(json);
    if (metrics_ == nullptr || !file_error_.ok()) return;
    file_error_ = metrics_->Append(OneLine(json));
    if (!file_error_.ok()) {
      Emit({{"event", "log"}, {"text", std::string(file_error_.message())}});
    }
  }

  void Emit(const nlohmann::json& json) {
    if (options_.progress == nullptr) return;
    std::fputs((OneLine(json) + "\n").c_str(), options_.progress);
    std::fflush(options_.progress);
  }

  // The files first: whoever reads "finished" finds them.
  absl::Status Finish() {
    TANDEM_RETURN_IF_ERROR(core_.result());
    absl::Status written = file_error_;
    if (written.ok() && !options_.out_dir.empty()) {
      const nlohmann::json summary = SummaryJson(options_.plan, core_.report(), transport_name_);
      written = WriteFileAtomically(options_.out_dir + "/summary.json", PrettyPrint(summary));
    }
    if (!written.ok()) {
      EmitFailed("scheduler", std::string(written.message()), written.code());
      return written;
    }
    EmitMetric("finished", nlohmann::json::object());
    return absl::OkStatus();
  }

  const SchedulerOptions& options_;
  const node::Log log_{"scheduler"};
  transport::Transport& transport_;
  const std::string transport_name_;
  SchedulerCore core_;
  SchedulerEffects effects_;
  std::vector<transport::TransportEvent> events_;
  std::map<transport::PeerId, std::deque<Frame>> unsent_;  // refused by the transport, in order
  std::unique_ptr<LineFile> metrics_;
  absl::Status file_error_;  // the first one
  absl::Time next_tick_ = absl::InfinitePast();
  bool aborted_ = false;
  int save_seen_ = 0;
};

// "tcp://HOST:PORT" -> HOST; of any other kind of address, this machine's own.
std::string HostOf(absl::string_view address) {
  const size_t colon = address.rfind(':');
  if (!absl::ConsumePrefix(&address, "tcp://") || colon == absl::string_view::npos) {
    return "127.0.0.1";
  }
  return std::string(address.substr(0, address.rfind(':')));
}

// Where the workers of a job with collectives, or of a program, meet; null if there are none. It ends with the
// scheduler, which is how a worker that is still waiting for others learns that the job has ended.
absl::StatusOr<std::unique_ptr<collectives::Coordinator>> StartCoordinator(
    const SchedulerOptions& options) {
  const bool meet = options.plan.dense_table < 0 || options.plan.job.model().has_program();
  if (!meet || options.plan.workers() < 2) {
    return std::unique_ptr<collectives::Coordinator>();
  }
  collectives::CoordinatorOptions coordinator;
  const std::string host = HostOf(options.bind);
  coordinator.address = absl::StrCat(host == "*" ? "0.0.0.0" : host, ":0");
  coordinator.log = [log = node::Log("scheduler")](absl::string_view line) {
    log.Info(absl::StrCat("coordinator: ", line));
  };
  return collectives::Coordinator::Start(std::move(coordinator));
}

}  // namespace

absl::Status ServeJob(const SchedulerOptions& options, transport::Transport& transport,
                      absl::string_view transport_name) {
  TANDEM_ASSIGN_OR_RETURN(const auto coordinator, StartCoordinator(options));
  std::string meet;
  if (coordinator != nullptr) {
    const std::string& address = coordinator->address();
    meet = absl::StrCat(HostOf(transport.address()), address.substr(address.rfind(':')));
  }
  return Shell(options, transport, transport_name, meet).Run();
}

absl::Status RunScheduler(const SchedulerOptions& options) {
  transport::ZmqOptions zmq;
  zmq.context = std::make_shared<transport::ZmqContext>(/*io_threads=*/1);
  zmq.bind = options.bind;
  zmq.advertised_host = options.advertised_host;
  zmq.self = EndpointId::Scheduler();
  zmq.incarnation = options.incarnation;
  zmq.linger = kLinger;
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<transport::Transport> transport,
                          transport::NewZmqTransport(zmq));
  return ServeJob(options, *transport, "ZeroMQ");
}

}  // namespace tandem::scheduler
