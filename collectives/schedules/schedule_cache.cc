#include "collectives/schedules/schedule_cache.h"

#include "base/status_macros.h"

namespace tandem::collectives {

absl::StatusOr<const Schedule*> ScheduleCache::Get(Primitive primitive, Algorithm algorithm,
                                                   const CollectiveShape& shape, bool may_forget) {
  Key key{primitive,   algorithm,     shape.in_place, shape.agree,       shape.root,
          shape.count, shape.segment, shape.counts,   shape.send_counts, shape.receive_counts};
  const auto found = schedules_.find(key);
  if (found != schedules_.end()) return found->second.get();
  CollectiveShape whole = shape;
  whole.host_of_rank = host_of_rank_;
  TANDEM_ASSIGN_OR_RETURN(Schedule made, MakeSchedule(primitive, algorithm, whole));
  if (shape.agree) AddAgreement(&made);
  TANDEM_RETURN_IF_ERROR(ValidateSchedule(made));
  if (schedules_.size() >= kMax && may_forget) schedules_.clear();
  auto& kept = schedules_[std::move(key)];
  kept = std::make_unique<Schedule>(std::move(made));
  return kept.get();
}

}  // namespace tandem::collectives
