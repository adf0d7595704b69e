// What is remembered of an operation, for dumps (dump.h) and traces.
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
  absl::Time called;    // Start
  absl::Time begun;     // its first op was run; InfiniteFuture if not yet
  absl::Time finished;  // InfiniteFuture if not yet
  bool failed = false;
  int waited_rank = -1;     // whom it waited for longest at a stretch; -1: nobody
  absl::Duration waited;    // that stretch
  int last_wait_rank = -1;  // whom it was waiting for when it was last seen waiting
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_RECORD_H_
