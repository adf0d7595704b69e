// The store benchmark: pull and push of random rows compared with a plain gather of the same rows.
//
// The gather reads rows by known index from a copy of the table on the same kind of pages, and
// prefetches 16 rows ahead. The gather shows what the machine allows without look-ups. Each batch
// has new random keys. The sides take turns batch by batch, because the speed of a machine drifts.
//
// With `stream`, RunStoreBench runs another benchmark (stream_run.h): a long stream of updates of
// ids that follow Zipf's law. The store keeps the rows of only some ids.
#ifndef TANDEM_TOOLS_BENCH_STORE_BENCH_H_
#define TANDEM_TOOLS_BENCH_STORE_BENCH_H_

#include <cstdint>
#include <ostream>

#include "absl/status/status.h"
#include "optim/row_dtype.h"
#include "proto/job.pb.h"

namespace tandem::bench {

struct StoreBenchOptions {
  int64_t rows = 10'000'000;
  int dim = 16;
  int64_t batch_keys = 32'768;
  int repetitions = 7;
  int batches = 40;  // batches of each kind in a repetition
  Optimizer::Kind optimizer = Optimizer::ROWWISE_ADAGRAD;
  optim::RowTypes types;
  uint64_t seed = 1;

  // The stream.
  int64_t stream = 0;                       // distinct ids; 0: no stream
  double skew = 1.05;                       // exponent of Zipf's law
  Eviction::Kind eviction = Eviction::LRU;  // NONE, AGE or LRU
  int64_t max_rows = 10'000'000;            // LRU
  int64_t versions = 100;                   // AGE; a batch is a version
  double seconds = 600;
  double report_seconds = 10;  // between two lines
  int64_t stream_batches = 0;  // ends earlier, after so many batches; 0: does not
};

// The processor time of this thread. On an idle machine it equals wall time, since nothing here
// waits. On a busy machine a batch is not charged for other programs that run meanwhile.
double ThreadSeconds();

// Prints the machine and the settings, and then the report of the stream, or a checksum of the
// results (the same for the same settings), the memory of a row, and the rate of each measure in
// million rows per second of processor time, as "min p50 p99 max samples". The gather copies rows
// of f32 whose places are known. INTERNAL: a pull and the gather disagree, or
// there are more rows than LRU allows. INVALID_ARGUMENT: settings out of range.
absl::Status RunStoreBench(const StoreBenchOptions& options, std::ostream& out);

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_STORE_BENCH_H_
