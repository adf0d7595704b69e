// What a study makes of its runs: what counts as complete, diverged and failed, what a study that
// was cut off runs again, how values are chosen, and the rows of runs.csv. Runs are written by
// hand.
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/study/manifest.h"
#include "tools/study/run_record.h"
#include "tools/study/runner.h"
#include "tools/study/runs_csv.h"

namespace tandem {
namespace {

using namespace study;  // NOLINT: all that is tested here

namespace fs = std::filesystem;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Pair;

constexpr char kJob[] = R"(cluster { workers: 2 servers: 2 }
data { format: CRITEO train: "train.tsv" test: "test.tsv" }
table { name: "ids" dim: 4 }
dense { optimizer { learning_rate: 0.1 } }
model { dlrm { bottom: [8, 4] top: 8 } }
train { batch_size: 16 }
)";

constexpr char kStudy[] = R"(job: "job.textproto"
variation { name: "BSP" set: "policy.kind=BSP" }
variation { name: "ASP" set: "policy.kind=ASP" }
seed: [1, 2]
target { metric: "auc" value: 0.7 }
)";
constexpr char kTune[] =
    "tune { path: \"dense.optimizer.learning_rate\" value: [\"0.1\", \"0.2\", \"0.4\"] seed: 9 "
    "choose_by: TRAINING_LOSS }";

json Summary(double auc) {
  return {{"samples", 1000},
          {"seconds", 2.0},
          {"samples_per_second", 500.0},
          {"eval", {{"auc", auc}, {"logloss", 0.5}}},
          {"policy", {{"ids", "ASP"}}},
          {"bytes", {{"pull", 4000}, {"push", 8000}, {"within_worker", 5000}}},
          {"tables", {{"ids", {{"memory_bytes", 640}}}}},
          {"staleness",
           {{"ids",
             {{"clock_gap", {{"count", 10}, {"mean", 0.5}, {"max", 2.0}}},
              {"version_staleness", {{"count", 10}, {"mean", 3.0}, {"max", 5.0}}}}}}},
          {"collectives", {{"ranks", 2}}}};
}

json Progress(double seconds, int64_t samples, const json& loss, double auc) {
  json line = {{"event", "progress"}, {"seconds", seconds}, {"samples", samples}, {"auc", auc}};
  if (loss.is_number()) line["loss"] = loss;
  return line;
}

std::string Lines(const std::vector<json>& lines) {
  std::string text;
  for (const json& line : lines) absl::StrAppend(&text, line.dump(), "\n");
  return text;
}

class StudyRunTest : public ::testing::Test {
 protected:
  StudyRunTest()
      : folder_(fs::path(::testing::TempDir()) /
                absl::StrCat("study_run_", reinterpret_cast<uintptr_t>(this))) {
    fs::create_directories(folder_);
    Write("job.textproto", kJob);
  }
  ~StudyRunTest() override { fs::remove_all(folder_); }

  void Write(const std::string& name, const std::string& text) const {
    fs::create_directories((folder_ / name).parent_path());
    std::ofstream(folder_ / name) << text;
  }
  void WriteRun(const std::string& name, const json& summary,
                const std::vector<json>& lines) const {
    Begin(name);
    Write(absl::StrCat("runs/", name, "/summary.json"), summary.dump());
    Write(absl::StrCat("runs/", name, "/metrics.jsonl"), Lines(lines));
  }
  void Begin(const std::string& name) const {
    fs::create_directories(folder_ / "runs" / name);
    EXPECT_TRUE(WriteRunBegin(RunFolder(folder(), name), RunPlan(), "a build").ok());
  }
  std::string folder() const { return folder_.string(); }

  Manifest ManifestOf(const std::string& text) const {
    Manifest manifest;
    manifest.study_file = folder() + "/s.textproto";
    const auto plan = ParseStudyWithJob(text, manifest.study_file);
    EXPECT_TRUE(plan.ok()) << plan.status();
    manifest.plan = *plan;
    for (const Part part : {Part::kUntuned, Part::kTuning}) {
      if (part == Part::kTuning && !plan->tunes()) continue;
      const auto runs = RunsOf(*plan, part, {});
      EXPECT_TRUE(runs.ok()) << runs.status();
      manifest.runs.insert(manifest.runs.end(), runs->begin(), runs->end());
    }
    return manifest;
  }
  // With the files as they are at the moment.
  static Manifest Now(Manifest manifest) {
    manifest.surroundings = *SurroundingsOf(manifest.plan, manifest.runs);
    return manifest;
  }
  StudyRun Read(const std::string& name) const {
    RunPlan plan;
    plan.name = name;
    return ReadRun(plan, RunFolder(folder(), name));
  }

  const fs::path folder_;
};

