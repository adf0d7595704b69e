// What lies in files as text: every number that matters is there, and a bad file gives one line.
#include "server/checkpoint/inspect.h"

#include <unistd.h>

#include <filesystem>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/segment_file.h"
#include "server/range.h"
#include "server/record/order_file.h"
#include "tests/unit/server/core_fixture.h"
#include "tests/unit/server/range_image.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class InspectTest : public ::testing::Test {
 protected:
  InspectTest() { fs::create_directories(folder_); }
  ~InspectTest() override { fs::remove_all(folder_); }

  std::string Path(const std::string& name) const { return absl::StrCat(folder_, "/", name); }
  void Write(const std::string& name, const std::string& bytes) const {
    ASSERT_EQ(WriteFileAtomically(Path(name), bytes), absl::OkStatus());
  }
  std::string Text(const std::string& path, int64_t limit = 10) const {
    std::ostringstream out;
    const absl::Status status = server::Inspect(path, {limit}, out);
    EXPECT_TRUE(status.ok()) << status;
    return out.str();
  }
  void ExpectRefused(const std::string& path, const std::string& why) const {
    std::ostringstream out;
    const absl::Status status = server::Inspect(path, {}, out);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(path));
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }

  // Three rows under K_BATCH_ASYNC(3); two updates stand open.
  server::RangeImage Image() {
    const job::ResolvedJob plan = CorePlan("kind: K_BATCH_ASYNC batches: 3", 2, 1);
    const auto policy = *policies::NewUpdatePolicy(plan.groups[0].policy, 2);
    const auto optimizer = *optim::NewRowOptimizer(plan.tables[0].optimizer);
    server::TableContext table;
    table.plan = &plan.tables[0];
    table.optimizer = optimizer.get();
    table.policy = policy.get();
    table.workers = 2;
    server::FoldScratch scratch;
    server::Range range(0, 0, 0, &table, &scratch);
    for (const uint64_t key : {5, 6, 7}) {
      TANDEM_CHECK_OK(range.store().Assign({&key, 1}, std::vector<float>{0.25f, -3}, {}));
    }
    for (const int rank : {1, 0}) {
      server::HeldUpdate update;
      update.rank = rank;
      update.samples = 4;
      update.keys = BufferOf<uint64_t>(buffers_, {5});
      update.values = BufferOf<float>(buffers_, {1, 1});
      EXPECT_EQ(range.Admit(absl::UnixEpoch(), 1, 0, std::move(update), rank == 0),
                server::Range::Admission::kAdmitted);
    }
    return ImageOf(range);
  }
  static std::string Records(uint16_t fate_of_last = server::kFateDropped) {
    server::UpdateRecord records[2];
    records[0].worker = 3;
    records[0].step = 17;
    records[0].version_read = 40;
    records[0].version_applied = 46;
    records[0].rows = 9;
    records[0].samples = records[0].divided_by = 128;
    records[0].clock_gap = 2;
    records[1] = records[0];
    records[0].age = 1500;
    records[0].row_staleness_sum = 12;
    records[0].row_staleness_max = 4;
    records[0].rows_measured = 8;
    records[1].fate = fate_of_last;
    const server::RecordFileHead head;
    return absl::StrCat(std::string(reinterpret_cast<const char*>(&head), sizeof head),
                        std::string(reinterpret_cast<const char*>(records), sizeof records));
  }

  static std::string Order() {
    server::OrderEntry entries[2];
    entries[0].worker = 1;
    entries[0].rows = 5;
    entries[1].step = 1;
    entries[1].version = 1;
    const server::OrderFileHead head;
    return absl::StrCat(std::string(reinterpret_cast<const char*>(&head), sizeof head),
                        std::string(reinterpret_cast<const char*>(entries), sizeof entries));
  }

  HeapBufferSource buffers_;
  const std::string folder_ = absl::StrCat(::testing::TempDir(), "/inspect_test.", getpid());
};

