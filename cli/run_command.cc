#include "cli/run_command.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/owned_fd.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/console/output_folder.h"
#include "cli/console/progress_view.h"
#include "cli/describe_run.h"
#include "cli/launch/attempts.h"
#include "cli/launch/children.h"
#include "cli/launch/deal_roles.h"
#include "cli/launch/job_hosts.h"
#include "cli/launch/launcher_watch.h"
#include "cli/launch/restarts.h"
#include "cli/launch/resume_point.h"
#include "cli/launch/role_commands.h"
#include "cli/launch/script.h"
#include "data/batch_source.h"
#include "data/files.h"
#include "data/id_check.h"
#include "data/row_data.h"
#include "data/statistics.h"
#include "job/row_rules_check.h"
#include "node/job_token.h"
#include "node/network_check.h"
#include "node/programs.h"
#include "node/role_flags.h"
#include "node/role_options.h"
#include "node/transport_choice.h"
#include "scheduler/observe/summary.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "tools/doctor/doctor.h"
#include "tools/doctor/doctor_gather.h"
#include "worker/dense/tune_group.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kBadRowsFile[] = "bad_rows.txt";

// Changes a message about data to the flags of the called command: the job file of `tandem predict`
// does not name its rows.
std::string InFlagsOf(const RunFlags& flags, absl::string_view text) {
  if (!flags.scores) return std::string(text);
  return absl::StrReplaceAll(text, {{"data.test", "--data"},
                                    {"; hint: check the path in the job file", ""},
                                    {"; hint: remove it from the job", ""}});
}

// Describes the model that a run with train.keep_best keeps.
std::string DescribeBest(const nlohmann::json& best, bool saved) {
  return absl::StrFormat(
      "%s epoch %d, step %s: validation %s %.4f%s", saved ? "kept the model of" : "best at",
      best.value("epoch", int64_t{0}), WithCommas(best.value("step", int64_t{0})),
      best.value("metric", "") == "auc" ? "AUC" : best.value("metric", ""),
      best.value("value", 0.0),
      best.value("stopped_early", false) ? "; none better came, so it ended" : "");
}

// Claims the folder of the run, and writes the token of the job there.
absl::Status ClaimFolder(const RunFlags& flags, const Job& job,
                         std::optional<OutputFolder>* folder) {
  const bool resumes = flags.start.resumed.has_value();
  TANDEM_ASSIGN_OR_RETURN(OutputFolder claimed,
                          OutputFolder::Claim(flags.out, flags.overwrite || resumes));
  folder->emplace(std::move(claimed));
  TANDEM_RETURN_IF_ERROR(node::ProvideToken(job, flags.out));
  return (*folder)->WriteInRoom([&] { return node::PublishToken(job, flags.out); });
}

class Run {
 public:
  // `kept`: keeps the checkpoint that the job begins with while a process may still load it.
  // `script_hash`: of the script that runs as each worker, if any. `warnings`: warnings about the
  // data, which have been printed.
  Run(const RunFlags& flags, job::ResolvedJob plan, OwnedFd kept, const std::string& script_hash,
      std::vector<std::string> warnings)
      : flags_(flags),
        plan_(std::move(plan)),
        warnings_(std::move(warnings)),
        script_hash_(script_hash),
        view_(flags.lines, flags.lines == stdout && CanRewriteLines()),
        attempts_(flags, plan_, script_hash, std::move(kept), &view_) {}

  // Checks that the programs to start exist.
  absl::Status CheckPrograms() const {
    for (const absl::string_view name :
         {"tandem-scheduler", "tandem-server", node::kWorkerProgram}) {
      if (!flags_.python.empty() && name == node::kWorkerProgram) continue;
      TANDEM_RETURN_IF_ERROR(node::CheckProgram(name));
    }
    return absl::OkStatus();
  }

