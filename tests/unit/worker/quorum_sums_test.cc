// Sums of gradients that do not wait for all, between workers in threads: nobody waits for one that
// is late as long as it is within the bound, what is late is summed later, all have the same model,
// and where all are waited for it is the plain allreduce. By what happened after what, never by the
// clock.
#include "worker/dense/quorum_sums.h"

#include <algorithm>
#include <barrier>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "base/clock.h"
#include "base/random.h"
#include "collectives/dump.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tests/unit/collectives/memory_links.h"
#include "worker/dense/allreduce_gradients.h"
#include "worker/dense/dense_reducer.h"
#include "worker/dense/group_runner.h"
#include "worker/dense/local_sgd.h"
#include "worker/dense/quorum_rounds.h"

namespace tandem {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kCount = 3000;  // three blocks, the last one padded

Optimizer Sgd(double rate) {
  Optimizer config;
  config.set_kind(Optimizer::SGD);
  config.set_learning_rate(rate);
  return config;
}

Optimizer Adam() {
  Optimizer config;
  config.set_kind(Optimizer::ADAM);
  config.set_learning_rate(0.01);
  config.set_beta1(0.9);
  config.set_beta2(0.999);
  config.set_epsilon(1e-8);
  return config;
}

// One worker in a thread.
struct Member {
  int rank = 0;
  std::unique_ptr<worker::DenseParameters> dense;
  collectives::Group* group = nullptr;  // the runner's
  std::unique_ptr<worker::GroupRunner> runner;
  std::unique_ptr<worker::DenseSteps> steps;
  std::vector<float> gradient;
  std::vector<int64_t> missed;
  int64_t step = 0;

