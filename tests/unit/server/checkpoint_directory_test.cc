// Folders of checkpoints: two checkpoints never mix, what is not whole is not loaded, and whatever
// is refused is refused in one line that names the file.
#include "server/checkpoint/checkpoint_directory.h"

#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/damaged_checkpoint.h"
#include "base/file.h"
#include "base/memory_full.h"
#include "base/owned_fd.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/checkpoint/checkpoint_compare.h"
#include "server/checkpoint/segment_file.h"
#include "server/checkpoint_load.h"
#include "server/rows/memory_budget.h"
#include "server/rows/page_arena.h"
#include "tests/source_path.h"
#include "tests/unit/server/core_fixture.h"
#include "tests/unit/server/range_image.h"
#include "xxhash.h"

namespace {
// Files and folders are flushed as ever, until so many folders have been: then, if it is not 0, the
// next one fails with this error.
std::atomic<int> flushes_left{0}, flush_error{0};
std::function<void()> at_flush;           // called once, when a folder is flushed
std::atomic<int> lock_error{0};           // if it is not 0, flock fails with it
std::atomic<int> removals_left{INT_MAX};  // after so many files, the removal of a folder fails
std::atomic<int64_t> bytes_read{0};       // by pread
}  // namespace

// In the place of the C library's, which the library under test would call.
extern "C" ssize_t pread(int fd, void* to, size_t bytes, off_t offset) {
  const ssize_t n = static_cast<ssize_t>(syscall(SYS_pread64, fd, to, bytes, offset));
  if (n > 0) bytes_read += n;
  return n;
}
extern "C" int fsync(int fd) {
  struct stat info = {};
  const bool folder = fstat(fd, &info) == 0 && S_ISDIR(info.st_mode);
  if (folder && flush_error != 0 && flushes_left-- == 0) {
    errno = flush_error.exchange(0);
    return -1;
  }
  if (folder && at_flush) std::exchange(at_flush, nullptr)();
  return static_cast<int>(syscall(SYS_fsync, fd));
}
extern "C" int flock(int fd, int operation) {
  if (lock_error == 0) return static_cast<int>(syscall(SYS_flock, fd, operation));
  errno = lock_error;
  return -1;
}
extern "C" int unlinkat(int folder, const char* path, int flags) {
  if (removals_left-- > 0) return static_cast<int>(syscall(SYS_unlinkat, folder, path, flags));
  errno = EIO;
  return -1;
}

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

// Table "a" of a plan (or the dense one), cut into near-equal ranges. `arena`: null: each has one.
// `may_grow`: that of the table's context.
class Table {
 public:
  Table(const job::ResolvedJob& plan, int ranges, size_t table = 0,
        server::PageArena* arena = nullptr, std::function<bool(size_t)> may_grow = nullptr)
      : workers_(plan.workers()) {
    policy_ = *policies::NewUpdatePolicy(plan.groups[plan.tables[table].group].policy, workers_);
    optimizer_ = *optim::NewRowOptimizer(plan.tables[table].optimizer);
    context_.plan = &plan.tables[table];
    context_.optimizer = optimizer_.get();
    context_.policy = policy_.get();
    context_.workers = workers_;
    context_.arena = arena;
    context_.may_grow = std::move(may_grow);
    const std::vector<uint64_t> bounds = job::EqualRanges(ranges);
    for (int r = 0; r < ranges; ++r) {
      ranges_.push_back(std::make_unique<server::Range>(
          static_cast<uint32_t>(r), bounds[static_cast<size_t>(r)],
          r + 1 < ranges ? bounds[static_cast<size_t>(r) + 1] : 0, &context_, &scratch_, &totals_));
    }
  }

  // `count` rows that are all `value`.
  void Fill(uint64_t count, float value) {
    for (uint64_t key = 0; key < count; ++key) {
      server::Range& range = RangeOf(key);
      TANDEM_CHECK_OK(range.store().Assign({&key, 1}, std::vector<float>{value, value}, {}));
    }
  }
  // Each worker pushes a gradient for `count` keys; it depends on `seed`, the worker and the key.
  void Step(int64_t step, int64_t seed, uint64_t count, uint64_t incarnation = 1) {
    for (int rank = 0; rank < workers_; ++rank) {
      for (const auto& range : ranges_) {
        std::vector<uint64_t> keys;
        std::vector<float> values;
        for (uint64_t key = 0; key < count; ++key) {
          if (&RangeOf(key) != range.get()) continue;
          keys.push_back(key);
          const float gradient = 0.1f * static_cast<float>(1 + seed) +
                                 0.01f * static_cast<float>(rank) +
                                 0.003f * static_cast<float>(key);
          values.insert(values.end(), static_cast<size_t>(context_.plan->dim), gradient);
        }
        server::HeldUpdate update;
        update.rank = rank;
        update.step = step;
        update.samples = 3;
        update.keys = BufferOf(buffers_, keys);
        update.values = BufferOf(buffers_, values);
        range->RememberRead(absl::UnixEpoch(), rank, step, keys,
                            std::vector<float>(values.size(), 0.25f));
        EXPECT_EQ(range->Admit(absl::UnixEpoch(), incarnation, step, std::move(update), false),
                  server::Range::Admission::kAdmitted);
      }
    }
  }
  void FinishDelayed() {
    for (const auto& range : ranges_) range->FinishDelayed();
  }
  server::UpdateStats stats() const { return context_.stats.total; }
  // Also checks that the ranges have reported what they hold, and their clocks.
  size_t held_bytes() const {
    size_t bytes = 0;
    int64_t clock = policies::kInfiniteClock;
    for (const auto& range : ranges_) {
      bytes += range->held_bytes();
      clock = std::min(clock, range->progress().MinClock());
    }
    EXPECT_EQ(totals_.held_bytes(), bytes);
    EXPECT_EQ(totals_.MinClock(context_.plan->group), clock);
    return bytes;
  }
  // The first two weights of each row; a row of table "a" has no more.
  std::map<uint64_t, std::vector<float>> Rows() const {
    std::map<uint64_t, std::vector<float>> rows;
    for (const auto& range : ranges_) {
      const server::RangeImage image = ImageOf(*range);
      const size_t dim = static_cast<size_t>(image.dim);
      for (size_t i = 0; i < image.keys.size(); ++i) {
        rows[image.keys[i]] = {image.weights[dim * i], image.weights[dim * i + 1]};
      }
    }
    return rows;
  }
  // The rows of the first `count` keys, as workers read them.
  std::vector<std::vector<float>> Pulled(uint64_t count) {
    std::vector<std::vector<float>> rows;
    for (uint64_t key = 0; key < count; ++key) {
      rows.emplace_back(static_cast<size_t>(context_.plan->dim));
      RangeOf(key).store().Pull({&key, 1}, absl::MakeSpan(rows.back()));
    }
    return rows;
  }
  std::vector<server::Range*> ranges() const {
    std::vector<server::Range*> ranges;
    for (const auto& range : ranges_) ranges.push_back(range.get());
    return ranges;
  }
  server::Range& RangeOf(uint64_t key) {
    const uint64_t position = Position(context_.plan->salt, key);
    size_t r = 0;
    while (position < ranges_[r]->begin() || position - 1 >= ranges_[r]->end() - 1) ++r;
    return *ranges_[r];
  }

 private:
  const int workers_;
  HeapBufferSource buffers_;
  std::unique_ptr<policies::UpdatePolicy> policy_;
  std::unique_ptr<optim::RowOptimizer> optimizer_;
  server::TableContext context_;
  server::FoldScratch scratch_;
  server::RangeTotals totals_;  // of ranges_
  std::vector<std::unique_ptr<server::Range>> ranges_;
};

const std::vector<server::CheckpointParameter> kDense = {{"top.weight", {4, 2}}, {"top.bias", {2}}};

class CheckpointDirectoryTest : public ::testing::Test {
 protected:
  void TearDown() override { fs::remove_all(root_); }

  std::string Folder(uint64_t run, int64_t step = 10, uint64_t request = 0) const {
    return server::CheckpointFolder(folder_, run, step, request);
  }
  // Writes a segment of the ranges, or a file for each (`single_files_`).
  absl::Status WriteRanges(const std::string& checkpoint,
                           const std::vector<server::Range*>& ranges) const {
    server::SegmentWriter segments(checkpoint, absl::StrCat("of-", ranges[0]->table().plan->name),
                                   segment_bytes_);
    for (const server::Range* range : ranges) {
      server::RangeImage image = ImageOf(*range);
      if (range->table().plan->dense)
        image.keys.clear(), image.weights.clear(), image.slots.clear();
      const std::string bytes = server::EncodeRange(image);
      TANDEM_RETURN_IF_ERROR(
          single_files_ ? WriteFileAtomically(
                              absl::StrCat(checkpoint, "/", server::RangeFileName(image)), bytes)
                        : segments.Add(image, image.keys.size(),
                                       [&](const ByteSink& sink) { return sink(bytes); }));
    }
    return segments.Finish();
  }
  std::string DenseBytes() const {
    server::RangeImage image;
    image.table = job::kDenseTableName;
    image.dim = 2;
    image.optimizer = "adam";
    image.keys = {0, 1};
    image.weights = {1, 2, 3, 4};
    return server::EncodeRange(image);
  }
  // Everything but the commit.
  void Write(const std::string& checkpoint, const Table& table) {
    ASSERT_EQ(server::WriteDenseFile(checkpoint, DenseBytes()), absl::OkStatus());
    ASSERT_EQ(WriteRanges(checkpoint, table.ranges()), absl::OkStatus());
  }
  static server::CheckpointHead Head(uint64_t run, int64_t step, int keep = 1,
                                     int64_t attempt = 0) {
    server::CheckpointHead head;
    head.run = run;
    head.attempt = attempt;
    head.step = step;
    head.keep = keep;
    return head;
  }
  void Checkpoint(const Table& table, uint64_t run, int64_t step = 10) {
    Checkpoint(table, Head(run, step));
  }
  void Checkpoint(const Table& table, const server::CheckpointHead& head) {
    const std::string checkpoint =
        server::CheckpointFolder(folder_, head.run, head.step, 0, head.attempt);
    Write(checkpoint, table);
    ASSERT_EQ(server::CommitCheckpoint(checkpoint, plan_, head, kDense), absl::OkStatus());
  }
  // Loads the checkpoint under `path` into a table.
  absl::Status Load(const std::string& path, Table* into) {
    const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(path);
    if (!saved.ok()) return saved.status();
    if (const auto dense = saved->ReadDense(kDense); !dense.ok()) return dense.status();
    return saved->LoadRanges(into->ranges(), {}, buffers_);
  }
  // The memory that the rows in folder_ take in `ranges` ranges, without a limit.
  size_t MemoryOfRows(int ranges) {
    server::PageArena arena;
    Table into(plan_, ranges, /*table=*/0, &arena);
    EXPECT_EQ(Load(folder_, &into), absl::OkStatus());
    return arena.resident();
  }
  void ExpectRefused(const std::string& file, const std::string& why) {
    Table into(plan_, 3);
    const absl::Status status = Load(folder_, &into);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(file));
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
  }
  std::string FirstRange(const std::string& checkpoint) {
    return absl::StrCat(checkpoint, "/",
                        server::CheckpointReader::Open(checkpoint)->manifest().files[0].name);
  }

  const std::string root_ =
      absl::StrCat(::testing::TempDir(), "/checkpoint_directory_test.", getpid());
  const std::string folder_ = root_ + "/model";
  HeapBufferSource buffers_;
  job::ResolvedJob plan_ = CorePlan("kind: BSP", 2, 2, "", "ALLREDUCE");
  bool single_files_ = false;                     // as earlier versions wrote ranges
  uint64_t segment_bytes_ = uint64_t{256} << 20;  // a segment with as many is full
};

TEST_F(CheckpointDirectoryTest, TheManifestSaysWhatWasCheckpointedAndBy) {
  Table table(plan_, 2);
  table.Fill(50, 1.5f);
  Checkpoint(table, 7, 40);
  const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
  ASSERT_TRUE(saved.ok()) << saved.status();
  const server::Manifest& manifest = saved->manifest();
  EXPECT_EQ(manifest.run, 7u);
  EXPECT_EQ(manifest.job, "core");
  EXPECT_EQ(manifest.job_hash, plan_.hash);
  EXPECT_EQ(manifest.step, 40);
  EXPECT_EQ(manifest.dense, kDense);
  ASSERT_EQ(manifest.files.size(), 3u);
  int64_t rows = 0;
  for (const server::CheckpointFile& file : manifest.files) {
    EXPECT_LE(file.offset + file.bytes, fs::file_size(saved->PathOf(file)));
    EXPECT_EQ(file.name, file.table == "a" ? "of-a-0.segment" : "dense.part");
    if (file.table == "a") rows += file.rows;
  }
  EXPECT_EQ(rows, 50);
  const absl::StatusOr<server::Manifest> again =
      server::ParseManifest(server::EncodeManifest(manifest));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(*again, manifest);
  EXPECT_THAT(server::EncodeManifest(manifest), Not(HasSubstr("catch_up")));
}

TEST_F(CheckpointDirectoryTest, AManifestThatWasChangedOrCutIsRefused) {
  server::Manifest manifest;
  manifest.dense = kDense;
  manifest.files.push_back({"a.range", "a", 1, 2, 3, 4, 5});
  const std::string text = server::EncodeManifest(manifest);
  for (size_t cut = 0; cut + 2 < text.size(); ++cut) {
    EXPECT_FALSE(server::ParseManifest(absl::string_view(text).substr(0, cut)).ok()) << cut;
  }
  for (size_t i = 0; i < text.size(); ++i) {
    std::string changed = text;
    changed[i] = static_cast<char>(changed[i] ^ 1);
    const absl::StatusOr<server::Manifest> parsed = server::ParseManifest(changed);
    EXPECT_TRUE(!parsed.ok() || *parsed == manifest) << "byte " << i;  // white space may change
  }
}

