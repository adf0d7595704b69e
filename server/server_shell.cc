#include "server/server_shell.h"

#include <string.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/exhaustion.h"
#include "base/file.h"
#include "base/memory_full.h"
#include "base/proc_files.h"
#include "base/status_macros.h"
#include "collectives/trace.h"
#include "job/job_budget.h"
#include "node/log.h"
#include "node/node_session.h"
#include "node/work_thread.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/segment_file.h"
#include "server/checkpoint_load.h"
#include "server/record/order_file.h"
#include "server/record/record_cut.h"
#include "server/record/record_file.h"
#include "server/record/replay.h"
#include "server/record/update_record.h"
#include "server/rows/memory_budget.h"
#include "server/server_core.h"
#include "server/shard_checkpoint.h"
#include "server/shard_core.h"
#include "transport/peer_map.h"

namespace tandem::server {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(50);

constexpr size_t kUnknownMemory = size_t{1} << 60;  // the limit if the host's memory is not known

// Process number of server 0 in a trace. Workers have their ranks, which are smaller.
constexpr int kFirstTracedServer = 1'000'000;

// Bytes of rows that a shard copies for a checkpoint between frames: about a millisecond.
constexpr size_t kBytesPerSlice = size_t{1} << 20;
// A shard with less free memory than this copies no further slice, and gives the checkpoint up.
constexpr size_t kMinRoom = job::kRoomToCopy;
static_assert(kMinRoom >= 2 * kBytesPerSlice);
// Most ranges of a shard that are being written or wait for the file thread. With so many the
// shard copies no further slices. So at most these copies are in memory, and the one in progress.
constexpr int kMaxFiles = 2;

// A queue of work for one thread. Any thread adds.
class Inbox {
 public:
  void Add(std::function<void()> work) {
    absl::MutexLock lock(&mutex_);
    work_.push_back(std::move(work));
  }
  void Run() {
    std::deque<std::function<void()>> work;
    {
      absl::MutexLock lock(&mutex_);
      work.swap(work_);
    }
    for (const auto& item : work) item();
  }

 private:
  absl::Mutex mutex_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
};

// The thread that writes files, one after the other, so that no shard waits for a disk.
using FileThread = node::WorkThread<std::function<void()>>;

// Called on the shard's thread when the shard has done a task, or has failed.
using ShardDone = std::function<void(uint64_t id, absl::Status status,
                                     std::shared_ptr<const ShardReport> report)>;

// One shard: its thread, its endpoint and its core. Other threads give it tasks.
class ShardThread {
 public:
  // `files`, and `trace` if there is one, outlive the thread.
  ShardThread(const ServerOptions& options, int shard, FileThread* files, collectives::Trace* trace,
              ShardDone done)
      : options_(options),
        shard_(shard),
        log_("server", options.member.index),
        files_(*files),
        trace_(trace),
        done_(std::move(done)) {}
  ~ShardThread() { Stop(); }

  absl::Status Start() {
    const int index = std::max(options_.member.index, 0);
    TANDEM_ASSIGN_OR_RETURN(transport_,
                            options_.member.make_transport(EndpointId::Shard(index, shard_)));
    peers_ = std::make_unique<transport::PeerMap>(*transport_);
    thread_ = std::thread([this] {
      const absl::Status ended = CatchExceptions([this] {
        Loop();
        return absl::OkStatus();
      });
      if (!ended.ok()) SetFailure(ended);
    });
    return absl::OkStatus();
  }
  void Stop() {
    if (!thread_.joinable()) return;
    Post([this] { stop_ = true; });
    thread_.join();
  }
  const std::string& address() const { return transport_->address(); }
  node::LoopProgress* progress() { return &progress_; }

  // Any thread. `index`: index of the server. `load`: given with the first view if the view
  // names a checkpoint; else null. `budget` outlives the thread, and is the same in each call.
  void Give(const ShardTask& task, int index, std::shared_ptr<CheckpointLoad> load,
            MemoryBudget* budget) {
    Post([this, task, index, load = std::move(load), budget] {
      tasks_.push_back({task, index, load, budget});
    });
  }

  // Any thread. ShardEffects::memory_full; empty: there is enough.
  std::string memory_full() const {
    absl::MutexLock lock(&mutex_);
    return memory_full_;
  }

