#include "tools/study/compare_command.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/terminal.h"
#include "cli/console/output_folder.h"
#include "cli/console/progress_view.h"
#include "cli/launch/children.h"
#include "cli/launch/script.h"
#include "cli/launch/virtual_hosts.h"
#include "data/batch_source.h"
#include "job/job.h"
#include "node/programs.h"
#include "node/role_flags.h"
#include "node/transport_choice.h"
#include "scheduler/observe/summary.h"
#include "tools/doctor/doctor_gather.h"
#include "tools/sim/command/simulator.h"
#include "tools/study/figures.h"
#include "tools/study/json_value.h"
#include "tools/study/manifest.h"
#include "tools/study/report.h"
#include "tools/study/run_model.h"
#include "tools/study/runner.h"
#include "tools/study/study_runs.h"
#include "worker/dense/tune_group.h"

namespace tandem::study {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kStopGrace = absl::Seconds(8);  // more than `tandem run` gives its roles
constexpr absl::Duration kLook = absl::Milliseconds(100);

// The shortest text that a reader parses to the same number.
std::string WithAllDigits(double number) {
  char text[32];
  const std::to_chars_result end = std::to_chars(text, text + sizeof text, number);
  return std::string(text, end.ptr);
}

// Why a run ended: the last error of `tandem run`, or else the last line of its log.
std::string WhyOf(const cli::Children::Exit& exit, const std::string& log) {
  if (exit.signal != 0) return exit.DebugString();
  const std::vector<std::string> lines = cli::LastLines(log);
  if (lines.empty()) return exit.DebugString();
  const auto said = std::find_if(lines.rbegin(), lines.rend(), [](const std::string& line) {
    return absl::StartsWith(line, "tandem run: ") || absl::StartsWith(line, "tandem simulate: ");
  });
  return said != lines.rend() ? *said : lines.back();
}

// The flags of `tandem simulate` for the runs of a study.
sim::SimulateFlags FlagsOf(const Simulate& simulate) {
  sim::SimulateFlags flags;
  flags.step_seconds = simulate.step_seconds();
  flags.latency_seconds = simulate.latency_seconds();
  flags.bytes_per_second = simulate.bytes_per_second();
  flags.timing_only = simulate.timing_only();
  flags.steps = simulate.steps();
  flags.seconds = simulate.seconds();
  flags.step_bytes = simulate.step_bytes();
  flags.dense_bytes = simulate.dense_bytes();
  if (!simulate.has_problem()) return flags;
  const Problem& problem = simulate.problem();
  flags.problem.kind = absl::AsciiStrToLower(Problem::Kind_Name(problem.kind()));
  if (problem.has_parameters()) flags.problem.parameters = problem.parameters();
  if (problem.has_curvature()) flags.problem.curvature = problem.curvature();
  if (problem.has_condition()) flags.problem.condition = problem.condition();
  if (problem.has_noise()) flags.problem.noise = problem.noise();
  if (problem.has_fields()) flags.problem.fields = problem.fields();
  if (problem.has_ids()) flags.problem.ids = problem.ids();
  if (problem.has_skew()) flags.problem.skew = problem.skew();
  if (problem.has_until()) flags.problem.until = problem.until();
  if (problem.has_start()) flags.problem.start = problem.start();
  return flags;
}

// Starts `tandem run` of this build, or `tandem simulate`. Their output goes to the run's folder.
class ProcessLauncher final : public RunLauncher {
 public:
  // `build`: see RunnerOptions.
  ProcessLauncher(std::string program, const StudyRuns& plan, std::function<std::string()> build,
                  const std::atomic<bool>* stop)
      : program_(std::move(program)),
        study_(plan.study),
        script_(plan.script),
        build_(std::move(build)),
        stop_(*stop),
        live_(CanRewriteLines()) {}

