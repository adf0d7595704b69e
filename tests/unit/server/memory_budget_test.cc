// The memory budget of a server: exact at its limit, whoever takes; what it counts for a store that
// grows, against what the system says; and the processes that share a host.
#include "server/rows/memory_budget.h"

#include <atomic>
#include <cstddef>
#include <cstring>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "base/proc_files.h"
#include "gtest/gtest.h"
#include "optim/optimizer.h"
#include "server/rows/page_arena.h"
#include "server/rows/row_copies.h"
#include "server/rows/row_table.h"
#include "tests/sanitized.h"

namespace tandem {
namespace {

using server::MemoryBudget;

constexpr size_t kMiB = size_t{1} << 20;

TEST(MemoryBudgetTest, RefusesWhatExceedsTheLimit) {
  MemoryBudget budget(/*limit=*/100, /*process=*/30);
  EXPECT_EQ(budget.used(), 30u);
  EXPECT_TRUE(budget.TryTake(70));
  EXPECT_FALSE(budget.TryTake(1));
  EXPECT_EQ(budget.used(), 100u) << "a refusal changes nothing";
  budget.Give(70);
  EXPECT_EQ(budget.room(), 70u);
}

TEST(MemoryBudgetTest, PartsCountAsTheyAreAndAreGoneWithTheirObject) {
  MemoryBudget budget(/*limit=*/100);
  {
    MemoryBudget::Part part(&budget), none(nullptr);
    part.Set(80);
    none.Set(80);
    EXPECT_EQ(budget.used(), 80u);
    part.Set(120);  // cannot be refused
    EXPECT_EQ(budget.room(), 0u);
    EXPECT_FALSE(budget.TryTake(1));
    part.Set(10);
    EXPECT_EQ(budget.room(), 90u);
  }
  EXPECT_EQ(budget.used(), 0u);
}

// Rows of AT_BUDGET stop before the margin, and other rows may take it.
TEST(MemoryBudgetTest, TheMarginIsNotForRowsThatGiveWay) {
  MemoryBudget budget(/*limit=*/1600, /*process=*/0, /*margin=*/400, /*slack=*/100);
  EXPECT_TRUE(budget.MayGrow(1100));
  EXPECT_FALSE(budget.MayGrow(1101));
  ASSERT_TRUE(budget.TryTake(1200));
  EXPECT_FALSE(budget.nearly_full());
  EXPECT_FALSE(budget.MayGrow(0));
  ASSERT_TRUE(budget.TryTake(1));
  EXPECT_TRUE(budget.nearly_full());
  EXPECT_TRUE(budget.TryTake(399));
  EXPECT_FALSE(budget.TryTake(1));
}

// Copies that take no more than their part of the margin evict no row. More copies do not end the
// job either: the shard gives up the checkpoint.
TEST(MemoryBudgetTest, CopiesUseTheirPartOfTheMargin) {
  constexpr size_t kBlock = server::CopyBlocks::kBytes;
  MemoryBudget budget(/*limit=*/20 * kBlock, /*process=*/0, /*margin=*/8 * kBlock,
                      /*slack=*/kBlock, /*for_copies=*/2 * kBlock);
  ASSERT_TRUE(budget.TryTake(11 * kBlock));
  server::CopyBlocks blocks(&budget);
  std::vector<std::unique_ptr<std::byte[]>> taken;
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(budget.MayCopyAhead());
    taken.push_back(blocks.Take());
    EXPECT_TRUE(budget.MayGrow(0));
  }
  EXPECT_FALSE(budget.MayCopyAhead());
  EXPECT_EQ(budget.room(), 7 * kBlock);
  taken.push_back(blocks.Take());
  EXPECT_FALSE(budget.MayGrow(0)) << "more than their part";
  while (budget.room() >= 3 * kBlock) {
    EXPECT_FALSE(budget.copies_crowd());
    taken.push_back(blocks.Take());
  }
  EXPECT_TRUE(budget.copies_crowd());
  EXPECT_FALSE(budget.nearly_full()) << "of rows";
  blocks.Close();
  for (auto& block : taken) blocks.Give(std::move(block));
  EXPECT_EQ(budget.used(), 11 * kBlock);
  EXPECT_FALSE(budget.nearly_full());
  ASSERT_TRUE(budget.TryTake(kBlock + 1));
  EXPECT_TRUE(budget.nearly_full()) << "their part is not for rows";
}

// Memory that is resident and not counted belongs to the process. The process may shrink again, but
// not below its first size.
TEST(MemoryBudgetTest, TheProcessIsMeasuredAgain) {
  MemoryBudget budget(/*limit=*/1000, /*process=*/100);
  ASSERT_TRUE(budget.TryTake(200));
  budget.OnResident(250);
  EXPECT_EQ(budget.used(), 300u) << "pages that are counted and not written yet";
  budget.OnResident(700);
  EXPECT_EQ(budget.used(), 700u);
  EXPECT_FALSE(budget.TryTake(301));
  budget.OnResident(400);
  EXPECT_EQ(budget.used(), 400u);
  budget.OnResident(700, /*before=*/500);
  EXPECT_EQ(budget.used(), 400u) << "memory that has been given back meanwhile";
  budget.Give(200);
}

TEST(MemoryBudgetTest, ThreadsNeverExceedTheLimitTogether) {
  constexpr int kThreads = 4, kTries = 10'000;
  MemoryBudget budget(/*limit=*/1000);
  std::atomic<int> taken{0}, most{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kTries; ++i) {
        if (!budget.TryTake(300)) continue;
        const int now = taken.fetch_add(300) + 300;
        for (int seen = most; now > seen && !most.compare_exchange_weak(seen, now);) continue;
        taken.fetch_sub(300);
        budget.Give(300);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(most.load(), 900);
  EXPECT_EQ(budget.used(), 0u);
}

// A request that is refused takes nothing from other threads, not even for a moment.
TEST(MemoryBudgetTest, ARefusalTakesNothingFromOthers) {
  constexpr int kTries = 1'000'000;
  MemoryBudget budget(/*limit=*/1000);
  std::atomic<bool> done{false};
  std::thread greedy([&] {
    while (!done) EXPECT_FALSE(budget.TryTake(2000));
  });
  int refused = 0;
  for (int i = 0; i < kTries; ++i) {
    if (budget.TryTake(300)) {
      budget.Give(300);
    } else {
      ++refused;
    }
  }
  done = true;
  greedy.join();
  EXPECT_EQ(refused, 0);
}

// A store that grows to a gigabyte of counted pages, and a copy of its rows: the sum is what the
// system says, within 64 MB.
TEST(MemoryBudgetTest, CountsWhatTheSystemSays) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  Optimizer config;
  config.set_kind(Optimizer::ADAGRAD);
  config.set_learning_rate(0.1);
  const auto optimizer = *optim::NewRowOptimizer(config);
  MemoryBudget budget(size_t{8} << 30, ResidentBytes());
  server::PageArena arena(&budget);
  server::RowTable::Options options;
  options.dim = 16;
  options.optimizer = optimizer.get();
  options.arena = &arena;
  server::RowTable store(options);
  const auto expect_near = [&budget] {
    const auto used = static_cast<double>(budget.used());
    EXPECT_NEAR(static_cast<double>(ResidentBytes()), used, 64.0 * kMiB);
  };
  constexpr uint64_t kRows = 2'000'000, kBatch = 100'000;
  std::vector<uint64_t> keys(kBatch);
  const std::vector<float> gradients(kBatch * 16, 0.5f);
  for (uint64_t first = 0; first < kRows; first += kBatch) {
    for (uint64_t i = 0; i < kBatch; ++i) keys[i] = Mix64(first + i);
    TANDEM_CHECK_OK(store.Push(keys, gradients, 1, {.number = 1}));
    expect_near();
  }
  EXPECT_GT(budget.used(), 256 * kMiB);
  const size_t before = budget.used();
  {
    const auto blocks = std::make_shared<server::CopyBlocks>(&budget);
    server::RowCopies copies = store.NewCopies(blocks);
    for (uint64_t cursor = store.CopyRows(0, kBatch, &copies); cursor != 0;) {
      cursor = store.CopyRows(cursor, kBatch, &copies);
    }
    expect_near();
    EXPECT_GT(budget.used() - before, 256 * kMiB);
    copies = server::RowCopies();
    blocks->Close();
  }
  EXPECT_EQ(budget.used(), before);
}

// malloc keeps memory that is followed by memory in use. It would count for the process.
TEST(MemoryBudgetTest, FreeCopiesLeaveTheProcess) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  constexpr size_t kBlocks = 400;  // 100 MiB
  std::vector<std::unique_ptr<char[]>> in_use;
  for (int round = 0; round < 3; ++round) {
    const size_t before = ResidentBytes();
    server::CopyBlocks blocks;
    std::vector<std::unique_ptr<std::byte[]>> taken;
    for (size_t i = 0; i < kBlocks; ++i) {
      taken.push_back(blocks.Take());
      std::memset(taken.back().get(), 1, server::CopyBlocks::kBytes);
      if (i % 20 == 0) in_use.push_back(std::make_unique<char[]>(3000));
    }
    EXPECT_GT(ResidentBytes(), before + 90 * kMiB);
    for (size_t i = 0; i < kBlocks; ++i) {
      if (i == kBlocks / 2) blocks.Close();
      blocks.Give(std::move(taken[i]));
    }
    EXPECT_LT(ResidentBytes(), before + 20 * kMiB) << "round " << round;
  }
}

TEST(MemoryBudgetTest, ProcessesOfAHostShareIt) {
  View view;
  const auto add = [](Member* member, const char* host, int64_t pid) {
    member->set_host(host);
    member->set_pid(pid);
  };
  add(view.add_server(), "a", 1);
  add(view.add_server(), "b", 1);
  add(view.add_server(), "b", 2);  // a worker that serves rows is a server, too
  add(view.add_worker(), "b", 2);
  add(view.add_worker(), "b", 3);
  EXPECT_EQ(server::ProcessesOnHost(view, 0), 1);
  EXPECT_EQ(server::ProcessesOnHost(view, 1), 3);
  EXPECT_EQ(server::DefaultMemoryLimit({.total = 1000, .available = 10}, 4), 200u);
}

}  // namespace
}  // namespace tandem