TEST_F(InspectTest, ARangeFileIsItsRowsAndWhatItRemembers) {
  Write("a.range", server::EncodeRange(Image()));
  const std::string text = Text(Path("a.range"));
  EXPECT_THAT(text, HasSubstr("positions [0x0, 2^64), 3 rows of 2 floats and 0 slots"));
  EXPECT_THAT(text, HasSubstr("worker 0: 1 steps admitted, 0 applied, no data left\n"));
  EXPECT_THAT(text, HasSubstr("open: batch 0: 2 updates of 8 samples\n"
                              "    worker 1 step 0, n 4, 1 rows, read at version 0\n"
                              "    worker 0 step 0"));
  EXPECT_THAT(text, HasSubstr("key 0x5: 0.25 -3\n"));
  EXPECT_THAT(text, Not(HasSubstr("more")));
  EXPECT_THAT(Text(Path("a.range"), 1), HasSubstr("... and 2 rows more"));
  EXPECT_EQ(Text(Path("a.range"), 0), text);
}

TEST_F(InspectTest, ASegmentIsItsRanges) {
  server::SegmentWriter writer(folder_, "server-0-0");
  server::RangeImage image = Image();
  image.end = 0x1000;
  for (const char* const table : {"a", "b"}) {
    image.table = table;
    ASSERT_EQ(writer.Add(image, image.keys.size(),
                         [&](const ByteSink& sink) { return sink(server::EncodeRange(image)); }),
              absl::OkStatus());
  }
  ASSERT_EQ(writer.Finish(), absl::OkStatus());
  const std::string path = Path("server-0-0-0.segment"), text = Text(path, 1);
  EXPECT_THAT(text, HasSubstr(path + ": a segment of 2 ranges\n"));
  EXPECT_THAT(text, HasSubstr(" at offset 0: table a, positions [0x0, 0x1000), 3 rows"));
  EXPECT_THAT(text, HasSubstr(": table b, positions [0x0, 0x1000), 3 rows"));
  EXPECT_THAT(text, HasSubstr("... and 2 rows more"));
  EXPECT_EQ(Text(folder_, 1), text) << "a checkpoint that was not finished";
  std::string bytes = *ReadWholeFile(path);
  bytes[700] ^= 1;
  Write("server-0-0-0.segment", bytes);
  ExpectRefused(path, "checksum");
}

TEST_F(InspectTest, ARangeFileOfATableWithLimitsHasAgesAndCandidates) {
  server::RangeImage image = Image();
  image.limited = true;
  image.ages = {0, 17, 3};
  image.candidates = {{0x30, 2, 5}, {0x31, 1, 0}};
  Write("a.range", server::EncodeRange(image));
  const std::string text = Text(Path("a.range"));
  EXPECT_THAT(text, HasSubstr("2 candidates for rows\n"
                              "    key 0x30: 2 updates, the last 5 versions ago\n"));
  EXPECT_THAT(text, HasSubstr(": 0.25 -3, updated 17 versions ago\n"));
  EXPECT_THAT(Text(Path("a.range"), 1), HasSubstr("... and 1 candidates more"));
}

TEST_F(InspectTest, RecordsAreALineEachAndASum) {
  Write("server-0.updates", Records());
  const std::string text = Text(Path("server-0.updates"));
  EXPECT_THAT(text, HasSubstr(": 2 updates\n  worker 3 step 17 table 0 range 0: 9 rows, n 128 of "
                              "128, applied, read at version 40, applied at 46, clock gap 2"));
  EXPECT_THAT(text, HasSubstr("us, age 1500 us, row staleness mean 1.5, largest 4\n"));
  EXPECT_THAT(text, HasSubstr("in all: 1 dropped; version staleness mean 6, largest 6; clock gap "
                              "mean 2, largest 2; age mean 0.0015, largest 0.0015 s; row staleness "
                              "mean 1.5, largest 4\n"));
  EXPECT_THAT(Text(Path("server-0.updates"), 1), HasSubstr("... and 1 updates more"));
}

