// A host all-reduce among threads of one process, for the staged all-reduce to run over without a
// network: every rank adds a block of each segment from all ranks' buffers, in rank order, and
// writes it to all of them.
//
// Thread safety: each rank's HostSegments is used by one thread.
#ifndef TANDEM_TESTS_CUDA_THREAD_PEERS_H_
#define TANDEM_TESTS_CUDA_THREAD_PEERS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/cuda/device_allreduce.h"

namespace tandem {

class ThreadPeers {
 public:
  explicit ThreadPeers(int ranks);
  ~ThreadPeers();
  collectives::HostSegments& Of(int rank);
  // From now on every Start of that rank fails with this.
  void Break(int rank, const collectives::DeviceStatus& status);
  // Whether the all-reduce of that rank has given up what it started.
  bool Abandoned(int rank) const;

 private:
  class Rank;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_CUDA_THREAD_PEERS_H_
