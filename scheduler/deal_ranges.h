// The range map of the first view: which shard owns which key range.
//
// Every table is cut into ranges_per_shard * shards equal intervals of positions. The ranges are
// dealt to the shards of the servers, or of the workers if the table is on workers
// (Table.placement). If each worker has a copy of the table, each copy is cut and dealt in this
// way. Positions are hashes of keys, so equal intervals hold nearly equal shares of a large table's
// rows. Dealing the ranges round robin therefore gives each shard about the same number of rows.
// The dense table is different: its keys are known (block numbers from 0) and few. There the blocks
// of each range are counted, and the largest range goes to the emptiest shard first. The functions
// are pure: all nodes would compute the same map from the same plan.
#ifndef TANDEM_SCHEDULER_DEAL_RANGES_H_
#define TANDEM_SCHEDULER_DEAL_RANGES_H_

#include <cstdint>
#include <vector>

#include "job/job.h"
#include "proto/wire.pb.h"

namespace tandem::scheduler {

// The ranges of all tables, by range id. The ranges of a table are adjacent and in order of
// position. Empty if the plan has no servers or no tables.
std::vector<RangeInfo> DealRanges(const job::ResolvedJob& plan);

// The expected number of rows in each range of `table`. `bounds`: the first position of each range
// (job::EqualRanges).
std::vector<double> ExpectedRows(const job::TablePlan& table, const std::vector<uint64_t>& bounds);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_DEAL_RANGES_H_
