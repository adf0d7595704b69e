// Saved models: loaded on another number of servers they evaluate to the same bits; a save asked
// for in the middle is a consistent moment of the run and does not disturb it; what is not a whole
// save of this model is refused, by name.
#include <signal.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "optim/initializer.h"
#include "optim/optimizer.h"
#include "server/save_directory.h"
#include "tests/integration/model_bits.h"
#include "tests/integration/plain_loop.h"
#include "tests/integration/run_job.h"
#include "tests/integration/small_job.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using Settings = std::vector<std::string>;

Settings Join(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Settings kShort = {"train.max_steps=40"};
const Settings kEvaluateOnly = {"train.evaluate_only=true"};

// All tests start from one trained model, on two servers.
class SaveTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    job_ = std::make_unique<SmallJob>(/*train_rows=*/3 * 24 * 400, /*test_rows=*/500);
    trained_ = RunJob(job_->Arguments("trained", kShort));
  }
  static void TearDownTestSuite() { job_.reset(); }
  void SetUp() override { ASSERT_TRUE(trained_.ok()) << trained_.DebugString(); }

  static std::string Trained() { return job_->File("trained/model"); }

  // Loads `model` and evaluates it, without a step.
  static RunResult Load(const std::string& model, const Settings& set) {
    RunArguments arguments =
        job_->Arguments(absl::StrCat("load-", loads_++), Join(Join(kShort, kEvaluateOnly), set));
    arguments.init_from = model;
    return RunJob(arguments);
  }

  // A copy of the trained model to damage; returns the folder of its files.
  static std::string Copy(const std::string& name) {
    fs::copy(Trained(), job_->File(name), fs::copy_options::recursive);
    return *ResolveSave(job_->File(name));
  }
  // The first file, by name, of a table.
  static std::string FileOf(const std::string& save, const std::string& table) {
    std::vector<std::string> files;
    for (const auto& entry : fs::directory_iterator(save)) {
      if (absl::StartsWith(entry.path().filename().string(), table + ".")) {
        files.push_back(entry.path().string());
      }
    }
    std::sort(files.begin(), files.end());
    return files.at(0);
  }

  // The run fails, and one line of its output says which file is at fault and what it has.
  static void ExpectRefused(const RunResult& run, const std::string& file,
                            const std::string& what) {
    EXPECT_FALSE(run.timed_out) << run.DebugString();
    EXPECT_NE(run.exit_code, 0) << run.DebugString();
    EXPECT_EQ(run.signal, 0) << run.DebugString();
    EXPECT_TRUE(run.summary.is_null());
    int lines = 0;
    for (const absl::string_view line : absl::StrSplit(run.output, '\n')) {
      if (absl::StrContains(line, file) && absl::StrContains(line, what)) ++lines;
    }
    EXPECT_EQ(lines, 1) << "want one line with " << file << " and \"" << what << "\"\n"
                        << run.DebugString();
  }

  static std::unique_ptr<SmallJob> job_;
  static RunResult trained_;
  static int loads_;
};
std::unique_ptr<SmallJob> SaveTest::job_;
RunResult SaveTest::trained_;
int SaveTest::loads_ = 0;

// Save, load, no step: the evaluation is that of the run that saved, to the last bit, on any number
// of servers and wherever the dense part lives; and what is saved again is the same model.
TEST_F(SaveTest, LoadsOnAnyNumberOfServers) {
  const absl::StatusOr<ModelBits> model = ReadSavedModel(Trained());
  ASSERT_TRUE(model.ok()) << model.status();
  ASSERT_TRUE(trained_.summary["eval"].contains("logloss")) << trained_.DebugString();
  const std::vector<Settings> variants = {
      {"cluster.servers=1"},
      {"cluster.servers=4"},
      {"cluster.servers=2", "cluster.shards_per_server=2", "dense.synchroniser=SERVERS"}};
  for (const Settings& variant : variants) {
    SCOPED_TRACE(variant[0]);
    const std::string out = absl::StrCat("load-", loads_);
    const RunResult run = Load(Trained(), variant);
    ASSERT_TRUE(run.ok()) << run.DebugString();
    EXPECT_EQ(run.summary["eval"].dump(), trained_.summary["eval"].dump());
    EXPECT_EQ(run.summary["samples"], 0);
    const absl::StatusOr<ModelBits> again = ReadSavedModel(job_->File(out + "/model"));
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(Difference(*model, *again), "");
  }
}

// Training goes on from a save: the second pass over the same rows starts where the first one
// ended.
TEST_F(SaveTest, TrainingGoesOnFromASave) {
  RunArguments arguments = job_->Arguments("goes-on", kShort);
  arguments.init_from = Trained();
  const RunResult run = RunJob(arguments);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_LT(run.summary["eval"]["logloss"].get<double>(),
            trained_.summary["eval"]["logloss"].get<double>());
}

// ---- a save in the middle ---------------------------------------------------------------------

constexpr int64_t kManySteps = 399;  // an epoch has 400
const Settings kLong = {absl::StrCat("train.max_steps=", kManySteps)};

// Runs the long job and asks for a save while it trains: SIGUSR1 to the scheduler.
RunResult RunAndAskForSave(const RunArguments& arguments, bool* asked) {
  RunningJob job(arguments);
  const pid_t scheduler = job.WaitForRole("scheduler", kRunLimit);
  EXPECT_GT(scheduler, 0);
  *asked = scheduler > 0 && job.WaitForStep(5, kRunLimit);
  EXPECT_TRUE(*asked);
  if (*asked) kill(scheduler, SIGUSR1);
  return job.Finish(kRunLimit);
}

