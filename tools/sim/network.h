// The network of the simulator. It decides, from a seed, when each frame arrives, if at all. The
// network delays, drops, doubles and reorders frames, and cuts pairs of endpoints off from each
// other for a while.
//
// Thread safety: none; one thread. Time is virtual. Not here: frames (the world passes them on by
// reference) and the links to the scheduler, which lose nothing (tools/sim/sim_scheduler.h).
#ifndef TANDEM_TOOLS_SIM_NETWORK_H_
#define TANDEM_TOOLS_SIM_NETWORK_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/check.h"
#include "base/random.h"
#include "proto/endpoint.h"

namespace tandem::sim {

struct NetworkOptions {
  absl::Duration delay = absl::Microseconds(200);  // of every frame
  absl::Duration jitter = absl::Milliseconds(1);   // mean of an exponential part
  double drop = 0;                                 // probability that a frame is lost
  double duplicate = 0;                            // probability that a frame arrives twice
  bool reorder = false;                            // frames of one pair may overtake each other
  // Bytes that a process can send, and also receive, a second. Frames queue for both. 0: no limit.
  double bytes_per_second = 0;
  double cuts_per_second = 0;                     // pairs of endpoints cut off from each other ...
  absl::Duration longest_cut = absl::Seconds(2);  // ... for up to this long
};

class SimNetwork {
 public:
  // Server number server_processes + r is a part of worker r. Frames within a process arrive at
  // once, and are never lost.
  SimNetwork(const NetworkOptions& options, uint64_t seed,
             int server_processes = std::numeric_limits<int>::max())
      : options_(options), server_processes_(server_processes), random_(seed) {
    TANDEM_CHECK(options.drop < 1);  // a connection resends lost frames until they arrive
  }

  // Appends the arrival times of a frame of `bytes` sent now: no time (lost), one, or
  // two (doubled).
  void Route(absl::Time now, EndpointId from, EndpointId to, size_t bytes,
             std::vector<absl::Time>* arrivals);

  // The arrival time of a frame that is sent now on a connection between the two. A connection
  // delivers each frame once and in order. It resends frames that the network loses, which takes
  // time. Two processes may have several connections.
  absl::Time RouteOnConnection(absl::Time now, EndpointId from, EndpointId to, size_t bytes,
                               int connection = 0);

  // Loses all frames between `a` and `b`, in both directions, until `end`.
  void Cut(EndpointId a, EndpointId b, absl::Time end);

  // The random time until the next cut, with mean 1 / cuts_per_second, and the length of a cut.
  absl::Duration UntilNextCut();
  absl::Duration LengthOfCut();

  const NetworkOptions& options() const { return options_; }

 private:
  using Pair = std::pair<EndpointId, EndpointId>;
  absl::Duration Delay();
  EndpointId ProcessOf(EndpointId id) const;
  absl::Time ThroughLinks(absl::Time now, EndpointId from, EndpointId to, size_t bytes);

  const NetworkOptions options_;
  const int server_processes_;
  Random random_;
  std::map<Pair, absl::Time> cut_until_;     // by (smaller, larger)
  std::map<Pair, absl::Time> last_arrival_;  // by (from, to); without reordering
  std::map<std::pair<Pair, int>, absl::Time> last_on_connection_;
  std::map<EndpointId, absl::Time> sends_until_, receives_until_;  // by process
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_NETWORK_H_
