// The client for programs of their own: a real shard on a thread, in-process transport.
#include "client/client.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"
#include "tools/bench/lone_shard.h"
#include "transport/in_process.h"

namespace tandem {
namespace {

// Rows start at 0 and change by minus the gradient sum over its samples.
std::string Tables(int dim) {
  return absl::StrCat("table { name: \"ids\" dim: ", dim,
                      " initializer { kind: ZERO } optimizer { kind: SGD learning_rate: 1 } }\n");
}

class ClientTest : public testing::Test {
 protected:
  void Start(const std::string& policy, int workers, const client::Client::Options& options) {
    plan_ = bench::LoneShardPlan(Tables(kDim), policy, workers);
    shard_ = std::make_unique<bench::LoneShard>(plan_, NewTransport());
    client_ = NewClient(options);
    ASSERT_TRUE(client_->SetView(shard_->view()).ok());
  }
  std::unique_ptr<transport::Transport> NewTransport() { return network_.NewTransport({}).value(); }
  std::unique_ptr<client::Client> NewClient(client::Client::Options options) {
    options.incarnation = 100 + static_cast<uint64_t>(options.self.index);
    return client::Client::New(plan_, NewTransport(), options).value();
  }
  client::Future Pull(int64_t step, const std::vector<uint64_t>& ids, std::vector<float>* rows) {
    rows->assign(ids.size() * kDim, -1);
    const client::TableKeys keys = {0, ids};
    const absl::Span<float> to = absl::MakeSpan(*rows);
    return client_->Pull(0, step, {&keys, 1}, {&to, 1});
  }
  client::Future Push(int64_t step, const std::vector<uint64_t>& ids,
                      const std::vector<float>& gradients) {
    const client::TableKeys keys = {0, ids};
    const absl::Span<const float> from = gradients;
    return client_->Push(0, step, 1, {&keys, 1}, {&from, 1});
  }

  static constexpr int kDim = 3;
  const std::vector<uint64_t> five_ = {5};  // ids stay valid until the future is done
  transport::InProcessNetwork network_;
  job::ResolvedJob plan_;
  std::unique_ptr<bench::LoneShard> shard_;
  std::unique_ptr<client::Client> client_;
};

// Rows read are the sums of what was pushed, by a plain map, with ids that repeat in reads and
// pushes, and requests that are cut into many frames.
TEST_F(ClientTest, AgreesWithAMapAlsoWhenIdsRepeat) {
  client::Client::Options options;
  options.core.frame_bytes = 500;
  Start("kind: ASP", 1, options);
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("rerun with --seed=", seed));
  Random random(seed);
  std::map<uint64_t, std::vector<float>> model;
  for (int64_t step = 0; step < 40; ++step) {
    std::vector<uint64_t> ids(random.Uniform(300));
    const uint64_t distinct = 1 + random.Uniform(400);
    std::vector<float> gradients, rows;
    for (uint64_t& id : ids) {
      id = Mix64(random.Uniform(distinct));
      for (int d = 0; d < kDim; ++d) gradients.push_back(static_cast<float>(random.Uniform(9)));
    }
    ASSERT_TRUE(Pull(step, ids, &rows).status().ok());
    for (size_t i = 0; i < ids.size(); ++i) {
      std::vector<float>& want = model.try_emplace(ids[i], kDim, 0.0f).first->second;
      for (int d = 0; d < kDim; ++d) ASSERT_EQ(rows[i * kDim + d], want[d]) << "step " << step;
    }
    ASSERT_TRUE(Push(step, ids, gradients).status().ok());
    for (size_t i = 0; i < gradients.size(); ++i) model[ids[i / kDim]][i % kDim] -= gradients[i];
  }
}

// The same in place: rows are read where they arrived, and gradients written where they leave from.
TEST_F(ClientTest, AgreesWithAMapInPlace) {
  client::Client::Options options;
  options.core.frame_bytes = 500;
  Start("kind: ASP", 1, options);
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("rerun with --seed=", seed));
  Random random(seed);
  std::map<uint64_t, std::vector<float>> model;
  client::PulledRows rows;
  client::Client::PreparedPush push;
  for (int64_t step = 0; step < 40; ++step) {
    std::set<uint64_t> distinct;
    const uint64_t count = random.Uniform(300);
    while (distinct.size() < count) distinct.insert(Mix64(random.Uniform(400)));
    const std::vector<uint64_t> ids(distinct.begin(), distinct.end());
    const client::TableKeys keys = {0, ids};
    client::PulledRows* const to = &rows;
    ASSERT_TRUE(client_->PullInPlace(0, step, {&keys, 1}, {&to, 1}).status().ok());
    ASSERT_TRUE(client_->PreparePush(0, {&keys, 1}, &push).ok());
    for (size_t i = 0; i < ids.size(); ++i) {
      std::vector<float>& want = model.try_emplace(ids[i], kDim, 0.0f).first->second;
      for (int d = 0; d < kDim; ++d) {
        ASSERT_EQ(rows.at()[i][d], want[d]) << "step " << step;
        const float gradient = static_cast<float>(random.Uniform(9));
        push.at(0)[i][d] = gradient;
        want[d] -= gradient;
      }
    }
    ASSERT_TRUE(client_->Push(step, 1, &push).status().ok());
  }
}

