// What replicas ask to be run, in which order, and what they make of it: without threads or links,
// sums are made by hand. Over groups of threads it is dense_reducer_test, under a virtual clock
// tests/sim.
#include "worker/dense/allreduce_gradients.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/dense/replica_digests.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Request = worker::DenseReduction::Request;

constexpr int64_t kCount = 2500;  // three blocks, the last one padded

Optimizer Sgd() {
  Optimizer config;
  config.set_kind(Optimizer::SGD);
  config.set_learning_rate(1);
  return config;
}

// Two workers, whose requests are run together.
class AllReduceGradientsTest : public ::testing::Test {
 protected:
  void Make(worker::AllReduceGradients::Options options) {
    options.ranks = 2;
    for (int r = 0; r < 2; ++r) {
      options.rank = r;
      dense_.push_back(*worker::DenseParameters::New(Sgd(), kCount));
      gradients_.emplace_back(dense_[r]->padded().size() + 1);
      reductions_.push_back(std::make_unique<worker::AllReduceGradients>(*dense_[r], options));
    }
  }
  // Worker r has `n[r]` samples with a gradient of n[r] everywhere. `skipped`: workers without
  // samples have skipped their batch.
  void Begin(int64_t n0, int64_t n1, bool skipped = false) {
    const int64_t n[] = {n0, n1};
    for (int r = 0; r < 2; ++r) {
      std::fill_n(gradients_[r].begin(), kCount, static_cast<float>(n[r]));
      reductions_[r]->Begin(absl::MakeSpan(gradients_[r]),
                            {0, n[r], /*last=*/false, skipped && n[r] == 0});
    }
  }
  void Ready(int64_t first) {
    for (auto& reduction : reductions_) reduction->Ready(first);
  }
  void Close() {
    for (auto& reduction : reductions_) reduction->Close();
  }
  // Runs one request of both; false if they have none.
  bool RunOne() {
    const Request* const a = reductions_[0]->Next();
    const Request* const b = reductions_[1]->Next();
    EXPECT_EQ(a == nullptr, b == nullptr);
    if (a == nullptr || b == nullptr) return false;
    EXPECT_EQ(reductions_[0]->Next(), nullptr) << "one at a time";
    EXPECT_EQ(a->primitive, b->primitive);
    EXPECT_EQ(a->by, b->by);
    EXPECT_EQ(a->count, b->count);
    EXPECT_EQ(a->type, b->type);
    asked_.push_back(*a);
    if (a->type == collectives::DataType::kF32) RunF32(*a, *b);
    if (a->type == collectives::DataType::kI64) GatherOnes(*a, *b);
    for (auto& reduction : reductions_) reduction->OnDone();
    return true;
  }
  void RunAll() {
    while (RunOne()) {
    }
  }
  void RunF32(const Request& a, const Request& b) {
    const auto* const x = static_cast<const float*>(a.input);
    const auto* const y = static_cast<const float*>(b.input);
    auto* const out0 = static_cast<float*>(a.output);
    auto* const out1 = static_cast<float*>(b.output);
    const auto own = [](const Request& r, int rank) { return r.counts[static_cast<size_t>(rank)]; };
    switch (a.primitive) {
      case collectives::Primitive::kAllReduce:
        for (int64_t i = 0; i < a.count; ++i) out0[i] = out1[i] = x[i] + y[i];
        return;
      case collectives::Primitive::kReduceScatter:
        for (int64_t i = 0; i < own(a, 0); ++i) out0[i] = x[i] + y[i];
        for (int64_t i = 0; i < own(a, 1); ++i) out1[i] = x[own(a, 0) + i] + y[own(a, 0) + i];
        return;
      case collectives::Primitive::kAllGather:
        std::copy_n(y, own(a, 1), out0 + own(a, 0));
        std::copy_n(x, own(a, 0), out1);
        return;
      default:
        ADD_FAILURE() << collectives::PrimitiveName(a.primitive);
    }
  }
  static void GatherOnes(const Request& a, const Request& b) {
    static_cast<int64_t*>(a.output)[1] = *static_cast<const int64_t*>(b.input);
    static_cast<int64_t*>(b.output)[0] = *static_cast<const int64_t*>(a.input);
  }
  // Initial values are 0, the rate 1: one step with a mean gradient of 1 leaves -1 everywhere.
  void ExpectOneStepOfTheMean() {
    for (int r = 0; r < 2; ++r) {
      EXPECT_THAT(dense_[r]->values(), ::testing::Each(-1.0f));
    }
  }

  std::vector<std::unique_ptr<worker::DenseParameters>> dense_;
  std::vector<std::vector<float>> gradients_;
  std::vector<std::unique_ptr<worker::AllReduceGradients>> reductions_;
  std::vector<Request> asked_;
};

