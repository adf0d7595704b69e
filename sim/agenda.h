// Virtual time: what is to happen, and when. Time passes only by going on to the next thing.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SIM_AGENDA_H_
#define TANDEM_SIM_AGENDA_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/time/time.h"

namespace tandem::sim {

class Agenda {
 public:
  absl::Time now() const { return now_; }
  absl::Duration elapsed() const { return now_ - absl::UnixEpoch(); }

  // Things of one moment happen in the order in which they were put down.
  void At(absl::Time at, std::function<void()> run);
  void After(absl::Duration delay, std::function<void()> run) { At(now_ + delay, std::move(run)); }
  // Again and again; for the first time after `period`.
  void Every(absl::Duration period, std::function<void()> run);

  // Goes on to the next thing and lets it happen. Requires that there is one.
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

#endif  // TANDEM_SIM_AGENDA_H_
