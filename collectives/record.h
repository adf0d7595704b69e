// OperationRecord: the facts of one operation, kept for dumps (dump.h) and traces.
#ifndef TANDEM_COLLECTIVES_RECORD_H_
#define TANDEM_COLLECTIVES_RECORD_H_

#include <cstdint>

#include "absl/time/time.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/types.h"

namespace tandem::collectives {

struct OperationRecord {
  uint64_t number = 0;
  Primitive primitive = Primitive::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  DataType type = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  int64_t count = 0;
  int64_t bytes_sent = 0;
  absl::Time called;    // when Start was called
  absl::Time begun;     // when its first op ran; InfiniteFuture: not yet
  absl::Time finished;  // InfiniteFuture: not yet
  bool failed = false;
  int waited_rank = -1;     // the rank of the longest single wait; -1: nobody
  absl::Duration waited;    // length of that wait
  int last_wait_rank = -1;  // the rank of the latest wait
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RECORD_H_
