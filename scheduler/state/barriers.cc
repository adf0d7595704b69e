#include "scheduler/state/barriers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/clip_text.h"
#include "base/status_macros.h"
#include "scheduler/observe/program_values.h"

namespace tandem::scheduler {
namespace {

BarrierRelease MakeRelease(const std::string& name, const Barrier& barrier,
                           const std::string& record) {
  BarrierRelease release;
  release.set_name(name);
  release.set_max_value(barrier.max_value);
  release.set_failure(barrier.failure);
  release.set_again(barrier.again);
  release.set_record(record);
  release.set_path(IsMark(barrier.action) ? barrier.folder : barrier.path);
  for (const auto& [value, reduced] : ReduceValues(barrier.values)) {
    (*release.mutable_value())[value] = reduced;
  }
  release.set_evaluation_json(barrier.evaluation_json);
  return release;
}

}  // namespace

bool IsMark(BarrierEnter::Action action) {
  return action == BarrierEnter::MARK || action == BarrierEnter::LAST_CHECKPOINT ||
         action == BarrierEnter::PAUSE_CHECKPOINTS;
}

std::vector<int> Barrier::MissingRanks() const {
  std::vector<int> missing;
  for (size_t rank = 0; rank < entered.size(); ++rank) {
    if (!entered[rank]) missing.push_back(static_cast<int>(rank));
  }
  return missing;
}

absl::Status Barriers::Check(int rank, const BarrierEnter& enter) const {
  if (rank < 0 || rank >= workers_) {
    return absl::InvalidArgumentError(absl::StrCat("only workers enter barriers, not rank ", rank));
  }
  if (enter.name().empty() || enter.name().size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("barrier name of ", enter.name().size(),
                                                   " bytes, expected 1 to ", kMaxNameBytes));
  }
  if (enter.parties() < 0 || enter.parties() > workers_) {
    return absl::InvalidArgumentError(absl::StrCat("barrier \"", enter.name(), "\" of ",
                                                   enter.parties(), " parties, the job has ",
                                                   workers_, " workers"));
  }
  if (!BarrierEnter::Action_IsValid(enter.action())) {
    return absl::InvalidArgumentError(absl::StrCat("barrier \"", enter.name(), "\" with action ",
                                                   static_cast<int>(enter.action())));
  }
  const bool checkpoints = enter.action() == BarrierEnter::CHECKPOINT ||
                           enter.action() == BarrierEnter::COMMITTED || IsMark(enter.action());
  if (checkpoints == enter.path().empty() || enter.path().size() > kMaxPathBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("barrier \"", enter.name(), "\": ", BarrierEnter::Action_Name(enter.action()),
                     " with a path of ", enter.path().size(), " bytes, expected ",
                     checkpoints ? absl::StrCat("1 to ", kMaxPathBytes) : "none"));
  }
  if (enter.action() == BarrierEnter::PAUSE_CHECKPOINTS && PartiesOf(enter) != workers_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "barrier \"", enter.name(), "\" pauses checkpoints but is not of all workers"));
  }
  if (!enter.failure().empty() && !enter.may_fail() && !enter.no_room()) {
    return absl::InvalidArgumentError(
        absl::StrCat("barrier \"", enter.name(), "\" that may not fail, with a failure"));
  }
  if (enter.evaluation_json().size() > kMaxEvaluationBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "barrier \"", enter.name(), "\" with an evaluation of ", enter.evaluation_json().size(),
        " bytes, expected at most ", kMaxEvaluationBytes));
  }
  return enter.has_values() ? CheckValues(enter.values()) : absl::OkStatus();
}

absl::Status Barriers::CheckAgreement(const Barrier& barrier, const BarrierEnter& enter) const {
  if (barrier.parties != PartiesOf(enter)) {
    return absl::InvalidArgumentError(
        absl::StrCat("barrier \"", enter.name(), "\" of ", PartiesOf(enter),
                     " parties, an earlier entry said ", barrier.parties));
  }
  if (barrier.action != enter.action() || barrier.path != enter.path() ||
      barrier.may_fail != enter.may_fail() ||
      barrier.absent_may_be_replaced != enter.absent_may_be_replaced()) {
    const auto name = [](BarrierEnter::Action action, const std::string& path) {
      return absl::StrCat(BarrierEnter::Action_Name(action), path.empty() ? "" : " ", path);
    };
    return absl::InvalidArgumentError(
        absl::StrCat("barrier \"", enter.name(), "\" for ", name(enter.action(), enter.path()),
                     ", an earlier entry said ", name(barrier.action, barrier.path)));
  }
  return absl::OkStatus();
}

