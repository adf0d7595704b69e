// Programs that write to a KEY_VALUE table while frames are lost, doubled and overtaken, endpoints
// are cut off from each other and ranges move: each writer's model agrees on all that it is told,
// no old row comes back, every write counts once, and a scan meets each row that stays once.
//
//   TANDEM_SIM_SEEDS=1 tests/store_test --seed=N    one seed again
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/optional.h"
#include "base/buffer.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"
#include "client/store_core.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job.h"
#include "server/shard_core.h"
#include "tests/sim/sim_job.h"
#include "tests/test_seed.h"
#include "tests/unit/server/sorted_keys.h"
#include "tools/sim/agenda.h"
#include "tools/sim/network.h"

namespace tandem {
namespace {

constexpr int kServers = 3, kWriters = 4, kWidth = 3;
constexpr uint64_t kOwn = 40, kShared = 6, kStays = 200;
constexpr uint32_t kTable = 1;
constexpr absl::Duration kWriting = absl::Seconds(8);  // of virtual time

constexpr char kJob[] = R"(
seed: 1
cluster { workers: 1 servers: 3 ranges_per_shard: 2 }
data { format: PROGRAM }
table { name: "trained" dim: 1 }
table { name: "items" dim: 2 extra_floats: 1 kind: KEY_VALUE }
dense { optimizer { learning_rate: 1 } }
model { program {} }
train { batch_size: 1 }
)";

job::ResolvedJob Plan() {
  const absl::StatusOr<Job> job = job::ParseJob(kJob, "store.textproto", {});
  TANDEM_CHECK_OK(job.status());
  absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*job);
  TANDEM_CHECK_OK(plan.status());
  return *std::move(plan);
}

// Ranges are dealt to the servers in turn.
View FirstView(const job::ResolvedJob& plan) {
  View view;
  view.set_number(1);
  for (int s = 0; s < kServers; ++s) view.add_server()->add_endpoint(absl::StrCat("s", s));
  const int count = kServers * plan.job.cluster().ranges_per_shard();
  const std::vector<uint64_t> begins = job::EqualRanges(count);
  for (const job::TablePlan& table : plan.tables) {
    for (int r = 0; r < count; ++r) {
      RangeInfo* const info = view.add_range();
      info->set_table(table.id);
      info->set_begin(begins[static_cast<size_t>(r)]);
      info->set_end(r + 1 < count ? begins[static_cast<size_t>(r) + 1] : 0);
      info->set_server(static_cast<uint32_t>(r % kServers));
    }
  }
  return view;
}

using Row = std::vector<float>;
uint64_t SharedKey(uint64_t n) { return Mix64(1'000'000 + n); }
uint64_t StayingKey(uint64_t n) { return Mix64(2'000'000 + n); }

// What all have to do with each other.
struct World {
  World(uint64_t its_seed, const sim::NetworkOptions& options)
      : seed(its_seed), plan(Plan()), network(options, seed), random(HashCombine(seed, 1)) {}

  const uint64_t seed;
  const job::ResolvedJob plan;
  HeapBufferSource buffers;
  sim::Agenda agenda;
  sim::SimNetwork network;
  Random random;
  std::vector<std::unique_ptr<server::ShardCore>> shards;
  std::map<EndpointId, std::function<void(const ParsedFrame&)>> receivers;

  void Send(const Outgoing& out) {
    std::vector<absl::Time> arrivals;
    const absl::StatusOr<ParsedFrame> frame = DecodeFrame(out.frame);
    ASSERT_TRUE(frame.ok()) << frame.status();
    network.Route(agenda.now(), frame->header.sender, out.to, out.frame.TotalBytes(), &arrivals);
    for (const absl::Time at : arrivals) {
      agenda.At(at, [this, to = out.to, parsed = *frame] { receivers.at(to)(parsed); });
    }
  }
};

// A program: asks, waits for the answers or not, and knows what they must be.
class Writer {
 public:
  Writer(World* world, int index)
      : world_(*world),
        index_(index),
        random_(HashCombine(HashCombine(world->seed, 7), static_cast<uint64_t>(index))),
        core_(world->plan, EndpointId::Reader(index), 1000 + static_cast<uint64_t>(index),
              world->buffers, Options()) {}

