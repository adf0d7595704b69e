#include "worker/early_stopping.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using worker::EarlyStopping;
using worker::Verdict;

KeepBest Keep(KeepBest::Metric metric, int patience) {
  KeepBest keep;
  keep.set_metric(metric);
  keep.set_patience(patience);
  return keep;
}

std::string Result(double auc, double logloss) {
  return absl::StrFormat(R"({"samples":3,"auc":%g,"logloss":%g,"accuracy":0.5})", auc, logloss);
}

// "b": best, "s": stop, "-": neither.
std::string Say(const absl::StatusOr<Verdict>& verdict) {
  if (!verdict.ok()) return std::string(verdict.status().message());
  const std::string text = absl::StrCat(verdict->best ? "b" : "", verdict->stop ? "s" : "");
  return text.empty() ? "-" : text;
}

TEST(EarlyStoppingTest, TheBestIsTheLargestAucAndTheSmallestLogloss) {
  EarlyStopping auc(Keep(KeepBest::AUC, 0), 1), logloss(Keep(KeepBest::LOGLOSS, 0), 1);
  EXPECT_FALSE(auc.has_best());
  const double aucs[] = {.7, .8, .8, .75, .81}, losses[] = {.5, .4, .45, .4, .39};
  std::string of_auc, of_logloss;
  for (int64_t epoch = 0; epoch < 5; ++epoch) {
    of_auc += Say(auc.Judge(epoch, 10 * epoch, Result(aucs[epoch], losses[epoch])));
    of_logloss += Say(logloss.Judge(epoch, 10 * epoch, Result(aucs[epoch], losses[epoch])));
  }
  EXPECT_EQ(of_auc, "bb--b") << "equal is no better";
  EXPECT_EQ(of_logloss, "bb--b");
  EXPECT_EQ(auc.best().epoch(), 4);
  EXPECT_EQ(auc.best().step(), 40);
  EXPECT_EQ(auc.best().value(), .81);
  EXPECT_FALSE(auc.best().stopped());
}

TEST(EarlyStoppingTest, ANumberOfTheScriptDecides) {
  KeepBest keep = Keep(KeepBest::REPORTED, 0);
  keep.set_name("ndcg");
  EarlyStopping larger(keep, 1);
  keep.set_smaller_is_better(true);
  EarlyStopping smaller(keep, 1);
  const char* const values[] = {".7", ".6", "null", ".8"};
  std::string of_larger, of_smaller;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    const std::string result =
        absl::StrFormat(R"({"auc":0.5,"reported":{"hr":1,"ndcg":0%s}})", values[epoch]);
    const std::string valid = values[epoch][0] == 'n' ? R"({"reported":{"ndcg":null}})" : result;
    of_larger += Say(larger.Judge(epoch, epoch, valid));
    of_smaller += Say(smaller.Judge(epoch, epoch, valid));
  }
  EXPECT_EQ(of_larger, "b--b");
  EXPECT_EQ(of_smaller, "bb--");
  for (const char* const without : {"", R"({"auc":0.5})", R"({"reported":{"hr":1}})"}) {
    EXPECT_THAT(Say(larger.Judge(5, 5, without)),
                HasSubstr("the script has not reported ndcg after epoch 5"));
  }
}

TEST(EarlyStoppingTest, NoRowsGiveNoVerdict) {
  EarlyStopping judge(Keep(KeepBest::AUC, 0), 1);
  EXPECT_THAT(Say(judge.Judge(3, 30, "")),
              HasSubstr("no worker had validation rows after epoch 3"));
}

TEST(EarlyStoppingTest, PatienceCountsEvaluationsSinceTheBest) {
  EarlyStopping judge(Keep(KeepBest::AUC, 2), 3);  // evaluated after epochs 2, 5, 8, ...
  std::string said;
  for (const auto& [epoch, auc] : {std::pair(2, .6), {5, .7}, {8, .6}, {11, .71}, {14, .5}}) {
    said += Say(judge.Judge(epoch, epoch, Result(auc, .5)));
  }
  EXPECT_EQ(said, "bb-b-");
  EXPECT_EQ(Say(judge.Judge(17, 17, Result(.7, .5))), "s");
  EXPECT_TRUE(judge.best().stopped());
  EXPECT_EQ(judge.best().epoch(), 11);
}

