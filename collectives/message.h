// MessageHeader: the header of every message between two engines (engine.h). With it both ranks
// check that they are in the same operation.
//
// Thread safety: pure functions over values.
#ifndef TANDEM_COLLECTIVES_MESSAGE_H_
#define TANDEM_COLLECTIVES_MESSAGE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "collectives/schedules/algorithms.h"
#include "collectives/types.h"

namespace tandem::collectives {

inline constexpr uint32_t kMessageMagic = 0x314c4354;  // "TCL1"

// The header as it lies in memory (little-endian machines only, as in frames). The size is 64
// bytes, so that the data behind the header keep their place within a cache line.
struct MessageHeader {
  uint32_t magic = kMessageMagic;
  Primitive primitive = Primitive::kAllReduce;
  Algorithm algorithm = Algorithm::kRing;
  DataType type = DataType::kF32;
  ReduceOp op = ReduceOp::kSum;
  // Number of the collective in its group; point to point: number of the message between the two
  // ranks.
  uint64_t number = 0;
  int64_t count = 0;   // elements of the call; point to point: of the message
  uint64_t bytes = 0;  // size of this message, after the header
  int32_t root = 0;
  ElementName called = ElementName::kAsType;
  uint8_t unused[27] = {};
};
static_assert(sizeof(MessageHeader) == 64);

inline absl::Span<const uint8_t> BytesOf(const MessageHeader& header) {
  return {reinterpret_cast<const uint8_t*>(&header), sizeof(header)};
}

// Checks that the message that begins with `bytes` (at least a header), from rank `from`, is the
// message that `rank` expects. DATA_LOSS: the bytes are not a message. INVALID_ARGUMENT: the
// message belongs to another operation or has another size; the text names both ranks and the
// difference.
absl::Status CheckMessage(int rank, const MessageHeader& expected, int from,
                          absl::Span<const uint8_t> bytes);

}  // namespace tandem::collectives

#endif  // TANDEM_COLLECTIVES_MESSAGE_H_
