// Several transports behind one: for each peer the best way that reaches it, chosen by itself.
//
// The address lists all ways to this endpoint, best first, separated by spaces, e.g.
//   shm:6f0c.../tandem-1f2e... tcp://10.0.0.1:41231
// An address may list fewer ways, or one. Connect tries the ways that both sides have, in our
// order, and takes the first that works. The side that connects chooses; answers come the same way.
//
// A way that breaks (kPeerLost) is not tried again for the same address, so whoever sends next is
// connected by the next way: the loss of a path looks like the loss of a peer that comes back at
// once. Frames in flight may be lost then, none is doubled, and the order holds within a
// connection. A sender that must not lose a frame asks again, as after any loss, and the other side
// recognises repetitions (requests of the client are numbered, a shard admits a push once).
//
// Connect reports each choice, and why it was made, to on_path.
#ifndef TANDEM_TRANSPORT_MULTI_TRANSPORT_H_
#define TANDEM_TRANSPORT_MULTI_TRANSPORT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "transport/waitable.h"

namespace tandem::transport {

struct TransportWay {
  std::string name;                  // as people know it, e.g. "shared memory"
  std::vector<std::string> schemes;  // how its addresses begin, e.g. {"tcp://", "ipc://"}
  std::unique_ptr<WaitableTransport> transport;
  // How often it is asked for news while other ways always have some. Zero: each time.
  absl::Duration poll_every = absl::ZeroDuration();
};

// A peer, the way to it, and why this one.
struct PathChoice {
  PeerId peer = 0;
  std::string address, way, why;
};
using OnPath = std::function<void(const PathChoice&)>;

struct MultiOptions {
  std::vector<TransportWay> ways;  // best first, at least one; buffers come from the first
  // The name of a way: to an address that lists it, no other is taken, whatever happens.
  std::string forced = "";
  // Ways that this process has not, each with the reason: part of the reason of every choice.
  std::vector<std::string> missing = {};
  OnPath on_path = nullptr;
};
std::unique_ptr<Transport> NewMultiTransport(MultiOptions options);

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_MULTI_TRANSPORT_H_
