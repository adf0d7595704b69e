// A checkpoint of one shard, slice by slice, while everything that changes a range happens between
// the slices: the files show the ranges as they were at the mark, to the last bit.
#include "server/shard_checkpoint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "tests/test_seed.h"
#include "tests/unit/server/core_fixture.h"
#include "tests/unit/server/range_image.h"

namespace tandem {
namespace {

constexpr int kWorkers = 2;
constexpr EndpointId kSelf = {Role::kServer, 0, 0};

class ShardCheckpointTest : public ::testing::Test {
 protected:
  void Start(const std::string& policy, const std::string& more = "",
             const std::string& synchroniser = "SERVERS") {
    plan_ = CorePlan(policy, kWorkers, /*servers=*/2, more, synchroniser);
    if (limit_ != nullptr) limit_(&plan_.tables[0]);
    shard_ = *server::ShardCore::New(plan_, kSelf, 1, buffers_);
    shard_->OnView(now_, CoreView(plan_, 1), &effects_);
    for (const server::Range* const range : shard_->ranges().Owned()) {
      keys_[range->id()] = KeysIn(*CoreView(plan_, 1), plan_, range->id(), 60);
    }
    next_write_ = 0;
  }

  std::vector<server::Range*> Owned() const { return shard_->ranges().Owned(); }

  // Some distinct keys of the range, in order, with random values.
  void Draw(const server::Range& range, Buffer* keys, Buffer* values) {
    std::vector<uint64_t> some;
    for (const uint64_t key : keys_[range.id()]) {
      if (random_.Bernoulli(0.1)) some.push_back(key);
    }
    const auto width = static_cast<size_t>(range.store().dim());
    std::vector<float> floats(some.size() * width);
    for (float& value : floats) value = static_cast<float>(random_.NextDouble());
    *keys = BufferOf(buffers_, some);
    *values = BufferOf(buffers_, floats);
  }

  // A worker reads, pushes, or both.
  void Train(server::Range* range) {
    const int rank = static_cast<int>(random_.Uniform(kWorkers));
    server::HeldUpdate update;
    update.rank = rank;
    update.step = range->progress().workers[static_cast<size_t>(rank)].admitted;
    update.version_read = range->progress().version;
    update.samples = 1 + random_.Uniform(4);
    Draw(*range, &update.keys, &update.values);
    std::vector<float> rows(update.values.size() / sizeof(float));
    const auto keys = update.keys.As<uint64_t>();
    if (random_.Bernoulli(0.7)) {
      range->store().Pull(keys, absl::MakeSpan(rows));
      range->RememberRead(now_, rank, update.step, keys, rows);
      if (random_.Bernoulli(0.2)) return;
    }
    range->Admit(now_, static_cast<uint64_t>(rank) + 1, update.step, std::move(update), false);
  }

  // A program inserts, assigns or erases rows.
  void Write(server::Range* range) {
    constexpr StoreAction kActions[] = {StoreAction::kAssign, StoreAction::kInsert,
                                        StoreAction::kErase};
    const StoreAction action = kActions[random_.Uniform(3)];
    Buffer keys, unused;
    Draw(*range, &keys, &unused);
    const auto width = static_cast<size_t>(range->store().dim() + range->store().slots_per_row());
    std::vector<float> values(keys.As<uint64_t>().size() * width);
    for (float& value : values) value = static_cast<float>(random_.NextDouble());
    std::vector<uint64_t> changed;
    ASSERT_EQ(range->writes()->Apply(/*writer=*/5, ++next_write_, action, keys.As<uint64_t>(),
                                     values, &range->store(), &changed),
              absl::OkStatus());
  }

  void Disturb(int events) {
    const std::vector<server::Range*> ranges = Owned();
    for (int i = 0; i < events; ++i) {
      server::Range* const range = ranges[random_.Uniform(ranges.size())];
      range->writes() != nullptr ? Write(range) : Train(range);
    }
  }

  // The files by name, as a server without updates would write them now. A checkpoint has no rows
  // as they were read, which the policy DC_ASGD keeps at the end of `held`.
  std::map<std::string, server::RangeImage> Now(const std::vector<server::Range*>& ranges) {
    std::map<std::string, server::RangeImage> images;
    for (const server::Range* const range : ranges) {
      server::RangeImage image = ImageOf(*range);
      const std::string name = server::RangeFileName(image);
      images[name] = std::move(image);
    }
    return images;
  }

