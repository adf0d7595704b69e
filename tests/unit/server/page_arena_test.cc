// The arena and the memory that grows in it: blocks do not overlap and read as zero, the counts are
// exact, memory goes back, and a lack of memory is a status that changes nothing.
#include "server/rows/page_arena.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/memory_full.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "optim/optimizer.h"
#include "server/rows/growable_memory.h"
#include "server/rows/memory_budget.h"
#include "server/rows/row_table.h"
#include "tests/sanitized.h"
#include "tests/test_seed.h"
#include "tests/unit/server/limited_child.h"

namespace tandem {
namespace {

using server::GrowableMemory;
using server::PageArena;
using Pages = PageArena::Pages;
using ::testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;

// A block with its owner's mark in the first and the last bytes of what is counted.
struct Owned {
  Pages pages;
  size_t bytes = 0;
  size_t counted = 0;
  char* at = nullptr;
  uint64_t mark = 0;
};

void Write(const Owned& block) {
  std::memcpy(block.at, &block.mark, sizeof block.mark);
  const size_t end =
      block.counted == 0 ? PageArena::BlockBytes(block.pages, block.bytes) : block.counted;
  std::memcpy(block.at + end - sizeof block.mark, &block.mark, sizeof block.mark);
}

bool IsWhole(const Owned& block) {
  const size_t end =
      block.counted == 0 ? PageArena::BlockBytes(block.pages, block.bytes) : block.counted;
  return std::memcmp(block.at, &block.mark, sizeof block.mark) == 0 &&
         std::memcmp(block.at + end - sizeof block.mark, &block.mark, sizeof block.mark) == 0;
}

bool IsZero(const char* at, size_t bytes) {
  return std::all_of(at, at + bytes, [](char byte) { return byte == 0; });
}

// Random owners take and give blocks of all sizes. Whatever is taken is zero and is nobody else's,
// and the counts are those of a plain sum.
TEST(PageArenaTest, BlocksAreZeroAndApartAndCounted) {
  SCOPED_TRACE(absl::StrCat("rerun with --seed=", TestSeed()));
  Random random(TestSeed());
  PageArena arena;
  std::vector<Owned> blocks;
  size_t used = 0, counted = 0;  // `counted`: without pages of blocks smaller than a page
  const auto give = [&](size_t i) {
    const Owned block = blocks[i];
    ASSERT_TRUE(IsWhole(block)) << block.bytes;
    arena.Discard(block.at, block.counted);
    counted -= block.counted;
    used -= PageArena::BlockBytes(block.pages, block.bytes);
    arena.Give(block.pages, block.at, block.bytes);
    blocks[i] = blocks.back();
    blocks.pop_back();
  };
  size_t tiny = 0;
  for (int step = 0; step < 4000; ++step) {
    if (random.Uniform(100) < (step / 1000 % 2 == 0 ? 60u : 40u)) {
      Owned block;
      block.pages = random.Bernoulli(0.05) ? Pages::kHuge : Pages::kSmall;
      block.bytes = 1 + random.Uniform(uint64_t{1} << (6 + random.Uniform(15)));
      if (block.pages == Pages::kHuge) block.bytes += random.Uniform(3) * PageArena::kHugePage;
      absl::StatusOr<char*> taken = arena.Take(block.pages, block.bytes);
      ASSERT_TRUE(taken.ok()) << taken.status();
      block.at = *taken;
      block.mark = Mix64(step + 1);
      const size_t size = PageArena::BlockBytes(block.pages, block.bytes);
      ASSERT_GE(size, block.bytes);
      if (size >= PageArena::kPage) {
        block.counted = PageArena::WholePages(block.pages, block.bytes);
        TANDEM_CHECK_OK(arena.Count(block.counted));
      }
      ASSERT_TRUE(IsZero(block.at, std::min(size, size_t{64} << 10)));
      Write(block);
      used += size;
      counted += block.counted;
      blocks.push_back(block);
    } else if (!blocks.empty()) {
      give(random.Uniform(blocks.size()));
    }
    if (HasFatalFailure()) return;
    tiny = static_cast<size_t>(
        std::count_if(blocks.begin(), blocks.end(), [](const Owned& b) { return b.counted == 0; }));
    ASSERT_EQ(arena.used(), used);
    ASSERT_GE(arena.resident(), counted);
    ASSERT_LE(arena.resident(), counted + tiny * PageArena::kPage);
    ASSERT_GE(arena.reserved(), arena.used());
  }
  while (!blocks.empty()) {
    give(blocks.size() - 1);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(arena.used(), 0u);
  EXPECT_EQ(arena.resident(), 0u);
  EXPECT_EQ(arena.reserved(), 0u) << "the address space is back with the system";
}

// Small blocks of which every second one is given back leave room that larger ones cannot use, but
// no memory. When their neighbours follow, the room is whole again.
TEST(PageArenaTest, FragmentsCostAddressesAndBecomeWholeAgain) {
  PageArena arena;
  constexpr size_t kBlocks = 4096;
  // This block stays until the end, so that its region does.
  char* const first = arena.Take(Pages::kSmall, PageArena::kMinBlock).value();
  std::vector<char*> blocks;
  for (size_t i = 0; i < kBlocks; ++i) {
    blocks.push_back(arena.Take(Pages::kSmall, PageArena::kPage).value());
    TANDEM_CHECK_OK(arena.Count(PageArena::kPage));
    std::memset(blocks.back(), 1, PageArena::kPage);
  }
  const size_t reserved = arena.reserved();
  EXPECT_LE(reserved, 2 * kBlocks * PageArena::kPage);
  const auto give = [&](size_t begin) {
    for (size_t i = begin; i < kBlocks; i += 2) {
      arena.Discard(blocks[i], PageArena::kPage);
      arena.Give(Pages::kSmall, blocks[i], PageArena::kPage);
    }
  };
  give(0);
  EXPECT_EQ(arena.resident(), (kBlocks / 2 + 1) * PageArena::kPage);
  EXPECT_EQ(arena.used(), kBlocks / 2 * PageArena::kPage + PageArena::kMinBlock);
  // The same pages again, and no more address space.
  for (size_t i = 0; i < kBlocks; i += 2) {
    blocks[i] = arena.Take(Pages::kSmall, PageArena::kPage).value();
    ASSERT_TRUE(IsZero(blocks[i], PageArena::kPage));
    TANDEM_CHECK_OK(arena.Count(PageArena::kPage));
  }
  EXPECT_EQ(arena.reserved(), reserved);
  give(0);
  give(1);
  const size_t left = arena.reserved();
  std::vector<char*> large;
  while (large.size() < left / PageArena::kMaxSmall - 1) {
    large.push_back(arena.Take(Pages::kSmall, PageArena::kMaxSmall).value());
  }
  EXPECT_EQ(arena.reserved(), left) << "whole blocks are made of the small ones";
  for (char* const block : large) arena.Give(Pages::kSmall, block, PageArena::kMaxSmall);
  arena.Give(Pages::kSmall, first, PageArena::kMinBlock);
}

TEST(PageArenaTest, ALimitIsAStatusAndChangesNothing) {
  server::MemoryBudget budget(10 * PageArena::kPage);
  PageArena arena(&budget);
  char* const block = arena.Take(Pages::kSmall, kMiB).value();
  TANDEM_CHECK_OK(arena.Count(9 * PageArena::kPage));
  const absl::Status refused = arena.Count(2 * PageArena::kPage);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("take 36864 bytes and need 8192 more"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("uses 36864 of 40960 bytes"));
  EXPECT_TRUE(IsMemoryFull(refused));
  EXPECT_EQ(arena.resident(), 9 * PageArena::kPage);
  // The budget does not count memory that is soon freed, so other arenas may take as much.
  TANDEM_CHECK_OK(arena.Count(2 * PageArena::kPage, /*soon_free=*/PageArena::kPage));
  EXPECT_EQ(arena.resident(), 11 * PageArena::kPage);
  EXPECT_EQ(budget.used(), 10 * PageArena::kPage);
  arena.Discard(block, PageArena::kPage);
  EXPECT_EQ(budget.used(), 10 * PageArena::kPage);
  arena.Discard(block + PageArena::kPage, 10 * PageArena::kPage);
  EXPECT_EQ(budget.used(), 0u);
  // A block smaller than a page needs a page.
  TANDEM_CHECK_OK(arena.Count(10 * PageArena::kPage));
  EXPECT_TRUE(absl::IsResourceExhausted(arena.Take(Pages::kSmall, 100).status()));
  EXPECT_EQ(arena.used(), kMiB);
  EXPECT_EQ(budget.used(), arena.resident());
  arena.Discard(block, 10 * PageArena::kPage);
  EXPECT_EQ(budget.used(), 0u);
  arena.Give(Pages::kSmall, block, kMiB);
}

// Counted page by page. Other files have estimates.
size_t Resident() {
  std::ifstream file("/proc/self/smaps_rollup");
  size_t kib = 0;
  for (std::string word; file >> word;) {
    if (word == "Rss:" && file >> kib) break;
  }
  return kib << 10;
}

size_t Mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t lines = 0;
  for (std::string line; std::getline(maps, line);) ++lines;
  return lines;
}

// The system refuses address space: what there is stays usable, and what is given back, too.
TEST(PageArenaTest, WithoutAddressesTheArenaReturnsAStatus) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  for (const Pages pages : {Pages::kSmall, Pages::kHuge}) {
    const int code = RunLimited(100 * kMiB, [pages] {
      PageArena arena;
      std::vector<char*> blocks;
      blocks.reserve(1000);
      absl::Status status;
      while (blocks.size() < 1000) {
        const absl::StatusOr<char*> block = arena.Take(pages, PageArena::kMaxSmall);
        status = block.status();
        if (!block.ok()) break;
        blocks.push_back(*block);
        std::memset(*block, 1, 100);
      }
      if (!absl::IsResourceExhausted(status)) return 1;
      if (status.message().find("Cannot allocate memory") == std::string::npos) return 2;
      // Nearly all of the address space could be used, although regions grow.
      if (blocks.size() * PageArena::kMaxSmall < 70 * kMiB) return 3;
      const size_t used = arena.used();
      if (used != blocks.size() * PageArena::kMaxSmall) return 4;
      TANDEM_CHECK_OK(arena.Count(PageArena::kHugePage));
      arena.Discard(blocks.back(), PageArena::kHugePage);
      arena.Give(pages, blocks.back(), PageArena::kMaxSmall);
      blocks.pop_back();
      const absl::StatusOr<char*> again = arena.Take(pages, PageArena::kMaxSmall);
      if (!again.ok() || !IsZero(*again, 100) || arena.used() != used) return 5;
      blocks.push_back(*again);
      for (char* const block : blocks) arena.Give(pages, block, PageArena::kMaxSmall);
      return arena.reserved() == 0 ? 0 : 6;
    });
    EXPECT_EQ(code, 0) << (pages == Pages::kSmall ? "small" : "huge");
  }
}

// ---- memory that grows ------------------------------------------------------------------------

uint64_t* WordAt(const GrowableMemory& memory, size_t segment_bytes, size_t offset) {
  return reinterpret_cast<uint64_t*>(memory.table()[offset / segment_bytes] + offset);
}

// Grows through small blocks into segments. Each item keeps its value, an item of a segment keeps
// its address, and the arena has counted exactly the pages of the memory.
TEST(GrowableMemoryTest, KeepsWhatItHoldsAndItsPlaceOnceItIsLarge) {
  for (const size_t segment_bytes :
       {PageArena::kHugePage, 87 * size_t{24000}, 3 * PageArena::kHugePage - 64}) {
    SCOPED_TRACE(segment_bytes);
    PageArena arena;
    GrowableMemory memory(&arena, segment_bytes);
    EXPECT_EQ(memory.resident(), 0u);
    const size_t item = segment_bytes / 87;  // no item crosses the end of a segment
    const auto offset_of = [&](size_t i) {
      return i / 87 * segment_bytes + i % 87 * (item / 8 * 8);
    };
    std::vector<uint64_t*> at;
    for (size_t items = 1; offset_of(items) < 40 * kMiB; items += 1 + items / 5) {
      TANDEM_CHECK_OK(memory.Reserve(offset_of(items - 1) + sizeof(uint64_t)));
      ASSERT_GE(memory.usable(), offset_of(items - 1) + sizeof(uint64_t));
      const bool large = memory.usable() > PageArena::kMaxSmall;
      for (size_t i = 0; i < items; ++i) {
        uint64_t* const word = WordAt(memory, segment_bytes, offset_of(i));
        if (i < at.size()) {
          ASSERT_EQ(*word, Mix64(i)) << items;
          if (large && at[i] != nullptr) {
            ASSERT_EQ(word, at[i]) << "it has moved";
          }
        } else {
          ASSERT_EQ(*word, 0u);
          *word = Mix64(i);
          at.push_back(nullptr);
        }
        at[i] = large ? word : nullptr;
      }
      if (memory.usable() >= PageArena::kPage) {
        ASSERT_EQ(arena.resident(), memory.resident());
      }
      const size_t page = large ? PageArena::kHugePage : PageArena::kPage;
      ASSERT_LE(memory.resident(), (offset_of(items - 1) + 8) / 63 * 64 + 2 * page);
    }
    GrowableMemory moved = std::move(memory);
    EXPECT_EQ(memory.resident(), 0u);
    EXPECT_EQ(arena.resident(), moved.resident());
    moved = GrowableMemory(&arena, segment_bytes);
    EXPECT_EQ(arena.resident(), 0u);
    EXPECT_EQ(arena.reserved(), 0u);
  }
}

TEST(GrowableMemoryTest, PagesThatAreDiscardedDoNotCount) {
  PageArena arena;
  GrowableMemory memory(&arena);
  TANDEM_CHECK_OK(memory.Reserve(20 * kMiB));
  EXPECT_EQ(arena.resident(), 20 * kMiB);
  memory.Discard(8 * kMiB);
  EXPECT_EQ(arena.resident(), 12 * kMiB);
  EXPECT_EQ(memory.resident(), 12 * kMiB);
  memory.Discard(30 * kMiB);
  EXPECT_EQ(arena.resident(), 0u);
  EXPECT_EQ(arena.used(), 20 * kMiB);
}

TEST(GrowableMemoryTest, WithoutMemoryItStaysAsItIs) {
  server::MemoryBudget budget(6 * kMiB);
  PageArena arena(&budget);
  GrowableMemory memory(&arena);
  for (const size_t bytes : {size_t{100}, 3 * kMiB}) {
    TANDEM_CHECK_OK(memory.Reserve(bytes));
    *WordAt(memory, PageArena::kHugePage, 8) = 77;
    const size_t usable = memory.usable(), resident = arena.resident(), used = arena.used();
    EXPECT_TRUE(absl::IsResourceExhausted(memory.Reserve(7 * kMiB)));
    EXPECT_EQ(memory.usable(), usable);
    EXPECT_EQ(arena.resident(), resident);
    EXPECT_EQ(arena.used(), used);
    EXPECT_EQ(*WordAt(memory, PageArena::kHugePage, 8), 77u);
  }
}

// ---- ranges -----------------------------------------------------------------------------------

std::unique_ptr<optim::RowOptimizer> MakeOptimizer() {
  Optimizer config;
  config.set_kind(Optimizer::ROWWISE_ADAGRAD);
  config.set_learning_rate(0.1);
  return *optim::NewRowOptimizer(config);
}

server::RowTable::Options MakeOptions(const optim::RowOptimizer* optimizer, PageArena* arena) {
  server::RowTable::Options options;
  options.dim = 16;
  options.salt = 7;
  options.optimizer = optimizer;
  options.arena = arena;
  return options;
}

// The kernel allows 65,530 mappings. Each range has an index and rows.
TEST(ManyRangesTest, ShareAFewMappings) {
  const size_t count = kSanitized ? 10'000 : 100'000;
  const auto optimizer = MakeOptimizer();
  PageArena arena;
  const size_t before = Mappings();
  std::vector<std::unique_ptr<server::RowTable>> ranges;
  for (size_t i = 0; i < count; ++i) {
    ranges.push_back(std::make_unique<server::RowTable>(MakeOptions(optimizer.get(), &arena)));
  }
  EXPECT_EQ(arena.resident(), 0u) << "a range without rows takes no memory of the arena";
  for (size_t i = 0; i < count; ++i) {
    uint32_t row = 0;
    ASSERT_EQ(ranges[i]->Add(Mix64(i), &row), absl::OkStatus());
  }
  EXPECT_LE(Mappings(), before + 100);  // heap and regions
  EXPECT_LE(arena.resident(), count * (size_t{5} << 10));
  EXPECT_LE(arena.reserved(), 2 * arena.resident() + 64 * kMiB);
  std::vector<float> row(16), want(16);
  for (size_t i = 0; i < count; i += 997) {
    const uint64_t key = Mix64(i);
    ASSERT_EQ(ranges[i]->size(), 1);
    server::RowTable(MakeOptions(optimizer.get(), &arena)).Pull({&key, 1}, absl::MakeSpan(want));
    ranges[i]->Pull({&key, 1}, absl::MakeSpan(row));
    ASSERT_EQ(row, want);
  }
  // Every second range is dropped, as if it had moved to another server.
  const size_t resident = arena.resident();
  for (size_t i = 0; i < count; i += 2) ranges[i].reset();
  EXPECT_LE(arena.resident(), resident * 6 / 10);
  ranges.clear();
  EXPECT_EQ(arena.reserved(), 0u);
}

// resident() is what the process takes more in memory, and what it takes less afterwards.
TEST(ManyRangesTest, TheCountIsThatOfTheSystem) {
  if (kSanitized) GTEST_SKIP() << "a sanitizer needs memory of its own";
  const auto optimizer = MakeOptimizer();
  PageArena arena;
  std::vector<std::unique_ptr<server::RowTable>> ranges;
  std::vector<uint64_t> keys(5000);
  std::vector<uint32_t> numbers(keys.size());
  ranges.reserve(100);
  const size_t before = Resident();
  for (uint64_t r = 0; r < 100; ++r) {
    ranges.push_back(std::make_unique<server::RowTable>(MakeOptions(optimizer.get(), &arena)));
    const uint64_t batches = r == 0 ? 60 : 1;  // the first range is large
    for (uint64_t b = 0; b < batches; ++b) {
      for (size_t i = 0; i < keys.size(); ++i) keys[i] = HashCombine(r, b * keys.size() + i);
      TANDEM_CHECK_OK(ranges.back()->FindOrCreate(keys, absl::MakeSpan(numbers)));
    }
  }
  const size_t grown = Resident() - before;
  // Where the system has no huge page left, the last one of the rows and of the index is not full.
  EXPECT_GE(grown + 2 * PageArena::kHugePage + kMiB, arena.resident());
  EXPECT_LE(grown, arena.resident() + 2 * kMiB);  // the heap's share
  ranges.clear();
  EXPECT_EQ(arena.resident(), 0u);
  EXPECT_LE(Resident(), before + 4 * kMiB);
}

}  // namespace
}  // namespace tandem
