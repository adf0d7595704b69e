// DSSP, dynamic stale synchronous parallel (Zhao et al. 2019): SSP whose bound is chosen while the
// job runs, between `bound` and `upper_bound`. A worker that has reached the lower bound can wait
// now, or continue and wait later. The range predicts, for each further step up to the upper bound,
// how long the worker would then wait for the next push of the slowest worker. It predicts this
// from the last step times of both workers and the times of their last pushes. The worker continues
// if a later wait is shorter.
//
// All times are the times at which the range admitted pushes; no decision reads a clock. The same
// pushes therefore give the same decisions. Each range decides for itself. The upper bound always
// holds.
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
  // Workers do not know the times, so they check only the upper bound here. The range that they
  // read decides the rest.
  bool MayStart(int64_t step, int64_t min_clock) const override {
    return min_clock >= step - upper_bound_;
  }
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const override {
    if (!SeesOwnWrites(progress, rank, step, depth)) return false;
    const int64_t min_clock = progress.MinClock();
    if (min_clock >= step - bound_) return true;
    if (progress.paces.empty()) return false;
    // Steps left up to the upper bound, this one included.
    const int64_t left = min_clock - (step - upper_bound_);
    return left >= 0 && MayRunAhead(progress, rank, left);
  }
  Transform OnApply(const RangeProgress&, const Update&, const Group&) const override {
    return Scaled();
  }

 private:
  // Whether the wait after some number of further steps, from 1 to left + 1, is shorter than the
  // wait now.
  static bool MayRunAhead(const RangeProgress& progress, int rank, int64_t left) {
    const WorkerPace& own = progress.paces[static_cast<size_t>(rank)];
    const WorkerPace& slowest = progress.paces[static_cast<size_t>(progress.Slowest())];
    if (!own.known() || !slowest.known()) return false;
    // `now` is the last event. The read may have waited since then, but no push has come that would
    // tell more.
    const int64_t now = std::max(own.last_push, slowest.last_push);
    // How long it takes from `moment` until the slowest worker's next push: its first predicted
    // push at or after `moment`, and never the last one that has come.
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
