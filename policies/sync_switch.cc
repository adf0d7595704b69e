// Sync-Switch (Li, Mangoubi, Xu, Guo 2021, "Sync-Switch: hybrid parameter synchronization for
// distributed deep learning"): BSP for the first `switch_step` steps of the run, then ASP. The
// workers take the early steps, which change the model most, together. After that a worker waits
// for nobody.
//
// The version tells on which side of the switch a range is. Until the switch it counts closed
// steps, and after the switch it counts updates. A step closes when all workers that still have
// data have pushed it. Workers do not push steps that they have no data for, so an epoch ends as
// under ASP.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "policies/kinds.h"

namespace tandem::policies {
namespace {

class SyncSwitch final : public UpdatePolicy {
 public:
  SyncSwitch(int64_t switch_step, float scale) : switch_step_(switch_step), scale_(scale) {}

  std::string name() const override { return absl::StrCat("SYNC_SWITCH(", switch_step_, ")"); }
  Properties properties() const override {
    Properties properties;
    properties.switch_step = switch_step_;
    properties.holds = switch_step_ > 0;
    return properties;
  }
  bool MayStart(int64_t, int64_t) const override { return true; }  // reads wait instead
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const override {
    if (progress.version < std::min(step, switch_step_)) return false;
    return step < switch_step_ ||
           progress.workers[static_cast<size_t>(rank)].applied >= step - depth;
  }
  Arrival OnArrival(const RangeProgress& progress, const Update& update) const override {
    const bool together = progress.version < switch_step_ && update.step >= progress.version;
    return together && update.samples > 0 ? Arrival::kHold : Arrival::kApply;
  }
  Transform OnApply(const RangeProgress&, const Update& update, const Group&) const override {
    const float scale = update.step < switch_step_ ? 1.0f : scale_;
    return {.factor = scale, .weight = scale};
  }
  // The result depends only on the admitted steps. A worker's empty pushes for steps after the
  // switch may arrive before or after this range has switched, so they must not change it.
  int64_t Ticks(const RangeProgress& progress, const Buffered& buffered,
                const Pushed&) const override {
    if (progress.version >= switch_step_) {
      return switch_step_ + progress.AdmittedBeyond(switch_step_) - progress.version;
    }
    // The epoch is over, so nothing more will arrive for the open step.
    if (progress.Live() == 0) return buffered.groups > 0 ? 1 : 0;
    const int64_t closed = std::min(progress.MinAdmittedLive(), switch_step_);
    return std::max<int64_t>(0, closed - progress.version);
  }

 private:
  const int64_t switch_step_;
  const float scale_;  // factor of each update after the switch
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewSyncSwitch(const Policy& config, int workers) {
  return std::make_unique<SyncSwitch>(config.switch_step(), AsyncScale(config, workers));
}

}  // namespace tandem::policies
