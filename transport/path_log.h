// PathLog records over which transports a process reaches its peers (transport/multi_transport.h),
// until the log is reported. Endpoints on several threads may share one log.
//
// Thread safety: any thread.
#ifndef TANDEM_TRANSPORT_PATH_LOG_H_
#define TANDEM_TRANSPORT_PATH_LOG_H_

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "transport/multi_transport.h"

namespace tandem::transport {

class PathLog {
 public:
  // Records a choice. If nobody calls Take(), choices after the first few thousand are dropped.
  void Add(const PathChoice& choice) {
    absl::MutexLock lock(&mutex_);
    if (news_.size() < kMaxNews) news_.push_back(choice);
  }
  std::vector<PathChoice> Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(news_, {});
  }

 private:
  static constexpr size_t kMaxNews = 4096;
  absl::Mutex mutex_;
  std::vector<PathChoice> news_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_PATH_LOG_H_
