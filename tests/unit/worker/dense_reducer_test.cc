// The dense gradient between workers, without the rest of a worker: whatever travels, every worker
// ends with the same parameters, and they are those of one process that saw all samples.
#include "worker/dense/dense_reducer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/random.h"
#include "collectives/dump.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "optim/fold.h"
#include "tests/integration/run_job.h"
#include "tests/unit/collectives/memory_links.h"
#include "worker/dense/allreduce_gradients.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- Buckets ------------------------------------------------------------------

TEST(GradientBucketsTest, CoverTheGradientFromItsEndTheFirstOneSmall) {
  EXPECT_THAT(worker::GradientBuckets(100, 0), ElementsAre(collectives::Piece{0, 100}));
  EXPECT_THAT(worker::GradientBuckets(100, 160),
              ElementsAre(collectives::Piece{90, 10}, collectives::Piece{50, 40},
                          collectives::Piece{10, 40}, collectives::Piece{0, 10}));
  EXPECT_THAT(
      worker::GradientBuckets(3, 1),
      ElementsAre(collectives::Piece{2, 1}, collectives::Piece{1, 1}, collectives::Piece{0, 1}));
  EXPECT_THAT(worker::GradientBuckets(0, 160), ElementsAre(collectives::Piece{0, 0}));
}

// Every algorithm that a job can name is one that can do it.
TEST(DenseAlgorithmTest, IsTheOneOfThatName) {
  job::ResolvedJob plan;
  const auto* const names = google::protobuf::GetEnumDescriptor<Dense::Algorithm>();
  int named = 0;
  for (int i = 0; i < names->value_count(); ++i) {
    const auto value = static_cast<Dense::Algorithm>(names->value(i)->number());
    plan.job.mutable_dense()->set_algorithm(value);
    const absl::optional<collectives::Algorithm> algorithm = worker::DenseAlgorithm(plan);
    if (value == Dense::ALGORITHM_UNSPECIFIED || value == Dense::AUTO) {
      EXPECT_FALSE(algorithm.has_value());
      continue;
    }
    ++named;
    ASSERT_TRUE(algorithm.has_value()) << names->value(i)->name();
    EXPECT_TRUE(collectives::Supports(collectives::Primitive::kAllReduce, *algorithm))
        << names->value(i)->name();
  }
  EXPECT_GE(named, 8);
}

// ---- Workers in threads ---------------------------------------------------------

constexpr int64_t kCount = 5000;  // five blocks, the last one padded

Optimizer Config() {
  Optimizer config;
  config.set_kind(Optimizer::ADAM);
  config.set_learning_rate(0.01);
  config.set_beta1(0.9);
  config.set_beta2(0.999);
  config.set_epsilon(1e-8);
  return config;
}

struct Step {
  std::vector<std::vector<float>> gradients;  // by worker; empty: no samples
  std::vector<int64_t> samples;
};

std::vector<Step> RandomSteps(int workers, int steps) {
  Random random(3);
  std::vector<Step> out(static_cast<size_t>(steps));
  for (Step& step : out) {
    for (int w = 0; w < workers; ++w) {
      step.samples.push_back(static_cast<int64_t>(random.Uniform(3)) * 5);
      step.gradients.emplace_back(kCount);
      for (float& x : step.gradients.back()) {
        x = step.samples.back() == 0 ? 0 : static_cast<float>(random.Normal());
      }
    }
  }
  return out;
}

// One process: gradients folded in rank order, one optimizer step with the mean.
std::vector<float> Reference(const std::vector<Step>& steps) {
  auto dense = std::move(*worker::DenseParameters::New(Config(), kCount));
  for (const Step& step : steps) {
    std::vector<float> sum(dense->padded().size());
    double n = 0;
    for (size_t w = 0; w < step.gradients.size(); ++w) {
      for (int64_t i = 0; i < kCount; ++i) {
        sum[i] = w == 0 ? step.gradients[w][i] : sum[i] + step.gradients[w][i];
      }
      n += static_cast<double>(step.samples[w]);
    }
    if (n > 0) dense->Apply(sum, optim::FoldFactor(n));
  }
  return {dense->values().begin(), dense->values().end()};
}

struct Result {
  std::vector<float> values, slots;
  std::vector<double> samples;
  uint64_t bytes = 0;
  int64_t slots_kept = 0;
};

