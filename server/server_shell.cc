#include "server/server_shell.h"

#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "node/job_member.h"
#include "node/log.h"
#include "server/save_directory.h"
#include "server/shard_core.h"
#include "transport/peer_map.h"

namespace tandem {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);

// Appends staleness records to a file of its own.
class RecordFile {
 public:
  ~RecordFile() {
    if (file_ != nullptr) std::fclose(file_);
  }
  absl::Status Open(const std::string& path) {
    path_ = path;
    file_ = std::fopen(path.c_str(), "wb");
    return file_ != nullptr ? absl::OkStatus() : Error("cannot be opened");
  }
  absl::Status Append(absl::Span<const UpdateRecord> records) {
    if (file_ == nullptr || records.empty()) return absl::OkStatus();
    const size_t written = std::fwrite(records.data(), sizeof(UpdateRecord), records.size(), file_);
    return written == records.size() ? absl::OkStatus() : Error("cannot be written: disk full?");
  }
  absl::Status Flush() {
    return file_ == nullptr || std::fflush(file_) == 0 ? absl::OkStatus()
                                                       : Error("cannot be written: disk full?");
  }

 private:
  absl::Status Error(const char* what) const {
    return absl::ResourceExhaustedError(absl::StrCat("staleness records ", path_, ": ", what));
  }
  std::string path_;
  std::FILE* file_ = nullptr;
};

// One shard: its thread, its endpoint and its core. Other threads reach it through Run() only.
class ShardThread {
 public:
  ShardThread(const ServerOptions& options, int shard)
      : options_(options), shard_(shard), log_("server", options.index) {}
  ~ShardThread() { Stop(); }

  absl::Status Start() {
    const int index = std::max(options_.index, 0);
    TANDEM_ASSIGN_OR_RETURN(transport_, options_.make_transport(EndpointId::Shard(index, shard_)));
    peers_ = std::make_unique<PeerMap>(*transport_);
    thread_ = std::thread([this] { Loop(); });
    return absl::OkStatus();
  }
  void Stop() {
    if (!thread_.joinable()) return;
    Post([this] { stop_ = true; });
    thread_.join();
  }
  const std::string& address() const { return transport_->address(); }
  const LoopProgress* progress() const { return &progress_; }

  // Runs `work` on the shard's thread and waits for its status.
  absl::Status Run(std::function<absl::Status(ShardThread*)> work) {
    absl::Status status;
    absl::Notification done;
    Post([&] {
      status = work(this);
      done.Notify();
    });
    done.WaitForNotification();
    return status;
  }

  // On the shard's thread: the first view makes the core and loads what was saved.
  absl::Status Install(const View& view, int index) {
    TANDEM_ASSIGN_OR_RETURN(auto map, RangeMap::FromView(view, options_.plan.sizes()));
    for (int s = 0; s < view.server_size(); ++s) {
      for (int t = 0; t < view.server(s).endpoint_size(); ++t) {
        peers_->SetAddress(EndpointId::Shard(s, t), view.server(s).endpoint(t));
      }
    }
    const bool first = core_ == nullptr;
    if (first) {
      TANDEM_ASSIGN_OR_RETURN(core_, ShardCore::New(options_.plan, EndpointId::Shard(index, shard_),
                                                    options_.incarnation, *transport_));
      if (options_.plan.job.staleness().record() && !options_.record_dir.empty()) {
        TANDEM_RETURN_IF_ERROR(records_.Open(
            absl::StrCat(options_.record_dir, "/server-", index, "-shard-", shard_, ".updates")));
      }
    }
    core_->OnView(MonotonicNow(), std::move(map), &effects_);
    if (first && !options_.init_from.empty()) {
      TANDEM_ASSIGN_OR_RETURN(const SavedModel saved, SavedModel::Open(options_.init_from));
      TANDEM_RETURN_IF_ERROR(saved.LoadRanges(core_->OwnedRanges(), *transport_));
    }
    return absl::OkStatus();
  }
  ShardCore* core() { return core_.get(); }
  ShardEffects* effects() { return &effects_; }
  absl::Status FlushRecords() {
    TANDEM_RETURN_IF_ERROR(records_.Append(effects_.records));
    effects_.records.clear();
    return records_.Flush();
  }

  // Any thread: why the shard cannot go on; OK while it can.
  absl::Status failure() const {
    absl::MutexLock lock(&mutex_);
    return failure_;
  }

 private:
  void Post(std::function<void()> work) {
    {
      absl::MutexLock lock(&mutex_);
      inbox_.push_back(std::move(work));
    }
    transport_->Wake();
  }

  void Loop() {
    std::vector<TransportEvent> events;
    absl::Time next_tick = MonotonicNow();
    while (!stop_) {
      events.clear();
      transport_->Poll(effects_.out.empty() ? kTick : absl::ZeroDuration(), &events);
      const absl::Time now = MonotonicNow();
      for (const TransportEvent& event : events) OnEvent(now, event);
      if (events.empty()) Flush();
      events.clear();
      RunInbox();
      if (core_ != nullptr && now >= next_tick) {
        next_tick = now + kTick;
        core_->OnTick(now, &effects_);
        progress_.SetActivity(core_->Waiting(now));
      }
      progress_.Advance(last_step_);
      if (effects_.MustSend() || !effects_.log.empty()) Flush();
    }
    Flush();
  }

