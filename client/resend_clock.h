// When a frame that has no answer travels again: what tells one that is lost from one that is slow.
//
// A shard deals with the reads of a client in the order in which they arrive, and so with its pushes: each answer
// says something of the frames of its kind that still wait there. While earlier ones are answered,
// a frame is in line, however long that takes over a slow link; the answer of a later one says that it may
// be lost. So a frame is silent since the latest of: when it was sent; the last answer to an earlier frame;
// the first answer to a later one; when the shard said last that it waits. Earlier frames are so many and no
// more: one that is lost is noticed, whatever else is answered.
//
// Of frames in line that are silent the first is asked for again, and no other: as long as nothing is heard of
// it, nothing is known of those behind. The first is that of the oldest request, whenever it was sent: a shard that
// refuses a push of an older step in an older view has it later than those of newer steps, and answers none of
// these before. One that was overtaken, or was on its way in a connection that has been lost, is asked for by itself.
//
// Who is to give up waits longer: what goes to one shard may stand behind what goes to others, on the client's
// own link. While any shard answers frames that were sent earlier, a frame may still be on its way.
//
// Pure; no thread safety.
#ifndef TANDEM_CLIENT_RESEND_CLOCK_H_
#define TANDEM_CLIENT_RESEND_CLOCK_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/optional.h"
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
  void OnWaiting(absl::Time now, const ResendTimes& times) { Hear(now, times); }
  // `why`: what is known of the loss; may be empty.
  void OnLostConnection(absl::Time now, const ResendTimes& times, absl::string_view why);

  // This process could hear nobody for so long, until now: the time counts as no silence.
  void Forgive(absl::Time now, absl::Duration pause);

  bool due(absl::Time now) const { return now >= resend_at_; }
  absl::Duration silence(absl::Time now) const { return now - heard_at_; }
  // The same, but that an answer of any shard to an earlier frame of any kind ends it, too.
  absl::Duration quiet(absl::Time now) const { return now - std::max(heard_at_, moved_at_); }
  bool in_line() const { return !lost_ && !overtaken_; }
  // Why the connection was lost for the last time since the shard was heard; empty: unknown, or not lost.
  const std::string& lost_why() const { return lost_why_; }

 private:
  friend class ResendLine;
  void Hear(absl::Time now, const ResendTimes& times);

  absl::Time heard_at_, resend_at_;
  absl::Time moved_at_ = absl::InfinitePast();  // the last answer of any shard to an earlier frame
  absl::Duration pause_;                        // before the next resend but one
  absl::Duration reconnect_;                    // the same after a lost connection
  bool lost_ = false, overtaken_ = false;
  std::string lost_why_;
};

// The error of a request of which `to` is silent: DEADLINE_EXCEEDED, with the shard as payload.
// `what`: "push of step 7: "; `where`: the shard and the key range.
absl::Status SilenceError(absl::string_view what, absl::Time now, const ResendClock& clock,
                          EndpointId to, absl::string_view where);
// The shard that such an error is about; nothing for any other status.
absl::optional<EndpointId> SilentShard(const absl::Status& status);

// What shards have answered to frames of one kind, and who is the first that is silent at each. Frames have
// numbers that grow in the order in which they are sent.
class ResendLine {
 public:
  void OnAnswer(absl::Time now, EndpointId shard, uint64_t number);
  // To a frame of another kind, on the same links.
  void OnOtherAnswer(absl::Time now, uint64_t number);

  // To look at all frames that wait, those of older requests first: each takes what has been answered since into
  // its clock; then MayAsk says whether one that is due may be sent again.
  void Begin();
  void Look(absl::Time now, EndpointId shard, uint64_t number, const ResendTimes& times,
            ResendClock* clock);
  bool MayAsk(EndpointId shard, uint64_t number, const ResendClock& clock) const;

 private:
  struct Peer {
    absl::Time answered_at = absl::InfinitePast();
    uint64_t newest = 0;  // of the frames that it has answered
    uint64_t first = 0;   // of those in line that are silent; 0: none is
  };
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

  std::map<EndpointId, Peer> peers_;
  // Of all shards: the smallest number answered since the last look began, and before it since the one before.
  uint64_t smallest_ = kNone, smallest_before_ = kNone;
  absl::Time answered_at_ = absl::InfinitePast();
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_RESEND_CLOCK_H_
