#include "cli/predict_command.h"

#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "cli/run_command.h"
#include "data/files.h"
#include "job/job.h"
#include "node/role_flags.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

int RefusePrediction(const absl::Status& why) {
  node::Finish("tandem predict", why);
  return node::kExitBadInput;
}

absl::Status CheckRows(const PredictFlags& flags, const Data& data) {
  if (data.format() == Data::PROGRAM) {
    if (flags.python.empty()) {
      return absl::InvalidArgumentError(
          "the job's rows are a program's, which has to say what a row is; hint: --python SCRIPT, "
          "as it was trained with (docs/PYTHON.md)");
    }
    if (flags.data.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "--data ", flags.data[0], ": it is the script that reads; hint: tell it, behind --"));
  }
  if (!flags.python.empty()) {
    return absl::InvalidArgumentError(
        "--python: the job has a model and readers of its own; hint: leave it out");
  }
  if (data.format() == Data::NCF) {
    return absl::InvalidArgumentError(
        "data.format is NCF: its rows are not those of files; hint: files of one row a line have "
        "scores");
  }
  if (!flags.data.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("which rows? hint: --data FILES, in the job's format");
}

absl::Status CheckFlags(const PredictFlags& flags, const Data& data) {
  TANDEM_RETURN_IF_ERROR(CheckRows(flags, data));
  std::error_code error;
  if (fs::is_directory(flags.out, error)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out ", flags.out, ": is a folder; hint: name the file for the scores"));
  }
  const fs::path folder = fs::path(flags.out).parent_path();
  if (!folder.empty() && !fs::is_directory(folder, error)) {
    return absl::InvalidArgumentError(absl::StrCat("--out ", flags.out, ": there is no folder ",
                                                   folder.string(), "; hint: make it first"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> ReadLogits(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(path));
  std::vector<float> logits(bytes.size() / sizeof(float));
  if (!logits.empty()) std::memcpy(logits.data(), bytes.data(), logits.size() * sizeof(float));
  return logits;
}

// A policy that leaves out some of several workers is none for one, which pushes nothing.
void AddPolicies(const job::JobPlan& trained, std::vector<std::string>* set) {
  if (trained.job.policy().kind() == Policy::BACKUP_WORKERS) {
    set->emplace_back("policy={kind: BSP}");
  }
  for (size_t t = 0; t < trained.tables.size(); ++t) {
    if (!trained.groups[trained.tables[t].group].properties.skips) continue;
    const std::string path =
        static_cast<int>(t) == trained.dense_table ? "dense" : absl::StrCat("table[", t, "]");
    set->push_back(path + ".policy={kind: BSP}");
  }
}

// How the run of the job differs from one that trains.
std::vector<std::string> SettingsOf(const PredictFlags& flags, const job::JobPlan& trained) {
  std::vector<std::string> set = flags.set;
  set.emplace_back("train.evaluate_only=true");
  if (trained.job.model().has_program()) {
    set.emplace_back("cluster.workers=1");  // the order is the script's
    set.emplace_back("service_time=[]");    // which may be of workers that there are not
    AddPolicies(trained, &set);
    return set;
  }
  std::vector<std::string> files;
  for (const std::string& file : flags.data) {
    files.push_back(absl::StrCat("\"", absl::CEscape(file), "\""));
  }
  // The files that the model was trained on need not be there any more.
  const std::string list = absl::StrCat("=[", absl::StrJoin(files, ","), "]");
  for (const std::string& text :
       {"data.test" + list, "data.train" + list, std::string("data.test_fraction=0"),
        std::string("data.skip_bad_rows=0"), std::string("data.max_rows=0")}) {
    set.push_back(text);
  }
  return set;
}

absl::StatusOr<job::JobPlan> PlanOf(const std::string& job, const std::vector<std::string>& set) {
  node::RoleFlags role;
  role.job = job;
  role.set = set;
  return node::PlanOf(role);
}

// The files of --data, which stand in for those of the job.
absl::Status CheckFilesOf(const Job& job) {
  if (job.data().format() == Data::PROGRAM) return absl::OkStatus();
  const auto files = data::TrainingFiles(job.data());
  if (files.ok()) return absl::OkStatus();
  return absl::Status(files.status().code(),
                      absl::StrReplaceAll(files.status().message(),
                                          {{"data.train", "--data"},
                                           {"; hint: check the path in the job file", ""}}));
}

// Row i is worker i mod `workers`' next one. Digits enough that scores which differ differ in the file.
absl::Status WriteScores(const std::string& run, int workers, const std::string& script,
                         const std::string& out, int64_t* rows) {
  std::vector<std::vector<float>> logits;
  size_t all = 0;
  for (int rank = 0; rank < workers; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(logits.emplace_back(), ReadLogits(ScoresFile(run, rank)));
    all += logits.back().size();
  }
  std::string text;
  for (size_t i = 0; i < all; ++i) {
    const std::vector<float>& of_worker = logits[i % static_cast<size_t>(workers)];
    const size_t row = i / static_cast<size_t>(workers);
    if (row >= of_worker.size()) {
      return absl::InternalError(absl::StrCat("worker ", i % static_cast<size_t>(workers),
                                              " has scored ", of_worker.size(), " rows of ", all));
    }
    absl::StrAppendFormat(&text, "%.17g\n",
                          1 / (1 + std::exp(-static_cast<double>(of_worker[row]))));
  }
  if (all == 0 && !script.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat(script,
                     " has scored nothing; hint: job.score(...) in a loop over "
                     "job.evaluate(...), behind that over batches; one over "
                     "job.evaluate(..., data=\"validation\") has no batches here"));
  }
  *rows = static_cast<int64_t>(all);
  return WriteFileAtomically(out, text);
}

// The folder of the run is for nobody to keep, unless the run fails: its logs say why.
class PassingFolder {
 public:
  PassingFolder() {
    std::error_code error;
    path_ = absl::StrCat(fs::temp_directory_path(error).string(), "/tandem-predict-", getpid());
  }
  ~PassingFolder() {
    std::error_code ignored;
    if (!kept_) fs::remove_all(path_, ignored);
  }
  PassingFolder(const PassingFolder&) = delete;
  PassingFolder& operator=(const PassingFolder&) = delete;
  const std::string& path() const { return path_; }
  void Keep() { kept_ = true; }

 private:
  std::string path_;
  bool kept_ = false;
};

}  // namespace

int PredictCommand(const PredictFlags& flags) {
  const absl::StatusOr<job::JobPlan> trained = PlanOf(flags.job, flags.set);
  if (!trained.ok()) return RefusePrediction(trained.status());
  if (const absl::Status ready = CheckFlags(flags, trained->job.data()); !ready.ok()) {
    return RefusePrediction(ready);
  }
  PassingFolder folder;
  RunFlags run;
  run.program = "tandem predict";
  run.job = flags.job;
  run.set = SettingsOf(flags, *trained);
  const absl::StatusOr<job::JobPlan> plan = PlanOf(run.job, run.set);
  if (!plan.ok()) return RefusePrediction(plan.status());
  if (const absl::Status there = CheckFilesOf(plan->job); !there.ok())
    return RefusePrediction(there);
  run.out = folder.path();
  run.scores = true;
  run.start.init_from = flags.init_from;
  run.python = flags.python;
  run.script_flags = flags.script_flags;
  if (const int code = RunCommand(run); code != node::kExitOk) {
    if (code == node::kExitFailed) folder.Keep();  // it has said where the logs are
    return code;
  }
  int64_t rows = 0;
  const absl::Status written =
      WriteScores(folder.path(), plan->workers(), flags.python, flags.out, &rows);
  if (!written.ok()) {
    folder.Keep();
    return node::Finish("tandem predict",
                        absl::Status(written.code(), absl::StrCat(written.message(), "; logs in ",
                                                                  folder.path(), "/logs")));
  }
  absl::PrintF("wrote %d scores to %s\n", rows, flags.out);
  return node::kExitOk;
}

}  // namespace tandem::cli
