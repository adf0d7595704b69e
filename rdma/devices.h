// Which RDMA devices this host has, and what stands in the way of using them.
//
// Thread safety: free functions without state.
// Not here: moving frames over them (a Transport of its own).
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
  int number = 0;  // from 1, as the verbs number them
  RdmaPortState state = RdmaPortState::kUnknown;
  RdmaLinkLayer link_layer = RdmaLinkLayer::kUnknown;
  int active_mtu_bytes = 0;
  int max_mtu_bytes = 0;
  uint16_t lid = 0;           // 0 on Ethernet
  std::vector<RdmaGid> gids;  // index as in the port's table; all-zero entries are unused ones
};

struct RdmaDevice {
  std::string name;  // "mlx5_0"
  uint64_t node_guid = 0;
  std::vector<RdmaPort> ports;
};

// Every RDMA device the kernel shows, usable or not; empty if there is none.
// UNIMPLEMENTED: this build has no libibverbs. UNAVAILABLE: a device is there but does not open.
absl::StatusOr<std::vector<RdmaDevice>> ListRdmaDevices();

// How many bytes this process may lock, which bounds the memory it can register for RDMA;
// UINT64_MAX if there is no limit.
uint64_t LockedMemoryLimitBytes();

// "fe80:0000:0000:0000:0202:c9ff:fe00:0001".
std::string GidToString(const RdmaGid& gid);
bool IsZero(const RdmaGid& gid);

// Several lines, for people.
std::string DebugString(const RdmaDevice& device);

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_DEVICES_H_
