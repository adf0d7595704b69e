// Schedule: the list of sends, receives and reductions of one rank for one collective, step by
// step, over pieces of its buffers. Schedules are pure functions of a shape (algorithms.h). One
// engine runs them over any link (engine.h), one checker proves them without a network (checker.h),
// a cost model predicts their time (engine_cost.h), and one function draws them (draw.h).
//
// The folder schedules/ has one file for each algorithm that makes schedules.
//
// A rank has three regions: kInput (its contribution, never written), kOutput (its result) and
// kScratch (Schedule::scratch elements, undefined at first). Input and output may be the same
// memory ("in place", see InPlaceOffset in algorithms.h). A write to one is then a write to the
// other, and only a schedule made for this case may run (CollectiveShape::in_place).
//
// The meaning of a schedule:
//   (1) Ops run in order, step after step. A send is the exception: a send only enters the queue to
//       its peer, and no op waits for the send until the end. The peer gets the piece as it was at
//       that moment. (Links need no copy for that: an op that would overwrite unsent bytes waits
//       until they have left.)
//   (2) Receives, reduces and folds wait for their messages. So the order of additions is fixed, in
//       whatever order messages arrive.
//   (3) The n-th send from rank a to rank b meets the n-th receipt (receive, reduce, or source of a
//       fold) from a on b, which must have the same number of elements. Empty pieces travel too.
// A step has no meaning of its own beyond the order of its ops. In the drawing a step is one
// column, and the cost model assumes that its ops run at the same time. Ranks are not in step: one
// may be ahead of another as far as its messages allow.
#ifndef TANDEM_COLLECTIVES_SCHEDULES_SCHEDULE_H_
#define TANDEM_COLLECTIVES_SCHEDULES_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem::collectives {

enum class Region : uint8_t { kOutput, kInput, kScratch };
inline constexpr int kRegions = 3;
absl::string_view RegionName(Region region);  // "out", "in", "scratch"

// Elements [begin, begin + count) of a region.
struct Piece {
  int64_t begin = 0;
  int64_t count = 0;
  Region region = Region::kOutput;
  int64_t end() const { return begin + count; }
  std::string DebugString() const;  // "[0, 4)", "in[0, 4)"
  friend bool operator==(const Piece&, const Piece&) = default;
};
inline Piece In(Piece piece) { return {piece.begin, piece.count, Region::kInput}; }
inline Piece Out(Piece piece) { return {piece.begin, piece.count, Region::kOutput}; }
inline Piece Scratch(Piece piece) { return {piece.begin, piece.count, Region::kScratch}; }

// [0, count) cut into p pieces of nearly the same size: the first count % p have one element more.
class Blocks {
 public:
  Blocks(int64_t count, int p) : count_(count), p_(p) {}
  Piece operator()(int64_t i) const;               // i taken mod p, also when negative
  Piece Range(int64_t first, int64_t last) const;  // blocks [first, last), 0 <= first <= last <= p

 private:
  int64_t count_;
  int p_;
};

enum class OpKind : uint8_t {
  kSend,     // `piece` to `peer`
  kReceive,  // piece = the message of `peer`
  kReduce,   // piece = operand (+) the message of `peer`
  kCopy,     // piece = operand
  kCombine,  // piece = piece (+) operand
  // piece = ((c0 (+) c1) (+) c2) ..., rounded once. The c are the messages of the ranks of
  // folds[peer], in that order; `operand` takes the place of the own rank's message.
  kFold,
};
absl::string_view OpKindName(OpKind kind);  // "send", "receive", ...

struct Op {
  OpKind kind = OpKind::kSend;
  int peer = -1;  // rank; kFold: index into Schedule::folds; none for kCopy and kCombine
  Piece piece;
  Piece operand;  // same size as `piece`; kReduce, kCopy, kCombine, kFold

  // Whether the op waits for one message of `peer`. A fold waits for several.
  bool ReceivesOne() const { return kind == OpKind::kReceive || kind == OpKind::kReduce; }
  bool HasOperand() const { return kind != OpKind::kSend && kind != OpKind::kReceive; }
};

struct Step {
  std::vector<Op> ops;

  Step& Send(Piece piece, int to) { return Add({OpKind::kSend, to, piece, {}}); }
  Step& Receive(Piece piece, int from) { return Add({OpKind::kReceive, from, piece, {}}); }
  // piece = piece (+) received message; in the second form operand (+) received message.
  Step& Reduce(Piece piece, int from) { return Add({OpKind::kReduce, from, piece, piece}); }
  Step& Reduce(Piece piece, Piece operand, int from) {
    return Add({OpKind::kReduce, from, piece, operand});
  }
  Step& Copy(Piece piece, Piece from) { return Add({OpKind::kCopy, -1, piece, from}); }
  Step& Combine(Piece piece, Piece with) { return Add({OpKind::kCombine, -1, piece, with}); }
  Step& Fold(Piece piece, Piece own, int fold) { return Add({OpKind::kFold, fold, piece, own}); }

 private:
  Step& Add(Op op) {
    ops.push_back(op);
    return *this;
  }
};

struct Schedule {
  int rank = 0;
  int ranks = 1;
  int64_t input = 0, output = 0, scratch = 0;  // sizes of the regions in elements
  std::vector<Step> steps;
  std::vector<std::vector<int>> folds;  // lists of ranks; each contains the own rank once

  int64_t Size(Region region) const;
  Step& AddStep() { return steps.emplace_back(); }
  int AddFold(std::vector<int> order) {
    folds.push_back(std::move(order));
    return static_cast<int>(folds.size()) - 1;
  }
  std::string DebugString() const;  // one line for each op
};

// Checks one rank's schedule by itself: pieces are inside their regions, the input is never
// written, peers exist and are not this rank, operands have the size of their pieces.
// INVALID_ARGUMENT if not.
absl::Status ValidateSchedule(const Schedule& schedule);

// ---- Putting schedules together ----

// Moves every piece of `region` by `by` elements.
void Shift(Schedule* schedule, Region region, int64_t by);

// Runs schedules of consecutive parts of the buffers as a pipeline: step t of part s runs in step s
// + t, so one part is reduced while the next one travels. In a step of the pipeline all sends come
// before all other ops. Requirements for every part: a message sent in step t is received in step
// t; the sends of a step come first; `input`, `output`, rank and ranks are the same in all parts.
// Each part has scratch memory of its own. Part s reuses the scratch of part s - depth, where depth
// is the number of steps of the longest part.
Schedule Pipelined(std::vector<Schedule> parts);

// `first`, then `second`, as one schedule over the same regions; scratch is shared.
Schedule Sequence(Schedule first, const Schedule& second);

// Adds the messages of a dissemination barrier (dissemination.cc), so that no rank ends before all
// ranks have started. The first round does not delay the schedule: its message is sent before all
// others, and is received right before the first other message or at the end. So a rank always
// hears from the rank before it, even if their schedules do not fit each other.
void AddAgreement(Schedule* schedule);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_SCHEDULES_SCHEDULE_H_
