// Chooses the transports of a role, as the job's cluster.transport says:
//
//   AUTO       shared memory on one host; RDMA if both ends have a device; otherwise ZeroMQ
//   ZMQ        only ZeroMQ
//   SHM, RDMA  only this one between servers and workers; without it connections fail
//
// ZeroMQ always connects the scheduler.
#ifndef TANDEM_NODE_TRANSPORT_CHOICE_H_
#define TANDEM_NODE_TRANSPORT_CHOICE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "node/role_flags.h"
#include "proto/job.pb.h"
#include "transport/path_log.h"

namespace tandem::node {

// Makes endpoints of one process of such a cluster. `paths` records how they reach others.
MakeTransport EndpointFactory(const RoleFlags& flags, const Cluster& cluster, uint64_t incarnation,
                              std::shared_ptr<transport::PathLog> paths);

// Refuses a job that requires a transport that this host lacks: no RDMA device, a device whose
// queues are too small for all its peers, or no memory that processes can share. Makes an endpoint
// to find out. The error names the job's field.
absl::Status CheckTransport(const Job& job);

// Refuses a job that requires a transport that does not connect virtual hosts: shared memory ends
// at a host, and virtual hosts have no RDMA device. The error names the job's field.
absl::Status CheckHostsApart(const Job& job);

// The largest number of peers that an endpoint of a server or worker can have: all shards (because
// ranges move between them) and all workers (because evaluations are gathered).
int MaxPeers(const Cluster& cluster);

}  // namespace tandem::node

#endif  // TANDEM_NODE_TRANSPORT_CHOICE_H_
