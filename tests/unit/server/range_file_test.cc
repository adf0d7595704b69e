// Range files: the bytes of the page, every damaged file refused, and loading into other ranges.
#include "server/checkpoint/range_file.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"
#include "tests/unit/server/sorted_keys.h"
#include "xxhash.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

absl::Span<const uint8_t> Bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

server::RangeImage SmallImage() {
  server::RangeImage image;
  image.table = "users";
  image.optimizer = "rowwise_adagrad";
  image.dim = 3;
  image.slots_per_row = 1;
  image.begin = 0x1000;
  image.end = 0;
  image.stamp = 21;
  image.step_base = 4;
  image.progress.version = 7;
  image.progress.workers = {{11, 8, 7, false}, {12, 9, 6, true}};
  image.keys = {0, 5, ~uint64_t{0}};
  image.weights = {1, 2, 3, 4, 5, 6, 7, 8, 9};
  image.slots = {0.5f, 0.25f, 0.125f};
  image.held = "held";
  return image;
}

// The same of a table with limits.
server::RangeImage LimitedImage() {
  server::RangeImage image = SmallImage();
  image.limited = true;
  image.ages = {0, 7, ~uint32_t{0}};
  image.candidates = {{9, 1, 3}, {~uint64_t{0}, 100, 0}};
  return image;
}

// The same rows as BF16 and F16, with a state of two slots and a count of steps.
server::RangeImage TypedImage() {
  server::RangeImage image = SmallImage();
  image.optimizer = "adam";
  image.types = {Table::F16, Table::BF16};
  image.slots_per_row = 3;
  image.numbers_per_row = 1;
  image.slots = {0.5f, 0.25f, 7, 0.125f, 1, 16777215, -2, 0, 3};
  return image;
}

// The same rows as INT8, of which one is hot.
server::RangeImage HeadsImage() {
  server::RangeImage image = SmallImage();
  image.types = {Table::INT8, Table::F32, Table::F32, 20};
  image.heads = {{-3, 0}, {optim::RowHead::kNoExponent, optim::RowHead::kHot}, {2, 17}};
  image.weights = {1, -0.125f, 15.875f, 4.1f, 5.1f, 6.1f, 508, 8, -4};
  return image;
}

void ExpectSame(const server::RangeImage& a, const server::RangeImage& b) {
  EXPECT_EQ(a.table, b.table);
  EXPECT_EQ(a.optimizer, b.optimizer);
  EXPECT_EQ(a.dim, b.dim);
  EXPECT_EQ(a.slots_per_row, b.slots_per_row);
  EXPECT_EQ(a.begin, b.begin);
  EXPECT_EQ(a.end, b.end);
  EXPECT_EQ(a.stamp, b.stamp);
  EXPECT_EQ(a.step_base, b.step_base);
  EXPECT_EQ(a.progress, b.progress);
  EXPECT_EQ(a.keys, b.keys);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.slots, b.slots);
  EXPECT_EQ(a.types.row, b.types.row);
  EXPECT_EQ(a.types.state, b.types.state);
  EXPECT_EQ(a.types.hot, b.types.hot);
  EXPECT_EQ(a.types.hot_updates, b.types.hot_updates);
  EXPECT_EQ(a.heads, b.heads);
  EXPECT_EQ(a.numbers_per_row, b.numbers_per_row);
  EXPECT_EQ(a.limited, b.limited);
  EXPECT_EQ(a.ages, b.ages);
  EXPECT_EQ(a.candidates, b.candidates);
  EXPECT_EQ(a.held, b.held);
}

// Puts a right checksum on changed bytes, to get past it to the checks behind.
void Seal(std::string& file) {
  const uint64_t sum = XXH3_64bits(file.data(), file.size() - 8);
  std::memcpy(&file[file.size() - 8], &sum, 8);
}

TEST(RangeFileTest, RoundTrip) {
  for (const server::RangeImage& small :
       {SmallImage(), LimitedImage(), TypedImage(), HeadsImage()}) {
    const auto image = server::DecodeRange(Bytes(server::EncodeRange(small)));
    ASSERT_TRUE(image.ok()) << image.status();
    ExpectSame(*image, small);
  }
}

TEST(RangeFileTest, AnEmptyRangeRoundTrips) {
  server::RangeImage empty;
  empty.dim = 1;
  const auto image = server::DecodeRange(Bytes(server::EncodeRange(empty)));
  ASSERT_TRUE(image.ok()) << image.status();
  ExpectSame(*image, empty);
}

