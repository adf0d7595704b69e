#include "tools/doctor/doctor_gather.h"

#include <fcntl.h>
#include <google/protobuf/stubs/common.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>
#include <zmq.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/owned_fd.h"
#include "base/proc_files.h"
#include "base/process.h"
#include "base/run_program.h"
#include "data/batch_source.h"
#include "node/network_check.h"
#include "node/programs.h"
#include "proto/frame.h"
#include "rdma/devices.h"
#include "rdma/rdma_transport.h"
#include "tools/doctor/doctor.h"
#include "transport/shm_memory.h"
#include "transport/tcp_address.h"
#ifdef TANDEM_HAVE_CUDA
#include "collectives/cuda/device_allreduce.h"
#endif

namespace tandem::doctor {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLoaderBound = absl::Seconds(5);

// ---- limits, cores, memory ----

int Cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int cores = sched_getaffinity(0, sizeof set, &set) == 0
                  ? CPU_COUNT(&set)
                  : static_cast<int>(std::thread::hardware_concurrency());
  for (const std::string& group : ControlGroups()) {
    const std::vector<std::string> words = absl::StrSplit(FirstLineOf(group + "/cpu.max"), ' ');
    double quota = 0, period = 0;
    if (words.size() == 2 && absl::SimpleAtod(words[0], &quota) &&
        absl::SimpleAtod(words[1], &period) && period > 0) {
      cores = std::min(cores, static_cast<int>(quota / period + 0.5));
    }
  }
  return std::max(cores, 1);
}

uint64_t LimitOf(rlim_t limit) { return limit == RLIM_INFINITY ? kUnlimited : limit; }

uint64_t ThreadsLeft() {
  uint64_t left = kUnlimited;
  rlimit limit = {};
  // Does not subtract the user's running threads, because counting them is slow. Root has no limit.
  if (geteuid() != 0 && getrlimit(RLIMIT_NPROC, &limit) == 0) left = LimitOf(limit.rlim_cur);
  for (const std::string& group : ControlGroups()) {
    const uint64_t most = NumberIn(group + "/pids.max", kUnlimited);
    const uint64_t used = NumberIn(group + "/pids.current", 0);
    if (most != kUnlimited) left = std::min(left, most - std::min(most, used));
  }
  return left;
}

bool MayLockAll() {
  constexpr int kIpcLock = 14;  // the capability's number
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, "CapEff:")) continue;
    uint64_t bits = 0;
    return absl::SimpleHexAtoi(absl::StripAsciiWhitespace(rest), &bits) &&
           (bits >> kIpcLock & 1) != 0;
  }
  return false;
}

std::string SharedMemoryError() {
  const auto memory = transport::CreateMemoryForReaders(transport::kPageBytes);
  return memory.ok() ? "" : std::string(memory.status().message());
}

// ---- programs and what they load ----

// The dynamic loader's list of the program's libraries, without running it; empty if there is none.
std::string LoaderSays(const std::string& program) {
  ProgramCall call = {{program}, {{"LD_TRACE_LOADED_OBJECTS", "1"}}};
  call.limit = kLoaderBound;
  return RunProgram(call).output;
}

// "libzmq.so.5.2.4" for an important library, else "".
std::string KnownLibrary(absl::string_view name, const std::string& path) {
  for (const char* known :
       {"libzmq.", "libprotobuf.", "libibverbs.", "libtorch_cpu.", "libopenblas"}) {
    if (!absl::StartsWith(name, known)) continue;
    std::error_code error;
    const fs::path real = fs::canonical(path, error);
    return error ? std::string(name) : real.filename().string();
  }
  return "";
}

ProgramFact GatherProgram(const std::string& name) {
  ProgramFact fact;
  fact.name = name;
  const std::string path = node::ProgramPath(name);
  fact.there = access(path.c_str(), X_OK) == 0;
  if (!fact.there) return fact;
  const std::string listed = LoaderSays(path);
  for (const absl::string_view line : absl::StrSplit(listed, '\n')) {
    const std::vector<std::string> words =
        absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() < 3 || words[1] != "=>") continue;
    if (words[2] == "not") {
      fact.missing_libraries.push_back(words[0]);
    } else if (std::string known = KnownLibrary(words[0], words[2]); !known.empty()) {
      fact.libraries.push_back(std::move(known));
    }
  }
  return fact;
}

std::string ProtobufVersion(int number) {
  return google::protobuf::internal::VersionString(number);
}

std::vector<VersionFact> Versions() {
  int major = 0, minor = 0, patch = 0;
  zmq_version(&major, &minor, &patch);
  return {
      {"ZeroMQ", absl::StrCat(ZMQ_VERSION_MAJOR, ".", ZMQ_VERSION_MINOR, ".", ZMQ_VERSION_PATCH),
       absl::StrCat(major, ".", minor, ".", patch)},
      {"protobuf", ProtobufVersion(GOOGLE_PROTOBUF_VERSION), ""}};
}

