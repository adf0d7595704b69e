// Rows from a cache, and rows that several threads parse ahead: the batches, places and errors are
// those of one reader of the text. Caches that do not fit or are damaged are refused by name.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/owned_fd.h"
#include "base/random.h"
#include "data/batch_source.h"
#include "data/cache_rows.h"
#include "data/files.h"
#include "data/row_data.h"
#include "data/row_source.h"
#include "data/statistics.h"
#include "tests/test_seed.h"
#include "tests/unit/data/any_files.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;

// Makes the caches of a job as `tandem cache` does.
absl::Status MakeCaches(const Data& given, const std::string& folder, int zstd_level) {
  Data data = given;
  data.clear_cache();
  const absl::StatusOr<std::string> label = data::FirstNegative(data);
  if (!label.ok()) return label.status();
  if (!label->empty()) data.mutable_columns()->add_negative(*label);
  std::string negative;
  const std::vector<std::string> files = *data::FilesOfRows(data);
  for (const std::string& file : files) {
    const auto made = data::MakeCache(data, file, folder, zstd_level, negative);
    if (!made.ok()) return made.status();
    if (negative.empty()) negative = made->negative;
  }
  return absl::OkStatus();
}

using MakeSource = absl::StatusOr<std::unique_ptr<data::BatchSource>> (*)(const job::ResolvedJob&,
                                                                          int, data::SharedReader*);
constexpr MakeSource kMakers[] = {&data::NewTrainSource, &data::NewValidationSource,
                                  &data::NewTestSource};

// All batches of two epochs with their places, or the error of the source.
std::vector<Taken> ReadTwice(const job::ResolvedJob& plan, int rank, MakeSource make) {
  auto source = make(plan, rank, nullptr);
  if (!source.ok()) return {{source.status().ToString(), 0, absl::nullopt}};
  std::vector<Taken> all;
  for (const int epoch : {0, 1}) {
    EXPECT_TRUE((*source)->StartEpoch(epoch).ok());
    for (Taken& taken : TakeAll(source->get(), 0)) all.push_back(std::move(taken));
  }
  return all;
}

void ExpectSameRows(const job::ResolvedJob& is, const job::ResolvedJob& expected) {
  for (int rank = 0; rank < expected.workers(); ++rank) {
    for (const MakeSource make : kMakers) {
      const std::vector<Taken> a = ReadTwice(is, rank, make), b = ReadTwice(expected, rank, make);
      ASSERT_EQ(a.size(), b.size()) << a.back().batch << "\n" << b.back().batch;
      for (size_t i = 0; i < a.size(); ++i) ExpectTheSame(a[i], b[i]);
    }
  }
}

// Continues on the rows of `to` at a place in the rows of `from`.
void ExpectResumes(Random* random, const job::ResolvedJob& from, const job::ResolvedJob& to,
                   int* resumed) {
  const int rank = static_cast<int>(random->Uniform(static_cast<uint64_t>(from.workers())));
  const std::vector<Taken> whole = TakeAll(Started(from, rank).get(), 0);
  const size_t at = random->Uniform(whole.size());
  if (at + 1 == whole.size() || !whole[at].place.has_value()) return;
  auto source = Started(to, rank);
  const absl::StatusOr<int64_t> moved = source->ContinueAt(*whole[at].place);
  ASSERT_TRUE(moved.ok()) << moved.status();
  ASSERT_EQ(*moved, whole[at].rows);
  const std::vector<Taken> rest = TakeAll(source.get(), *moved);
  ASSERT_EQ(rest.size(), whole.size() - at - 1);
  for (size_t i = 0; i < rest.size(); ++i) ExpectTheSame(rest[i], whole[at + 1 + i]);
  ++*resumed;
}

struct Counts {
  int same = 0, refused = 0, resumed = 0;
};

void CompareWays(AnyFiles* files, Counts* counts) {
  job::ResolvedJob text = files->plan();
  text.job.mutable_data()->set_shuffle_buffer(files->random().Bernoulli(0.3) ? 7 : 0);
  if (!data::FillFromData("", &text).ok()) return;  // a split that leaves no row
  job::ResolvedJob readers = text, cached = text, both = text;
  readers.job.mutable_data()->set_readers(2 + static_cast<int>(files->random().Uniform(3)));
  ExpectSameRows(readers, text);
  const std::string folder = files->dir().Path("cache");
  std::filesystem::create_directory(folder);
  const int level = files->random().Bernoulli(0.5) ? 0 : 1;
  const absl::Status made = MakeCaches(text.job.data(), folder, level);
  if (!made.ok()) {
    EXPECT_EQ(text.job.data().format(), Data::LIBSVM);
    ExpectOneLine(made, {"such a row cannot be cached", "which label counts as 0"});
    ++counts->refused;
    return;
  }
  cached.job.mutable_data()->set_cache(folder);
  both.job.mutable_data()->set_cache(folder);
  both.job.mutable_data()->set_readers(2);
  ExpectSameRows(cached, text);
  ExpectSameRows(both, text);
  ExpectResumes(&files->random(), text, cached, &counts->resumed);
  ExpectResumes(&files->random(), cached, text, &counts->resumed);
  ExpectResumes(&files->random(), readers, both, &counts->resumed);
  // Measures that are taken before the job starts are the same, too.
  job::ResolvedJob filled = cached, expected = text;
  for (job::ResolvedJob* plan : {&filled, &expected}) {
    data::ClearMeasured(plan->job.mutable_data());
    plan->job.mutable_data()->mutable_columns()->clear_negative();
    ASSERT_TRUE(data::FillFromData("", plan).ok());
  }
  filled.job.mutable_data()->clear_cache();
  EXPECT_EQ(filled.job.SerializeAsString(), expected.job.SerializeAsString());
  ++counts->same;
}

