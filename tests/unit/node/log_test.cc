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

// Other processes must not be able to fill a disk.
TEST(LogTest, WhatOthersCauseIsBounded) {
  testing::internal::CaptureStderr();
  const node::Log log("server", 0);
  node::BoundedLog bounded;
  for (int i = 0; i < 10 * node::BoundedLog::kMost; ++i) bounded.Warning(log, absl::StrCat(i));
  const std::vector<std::string> lines =
      absl::StrSplit(testing::internal::GetCapturedStderr(), '\n');
  ASSERT_EQ(lines.size(), static_cast<size_t>(node::BoundedLog::kMost) + 2);
  EXPECT_THAT(lines[99], MatchesRegex(Line("warning server 0: 99")));
  EXPECT_THAT(lines[100], MatchesRegex(Line("warning server 0: more lines .* not logged")));
}

}  // namespace
}  // namespace tandem