  // Prepares the folder of the run, which ClaimFolder has claimed: writes the job for all processes
  // and the list of skipped rows there.
  absl::Status Prepare(OutputFolder folder, const std::vector<std::string>& bad_rows) {
    folder_.emplace(std::move(folder));
    if (!resumes()) {
      // Keep the model that this run replaces until the new one is complete.
      folder_->Clear(/*keep_model=*/attempts_.writes_checkpoints() ||
                     IsInside(flags_.start.init_from, flags_.out));
      std::error_code error;
      fs::remove_all(flags_.out + "/logs", error);
    }
    TANDEM_RETURN_IF_ERROR(folder_->WriteInRoom([&] { return WriteFolder(bad_rows); }));
    if (resumes()) folder_->ClearForResume();
    return absl::OkStatus();
  }

  // Creates the virtual hosts for the processes, if the job uses them.
  absl::Status MakeHosts() {
    if (flags_.link_bytes_per_second == 0) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(JobHosts hosts,
                            JobHosts::Make({flags_.link_bytes_per_second, plan_.workers(),
                                            plan_.server_processes(), flags_.colocate_servers}));
    hosts_.emplace(std::move(hosts));
    return absl::OkStatus();
  }

  int Execute() {
    // From here on signals count as requests. A user may send one after the first line of output.
    (void)node::StopSignals();
    (void)node::CheckpointSignals();
    Announce();
    RoleOptions roles;
    roles.job = JobPath();
    roles.out = flags_.out;
    roles.python = flags_.python;
    roles.script_flags = flags_.script_flags;
    roles.replay = flags_.replay;
    roles.trace_steps = flags_.trace_steps;
    roles.scores = flags_.scores;
    roles.hosts = hosts_.has_value() ? &*hosts_ : nullptr;
    roles.network = flags_.network;
    roles.workers_here = WorkersHere(plan_.server_processes(), plan_.workers(), /*first=*/0,
                                     flags_.ranks_here, flags_.ranks);
    attempts_.Execute(&*folder_, std::move(roles));
    return Close();
  }

 private:
  std::string JobPath() const { return flags_.out + "/job.textproto"; }
  bool resumes() const { return flags_.start.resumed.has_value(); }

  // Refuses a model folder without write permission. Otherwise the first checkpoint would fail.
  absl::Status CheckModelFolder() const {
    const std::string model = flags_.out + "/model";
    if (!attempts_.writes_checkpoints() ||
        faccessat(AT_FDCWD, model.c_str(), W_OK | X_OK, AT_EACCESS) == 0 || errno == ENOENT) {
      return absl::OkStatus();
    }
    return absl::PermissionDeniedError(
        absl::StrCat("--out ", flags_.out, ": no checkpoint can be written to ", model, ": ",
                     std::strerror(errno), "; hint: make this folder writable"));
  }

