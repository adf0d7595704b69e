// The worker's side of push and pull: a deterministic state machine that routes keys to the shards
// that own them, sends each shard its slices, sends again what is refused or not answered, and puts
// rows where the caller wants them.
//
// Rows and gradients travel from and to arrays of the caller's, which costs a copy, or stay in the
// frames: a read then says where each row is, and a push, before it is sent, where each gradient is
// to be written.
//
// A request is complete when every slice of it is. Slices refused with WRONG_VIEW travel again,
// alone, when a newer view is known (or after a pause, if the shard is the one that lags). A frame
// travels again when its connection is lost, and after silence (resend_clock.h), each time after twice
// as long: over links that lose nothing a slow shard, or one behind a slow link, is not given
// more to do. Silence of `silence_limit` fails the request, naming the shard and the key range, where no shard
// has answered anything sent before it meanwhile; answers of WAITING keep both clocks from running, and a pause
// of this process counts as no silence.
//
// Thread safety: none needed; one thread. Not here: sockets (worker shell), the order of steps
// (trainer_core.h).
#ifndef TANDEM_CLIENT_CLIENT_CORE_H_
#define TANDEM_CLIENT_CLIENT_CORE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "base/clock.h"
#include "client/client_request.h"
#include "client/pulled_rows.h"
#include "client/request_packer.h"
#include "client/resend_clock.h"
#include "client/row_cache.h"
#include "client/versions_read.h"
#include "job/job.h"
#include "proto/activity.h"
#include "proto/frame.h"
#include "proto/outgoing.h"
#include "proto/range_map.h"

namespace tandem::client {

class ClientCore {
 public:
  // A push whose gradients are yet to be written, into the frames that will carry them. One that is
  // dropped before it is sent leaves no trace. May outlive the core; used again and again, it keeps
  // its memory.
  class PreparedPush {
   public:
    PreparedPush();
    ~PreparedPush();
    PreparedPush(PreparedPush&&) noexcept;
    PreparedPush& operator=(PreparedPush&&) noexcept;

    // at(i)[k]: where the gradient of key k of the i-th table goes, `dim` floats, uninitialised;
    // until the push is sent.
    absl::Span<float* const> at(size_t i) const { return at_[i]; }
    size_t tables() const { return at_.size(); }
    bool ready() const { return request_ != nullptr; }
    uint32_t group() const { return group_; }

   private:
    friend class ClientCore;
    uint32_t group_ = 0;
    std::unique_ptr<ClientRequest> request_;
    std::vector<std::vector<float*>> at_;
  };

  struct Options {
    // Silence before a frame is sent again; doubled each time, up to eight times as long.
    absl::Duration resend_after = absl::Seconds(2);
    // The same after a lost connection, so that a peer that is gone is not called without a pause.
    absl::Duration reconnect_after = absl::Milliseconds(10);
    absl::Duration wrong_view_pause = absl::Milliseconds(20);
    absl::Duration silence_limit = absl::Seconds(30);  // silence before the request fails
    // Of values: a larger request to a shard is cut between ranges, into frames of about this size.
    size_t frame_bytes = 128 << 10;
    // Rows are kept where the policy of their table says so. Whoever does not look at frames while it
    // reads nothing says no.
    bool keep_rows = true;
  };

  struct Completion {
    uint64_t request = 0;
    absl::Status status;
    uint64_t closed_samples = 0;  // reads: sum of n of the step closed last (lockstep policies)
    int64_t open_step =
        0;  // pushes that came too late somewhere: the latest step open there; else 0
  };

  struct Counters {
    uint64_t pull_bytes = 0, rows_bytes = 0, push_bytes = 0, ack_bytes = 0;
    uint64_t refresh_bytes = 0;
    uint64_t rows_asked = 0, rows_cached = 0;  // of tables whose rows are kept: all, and from here
    uint64_t within_bytes = 0;  // of all four kinds, with the shards of the own process
    uint64_t frames_resent = 0;
    // From a request for rows to its last answer, the least; not of evaluations.
    absl::Duration shortest_read = absl::InfiniteDuration();
  };

  // `plan` and `buffers` outlive the core.
  ClientCore(const job::JobPlan& plan, EndpointId self, uint64_t incarnation, BufferSource& buffers,
             const Options& options);
  ~ClientCore();

  // Newer views only; older ones are ignored. Requests need a view.
  void OnView(absl::Time now, std::shared_ptr<const RangeMap> view);

  // Reads the rows of `keys` (tables of `group`) for `step` into rows[i], which is
  // [keys[i].keys.size(), dim (+ slots with kFlagWithSlots)]. Returns the request's number.
  uint64_t Pull(absl::Time now, uint32_t group, int64_t step, absl::Span<const TableKeys> keys,
                absl::Span<const absl::Span<float>> rows, uint8_t flags);

  // The same, but the rows stay where they arrive, and rows[i] says where. No key may repeat; not
  // with slots.
  uint64_t PullInPlace(absl::Time now, uint32_t group, int64_t step,
                       absl::Span<const TableKeys> keys, absl::Span<PulledRows* const> rows,
                       uint8_t flags);

  struct PushInfo {
    uint32_t group = 0;
    int64_t first_step = 0, step = 0;
    uint64_t samples = 0;
    int32_t clock_gap = 0;
    int32_t in_flight = 0;
    uint8_t flags = 0;
  };
  // Sends gradient sums (or rows, with kFlagAssign): one slice to every range of the group, empty
  // or not, in one frame a shard unless that would be large. The bytes are copied before Push
  // returns. Versions are those of the last completed Pull of the same group and step.
  uint64_t Push(absl::Time now, const PushInfo& info, absl::Span<const TableKeys> keys,
                absl::Span<const absl::Span<const float>> values);

