#include "tests/unit/collectives/proof/replay.h"

#include <algorithm>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem {
namespace {

class Player {
 public:
  Player(absl::Span<const collectives::Schedule> schedules, const ReplayOptions& options,
         ReplayVisitor& visitor)
      : schedules_(schedules),
        options_(options),
        visitor_(visitor),
        ranks_(schedules.size()),
        pairs_(schedules.size() * schedules.size()) {
    for (size_t rank = 0; rank < ranks_.size(); ++rank) SkipEmptySteps(static_cast<int>(rank));
  }

  absl::Status Run() {
    for (bool progress = true; progress;) {
      progress = false;
      for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
        while (Advance(rank)) progress = true;
        TANDEM_RETURN_IF_ERROR(error_);
      }
    }
    TANDEM_RETURN_IF_ERROR(CheckAllFinished());
    return CheckNothingLeft();
  }

 private:
  struct QueuedSend {
    const ReplayMessage* message;
    Extent extent;
  };
  struct RankState {
    size_t step = 0, op = 0;          // the next op
    std::vector<QueuedSend> pending;  // sends that may not have left yet
  };
  // The queue from one rank to another; its channel holds the first messages.
  struct Pair {
    int64_t sent = 0, received = 0;
    int64_t head = -1, tail = -1;  // message ids
  };

  const collectives::Schedule& Of(int rank) const { return schedules_[static_cast<size_t>(rank)]; }
  RankState& State(int rank) { return ranks_[static_cast<size_t>(rank)]; }
  Pair& PairOf(int from, int to) {
    return pairs_[static_cast<size_t>(from) * schedules_.size() + static_cast<size_t>(to)];
  }
  bool Finished(int rank) { return State(rank).step == Of(rank).steps.size(); }
  const collectives::Op& NextOp(int rank) {
    return Of(rank).steps[State(rank).step].ops[State(rank).op];
  }
  bool Gone(const ReplayMessage& m) {
    return m.number < PairOf(m.from, m.to).received + options_.channel;
  }

  // Runs the next op of `rank`. False if the op must wait or there is none.
  bool Advance(int rank) {
    if (!error_.ok() || Finished(rank)) return false;
    const collectives::Op& op = NextOp(rank);
    if (op.kind == collectives::OpKind::kSend) {
      Queue(rank, op);
    } else if (BlockedBy(rank, op) != nullptr || !Apply(rank, op)) {
      return false;
    }
    ++State(rank).op;
    SkipEmptySteps(rank);
    return true;
  }

  void SkipEmptySteps(int rank) {
    RankState& state = State(rank);
    while (!Finished(rank) && state.op == Of(rank).steps[state.step].ops.size()) {
      ++state.step;
      state.op = 0;
    }
  }

  void Queue(int rank, const collectives::Op& op) {
    Pair& pair = PairOf(rank, op.peer);
    const int64_t id = static_cast<int64_t>(messages_.size());
    messages_.push_back(
        {id, rank, op.peer, pair.sent++, static_cast<int>(State(rank).step), op.piece});
    next_.push_back(-1);
    if (pair.head < 0) pair.head = id;
    if (pair.tail >= 0) next_[static_cast<size_t>(pair.tail)] = id;
    pair.tail = id;
    if (op.piece.count > 0) {
      State(rank).pending.push_back({&messages_.back(), ExtentOf(op.piece, rank, options_)});
    }
    visitor_.OnSend(messages_.back());
  }

  // A message that the op would overwrite, or null. Also removes the messages that have left.
  const ReplayMessage* BlockedBy(int rank, const collectives::Op& op) {
    std::vector<QueuedSend>& pending = State(rank).pending;
    if (pending.empty() || op.piece.count == 0) return nullptr;
    const Extent extent = ExtentOf(op.piece, rank, options_);
    for (size_t i = 0; i < pending.size();) {
      if (Gone(*pending[i].message)) {
        pending[i] = pending.back();
        pending.pop_back();
      } else if (pending[i].extent.Overlaps(extent)) {
        return pending[i].message;
      } else {
        ++i;
      }
    }
    return nullptr;
  }

  const ReplayMessage* HeadOf(int from, int to) {
    const int64_t head = PairOf(from, to).head;
    return head < 0 ? nullptr : &messages_[static_cast<size_t>(head)];
  }

  // The ranks whose messages the op takes.
  void SourcesOf(int rank, const collectives::Op& op, std::vector<int>* sources) const {
    sources->clear();
    if (op.ReceivesOne()) sources->push_back(op.peer);
    if (op.kind != collectives::OpKind::kFold) return;
    for (const int r : Of(rank).folds[static_cast<size_t>(op.peer)]) {
      if (r != rank) sources->push_back(r);
    }
  }