  // Any thread. OK while the shard can continue; else the reason why it cannot.
  absl::Status failure() const {
    absl::MutexLock lock(&mutex_);
    return failure_;
  }

 private:
  void SetFailure(const absl::Status& why) {
    absl::MutexLock lock(&mutex_);
    if (failure_.ok()) failure_ = why;
  }

  struct GivenTask {
    ShardTask task;
    int index = 0;  // of the server
    std::shared_ptr<CheckpointLoad> load;
    MemoryBudget* budget = nullptr;
  };

  // A checkpoint that is marked or waits for its mark.
  struct CheckpointInProgress {
    uint64_t mark = 0;  // id of the task
    std::string folder;
    bool may_fail = false;
    std::optional<ShardCheckpoint> copying;  // none: given up
    absl::Status status;                     // why it was given up
    int files = 0;         // work for the file thread that is not done, or was left out
    uint64_t written = 0;  // id of the task that waits for the files; 0: none
    // Used by the file thread only. Null before the first range, and when all are being finished.
    std::shared_ptr<SegmentWriter> segments;
    // The file thread writes no more files.
    std::shared_ptr<std::atomic<bool>> given_up = std::make_shared<std::atomic<bool>>(false);

    bool marked() const { return !copying.has_value() || copying->marked(); }
    bool copied() const { return !copying.has_value() || copying->done(); }
  };

  void Post(std::function<void()> work) {
    inbox_.Add(std::move(work));
    transport_->Wake();
  }

  // Each round handles all frames that have arrived, then tasks, the tick, and one slice of a
  // checkpoint. So reads are answered between slices. The loop does not block while there is
  // something to send or to copy. Acknowledgements are sent when no more frames arrive
  // (ShardEffects::MustSend).
  void Loop() {
    std::vector<transport::TransportEvent> events;
    absl::Time next_tick = MonotonicNow();
    while (!stop_) {
      events.clear();
      const bool idle = effects_.out.empty() && !MayCheckpoint();
      transport_->Poll(idle ? kTick : absl::ZeroDuration(), &events);
      const absl::Time now = MonotonicNow();
      for (const transport::TransportEvent& event : events) OnEvent(now, event);
      if (events.empty()) Flush();
      events.clear();
      inbox_.Run();
      DoTasks();
      if (core_ != nullptr && now >= next_tick) {
        next_tick = now + kTick;
        core_->OnTick(now, &effects_);
        CheckMemory();
        progress_.SetActivity(core_->Waiting(now));
      }
      if (MayCheckpoint()) Checkpoint();
      progress_.Advance(last_step_);
      if (effects_.MustSend() || !effects_.log.empty() || !effects_.failure.ok() ||
          !effects_.memory_full.empty()) {
        Flush();
      }
    }
    Flush();
  }

  void OnEvent(absl::Time now, const transport::TransportEvent& event) {
    peers_->OnEvent(event);
    if (const std::string trouble = transport::TroubleIn(event); !trouble.empty()) {
      troubles_.Warning(log_, absl::StrCat("shard ", shard_, ": ", trouble));
    }
    if (event.kind != transport::TransportEvent::Kind::kFrame || core_ == nullptr) return;
    if (!effects_.failure.ok()) return;  // the shard cannot continue
    if (trace_ == nullptr) {
      core_->OnFrame(now, event.frame, &effects_);
    } else {
      OnTracedFrame(now, event.frame);
    }
    if (event.frame.header.step > 0) last_step_ = static_cast<uint64_t>(event.frame.header.step);
    if (effects_.MustSend()) Flush();
  }

  void OnTracedFrame(absl::Time now, const ParsedFrame& frame) {
    const absl::Time begun = MonotonicNow();
    core_->OnFrame(now, frame, &effects_);
    const FrameHeader& header = frame.header;
    const bool evaluates = (header.flags & kFlagEvaluate) != 0;
    if (!evaluates && header.step >= options_.trace_steps) return;
    const char* const what = header.kind == FrameKind::kPush   ? "push"
                             : header.kind == FrameKind::kPull ? "pull"
                                                               : "other";
    AddToTrace(evaluates
                   ? absl::StrCat(header.sender.DebugString(), " evaluates")
                   : absl::StrCat(what, " ", header.step, " of ", header.sender.DebugString()),
               what, begun);
  }

