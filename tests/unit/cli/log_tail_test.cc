// What `tandem run` takes from the log of a script: whole lines, once, and never too many.
#include "cli/launch/log_tail.h"

#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LogTailTest : public ::testing::Test {
 protected:
  LogTailTest() : path_(absl::StrCat(testing::TempDir(), "/log_tail_test.", getpid())) {
    std::remove(path_.c_str());
  }
  ~LogTailTest() override { std::remove(path_.c_str()); }
  void Write(const std::string& text) const {
    std::FILE* const file = std::fopen(path_.c_str(), "a");
    std::fwrite(text.data(), 1, text.size(), file);
    std::fclose(file);
  }
  const std::string path_;
  cli::LogTail tail_{"worker 1", path_};
};

TEST_F(LogTailTest, ReturnsWholeLinesOnce) {
  EXPECT_THAT(tail_.Read(), IsEmpty()) << "there is no file yet";
  Write("one\ntwo\nthr");
  EXPECT_THAT(tail_.Read(), ElementsAre("one", "two"));
  EXPECT_THAT(tail_.Read(), IsEmpty());
  Write("ee\n\nfour");
  EXPECT_THAT(tail_.Read(), ElementsAre("three", ""));
  EXPECT_THAT(tail_.Read(/*last=*/true), ElementsAre("four"));
  EXPECT_THAT(tail_.Read(/*last=*/true), IsEmpty());
}

TEST_F(LogTailTest, LinesOfAnEarlierAttemptAreSkipped) {
  Write("old\nolder");
  tail_.SkipExisting();
  Write("\nnew\n");
  EXPECT_THAT(tail_.Read(), ElementsAre("", "new"));
}

// However much it is: nothing more will come.
TEST_F(LogTailTest, TheLastReadReturnsTheEnd) {
  Write(std::string(8 << 20, 'x') + "\nend");
  EXPECT_EQ(tail_.Read(/*last=*/true).back(), "end");
}

TEST_F(LogTailTest, AProgressBarIsItsLastState) {
  Write("\r 10%|#\r 20%|##\r100%|####\nwindows\r\n\rnext");
  EXPECT_THAT(tail_.Read(/*last=*/true), ElementsAre("100%|####", "windows", "next"));
}

TEST_F(LogTailTest, ManyOrLongLinesAreBounded) {
  std::string text;
  for (size_t i = 0; i < cli::LogTail::kMaxLines + 50; ++i) absl::StrAppend(&text, i, "\n");
  Write(text);
  const auto lines = tail_.Read();
  ASSERT_EQ(lines.size(), cli::LogTail::kMaxLines + 1);
  EXPECT_EQ(lines.back(), absl::StrCat("(50 more lines in ", path_, ")"));
  Write(std::string(1 << 20, 'x') + "\n");
  EXPECT_EQ(tail_.Read()[0].size(), cli::LogTail::kMaxBytes);
}

}  // namespace
}  // namespace tandem
