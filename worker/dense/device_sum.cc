#include "worker/dense/device_sum.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

#ifdef TANDEM_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "collectives/cuda/device_allreduce.h"
#endif

namespace tandem::worker {

#ifndef TANDEM_HAVE_CUDA

absl::StatusOr<std::unique_ptr<DeviceSum>> DeviceSum::New(collectives::Group&, DeviceSumOptions) {
  return absl::UnimplementedError("this build has no CUDA");
}

#else

namespace {

absl::Status ToAbsl(const collectives::DeviceStatus& status) {
  if (status.ok()) return absl::OkStatus();
  const std::string text = absl::StrCat("gradients on the GPU: ", status.message());
  switch (status.code()) {
    case collectives::DeviceStatus::Code::kDeadline:
      return absl::DeadlineExceededError(text);
    case collectives::DeviceStatus::Code::kUnsupported:
      return absl::FailedPreconditionError(text);
    case collectives::DeviceStatus::Code::kPeer:
      return absl::UnavailableError(text);
    default:
      return absl::InternalError(text);
  }
}

collectives::DeviceStatus FromAbsl(const absl::Status& status) {
  if (status.ok()) return collectives::DeviceStatus();
  return collectives::DeviceStatus(collectives::DeviceStatus::Code::kPeer,
                                   std::string(status.message()));
}

// Runs the segments of a staged all-reduce over a group of the hosts' leaders.
class GroupSegments final : public collectives::HostSegments {
 public:
  explicit GroupSegments(collectives::Group& group) : group_(group) {}
  collectives::DeviceStatus Start(size_t segment, const collectives::DeviceReduction& what,
                                  void* data, size_t count) override {
    if (works_.size() <= segment) works_.resize(segment + 1, absl::UnknownError("not started"));
    works_[segment] = group_.AllReduce(data, data, static_cast<int64_t>(count), what.type, what.op);
    return FromAbsl(works_[segment].status());
  }
  collectives::DeviceStatus Finish(size_t segment) override {
    return FromAbsl(group_.Wait(works_[segment]));
  }

 private:
  collectives::Group& group_;
  std::vector<absl::StatusOr<collectives::Work>> works_;
};

class CudaSum final : public DeviceSum {
 public:
  CudaSum(collectives::Group& group, DeviceSumOptions options)
      : group_(group), options_(std::move(options)) {
    const std::vector<int>& hosts = options_.host_of_rank;
    for (int r = 0; r < group.ranks(); ++r) {
      const auto host = [&](int rank) {
        return hosts.empty() ? 0 : hosts[static_cast<size_t>(rank)];
      };
      if (host(r) == host(group.rank())) here_.push_back(r);
    }
  }

  absl::Status Open() {
    std::unique_ptr<collectives::DeviceAllReduce> within, across;
    TANDEM_RETURN_IF_ERROR(OpenWithin(&within));
    if (options_.leaders != nullptr) {
      segments_ = std::make_unique<GroupSegments>(*options_.leaders);
      TANDEM_RETURN_IF_ERROR(ToAbsl(
          collectives::NewStagedAllReduce(*segments_, collectives::StagedOptions(), &across)));
    }
    const bool one_host = static_cast<int>(here_.size()) == group_.ranks();
    sum_ = one_host ? std::move(within)
                    : collectives::NewTwoLevelSum(std::move(within), std::move(across));
    return absl::OkStatus();
  }

  absl::Status Sum(float* device, int64_t count, float* host) override {
    collectives::DeviceReduction what;
    what.in = what.out = device;
    what.count = static_cast<size_t>(count);
    TANDEM_RETURN_IF_ERROR(ToAbsl(sum_->Run(what, /*stream=*/nullptr)));
    const cudaError_t error =
        cudaMemcpy(host, device, what.count * sizeof(float), cudaMemcpyDeviceToHost);
    if (error == cudaSuccess) return absl::OkStatus();
    return absl::InternalError(absl::StrCat("gradients on the GPU: ", cudaGetErrorString(error)));
  }

 private:
  absl::Status OpenWithin(std::unique_ptr<collectives::DeviceAllReduce>* within) {
    const auto own = std::find(here_.begin(), here_.end(), group_.rank());
    collectives::IpcOptions ipc;
    ipc.deadline = std::chrono::milliseconds(absl::ToInt64Milliseconds(options_.deadline));
    if (options_.watch != nullptr) {
      ipc.still_waiting = [watch = options_.watch] { return FromAbsl(watch->Verdict()); };
    }
    // All ranks take part in this exchange, although only ranks of one host need the data: the
    // exchange happens once, at creation.
    const auto all_gather = [this](const void* mine, size_t bytes, void* all) {
      std::vector<uint8_t> of_all(bytes * static_cast<size_t>(group_.ranks()));
      const absl::Status done = group_.Wait(group_.AllGather(
          mine, of_all.data(), static_cast<int64_t>(bytes), collectives::DataType::kU8));
      for (size_t i = 0; i < here_.size() && done.ok(); ++i) {
        std::copy_n(of_all.data() + bytes * static_cast<size_t>(here_[i]), bytes,
                    static_cast<uint8_t*>(all) + bytes * i);
      }
      return FromAbsl(done);
    };
    return ToAbsl(collectives::NewIpcAllReduce(static_cast<int>(own - here_.begin()),
                                               static_cast<int>(here_.size()), all_gather, ipc,
                                               within));
  }

  collectives::Group& group_;
  const DeviceSumOptions options_;
  std::vector<int> here_;  // ranks of this host
  std::unique_ptr<GroupSegments> segments_;
  std::unique_ptr<collectives::DeviceAllReduce> sum_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceSum>> DeviceSum::New(collectives::Group& group,
                                                          DeviceSumOptions options) {
  auto made = std::make_unique<CudaSum>(group, std::move(options));
  TANDEM_RETURN_IF_ERROR(made->Open());
  return made;
}

#endif  // TANDEM_HAVE_CUDA

}  // namespace tandem::worker
