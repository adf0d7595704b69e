// MultiTransport combines several transports and chooses for each peer the best one that reaches
// it. A "way" is one of these transports, or a peer's address at one of them.
//
// The address lists all ways to this endpoint, best first, separated by spaces, for example
//
//   shm:6f0c.../tandem-1f2e... tcp://10.0.0.1:41231
//
// An address may list fewer ways, or one. Connect tries the ways that both sides have, in this
// side's order, and takes the first one that works. The side that connects chooses; answers use the
// same way.
//
// Connect does not try a way again for the same address after it broke (kPeerLost). The next send
// then connects over the next way. So the loss of a path looks like a peer that is lost and returns
// at once. Frames in flight may be lost then, but no frame is doubled, and the order holds within a
// connection. A sender that must not lose a frame sends it again, as after any loss, and the
// receiver recognises repetitions (client requests are numbered, and a shard admits a push once).
//
// Connect reports each choice and its reason to on_path.
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
  std::string name;                  // name for people, for example "shared memory"
  std::vector<std::string> schemes;  // begins of its addresses, e.g. {"tcp://", "ipc://"}
  std::unique_ptr<WaitableTransport> transport;
  // How often the transport is polled while other ways are busy. Zero: in every Poll.
  absl::Duration poll_every = absl::ZeroDuration();
};

// A peer, the way that was chosen to it, and the reason.
struct PathChoice {
  PeerId peer = 0;
  std::string address, way, why;
};
using OnPath = std::function<void(const PathChoice&)>;

struct MultiOptions {
  std::vector<TransportWay> ways;  // best first, at least one; buffers come from the first one
  // Name of a required way: if an address lists this way, no other one is used for the address.
  std::string forced = "";
  // Ways that this process lacks, each with its reason. The reasons become part of each choice's
  // `why`.
  std::vector<std::string> missing = {};
  OnPath on_path = nullptr;
};
std::unique_ptr<Transport> NewMultiTransport(MultiOptions options);

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_MULTI_TRANSPORT_H_
