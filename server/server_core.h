// The control part of a server process: views, checkpoints, reports and the end of the job. A
// deterministic state machine between the scheduler and the shards: it gets Control messages, and
// gives tasks to the shards and answers to the scheduler. The process (server_shell.h) and the
// simulator run the same code.
//
// Each task is for all shards of the server. A shard does its tasks in order and reports the end of
// each. When all shards have done a task, the core answers the scheduler. If the scheduler asks
// again, the core answers again. The order of tasks protects a checkpoint: a shard that marks one
// has installed every view that the scheduler made before.
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_SERVER_SERVER_CORE_H_
#define TANDEM_SERVER_SERVER_CORE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "job/job.h"
#include "proto/range_map.h"
#include "proto/wire.pb.h"

namespace tandem::server {

struct ShardTask {
  enum class Kind {
    kView,  // install `map`; the first view also loads the checkpoint, if the run has one
    // Mark the owned ranges for the checkpoint in the folder `path`, and begin to write them
    // (shard_checkpoint.h). The answer carries the report of this moment.
    kMark,
    kCheckpoint,  // done when the checkpoint that was marked for `path` is written, or has failed
    kFinishDelayed,  // ShardCore::FinishDelayed
    kReport,         // ShardCore::Report; the answer carries the report
    kForgetWorker,   // ShardCore::ForgetWorker, once no range is on its way; as kReport
    kRefuseWrites,   // ShardCore::RefuseWrites
  };
  Kind kind = Kind::kView;
  uint64_t id = 0;  // of the view or command; the answer has the same
  std::shared_ptr<const View> view;
  std::shared_ptr<const RangeMap> map;
  std::string path;
  bool abandon = false;   // kCheckpoint: write no more files, and fail
  int worker = 0;         // kForgetWorker: the rank
  std::string reason;     // kRefuseWrites: for people; empty: take writes again
  bool may_fail = false;  // kMark: give up rather than need too much memory
};

// The output of a call. The caller owns and reuses it; calls append to it.
struct ServerEffects {
  std::vector<ShardTask> tasks;       // in order; each is for every shard
  std::vector<Control> to_scheduler;  // in order

  void Clear() {
    tasks.clear();
    to_scheduler.clear();
  }
};

class ServerCore {
 public:
  // `plan` outlives the core. `incarnation` identifies this server in views.
  ServerCore(const job::ResolvedJob& plan, uint64_t incarnation)
      : plan_(plan), incarnation_(incarnation) {}

  // A message from the scheduler. Messages that are not for servers are ignored.
  void OnControl(const Control& control, ServerEffects* effects);
  // A shard has done the task `id`, or has failed. `report`: after kReport, kMark and
  // kForgetWorker, else null.
  void OnShardDone(uint64_t id, const absl::Status& status, const ShardReport* report,
                   ServerEffects* effects);

  // The current activity for people: "serves rows", "writes its part of a checkpoint".
  std::string Doing() const;
  int index() const { return index_; }  // of this server; -1 before the first view
  bool stopped() const { return stopped_; }
  // Not OK: the server cannot continue, and must tell the scheduler why.
  const absl::Status& failure() const { return failure_; }

 private:
  struct Pending {
    ShardTask::Kind kind = ShardTask::Kind::kView;
    int shards = 0;       // shards that have not finished
    absl::Status status;  // the first error
    std::vector<Control> reports;
  };

  struct Answered {
    absl::Status status;
    std::vector<Control> reports;  // only of the last MARK
  };

  void OnView(const View& view, ServerEffects* effects);
  void OnCommand(const Command& command, ServerEffects* effects);
  void Begin(ShardTask task, ServerEffects* effects);
  bool AnswerAgain(uint64_t id, ServerEffects* effects);
  // Sends the reports, then the answer, so that an answer never comes without its reports.
  void Answer(uint64_t id, const absl::Status& status, ServerEffects* effects,
              const std::vector<Control>& reports = {});

  const job::ResolvedJob& plan_;
  const uint64_t incarnation_;
  int index_ = -1;
  bool stopped_ = false;
  absl::Status failure_;
  std::map<uint64_t, Pending> pending_;    // by id
  std::map<uint64_t, Answered> answered_;  // the last answers, by id
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SERVER_CORE_H_
