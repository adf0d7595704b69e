// Servers that stay on processors of their own: with all their threads, and nobody else.
#include <signal.h>

#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

constexpr absl::Duration kStart = absl::Seconds(90);
constexpr absl::Duration kEnd = absl::Seconds(30);

// The processors that threads of a process may use, as the system writes them; one entry if all of
// them may use the same ones.
std::set<std::string> ProcessorsOf(const std::string& process) {
  std::set<std::string> lists;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/" + process + "/task")) {
    for (const absl::string_view line :
         absl::StrSplit(ReadTextFile(thread.path().string() + "/status"), '\n')) {
      if (absl::StartsWith(line, "Cpus_allowed_list:")) lists.insert(std::string(line));
    }
  }
  return lists;
}

TEST(PinTest, ServersStayAndWorkersDoNot) {
  const std::set<std::string> all = ProcessorsOf("self");
  const std::string configs = SourcePath("configs/");
  const TemporaryFolder folder;
  RunArguments arguments;
  arguments.job = configs + "delimited.textproto";
  arguments.set = {"data.train=" + configs + "data/example_train.csv",
                   "data.test=" + configs + "data/example_test.csv", "train.epochs=1000000",
                   "cluster.pin_servers=true"};
  arguments.out = folder.File("out");
  RunningJob job(arguments);
  ASSERT_TRUE(job.WaitForStep(20, kStart)) << job.driver().Output();
  const auto of = [&](const char* role) { return ProcessorsOf(absl::StrCat(job.Roles()[role])); };
  EXPECT_EQ(of("worker-0"), all);
  EXPECT_EQ(of("server-0").size(), 1u);
  EXPECT_EQ(of("server-1").size(), 1u);
  if (std::thread::hardware_concurrency() > 1) {
    EXPECT_NE(of("server-0"), of("server-1"));
    EXPECT_NE(of("server-0"), all);
  }
  job.driver().Signal(SIGINT);
  EXPECT_FALSE(job.Finish(kEnd).timed_out);
}

}  // namespace
}  // namespace tandem
