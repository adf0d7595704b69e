#include "worker/dense/device_sum.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"

#ifdef TANDEM_HAVE_CUDA
#include <cuda_runtime_api.h>

#include "collectives/cuda/cuda_call.h"
#include "collectives/cuda/device_allreduce.h"
#include "collectives/cuda/device_reduce.h"
#include "collectives/cuda/device_wait.h"
#include "worker/dense/trial_sum.h"
#endif

namespace tandem::worker {

#ifndef TANDEM_HAVE_CUDA

absl::StatusOr<std::unique_ptr<DeviceSum>> DeviceSum::New(collectives::Group&, DeviceSumOptions,
                                                          const Waiting&) {
  return absl::UnimplementedError("this build has no CUDA");
}

VisibleDevices FindDevices() { return {}; }

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

// Runs the segments of a staged all-reduce over a group.
class GroupSegments final : public collectives::HostSegments {
 public:
  // `waiting` gets ranks of the group.
  GroupSegments(collectives::Group& group, DeviceSum::Waiting waiting)
      : group_(group), waiting_(std::move(waiting)) {}
  collectives::DeviceStatus Start(size_t segment, const collectives::DeviceReduction& what,
                                  void* data, size_t count) override {
    if (works_.size() <= segment) works_.resize(segment + 1, absl::UnknownError("not started"));
    works_[segment] = group_.AllReduce(data, data, static_cast<int64_t>(count), what.type, what.op);
    return FromAbsl(works_[segment].status());
  }
  collectives::DeviceStatus Finish(size_t segment) override {
    const absl::StatusOr<collectives::Work>& work = works_[segment];
    while (!group_.WaitUntil(*work, MonotonicNow() + absl::Seconds(1))) {
      TANDEM_DEVICE_RETURN(FromAbsl(waiting_(group_.waiting_for())));
    }
    return FromAbsl(group_.Wait(work));
  }
  // Segments may be on the wire. Only the end of all operations of the group ends them.
  void Abandon() override { (void)group_.Abort("an all-reduce through host memory has failed"); }

 private:
  collectives::Group& group_;
  const DeviceSum::Waiting waiting_;
  std::vector<absl::StatusOr<collectives::Work>> works_;
};

class CudaSum final : public DeviceSum {
 public:
  CudaSum(collectives::Group& group, DeviceSumOptions options)
      : group_(group), options_(std::move(options)) {
    for (int r = 0; r < group.ranks(); ++r) {
      const std::vector<int>& hosts = options_.host_of_rank;
      const int host = hosts.empty() ? 0 : hosts[static_cast<size_t>(r)];
      hosts_[host].push_back(r);
      if (r == group.rank()) host_ = host;
    }
  }

  absl::Status Open(const Waiting& waiting) {
    if (group_.ranks() == 1) return absl::OkStatus();
    waiting_ = waiting;
    TANDEM_RETURN_IF_ERROR(UseDeviceOf(options_.zeros));
    const absl::Status opened = OpenNear();
    // A worker that has failed takes part in the decision, so that no other worker waits in vain.
    TANDEM_ASSIGN_OR_RETURN(const std::string problem, FirstProblem(opened));
    if (problem.empty()) return absl::OkStatus();
    (void)cudaGetLastError();
    sum_.reset();
    why_ = absl::StrCat("CUDA IPC cannot be used: ", problem);
    return OpenStaged(group_, &sum_);
  }

  std::string name() const override {
    return sum_ == nullptr ? "none" : absl::StrCat("cuda_", sum_->name());
  }
  std::string why() const override { return why_; }
  uint64_t bytes_sent() const override {
    return options_.leaders == nullptr ? 0 : options_.leaders->bytes_sent();
  }

  absl::Status Sum(float* device, int64_t count, float* host, const Waiting& waiting) override {
    waiting_ = waiting;
    TANDEM_RETURN_IF_ERROR(UseDeviceOf(device));
    if (sum_ != nullptr) {
      TANDEM_RETURN_IF_ERROR(ToAbsl(Run(*sum_, device, count)));
      TANDEM_RETURN_IF_ERROR(ToAbsl(WaitForSum()));
    }
    return ToAbsl(TANDEM_CUDA_STATUS(cudaMemcpy(
        host, device, static_cast<size_t>(count) * sizeof(float), cudaMemcpyDeviceToHost)));
  }

