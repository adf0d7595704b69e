// A link over frames (SEGMENT, proto/frame.md), for whatever carries frames: any Transport, and the
// simulated network. Frames may be lost, doubled and reordered, as they are around reconnects. A
// deterministic state machine: its shell carries frames and tells the time.
//
//   while the engine runs:  link.OnFrame(frame, now) for what has arrived from the peer
//                           link.Flush(now, &frames), then send them, by link.NextTick() at the
//                           latest
//
// The stream is cut into segments, numbered by the offset of their first byte; every frame says how
// far its sender has received (so the other may forget) and how far it has read (so the other may
// go on: at most `window_bytes` are ever on their way). What was not acknowledged for
// `resend_after` is sent again; a gap is asked for at once. Received payloads are kept by reference
// and read in place; sent ones are copied once, into buffers of the BufferSource. Nothing else is
// allocated once warm.
//
// Over connections that lose nothing (`lossless`; transport_link.h) nothing is kept to be sent
// again, time does not matter, and the window is one of frames, too.
//
// Failure: UNAVAILABLE after the last byte, "connection closed by the peer", or what OnPeerLost
// said.
#ifndef TANDEM_COLLECTIVES_LINKS_FRAME_LINK_H_
#define TANDEM_COLLECTIVES_LINKS_FRAME_LINK_H_

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "collectives/links/link.h"
#include "proto/frame.h"

namespace tandem {

struct FrameLinkOptions {
  // Stamped into frames; those of another group or incarnation are refused. `group` numbers the
  // links of a job; `incarnation` is new whenever its members meet again, and the same on both
  // ends.
  EndpointId self;
  uint32_t view = 0;
  uint32_t group = 0;
  uint64_t incarnation = 0;
  size_t window_bytes = size_t{4} << 20;  // in each direction; at least Link::kMaxPeek
  size_t frame_bytes = size_t{256} << 10;
  absl::Duration resend_after = absl::Seconds(1);
  // Frames arrive in order and once, until the connection ends: what does not is refused.
  bool lossless = false;
  size_t window_frames = 16;  // lossless: on their way in each direction, not counting mere news
};

class FrameLink final : public Link {
 public:
  // What a SEGMENT frame is for, in its flags.
  enum Flags : uint8_t {
    kData = 0,      // or nothing but news of the other direction
    kAsk = 1,       // send again
    kFinished = 2,  // the end of the stream
    kGreeting = 3,  // around a stream, not in it (transport_link.h)
  };

  // `source` outlives the link.
  FrameLink(BufferSource& source, const FrameLinkOptions& options);

  absl::StatusOr<size_t> Write(absl::Span<const uint8_t> head,
                               absl::Span<const uint8_t> body) override;
  absl::StatusOr<absl::Span<const uint8_t>> Peek(size_t least) override;
  void Consume(size_t n) override;
  absl::StatusOr<size_t> Read(absl::Span<uint8_t> to) override;
  absl::string_view kind() const override { return "frames"; }

  // A SEGMENT frame from the peer. INVALID_ARGUMENT: it does not fit and changes nothing.
  absl::Status OnFrame(const ParsedFrame& frame, absl::Time now);
  // No frame will come any more.
  void OnPeerLost(absl::Status why);
  // Appends the frames to send now.
  void Flush(absl::Time now, std::vector<Frame>* frames);
  // When Flush has something to do though nothing else happens; InfiniteFuture: never.
  absl::Time NextTick() const;
  // All that was written is the end of the stream.
  void Finish() { finish_ = true; }
  // How much the next Write takes.
  size_t room() const;
  // What has arrived and is not consumed.
  size_t arrived() const { return static_cast<size_t>(received_ - read_); }
  // The peer waits to hear what this end has read.
  bool must_tell() const { return must_tell_; }
  // Everything written, and the end, has arrived at the peer.
  bool Drained() const { return acked_ == written_ && (!finish_ || finish_acked_); }

 private:
  struct Segment {
    uint64_t begin = 0;
    Buffer bytes;
    absl::Time sent;  // the last time
    uint64_t end() const { return begin + bytes.size(); }
  };
  // First in, first out, in memory that is kept.
  class Queue {
   public:
    bool empty() const { return head_ == items_.size(); }
    size_t size() const { return items_.size() - head_; }
    Segment& front() { return items_[head_]; }
    Segment& operator[](size_t i) { return items_[head_ + i]; }
    const Segment& operator[](size_t i) const { return items_[head_ + i]; }
    void push(Segment segment);
    void pop();

   private:
    std::vector<Segment> items_;
    size_t head_ = 0;
  };

  absl::Status Check(const ParsedFrame& frame) const;
  void Acknowledged(uint64_t received, uint64_t read);
  void Take(uint64_t begin, const Buffer& bytes, absl::Time now);
  void TakeEarly();
  void Answer(uint64_t from, uint64_t to);
  absl::Status CheckLossless(const ParsedFrame& frame) const;
  absl::Status Ended() const;
  bool HasGap() const { return !early_.empty(); }
  void Append(absl::Span<const uint8_t> bytes);
  void Seal(absl::Time now, std::vector<Frame>* frames);
  void FlushOnce(std::vector<Frame>* frames);
  size_t FramesUnderWay() const { return static_cast<size_t>(frames_ - frames_read_); }
  Frame Encode(uint8_t flags, uint64_t offset, Buffer bytes, uint64_t until);

  BufferSource& source_;
  const FrameLinkOptions options_;
  absl::Status status_;

  // Sending. Bytes of the stream: [0, acked_) have arrived, [acked_, sealed_) are in unacked_,
  // [sealed_, written_) in the open part of buffer_.
  uint64_t acked_ = 0, sealed_ = 0, written_ = 0;
  uint64_t peer_read_ = 0;
  Buffer buffer_;
  size_t buffer_used_ = 0, buffer_sealed_ = 0;
  Queue unacked_;
  uint64_t resend_from_ = 0, resend_to_ = 0;  // asked for
  bool finish_ = false, finish_acked_ = false;
  absl::Time finish_sent_ = absl::InfinitePast();
  absl::Time probed_ = absl::InfiniteFuture();  // when a full window was last asked about
  bool blocked_ = false;                        // the last Write met a full window
  // Lossless: frames sealed, and those of them that the peer has read.
  uint64_t frames_ = 0, frames_read_ = 0;
  std::vector<uint64_t> frame_ends_;  // by number modulo window_frames

  // Receiving. [0, read_) are consumed, [read_, received_) in arrived_, later ones in early_.
  uint64_t read_ = 0, received_ = 0;
  uint64_t told_received_ = 0, told_read_ = 0;
  size_t segments_untold_ = 0;  // read since the peer was last told
  uint64_t end_ = UINT64_MAX;   // of the stream, once known
  Queue arrived_;
  std::vector<Segment> early_;  // by begin
  absl::Time asked_ = absl::InfinitePast();
  absl::Time untold_since_ = absl::InfiniteFuture();
  bool must_tell_ = false;
  std::array<uint8_t, kMaxPeek> joined_;
};

}  // namespace tandem

#endif  // TANDEM_COLLECTIVES_LINKS_FRAME_LINK_H_
