// The client, frame by frame: routing, slices that travel again, deadlines that name the one at
// fault.
#include "client/client_core.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "client/store_core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "policies/policy.h"
#include "tests/test_seed.h"
#include "tests/unit/server/core_fixture.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ClientCoreTest : public ::testing::Test {
 protected:
  ClientCoreTest() : ClientCoreTest("kind: SSP bound: 3") {}
  explicit ClientCoreTest(const std::string& policy)
      : plan_(CorePlan(policy, 2, 2)), map_(CoreView(plan_, 1)) {
    client_ = std::make_unique<client::ClientCore>(plan_, EndpointId::Worker(0), 7, buffers_,
                                                   client::ClientCore::Options());
    client_->OnView(now_, map_);
    for (uint32_t range = 0; range < 4; ++range) {  // two keys in each range of table "a"
      const std::vector<uint64_t> some = KeysIn(*map_, plan_, range, 2);
      keys_.insert(keys_.end(), some.begin(), some.end());
    }
    rows_.resize(keys_.size() * 2);
  }

  uint64_t Pull(int64_t step) {
    const client::TableKeys keys{0, keys_};
    const absl::Span<float> rows = absl::MakeSpan(rows_);
    return client_->Pull(now_, 0, step, {&keys, 1}, {&rows, 1}, 0);
  }
  uint64_t Push(int64_t step, const std::vector<float>& values) {
    const client::TableKeys keys{0, keys_};
    const absl::Span<const float> span = values;
    client::ClientCore::PushInfo info;
    info.first_step = info.step = step;
    info.samples = 1;
    return client_->Push(now_, info, {&keys, 1}, {&span, 1});
  }
  // What the client has sent since the last call.
  std::vector<Outgoing> Take() {
    std::vector<Outgoing> out;
    out.swap(client_->out());
    return out;
  }
  FrameHeader AnswerTo(const Outgoing& asked, FrameKind kind, uint32_t view = 1) {
    FrameHeader h = Decoded(asked.frame).header;
    h.kind = kind;
    h.sender = asked.to;
    h.view = view;
    h.first_step = 0;
    return h;
  }
  // Rows in which element j of key k is k + j / 4; slices of `refuse` are WRONG_VIEW.
  void AnswerRows(const Outgoing& asked, uint32_t refuse = ~0u, uint32_t view = 1,
                  int64_t version = 5) {
    const ParsedFrame frame = Decoded(asked.frame);
    const absl::Span<const uint64_t> keys = frame.keys().As<uint64_t>();
    std::vector<SliceEntry> entries;
    std::vector<float> values;
    size_t at = 0;
    for (uint32_t i = 0; i < frame.entry_count; ++i) {
      SliceEntry e = frame.Entry(i);
      const size_t rows = e.rows;
      e.version = version;
      e.row_floats = 2;
      if (e.range == refuse) {
        e.status = SliceStatus::kWrongView;
        e.rows = e.row_floats = 0;
      } else {
        for (size_t k = at; k < at + rows; ++k) {
          values.push_back(static_cast<float>(keys[k]));
          values.push_back(static_cast<float>(keys[k]) + 0.25f);
        }
      }
      at += rows;
      entries.push_back(e);
    }
    client_->OnFrame(
        now_, Decoded(EncodeDataFrame(buffers_, AnswerTo(asked, FrameKind::kRows, view), entries,
                                      Buffer(), BufferOf(buffers_, values))));
  }
  void AnswerAck(const Outgoing& asked, const std::vector<SliceEntry>& refused = {},
                 uint32_t view = 1, int64_t min_clock = 0) {
    FrameHeader h = AnswerTo(asked, FrameKind::kAck, view);
    h.first_step = min_clock;
    client_->OnFrame(now_, Decoded(EncodeDataFrame(buffers_, h, refused, Buffer(), Buffer())));
  }
  void ExpectRows() {
    for (size_t k = 0; k < keys_.size(); ++k) {
      EXPECT_EQ(rows_[2 * k], static_cast<float>(keys_[k])) << k;
      EXPECT_EQ(rows_[2 * k + 1], static_cast<float>(keys_[k]) + 0.25f) << k;
    }
  }

  job::ResolvedJob plan_;
  HeapBufferSource buffers_;
  absl::Time now_ = absl::UnixEpoch();
  std::shared_ptr<const RangeMap> map_;
  std::unique_ptr<client::ClientCore> client_;
  std::vector<uint64_t> keys_;
  std::vector<float> rows_;
};

// The key whose position is `x`: Mix64 backwards.
uint64_t KeyAt(uint64_t salt, uint64_t x) {
  x ^= x >> 31 ^ x >> 62;
  x *= 0x319642b2d24d8ec3u;
  x ^= x >> 27 ^ x >> 54;
  x *= 0x96de1b173f119089u;
  x ^= x >> 30 ^ x >> 60;
  return x - salt - 0x9e3779b97f4a7c15u;
}

