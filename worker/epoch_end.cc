#include "worker/epoch_end.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::worker {

// A worker enters two barriers at once. They wait until every clock is infinite, and give the
// largest step and the largest ended_at. The last barrier waits until every catch-up push is
// acknowledged. Without it, a fast worker could begin the next epoch while the slow worker's clock
// is still infinite, and would not wait for it as the policy demands.
bool EpochEnd::Advance(absl::Time now, bool hold) {
  const std::string name = absl::StrCat("epoch ", context_.epoch);
  switch (stage_) {
    case Stage::kDrain:
      if (!context_.pushes.empty()) return false;
      if (context_.plan.lockstep) {
        context_.common_step =
            std::max(context_.common_step, context_.step() - context_.empty_steps + 1);
        return Enter(Stage::kOver);
      }
      // After a resume, the step may be a later one than that at which the worker ran out of data.
      if (context_.ended_at == 0) context_.ended_at = context_.step() + 1;
      return Enter(Stage::kPush);
    case Stage::kPush:
      if (hold) return false;
      context_.PushEmptyToAll(now, context_.step(), context_.step(), kFlagEndOfEpoch);
      context_.order.StandAt(context_.step() + 1);
      return Enter(Stage::kBarrier);
    case Stage::kBarrier: {
      if (!context_.pushes.empty()) return false;
      const std::string ended = absl::StrCat(name, " ended");
      const bool all_stand = PassFirst(now, name, context_.step());
      const bool all_ended = PassFirst(now, ended, context_.ended_at);
      if (!all_stand || !all_ended) return false;
      largest_step_ = context_.barriers.MaxValue(name);
      context_.common_step = context_.barriers.MaxValue(ended);
      return Enter(Stage::kCatchUp);
    }
    case Stage::kCatchUp:
      if (hold) return false;
      context_.PushEmptyToAll(now, context_.step(), largest_step_, 0);
      context_.order.StandAt(largest_step_ + 1);
      context_.empty_steps = context_.step() - context_.common_step + 1;
      return Enter(Stage::kEndBarrier);
    case Stage::kEndBarrier:
      if (!context_.pushes.empty()) return false;
      if (!context_.barriers.Pass(now, absl::StrCat(name, " caught up"), 0)) return false;
      return Enter(Stage::kOver);
    case Stage::kOver:
      return false;
  }
  return false;
}

// Passes a barrier that ends the epoch. A worker that has not entered is still in the epoch. If it
// dies, a new process in its place trains the rest of the epoch, and the others wait for it.
bool EpochEnd::PassFirst(absl::Time now, const std::string& name, int64_t value) {
  BarrierEnter entry;
  entry.set_name(name);
  entry.set_value(value);
  entry.set_absent_may_be_replaced(true);
  return context_.barriers.Pass(now, std::move(entry));
}

}  // namespace tandem::worker
