// REFRESH frames: they tell workers which of the rows they keep have changed (proto/frame.md,
// subscriptions.h).
//
// Thread safety: none needed; used on the shard's thread.
#ifndef TANDEM_SERVER_REFRESH_FRAMES_H_
#define TANDEM_SERVER_REFRESH_FRAMES_H_

#include <cstdint>
#include <vector>

#include "base/buffer.h"
#include "proto/outgoing.h"
#include "server/shard_ranges.h"

namespace tandem::server {

// The ranges that owe frames, and the keys of one worker's frame. Scratch memory that is reused for
// the next frames.
struct RefreshRows {
  std::vector<uint32_t> ranges;
  std::vector<uint64_t> changed, dropped;
};

// Appends the frames that are due. If the clock of a range has grown since its last refresh, each
// worker that keeps rows of it gets a refresh. For the other ranges, each worker that must hear of
// dropped rows now (Subscriptions::MustForget) gets a frame with those only. Looks only at ranges
// that owe a refresh (RangeTotals).
void AppendRefreshes(ShardRanges* ranges, BufferSource& buffers, RefreshRows* scratch,
                     std::vector<Outgoing>* out);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_REFRESH_FRAMES_H_
