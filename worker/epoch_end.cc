#include "worker/epoch_end.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"

namespace tandem::worker {

// Two barriers with an empty push between them. The first barrier waits until every clock is
// infinite and gives the largest step. The second waits until every catch-up push is acknowledged.
// Without the second barrier a fast worker could begin the next epoch while the slow worker's clock
// is still infinite, and would not wait for it as the policy demands.
bool EpochEnd::Advance(absl::Time now, bool hold) {
  const std::string name = absl::StrCat("epoch ", context_.epoch);
  switch (stage_) {
    case Stage::kDrain:
      if (!context_.pushes.empty()) return false;
      context_.common_step =
          std::max(context_.common_step,
                   context_.step - (context_.plan.lockstep ? context_.StepsToClose() - 1 : 0));
      return Enter(context_.plan.lockstep ? Stage::kOver : Stage::kPush);
    case Stage::kPush:
      if (hold) return false;
      context_.PushEmptyToAll(now, context_.step, context_.step, kFlagEndOfEpoch);
      context_.pushed = ++context_.step;
      return Enter(Stage::kBarrier);
    case Stage::kBarrier:
      if (!context_.pushes.empty()) return false;
      if (!context_.barriers.Pass(now, name, context_.step)) return false;
      context_.common_step = context_.barriers.MaxValue(name);
      return Enter(Stage::kCatchUp);
    case Stage::kCatchUp:
      if (hold) return false;
      context_.PushEmptyToAll(now, context_.step, context_.common_step, 0);
      context_.step = context_.pushed = context_.common_step + 1;
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

}  // namespace tandem::worker
