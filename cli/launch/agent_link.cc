#include "cli/launch/agent_link.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "node/network_check.h"
#include "node/role_flags.h"
#include "proto/endpoint.h"
#include "transport/zmq_transport.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kLinger = absl::Seconds(1);
// After this time without a connection the agent looks whether anything listens at the address.
constexpr absl::Duration kProbeAfter = absl::Seconds(2);

// The role of the name "worker 1" or "server 0".
EndpointId RoleOf(const std::string& name) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(name, absl::MaxSplits(' ', 1));
  const int index = std::atoi(parts.second.c_str());
  if (parts.first == "worker") return EndpointId::Worker(index);
  return parts.first == "server" ? EndpointId::Shard(index, 0) : EndpointId::Scheduler();
}

}  // namespace

absl::StatusOr<std::unique_ptr<AgentLink>> AgentLink::Open(const std::string& scheduler, int rank,
                                                           const node::RoleFlags& role) {
  transport::ZmqOptions zmq;
  zmq.context = std::make_shared<transport::ZmqContext>(/*io_threads=*/1);
  zmq.incarnation = node::NewIncarnation();
  zmq.linger = kLinger;
  zmq.keys = role.keys;
  zmq.silence_timeout = role.silence.connection;
  zmq.heartbeat_interval = role.silence.heartbeat;
  TANDEM_ASSIGN_OR_RETURN(auto transport, transport::NewZmqTransport(zmq));
  std::unique_ptr<AgentLink> link(new AgentLink(scheduler, std::move(transport)));
  node::NodeSession::Options member;
  member.role = Register::AGENT;
  member.index = rank;
  member.incarnation = zmq.incarnation;
  member.scheduler = scheduler;
  member.silence = role.silence;
  link->member_ = std::make_unique<node::NodeSession>(*link->transport_, std::move(member));
  TANDEM_RETURN_IF_ERROR(link->member_->Start());
  return link;
}

std::vector<Control> AgentLink::Poll(absl::Duration timeout) {
  events_.clear();
  transport_->Poll(timeout, &events_);
  const absl::Time now = MonotonicNow();
  for (const transport::TransportEvent& event : events_) member_->OnEvent(now, event);
  std::vector<Control> controls = member_->TakeInbox();
  if (status_.ok()) status_ = member_->OnTick(now);
  if (status_.ok()) CheckScheduler(now);
  return controls;
}

// A scheduler that was killed leaves a host on which nobody listens: it will not come back, and the
// agent need not wait as long as for a network that is interrupted.
void AgentLink::CheckScheduler(absl::Time now) {
  const absl::Duration unheard = member_->link().Unheard(now);
  if (unheard < kProbeAfter || now < next_probe_) return;
  next_probe_ = now + absl::Seconds(1);
  if (!node::IsRefused(scheduler_)) return;
  status_ = absl::UnavailableError(
      absl::StrCat("scheduler: it has gone: nobody listens at ", scheduler_, " any more"));
}

bool AgentLink::last_attempt() const { return member_->link().last_attempt(); }

void AgentLink::SendExit(const Children::Exit& exit) {
  Control control;
  RoleExit* const message = control.mutable_agent_note()->mutable_exit();
  message->set_role(RoleOf(exit.name).Pack());
  message->set_pid(exit.pid);
  message->set_signal(exit.signal);
  message->set_code(exit.code);
  // Most roles say why they exit in their last line.
  const bool said = exit.signal == 0 && exit.code != 0 && !exit.lines.empty();
  message->set_text(said ? absl::StrCat(exit.HowItEnded(), " (", exit.lines.back(), ")")
                         : exit.HowItEnded());
  member_->link().Send(control);
}

void AgentLink::SendCheckpoint() {
  Control control;
  control.mutable_agent_note()->set_checkpoint(true);
  member_->link().Send(control);
}

void AgentLink::SendStop(bool at_once) {
  Control control;
  control.mutable_agent_note()->set_stops(at_once ? 2 : 1);
  member_->link().Send(control);
}

}  // namespace tandem::cli