TEST_F(StudyRunTest, ASummaryMakesARunComplete) {
  json summary = Summary(0.8);
  summary["tables"]["ids"]["rows"] = 10;
  summary["tables"]["ids"]["row_counts"] = {
      {"looked_up", 40}, {"found", 10}, {"found_share", 0.25}};
  summary["tables"]["users"] = {
      {"rows", 6}, {"memory_bytes", 60}, {"row_counts", {{"looked_up", 60}, {"found", 50}}}};
  summary["tables"]["plain"] = {{"rows", 4}, {"memory_bytes", 0}};
  summary["tables"]["dense"] = {{"rows", 7}, {"memory_bytes", 300}};
  WriteRun("a", summary,
           {Progress(0.5, 400, 0.6, 0.66),
            Progress(1, 800, 0.5, 0.72),
            Progress(1.2, 1000, 0.5, 0.72),
            {{"event", "evaluation"}, {"auc", 0.8}}});
  StudyRun run = Read("a");
  EXPECT_EQ(run.state, RunState::kComplete) << run.why;
  EXPECT_EQ(run.Number("eval.auc"), 0.8);
  EXPECT_EQ(run.Number("loss"), 0.5);
  EXPECT_EQ(run.numbers.count("collectives.ranks"), 0u);
  ASSERT_EQ(run.curve.size(), 3u);
  ASSERT_EQ(run.evaluations.size(), 1u);
  EXPECT_EQ(run.evaluations[0].samples, 1000);  // after all rows, not after the last interval
  AddDerivedNumbers(ManifestOf(kStudy).plan, &run);
  EXPECT_EQ(run.Number("to_target.samples"), 800);
  EXPECT_EQ(run.Number("to_target.seconds"), 1);
  EXPECT_EQ(run.Number("bytes_per_sample.within_worker"), 5);
  EXPECT_EQ(run.Number("bytes_per_sample.all"), 12);  // which crossed a socket
  EXPECT_EQ(run.Number("memory_bytes"), 1000);
  EXPECT_EQ(run.Number("rows"), 20);
  EXPECT_EQ(run.Number("found_share"), 0.6);
  EXPECT_EQ(run.Number("staleness.version_mean"), 3);
  EXPECT_EQ(run.Number("staleness.clock_gap_max"), 2);
}

// Of 1,000 samples the first hundred are the start; beside what is left stands the model, of 40
// rows a step.
TEST_F(StudyRunTest, ASteadyRunAndItsModel) {
  WriteRun("a", Summary(0.8),
           {Progress(2, 50, 0.6, 0.66), Progress(5, 200, 0.6, 0.66), Progress(7, 500, 0.5, 0.7),
            Progress(9, 1000, 0.5, 0.72)});
  Write("runs/a/model.json", json{{"step_rows", 40},
                                  {"step_seconds", 0.25},
                                  {"speed", 160},
                                  {"by_workers", {{{"workers", 2}, {"step_seconds", 0.2}}}}}
                                 .dump());
  StudyRun run = Read("a");
  AddDerivedNumbers(ManifestOf(kStudy).plan, &run);
  EXPECT_EQ(run.Number("steady.speed"), 200);
  EXPECT_EQ(run.Number("steady.step_seconds"), 0.2);
  EXPECT_EQ(run.Number("model.ratio"), 1.25);
  ASSERT_EQ(run.model_curve.size(), 1u);
  EXPECT_EQ(run.model_curve[0]["workers"], 2);
}

// A tenth of five steps is a part of the first: it is left out whole.
TEST_F(StudyRunTest, TheFirstStepIsNoneOfASteadyRun) {
  json summary = Summary(0.8);
  summary["steps"] = 5;
  WriteRun("a", summary,
           {Progress(4, 150, 0.6, 0.66), Progress(5, 200, 0.6, 0.66), Progress(6, 400, 0.6, 0.66),
            Progress(9, 1000, 0.5, 0.72)});
  StudyRun run = Read("a");
  AddDerivedNumbers(ManifestOf(kStudy).plan, &run);
  EXPECT_EQ(run.Number("steady.speed"), 200);
}

TEST_F(StudyRunTest, ARunIsNotCompleteWithoutItsModel) {
  WriteRun("a", Summary(0.8), {Progress(2, 1000, 0.6, 0.66)});
  RunPlan plan;
  plan.name = "a";
  const std::string at = RunFolder(folder(), "a");
  EXPECT_EQ(ReadRun(plan, at).state, RunState::kComplete);
  BesideRun beside;
  beside.model = true;
  EXPECT_EQ(ReadRun(plan, at, beside).state, RunState::kAbsent);
  ASSERT_TRUE(WriteRunEnd(at, 2, false, "no model of it: why").ok());
  EXPECT_EQ(ReadRun(plan, at, beside).state, RunState::kFailed);
  EXPECT_EQ(ReadRun(plan, at, beside).why, "no model of it: why");
  Write("runs/a/model.json", "{\"step_rows\": 40}");
  EXPECT_EQ(ReadRun(plan, at, beside).state, RunState::kComplete);
}

