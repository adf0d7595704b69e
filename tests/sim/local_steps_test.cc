// Workers that step by themselves, under faults and with whatever policies of tables beside them:
// dense parameters are those of a plain loop to the bit, however late frames come; epochs end with
// uneven shares; checkpoints between sync rounds change nothing. What rows see is judged by World.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "optim/fold.h"
#include "tests/sim/sim_job.h"
#include "tests/test_seed.h"
#include "worker/dense/dense_parameters.h"
#include "worker/dense/local_sgd.h"

namespace tandem {
namespace {

// What a job does with its dense parameters, as a loop over workers.
class PlainLoop {
 public:
  PlainLoop(const job::ResolvedJob& plan, const ToyModel& model)
      : plan_(plan), model_(model), local_(plan.job.dense().local_steps()) {
    for (int r = 0; r < plan.workers(); ++r) {
      replicas_.push_back(
          *worker::DenseParameters::New(plan.job.dense().optimizer(), model.options().dense));
      for (float& value : replicas_.back()->values()) value = ToyModel::kFirstCount;
    }
    common_ = Values(0);
    velocity_.resize(common_.size());
    samples_.resize(replicas_.size());
    policies_tell_ = std::any_of(plan.groups.begin(), plan.groups.end(),
                                 [](const auto& group) { return group.properties.lockstep; });
  }

  // The model at the end.
  std::vector<float> Run() {
    int64_t step = 0, empty = 0, limit = plan_.job.train().max_steps();
    for (int64_t epoch = 0; epoch < plan_.job.train().epochs(); ++epoch) {
      const int64_t first = step;
      if (limit > 0 && first >= limit + empty) break;
      bool over = false;
      int64_t data_steps = 0;
      for (int64_t index = 0; !over; ++index, ++step) {
        int64_t sum = 0;
        const bool beyond = limit > 0 && step >= limit + empty;
        std::vector<int64_t> samples;
        for (int r = 0; r < plan_.workers(); ++r) {
          samples.push_back(beyond ? 0 : model_.Samples(r, epoch, index));
          sum += samples.back();
        }
        if (sum > 0) data_steps = index + 1;
        const bool last = policies_tell_ && sum == 0 && index > data_steps;
        over = step < local_.warmup_steps() ? Together(step, samples) : Alone(step, samples, last);
        if (policies_tell_) over = last;
      }
      empty += step - first - data_steps;
      std::fill(samples_.begin(), samples_.end(), 0);
      steps_ = 0;
    }
    return plan_.job.dense().synchroniser() == Dense::EASGD ? common_ : Values(0);
  }
  int64_t sync_rounds() const { return sync_rounds_; }

