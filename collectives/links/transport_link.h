// TransportLink: links over a Transport, for example RDMA or ZeroMQ. Each rank has one endpoint
// (TransportHub), and over it one link to each peer.
//
// The bytes of a link travel as SEGMENT frames (proto/frame.md, frame_link.h) over a connection
// that loses nothing. Written bytes are copied once, into a buffer of the transport; an RDMA device
// sends from that buffer. Received bytes are read where the transport has put them. A link takes
// only as many frames as the peer has room for (`window_frames` frames that the peer has not read),
// and the transport delivers that many without further calls. So all bytes that a link has taken
// arrive, even if this rank does not call the link again.
//
// The first frame of either side is a GREETING: the connecting side says who it is, and the other
// side admits or refuses it. A peer that sends anything else first is disconnected.
//
// Failure of a link: UNAVAILABLE after the last byte: "connection closed by the peer", or the
// transport's reason for losing it.
//
// Thread safety: none. One thread, that of the group's engine, uses a hub and its links. A call
// that finds no bytes polls the transport, which makes progress for all links.
#ifndef TANDEM_COLLECTIVES_LINKS_TRANSPORT_LINK_H_
#define TANDEM_COLLECTIVES_LINKS_TRANSPORT_LINK_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "absl/types/span.h"
#include "collectives/links/frame_link.h"
#include "collectives/links/link.h"
#include "transport/waitable.h"

namespace tandem::collectives {

class TransportHub;

class TransportLink final : public Link {
 public:
  // A segment of 128 KiB and the header of its message fill one frame.
  static constexpr size_t kFrameBytes = (size_t{128} << 10) + 64;
  static constexpr size_t kWindowFrames = 16;
  static constexpr size_t kWindowBytes = kWindowFrames * kFrameBytes;

  // A hub makes links. The destructor ends the connection in order; bytes that were written before
  // still arrive.
  ~TransportLink() override;
  TransportLink(const TransportLink&) = delete;
  TransportLink& operator=(const TransportLink&) = delete;

  absl::StatusOr<size_t> Write(absl::Span<const uint8_t> head,
                               absl::Span<const uint8_t> body) override;
  absl::StatusOr<absl::Span<const uint8_t>> Peek(size_t least) override;
  void Consume(size_t n) override;
  absl::StatusOr<size_t> Read(absl::Span<uint8_t> to) override;
  int fd() const override;
  bool PrepareToSleep() override;
  void WakeUp() override;
  absl::string_view kind() const override;

  // For a link that this side connected: the peer's answer to the greeting, once it has come.
  // Nothing may be written before that.
  const absl::optional<std::string>& answer() const { return answer_; }
  // Why the connection has ended; OK while it lives.
  const absl::Status& failure() const { return failure_; }

 private:
  friend class TransportHub;
  TransportLink(std::shared_ptr<TransportHub> hub, transport::PeerId peer, uint64_t incarnation);
  void Flush();
  void OnFrame(const ParsedFrame& frame);
  void Fail(absl::Status why);
  void LookAround();

  const std::shared_ptr<TransportHub> hub_;
  const transport::PeerId peer_;
  FrameLink frames_;
  absl::optional<std::string> answer_;
  absl::Status failure_;
  std::vector<Frame> out_;  // frames that the transport has not taken, from out_begin_ on
  size_t out_begin_ = 0;
  bool news_ = false;  // something has come since the last call
  bool send_failed_ = false;
};

// A rank's endpoint: makes links and accepts the peers that connect to it.
class TransportHub : public std::enable_shared_from_this<TransportHub> {
 public:
  static constexpr size_t kMaxGreetingBytes = 256;

  // `kind` is the kind of its links, for example "rdma".
  static std::shared_ptr<TransportHub> New(std::unique_ptr<transport::WaitableTransport> transport,
                                           absl::string_view kind);

  const std::string& address() const { return transport_->address(); }
  const std::string& kind() const { return kind_; }
  // The transport itself, for example for its counters.
  const transport::Transport& transport() const { return *transport_; }

  // Makes a link, which then waits for its answer. `incarnation` is the same on both ends.
  // INVALID_ARGUMENT: `address` is not an address.
  absl::StatusOr<std::unique_ptr<TransportLink>> Connect(const std::string& address,
                                                         uint64_t incarnation,
                                                         absl::string_view greeting);

  struct Newcomer {
    transport::PeerId peer = 0;
    std::string greeting;
  };
  // The next peer that has greeted and has neither been admitted nor refused, in order of arrival.
  absl::optional<Newcomer> NextNewcomer();
  std::unique_ptr<TransportLink> Admit(const Newcomer& newcomer, uint64_t incarnation,
                                       absl::string_view answer);
  void Refuse(const Newcomer& newcomer, absl::string_view answer);

  // Lets the transport make progress; true if anything has happened. Never waits.
  bool Poll();
  // These three work like those of Link.
  int fd() const { return transport_->wait_fd(); }
  bool PrepareToSleep();
  void WakeUp();

 private:
  friend class TransportLink;
  // The limit on peers that have greeted and wait. A thousand strangers do no harm; further ones
  // are not heard.
  static constexpr size_t kMaxNewcomers = 1024;

  TransportHub(std::unique_ptr<transport::WaitableTransport> transport, absl::string_view kind)
      : transport_(std::move(transport)), kind_(kind) {}
  void Handle(const transport::TransportEvent& event);
  void OnStranger(const transport::TransportEvent& event);
  void Greet(transport::PeerId peer, uint64_t incarnation, absl::string_view text);
  std::unique_ptr<TransportLink> NewLink(transport::PeerId peer, uint64_t incarnation);

  const std::unique_ptr<transport::WaitableTransport> transport_;
  const std::string kind_;
  absl::flat_hash_map<transport::PeerId, TransportLink*> links_;
  std::deque<Newcomer> newcomers_;
  std::vector<transport::TransportEvent> events_;  // used by Poll; a member to keep its memory
  bool asleep_ = false, may_sleep_ = false;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_TRANSPORT_LINK_H_