// A second run of the same job into the same folder, to the same step, on another number of
// servers.
TEST_F(CheckpointDirectoryTest, ASecondRunWithAnotherTilingTakesOver) {
  Table first(plan_, 2), second(plan_, 3);
  first.Fill(50, 1);
  second.Fill(40, 2);
  Checkpoint(first, 7);
  Checkpoint(second, 8);
  Table loaded(plan_, 5);
  ASSERT_EQ(Load(folder_, &loaded), absl::OkStatus());
  EXPECT_EQ(loaded.Rows(), second.Rows());
  EXPECT_FALSE(fs::exists(Folder(7))) << "the checkpoint before is of no use any more";
}

// A second run with the same tiling, to the same step, dies in its last checkpoint: the first run's
// checkpoint is what there is, to the last row. The next run clears the remains away.
TEST_F(CheckpointDirectoryTest, ARunThatDiesInItsCheckpointChangesNothing) {
  Table first(plan_, 4), second(plan_, 4), third(plan_, 4);
  first.Fill(50, 1);
  second.Fill(50, 2);
  third.Fill(50, 3);
  Checkpoint(first, 7);
  ASSERT_EQ(server::WriteDenseFile(Folder(8), DenseBytes()), absl::OkStatus());
  std::vector<server::Range*> half = second.ranges();
  half.resize(2);
  ASSERT_EQ(WriteRanges(Folder(8), half), absl::OkStatus());
  Table loaded(plan_, 2);
  ASSERT_EQ(Load(folder_, &loaded), absl::OkStatus());
  EXPECT_EQ(loaded.Rows(), first.Rows());
  EXPECT_THAT(std::string(Load(Folder(8), &loaded).message()), HasSubstr(Folder(8)));

  Checkpoint(third, 9);
  EXPECT_FALSE(fs::exists(Folder(8)));
  Table after(plan_, 2);
  ASSERT_EQ(Load(folder_, &after), absl::OkStatus());
  EXPECT_EQ(after.Rows(), third.Rows());
}

// A run has failed while it wrote its last checkpoint.
TEST_F(CheckpointDirectoryTest, OnlyIncompleteCheckpointsAreRemoved) {
  Table table(plan_, 4);
  table.Fill(50, 1);
  Checkpoint(table, 7);
  ASSERT_EQ(server::WriteDenseFile(Folder(8), DenseBytes()), absl::OkStatus());
  server::RemoveIncompleteCheckpoints(folder_);
  EXPECT_FALSE(fs::exists(Folder(8)));
  Table loaded(plan_, 2);
  ASSERT_EQ(Load(folder_, &loaded), absl::OkStatus());
  EXPECT_EQ(loaded.Rows(), table.Rows());
}

// Wherever the disk fails within a commit: what LATEST names can be opened.
TEST_F(CheckpointDirectoryTest, LatestNamesAWholeCheckpointWhateverFlushFails) {
  Table table(plan_, 2);
  table.Fill(50, 1.5f);
  Checkpoint(table, 7, 10);
  const std::string next = Folder(7, 20);
  bool failed = true;
  int64_t newest = 10;
  for (int flushes = 0; failed; ++flushes) {
    Write(next, table);
    flushes_left = flushes;
    flush_error = EIO;
    failed = !server::CommitCheckpoint(next, plan_, Head(7, 20), kDense).ok();
    EXPECT_EQ(failed, flush_error == 0) << flushes;
    flush_error = 0;
    const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
    ASSERT_TRUE(saved.ok()) << flushes << " flushes: " << saved.status();
    newest = std::max(newest, saved->manifest().step);
  }
  EXPECT_EQ(newest, 20);
}

// Some file systems flush no folders, and say so each time.
TEST_F(CheckpointDirectoryTest, AFileSystemWithoutFlushesOfFoldersHasCheckpoints) {
  Table table(plan_, 2);
  table.Fill(50, 1.5f);
  Write(Folder(7), table);
  flushes_left = 0;
  flush_error = EINVAL;
  EXPECT_EQ(server::CommitCheckpoint(Folder(7), plan_, Head(7, 10), kDense), absl::OkStatus());
  EXPECT_EQ(flush_error, 0) << "none was tried";
  EXPECT_TRUE(server::CheckpointReader::Open(folder_).ok());
}

TEST_F(CheckpointDirectoryTest, CheckpointsOfOneStepHaveFoldersOfTheirOwn) {
  EXPECT_NE(Folder(7, 10), Folder(8, 10));
  EXPECT_NE(Folder(7, 10), Folder(7, 11));
  EXPECT_NE(Folder(7, 10), Folder(7, 10, 1));
  EXPECT_NE(Folder(7, 10, 1), Folder(7, 10, 2));
  EXPECT_NE(Folder(7, 10), server::CheckpointFolder(folder_, 7, 10, 0, 1)) << "of one that went on";
  EXPECT_NE(Folder(7, 10, 1), server::CheckpointFolder(folder_, 7, 10, 0, 1));
}

// The newest of the run stay, in the order of attempts and then of steps; what is of another run,
// or is not whole, goes.
TEST_F(CheckpointDirectoryTest, TheNewestCheckpointsOfTheRunAreKept) {
  Table table(plan_, 2);
  table.Fill(10, 1);
  Checkpoint(table, Head(6, 90, 3));
  for (int64_t step = 10; step <= 50; step += 10) Checkpoint(table, Head(7, step, 3));
  const auto there = [&](int64_t step, int64_t attempt = 0) {
    return fs::exists(server::CheckpointFolder(folder_, 7, step, 0, attempt));
  };
  EXPECT_FALSE(fs::exists(Folder(6, 90)));
  EXPECT_FALSE(there(20));
  EXPECT_TRUE(there(30) && there(40) && there(50));
  // The next attempt resumes from step 30, since the newer ones are damaged. They do not count.
  ASSERT_EQ(MakeFolder(Folder(7, 60)), absl::OkStatus());  // a checkpoint that was not finished
  server::CheckpointHead resumed = Head(7, 35, 2, 1);
  resumed.resumed_from = fs::path(Folder(7, 30)).filename().string();
  Checkpoint(table, resumed);
  EXPECT_TRUE(there(35, 1) && there(30));
  EXPECT_FALSE(there(40) || there(50) || there(60));
  EXPECT_EQ(server::CheckpointReader::Open(folder_)->manifest().step, 35);
  std::string damaged;
  const absl::StatusOr<server::CheckpointReader> newest =
      server::CheckpointReader::OpenNewest(folder_, 7, {}, &damaged);
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(newest->manifest().step, 35);
  EXPECT_EQ(newest->manifest().attempt, 1);
  EXPECT_EQ(damaged, "");
  // One in which a byte is another is passed over.
  const std::string dense = newest->folder() + "/dense.part";
  std::string bytes = *ReadWholeFile(dense);
  bytes[bytes.size() / 2] ^= 1;
  ASSERT_TRUE(WriteFileAtomically(dense, bytes).ok());
  EXPECT_EQ(server::CheckpointReader::OpenNewest(folder_, 7, {}, &damaged)->manifest().step, 30);
  EXPECT_THAT(damaged, HasSubstr(dense));
  // A server checks the ranges when it loads them, and says which checkpoint it could not load.
  {
    server::CheckpointSearch search = server::CheckpointSearch::WithoutRanges();
    EXPECT_EQ(server::CheckpointReader::OpenNewest(folder_, 7, search, &damaged)->manifest().step,
              30)
        << "small files are read all the same";
    const auto reader = server::CheckpointReader::OpenNewest(folder_, 7, search, &damaged);
    const auto range = std::find_if(
        reader->manifest().files.begin(), reader->manifest().files.end(),
        [](const server::CheckpointFile& file) { return !absl::EndsWith(file.name, ".part"); });
    std::string rows = *ReadWholeFile(reader->PathOf(*range));
    rows[range->offset + range->bytes / 2] ^= 1;
    ASSERT_TRUE(WriteFileAtomically(reader->PathOf(*range), rows).ok());
    EXPECT_EQ(server::CheckpointReader::OpenNewest(folder_, 7, search, &damaged)->manifest().step,
              30)
        << "its ranges are not read";
    const absl::Status read = reader->Read(*range).status();
    const std::string name = fs::path(reader->folder()).filename().string();
    EXPECT_EQ(DamagedCheckpoint(read), name);
    EXPECT_TRUE(
        absl::IsNotFound(server::CheckpointReader::OpenNewest(folder_, 7, {}, &damaged).status()));
    search.damaged[name] = "the fault";
    const absl::Status none =
        server::CheckpointReader::OpenNewest(folder_, 7, search, &damaged).status();
    EXPECT_TRUE(absl::IsNotFound(none));
    EXPECT_THAT(std::string(none.message()), HasSubstr("the fault"));
    search.chosen = name;
    EXPECT_EQ(server::CheckpointReader::OpenNewest(folder_, 7, search, &damaged)->manifest().step,
              30);
    rows[range->offset + range->bytes / 2] ^= 1;
    ASSERT_TRUE(WriteFileAtomically(reader->PathOf(*range), rows).ok());
  }
  // And one that is cut short.
  fs::resize_file(dense, 10);
  EXPECT_EQ(server::CheckpointReader::OpenNewest(folder_, 7, {}, &damaged)->manifest().step, 30);
  EXPECT_THAT(damaged, HasSubstr("10 bytes"));
  // And one with the manifest of another run.
  Checkpoint(table, Head(7, 45, 3, 1));
  const std::string manifest = server::CheckpointFolder(folder_, 7, 45, 0, 1) + "/MANIFEST";
  server::Manifest foreign = server::CheckpointReader::Open(folder_)->manifest();
  EXPECT_EQ(foreign.step, 45);
  foreign.run = 6;
  ASSERT_TRUE(WriteFileAtomically(manifest, server::EncodeManifest(foreign)).ok());
  EXPECT_EQ(server::CheckpointReader::OpenNewest(folder_, 7, {}, &damaged)->manifest().step, 30);
  EXPECT_THAT(damaged, HasSubstr(manifest + ": is of run 0000000000000006"));
  EXPECT_TRUE(
      absl::IsNotFound(server::CheckpointReader::OpenNewest(folder_, 8, {}, &damaged).status()));
}

// The best one is what the run leaves behind; the newest ones are there to go on from.
TEST_F(CheckpointDirectoryTest, TheBestCheckpointStaysAndIsTheLatest) {
  plan_.job.mutable_train()->mutable_keep_best();
  Table table(plan_, 2);
  table.Fill(10, 1);
  const auto checkpoint_best = [&](int64_t step) {
    const std::string checkpoint =
        server::CheckpointFolder(folder_, 7, step, 0) + server::kBestSuffix;
    Write(checkpoint, table);
    server::CheckpointHead head = Head(7, step, 2);
    head.best = true;
    ASSERT_EQ(server::CommitCheckpoint(checkpoint, plan_, head, kDense), absl::OkStatus());
  };
  const auto latest = [&] { return server::CheckpointReader::Open(folder_)->manifest(); };
  const auto newest = [&] {
    std::string damaged;
    return server::CheckpointReader::OpenNewest(folder_, 7, {}, &damaged)->manifest().step;
  };
  Checkpoint(table, Head(7, 10, 2));
  EXPECT_EQ(latest().step, 10) << "there is no best one yet";
  EXPECT_FALSE(latest().best);
  checkpoint_best(20);
  EXPECT_EQ(latest().step, 20);
  EXPECT_TRUE(latest().best);
  for (const int64_t step : {30, 40, 50}) Checkpoint(table, Head(7, step, 2));
  EXPECT_EQ(latest().step, 20);
  EXPECT_EQ(newest(), 50);
  EXPECT_TRUE(fs::exists(Folder(7, 40)));
  EXPECT_FALSE(fs::exists(Folder(7, 30)));
  checkpoint_best(60);
  EXPECT_EQ(latest().step, 60);
  EXPECT_EQ(newest(), 60);
  Checkpoint(table, Head(7, 60, 2));
  EXPECT_TRUE(latest().best) << "of the same step";
  EXPECT_FALSE(fs::exists(server::CheckpointFolder(folder_, 7, 20, 0) + server::kBestSuffix));
  // A later attempt has passed over the best one, because it is damaged.
  server::CheckpointHead resumed = Head(7, 65, 2, 1);
  resumed.resumed_from = fs::path(Folder(7, 50)).filename().string();
  Checkpoint(table, resumed);
  EXPECT_EQ(latest().step, 65);
  EXPECT_FALSE(fs::exists(server::CheckpointFolder(folder_, 7, 60, 0) + server::kBestSuffix));
  // A run that does not care replaces that of one that did.
  plan_.job.mutable_train()->clear_keep_best();
  Checkpoint(table, Head(8, 5, 2));
  EXPECT_EQ(latest().step, 5);
  EXPECT_FALSE(fs::exists(server::CheckpointFolder(folder_, 7, 60, 0) + server::kBestSuffix));
}

// A worker of attempt 0 was suspended, and wakes up in attempt 1, or in another run.
TEST_F(CheckpointDirectoryTest, AnEarlierAttemptCommitsNothing) {
  Table table(plan_, 2);
  table.Fill(10, 1);
  ASSERT_EQ(server::BeginAttempt(folder_, Head(7, 0)), absl::OkStatus());
  Checkpoint(table, Head(7, 10));
  Write(Folder(7, 20), table);
  server::CheckpointHead next = Head(7, 15, 1, 1);
  next.resumed_from = fs::path(Folder(7, 10)).filename().string();
  ASSERT_EQ(server::BeginAttempt(folder_, next), absl::OkStatus());
  const auto expect_refused = [&](const std::string& newest, const std::string& why) {
    Write(Folder(7, 20), table);
    const absl::Status late = server::CommitCheckpoint(Folder(7, 20), plan_, Head(7, 20), kDense);
    EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
    EXPECT_THAT(std::string(late.message()), HasSubstr(folder_ + "/FENCE: " + why));
    EXPECT_FALSE(fs::exists(Folder(7, 20)));
    EXPECT_EQ(server::CheckpointReader::Open(folder_)->folder(), newest);
  };
  expect_refused(Folder(7, 10), "attempt 1 of run 0000000000000007 has begun");
  Checkpoint(table, next);
  const std::string newest = server::CheckpointReader::Open(folder_)->folder();
  expect_refused(newest, "attempt 1 of run 0000000000000007 has begun");
  ASSERT_EQ(server::BeginAttempt(folder_, Head(8, 0)), absl::OkStatus());
  expect_refused(newest, "attempt 0 of run 0000000000000008 has begun");
  ASSERT_EQ(WriteFileAtomically(folder_ + "/FENCE", "8"), absl::OkStatus());
  Write(Folder(8, 20), table);
  EXPECT_THAT(
      std::string(server::CommitCheckpoint(Folder(8, 20), plan_, Head(8, 20), kDense).message()),
      HasSubstr("FENCE: names no attempt of a run: \"8\""));
  ASSERT_EQ(server::BeginAttempt(folder_, Head(8, 0)), absl::OkStatus());
  Checkpoint(table, Head(8, 20));
}

