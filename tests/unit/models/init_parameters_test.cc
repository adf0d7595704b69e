// Initial values of dense parameters: a function of (job seed, name, index) and nothing else.
#include <cmath>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"

namespace tandem {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;

models::ParameterInfo Parameter(const std::string& name, int64_t offset, int64_t size,
                                Initializer::Kind kind, double scale) {
  models::ParameterInfo info;
  info.name = name;
  info.offset = offset;
  info.size = size;
  info.shape = {size};
  info.initializer.set_kind(kind);
  info.initializer.set_scale(scale);
  return info;
}

std::vector<float> Values(const std::vector<models::ParameterInfo>& parameters, uint64_t seed) {
  int64_t size = 0;
  for (const models::ParameterInfo& p : parameters) size = std::max(size, p.offset + p.size);
  std::vector<float> flat(size, 77.0f);
  models::InitParameters(parameters, seed, absl::MakeSpan(flat));
  return flat;
}

// What stands before a parameter, or where it lies, does not change its values.
TEST(InitParametersTest, ValuesDoNotDependOnThePlace) {
  const auto alone = Values({Parameter("w", 0, 100, Initializer::UNIFORM, 0.5)}, 7);
  const auto after = Values({Parameter("first", 0, 13, Initializer::NORMAL, 1.0),
                             Parameter("w", 13, 100, Initializer::UNIFORM, 0.5)},
                            7);
  EXPECT_THAT(std::vector<float>(after.begin() + 13, after.end()), ElementsAreArray(alone));
}

// Another name or another seed gives other values.
TEST(InitParametersTest, ValuesDependOnNameAndSeed) {
  const auto w = Values({Parameter("w", 0, 50, Initializer::NORMAL, 1.0)}, 7);
  EXPECT_NE(w, Values({Parameter("v", 0, 50, Initializer::NORMAL, 1.0)}, 7));
  EXPECT_NE(w, Values({Parameter("w", 0, 50, Initializer::NORMAL, 1.0)}, 8));
  EXPECT_EQ(w, Values({Parameter("w", 0, 50, Initializer::NORMAL, 1.0)}, 7));
}

// The distributions are those asked for: range and mean square of each.
TEST(InitParametersTest, DistributionsHaveTheirScale) {
  constexpr int64_t kSize = 20000;
  const auto uniform = Values({Parameter("u", 0, kSize, Initializer::UNIFORM, 0.3)}, 1);
  const auto normal = Values({Parameter("n", 0, kSize, Initializer::NORMAL, 0.2)}, 1);
  const auto mean_square = [](const std::vector<float>& values) {
    double sum = 0.0;
    for (const float v : values) sum += double{v} * v;
    return sum / static_cast<double>(values.size());
  };
  EXPECT_THAT(uniform, Each(::testing::AllOf(::testing::Ge(-0.3f), ::testing::Le(0.3f))));
  EXPECT_NEAR(mean_square(uniform), 0.3 * 0.3 / 3, 0.002);
  EXPECT_NEAR(mean_square(normal), 0.2 * 0.2, 0.002);
  EXPECT_THAT(Values({Parameter("z", 0, 9, Initializer::ZERO, 0.0)}, 1), Each(0.0f));
}

}  // namespace
}  // namespace tandem