  absl::Status WriteFolder(const std::vector<std::string>& bad_rows) const {
    TANDEM_RETURN_IF_ERROR(CheckModelFolder());
    TANDEM_RETURN_IF_ERROR(MakeFolder(flags_.out + "/logs"));
    if (!bad_rows.empty()) {
      std::ofstream(absl::StrCat(flags_.out, "/", kBadRowsFile))
          << absl::StrJoin(bad_rows, "\n") << "\n";
    }
    // Write atomically, because a resumed run needs the job.
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(JobPath(), job::ResolvedText(plan_)));
    if (resumes()) return absl::OkStatus();
    if (!flags_.python.empty()) {
      TANDEM_RETURN_IF_ERROR(NoteScript(flags_.out, flags_.python, script_hash_));
    }
    return NoteTheStart();
  }

  // Notes the model for a replay. The run may be resumed later with other flags.
  absl::Status NoteTheStart() const {
    if (flags_.start.init_from.empty() || !plan_.job.staleness().record_order())
      return absl::OkStatus();
    std::error_code error;
    const nlohmann::json start = {
        {"init_from", fs::absolute(flags_.start.init_from, error).string()},
        {"only_tables", flags_.start.only_tables}};
    return WriteFileAtomically(absl::StrCat(flags_.out, "/", kStartFile),
                               scheduler::PrettyPrint(start));
  }

  void Announce() {
    if (flags_.scores) return;
    for (const std::string& line : DescribeRun(plan_, flags_.start)) view_.Line(line);
  }

  int Close() {
    failure_ = attempts_.Failure();
    if (!failure_.empty()) {
      if (!attempts_.job_ended()) {
        failure_ += HowToResumeAfterAFailure();
      } else if (attempts_.requested_end().is_object()) {
        absl::StrAppend(&failure_, "; ", HowItStopped());
      }
    } else if (attempts_.requested_end().is_object()) {
      if (!attempts_.requested_end().contains("failure")) return End(node::kExitOk, HowItStopped());
      failure_ = HowItStopped();
    }
    if (failure_.empty()) return PrintSummary();
    view_.Clear();
    ShowLog();
    return End(node::kExitFailed, absl::StrCat("failed: ", InFlagsOf(flags_, failure_)));
  }

  // The end of a run that has not trained to its end. `code`: unless a signal has ended it.
  int End(int code, const std::string& text) {
    view_.Clear();
    if (attempts_.stopped_by_signal()) code = SignalExit();
    // All roles have ended. The files of a checkpoint that failed may fill the disk.
    if (flags_.ranks == 1) server::RemoveIncompleteCheckpoints(flags_.out + "/model");
    // Ignore a failure to write the summary, because the line below says more.
    (void)CompleteSummary(code);
    node::Finish(flags_.program,
                 absl::AbortedError(absl::StrCat(text, "; logs in ", flags_.out, "/logs")));
    return code;
  }

  static int SignalExit() { return node::kExitBySignal + node::StopSignalNumber(); }

  // Adds the values to the summary that only this process knows, also if the scheduler has died.
  absl::StatusOr<nlohmann::json> CompleteSummary(int code) {
    const std::string path = flags_.out + "/summary.json";
    std::ifstream file(path);
    auto summary = nlohmann::json::parse(file, nullptr, false);
    if (!summary.is_object() && failure_.empty()) {
      return absl::DataLossError(absl::StrCat("failed: ", path, " was not written"));
    }
    if (!summary.is_object()) {
      summary = {{"job", plan_.job.name()},
                 {"seed", plan_.job.seed()},
                 {"failed", {{"node", attempts_.FailedRole()}}}};
    }
    if (summary.contains("failed")) {
      nlohmann::json& failed = summary["failed"];
      // The scheduler may have named a process that was ended because of another one.
      if (const std::string role = attempts_.FailedRole();
          !role.empty() && failed["node"] != role) {
        failed = {{"node", role}};
      }
      failed["reason"] = failure_;
    }
    std::vector<std::string> warnings = warnings_;
    for (const auto& line : summary.value("warnings", nlohmann::json::array())) {
      warnings.push_back(line.get<std::string>());
    }
    if (!warnings.empty()) summary["warnings"] = warnings;
    summary["command"] = flags_.command;
    summary["exit"] = code;
    const Restarts& restarts = attempts_.restarts();
    if (restarts.count() > 0) summary["restarts"] = restarts.Summary();
    if (hosts_.has_value()) summary["network"] = hosts_->Summary();
    if (!flags_.replay.empty()) summary["replay_of"] = flags_.replay;
    if (!flags_.python.empty()) {
      summary["script"] = {{"file", flags_.python}, {"sha256", script_hash_}};
    }
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(path, scheduler::PrettyPrint(summary)));
    return summary;
  }

  // How a run ended at a signal or `tandem stop`: with a checkpoint, without one, or why it failed.
  std::string HowItStopped() const {
    const nlohmann::json& end = attempts_.requested_end();
    const auto step = end.value("checkpointed_step", int64_t{-1});
    const std::string failure = end.value("failure", "");
    return absl::StrCat(
        attempts_.stopped_by_signal() ? "stopped by a signal" : end.value("why", ""), ", ",
        !failure.empty() ? absl::StrCat("no checkpoint: ", failure)
        : step < 0       ? "there is no checkpoint"
                         : absl::StrCat("checkpoint at step ", WithCommas(step)),
        step < 0 ? "" : HowToResume());
  }

  // Empty if the run has no checkpoint.
  std::string HowToResumeAfterAFailure() const {
    if (!attempts_.began() || !flags_.replay.empty()) return "";
    return HasResumePoint(flags_.out) ? HowToResume() : "";
  }

  std::string HowToResume() const {
    std::string script, script_flags;
    if (!flags_.python.empty()) script = absl::StrCat(" --python ", ForShell(flags_.python));
    for (const std::string& flag : flags_.script_flags) {
      absl::StrAppend(&script_flags, script_flags.empty() ? " -- " : " ", ForShell(flag));
    }
    // A launcher has started this process: only the user knows how.
    if (flags_.ranks > 1) {
      return absl::StrCat("; continue with: the same command and --resume ", ForShell(flags_.out));
    }
    return absl::StrCat("; continue with: tandem run ", ForShell(flags_.job), SetFlags(), script,
                        " --resume ", ForShell(flags_.out), script_flags);
  }

  std::string SetFlags() const {
    std::string text;
    for (const std::string& set : flags_.set) absl::StrAppend(&text, " --set ", ForShell(set));
    return text;
  }

  void ShowLog() {
    const Children::Exit* const exit = attempts_.FirstExitToShow();
    if (exit == nullptr || exit->lines.empty()) return;
    view_.Line(absl::StrCat("the end of ", exit->log, ":"));
    for (const std::string& line : exit->lines) view_.Line(absl::StrCat("  ", line));
  }

  int PrintSummary() {
    const int code = attempts_.stopped_by_signal() ? SignalExit() : node::kExitOk;
    const absl::StatusOr<nlohmann::json> completed = CompleteSummary(code);
    if (!completed.ok()) return node::Finish(flags_.program, completed.status());
    if (flags_.scores) return code;
    const nlohmann::json& summary = *completed;
    const auto eval = summary.value("eval", nlohmann::json::object());
    const std::string result = ProgressView::FormatEvaluation(eval);
    const std::string seconds = absl::StrFormat("%.1f s", summary.value("seconds", 0.0));
    const int restarts = attempts_.restarts().count();
    const std::string trained = absl::StrCat(
        WithCommas(summary.value("samples", int64_t{0})), " samples in ", seconds,
        restarts == 0 ? "" : absl::StrCat(" with ", Counted(restarts, "restart")), ", ",
        WithCommas(static_cast<int64_t>(summary.value("samples_per_second", 0.0))), " samples/s");
    view_.Line(absl::StrCat(
        "done: ",
        plan_.job.train().evaluate_only() ? absl::StrCat("evaluated in ", seconds) : trained,
        result.empty() ? "" : absl::StrCat("; ", eval.value("data", "test"), ": "), result));
    if (summary.contains("best"))
      view_.Line(DescribeBest(summary["best"], attempts_.writes_checkpoints()));
    view_.Line(absl::StrCat("wrote ", flags_.out, "/summary.json"));
    return code;
  }

  const RunFlags& flags_;
  const job::ResolvedJob plan_;
  const std::vector<std::string> warnings_;
  const std::string script_hash_;  // at the start of the run
  ProgressView view_;
  std::optional<OutputFolder> folder_;  // held until the roles have ended
  std::optional<JobHosts> hosts_;       // nullopt: all processes are on this host
  Attempts attempts_;
  std::string failure_;  // for people, once the run is over; empty: it has ended well
};

