#include "cli/predict_command.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <memory>
#include <set>
#include <system_error>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "cli/console/progress_view.h"
#include "cli/launch/role_commands.h"
#include "cli/run_command.h"
#include "data/arrow_files.h"
#include "data/arrow_table.h"
#include "data/chosen_columns.h"
#include "data/files.h"
#include "job/job.h"
#include "node/role_flags.h"
#include "server/checkpoint/checkpoint_directory.h"

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
    if (!flags.columns.empty()) {
      return absl::InvalidArgumentError(
          "--columns: the script reads the rows; hint: it can write their columns itself");
    }
    if (flags.data.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "--data ", flags.data[0], ": it is the script that reads; hint: tell it, behind --"));
  }
  if (!flags.python.empty()) {
    return absl::InvalidArgumentError(
        "--python: the job has a model and readers of its own; hint: leave it out");
  }
  if (!flags.data.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      data.format() == Data::NCF
          ? "--data is missing; name the files with the pairs to score, a user and an item a row"
          : "--data is missing; name the files with the rows to score, in the job's format; no row "
            "needs a label");
}

// Refuses an --out that cannot be written, as far as this is known before scoring.
absl::Status CheckOut(const PredictFlags& flags) {
  const auto refuse = [&](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat("--out ", flags.out, ": ", why...));
  };
  if (flags.out.empty()) return refuse("an empty name; hint: name the file for the scores");
  if (absl::EndsWith(flags.out, ".parquet")) {
    const absl::Status ready = data::CheckParquet();
    if (!ready.ok()) return refuse(ready.message());
    std::set<std::string> names = {"score"};
    for (const std::string& name : flags.columns) {
      if (names.insert(name).second) continue;
      return refuse("--columns gives a second column '", name, "'; hint: leave it out");
    }
    if (data::IsAddress(flags.out)) return absl::OkStatus();
  }
  const OutputPlace place = FindOutput(flags.out);
  if (place.fd >= 0) return absl::OkStatus();
  std::error_code error;
  if (fs::is_directory(place.path, error)) {
    return refuse("is a folder; hint: name the file for the scores");
  }
  if (fs::is_socket(place.path, error)) return refuse("is a socket; hint: name a file or a FIFO");
  const bool exists = fs::exists(place.path, error);
  std::string folder = fs::path(place.path).parent_path().string();
  if (folder.empty()) folder = ".";
  if (!exists && !fs::is_directory(folder, error)) {
    return refuse("there is no folder ", folder, "; hint: make it first");
  }
  const std::string& written = exists ? place.path : folder;
  if (faccessat(AT_FDCWD, written.c_str(), W_OK, AT_EACCESS) == 0) return absl::OkStatus();
  return refuse("cannot be written: ", std::strerror(errno));
}

// The files of the checkpoint. Returns none if it cannot be opened; the run then reports that.
std::vector<std::string> FilesOfModel(const std::string& init_from) {
  std::vector<std::string> files;
  const auto saved = server::CheckpointReader::Open(init_from);
  if (!saved.ok()) return files;
  const fs::path folder = saved->folder();
  files.push_back((folder.parent_path() / "LATEST").string());
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    files.push_back(at->path().string());
  }
  return files;
}

// Refuses an --out that is one of the files that the command reads.
absl::Status CheckNotRead(const PredictFlags& flags, const Job& job,
                          std::vector<std::string> read) {
  read.push_back(flags.job);
  if (job.model().has_script()) read.push_back(job.model().script().file());
  if (!flags.python.empty()) read.push_back(flags.python);
  for (const std::string& file : FilesOfModel(flags.init_from)) read.push_back(file);
  std::error_code error;
  if (!fs::is_regular_file(flags.out, error)) return absl::OkStatus();
  for (const std::string& file : read) {
    if (!fs::equivalent(file, flags.out, error)) continue;
    return absl::InvalidArgumentError(absl::StrCat("--out ", flags.out, ": is ", file,
                                                   ", which is read; hint: name another file"));
  }
  return absl::OkStatus();
}

