// Executes collectives by schedule for one rank: a deterministic state machine without sockets,
// threads or a clock. Its shell moves frames (SEGMENT, proto/frame.h) and tells the time.
//
// Thread safety: none; one thread uses an engine.
//
// Data path. A send copies its piece once, into a buffer of the BufferSource. A receive adds or
// copies straight from the received buffer. Segments that come ahead of need are kept by reference:
//   - for operations started here: at most what the schedule receives, each segment once;
//   - for operations not started yet: at most max_early_bytes; more are dropped and asked for
//   later.
// Once as many operations as are kept have run, nothing is allocated but buffers.
//
// Lost, doubled and reordered frames. Segments are numbered per (operation, pair), so order does
// not matter and a second copy is ignored. A rank that has not come forward for resend_after asks
// the ranks it waits for again; they answer from the segments they keep. Every frame says below
// which operation its sender has finished; segments for it are dropped then, and a rank from which
// we only receive is told so by a frame of its own when an operation ends. At the latest they are
// dropped 2 * max_in_flight operations on: operation n + w may start only when n is complete (w =
// max_in_flight, the same on all ranks), and no all-reduce ends before every rank has started it,
// so when n + w has ended here nobody can still lack anything of n. (Collectives that end early at
// some rank, such as a broadcast at its root, will need that rank to wait for the word instead.)
//
// Failure. The first operation that fails (deadline, lost peer, ranks that disagree) ends all of
// them on this rank with its status, and every other rank is told; after that Start returns the
// status. A group that has failed is finished: the next view makes new engines.
#ifndef TANDEM_COLLECTIVES_ENGINE_H_
#define TANDEM_COLLECTIVES_ENGINE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "collectives/legacy/operation.h"
#include "collectives/legacy/schedule.h"
#include "proto/frame.h"

