// A model whose arithmetic proves what the cluster did. A row of a table is
//
//   [0, workers)  counts: each update of worker w takes 1 from element w
//   workers       tickets: each update takes a number that depends on (worker, step, key)
//   the rest      values: the gradient depends on the row as it was read
//
// With SGD at learning rate 1 counts and tickets are whole numbers, so any row, read at any time,
// says exactly which updates it has seen: the first c_w of each worker, each once, or the tickets
// do not add up. The values make a run depend on every bit of every read.
//
// Pure functions of (options, worker, step, key); nothing is kept. Any thread.
#ifndef TANDEM_SIM_TOY_MODEL_H_
#define TANDEM_SIM_TOY_MODEL_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "data/batch.h"
#include "job/job.h"

namespace tandem::sim {

class ToyModel {
 public:
  struct Options {
    uint64_t seed = 1;
    int universe = 16;          // keys a table has
    int keys_per_batch = 5;     // at most; sometimes none
    std::vector<int> batches;   // by rank: batches an epoch; may be 0
    int dense = 8;              // dense elements; workers + 1 at least
    int test_batches = 1;       // on each worker
    bool full_batches = false;  // every batch has keys_per_batch keys of every table, and 4 samples
  };
  static constexpr float kFirstCount = 3.0f;  // first value of every element
  static constexpr uint64_t kDenseKey = ~uint64_t{0};
  // What rounding may make of a sum of tickets, which are up to 64 times as large as counts.
  static constexpr double kTicketTolerance = 0.05;

  ToyModel(const job::JobPlan& plan, Options options);

  const Options& options() const { return options_; }
  int workers() const { return workers_; }
  int ticket_element() const { return workers_; }

  // n of batch `index` of an epoch (a power of two), 0 beyond this worker's share.
  int64_t Samples(int rank, int64_t epoch, int64_t index) const;
  // Sum of n over all workers; 0 ends the epoch of a lockstep job.
  int64_t SumOfSamples(int64_t epoch, int64_t index) const;
  void FillBatch(int rank, int64_t epoch, int64_t index, data::Batch* batch) const;
  // Test batches also name keys that nobody trains.
  void FillTestBatch(int rank, int64_t index, data::Batch* batch) const;

  uint64_t Key(uint32_t table, int i) const;  // the i-th of the universe

  // A whole number in [1, 64].
  int64_t Ticket(int rank, int64_t step, uint64_t key) const;

  // One row's gradient. `norm` undoes what the policy divides by, so that a count stays 1.
  void Gradient(int rank, int64_t step, uint64_t key, float norm, absl::Span<const float> row,
                absl::Span<float> gradient) const;

 private:
  void FillSparse(uint64_t seed, bool test, data::Batch* batch) const;

  const job::JobPlan& plan_;
  const Options options_;
  const int workers_;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_TOY_MODEL_H_
