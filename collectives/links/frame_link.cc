#include "collectives/links/frame_link.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem {
namespace {

constexpr uint64_t kMaxOffset = uint64_t{1} << 62;  // also fits the signed fields
constexpr size_t kMaxEarly = 4096;
// News is sent by itself when so much of a window, or of resend_after, has gone without.
constexpr uint64_t kNewsPerWindow = 4;
constexpr int kNewsPerResend = 4;
// A new buffer is taken rather than fill up the last few bytes of one.
constexpr size_t kLeastRoom = 512;

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
    : source_(source), options_(options) {
  TANDEM_CHECK(options.window_bytes >= kMaxPeek && options.frame_bytes >= kLeastRoom);
  TANDEM_CHECK(options.window_frames >= kNewsPerWindow);
  if (options.lossless) frame_ends_.resize(options.window_frames);
}

// ---- The caller's side ------------------------------------------------------

absl::StatusOr<size_t> FrameLink::Write(absl::Span<const uint8_t> head,
                                        absl::Span<const uint8_t> body) {
  if (!status_.ok()) return status_;
  TANDEM_CHECK(!finish_);
  const size_t left = buffer_.size() - buffer_used_;
  // Rather than in two frames, one of them short.
  if (options_.lossless && left < head.size() + body.size() && left < options_.frame_bytes / 2 &&
      buffer_used_ == buffer_sealed_) {
    buffer_ = Buffer();
    buffer_used_ = buffer_sealed_ = 0;
  }
  const size_t n = std::min(room(), head.size() + body.size());
  const size_t of_head = std::min(n, head.size());
  Append(head.first(of_head));
  Append(body.first(n - of_head));
  blocked_ = n < head.size() + body.size();
  return n;
}

size_t FrameLink::room() const {
  const size_t room = static_cast<size_t>(peer_read_ + options_.window_bytes - written_);
  if (!options_.lossless) return room;
  size_t frames = options_.window_frames - FramesUnderWay();
  size_t open = 0;  // what goes into a frame that is begun
  if (frames > 0 && (buffer_.size() > buffer_used_ || buffer_used_ > buffer_sealed_)) {
    --frames;
    open = buffer_.size() - buffer_used_;
  }
  return std::min(room, open + frames * options_.frame_bytes);
}

// Fills the open buffer; a full one is sealed without being sent (Flush does).
void FrameLink::Append(absl::Span<const uint8_t> bytes) {
  while (!bytes.empty()) {
    if (buffer_used_ == buffer_.size()) {
      if (buffer_used_ > buffer_sealed_) Seal(absl::InfinitePast(), nullptr);
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

absl::Status FrameLink::Ended() const {
  if (received_ >= end_) return absl::UnavailableError("connection closed by the peer");
  return status_;
}

absl::StatusOr<absl::Span<const uint8_t>> FrameLink::Peek(size_t least) {
  TANDEM_CHECK(least >= 1 && least <= kMaxPeek);
  if (arrived() < least) {
    if (absl::Status ended = Ended(); !ended.ok()) return status_ = ended;
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
      (options_.lossless && segments_untold_ >= options_.window_frames / kNewsPerWindow)) {
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

// ---- What arrives -----------------------------------------------------------

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
  if (h.flags > kFinished) return absl::InvalidArgumentError("a greeting within a stream");
  if (options_.lossless) TANDEM_RETURN_IF_ERROR(CheckLossless(frame));
  const uint64_t received = static_cast<uint64_t>(h.step);
  const uint64_t read = static_cast<uint64_t>(h.first_step);
  if (h.request > kMaxOffset || received > sealed_ || read > received ||
      h.request + frame.values().size() > read_ + options_.window_bytes ||
      h.request + frame.values().size() > end_) {
    return absl::InvalidArgumentError(
        absl::StrCat("segment [", h.request, ", +", frame.values().size(), ") with news of ", read,
                     " read of ", received, " received; sent ", sealed_, ", read ", read_));
  }
  return absl::OkStatus();
}

absl::Status FrameLink::CheckLossless(const ParsedFrame& frame) const {
  if (frame.values().empty()) return absl::OkStatus();
  if (frame.header.flags == kData && frame.header.request == received_ &&
      arrived_.size() < options_.window_frames) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("segment at ", frame.header.request, " where ",
                                                 received_, " was next, with ", arrived_.size(),
                                                 " frames here"));
}

absl::Status FrameLink::OnFrame(const ParsedFrame& frame, absl::Time now) {
  TANDEM_RETURN_IF_ERROR(Check(frame));
  const FrameHeader& h = frame.header;
  Acknowledged(static_cast<uint64_t>(h.step), static_cast<uint64_t>(h.first_step));
  if (h.flags == kAsk) Answer(static_cast<uint64_t>(h.step), h.samples);
  if (h.flags == kFinished) {
    end_ = h.request;
    must_tell_ = true;
  }
  if (h.flags == kData && h.samples != 0) finish_acked_ = finish_;
  if (!frame.values().empty()) Take(h.request, frame.values(), now);
  return absl::OkStatus();
}

void FrameLink::Acknowledged(uint64_t received, uint64_t read) {
  acked_ = std::max(acked_, received);
  peer_read_ = std::max(peer_read_, read);
  if (options_.lossless) {
    const auto end = [&] { return frame_ends_[frames_read_ % options_.window_frames]; };
    while (frames_read_ < frames_ && end() <= peer_read_) ++frames_read_;
    return;
  }
  while (!unacked_.empty() && unacked_.front().end() <= acked_) unacked_.pop();
}

void FrameLink::Answer(uint64_t from, uint64_t to) {
  must_tell_ = true;
  if (from >= sealed_) return;
  resend_from_ = from;
  resend_to_ = to == 0 ? sealed_ : std::min(to, sealed_);
}

void FrameLink::Take(uint64_t begin, const Buffer& bytes, absl::Time now) {
  const uint64_t end = begin + bytes.size();
  if (end <= received_) {  // a second copy: the sender has not heard
    must_tell_ = true;
    return;
  }
  untold_since_ = std::min(untold_since_, now);
  if (begin <= received_) {
    const size_t known = static_cast<size_t>(received_ - begin);
    arrived_.push({received_, bytes.Slice(known, bytes.size() - known), now});
    received_ = end;
    return TakeEarly();
  }
  const auto at = std::lower_bound(early_.begin(), early_.end(), begin,
                                   [](const Segment& s, uint64_t b) { return s.begin < b; });
  if (at != early_.end() && at->begin == begin) {
    if (at->bytes.size() < bytes.size()) at->bytes = bytes;
  } else if (early_.size() < kMaxEarly) {
    early_.insert(at, {begin, bytes, now});
  }
}

void FrameLink::TakeEarly() {
  size_t taken = 0;
  while (taken < early_.size() && early_[taken].begin <= received_) {
    Segment& segment = early_[taken++];
    if (segment.end() <= received_) continue;
    const size_t known = static_cast<size_t>(received_ - segment.begin);
    const uint64_t end = segment.end();
    arrived_.push(
        {received_, segment.bytes.Slice(known, segment.bytes.size() - known), segment.sent});
    received_ = end;
  }
  early_.erase(early_.begin(), early_.begin() + static_cast<int64_t>(taken));
}

// ---- What leaves ------------------------------------------------------------

Frame FrameLink::Encode(uint8_t flags, uint64_t offset, Buffer bytes, uint64_t until) {
  FrameHeader header;
  header.kind = FrameKind::kSegment;
  header.flags = flags;
  header.sender = options_.self;
  header.view = options_.view;
  header.incarnation = options_.incarnation;
  header.group = options_.group;
  header.request = offset;
  header.step = static_cast<int64_t>(received_);
  header.first_step = static_cast<int64_t>(read_);
  header.samples = flags == kData ? uint64_t{received_ >= end_} : until;
  told_received_ = received_;
  told_read_ = read_;
  segments_untold_ = 0;
  must_tell_ = false;
  untold_since_ = absl::InfiniteFuture();
  return EncodeDataFrame(source_, header, {}, Buffer(), std::move(bytes));
}

// What is open becomes a segment; sent now, or marked to be.
void FrameLink::Seal(absl::Time now, std::vector<Frame>* frames) {
  const size_t n = buffer_used_ - buffer_sealed_;
  unacked_.push({sealed_, buffer_.Slice(buffer_sealed_, n), now});
  if (frames != nullptr) {
    frames->push_back(Encode(kData, sealed_, buffer_.Slice(buffer_sealed_, n), 0));
  }
  sealed_ += n;
  if (options_.lossless) frame_ends_[frames_++ % options_.window_frames] = sealed_;
  buffer_sealed_ = buffer_used_;
  // The next segment begins aligned, so that numbers in it can be read in place.
  const size_t aligned = (buffer_used_ + 63) / 64 * 64;
  if (buffer_.size() < aligned + kLeastRoom) {
    buffer_ = Buffer();
    buffer_used_ = buffer_sealed_ = 0;
  } else {
    buffer_used_ = buffer_sealed_ = aligned;
  }
}

void FrameLink::FlushOnce(std::vector<Frame>* frames) {
  if (buffer_used_ > buffer_sealed_) Seal(absl::InfinitePast(), nullptr);
  for (; !unacked_.empty(); unacked_.pop()) {
    Segment& segment = unacked_.front();
    frames->push_back(Encode(kData, segment.begin, std::move(segment.bytes), 0));
  }
  if (must_tell_) frames->push_back(Encode(kData, sealed_, Buffer(), 0));
}

void FrameLink::Flush(absl::Time now, std::vector<Frame>* frames) {
  if (options_.lossless) return FlushOnce(frames);
  for (size_t i = 0; i < unacked_.size(); ++i) {
    Segment& segment = unacked_[i];
    const bool asked = segment.begin < resend_to_ && segment.end() > resend_from_;
    if (!asked && now - segment.sent < options_.resend_after) continue;
    segment.sent = now;
    frames->push_back(Encode(kData, segment.begin, segment.bytes, 0));
  }
  resend_from_ = resend_to_ = 0;
  if (buffer_used_ > buffer_sealed_) Seal(now, frames);
  if (finish_ && !finish_acked_ && now - finish_sent_ >= options_.resend_after) {
    finish_sent_ = now;
    frames->push_back(Encode(kFinished, sealed_, Buffer(), 0));
  }
  const absl::Duration patience = options_.resend_after / kNewsPerResend;
  if (HasGap() && now - asked_ >= patience) {
    asked_ = now;
    frames->push_back(Encode(kAsk, sealed_, Buffer(), early_.front().begin));
  }
  // A full window whose opening may have been lost.
  if (!blocked_ || !unacked_.empty()) probed_ = now;
  if (now - probed_ >= options_.resend_after) {
    probed_ = now;
    frames->push_back(Encode(kAsk, sealed_, Buffer(), 0));
  }
  const bool much = received_ - told_received_ >= options_.window_bytes / kNewsPerWindow;
  if (must_tell_ || much || now - untold_since_ >= patience) {
    frames->push_back(Encode(kData, sealed_, Buffer(), 0));
  }
}

absl::Time FrameLink::NextTick() const {
  const absl::Duration patience = options_.resend_after / kNewsPerResend;
  absl::Time next = absl::InfiniteFuture();
  for (size_t i = 0; i < unacked_.size(); ++i) {
    next = std::min(next, unacked_[i].sent + options_.resend_after);
  }
  if (must_tell_ || resend_to_ > 0 || buffer_used_ > buffer_sealed_) return absl::InfinitePast();
  if (finish_ && !finish_acked_) next = std::min(next, finish_sent_ + options_.resend_after);
  if (HasGap()) next = std::min(next, asked_ + patience);
  if (blocked_ && unacked_.empty()) next = std::min(next, probed_ + options_.resend_after);
  return std::min(next, untold_since_ + patience);
}

}  // namespace tandem
