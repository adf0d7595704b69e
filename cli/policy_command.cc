#include "cli/policy_command.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <memory>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/text.h"
#include "cli/describe_run.h"
#include "node/role_flags.h"
#include "policies/plugin.h"
#include "tools/sim/policy_check.h"

namespace tandem::cli {
namespace {

constexpr char kPolicyCheck[] = "tandem policy check";
constexpr unsigned kMaxSeconds = 300;  // for all schedules; most take less than a second

Policy ConfigOf(const PolicyFlags& flags) {
  Policy config;
  config.set_kind(Policy::PLUGIN);
  config.set_library(flags.library);
  config.set_options(flags.options);
  return config;
}

// Runs the schedules in this process, which the library may end. Returns the exit code.
int CheckHere(const PolicyFlags& flags) {
  const Policy config = ConfigOf(flags);
  const auto made = policies::LoadPlugin(config, 1);
  if (!made.ok()) {
    node::Finish(kPolicyCheck, made.status());
    return node::kExitBadInput;
  }
  const auto report = sim::CheckPolicyPromises(
      [&config](int workers) { return policies::LoadPlugin(config, workers); }, flags.schedules,
      flags.seed);
  if (!report.ok()) {
    node::Finish(kPolicyCheck,
                 absl::Status(report.status().code(),
                              absl::StrCat(flags.library, ": ", report.status().message())));
    return node::kExitFailed;
  }
  std::printf("%s: %s keeps its promises: %s, %s updates, %s of them dropped\n",
              flags.library.c_str(), (*made)->name().c_str(),
              Counted(report->schedules, "schedule").c_str(), WithCommas(report->updates).c_str(),
              WithCommas(report->dropped).c_str());
  return node::kExitOk;
}

// The exit code of CheckHere in a child process, which a crash of the library ends.
int CheckInChild(const PolicyFlags& flags) {
  std::fflush(stdout);
  const pid_t child = fork();
  if (child < 0) {
    return node::Finish(kPolicyCheck, absl::InternalError(absl::StrCat("cannot start a process: ",
                                                                   std::strerror(errno))));
  }
  if (child == 0) {
    alarm(kMaxSeconds);
    const int code = CheckHere(flags);
    std::fflush(stdout);
    _exit(code);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFEXITED(status)) return WEXITSTATUS(status);
  const int signal = WTERMSIG(status);
  return node::Finish(
      kPolicyCheck, absl::FailedPreconditionError(
                    signal == SIGALRM
                        ? absl::StrCat(flags.library, ": was not done after ", kMaxSeconds,
                                       " s; does a function of it not return?")
                        : absl::StrCat(flags.library, ": ended the process with signal ", signal,
                                       " (", strsignal(signal), "); a line above may say more")));
}

}  // namespace

void AddPolicy(CLI::App* app, PolicyFlags* flags) {
  CLI::App* const policy =
      app->add_subcommand("policy", "Update policies of your own (docs/PLUGINS.md)");
  policy->require_subcommand(1);
  CLI::App* const check =
      policy->add_subcommand("check", "Try a policy in a shared library, so that jobs may load it");
  check->add_option("library", flags->library, "File of the library")->required();
  check->add_option("--options", flags->options, "As policy.options of a job");
  check->add_option("--schedules", flags->schedules, "Random schedules to try")
      ->check(CLI::Range(int64_t{1}, int64_t{10'000'000}))
      ->capture_default_str();
  check->add_option("--seed", flags->seed, "Seed of the first schedule")->capture_default_str();
}

int PolicyCommand(const PolicyFlags& flags) {
  const absl::StatusOr<uint64_t> hash = policies::HashOfLibrary(flags.library);
  if (!hash.ok()) {
    node::Finish(kPolicyCheck, hash.status());
    return node::kExitBadInput;
  }
  const int code = CheckInChild(flags);
  if (code != node::kExitOk) return code;
  if (const absl::Status marked = policies::MarkChecked(flags.library, *hash); !marked.ok()) {
    return node::Finish(kPolicyCheck, marked);
  }
  std::printf("wrote %s.checked\n", flags.library.c_str());
  return node::kExitOk;
}

}  // namespace tandem::cli
