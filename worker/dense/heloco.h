// HeLoCo's correction of the movement of one parameter tensor (Al Asif, Diem, Muñoz, Wolf,
// Jannesari, Mazaheri 2026, "HeLoCo: efficient asynchronous low-communication training under data
// and device heterogeneity"), for outer steps of local SGD whose movements (outer gradients) are
// from older models. The velocity v of the outer step points where recent outer steps went. c is
// the cosine of the movement d and v, and
//
//   confidence = |d| / (|d| + momentum_weight * |v|)
//
// A movement with c >= keep_cosine stays as it is. A movement with c < 0 loses a share of its part
// along v:
//
//   d - share * c * |d| * v/|v|,   share = min(shrink * -c * confidence, largest_shrink)
//
// A movement with 0 <= c < keep_cosine is turned towards v and keeps its length:
//
//   |d| * u/|u|,   u = (1 - turned) * d/|d| + turned * v/|v|,
//                  turned = min(turn * (1 - c) * confidence, 1)
//
// If d or v is zero, d stays as it is.
#ifndef TANDEM_WORKER_DENSE_HELOCO_H_
#define TANDEM_WORKER_DENSE_HELOCO_H_

#include "absl/types/span.h"
#include "proto/job.pb.h"

namespace tandem::worker {

// The corrected movement is of_movement * d + of_velocity * v.
struct CorrectedMovement {
  double of_movement = 1, of_velocity = 0;
};
// `d` and `v` have the same length. Pure: the same inputs give the same bits.
CorrectedMovement CorrectMovement(const HeLoCo& constants, absl::Span<const float> d,
                                  absl::Span<const float> v);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_HELOCO_H_
