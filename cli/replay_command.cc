#include "cli/replay_command.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <system_error>

#include <nlohmann/json.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "cli/console/output_folder.h"
#include "cli/launch/resume_point.h"
#include "cli/launch/script.h"
#include "cli/run_command.h"
#include "data/files.h"
#include "job/job.h"
#include "job/resume_check.h"
#include "job/row_shape.h"
#include "node/programs.h"
#include "node/role_flags.h"
#include "node/role_options.h"
#include "scheduler/deal_ranges.h"
#include "server/checkpoint/checkpoint_compare.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/record/order_file.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kDifferencesShown = 5;

int RefuseReplay(const absl::Status& why) {
  node::Finish("tandem replay", why);
  return node::kExitBadInput;
}

std::string JobOf(const ReplayFlags& flags) { return flags.recorded + "/job.textproto"; }

// Checks that the run has finished. Otherwise its recorded order is not complete.
absl::Status CheckEnded(const std::string& folder) {
  const std::string path = folder + "/summary.json";
  std::ifstream file(path);
  if (!file) {
    return absl::NotFoundError(
        absl::StrCat(path, ": is not there, expected the folder of a run that has ended"));
  }
  const auto summary = nlohmann::json::parse(file, nullptr, false);
  if (!summary.is_object()) return absl::DataLossError(absl::StrCat(path, ": is no JSON object"));
  if (summary.contains("resumed")) {
    return absl::FailedPreconditionError(absl::StrCat(
        path,
        ": the run was resumed from a checkpoint, where its workers waited for each other, and a "
        "replay cannot repeat that; hint: docs/REPLAY.md"));
  }
  if (summary.contains("exit") && summary["exit"] == 0 && !summary.contains("failed") &&
      !summary.contains("stopped")) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(path, ": the run did not come to its end, and only whole runs are replayed"));
}

// Reads the model that the run began with.
absl::Status ReadStart(const std::string& folder, StartFlags* start) {
  const std::string path = absl::StrCat(folder, "/", kStartFile);
  std::ifstream file(path);
  if (!file) return absl::OkStatus();
  const auto json = nlohmann::json::parse(file, nullptr, false);
  const bool good = json.is_object() && json.contains("init_from") &&
                    json["init_from"].is_string() && json.contains("only_tables") &&
                    json["only_tables"].is_array();
  if (!good) {
    return absl::DataLossError(absl::StrCat(
        path, ": is not what a run writes there, an object with init_from and only_tables"));
  }
  start->init_from = json["init_from"].get<std::string>();
  for (const nlohmann::json& table : json["only_tables"]) {
    if (table.is_string()) start->only_tables.push_back(table.get<std::string>());
  }
  return absl::OkStatus();
}

struct Changes {
  Job was;                        // the job of the recorded run
  std::vector<std::string> sets;  // settings of the replay
  // The requested changes that lead to another model, one line each.
  std::vector<std::string> said;
};

// Settings of the recorded run that its job does not name. The user's come after them.
absl::StatusOr<std::vector<std::string>> SetsBefore(const ReplayFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const Job written, job::ReadJobFile(JobOf(flags), {}));
  std::vector<std::string> sets;
  for (const auto& [path, value] : job::EarlierSettings(written)) {
    sets.push_back(absl::StrCat(path, "=", value));
  }
  return sets;
}

// Turns checkpoints off: they would make workers wait for each other where the recorded run
// did not. `was`: the job of the recorded run. If it does not name a deal, an earlier version ran
// it. Earlier versions dealt ROWS.
std::vector<std::string> SetsOf(const Changes& changes) {
  const Job& was = changes.was;
  std::vector<std::string> sets = changes.sets;
  sets.insert(sets.end(),
              {"checkpoint.every_steps=1000000000000000", "checkpoint.every_seconds=0"});
  if (job::HasRowsInLines(was.data()) && was.data().deal() == Data::DEAL_UNSPECIFIED) {
    sets.emplace_back("data.deal=ROWS");
  }
  return sets;
}

