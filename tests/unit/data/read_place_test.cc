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
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

// A batch as text, or the error in its stead.
std::string Text(const absl::Status& status, const data::Batch& batch) {
  if (!status.ok()) return status.ToString();
  std::string text = absl::StrCat(batch.samples, " rows:");
  for (const float x : batch.labels) absl::StrAppend(&text, " ", x);
  for (const float x : batch.numbers) absl::StrAppend(&text, " ", x);
  for (const data::SparseInput& input : batch.sparse) {
    absl::StrAppend(&text, " | ");
    for (const uint64_t key : input.keys) absl::StrAppend(&text, " ", key);
    for (const uint32_t i : input.index) absl::StrAppend(&text, " ", i);
    for (const uint32_t i : input.offsets) absl::StrAppend(&text, " ", i);
    for (const float x : input.weights) absl::StrAppend(&text, " ", x);
  }
  return text;
}

struct Taken {
  std::string batch;  // empty: the epoch is over
  int64_t rows = 0;   // up to its end
  absl::optional<ReadPlace> place;
};

// The batches from here to the end of the epoch or to an error.
std::vector<Taken> TakeAll(data::BatchSource* source, int64_t rows) {
  std::vector<Taken> taken;
  data::Batch batch;
  for (;;) {
    const absl::Status status = source->Next(&batch);
    rows += status.ok() ? batch.samples : 0;
    taken.push_back({Text(status, batch), rows, source->Place()});
    if (!status.ok() || batch.samples == 0) return taken;
  }
}

void ExpectTheSame(const Taken& is, const Taken& expected) {
  EXPECT_EQ(is.batch, expected.batch);
  ASSERT_EQ(is.place.has_value(), expected.place.has_value());
  if (is.place.has_value()) {
    EXPECT_EQ(is.place->SerializeAsString(), expected.place->SerializeAsString());
  }
}

std::unique_ptr<data::BatchSource> Started(const job::ResolvedJob& plan, int rank) {
  auto source = data::NewTrainSource(plan, rank);
  EXPECT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE(!source.ok() || (*source)->StartEpoch(3).ok());
  return *std::move(source);
}

class AnyFiles {
 public:
  explicit AnyFiles(uint64_t seed) : random_(seed) {
    constexpr Data::Format kFormats[] = {Data::CRITEO, Data::LIBSVM, Data::DELIMITED};
    format_ = kFormats[random_.Uniform(3)];
    header_ = format_ == Data::DELIMITED && random_.Bernoulli(0.5);
    bad_ = random_.Bernoulli(0.5) ? 0.08 : 0;
    line_end_ = random_.Bernoulli(0.3) ? "\r\n" : "\n";
    std::vector<std::string> files;
    const size_t count = 1 + random_.Uniform(4);
    for (size_t i = 0; i < count; ++i) files.push_back(WriteFile(i));
    workers_ = 1 + static_cast<int>(random_.Uniform(4));
    plan_ = MakePlan(format_, files, workers_, 1 + static_cast<int>(random_.Uniform(6)));
    Describe(plan_.job.mutable_data());
  }

  const job::ResolvedJob& plan() const { return plan_; }
  int workers() const { return workers_; }
  Random& random() { return random_; }

 private:
  std::string WriteFile(size_t i) {
    std::string text = random_.Bernoulli(0.2) ? "\xef\xbb\xbf" : "";
    if (header_) absl::StrAppend(&text, "\"the\nlabel\",n,c", line_end_);
    const size_t rows = random_.Uniform(5) == 0 ? 1 : 1 + random_.Uniform(80);
    for (size_t row = 0; row < rows; ++row) {
      if (random_.Bernoulli(0.1)) absl::StrAppend(&text, line_end_);
      if (format_ == Data::LIBSVM && random_.Bernoulli(0.1)) {
        absl::StrAppend(&text, "# a comment", line_end_);
      }
      text += AnyRow();
      if (row + 1 < rows || random_.Bernoulli(0.7)) text += line_end_;
    }
    const std::string name = absl::StrCat("f", i);
    return random_.Uniform(8) == 0 ? dir_.WriteGzip(name + ".gz", text) : dir_.Write(name, text);
  }

  std::string AnyRow() {
    const bool bad = random_.Bernoulli(bad_);
    const uint64_t number = random_.Uniform(50);
    switch (format_) {
      case Data::CRITEO: {
        std::string row = bad ? "x" : absl::StrCat(number % 2);
        for (int i = 0; i < 13; ++i) absl::StrAppend(&row, "\t", i == 2 ? "" : "7");
        for (int i = 0; i < 26; ++i) absl::StrAppend(&row, "\t", i % 3 == 0 ? number + 1 : i);
        return row;
      }
      case Data::LIBSVM:  // the first of the labels that count as 0 makes the other one a bad row
        return absl::StrCat(bad ? "False" : number % 2 == 0 ? "0" : "1", " 3:0.5 ", number, ":1");
      default:
        return absl::StrCat(bad               ? "never"
                            : number % 2 == 0 ? "no"
                                              : "yes",
                            ",", number, ",",
                            random_.Bernoulli(0.2) ? "\"of\n\n\"\"two\"\" lines\"" : "plain");
    }
  }

  void Describe(Data* data) {
    data->set_deal(random_.Bernoulli(0.5) ? Data::BLOCKS : Data::ROWS);
    data->set_max_bad_rows(bad_ == 0 ? 0 : random_.Bernoulli(0.7) ? 1000 : 3);
    if (random_.Bernoulli(0.3)) data->mutable_validation()->set_fraction(0.4);
    if (random_.Bernoulli(0.3)) data->set_test_fraction(0.3);
    if (random_.Bernoulli(0.2)) data->set_max_rows(60);
    if (format_ != Data::DELIMITED) return;
    Columns* const columns = data->mutable_columns();
    columns->set_delimiter(",");
    columns->set_header(header_);
    columns->set_scale(Column::NONE);
    columns->add_positive("yes");
    columns->set_label(header_ ? "the\nlabel" : "0");
    columns->add_numeric(header_ ? "n" : "1");
    columns->add_categorical(header_ ? "c" : "2");
  }

  const TempDir dir_;
  Random random_;
  Data::Format format_ = Data::CRITEO;
  bool header_ = false;
  double bad_ = 0;  // share of bad rows
  std::string line_end_;
  int workers_ = 1;
  job::ResolvedJob plan_;
};

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
