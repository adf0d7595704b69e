// MLP, DLRM and GMF as modules of PyTorch (tests/python/models.py) beside the compiled models: the
// gradients of one batch, and what a job learns from the same rows. Skipped where there is no
// interpreter with PyTorch and numpy.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

constexpr uint64_t kSeed = 7;
constexpr int kSamples = 100;  // a batch

struct Case {
  std::string name, config;
  int numeric = 0;
  std::vector<std::string> tables;  // of their fields
  nlohmann::json widths;
};

int Fields(const std::string& table) {
  return 1 + static_cast<int>(std::count(table.begin(), table.end(), ' '));
}

// "city offer" is a table of two fields.
const Case kCases[] = {
    {"mlp", "mlp { hidden: 16 hidden: 8 }", 2, {"city offer", "day"}, {{16, 8}}},
    {"dlrm", "dlrm { bottom: 12 bottom: 8 top: 16 }", 2, {"city offer", "day"}, {{12, 8}, {16}}},
    {"gmf", "gmf {}", 0, {"city", "offer"}, nlohmann::json::array()},
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

class PythonModelsTest : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (PythonInterpreter().empty()) GTEST_SKIP() << "no python3 with torch and numpy here";
    WriteTextFile(folder_.File("case.json"), CaseJson().dump());
  }

  // A random batch, the first values of the parameters, and what the compiled model computes.
  nlohmann::json CaseJson() {
    constexpr int kDim = 8;
    const Case& c = GetParam();
    Model config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(c.config, &config));
    models::ModelInputs inputs;
    inputs.numeric = c.numeric;
    std::vector<std::string> fields;
    for (const std::string& table : c.tables) {
      inputs.tables.push_back({table, Fields(table), kDim});
      fields.push_back(table);
    }
    auto model = models::NewDenseModel(config, inputs, /*threads=*/1);
    EXPECT_TRUE(model.ok()) << model.status();
    Random random(kSeed);
    const auto normals = [&](size_t count) {
      std::vector<float> values(count);
      for (float& x : values) x = static_cast<float>(0.5 * random.Normal());
      return values;
    };
    data::Batch batch;
    batch.samples = kSamples;
    batch.numeric = c.numeric;
    batch.numbers = normals(static_cast<size_t>(kSamples * c.numeric));
    for (int s = 0; s < kSamples; ++s) batch.labels.push_back(random.Bernoulli(0.4) ? 1 : 0);
    std::vector<std::vector<float>> rows, row_gradients;
    for (const auto& table : inputs.tables) {
      rows.push_back(normals(static_cast<size_t>(kSamples * table.fields * table.dim)));
      row_gradients.emplace_back(rows.back().size());
    }
    std::vector<absl::Span<float>> spans;
    for (auto& gradient : row_gradients) spans.push_back(absl::MakeSpan(gradient));
    std::vector<float> flat(static_cast<size_t>((*model)->parameter_count())),
        gradient(flat.size()), logits(kSamples);
    models::InitParameters((*model)->parameters(), kSeed, absl::MakeSpan(flat));
    const std::vector<models::PooledRows> pooled(rows.begin(), rows.end());
    double loss = 0;
    EXPECT_TRUE((*model)
                    ->ForwardBackward(batch, flat, pooled, absl::MakeSpan(logits), &loss,
                                      absl::MakeSpan(gradient), spans)
                    .ok());
    nlohmann::json json = {
        {"model", c.name},
        {"numeric", c.numeric},
        {"dim", kDim},
        {"widths", c.widths},
        {"batch", kSamples},
        {"labels", batch.labels},
        {"numbers", batch.numbers},
        {"logits", logits},
        {"cells", Joined(inputs, rows)},
        {"cell_gradients", Joined(inputs, row_gradients)},
        {"fields", std::vector<std::string>(absl::StrSplit(absl::StrJoin(fields, " "), ' '))}};
    for (const models::ParameterInfo& p : (*model)->parameters()) {
      const auto part = [&](const std::vector<float>& of) {
        return std::vector<float>(of.begin() + p.offset, of.begin() + p.offset + p.size);
      };
      json["parameters"].push_back(
          {{"name", p.name}, {"values", part(flat)}, {"gradient", part(gradient)}});
    }
    return json;
  }

  // Of each sample the cells of all tables.
  static std::vector<float> Joined(const models::ModelInputs& inputs,
                                   const std::vector<std::vector<float>>& of_tables) {
    std::vector<float> all;
    for (int s = 0; s < kSamples; ++s) {
      for (size_t t = 0; t < of_tables.size(); ++t) {
        const int width = inputs.tables[t].fields * inputs.tables[t].dim;
        const auto first = of_tables[t].begin() + s * width;
        all.insert(all.end(), first, first + width);
      }
    }
    return all;
  }

  // Rows whose label follows from all columns.
  void WriteRows(const std::string& file, int count, uint64_t seed) {
    Random random(seed);
    std::string text = "label,x0,x1,city,offer,day\n";
    for (int i = 0; i < count; ++i) {
      const double x0 = random.Normal(), x1 = random.Normal();
      const uint64_t city = random.Uniform(40), offer = random.Uniform(15), day = random.Uniform(7);
      const double score =
          1.5 * ((city + offer) % 3 == 0 ? 1 : -1) + 0.7 * x0 - 0.4 * x1 + (day < 2 ? 0.8 : -0.2);
      const bool label = random.NextDouble() < 1 / (1 + std::exp(-score));
      absl::StrAppend(&text, label ? 1 : 0, ",", x0, ",", x1, ",c", city, ",o", offer, ",d", day,
                      "\n");
    }
    WriteTextFile(folder_.File(file), text);
  }

  // The same job but for data and model: one worker, steps in order.
  RunResult Run(const std::string& out, const std::string& data_and_model,
                const std::vector<std::string>& flags) {
    std::string tables;
    for (size_t t = 0; t < GetParam().tables.size(); ++t) {
      absl::StrAppend(
          &tables, "table { name: \"t", t, "\" dim: 8 field: \"",
          absl::StrJoin(std::vector<std::string>(absl::StrSplit(GetParam().tables[t], ' ')),
                        "\" field: \""),
          "\" optimizer { kind: ADAGRAD learning_rate: 0.05 } }\n");
    }
    RunArguments arguments;
    arguments.job = folder_.File(out + ".textproto");
    arguments.out = folder_.File(out);
    arguments.flags = flags;
    arguments.environment = {{"TANDEM_PYTHON", PythonInterpreter()}};
    WriteTextFile(
        arguments.job,
        absl::StrCat("seed: ", kSeed, " cluster { workers: 1 servers: 1 }\n", tables,
                     "dense { optimizer { kind: ADAM learning_rate: 0.005 } }\n",
                     "policy { kind: BSP }\n", data_and_model, "\ntrain { batch: ", kSamples,
                     " epochs: 3 depth: 0 } evaluation { batch: ", kSamples, " }\n"));
    return RunJob(arguments);
  }

  TemporaryFolder folder_;
};