// A table dealt over the workers and one with a copy at each, in one push: each range gets its
// rows.
TEST(TablesOnWorkersTest, APushHasTheRowsOfEachRange) {
  const absl::StatusOr<Job> job = job::ParseJob(
      "name: 'both' seed: 3 cluster { workers: 2 servers: 0 ranges_per_shard: 2 } "
      "data { format: CRITEO train: 'none' } policy { kind: BSP } "
      "table { name: 'a' dim: 2 placement: SHARDED field: 'c1' expected_rows: 16 "
      "optimizer { kind: SGD learning_rate: 1 } } "
      "table { name: 'b' dim: 2 placement: REPLICATED expected_rows: 16 "
      "optimizer { kind: SGD learning_rate: 1 } } "
      "dense { optimizer { kind: ADAM learning_rate: 1 } } model { mlp { hidden: [4] } } "
      "train { batch_size: 4 }",
      "core", {});
  ASSERT_TRUE(job.ok()) << job.status();
  const absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*job);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->tables[0].group, plan->tables[1].group);
  View view;
  view.set_number(1);
  const std::vector<uint64_t> begins = job::EqualRanges(4);
  for (uint32_t id = 0; id < 12; ++id) {  // of a; of copy 0 of b; of copy 1
    RangeInfo* const info = view.add_range();
    info->set_table(id < 4 ? 0 : 1);
    info->set_begin(begins[id % 4]);
    info->set_end(id % 4 < 3 ? begins[id % 4 + 1] : 0);
    info->set_server(id < 4 ? id % 2 : id / 4 - 1);
  }
  const auto map = RangeMap::FromView(view, plan->sizes());
  ASSERT_TRUE(map.ok()) << map.status();
  for (const int rank : {0, 1}) {
    HeapBufferSource buffers;
    client::ClientCore client(*plan, EndpointId::Worker(rank), 7, buffers, {});
    client.OnView(absl::UnixEpoch(), *map);
    std::vector<uint64_t> keys;
    std::vector<float> values;
    for (uint64_t key = 0; key < 40; ++key) {
      keys.push_back(key);
      values.insert(values.end(), {static_cast<float>(key), 0.5f});
    }
    const std::vector<client::TableKeys> tables = {{0, keys}, {1, keys}};
    const std::vector<absl::Span<const float>> gradients = {values, values};
    client::ClientCore::PushInfo info;
    info.samples = 1;
    client.Push(absl::UnixEpoch(), info, tables, gradients);
    std::set<std::pair<uint32_t, uint64_t>> sent;
    for (const Outgoing& out : client.out()) {
      const ParsedFrame frame = Decoded(out.frame);
      const absl::Span<const uint64_t> frame_keys = frame.keys().As<uint64_t>();
      const absl::Span<const float> frame_values = frame.values().As<float>();
      size_t at = 0;
      for (uint32_t i = 0; i < frame.entry_count; ++i) {
        const uint32_t id = frame.Entry(i).range;
        const RangeMap::Range& range = (*map)->range(id);
        EXPECT_EQ(range.owner, out.to);
        for (const size_t end = at + frame.Entry(i).rows; at < end; ++at) {
          const uint64_t key = frame_keys[at];
          const uint32_t found =
              (*map)->Find(range.table, Position(plan->tables[range.table].salt, key));
          EXPECT_EQ(found + 4 * range.copy, id) << "rank " << rank << " key " << key;
          EXPECT_EQ(frame_values[2 * at], static_cast<float>(key));
          EXPECT_TRUE(sent.emplace(id, key).second);
        }
      }
    }
    EXPECT_EQ(sent.size(), 3 * keys.size());  // once to a, once to each copy of b
  }
}

// All keys at once find the ranges that each finds alone, wherever ranges are cut.
TEST_F(ClientCoreTest, FindAllAgreesWithFind) {
  const uint64_t salt = plan_.tables[0].salt;
  Random random(TestSeed());
  for (const auto& [ranges, equal] : {std::pair(8, true), {7, true}, {7, false}}) {
    View view;
    std::vector<uint64_t> begins = job::EqualRanges(ranges);
    if (!equal) begins[3] -= begins[1] / 3;
    for (const job::TablePlan& table : plan_.tables) {
      for (size_t r = 0; r < begins.size(); ++r) {
        RangeInfo* const info = view.add_range();
        info->set_table(table.id);
        info->set_begin(begins[r]);
        info->set_end(r + 1 < begins.size() ? begins[r + 1] : 0);
      }
    }
    const auto map = RangeMap::FromView(view, plan_.sizes()).value();
    std::vector<uint64_t> keys(5000);
    std::vector<uint32_t> counts(map->ranges().size()), want(counts.size());
    for (uint64_t& key : keys) key = Mix64(random.Uniform(1 << 30));
    for (size_t r = 0; r < begins.size(); ++r) {  // the first and the last position of each
      keys[2 * r] = KeyAt(salt, begins[r]);
      keys[2 * r + 1] = KeyAt(salt, begins[r] - 1);
      ASSERT_EQ(Position(salt, keys[2 * r]), begins[r]);
    }
    std::vector<uint32_t> ids(keys.size()), ranks(keys.size());
    map->FindAll(1, 0, salt, keys, ids.data(), ranks.data(), counts.data());
    for (size_t i = 0; i < keys.size(); ++i) {
      ASSERT_EQ(ids[i], map->Find(1, Position(salt, keys[i]))) << i;
      ASSERT_EQ(ranks[i], want[ids[i]]) << i;
      ++want[ids[i]];
    }
    EXPECT_EQ(counts, want);
  }
}

TEST_F(ClientCoreTest, OneFrameAShardAndEveryRowInItsPlace) {
  const uint64_t request = Pull(0);
  const std::vector<Outgoing> asked = Take();
  ASSERT_EQ(asked.size(), 2u);
  for (const Outgoing& out : asked) {
    const ParsedFrame frame = Decoded(out.frame);
    for (uint32_t i = 0; i < frame.entry_count; ++i) {
      EXPECT_EQ(map_->range(frame.Entry(i).range).owner, out.to);
    }
  }
  AnswerRows(asked[1]);
  EXPECT_TRUE(client_->completions().empty());
  AnswerRows(asked[0]);
  ASSERT_EQ(client_->completions().size(), 1u);
  EXPECT_EQ(client_->completions()[0].request, request);
  EXPECT_TRUE(client_->completions()[0].status.ok());
  ExpectRows();
  AnswerRows(asked[0]);  // twice: ignored
  EXPECT_EQ(client_->completions().size(), 1u);
}

// Rows stay in the frames that brought them, in whatever order these come, until they are cleared.
TEST_F(ClientCoreTest, RowsInPlaceAreWhereTheyArrived) {
  std::reverse(keys_.begin() + 2, keys_.end());
  const client::TableKeys keys{0, keys_};
  client::PulledRows rows;
  client::PulledRows* const to = &rows;
  client_->PullInPlace(now_, 0, 0, {&keys, 1}, {&to, 1}, 0);
  const std::vector<Outgoing> asked = Take();
  ASSERT_EQ(asked.size(), 2u);
  AnswerRows(asked[1]);
  AnswerRows(asked[0], /*refuse=*/0);
  EXPECT_TRUE(client_->completions().empty());
  client_->OnTick(now_ += absl::Seconds(1));
  for (const Outgoing& out : Take()) AnswerRows(out);  // the range that was refused, alone
  ASSERT_EQ(client_->completions().size(), 1u);
  EXPECT_TRUE(client_->completions()[0].status.ok());
  ASSERT_EQ(rows.at().size(), keys_.size());
  for (size_t k = 0; k < keys_.size(); ++k) {
    EXPECT_EQ(rows.at()[k][0], static_cast<float>(keys_[k])) << k;
    EXPECT_EQ(rows.at()[k][1], static_cast<float>(keys_[k]) + 0.25f) << k;
  }
  client_.reset();  // the frames live on
  EXPECT_EQ(rows.at()[1][0], static_cast<float>(keys_[1]));
  rows.Clear();
  EXPECT_TRUE(rows.at().empty());
}