// The page's layout, byte for byte: one worker, one row of one float, one slot.
TEST(RangeFileTest, TheBytesAreThoseOfThePage) {
  server::RangeImage image;
  image.table = "t";
  image.optimizer = "rowwise_adagrad";
  image.dim = 1;
  image.slots_per_row = 1;
  image.begin = 0x10;
  image.end = 0x20;
  image.stamp = 9;
  image.step_base = 8;
  image.progress.version = 2;
  image.progress.workers = {{3, 4, 5, true}};
  image.keys = {6};
  image.weights = {1.0f};
  image.slots = {2.0f};
  image.held = "h";
  const std::string want = absl::StrCat(
      "54445246"
      "03000000"
      "d000000000000000",  //   0 magic, format, file_bytes = 208
      "01000000"
      "01000000"
      "0100000000000000",  //  16 dim, slots_per_row, rows
      "1000000000000000"
      "2000000000000000",  //  32 begin, end
      "0200000000000000"
      "01000000"
      "01000000",  //  48 version, workers, table_bytes
      "0f000000"
      "00000000"
      "0100000000000000",  //  64 optimizer_bytes, limited, held_bytes
      "0000000000000000"
      "0900000000000000",  //  80 candidates, stamp
      "0800000000000000"
      "00000000"
      "00000000",          //  96 step_base, row_type, state_type
      "0000000000000000",  // 112 flags
      "0300000000000000"
      "0400000000000000",  // 120 incarnation, admitted
      "0500000000000000"
      "0100000000000000",                  // 136 applied, finished
      "74726f77776973655f61646167726164",  // 152 "t", "rowwise_adagrad"
      "0600000000000000",                  // 168 key
      "0000803f00000000",                  // 176 weight 1.0, padding
      "0000004000000000",                  // 184 slot 2.0, padding
      "6800000000000000");                 // 192 held "h", padding
  const std::string file = server::EncodeRange(image);
  ASSERT_EQ(file.size(), 208u);
  EXPECT_EQ(absl::BytesToHexString(file.substr(0, 200)), want);
}

// The same row in a table with limits: its age and a candidate are behind the slot.
TEST(RangeFileTest, TheBytesOfATableWithLimitsAreThoseOfThePage) {
  server::RangeImage image;
  image.table = "t";
  image.optimizer = "sgd";
  image.dim = 1;
  image.end = 0x20;
  image.limited = true;
  image.keys = {6};
  image.weights = {1.0f};
  image.ages = {5};
  image.candidates = {{7, 2, 3}};
  const std::string want = absl::StrCat(
      "54445246"
      "03000000"
      "b000000000000000",  //   0 magic, format, file_bytes = 176
      "01000000"
      "00000000"
      "0100000000000000",  //  16 dim, slots_per_row, rows
      "0000000000000000"
      "2000000000000000",  //  32 begin, end
      "0000000000000000"
      "00000000"
      "01000000",  //  48 version, workers, table_bytes
      "03000000"
      "01000000"
      "0000000000000000",  //  64 optimizer_bytes, limited, held_bytes
      "0100000000000000",  //  80 candidates
      "0000000000000000"
      "0000000000000000",  //  88 stamp, step_base
      "00000000"
      "00000000"
      "0000000000000000",  // 104 row_type, state_type, numbers_per_row, flags
      "7473676400000000",  // 120 "t", "sgd", padding
      "0600000000000000",  // 128 key
      "0000803f00000000",  // 136 weight 1.0, padding
      "0500000000000000",  // 144 age, padding
      "0700000000000000"
      "02000000"
      "03000000");  // 152 candidate: key, count, age
  const std::string file = server::EncodeRange(image);
  ASSERT_EQ(file.size(), 176u);
  EXPECT_EQ(absl::BytesToHexString(file.substr(0, 168)), want);
}

// The example of types: a row of three F16 with two BF16 slots and an f32 count.
TEST(RangeFileTest, LayoutOfATypedRow) {
  server::RangeImage image;
  image.table = "t";
  image.optimizer = "adam";
  image.dim = 3;
  image.slots_per_row = 3;
  image.numbers_per_row = 1;
  image.types = {Table::F16, Table::BF16};
  image.keys = {6};
  image.weights = {1, -2, 0.5f};
  image.slots = {1, 0.5f, 2};
  const std::string file = server::EncodeRange(image);
  ASSERT_EQ(file.size(), 168u);
  const std::string want = absl::StrCat(
      "02000000"
      "01000000"
      "01000000"
      "00000000",           // 104 row_type, state_type, numbers_per_row, flags
      "746164616d000000",   // 120 "t", "adam", padding
      "0600000000000000",   // 128 key
      "003c00c000380000",   // 136 weights 1, -2, .5, padding
      "803f003f00000000",   // 144 slots 1, .5, padding
      "0000004000000000");  // 152 number 2, padding
  EXPECT_EQ(absl::BytesToHexString(file.substr(104, 56)), want);
}