// Checks that the processes of the job can run on virtual hosts.
absl::Status CheckNetwork(const RunFlags& flags, const job::ResolvedJob& plan) {
  const bool limited = flags.link_bytes_per_second != 0;
  if (flags.colocate_servers && !limited) {
    return absl::InvalidArgumentError(
        "--colocate-servers: without hosts there is nothing to be beside; hint: "
        "--link-bytes-per-second 1.25e8 for links of 1 Gbit/s");
  }
  if (limited && !flags.python.empty()) {
    return absl::InvalidArgumentError(
        "--link-bytes-per-second: not with --python: a script chooses by itself where it listens");
  }
  if (flags.colocate_servers && plan.server_processes() > plan.workers()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--colocate-servers: ", plan.server_processes(), " servers beside ",
                     Counted(plan.workers(), "worker"), ", expected at most as many"));
  }
  return limited ? node::CheckHostsApart(plan.job) : absl::OkStatus();
}

// Refuses a job that cannot fit on this host. Takes some milliseconds. A limit that may be too low
// becomes a line of `warnings`.
absl::Status CheckHost(const RunFlags& flags, const job::ResolvedJob& plan,
                       std::vector<std::string>* warnings) {
  if (flags.link_bytes_per_second == 0 && flags.network.bind.empty()) {
    TANDEM_RETURN_IF_ERROR(node::CheckLoopback());
  }
  const DealtRoles here =
      DealRoles(plan.server_processes(), plan.workers(), /*rank=*/0, flags.ranks);
  const doctor::JobNeeds needs = doctor::NeedsOf(plan, static_cast<int>(here.servers.size()),
                                                 static_cast<int>(here.workers.size()),
                                                 /*loads=*/!flags.start.init_from.empty());
  const std::vector<doctor::Finding> findings =
      doctor::ExamineStart(doctor::GatherLimits(), plan.job.cluster().transport(), needs);
  TANDEM_RETURN_IF_ERROR(doctor::FirstProblem(findings));
  for (const doctor::Finding& finding : findings) {
    warnings->push_back(
        absl::StrCat(finding.check, ": ", finding.found, "; hint: ", finding.advice));
  }
  return absl::OkStatus();
}