  static client::ClientCore::Options Options() {
    client::ClientCore::Options options;
    options.resend_after = absl::Milliseconds(50);
    options.silence_limit = absl::Hours(1);
    return options;
  }

  client::StoreCore& core() { return core_; }
  bool idle() const { return calls_.empty(); }
  const std::map<uint64_t, Row>& model() const { return model_; }
  float last_shared() const { return last_shared_; }
  uint64_t scans() const { return scans_; }

  // Rows that nobody changes later.
  void Prepare() {
    for (uint64_t n = 0; n < kStays; ++n) {
      if (n % kWriters != static_cast<uint64_t>(index_)) continue;
      Call call(StoreAction::kAssign);
      call.keys = {StayingKey(n)};
      call.values.assign(kWidth, static_cast<float>(n));
      Start(std::move(call));
    }
  }

  // Asks for something, if it has not too much under way.
  void Act() {
    if (calls_.size() >= 4 || reading_)
      return;  // what a read must see is known when it is asked for
    if (index_ == 0 && random_.Bernoulli(0.5)) return Scan();
    const uint64_t what = random_.Uniform(10);
    if (what < 6) return WriteOwn(static_cast<StoreAction>(3 + what % 3));
    if (!idle()) return;  // reads see what has been answered, in their order
    if (what < 8) return ReadOwn();
    Shared(what == 8);
  }

  void Take() {
    Send();
    for (const client::StoreCore::Completion& done : core_.completions()) {
      EXPECT_TRUE(done.status.ok()) << done.status;
      const auto at = calls_.find(done.request);
      ASSERT_NE(at, calls_.end());
      const std::unique_ptr<Call> call = std::move(at->second);
      calls_.erase(at);
      Check(*call);
    }
    core_.completions().clear();
  }

 private:
  struct Call {
    explicit Call(StoreAction its_action) : action(its_action) {}
    StoreAction action;
    std::vector<uint64_t> keys;
    std::vector<float> values, rows;
    std::vector<uint8_t> found;
    bool shared = false;
    std::vector<uint8_t> want_found;  // of own keys
    std::vector<Row> want_rows;
    client::ScanPage page;
    uint64_t range = 0, cursor = 0;
  };

  void Send() {
    for (const Outgoing& out : core_.out()) world_.Send(out);
    core_.out().clear();
  }
  uint64_t Start(Call made) {
    auto call = std::make_unique<Call>(std::move(made));
    client::StoreRequest request;
    request.table = kTable;
    request.action = call->action;
    request.keys = call->keys;
    request.values = call->values;
    call->found.assign(call->keys.size(), 2);
    request.found = absl::MakeSpan(call->found);
    if (call->action == StoreAction::kRead) {
      call->rows.assign(call->keys.size() * kWidth, -1);
      reading_ = true;
    }
    request.rows = absl::MakeSpan(call->rows);
    request.range = call->range;
    request.cursor = call->cursor;
    request.wanted = 1 + random_.Uniform(20);
    request.page = &call->page;
    const uint64_t number = core_.Start(world_.agenda.now(), request);
    calls_[number] = std::move(call);
    Send();
    return number;
  }
  void OwnKeys(Call* call) {
    call->keys.resize(1 + random_.Uniform(12));
    for (uint64_t& key : call->keys) {
      key = Mix64(random_.Uniform(kOwn) * kWriters + static_cast<uint64_t>(index_));
    }
  }
  void Fill(Call* call) {
    call->values.resize(call->keys.size() * kWidth);
    for (float& value : call->values) value = static_cast<float>(random_.Normal());
  }
  static Row RowOf(const std::vector<float>& rows, size_t i) {
    return {rows.begin() + static_cast<std::ptrdiff_t>(i * kWidth),
            rows.begin() + static_cast<std::ptrdiff_t>((i + 1) * kWidth)};
  }

