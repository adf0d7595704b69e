// DSSP, dynamic stale synchronous parallel (Zhao et al. 2019): SSP whose bound is chosen while the
// job runs, between `bound` and `upper_bound`. A worker that has come to the lower bound may wait
// now, or run on and wait later. From the last step times of itself and of the slowest worker, and
// from when both pushed last, it is foretold for each further step up to the upper bound how long
// the wait for the slowest one's next push would be; the worker runs on if a later wait is shorter.
//
// All times are those at which the range admitted pushes, never a clock: the same pushes give the same
// decisions. Each range decides for itself; what holds in any case is the upper bound.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "policies/kinds.h"
#include "policies/on_arrival.h"

namespace tandem::policies {
namespace {

class Dssp final : public OnArrivalPolicy {
 public:
  Dssp(int64_t bound, int64_t upper_bound, float scale)
      : OnArrivalPolicy(scale), bound_(bound), upper_bound_(upper_bound) {}

  std::string name() const override {
    return absl::StrCat("DSSP(", bound_, ", ", upper_bound_, ")");
  }
  Properties properties() const override {
    Properties properties;
    properties.clock_bound = properties.read_bound = upper_bound_;
    properties.measures_steps = true;
    return properties;
  }
  // Workers do not see the times; the range that they read decides.
  bool MayStart(int64_t step, int64_t min_clock) const override {
    return min_clock >= step - upper_bound_;
  }
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const override {
    if (!SeesOwnWrites(progress, rank, step, depth)) return false;
    const int64_t min_clock = progress.MinClock();
    if (min_clock >= step - bound_) return true;
    if (progress.paces.empty()) return false;
    const int64_t left = min_clock - (step - upper_bound_);  // further steps, this one included
    return left >= 0 && RunsOn(progress, rank, left);
  }
  Transform OnApply(const RangeProgress&, const Update&) const override { return {scale()}; }

 private:
  // Is some wait after 1, ..., left + 1 more steps shorter than the wait now?
  static bool RunsOn(const RangeProgress& progress, int rank, int64_t left) {
    const WorkerPace& own = progress.paces[static_cast<size_t>(rank)];
    const WorkerPace& slowest = progress.paces[static_cast<size_t>(progress.Slowest())];
    if (!own.known() || !slowest.known()) return false;
    // It may have been here for a while, but nothing has happened since.
    const int64_t now = std::max(own.last_push, slowest.last_push);
    // From a moment until the slowest worker's first push at or after it, and after its last one.
    const auto wait = [&](int64_t moment) {
      const int64_t since = moment - slowest.last_push;
      const int64_t pushes = std::max<int64_t>(1, (since - 1) / slowest.step_time + 1);
      return pushes * slowest.step_time - since;
    };
    for (int64_t steps = 1; steps <= left + 1; ++steps) {
      if (wait(now + steps * own.step_time) < wait(now)) return true;
    }
    return false;
  }

  const int64_t bound_, upper_bound_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewDssp(const Policy& config, int workers) {
  return std::make_unique<Dssp>(config.bound(), config.upper_bound(), AsyncScale(config, workers));
}

}  // namespace tandem::policies
