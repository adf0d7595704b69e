// FrameLink: a link over frames (SEGMENT, proto/frame.md). The frames must arrive in order and
// once, until the connection ends. Two carriers use it: a Transport (transport_link.h) and the
// connections of the simulated network. The link is a deterministic state machine without a clock;
// its shell carries the frames:
//
//   while the engine runs:  link.OnFrame(frame) for each frame from the peer
//                           link.Flush(&frames), then send them
//
// The stream is cut into segments; a segment's number is the offset of its first byte. Every frame
// says how far its sender has read, which gives the peer room to send: at most `window_bytes` and
// `window_frames` are in flight. Received payloads are kept by reference and read in place. Bytes
// to send are copied once, into buffers of the BufferSource, and not kept after they were sent.
// Once warm, nothing else is allocated.
//
// Failure: the status that OnPeerLost gave, after the last byte.
#ifndef TANDEM_COLLECTIVES_LINKS_FRAME_LINK_H_
#define TANDEM_COLLECTIVES_LINKS_FRAME_LINK_H_

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "collectives/links/link.h"
#include "proto/frame.h"

namespace tandem::collectives {

struct FrameLinkOptions {
  // Stamped into frames; frames of another group or incarnation are refused. `group` numbers the
  // links of a job. `incarnation` is the same on both ends, and changes with each rendezvous.
  EndpointId self;
  uint32_t view = 0;
  uint32_t group = 0;
  uint64_t incarnation = 0;
  size_t window_bytes = size_t{4} << 20;  // in each direction; at least Link::kMaxPeek
  size_t frame_bytes = size_t{256} << 10;
  size_t window_frames = 16;  // in flight in each direction, not counting frames without data
};

class FrameLink final : public Link {
 public:
  // The purpose of a SEGMENT frame, in its flags. The values 1 and 2 were used in the past.
  enum Flags : uint8_t {
    kData = 0,      // data, or only a report of what was read
    kGreeting = 3,  // sent before a stream (transport_link.h)
  };

  // `source` outlives the link.
  FrameLink(BufferSource& source, const FrameLinkOptions& options);

  absl::StatusOr<size_t> Write(absl::Span<const uint8_t> head,
                               absl::Span<const uint8_t> body) override;
  absl::StatusOr<absl::Span<const uint8_t>> Peek(size_t least) override;
  void Consume(size_t n) override;
  absl::StatusOr<size_t> Read(absl::Span<uint8_t> to) override;
  absl::string_view kind() const override { return "frames"; }

  // Takes a SEGMENT frame from the peer. INVALID_ARGUMENT: another frame was next, or a field is
  // impossible; the link is unchanged.
  absl::Status OnFrame(const ParsedFrame& frame);
  // Tells the link that no more frames will come.
  void OnPeerLost(absl::Status why);
  // Appends to `frames` the frames to send now.
  void Flush(std::vector<Frame>* frames);
  // How many bytes the next Write takes.
  size_t room() const;
  // Bytes that have arrived and are not consumed.
  size_t arrived() const { return static_cast<size_t>(received_ - read_); }
  // Whether a frame must be sent because the peer waits to hear what this end has read.
  bool must_tell() const { return must_tell_; }

 private:
  struct Segment {
    uint64_t begin = 0;
    Buffer bytes;
    uint64_t end() const { return begin + bytes.size(); }
  };
  // A first-in, first-out queue that keeps its memory.
  class Queue {
   public:
    bool empty() const { return head_ == items_.size(); }
    size_t size() const { return items_.size() - head_; }
    Segment& front() { return items_[head_]; }
    const Segment& operator[](size_t i) const { return items_[head_ + i]; }
    void push(Segment segment);
    void pop();

   private:
    std::vector<Segment> items_;
    size_t head_ = 0;
  };

  absl::Status Check(const ParsedFrame& frame) const;
  void OnRead(uint64_t read);
  void Append(absl::Span<const uint8_t> bytes);
  void Seal();
  size_t FramesUnderWay() const { return static_cast<size_t>(frames_ - frames_read_); }
  Frame Encode(uint64_t offset, Buffer bytes);

  BufferSource& source_;
  const FrameLinkOptions options_;
  absl::Status status_;

  // Sending. Bytes [0, sealed_) of the stream are cut into segments, the last of which are in
  // unsent_. Bytes [sealed_, written_) are in the open part of buffer_.
  uint64_t sealed_ = 0, written_ = 0;
  uint64_t peer_read_ = 0;
  Buffer buffer_;
  size_t buffer_used_ = 0, buffer_sealed_ = 0;
  Queue unsent_;
  // The number of sealed segments, and of those that the peer has read.
  uint64_t frames_ = 0, frames_read_ = 0;
  std::vector<uint64_t> frame_ends_;  // by number modulo window_frames

  // Receiving. Bytes [0, read_) of the stream are consumed; [read_, received_) are in arrived_.
  uint64_t read_ = 0, received_ = 0;
  uint64_t told_read_ = 0;
  size_t segments_untold_ = 0;  // read since the last report to the peer
  Queue arrived_;
  bool must_tell_ = false;
  std::array<uint8_t, kMaxPeek> joined_;
};

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_LINKS_FRAME_LINK_H_
