// Where a resumed run continues in its files: the rows after a place are those of a reader that was
// never disturbed, and the rows before it are not read again.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "data/batch_source.h"
#include "data/row_source.h"
#include "data/shared_reader.h"
#include "tests/test_seed.h"
#include "tests/unit/data/any_files.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

// Resumes at a random place that the reader had named up to a random batch, as a worker does: it
// continues at the place and reads what lies between.
void ResumeSomewhere(AnyFiles* files, int rank, const std::vector<Taken>& whole, int* resumed) {
  const size_t batch = files->random().Uniform(whole.size());
  size_t at = batch;
  while (at > 0 && !whole[at].place.has_value()) --at;
  if (!whole[at].place.has_value()) return;
  ++*resumed;
  auto source = Started(files->plan(), rank);
  const absl::StatusOr<int64_t> moved = source->ContinueAt(*whole[at].place);
  ASSERT_TRUE(moved.ok()) << moved.status();
  ASSERT_EQ(*moved, whole[at].rows);
  const int64_t between = whole[batch].rows - *moved;
  const absl::StatusOr<int64_t> skipped = source->Skip(between);
  if (!skipped.ok()) {  // the error that the undisturbed reader had met
    EXPECT_EQ(skipped.status().ToString(), whole.back().batch);
    return;
  }
  EXPECT_EQ(*skipped, between);
  if (batch + 1 == whole.size()) return;
  const std::vector<Taken> rest = TakeAll(source.get(), whole[batch].rows);
  ASSERT_EQ(rest.size(), whole.size() - batch - 1);
  for (size_t i = 0; i < rest.size(); ++i) ExpectTheSame(rest[i], whole[batch + 1 + i]);
}

TEST(ReadPlaceTest, TheRowsAfterAPlaceAreThoseOfAnUndisturbedReader) {
  int resumed = 0;
  for (uint64_t i = 0; i < 300 && !HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("files ", i, ", --seed=", TestSeed()));
    AnyFiles files(HashCombine(TestSeed(), i));
    for (int rank = 0; rank < files.workers(); ++rank) {
      auto source = data::NewTrainSource(files.plan(), rank);
      if (!source.ok()) break;  // a split that leaves no row, or more bad rows than allowed
      if (!(*source)->StartEpoch(3).ok()) break;
      const std::vector<Taken> whole = TakeAll(source->get(), 0);
      for (int n = 0; n < 4; ++n) ResumeSomewhere(&files, rank, whole, &resumed);
    }
  }
  EXPECT_GT(resumed, 1000);
}

job::ResolvedJob RowsPlan(const std::string& file) {
  job::ResolvedJob plan = NumberedPlan({file}, /*workers=*/2, /*batch=*/4);
  plan.job.mutable_data()->set_deal(Data::ROWS);
  return plan;
}

std::string NumberedRows(int rows) {
  std::string text;
  for (int i = 0; i < rows; ++i) absl::StrAppend(&text, i % 2, ",", i, ",c\n");
  return text;
}