 private:
  std::vector<float> Values(int rank) const {
    const auto& dense = *replicas_[static_cast<size_t>(rank)];
    return {dense.values().begin(), dense.values().end()};
  }
  std::vector<float> Gradient(int rank, int64_t step, int64_t samples) const {
    auto& dense = *replicas_[static_cast<size_t>(rank)];
    std::vector<float> gradient(dense.padded().size());
    model_.Gradient(rank, step, ToyModel::kDenseKey, static_cast<float>(samples), dense.values(),
                    absl::MakeSpan(gradient).first(dense.values().size()));
    return gradient;
  }
  bool Together(int64_t step, const std::vector<int64_t>& samples) {
    std::vector<float> sum;
    int64_t n = 0;
    for (size_t r = 0; r < samples.size(); ++r) {
      n += samples[r];
      if (samples[r] == 0) continue;
      const std::vector<float> own = Gradient(static_cast<int>(r), step, samples[r]);
      if (sum.empty()) sum.resize(own.size());
      optim::FoldAdd(sum.data(), own.data(), own.size());
    }
    if (n == 0) return true;
    for (auto& dense : replicas_) dense->Apply(sum, optim::FoldFactor(static_cast<double>(n)));
    common_ = Values(0);
    return false;
  }
  // True if that was a sync round without samples.
  bool Alone(int64_t step, const std::vector<int64_t>& samples, bool last) {
    for (size_t r = 0; r < samples.size(); ++r) {
      if (samples[r] == 0) continue;
      const std::vector<float> own = Gradient(static_cast<int>(r), step, samples[r]);
      replicas_[r]->Apply(own, optim::FoldFactor(static_cast<double>(samples[r])));
      samples_[r] += samples[r];
    }
    if (++steps_ < local_.sync_every() && !last) return false;
    steps_ = 0;
    ++sync_rounds_;
    const std::vector<int64_t> brought = samples_;
    std::fill(samples_.begin(), samples_.end(), 0);
    if (*std::max_element(brought.begin(), brought.end()) == 0) return true;
    plan_.job.dense().synchroniser() == Dense::EASGD ? Draw(brought) : Average(brought);
    return false;
  }
  void Draw(const std::vector<int64_t>& brought) {
    const auto a = static_cast<float>(local_.elasticity());
    for (size_t i = 0; i < common_.size(); ++i) {
      float sum = 0;
      for (size_t r = 0; r < brought.size(); ++r) {
        if (brought[r] == 0) continue;
        float& x = replicas_[r]->values()[i];
        sum += x - common_[i];
        x -= a * (x - common_[i]);
      }
      common_[i] += a * sum;
    }
  }
  void Average(const std::vector<int64_t>& brought) {
    const double full = static_cast<double>(plan_.job.train().batch_size()) *
                        static_cast<double>(local_.sync_every());
    const auto rate = static_cast<float>(local_.outer_learning_rate());
    const auto momentum = static_cast<float>(local_.outer_momentum());
    const bool delayed = local_.outer_optimizer() == LocalSteps::DELAYED_NESTEROV;
    const int64_t rounds = delayed ? local_.momentum_rounds() : 1;
    const int64_t round = outer_steps_++ % rounds;
    std::vector<float> moved(common_.size());
    for (size_t i = 0; i < common_.size(); ++i) {
      float sum = 0, weights = 0;
      for (size_t r = 0; r < brought.size(); ++r) {
        if (brought[r] == 0) continue;
        const float weight =
            brought.size() == 1 ? 1 : static_cast<float>(static_cast<double>(brought[r]) / full);
        sum += weight * replicas_[r]->values()[i];
        weights += weight;
      }
      float model = sum / weights;
      if (local_.outer_optimizer() == LocalSteps::HELOCO) {
        moved[i] = common_[i] - model;
        continue;
      }
      if (rate != 1 || momentum != 0) {
        const float delta = (common_[i] - model) / static_cast<float>(rounds);
        velocity_[i] = (round == 0 ? momentum : 1) * velocity_[i] + delta;
        model = common_[i] - rate * (delta + (round == rounds - 1 ? momentum : 0) * velocity_[i]);
      }
      common_[i] = model;
    }
    // Unit tests check HeLoCo's formula. The toy model has no shapes, so it is one tensor.
    if (local_.outer_optimizer() == LocalSteps::HELOCO) {
      const collectives::Piece all = {0, static_cast<int64_t>(common_.size())};
      worker::LocalSgd::OuterOf(plan_).Step(moved, 1, {&all, 1}, absl::MakeSpan(velocity_),
                                            absl::MakeSpan(common_));
    }
    for (auto& dense : replicas_)
      std::copy(common_.begin(), common_.end(), dense->values().begin());
  }

