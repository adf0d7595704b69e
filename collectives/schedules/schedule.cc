#include "collectives/schedules/schedule.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"

namespace tandem::collectives {
namespace {

// The fault of a piece, or "".
std::string PieceFault(const Schedule& s, const Piece& piece) {
  const int64_t size = s.Size(piece.region);
  // Written so that no sum can overflow.
  const bool inside = piece.begin >= 0 && piece.count >= 0 && piece.count <= size &&
                      piece.begin <= size - piece.count;
  if (inside) return "";
  return absl::StrCat("piece ", piece.DebugString(), " of ", size, " elements");
}

std::string PeerFault(const Schedule& s, int peer) {
  if (peer >= 0 && peer < s.ranks && peer != s.rank) return "";
  return absl::StrCat("peer ", peer, " among ", s.ranks, " ranks");
}

std::string FoldFault(const Schedule& s, int fold) {
  if (fold < 0 || static_cast<size_t>(fold) >= s.folds.size()) {
    return absl::StrCat("fold ", fold, " of ", s.folds.size());
  }
  std::vector<bool> seen(static_cast<size_t>(s.ranks));
  bool own = false;
  for (const int r : s.folds[static_cast<size_t>(fold)]) {
    if (r < 0 || r >= s.ranks) return absl::StrCat("rank ", r, " of ", s.ranks, " in a fold");
    if (seen[static_cast<size_t>(r)]) return absl::StrCat("rank ", r, " twice in a fold");
    seen[static_cast<size_t>(r)] = true;
    own = own || r == s.rank;
  }
  return own ? "" : "a fold without the own rank";
}

std::string OpFault(const Schedule& s, const Op& op) {
  std::string fault = PieceFault(s, op.piece);
  if (fault.empty() && op.HasOperand()) {
    fault = PieceFault(s, op.operand);
    if (fault.empty() && op.operand.count != op.piece.count) {
      fault = absl::StrCat("operand of ", op.operand.count, " elements for ", op.piece.count);
    }
  }
  if (fault.empty() && op.kind != OpKind::kSend && op.piece.region == Region::kInput) {
    fault = "input would be overwritten";
  }
  if (fault.empty() && (op.kind == OpKind::kSend || op.ReceivesOne()))
    fault = PeerFault(s, op.peer);
  if (fault.empty() && op.kind == OpKind::kFold) fault = FoldFault(s, op.peer);
  return fault;
}

std::string OpText(const Schedule& s, const Op& op) {
  std::string out = absl::StrCat(OpKindName(op.kind), " ", op.piece.DebugString());
  if (op.HasOperand() && !(op.operand == op.piece)) {
    absl::StrAppend(&out, " with ", op.operand.DebugString());
  }
  if (op.kind == OpKind::kSend) absl::StrAppend(&out, " to ", op.peer);
  if (op.ReceivesOne()) absl::StrAppend(&out, " from ", op.peer);
  if (op.kind == OpKind::kFold && op.peer >= 0 && static_cast<size_t>(op.peer) < s.folds.size()) {
    absl::StrAppend(&out, " of ranks ", absl::StrJoin(s.folds[static_cast<size_t>(op.peer)], " "));
  }
  return out;
}

}  // namespace

absl::string_view RegionName(Region region) {
  switch (region) {
    case Region::kOutput:
      return "out";
    case Region::kInput:
      return "in";
    case Region::kScratch:
      return "scratch";
  }
  return "?";
}

std::string Piece::DebugString() const {
  return absl::StrCat(region == Region::kOutput ? "" : RegionName(region), "[", begin, ", ", end(),
                      ")");
}

Piece Blocks::operator()(int64_t i) const {
  const int64_t k = ((i % p_) + p_) % p_;
  return Range(k, k + 1);
}

Piece Blocks::Range(int64_t first, int64_t last) const {
  const int64_t size = count_ / p_, longer = count_ % p_;
  const auto begin = [&](int64_t k) { return k * size + std::min(k, longer); };
  return {begin(first), begin(last) - begin(first)};
}

absl::string_view OpKindName(OpKind kind) {
  switch (kind) {
    case OpKind::kSend:
      return "send";
    case OpKind::kReceive:
      return "receive";
    case OpKind::kReduce:
      return "reduce";
    case OpKind::kCopy:
      return "copy";
    case OpKind::kCombine:
      return "combine";
    case OpKind::kFold:
      return "fold";
  }
  return "?";
}

int64_t Schedule::Size(Region region) const {
  switch (region) {
    case Region::kOutput:
      return output;
    case Region::kInput:
      return input;
    case Region::kScratch:
      return scratch;
  }
  return 0;
}

std::string Schedule::DebugString() const {
  std::string out = absl::StrCat("rank ", rank, " of ", ranks, ", in ", input, ", out ", output,
                                 ", scratch ", scratch, " elements\n");
  for (size_t t = 0; t < steps.size(); ++t) {
    for (const Op& op : steps[t].ops) {
      absl::StrAppend(&out, "  step ", t, ": ", OpText(*this, op), "\n");
    }
  }
  return out;
}

absl::Status ValidateSchedule(const Schedule& s) {
  if (s.ranks < 1 || s.rank < 0 || s.rank >= s.ranks || s.input < 0 || s.output < 0 ||
      s.scratch < 0) {
    return absl::InvalidArgumentError(absl::StrCat("schedule of rank ", s.rank, " of ", s.ranks,
                                                   " ranks, in ", s.input, ", out ", s.output,
                                                   ", scratch ", s.scratch, " elements"));
  }
  for (size_t t = 0; t < s.steps.size(); ++t) {
    for (const Op& op : s.steps[t].ops) {
      const std::string fault = OpFault(s, op);
      if (fault.empty()) continue;
      return absl::InvalidArgumentError(absl::StrCat("schedule of rank ", s.rank, ", step ", t,
                                                     ", ", OpText(s, op), ": ", fault));
    }
  }
  return absl::OkStatus();
}

// ---- Putting schedules together ----

void Shift(Schedule* schedule, Region region, int64_t by) {
  for (Step& step : schedule->steps) {
    for (Op& op : step.ops) {
      if (op.piece.region == region) op.piece.begin += by;
      if (op.HasOperand() && op.operand.region == region) op.operand.begin += by;
    }
  }
}

namespace {

// Appends ops of `from` to `to`: its sends, all other ops, or both. The folds of `from` begin at
// `fold_base` in the schedule of `to`.
enum class Which { kAll, kSends, kOthers };
void Append(const Step& from, Which which, int fold_base, Step* to) {
  for (Op op : from.ops) {
    const Which kind = op.kind == OpKind::kSend ? Which::kSends : Which::kOthers;
    if (which != Which::kAll && which != kind) continue;
    if (op.kind == OpKind::kFold) op.peer += fold_base;
    to->ops.push_back(op);
  }
}

// Adds `folds` to the schedule, unless it has them already. Returns the index of the first of them.
int AppendFolds(const std::vector<std::vector<int>>& folds, Schedule* schedule) {
  for (size_t at = 0; at + folds.size() <= schedule->folds.size(); ++at) {
    if (std::equal(folds.begin(), folds.end(), schedule->folds.begin() + static_cast<long>(at))) {
      return static_cast<int>(at);
    }
  }
  const int base = static_cast<int>(schedule->folds.size());
  schedule->folds.insert(schedule->folds.end(), folds.begin(), folds.end());
  return base;
}

}  // namespace

// Scratch is laid out before the steps are merged, because pieces and folds must have their final
// places. Then all sends of a step come first, for all parts: a message leaves before this rank
// waits for any other message of the same step. Otherwise two ranks could wait for each other.
Schedule Pipelined(std::vector<Schedule> parts) {
  TANDEM_CHECK(!parts.empty());
  if (parts.size() == 1) return std::move(parts[0]);
  size_t depth = 0;
  int64_t scratch = 0;
  for (const Schedule& part : parts) {
    depth = std::max(depth, part.steps.size());
    scratch = std::max(scratch, part.scratch);
  }
  Schedule out;
  out.rank = parts[0].rank;
  out.ranks = parts[0].ranks;
  out.input = parts[0].input;
  out.output = parts[0].output;
  out.scratch = scratch * static_cast<int64_t>(std::min(depth, parts.size()));
  out.steps.resize(parts.size() + depth - 1);
  std::vector<int> fold_base;
  for (size_t s = 0; s < parts.size(); ++s) {
    // Parts that are `depth` apart never run at the same time, so they may share scratch memory.
    Shift(&parts[s], Region::kScratch,
          scratch * static_cast<int64_t>(s % std::max<size_t>(depth, 1)));
    fold_base.push_back(AppendFolds(parts[s].folds, &out));
  }
  for (const Which which : {Which::kSends, Which::kOthers}) {
    for (size_t s = 0; s < parts.size(); ++s) {
      for (size_t t = 0; t < parts[s].steps.size(); ++t) {
        Append(parts[s].steps[t], which, fold_base[s], &out.steps[s + t]);
      }
    }
  }
  return out;
}

Schedule Sequence(Schedule first, const Schedule& second) {
  TANDEM_CHECK(first.rank == second.rank && first.ranks == second.ranks);
  first.input = std::max(first.input, second.input);
  first.output = std::max(first.output, second.output);
  first.scratch = std::max(first.scratch, second.scratch);
  const int fold_base = AppendFolds(second.folds, &first);
  for (const Step& step : second.steps) Append(step, Which::kAll, fold_base, &first.AddStep());
  return first;
}

void AddAgreement(Schedule* schedule) {
  Schedule& s = *schedule;
  if (s.ranks == 1) return;
  const auto before = [&](int64_t distance) {
    return static_cast<int>((s.rank - distance % s.ranks + s.ranks) % s.ranks);
  };
  const auto behind = [&](int64_t distance) {
    return static_cast<int>((s.rank + distance) % s.ranks);
  };
  Step first;
  first.Send({}, behind(1));
  s.steps.insert(s.steps.begin(), std::move(first));
  const Op heard{OpKind::kReceive, before(1), {}, {}};
  const auto waits = [](const Op& op) { return op.ReceivesOne() || op.kind == OpKind::kFold; };
  bool placed = false;
  for (Step& step : s.steps) {
    const auto at = std::find_if(step.ops.begin(), step.ops.end(), waits);
    if (at == step.ops.end()) continue;
    step.ops.insert(at, heard);
    placed = true;
    break;
  }
  if (!placed) s.AddStep().ops.push_back(heard);
  for (int64_t distance = 2; distance < s.ranks; distance *= 2) {
    s.AddStep().Send({}, behind(distance)).Receive({}, before(distance));
  }
}

}  // namespace tandem::collectives
