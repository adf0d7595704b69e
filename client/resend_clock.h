// ResendClock and ResendLine decide when a frame without an answer is sent again. Both distinguish
// a frame that is lost from a frame that is slow.
//
// A shard handles the reads of a client in the order of their arrival, and its pushes in theirs. So
// each answer tells something about the frames of the same kind that still wait at that shard:
// - While the shard answers earlier frames, a frame is in line. A slow link may take long.
// - When the shard has answered a later frame, the frame may be lost ("overtaken").
//
// The silence of a frame therefore begins at the latest of these times: when it was sent, the last
// answer to an earlier frame, the first answer to a later frame, and the shard's last WAITING for
// it. The number of earlier frames is finite and does not grow, so a lost frame is noticed,
// whatever else the shard answers.
//
// Among the silent frames in line at one shard, only the first is resent: as long as it has no
// answer, nothing is known about the frames behind it. "First" means the frame of the oldest
// request, whenever it was sent. The reason: a push that a shard refused in an old view is sent
// again after pushes of newer steps, and the shard answers none of those before it has this push. A
// frame that was overtaken, or that was in flight on a connection that has been lost, is resent on
// its own account.
//
// Giving up takes longer. Frames to one shard may queue behind frames to other shards, on the
// client's own link. A frame may be on its way while any shard answers earlier frames.
//
// Thread safety: none; pure.
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

// The clock of one frame.
class ResendClock {
 public:
  void OnSent(absl::Time now, const ResendTimes& times);  // for the first time
  void OnSentAgain(absl::Time now, const ResendTimes& times);
  // The shard has the frame and says that it waits for another worker.
  void OnWaiting(absl::Time now, const ResendTimes& times) { Hear(now, times); }
  // `why` is what is known about the loss; may be empty.
  void OnLostConnection(absl::Time now, const ResendTimes& times, absl::string_view why);

  // This process could not receive for `pause`, until now. That time does not count as silence.
  void Forgive(absl::Time now, absl::Duration pause);

  bool due(absl::Time now) const { return now >= resend_at_; }
  absl::Duration silence(absl::Time now) const { return now - heard_at_; }
  // Like silence(), but an answer of any shard to an earlier frame of any kind also ends it.
  absl::Duration quiet(absl::Time now) const { return now - std::max(heard_at_, moved_at_); }
  bool in_line() const { return !lost_ && !overtaken_; }
  // Why the connection was last lost since the shard was last heard. Empty: unknown, or not lost.
  const std::string& lost_why() const { return lost_why_; }

 private:
  friend class ResendLine;
  void Hear(absl::Time now, const ResendTimes& times);

  absl::Time heard_at_, resend_at_;
  absl::Time moved_at_ = absl::InfinitePast();  // the last answer of any shard to an earlier frame
  absl::Duration pause_;                        // before the resend after the next one
  absl::Duration reconnect_;                    // before the next resend after a lost connection
  bool lost_ = false, overtaken_ = false;
  std::string lost_why_;
};

// The error of a request whose shard `to` is silent: DEADLINE_EXCEEDED, with the shard as payload.
// `what`: "push of step 7: "; `where`: the shard and the key range.
absl::Status SilenceError(absl::string_view what, absl::Time now, const ResendClock& clock,
                          EndpointId to, absl::string_view where);
// The silent shard that such an error names; nullopt for any other status.
absl::optional<EndpointId> SilentShard(const absl::Status& status);

// The answers of shards to frames of one kind (reads or pushes), and the first silent frame at
// each shard. Frame numbers grow in the order in which frames are sent.
class ResendLine {
 public:
  void OnAnswer(absl::Time now, EndpointId shard, uint64_t number);
  // Takes an answer to a frame of another kind on the same links.
  void OnOtherAnswer(absl::Time now, uint64_t number);

  // Looks at all waiting frames: call Begin(), then Look() for each frame, older requests first.
  // Look() takes the answers that have arrived since the last look into the frame's clock.
  // Afterwards MayAsk() says whether a frame that is due may be sent again.
  void Begin();
  void Look(absl::Time now, EndpointId shard, uint64_t number, const ResendTimes& times,
            ResendClock* clock);
  bool MayAsk(EndpointId shard, uint64_t number, const ResendClock& clock) const;

 private:
  struct Peer {
    absl::Time answered_at = absl::InfinitePast();
    uint64_t newest = 0;  // largest number among the frames that it has answered
    uint64_t first = 0;   // first silent frame in line; 0: there is none
  };
  static constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();

  std::map<EndpointId, Peer> peers_;
  // Over all shards: the smallest frame number answered since the last look began, and the smallest
  // one answered in the look before that.
  uint64_t smallest_ = kNone, smallest_before_ = kNone;
  absl::Time answered_at_ = absl::InfinitePast();
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_RESEND_CLOCK_H_
