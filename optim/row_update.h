// The code that all optimizers share: it gives each update the row's scaled, clipped and decayed
// gradient, and it sums over a row in an order that does not depend on the width of the machine's
// vectors. Internal to optim/, whose files are built with -ffp-contract=off.
#ifndef TANDEM_OPTIM_ROW_UPDATE_H_
#define TANDEM_OPTIM_ROW_UPDATE_H_

#include <cmath>
#include <cstddef>
#include <cstring>

#include "absl/types/span.h"
#include "optim/dim_dispatch.h"

namespace tandem::optim {

// The sum of term(j) over j in [0, n). Lane l of eight adds the terms j = l mod 8, in the order of
// j. Then the lanes are added in pairs: l and l + 4, then l and l + 2, then 0 and 1.
template <typename Term>
inline float LaneSum(int n, Term term) {
  constexpr int kLanes = 8;
  float lane[kLanes] = {};
  int j = 0;
  for (; j + kLanes <= n; j += kLanes) {
    for (int l = 0; l < kLanes; ++l) lane[l] += term(j + l);
  }
  for (int l = 0; j + l < n; ++l) lane[l] += term(j + l);
  // The lanes are summed in vector types, because g++ 12 would otherwise take them through memory.
  using Eight = float __attribute__((vector_size(32)));
  Eight eight;
  std::memcpy(&eight, lane, sizeof(eight));
  const auto four = __builtin_shufflevector(eight, eight, 0, 1, 2, 3) +
                    __builtin_shufflevector(eight, eight, 4, 5, 6, 7);
  const auto two =
      __builtin_shufflevector(four, four, 0, 1) + __builtin_shufflevector(four, four, 2, 3);
  return two[0] + two[1];
}

// The rule for a row's gradient. The order is: scale, then clip, then decay. Clipping therefore
// sees the mean gradient (scale is 1/n), and clipping does not remove the decay. torch's
// clip_grad_norm_ before a step with weight_decay behaves alike.
struct GradientRule {
  float clip_norm = 0;     // largest L2 norm of a row's scaled gradient; 0 = off
  float weight_decay = 0;  // times the weight, added to the gradient; 0 = off

  bool plain() const { return clip_norm == 0 && weight_decay == 0; }

  // The factor that reduces the norm of a row's scaled gradient to at most clip_norm.
  float ClipFactor(int dim, const float* gradient, float scale) const {
    if (clip_norm == 0) return 1;
    const float norm = std::sqrt(LaneSum(dim, [=](int j) {
      const float g = gradient[j] * scale;
      return g * g;
    }));
    return norm > clip_norm ? clip_norm / norm : 1;
  }
};

// Calls update(dim, w, slots, gradient) for each row. gradient(j, w[j]) is element j of the row's
// scaled, clipped and decayed gradient. An update must declare w and slots __restrict; otherwise
// the compiler does not vectorise the loops over j.
template <typename Update>
inline void UpdateRows(const GradientRule& rule, int dim, float scale,
                       absl::Span<const float> gradients, absl::Span<float* const> rows,
                       absl::Span<float* const> slots, Update update) {
  DispatchDim(dim, [&](auto d) {
    for (size_t i = 0; i < rows.size(); ++i) {
      const float* const g = gradients.data() + i * static_cast<size_t>(d);
      if (rule.plain()) {
        update(d, rows[i], slots[i], [g, scale](int j, float) { return g[j] * scale; });
        continue;
      }
      const float clip = rule.ClipFactor(d, g, scale);
      const float decay = rule.weight_decay;
      update(d, rows[i], slots[i],
             [=](int j, float weight) { return g[j] * scale * clip + decay * weight; });
    }
  });
}

}  // namespace tandem::optim

#endif  // TANDEM_OPTIM_ROW_UPDATE_H_
