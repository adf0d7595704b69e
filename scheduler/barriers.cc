#include "scheduler/barriers.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem {
namespace {

BarrierRelease MakeRelease(const std::string& name, int64_t max_value) {
  BarrierRelease release;
  release.set_name(name);
  release.set_max_value(max_value);
  return release;
}

}  // namespace

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
    return absl::InvalidArgumentError(
        absl::StrCat("barrier name of ", enter.name().size(), " bytes, want 1 to ", kMaxNameBytes));
  }
  if (enter.parties() < 0 || enter.parties() > workers_) {
    return absl::InvalidArgumentError(absl::StrCat("barrier \"", enter.name(), "\" of ",
                                                   enter.parties(), " parties, the job has ",
                                                   workers_, " workers"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Barriers::Entry> Barriers::Enter(absl::Time now, int rank,
                                                const BarrierEnter& enter) {
  TANDEM_RETURN_IF_ERROR(Check(rank, enter));
  const auto same_name = [&](const BarrierRelease& r) { return r.name() == enter.name(); };
  if (std::any_of(released_.begin(), released_.end(), same_name)) return Entry::kReleased;

  const int parties = enter.parties() == 0 ? workers_ : enter.parties();
  auto it = open_.find(enter.name());
  if (it == open_.end()) {
    if (open_.size() >= static_cast<size_t>(kMaxOpen) * workers_) {
      return absl::InvalidArgumentError(
          absl::StrCat("barrier \"", enter.name(), "\": ", open_.size(), " are open already"));
    }
    it = open_.emplace(enter.name(), Barrier()).first;
    it->second.parties = parties;
    it->second.max_value = enter.value();
    it->second.entered.resize(workers_);
    it->second.entered_at.resize(workers_);
    it->second.first_entry = now;
  }
  Barrier& barrier = it->second;
  if (barrier.parties != parties) {
    return absl::InvalidArgumentError(absl::StrCat("barrier \"", enter.name(), "\" of ", parties,
                                                   " parties, an earlier entry said ",
                                                   barrier.parties));
  }
  if (barrier.complete || barrier.entered[rank]) return Entry::kWaiting;
  barrier.entered[rank] = true;
  barrier.entered_at[rank] = now;
  barrier.max_value = std::max(barrier.max_value, enter.value());
  barrier.complete = ++barrier.entries == parties;
  return barrier.complete ? Entry::kComplete : Entry::kWaiting;
}

BarrierRelease Barriers::Release(const std::string& name) {
  const auto it = open_.find(name);
  TANDEM_CHECK(it != open_.end());
  released_.push_back(MakeRelease(name, it->second.max_value));
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

}  // namespace tandem
