#include "tools/sim/network.h"

#include <algorithm>

namespace tandem::sim {
namespace {

constexpr absl::Duration kConnectionResend = absl::Milliseconds(200);

}  // namespace

absl::Duration SimNetwork::Delay() {
  return options_.delay + options_.jitter * random_.Exponential();
}

EndpointId SimNetwork::ProcessOf(EndpointId id) const {
  id.shard = 0;  // shards of a server share its link
  if (id.role != Role::kServer || id.index < server_processes_) return id;
  return EndpointId::Worker(id.index - server_processes_);
}

// The time at which the last byte has passed the links of both processes. A frame is received while
// it is sent, but waits for other frames on a link.
absl::Time SimNetwork::ThroughLinks(absl::Time now, EndpointId from, EndpointId to, size_t bytes) {
  if (options_.bytes_per_second <= 0) return now;
  const absl::Duration takes =
      absl::Seconds(static_cast<double>(bytes) / options_.bytes_per_second);
  absl::Time& sends = sends_until_.try_emplace(ProcessOf(from), now).first->second;
  absl::Time& receives = receives_until_.try_emplace(ProcessOf(to), now).first->second;
  sends = std::max(sends, now) + takes;
  receives = std::max(sends, receives + takes);
  return receives;
}

void SimNetwork::Route(absl::Time now, EndpointId from, EndpointId to, size_t bytes,
                       std::vector<absl::Time>* arrivals) {
  if (ProcessOf(from) == ProcessOf(to)) {
    arrivals->push_back(now);
    return;
  }
  const auto cut = cut_until_.find(std::minmax(from, to));
  if (cut != cut_until_.end() && now < cut->second) return;
  if (options_.drop > 0 && random_.Bernoulli(options_.drop)) return;
  const absl::Time through = ThroughLinks(now, from, to, bytes);
  const bool twice = options_.duplicate > 0 && random_.Bernoulli(options_.duplicate);
  for (int copy = 0; copy < (twice ? 2 : 1); ++copy) {
    absl::Time at = through + Delay();
    if (!options_.reorder) {
      absl::Time& last = last_arrival_.try_emplace({from, to}, at).first->second;
      at = last = std::max(at, last);
    }
    arrivals->push_back(at);
  }
}

absl::Time SimNetwork::RouteOnConnection(absl::Time now, EndpointId from, EndpointId to,
                                         size_t bytes, int connection) {
  const auto cut = cut_until_.find(std::minmax(from, to));
  absl::Time at = ThroughLinks(now, from, to, bytes);
  if (cut != cut_until_.end()) at = std::max(at, cut->second);
  while (options_.drop > 0 && random_.Bernoulli(options_.drop)) at += kConnectionResend;
  at += Delay();
  absl::Time& last = last_on_connection_.try_emplace({{from, to}, connection}, at).first->second;
  return last = std::max(at, last);
}

void SimNetwork::Cut(EndpointId a, EndpointId b, absl::Time end) {
  absl::Time& until = cut_until_.try_emplace(std::minmax(a, b), end).first->second;
  until = std::max(until, end);
}

absl::Duration SimNetwork::UntilNextCut() {
  return absl::Seconds(random_.Exponential() / options_.cuts_per_second);
}

absl::Duration SimNetwork::LengthOfCut() { return options_.longest_cut * random_.NextDouble(); }

}  // namespace tandem::sim
