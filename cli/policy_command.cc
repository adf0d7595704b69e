#include "cli/policy_command.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/owned_fd.h"
#include "base/text.h"
#include "cli/describe_run.h"
#include "node/role_flags.h"
#include "policies/plugin.h"
#include "tools/sim/policy_check.h"

namespace tandem::cli {
namespace {

constexpr char kPolicyCheck[] = "tandem policy check";
constexpr unsigned kMaxSeconds = 60;  // for a schedule, which takes less than a millisecond

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
  std::string name;
  const auto report = sim::CheckPolicyPromises(
      [&](int workers) {
        alarm(kMaxSeconds);
        auto policy = policies::LoadPlugin(config, workers);
        if (policy.ok()) name = (*policy)->name();
        return policy;
      },
      flags.schedules, flags.seed);
  if (!report.ok()) {
    const bool broken = absl::IsFailedPrecondition(report.status());
    node::Finish(kPolicyCheck, broken ? absl::FailedPreconditionError(absl::StrCat(
                                            flags.library, ": ", report.status().message()))
                                      : report.status());
    return broken ? node::kExitFailed : node::kExitBadInput;
  }
  std::printf("%s: %s keeps its promises: %s, %s updates, %s of them dropped\n",
              flags.library.c_str(), name.c_str(), Counted(report->schedules, "schedule").c_str(),
              WithCommas(report->updates).c_str(), WithCommas(report->dropped).c_str());
  return node::kExitOk;
}

// The exit code of CheckHere in a child process, which the library may end. The code comes through
// a pipe, since the library may also exit.
int CheckInChild(const PolicyFlags& flags) {
  std::fflush(stdout);
  int ends[2];
  if (pipe(ends) != 0) {
    return node::Finish(kPolicyCheck, absl::InternalError(absl::StrCat("cannot make a pipe: ",
                                                                       std::strerror(errno))));
  }
  const OwnedFd from(ends[0]);
  OwnedFd to(ends[1]);
  const pid_t child = fork();
  if (child < 0) {
    return node::Finish(kPolicyCheck, absl::InternalError(absl::StrCat("cannot start a process: ",
                                                                       std::strerror(errno))));
  }
  if (child == 0) {
    const int code = CheckHere(flags);
    std::fflush(stdout);
    const auto byte = static_cast<unsigned char>(code);
    const bool told = write(to.get(), &byte, 1) == 1;
    _exit(told ? 0 : 1);
  }
  to = OwnedFd();
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  unsigned char code = 0;
  if (read(from.get(), &code, 1) == 1) return code;
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  const std::string how =
      signal == SIGALRM ? absl::StrCat("a schedule was not done after ", kMaxSeconds,
                                       " s; does a function of the library not return?")
      : signal != 0     ? absl::StrCat("ended the process with signal ", signal, " (",
                                       strsignal(signal), "); a line above may say more")
                        : absl::StrCat("ended the process with exit code ", WEXITSTATUS(status));
  return node::Finish(kPolicyCheck,
                      absl::FailedPreconditionError(absl::StrCat(flags.library, ": ", how)));
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