TEST_F(ClientTest, RefusesWhatCannotBeInPlace) {
  Start("kind: ASP", 1, {});
  client::Client::PreparedPush push;
  const auto refused = [&](uint32_t group, const client::TableKeys& keys) {
    return absl::IsInvalidArgument(client_->PreparePush(group, {&keys, 1}, &push));
  };
  EXPECT_TRUE(refused(0, {0, five_, /*may_repeat=*/true}));
  const client::TableKeys repeated = {0, five_, /*may_repeat=*/true};
  client::PulledRows in_place;
  client::PulledRows* const to = &in_place;
  const client::Future read = client_->PullInPlace(0, 0, {&repeated, 1}, {&to, 1});
  EXPECT_TRUE(absl::IsInvalidArgument(read.status()));
  EXPECT_TRUE(refused(0, {9, five_}));
  EXPECT_TRUE(refused(9, {0, five_}));
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Push(0, 1, &push).status())) << "never prepared";
  const client::TableKeys keys = {0, five_};
  ASSERT_TRUE(client_->PreparePush(0, {&keys, 1}, &push).ok());
  std::fill_n(push.at(0)[0], kDim, 2.0f);
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Push(-1, 1, &push).status()));
  EXPECT_TRUE(client_->Push(0, 1, &push).status().ok()) << "what was refused may be sent yet";
  EXPECT_TRUE(absl::IsInvalidArgument(client_->Push(1, 1, &push).status())) << "sent already";
  std::vector<float> rows;
  ASSERT_TRUE(Pull(1, five_, &rows).status().ok());
  EXPECT_EQ(rows, std::vector<float>(kDim, -2));
}

// Each id of a request travels once.
TEST_F(ClientTest, RepeatedIdsTravelOnce) {
  Start("kind: ASP", 1, {});
  std::vector<float> rows;
  ASSERT_TRUE(Pull(0, std::vector<uint64_t>(1000, 7), &rows).status().ok());
  EXPECT_EQ(rows, std::vector<float>(1000 * kDim, 0));
  EXPECT_LT(client_->counters().pull_bytes, 1000u);
  EXPECT_LT(client_->counters().rows_bytes, 1000u);
  ASSERT_TRUE(
      Push(0, std::vector<uint64_t>(1000, 7), std::vector<float>(1000 * kDim, 1)).status().ok());
  EXPECT_LT(client_->counters().push_bytes, 1000u);
  ASSERT_TRUE(Pull(1, {7}, &rows).status().ok());
  EXPECT_EQ(rows, std::vector<float>(kDim, -1000));
}

