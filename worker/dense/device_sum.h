// Sums gradients over the workers in the memory of their GPUs. Workers of one host use CUDA IPC.
// Between hosts, one worker of each host uses pinned memory and the links of the collectives. If
// the devices of any host cannot reach each other, all workers use pinned memory and links.
//
// This header needs no CUDA. Without the toolkit, New returns UNIMPLEMENTED.
#ifndef TANDEM_WORKER_DENSE_DEVICE_SUM_H_
#define TANDEM_WORKER_DENSE_DEVICE_SUM_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/group.h"
#include "worker/dense/deal_devices.h"

namespace tandem::worker {

struct DeviceSumOptions {
  std::vector<int> host_of_rank;  // empty: all ranks on one host
  // The group of the first workers of the hosts, in the order of host numbers; null on other
  // workers, and if there is one host.
  std::unique_ptr<collectives::Group> leaders;
  absl::Duration deadline = absl::Minutes(1);  // for each wait, also for the device
  // `count` zeros in device memory, of the allocation that is summed later. At first the workers of
  // a host sum other numbers there, with a known result, to find out whether their devices can
  // reach each other. Afterwards the memory has zeros again.
  float* zeros = nullptr;
  int64_t count = 0;
};

// The devices of this process; empty without the toolkit or a device.
VisibleDevices FindDevices();

class DeviceSum {
 public:
  virtual ~DeviceSum() = default;

  // Called from time to time during a wait for a worker (-1: for no worker, while bytes leave); an
  // error ends the wait.
  using Waiting = std::function<absl::Status(int worker)>;

  // All ranks of `group` call this function. `group` must outlive the object.
  static absl::StatusOr<std::unique_ptr<DeviceSum>> New(collectives::Group& group,
                                                        DeviceSumOptions options,
                                                        const Waiting& waiting);

  // For reports: how the sum is computed, and why in this way.
  virtual std::string name() const = 0;
  virtual std::string why() const = 0;
  // Bytes that this rank has sent over links of its own, without those of `group`.
  virtual uint64_t bytes_sent() const = 0;

  // Sums `count` floats at `device` over all workers; the result is written there and to `host`.
  // The sum runs after the work that is already in CUDA's default stream, and is complete when this
  // function returns. All ranks call it. After an error the object cannot be used any more.
  virtual absl::Status Sum(float* device, int64_t count, float* host, const Waiting& waiting) = 0;
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_DEVICE_SUM_H_