  void AddToTrace(std::string name, const char* category, absl::Time begun) {
    trace_->Add(
        {std::move(name), category, begun, MonotonicNow() - begun, absl::StrCat("shard ", shard_)});
  }

  // Does the tasks in order. Tasks behind a checkpoint wait until it is marked, so that all shards
  // mark it in the same view.
  void DoTasks() {
    while (!tasks_.empty() && (checkpoint_ == nullptr || checkpoint_->marked())) {
      const bool settles = tasks_.front().task.kind == ShardTask::Kind::kForgetWorker;
      if (settles && !core_->ranges().Settled()) return;
      const GivenTask given = std::move(tasks_.front());
      tasks_.pop_front();
      Do(given);
    }
  }

  void Do(const GivenTask& given) {
    const ShardTask& task = given.task;
    switch (task.kind) {
      case ShardTask::Kind::kView: {
        const absl::Status installed = Install(given);
        // Other shards may wait for this one.
        if (!installed.ok() && given.load != nullptr) given.load->Cancel(installed);
        return done_(task.id, installed, nullptr);
      }
      case ShardTask::Kind::kFinishDelayed:
        core_->FinishDelayed(&effects_);
        return done_(task.id, effects_.failure, nullptr);
      case ShardTask::Kind::kReport:
        return Report(task.id);
      case ShardTask::Kind::kForgetWorker:
        return done_(task.id, absl::OkStatus(),
                     std::make_shared<ShardReport>(core_->ForgetWorker(task.worker)));
      case ShardTask::Kind::kRefuseWrites:
        refused_by_scheduler_ = task.reason;
        RefuseWrites();
        return done_(task.id, absl::OkStatus(), nullptr);
      case ShardTask::Kind::kMark:
        if (checkpoint_ != nullptr) {
          GiveUp(absl::CancelledError("abandoned, because the next checkpoint has begun"));
          EndCheckpoint();
        }
        checkpoint_ = std::make_unique<CheckpointInProgress>();
        checkpoint_->mark = task.id;
        checkpoint_->folder = task.path;
        checkpoint_->may_fail = task.may_fail;
        checkpoint_->copying.emplace(core_.get());
        return MarkCheckpoint();
      case ShardTask::Kind::kCheckpoint:
        if (checkpoint_ != nullptr && checkpoint_->folder == task.path) {
          checkpoint_->written = task.id;
          if (task.abandon) GiveUp(absl::CancelledError("abandoned, because a worker failed"));
          return EndIfWritten();
        }
        return done_(task.id,
                     last_folder_ == task.path
                         ? last_checkpoint_
                         : absl::FailedPreconditionError(absl::StrCat(task.path, " is not marked")),
                     nullptr);
    }
  }

  // Installs a view. The first view also creates the core and loads the checkpoint, if there is
  // one.
  absl::Status Install(const GivenTask& given) {
    const ShardTask& task = given.task;
    for (int s = 0; s < task.view->server_size(); ++s) {
      for (int t = 0; t < task.view->server(s).endpoint_size(); ++t) {
        peers_->SetAddress(EndpointId::Shard(s, t), task.view->server(s).endpoint(t));
      }
    }
    const bool first = core_ == nullptr;
    if (first) {
      server_ = given.index;
      const EndpointId self = EndpointId::Shard(given.index, shard_);
      TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<TurnOrder> turns, OpenOrder(self, *task.map));
      TANDEM_ASSIGN_OR_RETURN(
          core_, ShardCore::New(options_.plan, self, options_.member.incarnation, *transport_,
                                std::move(turns), given.budget));
      TANDEM_RETURN_IF_ERROR(OpenRecords(given));
    }
    if (checkpoint_ != nullptr && checkpoint_->copying.has_value()) {
      checkpoint_->copying->BeforeView(*task.map);
    }
    core_->OnView(MonotonicNow(), task.map, &effects_);
    TANDEM_RETURN_IF_ERROR(effects_.failure);
    if (given.load == nullptr) return absl::OkStatus();
    TANDEM_RETURN_IF_ERROR(given.load->Load(shard_, core_->ranges().Owned(), *transport_));
    core_->budget()->Measure();  // without the files of the load
    return core_->OnLoaded();
  }

