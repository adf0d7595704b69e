// Replaces the transport in builds without libibverbs or librdmacm.
#include "rdma/rdma_transport.h"

namespace tandem::rdma {
namespace {

absl::Status NotBuilt() {
  return absl::UnimplementedError(
      "this build has no RDMA: install the packages libibverbs-dev and librdmacm-dev, configure "
      "and build again");
}

}  // namespace

absl::StatusOr<std::shared_ptr<RdmaContext>> RdmaContext::New() { return NotBuilt(); }
absl::StatusOr<std::unique_ptr<RdmaTransport>> NewRdmaTransport(const RdmaOptions&) {
  return NotBuilt();
}

}  // namespace tandem::rdma
