#include "collectives/legacy/replay.h"

#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem {
inline namespace legacy {
namespace {

class Player {
 public:
  Player(absl::Span<const Schedule> schedules, int max_in_flight, ReplayVisitor& visitor)
      : schedules_(schedules),
        max_in_flight_(max_in_flight),
        visitor_(visitor),
        ranks_(schedules.size()),
        channels_(schedules.size() * schedules.size()) {}

  absl::Status Run() {
    bool progress = true;
    while (progress) {
      progress = false;
      for (size_t rank = 0; rank < schedules_.size(); ++rank) {
        while (Advance(static_cast<int>(rank))) progress = true;
        TANDEM_RETURN_IF_ERROR(error_);
      }
    }
    TANDEM_RETURN_IF_ERROR(CheckAllFinished());
    return CheckNothingLeft();
  }

 private:
  struct RankState {
    size_t step = 0;
    size_t op = 0;  // next op of the step that is not a send
    bool open = false;
    std::deque<ReplayMessage> outbox;  // sends of this step that have no room yet
  };
  struct Channel {
    int64_t sent = 0, received = 0;
    std::deque<ReplayMessage> messages;
  };

  Channel& ChannelOf(int from, int to) {
    return channels_[static_cast<size_t>(from) * schedules_.size() + static_cast<size_t>(to)];
  }
  const Step& StepOf(int rank) const { return schedules_[rank].steps[ranks_[rank].step]; }
  bool Finished(int rank) const { return ranks_[rank].step == schedules_[rank].steps.size(); }

  // One thing that rank can do now; false if it can do nothing.
  bool Advance(int rank) {
    if (!error_.ok() || Finished(rank)) return false;
    RankState& state = ranks_[rank];
    if (!state.open) {
      OpenStep(rank);
      return true;
    }
    if (Deliver(rank) || ApplyNext(rank)) return true;
    if (!error_.ok() || !state.outbox.empty() || state.op < StepOf(rank).ops.size()) return false;
    ++state.step;
    state.open = false;
    return true;
  }

  void OpenStep(int rank) {
    RankState& state = ranks_[rank];
    state.open = true;
    state.op = 0;
    for (const Op& op : StepOf(rank).ops) {
      if (op.kind != OpKind::kSend) continue;
      state.outbox.push_back({next_id_++, rank, op.peer, ChannelOf(rank, op.peer).sent++,
                              static_cast<int>(state.step), op.piece});
      visitor_.OnSend(state.outbox.back());
    }
  }

  bool Deliver(int rank) {
    auto& outbox = ranks_[rank].outbox;
    for (auto it = outbox.begin(); it != outbox.end(); ++it) {
      Channel& channel = ChannelOf(rank, it->to);
      if (channel.messages.size() >= static_cast<size_t>(max_in_flight_)) continue;
      channel.messages.push_back(*it);
      outbox.erase(it);
      return true;
    }
    return false;
  }

  bool ApplyNext(int rank) {
    RankState& state = ranks_[rank];
    const std::vector<Op>& ops = StepOf(rank).ops;
    while (state.op < ops.size() && ops[state.op].kind == OpKind::kSend) ++state.op;
    if (state.op == ops.size()) return false;
    const Op& op = ops[state.op];
    const int step = static_cast<int>(state.step);
    if (!op.FromPeer()) {
      visitor_.OnApply(rank, step, op, nullptr);
    } else {
      Channel& channel = ChannelOf(op.peer, rank);
      if (channel.messages.empty()) return false;
      const ReplayMessage message = channel.messages.front();
      if (!(message.piece == op.piece)) return PieceMismatch(rank, op, message);
      channel.messages.pop_front();
      ++channel.received;
      visitor_.OnApply(rank, step, op, &message);
    }
    ++state.op;
    return true;
  }

  bool PieceMismatch(int rank, const Op& op, const ReplayMessage& message) {
    error_ = absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, ", step ", ranks_[rank].step, " expects ", op.piece.DebugString(),
        " from rank ", op.peer, ", whose message ", message.number, " (step ", message.step,
        ") is ", message.piece.DebugString()));
    return false;
  }

  absl::Status CheckAllFinished() {
    std::string stuck;
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      if (!Finished(rank)) absl::StrAppend(&stuck, stuck.empty() ? "" : "; ", Wait(rank));
    }
    if (stuck.empty()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("deadlock with ", max_in_flight_, " messages in flight a pair: ", stuck));
  }

  std::string Wait(int rank) {
    const RankState& state = ranks_[rank];
    const std::string who = absl::StrCat("rank ", rank, ", step ", state.step);
    if (state.op < StepOf(rank).ops.size()) {
      const Op& op = StepOf(rank).ops[state.op];
      return absl::StrCat(who, " waits for message ", ChannelOf(op.peer, rank).received, " ",
                          op.piece.DebugString(), " from rank ", op.peer);
    }
    const ReplayMessage& message = state.outbox.front();
    return absl::StrCat(who, " waits for room to send message ", message.number, " ",
                        message.piece.DebugString(), " to rank ", message.to);
  }

  absl::Status CheckNothingLeft() const {
    for (const Channel& channel : channels_) {
      if (channel.messages.empty()) continue;
      const ReplayMessage& message = channel.messages.front();
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", message.from, ", step ", message.step, " sends message ", message.number, " ",
          message.piece.DebugString(), " to rank ", message.to, ", which never receives it"));
    }
    return absl::OkStatus();
  }

  const absl::Span<const Schedule> schedules_;
  const int max_in_flight_;
  ReplayVisitor& visitor_;
  std::vector<RankState> ranks_;
  std::vector<Channel> channels_;  // from * p + to
  int64_t next_id_ = 0;
  absl::Status error_;
};

}  // namespace

absl::Status Replay(absl::Span<const Schedule> schedules, int max_in_flight,
                    ReplayVisitor& visitor) {
  if (max_in_flight < 1) return absl::InvalidArgumentError("channels must hold a message");
  for (size_t i = 0; i < schedules.size(); ++i) {
    const Schedule& s = schedules[i];
    TANDEM_RETURN_IF_ERROR(ValidateSchedule(s));
    if (s.rank != static_cast<int>(i) || s.ranks != static_cast<int>(schedules.size()) ||
        s.count != schedules[0].count) {
      return absl::InvalidArgumentError(
          absl::StrCat("schedule ", i, " of ", schedules.size(), " is of rank ", s.rank, " of ",
                       s.ranks, " for ", s.count, " elements, the first for ", schedules[0].count));
    }
  }
  return Player(schedules, max_in_flight, visitor).Run();
}

}  // namespace legacy
}  // namespace tandem
