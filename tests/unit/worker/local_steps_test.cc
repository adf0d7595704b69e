// Workers that step by themselves: which steps ask for a collective, and what comes out of a sync
// round, against plain loops and to the bit. Sums are made here, in rank order; over the simulated
// network it is tests/sim/local_steps_test.cc.
#include "worker/dense/local_steps.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/fold.h"
#include "worker/dense/elastic_averaging.h"
#include "worker/dense/local_sgd.h"
#include "worker/dense/sync_replica.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using worker::DenseReduction;

constexpr int64_t kCount = 1500;  // two blocks, the last one padded
constexpr int64_t kBatch = 8;

Optimizer Sgd(double rate = 0.5) {
  Optimizer config;
  config.set_kind(Optimizer::SGD);
  config.set_learning_rate(rate);
  return config;
}

Optimizer Momentum() {
  Optimizer config;
  config.set_kind(Optimizer::MOMENTUM);
  config.set_learning_rate(0.1);
  config.set_momentum(0.9);
  config.set_weight_decay(0.01);
  return config;
}

using Make = std::function<std::unique_ptr<DenseReduction>(worker::DenseParameters& dense, int rank,
                                                           int ranks)>;

worker::LocalSteps::Options OptionsOf(int rank, int ranks, int64_t every,
                                      int64_t warmup_steps = 0) {
  worker::LocalSteps::Options options;
  options.rank = rank;
  options.ranks = ranks;
  options.every = every;
  options.warmup_steps = warmup_steps;
  options.batch = kBatch;
  return options;
}

Make Averaging(int64_t every, worker::LocalSgd::Outer outer = {}, int64_t warmup_steps = 0) {
  return [=](worker::DenseParameters& dense, int rank, int ranks) {
    return std::make_unique<worker::LocalSgd>(dense, OptionsOf(rank, ranks, every, warmup_steps),
                                              outer);
  };
}

Make Elastic(int64_t every, float elasticity) {
  return [=](worker::DenseParameters& dense, int rank, int ranks) {
    return std::make_unique<worker::ElasticAveraging>(dense, OptionsOf(rank, ranks, every),
                                                      elasticity);
  };
}

// All ranks of a job in turn; what they ask for is run here.
class Workers {
 public:
  Workers(int ranks, const Optimizer& optimizer, const Make& make) {
    for (int r = 0; r < ranks; ++r) {
      dense.push_back(*worker::DenseParameters::New(optimizer, kCount));
      for (int64_t i = 0; i < kCount; ++i) dense.back()->values()[i] = 0.01f * (i % 17);
      gradients.emplace_back(dense.back()->padded().size() + 1);
      reductions.push_back(make(*dense.back(), r, ranks));
    }
  }
  int ranks() const { return static_cast<int>(reductions.size()); }

  // Step `number`: worker r has `samples[r]`, and a gradient that depends on all there is. -1: the
  // worker has skipped its batch.
  void Step(int64_t number, std::vector<int64_t> samples, bool last = false) {
    for (int r = 0; r < ranks(); ++r) {
      const bool skipped = samples[r] < 0;
      if (skipped) samples[r] = 0;
      if (samples[r] > 0) reductions[r]->BeforeStep();
      Gradient(number, r, samples[r], dense[r]->values(), &gradients[r]);
      reductions[r]->Begin(absl::MakeSpan(gradients[r]), {number, samples[r], last, skipped});
      reductions[r]->Ready(0);
      reductions[r]->Close();
    }
    asked.push_back(RunAll());
    for (const auto& reduction : reductions) {
      EXPECT_TRUE(reduction->over());
      EXPECT_EQ(reduction->samples_of_all(), reductions[0]->samples_of_all());
      EXPECT_EQ(reduction->empty_steps(), reductions[0]->empty_steps());
    }
  }
  double samples_of_all() const { return reductions[0]->samples_of_all(); }

  static void Gradient(int64_t number, int rank, int64_t samples, absl::Span<const float> values,
                       std::vector<float>* gradient) {
    std::fill(gradient->begin(), gradient->end(), 0.0f);
    if (samples == 0) return;
    Random random(static_cast<uint64_t>(number * 10 + rank));
    for (size_t i = 0; i < values.size(); ++i) {
      (*gradient)[i] =
          static_cast<float>(samples) *
          (values[i] - static_cast<float>(rank) + 0.1f * static_cast<float>(random.NextDouble()));
    }
  }

