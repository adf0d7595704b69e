// Synchronous steps with backup workers (Chen et al. 2016, "Revisiting distributed synchronous
// SGD"): the first N - b of N workers to push close a step, and the step is the mean of their
// updates. The updates of the other b workers are dropped and counted. Unlike in the paper, a late
// worker finishes the step that it has begun. When it learns that its step has closed, it sends one
// empty push that covers the steps up to the open one and continues there, so that it does not stay
// late for ever.
//
// Towards the end of an epoch fewer than N - b workers may have data. The step then needs all of
// them. A step that every worker with data has skipped closes without updates.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "policies/kinds.h"

namespace tandem::policies {
namespace {

class BackupWorkers final : public UpdatePolicy {
 public:
  BackupWorkers(int workers, int backups)
      : name_(absl::StrCat("BACKUP_WORKERS(", backups, ")")), needed_(workers - backups) {}

  std::string name() const override { return name_; }
  Properties properties() const override {
    Properties properties;
    properties.holds = properties.skips = properties.drops = true;
    properties.read_bound = 0;
    return properties;
  }
  bool MayStart(int64_t, int64_t) const override { return true; }  // reads wait instead
  bool MayServe(const RangeProgress& progress, int, int64_t step, int) const override {
    return progress.version >= step;
  }
  Arrival OnArrival(const RangeProgress& progress, const Update& update) const override {
    return update.step < progress.version ? Arrival::kDrop : Arrival::kHold;
  }
  Transform OnApply(const RangeProgress&, const Update&, const Group&) const override { return {}; }
  int64_t Ticks(const RangeProgress& progress, const Buffered& buffered,
                const Pushed&) const override {
    if (buffered.oldest >= needed_) return 1;
    // The epoch is over, so nothing more will arrive for the open groups.
    if (progress.Live() == 0) return buffered.groups > 0 ? 1 : 0;
    // Close the steps that all workers with data have pushed.
    return std::max<int64_t>(0, progress.MinAdmittedLive() - progress.version);
  }

 private:
  const std::string name_;
  const int needed_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewBackupWorkers(const Policy& config, int workers) {
  return std::make_unique<BackupWorkers>(workers, config.backups());
}

}  // namespace tandem::policies
