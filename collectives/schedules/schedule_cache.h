// ScheduleCache: the schedules that were made before, by their arguments. A training loop asks for
// the same few schedules in each step, and making one allocates.
//
// Thread safety: none.
#ifndef TANDEM_COLLECTIVES_SCHEDULES_SCHEDULE_CACHE_H_
#define TANDEM_COLLECTIVES_SCHEDULES_SCHEDULE_CACHE_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"

namespace tandem::collectives {

class ScheduleCache {
 public:
  // `host_of_rank` is used for all shapes (CollectiveShape::host_of_rank).
  explicit ScheduleCache(std::vector<int> host_of_rank = {})
      : host_of_rank_(std::move(host_of_rank)) {}

  // Returns a cached schedule, or makes it. All shapes must be of one rank and one group. The
  // schedule stays valid until a call with `may_forget`; the caller passes `may_forget` only when
  // no schedule is in use. Errors: those of MakeSchedule.
  absl::StatusOr<const Schedule*> Get(Primitive primitive, Algorithm algorithm,
                                      const CollectiveShape& shape, bool may_forget);

 private:
  static constexpr size_t kMax = 256;
  struct Key {
    Primitive primitive;
    Algorithm algorithm;
    bool in_place, agree;
    int root;
    int64_t count, segment;
    std::vector<int64_t> counts, send_counts, receive_counts;
    auto operator<=>(const Key&) const = default;
  };

  const std::vector<int> host_of_rank_;
  std::map<Key, std::unique_ptr<Schedule>> schedules_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_SCHEDULES_SCHEDULE_CACHE_H_
