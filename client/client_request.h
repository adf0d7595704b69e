// A pull or push under way: its keys cut into slices, one a range, and the frames that carry them.
// ClientCore decides what is sent and when; RequestPacker fills it; here is what both know, and how
// rows that have arrived reach their places.
//
// Thread safety: none; it belongs to the thread of its ClientCore.
#ifndef TANDEM_CLIENT_CLIENT_REQUEST_H_
#define TANDEM_CLIENT_CLIENT_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer.h"
#include "client/pulled_rows.h"
#include "client/resend_clock.h"
#include "proto/activity.h"
#include "proto/frame.h"

namespace tandem::client {

// Keys of one table in a request; memory stays valid until the request completes or is cancelled.
// Keys that repeat travel once: a read puts the row into every place, a push sums the gradients in
// the order in which they stand.
struct TableKeys {
  uint32_t table = 0;
  absl::Span<const uint64_t> keys;
  bool may_repeat = false;  // false is a promise that none does, and saves looking for them
};

// Requests are reused when they are done, with the memory of what is in them.
struct ClientRequest {
  // The keys of one range in the request's packed order (by owner, then by range). It is packed
  // when it travels for the first time; until then `rows` counts repeated keys, too.
  struct Slice {
    uint32_t range = 0;
    uint32_t rows = 0;
    size_t source_offset = 0;  // of its occurrences in source and place
    uint32_t occurrences = 0;
    size_t key_offset = 0;    // index of the first key in packed_keys
    size_t float_offset = 0;  // index of the first float in packed_values
    uint32_t input = 0;       // index in the request's tables
    bool packed = false;
    bool done = false;
    bool sent = false;          // waits for an answer of some frame
    absl::Time send_at;         // when it is refused: not before
    uint32_t refused_view = 0;  // the refusing shard's view
    int64_t version = 0;
    // Of a push to a table of several copies: the slice of another copy that has the same keys and
    // gradients, in the same memory. -1: this one has its own.
    int32_t same_as = -1;
    bool repeats() const { return rows < occurrences; }
  };
  struct Flight {  // one frame on its way
    uint64_t number = 0;
    EndpointId to;
    size_t first = 0, count = 0;  // its slices, as places in the request's flight_slices
    bool answered = false;
    ResendClock clock;
    Frame frame;
    Activity waiting;  // what the shard's last WAITING said; no text if it has sent none
  };

  // Which of the keys that a reader has asked for come from where: places among these.
  struct CachedInput {
    std::vector<uint64_t> missing;      // keys that are not in the cache ...
    std::vector<uint32_t> missing_at;   // ... and their places
    std::vector<uint32_t> cached_at;    // places of those that are
    std::vector<const float*> located;  // scratch
  };
  static constexpr int64_t kNoVersion = std::numeric_limits<int64_t>::max();

  absl::Span<const uint32_t> SlicesOf(const Flight& flight) const {
    return absl::MakeConstSpan(flight_slices).subspan(flight.first, flight.count);
  }
  // The range that the rows of a push's slice were read from.
  uint32_t RangeRead(const Slice& slice) const {
    return slice.same_as < 0 ? slice.range : slices[static_cast<size_t>(slice.same_as)].range;
  }
  // Copies the rows of a slice to `rows`.
  void CopyRows(const Slice& slice, const float* values) const;
  // All have arrived, and stay in their frames: writes where each is.
  void PlaceRows();
  // Where the row of each key of input i is, given where the rows of each range begin; the keys of
  // inputs before it are `first`. Of a request in place.
  template <typename Float>
  void FindPlaces(size_t first, size_t count, size_t width, Float* const* range_begins,
                  Float** at) const {
    const uint32_t* const in = range.data() + first;
    const uint32_t* const nth = rank.data() + first;
    for (size_t k = 0; k < count; ++k) at[k] = range_begins[in[k]] + nth[k] * width;
  }
  // What it waits for, for people, and, once it has waited for a second, whom.
  Activity Waiting(absl::Time now) const;
  // Drops what it held, but not its memory.
  void Clear();

  uint64_t id = 0;
  bool push = false;
  FrameHeader header;
  std::vector<TableKeys> keys;
  std::vector<absl::Span<float>> rows;
  std::vector<PulledRows*> kept_rows;                   // instead of `rows`
  absl::Span<const absl::Span<const float>> gradients;  // within Push only
  // In place, and then no key repeats: of each key its range, and its place among those of it;
  // and for each range where its rows have arrived.
  bool in_place = false;
  std::vector<uint32_t> range, rank;
  std::vector<const float*> range_rows;
  // Of a read in place of whose rows some may be from the cache: `keys` are the others, of
  bool asks_cache = false;               // else it asks for all
  std::vector<CachedInput> cached;       // by input, if so; else memory for such reads
  Buffer cached_rows;                    // copies, in the order in which they were found
  std::vector<int64_t> cached_versions;  // by range, of the oldest one; kNoVersion: none
  // Otherwise:
  std::vector<uint32_t> source;         // occurrence, by range -> index among its table's keys
  std::vector<uint32_t> place;          // occurrence, by range -> row of its slice, if keys repeat
  size_t next_key = 0, next_float = 0;  // where the next slice is packed
  std::vector<uint32_t> row_floats;     // by input
  std::vector<Slice> slices;
  Buffer packed_keys, packed_values;
  std::vector<Flight> flights;  // in order of their numbers
  std::vector<uint32_t> flight_slices;
  size_t open_slices = 0;
  uint64_t closed_samples = 0;
  int64_t open_step = 0;  // of a push that came too late
  absl::Time started;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_CLIENT_REQUEST_H_