// Many requests at once, from several threads: all end, and no push is lost.
TEST_F(ClientTest, ManyThreadsManyRequests) {
  client::Client::Options options;
  options.max_in_flight = 3;
  Start("kind: ASP", 1, options);
  constexpr int64_t kPushes = 200;
  std::vector<std::thread> readers;
  for (int t = 0; t < 3; ++t) {
    readers.emplace_back([this] {
      for (int i = 0; i < 100; ++i) {
        std::vector<float> rows;
        EXPECT_TRUE(Pull(0, {1, 2, 1}, &rows).status().ok());
        EXPECT_EQ(rows[0], rows[2 * kDim]);
      }
    });
  }
  const std::vector<uint64_t> ids = {1, 2, 2};
  const std::vector<float> ones(ids.size() * kDim, 1);
  std::vector<client::Future> pushes;
  for (int64_t step = 0; step < kPushes; ++step) pushes.push_back(Push(step, ids, ones));
  for (const client::Future& push : pushes) EXPECT_TRUE(push.status().ok()) << push.status();
  for (std::thread& reader : readers) reader.join();
  std::vector<float> rows;
  ASSERT_TRUE(Pull(kPushes, {1, 2}, &rows).status().ok());
  EXPECT_EQ(rows[0], -kPushes);
  EXPECT_EQ(rows[kDim], -2 * kPushes);
}

// Requests that nobody waits for get done, too.
TEST_F(ClientTest, NobodyNeedsToWait) {
  Start("kind: ASP", 1, {});
  for (int64_t step = 0; step < 20; ++step) {
    std::vector<float> rows;
    const client::Future push = Push(step, {5}, {1, 1, 1});
    const client::Future read = Pull(step + 1, five_, &rows);
    while (!push.done() || !read.done()) absl::SleepFor(absl::Microseconds(100));
    EXPECT_TRUE(push.status().ok()) << push.status();
    EXPECT_EQ(rows[0], -static_cast<float>(step + 1));
    // The thread that served these may sleep deeply by the next turn.
    if (step == 10) absl::SleepFor(absl::Milliseconds(100));
  }
}

// Several threads wait for one request, one of them not for long; then it is cancelled under them.
TEST_F(ClientTest, ManyWaitForOneThatIsCancelled) {
  Start("kind: BSP", 2, {});
  ASSERT_TRUE(Push(0, {5}, {1, 1, 1}).status().ok());
  std::vector<float> rows;
  const client::Future read = Pull(1, five_, &rows);
  std::atomic<int> waiting{0};
  std::vector<std::thread> waiters;
  for (int t = 0; t < 3; ++t) {
    waiters.emplace_back([read, &waiting] {
      ++waiting;
      EXPECT_TRUE(absl::IsCancelled(read.status())) << read.status();
    });
  }
  EXPECT_FALSE(read.WaitFor(absl::Milliseconds(5)));
  while (waiting < 3) absl::SleepFor(absl::Microseconds(100));
  client_.reset();
  for (std::thread& waiter : waiters) waiter.join();
}

// The bound refuses when asked to; a read that BSP holds back ends once the other worker has
// pushed.
TEST_F(ClientTest, BoundRefusesAndAnswersComeLater) {
  client::Client::Options options;
  options.max_in_flight = 1;
  options.refuse_when_full = true;
  Start("kind: BSP", 2, options);
  ASSERT_TRUE(Push(0, {5}, {1, 1, 1}).status().ok());
  std::vector<float> rows, more;
  const client::Future read = Pull(1, five_, &rows);
  const client::Future refused = Pull(1, five_, &more);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status())) << refused.status();
  EXPECT_FALSE(read.done());  // worker 1 has not pushed step 0
  options.self = EndpointId::Worker(1);
  const std::unique_ptr<client::Client> other = NewClient(options);
  ASSERT_TRUE(other->SetView(shard_->view()).ok());
  ASSERT_TRUE(other->Push(0, 0, 1, {}, {}).status().ok());
  ASSERT_TRUE(read.status().ok());
  EXPECT_EQ(rows, std::vector<float>(kDim, -0.5f));  // one gradient of 1 over two samples
  EXPECT_TRUE(Pull(1, {5}, &more).status().ok());
}

