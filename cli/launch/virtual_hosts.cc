#include "cli/launch/virtual_hosts.h"

#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/run_program.h"
#include "base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr char kThisNetwork[] = "/proc/thread-self/ns/net";
constexpr char kDevice[] = "eth0";
constexpr char kSwitch[] = "switch";
constexpr int kHostsAByte = 250;

// Jumbo frames: headers are 0.8 % of the bytes, not 4.4 %.
constexpr int kFrameBytes = 9000;
// The burst is small, so that the limit also holds for transfers of a few milliseconds.
constexpr double kBurstSeconds = 0.25e-3;
constexpr int kMinBurstFrames = 2;
// The queue of a limit. A connection has at most 4 MB in flight (net.ipv4.tcp_wmem), so up to 16
// connections to one host lose no packet. With more, a full queue drops packets as a real switch
// does, and TCP resends them.
constexpr int64_t kQueueBytes = 64 << 20;

std::string PortOf(int host) { return absl::StrCat("port", host); }

absl::Status Missing(absl::string_view what) {
  return absl::FailedPreconditionError(absl::StrCat("hosts with limited links: ", what));
}

// Creates a new, empty network namespace. The thread that creates it is inside of it, and ends.
absl::StatusOr<OwnedFd> NewNetwork() {
  int fd = -1, error = 0;
  std::thread([&fd, &error] {
    if (unshare(CLONE_NEWNET) == 0) fd = open(kThisNetwork, O_RDONLY | O_CLOEXEC);
    error = errno;
  }).join();
  if (fd >= 0) return OwnedFd(fd);
  if (error == EPERM) return Missing("network namespaces need root");
  return Missing(absl::StrCat("no network namespace can be made: ", std::strerror(error)));
}

absl::StatusOr<std::string> FindTool(absl::string_view name) {
  const char* const path = getenv("PATH");
  std::vector<std::string> folders = absl::StrSplit(path != nullptr ? path : "", ':');
  folders.insert(folders.end(), {"/usr/sbin", "/sbin"});
  for (const std::string& folder : folders) {
    std::string file = absl::StrCat(folder, "/", name);
    if (!folder.empty() && access(file.c_str(), X_OK) == 0) return file;
  }
  return Missing(absl::StrCat("there is no program ", name, "; hint: apt install iproute2"));
}

// Has the program `tool` execute `lines` in the network namespace `space`.
absl::Status Batch(const std::string& tool, int space, const std::vector<std::string>& lines) {
  TANDEM_ASSIGN_OR_RETURN(const std::string program, FindTool(tool));
  ProgramCall call = {{program, "-batch", "-"}};
  call.input = absl::StrCat(absl::StrJoin(lines, "\n"), "\n");
  call.with_errors = true;
  call.network = space;
  const ProgramResult result = RunProgram(call);
  if (result.ok()) return absl::OkStatus();
  const std::string said =
      result.not_started != 0 ? std::strerror(result.not_started) : result.output;
  return Missing(absl::StrCat(
      tool, " says: ", absl::StrReplaceAll(absl::StripAsciiWhitespace(said), {{"\n", "; "}})));
}

// The settings of a token bucket with this rate.
std::string LimitOf(double bytes_per_second) {
  const auto rate = static_cast<int64_t>(std::ceil(bytes_per_second));
  const auto burst = std::max(static_cast<int64_t>(bytes_per_second * kBurstSeconds),
                              static_cast<int64_t>(kMinBurstFrames * kFrameBytes));
  return absl::StrCat("root tbf rate ", rate, "bps burst ", burst, " limit ", kQueueBytes);
}

absl::Status CheckSizes(int hosts, double bytes_per_second) {
  if (hosts > kMaxVirtualHosts) {
    return absl::InvalidArgumentError(
        absl::StrCat(hosts, " hosts, expected at most ", kMaxVirtualHosts));
  }
  const double least = MinLinkBytes(hosts);
  if (!(bytes_per_second >= least)) {
    return absl::InvalidArgumentError(
        absl::StrCat("links of ", bytes_per_second, " bytes a second, expected at least ",
                     static_cast<int64_t>(least), " with ", hosts, hosts == 1 ? " host" : " hosts",
                     ": with less, processes that live would be taken for dead"));
  }
  if (bytes_per_second <= kMaxLinkBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("links of ", bytes_per_second,
                                                 " bytes a second, expected at most ",
                                                 static_cast<int64_t>(kMaxLinkBytes)));
}

}  // namespace

