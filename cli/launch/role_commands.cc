#include "cli/launch/role_commands.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/process.h"
#include "cli/launch/script.h"
#include "node/programs.h"
#include "node/role_flags.h"

namespace tandem::cli {

RoleCommands::RoleCommands(const job::ResolvedJob& plan, RoleOptions options)
    : plan_(plan), options_(std::move(options)) {}

Children::Command RoleCommands::Scheduler(const StartFlags& start, int pipe_fd) const {
  Children::Command command = New("scheduler");
  command.pipe_fd = pipe_fd;
  std::vector<std::string>& argv = command.argv;
  argv = {node::ProgramPath("tandem-scheduler"),
          "--job",
          options_.job,
          "--out",
          options_.out,
          "--progress-fd",
          "3"};
  if (start.resumed.has_value()) {
    argv.insert(argv.end(), {"--resume", start.resume, "--resume-from",
                             std::filesystem::path(start.init_from).filename().string()});
  } else if (!start.init_from.empty()) {
    argv.insert(argv.end(), {"--init-from", start.init_from});
  }
  for (const std::string& table : start.only_tables) {
    argv.insert(argv.end(), {"--only-tables", table});
  }
  if (!start.checkpoint) argv.push_back("--no-checkpoint");
  AddNetworkFlags(options_.network.scheduler_bind, &argv);
  const std::string& launch = options_.network.launch;
  if (!launch.empty()) argv.insert(argv.end(), {"--launch", launch});
  return OnItsHost(std::move(command));
}

Children::Command RoleCommands::Server(int index, const std::string& scheduler) const {
  Children::Command command = New(absl::StrCat("server ", index));
  std::vector<std::string>& argv = command.argv;
  argv = {node::ProgramPath("tandem-server"), "--index", absl::StrCat(index), "--out",
          options_.out};
  if (!options_.replay.empty()) argv.insert(argv.end(), {"--replay", options_.replay});
  AddTraceFlags(absl::StrCat("server-", index), &argv);
  argv.insert(argv.end(), {"--job", options_.job, "--scheduler", scheduler});
  AddNetworkFlags(options_.network.bind, &argv);
  return OnItsHost(std::move(command));
}

Children::Command RoleCommands::Worker(int rank, const std::string& scheduler) const {
  if (!options_.python.empty()) return Script(rank, scheduler);
  Children::Command command = New(absl::StrCat("worker ", rank));
  std::vector<std::string>& argv = command.argv;
  argv = {node::ProgramPath(node::kWorkerProgram), "--index", absl::StrCat(rank),
          "--dump-collectives", options_.out + "/collectives"};
  AddTraceFlags(absl::StrCat(rank), &argv);
  if (plan_.workers_serve) argv.insert(argv.end(), {"--out", options_.out});
  if (plan_.workers_serve && !options_.replay.empty()) {
    argv.insert(argv.end(), {"--replay", options_.replay});
  }
  if (options_.scores) argv.insert(argv.end(), {"--scores", ScoresFile(options_.out, rank)});
  argv.insert(argv.end(), {"--job", options_.job, "--scheduler", scheduler});
  AddNetworkFlags(options_.network.bind, &argv);
  command.environment.emplace_back("OMP_NUM_THREADS",
                                   absl::StrCat(plan_.job.cluster().threads_per_worker()));
  return OnItsHost(std::move(command));
}

Children::Command RoleCommands::Script(int rank, const std::string& scheduler) const {
  Children::Command command = New(absl::StrCat("worker ", rank));
  command.argv = ScriptCommand(options_.python, options_.script_flags);
  auto& environment = command.environment;
  for (auto& variable : ScriptEnvironment(ProgramFolder(), plan_, options_.job, scheduler, rank)) {
    environment.push_back(std::move(variable));
  }
  const std::vector<int>& here = options_.workers_here;
  const auto own = std::find(here.begin(), here.end(), rank);
  environment.emplace_back("LOCAL_RANK", absl::StrCat(own - here.begin()));
  environment.emplace_back("LOCAL_WORLD_SIZE", absl::StrCat(here.size()));
  environment.emplace_back("TANDEM_DUMP_COLLECTIVES", Absolute("collectives"));
  if (options_.trace_steps > 0) {
    environment.emplace_back("TANDEM_TRACE", Absolute(absl::StrCat("trace-", rank, ".json")));
    environment.emplace_back("TANDEM_TRACE_STEPS", absl::StrCat(options_.trace_steps));
  }
  if (options_.scores) environment.emplace_back(kScoresVariable, ScoresFile(options_.out, rank));
  const RoleNetwork& network = options_.network;
  if (!network.bind.empty()) environment.emplace_back("TANDEM_BIND", network.bind);
  if (!network.advertise.empty()) environment.emplace_back("TANDEM_ADVERTISE", network.advertise);
  return command;
}

Children::Command RoleCommands::New(const std::string& name) const {
  Children::Command command;
  command.name = name;
  command.log =
      absl::StrCat(options_.out, "/logs/", absl::StrReplaceAll(name, {{" ", "-"}}), ".log");
  command.environment.emplace_back(node::kDriverVariable, absl::StrCat(getpid()));
  return command;
}

void RoleCommands::AddNetworkFlags(const std::string& bind, std::vector<std::string>* argv) const {
  if (!bind.empty()) argv->insert(argv->end(), {"--bind", bind});
  const std::string& host = options_.network.advertise;
  if (!host.empty()) argv->insert(argv->end(), {"--advertise", host});
}

Children::Command RoleCommands::OnItsHost(Children::Command command) const {
  if (options_.hosts == nullptr) return command;
  for (std::string& flag : options_.hosts->FlagsOf(command.name)) {
    command.argv.push_back(std::move(flag));
  }
  command.network = options_.hosts->NetworkOf(command.name);
  return command;
}

void RoleCommands::AddTraceFlags(absl::string_view name, std::vector<std::string>* argv) const {
  if (options_.trace_steps == 0) return;
  argv->insert(argv->end(), {"--trace", absl::StrCat(options_.out, "/trace-", name, ".json"),
                             "--trace-steps", absl::StrCat(options_.trace_steps)});
}

// The absolute path of a file of the run, because a script may change its folder.
std::string RoleCommands::Absolute(const std::string& name) const {
  return (std::filesystem::absolute(options_.out) / name).string();
}

std::string ScoresFile(const std::string& out, int rank) {
  return absl::StrCat(out, "/scores-", rank, ".f32");
}

}  // namespace tandem::cli
