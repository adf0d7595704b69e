// Frames: everything nodes say to each other. proto/frame.md has the byte offsets and a worked
// example; this file is the one encoder and the one decoder, used by every transport.
//
// A frame has one to four parts:
//   part 0  header, then the entries (data frames) or a serialised Control message (CONTROL)
//   part 1  keys    (uint64, little-endian; may be empty)
//   part 2  values  (float32 for rows and gradients; raw bytes otherwise; may be empty)
//   part 3  reserved
// Parts 1 and 2 are raw: never copied or re-encoded by this file.
#ifndef TANDEM_PROTO_FRAME_H_
#define TANDEM_PROTO_FRAME_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "proto/endpoint.h"
#include "proto/wire.pb.h"

namespace tandem {

inline constexpr uint32_t kFrameMagic = 0x4d444e54;  // "TNDM" little-endian
inline constexpr uint8_t kFrameVersion = 1;
inline constexpr int kMaxFrameParts = 4;

// Bounds on what a peer can choose; a frame beyond them is refused before anything is allocated.
inline constexpr uint32_t kMaxEntries = 1 << 20;
inline constexpr size_t kMaxPartBytes = size_t{1} << 31;
inline constexpr size_t kMaxControlBytes = size_t{64} << 20;

// Numbers are never reused.
enum class FrameKind : uint8_t {
  kPull = 1,      // worker or reader -> shard: read the rows of `keys` for a step
  kRows = 2,      // shard -> asker: the rows, in the order of the keys
  kPush = 3,      // worker -> shard: gradient sums of a step; also the clock message
  kAck = 4,       // shard -> worker: each slice is held or applied, or refused
  kWaiting = 5,   // shard -> worker: a read waits for a worker's step (one entry, see frame.md)
  kSegment = 6,   // worker -> worker: a piece of a stream of bytes between ranks
  kStore = 7,     // worker or reader -> shard: read or write rows of a STORE table (StoreAction)
  kStored = 8,    // shard -> asker: which rows there were, and rows
  kRefresh = 9,   // shard -> worker: rows that it keeps, as they are now (frame.md)
  kControl = 16,  // a Control message
  kPing = 32,     // transport only: is the connection alive?
  kGoodbye = 33,  // transport only: orderly close
};

enum FrameFlags : uint8_t {
  kFlagEvaluate = 1,    // PULL: read the latest rows, create none, move no clock
  kFlagAssign = 2,      // PUSH: the values are rows, not gradients; before step 0 only
  kFlagWithSlots = 4,   // PULL, ROWS, ASSIGN: each row is followed by its optimizer slots
  kFlagEndOfEpoch = 8,  // PUSH: this worker's clock counts as infinite until its next push
  kFlagKeep = 16,       // PULL: the worker keeps these rows, and wants to be told of their changes
  kFlagMore = 32,       // REFRESH: another frame of the same refresh follows
};

// A refresh says nothing of the rows that its receiver has pushed in the last `kRefreshLag` of its own
// steps: those are rows that it uses at every step, and reads by itself meanwhile.
inline constexpr int64_t kRefreshLag = 1;
inline constexpr size_t kRefreshFrameBytes = size_t{1} << 20;  // of rows in a frame of a refresh

// What a STORE frame asks for; its `flags`.
enum class StoreAction : uint8_t {
  kRead = 1,    // the rows of `keys` that are there
  kScan = 2,    // rows one after the other, from the cursor in each entry's `clock` on
  kAssign = 3,  // each row of `keys` becomes that of `values`
  kInsert = 4,  // the same, but a row that is there stays as it is
  kErase = 5,
};
inline bool IsStoreAction(uint8_t flags) {
  return flags >= static_cast<uint8_t>(StoreAction::kRead) &&
         flags <= static_cast<uint8_t>(StoreAction::kErase);
}
inline bool IsStoreWrite(StoreAction action) { return action >= StoreAction::kAssign; }
inline bool HasStoreValues(StoreAction action) {
  return action == StoreAction::kAssign || action == StoreAction::kInsert;
}
inline constexpr uint32_t kMaxStoreRows = 4096;  // keys of a slice of a STORE frame

// What a shard says of one range slice.
enum class SliceStatus : uint16_t {
  kOk = 0,
  kWrongView = 1,   // not the owner (any more, or not yet): ask again, elsewhere
  kRefused = 2,     // malformed or against the protocol; the sender is at fault
  kOverBudget = 3,  // held updates would pass their budget
  kDropped = 4,     // ACK: admitted, but its step had closed; `version` is the step open now
};

// Fixed part of every frame.
struct FrameHeader {
  FrameKind kind = FrameKind::kControl;
  uint8_t flags = 0;
  EndpointId sender;
  uint32_t view = 0;         // the newest view the sender knows
  uint64_t incarnation = 0;  // of the sender's process
  uint64_t request = 0;    // chosen by the asker, echoed in answers; SEGMENT: offset in the stream;
                           // REFRESH: its place among those of the range for this worker, from 1
  int64_t first_step = 0;  // PUSH: covers steps [first_step, step]; < step only when empty;
                           // ROWS, ACK, REFRESH: the shard's minimum clock over its ranges of the
                           // group;
                           // SEGMENT: bytes of the other direction that have been read
  int64_t step = 0;        // PULL: the step the read is for;
                           // REFRESH: applied steps of the worker that it is sent to;
                           // SEGMENT: bytes of the other direction that have arrived
  uint32_t group = 0;      // policy group; SEGMENT: collective group
  uint64_t samples = 0;    // PUSH: n of the gradient sums; ROWS: sum of n of the last closed step;
                           // STORE, SCAN: about how many rows are wanted of each range;
                           // REFRESH: the view by which the range came to its shard
                           // SEGMENT: as frame.md says
  int32_t clock_gap = 0;   // PUSH: the worker's clock gap when the step started
  int32_t in_flight = 0;   // PUSH: batches started and not yet applied, this one included

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

// One slice of a data frame: the keys (and values) of one range, in frame order.
struct SliceEntry {
  uint32_t range = 0;
  uint32_t rows = 0;    // keys of this slice
  int64_t version = 0;  // ROWS, REFRESH: version read; PUSH: that of the gradient; ACK: now;
                        // STORE: the number of a write, counted by its writer at this range
  int64_t clock = 0;    // ROWS, ACK, REFRESH: smallest applied clock there, of live workers;
                        // SCAN: cursor, and in the answer the next one (0: there is no more)
  SliceStatus status = SliceStatus::kOk;  // ROWS, ACK
  uint32_t row_floats = 0;  // values per row in the values part; 0 if the slice has no values

