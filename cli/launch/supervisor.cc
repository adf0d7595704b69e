#include "cli/launch/supervisor.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "node/role_flags.h"

namespace tandem::cli {
namespace {

// kEndGrace: how long processes may run after the end of the job, before they are told to end.
// kStopGrace: how long processes may take to end. kEarlyStopGrace: the same before the start.
constexpr absl::Duration kEndGrace = absl::Seconds(6);
constexpr absl::Duration kStopGrace = absl::Seconds(3);
constexpr absl::Duration kEarlyStopGrace = absl::Milliseconds(300);

}  // namespace

// Keeps the first cause. A process that a signal has killed is the cause, even if the scheduler
// names another one. In all other cases the scheduler knows the cause best.
void Supervisor::OnFailed(absl::Time now, const std::string& node, const std::string& reason,
                          bool comes_again, int64_t step, bool no_room) {
  give_up_ = std::min(give_up_, now + kStopGrace);
  if (!failure_.empty()) return;
  failure_ = absl::StrCat(node, ": ", reason);
  blamed_ = node;
  blamed_for_ = reason;
  comes_again_ = comes_again;
  no_room_ = no_room;
  failed_step_ = step;
  const auto quiet = quiet_exits_.find(node);
  if (!first_exit_.has_value() && quiet != quiet_exits_.end() && KnowsBetter(quiet->second)) {
    first_exit_ = quiet->second;
  }
  if (first_exit_.has_value() && KnowsBetter(*first_exit_)) NameTheEnded();
}

void Supervisor::OnFinished(absl::Time now) {
  finished_ = true;
  if (!options_.scripts || stopping_ || !failure_.empty()) {
    give_up_ = std::min(give_up_, now + kEndGrace);
    return;
  }
  give_up_ = absl::InfiniteFuture();  // OnWorkersEnded sets the end
  if (first_exit_.has_value()) OnScriptExit(*first_exit_);
}

void Supervisor::OnWorkersEnded(absl::Time now) { give_up_ = std::min(give_up_, now + kEndGrace); }

void Supervisor::OnScriptExit(const Children::Exit& exit) {
  const bool ended_well = exit.code == 0 && exit.signal == 0;
  if (ended_well || !absl::StartsWith(exit.name, "worker ") || !script_failure_.empty()) return;
  script_failure_ = absl::StrCat(exit.DebugString(), " after the end of the job");
  // The last line of an exception.
  if (exit.code == 1 && exit.signal == 0 && !exit.lines.empty()) {
    absl::StrAppend(&script_failure_, ": ", exit.lines.back());
  }
}

// If another role has ended, too, the attempt ends.
void Supervisor::OnVacant(const std::string& role) {
  vacant_.insert(role);
  quiet_exits_.erase(role);
  if (!failure_.empty() || !first_exit_.has_value() || first_exit_->name != role) return;
  if (others_ended_) return;
  first_exit_.reset();
  give_up_ = absl::InfiniteFuture();
}

// Handles killed processes first, because other processes may have ended because of them.
void Supervisor::OnExits(absl::Time now, std::vector<Children::Exit> exits) {
  std::stable_partition(exits.begin(), exits.end(),
                        [](const Children::Exit& exit) { return exit.signal != 0; });
  for (const Children::Exit& exit : exits) OnExit(now, exit);
}

// Handles a process that ends before the job. Before the job has started, this process is the
// cause. Later the scheduler names the cause, which may be another process. If the scheduler
// names none, the cause is this process. If a new attempt may follow a process that a signal has
// killed, there is no need to wait for the scheduler.
void Supervisor::OnExit(absl::Time now, const Children::Exit& exit) {
  if (awaits_scripts()) OnScriptExit(exit);
  if (finished_ || vacant_.count(exit.name) > 0) return;
  if (!failure_.empty()) {
    // The scheduler may notice the closed connection before Reap() reports that process.
    if (exit.name == blamed_ && KnowsBetter(exit) && !first_exit_.has_value()) {
      first_exit_ = exit;
      NameTheEnded();
    }
    return;
  }
  if (started_ && exit.code == 0 && exit.signal == 0) {  // normal if the job has finished
    quiet_exits_.emplace(exit.name, exit);
    return;
  }
  if (!first_exit_.has_value()) first_exit_ = exit;
  others_ended_ |= exit.name != first_exit_->name;
  const bool mute = exit.name == "scheduler";  // no more events will come
  const bool asks = options_.replaces && absl::StartsWith(exit.name, "worker ");
  const bool known = options_.restarts && !ending_ && exit.signal != 0 && !asks;
  give_up_ = std::min(give_up_, mute || !started_ || known ? now : now + options_.naming);
}

void Supervisor::OnCannotStart(const std::string& reason) {
  if (failure_.empty()) failure_ = reason;
  give_up_ = absl::InfinitePast();
}

// The scheduler of a running job first writes a checkpoint, then ends all processes. At the second
// signal, or without checkpoints, it ends all processes at once. Before the job has started, the
// caller does not wait for the scheduler. After the end of the job only scripts run, and the signal
// ends them at once. An earlier deadline stays.
Supervisor::Stop Supervisor::OnStop(absl::Time now) {
  const bool again = stopping_;
  stopping_ = true;
  if (awaits_scripts()) {
    give_up_ = std::min(give_up_, now);
    return Stop::kIgnore;
  }
  if (again && (finished_ || !options_.checkpoints)) return Stop::kIgnore;
  if (started_ && options_.checkpoints && !again) return Stop::kCheckpoint;
  if (failure_.empty()) failure_ = "stopped by a signal";
  give_up_ = std::min(give_up_, started_ && !options_.ends_at_once ? now + kStopGrace : now);
  return Stop::kEnd;
}

void Supervisor::Conclude() {
  if (failure_.empty() && !finished_) failure_ = WhyItEnded();
}

AttemptFailure Supervisor::Failure() const {
  AttemptFailure failure;
  failure.text = failure_;
  failure.error = blamed_for_;
  failure.step = failed_step_;
  failure.comes_again = comes_again_;
  failure.no_room = no_room_;
  failure.began = started_;
  failure.ending = ending_;
  // The first process of a renewed role could read its input.
  if (first_exit_.has_value() && first_exit_->signal == 0 &&
      first_exit_->code == node::kExitBadInput && renewed_.count(first_exit_->name) == 0) {
    failure.comes_again = true;
  }
  return failure;
}

absl::Duration Supervisor::Grace() const { return started_ ? kStopGrace : kEarlyStopGrace; }

// Whether the end of a process says more than the scheduler. A signal always does, unless the
// scheduler has learned of it from an agent. An exit status, even 0, does if the scheduler has only
// lost the connection.
bool Supervisor::KnowsBetter(const Children::Exit& exit) const {
  if (exit.name == blamed_ && absl::StrContains(blamed_for_, exit.HowItEnded())) return false;
  const bool lost = absl::StartsWith(blamed_for_, "connection lost");
  return exit.signal != 0 || (lost && exit.name == blamed_);
}

void Supervisor::NameTheEnded() {
  failure_ = absl::StrCat(
      WhyItEnded(), "; the scheduler saw: ", first_exit_->name == blamed_ ? blamed_for_ : failure_);
}

std::string Supervisor::WhyItEnded() const {
  if (!first_exit_.has_value()) return "the job ended, and no process has reported a failure";
  const std::string exit =
      absl::StrCat(first_exit_->DebugString(), started_ ? "" : " before the job had started");
  if (first_exit_->signal != 0) return exit;
  if (!started_ && options_.scripts && first_exit_->code == 0) {
    return absl::StrCat(exit,
                        "; hint: the script must call tandem.init() or tandem.torchrec.shard()");
  }
  if (!first_exit_->lines.empty()) return absl::StrCat(exit, ": ", first_exit_->lines.back());
  const std::string why = options_.why_no_log();
  return why.empty() ? exit : absl::StrCat(exit, ", and its log is empty: ", why);
}

}  // namespace tandem::cli
