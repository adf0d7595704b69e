// Which workers a sum waits for: by hand, and over seeded random orders of everything that may
// happen.
#include "worker/dense/quorum_leader.h"

#include <algorithm>
#include <deque>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"
#include "worker/dense/quorum_caller.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using worker::QuorumLeader;
using Begins = QuorumLeader::Begins;

std::vector<int> TakeReleased(QuorumLeader& leader) {
  std::vector<int> released = leader.released();
  leader.ForgetReleased();
  std::sort(released.begin(), released.end());
  return released;
}

// How many sums begin now; none of them may be the last one.
int Sums(QuorumLeader& leader) {
  int sums = 0;
  for (Begins begins = leader.Next(); begins != Begins::kNothing; begins = leader.Next()) {
    EXPECT_EQ(begins, Begins::kSum);
    ++sums;
  }
  return sums;
}

// All workers have been heard of, and are through step 0.
QuorumLeader Started(int workers, Dense::Quorum quorum, int64_t bound) {
  QuorumLeader leader({workers, quorum, bound});
  for (int w = 0; w < workers; ++w) {
    EXPECT_EQ(Sums(leader), 0) << "the first sum waits for all";
    leader.OnGradient(w, 0);
  }
  EXPECT_EQ(Sums(leader), 1);
  EXPECT_EQ(TakeReleased(leader).size(), static_cast<size_t>(workers));
  return leader;
}

TEST(QuorumLeaderTest, AllIsAnAllreduce) {
  QuorumLeader leader = Started(3, Dense::ALL, 4);
  for (int64_t step = 1; step < 5; ++step) {
    leader.OnGradient(2, step);
    leader.OnGradient(0, step);
    EXPECT_EQ(Sums(leader), 0);
    EXPECT_EQ(leader.WaitingFor(), 1);
    leader.OnGradient(1, step);
    EXPECT_EQ(Sums(leader), 1);
    EXPECT_THAT(TakeReleased(leader), ElementsAre(0, 1, 2));
  }
}

TEST(QuorumLeaderTest, SoloBeginsWithTheFirstAndTheOthersDoNotWait) {
  QuorumLeader leader = Started(3, Dense::SOLO, 4);
  leader.OnGradient(1, 1);
  EXPECT_EQ(Sums(leader), 1);
  EXPECT_THAT(TakeReleased(leader), ElementsAre(1));
  leader.OnGradient(0, 1);
  EXPECT_EQ(Sums(leader), 0) << "that of this step has begun";
  EXPECT_THAT(TakeReleased(leader), ElementsAre(0));
}

TEST(QuorumLeaderTest, AMajorityIsMoreThanHalf) {
  for (const int workers : {2, 3, 4, 5, 8}) {
    QuorumLeader leader = Started(workers, Dense::MAJORITY, 4);
    for (int w = 0; w <= workers / 2; ++w) {
      EXPECT_EQ(Sums(leader), 0) << w << " of " << workers;
      leader.OnGradient(w, 1);
    }
    EXPECT_EQ(Sums(leader), 1) << workers;
    EXPECT_EQ(TakeReleased(leader).size(), static_cast<size_t>(workers / 2 + 1));
  }
}

TEST(QuorumLeaderTest, NobodyIsFurtherBehindThanTheBound) {
  QuorumLeader leader = Started(3, Dense::SOLO, 2);
  for (int64_t step = 1; step <= 2; ++step) {
    leader.OnGradient(0, step);
    EXPECT_EQ(Sums(leader), 1);
  }
  TakeReleased(leader);
  leader.OnGradient(0, 3);
  leader.OnGradient(2, 1);
  EXPECT_EQ(Sums(leader), 0) << "worker 1 is not through step 1";
  EXPECT_EQ(leader.WaitingFor(), 1);
  EXPECT_THAT(TakeReleased(leader), ElementsAre(2));
  leader.OnGradient(1, 1);
  EXPECT_EQ(Sums(leader), 1);
  EXPECT_THAT(TakeReleased(leader), ElementsAre(0, 1));
}