  // What it must be told is known when it asks: nobody else writes these rows, and its writes keep
  // their order.
  void WriteOwn(StoreAction action) {
    Call call(action);
    OwnKeys(&call);
    if (HasStoreValues(action)) Fill(&call);
    for (size_t i = 0; i < call.keys.size(); ++i) {
      bool found = false;
      if (action == StoreAction::kErase) {
        found = model_.erase(call.keys[i]) > 0;
      } else if (action == StoreAction::kInsert) {
        found = model_.emplace(call.keys[i], RowOf(call.values, i)).second;
      } else {
        model_[call.keys[i]] = RowOf(call.values, i);
      }
      call.want_found.push_back(found ? 1 : 0);
    }
    const bool give_up = random_.Bernoulli(0.05);
    Call again(StoreAction::kAssign);
    if (give_up) {  // ... and writes all of these rows anew at once
      again.keys = call.keys;
      Fill(&again);
      for (size_t i = 0; i < again.keys.size(); ++i) {
        model_[again.keys[i]] = RowOf(again.values, i);
      }
      again.want_found.assign(again.keys.size(), 0);
    }
    const uint64_t number = Start(std::move(call));
    if (!give_up) return;
    core_.Cancel(world_.agenda.now(), number);
    calls_.erase(number);
    Start(std::move(again));
  }
  void ReadOwn() {
    Call call(StoreAction::kRead);
    OwnKeys(&call);
    for (const uint64_t key : call.keys) {
      const auto row = model_.find(key);
      call.want_found.push_back(row == model_.end() ? 0 : 1);
      call.want_rows.push_back(row == model_.end() ? Row(kWidth, -1) : row->second);
    }
    Start(std::move(call));
  }
  void Shared(bool write) {
    Call call(write ? StoreAction::kAssign : StoreAction::kRead);
    call.shared = true;
    for (uint64_t n = 0; n < kShared; ++n) call.keys.push_back(SharedKey(n));
    if (write) {
      ++last_shared_;
      for (size_t i = 0; i < kShared; ++i) {
        call.values.insert(call.values.end(),
                           {static_cast<float>(index_), last_shared_, last_shared_});
      }
    }
    Start(std::move(call));
  }
  void Scan() {
    if (scanning_) return;
    scanning_ = true;
    Call call(StoreAction::kScan);
    call.range = scan_range_;
    call.cursor = scan_cursor_;
    Start(std::move(call));
  }

  void Check(const Call& call) {
    if (call.action == StoreAction::kRead) reading_ = false;
    if (call.action == StoreAction::kScan) return CheckScan(call);
    if (call.shared && call.action == StoreAction::kRead) return CheckShared(call);
    if (call.want_found.empty()) return;
    EXPECT_EQ(call.found, call.want_found) << "action " << static_cast<int>(call.action);
    for (size_t i = 0; i < call.want_rows.size(); ++i) {
      EXPECT_EQ(RowOf(call.rows, i), call.want_rows[i]);
    }
  }
  void CheckShared(const Call& call) {
    for (size_t i = 0; i < call.keys.size(); ++i) {
      if (call.found[i] == 0) continue;
      const Row row = RowOf(call.rows, i);
      EXPECT_EQ(row[1], row[2]) << "a mixture";
      float& newest = seen_[{call.keys[i], static_cast<int>(row[0])}];
      EXPECT_GE(row[1], newest) << "an old write of writer " << row[0] << " has come back";
      newest = std::max(newest, row[1]);
    }
  }
  void CheckScan(const Call& call) {
    scanning_ = false;
    for (size_t i = 0; i < call.page.keys.size(); ++i) {
      EXPECT_TRUE(scanned_.emplace(call.page.keys[i], RowOf(call.page.rows, i)).second)
          << "a row twice in a scan";
    }
    scan_cursor_ = call.page.next;
    if (scan_cursor_ == 0) ++scan_range_;
    if (scan_range_ < call.page.ranges) return;
    for (uint64_t n = 0; n < kStays; ++n) {
      const auto row = scanned_.find(StayingKey(n));
      ASSERT_NE(row, scanned_.end()) << "a scan without row " << n;
      EXPECT_EQ(row->second, Row(kWidth, static_cast<float>(n)));
    }
    ++scans_;
    scan_range_ = 0;
    scanned_.clear();
  }

