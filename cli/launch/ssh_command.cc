#include "cli/launch/ssh_command.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/owned_fd.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "cli/console/output_folder.h"
#include "cli/launch/children.h"
#include "node/job_token.h"
#include "node/launch_environment.h"
#include "node/log.h"
#include "node/role_flags.h"
#include "transport/tcp_address.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kTurn = absl::Milliseconds(50);
// After the first agent has failed: how long the others may take to end by themselves, and then by
// the end of their lifelines.
constexpr absl::Duration kOthersEnd = absl::Seconds(20);
constexpr absl::Duration kLifelineEnds = absl::Seconds(10);
constexpr absl::Duration kLoginWithin = absl::Minutes(1);

std::vector<std::string> Ssh(const std::string& host) {
  const char* const own = getenv("TANDEM_SSH");
  std::vector<std::string> argv =
      absl::StrSplit(own == nullptr || *own == '\0' ? "ssh" : own, ' ', absl::SkipEmpty());
  argv.insert(argv.begin(), "/usr/bin/env");
  argv.insert(argv.end(),
              {"-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15",
               "-o", "ServerAliveCountMax=4", "-o", "LogLevel=ERROR", "-T", host});
  return argv;
}

class SshLaunch {
 public:
  SshLaunch(const RunFlags& flags, const std::vector<HostSlots>& hosts)
      : flags_(flags),
        hosts_(hosts),
        out_(flags.start.resume.empty() ? flags.out : flags.start.resume),
        id_(absl::StrCat("ssh ", absl::Hex(node::NewIncarnation()))) {}

  // Logs in to all hosts at the same time. An error line for each host that refuses.
  std::vector<std::string> CheckHosts() {
    std::vector<std::string> refused;
    Children logins;
    std::map<std::string, int> found;
    const absl::StatusOr<std::string> made = MakeTemporaryFolder("tandem-ssh");
    if (!made.ok()) return {std::string(made.status().message())};
    const std::string& folder = *made;
    for (const HostSlots& host : hosts_) {
      std::vector<std::string> argv = Ssh(host.host);
      argv.insert(argv.end(), {"test", "-x", ForShell(Program())});
      const absl::Status started =
          logins.Start({host.host, argv, absl::StrCat(folder, "/", found.size())});
      found[host.host] = 0;
      if (!started.ok()) refused.emplace_back(started.message());
    }
    const absl::Time until = MonotonicNow() + kLoginWithin;
    while (logins.running() && MonotonicNow() < until) {
      for (const Children::Exit& exit : logins.Reap()) {
        if (exit.code == 0 && exit.signal == 0) continue;
        refused.push_back(WhyRefused(exit));
      }
      absl::SleepFor(kTurn);
    }
    for (const Children::Exit& exit : logins.StopAll(absl::ZeroDuration())) {
      refused.push_back(absl::StrCat("host ", exit.name, ": the login has not ended within ",
                                     absl::FormatDuration(kLoginWithin)));
    }
    std::error_code ignored;
    fs::remove_all(folder, ignored);
    return refused;
  }

  int Execute() {
    const std::atomic<int>* const stops = node::StopSignals();
    const std::atomic<int>* const checkpoints = node::CheckpointSignals();
    if (const absl::Status started = StartAgents(); !started.ok()) {
      lifelines_.clear();
      agents_.StopAll(kLifelineEnds);
      return node::Finish(flags_.program, started);
    }
    int stops_seen = 0, checkpoints_seen = 0;
    while (agents_.running()) {
      for (const Children::Exit& exit : agents_.Reap()) OnExit(exit);
      for (; stops_seen < stops->load(); ++stops_seen) OnStop(stops_seen + 1);
      for (; checkpoints_seen < checkpoints->load(); ++checkpoints_seen) TellFirst("u");
      const absl::Time now = MonotonicNow();
      if (now >= cut_) lifelines_.clear();
      if (now >= cut_ + kLifelineEnds) agents_.StopAll(absl::Seconds(1));
      absl::SleepFor(kTurn);
    }
    if (stops_seen > 0) return node::kExitBySignal + node::StopSignalNumber();
    if (failure_.empty()) return node::kExitOk;
    node::Finish(flags_.program, absl::AbortedError(absl::StrCat("failed: ", failure_)));
    return code_;
  }

