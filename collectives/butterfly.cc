#include "collectives/butterfly.h"

#include <algorithm>

#include "collectives/build.h"

namespace tandem {

ButterflyCore::ButterflyCore(int ranks) : ranks_(ranks), rounds_(FloorLog2(ranks)) {}

Schedule ButterflyAllReduce(const CollectiveShape& part,
                            absl::FunctionRef<int(int v, int k)> partner,
                            absl::FunctionRef<int(int v)> position) {
  const ButterflyCore core(part.ranks);
  const Blocks block(part.count, core.size());
  const int rank = part.rank, v = core.Number(rank);
  const bool outside = core.Outside(rank), stands = core.Stands(rank);
  const Piece all{0, part.count};
  Schedule s = NewSchedule(Primitive::kAllReduce, part);
  if (core.extra() > 0) {
    Step& fold_in = s.AddStep();
    if (outside) fold_in.Send(In(all), rank - 1);
    if (stands) fold_in.Reduce(all, In(all), rank + 1);
  }
  const int own = outside ? 0 : position(v);
  // Of the 2^k ranges of round k, the one in which block `own` lies, or the one beside it.
  const auto range = [&](int k, bool beside) {
    const int64_t length = core.size() >> k, index = (own / length) ^ (beside ? 1 : 0);
    return block.Range(index * length, (index + 1) * length);
  };
  for (int k = 0; k < core.rounds(); ++k) {  // Reduce-scatter.
    Step& step = s.AddStep();
    if (outside) continue;
    const bool first = k == 0 && !stands;
    const Piece give = range(k + 1, true), keep = range(k + 1, false);
    const int peer = core.Rank(partner(v, k));
    step.Send(first ? In(give) : give, peer).Reduce(keep, first ? In(keep) : keep, peer);
  }
  for (int k = core.rounds() - 1; k >= 0; --k) {  // Allgather.
    Step& step = s.AddStep();
    if (outside) continue;
    const int peer = core.Rank(partner(v, k));
    step.Send(range(k + 1, false), peer).Receive(range(k + 1, true), peer);
  }
  if (core.extra() > 0) {
    Step& fold_out = s.AddStep();
    if (stands) fold_out.Send(all, rank + 1);
    if (outside) fold_out.Receive(all, rank - 1);
  }
  return s;
}

int64_t ButterflyPart(const CollectiveShape& shape) {
  // The first message is half of the blocks of a part, or, to fold in, all of it.
  const ButterflyCore core(shape.ranks);
  if (core.extra() > 0) return shape.segment;
  return std::max(shape.segment, 2 * shape.segment / core.size() * core.size());
}

}  // namespace tandem
