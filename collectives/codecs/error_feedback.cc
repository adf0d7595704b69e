#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "collectives/codecs/codec.h"

namespace tandem::collectives {

// The residual is kept per sample, but the codec works on sums over samples. So the residual is
// scaled to this step's samples, the codec sends what it can, and the rest is scaled back. A step
// without samples changes nothing.
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
    residual_[i] = residual_[i] * scale + gradient[i];  // now a sum over samples
  }
  TANDEM_RETURN_IF_ERROR(codec_->Sum(group, residual_, gradient, absl::MakeSpan(sent_)));
  for (size_t i = 0; i < gradient.size(); ++i) residual_[i] = (residual_[i] - sent_[i]) * back;
  return absl::OkStatus();
}

absl::Status GradientCodec::SetState(absl::string_view state) {
  if (state.empty()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("codec ", name(),
                                          " keeps no state, but the checkpoint has ", state.size(),
                                          " bytes of state for it"));
}

// Format: u64 count, residual, then the codec's own state.
std::string ErrorFeedback::State() const {
  const uint64_t count = residual_.size();
  const std::string own = codec_->State();
  if (count == 0 && own.empty()) return "";
  std::string state(reinterpret_cast<const char*>(&count), sizeof count);
  state.append(reinterpret_cast<const char*>(residual_.data()), count * sizeof(float));
  return state + own;
}

absl::Status ErrorFeedback::SetState(absl::string_view state) {
  if (state.empty()) return codec_->SetState("");
  uint64_t count = 0;
  if (state.size() >= sizeof count) std::memcpy(&count, state.data(), sizeof count);
  if (state.size() < sizeof count || count > (state.size() - sizeof count) / sizeof(float)) {
    return absl::DataLossError(absl::StrCat("error feedback: a residual of ", count,
                                            " floats does not fit the ", state.size(),
                                            " bytes of state in the checkpoint"));
  }
  state.remove_prefix(sizeof count);
  residual_.resize(count);
  if (count > 0) std::memcpy(residual_.data(), state.data(), count * sizeof(float));
  return codec_->SetState(state.substr(count * sizeof(float)));
}

}  // namespace tandem::collectives
