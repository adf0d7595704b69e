// Incarnations are the numbers of the processes of a job. Each process draws a new one when it
// starts. An incarnation is never 0.
//
// A worker that holds rows of tables (Table.placement) takes part in the job twice, as a worker
// and as a server. The server's number is the worker's number with the highest bit set. So whoever
// sees both numbers knows which worker the server belongs to.
#ifndef TANDEM_PROTO_INCARNATION_H_
#define TANDEM_PROTO_INCARNATION_H_

#include <cstdint>

namespace tandem {

inline constexpr uint64_t kServerOfWorkerBit = uint64_t{1} << 63;

// The number that a process uses, from a drawn one: without that bit.
inline uint64_t OwnIncarnation(uint64_t drawn) { return drawn & ~kServerOfWorkerBit; }

inline uint64_t ServerOfWorker(uint64_t worker) { return worker | kServerOfWorkerBit; }
inline bool IsServerOfWorker(uint64_t incarnation) {
  return (incarnation & kServerOfWorkerBit) != 0;
}
inline uint64_t WorkerOfServer(uint64_t server) { return server & ~kServerOfWorkerBit; }

}  // namespace tandem

#endif  // TANDEM_PROTO_INCARNATION_H_
