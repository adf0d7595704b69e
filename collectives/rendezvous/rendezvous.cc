#include "collectives/rendezvous/rendezvous.h"

#include <unistd.h>

#include <array>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "proto/collectives.pb.h"

namespace tandem::collectives {
namespace {

std::string FirstLine(const char* path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

std::string LinkTarget(const char* path) {
  std::array<char, 128> target;
  const ssize_t n = readlink(path, target.data(), target.size());
  return n > 0 ? std::string(target.data(), static_cast<size_t>(n)) : "";
}

}  // namespace

std::unique_ptr<transport::Proof> NewProof(transport::Proof::Side side,
                                           const std::shared_ptr<const transport::JobKeys>& keys,
                                           absl::string_view place) {
  return keys == nullptr ? nullptr : std::make_unique<transport::Proof>(side, keys, place);
}

GroupMember MemberFrom(const rendezvous::Member& member) {
  return {member.host(),
          member.tcp_address(),
          member.unix_name(),
          member.about(),
          member.rdma_address(),
          member.zmq_address(),
          {member.device().begin(), member.device().end()}};
}

void WriteMember(const GroupMember& member, rendezvous::Member* out) {
  out->set_host(member.host);
  out->set_tcp_address(member.tcp_address);
  out->set_unix_name(member.unix_name);
  out->set_about(member.about);
  out->set_rdma_address(member.rdma_address);
  out->set_zmq_address(member.zmq_address);
  out->mutable_device()->Assign(member.devices.begin(), member.devices.end());
}

bool GroupMembership::SameHost(int a, int b) const {
  const std::string& host = members[static_cast<size_t>(a)].host;
  return !host.empty() && host == members[static_cast<size_t>(b)].host;
}

std::vector<int> GroupMembership::HostOfRank() const {
  std::vector<int> host(members.size(), -1);
  int hosts = 0;
  for (int r = 0; r < ranks(); ++r) {
    for (int earlier = 0; earlier < r && host[r] < 0; ++earlier) {
      if (SameHost(earlier, r)) host[r] = host[earlier];
    }
    if (host[r] < 0) host[r] = hosts++;
  }
  return host;
}

std::string HostIdentity() {
  const std::string boot = FirstLine("/proc/sys/kernel/random/boot_id");
  const std::string network = LinkTarget("/proc/self/ns/net");  // where abstract sockets live
  if (boot.empty() || network.empty()) return "";
  return absl::StrCat(boot, " ", network);
}

std::string AboutThisProcess() {
  std::array<char, 256> name = {};
  if (gethostname(name.data(), name.size() - 1) != 0) name[0] = '\0';
  return absl::StrCat(name[0] == '\0' ? "unnamed host" : name.data(), ", process ", getpid());
}

}  // namespace tandem::collectives