TEST_F(StudyRunTest, WithoutASummaryItIsNotDone) {
  EXPECT_EQ(Read("none").state, RunState::kAbsent);
  Begin("cut");
  Write("runs/cut/metrics.jsonl", Lines({Progress(0.5, 400, 0.6, 0.7)}));
  EXPECT_EQ(Read("cut").state, RunState::kAbsent);
  Begin("half");
  Write("runs/half/summary.json", "{\"samples\": 10");
  EXPECT_EQ(Read("half").state, RunState::kAbsent);
  json stopped = Summary(0.8);
  stopped["stopped"] = {{"checkpointed_step", 3}};
  WriteRun("stopped", stopped, {});
  EXPECT_EQ(Read("stopped").state, RunState::kAbsent);
  Begin("failed");
  ASSERT_TRUE(WriteRunEnd(folder() + "/runs/failed", 1.5, false, "worker 1: lost").ok());
  const StudyRun failed = Read("failed");
  EXPECT_EQ(failed.state, RunState::kFailed);
  EXPECT_EQ(failed.why, "worker 1: lost");
  EXPECT_EQ(failed.wall_seconds, 1.5);
  // What the failure says of itself counts, not its words.
  json summary = Summary(0.8);
  summary["failed"] = {{"node", "worker 0"}, {"reason", "the logit of sample 3 of 64 is nan"}};
  Write("runs/failed/summary.json", summary.dump());
  EXPECT_EQ(Read("failed").state, RunState::kFailed);
  summary["failed"]["diverged"] = true;
  Write("runs/failed/summary.json", summary.dump());
  EXPECT_EQ(Read("failed").state, RunState::kDiverged);
  EXPECT_EQ(Read("failed").why, "worker 1: lost") << "what tandem run said";
}

TEST_F(StudyRunTest, ALossThatGrowsOrIsNoNumberIsDivergence) {
  WriteRun("far", Summary(0.5), {Progress(0.5, 400, 0.6, 0.5), Progress(1, 800, 1.3, 0.5)});
  EXPECT_EQ(Read("far").state, RunState::kDiverged);
  EXPECT_THAT(Read("far").why, HasSubstr("1.3 over the last tenth"));
  // Rare positives: 64 rows with some more of them than were to be expected decide nothing, at the
  // end or at the beginning.
  json rare = Summary(0.8);
  rare["samples"] = 120000;
  WriteRun("rare", rare,
           {Progress(1, 40000, 0.12, 0.5), Progress(2, 80000, 0.11, 0.5),
            Progress(3, 119936, 0.105, 0.5), Progress(3.1, 120000, 0.245, 0.5)});
  EXPECT_EQ(Read("rare").state, RunState::kComplete) << Read("rare").why;
  WriteRun("lucky", rare,
           {Progress(0.1, 64, 0.04, 0.5), Progress(1, 40000, 0.12, 0.5),
            Progress(3, 120000, 0.105, 0.5)});
  EXPECT_EQ(Read("lucky").state, RunState::kComplete) << Read("lucky").why;
  // It began far up: a model that knows nothing loses ln 2 on a row.
  WriteRun("early", Summary(0.5), {Progress(0.5, 400, 40.0, 0.5), Progress(1, 800, 40.0, 0.5)});
  EXPECT_EQ(Read("early").state, RunState::kDiverged);
  WriteRun("nan", Summary(0.5), {Progress(0.5, 400, 0.6, 0.5), Progress(1, 800, json(), 0.5)});
  EXPECT_EQ(Read("nan").why, "its loss was no number");
  // An interval in which nothing was trained has no loss either.
  WriteRun("idle", Summary(0.8), {Progress(0.5, 400, 0.6, 0.5), Progress(1, 400, json(), 0.5)});
  EXPECT_EQ(Read("idle").state, RunState::kComplete);
  // Shorter than an interval: the evaluation alone can tell.
  json brief = Summary(0.5);
  brief["eval"]["logloss"] = 30;
  WriteRun("brief", brief, {});
  EXPECT_EQ(Read("brief").state, RunState::kDiverged);
  brief["eval"]["logloss"] = 0.7;
  WriteRun("brief", brief, {});
  EXPECT_EQ(Read("brief").state, RunState::kComplete);
  json scores = Summary(0.5);
  scores["eval"] = {{"scores_not_finite", true}};
  WriteRun("scores", scores, {Progress(0.5, 400, 0.6, 0.5)});
  EXPECT_EQ(Read("scores").state, RunState::kDiverged);
}

// What knowing nothing costs is known of cross-entropy alone; a module from a file may have any
// loss.
TEST_F(StudyRunTest, ALossOfItsOwnDivergesByItsOwnBeginning) {
  RunPlan plan;
  plan.name = "own";
  const auto read = [&] { return ReadRun(plan, RunFolder(folder(), "own")).state; };
  json summary = Summary(0.8);
  summary["eval"]["logloss"] = 7;  // of numbers that are no logits
  WriteRun("own", summary, {Progress(0.5, 400, 13, 0.5), Progress(1, 800, 1.5, 0.5)});
  EXPECT_EQ(read(), RunState::kDiverged);
  plan.job_text = absl::StrReplaceAll(
      kJob, {{"dlrm { bottom: [8, 4] top: 8 }", "script { file: \"module.pt\" }"}});
  EXPECT_EQ(read(), RunState::kComplete);
  WriteRun("own", summary, {Progress(0.5, 400, 13, 0.5), Progress(1, 800, 27, 0.5)});
  EXPECT_EQ(read(), RunState::kDiverged);
  WriteRun("own", summary, {});
  EXPECT_EQ(read(), RunState::kComplete);
}

