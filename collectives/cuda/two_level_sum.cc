// Two-level sum: a sum within each host, then a sum across hosts between the hosts' leaders, then
// the result goes to the other ranks of each host. The last step is another sum, in which the other
// ranks take part with zeros, so that no further connection between processes is needed. (A sum of
// only -0 becomes +0 that way.)
//
// Cost: twice the cost within a host, and once the cost across.
#include <cuda_runtime_api.h>

#include <string>
#include <utility>

#include "collectives/cuda/cuda_call.h"
#include "collectives/cuda/device_allreduce.h"

namespace tandem::collectives {
namespace {

using Code = DeviceStatus::Code;

class TwoLevelSum : public DeviceAllReduce {
 public:
  TwoLevelSum(std::unique_ptr<DeviceAllReduce> within, std::unique_ptr<DeviceAllReduce> across)
      : within_(std::move(within)), across_(std::move(across)) {}
  const char* name() const override { return "two_level"; }
  DeviceStatus Run(const DeviceReduction& what, cudaStream_t stream) override;

 private:
  const std::unique_ptr<DeviceAllReduce> within_, across_;
};

DeviceStatus TwoLevelSum::Run(const DeviceReduction& what, cudaStream_t stream) {
  if (what.op != ReduceOp::kSum) {
    return DeviceStatus(
        Code::kUnsupported,
        std::string("two-level all-reduce supports sum only, not ") + std::string(Name(what.op)));
  }
  TANDEM_DEVICE_RETURN(within_->Run(what, stream));
  DeviceReduction in_place = what;
  in_place.in = what.out;
  if (across_ != nullptr) {
    TANDEM_DEVICE_RETURN(across_->Run(in_place, stream));
  } else {
    TANDEM_CUDA_RETURN(cudaMemsetAsync(what.out, 0, what.count * SizeOf(what.type), stream));
  }
  return within_->Run(in_place, stream);
}

}  // namespace

std::unique_ptr<DeviceAllReduce> NewTwoLevelSum(std::unique_ptr<DeviceAllReduce> within,
                                                std::unique_ptr<DeviceAllReduce> across) {
  return std::make_unique<TwoLevelSum>(std::move(within), std::move(across));
}

}  // namespace tandem::collectives
