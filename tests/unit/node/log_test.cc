// A line of the log has time, level, role and rank, and is what was said, whatever is in it.
#include "node/log.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::MatchesRegex;

std::string Line(absl::string_view end) {
  return absl::StrCat("[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2}:[0-9]{2}\\.[0-9]{3} ", end);
}

TEST(LogTest, SaysWhenHowBadAndWho) {
  testing::internal::CaptureStderr();
  const node::Log worker("worker", 1);
  const node::Log scheduler("scheduler");
  worker.Info("reads 2 files");
  worker.Warning("100% {} %s");  // no format
  scheduler.Error("cannot write");
  const std::vector<std::string> lines =
      absl::StrSplit(testing::internal::GetCapturedStderr(), '\n');
  EXPECT_THAT(lines, ElementsAre(MatchesRegex(Line("info worker 1: reads 2 files")),
                                 MatchesRegex(Line("warning worker 1: 100% \\{\\} %s")),
                                 MatchesRegex(Line("error scheduler: cannot write")), ""));
}

TEST(LogTest, LinesForProgramsAreJson) {
  setenv(node::kLogFormatVariable, "json", 1);
  testing::internal::CaptureStderr();
  node::Log("worker", 1).Warning("a \"quoted\" line\nand \xff");
  node::Log("scheduler").Info("100% {} %s");
  unsetenv(node::kLogFormatVariable);
  const std::vector<std::string> lines =
      absl::StrSplit(testing::internal::GetCapturedStderr(), '\n');
  ASSERT_EQ(lines.size(), 3u) << "one line each";
  EXPECT_THAT(
      lines[0],
      MatchesRegex("\\{\"level\":\"warning\",\"rank\":1,\"role\":\"worker\",\"text\":\"a "
                   ".*quoted.* line.*nand .*\",\"time\":\"[-0-9]{10}T[:0-9]{8}.[0-9]{3}Z\"\\}"));
  EXPECT_EQ(node::TextOfLogLine(lines[0]), "a \"quoted\" line\nand \xef\xbf\xbd");
  EXPECT_EQ(node::TextOfLogLine(lines[1]), "100% {} %s");
  for (const char* other : {"", "{", "text", "{\"text\":7}", "[]"}) {
    EXPECT_EQ(node::TextOfLogLine(other), other);
  }
}

// Other processes must not be able to fill a disk.
TEST(LogTest, WhatOthersCauseIsBounded) {
  testing::internal::CaptureStderr();
  const node::Log log("server", 0);
  node::BoundedLog bounded;
  for (int i = 0; i < 10 * node::BoundedLog::kMax; ++i) bounded.Warning(log, absl::StrCat(i));
  const std::vector<std::string> lines =
      absl::StrSplit(testing::internal::GetCapturedStderr(), '\n');
  ASSERT_EQ(lines.size(), static_cast<size_t>(node::BoundedLog::kMax) + 2);
  EXPECT_THAT(lines[99], MatchesRegex(Line("warning server 0: 99")));
  EXPECT_THAT(lines[100], MatchesRegex(Line("warning server 0: more lines .* not logged")));
}

}  // namespace
}  // namespace tandem
