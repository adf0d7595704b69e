// Modules of PyTorch as TorchScript files (tests/python/scripts.py writes them): what they compute
// beside the same module in Python, what each one that does not fit is told, and that jobs with
// them end, go on and predict as others do. Skipped where there is no interpreter with PyTorch and
// numpy.
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/diverged.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/model.h"
#include "models/script_file.h"
#include "tests/integration/kill_and_resume.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Settings = std::vector<std::string>;

constexpr int kBatch = 16;
constexpr int kRows = 2 * 67 * kBatch + 5;  // the last batches of two workers: 3 and 2 rows

class ScriptTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (PythonInterpreter().empty()) return;
    folder_ = std::make_unique<TemporaryFolder>();
    const RunResult written =
        RunPython({SourcePath("tests/python/scripts.py"), "write", folder_->path()});
    ASSERT_TRUE(written.ok()) << written.DebugString();
    WriteRows("train.csv", kRows, 1);
    WriteRows("test.csv", 501, 2);
  }
  static void TearDownTestSuite() { folder_.reset(); }
  void SetUp() override {
    if (folder_ == nullptr) GTEST_SKIP() << "no python3 with torch and numpy here";
  }

  static void WriteRows(const std::string& file, int count, uint64_t seed) {
    Random random(seed);
    std::string text = "label,x0,x1,city,offer,day\n";
    for (int i = 0; i < count; ++i) {
      const double x0 = random.Normal(), x1 = random.Normal();
      const uint64_t city = random.Uniform(40), offer = random.Uniform(15), day = random.Uniform(7);
      const double score = 1.5 * ((city + offer) % 3 == 0 ? 1 : -1) + 0.7 * x0 - 0.4 * x1;
      const bool label = random.NextDouble() < 1 / (1 + std::exp(-score));
      absl::StrAppend(&text, label ? 1 : 0, ",", x0, ",", x1, ",c", city, ",o", offer, ",d", day,
                      "\n");
    }
    WriteTextFile(folder_->File(file), text);
  }

  static std::string Job(const std::string& data_and_model) {
    const std::string job = folder_->File("job.textproto");
    WriteTextFile(job, absl::StrCat(R"(
seed: 7 reproducible: true cluster { workers: 2 servers: 2 }
table { name: "t-0" dim: 8 field: "city" field: "offer" optimizer { kind: ADAGRAD learning_rate: 0.05 } }
table { name: "t1" dim: 8 field: "day" optimizer { kind: ADAGRAD learning_rate: 0.05 } }
dense { optimizer { kind: ADAM learning_rate: 0.005 } }
limits { report_interval_seconds: 0.1 }
)",
                                    data_and_model, "\ntrain { batch_size: ", kBatch,
                                    " epochs: 3 prefetch_steps: 1 }\n"));
    return job;
  }
  static std::string DataAndModel(const std::string& module) {
    return absl::StrCat("data { format: DELIMITED train: \"", folder_->File("train.csv"),
                        "\" test: \"", folder_->File("test.csv"), R"(" columns { delimiter: ","
      header: true label: "label" numeric: ["x0", "x1"] scale: NONE
      categorical: ["city", "offer", "day"] } } model { script { file: ")",
                        module, "\" } }");
  }
  static RunArguments Arguments(const std::string& out, const std::string& module,
                                const Settings& set = {}) {
    RunArguments arguments;
    arguments.job = Job(DataAndModel(folder_->File(module)));
    arguments.out = folder_->File(out);
    arguments.set = set;
    arguments.environment = {{"TANDEM_PYTHON", PythonInterpreter()}};
    return arguments;
  }
  static ModelBits Checkpointed(const std::string& out) {
    absl::StatusOr<ModelBits> model = ReadCheckpoint(folder_->File(out + "/model"));
    EXPECT_TRUE(model.ok()) << model.status();
    return model.ok() ? *std::move(model) : ModelBits();
  }

  static absl::StatusOr<std::unique_ptr<models::DenseModel>> Load(
      const std::string& module, const models::ModelInputs& inputs = {{{"a", 1, 4}}, 3}) {
    Model config;
    config.mutable_script()->set_file(folder_->File(module + ".pt"));
    return models::NewDenseModel(config, inputs, /*threads=*/1);
  }
  // Why it is refused: in one line that names the file.
  static std::string Refusal(const std::string& module,
                             const models::ModelInputs& inputs = {{{"a", 1, 4}}, 3}) {
    const std::string why(Load(module, inputs).status().message());
    EXPECT_THAT(why, Not(HasSubstr("\n")));
    EXPECT_THAT(why, HasSubstr("model.script.file: " + folder_->File(module + ".pt")));
    return why;
  }

  static std::unique_ptr<TemporaryFolder> folder_;
};
std::unique_ptr<TemporaryFolder> ScriptTest::folder_;

