// Where a process takes links of collectives: a TCP port, a Unix socket for rings of shared memory,
// and where they are wanted an RDMA and a ZeroMQ endpoint.
//
// Thread safety: none.
#ifndef TANDEM_COLLECTIVES_MEETING_LINK_PORTS_H_
#define TANDEM_COLLECTIVES_MEETING_LINK_PORTS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/links/tcp_socket.h"
#include "collectives/links/transport_link.h"
#include "collectives/meeting/rendezvous.h"
#include "transport/unix_link.h"

namespace tandem::collectives {

// kAuto: shared memory on one host, RDMA where both ends have a device, else TCP. Of the others, a
// rank that cannot have the one it asks for has none.
enum class LinkChoice { kAuto, kTcp, kShm, kRdma, kZmq };

// "shared memory", "TCP", "RDMA", "ZeroMQ"; "any link".
absl::string_view NameOf(LinkChoice choice);
// By the name that flags and Link::kind() use: "shm", "tcp", "rdma", "zmq", "auto".
absl::StatusOr<LinkChoice> LinkChoiceOf(absl::string_view kind);

// Opened before the group meets, so that the others can be told; serves one group at a time, and
// its successors after a shrink.
class LinkPorts {
 public:
  // `host`: the address under which other ranks reach this one (LocalHostTowards in tcp_socket.h
  // finds it). RDMA is taken at its device, or at another one's that is active. UNAVAILABLE: RDMA
  // is a must, and there is none.
  static absl::StatusOr<LinkPorts> Open(absl::string_view host = "127.0.0.1",
                                        LinkChoice choice = LinkChoice::kAuto);

  // This process as a member: host, addresses, about; no GPU.
  GroupMember member() const;
  TcpListener& tcp() { return tcp_; }
  transport::UnixListener& local() { return local_; }
  // Null where there is none.
  TransportHub* rdma() { return rdma_.get(); }
  TransportHub* zmq() { return zmq_.get(); }
  // Why there is no RDMA.
  const absl::Status& rdma_missing() const { return rdma_missing_; }

 private:
  TcpListener tcp_;
  transport::UnixListener local_;
  std::string local_name_;
  std::shared_ptr<TransportHub> rdma_, zmq_;
  absl::Status rdma_missing_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MEETING_LINK_PORTS_H_
