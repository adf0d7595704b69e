#include "rdma/devices.h"

#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

#ifdef TANDEM_HAVE_IBVERBS
#include <endian.h>
#include <infiniband/verbs.h>

#include "rdma/verbs_library.h"
#endif

namespace tandem::rdma {
namespace {

const char* Name(RdmaPortState state) {
  switch (state) {
    case RdmaPortState::kDown:
      return "down";
    case RdmaPortState::kInitializing:
      return "initializing";
    case RdmaPortState::kArmed:
      return "armed";
    case RdmaPortState::kActive:
      return "active";
    case RdmaPortState::kUnknown:
      break;
  }
  return "unknown";
}

const char* Name(RdmaLinkLayer layer) {
  return layer == RdmaLinkLayer::kInfiniBand ? "InfiniBand"
         : layer == RdmaLinkLayer::kEthernet ? "Ethernet (RoCE)"
                                             : "unknown";
}

#ifdef TANDEM_HAVE_IBVERBS

absl::Status Failed(const ibv_device* device, const char* what, int error) {
  return absl::UnavailableError(absl::StrCat(ibv_get_device_name(const_cast<ibv_device*>(device)),
                                             ": ", what, ": ", std::strerror(error)));
}

// The verbs use the numbers 1 to 5 for MTUs of 256 to 4096 bytes.
int MtuBytes(ibv_mtu mtu) { return mtu < IBV_MTU_256 || mtu > IBV_MTU_4096 ? 0 : 128 << mtu; }

RdmaPortState State(ibv_port_state state) {
  switch (state) {
    case IBV_PORT_DOWN:
      return RdmaPortState::kDown;
    case IBV_PORT_INIT:
      return RdmaPortState::kInitializing;
    case IBV_PORT_ARMED:
      return RdmaPortState::kArmed;
    case IBV_PORT_ACTIVE:
      return RdmaPortState::kActive;
    default:
      return RdmaPortState::kUnknown;
  }
}

RdmaLinkLayer LinkLayer(uint8_t layer) {
  return layer == IBV_LINK_LAYER_INFINIBAND ? RdmaLinkLayer::kInfiniBand
         : layer == IBV_LINK_LAYER_ETHERNET ? RdmaLinkLayer::kEthernet
                                            : RdmaLinkLayer::kUnknown;
}

absl::StatusOr<RdmaPort> QueryPort(ibv_context* context, uint8_t number) {
  ibv_port_attr attributes = {};
  if (const int error = ibv_query_port(context, number, &attributes); error != 0) {
    return Failed(context->device, "ibv_query_port", error);
  }
  RdmaPort port;
  port.number = number;
  port.state = State(attributes.state);
  port.link_layer = LinkLayer(attributes.link_layer);
  port.active_mtu_bytes = MtuBytes(attributes.active_mtu);
  port.max_mtu_bytes = MtuBytes(attributes.max_mtu);
  port.lid = attributes.lid;
  for (int i = 0; i < attributes.gid_tbl_len; ++i) {
    ibv_gid gid = {};  // an entry that cannot be read counts as unused
    if (ibv_query_gid(context, number, i, &gid) != 0) gid = {};
    RdmaGid& copy = port.gids.emplace_back();
    std::copy(std::begin(gid.raw), std::end(gid.raw), copy.begin());
  }
  return port;
}

absl::StatusOr<RdmaDevice> QueryDevice(ibv_device* device) {
  const std::unique_ptr<ibv_context, int (*)(ibv_context*)> context(ibv_open_device(device),
                                                                    &ibv_close_device);
  if (context == nullptr) return Failed(device, "ibv_open_device", errno);
  ibv_device_attr attributes = {};
  if (const int error = ibv_query_device(context.get(), &attributes); error != 0) {
    return Failed(device, "ibv_query_device", error);
  }
  RdmaDevice out;
  out.name = ibv_get_device_name(device);
  out.node_guid = be64toh(ibv_get_device_guid(device));
  for (uint8_t number = 1; number <= attributes.phys_port_cnt; ++number) {
    TANDEM_ASSIGN_OR_RETURN(RdmaPort port, QueryPort(context.get(), number));
    out.ports.push_back(std::move(port));
  }
  return out;
}

#endif  // TANDEM_HAVE_IBVERBS

}  // namespace

#ifdef TANDEM_HAVE_IBVERBS

absl::StatusOr<std::vector<RdmaDevice>> ListRdmaDevices() {
  TANDEM_RETURN_IF_ERROR(LoadVerbs());
  int count = 0;
  const std::unique_ptr<ibv_device*, void (*)(ibv_device**)> list(ibv_get_device_list(&count),
                                                                  &ibv_free_device_list);
  if (list == nullptr) {
    if (errno == ENOSYS) return std::vector<RdmaDevice>();  // a kernel without RDMA
    return absl::UnavailableError(absl::StrCat("ibv_get_device_list: ", std::strerror(errno)));
  }
  std::vector<RdmaDevice> devices;
  for (int i = 0; i < count; ++i) {
    TANDEM_ASSIGN_OR_RETURN(RdmaDevice device, QueryDevice(list.get()[i]));
    devices.push_back(std::move(device));
  }
  return devices;
}

#else

absl::StatusOr<std::vector<RdmaDevice>> ListRdmaDevices() {
  return absl::UnimplementedError(
      "this build has no RDMA: install the packages libibverbs-dev and librdmacm-dev, configure "
      "and build again");
}

#endif  // TANDEM_HAVE_IBVERBS

uint64_t LockedMemoryLimitBytes() {
  rlimit limit = {};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::numeric_limits<uint64_t>::max();
  }
  return limit.rlim_cur;
}

std::string GidToString(const RdmaGid& gid) {
  std::string out;
  for (size_t i = 0; i < gid.size(); i += 2) {
    absl::StrAppendFormat(&out, "%s%02x%02x", i == 0 ? "" : ":", gid[i], gid[i + 1]);
  }
  return out;
}

bool IsZero(const RdmaGid& gid) {
  return std::all_of(gid.begin(), gid.end(), [](uint8_t byte) { return byte == 0; });
}

std::string DebugString(const RdmaDevice& device) {
  std::string out = absl::StrFormat("%s guid %016x\n", device.name, device.node_guid);
  for (const RdmaPort& port : device.ports) {
    absl::StrAppendFormat(&out, "  port %d %s, %s, MTU %d of %d bytes, lid %d\n", port.number,
                          Name(port.state), Name(port.link_layer), port.active_mtu_bytes,
                          port.max_mtu_bytes, port.lid);
    for (size_t i = 0; i < port.gids.size(); ++i) {
      if (IsZero(port.gids[i])) continue;
      absl::StrAppendFormat(&out, "    gid %d %s\n", i, GidToString(port.gids[i]));
    }
  }
  return out;
}

}  // namespace tandem::rdma
