// DC-ASGD, delay-compensated asynchronous SGD (Zheng et al. 2017, "Asynchronous stochastic gradient
// descent with delay compensation"). It is ASP, except that each gradient g, which was computed
// from the row as it was read, is carried over to the row as it is now. This is a first-order step
// in which the diagonal of lambda g g^T stands for the Hessian:
//   g + lambda * g * g * (row now - row as read), element by element.
// With lambda 0 it is ASP. The adaptive variant uses lambda / sqrt(mean square of the row's
// gradients + 1e-7) in place of lambda, for each element separately. At each gradient the mean
// square keeps a share m of its old value.
#include "absl/strings/str_cat.h"
#include "policies/kinds.h"
#include "policies/on_arrival.h"

namespace tandem::policies {
namespace {

class DcAsgd final : public OnArrivalPolicy {
 public:
  DcAsgd(double compensation, double mean_square_decay, float scale)
      : OnArrivalPolicy(scale),
        compensation_(compensation),
        mean_square_decay_(mean_square_decay) {}

  std::string name() const override {
    return mean_square_decay_ > 0
               ? absl::StrCat("DC_ASGD(", compensation_, ", adaptive ", mean_square_decay_, ")")
               : absl::StrCat("DC_ASGD(", compensation_, ")");
  }
  Properties properties() const override {
    Properties properties;
    properties.rows_as_read = compensation_ > 0;
    properties.mean_square_decay = compensation_ > 0 ? mean_square_decay_ : 0;
    return properties;
  }
  Transform OnApply(const RangeProgress&, const Update&, const Group&) const override {
    Transform transform = Scaled();
    transform.compensation = static_cast<float>(compensation_);
    return transform;
  }

 private:
  const double compensation_, mean_square_decay_;
};

}  // namespace

std::unique_ptr<UpdatePolicy> NewDcAsgd(const Policy& config, int workers) {
  return std::make_unique<DcAsgd>(config.compensation(), config.mean_square_decay(),
                                  AsyncScale(config, workers));
}

}  // namespace tandem::policies