// Replaces policies that leave out some workers: the single worker of a script does not support
// them, and pushes nothing.
void AddPolicies(const job::ResolvedJob& trained, std::vector<std::string>* set) {
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

// The settings that turn the job into one that only scores.
std::vector<std::string> SettingsOf(const PredictFlags& flags, const job::ResolvedJob& trained) {
  std::vector<std::string> set = flags.set;
  if (trained.job.model().has_program()) {
    set.emplace_back("train.evaluate_only=true");
    set.emplace_back("cluster.workers=1");                // keeps the script's order of rows
    set.emplace_back("fault_injection.slow_workers=[]");  // may name workers that do not exist
    AddPolicies(trained, &set);
    return set;
  }
  std::vector<std::string> files;
  for (const std::string& file : flags.data) {
    files.push_back(absl::StrCat("\"", absl::CEscape(file), "\""));
  }
  set.emplace_back("data.score_only=true");
  set.push_back(absl::StrCat("data.test=[", absl::StrJoin(files, ","), "]"));
  return set;
}

absl::StatusOr<job::ResolvedJob> PlanOf(const std::string& job,
                                        const std::vector<std::string>& set) {
  node::RoleFlags role;
  role.job = job;
  role.set = set;
  return node::PlanOf(role);
}

// The files of --data; empty if a script brings the rows.
absl::StatusOr<std::vector<std::string>> FilesOf(const Data& data) {
  if (data.format() == Data::PROGRAM) return std::vector<std::string>();
  absl::StatusOr<std::vector<std::string>> files =
      data::ExpandAllFiles("--data", {data.test().begin(), data.test().end()});
  if (files.ok()) return files;
  return absl::Status(files.status().code(),
                      absl::StrReplaceAll(files.status().message(),
                                          {{"; hint: check the path in the job file", ""}}));
}

absl::Status CheckColumns(const PredictFlags& flags, const Data& data,
                          const std::vector<std::string>& files) {
  if (flags.columns.empty()) return absl::OkStatus();
  return data::ChosenColumns::Open(data, files, flags.columns).status();
}

absl::StatusOr<std::vector<float>> ReadLogits(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(path));
  std::vector<float> logits(bytes.size() / sizeof(float));
  if (!logits.empty()) std::memcpy(logits.data(), bytes.data(), logits.size() * sizeof(float));
  return logits;
}

// The logits of all workers in the order of rows. Row i is the next row of worker i mod `workers`.
absl::StatusOr<std::vector<float>> LogitsOf(const std::string& run, int workers,
                                            const std::string& script) {
  std::vector<std::vector<float>> logits;
  size_t all = 0;
  for (int rank = 0; rank < workers; ++rank) {
    TANDEM_ASSIGN_OR_RETURN(logits.emplace_back(), ReadLogits(ScoresFile(run, rank)));
    all += logits.back().size();
  }
  std::vector<float> in_order;
  for (size_t i = 0; i < all; ++i) {
    const std::vector<float>& of_worker = logits[i % static_cast<size_t>(workers)];
    const size_t row = i / static_cast<size_t>(workers);
    if (row >= of_worker.size()) {
      return absl::InternalError(absl::StrCat("worker ", i % static_cast<size_t>(workers),
                                              " has scored ", of_worker.size(), " rows of ", all));
    }
    in_order.push_back(of_worker[row]);
  }
  if (all > 0 || script.empty()) return in_order;
  return absl::FailedPreconditionError(
      absl::StrCat(script,
                   " has scored nothing; hint: job.score(...) in a loop over "
                   "job.evaluate(...), behind that over batches; one over "
                   "job.evaluate(..., data=\"validation\") has no batches here"));
}

double ScoreOf(float logit) { return 1 / (1 + std::exp(-static_cast<double>(logit))); }

// Appends a line with enough digits to tell scores apart.
void AppendScore(float logit, std::string* text) {
  absl::StrAppendFormat(text, "%.17g\n", ScoreOf(logit));
}

