// A push whose path breaks while it is under way arrives once, by another way: the test of it, for
// any two ways and any means of breaking the first.
#ifndef TANDEM_TESTS_UNIT_TRANSPORT_PUSHES_ACROSS_A_BREAK_H_
#define TANDEM_TESTS_UNIT_TRANSPORT_PUSHES_ACROSS_A_BREAK_H_

#include <functional>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "client/client.h"
#include "gtest/gtest.h"
#include "tools/bench/lone_shard.h"
#include "transport/transport.h"

namespace tandem {

struct PathThatBreaks {
  std::function<std::unique_ptr<transport::Transport>()> endpoint;  // called once for each end
  std::function<void()> break_it;                                   // with a push under way
  std::function<bool()> other_way;  // true once the other way is taken
  absl::Duration patience;          // for that
};

// Frames that are there already, or whose receivers look before they sleep, still pass by a path
// that broke: pushes go on until the other way is taken.
inline void ExpectEachPushAppliedOnce(const PathThatBreaks& path) {
  constexpr int kBefore = 20, kAtLeast = 60;
  const job::ResolvedJob plan = bench::LoneShardPlan(
      "table { name: \"t\" dim: 1 optimizer { kind: SGD learning_rate: 1 } "
      "initializer { kind: ZERO } }\n",
      "kind: ASP", 1);
  bench::LoneShard shard(plan, path.endpoint());
  client::Client::Options options;
  options.incarnation = 2;
  auto client = client::Client::New(plan, path.endpoint(), options);
  ASSERT_TRUE(client.ok()) << client.status();
  ASSERT_TRUE((*client)->SetView(shard.view()).ok());
  const std::vector<uint64_t> ids = {7};
  const std::vector<float> gradient = {1};
  const client::TableKeys keys = {0, ids};
  const absl::Span<const float> gradients = gradient;
  int pushes = 0;
  const absl::Time end = MonotonicNow() + path.patience;
  for (; pushes < kAtLeast || (!path.other_way() && MonotonicNow() < end); ++pushes) {
    auto push =
        (*client)->Push(0, pushes, 1, {&keys, 1}, {&gradients, 1}, client::Client::Ids::kUnique);
    if (pushes == kBefore) path.break_it();
    ASSERT_TRUE(push.status().ok()) << push.status();
  }
  EXPECT_TRUE(path.other_way());
  std::vector<float> row = {99};
  const absl::Span<float> rows = absl::MakeSpan(row);
  ASSERT_TRUE((*client)
                  ->Pull(0, pushes, {&keys, 1}, {&rows, 1}, client::Client::Ids::kUnique)
                  .status()
                  .ok());
  EXPECT_EQ(row[0], -static_cast<float>(pushes)) << "each once";
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_TRANSPORT_PUSHES_ACROSS_A_BREAK_H_
