// The beats of one process: a thread with a connection of its own tells the scheduler every second
// that the process lives, and how far its main loop has come. The main loop may be busy or stuck;
// the beats go on, and show it.
#ifndef TANDEM_NODE_BEAT_THREAD_H_
#define TANDEM_NODE_BEAT_THREAD_H_

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "transport/transport.h"

namespace tandem {

// What the main loop says of itself. Any thread.
class LoopProgress {
 public:
  void Advance(uint64_t step) {
    step_.store(step, std::memory_order_relaxed);
    count_.fetch_add(1, std::memory_order_relaxed);
  }
  void SetActivity(std::string activity) {
    absl::MutexLock lock(&mutex_);
    activity_ = std::move(activity);
  }
  uint64_t count() const { return count_.load(std::memory_order_relaxed); }
  uint64_t step() const { return step_.load(std::memory_order_relaxed); }
  std::string activity() const {
    absl::MutexLock lock(&mutex_);
    return activity_;
  }

 private:
  std::atomic<uint64_t> count_{0}, step_{0};
  mutable absl::Mutex mutex_;
  std::string activity_ ABSL_GUARDED_BY(mutex_);
};

class BeatThread {
 public:
  // `make_transport` is called on the new thread. Beats are marked with `self` and `incarnation`.
  BeatThread(std::function<absl::StatusOr<std::unique_ptr<Transport>>()> make_transport,
             std::string scheduler, EndpointId self, uint64_t incarnation,
             const LoopProgress* progress);
  // Stops and joins; within a second.
  ~BeatThread();

 private:
  void Run();

  const std::function<absl::StatusOr<std::unique_ptr<Transport>>()> make_transport_;
  const std::string scheduler_;
  const EndpointId self_;
  const uint64_t incarnation_;
  const LoopProgress* const progress_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace tandem

#endif  // TANDEM_NODE_BEAT_THREAD_H_