struct Settings {
  worker::AllReduceGradients::Options reduction;
  worker::GroupRunner::Options runner;
};

Settings Direct() {
  Settings settings;
  settings.reduction.algorithm = collectives::Algorithm::kDirect;
  return settings;
}

// The steps of one worker, on its group.
struct Replica {
  std::unique_ptr<worker::GroupRunner> runner;
  std::unique_ptr<worker::DenseReducer> reducer;
};

Replica NewReplica(const Settings& settings, std::unique_ptr<collectives::Group> group,
                   worker::AbortableWatch& watch, worker::DenseParameters& dense) {
  worker::AllReduceGradients::Options reduction = settings.reduction;
  reduction.rank = group->rank();
  reduction.ranks = group->ranks();
  reduction.codec = settings.runner.codec.kind() > Codec::NONE;
  Replica out;
  out.runner = std::make_unique<worker::GroupRunner>(std::move(group), watch, settings.runner);
  out.reducer = std::make_unique<worker::DenseReducer>(
      std::make_unique<worker::AllReduceGradients>(dense, reduction),
      /*overlap=*/reduction.bucket_bytes > 0, *out.runner);
  return out;
}

// Sums as workers do on GPUs, in host memory and over their group.
class SumWithoutGpus final : public worker::DeviceSum {
 public:
  static constexpr uint64_t kBytesOfASum = 1000;

  explicit SumWithoutGpus(collectives::Group& group) : group_(group) {}
  std::string name() const override { return "fake"; }
  std::string why() const override { return "for a test"; }
  uint64_t bytes_sent() const override { return bytes_; }
  absl::Status Sum(float* device, int64_t count, float* host, const Waiting&) override {
    bytes_ += kBytesOfASum;
    collectives::CallOptions call;
    call.choice = collectives::AlgorithmChoice{collectives::Algorithm::kDirect};
    const auto work = group_.AllReduce(device, host, count, collectives::DataType::kF32,
                                       collectives::ReduceOp::kSum, call);
    return group_.Wait(work);
  }

 private:
  collectives::Group& group_;
  uint64_t bytes_ = 5;  // sent before the first step
};

// `backward`: how often gradients are said to be ready on the way.
std::vector<Result> Train(int workers, const std::vector<Step>& steps, const Settings& settings,
                          int backward = 0) {
  std::vector<Result> out(static_cast<size_t>(workers));
  RunRankThreads(workers, [&](int w, RankLinks links) {
    auto dense = std::move(*worker::DenseParameters::New(Config(), kCount));
    auto group =
        std::make_unique<collectives::Group>(w, std::move(links), collectives::GroupOptions());
    auto device_sum = std::make_unique<SumWithoutGpus>(*group);
    worker::AbortableWatch watch;
    const auto [runner, reducer] = NewReplica(settings, std::move(group), watch, *dense);
    std::vector<float> gradient(dense->padded().size() + 1), device(kCount);
    if (settings.reduction.on_device) {
      runner->SumOnDevice(std::move(device_sum), [&device](bool zero) {
        if (zero) std::fill(device.begin(), device.end(), 0.0f);
        return device.data();
      });
    }
    Result& result = out[static_cast<size_t>(w)];
    for (const Step& step : steps) {
      const auto& mine = step.gradients[static_cast<size_t>(w)];
      const int64_t samples = step.samples[static_cast<size_t>(w)];
      std::fill(gradient.begin(), gradient.end(), 0.0f);
      if (reducer->overlaps() && samples > 0) {
        reducer->Begin(absl::MakeSpan(gradient), {0, samples});
      }
      std::copy(mine.begin(), mine.end(), device.begin());
      if (!settings.reduction.on_device) std::copy(mine.begin(), mine.end(), gradient.begin());
      for (int i = backward; samples > 0 && i > 0; --i) {
        reducer->Ready(kCount * i / (backward + 1));
      }
      worker::DenseSteps::StepResult told;
      const absl::Status status = reducer->Finish(absl::MakeSpan(gradient), {0, samples}, &told);
      ASSERT_TRUE(status.ok()) << status;
      result.samples.push_back(told.samples_of_all);
      result.bytes += runner->TakeBytes();
    }
    result.slots_kept = static_cast<int64_t>(dense->kept_slots().size());
    ASSERT_TRUE(reducer->Settle(/*new_epoch=*/false, 0, nullptr).ok());
    result.values.assign(dense->values().begin(), dense->values().end());
    if (w == 0) {  // who checkpoints
      const std::string file = dense->EncodeFile();
      auto copy = std::move(*worker::DenseParameters::New(Config(), kCount));
      const auto image =
          server::DecodeRange({reinterpret_cast<const uint8_t*>(file.data()), file.size()});
      ASSERT_TRUE(image.ok() && copy->Load(*image).ok());
      result.slots.assign(copy->kept_slots().begin(), copy->kept_slots().end());
    }
  });
  return out;
}

