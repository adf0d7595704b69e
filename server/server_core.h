// What a server process does beside serving rows: views, saves, reports, the end. A deterministic
// state machine between the scheduler and the shards: Control messages in, tasks for the shards and
// answers for the scheduler out. The process (server_shell.h) and the simulator run the same.
//
// Each task is for all shards of the server. A shard does its tasks in order, one after the other,
// and says when it has done one; when all have, the scheduler hears of it, once for each time it
// asks. So a shard that is told to save knows every view that the scheduler made before, and no
// range leaves and no delayed update is applied while a save copies rows.
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
    kView,           // install `map`; the first one of a run also loads what the run begins with
    kSave,           // write the ranges owned to the folder `path` (shard_save.h)
    kFinishDelayed,  // ShardCore::FinishDelayed
    kReport,         // ShardCore::Report; the report comes with the answer
  };
  Kind kind = Kind::kView;
  uint64_t id = 0;  // of the view or command; the answer has it
  std::shared_ptr<const View> view;
  std::shared_ptr<const RangeMap> map;
  std::string path;
};

// Caller-owned and reused: calls append.
struct ServerEffects {
  std::vector<ShardTask> tasks;       // each for every shard, in order
  std::vector<Control> to_scheduler;  // in order

  void Clear() {
    tasks.clear();
    to_scheduler.clear();
  }
};

class ServerCore {
 public:
  // `plan` outlives the core. `incarnation` finds this server in the first view.
  ServerCore(const job::JobPlan& plan, uint64_t incarnation)
      : plan_(plan), incarnation_(incarnation) {}

  // From the scheduler; what is none of a server's business is ignored.
  void OnControl(const Control& control, ServerEffects* effects);
  // A shard has done the task `id`, or failed in it; `report` after kReport and kSave.
  void OnShardDone(uint64_t id, const absl::Status& status, const ShardReport* report,
                   ServerEffects* effects);

  // For people: "serves rows", "writes its part of a checkpoint".
  std::string Doing() const;
  int index() const { return index_; }  // of this server; -1 before the first view
  bool stopped() const { return stopped_; }
  // Not OK: the server cannot go on, and must tell the scheduler why.
  const absl::Status& failure() const { return failure_; }

 private:
  struct Pending {
    ShardTask::Kind kind = ShardTask::Kind::kView;
    int shards = 0;       // that are still at it
    absl::Status status;  // the first error
    std::vector<Control> reports;
  };

  void OnView(const View& view, ServerEffects* effects);
  void OnCommand(const Command& command, ServerEffects* effects);
  void Begin(ShardTask task, ServerEffects* effects);
  bool AnswerAgain(uint64_t id, ServerEffects* effects);
  void Answer(uint64_t id, const absl::Status& status, ServerEffects* effects);

  const job::JobPlan& plan_;
  const uint64_t incarnation_;
  int index_ = -1;
  bool stopped_ = false;
  absl::Status failure_;
  std::map<uint64_t, Pending> pending_;        // by id
  std::map<uint64_t, absl::Status> answered_;  // the last ones
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SERVER_CORE_H_
