// Recursive halving and doubling (Rabenseifner 2004; Thakur, Rabenseifner & Gropp 2005), for any p:
// see butterfly.h. L = log2 of the size of the core.
//
//   all-reduce      2L messages: 2L alpha + 2(p-1)/p S beta + (p-1)/p S gamma
//   reduce-scatter  L messages: L alpha + (p-1)/p S (beta + gamma)
//
// If p is not a power of two, ranks outside the core fold in and out. This adds 2 alpha + 2 S beta
// + S gamma to the all-reduce, and alpha + S beta + S gamma + the last block to the reduce-scatter.
// Only the all-reduce cuts its messages: the blocks of a reduce-scatter travel together.
//
// Order of additions: a tree that depends on the block, so it depends on the place of an element.
// The result changes if the vector is cut elsewhere: not reproducible.
#include "collectives/schedules/build.h"
#include "collectives/schedules/butterfly.h"

namespace tandem::collectives {
namespace {

// Builds the reduce-scatter of one rank. Each round halves a range of core ranks, the farthest
// partner first, so that the order of ranks is the order of blocks. Sums are in scratch memory. The
// first element of scratch is element `base` of the vector.
class Halving {
 public:
  Halving(const CollectiveShape& shape, Schedule* s)
      : shape_(shape), core_(shape.ranks), v_(core_.Number(shape.rank)), s_(*s) {}

  void FoldIn() {
    Step& step = s_.AddStep();
    const Piece all = Range(0, core_.size());
    if (core_.Outside(s_.rank)) step.Send(In(all), s_.rank - 1);
    if (!core_.Stands(s_.rank)) return;
    s_.scratch = all.count;
    step.Reduce(Sums(all), In(all), s_.rank + 1);
    in_input_ = false;
  }

  void Round(int k) {
    Step& step = s_.AddStep();
    if (core_.Outside(s_.rank)) return;
    const int length = core_.size() >> (k + 1), mine = v_ / length * length;
    const int other = mine ^ length, peer = core_.Rank(v_ ^ length);
    const Piece give = Range(other, other + length), keep = Range(mine, mine + length);
    step.Send(Source(give), peer);
    const Piece from = Source(keep);
    const bool last = length == 1 && !core_.Stands(s_.rank);
    if (!last && in_input_) {
      s_.scratch = keep.count;
      base_ = keep.begin;
    }
    step.Reduce(last ? Piece{0, s_.output} : Sums(keep), from, peer);
    in_input_ = false;
  }

  void FoldOut() {
    Step& step = s_.AddStep();
    const Piece own{0, s_.output};
    if (core_.Outside(s_.rank)) step.Receive(own, s_.rank - 1);
    if (!core_.Stands(s_.rank)) return;
    step.Send(Sums(shape_.BlockOf(s_.rank + 1)), s_.rank + 1);
    step.Copy(own, Sums(shape_.BlockOf(s_.rank)));
  }

 private:
  // The blocks of core ranks [first, last) and of the ranks that they stand for.
  Piece Range(int first, int last) const {
    const int64_t begin = shape_.BlockOf(core_.Rank(first)).begin;
    const int64_t end =
        last == core_.size() ? shape_.Total() : shape_.BlockOf(core_.Rank(last)).begin;
    return {begin, end - begin};
  }
  Piece Sums(Piece piece) const { return {piece.begin - base_, piece.count, Region::kScratch}; }
  Piece Source(Piece piece) const { return in_input_ ? In(piece) : Sums(piece); }

  const CollectiveShape& shape_;
  const ButterflyCore core_;
  const int v_;
  Schedule& s_;
  bool in_input_ = true;  // nothing has been added yet
  int64_t base_ = 0;
};

}  // namespace

// Bit k of v says which half is kept in round k: position = the bits of v in reverse order.
int HalvingPosition(int v, int rounds) {
  int position = 0;
  for (int k = 0; k < rounds; ++k) position |= ((v >> k) & 1) << (rounds - 1 - k);
  return position;
}

namespace {

// Partners of round k differ in bit k, so the nearest ranks exchange the longest messages.
Schedule HalvingDoublingAllReduce(const CollectiveShape& shape) {
  return InParts(Primitive::kAllReduce, shape, ButterflyPart(shape),
                 [](const CollectiveShape& part) {
                   const int rounds = ButterflyCore(part.ranks).rounds();
                   return ButterflyAllReduce(
                       part, [](int v, int k) { return v ^ (1 << k); },
                       [rounds](int v) { return HalvingPosition(v, rounds); });
                 });
}

Schedule HalvingReduceScatter(const CollectiveShape& shape) {
  Schedule s = NewSchedule(Primitive::kReduceScatter, shape);
  const ButterflyCore core(shape.ranks);
  Halving halving(shape, &s);
  if (core.extra() > 0) halving.FoldIn();
  for (int k = 0; k < core.rounds(); ++k) halving.Round(k);
  if (core.extra() > 0) halving.FoldOut();
  return s;
}

// ---- Traffic, by formula ----

Traffic AllReduceTraffic(const CollectiveShape& shape) {
  const ButterflyCore core(shape.ranks);
  return ButterflyTraffic(shape, HalvingPosition(core.Number(shape.rank), core.rounds()));
}

Traffic ReduceScatterTraffic(const CollectiveShape& shape) {
  const int r = shape.rank;
  const ButterflyCore core(shape.ranks);
  if (core.Outside(r)) return {1, shape.Total()};
  // Everything but the own block. A rank that stands for another also sends that rank's block at
  // the end.
  return {core.rounds() + (core.Stands(r) ? 1 : 0), shape.Total() - shape.CountOf(r)};
}

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kAllReduce, HalvingDoublingAllReduce, AllReduceTraffic, kCuts},
    {Primitive::kReduceScatter, HalvingReduceScatter, ReduceScatterTraffic, kWhole},
};

}  // namespace

extern const AlgorithmRow kHalvingDoublingRow = {Algorithm::kHalvingDoubling, "halving_doubling",
                                                 kOtherOrder, kSupported};

}  // namespace tandem::collectives
