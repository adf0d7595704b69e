// LinkPorts: the ports where a process accepts links of collectives: a TCP port, a Unix socket for
// shared memory, and, if the caller asks for them, an RDMA and a ZeroMQ endpoint.
//
// Thread safety: none.
#ifndef TANDEM_COLLECTIVES_RENDEZVOUS_LINK_PORTS_H_
#define TANDEM_COLLECTIVES_RENDEZVOUS_LINK_PORTS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/links/tcp_socket.h"
#include "collectives/links/transport_link.h"
#include "collectives/rendezvous/rendezvous.h"
#include "transport/unix_link.h"

namespace tandem::collectives {

// kAuto takes shared memory on one host, RDMA if both ends have a device, else TCP. If links are
// encrypted, it takes shared memory on one host, else ZeroMQ. Any other choice is binding: if a
// rank cannot use it, it gets no link.
enum class LinkChoice { kAuto, kTcp, kShm, kRdma, kZmq };

// "shared memory", "TCP", "RDMA", "ZeroMQ"; kAuto: "any link".
absl::string_view NameOf(LinkChoice choice);
// Parses the names of flags and Link::kind(): "shm", "tcp", "rdma", "zmq", "auto".
absl::StatusOr<LinkChoice> LinkChoiceOf(absl::string_view kind);

// Open the ports before the rendezvous, so that their addresses can be exchanged there. One set of
// ports serves one group.
class LinkPorts {
 public:
  // `host` is the address at which other ranks reach this one (LocalHostTowards in tcp_socket.h
  // finds it). RDMA uses the device that has this address, else any active device. UNAVAILABLE:
  // `choice` is kRdma and there is no RDMA. INVALID_ARGUMENT: links are encrypted, and those of
  // `choice` cannot be.
  static absl::StatusOr<LinkPorts> Open(absl::string_view host = "127.0.0.1",
                                        LinkChoice choice = LinkChoice::kAuto,
                                        const GroupSecurity& security = {});

  // This process as a member: host, addresses and `about`; no GPU.
  GroupMember member() const;
  TcpListener& tcp() { return tcp_; }
  transport::UnixListener& local() { return local_; }
  // Null if there is none.
  TransportHub* rdma() { return rdma_.get(); }
  TransportHub* zmq() { return zmq_.get(); }
  const GroupSecurity& security() const { return security_; }
  // Why there is no RDMA.
  const absl::Status& rdma_missing() const { return rdma_missing_; }

 private:
  TcpListener tcp_;
  transport::UnixListener local_;
  std::string local_name_;
  std::shared_ptr<TransportHub> rdma_, zmq_;
  GroupSecurity security_;
  absl::Status rdma_missing_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RENDEZVOUS_LINK_PORTS_H_
