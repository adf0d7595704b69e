// The order of updates as files: whole ones, and those that are not what they should be.
#include "server/record/order_file.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/record/record_file.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using server::OrderEntry;
using ::testing::HasSubstr;
using OrderFile = server::RecordFile<OrderEntry, server::OrderFileHead>;

class OrderFileTest : public ::testing::Test {
 protected:
  OrderFileTest() { fs::create_directories(folder_); }
  ~OrderFileTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  void Write(const std::string& name, const std::vector<OrderEntry>& entries) {
    OrderFile file("order of updates");
    ASSERT_EQ(file.Open(Path(name), /*keep=*/0), absl::OkStatus());
    ASSERT_EQ(file.Append(entries), absl::OkStatus());
  }
  auto Read() const {
    return server::ReadOrder(folder_, 2, [](uint32_t) { return true; });
  }
  void ExpectRefused(const std::string& why) const {
    const auto read = Read();
    ASSERT_FALSE(read.ok());
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(folder_));
    EXPECT_THAT(std::string(read.status().message()), HasSubstr(why));
  }

  const std::string folder_ =
      absl::StrCat(fs::temp_directory_path().string(), "/order_file_test-", getpid());
};

OrderEntry Entry(uint32_t range, int worker, int64_t step, int64_t place) {
  OrderEntry entry;
  entry.range = range;
  entry.worker = static_cast<uint16_t>(worker);
  entry.step = step;
  entry.version = entry.admitted_before = place;
  return entry;
}

std::vector<int> Workers(const std::vector<OrderEntry>& order) {
  std::vector<int> workers;
  for (const OrderEntry& entry : order) workers.push_back(entry.worker);
  return workers;
}

TEST_F(OrderFileTest, FilesOfAllShardsAreReadTogether) {
  Write("server-0-shard-0.order", {Entry(0, 1, 0, 0), Entry(2, 0, 0, 0), Entry(0, 0, 0, 1)});
  Write("server-1-shard-0.order", {Entry(1, 0, 0, 0)});
  const auto all = Read();
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 3u);
  EXPECT_EQ(Workers(all->at(0)), (std::vector<int>{1, 0}));
  const auto one = server::ReadOrder(folder_, 2, [](uint32_t range) { return range == 1; });
  ASSERT_TRUE(one.ok());
  EXPECT_EQ(one->size(), 1u);
}

// A run that resumes takes later steps again, so it must not keep their entries.
TEST_F(OrderFileTest, AFileGoesOnBehindTheBytesThatItKeeps) {
  const std::string path = Path("server-0-shard-0.order");
  uint64_t mark = 0;
  {
    OrderFile file("order of updates");
    EXPECT_EQ(file.bytes(), 0u);
    ASSERT_EQ(file.Open(path, /*keep=*/0), absl::OkStatus());
    ASSERT_EQ(file.Append(std::vector<OrderEntry>{Entry(0, 0, 0, 0)}), absl::OkStatus());
    mark = file.bytes();
    ASSERT_EQ(file.Append(std::vector<OrderEntry>{Entry(0, 0, 1, 1)}), absl::OkStatus());
  }
  fs::resize_file(path, fs::file_size(path) - 1);  // its writer was killed
  {
    OrderFile file("order of updates");
    ASSERT_EQ(file.Open(path, mark), absl::OkStatus());
    EXPECT_EQ(file.bytes(), mark);
    ASSERT_EQ(file.Append(std::vector<OrderEntry>{Entry(0, 1, 0, 1)}), absl::OkStatus());
    ASSERT_EQ(file.Flush(), absl::OkStatus());
    EXPECT_EQ(file.bytes(), fs::file_size(path));
  }
  fs::resize_file(path, fs::file_size(path) + 7);  // an entry that is not whole
  {
    OrderFile file("order of updates");
    ASSERT_EQ(file.Open(path, 100 * mark), absl::OkStatus());
    EXPECT_EQ(file.bytes(), fs::file_size(path));
  }
  const auto all = Read();
  ASSERT_TRUE(all.ok()) << all.status();
  EXPECT_EQ(Workers(all->at(0)), (std::vector<int>{0, 1}));
}

TEST_F(OrderFileTest, OneLineSaysWhatIsWrong) {
  ExpectRefused("no order of updates (*.order) in it");
  Write("server-0-shard-0.order", {Entry(0, 0, 0, 0), Entry(0, 0, 2, 2)});
  ExpectRefused("range 0 has a gap before step 2 of worker 0");
  Write("server-0-shard-0.order", {Entry(0, 0, 1, 1)});
  ExpectRefused("range 0 has a gap before step 1 of worker 0");
  OrderEntry read_later = Entry(0, 0, 0, 0), endless = Entry(0, 0, int64_t{1} << 62, 0);
  read_later.rows = 1;
  read_later.version_read = 7;
  for (const OrderEntry& entry : {Entry(0, 2, 0, 0), read_later, endless}) {
    Write("server-0-shard-0.order", {entry});
    ExpectRefused("range 0 has an entry that no run of 2 workers writes");
  }
  ASSERT_EQ(WriteFileAtomically(Path("server-0-shard-0.order"), "TNDMUPD2 and more bytes"),
            absl::OkStatus());
  ExpectRefused("expected one that begins with TNDMORD1");
  Write("server-0-shard-0.order", {Entry(0, 0, 0, 0), Entry(0, 0, 1, 1)});
  fs::resize_file(Path("server-0-shard-0.order"),
                  fs::file_size(Path("server-0-shard-0.order")) - 1);
  ExpectRefused("server-0-shard-0.order: ends 63 bytes into an entry of 64: is it cut short?");
}

TEST_F(OrderFileTest, AWholeOrderHasAllWorkersUpToOneStepInEachRange) {
  const auto whole = [&] { return server::CheckWholeOrder(folder_, 2, {0, 1}); };
  const std::vector<OrderEntry> of_0 = {Entry(0, 1, 0, 0), Entry(0, 0, 0, 1), Entry(0, 0, 1, 2),
                                        Entry(0, 1, 1, 3)};
  Write("server-0-shard-0.order", of_0);
  EXPECT_THAT(std::string(whole().message()),
              HasSubstr("the order of range 1 has 0 of 2 steps of worker 0: is a file cut short"));
  // What programs have written into range 7 is nobody's business.
  Write("server-1-shard-0.order",
        {Entry(1, 0, 0, 0), Entry(1, 0, 1, 1), Entry(1, 1, 0, 2), Entry(7, 0, 5, 9)});
  EXPECT_THAT(std::string(whole().message()),
              HasSubstr("the order of range 1 has 1 of 2 steps of worker 1"));
  Write("server-1-shard-0.order",
        {Entry(1, 0, 0, 0), Entry(1, 0, 1, 1), Entry(1, 1, 0, 2), Entry(1, 1, 1, 3)});
  EXPECT_EQ(whole(), absl::OkStatus());
  Write("server-0-shard-0.order", {Entry(0, 0, 2, 2)});
  EXPECT_THAT(std::string(whole().message()), HasSubstr("range 0 has a gap before step 2"));
}

}  // namespace
}  // namespace tandem
