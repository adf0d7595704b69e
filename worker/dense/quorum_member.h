// One worker's part in sums that do not wait for all workers, without threads and links: its
// gradients that no sum contains yet, the model that every sum changes, and how late each gradient
// was. In a worker quorum_sums.h runs this object, in the simulator tools/sim/sim_quorum.h.
//
// A sum that rank 0 calls (quorum_caller.h):
//
//   const DenseReduction::Request& request = member.BeginSum();
//   ... run it, with all workers ...
//   member.EndSum();
//
// After the last sum before an evaluation or a checkpoint, BeginCompare and EndCompare follow in
// the same way. Between Begin and End the worker may continue: BeforeStep gives the model before
// the sum, and an added gradient is in the next sum.
//
// Thread safety: none; but BeforeStep, Add and TakeMissed do not touch the memory of a running
// request.
#ifndef TANDEM_WORKER_DENSE_QUORUM_MEMBER_H_
#define TANDEM_WORKER_DENSE_QUORUM_MEMBER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "worker/dense/dense_parameters.h"
#include "worker/dense/dense_reduction.h"

namespace tandem::worker {

class QuorumMember {
 public:
  struct Options {
    int rank = 0, ranks = 1;
    absl::optional<collectives::Algorithm> algorithm;  // algorithm of the sums
  };
  // `dense`: the parameters that the worker computes with; outlives this object. `model`: made in
  // the same way as `dense`; takes the values of `dense`.
  QuorumMember(DenseParameters& dense, std::unique_ptr<DenseParameters> model,
               const Options& options);

  // Copies the present model into the worker's parameters.
  void BeforeStep();
  // Adds a step's gradient (padded as in DenseParameters, plus one element) to the gradients that
  // the next sum takes.
  void Add(absl::Span<float> gradient, const DenseReduction::Step& step);
  // Requires: all gradients are in a sum. The parameters become the model, with the optimizer
  // state.
  absl::Status BecomeModel();
  // Copies the parameters into the model, before the first sum.
  absl::Status SetModel();
  // Appends, for each gradient that a sum has taken since the last call, how many sums the gradient
  // had missed: the sums that began between the read of its parameters and its own sum.
  void TakeMissed(std::vector<int64_t>* missed);

  // BeginSum puts the waiting gradients, or zeros, into a sum over all workers. EndSum takes an
  // optimizer step of the model with the mean.
  const DenseReduction::Request& BeginSum();
  void EndSum();
  // Compares digests of all models, taken before `step`. INTERNAL or ABORTED if the models differ
  // (replica_digests.h).
  const DenseReduction::Request& BeginCompare();
  absl::Status EndCompare(int64_t step) const;

  uint64_t sums() const { return sums_; }  // number of sums in the model
  const DenseParameters& model() const { return *model_; }

 private:
  DenseParameters& dense_;
  const std::unique_ptr<DenseParameters> model_;
  const Options options_;
  uint64_t sums_ = 0;
  uint64_t sums_read_ = 0;               // number of sums in the worker's parameters
  std::vector<float> waiting_;           // gradients for the next sum: padded, plus one element
  std::vector<uint64_t> waiting_since_;  // for each waiting gradient: sums_read_ of its parameters
  std::vector<int64_t> missed_;
  std::vector<float> summing_;  // as waiting_, of the running sum
  std::vector<uint64_t> digests_;
  std::vector<int64_t> digest_shares_;
  DenseReduction::Request request_;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_QUORUM_MEMBER_H_
