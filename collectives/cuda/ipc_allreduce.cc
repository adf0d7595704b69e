// Direct all-reduce with one kernel for each device. Block b of the vector belongs to the b-th
// distinct device. The lowest rank on that device, its leader, reads the block from all ranks in
// rank order and writes the result to all ranks. No other rank reads or writes that block, so in
// place is safe.
//
//   all:      record `ready` in the stream; Enter
//   leaders:  wait for everybody's `ready` in the stream; fold; record `done`; say so
//   all:      wait for the leaders' `done` in the stream
//
// An event may be recorded again only when every rank has enqueued its wait for the last record.
// `ready` of call n + 1 comes after the leaders have said that they launched call n. `done` of call
// n + 1 comes after Enter of call n + 1.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "collectives/cuda/cuda_call.h"
#include "collectives/cuda/device_allreduce.h"
#include "collectives/cuda/device_reduce.h"
#include "collectives/cuda/ipc_barrier.h"
#include "collectives/cuda/ipc_memory.h"

namespace tandem::collectives {
namespace {

using Code = DeviceStatus::Code;

// The data that a rank sends to the others at creation.
struct Card {
  unsigned char device[16] = {};  // UUID
  cudaIpcEventHandle_t ready;
  cudaIpcEventHandle_t done;
  int32_t ok = 0;
};

class IpcAllReduce : public DeviceAllReduce {
 public:
  IpcAllReduce(int rank, int ranks, const IpcOptions& options)
      : rank_(rank),
        ranks_(ranks),
        one_kernel_per_device_(options.one_kernel_per_device),
        sync_round_(rank, ranks, options) {}

  DeviceStatus Open(const ByteAllGather& all_gather);
  const char* name() const override { return "ipc"; }
  DeviceStatus Run(const DeviceReduction& what, cudaStream_t stream) override;

 private:
  DeviceStatus FillCard(Card* card);
  DeviceStatus ReadCards(const std::vector<Card>& cards);
  DeviceStatus RunOnce(const DeviceReduction& what, cudaStream_t stream);
  DeviceStatus CheckAlike(const CallPost& mine) const;
  DeviceStatus Fold(const DeviceReduction& what, cudaStream_t stream);
  bool Leads() const { return block_ >= 0; }

