// Bruck (Bruck, Ho, Kipnis, Upfal & Weathersby 1997): few messages for any p, at the price of
// copies within a rank. For small blocks. L = ceil(log2 p).
//
//   allgather   L messages: L alpha + (p-1)/p S beta; copies S
//   all-to-all  L messages of at most half of what a rank sends: L (alpha + S/2 beta); copies at
//               most L S/2 + S. All blocks must have the same size.
//
// Messages are not cut, because blocks travel together.
#include <algorithm>
#include <vector>

#include "collectives/schedules/build.h"

namespace tandem::collectives {

namespace {

// Every rank gathers in scratch memory. There its own block comes first, then the blocks of the
// ranks after it. Each round doubles the number of blocks that a rank has.
Schedule BruckAllGather(const CollectiveShape& shape) {
  Schedule s = NewSchedule(Primitive::kAllGather, shape);
  const int rank = s.rank, p = s.ranks;
  const Piece own{0, s.input};
  std::vector<int64_t> at = {0};  // begin of the i-th block after the own one
  for (int i = 0; i < p; ++i) at.push_back(at.back() + shape.CountOf(Mod(rank + i, p)));
  const auto gathered = [&](int first, int last) {
    const int64_t begin = at[static_cast<size_t>(first)];
    return Piece{begin, at[static_cast<size_t>(last)] - begin, Region::kScratch};
  };
  s.scratch = s.output;
  for (int have = 1; have < p; have *= 2) {
    const int more = std::min(have, p - have);
    Step& step = s.AddStep();
    step.Send(have == 1 ? In(own) : gathered(0, more), Mod(rank - have, p));
    if (have == 1) step.Copy(Scratch(own), In(own));
    step.Receive(gathered(have, have + more), Mod(rank + have, p));
  }
  // Scratch has the blocks of ranks [rank, p) first, then those of [0, rank).
  const int64_t begin = shape.BlockOf(rank).begin, wrap = s.output - begin;
  s.steps.back().Copy({begin, wrap}, {0, wrap, Region::kScratch});
  if (rank > 0) s.steps.back().Copy({0, begin}, {wrap, begin, Region::kScratch});
  return s;
}

// The block for the rank at distance d to the right travels in hops: one hop of length 2^k for each
// bit k of d. In the round of a bit all blocks whose d has that bit travel in one message. Several
// blocks are packed first.
Schedule BruckAllToAll(const CollectiveShape& shape) {
  Schedule s = NewSchedule(Primitive::kAllToAll, shape);
  const int rank = s.rank, p = s.ranks;
  const int64_t count = SendBlock(shape, 0).count;
  const auto allot = [&](int64_t blocks) {
    s.scratch += blocks * count;
    return Piece{s.scratch - blocks * count, blocks * count, Region::kScratch};
  };
  std::vector<Piece> lies;  // by d: where the block with distance d is now
  for (int d = 0; d < p; ++d) lies.push_back(In(SendBlock(shape, Mod(rank + d, p))));
  for (int bit = 1; bit < p; bit *= 2) {
    std::vector<Piece*> travel;
    for (int d = bit; d < p; ++d) {
      if ((d & bit) != 0) travel.push_back(&lies[static_cast<size_t>(d)]);
    }
    const int64_t blocks = static_cast<int64_t>(travel.size());
    Step& pack = s.AddStep();
    Piece message = *travel[0];
    if (blocks > 1) {
      message = allot(blocks);
      for (int64_t i = 0; i < blocks; ++i) {
        pack.Copy({message.begin + i * count, count, Region::kScratch},
                  *travel[static_cast<size_t>(i)]);
      }
    }
    const Piece arrived = allot(blocks);
    s.AddStep().Send(message, Mod(rank + bit, p)).Receive(arrived, Mod(rank - bit, p));
    for (int64_t i = 0; i < blocks; ++i) {
      *travel[static_cast<size_t>(i)] = {arrived.begin + i * count, count, Region::kScratch};
    }
  }
  for (int d = shape.in_place ? 1 : 0; d < p; ++d) {
    s.steps.back().Copy(ReceiveBlock(shape, Mod(rank - d, p)), lies[static_cast<size_t>(d)]);
  }
  return s;
}

// ---- Traffic, by formula ----

Traffic AllGatherTraffic(const CollectiveShape& shape) {
  Traffic traffic;
  for (int have = 1; have < shape.ranks; have *= 2) {
    const int more = std::min(have, shape.ranks - have);
    traffic = traffic + Traffic{1, BlockSum(shape, shape.rank, more)};
  }
  return traffic;
}

// Each block moves once for every bit of its distance.
Traffic AllToAllTraffic(const CollectiveShape& shape) {
  Traffic traffic{CeilLog2(shape.ranks), 0};
  for (int d = 1; d < shape.ranks; ++d) {
    traffic.elements += __builtin_popcount(static_cast<unsigned>(d)) * shape.count;
  }
  return traffic;
}

absl::Status AllToAllFits(const CollectiveShape& shape) {
  if (shape.send_counts.empty()) return absl::OkStatus();
  return absl::UnimplementedError(
      "bruck does not support alltoall with a count for each rank; use pairwise");
}

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kAllGather, BruckAllGather, AllGatherTraffic, kWhole},
    {Primitive::kAllToAll, BruckAllToAll, AllToAllTraffic, kWhole, nullptr, AllToAllFits},
};

}  // namespace

extern const AlgorithmRow kBruckRow = {Algorithm::kBruck, "bruck", kOtherOrder, kSupported};

}  // namespace tandem::collectives
