// Numbers by which processes of a job are known: drawn anew each time one starts, and never 0.
//
// A worker that holds rows of tables (Table.synchroniser) takes part in the job twice, as a worker and as
// a server. The server's number is that of the worker with the highest bit set, so whoever sees both
// knows whose it is.
#ifndef TANDEM_PROTO_INCARNATION_H_
#define TANDEM_PROTO_INCARNATION_H_

#include <cstdint>

namespace tandem {

inline constexpr uint64_t kServerOfWorkerBit = uint64_t{1} << 63;

// What a process may draw: without that bit.
inline uint64_t OwnIncarnation(uint64_t drawn) { return drawn & ~kServerOfWorkerBit; }

inline uint64_t ServerOfWorker(uint64_t worker) { return worker | kServerOfWorkerBit; }
inline bool IsServerOfWorker(uint64_t incarnation) {
  return (incarnation & kServerOfWorkerBit) != 0;
}
inline uint64_t WorkerOfServer(uint64_t server) { return server & ~kServerOfWorkerBit; }

}  // namespace tandem

#endif  // TANDEM_PROTO_INCARNATION_H_
