#include "scheduler/scheduler_shell.h"

#include <unistd.h>

#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/exhaustion.h"
#include "base/file.h"
#include "base/proc_files.h"
#include "base/status_macros.h"
#include "collectives/rendezvous/coordinator.h"
#include "job/silence_times.h"
#include "job/user_module.h"
#include "node/job_token.h"
#include "node/log.h"
#include "scheduler/observe/counter_file.h"
#include "scheduler/observe/http_server.h"
#include "scheduler/observe/output_files.h"
#include "scheduler/observe/progress_history.h"
#include "scheduler/observe/status_board.h"
#include "scheduler/observe/summary.h"
#include "scheduler/observe/tensorboard.h"
#include "scheduler/observe/watch_pages.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/checkpoint_fence.h"
#include "transport/tcp_address.h"
#include "transport/zmq_transport.h"

namespace tandem::scheduler {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kLinger = absl::Seconds(1);  // at the end, for nodes that read slowly
constexpr size_t kMaxUnsentFrames = 1024;             // a peer, beyond the transport's own queue
constexpr absl::Duration kHistograms = absl::Seconds(10);         // between those of an event file
constexpr absl::Duration kStatusPause = absl::Milliseconds(100);  // between two answers to a tool

std::string NowText() {
  return absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
}

std::string HostName() {
  char host[256] = "";
  (void)gethostname(host, sizeof host - 1);
  return host;
}

SchedulerCore::Options CoreOptions(const SchedulerOptions& options, const std::string& coordinator,
                                   uint64_t run) {
  SchedulerCore::Options core;
  core.times = options.times;
  core.coordinator = coordinator;
  core.run = run;
  core.models = options.models;
  core.launch = options.launch;
  core.out = options.out_dir;
  core.estimate = options.estimate;
  core.incarnation = options.incarnation;
  core.restarts_left = options.restarts.left;
  core.restarts_from = options.restarts.left_again;
  core.trains_since = options.restarts.trains_since;
  core.replacements = options.replacements;
  core.by_hand = options.by_hand;
  return core;
}

class Shell {
 public:
  Shell(const SchedulerOptions& options, transport::Transport& transport,
        absl::string_view transport_name, const std::string& coordinator)
      : options_(options),
        transport_(transport),
        transport_name_(transport_name),
        run_(options.models.run != 0 ? options.models.run : options.incarnation),
        core_(options.plan, CoreOptions(options, coordinator, run_)) {}

  absl::Status Run() {
    if (!options_.out_dir.empty()) TANDEM_RETURN_IF_ERROR(OpenFiles());
    if (!options_.tensorboard.empty()) {
      TANDEM_ASSIGN_OR_RETURN(
          tensorboard_, TensorBoardFile::Create(options_.tensorboard, absl::Now(), FirstStep()));
    }
    if (!options_.http.empty()) TANDEM_RETURN_IF_ERROR(StartHttp());
    Emit({{"event", "address"}, {"address", transport_.address()}});
    if (options_.models.resume) SayWhereItGoesOn();
    if (options_.checkpoint != nullptr) checkpoints_seen_ = *options_.checkpoint;
    while (!core_.done()) Round();
    return Finish();
  }

 private:
  // The first step of the events that this attempt writes. Events at the step of the checkpoint,
  // for example of an evaluation there, are in the file of an earlier attempt.
  int64_t FirstStep() const { return options_.models.resume ? options_.models.step + 1 : 0; }

  absl::Status OpenFiles() {
    const ModelPaths& models = options_.models;
    if (!models.checkpoint_folder.empty()) TANDEM_RETURN_IF_ERROR(BeginCheckpoints());
    if (models.resume) TANDEM_RETURN_IF_ERROR(ReadMetrics(models.step));
    TANDEM_ASSIGN_OR_RETURN(metrics_,
                            LineFile::Create(options_.out_dir, "metrics.jsonl", models.resume));
    // `run` is for a later attempt that resumes the run, `address` for programs that read rows.
    TANDEM_RETURN_IF_ERROR(
        WriteFileAtomically(options_.out_dir + "/run", server::TextOf({run_, models.attempt})));
    return WriteFileAtomically(options_.out_dir + "/address", transport_.address() + "\n");
  }

