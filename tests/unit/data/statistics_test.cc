// Numbers between the file and the model: fill, clip, log and scale; means and deviations that are
// the same everywhere and travel with a model.
#include "data/statistics.h"

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "data/cells.h"
#include "data/transforms.h"
#include "tests/test_seed.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::HasSubstr;

// Label, then two numeric columns, then a categorical one.
job::ResolvedJob NumbersPlan(const std::vector<std::string>& files, int workers) {
  job::ResolvedJob plan = MakePlan(Data::DELIMITED, files, workers, 16);
  Columns* const columns = plan.job.mutable_data()->mutable_columns();
  columns->set_delimiter(",");
  columns->set_label("0");
  columns->add_numeric("1");
  columns->add_numeric("2");
  columns->add_categorical("3");
  return plan;
}

Column* RuleFor(const std::string& name, job::ResolvedJob* plan) {
  Column* const rule = plan->job.mutable_data()->mutable_columns()->add_column();
  rule->set_name(name);
  return rule;
}

// The numbers of worker `rank`, two a row.
std::vector<float> NumbersOf(const job::ResolvedJob& plan, int rank) {
  auto source = data::NewTrainSource(plan, rank);
  EXPECT_TRUE(source.ok()) << source.status();
  std::vector<float> numbers;
  if (!source.ok()) return numbers;
  for (const data::Batch& batch : ReadEpoch(source->get(), 0)) {
    numbers.insert(numbers.end(), batch.numbers.begin(), batch.numbers.end());
  }
  return numbers;
}

std::vector<float> ColumnOf(const job::ResolvedJob& plan, int column) {
  const std::vector<float> numbers = NumbersOf(plan, 0);
  std::vector<float> result;
  for (size_t i = column; i < numbers.size(); i += 2) result.push_back(numbers[i]);
  return result;
}

TEST(StatisticsTest, NumbersAreStandardisedUnlessTheJobSaysOtherwise) {
  const TempDir dir;
  job::ResolvedJob plan =
      NumbersPlan({dir.Write("a.csv", "1,1,7,a\n0,,7,a\n1,3,7,b\n0,5,7,b\n")}, 1);
  const float most = static_cast<float>(std::sqrt(1.5));
  EXPECT_THAT(ColumnOf(plan, 0), ElementsAre(FloatNear(-most, 1e-6f), 0, 0, FloatNear(most, 1e-6f)))
      << "a missing number is the mean";
  EXPECT_THAT(ColumnOf(plan, 1), ElementsAre(0, 0, 0, 0)) << "all the same";
  Columns* const columns = plan.job.mutable_data()->mutable_columns();
  columns->set_scale(Column::NONE);
  EXPECT_THAT(ColumnOf(plan, 0), ElementsAre(1, 0, 3, 5));
  columns->set_scale(Column::SCALE_UNSPECIFIED);
  columns->set_log_transform(true);
  EXPECT_THAT(ColumnOf(plan, 0),
              ElementsAre(data::LogTransform(1), 0, data::LogTransform(3), data::LogTransform(5)))
      << "log_transform alone is as it was before there were scales";
}

TEST(StatisticsTest, FillClipLogAndScaleInThisOrder) {
  const TempDir dir;
  job::ResolvedJob plan =
      NumbersPlan({dir.Write("a.csv", "1,-8,1,a\n0,,100,a\n1,3,,b\n0,5000,5,b\n")}, 1);
  Column* const first = RuleFor("1", &plan);
  first->set_fill(20);
  first->set_clip_min(0);
  first->set_clip_max(15);
  first->set_log(true);
  first->set_scale(Column::NONE);
  const auto log = [](double x) { return FloatNear(static_cast<float>(std::log1p(x)), 1e-6f); };
  EXPECT_THAT(ColumnOf(plan, 0), ElementsAre(0, log(15), log(3), log(15)));
  first->set_scale(Column::STANDARDISE);
  const double mean = (0 + std::log1p(15) + std::log1p(3) + std::log1p(15)) / 4;
  double squares = 0;
  for (const double x : {0.0, std::log1p(15), std::log1p(3), std::log1p(15)}) {
    squares += (x - mean) * (x - mean);
  }
  EXPECT_NEAR(ColumnOf(plan, 0)[0], (0 - mean) / std::sqrt(squares / 4), 1e-6);
  Column* const second = RuleFor("2", &plan);
  second->set_clip_max(7);
  second->set_scale(Column::NONE);
  EXPECT_THAT(ColumnOf(plan, 1), ElementsAre(1, 7, 0, 5)) << "missing, and nothing fills it";
}

