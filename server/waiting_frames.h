// Frames that wait for their turn at a shard: reads that may not be answered yet, or early pushes.
// The list reuses the memory of frames that waited earlier.
//
// Thread safety: none needed; belongs to a shard.
#ifndef TANDEM_SERVER_WAITING_FRAMES_H_
#define TANDEM_SERVER_WAITING_FRAMES_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/time/time.h"
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
  absl::Time next_notice;  // when the sender is told again that the frame waits
};

class WaitingFrames {
 public:
  // Keeps the frame. If it was resent while it waits, one answer will answer both, and the next
  // notice is due at once.
  void Add(absl::Time now, const ParsedFrame& frame, const std::vector<Slice>& slices) {
    size_t of_this_sender = 0;
    for (WaitingFrame& other : frames_) {
      if (other.frame.header.sender != frame.header.sender) continue;
      if (other.frame.header.request == frame.header.request) {
        other.next_notice = now;
        return;
      }
      ++of_this_sender;
    }
    if (of_this_sender >= kMostPerSender) return;
    std::vector<Slice> kept;
    if (!spare_.empty()) {
      kept = std::move(spare_.back());
      spare_.pop_back();
    }
    kept.assign(slices.begin(), slices.end());
    frames_.push_back({frame, std::move(kept), now, now + kNoticeInterval});
  }

  // Calls `settle` with the frames in order, and removes those for which it returns true.
  // `from_start`: then begins again with the first one, which may be able to continue now.
  template <typename Settle>
  void Retry(bool from_start, const Settle& settle) {
    for (size_t i = 0; i < frames_.size();) {
      if (!settle(&frames_[i])) {
        ++i;
        continue;
      }
      spare_.push_back(std::move(frames_[i].slices));
      frames_.erase(frames_.begin() + static_cast<std::ptrdiff_t>(i));
      if (from_start) i = 0;
    }
  }

  // Drops the frames of this sender.
  void Forget(EndpointId sender) {
    std::erase_if(frames_, [sender](const WaitingFrame& waits) {
      return waits.frame.header.sender == sender;
    });
  }

  // Calls `notify` for each frame whose next notice is due.
  template <typename Notify>
  void ForEachDue(absl::Time now, const Notify& notify) {
    for (WaitingFrame& waits : frames_) {
      if (waits.next_notice > now) continue;
      waits.next_notice = now + kNoticeInterval;
      notify(waits);
    }
  }

  // The frame that has waited longest; null if none waits.
  const WaitingFrame* First() const { return frames_.empty() ? nullptr : &frames_.front(); }
  std::vector<WaitingFrame>& frames() { return frames_; }

 private:
  static constexpr absl::Duration kNoticeInterval = absl::Seconds(1);
  // A correct worker has fewer: its prefetch depth, or its pushes in flight, for every group. A
  // frame beyond the bound is dropped, and the client sends it again.
  static constexpr size_t kMostPerSender = 4096;

  std::vector<WaitingFrame> frames_;
  std::vector<std::vector<Slice>> spare_;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_WAITING_FRAMES_H_
