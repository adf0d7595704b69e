// A shard, frame by frame: what it admits, holds, refuses, answers and moves; and that no frame,
// however hostile, crashes it or makes it grow.
#include "server/shard_core.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "base/memory_full.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job_budget.h"
#include "server/rows/row_copies.h"
#include "tests/sanitized.h"
#include "tests/test_seed.h"
#include "tests/unit/server/core_fixture.h"
#include "tests/unit/server/limited_child.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr EndpointId kServer0 = {Role::kServer, 0, 0};
constexpr EndpointId kServer1 = {Role::kServer, 1, 0};

class ShardCoreTest : public ::testing::Test {
 protected:
  void Start(const std::string& policy, int workers = 2, const std::string& more = "") {
    plan_ = CorePlan(policy, workers, /*servers=*/2, more);
    map_ = CoreView(plan_, 1);
    shard_ = NewShard(kServer0);
    shard_->OnView(now_, map_, &effects_);
    keys_ = KeysIn(*map_, plan_, 0, 3);
  }
  std::unique_ptr<server::ShardCore> NewShard(EndpointId id,
                                              server::MemoryBudget* budget = nullptr) {
    auto shard = server::ShardCore::New(plan_, id, 99, buffers_,
                                        std::make_unique<server::ArrivalOrder>(), budget);
    EXPECT_TRUE(shard.ok()) << shard.status();
    return *std::move(shard);
  }

  FrameHeader Header(FrameKind kind, int rank, int64_t step) {
    FrameHeader h;
    h.kind = kind;
    h.sender = EndpointId::Worker(rank);
    h.view = 1;
    h.incarnation = 7 + static_cast<uint64_t>(rank);
    h.request = ++request_;
    h.first_step = h.step = step;
    return h;
  }
  // A push of the same gradient for each element of the first key of range 0; n = 1.
  ParsedFrame Push(int rank, int64_t step, float gradient, int64_t version = 0) {
    FrameHeader h = Header(FrameKind::kPush, rank, step);
    h.samples = 1;
    return Data(h, 0, {keys_[0]}, {gradient, gradient}, version);
  }
  ParsedFrame Data(const FrameHeader& h, uint32_t range, const std::vector<uint64_t>& keys,
                   const std::vector<float>& values, int64_t version = 0) {
    SliceEntry e;
    e.range = range;
    e.rows = static_cast<uint32_t>(keys.size());
    e.version = version;
    if (!values.empty()) e.row_floats = static_cast<uint32_t>(values.size() / keys.size());
    return Decoded(EncodeDataFrame(buffers_, h, {&e, 1}, BufferOf(buffers_, keys),
                                   BufferOf(buffers_, values)));
  }
  ParsedFrame Pull(int rank, int64_t step, uint8_t flags = 0) {
    FrameHeader h = Header(FrameKind::kPull, rank, step);
    h.flags = flags;
    return Data(h, 0, {keys_[0]}, {});
  }
  // What the shard sends because of the frame.
  std::vector<ParsedFrame> Give(const ParsedFrame& frame) {
    effects_.Clear();
    shard_->OnFrame(now_, frame, &effects_);
    return Sent();
  }
  std::vector<ParsedFrame> Sent() {
    std::vector<ParsedFrame> frames;
    for (const Outgoing& out : effects_.out) frames.push_back(Decoded(out.frame));
    return frames;
  }
  static std::vector<float> Values(const ParsedFrame& frame) {
    const absl::Span<const float> values = frame.values().As<float>();
    return {values.begin(), values.end()};
  }
  std::vector<float> Row() {
    const std::vector<ParsedFrame> answer = Give(Pull(0, 0, kFlagEvaluate));
    EXPECT_EQ(answer.size(), 1u);
    return Values(answer[0]);
  }

  job::ResolvedJob plan_;
  HeapBufferSource buffers_;
  absl::Time now_ = absl::UnixEpoch();
  std::shared_ptr<const RangeMap> map_;
  std::unique_ptr<server::ShardCore> shard_;
  server::ShardEffects effects_;
  std::vector<uint64_t> keys_;
  uint64_t request_ = 0;
};

// Pairs of many workers would need too much memory, and too long reports.
TEST(WaitLogTest, ManyWorkersHaveTwoNumbersEach) {
  const auto at = [](double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); };
  for (const bool in_pairs : {true, false}) {
    server::WaitLog log(3, in_pairs);
    log.Add(at(4), at(1), /*rank=*/0, /*freed_by=*/2);
    log.Add(at(5), at(2), /*rank=*/0, /*freed_by=*/1);  // one second is counted already
    log.Add(at(5), at(3), /*rank=*/1, /*freed_by=*/2);
    ASSERT_EQ(log.in_pairs(), in_pairs);
    if (in_pairs) {
      EXPECT_THAT(log.Row(0), ElementsAre(0, 1, 3));
      EXPECT_THAT(log.Row(2), ElementsAre());
    } else {
      EXPECT_THAT(log.waited(), ElementsAre(4, 2, 0));
      EXPECT_THAT(log.awaited(), ElementsAre(0, 1, 5));
    }
  }
}

TEST_F(ShardCoreTest, BspFoldsWhenTheLastHasComeAndThenAnswersReads) {
  Start("kind: BSP");
  EXPECT_EQ(Give(Push(1, 0, 2.0f)).size(), 1u);  // acknowledged: held
  EXPECT_GT(shard_->ranges().held_bytes(), 0u);
  EXPECT_TRUE(Give(Pull(1, 1)).empty());  // parked
  const std::vector<ParsedFrame> sent = Give(Push(0, 0, 4.0f));
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[0].header.kind, FrameKind::kAck);
  EXPECT_EQ(sent[0].entry_count, 0u);  // nothing refused
  EXPECT_EQ(sent[1].header.kind, FrameKind::kRows);
  EXPECT_EQ(sent[1].Entry(0).version, 1);
  EXPECT_EQ(sent[1].header.samples, 2u);
  EXPECT_THAT(Values(sent[1]), ElementsAre(-2.0f, -2.0f));  // 1 - (4 + 2) / 2
  EXPECT_EQ(shard_->ranges().held_bytes(), 0u);
}

// A program with another job file that asks in a loop, with frames of many entries.
TEST_F(ShardCoreTest, RefusedFramesDoNotFillTheLog) {
  Start("kind: BSP");
  FrameHeader h = Header(FrameKind::kPull, 0, 0);
  h.group = 77;
  const std::vector<SliceEntry> entries(10'000);
  const ParsedFrame frame = Decoded(EncodeDataFrame(buffers_, h, entries, Buffer(), Buffer()));
  size_t lines = 0, bytes = 0;
  for (int i = 0; i < 1000; ++i) {
    EXPECT_TRUE(Give(frame).empty());
    lines += effects_.log.size();
    for (const std::string& line : effects_.log) bytes += line.size();
  }
  EXPECT_EQ(lines, 101u);
  EXPECT_LT(bytes, 100'000u);
}

// 1/workers of each update, beside the mean over its own samples; none of it in a fold.
TEST_F(ShardCoreTest, AsyncScaleIsPartOfEveryUpdateThatIsAppliedByItself) {
  for (const std::string policy : {"kind: ASP", "kind: SSP bound: 9"}) {
    Start(policy + " async_scale: INVERSE_WORKERS", /*workers=*/4);
    Give(Push(0, 0, 2.0f));
    EXPECT_THAT(Row(), ElementsAre(0.5f, 0.5f)) << policy;  // 1 - 2 / 4
    FrameHeader h = Header(FrameKind::kPush, 3, 0);
    h.samples = 2;
    Give(Data(h, 0, {keys_[0]}, {4.0f, 12.0f}));
    EXPECT_THAT(Row(), ElementsAre(0.0f, -1.0f)) << policy;  // less 4 / 2 / 4 and 12 / 2 / 4
  }
}

// To who keeps them, when the slowest worker has come a step further.
TEST_F(ShardCoreTest, RowsThatAreKeptAreSentAnewWhenTheyHaveChanged) {
  Start("kind: ESSP bound: 3");
  const auto nothing = [&](int rank, int64_t step) {
    return Data(Header(FrameKind::kPush, rank, step), 0, {}, {});
  };
  EXPECT_EQ(Give(Pull(0, 0, kFlagKeep)).size(), 1u);
  EXPECT_EQ(Give(Pull(1, 0)).size(), 1u);
  EXPECT_EQ(shard_->ranges().Owned()[0]->store().size(), 0) << "the kept row is absent here";
  EXPECT_EQ(Give(Push(1, 0, 2.0f)).size(), 1u) << "acknowledged, and no more";
  std::vector<ParsedFrame> sent = Give(nothing(0, 0));
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(effects_.out[1].to, EndpointId::Worker(0));
  EXPECT_EQ(sent[1].header.kind, FrameKind::kRefresh);
  EXPECT_EQ(sent[1].header.request, 1u);
  EXPECT_EQ(sent[1].header.step, 1);
  EXPECT_EQ(sent[1].header.samples, 1u);
  EXPECT_EQ(sent[1].Entry(0).rows, 1u);
  EXPECT_EQ(sent[1].Entry(0).version, 2);
  EXPECT_EQ(sent[1].Entry(0).clock, 1);
  EXPECT_EQ(sent[1].keys().As<uint64_t>()[0], keys_[0]);
  EXPECT_THAT(Values(sent[1]), ElementsAre(-1.0f, -1.0f));
  EXPECT_EQ(Give(nothing(0, 1)).size(), 1u);
  sent = Give(nothing(1, 1));
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].header.request, 2u);
  EXPECT_EQ(sent[1].Entry(0).rows, 0u) << "nothing has changed, and that is news";
  EXPECT_EQ(sent[1].Entry(0).clock, 2);
  EXPECT_EQ(shard_->Report().bytes().at("refresh"),
            2 * (kFrameHeaderBytes + kSliceEntryBytes) + 8 + 8);
}

