#include "server/waiting_frames.h"

#include <iterator>

namespace tandem::server {

// ---- the lists --------------------------------------------------------------------------------

WaitingFrames::Entries::iterator WaitingFrames::Append(Entries* list, Entry* entry) {
  if (spare_.empty()) {
    list->push_back(entry);
  } else {
    spare_.front() = entry;
    list->splice(list->end(), spare_, spare_.begin());
  }
  return std::prev(list->end());
}

void WaitingFrames::Unlink(Entries* list, Entries::iterator place) {
  spare_.splice(spare_.begin(), *list, place);
}

void WaitingFrames::Add(absl::Time now, const ParsedFrame& frame, const std::vector<Slice>& slices,
                        absl::Span<const uint32_t> ranges) {
  Entries& of_sender = of_worker_[frame.header.sender.index];
  for (Entry* const other : of_sender) {
    if (other->waits.frame.header.request != frame.header.request) continue;
    if (other->next_notice > now) {
      other->next_notice = now;
      by_notice_.splice(by_notice_.begin(), by_notice_, other->in_notice);
    }
    return;
  }
  if (of_sender.size() >= kMaxPerSender) return;
  if (free_.empty()) free_.push_back(&entries_.emplace_back());
  Entry* const entry = free_.back();
  free_.pop_back();
  entry->waits.frame = frame;
  entry->waits.slices.assign(slices.begin(), slices.end());
  entry->waits.since = now;
  entry->number = ++last_number_;
  entry->next_notice = now + kNoticeInterval;
  entry->in_arrival = Append(&by_arrival_, entry);
  entry->in_notice = Append(&by_notice_, entry);
  entry->in_worker = Append(&of_sender, entry);
  WaitAt(entry, ranges);
}

void WaitingFrames::WaitAt(Entry* entry, absl::Span<const uint32_t> ranges) {
  const auto same = [](const auto& at, uint32_t range) { return at.first == range; };
  if (std::equal(entry->at.begin(), entry->at.end(), ranges.begin(), ranges.end(), same)) return;
  for (const auto& [range, place] : entry->at) Unlink(&at_range_[range], place);
  entry->at.clear();
  for (const uint32_t range : ranges) {
    if (range >= at_range_.size()) at_range_.resize(range + 1);
    entry->at.push_back({range, Append(&at_range_[range], entry)});
  }
}

void WaitingFrames::Remove(Entry* entry) {
  WaitAt(entry, {});
  Unlink(&of_worker_[entry->waits.frame.header.sender.index], entry->in_worker);
  Unlink(&by_notice_, entry->in_notice);
  Unlink(&by_arrival_, entry->in_arrival);
  entry->waits.frame = ParsedFrame();  // gives its buffers back
  entry->woken = false;
  free_.push_back(entry);
}

void WaitingFrames::Forget(int rank) {
  Entries& of_sender = of_worker_[static_cast<size_t>(rank)];
  while (!of_sender.empty()) Remove(of_sender.front());
}

// ---- waking -----------------------------------------------------------------------------------

void WaitingFrames::Wake(Entry* entry) {
  if (std::exchange(entry->woken, true)) return;
  if (entry->number > passed_) {
    woken_.push_back({entry->number, entry});
    std::push_heap(woken_.begin(), woken_.end(), After);
  } else {
    later_.push_back({entry->number, entry});
  }
}

void WaitingFrames::WakeWorker(int rank) {
  for (Entry* const entry : of_worker_[static_cast<size_t>(rank)]) Wake(entry);
}

void WaitingFrames::WakeRange(uint32_t range) {
  if (range >= at_range_.size()) return;
  for (Entry* const entry : at_range_[range]) Wake(entry);
}

void WaitingFrames::WakeAll() {
  for (Entry* const entry : by_arrival_) Wake(entry);
}

// The first woken frame that the pass has not reached; null: none is left.
WaitingFrames::Entry* WaitingFrames::NextWoken() {
  while (!woken_.empty()) {
    std::pop_heap(woken_.begin(), woken_.end(), After);
    const Woken next = woken_.back();
    woken_.pop_back();
    if (next.entry->number != next.number || !next.entry->woken) continue;  // was removed
    next.entry->woken = false;
    passed_ = next.number;
    return next.entry;
  }
  return nullptr;
}

void WaitingFrames::EndPass() {
  passed_ = 0;
  for (const Woken& woken : later_) {
    woken_.push_back(woken);
    std::push_heap(woken_.begin(), woken_.end(), After);
  }
  later_.clear();
}

void WaitingFrames::TakeDue(absl::Time now) {
  due_now_.clear();
  while (!by_notice_.empty() && by_notice_.front()->next_notice <= now) {
    Entry* const entry = by_notice_.front();
    entry->next_notice = now + kNoticeInterval;
    by_notice_.splice(by_notice_.end(), by_notice_, entry->in_notice);
    due_now_.push_back(entry);
  }
  std::sort(due_now_.begin(), due_now_.end(),
            [](const Entry* a, const Entry* b) { return a->number < b->number; });
}

}  // namespace tandem::server
