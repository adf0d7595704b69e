#include "server/rows/memory_budget.h"

#include <algorithm>
#include <set>

namespace tandem::server {

// A refusal adds nothing, not even for a moment, because another shard could be refused meanwhile.
bool MemoryBudget::TryTake(size_t bytes) {
  const auto more = static_cast<int64_t>(bytes);
  int64_t others = others_;
  do {
    if (process_ + copies_ + others + more > limit_) return false;
  } while (!others_.compare_exchange_weak(others, others + more));
  return true;
}

void MemoryBudget::Part::Set(size_t bytes) {
  if (budget_ == nullptr) return;
  const int64_t more = static_cast<int64_t>(bytes) - static_cast<int64_t>(bytes_);
  (copies_ ? budget_->copies_ : budget_->others_).fetch_add(more);
  bytes_ = bytes;
}

// Copies may use their part of the margin.
int64_t MemoryBudget::AboveMargin() const {
  const int64_t process = loading_ ? min_process_ : int64_t{process_};
  return limit_ - margin_ - process - others_ - std::max<int64_t>(0, copies_ - for_copies_);
}

void MemoryBudget::Measure() {
  const int64_t before = counted();
  OnResident(ResidentBytes(), before);
}

// Pages that are counted and not written yet are not resident, so the difference may be too small.
// Memory that is given back meanwhile may be resident and not counted any more, but is not of the
// process.
void MemoryBudget::OnResident(size_t bytes, int64_t before) {
  const int64_t process =
      std::max(min_process_, static_cast<int64_t>(bytes) - std::max(before, counted()));
  process_ = process;
  absl::MutexLock lock(&mutex_);
  looks_.push_back(process);
  if (looks_.size() > kLooks) looks_.pop_front();
  const bool enough = looks_.size() == kLooks;
  steady_process_ = enough ? *std::min_element(looks_.begin(), looks_.end()) : min_process_;
}

// A worker that serves rows is in a view twice, with one process number.
int ProcessesOnHost(const View& view, int server) {
  const std::string& host = view.server(server).host();
  std::set<int64_t> processes;
  for (const auto* const members : {&view.server(), &view.worker()}) {
    for (const Member& member : *members) {
      if (member.host() == host) processes.insert(member.pid());
    }
  }
  return static_cast<int>(processes.size());
}

}  // namespace tandem::server