// A call beyond the bound blocks until there is room.
TEST_F(ClientTest, BoundBlocks) {
  client::Client::Options options;
  options.max_in_flight = 1;
  Start("kind: BSP", 2, options);
  ASSERT_TRUE(Push(0, {5}, {1, 1, 1}).status().ok());
  std::vector<float> rows;
  const client::Future read = Pull(1, five_, &rows);
  std::atomic<bool> entered{false};
  std::thread blocked([&] {
    std::vector<float> more;
    const client::Future second = Pull(1, five_, &more);
    entered = true;
    EXPECT_TRUE(second.status().ok());
  });
  EXPECT_FALSE(read.WaitFor(absl::Milliseconds(20)));
  EXPECT_FALSE(entered);  // it cannot be: the first read is still under way
  options.self = EndpointId::Worker(1);
  const std::unique_ptr<client::Client> other = NewClient(options);
  ASSERT_TRUE(other->SetView(shard_->view()).ok());
  ASSERT_TRUE(other->Push(0, 0, 1, {}, {}).status().ok());
  blocked.join();
  EXPECT_TRUE(read.status().ok());
}

// A shard that is gone is named, with the key range.
TEST_F(ClientTest, SilenceNamesServerAndKeyRange) {
  client::Client::Options options;
  options.core.resend_after = absl::Milliseconds(20);
  options.core.silence_limit = absl::Milliseconds(200);
  Start("kind: ASP", 1, options);
  std::vector<float> rows;
  ASSERT_TRUE(Pull(0, {5}, &rows).status().ok());
  shard_->Stop();
  const absl::Status status = Pull(0, {5}, &rows).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              testing::HasSubstr("server 0 shard 0, table ids, positions [0x"));
}

// A request whose connection is lost goes out again on the next one, without waiting for silence.
TEST_F(ClientTest, ALostConnectionIsMadeAgain) {
  client::Client::Options options;
  options.core.resend_after = options.core.silence_limit = absl::Hours(1);
  Start("kind: ASP", 1, options);
  const std::string address = shard_->view().server(0).endpoint(0);
  shard_->Stop();  // it listens, and hears nothing
  std::vector<float> rows;
  const client::Future read = Pull(0, five_, &rows);
  EXPECT_FALSE(read.WaitFor(absl::Milliseconds(50)));
  ASSERT_TRUE(network_.Kill(address).ok());
  shard_.reset();
  transport::InProcessOptions again;
  again.address = address;
  shard_ = std::make_unique<bench::LoneShard>(plan_, network_.NewTransport(again).value());
  EXPECT_TRUE(read.status().ok()) << read.status();
  EXPECT_EQ(rows, std::vector<float>(kDim, 0));
  EXPECT_EQ(client_->counters().frames_resent, 1u);
}

// The caller's arrays may go as soon as a wait has been given up.
TEST_F(ClientTest, ACancelledRequestTouchesNothing) {
  client::Client::Options options;
  options.max_in_flight = 1;
  Start("kind: BSP", 2, options);
  ASSERT_TRUE(Push(0, five_, {1, 1, 1}).status().ok());
  std::vector<float> rows;
  const client::Future read = Pull(1, five_, &rows);
  EXPECT_FALSE(read.WaitFor(absl::Milliseconds(20))) << "worker 1 has not pushed";
  read.Cancel();
  EXPECT_TRUE(read.done());
  EXPECT_TRUE(absl::IsCancelled(read.status())) << read.status();
  rows.assign(kDim, -7);
  client::Client::Options other;
  other.self = EndpointId::Worker(1);
  const std::unique_ptr<client::Client> second = NewClient(other);
  ASSERT_TRUE(second->SetView(shard_->view()).ok());
  ASSERT_TRUE(second->Push(0, 0, 1, {}, {}).status().ok());  // now the shard answers
  std::vector<float> again;
  ASSERT_TRUE(Pull(1, five_, &again).status().ok()) << "there is room again";
  EXPECT_EQ(again, std::vector<float>(kDim, -0.5f));
  EXPECT_EQ(rows, std::vector<float>(kDim, -7));
  read.Cancel();  // twice
  EXPECT_TRUE(absl::IsCancelled(read.status()));
}

