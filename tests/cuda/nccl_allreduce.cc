#include "tests/cuda/nccl_allreduce.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#ifdef TANDEM_HAVE_NCCL
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <nccl.h>

#include <cstring>

#include "collectives/cuda/cuda_call.h"
#endif

namespace tandem {

using Code = collectives::DeviceStatus::Code;

#ifdef TANDEM_HAVE_NCCL
namespace {

#define TANDEM_NCCL_STATUS(call) FromNccl((call), #call)

collectives::DeviceStatus FromNccl(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return collectives::DeviceStatus();
  return collectives::DeviceStatus(Code::kDevice,
                                   std::string(call) + ": " + ncclGetErrorString(result));
}

ncclDataType_t TypeOf(collectives::DataType type) {
  switch (type) {
    case collectives::DataType::kF32:
      return ncclFloat32;
    case collectives::DataType::kF64:
      return ncclFloat64;
    case collectives::DataType::kF16:
      return ncclFloat16;
    case collectives::DataType::kBF16:
      return ncclBfloat16;
    case collectives::DataType::kI32:
      return ncclInt32;
    case collectives::DataType::kI64:
      return ncclInt64;
    case collectives::DataType::kU8:
      return ncclUint8;
  }
  return ncclFloat32;
}

// The scalar of premulsum, rounded to the type.
struct Scalar {
  unsigned char bytes[8] = {};
};

template <class T>
Scalar AsBytes(T value) {
  Scalar scalar;
  std::memcpy(scalar.bytes, &value, sizeof(value));
  return scalar;
}

Scalar ScalarOf(const collectives::DeviceReduction& what) {
  switch (what.type) {
    case collectives::DataType::kF64:
      return AsBytes(what.scalar);
    case collectives::DataType::kF16:
      return AsBytes(__float2half_rn(static_cast<float>(what.scalar)));
    case collectives::DataType::kBF16:
      return AsBytes(__float2bfloat16_rn(static_cast<float>(what.scalar)));
    default:
      return AsBytes(static_cast<float>(what.scalar));
  }
}

class NcclAllReduce : public collectives::DeviceAllReduce {
 public:
  ~NcclAllReduce() override {
    if (communicator_ == nullptr) return;
    // A communicator that failed would wait for the others.
    if (broken_.ok()) {
      (void)ncclCommDestroy(communicator_);
    } else {
      (void)ncclCommAbort(communicator_);
    }
  }

  collectives::DeviceStatus Open(int rank, int ranks,
                                 const collectives::ByteAllGather& all_gather) {
    struct Word {
      ncclUniqueId id = {};
      int ok = 1;
    } mine;
    if (rank == 0) {
      broken_ = TANDEM_NCCL_STATUS(ncclGetUniqueId(&mine.id));
      mine.ok = broken_.ok() ? 1 : 0;
    }
    std::vector<Word> all(static_cast<size_t>(ranks));
    TANDEM_DEVICE_RETURN(all_gather(&mine, sizeof(mine), all.data()));
    TANDEM_DEVICE_RETURN(broken_);
    if (all[0].ok == 0)
      return collectives::DeviceStatus(Code::kPeer, "rank 0 cannot start NCCL", 0);
    broken_ = TANDEM_NCCL_STATUS(ncclCommInitRank(&communicator_, ranks, all[0].id, rank));
    return broken_;
  }

  const char* name() const override { return "nccl"; }

  collectives::DeviceStatus Run(const collectives::DeviceReduction& what,
                                cudaStream_t stream) override {
    if (!broken_.ok()) return broken_;
    if (!collectives::Defined(what.op, what.type)) {
      return collectives::DeviceStatus(Code::kInvalidArgument,
                                       std::string("all-reduce: ") + collectives::Name(what.op) +
                                           " is not defined for " + collectives::Name(what.type));
    }
    if (what.op == collectives::ReduceOp::kPreMulSum) return PreMulSum(what, stream);
    ncclRedOp_t op = ncclSum;
    if (!Simple(what.op, &op)) {
      return collectives::DeviceStatus(Code::kUnsupported,
                                       std::string("NCCL has no ") + collectives::Name(what.op));
    }
    broken_ = TANDEM_NCCL_STATUS(
        ncclAllReduce(what.in, what.out, what.count, TypeOf(what.type), op, communicator_, stream));
    return broken_;
  }

 private:
  static bool Simple(collectives::ReduceOp op, ncclRedOp_t* out) {
    switch (op) {
      case collectives::ReduceOp::kSum:
        *out = ncclSum;
        return true;
      case collectives::ReduceOp::kProduct:
        *out = ncclProd;
        return true;
      case collectives::ReduceOp::kMin:
        *out = ncclMin;
        return true;
      case collectives::ReduceOp::kMax:
        *out = ncclMax;
        return true;
      case collectives::ReduceOp::kAverage:
        *out = ncclAvg;
        return true;
      default:
        return false;
    }
  }

  // The op lives as long as it takes to enqueue, by NCCL's rules.
  collectives::DeviceStatus PreMulSum(const collectives::DeviceReduction& what,
                                      cudaStream_t stream) {
    Scalar scalar = ScalarOf(what);
    ncclRedOp_t op;
    broken_ = TANDEM_NCCL_STATUS(ncclRedOpCreatePreMulSum(&op, &scalar, TypeOf(what.type),
                                                          ncclScalarHostImmediate, communicator_));
    if (!broken_.ok()) return broken_;
    broken_ = TANDEM_NCCL_STATUS(
        ncclAllReduce(what.in, what.out, what.count, TypeOf(what.type), op, communicator_, stream));
    const collectives::DeviceStatus freed = TANDEM_NCCL_STATUS(ncclRedOpDestroy(op, communicator_));
    if (broken_.ok()) broken_ = freed;
    return broken_;
  }

  ncclComm_t communicator_ = nullptr;
  collectives::DeviceStatus broken_;
};

}  // namespace
#endif  // TANDEM_HAVE_NCCL

collectives::DeviceStatus NewNcclAllReduce(int rank, int ranks,
                                           const collectives::ByteAllGather& all_gather,
                                           std::unique_ptr<collectives::DeviceAllReduce>* out) {
#ifdef TANDEM_HAVE_NCCL
  auto made = std::make_unique<NcclAllReduce>();
  TANDEM_DEVICE_RETURN(made->Open(rank, ranks, all_gather));
  *out = std::move(made);
  return collectives::DeviceStatus();
#else
  (void)rank, (void)ranks, (void)all_gather, (void)out;
  return DeviceStatus(Code::kUnsupported, "built without NCCL");
#endif
}

}  // namespace tandem
