// Repeats a recorded run (order_file.h): makes the ranges of a shard admit pushes and answer
// reads in the recorded order. The version of a range numbers its states, and each recorded update
// names the version that its rows were read at. A run is repeated to the same bits if
//
//   - each read of a step is answered at the recorded version;
//   - each push is admitted when it is the next one in the range's order. If it ends a version, it
//     waits until all recorded reads of that version have been answered.
//
// Everything else (what a policy does with an update, when the version moves) follows from the
// order of arrival. These waits cannot deadlock, since the recorded run got through all of them.
// Evaluations, and reads of steps for which no rows were pushed, are answered at once.
//
// Thread safety: none needed; belongs to a shard.
#ifndef TANDEM_SERVER_RECORD_REPLAY_H_
#define TANDEM_SERVER_RECORD_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/frame.h"
#include "server/record/order_file.h"
#include "server/record/turn_order.h"

namespace tandem::server {

class Replay final : public TurnOrder {
 public:
  explicit Replay(std::map<uint32_t, std::vector<OrderEntry>> orders);

  bool DecidedElsewhere() const override { return true; }

  // A read of rows is answered at the version at which the recorded run answered it, or if it was
  // answered before: then it is a late duplicate, and nobody waits for its answer.
  //
  // A read without rows is not recorded, so the policy decides: in jobs that take steps together,
  // the answer to such a read tells the worker that a step has closed. A policy that measures times
  // would decide differently from run to run. For it, MayStart decides, which does not depend on
  // the time.
  bool MayRead(const OrderedRange& range, const FrameHeader& read, uint32_t rows,
               int depth) const override;
  // If an answer was lost and the read is sent again, it gets the same answer, because the range
  // may have a newer version by then. An answer is kept until the worker has pushed the step.
  const Frame* AnswerTo(const FrameHeader& read) const override;
  bool OnRead(const FrameHeader& read, absl::Span<const SliceEntry> entries,
              const Frame& answer) override;

  // The error names the difference from the recorded run.
  absl::StatusOr<bool> MayAdmit(const OrderedRange& range, const FrameHeader& push,
                                HeldUpdate* update) const override;
  void OnAdmitted(const OrderedRange& range, const FrameHeader& push) override;

  // The sender of the next push or, if that is the waiting worker itself, a worker that has not
  // read the version which the push would end. The slowest worker if the record has no more
  // entries.
  int Awaited(const OrderedRange& range, const FrameHeader& waits) const override;

 private:
  struct Order {
    std::vector<OrderEntry> entries;
    size_t next = 0;
    std::vector<uint32_t> by_step;  // indices of entries, sorted by (worker, step)
    std::vector<bool> read;         // by entry: its read has been answered
    // By version: how many recorded reads of it have not come yet.
    std::unordered_map<int64_t, int64_t> unread;
  };
  struct Answer {
    int64_t step = 0;
    Frame frame;
  };

  // The index of the entry, or -1.
  static int64_t Find(const Order& order, int rank, int64_t step);
  // Marks the entry as read. False if there is none, or if it was read before.
  bool MarkRead(uint32_t range, int rank, int64_t step);

  std::map<uint32_t, Order> orders_;                    // by range
  std::map<std::pair<int, uint64_t>, Answer> answers_;  // by worker and request
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_RECORD_REPLAY_H_
