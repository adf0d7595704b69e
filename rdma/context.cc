#include "rdma/context.h"

#include <rdma/rdma_cma.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "rdma/verbs_library.h"

namespace tandem::rdma {

absl::StatusOr<std::shared_ptr<RdmaContext>> RdmaContext::New() {
  TANDEM_RETURN_IF_ERROR(LoadVerbs());
  int count = 0;
  ibv_context** const list = rdma_get_devices(&count);
  if (list == nullptr || count == 0) {
    if (list != nullptr) rdma_free_devices(list);
    return absl::UnavailableError("this host has no RDMA device (that this process may use)");
  }
  // librdmacm keeps the devices open while this list is held.
  std::shared_ptr<const void> devices(list, [](ibv_context** l) { rdma_free_devices(l); });
  return std::make_shared<RdmaContextImpl>(std::move(devices));
}

RdmaContextImpl::~RdmaContextImpl() {
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::shared_ptr<RdmaMemory>> RdmaContextImpl::Memory(ibv_context* device) {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<RdmaMemory>& memory = memories_[device];
  if (memory == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(memory, RdmaMemory::New(device, devices_));
  }
  return memory;
}

void RdmaContextImpl::SeeOff(std::unique_ptr<RdmaLeftover> leftover) {
  absl::MutexLock lock(&mutex_);
  leftovers_.push_back(std::move(leftover));
  if (running_) return;
  running_ = true;
  // The old thread has left its loop, because it clears running_ last.
  if (thread_.joinable()) thread_.join();
  thread_ = std::thread([this] { Run(); });
}

void RdmaContextImpl::Run() {
  std::vector<std::unique_ptr<RdmaLeftover>> mine;
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      for (auto& leftover : leftovers_) mine.push_back(std::move(leftover));
      leftovers_.clear();
      if (mine.empty()) {
        running_ = false;
        return;
      }
    }
    for (size_t i = 0; i < mine.size();) {
      if (mine[i]->Continue()) {
        ++i;
      } else {
        mine.erase(mine.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
}

}  // namespace tandem::rdma
