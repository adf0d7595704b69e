// The network of the simulator: decides, from a seed, when each frame arrives, if at all. It
// delays, drops, doubles, reorders, and cuts pairs of endpoints off from each other for a while.
//
// Thread safety: none; one thread. Time is virtual. Not here: frames (the world hands them over by
// reference) and the links to the scheduler, which lose nothing (sim/sim_scheduler.h).
#ifndef TANDEM_SIM_NETWORK_H_
#define TANDEM_SIM_NETWORK_H_

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
  double duplicate = 0;                            // probability that it comes twice
  bool reorder = false;                            // may frames of one pair overtake each other?
  // What a process can send, and what it can receive, a second: its frames queue for both. 0: no limit.
  double bytes_per_second = 0;
  double cuts_per_second = 0;                     // pairs of endpoints cut off from each other ...
  absl::Duration longest_cut = absl::Seconds(2);  // ... for up to this long
};

class SimNetwork {
 public:
  // The servers from number `server_processes` on are in workers: number server_processes + r in
  // worker r. Frames within a process arrive at once, and are never lost.
  SimNetwork(const NetworkOptions& options, uint64_t seed,
             int server_processes = std::numeric_limits<int>::max())
      : options_(options), server_processes_(server_processes), random_(seed) {
    TANDEM_CHECK(options.drop < 1);  // a connection sends again what is lost, until it arrives
  }

  // Appends the times at which a frame of `bytes` sent now arrives: none (lost), one, or two (doubled).
  void Route(absl::Time now, EndpointId from, EndpointId to, size_t bytes,
             std::vector<absl::Time>* arrivals);

  // When a frame arrives that is sent now on a connection between the two, which brings all of them
  // once and in order: what the network loses the connection sends again, which takes its time. Two
  // processes may have more than one.
  absl::Time RouteOnConnection(absl::Time now, EndpointId from, EndpointId to, size_t bytes,
                               int connection = 0);

  // Frames between `a` and `b`, either way, are lost until `end`.
  void Cut(EndpointId a, EndpointId b, absl::Time end);

  // A random wait with mean 1 / cuts_per_second, and how long the cut lasts.
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

#endif  // TANDEM_SIM_NETWORK_H_
