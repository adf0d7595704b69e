// DealDevices assigns the GPUs of all hosts to the workers of a job. Each worker gets one of the
// GPUs that CUDA shows it.
#ifndef TANDEM_WORKER_DENSE_DEAL_DEVICES_H_
#define TANDEM_WORKER_DENSE_DEAL_DEVICES_H_

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace tandem::worker {

// The UUIDs of the GPUs that a worker sees, in the order in which CUDA numbers them. A MIG instance
// has a UUID of its own.
using VisibleDevices = std::vector<std::string>;

struct DealtDevices {
  std::vector<int> of_worker;  // by rank: an index into what the worker sees; -1: it sees none
  std::string warning;         // workers share a GPU while another one is free; empty: none
};

// Shares GPUs as little as possible, and equally. Every worker gets the same result from the same
// lists. A UUID names the same GPU for all agents and containers, so host names do not matter.
DealtDevices DealDevices(absl::Span<const VisibleDevices> visible);

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_DENSE_DEAL_DEVICES_H_
