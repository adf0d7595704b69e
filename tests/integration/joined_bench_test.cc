// A collective benchmark whose ranks are started one by one: two processes meet and measure; what
// does not fit, or does not come, ends it with one clear line.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kLimit = absl::Seconds(60);

std::vector<std::string> Bench(const std::vector<std::string>& more) {
  std::vector<std::string> argv = {ProgramPath("tandem"), "bench", "allreduce", "--tiny"};
  argv.insert(argv.end(), more.begin(), more.end());
  return argv;
}

class JoinedBenchTest : public ::testing::Test {
 protected:
  // Rank 0, which listens; waits until it says where.
  std::unique_ptr<ChildProcess> Listen(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--listen", "127.0.0.1:0", "--rank", "0"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    auto child = std::make_unique<ChildProcess>(Bench(arguments), folder_.File("rank0"),
                                                std::map<std::string, std::string>());
    EXPECT_TRUE(child->WaitForOutput("\n", kLimit)) << child->Output();
    const std::vector<std::string> words =
        absl::StrSplit(child->Output(), absl::ByAnyChar(" \n"), absl::SkipEmpty());
    if (words.size() >= 3) address_ = words[2];
    return child;
  }

  // Ended by itself, with this exit code and these words.
  static void ExpectEnd(ChildProcess* child, int code, const std::string& words) {
    ASSERT_TRUE(child->WaitFor(kLimit)) << child->Output();
    EXPECT_EQ(child->exit_code(), code) << child->Output();
    EXPECT_THAT(child->Output(), HasSubstr(words));
  }

  TemporaryFolder folder_;
  std::string address_;
};

TEST_F(JoinedBenchTest, TwoProcessesMeetAndMeasure) {
  for (const char* link : {"auto", "tcp", "shm", "zmq"}) {
    const auto rank0 = Listen({"--ranks", "2", "--link", link});
    const RunResult rank1 = RunProgram(
        Bench({"--join", address_, "--rank", "1", "--ranks", "2", "--link", link}), kLimit);
    EXPECT_EQ(rank1.exit_code, 0) << rank1.output;
    ExpectEnd(rank0.get(), 0, "2 ranks over");
    EXPECT_THAT(rank0->Output(), HasSubstr("busbw"));
  }
}

TEST_F(JoinedBenchTest, RanksThatDoNotFitAreRefused) {
  const auto rank0 = Listen({"--ranks", "2", "--start-seconds", "8"});
  const RunResult more =
      RunProgram(Bench({"--join", address_, "--rank", "2", "--ranks", "3"}), kLimit);
  EXPECT_EQ(more.exit_code, 1);
  EXPECT_THAT(more.output, AllOf(HasSubstr("2"), HasSubstr("3"))) << more.output;
  const RunResult same =
      RunProgram(Bench({"--join", address_, "--rank", "0", "--ranks", "2"}), kLimit);
  EXPECT_EQ(same.exit_code, 1);
  EXPECT_THAT(same.output, HasSubstr("rank 0")) << same.output;
  ExpectEnd(rank0.get(), 1, "rank 1");  // who never came
}

TEST_F(JoinedBenchTest, DifferentOptionsAreAnErrorThatSaysSo) {
  const auto rank0 = Listen({"--ranks", "2", "--sizes", "4096"});
  const RunResult rank1 = RunProgram(
      Bench({"--join", address_, "--rank", "1", "--ranks", "2", "--sizes", "8192"}), kLimit);
  EXPECT_EQ(rank1.exit_code, 1);
  EXPECT_THAT(rank1.output, AllOf(HasSubstr("2048"), HasSubstr("1024"))) << rank1.output;
  ExpectEnd(rank0.get(), 1, "allreduce");
}

TEST_F(JoinedBenchTest, NobodyListensOrNobodyComes) {
  const RunResult nobody = RunProgram(
      Bench({"--join", "127.0.0.1:1", "--rank", "1", "--ranks", "2", "--start-seconds", "1"}),
      kLimit);
  EXPECT_EQ(nobody.exit_code, 1);
  EXPECT_THAT(nobody.output, HasSubstr("127.0.0.1:1")) << nobody.output;
  const auto rank0 = Listen({"--ranks", "2", "--start-seconds", "6"});
  ExpectEnd(rank0.get(), 1, "rank 1");
}

TEST_F(JoinedBenchTest, BadFlags) {
  for (const auto& [arguments, word] :
       std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--rank", "0"}, "one of --listen and --join"},
           {{"--rank", "0", "--listen", "127.0.0.1:0", "--join", "127.0.0.1:9"}, "one of"},
           {{"--rank", "2", "--ranks", "2", "--listen", "127.0.0.1:0"}, "rank 2 of 2 ranks"},
           {{"--listen", "127.0.0.1:0", "--link", "pigeon"}, "shm, rdma, tcp, zmq or auto"},
           {{"--join", "nowhere", "--start-seconds", "1"}, "nowhere"}}) {
    const RunResult result = RunProgram(Bench(arguments), kLimit);
    EXPECT_NE(result.exit_code, 0);
    EXPECT_THAT(result.output, HasSubstr(word));
  }
}

}  // namespace
}  // namespace tandem