  // Runs an op. False if a message has not come yet or does not fit. No message is taken before all
  // of them are there, because a fold takes all or none.
  bool Apply(int rank, const collectives::Op& op) {
    SourcesOf(rank, op, &sources_);
    taken_.clear();
    for (const int from : sources_) {
      const ReplayMessage* message = HeadOf(from, rank);
      if (message == nullptr) return false;
      if (message->piece.count != op.piece.count) return SizeMismatch(rank, op, *message);
      taken_.push_back(message);
    }
    for (const ReplayMessage* message : taken_) Take(*message);
    visitor_.OnApply(rank, static_cast<int>(State(rank).step), op, taken_);
    return true;
  }

  void Take(const ReplayMessage& message) {
    Pair& pair = PairOf(message.from, message.to);
    ++pair.received;
    pair.head = next_[static_cast<size_t>(message.id)];
    if (pair.head < 0) pair.tail = -1;
  }

  bool SizeMismatch(int rank, const collectives::Op& op, const ReplayMessage& message) {
    error_ = absl::InvalidArgumentError(absl::StrCat(
        "rank ", rank, ", step ", State(rank).step, " expects ", op.piece.DebugString(),
        " from rank ", message.from, ", whose message ", message.number, " (step ", message.step,
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
        absl::StrCat("deadlock with channels of ", options_.channel, " messages: ", stuck));
  }

  std::string Wait(int rank) {
    const collectives::Op& op = NextOp(rank);
    const std::string who = absl::StrCat("rank ", rank, ", step ", State(rank).step, " waits ");
    if (const ReplayMessage* message = BlockedBy(rank, op)) {
      return absl::StrCat(who, "to overwrite ", op.piece.DebugString(), " until message ",
                          message->number, " ", message->piece.DebugString(), " to rank ",
                          message->to, " has gone");
    }
    SourcesOf(rank, op, &sources_);
    for (const int from : sources_) {
      if (HeadOf(from, rank) != nullptr) continue;
      return absl::StrCat(who, "for message ", PairOf(from, rank).received, " ",
                          op.piece.DebugString(), " from rank ", from);
    }
    return absl::StrCat(who, "for nothing");
  }

  absl::Status CheckNothingLeft() const {
    for (const Pair& pair : pairs_) {
      if (pair.head < 0) continue;
      const ReplayMessage& message = messages_[static_cast<size_t>(pair.head)];
      return absl::InvalidArgumentError(absl::StrCat(
          "rank ", message.from, ", step ", message.step, " sends message ", message.number, " ",
          message.piece.DebugString(), " to rank ", message.to, ", which never receives it"));
    }
    return absl::OkStatus();
  }

  const absl::Span<const collectives::Schedule> schedules_;
  const ReplayOptions& options_;
  ReplayVisitor& visitor_;
  std::vector<RankState> ranks_;
  std::vector<Pair> pairs_;             // from * p + to
  std::deque<ReplayMessage> messages_;  // by id; a deque, because pointers to messages are kept
  std::vector<int64_t> next_;           // by id: the next of the same pair
  std::vector<int> sources_;            // sources of the current op
  std::vector<const ReplayMessage*> taken_;
  absl::Status error_;
};

}  // namespace

Extent ExtentOf(const collectives::Piece& piece, int rank, const ReplayOptions& options) {
  if (!options.in_place || piece.region != collectives::Region::kInput) {
    return {piece.region, piece.begin, piece.end()};
  }
  const int64_t offset = options.in_place_offset[static_cast<size_t>(rank)];
  return {collectives::Region::kOutput, piece.begin + offset, piece.end() + offset};
}

absl::Status Replay(absl::Span<const collectives::Schedule> schedules, const ReplayOptions& options,
                    ReplayVisitor& visitor) {
  if (options.channel < 0 ||
      (options.in_place && options.in_place_offset.size() != schedules.size())) {
    return absl::InvalidArgumentError(absl::StrCat("channels of ", options.channel, " messages, ",
                                                   options.in_place_offset.size(), " offsets for ",
                                                   schedules.size(), " ranks"));
  }
  for (size_t i = 0; i < schedules.size(); ++i) {
    const collectives::Schedule& s = schedules[i];
    if (s.rank != static_cast<int>(i) || s.ranks != static_cast<int>(schedules.size())) {
      return absl::InvalidArgumentError(absl::StrCat("schedule ", i, " of ", schedules.size(),
                                                     " is of rank ", s.rank, " of ", s.ranks));
    }
    TANDEM_RETURN_IF_ERROR(ValidateSchedule(s));
  }
  return Player(schedules, options, visitor).Run();
}

}  // namespace tandem
