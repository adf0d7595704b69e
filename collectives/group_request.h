// GroupRequest: one call of a group (group.h), and everything that is done before an engine runs
// it. These functions check the request, compute the length of its vector, lay small all-reduces
// end to end, and turn sends and receives into one schedule.
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
  int64_t segment_bytes = 0;  // most bytes of one message; 0: whole pieces
};

// Options of a single call.
struct CallOptions {
  absl::optional<AlgorithmChoice> choice;
  double factor = 1;                        // for kPreMulSum
  absl::optional<absl::Duration> deadline;  // default: the group's deadline
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
  int to = -1, from = -1;  // kPointToPoint: one of the two is set
};

// INVALID_ARGUMENT if the request is invalid by itself, whatever the other ranks do.
absl::Status CheckRequest(const GroupRequest& request);

// The error of a send to, or a receive from, a rank that does not exist or is the caller's own.
absl::Status WrongPeer(bool send, int peer, int rank, int ranks);

// The size by which all ranks choose the same algorithm: the bytes of one rank's whole vector. 0 if
// the sizes differ from rank to rank.
int64_t VectorBytes(const GroupRequest& request);

// Memory that a running operation needs, and the copies to make when it has ended.
struct PendingWork {
  uint64_t work = 0;
  Schedule schedule;            // if it is not a cached one
  std::vector<uint8_t> memory;  // scaled input, or fused buffers
  struct CopyOut {
    void* to;
    size_t offset, bytes;
  };
  std::vector<CopyOut> copies;  // from `memory`
  // For an average of 16-bit numbers: the sum, computed in floats. Elements [begin, begin + count)
  // are the result, which goes to `narrow_to` (null: this rank gets no result).
  std::vector<float> wide;
  DataType narrow = DataType::kF16;
  void* narrow_to = nullptr;
  size_t narrow_begin = 0, narrow_count = 0;

  void CopyResults() const;
};

// Whether input and output are the same memory.
bool InPlace(const GroupRequest& request);

// Multiplies the input of an average by BeforeAverage, in place or in memory of `*pending`. An
// average of 16-bit numbers becomes an average of floats there, because float sums lose less to
// rounding. Requires at least two ranks. If `*pending` is set already, it belongs to fused
// requests.
void BeginAverage(GroupRequest* request, std::unique_ptr<PendingWork>* pending);

// Makes one all-reduce of several: their vectors lie end to end in `pending`. Requires at least one
// request, all of them all-reduces of the same type and op.
GroupRequest Fuse(absl::Span<const GroupRequest> requests, PendingWork* pending);

// Makes one schedule of all sends and then all receives, in `pending`. Each message waits for
// nothing but its peer, because a send is queued and never blocks. Requires at least one request,
// all of them kPointToPoint and checked.
CollectiveCall SendsAndReceives(absl::Span<const GroupRequest> requests, PendingWork* pending);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_GROUP_REQUEST_H_