TEST(QuorumLeaderTest, WhoHasNoDataHoldsNobodyBack) {
  QuorumLeader leader = Started(3, Dense::MAJORITY, 2);
  leader.OnOutOfData(0);
  leader.OnGradient(2, 1);
  EXPECT_EQ(Sums(leader), 1) << "0 counts as one that has come";
  leader.OnOutOfData(1);
  leader.OnGradient(2, 2);
  EXPECT_EQ(Sums(leader), 1) << "the only one left";
  EXPECT_EQ(TakeReleased(leader), std::vector<int>({2, 2}));
}

TEST(QuorumLeaderTest, AllSettleInOneLastSum) {
  QuorumLeader leader = Started(3, Dense::SOLO, 4);
  leader.OnGradient(0, 1);
  EXPECT_EQ(Sums(leader), 1);
  TakeReleased(leader);
  for (int w = 0; w < 3; ++w) leader.OnOutOfData(w);
  leader.OnSettle(2, /*new_epoch=*/true, 7);
  leader.OnSettle(0, true, 7);
  EXPECT_EQ(Sums(leader), 0);
  EXPECT_THAT(TakeReleased(leader), IsEmpty());
  leader.OnSettle(1, true, 7);
  EXPECT_EQ(leader.Next(), Begins::kLastSum);
  EXPECT_EQ(leader.Next(), Begins::kNothing);
  EXPECT_THAT(TakeReleased(leader), ElementsAre(0, 1, 2));
  // All have data again, from step 7 on.
  leader.OnGradient(1, 7);
  EXPECT_EQ(Sums(leader), 1);
  EXPECT_THAT(TakeReleased(leader), ElementsAre(1));
}

TEST(QuorumLeaderTest, ACountIsAQuorum) {
  QuorumLeader::Options options = {5, Dense::ALL, 4};
  options.count = 2;
  QuorumLeader leader(options);
  for (int w = 0; w < 5; ++w) leader.OnGradient(w, 0);
  EXPECT_EQ(Sums(leader), 1);
  TakeReleased(leader);
  leader.OnGradient(4, 1);
  EXPECT_EQ(Sums(leader), 0);
  leader.OnGradient(2, 1);
  EXPECT_EQ(Sums(leader), 1);
  EXPECT_THAT(TakeReleased(leader), ElementsAre(2, 4));
}

TEST(QuorumLeaderTest, AGraceWaitsForTheOthersAndNoLonger) {
  const absl::Time start = absl::FromUnixSeconds(100);
  QuorumLeader::Options options = {3, Dense::SOLO, 4};
  options.grace = absl::Seconds(2);
  QuorumLeader leader(options);
  for (int w = 0; w < 3; ++w) leader.OnGradient(w, 0);
  EXPECT_EQ(leader.Next(start), Begins::kSum) << "all have come";
  EXPECT_EQ(leader.wake(), absl::InfiniteFuture());
  TakeReleased(leader);

  leader.OnGradient(1, 1);
  EXPECT_EQ(leader.Next(start), Begins::kNothing);
  EXPECT_EQ(leader.wake(), start + absl::Seconds(2));
  leader.OnGradient(2, 1);
  EXPECT_EQ(leader.Next(start + absl::Seconds(1)), Begins::kNothing);
  EXPECT_EQ(leader.wake(), start + absl::Seconds(2)) << "of the first that came";
  EXPECT_THAT(TakeReleased(leader), IsEmpty());
  leader.OnGradient(0, 1);
  EXPECT_EQ(leader.Next(start + absl::Seconds(1)), Begins::kSum) << "all have come";
  TakeReleased(leader);

  leader.OnGradient(1, 2);
  EXPECT_EQ(leader.Next(start + absl::Seconds(10)), Begins::kNothing);
  EXPECT_EQ(leader.Next(start + absl::Seconds(12)), Begins::kSum) << "the grace is over";
  EXPECT_EQ(leader.wake(), absl::InfiniteFuture());
  EXPECT_THAT(TakeReleased(leader), ElementsAre(1));
  leader.OnGradient(0, 2);
  EXPECT_EQ(leader.Next(start + absl::Seconds(12)), Begins::kNothing);
  EXPECT_EQ(leader.wake(), absl::InfiniteFuture()) << "that of this step has begun";
  EXPECT_THAT(TakeReleased(leader), ElementsAre(0));

  // Worker 2 has not been through step 2 yet: nobody waits for it in the sum of step 3.
  leader.OnGradient(1, 3);
  EXPECT_EQ(leader.Next(start + absl::Seconds(20)), Begins::kNothing) << "0 may come";
  leader.OnGradient(0, 3);
  EXPECT_EQ(leader.Next(start + absl::Seconds(20)), Begins::kSum);
}

