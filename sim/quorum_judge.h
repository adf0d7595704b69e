// The judge of dense sums that do not wait for all workers (dense.quorum), and of meetings that do not
// (local_steps.quorum), in a world with the toy model. It is told when a worker takes the model of now,
// computes a gradient, brings it to the sums, and begins and ends a sum. It keeps books of its own: what
// each sum must have, so what every parameter must be after it. Held to that are
//   (1) what workers read, evaluate and save: the model of the sums that they have had, in which each
//       gradient is once, by its samples; of meetings with the outer step, and with the worker's own steps
//       since then;
//   (2) how late a gradient (a movement) is: between its parameters and its own sum at most `bound` sums
//       begin, and workers report the same numbers;
//   (3) the models of all workers, to the bit, after each sum, and replicas when workers take it;
//   (4) evaluations, saves and the end: no gradient is left out;
//   (5) how many steps a worker takes by itself before a meeting.
//
// Beside "gradient", which is also how far a replica has moved in all its steps to a meeting, "sum" is a
// meeting here.
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
#include "job/job.h"
#include "sim/toy_model.h"

namespace tandem::sim {

class QuorumJudge {
 public:
  using Fail = std::function<void(const std::string& what)>;
  struct Options {
    int64_t bound = 1;
    bool values = true;  // parameters are what they would be under SGD with learning rate 1
    bool meetings = false;
    int64_t every = 1;                          // steps from one to the next
    double outer_rate = 1, outer_momentum = 0;  // of the step that a sum is
  };
  // Of a job with a quorum.
  static Options OptionsOf(const job::JobPlan& plan);
  // `model` outlives this.
  QuorumJudge(const ToyModel& model, const Options& options, Fail fail);

  // What it is told of worker `rank`.
  void OnRead(int rank);  // parameters become those of the sums that have ended
  void OnTaken(int rank, absl::Span<const float> values);  // ... at a meeting, and are these
  void OnCompute(int rank, int64_t step, int64_t samples);
  void OnStepped(int rank, int64_t step);  // its gradient is added to those to bring
  void OnBrought(int rank);                // ... which go to the next sum
  void OnBroughtRest(int rank);            // the same before all settle
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
    int64_t step = 0;  // the last one
    int64_t steps = 0, samples = 0;
    double count = 0, tickets = 0;  // what it takes of the parameters
    int64_t read = 0;               // sums that its parameters had
  };
  struct Worker {
    std::map<int64_t, int64_t> computed;  // samples by step: steps that are not taken
    Gradient own;                         // steps taken, not brought
    std::vector<Gradient> waiting;        // brought, in no sum
    int64_t begun = 0, ended = 0;         // sums
    int64_t read = 0;                     // ... that its parameters have
    std::vector<int64_t> missed;          // not reported
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
  // `rank`: whose own steps there are beside the sums; -1: nobody's.
  void CheckValues(absl::string_view who, size_t sums, int rank, absl::Span<const float> values);

  const ToyModel& model_;
  const Options options_;
  const Fail fail_;
  std::vector<Worker> workers_;
  std::vector<Sum> sums_;
  std::vector<double> velocity_;  // of the outer step, as Sum::counts
  size_t closed_ = 0;             // sums that all workers have begun
  uint64_t gradients_ = 0;
  int64_t missed_ = 0, most_missed_ = 0;
};

}  // namespace tandem::sim

#endif  // TANDEM_SIM_QUORUM_JUDGE_H_