// INVALID_ARGUMENT: an earlier worker has entered the barrier with other values.
absl::Status Barriers::CheckValuesOf(int rank, const Barrier& barrier, const BarrierEnter& enter) {
  const auto earlier = std::find(barrier.entered.begin(), barrier.entered.end(), true);
  if (earlier == barrier.entered.end()) return absl::OkStatus();
  const auto other = static_cast<int>(earlier - barrier.entered.begin());
  const auto values = barrier.values.find(other);
  return CheckSameValues(rank, enter.values(), other,
                         values == barrier.values.end() ? ProgramValues() : values->second);
}

absl::StatusOr<Barriers::Entry> Barriers::Enter(absl::Time now, int rank,
                                                const BarrierEnter& enter) {
  TANDEM_RETURN_IF_ERROR(Check(rank, enter));
  // Released barriers come first, because a repeated entry must not open its barrier again.
  const auto same_name = [&](const BarrierRelease& r) { return r.name() == enter.name(); };
  if (std::any_of(released_.begin(), released_.end(), same_name)) return Entry::kReleased;

  auto it = open_.find(enter.name());
  if (it == open_.end()) {
    if (open_.size() >= static_cast<size_t>(kMaxOpen) * workers_) {
      return absl::InvalidArgumentError(
          absl::StrCat("barrier \"", enter.name(), "\": ", open_.size(), " are open already"));
    }
    it = open_.emplace(enter.name(), Barrier()).first;
    it->second.parties = PartiesOf(enter);
    it->second.action = enter.action();
    it->second.path = enter.path();
    it->second.may_fail = enter.may_fail();
    it->second.absent_may_be_replaced = enter.absent_may_be_replaced();
    it->second.max_value = enter.value();
    it->second.entered.resize(workers_);
    it->second.entered_at.resize(workers_);
    it->second.first_entry = now;
  }
  Barrier& barrier = it->second;
  // Repetitions are checked, too, but only a first entry changes the barrier.
  TANDEM_RETURN_IF_ERROR(CheckAgreement(barrier, enter));
  if (barrier.complete || barrier.entered[rank]) return Entry::kWaiting;
  TANDEM_RETURN_IF_ERROR(CheckValuesOf(rank, barrier, enter));
  if (enter.has_values()) barrier.values[rank] = enter.values();
  if (rank == 0) barrier.evaluation_json = enter.evaluation_json();
  barrier.max_value = std::max(barrier.max_value, enter.value());
  if (!enter.failure().empty()) {
    barrier.AddFailure(
        absl::StrCat("worker ", rank, ": ", ClipText(enter.failure(), kMaxPathBytes)),
        enter.no_room());
  }
  barrier.part_bytes += std::max<int64_t>(enter.part_bytes(), 0);
  if (rank == 0) barrier.free_bytes = enter.free_bytes();
  return EnterForAbsent(now, rank, enter.name());
}

Barriers::Entry Barriers::EnterForAbsent(absl::Time now, int rank, const std::string& name) {
  Barrier& barrier = open_.at(name);
  if (barrier.complete || barrier.entered[rank]) return Entry::kWaiting;
  barrier.entered[rank] = true;
  barrier.entered_at[rank] = now;
  barrier.complete = ++barrier.entries == barrier.parties;
  return barrier.complete ? Entry::kComplete : Entry::kWaiting;
}

BarrierRelease Barriers::Release(const std::string& name, const std::string& record) {
  const auto it = open_.find(name);
  TANDEM_CHECK(it != open_.end());
  // Only the last checkpoint's record is kept for repetition. Workers have left the barriers of
  // earlier ones.
  if (!record.empty()) {
    for (BarrierRelease& earlier : released_) earlier.clear_record();
  }
  released_.push_back(MakeRelease(name, it->second, record));
  if (released_.size() > kRemembered) released_.pop_front();
  open_.erase(it);
  return released_.back();
}

BarrierRelease Barriers::Released(const std::string& name) const {
  const auto it = std::find_if(released_.rbegin(), released_.rend(),
                               [&](const BarrierRelease& r) { return r.name() == name; });
  TANDEM_CHECK(it != released_.rend());
  return *it;
}

}  // namespace tandem::scheduler
