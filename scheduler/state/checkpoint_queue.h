// The queue of checkpoints that were requested while the job runs. They are written one at a time,
// because a server abandons a checkpoint that is not written when the next one is marked.
//
// Several requests for a folder that waits in the queue count as one.
#ifndef TANDEM_SCHEDULER_STATE_CHECKPOINT_QUEUE_H_
#define TANDEM_SCHEDULER_STATE_CHECKPOINT_QUEUE_H_

#include <cstddef>
#include <deque>
#include <string>

namespace tandem::scheduler {

class CheckpointQueue {
 public:
  enum class Answer {
    kStart,   // no checkpoint is in progress: begin with this one
    kQueued,  // follows the current checkpoint, or the pause
    kMerged,  // a checkpoint for this folder is in the queue already
    kClosed,  // the job is at its end
  };
  Answer Add(const std::string& folder);

  // The folder of the current checkpoint. Requires: !empty().
  const std::string& current() const { return folders_.front(); }
  // Ends the current checkpoint. The next one in the queue, if any, becomes current.
  void Finish() { folders_.pop_front(); }
  bool empty() const { return folders_.empty(); }
  size_t size() const { return folders_.size(); }  // with the current one
  bool closed() const { return closed_; }

  // After the barrier `name` no checkpoint may begin until Resume. True: the barrier must wait
  // until the queue is empty. TakeBarrier then returns it, and it must call PauseFor again.
  bool PauseFor(const std::string& name);
  bool paused() const { return paused_; }
  // Ends the pause. True: checkpoints have been requested meanwhile; begin with the first.
  bool Resume();

  // After the barrier `name` no checkpoint may begin. True: the barrier must wait until the queue
  // is empty. TakeBarrier then returns it.
  bool CloseFor(const std::string& name);
  // If the queue is empty, returns the barrier that waits for that, and forgets it. "" if there is
  // none.
  std::string TakeBarrier();
  bool HoldsUp(const std::string& name) const { return !folders_.empty() && barrier_ == name; }

 private:
  std::deque<std::string> folders_;  // the first is in progress, unless paused
  bool closed_ = false, paused_ = false;
  std::string barrier_;
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_STATE_CHECKPOINT_QUEUE_H_
