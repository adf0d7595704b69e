#include "server/record/replay.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"

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

bool Replay::MayRead(const OrderedRange& range, const FrameHeader& read, uint32_t rows,
                     int depth) const {
  const policies::RangeProgress& progress = range.order.progress();
  if (rows == 0) {
    const policies::UpdatePolicy& policy = range.order.policy();
    if (policy.properties().measures_steps) return policy.MayStart(read.step, progress.MinClock());
    return policy.MayServe(progress, read.sender.index, read.step, depth);
  }
  const auto it = orders_.find(range.id);
  const int64_t found = it == orders_.end() ? -1 : Find(it->second, read.sender.index, read.step);
  if (found < 0) return true;
  const Order& order = it->second;
  const size_t place = static_cast<size_t>(found);
  const OrderEntry& entry = order.entries[place];
  return entry.rows == 0 || order.read[place] || entry.version_read == progress.version;
}

const Frame* Replay::AnswerTo(const FrameHeader& read) const {
  const auto it = answers_.find({read.sender.index, read.request});
  return it == answers_.end() || read.flags != 0 ? nullptr : &it->second.frame;
}

bool Replay::OnRead(const FrameHeader& read, absl::Span<const SliceEntry> entries,
                    const Frame& answer) {
  if ((read.flags & kFlagEvaluate) != 0) return false;
  bool marked = false;
  for (const SliceEntry& e : entries) {
    if (e.rows > 0 && MarkRead(e.range, read.sender.index, read.step)) marked = true;
  }
  if (read.flags == 0) answers_[{read.sender.index, read.request}] = {read.step, answer};
  return marked;
}

bool Replay::MarkRead(uint32_t range, int rank, int64_t step) {
  const auto it = orders_.find(range);
  if (it == orders_.end()) return false;
  Order& order = it->second;
  const int64_t found = Find(order, rank, step);
  if (found < 0) return false;
  const size_t place = static_cast<size_t>(found);
  if (order.read[place] || order.entries[place].rows == 0) return false;
  order.read[place] = true;
  const auto left = order.unread.find(order.entries[place].version_read);
  if (--left->second == 0) order.unread.erase(left);
  return true;
}

absl::StatusOr<bool> Replay::MayAdmit(const OrderedRange& range, const FrameHeader& h,
                                      HeldUpdate* update) const {
  // A duplicate must not wait for a turn that has passed. The range acknowledges it again.
  if (range.order.HasAdmitted(h.sender.index, h.step)) return true;
  const OrderEntry push = EntryOf(range, *update, h.first_step, (h.flags & kFlagEndOfEpoch) != 0);
  const auto never = [&](const auto&... what) {
    return absl::FailedPreconditionError(
        absl::StrCat("not as recorded: range ", push.range, what...,
                     "; hint: replay with the job, data and programs of the run"));
  };
  const auto it = orders_.find(push.range);
  const int64_t found = it == orders_.end() ? -1 : Find(it->second, push.worker, push.step);
  if (found < 0) {
    return never(": worker ", push.worker, " pushes ", Describe(push),
                 ", but the recorded run has no such push");
  }
  const Order& order = it->second;
  const size_t place = static_cast<size_t>(found);
  const OrderEntry& recorded = order.entries[place];
  if (!Same(push, recorded)) {
    return never(": worker ", push.worker, " pushes ", Describe(push),
                 ", but the recorded run has ", Describe(recorded));
  }
  if (place != order.next) return false;
  if (push.version != recorded.version) {
    return never(" is at version ", push.version, ", but the recorded run was at ",
                 recorded.version, " when worker ", push.worker, " pushed step ", push.step);
  }
  // Does the push end the version? The next entry tells. The last entry has none, but no recorded
  // read follows it either.
  const bool ends =
      place + 1 < order.entries.size() && order.entries[place + 1].version > recorded.version;
  if (ends && order.unread.count(push.version) > 0) return false;
  update->read_number = recorded.read_number;
  return true;
}

void Replay::OnAdmitted(const OrderedRange& range, const FrameHeader& push) {
  ++orders_.at(range.id).next;
  const int rank = push.sender.index;
  for (auto it = answers_.lower_bound({rank, 0});
       it != answers_.end() && it->first.first == rank;) {
    it = it->second.step <= push.step ? answers_.erase(it) : std::next(it);
  }
}

int Replay::Awaited(const OrderedRange& range, const FrameHeader& waits) const {
  const auto it = orders_.find(range.id);
  if (it == orders_.end() || it->second.next >= it->second.entries.size()) {
    return range.order.progress().Slowest();
  }
  const Order& order = it->second;
  const int next = order.entries[order.next].worker;
  if (next != waits.sender.index) return next;
  for (size_t i = order.next; i < order.entries.size(); ++i) {
    const OrderEntry& entry = order.entries[i];
    if (entry.rows > 0 && !order.read[i] && entry.version_read == range.order.progress().version) {
      return entry.worker;
    }
  }
  return next;
}

}  // namespace tandem::server
