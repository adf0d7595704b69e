// CounterFile keeps the counters of /metrics from falling. A run that resumes from a checkpoint
// counts from there, so its counters are smaller than before. Prometheus takes a smaller counter
// for that of a new process, and adds the whole count again. A counter therefore stays at its
// largest value until the run has passed it.
//
// A file in the run's folder has the values, because each attempt has a scheduler of its own. The
// file has only values that /metrics has shown.
//
// Thread safety: any thread.
#ifndef TANDEM_SCHEDULER_OBSERVE_COUNTER_FILE_H_
#define TANDEM_SCHEDULER_OBSERVE_COUNTER_FILE_H_

#include <map>
#include <string>
#include <vector>

#include <prometheus/metric_family.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace tandem::scheduler {

class CounterFile {
 public:
  // Reads the values of earlier attempts, if `path` exists. `path` empty: no file.
  explicit CounterFile(std::string path);

  // Raises counters and histograms to the largest values so far, and writes new values to the file.
  // If the file cannot be written, the next attempt does not know them. The counts of restarts stay
  // as they are: each `tandem run` begins with 0.
  void Raise(std::vector<prometheus::MetricFamily>* families);

 private:
  const std::string path_;
  absl::Mutex mutex_;
  // By name and labels.
  std::map<std::string, double> largest_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_OBSERVE_COUNTER_FILE_H_
