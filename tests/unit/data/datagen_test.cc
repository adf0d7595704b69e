// Generated data: the bytes are a function of the options, the ids follow Zipf's law, and the
// planted model is as good as it says.
#include "data/datagen.h"

#include <cmath>
#include <set>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "data/planted.h"
#include "tests/test_seed.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

TEST(AliasTableTest, DrawsInProportion) {
  const std::vector<double> weights = {1, 0.5, 4, 0.001, 2.5};
  const data::AliasTable table(weights);
  Random random(TestSeed());
  std::vector<double> drawn(weights.size());
  const int draws = 400'000;
  for (int i = 0; i < draws; ++i) drawn[table.Draw(random.Next64())] += 1;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double p = weights[i] / 8.001, deviation = std::sqrt(draws * p * (1 - p));
    EXPECT_NEAR(drawn[i], draws * p, 5 * deviation) << i << ", --seed=" << TestSeed();
  }
  EXPECT_EQ(data::AliasTable(std::vector<double>{3.0}).Draw(random.Next64()), 0u);
}

TEST(PlantedTest, FieldsHaveTenToAHundredThousandIdsWithValuesOfTheirOwn) {
  EXPECT_EQ(data::PlantedModel::Cardinality(0), 10u);
  EXPECT_EQ(data::PlantedModel::Cardinality(25), 100'000u);
  for (const int field : {0, 13, 25}) {
    std::set<uint32_t> values;
    for (uint32_t id = 0; id < data::PlantedModel::Cardinality(field); ++id) {
      values.insert(data::PlantedModel::ValueOf(field, id));
    }
    EXPECT_EQ(values.size(), data::PlantedModel::Cardinality(field));
  }
}

TEST(PlantedTest, IdsFollowZipf) {
  const data::PlantedModel model(1);
  Random random(TestSeed());
  data::PlantedSample sample;
  const int draws = 50'000, field = 9;  // 275 ids, none missing
  std::vector<double> drawn(data::PlantedModel::Cardinality(field) + 1);
  for (int i = 0; i < draws; ++i) {
    model.Draw(&random, &sample);
    drawn[sample.ids[field]] += 1;
  }
  double sum = 0;
  for (uint32_t id = 0; id < data::PlantedModel::Cardinality(field); ++id)
    sum += std::pow(id + 1, -1.05);
  for (const uint32_t id : {0u, 1u, 9u, 99u}) {
    const double expected = draws * std::pow(id + 1, -1.05) / sum;
    EXPECT_NEAR(drawn[id], expected, 5 * std::sqrt(expected)) << id;
  }
  EXPECT_EQ(drawn.back(), 0) << "no value is missing in this field";
}

TEST(PlantedTest, TheExponentSaysHowMuchOneIdOutweighsTheNext) {
  Random random(TestSeed());
  data::PlantedSample sample;
  const int draws = 20'000, field = 9;  // 275 ids
  for (const double exponent : {0.0, 2.0}) {
    const data::PlantedModel model(1, exponent);
    std::vector<double> drawn(data::PlantedModel::Cardinality(field) + 1);
    for (int i = 0; i < draws; ++i) {
      model.Draw(&random, &sample);
      drawn[sample.ids[field]] += 1;
    }
    double sum = 0;
    for (uint32_t id = 0; id < data::PlantedModel::Cardinality(field); ++id)
      sum += std::pow(id + 1, -exponent);
    for (const uint32_t id : {0u, 1u, 9u}) {
      const double expected = draws * std::pow(id + 1, -exponent) / sum;
      EXPECT_NEAR(drawn[id], expected, 5 * std::sqrt(expected)) << id << ", exponent " << exponent;
    }
  }
}

TEST(PlantedTest, KnowledgeOfEverythingIsTheModelItself) {
  const data::PlantedModel model(3);
  Random random(TestSeed());
  data::PlantedSample sample;
  const data::Sightings none;
  double with_effects = 0;
  for (int i = 0; i < 100; ++i) {
    model.Draw(&random, &sample);
    EXPECT_EQ(model.KnowableLogit(sample, none, 0), model.Logit(sample));
    with_effects += std::abs(model.KnowableLogit(sample, none, 1) - model.Logit(sample));
  }
  EXPECT_GT(with_effects, 10) << "unknown ids have no effect, so the logits differ";
  data::Sightings some;
  some.Add(sample);
  EXPECT_EQ(model.KnowableLogit(sample, some, 1), model.Logit(sample));
}

data::DatagenOptions SmallOptions(const TempDir& dir, const std::string& name) {
  data::DatagenOptions options;
  options.train = dir.Path(name + ".train.tsv");
  options.test = dir.Path(name + ".test.tsv");
  options.train_rows = 20'000;
  options.test_rows = 10'000;
  options.seed = 5;
  return options;
}

TEST(DatagenTest, TheReportIsTrue) {
  const TempDir dir;
  const data::DatagenOptions options = SmallOptions(dir, "a");
  std::ostringstream log;
  const auto report = data::MakeCriteo(options, log);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_NEAR(report->positive_share, 0.25, 0.02);
  EXPECT_GT(report->planted_auc, report->attainable_auc);
  EXPECT_GT(report->attainable_auc, 0.7);
  EXPECT_LT(report->planted_auc, 0.9);
  EXPECT_THAT(log.str(), ::testing::HasSubstr(absl::StrCat("seed 5")));
  EXPECT_THAT(ReadAll(options.train + ".json"),
              ::testing::HasSubstr(
                  "\"seed\": 5, \"skew\": 1.05, \"train_rows\": 20000, \"test_rows\": 10000"));

  // The files are what the reader for real data accepts, with as many rows and positives.
  job::ResolvedJob plan = MakePlan(Data::CRITEO, {options.train}, 1, 1000);
  plan.job.mutable_data()->add_test(options.test);
  ASSERT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
  int64_t rows = 0;
  double positives = 0;
  for (const data::Batch& batch : ReadEpoch((*data::NewTrainSource(plan, 0)).get(), 0)) {
    rows += batch.samples;
    for (const float label : batch.labels) positives += label;
  }
  EXPECT_EQ(rows, options.train_rows);
  EXPECT_DOUBLE_EQ(positives / static_cast<double>(rows), report->positive_share);
}

TEST(DatagenTest, BytesDependOnTheSeedAlone) {
  const TempDir dir;
  std::ostringstream log;
  data::DatagenOptions options = SmallOptions(dir, "a");
  options.train_rows = options.test_rows = 500;
  ASSERT_TRUE(data::GenerateCriteo(options, log).ok());
  data::DatagenOptions again = SmallOptions(dir, "b");
  again.train_rows = 1000;  // a longer file begins with the shorter one
  again.test_rows = 500;
  again.test += ".gz";
  again.report = dir.Path("report.json");
  ASSERT_TRUE(data::GenerateCriteo(again, log).ok());
  const std::string train = ReadAll(options.train);
  EXPECT_EQ(ReadAll(again.train).substr(0, train.size()), train);
  EXPECT_NE(ReadAll(options.test), train);
  EXPECT_FALSE(ReadAll(again.report).empty());
  EXPECT_EQ(ReadAll(again.test).substr(0, 2), "\x1f\x8b") << "gzip by its name";
  again.seed = 6;
  ASSERT_TRUE(data::GenerateCriteo(again, log).ok());
  EXPECT_NE(ReadAll(again.train).substr(0, train.size()), train);
}

TEST(DatagenTest, FailureLeavesNothingBehind) {
  const TempDir dir;
  std::ostringstream log;
  data::DatagenOptions options = SmallOptions(dir, "a");
  options.test = dir.Path("no/such/dir/test.tsv");
  ExpectOneLine(data::GenerateCriteo(options, log),
                {"cannot create", "no/such/dir/test.tsv", "hint"});
  EXPECT_TRUE(std::filesystem::is_empty(dir.Path("")));
  options.test = options.train;
  ExpectOneLine(data::GenerateCriteo(options, log), {"two different file names"});
  options = SmallOptions(dir, "a");
  options.train_rows = 0;
  ExpectOneLine(data::GenerateCriteo(options, log), {"at least 1"});
  options = SmallOptions(dir, "a");
  for (const double skew : {-0.5, 5.0, std::nan("")}) {
    options.skew = skew;
    ExpectOneLine(data::GenerateCriteo(options, log), {"skew", "expected", "from 0"});
  }
}

}  // namespace
}  // namespace tandem
