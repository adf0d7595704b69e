// ClientRequest is a pull or push in flight: its keys, cut into slices (one for each range), and
// the frames that carry the slices. ClientCore decides what is sent and when, and RequestPacker
// fills the frames. This file has the data that both share, and the code that puts arrived rows
// into place.
//
// Thread safety: none; only the thread of its ClientCore uses it.
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

// Keys of one table in a request. Their memory must stay valid until the request completes or is
// cancelled. Repeated keys travel once: a read puts the row into every place, and a push sums the
// gradients in the order in which they stand.
struct TableKeys {
  uint32_t table = 0;
  absl::Span<const uint64_t> keys;
  bool may_repeat = false;  // false promises that no key repeats, and saves the search
};

// A ClientRequest is reused after it is done, together with the memory of its members.
struct ClientRequest {
  // The keys of one range, a part of the request's packed order (by owner, then by range). A slice
  // is packed when it travels for the first time. Until then `rows` counts repeated keys, too.
  struct Slice {
    uint32_t range = 0;
    uint32_t rows = 0;
    size_t source_offset = 0;  // index of its occurrences in source and place
    uint32_t occurrences = 0;
    size_t key_offset = 0;    // index of the first key in packed_keys
    size_t float_offset = 0;  // index of the first float in packed_values
    uint32_t input = 0;       // index among the request's tables
    bool packed = false;
    bool done = false;
    bool sent = false;          // a frame in flight carries it
    absl::Time send_at;         // refused slices: earliest time to send again
    uint32_t refused_view = 0;  // the refusing shard's view
    int64_t version = 0;
    // For a push to a table of several copies: index of the slice of the worker's own copy, which
    // has the same keys and gradients in the same memory. -1: the slice has its own memory.
    int32_t same_as = -1;
    bool repeats() const { return rows < occurrences; }
  };
  struct Flight {  // one frame in flight
    uint64_t number = 0;
    EndpointId to;
    size_t first = 0, count = 0;  // its slices, as places in the request's flight_slices
    bool answered = false;
    ResendClock clock;
    Frame frame;
    Activity waiting;  // content of the shard's last WAITING; no text if it has sent none
  };

  // Splits the keys of one table of a read into keys found in the cache and keys to ask for. Places
  // are indexes into the caller's keys.
  struct CachedInput {
    std::vector<uint64_t> missing;      // keys that are not in the cache ...
    std::vector<uint32_t> missing_at;   // ... and their places
    std::vector<uint32_t> cached_at;    // places of the keys found in the cache
    std::vector<const float*> located;  // scratch
  };
  static constexpr int64_t kNoVersion = std::numeric_limits<int64_t>::max();

  absl::Span<const uint32_t> SlicesOf(const Flight& flight) const {
    return absl::MakeConstSpan(flight_slices).subspan(flight.first, flight.count);
  }
  // The range from which the rows of a push's slice were read.
  uint32_t RangeRead(const Slice& slice) const {
    return slice.same_as < 0 ? slice.range : slices[static_cast<size_t>(slice.same_as)].range;
  }
  // Copies the rows of a slice to `rows`.
  void CopyRows(const Slice& slice, const float* values) const;
  // Tells the caller where each row is, in its frame. Requires: all rows have arrived.
  void PlaceRows();
  // Computes where the row of each key of one input is, given where the rows of each range begin.
  // `first` is the number of keys of the inputs before it. Only for requests in place.
  template <typename Float>
  void FindPlaces(size_t first, size_t count, size_t width, Float* const* range_begins,
                  Float** at) const {
    const uint32_t* const in = range.data() + first;
    const uint32_t* const nth = rank.data() + first;
    for (size_t k = 0; k < count; ++k) at[k] = range_begins[in[k]] + nth[k] * width;
  }
  // Says what the request waits for, as text for people. After one second of waiting it also names
  // the endpoint that it waits for.
  Activity Waiting(absl::Time now) const;
  // Drops the contents but keeps the memory.
  void Clear();

  uint64_t id = 0;
  bool push = false;
  FrameHeader header;
  std::vector<TableKeys> keys;
  std::vector<absl::Span<float>> rows;
  std::vector<PulledRows*> kept_rows;                   // instead of `rows`
  absl::Span<const absl::Span<const float>> gradients;  // valid within Push only
  // Requests in place, whose keys never repeat: the range of each key, the key's rank among the
  // keys of that range, and where the rows of each range have arrived.
  bool in_place = false;
  std::vector<uint32_t> range, rank;
  std::vector<const float*> range_rows;
  // Reads in place that may take rows from the cache. `keys` then names only the keys that the
  // cache lacks, in CachedInput::missing.
  bool asks_cache = false;               // false: the request asks for all rows
  std::vector<CachedInput> cached;       // by input, if asks_cache; else spare memory
  Buffer cached_rows;                    // copies, in the order in which they were found
  std::vector<int64_t> cached_versions;  // by range, the oldest version; kNoVersion: no row
  // Requests that are not in place:
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
  int64_t open_step = 0;  // if a push came too late: the step open there
  absl::Time started;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_CLIENT_REQUEST_H_
