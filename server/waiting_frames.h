// Frames that wait for their turn at a shard: reads that may not be answered yet, or early pushes.
// Each frame waits at one range or at several. The shard wakes a frame when one of these ranges has
// changed, or when the frame's own worker has pushed, and looks only at frames that it woke.
//
// Thread safety: none needed; belongs to a shard. Reuses the memory of frames that waited earlier.
#ifndef TANDEM_SERVER_WAITING_FRAMES_H_
#define TANDEM_SERVER_WAITING_FRAMES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "proto/frame.h"

namespace tandem::server {

// One slice of a pull or push.
struct Slice {
  SliceEntry entry;
  size_t key_offset = 0;    // bytes in the keys part
  size_t value_offset = 0;  // bytes in the values part
  bool settled = false;     // entry.status is final
};

struct WaitingFrame {
  ParsedFrame frame;
  std::vector<Slice> slices;
  absl::Time since;
};

class WaitingFrames {
 public:
  // Frames are from workers of ranks below `workers`.
  explicit WaitingFrames(int workers) : of_worker_(static_cast<size_t>(workers)) {}
  WaitingFrames(const WaitingFrames&) = delete;
  WaitingFrames& operator=(const WaitingFrames&) = delete;

  // Keeps the frame, which waits at `ranges`. If the same frame waits already, one answer serves
  // both, and the next notice is due at once.
  void Add(absl::Time now, const ParsedFrame& frame, const std::vector<Slice>& slices,
           absl::Span<const uint32_t> ranges);

  // The next Retry looks at the frames of a worker, at those that wait at a range, or at all.
  void WakeWorker(int rank);
  void WakeRange(uint32_t range);
  void WakeAll();

  // Calls `settle(frame, ranges)` with the frames that were woken, in order of arrival, and removes
  // those for which it returns true. Otherwise `settle` has filled `ranges` with the ranges at
  // which the frame now waits. `settle` may wake frames: frames that arrived after the present one
  // are tried in the same pass, others in the next. `from_start`: a removal begins a new pass.
  template <typename Settle>
  void Retry(bool from_start, const Settle& settle) {
    for (Entry* entry = NextWoken(); entry != nullptr; entry = NextWoken()) {
      ranges_.clear();
      if (!settle(&entry->waits, &ranges_)) {
        WaitAt(entry, ranges_);
        continue;
      }
      Remove(entry);
      if (from_start) EndPass();
    }
    EndPass();
  }

  // Drops the frames of this worker.
  void Forget(int rank);

  // Calls `notify` for each frame whose next notice is due, in order of arrival.
  template <typename Notify>
  void ForEachDue(absl::Time now, const Notify& notify) {
    TakeDue(now);
    for (Entry* const entry : due_now_) notify(std::as_const(entry->waits));
  }
  // Calls `visit` for each frame, in order of arrival.
  template <typename Visit>
  void ForEach(const Visit& visit) const {
    for (Entry* const entry : by_arrival_) visit(&entry->waits);
  }

  // The frame that has waited longest; null if none waits.
  const WaitingFrame* First() const {
    return by_arrival_.empty() ? nullptr : &by_arrival_.front()->waits;
  }

 private:
  struct Entry;
  using Entries = std::list<Entry*>;
  struct Entry {
    WaitingFrame waits;
    uint64_t number = 0;  // in order of arrival, from 1
    bool woken = false;
    absl::Time next_notice;  // when the sender is told again that the frame waits
    Entries::iterator in_arrival, in_notice, in_worker;
    std::vector<std::pair<uint32_t, Entries::iterator>> at;  // the ranges where it waits
  };
  struct Woken {
    uint64_t number = 0;  // of the woken frame; `entry` may hold another one by now
    Entry* entry = nullptr;
  };
  // The order of the heap `woken_`, whose first one is the smallest.
  static bool After(const Woken& a, const Woken& b) { return a.number > b.number; }

  static constexpr absl::Duration kNoticeInterval = absl::Seconds(1);
  // A correct worker has fewer: its prefetch depth, or its pushes in flight, for every group. A
  // frame beyond the bound is dropped, and the client sends it again.
  static constexpr size_t kMaxPerSender = 4096;

  Entries::iterator Append(Entries* list, Entry* entry);
  void Unlink(Entries* list, Entries::iterator place);
  void WaitAt(Entry* entry, absl::Span<const uint32_t> ranges);
  void Remove(Entry* entry);
  void Wake(Entry* entry);
  Entry* NextWoken();
  void EndPass();
  void TakeDue(absl::Time now);

  std::deque<Entry> entries_;  // their places do not change
  std::vector<Entry*> free_;
  Entries spare_;                   // nodes for the lists below
  Entries by_arrival_, by_notice_;  // the latter by the time of the next notice
  std::vector<Entries> of_worker_;  // by rank
  std::deque<Entries> at_range_;    // by range; the lists stay in place when it grows
  uint64_t last_number_ = 0;
  std::vector<Woken> woken_, later_;  // of this pass, a heap; of the next one
  uint64_t passed_ = 0;               // the number of the frame that the pass has reached
  std::vector<uint32_t> ranges_;      // scratch
  std::vector<Entry*> due_now_;       // scratch
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_WAITING_FRAMES_H_
