// The pushpull benchmark: pull and push of random keys through the client, over ZeroMQ on loopback
// and through shared memory. There is one worker and one shard, with one or more requests in
// flight. The time is compared with a sum: the store's own time for the same rows plus a bare
// ZeroMQ round trip of the same sizes.
//
// Client and shard have endpoints of their own, as two processes would have (for ZeroMQ: a context
// each, so an I/O thread each). Each transport has its own client and shard, with the same rows.
// The bare trip uses DEALER and ROUTER with blocking calls; request and reply have as many parts
// and bytes, and their memory is never touched. The store is one RowTable with the same rows,
// optimizer and keys, called directly. All of them take turns trip by trip, because the speed of a
// machine drifts. With several requests in flight they take turns repetition by repetition, and the
// time of one trip is the time of all trips divided by their number.
//
// There are three modes: rows and gradients in place, in the frames; copied to and from the
// caller's arrays; copied and merged, for ids that may repeat. The client's work for its user
// (searching for repeated ids, ordering by range, copying) counts as its time. Computing gradients
// does not count, wherever they are written.
#ifndef TANDEM_TOOLS_BENCH_PUSHPULL_BENCH_H_
#define TANDEM_TOOLS_BENCH_PUSHPULL_BENCH_H_

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
  std::vector<int64_t> keys = {10'000, 50'000};  // distinct keys of a request
  int repetitions = 21;
  int trips = 20;     // trips of each kind in a repetition
  int in_flight = 1;  // client requests; bare trips and the store run alone
  Optimizer::Kind optimizer = Optimizer::ROWWISE_ADAGRAD;
  Table::Dtype row_dtype = Table::F32;
  uint64_t seed = 1;
  // Any of zmq, zmq-authenticated, zmq-encrypted and shm. The second and third use a token, as with
  // security.encrypt: CONTROL and ALL.
  std::vector<std::string> transports = {"zmq", "shm"};
  // The answering sides, the bare one included, stay on the second processor, as a server does with
  // cluster.pin_servers. The other threads run anywhere.
  bool pin = false;
  // Bytes of rows at which a request is cut into frames.
  size_t frame_bytes = client::ClientCore::Options().frame_bytes;
};

// Prints the machine and the settings. Then prints for each size, for pull and push, and for each
// transport: the microseconds of the client's trip, of the bare trip and of the store as medians
// over all trips; the ratio store / client; and the ratio client / (bare + store), as the median
// over the repetitions' medians and their spread. At the end prints a checksum of all rows read,
// which is the same for the same settings. INTERNAL: a pull and the store disagree.
// INVALID_ARGUMENT: settings out of range.
absl::Status RunPushPullBench(const PushPullBenchOptions& options, std::ostream& out);

}  // namespace tandem::bench

#endif  // TANDEM_TOOLS_BENCH_PUSHPULL_BENCH_H_
