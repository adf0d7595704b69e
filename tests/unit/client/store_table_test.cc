// KEY_VALUE tables with a scheduler and two servers, each on a thread, through the functions of the
// C interface: many writers at once against a model, a large table out and in again, refusals.
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/hash.h"
#include "base/random.h"
#include "capi/returns.h"
#include "capi/tandem_store.h"
#include "client/session.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/role_flags.h"
#include "node/transport_choice.h"
#include "scheduler/scheduler_shell.h"
#include "server/server_shell.h"
#include "tests/test_seed.h"
#include "transport/zmq_transport.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

constexpr char kJob[] = R"(
name: "store" seed: 3
cluster { workers: 1 servers: 2 }
data { format: PROGRAM }
table { name: "trained" dim: 2 optimizer { kind: SGD learning_rate: 1 } }
table { name: "items" dim: 3 extra_floats: 2 kind: KEY_VALUE }
table { name: "copy" dim: 3 extra_floats: 2 kind: KEY_VALUE }
dense { optimizer { learning_rate: 1 } }
model { program {} }
train { batch_size: 1 }
policy { kind: ASP }
)";
constexpr size_t kWidth = 5;
constexpr int64_t kWait = 60000;  // ms

class StoreTableTest : public testing::Test {
 protected:
  void SetUp() override {
    const absl::StatusOr<Job> job = job::ParseJob(kJob, "store.textproto", {});
    ASSERT_TRUE(job.ok()) << job.status();
    absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*job);
    ASSERT_TRUE(plan.ok()) << plan.status();
    plan_ = *std::move(plan);
    out_ = absl::StrCat(testing::TempDir(), "/store_table_test.", getpid());
    std::filesystem::create_directories(out_);
    transport::ZmqOptions zmq;
    zmq.context = std::make_shared<transport::ZmqContext>(1);
    scheduler_transport_ = transport::NewZmqTransport(zmq).value();
    scheduler_ = scheduler_transport_->address();
    threads_.emplace_back([this] {
      scheduler::SchedulerOptions options;
      options.plan = plan_;
      options.out_dir = out_;
      options.abort = &abort_;
      scheduler_ended_ = scheduler::ServeJob(options, *scheduler_transport_, "ZeroMQ");
    });
    for (uint64_t incarnation : {77, 78}) {
      threads_.emplace_back([this, incarnation] {
        server::ServerOptions options;
        options.plan = plan_;
        options.member.scheduler = scheduler_;
        options.member.incarnation = incarnation;
        options.member.make_transport =
            node::EndpointFactory(node::RoleFlags(), plan_.job.cluster(), incarnation,
                                  std::make_shared<transport::PathLog>());
        (void)server::RunServer(options);
      });
    }
    client::Session::Options options;
    options.scheduler = scheduler_;
    options.rank = 0;
    absl::StatusOr<std::unique_ptr<client::Session>> session = client::Session::Open(options);
    ASSERT_TRUE(session.ok()) << session.status();
    worker_ = *std::move(session);
  }
  void TearDown() override {
    abort_ = worker_ == nullptr;  // it never began
    if (worker_ != nullptr) {
      EXPECT_TRUE(worker_->Finish().ok()) << worker_->status();
    }
    for (std::thread& thread : threads_) thread.join();
    EXPECT_TRUE(worker_ == nullptr || scheduler_ended_.ok()) << scheduler_ended_;
    worker_.reset();
    scheduler_transport_.reset();
    std::filesystem::remove_all(out_);
  }

  struct Free {
    void operator()(tandem_store* store) const { tandem_store_free(store); }
    void operator()(tandem_scan* scan) const { tandem_scan_free(scan); }
  };
  using Store = std::unique_ptr<tandem_store, Free>;
  using Scan = std::unique_ptr<tandem_scan, Free>;
  Store Open(const char* table) const {
    tandem_store* store = nullptr;
    EXPECT_EQ(tandem_store_open(scheduler_.c_str(), table, kWait, &store), 0) << capi::LastError();
    return Store(store);
  }
  // All rows, in pieces of `most`.
  static std::map<int64_t, std::vector<float>> All(tandem_store* store, int64_t most) {
    tandem_scan* opened = nullptr;
    EXPECT_EQ(tandem_scan_open(store, &opened), 0);
    const Scan scan(opened);
    std::map<int64_t, std::vector<float>> all;
    std::vector<int64_t> keys(static_cast<size_t>(most));
    std::vector<float> rows(keys.size() * kWidth);
    int64_t count = 0;
    int more = 0;
    while ((more = tandem_scan_next(scan.get(), most, keys.data(), rows.data(), &count)) == 1) {
      for (int64_t i = 0; i < count; ++i) {
        const float* const row = rows.data() + static_cast<size_t>(i) * kWidth;
        EXPECT_TRUE(
            all.emplace(keys[static_cast<size_t>(i)], std::vector<float>(row, row + kWidth)).second)
            << "a row came twice";
      }
    }
    EXPECT_EQ(more, 0) << capi::LastError();
    return all;
  }

  job::ResolvedJob plan_;
  std::string out_, scheduler_;
  std::atomic<bool> abort_{false};
  std::unique_ptr<transport::Transport> scheduler_transport_;
  std::vector<std::thread> threads_;
  absl::Status scheduler_ended_;
  std::unique_ptr<client::Session> worker_;
};

