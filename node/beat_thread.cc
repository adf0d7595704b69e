#include "node/beat_thread.h"

#include <utility>
#include <vector>

#include "absl/time/clock.h"

namespace tandem {
namespace {
constexpr absl::Duration kInterval = absl::Seconds(1);
constexpr absl::Duration kPoll = absl::Milliseconds(50);  // how soon a stop is seen
}  // namespace

BeatThread::BeatThread(std::function<absl::StatusOr<std::unique_ptr<Transport>>()> make_transport,
                       std::string scheduler, EndpointId self, uint64_t incarnation,
                       const LoopProgress* progress)
    : make_transport_(std::move(make_transport)),
      scheduler_(std::move(scheduler)),
      self_(self),
      incarnation_(incarnation),
      progress_(progress),
      thread_([this] { Run(); }) {}

BeatThread::~BeatThread() {
  stop_.store(true);
  thread_.join();
}

void BeatThread::Run() {
  absl::StatusOr<std::unique_ptr<Transport>> transport = make_transport_();
  if (!transport.ok()) return;  // the scheduler will miss the beats and say so
  PeerId peer = 0;
  absl::Time next = absl::Now();
  std::vector<TransportEvent> events;
  while (!stop_.load()) {
    if (absl::Now() >= next) {
      next = absl::Now() + kInterval;
      if (peer == 0) peer = (*transport)->Connect(scheduler_).value_or(0);
      Control control;
      control.mutable_beat()->set_progress(progress_->count());
      control.mutable_beat()->set_step(progress_->step());
      control.mutable_beat()->set_activity(progress_->activity());
      FrameHeader header;
      header.sender = self_;
      header.incarnation = incarnation_;
      if (peer != 0) {
        (void)(*transport)->Send(peer, EncodeControlFrame(**transport, header, control));
      }
    }
    events.clear();
    (*transport)->Poll(kPoll, &events);
    for (const TransportEvent& event : events) {
      if (event.peer == peer && (event.kind == TransportEvent::Kind::kPeerLost ||
                                 event.kind == TransportEvent::Kind::kPeerClosed)) {
        peer = 0;
      }
    }
  }
}

}  // namespace tandem