// While worker 1 is out of data no clock grows, and what worker 0 keeps stays bounded all the same.
TEST_F(ShardCoreTest, RowsThatAreNotKeptAreToldWithoutARefresh) {
  Start("kind: ESSP bound: 3 cache_rows: 64");  // of all ranges
  FrameHeader end = Header(FrameKind::kPush, 1, 0);
  end.flags = kFlagEndOfEpoch;
  Give(Data(end, 0, {}, {}));
  const std::vector<uint64_t> keys = KeysIn(*map_, plan_, 0, 400);
  size_t told = 0, frames = 0;
  for (int64_t step = 0; step < 400; ++step) {
    FrameHeader h = Header(FrameKind::kPull, 0, step);
    h.flags = kFlagKeep;
    Give(Data(h, 0, {keys[static_cast<size_t>(step)]}, {}));
    for (const ParsedFrame& frame : Give(Data(Header(FrameKind::kPush, 0, step), 0, {}, {}))) {
      if (frame.header.kind != FrameKind::kRefresh || frame.header.flags == 0) continue;
      EXPECT_EQ(frame.header.flags, kFlagMore);
      EXPECT_EQ(frame.Entry(0).rows, 0u) << "of those that are kept nothing is said";
      ASSERT_EQ(frame.entry_count, 2u);
      told += frame.Entry(1).rows;
      ++frames;
    }
    EXPECT_LE(static_cast<size_t>(step) + 1 - told, 64u + 32u + 1u);
  }
  EXPECT_GT(frames, 2u);
}

// No frame is larger than it may be, and none is empty where there are others.
TEST_F(ShardCoreTest, ALargeRefreshIsSeveralFrames) {
  constexpr size_t kRows = kRefreshFrameBytes / (2 * sizeof(float));
  for (const size_t rows : {2 * kRows, 2 * kRows + 1}) {
    Start("kind: ESSP bound: 3");
    const std::vector<uint64_t> keys = KeysIn(*map_, plan_, 0, rows);
    FrameHeader h = Header(FrameKind::kPull, 0, 0);
    h.flags = kFlagKeep;
    EXPECT_EQ(Give(Data(h, 0, keys, {})).size(), 1u);
    h = Header(FrameKind::kPush, 1, 0);
    h.samples = 1;
    Give(Data(h, 0, keys, std::vector<float>(2 * rows, 3.0f)));
    const std::vector<ParsedFrame> sent = Give(Data(Header(FrameKind::kPush, 0, 0), 0, {}, {}));
    ASSERT_EQ(sent.size(), rows > 2 * kRows ? 4u : 3u);
    size_t told = 0;
    for (size_t i = 1; i < sent.size(); ++i) {
      EXPECT_EQ(sent[i].header.request, i);
      EXPECT_EQ(sent[i].header.flags, i + 1 < sent.size() ? kFlagMore : 0);
      told += sent[i].Entry(0).rows;
      EXPECT_EQ(Values(sent[i]).back(), -2.0f);
    }
    EXPECT_EQ(told, rows);
  }
}

// The step is divided by the ticks since the rows were read, if there is more than one.
TEST_F(ShardCoreTest, StalenessAwareTakesSmallerSteps) {
  Start("kind: STALENESS_AWARE", /*workers=*/4);
  for (int rank = 0; rank < 3; ++rank) Give(Push(rank, 0, 0.0f));
  Give(Push(3, 0, 6.0f, /*version=*/0));
  EXPECT_THAT(Row(), ElementsAre(-1.0f, -1.0f));  // 1 - 6 / 3
  Give(Push(3, 1, 1.0f, /*version=*/4));
  EXPECT_THAT(Row(), ElementsAre(-2.0f, -2.0f));  // fresh
}

// Two of three close a step. The third is dropped, told which step is open, and goes on there.
TEST_F(ShardCoreTest, BackupWorkersCloseWithoutTheLast) {
  Start("kind: BACKUP_WORKERS backups: 1", /*workers=*/3);
  for (int64_t step = 0; step < 2; ++step) {
    Give(Push(0, step, 3.0f, step));
    EXPECT_EQ(Give(Push(2, step, 1.0f, step))[0].entry_count, 0u);
  }
  EXPECT_THAT(Row(), ElementsAre(-3.0f, -3.0f));  // 1 - 2 * (3 + 1) / 2
  const std::vector<ParsedFrame> late = Give(Push(1, 0, 99.0f));
  ASSERT_EQ(late[0].entry_count, 1u);
  EXPECT_EQ(late[0].Entry(0).status, SliceStatus::kDropped);
  EXPECT_EQ(late[0].Entry(0).version, 2) << "the step that is open";
  EXPECT_THAT(Row(), ElementsAre(-3.0f, -3.0f));
  const std::vector<ParsedFrame> again = Give(Push(1, 0, 99.0f));
  ASSERT_EQ(again[0].entry_count, 1u) << "the first answer may have been lost";
  EXPECT_EQ(again[0].Entry(0).status, SliceStatus::kDropped);
  FrameHeader skip = Header(FrameKind::kPush, 1, 1);
  EXPECT_EQ(Give(Data(skip, 0, {}, {}))[0].entry_count, 0u) << "it brought nothing to drop";
  Give(Push(1, 2, 5.0f, 2));
  Give(Push(0, 2, 3.0f, 2));
  EXPECT_THAT(Row(), ElementsAre(-7.0f, -7.0f));  // less (3 + 5) / 2
  const server::UpdateStats stats = shard_->tables()[0]->stats.total;
  EXPECT_EQ(stats.arrived, 7u);
  EXPECT_EQ(stats.merged, 6u);
  EXPECT_EQ(stats.dropped, 1u);
  EXPECT_EQ(stats.version_staleness.max, 0) << "of those that were applied";
  EXPECT_EQ(shard_->ranges().held_bytes(), 0u);
}

// The budget is for what is held: a policy that holds nothing needs none.
TEST_F(ShardCoreTest, ASmallBudgetIsEnoughWhereNothingIsHeld) {
  Start("kind: ASP", 1, "limits { held_bytes_per_shard: 1 }");
  EXPECT_EQ(Give(Push(0, 0, 3.0f))[0].entry_count, 0u);
}

// An empty push over as many steps as there are numbers costs nothing.
TEST_F(ShardCoreTest, SkippingVeryManyStepsIsCheap) {
  Start("kind: BACKUP_WORKERS backups: 0", /*workers=*/1);
  FrameHeader h = Header(FrameKind::kPush, 0, int64_t{1} << 45);
  h.first_step = 0;
  EXPECT_EQ(Give(Data(h, 0, {}, {})).size(), 1u);
  EXPECT_EQ(shard_->ranges().Owned()[0]->progress().version, (int64_t{1} << 45) + 1);
  h.step = h.first_step = (int64_t{1} << 45) + 9000;
  h.request = ++request_;
  h.samples = 1;
  EXPECT_TRUE(Give(Data(h, 0, {keys_[0]}, {1, 1})).empty()) << "early: steps before it are missing";
}

// When an update was admitted is stamped by its owner, and stays so wherever it is applied.
TEST_F(ShardCoreTest, TheTimeOfAdmissionMovesWithTheUpdate) {
  Start("kind: BSP", 2, "staleness { record_updates: true }");
  auto other = NewShard(kServer1);
  server::ShardEffects other_effects;
  other->OnView(now_, map_, &other_effects);
  now_ += absl::Seconds(3);
  Give(Push(0, 0, 3.0f));
  now_ += absl::Seconds(4);
  const auto view2 = CoreView(plan_, 2, {{0, 1}});
  effects_.Clear();
  shard_->OnView(now_, view2, &effects_);
  other->OnView(now_, view2, &other_effects);
  other->OnFrame(now_, Sent()[0], &other_effects);
  shard_.swap(other);
  now_ += absl::Seconds(5);
  Give(Push(1, 0, 1.0f));
  ASSERT_EQ(effects_.records.size(), 2u);
  EXPECT_EQ(effects_.records[0].admitted_at, 3'000'000);
  EXPECT_EQ(effects_.records[1].admitted_at, 12'000'000);
  EXPECT_EQ(effects_.records[0].divided_by, 2u);
}