 private:
  // Opens the sum within hosts by IPC, tries it, and opens the staged sum between hosts. The order
  // is such that a rank that fails keeps no other rank waiting.
  absl::Status OpenNear() {
    size_t most = 0;  // ranks on one host
    for (const auto& [host, ranks] : hosts_) most = std::max(most, ranks.size());
    if (most > static_cast<size_t>(collectives::kMaxFoldVectors)) {
      return absl::FailedPreconditionError(absl::StrCat(
          most, " workers on one host; CUDA IPC serves ", collectives::kMaxFoldVectors));
    }
    std::unique_ptr<collectives::DeviceAllReduce> within, across;
    if (most > 1) {
      TANDEM_RETURN_IF_ERROR(OpenWithin(&within));
      TANDEM_RETURN_IF_ERROR(TryOut(*within));
    }
    if (options_.leaders != nullptr) TANDEM_RETURN_IF_ERROR(OpenStaged(*options_.leaders, &across));
    if (within == nullptr || hosts_.size() == 1) {
      sum_ = std::move(within == nullptr ? across : within);
    } else {
      sum_ = collectives::NewTwoLevelSum(std::move(within), std::move(across));
    }
    return absl::OkStatus();
  }

  // Tries CUDA IPC with a sum whose result is known. Returns when the device has ended, also after
  // an error, because the other workers close their memory after this.
  absl::Status TryOut(collectives::DeviceAllReduce& within) {
    const std::vector<int>& here = hosts_[host_];
    const auto own = std::find(here.begin(), here.end(), group_.rank());
    std::vector<float> values = TrialVector(static_cast<int>(own - here.begin()), options_.count);
    const size_t bytes = values.size() * sizeof(float);
    const auto up = TANDEM_CUDA_STATUS(
        cudaMemcpy(options_.zeros, values.data(), bytes, cudaMemcpyHostToDevice));
    const auto tried = Run(within, options_.zeros, options_.count);
    const auto ended = WaitForSum();
    for (const auto& status : {up, tried, ended}) TANDEM_RETURN_IF_ERROR(ToAbsl(status));
    TANDEM_RETURN_IF_ERROR(ToAbsl(TANDEM_CUDA_STATUS(
        cudaMemcpy(values.data(), options_.zeros, bytes, cudaMemcpyDeviceToHost))));
    const absl::Status summed = CheckTrialSum(values, static_cast<int>(here.size()));
    TANDEM_RETURN_IF_ERROR(ToAbsl(TANDEM_CUDA_STATUS(cudaMemset(options_.zeros, 0, bytes))));
    return summed;
  }

  // Waits for the default stream, which runs the model and the sum.
  collectives::DeviceStatus WaitForSum() {
    return collectives::WaitForDevice([] { return cudaStreamQuery(nullptr); }, Deadline(),
                                      [this] { return FromAbsl(waiting_(-1)); });
  }

  std::chrono::milliseconds Deadline() const {
    return std::chrono::milliseconds(absl::ToInt64Milliseconds(options_.deadline));
  }

  absl::Status OpenWithin(std::unique_ptr<collectives::DeviceAllReduce>* within) {
    const std::vector<int>& here = hosts_[host_];
    const auto own = std::find(here.begin(), here.end(), group_.rank());
    collectives::IpcOptions ipc;
    ipc.deadline = Deadline();
    ipc.still_waiting = [this, here](int rank) {
      return FromAbsl(waiting_(here[static_cast<size_t>(rank)]));
    };
    // All ranks take part in this exchange, although only ranks of one host need the data: the
    // exchange happens once, at creation.
    const auto all_gather = [this, here](const void* mine, size_t bytes, void* all) {
      std::vector<uint8_t> of_all(bytes * static_cast<size_t>(group_.ranks()));
      const absl::Status done = group_.Wait(group_.AllGather(
          mine, of_all.data(), static_cast<int64_t>(bytes), collectives::DataType::kU8));
      for (size_t i = 0; i < here.size() && done.ok(); ++i) {
        std::copy_n(of_all.data() + bytes * static_cast<size_t>(here[i]), bytes,
                    static_cast<uint8_t*>(all) + bytes * i);
      }
      return FromAbsl(done);
    };
    return ToAbsl(collectives::NewIpcAllReduce(static_cast<int>(own - here.begin()),
                                               static_cast<int>(here.size()), all_gather, ipc,
                                               within));
  }

