// What `tandem run` shows: one line that is rewritten on a terminal and fits it, and plain lines
// in a file or a pipe.
#include "cli/console/progress_view.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

json Progress(int64_t step) {
  return {{"event", "progress"},  {"epoch", 1},          {"epoch_fraction", 0.41},
          {"min_step", step},     {"samples", 1000},     {"samples_per_second", 35100.4},
          {"loss", 0.45123},      {"auc", 0.781},        {"staleness_mean", 1.2},
          {"staleness_max", 5.0}, {"seconds_left", 42.0}};
}

class ProgressViewTest : public ::testing::Test {
 protected:
  ProgressViewTest() : file_(std::tmpfile()) {}
  ~ProgressViewTest() override { std::fclose(file_); }
  std::string Written() {
    std::string text(static_cast<size_t>(std::ftell(file_)), '\0');
    std::rewind(file_);
    text.resize(std::fread(text.data(), 1, text.size(), file_));
    return text;
  }
  std::FILE* const file_;
  const absl::Time start_ = absl::UnixEpoch();
};

TEST_F(ProgressViewTest, AllThatIsPromisedIsInTheLine) {
  EXPECT_EQ(cli::ProgressView::Format(Progress(1200), 200),
            "epoch 1 41%, step 1,200 | 35,100 samples/s | training loss 0.4512, AUC 0.7810 | "
            "staleness 1.20 versions, max 5 | 0:42 left");
}

// A simulation asks its servers for reports only at the end.
TEST_F(ProgressViewTest, StalenessThatIsNotMeasuredYetIsNotZero) {
  json progress = Progress(1200);
  progress.erase("staleness_mean");
  progress.erase("staleness_max");
  EXPECT_EQ(cli::ProgressView::Format(progress, 200),
            "epoch 1 41%, step 1,200 | 35,100 samples/s | training loss 0.4512, AUC 0.7810 | "
            "0:42 left");
}

TEST_F(ProgressViewTest, AWorkerThatHasNotBegunDoesNotHideTheOthers) {
  json progress = Progress(0);
  progress["max_step"] = 1990;
  EXPECT_THAT(cli::ProgressView::Format(progress, 200), HasSubstr(", step 0 to 1,990 | "));
}

TEST_F(ProgressViewTest, ShorterWordsWhereItIsNarrow) {
  const std::string line = cli::ProgressView::Format(Progress(1200), 79);
  EXPECT_EQ(line, "epoch 1 41%, step 1,200, 35,100/s, loss 0.4512, AUC 0.7810, stale 1.20/5, 0:42");
  EXPECT_LE(line.size(), 79u);
}

TEST_F(ProgressViewTest, AnEvaluationIsNoSlowTraining) {
  json progress = Progress(1200);
  progress.erase("samples_per_second");
  EXPECT_THAT(cli::ProgressView::Format(progress, 200), HasSubstr("step 1,200 | paused | "));
  progress["evaluating"] = true;
  EXPECT_THAT(cli::ProgressView::Format(progress, 200), HasSubstr("step 1,200 | evaluating | "));
  EXPECT_THAT(cli::ProgressView::Format(progress, 79), HasSubstr("step 1,200, evaluating, "));
}

TEST_F(ProgressViewTest, TimesReadAsTimes) {
  json progress = Progress(1);
  for (const auto& [seconds, text] : {std::pair<double, const char*>{5.9, "| 0:05 left"},
                                      {61, "| 1:01 left"},
                                      {3600 * 2 + 62, "| 2:01:02 left"},
                                      {86400 * 12, "| 12 days left"}}) {
    progress["seconds_left"] = seconds;
    EXPECT_THAT(cli::ProgressView::Format(progress, 200), HasSubstr(text));
  }
}

TEST_F(ProgressViewTest, WhatIsUnknownIsLeftOut) {
  json progress = Progress(1);
  for (const char* key : {"loss", "auc", "seconds_left"}) progress.erase(key);
  const std::string line = cli::ProgressView::Format(progress, 200);
  for (const char* word : {"loss", "AUC", "left"}) EXPECT_THAT(line, Not(HasSubstr(word)));
}

TEST_F(ProgressViewTest, ElsewhereALineEveryFiveSeconds) {
  cli::ProgressView view(file_, /*live=*/false);
  for (int second = 0; second < 12; ++second) {
    view.Show(Progress(second), start_ + absl::Seconds(second));
  }
  const std::string text = Written();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);  // at 0, 5 and 10
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(text, HasSubstr("step 10 "));
}

