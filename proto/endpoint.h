// EndpointId names an endpoint of a job: the scheduler, a shard of a server, a worker or a reader.
// Cores use these names; shells know from the view which transport peer an endpoint is.
#ifndef TANDEM_PROTO_ENDPOINT_H_
#define TANDEM_PROTO_ENDPOINT_H_

#include <cstdint>
#include <string>

namespace tandem {

enum class Role : uint8_t { kNone = 0, kScheduler = 1, kServer = 2, kWorker = 3, kReader = 4 };

struct EndpointId {
  Role role = Role::kNone;
  uint16_t index = 0;  // server index, rank, or number of a reader
  uint8_t shard = 0;   // shard of the server; 0 for all others

  static EndpointId Scheduler() { return {Role::kScheduler, 0, 0}; }
  static EndpointId Shard(int server, int shard) {
    return {Role::kServer, static_cast<uint16_t>(server), static_cast<uint8_t>(shard)};
  }
  static EndpointId Worker(int rank) { return {Role::kWorker, static_cast<uint16_t>(rank), 0}; }
  static EndpointId Reader(int number) { return {Role::kReader, static_cast<uint16_t>(number), 0}; }

  // role << 24 | shard << 16 | index: the form in frame headers.
  uint32_t Pack() const {
    return static_cast<uint32_t>(role) << 24 | static_cast<uint32_t>(shard) << 16 | index;
  }
  static EndpointId Unpack(uint32_t packed) {
    return {static_cast<Role>(packed >> 24), static_cast<uint16_t>(packed),
            static_cast<uint8_t>(packed >> 16)};
  }

  // For example "scheduler", "server 1 shard 0", "worker 2", "reader 0".
  std::string DebugString() const;

  friend bool operator==(const EndpointId& a, const EndpointId& b) { return a.Pack() == b.Pack(); }
  friend bool operator!=(const EndpointId& a, const EndpointId& b) { return !(a == b); }
  friend bool operator<(const EndpointId& a, const EndpointId& b) { return a.Pack() < b.Pack(); }
  template <typename H>
  friend H AbslHashValue(H h, const EndpointId& id) {
    return H::combine(std::move(h), id.Pack());
  }
};

}  // namespace tandem

#endif  // TANDEM_PROTO_ENDPOINT_H_
