#include "client/client_request.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "optim/dim_dispatch.h"

namespace tandem::client {
namespace {

constexpr uint32_t kScatterAhead = 16;  // rows whose memory is prefetched before they are copied

// rows[source[i]] = packed[place(i)].
template <typename Place>
void ScatterRows(const float* packed, Place place, const uint32_t* source, uint32_t count,
                 size_t width, float* rows) {
  optim::DispatchDim(static_cast<int>(width), [&](auto dim) {
    const size_t n = static_cast<size_t>(dim);
    for (uint32_t i = 0; i < count; ++i) {
      __builtin_prefetch(rows + source[std::min(i + kScatterAhead, count - 1)] * n, 1);
      std::memcpy(rows + source[i] * n, packed + place(i) * n, n * sizeof(float));
    }
  });
}

}  // namespace

void ClientRequest::CopyRows(const Slice& slice, const float* values) const {
  const uint32_t* const from = source.data() + slice.source_offset;
  const size_t width = row_floats[slice.input];
  float* const to = rows[slice.input].data();
  if (slice.repeats()) {
    const uint32_t* const places = place.data() + slice.source_offset;
    ScatterRows(
        values, [places](uint32_t i) { return size_t{places[i]}; }, from, slice.occurrences, width,
        to);
  } else {
    ScatterRows(
        values, [](uint32_t i) { return size_t{i}; }, from, slice.rows, width, to);
  }
}

void ClientRequest::PlaceRows() {
  size_t first = 0;
  const float* next_cached = cached_rows.As<float>().data();
  for (size_t i = 0; i < kept_rows.size(); ++i) {
    const size_t count = keys[i].keys.size();
    if (!asks_cache) {
      FindPlaces(first, count, row_floats[i], range_rows.data(), kept_rows[i]->Places(count));
    } else {
      CachedInput& input = cached[i];
      const float** const at = kept_rows[i]->Places(count + input.cached_at.size());
      input.located.resize(count);
      FindPlaces(first, count, row_floats[i], range_rows.data(), input.located.data());
      for (size_t k = 0; k < count; ++k) at[input.missing_at[k]] = input.located[k];
      if (!input.cached_at.empty()) kept_rows[i]->Keep(cached_rows);
      for (const uint32_t k : input.cached_at) {
        at[k] = next_cached;
        next_cached += row_floats[i];
      }
    }
    first += count;
  }
}

Activity ClientRequest::Waiting(absl::Time now) const {
  Activity out;
  out.text = absl::StrCat(push ? "push" : "pull", " of step ", header.step, " since ",
                          absl::ToInt64Seconds(now - started), " s");
  // Requests are in flight nearly always. Waiting begins after a second without an answer.
  const bool waits = now - started >= absl::Seconds(1);
  for (const Flight& flight : flights) {
    if (flight.answered) continue;
    const bool parked = !flight.waiting.text.empty();
    absl::StrAppend(&out.text, "; ", flight.to.DebugString(), " ",
                    parked ? flight.waiting.text : "is waited for");
    if (!waits || out.waits_for.role != Role::kNone) continue;
    out.waits_for = parked ? flight.waiting.waits_for : flight.to;
  }
  return out;
}

void ClientRequest::Clear() {
  keys.clear();
  rows.clear();
  kept_rows.clear();
  row_floats.clear();
  asks_cache = false;
  cached_rows = Buffer();
  cached_versions.clear();
  slices.clear();
  packed_keys = Buffer();
  packed_values = Buffer();
  flights.clear();
  flight_slices.clear();
}

}  // namespace tandem::client