// The example of heads: a row of three INT8, and a hot one.
TEST(RangeFileTest, LayoutOfRowsWithHeads) {
  server::RangeImage image;
  image.table = "t";
  image.optimizer = "sgd";
  image.dim = 3;
  image.types = {Table::INT8, Table::F32, Table::BF16, 5};
  image.keys = {6, 7};
  image.heads = {{-1, 4}, {optim::RowHead::kNoExponent, optim::RowHead::kHot}};
  image.weights = {1, -2, 63.5f, 1, -2, 0.5f};
  const std::string file = server::EncodeRange(image);
  ASSERT_EQ(file.size(), 200u);
  const std::string want = absl::StrCat(
      "03000000"
      "00000000"
      "00000000"
      "00000000",  // 104 row_type, state_type, numbers_per_row, flags
      "0100000000000000"
      "0500000000000000",  // 120 hot_rows, hot_updates
      "01000000"
      "00000000",          // 136 hot_type
      "7473676400000000",  // 144 "t", "sgd", padding
      "0600000000000000"
      "0700000000000000",   // 152 keys
      "ff0480ff00000000",   // 168 exponent -1, 4 updates; hot; padding
      "02fc7f0000000000",   // 176 weights 2, -4 and 127 halves, padding
      "803f00c0003f0000");  // 184 hot weights 1, -2, .5, padding
  EXPECT_EQ(absl::BytesToHexString(file.substr(104, 88)), want);
}

// Puts the checksum behind the bytes of an old file.
std::string Sealed(const std::string& hex) {
  std::string file;
  for (size_t i = 0; i < hex.size(); i += 2) {
    file += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  }
  file.append(8, '\0');
  Seal(file);
  return file;
}

// A file of format 1, as versions before format 3 wrote a table without limits.
std::string OldFile() {
  return Sealed(
      absl::StrCat("54445246"
                   "01000000"
                   "a800000000000000",  //   0 magic, format, file_bytes = 168
                   "01000000"
                   "01000000"
                   "0100000000000000",  //  16 dim, slots_per_row, rows
                   "1000000000000000"
                   "2000000000000000",  //  32 begin, end
                   "0200000000000000"
                   "01000000"
                   "01000000",  //  48 version, workers, table_bytes
                   "0f000000"
                   "00000000"
                   "0100000000000000",  //  64 optimizer_bytes, zero, held_bytes
                   "0300000000000000"
                   "0400000000000000",  //  80 incarnation, admitted
                   "0500000000000000"
                   "0100000000000000",                  //  96 applied, finished
                   "74726f77776973655f61646167726164",  // 112 "t", "rowwise_adagrad"
                   "0600000000000000",                  // 128 key
                   "0000803f00000000",                  // 136 weight 1.0, padding
                   "0000004000000000",                  // 144 slot 2.0, padding
                   "6800000000000000"));                // 152 held "h", padding
}

// The same row in a table with limits: a file of format 2.
std::string OldLimitedFile() {
  return Sealed(
      absl::StrCat("54445246"
                   "02000000"
                   "9000000000000000",  //   0 magic, format, file_bytes = 144
                   "01000000"
                   "00000000"
                   "0100000000000000",  //  16 dim, slots_per_row, rows
                   "0000000000000000"
                   "2000000000000000",  //  32 begin, end
                   "0000000000000000"
                   "00000000"
                   "01000000",  //  48 version, workers, table_bytes
                   "03000000"
                   "00000000"
                   "0000000000000000",  //  64 optimizer_bytes, zero, held_bytes
                   "0100000000000000",  //  80 candidates
                   "7473676400000000",  //  88 "t", "sgd", padding
                   "0600000000000000",  //  96 key
                   "0000803f00000000",  // 104 weight 1.0, padding
                   "0500000000000000",  // 112 age, padding
                   "0700000000000000"
                   "02000000"
                   "03000000"));  // 120 candidate: key, count, age
}