// Whatever a request waits for counts: also a policy, which a shard speaks of all the time.
TEST_F(ClientTest, ADeadlineIsTotal) {
  client::Client::Options options;
  options.deadline = absl::Milliseconds(100);
  Start("kind: BSP", 2, options);
  ASSERT_TRUE(Push(0, five_, {1, 1, 1}).status().ok());
  std::vector<float> rows;
  const absl::Status late = Pull(1, five_, &rows).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(std::string(late.message()), testing::AllOf(testing::HasSubstr("pull of step 1"),
                                                          testing::HasSubstr("server 0 shard 0")));
}

TEST_F(ClientTest, AReadSeesTheRowsAsTheyAre) {
  Start("kind: BSP", 2, {});
  ASSERT_TRUE(Push(0, five_, {2, 2, 2}).status().ok());
  client::Client::Options reader;
  reader.self = EndpointId::Reader(3);
  const std::unique_ptr<client::Client> looks = NewClient(reader);
  ASSERT_TRUE(looks->SetView(shard_->view()).ok());
  const std::vector<uint64_t> ids = {5, 6, 5};
  std::vector<float> rows(ids.size() * kDim, -1);
  ASSERT_TRUE(looks->Read(0, ids, absl::MakeSpan(rows)).status().ok());
  EXPECT_EQ(rows, std::vector<float>(ids.size() * kDim, 0)) << "the step is not closed";
  const client::TableKeys keys = {0, five_};
  const absl::Span<float> to = absl::MakeSpan(rows).first(kDim);
  EXPECT_TRUE(absl::IsFailedPrecondition(looks->Pull(0, 0, {&keys, 1}, {&to, 1}).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(looks->Push(0, 0, 1, {}, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(looks->Read(7, five_, to).status()));
  looks->Fail(absl::AbortedError("enough"));
  EXPECT_TRUE(absl::IsAborted(looks->Read(0, five_, to).status()));
}

// Mistakes of the program end in a status, never in a crash.
TEST_F(ClientTest, RefusesWhatIsMalformed) {
  Start("kind: ASP", 1, {});
  std::vector<float> rows(kDim + 1);
  const uint64_t id = 1;
  const client::TableKeys good = {0, {&id, 1}}, elsewhere = {9, {&id, 1}};
  const std::vector<client::TableKeys> twice = {good, good};
  const absl::Span<float> right = absl::MakeSpan(rows).first(kDim), wrong = absl::MakeSpan(rows);
  const std::vector<absl::Span<float>> two = {right, right};
  for (const client::Future& future :
       {client_->Pull(0, 0, {&good, 1}, {&wrong, 1}), client_->Pull(0, 0, {&good, 1}, {}),
        client_->Pull(7, 0, {&good, 1}, {&right, 1}), client_->Pull(0, -1, {&good, 1}, {&right, 1}),
        client_->Pull(0, 0, {&elsewhere, 1}, {&right, 1}), client_->Pull(0, 0, twice, two)}) {
    EXPECT_TRUE(absl::IsInvalidArgument(future.status())) << future.status();
  }
  EXPECT_TRUE(client_->Pull(0, 0, {&good, 1}, {&right, 1}).status().ok());
  EXPECT_FALSE(client_->SetView(View()).ok());
  client::Client::Options bad;
  bad.self = EndpointId::Worker(1);
  bad.incarnation = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(client::Client::New(plan_, NewTransport(), bad).status()));
}

// Without a view nothing can be asked; closing ends what is under way.
TEST_F(ClientTest, NoViewAndClosing) {
  Start("kind: BSP", 2, {});
  const std::unique_ptr<client::Client> blind = NewClient({});
  EXPECT_TRUE(absl::IsFailedPrecondition(blind->Push(0, 0, 1, {}, {}).status()));
  ASSERT_TRUE(Push(0, {5}, {1, 1, 1}).status().ok());
  std::vector<float> rows;
  const client::Future read = Pull(1, five_, &rows);
  client_.reset();
  EXPECT_TRUE(absl::IsCancelled(read.status())) << read.status();
}

}  // namespace
}  // namespace tandem
