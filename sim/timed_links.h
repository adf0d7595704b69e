// The links of a job whose times alone are simulated (timing.h): what a worker sends and receives queues at
// its link, and all servers together have as many links as there are servers, evenly used.
//
// Thread safety: none.
#ifndef TANDEM_SIM_TIMED_LINKS_H_
#define TANDEM_SIM_TIMED_LINKS_H_

#include <vector>

#include "sim/timed_agenda.h"

namespace tandem::sim {

class TimedLinks {
 public:
  // latency: of every frame. bytes_per_second: of each process, either way; 0: no limit.
  TimedLinks(int workers, int servers, Ticks latency, double bytes_per_second)
      : latency_(latency), rate_(bytes_per_second), servers_(servers), workers_(workers) {}

  // When what worker `rank` sends to the servers at `now` arrives; calls come in the order of time.
  Ticks Sent(int rank, double bytes, Ticks now);
  // When what the servers send to worker `rank` at `now` arrives.
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

#endif  // TANDEM_SIM_TIMED_LINKS_H_