  World& world_;
  const int index_;
  Random random_;
  client::StoreCore core_;
  std::map<uint64_t, std::unique_ptr<Call>> calls_;
  std::map<uint64_t, Row> model_;
  std::map<std::pair<uint64_t, int>, float> seen_;
  float last_shared_ = 0;
  std::map<uint64_t, Row> scanned_;
  uint64_t scan_range_ = 0, scan_cursor_ = 0, scans_ = 0;
  bool scanning_ = false, reading_ = false;
};

class StoreRun {
 public:
  StoreRun(uint64_t seed, const sim::NetworkOptions& options) : world_(seed, options) {
    for (int s = 0; s < kServers; ++s) AddShard(s);
    for (int w = 0; w < kWriters; ++w) AddWriter(w);
    MakeFirstView();
  }

  void Run() {
    for (auto& writer : writers_) {
      writer->Prepare();
      writer->Take();
    }
    // The rows that stay are there before anybody scans.
    while (!Idle() && !testing::Test::HasFatalFailure()) world_.agenda.RunNext();
    const absl::Time stop = world_.agenda.now() + kWriting;
    world_.agenda.Every(absl::Milliseconds(5), [this, stop] {
      if (world_.agenda.now() > stop) return;
      for (auto& writer : writers_) {
        writer->Act();
        writer->Take();
      }
    });
    world_.agenda.Every(absl::Milliseconds(250), [this, stop] {
      if (world_.agenda.now() <= stop) MoveRanges();
    });
    const absl::Time hopeless = stop + absl::Minutes(20);
    while ((world_.agenda.now() <= stop || !Idle() || !Settled()) &&
           world_.agenda.now() < hopeless && !testing::Test::HasFailure()) {
      world_.agenda.RunNext();
    }
    EXPECT_TRUE(Idle() && Settled()) << "somebody still waits";
    Compare();
  }
  uint64_t scans() const { return writers_[0]->scans(); }
  int moved() const { return moved_; }

 private:
  void AddShard(int server) {
    const EndpointId id = EndpointId::Shard(server, 0);
    absl::StatusOr<std::unique_ptr<server::ShardCore>> core = server::ShardCore::New(
        world_.plan, id, 500 + static_cast<uint64_t>(server), world_.buffers);
    TANDEM_CHECK_OK(core.status());
    world_.shards.push_back(*std::move(core));
    server::ShardCore* const shard = world_.shards.back().get();
    world_.receivers[id] = [this, shard](const ParsedFrame& frame) {
      shard->OnFrame(world_.agenda.now(), frame, &effects_);
      TakeEffects();
    };
    world_.agenda.Every(absl::Milliseconds(50), [this, shard] {
      shard->OnTick(world_.agenda.now(), &effects_);
      TakeEffects();
    });
  }
  void AddWriter(int index) {
    writers_.push_back(std::make_unique<Writer>(&world_, index));
    Writer* const writer = writers_.back().get();
    world_.receivers[EndpointId::Reader(index)] = [this, writer](const ParsedFrame& frame) {
      writer->core().OnFrame(world_.agenda.now(), frame);
      writer->Take();
    };
    world_.agenda.Every(absl::Milliseconds(20), [this, writer] {
      writer->core().OnTick(world_.agenda.now());
      writer->Take();
    });
  }
  void TakeEffects() {
    for (const Outgoing& out : effects_.out) world_.Send(out);
    for (const std::string& line : effects_.log) {
      EXPECT_THAT(line, testing::Not(testing::HasSubstr("refused"))) << line;
    }
    effects_.Clear();
  }

