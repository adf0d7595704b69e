#include "tools/doctor/doctor_command.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/process.h"
#include "base/status_macros.h"
#include "base/terminal.h"
#include "node/role_flags.h"
#include "node/role_options.h"
#include "tools/doctor/doctor.h"
#include "tools/doctor/doctor_gather.h"
#include "tools/doctor/doctor_peer.h"
#include "tools/doctor/doctor_python.h"
#include "tools/doctor/doctor_report.h"

namespace tandem::doctor {
namespace {

constexpr int kNarrow = 80, kWide = 100;

ReportStyle StyleOfTerminal() {
  ReportStyle style;
  if (!CanRewriteLines()) return style;
  const char* const no_colour = std::getenv("NO_COLOR");
  style.colour = no_colour == nullptr || *no_colour == '\0';
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    style.columns = std::clamp<int>(size.ws_col, kNarrow, kWide);
  }
  return style;
}

// The input of checks. Threads that outlive the command (tools/doctor/doctor_gather.h) share it.
struct Task {
  DoctorFlags flags;
  std::optional<job::ResolvedJob> plan;

  Cluster::Transport transport() const {
    return plan.has_value() ? plan->job.cluster().transport() : Cluster::AUTO;
  }
  std::string job_hash() const {
    return plan.has_value() ? absl::StrCat(absl::Hex(plan->hash, absl::kZeroPad16)) : "";
  }
  JobNeeds Needs(int hosts) const {
    const auto share = [&](int all, int given) {
      return given >= 0 ? given : (all + hosts - 1) / hosts;
    };
    return NeedsOf(*plan, share(plan->server_processes(), flags.servers),
                   share(plan->workers(), flags.workers));
  }
};

// Findings for a worker, beside those for the host. A script has files of its own.
std::vector<Finding> ExamineWorkers(const job::ResolvedJob& plan) {
  if (plan.job.model().has_program()) {
    return ExaminePython(GatherPython(ScriptModules(), /*load=*/true, ProgramFolder()));
  }
  std::vector<Finding> findings;
  if (plan.job.dense().device() == Dense::CUDA) findings.push_back(ExamineDevice(GatherDevice()));
  findings.push_back(ExamineData(GatherData(plan)));
  return findings;
}

std::vector<Finding> ExamineAll(const Task& task, const HostFacts& host, int hosts) {
  std::optional<JobNeeds> needs;
  if (task.plan.has_value()) needs = task.Needs(hosts);
  std::vector<Finding> findings =
      ExamineHost(host, task.transport(), needs.has_value() ? &*needs : nullptr);
  if (needs.has_value() && needs->workers > 0) {
    for (Finding& finding : ExamineWorkers(*task.plan)) findings.push_back(std::move(finding));
  }
  if (!task.flags.out.empty()) {
    findings.push_back(ExamineFolder(GatherFolder(task.flags.out),
                                     needs.has_value() ? needs->checkpoint_bytes : 0));
  }
  for (const std::string& bind : task.flags.binds) {
    findings.push_back(ExaminePort(GatherPort(bind, task.flags.advertise)));
  }
  return findings;
}

DoctorSelf SelfOf(std::shared_ptr<const Task> task, const HostFacts& host) {
  DoctorSelf self;
  self.name = "here";  // replaced by the address if it listens
  self.host_name = host.name;
  self.ours = OurSideOf(host, task->transport(), task->job_hash());
  self.bind_host = "127.0.0.1";
  if (const auto listen = SplitHostPort(task->flags.listen); listen.ok()) {
    self.bind_host = listen->first;
  }
  self.advertised_host = task->flags.advertise;
  self.examine = [task](int hosts) { return ExamineAll(*task, GatherHost(), hosts); };
  return self;
}

// Reports our connection to each peer, then each peer's connections to the others. If both sides of
// a pair listen, both directions are reported.
void ReportOnPeers(const DoctorSelf& self, const DoctorFlags& flags, DoctorReport* report) {
  const int hosts = 1 + static_cast<int>(flags.peers.size());
  std::vector<std::string> alive;
  for (const std::string& peer : flags.peers) {
    HostReport host;
    report->pairs.push_back(Probe(self, peer, hosts, &host));
    if (host.name.empty()) continue;
    report->hosts.push_back(std::move(host));
    alive.push_back(peer);
  }
  for (const std::string& peer : alive) {
    std::vector<std::string> others = alive;  // a doctor looks only at doctors for others
    others.erase(std::remove(others.begin(), others.end(), peer), others.end());
    if (!flags.listen.empty()) others.push_back(self.name);
    if (others.empty()) continue;
    auto pairs = AskForPairs(peer, others);
    if (pairs.ok()) {
      for (PairReport& pair : *pairs) report->pairs.push_back(std::move(pair));
      continue;
    }
    PairReport failed;
    failed.facts.from = peer;
    failed.facts.to = "others";
    failed.findings.push_back({Severity::kProblem, "reach", std::string(pairs.status().message()),
                               "see its own doctor's output"});
    report->pairs.push_back(std::move(failed));
  }
}

// Waits for a signal, or for `seconds`.
void ListenUntilTold(int seconds) {
  const std::atomic<bool>* const stop = node::StopSignal();
  const absl::Time end = MonotonicNow() + absl::Seconds(seconds);
  while (!stop->load() && MonotonicNow() < end) absl::SleepFor(absl::Milliseconds(100));
}

absl::Status CheckFlags(const DoctorFlags& flags) {
  std::vector<std::string> addresses = flags.peers;
  if (!flags.listen.empty()) addresses.push_back(flags.listen);
  for (const std::string& address : addresses) {
    TANDEM_RETURN_IF_ERROR(SplitHostPort(address).status());
  }
  if (flags.peers.size() > kMaxDoctorPeers) {
    return absl::InvalidArgumentError(absl::StrCat("at most ", kMaxDoctorPeers, " peers"));
  }
  if (flags.job.empty() && !flags.set.empty()) {
    return absl::InvalidArgumentError("--set changes a job, and none is given");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Task>> TaskOf(const DoctorFlags& flags) {
  TANDEM_RETURN_IF_ERROR(CheckFlags(flags));
  auto task = std::make_shared<Task>();
  task->flags = flags;
  if (flags.job.empty()) return task;
  node::RoleFlags role;
  role.job = flags.job;
  role.set = flags.set;
  TANDEM_ASSIGN_OR_RETURN(task->plan, node::PlanOf(role));
  return task;
}

int Report(const DoctorFlags& flags, const DoctorReport& report) {
  const std::string text = flags.json ? ReportJson(report) : ReportText(report, StyleOfTerminal());
  if (std::fputs(text.c_str(), stdout) < 0 || std::fflush(stdout) != 0) {
    node::Finish("tandem doctor", absl::ResourceExhaustedError(absl::StrCat(
                                      "the report cannot be written: ", std::strerror(errno))));
    return node::kExitFailed;
  }
  return CountOf(report, Severity::kProblem) > 0 ? node::kExitFailed : node::kExitOk;
}

}  // namespace

void AddDoctor(CLI::App* app, DoctorFlags* flags) {
  CLI::App* const doctor =
      app->add_subcommand("doctor", "What stands in the way of a job, and what to do about it");
  doctor->add_option("job", flags->job, "Job file (protobuf text); without it, the host alone");
  node::AddSetFlag(doctor, &flags->set);
  doctor->add_option("--out", flags->out, "Folder that the job is to write to");
  doctor->add_option("--bind", flags->binds, "Address of a role here, as its --bind (repeatable)")
      ->check(node::CheckAddress)
      ->allow_extra_args(false);
  doctor->add_option("--servers", flags->servers, "Of the job, on this host")
      ->check(node::CheckNotNegative);
  doctor->add_option("--workers", flags->workers, "Of the job, on this host")
      ->check(node::CheckNotNegative);
  doctor->add_option("--listen", flags->listen, "Answer other doctors at HOST:PORT");
  doctor->add_option("--advertise", flags->advertise,
                     "Host by which others reach this one, if --listen or --bind names all hosts");
  doctor->add_option("--seconds", flags->seconds, "How long to listen")
      ->check(CLI::Range(1, 86400))
      ->capture_default_str();
  doctor
      ->add_option("--peer", flags->peers,
                   "HOST:PORT of a listening doctor, or of a running role (repeatable)")
      ->allow_extra_args(false);
  doctor->add_flag("--json", flags->json, "Print one JSON object");
}

int DoctorCommand(const DoctorFlags& flags) {
  const auto task = TaskOf(flags);
  if (!task.ok()) {
    node::Finish("tandem doctor", task.status());
    return node::kExitBadInput;
  }
  const HostFacts host = GatherHost();
  DoctorSelf self = SelfOf(*task, host);
  std::unique_ptr<DoctorServer> server;
  if (!flags.listen.empty()) {
    auto made = DoctorServer::New(self, flags.listen);
    if (!made.ok()) {
      node::Finish("tandem doctor", made.status());
      return absl::IsInvalidArgument(made.status()) ? node::kExitBadInput : node::kExitFailed;
    }
    server = *std::move(made);
    self.name = absl::StrCat(flags.advertise.empty() ? self.bind_host : flags.advertise, ":",
                             server->port());
    std::fprintf(stderr, "tandem doctor: listening at %s, port %d\n", flags.listen.c_str(),
                 server->port());
    if (flags.peers.empty()) {
      ListenUntilTold(flags.seconds);
      server.reset();
      std::_Exit(node::kExitOk);  // a thread may still be answering a request
    }
  }
  DoctorReport report;
  report.hosts.push_back({self.name, host.name, {}});
  ReportOnPeers(self, flags, &report);
  // Hosts that do not answer, and roles, take no share of the job.
  report.hosts[0].findings = ExamineAll(**task, host, static_cast<int>(report.hosts.size()));
  const int code = Report(flags, report);
  server.reset();
  // A check that did not end in time may still run in its own thread.
  std::_Exit(code);
}

}  // namespace tandem::doctor