// A read that fails leaves nothing to be read: neither its own rows nor those of the one before.
TEST_F(ClientCoreTest, RowsInPlaceOfAReadThatFailsAreNone) {
  const client::TableKeys keys{0, keys_};
  client::PulledRows rows;
  client::PulledRows* const to = &rows;
  client_->PullInPlace(now_, 0, 0, {&keys, 1}, {&to, 1}, 0);
  for (const Outgoing& out : Take()) AnswerRows(out);
  EXPECT_EQ(rows.at().size(), keys_.size());
  client_->PullInPlace(now_, 0, 1, {&keys, 1}, {&to, 1}, 0);
  EXPECT_TRUE(rows.at().empty()) << "while it is under way";
  AnswerRows(Take()[0]);  // and the other shard says nothing
  client_->OnTick(now_ += absl::Minutes(1));
  ASSERT_EQ(client_->completions().size(), 2u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(client_->completions()[1].status));
  EXPECT_TRUE(rows.at().empty());
}

class KeptRowsTest : public ClientCoreTest {
 protected:
  KeptRowsTest() : ClientCoreTest("kind: ESSP bound: 3") {}
  void PullInPlace(int64_t step) {
    const client::TableKeys keys{0, keys_};
    client::PulledRows* const to = &kept_;
    client_->PullInPlace(now_, 0, step, {&keys, 1}, {&to, 1}, 0);
  }
  void PushTo(const std::vector<uint64_t>& some, int64_t step) {
    const client::TableKeys keys{0, some};
    const std::vector<float> values(2 * some.size(), 1.0f);
    const absl::Span<const float> span = values;
    client::ClientCore::PushInfo info;
    info.first_step = info.step = step;
    info.samples = 1;
    client_->Push(now_, info, {&keys, 1}, {&span, 1});
  }
  void ExpectKept() {
    ASSERT_EQ(kept_.at().size(), keys_.size());
    for (size_t k = 0; k < keys_.size(); ++k) {
      EXPECT_EQ(kept_.at()[k][0], static_cast<float>(keys_[k])) << k;
    }
  }
  client::PulledRows kept_;
};

// What is kept is not asked for; what the worker has pushed itself is, and both find their places.
// A push says for each range the version of the oldest row that was read there.
TEST_F(KeptRowsTest, OnlyWhatIsMissingIsAskedFor) {
  PullInPlace(0);
  for (const Outgoing& out : Take()) {
    EXPECT_EQ(Decoded(out.frame).header.flags, kFlagKeep);
    AnswerRows(out);
  }
  ExpectKept();
  PullInPlace(1);
  EXPECT_TRUE(Take().empty());
  ASSERT_EQ(client_->completions().size(), 2u);
  EXPECT_TRUE(client_->completions()[1].status.ok());
  ExpectKept();
  PushTo({keys_[0], keys_[4], keys_[5]}, 1);  // one of two keys of range 0, both of range 2
  Take();
  PullInPlace(2);
  const std::vector<Outgoing> asked = Take();
  size_t missing = 0;
  for (const Outgoing& out : asked) {
    missing += Decoded(out.frame).keys().size() / sizeof(uint64_t);
    AnswerRows(out, ~0u, 1, /*version=*/8);
  }
  EXPECT_EQ(missing, 3u);
  ExpectKept();
  PushTo(keys_, 2);
  for (const Outgoing& out : Take()) {
    const ParsedFrame push = Decoded(out.frame);
    for (uint32_t i = 0; i < push.entry_count; ++i) {
      if (push.Entry(i).rows == 0) continue;
      EXPECT_EQ(push.Entry(i).version, push.Entry(i).range == 2 ? 8 : 5) << push.Entry(i).range;
    }
  }
  EXPECT_EQ(client_->counters().rows_asked, 3 * keys_.size());
  EXPECT_EQ(client_->counters().rows_cached, 2 * keys_.size() - 3);
}

// Gradients are written into the very bytes that travel; a range that moves in between is pushed to
// its new owner, and one that was never pushed leaves no trace.
TEST_F(ClientCoreTest, GradientsInPlaceLeaveFromWhereTheyWereWritten) {
  const client::TableKeys keys{0, keys_};
  client::ClientCore::PreparedPush push, dropped;
  client_->PreparePush(0, {&keys, 1}, &dropped);
  client_->PreparePush(0, {&keys, 1}, &push);
  EXPECT_TRUE(push.ready());
  EXPECT_EQ(client_->requests_in_flight(), 0u);
  client_->OnTick(now_ + absl::Minutes(1));
  EXPECT_TRUE(Take().empty()) << "nothing is sent before it is written";
  std::set<const float*> places;
  for (size_t k = 0; k < keys_.size(); ++k) {
    push.at(0)[k][0] = static_cast<float>(keys_[k]);
    push.at(0)[k][1] = -1;
    places.insert(push.at(0)[k]);
  }
  client_->OnView(now_, CoreView(plan_, 2, {{0, 1}}));
  client::ClientCore::PushInfo info;
  info.samples = 1;
  client_->Push(now_, info, &push);
  EXPECT_FALSE(push.ready());
  size_t seen = 0, in_place = 0;
  for (const Outgoing& out : Take()) {
    const ParsedFrame frame = Decoded(out.frame);
    const absl::Span<const uint64_t> sent = frame.keys().As<uint64_t>();
    const absl::Span<const float> rows = frame.values().As<float>();
    for (uint32_t i = 0; i < frame.entry_count; ++i) {
      if (frame.Entry(i).range == 0) {
        EXPECT_EQ(out.to, EndpointId::Shard(1, 0));
      }
    }
    for (size_t k = 0; k < sent.size(); ++k) {
      EXPECT_EQ(rows[2 * k], static_cast<float>(sent[k]));
      EXPECT_EQ(rows[2 * k + 1], -1);
      in_place += places.count(&rows[2 * k]);
      ++seen;
    }
    AnswerAck(out, {}, 2);
  }
  EXPECT_EQ(seen, keys_.size());
  EXPECT_GE(in_place, 2u);  // all but those that share a frame with the range that moved
  EXPECT_EQ(client_->completions().size(), 1u);
}

