// A queue of events in virtual time. Time moves only from one event to the next.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TOOLS_SIM_AGENDA_H_
#define TANDEM_TOOLS_SIM_AGENDA_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"

namespace tandem::sim {

class Agenda {
 public:
  absl::Time now() const { return now_; }
  absl::Duration elapsed() const { return now_ - absl::UnixEpoch(); }

  // Events at the same time run in the order in which they were added.
  void At(absl::Time at, std::function<void()> run);
  void After(absl::Duration delay, std::function<void()> run) { At(now_ + delay, std::move(run)); }
  // Repeats `run` every `period`; the first time is after one `period`.
  void Every(absl::Duration period, std::function<void()> run);

  // Moves to the next event and runs it. Requires that there is one.
  void RunNext();

 private:
  struct Entry {
    absl::Time at;
    uint64_t order = 0;
    std::function<void()> run;
    bool operator<(const Entry& other) const {  // for a heap with the earliest on top
      return at != other.at ? at > other.at : order > other.order;
    }
  };

  absl::Time now_ = absl::UnixEpoch();
  uint64_t order_ = 0;
  std::vector<Entry> heap_;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_AGENDA_H_