TEST_F(ProgressViewTest, StepsThatARestartTakesAgainAreNotShown) {
  cli::ProgressView view(file_, /*live=*/false);
  view.Show(Progress(977), start_);
  view.Show(Progress(978), start_ + absl::Milliseconds(6));
  view.Show({{"event", "resumed"}, {"step", 900}, {"attempt", 1}}, start_ + absl::Seconds(1));
  view.Show({{"event", "evaluation"}, {"epoch", 1}, {"step", 900}}, start_ + absl::Seconds(2));
  EXPECT_THAT(Written(), Not(HasSubstr("step 978 | ")));
}

// A plain line may be five seconds old and lack the last steps, so another one precedes the result.
TEST_F(ProgressViewTest, TheLastProgressComesBeforeTheEvaluation) {
  cli::ProgressView view(file_, /*live=*/false);
  view.Show(Progress(977), start_);
  view.Show(Progress(978), start_ + absl::Milliseconds(6));
  const json evaluation = {{"event", "evaluation"}, {"epoch", 1}, {"step", 978}, {"auc", 0.5}};
  view.Show(evaluation, start_ + absl::Seconds(1));
  view.Show(evaluation, start_ + absl::Seconds(2));
  const std::string text = Written();
  EXPECT_THAT(text, HasSubstr("epoch 1 41%, step 977 | "));
  EXPECT_THAT(text, HasSubstr("epoch 1 41%, step 978 | "));
  EXPECT_THAT(text, ::testing::EndsWith(" left\nevaluation at epoch 1, step 978: AUC 0.5000\n"
                                        "evaluation at epoch 1, step 978: AUC 0.5000\n"));
}

TEST_F(ProgressViewTest, OnATerminalOneLineIsRewritten) {
  cli::ProgressView view(file_, /*live=*/true);
  for (int second = 0; second < 3; ++second) {
    view.Show(Progress(second), start_ + absl::Seconds(second));
  }
  view.Show({{"event", "stall"}, {"node", "worker 1"}, {"text", "no sign of life"}}, start_);
  const std::string text = Written();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);  // of the stall
  EXPECT_THAT(text, ::testing::EndsWith("\r\x1b[Kstall: worker 1: no sign of life\n"));
}

TEST_F(ProgressViewTest, NothingIsShownBeforeTheFirstSample) {
  json progress = Progress(0);
  progress["samples"] = 0;
  cli::ProgressView view(file_, /*live=*/false);
  view.Show(progress, start_);
  EXPECT_EQ(Written(), "");
}

TEST_F(ProgressViewTest, EvaluationsInWords) {
  EXPECT_EQ(cli::ProgressView::FormatEvaluation(
                {{"accuracy", 0.79046}, {"auc", 0.781}, {"logloss", 0.4512}, {"samples", 1000}}),
            "AUC 0.7810, logloss 0.4512, accuracy 0.7905, 1,000 samples");
  EXPECT_EQ(cli::ProgressView::FormatEvaluation({{"hr_at_10", 0.65}, {"ndcg_at_10", 0.38}}),
            "HR@10 0.6500, NDCG@10 0.3800");
  EXPECT_EQ(cli::ProgressView::FormatEvaluation({{"samples", 250}, {"scores_not_finite", true}}),
            "scores are not finite, 250 samples");
}

TEST_F(ProgressViewTest, AnEvaluationSaysWhenAndOnWhat) {
  cli::ProgressView view(file_, /*live=*/false);
  view.Show({{"event", "evaluation"}, {"epoch", 2}, {"step", 1200}, {"data", "test"}, {"auc", 0.5}},
            start_);
  view.Show({{"event", "evaluation"}, {"data", "validation"}, {"auc", 0.5}}, start_);
  view.Show({{"event", "evaluation"}, {"auc", 0.5}}, start_);
  EXPECT_EQ(Written(),
            "evaluation at epoch 2, step 1,200, test data: AUC 0.5000\n"
            "evaluation on validation data: AUC 0.5000\n"
            "evaluation: AUC 0.5000\n");
}

TEST_F(ProgressViewTest, NumbersWithCommas) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(1000), "1,000");
  EXPECT_EQ(WithCommas(-1234567), "-1,234,567");
}

}  // namespace
}  // namespace tandem
