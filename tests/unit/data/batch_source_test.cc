// From a job's data section to batches: who owns which row, in which order rows come, how files are
// split, and what is refused before a run starts.
#include "data/batch_source.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "data/cells.h"
#include "data/chosen_columns.h"
#include "data/files.h"
#include "data/id_check.h"
#include "data/shared_reader.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Rows whose only number is their place in the file.
std::string NumberedRows(int begin, int end) {
  std::string text;
  for (int i = begin; i < end; ++i) absl::StrAppend(&text, i % 2, ",", i, ",c", i % 7, "\n");
  return text;
}

std::vector<int> Numbers(const std::vector<data::Batch>& batches) {
  std::vector<int> numbers;
  for (const data::Batch& batch : batches) {
    for (const float x : batch.numbers) numbers.push_back(static_cast<int>(x));
  }
  return numbers;
}

std::vector<int> TrainNumbers(const job::ResolvedJob& plan, int rank, int64_t epoch) {
  auto source = data::NewTrainSource(plan, rank);
  EXPECT_TRUE(source.ok()) << source.status();
  return source.ok() ? Numbers(ReadEpoch(source->get(), epoch)) : std::vector<int>();
}

std::vector<int> TestNumbers(const job::ResolvedJob& plan, int rank) {
  auto source = data::NewTestSource(plan, rank);
  EXPECT_TRUE(source.ok()) << source.status();
  return source.ok() ? Numbers(ReadEpoch(source->get(), 0)) : std::vector<int>();
}

std::vector<int> ValidationNumbers(const job::ResolvedJob& plan, int rank) {
  auto source = data::NewValidationSource(plan, rank);
  EXPECT_TRUE(source.ok()) << source.status();
  return source.ok() ? Numbers(ReadEpoch(source->get(), 0)) : std::vector<int>();
}

data::DataReport ReportOf(const job::ResolvedJob& plan) {
  data::DataReport report;
  const absl::Status status = data::CheckData(plan, &report);
  EXPECT_TRUE(status.ok()) << status;
  return report;
}

void ExpectWarning(const job::ResolvedJob& plan, const std::vector<std::string>& parts) {
  const data::DataReport report = ReportOf(plan);
  ASSERT_THAT(report.warnings, SizeIs(1));
  EXPECT_EQ(report.warnings[0].find('\n'), std::string::npos);
  for (const std::string& part : parts) EXPECT_THAT(report.warnings[0], HasSubstr(part));
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
  const job::ResolvedJob plan = NumberedPlan(files, 3, 4);
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_EQ(TrainNumbers(plan, rank, 0), Iota(rank, 23, 3)) << "rank " << rank;
  }
  auto source = *data::NewTrainSource(plan, 0);
  const std::vector<data::Batch> batches = ReadEpoch(source.get(), 0);
  ASSERT_THAT(batches, SizeIs(2));  // 8 rows in batches of 4, then the end
  EXPECT_EQ(batches[0].samples, 4);
  data::Batch batch;
  ASSERT_TRUE(source->Next(&batch).ok());
  EXPECT_EQ(batch.samples, 0) << "the end stays the end";
  EXPECT_EQ(ReadEpoch(source.get(), 1).size(), 2u) << "and another epoch can start";
}

TEST(BatchSourceTest, ABatchHoldsLabelsAndHashedFields) {
  const TempDir dir;
  const job::ResolvedJob plan = NumberedPlan({dir.Write("a.csv", "1,5,x\n0,6,\n1,7,x\n")}, 1, 10);
  auto source = *data::NewTrainSource(plan, 0);
  const data::Batch batch = ReadEpoch(source.get(), 0).at(0);
  EXPECT_THAT(batch.labels, ElementsAre(1, 0, 1));
  EXPECT_EQ(batch.numeric, 1);
  ASSERT_THAT(batch.sparse, SizeIs(1));
  EXPECT_THAT(batch.sparse[0].keys,
              ElementsAre(data::FieldHash("2").Key("x"), data::FieldHash("2").missing()));
  EXPECT_THAT(batch.sparse[0].index, ElementsAre(0, 1, 0));
}

TEST(BatchSourceTest, ShufflingKeepsTheRowsAndChangesTheOrder) {
  const TempDir dir;
  job::ResolvedJob plan = NumberedPlan({dir.Write("a.csv", NumberedRows(0, 1000))}, 2, 32);
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
  job::ResolvedJob plan = NumberedPlan(
      {dir.Write("a.csv", NumberedRows(0, 50)), dir.Write("b.csv", NumberedRows(50, 100))}, 2, 32);
  plan.job.mutable_data()->set_test_fraction(0.2);
  EXPECT_EQ(TrainNumbers(plan, 0, 0), Iota(0, 80, 2));
  EXPECT_EQ(TestNumbers(plan, 0), Iota(80, 100, 2));
  EXPECT_EQ(TestNumbers(plan, 1), Iota(81, 100, 2));
  plan.job.mutable_data()->set_max_rows(60);
  EXPECT_EQ(TrainNumbers(plan, 1, 0), Iota(1, 48, 2));
  EXPECT_EQ(TestNumbers(plan, 1), Iota(49, 60, 2));
  EXPECT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
}

TEST(BatchSourceTest, TestFilesAreReadWholeAndInOrder) {
  const TempDir dir;
  job::ResolvedJob plan = NumberedPlan({dir.Write("a.csv", NumberedRows(0, 50))}, 2, 8);
  EXPECT_THAT(TestNumbers(plan, 0), IsEmpty()) << "no test data named";
  plan.job.mutable_data()->add_test(dir.Write("t.csv", NumberedRows(100, 131)));
  plan.job.mutable_data()->set_shuffle_buffer(1000);
  plan.job.mutable_data()->set_max_rows(10);
  EXPECT_EQ(TrainNumbers(plan, 0, 0).size(), 5u);
  EXPECT_EQ(TestNumbers(plan, 0), Iota(100, 131, 2));
  EXPECT_EQ(TestNumbers(plan, 1), Iota(101, 131, 2));
}

// Each row trains or validates, whatever the number of workers; which one it is follows from the
// seed.
TEST(BatchSourceTest, AFractionOfTheRowsValidatesByChance) {
  const TempDir dir;
  const std::vector<std::string> files = {dir.Write("a.csv", NumberedRows(0, 600)),
                                          dir.Write("b.csv", NumberedRows(600, 1000))};
  const auto split = [&files](uint64_t seed, int workers) {
    job::ResolvedJob plan = NumberedPlan(files, workers, 32);
    plan.job.set_seed(seed);
    plan.job.mutable_data()->mutable_validation()->set_fraction(0.2);
    plan.job.mutable_data()->set_test_fraction(0.1);
    EXPECT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
    std::pair<std::vector<int>, std::vector<int>> rows;
    for (int rank = 0; rank < workers; ++rank) {
      for (const int row : TrainNumbers(plan, rank, 0)) rows.first.push_back(row);
      for (const int row : ValidationNumbers(plan, rank)) rows.second.push_back(row);
    }
    std::sort(rows.first.begin(), rows.first.end());
    std::sort(rows.second.begin(), rows.second.end());
    EXPECT_EQ(TestNumbers(plan, 0), Iota(900, 1000, workers));
    return rows;
  };
  const auto rows = split(1, 1);
  EXPECT_NEAR(rows.second.size(), 180, 40);
  std::vector<int> all = rows.first;
  all.insert(all.end(), rows.second.begin(), rows.second.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, Iota(0, 900));
  EXPECT_EQ(split(1, 3), rows);
  EXPECT_NE(split(2, 1), rows);
}

