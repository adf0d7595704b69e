#include "server/server_core.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/memory_full.h"
#include "base/no_room.h"

namespace tandem::server {
namespace {

// After a reconnect the scheduler repeats the requests that it still waits for. Those requests are
// among the latest, so a few answers are enough.
constexpr size_t kAnswersKept = 64;

}  // namespace

void ServerCore::OnControl(const Control& control, ServerEffects* effects) {
  if (control.has_view()) {
    OnView(control.view(), effects);
  } else if (control.has_command()) {
    OnCommand(control.command(), effects);
  }
}

void ServerCore::OnView(const View& view, ServerEffects* effects) {
  if (AnswerAgain(view.number(), effects)) return;
  int index = -1;
  for (int s = 0; s < view.server_size(); ++s) {
    if (view.server(s).incarnation() == incarnation_) index = s;
  }
  absl::StatusOr<std::shared_ptr<const RangeMap>> map = RangeMap::FromView(view, plan_.sizes());
  if (index < 0 || !map.ok()) {
    failure_ =
        index < 0 ? absl::InternalError("received a view without this server") : map.status();
    return;
  }
  index_ = index;
  ShardTask task;
  task.kind = ShardTask::Kind::kView;
  task.id = view.number();
  task.view = std::make_shared<const View>(view);
  task.map = *std::move(map);
  Begin(std::move(task), effects);
}

void ServerCore::OnCommand(const Command& command, ServerEffects* effects) {
  if (command.kind() == Command::START) return;
  if (command.kind() == Command::STOP) {
    stopped_ = true;
    return;
  }
  if (AnswerAgain(command.id(), effects)) return;
  ShardTask task;
  task.id = command.id();
  task.path = command.path();
  task.abandon = command.abandon();
  task.may_fail = command.may_fail();
  task.worker = command.worker();
  task.reason = command.reason();
  switch (command.kind()) {
    case Command::MARK:
      task.kind = ShardTask::Kind::kMark;
      break;
    case Command::CHECKPOINT:
      task.kind = ShardTask::Kind::kCheckpoint;
      break;
    case Command::FINISH_DELAYED:
      task.kind = ShardTask::Kind::kFinishDelayed;
      break;
    case Command::REPORT:
      task.kind = ShardTask::Kind::kReport;
      break;
    case Command::FORGET_WORKER:
      task.kind = ShardTask::Kind::kForgetWorker;
      break;
    case Command::REFUSE_WRITES:
      task.kind = ShardTask::Kind::kRefuseWrites;
      break;
    default:
      return Answer(command.id(),
                    absl::UnimplementedError(absl::StrCat("unknown command ", command.kind())),
                    effects);
  }
  if (task.kind == ShardTask::Kind::kForgetWorker &&
      (task.worker < 0 || task.worker >= plan_.workers())) {
    return Answer(command.id(),
                  absl::InvalidArgumentError(absl::StrCat("no worker of rank ", task.worker)),
                  effects);
  }
  if (index_ < 0) {  // the shards have no ranges yet
    return Answer(command.id(),
                  absl::FailedPreconditionError("received a command before the first view"),
                  effects);
  }
  Begin(std::move(task), effects);
}

std::string ServerCore::Doing() const {
  if (index_ < 0) return "registering";
  if (pending_.empty()) return "serves rows";
  switch (pending_.begin()->second.kind) {
    case ShardTask::Kind::kView:
      return "makes or loads its ranges";
    case ShardTask::Kind::kMark:
      return "marks a checkpoint";
    case ShardTask::Kind::kCheckpoint:
      return "writes its part of a checkpoint";
    case ShardTask::Kind::kFinishDelayed:
      return "applies delayed updates";
    case ShardTask::Kind::kReport:
      return "serves rows";
    case ShardTask::Kind::kForgetWorker:
      return "waits for ranges on their way";
    case ShardTask::Kind::kRefuseWrites:
      return "serves rows";
  }
  return "";
}

void ServerCore::Begin(ShardTask task, ServerEffects* effects) {
  Pending& pending = pending_[task.id];
  pending.kind = task.kind;
  pending.shards = plan_.shards_per_server();
  effects->tasks.push_back(std::move(task));
}

void ServerCore::OnShardDone(uint64_t id, const absl::Status& status, const ShardReport* report,
                             ServerEffects* effects) {
  const auto it = pending_.find(id);
  if (it == pending_.end()) return;
  Pending& pending = it->second;
  if (pending.status.ok()) pending.status = status;
  if (report != nullptr) *pending.reports.emplace_back().mutable_shard_report() = *report;
  if (--pending.shards > 0) return;
  const Pending done = std::move(pending);
  pending_.erase(it);
  // A server that cannot install its ranges, or has no memory for a row, has failed. The
  // scheduler decides about any other error. A checkpoint may fail without ending the job, even if
  // there is no memory for copies of rows.
  const bool lacks_row = IsMemoryFull(done.status) && done.kind != ShardTask::Kind::kCheckpoint;
  if (lacks_row || (done.kind == ShardTask::Kind::kView && !done.status.ok())) {
    failure_ = done.status;
    return;
  }
  Answer(id, done.status, effects, done.reports);
  // A repeated request for a report makes a new report. A repeated MARK gets the same reports.
  const bool reports =
      done.kind == ShardTask::Kind::kReport || done.kind == ShardTask::Kind::kForgetWorker;
  if (reports) answered_.erase(id);
  if (done.kind != ShardTask::Kind::kMark) return;
  for (auto& [earlier, answered] : answered_) answered.reports.clear();
  answered_[id].reports = done.reports;
}

// True if the task is known. Either it is in progress and will be answered at its end, or it has
// been answered; then the answer was lost and is sent again.
bool ServerCore::AnswerAgain(uint64_t id, ServerEffects* effects) {
  if (pending_.count(id) > 0) return true;
  const auto it = answered_.find(id);
  if (it == answered_.end()) return false;
  Answer(id, absl::Status(it->second.status), effects, it->second.reports);
  return true;
}

void ServerCore::Answer(uint64_t id, const absl::Status& status, ServerEffects* effects,
                        const std::vector<Control>& reports) {
  effects->to_scheduler.insert(effects->to_scheduler.end(), reports.begin(), reports.end());
  CommandDone& done = *effects->to_scheduler.emplace_back().mutable_command_done();
  done.set_id(id);
  done.set_code(static_cast<int32_t>(status.code()));
  done.set_message(std::string(status.message()));
  done.set_memory_full(IsMemoryFull(status));
  done.set_no_room(IsNoRoom(status));
  answered_[id].status = status;
  if (answered_.size() > kAnswersKept) answered_.erase(answered_.begin());
}

}  // namespace tandem::server
