// GBA, global batch gradients aggregation (Su et al. 2022, "GBA: a tuning-free approach to switch
// between synchronous and asynchronous training for recommendation models"). It is K-batch-async
// where a step has as many updates as a synchronous step (M, by default the number of workers). The
// global batch, and with it every setting of the optimizer, is therefore the same as under BSP.
//
// Each read takes a token, in the order of the reads: the first M reads have token 0, the next M
// token 1, and so on. The token is the number of the global batch to which the gradient would
// belong if no worker were late. When batch k is applied, an update with a token below k - iota
// contributes no gradient, but its n still counts in the divisor.
#include "absl/strings/str_cat.h"
#include "policies/in_batches.h"
#include "policies/kinds.h"

namespace tandem::policies {
namespace {

class Gba final : public InBatchesPolicy {
 public:
  Gba(int64_t batches, int64_t token_gap) : InBatchesPolicy(batches), token_gap_(token_gap) {}

  std::string name() const override { return absl::StrCat("GBA(", batches(), ")"); }
  Properties properties() const override {
    Properties properties;
    properties.holds = properties.counts_reads = properties.drops = true;
    properties.batch = batches();
    return properties;
  }
  Transform OnApply(const RangeProgress& progress, const Update& update,
                    const Group&) const override {
    if (update.read_number < 0) return {};
    const int64_t token = update.read_number / batches();
    return {progress.version - token > token_gap_ ? 0.0f : 1.0f};
  }

 private:
  const int64_t token_gap_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewGba(const Policy& config, int) {
  return std::make_unique<Gba>(config.batches(), config.token_gap());
}

}  // namespace tandem::policies
