// Virtual time for very many things of a few kinds: an agenda (agenda.h) whose entries are values.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SIM_TIMED_AGENDA_H_
#define TANDEM_SIM_TIMED_AGENDA_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/time/time.h"

namespace tandem::sim {

// Time in quarters of a nanosecond, what absl::Duration counts in.
using Ticks = int64_t;
inline constexpr double kTicksPerSecond = 4e9;

inline Ticks TicksOf(absl::Duration duration) {
  absl::Duration rest;
  return absl::IDivDuration(duration, absl::Nanoseconds(1) / 4, &rest);
}

struct TimedEvent {
  enum class Kind : uint8_t {
    kReadArrives,
    kRowsArrive,
    kComputed,
    kPushArrives,
    kProbeArrives,  // of a worker that may not start and asks how far the others are
    kWordArrives,   // an acknowledgement or the answer to a probe, where somebody waits for it
    kSummed         // an allreduce, of all workers
  };
  Ticks at = 0;
  uint64_t order = 0;  // events of one moment happen in the order in which they were put down
  int64_t step = 0;
  int32_t rank = 0;
  int32_t slot = -1;  // of the worker's; -1: an empty push
  // Of a read: of which life of the worker. Of an empty push: how many steps before `step` it is of, too.
  uint32_t extra = 0;
  Kind kind = Kind::kReadArrives;
  bool finished = false;  // a push: the last one

  bool Before(const TimedEvent& other) const {
    return at != other.at ? at < other.at : order < other.order;
  }
};

class TimedAgenda {
 public:
  Ticks now() const { return now_; }
  int64_t now_us() const { return now_ / 4000; }
  bool empty() const { return heap_.empty(); }
  Ticks next() const { return heap_.front().at; }  // requires that there is one
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

  // The next one, whose moment it is then. Requires that there is one.
  TimedEvent Take() {
    const TimedEvent first = heap_.front(), last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) heap_[PlaceFor(last)] = last;
    now_ = first.at;
    ++taken_;
    return first;
  }

 private:
  // Moves up, from the top, what comes before `last`, and returns the place that is left for it.
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
  std::vector<TimedEvent> heap_;  // with four below each: half as deep as one with two
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_TIMED_AGENDA_H_
