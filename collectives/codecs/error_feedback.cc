#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/codecs/codec.h"

namespace tandem {

absl::Status ErrorFeedback::Sum(Group& group, absl::Span<float> gradient) {
  residual_.resize(gradient.size());
  sent_.resize(gradient.size());
  for (size_t i = 0; i < gradient.size(); ++i) residual_[i] += gradient[i];
  TANDEM_RETURN_IF_ERROR(codec_->Sum(group, residual_, gradient, absl::MakeSpan(sent_)));
  for (size_t i = 0; i < gradient.size(); ++i) residual_[i] -= sent_[i];
  return absl::OkStatus();
}

}  // namespace tandem
