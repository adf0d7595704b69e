// RdmaMemory: registered memory of one RDMA device, that is a protection domain and buffers that
// the device may read and write. All endpoints, clients and shards of a process that use the device
// share one RdmaMemory, so what one of them receives another can send on without copying.
//
// Buffers are registered when they are first made, and reused by size. In steady state nothing is
// registered and nothing allocated. No other process can access these buffers: remote keys are made
// elsewhere, for one ring or one transfer (rdma/ring.h, rdma/connection.h).
//
// If the system refuses to lock memory (RLIMIT_MEMLOCK), Alloc returns plain memory. Frames must be
// copied out of it before they are sent.
//
// Thread safety: any thread. The memory lives until the last holder and the last buffer are gone.
#ifndef TANDEM_RDMA_MEMORY_H_
#define TANDEM_RDMA_MEMORY_H_

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/buffer.h"

namespace tandem::rdma {

struct RdmaMemoryStats {
  uint64_t registrations = 0;     // since the start
  uint64_t refusals = 0;          // times the system refused to register
  uint64_t allocations = 0;       // blocks that were made and not reused
  uint64_t registered_bytes = 0;  // now
};

class RdmaMemory final : public BufferSource {
 public:
  // `owner` keeps `context` open. UNAVAILABLE: the device gives no protection domain.
  static absl::StatusOr<std::shared_ptr<RdmaMemory>> New(ibv_context* context,
                                                         std::shared_ptr<const void> owner);
  ~RdmaMemory() override;
  RdmaMemory(const RdmaMemory&) = delete;
  RdmaMemory& operator=(const RdmaMemory&) = delete;

  ibv_context* context() const;
  ibv_pd* pd() const;
  const ibv_device_attr& attributes() const;

  Buffer Alloc(size_t bytes) override;
  // The registration that covers [data, data + bytes); null if there is none. The registration
  // stays valid as long as the buffer that the bytes belong to.
  ibv_mr* Find(const void* data, size_t bytes) const;

  // Whether remote keys to a part of a buffer can be made and taken back without the kernel (memory
  // windows of type 2).
  bool has_windows() const;

  // Bytes a second at which the processor copies between two buffers; measured once.
  double copy_rate() const;
  RdmaMemoryStats stats() const;

 private:
  class Pool;
  explicit RdmaMemory(Pool* pool);
  Pool* const pool_;
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_MEMORY_H_
