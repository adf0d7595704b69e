#include "collectives/links/transport_link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::collectives {
namespace {

FrameLinkOptions OptionsOf(uint64_t incarnation) {
  FrameLinkOptions options;
  options.incarnation = incarnation;
  options.window_bytes = TransportLink::kWindowBytes;
  options.frame_bytes = TransportLink::kFrameBytes;
  options.window_frames = TransportLink::kWindowFrames;
  return options;
}

bool IsGreeting(const ParsedFrame& frame) {
  return frame.header.kind == FrameKind::kSegment && frame.header.flags == FrameLink::kGreeting &&
         frame.entry_count == 0 && frame.keys().empty() &&
         frame.values().size() <= TransportHub::kMaxGreetingBytes;
}

std::string TextOf(const ParsedFrame& frame) {
  const Buffer& bytes = frame.values();
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

absl::Status WhyOver(const transport::TransportEvent& event) {
  if (event.kind == transport::TransportEvent::Kind::kPeerClosed) {
    return absl::UnavailableError("connection closed by the peer");
  }
  const bool garbage = event.kind == transport::TransportEvent::Kind::kGarbage;
  return absl::UnavailableError(
      absl::StrCat(garbage ? "it sent garbage: " : "connection lost: ", event.why.message()));
}

}  // namespace

// ---- TransportLink ----

TransportLink::TransportLink(std::shared_ptr<TransportHub> hub, transport::PeerId peer,
                             uint64_t incarnation)
    : hub_(std::move(hub)), peer_(peer), frames_(*hub_->transport_, OptionsOf(incarnation)) {}

TransportLink::~TransportLink() {
  hub_->links_.erase(peer_);
  hub_->transport_->Close(peer_);
}

int TransportLink::fd() const { return hub_->fd(); }
absl::string_view TransportLink::kind() const { return hub_->kind(); }

void TransportLink::LookAround() {
  (void)hub_->Poll();
  // If Poll has given the link a reason already, Fail keeps that reason.
  if (send_failed_) Fail(absl::UnavailableError("connection lost"));
}

absl::StatusOr<size_t> TransportLink::Write(absl::Span<const uint8_t> head,
                                            absl::Span<const uint8_t> body) {
  news_ = false;
  if (frames_.room() < head.size() + body.size()) LookAround();
  const absl::StatusOr<size_t> taken = frames_.Write(head, body);
  if (taken.ok()) Flush();
  return taken;
}

absl::StatusOr<absl::Span<const uint8_t>> TransportLink::Peek(size_t least) {
  news_ = false;
  if (frames_.arrived() < least) LookAround();
  return frames_.Peek(least);
}

void TransportLink::Consume(size_t n) {
  frames_.Consume(n);
  if (frames_.must_tell()) Flush();
}

absl::StatusOr<size_t> TransportLink::Read(absl::Span<uint8_t> to) {
  news_ = false;
  if (frames_.arrived() < to.size()) LookAround();
  const absl::StatusOr<size_t> n = frames_.Read(to);
  if (frames_.must_tell()) Flush();
  return n;
}

bool TransportLink::PrepareToSleep() {
  const bool may_sleep = hub_->PrepareToSleep();
  return may_sleep && !news_;
}

void TransportLink::WakeUp() { hub_->WakeUp(); }

// Gives the transport all frames that it takes, normally all of them. The rest leaves when the
// transport says that it has room again.
void TransportLink::Flush() {
  if (!failure_.ok()) return;
  frames_.Flush(&out_);
  for (; out_begin_ < out_.size(); ++out_begin_) {
    const absl::Status sent = hub_->transport_->Send(peer_, out_[out_begin_]);
    if (absl::IsResourceExhausted(sent)) return;
    send_failed_ = send_failed_ || !sent.ok();
  }
  out_.clear();
  out_begin_ = 0;
}

void TransportLink::OnFrame(const ParsedFrame& frame) {
  news_ = true;
  if (IsGreeting(frame) && !answer_.has_value()) {
    answer_ = TextOf(frame);
    return;
  }
  if (absl::Status taken = frames_.OnFrame(frame); !taken.ok()) {
    Fail(absl::UnavailableError(absl::StrCat("it sent garbage: ", taken.message())));
    hub_->transport_->Close(peer_);
  }
}

void TransportLink::Fail(absl::Status why) {
  if (!failure_.ok()) return;
  news_ = true;
  failure_ = why;
  out_.clear();
  out_begin_ = 0;
  frames_.OnPeerLost(std::move(why));
}

// ---- TransportHub ----

std::shared_ptr<TransportHub> TransportHub::New(
    std::unique_ptr<transport::WaitableTransport> transport, absl::string_view kind) {
  return std::shared_ptr<TransportHub>(new TransportHub(std::move(transport), kind));
}

std::unique_ptr<TransportLink> TransportHub::NewLink(transport::PeerId peer, uint64_t incarnation) {
  std::unique_ptr<TransportLink> link(new TransportLink(shared_from_this(), peer, incarnation));
  links_[peer] = link.get();
  return link;
}

void TransportHub::Greet(transport::PeerId peer, uint64_t incarnation, absl::string_view text) {
  TANDEM_CHECK(text.size() <= kMaxGreetingBytes);
  FrameHeader header;
  header.kind = FrameKind::kSegment;
  header.flags = FrameLink::kGreeting;
  header.incarnation = incarnation;
  const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  // If the send fails, the next Poll has an event that says so.
  (void)transport_->Send(
      peer, EncodeDataFrame(*transport_, header, {}, Buffer(), CopyToBuffer(*transport_, bytes)));
}

absl::StatusOr<std::unique_ptr<TransportLink>> TransportHub::Connect(const std::string& address,
                                                                     uint64_t incarnation,
                                                                     absl::string_view greeting) {
  TANDEM_ASSIGN_OR_RETURN(const transport::PeerId peer, transport_->Connect(address));
  std::unique_ptr<TransportLink> link = NewLink(peer, incarnation);
  Greet(peer, incarnation, greeting);
  return link;
}

absl::optional<TransportHub::Newcomer> TransportHub::NextNewcomer() {
  if (newcomers_.empty()) return absl::nullopt;
  Newcomer next = std::move(newcomers_.front());
  newcomers_.pop_front();
  return next;
}

std::unique_ptr<TransportLink> TransportHub::Admit(const Newcomer& newcomer, uint64_t incarnation,
                                                   absl::string_view answer) {
  std::unique_ptr<TransportLink> link = NewLink(newcomer.peer, incarnation);
  link->answer_.emplace();  // the peer has sent its one greeting already
  Greet(newcomer.peer, incarnation, answer);
  return link;
}

void TransportHub::Refuse(const Newcomer& newcomer, absl::string_view answer) {
  Greet(newcomer.peer, 0, answer);
  transport_->Close(newcomer.peer);
}

bool TransportHub::Poll() {
  transport_->Poll(absl::ZeroDuration(), &events_);
  const bool any = !events_.empty();
  for (const transport::TransportEvent& event : events_) Handle(event);
  events_.clear();
  return any;
}

void TransportHub::Handle(const transport::TransportEvent& event) {
  const auto found = links_.find(event.peer);
  if (found == links_.end()) return OnStranger(event);
  TransportLink& link = *found->second;
  if (event.kind == transport::TransportEvent::Kind::kFrame) {
    link.OnFrame(event.frame);
  } else if (event.kind == transport::TransportEvent::Kind::kWritable) {
    link.Flush();
  } else {
    link.Fail(WhyOver(event));
    transport_->Close(event.peer);
  }
}

void TransportHub::OnStranger(const transport::TransportEvent& event) {
  const auto known = std::find_if(newcomers_.begin(), newcomers_.end(),
                                  [&](const Newcomer& n) { return n.peer == event.peer; });
  if (event.kind == transport::TransportEvent::Kind::kWritable) return;
  if (event.kind == transport::TransportEvent::Kind::kFrame && known == newcomers_.end() &&
      newcomers_.size() < kMaxNewcomers && IsGreeting(event.frame)) {
    newcomers_.push_back({event.peer, TextOf(event.frame)});
    return;
  }
  if (known != newcomers_.end()) newcomers_.erase(known);
  transport_->Close(event.peer);
}

bool TransportHub::PrepareToSleep() {
  if (!asleep_) {
    asleep_ = true;
    // Handle everything that has arrived; each link notes whether something was for it.
    while (Poll()) may_sleep_ = false;
    auto until = transport::WaitableTransport::Clock::time_point::max();
    may_sleep_ = transport_->BeginWait(&until);
  }
  return may_sleep_;
}

void TransportHub::WakeUp() {
  if (!asleep_) return;
  asleep_ = false;
  transport_->EndWait(/*readable=*/true);
}

}  // namespace tandem::collectives