TEST_F(ShardCoreTest, ADuplicateIsAcknowledgedAndChangesNothing) {
  Start("kind: ASP");
  const ParsedFrame push = Push(0, 0, 1.0f);
  Give(push);
  EXPECT_EQ(Give(push).size(), 1u);
  EXPECT_THAT(Row(), ElementsAre(0.0f, 0.0f));
  const server::UpdateStats stats = shard_->tables()[0]->stats.total;
  EXPECT_EQ(stats.arrived, 1u);
  EXPECT_EQ(stats.applied, 1u);
}

TEST_F(ShardCoreTest, AnEarlyPushWaitsForTheOneBefore) {
  Start("kind: ASP");
  const ParsedFrame early = Push(0, 1, 1.0f);
  EXPECT_TRUE(Give(early).empty());
  EXPECT_TRUE(Give(early).empty());               // asked again: still one
  EXPECT_EQ(Give(Push(0, 0, 10.0f)).size(), 2u);  // both are acknowledged now
  EXPECT_THAT(Row(), ElementsAre(-10.0f, -10.0f));
}

// A push is sent again under its number with one slice more, while the first waits: what the new
// slice brings is seen by reads at once, although the frame as a whole goes on waiting.
TEST_F(ShardCoreTest, WhatAnEarlyPushBringsAgainIsServedAtOnce) {
  Start("kind: ASP");
  const uint32_t a = 0, b = 2;  // both of server 0
  const std::vector<uint64_t> b_keys = KeysIn(*map_, plan_, b, 1);
  FrameHeader first = Header(FrameKind::kPush, 0, 0);
  first.samples = 1;
  EXPECT_EQ(Give(Data(first, b, b_keys, {1, 1})).size(), 1u);
  FrameHeader early = Header(FrameKind::kPush, 0, 1);
  early.samples = 1;
  EXPECT_TRUE(Give(Data(early, a, {keys_[0]}, {1, 1})).empty());  // step 0 is still to come at a
  EXPECT_TRUE(Give(Data(Header(FrameKind::kPull, 0, 2), b, b_keys, {})).empty());

  std::vector<SliceEntry> entries(2);
  entries[0].range = a;
  entries[1].range = b;
  for (SliceEntry& e : entries) e.rows = 1, e.row_floats = 2;
  const std::vector<uint64_t> keys = {keys_[0], b_keys[0]};
  const std::vector<float> values = {1, 1, 1, 1};
  const std::vector<ParsedFrame> sent = Give(Decoded(EncodeDataFrame(
      buffers_, early, entries, BufferOf(buffers_, keys), BufferOf(buffers_, values))));
  ASSERT_EQ(sent.size(), 1u);
  EXPECT_EQ(sent[0].header.kind, FrameKind::kRows);
  EXPECT_THAT(Values(sent[0]), ElementsAre(-1.0f, -1.0f));
}

TEST_F(ShardCoreTest, AnEmptyPushOverSeveralStepsIsThatManyTicks) {
  Start("kind: SSP bound: 1");
  FrameHeader h = Header(FrameKind::kPush, 0, 4);
  h.first_step = 0;
  EXPECT_EQ(Give(Data(h, 0, {}, {})).size(), 1u);
  const std::vector<ParsedFrame> answer = Give(Pull(0, 0, kFlagEvaluate));
  EXPECT_EQ(answer[0].Entry(0).version, 5);
}

TEST_F(ShardCoreTest, ReadersAreToldWhomTheyWaitFor) {
  Start("kind: SSP bound: 1");
  for (int64_t step = 0; step < 2; ++step) Give(Push(0, step, 1.0f));
  EXPECT_TRUE(Give(Pull(0, 2)).empty());
  now_ += absl::Milliseconds(1500);
  effects_.Clear();
  shard_->OnTick(now_, &effects_);
  ASSERT_EQ(Sent().size(), 1u);
  EXPECT_EQ(Sent()[0].header.kind, FrameKind::kWaiting);
  EXPECT_EQ(Sent()[0].Entry(0).row_floats, 1u);  // worker 1 ...
  EXPECT_EQ(Sent()[0].Entry(0).version, 0);      // ... at step 0
  EXPECT_THAT(shard_->Waiting(now_).text, HasSubstr("worker 0 waits for worker 1 at step 0"));
  EXPECT_EQ(shard_->Waiting(now_).waits_for, EndpointId::Worker(1));
  const std::vector<ParsedFrame> sent = Give(Push(1, 0, 1.0f));
  EXPECT_EQ(sent.back().header.kind, FrameKind::kRows);
  EXPECT_EQ(shard_->Waiting(now_).text, "");
}

// Two reads of worker 0 lie side by side. Worker 1 frees the first; the second waits for worker 1
// and for its own worker, who comes last.
TEST_F(ShardCoreTest, WaitsAreCountedForWhoeverEndsThem) {
  Start("kind: SSP bound: 1");
  for (int64_t step = 0; step < 2; ++step) Give(Push(0, step, 1.0f));
  EXPECT_TRUE(Give(Pull(0, 2)).empty());
  now_ += absl::Seconds(1);
  EXPECT_TRUE(Give(Pull(0, 3)).empty());
  now_ += absl::Seconds(2);
  Give(Push(1, 0, 1.0f));  // frees step 2
  now_ += absl::Seconds(4);
  Give(Push(1, 1, 1.0f));
  Give(Push(0, 2, 1.0f));  // frees step 3
  const ShardReport report = shard_->Report();
  ASSERT_EQ(report.waiting_size(), 2);
  EXPECT_THAT(report.waiting(0).seconds(), ::testing::ElementsAre(4, 3));
  EXPECT_THAT(report.waiting(1).seconds(), ::testing::IsEmpty());
}

// ---- the cost of a frame ----------------------------------------------------------------------

// The order of arrival. Counts the decisions about reads.
class CountingOrder final : public server::TurnOrder {
 public:
  explicit CountingOrder(int64_t* decisions) : decisions_(*decisions) {}

  bool DecidedElsewhere() const override { return false; }
  bool MayRead(const server::OrderedRange& range, const FrameHeader& read, uint32_t rows,
               int depth) const override {
    ++decisions_;
    return order_.MayRead(range, read, rows, depth);
  }
  const Frame* AnswerTo(const FrameHeader&) const override { return nullptr; }
  bool OnRead(const FrameHeader&, absl::Span<const SliceEntry>, const Frame&) override {
    return false;
  }
  absl::StatusOr<bool> MayAdmit(const server::OrderedRange&, const FrameHeader&,
                                server::HeldUpdate*) const override {
    return true;
  }
  void OnAdmitted(const server::OrderedRange&, const FrameHeader&) override {}
  int Awaited(const server::OrderedRange& range, const FrameHeader& waits) const override {
    return order_.Awaited(range, waits);
  }

 private:
  int64_t& decisions_;
  const server::ArrivalOrder order_;
};

// All workers pull their next step before the first of them pushes, so every read waits. A push
// may look at its own worker's read; only the push that ends the wait of all looks at all.
TEST_F(ShardCoreTest, TheDecisionsAboutReadsGrowAsTheFrames) {
  Random random(TestSeed());
  for (const std::string policy :
       {"kind: BSP", "kind: FIXED_DELAY delay: 1", "kind: SSP bound: 0", "kind: ASP",
        "kind: K_BATCH_ASYNC batches: 2", "kind: RINGLEADER", "kind: BACKUP_WORKERS backups: 1",
        "kind: SYNC_SWITCH switch_step: 2", "kind: ESSP bound: 0"}) {
    SCOPED_TRACE(policy);
    for (const int workers : {4, 200}) {
      Start(policy, workers);
      int64_t decisions = 0, frames = 0, answers = 0;
      shard_ = *server::ShardCore::New(plan_, kServer0, 99, buffers_,
                                       std::make_unique<CountingOrder>(&decisions));
      shard_->OnView(now_, map_, &effects_);
      std::vector<int> ranks(static_cast<size_t>(workers));
      for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = static_cast<int>(i);
      for (int64_t step = 0; step < 4; ++step) {
        for (const bool pushes : {false, true}) {
          for (size_t i = ranks.size(); i > 1; --i) {
            std::swap(ranks[i - 1], ranks[random.Uniform(i)]);
          }
          for (const int rank : ranks) {
            ++frames;
            for (const ParsedFrame& sent :
                 Give(pushes ? Push(rank, step, 1.0f) : Pull(rank, step + 1))) {
              answers += sent.header.kind == FrameKind::kRows ? 1 : 0;
            }
          }
        }
      }
      EXPECT_EQ(answers, 4 * workers);
      EXPECT_LE(decisions, 2 * frames) << workers << " workers";
    }
  }
}

