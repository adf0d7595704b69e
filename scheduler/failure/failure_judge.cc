#include "scheduler/failure/failure_judge.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace tandem::scheduler {
namespace {

// True if the failure may be a consequence of another node's death.
bool BlamesOthers(const Failure& failure) {
  const auto code = static_cast<absl::StatusCode>(failure.code());
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kAborted ||
         code == absl::StatusCode::kDeadlineExceeded;
}

// True if the node has lost its main connection. If only another connection broke, it is not lost.
bool Lost(const Node& node) { return node.lost_since.has_value() && !node.connected; }

}  // namespace

Failure FailureOf(const std::string& node, const std::string& reason, absl::StatusCode code) {
  Failure failure;
  failure.set_node(node);
  failure.set_reason(reason);
  failure.set_code(static_cast<int32_t>(code));
  return failure;
}

absl::StatusCode CodeOf(int32_t code) {
  const bool known = code > 0 && code <= static_cast<int32_t>(absl::StatusCode::kUnauthenticated);
  return known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown;
}

bool ComesAgain(const Failure& failure) {
  if (failure.diverged() || failure.memory_full()) return true;
  if (!failure.damaged_checkpoint().empty()) return false;  // the next attempt takes another one
  switch (static_cast<absl::StatusCode>(failure.code())) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kResourceExhausted:
      return false;
    default:
      return true;
  }
}

std::string WithoutNumbers(absl::string_view reason) {
  std::string out;
  for (size_t at = 0; at < reason.size();) {
    size_t end = at;
    while (end < reason.size() && absl::ascii_isalnum(static_cast<unsigned char>(reason[end]))) {
      ++end;
    }
    const absl::string_view word = reason.substr(at, std::max<size_t>(end - at, 1));
    const bool number = std::any_of(word.begin(), word.end(), [](char c) {
      return absl::ascii_isdigit(static_cast<unsigned char>(c));
    });
    absl::StrAppend(&out, number ? "#" : word);
    at += word.size();
  }
  return out;
}

Failure DeathOf(Node* node, const std::string& reason) {
  node->gone = true;
  return FailureOf(node->Name(), reason, absl::StatusCode::kUnavailable);
}

absl::optional<Failure> FailureJudge::OnReport(absl::Time now, Node* reporter, const Failure& said,
                                               SchedulerEffects* effects) {
  const Node* const culprit = members_->ByEndpoint(EndpointId::Unpack(said.culprit()));
  Failure cause = FailureOf(culprit != nullptr ? culprit->Name() : reporter->Name(),
                            Clip(said.reason()), CodeOf(said.code()));
  cause.set_diverged(said.diverged());
  cause.set_memory_full(said.memory_full());
  cause.set_no_room(said.no_room());
  cause.set_damaged_checkpoint(Clip(said.damaged_checkpoint()));
  if (said.has_step() && (culprit == nullptr || culprit == reporter)) cause.set_step(said.step());
  if (culprit != nullptr && culprit != reporter) {
    absl::StrAppend(cause.mutable_reason(), " (reported by ", reporter->Name(), ")");
  }
  reporter->reported_failure = true;
  effects->Log(
      absl::StrCat(reporter->Name(), " reports a failure of ", cause.node(), ": ", cause.reason()));
  if (!BlamesOthers(cause)) return cause;
  const bool blames_node = culprit != nullptr && culprit != reporter;
  if (!held_.has_value()) held_ = Held{cause, blames_node, now + times_.blame_delay};
  return Check(now);
}

absl::optional<Failure> FailureJudge::Check(absl::Time now) {
  if (!held_.has_value()) return absl::nullopt;
  if (Node* const dead = LikelyDead(now); dead != nullptr) {
    return DeathOf(dead, Lost(*dead)
                             ? absl::StrCat("connection lost (", dead->lost_why, ")")
                             : absl::StrCat("no sign of life for ", InSeconds(now - dead->heard)));
  }
  if (now < held_->until) return absl::nullopt;
  return held_->failure;
}

Node* FailureJudge::LikelyDead(absl::Time now) {
  for (Node& node : members_->nodes()) {
    if (node.reported_failure || node.gone) continue;
    const bool silent = now - node.heard >= times_.silence_report;
    // If the failure blames a node, a lost connection of another node is no evidence: the node may
    // come back. LivenessMonitor waits for its return, for a shorter time than the judge.
    const bool suspect = !held_->blames_node || node.Name() == held_->failure.node();
    if ((Lost(node) && suspect) || silent) return &node;
  }
  return nullptr;
}

}  // namespace tandem::scheduler
