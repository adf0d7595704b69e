#include "tools/bench/exact_pattern.h"

#include <algorithm>
#include <cstring>

#include "collectives/reduce.h"

namespace tandem::bench {

ExactPattern ExactPattern::OfRank(collectives::ReduceOp op, collectives::DataType type, int rank) {
  ExactPattern out(type);
  collectives::FillExact(op, rank, &out.period_);
  return out;
}

ExactPattern ExactPattern::Reduced(collectives::ReduceOp op, collectives::DataType type, int ranks,
                                   double factor) {
  ExactPattern out(type);
  for (int64_t i = 0; i < kPeriod; ++i)
    out.period_.Set(i, collectives::ExactResult(op, type, ranks, i));
  const double scale = op == collectives::ReduceOp::kAverage     ? 1.0 / ranks
                       : op == collectives::ReduceOp::kPreMulSum ? factor
                                                                 : 1.0;
  if (scale != 1.0) collectives::Scale(type, out.period_.data(), kPeriod, scale);
  return out;
}

void ExactPattern::Fill(int64_t from, int64_t count, void* to) const {
  const auto element = static_cast<int64_t>(collectives::SizeOf(period_.type()));
  auto* out = static_cast<uint8_t*>(to);
  for (int64_t at = from % kPeriod; count > 0; at = 0) {
    const int64_t run = std::min(count, kPeriod - at);
    std::memcpy(out, period_.data() + at * element, static_cast<size_t>(run * element));
    out += run * element;
    count -= run;
  }
}

int64_t ExactPattern::CountWrong(int64_t from, int64_t count, const void* have) const {
  const auto element = static_cast<int64_t>(collectives::SizeOf(period_.type()));
  const auto* in = static_cast<const uint8_t*>(have);
  int64_t wrong = 0;
  for (int64_t at = from % kPeriod; count > 0; at = 0) {
    const int64_t run = std::min(count, kPeriod - at);
    wrong += WrongInRun(at, run, in);
    in += run * element;
    count -= run;
  }
  return wrong;
}

int64_t ExactPattern::WrongInRun(int64_t at, int64_t count, const uint8_t* have) const {
  const auto element = static_cast<int64_t>(collectives::SizeOf(period_.type()));
  const auto bytes = static_cast<size_t>(count * element);
  if (std::memcmp(have, period_.data() + at * element, bytes) == 0) return 0;
  // Compare by value: where the sum is zero, both zeros are right.
  collectives::Vector run(period_.type(), count);
  std::memcpy(run.data(), have, bytes);
  int64_t wrong = 0;
  for (int64_t i = 0; i < count; ++i) wrong += run.Get(i) != period_.Get(at + i);
  return wrong;
}

}  // namespace tandem::bench