TEST_F(ClientCoreTest, APushReachesEveryRangeAndSaysWhatItsGradientsRead) {
  Pull(4);
  for (const Outgoing& out : Take()) AnswerRows(out, ~0u, 1, /*version=*/17);
  Push(4, std::vector<float>(keys_.size() * 2, 1.0f));
  std::set<uint32_t> ranges;
  uint64_t updates = 0;
  for (const Outgoing& out : Take()) {
    const ParsedFrame frame = Decoded(out.frame);
    for (uint32_t i = 0; i < frame.entry_count; ++i) {
      ranges.insert(frame.Entry(i).range);
      updates += frame.Entry(i).rows > 0;
      EXPECT_EQ(frame.Entry(i).version, frame.Entry(i).rows > 0 ? 17 : 0);
    }
  }
  EXPECT_EQ(ranges.size(), map_->ranges().size());  // also those of the dense table, empty
  EXPECT_EQ(client_->updates_sent()[0], updates);
}

// The bug: slices of rows with slots began where rows without would have.
TEST_F(ClientCoreTest, RowsWithSlotsGoToTheirShardsWhole) {
  const size_t width = 7;
  std::vector<float> values;
  for (const uint64_t key : keys_) {
    for (size_t j = 0; j < width; ++j) values.push_back(static_cast<float>(10 * key + j));
  }
  const client::TableKeys keys{0, keys_};
  const absl::Span<const float> span = values;
  client::ClientCore::PushInfo info;
  info.flags = kFlagAssign | kFlagWithSlots;
  client_->Push(now_, info, {&keys, 1}, {&span, 1});
  size_t seen = 0;
  for (const Outgoing& out : Take()) {
    const ParsedFrame frame = Decoded(out.frame);
    const absl::Span<const uint64_t> sent = frame.keys().As<uint64_t>();
    const absl::Span<const float> rows = frame.values().As<float>();
    ASSERT_EQ(rows.size(), sent.size() * width);
    for (size_t k = 0; k < sent.size(); ++k) {
      EXPECT_EQ(rows[k * width], static_cast<float>(10 * sent[k]));
      EXPECT_EQ(rows[k * width + 6], static_cast<float>(10 * sent[k] + 6));
    }
    seen += sent.size();
  }
  EXPECT_EQ(seen, keys_.size());
}

TEST_F(ClientCoreTest, ARefusedSliceTravelsAgainAloneAfterTheNewView) {
  Pull(0);
  std::vector<Outgoing> asked = Take();
  AnswerRows(asked[0], /*refuse=*/0, /*view=*/2);
  AnswerRows(asked[1]);
  EXPECT_TRUE(client_->completions().empty());
  now_ += absl::Seconds(1);
  client_->OnTick(now_);
  EXPECT_TRUE(Take().empty()) << "the shard knows a newer view; asking again by the old is no use";
  const auto view2 = CoreView(plan_, 2, {{0, 1}});
  client_->OnView(now_, view2);
  asked = Take();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].to, EndpointId::Shard(1, 0));
  EXPECT_EQ(Decoded(asked[0].frame).entry_count, 1u);
  AnswerRows(asked[0], ~0u, 2);
  EXPECT_EQ(client_->completions().size(), 1u);
  ExpectRows();
}

TEST_F(ClientCoreTest, AShardThatLagsIsAskedAgainAfterAPause) {
  Pull(0);
  std::vector<Outgoing> asked = Take();
  AnswerRows(asked[1]);
  AnswerRows(asked[0], /*refuse=*/0, /*view=*/1);
  client_->OnTick(now_);
  EXPECT_TRUE(Take().empty());
  now_ += absl::Milliseconds(50);
  client_->OnTick(now_);
  asked = Take();
  ASSERT_EQ(asked.size(), 1u);
  AnswerRows(asked[0]);
  ExpectRows();
}

// Slices whose neighbours went elsewhere are packed anew, and values with them.
TEST_F(ClientCoreTest, RefusedPushesKeepTheirValues) {
  std::vector<float> values;
  for (const uint64_t key : keys_) values.insert(values.end(), {float(key), -float(key)});
  Push(0, values);
  const std::vector<Outgoing> asked = Take();
  ASSERT_EQ(asked.size(), 2u);
  for (const Outgoing& out : asked) {  // all slices of table "a" are refused by both
    const ParsedFrame frame = Decoded(out.frame);
    std::vector<SliceEntry> refused;
    for (uint32_t i = 0; i < frame.entry_count; ++i) {
      SliceEntry e = frame.Entry(i);
      if (e.range > 3) continue;
      e.rows = e.row_floats = 0;
      e.status = SliceStatus::kWrongView;
      refused.push_back(e);
    }
    AnswerAck(out, refused, /*view=*/2);
  }
  client_->OnView(now_, CoreView(plan_, 2, {{0, 1}, {2, 1}, {1, 0}}));
  size_t seen = 0;
  for (const Outgoing& out : Take()) {
    const ParsedFrame frame = Decoded(out.frame);
    const absl::Span<const uint64_t> sent = frame.keys().As<uint64_t>();
    for (size_t k = 0; k < sent.size(); ++k, ++seen) {
      EXPECT_EQ(frame.values().As<float>()[2 * k], static_cast<float>(sent[k]));
      EXPECT_EQ(frame.values().As<float>()[2 * k + 1], -static_cast<float>(sent[k]));
    }
    AnswerAck(out);
  }
  EXPECT_EQ(seen, keys_.size());
  EXPECT_EQ(client_->completions().size(), 1u);
}

