// In steady state a step of the trainer asks the heap for nothing: neither its machines nor the
// client below them, nor what dense parameters need. A program of its own, because it replaces
// operator new.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/shard_core.h"
#include "tests/unit/count_allocations.h"
#include "tests/unit/server/core_fixture.h"
#include "worker/trainer_core.h"

namespace tandem {
namespace {

constexpr int kWorkers = 2, kServers = 2;

struct Case {
  const char* policy;
  const char* synchroniser;
  int depth;
};

// Two workers and two shards in one thread, joined by first-in first-out lists that keep their
// memory; tasks are done at once, batches are always the same.
class Cluster {
 public:
  explicit Cluster(const Case& c)
      : plan_(CorePlan(c.policy, kWorkers, kServers,
                       absl::StrCat("train { batch_size: 4 prefetch_steps: ", c.depth,
                                    " } limits { report_interval_seconds: 100000 }"),
                       c.synchroniser)),
        map_(CoreView(plan_, 1)) {
    batch_.samples = 4;
    batch_.sparse.resize(1);
    for (uint64_t key = 0; key < 300; ++key) batch_.sparse[0].keys.push_back(key);
    for (int server = 0; server < kServers; ++server) {
      shards_.push_back(
          server::ShardCore::New(plan_, EndpointId::Shard(server, 0), 3, buffers_).value());
      shards_.back()->OnView(now_, map_, &shard_effects_);
    }
    for (int rank = 0; rank < kWorkers; ++rank) {
      dense_.push_back(*worker::DenseParameters::New(plan_.job.dense().optimizer(), 3000));
      worker::TrainerCore::Options options;
      options.rank = rank;
      options.incarnation = 7 + static_cast<uint64_t>(rank);
      options.client.frame_bytes = 1000;
      trainers_.push_back(*worker::TrainerCore::New(plan_, options, *dense_.back(), buffers_));
      effects_.emplace_back();
      trainers_.back()->OnView(now_, map_, &effects_.back());
      Control start;
      start.mutable_command()->set_kind(Command::START);
      ToTrainer(rank, start);
    }
    Settle();
    for (int rank = 0; rank < kWorkers; ++rank) {  // where dense parameters are assigned
      Control release;
      release.mutable_barrier_release()->set_name("assigned");
      ToTrainer(rank, release);
    }
  }

  // Until worker 0 has come to `step`.
  void RunTo(int64_t step) {
    while (trainers_[0]->step() < step) {
      now_ += absl::Milliseconds(1);
      for (auto& shard : shards_) shard->OnTick(now_, &shard_effects_);
      for (size_t rank = 0; rank < trainers_.size(); ++rank) {
        trainers_[rank]->OnTick(now_, &effects_[rank]);
      }
      Settle();
    }
  }
  absl::Status failure() const { return trainers_[0]->failure(); }

 private:
  void ToTrainer(int rank, const Control& control) {
    FrameHeader header;
    header.sender = EndpointId::Scheduler();
    trainers_[rank]->OnFrame(now_, Decoded(EncodeControlFrame(buffers_, header, control)),
                             &effects_[rank]);
  }

  // One step further at most for each worker, so that nobody runs away from the test.
  void Settle() {
    for (bool more = true; more;) {
      more = false;
      for (size_t rank = 0; rank < trainers_.size(); ++rank) more |= Deliver(rank);
      more |= Answer();
    }
    for (size_t rank = 0; rank < trainers_.size(); ++rank) FinishTasks(rank);
  }
  bool Deliver(size_t rank) {
    std::swap(out_, effects_[rank].out);
    effects_[rank].out.clear();
    const bool any = !out_.empty();
    for (const Outgoing& out : out_) {
      if (out.to.role != Role::kServer) continue;
      shards_[out.to.index]->OnFrame(now_, *DecodeFrame(out.frame), &shard_effects_);
    }
    out_.clear();
    return any;
  }
  bool Answer() {
    std::swap(out_, shard_effects_.out);
    shard_effects_.Clear();
    const bool any = !out_.empty();
    for (const Outgoing& out : out_) {
      trainers_[out.to.index]->OnFrame(now_, *DecodeFrame(out.frame), &effects_[out.to.index]);
    }
    out_.clear();
    return any;
  }
  void FinishTasks(size_t rank) {
    std::swap(tasks_, effects_[rank].tasks);
    effects_[rank].Clear();
    for (const worker::TrainerTask& task : tasks_) {
      if (const auto* const fetch = std::get_if<worker::FetchTask>(&task)) {
        fetch->slot->batch = batch_;
      } else if (const auto* const compute = std::get_if<worker::ComputeTask>(&task)) {
        for (float* const gradient : compute->slot->gradients[0]) std::fill_n(gradient, 2, 1.0f);
        for (client::PulledRows& rows : compute->slot->rows) rows.Clear();
        compute->slot->loss_sum = 4;
      } else if (const auto* const synchronise = std::get_if<worker::SynchroniseTask>(&task)) {
        synchronise->slot->samples_of_all = 8;
      }
      trainers_[rank]->OnTaskDone(now_, task, absl::OkStatus(), &effects_[rank]);
    }
    tasks_.clear();
  }

  HeapBufferSource buffers_;
  const job::ResolvedJob plan_;
  const std::shared_ptr<const RangeMap> map_;
  absl::Time now_ = absl::UnixEpoch();
  data::Batch batch_;
  std::vector<std::unique_ptr<server::ShardCore>> shards_;
  server::ShardEffects shard_effects_;
  std::vector<std::unique_ptr<worker::DenseParameters>> dense_;
  std::vector<worker::TrainerEffects> effects_;
  std::vector<std::unique_ptr<worker::TrainerCore>> trainers_;
  std::vector<Outgoing> out_;
  std::vector<worker::TrainerTask> tasks_;
};

class TrainerAllocTest : public testing::TestWithParam<Case> {};

TEST_P(TrainerAllocTest, StepsAllocateNothing) {
  Cluster cluster(GetParam());
  cluster.RunTo(60);
  const int64_t before = allocations;
  cluster.RunTo(160);
  EXPECT_EQ(allocations - before, 0);
  EXPECT_TRUE(cluster.failure().ok()) << cluster.failure();
}

INSTANTIATE_TEST_SUITE_P(Jobs, TrainerAllocTest,
                         testing::Values(Case{"kind: BSP", "ALLREDUCE", 0},
                                         Case{"kind: BSP", "SERVERS", 1},
                                         Case{"kind: SSP bound: 2", "SERVERS", 2},
                                         Case{"kind: ASP", "ALLREDUCE", 1},
                                         Case{"kind: FIXED_DELAY delay: 3", "SERVERS", 1}));

}  // namespace
}  // namespace tandem