TEST(BatchSourceTest, TheLastTrainingRowsValidate) {
  const TempDir dir;
  job::ResolvedJob plan = NumberedPlan({dir.Write("a.csv", NumberedRows(0, 100))}, 2, 32);
  EXPECT_THAT(ValidationNumbers(plan, 0), IsEmpty());
  EXPECT_FALSE(data::HasValidationRows(plan.job.data()));
  plan.job.mutable_data()->mutable_validation()->set_last_fraction(0.25);
  EXPECT_TRUE(data::HasValidationRows(plan.job.data()));
  EXPECT_EQ(TrainNumbers(plan, 0, 0), Iota(0, 75, 2));
  EXPECT_EQ(ValidationNumbers(plan, 1), Iota(76, 100, 2));
  plan.job.mutable_data()->set_test_fraction(0.2);
  EXPECT_EQ(TrainNumbers(plan, 0, 0), Iota(0, 60, 2));
  EXPECT_EQ(ValidationNumbers(plan, 0), Iota(60, 80, 2));
  EXPECT_EQ(TestNumbers(plan, 0), Iota(80, 100, 2));
  plan.job.mutable_data()->mutable_validation()->set_last_fraction(0.001);
  ExpectOneLine(data::CheckData(plan),
                {"data.validation.last_fraction", "no validation row", "hint"});
}

TEST(BatchSourceTest, ValidationFilesAreReadWholeAndInOrder) {
  const TempDir dir;
  job::ResolvedJob plan = NumberedPlan({dir.Write("a.csv", NumberedRows(0, 50))}, 2, 8);
  plan.job.mutable_data()->mutable_validation()->add_files(
      dir.Write("v.csv", NumberedRows(200, 231)));
  EXPECT_EQ(TrainNumbers(plan, 0, 0), Iota(0, 50, 2));
  EXPECT_EQ(ValidationNumbers(plan, 1), Iota(201, 231, 2));
  plan.job.mutable_data()->mutable_validation()->add_files(dir.Write("w.csv", "1,x,c\n"));
  ExpectOneLine(data::CheckData(plan), {"w.csv:1: ", "'x'", "expected a number"});
}

TEST(BatchSourceTest, HeadersAreNotRows) {
  const TempDir dir;
  job::ResolvedJob plan = MakePlan(
      Data::DELIMITED,
      {dir.Write("a.csv", "y;n;c\n1;0;a\n0;1;b\n"), dir.Write("b.csv", "c;n;y\nb;2;1\n")}, 1, 8);
  Columns* columns = plan.job.mutable_data()->mutable_columns();
  columns->set_delimiter(";");
  columns->set_header(true);
  columns->set_label("y");
  columns->add_numeric("n");
  columns->add_categorical("c");
  columns->set_scale(Column::NONE);
  EXPECT_EQ(TrainNumbers(plan, 0, 0), Iota(0, 3));
  const auto shape = data::FindDataShape(plan);
  ASSERT_TRUE(shape.ok());
  EXPECT_EQ(shape->numeric, 1);
  EXPECT_THAT(shape->fields, ElementsAre("c"));
}

TEST(BatchSourceTest, LibsvmRowsAreBags) {
  const TempDir dir;
  const job::ResolvedJob plan =
      MakePlan(Data::LIBSVM, {dir.Write("a.svm", "1 5:2 9:1\n0\n1 9:3\n")}, 1, 8);
  ASSERT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
  auto source = *data::NewTrainSource(plan, 0);
  const data::Batch batch = ReadEpoch(source.get(), 0).at(0);
  EXPECT_EQ(batch.sparse[0].fields, 1);
  EXPECT_THAT(batch.sparse[0].keys, ElementsAre(5, 9));
  EXPECT_THAT(batch.sparse[0].offsets, ElementsAre(0, 2, 2, 3));
  EXPECT_THAT(batch.sparse[0].weights, ElementsAre(2, 1, 3));
}

// A row goes on where a cell in quotes does, for every worker, wherever the file is entered.
TEST(BatchSourceTest, LineBreaksInQuotes) {
  const TempDir dir;
  std::string text = "0,\"1\n2\",c\n";
  job::ResolvedJob plan = NumberedPlan({dir.Write("bad.csv", text)}, 1, 8);
  ExpectOneLine(data::CheckData(plan), {"bad.csv:1: ", "'1\\n2'", "expected a number"});
  text = "y,\"the\nnumber\",c\r\n";
  for (int i = 0; i < 100; ++i) {
    absl::StrAppend(&text, i % 2, ",", i,
                    i % 3 == 0   ? ",\"c\n\n"
                    : i % 3 == 1 ? ",\"c\r\n"
                                 : ",\"c",
                    i % 5 == 0 ? "\"\"\n" : "", i % 7, "\"\r\n");
  }
  for (const int workers : {1, 3}) {
    plan = NumberedPlan({dir.Write("a.csv", text), dir.WriteGzip("b.csv.gz", text)}, workers, 4);
    Columns* columns = plan.job.mutable_data()->mutable_columns();
    columns->set_header(true);
    columns->set_label("y");
    columns->set_numeric(0, "the\nnumber");
    columns->set_categorical(0, "c");
    plan.job.mutable_data()->set_test_fraction(0.25);
    EXPECT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
    std::vector<int> expected = Iota(0, 100), second = Iota(0, 50);
    expected.insert(expected.end(), second.begin(), second.end());
    for (int rank = 0; rank < workers; ++rank) {
      std::vector<int> share;
      for (size_t i = static_cast<size_t>(rank); i < expected.size(); i += workers) {
        share.push_back(expected[i]);
      }
      EXPECT_EQ(TrainNumbers(plan, rank, 0), share);
      auto source = *data::NewTrainSource(plan, rank);
      ASSERT_TRUE(source->StartEpoch(0).ok());
      EXPECT_EQ(*source->Skip(11), 11);
      data::Batch batch;
      ASSERT_TRUE(source->Next(&batch).ok());
      EXPECT_EQ(Numbers({batch}), std::vector<int>(share.begin() + 11, share.begin() + 15));
    }
    EXPECT_EQ(TestNumbers(plan, 0), Iota(50, 100, workers));
    auto source = *data::NewTrainSource(plan, 0);
    const data::Batch batch = ReadEpoch(source.get(), 0).at(0);
    EXPECT_EQ(batch.sparse[0].keys[0], data::FieldHash("c").Key("c\n\n\"\n0"));
  }
}