  // Makes a push of the keys of tables of `group`, none of which repeats, and says where their
  // gradients go. Needs a view; the keys' memory is free afterwards.
  void PreparePush(uint32_t group, absl::Span<const TableKeys> keys, PreparedPush* push);
  // Sends it. Requires: push->ready(), info.group as prepared, no flags; all gradients are written.
  uint64_t Push(absl::Time now, const PushInfo& info, PreparedPush* push);

  // Forgets a request; late answers are ignored. A later push of the same step has the same versions.
  void Cancel(uint64_t request);

  // Frames from shards: ROWS, ACK, WAITING, REFRESH.
  void OnFrame(absl::Time now, const ParsedFrame& frame);
  void OnTick(absl::Time now);
  // The connection to a shard has been lost, and with it what was on its way; or a frame to it could
  // not be sent. `why` goes into the error of a request that fails of it; may be empty.
  void OnLost(absl::Time now, EndpointId shard, absl::string_view why);

  // Called within Pull and Push when a frame is in out() and more of the same request are to come:
  // a shell that sends it at once lets it travel while the next one is packed.
  void set_frame_ready(std::function<void()> ready) { frame_ready_ = std::move(ready); }

  // Caller-owned queues: take what is there and clear.
  std::vector<Outgoing>& out() { return out_; }
  std::vector<Completion>& completions() { return completions_; }

  // The largest minimum clock any shard has reported for the group: a lower bound of the true one.
  int64_t largest_min_clock(uint32_t group) const { return min_clock_[group]; }
  const Counters& counters() const { return counters_; }
  size_t requests_in_flight() const { return requests_.size(); }
  // Updates with rows sent, by table, each (step, range) once.
  const std::vector<uint64_t>& updates_sent() const { return updates_sent_; }
  // What the oldest request waits for: "pull of step 7: server 1 shard 0 waits for worker 2 ...", and,
  // once it has waited for a second, whom. No text if there is none.
  Activity Waiting(absl::Time now) const;
  // The same of one that is under way.
  Activity Waiting(absl::Time now, uint64_t request) const;

 private:
  using Request = ClientRequest;
  using Slice = ClientRequest::Slice;
  using Flight = ClientRequest::Flight;

  const RangeMap* map() const { return packer_.map(); }
  std::unique_ptr<Request> NewRequest(const FrameHeader& header, bool push, bool in_place,
                                      absl::Span<const TableKeys> keys,
                                      absl::Span<const size_t> floats);
  uint64_t PullMissing(absl::Time now, FrameHeader header, absl::Span<const TableKeys> keys,
                       absl::Span<PulledRows* const> rows);
  Request* Enter(absl::Time now, std::unique_ptr<Request> request);
  uint64_t StartPush(absl::Time now, const PushInfo& info, std::unique_ptr<Request> request);
  Request* FindRequest(uint64_t id);
  Flight* FindFlight(uint64_t number, Request** request);
  void SendOpenSlices(absl::Time now, Request* request);
  void SendFrames(absl::Time now, Request* request, EndpointId to,
                  absl::Span<const std::pair<EndpointId, uint32_t>> slices, bool more);
  uint64_t& CounterOf(const EndpointId& shard, uint64_t* kind);
  void SendFlight(absl::Time now, Request* request, EndpointId to, size_t first);
  void OnRows(absl::Time now, Request* request, Flight* flight, const ParsedFrame& frame);
  void OnAck(absl::Time now, Request* request, Flight* flight, const ParsedFrame& frame);
  void NoteClock(const FrameHeader& header);
  void Refuse(absl::Time now, const ParsedFrame& frame, Slice* slice);
  void Finish(Request* request, absl::Status status);
  void End(uint64_t id, bool done);
  void CheckTimes(absl::Time now, Request* request);
  void EndFlight(absl::Time now, Request* request, Flight* flight);

  const job::JobPlan& plan_;
  const EndpointId self_;
  const uint64_t incarnation_;
  const Options options_;
  const ResendTimes times_;
  BufferSource& buffers_;
  RequestPacker packer_;
  uint64_t next_number_ = 1;                        // of requests and frames
  std::vector<std::unique_ptr<Request>> requests_;  // under way, in order of their numbers
  std::vector<std::unique_ptr<Request>> spare_;     // done, to be used again
  RowCache cache_;
  VersionsRead versions_;
  ResendLine reads_, pushes_;  // under way
  PauseWatch pauses_;
  std::vector<int64_t> min_clock_;
  std::vector<uint64_t> updates_sent_;
  std::vector<Outgoing> out_;
  std::vector<Completion> completions_;
  std::function<void()> frame_ready_;
  // Scratch, all of it.
  std::vector<size_t> floats_;                         // of each input
  std::vector<std::pair<EndpointId, uint32_t>> open_;  // slices to send, with their owners
  std::vector<uint64_t> ids_;
  std::vector<ClientRequest::CachedInput> cached_;
  std::vector<const float*> cached_rows_;
  std::vector<size_t> cached_floats_;  // of each of them
  std::vector<int64_t> cached_versions_;
  std::vector<TableKeys> missing_;
  Counters counters_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_CLIENT_CORE_H_
