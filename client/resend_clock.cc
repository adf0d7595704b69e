#include "client/resend_clock.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace tandem::client {
namespace {

// The longest wait between resends, in units of the first wait. With 8 the fifth attempt would come
// only at the silence limit of 30 s, and a link that is cut half of the time could lose the four
// attempts before it.
constexpr int kMaxPauses = 4;
constexpr char kSilentShard[] = "tandem.client/silent_shard";

}  // namespace

void ResendClock::Hear(absl::Time now, const ResendTimes& times) {
  heard_at_ = now;
  resend_at_ = now + times.resend_after;
  pause_ = 2 * times.resend_after;
  lost_why_.clear();
}

void ResendClock::OnSent(absl::Time now, const ResendTimes& times) {
  *this = ResendClock();
  reconnect_ = times.reconnect_after;
  Hear(now, times);
}

void ResendClock::OnSentAgain(absl::Time now, const ResendTimes& times) {
  lost_ = false;
  resend_at_ = now + pause_;
  pause_ = std::min(2 * pause_, kMaxPauses * times.resend_after);
}

void ResendClock::OnLostConnection(absl::Time now, const ResendTimes& times,
                                   absl::string_view why) {
  lost_ = true;
  lost_why_ = std::string(why);
  resend_at_ = std::min(resend_at_, now + reconnect_);
  reconnect_ = std::min(2 * reconnect_, times.resend_after);
}

void ResendClock::Forgive(absl::Time now, absl::Duration pause) {
  heard_at_ = std::min(now, heard_at_ + pause);
  moved_at_ = std::min(now, moved_at_ + pause);
}

absl::Status SilenceError(absl::string_view what, absl::Time now, const ResendClock& clock,
                          EndpointId to, absl::string_view where) {
  absl::Status status = absl::DeadlineExceededError(
      absl::StrCat(what, "no answer for ", absl::ToInt64Seconds(clock.silence(now)), " s from ",
                   where, clock.lost_why().empty() ? "" : "; its connection: ", clock.lost_why()));
  status.SetPayload(kSilentShard, absl::Cord(absl::StrCat(to.Pack())));
  return status;
}

absl::optional<EndpointId> SilentShard(const absl::Status& status) {
  const absl::optional<absl::Cord> payload = status.GetPayload(kSilentShard);
  uint64_t packed = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &packed)) {
    return absl::nullopt;
  }
  return EndpointId::Unpack(packed);
}

void ResendLine::OnAnswer(absl::Time now, EndpointId shard, uint64_t number) {
  Peer& peer = peers_[shard];
  peer.answered_at = now;
  peer.newest = std::max(peer.newest, number);
  OnOtherAnswer(now, number);
}

void ResendLine::OnOtherAnswer(absl::Time now, uint64_t number) {
  answered_at_ = now;
  smallest_ = std::min(smallest_, number);
}

// Begins a look at all waiting frames. The smallest number that was answered since the look before
// becomes smallest_before_, with which Look() compares each frame. The first silent frame of each
// shard is determined anew.
void ResendLine::Begin() {
  smallest_before_ = std::exchange(smallest_, kNone);
  for (auto& [shard, peer] : peers_) peer.first = 0;
}

// Order: a frame first takes the answers that concern it, then Look decides whether it is silent. A
// frame that was overtaken starts its silence once, at the first look that notices this; afterwards
// it is no longer in line.
void ResendLine::Look(absl::Time now, EndpointId shard, uint64_t number, const ResendTimes& times,
                      ResendClock* clock) {
  Peer& peer = peers_[shard];
  if (smallest_before_ < number) clock->moved_at_ = answered_at_;
  if (clock->in_line()) {
    const bool overtaken = peer.newest > number;
    if (overtaken || peer.answered_at > clock->heard_at_) {
      clock->Hear(overtaken ? now : peer.answered_at, times);
    }
    clock->overtaken_ = overtaken;
  }
  const bool silent = clock->in_line() && clock->silence(now) >= times.resend_after;
  if (silent && peer.first == 0) peer.first = number;
}

bool ResendLine::MayAsk(EndpointId shard, uint64_t number, const ResendClock& clock) const {
  if (!clock.in_line()) return true;
  const auto peer = peers_.find(shard);
  return peer != peers_.end() && peer->second.first == number;
}

}  // namespace tandem::client
