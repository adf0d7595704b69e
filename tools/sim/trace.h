// The events of a simulated run: the last lines, for reading when the run fails, and a hash over
// all lines, which is equal for equal runs.
#ifndef TANDEM_TOOLS_SIM_TRACE_H_
#define TANDEM_TOOLS_SIM_TRACE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "proto/frame.h"

namespace tandem::sim {

class EventTrace {
 public:
  explicit EventTrace(size_t lines) : lines_(lines) {}

  // `what`: "sent", "arrives" or "lost"; must outlive the trace.
  void Frame(absl::Time now, const char* what, EndpointId to, const FrameHeader& header);
  void Line(absl::Time now, std::string text);

  uint64_t hash() const { return hash_; }
  std::string Text() const;

 private:
  struct Entry {  // becomes text only when it is read
    absl::Time now;
    const char* what = nullptr;
    EndpointId to;
    FrameHeader header;
    std::string text;
  };
  void Add(Entry entry);

  const size_t lines_;
  std::deque<Entry> entries_;
  uint64_t hash_ = 0;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_TRACE_H_