TEST_F(ClientCoreTest, SilenceIsAskedAgainAndThenEndsTheRequestByName) {
  Pull(3);
  const std::vector<Outgoing> asked = Take();
  AnswerRows(asked[0]);
  now_ += absl::Seconds(3);
  client_->OnTick(now_);
  const std::vector<Outgoing> again = Take();
  ASSERT_EQ(again.size(), 1u);
  EXPECT_EQ(again[0].to, asked[1].to);
  EXPECT_EQ(client_->counters().frames_resent, 1u);
  client_->OnLost(now_, asked[1].to, "no descriptor left");
  for (int second = 0; second < 28; ++second) client_->OnTick(now_ += absl::Seconds(1));
  ASSERT_EQ(client_->completions().size(), 1u);
  const absl::Status status = client_->completions()[0].status;
  EXPECT_EQ(client::SilentShard(status), EndpointId::Shard(1, 0)) << "the shard is to blame";
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(HasSubstr("pull of step 3"), HasSubstr("server 1 shard 0"),
                               HasSubstr("table a"), HasSubstr("positions ["),
                               HasSubstr("; its connection: no descriptor left")));
}

// A process that was stopped has heard nobody meanwhile: answers may be waiting to be read.
TEST_F(ClientCoreTest, APauseOfThisProcessIsNobodysSilence) {
  Pull(3);
  const std::vector<Outgoing> asked = Take();
  for (int tenth = 0; tenth < 10; ++tenth) client_->OnTick(now_ += absl::Milliseconds(100));
  client_->OnTick(now_ += absl::Seconds(60));
  EXPECT_TRUE(client_->completions().empty());
  client_->OnTick(now_ += absl::Seconds(2));
  EXPECT_EQ(Take().size(), 2u) << "asked again instead";
  AnswerRows(asked[0]);
  for (int second = 0; second < 26; ++second) client_->OnTick(now_ += absl::Seconds(1));
  EXPECT_TRUE(client_->completions().empty());
  for (int second = 0; second < 5; ++second) client_->OnTick(now_ += absl::Seconds(1));
  ASSERT_EQ(client_->completions().size(), 1u) << "what is silent after the pause is silent";
  EXPECT_TRUE(absl::IsDeadlineExceeded(client_->completions()[0].status));
}

// The same where rows are read and written without steps; and the shard is named to whoever asks.
TEST(StoreCoreTest, APauseOfThisProcessIsNobodysSilence) {
  const job::ResolvedJob plan =
      CorePlan("kind: ASP", 1, 1, "table { name: 'kept' dim: 2 kind: KEY_VALUE } ");
  HeapBufferSource buffers;
  client::StoreCore core(plan, EndpointId::Reader(0), 7, buffers, client::ClientCore::Options());
  absl::Time now = absl::UnixEpoch();
  core.OnView(now, CoreView(plan, 1));
  const uint64_t key = 5;
  std::vector<float> row(2);
  client::StoreRequest read;
  while (plan.tables[read.table].name != "kept") ++read.table;
  read.keys = {&key, 1};
  read.rows = absl::MakeSpan(row);
  core.Start(now, read);
  core.OnTick(now += absl::Seconds(1));
  core.OnTick(now += absl::Seconds(60));
  EXPECT_TRUE(core.completions().empty());
  for (int second = 0; second < 31; ++second) core.OnTick(now += absl::Seconds(1));
  ASSERT_EQ(core.completions().size(), 1u);
  EXPECT_EQ(client::SilentShard(core.completions()[0].status), EndpointId::Shard(0, 0));
}

// The second time its gradients still come from the rows that were read.
TEST_F(ClientCoreTest, APushThatIsGivenUpAndSentAgainSaysThePulledVersions) {
  const auto versions = [this] {
    std::set<int64_t> said;
    for (const Outgoing& out : Take()) {
      const ParsedFrame frame = Decoded(out.frame);
      for (uint32_t i = 0; i < frame.entry_count; ++i) {
        if (frame.Entry(i).rows > 0) said.insert(frame.Entry(i).version);
      }
    }
    return said;
  };
  const std::vector<float> gradients(keys_.size() * 2, 1.0f);
  for (int64_t step = 0; step < 2; ++step) {
    Pull(step);
    for (const Outgoing& out : Take()) AnswerRows(out, ~0u, 1, /*version=*/5 + step);
  }
  const uint64_t old = Push(0, gradients), newer = Push(1, gradients);
  EXPECT_EQ(versions(), (std::set<int64_t>{5, 6}));
  client_->Cancel(old);
  Push(0, gradients);
  EXPECT_EQ(versions(), (std::set<int64_t>{5})) << "also while the next step is under way";
  client_->Cancel(newer);
  client_->completions().clear();
  Push(1, gradients);
  EXPECT_EQ(versions(), (std::set<int64_t>{6}));
  for (int second = 0; second < 40; ++second) client_->OnTick(now_ += absl::Seconds(1));
  ASSERT_EQ(client_->completions().size(), 2u) << "no shard has answered";
  Take();
  Push(1, gradients);
  EXPECT_EQ(versions(), (std::set<int64_t>{6}));
}

// Over links that lose nothing a shard that is slow must not be given more and more to do.
TEST_F(ClientCoreTest, ASlowShardIsAskedLessAndLess) {
  Pull(3);
  const std::vector<Outgoing> asked = Take();
  AnswerRows(asked[0]);
  std::vector<int> resent_at;  // tenths of a second
  for (int tenth = 1; tenth < 295; ++tenth) {
    now_ += absl::Milliseconds(100);
    client_->OnTick(now_);
    for (const Outgoing& again : Take()) {
      EXPECT_EQ(again.to, asked[1].to);
      resent_at.push_back(tenth);
    }
  }
  EXPECT_THAT(resent_at, ElementsAre(20, 60, 140, 220));
  AnswerRows(asked[1]);
  ASSERT_EQ(client_->completions().size(), 1u);
  EXPECT_TRUE(client_->completions()[0].status.ok());
}

