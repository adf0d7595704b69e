// Trace: a timeline of a process, written as a file that Perfetto (ui.perfetto.dev) and
// chrome://tracing load. Compute, pull, push and buckets each have a lane of their own. Slices on
// one track must nest. Slices of a lane that overlap without nesting therefore go to tracks side by
// side ("pull", "pull 2", ...).
//
//   Trace trace("worker 1", /*process=*/1);
//   trace.Add({"bucket 3", "allreduce", begin, end - begin, "dense"});
//   TANDEM_RETURN_IF_ERROR(trace.Write("out/trace_1.json"));
//
// Traces of several processes may be put into one file. Perfetto shows them one under another if
// their `process` differs.
//
// Thread safety: any thread may call Add. A write contains the events that were added before it.
#ifndef TANDEM_COLLECTIVES_TRACE_H_
#define TANDEM_COLLECTIVES_TRACE_H_

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace tandem::collectives {

struct TraceEvent {
  std::string name;
  std::string category;
  absl::Time start;
  absl::Duration duration;
  std::string lane;
};

class Trace {
 public:
  // Keeps the first `max_events` events. The file says how many more were dropped.
  explicit Trace(std::string process_name, int process, size_t max_events = 1 << 20);

  void Add(TraceEvent event);

  // The trace in Chrome's format: complete events ("X"), in microseconds since 1970, so that
  // processes of one host line up.
  std::string ToJson() const;
  absl::Status Write(const std::string& path) const;
  size_t size() const;

 private:
  const std::string process_name_;
  const int process_;
  const size_t max_events_;
  mutable absl::Mutex mutex_;
  std::vector<TraceEvent> events_ ABSL_GUARDED_BY(mutex_);
  size_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_TRACE_H_
