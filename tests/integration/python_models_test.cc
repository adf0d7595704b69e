// MLP, DLRM and GMF as modules of PyTorch (tests/python/models.py), in Python and as TorchScript,
// beside the compiled models: the gradients of one batch, and what a job learns from the same rows.
// Skipped where there is no interpreter with PyTorch and numpy.
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
constexpr int kDim = 8;

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

  // A random batch, and what a model computes of it from its initial values.
  struct Computed {
    models::ModelInputs inputs;
    data::Batch batch;
    std::vector<models::ParameterInfo> parameters;
    std::vector<float> flat, gradient, logits;
    std::vector<std::vector<float>> rows, row_gradients;
    double loss = 0;
  };
  static Computed ComputeWith(const std::string& model_config) {
    const Case& c = GetParam();
    Model config;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(model_config, &config));
    Computed of;
    of.inputs.numeric = c.numeric;
    for (size_t t = 0; t < c.tables.size(); ++t) {
      of.inputs.tables.push_back({TableNames()[t], Fields(c.tables[t]), kDim});
    }
    auto model = models::NewDenseModel(config, of.inputs, /*threads=*/1);
    EXPECT_TRUE(model.ok()) << model.status();
    Random random(kSeed);
    const auto normals = [&](size_t count) {
      std::vector<float> values(count);
      for (float& x : values) x = static_cast<float>(0.5 * random.Normal());
      return values;
    };
    of.batch.samples = kSamples;
    of.batch.numeric = c.numeric;
    of.batch.numbers = normals(static_cast<size_t>(kSamples * c.numeric));
    for (int s = 0; s < kSamples; ++s) of.batch.labels.push_back(random.Bernoulli(0.4) ? 1 : 0);
    for (const auto& table : of.inputs.tables) {
      of.rows.push_back(normals(static_cast<size_t>(kSamples * table.fields * table.dim)));
      of.row_gradients.emplace_back(of.rows.back().size());
    }
    std::vector<absl::Span<float>> spans;
    for (auto& gradient : of.row_gradients) spans.push_back(absl::MakeSpan(gradient));
    of.parameters = (*model)->parameters();
    of.flat.resize(static_cast<size_t>((*model)->parameter_count()));
    of.gradient.resize(of.flat.size());
    of.logits.resize(kSamples);
    (*model)->InitialValues(kSeed, absl::MakeSpan(of.flat));
    const std::vector<models::PooledRows> pooled(of.rows.begin(), of.rows.end());
    const absl::Status computed =
        (*model)->ForwardBackward(of.batch, of.flat, pooled, absl::MakeSpan(of.logits), &of.loss,
                                  absl::MakeSpan(of.gradient), spans);
    EXPECT_TRUE(computed.ok()) << computed;
    return of;
  }

  static nlohmann::json CaseJson() {
    const Case& c = GetParam();
    const Computed of = ComputeWith(c.config);
    const std::string fields = absl::StrJoin(c.tables, " ");
    nlohmann::json json = {{"model", c.name},
                           {"numeric", c.numeric},
                           {"dim", kDim},
                           {"widths", c.widths},
                           {"batch", kSamples},
                           {"labels", of.batch.labels},
                           {"numbers", of.batch.numbers},
                           {"logits", of.logits},
                           {"cells", Joined(of.inputs, of.rows)},
                           {"pooled_gradients", Joined(of.inputs, of.row_gradients)},
                           {"tables", TableNames()},
                           {"fields", std::vector<std::string>(absl::StrSplit(fields, ' '))}};
    for (const models::ParameterInfo& p : of.parameters) {
      const auto part = [&](const std::vector<float>& all) {
        return std::vector<float>(all.begin() + p.offset, all.begin() + p.offset + p.size);
      };
      json["parameters"].push_back(
          {{"name", p.name}, {"values", part(of.flat)}, {"gradient", part(of.gradient)}});
    }
    return json;
  }

  static std::vector<std::string> TableNames() {
    std::vector<std::string> names;
    for (size_t t = 0; t < GetParam().tables.size(); ++t) names.push_back(absl::StrCat("t", t));
    return names;
  }

  // The module of the case as TorchScript.
  std::string Export() {
    const std::string file = folder_.File("module.pt");
    const RunResult run = RunPython(
        {SourcePath("tests/python/models.py"), "export", folder_.File("case.json"), file});
    EXPECT_TRUE(run.ok()) << run.DebugString();
    return file;
  }

  std::string ScriptConfig() { return absl::StrCat("script { file: \"", Export(), "\" }"); }

  // Within 1e-5 of the largest.
  static void ExpectNear(const std::vector<float>& have, const std::vector<float>& want) {
    ASSERT_EQ(have.size(), want.size());
    float largest = 0;
    for (const float x : want) largest = std::max(largest, std::fabs(x));
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(have[i], want[i], 1e-5 * largest) << i;
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

  // Rows of the files that WriteRows has written, by the readers, and a model.
  std::string OfFiles(const std::string& model) {
    const std::string numeric =
        GetParam().numeric > 0 ? "numeric: [\"x0\", \"x1\"] scale: NONE" : "";
    std::vector<std::string> fields;
    for (const std::string& table : GetParam().tables) {
      for (const std::string& field : std::vector<std::string>(absl::StrSplit(table, ' '))) {
        fields.push_back(absl::StrCat("\"", field, "\""));
      }
    }
    return absl::StrCat(
        "data { format: DELIMITED train: \"", folder_.File("train.csv"), "\" test: \"",
        folder_.File("test.csv"), "\" columns { delimiter: \",\" header: true label: \"label\" ",
        numeric, " categorical: [", absl::StrJoin(fields, ", "), "] } }\nmodel { ", model, " }");
  }

  // The same rows and the module of tests/python/models.py in a Python loop.
  RunResult RunInPython() {
    return Run("module", "data { format: PROGRAM }\nmodel { program {} }",
               {"--python", SourcePath("tests/python/models.py"), "--", "train",
                folder_.File("case.json"), folder_.File("train.csv"), folder_.File("test.csv")});
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
                     "policy { kind: BSP }\n", data_and_model, "\ntrain { batch_size: ", kSamples,
                     " epochs: 3 prefetch_steps: 0 } evaluation { batch_size: ", kSamples, " }\n"));
    return RunJob(arguments);
  }

  TemporaryFolder folder_;
};