class LineTest : public ClientCoreTest {
 protected:
  // One push a step; by shard, in the order of their numbers.
  void PushSteps(int64_t first, int64_t count) {
    for (int64_t step = first; step < first + count; ++step) {
      Push(step, std::vector<float>(keys_.size() * 2, 1.0f));
      for (const Outgoing& out : Take()) waiting_[out.to].push_back(out);
    }
  }
  void AnswerNext(EndpointId shard) {
    AnswerAck(waiting_[shard].front());
    waiting_[shard].erase(waiting_[shard].begin());
  }
  // The requests that are sent again within `time`, and after how many tenths of a second.
  std::vector<std::pair<uint64_t, int>> ResentWithin(absl::Duration time) {
    std::vector<std::pair<uint64_t, int>> resent;
    const int tenths = static_cast<int>(time / absl::Milliseconds(100));
    for (int tenth = 1; tenth <= tenths; ++tenth) {
      client_->OnTick(now_ += absl::Milliseconds(100));
      for (const Outgoing& again : Take()) resent.emplace_back(NumberOf(again), tenth);
    }
    return resent;
  }
  static uint64_t NumberOf(const Outgoing& out) { return Decoded(out.frame).header.request; }

  std::map<EndpointId, std::vector<Outgoing>> waiting_;
};

// What takes long because much is before it on a slow link is neither sent again nor given up.
TEST_F(LineTest, WhatIsInLineIsSlowNotLost) {
  PushSteps(0, 40);
  ASSERT_EQ(waiting_.size(), 2u);
  for (int i = 0; i < 40; ++i) {
    EXPECT_THAT(ResentWithin(absl::Milliseconds(1900)), ElementsAre()) << "step " << i;
    for (const EndpointId shard : {EndpointId::Shard(0, 0), EndpointId::Shard(1, 0)}) {
      AnswerNext(shard);
    }
  }
  ASSERT_EQ(client_->completions().size(), 40u);
  for (const auto& done : client_->completions()) EXPECT_TRUE(done.status.ok()) << done.status;
  EXPECT_EQ(client_->counters().frames_resent, 0u);
}

// What goes to the second shard waits behind what goes to the first on the client's own link: it is
// given up when all that was sent before has been answered for as long, not sooner, and not never.
TEST_F(LineTest, WhatIsBehindFramesToOtherShardsIsNotGivenUp) {
  client::ClientCore::Options options;
  options.frame_bytes = 8;  // a frame a range
  for (const bool lost : {false, true}) {
    SCOPED_TRACE(lost);
    waiting_.clear();
    client_ =
        std::make_unique<client::ClientCore>(plan_, EndpointId::Worker(0), 7, buffers_, options);
    client_->OnView(now_, map_);
    PushSteps(0, 1);
    std::vector<Outgoing>& second = waiting_[EndpointId::Shard(1, 0)];
    ASSERT_EQ(waiting_[EndpointId::Shard(0, 0)].size(), 2u);
    ASSERT_EQ(second.size(), 2u);
    for (int i = 0; i < 2; ++i) {
      ResentWithin(absl::Seconds(20));
      AnswerNext(EndpointId::Shard(0, 0));
    }
    ResentWithin(absl::Seconds(29));  // 69 in all
    EXPECT_TRUE(client_->completions().empty());
    if (!lost) {
      AnswerNext(EndpointId::Shard(1, 0));
      ResentWithin(absl::Seconds(29));
      AnswerNext(EndpointId::Shard(1, 0));
      ASSERT_EQ(client_->completions().size(), 1u);
      EXPECT_TRUE(client_->completions()[0].status.ok());
      continue;
    }
    ResentWithin(absl::Seconds(2));
    ASSERT_EQ(client_->completions().size(), 1u);
    EXPECT_THAT(client_->completions()[0].status.message(),
                HasSubstr("push of step 0: no answer for 70 s from server 1"));
  }
}

// While a shard says nothing, the frame that is first in line is asked for, and no other.
TEST_F(LineTest, TheFirstInLineStandsForAll) {
  PushSteps(0, 5);
  for (int i = 0; i < 5; ++i) AnswerNext(EndpointId::Shard(1, 0));
  const std::vector<Outgoing> line = waiting_[EndpointId::Shard(0, 0)];
  EXPECT_THAT(ResentWithin(absl::Seconds(7)),
              ElementsAre(std::pair(NumberOf(line[0]), 20), std::pair(NumberOf(line[0]), 60)));
  AnswerAck(line[0]);
  EXPECT_THAT(ResentWithin(absl::Seconds(3)), ElementsAre(std::pair(NumberOf(line[1]), 20)));
  for (int i = 1; i < 5; ++i) AnswerAck(line[static_cast<size_t>(i)]);
  EXPECT_EQ(client_->completions().size(), 5u);
}

// A push that is refused in a view travels to the new owner behind those of newer steps, which
// cannot be answered before it: it is the first there.
TEST_F(LineTest, TheOldestStepIsFirstInLineWheneverItWasSent) {
  PushSteps(0, 2);
  const EndpointId old_owner = EndpointId::Shard(0, 0), owner = EndpointId::Shard(1, 0);
  AnswerNext(owner);
  SliceEntry refused = Decoded(waiting_[old_owner][0].frame).Entry(0);
  ASSERT_EQ(refused.range, 0u);
  refused.rows = refused.row_floats = 0;
  refused.status = SliceStatus::kWrongView;
  AnswerAck(waiting_[old_owner][0], {refused}, /*view=*/2);
  AnswerAck(waiting_[old_owner][1]);
  client_->OnView(now_, CoreView(plan_, 2, {{0, 1}}));
  const std::vector<Outgoing> moved = Take();  // and lost
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_EQ(moved[0].to, owner);
  const uint64_t newer = NumberOf(waiting_[owner][0]);
  ASSERT_GT(NumberOf(moved[0]), newer);
  EXPECT_THAT(ResentWithin(absl::Milliseconds(2500)),
              ElementsAre(std::pair(NumberOf(moved[0]), 20)));
  AnswerAck(moved[0], {}, /*view=*/2);
  EXPECT_THAT(ResentWithin(absl::Milliseconds(2500)),
              ElementsAre(::testing::Pair(newer, ::testing::_)));
  AnswerNext(owner);
  EXPECT_EQ(client_->completions().size(), 2u);
}

