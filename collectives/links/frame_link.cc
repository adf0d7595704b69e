#include "collectives/links/frame_link.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::collectives {
namespace {

constexpr uint64_t kMaxOffset = uint64_t{1} << 62;  // also fits the signed fields
// A report of what was read is sent by itself once this fraction of a window was read without one.
constexpr uint64_t kNewsPerWindow = 4;
// If a buffer has less room than this, the link takes a new one.
constexpr size_t kMinRoom = 512;

}  // namespace

void FrameLink::Queue::push(Segment segment) {
  if (head_ > 0 && items_.size() == items_.capacity()) {
    std::move(items_.begin() + static_cast<int64_t>(head_), items_.end(), items_.begin());
    items_.resize(items_.size() - head_);
    head_ = 0;
  }
  items_.push_back(std::move(segment));
}

void FrameLink::Queue::pop() {
  items_[head_++] = Segment();
  if (empty()) {
    items_.clear();
    head_ = 0;
  }
}

FrameLink::FrameLink(BufferSource& source, const FrameLinkOptions& options)
    : source_(source), options_(options), frame_ends_(options.window_frames) {
  TANDEM_CHECK(options.window_bytes >= kMaxPeek && options.frame_bytes >= kMinRoom);
  TANDEM_CHECK(options.window_frames >= kNewsPerWindow);
}

// ---- Interface of Link ------------------------------------------------------

absl::StatusOr<size_t> FrameLink::Write(absl::Span<const uint8_t> head,
                                        absl::Span<const uint8_t> body) {
  if (!status_.ok()) return status_;
  const size_t left = buffer_.size() - buffer_used_;
  // Take a new buffer if this message would not fit the rest of the old one: otherwise it would
  // travel in two frames, one of them short.
  if (left < head.size() + body.size() && left < options_.frame_bytes / 2 &&
      buffer_used_ == buffer_sealed_) {
    buffer_ = Buffer();
    buffer_used_ = buffer_sealed_ = 0;
  }
  const size_t n = std::min(room(), head.size() + body.size());
  const size_t of_head = std::min(n, head.size());
  Append(head.first(of_head));
  Append(body.first(n - of_head));
  return n;
}

size_t FrameLink::room() const {
  const size_t room = static_cast<size_t>(peer_read_ + options_.window_bytes - written_);
  size_t frames = options_.window_frames - FramesUnderWay();
  size_t open = 0;  // room in the frame that has begun
  if (frames > 0 && (buffer_.size() > buffer_used_ || buffer_used_ > buffer_sealed_)) {
    --frames;
    open = buffer_.size() - buffer_used_;
  }
  return std::min(room, open + frames * options_.frame_bytes);
}

// Copies into the open buffer. A full buffer is sealed here, but only Flush sends it.
void FrameLink::Append(absl::Span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    if (buffer_used_ == buffer_.size()) {
      if (buffer_used_ > buffer_sealed_) Seal();
      buffer_ = source_.Alloc(options_.frame_bytes);
      buffer_used_ = buffer_sealed_ = 0;
    }
    const size_t n = std::min(bytes.size(), buffer_.size() - buffer_used_);
    std::memcpy(buffer_.mutable_data() + buffer_used_, bytes.data(), n);
    buffer_used_ += n;
    written_ += n;
    bytes.remove_prefix(n);
  }
}

absl::StatusOr<absl::Span<const uint8_t>> FrameLink::Peek(size_t least) {
  TANDEM_CHECK(least >= 1 && least <= kMaxPeek);
  if (arrived() < least) {
    if (!status_.ok()) return status_;
    return absl::Span<const uint8_t>();
  }
  const Segment& front = arrived_.front();
  const size_t skip = static_cast<size_t>(read_ - front.begin);
  const size_t here = front.bytes.size() - skip;
  if (here >= least) return absl::MakeConstSpan(front.bytes.data() + skip, here);
  size_t have = 0;
  for (size_t i = 0; have < least; ++i) {
    const size_t begin = i == 0 ? skip : 0;
    const size_t n = std::min(least - have, arrived_[i].bytes.size() - begin);
    std::memcpy(joined_.data() + have, arrived_[i].bytes.data() + begin, n);
    have += n;
  }
  return absl::MakeConstSpan(joined_.data(), least);
}

void FrameLink::Consume(size_t n) {
  TANDEM_CHECK(n <= arrived());
  read_ += n;
  while (!arrived_.empty() && arrived_.front().end() <= read_) {
    arrived_.pop();
    ++segments_untold_;
  }
  if (read_ - told_read_ >= options_.window_bytes / kNewsPerWindow ||
      segments_untold_ >= options_.window_frames / kNewsPerWindow) {
    must_tell_ = true;
  }
}

