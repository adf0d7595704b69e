#include "collectives/reduce.h"

#include "base/check.h"
#include "collectives/reduce_kernels.h"

namespace tandem::collectives {
namespace {

size_t Index(DataType type) { return static_cast<size_t>(type); }
size_t Index(ReduceOp op) { return static_cast<size_t>(op); }

}  // namespace

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

void Narrow(DataType type, absl::Span<const float> in, float factor, void* out) {
  const auto narrow = BestReduceKernels().narrow[Index(type)];
  TANDEM_CHECK(narrow != nullptr);
  narrow(out, in.data(), in.size(), factor);
}

void Widen(DataType type, const void* in, float factor, absl::Span<float> out) {
  const auto widen = BestReduceKernels().widen[Index(type)];
  TANDEM_CHECK(widen != nullptr);
  widen(out.data(), in, out.size(), factor);
}

}  // namespace tandem::collectives
