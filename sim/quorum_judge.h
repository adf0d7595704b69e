// The judge of dense sums that do not wait for all workers (dense.quorum), in a world with the toy
// model. It is told when a worker takes the model of now, computes a gradient, hands it to the sums,
// and begins and ends a sum. It keeps books of its own: which gradients each sum must have, so what
// every parameter must be after it. Held to that are
//   (1) what workers read, evaluate and save: the model of the sums that they have had, in which each
//       gradient is once, by its samples;
//   (2) how late a gradient is: between its parameters and its own sum at most `bound` sums begin, and
//       workers report the same numbers;
//   (3) the models of all workers, to the bit, after each sum;
//   (4) evaluations, saves and the end: no gradient is left out.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SIM_QUORUM_JUDGE_H_
#define TANDEM_SIM_QUORUM_JUDGE_H_

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "sim/toy_model.h"

namespace tandem::sim {

class QuorumJudge {
 public:
  using Fail = std::function<void(const std::string& what)>;
  // `model` outlives this. `values`: whether parameters are what they would be under SGD with learning
  // rate 1.
  QuorumJudge(const ToyModel& model, int64_t bound, bool values, Fail fail);

  // What it is told of worker `rank`.
  void OnRead(int rank);  // parameters become those of the sums that have ended
  void OnCompute(int rank, int64_t step, int64_t samples);
  void OnAdded(int rank, int64_t step);
  void OnSumBegins(int rank);
  void OnSumEnds(int rank, absl::Span<const float> model);
  // That so many sums were missed by gradients whose sums have begun since the last time.
  void OnMissed(int rank, absl::Span<const int64_t> missed);

  // What it looks at.
  void CheckRead(int rank, absl::Span<const float> values);
  void CheckWhole(int rank, absl::Span<const float> values);

  // All gradients in sums; how many sums they missed, all of them and the one that missed most.
  uint64_t gradients() const { return gradients_; }
  int64_t missed() const { return missed_; }
  int64_t most_missed() const { return most_missed_; }

 private:
  struct Gradient {
    int64_t step = 0, samples = 0;
    int64_t read = 0;  // sums that its parameters had
  };
  struct Worker {
    std::map<int64_t, Gradient> computed;  // by step: not handed over
    std::vector<Gradient> waiting;         // handed over, in no sum
    int64_t begun = 0, ended = 0;          // sums
    int64_t read = 0;                      // ... that its parameters have
    std::vector<int64_t> missed;           // not reported
  };
  struct Sum {
    int begun = 0;                             // by so many workers
    std::vector<std::vector<Gradient>> taken;  // by worker
    std::vector<double>
        counts;           // after it: by worker, and last the tickets; once all have begun it
    bool ended = false;   // by anybody
    uint64_t digest = 0;  // of the model after it
  };

  Worker& of(int rank) { return workers_[static_cast<size_t>(rank)]; }
  void Close(size_t number);
  void CheckValues(absl::string_view who, size_t sums, absl::Span<const float> values);

  const ToyModel& model_;
  const int64_t bound_;
  const bool values_;
  const Fail fail_;
  std::vector<Worker> workers_;
  std::vector<Sum> sums_;
  size_t closed_ = 0;  // sums that all workers have begun
  uint64_t gradients_ = 0;
  int64_t missed_ = 0, most_missed_ = 0;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_QUORUM_JUDGE_H_
