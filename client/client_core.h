// ClientCore is the worker's side of push and pull: a deterministic state machine. ClientCore
// routes keys to the shards that own them, sends each shard its slices, resends slices that are
// refused or not answered, and puts rows where the caller expects them.
//
// Rows and gradients are copied from and to the caller's arrays, or they stay in the frames. In the
// second case a read says where each row is, and a push says, before it is sent, where the caller
// writes each gradient.
//
// A request is complete when each of its slices is complete. The core sends again:
// - A slice that a shard refused with WRONG_VIEW. The slice travels alone, as soon as a newer view
//   is known, or after a pause if the shard's view is the older one.
// - A frame whose connection was lost.
// - A frame without an answer (resend_clock.h). Each wait is twice as long as the one before, so
//   that a slow shard, or a shard behind a slow link, does not get more work without a loss.
//
// A request fails after silence of `silence_limit`, if no shard has answered anything that was sent
// before its frame in that time. The error names the shard and the key range. WAITING messages
// reset both clocks, and a pause of this process does not count as silence.
//
// Thread safety: none; one thread at a time. Not here: sockets (client_engine.h and the worker's
// shell), the order of steps (worker/trainer_core.h).
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
#include "client/pulled_versions.h"
#include "client/request_packer.h"
#include "client/resend_clock.h"
#include "client/row_cache.h"
#include "job/job.h"
#include "policies/policy.h"
#include "proto/activity.h"
#include "proto/frame.h"
#include "proto/outgoing.h"
#include "proto/range_map.h"

namespace tandem::client {

class ClientCore {
 public:
  // A push whose gradients are not written yet. The caller writes them directly into the frames
  // that will carry them. A prepared push that is dropped before it is sent has no effect. A
  // PreparedPush may outlive the core, and keeps its memory when it is used again.
  class PreparedPush {
   public:
    PreparedPush();
    ~PreparedPush();
    PreparedPush(PreparedPush&&) noexcept;
    PreparedPush& operator=(PreparedPush&&) noexcept;

    // at(i)[k] is where the gradient of key k of table i goes: `dim` floats, uninitialised,
    // writable until the push is sent.
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
    // Silence before a frame is sent again. The wait doubles, up to four times this value.
    absl::Duration resend_after = absl::Seconds(2);
    // Wait after a lost connection, so that a peer that has gone is not called without a pause.
    absl::Duration reconnect_after = absl::Milliseconds(10);
    absl::Duration wrong_view_pause = absl::Milliseconds(20);
    absl::Duration silence_limit = absl::Seconds(30);  // silence before the request fails
    // Bytes of values in one frame. A larger request to a shard is cut between ranges, into frames
    // of about this size.
    size_t frame_bytes = 128 << 10;
    // True: rows are kept in the cache if the policy of their table says so. Callers that do not
    // process frames between reads set it to false.
    bool keep_rows = true;
  };

  struct Completion {
    uint64_t request = 0;
    absl::Status status;
    uint64_t closed_samples = 0;  // reads: sum of n of the step closed last (lockstep policies)
    int64_t open_step = 0;        // pushes too late somewhere: the latest step open there; else 0
  };

  struct Counters {
    uint64_t pull_bytes = 0, rows_bytes = 0, push_bytes = 0, ack_bytes = 0;
    uint64_t refresh_bytes = 0;
    uint64_t rows_asked = 0, rows_cached = 0;  // tables with kept rows: all; from the cache
    uint64_t within_bytes = 0;                 // all four kinds, to and from shards in this process
    uint64_t frames_resent = 0;
    // Shortest time from a request for rows to its last answer; evaluations do not count.
    absl::Duration shortest_read = absl::InfiniteDuration();
  };

  // `plan` and `buffers` must outlive the core.
  ClientCore(const job::ResolvedJob& plan, EndpointId self, uint64_t incarnation,
             BufferSource& buffers, const Options& options);
  ~ClientCore();

  // Takes a newer view; older views are ignored. Requests need a view.
  void OnView(absl::Time now, std::shared_ptr<const RangeMap> view);

  // Reads the rows of `keys` (tables of `group`) for `step` into rows[i], which is
  // [keys[i].keys.size(), dim]. Returns the request's number.
  uint64_t Pull(absl::Time now, uint32_t group, int64_t step, absl::Span<const TableKeys> keys,
                absl::Span<const absl::Span<float>> rows, uint8_t flags);

