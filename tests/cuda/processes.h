// Runs a check in forked processes, one a rank, so that each has CUDA to itself and the parent
// never touches it (a process that has must not fork children that do). What hangs is killed and
// named.
#ifndef TANDEM_TESTS_CUDA_PROCESSES_H_
#define TANDEM_TESTS_CUDA_PROCESSES_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "collectives/cuda/device_allreduce.h"

namespace tandem {

struct PeerPage;  // shared by all ranks

// One rank's view of the group.
class Peer {
 public:
  Peer(int rank, int ranks, PeerPage* page) : rank_(rank), ranks_(ranks), page_(page) {}
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  // At most 1 KB a rank. An error if a rank has ended or does not come within a minute.
  collectives::DeviceStatus AllGather(const void* mine, size_t bytes, void* all);
  collectives::ByteAllGather all_gather() {
    return
        [this](const void* mine, size_t bytes, void* all) { return AllGather(mine, bytes, all); };
  }
  collectives::DeviceStatus Barrier();

 private:
  const int rank_, ranks_;
  PeerPage* const page_;
  uint64_t gathers_ = 0;
};

// What a rank has to say: nothing if all is well. A text that begins with kSkip skips the check.
using PeerBody = std::function<std::string(Peer&)>;
inline constexpr char kSkip[] = "SKIP: ";

// Empty if all ranks say nothing; else what the first one says, with its number. With
// TANDEM_GPU_INLINE in the environment one rank alone runs in this process, for tools that do not
// follow children; the caller then never asks for more.
std::string RunProcesses(int ranks, std::chrono::seconds limit, const PeerBody& body);

}  // namespace tandem

#endif  // TANDEM_TESTS_CUDA_PROCESSES_H_