TEST(DenseReducerTest, IsOneProcessToTheBitHoweverTheGradientIsCut) {
  for (const int workers : {1, 2, 3}) {
    const std::vector<Step> steps = RandomSteps(workers, 6);
    const std::vector<float> expected = Reference(steps);
    for (const int64_t bucket : {0, 1000, 100000}) {
      Settings settings = Direct();
      settings.reduction.bucket_bytes = bucket;
      for (const int backward : {0, 1, 7}) {
        const std::vector<Result> results = Train(workers, steps, settings, backward);
        for (const Result& result : results) {
          EXPECT_EQ(result.values, expected) << workers << " workers, bucket " << bucket;
        }
      }
    }
  }
}

TEST(DenseReducerTest, TellsTheSumOfSamplesAlsoWhenItIsNothing) {
  std::vector<Step> steps = RandomSteps(2, 4);
  steps[2].samples = {0, 0};
  for (auto& gradient : steps[2].gradients) gradient.assign(kCount, 0);
  for (const collectives::DataType wire :
       {collectives::DataType::kF32, collectives::DataType::kBF16}) {
    Settings settings = Direct();
    settings.reduction.wire = wire;
    for (const Result& result : Train(2, steps, settings)) {
      for (size_t i = 0; i < steps.size(); ++i) {
        EXPECT_EQ(result.samples[i],
                  static_cast<double>(steps[i].samples[0] + steps[i].samples[1]));
      }
    }
  }
}

TEST(DenseReducerTest, GradientsOnGpusAreSummedThereAndTheirBytesCounted) {
  Settings settings = Direct();
  settings.reduction.on_device = true;
  for (const int workers : {1, 3}) {
    const std::vector<Step> steps = RandomSteps(workers, 6);
    const std::vector<Result> results = Train(workers, steps, settings);
    for (const Result& result : results) EXPECT_EQ(result.values, Reference(steps));
    if (workers > 1) continue;
    EXPECT_EQ(results[0].bytes, steps.size() * SumWithoutGpus::kBytesOfASum);
  }
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    sum += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return std::sqrt(sum / size);
}

TEST(DenseReducerTest, A16BitWireHalvesTheBytesAndStaysNear) {
  const std::vector<Step> steps = RandomSteps(2, 6);
  const std::vector<float> expected = Reference(steps);
  const std::vector<Result> wide = Train(2, steps, Direct());
  for (const collectives::DataType wire :
       {collectives::DataType::kF16, collectives::DataType::kBF16}) {
    for (const int64_t bucket : {0, 1000}) {
      Settings settings = Direct();
      settings.reduction.wire = wire;
      settings.reduction.batch = 10;
      settings.reduction.bucket_bytes = bucket;
      const std::vector<Result> results = Train(2, steps, settings);
      EXPECT_EQ(results[0].values, results[1].values);
      EXPECT_LT(Distance(results[0].values, expected), 0.02);
      EXPECT_GT(Distance(results[0].values, expected), 0);
      EXPECT_LT(static_cast<double>(results[0].bytes), 0.55 * static_cast<double>(wide[0].bytes));
    }
  }
}

