// Staged all-reduce: through pinned host memory. A segment is copied down to the host, reduced over
// the wire, and copied up again. The slots are used in turn, so that both directions of the bus,
// the wire and the additions on the host work at the same time, each on another segment:
//
//   segment s      device -> slot s % n    host: Start .. Finish    slot -> device
//   segment s + 1            device -> slot          host: Start .. Finish   ...
//
// Order: `down` follows the caller's stream. The host sees a filled slot before it enqueues
// anything in `up`, so `up` follows, too. A slot is filled again only after its copy back; an event
// between the two copy streams ensures this.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/cuda/cuda_call.h"
#include "collectives/cuda/device_allreduce.h"
#include "collectives/cuda/device_wait.h"

namespace tandem::collectives {
namespace {

using Code = DeviceStatus::Code;

struct Slot {
  void* memory = nullptr;  // pinned
  cudaEvent_t filled = nullptr;
  cudaEvent_t emptied = nullptr;  // an event that was never recorded counts as done
};

class StagedAllReduce : public DeviceAllReduce {
 public:
  StagedAllReduce(HostSegments& host, const StagedOptions& options)
      : host_(host),
        options_(options),
        on_wire_(static_cast<size_t>(std::max(1, options.segments_in_flight - 2))) {}
  ~StagedAllReduce() override;

  DeviceStatus Open();
  const char* name() const override { return "staged"; }
  DeviceStatus Run(const DeviceReduction& what, cudaStream_t stream) override;

 private:
  // The state of one Run: its vector in segments, and how far each stage is.
  struct Progress {
    DeviceReduction what;
    size_t elements = 0;  // elements of a segment
    size_t segments = 0;
    size_t filled = 0, started = 0, finished = 0;
    size_t Begin(size_t s) const { return s * elements; }
    size_t Count(size_t s) const { return std::min(elements, what.count - Begin(s)); }
    size_t Bytes(size_t s) const { return Count(s) * SizeOf(what.type); }
    size_t Offset(size_t s) const { return Begin(s) * SizeOf(what.type); }
  };

  DeviceStatus RunOnce(const DeviceReduction& what, cudaStream_t stream);
  DeviceStatus Fill(Progress& run);
  DeviceStatus Start(Progress& run);
  DeviceStatus Finish(Progress& run);
  Slot& SlotOf(size_t segment) { return slots_[segment % slots_.size()]; }

