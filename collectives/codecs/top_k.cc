#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/base/casts.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "collectives/codecs/codec.h"

namespace tandem::collectives {
namespace {

struct Kept {
  uint32_t place;
  float value;
};
static_assert(sizeof(Kept) == 8);

class TopKCodec final : public GradientCodec {
 public:
  explicit TopKCodec(double fraction) : fraction_(fraction) {}
  absl::string_view name() const override { return "top-k"; }
  bool linear() const override { return false; }

  absl::Status Sum(Group& group, absl::Span<const float> mine, absl::Span<float> sum,
                   absl::Span<float> sent) override {
    const size_t k = Keep(mine);
    std::fill(sent.begin(), sent.end(), 0.0f);
    for (const Kept& kept : kept_) sent[kept.place] = kept.value;
    all_.resize(k * static_cast<size_t>(group.ranks()));
    TANDEM_RETURN_IF_ERROR(group.Wait(group.AllGather(
        kept_.data(), all_.data(), static_cast<int64_t>(k * sizeof(Kept)), DataType::kU8)));
    std::fill(sum.begin(), sum.end(), 0.0f);
    for (const Kept& kept : all_) {
      if (kept.place >= sum.size()) {
        return absl::DataLossError(
            absl::StrCat("top-k: received element ", kept.place, " of a vector of ", sum.size()));
      }
      sum[kept.place] += kept.value;
    }
    return absl::OkStatus();
  }

 private:
  // The order of |x|, with every NaN above infinity. The bits of IEEE 754 numbers without their
  // signs are in the order of the numbers. Floats with a NaN among them have no order.
  static uint32_t Magnitude(float x) {
    return std::isnan(x) ? 0x7fffffffu : absl::bit_cast<uint32_t>(std::fabs(x));
  }

  // Fills kept_ with the largest elements, in order of their index. Returns their number.
  size_t Keep(absl::Span<const float> mine) {
    const auto wanted =
        static_cast<size_t>(std::ceil(fraction_ * static_cast<double>(mine.size())));
    const size_t k = std::min(mine.size(), std::max<size_t>(wanted, 1));
    order_.resize(mine.size());
    for (uint32_t i = 0; i < order_.size(); ++i) order_[i] = i;
    const auto larger = [&](uint32_t a, uint32_t b) {
      const uint32_t x = Magnitude(mine[a]), y = Magnitude(mine[b]);
      return x > y || (x == y && a < b);
    };
    if (k < order_.size()) {
      std::nth_element(order_.begin(), order_.begin() + static_cast<long>(k), order_.end(), larger);
    }
    std::sort(order_.begin(), order_.begin() + static_cast<long>(k));
    kept_.clear();
    for (size_t i = 0; i < k; ++i) kept_.push_back({order_[i], mine[order_[i]]});
    return k;
  }

  const double fraction_;
  std::vector<uint32_t> order_;
  std::vector<Kept> kept_, all_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GradientCodec>> NewTopKCodec(double fraction) {
  if (!(fraction > 0 && fraction <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("top-k: fraction ", fraction, "; it must be above 0 and at most 1"));
  }
  return {std::make_unique<TopKCodec>(fraction)};
}

}  // namespace tandem::collectives
