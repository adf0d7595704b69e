// RINGMASTER, the delay threshold of Ringmaster ASGD (Maranjyan, Tyurin, Richtarik 2025,
// "Ringmaster ASGD: the first asynchronous SGD with optimal time complexity"). It is ASP, except
// that a gradient is dropped if the range has applied `max_delay` updates or more since its rows
// were read. The version counts applied updates alone, so a dropped gradient makes no other one
// older. The worker of a dropped gradient is not told. It goes on, and reads anew for its next
// step.
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "policies/counts_applied.h"
#include "policies/kinds.h"

namespace tandem::policies {
namespace {

class Ringmaster final : public CountsAppliedPolicy {
 public:
  Ringmaster(int64_t max_delay, float scale) : CountsAppliedPolicy(scale), max_delay_(max_delay) {}

  std::string name() const override { return absl::StrCat("RINGMASTER(", max_delay_, ")"); }
  Properties properties() const override {
    Properties properties = CountsAppliedPolicy::properties();
    properties.drops = true;
    return properties;
  }
  Transform OnApply(const RangeProgress& progress, const Update& update,
                    const Group&) const override {
    return Scaled(progress.version - update.version_read < max_delay_ ? 1.0f : 0.0f);
  }

 private:
  const int64_t max_delay_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewRingmaster(const Policy& config, int workers) {
  return std::make_unique<Ringmaster>(config.max_delay(), AsyncScale(config, workers));
}

}  // namespace tandem::policies
