#include "collectives/legacy/schedule.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem {
inline namespace legacy {
namespace {

absl::string_view OpVerb(OpKind kind) {
  switch (kind) {
    case OpKind::kSend:
      return "send";
    case OpKind::kReceive:
      return "receive";
    case OpKind::kReduce:
      return "reduce";
    case OpKind::kSetAside:
      return "set aside";
    case OpKind::kAddAside:
      return "add aside";
  }
  return "?";
}

absl::Status ValidateOp(const Schedule& s, const Op& op) {
  // Written so that no sum can overflow.
  const bool inside = op.piece.begin >= 0 && op.piece.count >= 0 && op.piece.count <= s.count &&
                      op.piece.begin <= s.count - op.piece.count;
  if (!inside) {
    return absl::InvalidArgumentError(
        absl::StrCat("piece ", op.piece.DebugString(), " of a vector of ", s.count));
  }
  const bool has_peer = op.kind == OpKind::kSend || op.FromPeer();
  if (has_peer && (op.peer < 0 || op.peer >= s.ranks || op.peer == s.rank)) {
    return absl::InvalidArgumentError(absl::StrCat("peer ", op.peer, " among ", s.ranks, " ranks"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string Piece::DebugString() const { return absl::StrCat("[", begin, ", ", end(), ")"); }

Piece Blocks::operator()(int64_t i) const {
  const int64_t k = ((i % p_) + p_) % p_;
  const int64_t size = count_ / p_, longer = count_ % p_;
  return {k * size + std::min(k, longer), size + (k < longer ? 1 : 0)};
}

Step& Step::Add(Op op) {
  ops.push_back(op);
  return *this;
}

std::string Schedule::DebugString() const {
  std::string out = absl::StrCat("rank ", rank, " of ", ranks, ", ", count, " elements\n");
  for (size_t t = 0; t < steps.size(); ++t) {
    for (const Op& op : steps[t].ops) {
      absl::StrAppend(&out, "  step ", t, ": ", OpVerb(op.kind), " ", op.piece.DebugString());
      if (op.kind == OpKind::kSend) absl::StrAppend(&out, " to ", op.peer);
      if (op.FromPeer()) absl::StrAppend(&out, " from ", op.peer);
      absl::StrAppend(&out, "\n");
    }
  }
  return out;
}

absl::Status ValidateSchedule(const Schedule& s) {
  if (s.ranks < 1 || s.rank < 0 || s.rank >= s.ranks || s.count < 0) {
    return absl::InvalidArgumentError(absl::StrCat("schedule of rank ", s.rank, " of ", s.ranks,
                                                   " ranks, ", s.count, " elements"));
  }
  Piece aside;
  for (size_t t = 0; t < s.steps.size(); ++t) {
    for (const Op& op : s.steps[t].ops) {
      absl::Status status = ValidateOp(s, op);
      if (status.ok() && op.kind == OpKind::kAddAside && !(op.piece == aside)) {
        status = absl::InvalidArgumentError(
            absl::StrCat("adds ", op.piece.DebugString(), " from aside, where ",
                         aside.count == 0 ? "nothing" : aside.DebugString(), " is"));
      }
      if (!status.ok()) {
        return absl::InvalidArgumentError(absl::StrCat("schedule of rank ", s.rank, ", step ", t,
                                                       ", ", OpVerb(op.kind), ": ",
                                                       status.message()));
      }
      if (op.kind == OpKind::kSetAside) aside = op.piece;
    }
  }
  return absl::OkStatus();
}

absl::string_view AllReduceAlgorithmName(AllReduceAlgorithm algorithm) {
  switch (algorithm) {
    case AllReduceAlgorithm::kRing:
      return "ring";
    case AllReduceAlgorithm::kDirect:
      return "direct";
  }
  return "?";
}

Schedule AllReduceSchedule(AllReduceAlgorithm algorithm, int rank, int ranks, int64_t count) {
  TANDEM_CHECK(0 <= rank && rank < ranks && count >= 0);
  switch (algorithm) {
    case AllReduceAlgorithm::kRing:
      return RingAllReduce(rank, ranks, count);
    case AllReduceAlgorithm::kDirect:
      return DirectAllReduce(rank, ranks, count);
  }
  TANDEM_CHECK(false);
}

std::vector<Schedule> AllReduceSchedules(AllReduceAlgorithm algorithm, int ranks, int64_t count) {
  std::vector<Schedule> schedules;
  for (int rank = 0; rank < ranks; ++rank) {
    schedules.push_back(AllReduceSchedule(algorithm, rank, ranks, count));
  }
  return schedules;
}

}  // namespace legacy
}  // namespace tandem
