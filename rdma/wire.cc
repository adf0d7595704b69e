#include "rdma/wire.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::rdma {
namespace {

// Little-endian hosts only, like the rest of the project (proto/frame.cc).
class Writer {
 public:
  explicit Writer(uint8_t* at) : at_(at) {}
  template <typename T>
  void Put(T value) {
    std::memcpy(at_, &value, sizeof value);
    at_ += sizeof value;
  }

 private:
  uint8_t* at_;
};

class Reader {
 public:
  explicit Reader(const uint8_t* at) : at_(at) {}
  template <typename T>
  void Get(T* value) {
    std::memcpy(value, at_, sizeof *value);
    at_ += sizeof *value;
  }

 private:
  const uint8_t* at_;
};

bool CarriesFrame(RdmaMessageKind kind) {
  return kind == RdmaMessageKind::kFrame || kind == RdmaMessageKind::kOffer;
}

absl::Status CheckMagic(uint32_t magic) {
  if (magic == kRdmaMagic) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("magic %#x, expected %#x: is the peer one of ours?", magic, kRdmaMagic));
}

absl::Status CheckHello(const RdmaHello& hello) {
  const bool slots_fit =
      hello.small_slots >= 1 && hello.large_slots >= 1 && hello.slots() <= kMaxRingSlots &&
      hello.small_slot_bytes >= hello.message_bytes &&
      hello.large_slot_bytes >= hello.small_slot_bytes && hello.large_slot_bytes <= kMaxSlotBytes;
  const bool messages_fit = hello.message_bytes >= kMinMessageBytes &&
                            hello.message_bytes <= kMaxMessageBytes && hello.credits >= 4 &&
                            hello.message_bytes % 8 == 0;
  const bool aligned = hello.small_slot_bytes % 64 == 0 && hello.large_slot_bytes % 64 == 0;
  if (slots_fit && messages_fit && aligned) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("invalid hello: ", hello.small_slots, " slots of ", hello.small_slot_bytes,
                   " bytes, ", hello.large_slots, " of ", hello.large_slot_bytes, ", ",
                   hello.credits, " messages of ", hello.message_bytes, " bytes"));
}

absl::Status CheckPart(const RdmaMessage& message, int i, size_t max_part_bytes) {
  if (message.part_bytes[i] <= max_part_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("part ", i, " of ", message.part_bytes[i],
                                                 " bytes, at most ", max_part_bytes, " allowed"));
}

// Checks the counts and sizes in a message, which the peer has chosen.
absl::Status CheckMessage(const RdmaMessage& message, size_t bytes, size_t max_part_bytes) {
  if (CarriesFrame(message.kind) != (message.parts > 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "message of kind ", static_cast<int>(message.kind), " with ", message.parts, " parts"));
  }
  for (int i = 0; i < message.parts; ++i) {
    if (absl::Status part = CheckPart(message, i, max_part_bytes); !part.ok()) return part;
  }
  // Part sizes are at most 2^31 here, so these sums cannot overflow.
  if (message.TotalBytes() == bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("message of ", bytes, " bytes, its parts add up to ", message.TotalBytes()));
}

}  // namespace

size_t RdmaHello::SlotOffset(int slot) const {
  if (slot <= small_slots) return static_cast<size_t>(slot) * small_slot_bytes;
  return size_t{small_slots} * small_slot_bytes +
         static_cast<size_t>(slot - small_slots) * large_slot_bytes;
}

void EncodeRdmaHello(const RdmaHello& hello, uint8_t out[kRdmaHelloBytes]) {
  Writer to(out);
  to.Put(kRdmaMagic);
  to.Put(kRdmaVersion);
  to.Put(hello.credits);
  to.Put(hello.ring_address);
  to.Put(hello.ring_key);
  to.Put(hello.small_slot_bytes);
  to.Put(hello.large_slot_bytes);
  to.Put(hello.small_slots);
  to.Put(hello.large_slots);
  to.Put(hello.message_bytes);
  to.Put(uint32_t{0});
}