TEST(EarlyStoppingTest, ScoresThatAreNotFiniteAreTheWorst) {
  EarlyStopping judge(Keep(KeepBest::LOGLOSS, 2), 1);
  const std::string diverged = R"({"samples":3,"scores_not_finite":true})";
  EXPECT_EQ(Say(judge.Judge(0, 1, diverged)), "-");
  EXPECT_FALSE(judge.has_best());
  EXPECT_EQ(Say(judge.Judge(1, 2, diverged)), "s") << "as impatient as with a best one";
  EarlyStopping recovers(Keep(KeepBest::LOGLOSS, 2), 1);
  EXPECT_EQ(Say(recovers.Judge(0, 1, diverged)), "-");
  EXPECT_EQ(Say(recovers.Judge(1, 2, Result(.5, 9))), "b");
}

// A resumed run counts the bad epochs before the interruption toward `patience`.
TEST(EarlyStoppingTest, ARunThatGoesOnRemembersABadBeginning) {
  const std::string diverged = R"({"samples":3,"scores_not_finite":true})";
  EarlyStopping before(Keep(KeepBest::AUC, 3), 1);
  EXPECT_EQ(before.first_epoch(), -1);
  EXPECT_EQ(Say(before.Judge(0, 1, diverged)), "-");
  EXPECT_EQ(Say(before.Judge(1, 2, diverged)), "-");
  EarlyStopping after(Keep(KeepBest::AUC, 3), 1);
  after.ResumeAfter(before.first_epoch());
  EXPECT_EQ(Say(after.Judge(1, 2, diverged)), "-") << "judged once more";
  EXPECT_EQ(Say(after.Judge(2, 3, diverged)), "s");
}

TEST(EarlyStoppingTest, RowsOfOneClassGiveNoAuc) {
  EarlyStopping judge(Keep(KeepBest::AUC, 2), 1);
  EXPECT_THAT(Say(judge.Judge(0, 1, R"({"samples":3,"logloss":0.1,"accuracy":1})")),
              HasSubstr("give no auc"));
}

// Steps were limited in the middle of an epoch, and the run goes on in it.
TEST(EarlyStoppingTest, TheRestOfAnEpochMayBeWorse) {
  EarlyStopping judge(Keep(KeepBest::AUC, 0), 1);
  EXPECT_EQ(Say(judge.Judge(2, 30, Result(.8, .5))), "b");
  EXPECT_EQ(Say(judge.Judge(2, 40, Result(.76, .5))), "-");
  EXPECT_EQ(judge.best().step(), 30);
}

// A run that goes on judges the last epoch once more, and must do what it did then.
TEST(EarlyStoppingTest, ARunThatGoesOnJudgesAsItDid) {
  EarlyStopping whole(Keep(KeepBest::AUC, 2), 1);
  const double aucs[] = {.7, .8, .75, .74};
  std::string said;
  for (int64_t epoch = 0; epoch < 4; ++epoch) {
    EarlyStopping again(Keep(KeepBest::AUC, 2), 1);
    if (whole.has_best()) again.Resume(whole.best());
    const std::string first = Say(whole.Judge(epoch, epoch, Result(aucs[epoch], .5)));
    EXPECT_EQ(Say(again.Judge(epoch, epoch, Result(aucs[epoch], .5))), first) << "before it";
    again.Resume(whole.best());
    EXPECT_EQ(Say(again.Judge(epoch, epoch, Result(aucs[epoch], .5))), first) << "after it";
    EXPECT_EQ(again.best().value(), whole.best().value());
    EXPECT_EQ(again.best().stopped(), whole.best().stopped());
    said += first;
  }
  EXPECT_EQ(said, "bb-s");
}

TEST(EarlyStoppingTest, AVerdictIsTheValueOfABarrier) {
  for (const Verdict verdict : {Verdict{}, {true, false}, {false, true}, {true, true}}) {
    EXPECT_GE(verdict.Pack(), 0);
    EXPECT_EQ(Verdict::Unpack(verdict.Pack()).best, verdict.best);
    EXPECT_EQ(Verdict::Unpack(verdict.Pack()).stop, verdict.stop);
  }
}

}  // namespace
}  // namespace tandem