  absl::StatusOr<std::unique_ptr<TurnOrder>> OpenOrder(EndpointId self, const RangeMap& map) const {
    if (options_.replay.empty()) return std::make_unique<ArrivalOrder>();
    TANDEM_ASSIGN_OR_RETURN(
        auto orders, ReadOrder(options_.replay, options_.plan.workers(), [&](uint32_t range) {
          return range < map.ranges().size() && map.range(range).owner == self;
        }));
    return std::make_unique<Replay>(std::move(orders));
  }

  absl::Status OpenRecords(const GivenTask& given) {
    const Staleness& wanted = options_.plan.job.staleness();
    if (options_.record_dir.empty()) return absl::OkStatus();
    const bool resumes = given.task.view->resume();
    const std::string name = RecordFileName(given.index, shard_);
    const std::string path = absl::StrCat(options_.record_dir, "/", name);
    if (wanted.record_updates()) {
      uint64_t keep = 0;
      if (given.load != nullptr && resumes) {
        TANDEM_ASSIGN_OR_RETURN(const RunRecord run, RunAtCheckpoint(given));
        keep = RecordBytesAt(run, name);
        if (given.index == 0 && shard_ == 0) {
          TANDEM_RETURN_IF_ERROR(CutOtherRecords(options_.record_dir, run, options_.plan.servers(),
                                                 options_.plan.shards_per_server()));
        }
      }
      TANDEM_RETURN_IF_ERROR(records_.Open(path + kRecordSuffix, keep));
    }
    if (!wanted.record_order()) return absl::OkStatus();
    return order_.Open(path + kOrderSuffix, resumes ? kAllRecords : 0);
  }

  static absl::StatusOr<RunRecord> RunAtCheckpoint(const GivenTask& given) {
    TANDEM_ASSIGN_OR_RETURN(const std::string bytes, given.load->Record());
    RunRecord record;
    if (record.ParseFromString(bytes)) return record;
    return absl::DataLossError(absl::StrCat(
        given.task.view->init_from(), ": its run record is damaged; hint: use another checkpoint"));
  }

  // Marks the checkpoint as soon as no range is on its way. The answer has the shard's counts at
  // this moment, for the checkpoint's run record.
  void MarkCheckpoint() {
    if (!checkpoint_->copying->MayMark()) return;
    checkpoint_->copying->Mark();
    Report(checkpoint_->mark);
    SyncRecords();
    EndIfWritten();  // a shard without ranges
  }

  // Records before the mark belong to the checkpoint, which ends only when the disk has them.
  void SyncRecords() {
    const auto file = std::make_shared<OwnedFd>(records_.Descriptor());
    if (!file->valid()) return;
    OnFileThread([file] {
      return fdatasync(file->get()) == 0 || errno == EINVAL  // some file systems have none
                 ? absl::OkStatus()
                 : absl::UnavailableError(
                       absl::StrCat("staleness records: fsync: ", strerror(errno)));
    });
  }

  // Ends a task with the counts of the shard. They are those of the records in the file.
  void Report(uint64_t task) {
    const absl::Status flushed = FlushRecords();
    auto report = std::make_shared<ShardReport>(core_->Report());
    report->set_record_bytes(records_.bytes());
    done_(task, flushed, std::move(report));
  }

  bool MayCheckpoint() const {
    if (checkpoint_ == nullptr) return false;
    if (!checkpoint_->marked()) return checkpoint_->copying->MayMark();
    // With little memory, copy a range only when the one before is written.
    const int most = core_->budget()->MayCopyAhead() ? kMaxFiles : 1;
    return !checkpoint_->copied() && checkpoint_->files < most;
  }

  // Copies the next slice of the checkpoint. The file thread gets each complete range.
  void Checkpoint() {
    const absl::Time begun = MonotonicNow();
    ShardCheckpoint& checkpoint = *checkpoint_->copying;
    if (!checkpoint.marked()) return MarkCheckpoint();
    if (const size_t room = core_->budget()->room(); room < kMinRoom) {
      GiveUp(MemoryFullError(absl::StrCat("no memory for copies of rows: the server uses all but ",
                                          room, " of its ", core_->budget()->limit(),
                                          " bytes; hint: ", job::kWaysToFit)));
      return EndIfWritten();
    }
    std::optional<ShardCheckpoint::File> file = checkpoint.Step(kBytesPerSlice);
    if (trace_ != nullptr) AddToTrace("checkpoint", "checkpoint", begun);
    if (file.has_value()) Write(*std::move(file));
  }

