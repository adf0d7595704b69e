#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/codecs/codec.h"

namespace tandem::collectives {

absl::Status ErrorFeedback::Sum(Group& group, absl::Span<float> gradient, double samples) {
  TANDEM_CHECK(residual_.empty() || residual_.size() == gradient.size());
  if (!(samples > 0)) {
    std::fill(gradient.begin(), gradient.end(), 0.0f);
    return absl::OkStatus();
  }
  residual_.resize(gradient.size());
  sent_.resize(gradient.size());
  const auto scale = static_cast<float>(samples), back = static_cast<float>(1 / samples);
  for (size_t i = 0; i < gradient.size(); ++i) {
    residual_[i] = residual_[i] * scale + gradient[i];  // a sum over samples, for now
  }
  TANDEM_RETURN_IF_ERROR(codec_->Sum(group, residual_, gradient, absl::MakeSpan(sent_)));
  for (size_t i = 0; i < gradient.size(); ++i) residual_[i] = (residual_[i] - sent_[i]) * back;
  return absl::OkStatus();
}

}  // namespace tandem::collectives
