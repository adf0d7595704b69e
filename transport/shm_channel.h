// One connection of the shared-memory transport: a ring each way (transport/shm_ring.h) and a Unix
// socket (transport/unix_link.h) between two processes of one host.
//
// Each side makes the ring it sends into and gives it to the other in its first message, so frames
// can be sent before the other side has answered. The socket has three uses: it is the doorbell
// (one byte, sent only to a side that has said it sleeps), it carries descriptors, and its end
// tells that the other process is gone.
//
// A frame is one record of the ring: its small parts, and for each large part where it lies in a
// segment of the sender (transport/shm_arena.h), which the receiver maps read-only. Such a part has
// a slot: the sender holds the buffer until the receiver, from whatever thread drops the last
// reference, sets the slot's bit in words that the ring has for its users. The socket stays open
// while either side holds the other's buffers; so its orderly end, and the death of the other
// process, free all slots. A socket that only breaks frees none: the other side may be reading. A
// receiver that keeps half of all slots copies what comes beyond them, so that it never ends with
// all.
//
//   record := u32 bytes (all of it, a multiple of 8)  u32 parts  part...
//   part   := u64 size                                  then the bytes, padded to 8       (inline)
//           | u64 size | 1 << 63   u32 segment   u32 slot   u64 offset                    (placed)
//
// Nothing the peer writes is believed: records are copied before they are looked at, places are
// checked against the size of what was mapped. Part 0 is copied too, because what it says is
// checked once and used later. Other parts are numbers: a sender that changes them after sending
// can make the numbers wrong, which it could have done before, and nothing else.
//
// Thread safety: none; the endpoint's thread. Received buffers may be dropped anywhere, at any
// time.
#ifndef TANDEM_TRANSPORT_SHM_CHANNEL_H_
#define TANDEM_TRANSPORT_SHM_CHANNEL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "proto/frame.h"
#include "transport/recycle_pool.h"
#include "transport/shm_arena.h"
#include "transport/shm_ring.h"
#include "transport/unix_link.h"

namespace tandem::transport {

// What the transport's data path cost, all links together.
struct ShmStats {
  uint64_t bells = 0;          // system calls to wake a peer
  uint64_t socket_reads = 0;   // system calls to read a socket
  uint64_t waits = 0;          // system calls to wait, or to look for newcomers and the dead
  uint64_t announcements = 0;  // segments given to a peer
  uint64_t parts_placed = 0;   // parts that the receiver reads where the sender wrote them
  uint64_t bytes_copied = 0;   // of large parts that could not be read where they were written
};

class ShmInbox;
class ReceivedSpan;
using ReceivedSpans = RecyclePool<ReceivedSpan>;

struct ReceivedSpansDropper {
  void operator()(ReceivedSpans* pool) const;
};
using ReceivedSpansOwner = std::unique_ptr<ReceivedSpans, ReceivedSpansDropper>;
ReceivedSpansOwner NewReceivedSpans();

// What the links of one endpoint share; outlives them.
struct ShmShared {
  ShmArena* arena = nullptr;
  HeapBufferSource* heap = nullptr;
  ReceivedSpans* spans = nullptr;
  ShmStats* stats = nullptr;
};

class ShmChannel {
 public:
  static constexpr size_t kSlots = 64 * 64;  // large parts sent and not yet given back

  // Makes our ring, of room for `queue_frames` frames at least, and sends it. RESOURCE_EXHAUSTED:
  // no memory or descriptors.
  static absl::StatusOr<std::unique_ptr<ShmChannel>> New(UnixLink socket, const ShmShared& shared,
                                                         int queue_frames);
  ~ShmChannel();

  int fd() const;
  bool open() const { return open_; }  // the peer's ring is here
  bool peer_gone() const { return gone_; }

  // Reads what waits on the socket. INVALID_ARGUMENT: it is not a peer of ours.
  absl::Status ReadSocket();

  // ---- sending ----

  // RESOURCE_EXHAUSTED: beyond a bound, nothing was sent; ask RoomAgain. ABORTED: the system has no
  // shared memory for a large part, and the frame needs another way. Every error but
  // RESOURCE_EXHAUSTED means that the link is of no more use. Frames of too many parts can be sent,
  // for tests.
  absl::Status Send(absl::Span<const Buffer> parts);
  // After RESOURCE_EXHAUSTED: true once half of the queue is read and there are slots.
  absl::StatusOr<bool> RoomAgain();
  // Nothing more will come from us. Frames sent before are still read by the peer.
  void Finish();
  // Ends the connection without Finish: the peer sees a loss.
  void HangUp();
  // Takes back the buffers of large parts that the peer has dropped.
  void CollectReleased();
  // The peer may still read buffers of ours: it has not given them back, and it neither has ended
  // in order, which it does after the last of them, nor is its process dead.
  bool PeerMayRead() const;

  // ---- receiving ----

  // Takes the next frame; false: none waits. `*parts` is as sent; the frame keeps at most
  // kMaxFrameParts. An error means that the link is of no more use.
  absl::StatusOr<bool> Receive(Frame* frame, size_t* parts);
  bool HasNews() const;
  // The peer will send no more; what it sent before may still wait.
  bool peer_finished() const;

  // ---- sleeping ----

  // Says that we sleep until a doorbell: for frames, and for room if `blocked`. False: do not.
  bool MaySleep(bool blocked);
  void Awake();

 private:
  struct PartPlan {
    Buffer held;  // empty: inline
    ShmArena::Place place;
  };
  using Plans = absl::InlinedVector<PartPlan, kMaxFrameParts>;
  struct RemoteSegment {
    uint32_t id;
    std::shared_ptr<const Mapping> memory;
  };

  ShmChannel(const ShmShared& shared, int queue_frames);
  absl::Status Start(UnixLink socket);

  absl::StatusOr<size_t> UpdateFree();
  absl::StatusOr<size_t> LargestInline(absl::Span<const Buffer> parts);
  absl::Status Place(const Buffer& part, PartPlan* plan);
  absl::Status Announce(const ShmArena::Place& place);
  void Write(absl::Span<const Buffer> parts, Plans* plans, absl::Span<uint8_t> space);
  uint32_t TakeSlot(Buffer held);
  void Bell();

  absl::Status OnMessage(UnixMessage message);
  absl::Status OnHello(const UnixMessage& message);
  absl::Status OnSegment(const UnixMessage& message);
  absl::StatusOr<std::shared_ptr<const Mapping>> FindSegment(uint32_t id);
  absl::Status TakePart(const Buffer& record, size_t* at, size_t index, Frame* frame);
  absl::Status TakePlaced(absl::Span<const uint8_t> words, uint64_t size, size_t index,
                          Frame* frame);

  const ShmShared shared_;
  const size_t bound_;  // frames
  ShmRing out_;
  std::vector<uint64_t> ends_;  // circular: where each unread frame ends in the ring
  size_t first_end_ = 0, unread_ = 0;
  std::vector<Buffer> slots_;  // empty: free
  std::vector<uint32_t> free_slots_;
  size_t slots_in_use_ = 0;
  bool wants_slots_ = false;
  std::vector<uint32_t> announced_;

  std::shared_ptr<ShmInbox> inbox_;  // socket and the peer's ring
  bool open_ = false, gone_ = false;
  std::vector<RemoteSegment> segments_;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_SHM_CHANNEL_H_