  const job::ResolvedJob& plan_;
  const ToyModel& model_;
  const LocalSteps local_;
  std::vector<std::unique_ptr<worker::DenseParameters>> replicas_;
  std::vector<float> common_, velocity_;  // or the centre
  std::vector<int64_t> samples_;          // of each since the last sync round
  int64_t steps_ = 0, sync_rounds_ = 0, outer_steps_ = 0;
  bool policies_tell_ = false;
};

const char* const kOuterOptimizers[] = {"", " outer_optimizer: DELAYED_NESTEROV",
                                        " outer_optimizer: HELOCO"};

SimJob RandomJob(Random* random) {
  const auto up_to = [&](uint64_t most) { return static_cast<int>(random->Uniform(most + 1)); };
  const char* const policies[] = {"kind: BSP",
                                  "kind: FIXED_DELAY delay: 2",
                                  "kind: ASP",
                                  "kind: SSP bound: 3",
                                  "kind: DSSP bound: 3 upper_bound: 5",
                                  "kind: K_BATCH_ASYNC batches: 3",
                                  "kind: GBA token_gap: 1",
                                  "kind: STALENESS_AWARE",
                                  "kind: RINGLEADER",
                                  "kind: RENNALA batches: 2",
                                  "kind: SYNC_SWITCH switch_step: 4"};
  SimJob job;
  job.workers = 1 + up_to(3);
  job.servers = 1 + up_to(1);
  job.ranges_per_shard = 1 + up_to(2);
  job.depth = up_to(3);
  job.epochs = 1 + up_to(2);
  job.max_steps = random->Bernoulli(0.3) ? 1 + up_to(11) : 0;
  job.max_inflight_pushes = 1 + up_to(3);
  job.evaluate_every = up_to(1);
  job.policy = policies[random->Uniform(std::size(policies))];
  if (random->Bernoulli(0.3)) job.second_policy = policies[random->Uniform(std::size(policies))];
  const bool elastic = random->Bernoulli(0.35);
  std::string local = absl::StrCat("sync_every: ", 1 + up_to(6));
  if (!elastic && random->Bernoulli(0.3)) absl::StrAppend(&local, " warmup_steps: ", 1 + up_to(8));
  if (!elastic && random->Bernoulli(0.4)) {
    absl::StrAppend(&local, " outer_learning_rate: 0.7 outer_momentum: 0.5",
                    kOuterOptimizers[random->Uniform(std::size(kOuterOptimizers))]);
  }
  job.dense = absl::StrCat("synchroniser: ", elastic ? "EASGD" : "LOCAL_SGD",
                           " algorithm: DIRECT local_steps { ", local, " }");
  if (random->Bernoulli(0.7)) {
    job.slow_workers = absl::StrCat(
        "slow_workers { distribution: ", random->Bernoulli(0.5) ? "EXPONENTIAL" : "LOGNORMAL",
        " mean_seconds: 0.01 }");
  }
  return job;
}

CheckedWorldOptions RandomWorld(const SimJob& job, uint64_t seed, Random* random) {
  CheckedWorldOptions options;
  options.seed = options.model.seed = seed;
  for (int rank = 0; rank < job.workers; ++rank) {  // uneven, some nothing at all
    options.model.batches.push_back(static_cast<int>(random->Uniform(10)));
  }
  if (random->Bernoulli(0.67)) {
    options.network.drop = 0.03 * random->NextDouble();
    options.network.duplicate = 0.1 * random->NextDouble();
    options.network.reorder = random->Bernoulli(0.5);
    options.barrier_drop = 0.1 * random->NextDouble();
    options.moves_per_second = 5;
  }
  for (int i = static_cast<int>(random->Uniform(4)); i > 0; --i) {
    options.checkpoints.push_back(absl::Milliseconds(static_cast<int64_t>(random->Uniform(400))));
  }
  options.checkpoint_at_end = random->Bernoulli(0.3);
  return options;
}

TEST(LocalStepsSimTest, IsThePlainLoopWhateverHappens) {
  int checkpoints = 0;
  int64_t sync_rounds = 0;
  const int count = static_cast<int>(SeedCount(150));
  for (uint64_t seed = TestSeed(); seed < TestSeed() + static_cast<uint64_t>(count); ++seed) {
    Random random(HashCombine(seed, 77));
    const SimJob job = RandomJob(&random);
    const CheckedWorldOptions options = RandomWorld(job, seed, &random);
    SCOPED_TRACE(absl::StrCat("seed ", seed, "\n", job.Text()));
    SimRun run(job, options);
    ASSERT_TRUE(run.ok());
    PlainLoop plain(run.plan, run.world->model());
    const std::vector<float> model = plain.Run();
    for (int rank = 0; rank < job.workers; ++rank) {
      ASSERT_EQ(run.world->DenseValues(rank), model) << "worker " << rank;
    }
    checkpoints += run.world->checkpoints();
    sync_rounds += plain.sync_rounds();
  }
  EXPECT_GT(checkpoints, count / 8);
  EXPECT_GT(sync_rounds, 2 * count);
}

// max_steps is in steps that somebody has rows for, whatever the periods between them.
TEST(LocalStepsSimTest, StepsInNameDoNotCount) {
  for (const char* policy : {"kind: ASP", "kind: BSP"}) {
    SimJob job;
    job.workers = 2;
    job.policy = policy;
    job.epochs = 5;
    job.max_steps = 13;
    job.second_table = false;
    job.dense = "synchroniser: LOCAL_SGD local_steps { sync_every: 4 }";
    CheckedWorldOptions options = EvenWorld(job, 5, TestSeed());
    options.model.batches[1] = 2;
    SimRun run(job, options);
    ASSERT_TRUE(run.ok());
    // Two epochs of 5 steps, and 3 of the third: worker 1 has 2 in each.
    int64_t samples = 0;
    for (int64_t step = 0; step < 13; ++step) {
      samples += run.world->model().SumOfSamples(step / 5, step % 5);
    }
    EXPECT_EQ(run.world->report().samples, samples);
    EXPECT_GT(run.world->steps(0), 16) << "steps in name have numbers";
  }
}

}  // namespace
}  // namespace tandem