std::string RandomRows(Random* random, int rows) {
  std::string text;
  for (int i = 0; i < rows; ++i) {
    absl::StrAppend(&text, i % 2, ",", random->Normal() * 1e4 + 1e7, ",",
                    random->Uniform(10) == 0 ? "" : absl::StrCat(random->Exponential()), ",x\n");
  }
  return text;
}

TEST(StatisticsTest, TheSameBitsOnAllWorkersAndForAnyNumberOfThem) {
  const TempDir dir;
  Random random(TestSeed());
  const std::vector<std::string> files = {dir.Write("a.csv", RandomRows(&random, 500)),
                                          dir.Write("b.csv", RandomRows(&random, 501))};
  const std::vector<float> alone = NumbersOf(NumbersPlan(files, 1), 0);
  for (const int workers : {2, 3}) {
    for (int rank = 0; rank < workers; ++rank) {
      const std::vector<float> share = NumbersOf(NumbersPlan(files, workers), rank);
      for (size_t i = 0; i < share.size(); ++i) {
        const size_t row = (i / 2) * static_cast<size_t>(workers) + static_cast<size_t>(rank);
        ASSERT_EQ(std::memcmp(&share[i], &alone[2 * row + i % 2], sizeof(float)), 0)
            << workers << " workers, row " << row;
      }
    }
  }
}

// Large values close together: a sum of squares would lose them.
TEST(StatisticsTest, DeviationsOfLargeNumbersAreExact) {
  const TempDir dir;
  const job::ResolvedJob plan = NumbersPlan(
      {dir.Write("a.csv", "1,1700000001,1,a\n0,1700000002,1,a\n1,1700000003,1,b\n")}, 1);
  const auto statistics = data::MeasureStatistics(plan);
  ASSERT_TRUE(statistics.ok()) << statistics.status();
  EXPECT_DOUBLE_EQ(statistics->column(0).mean(), 1700000002);
  EXPECT_DOUBLE_EQ(statistics->column(0).deviation(), std::sqrt(2.0 / 3));
  EXPECT_NEAR(ColumnOf(plan, 0)[0], -std::sqrt(1.5), 1e-6);
}

TEST(StatisticsTest, TrainingRowsAloneCountOrTheFirstOfThem) {
  const TempDir dir;
  const std::string train = "1,1,1,a\n0,3,1,a\n1,5,1,b\n0,7,1,b\n";
  job::ResolvedJob plan = NumbersPlan({dir.Write("a.csv", train + "0,1e9,1,b\n")}, 1);
  plan.job.mutable_data()->set_test_fraction(0.2);
  EXPECT_EQ(data::MeasureStatistics(plan)->column(0).mean(), 4);
  plan.job.mutable_data()->mutable_validation()->set_last_fraction(0.25);
  EXPECT_EQ(data::MeasureStatistics(plan)->column(0).mean(), 3);
  plan.job.mutable_data()->clear_validation();
  plan.job.mutable_data()->mutable_columns()->set_statistics_rows(2);
  EXPECT_EQ(data::MeasureStatistics(plan)->column(0).mean(), 2);
  EXPECT_EQ(data::MeasureStatistics(plan)->column(0).values(), 2);
  // Test rows are standardised by what was measured on the others.
  data::Batch batch = ReadEpoch((*data::NewTestSource(plan, 0)).get(), 0).at(0);
  EXPECT_EQ(batch.numbers[0], static_cast<float>((1e9 - 2) / 1));
}

TEST(StatisticsTest, NumbersThatOverflowAreTheLargestThereAre) {
  const TempDir dir;
  job::ResolvedJob plan = NumbersPlan({dir.Write("a.csv", "1,0,1,a\n0,1e-40,1,a\n")}, 1);
  plan.job.mutable_data()->add_test(dir.Write("t.csv", "0,3e38,1,a\n"));
  const data::Batch batch = ReadEpoch((*data::NewTestSource(plan, 0)).get(), 0).at(0);
  EXPECT_EQ(batch.numbers[0], std::numeric_limits<float>::max());
}

TEST(StatisticsTest, ThoseOfThePlanAreTaken) {
  const TempDir dir;
  job::ResolvedJob plan = NumbersPlan({dir.Write("a.csv", "1,1,7,a\n0,3,8,a\n")}, 1);
  plan.job.mutable_data()->mutable_statistics();
  ExpectOneLine(data::NewTrainSource(plan, 0).status(),
                {"data.statistics has no column '1'", "hint"});
  for (const char* name : {"1", "2"}) {
    ColumnStatistics* const column = plan.job.mutable_data()->mutable_statistics()->add_column();
    column->set_name(name);
    column->set_mean(1);
    column->set_deviation(4);
  }
  EXPECT_THAT(NumbersOf(plan, 0), ElementsAre(0, 1.5, 0.5, 1.75));
}

