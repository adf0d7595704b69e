// RdmaContextImpl: the implementation of RdmaContext. The context holds the memory of each device,
// and the thread that lets frames of destroyed endpoints leave. For rdma/ only.
//
// Thread safety: any thread.
#ifndef TANDEM_RDMA_CONTEXT_H_
#define TANDEM_RDMA_CONTEXT_H_

#include <infiniband/verbs.h>

#include <condition_variable>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "rdma/memory.h"
#include "rdma/rdma_transport.h"

namespace tandem::rdma {

// An endpoint that nobody uses any more, but that still has frames to deliver.
class RdmaLeftover {
 public:
  virtual ~RdmaLeftover() = default;
  // Works for a moment; false when everything is done.
  virtual bool Continue() = 0;
};

class RdmaContextImpl final : public RdmaContext {
 public:
  explicit RdmaContextImpl(std::shared_ptr<const void> devices) : devices_(std::move(devices)) {}
  ~RdmaContextImpl() override;

  // The memory of a device that librdmacm has opened.
  absl::StatusOr<std::shared_ptr<RdmaMemory>> Memory(ibv_context* device);
  void SeeOff(std::unique_ptr<RdmaLeftover> leftover);

 private:
  void Run();

  const std::shared_ptr<const void> devices_;
  absl::Mutex mutex_;
  absl::flat_hash_map<ibv_context*, std::shared_ptr<RdmaMemory>> memories_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<RdmaLeftover>> leftovers_ ABSL_GUARDED_BY(mutex_);
  bool running_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_CONTEXT_H_
