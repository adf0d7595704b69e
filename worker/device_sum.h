// Sums gradients over the workers in the memory of their GPUs: through CUDA IPC between the workers
// of a host, and through pinned memory and the links of the collectives between hosts, one worker
// of each.
//
// Nothing of CUDA is needed to include this. Without the toolkit New is UNIMPLEMENTED.
#ifndef TANDEM_WORKER_DEVICE_SUM_H_
#define TANDEM_WORKER_DEVICE_SUM_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "collectives/group.h"

namespace tandem::worker {

struct DeviceSumOptions {
  std::vector<int> host_of_rank;  // empty: all on one
  // Between the first workers of the hosts, in the order of the hosts' numbers; null on other
  // workers, and if there is one host.
  std::unique_ptr<collectives::Group> leaders;
  collectives::GroupWatch* watch = nullptr;  // asked while others are waited for; may be null
  absl::Duration deadline = absl::Minutes(1);
};

class DeviceSum {
 public:
  virtual ~DeviceSum() = default;

  // All ranks of `group` call it, each with its device current.
  static absl::StatusOr<std::unique_ptr<DeviceSum>> New(collectives::Group& group,
                                                        DeviceSumOptions options);

  // The sum of `count` floats at `device` over all workers, there and at `host`. It follows what is
  // enqueued in CUDA's default stream, and has arrived when this returns. All ranks call it; after
  // an error it is finished.
  virtual absl::Status Sum(float* device, int64_t count, float* host) = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DEVICE_SUM_H_
