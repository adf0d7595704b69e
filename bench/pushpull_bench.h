// pushpull   pull and push of random keys through the client, over ZeroMQ on loopback and through
//            shared memory, one worker, one shard, one request in flight or several;
//            against the store's own time for the same rows plus a bare ZeroMQ round trip of the
//            same sizes
//
// Client and shard have endpoints of their own (of ZeroMQ: a context, so an I/O thread, each), as
// two processes would; each transport has its own client and shard, with the same rows. Bare trip:
// DEALER and ROUTER with blocking calls, request and reply of as many parts and bytes, memory that
// is never touched. Store: one RangeStore with the same rows and optimizer, the same keys, by its
// caller. All of them take turns trip by trip, because the speed of a machine drifts; with several
// requests in flight, repetition by repetition, and a trip of ours takes the time of all of them
// divided by their number.
//
// Three ways to ask: rows and gradients in place, in the frames; copied to and from arrays of the
// caller's; copied and merged, for ids that may repeat. What the client does for its user (looking
// for repeated ids, ordering by range, copying) counts as its time. To compute gradients is the
// caller's affair, wherever they are put.
#ifndef TANDEM_BENCH_PUSHPULL_BENCH_H_
#define TANDEM_BENCH_PUSHPULL_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/client_core.h"
#include "proto/job.pb.h"

namespace tandem::bench {

struct PushPullBenchOptions {
  int64_t rows = 1'000'000;
  int dim = 16;
  std::vector<int64_t> keys = {10'000, 50'000};  // of a request, distinct
  int repetitions = 21;
  int trips = 20;     // of each kind, a repetition
  int in_flight = 1;  // requests of ours; bare trips and the store are always alone
  Optimizer::Kind optimizer = Optimizer::ROWWISE_ADAGRAD;
  uint64_t seed = 1;
  std::vector<std::string> transports = {"zmq", "shm"};
  // Who waits for shared memory always looks for a while before it sleeps, as with free cores.
  bool spin = false;
  // The answering sides, the bare one as well, stay on the second processor, as a server does with
  // cluster.pin_servers. The others go where they like.
  bool pin = false;
  size_t frame_bytes =
      client::ClientCore::Options().frame_bytes;  // of rows, that a frame is cut at
};

// Prints the machine, the knobs, and for each size, pull and push, and transport: microseconds of
// our trip, the bare trip and the store as medians over all trips, the ratio store / ours, and the
// ratio ours / (bare + store): its median over the repetitions' medians, and their spread. Then a
// checksum of all rows read, the same for the same knobs. INTERNAL if a pull and the store
// disagree; INVALID_ARGUMENT for knobs out of range.
absl::Status RunPushPullBench(const PushPullBenchOptions& options, std::ostream& out);

}  // namespace tandem::bench

#endif  // TANDEM_BENCH_PUSHPULL_BENCH_H_