// Measured traffic to a scheduler: 1.8 kB a second from each of 8 processes, 2.5 kB from each of
// 24, half of them servers. Reports of servers have a line for each worker, so they grow with
// the job.
double MinLinkBytes(int hosts) {
  const double a_host = 2e3, a_pair = 25;
  return std::max(kMinLinkBytes, hosts * (a_host + a_pair * hosts));
}

std::string VirtualHosts::Address(int host) {
  return absl::StrCat("10.77.", host / kHostsAByte, ".", host % kHostsAByte + 1);
}

absl::StatusOr<VirtualHosts> VirtualHosts::Make(int hosts, double bytes_per_second) {
  TANDEM_RETURN_IF_ERROR(CheckSizes(hosts, bytes_per_second));
  for (const char* tool : {"ip", "tc"}) TANDEM_RETURN_IF_ERROR(FindTool(tool).status());
  VirtualHosts out;
  TANDEM_ASSIGN_OR_RETURN(out.switch_, NewNetwork());
  for (int host = 0; host < hosts; ++host) {
    TANDEM_ASSIGN_OR_RETURN(OwnedFd space, NewNetwork());
    out.spaces_.push_back(std::move(space));
  }
  TANDEM_RETURN_IF_ERROR(out.MakeSwitch());
  const std::string limit = LimitOf(bytes_per_second);
  std::vector<std::string> limits;
  for (int host = 0; host < hosts; ++host) {
    limits.push_back(absl::StrCat("qdisc add dev ", PortOf(host), " ", limit));
    TANDEM_RETURN_IF_ERROR(out.MakeHost(host, limit));
  }
  TANDEM_RETURN_IF_ERROR(Batch("tc", out.switch_.get(), limits));
  return out;
}

absl::Status VirtualHosts::Check(int hosts, double bytes_per_second) {
  TANDEM_RETURN_IF_ERROR(CheckSizes(hosts, bytes_per_second));
  return Make(1, bytes_per_second).status();
}

absl::Status VirtualHosts::MakeSwitch() const {
  std::vector<std::string> lines = {absl::StrCat("link add ", kSwitch, " type bridge"),
                                    absl::StrCat("link set ", kSwitch, " up")};
  const std::string mtu = absl::StrCat(" mtu ", kFrameBytes);
  for (int host = 0; host < hosts(); ++host) {
    const std::string port = PortOf(host);
    lines.push_back(absl::StrCat("link add ", port, mtu, " type veth peer name ", kDevice, mtu,
                                 " netns /proc/", getpid(), "/fd/", space(host)));
    lines.push_back(absl::StrCat("link set ", port, " master ", kSwitch, " up"));
  }
  return Batch("ip", switch_.get(), lines);
}

absl::Status VirtualHosts::MakeHost(int host, const std::string& limit) const {
  TANDEM_RETURN_IF_ERROR(
      Batch("ip", space(host),
            {"link set lo up", absl::StrCat("addr add ", Address(host), "/16 dev ", kDevice),
             absl::StrCat("link set ", kDevice, " up")}));
  return Batch("tc", space(host), {absl::StrCat("qdisc add dev ", kDevice, " ", limit)});
}

absl::StatusOr<std::vector<VirtualHosts::Traffic>> VirtualHosts::ReadTraffic() const {
  std::vector<std::string> lines;
  std::thread([this, &lines] {
    if (setns(switch_.get(), CLONE_NEWNET) != 0) return;
    std::ifstream devices("/proc/thread-self/net/dev");
    for (std::string line; std::getline(devices, line);) lines.push_back(line);
  }).join();
  if (lines.empty()) return absl::UnavailableError("the switch does not say what it has carried");
  std::vector<Traffic> all(spaces_.size());
  for (const std::string& line : lines) {
    // "port3: RECEIVED BYTES, 7 more, SENT BYTES, 7 more", as the switch sees it.
    const std::vector<absl::string_view> words =
        absl::StrSplit(line, absl::ByAnyChar(": "), absl::SkipEmpty());
    constexpr size_t kIn = 1, kOut = 9;
    int host = 0;
    Traffic traffic;
    if (words.size() <= kOut) continue;
    absl::string_view name = words[0];
    if (!absl::ConsumePrefix(&name, "port") || !absl::SimpleAtoi(name, &host)) continue;
    if (host < 0 || host >= hosts()) continue;
    if (!absl::SimpleAtoi(words[kIn], &traffic.sent)) continue;
    if (!absl::SimpleAtoi(words[kOut], &traffic.received)) continue;
    all[static_cast<size_t>(host)] = traffic;
  }
  return all;
}

}  // namespace tandem::cli