  void OnEvent(absl::Time now, const TransportEvent& event) {
    peers_->OnEvent(event);
    if (event.kind == TransportEvent::Kind::kGarbage) {
      log_.Warning(absl::StrCat("shard ", shard_, ": ", event.why.ToString()));
    }
    if (event.kind != TransportEvent::Kind::kFrame || core_ == nullptr) return;
    core_->OnFrame(now, event.frame, &effects_);
    if (event.frame.header.step > 0) last_step_ = static_cast<uint64_t>(event.frame.header.step);
    if (effects_.MustSend()) Flush();
  }

  void RunInbox() {
    std::deque<std::function<void()>> work;
    {
      absl::MutexLock lock(&mutex_);
      work.swap(inbox_);
    }
    for (const auto& item : work) item();
  }

  void Flush() {
    for (Outgoing& out : effects_.out) (void)peers_->Send(std::move(out));  // the asker asks again
    effects_.ClearOut();
    for (const std::string& line : effects_.log) {
      log_.Info(absl::StrCat("shard ", shard_, ": ", line));
    }
    effects_.log.clear();
    const absl::Status recorded = records_.Append(effects_.records);
    effects_.records.clear();
    if (recorded.ok()) return;
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = recorded;
  }

  const ServerOptions& options_;
  const int shard_;
  const Log log_;
  LoopProgress progress_;
  std::unique_ptr<Transport> transport_;
  std::thread thread_;
  mutable absl::Mutex mutex_;
  std::deque<std::function<void()>> inbox_ ABSL_GUARDED_BY(mutex_);
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  // The shard's thread only, from here.
  bool stop_ = false;
  uint64_t last_step_ = 0;  // of a frame
  std::unique_ptr<PeerMap> peers_;
  std::unique_ptr<ShardCore> core_;
  ShardEffects effects_;
  RecordFile records_;
};

// The main thread's part.
class Server {
 public:
  explicit Server(const ServerOptions& options) : options_(options) {}

  absl::Status Run() {
    TANDEM_ASSIGN_OR_RETURN(transport_, options_.make_transport(EndpointId::Shard(0, 0)));
    JobMember::Options member;
    member.role = Register::SERVER;
    member.index = options_.index;
    member.incarnation = options_.incarnation;
    member.job_hash = options_.plan.hash;
    member.scheduler = options_.scheduler;
    member.make_transport = options_.make_transport;
    member.stop = options_.stop;
    for (int t = 0; t < options_.plan.shards_per_server(); ++t) {
      shards_.push_back(std::make_unique<ShardThread>(options_, t));
      TANDEM_RETURN_IF_ERROR(shards_.back()->Start());
      member.endpoints.push_back(shards_.back()->address());
      member.loops.push_back(shards_.back()->progress());
    }
    member_ = std::make_unique<JobMember>(*transport_, std::move(member));
    TANDEM_RETURN_IF_ERROR(member_->Start());
    const absl::Status status = Loop();
    member_.reset();  // its beats speak of the shards
    shards_.clear();
    return status;
  }

 private:
  absl::Status Loop() {
    std::vector<TransportEvent> events;
    while (!done_) {
      events.clear();
      transport_->Poll(kTick, &events);
      member_->progress().Advance(0);
      const absl::Time now = MonotonicNow();
      for (const TransportEvent& event : events) member_->OnEvent(now, event);
      for (const Control& control : member_->TakeInbox()) {
        TANDEM_RETURN_IF_ERROR(OnControl(control));
      }
      if (done_) break;
      TANDEM_RETURN_IF_ERROR(member_->OnTick(now));
      for (const auto& shard : shards_) {
        if (absl::Status failure = shard->failure(); !failure.ok()) return member_->Fail(failure);
      }
    }
    return absl::OkStatus();
  }

  absl::Status OnControl(const Control& control) {
    if (control.has_view()) return OnView(control.view());
    if (!control.has_command()) return absl::OkStatus();
    const Command& command = control.command();
    if (command.kind() == Command::STOP) {
      done_ = true;
      return absl::OkStatus();
    }
    if (command.kind() == Command::START) return absl::OkStatus();
    member_->link().SendDone(command.id(), Execute(command));
    return absl::OkStatus();
  }

  absl::Status OnView(const View& view) {
    TANDEM_ASSIGN_OR_RETURN(const int index, member_->FindSelf(view));
    for (const auto& shard : shards_) {
      const absl::Status installed =
          shard->Run([&](ShardThread* s) { return s->Install(view, index); });
      if (!installed.ok()) return member_->Fail(installed);
    }
    member_->link().SendDone(view.number(), absl::OkStatus());
    return absl::OkStatus();
  }

  absl::Status Execute(const Command& command) {
    for (const auto& shard : shards_) {
      TANDEM_RETURN_IF_ERROR(shard->Run([&](ShardThread* s) -> absl::Status {
        switch (command.kind()) {
          case Command::SAVE:
            return SaveRanges(command.path(), s->core()->OwnedRanges());
          case Command::FINISH_DELAYED:
            s->core()->FinishDelayed(s->effects());
            return absl::OkStatus();
          case Command::REPORT: {
            TANDEM_RETURN_IF_ERROR(s->FlushRecords());
            Control report;
            *report.mutable_shard_report() = s->core()->Report();
            reports_.push_back(std::move(report));
            return absl::OkStatus();
          }
          default:
            return absl::UnimplementedError(absl::StrCat("command ", command.kind()));
        }
      }));
    }
    for (const Control& report : reports_) member_->link().Send(report);
    reports_.clear();
    return absl::OkStatus();
  }

  const ServerOptions& options_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::unique_ptr<ShardThread>> shards_;
  std::unique_ptr<JobMember> member_;
  std::vector<Control> reports_;
  bool done_ = false;
};

}  // namespace

absl::Status RunServer(const ServerOptions& options) {
  Server server(options);
  return server.Run();
}

}  // namespace tandem