// One batch of the table `a`, [samples, 1, 4], and three numbers a sample.
struct Step {
  explicit Step(models::DenseModel& of, int samples = 5) : model(of) {
    Random random(11);
    batch.samples = samples;
    batch.numeric = 3;
    for (int i = 0; i < 3 * samples; ++i) batch.numbers.push_back(float(random.Normal()));
    for (int i = 0; i < 4 * samples; ++i) rows.push_back(float(random.Normal()));
    for (int i = 0; i < samples; ++i) batch.labels.push_back(random.Bernoulli(0.5) ? 1 : 0);
    flat.resize(static_cast<size_t>(model.parameter_count()));
    model.InitialValues(/*job_seed=*/1, absl::MakeSpan(flat));
    gradient.assign(flat.size(), NAN);
    row_gradient.assign(rows.size(), NAN);
    logits.assign(static_cast<size_t>(samples), NAN);
  }
  absl::Status Train() {
    return model.ForwardBackward(batch, flat, {rows}, absl::MakeSpan(logits), &loss,
                                 absl::MakeSpan(gradient), {absl::MakeSpan(row_gradient)});
  }
  absl::Status Evaluate() { return model.Forward(batch, flat, {rows}, absl::MakeSpan(logits)); }

  models::DenseModel& model;
  data::Batch batch;
  std::vector<float> rows, flat, gradient, row_gradient, logits;
  double loss = NAN;
};

TEST_F(ScriptTest, WhatIsNoFittingModuleIsToldSoInALine) {
  EXPECT_EQ(Load("gone").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Load("gone").status().message(), HasSubstr("gone.pt: No such file"));
  WriteTextFile(folder_->File("text.pt"), "no zip\n");
  EXPECT_THAT(Refusal("text"), HasSubstr("is no TorchScript file"));
  EXPECT_THAT(Refusal("state"), HasSubstr("an archive without constants.pkl, such as torch.save "
                                          "writes; hint: torch.jit.script(module).save("));
  EXPECT_THAT(Refusal("noforward"), HasSubstr("no method forward"));
  EXPECT_THAT(Refusal("arguments"), HasSubstr("forward takes (ids: Tensor); hint: Tandem calls "));
  EXPECT_THAT(Refusal("double"), HasSubstr("parameter weight is of type Double"));
  EXPECT_THAT(Refusal("column"),
              HasSubstr("forward returned Float [2, 1], expected Float [2]; hint: "));
  EXPECT_THAT(Refusal("column"), HasSubstr("squeeze(1)"));
  EXPECT_THAT(Refusal("integer"), HasSubstr("forward returned Long [2]"));
  EXPECT_THAT(Refusal("raises"), HasSubstr("no such city"));
  EXPECT_THAT(Refusal("raises"), HasSubstr("scripts.py")) << "and where";
  EXPECT_THAT(Refusal("shapes"), HasSubstr("size mismatch"));
  EXPECT_THAT(Refusal("table"), HasSubstr("KeyError: b"));
  EXPECT_THAT(Refusal("cuda"), HasSubstr("CUDA"));
  EXPECT_THAT(Refusal("detached"), HasSubstr("depends on no parameter and no row"));
  EXPECT_THAT(Refusal("inplace"), HasSubstr("forward changes parameter weight in place"));
  EXPECT_THAT(Refusal("noscore"), HasSubstr("score takes other arguments than (outputs)"));
  EXPECT_THAT(Refusal("scorealone"), HasSubstr("has a method score, and none called loss"));
  EXPECT_THAT(Refusal("views"), HasSubstr("share memory"));
}

