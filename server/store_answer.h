// What a shard does with a STORE frame, slice by slice, at once: nothing waits for a clock. A slice of
// a range that is not here is answered WRONG_VIEW, and has changed nothing. A frame that makes no sense is
// refused with the reason, since the same again would be no better.
//
// Thread safety: none needed; the shard's thread.
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

// `map`: null before the first view; owned: by range id, null if not here; header: of the answer.
// INVALID_ARGUMENT says what in the frame makes no sense; nothing has changed then, and the sender is to hear of
// it. FAILED_PRECONDITION: nobody is answered: there is no view yet, or the sender is none of those who may ask.
absl::StatusOr<Frame> AnswerStore(const ParsedFrame& frame, const job::JobPlan& plan,
                                  const RangeMap* map,
                                  absl::Span<const std::unique_ptr<Range>> owned,
                                  const FrameHeader& header, BufferSource& buffers);

// The answer where AnswerStore says that: each slice REFUSED, and `why`, cut where it is long, in the place of
// keys (proto/frame.md).
Frame RefuseStore(const ParsedFrame& frame, const FrameHeader& header, absl::string_view why,
                  BufferSource& buffers);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_STORE_ANSWER_H_
