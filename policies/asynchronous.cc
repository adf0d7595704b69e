// ASP, asynchronous parallel: a worker waits for nobody. A read sees the worker's own writes,
// except those of the steps that it prefetches over.
//
// SSP, stale synchronous parallel (Ho et al. 2013): a worker is at most `bound` steps ahead of the
// slowest worker that still has data. A read for step k sees the updates of all workers for all
// steps before k - bound.
//
// ESSP, eager SSP (Dai et al. 2015), promises the same as SSP, but the worker answers reads from a
// cache of its own. Servers send changed rows into that cache each time the slowest worker
// completes a step. A row for which the cache cannot keep the promise is read as under SSP.
#include "absl/strings/str_cat.h"
#include "policies/kinds.h"
#include "policies/on_arrival.h"

namespace tandem::policies {
namespace {

class Asp final : public OnArrivalPolicy {
 public:
  using OnArrivalPolicy::OnArrivalPolicy;
  std::string name() const override { return "ASP"; }
  Transform OnApply(const RangeProgress&, const Update&, const Group&) const override {
    return Scaled();
  }
};

class Ssp : public OnArrivalPolicy {
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
  Transform OnApply(const RangeProgress&, const Update&, const Group&) const override {
    return Scaled();
  }

 protected:
  const int64_t bound_;
};

class Essp final : public Ssp {
 public:
  Essp(int64_t bound, int64_t cache_rows, float scale)
      : Ssp(bound, scale), cache_rows_(cache_rows) {}
  std::string name() const override {
    if (cache_rows_ == 0) return absl::StrCat("ESSP(", bound_, ")");
    return absl::StrCat("ESSP(", bound_, ", ", cache_rows_, " rows)");
  }
  Properties properties() const override {
    Properties properties = Ssp::properties();
    properties.keeps_rows = true;
    properties.cache_rows = cache_rows_;
    return properties;
  }

 private:
  const int64_t cache_rows_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewAsp(const Policy& config, int workers) {
  return std::make_unique<Asp>(AsyncScale(config, workers));
}
std::unique_ptr<UpdatePolicy> NewSsp(const Policy& config, int workers) {
  return std::make_unique<Ssp>(config.bound(), AsyncScale(config, workers));
}
std::unique_ptr<UpdatePolicy> NewEssp(const Policy& config, int workers) {
  return std::make_unique<Essp>(config.bound(), config.cache_rows(), AsyncScale(config, workers));
}

}  // namespace tandem::policies