  static void ExpectSame(const server::RangeImage& got, const server::RangeImage& want,
                         const std::string& what, bool rows_as_read = false) {
    EXPECT_EQ(got.keys, want.keys) << what;
    EXPECT_EQ(got.weights, want.weights) << what;
    EXPECT_EQ(got.slots, want.slots) << what;
    EXPECT_EQ(got.ages, want.ages) << what;
    EXPECT_TRUE(got.candidates == want.candidates) << what;
    EXPECT_EQ(got.progress, want.progress) << what;
    const size_t held = rows_as_read ? HeldWithoutReads(got) : got.held.size();
    EXPECT_EQ(got.held.substr(0, held), want.held.substr(0, held)) << what;
    EXPECT_TRUE(rows_as_read || got.held.size() == want.held.size()) << what;
  }
  // Numbers, no held updates, and the mean squares of all rows.
  static size_t HeldWithoutReads(const server::RangeImage& image) {
    return server::kHeldHeadBytes + sizeof(uint64_t) * (3 + image.keys.size()) + sizeof(uint64_t) +
           image.weights.size() * sizeof(float);
  }

  job::ResolvedJob plan_;
  void (*limit_)(job::TablePlan*) = nullptr;  // changes the plan of table "a"
  HeapBufferSource buffers_;
  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<server::ShardCore> shard_;
  server::ShardEffects effects_;
  std::map<uint32_t, std::vector<uint64_t>> keys_;  // by range
  Random random_{TestSeed()};
  int64_t next_write_ = 0;
};

TEST_F(ShardCheckpointTest, FilesShowTheMoment) {
  for (const char* const policy :
       {"kind: BSP", "kind: ASP", "kind: SSP bound: 2", "kind: FIXED_DELAY delay: 2",
        "kind: K_BATCH_ASYNC batches: 3", "kind: GBA batches: 3 ",
        "kind: DC_ASGD compensation: 0.5 mean_square_decay: 0.9"}) {
    const bool rows_as_read = std::string(policy).find("DC_ASGD") != std::string::npos;
    size_t set_aside = 0;
    for (int run = 0; run < 2; ++run) {
      Start(policy);
      Disturb(200);
      server::ShardCheckpoint checkpoint(shard_.get());
      ASSERT_TRUE(checkpoint.MayMark());
      const auto want = Now(Owned());
      checkpoint.Mark();
      size_t files = 0;
      while (!checkpoint.done()) {
        Disturb(1 + static_cast<int>(random_.Uniform(3)));
        set_aside = std::max(set_aside, checkpoint.set_aside_bytes());
        auto file = checkpoint.Step(8 * random_.Uniform(8));
        if (!file.has_value()) continue;
        ++files;
        Disturb(static_cast<int>(random_.Uniform(3)));  // before another thread encodes the file
        ASSERT_EQ(want.count(file->name), 1u) << file->name;
        ExpectSame(Decoded(std::move(*file->copy).Encode()), want.at(file->name),
                   absl::StrCat(policy, " ", file->name), rows_as_read);
      }
      EXPECT_EQ(files, want.size());
      EXPECT_EQ(checkpoint.set_aside_bytes(), 0u);
    }
    EXPECT_GT(set_aside, 0u) << policy << ": no row changed before its slice";
  }
}

// Programs write, insert and erase at any time; a number of an erased row is used again.
TEST_F(ShardCheckpointTest, FilesShowTheMomentOfKeyValueTables) {
  for (int run = 0; run < 10; ++run) {
    Start("kind: BSP", "table { name: \"cache\" dim: 2 extra_floats: 1 kind: KEY_VALUE }",
          "ALLREDUCE");
    Disturb(100);
    server::ShardCheckpoint checkpoint(shard_.get());
    const auto want = Now(Owned());
    checkpoint.Mark();
    while (!checkpoint.done()) {
      Disturb(4);
      auto file = checkpoint.Step(24);
      if (!file.has_value()) continue;
      ExpectSame(Decoded(std::move(*file->copy).Encode()), want.at(file->name), file->name);
    }
  }
}

// Rows get too old, are evicted and come back under other numbers, and candidates become rows.
TEST_F(ShardCheckpointTest, FilesShowTheMomentOfTablesWithLimits) {
  const std::pair<const char*, void (*)(job::TablePlan*)> limits[] = {
      {"AGE and COUNT",
       [](job::TablePlan* plan) {
         plan->eviction.set_kind(Eviction::AGE);
         plan->eviction.set_versions(8);
         plan->admission.set_kind(Admission::COUNT);
         plan->admission.set_threshold(2);
         plan->admission.set_within_versions(8);
       }},
      {"LRU and COUNT", [](job::TablePlan* plan) {
         plan->eviction.set_kind(Eviction::LRU);
         plan->eviction.set_max_rows(80);
         plan->admission.set_kind(Admission::COUNT);
         plan->admission.set_threshold(2);
       }}};
  for (const auto& [name, limit] : limits) {
    limit_ = limit;
    size_t candidates = 0;
    for (int run = 0; run < 10; ++run) {
      Start(run % 2 == 0 ? "kind: ASP" : "kind: BSP");
      Disturb(300);
      server::ShardCheckpoint checkpoint(shard_.get());
      const auto want = Now(Owned());
      checkpoint.Mark();
      while (!checkpoint.done()) {
        Disturb(1 + static_cast<int>(random_.Uniform(6)));
        auto file = checkpoint.Step(8 * random_.Uniform(8));
        if (!file.has_value()) continue;
        const server::RangeImage& image = want.at(file->name);
        candidates += image.candidates.size();
        ExpectSame(Decoded(std::move(*file->copy).Encode()), image,
                   absl::StrCat(name, " ", file->name));
      }
    }
    EXPECT_GT(candidates, 10u) << name;
    EXPECT_GT(shard_->tables()[0]->stats.rows.evicted, 0u) << name;
  }
}

// Slices of any size give the bytes of the range as a whole.
TEST_F(ShardCheckpointTest, SlicesMakeTheFilesOfTheRanges) {
  Start("kind: BSP");
  Disturb(200);
  const auto want = Now(Owned());
  ASSERT_EQ(want.size(), 4u);
  for (const size_t bytes : {1, 50, 160, 8000}) {
    server::ShardCheckpoint checkpoint(shard_.get());
    checkpoint.Mark();
    size_t files = 0;
    while (!checkpoint.done()) {
      auto file = checkpoint.Step(bytes);
      if (!file.has_value()) continue;
      ++files;
      EXPECT_EQ(std::move(*file->copy).Encode(), server::EncodeRange(want.at(file->name))) << bytes;
    }
    EXPECT_EQ(files, want.size());
  }
}

// A range on its way is in nobody's part: the checkpoint is marked when the range has arrived.
TEST_F(ShardCheckpointTest, WaitsForRangesOnTheirWay) {
  Start("kind: BSP");
  shard_->OnView(now_, CoreView(plan_, 2, {{0, 1}}), &effects_);  // range 0 goes to server 1
  EXPECT_FALSE(server::ShardCheckpoint(shard_.get()).MayMark());
}

// Ranges that leave after the mark are in this shard's part, whatever was copied of them before.
TEST_F(ShardCheckpointTest, ARangeThatLeavesIsCopiedBefore) {
  for (int slices = 0; slices < 20; slices += 3) {
    Start("kind: ASP");
    Disturb(200);
    server::ShardCheckpoint checkpoint(shard_.get());
    const auto want = Now(Owned());
    checkpoint.Mark();
    std::map<std::string, server::RangeImage> files;
    const auto take = [&](std::optional<server::ShardCheckpoint::File> file) {
      if (file.has_value()) files[file->name] = Decoded(std::move(*file->copy).Encode());
    };
    for (int i = 0; i < slices && !checkpoint.done(); ++i) {
      Disturb(1);
      take(checkpoint.Step(32));
    }
    Disturb(5);
    const auto next = CoreView(plan_, 2, {{0, 1}});
    checkpoint.BeforeView(*next);
    shard_->OnView(now_, next, &effects_);
    ASSERT_EQ(shard_->ranges().Find(0), nullptr);
    while (!checkpoint.done()) {
      Disturb(1);
      take(checkpoint.Step(32));
    }
    ASSERT_EQ(files.size(), want.size()) << slices;
    for (const auto& [name, image] : files) {
      ExpectSame(image, want.at(name), absl::StrCat(name, " after ", slices));
    }
  }
}

// After an abandoned checkpoint nothing is copied any more, and the next one can be marked.
TEST_F(ShardCheckpointTest, AnAbandonedCheckpointLeavesNothingBehind) {
  Start("kind: ASP");
  Disturb(200);
  for (int time = 0; time < 3; ++time) {
    server::ShardCheckpoint checkpoint(shard_.get());
    checkpoint.Mark();
    Disturb(10);
    checkpoint.Step(32);
  }
  Disturb(10);  // a store that still copied would write to memory that is gone
}

}  // namespace
}  // namespace tandem
