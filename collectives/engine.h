// CollectiveEngine: runs collectives, given as schedules, for one rank over any links. The engine
// is a deterministic state machine without threads or a clock. Its shell (group.h) calls Progress
// until an operation has ended, sleeps when there is nothing to do, and passes the time in.
//
// Data path. A send hands its piece to the link, which copies the bytes once (into the peer's ring
// or into the kernel). A receive takes its bytes from the link straight to their place. A reduce or
// a fold reads the bytes where they arrived. Bytes for which a link has no room stay in the
// caller's memory until there is room, and an op that would overwrite them waits. In steady state
// nothing is allocated.
//
// Order. Operations run one after another. The ops of an operation begin when all ops of the
// operation before are done, even if its last sends are still leaving. All ranks must start the
// same collectives in the same order. Point-to-point operations are the exception: only the two
// ranks of each message count their messages. Every message says which operation it belongs to. A
// message that does not fit is an error that names both ranks and the difference.
//
// Failure. The first failure (deadline, broken link, ranks that disagree) ends all operations of
// this rank with one status, and Start returns that status from then on. A failed engine cannot be
// used again.
//
// Thread safety: none; one thread uses an engine and its links.
#ifndef TANDEM_COLLECTIVES_ENGINE_H_
#define TANDEM_COLLECTIVES_ENGINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/links/link.h"
#include "collectives/numbered_ring.h"
#include "collectives/record.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/schedules/schedule.h"
#include "collectives/types.h"

namespace tandem::collectives {

// One collective, as one rank calls it. The caller must not touch the schedule or the memory until
// the operation has ended.
struct CollectiveCall {
  Primitive primitive = Primitive::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  DataType type = DataType::kF32;
  // kAverage: the engine expects contributions that BeforeAverage (types.h) has scaled already.
  ReduceOp op = ReduceOp::kSum;
  ElementName called = ElementName::kAsType;
  int root = 0;
  int64_t count = 0;  // ranks must agree on it (sizes are the schedule's); unused for kPointToPoint
  const Schedule* schedule = nullptr;
  const void* input = nullptr;  // may be `output`, or overlap it as InPlaceOffset says
  void* output = nullptr;
};

class CollectiveEngine {
 public:
  struct Options {
    int records = 1024;  // how many of the last operations are remembered; at least 1
  };

  // links[r] leads to rank r and outlives the engine. links[rank] is null.
  CollectiveEngine(int rank, std::vector<Link*> links, const Options& options);
  CollectiveEngine(int rank, std::vector<Link*> links)
      : CollectiveEngine(rank, std::move(links), Options()) {}
  ~CollectiveEngine();
  CollectiveEngine(const CollectiveEngine&) = delete;
  CollectiveEngine& operator=(const CollectiveEngine&) = delete;

  // Begins an operation, runs it as far as possible, and returns its number: 0, 1, ... The deadline
  // counts from now and includes the wait for earlier operations. INVALID_ARGUMENT: the schedule is
  // not for this rank and group, a buffer is missing, or the op is not defined for the type; the
  // operation has not begun then. If the engine has failed: the status of that failure.
  absl::StatusOr<uint64_t> Start(const CollectiveCall& call, absl::Time now,
                                 absl::Duration deadline);

  // Does the work that is possible now. True if any byte or op has moved.
  bool Progress(absl::Time now);

  // Whether operation `number` has ended. If the engine has failed, all operations have ended.
  bool Ended(uint64_t number) const;
  // The result of an operation: OK, or the failure of the engine that stopped it.
  // Requires: Ended(number).
  absl::Status Result(uint64_t number) const;

  int running() const { return static_cast<int>(next_ - oldest_); }
  uint64_t next_number() const { return next_; }
  const absl::Status& status() const { return broken_; }  // OK until the engine fails
  // Ends all operations with `why`, a failure that the shell has learned from elsewhere.
  void Fail(absl::Status why, absl::Time now);

  // The earliest deadline of the running operations.
  absl::Time NextDeadline() const;
  // Describes the current wait: "allreduce #3: waits 2s for rank 1 (message of 4096 bytes, 0 here)
  // in step 2 of 6". Empty if no operation is running.
  std::string WaitingFor(absl::Time now) const;
  // The rank that the current operation waits for; -1 if none.
  int waiting_for() const { return waiting_peer_; }
  // Whether the engine waits for the link to rank r: for bytes from it, or for room in it.
  bool WaitsForLink(int r) const;
  std::vector<OperationRecord> Records() const;  // oldest first

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  uint64_t bytes_sent() const { return bytes_sent_; }

 private:
  struct Outgoing;
  struct Peer;
  struct Operation;
  enum class Moved { kDone, kSome, kNothing };

  bool FlushSends();
  bool Flush(int peer);
  bool RunOps(absl::Time now);
  Moved RunOp(Operation& op, const Op& what);
  void Send(Operation& op, const Op& what);
  Moved RunReceive(Operation& op, const Op& what);
  Moved RunReduce(Operation& op, const Op& what);
  Moved RunFold(Operation& op, const Op& what);
  Moved RunLocal(Operation& op, const Op& what);
  bool BeginMessage(Operation& op, int peer, size_t bytes);
  size_t Writable(const uint8_t* at, size_t bytes);
  void Blocked(int peer, size_t bytes, size_t here);
  void NoteWaiting(absl::Time now);
  void FinishOperations(absl::Time now);
  void LinkFailed(int peer, const absl::Status& status);
  void CheckDeadlines(absl::Time now);

  const int rank_, ranks_;
  std::vector<Peer> peers_;  // by rank
  // Finished operations keep their memory for reuse.
  NumberedRing<Operation> operations_;
  uint64_t oldest_ = 0;   // all operations below have ended
  uint64_t current_ = 0;  // the operation whose ops run now
  uint64_t next_ = 0;
  uint64_t collectives_ = 0;  // collectives started; the next one's number on the wire
  absl::Status broken_;
  uint64_t bytes_sent_ = 0;
  int queued_ = 0;  // sends that have not left, over all peers
  // The wait of the current operation: the peer, the size of its message, and the bytes that have
  // come so far.
  int waiting_peer_ = -1, noted_peer_ = -1;
  size_t waiting_bytes_ = 0, waiting_here_ = 0;
  absl::Time waiting_since_;
  NumberedRing<OperationRecord> records_;
  std::vector<const void*> fold_sources_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ENGINE_H_
