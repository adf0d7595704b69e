// Naive all-reduce, the example that textbooks begin with: all ranks send their whole vector to
// rank 0, which adds them in rank order and sends the sum back to each. Nothing is cut and nothing
// is pipelined.
//
//   all-reduce  rank 0 receives p-1 messages of S and sends as many; the others send one each:
//               2(p-1) (alpha + S beta) + (p-1) S gamma, all of it at rank 0
//
// Naive is the baseline for the other algorithms. Its time grows with p; ring and direct send
// 2(p-1)/p S for any p. A parameter server of one process has the same traffic.
//
// Order of additions: rank order, rounded once, for every element: the same bits as direct.
#include "collectives/schedules/build.h"

namespace tandem::collectives {
namespace {

Schedule NaiveAllReduce(const CollectiveShape& shape) {
  Schedule s = NewSchedule(Primitive::kAllReduce, shape);
  const Piece all{0, shape.count};
  if (s.rank != 0) {
    s.AddStep().Send(In(all), 0);
    s.AddStep().Receive(all, 0);
    return s;
  }
  const int fold = s.AddFold(RankOrder(s.ranks));
  s.AddStep().Fold(all, In(all), fold);
  Step& back = s.AddStep();
  for (int r = 1; r < s.ranks; ++r) back.Send(all, r);
  return s;
}

Traffic AllReduceTraffic(const CollectiveShape& shape) {
  return Times(shape.rank == 0 ? shape.ranks - 1 : 1, shape.count);
}

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kAllReduce, NaiveAllReduce, AllReduceTraffic, kWhole},
};

}  // namespace

extern const AlgorithmRow kNaiveRow = {Algorithm::kNaive, "naive", kRankOrder, kSupported};

}  // namespace tandem::collectives