// The stamp of an old file is its version.
TEST(RangeFileTest, FilesOfFormats1And2AreRead) {
  server::RangeImage want;
  want.table = "t";
  want.optimizer = "rowwise_adagrad";
  want.dim = 1;
  want.slots_per_row = 1;
  want.begin = 0x10;
  want.end = 0x20;
  want.stamp = want.progress.version = 2;
  want.progress.workers = {{3, 4, 5, true}};
  want.keys = {6};
  want.weights = {1.0f};
  want.slots = {2.0f};
  want.held = "h";
  ASSERT_EQ(OldFile().size(), 168u);
  auto image = server::DecodeRange(Bytes(OldFile()));
  ASSERT_TRUE(image.ok()) << image.status();
  ExpectSame(*image, want);

  want = {};
  want.table = "t";
  want.optimizer = "sgd";
  want.dim = 1;
  want.end = 0x20;
  want.limited = true;
  want.keys = {6};
  want.weights = {1.0f};
  want.ages = {5};
  want.candidates = {{7, 2, 3}};
  ASSERT_EQ(OldLimitedFile().size(), 144u);
  image = server::DecodeRange(Bytes(OldLimitedFile()));
  ASSERT_TRUE(image.ok()) << image.status();
  ExpectSame(*image, want);
}

// A changed byte of an old file is refused, or is data: then the content is another one.
TEST(RangeFileTest, SealedDamageOfOldFilesIsRefusedOrIsData) {
  for (const std::string& file : {OldFile(), OldLimitedFile()}) {
    const std::string same = server::EncodeRange(*server::DecodeRange(Bytes(file)));
    int refused = 0;
    for (size_t at = 0; at + 8 < file.size(); ++at) {
      for (const int value : {0x01, 0x02, 0x03, 0x7f, 0x80, 0xff}) {
        std::string changed = file;
        changed[at] = static_cast<char>(value);
        Seal(changed);
        const auto image = server::DecodeRange(Bytes(changed));
        refused += image.ok() ? 0 : 1;
        if (image.ok()) {
          EXPECT_EQ(server::EncodeRange(*image) == same, changed == file) << "offset " << at;
        }
      }
    }
    EXPECT_GT(refused, 100);
  }
}

class AnyFormatTest : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string File() {
    const absl::string_view which = GetParam();
    return server::EncodeRange(which == "WithLimits"  ? LimitedImage()
                               : which == "WithHeads" ? HeadsImage()
                                                      : SmallImage());
  }
};

INSTANTIATE_TEST_SUITE_P(RangeFile, AnyFormatTest,
                         ::testing::Values("WithoutLimits", "WithLimits", "WithHeads"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(AnyFormatTest, EveryTruncationIsRefused) {
  const std::string file = File();
  for (size_t size = 0; size < file.size(); ++size) {
    EXPECT_EQ(server::DecodeRange(Bytes(file.substr(0, size))).status().code(),
              absl::StatusCode::kDataLoss)
        << size;
  }
  EXPECT_EQ(server::DecodeRange(Bytes(file + '\0')).status().code(), absl::StatusCode::kDataLoss);
}

TEST_P(AnyFormatTest, EveryFlippedBitIsRefused) {
  const std::string file = File();
  for (size_t bit = 0; bit < file.size() * 8; ++bit) {
    std::string damaged = file;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << bit % 8));
    EXPECT_FALSE(server::DecodeRange(Bytes(damaged)).ok()) << "bit " << bit;
  }
}

// With the checksum made right again, a changed byte is either refused by a check of its own or is
// plain data, and then the file encodes back to itself: nothing is read differently than written.
TEST_P(AnyFormatTest, SealedDamageIsRefusedOrIsData) {
  const std::string file = File();
  int refused = 0;
  for (size_t at = 0; at + 8 < file.size(); ++at) {
    for (const int value : {0x00, 0x01, 0x02, 0x7f, 0x80, 0xff}) {
      std::string changed = file;
      changed[at] = static_cast<char>(value);
      Seal(changed);
      const auto image = server::DecodeRange(Bytes(changed));
      if (!image.ok()) {
        ++refused;
      } else {
        EXPECT_EQ(server::EncodeRange(*image), changed) << "offset " << at;
      }
    }
  }
  EXPECT_GT(refused, 100);
}