// Worker 0 has skipped steps, as under BACKUP_WORKERS, so that a sum begins that is none of its
// own.
TEST(QuorumCallerTest, WhoGoesOnWaitingAfterASumIsToldAgainForWhom) {
  using Says = worker::QuorumNews::Says;
  worker::QuorumCaller caller({3, Dense::MAJORITY, 4});
  std::vector<worker::QuorumCaller::Addressed> calls;
  for (int w = 0; w < 3; ++w) caller.Hear(w, {Says::kGradient, 0}, &calls);
  calls.clear();
  caller.Hear(0, {Says::kGradient, 9}, &calls);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].worker, 0);
  EXPECT_EQ(calls[0].call.waits_for, 1);
  calls.clear();
  caller.Hear(2, {Says::kGradient, 1}, &calls);
  ASSERT_EQ(calls.size(), 4u) << "a sum of all three, and this";
  EXPECT_EQ(calls[0].call.begins, Begins::kSum);
  EXPECT_FALSE(calls[0].call.go_on);
  EXPECT_EQ(calls[3].worker, 0);
  EXPECT_EQ(calls[3].call.waits_for, 1);
}

// ---- random orders ------------------------------------------------------------------------------

// Workers as quorum_sums.h has them, under tables that let nobody start a step more than `slack`
// ahead of the slowest, and messages between them and the leader that take their time, each way in
// their order.
class World {
 public:
  World(uint64_t seed, const QuorumLeader::Options& options, int64_t slack)
      : random_(seed), options_(options), slack_(slack), leader_(options) {
    workers_.resize(static_cast<size_t>(options.workers));
    for (Worker& worker : workers_) {
      worker.left = static_cast<int64_t>(random_.Uniform(30));
      worker.speed = random_.Bernoulli(0.3) ? 40 : 1 + random_.Uniform(4);
    }
  }

  // Two epochs, with checkpoints in between; false if nothing can happen any more and it is not
  // over.
  bool Run() {
    for (int64_t events = 0; events < 200000; ++events) {
      if (epochs_ == 2) return true;
      if (checkpoint_step_ < 0 && random_.Bernoulli(0.01)) PlanCheckpoint();
      SettleIfAllStand();
      if (!DoSomething()) return false;
    }
    return false;
  }

  void Check() const {
    for (const Worker& worker : workers_) {
      EXPECT_EQ(worker.summed, worker.computed) << "each gradient is in one sum";
      EXPECT_EQ(worker.sums, workers_[0].sums);
      EXPECT_TRUE(worker.waiting.empty());
    }
    EXPECT_LE(max_missed_, options_.bound);
    if (options_.quorum == Dense::ALL && options_.count == 0) {
      EXPECT_EQ(max_missed_, 0);
    }
  }
  int64_t max_missed() const { return max_missed_; }
  int checkpoints() const { return checkpoints_; }
  int graces() const { return graces_; }  // that were over before all had come

 private:
  struct Message {
    enum { kGradient, kOut, kSettle, kSettleForNewEpoch } says = kGradient;
    int64_t step = 0;
  };
  struct Answer {
    Begins begins = Begins::kNothing;
    bool go_on = false;
  };
  struct Worker {
    int64_t left = 0, step = 0, read = 0, sums = 0, computed = 0, summed = 0;
    uint64_t speed = 1;
    enum { kComputing, kWaiting, kOut, kSettling } state = kComputing;
    bool out = false;              // of data, until the next epoch
    std::vector<int64_t> waiting;  // sums that the parameters had
    std::deque<Message> to_leader;
    std::deque<Answer> from_leader;
  };

