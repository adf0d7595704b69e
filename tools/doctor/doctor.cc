#include "tools/doctor/doctor.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/text.h"
#include "job/job_budget.h"

namespace tandem::doctor {
namespace {

// Memory of a process without rows, measured on small jobs. A worker contains LibTorch.
constexpr uint64_t kServerBytes = uint64_t{40} << 20, kWorkerBytes = uint64_t{250} << 20;
// Descriptors of any process, and of each connection: a socket for each transport, and perhaps
// segments of shared memory.
constexpr uint64_t kFilesAtRest = 64, kFilesOfPeer = 8;
// docs/RDMA.md: a pool; and for each peer the ring, registered twice, and messages in flight.
constexpr uint64_t kLockedAtRest = uint64_t{4} << 20, kLockedOfPeer = uint64_t{12} << 20;
constexpr int kThreadsOfProcess = 7;  // without compute threads: heartbeats, I/O, keys, readers
// Threads without which a process cannot start: those of ZeroMQ and of its keys, heartbeats and its
// own work.
constexpr int kMinOfScheduler = 5, kMinOfServer = 6, kMinOfWorker = 8;
constexpr uint64_t kMinFiles = 32;  // open in any process that has started, measured
constexpr int kHopelessThreadsOfCore = 16;
constexpr double kMaxMemory = 0.8;
constexpr int kGoodMtu = 4096;
constexpr char kWorkerProgram[] = "tandem-worker", kLibrary[] = "libtandem.so";
constexpr double kClockWarning = 0.1, kClockProblem = 60;  // seconds

Finding Ok(std::string check, std::string found) {
  return {Severity::kOk, std::move(check), std::move(found), ""};
}
Finding Warning(std::string check, std::string found, std::string advice) {
  return {Severity::kWarning, std::move(check), std::move(found), std::move(advice)};
}
Finding Problem(std::string check, std::string found, std::string advice) {
  return {Severity::kProblem, std::move(check), std::move(found), std::move(advice)};
}
Finding Either(bool problem, std::string check, std::string found, std::string advice) {
  return {problem ? Severity::kProblem : Severity::kWarning, std::move(check), std::move(found),
          std::move(advice)};
}

std::string Bytes(uint64_t bytes) {
  if (bytes == kUnlimited) return "unlimited";
  return bytes == 0 ? "0 B" : BytesText(static_cast<double>(bytes));
}

std::string Count(uint64_t n) { return n == kUnlimited ? "unlimited" : absl::StrCat(n); }
std::string Plural(int64_t n, absl::string_view what) {
  if (n == 1) return absl::StrCat(n, " ", what);
  return absl::StrCat(n, " ", what, absl::EndsWith(what, "s") ? "es" : "s");
}

std::string TimeText(double seconds) {
  if (seconds >= 1) return absl::StrFormat("%.3f s", seconds);
  if (seconds >= 1e-3) return absl::StrFormat("%.1f ms", seconds * 1e3);
  return absl::StrFormat("%.0f us", seconds * 1e6);
}

uint64_t Clamp(double bytes) { return static_cast<uint64_t>(std::min(bytes, 0x1p62)); }

// ---- the host ----

Finding ExaminePrograms(const HostFacts& host, const JobNeeds* needs) {
  std::vector<std::string> absent, libraries, known;
  for (const ProgramFact& program : host.programs) {
    if (needs != nullptr && needs->script && program.name == kWorkerProgram) continue;
    if (!program.there) absent.push_back(program.name);
    for (const std::string& name : program.missing_libraries) libraries.push_back(name);
    known.insert(known.end(), program.libraries.begin(), program.libraries.end());
  }
  std::sort(known.begin(), known.end());
  known.erase(std::unique(known.begin(), known.end()), known.end());
  if (!libraries.empty()) {
    return Problem("programs", absl::StrCat("libraries not found: ", absl::StrJoin(libraries, " ")),
                   "install the packages they come from (docs/HACKING.md lists them)");
  }
  if (needs == nullptr && absent == std::vector<std::string>{kWorkerProgram}) {
    return Warning("programs",
                   "no tandem-worker, so no compiled models; scripts (--python) can run",
                   "for compiled models: TANDEM_WORKER=.../tandem-worker of a source build");
  }
  if (!absent.empty()) {
    return Problem("programs", absl::StrCat("not beside this one: ", absl::StrJoin(absent, " ")),
                   absl::StrCat("build them: ninja -C build ", absl::StrJoin(absent, " "),
                                " (tandem-worker needs LibTorch, TANDEM_TORCH=ON)"));
  }
  return Ok("programs", absl::StrCat(Plural(static_cast<int64_t>(host.programs.size()), "program"),
                                     known.empty() ? "" : ": ", absl::StrJoin(known, " ")));
}

Finding ExamineSimulator(const HostFacts& host) {
  if (host.simulator) return Ok("simulator", "tandem-simulator is there");
  return Warning("simulator",
                 "tandem-simulator is not built; `simulate`, `replay --serial` and studies that "
                 "simulate need it",
                 "ninja -C build tandem-simulator");
}

Finding ExamineVersions(const HostFacts& host) {
  std::vector<std::string> all = {absl::StrCat("Tandem ", host.version),
                                  absl::StrCat("Linux ", host.kernel)};
  for (const VersionFact& v : host.versions) {
    if (!v.running.empty() && v.running != v.built_with) {
      return Warning("versions",
                     absl::StrCat(v.name, " ", v.running, ", but built with ", v.built_with),
                     "build again on this machine, or install the version of the build");
    }
    all.push_back(absl::StrCat(v.name, " ", v.built_with));
  }
  return Ok("versions", absl::StrJoin(all, ", "));
}

Finding ExamineSharedMemory(const HostFacts& host, Cluster::Transport transport) {
  if (host.shared_memory_error.empty()) {
    return Ok("shared memory", "sealed memory (memfd) works; /dev/shm is not used");
  }
  const bool forced = transport == Cluster::SHM;
  return Either(
      forced, "shared memory",
      absl::StrCat(host.shared_memory_error,
                   forced ? "; cluster.transport: SHM is refused" : "; RDMA or ZeroMQ is used"),
      "Linux 5.1 or newer, and a container that allows memfd_create and its seals");
}

Finding ExamineCores(const HostFacts& host, const JobNeeds& needs) {
  const std::string what =
      absl::StrCat(Plural(needs.busy_threads, "busy thread"), " in ",
                   Plural(needs.processes, "process"), " on ", Plural(host.cores, "core"));
  const uint64_t all = static_cast<uint64_t>(needs.all_threads);
  if (all > host.threads_left) {
    return Problem(
        "cores",
        absl::StrCat(all, " threads are needed, only ", host.threads_left, " may still be started"),
        "raise ulimit -u, or pids.max of the container; or fewer workers and servers");
  }
  if (needs.busy_threads > kHopelessThreadsOfCore * host.cores) {
    return Problem("cores", what,
                   "fewer workers, servers or shards here; so many starve each other's heartbeats");
  }
  if (needs.busy_threads > host.cores) {
    return Warning("cores", what, "it works, slower than on more cores or with fewer processes");
  }
  return Ok("cores", what);
}

Finding ExamineMemory(const HostFacts& host, const JobNeeds& needs) {
  const double all = static_cast<double>(needs.table_bytes) +
                     static_cast<double>(needs.held_bytes) +
                     static_cast<double>(needs.process_bytes);
  const double free = static_cast<double>(host.memory_free_bytes);
  const std::string found =
      absl::StrCat(Bytes(Clamp(all)), " needed (tables ", Bytes(needs.table_bytes), ", held back ",
                   Bytes(needs.held_bytes), ", programs ", Bytes(needs.process_bytes), "), ",
                   Bytes(host.memory_free_bytes), " free");
  // The default of expected_rows is large, so it is the first thing to look at.
  const std::string expected =
      needs.largest_table.empty()
          ? ""
          : absl::StrCat("a more exact expected_rows (now ", needs.largest_rows, " of table ",
                         needs.largest_table, "), ");
  const double rows_and_held = all - static_cast<double>(needs.process_bytes);
  const double of_servers = rows_and_held + static_cast<double>(needs.server_bytes);
  if (needs.servers_may_use > 0 && of_servers > static_cast<double>(needs.servers_may_use)) {
    return Problem(
        "memory",
        absl::StrCat(Bytes(Clamp(of_servers)), " needed by the servers here (tables ",
                     Bytes(needs.table_bytes), ", held back ", Bytes(needs.held_bytes),
                     "), cluster.memory_per_server allows ", Bytes(needs.servers_may_use)),
        absl::StrCat(expected, job::kWaysToFit));
  }
  const std::string advice =
      absl::StrCat(expected, "more servers on other hosts, or a smaller dim");
  if (all > free) return Problem("memory", found, advice);
  if (all > kMaxMemory * free) return Warning("memory", found, advice);
  return Ok("memory", found);
}

Finding ExamineOpenFiles(const HostFacts& host, const JobNeeds& needs) {
  const std::string found = absl::StrCat("a process may need ", needs.files_of_process,
                                         ", the limit is ", Count(host.open_files_soft));
  if (needs.files_of_process <= host.open_files_soft) return Ok("open files", found);
  if (needs.files_of_process <= host.open_files_hard) {
    return Problem("open files", found, absl::StrCat("ulimit -n ", Count(host.open_files_hard)));
  }
  return Problem("open files", absl::StrCat(found, ", at most ", Count(host.open_files_hard)),
                 "raise nofile in /etc/security/limits.conf, LimitNOFILE, or --ulimit nofile=");
}

// ---- RDMA ----

// The prefix of a GID that belongs to an IPv4 address. Endpoints bind to such GIDs.
constexpr absl::string_view kIpv4Gid = "0000:0000:0000:0000:0000:ffff:";

bool IsRoceV2(const RdmaGidFact& gid) { return gid.type == "RoCE v2"; }
bool HasIpv4(const RdmaGidFact& gid) { return absl::StartsWith(gid.gid, kIpv4Gid); }

bool Usable(const RdmaPortFact& port) {
  if (!port.active || port.iwarp) return false;
  return !port.ethernet || std::any_of(port.gids.begin(), port.gids.end(), [](const auto& gid) {
    return IsRoceV2(gid) && HasIpv4(gid);
  });
}

std::string PortName(const RdmaPortFact& port) {
  return absl::StrCat(port.device, " port ", port.port);
}

// "192.0.2.1", or the GID itself if it belongs to no IPv4 address.
std::string GidText(const RdmaGidFact& gid) {
  uint32_t high = 0, low = 0;
  if (!HasIpv4(gid) || gid.gid.size() != kIpv4Gid.size() + 9 ||
      !absl::SimpleHexAtoi(gid.gid.substr(kIpv4Gid.size(), 4), &high) ||
      !absl::SimpleHexAtoi(gid.gid.substr(kIpv4Gid.size() + 5), &low)) {
    return gid.gid;
  }
  return absl::StrCat(high >> 8, ".", high & 255, ".", low >> 8, ".", low & 255);
}

// The GIDs to which endpoints can bind.
std::string GidsOf(const RdmaPortFact& port) {
  std::vector<std::string> all;
  for (const RdmaGidFact& gid : port.gids) {
    if (port.ethernet && (!IsRoceV2(gid) || !HasIpv4(gid))) continue;
    all.push_back(absl::StrCat("GID ", gid.index, " ", GidText(gid),
                               gid.network_device.empty() ? "" : " on ", gid.network_device));
  }
  return absl::StrJoin(all, ", ");
}

Finding ExamineRdmaPort(const RdmaPortFact& port, bool forced) {
  const std::string check = "RDMA", name = PortName(port);
  if (port.iwarp) {
    return Either(forced, check, absl::StrCat(name, ": iWARP, which has no write with immediate"),
                  "ZeroMQ serves (transport: AUTO or ZMQ); or an InfiniBand or RoCE device");
  }
  if (!port.active) {
    return Either(forced, check, absl::StrCat(name, ": the port is not active"),
                  "check cable and switch; rdma link; ip link set DEVICE up");
  }
  if (!Usable(port)) {
    const bool v2 = std::any_of(port.gids.begin(), port.gids.end(), IsRoceV2);
    return Either(forced, check,
                  absl::StrCat(name, ": active, but no RoCE v2 GID",
                               v2 ? " that belongs to an IPv4 address" : ""),
                  v2 ? "give its network device an IPv4 address"
                     : "give its network device an IPv4 address; default_roce_mode \"RoCE v2\"");
  }
  const std::string gids = GidsOf(port);
  const std::string found = absl::StrCat(name, ": ", port.ethernet ? "RoCE v2" : "InfiniBand",
                                         ", MTU ", port.mtu_bytes, gids.empty() ? "" : ", ", gids);
  if (port.mtu_bytes < std::min(kGoodMtu, port.max_mtu_bytes)) {
    return Warning(check, found,
                   port.ethernet ? "MTU 4096 is faster: ip link set DEVICE mtu 9000, on all hosts "
                                   "and switches"
                                 : "MTU 4096 is faster: set it in the subnet manager");
  }
  return Ok(check, found);
}

std::vector<Finding> ExamineRdma(const RdmaFacts& rdma, Cluster::Transport transport) {
  const bool forced = transport == Cluster::RDMA;
  const char* const advice =
      "load the adapter's driver, ib_uverbs and rdma_ucm; pass /dev/infiniband to containers";
  if (!rdma.unavailable.empty()) {
    const Finding sorry = Either(forced, "RDMA", rdma.unavailable, advice);
    return {forced ? sorry : Ok("RDMA", absl::StrCat("not used: ", rdma.unavailable))};
  }
  if (rdma.ports.empty()) {
    return {forced ? Problem("RDMA", "the job wants it, and there is no device", advice)
                   : Ok("RDMA", "no device; other hosts are reached by ZeroMQ")};
  }
  std::vector<Finding> findings;
  bool usable = false;
  for (const RdmaPortFact& port : rdma.ports) usable = usable || Usable(port);
  // If one port is usable, an unusable one is no problem.
  for (const RdmaPortFact& port : rdma.ports) {
    findings.push_back(ExamineRdmaPort(port, forced && !usable));
  }
  if (usable && rdma.endpoint.empty()) {
    findings.push_back(
        Either(forced, "RDMA endpoint", rdma.endpoint_error,
               "often the locked-memory limit or a missing /dev/infiniband/rdma_cm"));
  } else if (usable) {
    findings.push_back(Ok("RDMA endpoint", absl::StrCat("made on ", rdma.endpoint)));
  }
  return findings;
}

Finding ExamineLockedMemory(const HostFacts& host, Cluster::Transport transport,
                            const JobNeeds* needs) {
  const bool forced = transport == Cluster::RDMA;
  const bool wanted = forced || (!host.rdma.ports.empty() && transport != Cluster::ZMQ &&
                                 transport != Cluster::SHM);
  const uint64_t need =
      needs == nullptr ? kLockedAtRest + kLockedOfPeer : needs->locked_bytes_of_process;
  const std::string limit = absl::StrCat("the limit is ", Bytes(host.locked_memory_limit),
                                         host.may_lock_all ? ", and privileged beyond it" : "");
  if (!wanted) return Ok("locked memory", absl::StrCat("not needed without RDMA; ", limit));
  const std::string found = absl::StrCat("a process may need ", Bytes(need), ", ", limit);
  if (host.may_lock_all || host.locked_memory_limit >= need) return Ok("locked memory", found);
  return Either(forced, "locked memory", found,
                "memlock unlimited in limits.conf, LimitMEMLOCK=infinity, or --ulimit memlock=-1");
}

// ---- pairs ----

constexpr char kPair[] = "reach", kWay[] = "transport", kClock[] = "clock";

Finding ExamineAnswer(const PairFacts& pair) {
  const std::string& to = pair.to;
  switch (pair.answer) {
    case PairFacts::Answer::kRole:
      return Ok(kPair, absl::StrCat("a running role answers: ", pair.detail));
    case PairFacts::Answer::kRefused:
      return Problem(
          kPair, absl::StrCat("connection refused: ", pair.detail),
          absl::StrCat("start there: tandem doctor --listen ", to, "; or a firewall rejects"));
    case PairFacts::Answer::kSilent:
      return Problem(kPair, absl::StrCat("it takes connections and says nothing: ", pair.detail),
                     "another program has this port, or the process there is stopped");
    case PairFacts::Answer::kGarbage:
      return Problem(kPair, absl::StrCat("not one of ours: ", pair.detail),
                     "another program has this port: check host and port");
    case PairFacts::Answer::kNoDoctor:
      return Problem(kPair, "no doctor answers there",
                     absl::StrCat("start there: tandem doctor --listen ", to));
    case PairFacts::Answer::kUnreachable:
      return Problem(kPair, absl::StrCat("no connection: ", pair.detail),
                     "check name, route and that firewalls let TCP through in both directions");
    case PairFacts::Answer::kDoctor:
      break;
  }
  return Ok(kPair, "answers");
}

Finding ExamineWay(const OurSide& ours, const PairFacts& pair) {
  if (!pair.way_error.empty()) {
    return Problem(
        kWay, absl::StrCat("frames do not get through: ", pair.way_error),
        "roles listen on any free port: firewalls must let those through, or fix --bind");
  }
  const std::string found =
      absl::StrFormat("%s, round trip %.0f us%s%s", pair.way, pair.round_trip_us,
                      pair.why.empty() ? "" : ": ", pair.why);
  if (pair.way == "ZeroMQ" && ours.rdma_active && pair.rdma_active &&
      (ours.transport == Cluster::AUTO || ours.transport == Cluster::TRANSPORT_UNSPECIFIED)) {
    return Warning(kWay, found, "both ends have RDMA: see their RDMA lines, and docs/RDMA.md");
  }
  return Ok(kWay, found);
}

Finding ExamineClock(const PairFacts& pair) {
  const double least = std::max(0.0, std::abs(pair.clock_offset_s) - pair.clock_error_s);
  const std::string found = absl::StrCat("its clock is ", TimeText(std::abs(pair.clock_offset_s)),
                                         pair.clock_offset_s < 0 ? " behind" : " ahead of",
                                         " ours, within ", TimeText(pair.clock_error_s));
  const char* const advice =
      "chrony or systemd-timesyncd on both: logs and traces of hosts cannot be put in order";
  if (least > kClockProblem) return Problem(kClock, found, advice);
  if (least > kClockWarning) return Warning(kClock, found, advice);
  return Ok(kClock, found);
}

// The packages of the system are for its own interpreter alone.
std::string HowToInstall(const PythonFact& python, const std::string& module) {
  for (const PythonPart& part : python.parts) {
    if (part.name != "python") continue;
    const std::string program = part.place.substr(part.place.find(", ") + 2);
    if (program != "/usr/bin/python3" && !absl::StartsWith(program, "/usr/bin/python3.")) {
      return absl::StrCat(program, " -m pip install ", module);
    }
  }
  return absl::StrCat("apt install python3-", module);
}

}  // namespace

const char* SeverityName(Severity level) {
  return level == Severity::kOk ? "ok" : level == Severity::kWarning ? "warning" : "problem";
}

JobNeeds NeedsOf(const job::ResolvedJob& plan, int servers, int workers, bool loads) {
  JobNeeds needs;
  needs.servers = servers;
  needs.workers = workers;
  const Cluster& cluster = plan.job.cluster();
  needs.processes = servers + workers;
  const int serving = servers + (plan.workers_serve ? workers : 0);
  needs.busy_threads =
      serving * plan.shards_per_server() + workers * std::max(1, cluster.threads_per_worker());
  needs.all_threads = needs.busy_threads + kThreadsOfProcess * (needs.processes + 1);
  needs.min_threads =
      kMinOfScheduler + servers * (kMinOfServer + plan.shards_per_server()) +
      workers * (kMinOfWorker + 2 * (std::max(1, cluster.threads_per_worker()) - 1));
  needs.startup_timeout_seconds = plan.job.limits().startup_timeout_seconds();
  double rows = 0, checkpoint = 0, largest = 0;
  for (const job::TablePlan& table : plan.tables) {
    const bool rowless = table.dense || (table.frozen && !loads);
    const double expected = rowless ? 0 : static_cast<double>(job::RowsExpected(table));
    const bool on_workers = table.placement != Table::SERVERS;
    const int here = on_workers ? workers : servers, holders = plan.HoldersOf(table).count;
    const double share = holders == 0 ? 0 : static_cast<double>(here) / holders;
    const double bytes = expected * job::BytesOfRow(plan, table) * share * plan.CopiesOf(table);
    rows += bytes;
    if (bytes > largest) {
      largest = bytes;
      needs.largest_table = table.name;
      needs.largest_rows = job::RowsExpected(table);
    }
    checkpoint += expected * (job::StoredBytesOfRow(plan, table) + sizeof(uint64_t));
  }
  needs.table_bytes = Clamp(rows);
  needs.servers_may_use = Clamp(static_cast<double>(cluster.memory_per_server()) * serving);
  const bool makes_room =
      std::any_of(plan.tables.begin(), plan.tables.end(),
                  [](const auto& table) { return table.eviction.kind() == Eviction::AT_BUDGET; });
  if (makes_room && needs.servers_may_use > 0) {
    needs.table_bytes = std::min(needs.table_bytes, std::exchange(needs.servers_may_use, 0));
  }
  needs.checkpoint_bytes = Clamp(checkpoint);
  needs.held_bytes =
      Clamp(static_cast<double>(job::HeldBytes(plan)) * serving * plan.shards_per_server());
  const uint64_t of_workers = static_cast<uint64_t>(workers) * kWorkerBytes;
  needs.server_bytes = static_cast<uint64_t>(servers) * kServerBytes;
  needs.process_bytes = needs.server_bytes + of_workers;
  if (plan.workers_serve) needs.server_bytes += of_workers;
  // Each shard of a server connects to every worker. A worker connects to every shard and to the
  // other workers.
  const uint64_t of_server =
      static_cast<uint64_t>(plan.shards_per_server()) * static_cast<uint64_t>(plan.workers());
  const uint64_t of_worker = static_cast<uint64_t>(plan.shards() + plan.workers());
  const uint64_t peers =
      std::max(servers > 0 ? of_server : uint64_t{0}, workers > 0 ? of_worker : uint64_t{0});
  needs.files_of_process = kFilesAtRest + kFilesOfPeer * peers;
  needs.locked_bytes_of_process = kLockedAtRest + kLockedOfPeer * peers;
  needs.dense_over_rdma = workers > 0 && plan.job.dense().link() == Dense::RDMA;
  needs.script = plan.job.model().has_program();
  return needs;
}

std::vector<Finding> ExamineHost(const HostFacts& host, Cluster::Transport transport,
                                 const JobNeeds* needs) {
  std::vector<Finding> findings = {ExaminePrograms(host, needs), ExamineSimulator(host),
                                   ExamineVersions(host)};
  if (needs != nullptr) {
    findings.push_back(ExamineCores(host, *needs));
    findings.push_back(ExamineMemory(host, *needs));
    findings.push_back(ExamineOpenFiles(host, *needs));
  }
  findings.push_back(ExamineSharedMemory(host, transport));
  const bool forced = needs != nullptr && needs->dense_over_rdma;
  const Cluster::Transport wanted = forced ? Cluster::RDMA : transport;
  for (Finding& finding : ExamineRdma(host.rdma, wanted)) {
    findings.push_back(std::move(finding));
  }
  findings.push_back(ExamineLockedMemory(host, wanted, needs));
  return findings;
}

std::vector<Finding> ExamineStart(const HostFacts& host, Cluster::Transport transport,
                                  const JobNeeds& needs) {
  std::vector<Finding> findings;
  if (static_cast<uint64_t>(needs.min_threads) > host.threads_left) {
    findings.push_back(
        Problem("threads",
                absl::StrCat("the job needs at least ", needs.min_threads, " threads, and only ",
                             host.threads_left, " may be started"),
                "raise ulimit -u, or pids.max of the container; or fewer workers and servers"));
  }
  if (host.open_files_soft < kMinFiles) {
    findings.push_back(Problem("open files",
                               absl::StrCat("a process needs at least ", kMinFiles,
                                            " open files, the limit is ", host.open_files_soft),
                               absl::StrCat("ulimit -n ", needs.files_of_process)));
  }
  if (transport == Cluster::SHM && !host.shared_memory_error.empty()) {
    findings.push_back(ExamineSharedMemory(host, transport));
  }
  if (!findings.empty()) return findings;
  // Warnings: the host has less than the estimate, but the job may still run.
  if (needs.busy_threads > kHopelessThreadsOfCore * host.cores) {
    findings.push_back(
        Warning("cores",
                absl::StrCat(Plural(needs.busy_threads, "busy thread"), " in ",
                             Plural(needs.processes, "process"), " on ", Plural(host.cores, "core"),
                             ": they may not all be there within limits.startup_timeout_seconds (",
                             absl::StrFormat("%g", needs.startup_timeout_seconds), ")"),
                "fewer workers, servers or shards; or raise limits.startup_timeout_seconds"));
  }
  for (Finding& finding :
       std::vector<Finding>{ExamineMemory(host, needs), ExamineOpenFiles(host, needs)}) {
    if (finding.level != Severity::kProblem) continue;
    finding.level = Severity::kWarning;
    findings.push_back(std::move(finding));
  }
  return findings;
}

std::vector<Finding> ExaminePython(const PythonFact& python) {
  constexpr absl::string_view kNoModule = "there is no module";
  if (!python.error.empty()) {
    const std::string advice =
        python.error == kNoInterpreter
            ? "apt install python3, or say in TANDEM_PYTHON which interpreter"
            : absl::StrCat("the interpreter itself fails: see `", python.interpreter,
                           " -c pass`, and whether PYTHONHOME is right");
    return {Problem("Python", absl::StrCat(python.interpreter, ": ", python.error), advice)};
  }
  std::vector<Finding> findings;
  for (const PythonPart& part : python.parts) {
    const std::string check = part.name == "python" ? "Python" : part.name;
    const std::string found = absl::StrCat(python.interpreter, ": ", part.error);
    if (part.error.empty()) {
      findings.push_back(Ok(check, part.place));
    } else if (part.name == kLibrary) {
      // The package says what is wrong, and behind a semicolon what to do.
      const std::pair<std::string, std::string> said =
          absl::StrSplit(part.error, absl::MaxSplits("; ", 1));
      findings.push_back(Problem(
          check, said.first,
          said.second.empty() ? "install the packages of its libraries (docs/HACKING.md lists them)"
                              : said.second));
    } else if (!absl::StartsWith(part.error, kNoModule)) {
      findings.push_back(Problem(
          check, found,
          absl::StrCat(python.interpreter, " -c 'import ", part.name, "' shows where it fails")));
    } else if (part.name == "tandem") {
      findings.push_back(Problem(
          check, found, "say in PYTHONPATH where the package is, for example build/python"));
    } else {
      findings.push_back(
          Problem(check, found,
                  absl::StrCat(HowToInstall(python, part.name),
                               ", or say in TANDEM_PYTHON which interpreter has it")));
    }
  }
  return findings;
}

Finding ExamineDevice(const DeviceFact& device) {
  if (!device.models_compute_there) {
    return Problem("dense.device", "CUDA, but this build's LibTorch has no CUDA",
                   "use CPU, or build with -DTANDEM_TORCH_ROOT=DIR of a LibTorch that has");
  }
  if (!device.error.empty()) {
    return Problem("dense.device", absl::StrCat("CUDA, but this host has ", device.error),
                   "use CPU; or see nvidia-smi, CUDA_VISIBLE_DEVICES, and --gpus of the container");
  }
  return Ok("dense.device", "CUDA: a device is there");
}

Finding ExamineData(const DataFact& data) {
  if (data.error.empty())
    return Ok("data", "all files are there, and their first rows can be read");
  return Problem("data", data.error, "every host that runs a worker must see the files of the job");
}

Finding ExamineFolder(const FolderFact& folder, uint64_t checkpoint_bytes) {
  if (!folder.error.empty()) {
    return Problem("output folder", absl::StrCat(folder.path, ": ", folder.error),
                   "free some space, or another --out");
  }
  const std::string found = absl::StrCat(folder.path, ": ", Bytes(folder.free_bytes),
                                         " free, a checkpoint may take ", Bytes(checkpoint_bytes));
  if (folder.free_bytes < checkpoint_bytes) {
    return Problem("output folder", found,
                   "free some space, another --out, or run with --no-checkpoint");
  }
  return Ok("output folder", found);
}

Finding ExaminePort(const PortFact& port) {
  if (port.error.empty()) return Ok("port", absl::StrCat(port.address, " is free"));
  const std::string who = port.holder.empty() ? "" : absl::StrCat(" (", port.holder, ")");
  return Problem("port", absl::StrCat(port.address, ": ", port.error, who),
                 port.taken ? "end the program that has it, or choose another --bind"
                            : "choose a --bind that is an address of this host");
}

OurSide OurSideOf(const HostFacts& host, Cluster::Transport transport, std::string job_hash) {
  OurSide ours = {host.version, std::move(job_hash), 0, false, transport};
  for (const RdmaPortFact& port : host.rdma.ports) {
    if (!Usable(port)) continue;
    ours.rdma_active = true;
    ours.rdma_mtu_bytes = port.mtu_bytes;
    break;
  }
  return ours;
}

std::vector<Finding> ExaminePair(const OurSide& ours, const PairFacts& pair) {
  if (pair.answer != PairFacts::Answer::kDoctor) return {ExamineAnswer(pair)};
  std::vector<Finding> findings;
  if (pair.version != ours.version) {
    findings.push_back(
        Problem("version", absl::StrCat("it has Tandem ", pair.version, ", we have ", ours.version),
                "install the same build on all hosts"));
    if (pair.has_clock) findings.push_back(ExamineClock(pair));
    return findings;  // no frames were sent
  }
  if (!ours.job_hash.empty() && pair.job_hash != ours.job_hash) {
    findings.push_back(Problem("job",
                               pair.job_hash.empty() ? "it was started without the job"
                                                     : "it has another job, or other --set",
                               "give both the same job file and the same --set"));
  }
  findings.push_back(ExamineWay(ours, pair));
  if (ours.rdma_active && pair.rdma_active && ours.rdma_mtu_bytes != pair.rdma_mtu_bytes) {
    findings.push_back(Warning(
        "RDMA MTU", absl::StrCat("ours is ", ours.rdma_mtu_bytes, ", its is ", pair.rdma_mtu_bytes),
        "the same on all hosts and switches: ip link set DEVICE mtu 9000"));
  }
  if (pair.has_clock) findings.push_back(ExamineClock(pair));
  return findings;
}

absl::Status FirstProblem(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) {
    if (finding.level != Severity::kProblem) continue;
    return absl::FailedPreconditionError(
        absl::StrCat(finding.check, ": ", finding.found, "; hint: ", finding.advice));
  }
  return absl::OkStatus();
}

}  // namespace tandem::doctor
