// Elastic averaging SGD, with workers that meet at the same steps (Zhang, Choromanska, LeCun 2015,
// "Deep learning with elastic averaging SGD", synchronous EASGD): replicas never become equal. At a
// meeting (local_steps.h) each of them and a centre c draw together:
//
//   x_i -= a (x_i - c);   c += a * sum over i of (x_i - c)        both with the centre as it was
//
// over the workers that had samples since the last meeting. Every worker keeps the same centre. It is
// the model: from the end of an epoch until the next step the parameters are the centre, so evaluations
// and programs see it, and the replica waits aside; a save has it at any moment.
//
// Thread safety: as DenseReduction.
#ifndef TANDEM_WORKER_ELASTIC_AVERAGING_H_
#define TANDEM_WORKER_ELASTIC_AVERAGING_H_

#include <memory>
#include <vector>

#include "worker/local_steps.h"

namespace tandem::worker {

class ElasticAveraging final : public LocalSteps {
 public:
  static std::unique_ptr<DenseReduction> New(const job::JobPlan& plan, int rank,
                                             int64_t bucket_bytes, DenseParameters& dense);

  // `dense`, which outlives this, has the same values on all workers: the first centre. `elasticity`:
  // a above.
  ElasticAveraging(DenseParameters& dense, const Options& options, float elasticity);

 private:
  void WriteShare(float weight, absl::Span<float> share) override;
  void TakeMeeting(const Meeting& meeting) override;
  void ShowModel() override;
  void ShowReplica() override { ShowModel(); }
  bool SavesSum() const override { return false; }
  std::vector<float> ModelToSave(const Meeting&) const override { return centre_; }
  std::vector<std::vector<float>*> Remembered() override { return {&centre_}; }

  const float elasticity_;
  std::vector<float> centre_;  // padded; or the replica, while the parameters are the centre
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_ELASTIC_AVERAGING_H_