  // Like Pull, but the rows stay where they arrive, and rows[i] says where. Keys must not repeat.
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
    int64_t sample_clock = 0;  // policies::Update
    uint64_t positives = policies::kUnknownPositives;
  };
  // Sends gradient sums (or rows, with kFlagAssign): one slice to every range of the group, even if
  // it is empty. Each shard gets one frame, or several if the frame would be large. The bytes are
  // copied before Push returns. The push carries the versions that the last completed Pull of the
  // same group and step read.
  uint64_t Push(absl::Time now, const PushInfo& info, absl::Span<const TableKeys> keys,
                absl::Span<const absl::Span<const float>> values);

  // Prepares a push of keys of tables of `group` and says where their gradients go. Keys must not
  // repeat. Needs a view. The memory of the keys may be freed afterwards.
  void PreparePush(uint32_t group, absl::Span<const TableKeys> keys, PreparedPush* push);
  // Sends a prepared push. Requires: push->ready(), the same info.group as prepared, no flags, all
  // gradients written.
  uint64_t Push(absl::Time now, const PushInfo& info, PreparedPush* push);

  // Forgets a request and ignores late answers. A later push of the step has the same versions.
  void Cancel(uint64_t request);

  // Takes a frame from a shard: ROWS, ACK, WAITING or REFRESH.
  void OnFrame(absl::Time now, const ParsedFrame& frame);
  void OnTick(absl::Time now);
  // Says that the connection to a shard is lost, with all frames in flight on it, or that a frame
  // to the shard could not be sent. `why` goes into the error of a request that fails for this
  // reason; may be empty.
  void OnLost(absl::Time now, EndpointId shard, absl::string_view why);

  // Sets a function that Pull and Push call when a frame is in out() and more frames of the same
  // request follow. A shell that sends the frame at once overlaps its transfer with packing.
  void set_frame_ready(std::function<void()> ready) { frame_ready_ = std::move(ready); }

  // Queues for the caller: take what is there and clear them.
  std::vector<Outgoing>& out() { return out_; }
  std::vector<Completion>& completions() { return completions_; }

  // The largest minimum clock that any shard has reported for the group: a lower bound of the true
  // minimum clock.
  int64_t largest_min_clock(uint32_t group) const { return min_clock_[group]; }
  const Counters& counters() const { return counters_; }
  size_t requests_in_flight() const { return requests_.size(); }
  // Updates with rows that were sent, by table; each (step, range) counts once.
  const std::vector<uint64_t>& updates_sent() const { return updates_sent_; }
  // Says what the oldest request waits for, such as
  // "pull of step 7: server 1 shard 0 waits for worker 2 ...".
  // After one second of waiting it also names the endpoint. No text if there is no request.
  Activity Waiting(absl::Time now) const;
  // The same for one request in flight.
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

  const job::ResolvedJob& plan_;
  const EndpointId self_;
  const uint64_t incarnation_;
  const Options options_;
  const ResendTimes times_;
  BufferSource& buffers_;
  RequestPacker packer_;
  uint64_t next_number_ = 1;                        // next number of a request or frame
  std::vector<std::unique_ptr<Request>> requests_;  // in flight, in order of their numbers
  std::vector<std::unique_ptr<Request>> spare_;     // done, for reuse
  RowCache cache_;
  PulledVersions versions_;
  ResendLine reads_, pushes_;  // frames in flight, by kind
  PauseWatch pauses_;
  std::vector<int64_t> min_clock_;
  std::vector<uint64_t> updates_sent_;
  std::vector<Outgoing> out_;
  std::vector<Completion> completions_;
  std::function<void()> frame_ready_;
  // Scratch space, down to missing_.
  std::vector<size_t> floats_;                         // floats of each input
  std::vector<std::pair<EndpointId, uint32_t>> open_;  // slices to send, with their owners
  std::vector<uint64_t> ids_;
  std::vector<ClientRequest::CachedInput> cached_;
  std::vector<const float*> cached_rows_;
  std::vector<size_t> cached_floats_;  // floats of each row in cached_rows_
  std::vector<int64_t> cached_versions_;
  std::vector<TableKeys> missing_;
  Counters counters_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_CLIENT_CORE_H_
