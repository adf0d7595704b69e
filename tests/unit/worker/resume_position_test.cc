// Where workers go on: one answer for all, whatever each of them had noticed when the checkpoint
// was made.
#include "worker/resume_position.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

struct At {
  int64_t epoch;
  bool over;
  int64_t step, first_step, rows;
};

RunRecord Record(const std::vector<At>& workers) {
  RunRecord record;
  for (const At& at : workers) {
    TrainPosition* const position = record.add_worker()->mutable_position();
    position->set_epoch(at.epoch);
    position->set_epoch_over(at.over);
    position->set_step(at.step);
    position->set_first_step(at.first_step);
    position->set_rows(at.rows);
    position->set_common_step(at.step);
    if (at.rows > 0) {
      position->mutable_place()->set_rows(at.rows);
      position->mutable_place()->set_line(1);
    }
  }
  return record;
}

std::vector<TrainPosition> Positions(const std::vector<At>& workers) {
  const RunRecord record = Record(workers);
  std::vector<TrainPosition> positions;
  for (int rank = 0; rank < record.worker_size(); ++rank) {
    const auto position =
        worker::ResumePosition(record, rank, record.worker_size(), /*max_steps=*/0);
    EXPECT_TRUE(position.ok()) << position.status();
    positions.push_back(position.ok() ? *position : TrainPosition());
  }
  return positions;
}

TEST(ResumePositionTest, InTheMiddleOfAnEpochEachGoesOnWhereItWas) {
  const std::vector<TrainPosition> at = Positions({{2, false, 10, 7, 72}, {2, false, 12, 7, 96}});
  EXPECT_EQ(at[0].step(), 10);
  EXPECT_EQ(at[0].rows(), 72);
  EXPECT_EQ(at[1].step(), 12);
  EXPECT_EQ(at[1].rows(), 96);
  EXPECT_EQ(at[1].place().rows(), 96);
  EXPECT_EQ(at[0].first_step(), 7);
}

// One worker has heard that the last step had no samples, another has not.
TEST(ResumePositionTest, WhoKnowsOfTheEndHearsOfItAgain) {
  for (const At& ahead : {At{2, true, 20, 7, 200}, At{3, false, 20, 20, 0}}) {
    const std::vector<TrainPosition> at = Positions({{2, false, 20, 7, 190}, ahead});
    for (const TrainPosition& position : at) {
      EXPECT_EQ(position.epoch(), 2);
      EXPECT_FALSE(position.epoch_over());
      EXPECT_EQ(position.step(), 20);
      EXPECT_EQ(position.first_step(), 7);
    }
    EXPECT_EQ(at[0].rows(), 190);
    EXPECT_EQ(at[1].rows(), worker::kAllRows) << "nobody trains twice on a row";
    EXPECT_FALSE(at[1].has_place());
  }
}

TEST(ResumePositionTest, AnEvaluationThatNotAllAreThroughIsMadeAgain) {
  const std::vector<TrainPosition> at = Positions({{3, false, 20, 20, 0}, {2, true, 20, 7, 200}});
  for (const TrainPosition& position : at) {
    EXPECT_EQ(position.epoch(), 2);
    EXPECT_TRUE(position.epoch_over());
  }
}

TEST(ResumePositionTest, AllInTheNextEpochBeginIt) {
  for (const TrainPosition& p : Positions({{3, false, 20, 20, 0}, {3, false, 20, 20, 0}})) {
    EXPECT_EQ(p.epoch(), 3);
    EXPECT_FALSE(p.epoch_over());
    EXPECT_EQ(p.rows(), 0);
  }
}

// Without lockstep a worker may train in the next epoch while another has yet to notice that all
// have caught up.
TEST(ResumePositionTest, WhoIsLateFollowsIntoAnEpochThatHasBegun) {
  const std::vector<TrainPosition> at = Positions({{3, false, 22, 20, 48}, {2, true, 20, 7, 200}});
  EXPECT_EQ(at[0].rows(), 48);
  EXPECT_EQ(at[1].epoch(), 3);
  EXPECT_FALSE(at[1].epoch_over());
  EXPECT_EQ(at[1].rows(), 0);
  EXPECT_FALSE(at[1].has_place()) << "its place was in the epoch before";
  EXPECT_EQ(at[1].step(), 20);
  EXPECT_EQ(at[1].first_step(), 20);
}