  HostSegments& host_;
  const StagedOptions options_;
  const size_t on_wire_;  // segments between Start and Finish; two more slots are copied
  std::vector<Slot> slots_;
  cudaStream_t down_ = nullptr, up_ = nullptr;
  cudaEvent_t edge_ = nullptr;  // orders the caller's stream before ours, and ours before it
  DeviceStatus broken_;
};

// Waits for the copies in flight, because they read or write the slots. After a failure the
// copies may never end.
StagedAllReduce::~StagedAllReduce() {
  if (!broken_.ok()) return;
  for (const cudaStream_t stream : {down_, up_}) {
    if (stream == nullptr) continue;
    (void)cudaStreamSynchronize(stream);
    (void)cudaStreamDestroy(stream);
  }
  for (const Slot& slot : slots_) {
    if (slot.filled != nullptr) (void)cudaEventDestroy(slot.filled);
    if (slot.emptied != nullptr) (void)cudaEventDestroy(slot.emptied);
    if (slot.memory != nullptr) (void)cudaFreeHost(slot.memory);
  }
  if (edge_ != nullptr) (void)cudaEventDestroy(edge_);
}

DeviceStatus StagedAllReduce::Open() {
  TANDEM_CUDA_RETURN(cudaStreamCreateWithFlags(&down_, cudaStreamNonBlocking));
  TANDEM_CUDA_RETURN(cudaStreamCreateWithFlags(&up_, cudaStreamNonBlocking));
  TANDEM_CUDA_RETURN(cudaEventCreateWithFlags(&edge_, cudaEventDisableTiming));
  slots_.resize(static_cast<size_t>(options_.segments_in_flight));
  for (Slot& slot : slots_) {
    TANDEM_CUDA_RETURN(cudaMallocHost(&slot.memory, options_.segment_bytes));
    TANDEM_CUDA_RETURN(cudaEventCreateWithFlags(&slot.filled, cudaEventDisableTiming));
    TANDEM_CUDA_RETURN(cudaEventCreateWithFlags(&slot.emptied, cudaEventDisableTiming));
  }
  return DeviceStatus();
}

DeviceStatus StagedAllReduce::Run(const DeviceReduction& what, cudaStream_t stream) {
  if (!broken_.ok()) return broken_;
  if (!Defined(what.op, what.type)) {
    return DeviceStatus(Code::kInvalidArgument, std::string("all-reduce: ") + Name(what.op) +
                                                    " is not defined for " + Name(what.type));
  }
  broken_ = RunOnce(what, stream);
  if (!broken_.ok()) host_.Abandon();  // before anybody frees the slots
  return broken_;
}

// Each turn of the loop moves all three stages: copies for every free slot are enqueued first, so
// the device never idles; then filled slots go to the host; only then one segment is waited for.
// Waiting earlier would leave the wire or the bus idle.
DeviceStatus StagedAllReduce::RunOnce(const DeviceReduction& what, cudaStream_t stream) {
  if (what.count == 0) return DeviceStatus();
  Progress run;
  run.what = what;
  run.elements = options_.segment_bytes / SizeOf(what.type);
  run.segments = (what.count + run.elements - 1) / run.elements;

  TANDEM_CUDA_RETURN(cudaEventRecord(edge_, stream));
  TANDEM_CUDA_RETURN(cudaStreamWaitEvent(down_, edge_, 0));
  while (run.finished < run.segments) {
    TANDEM_DEVICE_RETURN(Fill(run));
    TANDEM_DEVICE_RETURN(Start(run));
    TANDEM_DEVICE_RETURN(Finish(run));
  }
  // The last copy up comes after all other copies, down and up.
  TANDEM_CUDA_RETURN(cudaEventRecord(edge_, up_));
  return TANDEM_CUDA_STATUS(cudaStreamWaitEvent(stream, edge_, 0));
}

// Enqueues the copy down for every segment that has a free slot.
DeviceStatus StagedAllReduce::Fill(Progress& run) {
  for (; run.filled < std::min(run.segments, run.finished + slots_.size()); ++run.filled) {
    const size_t s = run.filled;
    Slot& slot = SlotOf(s);
    TANDEM_CUDA_RETURN(cudaStreamWaitEvent(down_, slot.emptied, 0));
    const auto* const from = static_cast<const unsigned char*>(run.what.in) + run.Offset(s);
    TANDEM_CUDA_RETURN(
        cudaMemcpyAsync(slot.memory, from, run.Bytes(s), cudaMemcpyDeviceToHost, down_));
    TANDEM_CUDA_RETURN(cudaEventRecord(slot.filled, down_));
  }
  return DeviceStatus();
}

// Hands filled segments to the host, so that several are on the wire before Finish waits for one.
DeviceStatus StagedAllReduce::Start(Progress& run) {
  for (; run.started < std::min(run.filled, run.finished + on_wire_); ++run.started) {
    Slot& slot = SlotOf(run.started);
    TANDEM_DEVICE_RETURN(WaitForDevice([&slot] { return cudaEventQuery(slot.filled); },
                                       options_.deadline, options_.still_waiting));
    TANDEM_DEVICE_RETURN(host_.Start(run.started, run.what, slot.memory, run.Count(run.started)));
  }
  return DeviceStatus();
}

DeviceStatus StagedAllReduce::Finish(Progress& run) {
  const size_t s = run.finished++;
  Slot& slot = SlotOf(s);
  TANDEM_DEVICE_RETURN(host_.Finish(s));
  auto* const to = static_cast<unsigned char*>(run.what.out) + run.Offset(s);
  TANDEM_CUDA_RETURN(cudaMemcpyAsync(to, slot.memory, run.Bytes(s), cudaMemcpyHostToDevice, up_));
  return TANDEM_CUDA_STATUS(cudaEventRecord(slot.emptied, up_));
}

}  // namespace

DeviceStatus NewStagedAllReduce(HostSegments& host, const StagedOptions& options,
                                std::unique_ptr<DeviceAllReduce>* out) {
  if (options.segments_in_flight < 2 || options.segment_bytes < sizeof(double)) {
    return DeviceStatus(Code::kInvalidArgument,
                        "staged: " + std::to_string(options.segments_in_flight) +
                            " segments (at least 2) of " + std::to_string(options.segment_bytes) +
                            " bytes (at least 8)");
  }
  auto made = std::make_unique<StagedAllReduce>(host, options);
  TANDEM_DEVICE_RETURN(made->Open());
  *out = std::move(made);
  return DeviceStatus();
}

}  // namespace tandem::collectives
