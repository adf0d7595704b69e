// What is said of a job that starts from a checkpoint of another one: each difference that gives
// numbers another meaning is refused, each that a user may well want is said, both in one line that
// has what the job says, what the checkpoint says, and what to do.
#include "server/checkpoint/checkpoint_check.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "job/job.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr char kJob[] = R"(
seed: 1
cluster { workers: 2 servers: 1 }
data {
  format: DELIMITED train: "train.csv" test: "test.csv"
  columns { delimiter: "," header: true label: "taken" positive: "yes" missing: "?"
            numeric: ["age", "visits"] categorical: ["city", "offer"] }
}
table { name: "cities" dim: 8 field: "city" optimizer { kind: ADAGRAD learning_rate: 0.1 } }
table { name: "offers" dim: 4 field: "offer" optimizer { kind: ADAGRAD learning_rate: 0.1 } }
dense { optimizer { kind: ADAM learning_rate: 0.01 } }
model { mlp { hidden: [16] } }
train { batch_size: 16 }
)";

job::ResolvedJob PlanOf(const job::Overrides& overrides, const std::string& text = kJob) {
  const absl::StatusOr<Job> job = job::ParseJob(text, "job", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job::Resolve(*job) : job::ResolvedJob();
}

// A checkpoint of kJob, as it is when it is read again.
server::Manifest Checkpointed() {
  server::Manifest manifest;
  server::DescribeMeaning(PlanOf({}), &manifest);
  const absl::StatusOr<server::Manifest> read =
      server::ParseManifest(server::EncodeManifest(manifest));
  EXPECT_TRUE(read.ok()) << read.status();
  return *read;
}

// `without`: tables that have no row in the checkpoint.
server::CheckpointFit Compare(const server::Manifest& saved, const job::ResolvedJob& plan,
                              const std::vector<std::string>& only = {},
                              const std::vector<std::string>& without = {}) {
  return server::CompareCheckpoint(saved, plan, only, [&](const std::string& table) {
    return std::find(without.begin(), without.end(), table) == without.end();
  });
}

server::CheckpointFit Fit(const job::Overrides& overrides,
                          const std::vector<std::string>& only = {},
                          const std::vector<std::string>& without = {}) {
  return Compare(Checkpointed(), PlanOf(overrides), only, without);
}

void ExpectWords(const std::vector<std::string>& lines, const std::vector<std::string>& words) {
  ASSERT_EQ(lines.size(), 1u) << absl::StrJoin(lines, "\n");
  EXPECT_THAT(lines[0], Not(HasSubstr("\n")));
  for (const std::string& word : words) EXPECT_THAT(lines[0], HasSubstr(word));
}

TEST(CheckpointCheckTest, TheSameJobFits) {
  const server::CheckpointFit fit = Fit({});
  EXPECT_THAT(fit.refused, IsEmpty());
  EXPECT_THAT(fit.said, IsEmpty());
}

// Rates, batches, policies, servers and files do not change what a number means.
TEST(CheckpointCheckTest, WhatMayDifferWithoutAWord) {
  const server::CheckpointFit fit = Fit({{"table[0].optimizer.learning_rate", "0.5"},
                                         {"train.batch_size", "64"},
                                         {"policy.kind", "ASP"},
                                         {"cluster.servers", "3"},
                                         {"dense.synchroniser", "SERVERS"},
                                         {"data.train", "other.csv"},
                                         {"table[1].frozen", "true"}});
  EXPECT_THAT(fit.refused, IsEmpty());
  EXPECT_THAT(fit.said, IsEmpty());
}

struct Variation {
  job::Overrides overrides;
  std::vector<std::string> words;
};

// Parameters are compared by name and shape when they are read.
TEST(CheckpointCheckTest, AModuleMayLieElsewhere) {
  const auto plan = [](const char* file) {
    return PlanOf({{"model", absl::StrCat("{script {file: '", file, "'}}")}});
  };
  server::Manifest saved;
  server::DescribeMeaning(plan("m.pt"), &saved);
  EXPECT_EQ(saved.model, "script { }");
  EXPECT_THAT(Compare(saved, plan("n.pt")).refused, IsEmpty());
  ExpectWords(Compare(saved, PlanOf({})).refused, {"model is mlp", "script"});
}

// Rows change their type when they are loaded, and the user learns which do.
TEST(CheckpointCheckTest, OtherTypesOfRowsAreSaid) {
  const auto types = [](const char* row, const char* hot) {
    job::Overrides overrides = {{"table[0].row_dtype", row}};
    if (*hot != 0) overrides.push_back({"table[0].hot_rows", hot});
    return PlanOf(overrides);
  };
  const auto from = [](const job::ResolvedJob& plan) {
    server::Manifest manifest;
    server::DescribeMeaning(plan, &manifest);
    manifest.files.emplace_back().table = "cities";
    manifest.files.back().rows = 7;
    return manifest;
  };
  const char* const hot = "{min_updates: 5}";
  const server::Manifest int8 = from(types("INT8", "")), with_hot = from(types("INT8", hot));
  const auto read = server::ParseManifest(server::EncodeManifest(with_hot));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->tables[0].hot_dtype, "F32");
  ExpectWords(Compare(int8, types("BF16", "")).said,
              {"row_dtype of table cities is BF16, the checkpoint's is INT8: 7 rows are rounded"});
  ExpectWords(Compare(int8, types("F32", "")).said, {"INT8: 7 rows keep their values"});
  ExpectWords(Compare(with_hot, types("INT8", "")).said,
              {"hot_rows of table cities: none in the job, F32 in the checkpoint; its hot rows are "
               "rounded to the nearest INT8"});
  ExpectWords(Compare(with_hot, types("INT8", "{min_updates: 5 dtype: F16}")).said,
              {"hot_rows of table cities: F16", "rounded to the nearest F16"});
  ExpectWords(Compare(with_hot, types("BF16", hot)).said, {"row_dtype of table cities is BF16"});
  EXPECT_THAT(Compare(int8, types("INT8", hot)).said, IsEmpty());
  EXPECT_THAT(Compare(with_hot, types("INT8", "{min_updates: 9}")).said, IsEmpty());
}