namespace tandem {
inline namespace legacy {

struct OutgoingSegment {
  int to_rank = 0;
  Frame frame;
};

struct CollectiveCompletion {
  uint64_t operation = 0;
  absl::Status status;
};

// What an event brings about; the engine appends, the caller empties and reuses.
struct CollectiveEffects {
  std::vector<OutgoingSegment> sends;
  std::vector<CollectiveCompletion> completions;
  void Clear() {
    sends.clear();
    completions.clear();
  }
};

struct CollectiveOptions {
  uint64_t first_operation = 0;
  // Stamped into frames. Segments of another group (an engine of before) are refused.
  uint32_t group = 0;
  uint32_t view = 0;
  uint64_t incarnation = 0;
  // Operation n may start when n - max_in_flight is complete. The same on all ranks.
  int max_in_flight = 4;
  absl::Duration resend_after = absl::Seconds(1);
  int64_t max_early_bytes = int64_t{1} << 30;
};

// What a SEGMENT frame is for, in its flags. All kinds carry: request = operation, samples =
// elements of the operation, first_step = all operations below it are finished at the sender,
// group.
enum class SegmentKind : uint8_t {
  kData = 0,      // step = number of the message; values = the piece
  kAsk = 1,       // step = number of a message not received: send it again
  kFinished = 2,  // nothing but first_step
  kAbort = 3,     // step = status code, values = text: the sender has given up
};

class CollectiveEngine {
 public:
  // Requires 0 <= rank < ranks. `source` outlives the engine.
  CollectiveEngine(int rank, int ranks, BufferSource& source,
                   const CollectiveOptions& options = {});
  ~CollectiveEngine();
  CollectiveEngine(const CollectiveEngine&) = delete;
  CollectiveEngine& operator=(const CollectiveEngine&) = delete;

  // Starts operation `number`; all ranks start the same operations, counting up by one. The
  // schedule and the data stay untouched by the caller until the completion, which may come at
  // once. INVALID_ARGUMENT: wrong number, or a schedule that is not for this rank, group size and
  // data. RESOURCE_EXHAUSTED: see max_in_flight. Or the status with which the group failed.
  absl::Status Start(uint64_t number, const Schedule* schedule, absl::Span<float> data,
                     absl::Time now, absl::Duration deadline, CollectiveEffects* effects);

  // A SEGMENT frame from another rank. An error means that the segment was malformed, names the
  // rank that sent it, and changes nothing.
  absl::Status OnSegment(int from, const ParsedFrame& segment, absl::Time now,
                         CollectiveEffects* effects);

  // Deadlines and asking again. Late calls make both late, early calls do no harm.
  void OnTick(absl::Time now, CollectiveEffects* effects);
  // When OnTick next has something to do; InfiniteFuture if no operation is running.
  absl::Time NextTick() const;

  // The connection to a rank is gone, by accident or in order: no operation can end without it.
  void OnPeerLost(int rank, absl::string_view why, CollectiveEffects* effects);

  int running() const { return running_; }
  // OK until the group fails.
  const absl::Status& status() const { return broken_; }
  // What the oldest running operation waits for, since when: "operation 3: waits 2s for ...". Empty
  // if none is running.
  std::string WaitingFor(absl::Time now) const;

 private:
  using Operation = CollectiveOperation;
  struct EarlySegment {
    uint64_t number = 0;
    int from = 0;
    int64_t message = 0;
    uint64_t count = 0;
    Buffer values;
  };

  // Where operation `number` is, if it is still remembered (see Remembers), and where it will be.
  Operation& SlotOf(uint64_t number) { return slots_[number % slots_.size()]; }
  const Operation& SlotOf(uint64_t number) const { return slots_[number % slots_.size()]; }
  bool Remembers(uint64_t number) const;
  bool Running(uint64_t number) const;

  absl::Status CheckStart(uint64_t number, const Schedule& schedule, absl::Span<float> data) const;
  absl::Status CheckSender(int from, const ParsedFrame& segment) const;
  absl::Status LearnFloor(int from, int64_t floor);
  absl::Status OnData(int from, const ParsedFrame& segment, absl::Time now,
                      CollectiveEffects* effects);
  absl::Status OnAsk(int from, const ParsedFrame& segment, CollectiveEffects* effects);
  void OnAbort(int from, const ParsedFrame& segment, CollectiveEffects* effects);
  void AnswerFailed(int to, const ParsedFrame& segment, CollectiveEffects* effects);
  void KeepEarly(int from, const ParsedFrame& segment);
  absl::Status AdoptEarly(Operation& op);

  void Advance(Operation& op, absl::Time now, CollectiveEffects* effects);
  void SendStep(Operation& op, CollectiveEffects* effects);
  bool ApplyStep(Operation& op, absl::Time now);  // false: waits for a message
  // False if it needs a message that has not come.
  bool ApplyOp(Operation& op, const Op& what, int slot, absl::Time now);
  void Finish(Operation& op, CollectiveEffects* effects);
  void AskAgain(Operation& op, absl::Time now, CollectiveEffects* effects);
  // Ends everything with `status`, and tells the other ranks (Fail) or not (FailSilently).
  void Fail(absl::Status status, CollectiveEffects* effects);
  void FailSilently(absl::Status status, CollectiveEffects* effects);
  Frame EncodeAbort();
  std::string Waits(const Operation& op, absl::Time now) const;
  absl::Status CountMismatch(uint64_t number, uint64_t mine, int from, uint64_t theirs) const;
  Frame Encode(SegmentKind kind, uint64_t number, int64_t message, uint64_t count,
               Buffer values = Buffer());

  const int rank_;
  const int ranks_;
  BufferSource& source_;
  const CollectiveOptions options_;
  uint64_t next_;   // number of the next operation to start
  uint64_t floor_;  // all operations below are finished here
  int running_ = 0;
  absl::Status broken_;
  std::vector<Operation> slots_;      // number % (2 * max_in_flight)
  std::vector<uint64_t> peer_floor_;  // by rank
  std::vector<EarlySegment> early_;   // of operations >= next_
  int64_t early_bytes_ = 0;
  bool early_dropped_ = false;  // since the last Start
};

}  // namespace legacy
}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_ENGINE_H_
