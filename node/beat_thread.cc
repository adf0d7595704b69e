#include "node/beat_thread.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/proc_files.h"

namespace tandem::node {
namespace {
constexpr absl::Duration kPoll = absl::Milliseconds(50);  // how soon a stop is noticed

void AddMemory(Beat* beat) {
  const HostMemory host = MemoryOfHost();
  beat->set_resident_bytes(ResidentBytes());
  beat->set_host_memory_bytes(host.total);
  beat->set_host_available_bytes(host.available);
}
}  // namespace

Beat LoopWatch::Look() {
  Beat beat;
  for (size_t i = 0; i < loops_.size(); ++i) {
    const uint64_t count = loops_[i]->count();
    if (count != seen_[i]) moved_[i] = true;
    seen_[i] = count;
    beat.set_step(std::max(beat.step(), loops_[i]->step()));
    Activity activity = loops_[i]->activity();
    const bool waits = activity.waits_for.role != Role::kNone;
    if (beat.waits_for() != 0 || !(waits || beat.activity().empty())) continue;
    beat.set_activity(std::move(activity.text));
    beat.set_waits_for(activity.waits_for.Pack());
  }
  if (std::all_of(moved_.begin(), moved_.end(), [](bool moved) { return moved; })) {
    ++progress_;
    moved_.assign(moved_.size(), false);
  }
  beat.set_progress(progress_);
  return beat;
}

BeatThread::BeatThread(
    std::function<absl::StatusOr<std::unique_ptr<transport::Transport>>()> make_transport,
    std::string scheduler, EndpointId self, uint64_t incarnation,
    std::vector<const LoopProgress*> loops, absl::Duration interval)
    : make_transport_(std::move(make_transport)),
      scheduler_(std::move(scheduler)),
      self_(self),
      incarnation_(incarnation),
      interval_(interval),
      watch_(std::move(loops)),
      thread_([this] { Run(); }) {}

BeatThread::~BeatThread() {
  stop_.store(true);
  thread_.join();
}

void BeatThread::Run() {
  absl::StatusOr<std::unique_ptr<transport::Transport>> transport = make_transport_();
  if (!transport.ok()) return;  // the scheduler notices the missing heartbeats and says so
  transport::PeerId peer = 0;
  absl::Time next = MonotonicNow();
  std::vector<transport::TransportEvent> events;
  while (!stop_.load()) {
    if (MonotonicNow() >= next) {
      next = MonotonicNow() + interval_;
      if (peer == 0) peer = (*transport)->Connect(scheduler_).value_or(0);
      Control control;
      *control.mutable_beat() = watch_.Look();
      AddMemory(control.mutable_beat());
      FrameHeader header;
      header.sender = self_;
      header.incarnation = incarnation_;
      if (peer != 0) {
        (void)(*transport)->Send(peer, EncodeControlFrame(**transport, header, control));
      }
    }
    events.clear();
    (*transport)->Poll(kPoll, &events);
    for (const transport::TransportEvent& event : events) {
      if (event.peer == peer && (event.kind == transport::TransportEvent::Kind::kPeerLost ||
                                 event.kind == transport::TransportEvent::Kind::kPeerClosed)) {
        peer = 0;
      }
    }
  }
}

}  // namespace tandem::node
