// NCCL's all-reduce behind the interface of ours: what ours is measured beside.
#ifndef TANDEM_TESTS_CUDA_NCCL_ALLREDUCE_H_
#define TANDEM_TESTS_CUDA_NCCL_ALLREDUCE_H_

#include <memory>

#include "collectives/cuda/device_allreduce.h"

namespace tandem {

// One device a rank. UNSUPPORTED if the build had no NCCL, or for an op NCCL lacks (logical and bit
// ops). Fails where ranks share a device: NCCL refuses that.
collectives::DeviceStatus NewNcclAllReduce(int rank, int ranks,
                                           const collectives::ByteAllGather& all_gather,
                                           std::unique_ptr<collectives::DeviceAllReduce>* out);

}  // namespace tandem

#endif  // TANDEM_TESTS_CUDA_NCCL_ALLREDUCE_H_
