// A model whose values show which updates the cluster has applied. A row of a table is
//
//   [0, workers)  counts: each update of worker w subtracts 1 from element w
//   workers       tickets: each update subtracts a number that depends on (worker, step, key)
//   the rest      values: the gradient depends on the row that was pulled
//
// With SGD and learning rate 1, counts and tickets are whole numbers. Each row therefore shows at
// any time which updates it contains: the first c_w updates of each worker, each once. Otherwise
// the tickets do not add up. The values make a run depend on every bit of every pull.
//
// Pure functions of (options, worker, step, key), without state. Any thread.
#ifndef TANDEM_TESTS_SIM_PROOF_TOY_MODEL_H_
#define TANDEM_TESTS_SIM_PROOF_TOY_MODEL_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "data/batch.h"
#include "job/job.h"

namespace tandem {

class ToyModel {
 public:
  struct Options {
    uint64_t seed = 1;
    int universe = 16;          // keys of a table
    int keys_per_batch = 5;     // at most; sometimes 0
    std::vector<int> batches;   // by rank: batches an epoch; may be 0
    int dense = 8;              // dense elements; workers + 1 at least
    int test_batches = 1;       // on each worker
    bool full_batches = false;  // every batch has keys_per_batch keys of every table, and 4 samples
  };
  static constexpr float kFirstCount = 3.0f;  // initial value of every element
  static constexpr uint64_t kDenseKey = ~uint64_t{0};
  // Largest rounding error of a sum of tickets, which are up to 64 times as large as counts.
  static constexpr double kTicketTolerance = 0.05;

  ToyModel(const job::ResolvedJob& plan, Options options);

  const job::ResolvedJob& plan() const { return plan_; }
  const Options& options() const { return options_; }
  int workers() const { return workers_; }
  int ticket_element() const { return workers_; }

  // Samples of batch `index` of an epoch (a power of two); 0 after this worker's last batch.
  int64_t Samples(int rank, int64_t epoch, int64_t index) const;
  // The same, summed over all workers; 0 ends the epoch of a lockstep job.
  int64_t SumOfSamples(int64_t epoch, int64_t index) const;
  void FillBatch(int rank, int64_t epoch, int64_t index, data::Batch* batch) const;
  // Test batches also contain keys that no worker trains.
  void FillTestBatch(int rank, int64_t index, data::Batch* batch) const;

  uint64_t Key(uint32_t table, int i) const;  // the i-th of the universe

  // A whole number in [1, 64].
  int64_t Ticket(int rank, int64_t step, uint64_t key) const;
  // The label of all samples of a worker.
  float Label(int rank) const { return rank % 2 == 1 ? 1.0f : 0.0f; }

  // One row's gradient. `norm` cancels the divisor of the policy, so that a count stays 1.
  void Gradient(int rank, int64_t step, uint64_t key, float norm, absl::Span<const float> row,
                absl::Span<float> gradient) const;

 private:
  void FillSparse(uint64_t seed, bool test, data::Batch* batch) const;

  const job::ResolvedJob& plan_;
  const Options options_;
  const int workers_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_PROOF_TOY_MODEL_H_
