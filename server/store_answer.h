// Executes STORE frames, slice by slice. Each frame is answered at once, since nothing waits for a
// clock. A slice of a range that is not here is answered WRONG_VIEW and changes nothing. An invalid
// frame is refused with the reason, so that the sender does not send it again.
//
// Thread safety: none needed; used on the shard's thread.
#ifndef TANDEM_SERVER_STORE_ANSWER_H_
#define TANDEM_SERVER_STORE_ANSWER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "job/job.h"
#include "proto/frame.h"
#include "proto/range_map.h"
#include "server/range.h"

namespace tandem::server {

// Returns the answer. `map`: null before the first view; owned: by range id, null if not here;
// header: of the answer. INVALID_ARGUMENT: the frame is invalid, and nothing has changed; tell the
// sender with RefuseStore. FAILED_PRECONDITION: send no answer, because there is no view yet or the
// sender may not send such frames. RESOURCE_EXHAUSTED: a row could not be created, and the shard
// cannot continue (NoMemoryFor).
absl::StatusOr<Frame> AnswerStore(const ParsedFrame& frame, const job::ResolvedJob& plan,
                                  const RangeMap* map,
                                  absl::Span<const std::unique_ptr<Range>> owned,
                                  const FrameHeader& header, BufferSource& buffers);

// True if the frame is a resend of writes that were applied before, so the answer changes nothing.
bool IsResentWrite(const ParsedFrame& frame, absl::Span<const std::unique_ptr<Range>> owned);

// The answer to a frame that changes nothing: each slice has `status`, and `why` takes the place of
// the keys (proto/frame.md). A long text is cut off. `status`: kRefused if the frame is invalid,
// kOverBudget if it is refused for now.
Frame RefuseStore(const ParsedFrame& frame, const FrameHeader& header, SliceStatus status,
                  absl::string_view why, BufferSource& buffers);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_STORE_ANSWER_H_