TEST(DescriptionTest, TravelsWithItsBitsAndRefusesAnotherMeaning) {
  const TempDir dir;
  Random random(TestSeed());
  job::ResolvedJob plan = NumbersPlan({dir.Write("a.csv", RandomRows(&random, 100))}, 1);
  RuleFor("1", &plan)->set_log(true);
  *plan.job.mutable_data()->mutable_statistics() = *data::MeasureStatistics(plan);
  const std::string description = data::DescribeData(plan.job.data());
  const std::vector<float> trained = NumbersOf(plan, 0);

  const auto adopt = [&](const std::function<void(Data*)>& change) {
    job::ResolvedJob other = plan;
    other.job.mutable_data()->clear_statistics();
    change(other.job.mutable_data());
    const absl::Status status = data::AdoptDescription(description, other.job.mutable_data());
    if (status.ok()) {
      EXPECT_EQ(NumbersOf(other, 0), trained);
    }
    return status;
  };
  EXPECT_TRUE(adopt([](Data*) {}).ok());
  // Another file, other spellings: the same meaning.
  EXPECT_TRUE(adopt([](Data* data) { data->mutable_columns()->add_missing("NA"); }).ok());
  ExpectOneLine(adopt([](Data* data) { data->set_format(Data::CRITEO); }),
                {"data.format is CRITEO", "trained with DELIMITED", "hint"});
  ExpectOneLine(
      adopt([](Data* data) { data->mutable_columns()->mutable_numeric()->SwapElements(0, 1); }),
      {"data.columns.numeric is [2, 1]", "[1, 2]", "hint"});
  ExpectOneLine(adopt([](Data* data) { data->mutable_columns()->add_categorical("4"); }),
                {"data.columns.categorical is [3, 4]", "[3]", "hint"});
  ExpectOneLine(adopt([](Data* data) { data->mutable_columns()->set_scale(Column::NONE); }),
                {"the transform of column '1'", "log, NONE", "log, STANDARDISE", "hint"});
  ExpectOneLine(adopt([](Data* data) { data->mutable_columns()->clear_column(); }),
                {"the transform of column '1'", "log, STANDARDISE", "hint"});
  ExpectOneLine(
      adopt([](Data* data) { data->mutable_columns()->mutable_column(0)->set_clip_max(3); }),
      {"the transform of column '1'", "clip_max 3", "hint"});
  const auto change_last = [](Column::DateUnit unit, const char* separator) {
    return [unit, separator](Data* data) {
      data->mutable_columns()->mutable_column(0)->set_date("%s");
      data->mutable_columns()->mutable_column(0)->set_date_unit(unit);
      Column* const last = data->mutable_columns()->add_column();
      last->set_name("3");
      last->set_separator(separator);
    };
  };
  ExpectOneLine(adopt(change_last(Column::SECONDS, "|")),
                {"ids in a cell of column '3' is several (SUM)", "with one", "hint"});
  ExpectOneLine(adopt(change_last(Column::SECONDS, "")),
                {"the transform of column '1' is date in SECONDS, log", "with log", "hint"});
  // As a job that starts from a checkpoint does.
  job::ResolvedJob next = NumbersPlan({dir.Write("b.csv", RandomRows(&random, 50))}, 1);
  RuleFor("1", &next)->set_log(true);
  ASSERT_TRUE(data::FillFromData(description, &next).ok());
  EXPECT_EQ(next.job.data().statistics().column(0).mean(),
            plan.job.data().statistics().column(0).mean());
  next.job.mutable_data()->mutable_columns()->clear_column();
  ExpectOneLine(data::FillFromData(description, &next), {"column '1'"});
  Data data = plan.job.data();
  ExpectOneLine(data::AdoptDescription("no description {", &data), {"not a description", "hint"});
}