TEST_F(InspectTest, AnOrderIsALineAnUpdate) {
  Write("server-0.order", Order());
  EXPECT_THAT(Text(Path("server-0.order")),
              HasSubstr(": the order of 2 updates\n  range 0 at version 0: worker 1 step 0, 5 rows "
                        "read at version 0, n 0\n  range 0 at version 1: worker 0 step 1, n 0\n"));
  EXPECT_THAT(Text(Path("server-0.order"), 1), HasSubstr("... and 1 updates more"));
}

// The folder of a run has both; a checkpoint alone is told by its manifest.
TEST_F(InspectTest, AFolderIsAllThatIsInIt) {
  const job::ResolvedJob plan = CorePlan("kind: BSP", 1, 1, "", "ALLREDUCE");
  const std::string checkpoint = server::CheckpointFolder(Path("model"), 0xab, 12, 0);
  fs::create_directories(Path("model"));
  server::RangeImage dense;
  dense.table = job::kDenseTableName;
  dense.dim = 2;
  dense.optimizer = "sgd";
  ASSERT_EQ(server::WriteDenseFile(checkpoint, server::EncodeRange(dense)), absl::OkStatus());
  for (const job::TablePlan& table : plan.tables) {
    server::RangeImage image;
    image.table = table.name;
    image.dim = table.dim;
    image.optimizer = "sgd";
    ASSERT_EQ(WriteFileAtomically(absl::StrCat(checkpoint, "/", server::RangeFileName(image)),
                                  server::EncodeRange(image)),
              absl::OkStatus());
  }
  server::CheckpointHead head;
  head.run = 0xab;
  head.step = 12;
  head.record = "what the run has done";
  ASSERT_EQ(server::CommitCheckpoint(checkpoint, plan, head, {{"top.bias", {2}}}),
            absl::OkStatus());
  Write("server-1.updates", Records());
  const std::string text = Text(folder_);
  EXPECT_THAT(text, HasSubstr(": checkpoint of job"));
  EXPECT_THAT(text, HasSubstr("before step 12, run 0xab"));
  EXPECT_THAT(text, HasSubstr("dense top.bias [2]\n"));
  EXPECT_THAT(text, HasSubstr("file dense.part: "));
  EXPECT_THAT(Text(checkpoint + "/record.part"), HasSubstr("(record) of a run, 21 bytes\n"));
  EXPECT_THAT(text, HasSubstr("server-1.updates: 2 updates"));
  for (const std::string& path : {Path("model"), checkpoint, checkpoint + "/MANIFEST"}) {
    EXPECT_THAT(Text(path), HasSubstr("before step 12, run 0xab")) << path;
  }
}

TEST_F(InspectTest, BadFilesGiveOneLine) {
  const std::string whole = server::EncodeRange(Image());
  Write("cut.range", whole.substr(0, whole.size() / 2));
  ExpectRefused(Path("cut.range"), "bytes");
  std::string changed = whole;
  changed[whole.size() / 2] ^= 1;
  Write("changed.range", changed);
  ExpectRefused(Path("changed.range"), "checksum");
  Write("notes.txt", std::string(200, 'x'));
  ExpectRefused(Path("notes.txt"), "is it one of ours?");
  Write("cut.updates", Records().substr(0, 16 + 191));
  ExpectRefused(Path("cut.updates"), "191 bytes are not a whole number of 96-byte records");
  Write("cut.order", Order().substr(0, 16 + 127));
  ExpectRefused(Path("cut.order"), "127 bytes are not a whole number of 64-byte records");
  Write("other.order", Records());
  ExpectRefused(Path("other.order"), "does not begin like a file of the order of updates");
  Write("old.updates", std::string(2 * 72, '\1'));
  ExpectRefused(Path("old.updates"), "is of an earlier version of Tandem");
  Write("other.updates", Records(/*fate_of_last=*/77));
  ExpectRefused(Path("other.updates"), "record 1 has fate 77");
  ExpectRefused(Path("nowhere"), "no such file or folder");
  fs::create_directories(Path("empty"));
  ExpectRefused(Path("empty"), "no checkpoint (LATEST, MANIFEST)");
  fs::create_directories(Path("half"));
  Write("half/MANIFEST", "{}");
  ExpectRefused(Path("half"), "MANIFEST");
}

}  // namespace
}  // namespace tandem
