// Synchronous steps with backup workers (Chen et al. 2016, "Revisiting distributed synchronous
// SGD"): a step is closed by the first N - b of N workers to come, and is the mean of their updates;
// the other b are dropped and counted. Here a worker finishes what it has begun. When it learns that
// its step had closed, it sends one empty push over the steps up to the open one and goes on there,
// so that it is not late for ever.
//
// Toward the end of an epoch fewer than N - b may have data: then the step needs all of these. A
// step that every worker with data has skipped closes empty.
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
    properties.holds = properties.skips = true;
    properties.read_bound = 0;
    return properties;
  }
  bool MayStart(int64_t, int64_t) const override { return true; }  // its reads wait instead
  bool MayServe(const RangeProgress& progress, int, int64_t step, int) const override {
    return progress.version >= step;
  }
  Arrival OnArrival(const RangeProgress& progress, const Update& update) const override {
    return update.step < progress.version ? Arrival::kDrop : Arrival::kHold;
  }
  Transform OnApply(const RangeProgress&, const Update&) const override { return {}; }
  int64_t Ticks(const RangeProgress& progress, const Buffered& buffered, int64_t) const override {
    if (buffered.oldest >= needed_) return 1;
    // The epoch is over: nothing will come to the groups that stand open.
    if (progress.Live() == 0) return buffered.groups > 0 ? 1 : 0;
    // All that still have data have come.
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