// The text of the file of scores: one line a row, after a line with the names of the columns if
// there are any. Refused unless the files have as many rows as scores.
absl::StatusOr<std::string> TextOf(const std::vector<float>& logits, const PredictFlags& flags,
                                   const Data& data, const std::vector<std::string>& files) {
  std::unique_ptr<data::ChosenColumns> columns;
  std::string text;
  if (!flags.columns.empty()) {
    TANDEM_ASSIGN_OR_RETURN(columns, data::ChosenColumns::Open(data, files, flags.columns));
    text = absl::StrCat(columns->Header(), "score\n");
  }
  for (const float logit : logits) {
    if (columns != nullptr) TANDEM_RETURN_IF_ERROR(columns->AppendNext(&text));
    AppendScore(logit, &text);
  }
  if (columns != nullptr) TANDEM_RETURN_IF_ERROR(columns->CheckEnd());
  return text;
}

// Writes the file of scores as a Parquet file, with the columns as texts.
absl::Status WriteTable(const std::vector<float>& logits, const PredictFlags& flags,
                        const Data& data, const std::vector<std::string>& files) {
  std::vector<std::vector<std::string>> cells(flags.columns.size());
  std::vector<double> scores;
  std::unique_ptr<data::ChosenColumns> columns;
  if (!flags.columns.empty()) {
    TANDEM_ASSIGN_OR_RETURN(columns, data::ChosenColumns::Open(data, files, flags.columns));
  }
  for (const float logit : logits) {
    if (columns != nullptr) TANDEM_RETURN_IF_ERROR(columns->AppendNext(absl::MakeSpan(cells)));
    for (size_t i = 0; i < cells.size(); ++i) {
      if (IsUtf8(cells[i].back())) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--columns: row ", cells[i].size(), " of column '", flags.columns[i],
                       "' is not UTF-8, as texts of Parquet files are; hint: leave it out"));
    }
    scores.push_back(ScoreOf(logit));
  }
  if (columns != nullptr) TANDEM_RETURN_IF_ERROR(columns->CheckEnd());
  data::ArrowTable table(static_cast<int64_t>(scores.size()));
  for (size_t i = 0; i < cells.size(); ++i) table.AddText(flags.columns[i], cells[i]);
  table.AddDoubles("score", std::move(scores));
  ArrowArrayStream rows = std::move(table).ToStream();
  constexpr int64_t kRowsPerGroup = int64_t{1} << 20;
  return data::WriteParquet(flags.out, &rows, kRowsPerGroup);
}

absl::Status WriteScores(const std::vector<float>& logits, const PredictFlags& flags,
                         const Data& data, const std::vector<std::string>& files) {
  if (absl::EndsWith(flags.out, ".parquet")) return WriteTable(logits, flags, data, files);
  TANDEM_ASSIGN_OR_RETURN(const std::string text, TextOf(logits, flags, data, files));
  return WriteOutput(flags.out, text);
}

// Where the scores stay that cannot be written to --out: a line a row, or in files of the run.
std::string KeepScores(const std::string& run, const std::vector<float>& logits) {
  std::string text;
  for (const float logit : logits) AppendScore(logit, &text);
  const std::string path = run + "/scores.txt";
  return WriteFileAtomically(path, text).ok() ? path : run;
}

// The metrics of the scores of `rows` rows, or the reason why there are none. An evaluation does
// not contain batches that a script scored without labels.
std::string Judge(const std::string& run, int64_t rows) {
  const absl::StatusOr<std::string> text = ReadWholeFile(run + "/summary.json");
  const auto summary = nlohmann::json::parse(text.ok() ? *text : "", nullptr,
                                             /*allow_exceptions=*/false);
  if (!summary.is_object()) return "";
  const auto eval = summary.value("eval", nlohmann::json::object());
  const int64_t unlabelled =
      eval.value("unlabelled", int64_t{0}) + rows - eval.value("samples", int64_t{0});
  if (unlabelled == 0) return ProgressView::FormatEvaluation(eval);
  return absl::StrCat(eval.contains("scores_not_finite") ? "scores are not finite; " : "",
                      "no AUC and no logloss: ",
                      unlabelled == rows ? "the rows have no labels"
                                         : absl::StrCat(WithCommas(unlabelled), " of ",
                                                        WithCommas(rows), " rows have no label"));
}