  // Rows that change before their slice are kept in memory. Training does not wait for the disk, so
  // a checkpoint that needs too much of this memory ends. While a checkpoint that the job depends
  // on is written, only programs change rows, in KEY_VALUE tables: their writes are refused then.
  void CheckMemory() {
    const bool depends = checkpoint_ != nullptr && !checkpoint_->may_fail;
    const bool full = depends && core_->budget()->room() < kMinRoom;
    if (full != std::exchange(refuses_for_memory_, full)) RefuseWrites();
    if (checkpoint_ == nullptr || depends) return;
    // Before the mark the shard has no copies, and an error would end the job.
    if (!checkpoint_->marked() || checkpoint_->copied()) return;
    const MemoryBudget& budget = *core_->budget();
    const size_t bytes = checkpoint_->copying->set_aside_bytes();
    const int64_t most = options_.plan.job.limits().held_bytes_per_shard();
    const bool too_many = bytes > static_cast<size_t>(most);
    if (!too_many && !budget.copies_crowd()) return;
    GiveUp(absl::ResourceExhaustedError(absl::StrCat(
        "shard ", shard_, ": rows that changed before their slice was copied need ", bytes,
        " bytes of memory, ",
        too_many ? absl::StrCat("limits.held_bytes_per_shard allows ", most)
                 : absl::StrCat("and copies leave too little for rows: the server uses ",
                                budget.used(), " of ", budget.limit(), " bytes"),
        "; hint: use a faster disk, or raise ",
        too_many ? "the limit" : "cluster.memory_per_server")));
    EndIfWritten();
  }

  void RefuseWrites() {
    const char* const memory =
        refuses_for_memory_
            ? "the server needs its memory for a checkpoint; hint: write again later"
            : "";
    core_->RefuseWrites(refused_by_scheduler_.empty() ? memory : refused_by_scheduler_);
  }

  void Write(ShardCheckpoint::File file) {
    if (checkpoint_->segments == nullptr) {
      checkpoint_->segments =
          std::make_shared<SegmentWriter>(checkpoint_->folder, RecordFileName(server_, shard_));
    }
    auto whole = std::make_shared<ShardCheckpoint::File>(std::move(file));
    OnFileThread([whole, segments = checkpoint_->segments, given_up = checkpoint_->given_up,
                  budget = core_->budget()] {
      if (*given_up) return absl::CancelledError("given up");
      MemoryBudget::Part sorting(budget, /*copies=*/true);
      const RowCopies& copies = whole->copy->rows;
      sorting.Set((copies.size() + copies.candidates().size()) * job::kSortBytes);
      return segments->Add(whole->copy->head, copies.size(), [&](ByteSink sink) {
        return std::move(*whole->copy).Encode(std::move(sink));
      });
    });
  }

  // `work` is a part of the checkpoint in progress. OnWritten follows on the shard's thread.
  template <typename Work>
  void OnFileThread(Work work) {
    ++checkpoint_->files;
    files_.Add([this, work = std::move(work), mark = checkpoint_->mark]() mutable {
      const absl::Status written = CatchExceptions([&] { return work(); });
      (void)Work(std::move(work));  // lets go of the segment before the shard hears of the result
      Post([this, mark, written] { OnWritten(mark, written); });
    });
  }

  // The files of a checkpoint that has ended do not count any more.
  void OnWritten(uint64_t mark, const absl::Status& status) {
    if (checkpoint_ == nullptr || checkpoint_->mark != mark) return;
    --checkpoint_->files;
    if (!status.ok()) GiveUp(status);
    EndIfWritten();
  }

  // Copies and writes no more, and frees the copies. The checkpoint ends when no file is being
  // written, so that nothing appears in the folder after the answer.
  void GiveUp(const absl::Status& why) {
    if (!checkpoint_->copying.has_value()) return;
    if (!checkpoint_->copying->marked()) done_(checkpoint_->mark, why, nullptr);
    checkpoint_->status = why;
    checkpoint_->copying.reset();
    *checkpoint_->given_up = true;
  }