// The next attempt has begun with the checkpoint whose commit was interrupted.
TEST_F(CheckpointDirectoryTest, AnAttemptThatBeginsInTheMiddleOfACommitKeepsItsCheckpoint) {
  Table table(plan_, 2);
  table.Fill(10, 1);
  ASSERT_EQ(server::BeginAttempt(folder_, Head(7, 0)), absl::OkStatus());
  Checkpoint(table, Head(7, 10));
  Write(Folder(7, 20), table);
  at_flush = [&] {  // the manifest is in its place
    std::string damaged;
    const auto newest = server::CheckpointReader::OpenNewest(folder_, 7, {}, &damaged);
    ASSERT_TRUE(newest.ok()) << newest.status();
    server::CheckpointHead next = Head(7, 20, 1, 1);
    next.resumed_from = fs::path(newest->folder()).filename().string();
    ASSERT_EQ(server::BeginAttempt(folder_, next), absl::OkStatus());
  };
  const absl::Status late = server::CommitCheckpoint(Folder(7, 20), plan_, Head(7, 20), kDense);
  EXPECT_TRUE(absl::IsFailedPrecondition(late)) << late;
  EXPECT_TRUE(server::CheckpointReader::Open(Folder(7, 20)).ok());
  EXPECT_EQ(server::CheckpointReader::Open(folder_)->folder(), Folder(7, 10)) << "LATEST";
  // The attempt begins while the commit removes what is old.
  ASSERT_EQ(server::BeginAttempt(folder_, Head(7, 0)), absl::OkStatus());
  Write(Folder(7, 30), table);
  at_flush = [&] {
    at_flush = [&] {  // LATEST is in its place
      ASSERT_EQ(server::BeginAttempt(folder_, Head(8, 0)), absl::OkStatus());
    };
  };
  EXPECT_EQ(server::CommitCheckpoint(Folder(7, 30), plan_, Head(7, 30), kDense), absl::OkStatus());
  EXPECT_TRUE(fs::exists(Folder(7, 10)));
  EXPECT_TRUE(fs::exists(Folder(7, 20)));
}

// A role was killed while it wrote a checkpoint, and another time after the commit, before the
// older ones were removed. The disk has room for keep + 1.
TEST_F(CheckpointDirectoryTest, AnAttemptBeginsWithAsManyCheckpointsAsAreKept) {
  plan_.job.mutable_train()->mutable_keep_best();
  Table table(plan_, 2);
  table.Fill(10, 1);
  const std::string best = server::CheckpointFolder(folder_, 7, 5, 0) + server::kBestSuffix;
  Write(best, table);
  server::CheckpointHead head = Head(7, 5, 10);
  head.best = true;
  ASSERT_EQ(server::CommitCheckpoint(best, plan_, head, kDense), absl::OkStatus());
  for (const int64_t step : {10, 20, 30, 40, 50}) Checkpoint(table, Head(7, step, 10));
  Write(Folder(7, 60), table);
  Write(Folder(6, 60), table);
  server::CheckpointHead next = Head(7, 0, 2, 1);
  next.resumed_from = fs::path(Folder(7, 40)).filename().string();
  ASSERT_EQ(server::BeginAttempt(folder_, next), absl::OkStatus());
  EXPECT_FALSE(fs::exists(Folder(7, 60)));
  EXPECT_FALSE(fs::exists(Folder(6, 60)));
  EXPECT_TRUE(fs::exists(Folder(7, 10))) << "nobody has loaded Folder(7, 40) yet";
  ASSERT_EQ(server::AdoptCheckpoint(folder_, next), absl::OkStatus());
  std::vector<std::string> left;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    if (entry.is_directory()) left.push_back(entry.path().string());
  }
  EXPECT_THAT(left, UnorderedElementsAre(best, Folder(7, 30), Folder(7, 40), Folder(7, 50)))
      << "Folder(7, 50) was passed over: the next commit removes it";
  EXPECT_EQ(server::CheckpointReader::Open(folder_)->folder(), best);
}

// A process died between the manifest and LATEST, or LATEST names a checkpoint that is damaged.
TEST_F(CheckpointDirectoryTest, AnAttemptNamesTheCheckpointThatItHasLoaded) {
  Table table(plan_, 2);
  table.Fill(10, 1);
  for (const int64_t step : {10, 20, 30}) Checkpoint(table, Head(7, step, 10));
  for (const int64_t named : {10, 30}) {
    const std::string name = fs::path(Folder(7, named)).filename().string();
    ASSERT_EQ(WriteFileAtomically(folder_ + "/LATEST", name + "\n"), absl::OkStatus());
    server::CheckpointHead next = Head(7, 0, 2, 1);
    next.resumed_from = fs::path(Folder(7, 20)).filename().string();
    ASSERT_EQ(server::BeginAttempt(folder_, next), absl::OkStatus());
    // For want of room nothing is removed that is the newest one that can be loaded.
    server::MakeRoom(Folder(7, 40), next);
    EXPECT_TRUE(fs::exists(Folder(7, 20))) << named;
    ASSERT_EQ(server::AdoptCheckpoint(folder_, next), absl::OkStatus());
    EXPECT_EQ(server::CheckpointReader::Open(folder_)->folder(), Folder(7, 20)) << named;
  }
}

// A checkpoint that somebody reads for long counts among those that are kept.
TEST_F(CheckpointDirectoryTest, ACheckpointThatIsReadTakesThePlaceOfAnother) {
  Table table(plan_, 2);
  table.Fill(10, 1);
  Checkpoint(table, Head(7, 10, 2));
  const absl::StatusOr<OwnedFd> kept = server::KeepCheckpoint(Folder(7, 10));
  ASSERT_TRUE(kept.ok()) << kept.status();
  for (const int64_t step : {20, 30, 40}) Checkpoint(table, Head(7, step, 2));
  EXPECT_TRUE(fs::exists(Folder(7, 10)));
  EXPECT_FALSE(fs::exists(Folder(7, 30)));
  EXPECT_EQ(server::CheckpointReader::Open(folder_)->folder(), Folder(7, 40));
}

// Wherever a removal is interrupted, nothing that looks like a checkpoint is left of it.
TEST_F(CheckpointDirectoryTest, HalfOfARemovedCheckpointHasNoManifest) {
  Table table(plan_, 2);
  table.Fill(10, 1);
  bool removed = false;
  for (int files = 0; !removed; ++files) {
    fs::remove_all(folder_);
    Checkpoint(table, Head(7, 10));
    removals_left = files;
    Checkpoint(table, Head(7, 20));
    removals_left = INT_MAX;
    removed = !fs::exists(Folder(7, 10));
    EXPECT_FALSE(fs::exists(Folder(7, 10) + "/MANIFEST")) << files;
  }
}

// Nobody knows whether a reader protects the checkpoint.
TEST_F(CheckpointDirectoryTest, ACheckpointStaysWhereTheLockFails) {
  Table table(plan_, 2);
  table.Fill(10, 1);
  Checkpoint(table, Head(7, 10));
  const absl::StatusOr<OwnedFd> kept = server::KeepCheckpoint(Folder(7, 10));
  ASSERT_TRUE(kept.ok()) << kept.status();
  for (const int error : {EBADF, ENOLCK, EIO, EINTR, ENOSYS, EOPNOTSUPP}) {
    std::string stay;
    Write(Folder(7, 20), table);
    lock_error = error;
    EXPECT_EQ(server::CommitCheckpoint(Folder(7, 20), plan_, Head(7, 20), kDense, &stay),
              absl::OkStatus());
    lock_error = 0;
    EXPECT_THAT(stay, HasSubstr(folder_ + ": older checkpoints stay, because their locks fail (" +
                                std::strerror(error) + ")"));
    EXPECT_TRUE(server::CheckpointReader::Open(Folder(7, 10)).ok()) << error;
    EXPECT_EQ(server::CheckpointReader::Open(folder_)->manifest().step, 20);
  }
  std::string stay = "of the commit before";
  Write(Folder(7, 20), table);
  EXPECT_EQ(server::CommitCheckpoint(Folder(7, 20), plan_, Head(7, 20), kDense, &stay),
            absl::OkStatus());
  EXPECT_EQ(stay, "") << "a reader is no error";
}

// A checkpoint for which there is no room removes what it would replace. The newest whole one, the
// best one, and one that somebody reads stay.
TEST_F(CheckpointDirectoryTest, RoomIsMadeOfWhatTheNextCheckpointReplaces) {
  Table table(plan_, 2);
  table.Fill(10, 1);
  for (const int64_t step : {10, 20, 30}) Checkpoint(table, Head(7, step, 3));
  fs::create_directories(Folder(7, 25));  // without a manifest
  absl::StatusOr<OwnedFd> kept = server::KeepCheckpoint(Folder(7, 20));
  EXPECT_EQ(server::MakeRoom(Folder(7, 40), Head(7, 40, 3)), 2);
  EXPECT_FALSE(fs::exists(Folder(7, 10)));
  EXPECT_FALSE(fs::exists(Folder(7, 25)));
  EXPECT_TRUE(fs::exists(Folder(7, 20))) << "two stay beside the new one";
  EXPECT_EQ(server::MakeRoom(Folder(7, 40), Head(7, 40, 2)), 0);
  EXPECT_TRUE(fs::exists(Folder(7, 20))) << "somebody reads it";
  *kept = OwnedFd();
  for (const int keep : {2, 1}) {
    server::MakeRoom(Folder(7, 40), Head(7, 40, keep));
    EXPECT_FALSE(fs::exists(Folder(7, 20)));
    EXPECT_EQ(server::CheckpointReader::Open(folder_)->manifest().step, 30) << keep;
  }
  plan_.job.mutable_train()->mutable_keep_best();
  server::CheckpointHead best = Head(7, 40, 2);
  best.best = true;
  Checkpoint(table, best);
  Checkpoint(table, Head(7, 50, 2));
  server::MakeRoom(Folder(7, 60), Head(7, 60, 1));
  EXPECT_TRUE(fs::exists(Folder(7, 40))) << "the best one";
  EXPECT_TRUE(fs::exists(Folder(7, 50))) << "the newest one";
}

// Whoever reads a checkpoint keeps it: the run that checkpoints there removes it later.
TEST_F(CheckpointDirectoryTest, ACheckpointThatIsReadStays) {
  Table table(plan_, 2);
  table.Fill(10, 1);
  Checkpoint(table, Head(7, 10, 1));
  absl::StatusOr<OwnedFd> kept = server::KeepCheckpoint(Folder(7, 10));
  ASSERT_TRUE(kept.ok()) << kept.status();
  Checkpoint(table, Head(7, 20, 1));
  EXPECT_TRUE(server::CheckpointReader::Open(Folder(7, 10)).ok());
  *kept = OwnedFd();
  Checkpoint(table, Head(7, 30, 1));
  EXPECT_FALSE(fs::exists(Folder(7, 10)));
  EXPECT_FALSE(fs::exists(Folder(7, 20)));
  EXPECT_TRUE(absl::IsNotFound(server::KeepCheckpoint(Folder(7, 10)).status()));
}

// What a checkpoint of the run remembers beside rows; none of it is taken for a table.
TEST_F(CheckpointDirectoryTest, WhatOnlyWorkersKnowComesBack) {
  Table table(plan_, 2), loaded(plan_, 1);
  table.Fill(10, 1);
  server::CheckpointHead head = Head(7, 10);
  head.record = std::string("a\0b", 3);
  Write(Folder(7), table);
  ASSERT_EQ(server::WriteWorkerFile(Folder(7), 0, "zero"), absl::OkStatus());
  EXPECT_THAT(std::string(server::CommitCheckpoint(Folder(7), plan_, head, kDense).message()),
              HasSubstr("codecs of 1 workers, expected 2"));
  EXPECT_FALSE(fs::exists(Folder(7))) << "what is not committed is removed";
  Write(Folder(7), table);
  ASSERT_EQ(server::WriteWorkerFile(Folder(7), 0, "zero"), absl::OkStatus());
  ASSERT_EQ(server::WriteWorkerFile(Folder(7), 1, "one"), absl::OkStatus());
  ASSERT_EQ(server::WriteProgramFile(Folder(7), 1, "its place"), absl::OkStatus());
  EXPECT_THAT(std::string(server::CommitCheckpoint(Folder(7), plan_, head, kDense).message()),
              HasSubstr("states of programs of 1 workers, expected 2"));
  Write(Folder(7), table);
  for (const int rank : {0, 1}) {
    const std::string name = rank == 0 ? "zero" : "one";
    ASSERT_EQ(server::WriteWorkerFile(Folder(7), rank, name), absl::OkStatus());
    ASSERT_EQ(server::WriteProgramFile(Folder(7), rank, "its place, " + name), absl::OkStatus());
  }
  ASSERT_EQ(server::CommitCheckpoint(Folder(7), plan_, head, kDense), absl::OkStatus());
  const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(*saved->ReadRecord(), head.record);
  EXPECT_EQ(*saved->ReadWorkerState(1), "one");
  EXPECT_EQ(*saved->ReadWorkerState(2), "");
  EXPECT_EQ(*saved->ReadProgramState(0), "its place, zero");
  EXPECT_EQ(*saved->ReadProgramState(1), "its place, one");
  EXPECT_EQ(*saved->ReadProgramState(2), "");
  ASSERT_EQ(Load(folder_, &loaded), absl::OkStatus());
  EXPECT_EQ(loaded.Rows(), table.Rows());
  fs::resize_file(Folder(7) + "/worker-1.part", 10);
  EXPECT_FALSE(server::CheckpointReader::Open(folder_).ok());
}