TEST(DenseReducerTest, AShardedOptimizerGivesTheSameBitsWithAShareOfTheSlots) {
  for (const int workers : {1, 2, 3}) {
    const std::vector<Step> steps = RandomSteps(workers, 6);
    const std::vector<Result> whole = Train(workers, steps, Direct());
    Settings settings;
    settings.reduction.sharded_optimizer = true;
    const std::vector<Result> sharded = Train(workers, steps, settings);
    int64_t slots = 0;
    for (int w = 0; w < workers; ++w) {
      EXPECT_EQ(sharded[w].values, whole[0].values);
      slots += sharded[w].slots_kept;
      EXPECT_LE(sharded[w].slots_kept, (whole[0].slots_kept / 5) * ((5 + workers - 1) / workers));
    }
    EXPECT_EQ(slots, whole[0].slots_kept) << "each block's slots are somewhere, once";
    EXPECT_EQ(sharded[0].slots, whole[0].slots) << "and all are in a checkpoint";
  }
}

TEST(DenseReducerTest, CodecsKeepWorkersEqual) {
  const std::vector<Step> steps = RandomSteps(2, 6);
  for (const char* text : {"kind: TOP_K fraction: 0.1", "kind: SIGN", "kind: POWER_SGD rank: 2",
                           "kind: TOP_K fraction: 1", "kind: SIGN error_feedback: false"}) {
    Settings settings = Direct();
    ASSERT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &settings.runner.codec));
    const std::vector<Result> results = Train(2, steps, settings);
    EXPECT_EQ(results[0].values, results[1].values) << text;
    const bool lossless = std::string(text) == "kind: TOP_K fraction: 1";
    EXPECT_EQ(results[0].values == Reference(steps), lossless) << text;
  }
}

// What top-k keeps back is part of a mean: it weighs the same when it is sent in a step with few
// samples, and is there after a step with none.
TEST(DenseReducerTest, WhatACodecKeepsIsPartOfAMeanWhateverTheSamples) {
  std::vector<Step> steps = RandomSteps(2, 7);
  const std::vector<std::vector<int64_t>> samples = {{512, 512}, {3, 0},     {0, 0}, {512, 511},
                                                     {0, 1},     {100, 900}, {0, 0}};
  for (size_t s = 0; s < steps.size(); ++s) {
    Random random(s);
    steps[s].samples = samples[s];
    for (size_t w = 0; w < 2; ++w) {
      for (float& x : steps[s].gradients[w]) {
        x = static_cast<float>(random.Normal() * static_cast<double>(samples[s][w]));
      }
    }
  }
  // A plain loop over means: what a worker adds to the mean gradient, and keeps, by top-k of 500.
  auto expected = std::move(*worker::DenseParameters::New(Config(), kCount));
  std::vector<std::vector<double>> kept(2, std::vector<double>(kCount));
  for (const Step& step : steps) {
    const auto n = static_cast<double>(step.samples[0] + step.samples[1]);
    if (n == 0) continue;
    std::vector<float> mean(expected->padded().size());
    for (size_t w = 0; w < 2; ++w) {
      std::vector<double> size;
      for (size_t i = 0; i < kCount; ++i) {
        kept[w][i] += static_cast<double>(step.gradients[w][i]) / n;
        size.push_back(std::fabs(kept[w][i]));
      }
      std::sort(size.begin(), size.end(), std::greater<>());
      for (size_t i = 0; i < kCount; ++i) {
        if (std::fabs(kept[w][i]) < size[499]) continue;
        mean[i] += static_cast<float>(kept[w][i]);
        kept[w][i] = 0;
      }
    }
    expected->Apply(mean, 1);
  }
  Settings settings = Direct();
  settings.runner.codec.set_kind(Codec::TOP_K);
  settings.runner.codec.set_fraction(0.1);
  for (const Result& result : Train(2, steps, settings)) {
    for (size_t i = 0; i < kCount; ++i) {
      ASSERT_NEAR(result.values[i], expected->values()[i], 2e-5) << i;
    }
  }
}

// Rank 0 of a group of two, whose other rank is at the far end of the link.
std::unique_ptr<collectives::Group> GroupOfTwo(std::unique_ptr<collectives::Link> link,
                                               worker::AbortableWatch* watch) {
  std::vector<std::unique_ptr<collectives::Link>> links(2);
  links[1] = std::move(link);
  collectives::GroupOptions options;
  options.watch = watch;
  options.deadline = absl::Minutes(5);
  return std::make_unique<collectives::Group>(0, std::move(links), options);
}

