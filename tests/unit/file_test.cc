// Whole files: what was there before stays until the new one is in place, and errors name the file.
#include "base/file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(MakeFolder(folder_), absl::OkStatus()); }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }

  const std::string root_ = absl::StrCat(::testing::TempDir(), "/file_test.", getpid());
  const std::string folder_ = root_ + "/a/folder";
};

TEST_F(FileTest, WritesAndReads) {
  ASSERT_EQ(WriteFileAtomically(Path("f"), "old"), absl::OkStatus());
  ASSERT_EQ(WriteFileAtomically(Path("f"), "new"), absl::OkStatus());
  EXPECT_EQ(*ReadWholeFile(Path("f")), "new");
  EXPECT_FALSE(std::filesystem::exists(Path("f.tmp"))) << "no leftover";
}

TEST_F(FileTest, PutsAFileInPlace) {
  ASSERT_EQ(WriteFileAtomically(Path("f"), "old"), absl::OkStatus());
  ASSERT_EQ(WriteFileAtomically(Path("pieces"), "new"), absl::OkStatus());
  ASSERT_EQ(PutInPlace(Path("pieces"), Path("f")), absl::OkStatus());
  EXPECT_EQ(*ReadWholeFile(Path("f")), "new");
  EXPECT_FALSE(std::filesystem::exists(Path("pieces")));
}

TEST_F(FileTest, ErrorsNameTheFile) {
  EXPECT_EQ(ReadWholeFile(Path("none")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(ReadWholeFile(Path("none")).status().message()), HasSubstr(Path("none")));
  EXPECT_FALSE(ReadWholeFile("/dev/null").ok()) << "a device is not a file of ours";
  const absl::Status nowhere = WriteFileAtomically(Path("no/such"), "x");
  EXPECT_EQ(nowhere.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(nowhere.message()), HasSubstr(Path("no/such")));
  ASSERT_EQ(WriteFileAtomically(Path("f"), "x"), absl::OkStatus());
  EXPECT_THAT(std::string(MakeFolder(Path("f/g")).message()), HasSubstr(Path("f/g")));
  EXPECT_THAT(std::string(MakeFolder(Path("f/g")).message()), HasSubstr("/a/folder/f is a file"));
  ASSERT_EQ(symlink("nowhere", Path("link").c_str()), 0);
  EXPECT_THAT(std::string(MakeFolder(Path("link")).message()),
              HasSubstr("/a/folder/link is a link to nowhere, which is not there"));
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadWholeFile(Path("pipe")).status().message()),
              HasSubstr("not a regular file"))
      << "and is not waited for";
}

// The temporary file leads to a device that is always full: the error says so, and what was there
// before stays.
TEST_F(FileTest, AFullDiskLeavesTheOldFile) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "no /dev/full here";
  ASSERT_EQ(WriteFileAtomically(Path("f"), "old"), absl::OkStatus());
  ASSERT_EQ(symlink("/dev/full", Path("f.tmp").c_str()), 0);
  const absl::Status status = WriteFileAtomically(Path("f"), "new");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(Path("f.tmp")));
  EXPECT_THAT(std::string(status.message()), HasSubstr("offset 0"));
  EXPECT_EQ(*ReadWholeFile(Path("f")), "old");
}

}  // namespace
}  // namespace tandem