// Whatever the files of a run say, they are read to an end.
TEST_F(StudyRunTest, MembersOfAnotherTypeAreAsGoodAsNone) {
  const json others[] = {json(), 5, "x", true, json::array({1, "a"}), {{"a", 1}}};
  for (const json& other : others) {
    json summary = Summary(0.8), line = Progress(0.5, 400, 0.6, 0.7);
    for (const char* name : {"eval", "policy", "bytes", "staleness", "seconds", "by_worker"}) {
      summary[name] = other;
    }
    std::vector<json> lines = {other};
    for (const char* name : {"event", "seconds", "samples", "loss", "auc", "data", "eval"}) {
      lines.push_back(line);
      lines.back()[name] = other;
    }
    WriteRun("odd", summary, lines);
    const json word = {{"ok", other}, {"wall_seconds", other}, {"why", other}};
    Write("runs/odd/study_end.json", word.dump());
    const json model = {{"by_workers", other}, {"not_counted", other}, {"speed", other}};
    Write("runs/odd/model.json", model.dump());
    StudyRun run = Read("odd");
    AddDerivedNumbers(ManifestOf(kStudy).plan, &run);
    EXPECT_NE(run.state, RunState::kAbsent) << other;
    json begin = json::parse(std::ifstream(folder_ / "runs/odd/study_run.json"));
    begin["build"] = other;
    Write("runs/odd/study_run.json", begin.dump());
    EXPECT_EQ(Read("odd").build, other.is_string() ? "x" : "") << other;
  }
}

TEST_F(StudyRunTest, TheLossAtTheEndIsOfATenthOfTheRows) {
  // Of the last 100 of 1000 rows 90 lost 0.5; the last interval, of 10 rows, is a chance.
  WriteRun(
      "a", Summary(0.8),
      {Progress(0.5, 500, 0.7, 0.66), Progress(1, 990, 0.5, 0.7), Progress(1.1, 1000, 0.1, 0.7)});
  EXPECT_DOUBLE_EQ(*Read("a").Number("loss"), 0.46);
}

// Where the last samples are in no line nothing is said of the end: a run that was faster would be
// judged at an earlier sample.
TEST_F(StudyRunTest, ALossThatIsNotOfTheEndIsNone) {
  const std::vector<json> lines = {Progress(0.5, 400, 0.6, 0.5), Progress(1, 800, 0.5, 0.5)};
  WriteRun("a", Summary(0.8), lines);
  EXPECT_EQ(Read("a").state, RunState::kComplete);
  EXPECT_EQ(Read("a").numbers.count("loss"), 0u);
  json shorter = Summary(0.8);
  shorter["samples"] = 800;
  WriteRun("a", shorter, lines);
  EXPECT_EQ(Read("a").Number("loss"), 0.5);
  // What workers say of their last steps does not depend on when lines were written.
  json said = Summary(0.8);
  said["end_loss"] = 0.4;
  WriteRun("a", said, lines);
  EXPECT_EQ(Read("a").Number("loss"), 0.4);
}

// A few rows reach any target by chance, as the first or as the last ones of a run.
TEST_F(StudyRunTest, AnIntervalOfAFewRowsReachesNoTarget) {
  const auto reached = [this](const std::vector<json>& lines) {
    WriteRun("a", Summary(0.8), lines);
    StudyRun run = Read("a");
    AddDerivedNumbers(ManifestOf(kStudy).plan, &run);
    return run.Number("to_target.samples");
  };
  EXPECT_EQ(
      reached({Progress(0.1, 8, 0.6, 1), Progress(1, 400, 0.6, 0.6), Progress(2, 800, 0.6, 0.6),
               Progress(2.5, 992, 0.6, 0.68), Progress(2.6, 1000, 0.6, 1)}),
      absl::nullopt);
  EXPECT_EQ(reached({Progress(0.1, 8, 0.6, 1), Progress(1, 400, 0.6, 0.7),
                     Progress(2, 800, 0.6, 0.7), Progress(2.1, 1000, 0.6, 0.6)}),
            400);
}

// Joining for an allreduce, and measuring it, takes as long however short a run is.
TEST_F(StudyRunTest, TheStartIsNoPartOfAComparison) {
  json summary = Summary(0.8);
  summary["start_seconds"] = 1.5;
  summary["seconds"] = 2.0;
  WriteRun("a", summary,
           {Progress(1, 0, json(), 0), Progress(1.75, 500, 0.6, 0.7), Progress(2, 1000, 0.5, 0.7)});
  StudyRun run = Read("a");
  AddDerivedNumbers(ManifestOf(kStudy).plan, &run);
  EXPECT_EQ(run.Number("seconds"), 0.5);
  EXPECT_EQ(run.Number("samples_per_second"), 2000);
  EXPECT_EQ(run.Number("training_speed"), 2000);
  EXPECT_EQ(run.Number("to_target.seconds"), 0.25);
}

// A problem knows to the event when its loss is reached.
TEST_F(StudyRunTest, AProblemSaysWhenItReachesItsLoss) {
  json summary = Summary(0.8);
  summary["simulated"]["problem"] = {
      {"first_loss", 1}, {"last_loss", 0.02}, {"diverged", false}, {"reached_seconds", 1.25}};
  WriteRun("a", summary, {});
  StudyRun run = Read("a");
  StudyRuns plan = ManifestOf(kStudy).plan;
  plan.study.clear_target();
  plan.metric = *MetricOf("seconds_to_target");
  AddDerivedNumbers(plan, &run);
  EXPECT_EQ(run.Number("to_target.seconds"), 1.25);
  summary["simulated"]["problem"].erase("reached_seconds");
  WriteRun("a", summary, {});
  run = Read("a");
  AddDerivedNumbers(plan, &run);
  EXPECT_EQ(run.Number("to_target.seconds"), absl::nullopt);
}

