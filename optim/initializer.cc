#include "optim/initializer.h"

#include <algorithm>
#include <cmath>

#include "base/hash.h"
#include "base/random.h"

namespace tandem::optim {
namespace {

// 2u - 1, where u is uniform in [0, 1) with 24 bits. The result is exact in float and lies in [-1,
// 1).
float SignedUnit(uint32_t bits) { return static_cast<float>(bits >> 8) * 0x1.0p-23f - 1.0f; }

void FillUniform(float scale, Random& random, absl::Span<float> row) {
  size_t j = 0;
  for (; j + 2 <= row.size(); j += 2) {
    const uint64_t bits = random.Next64();
    row[j] = scale * SignedUnit(static_cast<uint32_t>(bits));
    row[j + 1] = scale * SignedUnit(static_cast<uint32_t>(bits >> 32));
  }
  if (j < row.size()) row[j] = scale * SignedUnit(static_cast<uint32_t>(random.Next64()));
}

}  // namespace

void InitRow(const Initializer& config, uint64_t seed, uint64_t key, absl::Span<float> row) {
  Random random(HashCombine(seed, key));
  const float scale = static_cast<float>(config.scale());
  switch (config.kind()) {
    case Initializer::ZERO:
      std::fill(row.begin(), row.end(), 0.0f);
      return;
    case Initializer::CONSTANT:
      std::fill(row.begin(), row.end(), scale);
      return;
    case Initializer::NORMAL:
      for (float& x : row) x = static_cast<float>(config.scale() * random.Normal());
      return;
    case Initializer::UNIFORM:
      return FillUniform(scale, random, row);
    default:
      return FillUniform(1.0f / std::sqrt(static_cast<float>(row.size())), random, row);
  }
}

}  // namespace tandem::optim
