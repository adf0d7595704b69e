// Executes collectives by schedule for one rank, over any links: a deterministic state machine
// without threads or a clock. Its shell (group.h) calls Progress until an operation has ended,
// sleeps when there is nothing to do, and tells the time.
//
// Data path. A send hands its piece to the link, which copies it once (into the ring of the peer,
// or the kernel). A receive takes its bytes from the link straight to their place; a reduce or a
// fold reads them where they arrived. What does not fit a link stays where it is until it does, and
// an op that would overwrite it waits. In steady state nothing is allocated.
//
// Order. Operations run one after another: the ops of one begin when all ops of the one before are
// done, though its last sends may still be leaving. All ranks must start the same collectives in
// the same order (kPointToPoint concerns only the two ranks of each message, which count their
// messages); every message says which operation it belongs to, and one that does not fit is an
// error that names both ranks and what differs.
//
// Failure. The first failure (deadline, broken link, ranks that disagree) ends all operations of
// this rank with one status; after that Start returns it. An engine that has failed is finished.
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

// One collective, as one rank calls it. Schedule and memory stay untouched by the caller until the
// operation has ended.
struct CollectiveCall {
  Primitive primitive = Primitive::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  DataType type = DataType::kF32;
  // kAverage: of contributions that were multiplied by BeforeAverage (types.h).
  ReduceOp op = ReduceOp::kSum;
  ElementName called = ElementName::kAsType;
  int root = 0;
  int64_t count = 0;  // what ranks must agree on (sizes are the schedule's); not kPointToPoint
  const Schedule* schedule = nullptr;
  const void* input = nullptr;  // may be `output`, or overlap it as InPlaceOffset says
  void* output = nullptr;
};

class CollectiveEngine {
 public:
  struct Options {
    int records = 1024;  // the last so many operations are remembered; at least 1
  };

  // links[r] leads to rank r and outlives the engine; null at this rank.
  CollectiveEngine(int rank, std::vector<Link*> links, const Options& options);
  CollectiveEngine(int rank, std::vector<Link*> links)
      : CollectiveEngine(rank, std::move(links), Options()) {}
  ~CollectiveEngine();
  CollectiveEngine(const CollectiveEngine&) = delete;
  CollectiveEngine& operator=(const CollectiveEngine&) = delete;

  // Begins an operation, runs it as far as it goes, and returns its number: 0, 1, ... The deadline
  // is for the whole operation, waiting for those before it included. INVALID_ARGUMENT: a schedule
  // that is not for this rank and group, or an op that is not defined for the type; nothing has
  // begun then. Or the status with which the engine has failed.
  absl::StatusOr<uint64_t> Start(const CollectiveCall& call, absl::Time now,
                                 absl::Duration deadline);

  // Does what can be done now. True if anything has moved.
  bool Progress(absl::Time now);

  // Whether operation `number` has ended; if the engine has failed, all have.
  bool Ended(uint64_t number) const;
  // How it ended: OK, or why the engine failed before it was done. Requires Ended(number).
  absl::Status Result(uint64_t number) const;

  int running() const { return static_cast<int>(next_ - oldest_); }
  uint64_t next_number() const { return next_; }
  const absl::Status& status() const { return broken_; }  // OK until the engine fails
  // Ends everything with `why`, as the shell has learned it from elsewhere.
  void Fail(absl::Status why, absl::Time now);

  // Earliest deadline of a running operation.
  absl::Time NextDeadline() const;
  // "allreduce #3: waits 2s for rank 1 (message of 4096 bytes, 0 here)"; empty if none is running.
  std::string WaitingFor(absl::Time now) const;
  // The rank that the oldest operation waits for; -1 if none.
  int waiting_for() const { return waiting_peer_; }
  // Whether the link to rank r must take or give something before anything can move.
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
  // They keep their memory for reuse.
  NumberedRing<Operation> operations_;
  uint64_t oldest_ = 0;   // all below have ended
  uint64_t current_ = 0;  // whose ops are run now
  uint64_t next_ = 0;
  uint64_t collectives_ = 0;  // started; their number on the wire
  absl::Status broken_;
  uint64_t bytes_sent_ = 0;
  int queued_ = 0;  // sends that have not left, over all peers
  // What the current operation waits for.
  int waiting_peer_ = -1, noted_peer_ = -1;
  size_t waiting_bytes_ = 0, waiting_here_ = 0;
  absl::Time waiting_since_;
  NumberedRing<OperationRecord> records_;
  std::vector<const void*> fold_sources_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_ENGINE_H_