// The reads wait at two ranges, and the last push changes both.
TEST_F(ShardCoreTest, ReadsThatOnePushAllowsAreAnsweredInTheOrderOfTheirArrival) {
  Start("kind: BSP", /*workers=*/3);
  const uint32_t a = 0, b = 2;  // both of server 0
  const std::vector<uint64_t> b_keys = KeysIn(*map_, plan_, b, 1);
  const auto push = [&](int rank) {
    FrameHeader h = Header(FrameKind::kPush, rank, 0);
    std::vector<SliceEntry> entries(2);
    entries[0].range = b;
    entries[1].range = a;
    return Give(Decoded(EncodeDataFrame(buffers_, h, entries, Buffer(), Buffer())));
  };
  push(0);
  push(2);
  std::vector<uint64_t> requests;
  for (const auto& [rank, range] :
       std::vector<std::pair<int, uint32_t>>{{2, b}, {0, a}, {1, a}, {0, b}, {1, b}, {2, a}}) {
    const FrameHeader h = Header(FrameKind::kPull, rank, 1);
    requests.push_back(h.request);
    EXPECT_TRUE(Give(Data(h, range, {range == a ? keys_[0] : b_keys[0]}, {})).empty());
  }
  const std::vector<ParsedFrame> sent = push(1);
  ASSERT_EQ(sent.size(), 1 + requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(sent[i + 1].header.kind, FrameKind::kRows);
    EXPECT_EQ(sent[i + 1].header.request, requests[i]) << i;
  }
}

// A push waits until the push of another worker switches the range, and is then admitted at once.
TEST_F(ShardCoreTest, APushThatWaitsForASwitchIsAdmittedWithIt) {
  Start("kind: SYNC_SWITCH switch_step: 1");
  EXPECT_EQ(Give(Push(0, 0, 2.0f)).size(), 1u);
  EXPECT_TRUE(Give(Push(0, 1, 2.0f)).empty());
  const std::vector<ParsedFrame> sent = Give(Push(1, 0, 4.0f));
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_EQ(sent[1].header.kind, FrameKind::kAck);
  EXPECT_EQ(sent[1].header.step, 1);
  EXPECT_THAT(Row(), ElementsAre(-4.0f, -4.0f));  // 1 - (2 + 4) / 2 - 2
}

// Two shards and the messages between them, under everything that changes a range.
class ShardSumsTest : public ShardCoreTest {
 protected:
  static constexpr int kWorkers = 3;

  void Begin(const std::string& policy) {
    Start(policy, kWorkers, "train { batch_size: 4 prefetch_steps: 1 }");
    other_ = NewShard(kServer1);
    other_->OnView(now_, map_, &effects_);
    effects_.Clear();
    view_ = 1;
    for (uint32_t range = 0; range < map_->ranges().size(); ++range) {
      keys_of_[range] = KeysIn(*map_, plan_, range, 3);
    }
  }
  server::ShardCore& shard(int index) { return index == 0 ? *shard_ : *other_; }

  // Passes messages between the shards on, now or later; answers to workers go nowhere.
  void Deliver(int from) {
    for (Outgoing& out : effects_.out) {
      if (out.to.role == Role::kServer) on_the_way_.emplace_back(1 - from, Decoded(out.frame));
    }
    effects_.Clear();
  }
  void DeliverOne() {
    if (on_the_way_.empty()) return;
    const auto [to, frame] = on_the_way_.front();
    on_the_way_.pop_front();
    shard(to).OnFrame(now_, frame, &effects_);
    Deliver(to);
  }
  void Settle() {
    while (!on_the_way_.empty()) DeliverOne();
  }

  void Move() {
    std::map<uint32_t, int> moved;
    for (uint32_t range = 0; range < map_->ranges().size(); ++range) {
      if (random_.Bernoulli(0.5)) moved[range] = static_cast<int>(random_.Uniform(2));
    }
    const auto view = CoreView(plan_, ++view_, moved);
    for (const int index : {0, 1}) {
      shard(index).OnView(now_, view, &effects_);
      Deliver(index);
      if (random_.Bernoulli(0.5)) DeliverOne();
    }
  }

  // A push of the next step or of a later one, or a pull, of some ranges.
  void Send(int index) {
    const int rank = static_cast<int>(random_.Uniform(kWorkers));
    const bool push = random_.Bernoulli(0.6);
    FrameHeader h = Header(push ? FrameKind::kPush : FrameKind::kPull, rank, 0);
    std::vector<SliceEntry> entries;
    std::vector<uint64_t> keys;
    size_t floats = 0;
    for (const server::Range* const range : shard(index).ranges().Owned()) {
      const policies::RangeProgress& progress = range->progress();
      const int64_t next = progress.workers[static_cast<size_t>(rank)].admitted;
      if (entries.empty()) h.step = next + static_cast<int64_t>(random_.Uniform(push ? 2 : 4));
      SliceEntry& e = entries.emplace_back();
      e.range = range->id();
      e.rows = static_cast<uint32_t>(random_.Uniform(3));
      e.version =
          static_cast<int64_t>(random_.Uniform(1 + static_cast<uint64_t>(progress.version)));
      if (push && e.rows > 0) e.row_floats = static_cast<uint32_t>(range->store().dim());
      for (uint32_t i = 0; i < e.rows; ++i) keys.push_back(keys_of_[e.range][i]);
      floats += size_t{e.rows} * e.row_floats;
      if (random_.Bernoulli(0.1)) break;
    }
    h.first_step = h.step;
    h.samples = push && !random_.Bernoulli(0.2) ? 1 : 0;
    if (push && random_.Bernoulli(0.05)) h.flags = kFlagEndOfEpoch;
    if (!push && random_.Bernoulli(0.5)) h.flags = kFlagKeep;
    shard(index).OnFrame(now_,
                         Decoded(EncodeDataFrame(buffers_, h, entries, BufferOf(buffers_, keys),
                                                 BufferOf(buffers_, std::vector<float>(floats)))),
                         &effects_);
    Deliver(index);
  }

  void Step() {
    now_ += absl::Milliseconds(1);
    const int index = static_cast<int>(random_.Uniform(2));
    const uint64_t what = random_.Uniform(1000);
    if (what < 10) {
      Move();
    } else if (what < 13) {
      Settle();
      for (const int each : {0, 1}) shard(each).ForgetWorker(static_cast<int>(what) % kWorkers);
    } else if (what < 16) {
      Settle();
      for (const int each : {0, 1}) shard(each).FinishDelayed(&effects_);
    } else if (what < 60) {
      DeliverOne();
    } else if (what < 70) {
      now_ += absl::Milliseconds(600);
      shard(index).OnTick(now_, &effects_);
      Deliver(index);
    } else {
      Send(index);
    }
  }

  void Compare(int index) {
    const server::ShardRanges& ranges = shard(index).ranges();
    size_t held_bytes = 0;
    // By group, and of one that does not exist.
    std::vector<int64_t> clocks(plan_.groups.size() + 1, policies::kInfiniteClock);
    for (const server::Range* const range : ranges.Owned()) {
      policies::RangeProgress plain = range->progress();
      ASSERT_NE(plain.clocks, nullptr);
      plain.clocks = nullptr;
      ASSERT_EQ(range->progress().MinClock(), plain.MinClock());
      ASSERT_EQ(range->progress().MinApplied(), plain.MinApplied());
      ASSERT_EQ(range->progress().MinAdmitted(), plain.MinAdmitted());
      ASSERT_EQ(range->progress().Slowest(), plain.Slowest());
      int64_t& clock = clocks[range->table().plan->group];
      clock = std::min(clock, plain.MinClock());
      held_bytes += range->held_bytes();
    }
    ASSERT_EQ(ranges.held_bytes(), held_bytes);
    for (uint32_t group = 0; group < clocks.size(); ++group) {
      ASSERT_EQ(ranges.MinClock(group), clocks[group]);
    }
    ASSERT_TRUE(shard(index).WaitingReadsMustWait());
    max_held_ = std::max(max_held_, held_bytes);
  }

  Random random_{TestSeed()};
  std::unique_ptr<server::ShardCore> other_;
  std::deque<std::pair<int, ParsedFrame>> on_the_way_;
  std::map<uint32_t, std::vector<uint64_t>> keys_of_;
  uint32_t view_ = 1;
  size_t max_held_ = 0;
};

TEST_F(ShardSumsTest, AreThoseOfALookAtEachRangeAndWorker) {
  for (const std::string policy :
       {"kind: BSP", "kind: FIXED_DELAY delay: 2", "kind: SSP bound: 2", "kind: ASP",
        "kind: K_BATCH_ASYNC batches: 3", "kind: GBA batches: 3 token_gap: 1", "kind: RINGLEADER",
        "kind: RINGMASTER max_delay: 2", "kind: RENNALA batches: 3",
        "kind: BACKUP_WORKERS backups: 1", "kind: SYNC_SWITCH switch_step: 20",
        "kind: DC_ASGD compensation: 0.1", "kind: DSSP bound: 1 upper_bound: 3",
        "kind: ESSP bound: 2 cache_rows: 8"}) {
    SCOPED_TRACE(policy);
    Begin(policy);
    max_held_ = 0;
    for (int i = 0; i < 4000 && !HasFatalFailure(); ++i) {
      Step();
      for (const int index : {0, 1}) Compare(index);
    }
    if (HasFatalFailure()) return;
    Settle();
    int64_t steps = 0;
    for (const int index : {0, 1}) {
      for (const server::Range* const range : shard(index).ranges().Owned()) {
        steps += range->progress().Admitted();
      }
    }
    EXPECT_GT(steps, 500) << "or the sums were not put to the test";
    const policies::Properties& properties = plan_.groups[0].properties;
    EXPECT_EQ(max_held_ > 0, properties.holds || properties.rows_as_read);
  }
}