// A server that does not reach the folder, or wrote a file that is not whole: no manifest.
// A job that runs goes on saving, and each commit removes the checkpoint before.
TEST_F(CheckpointDirectoryTest, ACheckpointThatIsReplacedWhileItIsOpenedGivesWayToTheNext) {
  constexpr int64_t kCheckpoints = 60;
  Table table(plan_, 2);
  table.Fill(50, 1.5f);
  Checkpoint(table, 7, 0);
  std::atomic<bool> over{false};
  std::thread writer([&] {
    for (int64_t step = 1; step <= kCheckpoints; ++step) Checkpoint(table, 7, step);
    over = true;
  });
  int64_t newest = 0;
  while (!over) {
    const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
    EXPECT_TRUE(saved.ok()) << saved.status();
    if (!saved.ok()) break;
    EXPECT_GE(saved->manifest().step, newest);
    newest = saved->manifest().step;
  }
  writer.join();
  EXPECT_EQ(server::CheckpointReader::Open(folder_)->manifest().step, kCheckpoints);
}

TEST_F(CheckpointDirectoryTest, WhatDoesNotCoverATableIsNotCommitted) {
  single_files_ = true;
  Table table(plan_, 4);
  table.Fill(50, 1);
  const std::string checkpoint = Folder(7);
  const auto commit = [&] {
    return server::CommitCheckpoint(checkpoint, plan_, Head(7, 10), kDense);
  };
  const auto first_range = [&] {
    std::string first;
    for (const auto& entry : fs::directory_iterator(checkpoint)) {
      const std::string path = entry.path().string();
      if (entry.path().extension() == ".range" && (first.empty() || path < first)) first = path;
    }
    return first;
  };
  Write(checkpoint, table);
  fs::remove(first_range());
  EXPECT_THAT(std::string(commit().message()), HasSubstr("table a is missing"));
  Write(checkpoint, table);
  const std::string first = first_range();
  fs::resize_file(first, 100);
  EXPECT_THAT(std::string(commit().message()), HasSubstr(first));
  Write(checkpoint, Table(plan_, 1));
  EXPECT_EQ(WriteRanges(checkpoint, table.ranges()), absl::OkStatus());
  EXPECT_THAT(std::string(commit().message()), HasSubstr("written twice"));
  EXPECT_FALSE(fs::exists(checkpoint + "/MANIFEST"));
  EXPECT_FALSE(fs::exists(folder_ + "/LATEST"));
}

TEST_F(CheckpointDirectoryTest, WhatIsNotTheWholeCheckpointIsRefusedByName) {
  single_files_ = true;
  Table table(plan_, 2), other(plan_, 2);
  table.Fill(50, 1);
  other.Fill(50, 2);
  Checkpoint(table, 7);
  const std::string file = FirstRange(Folder(7)), bytes = *ReadWholeFile(file);
  const auto put = [&](const std::string& contents) {
    ASSERT_EQ(WriteFileAtomically(file, contents), absl::OkStatus());
  };
  put(bytes.substr(0, bytes.size() - 1));
  ExpectRefused(file, absl::StrCat("the manifest says ", bytes.size()));
  std::string changed = bytes;
  changed[bytes.size() / 2] = static_cast<char>(changed[bytes.size() / 2] ^ 1);
  put(changed);
  ExpectRefused(file, "checksum");
  fs::remove(file);
  ExpectRefused(file, "the manifest lists it");

  // Whole in itself, and as long, but of another run.
  const std::string elsewhere = folder_ + "/elsewhere";
  Write(elsewhere, other);
  fs::copy(elsewhere + "/" + fs::path(file).filename().string(), file);
  ASSERT_EQ(fs::file_size(file), bytes.size());
  ExpectRefused(file, "is it of another checkpoint?");
  put(bytes);
  Table into(plan_, 3);
  EXPECT_EQ(Load(folder_, &into), absl::OkStatus());

  fs::create_directory(folder_ + "/run");
  fs::create_directory_symlink(folder_, folder_ + "/run/model");
  EXPECT_EQ(Load(folder_ + "/run", &into), absl::OkStatus()) << "the folder of a run";
  EXPECT_THAT(std::string(server::CheckpointReader::Open(elsewhere).status().message()),
              HasSubstr("contains no checkpoint (LATEST or MANIFEST); hint: "));

  fs::remove(Folder(7) + "/MANIFEST");
  ExpectRefused(Folder(7) + "/MANIFEST", "was not finished");
}

TEST_F(CheckpointDirectoryTest, AnotherModelIsRefused) {
  Table table(plan_, 2);
  Checkpoint(table, 7);
  const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
  ASSERT_TRUE(saved.ok()) << saved.status();
  std::vector<server::CheckpointParameter> model = kDense;
  model[1].shape = {3};
  std::string why(saved->ReadDense(model).status().message());
  EXPECT_THAT(why, HasSubstr("dense parameter 1 is top.bias [2], the model's is top.bias [3]"));
  EXPECT_THAT(why, HasSubstr(Folder(7)));
  model = {kDense[0]};
  why = std::string(saved->ReadDense(model).status().message());
  EXPECT_THAT(why, HasSubstr("the model's is none"));

  job::ResolvedJob renamed = plan_;
  renamed.tables[0].name = "b";
  Table into(renamed, 2);
  EXPECT_THAT(std::string(saved->LoadRanges(into.ranges(), {}, buffers_).message()),
              HasSubstr("no table b, it has a"));
}