  friend bool operator==(const SliceEntry&, const SliceEntry&) = default;
};

// A frame on its way: parts only. Cheap to copy (references).
struct Frame {
  int parts = 0;
  Buffer part[kMaxFrameParts];

  size_t TotalBytes() const;
};

inline constexpr size_t kFrameHeaderBytes =
    4 + 1 + 1 + 1 + 1 + 4 + 4 + 8 + 8 + 8 + 8 + 4 + 4 + 8 + 4 + 4 + 8;  // 80
inline constexpr size_t kSliceEntryBytes = 4 + 4 + 8 + 8 + 2 + 2 + 4;   // 32

// A decoded frame. `keys` and `values` refer to the frame's buffers.
struct ParsedFrame {
  FrameHeader header;
  Frame frame;                     // keeps the bytes alive
  absl::Span<const uint8_t> body;  // entries or Control bytes, inside part 0
  uint32_t entry_count = 0;        // data frames

  SliceEntry Entry(uint32_t i) const;
  const Buffer& keys() const { return frame.part[1]; }
  const Buffer& values() const { return frame.part[2]; }
  // Requires kind == kControl. Returns INVALID_ARGUMENT if the bytes are not a Control message.
  absl::StatusOr<Control> ParseControl() const;
  std::string DebugString() const;
};

// Builds frames. Part 0 comes from `source`; keys and values are taken by reference.
Frame EncodeDataFrame(BufferSource& source, const FrameHeader& header,
                      absl::Span<const SliceEntry> entries, Buffer keys, Buffer values);
Frame EncodeControlFrame(BufferSource& source, FrameHeader header, const Control& control,
                         Buffer values = Buffer());

// Checks everything a peer can choose: magic, version, kind, part count, checksum of part 0, entry
// count; that the slices add up to the keys part (8 bytes a key) and, for kinds with values, to the
// values part (row_floats * 4 bytes a row). After this the slices can be walked without checks.
absl::StatusOr<ParsedFrame> DecodeFrame(Frame frame);

}  // namespace tandem

#endif  // TANDEM_PROTO_FRAME_H_