// The keys that a writer alone writes, and what they ought to be; and keys that all write, each row
// with the number of its writer and of its write.
class Writer {
 public:
  static constexpr int kWriters = 8;
  static constexpr uint64_t kOwn = 300, kShared = 20;

  Writer(int index, tandem_store* store)
      : index_(index), store_(store), random_(HashCombine(TestSeed(), index)) {}

  void Step() {
    keys_.resize(1 + random_.Uniform(50));
    for (int64_t& key : keys_) {
      key = static_cast<int64_t>(Mix64(random_.Uniform(kOwn) * kWriters + index_));
    }
    rows_.resize(keys_.size() * kWidth);
    marks_.assign(keys_.size(), 2);
    switch (random_.Uniform(5)) {
      case 0:
        return Assign();
      case 1:
        return Insert();
      case 2:
        return Erase();
      case 3:
        return Shared();
      default:
        return Read();
    }
  }
  const std::map<int64_t, std::vector<float>>& model() const { return model_; }
  float last() const { return last_; }

  static int64_t SharedKey(uint64_t n) { return -1 - static_cast<int64_t>(n); }

 private:
  int64_t count() const { return static_cast<int64_t>(keys_.size()); }
  std::vector<float> Row(size_t i) const {
    return {rows_.begin() + static_cast<std::ptrdiff_t>(i * kWidth),
            rows_.begin() + static_cast<std::ptrdiff_t>((i + 1) * kWidth)};
  }
  void Fill() {
    for (float& value : rows_) value = static_cast<float>(random_.Normal());
  }
  void Assign() {
    Fill();
    ASSERT_EQ(tandem_store_assign(store_, count(), keys_.data(), rows_.data()), 0)
        << capi::LastError();
    for (size_t i = 0; i < keys_.size(); ++i) model_[keys_[i]] = Row(i);
  }
  void Insert() {
    Fill();
    ASSERT_EQ(tandem_store_insert(store_, count(), keys_.data(), rows_.data(), marks_.data()), 0)
        << capi::LastError();
    for (size_t i = 0; i < keys_.size(); ++i) {
      ASSERT_EQ(marks_[i], model_.emplace(keys_[i], Row(i)).second ? 1 : 0);
    }
  }
  void Erase() {
    ASSERT_EQ(tandem_store_erase(store_, count(), keys_.data(), marks_.data()), 0)
        << capi::LastError();
    for (size_t i = 0; i < keys_.size(); ++i) ASSERT_EQ(marks_[i], model_.erase(keys_[i]));
  }
  void Read() {
    const std::vector<float> untouched(kWidth, -7);
    std::fill(rows_.begin(), rows_.end(), -7.0f);
    ASSERT_EQ(tandem_store_read(store_, count(), keys_.data(), rows_.data(), marks_.data()), 0)
        << capi::LastError();
    for (size_t i = 0; i < keys_.size(); ++i) {
      const auto want = model_.find(keys_[i]);
      ASSERT_EQ(marks_[i], want == model_.end() ? 0 : 1);
      ASSERT_EQ(Row(i), want == model_.end() ? untouched : want->second);
    }
  }
  // Writes all shared rows, or reads them: no row is a mixture, and of no writer an older row is
  // seen once a newer one has been.
  void Shared() {
    keys_.clear();
    for (uint64_t n = 0; n < kShared; ++n) keys_.push_back(SharedKey(n));
    rows_.resize(keys_.size() * kWidth);
    if (random_.Bernoulli(0.5)) {
      last_ += 1;
      for (size_t i = 0; i < rows_.size(); ++i) {
        rows_[i] = i % kWidth == 0 ? static_cast<float>(index_) : last_;
      }
      ASSERT_EQ(tandem_store_assign(store_, count(), keys_.data(), rows_.data()), 0);
      return;
    }
    marks_.resize(keys_.size());
    ASSERT_EQ(tandem_store_read(store_, count(), keys_.data(), rows_.data(), marks_.data()), 0);
    for (size_t i = 0; i < keys_.size(); ++i) {
      if (marks_[i] == 0) continue;
      const std::vector<float> row = Row(i);
      for (size_t d = 2; d < kWidth; ++d) ASSERT_EQ(row[d], row[1]);
      float& newest = seen_[{keys_[i], static_cast<int>(row[0])}];
      ASSERT_GE(row[1], newest);
      newest = row[1];
    }
  }