// A checkpoint keeps the statistics that standardise numeric columns, and the labels: its data are
// checked by both. A new model gets the ones of its training rows once these are checked. A run
// that is resumed deals its rows as before.
absl::Status Adopt(const StartFlags& start, const std::string& description,
                   job::ResolvedJob* plan) {
  Data* const data = plan->job.mutable_data();
  data::ClearMeasured(data);
  if (start.resumed.has_value()) {
    TANDEM_RETURN_IF_ERROR(data::AdoptDeal(start.resumed->record, data));
  }
  return description.empty() ? absl::OkStatus() : data::AdoptDescription(description, data);
}

// Warns of rows to score whose ids the model has never seen. A checkpoint that cannot be read is
// refused by the servers, who read all of it.
void CheckIdsToScore(const std::string& checkpoint, const job::ResolvedJob& plan,
                     std::vector<std::string>* warnings) {
  absl::StatusOr<data::IdCheck> ids = data::SampleIdsToScore(plan);
  if (!ids.ok() || !ids->LacksIds()) return;
  const absl::StatusOr<server::CheckpointReader> model = server::CheckpointReader::Open(checkpoint);
  if (!model.ok()) return;
  for (const server::CheckpointFile& file : model->manifest().files) {
    const bool read = std::any_of(
        plan.tables.begin(), plan.tables.end(),
        [&file](const job::TablePlan& t) { return t.of_model() && t.name == file.table; });
    if (!read) continue;
    const auto keys = model->ReadKeys(file);
    if (!keys.ok()) return;
    ids->SeeModel(*keys);
    if (!ids->LacksIds()) return;
  }
  ids->Warn(/*all=*/true, warnings);
}

}  // namespace

void AddJobFile(CLI::App* app, const std::string& help, RunFlags* flags) {
  app->add_option("job", flags->job, help + "; default with --resume DIR: DIR/job.textproto");
  app->parse_complete_callback([flags] {
    if (flags->job.empty() && flags->start.resume.empty()) throw CLI::RequiredError("job");
    if (flags->job.empty()) flags->job = flags->start.resume + "/job.textproto";
  });
}

void AddWatchFlags(CLI::App* app, WatchFlags* flags) {
  app->add_option("--http", flags->http,
                  "HOST:PORT of the live page, or none; without: a free loopback port "
                  "(docs/OBSERVE.md)")
      ->check([](const std::string& text) {
        return text == kNoHttp ? "" : node::CheckHttpAddress(text);
      });
  app->add_flag("--insecure", flags->insecure,
                "Allow a job without a token to listen, and to serve --http, where other hosts "
                "can connect");
  app->add_option("--tensorboard", flags->tensorboard, "Folder for an event file of TensorBoard");
}