TEST_F(AllReduceGradientsTest, TheSumOfSamplesIsOneMoreElement) {
  Make({});
  Begin(3, 5);
  EXPECT_FALSE(RunOne()) << "nothing is ready";
  Close();
  RunAll();
  ASSERT_EQ(asked_.size(), 1u);
  EXPECT_EQ(asked_[0].count, kCount + 1);
  EXPECT_TRUE(reductions_[0]->over());
  EXPECT_EQ(reductions_[0]->samples_of_all(), 8);
  ExpectOneStepOfTheMean();
}

TEST_F(AllReduceGradientsTest, BucketsAreRunAsTheyGetReadyAndParametersChangeAtTheEnd) {
  worker::AllReduceGradients::Options options;
  options.bucket_bytes = 4000;  // 1,000 elements, the first 250
  Make(options);
  Begin(1, 1);
  Ready(2300);
  EXPECT_FALSE(RunOne()) << "the first bucket begins at 2251";
  Ready(1500);
  EXPECT_TRUE(RunOne());
  EXPECT_FALSE(RunOne()) << "the second at 1251";
  Ready(0);
  RunAll();
  EXPECT_EQ(asked_.size(), 4u);
  EXPECT_TRUE(reductions_[0]->waits_for_close());
  EXPECT_THAT(dense_[0]->values(), ::testing::Each(0.0f)) << "a model may be reading them";
  Close();
  RunAll();
  ExpectOneStepOfTheMean();
}

TEST_F(AllReduceGradientsTest, AStepWithoutSamplesChangesNothing) {
  for (const bool sharded : {false, true}) {
    dense_.clear();
    gradients_.clear();
    reductions_.clear();
    worker::AllReduceGradients::Options options;
    options.sharded_optimizer = sharded;
    Make(options);
    Begin(0, 0);
    Close();
    RunAll();
    EXPECT_TRUE(reductions_[0]->over());
    EXPECT_EQ(reductions_[0]->samples_of_all(), 0);
    EXPECT_THAT(dense_[0]->values(), ::testing::Each(0.0f));
  }
}

TEST_F(AllReduceGradientsTest, ASkippedStepAddsNothingAndDoesNotEndTheEpoch) {
  for (const bool sharded : {false, true}) {
    dense_.clear();
    gradients_.clear();
    reductions_.clear();
    worker::AllReduceGradients::Options options;
    options.sharded_optimizer = sharded;
    options.compares = true;
    Make(options);
    Begin(0, 0, /*skipped=*/true);
    Close();
    RunAll();
    EXPECT_TRUE(reductions_[0]->over());
    EXPECT_GT(reductions_[0]->samples_of_all(), 0);
    EXPECT_THAT(dense_[0]->values(), ::testing::Each(0.0f));
    Begin(0, 3, /*skipped=*/true);
    Close();
    RunAll();
    EXPECT_EQ(reductions_[0]->samples_of_all(), 3);
    ExpectOneStepOfTheMean();
    EXPECT_EQ(asked_.back().type, collectives::DataType::kF32) << "no digests";
  }
}

TEST_F(AllReduceGradientsTest, ReplicasAreComparedAsAnEpochEnds) {
  for (const bool apart : {false, true}) {
    dense_.clear();
    gradients_.clear();
    reductions_.clear();
    asked_.clear();
    worker::AllReduceGradients::Options options;
    options.compares = true;
    Make(options);
    Begin(3, 5);
    Close();
    RunAll();
    EXPECT_EQ(asked_.size(), 1u) << "not after each step";
    if (apart) dense_[1]->values()[kCount - 1] += 1e-6f;
    Begin(0, 0);
    Close();
    RunAll();
    ASSERT_EQ(asked_.size(), 3u);
    EXPECT_EQ(asked_[2].primitive, collectives::Primitive::kAllGather);
    for (int r = 0; r < 2; ++r) {
      EXPECT_TRUE(reductions_[r]->over());
      EXPECT_EQ(reductions_[r]->samples_of_all(), 0);
      EXPECT_EQ(reductions_[r]->failure().ok(), !apart);
    }
    if (!apart) ExpectOneStepOfTheMean();
  }
}

