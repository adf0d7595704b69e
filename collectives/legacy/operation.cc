#include "collectives/legacy/operation.h"

#include "absl/strings/str_cat.h"

namespace tandem {
inline namespace legacy {

void MessageTable::Seal() {
  for (size_t i = 1; i < base_.size(); ++i) base_[i] += base_[i - 1];
  next_ = base_;
}

void CollectiveOperation::Begin(uint64_t operation, const Schedule* its_schedule,
                                absl::Span<float> vector) {
  state = State::kRunning;
  number = operation;
  schedule = its_schedule;
  data = vector;
  step = op = step_first_op = 0;
  step_sent = false;

  sends.Reset(schedule->ranks);
  receives.Reset(schedule->ranks);
  for (const Step& s : schedule->steps) {
    for (const Op& o : s.ops) {
      if (o.kind == OpKind::kSend) sends.Count(o.peer);
      if (o.FromPeer()) receives.Count(o.peer);
    }
  }
  sends.Seal();
  receives.Seal();
  sent.assign(static_cast<size_t>(sends.size()), Frame());
  incoming.assign(static_cast<size_t>(receives.size()), Incoming());
  op_slot_.clear();
  for (const Step& s : schedule->steps) {
    for (const Op& o : s.ops) {
      const int slot = o.kind == OpKind::kSend ? sends.Assign(o.peer)
                       : o.FromPeer()          ? receives.Assign(o.peer)
                                               : -1;
      op_slot_.push_back(slot);
      if (o.FromPeer()) incoming[slot].count = o.piece.count;
    }
  }
}

void CollectiveOperation::End() {
  state = State::kEnded;
  aside = Buffer();
  for (Incoming& in : incoming) in.values = Buffer();
}

void CollectiveOperation::DropSent(int peer) {
  for (int i = 0; i < sends.size(peer); ++i) sent[sends.Slot(peer, i)] = Frame();
}

void CollectiveOperation::DropAllSent() {
  for (Frame& frame : sent) frame = Frame();
}

absl::Status CollectiveOperation::Deliver(int from, int64_t message, const Buffer& values) {
  const int slot = receives.Slot(from, message);
  if (slot < 0) {
    return absl::InvalidArgumentError(absl::StrCat("operation ", number, ": message ", message,
                                                   " from rank ", from, ", which should send ",
                                                   receives.size(from), " (another algorithm?)"));
  }
  Incoming& in = incoming[slot];
  if (values.size() != static_cast<size_t>(in.count) * sizeof(float)) {
    return absl::InvalidArgumentError(absl::StrCat("operation ", number, ": message ", message,
                                                   " from rank ", from, " has ", values.size(),
                                                   " bytes, want ", in.count * sizeof(float)));
  }
  if (in.arrived) return absl::OkStatus();
  in.arrived = true;
  in.values = values;
  return absl::OkStatus();
}

void CollectiveOperation::EnterNextStep() {
  step_first_op += CurrentStep().ops.size();
  ++step;
  op = 0;
  step_sent = false;
}

}  // namespace legacy
}  // namespace tandem
