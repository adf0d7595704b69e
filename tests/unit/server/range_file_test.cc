// Range files: the bytes of the page, every damaged file refused, and loading into other ranges.
#include "server/range_file.h"

#include <unistd.h>

#include <cstring>
#include <memory>
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

void ExpectSame(const server::RangeImage& a, const server::RangeImage& b) {
  EXPECT_EQ(a.table, b.table);
  EXPECT_EQ(a.optimizer, b.optimizer);
  EXPECT_EQ(a.dim, b.dim);
  EXPECT_EQ(a.slots_per_row, b.slots_per_row);
  EXPECT_EQ(a.begin, b.begin);
  EXPECT_EQ(a.end, b.end);
  EXPECT_EQ(a.progress, b.progress);
  EXPECT_EQ(a.keys, b.keys);
  EXPECT_EQ(a.weights, b.weights);
  EXPECT_EQ(a.slots, b.slots);
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
  for (const server::RangeImage& small : {SmallImage(), LimitedImage()}) {
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
  image.progress.version = 2;
  image.progress.workers = {{3, 4, 5, true}};
  image.keys = {6};
  image.weights = {1.0f};
  image.slots = {2.0f};
  image.held = "h";
  const std::string want = absl::StrCat(
      "54445246"
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
      "6800000000000000");                 // 152 held "h", padding
  const std::string file = server::EncodeRange(image);
  ASSERT_EQ(file.size(), 168u);
  EXPECT_EQ(absl::BytesToHexString(file.substr(0, 160)), want);
}

// The same row in a table with limits: format 2, one number more in the header, its age and a
// candidate behind the slot.
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
      "03000000");  // 120 candidate: key, count, age
  const std::string file = server::EncodeRange(image);
  ASSERT_EQ(file.size(), 144u);
  EXPECT_EQ(absl::BytesToHexString(file.substr(0, 136)), want);
}

class AnyFormatTest : public ::testing::TestWithParam<bool> {
 protected:
  static std::string File() {
    return server::EncodeRange(GetParam() ? LimitedImage() : SmallImage());
  }
};

INSTANTIATE_TEST_SUITE_P(RangeFile, AnyFormatTest, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "WithLimits" : "WithoutLimits");
});

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
                {68, 4, 1, "reserved field at offset 68"},
                {72, 8, ~uint64_t{0}, "held_bytes at offset 72"},
                {40, 8, 0x1000, "range at offset 32"},
                {88, 8, ~uint64_t{0}, "worker at offset 80"}};
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
  const size_t count = limited.size() - 8 - 8 - 16 + 8;  // before checksum and `held`
  expect_refused(limited, count, 101, 4,
                 absl::StrCat("count of a candidate at offset ", count, " is 101"));
}

