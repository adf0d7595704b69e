// The frames that tell workers of the rows they keep: REFRESH (proto/frame.md, subscriptions.h).
//
// Thread safety: none needed; of a shard's thread.
#ifndef TANDEM_SERVER_REFRESH_FRAMES_H_
#define TANDEM_SERVER_REFRESH_FRAMES_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "base/buffer.h"
#include "proto/frame.h"
#include "proto/outgoing.h"
#include "server/range.h"

namespace tandem::server {

// Of one worker's frame, and memory for the next ones.
struct RefreshRows {
  std::vector<uint64_t> changed, dropped;
};

// For each range (some may be null) whose clock has grown since it was told last: a refresh for each
// worker that keeps rows of it. For the others: a frame for each worker that must hear which rows are not
// kept any more (Subscriptions::MustForget). `header` has what is the same in all frames of the shard;
// `min_clock` is the shard's smallest clock over its ranges of a group.
void AppendRefreshes(FrameHeader header, absl::Span<std::unique_ptr<Range>> ranges,
                     const std::function<int64_t(uint32_t group)>& min_clock, BufferSource& buffers,
                     RefreshRows* scratch, std::vector<Outgoing>* out);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_REFRESH_FRAMES_H_
