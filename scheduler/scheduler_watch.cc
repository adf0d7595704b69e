// The part of SchedulerCore that looks at the time: who is silent, who stands still, what takes
// long.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "scheduler/scheduler_core.h"

namespace tandem {
namespace {

std::string Seconds(absl::Duration duration) {
  return absl::StrFormat("%.1f s", absl::ToDoubleSeconds(duration));
}

// "worker 0, worker 1 and 298 more".
std::string SomeOf(std::vector<std::string> names) {
  constexpr size_t kMost = 8;
  const size_t more = names.size() > kMost ? names.size() - kMost : 0;
  names.resize(names.size() - more);
  const std::string some = absl::StrJoin(names, ", ");
  return more == 0 ? some : absl::StrCat(some, " and ", more, " more");
}

std::string Doing(const Node& node) {
  return absl::StrCat(node.activity.empty() ? "no word of what it does" : node.activity, ", step ",
                      node.step);
}

}  // namespace

void SchedulerCore::OnTick() {
  switch (phase_) {
    case Phase::kRegistering:
      CheckStart();
      CheckLife();
      CheckHeldFailure();
      return;
    case Phase::kStarting:
    case Phase::kRunning:
      CheckLife();
      CheckHeldFailure();
      CheckWaits();
      CheckStalls();
      ReportProgress();
      return;
    case Phase::kStopping:
    case Phase::kFailing:
      return CheckEnd();
    case Phase::kFinished:
    case Phase::kFailed:
      return;
  }
}

// This process was stopped or starved itself: messages that came meanwhile are still unread, so
// nobody's silence during that time counts.
void SchedulerCore::ForgivePause(absl::Duration pause) {
  for (Node& node : members_.nodes()) {
    node.heard += pause;
    node.moved_at += pause;
    node.step_at += pause;
    node.wait_started += pause;
    if (node.lost_since.has_value()) *node.lost_since += pause;
  }
}

void SchedulerCore::CheckStart() {
  const absl::Duration waited = now_ - *first_step_;
  if (ReportDue(*first_step_, &next_start_report_)) {
    Warn(absl::StrCat("waiting for ", SomeOf(members_.Missing()), " to register, ", Seconds(waited),
                      " so far"));
  }
  if (waited < start_limit_) return;
  const std::vector<std::string> missing = members_.Missing();
  Fail(missing.front(),
       absl::StrCat("not registered within ", Seconds(start_limit_), ": ", SomeOf(missing)),
       absl::StatusCode::kDeadlineExceeded);
}

void SchedulerCore::CheckLife() {
  for (Node& node : members_.nodes()) {
    if (node.gone || node.reported_failure) continue;
    const absl::Duration silence = now_ - node.heard;
    if (node.lost_since.has_value() && now_ - *node.lost_since >= options_.times.reconnect_grace) {
      if (node.connected && node.heard > *node.lost_since) {
        node.lost_since.reset();  // only a second connection of it broke
        continue;
      }
      return NodeDied(&node, absl::StrCat("connection lost (", node.lost_why, ")"));
    }
    if (silence >= options_.times.silence_death) {
      return NodeDied(&node, absl::StrCat("no sign of life for ", Seconds(silence),
                                          "; last seen at: ", Doing(node)));
    }
    if (silence >= options_.times.silence_report && !node.silence_reported) {
      node.silence_reported = true;
      const std::string text =
          absl::StrCat("no sign of life for ", Seconds(silence), "; last seen at: ", Doing(node));
      Log(absl::StrCat(node.Name(), ": ", text));
      Notify(SchedulerNotice::Kind::kStall, node.Name(), text);
    }
  }
}

// A member that is gone, or seems to be: the likely reason why others complain.
Node* SchedulerCore::LikelyDead() {
  for (Node& node : members_.nodes()) {
    if (node.reported_failure || node.gone) continue;
    const bool silent = now_ - node.heard >= options_.times.silence_report;
    if (node.lost_since.has_value() || silent) return &node;
  }
  return nullptr;
}

void SchedulerCore::CheckHeldFailure() {
  if (!held_.has_value()) return;
  if (Node* const dead = LikelyDead(); dead != nullptr) {
    const std::string why = dead->lost_since.has_value()
                                ? absl::StrCat("connection lost (", dead->lost_why, ")")
                                : absl::StrCat("no sign of life for ", Seconds(now_ - dead->heard));
    return NodeDied(dead, why);
  }
  if (now_ < held_->until) return;
  const Failure failure = held_->failure;
  Fail(failure.node(), failure.reason(), static_cast<absl::StatusCode>(failure.code()));
}

void SchedulerCore::CheckWaits() {
  if (phase_ == Phase::kStarting) CheckAcknowledgements();
  if (phase_ == Phase::kRunning) CheckBarriers();
  if (phase_ == Phase::kRunning) CheckCommands();
}

// Once after wait_report, then every minute.
bool SchedulerCore::ReportDue(absl::Time since, absl::Time* next_report) const {
  if (now_ - since < options_.times.wait_report || now_ < *next_report) return false;
  *next_report = now_ + absl::Minutes(1);
  return true;
}

void SchedulerCore::CheckAcknowledgements() {
  std::vector<std::string> missing;
  for (const Node& node : members_.nodes()) {
    if (node.acknowledged_view == 0) missing.push_back(node.Name());
  }
  const std::string text = absl::StrCat("view 1 not acknowledged for ",
                                        Seconds(now_ - phase_since_), " by ", SomeOf(missing));
  if (ReportDue(phase_since_, &next_start_report_)) Warn(text);
  if (now_ - phase_since_ >= stall_limit_) {
    Fail(missing.front(), text, absl::StatusCode::kDeadlineExceeded);
  }
}

void SchedulerCore::CheckBarriers() {
  for (auto& [name, barrier] : barriers_.open()) {
    if (barrier.complete || !ReportDue(barrier.first_entry, &barrier.next_report)) continue;
    std::vector<std::string> missing;
    for (const int rank : barrier.MissingRanks()) {
      missing.push_back(absl::StrCat("worker ", rank, " (", Doing(*members_.worker(rank)), ")"));
    }
    Warn(absl::StrCat("barrier \"", name, "\": ", barrier.entries, " of ", barrier.parties,
                      " in, the first ", Seconds(now_ - barrier.first_entry),
                      " ago; missing: ", SomeOf(missing)));
  }
}

void SchedulerCore::CheckCommands() {
  for (auto& [id, pending] : commands_) {
    std::set<int> servers = pending.servers;
    for (const auto& [server, shard] : pending.shards) servers.insert(server);
    std::vector<std::string> names;
    for (const int server : servers) names.push_back(absl::StrCat("server ", server));
    for (const int rank : pending.workers) names.push_back(absl::StrCat("worker ", rank));
    const std::string text =
        absl::StrCat(Command::Kind_Name(pending.command.kind()), " not done after ",
                     Seconds(now_ - pending.since), " by ", absl::StrJoin(names, ", "));
    if (ReportDue(pending.since, &pending.next_report)) Warn(text);
    // Workers save at barriers and by way of the servers, where long waits have limits of their own.
    if (now_ - pending.since < stall_limit_ || servers.empty()) continue;
    const Node& first = *members_.server(*servers.begin());
    return FailNode(first, text, absl::StatusCode::kDeadlineExceeded);
  }
}

std::vector<WaitState> SchedulerCore::WaitStates() {
  std::vector<WaitState> states;
  for (const Node& node : members_.nodes()) {
    WaitState& state = states.emplace_back();
    state.passes_on = node.role == Role::kServer;
    state.moved_at = node.moved_at;
    if (!node.waits_for.has_value()) continue;
    state.waits_for = NodeIndex(members_.ByEndpoint(*node.waits_for));
    if (state.waits_for == NodeIndex(&node)) state.waits_for = -1;
    state.wait_since = std::max(node.wait_started, node.step_at);
  }
  AddBarrierWaits(&states);
  return states;
}

// What the scheduler knows better than the nodes: who is in a barrier, and what holds it up.
void SchedulerCore::AddBarrierWaits(std::vector<WaitState>* states) {
  for (const auto& [name, barrier] : barriers_.open()) {
    int holds_up = -1;
    if (!barrier.complete) {
      const std::vector<int> missing = barrier.MissingRanks();
      if (!missing.empty()) holds_up = NodeIndex(members_.worker(missing.front()));
    }
    for (const auto& [id, pending] : commands_) {
      if (name == waits_for_saves_ && !pending.workers.empty()) {
        holds_up = NodeIndex(members_.worker(*pending.workers.begin()));
      }
      if (pending.barrier != name) continue;
      const int server = !pending.servers.empty()  ? *pending.servers.begin()
                         : !pending.shards.empty() ? pending.shards.begin()->first
                                                   : -1;
      holds_up = NodeIndex(members_.server(server));
    }
    for (int rank = 0; holds_up >= 0 && rank < members_.workers(); ++rank) {
      if (!barrier.entered[rank]) continue;
      WaitState& state = (*states)[NodeIndex(members_.worker(rank))];
      state.waits_for = holds_up;
      state.at_barrier = true;
      state.wait_since = barrier.entered_at[rank];
    }
  }
}

void SchedulerCore::CheckStalls() {
  if (phase_ != Phase::kRunning) return;
  const std::vector<StalledRoot> stalls =
      FindStalls(now_, options_.times.stall_after, WaitStates());
  std::vector<bool> stalled(members_.nodes().size());
  for (const StalledRoot& stall : stalls) {
    stalled[stall.root] = true;
    Node& root = members_.nodes()[stall.root];
    if (now_ - stall.since >= stall_limit_) {
      return FailNode(root, DescribeStall(stall), absl::StatusCode::kDeadlineExceeded);
    }
    if (!root.stall_reported) ReportStall(stall);
  }
  for (Node& node : members_.nodes()) {
    if (!node.stall_reported || stalled[NodeIndex(&node)]) continue;
    node.stall_reported = false;
    Log(absl::StrCat(node.Name(), " moves again"));
    Notify(SchedulerNotice::Kind::kStallOver, node.Name(), "");
  }
}

std::string SchedulerCore::DescribeStall(const StalledRoot& stalled) {
  const std::string root = Doing(members_.nodes()[stalled.root]);
  const std::string seconds = Seconds(now_ - stalled.since);
  std::vector<std::string> names;
  for (const int i : stalled.victims) names.push_back(members_.nodes()[i].Name());
  const std::string victims = SomeOf(names);
  if (stalled.at_work) return absl::StrCat("waited for by ", victims, " for ", seconds, ": ", root);
  const std::string text = absl::StrCat("no progress for ", seconds, ": ", root);
  if (victims.empty()) return text;
  return absl::StrCat(text, stalled.circle ? "; in a circle of waits with " : "; waited for by ",
                      victims);
}

void SchedulerCore::ReportStall(const StalledRoot& stalled) {
  Node& root = members_.nodes()[stalled.root];
  root.stall_reported = true;
  const std::string text = DescribeStall(stalled);
  Log(absl::StrCat(root.Name(), ": ", text));
  Notify(SchedulerNotice::Kind::kStall, root.Name(), text);
}

void SchedulerCore::ReportProgress() {
  if (phase_ != Phase::kRunning) return;
  if (now_ >= next_progress_) {
    Notify(SchedulerNotice::Kind::kProgress, "", "");
    effects_->notices.back().progress = book_.Interval(now_);
    next_progress_ = std::max(next_progress_ + report_interval_, now_);
  }
  const bool ask = options_.times.shard_reports > absl::ZeroDuration() && members_.servers() > 0 &&
                   now_ >= next_shard_reports_;
  const bool busy = std::any_of(commands_.begin(), commands_.end(), [](const auto& command) {
    return !command.second.servers.empty() || !command.second.shards.empty();
  });
  if (!ask || busy) return;
  CommandServers(Command::REPORT, "", "");
  next_shard_reports_ = now_ + options_.times.shard_reports;
}

}  // namespace tandem