// Counts are believed only when they add up to the bytes that are there, before any allocation:
// these would ask for up to 2^63 bytes.
TEST(RangeFileTest, HugeCountsAreRefusedByOffsetAndNumber) {
  const struct {
    size_t offset;
    size_t bytes;
    uint64_t value;
    const char* name;
  } kCases[] = {{16, 4, 0xffffffff, "dim at offset 16 is 4294967295"},
                {16, 4, 0, "dim at offset 16 is 0"},
                {20, 4, 0xffffffff, "slots_per_row at offset 20"},
                {24, 8, ~uint64_t{0}, "rows at offset 24"},
                {24, 8, uint64_t{1} << 32, "counts need"},
                {48, 8, ~uint64_t{0}, "version at offset 48 is -1"},
                {56, 4, 0xffffffff, "workers at offset 56"},
                {60, 4, 0xffffffff, "table_bytes at offset 60"},
                {64, 4, 0xffffffff, "optimizer_bytes at offset 64"},
                {68, 4, 2, "limited at offset 68"},
                {80, 8, 1, "candidates at offset 80"},
                {88, 8, 3, "step_base at offset 96 is 4, expected 0 to the stamp, 3"},
                {96, 8, ~uint64_t{0}, "step_base at offset 96 is -1"},
                {104, 4, 3, "row_type at offset 104 is 3, expected 0 to 2"},
                {108, 4, 2, "state_type at offset 108 is 2, expected 0 to 1"},
                {112, 4, 1, "numbers_per_row at offset 112 is 1, expected 0 to 0"},
                {116, 4, 1, "flags at offset 116"},
                {72, 8, ~uint64_t{0}, "held_bytes at offset 72"},
                {40, 8, 0x1000, "range at offset 32"},
                {128, 8, ~uint64_t{0}, "worker at offset 120"}};
  const auto expect_refused = [](std::string file, size_t offset, uint64_t value, size_t bytes,
                                 const std::string& name) {
    std::memcpy(&file[offset], &value, bytes);
    Seal(file);
    const absl::Status status = server::DecodeRange(Bytes(file)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
  };
  for (const auto& c : kCases) {
    expect_refused(server::EncodeRange(SmallImage()), c.offset, c.value, c.bytes, c.name);
  }
  const std::string limited = server::EncodeRange(LimitedImage());
  expect_refused(limited, 80, ~uint64_t{0}, 8, "candidates at offset 80");
  expect_refused(limited, 80, 3, 8, "counts need");
  const std::string heads = server::EncodeRange(HeadsImage());
  expect_refused(heads, 120, 2, 8, "counts need");
  expect_refused(heads, 120, 4, 8, "hot_rows at offset 120 is 4, expected 0 to 3");
  expect_refused(heads, 128, 0, 8, "hot_rows at offset 120 is 1, expected 0 to 0");
  expect_refused(heads, 128, ~uint64_t{0}, 8, "hot_updates at offset 128");
  expect_refused(heads, 136, 3, 4, "hot_type at offset 136 is 3, expected 0 to 2");
  expect_refused(heads, 104, 4, 4, "row_type at offset 104 is 4, expected 0 to 3");
  const size_t heads_at = 144 + 2 * 32 + 24 + 3 * 8;
  expect_refused(heads, heads_at, 122, 1, "has exponent 122 and count 0");
  expect_refused(heads, heads_at + 5, 255, 1, "has exponent 2 and count 255");
  expect_refused(heads, heads_at + 3, 3, 1, "has exponent -128 and count 3");
  expect_refused(heads, heads_at + 8, 128, 1, "is -128, expected -127 to 127");
  const size_t count = limited.size() - 8 - 8 - 16 + 8;  // before checksum and `held`
  expect_refused(limited, count, 101, 4,
                 absl::StrCat("count of a candidate at offset ", count, " is 101"));
}

TEST(RangeFileTest, AStrangerAndALaterFormatAreNamed) {
  std::string file = server::EncodeRange(SmallImage());
  file[0] = 'X';
  EXPECT_THAT(std::string(server::DecodeRange(Bytes(file)).status().message()), HasSubstr("magic"));
  file = server::EncodeRange(SmallImage());
  file[4] = 5;
  EXPECT_THAT(std::string(server::DecodeRange(Bytes(file)).status().message()),
              HasSubstr("format at offset 4 is 5, this program reads 1 to 4"));
}

TEST_P(AnyFormatTest, TheTwoEndsOfAFileSayWhoseItIs) {
  const std::string path = absl::StrCat(::testing::TempDir(), "/range_file_test.", getpid());
  const std::string file = File();
  ASSERT_TRUE(WriteFileAtomically(path, file).ok());
  const auto ends = server::ReadRangeFileEnds(path);
  ASSERT_TRUE(ends.ok()) << ends.status();
  EXPECT_EQ(ends->table, "users");
  EXPECT_EQ(ends->begin, 0x1000u);
  EXPECT_EQ(ends->end, 0u);
  EXPECT_EQ(ends->bytes, file.size());
  EXPECT_EQ(ends->checksum, server::StoredChecksum(Bytes(file)));
  const auto keys = server::ReadRangeFileKeys(path, 0, file.size());
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(*keys, SmallImage().keys);
  for (const size_t kept : {size_t{0}, size_t{79}, size_t{88}, size_t{120}, file.size() - 1}) {
    ASSERT_TRUE(WriteFileAtomically(path, file.substr(0, kept)).ok());
    const absl::Status status = server::ReadRangeFileEnds(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << kept;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_EQ(server::ReadRangeFileKeys(path, 0, kept).status(), status);
  }
  unlink(path.c_str());
}

std::unique_ptr<optim::RowOptimizer> MakeOptimizer(Optimizer::Kind kind) {
  Optimizer config;
  config.set_kind(kind);
  config.set_learning_rate(0.1);
  return *optim::NewRowOptimizer(config);
}

server::RowTable::Options StoreOptions(const optim::RowOptimizer* optimizer) {
  server::RowTable::Options options;
  options.dim = 4;
  options.salt = TestSeed();
  options.seed = 99;
  options.optimizer = optimizer;
  options.table = "users";
  return options;
}

void Fill(server::RowTable& store, uint64_t keys) {
  std::vector<uint64_t> some(keys);
  for (uint64_t i = 0; i < keys; ++i) some[i] = i * 977;
  std::vector<float> gradients(keys * 4);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(i % 13) - 6;
  TANDEM_CHECK_OK(store.Push(some, gradients, 1, {.number = 1}));
}

server::RangeImage ImageOf(const server::RowTable& store, uint64_t begin = 0, uint64_t end = 0) {
  server::RangeImage image;
  image.table = "users";
  image.optimizer = "rowwise_adagrad";
  image.dim = store.dim();
  image.slots_per_row = store.slots_per_row();
  image.begin = begin;
  image.end = end;
  image.keys = SortedKeys(store);
  std::vector<uint32_t> numbers(image.keys.size());
  store.Find(image.keys, absl::MakeSpan(numbers));
  for (const uint32_t row : numbers) {
    const absl::Span<const float> weights = store.Weights(row), slots = store.Slots(row);
    image.weights.insert(image.weights.end(), weights.begin(), weights.end());
    image.slots.insert(image.slots.end(), slots.begin(), slots.end());
  }
  return image;
}

std::string FileOf(const server::RowTable& store) { return server::EncodeRange(ImageOf(store)); }

TEST(LoadIntoTest, ALoadedStoreCheckpointsTheSameBytes) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  server::RowTable store(StoreOptions(optimizer.get())), loaded(StoreOptions(optimizer.get()));
  Fill(store, 10'000);
  const auto image = server::DecodeRange(Bytes(FileOf(store)));
  ASSERT_TRUE(image.ok()) << image.status();
  ASSERT_TRUE(server::LoadInto(*image, 0, 0, &loaded).ok());
  EXPECT_EQ(FileOf(loaded), FileOf(store));
}

// Rows of f32 become the nearest of the other type, and rows of another type keep their values in
// f32.
TEST(LoadIntoTest, RowsOfOneTypeLoadIntoAnother) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  server::RowTable store(StoreOptions(optimizer.get()));
  Fill(store, 300);
  const server::RangeImage image = ImageOf(store);
  server::RowTable::Options options = StoreOptions(optimizer.get());
  options.types.row = Table::BF16;
  server::RowTable rounded(options), back(StoreOptions(optimizer.get()));
  ASSERT_TRUE(server::LoadInto(image, 0, 0, &rounded).ok());
  std::vector<float> want = image.weights, weights(want.size());
  optim::RoundToNearest(Table::BF16, absl::MakeSpan(want));
  rounded.Pull(image.keys, absl::MakeSpan(weights));
  EXPECT_EQ(weights, want);
  EXPECT_NE(weights, image.weights);
  server::RangeImage of_rounded = image;
  of_rounded.weights = weights;
  ASSERT_TRUE(server::LoadInto(of_rounded, 0, 0, &back).ok());
  EXPECT_EQ(ImageOf(back).weights, want);
}

// The rows of a store with their heads, as a checkpoint copies them.
server::RangeImage CopyOf(const server::RowTable& store) {
  server::RangeImage image;
  image.table = store.options().table;
  image.optimizer = store.options().optimizer->name();
  image.dim = store.dim();
  image.slots_per_row = store.slots_per_row();
  image.types = store.options().types;
  server::RowCopies copies = store.NewCopies(std::make_shared<server::CopyBlocks>());
  for (uint64_t cursor = store.CopyRows(0, 100, &copies); cursor != 0;) {
    cursor = store.CopyRows(cursor, 100, &copies);
  }
  const server::CopyList& rows = copies.rows();
  for (size_t i = 0; i < rows.size(); ++i) {
    const float* const slots = rows.row(i) + image.dim;
    const float* const head = slots + image.slots_per_row;
    image.keys.push_back(rows.key(i));
    image.weights.insert(image.weights.end(), rows.row(i), slots);
    image.slots.insert(image.slots.end(), slots, head);
    std::memcpy(static_cast<void*>(&image.heads.emplace_back()), head, sizeof image.heads[0]);
  }
  server::OrderByPosition(store.options().salt, &image);
  image.ordered_under.reset();
  return image;
}

// Scales, counts and hot rows go through files, so the next updates have the same bits.
TEST(LoadIntoTest, HeadsOfRowsAreLoaded) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  server::RowTable::Options options = StoreOptions(optimizer.get());
  options.types = {Table::INT8, Table::F32, Table::F16, 6};
  for (const int64_t max_rows : {0, 5000}) {  // without limits, and with
    options.limits.max_rows = max_rows;
    server::RowTable store(options), loaded(options);
    int64_t stamp = 0;
    const auto update = [&stamp](server::RowTable& of, uint64_t every) {
      std::vector<uint64_t> keys;
      for (uint64_t key = 0; key < 500; key += every) keys.push_back(key);
      std::vector<float> gradients(keys.size() * 4);
      for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = std::sin(1.0f + i * stamp);
      TANDEM_CHECK_OK(of.Push(keys, gradients, 1, {.number = 1, .stamp = stamp}));
    };
    for (stamp = 1; stamp < 12; ++stamp) update(store, 1 + static_cast<uint64_t>(stamp) % 3);
    EXPECT_GT(store.hot_rows(), 100);
    EXPECT_LT(store.hot_rows(), 400);
    server::RangeImage image = CopyOf(store);
    const auto decoded = server::DecodeRange(Bytes(server::EncodeRange(image)));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    ExpectSame(*decoded, image);
    image = *decoded;
    if (max_rows > 0) image.ages.resize(image.keys.size());
    ASSERT_TRUE(server::LoadInto(image, 0, 0, &loaded).ok());
    ASSERT_TRUE(server::LoadInto(image, 0, 0, &loaded).ok()) << "over rows that are hot";
    EXPECT_EQ(loaded.hot_rows(), store.hot_rows());
    const int64_t from = stamp;
    for (server::RowTable* const of : {&store, &loaded}) {
      for (stamp = from; stamp < from + 9; ++stamp)
        update(*of, 1 + static_cast<uint64_t>(stamp) % 2);
    }
    ExpectSame(CopyOf(loaded), CopyOf(store));
    EXPECT_EQ(store.hot_rows(), 500);
  }
}