TEST(CheckpointCheckTest, AnotherMeaningIsRefused) {
  const std::vector<Variation> variations = {
      {{{"model", "{mlp {hidden: [32]}}"}},
       {"model is mlp { hidden: 32 } in the job", "mlp { hidden: 16 } in the checkpoint",
        "--only-tables"}},
      {{{"model", "{mlp {hidden: [16, 16]}}"}}, {"model is mlp", "hint"}},
      {{{"model", "{dlrm {bottom: [8]}}"},
        {"table[1].dim", "8"}},  // two lines: the first is of the model
       {}},
      {{{"table[0].dim", "16"}}, {"dim of table cities is 16 in the job, 8 in the checkpoint"}},
      {{{"table[0].field", "offer"}, {"table[1].field", "city"}}, {}},
      {{{"table[1].name", "gifts"}}, {}},
      {{{"data.columns.numeric", "[\"visits\", \"age\"]"}},
       {"data.columns.numeric is [visits, age]", "[age, visits]", "hint"}},
      {{{"data.columns.numeric", "[\"age\", \"minutes\"]"}}, {"[age, minutes]"}},
      {{{"data.columns.log_transform", "true"}}, {}},  // a line for each column
      {{{"data.columns.column", "{name: \"age\" log: true}"}},
       {"the transform of column 'age' is log, STANDARDISE", "STANDARDISE"}},
      {{{"data.columns.column", "{name: \"age\" clip_max: 90}"}}, {"'age'", "clip_max 90"}},
      {{{"data.columns.categorical", "[\"offer\", \"city\"]"}},
       {"data.columns.categorical is [offer, city]"}},
  };
  for (const Variation& variation : variations) {
    SCOPED_TRACE(variation.overrides[0].first + "=" + variation.overrides[0].second);
    const server::CheckpointFit fit = Fit(variation.overrides);
    EXPECT_THAT(fit.refused, Not(IsEmpty()));
    for (const std::string& line : fit.refused) {
      EXPECT_THAT(line, HasSubstr("hint: "));
      EXPECT_THAT(line, Not(HasSubstr("\n")));
    }
    if (!variation.words.empty()) ExpectWords(fit.refused, variation.words);
  }
  EXPECT_EQ(Fit({{"table[0].field", "offer"}, {"table[1].field", "city"}}).refused.size(), 2u);
  EXPECT_THAT(
      Fit({{"table[1].name", "gifts"}}).refused,
      ElementsAre(HasSubstr("the job has a table gifts, the checkpoint has only cities, offers"),
                  HasSubstr("the checkpoint has a table offers, the job has only cities, gifts")));
}