TEST(DenseReducerTest, AbortEndsAWaitForAWorkerThatDoesNotCome) {
  for (const int64_t bucket : {0, 1000}) {
    auto dense = std::move(*worker::DenseParameters::New(Config(), kCount));
    worker::AbortableWatch watch;
    auto pair = collectives::InMemoryLink::NewPair();
    Settings settings = Direct();
    settings.reduction.bucket_bytes = bucket;
    const auto replica =
        NewReplica(settings, GroupOfTwo(std::move(pair[0]), &watch), watch, *dense);
    std::thread aborter([&] {
      while (replica.runner->WaitingFor().text.empty()) absl::SleepFor(absl::Milliseconds(10));
      EXPECT_THAT(replica.runner->WaitingFor().text, HasSubstr("for worker 1"));
      EXPECT_EQ(replica.runner->WaitingFor().waits_for, EndpointId::Worker(1));
      replica.runner->Abort("enough");
    });
    std::vector<float> gradient(dense->padded().size() + 1);
    worker::DenseSteps::StepResult told;
    const absl::Status status = replica.reducer->Finish(absl::MakeSpan(gradient), {0, 1}, &told);
    aborter.join();
    EXPECT_EQ(status, absl::CancelledError("enough"));
  }
}

// A sum on GPUs that waits for a worker; -1: for nobody.
class EndlessSum final : public worker::DeviceSum {
 public:
  explicit EndlessSum(int worker) : worker_(worker) {}
  std::string name() const override { return "fake"; }
  std::string why() const override { return "for a test"; }
  uint64_t bytes_sent() const override { return 0; }
  absl::Status Sum(float*, int64_t, float*, const Waiting& waiting) override {
    absl::Status status;
    while ((status = waiting(worker_)).ok()) absl::SleepFor(absl::Milliseconds(10));
    return status;
  }

 private:
  const int worker_;
};

void ExpectWaitInASumOnGpus(int worker, const std::string& text, EndpointId waits_for) {
  const TemporaryFolder folder;
  auto dense = std::move(*worker::DenseParameters::New(Config(), kCount));
  worker::AbortableWatch watch;
  auto pair = collectives::InMemoryLink::NewPair();
  Settings settings = Direct();
  settings.reduction.on_device = true;
  settings.runner.dump_folder = folder.File("dump");
  const auto replica = NewReplica(settings, GroupOfTwo(std::move(pair[0]), &watch), watch, *dense);
  std::vector<float> gradient(dense->padded().size() + 1);
  replica.runner->SumOnDevice(std::make_unique<EndlessSum>(worker),
                              [&](bool) { return gradient.data(); });
  replica.runner->RequestDump();
  std::thread aborter([&] {
    while (replica.runner->WaitingFor().text.empty()) absl::SleepFor(absl::Milliseconds(10));
    EXPECT_EQ(replica.runner->WaitingFor().text, text);
    EXPECT_EQ(replica.runner->WaitingFor().waits_for, waits_for);
    EXPECT_TRUE(collectives::ReadDumps(settings.runner.dump_folder).ok());
    replica.runner->Abort("enough");
  });
  worker::DenseSteps::StepResult told;
  const absl::Status status = replica.reducer->Finish(absl::MakeSpan(gradient), {0, 1}, &told);
  aborter.join();
  EXPECT_EQ(status, absl::CancelledError("enough"));
  EXPECT_EQ(replica.runner->WaitingFor().text, "");
}

TEST(DenseReducerTest, AWaitInASumOnGpusNamesTheWorkerAndDumpsAndCanBeAborted) {
  ExpectWaitInASumOnGpus(1, "sum on GPUs: waits for worker 1", EndpointId::Worker(1));
  ExpectWaitInASumOnGpus(-1, "sum on GPUs: waits until its parts have left", EndpointId());
}

// ---- Sums on GPUs, on a machine that may have none ------------------------------------------

TEST(DeviceSumTest, OneWorkerNeedsNoDevice) {
  collectives::Group alone(0, std::vector<std::unique_ptr<collectives::Link>>(1), {});
  const auto sum = worker::DeviceSum::New(alone, {}, nullptr);
  if (absl::IsUnimplemented(sum.status())) GTEST_SKIP() << sum.status();
  ASSERT_TRUE(sum.ok()) << sum.status();
  EXPECT_EQ((*sum)->name(), "none");
  EXPECT_EQ((*sum)->bytes_sent(), 0u);
}

