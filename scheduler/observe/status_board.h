// Hands the status of the job from the scheduler's thread to the thread that serves it by HTTP. The
// scheduler makes a new status only while somebody looks, and at most twice a second.
//
// Thread safety: any thread.
#ifndef TANDEM_SCHEDULER_OBSERVE_STATUS_BOARD_H_
#define TANDEM_SCHEDULER_OBSERVE_STATUS_BOARD_H_

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "nlohmann/json.hpp"

namespace tandem::scheduler {

// Never changes once it is published.
struct Snapshot {
  absl::Time at;
  nlohmann::json status;   // scheduler/status.h
  nlohmann::json history;  // scheduler/observe/progress_history.h
};

class StatusBoard {
 public:
  static constexpr absl::Duration kPeriod = absl::Milliseconds(500);  // between two snapshots
  static constexpr absl::Duration kInterest = absl::Seconds(10);      // that one look causes

  // Returns a snapshot that is at most a few periods old, and waits up to `patience` for the
  // scheduler to make one. Null: the scheduler made none in this time.
  std::shared_ptr<const Snapshot> Look(absl::Duration patience) {
    const absl::Time asked = MonotonicNow();
    absl::MutexLock lock(&mutex_);
    looked_ = asked;
    const auto fresh = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return snapshot_ != nullptr && snapshot_->at >= asked - 4 * kPeriod;
    };
    while (!fresh() && !closed_) {
      if (published_.WaitUntil(&mutex_, asked + patience)) break;
    }
    return fresh() ? snapshot_ : nullptr;
  }

  // No snapshot will follow: nobody waits for one any more.
  void Close() {
    {
      absl::MutexLock lock(&mutex_);
      closed_ = true;
    }
    published_.SignalAll();
  }

  // Whether the scheduler should publish a snapshot now.
  bool IsDue(absl::Time now) const {
    absl::MutexLock lock(&mutex_);
    const bool old = snapshot_ == nullptr || now - snapshot_->at >= kPeriod;
    return old && now - looked_ < kInterest;
  }
  void Publish(std::shared_ptr<const Snapshot> snapshot) {
    {
      absl::MutexLock lock(&mutex_);
      snapshot_ = std::move(snapshot);
    }
    published_.SignalAll();
  }

 private:
  mutable absl::Mutex mutex_;
  CondVar published_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time looked_ ABSL_GUARDED_BY(mutex_) = absl::InfinitePast();
  std::shared_ptr<const Snapshot> snapshot_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_OBSERVE_STATUS_BOARD_H_
