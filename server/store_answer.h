// What a shard does with a STORE frame, slice by slice, at once: nothing waits for a clock. A slice of
// a range that is not here is answered WRONG_VIEW, and has changed nothing.
//
// Thread safety: none needed; the shard's thread.
#ifndef TANDEM_SERVER_STORE_ANSWER_H_
#define TANDEM_SERVER_STORE_ANSWER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "job/job.h"
#include "proto/frame.h"
#include "proto/range_map.h"
#include "server/range.h"

namespace tandem::server {

// `map`: null before the first view; owned: by range id, null if not here; header: of the answer.
// INVALID_ARGUMENT says what in the frame makes no sense; nothing has changed then.
absl::StatusOr<Frame> AnswerStore(const ParsedFrame& frame, const job::JobPlan& plan,
                                  const RangeMap* map,
                                  absl::Span<const std::unique_ptr<Range>> owned,
                                  const FrameHeader& header, BufferSource& buffers);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_STORE_ANSWER_H_
