// Links over transports for tests, both ends in this process: an endpoint for each rank, as ranks
// of a group have them, and any two of them joined.
#ifndef TANDEM_TESTS_UNIT_TRANSPORT_TRANSPORT_LINKS_H_
#define TANDEM_TESTS_UNIT_TRANSPORT_TRANSPORT_LINKS_H_

#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/check.h"
#include "collectives/rendezvous/link_ports.h"

namespace tandem {

inline constexpr uint64_t kLinksIncarnation = 7;

// Why links of this kind cannot be made here; empty if they can.
inline std::string Missing(collectives::LinkChoice choice) {
  const auto ports = collectives::LinkPorts::Open("127.0.0.1", choice);
  return ports.ok() ? "" : std::string(ports.status().message());
}

inline collectives::TransportHub& HubOf(collectives::LinkPorts& ports,
                                        collectives::LinkChoice choice) {
  return *(choice == collectives::LinkChoice::kRdma ? ports.rdma() : ports.zmq());
}

using TransportEnds = std::pair<std::unique_ptr<collectives::TransportLink>,
                                std::unique_ptr<collectives::TransportLink>>;

inline TransportEnds JoinHubs(collectives::TransportHub& a, collectives::TransportHub& b) {
  TransportEnds ends;
  auto connected = b.Connect(a.address(), kLinksIncarnation, "hello");
  TANDEM_CHECK_OK(connected.status());
  ends.second = *std::move(connected);
  while (!ends.second->answer().has_value()) {
    TANDEM_CHECK_OK(ends.second->failure());
    (void)a.Poll();
    if (const auto newcomer = a.NextNewcomer()) {
      TANDEM_CHECK(newcomer->greeting == "hello" && ends.first == nullptr);
      ends.first = a.Admit(*newcomer, kLinksIncarnation, "welcome");
    }
    (void)b.Poll();
    std::this_thread::yield();
  }
  TANDEM_CHECK(*ends.second->answer() == "welcome");
  return ends;
}

// All pairs of some ranks, one after the other: (0, 1), (0, 2), ..., (1, 2), ... TANDEM_RDMA_HOSTS:
// addresses with an RDMA device each, between which ranks alternate ("10.9.0.1,10.9.0.2").
class TransportMesh {
 public:
  TransportMesh(collectives::LinkChoice choice, int ranks) : choice_(choice) {
    const char* const hosts_here =
        choice == collectives::LinkChoice::kRdma ? std::getenv("TANDEM_RDMA_HOSTS") : nullptr;
    const std::vector<std::string> hosts =
        absl::StrSplit(hosts_here == nullptr ? "127.0.0.1" : hosts_here, ',');
    for (size_t r = 0; r < static_cast<size_t>(ranks); ++r) {
      auto ports = collectives::LinkPorts::Open(hosts[r % hosts.size()], choice);
      TANDEM_CHECK_OK(ports.status());
      ports_.push_back(*std::move(ports));
    }
  }
  TransportEnds Next() {
    if (++b_ == ports_.size()) b_ = ++a_ + 1;
    return JoinHubs(hub(a_), hub(b_));
  }
  collectives::TransportHub& hub(size_t rank) { return HubOf(ports_[rank], choice_); }

 private:
  const collectives::LinkChoice choice_;
  std::vector<collectives::LinkPorts> ports_;
  size_t a_ = 0, b_ = 0;
};

// Why a child that this process forks now cannot have links of this kind: a device that this
// process has used is of no use to its children. Costs a second or two over RDMA; otherwise
// nothing.
inline std::string MissingInChildren(collectives::LinkChoice choice) {
  if (choice != collectives::LinkChoice::kRdma) return "";
  const pid_t child = fork();
  TANDEM_CHECK(child >= 0);
  if (child == 0) {
    alarm(60);
    if (!Missing(choice).empty()) _exit(1);
    (void)TransportMesh(choice, 2).Next();
    _exit(0);
  }
  int status = 0;
  TANDEM_CHECK(waitpid(child, &status, 0) == child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return "";
  return "children of this process have no RDMA device, or it has used one itself";
}

}  // namespace tandem

#endif  // TANDEM_TESTS_UNIT_TRANSPORT_TRANSPORT_LINKS_H_
