#include "server/replay.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem::server {
namespace {

std::string Describe(const OrderEntry& e) {
  return absl::StrCat(e.steps == 1 ? "step " : absl::StrCat(e.steps, " steps up to "), e.step,
                      " with ", e.rows, " rows of ", e.samples, " samples",
                      e.rows > 0 ? absl::StrCat(", read at version ", e.version_read) : "",
                      e.finished != 0 ? ", the last of its epoch" : "");
}

// True if both are the same push. For an empty push it does not matter whether it ends an epoch: a
// run that resumed from a checkpoint taken after the end of an epoch announces that end again. No
// row depends on it. If a version depended on it, MayAdmit would notice the different version.
bool Same(const OrderEntry& a, const OrderEntry& b) {
  return a.steps == b.steps && a.step == b.step && a.rows == b.rows && a.samples == b.samples &&
         (a.samples == 0 || a.finished == b.finished) &&
         (a.rows == 0 || a.version_read == b.version_read);
}

}  // namespace

Replay::Replay(std::map<uint32_t, std::vector<OrderEntry>> orders) {
  for (auto& [range, entries] : orders) {
    Order& order = orders_[range];
    order.entries = std::move(entries);
    order.read.resize(order.entries.size());
    order.by_step.resize(order.entries.size());
    std::iota(order.by_step.begin(), order.by_step.end(), 0);
    std::sort(order.by_step.begin(), order.by_step.end(), [&](uint32_t a, uint32_t b) {
      const OrderEntry &x = order.entries[a], &y = order.entries[b];
      return std::make_pair(x.worker, x.step) < std::make_pair(y.worker, y.step);
    });
    for (const OrderEntry& entry : order.entries) {
      if (entry.rows > 0) ++order.unread[entry.version_read];
    }
  }
}

int64_t Replay::Find(const Order& order, int rank, int64_t step) {
  const auto it =
      std::lower_bound(order.by_step.begin(), order.by_step.end(), std::make_pair(rank, step),
                       [&](uint32_t place, const std::pair<int, int64_t>& key) {
                         const OrderEntry& entry = order.entries[place];
                         return std::make_pair(static_cast<int>(entry.worker), entry.step) < key;
                       });
  if (it == order.by_step.end()) return -1;
  const OrderEntry& entry = order.entries[*it];
  return entry.worker == rank && entry.step == step ? int64_t{*it} : -1;
}

bool Replay::MayRead(uint32_t range, int rank, int64_t step, int64_t version) const {
  const auto it = orders_.find(range);
  const int64_t found = it == orders_.end() ? -1 : Find(it->second, rank, step);
  if (found < 0) return true;
  const Order& order = it->second;
  const size_t place = static_cast<size_t>(found);
  const OrderEntry& entry = order.entries[place];
  return entry.rows == 0 || order.read[place] || entry.version_read == version;
}

void Replay::OnRead(uint32_t range, int rank, int64_t step) {
  const auto it = orders_.find(range);
  if (it == orders_.end()) return;
  Order& order = it->second;
  const int64_t found = Find(order, rank, step);
  if (found < 0) return;
  const size_t place = static_cast<size_t>(found);
  if (order.read[place] || order.entries[place].rows == 0) return;
  order.read[place] = true;
  ++turns_;
  const auto left = order.unread.find(order.entries[place].version_read);
  if (--left->second == 0) order.unread.erase(left);
}

Replay::Turn Replay::MayAdmit(const OrderEntry& push, int64_t version, std::string* why) const {
  const auto it = orders_.find(push.range);
  const Order* const order = it == orders_.end() ? nullptr : &it->second;
  const int64_t found = order == nullptr ? -1 : Find(*order, push.worker, push.step);
  if (found < 0) {
    *why = absl::StrCat("range ", push.range, ": worker ", push.worker, " pushes ", Describe(push),
                        ", but the recorded run has no such push");
    return Turn::kNever;
  }
  const size_t place = static_cast<size_t>(found);
  const OrderEntry& recorded = order->entries[place];
  if (!Same(push, recorded)) {
    *why = absl::StrCat("range ", push.range, ": worker ", push.worker, " pushes ", Describe(push),
                        ", but the recorded run has ", Describe(recorded));
    return Turn::kNever;
  }
  if (place != order->next) return Turn::kLater;
  if (version != recorded.version) {
    *why = absl::StrCat("range ", push.range, " is at version ", version,
                        ", but the recorded run was at ", recorded.version, " when worker ",
                        push.worker, " pushed step ", push.step);
    return Turn::kNever;
  }
  // Does the push end the version? The next entry tells. The last entry has none, but no recorded
  // read follows it either.
  const bool ends =
      place + 1 < order->entries.size() && order->entries[place + 1].version > recorded.version;
  return ends && order->unread.count(version) > 0 ? Turn::kLater : Turn::kNow;
}

const OrderEntry& Replay::Next(uint32_t range) const {
  const Order& order = orders_.at(range);
  TANDEM_CHECK(order.next < order.entries.size());
  return order.entries[order.next];
}

int Replay::Awaited(uint32_t range, int waits, int64_t version) const {
  const auto it = orders_.find(range);
  if (it == orders_.end() || it->second.next >= it->second.entries.size()) return -1;
  const Order& order = it->second;
  const int next = order.entries[order.next].worker;
  if (next != waits) return next;
  for (size_t i = order.next; i < order.entries.size(); ++i) {
    const OrderEntry& entry = order.entries[i];
    if (entry.rows > 0 && !order.read[i] && entry.version_read == version) return entry.worker;
  }
  return next;
}

void Replay::OnAdmitted(uint32_t range) {
  ++orders_.at(range).next;
  ++turns_;
}

void Replay::KeepAnswer(int rank, uint64_t request, int64_t step, const Frame& answer) {
  answers_[{rank, request}] = {step, answer};
}

const Frame* Replay::AnswerTo(int rank, uint64_t request) const {
  const auto it = answers_.find({rank, request});
  return it == answers_.end() ? nullptr : &it->second.frame;
}

void Replay::ForgetAnswers(int rank, int64_t step) {
  for (auto it = answers_.lower_bound({rank, 0});
       it != answers_.end() && it->first.first == rank;) {
    it = it->second.step <= step ? answers_.erase(it) : std::next(it);
  }
}

}  // namespace tandem::server