  void EndIfWritten() {
    if (!checkpoint_->marked() || !checkpoint_->copied() || checkpoint_->files > 0) return;
    if (checkpoint_->segments == nullptr || !checkpoint_->status.ok()) return EndCheckpoint();
    OnFileThread([segments = std::exchange(checkpoint_->segments, nullptr),
                  given_up = checkpoint_->given_up] {
      return *given_up ? absl::CancelledError("given up") : segments->Finish();
    });
  }

  void EndCheckpoint() {
    const std::unique_ptr<CheckpointInProgress> ended = std::move(checkpoint_);
    ended->segments.reset();  // removes an unfinished segment before the answer
    last_folder_ = ended->folder;
    last_checkpoint_ = ended->status;
    if (ended->written != 0) done_(ended->written, ended->status, nullptr);
  }

  absl::Status WriteRecords() {
    TANDEM_RETURN_IF_ERROR(records_.Append(effects_.records));
    TANDEM_RETURN_IF_ERROR(order_.Append(effects_.order));
    effects_.records.clear();
    effects_.order.clear();
    return effects_.failure;
  }

  absl::Status FlushRecords() {
    TANDEM_RETURN_IF_ERROR(WriteRecords());
    TANDEM_RETURN_IF_ERROR(records_.Flush());
    return order_.Flush();
  }

  void Flush() {
    // Errors are ignored, because lost frames are resent. A shard that has failed sends nothing,
    // because it could acknowledge an incomplete update.
    for (Outgoing& out : effects_.out) {
      if (effects_.failure.ok()) (void)peers_->Send(std::move(out));
    }
    effects_.ClearOut();
    for (const std::string& line : effects_.log) {
      log_.Info(absl::StrCat("shard ", shard_, ": ", line));
    }
    effects_.log.clear();
    if (!effects_.memory_full.empty()) {
      absl::MutexLock lock(&mutex_);
      memory_full_ = std::exchange(effects_.memory_full, "");
    }
    if (const absl::Status recorded = WriteRecords(); !recorded.ok()) SetFailure(recorded);
  }

  const ServerOptions& options_;
  const int shard_;
  const node::Log log_;
  FileThread& files_;
  collectives::Trace* const trace_;  // null: no trace
  const ShardDone done_;
  node::LoopProgress progress_;
  std::unique_ptr<transport::Transport> transport_;
  std::thread thread_;
  Inbox inbox_;
  mutable absl::Mutex mutex_;
  absl::Status failure_ ABSL_GUARDED_BY(mutex_);
  std::string memory_full_ ABSL_GUARDED_BY(mutex_);
  // The members below are used on the shard's thread only.
  bool stop_ = false;
  int server_ = 0;          // index of the server
  uint64_t last_step_ = 0;  // step of the last frame
  std::unique_ptr<transport::PeerMap> peers_;
  std::unique_ptr<ShardCore> core_;
  std::deque<GivenTask> tasks_;
  std::unique_ptr<CheckpointInProgress> checkpoint_;
  std::string refused_by_scheduler_;  // ShardTask::reason: why KEY_VALUE tables take no writes
  bool refuses_for_memory_ = false;
  std::string last_folder_;  // of the last checkpoint that has ended, with its result
  absl::Status last_checkpoint_;
  ShardEffects effects_;
  node::BoundedLog troubles_;
  RecordFile<UpdateRecord, RecordFileHead> records_{"staleness records"};
  RecordFile<OrderEntry, OrderFileHead> order_{"order of updates"};
};

// The main thread: carries messages between the scheduler, the core and the shards.
class Server {
 public:
  explicit Server(const ServerOptions& options)
      : options_(options), core_(options.plan, options.member.incarnation) {}

