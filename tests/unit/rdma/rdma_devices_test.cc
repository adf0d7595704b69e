// RDMA devices: what every host must answer, and, where there is a device, what it says of itself.
#include "rdma/devices.h"

#include <sys/resource.h>

#include <filesystem>

#include "gtest/gtest.h"

namespace tandem {
namespace {

bool KernelShowsADevice() {
  const std::filesystem::path where = "/sys/class/infiniband";
  std::error_code none;
  return std::filesystem::is_directory(where, none) && !std::filesystem::is_empty(where, none);
}

TEST(RdmaDevicesTest, AHostWithoutDevicesHasAnEmptyList) {
  const auto devices = rdma::ListRdmaDevices();
#ifdef TANDEM_HAVE_IBVERBS
  if (KernelShowsADevice()) GTEST_SKIP() << "this host has RDMA devices";
  ASSERT_TRUE(devices.ok()) << devices.status();
  EXPECT_TRUE(devices->empty());
#else
  EXPECT_EQ(devices.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(devices.status().message().find("libibverbs"), absl::string_view::npos)
      << "it must say what is missing: " << devices.status();
#endif
}

TEST(RdmaDevicesTest, ADeviceSaysWhatItIs) {
#ifndef TANDEM_HAVE_IBVERBS
  GTEST_SKIP() << "built without libibverbs";
#endif
  if (!KernelShowsADevice()) GTEST_SKIP() << "no RDMA device here";
  const auto devices = rdma::ListRdmaDevices();
  ASSERT_TRUE(devices.ok()) << devices.status();
  ASSERT_FALSE(devices->empty());
  for (const rdma::RdmaDevice& device : *devices) {
    EXPECT_FALSE(device.name.empty());
    ASSERT_FALSE(device.ports.empty()) << rdma::DebugString(device);
    for (const rdma::RdmaPort& port : device.ports) {
      EXPECT_FALSE(port.gids.empty()) << rdma::DebugString(device);
      EXPECT_GE(port.max_mtu_bytes, port.active_mtu_bytes) << rdma::DebugString(device);
      EXPECT_GE(port.max_mtu_bytes, 256) << rdma::DebugString(device);
    }
  }
}

TEST(RdmaDevicesTest, TheLockedMemoryLimitIsTheProcesss) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_MEMLOCK, &before), 0);
  rlimit smaller = before;
  smaller.rlim_cur = 65'536;
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &smaller), 0);
  EXPECT_EQ(rdma::LockedMemoryLimitBytes(), 65'536u);
  ASSERT_EQ(setrlimit(RLIMIT_MEMLOCK, &before), 0);
  if (before.rlim_cur == RLIM_INFINITY) {
    EXPECT_EQ(rdma::LockedMemoryLimitBytes(), UINT64_MAX);
  } else {
    EXPECT_EQ(rdma::LockedMemoryLimitBytes(), before.rlim_cur);
  }
}

TEST(RdmaDevicesTest, DevicesPrintWithoutTheirUnusedGids) {
  rdma::RdmaDevice device;
  device.name = "mlx5_0";
  device.node_guid = 0x0202c9fffe000001;
  rdma::RdmaPort& port = device.ports.emplace_back();
  port.number = 1;
  port.state = rdma::RdmaPortState::kActive;
  port.link_layer = rdma::RdmaLinkLayer::kEthernet;
  port.active_mtu_bytes = 1024;
  port.max_mtu_bytes = 4096;
  port.gids.resize(3);
  port.gids[2] = {0xfe, 0x80, 0, 0, 0, 0, 0, 0, 2, 2, 0xc9, 0xff, 0xfe, 0, 0, 1};
  EXPECT_EQ(rdma::DebugString(device),
            "mlx5_0 guid 0202c9fffe000001\n"
            "  port 1 active, Ethernet (RoCE), MTU 1024 of 4096 bytes, lid 0\n"
            "    gid 2 fe80:0000:0000:0000:0202:c9ff:fe00:0001\n");
}

}  // namespace
}  // namespace tandem
