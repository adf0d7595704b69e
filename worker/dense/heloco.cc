#include "worker/dense/heloco.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tandem::worker {

CorrectedMovement CorrectMovement(const HeLoCo& constants, absl::Span<const float> d,
                                  absl::Span<const float> v) {
  double dd = 0, vv = 0, dv = 0;
  for (size_t i = 0; i < d.size(); ++i) {
    dd += double{d[i]} * d[i];
    vv += double{v[i]} * v[i];
    dv += double{d[i]} * v[i];
  }
  if (!(dd > 0 && vv > 0)) return {};
  const double d_norm = std::sqrt(dd), v_norm = std::sqrt(vv);
  const double cosine = dv / (d_norm * v_norm);
  if (!(cosine < constants.keep_cosine())) return {};
  const double confidence = d_norm / (d_norm + constants.momentum_weight() * v_norm);
  if (cosine < 0) {
    const double share =
        std::min(constants.shrink() * -cosine * confidence, constants.largest_shrink());
    return {1, -share * cosine * d_norm / v_norm};
  }
  const double turned = std::min(constants.turn() * (1 - cosine) * confidence, 1.0);
  // |u|, from its parts along d and v
  const double u_norm =
      std::sqrt((1 - turned) * (1 - turned) + turned * turned + 2 * turned * (1 - turned) * cosine);
  return {(1 - turned) / u_norm, turned * d_norm / (v_norm * u_norm)};
}

}  // namespace tandem::worker