TEST_P(PythonModelsTest, AModuleHasTheGradientsOfTheCompiledModel) {
  const RunResult run =
      RunPython({SourcePath("tests/python/models.py"), "gradients", folder_.File("case.json")});
  EXPECT_TRUE(run.ok()) << run.DebugString();
}

TEST_P(PythonModelsTest, AModuleLearnsWhatTheCompiledModelDoes) {
  WriteRows("train.csv", 4000, 1);
  WriteRows("test.csv", 2000, 2);
  const std::string numeric = GetParam().numeric > 0 ? "numeric: [\"x0\", \"x1\"] scale: NONE" : "";
  std::vector<std::string> fields;
  for (const std::string& table : GetParam().tables) {
    for (const std::string& field : std::vector<std::string>(absl::StrSplit(table, ' '))) {
      fields.push_back(absl::StrCat("\"", field, "\""));
    }
  }
  const RunResult compiled =
      Run("compiled",
          absl::StrCat("data { format: DELIMITED train: \"", folder_.File("train.csv"),
                       "\" test: \"", folder_.File("test.csv"),
                       "\" columns { delimiter: \",\" header: true label: \"label\" ", numeric,
                       " categorical: [", absl::StrJoin(fields, ", "), "] } }\nmodel { ",
                       GetParam().config, " }"),
          {});
  ASSERT_TRUE(compiled.ok()) << compiled.DebugString();
  const RunResult module =
      Run("module", "data { format: PROGRAM }\nmodel { program {} }",
          {"--python", SourcePath("tests/python/models.py"), "--", "train",
           folder_.File("case.json"), folder_.File("train.csv"), folder_.File("test.csv")});
  ASSERT_TRUE(module.ok()) << module.DebugString();
  EXPECT_EQ(module.summary["samples"], 3 * 4000);
  EXPECT_EQ(compiled.summary["samples"], 3 * 4000);
  const double want = compiled.summary["eval"]["logloss"],
               found = module.summary["eval"]["logloss"];
  EXPECT_NEAR(found, want, 0.002);
  EXPECT_GT(module.summary["eval"]["auc"], 0.6) << module.summary["eval"].dump();
  EXPECT_EQ(module.summary["eval"]["samples"], 2000);
  std::printf("%s: logloss %.6f compiled, %.6f module\n", GetParam().name.c_str(), want, found);
}

INSTANTIATE_TEST_SUITE_P(Models, PythonModelsTest, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace tandem
