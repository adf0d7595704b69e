// tandem: the command line of the project. Each subcommand has its own file.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/exhaustion.h"
#include "base/file.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/agent_command.h"
#include "cli/cache_command.h"
#include "cli/export_command.h"
#include "cli/launch/host_list.h"
#include "cli/launch/ssh_command.h"
#include "cli/policy_command.h"
#include "cli/predict_command.h"
#include "cli/replay_command.h"
#include "cli/run_command.h"
#include "cli/status_command.h"
#include "data/datagen.h"
#include "node/programs.h"
#include "node/role_options.h"
#include "scheduler/observe/summary.h"
#include "server/checkpoint/inspect.h"
#include "tools/bench/bench_command.h"
#include "tools/doctor/doctor_command.h"
#include "tools/plan/plan_command.h"
#include "tools/sim/command/simulator.h"
#include "tools/study/compare_command.h"

namespace tandem::cli {
namespace {

struct DatagenFlags {
  std::string out;
  data::DatagenOptions options;
  bool gzip = false;
};

int Datagen(const DatagenFlags& flags) {
  data::DatagenOptions options = flags.options;
  const char* const suffix = flags.gzip ? ".tsv.gz" : ".tsv";
  std::error_code error;
  std::filesystem::create_directories(flags.out, error);
  if (error) {
    std::cerr << "tandem datagen: --out " << flags.out
              << ": cannot be made: " << WhyNoFolder(flags.out, error) << "\n";
    return node::kExitBadInput;
  }
  options.train = flags.out + "/train" + suffix;
  options.test = flags.out + "/test" + suffix;
  options.report = flags.out + "/planted.json";
  const absl::Status made = data::GenerateCriteo(options, std::cout);
  const int code = node::Finish("tandem datagen", made);
  return made.code() == absl::StatusCode::kInvalidArgument ? node::kExitBadInput : code;
}

struct InspectFlags {
  std::string path;
  server::InspectOptions options;
};

int InspectCommand(const InspectFlags& flags) {
  const absl::Status written = server::Inspect(flags.path, flags.options, std::cout);
  if (written.ok()) return node::kExitOk;
  std::cout.flush();
  std::cerr << "tandem inspect: " << written.message() << "\n";
  return node::kExitBadInput;
}

// "tandem 0.2.0 (Release, x86-64-v3, g++ 12.2.0)".
std::string Version() {
  const nlohmann::json build = scheduler::BuildJson();
  const auto text = [&](const char* name) { return build[name].get<std::string>(); };
  return absl::StrCat("tandem ", text("version"), " (", text("type"), ", ", text("march"), ", ",
                      text("compiler"), ")");
}

void AddRun(CLI::App* app, RunFlags* flags) {
  CLI::App* run = app->add_subcommand("run", "Train: start a local cluster for a job");
  AddJobFile(run, "Job file (protobuf text), e.g. configs/quickstart.textproto", flags);
  node::AddSetFlag(run, &flags->set);
  node::AddOutFlags(
      run, "Folder for summary.json, metrics.jsonl, model/ and logs/; without: out/NAME-TIME",
      &flags->out, &flags->overwrite);
  AddStartFlags(run, &flags->start);
  node::AddLogFlag(run);
  AddWatchFlags(run, &flags->watch);
  run->add_option("--trace", flags->trace_steps,
                  "Trace so many steps of each worker into OUT/trace-W.json (for Perfetto)")
      ->check(node::CheckNotNegative);
  run->add_option(
         "--link-bytes-per-second", flags->link_bytes_per_second,
         "Each process on a host of its own, a network namespace, with links that carry so "
         "many bytes a second each way (root)")
      ->check(node::CheckAboveZero);
  run->add_flag("--colocate-servers", flags->colocate_servers,
                "With --link-bytes-per-second: server i is on the host of worker i");
  run->add_option(
         "--python", flags->python,
         "Script that is each worker, for a job with model { program {} } (docs/PYTHON.md)")
      ->check(CLI::ExistingFile);
  run->add_option("--hosts", flags->hosts_file,
                  "File with a line \"HOST slots=N\" for each host: N agents there, by ssh "
                  "(docs/LAUNCH.md)");
  run->add_option("-H", flags->host_list, "The same as a list: a:2,b:2")
      ->check([](const std::string& list) {
        return std::string(list.empty() ? "the list of hosts is empty" : "");
      })
      ->excludes(run->get_option("--hosts"));
  run->add_option("flags", flags->script_flags, "Behind --: the flags of the --python script");
}

absl::StatusOr<std::vector<HostSlots>> HostsOf(const RunFlags& flags) {
  if (!flags.host_list.empty()) return ParseHostList(flags.host_list);
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(flags.hosts_file));
  return ParseHostFile(flags.hosts_file, text);
}

int Run(const RunFlags& flags) {
  if (flags.hosts_file.empty() && flags.host_list.empty()) return RunCommand(flags);
  const absl::StatusOr<std::vector<HostSlots>> hosts = HostsOf(flags);
  if (hosts.ok()) return SshCommand(flags, *hosts);
  node::Finish(flags.program, hosts.status());
  return node::kExitBadInput;
}

void AddPredict(CLI::App* app, PredictFlags* flags) {
  CLI::App* predict =
      app->add_subcommand("predict", "Scores of a checkpoint, one a row, in the order of the rows");
  predict->add_option("job", flags->job, "Job file that the model was trained with")->required();
  node::AddSetFlag(predict, &flags->set);
  predict
      ->add_option("--init-from", flags->init_from,
                   "Checkpoint (the folder of a run, its model/, or one checkpoint in that)")
      ->required();
  predict->add_option(
      "--data", flags->data,
      "Files or globs, in the job's format; their rows need no label. NCF: a user and "
      "an item a row");
  predict
      ->add_option("--out", flags->out,
                   "File for the scores, a probability a line; one that is there is replaced")
      ->required();
  predict
      ->add_option(
          "--columns", flags->columns,
          "Columns of the rows to write in front of the scores, below a line of names: id,user")
      ->delimiter(',')
      ->allow_extra_args(false);
  predict
      ->add_option("--python", flags->python,
                   "In the place of --data, for a job with model { program {} }: the script, whose "
                   "evaluation has the rows (docs/PYTHON.md)")
      ->check(CLI::ExistingFile);
  predict->add_option("flags", flags->script_flags, "Behind --: the flags of the --python script");
}

void AddDatagen(CLI::App* app, DatagenFlags* flags) {
  CLI::App* datagen = app->add_subcommand("datagen", "Make click logs in the shape of Criteo's");
  datagen->add_option("--out", flags->out, "Folder for train.tsv, test.tsv, planted.json")
      ->required();
  datagen->add_option("--train-rows", flags->options.train_rows, "Rows of train.tsv")
      ->capture_default_str();
  datagen->add_option("--test-rows", flags->options.test_rows, "Rows of test.tsv")
      ->capture_default_str();
  datagen->add_option("--seed", flags->options.seed, "Other rows and another planted model")
      ->capture_default_str();
  datagen
      ->add_option("--zipf", flags->options.skew,
                   "How unlike in frequency ids are: exponent of Zipf's law; 0 = all alike")
      ->capture_default_str();
  datagen->add_flag("--gzip", flags->gzip, "Write .tsv.gz");
}

void AddInspect(CLI::App* app, InspectFlags* flags) {
  CLI::App* inspect = app->add_subcommand(
      "inspect", "Checkpoints, range files and staleness records as text (docs/INSPECT.md)");
  inspect->add_option("path", flags->path, "A file, a checkpoint, a model folder or that of a run")
      ->required();
  inspect->add_option("--limit", flags->options.limit, "Rows and records to write; 0 = all")
      ->check(node::CheckNotNegative)
      ->capture_default_str();
}

// Checks that standard output was written, for commands without other output. Returns the
// exit code.
int Printed(int code) {
  errno = 0;
  std::cout.flush();
  const bool written = std::cout.good() && std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (written || code != node::kExitOk) return code;
  std::cerr << "tandem: what it says cannot be written"
            << (errno == 0 ? "" : std::string(": ") + std::strerror(errno)) << "\n";
  return node::kExitFailed;
}

// True if the first argument is a command, or a flag such as --help. Otherwise lists the commands.
bool NamesCommand(const CLI::App& app, int argc, char** argv, int* exit_code) {
  *exit_code = node::kExitBadInput;
  if (argc < 2) {
    std::cout << app.help();
    return false;
  }
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == argv[1]) return true;
    names.push_back(command->get_name());
  }
  if (argv[1][0] == '-') return true;
  std::cerr << "tandem: there is no command '" << argv[1] << "', expected one of "
            << absl::StrJoin(names, ", ") << "; hint: tandem --help\n";
  return false;
}

