#include "collectives/cuda/device_reduce.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "collectives/cuda/cuda_call.h"
#include "collectives/cuda/device_fold.cuh"

namespace tandem::collectives {
namespace {

using device::Plan;

constexpr int kThreads = 256;
constexpr size_t kBlocksPerProcessor = 32;

template <class E, template <class> class Op>
__global__ void __launch_bounds__(kThreads) FoldKernel(const __grid_constant__ Plan plan) {
  const size_t thread = static_cast<size_t>(blockIdx.x) * kThreads + threadIdx.x;
  device::FoldThread<E, Op>(plan, thread, static_cast<size_t>(gridDim.x) * kThreads);
}

// Two ways to run a plan: on the device, or on the host thread by thread.
struct OnDevice {
  cudaStream_t stream;
  unsigned blocks;
  template <class E, template <class> class Op>
  void Run(const Plan& plan) const {
    FoldKernel<E, Op><<<blocks, kThreads, 0, stream>>>(plan);
  }
};

struct OnHost {
  size_t threads;
  template <class E, template <class> class Op>
  void Run(const Plan& plan) const {
    for (size_t t = 0; t < threads; ++t) device::FoldThread<E, Op>(plan, t, threads);
  }
};

template <class E, class Where>
void RunOp(const Plan& plan, const Where& where) {
  switch (plan.fold.op) {
    case ReduceOp::kSum:
      return where.template Run<E, device::Sum>(plan);
    case ReduceOp::kProduct:
      return where.template Run<E, device::Product>(plan);
    case ReduceOp::kMin:
      return where.template Run<E, device::Min>(plan);
    case ReduceOp::kMax:
      return where.template Run<E, device::Max>(plan);
    case ReduceOp::kLogicalOr:
      return where.template Run<E, device::LogicalOr>(plan);
    case ReduceOp::kLogicalAnd:
      return where.template Run<E, device::LogicalAnd>(plan);
    case ReduceOp::kAverage:
      if constexpr (E::kFloating) where.template Run<E, device::Average>(plan);
      return;
    case ReduceOp::kPreMulSum:
      if constexpr (E::kFloating) where.template Run<E, device::PreMulSum>(plan);
      return;
    case ReduceOp::kBitOr:
      if constexpr (!E::kFloating) where.template Run<E, device::BitOr>(plan);
      return;
    case ReduceOp::kBitAnd:
      if constexpr (!E::kFloating) where.template Run<E, device::BitAnd>(plan);
      return;
    case ReduceOp::kBitXor:
      if constexpr (!E::kFloating) where.template Run<E, device::BitXor>(plan);
      return;
  }
}

template <class Where>
void RunPlan(const Plan& plan, const Where& where) {
  switch (plan.fold.type) {
    case DataType::kF32:
      return RunOp<device::Plain<float, true>>(plan, where);
    case DataType::kF64:
      return RunOp<device::Plain<double, true>>(plan, where);
    case DataType::kF16:
      return RunOp<device::Half>(plan, where);
    case DataType::kBF16:
      return RunOp<device::Brain>(plan, where);
    case DataType::kI32:
      return RunOp<device::Plain<int32_t, false>>(plan, where);
    case DataType::kI64:
      return RunOp<device::Plain<int64_t, false>>(plan, where);
    case DataType::kU8:
      return RunOp<device::Plain<uint8_t, false>>(plan, where);
  }
}

DeviceStatus Invalid(const std::string& message) {
  return DeviceStatus(DeviceStatus::Code::kInvalidArgument, message);
}

DeviceStatus Check(const DeviceFold& fold) {
  if (fold.inputs < 1 || fold.inputs > kMaxFoldVectors || fold.outputs < 1 ||
      fold.outputs > kMaxFoldVectors) {
    return Invalid("fold: " + std::to_string(fold.inputs) + " inputs and " +
                   std::to_string(fold.outputs) + " outputs, each must be 1 to " +
                   std::to_string(kMaxFoldVectors));
  }
  if (!Defined(fold.op, fold.type)) {
    return Invalid(std::string("fold: ") + Name(fold.op) + " is not defined for " +
                   Name(fold.type));
  }
  const size_t size = SizeOf(fold.type);
  const auto aligned = [size](const void* p) { return reinterpret_cast<uintptr_t>(p) % size == 0; };
  if (!std::all_of(fold.in, fold.in + fold.inputs, aligned) ||
      !std::all_of(fold.out, fold.out + fold.outputs, aligned)) {
    return Invalid(std::string("fold: a pointer is not a multiple of ") + std::to_string(size) +
                   " bytes, the size of " + Name(fold.type));
  }
  return DeviceStatus();
}

// Divides a fold: vectors begin where the first input reaches a multiple of 16 bytes, provided that
// all other pointers reach one at the same element.
Plan MakePlan(const DeviceFold& fold) {
  const auto place = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16; };
  const uintptr_t first = place(fold.in[0]);
  const auto alike = [&](const void* p) { return place(p) == first; };
  const size_t size = SizeOf(fold.type);
  Plan plan;
  plan.fold = fold;
  if (std::all_of(fold.in, fold.in + fold.inputs, alike) &&
      std::all_of(fold.out, fold.out + fold.outputs, alike)) {
    plan.head = std::min(fold.count, (16 - first) % 16 / size);
    plan.vectors = (fold.count - plan.head) * size / 16;
  }
  return plan;
}

}  // namespace

DeviceStatus LaunchFold(const DeviceFold& fold, cudaStream_t stream) {
  TANDEM_DEVICE_RETURN(Check(fold));
  if (fold.count == 0) return DeviceStatus();
  int gpu = 0, processors = 0;
  TANDEM_CUDA_RETURN(cudaGetDevice(&gpu));
  TANDEM_CUDA_RETURN(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, gpu));
  const Plan plan = MakePlan(fold);
  const size_t singles = fold.count - plan.vectors * 16 / SizeOf(fold.type);
  const size_t work = std::max((plan.vectors + 3) / 4, singles);
  const size_t blocks = std::min<size_t>((work + kThreads - 1) / kThreads,
                                         kBlocksPerProcessor * static_cast<size_t>(processors));
  RunPlan(plan, OnDevice{stream, static_cast<unsigned>(blocks)});
  return TANDEM_CUDA_STATUS(cudaGetLastError());
}

DeviceStatus FoldOnHost(const DeviceFold& fold, size_t threads) {
  TANDEM_DEVICE_RETURN(Check(fold));
  if (threads == 0) return Invalid("fold: no threads");
  RunPlan(MakePlan(fold), OnHost{threads});
  return DeviceStatus();
}

}  // namespace tandem::collectives
