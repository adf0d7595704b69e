// RdmaMessage, RdmaHello: the messages between RDMA endpoints around frames. The hello is in the
// private data of a connection request and of its acceptance. The head is in front of every
// message. docs/RDMA.md explains their use.
//
// The bytes may come from anybody. Decoding checks everything that can be checked without knowing
// the connection (magic, kind, counts, sizes against the bytes that arrived). All numbers are
// little-endian.
//
// Thread safety: free functions without state.
#ifndef TANDEM_RDMA_WIRE_H_
#define TANDEM_RDMA_WIRE_H_

#include <cstddef>
#include <cstdint>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "proto/frame.h"

namespace tandem::rdma {

inline constexpr uint32_t kRdmaMagic = 0x414d4454;  // "TDMA" little-endian
inline constexpr uint16_t kRdmaVersion = 1;
inline constexpr int kMaxRingSlots = 64;  // one bit each in RdmaMessage::freed
inline constexpr size_t kMaxSlotBytes = size_t{64} << 20;
inline constexpr size_t kMinMessageBytes = 512, kMaxMessageBytes = 64 << 10;
inline constexpr int kMaxRdmaOffers = 4;  // frames of one direction that wait to be read

// The grant of an endpoint to one peer: how this peer may send to it. Slots [0, small_slots) of the
// ring have small_slot_bytes each, the others large_slot_bytes.
struct RdmaHello {
  uint64_t ring_address = 0;
  uint32_t ring_key = 0;
  uint32_t small_slot_bytes = 0, large_slot_bytes = 0;
  uint16_t small_slots = 0, large_slots = 0;
  uint16_t credits = 0;        // messages that may be in flight
  uint32_t message_bytes = 0;  // largest message outside the ring

  friend bool operator==(const RdmaHello&, const RdmaHello&) = default;
  int slots() const { return small_slots + large_slots; }
  size_t SlotBytes(int slot) const {
    return slot < small_slots ? small_slot_bytes : large_slot_bytes;
  }
  size_t SlotOffset(int slot) const;
  size_t RingBytes() const { return SlotOffset(slots()); }
};

inline constexpr size_t kRdmaHelloBytes = 4 + 2 + 2 + 8 + 4 + 4 + 4 + 2 + 2 + 4 + 4;  // 40

// The limit of rdma_cm: an application may put 56 bytes into a connection request.
static_assert(kRdmaHelloBytes <= 56);

void EncodeRdmaHello(const RdmaHello& hello, uint8_t out[kRdmaHelloBytes]);
// INVALID_ARGUMENT: not a hello, another version, or numbers out of bounds.
absl::StatusOr<RdmaHello> DecodeRdmaHello(absl::Span<const uint8_t> bytes);

enum class RdmaMessageKind : uint8_t {
  kFrame = 1,    // the parts follow, each padded to 8 bytes
  kOffer = 2,    // a frame to be read: keys for large parts; small parts follow
  kDone = 3,     // the frame offered as `token` has been read
  kCredit = 4,   // only credits and freed slots
  kGoodbye = 5,  // nothing follows
};

inline constexpr size_t kRdmaHeadBytes = 64;                                 // for all kinds
inline constexpr size_t kRdmaOfferHeadBytes = kRdmaHeadBytes + 4 * (8 + 8);  // 128

struct RdmaMessage {
  RdmaMessageKind kind = RdmaMessageKind::kCredit;
  uint16_t parts = 0;
  uint16_t credits = 0;  // given back to the receiver of this message
  uint32_t token = 0;    // kOffer, kDone
  uint64_t freed = 0;    // slots of the sender's ring that may be written again
  uint64_t part_bytes[kMaxFrameParts] = {};
  // kOffer only. Key 0: the part follows in the message.
  uint64_t part_address[kMaxFrameParts] = {};
  uint32_t part_key[kMaxFrameParts] = {};

  // Where part i begins in the message, provided that it is in the message.
  size_t PartOffset(int i) const;
  // The size of the whole message.
  size_t TotalBytes() const { return PartOffset(parts); }
  size_t HeadBytes() const {
    return kind == RdmaMessageKind::kOffer ? kRdmaOfferHeadBytes : kRdmaHeadBytes;
  }
};

// INVALID_ARGUMENT: the peer has broken a rule.
absl::Status RdmaViolation(absl::string_view what);

inline constexpr size_t PadTo8(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

// Writes the head: HeadBytes() bytes. Parts follow at PartOffset(i).
ABSL_ATTRIBUTE_HOT void EncodeRdmaHead(const RdmaMessage& message, uint8_t* out);
// Decodes a message; `bytes` is everything that arrived. INVALID_ARGUMENT: not a message. A message
// that carries a frame has 1 to kMaxFrameParts parts; any other message has none. Each part has at
// most `max_part_bytes` and, if it follows, lies inside `bytes`. The bytes are read once, so a peer
// that changes them meanwhile has no effect.
ABSL_ATTRIBUTE_HOT absl::StatusOr<RdmaMessage> DecodeRdmaMessage(absl::Span<const uint8_t> bytes,
                                                                 size_t max_part_bytes);

}  // namespace tandem::rdma

#endif  // TANDEM_RDMA_WIRE_H_
