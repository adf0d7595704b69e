// Which shard owns which key range in the first view.
//
// Every table is cut into ranges_per_shard * shards equal intervals of positions, and dealt over the
// shards of the servers, or of the workers if it is on these (Table.synchroniser). A table of which
// each worker has a copy is cut and dealt for each of them. Positions are
// hashes of keys, so equal intervals hold nearly equal shares of a big table's rows, and dealing
// them round robin gives each shard the same number of them. The keys of the dense table are known
// (block numbers from 0), and few: there the blocks are counted, and the fullest range goes to the
// emptiest shard first. Pure: all nodes would compute the same map from the same plan.
#ifndef TANDEM_SCHEDULER_DEAL_RANGES_H_
#define TANDEM_SCHEDULER_DEAL_RANGES_H_

#include <cstdint>
#include <vector>

#include "job/job.h"
#include "proto/wire.pb.h"

namespace tandem::scheduler {

// The ranges of all tables, by range id; those of one table are adjacent and in order of position.
// Empty if the plan has no servers or no tables.
std::vector<RangeInfo> DealRanges(const job::JobPlan& plan);

// Rows expected in each of the ranges of `table` (as many as `bounds` has elements, see
// EqualRanges).
std::vector<double> ExpectedRows(const job::TablePlan& table, const std::vector<uint64_t>& bounds);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_DEAL_RANGES_H_
