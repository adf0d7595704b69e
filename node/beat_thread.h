// BeatThread sends the heartbeats of one process, from a thread with a connection of its own. Every
// second the thread tells the scheduler that the process lives, and how far its loops have come.
// When a loop is busy or stuck, heartbeats continue and show it.
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

// The progress of one loop, as the loop reports it. Thread safety: any thread.
class LoopProgress {
 public:
  // The loop completed an iteration (servers) or made progress on its own work (workers).
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

// Makes one heartbeat from the reports of all loops of a process. Thread safety: one thread.
class LoopWatch {
 public:
  // `loops`: at least one; they must outlive the watch.
  explicit LoopWatch(std::vector<const LoopProgress*> loops)
      : loops_(std::move(loops)), seen_(loops_.size(), 0), moved_(loops_.size(), false) {}

  // The heartbeat's progress number grows when every loop has advanced since it last grew. So one
  // stuck loop is enough to stop it. The heartbeat's activity is that of the first loop that waits
  // for another endpoint, or else of the first loop with a text.
  Beat Look();

 private:
  const std::vector<const LoopProgress*> loops_;
  std::vector<uint64_t> seen_;  // count of each loop
  std::vector<bool> moved_;     // which loops advanced since `progress_` last grew
  uint64_t progress_ = 0;
};

class BeatThread {
 public:
  // `make_transport` is called on the new thread. Heartbeats carry `self` and `incarnation`, and
  // leave every `interval`.
  BeatThread(std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>()> make_transport,
             std::string scheduler, EndpointId self, uint64_t incarnation,
             std::vector<const LoopProgress*> loops, absl::Duration interval);
  // Stops and joins the thread, within a second.
  ~BeatThread();

 private:
  void Run();

  const std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>()> make_transport_;
  const std::string scheduler_;
  const EndpointId self_;
  const uint64_t incarnation_;
  const absl::Duration interval_;
  LoopWatch watch_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tandem::node

#endif  // TANDEM_NODE_BEAT_THREAD_H_
