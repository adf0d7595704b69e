#include "scheduler/state/membership.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/clip_text.h"
#include "base/status_macros.h"
#include "proto/incarnation.h"

namespace tandem::scheduler {
namespace {

constexpr size_t kMaxEndpointBytes = 512;
constexpr int kMaxOtherConnections = 64;  // expected: one for heartbeats and one a shard

absl::string_view RoleName(Role role) { return role == Role::kServer ? "server" : "worker"; }

Role RoleOf(const Register& request) {
  return request.role() == Register::SERVER ? Role::kServer : Role::kWorker;
}

absl::Status Invalid(absl::string_view who, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("registration of ", who, ": ", what));
}

}  // namespace

std::string Clip(absl::string_view text) { return std::string(ClipText(text, kMaxPeerTextBytes)); }

std::string Node::Name() const {
  if (host_rank >= 0) return absl::StrCat("worker ", host_rank);
  if (index < 0 && IsServerOfWorker(incarnation)) {
    return absl::StrCat("tables on a worker (pid ", pid, " on ", host, ")");
  }
  if (index >= 0) return absl::StrCat(RoleName(role), " ", index);
  return absl::StrCat("a ", RoleName(role), " (pid ", pid, " on ", host, ")");
}

std::string Node::Doing() const {
  return absl::StrCat(activity.empty() ? "unknown activity" : activity, ", step ", step);
}

Member Node::AsMember() const {
  Member member;
  member.set_incarnation(incarnation);
  for (const std::string& endpoint : endpoints) member.add_endpoint(endpoint);
  member.set_host(host);
  member.set_pid(pid);
  return member;
}

void Node::OnBeat(absl::Time now, const Beat& beat) {
  const bool stepped = beat.step() != step;
  if (stepped || beat.progress() != progress) moved_at = now;
  if (stepped) step_at = now;
  step = beat.step();
  progress = beat.progress();
  activity = Clip(beat.activity());
  resident_bytes = beat.resident_bytes();
  host_memory_bytes = beat.host_memory_bytes();
  host_available_bytes = beat.host_available_bytes();
  const bool waits = beat.waits_for() != 0;
  if (waits && !waits_for.has_value()) wait_started = now;
  waits_for.reset();
  if (waits) waits_for = EndpointId::Unpack(beat.waits_for());
}

std::string SomeOf(std::vector<std::string> names) {
  constexpr size_t kMax = 8;
  const size_t more = names.size() > kMax ? names.size() - kMax : 0;
  names.resize(names.size() - more);
  const std::string some = absl::StrJoin(names, ", ");
  return more == 0 ? some : absl::StrCat(some, " and ", more, " more");
}

Membership::Membership(const job::ResolvedJob& plan)
    : servers_(plan.servers()),
      processes_(plan.server_processes()),
      workers_(plan.workers()),
      shards_per_server_(plan.shards_per_server()),
      job_hash_(plan.hash) {
  nodes_.reserve(servers_ + workers_);
}

int Membership::NodesInJob(Role role, uint64_t incarnation) const {
  if (role != Role::kServer) return workers_;
  return IsServerOfWorker(incarnation) ? servers_ - processes_ : processes_;
}

// The order of the checks: the role says what the other fields must be. The job hash comes next,
// since a node with another job would otherwise be told of a consequence (a wrong index, say) and
// not of the cause.
absl::Status Membership::Check(const tandem::Register& request) const {
  if (request.role() != Register::SERVER && request.role() != Register::WORKER) {
    return Invalid("a node", absl::StrCat("role ", static_cast<int>(request.role()),
                                          " is neither server nor worker"));
  }
  const Role role = RoleOf(request);
  const int wanted_endpoints = role == Role::kServer ? shards_per_server_ : 1;
  const std::string who = absl::StrCat("a ", RoleName(role));
  if (request.job_hash() != job_hash_) {
    return Invalid(who, absl::StrFormat("job hash %#x, this job's is %#x: the job files differ",
                                        request.job_hash(), job_hash_));
  }
  if (request.incarnation() == 0) return Invalid(who, "incarnation 0");
  if (request.endpoint_size() != wanted_endpoints) {
    return Invalid(
        who, absl::StrCat(request.endpoint_size(), " endpoints, expected ", wanted_endpoints));
  }
  for (const std::string& endpoint : request.endpoint()) {
    if (endpoint.empty() || endpoint.size() > kMaxEndpointBytes) {
      return Invalid(who, absl::StrCat("endpoint of ", endpoint.size(), " bytes, expected 1 to ",
                                       kMaxEndpointBytes));
    }
  }
  const int count = NodesInJob(role, request.incarnation());
  if (request.index() < -1 || request.index() >= count) {
    return Invalid(who, absl::StrCat("index ", request.index(), ", the job has ", count, " ",
                                     RoleName(role), "s, counted from 0"));
  }
  return absl::OkStatus();
}