TEST_F(ShardCoreTest, OnlyWhatItDoesNotOwnIsRefused) {
  Start("kind: ASP");
  FrameHeader h = Header(FrameKind::kPush, 0, 0);
  std::vector<SliceEntry> entries(2);
  entries[0].range = 0;
  entries[1].range = 1;  // of server 1
  const std::vector<ParsedFrame> sent =
      Give(Decoded(EncodeDataFrame(buffers_, h, entries, Buffer(), Buffer())));
  ASSERT_EQ(sent.size(), 1u);
  ASSERT_EQ(sent[0].entry_count, 1u);
  EXPECT_EQ(sent[0].Entry(0).range, 1u);
  EXPECT_EQ(sent[0].Entry(0).status, SliceStatus::kWrongView);
  EXPECT_EQ(shard_->ranges().Owned()[0]->progress().workers[0].admitted, 1);
}

TEST_F(ShardCoreTest, AnUpdateOverBudgetIsRefusedButItsDuplicateIsNot) {
  Start("kind: BSP");
  plan_.job.mutable_limits()->set_held_bytes_per_shard(
      31);  // of 16 each; such a job is not started
  const ParsedFrame first = Push(0, 0, 1.0f);
  EXPECT_EQ(Give(first)[0].entry_count, 0u);
  const std::vector<ParsedFrame> second = Give(Push(0, 1, 1.0f));
  ASSERT_EQ(second[0].entry_count, 1u);
  EXPECT_EQ(second[0].Entry(0).status, SliceStatus::kOverBudget);
  EXPECT_EQ(Give(first)[0].entry_count, 0u) << "a copy of what is held costs nothing";
}

// A job whose budget is exactly what HeldBytes says never meets it, and comes within one worker of
// it: one worker's pushes to this shard are late, and the others have come as far as they may.
TEST_F(ShardCoreTest, TheBudgetOfAJobIsWhatItsLargestPushesFill) {
  constexpr int kWorkers = 3, kBatch = 4, kFields = 26, kUnacknowledged = 2, kDelay = 2;
  plan_ = CorePlan("kind: FIXED_DELAY delay: 2", kWorkers, /*servers=*/1,
                   "train { batch_size: 4 max_inflight_pushes: 2 }");
  plan_.job.mutable_limits()->set_held_bytes_per_shard(job::HeldBytes(plan_));
  map_ = CoreView(plan_, 1);
  shard_ = NewShard(kServer0);
  shard_->OnView(now_, map_, &effects_);
  // All different ids, over both ranges; and the one block of dense parameters that this job has.
  std::map<uint32_t, std::vector<uint64_t>> keys;
  keys[0] = KeysIn(*map_, plan_, 0, 60);
  keys[1] = KeysIn(*map_, plan_, 1, kBatch * kFields - 60);
  keys[2] = keys[3] = {};
  keys[map_->Find(1, Position(plan_.tables[1].salt, 0))] = {0};
  size_t peak = 0, bytes = 0;
  const auto push = [&](int rank, int64_t step) {
    bytes = 0;
    for (const auto& [range, of_range] : keys) {
      FrameHeader h = Header(FrameKind::kPush, rank, step);
      h.samples = kBatch;
      const size_t dim = range < 2 ? 2 : job::kDenseBlockFloats;
      const ParsedFrame frame = Data(h, range, of_range, std::vector<float>(of_range.size() * dim));
      bytes += frame.keys().size() + frame.values().size();
      EXPECT_EQ(Give(frame)[0].entry_count, 0u) << "over budget at step " << step;
      peak = std::max(peak, shard_->ranges().held_bytes());
    }
  };
  for (int64_t step = 0; step < 10; ++step) {
    if (step > kUnacknowledged) push(2, step - kUnacknowledged - 1);
    for (int rank = 0; rank < 2; ++rank) push(rank, step);
  }
  const size_t open = 2 * (kUnacknowledged + 1), closed = kWorkers * kDelay;
  EXPECT_EQ(peak, (open + closed) * bytes);
  EXPECT_LE(peak, static_cast<size_t>(job::HeldBytes(plan_)));
  EXPECT_EQ(static_cast<size_t>(job::HeldBytes(plan_)) - peak, (kUnacknowledged + 1) * bytes);
}

TEST_F(ShardCoreTest, AssigningComesBeforeStepZeroOrNotAtAll) {
  Start("kind: ASP");
  FrameHeader h = Header(FrameKind::kPush, 0, 0);
  h.flags = kFlagAssign;
  const ParsedFrame assign = Data(h, 0, {keys_[0]}, {5.0f, 6.0f});
  Give(assign);
  EXPECT_THAT(Row(), ElementsAre(5.0f, 6.0f));
  Give(Push(0, 0, 1.0f));
  EXPECT_EQ(Give(assign).size(), 1u);  // a late copy: acknowledged, ignored
  EXPECT_THAT(Row(), ElementsAre(4.0f, 5.0f));
}

TEST_F(ShardCoreTest, APullCreatesNoRow) {
  Start("kind: ASP");
  for (const uint8_t flags : {uint8_t{0}, uint8_t{kFlagEvaluate}}) {
    const std::vector<ParsedFrame> answer = Give(Pull(0, 0, flags));
    ASSERT_EQ(answer.size(), 1u);
    EXPECT_THAT(Values(answer[0]), ElementsAre(1.0f, 1.0f));
    EXPECT_EQ(shard_->ranges().Owned()[0]->store().size(), 0);
  }
  Give(Push(1, 0, 2.0f));
  EXPECT_EQ(shard_->ranges().Owned()[0]->store().size(), 1);
  EXPECT_THAT(Row(), ElementsAre(-1.0f, -1.0f));
  Give(Pull(1, 1));
  const server::RowCounts& rows = shard_->tables()[0]->stats.rows;
  EXPECT_EQ(rows.looked_up, 2u) << "evaluations are not counted";
  EXPECT_EQ(rows.found, 1u);
  EXPECT_FALSE(shard_->Report().table(0).has_row_counts()) << "the table has no rule";
}

// A table whose rows come and go.
class ShardRulesTest : public ShardCoreTest {
 protected:
  void StartWithAge(int64_t versions, int threshold) {
    plan_ = CorePlan("kind: ASP", /*workers=*/2, /*servers=*/2);
    plan_.tables[0].admission.set_kind(Admission::COUNT);
    plan_.tables[0].admission.set_threshold(threshold);
    plan_.tables[0].eviction.set_kind(Eviction::AGE);
    plan_.tables[0].eviction.set_versions(versions);
    map_ = CoreView(plan_, 1);
    shard_ = NewShard(kServer0);
    shard_->OnView(now_, map_, &effects_);
    keys_ = KeysIn(*map_, plan_, 0, 3);
  }
  void PushKeys(int64_t step, const std::vector<uint64_t>& keys) {
    FrameHeader h = Header(FrameKind::kPush, 0, step);
    h.samples = 1;
    Give(Data(h, 0, keys, std::vector<float>(2 * keys.size(), 1.0f)));
  }
};

// The report of a table with rules has the counts of its ranges, and their candidates.
TEST_F(ShardRulesTest, ReportsWhichRowsCameAndWent) {
  StartWithAge(/*versions=*/2, /*threshold=*/2);
  PushKeys(0, {keys_[0], keys_[1]});
  Give(Pull(0, 1));
  RowReport counts = shard_->Report().table(0).row_counts();
  EXPECT_EQ(counts.candidates(), 2u);
  EXPECT_EQ(counts.refused(), 2u);
  PushKeys(1, {keys_[0]});
  Give(Pull(1, 0));
  const ShardReport report = shard_->Report();
  counts = report.table(0).row_counts();
  EXPECT_EQ(report.table(0).rows(), 1u);
  EXPECT_EQ(counts.candidates(), 1u);
  EXPECT_EQ(counts.admitted(), 1u);
  EXPECT_EQ(counts.looked_up(), 2u);
  EXPECT_EQ(counts.found(), 1u);
  EXPECT_FALSE(report.table(1).has_row_counts()) << "the dense table has no rule";
  for (int64_t step = 2; step < 6; ++step) PushKeys(step, {keys_[2]});
  for (int64_t step = 6; step < 8; ++step) PushKeys(step, {keys_[0], keys_[2]});
  counts = shard_->Report().table(0).row_counts();
  EXPECT_EQ(counts.admitted(), 3u);
  EXPECT_EQ(counts.evicted(), 1u);
  EXPECT_EQ(counts.sampled(), 1u);
  EXPECT_EQ(counts.came_back(), 1u);
  EXPECT_EQ(counts.to_fresh_rows(), 1u) << "all pushes say that they were read at version 0";
}