  // Someone does the next thing that it can; those that are fast more often. The end of a grace may
  // be noticed late, and is waited for where nobody can do anything.
  bool DoSomething() {
    now_ += absl::Milliseconds(random_.Uniform(3));
    std::vector<std::pair<int, int>> can;  // worker, what
    for (int w = 0; w < options_.workers; ++w) {
      const Worker& worker = workers_[static_cast<size_t>(w)];
      for (uint64_t i = 0; i < worker.speed && MayCompute(worker); ++i) can.emplace_back(w, 0);
      if (!worker.to_leader.empty()) can.emplace_back(w, 1);
      if (!worker.from_leader.empty()) can.emplace_back(w, 2);
    }
    if (can.empty()) now_ = std::max(now_, leader_.wake());
    if (now_ == absl::InfiniteFuture()) return false;
    if (leader_.wake() <= now_ && (can.empty() || random_.Bernoulli(0.5))) {
      EndGrace();
      return true;
    }
    const auto [w, what] = can[random_.Uniform(can.size())];
    Worker& worker = workers_[static_cast<size_t>(w)];
    if (what == 0) Compute(worker);
    if (what == 1) Hear(w, worker);
    if (what == 2) Answered(worker);
    return true;
  }

  bool MayCompute(const Worker& worker) const {
    if (worker.state != Worker::kComputing || worker.step == checkpoint_step_) return false;
    int64_t slowest = worker.step;
    for (const Worker& other : workers_) {
      const bool counts = other.state == Worker::kComputing || other.state == Worker::kWaiting;
      if (counts) slowest = std::min(slowest, other.step);
    }
    return worker.step - slowest <= slack_;
  }

  void Compute(Worker& worker) {
    if (worker.left == 0) {
      worker.state = Worker::kOut;
      worker.out = true;
      worker.to_leader.push_back({Message::kOut, 0});
      return;
    }
    --worker.left;
    ++worker.computed;
    worker.waiting.push_back(worker.read);
    worker.to_leader.push_back({Message::kGradient, worker.step});
    ++worker.step;
    worker.state = Worker::kWaiting;
  }

  // All take the steps that somebody has begun, and then checkpoint. Not while an epoch ends.
  void PlanCheckpoint() {
    for (const Worker& worker : workers_) {
      if (worker.state == Worker::kSettling) return;
    }
    for (const Worker& worker : workers_)
      checkpoint_step_ = std::max(checkpoint_step_, worker.step);
  }

  // As the barriers before a checkpoint, and at the end of an epoch.
  void SettleIfAllStand() {
    int64_t step = 0;
    for (const Worker& worker : workers_) {
      const bool checkpoints =
          worker.state == Worker::kComputing && worker.step == checkpoint_step_;
      if (worker.state != Worker::kOut && !checkpoints) return;
      step = std::max(step, worker.step + 1);
    }
    for (Worker& worker : workers_) {
      worker.state = Worker::kSettling;
      if (checkpoint_step_ >= 0) {
        worker.to_leader.push_back({Message::kSettle, 0});
      } else {
        worker.step = step;
        worker.to_leader.push_back({Message::kSettleForNewEpoch, step});
      }
    }
  }

  void Hear(int w, Worker& worker) {
    const Message message = worker.to_leader.front();
    worker.to_leader.pop_front();
    if (message.says == Message::kGradient) leader_.OnGradient(w, message.step);
    if (message.says == Message::kOut) leader_.OnOutOfData(w);
    if (message.says == Message::kSettle) leader_.OnSettle(w, false, message.step);
    if (message.says == Message::kSettleForNewEpoch) leader_.OnSettle(w, true, message.step);
    CallAll();
  }

  void EndGrace() {
    ++graces_;
    EXPECT_EQ(CallAll(), 1) << "the grace is over";
    EXPECT_GT(leader_.wake(), now_);
  }

  // How many sums begin.
  int CallAll() {
    int sums = 0;
    for (bool more = true; more;) {
      const Begins begins = leader_.Next(now_);
      more = begins != Begins::kNothing;
      sums += more ? 1 : 0;
      for (int other = 0; other < options_.workers; ++other) {
        const auto& released = leader_.released();
        const auto go_on = std::count(released.begin(), released.end(), other);
        EXPECT_LE(go_on, 1);
        if (more || go_on > 0) {
          workers_[static_cast<size_t>(other)].from_leader.push_back({begins, go_on > 0});
        }
      }
      leader_.ForgetReleased();
    }
    return sums;
  }

