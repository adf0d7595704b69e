// Random is a small seeded generator, which is passed in wherever randomness is needed. The same
// seed gives the same bits on every machine; std::distributions do not guarantee that.
#ifndef TANDEM_BASE_RANDOM_H_
#define TANDEM_BASE_RANDOM_H_

#include <cmath>
#include <cstdint>

#include "base/hash.h"

namespace tandem {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix64(seed + 0x9e3779b97f4a7c15u)) {}

  uint64_t Next64() { return Mix64(state_ += 0x9e3779b97f4a7c15u); }

  // Uniform in [0, n). Requires n > 0.
  uint64_t Uniform(uint64_t n) { return MulHigh(Next64(), n); }

  // Uniform in [0, 1).
  double NextDouble() { return static_cast<double>(Next64() >> 11) * 0x1.0p-53; }

  bool Bernoulli(double p) { return NextDouble() < p; }

  // Exponential with mean 1.
  double Exponential() { return -std::log1p(-NextDouble()); }

  // Normal with mean 0 and deviation 1 (Box-Muller, one of the pair).
  double Normal() {
    const double u = 1.0 - NextDouble();
    const double v = NextDouble();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586476925 * v);
  }

 private:
  uint64_t state_;
};

}  // namespace tandem

#endif  // TANDEM_BASE_RANDOM_H_