// A job that takes no step needs the whole model.
TEST(CheckpointCheckTest, AnEvaluationIsNotToldToTakeSomeTables) {
  for (const char* path : {"table[1].name", "model"}) {
    const bool model = path == std::string("model");
    const server::CheckpointFit fit =
        Fit({{path, model ? "{mlp {hidden: [32]}}" : "gifts"}, {"train.evaluate_only", "true"}});
    EXPECT_THAT(fit.refused, Not(IsEmpty()));
    for (const std::string& line : fit.refused) {
      EXPECT_THAT(line, AllOf(HasSubstr("hint: "), Not(HasSubstr("--only-tables"))));
    }
  }
}

// What a program keeps in a row beside its weights is no optimizer's that could begin afresh.
TEST(CheckpointCheckTest, ATableOfAnotherStateIsRefused) {
  const auto with = [](int floats) {
    return PlanOf(
        {}, absl::StrCat(kJob, "\ntable { name: \"cache\" dim: 4 kind: KEY_VALUE extra_floats: ",
                         floats, " }\n"));
  };
  server::Manifest saved;
  server::DescribeMeaning(with(5), &saved);
  EXPECT_THAT(Compare(saved, with(5)).refused, IsEmpty());
  for (const int other : {6, 0}) {
    ExpectWords(Compare(saved, with(other)).refused,
                {"extra_floats (kind KEY_VALUE) of table cache", "program(5)", "hint"});
  }
}

// The cells of all tables go into the model in the order of the tables.
TEST(CheckpointCheckTest, TablesInAnotherOrderAreRefused) {
  std::string swapped = kJob;
  const size_t cities = swapped.find("table { name: \"cities\""),
               offers = swapped.find("table { name: \"offers\"");
  const std::string line = swapped.substr(cities, offers - cities);
  swapped.erase(cities, line.size());
  swapped.insert(swapped.find("dense {"), line);
  const server::CheckpointFit fit = Compare(Checkpointed(), PlanOf({}, swapped));
  ExpectWords(fit.refused, {"the order of tables", "cities", "offers", "hint"});
}

TEST(CheckpointCheckTest, AnotherFormatIsRefused) {
  const std::string libsvm = R"(seed: 1
cluster { workers: 2 servers: 1 }
data { format: LIBSVM train: "a.svm" }
table { name: "cities" dim: 8 }
dense { optimizer { kind: ADAM learning_rate: 0.01 } }
model { mlp { hidden: [16] } }
train { batch_size: 16 })";
  const server::CheckpointFit fit = Compare(Checkpointed(), PlanOf({}, libsvm));
  EXPECT_THAT(absl::StrJoin(fit.refused, "\n"),
              HasSubstr("data.format is LIBSVM, but the checkpoint was trained with DELIMITED"));
}

TEST(CheckpointCheckTest, AnotherHashingIsRefused) {
  server::Manifest saved = Checkpointed();
  saved.hashing = "another";
  ExpectWords(Compare(saved, PlanOf({})).refused, {"the hashing of ids", "another"});
}

TEST(CheckpointCheckTest, WhatFineTuningChangesIsSaid) {
  const std::vector<Variation> variations = {
      {{{"seed", "7"}}, {"seed is 7, the checkpoint's is 1", "other initial values"}},
      {{{"table[0].optimizer", "{kind: ADAM learning_rate: 0.1}"}},
       {"the optimizer of table cities is adam(table)", "adagrad",
        "the optimizer state starts afresh"}},
      {{{"dense.optimizer", "{kind: SGD learning_rate: 0.1}"}},
       {"the optimizer of the dense parameters is sgd", "adam",
        "the optimizer state starts afresh"}},
      {{{"table[1].initializer", "{kind: NORMAL scale: 0.5}"}},
       {"the initializer of table offers is { kind: NORMAL scale: 0.5 }", "UNIFORM"}},
      {{{"data.columns.positive", "no"}},
       {"data.columns.positive is [no]", "trained with [yes]", "change sides"}},
      {{{"data.columns.missing", "[\"?\", \"NA\"]"}},
       {"data.columns.missing is [?, NA]", "trained with [?]"}},
      {{{"data.columns.trim", "true"}}, {"data.columns.trim is true", "with false", "blanks"}},
      {{{"data.columns.column", "{name: \"age\" missing: \"-1\"}"}},
       {"column 'age' missing is [-1]", "trained with []"}},
  };
  for (const Variation& variation : variations) {
    SCOPED_TRACE(variation.overrides[0].first);
    const server::CheckpointFit fit = Fit(variation.overrides);
    EXPECT_THAT(fit.refused, IsEmpty());
    ExpectWords(fit.said, variation.words);
  }
}

