// The links of a job in a simulation of times only (timing.h). Frames of a worker queue at its
// link. All servers share as many links as there are servers, and use them evenly.
//
// Thread safety: none.
#ifndef TANDEM_TOOLS_SIM_TIMED_LINKS_H_
#define TANDEM_TOOLS_SIM_TIMED_LINKS_H_

#include <vector>

#include "tools/sim/timed_agenda.h"

namespace tandem::sim {

class TimedLinks {
 public:
  // latency: of every frame. bytes_per_second: of each process, in each direction; 0: no limit.
  TimedLinks(int workers, int servers, Ticks latency, double bytes_per_second)
      : latency_(latency), rate_(bytes_per_second), servers_(servers), workers_(workers) {}

  // The arrival time of `bytes` that worker `rank` sends to the servers at `now`. Calls come in
  // order of time.
  Ticks Sent(int rank, double bytes, Ticks now);
  // The arrival time of `bytes` that the servers send to worker `rank` at `now`.
  Ticks Received(int rank, double bytes, Ticks now);

 private:
  struct Link {
    Ticks sends_until = 0, receives_until = 0;
  };
  Ticks Through(Ticks* first, double first_rate, Ticks* second, double second_rate, double bytes,
                Ticks now) const;

  const Ticks latency_;
  const double rate_;
  const int servers_;
  std::vector<Link> workers_;
  Link of_servers_;
};

}  // namespace tandem::sim

#endif  // TANDEM_TOOLS_SIM_TIMED_LINKS_H_
