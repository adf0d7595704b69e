#include "scheduler/state/checkpoint_queue.h"

#include <algorithm>
#include <utility>

namespace tandem::scheduler {

CheckpointQueue::Answer CheckpointQueue::Add(const std::string& folder) {
  if (closed_) return Answer::kClosed;
  if (folders_.empty()) {
    folders_.push_back(folder);
    return paused_ ? Answer::kQueued : Answer::kStart;
  }
  // A request is not merged with the first one, which is in progress: its step may be earlier than
  // the request.
  if (std::count(folders_.begin() + 1, folders_.end(), folder) > 0) return Answer::kMerged;
  folders_.push_back(folder);
  return Answer::kQueued;
}

bool CheckpointQueue::PauseFor(const std::string& name) {
  paused_ = folders_.empty();
  if (!paused_) barrier_ = name;
  return !paused_;
}

bool CheckpointQueue::Resume() {
  paused_ = false;
  return !folders_.empty();
}

bool CheckpointQueue::CloseFor(const std::string& name) {
  closed_ = true;
  if (folders_.empty()) return false;
  barrier_ = name;
  return true;
}

std::string CheckpointQueue::TakeBarrier() {
  return folders_.empty() ? std::exchange(barrier_, "") : "";
}

}  // namespace tandem::scheduler
