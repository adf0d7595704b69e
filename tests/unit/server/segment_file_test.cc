// Segments: the bytes of the page, and what a writer leaves behind.
#include "server/checkpoint/segment_file.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "xxhash.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SegmentFileTest : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(folder_); }

  static server::RangeImage Image(const std::string& table, uint64_t begin, uint64_t end) {
    server::RangeImage image;
    image.table = table;
    image.dim = 1;
    image.begin = begin;
    image.end = end;
    image.keys = {begin};
    image.weights = {1};
    return image;
  }
  static absl::Status Add(const server::RangeImage& image, server::SegmentWriter* writer) {
    return writer->Add(image, image.keys.size(),
                       [&](const ByteSink& sink) { return sink(server::EncodeRange(image)); });
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  const std::string folder_ =
      absl::StrCat(::testing::TempDir(), "/segment_file_test.", getpid(), "/step-1");
};

TEST_F(SegmentFileTest, TheBytesAreThoseOfThePage) {
  const server::RangeImage a = Image("t", 0x10, 0x20), b = Image("tables", 0x20, 0);
  const std::string first = server::EncodeRange(a), second = server::EncodeRange(b);
  ASSERT_EQ(first.size(), 152u);
  ASSERT_EQ(second.size(), 152u);
  server::SegmentWriter writer(folder_, "s");
  ASSERT_EQ(Add(a, &writer), absl::OkStatus());
  ASSERT_EQ(Add(b, &writer), absl::OkStatus());
  ASSERT_EQ(writer.Finish(), absl::OkStatus());
  ASSERT_THAT(Files(), ElementsAre("s-0.segment"));
  const std::string file = *ReadWholeFile(Path("s-0.segment"));
  const std::string zeros(40, '\0');
  EXPECT_EQ(file.substr(0, 384), absl::StrCat(first, zeros, second, zeros));
  const auto checksum = [](const std::string& bytes) {
    return absl::BytesToHexString(bytes.substr(bytes.size() - 8));
  };
  const std::string index = absl::StrCat(
      "0000000000000000"
      "9800000000000000",  //   0 offset, bytes
      "1000000000000000"
      "2000000000000000",  //  16 begin, end
      "0100000000000000",  //  32 rows
      checksum(first),
      "0100000000000000",  //  48 name_bytes
      "7400000000000000",  //  56 "t", padding
      "c000000000000000"
      "9800000000000000",  //  64 the second entry
      "2000000000000000"
      "0000000000000000",
      "0100000000000000", checksum(second), "0600000000000000",
      "7461626c65730000");  // 120 "tables", padding
  const std::string trailer =
      "54445347"
      "01000000"           // magic, format
      "0200000000000000"   // parts
      "8000000000000000"   // index_bytes = 128
      "2802000000000000";  // file_bytes = 552
  ASSERT_EQ(file.size(), 552u);
  EXPECT_EQ(absl::BytesToHexString(file.substr(384, 128)), index);
  EXPECT_EQ(absl::BytesToHexString(file.substr(512, 32)), trailer);
  uint64_t sum = 0;
  std::memcpy(&sum, &file[544], sizeof sum);
  EXPECT_EQ(sum, XXH3_64bits_withSeed(&file[512], 32, XXH3_64bits(&file[384], 128)));
}

// The index lists the parts as they were written, and each part has its bytes.
TEST_F(SegmentFileTest, PartsAreReadWithoutAManifest) {
  server::SegmentWriter writer(folder_, "server-1-2", /*full_bytes=*/500);
  std::vector<server::RangeImage> images;
  for (uint64_t i = 0; i < 10; ++i) {
    images.push_back(Image(absl::StrCat("table", i), i, i + 1));
    ASSERT_EQ(Add(images.back(), &writer), absl::OkStatus());
  }
  ASSERT_EQ(writer.Finish(), absl::OkStatus());
  ASSERT_THAT(Files(), ElementsAre("server-1-2-0.segment", "server-1-2-1.segment",
                                   "server-1-2-2.segment", "server-1-2-3.segment"));
  size_t next = 0;
  for (const std::string& name : Files()) {
    const auto parts = server::ReadSegmentIndex(Path(name));
    ASSERT_TRUE(parts.ok()) << parts.status();
    EXPECT_EQ(parts->size(), next < 9 ? 3u : 1u);
    for (const server::CheckpointFile& part : *parts) {
      const server::RangeImage& image = images[next++];
      const std::string bytes = server::EncodeRange(image);
      EXPECT_EQ(part.name, name);
      EXPECT_EQ(part.table, image.table);
      EXPECT_EQ(part.begin, image.begin);
      EXPECT_EQ(part.end, image.end);
      EXPECT_EQ(part.rows, 1);
      EXPECT_EQ(part.offset % 64, 0u);
      EXPECT_EQ(*server::ReadSegmentPart(Path(name), part), bytes);
    }
  }
  EXPECT_EQ(next, images.size());
}

TEST_F(SegmentFileTest, AnUnfinishedSegmentIsRemoved) {
  {
    server::SegmentWriter writer(folder_, "s");
    ASSERT_EQ(Add(Image("t", 0, 0), &writer), absl::OkStatus());
    EXPECT_THAT(Files(), ElementsAre("s-0.segment.tmp"));
    EXPECT_EQ(writer.Add(Image("t", 0, 0), 1,
                         [](const ByteSink& sink) {
                           (void)sink("half of a range");
                           return absl::CancelledError("no more");
                         }),
              absl::CancelledError("no more"));
  }
  EXPECT_THAT(Files(), ElementsAre());
  server::SegmentWriter nothing(folder_, "s");
  EXPECT_EQ(nothing.Finish(), absl::OkStatus());
  EXPECT_THAT(Files(), ElementsAre());
}

// With the checksum made right again, a changed index is refused or lists something else; it never
// makes a reader leave the file.
TEST_F(SegmentFileTest, SealedDamageOfTheIndexIsRefusedOrIsData) {
  server::SegmentWriter writer(folder_, "s");
  ASSERT_EQ(Add(Image("t", 0, 5), &writer), absl::OkStatus());
  ASSERT_EQ(Add(Image("tables", 5, 0), &writer), absl::OkStatus());
  ASSERT_EQ(writer.Finish(), absl::OkStatus());
  const std::string path = Path("s-0.segment"), file = *ReadWholeFile(path);
  const auto right = server::ReadSegmentIndex(path);
  ASSERT_TRUE(right.ok()) << right.status();
  int refused = 0;
  for (size_t at = file.size() - 40 - 128; at < file.size() - 8; ++at) {
    for (const int value : {0x00, 0x01, 0x80, 0xff}) {
      std::string changed = file;
      changed[at] = static_cast<char>(value);
      if (changed == file) continue;
      char* const trailer = &changed[file.size() - 40];
      const uint64_t sum = XXH3_64bits_withSeed(trailer, 32, XXH3_64bits(trailer - 128, 128));
      std::memcpy(trailer + 32, &sum, sizeof sum);
      std::ofstream(path, std::ios::binary) << changed;
      const auto parts = server::ReadSegmentIndex(path);
      if (parts.ok()) {
        EXPECT_NE(*parts, *right) << at;
        for (const server::CheckpointFile& part : *parts) {
          EXPECT_LE(part.offset + part.bytes, file.size());
        }
      } else {
        ++refused;
        EXPECT_THAT(std::string(parts.status().message()), HasSubstr(path));
      }
    }
  }
  EXPECT_GT(refused, 200);
}

}  // namespace
}  // namespace tandem