  const int index_;
  tandem_store* const store_;
  Random random_;
  std::map<int64_t, std::vector<float>> model_;
  std::map<std::pair<int64_t, int>, float> seen_;
  float last_ = 0;
  std::vector<int64_t> keys_;
  std::vector<float> rows_;
  std::vector<uint8_t> marks_;
};

TEST_F(StoreTableTest, AModelOfEightWritersAgreesOnEveryRead) {
  std::vector<Store> stores;
  std::vector<std::unique_ptr<Writer>> writers;
  for (int w = 0; w < Writer::kWriters; ++w) {
    // Two writers of a process may share a store.
    if (w != 1) stores.push_back(Open("items"));
    ASSERT_NE(stores.back(), nullptr);
    writers.push_back(std::make_unique<Writer>(w, stores.back().get()));
  }
  std::vector<std::thread> threads;
  for (const auto& writer : writers) {
    threads.emplace_back([&writer] {
      for (int step = 0; step < 400 && !testing::Test::HasFatalFailure(); ++step) writer->Step();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::map<int64_t, std::vector<float>> want;
  for (const auto& writer : writers) want.insert(writer->model().begin(), writer->model().end());
  std::map<int64_t, std::vector<float>> all = All(stores.front().get(), 100);
  for (uint64_t n = 0; n < Writer::kShared; ++n) {
    const auto shared = all.find(Writer::SharedKey(n));
    ASSERT_NE(shared, all.end());
    const std::vector<float>& row = shared->second;
    EXPECT_EQ(row[1], writers[static_cast<size_t>(row[0])]->last()) << "somebody's last write";
    all.erase(shared);
  }
  EXPECT_EQ(all, want);
}

// A million rows: out by a scan, in by assignments, and the copy is the same.
TEST_F(StoreTableTest, AMillionRowsGoOutAndInAgainWhole) {
  constexpr int64_t kRows = 1'000'000;
  const Store items = Open("items"), copy = Open("copy");
  ASSERT_TRUE(items != nullptr && copy != nullptr);
  EXPECT_EQ(tandem_store_dim(items.get()), 3);
  EXPECT_EQ(tandem_store_extra_floats(items.get()), 2);
  EXPECT_EQ(tandem_store_row_floats(items.get()), 5);
  const auto value = [](int64_t key, size_t d) {
    return static_cast<float>(Mix64(static_cast<uint64_t>(key) * kWidth + d) >> 44);
  };
  std::vector<int64_t> keys(kRows);
  std::vector<float> rows(keys.size() * kWidth);
  for (size_t i = 0; i < keys.size(); ++i) {
    keys[i] = static_cast<int64_t>(Mix64(i));
    for (size_t d = 0; d < kWidth; ++d) rows[i * kWidth + d] = value(keys[i], d);
  }
  ASSERT_EQ(tandem_store_assign(items.get(), kRows, keys.data(), rows.data()), 0)
      << capi::LastError();
  tandem_scan* opened = nullptr;
  ASSERT_EQ(tandem_scan_open(items.get(), &opened), 0);
  const Scan scan(opened);
  constexpr int64_t kPage = 10000;
  int64_t count = 0, total = 0;
  std::vector<int64_t> page(kPage);
  std::vector<float> page_rows(kPage * kWidth);
  while (tandem_scan_next(scan.get(), kPage, page.data(), page_rows.data(), &count) == 1) {
    ASSERT_EQ(tandem_store_assign(copy.get(), count, page.data(), page_rows.data()), 0)
        << capi::LastError();
    total += count;
  }
  EXPECT_EQ(total, kRows);
  std::fill(rows.begin(), rows.end(), 0.0f);
  std::vector<uint8_t> found(keys.size());
  ASSERT_EQ(tandem_store_read(copy.get(), kRows, keys.data(), rows.data(), found.data()), 0);
  int64_t right = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    bool same = found[i] == 1;
    for (size_t d = 0; d < kWidth; ++d) same = same && rows[i * kWidth + d] == value(keys[i], d);
    right += same ? 1 : 0;
  }
  EXPECT_EQ(right, kRows);
  ASSERT_EQ(tandem_store_erase(copy.get(), kRows, keys.data(), nullptr), 0);
  EXPECT_TRUE(All(copy.get(), kPage).empty());
}

TEST_F(StoreTableTest, SaysWhatIsWrong) {
  tandem_store* store = nullptr;
  EXPECT_EQ(tandem_store_open(scheduler_.c_str(), "nothing", kWait, &store), -1);
  EXPECT_THAT(capi::LastError(), HasSubstr("no table 'nothing'"));
  EXPECT_EQ(tandem_store_open(scheduler_.c_str(), "trained", kWait, &store), -1);
  EXPECT_THAT(capi::LastError(), HasSubstr("kind: KEY_VALUE"));
  EXPECT_EQ(tandem_store_open("nowhere", "items", kWait, &store), -1);
  EXPECT_THAT(capi::LastError(), HasSubstr("the scheduler's address"));
  EXPECT_EQ(tandem_store_read(nullptr, 0, nullptr, nullptr, nullptr), -1);
  EXPECT_THAT(capi::LastError(), HasSubstr("store: a null pointer"));
  const Store items = Open("items");
  const int64_t key = 1;
  EXPECT_EQ(tandem_store_read(items.get(), -1, &key, nullptr, nullptr), -1);
  EXPECT_EQ(tandem_store_assign(items.get(), 1, &key, nullptr), -1);
  EXPECT_THAT(capi::LastError(), HasSubstr("rows: a null pointer"));
  EXPECT_EQ(tandem_store_erase(items.get(), 0, nullptr, nullptr), 0);
  // Training calls have nothing to do with such a table, nor the other way round.
  const client::TableKeys keys = {1, {reinterpret_cast<const uint64_t*>(&key), 1}};
  std::vector<float> row(kWidth);
  const absl::Span<float> to = absl::MakeSpan(row).first(3);
  const uint32_t group = plan_.tables[1].group;
  EXPECT_THAT(
      std::string(worker_->client().Pull(group, 0, {&keys, 1}, {&to, 1}).status().message()),
      HasSubstr("a KEY_VALUE table has no steps"));
  client::StoreRequest request;
  EXPECT_THAT(std::string(worker_->client().Store(request).status().message()),
              HasSubstr("not of kind KEY_VALUE"));
  request.table = 1;
  request.keys = keys.keys;
  EXPECT_THAT(std::string(worker_->client().Store(request).status().message()),
              HasSubstr("expected 0 floats, 5 floats"));
}

}  // namespace
}  // namespace tandem