int RunCommand(const RunFlags& given) {
  RunFlags flags = given;
  node::RoleFlags role;
  role.job = flags.job;
  role.set = flags.set;
  data::DataReport data;
  flags.start.search.reads_ranges = false;  // Attempts begins again without a damaged checkpoint
  absl::Status ready = FindResume(&flags.start, &flags.out);
  const bool resumes = flags.start.resumed.has_value();
  const Job* const was =
      resumes && flags.start.resumed->job.has_value() ? &*flags.start.resumed->job : nullptr;
  auto plan = ready.ok() ? node::PlanOf(role, was) : absl::StatusOr<job::ResolvedJob>(ready);
  ready = plan.status();
  if (ready.ok() && flags.out.empty()) flags.out = NewFolderName(plan->job.name());
  const auto refuse = [&flags](const absl::Status& why) {  // no process is started
    node::Finish(flags.program, absl::Status(why.code(), InFlagsOf(flags, why.message())));
    return node::kExitBadInput;
  };
  if (ready.ok()) ready = OutputFolder::Check(flags.out, flags.overwrite || resumes);
  if (!ready.ok()) return refuse(ready);
  ready = CheckScript(flags.python, flags.script_flags, *plan, ProgramFolder());
  if (!ready.ok()) return refuse(ready);
  StartReport start = CheckStart(flags.start, *plan);
  for (const std::string& line : start.refused) refuse(absl::InvalidArgumentError(line));
  if (!start.refused.empty()) return node::kExitBadInput;
  flags.start.init_from = start.checkpoint;
  ready = doctor::CheckDenseDevice(*plan);
  if (ready.ok()) ready = worker::CheckDenseChoices(*plan);
  if (ready.ok()) ready = node::CheckTransport(plan->job);
  if (ready.ok()) ready = CheckNetwork(flags, *plan);
  std::vector<std::string> warnings = job::WarnOfRowRules(*plan);
  if (ready.ok()) ready = CheckHost(flags, *plan, &warnings);
  // The other ranks of a launch wait for the token, so it is written before the data are read.
  std::optional<OutputFolder> folder;
  if (ready.ok() && flags.ranks > 1) ready = ClaimFolder(flags, plan->job, &folder);
  if (ready.ok()) ready = Adopt(flags.start, start.description, &*plan);
  if (ready.ok()) ready = data::CheckData(*plan, &data);
  if (ready.ok()) ready = data::FillFromData("", &*plan);
  if (!ready.ok()) return refuse(ready);
  if (flags.scores) CheckIdsToScore(start.checkpoint, *plan, &warnings);
  warnings.insert(warnings.end(), data.warnings.begin(), data.warnings.end());
  for (const std::string& text : warnings) {
    std::fprintf(stderr, "warning: %s\n", InFlagsOf(flags, text).c_str());
  }
  const std::string script_hash = flags.python.empty() ? "" : ScriptHash(flags.python);
  if (resumes && !flags.python.empty()) {
    const std::string change = ScriptChange(flags.out, flags.python, script_hash);
    if (!change.empty()) start.said.push_back(change);
  }
  for (const std::string& line : start.said) std::fprintf(flags.lines, "%s\n", line.c_str());
  Run run(flags, *plan, std::move(start.kept), script_hash, std::move(data.warnings));
  if (const absl::Status there = run.CheckPrograms(); !there.ok()) {
    return node::Finish(flags.program, there);
  }
  if (const absl::Status made = run.MakeHosts(); !made.ok()) return refuse(made);
  flags.launcher.Check();     // a launcher that has gone while this rank has read the data
  if (!folder.has_value()) {  // a refused job leaves no folder
    if (const absl::Status claimed = ClaimFolder(flags, plan->job, &folder); !claimed.ok()) {
      return refuse(claimed);
    }
  }
  if (const absl::Status prepared = run.Prepare(*std::move(folder), data.bad_rows);
      !prepared.ok()) {
    return refuse(prepared);
  }
  return run.Execute();
}

}  // namespace tandem::cli
