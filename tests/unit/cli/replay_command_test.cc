// Which recorded runs a replay refuses.
#include "cli/replay_command.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(ReplayCommandTest, RefusesNegativesOfEarlierVersions) {
  RunRecord was;
  DataFile* const file = was.add_train();
  file->set_name("train.rating");
  Data data;
  EXPECT_TRUE(cli::CheckNegatives(was, data).ok()) << "rows in lines have no negatives";
  data.set_format(Data::NCF);
  EXPECT_THAT(std::string(cli::CheckNegatives(was, data).message()),
              ::testing::HasSubstr("hint: record the run again"));
  file->set_sample(7);
  EXPECT_TRUE(cli::CheckNegatives(was, data).ok());
}

}  // namespace
}  // namespace tandem
