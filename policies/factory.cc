#include "absl/strings/str_cat.h"
#include "policies/asynchronous.h"
#include "policies/policy.h"
#include "policies/synchronous.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<UpdatePolicy>> NewUpdatePolicy(const Policy& config, int workers) {
  const float scale =
      config.async_scale() == Policy::INVERSE_WORKERS ? 1.0f / static_cast<float>(workers) : 1.0f;
  switch (config.kind()) {
    case Policy::BSP:
      return NewBsp();
    case Policy::FIXED_DELAY:
      if (!config.has_delay() || config.delay() < 0) {
        return absl::InvalidArgumentError("policy FIXED_DELAY needs delay >= 0");
      }
      return NewFixedDelay(config.delay());
    case Policy::SSP:
      if (!config.has_bound() || config.bound() < 0) {
        return absl::InvalidArgumentError("policy SSP needs bound >= 0");
      }
      return NewSsp(config.bound(), scale);
    case Policy::ASP:
      return NewAsp(scale);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("policy kind ", static_cast<int>(config.kind()), " is not resolved"));
  }
}

}  // namespace tandem
