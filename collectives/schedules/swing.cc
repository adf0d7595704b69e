// Swing all-reduce (De Sensi, Bonato, Saam & Hoefler 2024): halving and doubling whose partners
// swing from one side of a rank to the other, at distances 1, 1, 3, 5, 11, ... On a ring or torus
// of ranks messages travel shorter ways than with doubling distances. For any p: see butterfly.h.
//
// 2L messages: 2L alpha + 2(p-1)/p S beta + (p-1)/p S gamma with L = log2 of the size of the core.
// If p is not a power of two, folding in and out adds 2 alpha + 2 S beta + S gamma.
//
// Order of additions: a tree that depends on the block, so it depends on the place of an element.
// The result changes if the vector is cut elsewhere: not reproducible.
#include <algorithm>
#include <vector>

#include "base/check.h"
#include "collectives/schedules/build.h"
#include "collectives/schedules/butterfly.h"

namespace tandem::collectives {
namespace {

// The signed distance to the partner in round k for an even rank: 1, -1, 3, -5, 11, ..., the sum of
// (-2)^i, i <= k.
int Distance(int k) {
  int sum = 0;
  for (int i = 0, power = 1; i <= k; ++i, power *= -2) sum += power;
  return sum;
}

int Partner(int v, int k, int size) {
  return Mod(v % 2 == 0 ? v + Distance(k) : v - Distance(k), size);
}

}  // namespace

// Positions of the ranks' blocks in the vector such that the blocks that two partners share are one
// range. The function undoes the rounds from the last to the first: in each it joins the groups of
// partners, until one group is left.
std::vector<int> SwingPositions(int rounds) {
  const int size = 1 << rounds;
  std::vector<std::vector<int>> groups;
  std::vector<int> group_of(static_cast<size_t>(size));
  for (int v = 0; v < size; ++v) {
    groups.push_back({v});
    group_of[static_cast<size_t>(v)] = v;
  }
  for (int k = rounds - 1; k >= 0; --k) {
    for (int v = 0; v < size; ++v) {
      const int mine = group_of[static_cast<size_t>(v)];
      const int other = group_of[static_cast<size_t>(Partner(v, k, size))];
      if (mine == other) continue;
      std::vector<int>& to = groups[static_cast<size_t>(mine)];
      for (const int u : groups[static_cast<size_t>(other)]) {
        to.push_back(u);
        group_of[static_cast<size_t>(u)] = mine;
      }
      groups[static_cast<size_t>(other)].clear();
      TANDEM_CHECK(to.size() == static_cast<size_t>(size >> k));
    }
  }
  std::vector<int> position(static_cast<size_t>(size));
  const std::vector<int>& order = groups[static_cast<size_t>(group_of[0])];
  for (size_t i = 0; i < order.size(); ++i) {
    position[static_cast<size_t>(order[i])] = static_cast<int>(i);
  }
  return position;
}

namespace {

Schedule SwingAllReduce(const CollectiveShape& shape) {
  const ButterflyCore core(shape.ranks);
  const std::vector<int> position = SwingPositions(core.rounds());
  return InParts(Primitive::kAllReduce, shape, ButterflyPart(shape),
                 [&](const CollectiveShape& part) {
                   return ButterflyAllReduce(
                       part, [&](int v, int k) { return Partner(v, k, core.size()); },
                       [&](int v) { return position[static_cast<size_t>(v)]; });
                 });
}

Traffic AllReduceTraffic(const CollectiveShape& shape) {
  const ButterflyCore core(shape.ranks);
  const auto number = static_cast<size_t>(core.Number(shape.rank));
  return ButterflyTraffic(shape, SwingPositions(core.rounds())[number]);
}

constexpr PrimitiveRow kSupported[] = {
    {Primitive::kAllReduce, SwingAllReduce, AllReduceTraffic, kCuts},
};

}  // namespace

extern const AlgorithmRow kSwingRow = {Algorithm::kSwing, "swing", kOtherOrder, kSupported};

}  // namespace tandem::collectives