  End Launch(const RunPlan& run, const std::string& folder, const std::string& caption,
             double seconds_left) override {
    std::vector<std::string> argv = {program_,
                                     study_.has_simulate() ? "simulate" : "run",
                                     RunJobFile(folder),
                                     "--out",
                                     folder,
                                     "--no-checkpoint"};
    if (!script_.empty()) argv.insert(argv.end(), {"--python", script_});
    if (study_.has_simulate()) AddFlags(study_.simulate(), &argv);
    if (study_.has_network()) AddNetwork(study_.network(), run.colocate_servers, &argv);
    End end = RunProcess(argv, folder, caption, seconds_left);
    if (end.ok && study_.has_network()) AddModel(run, folder, &end);
    if (!end.ok || !study_.twin()) return end;
    const std::string twin = TwinFolder(folder);
    const double live_seconds = end.seconds;
    argv = {program_, "simulate", RunJobFile(folder), "--calibrate", folder,
            "--out",  twin,       "--no-checkpoint"};
    end = RunProcess(argv, twin, absl::StrCat(caption, ", its twin"), seconds_left);
    end.seconds += live_seconds;
    return end;
  }

  // Writes the model of a finished run again if it is missing or out of date: the assumptions of
  // the study may have changed, or the study was ended between a run and its model. If this fails,
  // the model stays missing, and the run is repeated.
  void Renew(const RunPlan& run, const std::string& folder) override {
    if (!study_.has_network() || !ReadRun(run, folder).counts()) return;
    const absl::Status renewed =
        WriteModelOfRun(folder, study_.network(), run.colocate_servers, build_());
    if (renewed.ok()) return;
    std::printf("%s: no model of it: %s\n", run.name.c_str(),
                std::string(renewed.message()).c_str());
  }

  // Erases the live line.
  void Clear() {
    if (std::exchange(shown_, false)) std::fputs("\r\033[K", stdout);
    std::fflush(stdout);
  }

 private:
  // Output goes to FOLDER/run.log, or to FOLDER.log if the folder does not exist yet, as for
  // a twin.
  End RunProcess(const std::vector<std::string>& argv, const std::string& folder,
                 const std::string& caption, double seconds_left) {
    const std::string log = folder + (fs::exists(folder) ? "/run.log" : ".log");
    const absl::Time begin = MonotonicNow();
    End end;
    cli::Children children;
    if (const absl::Status started = children.Start({argv[1], argv, log}); !started.ok()) {
      end.why = std::string(started.message());
      return end;
    }
    std::vector<cli::Children::Exit> exits;
    while (exits.empty() && !stop_.load()) {
      Show(caption, folder + "/metrics.jsonl", seconds_left);
      absl::SleepFor(kLook);
      exits = children.Reap();
    }
    Clear();
    end.seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
    if (exits.empty()) {
      children.StopAll(kStopGrace);
      end.stopped = true;
      return end;
    }
    end.ok = exits[0].code == 0 && exits[0].signal == 0;
    if (!end.ok) {
      end.why = WhyOf(exits[0], log);
    } else {
      end.why = WhyStopped(folder);
      end.ok = end.why.empty();
    }
    return end;
  }

  // "" if the run has come to its end.
  static std::string WhyStopped(const std::string& folder) {
    return cli::ReadSummary(folder).contains("stopped") ? "stopped before its end, on request" : "";
  }

