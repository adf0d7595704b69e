// A collective is a schedule: what one rank sends, receives and adds, step by step, over pieces of
// one vector. Schedules are pure functions of (algorithm, rank, ranks, count). One engine executes
// them over any link (engine.h), one checker proves them without a network (checker.h), one cost
// model prices them (cost.h), and one drawing shows them (draw.h).
//
// What a schedule means:
//   (1) steps run in order; a step ends when all of its ops are done;
//   (2) all sends of a step leave at once, with the contents the vector had when the step began;
//   (3) the other ops of a step are done in the order listed, so the order of additions is fixed
//       however messages arrive;
//   (4) the n-th send from rank a to rank b meets the n-th receive (or reduce) from a on b, of the
//       same piece. Empty pieces travel too: an all-reduce of nothing is a barrier, so no rank
//       finishes any all-reduce before every rank has started it, which the engine relies on.
// Ranks are not otherwise in step: one may be ahead of another as far as its messages allow, so a
// pipeline over segments is a schedule in which step t sends segment t - 1 and receives segment t.
//
// To add an algorithm: one file with one function like those at the end, one line in
// AllReduceSchedule and AllReduceAlgorithmName, its traffic in cost.cc; the tests then cover it.
#ifndef TANDEM_COLLECTIVES_SCHEDULE_H_
#define TANDEM_COLLECTIVES_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace tandem {
inline namespace legacy {

// Elements [begin, begin + count) of the vector.
struct Piece {
  int64_t begin = 0;
  int64_t count = 0;
  int64_t end() const { return begin + count; }
  std::string DebugString() const;  // "[0, 4)"
  friend bool operator==(const Piece&, const Piece&) = default;
};

// The vector cut into p near-equal pieces: the first count % p have one element more.
class Blocks {
 public:
  Blocks(int64_t count, int p) : count_(count), p_(p) {}
  Piece operator()(int64_t i) const;  // i taken mod p, also when negative

 private:
  int64_t count_;
  int p_;
};

enum class OpKind : uint8_t {
  kSend,      // `piece` to `peer`
  kReceive,   // overwrite `piece` with what `peer` sends
  kReduce,    // add what `peer` sends to `piece`
  kSetAside,  // copy `piece` aside (one place for it; the piece keeps its contents)
  kAddAside,  // add what was set aside to the same piece
};

struct Op {
  OpKind kind = OpKind::kSend;
  int peer = -1;  // none for the two aside ops
  Piece piece;
  bool FromPeer() const { return kind == OpKind::kReceive || kind == OpKind::kReduce; }
};

struct Step {
  std::vector<Op> ops;

  Step& Send(Piece piece, int to) { return Add({OpKind::kSend, to, piece}); }
  Step& Receive(Piece piece, int from) { return Add({OpKind::kReceive, from, piece}); }
  Step& Reduce(Piece piece, int from) { return Add({OpKind::kReduce, from, piece}); }
  Step& SetAside(Piece piece) { return Add({OpKind::kSetAside, -1, piece}); }
  Step& AddAside(Piece piece) { return Add({OpKind::kAddAside, -1, piece}); }

 private:
  Step& Add(Op op);
};

struct Schedule {
  int rank = 0;
  int ranks = 1;
  int64_t count = 0;
  std::vector<Step> steps;

  Step& AddStep() { return steps.emplace_back(); }
  std::string DebugString() const;  // one line an op
};

// What can be said of one rank's schedule alone: pieces inside the vector, peers that
// exist and are others, nothing added from aside that was not set aside. INVALID_ARGUMENT if not.
absl::Status ValidateSchedule(const Schedule& schedule);

enum class AllReduceAlgorithm { kRing, kDirect };
inline constexpr AllReduceAlgorithm kAllReduceAlgorithms[] = {AllReduceAlgorithm::kRing,
                                                              AllReduceAlgorithm::kDirect};
absl::string_view AllReduceAlgorithmName(AllReduceAlgorithm algorithm);  // "ring", "direct"

// Requires 0 <= rank < ranks, count >= 0.
Schedule AllReduceSchedule(AllReduceAlgorithm algorithm, int rank, int ranks, int64_t count);
// The schedules of all ranks, by rank.
std::vector<Schedule> AllReduceSchedules(AllReduceAlgorithm algorithm, int ranks, int64_t count);

Schedule RingAllReduce(int rank, int ranks, int64_t count);    // ring.cc
Schedule DirectAllReduce(int rank, int ranks, int64_t count);  // direct.cc

}  // namespace legacy
}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_SCHEDULE_H_
