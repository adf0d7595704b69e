// From a job's data section to batches: who owns which row, in which order rows come, how files are
// split, and what is refused before a run starts.
#include "data/batch_source.h"

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "data/cells.h"
#include "tests/unit/data_fixture.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Rows whose only number is their place in the file.
std::string NumberedRows(int begin, int end) {
  std::string text;
  for (int i = begin; i < end; ++i) absl::StrAppend(&text, i % 2, ",", i, ",c", i % 7, "\n");
  return text;
}

JobPlan NumberedPlan(const std::vector<std::string>& files, int workers, int batch) {
  JobPlan plan = MakePlan(Data::DELIMITED, files, workers, batch);
  Columns* columns = plan.job.mutable_data()->mutable_columns();
  columns->set_delimiter(",");
  columns->set_label("0");
  columns->add_numeric("1");
  columns->add_categorical("2");
  return plan;
}

std::vector<int> Numbers(const std::vector<Batch>& batches) {
  std::vector<int> numbers;
  for (const Batch& batch : batches) {
    for (const float x : batch.numbers) numbers.push_back(static_cast<int>(x));
  }
  return numbers;
}

std::vector<int> TrainNumbers(const JobPlan& plan, int rank, int64_t epoch) {
  auto source = NewTrainSource(plan, rank);
  EXPECT_TRUE(source.ok()) << source.status();
  return source.ok() ? Numbers(ReadEpoch(source->get(), epoch)) : std::vector<int>();
}

std::vector<int> TestNumbers(const JobPlan& plan, int rank) {
  auto source = NewTestSource(plan, rank);
  EXPECT_TRUE(source.ok()) << source.status();
  return source.ok() ? Numbers(ReadEpoch(source->get(), 0)) : std::vector<int>();
}

std::vector<int> Iota(int begin, int end, int step = 1) {
  std::vector<int> numbers;
  for (int i = begin; i < end; i += step) numbers.push_back(i);
  return numbers;
}

TEST(BatchSourceTest, RowsAreDealtInTurnOverAllFiles) {
  const TempDir dir;
  const std::vector<std::string> files = {dir.Write("a.csv", NumberedRows(0, 11)),
                                          dir.WriteGzip("b.csv.gz", NumberedRows(11, 23))};
  const JobPlan plan = NumberedPlan(files, 3, 4);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(TrainNumbers(plan, rank, 0), Iota(rank, 23, 3)) << "rank " << rank;
  }
  auto source = *NewTrainSource(plan, 0);
  const std::vector<Batch> batches = ReadEpoch(source.get(), 0);
  ASSERT_THAT(batches, SizeIs(2));  // 8 rows in batches of 4, then the end
  EXPECT_EQ(batches[0].samples, 4);
  Batch batch;
  ASSERT_TRUE(source->Next(&batch).ok());
  EXPECT_EQ(batch.samples, 0) << "the end stays the end";
  EXPECT_EQ(ReadEpoch(source.get(), 1).size(), 2u) << "and another epoch can start";
}

TEST(BatchSourceTest, ABatchHoldsLabelsAndHashedFields) {
  const TempDir dir;
  const JobPlan plan = NumberedPlan({dir.Write("a.csv", "1,5,x\n0,6,\n1,7,x\n")}, 1, 10);
  auto source = *NewTrainSource(plan, 0);
  const Batch batch = ReadEpoch(source.get(), 0).at(0);
  EXPECT_THAT(batch.labels, ElementsAre(1, 0, 1));
  EXPECT_EQ(batch.numeric, 1);
  ASSERT_THAT(batch.sparse, SizeIs(1));
  EXPECT_THAT(batch.sparse[0].keys, ElementsAre(FieldHash("2").Key("x"), FieldHash("2").missing()));
  EXPECT_THAT(batch.sparse[0].index, ElementsAre(0, 1, 0));
}