TEST(LoadIntoTest, AWeightTooLargeForTheTypeIsNamed) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  server::RangeImage image = ImageOf(server::RowTable(StoreOptions(optimizer.get())));
  image.keys = {4, 17};
  image.weights = {1, 2, 3, 4, 5, 70'000, 7, 8};
  image.slots = {1, 1};
  server::RowTable::Options options = StoreOptions(optimizer.get());
  options.types.row = Table::F16;
  for (const int64_t max_rows : {0, 10}) {  // without limits, and with
    options.limits.max_rows = max_rows;
    server::RowTable store(options);
    if (max_rows > 0) image.ages = {0, 0};
    const absl::Status loaded = server::LoadInto(image, 0, 0, &store);
    EXPECT_THAT(std::string(loaded.message()),
                HasSubstr("table users: the row of key 17 has a weight that is not finite, or "
                          "larger than 65504, which F16 cannot hold; hint: use BF16, or use F32"));
  }
}

// One file into three ranges, then the three back into one: nothing lost, nothing twice.
TEST(LoadIntoTest, FilesLoadOnAnotherNumberOfRanges) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  server::RowTable store(StoreOptions(optimizer.get()));
  Fill(store, 3000);
  const server::RangeImage image = ImageOf(store);
  const uint64_t cut = uint64_t{1} << 62;
  const uint64_t bounds[] = {0, cut, 3 * cut, 0};
  server::RowTable merged(StoreOptions(optimizer.get()));
  int64_t rows = 0;
  for (int r = 0; r < 3; ++r) {
    server::RowTable part(StoreOptions(optimizer.get()));
    ASSERT_TRUE(server::LoadInto(image, bounds[r], bounds[r + 1], &part).ok());
    for (const uint64_t key : SortedKeys(part)) {
      const uint64_t position = Position(TestSeed(), key);
      EXPECT_GE(position, bounds[r]);
      EXPECT_LE(position, bounds[r + 1] - 1);  // 0 - 1 is the last position
    }
    EXPECT_GT(part.size(), 0);
    rows += part.size();
    const server::RangeImage piece = ImageOf(part, bounds[r], bounds[r + 1]);
    ASSERT_TRUE(server::LoadInto(piece, 0, 0, &merged).ok());
  }
  EXPECT_EQ(rows, 3000);
  EXPECT_EQ(FileOf(merged), FileOf(store));
}

