// Who is in the job: registration, numbering, connections, and signs of life.
//
// A node is known by its incarnation (a random number of its process), not by its connection: it
// may come back on a new one, and a thread of it (its beats, its shards) may use another one. Nodes
// that ask for an index get it; the others are numbered, in order of registration, once all are
// there. Where workers hold rows of tables, each registers once more, as a server, whose index follows
// from its rank (proto/incarnation.h); messages call it by the worker's name. Pure state; what follows
// from a registration or a silence is the core's business. Memory: bounded by the size of the cluster;
// what a peer may choose is bounded in Register.
#ifndef TANDEM_SCHEDULER_MEMBERSHIP_H_
#define TANDEM_SCHEDULER_MEMBERSHIP_H_

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

inline constexpr size_t kMaxPeerTextBytes = 1024;  // of a text that a peer chose and we keep

// The text, cut to kMaxPeerTextBytes.
std::string Clip(absl::string_view text);

struct Node {
  Role role = Role::kNone;
  int index = -1;      // server index or rank; -1 until numbered
  int host_rank = -1;  // of a server that is a worker's: the rank of that, once numbered
  uint64_t incarnation = 0;
  std::vector<std::string> endpoints;
  std::string host;
  int64_t pid = 0;

  // Connections. `main` is where it registered and where everything is sent.
  bool connected = false;
  uint64_t main = 0;
  int others = 0;  // connections of its other threads
  absl::optional<absl::Time> lost_since;
  std::string lost_why;
  bool gone = false;  // it left, or was declared dead

  // Signs of life, and what the last beat said.
  absl::Time heard;
  uint64_t progress = 0;
  uint64_t step = 0;
  std::string activity;
  absl::Time moved_at;  // `progress` or `step` last changed
  absl::Time step_at;   // `step` last changed
  absl::optional<EndpointId> waits_for;
  absl::Time wait_started;  // if waits_for

  uint32_t acknowledged_view = 0;
  bool reported_failure = false;
  bool silence_reported = false;
  bool stall_reported = false;

  // "worker 1", "server 0"; "a worker (pid 7 on h)" before it is numbered. Of a server that is a
  // worker's, the worker's.
  std::string Name() const;
  // "computing step 7, step 7": what its last beat said.
  std::string Doing() const;
  void OnBeat(absl::Time now, const Beat& beat);
};

// "worker 0, worker 1 and 298 more".
std::string SomeOf(std::vector<std::string> names);

class Membership {
 public:
  explicit Membership(const job::JobPlan& plan);
  Membership(const Membership&) = delete;  // nodes are pointed at
  Membership& operator=(const Membership&) = delete;

  struct Registration {
    Node* node = nullptr;
    bool is_new = false;       // not seen before
    bool reconnected = false;  // known, on a new connection
  };
  // Admits, or says why not; a refusal changes nothing.
  absl::StatusOr<Registration> Register(absl::Time now, uint64_t connection,
                                        const tandem::Register& request);

  bool complete() const;
  // Gives every node its index. Requires: complete().
  void Number();

  // Names of the nodes that have not registered.
  std::vector<std::string> Missing() const;

  // The node a message comes from: by connection, or by incarnation, in which case the connection
  // is remembered as one of the node's others. Null for strangers.
  Node* Find(uint64_t connection, uint64_t incarnation);
  Node* ByConnection(uint64_t connection);

  // Nobody could be heard for this long: it counts against no one.
  void Forgive(absl::Duration pause);

  // Forgets a connection. Returns its node, or null.
  Node* Forget(uint64_t connection);

  // Null if not (yet) there.
  Node* server(int index) { return Numbered(Role::kServer, index); }
  Node* worker(int rank) { return Numbered(Role::kWorker, rank); }
  Node* ByEndpoint(const EndpointId& id) { return Numbered(id.role, id.index); }

  // In order of registration; after Number(): servers, then workers, by index.
  std::vector<Node>& nodes() { return nodes_; }
  const std::vector<Node>& nodes() const { return nodes_; }

  int servers() const { return servers_; }
  int workers() const { return workers_; }

 private:
  absl::Status Check(const tandem::Register& request) const;
  absl::Status CheckVacancy(Role role, const tandem::Register& request) const;
  // As many nodes as there may be of the kind that wants to register.
  int Places(Role role, uint64_t incarnation) const;
  void NumberServersOfWorkers();
  Node* Numbered(Role role, int index);
  void Attach(absl::Time now, uint64_t connection, Node* node);

  const int servers_;    // those of workers are among them,
  const int processes_;  // but not among these
  const int workers_, shards_per_server_;
  const uint64_t job_hash_;
  std::vector<Node> nodes_;             // reserved: pointers stay valid until Number()
  std::map<uint64_t, uint64_t> owner_;  // connection -> incarnation
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_MEMBERSHIP_H_
