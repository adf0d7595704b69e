#include "server/memory_budget.h"

#include <set>

namespace tandem::server {

// A refusal adds nothing, not even for a moment, because another shard could be refused meanwhile.
bool MemoryBudget::TryTake(size_t bytes) {
  const auto more = static_cast<int64_t>(bytes);
  int64_t counted = counted_;
  do {
    if (process_ + counted + more > limit_) return false;
  } while (!counted_.compare_exchange_weak(counted, counted + more));
  return true;
}

void MemoryBudget::Part::Set(size_t bytes) {
  if (budget_ == nullptr || bytes == bytes_) return;
  const int64_t more = static_cast<int64_t>(bytes) - static_cast<int64_t>(bytes_);
  if (copies_ && more > 0) budget_->copies_.fetch_add(more);
  budget_->counted_.fetch_add(more);
  if (copies_ && more < 0) budget_->copies_.fetch_add(more);
  bytes_ = bytes;
}

// Room without the margin. Copies may use their part of it. Their number may change between the
// two reads, and so the larger one counts.
int64_t MemoryBudget::AboveMargin() const {
  const int64_t copies = copies_;
  const auto free = static_cast<int64_t>(room());
  return free + std::min(for_copies_, std::max<int64_t>(copies, copies_)) - margin_;
}

// The counted bytes without copies. copies_ may change between the two reads, and so the larger
// value counts.
int64_t MemoryBudget::WithoutCopies() const {
  const int64_t copies = copies_;
  const int64_t counted = counted_;
  return counted - std::max<int64_t>(copies, copies_);
}

void MemoryBudget::Measure() {
  const int64_t counted = counted_;
  OnResident(ResidentBytes(), counted);
}

// Pages that are counted and not written yet are not resident, so the difference may be too small.
// Memory that is given back meanwhile may be resident and not counted any more, but is not of the
// process.
void MemoryBudget::OnResident(size_t bytes, int64_t counted) {
  process_ =
      std::max(least_process_, static_cast<int64_t>(bytes) - std::max<int64_t>(counted, counted_));
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
