// One worker's part in sums that do not wait for all workers, without threads and links: its gradients
// that no sum has taken yet, the model that every sum steps, and what both say of how late a gradient
// was. In a worker quorum_sums.h runs it, in the simulator sim/sim_quorum.h.
//
// A sum that rank 0 calls (quorum_caller.h):
//
//   const DenseReduction::Request& request = member.BeginSum();
//   ... run it, with all workers ...
//   member.EndSum();
//
// and after the last one before an evaluation or a save the same with BeginCompare and EndCompare.
// Between the two of a pair the worker may go on: BeforeStep has the model of before the sum, and what
// is added is in the next one.
//
// Thread safety: none; but what a request points to is not touched by BeforeStep, Add and TakeMissed.
#ifndef TANDEM_WORKER_QUORUM_MEMBER_H_
#define TANDEM_WORKER_QUORUM_MEMBER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "worker/dense_parameters.h"
#include "worker/dense_reduction.h"

namespace tandem::worker {

class QuorumMember {
 public:
  struct Options {
    int rank = 0, ranks = 1;
    absl::optional<collectives::Algorithm> algorithm;  // of sums
  };
  // `dense`: what the worker computes with, and outlives this; `model`: made like it, and becomes it.
  QuorumMember(DenseParameters& dense, std::unique_ptr<DenseParameters> model,
               const Options& options);

  // The parameters become the model of now.
  void BeforeStep();
  // A step's gradient, padded as in DenseParameters, plus one element, goes to what the next sum takes.
  void Add(absl::Span<float> gradient, const DenseReduction::Step& step);
  // All gradients are in a sum: the parameters become the model, slots and all.
  absl::Status BecomeModel();
  // The other way round, before the first sum.
  absl::Status SetModel();
  // Appends, for each gradient that a sum has taken since the last call, how many sums it had missed:
  // those that began between its parameters and its own.
  void TakeMissed(std::vector<int64_t>* missed);

  // What is waiting, or zeros, into the sum of all; then the model steps with the mean.
  const DenseReduction::Request& BeginSum();
  void EndSum();
  // Digests of all models side by side: those of the moment before `step`. INTERNAL or ABORTED if they
  // differ (replica_digests.h).
  const DenseReduction::Request& BeginCompare();
  absl::Status EndCompare(int64_t step) const;

  uint64_t sums() const { return sums_; }  // that the model has
  const DenseParameters& model() const { return *model_; }

 private:
  DenseParameters& dense_;
  const std::unique_ptr<DenseParameters> model_;
  const Options options_;
  uint64_t sums_ = 0;
  uint64_t sums_read_ = 0;               // that the parameters have
  std::vector<float> waiting_;           // gradients for the next sum: padded, plus one element
  std::vector<uint64_t> waiting_since_;  // sums that their parameters had
  std::vector<int64_t> missed_;
  std::vector<float> summing_;  // as waiting_, of the sum under way
  std::vector<uint64_t> digests_;
  std::vector<int64_t> digest_shares_;
  DenseReduction::Request request_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_QUORUM_MEMBER_H_