  // No other process of this attempt has started yet.
  absl::Status BeginCheckpoints() const {
    return server::BeginAttempt(options_.models.checkpoint_folder, CheckpointOfStart());
  }

  // The servers have loaded the checkpoint from which the run resumes. If LATEST cannot be written,
  // the next commit does it.
  void AdoptCheckpoint() const {
    const ModelPaths& models = options_.models;
    if (models.checkpoint_folder.empty() || !models.resume) return;
    const absl::Status adopted =
        server::AdoptCheckpoint(models.checkpoint_folder, CheckpointOfStart());
    if (!adopted.ok()) log_.Warning(std::string(adopted.message()));
  }

  server::CheckpointHead CheckpointOfStart() const {
    const ModelPaths& models = options_.models;
    server::CheckpointHead head;
    head.run = run_;
    head.attempt = models.attempt;
    head.keep = options_.plan.job.checkpoint().keep();
    if (models.resume) {
      head.resumed_from = std::filesystem::path(models.init_from).filename().string();
    }
    return head;
  }

  // Off loopback the pages of a job with a token ask for a password.
  absl::Status StartHttp() {
    const bool here = IsLoopback(options_.http);
    std::string password;
    if (options_.keys != nullptr && !here) {
      if (options_.out_dir.empty()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "--http ", options_.http, ": needs --out, a folder for the password of the pages"));
      }
      password = WatchPages::PasswordOf(*options_.keys);
      TANDEM_RETURN_IF_ERROR(
          node::WriteSecret(options_.out_dir + "/http_password", password + "\n"));
    }
    const WatchPages pages(&board_, &counters_,
                           here ? WatchPages::Audience::kThisHost : WatchPages::Audience::kNetwork,
                           password);
    TANDEM_ASSIGN_OR_RETURN(http_,
                            HttpServer::Start(options_.http, [pages](const HttpRequest& request) {
                              return pages.Answer(request);
                            }));
    Emit({{"event", "http"}, {"url", http_->url()}});
    if (options_.out_dir.empty()) return absl::OkStatus();
    return WriteFileAtomically(options_.out_dir + "/http", http_->url() + "\n");
  }

  // Reads from metrics.jsonl when the run started, and the evaluations up to the checkpoint at
  // `step`. The run makes the later evaluations again.
  absl::Status ReadMetrics(int64_t step) {
    const absl::StatusOr<std::string> text = ReadWholeFile(options_.out_dir + "/metrics.jsonl");
    if (!text.ok()) return absl::IsNotFound(text.status()) ? absl::OkStatus() : text.status();
    for (const absl::string_view line : absl::StrSplit(*text, '\n', absl::SkipEmpty())) {
      nlohmann::json event = nlohmann::json::parse(line.begin(), line.end(), nullptr, false);
      if (!event.is_object()) continue;  // an unfinished line of a process that was killed
      const std::string kind = event.value("event", "");
      // That attempt resumed from an older checkpoint and made the later evaluations again.
      if (kind == "resumed") DropEvaluationsAfter(event.value("step", int64_t{0}));
      if (kind == "started" && started_.empty()) started_ = TextOf(event, "since");
      if (kind != "evaluation") continue;
      event.erase("event");
      evaluations_.push_back(std::move(event));
    }
    DropEvaluationsAfter(step);
    return absl::OkStatus();
  }
  void DropEvaluationsAfter(int64_t step) {
    while (!evaluations_.empty() && evaluations_.back().value("step", int64_t{0}) > step) {
      evaluations_.erase(evaluations_.size() - 1);
    }
  }
  void AddEvaluation(nlohmann::json evaluation) {
    const auto which = [](const nlohmann::json& e) {
      return std::tuple(e.value("epoch", int64_t{0}), e.value("step", int64_t{0}),
                        e.value("data", ""));
    };
    // An evaluation that not all workers had finished at the checkpoint is made again and replaces
    // the earlier one.
    for (size_t i = evaluations_.size(); i > 0; --i) {
      if (which(evaluations_[i - 1]) == which(evaluation)) evaluations_.erase(i - 1);
    }
    evaluation["time"] = NowText();
    evaluations_.push_back(std::move(evaluation));
  }

  void SayWhereItGoesOn() {
    const ModelPaths& models = options_.models;
    EmitMetric("resumed", {{"step", models.step}, {"attempt", models.attempt}});
  }

  void Round() {
    events_.clear();
    transport_.Poll(kTick, &events_);
    CheckDriver();  // before OnTransport sees the lost connections of roles that died with it
    for (transport::TransportEvent& event : events_) OnTransport(event);
    CheckFlags();
    HearDriver();
    if (const absl::Time now = MonotonicNow(); now >= next_tick_) {
      next_tick_ = now + kTick;
      StepCore(SchedulerEvent());
      if (http_ != nullptr && board_.IsDue(now)) {
        board_.Publish(std::make_shared<const Snapshot>(Snapshot{now, Status(), history_.Json()}));
      }
    }
  }

  void CheckDriver() {
    if (options_.driver == 0 || getppid() == options_.driver) return;
    Abort(absl::StrCat("the process that started the scheduler (pid ", options_.driver,
                       ") has gone"));
  }

  void Abort(const std::string& why) {
    if (std::exchange(aborted_, true)) return;
    SchedulerEvent event;
    event.kind = SchedulerEvent::Kind::kAbort;
    event.text = why;
    StepCore(event);
  }

  // Signal handlers set flags. Passes each request to the core once.
  void CheckFlags() {
    SchedulerEvent event;
    if (options_.abort != nullptr && *options_.abort) Abort("interrupted");
    const int ends = options_.ends == nullptr ? ends_seen_ : options_.ends->load();
    for (; ends_seen_ != ends; ++ends_seen_) {
      event.kind = SchedulerEvent::Kind::kEnd;
      event.text = "interrupted";
      StepCore(event);
    }
    const int checkpoints =
        options_.checkpoint == nullptr ? checkpoints_seen_ : options_.checkpoint->load();
    if (checkpoints != checkpoints_seen_) {
      checkpoints_seen_ = checkpoints;
      event.kind = SchedulerEvent::Kind::kCheckpoint;
      event.text = options_.models.checkpoint_folder;
      StepCore(event);
    }
  }

  // Reads the lines of the program that has started the roles. Each is about a worker that has
  // ended.
  void HearDriver() {
    char bytes[4096];
    ssize_t count = 0;
    while (options_.driver_fd >= 0 && (count = read(options_.driver_fd, bytes, sizeof bytes)) > 0) {
      said_.append(bytes, static_cast<size_t>(count));
    }
    for (size_t end; (end = said_.find('\n')) != std::string::npos; said_.erase(0, end + 1)) {
      const auto line = nlohmann::json::parse(said_.substr(0, end), nullptr, false);
      if (!line.is_object()) continue;
      SchedulerEvent event;
      event.kind = SchedulerEvent::Kind::kExited;
      event.rank = line.value("worker", -1);
      event.pid = line.value("pid", int64_t{0});
      event.text = line.value("text", "");
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
        answered_.erase(from.peer);
        event.kind = SchedulerEvent::Kind::kLost;
        break;
      case transport::TransportEvent::Kind::kPeerClosed:
        unsent_.erase(from.peer);
        answered_.erase(from.peer);
        event.kind = SchedulerEvent::Kind::kClosed;
        break;
      case transport::TransportEvent::Kind::kGarbage:
        event.kind = SchedulerEvent::Kind::kGarbage;
        break;
      case transport::TransportEvent::Kind::kFrame:
        OnFrame(from.frame, &event);
        if (event.control.user_request().kind() == UserRequest::STATUS) {
          return AnswerStatus(from.peer);
        }
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

  // A tool that asks again too early, or reads nothing, gets no answer: what strangers ask must
  // cost little time and memory.
  void AnswerStatus(transport::PeerId peer) {
    const absl::Time now = MonotonicNow();
    absl::Time& answered = answered_.try_emplace(peer, absl::InfinitePast()).first->second;
    if (now - answered < kStatusPause || unsent_.count(peer) > 0) return;
    answered = now;
    Control control;
    control.mutable_user_answer()->set_text(OneLine(Status()));
    (void)transport_.Send(peer, Encode(control));
  }

  // The core's status, with this process as the first node.
  nlohmann::json Status() const {
    nlohmann::json status = core_.Status();
    const HostMemory memory = MemoryOfHost();
    const nlohmann::json self = {{"name", "scheduler"},
                                 {"role", "scheduler"},
                                 {"index", 0},
                                 {"host", HostName()},
                                 {"pid", getpid()},
                                 {"state", "running"},
                                 {"activity", ""},
                                 {"memory_bytes", ResidentBytes()},
                                 {"host_memory_bytes", memory.total},
                                 {"host_available_bytes", memory.available}};
    status["nodes"].insert(status["nodes"].begin(), self);
    status["address"] = transport_.address();
    status["out"] = options_.out_dir;
    status["run"] = absl::StrFormat("%016x", run_);
    status["resumed"] = options_.models.attempt;
    status["started"] = started_;
    status["restarts"] = {{"count", restarts_.count},
                          {"seconds", restarts_.seconds},
                          {"steps_again", restarts_.steps_again}};
    if (restarts_.count > 0) status["restarts"]["last"] = restarts_.last;
    status["time"] = NowText();
    return status;
  }

  void StepCore(const SchedulerEvent& event) {
    effects_.Clear();
    core_.Step(MonotonicNow(), event, &effects_);
    for (const std::string& line : effects_.logs) log_.Info(line);
    for (const std::string& line : effects_.warnings) Emit({{"event", "log"}, {"text", line}});
    for (const SchedulerNotice& notice : effects_.notices) OnNotice(notice);
    // Peers that do not read are given up after the loop: GiveUp steps the core again, which clears
    // and refills effects_.
    std::vector<transport::PeerId> stuck;
    for (const SchedulerEffects::Send& send : effects_.sends) {
      const Frame frame =
          send.control->has_view() ? ViewFrame(send.control) : Encode(*send.control);
      if (!SendOrQueue(send.connection, frame)) stuck.push_back(send.connection);
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

  // A view is encoded once, and all connections share the frame.
  const Frame& ViewFrame(const std::shared_ptr<const Control>& view) {
    if (encoded_view_ != view) view_frame_ = Encode(*view);
    encoded_view_ = view;
    return view_frame_;
  }

  // False if the peer has too many unread frames.
  bool SendOrQueue(transport::PeerId peer, Frame frame) {
    std::deque<Frame>& queue = unsent_[peer];
    if (queue.empty() &&
        transport_.Send(peer, frame).code() != absl::StatusCode::kResourceExhausted) {
      unsent_.erase(peer);  // the frame is sent; or the peer is gone, and an event will say so
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
    if (unsent_.erase(peer) == 0) return;  // GiveUp was called before in this step
    transport_.Close(peer);
    SchedulerEvent event;
    event.kind = SchedulerEvent::Kind::kLost;
    event.connection = peer;
    event.why = absl::ResourceExhaustedError("it does not read what the scheduler sends");
    StepCore(event);
  }

  // All workers have finished a step of this attempt.
  void NoteRecovery(const JobProgress& progress) {
    if (options_.restarts.count == 0 || recovered_ || progress.min_step <= options_.models.step)
      return;
    recovered_ = true;
    const double seconds = absl::ToDoubleSeconds(MonotonicNow() - restarts_.down_since);
    restarts_.seconds += seconds;
    EmitMetric("recovered", {{"seconds", seconds}, {"step", progress.min_step}});
  }

  void OnNotice(const SchedulerNotice& notice) {
    switch (notice.kind) {
      case SchedulerNotice::Kind::kStarted:
        if (started_.empty()) started_ = NowText();
        AdoptCheckpoint();
        if (options_.on_started) options_.on_started();
        return EmitMetric("started", {{"since", started_}, {"seconds", notice.seconds}});
      case SchedulerNotice::Kind::kProgress:
        history_.Add(notice.progress);
        NoteRecovery(notice.progress);
        DrawProgress(ProgressJson(notice.progress));
        return EmitMetric("progress", ProgressJson(notice.progress));
      case SchedulerNotice::Kind::kEvaluation:
        AddEvaluation(EvaluationJson(notice.text));
        history_.AddEvaluation(EvaluationJson(notice.text));
        Draw([&](TensorBoardFile* to) {
          return to->AddEvaluation(absl::Now(), EvaluationJson(notice.text));
        });
        return EmitMetric("evaluation", EvaluationJson(notice.text));
      case SchedulerNotice::Kind::kReported:
        Draw([&](TensorBoardFile* to) {
          const nlohmann::json said = EvaluationJson(notice.text);
          return to->AddReported(absl::Now(), said.value("step", int64_t{0}),
                                 said.value("values", nlohmann::json::object()));
        });
        return EmitMetric("reported", EvaluationJson(notice.text));
      case SchedulerNotice::Kind::kCheckpointed:
        return EmitMetric("saved", {{"step", notice.step}});
      case SchedulerNotice::Kind::kStall:
        return Emit({{"event", "stall"}, {"node", notice.node}, {"text", notice.text}});
      case SchedulerNotice::Kind::kStallOver:
        return Emit({{"event", "stall_over"}, {"node", notice.node}});
      case SchedulerNotice::Kind::kEnding:
        SendRecord("summary", Summary());
        return Emit({{"event", "ending"}});
      case SchedulerNotice::Kind::kVacant:
        ++restarts_.count;
        restarts_.last = absl::StrCat(notice.node, ": ", notice.text);
        return Emit({{"event", "vacant"},
                     {"node", notice.node},
                     {"reason", notice.text},
                     {"step", notice.step}});
      case SchedulerNotice::Kind::kReplaced:
        restarts_.seconds += notice.seconds;
        restarts_.steps_again += notice.steps_again;
        return EmitMetric("replaced", {{"node", notice.node},
                                       {"seconds", notice.seconds},
                                       {"step", notice.step},
                                       {"steps_again", notice.steps_again}});
      case SchedulerNotice::Kind::kFailed:
        if (core_.report().stop.has_value()) return EmitMetric("stopped", StopJson());
        failed_ = FailedJson(notice.node, notice.text, notice.code);
        if (notice.diverged) failed_["diverged"] = true;
        if (notice.comes_again) failed_["comes_again"] = true;
        if (notice.no_room) failed_["no_room"] = true;
        if (!notice.damaged_checkpoint.empty()) {
          failed_["damaged_checkpoint"] = notice.damaged_checkpoint;
        }
        if (notice.step >= 0) failed_["step"] = notice.step;
        return EmitMetric("failed", failed_);
      case SchedulerNotice::Kind::kFinished:
        return;  // Finish() sends the event when the files are written
    }
  }

  // Writes to the event file, if there is one. As with metrics.jsonl, a full disk does not end the
  // job.
  void Draw(const std::function<absl::Status(TensorBoardFile*)>& add) {
    if (tensorboard_ == nullptr) return;
    const bool failed_before = !drawn_.ok();
    drawn_ = add(tensorboard_.get());
    if (drawn_.ok() || failed_before) return;
    Emit({{"event", "log"},
          {"text", absl::StrCat(drawn_.message(), "; training continues, records are lost")}});
  }
  void DrawProgress(const nlohmann::json& progress) {
    Draw([&](TensorBoardFile* to) { return to->AddProgress(absl::Now(), progress); });
    if (MonotonicNow() < next_histograms_) return;
    next_histograms_ = MonotonicNow() + kHistograms;
    DrawTables(progress.value("max_step", int64_t{0}));
  }
  void DrawTables(int64_t step) {
    Draw([&](TensorBoardFile* to) {
      return to->AddTables(absl::Now(), step, core_.Status()["tables"]);
    });
  }

  // Requires: the job has ended as requested.
  nlohmann::json StopJson() const {
    const JobReport::Stop& stop = *core_.report().stop;
    nlohmann::json fields = {{"checkpointed_step", stop.checkpointed_step}, {"why", stop.why}};
    if (!stop.failure.empty()) fields["failure"] = stop.failure;
    return fields;
  }

  static nlohmann::json FailedJson(const std::string& node, const std::string& reason,
                                   absl::StatusCode code) {
    return {{"node", node}, {"reason", reason}, {"code", absl::StatusCodeToString(code)}};
  }

  // Sends a record to the script of rank 0, if a script drives the workers. Requires: the frames of
  // this step of the core are not sent yet, because STOP may be among them.
  void SendRecord(const char* event, nlohmann::json fields) {
    const std::optional<uint64_t> peer = effects_.rank_zero;
    if (!peer.has_value() || !options_.plan.job.model().has_program()) return;
    // Other messages must find room in the queue of a worker that reads slowly.
    if (const auto it = unsent_.find(*peer);
        it != unsent_.end() && it->second.size() >= kMaxUnsentFrames / 2) {
      return;
    }
    fields["event"] = event;
    Control control;
    control.mutable_record()->set_json(OneLine(fields));
    (void)SendOrQueue(*peer, Encode(control));
  }

  void EmitMetric(const char* event, nlohmann::json fields) {
    fields["event"] = event;
    fields["time"] = NowText();
    Emit(fields);
    SendRecord(event, fields);
    if (metrics_ == nullptr) return;
    // A full disk does not end the job: the training would be lost, and the disk may have room
    // again later.
    const bool failed_before = !file_error_.ok();
    file_error_ = metrics_->Append(OneLine(fields));
    if (file_error_.ok() || failed_before) return;
    Emit({{"event", "log"},
          {"text", absl::StrCat(file_error_.message(), "; training continues, lines are lost")}});
  }

  void Emit(const nlohmann::json& event) {
    if (options_.progress == nullptr && options_.on_event) options_.on_event(event);
    if (options_.progress == nullptr) return;
    std::fputs((OneLine(event) + "\n").c_str(), options_.progress);
    std::fflush(options_.progress);
  }

  // Requires: the job ends or has ended.
  nlohmann::json Summary() const {
    nlohmann::json summary = SummaryJson(options_.plan, core_.report(), transport_name_);
    summary["host"] = HostName();
    summary["started"] = started_;
    summary["ended"] = NowText();
    summary["evaluations"] = evaluations_;
    if (failed_.is_object()) summary["failed"] = failed_;
    return summary;
  }

  // Writes the files before the last event, so that a program which reads "finished" finds them.
  absl::Status Finish() {
    board_.Close();
    const absl::Status result = core_.result();
    const nlohmann::json summary = Summary();
    DrawTables(core_.report().max_step);
    const absl::Status written =
        options_.out_dir.empty()
            ? absl::OkStatus()
            : WriteFileAtomically(options_.out_dir + "/summary.json", PrettyPrint(summary));
    if (!result.ok()) return result;
    for (const std::string& line : QualityWarnings(options_.plan, summary)) {
      Emit({{"event", "log"}, {"text", absl::StrCat("warning: ", line)}});
    }
    if (!written.ok()) {
      EmitMetric("failed", FailedJson("scheduler", std::string(written.message()), written.code()));
      return written;
    }
    const absl::optional<JobReport::Stop>& stop = core_.report().stop;
    if (!stop.has_value()) {
      EmitMetric("finished", nlohmann::json::object());
      return absl::OkStatus();
    }
    EmitMetric("finished", StopJson());
    if (!stop->failure.empty()) {
      return absl::AbortedError(absl::StrCat(stop->why, "; no checkpoint: ", stop->failure));
    }
    return absl::CancelledError(absl::StrCat(stop->why, "; saved step ", stop->checkpointed_step));
  }

  const SchedulerOptions& options_;
  const node::Log log_{"scheduler"};
  transport::Transport& transport_;
  const std::string transport_name_;
  const uint64_t run_;
  SchedulerCore core_;
  SchedulerEffects effects_;
  std::vector<transport::TransportEvent> events_;
  std::map<transport::PeerId, std::deque<Frame>> unsent_;  // refused by the transport, in order
  std::shared_ptr<const Control> encoded_view_;            // the view in view_frame_
  Frame view_frame_;
  std::string said_;                                  // from the driver: an incomplete line
  std::map<transport::PeerId, absl::Time> answered_;  // when a tool last got the status
  std::unique_ptr<LineFile> metrics_;
  Restarts restarts_ = options_.restarts;
  bool recovered_ = false;
  ProgressHistory history_;
  StatusBoard board_;
  CounterFile counters_{options_.out_dir.empty() ? "" : options_.out_dir + "/counters.json"};
  std::unique_ptr<HttpServer> http_;  // uses the board and the counters
  std::unique_ptr<TensorBoardFile> tensorboard_;
  absl::Status drawn_;  // last error of tensorboard_
  absl::Time next_histograms_ = absl::InfinitePast();
  absl::Status file_error_;                               // last error of metrics_
  std::string started_ = options_.restarts.started;       // when the run has started
  nlohmann::json evaluations_ = nlohmann::json::array();  // all evaluations of the run
  nlohmann::json failed_;                                 // the failure, if the job has failed
  absl::Time next_tick_ = absl::InfinitePast();
  bool aborted_ = false;
  int checkpoints_seen_ = 0, ends_seen_ = 0;
};

// The HOST of "tcp://HOST:PORT", as written there. For any other kind of address, 127.0.0.1.
std::string HostOf(absl::string_view address) {
  const transport::TcpAddress at = transport::SplitTcpAddress(address);
  return at.valid() ? transport::HostInAddress(at.host) : "127.0.0.1";
}

// Starts the rendezvous for the workers of a job that has collectives, whose model is the user's
// own module, or that computes on GPUs. Null if the job needs none. The rendezvous ends with the
// scheduler. A worker that still waits there for others learns in this way that the job has ended.
absl::StatusOr<std::unique_ptr<collectives::Coordinator>> StartCoordinator(
    const SchedulerOptions& options) {
  const Job& job = options.plan.job;
  const bool meet = options.plan.dense_table < 0 || job::HasOwnModule(job.model()) ||
                    job.dense().device() == Dense::CUDA;
  if (!meet || options.plan.workers() < 2) {
    return std::unique_ptr<collectives::Coordinator>();
  }
  collectives::CoordinatorOptions coordinator;
  TANDEM_ASSIGN_OR_RETURN(const std::string bind, transport::ResolveToBind(options.bind));
  const std::string host = HostOf(bind);
  coordinator.keys = options.keys;
  coordinator.beat = job::SilenceTimes(options.plan.job).beat_of_collectives;
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
  zmq.keys = options.keys;
  zmq.linger = kLinger;
  // Nodes send control messages only. libzmq drops the connection of a peer that announces more.
  // Messages between kMaxControlBytes and this limit are read, so that the error has their size.
  zmq.max_part_bytes = 2 * kMaxControlBytes;
  const job::SilenceTimes silence(options.plan.job);
  zmq.silence_timeout = silence.connection;
  zmq.heartbeat_interval = silence.heartbeat;
  return CatchExceptions([&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<transport::Transport> transport,
                            transport::NewZmqTransport(zmq));
    return ServeJob(options, *transport, "ZeroMQ");
  });
}

}  // namespace tandem::scheduler
