#include "scheduler/deal_ranges.h"

#include <algorithm>
#include <numeric>

#include "base/hash.h"

namespace tandem::scheduler {
namespace {

// With more blocks than this (a dense part of 4 G floats) they are not counted one by one. So many
// hashed blocks are balanced by the law of large numbers.
constexpr int64_t kMaxCountedBlocks = int64_t{1} << 22;

// The owner of each range if all ranges weigh the same: 0, 1, ..., shards - 1, 0, 1, ...
std::vector<int> DealInTurn(int ranges, int shards) {
  std::vector<int> owner(ranges);
  for (int r = 0; r < ranges; ++r) owner[r] = r % shards;
  return owner;
}

// Longest processing time first (Graham 1969): the heaviest range goes to the lightest shard.
std::vector<int> DealByWeight(const std::vector<double>& weight, int shards) {
  std::vector<int> order(weight.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return weight[a] > weight[b]; });
  std::vector<double> load(shards, 0.0);
  std::vector<int> dealt(shards, 0), owner(weight.size());
  for (const int r : order) {
    int best = 0;
    for (int s = 1; s < shards; ++s) {
      if (load[s] < load[best] || (load[s] == load[best] && dealt[s] < dealt[best])) best = s;
    }
    owner[r] = best;
    load[best] += weight[r];
    ++dealt[best];
  }
  return owner;
}

}  // namespace

std::vector<double> ExpectedRows(const job::TablePlan& table, const std::vector<uint64_t>& bounds) {
  const double each = static_cast<double>(table.expected_rows) / static_cast<double>(bounds.size());
  if (!table.dense || table.expected_rows > kMaxCountedBlocks) {
    return std::vector<double>(bounds.size(), each);
  }
  std::vector<double> rows(bounds.size(), 0.0);
  for (int64_t key = 0; key < table.expected_rows; ++key) {
    const uint64_t position = Position(table.salt, static_cast<uint64_t>(key));
    const auto after = std::upper_bound(bounds.begin(), bounds.end(), position);
    rows[after - bounds.begin() - 1] += 1.0;
  }
  return rows;
}

std::vector<RangeInfo> DealRanges(const job::ResolvedJob& plan) {
  std::vector<RangeInfo> map;
  if (plan.shards() == 0) return map;
  for (const job::TablePlan& table : plan.tables) {
    const job::ResolvedJob::Holders holders = plan.HoldersOf(table);
    const int copies = plan.CopiesOf(table);
    const int servers = holders.count / copies;  // for one copy
    const int shards = servers * plan.shards_per_server();
    const int ranges = shards * std::max(1, plan.job.cluster().ranges_per_shard());
    const std::vector<uint64_t> bounds = job::EqualRanges(ranges);
    const std::vector<int> owner = table.dense ? DealByWeight(ExpectedRows(table, bounds), shards)
                                               : DealInTurn(ranges, shards);
    for (int copy = 0; copy < copies; ++copy) {
      for (int r = 0; r < ranges; ++r) {
        const int server = holders.first + copy * servers + owner[r] / plan.shards_per_server();
        RangeInfo& info = map.emplace_back();
        info.set_table(table.id);
        info.set_begin(bounds[r]);
        info.set_end(r + 1 < ranges ? bounds[r + 1] : 0);
        info.set_server(static_cast<uint32_t>(server));
        info.set_shard(static_cast<uint32_t>(owner[r] % plan.shards_per_server()));
      }
    }
  }
  return map;
}

}  // namespace tandem::scheduler