// ---- RDMA ----

std::string PortFolder(const std::string& device, int port) {
  return absl::StrCat("/sys/class/infiniband/", device, "/ports/", port);
}

RdmaPortFact PortOf(const rdma::RdmaDevice& device, const rdma::RdmaPort& port) {
  RdmaPortFact fact;
  fact.device = device.name;
  fact.port = port.number;
  fact.active = port.state == rdma::RdmaPortState::kActive;
  fact.ethernet = port.link_layer == rdma::RdmaLinkLayer::kEthernet;
  fact.iwarp = absl::StartsWith(
      FirstLineOf(absl::StrCat("/sys/class/infiniband/", device.name, "/node_type")), "4:");
  fact.mtu_bytes = port.active_mtu_bytes;
  fact.max_mtu_bytes = port.max_mtu_bytes;
  const std::string attributes = PortFolder(device.name, port.number) + "/gid_attrs/";
  for (size_t i = 0; i < port.gids.size(); ++i) {
    if (rdma::IsZero(port.gids[i])) continue;
    fact.gids.push_back({static_cast<int>(i), rdma::GidToString(port.gids[i]),
                         FirstLineOf(absl::StrCat(attributes, "types/", i)),
                         FirstLineOf(absl::StrCat(attributes, "ndevs/", i))});
  }
  return fact;
}

// Tries to create an endpoint as a role would.
void TryEndpoint(RdmaFacts* facts) {
  auto context = rdma::RdmaContext::New();
  if (!context.ok()) {
    facts->endpoint_error = std::string(context.status().message());
    return;
  }
  rdma::RdmaOptions options;
  options.context = *std::move(context);
  const auto endpoint = rdma::NewRdmaTransport(options);
  if (endpoint.ok()) {
    facts->endpoint = (*endpoint)->device();
  } else {
    facts->endpoint_error = std::string(endpoint.status().message());
  }
}

RdmaFacts GatherRdma() {
  RdmaFacts facts;
  const auto devices = rdma::ListRdmaDevices();
  if (!devices.ok()) {
    facts.unavailable = std::string(devices.status().message());
    return facts;
  }
  for (const rdma::RdmaDevice& device : *devices) {
    for (const rdma::RdmaPort& port : device.ports) facts.ports.push_back(PortOf(device, port));
  }
  if (!facts.ports.empty()) TryEndpoint(&facts);
  return facts;
}

RdmaFacts NoAnswer() {
  RdmaFacts facts;
  facts.unavailable = "the verbs library does not answer";
  return facts;
}

// ---- folders and ports ----

fs::path NearestFolder(const std::string& path) {
  std::error_code error;
  fs::path at = fs::absolute(path, error);
  while (!fs::exists(at, error) && at != at.parent_path()) at = at.parent_path();
  return at;
}

// Writes a small file to detect quotas and read-only mounts, and removes it.
std::string TryToWrite(const fs::path& folder) {
  std::string name = (folder / ".tandem-doctor-XXXXXX").string();
  const OwnedFd file(mkostemp(name.data(), O_CLOEXEC));
  if (!file.valid()) return absl::StrCat("cannot be written: ", std::strerror(errno));
  unlink(name.c_str());
  const std::vector<char> bytes(size_t{64} << 10, 'x');
  const ssize_t written = write(file.get(), bytes.data(), bytes.size());
  const bool whole = written == static_cast<ssize_t>(bytes.size());
  if (!whole && written >= 0) return "cannot be written: No space left on device";
  if (!whole || fsync(file.get()) != 0) {
    return absl::StrCat("cannot be written: ", std::strerror(errno));
  }
  return "";
}

// The kernel's name for the socket that listens at a port of this host; empty: not found.
std::string ListeningSocket(uint16_t port) {
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const std::vector<std::string> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (words.size() < 10 || words[3] != "0A") continue;  // 0A: listening
      const size_t colon = words[1].rfind(':');
      uint32_t number = 0;
      if (colon != std::string::npos &&
          absl::SimpleHexAtoi(absl::string_view(words[1]).substr(colon + 1), &number) &&
          number == port) {
        return absl::StrCat("socket:[", words[9], "]");
      }
    }
  }
  return "";
}

bool Holds(const fs::path& process, const std::string& what) {
  std::error_code error;
  fs::directory_iterator fd(process / "fd", error);
  for (; !error && fd != fs::directory_iterator(); fd.increment(error)) {
    std::error_code gone;
    if (fs::read_symlink(fd->path(), gone) == what) return true;
  }
  return false;
}