// Worker 0 waits at the end of an epoch without lockstep. Worker 1 still trains, or has caught up
// with all: it goes back, and remembers where it ran out of data.
TEST(ResumePositionTest, WorkersRememberWhereTheyRanOutOfData) {
  for (const At& other : {At{2, false, 15, 7, 90}, At{2, true, 22, 7, 200}}) {
    RunRecord record = Record({{2, false, 20, 7, 190}, other});
    record.mutable_worker(0)->mutable_position()->set_ended_at(20);
    if (other.over) record.mutable_worker(1)->mutable_position()->set_ended_at(21);
    EXPECT_EQ(worker::ResumePosition(record, 0, 2, 0)->ended_at(), 20);
    EXPECT_EQ(worker::ResumePosition(record, 1, 2, 0)->ended_at(), other.over ? 21 : 0);
  }
}

TEST(ResumePositionTest, InANewEpochAWorkerHasData) {
  RunRecord record = Record({{3, false, 22, 20, 48}, {2, true, 20, 7, 200}});
  record.mutable_worker(1)->mutable_position()->set_ended_at(19);
  EXPECT_EQ(worker::ResumePosition(record, 1, 2, 0)->ended_at(), 0);
}

// The workers ended at the step limit. If all of them know it, the epoch is over. With a
// larger limit they continue in it, after the steps that closed it. If not all know it, they end
// the epoch once more.
TEST(ResumePositionTest, BehindTheStepLimitAWorkerMayHaveData) {
  constexpr int64_t kLimit = 15, kNone = 0;
  for (const bool all_know : {true, false}) {
    RunRecord record = Record({{2, true, 22, 7, 190}, {2, true, 22, 7, 190}});
    for (Progress& worker : *record.mutable_worker()) {
      worker.mutable_position()->set_ended_at(21);
      worker.mutable_position()->set_common_step(21);
      worker.mutable_position()->set_closing_steps(4);
      worker.mutable_position()->set_max_steps(kLimit);
    }
    if (!all_know) {
      TrainPosition* const waits = record.mutable_worker(1)->mutable_position();
      waits->set_epoch_over(false);
      waits->set_step(21);
      waits->clear_max_steps();
    }
    for (const int64_t max_steps : {kLimit, kLimit - 1, kLimit + 1, kNone}) {
      SCOPED_TRACE(max_steps);
      const bool trains_on = all_know && (max_steps > kLimit || max_steps == kNone);
      for (int rank = 0; rank < 2; ++rank) {
        const TrainPosition at = *worker::ResumePosition(record, rank, 2, max_steps);
        EXPECT_EQ(at.epoch_over(), all_know && !trains_on);
        EXPECT_EQ(at.closing_steps(), trains_on ? 6 : 4);
        EXPECT_EQ(at.first_step(), trains_on ? 22 : 7);
        EXPECT_EQ(at.ended_at(), trains_on ? 0 : 21);
        EXPECT_EQ(at.rows(), 190);
        EXPECT_EQ(at.place().rows(), 190);
      }
    }
  }
}

TEST(ResumePositionTest, WhatCannotBeIsRefused) {
  const auto refused = [](const RunRecord& record, int workers) {
    return std::string(worker::ResumePosition(record, 0, workers, 0).status().message());
  };
  EXPECT_THAT(refused(Record({{0, false, 1, 0, 1}}), 2), HasSubstr("run record has 1 workers"));
  EXPECT_THAT(refused(Record({{0, false, 1, 0, 1}, {2, false, 1, 0, 1}}), 2),
              HasSubstr("epochs 0 and 2"));
  EXPECT_THAT(refused(Record({{0, false, 1, 0, 1}, {1, false, 1, 0, 1}}), 2),
              HasSubstr("was still in epoch 0"));
  RunRecord without = Record({{0, false, 1, 0, 1}});
  without.mutable_worker(0)->clear_position();
  EXPECT_THAT(refused(without, 1), HasSubstr("does not say"));
}

}  // namespace
}  // namespace tandem
