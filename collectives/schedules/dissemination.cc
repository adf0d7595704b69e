// Dissemination barrier (Hensgen, Finkel & Manber 1988), for any p. In round k every rank tells the
// rank 2^k to its right that it has arrived, and so have all ranks that it has heard of.
//
// ceil(log2 p) empty messages: ceil(log2 p) alpha.
#include "collectives/schedules/build.h"

namespace tandem::collectives {

namespace {

Schedule DisseminationBarrier(const CollectiveShape& shape) {
  Schedule s = NewSchedule(Primitive::kBarrier, shape);
  for (int64_t distance = 1; distance < s.ranks; distance *= 2) {
    s.AddStep()
        .Send({}, Mod(s.rank + distance, s.ranks))
        .Receive({}, Mod(s.rank - distance, s.ranks));
  }
  return s;
}

Traffic BarrierTraffic(const CollectiveShape& shape) { return {CeilLog2(shape.ranks), 0}; }

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kBarrier, DisseminationBarrier, BarrierTraffic, kWhole},
};

}  // namespace

extern const AlgorithmRow kDisseminationRow = {Algorithm::kDissemination, "dissemination",
                                               kOtherOrder, kSupported};

}  // namespace tandem::collectives