TEST(BatchSourceTest, ShufflingKeepsTheRowsAndChangesTheOrder) {
  const TempDir dir;
  JobPlan plan = NumberedPlan({dir.Write("a.csv", NumberedRows(0, 1000))}, 2, 32);
  for (const int64_t buffer : {10, 5000}) {
    plan.job.mutable_data()->set_shuffle_buffer(buffer);
    const std::vector<int> first = TrainNumbers(plan, 1, 0);
    EXPECT_EQ(TrainNumbers(plan, 1, 0), first) << "the same epoch, the same order";
    EXPECT_NE(TrainNumbers(plan, 1, 1), first) << "another epoch, another order";
    std::vector<int> sorted = first;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_NE(first, sorted);
    EXPECT_EQ(sorted, Iota(1, 1000, 2));
    plan.job.set_seed(2);
    EXPECT_NE(TrainNumbers(plan, 1, 0), first) << "another seed, another order";
    plan.job.set_seed(1);
    // A row can come no earlier than the buffer reaches ahead: the bound is one on memory too.
    for (size_t i = 0; i < first.size(); ++i) {
      ASSERT_LE(first[i] / 2, static_cast<int64_t>(i) + buffer - 1);
    }
  }
}

TEST(BatchSourceTest, TheLastRowsTestWhenThereAreNoTestFiles) {
  const TempDir dir;
  JobPlan plan = NumberedPlan(
      {dir.Write("a.csv", NumberedRows(0, 50)), dir.Write("b.csv", NumberedRows(50, 100))}, 2, 32);
  plan.job.mutable_data()->set_test_fraction(0.2);
  EXPECT_EQ(TrainNumbers(plan, 0, 0), Iota(0, 80, 2));
  EXPECT_EQ(TestNumbers(plan, 0), Iota(80, 100, 2));
  EXPECT_EQ(TestNumbers(plan, 1), Iota(81, 100, 2));
  plan.job.mutable_data()->set_max_rows(60);
  EXPECT_EQ(TrainNumbers(plan, 1, 0), Iota(1, 48, 2));
  EXPECT_EQ(TestNumbers(plan, 1), Iota(49, 60, 2));
  EXPECT_TRUE(CheckData(plan).ok()) << CheckData(plan);
}

TEST(BatchSourceTest, TestFilesAreReadWholeAndInOrder) {
  const TempDir dir;
  JobPlan plan = NumberedPlan({dir.Write("a.csv", NumberedRows(0, 50))}, 2, 8);
  EXPECT_THAT(TestNumbers(plan, 0), IsEmpty()) << "no test data named";
  plan.job.mutable_data()->add_test(dir.Write("t.csv", NumberedRows(100, 131)));
  plan.job.mutable_data()->set_shuffle_buffer(1000);
  plan.job.mutable_data()->set_max_rows(10);
  EXPECT_EQ(TrainNumbers(plan, 0, 0).size(), 5u);
  EXPECT_EQ(TestNumbers(plan, 0), Iota(100, 131, 2));
  EXPECT_EQ(TestNumbers(plan, 1), Iota(101, 131, 2));
}

TEST(BatchSourceTest, HeadersAreNotRows) {
  const TempDir dir;
  JobPlan plan = MakePlan(
      Data::DELIMITED,
      {dir.Write("a.csv", "y;n;c\n1;0;a\n0;1;b\n"), dir.Write("b.csv", "c;n;y\nb;2;1\n")}, 1, 8);
  Columns* columns = plan.job.mutable_data()->mutable_columns();
  columns->set_delimiter(";");
  columns->set_header(true);
  columns->set_label("y");
  columns->add_numeric("n");
  columns->add_categorical("c");
  EXPECT_EQ(TrainNumbers(plan, 0, 0), Iota(0, 3));
  const auto shape = FindDataShape(plan);
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->numeric, 1);
  EXPECT_THAT(shape->fields, ElementsAre("c"));
}

TEST(BatchSourceTest, LibsvmRowsAreBags) {
  const TempDir dir;
  const JobPlan plan = MakePlan(Data::LIBSVM, {dir.Write("a.svm", "1 5:2 9:1\n0\n1 9:3\n")}, 1, 8);
  ASSERT_TRUE(CheckData(plan).ok()) << CheckData(plan);
  auto source = *NewTrainSource(plan, 0);
  const Batch batch = ReadEpoch(source.get(), 0).at(0);
  EXPECT_EQ(batch.sparse[0].fields, 1);
  EXPECT_THAT(batch.sparse[0].keys, ElementsAre(5, 9));
  EXPECT_THAT(batch.sparse[0].offsets, ElementsAre(0, 2, 2, 3));
  EXPECT_THAT(batch.sparse[0].weights, ElementsAre(2, 1, 3));
}

