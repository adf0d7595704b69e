// A trace of what a process did when, as a file that Perfetto (ui.perfetto.dev) and
// chrome://tracing load: compute, pull, push and buckets, each on a lane of its own. What overlaps in a
// lane without lying one in the other goes to tracks side by side ("pull", "pull 2", ...): on one track
// slices must nest.
//
//   Trace trace("worker 1", /*process=*/1);
//   trace.Add({"bucket 3", "allreduce", begin, end - begin, "dense"});
//   TANDEM_RETURN_IF_ERROR(trace.Write("out/trace_1.json"));
//
// Traces of several processes may be put into one file: Perfetto shows them one under another if
// their `process` differs.
//
// Thread safety: Add may be called by any thread; what is written is what was added before.
#ifndef TANDEM_COLLECTIVES_TRACE_H_
#define TANDEM_COLLECTIVES_TRACE_H_

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/record.h"

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
  // Keeps the first `most_events`; the number of others is told in the file.
  explicit Trace(std::string process_name, int process, size_t most_events = 1 << 20);

  void Add(TraceEvent event);
  // Finished operations of a group, each from its first step to its end.
  void AddOperations(absl::Span<const OperationRecord> records, const std::string& lane);

  // In the format's own terms: complete events ("X"), in microseconds since 1970, so that processes
  // of one host line up.
  std::string ToJson() const;
  absl::Status Write(const std::string& path) const;
  size_t size() const;

 private:
  const std::string process_name_;
  const int process_;
  const size_t most_events_;
  mutable absl::Mutex mutex_;
  std::vector<TraceEvent> events_ ABSL_GUARDED_BY(mutex_);
  size_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_TRACE_H_