  static void AddFlags(const Simulate& simulate, std::vector<std::string>* argv) {
    const sim::SimulateFlags flags = FlagsOf(simulate);
    const auto add = [argv](const char* flag, const std::string& value) {
      argv->insert(argv->end(), {flag, value});
    };
    add("--step-seconds", WithAllDigits(flags.step_seconds));
    add("--latency-seconds", WithAllDigits(flags.latency_seconds));
    add("--bytes-per-second", WithAllDigits(flags.bytes_per_second));
    if (flags.steps > 0) add("--steps", absl::StrCat(flags.steps));
    if (flags.seconds > 0) add("--seconds", WithAllDigits(flags.seconds));
    if (flags.timing_only) {
      argv->push_back("--timing-only");
      add("--step-bytes", WithAllDigits(flags.step_bytes));
      add("--dense-bytes", WithAllDigits(flags.dense_bytes));
    }
    const sim::ProblemFlags& problem = flags.problem;
    if (problem.empty()) return;
    add("--problem", problem.kind);
    add("--parameters", absl::StrCat(problem.parameters));
    add("--curvature", WithAllDigits(problem.curvature));
    add("--condition", WithAllDigits(problem.condition));
    add("--noise", WithAllDigits(problem.noise));
    add("--fields", absl::StrCat(problem.fields));
    add("--ids", absl::StrCat(problem.ids));
    add("--zipf", WithAllDigits(problem.skew));
    add("--until", WithAllDigits(problem.until));
    add("--start", WithAllDigits(problem.start));
  }

  static void AddNetwork(const Network& network, bool beside, std::vector<std::string>* argv) {
    argv->insert(argv->end(),
                 {"--link-bytes-per-second", WithAllDigits(network.bytes_per_second())});
    if (beside) argv->push_back("--colocate-servers");
  }

  void AddModel(const RunPlan& run, const std::string& folder, End* end) const {
    const absl::Status written =
        WriteModelOfRun(folder, study_.network(), run.colocate_servers, build_());
    if (written.ok()) return;
    end->ok = false;
    end->why = absl::StrCat("no model of it: ", written.message());
  }

  void Show(const std::string& caption, const std::string& metrics, double seconds_left) {
    if (!live_ || MonotonicNow() < next_) return;
    next_ = MonotonicNow() + absl::Seconds(1);
    const std::vector<std::string> lines = cli::LastLines(metrics);
    const auto last =
        lines.empty() ? nlohmann::json() : nlohmann::json::parse(lines.back(), nullptr, false);
    std::string text = caption;
    if (last.is_object() && last.value("event", "") == "progress") {
      absl::StrAppendFormat(&text, " | %.0f %%, loss %.4f", 100 * last.value("done", 0.0),
                            last.value("loss", 0.0));
    }
    const auto left = static_cast<int64_t>(seconds_left);
    if (left > 0) absl::StrAppendFormat(&text, " | about %d:%02d left", left / 60, left % 60);
    constexpr size_t kColumns = 79;
    std::fprintf(stdout, "\r\033[K%s", text.substr(0, kColumns).c_str());
    std::fflush(stdout);
    shown_ = true;
  }