  // `group`: group_, or that of the leaders.
  absl::Status OpenStaged(collectives::Group& group,
                          std::unique_ptr<collectives::DeviceAllReduce>* out) {
    segments_ = std::make_unique<GroupSegments>(group, [this, &group](int rank) {
      if (&group == &group_ || rank < 0) return waiting_(rank);
      return waiting_(std::next(hosts_.begin(), rank)->second.front());
    });
    collectives::StagedOptions options;
    options.deadline = Deadline();
    options.still_waiting = [this] { return FromAbsl(waiting_(-1)); };
    return ToAbsl(collectives::NewStagedAllReduce(*segments_, options, out));
  }

  // The first failure of any rank, by rank; empty: none. All ranks get the same text.
  absl::StatusOr<std::string> FirstProblem(const absl::Status& own) {
    constexpr size_t kBytes = 256;
    std::string mine = own.ok() ? "" : std::string(own.message());
    mine.resize(kBytes - 1);
    std::vector<char> all(kBytes * static_cast<size_t>(group_.ranks()));
    TANDEM_RETURN_IF_ERROR(group_.Wait(
        group_.AllGather(mine.c_str(), all.data(), kBytes, collectives::DataType::kU8)));
    for (int r = 0; r < group_.ranks(); ++r) {
      const char* const problem = &all[kBytes * static_cast<size_t>(r)];
      if (*problem != 0) return absl::StrCat("worker ", r, ": ", problem);
    }
    return std::string();
  }

  static absl::Status UseDeviceOf(const float* memory) {
    cudaPointerAttributes attributes;
    TANDEM_RETURN_IF_ERROR(
        ToAbsl(TANDEM_CUDA_STATUS(cudaPointerGetAttributes(&attributes, memory))));
    return ToAbsl(TANDEM_CUDA_STATUS(cudaSetDevice(attributes.device)));
  }

  // The model computes in the same stream, the default one of its device.
  static collectives::DeviceStatus Run(collectives::DeviceAllReduce& sum, float* device,
                                       int64_t count) {
    collectives::DeviceReduction what;
    what.in = what.out = device;
    what.count = static_cast<size_t>(count);
    return sum.Run(what, /*stream=*/nullptr);
  }

  collectives::Group& group_;
  const DeviceSumOptions options_;
  std::map<int, std::vector<int>> hosts_;  // ranks by host; the first rank of a host leads
  int host_ = 0;                           // of this rank
  std::string why_ = "gradients are on GPUs";
  Waiting waiting_;  // of the current call
  std::unique_ptr<GroupSegments> segments_;
  std::unique_ptr<collectives::DeviceAllReduce> sum_;  // null: one rank
};

}  // namespace

VisibleDevices FindDevices() {
  VisibleDevices found;
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) count = 0;
  for (int device = 0; device < count; ++device) {
    cudaDeviceProp properties;
    if (cudaGetDeviceProperties(&properties, device) != cudaSuccess) break;
    found.push_back(absl::BytesToHexString(
        absl::string_view(properties.uuid.bytes, sizeof(properties.uuid.bytes))));
  }
  (void)cudaGetLastError();
  return found;
}

absl::StatusOr<std::unique_ptr<DeviceSum>> DeviceSum::New(collectives::Group& group,
                                                          DeviceSumOptions options,
                                                          const Waiting& waiting) {
  auto made = std::make_unique<CudaSum>(group, std::move(options));
  TANDEM_RETURN_IF_ERROR(made->Open(waiting));
  return made;
}

#endif  // TANDEM_HAVE_CUDA

}  // namespace tandem::worker