TEST(RangeFileTest, AStrangerAndALaterFormatAreNamed) {
  std::string file = server::EncodeRange(SmallImage());
  file[0] = 'X';
  EXPECT_THAT(std::string(server::DecodeRange(Bytes(file)).status().message()), HasSubstr("magic"));
  file = server::EncodeRange(SmallImage());
  file[4] = 3;
  EXPECT_THAT(std::string(server::DecodeRange(Bytes(file)).status().message()),
              HasSubstr("format at offset 4 is 3, this program reads 1 and 2"));
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
  const auto keys = server::ReadRangeFileKeys(path);
  ASSERT_TRUE(keys.ok()) << keys.status();
  EXPECT_EQ(*keys, SmallImage().keys);
  for (const size_t kept : {size_t{0}, size_t{79}, size_t{80}, size_t{88}, file.size() - 1}) {
    ASSERT_TRUE(WriteFileAtomically(path, file.substr(0, kept)).ok());
    const absl::Status status = server::ReadRangeFileEnds(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << kept;
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_EQ(server::ReadRangeFileKeys(path).status(), status);
  }
  unlink(path.c_str());
}

std::unique_ptr<optim::RowOptimizer> MakeOptimizer(Optimizer::Kind kind) {
  Optimizer config;
  config.set_kind(kind);
  config.set_learning_rate(0.1);
  return *optim::NewRowOptimizer(config);
}

server::RangeStore::Options StoreOptions(const optim::RowOptimizer* optimizer) {
  server::RangeStore::Options options;
  options.dim = 4;
  options.salt = TestSeed();
  options.seed = 99;
  options.optimizer = optimizer;
  options.table = "users";
  return options;
}

void Fill(server::RangeStore& store, uint64_t keys) {
  std::vector<uint64_t> some(keys);
  for (uint64_t i = 0; i < keys; ++i) some[i] = i * 977;
  std::vector<float> gradients(keys * 4);
  for (size_t i = 0; i < gradients.size(); ++i) gradients[i] = static_cast<float>(i % 13) - 6;
  TANDEM_CHECK_OK(store.Push(some, gradients, 1));
}

server::RangeImage ImageOf(const server::RangeStore& store, uint64_t begin = 0, uint64_t end = 0) {
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

std::string FileOf(const server::RangeStore& store) { return server::EncodeRange(ImageOf(store)); }

TEST(LoadIntoTest, ALoadedStoreCheckpointsTheSameBytes) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  server::RangeStore store(StoreOptions(optimizer.get())), loaded(StoreOptions(optimizer.get()));
  Fill(store, 10'000);
  const auto image = server::DecodeRange(Bytes(FileOf(store)));
  ASSERT_TRUE(image.ok()) << image.status();
  ASSERT_TRUE(server::LoadInto(*image, 0, 0, &loaded).ok());
  EXPECT_EQ(FileOf(loaded), FileOf(store));
}

// One file into three ranges, then the three back into one: nothing lost, nothing twice.
TEST(LoadIntoTest, FilesLoadOnAnotherNumberOfRanges) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  server::RangeStore store(StoreOptions(optimizer.get()));
  Fill(store, 3000);
  const server::RangeImage image = ImageOf(store);
  const uint64_t cut = uint64_t{1} << 62;
  const uint64_t bounds[] = {0, cut, 3 * cut, 0};
  server::RangeStore merged(StoreOptions(optimizer.get()));
  int64_t rows = 0;
  for (int r = 0; r < 3; ++r) {
    server::RangeStore part(StoreOptions(optimizer.get()));
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

TEST(LoadIntoTest, AMismatchIsRefusedByNameAndChangesNothing) {
  const auto optimizer = MakeOptimizer(Optimizer::ROWWISE_ADAGRAD);
  server::RangeStore store(StoreOptions(optimizer.get()));
  Fill(store, 10);
  const server::RangeImage good = ImageOf(store);
  const auto expect_refused = [&](const server::RangeImage& image, server::RangeStore& into,
                                  const char* name) {
    const absl::Status status = server::LoadInto(image, 0, 0, &into);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(status.message()), HasSubstr(name));
    EXPECT_EQ(into.size(), 0);
  };
  server::RangeStore empty(StoreOptions(optimizer.get()));
  server::RangeImage other = good;
  other.table = "items";
  expect_refused(other, empty, "\"items\"");
  other = good;
  other.optimizer = "adam";
  expect_refused(other, empty, "\"adam\"");
  server::RangeStore::Options wide = StoreOptions(optimizer.get());
  wide.dim = 8;
  server::RangeStore wide_store(wide);
  expect_refused(good, wide_store, "dim \"4\"");
  const auto sgd = MakeOptimizer(Optimizer::SGD);
  server::RangeStore sgd_store(StoreOptions(sgd.get()));
  expect_refused(good, sgd_store, "\"sgd\"");
  server::RangeStore::Options unnamed = StoreOptions(optimizer.get());
  unnamed.table.clear();
  server::RangeStore unnamed_store(unnamed);
  EXPECT_TRUE(server::LoadInto(good, 0, 0, &unnamed_store).ok())
      << "a store without a name takes any";
}

}  // namespace
}  // namespace tandem