  const std::string program_;
  const Study& study_;
  const std::string script_;
  const std::function<std::string()> build_;
  const std::atomic<bool>& stop_;
  const bool live_;
  bool shown_ = false;
  absl::Time next_ = absl::InfinitePast();
};

// Makes the checks that `tandem run` makes before it starts a process. `script`: of the study.
absl::Status CheckJobHere(const job::ResolvedJob& plan, const std::string& script) {
  const bool program = plan.job.model().has_program();
  if (program && script.empty()) {
    return absl::InvalidArgumentError(
        "the job has model { program {} }, but the study names no script; add python: "
        "\"train.py\" to the study, a path from the folder of the study");
  }
  if (!program && !script.empty()) {
    return absl::InvalidArgumentError(
        "python: the job has a model of its own, which no script trains; hint: data { format: "
        "PROGRAM } "
        "and model { program {} }, or leave python out");
  }
  TANDEM_RETURN_IF_ERROR(cli::CheckScript(script, {}, plan, ProgramFolder()));
  TANDEM_RETURN_IF_ERROR(doctor::CheckDenseDevice(plan));
  TANDEM_RETURN_IF_ERROR(worker::CheckDenseChoices(plan));
  TANDEM_RETURN_IF_ERROR(node::CheckTransport(plan.job));
  return data::CheckData(plan);
}

// Reads and checks the study, its jobs and its runs before any run starts.
absl::StatusOr<Manifest> Prepare(const std::string& file) {
  Manifest manifest;
  manifest.study_file = file;
  TANDEM_ASSIGN_OR_RETURN(manifest.plan, ReadStudyFile(file));
  const Study& study = manifest.plan.study;
  TANDEM_RETURN_IF_ERROR(CheckAllRuns(manifest.plan, [&](const job::ResolvedJob& plan) {
    if (study.has_simulate())
      TANDEM_RETURN_IF_ERROR(sim::CheckFlags(FlagsOf(study.simulate()), plan));
    const bool simulated = study.twin() || study.has_simulate();
    const bool with_data = !manifest.plan.without_data();
    if (simulated && with_data) TANDEM_RETURN_IF_ERROR(sim::CheckSimulated(plan));
    return study.has_simulate() ? absl::OkStatus() : CheckJobHere(plan, manifest.plan.script);
  }));
  for (const Part part : {Part::kUntuned, Part::kTuning}) {
    if (part == Part::kTuning && !manifest.plan.tunes()) break;
    TANDEM_ASSIGN_OR_RETURN(const auto runs, RunsOf(manifest.plan, part, {}));
    manifest.runs.insert(manifest.runs.end(), runs.begin(), runs.end());
  }
  TANDEM_ASSIGN_OR_RETURN(manifest.surroundings, SurroundingsOf(manifest.plan, manifest.runs));
  return manifest;
}

// The largest number of virtual hosts that a run of the study needs.
int MaxHosts(const Manifest& manifest) {
  int most = 0;
  for (const RunPlan& run : manifest.runs) {
    const absl::StatusOr<Job> job = job::ParseJob(run.job_text, run.name, {});
    if (!job.ok()) continue;  // the run will report the error
    const int servers = run.colocate_servers ? 0 : job->cluster().servers();
    most = std::max(most, 1 + job->cluster().workers() + servers);
  }
  return most;
}

std::string FileIn(const std::string& folder, const char* name) {
  return absl::StrCat(folder, "/", name);
}

// Checks that the study may use the folder: the folder is new, empty, or contains this study.
absl::Status CheckFolder(const std::string& folder, bool overwrite, Manifest* manifest) {
  std::error_code error;
  const absl::StatusOr<Manifest> old = ReadManifest(folder);
  if (absl::IsNotFound(old.status())) {
    for (const auto& entry : fs::directory_iterator(folder, error)) {
      // Files of a study that was ended right after its start.
      if (entry.path().filename() == "lock" || entry.path().filename() == "manifest.json.tmp")
        continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "--out ", folder, ": there are files, but no study; hint: name another folder"));
    }
    return absl::OkStatus();
  }
  if (!old.ok()) return old.status();  // no valid study, so --overwrite may not remove it
  if (overwrite) return absl::OkStatus();
  if (const absl::Status same = CheckGoesOn(*old, *manifest); !same.ok()) {
    return absl::FailedPreconditionError(absl::StrCat("--out ", folder, ": ", same.message()));
  }
  const auto build = old->surroundings.value("build", nlohmann::json());
  if (build != manifest->surroundings["build"]) {
    std::fprintf(stderr, "warning: the runs that are done are of another build\n");
  }
  manifest->surroundings["began"] = TextIn(old->surroundings, "began");
  // Keep the load from the start of the study: the load now includes the study's own runs.
  manifest->surroundings["machine"]["load"] =
      NumberIn(old->surroundings.value("machine", nlohmann::json::object()), "load", 0.0);
  // A value that was chosen for another field is no use.
  if (!manifest->plan.tunes() ||
      manifest->plan.study.tune().path() != old->plan.study.tune().path()) {
    return absl::OkStatus();
  }
  manifest->chosen = old->chosen;
  for (const RunPlan& run : old->runs) {
    if (run.part == Part::kTuned) manifest->runs.push_back(run);
  }
  return absl::OkStatus();
}