absl::StatusOr<Changes> CheckChanges(const ReplayFlags& flags) {
  node::RoleFlags role;
  role.job = JobOf(flags);
  TANDEM_ASSIGN_OR_RETURN(role.set, SetsBefore(flags));
  TANDEM_ASSIGN_OR_RETURN(const job::ResolvedJob was, node::PlanOf(role));
  if (!was.job.staleness().record_order()) {
    return absl::FailedPreconditionError(
        absl::StrCat(flags.recorded,
                     ": the run has not recorded its order; hint: train with --set "
                     "staleness.record_order=true"));
  }
  role.set.insert(role.set.end(), flags.run.set.begin(), flags.run.set.end());
  TANDEM_ASSIGN_OR_RETURN(const job::ResolvedJob is, node::PlanOf(role));
  const std::vector<std::string> refused = job::ReplayDifferences(was.job, is.job);
  if (!refused.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--set: ", refused.front(),
                     ": under the recorded order optimizers, first "
                     "values and the weights of updates may change; hint: docs/REPLAY.md"));
  }
  return Changes{was.job, role.set, job::ModelDifferences(was.job, is.job)};
}

// Checks the recorded order before a process starts. The order does not contain the tables
// of programs.
absl::Status CheckOrder(const ReplayFlags& flags) {
  node::RoleFlags role;
  role.job = JobOf(flags);
  TANDEM_ASSIGN_OR_RETURN(const job::ResolvedJob plan, node::PlanOf(role));
  const std::vector<RangeInfo> ranges = scheduler::DealRanges(plan);
  std::vector<uint32_t> recorded;
  for (uint32_t r = 0; r < ranges.size(); ++r) {
    if (!plan.tables[ranges[r].table()].store) recorded.push_back(r);
  }
  return server::CheckWholeOrder(flags.recorded, plan.workers(), recorded);
}

// Checks that the files are those of the recorded run. A run without a checkpoint does not
// name them.
absl::Status CheckFiles(const ReplayFlags& flags) {
  const absl::StatusOr<ResumePoint> point =
      FindResumePoint(flags.recorded, server::CheckpointSearch::WithoutRanges());
  if (!point.ok() || !point->job.has_value()) return absl::OkStatus();
  absl::Status same = data::CheckSameFiles(point->record, point->job->data());
  if (same.ok()) same = CheckNegatives(point->record, point->job->data());
  if (same.ok()) return same;
  return absl::Status(same.code(), absl::StrCat(flags.recorded, ": ", same.message()));
}

// Runs the replay in the simulator, which reports jobs that it does not support.
int RunSerially(const RunFlags& run) {
  if (!run.python.empty()) {
    return RefuseReplay(absl::InvalidArgumentError(
        "--python: a script's loop cannot be run by a virtual clock; leave out --serial"));
  }
  if (!run.start.init_from.empty()) {
    return RefuseReplay(absl::UnimplementedError(
        "--serial: the run began with --init-from, and simulated ones begin afresh; leave it out"));
  }
  if (const absl::Status there = node::CheckProgram("tandem-simulator"); !there.ok()) {
    return RefuseReplay(there);
  }
  std::vector<std::string> argv = {
      node::ProgramPath("tandem-simulator"), run.job, "--out", run.out, "--replay", run.replay};
  if (run.overwrite) argv.push_back("--overwrite");
  for (const std::string& set : run.set) argv.insert(argv.end(), {"--set", set});
  std::vector<char*> words;
  for (std::string& word : argv) words.push_back(word.data());
  words.push_back(nullptr);
  std::fflush(stdout);
  // Ctrl-C also reaches the child, which ends in order. Wait for it.
  signal(SIGINT, SIG_IGN);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGINT, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execv(words[0], words.data());
    std::fprintf(stderr, "tandem replay: %s cannot be started\n", words[0]);
    _exit(node::kExitFailed);
  }
  if (child < 0) return RefuseReplay(absl::ResourceExhaustedError("no process can be started"));
  const std::optional<int> status = WaitForEnd(child);
  if (!status.has_value()) {
    return node::Finish("tandem replay",
                        absl::UnknownError("the simulator ended (its exit status is not known)"));
  }
  if (WIFSIGNALED(*status)) return node::kExitBySignal + WTERMSIG(*status);
  return WEXITSTATUS(*status);
}

