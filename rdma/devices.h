// RdmaDevice: lists the RDMA devices of this host and their ports, and the limits on using them.
//
// Thread safety: free functions without state. This header does not move frames (rdma_transport.h
// does).
#ifndef TANDEM_RDMA_DEVICES_H_
#define TANDEM_RDMA_DEVICES_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::rdma {

enum class RdmaPortState { kDown, kInitializing, kArmed, kActive, kUnknown };
enum class RdmaLinkLayer { kInfiniBand, kEthernet, kUnknown };

using RdmaGid = std::array<uint8_t, 16>;

struct RdmaPort {
  int number = 0;  // counted from 1, as the verbs do
  RdmaPortState state = RdmaPortState::kUnknown;
  RdmaLinkLayer link_layer = RdmaLinkLayer::kUnknown;
  int active_mtu_bytes = 0;
  int max_mtu_bytes = 0;
  uint16_t lid = 0;           // 0 on Ethernet
  std::vector<RdmaGid> gids;  // index as in the port's table; unused entries are zero
};

struct RdmaDevice {
  std::string name;  // "mlx5_0"
  uint64_t node_guid = 0;
  std::vector<RdmaPort> ports;
};

// Every RDMA device that the kernel shows, usable or not; empty if there is none. UNIMPLEMENTED:
// this build knows nothing of RDMA. UNAVAILABLE: libibverbs is not installed, or a device cannot be
// opened.
absl::StatusOr<std::vector<RdmaDevice>> ListRdmaDevices();

// The number of bytes that this process may lock. Memory for RDMA can be registered only up to this
// limit. UINT64_MAX if there is no limit.
uint64_t LockedMemoryLimitBytes();

// The GID as text: "fe80:0000:0000:0000:0202:c9ff:fe00:0001".
std::string GidToString(const RdmaGid& gid);
bool IsZero(const RdmaGid& gid);

// A description of several lines, for people.
std::string DebugString(const RdmaDevice& device);

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_DEVICES_H_
