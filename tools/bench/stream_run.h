// A stream of updates to one store, as of a table that grows without end: each batch draws ids
// that follow Zipf's law, and pushes a gradient for each distinct id of the batch. A batch is a
// version. Rows leave by AGE or LRU, or stay.
//
// Each line of the report has, since the line before: updates (rows of a push) in a second, updates
// in a second of the processor time of the store alone, and evictions in a second. Then the rows,
// the memory that the store counts, and the memory of the process that is in RAM.
//
// The number of evictions follows from the skew and from the number N of rows that stay: at least
// one for each draw of an id that is not among the N most frequent ones. Of 10^8 ids these are
// 7.7 % of the draws with a skew of 1.05 and 10^7 rows, and 10.8 % with 0.9 and 3.8 * 10^7 rows.
#ifndef TANDEM_TOOLS_BENCH_STREAM_RUN_H_
#define TANDEM_TOOLS_BENCH_STREAM_RUN_H_

#include <cstdint>
#include <ostream>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "optim/optimizer.h"
#include "server/rows/page_arena.h"
#include "server/rows/row_table.h"
#include "tools/bench/store_bench.h"

namespace tandem::bench {

// Numbers from 1 to `count`; k has the weight k^-skew. Needs no table (Hoermann and Derflinger
// 1996, "Rejection-inversion to generate variates from monotone discrete distributions").
class ZipfNumbers {
 public:
  // Requires: count at least 1, skew above 0.
  ZipfNumbers(int64_t count, double skew);
  int64_t Draw(Random* random) const;

 private:
  double Weight(double x) const;
  double Integral(double x) const;  // of Weight
  double InverseIntegral(double y) const;

  const int64_t count_;
  const double skew_;
  double first_ = 0, last_ = 0;  // Integral below the first number and above the last one
  double sure_ = 0;              // a number this close to the real one needs no second look
};

class StreamRun {
 public:
  // `optimizer` outlives this. `store`: without limits, which come from `options`.
  StreamRun(const StoreBenchOptions& options, server::RowTable::Options store);

  // Prints a line each report_seconds, and one at the end.
  absl::Status Run(std::ostream& out);

 private:
  void NextBatch();
  absl::Status PushBatch();
  void Print(absl::Duration passed, std::ostream& out);

  const StoreBenchOptions options_;
  server::PageArena arena_;
  server::RowCounts counts_;
  server::RowTable store_;
  const ZipfNumbers ids_;
  Random random_;
  std::vector<uint64_t> keys_;          // of a batch
  absl::flat_hash_set<uint64_t> seen_;  // the same
  std::vector<float> gradients_;
  int64_t version_ = 0;
  // Since the last line.
  uint64_t updates_ = 0, evicted_before_ = 0;
  double store_seconds_ = 0;
  absl::Time began_;
};

// Refuses settings out of range. INVALID_ARGUMENT.
absl::Status CheckStream(const StoreBenchOptions& options);

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_STREAM_RUN_H_
