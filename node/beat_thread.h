// The beats of one process: a thread with a connection of its own tells the scheduler every second
// that the process lives, and how far its loops have come. A loop may be busy or stuck; the beats go
// on, and show it.
#ifndef TANDEM_NODE_BEAT_THREAD_H_
#define TANDEM_NODE_BEAT_THREAD_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "proto/activity.h"
#include "proto/wire.pb.h"
#include "transport/transport.h"

namespace tandem::node {

// What a loop says of itself. Any thread.
class LoopProgress {
 public:
  // It has come round (a loop that serves) or come on (one that has work of its own to do).
  void Advance(uint64_t step) {
    step_.store(step, std::memory_order_relaxed);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  void SetActivity(Activity activity) {
    absl::MutexLock lock(&mutex_);
    activity_ = std::move(activity);
  }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  uint64_t step() const { return step_.load(std::memory_order_relaxed); }
  Activity activity() const {
    absl::MutexLock lock(&mutex_);
    return activity_;
  }

 private:
  std::atomic<uint64_t> count_{0}, step_{0};
  mutable absl::Mutex mutex_;
  Activity activity_ ABSL_GUARDED_BY(mutex_);
};

// Makes one beat of what all loops of a process say. One thread.
class LoopWatch {
 public:
  // The loops outlive the watch; at least one.
  explicit LoopWatch(std::vector<const LoopProgress*> loops)
      : loops_(std::move(loops)), seen_(loops_.size(), 0), moved_(loops_.size(), false) {}

  // Its progress grows once every loop has advanced since it last grew: one that is stuck shows.
  // Its activity is that of the first loop that waits for somebody, else of the first with a text.
  Beat Look();

 private:
  const std::vector<const LoopProgress*> loops_;
  std::vector<uint64_t> seen_;  // count of each loop
  std::vector<bool> moved_;     // since `progress_` last grew
  uint64_t progress_ = 0;
};

class BeatThread {
 public:
  // `make_transport` is called on the new thread. Beats are marked with `self` and `incarnation`.
  BeatThread(std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>()> make_transport,
             std::string scheduler, EndpointId self, uint64_t incarnation,
             std::vector<const LoopProgress*> loops);
  // Stops and joins; within a second.
  ~BeatThread();

 private:
  void Run();

  const std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>()> make_transport_;
  const std::string scheduler_;
  const EndpointId self_;
  const uint64_t incarnation_;
  LoopWatch watch_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tandem::node

#endif  // TANDEM_NODE_BEAT_THREAD_H_
