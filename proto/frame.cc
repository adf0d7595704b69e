#include "proto/frame.h"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "google/protobuf/stubs/logging.h"

namespace tandem {
namespace {

static_assert(std::endian::native == std::endian::little,
              "frames are little-endian and this file copies numbers as they are");

// Offsets of proto/frame.md.
enum : size_t {
  kOffMagic = 0,
  kOffVersion = 4,
  kOffKind = 5,
  kOffParts = 6,
  kOffFlags = 7,
  kOffSender = 8,
  kOffView = 12,
  kOffIncarnation = 16,
  kOffRequest = 24,
  kOffFirstStep = 32,
  kOffStep = 40,
  kOffGroup = 48,
  kOffCount = 52,
  kOffSamples = 56,
  kOffClockGap = 64,
  kOffInFlight = 68,
  kOffSampleClock = 72,
  kOffPositives = 80,
  kOffChecksum = 88,
};
static_assert(kOffChecksum + 8 == kFrameHeaderBytes);

template <typename T>
void Store(uint8_t* at, T value) {
  std::memcpy(at, &value, sizeof value);
}
template <typename T>
T Load(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// The checksum of part 0 without the checksum field.
uint64_t Checksum(absl::Span<const uint8_t> part0) {
  const uint64_t head = XXH3_64bits(part0.data(), kOffChecksum);
  return XXH3_64bits_withSeed(part0.data() + kFrameHeaderBytes, part0.size() - kFrameHeaderBytes,
                              head);
}

void StoreHeader(const FrameHeader& h, int parts, uint32_t count, uint8_t* at) {
  Store<uint32_t>(at + kOffMagic, kFrameMagic);
  at[kOffVersion] = kFrameVersion;
  at[kOffKind] = static_cast<uint8_t>(h.kind);
  at[kOffParts] = static_cast<uint8_t>(parts);
  at[kOffFlags] = h.flags;
  Store<uint32_t>(at + kOffSender, h.sender.Pack());
  Store<uint32_t>(at + kOffView, h.view);
  Store<uint64_t>(at + kOffIncarnation, h.incarnation);
  Store<uint64_t>(at + kOffRequest, h.request);
  Store<int64_t>(at + kOffFirstStep, h.first_step);
  Store<int64_t>(at + kOffStep, h.step);
  Store<uint32_t>(at + kOffGroup, h.group);
  Store<uint32_t>(at + kOffCount, count);
  Store<uint64_t>(at + kOffSamples, h.samples);
  Store<int32_t>(at + kOffClockGap, h.clock_gap);
  Store<int32_t>(at + kOffInFlight, h.in_flight);
  Store<int64_t>(at + kOffSampleClock, h.sample_clock);
  Store<uint64_t>(at + kOffPositives, h.positives);
}

bool KnownKind(uint8_t kind) {
  switch (static_cast<FrameKind>(kind)) {
    case FrameKind::kPull:
    case FrameKind::kRows:
    case FrameKind::kPush:
    case FrameKind::kAck:
    case FrameKind::kWaiting:
    case FrameKind::kSegment:
    case FrameKind::kStore:
    case FrameKind::kStored:
    case FrameKind::kRefresh:
    case FrameKind::kControl:
    case FrameKind::kPing:
    case FrameKind::kGoodbye:
      return true;
  }
  return false;
}

// These functions say for which kinds the slices describe the keys part, the values part, or both.
bool SlicesHaveBoth(FrameKind kind) {
  return kind == FrameKind::kPush || kind == FrameKind::kStore || kind == FrameKind::kStored ||
         kind == FrameKind::kRefresh;
}
bool SlicesHaveKeys(FrameKind kind) { return kind == FrameKind::kPull || SlicesHaveBoth(kind); }
bool SlicesHaveValues(FrameKind kind) { return kind == FrameKind::kRows || SlicesHaveBoth(kind); }

Frame Assemble(Buffer part0, Buffer keys, Buffer values) {
  Frame frame;
  frame.parts = !values.empty() ? 3 : !keys.empty() ? 2 : 1;
  part0.mutable_data()[kOffParts] = static_cast<uint8_t>(frame.parts);
  Store<uint64_t>(part0.mutable_data() + kOffChecksum, Checksum({part0.data(), part0.size()}));
  frame.part[0] = std::move(part0);
  frame.part[1] = std::move(keys);
  frame.part[2] = std::move(values);
  return frame;
}

}  // namespace

size_t Frame::TotalBytes() const {
  size_t total = 0;
  for (int i = 0; i < parts; ++i) total += part[i].size();
  return total;
}

SliceEntry ParsedFrame::Entry(uint32_t i) const {
  TANDEM_CHECK(i < entry_count);
  const uint8_t* at = body.data() + size_t{i} * kSliceEntryBytes;
  SliceEntry entry;
  entry.range = Load<uint32_t>(at);
  entry.rows = Load<uint32_t>(at + 4);
  entry.version = Load<int64_t>(at + 8);
  entry.clock = Load<int64_t>(at + 16);
  entry.status = static_cast<SliceStatus>(Load<uint16_t>(at + 24));
  entry.row_floats = Load<uint32_t>(at + 28);
  return entry;
}

absl::StatusOr<Control> ParsedFrame::ParseControl() const {
  if (header.kind != FrameKind::kControl) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame kind ", static_cast<int>(header.kind), " carries no Control message"));
  }
  // If a text field is not UTF-8, protobuf fails and also writes a line to standard error; suppress
  // it.
  const google::protobuf::LogSilencer silent;
  Control control;
  if (!control.ParseFromArray(body.data(), static_cast<int>(body.size()))) {
    return absl::InvalidArgumentError(absl::StrCat("control frame from ",
                                                   header.sender.DebugString(), ": ", body.size(),
                                                   " bytes that are not a Control message"));
  }
  return control;
}

std::string ParsedFrame::DebugString() const {
  static constexpr const char* kNames[] = {"?",       "PULL",    "ROWS",  "PUSH",   "ACK",
                                           "WAITING", "SEGMENT", "STORE", "STORED", "REFRESH"};
  const int kind = static_cast<int>(header.kind);
  std::string out =
      absl::StrCat(kind < 10    ? kNames[kind]
                   : kind == 16 ? "CONTROL"
                   : kind == 32 ? "PING"
                                : "GOODBYE",
                   " from ", header.sender.DebugString(), " view ", header.view, " request ",
                   header.request, " step ", header.step, " group ", header.group);
  if (header.first_step != header.step && header.kind == FrameKind::kPush) {
    absl::StrAppend(&out, " first_step ", header.first_step);
  }
  if (header.flags != 0) absl::StrAppend(&out, " flags ", header.flags);
  if (header.samples != 0) absl::StrAppend(&out, " samples ", header.samples);
  constexpr uint32_t kMax = 8;  // entries; a frame may have a million
  for (uint32_t i = 0; i < std::min(entry_count, kMax); ++i) {
    const SliceEntry e = Entry(i);
    absl::StrAppend(&out, "\n  range ", e.range, " rows ", e.rows, " version ", e.version,
                    " clock ", e.clock, " status ", static_cast<int>(e.status));
  }
  if (entry_count > kMax) absl::StrAppend(&out, "\n  and ", entry_count - kMax, " more");
  return out;
}

Frame EncodeDataFrame(BufferSource& source, const FrameHeader& header,
                      absl::Span<const SliceEntry> entries, Buffer keys, Buffer values) {
  Buffer part0 = source.Alloc(kFrameHeaderBytes + entries.size() * kSliceEntryBytes);
  uint8_t* at = part0.mutable_data();
  StoreHeader(header, 0, static_cast<uint32_t>(entries.size()), at);
  at += kFrameHeaderBytes;
  for (const SliceEntry& e : entries) {
    Store<uint32_t>(at, e.range);
    Store<uint32_t>(at + 4, e.rows);
    Store<int64_t>(at + 8, e.version);
    Store<int64_t>(at + 16, e.clock);
    Store<uint16_t>(at + 24, static_cast<uint16_t>(e.status));
    Store<uint16_t>(at + 26, 0);
    Store<uint32_t>(at + 28, e.row_floats);
    at += kSliceEntryBytes;
  }
  return Assemble(std::move(part0), std::move(keys), std::move(values));
}

Frame EncodeControlFrame(BufferSource& source, FrameHeader header, const Control& control,
                         Buffer values) {
  header.kind = FrameKind::kControl;
  const size_t bytes = control.ByteSizeLong();
  Buffer part0 = source.Alloc(kFrameHeaderBytes + bytes);
  StoreHeader(header, 0, static_cast<uint32_t>(bytes), part0.mutable_data());
  TANDEM_CHECK(
      control.SerializeToArray(part0.mutable_data() + kFrameHeaderBytes, static_cast<int>(bytes)));
  return Assemble(std::move(part0), Buffer(), std::move(values));
}

// Checks everything in a frame that its sender chooses, each check before the first use of what it
// guards:
//   1. the sizes of the parts, and that part 0 has a header: no byte is read before.
//   2. magic, then version, then checksum: a stranger's bytes get an error about the magic number,
//      and a frame of another build one about the version. Only a frame of this version has its
//      checksum where we look for it. The rest of part 0 is not used before the checksum has been
//      verified.
//   3. kind and number of parts, which say what the rest means.
//   4. the number of entries against the length of part 0, before they are read.
//   5. the rows of all entries, added up in 64 bits and bounded at each entry so that the sum
//      cannot overflow, against the lengths of parts 1 and 2. After that, slices can be cut out of
//      the parts without further checks.
// CONTROL frames end after 4: their parser checks the message. The last check, of the alignment, is
// about the transport that received the parts.
absl::StatusOr<ParsedFrame> DecodeFrame(Frame frame) {
  if (frame.parts < 1 || frame.parts > kMaxFrameParts) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame of ", frame.parts, " parts, expected 1 to ", kMaxFrameParts));
  }
  for (int i = 0; i < frame.parts; ++i) {
    if (frame.part[i].size() > kMaxPartBytes) {
      return absl::OutOfRangeError(absl::StrCat("frame part ", i, " of ", frame.part[i].size(),
                                                " bytes, at most ", kMaxPartBytes));
    }
  }
  const absl::Span<const uint8_t> part0(frame.part[0].data(), frame.part[0].size());
  if (part0.size() < kFrameHeaderBytes) {
    return absl::OutOfRangeError(
        absl::StrCat("frame header: have ", part0.size(), " bytes, need ", kFrameHeaderBytes));
  }
  const uint8_t* const at = part0.data();
  if (const uint32_t magic = Load<uint32_t>(at); magic != kFrameMagic) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "frame magic %#x, expected %#x: is the peer a Tandem program?", magic, kFrameMagic));
  }
  if (at[kOffVersion] != kFrameVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("frame version ", at[kOffVersion], ", this build speaks ", kFrameVersion));
  }
  if (const uint64_t want = Checksum(part0), have = Load<uint64_t>(at + kOffChecksum);
      want != have) {
    return absl::DataLossError(
        absl::StrFormat("frame checksum %#x, computed %#x: damaged in transit", have, want));
  }
  if (!KnownKind(at[kOffKind])) {
    return absl::InvalidArgumentError(absl::StrCat("frame kind ", at[kOffKind], " is unknown"));
  }
  if (at[kOffParts] != frame.parts) {
    return absl::InvalidArgumentError(
        absl::StrCat("frame of ", frame.parts, " parts, its header says ", at[kOffParts]));
  }

  ParsedFrame parsed;
  FrameHeader& h = parsed.header;
  h.kind = static_cast<FrameKind>(at[kOffKind]);
  h.flags = at[kOffFlags];
  h.sender = EndpointId::Unpack(Load<uint32_t>(at + kOffSender));
  h.view = Load<uint32_t>(at + kOffView);
  h.incarnation = Load<uint64_t>(at + kOffIncarnation);
  h.request = Load<uint64_t>(at + kOffRequest);
  h.first_step = Load<int64_t>(at + kOffFirstStep);
  h.step = Load<int64_t>(at + kOffStep);
  h.group = Load<uint32_t>(at + kOffGroup);
  h.samples = Load<uint64_t>(at + kOffSamples);
  h.clock_gap = Load<int32_t>(at + kOffClockGap);
  h.in_flight = Load<int32_t>(at + kOffInFlight);
  h.sample_clock = Load<int64_t>(at + kOffSampleClock);
  h.positives = Load<uint64_t>(at + kOffPositives);

  const uint32_t count = Load<uint32_t>(at + kOffCount);
  parsed.body = part0.subspan(kFrameHeaderBytes);
  if (h.kind == FrameKind::kControl) {
    if (count != parsed.body.size() || count > kMaxControlBytes) {
      return absl::InvalidArgumentError(absl::StrCat("control frame says ", count,
                                                     " bytes of metadata, has ", parsed.body.size(),
                                                     ", at most ", kMaxControlBytes));
    }
    parsed.frame = std::move(frame);
    return parsed;
  }
  if (count > kMaxEntries || size_t{count} * kSliceEntryBytes != parsed.body.size()) {
    return absl::InvalidArgumentError(absl::StrCat("frame says ", count, " entries (at most ",
                                                   kMaxEntries, "), has ", parsed.body.size(),
                                                   " bytes of them"));
  }
  parsed.entry_count = count;
  parsed.frame = std::move(frame);
  uint64_t key_bytes = 0, value_bytes = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const SliceEntry e = parsed.Entry(i);
    key_bytes += uint64_t{e.rows} * sizeof(uint64_t);
    value_bytes += uint64_t{e.rows} * e.row_floats * sizeof(float);
    if (key_bytes > kMaxPartBytes || value_bytes > kMaxPartBytes) {
      return absl::OutOfRangeError(absl::StrCat("frame entry ", i, ": slices add up to ", key_bytes,
                                                " bytes of keys and ", value_bytes,
                                                " of values, at most ", kMaxPartBytes));
    }
  }
  if (SlicesHaveKeys(h.kind) && key_bytes != parsed.keys().size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "frame slices need ", key_bytes, " bytes of keys, the part has ", parsed.keys().size()));
  }
  if (SlicesHaveValues(h.kind) && value_bytes != parsed.values().size()) {
    return absl::InvalidArgumentError(absl::StrCat("frame slices need ", value_bytes,
                                                   " bytes of values, the part has ",
                                                   parsed.values().size()));
  }
  for (int i = 1; i < parsed.frame.parts; ++i) {
    if (reinterpret_cast<uintptr_t>(parsed.frame.part[i].data()) % 8 != 0) {
      return absl::InternalError(absl::StrCat("frame part ", i, " is not aligned to 8 bytes"));
    }
  }
  return parsed;
}

}  // namespace tandem
