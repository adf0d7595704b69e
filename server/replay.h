// What makes the ranges of a shard take updates, and answer reads, in the order of a recorded run
// (update_order.h). A state of a range has a number, its version; each update says which one its rows
// were read at. So a run is repeated to the same bits if
//
//   each read of a step is answered at the version at which it was answered then,
//   each push is admitted when it is the next one in the range's order, and no read that saw the
//   version which it ends is still to come.
//
// All else (what a policy does with an update, and when the version moves) follows from the order of
// arrival. Waiting so cannot lead into a circle: the recorded run is one way through all the waits.
// Reads of steps that nothing was pushed for, and evaluations, are answered when they come.
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

  // May the range, at `version`, answer the read of a worker for `step`? One that was answered before
  // comes late and doubled, and nobody waits for it.
  bool MayRead(uint32_t range, int rank, int64_t step, int64_t version) const;
  void OnRead(uint32_t range, int rank, int64_t step);

  enum class Turn {
    kNow,
    kLater,
    kNever,  // the recorded run had no such push; `why` says what it had
  };
  // `push` has all but version, admitted_before and read_number.
  Turn MayAdmit(const OrderEntry& push, int64_t version, std::string* why) const;
  // The entry of the push that has its turn now.
  const OrderEntry& Next(uint32_t range) const;
  void OnAdmitted(uint32_t range);
  // Reads answered and pushes admitted so far: if there are more, others may have their turn.
  uint64_t turns() const { return turns_; }
  // The worker that `waits` waits for at the range: whose push is the next one or, if that is its own,
  // who has not read what it would end. -1: nothing more is recorded.
  int Awaited(uint32_t range, int waits, int64_t version) const;

  // A read that was answered and is asked for once more (its answer was lost) gets the same answer:
  // the range may be further on. Kept until the worker pushes the step; null: none.
  void KeepAnswer(int rank, uint64_t request, int64_t step, const Frame& answer);
  const Frame* AnswerTo(int rank, uint64_t request) const;
  void ForgetAnswers(int rank, int64_t step);

 private:
  struct Order {
    std::vector<OrderEntry> entries;
    size_t next = 0;
    std::vector<uint32_t> by_step;  // places of entries, by (worker, step)
    std::vector<bool> read;         // by place: its rows have been read
    // By version: reads of it that are still to come.
    std::unordered_map<int64_t, int64_t> unread;
  };
  struct Answer {
    int64_t step = 0;
    Frame frame;
  };

  // The place of the entry, or -1.
  static int64_t Find(const Order& order, int rank, int64_t step);

  std::map<uint32_t, Order> orders_;  // by range
  std::map<std::pair<int, uint64_t>, Answer> answers_;
  uint64_t turns_ = 0;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_REPLAY_H_