TEST_P(PythonModelsTest, AModuleHasTheGradientsOfTheCompiledModel) {
  const RunResult run =
      RunPython({SourcePath("tests/python/models.py"), "gradients", folder_.File("case.json")});
  EXPECT_TRUE(run.ok()) << run.DebugString();
}

TEST_P(PythonModelsTest, AScriptHasTheGradientsOfTheCompiledModel) {
  const Computed want = ComputeWith(GetParam().config);
  const Computed have = ComputeWith(ScriptConfig());
  ASSERT_EQ(have.parameters.size(), want.parameters.size());
  for (size_t i = 0; i < want.parameters.size(); ++i) {
    EXPECT_EQ(have.parameters[i].name, "model." + want.parameters[i].name);
    EXPECT_EQ(have.parameters[i].shape, want.parameters[i].shape);
  }
  EXPECT_EQ(have.flat, want.flat) << "initial values are those of the file";
  ExpectNear(have.logits, want.logits);
  ExpectNear(have.gradient, want.gradient);
  for (size_t t = 0; t < want.row_gradients.size(); ++t) {
    ExpectNear(have.row_gradients[t], want.row_gradients[t]);
  }
  EXPECT_NEAR(have.loss, want.loss, 1e-5 * want.loss);
}

TEST_P(PythonModelsTest, AModuleLearnsWhatTheCompiledModelDoes) {
  WriteRows("train.csv", 4000, 1);
  WriteRows("test.csv", 2000, 2);
  const RunResult compiled = Run("compiled", OfFiles(GetParam().config), {});
  ASSERT_TRUE(compiled.ok()) << compiled.DebugString();
  const RunResult script = Run("script", OfFiles(ScriptConfig()), {});
  ASSERT_TRUE(script.ok()) << script.DebugString();
  const RunResult module = RunInPython();
  ASSERT_TRUE(module.ok()) << module.DebugString();
  EXPECT_EQ(module.summary["samples"], 3 * 4000);
  EXPECT_EQ(compiled.summary["samples"], 3 * 4000);
  const double want = compiled.summary["eval"]["logloss"],
               found = module.summary["eval"]["logloss"],
               by_script = script.summary["eval"]["logloss"];
  EXPECT_NEAR(found, want, 0.002);
  EXPECT_NEAR(by_script, want, 0.002);
  EXPECT_GT(module.summary["eval"]["auc"], 0.6) << module.summary["eval"].dump();
  EXPECT_EQ(module.summary["eval"]["samples"], 2000);
  std::printf("%s: logloss %.6f compiled, %.6f module, %.6f script\n", GetParam().name.c_str(),
              want, found, by_script);
}

INSTANTIATE_TEST_SUITE_P(Models, PythonModelsTest, ::testing::ValuesIn(kCases),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace tandem