  absl::Status Run() {
    TANDEM_ASSIGN_OR_RETURN(transport_, options_.member.make_transport(EndpointId::Shard(0, 0)));
    node::NodeSession::Options member = options_.member;
    member.role = Register::SERVER;
    member.job_hash = options_.plan.hash;
    member.job = &options_.plan.job;
    member.silence = job::SilenceTimes(options_.plan.job);
    files_.emplace([](const std::function<void()>& write) { write(); });
    if (!options_.trace_path.empty()) {
      const int index = options_.member.index;
      trace_ = std::make_unique<collectives::Trace>(absl::StrCat("server ", index),
                                                    kFirstTracedServer + index);
    }
    // The shards start before the session, because the registration contains their addresses.
    for (int t = 0; t < options_.plan.shards_per_server(); ++t) {
      const auto done = [this](uint64_t id, absl::Status status,
                               std::shared_ptr<const ShardReport> report) {
        inbox_.Add([this, id, status = std::move(status), report = std::move(report)] {
          core_.OnShardDone(id, status, report.get(), &effects_);
        });
        transport_->Wake();
      };
      shards_.push_back(std::make_unique<ShardThread>(options_, t, &*files_, trace_.get(), done));
      TANDEM_RETURN_IF_ERROR(shards_.back()->Start());
      member.endpoints.push_back(shards_.back()->address());
      member.loops.push_back(shards_.back()->progress());
    }
    member_ = std::make_unique<node::NodeSession>(*transport_, std::move(member));
    TANDEM_RETURN_IF_ERROR(member_->Start());
    const absl::Status status = member_->RunLoop([this] { return Loop(); });
    if (options_.on_end) options_.on_end(status);
    // The order of the shutdown:
    //   1. The heartbeats end, because they read the progress of the shards.
    //   2. The load of a checkpoint ends, because a shard in it may wait for one that has failed.
    //   3. The threads of the shards stop, because they add work to the file thread.
    //   4. The file thread ends, because it posts results to the shards.
    //   5. The shards are destroyed. No shard adds to the trace any more, so it is written.
    member_.reset();
    if (const auto load = load_.lock()) load->Cancel(absl::CancelledError("the server stops"));
    for (const auto& shard : shards_) shard->Stop();
    files_.reset();
    shards_.clear();
    if (trace_ != nullptr) {
      const absl::Status written = trace_->Write(options_.trace_path);
      if (!written.ok()) {
        node::Log("server", options_.member.index)
            .Error(absl::StrCat("cannot write the trace: ", written.ToString()));
      }
    }
    return status;
  }

 private:
  absl::Status Loop() {
    std::vector<transport::TransportEvent> events;
    for (;;) {
      events.clear();
      transport_->Poll(kTick, &events);
      member_->progress().Advance(0);
      const absl::Time now = MonotonicNow();
      for (const transport::TransportEvent& event : events) member_->OnEvent(now, event);
      for (const Control& control : member_->TakeInbox()) {
        if (control.has_view()) TANDEM_RETURN_IF_ERROR(member_->FindSelf(control.view()).status());
        core_.OnControl(control, &effects_);
      }
      inbox_.Run();
      Flush();
      member_->progress().SetActivity({core_.Doing(), EndpointId()});
      if (core_.stopped()) return absl::OkStatus();
      if (!core_.failure().ok()) return member_->Fail(core_.failure());
      TANDEM_RETURN_IF_ERROR(member_->OnTick(now));
      if (options_.end != nullptr && options_.end->load()) {
        return absl::CancelledError("the worker of this server has ended");
      }
      for (const auto& shard : shards_) {
        if (absl::Status failure = shard->failure(); !failure.ok()) return member_->Fail(failure);
      }
      if (const absl::Status fits = WatchMemory(now); !fits.ok()) return member_->Fail(fits);
    }
  }

  // Measures the process for the budget. Repeats a shard's report of full memory every second,
  // because a message may be lost. Not OK: the job does not fit.
  absl::Status WatchMemory(absl::Time now) {
    if (budget_ == nullptr || now < next_look_) return fits_;
    next_look_ = now + kTick;
    budget_->Measure();
    if (now < next_tell_) return fits_;
    for (const auto& shard : shards_) {
      Control control;
      control.mutable_memory_full()->set_reason(shard->memory_full());
      if (control.memory_full().reason().empty()) continue;
      member_->link().Send(control);
      next_tell_ = now + absl::Seconds(1);
      break;
    }
    return fits_;
  }

