// ExactPattern has exact contents for benchmarks of collectives: a pattern for each rank, repeated
// over the whole vector. Its period is prime, so shifted, doubled, lost or swapped elements are
// always noticed. Filling and comparing cost little compared with the measured operations.
#ifndef TANDEM_TOOLS_BENCH_EXACT_PATTERN_H_
#define TANDEM_TOOLS_BENCH_EXACT_PATTERN_H_

#include <cstdint>

#include "collectives/exact_numbers.h"
#include "collectives/types.h"

namespace tandem::bench {

class ExactPattern {
 public:
  static constexpr int64_t kPeriod = 4099;

  // The input of rank `rank` for a reduction with `op`.
  static ExactPattern OfRank(collectives::ReduceOp op, collectives::DataType type, int rank);
  // The reduction of the inputs of all ranks; premulsum uses `factor`.
  static ExactPattern Reduced(collectives::ReduceOp op, collectives::DataType type, int ranks,
                              double factor);

  // Writes elements [from, from + count) of the endless vector.
  void Fill(int64_t from, int64_t count, void* to) const;
  // The number of these elements that differ in value.
  int64_t CountWrong(int64_t from, int64_t count, const void* have) const;

 private:
  explicit ExactPattern(collectives::DataType type) : period_(type, kPeriod) {}
  int64_t WrongInRun(int64_t at, int64_t count, const uint8_t* have) const;

  collectives::Vector period_;
};

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_EXACT_PATTERN_H_
