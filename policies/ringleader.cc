// RINGLEADER, the table of gradients of Ringleader ASGD (Maranjyan, Richtarik 2025, "Ringleader
// ASGD: the first asynchronous SGD with optimal time complexity under data heterogeneity"). A
// worker waits for nobody. The range keeps the gradients of each worker, and a quick worker may
// bring several. When each worker that still has data has brought at least one, the range takes one
// step with the mean over the workers of each worker's mean. So each worker weighs the same,
// however often it has pushed, and nothing is dropped. Each step is one tick.
//
// A step needs a gradient of each worker that came after the step before. At most one step can
// close between the read of a gradient and its arrival, unless the worker prefetches.
//
// When no worker has data any more, the open table is applied as it is.
#include "policies/kinds.h"

namespace tandem::policies {
namespace {

class Ringleader final : public UpdatePolicy {
 public:
  explicit Ringleader(int workers) : workers_(workers) {}

  std::string name() const override { return "RINGLEADER"; }
  Properties properties() const override {
    Properties properties;
    properties.holds = properties.fold_by_worker = true;
    properties.batch = workers_;
    return properties;
  }
  bool MayStart(int64_t, int64_t) const override { return true; }
  // As in_batches.h.
  bool MayServe(const RangeProgress& progress, int rank, int64_t step, int depth) const override {
    return progress.workers[static_cast<size_t>(rank)].admitted >= step - depth;
  }
  Arrival OnArrival(const RangeProgress&, const Update& update) const override {
    return update.samples > 0 ? Arrival::kHold : Arrival::kApply;
  }
  Transform OnApply(const RangeProgress&, const Update&, const Group&) const override { return {}; }
  int64_t Ticks(const RangeProgress&, const Buffered& buffered, const Pushed&) const override {
    return buffered.from_all ? 1 : 0;
  }

 private:
  const int workers_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewRingleader(const Policy&, int workers) {
  return std::make_unique<Ringleader>(workers);
}

}  // namespace tandem::policies
