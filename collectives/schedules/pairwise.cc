// Pairwise all-to-all (also with uneven counts). In round d every rank sends to the rank d to its
// right and receives from the rank d to its left. So each block travels once, and two ranks never
// send to the same rank at the same time (Thakur, Rabenseifner & Gropp 2005).
//
// p-1 messages: (p-1) alpha + (p-1)/p S beta, where S is the size of all that a rank sends. Nothing
// is added, so messages are not cut. In place the blocks are first copied to scratch memory.
#include "collectives/schedules/build.h"

namespace tandem::collectives {

namespace {

Schedule PairwiseAllToAll(const CollectiveShape& shape) {
  Schedule s = NewSchedule(Primitive::kAllToAll, shape);
  const Piece all{0, s.input};
  if (shape.in_place) {
    s.scratch = s.input;
    s.AddStep().Copy(Scratch(all), In(all));
  }
  const auto block = [&](int to) {
    return shape.in_place ? Scratch(SendBlock(shape, to)) : In(SendBlock(shape, to));
  };
  for (int d = 1; d < s.ranks; ++d) {
    const int to = Mod(s.rank + d, s.ranks), from = Mod(s.rank - d, s.ranks);
    s.AddStep().Send(block(to), to).Receive(ReceiveBlock(shape, from), from);
  }
  // Needed in place, too: with uneven counts the own block may have another place in the output
  // than in the input.
  s.steps.back().Copy(ReceiveBlock(shape, s.rank), block(s.rank));
  return s;
}

Traffic AllToAllTraffic(const CollectiveShape& shape) {
  const int64_t all = InputElements(Primitive::kAllToAll, shape);
  return {shape.ranks - 1, all - SendBlock(shape, shape.rank).count};
}

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kAllToAll, PairwiseAllToAll, AllToAllTraffic, kWhole},
};

}  // namespace

extern const AlgorithmRow kPairwiseRow = {Algorithm::kPairwise, "pairwise", kOtherOrder,
                                          kSupported};

}  // namespace tandem::collectives