// An evaluation has no use for optimizer state.
TEST(CheckpointCheckTest, AnotherOptimizerDoesNotMatterToAnEvaluation) {
  const server::CheckpointFit fit = Fit({{"table[0].optimizer", "{kind: ADAM learning_rate: 0.1}"},
                                         {"dense.optimizer", "{kind: SGD learning_rate: 0.1}"},
                                         {"train.evaluate_only", "true"}});
  EXPECT_THAT(fit.refused, IsEmpty());
  EXPECT_THAT(fit.said, IsEmpty());
}

// A frozen table has no row in a checkpoint, so the job gives all of its rows their values.
TEST(CheckpointCheckTest, ATableWithoutRowsIsNamed) {
  const std::vector<std::string> offers = {"offers"};
  const job::Overrides seed = {{"seed", "7"}}, evaluates = {{"train.evaluate_only", "true"}},
                       normal = {{"table[1].initializer", "{kind: NORMAL scale: 0.5}"}};
  const auto both = [&](job::Overrides overrides) {
    overrides.push_back(evaluates[0]);
    return overrides;
  };
  ExpectWords(Fit(seed, {}, offers).said,
              {"seed is 7, the checkpoint's is 1", "the checkpoint lacks all rows of offers"});
  EXPECT_THAT(Fit(seed).said[0], Not(HasSubstr("all rows")));
  EXPECT_THAT(Fit(seed, {"cities"}, offers).said[0], Not(HasSubstr("all rows")));
  ExpectWords(Fit(normal, {}, offers).said,
              {"the initializer of table offers", "all rows of the table"});
  ExpectWords(Fit(both(seed), {}, offers).refused,
              {"seed is 7 in the job, 1 in the checkpoint; hint: ", "no row of offers"});
  ExpectWords(Fit(both(normal), {}, offers).refused,
              {"the initializer of table offers is { kind: NORMAL", "hint: "});
  for (const job::Overrides& overrides : {seed, normal}) {
    EXPECT_THAT(Fit(overrides, {}, offers).refused, IsEmpty()) << "training goes on from there";
    const size_t of_cities = Fit(both(overrides), {}, {"cities"}).refused.size();
    EXPECT_EQ(of_cities, overrides == seed ? 1u : 0u);
    EXPECT_THAT(Fit(both(overrides)).refused, IsEmpty()) << "both tables have rows";
  }
  EXPECT_THAT(Fit(evaluates, {}, offers).refused, IsEmpty()) << "the same values";
}

// The seed changes no row of a table whose initial values are constant.
TEST(CheckpointCheckTest, ConstantRowsDoNotDependOnTheSeed) {
  const std::string constant = "{kind: CONSTANT scale: 0.5}";
  const job::Overrides was = {{"table[1].initializer", constant}};
  server::Manifest saved;
  server::DescribeMeaning(PlanOf(was), &saved);
  const job::Overrides now = {was[0], {"seed", "7"}, {"train.evaluate_only", "true"}};
  EXPECT_THAT(Compare(saved, PlanOf(now), {}, {"offers"}).refused, IsEmpty());
}

// The manifest says how an id without a row reads. The row that it may get later has the values of
// the job's initializer.
TEST(CheckpointCheckTest, IdsWithoutARowMayReadAsZeros) {
  const job::Overrides zeros = {
      {"table[1].admission", "{kind: COUNT threshold: 2 unadmitted: ZERO}"}};
  server::Manifest saved;
  server::DescribeMeaning(PlanOf(zeros), &saved);
  EXPECT_EQ(saved.tables[1].initializer, "kind: ZERO");
  const server::CheckpointFit fit = Compare(saved, PlanOf(zeros));
  EXPECT_THAT(fit.refused, IsEmpty());
  EXPECT_THAT(fit.said, IsEmpty());
  ExpectWords(Fit(zeros).said, {"the initializer of table offers is { kind: ZERO }"});
}

// Some tables are taken on purpose: only these must fit.
TEST(CheckpointCheckTest, SomeTablesAlone) {
  const job::Overrides another = {{"model", "{mlp {hidden: [99]}}"},
                                  {"data.columns.numeric", "[\"minutes\"]"},
                                  {"table[1].dim", "64"}};
  EXPECT_THAT(Fit(another, {"cities"}).refused, IsEmpty());
  ExpectWords(Fit(another, {"cities", "offers"}).refused, {"dim of table offers"});
  ExpectWords(Fit({}, {"citties"}).refused,
              {"the job has no table citties, it has cities, offers"});
  ExpectWords(Fit({{"table[1].name", "gifts"}}, {"gifts"}).refused,
              {"the checkpoint has only cities, offers"});
}

}  // namespace
}  // namespace tandem