// The reader would refuse the bytes between the start of the file, where the number of rows is
// estimated, and the place.
TEST(ReadPlaceTest, TheRowsBeforeAPlaceAreNotRead) {
  const TempDir dir;
  std::string text = NumberedRows(700'000);
  const std::string file = dir.Write("x.csv", text);
  const job::ResolvedJob plan = RowsPlan(file);
  auto source = Started(plan, 1);
  const int64_t rows = 4 * 85'000;
  ASSERT_EQ(*source->Skip(rows - 4), rows - 4);
  data::Batch batch;
  ASSERT_TRUE(source->Next(&batch).ok());
  const ReadPlace place = source->Place().value_or(ReadPlace());
  EXPECT_EQ(place.rows(), rows);
  EXPECT_EQ(place.row(), 2 * rows - 1);
  EXPECT_EQ(place.line(), 2 * rows);
  const auto untouched = static_cast<size_t>(5) << 20;
  ASSERT_GT(place.offset(), static_cast<int64_t>(untouched) + 1'000'000);
  const std::vector<Taken> expected = TakeAll(source.get(), rows);

  std::fill(text.begin() + untouched, text.begin() + place.offset(), '\0');
  dir.Write("x.csv", text);
  source = Started(plan, 1);
  EXPECT_FALSE(source->Skip(rows).ok()) << "the bytes would be refused";
  source = Started(plan, 1);
  ASSERT_EQ(*source->ContinueAt(place), rows);
  const std::vector<Taken> rest = TakeAll(source.get(), rows);
  ASSERT_EQ(rest.size(), expected.size());
  for (size_t i = 0; i < rest.size(); ++i) ExpectTheSame(rest[i], expected[i]);
}

TEST(ReadPlaceTest, APlaceThatDoesNotFitIsRefused) {
  const TempDir dir;
  const std::string text = NumberedRows(100);
  const job::ResolvedJob plan = RowsPlan(dir.Write("x.csv", text));
  auto source = Started(plan, 0);
  data::Batch batch;
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(source->Next(&batch).ok());
  const ReadPlace good = source->Place().value_or(ReadPlace());
  ASSERT_EQ(good.rows(), 20);
  const auto refused = [&](absl::StatusCode code, const std::vector<std::string>& parts,
                           const ReadPlace& place) {
    const absl::Status status = Started(plan, 0)->ContinueAt(place).status();
    EXPECT_EQ(status.code(), code) << status;
    ExpectOneLine(status, parts);
  };
  for (const int64_t off : {-9, -8, -2, -1, 1, 2, 7, 8, 1000}) {
    ReadPlace place = good;
    place.set_offset(good.offset() + off);
    refused(absl::StatusCode::kFailedPrecondition, {"x.csv:39: expected at byte", "hint"}, place);
  }
  for (const int row : {-1, 37, 39}) {  // rows of nobody, and of the other worker
    ReadPlace place = good;
    place.set_row(row);
    refused(absl::StatusCode::kDataLoss, {"the place of a worker", "hint"}, place);
  }
  for (const int file : {-1, 1}) {
    ReadPlace place = good;
    place.set_file(file);
    refused(absl::StatusCode::kDataLoss, {"the place of a worker", "hint"}, place);
  }
  std::string changed = text;
  changed[static_cast<size_t>(good.offset())] ^= 1;  // the other label
  dir.Write("x.csv", changed);
  refused(absl::StatusCode::kFailedPrecondition, {"x.csv:39: ", "another one"}, good);
  dir.Write("x.csv", text.substr(0, static_cast<size_t>(good.offset())));
  refused(absl::StatusCode::kFailedPrecondition, {"x.csv:39: ", "and the file has none"}, good);
}

// In a block that belongs to another worker.
TEST(ReadPlaceTest, APlaceInTheBlockOfAnotherWorkerIsRefused) {
  const TempDir dir;
  job::ResolvedJob plan = RowsPlan(dir.Write("x.csv", NumberedRows(100)));
  plan.job.mutable_data()->set_deal(Data::BLOCKS);
  data::Batch batch;
  for (const int rank : {0, 1}) {
    auto source = Started(plan, rank);
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(source->Next(&batch).ok());
    const ReadPlace place = source->Place().value_or(ReadPlace());
    EXPECT_EQ(place.rows(), 20);
    EXPECT_EQ(place.line(), rank == 0 ? 20 : 0) << "not known in the middle of a file";
    EXPECT_EQ(*Started(plan, rank)->ContinueAt(place), 20);
    const absl::Status status = Started(plan, 1 - rank)->ContinueAt(place).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    ExpectOneLine(status, {"the place of a worker", "hint"});
  }
}

// A reader without places, and a reader that cannot use one, says so: all is read again.
TEST(ReadPlaceTest, ReadersThatCannotGoToAPlaceSaySo) {
  const TempDir dir;
  const std::string file = dir.Write("x.csv", NumberedRows(100));
  const job::ResolvedJob plain = RowsPlan(file);
  data::Batch batch;
  auto source = Started(plain, 0);
  EXPECT_FALSE(source->Place().has_value()) << "nothing is read yet";
  ASSERT_TRUE(source->Next(&batch).ok());
  const ReadPlace place = source->Place().value_or(ReadPlace());
  EXPECT_EQ(place.rows(), 4);

  job::ResolvedJob shuffled = plain;
  shuffled.job.mutable_data()->set_shuffle_buffer(10);
  const job::ResolvedJob packed = RowsPlan(dir.WriteGzip("x.csv.gz", NumberedRows(100)));
  const job::ResolvedJob packed2 = RowsPlan(dir.WriteZstd("x.csv.zst", NumberedRows(100)));
  for (const job::ResolvedJob& plan : {shuffled, packed, packed2}) {
    source = Started(plan, 0);
    ASSERT_TRUE(source->Next(&batch).ok());
    EXPECT_FALSE(source->Place().has_value());
  }
  EXPECT_EQ(*Started(shuffled, 0)->ContinueAt(place), 0);

  data::SharedReader shared;
  auto dealt = *data::NewTrainSource(plain, 0, &shared);
  ASSERT_TRUE(dealt->StartEpoch(0).ok());
  EXPECT_EQ(*dealt->ContinueAt(place), 0);
  ASSERT_TRUE(dealt->Next(&batch).ok());
  EXPECT_FALSE(dealt->Place().has_value());
}

}  // namespace
}  // namespace tandem
