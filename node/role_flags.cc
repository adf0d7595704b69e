#include "node/role_flags.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/exhaustion.h"
#include "base/status_macros.h"
#include "job/resume_check.h"
#include "node/log.h"
#include "node/transport_choice.h"
#include "proto/incarnation.h"

namespace tandem::node {
namespace {

std::atomic<bool> stop_signal{false};
std::atomic<int> stop_number{0};
std::atomic<int> stop_signals{0};
std::atomic<int> checkpoint_signals{0};
std::atomic<pid_t> driver{0};          // the only process whose stop signals count; 0: all do
std::atomic<int64_t> next_stop_ns{0};  // earlier stop signals count as the last one again
constexpr int64_t kSameStopNs = 1'000'000'000;

int64_t NowNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);  // allowed in a signal handler
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Handles a stop signal. There are three cases. kDriverStops comes from `tandem run` and counts as
// SIGTERM. In a process that `tandem run` has started, other senders are ignored (SIGXCPU is passed
// on). In any other process all senders count, except for repetitions within a second.
void OnStop(int signal, siginfo_t* info, void* /*context*/) {
  if (signal == kDriverStops) {
    signal = SIGTERM;
  } else if (driver.load() != 0) {
    if (info->si_pid != driver.load()) {
      if (signal == SIGXCPU) kill(driver.load(), SIGXCPU);
      return;
    }
  } else {
    const bool repeated = signal == SIGHUP || signal == SIGXCPU;
    if (repeated && stop_signal.load()) return;
    const int64_t now = NowNs();
    if (now < next_stop_ns.load()) return;
    next_stop_ns.store(now + kSameStopNs);
  }
  stop_number.store(signal);
  stop_signal.store(true);
  stop_signals.fetch_add(1);
}
void OnCheckpoint(int) { checkpoint_signals.fetch_add(1); }

void Install(int signal, void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  sigaction(signal, &action, nullptr);
}

bool IsIgnored(int signal) {
  struct sigaction now = {};
  return sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

void InstallStop(int signal) {
  struct sigaction action = {};
  action.sa_sigaction = OnStop;
  action.sa_flags = SA_SIGINFO;
  sigaction(signal, &action, nullptr);
}

// The process that started this one and still runs; 0: there is none.
pid_t FindDriver() {
  const char* const text = getenv(kDriverVariable);
  int number = 0;
  if (text == nullptr || !absl::SimpleAtoi(text, &number) || number != getppid()) return 0;
  return number;
}

}  // namespace

absl::StatusOr<job::Overrides> ParseOverrides(const std::vector<std::string>& texts) {
  job::Overrides overrides;
  for (const std::string& text : texts) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("--set ", text, ": expected path=value, as in --set train.batch_size=64"));
    }
    overrides.emplace_back(text.substr(0, equals), text.substr(equals + 1));
  }
  return overrides;
}

absl::StatusOr<job::ResolvedJob> PlanOf(const RoleFlags& flags, const Job* resumed) {
  TANDEM_ASSIGN_OR_RETURN(const job::Overrides overrides, ParseOverrides(flags.set));
  TANDEM_ASSIGN_OR_RETURN(Job job, job::ReadJobFile(flags.job, overrides));
  if (resumed != nullptr) job::KeepStepCounts(*resumed, &job);
  absl::StatusOr<job::ResolvedJob> plan = job::Resolve(job);
  if (!plan.ok()) {
    return absl::Status(plan.status().code(),
                        absl::StrCat(flags.job, ": ", plan.status().message()));
  }
  return plan;
}

uint64_t NewIncarnation() {
  std::random_device entropy;
  const uint64_t high = entropy();
  return OwnIncarnation(high << 32 | entropy()) | 1;  // never 0, which means "not known yet"
}

NodeSession::Options MemberOf(const RoleFlags& flags, const Cluster& cluster,
                              std::shared_ptr<transport::PathLog> paths) {
  NodeSession::Options member;
  member.index = flags.index;
  member.incarnation = NewIncarnation();
  member.scheduler = flags.scheduler;
  member.make_transport = EndpointFactory(flags, cluster, member.incarnation, std::move(paths));
  member.stop = StopSignal();
  return member;
}

const std::atomic<bool>* StopSignal() {
  driver.store(FindDriver());
  InstallStop(SIGINT);
  InstallStop(SIGTERM);
  for (const int signal : {SIGHUP, SIGXCPU}) {
    if (!IsIgnored(signal)) InstallStop(signal);
  }
  if (driver.load() != 0) InstallStop(kDriverStops);
  Install(SIGPIPE, SIG_IGN);
  return &stop_signal;
}

const std::atomic<int>* StopSignals() {
  (void)StopSignal();
  return &stop_signals;
}

int StopSignalNumber() { return stop_number.load(); }

void DieBySignal(int signal) {
  std::fflush(nullptr);
  const rlimit none = {0, 0};
  (void)setrlimit(RLIMIT_CORE, &none);  // otherwise SIGXCPU leaves a core file
  Install(signal, SIG_DFL);
  raise(signal);
  _exit(128 + signal);  // reached if the signal is blocked
}

const std::atomic<int>* CheckpointSignals() {
  Install(SIGUSR1, OnCheckpoint);
  return &checkpoint_signals;
}

void RoleEnd::Begin(const absl::Status& how, absl::Duration patience) {
  // If no thread can be started, the process waits as long as necessary.
  (void)CatchExceptions([&] {
    std::thread([patience, how, program = program_, said = said_] {
      absl::SleepFor(patience);
      const int code = said->exchange(true) ? kExitFailed : node::Finish(program, how);
      std::fflush(nullptr);
      _exit(code);
    }).detach();
    return absl::OkStatus();
  });
}

int RoleEnd::Finish(const absl::Status& how) {
  if (!said_->exchange(true)) return node::Finish(program_, how);
  return how.ok() ? kExitOk : kExitFailed;
}

int Finish(const char* program, const absl::Status& status) {
  if (status.ok()) return kExitOk;
  const std::string line = absl::StrReplaceAll(status.message(), {{"\n", " "}});
  if (LogsJson() && absl::StartsWith(program, "tandem-")) {  // a role: its output is a log
    Log(std::string(absl::StripPrefix(program, "tandem-"))).Error(line);
    return kExitFailed;
  }
  std::fprintf(stderr, "%s: %s\n", program, line.c_str());
  return kExitFailed;
}

}  // namespace tandem::node
