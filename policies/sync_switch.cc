// Sync-Switch (Li, Mangoubi, Xu, Guo 2021, "Sync-Switch: hybrid parameter synchronization for
// distributed deep learning"): BSP for the first `switch_step` steps of the run, then ASP. The early
// steps, which change the model most, are taken together; the rest waits for nobody.
//
// The version says on which side of the switch a range is: until the switch it counts closed steps,
// and from there on updates. A step is closed when all workers that still have data have come;
// nobody pushes steps that it has no data for, so the end of an epoch is that of ASP.
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
  bool MayStart(int64_t, int64_t) const override { return true; }  // its reads wait instead
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const override {
    if (progress.version < std::min(step, switch_step_)) return false;
    return step < switch_step_ ||
           progress.workers[static_cast<size_t>(rank)].applied >= step - depth;
  }
  Arrival OnArrival(const RangeProgress& progress, const Update& update) const override {
    const bool together = progress.version < switch_step_ && update.step >= progress.version;
    return together && update.samples > 0 ? Arrival::kHold : Arrival::kApply;
  }
  Transform OnApply(const RangeProgress&, const Update& update) const override {
    return {update.step < switch_step_ ? 1.0f : scale_};
  }
  // A function of the steps admitted alone: what a worker pushes without rows behind the switch may come
  // before this range has switched, or after it.
  int64_t Ticks(const RangeProgress& progress, const Buffered& buffered, int64_t) const override {
    if (progress.version >= switch_step_) {
      return switch_step_ + progress.AdmittedBeyond(switch_step_) - progress.version;
    }
    // The epoch is over: nothing will come to the step that stands open.
    if (progress.Live() == 0) return buffered.groups > 0 ? 1 : 0;
    const int64_t closed = std::min(progress.MinAdmittedLive(), switch_step_);
    return std::max<int64_t>(0, closed - progress.version);
  }

 private:
  const int64_t switch_step_;
  const float scale_;  // of each update after the switch
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewSyncSwitch(const Policy& config, int workers) {
  return std::make_unique<SyncSwitch>(config.switch_step(), AsyncScale(config, workers));
}

}  // namespace tandem::policies
