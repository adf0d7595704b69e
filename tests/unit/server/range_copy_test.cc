// The bytes of a copied range: those of a file that is made of sorted rows, for rows of any length
// and number and in any order.
#include "server/checkpoint/range_copy.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"
#include "tests/unit/server/range_image.h"

namespace tandem {
namespace {

struct Shape {
  size_t rows;
  int dim;
  int slots;
  bool squares;
};

class RangeCopyTest : public ::testing::Test {
 protected:
  // A copy of a range with random rows, and the same contents in order of position.
  void Make(const Shape& shape, uint64_t begin, uint64_t end, uint64_t min_position = 0,
            uint64_t max_position = ~uint64_t{0}) {
    copy_ = server::RangeCopy();
    server::RangeImage& head = copy_.head;
    head.table = "users";
    head.optimizer = "adagrad";
    head.dim = shape.dim;
    head.slots_per_row = shape.slots;
    head.begin = begin;
    head.end = end;
    head.progress.version = 7;
    head.progress.workers = {{11, 8, 7, false}, {12, 9, 6, true}};
    copy_.salt = TestSeed();
    copy_.last_samples = 5;
    copy_.memory_before = "before";
    copy_.memory_after = "after";
    copy_.has_squares = shape.squares;
    image_ = head;
    const auto dim = static_cast<size_t>(shape.dim), slots = static_cast<size_t>(shape.slots);
    copy_.rows = server::RowCopies(shape.rows, dim + slots, blocks_, shape.squares ? dim : 0,
                                   shape.squares ? Squares(dim) : nullptr);
    std::vector<std::pair<uint64_t, std::vector<float>>> rows;  // by position
    std::vector<uint64_t> keys;
    while (rows.size() < shape.rows) {
      const uint64_t key = random_.Next64();
      const uint64_t position = Position(copy_.salt, key);
      if (position < min_position || position > max_position) continue;
      std::vector<float> floats(dim + slots);
      for (float& value : floats) value = static_cast<float>(random_.NextDouble());
      const auto number = static_cast<uint32_t>(rows.size());
      std::copy(floats.begin(), floats.end(), copy_.rows.Add(key, number));
      if (shape.squares) floats.insert(floats.end(), dim, static_cast<float>(number));
      rows.emplace_back(position, floats);
      key_of_[position] = key;
    }
    std::sort(rows.begin(), rows.end());
    std::vector<float> squares;
    for (const auto& [position, floats] : rows) {
      const auto at = floats.begin();
      const auto from = [&](size_t i) { return at + static_cast<std::ptrdiff_t>(i); };
      image_.keys.push_back(key_of_[position]);
      image_.weights.insert(image_.weights.end(), at, from(dim));
      image_.slots.insert(image_.slots.end(), from(dim), from(dim + slots));
      squares.insert(squares.end(), from(dim + slots), floats.end());
    }
    const std::string updates = server::EncodeHeld({}, {}, false);
    const uint64_t numbers[] = {5, updates.size()};
    const uint64_t count = rows.size();
    image_.held = absl::StrCat(BytesOf(numbers, 2), updates, "before");
    if (shape.squares) {
      absl::StrAppend(&image_.held, BytesOf(&count, 1), BytesOf(image_.keys.data(), count),
                      BytesOf(squares.data(), squares.size()));
    }
    absl::StrAppend(&image_.held, "after");
  }

  template <typename T>
  static std::string BytesOf(const T* values, size_t count) {
    return std::string(reinterpret_cast<const char*>(values), count * sizeof(T));
  }
  static server::RowCopies::CopyExtra Squares(size_t dim) {
    return [dim](uint32_t row, float* to) { std::fill_n(to, dim, static_cast<float>(row)); };
  }

  void ExpectTheBytes(const std::string& what) {
    const std::string want = server::EncodeRange(image_);
    EXPECT_TRUE(std::move(copy_).Encode() == want) << what;
    EXPECT_EQ(copy_.rows.size(), 0u) << "the copies are freed";
    EXPECT_EQ(Decoded(want).keys, image_.keys) << what;  // the checksum is that of the whole file
  }

