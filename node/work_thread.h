// WorkThread carries out items one after the other on a thread of its own, for a loop that must not
// wait: files to write, tasks that compute.
//
// Thread safety: Add() may be called from any thread.
#ifndef TANDEM_NODE_WORK_THREAD_H_
#define TANDEM_NODE_WORK_THREAD_H_

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::node {

template <typename Item>
class WorkThread {
 public:
  // `work` is called on the thread, once for each item.
  explicit WorkThread(std::function<void(Item)> work)
      : work_(std::move(work)), thread_([this] { Loop(); }) {}
  // Waits for the current item. Items behind it are dropped.
  ~WorkThread() {
    {
      absl::MutexLock lock(&mutex_);
      stop_ = true;
    }
    thread_.join();
  }
  WorkThread(const WorkThread&) = delete;
  WorkThread& operator=(const WorkThread&) = delete;

  void Add(Item item) {
    absl::MutexLock lock(&mutex_);
    items_.push_back(std::move(item));
  }

 private:
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stop_ || !items_.empty(); }
  void Loop() {
    for (;;) {
      Item item;
      {
        absl::MutexLock lock(&mutex_);
        mutex_.Await(absl::Condition(this, &WorkThread::HasWork));
        if (stop_) return;
        item = std::move(items_.front());
        items_.pop_front();
      }
      work_(std::move(item));
    }
  }

  const std::function<void(Item)> work_;
  absl::Mutex mutex_;
  std::deque<Item> items_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::node

#endif  // TANDEM_NODE_WORK_THREAD_H_
