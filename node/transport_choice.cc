#include "node/transport_choice.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "rdma/rdma_transport.h"
#include "transport/multi_transport.h"
#include "transport/shm_transport.h"
#include "transport/zmq_transport.h"

namespace tandem::node {
namespace {

// When a role ends, everything that matters has been acknowledged, and its peers may have gone.
// Frames that still wait for them must not delay the end.
constexpr absl::Duration kRoleLinger = absl::Seconds(1);
// Checking ZeroMQ for events costs a system call.
constexpr absl::Duration kZmqEvery = absl::Microseconds(200);

// Programs that read rows (client/session.h) connect in addition to the peers of a job.
constexpr int kReaders = 64;

constexpr char kShmName[] = "shared memory", kRdmaName[] = "RDMA", kZmqName[] = "ZeroMQ";

transport::ZmqOptions ZmqOptionsOf(const RoleFlags& flags, uint64_t incarnation) {
  transport::ZmqOptions options;
  options.context = std::make_shared<transport::ZmqContext>(flags.io_threads);
  options.bind = flags.bind;
  options.advertised_host = flags.advertise;
  options.incarnation = incarnation;
  options.keys = flags.keys;
  options.encrypted = flags.encrypt_all;
  options.encrypted_peer = flags.scheduler;
  options.linger = kRoleLinger;
  options.silence_timeout = flags.silence.connection;
  options.heartbeat_interval = flags.silence.heartbeat;
  return options;
}

absl::StatusOr<transport::TransportWay> ShmWay() {
  transport::ShmOptions options;
  options.connect_retry = absl::ZeroDuration();  // only a listening endpoint gives out its address
  TANDEM_ASSIGN_OR_RETURN(auto transport, transport::NewShmTransport(options));
  return transport::TransportWay{kShmName, {"shm:"}, std::move(transport)};
}

absl::StatusOr<transport::TransportWay> RdmaWay(std::shared_ptr<rdma::RdmaContext> context,
                                                int max_peers) {
  rdma::RdmaOptions options;
  options.min_peers = max_peers;
  options.max_peers = max_peers + kReaders;
  options.context = std::move(context);
  options.linger = kRoleLinger;
  TANDEM_ASSIGN_OR_RETURN(auto transport, rdma::NewRdmaTransport(options));
  return transport::TransportWay{kRdmaName, {"rdma://"}, std::move(transport)};
}

absl::StatusOr<transport::TransportWay> ZmqWay(const transport::ZmqOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(auto transport, transport::NewZmqTransport(options));
  return transport::TransportWay{kZmqName, {"tcp://", "ipc://"}, std::move(transport), kZmqEvery};
}

// State that all endpoints of a process share.
struct Shared {
  Cluster::Transport wanted;
  int max_peers = 1;
  transport::ZmqOptions zmq;
  absl::StatusOr<std::shared_ptr<rdma::RdmaContext>> rdma = absl::UnavailableError("not wanted");
  std::shared_ptr<transport::PathLog> paths;
};

absl::StatusOr<std::unique_ptr<transport::Transport>> NewEndpoint(const Shared& shared,
                                                                  EndpointId self) {
  transport::ZmqOptions zmq = shared.zmq;
  zmq.self = self;
  if (shared.wanted == Cluster::ZMQ) return transport::NewZmqTransport(zmq);
  const bool automatic = shared.wanted != Cluster::SHM && shared.wanted != Cluster::RDMA;
  transport::MultiOptions options;
  options.on_path = [paths = shared.paths](const transport::PathChoice& choice) {
    paths->Add(choice);
  };
  if (shared.wanted == Cluster::SHM || automatic) {
    absl::StatusOr<transport::TransportWay> way = ShmWay();
    if (!way.ok() && !automatic) return way.status();
    if (way.ok()) {
      options.ways.push_back(*std::move(way));
    } else {
      options.missing.push_back(absl::StrCat("no ", kShmName, ": ", way.status().message()));
    }
    if (!automatic) options.forced = kShmName;
  }
  if (shared.wanted == Cluster::RDMA) {
    TANDEM_RETURN_IF_ERROR(shared.rdma.status());
    options.forced = kRdmaName;
  }
  if (shared.rdma.ok()) {
    absl::StatusOr<transport::TransportWay> way = RdmaWay(*shared.rdma, shared.max_peers);
    if (!way.ok() && !automatic) return way.status();
    if (way.ok()) options.ways.push_back(*std::move(way));
  }
  TANDEM_ASSIGN_OR_RETURN(transport::TransportWay network, ZmqWay(zmq));
  options.ways.push_back(std::move(network));
  return transport::NewMultiTransport(std::move(options));
}

}  // namespace

int MaxPeers(const Cluster& cluster) {
  return std::max(1, cluster.servers() * cluster.shards_per_server() + cluster.workers());
}

namespace {

// The cluster in which workers that hold rows count as servers, too.
Cluster Serving(const Job& job) {
  Cluster cluster = job.cluster();
  const bool serve = std::any_of(job.table().begin(), job.table().end(), [](const Table& table) {
    return table.placement() > Table::SERVERS;
  });
  if (serve) cluster.set_servers(cluster.servers() + cluster.workers());
  return cluster;
}

}  // namespace

absl::Status CheckTransport(const Job& job) {
  const Cluster& cluster = job.cluster();
  if (cluster.transport() == Cluster::SHM) {
    const absl::Status made = ShmWay().status();
    if (made.ok()) return made;
    return absl::Status(made.code(), absl::StrCat("cluster.transport: SHM: ", made.message(),
                                                  "; hint: AUTO uses another transport"));
  }
  const bool wanted = cluster.transport() == Cluster::RDMA;
  if (!wanted && job.dense().link() == Dense::RDMA && cluster.workers() > 1) {
    const absl::Status made = rdma::RdmaContext::New().status();
    if (made.ok()) return made;
    return absl::Status(made.code(), absl::StrCat("dense.link: RDMA: ", made.message()));
  }
  if (!wanted) return absl::OkStatus();
  absl::StatusOr<std::shared_ptr<rdma::RdmaContext>> context = rdma::RdmaContext::New();
  const absl::Status made = context.ok()
                                ? RdmaWay(*std::move(context), MaxPeers(Serving(job))).status()
                                : context.status();
  if (made.ok()) return made;
  return absl::Status(made.code(), absl::StrCat("cluster.transport: RDMA: ", made.message()));
}

absl::Status CheckHostsApart(const Job& job) {
  const auto refused = [](absl::string_view field, const std::string& way,
                          absl::string_view expected) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", way,
                     ", but each process is on a host of its own, and only a network connects "
                     "them; expected ",
                     expected));
  };
  const Cluster::Transport transport = job.cluster().transport();
  if (transport == Cluster::SHM || transport == Cluster::RDMA) {
    return refused("cluster.transport", Cluster::Transport_Name(transport), "AUTO or ZMQ");
  }
  const Dense::Link link = job.dense().link();
  if (job.cluster().workers() > 1 && (link == Dense::SHM || link == Dense::RDMA)) {
    return refused("dense.link", Dense::Link_Name(link), "ANY, TCP or ZMQ");
  }
  return absl::OkStatus();
}

MakeTransport EndpointFactory(const RoleFlags& flags, const Cluster& cluster, uint64_t incarnation,
                              std::shared_ptr<transport::PathLog> paths) {
  const Cluster::Transport wanted = cluster.transport();
  auto shared = std::make_shared<Shared>();
  shared->wanted = wanted;
  shared->max_peers = MaxPeers(cluster);
  shared->zmq = ZmqOptionsOf(flags, incarnation);
  shared->paths = std::move(paths);
  const bool encrypts = flags.keys != nullptr && flags.encrypt_all;  // RDMA cannot be encrypted
  if (wanted != Cluster::ZMQ && wanted != Cluster::SHM && !encrypts) {
    shared->rdma = rdma::RdmaContext::New();
  }
  return [shared](EndpointId self) { return NewEndpoint(*shared, self); };
}

}  // namespace tandem::node
