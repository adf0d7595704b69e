#include "scheduler/membership.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::scheduler {
namespace {

constexpr size_t kMaxEndpointBytes = 512;
constexpr int kMaxOtherConnections = 64;  // a thread for beats and one a shard are expected

absl::string_view RoleName(Role role) { return role == Role::kServer ? "server" : "worker"; }

Role RoleOf(const Register& request) {
  return request.role() == Register::SERVER ? Role::kServer : Role::kWorker;
}

absl::Status Invalid(absl::string_view who, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("registration of ", who, ": ", what));
}

}  // namespace

std::string Clip(absl::string_view text) { return std::string(text.substr(0, kMaxPeerTextBytes)); }

std::string Node::Name() const {
  if (index >= 0) return absl::StrCat(RoleName(role), " ", index);
  return absl::StrCat("a ", RoleName(role), " (pid ", pid, " on ", host, ")");
}

std::string Node::Doing() const {
  return absl::StrCat(activity.empty() ? "no word of what it does" : activity, ", step ", step);
}

void Node::OnBeat(absl::Time now, const Beat& beat) {
  const bool stepped = beat.step() != step;
  if (stepped || beat.progress() != progress) moved_at = now;
  if (stepped) step_at = now;
  step = beat.step();
  progress = beat.progress();
  activity = Clip(beat.activity());
  const bool waits = beat.waits_for() != 0;
  if (waits && !waits_for.has_value()) wait_started = now;
  waits_for.reset();
  if (waits) waits_for = EndpointId::Unpack(beat.waits_for());
}

std::string SomeOf(std::vector<std::string> names) {
  constexpr size_t kMost = 8;
  const size_t more = names.size() > kMost ? names.size() - kMost : 0;
  names.resize(names.size() - more);
  const std::string some = absl::StrJoin(names, ", ");
  return more == 0 ? some : absl::StrCat(some, " and ", more, " more");
}

Membership::Membership(const job::JobPlan& plan)
    : servers_(plan.servers()),
      workers_(plan.workers()),
      shards_per_server_(plan.shards_per_server()),
      job_hash_(plan.hash) {
  nodes_.reserve(servers_ + workers_);
}

int Membership::Count(Role role) const {
  return static_cast<int>(std::count_if(nodes_.begin(), nodes_.end(),
                                        [&](const Node& node) { return node.role == role; }));
}

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
    return Invalid(who,
                   absl::StrCat(request.endpoint_size(), " endpoints, want ", wanted_endpoints));
  }
  for (const std::string& endpoint : request.endpoint()) {
    if (endpoint.empty() || endpoint.size() > kMaxEndpointBytes) {
      return Invalid(who, absl::StrCat("endpoint of ", endpoint.size(), " bytes, want 1 to ",
                                       kMaxEndpointBytes));
    }
  }
  const int count = role == Role::kServer ? servers_ : workers_;
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
  const int count = role == Role::kServer ? servers_ : workers_;
  if (Count(role) >= count) {
    return absl::ResourceExhaustedError(
        absl::StrCat("all ", count, " ", RoleName(role), "s are registered already"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Membership::Registration> Membership::Register(absl::Time now, uint64_t connection,
                                                              const tandem::Register& request) {
  TANDEM_RETURN_IF_ERROR(Check(request));
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
    TANDEM_RETURN_IF_ERROR(CheckVacancy(role, request));
    result.is_new = true;
    result.node = &nodes_.emplace_back();
    result.node->role = role;
    result.node->index = request.index();
    result.node->incarnation = request.incarnation();
    result.node->endpoints.assign(request.endpoint().begin(), request.endpoint().end());
    result.node->host = Clip(request.host());
    result.node->pid = request.pid();
    result.node->moved_at = result.node->step_at = now;
  }
  Attach(now, connection, result.node);
  return result;
}

void Membership::Attach(absl::Time now, uint64_t connection, Node* node) {
  if (node->connected && node->main != connection) owner_.erase(node->main);
  if (!(node->connected && node->main == connection) && owner_.count(connection) > 0) {
    --node->others;  // one of its others becomes the main one
  }
  owner_[connection] = node->incarnation;
  node->main = connection;
  node->connected = true;
  node->lost_since.reset();
  node->heard = now;
  node->silence_reported = false;
}

void Membership::Number() {
  TANDEM_CHECK(complete());
  for (const Role role : {Role::kServer, Role::kWorker}) {
    int next = 0;
    for (Node& node : nodes_) {
      if (node.role != role || node.index >= 0) continue;
      while (Numbered(role, next) != nullptr) ++next;
      node.index = next;
    }
  }
  std::sort(nodes_.begin(), nodes_.end(), [](const Node& a, const Node& b) {
    return std::pair(a.role, a.index) < std::pair(b.role, b.index);
  });
}

std::vector<std::string> Membership::Missing() const {
  std::vector<std::string> missing;
  for (const Role role : {Role::kServer, Role::kWorker}) {
    const int count = role == Role::kServer ? servers_ : workers_;
    int unnumbered =
        static_cast<int>(std::count_if(nodes_.begin(), nodes_.end(), [&](const Node& node) {
          return node.role == role && node.index < 0;
        }));
    for (int i = 0; i < count; ++i) {
      const bool taken = std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
        return node.role == role && node.index == i;
      });
      if (taken || unnumbered-- > 0) continue;
      missing.push_back(absl::StrCat(RoleName(role), " ", i));
    }
  }
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