// Nobody meant updates of a frozen table to be applied; `by_worker` leaves them out.
TEST_F(StudyRunTest, FrozenTablesDropNothingThatCounts) {
  json summary = Summary(0.8);
  summary["updates"] = {{"sent", 200}, {"dropped", 150}};
  summary["by_worker"] = {{{"updates", 60}, {"dropped", 10}}, {{"updates", 40}, {"dropped", 0}}};
  WriteRun("a", summary, {Progress(0.5, 1000, 0.6, 0.7)});
  StudyRun run = Read("a");
  AddDerivedNumbers(ManifestOf(kStudy).plan, &run);
  EXPECT_DOUBLE_EQ(*run.Number("counted.speed"), 450);
  summary["by_worker"] = {{{"updates", 0}, {"dropped", 0}}};
  WriteRun("a", summary, {Progress(0.5, 1000, 0.6, 0.7)});
  run = Read("a");
  AddDerivedNumbers(ManifestOf(kStudy).plan, &run);
  EXPECT_EQ(run.Number("counted.speed"), 500);
}

// Sums that dense gradients have missed are no versions of tables, and a table of many ranges
// counts each update more often.
TEST_F(StudyRunTest, StalenessOfTablesAndOfDenseParametersAreTwoNumbers) {
  json summary = Summary(0.8);
  summary["staleness"]["users"]["version_staleness"] = {{"count", 90}, {"mean", 1.0}, {"max", 5.0}};
  summary["staleness"]["dense"]["version_staleness"] = {{"count", 10}, {"mean", 8.0}, {"max", 9.0}};
  WriteRun("a", summary, {Progress(0.5, 1000, 0.6, 0.7)});
  StudyRun run = Read("a");
  AddDerivedNumbers(ManifestOf(kStudy).plan, &run);
  EXPECT_EQ(run.Number("staleness.version_mean"), 2);
  EXPECT_EQ(run.Number("staleness.dense_version_mean"), 8);
  summary["staleness"].erase("users");
  summary["staleness"].erase("ids");
  WriteRun("a", summary, {Progress(0.5, 1000, 0.6, 0.7)});
  run = Read("a");
  AddDerivedNumbers(ManifestOf(kStudy).plan, &run);
  EXPECT_EQ(run.Number("staleness.version_mean"), 8) << "there is nothing else";
}

TEST_F(StudyRunTest, TheShareOfDataAppliedIsThatOfAllAndOfTheLeastWorker) {
  json summary = Summary(0.8);
  summary["data_applied"] = {{"share", 0.75}, {"label_1", 0.5}};
  summary["by_worker"] = {{{"data_applied", {{"share", 0.9}}}},
                          {{"data_applied", {{"share", 0.25}}}},
                          {{"data_applied", json::object()}}};
  WriteRun("a", summary, {Progress(0.5, 1000, 0.6, 0.7)});
  StudyRun run = Read("a");
  AddDerivedNumbers(ManifestOf(kStudy).plan, &run);
  EXPECT_EQ(run.Number("data_applied.share"), 0.75);
  EXPECT_EQ(run.Number("data_applied.label_1"), 0.5);
  EXPECT_EQ(run.Number("data_applied.label_0"), absl::nullopt);
  EXPECT_EQ(run.Number("data_applied.least_worker"), 0.25);
}

// A script that does not say its loss has 0 in every line.
TEST_F(StudyRunTest, ALossThatAScriptDoesNotSayIsNone) {
  RunPlan plan;
  plan.name = "script";
  plan.job_text = absl::StrReplaceAll(
      kJob, {{"dlrm { bottom: [8, 4] top: 8 }", "program {}"},
             {"format: CRITEO train: \"train.tsv\" test: \"test.tsv\"", "format: PROGRAM"},
             {"dim: 4", "dim: 4 field: \"city\""}});
  const auto loss = [&] { return ReadRun(plan, RunFolder(folder(), "script")).Number("loss"); };
  WriteRun("script", Summary(0.8), {Progress(0.5, 400, 0.0, 0), Progress(1, 1000, 0.0, 0)});
  EXPECT_EQ(loss(), absl::nullopt);
  WriteRun("script", Summary(0.8), {Progress(0.5, 400, 7.0, 0), Progress(1, 1000, 3.0, 0)});
  EXPECT_EQ(loss(), 3) << "and it may be any";
}

// Histograms go to the figures as they are; their means are over all tables.
TEST_F(StudyRunTest, StalenessOfTheSummaryIsKept) {
  json summary = Summary(0.8);
  summary["staleness"]["ids"]["row_staleness"] = {
      {"count", 30}, {"mean", 0.5}, {"max", 3.0}, {"histogram", {{0, 20}, {1, 10}}}};
  summary["staleness"]["users"]["row_staleness"] = {{"count", 10}, {"mean", 2.5}, {"max", 4.0}};
  summary["staleness"]["ids"]["age"] = {{"count", 10}, {"mean", 0.25}, {"max", 1.0}};
  summary["by_worker"] = {{{"samples", 600}, {"waited_for", {0.0, 1.5}}}, {{"samples", 400}}};
  WriteRun("a", summary, {Progress(0.5, 400, 0.6, 0.7)});
  StudyRun run = Read("a");
  AddDerivedNumbers(ManifestOf(kStudy).plan, &run);
  EXPECT_EQ(run.Number("staleness.row_mean"), 1.0);
  EXPECT_EQ(run.Number("staleness.age_mean"), 0.25);
  EXPECT_EQ(run.Number("staleness.version_mean"), 3.0);
  EXPECT_EQ(run.staleness, summary["staleness"]);
  EXPECT_EQ(run.by_worker, summary["by_worker"]);
}

