#include "policies/asynchronous.h"

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

// What ASP and SSP share: apply on arrival, one tick an update, nothing held.
class OnArrivalPolicy : public UpdatePolicy {
 public:
  explicit OnArrivalPolicy(float scale) : scale_(scale) {}

  Arrival OnArrival(const RangeProgress&, int, int64_t) const final { return Arrival::kApply; }
  float Scale(const RangeProgress&, int, int64_t) const final { return scale_; }
  bool MayClose(const RangeProgress&) const final { return false; }
  int64_t Delay() const final { return 0; }
  bool Lockstep() const final { return false; }

 protected:
  // Does the reader see its own writes, up to the `depth` steps it reads ahead?
  static bool SeesOwnWrites(const RangeProgress& progress, int rank, int64_t step, int depth) {
    return progress.workers[rank].applied >= step - depth;
  }

 private:
  const float scale_;
};

class Asp final : public OnArrivalPolicy {
 public:
  using OnArrivalPolicy::OnArrivalPolicy;
  std::string name() const override { return "ASP"; }
  bool MayStart(int64_t, int64_t) const override { return true; }
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const override {
    return SeesOwnWrites(progress, rank, step, depth);
  }
};

class Ssp final : public OnArrivalPolicy {
 public:
  Ssp(int bound, float scale) : OnArrivalPolicy(scale), bound_(bound) {}
  std::string name() const override { return absl::StrCat("SSP(", bound_, ")"); }
  bool MayStart(int64_t step, int64_t min_clock) const override {
    return min_clock >= step - bound_;
  }
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const override {
    return progress.MinClock() >= step - bound_ && SeesOwnWrites(progress, rank, step, depth);
  }

 private:
  const int64_t bound_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewAsp(float scale) { return std::make_unique<Asp>(scale); }
std::unique_ptr<UpdatePolicy> NewSsp(int bound, float scale) {
  return std::make_unique<Ssp>(bound, scale);
}

}  // namespace tandem
