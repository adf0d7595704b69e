#include "server/checkpoint/range_copy.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace tandem::server {
namespace {

// How many copies are prefetched. In order of position, the copies are at random places in memory.
constexpr size_t kAhead = 16;

// Bytes to reserve for parts of a file that are not rows. Longer parts cost time and memory.
constexpr size_t kReserved = 4096;

int Bits(uint64_t value) { return static_cast<int>(std::bit_width(value)); }

// The numbers of the copies in order of position. Positions are hashes, evenly spread over the
// range. So the first bits of a position nearly give its place. std::sort does the rest, and makes
// any other set of positions only slower.
std::vector<uint32_t> SortByPosition(const CopyList& rows, uint64_t salt, uint64_t begin,
                                     uint64_t end) {
  const auto count = static_cast<uint32_t>(rows.size());
  const uint64_t last = end - begin - 1;  // the last position minus `begin`
  const int shift = std::max(0, Bits(last) - Bits(count | 1));
  const auto bucket = [&](uint64_t position) {
    return position < begin ? uint64_t{0} : std::min(position - begin, last) >> shift;
  };
  std::vector<uint32_t> ends((last >> shift) + 1);  // first the counts of the buckets
  for (uint32_t i = 0; i < count; ++i) ++ends[bucket(Position(salt, rows.key(i)))];
  uint32_t sum = 0;
  for (uint32_t& end_of : ends) end_of = std::exchange(sum, sum + end_of);  // now their begins
  struct Place {
    uint64_t position;
    uint32_t copy;
  };
  const std::unique_ptr<Place[]> places(new Place[count]);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t position = Position(salt, rows.key(i));
    places[ends[bucket(position)]++] = {position, i};
  }
  uint32_t first = 0;
  for (const uint32_t end_of : ends) {
    std::sort(places.get() + first, places.get() + end_of,
              [](const Place& a, const Place& b) { return a.position < b.position; });
    first = end_of;
  }
  std::vector<uint32_t> order(count);
  for (uint32_t i = 0; i < count; ++i) order[i] = places[i].copy;
  return order;
}

// Calls encode(floats of the copy from `first` on) for each copy, in order. `count`: how many of
// these it reads.
template <typename Encode>
void ForEachCopy(const CopyList& rows, const std::vector<uint32_t>& order, size_t first,
                 size_t count, Encode encode) {
  for (size_t i = 0; i < order.size(); ++i) {
    if (i + kAhead < order.size()) {
      const float* const ahead = rows.row(order[i + kAhead]) + first;
      __builtin_prefetch(ahead);
      __builtin_prefetch(ahead + count - 1);
    }
    encode(rows.row(order[i]) + first);
  }
}

// Encodes floats [first, first + count) of each copy.
void EncodeFloats(const CopyList& rows, const std::vector<uint32_t>& order, Table::Dtype type,
                  size_t first, size_t count, RangeEncoder* encoder) {
  if (count == 0) return;
  ForEachCopy(rows, order, first, count, [&](const float* values) {
    encoder->Floats(type, {values, count});
  });
}

optim::RowHead HeadOf(const float* copied) {
  optim::RowHead head;
  std::memcpy(static_cast<void*>(&head), copied, sizeof head);
  return head;
}

// Encodes the weights of the hot rows if `hot`, else those of the others.
void EncodeWeights(const CopyList& rows, const std::vector<uint32_t>& order,
                   const RangeImage& image, bool hot, RangeEncoder* encoder) {
  const auto dim = static_cast<size_t>(image.dim);
  if (!image.types.has_heads()) return EncodeFloats(rows, order, image.types.row, 0, dim, encoder);
  const size_t head_at = dim + static_cast<size_t>(image.slots_per_row);
  ForEachCopy(rows, order, 0, head_at + 1, [&](const float* row) {
    const optim::RowHead head = HeadOf(row + head_at);
    if (head.hot() == hot) encoder->Weights(image.types, head, {row, dim});
  });
}

void EncodeKeys(const CopyList& rows, const std::vector<uint32_t>& order, RangeEncoder* encoder) {
  for (const uint32_t i : order) {
    const uint64_t key = rows.key(i);
    encoder->Bytes(&key, sizeof key);
  }
}

void EncodeCandidates(const CopyList& candidates, const std::vector<uint32_t>& order,
                      RangeEncoder* encoder) {
  for (const uint32_t i : order) {
    const Candidate candidate = RowCopies::CandidateOf(candidates, i);
    encoder->Bytes(&candidate, sizeof candidate);
  }
}

}  // namespace