  void Answered(Worker& worker) {
    const Answer answer = worker.from_leader.front();
    worker.from_leader.pop_front();
    if (answer.begins != Begins::kNothing) {
      for (const int64_t read : worker.waiting) {
        max_missed_ = std::max(max_missed_, worker.sums - read);
        ++worker.summed;
      }
      worker.waiting.clear();
      ++worker.sums;
    }
    if (!answer.go_on) return;
    EXPECT_NE(worker.state, Worker::kComputing) << "told to go on twice";
    const bool settled = worker.state == Worker::kSettling;
    worker.state = Worker::kComputing;
    worker.read = worker.sums;
    if (settled) Settled(worker);
  }

  // The last one to settle ends the checkpoint, or the epoch.
  void Settled(Worker& worker) {
    EXPECT_TRUE(worker.waiting.empty());
    EXPECT_EQ(worker.summed, worker.computed)
        << "what a checkpoint or an evaluation has is all there is";
    if (settled_ == 0) sums_settled_ = worker.sums;
    EXPECT_EQ(worker.sums, sums_settled_) << "all have one model";
    const bool last = ++settled_ == options_.workers;
    if (last) settled_ = 0;
    if (checkpoint_step_ >= 0) {
      if (worker.out) worker.state = Worker::kOut;
      if (!last) return;
      checkpoint_step_ = -1;
      ++checkpoints_;
      return;
    }
    worker.out = false;
    worker.left = epochs_ == 0 ? static_cast<int64_t>(random_.Uniform(30)) : 0;
    if (last) ++epochs_;
  }

  Random random_;
  const QuorumLeader::Options options_;
  const int64_t slack_;
  QuorumLeader leader_;
  std::vector<Worker> workers_;
  absl::Time now_ = absl::UnixEpoch();
  // no step from here on begins before a checkpoint; -1: none is wanted
  int64_t checkpoint_step_ = -1;
  int64_t max_missed_ = 0, sums_settled_ = 0;
  int settled_ = 0, epochs_ = 0, checkpoints_ = 0, graces_ = 0;
};

TEST(QuorumLeaderTest, WhateverTheOrderEveryGradientIsSummedWithinTheBoundAndNobodyIsStuck) {
  int64_t most = 0;
  int checkpoints = 0, graces = 0;
  for (uint64_t seed = 0; seed < 2000; ++seed) {
    Random random(TestSeed() * 100003 + seed);
    QuorumLeader::Options options;
    options.workers = 2 + static_cast<int>(random.Uniform(6));
    options.quorum = static_cast<Dense::Quorum>(Dense::ALL + random.Uniform(3));
    options.bound = 1 + static_cast<int64_t>(random.Uniform(5));
    if (random.Bernoulli(0.5)) {
      options.count = 1 + static_cast<int>(random.Uniform(static_cast<uint64_t>(options.workers)));
    }
    if (random.Bernoulli(0.5)) options.grace = absl::Milliseconds(1 + random.Uniform(60));
    const auto slack = static_cast<int64_t>(random.Uniform(20));
    World world(random.Next64(), options, slack);
    SCOPED_TRACE(absl::StrCat("seed ", TestSeed(), ", world ", seed, ": ", options.workers,
                              " workers, ", Dense::Quorum_Name(options.quorum), ", count ",
                              options.count, ", grace ", absl::FormatDuration(options.grace),
                              ", bound ", options.bound, ", slack ", slack));
    ASSERT_TRUE(world.Run()) << "nobody can do anything";
    world.Check();
    if (::testing::Test::HasFailure()) return;
    if (options.bound == 2) most = std::max(most, world.max_missed());
    checkpoints += world.checkpoints();
    graces += world.graces();
  }
  EXPECT_EQ(most, 2) << "the bound is reached somewhere, so it is one";
  EXPECT_GT(checkpoints, 2000);
  EXPECT_GT(graces, 200);
}

}  // namespace
}  // namespace tandem
