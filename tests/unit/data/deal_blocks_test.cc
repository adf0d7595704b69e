// DealBlocks deals each byte of the files once and always alike, and as many to each worker.
#include "data/deal_blocks.h"

#include <algorithm>
#include <numeric>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kKib = 1024, kMib = kKib * kKib;

data::DealtFile Plain(size_t file, int64_t begin, int64_t end) {
  data::DealtFile dealt;
  dealt.bytes = {file, begin, end, 0};
  return dealt;
}

data::DealtFile Whole(size_t file, double unpacked) {
  data::DealtFile dealt;
  dealt.bytes.file = file;
  dealt.whole = true;
  dealt.unpacked = unpacked;
  return dealt;
}

std::vector<data::DealtFile> AnyFiles(Random* random) {
  std::vector<data::DealtFile> files;
  const size_t count = 1 + random->Uniform(12);
  const int64_t most = int64_t{1} << random->Uniform(30);
  const bool mixed = random->Bernoulli(0.5);
  for (size_t file = 0; file < count; ++file) {
    const auto bytes = static_cast<int64_t>(random->Uniform(static_cast<uint64_t>(most)));
    const auto begin = static_cast<int64_t>(random->Uniform(3) == 0 ? random->Uniform(1000) : 0);
    files.push_back(mixed && random->Bernoulli(0.4) ? Whole(file, static_cast<double>(bytes))
                                                    : Plain(file, begin, begin + bytes));
  }
  return files;
}

int64_t Weight(const std::vector<data::DealtFile>& files, const data::Block& block) {
  const data::DealtFile& file = files[block.file];
  return file.whole ? static_cast<int64_t>(file.unpacked) : block.end - block.begin;
}

void ExpectEachByteOnce(const std::vector<data::DealtFile>& files, const data::BlockDeal& deal) {
  std::vector<data::Block> all;
  for (const std::vector<data::Block>& blocks : deal.of) {
    for (size_t i = 1; i < blocks.size(); ++i) {
      EXPECT_LT(std::tie(blocks[i - 1].file, blocks[i - 1].begin),
                std::tie(blocks[i].file, blocks[i].begin));
    }
    all.insert(all.end(), blocks.begin(), blocks.end());
  }
  std::sort(all.begin(), all.end(), [](const data::Block& a, const data::Block& b) {
    return std::tie(a.file, a.begin) < std::tie(b.file, b.begin);
  });
  size_t next = 0;
  for (const data::DealtFile& file : files) {
    if (file.whole) {
      ASSERT_LT(next, all.size());
      EXPECT_EQ(all[next++], file.bytes);
      continue;
    }
    int64_t at = file.bytes.begin;
    for (; next < all.size() && all[next].file == file.bytes.file; ++next) {
      EXPECT_EQ(all[next].begin, at);
      EXPECT_LT(all[next].begin, all[next].end);
      at = all[next].end;
    }
    EXPECT_EQ(at, file.bytes.end);
  }
  EXPECT_EQ(next, all.size());
}

TEST(DealBlocksTest, EachByteIsDealtOnceAndSharesAreEven) {
  Random random(TestSeed());
  for (int i = 0; i < 1000 && !testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("deal ", i, ", --seed=", TestSeed()));
    const std::vector<data::DealtFile> files = AnyFiles(&random);
    const int workers = 1 + static_cast<int>(random.Uniform(20));
    const data::BlockDeal deal = data::DealBlocks(files, workers, 64 * kKib);
    ASSERT_EQ(deal.of.size(), static_cast<size_t>(workers));
    ExpectEachByteOnce(files, deal);
    EXPECT_EQ(data::DealBlocks(files, workers, 64 * kKib).of, deal.of) << "always the same";
    std::vector<int64_t> shares;
    int64_t max_whole = 0, plain = 0;
    for (const data::DealtFile& file : files) {
      if (file.whole) max_whole = std::max(max_whole, static_cast<int64_t>(file.unpacked));
      if (!file.whole) plain += file.bytes.end - file.bytes.begin;
    }
    for (const std::vector<data::Block>& blocks : deal.of) {
      shares.push_back(0);
      for (const data::Block& block : blocks) shares.back() += Weight(files, block);
    }
    const auto [least, most] = std::minmax_element(shares.begin(), shares.end());
    EXPECT_LE(*most - *least, max_whole + 1);
    if (plain >= max_whole * workers) {
      EXPECT_LE(*most - *least, 1) << "plain bytes fill up";
    }
    EXPECT_EQ(deal.everyone, *least > 0);
    const auto total = std::accumulate(shares.begin(), shares.end(), int64_t{0});
    if (total > 0) {
      EXPECT_DOUBLE_EQ(deal.largest * static_cast<double>(total) / workers, *most);
    }
  }
}

// A resumed run depends on these blocks: other blocks need a new value of Data.Deal.
TEST(DealBlocksTest, BlocksNeverChange) {
  EXPECT_THAT(
      data::DealBlocks({Plain(0, 0, 100)}, 3, 64 * kKib).of,
      ElementsAre(ElementsAre(data::Block{0, 0, 34, 0}), ElementsAre(data::Block{0, 34, 67, 0}),
                  ElementsAre(data::Block{0, 67, 100, 0})));
  EXPECT_THAT(
      data::DealBlocks({Plain(1, 10, 40), Plain(2, 0, 20), Whole(3, 30)}, 2, 64 * kKib).of,
      ElementsAre(ElementsAre(data::Block{1, 10, 20, 0}, data::Block{3, 0, data::kNoEnd, 0}),
                  ElementsAre(data::Block{1, 20, 40, 0}, data::Block{2, 0, 20, 0})));
  // Eight rounds of blocks of at least 64 KiB, and more rounds of at most 16 MiB.
  const auto many = data::DealBlocks({Plain(0, 0, 2048 * kKib)}, 2, 64 * kKib);
  ASSERT_EQ(many.of[1].size(), 8u);
  EXPECT_EQ(many.of[1][1], (data::Block{0, 384 * kKib, 512 * kKib, 0}));
  EXPECT_EQ(data::DealBlocks({Plain(0, 0, 2048 * kKib)}, 2, 512 * kKib).of[1].size(), 2u);
  const auto large = data::DealBlocks({Plain(0, 0, 1024 * kMib)}, 4, 64 * kKib);
  ASSERT_EQ(large.of[1].size(), 16u);
  EXPECT_EQ(large.of[1][2], (data::Block{0, (2 * 4 + 1) * 16 * kMib, (2 * 4 + 2) * 16 * kMib, 0}));
}

TEST(DealBlocksTest, TooFewFilesAreSeen) {
  const auto three = data::DealBlocks({Whole(0, 10), Whole(1, 10), Whole(2, 10)}, 2, 64 * kKib);
  EXPECT_TRUE(three.everyone);
  EXPECT_DOUBLE_EQ(three.largest, 20 / 15.0);
  const auto one = data::DealBlocks({Whole(0, 10)}, 2, 64 * kKib);
  EXPECT_FALSE(one.everyone);
  EXPECT_THAT(one.of[1], IsEmpty());
  EXPECT_FALSE(data::DealBlocks({Plain(0, 5, 7)}, 3, 64 * kKib).everyone);
  EXPECT_FALSE(data::DealBlocks({}, 1, 64 * kKib).everyone);
}

}  // namespace
}  // namespace tandem
