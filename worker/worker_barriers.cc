#include "worker/worker_barriers.h"

#include <utility>

#include "base/check.h"

namespace tandem::worker {

bool WorkerBarriers::Pass(absl::Time now, const std::string& name, int64_t value,
                          BarrierEnter::Action action, const std::string& path) {
  const auto at = barriers_.find(name);
  if (at != barriers_.end()) return at->second.released;
  BarrierEnter entry;
  entry.set_name(name);
  entry.set_value(value);
  entry.set_action(action);
  entry.set_path(path);
  return Pass(now, std::move(entry));
}

bool WorkerBarriers::Pass(absl::Time now, BarrierEnter entry) {
  const auto [at, entered_now] = barriers_.try_emplace(entry.name());
  Barrier& barrier = at->second;
  if (entered_now) {
    barrier.entry = std::move(entry);
    barrier.entry.set_parties(parties_);
    barrier.next_send = now;
    ++waiting_;
  }
  return barrier.released;
}

const BarrierRelease& WorkerBarriers::ReleaseOf(const std::string& name) const {
  const Barrier& barrier = barriers_.at(name);
  TANDEM_CHECK(barrier.released);
  return barrier.release;
}

void WorkerBarriers::OnRelease(const BarrierRelease& release) {
  const auto it = barriers_.find(release.name());
  if (it == barriers_.end() || it->second.released) return;
  if (!release.record().empty()) {
    for (const std::string& earlier : released_) barriers_.at(earlier).release.clear_record();
  }
  it->second.released = true;
  it->second.release = release;
  --waiting_;
  released_.push_back(release.name());
  if (released_.size() <= kRemembered) return;
  barriers_.erase(released_.front());
  released_.pop_front();
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
    // Nobody waits for a checkpoint during training.
    const bool background =
        barrier.entry.action() == BarrierEnter::CHECKPOINT && barrier.entry.may_fail();
    if (!barrier.released && !background) return name;
  }
  return "";
}

}  // namespace tandem::worker