// The row alone is bad, not those that a quote without an end could swallow.
TEST(BatchSourceTest, AQuoteWithoutAnEndIsABadRowOfOneLine) {
  const TempDir dir;
  const std::string text = NumberedRows(0, 5) + "1,5,\"c\n" + NumberedRows(6, 40'000);
  job::ResolvedJob plan = NumberedPlan({dir.Write("a.csv", text)}, 1, 1 << 20);
  ExpectOneLine(data::CheckData(plan), {"a.csv:6: ", "does not end", "hint"});
  plan.job.mutable_data()->set_max_bad_rows(1);
  EXPECT_THAT(ReportOf(plan).bad_rows, SizeIs(1));
  EXPECT_THAT(TrainNumbers(plan, 0, 0), SizeIs(39'999));
}

TEST(BatchSourceTest, CommentsAndBlankLinesAreNoRows) {
  const TempDir dir;
  job::ResolvedJob plan = MakePlan(
      Data::LIBSVM,
      {dir.Write("a.svm", "# by a tool\n\n1 0:1\n  \n0 1:1 # x\n\t\n#\n1 2:1\n0 3:1\n# end\n")}, 2,
      8);
  EXPECT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
  for (const int rank : {0, 1}) {
    auto source = *data::NewTrainSource(plan, rank);
    EXPECT_EQ(source->EstimatedRows(), 2);
    const data::Batch batch = ReadEpoch(source.get(), 0).at(0);
    EXPECT_THAT(batch.sparse[0].keys, ElementsAre(rank, rank + 2));
  }
  plan.job.mutable_data()->set_test_fraction(0.25);
  EXPECT_THAT(ReadEpoch((*data::NewTestSource(plan, 0)).get(), 0).at(0).sparse[0].keys,
              ElementsAre(3));
  plan = NumberedPlan({dir.Write("a.csv", "0,0,c\n  \n1,1,c\n")}, 1, 8);
  EXPECT_EQ(TrainNumbers(plan, 0, 0), Iota(0, 2));
}

TEST(BatchSourceTest, EstimatesAreNearTheCount) {
  const TempDir dir;
  const std::string text = NumberedRows(200'000, 400'000);  // lines of one length
  for (const std::string& file : {dir.Write("a.csv", text), dir.WriteGzip("b.csv.gz", text)}) {
    auto source = *data::NewTrainSource(NumberedPlan({file, file}, 4, 32), 0);
    EXPECT_NEAR(source->EstimatedRows(), 100'000, 15'000) << file;
  }
  const std::string empty = dir.Write("empty.csv", "");
  auto behind = *data::NewTrainSource(NumberedPlan({empty, empty, dir.Path("a.csv")}, 4, 32), 0);
  EXPECT_NEAR(behind->EstimatedRows(), 50'000, 7'500) << "the first file with rows counts";
  job::ResolvedJob plan = NumberedPlan({dir.Path("a.csv")}, 4, 32);
  plan.job.mutable_data()->set_test_fraction(0.25);
  EXPECT_EQ((*data::NewTrainSource(plan, 0))->EstimatedRows(), 37'500)
      << "counted, because it must";
  EXPECT_EQ((*data::NewTestSource(plan, 0))->EstimatedRows(), 12'500);
}

TEST(DataShapeTest, TablesGetTheFieldsTheyNameAndOneTakesTheRest) {
  const TempDir dir;
  std::string row = "0";
  for (int i = 0; i < 39; ++i) row += "\t1";
  job::ResolvedJob plan = MakePlan(Data::CRITEO, {dir.Write("a.tsv", row + "\n")}, 1, 8);
  job::TablePlan small;
  small.name = "small";
  small.id = 1;
  small.fields = {"C9", "C2"};
  plan.tables.push_back(small);
  auto shape = data::FindDataShape(plan);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->numeric, 13);
  EXPECT_THAT(shape->fields, SizeIs(26));
  EXPECT_THAT(shape->table_fields[0], SizeIs(24));
  EXPECT_THAT(shape->table_fields[1], ElementsAre("C9", "C2"));
  auto source = *data::NewTrainSource(plan, 0);
  const data::Batch batch = ReadEpoch(source.get(), 0).at(0);
  ASSERT_THAT(batch.sparse, SizeIs(2));
  EXPECT_EQ(batch.sparse[0].fields, 24);
  EXPECT_THAT(batch.sparse[1].keys,
              ElementsAre(data::FieldHash("C9").Key("1"), data::FieldHash("C2").Key("1")));
  // The table of dense blocks reads no field.
  job::TablePlan dense;
  dense.name = job::kDenseTableName;
  dense.id = 2;
  dense.dense = true;
  plan.tables.push_back(dense);
  plan.dense_table = 2;
  shape = data::FindDataShape(plan);
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_THAT(shape->table_fields[2], IsEmpty());
}

TEST(DataShapeTest, TablesAndFieldsMustMatch) {
  const TempDir dir;
  job::ResolvedJob plan = NumberedPlan({dir.Write("a.csv", NumberedRows(0, 5))}, 1, 8);
  plan.tables.push_back(plan.tables[0]);
  plan.tables[1].name = "second";
  ExpectOneLine(data::FindDataShape(plan).status(), {"table 'second' has no field", "hint"});
  plan.tables[1].fields = {"town"};
  ExpectOneLine(data::FindDataShape(plan).status(), {"table 'second'", "'town'", "hint"});
  plan.tables.pop_back();
  plan.tables[0].fields = {"2"};
  plan.job.mutable_data()->mutable_columns()->add_categorical("0");
  ExpectOneLine(data::FindDataShape(plan).status(), {"no table reads field '0'", "hint"});
  plan = NumberedPlan({dir.Path("a.csv")}, 1, 8);
  plan.job.mutable_data()->mutable_columns()->clear_categorical();
  ExpectOneLine(data::FindDataShape(plan).status(),
                {"no categorical column", "data.columns.categorical"});
}

// Everything `run` must refuse before it starts anything: one line that names the file, the line if
// there is one, what was expected and a hint.
TEST(CheckDataTest, BadFilesAreRefusedInOneLine) {
  const TempDir dir;
  const std::string good = NumberedRows(0, 5);
  const auto check = [&](const std::string& text) {
    return data::CheckData(NumberedPlan({dir.Write("x.csv", text)}, 2, 8));
  };
  EXPECT_TRUE(check(good).ok()) << check(good);
  ExpectOneLine(check(""), {"x.csv: ", "empty", "hint"});
  ExpectOneLine(check("\n\n"), {"x.csv: ", "empty", "hint"});
  ExpectOneLine(check(good + "1,2\n"), {"x.csv:6: ", "2 columns", "expected 3", "hint"});
  ExpectOneLine(check(good + "\n1,many,c\n"), {"x.csv:7: ", "'many'", "expected a number", "hint"});
  ExpectOneLine(check(good + "2,1,c\n"), {"x.csv:6: ", "the label in column '0' is '2'", "hint"});
  ExpectOneLine(check("1,1,c\n"), {"1 rows for 2 workers", "cluster.workers"});
  ExpectOneLine(data::CheckData(NumberedPlan({dir.Path("none.csv")}, 1, 8)),
                {"data.train", "none.csv", "No such file", "hint"});
  ExpectOneLine(data::CheckData(NumberedPlan({dir.Path("*.none")}, 1, 8)),
                {"data.train", "no file matches", "hint"});
  ExpectOneLine(data::CheckData(NumberedPlan({}, 1, 8)), {"data.train is not set"});
  job::ResolvedJob plan = NumberedPlan({dir.Write("x.csv", good)}, 2, 8);
  plan.job.mutable_data()->add_test(dir.Write("t.csv", "1,2\n"));
  ExpectOneLine(data::CheckData(plan), {"t.csv:1: ", "2 columns", "hint"});
}

TEST(CheckDataTest, HeaderOnlyAndContradictorySplitsAreRefused) {
  const TempDir dir;
  job::ResolvedJob plan = NumberedPlan({dir.Write("x.csv", "1,1,c\n0,2,c\n")}, 1, 8);
  for (const double fraction : {-0.1, 1.0, 1.5}) {
    plan.job.mutable_data()->set_test_fraction(fraction);
    ExpectOneLine(data::CheckData(plan), {"data.test_fraction"});
  }
  plan.job.mutable_data()->set_test_fraction(0.01);
  ExpectOneLine(data::CheckData(plan), {"data.test_fraction", "no test row", "hint"});
  plan.job.mutable_data()->set_test_fraction(0.99);
  ExpectOneLine(data::CheckData(plan), {"data.test_fraction", "no training row", "hint"});
  plan.job.mutable_data()->mutable_columns()->set_header(true);
  plan.job.mutable_data()->mutable_columns()->set_label("1");
  plan.job.mutable_data()->mutable_columns()->set_numeric(0, "c");
  plan.job.mutable_data()->mutable_columns()->set_categorical(0, "c");
  plan.job.mutable_data()->clear_train();
  plan.job.mutable_data()->add_train(dir.Write("h.csv", "0,1,c\n"));
  ExpectOneLine(data::CheckData(plan), {"data.train", "no row in these files"});
  plan.job.mutable_data()->clear_test_fraction();
  ExpectOneLine(data::CheckData(plan), {"h.csv: ", "no rows below its header", "hint"});
  plan.job.mutable_data()->set_format(Data::FORMAT_UNSPECIFIED);
  EXPECT_FALSE(data::CheckData(plan).ok());
}

TEST(CheckDataTest, WhatIsRarelyMeantIsSaid) {
  const TempDir dir;
  const auto plan = [&](const std::string& text) {
    return NumberedPlan({dir.Write("x.csv", text)}, 1, 8);
  };
  const std::string good = "1,1,c\n0,2,c\n";
  EXPECT_THAT(ReportOf(plan(good)).warnings, IsEmpty());
  ExpectWarning(plan("1,,c\n0,,d\n"), {"data.train", "column '1' has no value", "2 rows", "hint"});
  ExpectWarning(plan("1,1,\n0,2,\n"), {"data.train", "column '2' has no value", "hint"});
  ExpectWarning(plan("0,1,c\n0,2,c\n"), {"data.train", "all 2 rows", "label 0", "hint"});
  ExpectWarning(plan("1,1,c\n0,-2e6,c\n"), {"column '1'", "2e+06", "STANDARDISE"});
  ExpectWarning(plan(good + "1,1,Z\xfcrich\n0,1,Gen\xe8ve\n"),
                {"x.csv:3: ", "column '2' is 'Z\\xfcrich'", "not UTF-8", "hint"});
  EXPECT_THAT(ReportOf(plan(good + "1,1,Z\xc3\xbcrich\n")).warnings, IsEmpty());
  job::ResolvedJob sorted = plan("0,1,c\n0,2,c\n1,1,c\n1,1,c\n1,1,c\n1,1,c\n");
  sorted.job.mutable_data()->set_test_fraction(0.5);
  ExpectWarning(sorted, {"data.test", "all 3 rows", "label 1", "sorted by label"});
  ExpectWarning(MakePlan(Data::LIBSVM, {dir.Write("x.svm", "1 1:1\n0 1:123456\n")}, 1, 8),
                {"data.train", "123456", "hint"});
}

TEST(CheckDataTest, FilesWithoutRowsAreRefusedIfNamedAndPassedOverIfNot) {
  const TempDir dir;
  job::ResolvedJob plan = NumberedPlan({dir.Path("part*")}, 2, 8);
  Columns* columns = plan.job.mutable_data()->mutable_columns();
  columns->set_header(true);
  columns->set_label("y");
  columns->set_numeric(0, "n");
  columns->set_categorical(0, "c");
  const std::string head = "y,n,c\n";
  for (const auto& [name, text] :
       std::map<std::string, std::string>{{"part0", head},
                                          {"part1", head + "0,0,a\n1,1,b\n"},
                                          {"part2", ""},
                                          {"part3", head + "\n  \n"},
                                          {"part4", head + "0,2,a\n"}}) {
    dir.Write(name, text);
  }
  dir.WriteGzip("part5.gz", "");
  ExpectWarning(plan, {"part0: the file has no rows below its header; so are 3 more"});
  EXPECT_EQ(TrainNumbers(plan, 0, 0), (std::vector<int>{0, 2}));
  EXPECT_EQ(TrainNumbers(plan, 1, 0), (std::vector<int>{1}));
  plan.job.mutable_data()->add_test(dir.Path("part[0]"));
  ExpectOneLine(data::CheckData(plan), {"data.test", "no row in these files"});
  plan.job.mutable_data()->set_test(0, dir.Path("part0"));
  ExpectOneLine(data::CheckData(plan), {"part0: ", "no rows below its header", "hint"});
  plan.job.mutable_data()->clear_test();
  plan.job.mutable_data()->set_train(0, dir.Path("part[023]"));
  ExpectOneLine(data::CheckData(plan), {"data.train", "no row in these files"});
}

TEST(CheckDataTest, FilesThatTrainAndTestOrAreThereTwice) {
  const TempDir dir;
  dir.Write("a.csv", NumberedRows(0, 20));
  dir.Write("b.csv", NumberedRows(20, 40));
  dir.Write("_SUCCESS", "");
  std::filesystem::create_hard_link(dir.Path("b.csv"), dir.Path("c"));
  std::filesystem::create_symlink(dir.Path("a.csv"), dir.Path("d"));
  job::ResolvedJob plan = NumberedPlan({dir.Path("*.csv")}, 1, 8);
  EXPECT_THAT(ReportOf(plan).warnings, IsEmpty());
  plan.job.mutable_data()->add_test(dir.Path("c"));
  ExpectWarning(plan,
                {"data.test: ", "/c is in data.train", "b.csv", "train the model and evaluate it"});
  plan.job.mutable_train()->set_evaluate_only(true);
  EXPECT_THAT(ReportOf(plan).warnings, IsEmpty());
  plan.job.mutable_train()->set_evaluate_only(false);
  plan.job.mutable_data()->clear_test();
  plan.job.mutable_data()->mutable_validation()->add_files(dir.Path("a.csv"));
  ExpectWarning(plan, {"data.validation.files: ", "a.csv is in data.train", "train the model"});
  plan.job.mutable_data()->set_train(0, dir.Path("b.csv"));
  plan.job.mutable_data()->add_test(dir.Path("d"));
  ExpectWarning(plan, {"data.test: ", "/d is in data.validation.files", "choose the model"});
  plan.job.mutable_data()->clear_test();
  plan.job.mutable_data()->clear_validation();
  plan.job.mutable_data()->add_train(dir.Path("*.csv"));
  ExpectWarning(plan, {"data.train: ", "b.csv is there twice", "count twice"});
  plan.job.mutable_data()->clear_train();
  plan.job.mutable_data()->add_train(dir.Path("[a_]*"));
  ExpectWarning(plan, {"data.train: ", "_SUCCESS is skipped"});
}

// Rows of a number and an id, of which there are few.
std::string RowsOfIds(const std::vector<std::string>& ids, int rows) {
  std::string text;
  for (int i = 0; i < rows; ++i) {
    absl::StrAppend(&text, i % 2, ",", i, ",", ids[static_cast<size_t>(i) % ids.size()], "\n");
  }
  return text;
}

std::vector<std::string> IdWarnings(const std::string& train, const std::string& test,
                                    bool validation = false) {
  const TempDir dir;
  job::ResolvedJob plan = NumberedPlan({dir.Write("a.csv", train)}, 1, 8);
  Data* const data = plan.job.mutable_data();
  data->mutable_columns()->set_quotes(Columns::NONE);
  if (validation) data->mutable_validation()->add_files(dir.Write("t.csv", test));
  if (!validation) data->add_test(dir.Write("t.csv", test));
  return ReportOf(plan).warnings;
}

TEST(CheckDataTest, IdsThatTheTestRowsSpellInAnotherWay) {
  struct Spelling {
    const char *train, *test, *hint;
  };
  for (const Spelling& spelling :
       {Spelling{"12", "12.0", "whole numbers alike"}, Spelling{"12", "0012", "whole numbers"},
        Spelling{"1200000", "1.2e6", "whole numbers"}, Spelling{"Bern", "Bern ", "trim"},
        Spelling{" Bern", "Bern", "trim"}, Spelling{"Bern", "BERN", "capital letters"},
        Spelling{"Bern", "\"Bern\"", "quotes"}, Spelling{"'Bern'", "Bern", "quotes"},
        Spelling{"Z\xc3\xbcrich", "Zu\xcc\x88rich", "accents"},
        Spelling{"\xc3\x89vora", "\xc3\xa9vora", "alike"},
        Spelling{"Bern", "Bern\xc2\xa0", "alike"}}) {
    const std::string train = RowsOfIds({spelling.train, "x", "y"}, 60);
    for (const bool validation : {false, true}) {
      const auto warnings = IdWarnings(train, RowsOfIds({spelling.test}, 8), validation);
      ASSERT_THAT(warnings, SizeIs(1)) << spelling.test;
      EXPECT_THAT(warnings[0], HasSubstr(validation ? "data.validation: " : "data.test: "));
      EXPECT_THAT(warnings[0], HasSubstr("column '2': 100 % of its 8 values"));
      EXPECT_THAT(warnings[0], HasSubstr("none of the 60 training rows"));
      EXPECT_THAT(warnings[0], HasSubstr(data::Quote(spelling.test)));
      EXPECT_THAT(warnings[0], HasSubstr(data::Quote(spelling.train)));
      EXPECT_THAT(warnings[0], HasSubstr(spelling.hint));
    }
    // A few are nothing to speak of; nor is what both files have.
    EXPECT_THAT(IdWarnings(train, RowsOfIds({spelling.test, "x", "y", "x", "y", "x"}, 60)),
                IsEmpty());
    EXPECT_THAT(
        IdWarnings(RowsOfIds({spelling.train, spelling.test}, 60), RowsOfIds({spelling.test}, 60)),
        IsEmpty());
  }
}

TEST(CheckDataTest, IdsThatNoTrainingRowHas) {
  const std::string train = RowsOfIds({"a", "b"}, 20);
  const auto warnings = IdWarnings(train, RowsOfIds({"c", "d"}, 10));
  ASSERT_THAT(warnings, SizeIs(1));
  EXPECT_THAT(warnings[0], HasSubstr("100 % of its 10 values"));
  EXPECT_THAT(warnings[0], HasSubstr("never trained"));
  EXPECT_THAT(IdWarnings(train, RowsOfIds({"c", "d"}, 9)), IsEmpty()) << "too few to say";
  EXPECT_THAT(IdWarnings(train, RowsOfIds({"c", "a"}, 20)), IsEmpty()) << "new ids are usual";
  EXPECT_THAT(IdWarnings(train, RowsOfIds({""}, 20)), IsEmpty()) << "missing, which is no id";
}

TEST(IdCheckTest, ComparesRowsToScoreWithTheRowsOfAModel) {
  const TempDir dir;
  job::ResolvedJob plan = NumberedPlan({}, 1, 8);
  plan.job.mutable_data()->set_score_only(true);
  plan.job.mutable_data()->add_test(dir.Write("t.csv", RowsOfIds({"c", "d"}, 20)));
  const auto warnings = [](const data::IdCheck& ids) {
    std::vector<std::string> said;
    ids.Warn(/*all=*/true, &said);
    return said;
  };
  auto ids = data::SampleIdsToScore(plan);
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_TRUE(ids->LacksIds());
  ASSERT_THAT(warnings(*ids), SizeIs(1));
  EXPECT_THAT(warnings(*ids)[0], HasSubstr("have no row in the model")) << "also of an empty one";
  const data::FieldHash hash("2");
  const std::vector<uint64_t> known = {hash.Key("c"), hash.Key("d")};
  ids->SeeModel(absl::MakeConstSpan(known).first(1));
  EXPECT_TRUE(ids->LacksIds());
  EXPECT_THAT(warnings(*ids), IsEmpty()) << "half of the values are new, which is usual";
  ids->SeeModel(known);
  EXPECT_FALSE(ids->LacksIds());
  EXPECT_THAT(warnings(*ids), IsEmpty());
  EXPECT_FALSE(data::IdCheck("data.test", {}).LacksIds()) << "no fields";
  EXPECT_FALSE(data::IdCheck("data.test", {"2"}).LacksIds()) << "no rows";
}

TEST(IdCheckTest, PlainForms) {
  for (const auto& [text, plain] : std::vector<std::pair<std::string, std::string>>{
           {"12", "12"},
           {"12.0", "12"},
           {"0012", "12"},
           {"+12", "12"},
           {"-1", "-1"},
           {"12.5", "12.5"},
           {" '12' ", "12"},
           {"", ""},
           {"'", "'"},
           {"\"\"", ""},
           {"123456789012345678901", "123456789012345678901"},
           {"A b", "a b"},
           {"A\xc2\xa0 b", "a b"},                 // a no-break space
           {"\xe2\x80\xaf 12\xe3\x80\x80", "12"},  // narrow and wide spaces
           {"\xef\xbb\xbf\"a\xe2\x80\x8b\xc2\xad"
            "b\"",
            "ab"},  // marks that are not visible
           {"\xc3\x9f\xc5\xbf", "ss"},
           {"\xe5\x8c\x97", "\xe5\x8c\x97"},
           {"\xc3", "\xc3"}}) {
    EXPECT_EQ(data::PlainForm(text), plain) << text;
  }
}

TEST(CheckDataTest, WarnsOfDataThatSpoilTraining) {
  const TempDir dir;
  const auto plan = [&](int rows, int values, int batch) {
    std::string text;
    for (int i = 0; i < rows; ++i) absl::StrAppend(&text, i % 2, ",1,c", i % values, "\n");
    return NumberedPlan({dir.Write("x.csv", text)}, 2, batch);
  };
  ExpectWarning(plan(1000, 1000, 8),
                {"data.train: column '2' has a different value in each row (1000", "hint"});
  ExpectWarning(plan(1000, 960, 8),
                {"column '2' has a different value in nearly each row", "hint"});
  // More values than are counted, and as many that come again.
  ExpectWarning(plan(200000, 200000, 8), {"a different value in each row (200000"});
  EXPECT_THAT(ReportOf(plan(200000, 100000, 8)).warnings, IsEmpty());
  EXPECT_THAT(ReportOf(plan(1000, 600, 8)).warnings, IsEmpty());
  EXPECT_THAT(ReportOf(plan(99, 99, 8)).warnings, IsEmpty()) << "so few rows say nothing";
  ExpectWarning(
      plan(1000, 10, 500),
      {"train.batch_size is 500, and a worker has 500 rows, so an epoch is one step", "hint"});
  EXPECT_THAT(ReportOf(plan(1000, 10, 499)).warnings, IsEmpty());
}

// The files of `test` are all that such a job reads.
TEST(BatchSourceTest, RowsToScoreNeedNoLabel) {
  const TempDir dir;
  job::ResolvedJob plan = NumberedPlan({}, 3, 8);
  plan.job.mutable_data()->add_test(dir.Write("t.csv", "1,7,a\n,8,b\n"));
  ExpectOneLine(data::CheckData(plan), {"data.train is not set"});
  plan.job.mutable_data()->set_score_only(true);
  EXPECT_THAT(ReportOf(plan).warnings, IsEmpty());
  EXPECT_THAT(TestNumbers(plan, 0), ElementsAre(7));
  EXPECT_THAT(TestNumbers(plan, 2), IsEmpty()) << "fewer rows than workers";
  auto source = *data::NewTestSource(plan, 1);
  EXPECT_TRUE(std::isnan(ReadEpoch(source.get(), 0).at(0).labels.at(0)));
  plan.job.mutable_data()->add_test(dir.Write("u.csv", "1,x,a\n"));
  ExpectOneLine(data::CheckData(plan), {"u.csv:1: ", "'x'", "expected a number"});
}

// Header and `rows` rows of the chosen columns; there are no more.
std::string TableOf(const Data& data, const std::vector<std::string>& files,
                    const std::vector<std::string>& names, int rows) {
  auto columns = data::ChosenColumns::Open(data, files, names);
  EXPECT_TRUE(columns.ok()) << columns.status();
  if (!columns.ok()) return std::string();
  std::string text = (*columns)->Header() + "\n";
  for (int row = 0; row < rows; ++row) {
    EXPECT_EQ((*columns)->AppendNext(&text), absl::OkStatus());
    text += "\n";
  }
  EXPECT_FALSE((*columns)->AppendNext(&text).ok());
  return text;
}

TEST(ChosenColumnsTest, CellsAreInTheOrderOfTheRows) {
  const TempDir dir;
  const std::string a = dir.Write("a.csv", "id,age,city\n1,5,\"Rome, IT\"\n2,6,Bern\n");
  const std::string b = dir.Write("b.csv", "city,id\n\"a \"\"b\"\"\",3\n");
  Data named;
  named.set_format(Data::DELIMITED);
  named.mutable_columns()->set_delimiter(",");
  named.mutable_columns()->set_header(true);
  EXPECT_EQ(TableOf(named, {a, b}, {"city", "id"}, 3),
            "city,id,\n\"Rome, IT\",1,\nBern,2,\n\"a \"\"b\"\"\",3,\n");
  ExpectOneLine(data::ChosenColumns::Open(named, {a, b}, {"id", "age"}).status(),
                {"b.csv:1: ", "no column 'age'", "(--columns)"});
  Data numbered;
  numbered.set_format(Data::CRITEO);
  const std::string c = dir.Write("c.tsv", "0\t\t7\n1\tx\t8\n");
  EXPECT_EQ(TableOf(numbered, {c}, {"2", "1"}, 2), "2\t1\t\n7\t\t\n8\tx\t\n");
  numbered.set_format(Data::NCF);
  EXPECT_EQ(TableOf(numbered, {dir.Write("d.csv", "4,5\n6,7\n")}, {"item", "user"}, 2),
            "item,user,\n5,4,\n7,6,\n");
  ExpectOneLine(data::ChosenColumns::Open(numbered, {c}, {"rating"}).status(), {"'rating'"});
  numbered.set_format(Data::LIBSVM);
  ExpectOneLine(data::ChosenColumns::Open(numbered, {c}, {"1"}).status(), {"LIBSVM", "hint"});
}

// A format has one rule for its rows and cells, whoever reads them.
TEST(ChosenColumnsTest, RowsAreThoseThatAreScored) {
  const TempDir dir;
  Data data;
  data.set_format(Data::NCF);
  const std::string pairs = "1\t2\n \t \n\t\n3\t4\t5\t9\n  \n5,6\n7,8,1,2\n";
  EXPECT_EQ(TableOf(data, {dir.Write("pairs", pairs)}, {"user", "item"}, 4),
            "user\titem\t\n1\t2\t\n3\t4\t\n5\t6\t\n7\t8\t\n");
  EXPECT_EQ(TableOf(data, {dir.Write("none", " \t\n"), dir.Write("commas", "1,2\n3\t4\n")},
                    {"item", "item", "user"}, 2),
            "item,item,user,\n2,2,1,\n4,4,3,\n");
  data.set_format(Data::CRITEO);
  EXPECT_EQ(TableOf(data, {dir.Write("c.tsv", "0\t\"x\t7\n1\ta\"b\t\"\n")}, {"1", "2"}, 2),
            "1\t2\t\n\"\"\"x\"\t7\t\n\"a\"\"b\"\t\"\"\"\"\t\n");
  auto columns = *data::ChosenColumns::Open(data, {dir.Path("c.tsv")}, {"1"});
  std::string text;
  ASSERT_EQ(columns->AppendNext(&text), absl::OkStatus());
  ExpectOneLine(columns->CheckEnd(), {"c.tsv:2: ", "more rows than were scored"});
}

TEST(CheckDataTest, BadRowsAreSkippedUpToANumber) {
  const TempDir dir;
  const std::string text = "1,1,c\n0,x,c\n0,2,c\n1,3\n1,4,d\n7,5,d\n0,6,d\n";
  job::ResolvedJob plan = NumberedPlan({dir.Write("x.csv", text)}, 2, 8);
  plan.job.mutable_data()->mutable_columns()->add_positive("1");
  plan.job.mutable_data()->mutable_columns()->add_negative("0");
  ExpectOneLine(data::CheckData(plan), {"x.csv:2: ", "'x'"});
  plan.job.mutable_data()->set_max_bad_rows(2);
  ExpectOneLine(data::CheckData(plan), {"x.csv:6: ", "'7'", "bad row 3", "data.max_bad_rows is 2"});
  plan.job.mutable_data()->set_max_bad_rows(3);
  const data::DataReport report = ReportOf(plan);
  ASSERT_THAT(report.bad_rows, SizeIs(3));
  EXPECT_THAT(report.bad_rows[0], HasSubstr("x.csv:2: "));
  EXPECT_THAT(report.bad_rows[1], HasSubstr("x.csv:4: "));
  EXPECT_THAT(report.bad_rows[2], HasSubstr("x.csv:6: "));
  EXPECT_THAT(report.warnings, Contains(HasSubstr("3 bad rows are skipped")));
  // Rows are dealt as if the bad ones were there.
  EXPECT_THAT(TrainNumbers(plan, 0, 0), ElementsAre(1, 2, 4, 6));
  EXPECT_THAT(TrainNumbers(plan, 1, 0), IsEmpty());
}

TEST(CheckDataTest, APartWithoutAGoodRowIsRefused) {
  const TempDir dir;
  const std::string good = dir.Write("good.csv", "1,1,c\n0,2,c\n");
  const std::string bad = dir.Write("bad.csv", "0,x,c\n1,y,d\n");
  job::ResolvedJob plan = NumberedPlan({bad}, 1, 8);
  Data* const data = plan.job.mutable_data();
  data->mutable_columns()->add_positive("1");
  data->mutable_columns()->add_negative("0");
  data->set_max_bad_rows(9);
  ExpectOneLine(data::CheckData(plan), {"data.train: all rows are bad", "bad.csv:1: ", "'x'"});
  data->set_train(0, good);
  EXPECT_EQ(data::CheckData(plan), absl::OkStatus());
  data->add_test(bad);
  ExpectOneLine(data::CheckData(plan), {"data.test: all rows are bad", "bad.csv:1: ", "'x'"});
  data->set_test(0, good);
  data->mutable_validation()->add_files(bad);
  ExpectOneLine(data::CheckData(plan), {"data.validation: all rows are bad", "bad.csv:1: "});
}

// A file that changes while a job trains on it.
TEST(BatchSourceTest, AFileThatChangesIsNoticed) {
  const TempDir dir;
  const job::ResolvedJob plan = NumberedPlan({dir.Write("x.csv", NumberedRows(0, 50))}, 1, 8);
  auto source = *data::NewTrainSource(plan, 0);
  EXPECT_EQ(Numbers(ReadEpoch(source.get(), 0)), Iota(0, 50));
  EXPECT_EQ(Numbers(ReadEpoch(source.get(), 1)), Iota(0, 50));
  dir.Write("x.csv", NumberedRows(0, 51));
  ExpectOneLine(source->StartEpoch(2), {"x.csv has changed since the run began", "bytes", "hint"});
  std::filesystem::rename(dir.Path("x.csv"), dir.Path("y.csv"));
  ExpectOneLine(source->StartEpoch(2), {"x.csv is gone", "hint"});
  std::filesystem::rename(dir.Path("y.csv"), dir.Path("x.csv"));
  // In the middle of an epoch: said at its end.
  source = *data::NewTrainSource(plan, 0);
  ASSERT_TRUE(source->StartEpoch(0).ok());
  std::ofstream(dir.Path("x.csv"), std::ios::app) << "1,51,c\n";
  absl::Status status;
  data::Batch batch;
  do {
    status = source->Next(&batch);
  } while (status.ok() && batch.samples > 0);
  ExpectOneLine(status, {"x.csv has changed", "hint"});
}

// Another process that reads the same files tells whether they have changed.
TEST(BatchSourceTest, FilesThatChangeHaveAnotherHash) {
  const TempDir dir;
  Data data = NumberedPlan({dir.Write("x.csv", NumberedRows(0, 50))}, 1, 8).job.data();
  const absl::StatusOr<uint64_t> hash = data::HashTrainingFiles(data);
  ASSERT_TRUE(hash.ok()) << hash.status();
  EXPECT_EQ(data::CheckTrainingFilesUnchanged(*hash, data), absl::OkStatus());
  std::ofstream(dir.Path("x.csv"), std::ios::app) << "1,50,c\n";
  const absl::Status changed = data::CheckTrainingFilesUnchanged(*hash, data);
  ExpectOneLine(changed, {"data.train", "have changed since the run began", "x.csv", "hint"});
  EXPECT_TRUE(absl::IsFailedPrecondition(changed));
  EXPECT_EQ(data::CheckTrainingFilesUnchanged(0, data), absl::OkStatus()) << "it is not known";
  const uint64_t longer = *data::HashTrainingFiles(data);
  EXPECT_NE(longer, *hash);
  // The same length, written anew.
  const auto written = std::filesystem::last_write_time(dir.Path("x.csv"));
  std::filesystem::last_write_time(dir.Path("x.csv"), written + std::chrono::seconds(1));
  EXPECT_NE(*data::HashTrainingFiles(data), longer);
  data.clear_train();
  EXPECT_EQ(*data::HashTrainingFiles(data), 0u) << "a program brings the rows";
}

// A run that goes on notices files that were replaced, also by ones of the same length.
TEST(BatchSourceTest, ARunGoesOnWithTheSameFiles) {
  const TempDir dir;
  const std::string rows = NumberedRows(0, 300'000);  // more than is read for a sample
  Data data = NumberedPlan({dir.Write("x.csv", rows)}, 1, 8).job.data();
  const std::vector<DataFile> files = *data::TrainingFiles(data);
  RunRecord was;
  was.mutable_train()->Assign(files.begin(), files.end());
  std::vector<std::string> said;
  EXPECT_EQ(data::CheckSameFiles(was, data, &said), absl::OkStatus());
  EXPECT_THAT(said, IsEmpty());
  // Written anew: the time of the last write or the inode differs.
  std::filesystem::remove(dir.Path("x.csv"));
  dir.Write("y.csv", "");  // may take the inode
  dir.Write("x.csv", rows);
  EXPECT_EQ(data::CheckSameFiles(was, data, &said), absl::OkStatus());
  ASSERT_THAT(said, SizeIs(1));
  EXPECT_THAT(said[0], HasSubstr("file 0, x.csv of "));
  EXPECT_THAT(said[0], HasSubstr("was written or copied since the run began"));
  for (const size_t at : {size_t{0}, rows.size() - 2}) {
    std::string other = rows;
    other[at] ^= 1;
    dir.Write("x.csv", other);
    ExpectOneLine(data::CheckSameFiles(was, data), {"x.csv", "other contents", "--init-from"});
  }
  was.mutable_train(0)->clear_sample();  // a record of an earlier version
  EXPECT_EQ(data::CheckSameFiles(was, data, &said), absl::OkStatus());
  EXPECT_THAT(said, SizeIs(1));
  dir.Write("x.csv", rows + rows);
  ExpectOneLine(data::CheckSameFiles(was, data), {"x.csv", "bytes", "--init-from"});
}

// An error in the middle of an epoch comes out of Next with the same words.
TEST(BatchSourceTest, ErrorsDuringAnEpochNameTheLine) {
  const TempDir dir;
  const job::ResolvedJob plan =
      NumberedPlan({dir.Write("x.csv", NumberedRows(0, 5) + "1,x,c\n")}, 1, 4);
  auto source = *data::NewTrainSource(plan, 0);
  ASSERT_TRUE(source->StartEpoch(0).ok());
  data::Batch batch;
  ASSERT_TRUE(source->Next(&batch).ok());
  ExpectOneLine(source->Next(&batch), {"x.csv:6: ", "'x'", "expected a number"});
}

// ---- workers of one process that read together ------------------------------------------------

using MakeSource = absl::StatusOr<std::unique_ptr<data::BatchSource>> (*)(const job::ResolvedJob&,
                                                                          int, data::SharedReader*);

// Batches of all workers, in which rank r takes `strides[r]` batches a turn.
std::vector<std::vector<data::Batch>> ReadTogether(
    const std::vector<std::unique_ptr<data::BatchSource>>& sources, int64_t epoch,
    const std::vector<int>& strides) {
  std::vector<std::vector<data::Batch>> batches(sources.size());
  for (const auto& source : sources) EXPECT_TRUE(source->StartEpoch(epoch).ok());
  for (size_t over = 0; over < sources.size();) {
    over = 0;
    for (size_t rank = 0; rank < sources.size(); ++rank) {
      for (int i = 0; i < strides[rank]; ++i) {
        data::Batch batch;
        const absl::Status status = sources[rank]->Next(&batch);
        EXPECT_TRUE(status.ok()) << status;
        if (!status.ok() || batch.samples == 0) {
          ++over;
          break;
        }
        batches[rank].push_back(batch);
      }
    }
  }
  return batches;
}

void ExpectSameBatches(const std::vector<data::Batch>& a, const std::vector<data::Batch>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].labels, b[i].labels) << i;
    EXPECT_EQ(a[i].numbers, b[i].numbers) << i;
    ASSERT_EQ(a[i].sparse.size(), b[i].sparse.size());
    for (size_t t = 0; t < a[i].sparse.size(); ++t) {
      EXPECT_EQ(a[i].sparse[t].keys, b[i].sparse[t].keys) << i;
      EXPECT_EQ(a[i].sparse[t].index, b[i].sparse[t].index) << i;
      EXPECT_EQ(a[i].sparse[t].offsets, b[i].sparse[t].offsets) << i;
      EXPECT_EQ(a[i].sparse[t].weights, b[i].sparse[t].weights) << i;
    }
  }
}

void ExpectSharedIsAlone(const job::ResolvedJob& plan, MakeSource make) {
  data::SharedReader shared;
  std::vector<std::unique_ptr<data::BatchSource>> together;
  for (int rank = 0; rank < plan.workers(); ++rank) {
    together.push_back(*make(plan, rank, &shared));
    EXPECT_EQ(together.back()->EstimatedRows(), (*make(plan, rank, nullptr))->EstimatedRows());
  }
  std::vector<int> strides(together.size(), 1);
  for (const int64_t epoch : {0, 1, 1}) {           // evaluations pass over an epoch again
    strides[0] = 1 + 20 * static_cast<int>(epoch);  // then the first is far ahead
    const auto batches = ReadTogether(together, epoch, strides);
    for (int rank = 0; rank < plan.workers(); ++rank) {
      SCOPED_TRACE(absl::StrCat("epoch ", epoch, ", rank ", rank));
      auto alone = *make(plan, rank, nullptr);
      ExpectSameBatches(batches[static_cast<size_t>(rank)], ReadEpoch(alone.get(), epoch));
    }
  }
}

TEST(SharedReaderTest, EachWorkerHasTheBatchesThatItWouldHaveAlone) {
  const TempDir dir;
  const std::string head = "label,x,c\n";
  std::vector<std::string> files = {dir.Write("a.csv", head + NumberedRows(0, 40)),
                                    dir.Write("b.csv", head + NumberedRows(40, 41)),
                                    dir.WriteGzip("c.csv.gz", head + NumberedRows(41, 200))};
  for (const int workers : {1, 3, 64}) {
    job::ResolvedJob plan = NumberedPlan(files, workers, 4);
    Columns* columns = plan.job.mutable_data()->mutable_columns();
    columns->set_header(true);
    columns->set_label("label");
    columns->set_numeric(0, "x");
    columns->set_categorical(0, "c");
    for (const int64_t buffer : {0, 17}) {
      plan.job.mutable_data()->set_shuffle_buffer(buffer);
      ExpectSharedIsAlone(plan, data::NewTrainSource);
    }
    plan.job.mutable_data()->mutable_validation()->set_fraction(0.3);
    plan.job.mutable_data()->set_test_fraction(0.2);
    ExpectSharedIsAlone(plan, data::NewTrainSource);
    ExpectSharedIsAlone(plan, data::NewValidationSource);
    ExpectSharedIsAlone(plan, data::NewTestSource);
  }
}

// One table has the ids of a column of several, and those of another column; a second table has one
// id.
TEST(BatchSourceTest, CellsOfSeveralIdsAreBags) {
  const TempDir dir;
  job::ResolvedJob plan =
      NumberedPlan({dir.Write("a.csv", "0,0,a|b,x,z\n1,1,,x,z\n0,2,b|a|b,,z\n")}, 1, 8);
  Columns* columns = plan.job.mutable_data()->mutable_columns();
  columns->add_categorical("3");
  columns->add_categorical("4");
  Column* const tags = columns->add_column();
  tags->set_name("2");
  tags->set_separator("|");
  job::TablePlan second = plan.tables[0];
  second.name = "second";
  second.id = 1;
  second.fields = {"4"};
  plan.tables.push_back(second);
  ASSERT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
  const data::FieldHash two("2"), three("3");
  for (const bool mean : {false, true}) {
    if (mean) tags->set_pooling(Column::MEAN);
    auto source = *data::NewTrainSource(plan, 0);
    const data::Batch batch = ReadEpoch(source.get(), 0).at(0);
    ASSERT_THAT(batch.sparse, SizeIs(2));
    EXPECT_THAT(batch.sparse[0].keys, ElementsAre(two.Key("a"), two.Key("b"), three.Key("x"),
                                                  two.missing(), three.missing()));
    EXPECT_THAT(batch.sparse[0].index, ElementsAre(0, 1, 2, 3, 2, 1, 0, 1, 4));
    EXPECT_THAT(batch.sparse[0].offsets, ElementsAre(0, 2, 3, 4, 5, 8, 9));
    const float half = 1.0f / 2, third = 1.0f / 3;
    EXPECT_EQ(batch.sparse[0].weights,
              mean ? (std::vector<float>{half, half, 1, 1, 1, third, third, third, 1})
                   : std::vector<float>());
    EXPECT_THAT(batch.sparse[1].index, ElementsAre(0, 0, 0));
    EXPECT_THAT(batch.sparse[1].offsets, IsEmpty());
    EXPECT_THAT(batch.sparse[1].weights, IsEmpty());
    ExpectSharedIsAlone(plan, data::NewTrainSource);
  }
}

TEST(SharedReaderTest, BadRowsAreThoseOfTheirWorker) {
  const TempDir dir;
  job::ResolvedJob plan =
      NumberedPlan({dir.Write("x.csv", NumberedRows(0, 7) + "1,x,c\n1,y,c\n")}, 2, 4);
  plan.job.mutable_data()->set_max_bad_rows(1);
  ExpectSharedIsAlone(plan, data::NewTrainSource);
  plan.job.mutable_data()->set_max_bad_rows(0);
  data::SharedReader shared;
  auto first = *data::NewTrainSource(plan, 0, &shared);
  auto second = *data::NewTrainSource(plan, 1, &shared);
  ASSERT_TRUE(first->StartEpoch(0).ok() && second->StartEpoch(0).ok());
  data::Batch batch;
  ASSERT_TRUE(first->Next(&batch).ok());
  ExpectOneLine(first->Next(&batch), {"x.csv:9: ", "'y'", "expected a number"});
  ExpectOneLine(second->Next(&batch), {"x.csv:8: ", "'x'", "expected a number"});
}

// A parser that takes no file that begins with "bad".
class Heads final : public data::RowParser {
 public:
  absl::Status StartFile(absl::string_view line) override {
    if (line != "bad") return absl::OkStatus();
    return absl::InvalidArgumentError("expected a good head");
  }
  absl::Status Parse(absl::string_view, data::Row*) override { return absl::OkStatus(); }
};

// Rows of its own that a worker has from the pass, as long as there are some.
std::vector<std::string> TakeAll(data::RowDealer* dealer, int rank, absl::Status* ended) {
  std::vector<std::string> lines;
  data::RowDealer::Dealt row;
  for (;;) {
    const absl::StatusOr<bool> more = dealer->Next(rank, &row);
    *ended = more.status();
    if (!more.ok() || !*more) return lines;
    const std::string& name = dealer->name(row.file);
    EXPECT_EQ(row.line, absl::StrCat(name.substr(name.size() - 1), row.line_number));
    lines.push_back(row.line);
  }
}

TEST(RowDealerTest, AWorkerThatIsFarBehindReadsByItself) {
  const TempDir dir;
  const auto rows = [](char name, int count) {
    std::string text;
    for (int i = 1; i <= count; ++i) absl::StrAppend(&text, std::string(1, name), i, "\n");
    return text;
  };
  const std::vector<std::string> files = {dir.Write("a", rows('a', 500)),
                                          dir.Write("b", rows('b', 700))};
  constexpr size_t kMax = 4096;
  data::RowDealer bounded(&files, std::make_unique<Heads>(), {}, 3, kMax);
  data::RowDealer alone(&files, std::make_unique<Heads>(), {}, 3);
  data::RowDealer::Dealt row;
  std::vector<std::string> slow;
  for (int i = 0; i < 5; ++i) {  // it takes part at first
    ASSERT_TRUE(*bounded.Next(2, &row));
    slow.push_back(row.line);
  }
  absl::Status ended;
  for (const int rank : {0, 1}) {
    EXPECT_EQ(TakeAll(&bounded, rank, &ended), TakeAll(&alone, rank, &ended)) << rank;
    EXPECT_TRUE(ended.ok()) << ended;
    EXPECT_LE(bounded.held_bytes(), kMax);
  }
  EXPECT_GT(alone.held_bytes(), kMax);
  for (const std::string& line : TakeAll(&bounded, 2, &ended)) slow.push_back(line);
  EXPECT_EQ(slow, TakeAll(&alone, 2, &ended));
  EXPECT_EQ(slow.size(), 400u);
  EXPECT_EQ(alone.held_bytes(), 0u);
}

TEST(RowDealerTest, AnErrorStaysForAllWorkers) {
  const TempDir dir;
  const std::vector<std::string> files = {dir.Write("a", "a1\na2\na3\n"), dir.Write("x", "bad\n"),
                                          dir.Write("b", "b1\nb2\nb3\nb4\n")};
  for (const size_t most :
       {size_t{1}, size_t{1} << 20}) {  // also of workers that read by themselves
    SCOPED_TRACE(most);
    data::RowDealer dealer(&files, std::make_unique<Heads>(), {}, 2, most);
    absl::Status ended;
    for (int again = 0; again < 3; ++again) {
      EXPECT_EQ(TakeAll(&dealer, 1, &ended).size(), again == 0 ? 1u : 0u);
      ExpectOneLine(ended, {"x:1: ", "expected a good head"});
    }
    EXPECT_EQ(TakeAll(&dealer, 0, &ended).size(), 2u) << "rows before the error are its own";
    ExpectOneLine(ended, {"x:1: ", "expected a good head"});
  }
}

// Whose parser does not take the file has no bad row: none of the file is to be had.
TEST(RowDealerTest, AFileThatDoesNotBeginIsNoBadRow) {
  class Any final : public data::RowParser {
   public:
    absl::Status Parse(absl::string_view, data::Row*) override { return absl::OkStatus(); }
  };
  const TempDir dir;
  const std::vector<std::string> files = {dir.Write("a", "bad\nx\ny\n")};
  Heads heads;
  data::RowPass pass(
      std::make_shared<data::RowDealer>(&files, std::make_unique<Any>(), data::RowSelection(), 1),
      &heads, 0, /*skip=*/9);
  data::Row row;
  for (int again = 0; again < 2; ++again) {
    ExpectOneLine(pass.Next(&row).status(), {"a:1: ", "expected a good head"});
  }
}

TEST(SharedReaderTest, EpochsOfNcfAreDrawnOnce) {
  const TempDir dir;
  std::string text;
  for (int user = 0; user < 30; ++user) {
    for (int item = user % 3; item < 40; item += 3)
      absl::StrAppend(&text, user, "\t", item, "\t5\n");
  }
  ExpectSharedIsAlone(MakePlan(Data::NCF, {dir.Write("train", text)}, 4, 16), data::NewTrainSource);
}

// The real file, if it is here: the shape that the reader was written for.
TEST(BatchSourceTest, RealCriteoRows) {
  const char* const data = std::getenv("TANDEM_DATA");
  if (data == nullptr) GTEST_SKIP() << "TANDEM_DATA is not set";
  job::ResolvedJob plan =
      MakePlan(Data::CRITEO, {"$TANDEM_DATA/criteo-kaggle/first8000.tsv"}, 2, 512);
  ASSERT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
  int64_t rows = 0, positives = 0;
  std::set<uint64_t> keys;
  for (int rank = 0; rank < 2; ++rank) {
    auto source = *data::NewTrainSource(plan, rank);
    for (const data::Batch& batch : ReadEpoch(source.get(), 0)) {
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

// Where a run goes on: what follows is the same whether the rows before were trained on or skipped.
TEST(BatchSourceTest, SkippedRowsChangeNothingOfWhatFollows) {
  const TempDir dir;
  for (const int64_t buffer : {0, 17}) {
    job::ResolvedJob plan = NumberedPlan({dir.Write("a.csv", NumberedRows(0, 101))}, 3, 4);
    plan.job.mutable_data()->set_shuffle_buffer(buffer);
    for (const int64_t batches : {0, 1, 5, 8, 20}) {
      auto whole = *data::NewTrainSource(plan, 1), skipped = *data::NewTrainSource(plan, 1);
      const std::vector<int> all = Numbers(ReadEpoch(whole.get(), 3));
      const int64_t rows = std::min<int64_t>(4 * batches, static_cast<int64_t>(all.size()));
      ASSERT_TRUE(skipped->StartEpoch(3).ok());
      EXPECT_EQ(*skipped->Skip(batches == 20 ? int64_t{1} << 60 : rows), rows);
      std::vector<data::Batch> rest(1);
      while (skipped->Next(&rest.back()).ok() && rest.back().samples > 0) rest.emplace_back();
      rest.pop_back();
      EXPECT_EQ(Numbers(rest), std::vector<int>(all.begin() + rows, all.end()))
          << buffer << " held, " << batches << " batches";
    }
  }
}

}  // namespace
}  // namespace tandem