absl::Status Membership::CheckVacancy(Role role, const tandem::Register& request) const {
  for (const Node& node : nodes_) {
    if (node.role != role || request.index() < 0 || node.index != request.index()) continue;
    return absl::AlreadyExistsError(absl::StrCat(node.Name(), " is registered already (pid ",
                                                 node.pid, " on ", node.host, ")"));
  }
  const int count = NodesInJob(role, request.incarnation());
  const bool of_worker = IsServerOfWorker(request.incarnation());
  const auto there = std::count_if(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return node.role == role && IsServerOfWorker(node.incarnation) == of_worker;
  });
  if (there >= count) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", count, " ", RoleName(role), "s are registered already"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Membership::Registration> Membership::Register(absl::Time now, uint64_t connection,
                                                              const tandem::Register& request) {
  TANDEM_RETURN_IF_ERROR(Check(request));
  if (IsFenced(request.incarnation())) {
    return absl::AlreadyExistsError("another process has taken the place of this one");
  }
  const Role role = RoleOf(request);
  Registration result;
  for (Node& node : nodes_) {
    if (node.incarnation == request.incarnation()) result.node = &node;
  }
  if (result.node != nullptr) {
    if (result.node->role != role || result.node->gone) {
      return absl::AlreadyExistsError(
          absl::StrCat("incarnation of ", result.node->Name(),
                       result.node->gone ? ", which has left the job" : ""));
    }
    result.reconnected = !result.node->connected || result.node->main != connection;
  } else {
    if (ByConnection(connection) != nullptr) {
      return absl::AlreadyExistsError(
          absl::StrCat("this connection belongs to ", ByConnection(connection)->Name()));
    }
    Node* const vacant = VacantNode(role, request);
    if (vacant == nullptr) TANDEM_RETURN_IF_ERROR(CheckVacancy(role, request));
    result.is_new = true;
    result.node = vacant != nullptr ? vacant : &nodes_.emplace_back();
    *result.node = Node();
    result.node->role = role;
    result.node->index = request.index();
    result.node->incarnation = request.incarnation();
    result.node->endpoints.assign(request.endpoint().begin(), request.endpoint().end());
    result.node->host = Clip(request.host());
    result.node->pid = request.pid();
    result.node->driver = request.driver();
    result.node->moved_at = result.node->step_at = now;
  }
  Attach(now, connection, result.node);
  return result;
}

void Membership::Vacate(Node* worker) {
  for (auto it = owner_.begin(); it != owner_.end();) {
    it = it->second == worker->incarnation ? owner_.erase(it) : std::next(it);
  }
  fenced_.push_back(worker->incarnation);
  worker->connected = false;
  worker->others = 0;
  worker->gone = worker->vacant = true;
}

// The dead node that a new process may replace; null: none. Only a process that asks for the rank
// gets it.
Node* Membership::VacantNode(Role role, const tandem::Register& request) {
  Node* const node = Numbered(role, request.index());
  return node != nullptr && node->vacant ? node : nullptr;
}

void Membership::Attach(absl::Time now, uint64_t connection, Node* node) {
  if (node->connected && node->main != connection) owner_.erase(node->main);
  if (!(node->connected && node->main == connection) && owner_.count(connection) > 0) {
    --node->others;  // one of the node's other connections becomes the main one
  }
  owner_[connection] = node->incarnation;
  node->main = connection;
  node->connected = true;
  node->lost_since.reset();
  node->heard = now;
  node->silence_reported = false;
}

