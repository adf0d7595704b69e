// ShmChannel is one connection of the shared-memory transport: a ring in each direction
// (transport/shm_ring.h) and a Unix socket (transport/unix_link.h) between two processes on one
// host.
//
// Each side creates the ring into which it sends and gives it to the peer in its first message. So
// a side can send frames before the peer has answered. The socket has three uses: as a doorbell
// (one byte, sent only to a side that has said that it sleeps), for passing descriptors, and for
// noticing the end of the other process.
//
// A frame is one record in the ring. The record contains small parts. For each large part it
// contains the part's position in a segment of the sender (transport/shm_arena.h), which the
// receiver maps read-only. A large part occupies a slot at the sender: the sender holds the part's
// buffer until the receiver sets the slot's bit in shared words of the ring. The receiver does so
// on the thread that drops the last reference.
//
// The socket stays open while either side holds buffers of the other. So all slots are free after
// an orderly end of the socket, and after the death of the other process. If only the socket
// breaks, no slot becomes free, because the other side may still be reading. A receiver that holds
// half of all slots copies further parts, so that it never occupies all slots.
//
//   record := u32 bytes (whole record, a multiple of 8)  u32 parts  part...
//   part   := u64 size                                  then the bytes, padded to 8       (inline)
//           | u64 size | 1 << 63   u32 segment   u32 slot   u64 offset                    (placed)
//
// The receiver trusts nothing that the peer writes. The receiver copies records before it checks
// them, and checks positions against the size of the mapped memory. Part 0 is copied, too, because
// part 0 is checked once and used later. Other parts are numbers: a sender that changes them after
// sending can only make the numbers wrong, which it could also do before sending.
//
// Thread safety: none; only the endpoint's thread uses it. Received buffers may be dropped on any
// thread at any time.
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

// Costs of the transport's data path, over all channels.
struct ShmStats {
  uint64_t bells = 0;          // system calls to wake a peer
  uint64_t socket_reads = 0;   // system calls to read a socket
  uint64_t waits = 0;          // system calls to wait, or to look for new and dead peers
  uint64_t announcements = 0;  // segments given to a peer
  uint64_t parts_placed = 0;   // parts that the receiver reads in place
  uint64_t bytes_copied = 0;   // bytes of large parts that could not be read in place
};

class ShmInbox;
class ReceivedSpan;
using ReceivedSpans = RecyclePool<ReceivedSpan>;

struct ReceivedSpansDropper {
  void operator()(ReceivedSpans* pool) const;
};
using ReceivedSpansOwner = std::unique_ptr<ReceivedSpans, ReceivedSpansDropper>;
ReceivedSpansOwner NewReceivedSpans();

// Objects that all channels of an endpoint share; they must outlive the channels.
struct ShmShared {
  ShmArena* arena = nullptr;
  HeapBufferSource* heap = nullptr;
  ReceivedSpans* spans = nullptr;
  ShmStats* stats = nullptr;
};

class ShmChannel {
 public:
  static constexpr size_t kSlots = 64 * 64;  // large parts sent and not yet given back

  // Creates this side's ring, with room for at least `queue_frames` frames, and sends it to the
  // peer. RESOURCE_EXHAUSTED: no memory or descriptors.
  static absl::StatusOr<std::unique_ptr<ShmChannel>> New(UnixLink socket, const ShmShared& shared,
                                                         int queue_frames);
  ~ShmChannel();

  int fd() const;
  bool open() const { return open_; }  // the peer's ring has arrived
  bool peer_gone() const { return gone_; }

  // Reads the messages that wait on the socket. INVALID_ARGUMENT: the peer does not speak this
  // protocol.
  absl::Status ReadSocket();

  // ---- sending ----

  // RESOURCE_EXHAUSTED: a bound is reached and nothing was sent; ask RoomAgain. ABORTED: the system
  // has no shared memory for a large part, so the frame needs another transport. After any error
  // except RESOURCE_EXHAUSTED the channel can no longer be used. Frames with too many parts can be
  // sent, for tests.
  absl::Status Send(absl::Span<const Buffer> parts);
  // Call it after RESOURCE_EXHAUSTED. True when half of the queue has been read and slots are free.
  absl::StatusOr<bool> RoomAgain();
  // Says that this side sends no more. The peer still reads frames sent before.
  void Finish();
  // Ends the connection without Finish: the peer sees a loss.
  void HangUp();
  // Takes back the buffers of large parts that the peer has dropped.
  void CollectReleased();
  // True if the peer may still read buffers of this side: it has not given them back, has not ended
  // in order (which it does only after giving them back), and its process lives.
  bool PeerMayRead() const;

  // ---- receiving ----

  // Takes the next frame; false: there is none. `*parts` is the number of parts sent; the frame
  // keeps at most kMaxFrameParts. After an error the channel can no longer be used.
  absl::StatusOr<bool> Receive(Frame* frame, size_t* parts);
  bool HasNews() const;
  // The peer will send no more. Frames that it sent before may still wait.
  bool peer_finished() const;

  // ---- sleeping ----

  // Says that this side sleeps until a doorbell: for frames, and also for room if `blocked`. False:
  // do not sleep, because there are frames or room already.
  bool MaySleep(bool blocked);
  void Awake();

 private:
  struct PartPlan {
    Buffer held;  // empty: the part is inline
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
  std::vector<uint64_t> ends_;  // circular: the end of each unread frame in the ring
  size_t first_end_ = 0, unread_ = 0;
  std::vector<Buffer> slots_;  // empty: free
  std::vector<uint32_t> free_slots_;
  size_t slots_in_use_ = 0;
  bool wants_slots_ = false;
  std::vector<uint32_t> announced_;

  std::shared_ptr<ShmInbox> inbox_;  // the socket and the peer's ring
  bool open_ = false, gone_ = false;
  std::vector<RemoteSegment> segments_;
};

}  // namespace tandem::transport

#endif  // TANDEM_TRANSPORT_SHM_CHANNEL_H_