TEST_F(ScriptTest, TheModuleOfThePageFits) {
  const std::string page = ReadTextFile(SourcePath("docs/PYTHON.md"));
  const std::string fence = "```python\n";
  const size_t section = page.find("## The module as a file"), begin = page.find(fence, section);
  ASSERT_NE(begin, std::string::npos);
  const size_t text = begin + fence.size();
  fs::create_directory(folder_->File("page"));
  WriteTextFile(folder_->File("page.py"), page.substr(text, page.find("```", text) - text));
  const RunResult run = RunPython({folder_->File("page.py")}, folder_->File("page"));
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const auto model = Load("page/ranker", {{{"ids", 2, 8}}, 2});
  EXPECT_TRUE(model.ok()) << model.status();
}

TEST_F(ScriptTest, ALogitThatIsNoNumberEndsTheStep) {
  auto model = Load("nan");
  ASSERT_TRUE(model.ok()) << model.status();
  const absl::Status status = Step(**model).Train();
  EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  EXPECT_TRUE(IsDiverged(status));
  EXPECT_THAT(status.message(), HasSubstr("the logit of sample 0 of 5 is "));
}

TEST_F(ScriptTest, AModuleThatWasOnAGpuComputesHere) {
  const models::ModelInputs inputs = {{{"t-0", 2, 8}, {"t1", 1, 8}}, 2};
  const auto model = Load("gpu", inputs), same = Load("ranker", inputs);
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE(same.ok()) << same.status();
  EXPECT_EQ((*model)->parameter_count(), (*same)->parameter_count());
  EXPECT_NE((*model)->Contents(), (*same)->Contents());
}

// Each against a difference quotient in every direction: one parameter under two names, one that no
// batch reaches, one that is frozen, a scalar, and one that lies in memory the other way round.
TEST_F(ScriptTest, GradientsOfAnOddModule) {
  auto model = Load("odd");
  ASSERT_TRUE(model.ok()) << model.status();
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const models::ParameterInfo& p : (*model)->parameters()) shapes[p.name] = p.shape;
  const std::map<std::string, std::vector<int64_t>> want = {{"one.weight", {4, 4}},
                                                            {"unused.weight", {1, 4}},
                                                            {"unused.bias", {1}},
                                                            {"scale", {}},
                                                            {"turned", {3, 4}}};
  EXPECT_EQ(shapes, want);
  for (const int samples : {1, 5}) {
    Step step(**model, samples);
    ASSERT_EQ(step.Train(), absl::OkStatus());
    const auto loss_at = [&](std::vector<float>* at, size_t i, float change) {
      Step moved(**model, samples);
      (at == &step.flat ? moved.flat : moved.rows)[i] += change;
      EXPECT_EQ(moved.Train(), absl::OkStatus());
      return moved.loss;
    };
    const auto compare = [&](std::vector<float>* at, const std::vector<float>& gradient) {
      for (size_t i = 0; i < at->size(); ++i) {
        const double slope = (loss_at(at, i, 1e-2f) - loss_at(at, i, -1e-2f)) / 2e-2;
        EXPECT_NEAR(gradient[i], slope, 2e-3 * samples) << i;
      }
    };
    compare(&step.flat, step.gradient);
    compare(&step.rows, step.row_gradient);
    const auto& parameters = (*model)->parameters();
    for (const models::ParameterInfo& p : parameters) {
      if (!absl::StartsWith(p.name, "unused")) continue;
      for (int64_t i = 0; i < p.size; ++i) {
        EXPECT_EQ(step.gradient[static_cast<size_t>(p.offset + i)], 0);
      }
    }
  }
}

TEST_F(ScriptTest, ALossOfItsOwnIsTrainedAndTheScoreIsEvaluated) {
  auto model = Load("heads");
  ASSERT_TRUE(model.ok()) << model.status();
  Step step(**model);
  ASSERT_EQ(step.Train(), absl::OkStatus());
  const auto parameter = [&](const std::string& name, int64_t i) {
    for (const models::ParameterInfo& p : (*model)->parameters()) {
      if (p.name == name) return double{step.flat[static_cast<size_t>(p.offset + i)]};
    }
    return double{NAN};
  };
  double loss = 0;
  for (size_t s = 0; s < 5; ++s) {
    double first = parameter("first.bias", 0), second = parameter("second.bias", 0);
    for (size_t i = 0; i < 3; ++i)
      first += parameter("first.weight", i) * step.batch.numbers[3 * s + i];
    for (size_t i = 0; i < 4; ++i) second += parameter("second.weight", i) * step.rows[4 * s + i];
    const double y = step.batch.labels[s];
    loss += (first - y) * (first - y) + 2 * (second - y) * (second - y);
    EXPECT_NEAR(step.logits[s], first + second, 1e-5);
  }
  EXPECT_NEAR(step.loss, loss, 1e-4);
}