  Random random_{TestSeed()};
  std::shared_ptr<server::CopyBlocks> blocks_ = std::make_shared<server::CopyBlocks>();
  std::map<uint64_t, uint64_t> key_of_;  // by position
  server::RangeCopy copy_;
  server::RangeImage image_;
};

TEST_F(RangeCopyTest, TheBytesAreThoseOfTheSortedRows) {
  // Rows in one block, in several, and longer than a block.
  for (const Shape& shape :
       {Shape{0, 3, 1, false}, Shape{1, 1, 0, false}, Shape{2, 3, 1, true}, Shape{1000, 1, 1, true},
        Shape{20'000, 16, 16, false}, Shape{5000, 5, 0, true}, Shape{3, 40'000, 1, true}}) {
    Make(shape, 0, 0);
    ExpectTheBytes(absl::StrCat(shape.rows, " rows of ", shape.dim));
  }
}

// Positions are spread over the range, or close together, or (of keys that a client has sent to a
// wrong range) outside.
TEST_F(RangeCopyTest, AnyPositionsAreSorted) {
  constexpr uint64_t kTenth = ~uint64_t{0} / 10;
  const Shape shape = {3000, 2, 1, false};
  Make(shape, kTenth, 2 * kTenth, kTenth, 2 * kTenth - 1);
  ExpectTheBytes("inside");
  Make(shape, 9 * kTenth, 0, 9 * kTenth);
  ExpectTheBytes("the last range");
  Make(shape, kTenth, 2 * kTenth);
  ExpectTheBytes("outside too");
  Make(shape, 0, 0, kTenth, kTenth + kTenth / 4);
  ExpectTheBytes("close together");
  Make(shape, 5, 6);
  ExpectTheBytes("a range of one position");
}

TEST_F(RangeCopyTest, AgesAndCandidatesComeInOrderOfPosition) {
  copy_.head.table = "users";
  copy_.head.optimizer = "sgd";
  copy_.head.dim = 2;
  copy_.head.slots_per_row = 1;
  copy_.head.limited = true;
  copy_.salt = TestSeed();
  copy_.rows = server::RowCopies(3000, /*floats=*/4, blocks_);
  std::map<uint64_t, std::pair<uint64_t, uint32_t>> rows;  // by position: key and age
  std::map<uint64_t, server::Candidate> candidates;
  for (uint32_t i = 0; i < 3000; ++i) {
    const uint64_t key = random_.Next64();
    const uint32_t age = ~i;  // bits that are no ordinary float
    float* const to = copy_.rows.Add(key, i);
    std::fill_n(to, 3, static_cast<float>(key % 1000));
    std::memcpy(to + 3, &age, sizeof age);
    rows[Position(copy_.salt, key)] = {key, age};
  }
  for (uint32_t i = 0; i < 20'000; ++i) {
    const server::Candidate candidate = {random_.Next64(), 1 + i % 100, i};
    copy_.rows.AddCandidate(candidate);
    candidates[Position(copy_.salt, candidate.key)] = candidate;
  }
  const server::RangeImage image = Decoded(std::move(copy_).Encode());
  ASSERT_EQ(image.keys.size(), rows.size());
  size_t at = 0;
  for (const auto& [position, row] : rows) {
    ASSERT_EQ(image.keys[at], row.first);
    ASSERT_EQ(image.ages[at], row.second);
    const auto value = static_cast<float>(row.first % 1000);
    ASSERT_EQ(image.weights[2 * at + 1], value);
    ASSERT_EQ(image.slots[at++], value);
  }
  ASSERT_EQ(image.candidates.size(), candidates.size());
  at = 0;
  for (const auto& [position, candidate] : candidates) {
    ASSERT_TRUE(image.candidates[at++] == candidate) << at;
  }
}

TEST_F(RangeCopyTest, AnErrorOfTheSinkIsReturned) {
  Make({20'000, 16, 0, false}, 0, 0);
  int pieces = 0;
  const absl::Status status = std::move(copy_).Encode([&](absl::string_view) {
    return ++pieces == 2 ? absl::ResourceExhaustedError("full") : absl::OkStatus();
  });
  EXPECT_EQ(status, absl::ResourceExhaustedError("full"));
  EXPECT_EQ(pieces, 2) << "no piece after the error";
}

// A checkpoint copies range after range into the same memory.
TEST(CopyBlocksTest, ABlockIsUsedAgain) {
  const auto blocks = std::make_shared<server::CopyBlocks>();
  const auto copy = [&] {
    server::RowCopies rows(1, 4, blocks);
    return rows.Add(/*key=*/1, /*row=*/0);
  };
  const float* const first = copy();
  server::CopyBlocks others;
  const auto other = others.Take();  // it would be the memory of `first`, if that were free
  EXPECT_EQ(copy(), first);
  server::RowCopies kept(1, 4, blocks);
  EXPECT_EQ(kept.Add(1, 0), first);
  EXPECT_NE(copy(), first) << "in use";
}

}  // namespace
}  // namespace tandem
