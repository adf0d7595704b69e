// Repeats a recorded run (update_order.h): makes the ranges of a shard admit pushes and answer
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
#ifndef TANDEM_SERVER_REPLAY_H_
#define TANDEM_SERVER_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "proto/frame.h"
#include "server/update_order.h"

namespace tandem::server {

class Replay {
 public:
  explicit Replay(std::map<uint32_t, std::vector<OrderEntry>> orders);

  // May the range, at `version`, answer the read of a worker for `step`? True also for a read that
  // was answered before: such a read is a late duplicate, and nobody waits for its answer.
  bool MayRead(uint32_t range, int rank, int64_t step, int64_t version) const;
  void OnRead(uint32_t range, int rank, int64_t step);

  enum class Turn {
    kNow,
    kLater,
    kNever,  // the recorded run had no such push; `why` names the difference
  };
  // `push` has all fields but version, admitted_before and read_number.
  Turn MayAdmit(const OrderEntry& push, int64_t version, std::string* why) const;
  // The entry of the next push in the range's order.
  const OrderEntry& Next(uint32_t range) const;
  void OnAdmitted(uint32_t range);
  // Counts answered reads and admitted pushes. If the count has grown, others may be able to
  // continue.
  uint64_t turns() const { return turns_; }
  // The worker that worker `waits` waits for at the range. This is the sender of the next push or,
  // if that is `waits` itself, a worker that has not read the version which the push would end. -1:
  // the record has no more entries.
  int Awaited(uint32_t range, int waits, int64_t version) const;

  // Answers kept for resent reads. If an answer was lost and the read is sent again, it gets the
  // same answer, because the range may have a newer version by then. An answer is kept until the
  // worker has pushed the step. AnswerTo: null if there is none.
  void KeepAnswer(int rank, uint64_t request, int64_t step, const Frame& answer);
  const Frame* AnswerTo(int rank, uint64_t request) const;
  void ForgetAnswers(int rank, int64_t step);

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

  std::map<uint32_t, Order> orders_;  // by range
  std::map<std::pair<int, uint64_t>, Answer> answers_;
  uint64_t turns_ = 0;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_REPLAY_H_
