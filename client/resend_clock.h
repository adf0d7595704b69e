// When a frame that has no answer travels again: what tells one that is lost from one that is slow.
//
// A shard deals with the frames of a client in the order in which they arrive, so each answer says
// something of the frames that still wait there. While earlier ones are answered, a frame is in line,
// however long that takes over a slow link; the answer of a later one says that it may be
// lost. So a frame is silent since the latest of: when it was sent; the last answer to an earlier frame;
// the first answer to a later one; when the shard said that it waits. Earlier frames are so many and no
// more: one that is lost is noticed, whatever else is answered.
//
// Frames in line are asked for again one at a time, the first: as long as it is silent, nothing is known of those
// behind it. One that was overtaken, is parked at the shard, or was on its way in a connection that
// has been lost, is asked for by itself.
//
// Pure; no thread safety.
#ifndef TANDEM_CLIENT_RESEND_CLOCK_H_
#define TANDEM_CLIENT_RESEND_CLOCK_H_

#include <cstdint>
#include <map>

#include "absl/time/time.h"
#include "proto/endpoint.h"

namespace tandem::client {

struct ResendTimes {
  absl::Duration resend_after;     // silence before a frame is sent again; doubled each time
  absl::Duration reconnect_after;  // the same after a lost connection
};

// Of one frame.
class ResendClock {
 public:
  void OnSent(absl::Time now, const ResendTimes& times);  // for the first time
  void OnSentAgain(absl::Time now, const ResendTimes& times);
  // The shard has the frame, and says that it waits.
  void OnParked(absl::Time now, const ResendTimes& times);
  void OnLostConnection(absl::Time now, const ResendTimes& times);

  bool due(absl::Time now) const { return now >= resend_at_; }
  absl::Duration silence(absl::Time now) const { return now - heard_at_; }
  bool in_line() const { return !parked_ && !lost_ && !overtaken_; }

 private:
  friend class ResendLine;
  void Hear(absl::Time now, const ResendTimes& times);

  absl::Time heard_at_, resend_at_;
  absl::Duration pause_;      // before the next resend but one
  absl::Duration reconnect_;  // the same after a lost connection
  bool parked_ = false, lost_ = false, overtaken_ = false;
};

// What shards have answered, and who is first in line at each. Frames have numbers that grow in the
// order in which they are sent.
class ResendLine {
 public:
  void OnAnswer(absl::Time now, EndpointId shard, uint64_t number);

  // To look at all frames that wait: each takes what has been answered since into its clock, and its
  // place in line; then IsFirst says of each whether it is first.
  void Begin();
  void Look(absl::Time now, EndpointId shard, uint64_t number, const ResendTimes& times,
            ResendClock* clock);
  bool IsFirst(EndpointId shard, uint64_t number) const;

 private:
  struct Peer {
    absl::Time answered_at = absl::InfinitePast();
    uint64_t newest = 0;  // of the frames that it has answered
    uint64_t first = 0;   // in line; 0: nobody is
  };
  std::map<EndpointId, Peer> peers_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_RESEND_CLOCK_H_