// One frame is lost among others that are answered without end: it is asked for two seconds after
// the answer of a later one, however many follow.
TEST_F(LineTest, AFrameThatWasOvertakenIsAskedForByItself) {
  PushSteps(0, 4);
  const EndpointId shard = EndpointId::Shard(0, 0);
  const Outgoing lost = waiting_[shard][2];
  waiting_[shard].erase(waiting_[shard].begin() + 2);
  const auto answer = [&](int64_t step) {
    AnswerNext(shard);
    AnswerNext(EndpointId::Shard(1, 0));
    PushSteps(step, 1);
  };
  for (int64_t step = 4; step < 6; ++step) {  // those before it
    EXPECT_THAT(ResentWithin(absl::Milliseconds(1500)), ElementsAre());
    answer(step);
  }
  EXPECT_THAT(ResentWithin(absl::Milliseconds(1500)), ElementsAre());
  std::vector<uint64_t> resent;
  for (int64_t step = 6; step < 18; ++step) {  // those behind it, two a second
    answer(step);
    for (const auto& [number, tenth] : ResentWithin(absl::Milliseconds(500))) {
      resent.push_back(number);
      EXPECT_EQ(step, resent.size() == 1 ? 10 : 18) << "2 s, then 4 s more";
    }
  }
  EXPECT_THAT(resent, ElementsAre(NumberOf(lost)));
  AnswerAck(lost);
  EXPECT_EQ(client_->counters().frames_resent, 1u);
}

// A shard that says of a read again and again that it waits has not said that it has the push
// behind it.
TEST_F(LineTest, AReadThatIsParkedHidesNoLoss) {
  Pull(3);
  const std::vector<Outgoing> reads = Take();
  PushSteps(0, 1);
  SliceEntry e;
  std::vector<std::pair<uint64_t, int>> resent;
  for (int second = 0; second < 3; ++second) {
    for (const Outgoing& read : reads) {
      client_->OnFrame(now_, Decoded(EncodeDataFrame(buffers_, AnswerTo(read, FrameKind::kWaiting),
                                                     {&e, 1}, Buffer(), Buffer())));
    }
    for (const auto& [number, tenth] : ResentWithin(absl::Seconds(1))) {
      resent.emplace_back(number, 10 * second + tenth);
    }
  }
  EXPECT_THAT(resent, ElementsAre(std::pair(NumberOf(waiting_[EndpointId::Shard(0, 0)][0]), 20),
                                  std::pair(NumberOf(waiting_[EndpointId::Shard(1, 0)][0]), 20)));
}

// What is parked is in line, too: once the first of several is answered, the others follow as the
// link allows.
TEST_F(LineTest, AParkedReadThatIsFreedIsInLine) {
  std::vector<Outgoing> reads;  // of the first shard, among pushes that are answered long before
  for (int64_t step = 0; step < 5; ++step) {
    Pull(step);
    for (const Outgoing& out : Take()) {
      if (out.to == EndpointId::Shard(0, 0)) reads.push_back(out);
      if (out.to == EndpointId::Shard(1, 0)) AnswerRows(out);
    }
    PushSteps(step, 1);
    AnswerNext(EndpointId::Shard(0, 0));
    AnswerNext(EndpointId::Shard(1, 0));
  }
  SliceEntry e;
  for (const Outgoing& read : reads) {
    client_->OnFrame(now_, Decoded(EncodeDataFrame(buffers_, AnswerTo(read, FrameKind::kWaiting),
                                                   {&e, 1}, Buffer(), Buffer())));
  }
  for (const Outgoing& read : reads) {
    EXPECT_THAT(ResentWithin(absl::Milliseconds(1900)), ElementsAre());
    AnswerRows(read);
  }
  EXPECT_EQ(client_->completions().size(), 10u);
}

// A lost connection takes frames with it: they travel again soon, but a peer that stays away is
// not called without a pause.
TEST_F(ClientCoreTest, ALostConnectionIsNoSilence) {
  Pull(3);
  const std::vector<Outgoing> asked = Take();
  const auto resent_within = [this](absl::Duration time) {
    std::vector<EndpointId> to;
    for (const absl::Time end = now_ + time; now_ < end; now_ += absl::Milliseconds(1)) {
      client_->OnTick(now_);
      for (const Outgoing& again : Take()) to.push_back(again.to);
    }
    return to;
  };
  EXPECT_THAT(resent_within(absl::Milliseconds(100)), ElementsAre());
  client_->OnLost(now_, asked[1].to, "");
  EXPECT_THAT(resent_within(absl::Milliseconds(100)), ElementsAre(asked[1].to));
  int losses = 0;
  for (const absl::Time end = now_ + absl::Seconds(1); now_ < end; ++losses) {
    client_->OnLost(now_, asked[1].to, "");
    while (resent_within(absl::Milliseconds(1)).empty()) {
    }
  }
  EXPECT_LT(losses, 10);
  AnswerRows(asked[1]);
  AnswerRows(asked[0]);
  ASSERT_EQ(client_->completions().size(), 1u);
  EXPECT_TRUE(client_->completions()[0].status.ok());
}

TEST_F(ClientCoreTest, WaitingKeepsTheDeadlineFromRunning) {
  Pull(3);
  const std::vector<Outgoing> asked = Take();
  AnswerRows(asked[0]);
  SliceEntry e;
  e.range = 1;
  e.row_floats = 1;
  e.version = 2;
  for (int second = 0; second < 100; ++second) {
    now_ += absl::Seconds(1);
    client_->OnFrame(
        now_, Decoded(EncodeDataFrame(buffers_, AnswerTo(asked[1], FrameKind::kWaiting), {&e, 1},
                                      Buffer(), Buffer())));
    client_->OnTick(now_);
  }
  EXPECT_EQ(client_->counters().frames_resent, 0u);
  EXPECT_TRUE(client_->completions().empty());
  const Activity waiting = client_->Waiting(now_);
  EXPECT_THAT(waiting.text, HasSubstr("server 1 shard 0 waits for worker 1 at step 2"));
  EXPECT_EQ(waiting.waits_for, EndpointId::Worker(1));
  AnswerRows(asked[1]);
  EXPECT_TRUE(client_->completions()[0].status.ok());
}

// What is answered at once is no wait; what takes longer is one for the first shard that is silent.
TEST_F(ClientCoreTest, WhoIsWaitedForIsSaidAfterASecond) {
  EXPECT_EQ(client_->Waiting(now_).text, "");
  Pull(3);
  const std::vector<Outgoing> asked = Take();
  EXPECT_THAT(client_->Waiting(now_).text, HasSubstr("is waited for"));
  EXPECT_EQ(client_->Waiting(now_).waits_for, EndpointId());
  AnswerRows(asked[0]);
  now_ += absl::Seconds(1);
  EXPECT_EQ(client_->Waiting(now_).waits_for, asked[1].to);
}