TEST(DescriptionTest, WhatFilesMaySpellInAnotherWayIsSaid) {
  const TempDir dir;
  job::ResolvedJob plan = NumbersPlan({dir.Write("a.csv", "1,1,7,a\n")}, 1);
  RuleFor("1", &plan)->set_date("%Y");
  RuleFor("3", &plan)->set_separator("|");
  const std::string description = data::DescribeData(plan.job.data());
  Columns* const columns = plan.job.mutable_data()->mutable_columns();
  columns->set_quotes(Columns::DOUBLE);
  columns->set_decimal(".");
  EXPECT_THAT(data::CompareData(description, plan.job.data())->said, ElementsAre());
  columns->set_quotes(Columns::NONE);
  columns->set_decimal(",");
  columns->mutable_column(0)->set_date("%d.%m.%Y");
  columns->mutable_column(1)->set_separator(";");
  const auto differences = data::CompareData(description, plan.job.data());
  EXPECT_THAT(differences->refused, ElementsAre());
  EXPECT_THAT(differences->said,
              ElementsAre(HasSubstr("data.columns.quotes is NONE, but the checkpoint was trained "
                                    "with DOUBLE"),
                          HasSubstr("data.columns.decimal is ','"),
                          HasSubstr("column '1' date is '%d.%m.%Y'"),
                          HasSubstr("column '3' separator is ';'")));
}

// A file without a header and without labels is told by the number of its columns.
TEST(DescriptionTest, ColumnsOfRowsToScoreAreCountedAgainstTheTrainingRows) {
  const TempDir dir;
  job::ResolvedJob plan =
      NumbersPlan({dir.Write("e.csv", ""), dir.Write("a.csv", "1,5,7,a,x,y\n")}, 1);
  plan.job.mutable_data()->mutable_columns()->set_scale(Column::NONE);
  ASSERT_EQ(data::FillFromData("", &plan), absl::OkStatus());
  const auto first_row = [&](const char* text) -> absl::StatusOr<std::vector<float>> {
    job::ResolvedJob scored = NumbersPlan({}, 1);
    Data* const data = scored.job.mutable_data();
    data->mutable_columns()->set_scale(Column::NONE);
    data->set_score_only(true);
    data->add_test(dir.Write("t.csv", text));
    const absl::Status filled = data::FillFromData(data::DescribeData(plan.job.data()), &scored);
    EXPECT_EQ(filled, absl::OkStatus());
    const absl::Status checked = data::CheckData(scored);
    if (!checked.ok()) return checked;
    const data::Batch batch = ReadEpoch((*data::NewTestSource(scored, 0)).get(), 0).at(0);
    std::vector<float> row = batch.numbers;
    row.push_back(std::isnan(batch.labels[0]) ? -1 : batch.labels[0]);
    return row;
  };
  EXPECT_THAT(*first_row("0,5,7,a,x,y\n"), ElementsAre(5, 7, 0));
  EXPECT_THAT(*first_row("1,7,9,x,y\n"), ElementsAre(1, 7, -1)) << "no label";
  for (const char* other : {"0,5,7,a\n", "5,7,a\n", "0,5,7,a,x,y,z\n"}) {
    ExpectOneLine(first_row(other).status(), {"t.csv:1: ", "expected 6 as in the training data",
                                              "or 5 without a label", "hint"});
  }
  // With a header columns have names, and their number says nothing.
  plan.job.mutable_data()->clear_statistics();
  plan.job.mutable_data()->mutable_columns()->set_header(true);
  ASSERT_EQ(data::FillFromData("", &plan), absl::OkStatus());
  EXPECT_FALSE(plan.job.data().has_statistics());
}

// Every worker would take the first other label that it meets, and these are not the same ones: the
// files say which it is, once for all.
TEST(LabelsOfAJobTest, WhatCountsAsZeroIsTheSameForAllWorkers) {
  const TempDir dir;
  job::ResolvedJob plan =
      NumbersPlan({dir.Write("a.csv", "1,1,7,a\n2,3,8,a\n3,1,7,a\n2,3,8,a\n")}, 2);
  plan.job.mutable_data()->mutable_columns()->set_scale(Column::NONE);
  plan.job.mutable_data()->mutable_columns()->add_positive("1");
  ASSERT_TRUE(data::FillFromData("", &plan).ok());
  EXPECT_THAT(plan.job.data().columns().negative(), ElementsAre("2"));
  auto source = data::NewTrainSource(plan, 0);  // of the first and the third row
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_TRUE((*source)->StartEpoch(0).ok());
  data::Batch batch;
  ExpectOneLine((*source)->Next(&batch), {"a.csv:3", "'3'", "expected '1'"});

  // A checkpoint has it, too: what counts as 0 does not depend on what is evaluated.
  job::ResolvedJob next = NumbersPlan({dir.Write("b.csv", "3,1,7,a\n")}, 1);
  next.job.mutable_data()->mutable_columns()->set_scale(Column::NONE);
  next.job.mutable_data()->mutable_columns()->add_positive("1");
  ASSERT_TRUE(data::FillFromData(data::DescribeData(plan.job.data()), &next).ok());
  EXPECT_THAT(next.job.data().columns().negative(), ElementsAre("2"));
}

}  // namespace
}  // namespace tandem
