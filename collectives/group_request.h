// A call of a group (group.h) as it was made, and what can be said and done before an engine runs
// it: whether it can be right, how long its vector is, small all-reduces laid end to end, and sends
// and receives put together into one schedule.
//
// Thread safety: pure functions over values.
#ifndef TANDEM_COLLECTIVES_GROUP_REQUEST_H_
#define TANDEM_COLLECTIVES_GROUP_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "collectives/engine.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/types.h"

namespace tandem::collectives {

struct AlgorithmChoice {
  Algorithm algorithm = Algorithm::kDirect;
  int64_t segment_bytes = 0;  // most bytes of a message; 0 = whole pieces
};

// What a single call may change.
struct CallOptions {
  absl::optional<AlgorithmChoice> choice;
  double factor = 1;                        // for kPreMulSum
  absl::optional<absl::Duration> deadline;  // none: the group's
  ElementName called = ElementName::kAsType;
};

struct GroupRequest {
  Primitive primitive = Primitive::kAllReduce;
  const void* in = nullptr;
  void* out = nullptr;
  DataType type = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  CollectiveShape shape;
  CallOptions call;
  int to = -1, from = -1;  // kPointToPoint: one of them
};

// INVALID_ARGUMENT for a request that cannot be right, whatever the other ranks do.
absl::Status CheckRequest(const GroupRequest& request);

// The error of a message to, or from, a rank that is none or this one.
absl::Status WrongPeer(bool send, int peer, int rank, int ranks);

// By which all ranks choose an algorithm alike: the bytes of one rank's whole vector. 0 where they
// differ from rank to rank.
int64_t VectorBytes(const GroupRequest& request);

// What a running operation needs, and what is left to do when it has ended.
struct PendingWork {
  uint64_t work = 0;
  Schedule schedule;            // if it is not a kept one
  std::vector<uint8_t> memory;  // input scaled, or buffers fused
  struct CopyOut {
    void* to;
    size_t offset, bytes;
  };
  std::vector<CopyOut> copies;  // from `memory`
  // The sum of an average of 16-bit numbers, computed in floats. Elements [begin, begin + count) are
  // the result, for `narrow_to` (null: there is none on this rank).
  std::vector<float> wide;
  DataType narrow = DataType::kF16;
  void* narrow_to = nullptr;
  size_t narrow_begin = 0, narrow_count = 0;

  void CopyResults() const;
};

// Whether the memory of input and output is one.
bool InPlace(const GroupRequest& request);

// Multiplies the input of an average by BeforeAverage: in place, or in memory of `*pending`. One of
// 16-bit numbers becomes one of floats there, since sums of these are rounded less. Requires two
// ranks or more; a `*pending` that is there is that of fused requests.
void BeginAverage(GroupRequest* request, std::unique_ptr<PendingWork>* pending);

// One all-reduce in place of several, over their vectors laid end to end in `pending`. Requires:
// they are all-reduces of the same type and op, and at least one.
GroupRequest Fuse(absl::Span<const GroupRequest> requests, PendingWork* pending);

// All sends, then all receives, as one schedule in `pending`: each waits for nothing but its peer.
// Requires at least one request, all of them kPointToPoint and checked.
CollectiveCall SendsAndReceives(absl::Span<const GroupRequest> requests, PendingWork* pending);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_REQUEST_H_