TEST(BatchSourceTest, EstimatesAreNearTheCount) {
  const TempDir dir;
  const std::string text = NumberedRows(0, 200'000);
  for (const std::string& file : {dir.Write("a.csv", text), dir.WriteGzip("b.csv.gz", text)}) {
    auto source = *NewTrainSource(NumberedPlan({file, file}, 4, 32), 0);
    EXPECT_NEAR(source->EstimatedRows(), 100'000, 15'000) << file;
  }
  JobPlan plan = NumberedPlan({dir.Path("a.csv")}, 4, 32);
  plan.job.mutable_data()->set_test_fraction(0.25);
  EXPECT_EQ((*NewTrainSource(plan, 0))->EstimatedRows(), 37'500) << "counted, because it must";
  EXPECT_EQ((*NewTestSource(plan, 0))->EstimatedRows(), 12'500);
}

TEST(DataShapeTest, TablesGetTheFieldsTheyNameAndOneTakesTheRest) {
  const TempDir dir;
  std::string row = "0";
  for (int i = 0; i < 39; ++i) row += "\t1";
  JobPlan plan = MakePlan(Data::CRITEO, {dir.Write("a.tsv", row + "\n")}, 1, 8);
  TablePlan small;
  small.name = "small";
  small.id = 1;
  small.fields = {"C9", "C2"};
  plan.tables.push_back(small);
  auto shape = FindDataShape(plan);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->numeric, 13);
  EXPECT_THAT(shape->fields, SizeIs(26));
  EXPECT_THAT(shape->table_fields[0], SizeIs(24));
  EXPECT_THAT(shape->table_fields[1], ElementsAre("C9", "C2"));
  auto source = *NewTrainSource(plan, 0);
  const Batch batch = ReadEpoch(source.get(), 0).at(0);
  ASSERT_THAT(batch.sparse, SizeIs(2));
  EXPECT_EQ(batch.sparse[0].fields, 24);
  EXPECT_THAT(batch.sparse[1].keys,
              ElementsAre(FieldHash("C9").Key("1"), FieldHash("C2").Key("1")));
  // The table of dense blocks reads no field.
  TablePlan dense;
  dense.name = kDenseTableName;
  dense.id = 2;
  dense.dense = true;
  plan.tables.push_back(dense);
  plan.dense_table = 2;
  shape = FindDataShape(plan);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_THAT(shape->table_fields[2], IsEmpty());
}

TEST(DataShapeTest, TablesAndFieldsMustMatch) {
  const TempDir dir;
  JobPlan plan = NumberedPlan({dir.Write("a.csv", NumberedRows(0, 5))}, 1, 8);
  plan.tables.push_back(plan.tables[0]);
  plan.tables[1].name = "second";
  ExpectOneLine(FindDataShape(plan).status(), {"table 'second' has no field", "hint"});
  plan.tables[1].fields = {"town"};
  ExpectOneLine(FindDataShape(plan).status(), {"table 'second'", "'town'", "hint"});
  plan.tables.pop_back();
  plan.tables[0].fields = {"2"};
  plan.job.mutable_data()->mutable_columns()->add_categorical("0");
  ExpectOneLine(FindDataShape(plan).status(), {"no table reads field '0'", "hint"});
}

// Everything `run` must refuse before it starts anything: one line that names the file, the line if
// there is one, what was expected and a hint.
TEST(CheckDataTest, BadFilesAreRefusedInOneLine) {
  const TempDir dir;
  const std::string good = NumberedRows(0, 5);
  const auto check = [&](const std::string& text) {
    return CheckData(NumberedPlan({dir.Write("x.csv", text)}, 2, 8));
  };
  EXPECT_TRUE(check(good).ok()) << check(good);
  ExpectOneLine(check(""), {"x.csv: ", "empty", "hint"});
  ExpectOneLine(check("\n\n"), {"x.csv: ", "empty", "hint"});
  ExpectOneLine(check(good + "1,2\n"), {"x.csv:6: ", "2 columns", "expected 3", "hint"});
  ExpectOneLine(check(good + "\n1,many,c\n"), {"x.csv:7: ", "'many'", "expected a number", "hint"});
  ExpectOneLine(check(good + "2,1,c\n"), {"x.csv:6: ", "the label is '2'", "hint"});
  ExpectOneLine(check("1,1,c\n"), {"1 rows for 2 workers", "cluster.workers"});
  ExpectOneLine(CheckData(NumberedPlan({dir.Path("none.csv")}, 1, 8)),
                {"data.train", "none.csv", "No such file", "hint"});
  ExpectOneLine(CheckData(NumberedPlan({dir.Path("*.none")}, 1, 8)),
                {"data.train", "no file matches", "hint"});
  ExpectOneLine(CheckData(NumberedPlan({}, 1, 8)), {"data.train is not set"});
  JobPlan plan = NumberedPlan({dir.Write("x.csv", good)}, 2, 8);
  plan.job.mutable_data()->add_test(dir.Write("t.csv", "1,2\n"));
  ExpectOneLine(CheckData(plan), {"t.csv:1: ", "2 columns", "hint"});
}

TEST(CheckDataTest, HeaderOnlyAndContradictorySplitsAreRefused) {
  const TempDir dir;
  JobPlan plan = NumberedPlan({dir.Write("x.csv", "1,1,c\n0,2,c\n")}, 1, 8);
  for (const double fraction : {-0.1, 1.0, 1.5}) {
    plan.job.mutable_data()->set_test_fraction(fraction);
    ExpectOneLine(CheckData(plan), {"data.test_fraction"});
  }
  plan.job.mutable_data()->set_test_fraction(0.01);
  ExpectOneLine(CheckData(plan), {"data.test_fraction", "no test row", "hint"});
  plan.job.mutable_data()->set_test_fraction(0.99);
  ExpectOneLine(CheckData(plan), {"data.test_fraction", "no training row", "hint"});
  plan.job.mutable_data()->mutable_columns()->set_header(true);
  plan.job.mutable_data()->mutable_columns()->set_label("1");
  plan.job.mutable_data()->mutable_columns()->set_numeric(0, "c");
  plan.job.mutable_data()->mutable_columns()->set_categorical(0, "c");
  plan.job.mutable_data()->clear_train();
  plan.job.mutable_data()->add_train(dir.Write("h.csv", "1,1,c\n"));
  ExpectOneLine(CheckData(plan), {"h.csv: ", "no rows below its header", "hint"});
  plan.job.mutable_data()->set_format(Data::FORMAT_UNSPECIFIED);
  EXPECT_FALSE(CheckData(plan).ok());
}

// An error in the middle of an epoch comes out of Next with the same words.
TEST(BatchSourceTest, ErrorsDuringAnEpochNameTheLine) {
  const TempDir dir;
  const JobPlan plan = NumberedPlan({dir.Write("x.csv", NumberedRows(0, 5) + "1,x,c\n")}, 1, 4);
  auto source = *NewTrainSource(plan, 0);
  ASSERT_TRUE(source->StartEpoch(0).ok());
  Batch batch;
  ASSERT_TRUE(source->Next(&batch).ok());
  ExpectOneLine(source->Next(&batch), {"x.csv:6: ", "'x'", "expected a number"});
}

// The real file, if it is here: the shape that the reader was written for.
TEST(BatchSourceTest, RealCriteoRows) {
  const char* const data = std::getenv("TANDEM_DATA");
  if (data == nullptr) GTEST_SKIP() << "TANDEM_DATA is not set";
  JobPlan plan = MakePlan(Data::CRITEO, {"$TANDEM_DATA/criteo-kaggle/first8000.tsv"}, 2, 512);
  ASSERT_TRUE(CheckData(plan).ok()) << CheckData(plan);
  int64_t rows = 0, positives = 0;
  std::set<uint64_t> keys;
  for (int rank = 0; rank < 2; ++rank) {
    auto source = *NewTrainSource(plan, rank);
    for (const Batch& batch : ReadEpoch(source.get(), 0)) {
      rows += batch.samples;
      positives += std::count(batch.labels.begin(), batch.labels.end(), 1.0f);
      keys.insert(batch.sparse[0].keys.begin(), batch.sparse[0].keys.end());
      EXPECT_EQ(batch.numbers.size(), static_cast<size_t>(batch.samples) * 13);
      EXPECT_EQ(batch.sparse[0].index.size(), static_cast<size_t>(batch.samples) * 26);
    }
  }
  EXPECT_EQ(rows, 8000);
  EXPECT_NEAR(static_cast<double>(positives) / static_cast<double>(rows), 0.216, 0.0005);
  EXPECT_GT(keys.size(), 20'000u);
}

}  // namespace
}  // namespace tandem