TEST_F(ClientCoreTest, OverBudgetAndProtocolErrorsEndThePush) {
  for (const SliceStatus what : {SliceStatus::kOverBudget, SliceStatus::kRefused}) {
    client_->completions().clear();
    Push(0, std::vector<float>(keys_.size() * 2, 1.0f));
    SliceEntry e = Decoded(client_->out().front().frame).Entry(0);
    e.rows = e.row_floats = 0;
    e.status = what;
    AnswerAck(Take().front(), {e});
    ASSERT_EQ(client_->completions().size(), 1u);
    EXPECT_THAT(std::string(client_->completions()[0].status.message()),
                HasSubstr(what == SliceStatus::kOverBudget ? "limits.held_bytes_per_shard"
                                                           : "against the protocol"));
  }
}

// Only policies that drop what is late may say so.
TEST_F(ClientCoreTest, APushThatIsDroppedWithoutAReasonIsRefused) {
  Push(3, std::vector<float>(keys_.size() * 2, 1.0f));
  SliceEntry e = Decoded(client_->out().front().frame).Entry(0);
  e.rows = e.row_floats = 0;
  e.status = SliceStatus::kDropped;
  e.version = 7;
  AnswerAck(Take().front(), {e});
  ASSERT_EQ(client_->completions().size(), 1u);
  EXPECT_THAT(std::string(client_->completions()[0].status.message()),
              HasSubstr("against the protocol"));
}

class LateClientTest : public ClientCoreTest {
 protected:
  LateClientTest() : ClientCoreTest("kind: BACKUP_WORKERS backups: 1") {}
};

// A push that came too late somewhere is done all the same; its completion says where to go on.
TEST_F(LateClientTest, APushThatWasDroppedTellsTheStepThatIsOpen) {
  Push(3, std::vector<float>(keys_.size() * 2, 1.0f));
  for (const Outgoing& out : Take()) {
    SliceEntry e = Decoded(out.frame).Entry(0);
    e.rows = e.row_floats = 0;
    e.status = SliceStatus::kDropped;
    e.version = out.to.index == 0 ? 7 : 5;
    AnswerAck(out, {e});
  }
  ASSERT_EQ(client_->completions().size(), 1u);
  EXPECT_TRUE(client_->completions()[0].status.ok());
  EXPECT_EQ(client_->completions()[0].open_step, 7);
  // A shard that says it of a step that is not later is not believed.
  client_->completions().clear();
  Push(8, std::vector<float>(keys_.size() * 2, 1.0f));
  SliceEntry e = Decoded(client_->out().front().frame).Entry(0);
  e.rows = e.row_floats = 0;
  e.status = SliceStatus::kDropped;
  e.version = 8;
  AnswerAck(Take().front(), {e});
  ASSERT_EQ(client_->completions().size(), 1u);
  EXPECT_THAT(std::string(client_->completions()[0].status.message()),
              HasSubstr("against the protocol"));
}

TEST_F(ClientCoreTest, ACancelledRequestIsForgotten) {
  const uint64_t request = Pull(0);
  const std::vector<Outgoing> asked = Take();
  client_->Cancel(request);
  EXPECT_EQ(client_->requests_in_flight(), 0u);
  rows_.assign(rows_.size(), -1.0f);
  for (const Outgoing& out : asked) AnswerRows(out);
  EXPECT_TRUE(client_->completions().empty());
  EXPECT_EQ(rows_[0], -1.0f) << "its memory may belong to somebody else by now";
}

TEST_F(ClientCoreTest, AnswersOfOthersAreIgnored) {
  Pull(0);
  const std::vector<Outgoing> asked = Take();
  Outgoing impostor = asked[0];
  impostor.to = asked[1].to;
  AnswerRows(impostor);
  AnswerRows(asked[1]);
  EXPECT_TRUE(client_->completions().empty());
}

// The bug: a shard without ranges, or one whose workers all were out of data, lifted every later
// bound.
TEST_F(ClientCoreTest, AnInfiniteClockIsNotRemembered) {
  Push(0, std::vector<float>(keys_.size() * 2, 1.0f));
  const std::vector<Outgoing> asked = Take();
  AnswerAck(asked[0], {}, 1, /*min_clock=*/3);
  AnswerAck(asked[1], {}, 1, policies::kInfiniteClock);
  EXPECT_EQ(client_->largest_min_clock(0), 3);
}

TEST_F(ClientCoreTest, AReadOfNothingStillAsksHowFarTheShardsAre) {
  client_->Pull(now_, 0, 0, {}, {}, kFlagEvaluate);
  const std::vector<Outgoing> asked = Take();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(Decoded(asked[0].frame).entry_count, 1u);
}

TEST(PulledVersionsTest, KeepsSoManyStepsAndThenForgetsTheOldest) {
  client::PulledVersions versions(3);
  for (int64_t step = 0; step < 4; ++step) versions.At(0, step, 2)[1] = step;
  EXPECT_EQ(versions.Find(0, 0), nullptr);
  for (int64_t step = 1; step < 4; ++step) {
    ASSERT_NE(versions.Find(0, step), nullptr);
    EXPECT_EQ(*versions.Find(0, step), (std::vector<int64_t>{0, step}));
  }
  versions.Forget(0, 2);
  EXPECT_EQ(versions.Find(0, 2), nullptr);
  EXPECT_NE(versions.Find(0, 3), nullptr);
}

TEST(PulledVersionsTest, TheOldestIsForgottenFirstWhateverElseWasForgotten) {
  client::PulledVersions versions(4);
  versions.At(1, 0, 1);
  for (int64_t step = 1; step < 4; ++step) versions.At(0, step, 1);
  versions.Forget(1, 0);
  versions.At(0, 4, 1);
  versions.At(0, 5, 1);
  EXPECT_EQ(versions.Find(0, 1), nullptr);
  for (int64_t step = 2; step < 6; ++step) EXPECT_NE(versions.Find(0, step), nullptr) << step;
}

}  // namespace
}  // namespace tandem