// The time of this thread on a processor, whatever else the machine does.
double ProcessorSeconds() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Loads an image into ranges of equal width, each in a store of its own. Returns the time.
double LoadIntoRanges(const server::RangeImage& image, uint64_t ranges,
                      const server::RowTable::Options& options,
                      std::vector<std::unique_ptr<server::RowTable>>* stores) {
  const uint64_t width = ~uint64_t{0} / ranges;
  for (uint64_t r = 0; r < ranges; ++r) {
    stores->push_back(std::make_unique<server::RowTable>(options));
  }
  const double begun = ProcessorSeconds();
  for (uint64_t r = 0; r < ranges; ++r) {
    const uint64_t end = r + 1 == ranges ? 0 : (r + 1) * width;
    TANDEM_CHECK_OK(server::LoadInto(image, r * width, end, (*stores)[r].get()));
  }
  return ProcessorSeconds() - begun;
}

// A file of another seed has its rows in another order. Its rows are ordered once, and then no
// range looks at the rows of the others: the time grows with the rows, not with rows times ranges.
TEST(LoadIntoTest, AnImageThatIsOrderedOnceLoadsLikeOneThatIsNot) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  const server::RowTable::Options options = StoreOptions(optimizer.get());
  server::RowTable store(options);
  Fill(store, 20'000);
  server::RangeImage image = ImageOf(store);
  std::reverse(image.keys.begin(), image.keys.end());  // with the weights and slots of other keys
  image.limited = true;
  image.ages.resize(image.keys.size());
  std::iota(image.ages.begin(), image.ages.end(), 0);
  for (const size_t i : {7, 3, 5}) {
    image.candidates.emplace_back();
    image.candidates.back().key = image.keys[i];
  }
  server::RangeImage ordered = image;
  server::OrderByPosition(TestSeed(), &ordered);
  EXPECT_EQ(ordered.ages.front(), 19'999u) << "the last key has become the first";
  for (size_t i = 1; i < ordered.candidates.size(); ++i) {
    EXPECT_LT(Position(TestSeed(), ordered.candidates[i - 1].key),
              Position(TestSeed(), ordered.candidates[i].key));
  }
  constexpr uint64_t kRanges = 500;
  std::vector<std::unique_ptr<server::RowTable>> by_scan, by_order;
  const double scan = LoadIntoRanges(image, kRanges, options, &by_scan);
  const double order = LoadIntoRanges(ordered, kRanges, options, &by_order);
  int64_t rows = 0;
  for (uint64_t r = 0; r < kRanges; ++r) {
    ASSERT_EQ(FileOf(*by_order[r]), FileOf(*by_scan[r])) << r;
    rows += by_order[r]->size();
  }
  EXPECT_EQ(rows, 20'000);
  EXPECT_LT(order, scan / 2) << "without a look at 20,000 keys for each of 500 ranges";
}

TEST(LoadIntoTest, AMismatchIsRefusedByNameAndChangesNothing) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  server::RowTable store(StoreOptions(optimizer.get()));
  Fill(store, 10);
  const server::RangeImage good = ImageOf(store);
  const auto expect_refused = [&](const server::RangeImage& image, server::RowTable& into,
                                  const char* name) {
    const absl::Status status = server::LoadInto(image, 0, 0, &into);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    EXPECT_EQ(into.size(), 0);
  };
  server::RowTable empty(StoreOptions(optimizer.get()));
  server::RangeImage other = good;
  other.table = "items";
  expect_refused(other, empty, "\"items\"");
  other = good;
  other.optimizer = "adam";
  expect_refused(other, empty, "\"adam\"");
  server::RowTable::Options wide = StoreOptions(optimizer.get());
  wide.dim = 8;
  server::RowTable wide_store(wide);
  expect_refused(good, wide_store, "dim \"4\"");
  const auto sgd = MakeOptimizer(Optimizer::SGD);
  server::RowTable sgd_store(StoreOptions(sgd.get()));
  expect_refused(good, sgd_store, "\"sgd\"");
  server::RowTable::Options unnamed = StoreOptions(optimizer.get());
  unnamed.table.clear();
  server::RowTable unnamed_store(unnamed);
  EXPECT_TRUE(server::LoadInto(good, 0, 0, &unnamed_store).ok())
      << "a store without a name takes any";
}

}  // namespace
}  // namespace tandem
