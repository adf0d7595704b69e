#include "collectives/reduce.h"

#include "base/check.h"
#include "collectives/reduce_kernels.h"
#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace tandem {
namespace {

size_t Index(DataType type) { return static_cast<size_t>(type); }
size_t Index(ReduceOp op) { return static_cast<size_t>(op); }

}  // namespace

#if defined(__x86_64__)
bool HasAvx2() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  // clang 14 does not know f16c by name.
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
  return f16c && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("bmi2");
}

bool HasAvx512() {
  return HasAvx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

const ReduceKernels& BestReduceKernels() {
  static const ReduceKernels& best = HasAvx512() ? kReduceAvx512
                                     : HasAvx2() ? kReduceAvx2
                                                 : kReduceBase;
  return best;
}
#else
bool HasAvx2() { return false; }
bool HasAvx512() { return false; }
const ReduceKernels& BestReduceKernels() { return kReduceBase; }
#endif

void Reduce(ReduceOp op, DataType type, void* out, const void* a, const void* b, size_t count) {
  const auto reduce = BestReduceKernels().reduce[Index(op)][Index(type)];
  TANDEM_CHECK(reduce != nullptr);
  reduce(out, a, b, count);
}

void FoldInOrder(ReduceOp op, DataType type, void* out, absl::Span<const void* const> contributions,
                 size_t count) {
  TANDEM_CHECK(!contributions.empty());
  const auto fold = BestReduceKernels().fold[Index(op)][Index(type)];
  TANDEM_CHECK(fold != nullptr);
  fold(out, contributions.data(), contributions.size(), count);
}

void ScaleCopy(DataType type, void* out, const void* in, size_t count, double factor) {
  const auto scale = BestReduceKernels().scale[Index(type)];
  TANDEM_CHECK(scale != nullptr);
  scale(out, in, count, factor);
}

void Scale(DataType type, void* data, size_t count, double factor) {
  ScaleCopy(type, data, data, count, factor);
}

}  // namespace tandem