 private:
  static std::string Program() { return ProgramFolder() + "/tandem"; }

  std::string WhyRefused(const Children::Exit& exit) const {
    constexpr int kSshFailed = 255;
    // ssh ends its lines as on a terminal.
    const std::string said(exit.lines.empty() ? "" : absl::StripAsciiWhitespace(exit.lines.back()));
    if (exit.code == 1 && exit.signal == 0 && said.empty()) {
      return absl::StrCat("host ", exit.name, ": ", Program(),
                          " is not there; hint: install Tandem at the same path on all hosts");
    }
    if (exit.code != kSshFailed) {
      return absl::StrCat("host ", exit.name, ": ssh ", exit.HowItEnded(), said.empty() ? "" : ": ",
                          said);
    }
    return absl::StrCat(
        "host ", exit.name, ": ssh cannot log in: ", said.empty() ? "it says nothing" : said,
        "; hint: ssh -o BatchMode=yes ", exit.name, " must work without a password");
  }

  absl::Status StartAgents() {
    int ranks = 0, rank = 0;
    for (const HostSlots& host : hosts_) ranks += host.slots;
    for (const HostSlots& host : hosts_) {
      for (int slot = 0; slot < host.slots; ++slot, ++rank) {
        int fds[2];
        if (pipe2(fds, O_CLOEXEC) != 0) {
          return absl::ResourceExhaustedError(
              absl::StrCat("cannot create a pipe: ", strerror(errno)));
        }
        const OwnedFd read_end(fds[0]);
        lifelines_.emplace_back(fds[1]);
        Children::Command command;
        command.name = absl::StrCat("rank ", rank, " on ", host.host);
        command.argv = Ssh(host.host);
        command.argv.push_back(RemoteLine(rank, ranks, slot, host.slots));
        command.stdin_fd = read_end.get();
        TANDEM_RETURN_IF_ERROR(agents_.Start(command));
        // The first line is the token, which must not be on a command line.
        const char* const token = getenv("TANDEM_TOKEN");
        Tell(lifelines_.back(), absl::StrCat(token == nullptr ? "" : token, "\n"));
      }
    }
    return absl::OkStatus();
  }

  // The command line for the shell of the host.
  std::string RemoteLine(int rank, int ranks, int local, int here) const {
    std::error_code error;
    std::vector<std::string> words;
    std::vector<std::string> variables = {
        absl::StrCat("TANDEM_RANK=", rank), absl::StrCat("TANDEM_WORLD_SIZE=", ranks),
        absl::StrCat("TANDEM_LOCAL_RANK=", local), absl::StrCat("TANDEM_LOCAL_SIZE=", here),
        absl::StrCat("TANDEM_LAUNCH_ID=", id_)};
    if (const char* const format = getenv(node::kLogFormatVariable); format != nullptr) {
      variables.push_back(absl::StrCat(node::kLogFormatVariable, "=", format));
    }
    words.insert(words.end(), variables.begin(), variables.end());
    words.insert(words.end(),
                 {Program(), "agent", flags_.job, "--lifeline", "--scheduler",
                  absl::StrCat("tcp://", transport::HostInAddress(NameOf(hosts_[0].host)), ":",
                               node::PortOfLaunch(id_))});
    AddFlags(&words);
    std::vector<std::string> quoted;
    for (const std::string& word : words) quoted.push_back(ForShell(word));
    return absl::StrCat("cd ", ForShell(fs::current_path(error).string()), " && exec env ",
                        absl::StrJoin(quoted, " "));
  }

  // The host of "user@host".
  static std::string NameOf(const std::string& host) {
    const size_t at = host.rfind('@');
    return at == std::string::npos ? host : host.substr(at + 1);
  }