// A row that is too old does not move. No shard erases it later, so it counts as evicted then.
TEST_F(ShardRulesTest, AMoveEvictsRowsThatAreTooOld) {
  StartWithAge(/*versions=*/10, /*threshold=*/1);
  for (int64_t step = 0; step < 15; ++step) {
    std::vector<uint64_t> keys = {keys_[0]};
    if (step == 2) keys.push_back(keys_[1]);
    PushKeys(step, keys);
  }
  ShardReport report = shard_->Report();
  EXPECT_EQ(report.table(0).rows(), 2u) << "the sweep has not been there since version 13";
  EXPECT_EQ(report.table(0).row_counts().evicted(), 0u);
  shard_->OnView(now_, CoreView(plan_, 2, {{0, 1}}), &effects_);  // to server 1
  report = shard_->Report();
  EXPECT_EQ(report.table(0).rows(), 0u);
  EXPECT_EQ(report.table(0).row_counts().admitted(), 2u);
  EXPECT_EQ(report.table(0).row_counts().evicted(), 1u);
}

// All ranges of a shard share the memory of one arena. Rows that have left are not in it.
TEST_F(ShardCoreTest, RangesTakeMemoryFromTheArenaOfTheShard) {
  Start("kind: ASP");
  EXPECT_EQ(shard_->arena().used(), 0u);
  Give(Push(0, 0, 1.0f));
  // A page for the rows, and one for the index, with room for the indices of seven other ranges.
  EXPECT_EQ(shard_->arena().resident(), 2 * server::PageArena::kPage);
  shard_->OnView(now_, CoreView(plan_, 2, {{0, 1}}), &effects_);  // to server 1
  EXPECT_EQ(shard_->arena().resident(), 0u);
  EXPECT_EQ(shard_->arena().reserved(), 0u);
}

// When the system refuses memory, the shard does not abort, and acknowledges nothing more.
TEST_F(ShardCoreTest, WithoutMemoryForARowTheShardFails) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  Start("kind: ASP");
  constexpr size_t kPushed = 5000;
  const std::vector<uint64_t> keys = KeysIn(*map_, plan_, 0, 100 * kPushed);
  const std::vector<float> gradients(2 * kPushed, 1.0f);
  const int code = RunLimited(size_t{8} << 20, [&] {
    for (int64_t step = 0; effects_.failure.ok(); ++step) {
      if (step == 100) return 1;
      const auto first = keys.begin() + static_cast<std::ptrdiff_t>(kPushed) * step;
      FrameHeader h = Header(FrameKind::kPush, 0, step);
      h.samples = 1;
      Give(Data(h, 0, {first, first + static_cast<std::ptrdiff_t>(kPushed)}, gradients));
      if (HasFailure()) return 2;
    }
    const std::string why(effects_.failure.message());
    if (!absl::IsResourceExhausted(effects_.failure)) return 3;
    if (why.find("table a: no memory for another row of range 0") != 0) return 4;
    if (why.find("Cannot allocate memory; hint: raise ulimit -v, now ") == std::string::npos) {
      return 5;
    }
    return shard_->ranges().Owned()[0]->store().size() > static_cast<int64_t>(kPushed) ? 0 : 6;
  });
  EXPECT_EQ(code, 0);
}

// ---- the memory budget ----

class ShardBudgetTest : public ShardCoreTest {
 protected:
  ~ShardBudgetTest() override { shard_ = nullptr; }  // before the budget

  static constexpr size_t kLimit = size_t{32} << 20, kMargin = size_t{12} << 20;
  static constexpr size_t kSlack = size_t{4} << 20;
  static constexpr size_t kPushed = 500, kDim = 64;
  static constexpr int64_t kPushes = 300;

  // One worker; each push has ids that no other has.
  void StartIn(Eviction::Kind eviction) {
    Start("kind: ASP", 1);
    plan_.tables[0].eviction.set_kind(eviction);
    plan_.tables[0].dim = static_cast<int>(kDim);
    shard_ = NewShard(kServer0, &budget_);
    shard_->OnView(now_, map_, &effects_);
    keys_ = KeysIn(*map_, plan_, 0, kPushes * kPushed);
  }
  void PushNew(int64_t step) { PushPart(step, step); }
  // The ids of push number `part`.
  void PushPart(int64_t step, int64_t part) {
    const auto first = keys_.begin() + static_cast<std::ptrdiff_t>(kPushed) * part;
    FrameHeader h = Header(FrameKind::kPush, 0, step);
    h.samples = 1;
    Give(Data(h, 0, {first, first + static_cast<std::ptrdiff_t>(kPushed)},
              std::vector<float>(kDim * kPushed, 1.0f)));
  }

  // The process has had so much resident memory for a second.
  void MeasureLong(size_t bytes) {
    for (size_t i = 0; i < server::MemoryBudget::kLooks; ++i) budget_.OnResident(bytes);
  }

  server::MemoryBudget budget_{kLimit, /*process=*/0, kMargin, kSlack};
};

// Its rows make room for each other, so they never need the margin, and the job goes on.
TEST_F(ShardBudgetTest, RowsThatGiveWayStayBelowTheMargin) {
  StartIn(Eviction::AT_BUDGET);
  for (int64_t step = 0; step < kPushes; ++step) {
    PushNew(step);
    ASSERT_EQ(effects_.failure, absl::OkStatus()) << step;
    ASSERT_EQ(effects_.memory_full, "") << step;
    ASSERT_FALSE(budget_.nearly_full()) << step;
  }
  const ShardReport report = shard_->Report();
  EXPECT_EQ(report.memory_bytes(), budget_.used());
  EXPECT_EQ(report.memory_limit(), kLimit);
  const RowReport& counts = report.table(0).row_counts();
  EXPECT_GT(counts.evicted(), kPushed);
  EXPECT_EQ(counts.admitted() - counts.evicted(), report.table(0).rows());
  shard_ = nullptr;
  EXPECT_EQ(budget_.used(), 0u);
}

// Other rows take the margin. The shard says so once, with the numbers, and goes on until the
// limit.
TEST_F(ShardBudgetTest, OtherRowsEndTheJobBeforeTheLimit) {
  StartIn(Eviction::NONE);
  int64_t step = 0;
  for (; effects_.memory_full.empty(); ++step) {
    ASSERT_LT(step, kPushes);
    ASSERT_FALSE(budget_.nearly_full());
    PushNew(step);
    ASSERT_EQ(effects_.failure, absl::OkStatus());
  }
  EXPECT_THAT(effects_.memory_full, HasSubstr(absl::StrCat("table a: ", step * kPushed, " rows")));
  EXPECT_THAT(effects_.memory_full, HasSubstr(" of 33554432 bytes, and the rest is for a last"));
  const int64_t told_at = step;
  for (; effects_.failure.ok(); ++step) {
    ASSERT_LT(step, kPushes);
    PushNew(step);
    EXPECT_EQ(effects_.memory_full, "") << "said once";
    EXPECT_LE(budget_.used(), kLimit);
  }
  EXPECT_GT(step, told_at + 10) << "the margin has room for many steps";
  EXPECT_TRUE(IsMemoryFull(effects_.failure)) << effects_.failure;
  EXPECT_THAT(std::string(effects_.failure.message()),
              HasSubstr("of 33554432 bytes; hint: a larger cluster.memory_per_server"));
}

// A process that needs more for something else is no reason to end a job whose rows stay.
TEST_F(ShardBudgetTest, RowsThatStayEndNoJob) {
  StartIn(Eviction::NONE);
  PushNew(0);
  MeasureLong(kLimit - kMargin / 2);
  ASSERT_TRUE(budget_.nearly_full());
  PushPart(1, 0);
  EXPECT_EQ(effects_.memory_full, "");
  for (int64_t step = 2; step < 50 && effects_.memory_full.empty(); ++step) PushNew(step);
  EXPECT_THAT(effects_.memory_full, HasSubstr("table a"));
}

// A burst of frames takes memory for a moment, while rows grow below the margin.
TEST_F(ShardBudgetTest, ABurstOfTheProcessEndsNoJob) {
  StartIn(Eviction::NONE);
  for (size_t look = 0; look < 3 * server::MemoryBudget::kLooks; ++look) {
    const bool burst = look % server::MemoryBudget::kLooks != 7;
    budget_.OnResident(burst ? kLimit - kMargin * 3 / 4 : 0);  // an index may grow meanwhile
    EXPECT_EQ(budget_.nearly_full_now(), burst);
    PushNew(static_cast<int64_t>(look));
    ASSERT_EQ(effects_.memory_full, "") << look;
    ASSERT_EQ(effects_.failure, absl::OkStatus()) << look;
  }
}

// Copies of a checkpoint take memory for a while, and are no reason to end a job that has room for
// its rows.
TEST_F(ShardBudgetTest, CopiesEndNoJob) {
  StartIn(Eviction::NONE);
  PushNew(0);
  server::CopyBlocks blocks(&budget_);
  std::vector<std::unique_ptr<std::byte[]>> copies;
  while (budget_.room() >= kMargin) copies.push_back(blocks.Take());
  for (int64_t step = 1; step < 10; ++step) {
    PushNew(step);
    EXPECT_EQ(effects_.failure, absl::OkStatus());
    EXPECT_EQ(effects_.memory_full, "");
  }
  blocks.Close();
  for (auto& copy : copies) blocks.Give(std::move(copy));
}