absl::StatusOr<size_t> FrameLink::Read(absl::Span<uint8_t> to) {
  size_t n = 0;
  while (n < to.size()) {
    absl::StatusOr<absl::Span<const uint8_t>> seen = Peek(1);
    if (!seen.ok() && n == 0) return std::move(seen).status();
    if (!seen.ok() || seen->empty()) break;
    const size_t part = std::min(seen->size(), to.size() - n);
    std::memcpy(to.data() + n, seen->data(), part);
    Consume(part);
    n += part;
  }
  return n;
}

// ---- Arriving frames --------------------------------------------------------

void FrameLink::OnPeerLost(absl::Status why) {
  TANDEM_CHECK(!why.ok());
  status_.Update(why);
}

absl::Status FrameLink::Check(const ParsedFrame& frame) const {
  const FrameHeader& h = frame.header;
  if (h.kind != FrameKind::kSegment || frame.entry_count != 0 || !frame.keys().empty()) {
    return absl::InvalidArgumentError(absl::StrCat("no segment: ", frame.DebugString()));
  }
  if (h.group != options_.group || h.incarnation != options_.incarnation) {
    return absl::InvalidArgumentError(absl::StrCat("segment of group ", h.group, " (",
                                                   h.incarnation, "), here is ", options_.group,
                                                   " (", options_.incarnation, ")"));
  }
  if (h.flags != kData) {
    return absl::InvalidArgumentError(absl::StrCat("a segment with flags ", h.flags));
  }
  if (!frame.values().empty() &&
      (h.request != received_ || arrived_.size() >= options_.window_frames)) {
    return absl::InvalidArgumentError(absl::StrCat("segment at ", h.request, " where ", received_,
                                                   " was next, with ", arrived_.size(),
                                                   " frames here"));
  }
  const uint64_t received = static_cast<uint64_t>(h.step);
  const uint64_t read = static_cast<uint64_t>(h.first_step);
  if (h.request > kMaxOffset || received > sealed_ || read > received ||
      h.request + frame.values().size() > read_ + options_.window_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment [", h.request, ", +", frame.values().size(), ") with news of ", read,
                     " read of ", received, " received; sent ", sealed_, ", read ", read_));
  }
  return absl::OkStatus();
}

absl::Status FrameLink::OnFrame(const ParsedFrame& frame) {
  TANDEM_RETURN_IF_ERROR(Check(frame));
  OnRead(static_cast<uint64_t>(frame.header.first_step));
  if (!frame.values().empty()) {
    arrived_.push({received_, frame.values()});
    received_ += frame.values().size();
  }
  return absl::OkStatus();
}

void FrameLink::OnRead(uint64_t read) {
  peer_read_ = std::max(peer_read_, read);
  const auto end = [&] { return frame_ends_[frames_read_ % options_.window_frames]; };
  while (frames_read_ < frames_ && end() <= peer_read_) ++frames_read_;
}

// ---- Leaving frames ---------------------------------------------------------

Frame FrameLink::Encode(uint64_t offset, Buffer bytes) {
  FrameHeader header;
  header.kind = FrameKind::kSegment;
  header.flags = kData;
  header.sender = options_.self;
  header.view = options_.view;
  header.incarnation = options_.incarnation;
  header.group = options_.group;
  header.request = offset;
  header.step = static_cast<int64_t>(received_);
  header.first_step = static_cast<int64_t>(read_);
  told_read_ = read_;
  segments_untold_ = 0;
  must_tell_ = false;
  return EncodeDataFrame(source_, header, {}, Buffer(), std::move(bytes));
}

// Makes the open bytes a segment, which the next Flush sends.
void FrameLink::Seal() {
  const size_t n = buffer_used_ - buffer_sealed_;
  unsent_.push({sealed_, buffer_.Slice(buffer_sealed_, n)});
  sealed_ += n;
  frame_ends_[frames_++ % options_.window_frames] = sealed_;
  buffer_sealed_ = buffer_used_;
  // Align the begin of the next segment, so that the receiver can read its numbers in place.
  const size_t aligned = (buffer_used_ + 63) / 64 * 64;
  if (buffer_.size() < aligned + kMinRoom) {
    buffer_ = Buffer();
    buffer_used_ = buffer_sealed_ = 0;
  } else {
    buffer_used_ = buffer_sealed_ = aligned;
  }
}

void FrameLink::Flush(std::vector<Frame>* frames) {
  if (buffer_used_ > buffer_sealed_) Seal();
  for (; !unsent_.empty(); unsent_.pop()) {
    Segment& segment = unsent_.front();
    frames->push_back(Encode(segment.begin, std::move(segment.bytes)));
  }
  if (must_tell_) frames->push_back(Encode(sealed_, Buffer()));
}

}  // namespace tandem::collectives
