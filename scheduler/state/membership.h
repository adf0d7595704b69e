// The members of the job: registration, numbering, connections, and the last heartbeat of each.
//
// A node is identified by its incarnation (a random number of its process), not by its connection.
// It may come back on a new connection, and its threads (heartbeats, shards) may use others. A node
// that asks for an index gets it. The others are numbered in order of registration once all nodes
// have registered. A worker that holds rows of tables registers a second time, as a server whose
// index follows from its rank (proto/incarnation.h). Messages call that server by the worker's
// name.
//
// The place of a worker that has died may become vacant (Vacate). A new process that asks for its
// rank then gets the place, and the dead process never comes back.
//
// This class is pure state; the core and its watches act on registrations and silence. Memory:
// bounded by the size of the cluster. Register bounds everything that a peer may choose.
#ifndef TANDEM_SCHEDULER_STATE_MEMBERSHIP_H_
#define TANDEM_SCHEDULER_STATE_MEMBERSHIP_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "job/job.h"
#include "proto/endpoint.h"
#include "proto/wire.pb.h"

namespace tandem::scheduler {

inline constexpr size_t kMaxPeerTextBytes = 1024;  // longest text of a peer that is kept

// The text, cut to kMaxPeerTextBytes (base/clip_text.h).
std::string Clip(absl::string_view text);

struct Node {
  Role role = Role::kNone;
  int index = -1;      // server index or rank; -1 until numbered
  int host_rank = -1;  // for a worker's server: rank of the worker, once numbered
  uint64_t incarnation = 0;
  std::vector<std::string> endpoints;
  std::string host;
  int64_t pid = 0;
  int64_t driver = 0;  // pid of the program that started it

  // Connections. The node has registered on `main`, and everything is sent there.
  bool connected = false;  // `main` is open
  uint64_t main = 0;
  int others = 0;  // connections of its other threads
  absl::optional<absl::Time> lost_since;
  std::string lost_why;
  bool gone = false;    // the node has left, or was declared dead
  bool vacant = false;  // the node is dead, and another process may take its place

  // Liveness, and the contents of the last heartbeat.
  absl::Time heard;  // time of the last message
  uint64_t progress = 0;
  uint64_t step = 0;
  std::string activity;
  absl::Time moved_at;  // `progress` or `step` last changed
  absl::Time step_at;   // `step` last changed
  absl::optional<EndpointId> waits_for;
  absl::Time wait_started;  // if waits_for
  // Memory of the process and of its host, in bytes; 0: unknown.
  uint64_t resident_bytes = 0, host_memory_bytes = 0, host_available_bytes = 0;

  uint32_t acknowledged_view = 0;
  bool reported_failure = false;
  bool silence_reported = false;
  bool stall_reported = false;

  // "worker 1", "server 0"; "a worker (pid 7 on h)" before it is numbered. A worker's server has
  // the worker's name.
  std::string Name() const;
  // The activity and step of the last heartbeat: "computing step 7, step 7".
  std::string Doing() const;
  Member AsMember() const;  // for views
  void OnBeat(absl::Time now, const Beat& beat);
};

// Joins some of the names: "worker 0, worker 1 and 298 more".
std::string SomeOf(std::vector<std::string> names);

class Membership {
 public:
  explicit Membership(const job::ResolvedJob& plan);
  Membership(const Membership&) = delete;  // others hold pointers to nodes
  Membership& operator=(const Membership&) = delete;

  struct Registration {
    Node* node = nullptr;
    bool is_new = false;       // the node was not known before
    bool reconnected = false;  // the node was known and is on a new connection
  };
  // Admits the node, or returns the reason of a refusal. A refusal changes nothing.
  absl::StatusOr<Registration> Register(absl::Time now, uint64_t connection,
                                        const tandem::Register& request);

  // A worker has died: another process may take its place. Forgets its connections.
  void Vacate(Node* worker);
  // Whether the process with this incarnation counts as dead because of Vacate. Such a process may
  // live, and is refused.
  bool IsFenced(uint64_t incarnation) const {
    return std::count(fenced_.begin(), fenced_.end(), incarnation) > 0;
  }

  bool complete() const;
  // Gives every node its index. Requires: complete().
  void Number();

  // Names of the nodes that have not registered.
  std::vector<std::string> Missing() const;

  // The node that a message comes from. Looks for the connection first, then for the incarnation;
  // then the connection becomes one of the node's others. Null for strangers.
  Node* Find(uint64_t connection, uint64_t incarnation);
  Node* ByConnection(uint64_t connection);

  // The scheduler was paused for this long and could not receive messages. The pause does not count
  // as silence of the nodes.
  void Forgive(absl::Duration pause);

  // Forgets a connection. Returns its node, or null.
  Node* Forget(uint64_t connection);

  // Null if the node has not registered, or is not numbered yet.
  Node* server(int index) { return Numbered(Role::kServer, index); }
  Node* worker(int rank) { return Numbered(Role::kWorker, rank); }
  Node* ByEndpoint(const EndpointId& id) { return Numbered(id.role, id.index); }

  // All nodes in order of registration; after Number(), servers, then workers, by index.
  std::vector<Node>& nodes() { return nodes_; }
  const std::vector<Node>& nodes() const { return nodes_; }

  int servers() const { return servers_; }
  int workers() const { return workers_; }

 private:
  absl::Status Check(const tandem::Register& request) const;
  absl::Status CheckVacancy(Role role, const tandem::Register& request) const;
  Node* VacantNode(Role role, const tandem::Register& request);
  // How many nodes of this kind the job has. The kinds are workers, server processes, and workers'
  // servers.
  int NodesInJob(Role role, uint64_t incarnation) const;
  void NumberServersOfWorkers();
  Node* Numbered(Role role, int index);
  void Attach(absl::Time now, uint64_t connection, Node* node);

  const int servers_;    // with the servers of workers
  const int processes_;  // without them
  const int workers_, shards_per_server_;
  const uint64_t job_hash_;
  std::vector<Node> nodes_;             // reserved: pointers stay valid until Number()
  std::map<uint64_t, uint64_t> owner_;  // connection -> incarnation
  std::vector<uint64_t> fenced_;        // incarnations
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_STATE_MEMBERSHIP_H_