TEST_F(StudyRunTest, ARowARun) {
  WriteRun("a", Summary(0.8), {Progress(0.5, 400, 0.6, 0.7)});
  Begin("b");
  ASSERT_TRUE(WriteRunEnd(folder() + "/runs/b", 1, false, "it said \"no\", twice").ok());
  const std::string csv = RunsCsv({Read("a"), Read("b")});
  const std::vector<std::string> lines = absl::StrSplit(csv, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], HasSubstr("run,variation,part,value,seed,state,why,wall_seconds,"));
  EXPECT_THAT(lines[0], HasSubstr(",eval.auc,"));
  EXPECT_THAT(lines[1], HasSubstr(",0.8,"));
  EXPECT_THAT(lines[2], HasSubstr(",failed,\"it said \"\"no\"\", twice\",1,"));
  const auto commas = [&lines](int i) { return std::count(lines[i].begin(), lines[i].end(), ','); };
  EXPECT_EQ(commas(1), commas(0));
  EXPECT_EQ(commas(2), commas(0) + 1);  // one is in quotes
}

// Writes what a run would, as `outcomes` say; anything else comes to a good end.
class FakeLauncher final : public RunLauncher {
 public:
  explicit FakeLauncher(std::atomic<bool>* stop) : stop_(*stop) {}
  End Launch(const RunPlan& run, const std::string& folder, const std::string&, double) override {
    launched.push_back(run.name);
    EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 2) << folder;
    std::ifstream job(RunJobFile(folder));
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(job), {}), run.job_text);
    End end;
    end.seconds = 1;
    if (run.name == stop_at) {
      std::ofstream(folder + "/metrics.jsonl") << "{}\n";
      stop_ = true;
      end.stopped = true;
      return end;
    }
    if (failing.count(run.name) > 0) {
      end.why = "worker 0: out of luck";
      return end;
    }
    end.ok = true;
    const double loss = losses.count(run.value) > 0 ? losses.at(run.value) : 0.5;
    std::ofstream(folder + "/summary.json") << Summary(0.8).dump();
    std::ofstream(folder + "/metrics.jsonl") << Lines({Progress(1, 1000, loss, 0.7)});
    return end;
  }

  void Renew(const RunPlan& run, const std::string& /*folder*/) override {
    renewed.push_back(run.name);
  }

  std::vector<std::string> launched, renewed;
  std::string stop_at;
  std::set<std::string> failing;
  std::map<std::string, double> losses;  // by value tried

 private:
  std::atomic<bool>& stop_;
};

class RunnerTest : public StudyRunTest {
 protected:
  absl::StatusOr<StudyEnd> Run(Manifest* manifest, bool retry_failed = false) {
    stop_ = false;
    launcher_.launched.clear();
    said_.clear();
    RunnerOptions options;
    options.folder = folder();
    options.stop = &stop_;
    options.build = [this] { return absl::StrCat("build ", launcher_.launched.size()); };
    options.retry_failed = retry_failed;
    options.say = [this](const std::string& line) { said_.push_back(line); };
    return RunStudy(options, manifest, &launcher_);
  }

  std::atomic<bool> stop_{false};
  FakeLauncher launcher_{&stop_};
  std::vector<std::string> said_;
};

TEST_F(RunnerTest, GoesOnWhereItStopped) {
  Manifest manifest = ManifestOf(kStudy);
  launcher_.stop_at = "BSP-seed2";
  const auto stopped = Run(&manifest);
  ASSERT_TRUE(stopped.ok()) << stopped.status();
  EXPECT_EQ(*stopped, StudyEnd::kStopped);
  EXPECT_THAT(launcher_.launched, ElementsAre("BSP-seed1", "ASP-seed1", "BSP-seed2"));
  launcher_.stop_at = "";
  const auto done = Run(&manifest);
  ASSERT_TRUE(done.ok()) << done.status();
  EXPECT_EQ(*done, StudyEnd::kDone);
  EXPECT_THAT(launcher_.launched, ElementsAre("BSP-seed2", "ASP-seed2"));  // from fresh
  EXPECT_THAT(said_.at(0),
              HasSubstr("[3/4] BSP seed 2: AUC 0.8000, 500 samples/s, 1.0 s; about 0:0"));
  EXPECT_TRUE(Run(&manifest).ok());
  EXPECT_THAT(launcher_.launched, IsEmpty());
}

