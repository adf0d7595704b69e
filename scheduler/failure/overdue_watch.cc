#include "scheduler/failure/overdue_watch.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/failure/failure_judge.h"

namespace tandem::scheduler {

bool OverdueWatch::ReportDue(absl::Time now, absl::Time since, absl::Time* next_report) const {
  if (now - since < times_.wait_report || now < *next_report) return false;
  *next_report = now + absl::Minutes(1);
  return true;
}

absl::optional<Failure> OverdueWatch::CheckRegistration(absl::Time now, absl::Time since,
                                                        SchedulerEffects* effects) {
  const absl::Duration waited = now - since;
  if (ReportDue(now, since, &next_registration_)) {
    effects->Warn(absl::StrCat("waiting for ", SomeOf(members_.Missing()), " to register, ",
                               InSeconds(waited), " so far"));
  }
  if (waited < limits_.start) return absl::nullopt;
  const std::vector<std::string> missing = members_.Missing();
  return FailureOf(
      missing.front(),
      absl::StrCat("not registered within ", InSeconds(limits_.start), ": ", SomeOf(missing),
                   "; hint: read their logs, or raise limits.startup_timeout_seconds"),
      absl::StatusCode::kDeadlineExceeded);
}

absl::optional<Failure> OverdueWatch::CheckAcknowledgements(absl::Time now, absl::Time since,
                                                            SchedulerEffects* effects) {
  std::vector<std::string> missing;
  const Node* overdue = nullptr;
  for (const Node& node : members_.nodes()) {
    if (node.acknowledged_view > 0) continue;
    missing.push_back(node.Name());
    // A server makes progress while it loads a checkpoint, which may take long.
    const absl::Time from = node.role == Role::kServer ? std::max(since, node.moved_at) : since;
    if (overdue == nullptr && now - from >= limits_.stall) overdue = &node;
  }
  const std::string text =
      absl::StrCat("view 1 not acknowledged for ", InSeconds(now - since), " by ", SomeOf(missing));
  if (ReportDue(now, since, &next_acknowledgement_)) effects->Warn(text);
  if (overdue == nullptr) return absl::nullopt;
  return FailureOf(overdue->Name(), text, absl::StatusCode::kDeadlineExceeded);
}

void OverdueWatch::CheckBarriers(absl::Time now, SchedulerEffects* effects) {
  for (auto& [name, barrier] : barriers_.open()) {
    const bool in_background = barrier.action == BarrierEnter::CHECKPOINT && barrier.may_fail;
    if (barrier.complete || in_background ||
        !ReportDue(now, barrier.first_entry, &barrier.next_report))
      continue;
    std::vector<std::string> missing;
    for (const int rank : barrier.MissingRanks()) {
      missing.push_back(absl::StrCat("worker ", rank, " (", members_.worker(rank)->Doing(), ")"));
    }
    effects->Warn(absl::StrCat("barrier \"", name, "\": ", barrier.entries, " of ", barrier.parties,
                               " have entered, the first ", InSeconds(now - barrier.first_entry),
                               " ago; missing: ", SomeOf(missing)));
  }
}

// Whether a CHECKPOINT command, to workers or to servers, belongs to a requested checkpoint.
bool OverdueWatch::InBackground(const PendingCommand& pending) const {
  const auto barrier = barriers_.open().find(pending.barrier);
  return pending.barrier.empty() || (barrier != barriers_.open().end() && barrier->second.may_fail);
}

absl::optional<Failure> OverdueWatch::CheckCommands(absl::Time now, SchedulerEffects* effects) {
  for (auto& [id, pending] : commands_.pending()) {
    const std::string text =
        absl::StrCat(Command::Kind_Name(pending.command.kind()), " not done after ",
                     InSeconds(now - pending.since), " by ", pending.MissingNames());
    // A checkpoint has no timeout, because the disk decides how long its files take. Training does
    // not wait for a requested checkpoint, so it is reported only after the stall timeout.
    const bool writes = pending.command.kind() == Command::CHECKPOINT;
    const absl::Time late =
        pending.since + (writes && InBackground(pending) ? limits_.stall : absl::ZeroDuration());
    if (ReportDue(now, late, &pending.next_report)) effects->Warn(text);
    const std::set<int> servers = pending.MissingServers();
    if (now - pending.since < limits_.stall || servers.empty() || writes) continue;
    return FailureOf(members_.server(*servers.begin())->Name(), text,
                     absl::StatusCode::kDeadlineExceeded);
  }
  return absl::nullopt;
}

}  // namespace tandem::scheduler
