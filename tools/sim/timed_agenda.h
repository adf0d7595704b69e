// An agenda (agenda.h) for very many events of a few kinds: its entries are values, not functions.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_TIMED_AGENDA_H_
#define TANDEM_TOOLS_SIM_TIMED_AGENDA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace tandem::sim {

// Time in quarters of a nanosecond, the unit of absl::Duration.
using Ticks = int64_t;
inline constexpr double kTicksPerSecond = 4e9;

inline Ticks TicksOf(absl::Duration duration) {
  absl::Duration rest;
  return absl::IDivDuration(duration, absl::Nanoseconds(1) / 4, &rest);
}

inline absl::Duration DurationOf(Ticks ticks) { return ticks * (absl::Nanoseconds(1) / 4); }

struct TimedEvent {
  enum class Kind : uint8_t {
    kReadArrives,
    kRowsArrive,
    kComputed,
    kPushArrives,
    kProbeArrives,  // from a worker that may not start and asks how far the others are
    kWordArrives,   // an acknowledgement or the reply to a probe, at a worker that waits for it
    kSummed,        // a sum ended on this worker; rank -1: on all workers
    kNewsArrives,   // at rank 0, for a sum by quorum: a gradient, or no more (finished)
    kGraceEnds      // of a sum by quorum
  };
  Ticks at = 0;
  uint64_t order = 0;  // events at the same time run in the order in which they were added
  int64_t step = 0;
  int32_t rank = 0;
  int32_t slot = -1;  // slot of the worker; -1: an empty push
  // For a pull: the worker's `life`. For an empty push: the number of steps before `step` that
  // it covers.
  uint32_t extra = 0;
  Kind kind = Kind::kReadArrives;
  bool finished = false;  // the last push, or news, of the worker

  bool Before(const TimedEvent& other) const {
    return at != other.at ? at < other.at : order < other.order;
  }
};

class TimedAgenda {
 public:
  Ticks now() const { return now_; }
  int64_t now_us() const { return now_ / 4000; }
  bool empty() const { return heap_.empty(); }
  Ticks next() const { return heap_.front().at; }  // requires: not empty()
  uint64_t taken() const { return taken_; }

  void Put(Ticks at, TimedEvent event) {
    event.at = at;
    event.order = order_++;
    heap_.push_back(event);
    size_t i = heap_.size() - 1;
    for (; i > 0 && event.Before(heap_[(i - 1) / 4]); i = (i - 1) / 4) {
      heap_[i] = heap_[(i - 1) / 4];
    }
    heap_[i] = event;
  }

  // Removes the next event and moves the time to it. Requires: not empty().
  TimedEvent Take() {
    const TimedEvent first = heap_.front(), last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) heap_[PlaceFor(last)] = last;
    now_ = first.at;
    ++taken_;
    return first;
  }

 private:
  // Moves events that come before `last` up, from the top, and returns the free place for `last`.
  size_t PlaceFor(const TimedEvent& last) {
    const size_t size = heap_.size();
    size_t i = 0;
    for (;;) {
      size_t least = 4 * i + 1;
      if (least >= size) return i;
      const size_t end = std::min(size, least + 4);
      for (size_t child = least + 1; child < end; ++child) {
        if (heap_[child].Before(heap_[least])) least = child;
      }
      if (!heap_[least].Before(last)) return i;
      heap_[i] = heap_[least];
      i = least;
    }
  }

  Ticks now_ = 0;
  uint64_t order_ = 0, taken_ = 0;
  std::vector<TimedEvent> heap_;  // four children a node: half the depth of a binary heap
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_TIMED_AGENDA_H_