// What lies in a folder counts for the job that it was made by alone.
TEST_F(RunnerTest, ARunOfAnotherJobIsRunAgain) {
  Manifest manifest = ManifestOf(absl::StrCat(kStudy, kTune));
  ASSERT_TRUE(Run(&manifest).ok());
  const size_t all = launcher_.launched.size();
  Manifest changed = ManifestOf(absl::StrCat(kStudy, kTune, "set: \"train.batch_size=8\""));
  for (const StudyRun& run : ReadRuns(folder(), changed)) {
    EXPECT_EQ(run.state, RunState::kAbsent) << run.name;
  }
  ASSERT_TRUE(Run(&changed).ok());
  EXPECT_EQ(launcher_.launched.size(), all);
  for (const StudyRun& run : ReadRuns(folder(), changed)) EXPECT_TRUE(run.counts()) << run.name;
  changed.runs[0].job_hash ^= 1;
  ASSERT_TRUE(Run(&changed).ok());
  EXPECT_EQ(launcher_.launched.at(0), changed.runs[0].name);
}

TEST_F(RunnerTest, AFailedRunDoesNotStopTheStudy) {
  Manifest manifest = ManifestOf(kStudy);
  launcher_.failing = {"ASP-seed1"};
  ASSERT_TRUE(Run(&manifest).ok());
  EXPECT_EQ(launcher_.launched.size(), 4u);
  EXPECT_THAT(said_.at(1), HasSubstr("failed: worker 0: out of luck"));
  ASSERT_TRUE(Run(&manifest).ok());
  EXPECT_THAT(launcher_.launched, IsEmpty());
  launcher_.failing.clear();
  ASSERT_TRUE(Run(&manifest, /*retry_failed=*/true).ok());
  EXPECT_THAT(launcher_.launched, ElementsAre("ASP-seed1"));
}

TEST_F(RunnerTest, ABudgetIsKeptOverSessions) {
  Manifest manifest = ManifestOf(absl::StrCat(kStudy, "budget { runs: 3 }"));
  EXPECT_EQ(*Run(&manifest), StudyEnd::kBudget);
  EXPECT_EQ(launcher_.launched.size(), 3u);
  EXPECT_EQ(*Run(&manifest), StudyEnd::kBudget);
  EXPECT_THAT(launcher_.launched, IsEmpty());
}

TEST_F(RunnerTest, EachVariationTakesItsBestValue) {
  Manifest manifest = ManifestOf(absl::StrCat(kStudy, kTune));
  launcher_.losses = {{"0.1", 0.5}, {"0.2", 0.4}, {"0.4", 0.6}};
  launcher_.failing = {"ASP-tuning-0.2-seed9"};
  ASSERT_TRUE(Run(&manifest).ok());
  EXPECT_THAT(manifest.chosen, ElementsAre(Pair("ASP", "0.1"), Pair("BSP", "0.2")));
  // 4 untuned, 6 to tune, 2 of BSP tuned; ASP takes the value that it has anyway.
  EXPECT_EQ(launcher_.launched.size(), 12u);
  EXPECT_EQ(launcher_.launched.back(), "BSP-tuned-0.2-seed2");
  const std::vector<StudyRun> runs = ReadRuns(folder(), manifest);
  EXPECT_EQ(runs[0].build, "build 0");
  EXPECT_EQ(runs[1].build, "build 1") << "programs that were built again on the way are seen";
  int tuned = 0;
  for (const StudyRun& run : runs) {
    if (run.part != Part::kTuned) continue;
    ++tuned;
    EXPECT_TRUE(run.counts());
    EXPECT_EQ(run.name,
              absl::StrCat(run.variation == "ASP" ? "ASP-seed" : "BSP-tuned-0.2-seed", run.seed));
  }
  EXPECT_EQ(tuned, 4);
}

// A study that goes on knows its tuned runs only when it has chosen again.
// All runs are of the job as it was when the study was read.
TEST_F(RunnerTest, AJobFileThatIsEditedOnTheWayChangesNothing) {
  Manifest manifest = ManifestOf(absl::StrCat(kStudy, kTune));
  launcher_.losses = {{"0.2", 0.4}};
  fs::remove(folder_ / "job.textproto");
  const auto end = Run(&manifest);
  ASSERT_TRUE(end.ok()) << end.status();
  EXPECT_EQ(*end, StudyEnd::kDone);
}

TEST_F(RunnerTest, WhatStandsBesideTunedRunsIsRenewed) {
  const Manifest fresh = ManifestOf(absl::StrCat(kStudy, kTune));
  launcher_.losses = {{"0.1", 0.5}, {"0.2", 0.4}, {"0.4", 0.6}};
  Manifest manifest = fresh;
  ASSERT_TRUE(Run(&manifest).ok());
  launcher_.renewed.clear();
  manifest = fresh;
  ASSERT_TRUE(Run(&manifest).ok());
  EXPECT_THAT(launcher_.launched, IsEmpty());
  EXPECT_THAT(launcher_.renewed, IsSupersetOf({"BSP-seed1", "BSP-tuning-0.2-seed9",
                                               "BSP-tuned-0.2-seed2", "ASP-tuned-0.2-seed1"}));
}

