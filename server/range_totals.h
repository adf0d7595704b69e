// Totals over all ranges of a shard: the bytes of held updates, and the smallest clock of each
// policy group. Each range reports its own part when the part changes, so the cost of a frame does
// not depend on the number of other ranges. The totals remember the changed ranges until the shard
// takes them (TakeChanged).
//
// Thread safety: none needed; belongs to a shard. Reuses its memory.
#ifndef TANDEM_SERVER_RANGE_TOTALS_H_
#define TANDEM_SERVER_RANGE_TOTALS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "policies/policy.h"

namespace tandem::server {

class RangeTotals {
 public:
  // The part of one range. It counts from the constructor to the destructor.
  class Part {
   public:
    // `totals` outlives this object, or is null.
    Part(uint32_t range, uint32_t group, RangeTotals* totals);
    ~Part();
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;

    // `owes_refresh`: workers that keep rows of the range must get a REFRESH (refresh_frames.h).
    void Set(size_t held_bytes, const policies::Front& front, bool owes_refresh);

   private:
    const uint32_t range_, group_;
    RangeTotals* const totals_;
    size_t held_bytes_ = 0;
    policies::Front front_;
  };

  size_t held_bytes() const { return held_bytes_; }
  // The smallest clock of the ranges of a group; kInfiniteClock if there is none.
  int64_t MinClock(uint32_t group) const;

  // Sets *ids to the ranges whose front has changed since the last call, in ascending order. Some
  // may have left the shard.
  void TakeChanged(std::vector<uint32_t>* ids) { changed_.Take(ids); }
  // The same for the ranges that owe a refresh.
  void TakeRefreshes(std::vector<uint32_t>* ids) { refreshes_.Take(ids); }

 private:
  class RangeIds {
   public:
    void Add(uint32_t id);
    void Take(std::vector<uint32_t>* ids);

   private:
    std::vector<uint32_t> ids_;
    std::vector<bool> has_;  // by id
  };
  // How many ranges of a group have this clock. Few clocks are different, because the pushes of a
  // step are for all ranges of a group.
  struct ClockCount {
    int64_t clock = 0;
    int64_t ranges = 0;
  };

  void Count(uint32_t group, int64_t clock, int64_t ranges);

  size_t held_bytes_ = 0;
  std::vector<std::vector<ClockCount>> clocks_;  // by group, in ascending order
  RangeIds changed_, refreshes_;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_RANGE_TOTALS_H_