// A temporary folder for the run. It stays only if the run fails, because its logs say why, or if
// its scores cannot be written.
class PassingFolder {
 public:
  PassingFolder() = default;
  ~PassingFolder() {
    std::error_code ignored;
    if (!kept_ && !path_.empty()) fs::remove_all(path_, ignored);
  }
  PassingFolder(const PassingFolder&) = delete;
  PassingFolder& operator=(const PassingFolder&) = delete;
  absl::Status Make() {
    TANDEM_ASSIGN_OR_RETURN(path_, MakeTemporaryFolder("tandem-predict"));
    return absl::OkStatus();
  }
  const std::string& path() const { return path_; }
  void Keep() { kept_ = true; }

 private:
  std::string path_;
  bool kept_ = false;
};

}  // namespace

// Everything that may refuse the command is checked before the run, because the run may take hours.
// The job is resolved twice: `trained`, the job of the file, decides which settings turn it into
// `plan`, a job that only scores.
int PredictCommand(const PredictFlags& flags) {
  std::vector<std::string> set = flags.set;
  set.emplace_back("train.evaluate_only=true");  // it pushes nothing, and needs no room for pushes
  const absl::StatusOr<job::ResolvedJob> trained = PlanOf(flags.job, set);
  if (!trained.ok()) return RefusePrediction(trained.status());
  absl::Status ready = CheckRows(flags, trained->job.data());
  if (ready.ok()) ready = CheckOut(flags);
  if (!ready.ok()) return RefusePrediction(ready);
  RunFlags run;
  run.program = "tandem predict";
  run.job = flags.job;
  run.set = SettingsOf(flags, *trained);
  const absl::StatusOr<job::ResolvedJob> plan = PlanOf(run.job, run.set);
  if (!plan.ok()) return RefusePrediction(plan.status());
  const Data& data = plan->job.data();
  const absl::StatusOr<std::vector<std::string>> files = FilesOf(data);
  ready = files.status();
  if (ready.ok()) ready = CheckNotRead(flags, plan->job, *files);
  if (ready.ok()) ready = CheckColumns(flags, data, *files);
  PassingFolder folder;
  if (ready.ok()) ready = folder.Make();
  if (!ready.ok()) return RefusePrediction(ready);
  run.out = folder.path();
  run.scores = true;
  // If the scores go to standard output, other lines go to standard error.
  run.lines = FindOutput(flags.out).fd == STDOUT_FILENO ? stderr : stdout;
  run.start.init_from = flags.init_from;
  run.python = flags.python;
  run.script_flags = flags.script_flags;
  if (const int code = RunCommand(run); code != node::kExitOk) {
    if (code == node::kExitFailed) folder.Keep();  // the error names the logs
    return code;
  }
  const auto logits = LogitsOf(run.out, plan->workers(), flags.python);
  if (!logits.ok()) {
    folder.Keep();
    return node::Finish(
        "tandem predict",
        absl::Status(logits.status().code(), absl::StrCat(logits.status().message(), "; logs in ",
                                                          folder.path(), "/logs")));
  }
  const std::string judged = Judge(run.out, static_cast<int64_t>(logits->size()));
  // A pipe may never get a reader, so from here on a signal ends the program at once.
  for (const int stop : {SIGINT, SIGTERM}) (void)signal(stop, SIG_DFL);
  const absl::Status written = WriteScores(*logits, flags, data, *files);
  if (!written.ok()) {
    folder.Keep();
    return node::Finish(
        "tandem predict",
        absl::Status(written.code(), absl::StrCat(written.message(), "; the scores are kept in ",
                                                  KeepScores(folder.path(), *logits))));
  }
  if (!judged.empty()) absl::FPrintF(run.lines, "%s\n", judged);
  absl::FPrintF(run.lines, "wrote %d scores to %s\n", logits->size(), flags.out);
  return node::kExitOk;
}

}  // namespace tandem::cli