// A worker's server counts only together with its worker, because its index follows from the
// worker's rank.
bool Membership::complete() const {
  if (nodes_.size() != static_cast<size_t>(servers_ + workers_)) return false;
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    if (!IsServerOfWorker(node.incarnation)) return true;
    const uint64_t worker = WorkerOfServer(node.incarnation);
    return std::any_of(nodes_.begin(), nodes_.end(), [worker](const Node& other) {
      return other.role == Role::kWorker && other.incarnation == worker;
    });
  });
}

// Nodes that have asked for an index have it already. The others get the free ones. The servers of
// workers come after that, because their indexes follow from the ranks. Sorting is last, because it
// moves nodes and makes pointers to them invalid.
void Membership::Number() {
  TANDEM_CHECK(complete());
  const auto wants_one = [](const Node& node) {
    return node.index < 0 && !IsServerOfWorker(node.incarnation);
  };
  for (const Role role : {Role::kServer, Role::kWorker}) {
    int next = 0;
    for (Node& node : nodes_) {
      if (node.role != role || !wants_one(node)) continue;
      while (Numbered(role, next) != nullptr) ++next;
      node.index = next;
    }
  }
  NumberServersOfWorkers();
  std::sort(nodes_.begin(), nodes_.end(), [](const Node& a, const Node& b) {
    return std::pair(a.role, a.index) < std::pair(b.role, b.index);
  });
}

void Membership::NumberServersOfWorkers() {
  for (Node& node : nodes_) {
    if (!IsServerOfWorker(node.incarnation)) continue;
    for (const Node& worker : nodes_) {
      if (worker.incarnation == WorkerOfServer(node.incarnation)) node.host_rank = worker.index;
    }
    TANDEM_CHECK(node.host_rank >= 0);
    node.index = processes_ + node.host_rank;
  }
}

std::vector<std::string> Membership::Missing() const {
  std::vector<std::string> missing;
  for (const Role role : {Role::kServer, Role::kWorker}) {
    const int count = NodesInJob(role, /*incarnation=*/0);
    int unnumbered =
        static_cast<int>(std::count_if(nodes_.begin(), nodes_.end(), [&](const Node& node) {
          return node.role == role && node.index < 0 && !IsServerOfWorker(node.incarnation);
        }));
    for (int i = 0; i < count; ++i) {
      const bool taken = std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
        return node.role == role && node.index == i;
      });
      if (taken || unnumbered-- > 0) continue;
      missing.push_back(absl::StrCat(RoleName(role), " ", i));
    }
  }
  if (missing.empty() && !complete()) missing.push_back("tables on workers");
  return missing;
}

Node* Membership::ByConnection(uint64_t connection) {
  const auto it = owner_.find(connection);
  if (it == owner_.end()) return nullptr;
  for (Node& node : nodes_) {
    if (node.incarnation == it->second) return &node;
  }
  return nullptr;
}

Node* Membership::Find(uint64_t connection, uint64_t incarnation) {
  if (Node* node = ByConnection(connection); node != nullptr) return node;
  if (incarnation == 0) return nullptr;
  for (Node& node : nodes_) {
    if (node.incarnation != incarnation || node.gone) continue;
    if (node.others >= kMaxOtherConnections) return nullptr;
    owner_[connection] = incarnation;
    ++node.others;
    return &node;
  }
  return nullptr;
}

void Membership::Forgive(absl::Duration pause) {
  for (Node& node : nodes_) {
    node.heard += pause;
    node.moved_at += pause;
    node.step_at += pause;
    node.wait_started += pause;
    if (node.lost_since.has_value()) *node.lost_since += pause;
  }
}

Node* Membership::Forget(uint64_t connection) {
  Node* const node = ByConnection(connection);
  owner_.erase(connection);
  if (node == nullptr) return nullptr;
  if (node->connected && node->main == connection) {
    node->connected = false;
  } else {
    --node->others;
  }
  return node;
}

Node* Membership::Numbered(Role role, int index) {
  for (Node& node : nodes_) {
    if (node.role == role && node.index == index && index >= 0) return &node;
  }
  return nullptr;
}

}  // namespace tandem::scheduler
