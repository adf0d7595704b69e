// The files of update records of a run that resumes with fewer servers or shards.
#include "server/record/record_cut.h"

#include <unistd.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

class RecordCutTest : public ::testing::Test {
 protected:
  RecordCutTest() { fs::create_directories(folder_); }
  ~RecordCutTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  void Write(const std::string& name, size_t bytes) {
    ASSERT_EQ(WriteFileAtomically(Path(name), std::string(bytes, 'x')), absl::OkStatus());
  }
  // -1: there is none.
  int64_t BytesOf(const std::string& name) const {
    std::error_code error;
    const uintmax_t bytes = fs::file_size(Path(name), error);
    return error ? -1 : static_cast<int64_t>(bytes);
  }

  const std::string folder_ =
      absl::StrCat(fs::temp_directory_path().string(), "/record-cut-", getpid());
};

TEST_F(RecordCutTest, FilesOfServersThatAreNoMoreEndAtTheCheckpoint) {
  RunRecord run;
  (*run.mutable_record_bytes())["server-0-shard-0"] = 112;
  (*run.mutable_record_bytes())["server-1-shard-0"] = 112;
  (*run.mutable_record_bytes())["server-2-shard-0"] = 208;
  Write("server-0-shard-0.updates", 304);
  Write("server-0-shard-1.updates", 304);
  Write("server-1-shard-0.updates", 304);
  Write("server-2-shard-0.updates", 208);
  Write("server-3-shard-0.updates", 304);
  Write("server-1-shard-0.order", 304);
  Write("server-one-shard-0.updates", 304);
  ASSERT_EQ(server::CutOtherRecords(folder_, run, /*servers=*/1, /*shards=*/1), absl::OkStatus());
  EXPECT_EQ(BytesOf("server-0-shard-0.updates"), 304) << "its shard cuts it";
  EXPECT_EQ(BytesOf("server-0-shard-1.updates"), -1) << "not there at the checkpoint";
  EXPECT_EQ(BytesOf("server-1-shard-0.updates"), 112);
  EXPECT_EQ(BytesOf("server-2-shard-0.updates"), 208);
  EXPECT_EQ(BytesOf("server-3-shard-0.updates"), -1);
  EXPECT_EQ(BytesOf("server-1-shard-0.order"), 304);
  EXPECT_EQ(BytesOf("server-one-shard-0.updates"), 304) << "not ours";
}

TEST_F(RecordCutTest, ACheckpointWithoutLengthsCutsNothing) {
  Write("server-1-shard-0.updates", 304);
  ASSERT_EQ(server::CutOtherRecords(folder_, RunRecord(), 1, 1), absl::OkStatus());
  EXPECT_EQ(BytesOf("server-1-shard-0.updates"), 304);
  EXPECT_EQ(server::RecordBytesAt(RunRecord(), "server-0-shard-0"), server::kAllRecords);
}

// The run resumed with more servers, and died before its next checkpoint.
TEST_F(RecordCutTest, AShardThatCameAfterTheCheckpointBeginsAnew) {
  RunRecord run;
  (*run.mutable_record_bytes())[server::RecordFileName(0, 0)] = 112;
  EXPECT_EQ(server::RecordBytesAt(run, server::RecordFileName(0, 0)), 112u);
  EXPECT_EQ(server::RecordBytesAt(run, server::RecordFileName(1, 0)), 0u);
}

}  // namespace
}  // namespace tandem