// Layout of `held`: u64 samples of the last closed step; u64 length of the held updates in bytes;
// the held updates; the data that the policy has asked to be remembered. Among these are the mean
// squares: u64 count, the keys, the values.
absl::Status RangeCopy::Encode(ByteSink sink) && {
  const RowCopies all = std::exchange(rows, RowCopies());
  const CopyList& copies = all.rows();
  const std::vector<uint32_t> order = SortByPosition(copies, salt, head.begin, head.end);
  for (size_t i = 0; !in_batches && i < open.size(); ++i) open[i].SortByRank();
  const std::vector<uint32_t> candidates =
      SortByPosition(all.candidates(), salt, head.begin, head.end);
  const std::string updates = EncodeHeld(open, delayed, in_batches);
  open.Clear();
  delayed.Clear();
  const size_t dim = static_cast<size_t>(head.dim);
  const size_t slots = static_cast<size_t>(head.slots_per_row);
  const size_t numbers = static_cast<size_t>(head.numbers_per_row);
  const uint64_t lengths[] = {last_samples, updates.size()};
  const uint64_t count = order.size();
  const uint64_t squares_bytes =
      has_squares ? sizeof count + count * (sizeof(uint64_t) + dim * sizeof(float)) : 0;
  const uint64_t held_bytes =
      sizeof lengths + updates.size() + memory_before.size() + squares_bytes + memory_after.size();
  const bool has_heads = head.types.has_heads();
  uint64_t hot_rows = 0;
  for (size_t i = 0; has_heads && i < order.size(); ++i) {
    hot_rows += HeadOf(copies.row(order[i]) + dim + slots).hot() ? 1 : 0;
  }
  RangeEncoder encoder(head, {count, hot_rows, candidates.size(), held_bytes}, std::move(sink));
  EncodeKeys(copies, order, &encoder);
  encoder.EndSection();
  if (has_heads) {
    ForEachCopy(copies, order, dim + slots, 1,
                [&encoder](const float* copied) { encoder.Bytes(copied, sizeof(optim::RowHead)); });
    encoder.EndSection();
  }
  EncodeWeights(copies, order, head, /*hot=*/false, &encoder);
  encoder.EndSection();
  if (has_heads) {
    EncodeWeights(copies, order, head, /*hot=*/true, &encoder);
    encoder.EndSection();
  }
  EncodeFloats(copies, order, head.types.state, dim, slots - numbers, &encoder);
  encoder.EndSection();
  EncodeFloats(copies, order, Table::F32, dim + slots - numbers, numbers, &encoder);
  encoder.EndSection();
  if (head.limited) {
    const size_t age_at = dim + slots + (has_heads ? 1 : 0);
    EncodeFloats(copies, order, Table::F32, age_at, 1, &encoder);
    encoder.EndSection();
    EncodeCandidates(all.candidates(), candidates, &encoder);
    encoder.EndSection();
  }
  encoder.Bytes(lengths, sizeof lengths);
  encoder.Bytes(updates.data(), updates.size());
  encoder.Bytes(memory_before.data(), memory_before.size());
  if (has_squares) {
    encoder.Bytes(&count, sizeof count);
    EncodeKeys(copies, order, &encoder);
    EncodeFloats(copies, order, Table::F32, copies.floats() - dim, dim, &encoder);
  }
  encoder.Bytes(memory_after.data(), memory_after.size());
  encoder.EndSection();
  return encoder.Finish();
}

std::string RangeCopy::Encode() && {
  std::string bytes;
  bytes.reserve(rows.size() * (sizeof(uint64_t) + rows.floats() * sizeof(float)) + kReserved);
  TANDEM_CHECK_OK(std::move(*this).Encode([&bytes](absl::string_view piece) {
    absl::StrAppend(&bytes, piece);
    return absl::OkStatus();
  }));
  return bytes;
}

absl::Status DecodeQueue(const RangeImage& image, BufferSource& source, HeldQueue* delayed,
                         size_t* batches) {
  if (image.held.size() < kHeldHeadBytes) return absl::OkStatus();  // nothing was held
  const absl::string_view held = image.held;
  uint64_t bytes = 0;
  std::memcpy(&bytes, held.data() + kHeldHeadBytes - sizeof bytes, sizeof bytes);
  if (bytes > held.size() - kHeldHeadBytes) {
    return absl::DataLossError(
        absl::StrCat("held updates of ", bytes, " bytes in a part of ", held.size(), " bytes"));
  }
  HeldQueue open;
  bool in_batches = false;
  TANDEM_RETURN_IF_ERROR(DecodeHeld(held.substr(kHeldHeadBytes, bytes), image.dim, source, &open,
                                    delayed, &in_batches));
  if (in_batches) {
    if (batches != nullptr) *batches = open.size();
    while (!open.empty()) delayed->Take(&open);
  }
  // At the end of an epoch there may be open groups without contributions. An open group with
  // contributions means that the checkpoint was not taken between steps.
  for (size_t i = 0; i < open.size(); ++i) {
    if (open[i].samples == 0 && !open[i].skipped && open[i].updates.empty()) continue;
    return absl::DataLossError(absl::StrCat("contains ", open.size(),
                                            " unfinished steps, so the checkpoint was not taken at "
                                            "a step boundary; hint: use another checkpoint"));
  }
  return absl::OkStatus();
}

}  // namespace tandem::server