TEST_F(AllReduceGradientsTest, GradientsOnGpusAreSummedThereAndReplicasCompared) {
  job::ResolvedJob plan;
  plan.job.mutable_cluster()->set_workers(2);
  plan.job.mutable_dense()->set_device(Dense::CUDA);
  auto dense = *worker::DenseParameters::New(Sgd(), kCount);
  std::vector<float> gradient(dense->padded().size() + 1);
  auto reduction = worker::AllReduceGradients::New(plan, /*rank=*/0, /*bucket_bytes=*/0, *dense);
  reduction->Begin(absl::MakeSpan(gradient), {0, 0});
  reduction->Close();
  std::vector<Request> asked;
  while (const Request* request = reduction->Next()) {
    asked.push_back(*request);
    reduction->OnDone();
  }
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_EQ(asked[0].by, Request::By::kDevice);
  EXPECT_EQ(asked[1].count, 1) << "n travels apart";
  EXPECT_EQ(asked[2].primitive, collectives::Primitive::kAllGather) << "of digests";
}

TEST_F(AllReduceGradientsTest, AShardedOptimizerScattersGradientsAndGathersValues) {
  worker::AllReduceGradients::Options options;
  options.sharded_optimizer = true;
  Make(options);
  Begin(2, 6);
  Close();
  RunAll();
  ASSERT_EQ(asked_.size(), 3u);
  EXPECT_EQ(asked_[0].primitive, collectives::Primitive::kReduceScatter);
  EXPECT_THAT(asked_[0].counts, ElementsAre(2 * job::kDenseBlockFloats, job::kDenseBlockFloats));
  EXPECT_EQ(asked_[1].count, 1) << "n travels apart";
  EXPECT_EQ(asked_[2].primitive, collectives::Primitive::kAllGather);
  ExpectOneStepOfTheMean();
}

TEST_F(AllReduceGradientsTest, A16BitWireCarriesScaledGradientsAndSamplesApart) {
  worker::AllReduceGradients::Options options;
  options.wire = collectives::DataType::kBF16;
  options.batch = 4;
  Make(options);
  Begin(4, 4);
  Close();
  RunAll();  // 16-bit sums are left out: each keeps its own
  ASSERT_EQ(asked_.size(), 2u);
  EXPECT_EQ(asked_[0].type, collectives::DataType::kBF16);
  EXPECT_EQ(asked_[0].count, kCount);
  EXPECT_EQ(asked_[1].type, collectives::DataType::kF32);
  EXPECT_EQ(reductions_[0]->samples_of_all(), 8);
  EXPECT_THAT(dense_[0]->values(), ::testing::Each(-0.5f));
}

TEST_F(AllReduceGradientsTest, ACodecIsToldTheSamplesOfAllAndNotAskedWithoutAny) {
  worker::AllReduceGradients::Options options;
  options.codec = true;
  Make(options);
  Begin(3, 5);
  Close();
  RunAll();
  ASSERT_EQ(asked_.size(), 2u);
  EXPECT_EQ(asked_[0].count, 1);
  EXPECT_EQ(asked_[1].by, Request::By::kCodec);
  EXPECT_EQ(asked_[1].samples, 8);
  ExpectOneStepOfTheMean();
  asked_.clear();
  Begin(0, 0);
  Close();
  RunAll();
  EXPECT_EQ(asked_.size(), 1u);
  EXPECT_TRUE(reductions_[0]->over());
  Begin(0, 0, /*skipped=*/true);
  Close();
  RunAll();
  EXPECT_EQ(asked_.size(), 2u) << "the samples alone";
}

TEST(ReplicaDigestsTest, WhoDiffersIsAtFault) {
  const auto say = [](const std::vector<uint64_t>& digests, int rank) {
    return worker::CompareReplicas(digests, rank, 32);
  };
  EXPECT_TRUE(say({7, 7, 7}, 1).ok());
  for (int rank = 0; rank < 3; ++rank) {
    const absl::Status status = say({7, 8, 7}, rank);
    EXPECT_THAT(
        std::string(status.message()),
        HasSubstr("of worker 1 differ from those of the others at the end of the epoch (step 32)"));
    EXPECT_EQ(status.code(), rank == 1 ? absl::StatusCode::kInternal : absl::StatusCode::kAborted);
  }
  EXPECT_THAT(std::string(say({7, 8, 9, 7, 7}, 0).message()), HasSubstr("of workers 1, 2 differ"));
  for (const std::vector<uint64_t>& none_is_right :
       {std::vector<uint64_t>{7, 8}, {7, 7, 8, 8}, {1, 2, 3}}) {
    const absl::Status status = say(none_is_right, 0);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr("of workers 0, 1"));
    EXPECT_THAT(std::string(status.message()), HasSubstr(" differ at the end of the epoch"));
  }
  const std::vector<float> zero = {0.0f, 1.0f}, minus = {-0.0f, 1.0f};
  EXPECT_EQ(worker::DigestOf(zero), worker::DigestOf(zero));
  EXPECT_NE(worker::DigestOf(zero), worker::DigestOf(minus)) << "bits count";
}

}  // namespace
}  // namespace tandem
