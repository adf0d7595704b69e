// The transport of a role: which ways it offers and takes, as the job wants it.
//
//   AUTO  shared memory on one host, RDMA where both ends have a device, else ZeroMQ
//   ZMQ   ZeroMQ alone
//   SHM, RDMA   only that between servers and workers: where it does not work, nothing does
//
// The scheduler is reached by ZeroMQ in any case.
#ifndef TANDEM_NODE_TRANSPORT_CHOICE_H_
#define TANDEM_NODE_TRANSPORT_CHOICE_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "node/role_flags.h"
#include "proto/job.pb.h"
#include "transport/path_log.h"

namespace tandem::node {

// Makes endpoints of one process of such a cluster; `paths` learns how they reach others.
MakeTransport EndpointFactory(const RoleFlags& flags, const Cluster& cluster, uint64_t incarnation,
                              std::shared_ptr<transport::PathLog> paths);

// Refuses a job that forces a way that this host does not have: no device, one whose queues are too
// small for all of its peers, or no memory that processes can share. Makes an endpoint to find out. Says which field of the job forces it.
absl::Status CheckTransport(const Job& job);

// Refuses a job that forces a way that does not lead from one virtual host to another: shared memory ends
// with a host, and no host has an RDMA device. Says which field of the job forces it.
absl::Status CheckHostsApart(const Job& job);

// The most peers that an endpoint of a server or worker can have: all shards (ranges move between
// them) and all workers (evaluations are gathered).
int MostPeers(const Cluster& cluster);

}  // namespace tandem::node

#endif  // TANDEM_NODE_TRANSPORT_CHOICE_H_
