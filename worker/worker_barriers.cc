#include "worker/worker_barriers.h"

#include <utility>

#include "base/check.h"

namespace tandem::worker {

bool WorkerBarriers::Pass(absl::Time now, const std::string& name, int64_t value,
                          BarrierEnter::Action action, const std::string& path) {
  const auto [at, entered_now] = barriers_.try_emplace(name);
  Barrier& barrier = at->second;
  if (entered_now) {
    barrier.entry.set_name(name);
    barrier.entry.set_value(value);
    barrier.entry.set_parties(parties_);
    barrier.entry.set_action(action);
    barrier.entry.set_path(path);
    barrier.next_send = now;
    ++waiting_;
  }
  return barrier.released;
}

int64_t WorkerBarriers::MaxValue(const std::string& name) const {
  const Barrier& barrier = barriers_.at(name);
  TANDEM_CHECK(barrier.released);
  return barrier.max_value;
}

void WorkerBarriers::OnRelease(const BarrierRelease& release) {
  const auto it = barriers_.find(release.name());
  if (it == barriers_.end() || it->second.released) return;
  it->second.released = true;
  it->second.max_value = release.max_value();
  --waiting_;
}

void WorkerBarriers::AppendDue(absl::Time now, std::vector<Control>* out) {
  if (waiting_ == 0) return;
  for (auto& [name, barrier] : barriers_) {
    if (barrier.released || barrier.next_send > now) continue;
    barrier.next_send = now + resend_;
    *out->emplace_back().mutable_barrier_enter() = barrier.entry;
  }
}

absl::string_view WorkerBarriers::WaitingAt() const {
  if (waiting_ == 0) return "";
  for (const auto& [name, barrier] : barriers_) {
    if (!barrier.released) return name;
  }
  return "";
}

}  // namespace tandem::worker
