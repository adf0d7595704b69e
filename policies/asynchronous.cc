// ASP, asynchronous parallel: a worker waits for nobody; it reads its own writes up to its depth.
//
// SSP, stale synchronous parallel (Ho et al. 2013): a worker is at most `bound` steps ahead of the
// slowest one that still has data, and a read for step k sees all steps before k - bound of
// everybody.
#include "absl/strings/str_cat.h"
#include "policies/kinds.h"
#include "policies/on_arrival.h"

namespace tandem::policies {
namespace {

class Asp final : public OnArrivalPolicy {
 public:
  using OnArrivalPolicy::OnArrivalPolicy;
  std::string name() const override { return "ASP"; }
  Properties properties() const override { return {}; }
  bool MayStart(int64_t, int64_t) const override { return true; }
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const override {
    return SeesOwnWrites(progress, rank, step, depth);
  }
  Transform OnApply(const RangeProgress&, const Update&) const override { return {scale()}; }
};

class Ssp final : public OnArrivalPolicy {
 public:
  Ssp(int64_t bound, float scale) : OnArrivalPolicy(scale), bound_(bound) {}
  std::string name() const override { return absl::StrCat("SSP(", bound_, ")"); }
  Properties properties() const override {
    Properties properties;
    properties.clock_bound = properties.read_bound = bound_;
    return properties;
  }
  bool MayStart(int64_t step, int64_t min_clock) const override {
    return min_clock >= step - bound_;
  }
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const override {
    return progress.MinClock() >= step - bound_ && SeesOwnWrites(progress, rank, step, depth);
  }
  Transform OnApply(const RangeProgress&, const Update&) const override { return {scale()}; }

 private:
  const int64_t bound_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewAsp(const Policy& config, int workers) {
  return std::make_unique<Asp>(AsyncScale(config, workers));
}
std::unique_ptr<UpdatePolicy> NewSsp(const Policy& config, int workers) {
  return std::make_unique<Ssp>(config.bound(), AsyncScale(config, workers));
}

}  // namespace tandem::policies