TEST_F(RunnerTest, TheManifestIsTheStudy) {
  Manifest manifest = ManifestOf(absl::StrCat(kStudy, kTune));
  ASSERT_TRUE(Run(&manifest).ok());
  const auto read = ReadManifest(folder());
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(StudyText(read->plan.study), StudyText(manifest.plan.study));
  EXPECT_EQ(read->chosen, manifest.chosen);
  ASSERT_EQ(read->runs.size(), manifest.runs.size());
  for (size_t i = 0; i < read->runs.size(); ++i) {
    EXPECT_EQ(read->runs[i].name, manifest.runs[i].name);
    EXPECT_EQ(read->runs[i].set, manifest.runs[i].set);
    EXPECT_EQ(read->runs[i].job_hash, manifest.runs[i].job_hash);
    EXPECT_EQ(read->runs[i].job_text, manifest.runs[i].job_text);
  }
  EXPECT_TRUE(absl::IsNotFound(ReadManifest(folder() + "/nowhere").status()));
  Write("manifest.json", "[1]");
  EXPECT_THAT(std::string(ReadManifest(folder()).status().message()),
              HasSubstr("not the manifest"));
}

TEST_F(StudyRunTest, AnotherStudyDoesNotGoOnThere) {
  const Manifest manifest = ManifestOf(kStudy);
  EXPECT_TRUE(CheckGoesOn(manifest, ManifestOf(kStudy)).ok());
  EXPECT_TRUE(CheckGoesOn(manifest, ManifestOf(absl::StrCat(kStudy, "seed: 3"))).ok());
  const absl::Status other =
      CheckGoesOn(manifest, ManifestOf(absl::StrCat(kStudy, "set: \"train.batch_size=8\"")));
  EXPECT_THAT(std::string(other.message()),
              HasSubstr("BSP-seed1 in this folder is of another job"));
  const absl::Status apart = CheckGoesOn(
      manifest, ManifestOf("job: \"job.textproto\" variation { name: \"SSP\" } seed: [1, 2]"));
  EXPECT_THAT(std::string(apart.message()), HasSubstr("this folder belongs to another study"));
}

TEST_F(StudyRunTest, DataAreSummedUp) {
  Write("train.tsv", "abc");
  Write("test.tsv", "abcd");
  std::vector<RunPlan> runs = {ManifestOf(kStudy).runs[0]};
  for (const char* name : {"train.tsv", "test.tsv"}) {
    runs[0].job_text.replace(runs[0].job_text.find(absl::StrCat("\"", name)), 1,
                             absl::StrCat("\"", folder(), "/"));
  }
  auto before = SurroundingsOf(StudyRuns(), runs);
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ((*before)["data"].size(), 2u);
  EXPECT_EQ((*before)["data"][1]["bytes"], 3);
  EXPECT_EQ((*before)["data"][1]["xxh3"], "78af5f94892f3950");  // xxhsum -H3 of "abc"
  Write("train.tsv", "abx");
  Manifest old, now;
  old.runs = now.runs = runs;
  old.surroundings = *before;
  now.surroundings = *SurroundingsOf(StudyRuns(), runs);
  EXPECT_THAT(std::string(CheckGoesOn(old, now).message()), HasSubstr("the data have changed"));
}

TEST_F(StudyRunTest, AFileThatIsNewOrGoneIsNoticed) {
  for (const char* name : {"d/train-1.tsv", "d/train-2.tsv", "test.tsv"}) Write(name, "abc");
  Manifest manifest;
  manifest.runs = {ManifestOf(absl::StrCat(kStudy, "set: \"data.train=", folder(),
                                           "/d/*.tsv\" set: \"data.test=", folder(), "/test.tsv\""))
                       .runs[0]};
  const Manifest first = Now(manifest);
  EXPECT_TRUE(CheckGoesOn(first, Now(manifest)).ok());
  Write("d/train-3.tsv", "abc");
  EXPECT_THAT(std::string(CheckGoesOn(first, Now(manifest)).message()),
              HasSubstr("d/train-3.tsv of "));
  fs::remove(folder_ / "d/train-3.tsv");
  fs::remove(folder_ / "d/train-2.tsv");
  EXPECT_THAT(std::string(CheckGoesOn(first, Now(manifest)).message()),
              HasSubstr("d/train-2.tsv of "));
}

// What a job reads beside its data, too.
TEST_F(StudyRunTest, AModuleThatIsAnotherNowIsNoticed) {
  for (const char* name : {"train.tsv", "test.tsv", "module.pt"}) Write(name, "abc");
  Manifest manifest;
  manifest.runs = {
      ManifestOf(absl::StrCat(kStudy, "set: \"data.train=", folder(),
                              "/train.tsv\" set: \"data.test=", folder(), "/test.tsv\" ",
                              "set: \"model={script {file: '", folder(), "/module.pt'}}\""))
          .runs[0]};
  const Manifest first = Now(manifest);
  EXPECT_TRUE(CheckGoesOn(first, Now(manifest)).ok());
  Write("module.pt", "abd");
  EXPECT_THAT(std::string(CheckGoesOn(first, Now(manifest)).message()), HasSubstr("module.pt"));
}

TEST_F(StudyRunTest, BuildsAreToldApartByTheirPrograms) {
  Write("one", "a");
  const std::string before = BuildOf({folder() + "/one", folder() + "/none"});
  EXPECT_EQ(BuildOf({folder() + "/one", folder() + "/none"}), before);
  Write("one", "b");
  EXPECT_NE(BuildOf({folder() + "/one", folder() + "/none"}), before);
}

}  // namespace
}  // namespace tandem
