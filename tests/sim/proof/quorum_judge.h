// Checks dense sums that do not wait for all workers (dense.quorum), and sync rounds that do not
// (local_steps.quorum), in a world with the toy model. The world tells the judge when a worker
// takes the current model, computes a gradient, adds it to the sums, and begins and ends a sum. The
// judge computes the contents of each sum, and so the value of every parameter after it. It checks
//   (1) the models that workers read, evaluate and checkpoint: each contains every gradient of
//       the ended sums once, weighted by its samples; after sync rounds also the outer step, and
//       the worker's own steps since then;
//   (2) the lateness of a gradient (or movement): at most `bound` sums begin between its parameters
//       and its own sum, and workers report the same numbers;
//   (3) the models of all workers after each sum, and replicas when workers take it: all bits are
//       equal;
//   (4) evaluations, checkpoints and the end: no gradient is missing;
//   (5) the number of local steps of a worker before a sync round.
//
// "Sum" also means a sync round here, and "gradient" also means the movement of a replica since the
// last sync round.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TESTS_SIM_PROOF_QUORUM_JUDGE_H_
#define TANDEM_TESTS_SIM_PROOF_QUORUM_JUDGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "job/job.h"
#include "tests/sim/proof/toy_model.h"
#include "tools/sim/observer.h"

namespace tandem {

class QuorumJudge final : public sim::SumObserver {
 public:
  using Fail = std::function<void(const std::string& what)>;
  struct Options {
    int64_t bound = 1;
    // Check values; needs SGD with learning rate 1, and an outer step that takes each parameter by
    // itself.
    bool values = true;
    bool sync_rounds = false;
    int64_t every = 1;                          // steps from one sync round to the next
    double outer_rate = 1, outer_momentum = 0;  // of the outer step that applies a sum
    int64_t momentum_rounds = 1;                // sums from one use of the momentum to the next
  };
  // The options for a job with a quorum.
  static Options OptionsOf(const job::ResolvedJob& plan);
  // `model` must outlive this.
  QuorumJudge(const ToyModel& model, const Options& options, Fail fail);

  void OnRead(int rank) override;
  void OnTaken(int rank, absl::Span<const float> values) override;
  void OnStepped(int rank, int64_t step) override;
  void OnBrought(int rank) override;
  void OnBroughtRest(int rank) override;
  void OnSumBegins(int rank) override;
  void OnSumEnds(int rank, absl::Span<const float> model) override;
  void OnMissed(int rank, absl::Span<const int64_t> missed) override;
  // Worker `rank` computes the gradient of a step.
  void OnCompute(int rank, int64_t step, int64_t samples);

  // Checks.
  void CheckRead(int rank, absl::Span<const float> values);
  void CheckWhole(int rank, absl::Span<const float> values);

  // The number of gradients in sums, the total of the sums that they missed, and the most of
  // one gradient.
  uint64_t gradients() const { return gradients_; }
  int64_t missed() const { return missed_; }
  int64_t max_missed() const { return max_missed_; }

 private:
  struct Gradient {
    int64_t step = 0;  // its last step
    int64_t steps = 0, samples = 0;
    double count = 0, tickets = 0;  // subtracted from the parameters
    int64_t read = 0;               // sums in its parameters
  };
  struct Worker {
    std::map<int64_t, int64_t> computed;  // samples by step: computed, but not collected yet
    Gradient own;                         // collected, but not given to a sum yet
    std::vector<Gradient> waiting;        // given, but not in a sum yet
    int64_t begun = 0, ended = 0;         // number of sums
    int64_t read = 0;                     // sums in its parameters
    std::vector<int64_t> missed;          // not reported yet
  };
  struct Sum {
    int begun = 0;                             // number of workers that have begun it
    std::vector<std::vector<Gradient>> taken;  // by worker
    std::vector<double> counts;  // by worker, then tickets; set once all have begun it
    bool ended = false;          // for at least one worker
    uint64_t digest = 0;         // of the model after the sum
  };

  Worker& of(int rank) { return workers_[static_cast<size_t>(rank)]; }
  void Close(size_t number);
  // `rank`: the worker whose own steps are in `values`, too; -1: only sums are.
  void CheckValues(absl::string_view who, size_t sums, int rank, absl::Span<const float> values);

  const ToyModel& model_;
  const Options options_;
  const Fail fail_;
  std::vector<Worker> workers_;
  std::vector<Sum> sums_;
  // The velocity of the outer step, and the movements that it lacks, as Sum::counts.
  std::vector<double> velocity_, buffer_;
  int64_t outer_steps_ = 0;
  size_t closed_ = 0;  // sums that all workers have begun
  uint64_t gradients_ = 0;
  int64_t missed_ = 0, max_missed_ = 0;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_PROOF_QUORUM_JUDGE_H_