// Compares the models of both runs. A recorded run without checkpoints has no model. `changed`: the
// user asked for changes.
int Compare(const ReplayFlags& flags, const std::string& out, bool changed) {
  const std::string recorded = flags.recorded + "/model";
  std::error_code error;
  if (fs::symlink_status(recorded, error).type() == fs::file_type::not_found) {
    std::printf("replayed; no models to compare: %s is not there\n", recorded.c_str());
    return node::kExitOk;
  }
  const absl::StatusOr<server::CheckpointReader> was = server::CheckpointReader::Open(recorded);
  const absl::StatusOr<server::CheckpointReader> is =
      server::CheckpointReader::Open(out + "/model");
  if (!was.ok()) return node::Finish("tandem replay", was.status());
  if (!is.ok()) return node::Finish("tandem replay", is.status());
  const absl::StatusOr<server::ModelComparison> compared = server::CompareModels(*was, *is);
  if (!compared.ok()) return node::Finish("tandem replay", compared.status());
  const auto& differences = compared->differences;
  if (differences.empty()) {
    absl::PrintF("replayed: the same bits, in %d ranges of %d rows, checksum %016x\n",
                 compared->ranges, compared->rows, compared->checksum);
    return node::kExitOk;
  }
  if (changed) {
    absl::PrintF("replayed with changes in the recorded order: %d of %d ranges differ\n",
                 differences.size(), compared->ranges);
    return node::kExitOk;
  }
  for (size_t i = 0; i < std::min(differences.size(), kDifferencesShown); ++i) {
    std::fprintf(stderr, "  %s\n", differences[i].c_str());
  }
  return node::Finish("tandem replay",
                      absl::DataLossError(absl::StrCat(
                          "the models differ, in ", differences.size(), " of ", compared->ranges,
                          " ranges; hint: are data and programs those of the run?")));
}

}  // namespace

void AddReplay(CLI::App* app, ReplayFlags* flags) {
  CLI::App* replay = app->add_subcommand(
      "replay", "Run a recorded job again in the same order of updates, to the same bits");
  replay->add_option("run", flags->recorded, "Folder of a run with staleness.record_order")
      ->required();
  node::AddSetFlag(replay, &flags->run.set);
  node::AddOutFlags(replay, "Folder for what it leaves; without: out/NAME-TIME", &flags->run.out,
                    &flags->run.overwrite);
  replay->add_flag("--serial", flags->serial,
                   "In one process, one worker after the other (docs/SIMULATE.md)");
  replay->add_option("--python", flags->run.python, "Script that is each worker, as in the run")
      ->check(CLI::ExistingFile);
  replay->add_option("flags", flags->run.script_flags,
                     "Behind --: the flags of the --python script");
}

// Earlier versions drew negatives from all numbers up to the largest item, also from numbers that
// no row has. Their records have no hash of the training files (DataFile.sample).
absl::Status CheckNegatives(const RunRecord& was, const Data& data) {
  const bool earlier = std::any_of(was.train().begin(), was.train().end(),
                                   [](const DataFile& file) { return file.sample() == 0; });
  if (data.format() != Data::NCF || !earlier) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "an earlier version recorded this NCF job and drew other negatives, so a replay would not "
      "give the same result; hint: record the run again with this version");
}

int ReplayCommand(const ReplayFlags& flags) {
  if (const absl::Status ended = CheckEnded(flags.recorded); !ended.ok())
    return RefuseReplay(ended);
  const absl::StatusOr<Changes> changes = CheckChanges(flags);
  if (!changes.ok()) return RefuseReplay(changes.status());
  if (const absl::Status whole = CheckOrder(flags); !whole.ok()) return RefuseReplay(whole);
  if (const absl::Status same = CheckFiles(flags); !same.ok()) return RefuseReplay(same);
  RunFlags run = flags.run;
  run.program = "tandem replay";
  run.job = JobOf(flags);
  run.set = SetsOf(*changes);
  if (const absl::Status read = ReadStart(flags.recorded, &run.start); !read.ok()) {
    return RefuseReplay(read);
  }
  std::error_code error;
  run.replay = fs::absolute(flags.recorded, error).string();
  for (const std::string& change : changes->said) std::printf("changed: %s\n", change.c_str());
  if (!run.python.empty()) {
    const std::string change = ScriptChange(flags.recorded, run.python, ScriptHash(run.python));
    if (!change.empty()) std::printf("%s\n", change.c_str());
  }
  if (run.out.empty()) run.out = NewFolderName("replay");
  if (IsInside(run.out, flags.recorded)) {
    return RefuseReplay(absl::InvalidArgumentError(
        absl::StrCat("--out ", run.out, ": is the recorded run; hint: name another folder")));
  }
  const int code = flags.serial ? RunSerially(run) : RunCommand(run);
  if (code != node::kExitOk) return code;
  return Compare(flags, run.out, !changes->said.empty());
}

}  // namespace tandem::cli