// The order and the headings of the commands in `tandem --help`.
void GroupCommands(CLI::App* app) {
  const std::pair<const char*, std::vector<const char*>> groups[] = {
      {"Train", {"run", "agent", "checkpoint", "stop", "predict", "export", "cache", "policy"}},
      {"Ask", {"compare", "plan", "simulate"}},
      {"Look", {"status", "doctor", "inspect"}},
      {"For developers", {"bench", "replay", "datagen"}},
  };
  for (const auto& [group, names] : groups) {
    for (const char* name : names) app->get_subcommand(name)->group(group);
  }
}

int Main(int argc, char** argv) {
  CLI::App app("Tandem trains recommendation models with embeddings on parameter servers.",
               "tandem");
  app.set_version_flag("--version", Version);
  RunFlags run;
  AddRun(&app, &run);
  AgentFlags agent;
  AddAgent(&app, &agent);
  StatusFlags status;
  AddStatus(&app, &status);
  AskFlags checkpoint, stop;
  AddCheckpointAndStop(&app, &checkpoint, &stop);
  PredictFlags predict;
  AddPredict(&app, &predict);
  ExportFlags export_flags;
  AddExport(&app, &export_flags);
  CacheFlags cache;
  AddCache(&app, &cache);
  PolicyFlags policy;
  AddPolicy(&app, &policy);
  study::CompareFlags compare;
  study::AddCompare(&app, &compare);
  plan::PlanFlags plan;
  plan::AddPlan(&app, &plan);
  app.add_subcommand("simulate",
                     "Train under a virtual clock, in one process: any number of workers")
      ->prefix_command();
  doctor::DoctorFlags doctor;
  doctor::AddDoctor(&app, &doctor);
  InspectFlags inspect;
  AddInspect(&app, &inspect);
  const bench::BenchCommand bench(&app);
  ReplayFlags replay;
  AddReplay(&app, &replay);
  DatagenFlags datagen;
  AddDatagen(&app, &datagen);
  GroupCommands(&app);  // needs all commands
  int code = node::kExitOk;
  if (!NamesCommand(app, argc, argv, &code)) return code;
  // `simulate` goes before ParseFlags, because it parses its flags itself (ParseSimulate).
  if (argv[1] == std::string("simulate")) return sim::SimulateCommand(argc, argv);
  // Cut off the flags of a script. Without a job file, CLI11 would take the first one for it.
  char** const script_flags = std::find_if(
      argv, argv + argc, [](const char* word) { return word == absl::string_view("--"); });
  const bool runs = argv[1] == absl::string_view("run") || argv[1] == absl::string_view("agent");
  const int words = runs ? static_cast<int>(script_flags - argv) : argc;
  if (!node::ParseFlags(&app, words, argv, &code)) return Printed(code);
  for (int i = words + 1; i < argc; ++i) {
    run.script_flags.emplace_back(argv[i]);
    agent.run.script_flags.emplace_back(argv[i]);
  }
  if (app.got_subcommand("bench")) return Printed(bench.Run());
  for (int i = 0; i < argc; ++i) absl::StrAppend(&run.command, i > 0 ? " " : "", ForShell(argv[i]));
  replay.run.command = agent.run.command = run.command;
  if (app.got_subcommand("run")) return Run(run);
  if (app.got_subcommand("agent")) return AgentCommand(agent);
  if (app.got_subcommand("replay")) return ReplayCommand(replay);
  if (app.got_subcommand("plan")) return Printed(plan::PlanCommand(plan));
  if (app.got_subcommand("predict")) return PredictCommand(predict);
  if (app.got_subcommand("export")) return ExportCommand(export_flags, ProgramFolder());
  if (app.got_subcommand("policy")) return Printed(PolicyCommand(policy));
  if (app.got_subcommand("cache")) return Printed(CacheCommand(cache));
  if (app.got_subcommand("compare")) return study::CompareCommand(compare);
  if (app.got_subcommand("status")) return Printed(StatusCommand(status));
  if (app.got_subcommand("checkpoint")) return Printed(CheckpointCommand(checkpoint));
  if (app.got_subcommand("stop")) return Printed(StopCommand(stop));
  if (app.got_subcommand("doctor")) return doctor::DoctorCommand(doctor);
  if (app.got_subcommand("inspect")) return Printed(InspectCommand(inspect));
  return Datagen(datagen);
}

}  // namespace
}  // namespace tandem::cli

int main(int argc, char** argv) {
  tandem::SetUpProcess();
  tandem::EndInOneLine();
  const int code = tandem::cli::Main(argc, argv);
  if (code > tandem::node::kExitBySignal) {
    tandem::node::DieBySignal(code - tandem::node::kExitBySignal);
  }
  return code;
}