TEST_F(ScriptTest, DropoutFollowsTheSeedAndIsOffInEvaluations) {
  auto model = Load("dropped");
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->parameter_count(), 0) << "rows alone are trained";
  const auto train = [&](uint64_t seed) {
    Step step(**model, 50);
    (*model)->Seed(seed);
    EXPECT_EQ(step.Train(), absl::OkStatus());
    return step.logits;
  };
  const std::vector<float> first = train(1);
  EXPECT_NE(first, train(2));
  EXPECT_EQ(first, train(1));
  Step step(**model, 50);
  ASSERT_EQ(step.Evaluate(), absl::OkStatus());
  for (size_t s = 0; s < 50; ++s) {
    EXPECT_NEAR(
        step.logits[s],
        step.rows[4 * s] + step.rows[4 * s + 1] + step.rows[4 * s + 2] + step.rows[4 * s + 3],
        1e-5);
  }
}

TEST_F(ScriptTest, BuffersAreStateAndComeBack) {
  const models::ModelInputs inputs = {{{"t-0", 2, 8}, {"t1", 1, 8}}, 2};
  auto model = Load("noisy", inputs), other = Load("noisy", inputs), none = Load("ranker", inputs);
  ASSERT_TRUE(model.ok() && other.ok() && none.ok()) << model.status();
  const absl::StatusOr<std::string> fresh = (*model)->State();
  data::Batch batch;
  batch.samples = 3;
  batch.numeric = 2;
  batch.numbers = {1, 2, 3, 4, 5, 6};
  batch.labels = {0, 1, 0};
  std::vector<float> first(3 * 16, 0.5f), second(3 * 8, 0.25f), flat((*model)->parameter_count()),
      gradient(flat.size()), logits(3), d_first(first.size()), d_second(second.size());
  (*model)->InitialValues(1, absl::MakeSpan(flat));
  double loss = 0;
  ASSERT_EQ((*model)->ForwardBackward(batch, flat, {first, second}, absl::MakeSpan(logits), &loss,
                                      absl::MakeSpan(gradient),
                                      {absl::MakeSpan(d_first), absl::MakeSpan(d_second)}),
            absl::OkStatus());
  const absl::StatusOr<std::string> trained = (*model)->State();
  ASSERT_TRUE(fresh.ok() && trained.ok());
  EXPECT_NE(*fresh, *trained);
  const auto scores = [&](models::DenseModel& of) {
    EXPECT_EQ(of.Forward(batch, flat, {first, second}, absl::MakeSpan(logits)), absl::OkStatus());
    return logits;
  };
  const std::vector<float> want = scores(**model);
  EXPECT_NE(scores(**other), want);
  ASSERT_EQ((*other)->SetState(*trained), absl::OkStatus());
  EXPECT_EQ(scores(**other), want);
  EXPECT_EQ(scores(**model), want) << "an evaluation changes no buffer";
  EXPECT_THAT((*none)->SetState(*trained).message(), HasSubstr("is it of another"));
  EXPECT_THAT((*model)->SetState("").message(), HasSubstr("is not in the checkpoint"));
  EXPECT_FALSE((*model)->SetState("nonsense").ok());
}

TEST_F(ScriptTest, TheBitsOfTheSameModuleInPython) {
  if (std::getenv("TANDEM_TEST_PYTHON") != nullptr) GTEST_SKIP() << "PyTorch is not the worker's";
  const Settings steps = {"evaluation.batch_size=64"};
  const RunResult file = RunJob(Arguments("file", "ranker.pt", steps));
  ASSERT_TRUE(file.ok()) << file.DebugString();
  EXPECT_GE(file.summary["steps"], 200);
  EXPECT_EQ(file.summary["samples"], 3 * kRows);
  EXPECT_GT(file.summary["eval"]["auc"], 0.6) << file.summary["eval"].dump();
  const RunResult traced = RunJob(Arguments("traced", "traced.pt", steps));
  ASSERT_TRUE(traced.ok()) << traced.DebugString();
  RunArguments arguments = Arguments("program", "ranker.pt", steps);
  arguments.job = Job("data { format: PROGRAM } model { program {} }");
  arguments.flags = {"--python",
                     SourcePath("tests/python/scripts.py"),
                     "--",
                     "train",
                     folder_->File("train.csv"),
                     absl::StrCat(kBatch),
                     "3"};
  const RunResult program = RunJob(arguments);
  ASSERT_TRUE(program.ok()) << program.DebugString();
  EXPECT_EQ(program.summary["steps"], file.summary["steps"]);
  EXPECT_EQ(Difference(Checkpointed("program"), Checkpointed("file")), "");
  EXPECT_EQ(Difference(Checkpointed("program"), Checkpointed("traced")), "");
}

