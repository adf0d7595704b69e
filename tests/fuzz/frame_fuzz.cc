// Fuzzing the frame decoder: whatever a peer sends is refused or can be walked without checks.
// Input: two bytes for the size of part 0, one for that of part 1 (times 8), one with the number of
// parts (less one, low bits) and a flag (high bit), then the parts.
//
// The flag asks for the checksum to be set right (proto/frame.md says how), so that mutations reach
// what lies behind it.
#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.h"
#include "proto/frame.h"

namespace tandem {
namespace {

void Walk(const ParsedFrame& parsed) {
  TANDEM_CHECK(!parsed.DebugString().empty());
  if (parsed.header.kind == FrameKind::kControl) {
    (void)parsed.ParseControl();
    return;
  }
  size_t keys = 0, floats = 0;
  for (uint32_t i = 0; i < parsed.entry_count; ++i) {
    const SliceEntry entry = parsed.Entry(i);
    keys += entry.rows;
    floats += size_t{entry.rows} * entry.row_floats;
  }
  // Only these kinds carry rows with their entries.
  const FrameKind kind = parsed.header.kind;
  const bool has_both = kind == FrameKind::kPush || kind == FrameKind::kRefresh;
  const bool has_keys = kind == FrameKind::kPull || has_both;
  const bool has_values = kind == FrameKind::kRows || has_both;
  TANDEM_CHECK(!has_keys || keys * 8 == parsed.keys().size());
  TANDEM_CHECK(!has_values || floats * 4 == parsed.values().size());
}

void SetChecksum(Buffer* part0) {
  constexpr size_t kAt = kFrameHeaderBytes - 8;
  if (part0->size() < kFrameHeaderBytes) return;
  const uint64_t head = XXH3_64bits(part0->data(), kAt);
  const uint64_t sum = XXH3_64bits_withSeed(part0->data() + kFrameHeaderBytes,
                                            part0->size() - kFrameHeaderBytes, head);
  std::memcpy(part0->mutable_data() + kAt, &sum, sizeof(sum));
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kPrefix = 4;
  if (size < kPrefix) return 0;
  tandem::HeapBufferSource source;
  const size_t sizes[2] = {static_cast<size_t>(data[0] | data[1] << 8), size_t{data[2]} * 8};
  const size_t parts = 1 + (data[3] & 127) % tandem::kMaxFrameParts;
  tandem::Frame frame;
  frame.parts = static_cast<int>(parts);
  size_t at = kPrefix;
  for (size_t p = 0; p < parts; ++p) {
    const size_t want = p < 2 ? sizes[p] : size - at;
    const size_t take = std::min(want, size - at);
    frame.part[p] = tandem::CopyToBuffer(source, {data + at, take});
    at += take;
  }
  if ((data[3] & 128) != 0) tandem::SetChecksum(&frame.part[0]);
  const auto parsed = tandem::DecodeFrame(frame);
  if (parsed.ok()) tandem::Walk(*parsed);
  return 0;
}
