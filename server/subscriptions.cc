#include "server/subscriptions.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "proto/frame.h"

namespace tandem::server {
namespace {

// StopLooking leaves this many stale entries in due_, because their removal is not worth the time.
constexpr size_t kFewDue = 64;

}  // namespace

Subscriptions::Subscriptions(int workers, size_t most)
    : most_(most), workers_(static_cast<size_t>(workers)) {}

bool Subscriptions::Grows(int64_t clock) {
  if (clock <= clock_) return false;
  clock_ = clock;
  return true;
}

void Subscriptions::Change(Worker* worker, uint64_t key, Row* row) {
  if (std::exchange(row->changed, true)) return;
  worker->changed.push_back(key);
}

void Subscriptions::StopKeeping(int rank, uint64_t key) {
  const auto keepers = keepers_.find(key);
  std::vector<int>& ranks = keepers->second;
  *std::find(ranks.begin(), ranks.end(), rank) = ranks.back();
  ranks.pop_back();
  if (!ranks.empty()) return;
  keepers_.erase(keepers);
  if (max_age_ > 0) StopLooking(key);
}

// Removes stale entries once they are half of the heap. Their rows may stay for very many versions,
// so OnVersion would remove them too late. A sorted vector is a heap.
void Subscriptions::StopLooking(uint64_t key) {
  looks_.erase(key);
  if (due_.size() <= 2 * looks_.size() + kFewDue) return;
  const auto is_over = [this](const std::pair<int64_t, uint64_t>& due) {
    const auto look = looks_.find(due.second);
    return look == looks_.end() || look->second.version != due.first;
  };
  due_.erase(std::remove_if(due_.begin(), due_.end(), is_over), due_.end());
  std::sort(due_.begin(), due_.end());
  due_.erase(std::unique(due_.begin(), due_.end()), due_.end());
}

void Subscriptions::Forget(int rank) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  for (const auto& [key, row] : worker.rows) StopKeeping(rank, key);
  std::vector<uint64_t> dropped;
  TakeDropped(rank, &dropped);
  worker = Worker();
}

void Subscriptions::OnRead(int rank, int64_t step, absl::Span<const uint64_t> keys) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  for (const uint64_t key : keys) {
    const auto [it, is_new] = worker.rows.try_emplace(key);
    if (is_new) keepers_[key].push_back(rank);
    it->second.used = std::max(it->second.used, step);
    if (max_age_ > 0 && looks_.try_emplace(key).second) {
      due_.emplace_back(0, key);  // at the next version
      std::push_heap(due_.begin(), due_.end(), std::greater<>());
    }
  }
  if (most_ > 0 && worker.rows.size() > most_) Shrink(rank);
}

// Drops the rows that were used least recently. Drops an eighth of the bound more than necessary,
// so that this is not done again for each new row.
void Subscriptions::Shrink(int rank) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  by_use_.clear();
  for (const auto& [key, row] : worker.rows) by_use_.push_back({row.used, key});
  const size_t kept = most_ - most_ / 8;
  const auto cut = by_use_.begin() + static_cast<std::ptrdiff_t>(by_use_.size() - kept);
  std::nth_element(by_use_.begin(), cut, by_use_.end());
  std::sort(by_use_.begin(), cut);  // an order that does not depend on a hash
  for (auto it = by_use_.begin(); it != cut; ++it) {
    worker.rows.erase(it->second);
    worker.dropped.push_back(it->second);
    StopKeeping(rank, it->second);
  }
  const auto gone = [&worker](uint64_t key) { return worker.rows.count(key) == 0; };
  worker.changed.erase(std::remove_if(worker.changed.begin(), worker.changed.end(), gone),
                       worker.changed.end());
  if (2 * worker.dropped.size() <= most_) return;
  const auto place = std::lower_bound(must_forget_.begin(), must_forget_.end(), rank);
  if (place == must_forget_.end() || *place != rank) must_forget_.insert(place, rank);
}

void Subscriptions::OnUpdate(int rank, int64_t step, absl::Span<const uint64_t> keys,
                             bool changed) {
  if (changed) OnChanged(keys);
  Worker& own = workers_[static_cast<size_t>(rank)];
  for (const uint64_t key : keys) {
    const auto it = own.rows.find(key);
    if (it == own.rows.end()) continue;
    if (changed) it->second.pushed = std::max(it->second.pushed, step);
    it->second.used = std::max(it->second.used, step);
  }
}

void Subscriptions::OnChanged(absl::Span<const uint64_t> keys) {
  for (const uint64_t key : keys) {
    const auto keepers = keepers_.find(key);
    if (keepers == keepers_.end()) continue;
    for (const int rank : keepers->second) {
      Worker& worker = workers_[static_cast<size_t>(rank)];
      Change(&worker, key, &worker.rows.find(key)->second);
    }
  }
}

// A look at a present row gives the version until which the row stays. A row that is absent at a
// look can be created right after it, and then stays for max_age_ versions. So no row gets too old
// between two looks, and a row that is absent at both looks was absent all the time. But if the
// version skips that of a look, a row may have come and gone.
void Subscriptions::OnVersion(int64_t version,
                              absl::FunctionRef<int64_t(uint64_t key)> present_until) {
  while (!due_.empty() && due_.front().first <= version) {
    const auto [at, key] = due_.front();
    std::pop_heap(due_.begin(), due_.end(), std::greater<>());
    due_.pop_back();
    const auto found = looks_.find(key);
    if (found == looks_.end() || found->second.version != at) continue;
    Look& look = found->second;
    const int64_t until = present_until(key);
    const bool absent = until < 0;
    if (absent && (!look.was_absent || at < version)) OnChanged({&key, 1});
    look.was_absent = absent;
    look.version = absent ? version + max_age_ : until + 1;
    due_.emplace_back(look.version, key);
    std::push_heap(due_.begin(), due_.end(), std::greater<>());
  }
}

bool Subscriptions::Keeps(int rank) const {
  const Worker& worker = workers_[static_cast<size_t>(rank)];
  return !worker.rows.empty() || !worker.dropped.empty();
}

void Subscriptions::TakeDropped(int rank, std::vector<uint64_t>* dropped) {
  dropped->clear();
  dropped->swap(workers_[static_cast<size_t>(rank)].dropped);
  must_forget_.erase(std::remove(must_forget_.begin(), must_forget_.end(), rank),
                     must_forget_.end());
}

void Subscriptions::Take(int rank, int64_t own, std::vector<uint64_t>* changed,
                         std::vector<uint64_t>* dropped) {
  Worker& worker = workers_[static_cast<size_t>(rank)];
  changed->clear();
  TakeDropped(rank, dropped);
  size_t waiting = 0;
  for (const uint64_t key : worker.changed) {
    Row& row = worker.rows.find(key)->second;
    if (row.pushed >= own - kRefreshLag) {
      worker.changed[waiting++] = key;
    } else {
      row.changed = false;
      changed->push_back(key);
    }
  }
  worker.changed.resize(waiting);
}

}  // namespace tandem::server