// "tandem-server, pid 12": the process that listens at a port of this host, as far as it can
// be seen.
std::string HolderOf(uint16_t port) {
  const std::string what = ListeningSocket(port);
  std::error_code error;
  fs::directory_iterator process("/proc", error);
  for (; !what.empty() && !error && process != fs::directory_iterator(); process.increment(error)) {
    int pid = 0;
    if (!absl::SimpleAtoi(process->path().filename().string(), &pid)) continue;
    if (Holds(process->path(), what)) {
      return absl::StrCat(FirstLineOf((process->path() / "comm").string()), ", pid ", pid);
    }
  }
  return "";
}

}  // namespace

std::string TandemVersion() {
  return absl::StrCat(TANDEM_VERSION, ", frames ", static_cast<int>(kFrameVersion));
}

std::string BootId() { return FirstLineOf("/proc/sys/kernel/random/boot_id"); }

HostFacts GatherLimits() {
  HostFacts facts;
  facts.cores = Cores();
  if (const HostMemory memory = MemoryOfHost(); memory.total > 0) {
    facts.memory_free_bytes = memory.available;
  }
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
    facts.open_files_soft = LimitOf(files.rlim_cur);
    facts.open_files_hard = LimitOf(files.rlim_max);
  }
  facts.threads_left = ThreadsLeft();
  facts.shared_memory_error = SharedMemoryError();
  return facts;
}

HostFacts GatherHost() {
  HostFacts facts = GatherLimits();
  utsname names = {};
  uname(&names);
  facts.name = names.nodename;
  facts.kernel = names.release;
  facts.boot_id = BootId();
  facts.version = TandemVersion();
  facts.versions = Versions();
  for (const char* name : {"tandem-scheduler", "tandem-server", node::kWorkerProgram}) {
    facts.programs.push_back(GatherProgram(name));
  }
  facts.simulator = node::CheckProgram("tandem-simulator").ok();
  facts.locked_memory_limit = rdma::LockedMemoryLimitBytes();
  facts.may_lock_all = MayLockAll();
  facts.rdma = Within<RdmaFacts>(kDoctorBound, GatherRdma).value_or(NoAnswer());
  return facts;
}

DeviceFact GatherDevice() {
  DeviceFact fact;
#ifdef TANDEM_HAVE_TORCH_CUDA
  fact.models_compute_there = true;
#endif
#ifdef TANDEM_HAVE_CUDA
  fact.error = Within<std::string>(kDoctorBound, [] {
                 std::string why;
                 return collectives::HaveDevice(&why) ? "" : why;
               }).value_or("a driver that does not answer");
#endif
  return fact;
}

absl::Status CheckDenseDevice(const job::ResolvedJob& plan) {
  if (plan.job.dense().device() != Dense::CUDA) return absl::OkStatus();
  return FirstProblem({ExamineDevice(GatherDevice())});
}

DataFact GatherData(const job::ResolvedJob& plan) {
  auto owned = std::make_shared<job::ResolvedJob>(plan);
  const auto status =
      Within<absl::Status>(kDoctorBound, [owned] { return data::CheckData(*owned); });
  if (!status.has_value()) {
    return {absl::StrCat("the files of the job cannot be read within ",
                         absl::FormatDuration(kDoctorBound))};
  }
  return {std::string(status->message())};
}

FolderFact GatherFolder(const std::string& path) {
  const auto fact = Within<FolderFact>(kDoctorBound, [path] {
    FolderFact found;
    found.path = path;
    const fs::path folder = NearestFolder(path);
    struct statvfs space = {};
    if (statvfs(folder.c_str(), &space) == 0) {
      found.free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
    }
    std::error_code error;
    found.error = fs::is_directory(folder, error) ? TryToWrite(folder)
                                                  : absl::StrCat(folder.string(), " is no folder");
    return found;
  });
  return fact.value_or(FolderFact{
      path, absl::StrCat("does not answer within ", absl::FormatDuration(kDoctorBound)), 0});
}

PortFact GatherPort(const std::string& address, const std::string& advertise) {
  PortFact fact;
  fact.address = address;
  const absl::Status can = node::CheckBind(address, advertise);
  if (can.ok()) return fact;
  // The message of the check is "--bind ADDRESS: why".
  fact.error = std::string(can.message());
  absl::string_view why = fact.error;
  if (absl::ConsumePrefix(&why, absl::StrCat("--bind ", address, ": "))) {
    fact.error = std::string(why);
  }
  uint32_t number = 0;
  const std::string port = transport::SplitTcpAddress(address).port;
  fact.taken = absl::IsUnavailable(can);
  if (fact.taken && absl::SimpleAtoi(port, &number)) {
    fact.holder = HolderOf(static_cast<uint16_t>(number));
  }
  return fact;
}

}  // namespace tandem::doctor