// Removes the results of an earlier study for `--overwrite`. Keeps the manifest, which marks the
// folder as one of a study until the new manifest replaces it.
absl::Status ClearFolder(const std::string& folder) {
  for (const char* name : {"runs", "figures", "results.json", "report.html", "runs.csv"}) {
    std::error_code error;
    fs::remove_all(FileIn(folder, name), error);
    if (error) {
      return absl::PermissionDeniedError(
          absl::StrCat(FileIn(folder, name), ": cannot be removed: ", error.message()));
    }
  }
  return absl::OkStatus();
}

int Refused(const absl::Status& why) {
  node::Finish("tandem compare", why);
  return node::kExitBadInput;
}

std::string HowToContinue(const CompareFlags& flags) {
  return absl::StrCat("to continue: tandem compare ", flags.study, " --out ", flags.out,
                      "; what is done so far: tandem compare --report-only ", flags.out);
}

void Announce(const Manifest& manifest, const std::string& out) {
  const StudyRuns& plan = manifest.plan;
  const auto count = [&manifest](Part part) {
    return std::count_if(manifest.runs.begin(), manifest.runs.end(),
                         [part](const RunPlan& run) { return run.part == part; });
  };
  if (!plan.study.question().empty()) std::printf("%s\n", plan.study.question().c_str());
  std::string more;
  if (plan.tunes()) {
    more = absl::StrCat(", ", count(Part::kTuning), " to tune them, ",
                        plan.variations.size() * plan.study.seed_size(), " tuned");
  }
  std::printf("%s: %zu variations, %d seeds: %td runs%s; in %s\n", plan.study.name().c_str(),
              plan.variations.size(), plan.study.seed_size(), count(Part::kUntuned), more.c_str(),
              out.c_str());
  std::fflush(stdout);
}

int WriteReportOf(const char* program, const std::string& folder) {
  const auto report = WriteReport(folder, FigureScript());
  if (!report.ok()) {
    const int code = node::Finish(program, report.status());
    return absl::IsNotFound(report.status()) ? node::kExitBadInput : code;
  }
  std::printf("%d runs complete", report->complete);
  if (report->collapsed > 0) std::printf(" (%d of them collapsed)", report->collapsed);
  if (report->diverged > 0) std::printf(", %d diverged", report->diverged);
  if (report->failed > 0) std::printf(", %d failed", report->failed);
  if (report->absent > 0) std::printf(", %d not done", report->absent);
  std::printf("\n%s\n", report->answer.c_str());
  if (!report->missing.empty()) std::printf("%s\n", report->missing.c_str());
  std::printf("wrote %s\n", FileIn(folder, "report.html").c_str());
  return report->complete > 0 ? node::kExitOk : node::kExitFailed;
}

// The programs that run a study; this one comes first.
std::vector<const char*> ProgramsOf(const Manifest& manifest) {
  const Study& study = manifest.plan.study;
  std::vector<const char*> names = {"tandem"};
  // `tandem` itself simulates a problem: there is no model.
  if ((study.has_simulate() && !study.simulate().has_problem()) || study.twin()) {
    names.push_back("tandem-simulator");
  }
  if (!study.has_simulate()) {
    names.insert(names.end(), {"tandem-scheduler", "tandem-server"});
    if (manifest.plan.script.empty()) names.push_back(node::kWorkerProgram);
  }
  return names;
}