  void AddFlags(std::vector<std::string>* words) const {
    const auto add = [words](const std::string& flag, const std::string& value) {
      if (!value.empty()) words->insert(words->end(), {flag, value});
    };
    for (const std::string& set : flags_.set) add("--set", set);
    const StartFlags& start = flags_.start;
    if (start.resume.empty()) add("--out", out_);
    add("--resume", start.resume);
    add("--init-from", start.init_from);
    if (!start.only_tables.empty()) add("--only-tables", absl::StrJoin(start.only_tables, ","));
    if (!start.checkpoint) words->push_back("--no-checkpoint");
    if (flags_.overwrite) words->push_back("--overwrite");
    add("--http", flags_.watch.http);
    add("--tensorboard", flags_.watch.tensorboard);
    if (flags_.watch.insecure) words->push_back("--insecure");
    if (flags_.trace_steps > 0) add("--trace", absl::StrCat(flags_.trace_steps));
    add("--python", flags_.python);
    if (flags_.script_flags.empty()) return;
    words->push_back("--");
    words->insert(words->end(), flags_.script_flags.begin(), flags_.script_flags.end());
  }

  // A pipe whose reader has gone is no error: the end of that ssh is reported.
  static void Tell(const OwnedFd& lifeline, const std::string& text) {
    (void)!write(lifeline.get(), text.data(), text.size());
  }
  void TellFirst(const std::string& text) {
    if (!lifelines_.empty()) Tell(lifelines_[0], text);
  }

  // The first signal, and a second one, are requests to the job. Agents that do not react end by
  // the second one within kOthersEnd, and by a third one at once.
  void OnStop(int count) {
    TellFirst("t");
    const absl::Time now = MonotonicNow();
    if (count == 2) cut_ = std::min(cut_, now + kOthersEnd);
    if (count > 2) cut_ = std::min(cut_, now - kLifelineEnds);
  }

  void OnExit(const Children::Exit& exit) {
    constexpr int kSshFailed = 255;
    if (exit.code == 0 && exit.signal == 0) return;
    cut_ = std::min(cut_, MonotonicNow() + kOthersEnd);
    if (!failure_.empty()) return;
    code_ = exit.code == node::kExitBadInput ? node::kExitBadInput : node::kExitFailed;
    failure_ = exit.code == kSshFailed
                   ? absl::StrCat(exit.name,
                                  ": ssh exited with status 255: the connection has ended, or a "
                                  "signal has ended the agent")
                   : absl::StrCat(exit.name, ": the agent ", exit.HowItEnded(), "; see above");
  }

  const RunFlags& flags_;
  const std::vector<HostSlots>& hosts_;
  const std::string out_;
  const std::string id_;
  Children agents_;
  std::vector<OwnedFd> lifelines_;  // by rank
  absl::Time cut_ = absl::InfiniteFuture();
  std::string failure_;  // of the agent that ended first; empty: none
  int code_ = node::kExitOk;
};

}  // namespace

int SshCommand(const RunFlags& given, const std::vector<HostSlots>& hosts) {
  RunFlags flags = given;
  const auto refuse = [&flags](const absl::Status& why) {
    node::Finish(flags.program, why);
    return node::kExitBadInput;
  };
  node::RoleFlags role;
  role.job = flags.job;
  role.set = flags.set;
  const absl::StatusOr<job::ResolvedJob> plan = node::PlanOf(role);
  if (!plan.ok()) return refuse(plan.status());
  if (flags.link_bytes_per_second != 0) {
    return refuse(absl::InvalidArgumentError(
        "--link-bytes-per-second: not with --hosts, whose links are those of the network"));
  }
  if (flags.colocate_servers) {
    return refuse(
        absl::InvalidArgumentError("--colocate-servers: not with --hosts, where servers and "
                                   "workers are dealt over the ranks"));
  }
  if (flags.out.empty()) flags.out = NewFolderName(plan->job.name());
  const std::string& folder = flags.start.resume.empty() ? flags.out : flags.start.resume;
  const absl::Status token = node::ProvideToken(plan->job, folder);
  if (!token.ok()) return refuse(token);
  SshLaunch launch(flags, hosts);
  const std::vector<std::string> refused = launch.CheckHosts();
  for (const std::string& line : refused) refuse(absl::InvalidArgumentError(line));
  if (!refused.empty()) return node::kExitBadInput;
  return launch.Execute();
}

}  // namespace tandem::cli
