// Processes that a program starts: how they end is told, and where that is not known, that they
// have ended.
#include "cli/children.h"

#include <csignal>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using cli::Children;
using ::testing::HasSubstr;

class ChildrenTest : public ::testing::Test {
 protected:
  ~ChildrenTest() override {
    std::error_code ignored;
    std::filesystem::remove(log_, ignored);
  }

  // A shell that does as it is told.
  void Start(Children* children, const std::string& name, const std::string& script) {
    const absl::Status started = children->Start({name, {"/bin/sh", "-c", script}, log_});
    ASSERT_TRUE(started.ok()) << started;
  }
  // By name, once all have ended.
  static std::map<std::string, Children::Exit> Ends(Children* children) {
    std::map<std::string, Children::Exit> ends;
    const absl::Time deadline = MonotonicNow() + absl::Seconds(20);
    while (children->running() && MonotonicNow() < deadline) {
      for (Children::Exit& exit : children->Reap()) ends[exit.name] = std::move(exit);
      absl::SleepFor(absl::Milliseconds(5));
    }
    return ends;
  }

  const std::string log_ = ::testing::TempDir() + "children_test.log";
};

TEST_F(ChildrenTest, HowTheyEndIsTold) {
  Children children;
  Start(&children, "good", "exit 0");
  Start(&children, "bad", "exit 3");
  Start(&children, "killed", "kill -9 $$");
  const std::map<std::string, Children::Exit> ends = Ends(&children);
  ASSERT_EQ(ends.size(), 3u);
  EXPECT_EQ(ends.at("good").code, 0);
  EXPECT_EQ(ends.at("good").signal, 0);
  EXPECT_EQ(ends.at("bad").code, 3);
  EXPECT_EQ(ends.at("killed").signal, SIGKILL);
  EXPECT_THAT(ends.at("bad").DebugString(), HasSubstr("exited with status 3"));
}

// While SIGCHLD is ignored, the system forgets a child as it ends.
TEST_F(ChildrenTest, AnEndThatTheSystemForgetsIsSeenAndIsNoGoodOne) {
  const auto before = std::signal(SIGCHLD, SIG_IGN);
  Children children;
  Start(&children, "short", "exit 0");
  const std::map<std::string, Children::Exit> ends = Ends(&children);
  Start(&children, "long", "exec sleep 1000");
  const std::vector<Children::Exit> stopped = children.StopAll(absl::Seconds(20));
  std::signal(SIGCHLD, before);
  ASSERT_EQ(ends.count("short"), 1u);
  EXPECT_EQ(ends.at("short").code, Children::Exit::kUnknown);
  EXPECT_GT(ends.at("short").pid, 0);
  EXPECT_THAT(ends.at("short").DebugString(), HasSubstr("its exit status is not known"));
  ASSERT_EQ(stopped.size(), 1u);
  EXPECT_EQ(stopped[0].name, "long");
  EXPECT_FALSE(children.running());
}

}  // namespace
}  // namespace tandem