// With dropout and running means.
TEST_F(ScriptTest, AKilledRunEndsWithTheBitsOfOneThatWasNot) {
  for (const char* const dense : {"ALLREDUCE", "SERVERS"}) {
    const Settings set = {"checkpoint.every_steps=20", absl::StrCat("dense.synchroniser=", dense)};
    const std::string whole = absl::StrCat("whole-", dense),
                      broken = absl::StrCat("broken-", dense);
    const RunResult undisturbed = RunJob(Arguments(whole, "noisy.pt", set));
    ASSERT_TRUE(undisturbed.ok()) << undisturbed.DebugString();
    {
      RunningJob job(Arguments(broken, "noisy.pt", set));
      ASSERT_TRUE(job.WaitForStep(60, kRunLimit));
      ASSERT_TRUE(WaitForCheckpointAfter(&job, folder_->File(broken), -1));
      KillAll(&job);
    }
    const RunResult resumed = RunJob(Resumed(Arguments(broken, "noisy.pt", set)));
    ASSERT_TRUE(resumed.ok()) << resumed.DebugString();
    EXPECT_EQ(Difference(Checkpointed(whole), Checkpointed(broken)), "");
    EXPECT_EQ(resumed.summary["eval"].dump(), undisturbed.summary["eval"].dump());
  }
}

TEST_F(ScriptTest, ARunGoesOnWithItsModuleAloneWhereverThatLies) {
  const Settings set = {"train.max_steps=10"};
  ASSERT_TRUE(RunJob(Arguments("first", "ranker.pt", set)).ok());
  RunArguments other = Arguments("first", "changed.pt", {"train.max_steps=20"});
  other.flags = {"--resume", other.out};
  const RunResult refused = RunJob(other);
  EXPECT_EQ(refused.exit_code, 2) << refused.DebugString();
  EXPECT_THAT(refused.output, HasSubstr("the module has changed since the checkpoint was made"));
  fs::copy_file(folder_->File("ranker.pt"), folder_->File("moved.pt"));
  RunArguments moved = Arguments("first", "moved.pt", {"train.max_steps=20"});
  moved.flags = {"--resume", moved.out};
  const RunResult run = RunJob(moved);
  EXPECT_TRUE(run.ok()) << run.DebugString();
  // As a new run the module may be another one with the same parameters.
  RunArguments fresh = Arguments("fresh", "changed.pt", set);
  fresh.init_from = folder_->File("first/model");
  const RunResult from = RunJob(fresh);
  EXPECT_TRUE(from.ok()) << from.DebugString();
}

TEST_F(ScriptTest, WhatIsWrongWithTheFileIsSaidByTheDriver) {
  const RunResult gone = RunJob(Arguments("bad", "gone.pt"));
  EXPECT_EQ(gone.exit_code, 2) << gone.DebugString();
  EXPECT_THAT(gone.output, HasSubstr("gone.pt: No such file"));
  const RunResult state = RunJob(Arguments("bad", "double.pt"));
  EXPECT_EQ(state.exit_code, 1) << state.DebugString();
  EXPECT_THAT(state.output, HasSubstr("parameter weight is of type Double"));
}

TEST_F(ScriptTest, AModuleWithoutParametersTrainsRows) {
  for (const char* const dense : {"ALLREDUCE", "SERVERS"}) {
    const std::string out = absl::StrCat("rows-", dense);
    const RunResult run =
        RunJob(Arguments(out, "rows.pt", {absl::StrCat("dense.synchroniser=", dense)}));
    ASSERT_TRUE(run.ok()) << run.DebugString();
    EXPECT_EQ(run.summary["samples"], 3 * kRows);
    EXPECT_TRUE(Checkpointed(out).at("dense").empty());
    EXPECT_LT(run.summary["eval"]["logloss"], std::log(2.0)) << run.summary.dump();
  }
  EXPECT_EQ(Difference(Checkpointed("rows-ALLREDUCE"), Checkpointed("rows-SERVERS")), "");
}

