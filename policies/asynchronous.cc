// ASP, asynchronous parallel: a worker waits for nobody; it reads its own writes up to its depth.
//
// SSP, stale synchronous parallel (Ho et al. 2013): a worker is at most `bound` steps ahead of the
// slowest one that still has data, and a read for step k sees all steps before k - bound of all
// workers.
//
// ESSP, eager SSP (Dai et al. 2015): the same promise, kept from a cache of the worker's own into which
// servers send the rows that have changed, whenever the slowest worker has come a step further. A
// row that the cache cannot promise is read as under SSP.
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
  Transform OnApply(const RangeProgress&, const Update&) const override { return {scale()}; }

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