  // All-reduces in rank order; how many elements were asked for.
  int64_t RunAll() {
    int64_t elements = 0;
    for (;;) {
      std::vector<const DenseReduction::Request*> requests;
      for (const auto& reduction : reductions) requests.push_back(reduction->Next());
      const bool none = requests[0] == nullptr;
      for (const auto* const request : requests) EXPECT_EQ(request == nullptr, none);
      if (none) return elements;
      EXPECT_EQ(requests[0]->primitive, collectives::Primitive::kAllReduce);
      const auto count = static_cast<size_t>(requests[0]->count);
      std::vector<float> sum(count);
      for (size_t r = 0; r < requests.size(); ++r) {
        EXPECT_EQ(requests[r]->count, requests[0]->count);
        const auto* const from = static_cast<const float*>(requests[r]->input);
        for (size_t i = 0; i < count; ++i) sum[i] = r == 0 ? from[i] : sum[i] + from[i];
      }
      for (size_t r = 0; r < requests.size(); ++r) {
        std::copy(sum.begin(), sum.end(), static_cast<float*>(requests[r]->output));
        reductions[r]->OnDone();
      }
      elements += static_cast<int64_t>(count);
    }
  }
  std::vector<float> Values(int rank) const {
    const absl::Span<const float> values = dense[static_cast<size_t>(rank)]->values();
    return {values.begin(), values.end()};
  }
  // What rank 0 writes as the dense file of a checkpoint.
  std::vector<float> CheckpointValues() {
    for (const auto& reduction : reductions) reduction->BeginGather();
    asked_by_checkpoints += RunAll();
    const std::string file = dense[0]->EncodeFile();
    const auto image =
        server::DecodeRange({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
    EXPECT_TRUE(image.ok());
    return {image->weights.begin(), image->weights.begin() + kCount};
  }

  std::vector<std::unique_ptr<worker::DenseParameters>> dense;
  std::vector<std::vector<float>> gradients;
  std::vector<std::unique_ptr<DenseReduction>> reductions;
  std::vector<int64_t> asked;  // elements of each step
  int64_t asked_by_checkpoints = 0;
};

std::vector<int64_t> Full(int ranks) {
  return std::vector<int64_t>(static_cast<size_t>(ranks), kBatch);
}

// The same training of one worker between sync rounds, without any of it.
struct Plain {
  Plain(const Optimizer& optimizer) : dense(*worker::DenseParameters::New(optimizer, kCount)) {
    for (int64_t i = 0; i < kCount; ++i) dense->values()[i] = 0.01f * (i % 17);
  }
  void Step(int64_t number, int rank, int64_t samples) {
    if (samples == 0) return;
    std::vector<float> gradient(dense->padded().size() + 1);
    Workers::Gradient(number, rank, samples, dense->values(), &gradient);
    dense->Apply(gradient, optim::FoldFactor(static_cast<double>(samples)));
  }
  std::unique_ptr<worker::DenseParameters> dense;
};

std::vector<Plain> PlainWorkers(int ranks, const Optimizer& optimizer) {
  std::vector<Plain> workers;
  for (int r = 0; r < ranks; ++r) workers.emplace_back(optimizer);
  return workers;
}

// ---- when workers meet ------------------------------------------------------------------------

TEST(LocalStepsTest, StepsBetweenSyncRoundsAskForNothing) {
  Workers workers(2, Sgd(), Averaging(4));
  for (int64_t step = 0; step < 9; ++step) {
    workers.Step(step, Full(2));
    const bool meets = step % 4 == 3;
    EXPECT_EQ(workers.samples_of_all(), meets ? 2 * 4 * kBatch : DenseReduction::kUnknown);
  }
  const int64_t whole = kCount + 1 + 2;
  EXPECT_THAT(workers.asked, ElementsAre(0, 0, 0, whole, 0, 0, 0, whole, 0));
}

// 6 steps of data, and 2: the epoch is over after the sync round to which nobody brings samples.
// The next sync round is four steps after that one.
TEST(LocalStepsTest, AnEpochEndsAfterASyncRoundWithoutSamples) {
  Workers workers(2, Sgd(), Averaging(4));
  for (int64_t step = 0; step < 12; ++step) {
    workers.Step(step, {step < 6 ? kBatch : 0, step < 2 ? kBatch : 0});
    const double known = step == 3 ? 6 * kBatch : step == 7 ? 2 * kBatch : step == 11 ? 0 : -1;
    EXPECT_EQ(workers.samples_of_all(), known);
  }
  EXPECT_EQ(workers.samples_of_all(), 0);
  EXPECT_EQ(workers.reductions[0]->empty_steps(), 6);  // 6 to 11
  EXPECT_EQ(workers.Values(0), workers.Values(1));
  for (int64_t step = 12; step < 16; ++step) workers.Step(step, Full(2));
  EXPECT_GT(workers.asked[15], 0);
  // An epoch in which nobody has anything.
  for (int64_t step = 16; step < 20; ++step) workers.Step(step, {0, 0});
  EXPECT_EQ(workers.reductions[0]->empty_steps(), 4);
}

// A worker whose batches were all skipped brings nothing to the sync round. If that holds for all,
// they are as far apart as before, and the epoch goes on.
TEST(LocalStepsTest, SkippedStepsMoveNothingAndDoNotEndTheEpoch) {
  for (const Make& make : {Averaging(2), Elastic(2, 0.4f)}) {
    Workers workers(2, Sgd(), make);
    for (int64_t step = 0; step < 2; ++step) workers.Step(step, Full(2));
    const std::vector<float> before[] = {workers.Values(0), workers.Values(1)};
    for (int64_t step = 2; step < 4; ++step) workers.Step(step, {-1, -1});
    EXPECT_GT(workers.asked[3], 0);
    EXPECT_NE(workers.samples_of_all(), 0);
    for (int r = 0; r < 2; ++r) EXPECT_EQ(workers.Values(r), before[r]);
    for (int64_t step = 4; step < 6; ++step) workers.Step(step, {kBatch, -1});
    EXPECT_EQ(workers.samples_of_all(), 2 * kBatch);
    EXPECT_NE(workers.Values(0), before[0]);
  }
}

TEST(LocalStepsTest, TheLastStepOfAnEpochMeets) {
  Workers workers(2, Sgd(), Averaging(100));
  workers.Step(0, Full(2));
  workers.Step(1, {0, 0});
  EXPECT_NE(workers.Values(0), workers.Values(1));
  workers.Step(2, {0, 0}, /*last=*/true);
  EXPECT_GT(workers.asked[2], 0);
  EXPECT_EQ(workers.Values(0), workers.Values(1));
}

// ---- averages ---------------------------------------------------------------------------------

// In real arithmetic one is the other: x - rate * g_i / n_i, weighted by n_i / sum n.
TEST(LocalSgdTest, WithPlainSgdAndEveryStepIsAllReduce) {
  for (const std::vector<int64_t>& samples :
       {std::vector<int64_t>{8, 8, 8}, std::vector<int64_t>{8, 3, 1},
        std::vector<int64_t>{8, 0, 5}}) {
    Workers local(3, Sgd(), Averaging(1));
    Workers together(3, Sgd(), [](worker::DenseParameters& dense, int rank, int ranks) {
      worker::AllReduceGradients::Options options;
      options.rank = rank;
      options.ranks = ranks;
      return std::make_unique<worker::AllReduceGradients>(dense, options);
    });
    for (int64_t step = 0; step < 20; ++step) {
      local.Step(step, samples);
      together.Step(step, samples);
    }
    for (int64_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(local.Values(0)[i], together.Values(0)[i], 1e-5) << i;
    }
  }
}

TEST(LocalSgdTest, OneWorkerAloneIsPlainTraining) {
  Workers workers(1, Momentum(), Averaging(3));
  Plain plain(Momentum());
  for (int64_t step = 0; step < 10; ++step) {
    const int64_t samples = 1 + step % kBatch;  // no period is full
    workers.Step(step, {samples});
    plain.Step(step, 0, samples);
  }
  EXPECT_THAT(workers.Values(0), ::testing::ElementsAreArray(plain.dense->values()));
}

// Workers' own steps, then the mean by samples, then Nesterov's step of what it has moved.
void ExpectOuterLoop(int ranks, const worker::LocalSgd::Outer& outer, bool uneven) {
  constexpr int64_t kEvery = 3;
  Workers workers(ranks, Momentum(), Averaging(kEvery, outer));
  std::vector<Plain> plain = PlainWorkers(ranks, Momentum());
  std::vector<float> common(plain[0].dense->values().begin(), plain[0].dense->values().end());
  std::vector<float> velocity(common.size());
  for (int64_t begin = 0; begin < 5 * kEvery; begin += kEvery) {
    std::vector<float> weights(static_cast<size_t>(ranks));
    for (int64_t step = begin; step < begin + kEvery; ++step) {
      std::vector<int64_t> samples = Full(ranks);
      if (uneven) samples[0] = step == begin ? 0 : 3;
      workers.Step(step, samples);
      for (int r = 0; r < ranks; ++r) {
        plain[r].Step(step, r, samples[r]);
        weights[r] += static_cast<float>(samples[r]);
      }
    }
    float sum_of_weights = 0;
    for (float& weight : weights) {
      weight = ranks == 1 ? 1 : weight / static_cast<float>(kEvery * kBatch);
      sum_of_weights += weight;
    }
    for (size_t i = 0; i < common.size(); ++i) {
      float mean = weights[0] * plain[0].dense->values()[i];
      for (int r = 1; r < ranks; ++r) mean += weights[r] * plain[r].dense->values()[i];
      mean /= sum_of_weights;
      if (outer.learning_rate == 1 && outer.momentum == 0) {
        common[i] = mean;
      } else {
        const float delta = common[i] - mean;
        velocity[i] = outer.momentum * velocity[i] + delta;
        common[i] -= outer.learning_rate * (delta + outer.momentum * velocity[i]);
      }
      for (int r = 0; r < ranks; ++r) plain[r].dense->values()[i] = common[i];
    }
    for (int r = 0; r < ranks; ++r) ASSERT_EQ(workers.Values(r), common) << ranks << " " << begin;
  }
}

TEST(LocalSgdTest, IsThePlainLoopWithOrWithoutAnOuterStep) {
  for (const int ranks : {1, 2, 3}) {
    for (const bool uneven : {false, true}) {
      ExpectOuterLoop(ranks, {}, uneven);
      ExpectOuterLoop(ranks, {0.7f, 0.9f}, uneven);
      ExpectOuterLoop(ranks, {1, 0.5f}, uneven);
      ExpectOuterLoop(ranks, {0.5f, 0}, uneven);
    }
  }
}

// The same where sync rounds do not wait for all, whose file may be built with fused multiply-add.
TEST(SyncReplicaTest, TheOuterStepIsThePlainLoop) {
  const worker::LocalSgd::Outer outer = {0.7f, 0.9f};
  const auto dense = *worker::DenseParameters::New(Sgd(), kCount);
  Random random(1);
  for (float& value : dense->values()) value = static_cast<float>(random.NextDouble());
  worker::SyncReplica replica(*dense, {/*every=*/4, outer});
  const auto model = replica.NewModel();
  std::vector<float> common(dense->values().begin(), dense->values().end());
  std::vector<float> velocity(common.size()), moved(dense->padded().size());
  for (int sync_round = 0; sync_round < 5; ++sync_round) {
    for (int64_t i = 0; i < kCount; ++i) moved[i] = static_cast<float>(random.NextDouble()) - 0.5f;
    const float factor = optim::FoldFactor(3 + sync_round);
    model->Apply(moved, factor);
    for (size_t i = 0; i < common.size(); ++i) {
      const float delta = factor * moved[i];
      velocity[i] = outer.momentum * velocity[i] + delta;
      common[i] -= outer.learning_rate * (delta + outer.momentum * velocity[i]);
    }
    ASSERT_THAT(model->values(), ::testing::ElementsAreArray(common)) << sync_round;
  }
}

// Algorithm 3 of Liu et al. 2024 with c = 0, as they write it: `buffer` adds up the
// pseudo-gradients that the momentum has not seen yet.
struct DelayedNesterov {
  const double rate, beta;
  const int rounds;
  std::vector<double> theta;
  std::vector<double> momentum = std::vector<double>(kCount), buffer = momentum;
  int t = 0;

  void Step(const std::vector<double>& gradient) {
    const bool enters = ++t % rounds == 0;
    for (size_t i = 0; i < theta.size(); ++i) {
      buffer[i] += gradient[i];
      if (enters) momentum[i] = beta * momentum[i] + std::exchange(buffer[i], 0) / rounds;
      theta[i] -= rate * ((enters ? beta * momentum[i] : 0) + gradient[i] / rounds);
    }
  }
};

// Both forms of sync rounds take the steps of the paper, and with one round those of NESTEROV.
TEST(OuterStepTest, DelayedNesterovIsThatOfThePaper) {
  for (const int rounds : {1, 2, 5}) {
    worker::LocalSgd::Outer outer = {0.7f, 0.9f};
    outer.momentum_rounds = rounds;
    Workers workers(2, Sgd(0.05), Averaging(3, outer));
    std::vector<Plain> plain = PlainWorkers(2, Sgd(0.05));
    const std::vector<float> first = workers.Values(0);
    DelayedNesterov averaging = {0.7, 0.9, rounds, {first.begin(), first.end()}};
    DelayedNesterov by_quorum = averaging;
    const auto dense = *worker::DenseParameters::New(Sgd(), kCount);
    std::copy(first.begin(), first.end(), dense->values().begin());
    worker::SyncReplica replica(*dense, {/*every=*/3, outer});
    const auto model = replica.NewModel();
    for (int64_t round = 0; round < 13; ++round) {
      for (int64_t step = 3 * round; step < 3 * round + 3; ++step) {
        workers.Step(step, Full(2));
        for (int r = 0; r < 2; ++r) plain[r].Step(step, r, kBatch);
      }
      std::vector<double> moved(kCount);
      std::vector<float> padded(dense->padded().size());
      for (size_t i = 0; i < moved.size(); ++i) {
        moved[i] = averaging.theta[i] -
                   (plain[0].dense->values()[i] + double{plain[1].dense->values()[i]}) / 2;
        padded[i] = 4 * static_cast<float>(moved[i]);
      }
      averaging.Step(moved);
      model->Apply(padded, 0.25f);
      by_quorum.Step(moved);
      for (size_t i = 0; i < moved.size(); ++i) {
        ASSERT_NEAR(workers.Values(1)[i], averaging.theta[i], 2e-5) << rounds << " " << round;
        ASSERT_NEAR(model->values()[i], by_quorum.theta[i], 2e-5) << rounds << " " << round;
        for (Plain& one : plain) one.dense->values()[i] = workers.Values(1)[i];
      }
    }
  }
}

HeLoCo Constants() {
  HeLoCo constants;
  constants.set_keep_cosine(0.4);
  constants.set_shrink(1.5);
  constants.set_largest_shrink(0.6);
  constants.set_turn(0.8);
  constants.set_momentum_weight(0.7);
  return constants;
}

using Vector = std::vector<double>;

double Dot(const Vector& a, const Vector& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// a * x + b * y
Vector Blend(double a, const Vector& x, double b, const Vector& y) {
  Vector sum;
  for (size_t i = 0; i < x.size(); ++i) sum.push_back(a * x[i] + b * y[i]);
  return sum;
}

enum class Correction { kKept, kShrunk, kShrunkMost, kTurned };

// The correction as the paper writes it, with unit vectors.
Vector Corrected(const HeLoCo& constants, const Vector& d, const Vector& m, Correction* which) {
  *which = Correction::kKept;
  const double length = std::sqrt(Dot(d, d)), of_m = std::sqrt(Dot(m, m));
  if (length == 0 || of_m == 0) return d;
  const Vector none(d.size()), u = Blend(1 / length, d, 0, none), v = Blend(1 / of_m, m, 0, none);
  const double c = Dot(u, v);
  const double confidence = length / (length + constants.momentum_weight() * of_m);
  if (c >= constants.keep_cosine()) return d;
  if (c < 0) {
    const double asked = constants.shrink() * -c * confidence;
    *which = asked < constants.largest_shrink() ? Correction::kShrunk : Correction::kShrunkMost;
    return Blend(1, d, -std::min(asked, constants.largest_shrink()) * c * length, v);
  }
  *which = Correction::kTurned;
  const double turned = std::min(constants.turn() * (1 - c) * confidence, 1.0);
  const Vector between = Blend(1 - turned, u, turned, v);
  return Blend(length / std::sqrt(Dot(between, between)), between, 0, none);
}

// The velocity of a tensor that has not moved for long is almost zero.
TEST(OuterStepTest, HeLoCoTurnsTowardsTheSmallestVelocity) {
  worker::LocalSgd::Outer outer = {0.7f, 0.9f};
  outer.heloco = Constants();
  std::vector<float> common(100), velocity(100, std::numeric_limits<float>::denorm_min());
  std::vector<float> moved(100, 0.02f);
  for (size_t i = 0; i < 45; ++i) moved[i] = -0.02f;  // a cosine of .1
  const collectives::Piece all = {0, 100};
  outer.Step(moved, 1, {&all, 1}, absl::MakeSpan(velocity), absl::MakeSpan(common));
  for (const float value : common) EXPECT_LT(std::abs(value), 1);
  EXPECT_LT(common[0], 0);  // the velocity is positive everywhere
}

// Checks sync rounds with and without a quorum, and each tensor by itself.
TEST(OuterStepTest, HeLoCoIsThatOfThePaper) {
  const std::vector<server::CheckpointParameter> shapes = {
      {"small", {100}}, {"matrix", {20, 40}}, {"none", {0}}, {"rest", {600}}};
  worker::LocalSgd::Outer outer = {0.7f, 0.9f};
  outer.heloco = Constants();
  const auto dense = *worker::DenseParameters::New(Sgd(), kCount, shapes);
  worker::SyncReplica replica(*dense, {/*every=*/1, outer});
  const auto model = replica.NewModel();
  Workers workers(1, Sgd(1), [&](worker::DenseParameters& values, int rank, int ranks) {
    return std::make_unique<worker::LocalSgd>(values, OptionsOf(rank, ranks, 1), outer);
  });
  // Without shapes, all floats are one tensor.
  ASSERT_EQ(workers.dense[0]->parameters().size(), 1u);
  struct Paper {
    std::vector<collectives::Piece> parameters;
    Vector theta = Vector(kCount), momentum = theta;
    std::map<Correction, int> seen;

    void Step(const Vector& moved) {
      for (const collectives::Piece& at : parameters) {
        const auto part = [&](const Vector& of) {
          return Vector(of.begin() + at.begin, of.begin() + at.end());
        };
        Correction which;
        const Vector g = Corrected(Constants(), part(moved), part(momentum), &which);
        ++seen[which];
        for (size_t i = 0; i < g.size(); ++i) {
          double& m = momentum[static_cast<size_t>(at.begin) + i];
          m = 0.9 * m + 0.1 * g[i];
          theta[static_cast<size_t>(at.begin) + i] -= 0.7 * (g[i] + 0.9 * m);
        }
      }
    }
  };
  Paper by_quorum, averaging;
  by_quorum.parameters.assign(dense->parameters().begin(), dense->parameters().end());
  averaging.parameters = {{0, kCount}};
  for (int64_t i = 0; i < kCount; ++i) averaging.theta[i] = workers.Values(0)[i];
  Random random(3);
  std::vector<float> padded(dense->padded().size());
  for (int64_t round = 0; round < 40; ++round) {
    Vector moved(kCount);
    const double along = 2 * random.NextDouble() - 1;  // the velocity; negative: against it
    for (size_t i = 0; i < moved.size(); ++i) {
      moved[i] = 0.5 * random.Normal() + 4 * along * by_quorum.momentum[i];
      padded[i] = 4 * static_cast<float>(moved[i]);
      moved[i] = padded[i] / 4.0;
    }
    model->Apply(padded, 0.25f);
    by_quorum.Step(moved);
    for (size_t i = 0; i < moved.size(); ++i) {
      ASSERT_NEAR(model->values()[i], by_quorum.theta[i], 2e-5) << round << " " << i;
    }
    if (round >= 10) continue;  // further on, the replica's path is chaotic
    // The replica's own step is its movement.
    std::vector<float> gradient(padded.size() + 1);
    Workers::Gradient(round, 0, kBatch, workers.dense[0]->values(), &gradient);
    for (size_t i = 0; i < moved.size(); ++i) moved[i] = gradient[i] / double{kBatch};
    workers.Step(round, {kBatch});
    averaging.Step(moved);
    for (size_t i = 0; i < moved.size(); ++i) {
      ASSERT_NEAR(workers.Values(0)[i], averaging.theta[i], 1e-6) << round << " " << i;
    }
  }
  for (const Correction which :
       {Correction::kKept, Correction::kShrunk, Correction::kShrunkMost, Correction::kTurned}) {
    EXPECT_GE(by_quorum.seen[which], 5) << static_cast<int>(which);
  }
}

TEST(LocalSgdTest, WhoHadNoSamplesDoesNotHoldTheOthersBack) {
  Workers three(3, Sgd(), Averaging(2)), two(2, Sgd(), Averaging(2));
  for (int64_t step = 0; step < 4; ++step) {
    three.Step(step, {kBatch, kBatch, 0});
    two.Step(step, {kBatch, kBatch});
  }
  for (int r = 0; r < 3; ++r) EXPECT_EQ(three.Values(r), two.Values(0));
}

// Steps below warmup_steps are all-reduced to the bit, replicas stay equal, and the outer step
// begins at the model that they have come to.
TEST(LocalSgdTest, PostLocal) {
  constexpr int64_t kFrom = 5;
  const auto make_together = [](worker::DenseParameters& dense, int rank, int ranks) {
    worker::AllReduceGradients::Options options;
    options.rank = rank;
    options.ranks = ranks;
    return std::make_unique<worker::AllReduceGradients>(dense, options);
  };
  Workers post(2, Momentum(), Averaging(3, {0.5f, 0}, kFrom));
  Workers together(2, Momentum(), make_together);
  for (int64_t step = 0; step < kFrom; ++step) {
    post.Step(step, {kBatch, 3});
    together.Step(step, {kBatch, 3});
    EXPECT_EQ(post.samples_of_all(), kBatch + 3);
    ASSERT_EQ(post.Values(0), together.Values(0));
    ASSERT_EQ(post.Values(1), together.Values(0));
  }
  const std::vector<float> common = post.Values(0);
  std::vector<std::vector<float>> before;
  for (int64_t step = kFrom; step < kFrom + 3; ++step) {
    if (step == kFrom + 2) {  // what the replicas come to in the last step, without a sync round
      Workers never(2, Momentum(), Averaging(1000, {}, kFrom));
      for (int64_t s = 0; s <= step; ++s)
        never.Step(s, s < kFrom ? std::vector<int64_t>{kBatch, 3} : Full(2));
      before = {never.Values(0), never.Values(1)};
    }
    post.Step(step, Full(2));
    EXPECT_EQ(post.asked.back() > 0, step == kFrom + 2) << step;
  }
  for (int64_t i = 0; i < kCount; ++i) {
    const float delta = common[i] - (before[0][i] + before[1][i]) / 2;
    ASSERT_EQ(post.Values(0)[i], common[i] - 0.5f * delta);
  }
}

// ---- elastic averaging ------------------------------------------------------------------------

TEST(ElasticAveragingTest, IsThePlainLoop) {
  constexpr int64_t kEvery = 3;
  for (const int ranks : {1, 2, 3}) {
    const float a = 0.9f / static_cast<float>(ranks);
    Workers workers(ranks, Momentum(), Elastic(kEvery, a));
    std::vector<Plain> plain = PlainWorkers(ranks, Momentum());
    std::vector<float> centre(plain[0].dense->values().begin(), plain[0].dense->values().end());
    for (int64_t step = 0; step < 5 * kEvery; ++step) {
      std::vector<int64_t> samples = Full(ranks);
      const bool without = ranks == 3 && step >= 2 * kEvery;  // the last worker is out of data
      if (without) samples[2] = 0;
      workers.Step(step, samples);
      for (int r = 0; r < ranks; ++r) plain[r].Step(step, r, samples[r]);
      if (step % kEvery != kEvery - 1) continue;
      for (size_t i = 0; i < centre.size(); ++i) {
        float sum = 0;
        const float c = centre[i];
        for (int r = 0; r < ranks; ++r) {
          float& x = plain[r].dense->values()[i];
          if (without && r == 2) continue;
          sum = r == 0 ? x - c : sum + (x - c);
          x -= a * (x - c);
        }
        centre[i] += a * sum;
      }
      for (int r = 0; r < ranks; ++r) {
        ASSERT_THAT(workers.Values(r), ::testing::ElementsAreArray(plain[r].dense->values()));
      }
      ASSERT_EQ(workers.CheckpointValues(), centre);
    }
    EXPECT_EQ(workers.asked_by_checkpoints, 0) << "everybody has the centre";
    // At the end of an epoch the centre is what is looked at; the next step goes on with the
    // replica.
    const std::vector<float> replica = workers.Values(0);
    for (int64_t i = 0; i < kEvery; ++i) {
      workers.Step(5 * kEvery + i, std::vector<int64_t>(static_cast<size_t>(ranks)));
    }
    for (int r = 0; r < ranks; ++r) EXPECT_EQ(workers.Values(r), centre);
    EXPECT_EQ(workers.CheckpointValues(), centre);
    workers.reductions[0]->BeforeStep();
    EXPECT_EQ(workers.Values(0), replica);
  }
}

// ---- checkpoints
// ------------------------------------------------------------------------------------

TEST(LocalSgdTest, ACheckpointBetweenSyncRoundsHasTheAverageAndChangesNothing) {
  Workers saved(3, Momentum(), Averaging(4, {0.7f, 0.9f}));
  Workers undisturbed(3, Momentum(), Averaging(4, {0.7f, 0.9f}));
  EXPECT_EQ(saved.CheckpointValues(), saved.Values(0));
  for (int64_t step = 0; step < 11; ++step) {
    const std::vector<int64_t> samples = {kBatch, step < 5 ? kBatch : 0, 2};
    saved.Step(step, samples);
    undisturbed.Step(step, samples);
    const std::vector<float> model = saved.CheckpointValues();
    if (step == 1) {
      for (int64_t i = 0; i < kCount; ++i) {
        const float w = 2 * kBatch / 32.0f, last = 4 / 32.0f;
        const float sum =
            w * saved.Values(0)[i] + w * saved.Values(1)[i] + last * saved.Values(2)[i];
        ASSERT_EQ(model[i], sum / (w + w + last));
      }
    }
    if (step == 7) {
      EXPECT_EQ(model, saved.Values(0)) << "they have just met";
    }
    for (int r = 0; r < 3; ++r) ASSERT_EQ(saved.Values(r), undisturbed.Values(r)) << step;
  }
}

// From the states of any step, new workers go on to the same bits.
TEST(LocalStepsTest, StatesAreAllThereIs) {
  const std::vector<Make> makes = {Averaging(4), Averaging(4, {0.7f, 0.9f}),
                                   Averaging(4, {0.7f, 0.9f, 3}), Averaging(4, {0.7f, 0.9f}, 6),
                                   Elastic(4, 0.3f)};
  for (const Make& make : makes) {
    for (int64_t cut = 0; cut < 16; ++cut) {
      Workers whole(2, Momentum(), make), first(2, Momentum(), make), second(2, Momentum(), make);
      for (int64_t step = 0; step < 20; ++step) {
        // An epoch is over in between: the workers have 5 and 3 steps of data, then 4 again.
        const auto n = [&](int64_t steps) {
          return step < steps || (step >= 12 && step < 16) ? kBatch - steps : 0;
        };
        const std::vector<int64_t> samples = {n(5), n(3)};
        whole.Step(step, samples);
        if (step < cut) first.Step(step, samples);
        if (step == cut) {
          const std::vector<float> model = first.CheckpointValues();
          for (int r = 0; r < 2; ++r) {
            // As a run that goes on: the dense file comes first.
            std::copy(model.begin(), model.end(), second.dense[r]->values().begin());
            second.reductions[r] = make(*second.dense[r], r, 2);
            ASSERT_TRUE(second.reductions[r]->SetState(first.reductions[r]->State()).ok());
          }
        }
        if (step < cut) continue;
        second.Step(step, samples);
        ASSERT_EQ(second.samples_of_all(), whole.samples_of_all()) << cut << " " << step;
        ASSERT_EQ(second.reductions[0]->empty_steps(), whole.reductions[0]->empty_steps());
      }
      for (int r = 0; r < 2; ++r) {
        EXPECT_EQ(second.Values(r), whole.Values(r)) << cut;
        EXPECT_EQ(second.reductions[r]->State(), whole.reductions[r]->State()) << cut;
      }
    }
  }
}

TEST(LocalStepsTest, AStateOfAnotherJobIsRefused) {
  Workers sgd(2, Sgd(), Averaging(4)), momentum(2, Momentum(), Averaging(4));
  Workers outer(2, Sgd(), Averaging(4, {0.7f, 0.9f}));
  Workers delayed(2, Sgd(), Averaging(4, {0.7f, 0.9f, 2}));
  EXPECT_FALSE(delayed.reductions[0]->SetState(outer.reductions[0]->State()).ok());
  for (const std::string& state :
       {momentum.reductions[0]->State(), outer.reductions[0]->State(), std::string("x")}) {
    const absl::Status refused = sgd.reductions[0]->SetState(state);
    EXPECT_EQ(refused.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(refused.message(), ::testing::HasSubstr("saved replica has "));
  }
  EXPECT_TRUE(sgd.reductions[0]->SetState("").ok()) << "there was none";
}

}  // namespace
}  // namespace tandem