// The path is the same on both, and what lies there is not.
TEST_F(ScriptTest, WorkersWithDifferentFilesDoNotStartTogether) {
  for (const char* const dense : {"ALLREDUCE", "SERVERS"}) {
    fs::create_directory(folder_->File("here"));
    fs::create_directory(folder_->File("there"));
    const auto options = fs::copy_options::overwrite_existing;
    fs::copy_file(folder_->File("ranker.pt"), folder_->File("here/module.pt"), options);
    fs::copy_file(folder_->File("changed.pt"), folder_->File("there/module.pt"), options);
    const std::string job = folder_->File("job.textproto");
    Job(DataAndModel("$TANDEM_DATA/module.pt"));
    const std::string synchroniser = absl::StrCat("dense.synchroniser=", dense);
    const std::string said = folder_->File("scheduler.txt");
    ChildProcess scheduler({ProgramPath("tandem-scheduler"), "--job", job, "--set", synchroniser},
                           said, {});
    ASSERT_TRUE(scheduler.WaitForOutput("tcp://", absl::Seconds(30)));
    std::string address;
    for (const absl::string_view word :
         absl::StrSplit(scheduler.Output(), absl::ByAnyChar(" \n,;\""), absl::SkipEmpty())) {
      if (absl::StartsWith(word, "tcp://")) address = std::string(word);
    }
    std::vector<std::unique_ptr<ChildProcess>> roles;
    const auto start = [&](const char* program, const std::string& data) {
      roles.push_back(std::make_unique<ChildProcess>(
          std::vector<std::string>{ProgramPath(program), "--job", job, "--set", synchroniser,
                                   "--scheduler", address},
          folder_->File(absl::StrCat("role-", roles.size(), ".txt")),
          std::map<std::string, std::string>{{"TANDEM_DATA", folder_->File(data)}}));
    };
    start("tandem-server", "here");
    start("tandem-server", "here");
    start("tandem-worker", "here");
    start("tandem-worker", "there");
    std::string all;
    for (auto& role : roles) {
      EXPECT_TRUE(role->WaitFor(absl::Seconds(60)));
      all += role->Output();
    }
    EXPECT_THAT(all, HasSubstr("contents differ from those on worker 0"));
  }
}

TEST_F(ScriptTest, PredictScoresWhatTheEvaluationDid) {
  const RunResult trained = RunJob(Arguments("scored", "noisy.pt"));
  ASSERT_TRUE(trained.ok()) << trained.DebugString();
  const std::string job = Job(DataAndModel(folder_->File("noisy.pt")));
  double logloss = 0;
  for (const int workers : {1, 2}) {
    const std::string out = folder_->File("scores.txt");
    const RunResult predicted =
        RunProgram({ProgramPath("tandem"), "predict", job, "--init-from",
                    folder_->File("scored/model"), "--data", folder_->File("test.csv"), "--out",
                    out, "--set", absl::StrCat("cluster.workers=", workers)});
    ASSERT_TRUE(predicted.ok()) << predicted.DebugString();
    const std::vector<std::string> scores = absl::StrSplit(ReadTextFile(out), '\n');
    const std::vector<std::string> rows =
        absl::StrSplit(ReadTextFile(folder_->File("test.csv")), '\n');
    double sum = 0;
    for (int i = 0; i < 501; ++i) {
      double p = 0;
      ASSERT_TRUE(absl::SimpleAtod(scores[static_cast<size_t>(i)], &p));
      sum -= std::log(rows[static_cast<size_t>(i) + 1][0] == '1' ? p : 1 - p);
    }
    if (workers == 2) {
      EXPECT_NEAR(sum / 501, logloss, 1e-6);
    }
    logloss = sum / 501;
  }
  // Each worker of the run scored with its own running means; these are rank 0's.
  EXPECT_NEAR(logloss, trained.summary["eval"]["logloss"], 0.02);
}

}  // namespace
}  // namespace tandem