  const int rank_;
  const int ranks_;
  const bool one_kernel_per_device_;
  IpcBarrier sync_round_;
  IpcExporter exporter_;
  IpcImporter importer_;
  std::vector<IpcEvent> ready_, done_;  // by rank, including the own rank
  std::vector<int> leaders_;            // by block
  int block_ = -1;                      // the block that this rank leads; -1: none
  DeviceStatus broken_;
};

// A rank that has failed still takes part in every exchange, so that no other rank waits in vain.
DeviceStatus IpcAllReduce::Open(const ByteAllGather& all_gather) {
  Card mine;
  const DeviceStatus filled = FillCard(&mine);
  mine.ok = filled.ok() ? 1 : 0;
  std::vector<Card> cards(static_cast<size_t>(ranks_));
  TANDEM_DEVICE_RETURN(all_gather(&mine, sizeof(mine), cards.data()));
  TANDEM_DEVICE_RETURN(sync_round_.Open(all_gather));
  TANDEM_DEVICE_RETURN(filled);
  const DeviceStatus read = ReadCards(cards);
  if (!read.ok()) sync_round_.Fail(read);  // the others may have no error, and would wait in Run
  return read;
}

DeviceStatus IpcAllReduce::FillCard(Card* card) {
  int device = 0, can_share = 0;
  TANDEM_CUDA_RETURN(cudaGetDevice(&device));
  TANDEM_CUDA_RETURN(cudaDeviceGetAttribute(&can_share, cudaDevAttrIpcEventSupport, device));
  if (can_share == 0) {
    return DeviceStatus(Code::kUnsupported, "this device cannot share events between processes");
  }
  cudaDeviceProp properties;
  TANDEM_CUDA_RETURN(cudaGetDeviceProperties(&properties, device));
  std::memcpy(card->device, properties.uuid.bytes, sizeof(card->device));
  ready_.resize(static_cast<size_t>(ranks_));
  done_.resize(static_cast<size_t>(ranks_));
  TANDEM_DEVICE_RETURN(exporter_.Open());
  TANDEM_DEVICE_RETURN(ready_[static_cast<size_t>(rank_)].Create(&card->ready));
  return done_[static_cast<size_t>(rank_)].Create(&card->done);
}

DeviceStatus IpcAllReduce::ReadCards(const std::vector<Card>& cards) {
  for (int r = 0; r < ranks_; ++r) {
    const Card& card = cards[static_cast<size_t>(r)];
    if (card.ok == 0) {
      return DeviceStatus(Code::kPeer, "rank " + std::to_string(r) + " cannot share its device", r);
    }
    const bool first = std::none_of(leaders_.begin(), leaders_.end(), [&](int leader) {
      return one_kernel_per_device_ && std::memcmp(cards[static_cast<size_t>(leader)].device,
                                                   card.device, sizeof(card.device)) == 0;
    });
    if (first) {
      if (r == rank_) block_ = static_cast<int>(leaders_.size());
      leaders_.push_back(r);
    }
    if (r == rank_) continue;
    TANDEM_DEVICE_RETURN(ready_[static_cast<size_t>(r)].Open(card.ready));
    TANDEM_DEVICE_RETURN(done_[static_cast<size_t>(r)].Open(card.done));
  }
  return DeviceStatus();
}

DeviceStatus IpcAllReduce::Run(const DeviceReduction& what, cudaStream_t stream) {
  if (!broken_.ok()) return broken_;
  if (!Defined(what.op, what.type)) {
    return DeviceStatus(Code::kInvalidArgument, std::string("all-reduce: ") + Name(what.op) +
                                                    " is not defined for " + Name(what.type));
  }
  broken_ = RunOnce(what, stream);
  if (!broken_.ok()) sync_round_.Fail(broken_);
  return broken_;
}

DeviceStatus IpcAllReduce::RunOnce(const DeviceReduction& what, cudaStream_t stream) {
  // Record first: the driver's calls in Export need a context, and this call of the runtime creates
  // one for the thread.
  TANDEM_CUDA_RETURN(cudaEventRecord(ready_[static_cast<size_t>(rank_)].get(), stream));
  CallPost post;
  post.op = what.op;
  post.type = what.type;
  post.count = what.count;
  post.scalar = what.op == ReduceOp::kPreMulSum ? what.scalar : 1;
  if (what.count > 0) {
    TANDEM_DEVICE_RETURN(exporter_.Export(what.in, &post.in));
    TANDEM_DEVICE_RETURN(exporter_.Export(what.out, &post.out));
  }
  TANDEM_DEVICE_RETURN(sync_round_.Enter(post));
  TANDEM_DEVICE_RETURN(CheckAlike(post));
  // Other ranks wait for SayLaunched before they enqueue their wait for `done`. So it comes only
  // after Fold has recorded `done`.
  if (Leads()) {
    TANDEM_DEVICE_RETURN(Fold(what, stream));
    sync_round_.SayLaunched();
  }
  for (const int leader : leaders_) {
    if (leader == rank_) continue;
    TANDEM_DEVICE_RETURN(sync_round_.WaitLaunched(leader));
    TANDEM_CUDA_RETURN(cudaStreamWaitEvent(stream, done_[static_cast<size_t>(leader)].get(), 0));
  }
  return DeviceStatus();
}

DeviceStatus IpcAllReduce::CheckAlike(const CallPost& mine) const {
  const auto text = [](const CallPost& post) {
    return std::string(Name(post.op)) + " of " + std::to_string(post.count) + " " +
           Name(post.type) + " with scalar " + std::to_string(post.scalar);
  };
  for (int r = 0; r < ranks_; ++r) {
    const CallPost& theirs = sync_round_.Of(r);
    if (theirs.op == mine.op && theirs.type == mine.type && theirs.count == mine.count &&
        theirs.scalar == mine.scalar) {
      continue;
    }
    return DeviceStatus(Code::kMismatch,
                        "all-reduce: rank " + std::to_string(rank_) + " calls " + text(mine) +
                            ", rank " + std::to_string(r) + " calls " + text(theirs),
                        r);
  }
  return DeviceStatus();
}

// Blocks begin at multiples of 64 elements, so that every block is aligned as well as the vectors.
DeviceStatus IpcAllReduce::Fold(const DeviceReduction& what, cudaStream_t stream) {
  const size_t blocks = leaders_.size();
  const size_t size = (what.count / blocks + 63) / 64 * 64;
  const size_t begin = std::min(what.count, size * static_cast<size_t>(block_));
  const bool last = static_cast<size_t>(block_) + 1 == blocks;
  const size_t end = last ? what.count : std::min(what.count, begin + size);

  DeviceFold fold;
  fold.op = what.op;
  fold.type = what.type;
  fold.inputs = fold.outputs = ranks_;
  fold.count = end - begin;
  fold.scalar = what.op == ReduceOp::kAverage ? 1.0 / ranks_ : what.scalar;
  for (int r = 0; r < ranks_; ++r) {
    void* in = const_cast<void*>(what.in);
    void* out = what.out;
    if (r != rank_ && what.count > 0) {
      TANDEM_DEVICE_RETURN(importer_.Import(r, sync_round_.Of(r).in, &in));
      TANDEM_DEVICE_RETURN(importer_.Import(r, sync_round_.Of(r).out, &out));
    }
    fold.in[r] = static_cast<const unsigned char*>(in) + begin * SizeOf(what.type);
    fold.out[r] = static_cast<unsigned char*>(out) + begin * SizeOf(what.type);
    if (r == rank_) continue;
    TANDEM_CUDA_RETURN(cudaStreamWaitEvent(stream, ready_[static_cast<size_t>(r)].get(), 0));
  }
  TANDEM_DEVICE_RETURN(LaunchFold(fold, stream));
  return TANDEM_CUDA_STATUS(cudaEventRecord(done_[static_cast<size_t>(rank_)].get(), stream));
}

}  // namespace

DeviceStatus NewIpcAllReduce(int rank, int ranks, const ByteAllGather& all_gather,
                             const IpcOptions& options, std::unique_ptr<DeviceAllReduce>* out) {
  if (rank < 0 || rank >= ranks || ranks > kMaxFoldVectors) {
    return DeviceStatus(Code::kInvalidArgument, "ipc: rank " + std::to_string(rank) + " of " +
                                                    std::to_string(ranks) + ", at most " +
                                                    std::to_string(kMaxFoldVectors));
  }
  auto made = std::make_unique<IpcAllReduce>(rank, ranks, options);
  TANDEM_DEVICE_RETURN(made->Open(all_gather));
  *out = std::move(made);
  return DeviceStatus();
}

bool HaveDevice(std::string* why) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return true;
  *why = "no CUDA device";
  if (error != cudaSuccess) *why += std::string(": ") + cudaGetErrorString(error);
  return false;
}

}  // namespace tandem::collectives