  // Creates the budget of the process. The view names the other processes of the job on its host.
  void MakeBudget(const View& view) {
    const job::ResolvedJob& plan = options_.plan;
    const int processes = ProcessesOnHost(view, core_.index());
    const auto set = static_cast<size_t>(plan.job.cluster().memory_per_server());
    const HostMemory host = MemoryOfHost();
    size_t limit = set > 0 ? set : DefaultMemoryLimit(host, processes);
    if (limit == 0) limit = kUnknownMemory;
    const size_t process = ResidentBytes();
    const size_t free = limit - std::min(limit, process);
    const bool saves = !view.checkpoint_folder().empty();
    const job::Reserve reserve = job::ReserveOf(plan, static_cast<int64_t>(free), saves);
    const auto shards = static_cast<size_t>(plan.shards_per_server());
    budget_ =
        std::make_unique<MemoryBudget>(limit, process, static_cast<size_t>(reserve.total()),
                                       std::min(free / 8, shards * MemoryBudget::kSlackOfShard),
                                       /*for_copies=*/static_cast<size_t>(reserve.copies));
    const auto held = static_cast<size_t>(job::MinServerBytes(plan));
    const size_t least = process + static_cast<size_t>(job::MinFreeBytes(plan, saves));
    if (least <= limit) return;
    fits_ = absl::InvalidArgumentError(absl::StrCat(
        "cluster.memory_per_server: ", limit, " bytes",
        set > 0 ? ""
                : absl::StrCat(" (80 % of the ", host.total, " bytes of this host or its control ",
                               "group, for ", processes, " processes of the job)"),
        ", but a server needs ", least, ": ", process, " without rows, ", held,
        " that policies may hold back, and ", least - process - held,
        " for rows and a last checkpoint; hint: more memory, more servers",
        held > 0 ? ", fewer workers, a smaller train.batch_size or train.max_inflight_pushes"
                 : ""));
  }

  void Flush() {
    for (const ShardTask& task : effects_.tasks) {
      if (budget_ == nullptr && task.view != nullptr) MakeBudget(*task.view);
      const std::shared_ptr<CheckpointLoad> load = LoadOf(task);
      for (const auto& shard : shards_) shard->Give(task, core_.index(), load, budget_.get());
    }
    for (const Control& control : effects_.to_scheduler) member_->link().Send(control);
    effects_.Clear();
  }

  // The load of the checkpoint, if the task is the first view and names one; else null.
  std::shared_ptr<CheckpointLoad> LoadOf(const ShardTask& task) {
    if (task.kind != ShardTask::Kind::kView || std::exchange(has_view_, true)) return nullptr;
    const View& view = *task.view;
    if (view.init_from().empty()) return nullptr;
    CheckpointLoad::Options load;
    load.resume = view.resume();
    load.only = {view.only_table().begin(), view.only_table().end()};
    load.shards = options_.plan.shards_per_server();
    load.budget = budget_.get();
    load.on_progress = [this] {
      for (const auto& shard : shards_) shard->progress()->Advance(0);
    };
    const auto open = [checkpoint = options_.checkpoint, path = view.init_from()] {
      return checkpoint->Open(path);
    };
    const auto made = std::make_shared<CheckpointLoad>(
        open, load, RangesToLoad(options_.plan, *task.map, core_.index()));
    load_ = made;
    return made;
  }

  const ServerOptions& options_;
  std::unique_ptr<MemoryBudget> budget_;  // null before the first view; outlives the shards
  absl::Status fits_;                     // whether the job fits the budget
  absl::Time next_look_ = absl::InfinitePast(), next_tell_ = absl::InfinitePast();
  std::unique_ptr<transport::Transport> transport_;
  Inbox inbox_;
  std::optional<FileThread> files_;
  std::unique_ptr<collectives::Trace> trace_;  // null: no trace
  std::vector<std::unique_ptr<ShardThread>> shards_;
  std::unique_ptr<node::NodeSession> member_;
  ServerCore core_;
  ServerEffects effects_;
  bool has_view_ = false;
  std::weak_ptr<CheckpointLoad> load_;  // the shards have it while they load
};

}  // namespace

absl::Status RunServer(const ServerOptions& options) {
  return CatchExceptions([&] {
    Server server(options);
    return server.Run();
  });
}

}  // namespace tandem::server
