#include "node/node_link.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clip_text.h"
#include "base/damaged_checkpoint.h"
#include "base/diverged.h"
#include "base/memory_full.h"
#include "base/no_room.h"
#include "proto/frame.h"

namespace tandem::node {

absl::Status NodeLink::Start(absl::Time now) {
  unheard_since_ = now;
  absl::StatusOr<transport::PeerId> peer = transport_.Connect(options_.scheduler);
  if (!peer.ok()) return peer.status();
  peer_ = *peer;
  OnTick(now);
  return absl::OkStatus();
}

void NodeLink::Connect(absl::Time now) {
  absl::StatusOr<transport::PeerId> peer = transport_.Connect(options_.scheduler);
  if (!peer.ok()) return;
  peer_ = *peer;
  next_register_ = now;  // register on the new connection
}

void NodeLink::OnEvent(absl::Time now, const transport::TransportEvent& event,
                       std::vector<Control>* inbox) {
  if (event.peer != peer_ || peer_ == 0) return;
  if (event.kind == transport::TransportEvent::Kind::kPeerLost) {
    peer_ = 0;
    if (absl::IsUnauthenticated(event.why) && failure_.ok() &&
        (!options_.answers_as_zmq || options_.answers_as_zmq(options_.scheduler))) {
      failure_ = absl::UnauthenticatedError(absl::StrCat("scheduler: ", event.why.message()));
    }
    unheard_since_ = std::min(unheard_since_, now);
    next_register_ = now + options_.retry;
    return;
  }
  if (event.kind == transport::TransportEvent::Kind::kPeerClosed) {
    if (failure_.ok()) failure_ = absl::UnavailableError("scheduler: closed the connection");
    return;
  }
  if (event.kind == transport::TransportEvent::Kind::kGarbage) return OnGarbage(event.why);
  if (event.kind != transport::TransportEvent::Kind::kFrame) return;
  if (!IsOurScheduler(event.frame.header.incarnation)) return;
  unheard_since_ = absl::InfiniteFuture();
  heard_ = true;
  absl::StatusOr<Control> control = event.frame.ParseControl();
  if (!control.ok()) return OnGarbage(control.status());
  if (control->has_failure()) {
    const Failure& f = control->failure();
    if (failure_.ok()) {
      last_attempt_ = f.last_attempt();
      failure_ = absl::Status(static_cast<absl::StatusCode>(f.code()),
                              absl::StrCat(f.node(), ": ", f.reason()));
      if (failure_.ok()) failure_ = absl::AbortedError(absl::StrCat(f.node(), ": ", f.reason()));
      if (!f.damaged_checkpoint().empty()) {
        failure_ = DamagedCheckpointError(failure_, f.damaged_checkpoint());
      }
    }
    return;
  }
  if (control->has_view()) {
    next_register_ = absl::InfiniteFuture();
  }
  inbox->push_back(*std::move(control));
}

// A node that has missed a message cannot continue.
void NodeLink::OnGarbage(const absl::Status& why) {
  if (!failure_.ok()) return;
  failure_ = absl::InternalError(absl::StrCat("scheduler: sent garbage: ", why.message()));
  ReportOwnFailure(failure_, absl::nullopt);
}

// A scheduler that has been started again at the same address begins a new attempt of the job, with
// new processes.
bool NodeLink::IsOurScheduler(uint64_t incarnation) {
  if (!heard_) options_.registration.set_scheduler(incarnation);
  if (incarnation == options_.registration.scheduler()) return true;
  if (failure_.ok()) {
    failure_ = absl::UnavailableError(
        "scheduler: it has been started again; this process is of the attempt before");
  }
  return false;
}

void NodeLink::OnTick(absl::Time now) {
  const absl::Duration pause = pauses_.Tick(now);
  if (unheard_since_ < now) unheard_since_ = std::min(now, unheard_since_ + pause);
  const absl::Duration unheard = now - unheard_since_;
  const absl::Duration patience = heard_ ? options_.lost_after : options_.found_within;
  if (peer_ == 0 && unheard > patience && failure_.ok()) {
    const std::string why = options_.why_no_answer ? options_.why_no_answer(options_.scheduler)
                                                   : "no answer; hint: is it running?";
    failure_ = absl::UnavailableError(
        absl::StrCat("scheduler: no connection to ", options_.scheduler, " for ",
                     absl::ToInt64Seconds(unheard), " s", heard_ ? "" : ": ", heard_ ? "" : why));
  }
  if (now < next_register_) return;
  if (peer_ == 0) Connect(now);
  next_register_ = now + options_.retry;
  if (peer_ == 0) return;
  Control control;
  *control.mutable_register_() = options_.registration;
  Send(control);
}

void NodeLink::Send(const Control& control) {
  if (peer_ == 0) return;
  if (const size_t bytes = control.ByteSizeLong(); bytes > kMaxControlBytes) {
    const auto* const body = Control::descriptor()->FindFieldByNumber(control.body_case());
    return ReportOwnFailure(absl::InvalidArgumentError(
                                absl::StrCat("its message ", body->name(), " to the scheduler has ",
                                             bytes, " bytes, at most ", kMaxControlBytes)),
                            absl::nullopt);
  }
  FrameHeader header;
  header.sender = options_.self;
  header.incarnation = options_.registration.incarnation();
  SendFrame(EncodeControlFrame(transport_, header, control));
}

void NodeLink::SendFrame(Frame frame) {
  // A refused send means that the queue of control frames is full. Then the scheduler has gone, or
  // the message is repeated later.
  if (peer_ != 0) (void)transport_.Send(peer_, std::move(frame));
}

void NodeLink::SendDone(uint64_t id, const absl::Status& status) {
  Control control;
  control.mutable_command_done()->set_id(id);
  control.mutable_command_done()->set_code(static_cast<int>(status.code()));
  control.mutable_command_done()->set_message(std::string(status.message()));
  Send(control);
}

void NodeLink::ReportFailure(const absl::Status& status, EndpointId culprit) {
  SendFailure(status, culprit, absl::nullopt);
}

void NodeLink::ReportOwnFailure(const absl::Status& status, absl::optional<int64_t> step) {
  SendFailure(status, have_name_ ? options_.self : EndpointId(), step);
}

void NodeLink::SendFailure(const absl::Status& status, EndpointId culprit,
                           absl::optional<int64_t> step) {
  Control control;
  control.mutable_failure()->set_culprit(culprit.Pack());
  constexpr size_t kMaxReasonBytes = size_t{64} << 10;
  control.mutable_failure()->set_reason(std::string(ClipText(status.message(), kMaxReasonBytes)));
  control.mutable_failure()->set_code(static_cast<int>(status.code()));
  control.mutable_failure()->set_diverged(IsDiverged(status));
  control.mutable_failure()->set_memory_full(IsMemoryFull(status));
  control.mutable_failure()->set_no_room(IsNoRoom(status));
  control.mutable_failure()->set_damaged_checkpoint(DamagedCheckpoint(status));
  if (step.has_value()) control.mutable_failure()->set_step(*step);
  Send(control);
}

}  // namespace tandem::node
