#include "tools/sim/timed_links.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace tandem::sim {

// The time at which the last byte has passed both links. Bytes are received while they are sent,
// but wait for others on a link, as in tools/sim/network.h.
Ticks TimedLinks::Through(Ticks* first, double first_rate, Ticks* second, double second_rate,
                          double bytes, Ticks now) const {
  if (rate_ <= 0) return now + latency_;
  const auto takes = [bytes](double rate) {
    return static_cast<Ticks>(std::llround(bytes / rate * kTicksPerSecond));
  };
  const Ticks begin = std::max(*first, now);
  *first = begin + takes(first_rate);
  *second = std::max(*first, std::max(*second, begin) + takes(second_rate));
  return *second + latency_;
}

Ticks TimedLinks::Sent(int rank, double bytes, Ticks now) {
  return Through(&workers_[static_cast<size_t>(rank)].sends_until, rate_,
                 &of_servers_.receives_until, rate_ * servers_, bytes, now);
}

Ticks TimedLinks::Received(int rank, double bytes, Ticks now) {
  return Through(&of_servers_.sends_until, rate_ * servers_,
                 &workers_[static_cast<size_t>(rank)].receives_until, rate_, bytes, now);
}

}  // namespace tandem::sim
