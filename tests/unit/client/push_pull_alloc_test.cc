// In steady state push and pull ask the heap for nothing: neither the client's core nor the
// shard's. Buffers come from a BufferSource, which reuses its own. A program of its own, because it
// replaces operator new.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

#include "absl/strings/match.h"
#include "base/random.h"
#include "client/client_core.h"
#include "gtest/gtest.h"
#include "server/shard_core.h"
#include "tests/unit/count_allocations.h"
#include "tests/unit/server/core_fixture.h"

namespace tandem {
namespace {

constexpr int kWorkers = 2, kServers = 2, kDim = 2;
constexpr size_t kKeys = 500;

// Two workers and two shards in one thread, joined by first-in first-out lists that keep their
// memory. Worker 0 reads a step before worker 1 has pushed the one before, so under BSP its reads
// are parked. Worker 0 copies, with keys that repeat; worker 1 reads and writes in place, and
// writes half of what it reads.
class Group {
 public:
  explicit Group(const std::string& policy)
      : plan_(CorePlan(policy, kWorkers, kServers, "", "ALLREDUCE")),
        map_(CoreView(plan_, 1)),
        keys_(kKeys),
        rows_(kKeys * kDim),
        gradients_(kKeys * kDim, 1) {
    Random random(1);
    for (uint64_t& key : keys_) key = random.Uniform(400);  // some repeat
    for (uint64_t key = 0; key < kKeys; ++key) distinct_.push_back(key);
    client::ClientCore::Options options;
    options.frame_bytes = 1000;
    for (int rank = 0; rank < kWorkers; ++rank) {
      workers_.push_back(std::make_unique<client::ClientCore>(plan_, EndpointId::Worker(rank),
                                                              7 + rank, buffers_, options));
      workers_.back()->OnView(now_, map_);
    }
    for (int server = 0; server < kServers; ++server) {
      shards_.push_back(
          server::ShardCore::New(plan_, EndpointId::Shard(server, 0), 3, buffers_).value());
      shards_.back()->OnView(now_, map_, &effects_);
    }
  }

  void Step(int64_t step) {
    Pull(0, step);
    if (step > 0) Push(1, step - 1);
    Pull(1, step);
    Push(0, step);
    now_ += absl::Milliseconds(50);
    for (auto& worker : workers_) worker->OnTick(now_);
    for (auto& shard : shards_) shard->OnTick(now_, &effects_);
    Deliver();
  }
  size_t done() const { return done_; }
  uint64_t rows_cached() const { return workers_[1]->counters().rows_cached; }

 private:
  void Pull(int rank, int64_t step) {
    const client::TableKeys keys = {0, keys_, true}, distinct = {0, distinct_};
    const absl::Span<float> rows = absl::MakeSpan(rows_);
    client::PulledRows* const in_place = &rows_in_place_;
    if (rank == 0) {
      workers_[rank]->Pull(now_, 0, step, {&keys, 1}, {&rows, 1}, 0);
    } else {
      workers_[rank]->PullInPlace(now_, 0, step, {&distinct, 1}, {&in_place, 1}, 0);
    }
    Deliver();
  }
  void Push(int rank, int64_t step) {
    const client::TableKeys keys = {0, keys_, true};
    const client::TableKeys distinct = {0, absl::MakeConstSpan(distinct_).first(kKeys / 2)};
    const absl::Span<const float> gradients = gradients_;
    client::ClientCore::PushInfo info;
    info.first_step = info.step = step;
    info.samples = 1;
    if (rank == 0) {
      workers_[rank]->Push(now_, info, {&keys, 1}, {&gradients, 1});
    } else {
      workers_[rank]->PreparePush(0, {&distinct, 1}, &push_);
      for (float* const gradient : push_.at(0)) std::fill_n(gradient, kDim, 1.0f);
      workers_[rank]->Push(now_, info, &push_);
    }
    Deliver();
  }
  void Deliver() {
    for (bool more = true; more;) {
      more = false;
      for (auto& worker : workers_) {
        more = more || !worker->out().empty();
        for (const Outgoing& out : worker->out()) {
          shards_[out.to.index]->OnFrame(now_, *DecodeFrame(out.frame), &effects_);
        }
        worker->out().clear();
      }
      more = more || !effects_.out.empty();
      for (const Outgoing& out : effects_.out) {
        workers_[out.to.index]->OnFrame(now_, *DecodeFrame(out.frame));
      }
      effects_.Clear();
    }
    for (auto& worker : workers_) {
      for (const client::ClientCore::Completion& completion : worker->completions()) {
        done_ += completion.status.ok();
      }
      worker->completions().clear();
    }
  }

  HeapBufferSource buffers_;
  const job::ResolvedJob plan_;
  const std::shared_ptr<const RangeMap> map_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<std::unique_ptr<client::ClientCore>> workers_;
  std::vector<std::unique_ptr<server::ShardCore>> shards_;
  server::ShardEffects effects_;
  std::vector<uint64_t> keys_, distinct_;
  std::vector<float> rows_;
  client::PulledRows rows_in_place_;
  client::ClientCore::PreparedPush push_;
  const std::vector<float> gradients_;
  size_t done_ = 0;
};

class PushPullAllocTest : public testing::TestWithParam<const char*> {};

TEST_P(PushPullAllocTest, StepsAllocateNothing) {
  Group group(GetParam());
  int64_t step = 0;
  // A histogram grows when a value of another size comes, as at the switch of SYNC_SWITCH.
  while (step < 40) group.Step(step++);
  const int64_t before = allocations;
  const size_t done = group.done();
  while (step < 140) group.Step(step++);
  EXPECT_EQ(allocations - before, 0);
  EXPECT_EQ(group.done() - done, 400u);  // each step two reads and two pushes
  EXPECT_EQ(group.rows_cached() > 0, absl::StrContains(GetParam(), "ESSP"));
}

INSTANTIATE_TEST_SUITE_P(
    Policies, PushPullAllocTest,
    testing::Values("kind: BSP", "kind: SSP bound: 2", "kind: ESSP bound: 2", "kind: ASP",
                    "kind: FIXED_DELAY delay: 3", "kind: K_BATCH_ASYNC batches: 3",
                    "kind: GBA batches: 3 token_gap: 0", "kind: DC_ASGD compensation: 0.1",
                    "kind: DC_ASGD compensation: 0.1 mean_square_decay: 0.9", "kind: RINGLEADER",
                    "kind: DSSP bound: 2 upper_bound: 4", "kind: SYNC_SWITCH switch_step: 20"));

}  // namespace
}  // namespace tandem
