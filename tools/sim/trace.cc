#include "tools/sim/trace.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/hash.h"

namespace tandem::sim {
namespace {

const char* KindName(FrameKind kind) {
  switch (kind) {
    case FrameKind::kPull:
      return "PULL";
    case FrameKind::kRows:
      return "ROWS";
    case FrameKind::kPush:
      return "PUSH";
    case FrameKind::kAck:
      return "ACK";
    case FrameKind::kWaiting:
      return "WAITING";
    case FrameKind::kSegment:
      return "SEGMENT";
    case FrameKind::kRefresh:
      return "REFRESH";
    default:
      return "CONTROL";
  }
}

}  // namespace

void EventTrace::Add(Entry entry) {
  entries_.push_back(std::move(entry));
  if (entries_.size() > lines_) entries_.pop_front();
}

void EventTrace::Frame(absl::Time now, const char* what, EndpointId to, const FrameHeader& header) {
  for (const uint64_t part :
       {static_cast<uint64_t>(absl::ToUnixNanos(now)), uint64_t{to.Pack()},
        uint64_t{header.sender.Pack()}, static_cast<uint64_t>(header.kind), header.request,
        static_cast<uint64_t>(header.step), static_cast<uint64_t>(header.first_step),
        static_cast<uint64_t>(what[0])}) {
    hash_ = HashCombine(hash_, part);
  }
  Add({now, what, to, header, ""});
}

void EventTrace::Line(absl::Time now, std::string text) {
  hash_ = HashCombine(hash_, HashName(text) ^ static_cast<uint64_t>(absl::ToUnixNanos(now)));
  Add({now, nullptr, {}, {}, std::move(text)});
}

std::string EventTrace::Text() const {
  std::string out;
  for (const Entry& e : entries_) {
    absl::StrAppendFormat(&out, "%10.3f ms  ",
                          absl::ToDoubleMilliseconds(e.now - absl::UnixEpoch()));
    if (e.what == nullptr) {
      absl::StrAppend(&out, e.text, "\n");
      continue;
    }
    absl::StrAppend(&out, e.header.sender.DebugString(), " -> ", e.to.DebugString(), "  ",
                    KindName(e.header.kind), " ", e.what, ": request ", e.header.request, " group ",
                    e.header.group, " steps ", e.header.first_step, "..", e.header.step, " view ",
                    e.header.view, " flags ", e.header.flags, "\n");
  }
  return out;
}

}  // namespace tandem::sim