  // A step whose gradient is `value` for each sample.
  absl::Status Step(int64_t samples, float value) {
    steps->BeforeStep();
    std::fill(gradient.begin(), gradient.end(), 0.0f);
    std::fill_n(gradient.begin(), kCount, value * static_cast<float>(samples));
    return Finish(samples);
  }
  absl::Status Finish(int64_t samples) {
    worker::DenseSteps::StepResult result;
    const absl::Status status = steps->Finish(absl::MakeSpan(gradient), {step++, samples}, &result);
    missed.insert(missed.end(), result.missed.begin(), result.missed.end());
    return status;
  }
  absl::Status EndEpoch(int64_t at) {
    absl::Status status = steps->OutOfData();
    if (!status.ok()) return status;
    std::vector<int64_t> more;
    status = steps->Settle(/*new_epoch=*/true, at, &more);
    missed.insert(missed.end(), more.begin(), more.end());
    return status;
  }
};

std::function<Optimizer(int)> AllAlike(const Optimizer& optimizer) {
  return [optimizer](int) { return optimizer; };
}

struct Outcome {
  std::vector<float> values, rows;
  std::vector<int64_t> missed;
};

using MakeReduction = std::function<std::unique_ptr<worker::DenseReduction>(Member&)>;

// `quorum` UNSPECIFIED: the plain allreduce, or `reduction`.
std::vector<Outcome> Train(int workers, Dense::Quorum quorum, int64_t bound,
                           const std::function<Optimizer(int rank)>& optimizer,
                           const std::function<void(Member&)>& body,
                           const std::string& dump_folder = "",
                           const absl::optional<worker::QuorumRounds::Options>& sync_rounds = {},
                           const MakeReduction& reduction = nullptr) {
  std::vector<Outcome> out(static_cast<size_t>(workers));
  std::barrier over(workers);
  RunRankThreads(workers, [&](int rank, RankLinks links) {
    worker::AbortableWatch watch;
    Member member;
    member.rank = rank;
    member.dense = std::move(*worker::DenseParameters::New(optimizer(rank), kCount));
    member.gradient.resize(member.dense->padded().size() + 1);
    auto group =
        std::make_unique<collectives::Group>(rank, std::move(links), collectives::GroupOptions());
    collectives::Group& shared = *group;
    member.group = &shared;
    worker::AllReduceGradients::Options plain;
    plain.rank = rank;
    plain.ranks = workers;
    plain.algorithm = collectives::Algorithm::kDirect;
    worker::GroupRunner::Options of_runner;
    of_runner.dump_folder = dump_folder;
    member.runner = std::make_unique<worker::GroupRunner>(std::move(group), watch, of_runner);
    if (sync_rounds.has_value()) {
      auto mail = worker::OpenQuorumMail(shared, "127.0.0.1", absl::Minutes(1), watch, {});
      ASSERT_TRUE(mail.ok()) << mail.status();
      worker::QuorumRounds::Options options = *sync_rounds;
      options.sums.leader.workers = workers;
      options.sums.leader.bound = bound;
      options.sums.algorithm = collectives::Algorithm::kDirect;
      member.steps = std::make_unique<worker::QuorumRounds>(*member.dense, *std::move(mail),
                                                            *member.runner, options);
    } else if (quorum != Dense::QUORUM_UNSPECIFIED) {
      auto mail = worker::OpenQuorumMail(shared, "127.0.0.1", absl::Minutes(1), watch, {});
      ASSERT_TRUE(mail.ok()) << mail.status();
      worker::QuorumSums::Options options;
      options.leader = {workers, quorum, bound};
      options.algorithm = collectives::Algorithm::kDirect;
      member.steps = std::make_unique<worker::QuorumSums>(
          *member.dense, std::move(*worker::DenseParameters::New(optimizer(rank), kCount)),
          *std::move(mail), *member.runner, options);
    } else {
      member.steps = std::make_unique<worker::DenseReducer>(
          reduction != nullptr ? reduction(member)
                               : std::make_unique<worker::AllReduceGradients>(*member.dense, plain),
          /*overlap=*/false, *member.runner);
    }
    body(member);
    over.arrive_and_wait();  // as at the end of a job
    Outcome& mine = out[static_cast<size_t>(rank)];
    mine.values.assign(member.dense->values().begin(), member.dense->values().end());
    mine.rows = member.dense->RowsWithSlots();
    mine.missed = member.missed;
  });
  return out;
}

TEST(QuorumSumsTest, WhereAllAreWaitedForItIsThePlainAllreduceToTheBit) {
  struct Case {
    int workers;
    Dense::Quorum quorum;
  };
  for (const auto& [workers, quorum] : {Case{2, Dense::MAJORITY}, {3, Dense::ALL}}) {
    const auto train = [](Member& member) {
      Random random(static_cast<uint64_t>(member.rank) + 1);
      for (int step = 0; step < 12; ++step) {
        member.steps->BeforeStep();
        std::fill(member.gradient.begin(), member.gradient.end(), 0.0f);
        for (int64_t i = 0; i < kCount; ++i) {
          member.gradient[static_cast<size_t>(i)] = static_cast<float>(random.Normal());
        }
        ASSERT_TRUE(member.Finish(1 + static_cast<int64_t>(random.Uniform(5))).ok());
      }
    };
    const auto settled = [&](Member& member) {
      train(member);
      ASSERT_TRUE(member.EndEpoch(12).ok());
    };
    const auto plain = Train(workers, Dense::QUORUM_UNSPECIFIED, 1, AllAlike(Adam()), train);
    const auto sums = Train(workers, quorum, 4, AllAlike(Adam()), settled);
    for (const Outcome& outcome : sums) {
      EXPECT_EQ(outcome.values, plain[0].values) << workers << " workers";
      EXPECT_EQ(outcome.rows, plain[0].rows) << "with slots, " << workers << " workers";
      EXPECT_THAT(outcome.missed, Each(0));
    }
  }
}

// The mean of every sum with samples is 1, so the model has moved by the rate for each: that is how
// many there were, whoever was in them.
int64_t SumsIn(const Outcome& outcome, double rate) {
  EXPECT_THAT(outcome.values, Each(outcome.values[0]));
  return std::llround(-static_cast<double>(outcome.values[0]) / rate);
}

constexpr double kRate = 0.125;  // exact in floats, and so are its multiples

TEST(QuorumSumsTest, NobodyWaitsForALateWorkerWithinTheBoundAndItsGradientIsSummedLater) {
  for (const Dense::Quorum quorum : {Dense::SOLO, Dense::MAJORITY}) {
    constexpr int64_t kBound = 3;
    absl::Notification read, others_are_ahead[2];
    const auto outcomes = Train(3, quorum, kBound, AllAlike(Sgd(kRate)), [&](Member& member) {
      ASSERT_TRUE(member.Step(4, 1).ok());
      if (member.rank == 2) {
        member.steps->BeforeStep();  // the parameters of its step 1
        read.Notify();
        // It comes when both others are through steps 1 to 3, which they cannot be if they wait for
        // it.
        for (absl::Notification& ahead : others_are_ahead) ahead.WaitForNotification();
        std::fill(member.gradient.begin(), member.gradient.end(), 0.0f);
        std::fill_n(member.gradient.begin(), kCount, 7.0f);
        ASSERT_TRUE(member.Finish(7).ok());
        ASSERT_TRUE(member.EndEpoch(10).ok());
        return;
      }
      read.WaitForNotification();
      for (int64_t step = 0; step < kBound; ++step) ASSERT_TRUE(member.Step(4, 1).ok());
      others_are_ahead[member.rank].Notify();
      ASSERT_TRUE(member.EndEpoch(10).ok());
    });
    EXPECT_EQ(outcomes[0].values, outcomes[1].values);
    EXPECT_EQ(outcomes[0].values, outcomes[2].values);
    EXPECT_EQ(outcomes[0].missed.size(), 4u);
    EXPECT_EQ(outcomes[1].missed.size(), 4u);
    ASSERT_EQ(outcomes[2].missed.size(), 2u) << "the late one is summed, too";
    EXPECT_EQ(outcomes[2].missed[0], 0) << "the first sum waits for all";
    EXPECT_EQ(outcomes[2].missed[1], kBound);
    // Of steps 0 to 3, and one with what was late. Under SOLO the one of two that came later is
    // late, and may be in that as well.
    EXPECT_EQ(SumsIn(outcomes[0], kRate), 1 + kBound + 1);
  }
}

// Who leaves out steps and then stands still is not waited for at them, and nothing of it is
// summed.
TEST(QuorumSumsTest, NobodyWaitsForStepsThatAreLeftOut) {
  constexpr int64_t kBound = 2, kLeftOut = 4;
  absl::Notification others_are_ahead[2];
  const auto outcomes =
      Train(3, Dense::MAJORITY, kBound, AllAlike(Sgd(kRate)), [&](Member& member) {
        ASSERT_TRUE(member.Step(4, 1).ok());
        if (member.rank == 2) {
          worker::DenseSteps::StepResult result;
          ASSERT_TRUE(member.steps->Finish({}, {kLeftOut, 0}, &result).ok());
          member.missed = result.missed;
          for (absl::Notification& ahead : others_are_ahead) ahead.WaitForNotification();
        } else {
          for (int64_t step = 1; step <= kLeftOut; ++step) ASSERT_TRUE(member.Step(4, 1).ok());
          others_are_ahead[member.rank].Notify();
        }
        ASSERT_TRUE(member.EndEpoch(10).ok());
      });
  EXPECT_EQ(outcomes[0].values, outcomes[2].values);
  EXPECT_EQ(outcomes[0].missed.size(), static_cast<size_t>(kLeftOut) + 1);
  EXPECT_LE(outcomes[2].missed.size(), 1u);
}

TEST(QuorumSumsTest, UnequalShareOfDataAndCheckpointsInBetween) {
  for (const Dense::Quorum quorum : {Dense::SOLO, Dense::MAJORITY}) {
    constexpr int kWorkers = 4;
    const auto outcomes = Train(kWorkers, quorum, 2, AllAlike(Sgd(kRate)), [&](Member& member) {
      for (int64_t epoch = 0; epoch < 3; ++epoch) {
        for (int64_t step = 0; step < 5 * member.rank; ++step) {
          ASSERT_TRUE(member.Step(1 + member.rank, 1).ok());
        }
        ASSERT_TRUE(member.EndEpoch(20 * (epoch + 1)).ok());
        member.step = 20 * (epoch + 1);
        const std::vector<float> before = member.dense->RowsWithSlots();
        ASSERT_TRUE(member.steps->Settle(/*new_epoch=*/false, 0, &member.missed).ok());
        EXPECT_EQ(member.dense->RowsWithSlots(), before) << "nothing was left to be summed";
      }
    });
    for (int w = 0; w < kWorkers; ++w) {
      const Outcome& outcome = outcomes[static_cast<size_t>(w)];
      EXPECT_EQ(outcome.values, outcomes[0].values);
      EXPECT_EQ(outcome.missed.size(), static_cast<size_t>(3 * 5 * w)) << "each, once";
      for (const int64_t missed : outcome.missed) EXPECT_LE(missed, 2);
    }
    EXPECT_GE(SumsIn(outcomes[0], kRate), 3 * 5 * (kWorkers - 1));
  }
}

TEST(QuorumSumsTest, ModelsThatDifferAreFound) {
  std::vector<absl::Status> seen(3);
  const auto optimizer = [](int rank) { return Sgd(rank == 1 ? kRate / 2 : kRate); };
  Train(3, Dense::MAJORITY, 2, optimizer, [&](Member& member) {
    ASSERT_TRUE(member.Step(1, 1).ok());
    seen[static_cast<size_t>(member.rank)] = member.EndEpoch(1);
  });
  for (const absl::Status& status : seen) {
    EXPECT_THAT(status.ToString(), HasSubstr("worker 1 differ from those of the others"));
  }
}

// What is sent for sums outside of steps is told as well: at the end of an epoch, and for a
// checkpoint.
TEST(QuorumSumsTest, AllBytesAreCounted) {
  Train(3, Dense::SOLO, 2, AllAlike(Sgd(kRate)), [&](Member& member) {
    const uint64_t before = member.group->bytes_sent();  // its making
    uint64_t told = 0;
    for (int64_t step = 0; step < 4; ++step) {
      std::fill(member.gradient.begin(), member.gradient.end(), 0.0f);
      worker::DenseSteps::StepResult result;
      ASSERT_TRUE(member.steps->Finish(absl::MakeSpan(member.gradient), {step, 2}, &result).ok());
      told += member.runner->TakeBytes();
    }
    ASSERT_TRUE(member.EndEpoch(4).ok());
    const uint64_t at_end = member.runner->TakeBytes();
    EXPECT_GE(at_end, kCount * sizeof(float)) << "the last sum";
    ASSERT_TRUE(member.steps->Settle(/*new_epoch=*/false, 0, &member.missed).ok());
    const uint64_t for_checkpoint = member.runner->TakeBytes();
    EXPECT_GE(for_checkpoint, kCount * sizeof(float));
    EXPECT_EQ(member.runner->TakeBytes(), 0u);
    EXPECT_EQ(told + at_end + for_checkpoint, member.group->bytes_sent() - before);
  });
}

// What a worker waits for has a name, and ends with the job.
TEST(QuorumSumsTest, AWaitNamesAWorkerAndEndsWithTheJob) {
  absl::Notification made, ended;
  Member* waits = nullptr;
  absl::Status seen;
  Train(3, Dense::MAJORITY, 2, AllAlike(Sgd(kRate)), [&](Member& member) {
    if (member.rank == 0) {
      waits = &member;
      made.Notify();
      seen = member.Step(1, 1);
      return ended.Notify();
    }
    made.WaitForNotification();
    if (member.rank == 1) {
      while (waits->steps->WaitingFor().text.empty()) std::this_thread::yield();
      EXPECT_EQ(waits->steps->WaitingFor().text, "a gradient of worker 1");
      EXPECT_EQ(waits->steps->WaitingFor().waits_for, EndpointId::Worker(1));
      waits->runner->Abort("enough");
    }
    ended.WaitForNotification();
  });
  EXPECT_EQ(seen, absl::CancelledError("enough"));
}

// ---- sync rounds of replicas
// ------------------------------------------------------------------------

constexpr int64_t kEvery = 4;

std::vector<Outcome> Meet(int workers, const worker::QuorumRounds::Options& options, int64_t bound,
                          const Optimizer& optimizer, const std::function<void(Member&)>& body) {
  return Train(workers, Dense::QUORUM_UNSPECIFIED, bound, AllAlike(optimizer), body, "", options);
}

worker::QuorumRounds::Options SyncRounds(int quorum, absl::Duration grace = absl::ZeroDuration()) {
  worker::QuorumRounds::Options options;
  options.replica.every = kEvery;
  options.sums.leader.count = quorum;
  options.sums.leader.grace = grace;
  return options;
}

// Steps to its next sync round, each with the gradient `value` for every sample.
void ToSyncRound(Member& member, int64_t samples, float value) {
  for (int64_t step = 0; step < kEvery; ++step) ASSERT_TRUE(member.Step(samples, value).ok());
}

TEST(QuorumRoundsTest, TheCommonModelTakesTheOuterStepWithTheMeanOverSamples) {
  worker::QuorumRounds::Options options = SyncRounds(3);
  options.replica.outer = {0.5f, 0.75f};
  const auto outcomes = Meet(3, options, 2, Sgd(kRate), [](Member& member) {
    const int64_t samples = 1 + member.rank;
    for (int m = 0; m < 2; ++m) ToSyncRound(member, samples, static_cast<float>(samples));
    ASSERT_TRUE(member.EndEpoch(8).ok());
  });
  // Replicas move by 1, 2 and 3 times this, with as many samples.
  const double delta = kEvery * kRate * (1 + 2 * 2 + 3 * 3) / (1 + 2 + 3);
  const double first = 0.5 * (delta + 0.75 * delta);
  const double second = 0.5 * (delta + 0.75 * (0.75 * delta + delta));
  for (const Outcome& outcome : outcomes) {
    EXPECT_EQ(outcome.values, outcomes[0].values);
    EXPECT_THAT(outcome.missed, ElementsAre(0, 0));
    EXPECT_NEAR(outcome.values[0], -(first + second), 1e-5);
  }
}

// With everybody in every sync round it is LocalSgd, which sums models, but for rounding.
TEST(QuorumRoundsTest, WithAllOfThemItIsLocalSgd) {
  const auto train = [](Member& member) {
    Random random(static_cast<uint64_t>(member.rank) + 1);
    for (int step = 0; step < 3 * kEvery; ++step) {
      std::fill(member.gradient.begin(), member.gradient.end(), 0.0f);
      for (int64_t i = 0; i < kCount; ++i) {
        member.gradient[static_cast<size_t>(i)] = static_cast<float>(random.Normal());
      }
      ASSERT_TRUE(member.Finish(1 + static_cast<int64_t>(random.Uniform(5))).ok());
    }
  };
  worker::QuorumRounds::Options options = SyncRounds(2);
  options.replica.outer = {0.7f, 0.9f};
  const auto met = Meet(2, options, 2, Adam(), train);
  worker::LocalSteps::Options plain;
  plain.every = kEvery;
  plain.batch = 3;
  const auto summed =
      Train(2, Dense::QUORUM_UNSPECIFIED, 1, AllAlike(Adam()), train, "", {}, [&](Member& member) {
        worker::LocalSteps::Options mine = plain;
        mine.rank = member.rank;
        mine.ranks = 2;
        return std::make_unique<worker::LocalSgd>(*member.dense, mine, options.replica.outer);
      });
  for (size_t i = 0; i < static_cast<size_t>(kCount); ++i) {
    ASSERT_NEAR(met[0].values[i], summed[0].values[i], 1e-5) << i;
  }
}

TEST(QuorumRoundsTest, WhoComesLateTakesTheModelOfThenAndIsInTheNextSyncRound) {
  constexpr int64_t kBound = 3;
  absl::Notification moved, others_are_ahead[2];
  const auto outcomes = Meet(3, SyncRounds(2), kBound, Sgd(kRate), [&](Member& member) {
    ToSyncRound(member, 4, 1);  // the first sync round is of all
    if (member.rank == 2) {
      for (int64_t step = 1; step < kEvery; ++step) ASSERT_TRUE(member.Step(7, 1).ok());
      moved.Notify();
      // It comes when both others are through three sync rounds, which they cannot be if they wait
      // for it.
      for (absl::Notification& ahead : others_are_ahead) ahead.WaitForNotification();
      ASSERT_TRUE(member.Step(7, 1).ok());
      const float at = member.dense->values()[0];
      EXPECT_EQ(at, -static_cast<float>((1 + kBound) * kEvery * kRate)) << "without its own";
      ASSERT_TRUE(member.EndEpoch(20).ok());
      return;
    }
    moved.WaitForNotification();
    for (int64_t m = 0; m < kBound; ++m) ToSyncRound(member, 4, 1);
    others_are_ahead[member.rank].Notify();
    ASSERT_TRUE(member.EndEpoch(20).ok());
  });
  for (const Outcome& outcome : outcomes) EXPECT_EQ(outcome.values, outcomes[0].values);
  EXPECT_THAT(outcomes[2].missed, ElementsAre(0, kBound));
  // Each sync round moves the model as far as a replica has moved.
  EXPECT_EQ(SumsIn(outcomes[0], kRate * kEvery), 1 + kBound + 1);
}

// Its data end between two sync rounds: what it has moved since the last one does not wait for the
// end of the epoch, which others may be far from.
TEST(QuorumRoundsTest, WhoRunsOutOfDataLeavesTheRestToTheNextSyncRound) {
  absl::Notification out, over;
  const auto outcomes = Meet(2, SyncRounds(1), 2, Sgd(kRate), [&](Member& member) {
    ToSyncRound(member, 1, 1);
    if (member.rank == 1) {
      for (int64_t step = 0; step + 1 < kEvery; ++step) ASSERT_TRUE(member.Step(3, 1).ok());
      ASSERT_TRUE(member.steps->OutOfData().ok());
      out.Notify();
      over.WaitForNotification();
      ASSERT_TRUE(member.steps->Settle(/*new_epoch=*/true, 40, &member.missed).ok());
      return;
    }
    out.WaitForNotification();
    for (int m = 0; m < 8; ++m) ToSyncRound(member, 1, 1);
    over.Notify();
    ASSERT_TRUE(member.EndEpoch(40).ok());
  });
  EXPECT_EQ(outcomes[0].values, outcomes[1].values);
  EXPECT_THAT(outcomes[1].missed, ElementsAre(0, 0));
  // To the second sync round they bring four steps with 4 samples, and three with 9.
  const double second = (4.0 * 4 + 3 * 9) / (4 + 9);
  EXPECT_NEAR(outcomes[0].values[0], -kRate * (8 * kEvery + second), 1e-5);
}

TEST(QuorumRoundsTest, WithinTheGraceASyncRoundWaitsForTheOthers) {
  Member* waits = nullptr;
  absl::Notification made;
  const auto outcomes = Meet(2, SyncRounds(1, absl::Hours(1)), 3, Sgd(kRate), [&](Member& member) {
    ToSyncRound(member, 1, 1);
    if (member.rank == 0) {
      waits = &member;
      made.Notify();
    } else {
      made.WaitForNotification();
      while (waits->steps->WaitingFor().text.empty()) std::this_thread::yield();
    }
    ToSyncRound(member, 1, 1);
    ASSERT_TRUE(member.EndEpoch(8).ok());
  });
  EXPECT_THAT(outcomes[0].missed, ElementsAre(0, 0));
  EXPECT_THAT(outcomes[1].missed, ElementsAre(0, 0));
  // Of all, twice; the last one has nothing.
  EXPECT_EQ(SumsIn(outcomes[0], kRate * kEvery), 2);
}

TEST(QuorumRoundsTest, AfterTheGraceItBeginsWithoutThem) {
  absl::Notification ahead;
  const auto outcomes =
      Meet(2, SyncRounds(1, absl::Milliseconds(20)), 3, Sgd(kRate), [&](Member& member) {
        ToSyncRound(member, 1, 1);
        if (member.rank == 0) {
          ToSyncRound(member, 1, 1);
          ahead.Notify();
        } else {
          ahead.WaitForNotification();
        }
        ASSERT_TRUE(member.EndEpoch(8).ok());
      });
  EXPECT_THAT(outcomes[0].missed, ElementsAre(0, 0));
  EXPECT_EQ(outcomes[0].values, outcomes[1].values);
  EXPECT_EQ(SumsIn(outcomes[0], kRate * kEvery), 2);
}

// What a checkpoint has: slots of the worker's own, and the outer step's momentum.
TEST(QuorumRoundsTest, ACheckpointGoesOnWithTheSameBits) {
  worker::QuorumRounds::Options options = SyncRounds(2);
  options.replica.outer = {0.7f, 0.9f};
  const auto part = [](Member& member, int64_t from) {
    for (int64_t step = from; step < from + 6; ++step) {
      ASSERT_TRUE(member.Step(2, 0.1f * static_cast<float>(step + member.rank)).ok());
    }
    ASSERT_TRUE(member.steps->Settle(/*new_epoch=*/false, 0, &member.missed).ok());
  };
  std::vector<std::string> states(2);
  const auto whole = Meet(2, options, 2, Adam(), [&](Member& member) {
    part(member, 0);
    states[static_cast<size_t>(member.rank)] = member.steps->State();
    part(member, 6);
  });
  const auto on = Meet(2, options, 2, Adam(), [&](Member& member) {
    EXPECT_FALSE(member.steps->SetState("short").ok());
    const std::string& state = states[static_cast<size_t>(member.rank)];
    ASSERT_TRUE(member.steps->SetState(state).ok());
    part(member, 6);
  });
  for (size_t w = 0; w < 2; ++w) {
    EXPECT_EQ(on[w].values, whole[w].values);
    EXPECT_EQ(on[w].rows, whole[w].rows) << "with slots";
  }
}

// Nothing is under way then: what it has done so far is written all the same, while it waits.
TEST(QuorumSumsTest, AWaitWritesADumpOnRequest) {
  constexpr int kWaiting = 2;  // rank 0, and one that hears of sums from it
  const TemporaryFolder temporary;
  const std::string folder = temporary.File("dumps");
  absl::Notification made[kWaiting], ended[kWaiting];
  Member* waits[kWaiting] = {};
  const auto body = [&](Member& member) {
    if (member.rank < kWaiting) {
      waits[member.rank] = &member;
      made[member.rank].Notify();
      (void)member.Step(1, 1);
      return ended[member.rank].Notify();
    }
    const absl::Time by = MonotonicNow() + absl::Seconds(30);
    for (int rank = 0; rank < kWaiting; ++rank) {
      made[rank].WaitForNotification();
      while (waits[rank]->steps->WaitingFor().text.empty()) std::this_thread::yield();
      waits[rank]->runner->RequestDump();
      const auto written = [&] {
        const auto dumps = collectives::ReadDumps(folder);
        return dumps.ok() && std::any_of(dumps->begin(), dumps->end(),
                                         [&](const auto& dump) { return dump.rank == rank; });
      };
      while (!written() && MonotonicNow() < by) std::this_thread::yield();
      EXPECT_TRUE(written()) << "rank " << rank;
    }
    for (const Member* waiting : waits) waiting->runner->Abort("enough");
    for (absl::Notification& over : ended) over.WaitForNotification();
  };
  Train(3, Dense::MAJORITY, 2, AllAlike(Sgd(kRate)), body, folder);
}

}  // namespace
}  // namespace tandem
