// Saves that somebody has asked for while the job runs: one at a time, in turn.
//
// Workers agree on a step for a save, so two at once would be two agreements that each of them could
// take for the other. Requests for a folder that already waits its turn are one.
#ifndef TANDEM_SCHEDULER_SAVE_QUEUE_H_
#define TANDEM_SCHEDULER_SAVE_QUEUE_H_

#include <deque>
#include <string>

namespace tandem::scheduler {

class SaveQueue {
 public:
  enum class Answer {
    kStart,   // nothing is under way: begin with it
    kQueued,  // follows the one under way, or the pause
    kMerged,  // one for this folder follows already
    kClosed,  // the job is at its end
  };
  Answer Add(const std::string& folder);

  // The save under way. Requires: !empty().
  const std::string& current() const { return folders_.front(); }
  // Ends it; the next one, if there is one, is under way from now on.
  void Finish() { folders_.pop_front(); }
  bool empty() const { return folders_.empty(); }
  bool closed() const { return closed_; }

  // No save may begin from the barrier `name` on, until Resume. True: it must wait until the queue is
  // empty, and is then what TakeBarrier gives; it is to pause again.
  bool PauseFor(const std::string& name);
  bool paused() const { return paused_; }
  // True: some have been asked for meanwhile; begin with the first.
  bool Resume();

  // No save may follow the barrier `name`. True: it must wait until the queue is empty, and is then
  // what TakeBarrier gives.
  bool CloseFor(const std::string& name);
  // The barrier that waits for the saves to be over, once; "" if none does.
  std::string TakeBarrier();
  bool HoldsUp(const std::string& name) const { return !folders_.empty() && barrier_ == name; }

 private:
  std::deque<std::string> folders_;  // the first is under way, unless paused
  bool closed_ = false, paused_ = false;
  std::string barrier_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_SAVE_QUEUE_H_