absl::StatusOr<RdmaHello> DecodeRdmaHello(absl::Span<const uint8_t> bytes) {
  if (bytes.size() < kRdmaHelloBytes) {  // rdma_cm pads private data with zeros
    return absl::InvalidArgumentError(
        absl::StrCat("hello of ", bytes.size(), " bytes, expected ", kRdmaHelloBytes));
  }
  Reader from(bytes.data());
  uint32_t magic;
  uint16_t version;
  RdmaHello hello;
  from.Get(&magic);
  from.Get(&version);
  from.Get(&hello.credits);
  from.Get(&hello.ring_address);
  from.Get(&hello.ring_key);
  from.Get(&hello.small_slot_bytes);
  from.Get(&hello.large_slot_bytes);
  from.Get(&hello.small_slots);
  from.Get(&hello.large_slots);
  from.Get(&hello.message_bytes);
  if (absl::Status status = CheckMagic(magic); !status.ok()) return status;
  if (version != kRdmaVersion) {
    return absl::InvalidArgumentError(
        absl::StrCat("RDMA protocol version ", version, ", this end speaks ", kRdmaVersion));
  }
  if (absl::Status status = CheckHello(hello); !status.ok()) return status;
  return hello;
}

size_t RdmaMessage::PartOffset(int i) const {
  size_t offset = HeadBytes();
  for (int part = 0; part < i; ++part) {
    if (part_key[part] == 0) offset += PadTo8(part_bytes[part]);
  }
  return offset;
}

void EncodeRdmaHead(const RdmaMessage& message, uint8_t* out) {
  Writer to(out);
  to.Put(kRdmaMagic);
  to.Put(static_cast<uint8_t>(message.kind));
  to.Put(uint8_t{0});
  to.Put(message.parts);
  to.Put(message.credits);
  to.Put(uint16_t{0});
  to.Put(message.token);
  to.Put(message.freed);
  for (const uint64_t bytes : message.part_bytes) to.Put(bytes);
  to.Put(uint64_t{0});
  if (message.kind != RdmaMessageKind::kOffer) return;
  for (int i = 0; i < kMaxFrameParts; ++i) {
    to.Put(message.part_address[i]);
    to.Put(message.part_key[i]);
    to.Put(uint32_t{0});
  }
}

// The size of the head is checked before its fields are read, and the magic number before they are
// used. The kind says how long the rest of the head is, and the rest is checked as a whole at the
// end.
absl::StatusOr<RdmaMessage> DecodeRdmaMessage(absl::Span<const uint8_t> bytes,
                                              size_t max_part_bytes) {
  if (bytes.size() < kRdmaHeadBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("message of ", bytes.size(), " bytes, its head has ", kRdmaHeadBytes));
  }
  Reader from(bytes.data());
  uint32_t magic;
  uint8_t kind, zero;
  uint16_t none;
  RdmaMessage message;
  from.Get(&magic);
  from.Get(&kind);
  from.Get(&zero);
  from.Get(&message.parts);
  from.Get(&message.credits);
  from.Get(&none);
  from.Get(&message.token);
  from.Get(&message.freed);
  for (uint64_t& part : message.part_bytes) from.Get(&part);
  if (absl::Status status = CheckMagic(magic); !status.ok()) return status;
  message.kind = static_cast<RdmaMessageKind>(kind);
  if (message.kind < RdmaMessageKind::kFrame || message.kind > RdmaMessageKind::kGoodbye ||
      message.parts > kMaxFrameParts || bytes.size() < message.HeadBytes()) {
    return absl::InvalidArgumentError(absl::StrCat("message of kind ", kind, " with ",
                                                   message.parts, " parts in ", bytes.size(),
                                                   " bytes, a frame has 1 to ", kMaxFrameParts));
  }
  if (message.kind == RdmaMessageKind::kOffer) {
    Reader keys(bytes.data() + kRdmaHeadBytes);
    uint32_t unused;
    for (int i = 0; i < kMaxFrameParts; ++i) {
      keys.Get(&message.part_address[i]);
      keys.Get(&message.part_key[i]);
      keys.Get(&unused);
    }
  }
  if (absl::Status status = CheckMessage(message, bytes.size(), max_part_bytes); !status.ok()) {
    return status;
  }
  return message;
}

absl::Status RdmaViolation(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("the peer breaks the protocol: ", what));
}

}  // namespace tandem::rdma
