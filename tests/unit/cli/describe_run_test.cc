// The first lines of `tandem run` and `tandem simulate`.
#include "cli/describe_run.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "cli/console/describe_tables.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/unit/server/core_fixture.h"

namespace tandem {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Tables(int more, bool frozen) {
  std::string tables;
  for (int i = 1; i <= more; ++i) {
    absl::StrAppend(&tables, "table { name: \"b", i, "\" dim: 2 field: \"C", i,
                    "\" frozen: ", frozen ? "true" : "false",
                    " optimizer { kind: SGD learning_rate: 1 } expected_rows: 16 } ");
  }
  return cli::DescribeTables(CorePlan("kind: SSP bound: 2", 2, 1, tables));
}

TEST(DescribeTablesTest, CountsManyTablesThatAreUpdatedAlike) {
  EXPECT_EQ(Tables(1, false), "table a SSP(2), table b1 SSP(2), dense on servers SSP(2)");
  EXPECT_EQ(Tables(1, true), "table a SSP(2), table b1 SSP(2) (frozen), dense on servers SSP(2)");
  EXPECT_EQ(Tables(20, false), "21 tables SSP(2), dense on servers SSP(2)");
  EXPECT_EQ(Tables(20, true), "table a SSP(2), 20 tables SSP(2) (frozen), dense on servers SSP(2)");
}

TEST(DescribeRunTest, AJobWithoutRowsToEvaluateOnSaysSo) {
  job::ResolvedJob plan = CorePlan("kind: BSP", 2, 1);
  EXPECT_THAT(cli::DescribeRun(plan, {}), Contains(HasSubstr("nothing is evaluated")));
  plan.job.mutable_data()->set_test_fraction(0.1);
  EXPECT_THAT(cli::DescribeRun(plan, {}), Not(Contains(HasSubstr("nothing is evaluated"))));
}

}  // namespace
}  // namespace tandem
