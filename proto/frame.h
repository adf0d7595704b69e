// This folder, proto/, defines everything that nodes send to each other, and the job file. A frame
// is one message between nodes. proto/frame.md has the byte offsets and a worked example. This file
// is the only encoder and the only decoder; every transport uses it.
//
// A frame has one to four parts:
//
//   part 0  header, then the entries (data frames) or a serialised Control message (CONTROL)
//   part 1  keys    (uint64, little-endian; may be empty)
//   part 2  values  (float32 for rows and gradients; raw bytes otherwise; may be empty)
//   part 3  reserved
//
// Parts 1 and 2 are raw: this file never copies or re-encodes them.
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
inline constexpr uint8_t kFrameVersion = 2;
inline constexpr int kMaxFrameParts = 4;

// Bounds on values that a peer chooses. A frame beyond them is refused before anything is
// allocated.
inline constexpr uint32_t kMaxEntries = 1 << 20;
inline constexpr size_t kMaxPartBytes = size_t{1} << 31;
inline constexpr size_t kMaxControlBytes = size_t{64} << 20;

// Numbers are never reused.
enum class FrameKind : uint8_t {
  kPull = 1,     // worker or reader -> shard: read the rows of `keys` for a step
  kRows = 2,     // shard -> reader of rows: the rows, in the order of the keys
  kPush = 3,     // worker -> shard: gradient sums of a step; also the clock message
  kAck = 4,      // shard -> worker: each slice is held or applied, or refused
  kWaiting = 5,  // shard -> worker: a read waits for a worker's step (one entry, see frame.md)
  kSegment = 6,  // worker -> worker: a piece of a byte stream between ranks
  // worker or reader -> shard: read or write rows of a KEY_VALUE table (StoreAction)
  kStore = 7,
  kStored = 8,    // shard -> sender of the STORE: the keys that existed, and rows
  kRefresh = 9,   // shard -> worker: rows that the worker keeps, as they are now (frame.md)
  kControl = 16,  // a Control message
  kPing = 32,     // transport only: is the connection alive?
  kGoodbye = 33,  // transport only: orderly close
};

enum FrameFlags : uint8_t {
  kFlagEvaluate = 1,    // PULL: read the latest rows, move no clock
  kFlagAssign = 2,      // PUSH: the values are rows, not gradients; only before step 0
  kFlagWithSlots = 4,   // with ASSIGN: each row is followed by its optimizer slots
  kFlagEndOfEpoch = 8,  // PUSH: this worker's clock counts as infinite until its next push
  kFlagKeep = 16,       // PULL: the worker keeps these rows and wants their changes
  kFlagMore = 32,       // REFRESH: another frame of the same refresh follows
  // PUSH without rows and samples: the worker has skipped the batch of this step, which is not the
  // end of its data.
  kFlagSkipped = 64,
};

// A refresh does not cover rows that its receiver has pushed in the last `kRefreshLag` of its own
// steps. The receiver uses such rows at every step, and reads them itself meanwhile.
inline constexpr int64_t kRefreshLag = 1;
inline constexpr size_t kRefreshFrameBytes = size_t{1} << 20;  // bytes of rows in a REFRESH

// The action that a STORE frame asks for, in its `flags`.
enum class StoreAction : uint8_t {
  kRead = 1,    // the rows of `keys` that exist
  kScan = 2,    // rows one after the other, from the cursor in each entry's `clock`
  kAssign = 3,  // each row of `keys` becomes the row in `values`
  kInsert = 4,  // the same, but existing rows stay as they are
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
inline constexpr uint32_t kMaxStoreRows = 4096;  // keys in a slice of a STORE frame

// A shard's answer for one slice.
enum class SliceStatus : uint16_t {
  kOk = 0,
  kWrongView = 1,   // the shard is not the owner (any more, or not yet): ask the owner
  kRefused = 2,     // malformed or against the protocol; the sender is wrong
  kOverBudget = 3,  // held updates would exceed their budget
  kDropped = 4,     // ACK: admitted, but its step had closed; `version` is the open step
};

// The fixed part of every frame.
struct FrameHeader {
  FrameKind kind = FrameKind::kControl;
  uint8_t flags = 0;
  EndpointId sender;
  uint32_t view = 0;         // the newest view that the sender knows
  uint64_t incarnation = 0;  // number of the sender's process
  // Chosen by the sender of a request and repeated in the answer. SEGMENT: offset in the stream.
  // REFRESH: number of the refresh frame of the range for this worker, from 1.
  uint64_t request = 0;
  // PUSH: covers steps [first_step, step]; below `step` only if the push is empty. ROWS, ACK,
  // REFRESH: the shard's minimum clock over its ranges of the group. SEGMENT: bytes of the other
  // direction that have been read.
  int64_t first_step = 0;
  // PULL: the step that the read is for. REFRESH: applied steps of the receiving worker. SEGMENT:
  // bytes of the other direction that have arrived.
  int64_t step = 0;
  uint32_t group = 0;  // policy group; SEGMENT: collective group
  // PUSH: n of the gradient sums. ROWS: sum of n of the last closed step. STORE with SCAN: about
  // how many rows are requested from each range. REFRESH: the view by which the range came to its
  // shard. SEGMENT: see frame.md.
  uint64_t samples = 0;
  int32_t clock_gap = 0;     // PUSH: the worker's clock gap when the step started
  int32_t in_flight = 0;     // PUSH: batches started and not yet applied, this one included
  int64_t sample_clock = 0;  // PUSH: the job's progress at the step (policies::Update)
  uint64_t positives = 0;    // PUSH: samples with label 1; 2^64 - 1: the worker does not know

  friend bool operator==(const FrameHeader&, const FrameHeader&) = default;
};

// One slice of a data frame: the keys (and values) of one range, in frame order.
struct SliceEntry {
  uint32_t range = 0;
  uint32_t rows = 0;  // keys of this slice
  // ROWS, REFRESH: version read. PUSH: version of the gradient. ACK: version now. STORE: the number
  // of a write, which its writer counts for this range.
  int64_t version = 0;
  // ROWS, ACK: smallest applied clock at the range, of live workers. REFRESH, and ROWS of a PULL
  // with KEEP: of all workers. SCAN: the cursor, and in the answer the next cursor (0: there are no
  // more rows).
  int64_t clock = 0;
  SliceStatus status = SliceStatus::kOk;  // ROWS, ACK
  uint32_t row_floats = 0;  // words of 4 bytes per row of the values part; 0: no values

  friend bool operator==(const SliceEntry&, const SliceEntry&) = default;
};

// A frame as parts. Copies are cheap, because they share the buffers.
struct Frame {
  int parts = 0;
  Buffer part[kMaxFrameParts];

  size_t TotalBytes() const;
};

inline constexpr size_t kFrameHeaderBytes =
    4 + 1 + 1 + 1 + 1 + 4 + 4 + 8 + 8 + 8 + 8 + 4 + 4 + 8 + 4 + 4 + 8 + 8 + 8;  // 96
inline constexpr size_t kSliceEntryBytes = 4 + 4 + 8 + 8 + 2 + 2 + 4;           // 32

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

// Checks everything that a peer chooses: magic, version, kind, number of parts, checksum of part 0,
// number of entries. Also checks that the slices add up to the keys part (8 bytes per key) and, for
// kinds with values, to the values part (row_floats * 4 bytes per row). Afterwards callers can walk
// through the slices without checks.
absl::StatusOr<ParsedFrame> DecodeFrame(Frame frame);

}  // namespace tandem

#endif  // TANDEM_PROTO_FRAME_H_