TEST(CacheTest, CachedRowsAndRowsOfSeveralReadersAreThoseOfTheText) {
  Counts counts;
  for (uint64_t i = 0; i < 60 && !HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("files ", i, ", --seed=", TestSeed()));
    AnyFiles files(HashCombine(TestSeed(), i));
    CompareWays(&files, &counts);
  }
  EXPECT_GT(counts.same, 20);
  EXPECT_GT(counts.refused, 0);
  EXPECT_GT(counts.resumed, 20);
}

// Files of several blocks, which are longer than what readers have in flight.
TEST(CacheTest, LongFilesHaveTheSameRowsToo) {
  Counts counts;
  for (uint64_t i = 0; i < 3 && !HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("files ", i, ", --seed=", TestSeed()));
    AnyFiles files(HashCombine(TestSeed(), 1000 + i), /*max_rows=*/8'000);
    CompareWays(&files, &counts);
  }
  EXPECT_GT(counts.same, 0);
}

// ---- refusals ---------------------------------------------------------------------------------

std::string NumberedRows(int rows) {
  std::string text;
  for (int i = 0; i < rows; ++i) absl::StrAppend(&text, i % 2, ",", i, ",c\n");
  return text;
}

// A file of rows with its cache, and a job that reads them.
class CacheRefusalTest : public ::testing::Test {
 protected:
  CacheRefusalTest()
      : text_(dir_.Write("x.csv", NumberedRows(40))),
        path_(data::CachePath(dir_.Path("."), text_)),
        plan_(NumberedPlan({text_}, 1, 8)) {
    plan_.job.mutable_data()->set_cache(dir_.Path("."));
  }

  absl::Status Make(int level = 0) { return MakeCaches(data(), dir_.Path("."), level); }
  Data& data() { return *plan_.job.mutable_data(); }
  // Reads all rows.
  absl::Status Read() {
    auto source = data::NewTrainSource(plan_, 0);
    if (!source.ok()) return source.status();
    if (absl::Status begun = (*source)->StartEpoch(0); !begun.ok()) return begun;
    data::Batch batch;
    for (;;) {
      const absl::Status status = (*source)->Next(&batch);
      if (!status.ok() || batch.samples == 0) return status;
    }
  }
  void ExpectRefused(const std::vector<std::string>& parts) {
    ExpectOneLine(Read(), parts);
    ExpectOneLine(data::CheckData(plan_), parts);
  }

  const TempDir dir_;
  const std::string text_, path_;
  job::ResolvedJob plan_;
};

TEST_F(CacheRefusalTest, ACacheThatIsMissing) {
  ExpectRefused({"x.csv: has no cache in data.cache, expected ", path_, "hint: tandem cache JOB"});
  ASSERT_TRUE(Make().ok());
  EXPECT_TRUE(Read().ok()) << Read();
  EXPECT_TRUE(data::CheckData(plan_).ok()) << data::CheckData(plan_);
  setenv("TANDEM_CACHE_TEST", dir_.Path("").c_str(), 1);
  data().set_cache("$TANDEM_CACHE_TEST/.");
  EXPECT_TRUE(Read().ok()) << Read();
  unsetenv("TANDEM_CACHE_TEST");
  ExpectOneLine(Read(), {"data.cache: ", "$TANDEM_CACHE_TEST", "not set"});
  data().set_cache(dir_.Path("."));
  std::filesystem::remove(path_);
  data().set_score_only(true);  // scores are of the text
  data().add_test(text_);
  EXPECT_TRUE(data::CheckData(plan_).ok()) << data::CheckData(plan_);
}

TEST_F(CacheRefusalTest, AFileThatHasChangedSince) {
  ASSERT_TRUE(Make().ok());
  const timespec other[] = {{1'700'000'000, 0}, {1'700'000'000, 5}};
  ASSERT_EQ(utimensat(AT_FDCWD, text_.c_str(), other, 0), 0);
  EXPECT_TRUE(Read().ok()) << "only its time is another one: " << Read();
  dir_.Write("x.csv", NumberedRows(41));
  ExpectRefused({"x.csv: has changed since ", path_, " was made", "hint: tandem cache JOB"});
  std::string same_size = NumberedRows(40);
  same_size[0] = '1';
  dir_.Write("x.csv", same_size);
  ExpectRefused({"x.csv: has changed since ", path_, "hint: tandem cache JOB"});
  ASSERT_TRUE(Make().ok());
  EXPECT_TRUE(Read().ok()) << Read();
  std::filesystem::remove(text_);
  ExpectOneLine(Read(), {"x.csv"});
}

