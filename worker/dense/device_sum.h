// Sums gradients over the workers in the memory of their GPUs. Workers of one host use CUDA IPC.
// Between hosts, one worker of each host uses pinned memory and the links of the collectives.
//
// This header needs no CUDA. Without the toolkit, New returns UNIMPLEMENTED.
#ifndef TANDEM_WORKER_DENSE_DEVICE_SUM_H_
#define TANDEM_WORKER_DENSE_DEVICE_SUM_H_

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
  std::vector<int> host_of_rank;  // empty: all ranks on one host
  // The group of the first workers of the hosts, in the order of host numbers; null on other
  // workers, and if there is one host.
  std::unique_ptr<collectives::Group> leaders;
  collectives::GroupWatch* watch = nullptr;  // asked while waiting for others; may be null
  absl::Duration deadline = absl::Minutes(1);
};

class DeviceSum {
 public:
  virtual ~DeviceSum() = default;

  // All ranks of `group` call this function, each with its own device current.
  static absl::StatusOr<std::unique_ptr<DeviceSum>> New(collectives::Group& group,
                                                        DeviceSumOptions options);

  // Sums `count` floats at `device` over all workers; the result is written there and to `host`.
  // The sum runs after the work that is already in CUDA's default stream, and is complete when this
  // function returns. All ranks call it. After an error the object cannot be used any more.
  virtual absl::Status Sum(float* device, int64_t count, float* host) = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_DEVICE_SUM_H_