// A run that resumes in the margin would end at its first new row, unless its rows never grow.
TEST_F(ShardBudgetTest, LoadedRowsHaveNotGrown) {
  StartIn(Eviction::NONE);
  for (const bool frozen : {false, true}) {
    for (const bool full : {false, true}) {
      SCOPED_TRACE(absl::StrCat("frozen ", frozen, ", full ", full));
      shard_ = nullptr;
      plan_.tables[0].frozen = frozen;
      shard_ = NewShard(kServer0, &budget_);
      shard_->OnView(now_, map_, &effects_);
      server::RowTable& store = shard_->ranges().Owned()[0]->store();
      for (int64_t part = 0; !budget_.nearly_full() && (full || part < 10); ++part) {
        const auto first = keys_.begin() + static_cast<std::ptrdiff_t>(kPushed) * part;
        ASSERT_EQ(store.Assign({&*first, kPushed}, std::vector<float>(kDim * kPushed, 1.0f), {}),
                  absl::OkStatus());
      }
      MeasureLong(full ? 0 : kLimit);  // files that other shards still read
      ASSERT_TRUE(budget_.nearly_full());
      const absl::Status loaded = shard_->OnLoaded();
      EXPECT_EQ(IsMemoryFull(loaded), full && !frozen) << loaded;
      EXPECT_EQ(loaded.ok(), !full || frozen);
      Give(Pull(0, 0, kFlagEvaluate));
      EXPECT_EQ(effects_.memory_full, "");
      MeasureLong(0);
    }
  }
}

// Held updates of a checkpoint count as soon as they are loaded, before the next frame comes.
TEST_F(ShardBudgetTest, LoadedUpdatesCount) {
  Start("kind: BSP");
  shard_ = NewShard(kServer0, &budget_);
  shard_->OnView(now_, map_, &effects_);
  server::HeldUpdate update;
  update.samples = 1;
  update.keys = BufferOf(buffers_, std::vector<uint64_t>{keys_[0]});
  update.values = BufferOf(buffers_, std::vector<float>{1, 1});
  ASSERT_EQ(shard_->ranges().Owned()[0]->Admit(now_, /*incarnation=*/7, /*first=*/0,
                                               std::move(update), /*finished=*/false),
            server::Range::Admission::kAdmitted);
  ASSERT_GT(shard_->ranges().held_bytes(), 0u);
  ASSERT_EQ(shard_->arena().resident(), 0u);
  EXPECT_EQ(shard_->OnLoaded(), absl::OkStatus());
  EXPECT_EQ(budget_.used(), shard_->ranges().held_bytes());
}

// Such a process belongs to an earlier attempt, and was stopped for a while.
TEST_F(ShardCoreTest, FramesOfAnotherProcessOfTheRankChangeNothing) {
  Start("kind: ASP");
  View view = CoreViewMessage(plan_, 1);
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    view.add_worker()->set_incarnation(Header(FrameKind::kPush, rank, 0).incarnation);
  }
  map_ = *RangeMap::FromView(view, plan_.sizes());
  shard_ = NewShard(kServer0);
  shard_->OnView(now_, map_, &effects_);
  for (const FrameKind kind : {FrameKind::kPush, FrameKind::kPull}) {
    FrameHeader other = Header(kind, 0, 0);
    other.incarnation = 1234;
    const bool push = kind == FrameKind::kPush;
    EXPECT_TRUE(
        Give(Data(other, 0, {keys_[0]}, push ? std::vector<float>{1, 1} : std::vector<float>()))
            .empty());
    EXPECT_THAT(effects_.log.back(), HasSubstr("another process is worker 0"));
  }
  EXPECT_EQ(Give(Push(0, 0, 1.0f))[0].entry_count, 0u) << "the worker itself is welcome";
  EXPECT_THAT(Row(), ElementsAre(0.0f, 0.0f));
}

// A worker dies. Its steps stay, its late frames change nothing, and another process of the rank
// pushes the steps that a range lacks.
TEST_F(ShardCoreTest, AnotherProcessTakesThePlaceOfADeadWorker) {
  Start("kind: SSP bound: 1");
  const auto with_worker = [this](uint32_t number, uint64_t worker_zero) {
    View view = CoreViewMessage(plan_, number);
    view.add_worker()->set_incarnation(worker_zero);
    view.add_worker()->set_incarnation(8);
    return *RangeMap::FromView(view, plan_.sizes());
  };
  shard_ = NewShard(kServer0);
  shard_->OnView(now_, with_worker(1, 7), &effects_);
  // Step 0 is in ranges 0 and 2, step 1 in range 0 alone. Step 3 comes early. A read waits.
  FrameHeader first = Header(FrameKind::kPush, 0, 0);
  first.samples = 1;
  const std::vector<uint64_t> other = KeysIn(*map_, plan_, 2, 1);
  Give(Data(first, 0, {keys_[0]}, {1, 1}));
  Give(Data(first, 2, {other[0]}, {1, 1}));
  Give(Push(0, 1, 1.0f));
  EXPECT_TRUE(Give(Push(0, 3, 1.0f)).empty());
  EXPECT_TRUE(Give(Pull(0, 4)).empty());

  const ShardReport report = shard_->ForgetWorker(0);
  EXPECT_EQ(report.forgotten().worker(), 0);
  EXPECT_EQ(report.forgotten().min_step(), 0) << "the ranges of the table \"dense\" have nothing";
  EXPECT_EQ(report.forgotten().max_step(), 2);
  EXPECT_TRUE(Give(Push(0, 2, 1.0f)).empty());
  EXPECT_TRUE(Give(Pull(0, 0)).empty());
  effects_.Clear();
  shard_->OnTick(now_ + absl::Seconds(2), &effects_);
  EXPECT_TRUE(effects_.out.empty()) << "nobody is told of its waits";
  const ShardReport again = shard_->ForgetWorker(0);
  EXPECT_EQ(again.forgotten().max_step(), 2) << "the early step was not admitted";

  shard_->OnView(now_, with_worker(2, 70), &effects_);
  EXPECT_TRUE(Give(Push(0, 2, 1.0f)).empty()) << "of the dead process";
  const auto push = [&](int64_t step, uint32_t range, uint64_t key) {
    FrameHeader h = Header(FrameKind::kPush, 0, step);
    h.incarnation = 70;
    h.samples = 1;
    return Give(Data(h, range, {key}, {1, 1}));
  };
  EXPECT_EQ(push(1, 0, keys_[0])[0].entry_count, 0u) << "a duplicate";
  EXPECT_EQ(push(1, 2, other[0])[0].entry_count, 0u) << "the step that this range lacks";
  EXPECT_EQ(push(2, 0, keys_[0])[0].entry_count, 0u);
  EXPECT_THAT(Values(Give(Pull(1, 0, kFlagEvaluate))[0]), ElementsAre(-2.0f, -2.0f))
      << "three steps, each once";
  const server::UpdateStats stats = shard_->tables()[0]->stats.total;
  EXPECT_EQ(stats.arrived, 5u);
  EXPECT_EQ(stats.applied, 5u);
}

// While a job waits for room for a checkpoint, programs may read rows but not write them.
TEST_F(ShardCoreTest, WritesToAStoreAreRefusedWithTheReason) {
  Start("kind: ASP", 1, "table { name: 'cache' dim: 2 kind: KEY_VALUE }");
  uint32_t range = 0;
  for (const server::Range* const owned : shard_->ranges().Owned()) {
    if (owned->table().plan->store) range = owned->id();
  }
  const uint64_t key = KeysIn(*map_, plan_, range, 1)[0];
  const auto store = [&](StoreAction action, int64_t number, const std::vector<float>& values) {
    FrameHeader h = Header(FrameKind::kStore, 0, 0);
    h.flags = static_cast<uint8_t>(action);
    const std::vector<ParsedFrame> answers = Give(Data(h, range, {key}, values, number));
    EXPECT_EQ(answers.size(), 1u) << absl::StrJoin(effects_.log, "\n");
    return answers.at(0);
  };
  EXPECT_EQ(store(StoreAction::kAssign, 1, {1, 2}).Entry(0).status, SliceStatus::kOk);
  shard_->RefuseWrites("a full disk");
  EXPECT_EQ(store(StoreAction::kAssign, 1, {1, 2}).Entry(0).status, SliceStatus::kOk)
      << "applied before: only its answer was lost";
  const ParsedFrame refused = store(StoreAction::kAssign, 2, {3, 4});
  EXPECT_EQ(refused.Entry(0).status, SliceStatus::kOverBudget);
  const absl::Span<const uint64_t> text = refused.keys().As<uint64_t>();
  EXPECT_THAT(std::string(reinterpret_cast<const char*>(text.data()), 8 * text.size()),
              HasSubstr("a full disk"));
  EXPECT_THAT(Values(store(StoreAction::kRead, 0, {})), ElementsAre(1, 2));
  shard_->RefuseWrites("");
  EXPECT_EQ(store(StoreAction::kAssign, 3, {5, 6}).Entry(0).status, SliceStatus::kOk);
  EXPECT_THAT(Values(store(StoreAction::kRead, 0, {})), ElementsAre(5, 6));
}