// Neither CUDA IPC nor pinned memory works. Both workers find out, and neither waits for the other.
TEST(DeviceSumTest, WorkersFailTogether) {
  auto pair = collectives::InMemoryLink::NewPair();
  const auto open = [&](int rank) {
    std::vector<std::unique_ptr<collectives::Link>> links(2);
    links[static_cast<size_t>(1 - rank)] = std::move(pair[static_cast<size_t>(rank)]);
    collectives::Group group(rank, std::move(links), {});
    worker::DeviceSumOptions options;
    options.host_of_rank = {0, 0};
    const auto sum =
        worker::DeviceSum::New(group, std::move(options), [](int) { return absl::OkStatus(); });
    EXPECT_FALSE(sum.ok());
    if (absl::IsUnimplemented(sum.status())) return;
    EXPECT_THAT(std::string(sum.status().message()), HasSubstr("gradients on the GPU"));
  };
  std::thread other([&] { open(1); });
  open(0);
  other.join();
}

// ---- Dumps ----------------------------------------------------------------------

// What a worker that waits for another one does, on request and when it is aborted, is in a file.
TEST(DenseReducerTest, DumpsWhileItWaitsAndWhenItFails) {
  const TemporaryFolder folder;
  for (const int64_t bucket : {0, 1000}) {
    auto dense = std::move(*worker::DenseParameters::New(Config(), kCount));
    worker::AbortableWatch watch;
    auto pair = collectives::InMemoryLink::NewPair();
    Settings settings = Direct();
    settings.reduction.bucket_bytes = bucket;
    settings.runner.dump_folder = folder.File(absl::StrCat("bucket", bucket));
    const auto replica =
        NewReplica(settings, GroupOfTwo(std::move(pair[0]), &watch), watch, *dense);
    std::string asked;
    std::thread other([&] {
      replica.runner->RequestDump();
      auto dumps = collectives::ReadDumps(settings.runner.dump_folder);
      for (; !dumps.ok(); dumps = collectives::ReadDumps(settings.runner.dump_folder)) {
        absl::SleepFor(absl::Milliseconds(10));
      }
      asked = collectives::DumpText(dumps->front());
      replica.runner->Abort("enough");
    });
    std::vector<float> gradient(dense->padded().size() + 1);
    worker::DenseSteps::StepResult told;
    EXPECT_FALSE(replica.reducer->Finish(absl::MakeSpan(gradient), {0, 1}, &told).ok());
    other.join();
    EXPECT_THAT(asked, HasSubstr("\"status\":\"OK\""));
    const auto dumps = collectives::ReadDumps(settings.runner.dump_folder);
    ASSERT_TRUE(dumps.ok()) << dumps.status();
    ASSERT_EQ(dumps->size(), 1u);
    EXPECT_EQ(dumps->front().group, "workers");
    EXPECT_THAT(dumps->front().status, HasSubstr("enough"));
    ASSERT_EQ(dumps->front().records.size(), 1u);
    EXPECT_TRUE(dumps->front().records[0].failed);
    EXPECT_EQ(dumps->front().records[0].last_wait_rank, 1);
    EXPECT_THAT(collectives::CompareDumps(*dumps),
                ::testing::Contains(HasSubstr("rank 1 left no dump")));
  }
}

// A worker with nothing under way leaves its dump when it ends, if it was asked.
TEST(DenseReducerTest, AnIdleWorkerDumpsAtItsEnd) {
  const TemporaryFolder folder;
  for (const bool ask : {false, true}) {
    auto dense = std::move(*worker::DenseParameters::New(Config(), kCount));
    Settings settings = Direct();
    settings.runner.dump_folder = folder.File(ask ? "asked" : "not");
    worker::AbortableWatch watch;
    {
      const auto replica = NewReplica(
          settings,
          std::make_unique<collectives::Group>(
              0, std::vector<std::unique_ptr<collectives::Link>>(1), collectives::GroupOptions()),
          watch, *dense);
      if (ask) replica.runner->RequestDump();
    }
    EXPECT_EQ(collectives::ReadDumps(settings.runner.dump_folder).ok(), ask);
  }
}

}  // namespace
}  // namespace tandem