  void MakeFirstView() {
    view_ = FirstView(world_.plan);
    const auto map = RangeMap::FromView(view_, world_.plan.sizes());
    TANDEM_CHECK_OK(map.status());
    for (auto& shard : world_.shards) shard->OnView(world_.agenda.now(), *map, &effects_);
    for (auto& writer : writers_) writer->core().OnView(world_.agenda.now(), *map);
  }
  // Some ranges get other owners; everybody hears of it at a time of their own.
  void MoveRanges() {
    view_.set_number(view_.number() + 1);
    for (RangeInfo& info : *view_.mutable_range()) {
      if (!world_.random.Bernoulli(0.3)) continue;
      info.set_server(static_cast<uint32_t>(world_.random.Uniform(kServers)));
      ++moved_;
    }
    const auto map = RangeMap::FromView(view_, world_.plan.sizes());
    TANDEM_CHECK_OK(map.status());
    const auto later = [this] {
      return world_.agenda.now() + absl::Milliseconds(1) +
             absl::Microseconds(static_cast<int64_t>(world_.random.Uniform(150'000)));
    };
    for (auto& shard : world_.shards) {
      world_.agenda.At(later(), [this, map = *map, core = shard.get()] {
        core->OnView(world_.agenda.now(), map, &effects_);
        TakeEffects();
      });
    }
    for (auto& writer : writers_) {
      world_.agenda.At(later(), [this, map = *map, to = writer.get()] {
        to->core().OnView(world_.agenda.now(), map);
        to->Take();
      });
    }
  }

  bool Idle() const {
    return std::all_of(writers_.begin(), writers_.end(), [](const auto& w) { return w->idle(); });
  }
  bool Settled() const {
    return std::all_of(world_.shards.begin(), world_.shards.end(), [this](const auto& shard) {
      return shard->ranges().Settled() && shard->ranges().view() == view_.number();
    });
  }
  // All rows that there are against all that there should be.
  void Compare() {
    std::map<uint64_t, Row> rows, want;
    std::set<uint32_t> ranges;
    for (const auto& shard : world_.shards) {
      for (server::Range* range : shard->ranges().Owned()) {
        EXPECT_TRUE(ranges.insert(range->id()).second) << "two owners of range " << range->id();
        if (!range->table().plan->store) continue;
        std::vector<uint64_t> keys = SortedKeys(range->store());
        std::vector<uint32_t> numbers(keys.size());
        range->store().Find(keys, absl::MakeSpan(numbers));
        for (size_t i = 0; i < keys.size(); ++i) {
          range->store().CopyRow(numbers[i],
                                 rows.emplace(keys[i], Row(kWidth)).first->second.data());
        }
      }
    }
    for (uint64_t n = 0; n < kShared; ++n) {
      const auto row = rows.find(SharedKey(n));
      if (row == rows.end()) continue;  // nobody has written them
      const Row value = row->second;
      EXPECT_EQ(value[1], writers_[static_cast<size_t>(value[0])]->last_shared());
      rows.erase(row);
    }
    for (const auto& writer : writers_) want.insert(writer->model().begin(), writer->model().end());
    for (uint64_t n = 0; n < kStays; ++n) want[StayingKey(n)] = Row(kWidth, static_cast<float>(n));
    EXPECT_EQ(rows, want);
  }

  World world_;
  std::vector<std::unique_ptr<Writer>> writers_;
  server::ShardEffects effects_;
  View view_;
  int moved_ = 0;
};

void Hold(uint64_t seeds, const sim::NetworkOptions& options) {
  uint64_t scans = 0;
  int moved = 0;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + seeds && !testing::Test::HasFailure();
       ++seed) {
    SCOPED_TRACE(absl::StrCat("see it again with TANDEM_SIM_SEEDS=1 and --seed=", seed));
    StoreRun run(seed, options);
    run.Run();
    scans += run.scans();
    moved += run.moved();
  }
  EXPECT_GT(scans, 0u);
  EXPECT_GT(moved, 0);
}

// What a peer chooses is checked before it is used: a refused frame changes nothing and has no
// answer.
TEST(StoreFramesTest, AreRefusedWhereTheyMakeNoSense) {
  const job::ResolvedJob plan = Plan();
  HeapBufferSource buffers;
  const auto shard = *server::ShardCore::New(plan, EndpointId::Shard(0, 0), 1, buffers);
  // the first range of the KEY_VALUE table; the one behind is elsewhere
  const uint32_t of_table = 6;
  // What the shard answers to one slice with keys 0, 1, 2, ...
  const auto ask = [&](FrameHeader header, SliceEntry e) {
    header.kind = FrameKind::kStore;
    header.incarnation = 9;
    header.group = plan.tables[kTable].group;
    std::vector<uint8_t> keys(size_t{e.rows} * 8), values(size_t{e.rows} * e.row_floats * 4);
    const absl::StatusOr<ParsedFrame> frame = DecodeFrame(EncodeDataFrame(
        buffers, header, {&e, 1}, CopyToBuffer(buffers, keys), CopyToBuffer(buffers, values)));
    TANDEM_CHECK_OK(frame.status());
    server::ShardEffects effects;
    shard->OnFrame(absl::UnixEpoch(), *frame, &effects);
    if (effects.out.empty()) {
      EXPECT_FALSE(effects.log.empty());
      return absl::optional<SliceEntry>();
    }
    const SliceEntry answer = DecodeFrame(effects.out[0].frame)->Entry(0);
    EXPECT_EQ(answer.status == SliceStatus::kRefused, !effects.log.empty());
    return absl::optional<SliceEntry>(answer);
  };
  FrameHeader good;
  good.sender = EndpointId::Reader(5);
  good.flags = static_cast<uint8_t>(StoreAction::kAssign);
  SliceEntry write;
  write.range = of_table;
  write.rows = 2;
  write.row_floats = kWidth;
  write.version = 1;
  EXPECT_FALSE(ask(good, write).has_value()) << "no view yet";
  server::ShardEffects effects;
  shard->OnView(absl::UnixEpoch(), *RangeMap::FromView(FirstView(plan), plan.sizes()), &effects);
  const auto with = [](auto value, const auto& change) {
    change(&value);
    return value;
  };
  const auto refuses = [&](const FrameHeader& header, const SliceEntry& e) {
    const absl::optional<SliceEntry> answer = ask(header, e);
    return answer.has_value() && answer->status == SliceStatus::kRefused;
  };
  EXPECT_EQ(ask(good, write)->status, SliceStatus::kOk);
  for (const uint8_t action : {0, 6, 255}) {
    EXPECT_TRUE(refuses(with(good, [&](FrameHeader* h) { h->flags = action; }), write));
  }
  for (const EndpointId sender :
       {EndpointId::Worker(1), EndpointId::Shard(1, 0), EndpointId::Scheduler()}) {
    EXPECT_FALSE(ask(with(good, [&](FrameHeader* h) { h->sender = sender; }), write).has_value());
  }
  const std::function<void(SliceEntry*)> wrong[] = {
      [](SliceEntry* e) { e->range = 0; },        // of a table that is trained
      [](SliceEntry* e) { e->range = 1 << 30; },  // of none
      [](SliceEntry* e) { e->rows = kMaxStoreRows + 1; },
      [](SliceEntry* e) { e->row_floats = kWidth - 1; },
      [](SliceEntry* e) { e->version = 0; },  // a write without a number
      [](SliceEntry* e) { e->version = -3; },
  };
  for (const auto& change : wrong) EXPECT_TRUE(refuses(good, with(write, change)));
  const FrameHeader scan =
      with(good, [](FrameHeader* h) { h->flags = static_cast<uint8_t>(StoreAction::kScan); });
  EXPECT_TRUE(refuses(scan, write)) << "a scan with keys";
  const auto elsewhere = ask(good, with(write, [](SliceEntry* e) { ++e->range; }));
  ASSERT_TRUE(elsewhere.has_value());
  EXPECT_EQ(elsewhere->status, SliceStatus::kWrongView);
  // Training frames have no business there either.
  FrameHeader pull;
  pull.kind = FrameKind::kPull;
  pull.sender = EndpointId::Worker(0);
  pull.group = plan.tables[kTable].group;
  SliceEntry read;
  read.range = of_table;
  effects.Clear();
  shard->OnFrame(absl::UnixEpoch(),
                 *DecodeFrame(EncodeDataFrame(buffers, pull, {&read, 1}, Buffer(), Buffer())),
                 &effects);
  EXPECT_TRUE(effects.out.empty());
  EXPECT_THAT(effects.log, testing::ElementsAre(testing::HasSubstr("takes no steps")));
}

TEST(StoreSimTest, AgreesWithItsModelOnAGoodNetwork) { Hold(SeedCount(5), {}); }

TEST(StoreSimTest, SurvivesAnything) {
  sim::NetworkOptions options;
  options.drop = 0.1;
  options.duplicate = 0.2;
  options.reorder = true;
  options.jitter = absl::Milliseconds(30);
  Hold(SeedCount(40), options);
}

// A writer by another job file: it hears why at once, and its next request is answered.
TEST(StoreTest, WhatMakesNoSenseIsRefusedWithTheReason) {
  const job::ResolvedJob plan = Plan();
  HeapBufferSource buffers;
  const EndpointId server = EndpointId::Shard(0, 0);
  const auto map = RangeMap::FromView(FirstView(plan), plan.sizes());
  ASSERT_TRUE(map.ok()) << map.status();
  auto shard = *server::ShardCore::New(plan, server, 500, buffers);
  server::ShardEffects effects;
  const absl::Time now = absl::UnixEpoch();
  job::ResolvedJob other = plan;
  other.tables[kTable].extra_floats = 3;
  uint64_t writer = 1001;
  const auto ask = [&](const job::ResolvedJob& by, StoreAction action) {
    client::StoreCore core(by, EndpointId::Reader(1), writer, buffers, Writer::Options());
    core.OnView(now, *map);
    const size_t width =
        static_cast<size_t>(by.tables[kTable].dim + by.tables[kTable].extra_floats);
    uint64_t key = 1;  // one of this server
    while ((*map)->range((*map)->Find(kTable, Position(by.tables[kTable].salt, key))).owner !=
           server) {
      ++key;
    }
    const std::vector<float> values(width, 1.0f);
    std::vector<float> rows(width);
    std::vector<uint8_t> found(1);
    client::StoreRequest request;
    request.table = kTable;
    request.action = action;
    request.keys = {&key, 1};
    if (HasStoreValues(action)) request.values = values;
    request.rows = absl::MakeSpan(rows);
    request.found = absl::MakeSpan(found);
    core.Start(now, request);
    EXPECT_EQ(core.out().size(), 1u);
    shard->OnFrame(now, *DecodeFrame(core.out().at(0).frame), &effects);
    for (const Outgoing& out : effects.out) {
      EXPECT_EQ(out.to, EndpointId::Reader(1));
      core.OnFrame(now, *DecodeFrame(out.frame));
    }
    effects.Clear();
    return core.completions().empty() ? absl::UnavailableError("no answer")
                                      : core.completions().at(0).status;
  };
  EXPECT_EQ(ask(plan, StoreAction::kAssign), absl::UnavailableError("no answer")) << "no view yet";
  shard->OnView(now, *map, &effects);
  effects.Clear();
  EXPECT_EQ(ask(other, StoreAction::kAssign),
            absl::InvalidArgumentError(absl::StrCat(
                server.DebugString(),
                " refuses rows of table items: write 1 with 1 rows of 5 floats, "
                "expected 3 and at most 4096 rows; hint: do all programs and servers use "
                "the same job file?")));
  EXPECT_EQ(ask(plan, StoreAction::kAssign), absl::OkStatus());
  EXPECT_EQ(ask(plan, StoreAction::kRead), absl::OkStatus());
  shard->RefuseWrites("a full disk");
  EXPECT_EQ(ask(plan, StoreAction::kAssign), absl::OkStatus()) << "applied before";
  ++writer;
  EXPECT_EQ(ask(plan, StoreAction::kAssign),
            absl::UnavailableError(absl::StrCat(
                server.DebugString(), " takes no writes of table items now: a full disk")));
}

}  // namespace
}  // namespace tandem