int RunThem(const CompareFlags& flags, Manifest* manifest) {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  const std::atomic<bool>* const stop = node::StopSignal();
  RunnerOptions options;
  options.folder = flags.out;
  std::vector<std::string> programs;
  for (const char* name : ProgramsOf(*manifest)) programs.push_back(node::ProgramPath(name));
  if (!manifest->plan.script.empty()) {
    for (std::string& file : cli::PackageFiles(ProgramFolder()))
      programs.push_back(std::move(file));
  }
  // Called for each run, because the user may rebuild the programs during the study.
  options.build = [programs] { return BuildOf(programs); };
  ProcessLauncher launcher(program.string(), manifest->plan, options.build, stop);
  options.retry_failed = flags.retry_failed;
  options.stop = stop;
  options.say = [](const std::string& line) {
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  };
  const auto end = RunStudy(options, manifest, &launcher);
  if (!end.ok()) return node::Finish("tandem compare", end.status());
  if (*end == StudyEnd::kStopped) {
    std::fprintf(stderr, "tandem compare: stopped; %s\n", HowToContinue(flags).c_str());
    node::DieBySignal(node::StopSignalNumber());
  }
  if (*end == StudyEnd::kBudget) {
    std::printf("the budget is spent; with a larger one the study goes on\n");
  }
  return WriteReportOf("tandem compare", flags.out);
}

}  // namespace

void AddCompare(CLI::App* app, CompareFlags* flags) {
  CLI::App* compare = app->add_subcommand(
      "compare", "Run a study: jobs that differ in what you ask about, and a report");
  compare->add_option("study", flags->study,
                      "Study file, e.g. configs/studies/quickstart_policies.textproto");
  compare->add_option(
      "--out", flags->out,
      "Folder for report.html, runs.csv, figures/ and runs/; without: out/NAME. A study "
      "that was cut off goes on there");
  compare->add_flag("--overwrite", flags->overwrite,
                    "What another study left in --out may be lost");
  compare->add_flag("--retry-failed", flags->retry_failed, "Run again what failed before");
  compare->add_flag("--check", flags->check, "List the runs, and run nothing");
  compare->add_option("--report-only", flags->report_only,
                      "Write the report of this study folder again, and run nothing");
}

// Nothing in the output folder changes before every check has passed. --check ends before the
// checks of what only a run needs.
int CompareCommand(const CompareFlags& given) {
  if (!given.report_only.empty()) {
    if (given.study.empty()) return WriteReportOf("tandem compare", given.report_only);
    return Refused(absl::InvalidArgumentError(
        "--report-only takes the folder of a study, and no study file; leave the file out"));
  }
  if (given.study.empty()) {
    return Refused(absl::InvalidArgumentError(
        "no study file given; for example configs/studies/quickstart_policies.textproto, or "
        "--report-only FOLDER"));
  }
  CompareFlags flags = given;
  (void)node::StopSignal();  // from here on Ctrl-C ends the study in order
  absl::StatusOr<Manifest> manifest = Prepare(flags.study);
  if (!manifest.ok()) return Refused(manifest.status());
  if (flags.out.empty()) flags.out = absl::StrCat("out/", manifest->plan.study.name());
  if (const absl::Status ready = CheckFolder(flags.out, flags.overwrite, &*manifest); !ready.ok()) {
    return Refused(ready);
  }
  if (manifest->plan.study.has_network() && !flags.check) {
    const double rate = manifest->plan.study.network().bytes_per_second();
    const absl::Status can = cli::VirtualHosts::Check(MaxHosts(*manifest), rate);
    if (!can.ok()) return Refused(can);
  }
  Announce(*manifest, flags.out);
  if (flags.check) {
    for (const RunPlan& run : manifest->runs) std::printf("  %s\n", run.name.c_str());
    return node::kExitOk;
  }
  for (const char* name : ProgramsOf(*manifest)) {
    if (const absl::Status there = node::CheckProgram(name); !there.ok()) return Refused(there);
  }
  const auto folder = cli::OutputFolder::Claim(flags.out, /*overwrite=*/true);
  if (!folder.ok()) return Refused(folder.status());
  absl::Status ready = flags.overwrite ? ClearFolder(flags.out) : absl::OkStatus();
  if (ready.ok()) ready = WriteManifest(flags.out, *manifest);
  if (!ready.ok()) return Refused(ready);
  return RunThem(flags, &*manifest);
}

}  // namespace tandem::study
