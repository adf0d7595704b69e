// JobNews keeps the scheduler's messages for the program that drives a worker: results of
// evaluations, and records of the job.
//
// Thread safety: all methods from any thread.
#ifndef TANDEM_WORKER_JOB_NEWS_H_
#define TANDEM_WORKER_JOB_NEWS_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "proto/wire.pb.h"

namespace tandem::worker {

class JobNews {
 public:
  // Takes the parts of a message of the scheduler that are for the program.
  void Hear(const Control& control);
  // The worker has ended, well or not.
  void End(const absl::Status& how);

  // The program has given the last batch of an evaluation.
  void OnEvaluationGiven();
  // True: the evaluation whose last batch was given is over, and *json has its result, "" if no
  // worker had samples. False: not by the deadline. An error: the job has failed meanwhile.
  absl::StatusOr<bool> Evaluation(absl::Time deadline, std::string* json);

  // The next record (Record of wire.proto); nullopt: there is none yet. Only the newest
  // kMaxRecords are kept.
  std::optional<std::string> TakeRecord();

 private:
  static constexpr size_t kMaxRecords = 1000;

  absl::Mutex mutex_;
  CondVar changed_;
  std::optional<absl::Status> how_ ABSL_GUARDED_BY(mutex_);  // how the worker has ended
  int64_t given_ ABSL_GUARDED_BY(mutex_) = 0;                // evaluations of this program
  int64_t over_ ABSL_GUARDED_BY(mutex_) = 0;     // those of them that have ended on all workers
  std::string barrier_ ABSL_GUARDED_BY(mutex_);  // of the last one
  std::string json_ ABSL_GUARDED_BY(mutex_);     // its result
  std::deque<std::string> records_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_JOB_NEWS_H_