TEST_F(ShardCoreTest, AgainstTheProtocol) {
  Start("kind: BSP");
  Give(Push(0, 0, 1.0f));
  FrameHeader other = Header(FrameKind::kPush, 0, 1);
  other.incarnation = 1234;  // another process says it is worker 0
  EXPECT_EQ(Give(Data(other, 0, {}, {}))[0].Entry(0).status, SliceStatus::kRefused);
  FrameHeader future = Header(FrameKind::kPush, 0, 1);
  EXPECT_EQ(Give(Data(future, 0, {keys_[0]}, {1, 1}, /*version=*/77))[0].Entry(0).status,
            SliceStatus::kRefused)
      << "read a version that does not exist";
  FrameHeader stranger = Header(FrameKind::kPush, 9, 0);  // no such worker: no answer
  EXPECT_TRUE(Give(Data(stranger, 0, {}, {})).empty());
  FrameHeader wide = Header(FrameKind::kPush, 1, 0);
  EXPECT_TRUE(Give(Data(wide, 0, {keys_[0]}, {1, 1, 1})).empty());
  EXPECT_THAT(effects_.log.back(), HasSubstr("rows of 3 floats"));
}

// ---- moves ------------------------------------------------------------------------------------

TEST_F(ShardCoreTest, ARangeMovesWithEverythingItHolds) {
  Start("kind: BSP");
  auto other = NewShard(kServer1);
  server::ShardEffects other_effects;
  other->OnView(now_, map_, &other_effects);
  Give(Push(0, 0, 3.0f));
  effects_.Clear();
  const auto view2 = CoreView(plan_, 2, {{0, 1}});
  shard_->OnView(now_, view2, &effects_);
  EXPECT_EQ(shard_->ranges().Find(0), nullptr);
  EXPECT_FALSE(shard_->ranges().Settled());
  ASSERT_EQ(Sent().size(), 1u);
  const ParsedFrame data = Sent()[0];
  other->OnFrame(now_, data, &other_effects);  // before it knows the view
  EXPECT_EQ(other->ranges().Find(0), nullptr);
  other->OnView(now_, view2, &other_effects);
  EXPECT_NE(other->ranges().Find(0), nullptr);
  const ParsedFrame done = Decoded(other_effects.out.back().frame);
  Give(done);
  EXPECT_TRUE(shard_->ranges().Settled());
  // The held half of step 0 has come along, and so has its exactly-once memory.
  shard_.swap(other);
  Give(Push(0, 0, 3.0f));
  Give(Push(1, 0, 1.0f));
  EXPECT_THAT(Row(), ElementsAre(-1.0f, -1.0f));
}

TEST_F(ShardCoreTest, AMoveIsRepeatedUntilConfirmedAndInstalledOnce) {
  Start("kind: ASP");
  auto other = NewShard(kServer1);
  server::ShardEffects other_effects;
  other->OnView(now_, map_, &other_effects);
  const auto view2 = CoreView(plan_, 2, {{0, 1}});
  effects_.Clear();
  shard_->OnView(now_, view2, &effects_);
  const ParsedFrame first = Sent()[0];
  other->OnView(now_, view2, &other_effects);
  other->OnFrame(now_, first, &other_effects);
  // Worker 0 goes on at the new owner; the confirmation is lost and the range comes again.
  shard_.swap(other);
  Give(Push(0, 0, 1.0f));
  shard_.swap(other);
  now_ += absl::Seconds(1);
  effects_.Clear();
  shard_->OnTick(now_, &effects_);
  ASSERT_EQ(Sent().size(), 1u);
  other_effects.Clear();
  other->OnFrame(now_, Sent()[0], &other_effects);
  EXPECT_EQ(other_effects.out.size(), 1u);  // confirmed again ...
  shard_.swap(other);
  EXPECT_THAT(Row(), ElementsAre(0.0f, 0.0f));  // ... and not installed again
}

TEST_F(ShardCoreTest, DelayedStepsAreFinishedInRangesThatArriveLater) {
  Start("kind: FIXED_DELAY delay: 2", /*workers=*/1);
  auto other = NewShard(kServer1);
  server::ShardEffects other_effects;
  other->OnView(now_, map_, &other_effects);
  Give(Push(0, 0, 3.0f));
  EXPECT_THAT(Row(), ElementsAre(1.0f, 1.0f));
  const auto view2 = CoreView(plan_, 2, {{0, 1}});
  effects_.Clear();
  shard_->OnView(now_, view2, &effects_);
  const ParsedFrame data = Sent()[0];
  other->OnView(now_, view2, &other_effects);
  other->FinishDelayed(&other_effects);  // while the range is on its way
  other->OnFrame(now_, data, &other_effects);
  shard_.swap(other);
  EXPECT_THAT(Row(), ElementsAre(-2.0f, -2.0f));
}

TEST_F(ShardCoreTest, RangesThatDoNotExistAreIgnored) {
  Start("kind: ASP");
  for (const uint32_t range : {0u, 1u, 77u, ~0u}) {
    Control control;
    control.mutable_range_data()->set_range(range);
    control.mutable_range_data()->set_view(1000);
    FrameHeader h;
    h.sender = kServer1;
    Give(Decoded(EncodeControlFrame(buffers_, h, control, BufferOf<uint8_t>(buffers_, {1, 2, 3}))));
    EXPECT_TRUE(effects_.out.empty());
    EXPECT_FALSE(effects_.log.empty());
  }
}

// ---- hostile frames ---------------------------------------------------------------------------

// A number that breaks things: small, huge, negative, next to a power of two.
int64_t Nasty(Random* random) {
  switch (random->Uniform(6)) {
    case 0:
      return static_cast<int64_t>(random->Uniform(4));
    case 1:
      return std::numeric_limits<int64_t>::max() - static_cast<int64_t>(random->Uniform(2));
    case 2:
      return std::numeric_limits<int64_t>::min() + static_cast<int64_t>(random->Uniform(2));
    case 3:
      return (int64_t{1} << random->Uniform(63)) - static_cast<int64_t>(random->Uniform(2));
    case 4:
      return -1;
    default:
      return static_cast<int64_t>(random->Next64());
  }
}

TEST_F(ShardCoreTest, HostileFramesNeitherCrashItNorMakeItGrow) {
  const char* const policies[] = {"kind: BSP", "kind: ASP", "kind: SSP bound: 1",
                                  "kind: FIXED_DELAY delay: 1"};
  Random random(TestSeed());
  for (const char* policy : policies) {
    Start(policy);
    for (int i = 0; i < 20000; ++i) {
      FrameHeader h = Header(random.Bernoulli(0.5) ? FrameKind::kPush : FrameKind::kPull,
                             static_cast<int>(random.Uniform(4)), 0);
      if (random.Bernoulli(0.2))
        h.sender = EndpointId::Unpack(static_cast<uint32_t>(random.Next64()));
      h.flags = random.Bernoulli(0.5) ? 0 : static_cast<uint8_t>(random.Next64());
      h.step = random.Bernoulli(0.5) ? Nasty(&random) : static_cast<int64_t>(random.Uniform(8));
      h.first_step = random.Bernoulli(0.5) ? h.step : Nasty(&random);
      h.group = random.Bernoulli(0.9) ? 0 : static_cast<uint32_t>(Nasty(&random));
      h.samples = static_cast<uint64_t>(Nasty(&random));
      h.clock_gap = static_cast<int32_t>(Nasty(&random));
      std::vector<SliceEntry> entries(random.Uniform(4));
      std::vector<uint64_t> keys;
      std::vector<float> values;
      for (SliceEntry& e : entries) {
        e.range = random.Bernoulli(0.8) ? static_cast<uint32_t>(random.Uniform(8))
                                        : static_cast<uint32_t>(Nasty(&random));
        e.version = random.Bernoulli(0.5) ? 0 : Nasty(&random);
        e.rows = static_cast<uint32_t>(random.Uniform(3));
        const bool with_values = h.kind == FrameKind::kPush && e.rows > 0;
        e.row_floats = with_values ? 2 + static_cast<uint32_t>(random.Uniform(2)) : 0;
        for (uint32_t k = 0; k < e.rows; ++k) keys.push_back(random.Uniform(16));
        values.resize(values.size() + size_t{e.rows} * e.row_floats, 1.0f);
      }
      absl::StatusOr<ParsedFrame> frame = DecodeFrame(EncodeDataFrame(
          buffers_, h, entries, BufferOf(buffers_, keys), BufferOf(buffers_, values)));
      if (!frame.ok()) continue;
      effects_.Clear();
      shard_->OnFrame(now_, *frame, &effects_);
      ASSERT_LE(effects_.out.size(), 10000u);
      if (i % 100 == 0) {
        now_ += absl::Seconds(1);
        effects_.Clear();
        shard_->OnTick(now_, &effects_);
        ASSERT_LE(effects_.out.size(), 2u * 4096);  // what may be parked, by two workers
      }
    }
    EXPECT_LE(shard_->ranges().held_bytes(), size_t{1} << 20);
    shard_->Report();
  }
}

}  // namespace
}  // namespace tandem