// A new attempt of the job would end in the same way. The server says so by the mark.
TEST_F(CheckpointDirectoryTest, RowsThatDoNotFitTheMemoryAreMarked) {
  Table table(plan_, 2);
  table.Fill(50, 1.5f);
  Checkpoint(table, 7);
  server::MemoryBudget budget(/*limit=*/1000);
  server::PageArena arena(&budget);
  Table into(plan_, 3, /*table=*/0, &arena);
  const absl::Status full = Load(folder_, &into);
  EXPECT_TRUE(IsMemoryFull(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr(Folder(7)));
}

// With another seed keys have other positions; each row goes where it lives now.
TEST_F(CheckpointDirectoryTest, LoadsUnderAnotherSalt) {
  Table table(plan_, 4);
  table.Fill(200, 1);
  Checkpoint(table, 7);
  job::ResolvedJob salted = plan_;
  salted.tables[0].salt += 12345;
  Table loaded(salted, 4);
  ASSERT_EQ(Load(folder_, &loaded), absl::OkStatus());
  EXPECT_EQ(loaded.Rows(), table.Rows());
}

// Counts how often each file of a folder is opened. It asks for the ends, too, because the kernel
// reports equal events that follow each other as one.
class OpenCounter {
 public:
  explicit OpenCounter(const std::string& folder) : fd_(inotify_init1(IN_NONBLOCK)) {
    EXPECT_GE(inotify_add_watch(fd_.get(), folder.c_str(), IN_OPEN | IN_CLOSE), 0);
  }
  // By name of the file, since the last call.
  std::map<std::string, int> Opened() {
    std::map<std::string, int> opened;
    alignas(inotify_event) char bytes[16384];
    for (ssize_t n; (n = read(fd_.get(), bytes, sizeof bytes)) > 0;) {
      for (ssize_t at = 0; at < n;) {
        const auto* const event = reinterpret_cast<const inotify_event*>(bytes + at);
        if (event->len > 0 && (event->mask & IN_OPEN) != 0) ++opened[event->name];
        at += static_cast<ssize_t>(sizeof *event + event->len);
      }
    }
    return opened;
  }

 private:
  const OwnedFd fd_;
};

// The ranges of a table, dealt to the shards of a process in turns. Each shard loads on its own
// thread, into a table of its own. `budget`: for the rows of all shards; null: no limit. `row`:
// estimated bytes of a row.
class LoadOfShards {
 public:
  LoadOfShards(const job::ResolvedJob& plan, int ranges, int shards,
               server::MemoryBudget* budget = nullptr, double row = 20) {
    std::function<bool(size_t)> may_grow;
    if (budget != nullptr) may_grow = [budget](size_t bytes) { return budget->MayGrow(bytes); };
    for (int s = 0; s < shards; ++s) {
      arenas_.push_back(std::make_unique<server::PageArena>(budget));
      tables_.push_back(
          std::make_unique<Table>(plan, ranges, /*table=*/0, arenas_.back().get(), may_grow));
    }
    for (int r = 0; r < ranges; ++r) {
      const server::Range& range = *tables_[0]->ranges()[static_cast<size_t>(r)];
      wanted_.push_back({&plan.tables[0], range.begin(), range.end(), r % shards, row});
    }
  }
  std::vector<server::Range*> RangesOf(int shard) const {
    std::vector<server::Range*> ranges;
    for (size_t r = 0; r < wanted_.size(); ++r) {
      if (wanted_[r].shard != shard) continue;
      ranges.push_back(tables_[static_cast<size_t>(shard)]->ranges()[r]);
    }
    return ranges;
  }
  // `failing`: this shard fails before it loads.
  std::vector<absl::Status> Load(server::CheckpointLoad* load, int failing = -1) {
    std::vector<absl::Status> statuses(tables_.size());
    std::vector<std::thread> threads;
    for (int s = 0; s < static_cast<int>(tables_.size()); ++s) {
      threads.emplace_back([this, load, failing, s, &statuses] {
        if (s == failing) return load->Cancel(absl::InternalError("the shard has failed"));
        HeapBufferSource buffers;
        statuses[static_cast<size_t>(s)] = load->Load(s, RangesOf(s), buffers);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  std::map<uint64_t, std::vector<float>> Rows() const {
    std::map<uint64_t, std::vector<float>> rows;
    for (const auto& table : tables_) rows.merge(table->Rows());
    return rows;
  }
  const std::vector<server::CheckpointLoad::Wanted>& wanted() const { return wanted_; }

 private:
  std::vector<std::unique_ptr<server::PageArena>> arenas_;
  std::vector<std::unique_ptr<Table>> tables_;
  std::vector<server::CheckpointLoad::Wanted> wanted_;
};

// The Wanted of `ranges`, all on shard 0. `row`: estimated bytes of a row.
std::vector<server::CheckpointLoad::Wanted> WantedOf(const std::vector<server::Range*>& ranges,
                                                     double row = 20) {
  std::vector<server::CheckpointLoad::Wanted> wanted;
  for (const server::Range* const range : ranges) {
    wanted.push_back({range->table().plan, range->begin(), range->end(), /*shard=*/0, row});
  }
  return wanted;
}

server::CheckpointLoad::Opener OpenerOf(server::SharedCheckpoint* shared, const std::string& path) {
  return [shared, path] { return shared->Open(path); };
}

// Loads into limited memory, and manifests with other numbers of rows.
class CheckpointLoadTest : public CheckpointDirectoryTest {
 protected:
  // Loads the checkpoint of folder_ into `bytes` of memory. Returns the number of rows in each
  // range. `row`: estimated bytes of a row.
  std::vector<size_t> LoadInto(size_t bytes, int ranges, int shards, double row, bool resume) {
    const size_t copies = size_t{16} << 20;  // more than the files that are in memory
    server::MemoryBudget budget(bytes + copies, /*process=*/0, copies, /*slack=*/0,
                                /*for_copies=*/copies);
    LoadOfShards into(plan_, ranges, shards, &budget, row);
    server::SharedCheckpoint shared;
    server::CheckpointLoad load(OpenerOf(&shared, folder_), {resume, {}, shards, &budget},
                                into.wanted());
    EXPECT_THAT(into.Load(&load), ::testing::Each(absl::OkStatus()));
    std::vector<size_t> rows;
    for (int s = 0; s < shards; ++s) {
      for (const server::Range* const range : into.RangesOf(s)) {
        rows.push_back(static_cast<size_t>(range->store().size()));
      }
    }
    return rows;
  }
  // Writes this number of rows for each file of the table into the manifest. -1: no number, as in
  // manifests of earlier versions.
  void SetRowsInManifest(int64_t rows) {
    server::SharedCheckpoint shared;
    server::Manifest manifest = shared.Open(folder_).value()->manifest();
    for (server::CheckpointFile& file : manifest.files) {
      if (file.table == "a") file.rows = rows;
    }
    ASSERT_EQ(WriteFileAtomically(Folder(7) + "/MANIFEST", server::EncodeManifest(manifest)),
              absl::OkStatus());
  }
};

TEST_F(CheckpointLoadTest, AManifestWithOtherNumbersOfRowsIsRefused) {
  Table table(plan_, 1);
  table.Fill(50, 1.5f);
  Checkpoint(table, 7);
  SetRowsInManifest(51);
  Table into(plan_, 1);
  EXPECT_THAT(
      std::string(Load(folder_, &into).message()),
      HasSubstr("table a, positions [0x0, 2^64) at offset 0: has 50 rows, the manifest says "
                "51"));
}

// Rows that fill the memory up to the margin fit again when the run resumes. The files that are in
// memory meanwhile use the part of the margin that is for copies, and evict no row.
TEST_F(CheckpointDirectoryTest, FilesInMemoryMakeNoRowGiveWay) {
  plan_.tables[0].eviction.set_kind(Eviction::AT_BUDGET);
  constexpr int kRanges = 4;
  Table table(plan_, kRanges);
  table.Fill(60'000, 1.5f);
  Checkpoint(table, 7);
  const size_t rows = MemoryOfRows(kRanges);
  server::SharedCheckpoint shared;
  size_t file = ~size_t{0};  // bytes of the smallest
  for (const server::CheckpointFile& facts : shared.Open(folder_).value()->manifest().files) {
    if (facts.table == "a") file = std::min<size_t>(file, facts.bytes);
  }
  const size_t more = file / 4;  // the index asks for a little more than it takes in the end
  ASSERT_GT(more, size_t{32} << 10);
  const size_t margin = 4 * file;
  server::MemoryBudget budget(rows + more + margin, /*process=*/0, margin, /*slack=*/0,
                              /*for_copies=*/2 * file);
  {
    server::PageArena arena(&budget);
    const auto may_grow = [&](size_t bytes) {
      budget.OnResident(arena.resident() + file);  // as the server measures it again and again
      return budget.MayGrow(bytes);
    };
    Table into(plan_, kRanges, /*table=*/0, &arena, may_grow);
    server::CheckpointLoad load(OpenerOf(&shared, folder_), {/*resume=*/true, {}, 1, &budget},
                                WantedOf(into.ranges()));
    ASSERT_EQ(load.Load(/*shard=*/0, into.ranges(), buffers_), absl::OkStatus());
    EXPECT_EQ(into.Rows(), table.Rows());
    EXPECT_FALSE(budget.nearly_full_of_rows());
    budget.OnResident(arena.resident());
    EXPECT_EQ(budget.used(), arena.resident()) << "the files are gone";
  }
}

// Files are never refused memory, but rows are. So with little memory the shards read one file
// after the other.
TEST_F(CheckpointLoadTest, FilesOfManyShardsLeaveMemoryForRows) {
  constexpr int kShards = 8;
  Table table(plan_, kShards);
  table.Fill(80'000, 1.5f);
  Checkpoint(table, 7);
  server::SharedCheckpoint shared;
  size_t file = 0;  // bytes of the largest
  for (const server::CheckpointFile& facts : shared.Open(folder_).value()->manifest().files) {
    file = std::max<size_t>(file, facts.bytes);
  }
  server::MemoryBudget budget(MemoryOfRows(kShards) + 3 * file);
  LoadOfShards into(plan_, kShards, kShards, &budget);
  server::CheckpointLoad load(OpenerOf(&shared, folder_), {/*resume=*/true, {}, kShards, &budget},
                              into.wanted());
  EXPECT_THAT(into.Load(&load), ::testing::Each(absl::OkStatus()));
  EXPECT_EQ(into.Rows(), table.Rows());
}

// Shards wait for one another only where their own files do not fit. The first shard that has
// loaded a file waits here for the other one.
TEST_F(CheckpointLoadTest, SmallFilesAreLoadedAtTheSameTimeBesideALargeOne) {
  Table table(plan_, 4);
  for (uint64_t key = 0; key < 40'000; ++key) {
    const bool in_the_last = &table.RangeOf(key) == table.ranges()[3];
    if (!in_the_last && key >= 40) continue;
    ASSERT_EQ(table.RangeOf(key).store().Assign({&key, 1}, std::vector<float>{1, 2}, {}),
              absl::OkStatus());
  }
  Checkpoint(table, 7);
  server::SharedCheckpoint shared;
  size_t largest = 0;
  for (const server::CheckpointFile& facts : shared.Open(folder_).value()->manifest().files) {
    largest = std::max<size_t>(largest, facts.bytes);
  }
  server::MemoryBudget budget(MemoryOfRows(4) + 4 * largest);
  ASSERT_LT(budget.room(), 2 * 4 * largest) << "four times a file for each of two shards";
  LoadOfShards into(plan_, /*ranges=*/4, /*shards=*/2, &budget);
  std::atomic<int> loaded{0};
  absl::Notification both;
  const auto on_progress = [&] {
    const int now = ++loaded;
    if (now == 2) both.Notify();
    if (now > 1) return;
    EXPECT_TRUE(both.WaitForNotificationWithTimeout(absl::Seconds(30)));
  };
  server::CheckpointLoad load(OpenerOf(&shared, folder_),
                              {/*resume=*/true, {}, /*shards=*/2, &budget, on_progress},
                              into.wanted());
  EXPECT_THAT(into.Load(&load), ::testing::Each(absl::OkStatus()));
  EXPECT_EQ(into.Rows(), table.Rows());
}

// If not all rows of AT_BUDGET fit, each range loads about the same share of its rows. (A range
// without rows would never get one, because a range evicts only rows of its own.) With several
// shards the test checks only that no range gets almost none or almost all.
TEST_F(CheckpointLoadTest, EachRangeLoadsItsShareOfTheRows) {
  plan_.tables[0].eviction.set_kind(Eviction::AT_BUDGET);
  constexpr int kRanges = 16;
  struct Case {
    int files, shards;
    bool another_salt;    // the rows of a file may be in any range
    bool rows_are_known;  // from the manifest
  };
  for (const Case& from : {Case{kRanges, 1, false, true},
                           {1, 1, false, true},
                           {40, 1, false, true},
                           {kRanges, 4, false, true},
                           {1, 4, false, true},
                           {kRanges, 1, true, true},
                           {kRanges, 1, false, false}}) {
    plan_.tables[0].salt = 1;
    Table table(plan_, from.files);
    table.Fill(60'000, 1.5f);
    Checkpoint(table, 7);
    if (!from.rows_are_known) SetRowsInManifest(-1);
    plan_.tables[0].salt += from.another_salt ? 1 : 0;
    const size_t all = MemoryOfRows(kRanges);
    for (const double factor : {0.8, 1.0, 1.5}) {
      SCOPED_TRACE(absl::StrCat(from.files, " files, ", from.shards, " shards, another salt ",
                                from.another_salt, ", rows are known ", from.rows_are_known,
                                ", factor of Wanted::bytes_per_row ", factor));
      const double row = factor * static_cast<double>(all) / 60'000;
      for (const size_t rows :
           LoadInto(all / 2, kRanges, from.shards, row, /*resume=*/!from.another_salt)) {
        // Shards that grow an index have it twice for a moment, which leaves less for the others.
        EXPECT_GT(rows, (from.shards == 1 ? 0.2 : 0.05) * 60'000 / kRanges);
        EXPECT_LT(rows, (from.shards == 1 ? 0.8 : 0.95) * 60'000 / kRanges);
      }
    }
    fs::remove_all(folder_);
  }
}

// Table "b" loads all its rows if they fit, whatever the other table takes: an index for many rows,
// a few pages, or more rows than "b" has. Table "c" leaves out rows, because the resume sets a
// max_rows.
TEST_F(CheckpointDirectoryTest, RowsThatFitAreLoadedBesideOtherTables) {
  constexpr int kRanges = 4;
  plan_.tables.push_back(plan_.tables[0]);
  const size_t second = plan_.tables.size() - 1;
  plan_.tables[second].name = "b";
  plan_.tables[second].eviction.set_kind(Eviction::AT_BUDGET);
  struct Other {
    const char* name;  // sorts before or after "b" in the manifest
    int rows;
    Eviction::Kind kind;
    int64_t max_rows;  // at the load; 0: no limit
  };
  uint64_t run = 7;
  for (const Other& other : {Other{"a", 100, Eviction::NONE, 0},
                             {"a", 40'000, Eviction::NONE, 0},
                             {"a", 100, Eviction::AT_BUDGET, 0},
                             {"a", 40'000, Eviction::AT_BUDGET, 0},
                             {"c", 100'000, Eviction::LRU, 10'000}}) {
    SCOPED_TRACE(absl::StrCat(other.rows, " rows of ", other.name, ", eviction ", other.kind));
    plan_.tables[0].name = other.name;
    plan_.tables[0].expected_rows = other.max_rows > 0 ? other.max_rows : 1'000'000;
    plan_.tables[0].eviction.set_kind(other.kind);
    plan_.tables[0].eviction.set_max_rows(0);
    Table first(plan_, kRanges), b(plan_, kRanges, second);
    first.Fill(static_cast<uint64_t>(other.rows), 2.5f);
    b.Fill(20'000, 1.5f);
    const std::string checkpoint = Folder(++run);
    Write(checkpoint, first);
    Write(checkpoint, b);
    ASSERT_EQ(server::CommitCheckpoint(checkpoint, plan_, Head(run, 10), kDense), absl::OkStatus());
    const absl::StatusOr<server::CheckpointReader> saved =
        server::CheckpointReader::Open(checkpoint);
    ASSERT_TRUE(saved.ok()) << saved.status();
    plan_.tables[0].eviction.set_max_rows(other.max_rows);
    size_t all = 0;  // memory
    for (const bool limited : {false, true}) {
      const size_t copies = size_t{8} << 20;  // more than the files that are in memory
      server::MemoryBudget budget(limited ? all + all / 20 + copies : size_t{1} << 30,
                                  /*process=*/0, copies, /*slack=*/0, /*for_copies=*/copies);
      server::PageArena arena(&budget);
      const auto may_grow = [&budget](size_t bytes) { return budget.MayGrow(bytes); };
      Table into_first(plan_, kRanges, 0, &arena, may_grow);
      Table into_b(plan_, kRanges, second, &arena, may_grow);
      std::vector<server::Range*> ranges = into_first.ranges();
      for (server::Range* const range : into_b.ranges()) ranges.push_back(range);
      server::SharedCheckpoint shared;
      server::CheckpointLoad load(OpenerOf(&shared, checkpoint), {/*resume=*/true, {}, 1, &budget},
                                  WantedOf(ranges));
      ASSERT_EQ(load.Load(/*shard=*/0, ranges, buffers_), absl::OkStatus());
      if (other.max_rows == 0) {
        EXPECT_EQ(into_first.Rows(), first.Rows());
      } else {
        EXPECT_EQ(into_first.Rows().size(), static_cast<size_t>(other.max_rows));
      }
      EXPECT_EQ(into_b.Rows(), b.Rows());
      all = arena.resident();
    }
  }
}

// A new run with another optimizer ignores the slots of the files.
TEST_F(CheckpointLoadTest, RowsThatFitAreLoadedWithoutTheSlotsOfTheFiles) {
  plan_.tables[0].eviction.set_kind(Eviction::AT_BUDGET);
  constexpr int kRanges = 8;
  plan_.tables[0].optimizer.set_kind(Optimizer::ADAM);
  Table table(plan_, kRanges);
  table.Fill(60'000, 1.5f);
  Checkpoint(table, 7);
  plan_.tables[0].optimizer.set_kind(Optimizer::SGD);
  const size_t all = MemoryOfRows(kRanges);
  const double row = static_cast<double>(all) / 60'000;
  size_t rows = 0;
  for (const size_t of_range :
       LoadInto(all + all / 20, kRanges, /*shards=*/1, row, /*resume=*/false)) {
    rows += of_range;
  }
  EXPECT_EQ(rows, 60'000);
}

// Several shards of one process need rows of the same files, because the ranges are cut anew. The
// process reads the manifest once, and each range file once.
TEST_F(CheckpointDirectoryTest, TheShardsOfAProcessReadEachFileOnce) {
  single_files_ = true;
  Table table(plan_, 24);
  table.Fill(2000, 1.5f);
  server::CheckpointHead head = Head(7, 10);
  head.record = "a record";
  Checkpoint(table, head);
  for (const auto& [ranges, shards] : {std::pair{24, 3}, {7, 3}, {60, 4}, {1, 1}, {2, 5}}) {
    for (const bool resume : {false, true}) {
      SCOPED_TRACE(absl::StrCat(ranges, " ranges, ", shards, " shards, resume ", resume));
      LoadOfShards loaded(plan_, ranges, shards);
      OpenCounter counter(Folder(7));
      server::SharedCheckpoint shared;
      server::CheckpointLoad load(OpenerOf(&shared, folder_), {resume, {}, shards},
                                  loaded.wanted());
      EXPECT_EQ(load.Record().value(), "a record");
      EXPECT_EQ(load.Record().value(), "a record");
      EXPECT_THAT(loaded.Load(&load), ::testing::Each(absl::OkStatus()));
      EXPECT_EQ(loaded.Rows(), table.Rows());
      const std::map<std::string, int> opened = counter.Opened();
      for (const server::CheckpointFile& file : shared.Open(folder_).value()->manifest().files) {
        const bool needed = file.table == "a" || file.name == "record.part";
        const auto count = opened.find(file.name);
        EXPECT_EQ(count == opened.end() ? 0 : count->second, needed ? 1 : 0) << file.name;
      }
      EXPECT_EQ(opened.at("MANIFEST"), 1);
    }
  }
}

// The same of ranges in segments. Shards that need parts of the same segment read them at the same
// time, and each range is read once.
TEST_F(CheckpointDirectoryTest, TheShardsOfAProcessReadEachPartOfASegmentOnce) {
  segment_bytes_ = 4000;  // several segments
  Table table(plan_, 24);
  table.Fill(2000, 1.5f);
  Checkpoint(table, 7);
  for (const auto& [ranges, shards] : {std::pair{24, 3}, {7, 3}, {60, 4}, {1, 1}}) {
    SCOPED_TRACE(absl::StrCat(ranges, " ranges, ", shards, " shards"));
    LoadOfShards loaded(plan_, ranges, shards);
    server::SharedCheckpoint shared;
    const auto opened = shared.Open(folder_);
    ASSERT_TRUE(opened.ok()) << opened.status();
    int64_t want = 0;
    std::set<std::string> segments;
    for (const server::CheckpointFile& file : (*opened)->manifest().files) {
      if (file.table == "a") want += static_cast<int64_t>((file.bytes + 63) / 64 * 64);
      if (file.table == "a") segments.insert(file.name);
    }
    EXPECT_GT(segments.size(), 3u);
    bytes_read = 0;
    server::CheckpointLoad load(OpenerOf(&shared, folder_), {/*resume=*/true, {}, shards},
                                loaded.wanted());
    EXPECT_THAT(loaded.Load(&load), ::testing::Each(absl::OkStatus()));
    EXPECT_EQ(bytes_read, want);
    EXPECT_EQ(loaded.Rows(), table.Rows());
  }
  // A shard that needs some ranges reads no others.
  Table some(plan_, 24);
  const std::vector<server::Range*> third = {some.ranges()[2]};
  const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
  bytes_read = 0;
  ASSERT_EQ(saved->ResumeRanges(third, buffers_), absl::OkStatus());
  EXPECT_GT(third[0]->store().size(), 0);
  EXPECT_EQ(bytes_read, static_cast<int64_t>((saved->manifest().files[2].bytes + 63) / 64 * 64));
}

// A byte of a segment that has changed is found, wherever it is, and named by the file; in a range
// also by the table and the positions. So is a segment that is cut short, gone, or of another run.
TEST_F(CheckpointDirectoryTest, DamageInASegmentIsRefusedByName) {
  Table table(plan_, 3), other(plan_, 3);
  table.Fill(20, 1);
  other.Fill(20, 2);
  Checkpoint(table, 7);
  const std::string file = FirstRange(Folder(7)), bytes = *ReadWholeFile(file);
  const auto put = [&](const std::string& contents) {
    std::ofstream(file, std::ios::binary) << contents;
  };
  const server::Manifest manifest = server::CheckpointReader::Open(folder_)->manifest();
  ASSERT_EQ(manifest.files.size(), 4u);
  for (size_t at = 0; at < bytes.size(); at += at % 64 < 40 ? 7 : 3) {
    std::string changed = bytes;
    changed[at] = static_cast<char>(changed[at] ^ 4);
    put(changed);
    Table into(plan_, 2);
    const std::string why(Load(folder_, &into).message());
    EXPECT_THAT(why, HasSubstr(file)) << "byte " << at;
    for (const server::CheckpointFile& part : manifest.files) {
      if (part.table != "a" || at < part.offset || at >= part.offset + part.bytes) continue;
      EXPECT_THAT(why, HasSubstr(absl::StrCat("table a, positions ",
                                              server::PositionsText(part.begin, part.end))));
    }
  }
  for (size_t kept = 0; kept < bytes.size(); kept += 5) {
    put(bytes.substr(0, kept));
    EXPECT_THAT(std::string(server::CheckpointReader::Open(folder_).status().message()),
                HasSubstr(file))
        << kept;
  }
  put(bytes + std::string(64, '\0'));
  ExpectRefused(file, "is it cut short?");
  fs::remove(file);
  ExpectRefused(file, "the manifest lists it");
  const std::string elsewhere = folder_ + "/elsewhere";
  Write(elsewhere, other);
  fs::copy(elsewhere + "/" + fs::path(file).filename().string(), file);
  ASSERT_EQ(fs::file_size(file), bytes.size());
  ExpectRefused(file, "is it of another checkpoint?");
  // Nor is a segment committed that is not whole.
  fs::resize_file(elsewhere + "/" + fs::path(file).filename().string(), bytes.size() - 1);
  EXPECT_THAT(
      std::string(server::CommitCheckpoint(elsewhere, plan_, Head(8, 10), kDense).message()),
      HasSubstr(fs::path(file).filename().string()));
  put(bytes);
  Table into(plan_, 3);
  EXPECT_EQ(Load(folder_, &into), absl::OkStatus());
}

// The manifest of a checkpoint with a file for each range, as versions before segments wrote it.
std::string OldManifest(const server::Manifest& manifest) {
  auto json = nlohmann::ordered_json::parse(server::EncodeManifest(manifest));
  json["format"] = 2u;
  for (auto& file : json["files"]) {
    file = {{"name", file["file"]}, {"table", file["table"]},  {"begin", file["begin"]},
            {"end", file["end"]},   {"bytes", file["length"]}, {"rows", file["rows"]},
            {"xxh3", file["xxh3"]}};
  }
  json.erase("xxh3");
  const std::string text = json.dump(1);
  json["xxh3"] = absl::StrFormat("0x%016x", XXH3_64bits(text.data(), text.size()));
  return json.dump(1) + "\n";
}

TEST_F(CheckpointDirectoryTest, AManifestOfFormat2IsRead) {
  single_files_ = true;
  Table table(plan_, 3);
  table.Fill(50, 1.5f);
  Checkpoint(table, 7);
  const server::Manifest manifest = server::CheckpointReader::Open(folder_)->manifest();
  const std::string old = OldManifest(manifest);
  EXPECT_THAT(old, HasSubstr("\"format\": 2"));
  ASSERT_EQ(WriteFileAtomically(Folder(7) + "/MANIFEST", old), absl::OkStatus());
  EXPECT_EQ(server::CheckpointReader::Open(folder_)->manifest(), manifest);
  Table loaded(plan_, 2), resumed(plan_, 4);
  ASSERT_EQ(Load(folder_, &loaded), absl::OkStatus());
  EXPECT_EQ(loaded.Rows(), table.Rows());
  ASSERT_EQ(server::CheckpointReader::Open(folder_)->ResumeRanges(resumed.ranges(), buffers_),
            absl::OkStatus());
  EXPECT_EQ(resumed.Rows(), table.Rows());
}

// `tandem replay` compares models whose ranges may be in other files.
TEST_F(CheckpointDirectoryTest, ModelsAreComparedRangeByRange) {
  Table table(plan_, 3), other(plan_, 3), cut(plan_, 2);
  for (Table* const one : {&table, &other, &cut}) one->Fill(50, 1.5f);
  const auto compare = [&](const Table& second, uint64_t segment_bytes, bool single_files) {
    segment_bytes_ = uint64_t{256} << 20;
    single_files_ = false;
    Checkpoint(table, 7);
    const auto a = server::CheckpointReader::Open(folder_);
    const absl::StatusOr<OwnedFd> kept = server::KeepCheckpoint(Folder(7));
    segment_bytes_ = segment_bytes;
    single_files_ = single_files;
    Checkpoint(second, 8);
    const auto b = server::CheckpointReader::Open(folder_);
    EXPECT_TRUE(a.ok() && b.ok() && a->folder() != b->folder());
    return server::CompareModels(*a, *b).value();
  };
  for (const auto& [segment_bytes, single_files] :
       {std::pair<uint64_t, bool>{1, false}, {0, true}}) {
    const server::ModelComparison same = compare(table, segment_bytes, single_files);
    EXPECT_THAT(same.differences, ::testing::IsEmpty());
    EXPECT_EQ(same.ranges, 4);  // three ranges, dense.part
    EXPECT_EQ(same.rows, 52);
  }
  other.Step(0, 0, /*count=*/1);
  EXPECT_THAT(compare(other, 1, false).differences,
              ::testing::ElementsAre(
                  ::testing::MatchesRegex("table a, positions .*: row of key 0 has .* and .*")));
  EXPECT_THAT(
      compare(cut, 1, false).differences,
      ::testing::Contains(HasSubstr("has no table a, positions [0x8000000000000000, 2^64)")));
}

// A checkpoint from before there were segments: a manifest of format 2, range files
// of formats 1 and 2.
TEST_F(CheckpointDirectoryTest, ACheckpointOfAnEarlierVersionIsRead) {
  const absl::StatusOr<server::CheckpointReader> saved =
      server::CheckpointReader::Open(SourcePath("tests/testdata/checkpoint_format_2"));
  ASSERT_TRUE(saved.ok()) << saved.status();
  ASSERT_EQ(saved->manifest().files.size(), 6u);
  std::map<std::string, size_t> rows;
  for (const server::CheckpointFile& file : saved->manifest().files) {
    const absl::StatusOr<server::RangeImage> image = saved->Read(file);
    ASSERT_TRUE(image.ok()) << image.status();
    EXPECT_EQ(*saved->ReadKeys(file), image->keys);
    rows[file.table] += image->keys.size();
    EXPECT_EQ(image->limited, file.table == "rest");
    EXPECT_EQ(image->stamp, image->progress.version);
    if (file.table != "rest" || file.begin != 0) continue;
    EXPECT_EQ(image->progress.version, 5);
    EXPECT_EQ(image->keys[0], 0xa82034f6e854c2d6u);
    EXPECT_NEAR(image->weights[1], 0.147939, 1e-6);
    EXPECT_EQ(image->ages[0], 2u);
  }
  EXPECT_EQ(rows["offers"], 20u);
  EXPECT_EQ(rows["rest"], 6u);
  EXPECT_NE(saved->ReadRecord().value(), "");
  EXPECT_EQ(saved->CheckCover("offers"), absl::OkStatus());
}

// The same where the rows of each file may be in any range.
TEST_F(CheckpointDirectoryTest, TheShardsOfAProcessReadEachFileOnceUnderAnotherSalt) {
  single_files_ = true;
  Table table(plan_, 24);
  table.Fill(500, 1.5f);
  Checkpoint(table, 7);
  job::ResolvedJob salted = plan_;
  salted.tables[0].salt += 12345;
  LoadOfShards loaded(salted, 7, 3);
  OpenCounter counter(Folder(7));
  server::SharedCheckpoint shared;
  std::atomic<int> moved{0};
  server::CheckpointLoad load(OpenerOf(&shared, folder_),
                              {false, {}, 3, nullptr, [&moved] { ++moved; }}, loaded.wanted());
  EXPECT_THAT(loaded.Load(&load), ::testing::Each(absl::OkStatus()));
  EXPECT_EQ(loaded.Rows(), table.Rows());
  EXPECT_EQ(moved, 3 * 24) << "each file is progress, so a long load is no stall";
  int files = 0;
  for (const auto& [name, count] : counter.Opened()) {
    EXPECT_EQ(count, 1) << name;
    if (name != "MANIFEST") ++files;
  }
  EXPECT_EQ(files, 24);
}

// No shard waits for one that has failed, whether before its first file or at a damaged one. All
// shards need all files here, so none could load without the others.
TEST_F(CheckpointDirectoryTest, AShardThatFailsEndsTheLoadOfAll) {
  Table table(plan_, 40);
  table.Fill(500, 1.5f);
  Checkpoint(table, 7);
  {
    LoadOfShards loaded(plan_, 400, 3);
    server::SharedCheckpoint shared;
    server::CheckpointLoad load(OpenerOf(&shared, folder_), {false, {}, 3}, loaded.wanted());
    const std::vector<absl::Status> statuses = loaded.Load(&load, /*failing=*/1);
    for (const int shard : {0, 2}) {
      EXPECT_EQ(statuses[static_cast<size_t>(shard)], absl::InternalError("the shard has failed"));
    }
  }
  const std::string file = FirstRange(Folder(7));
  std::string bytes = *ReadWholeFile(file);
  bytes[150] ^= 1;  // in the first range
  ASSERT_TRUE(WriteFileAtomically(file, bytes).ok());
  LoadOfShards loaded(plan_, 400, 3);
  server::SharedCheckpoint shared;
  server::CheckpointLoad load(OpenerOf(&shared, folder_), {false, {}, 3}, loaded.wanted());
  for (const absl::Status& status : loaded.Load(&load)) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(file + ": "));
    EXPECT_THAT(std::string(status.message()), HasSubstr("checksum"));
  }
}

// All threads of a process see one checkpoint, even if a newer one is there by now.
TEST_F(CheckpointDirectoryTest, AProcessOpensItsCheckpointOnce) {
  Table table(plan_, 2);
  table.Fill(50, 1.5f);
  Checkpoint(table, 7, 10);
  server::SharedCheckpoint shared;
  const auto first = shared.Open(folder_);
  ASSERT_TRUE(first.ok()) << first.status();
  Checkpoint(table, 7, 20);
  EXPECT_EQ(shared.Open(folder_).value(), *first);
  EXPECT_EQ((*first)->manifest().step, 10);
  EXPECT_EQ(server::SharedCheckpoint().Open(folder_).value()->manifest().step, 20);
  server::SharedCheckpoint none;
  EXPECT_FALSE(none.Open(root_ + "/nowhere").ok());
}

// Another run that checkpoints into the same place may have taken the folder away while ranges were
// still to come; the servers make it again.
TEST_F(CheckpointDirectoryTest, ACheckpointWhoseDensePartIsGoneIsNotCommitted) {
  Table first(plan_, 4), second(plan_, 4);
  first.Fill(50, 1);
  second.Fill(50, 2);
  Write(Folder(8), second);
  Checkpoint(first, 7);  // removes the other one
  ASSERT_EQ(MakeFolder(Folder(8)), absl::OkStatus());
  ASSERT_EQ(WriteRanges(Folder(8), second.ranges()), absl::OkStatus());
  EXPECT_THAT(
      std::string(server::CommitCheckpoint(Folder(8), plan_, Head(8, 10), kDense).message()),
      HasSubstr("dense.part"));
  Table loaded(plan_, 2);
  EXPECT_EQ(Load(folder_, &loaded), absl::OkStatus());
  EXPECT_EQ(loaded.Rows(), first.Rows());
}

// ---- what a fixed delay holds back ------------------------------------------------------------

class FixedDelayTest : public CheckpointDirectoryTest {
 protected:
  static constexpr uint64_t kKeys = 100;
  job::ResolvedJob PlanWith(const std::string& policy) const {
    return CorePlan(policy, 2, 2, "", "ALLREDUCE");
  }
  const job::ResolvedJob delayed_ = PlanWith("kind: FIXED_DELAY delay: 2");
};

// A run that goes on from a checkpoint, on other ranges, has the rows of one that was never
// interrupted, after every step and to the last bit.
TEST_F(FixedDelayTest, TheQueueGoesOnWhereItWas) {
  Table whole(delayed_, 1), before(delayed_, 2), after(delayed_, 3);
  for (int64_t step = 0; step < 4; ++step) {
    whole.Step(step, step, kKeys);
    before.Step(step, step, kKeys);
  }
  Checkpoint(before, 7);
  ASSERT_EQ(Load(folder_, &after), absl::OkStatus());
  EXPECT_EQ(after.Rows(), whole.Rows());
  EXPECT_EQ(after.held_bytes(), whole.held_bytes());
  for (int64_t step = 0; step < 4; ++step) {
    whole.Step(4 + step, 4 + step, kKeys);
    after.Step(step, 4 + step, kKeys);
    EXPECT_EQ(after.Rows(), whole.Rows()) << "step " << step;
  }
  whole.FinishDelayed();
  after.FinishDelayed();
  EXPECT_EQ(after.Rows(), whole.Rows());
  EXPECT_EQ(after.held_bytes(), 0u);
  // The updates that came with the checkpoint were counted by the run that sent them.
  EXPECT_EQ(after.stats().arrived, after.stats().merged);
}

// The run itself goes on, on other ranges: it stands where it stood, with its steps, its versions
// and its exactly-once memory, and every step after that is the one of a run that was never
// stopped. The best model is the one that was evaluated: what was held back then was not in it.
TEST_F(FixedDelayTest, TheBestModelIsWithoutWhatWasHeldBack) {
  const job::ResolvedJob plain = PlanWith("kind: BSP");
  Table whole(delayed_, 1), trained(plain, 2), on(delayed_, 3);
  for (int64_t step = 0; step < 4; ++step) whole.Step(step, step, kKeys);
  server::CheckpointHead head = Head(7, 10);
  head.best = true;
  Checkpoint(whole, head);
  const auto saved = server::CheckpointReader::Open(folder_);
  ASSERT_TRUE(saved.ok() && saved->manifest().best) << saved.status();
  ASSERT_EQ(Load(folder_, &trained), absl::OkStatus());
  EXPECT_EQ(trained.Rows(), whole.Rows()) << "a job that holds nothing would have applied it";
  HeapBufferSource buffers;
  ASSERT_EQ(saved->ResumeRanges(on.ranges(), buffers), absl::OkStatus());
  EXPECT_EQ(on.held_bytes(), whole.held_bytes()) << "but the run goes on with it";
}

TEST_F(FixedDelayTest, TheRunGoesOnWhereItStood) {
  Table whole(delayed_, 1), before(delayed_, 2), after(delayed_, 3);
  for (int64_t step = 0; step < 4; ++step) {
    whole.Step(step, step, kKeys);
    before.Step(step, step, kKeys);
  }
  Checkpoint(before, 7);
  const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
  ASSERT_TRUE(saved.ok()) << saved.status();
  ASSERT_EQ(saved->ResumeRanges(after.ranges(), buffers_), absl::OkStatus());
  EXPECT_EQ(after.Rows(), whole.Rows());
  EXPECT_EQ(after.held_bytes(), whole.held_bytes());
  for (const server::Range* range : after.ranges()) {
    EXPECT_EQ(range->progress().version, 4);
    for (const policies::WorkerProgress& worker : range->progress().workers)
      EXPECT_EQ(worker.admitted, 4);
  }
  server::HeldUpdate again;  // by the worker's new process
  again.step = 3;
  EXPECT_EQ(after.ranges()[0]->Admit(absl::UnixEpoch(), 99, 3, again, false),
            server::Range::Admission::kDuplicate);
  for (int64_t step = 4; step < 8; ++step) {
    whole.Step(step, step, kKeys);
    after.Step(step, step, kKeys, /*incarnation=*/99);
    EXPECT_EQ(after.Rows(), whole.Rows()) << "step " << step;
  }
  whole.FinishDelayed();
  after.FinishDelayed();
  EXPECT_EQ(after.Rows(), whole.Rows());
  EXPECT_EQ(after.held_bytes(), 0u);
}

// Each of three files has a part of each held update. The range that loads the files joins the
// parts to one update, and counts it once.
TEST_F(FixedDelayTest, AHeldUpdateInSeveralFilesCountsOnce) {
  Table before(delayed_, 3), after(delayed_, 1);
  for (int64_t step = 0; step < 4; ++step) before.Step(step, step, kKeys);
  Checkpoint(before, 7);
  const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
  ASSERT_TRUE(saved.ok()) << saved.status();
  ASSERT_EQ(saved->ResumeRanges(after.ranges(), buffers_), absl::OkStatus());
  EXPECT_EQ(after.held_bytes(), before.held_bytes());
  before.FinishDelayed();
  after.FinishDelayed();
  EXPECT_EQ(after.Rows(), before.Rows());
  EXPECT_EQ(after.held_bytes(), 0u);
  EXPECT_EQ(after.stats().merged, 4u);  // two steps of two workers
}

// Whatever a policy has asked to be remembered is there again: open batches, the numbers of reads,
// rows as they were read, mean squares, step times.
TEST_F(CheckpointDirectoryTest, WhatPoliciesRememberGoesOn) {
  for (const char* policy :
       {"kind: K_BATCH_ASYNC batches: 5", "kind: GBA batches: 5", "kind: DC_ASGD compensation: 0.5",
        "kind: DC_ASGD compensation: 0.5 mean_square_decay: 0.9",
        "kind: DSSP bound: 1 upper_bound: 3", "kind: STALENESS_AWARE",
        "kind: COSINE_GATE age_decay: 0.5 age_cutoff: 2", "kind: SYNC_SWITCH switch_step: 2",
        "kind: SYNC_SWITCH switch_step: 6", "kind: RINGMASTER max_delay: 1",
        "kind: DELAY_ADAPTIVE full_rate_delay: 1", "kind: RINGLEADER",
        "kind: RENNALA batches: 9"}) {
    const job::ResolvedJob plan = CorePlan(policy, 2, 2);
    Table whole(plan, 2), after(plan, 2);
    for (int64_t step = 0; step < 4; ++step) whole.Step(step, step, 20);
    Checkpoint(whole, 7);
    const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
    ASSERT_TRUE(saved.ok()) << saved.status();
    ASSERT_EQ(saved->ResumeRanges(after.ranges(), buffers_), absl::OkStatus()) << policy;
    for (int64_t step = 4; step < 8; ++step) {
      for (size_t r = 0; r < 2; ++r) {
        EXPECT_EQ(ImageOf(*after.ranges()[r]).held, ImageOf(*whole.ranges()[r]).held) << policy;
      }
      whole.Step(step, step, 20);
      after.Step(step, step, 20);
      EXPECT_EQ(after.Rows(), whole.Rows()) << policy << " step " << step;
    }
    fs::remove_all(folder_);
  }
}

// Each range has its own open batch. Ranges cut anew would join two that differ.
TEST_F(CheckpointDirectoryTest, OpenBatchesThatDifferNeedTheRangesOfTheRun) {
  const job::ResolvedJob plan = CorePlan("kind: RENNALA batches: 3", 2, 2);
  Table before(plan, 2), same(plan, 2), cut(plan, 1);
  // The range of key 0 drops the fourth update. The other range has no pull, so it holds it.
  for (int64_t step = 0; step < 2; ++step) before.Step(step, step, /*count=*/1);
  Checkpoint(before, 7);
  const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->ResumeRanges(same.ranges(), buffers_), absl::OkStatus());
  EXPECT_EQ(same.Rows(), before.Rows());
  const std::string refused(saved->ResumeRanges(cut.ranges(), buffers_).message());
  EXPECT_THAT(refused, HasSubstr("range 0: has an open batch of other updates than another file of "
                                 "its table, and RENNALA(3) cannot join the two; expected the 2 "
                                 "key ranges of the checkpoint; hint: resume with cluster.servers "
                                 "x shards_per_server x ranges_per_shard = 2"));
}

// Rows of a KEY_VALUE table, on ranges cut anew too; where the ranges are the same, a copy of a
// write that was late before the checkpoint is late after it.
TEST_F(CheckpointDirectoryTest, AStoreRemembersItsWriters) {
  const job::ResolvedJob plan =
      CorePlan("kind: BSP", 2, 2,
               "table { name: \"cache\" dim: 2 extra_floats: 1 kind: KEY_VALUE }", "ALLREDUCE");
  plan_ = plan;
  constexpr uint64_t kWriter = 77;
  constexpr uint64_t kKeys = 20;
  const auto write = [](Table* table, int64_t number, float value) {
    for (uint64_t key = 0; key < kKeys; ++key) {
      const std::vector<float> row(3, value + static_cast<float>(key));
      std::vector<uint64_t> changed;
      server::Range& range = table->RangeOf(key);
      TANDEM_CHECK_OK(range.writes()->Apply(kWriter + key, number, StoreAction::kAssign, {&key, 1},
                                            row, &range.store(), &changed));
    }
  };
  Table trained(plan, 2), before(plan, 2, 1), same(plan, 2, 1), cut(plan, 3, 1);
  write(&before, 1, 100);
  write(&before, 2, 200);
  const std::string checkpoint = Folder(7);
  Write(checkpoint, trained);
  ASSERT_EQ(WriteRanges(checkpoint, before.ranges()), absl::OkStatus());
  ASSERT_EQ(server::CommitCheckpoint(checkpoint, plan, Head(7, 10), kDense), absl::OkStatus());
  const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
  ASSERT_TRUE(saved.ok()) << saved.status();
  for (Table* after : {&same, &cut}) {
    ASSERT_EQ(saved->ResumeRanges(after->ranges(), buffers_), absl::OkStatus());
    EXPECT_EQ(after->Rows(), before.Rows());
    EXPECT_EQ(after->Rows().size(), kKeys);
  }
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(ImageOf(*same.ranges()[r]).slots, ImageOf(*before.ranges()[r]).slots);
  }
  write(&same, 2, 300);
  write(&same, 1, 300);
  EXPECT_EQ(same.Rows(), before.Rows()) << "copies that were late";
  write(&same, 3, 300);
  write(&before, 3, 300);
  EXPECT_EQ(same.Rows(), before.Rows());
  // Their writers are new there: a run that goes on on other ranges has other programs.
  write(&cut, 1, 300);
  EXPECT_EQ(cut.Rows(), before.Rows());
}

// The stamp of a range counts steps of the optimizer, however the table is cut: also steps without
// rows in the range, and steps that are applied late. It never begins anew.
TEST_F(FixedDelayTest, TheStampCountsTheStepsOfTheOptimizer) {
  const auto expect = [](const Table& table, int64_t stamp, int64_t step_base = 0) {
    for (const server::Range* const range : table.ranges()) {
      EXPECT_EQ(ImageOf(*range).stamp, stamp);
      EXPECT_EQ(ImageOf(*range).step_base, step_base);
    }
  };
  Table before(delayed_, 2), resumed(delayed_, 3), loaded(delayed_, 3), moved(delayed_, 2);
  for (int64_t step = 0; step < 7; ++step) before.Step(step, step, /*count=*/1);
  expect(before, 5);  // two are delayed
  Checkpoint(before, 7);
  const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
  ASSERT_TRUE(saved.ok()) << saved.status();
  ASSERT_EQ(saved->ResumeRanges(resumed.ranges(), buffers_), absl::OkStatus());
  expect(resumed, 5);
  resumed.Step(7, 7, kKeys, /*incarnation=*/99);
  expect(resumed, 6);
  resumed.FinishDelayed();
  expect(resumed, 8);
  for (size_t r = 0; r < 2; ++r) {
    ASSERT_EQ(moved.ranges()[r]->Restore(ImageOf(*before.ranges()[r]), buffers_), absl::OkStatus());
  }
  expect(moved, 5);
  ASSERT_EQ(Load(folder_, &loaded), absl::OkStatus());
  expect(loaded, 5);

  // A new run applies the delayed steps, with an optimizer that begins there.
  job::ResolvedJob other = PlanWith("kind: BSP");
  other.tables[0].optimizer.set_kind(Optimizer::ADAM);
  Table begun(other, 1);
  ASSERT_EQ(Load(folder_, &begun), absl::OkStatus());
  expect(begun, 7, /*step_base=*/5);

  const job::ResolvedJob asp = PlanWith("kind: ASP");
  Table by_update(asp, 2);
  for (int64_t step = 0; step < 3; ++step) by_update.Step(step, step, /*count=*/1);
  expect(by_update, 6);  // two workers
  const job::ResolvedJob gba = PlanWith("kind: GBA batches: 3");
  Table by_batch(gba, 2);
  for (int64_t step = 0; step < 3; ++step) by_batch.Step(step, step, /*count=*/1);
  expect(by_batch, 2);  // six updates
}

// ADAM that counts by table goes on with its count: on ranges cut anew, in a moved range, and in a
// new run that begins with the checkpoint. After another optimizer it begins at 1.
TEST_F(CheckpointDirectoryTest, TheStepCountOfAdamByTableGoesOn) {
  for (const char* policy : {"kind: BSP", "kind: FIXED_DELAY delay: 2", "kind: ASP",
                             "kind: SSP bound: 2", "kind: GBA batches: 4"}) {
    SCOPED_TRACE(policy);
    plan_ = CorePlan(policy, 2, 2, "", "ALLREDUCE");
    Table sgd(plan_, 2);
    plan_.tables[0].optimizer.set_kind(Optimizer::ADAM);
    plan_.tables[0].optimizer.set_step_count(Optimizer::TABLE);
    Table whole(plan_, 2), cut(plan_, 3), moved(plan_, 2), loaded(plan_, 3), fresh(plan_, 3),
        after_sgd(plan_, 3);
    const auto count = [](int64_t step) { return step % 3 == 0 ? 20u : 1u; };  // rare rows
    for (int64_t step = 0; step < 6; ++step) whole.Step(step, step, count(step));
    Checkpoint(whole, 7);
    const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
    ASSERT_TRUE(saved.ok()) << saved.status();
    ASSERT_EQ(saved->ResumeRanges(cut.ranges(), buffers_), absl::OkStatus());
    for (size_t r = 0; r < 2; ++r) {
      ASSERT_EQ(moved.ranges()[r]->Restore(ImageOf(*whole.ranges()[r]), buffers_),
                absl::OkStatus());
    }
    ASSERT_EQ(Load(folder_, &loaded), absl::OkStatus());
    for (int64_t step = 6; step < 12; ++step) {
      whole.Step(step, step, count(step));
      cut.Step(step, step, count(step));
      moved.Step(step, step, count(step));
      loaded.Step(step - 6, step, count(step));
    }
    for (Table* const table : {&whole, &cut, &moved, &loaded}) table->FinishDelayed();
    EXPECT_EQ(cut.Rows(), whole.Rows());
    EXPECT_EQ(moved.Rows(), whole.Rows());
    EXPECT_EQ(loaded.Rows(), whole.Rows());
    fs::remove_all(folder_);

    for (int64_t step = 0; step < 6; ++step) sgd.Step(step, step, /*count=*/20);
    sgd.FinishDelayed();
    Checkpoint(sgd, 7);
    ASSERT_EQ(Load(folder_, &after_sgd), absl::OkStatus());
    for (const auto& [key, row] : sgd.Rows()) {
      TANDEM_CHECK_OK(fresh.RangeOf(key).store().Assign({&key, 1}, row, {}));
    }
    for (int64_t step = 0; step < 6; ++step) {
      after_sgd.Step(step, step, count(step));
      fresh.Step(step, step, count(step));
    }
    EXPECT_EQ(after_sgd.Rows(), fresh.Rows());
    fs::remove_all(folder_);
  }
}

// Rows that make up for missed steps are stored as their last updates left them. They are read in
// the same way after a resume, a move and a load. Under another learning rate, or with another
// optimizer, the missed steps keep the rate of their own run.
TEST_F(CheckpointDirectoryTest, MissedStepsHaveTheSettingsOfTheirRun) {
  constexpr uint64_t kRows = 20;
  for (const char* policy : {"kind: BSP", "kind: FIXED_DELAY delay: 2"}) {
    SCOPED_TRACE(policy);
    plan_ = CorePlan(policy, 2, 2, "", "ALLREDUCE");
    Optimizer& optimizer = plan_.tables[0].optimizer;
    optimizer.Clear();
    optimizer.set_kind(Optimizer::ADAM);
    optimizer.set_learning_rate(0.1);
    optimizer.set_step_count(Optimizer::TABLE);
    optimizer.set_catch_up(true);
    job::ResolvedJob faster = plan_, other = plan_;
    faster.tables[0].optimizer.set_learning_rate(7);
    other.tables[0].optimizer.set_kind(Optimizer::ADAGRAD);
    other.tables[0].optimizer.set_catch_up(false);
    Table whole(plan_, 2), resumed(plan_, 3), moved(plan_, 2), loaded(plan_, 3),
        faster_resumed(faster, 3), faster_loaded(faster, 3), with_other(other, 3);
    const auto count = [](int64_t step) { return step % 5 == 1 ? kRows : 3; };
    for (int64_t step = 0; step < 10; ++step) whole.Step(step, step, count(step));
    const auto rows = whole.Pulled(kRows);
    ASSERT_NE(rows[kRows - 1], whole.Rows()[kRows - 1]);
    Checkpoint(whole, 11);
    const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
    ASSERT_TRUE(saved.ok()) << saved.status();
    EXPECT_THAT(saved->manifest().tables[0].catch_up, HasSubstr("learning_rate: 0.1 "));
    for (Table* const table : {&resumed, &faster_resumed}) {
      ASSERT_EQ(saved->ResumeRanges(table->ranges(), buffers_), absl::OkStatus());
    }
    for (Table* const table : {&loaded, &faster_loaded, &with_other}) {
      ASSERT_EQ(Load(folder_, table), absl::OkStatus());
    }
    for (size_t r = 0; r < 2; ++r) {
      ASSERT_EQ(moved.ranges()[r]->Restore(ImageOf(*whole.ranges()[r]), buffers_),
                absl::OkStatus());
    }
    for (Table* const table :
         {&resumed, &moved, &loaded, &faster_resumed, &faster_loaded, &with_other}) {
      EXPECT_EQ(table->Pulled(kRows), rows);
    }
    EXPECT_EQ(resumed.Rows(), whole.Rows());
    EXPECT_EQ(loaded.Rows(), whole.Rows());
    EXPECT_EQ(with_other.Rows()[kRows - 1], rows[kRows - 1]);
    whole.Step(10, 10, 1);
    moved.Step(10, 10, 1);
    resumed.Step(10, 10, 1);
    loaded.Step(0, 10, 1);
    for (Table* const table : {&whole, &moved, &resumed, &loaded}) table->FinishDelayed();
    EXPECT_NE(whole.Pulled(kRows)[kRows - 1], rows[kRows - 1]);
    for (Table* const table : {&resumed, &moved, &loaded}) {
      EXPECT_EQ(table->Pulled(kRows), whole.Pulled(kRows));
    }
    fs::remove_all(folder_);
  }
}

// Files of two checkpoints are not mixed up: what stands at other steps is refused.
TEST_F(FixedDelayTest, FilesOfTwoMomentsAreNotResumed) {
  Table early(delayed_, 2), late(delayed_, 2), one(delayed_, 1);
  early.Step(0, 0, kKeys);
  late.Step(0, 0, kKeys);
  late.Step(1, 1, kKeys);
  const server::RangeImage a = ImageOf(*early.ranges()[0]), b = ImageOf(*late.ranges()[1]);
  ASSERT_EQ(one.ranges()[0]->ResumeCheckpoint(a, buffers_), absl::OkStatus());
  EXPECT_THAT(std::string(one.ranges()[0]->ResumeCheckpoint(b, buffers_).message()),
              HasSubstr("other steps"));
}

// A job with a shorter delay, or none, begins with what is too much for its queue applied in order.
TEST_F(FixedDelayTest, AShorterDelayAppliesWhatIsTooMuch) {
  Table before(delayed_, 2);
  for (int64_t step = 0; step < 5; ++step) before.Step(step, step, kKeys);
  Checkpoint(before, 7);
  before.FinishDelayed();
  for (const char* policy : {"kind: BSP", "kind: ASP", "kind: FIXED_DELAY delay: 1"}) {
    SCOPED_TRACE(policy);
    const job::ResolvedJob plan = PlanWith(policy);
    Table loaded(plan, 3);
    ASSERT_EQ(Load(folder_, &loaded), absl::OkStatus());
    EXPECT_EQ(loaded.held_bytes() > 0, plan.groups[0].policy.delay() > 0);
    loaded.FinishDelayed();
    EXPECT_EQ(loaded.Rows(), before.Rows());
  }
}

// What came with a checkpoint moves with its range like all else that is held.
TEST_F(FixedDelayTest, WhatWasLoadedMovesWithItsRange) {
  Table before(delayed_, 1), loaded(delayed_, 2), moved(delayed_, 2);
  for (int64_t step = 0; step < 5; ++step) before.Step(step, step, kKeys);
  Checkpoint(before, 7);
  ASSERT_EQ(Load(folder_, &loaded), absl::OkStatus());
  for (size_t r = 0; r < 2; ++r) {
    ASSERT_EQ(moved.ranges()[r]->Restore(ImageOf(*loaded.ranges()[r]), buffers_), absl::OkStatus());
  }
  before.FinishDelayed();
  moved.FinishDelayed();
  EXPECT_EQ(moved.Rows(), before.Rows());
}

// A batch that stands open is in the checkpoint, and is closed where a new run begins, as what it
// holds: each file's by itself, because its mean is over other samples. Whatever the policy of the
// new run, and however its ranges are cut.
TEST_F(FixedDelayTest, AnOpenBatchIsCheckpointedAndCounts) {
  for (const char* policy :
       {"kind: K_BATCH_ASYNC batches: 3", "kind: GBA batches: 3", "kind: RENNALA batches: 12"}) {
    SCOPED_TRACE(policy);
    const job::ResolvedJob plan = PlanWith(policy);
    Table before(plan, 2);
    for (int64_t step = 0; step < 5; ++step) before.Step(step, step, kKeys);  // 10 updates
    EXPECT_GT(before.held_bytes(), 0u);
    Checkpoint(before, 7);
    const std::map<uint64_t, std::vector<float>> open = before.Rows();
    before.FinishDelayed();
    EXPECT_NE(before.Rows(), open);
    EXPECT_EQ(before.held_bytes(), 0u);
    for (const char* next : {policy, "kind: BSP", "kind: ASP", "kind: RINGMASTER max_delay: 1"}) {
      const job::ResolvedJob next_plan = PlanWith(next);
      Table loaded(next_plan, 3);
      ASSERT_EQ(Load(folder_, &loaded), absl::OkStatus());
      EXPECT_EQ(loaded.held_bytes(), 0u);
      EXPECT_EQ(loaded.Rows(), before.Rows()) << next;
    }
    std::filesystem::remove_all(folder_);
  }
}

// Dense parameters on servers, as earlier versions wrote them: their rows are in the dense part,
// what is held back of them beside it.
TEST_F(FixedDelayTest, DenseUpdatesAreHeldBackToo) {
  const job::ResolvedJob plan = CorePlan("kind: FIXED_DELAY delay: 2", 2, 2, "", "SERVERS");
  const size_t dense = static_cast<size_t>(plan.dense_table);
  Table before(plan, 2, dense), table(plan, 2);
  for (int64_t step = 0; step < 3; ++step) before.Step(step, step, 4);
  const std::string checkpoint = Folder(7);
  Write(checkpoint, table);
  ASSERT_EQ(WriteRanges(checkpoint, before.ranges()), absl::OkStatus());
  ASSERT_EQ(server::CommitCheckpoint(checkpoint, plan, Head(7, 3), kDense), absl::OkStatus());

  Table after(plan, 3, dense);
  ASSERT_EQ(Load(folder_, &after), absl::OkStatus());
  EXPECT_EQ(after.held_bytes(), before.held_bytes());

  const job::ResolvedJob shorter = CorePlan("kind: FIXED_DELAY delay: 1", 2, 2, "", "SERVERS");
  Table refused(shorter, 2, dense);
  EXPECT_THAT(std::string(Load(folder_, &refused).message()), HasSubstr("a delay of at least 2"));
  EXPECT_THAT(std::string(server::CheckpointReader::Open(folder_)->CheckDenseIsWhole().message()),
              HasSubstr("has 2 delayed steps of the dense parameters"));
}

// Servers write the blocks of dense parameters like any rows. A reader gets them in order, and a
// resumed run on any number of ranges has them again.
TEST_F(FixedDelayTest, DenseRowsOfServersAreJoined) {
  const job::ResolvedJob plan = CorePlan("kind: ASP", 2, 2, "", "SERVERS");
  const size_t dense = static_cast<size_t>(plan.dense_table);
  Table before(plan, 4, dense), table(plan, 2);
  for (int64_t step = 0; step < 3; ++step) before.Step(step, step, 9);
  const std::string checkpoint = Folder(7);
  ASSERT_EQ(MakeFolder(checkpoint), absl::OkStatus());
  ASSERT_EQ(WriteRanges(checkpoint, table.ranges()), absl::OkStatus());
  for (const server::Range* const range : before.ranges()) {
    const server::RangeImage image = ImageOf(*range);
    ASSERT_EQ(WriteFileAtomically(absl::StrCat(checkpoint, "/", server::RangeFileName(image)),
                                  server::EncodeRange(image)),
              absl::OkStatus());
  }
  ASSERT_EQ(server::CommitCheckpoint(checkpoint, plan, Head(7, 3), kDense), absl::OkStatus());
  const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(folder_);
  ASSERT_TRUE(saved.ok()) << saved.status();

  const absl::StatusOr<server::RangeImage> joined = saved->ReadDense(kDense);
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_THAT(joined->keys, ::testing::ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_EQ(joined->optimizer, "adam");
  const size_t dim = static_cast<size_t>(joined->dim);
  const std::map<uint64_t, std::vector<float>> rows = before.Rows();
  for (size_t i = 0; i < joined->keys.size(); ++i) {
    EXPECT_THAT(rows.at(joined->keys[i]),
                ::testing::ElementsAre(joined->weights[i * dim], joined->weights[i * dim + 1]));
  }
  EXPECT_EQ(joined->slots.size(), 9 * static_cast<size_t>(joined->slots_per_row));
  EXPECT_FALSE(saved->ReadDense({kDense[0]}).ok()) << "of another model";

  Table resumed(plan, 3, dense);
  ASSERT_EQ(saved->ResumeRanges(resumed.ranges(), buffers_), absl::OkStatus());
  EXPECT_EQ(resumed.Rows(), rows);
  Table loaded(plan, 3, dense);
  ASSERT_EQ(saved->LoadRanges(loaded.ranges(), {}, buffers_), absl::OkStatus());
  EXPECT_TRUE(loaded.Rows().empty()) << "a worker assigns them";
}

// Dense rows come from a worker, after the load: an open batch of them waits for the first that
// closes, and goes before it. Who applies each update by itself never closes one, and is refused.
TEST_F(FixedDelayTest, AnOpenBatchOfDenseUpdatesWaitsForTheRows) {
  const job::ResolvedJob plan = CorePlan("kind: K_BATCH_ASYNC batches: 3", 2, 2, "", "SERVERS");
  const size_t dense = static_cast<size_t>(plan.dense_table);
  Table before(plan, 2, dense), table(plan, 2);
  for (int64_t step = 0; step < 2; ++step) before.Step(step, step, 4);  // four: one is left over
  const std::string checkpoint = Folder(7);
  Write(checkpoint, table);
  ASSERT_EQ(WriteRanges(checkpoint, before.ranges()), absl::OkStatus());
  ASSERT_EQ(server::CommitCheckpoint(checkpoint, plan, Head(7, 2), kDense), absl::OkStatus());

  Table after(plan, 1, dense);
  ASSERT_EQ(Load(folder_, &after), absl::OkStatus());
  EXPECT_EQ(after.held_bytes(), before.held_bytes());
  after.Step(0, 5, 4);
  EXPECT_GT(after.held_bytes(), before.held_bytes());
  after.Step(1, 6, 4);
  // What came with the checkpoint, and the first three of four.
  EXPECT_EQ(after.stats().merged, 3u);
  EXPECT_EQ(after.held_bytes(), before.held_bytes()) << "the fourth";

  const job::ResolvedJob asp = CorePlan("kind: ASP", 2, 2, "", "SERVERS");
  Table refused(asp, 2, dense);
  EXPECT_THAT(std::string(Load(folder_, &refused).message()),
              HasSubstr("use policy K_BATCH_ASYNC, GBA or RENNALA"));
  EXPECT_FALSE(server::CheckpointReader::Open(folder_)->CheckDenseIsWhole().ok());
}

}  // namespace
}  // namespace tandem
