#include "policies/synchronous.h"

#include "absl/strings/str_cat.h"

namespace tandem {
namespace {

class Synchronous final : public UpdatePolicy {
 public:
  Synchronous(std::string name, int64_t delay) : name_(std::move(name)), delay_(delay) {}

  std::string name() const override { return name_; }
  bool MayStart(int64_t, int64_t) const override { return true; }  // its reads wait instead
  bool MayServe(const RangeProgress& progress, int, int64_t step, int) const override {
    return progress.version >= step;
  }
  Arrival OnArrival(const RangeProgress&, int, int64_t) const override { return Arrival::kHold; }
  float Scale(const RangeProgress&, int, int64_t) const override { return 1.0f; }
  bool MayClose(const RangeProgress& progress) const override {
    return progress.MinAdmitted() > progress.version;
  }
  int64_t Delay() const override { return delay_; }
  bool Lockstep() const override { return true; }

 private:
  const std::string name_;
  const int64_t delay_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewBsp() { return std::make_unique<Synchronous>("BSP", 0); }

std::unique_ptr<UpdatePolicy> NewFixedDelay(int delay) {
  return std::make_unique<Synchronous>(absl::StrCat("FIXED_DELAY(", delay, ")"), delay);
}

}  // namespace tandem