// The model of the plain loop after `steps` steps.
ModelBits PlainModel(const SmallJob& job, int64_t steps) {
  absl::StatusOr<PlainLoopResult> plain =
      RunPlainLoop(job.Plan({absl::StrCat("train.max_steps=", steps)}));
  EXPECT_TRUE(plain.ok()) << plain.status();
  return plain.ok() ? std::move(plain->model) : ModelBits();
}

// Weights and slots of a row that nothing has changed yet.
std::vector<float> FirstRow(const TablePlan& table, uint64_t key) {
  const auto optimizer = NewRowOptimizer(table.optimizer);
  TANDEM_CHECK_OK(optimizer.status());
  const size_t dim = static_cast<size_t>(table.dim);
  std::vector<float> row(dim + static_cast<size_t>((*optimizer)->slots_per_row(table.dim)));
  InitRow(table.initializer, table.seed, key, absl::MakeSpan(row).first(dim));
  (*optimizer)->InitSlots(table.dim, absl::MakeSpan(row).subspan(dim));
  return row;
}

// The run itself does not notice.
TEST_F(SaveTest, ASaveInTheMiddleDoesNotChangeTheRun) {
  bool asked = false;
  const RunResult run = RunAndAskForSave(job_->Arguments("disturbed", kLong), &asked);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const absl::StatusOr<ModelBits> model = ReadSavedModel(job_->File("disturbed/model"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(Difference(PlainModel(*job_, kManySteps), *model), "");
}

// What was saved is one moment of the run: all of the steps before it and nothing of those after,
// wherever the dense part lives.
class SaveInTheMiddleTest : public SaveTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(SaveInTheMiddleTest, IsOneMomentOfTheRun) {
  const std::string name = absl::StrCat("middle-", GetParam());
  const Settings dense = {absl::StrCat("dense.synchroniser=", GetParam())};
  RunArguments arguments = job_->Arguments(name, Join(kLong, dense));
  arguments.save = false;  // so that the save that was asked for is the only one
  bool asked = false;
  const RunResult run = RunAndAskForSave(arguments, &asked);
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const std::string save = arguments.out + "/model";
  const absl::StatusOr<std::string> directory = ResolveSave(save);
  ASSERT_TRUE(directory.ok()) << directory.status() << run.DebugString();
  int64_t step = 0;
  ASSERT_TRUE(
      absl::SimpleAtoi(absl::StripPrefix(fs::path(*directory).filename().string(), "step-"), &step))
      << *directory;
  EXPECT_GT(step, 0);
  EXPECT_LE(step, kManySteps);

  const absl::StatusOr<ModelBits> saved = ReadSavedModel(save);
  ASSERT_TRUE(saved.ok()) << saved.status();
  // Reads of the next step may have come before the save; they leave rows with first values.
  const ModelBits before = PlainModel(*job_, step), after = PlainModel(*job_, step + 1);
  const JobPlan plan = job_->Plan(kLong);
  ModelBits expected = before;
  for (const TablePlan& table : plan.tables) {
    for (const auto& [key, row] : saved->at(table.name)) {
      if (before.at(table.name).count(key) > 0 || after.at(table.name).count(key) == 0) continue;
      expected[table.name][key] = FirstRow(table, key);
    }
  }
  EXPECT_EQ(Difference(expected, *saved), "");

  const RunResult loaded = Load(save, dense);
  ASSERT_TRUE(loaded.ok()) << loaded.DebugString();
  EXPECT_TRUE(loaded.summary["eval"].contains("logloss")) << loaded.DebugString();
}

INSTANTIATE_TEST_SUITE_P(Dense, SaveInTheMiddleTest, ::testing::Values("ALLREDUCE", "SERVERS"),
                         [](const auto& param) { return param.param; });

// ---- what is refused --------------------------------------------------------------------------

TEST_F(SaveTest, ADamagedFileIsRefused) {
  const std::string file = FileOf(Copy("damaged"), "rest");
  std::string bytes = ReadTextFile(file);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  WriteTextFile(file, bytes);
  ExpectRefused(Load(job_->File("damaged"), {}), file, "checksum");
}

TEST_F(SaveTest, ACutFileIsRefused) {
  const std::string file = Copy("cut") + "/dense.part";
  const std::string bytes = ReadTextFile(file);
  WriteTextFile(file, bytes.substr(0, bytes.size() / 2));
  ExpectRefused(Load(job_->File("cut"), {}), file, "");
}

TEST_F(SaveTest, AMissingFileIsRefused) {
  const std::string save = Copy("missing");
  const std::string file = FileOf(save, "some");
  fs::remove(file);
  ExpectRefused(Load(job_->File("missing"), {}), save, "table some");
}

TEST_F(SaveTest, AForeignFileIsRefused) {
  const std::string file = FileOf(Copy("foreign"), "some");
  WriteTextFile(file, "This is not a range file.\n");
  ExpectRefused(Load(job_->File("foreign"), {}), file, "");
}

// A save of another model: other layers, rows of other optimizers.
TEST_F(SaveTest, ASaveOfAnotherModelIsRefused) {
  ExpectRefused(Load(Trained(), {"model.dlrm.top=[320, 160]"}), "dense.part", "another model");
  ExpectRefused(Load(Trained(), {"table[0].optimizer={kind: SGD learning_rate: 0.1}"}),
                FileOf(*ResolveSave(Trained()), "some"), "optimizer");
}

// Before anything is started: no such folder, or one that is no save.
TEST_F(SaveTest, AFolderThatIsNoSaveIsRefusedAtOnce) {
  for (const std::string& folder : {job_->File("nowhere"), job_->File("trained/logs")}) {
    const RunResult run = Load(folder, {});
    EXPECT_EQ(run.exit_code, 2) << run.DebugString();
    ExpectRefused(run, folder, "");
  }
}

}  // namespace
}  // namespace tandem
