// A collective is a schedule: what one rank sends, receives and reduces, step by step, over pieces of
// one vector. Schedules are pure functions of (algorithm, rank, ranks, count). One engine executes
// them over any link (engine.h), one checker proves them without a network (checker.h), one cost
// model prices them (cost.h), and one drawing shows them (draw.h).
#ifndef TANDEM_COLLECTIVES_SCHEDULE_H_
#define TANDEM_COLLECTIVES_SCHEDULE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

// Elements [begin, begin + count) of the vector.
struct Piece {
  int64_t begin = 0;
  int64_t count = 0;
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
  kSend,     // the current contents of `piece` to `peer`
  kReceive,  // overwrite `piece` with what `peer` sends
  kReduce,   // add what `peer` sends to `piece`
  kKeep,     // receive into the staging slot `slot` (contents of `piece` stay)
  kFold,     // piece = staged contributions and own, added in rank order, from the first one
};

struct Op {
  OpKind kind = OpKind::kSend;
  int peer = -1;
  Piece piece;
  int slot = 0;  // kKeep: the contributing rank
};

// Ops of one step may proceed at the same time; a step starts when the one before is complete,
// except that sends of finished data and receives never wait longer than they must.
struct Step {
  std::vector<Op> ops;
};

struct Schedule {
  int rank = 0;
  int ranks = 1;
  int64_t count = 0;
  std::vector<Step> steps;

  std::string DebugString() const;
};

enum class AllReduceAlgorithm { kRing, kDirect };

// Ring all-reduce (Patarasuk & Yuan 2009): 2(p-1) steps, 2(p-1)/p * count elements sent a rank.
Schedule RingAllReduce(int rank, int ranks, int64_t count);
// Direct reduce-scatter + allgather: block b is folded by rank b in rank order, so every element is
// summed in the same order whatever the split into buffers: reproducible.
Schedule DirectAllReduce(int rank, int ranks, int64_t count);
Schedule AllReduceSchedule(AllReduceAlgorithm algorithm, int rank, int ranks, int64_t count);

}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_SCHEDULE_H_