TEST_F(CacheRefusalTest, ACacheOfOtherColumns) {
  ASSERT_TRUE(Make().ok());
  const Data before = data();
  const auto refused = [&](const std::string& field) {
    ExpectRefused({path_, absl::StrCat("was made for another data.", field), "tandem cache JOB"});
    data() = before;
  };
  data().mutable_columns()->set_categorical(0, "1");
  refused("columns.categorical");
  data().mutable_columns()->add_missing("c");
  refused("columns.missing");
  data().mutable_columns()->clear_scale();
  refused("columns.scale");
  data().mutable_columns()->add_column()->set_name("2");
  refused("columns.column");
  data().set_format(Data::CRITEO);
  ExpectOneLine(Read(), {path_, "was made for another data.format"});
  data() = before;
  data().mutable_columns()->set_statistics_rows(7);  // not about single rows
  data().set_max_bad_rows(3);
  EXPECT_TRUE(Read().ok()) << Read();
}

// The first label that is none of `positive` counts as 0.
TEST_F(CacheRefusalTest, ACacheWithAnotherLabelAsZero) {
  data().mutable_columns()->add_positive("1");
  ASSERT_TRUE(Make().ok());
  ASSERT_TRUE(data::FillFromData("", &plan_).ok());
  EXPECT_THAT(data().columns().negative(), ::testing::ElementsAre("0"));
  EXPECT_TRUE(Read().ok()) << Read();
  data().mutable_columns()->set_negative(0, "no");
  ExpectOneLine(Read(), {path_, "was made for another data.columns.negative"});
}

// Bytes are written in place: a file system may flush a file that is written anew.
TEST_F(CacheRefusalTest, AnyByteThatIsDamagedOrCutOff) {
  for (const int level : {0, 3}) {
    ASSERT_TRUE(Make(level).ok());
    const std::string good = ReadAll(path_);
    const auto size = static_cast<off_t>(good.size());
    const OwnedFd file(open(path_.c_str(), O_WRONLY | O_CLOEXEC));
    for (off_t i = 0; i < size && !HasFailure(); ++i) {
      SCOPED_TRACE(absl::StrCat("byte ", i));
      const char byte = good[static_cast<size_t>(i)], bad = static_cast<char>(byte ^ (1 << i % 8));
      ASSERT_EQ(pwrite(file.get(), &bad, 1, i), 1);
      ExpectOneLine(Read(), {path_, "hint: tandem cache JOB"});
      ASSERT_EQ(pwrite(file.get(), &byte, 1, i), 1);
    }
    EXPECT_TRUE(Read().ok()) << Read();
    ASSERT_EQ(pwrite(file.get(), "x", 1, 20), 1);
    ExpectOneLine(Read(), {absl::StrCat(path_, ": block 0 is damaged")});
    ASSERT_EQ(pwrite(file.get(), good.data(), good.size(), 0), size);
    ASSERT_EQ(pwrite(file.get(), "x", 1, size), 1);
    ExpectOneLine(Read(), {path_, "hint: tandem cache JOB"});
    for (off_t i = size; i-- > 0 && !HasFailure();) {
      SCOPED_TRACE(absl::StrCat(i, " bytes"));
      ASSERT_EQ(ftruncate(file.get(), i), 0);
      ExpectOneLine(Read(), {path_, "hint: tandem cache JOB"});
    }
    EXPECT_TRUE(Make(level).ok()) << "a damaged cache is replaced";
    EXPECT_TRUE(Read().ok()) << Read();
  }
}

TEST_F(CacheRefusalTest, AValidCacheStays) {
  Data data = this->data();
  EXPECT_FALSE(data::MakeCache(data, text_, dir_.Path("."), 0, "")->was_there);
  const data::FileStamp stamp = data::StampOf(path_);
  const auto again = data::MakeCache(data, text_, dir_.Path("."), 0, "");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->was_there);
  EXPECT_EQ(again->rows, 40);
  EXPECT_EQ(again->bytes, static_cast<int64_t>(ReadAll(path_).size()));
  EXPECT_EQ(data::StampOf(path_), stamp);
  EXPECT_FALSE(data::MakeCache(data, text_, dir_.Path("."), 1, "")->was_there) << "now packed";
  EXPECT_LT(ReadAll(path_).size(), static_cast<size_t>(again->bytes));
}

// A cache is made whole or not at all.
TEST_F(CacheRefusalTest, AFileThatCannotBeRead) {
  std::string text = NumberedRows(40);
  text[100] = '\0';
  dir_.Write("x.csv", text);
  ExpectOneLine(Make(), {"x.csv:", "NUL byte"});
  for (const auto& entry : std::filesystem::directory_iterator(dir_.Path("."))) {
    EXPECT_EQ(entry.path().filename(), "x.csv");
  }
}

}  // namespace
}  // namespace tandem
