// The output of one step of the scheduler: messages to nodes, lines for its log, and notices for
// the program that started the job.
#ifndef TANDEM_SCHEDULER_STATE_EFFECTS_H_
#define TANDEM_SCHEDULER_STATE_EFFECTS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "proto/wire.pb.h"
#include "scheduler/observe/job_report.h"
#include "scheduler/state/membership.h"
#include "scheduler/state/readers.h"

namespace tandem::scheduler {

struct SchedulerNotice {
  enum class Kind {
    kStarted,
    kProgress,
    kEvaluation,
    kReported,
    kCheckpointed,
    kStall,
    kStallOver,
    kEnding,
    kVacant,    // a worker has died; another process may register with its rank
    kReplaced,  // the new process has trained the steps that some range lacked
    kFailed,
    kFinished
  };
  Kind kind = Kind::kProgress;
  std::string node;  // for kStall, kStallOver, kFailed, kVacant, kReplaced
  std::string text;  // reason or description; JSON for kEvaluation, kReported
  absl::StatusCode code = absl::StatusCode::kOk;  // kFailed
  bool diverged = false;                          // kFailed
  bool comes_again = false;                       // kFailed: failure_judge.h
  bool no_room = false;                           // kFailed: a disk is full
  std::string damaged_checkpoint;                 // kFailed: Failure.damaged_checkpoint
  JobProgress progress;                           // kProgress
  // kCheckpointed; kReplaced: the first step that is trained again; kFailed, kVacant: of the failed
  // worker, -1 if it is not known
  int64_t step = 0;
  double seconds = 0;       // kReplaced: since the death
  int64_t steps_again = 0;  // kReplaced
};

// The caller owns and reuses this object; a step appends to it.
struct SchedulerEffects {
  struct Send {
    uint64_t connection = 0;
    std::shared_ptr<const Control> control;  // messages to several nodes share one
  };
  std::vector<Send> sends;
  std::vector<std::string> logs;
  std::vector<std::string> warnings;  // the lines of `logs` that the user should see
  std::vector<SchedulerNotice> notices;
  // The connection of rank 0, for records; nullopt: rank 0 has not begun, or has left.
  std::optional<uint64_t> rank_zero;

  void Clear() {
    sends.clear();
    logs.clear();
    warnings.clear();
    notices.clear();
  }

  void SendOn(uint64_t connection, Control control) {
    sends.push_back({connection, std::make_shared<const Control>(std::move(control))});
  }
  // Sends nothing to a node without a connection. When the node is back, it gets what it has missed
  // (SchedulerCore::Welcome).
  void SendTo(const Node& node, std::shared_ptr<const Control> control) {
    if (node.connected && !node.gone) sends.push_back({node.main, std::move(control)});
  }
  void SendTo(const Node& node, const Control& control) {
    SendTo(node, std::make_shared<const Control>(control));
  }
  void SendToAll(const std::vector<Node>& nodes, const Readers& readers,
                 const std::shared_ptr<const Control>& control) {
    for (const Node& node : nodes) SendTo(node, control);
    for (const auto& [connection, number] : readers.all()) sends.push_back({connection, control});
  }
  void SendToAll(const std::vector<Node>& nodes, const Readers& readers, const Control& control) {
    SendToAll(nodes, readers, std::make_shared<const Control>(control));
  }
  void SendFailure(uint64_t connection, const Failure& failure) {
    Control control;
    *control.mutable_failure() = failure;
    SendOn(connection, std::move(control));
  }
  void Log(std::string line) { logs.push_back(std::move(line)); }
  void Warn(const std::string& line) {
    warnings.push_back(line);
    Log(line);
  }
  SchedulerNotice* Notify(SchedulerNotice::Kind kind, std::string node, std::string text) {
    SchedulerNotice& notice = notices.emplace_back();
    notice.kind = kind;
    notice.node = std::move(node);
    notice.text = std::move(text);
    return &notice;
  }
};

// Refuses processes that are not members, and logs their messages. Logs only the first kMax lines,
// because such processes could fill the log.
class RefusalLog {
 public:
  static constexpr int kMax = 100;

  // The process may not join.
  void Refuse(uint64_t connection, const absl::Status& why, SchedulerEffects* effects) {
    Failure failure;
    failure.set_node("scheduler");
    failure.set_reason(std::string(why.message()));
    failure.set_code(static_cast<int32_t>(why.code()));
    effects->SendFailure(connection, failure);
    if (lines_++ < kMax) effects->Warn(absl::StrCat("refused: ", why.message()));
  }
  void Ignore(const absl::Status& why, SchedulerEffects* effects) {
    if (lines_++ >= kMax) return;
    effects->Log(absl::StrCat("ignored, not from a member: ", Clip(why.message())));
  }

 private:
  int lines_ = 0;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_STATE_EFFECTS_H_
