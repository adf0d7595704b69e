#include "client/client_core.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "optim/dim_dispatch.h"
#include "policies/policy.h"

namespace tandem {
namespace {

constexpr size_t kAlignFloats = 16;      // 64 bytes, as buffers are
constexpr size_t kFrameAlignFloats = 2;  // parts of a frame begin at a multiple of 8 bytes
// Steps whose versions are remembered although nothing was pushed for them (reads without pushes).
constexpr size_t kMaxVersions = 1024;
constexpr int kMostPauses = 8;       // the longest silence between resends, in units of the first
// No worker is further behind a step that is open.
constexpr int64_t kMaxStepsLate = int64_t{1} << 32;
constexpr uint32_t kRowsAhead = 16;  // rows whose memory is asked for before they are copied

// packed[i] = rows[source[i]] for `count` rows of `width` floats.
void GatherRows(const float* rows, const uint32_t* source, uint32_t count, size_t width,
                float* packed) {
  DispatchDim(static_cast<int>(width), [&](auto dim) {
    const size_t n = static_cast<size_t>(dim);
    for (uint32_t i = 0; i < count; ++i) {
      __builtin_prefetch(rows + source[std::min(i + kRowsAhead, count - 1)] * n);
      std::memcpy(packed + i * n, rows + source[i] * n, n * sizeof(float));
    }
  });
}

// packed[place[i]] = the sum of rows[source[i]], from the first one on. Places are numbered by
// first occurrence.
void MergeRows(const float* rows, const uint32_t* source, const uint32_t* place, uint32_t count,
               size_t width, float* packed) {
  DispatchDim(static_cast<int>(width), [&](auto dim) {
    const size_t n = static_cast<size_t>(dim);
    uint32_t met = 0;
    for (uint32_t i = 0; i < count; ++i) {
      const float* const from = rows + source[i] * n;
      float* const to = packed + place[i] * n;
      if (place[i] == met) {
        std::memcpy(to, from, n * sizeof(float));
        ++met;
      } else {
        for (size_t d = 0; d < n; ++d) to[d] += from[d];
      }
    }
  });
}

// rows[source[i]] = packed[place(i)].
template <typename Place>
void ScatterRows(const float* packed, Place place, const uint32_t* source, uint32_t count,
                 size_t width, float* rows) {
  DispatchDim(static_cast<int>(width), [&](auto dim) {
    const size_t n = static_cast<size_t>(dim);
    for (uint32_t i = 0; i < count; ++i) {
      __builtin_prefetch(rows + source[std::min(i + kRowsAhead, count - 1)] * n, 1);
      std::memcpy(rows + source[i] * n, packed + place(i) * n, n * sizeof(float));
    }
  });
}

FrameHeader PullHeader(uint32_t group, int64_t step, uint8_t flags) {
  FrameHeader header;
  header.kind = FrameKind::kPull;
  header.flags = flags;
  header.group = group;
  header.step = step;
  return header;
}

// at[k] = where the row of key k is, given where the rows of each range begin.
template <typename Float>
void FindPlaces(const uint32_t* range, const uint32_t* rank, Float* const* range_rows, size_t width,
                size_t count, Float** at) {
  for (size_t k = 0; k < count; ++k) at[k] = range_rows[range[k]] + rank[k] * width;
}

}  // namespace

ClientCore::ClientCore(const JobPlan& plan, EndpointId self, uint64_t incarnation,
                       BufferSource& buffers, const Options& options)
    : plan_(plan),
      self_(self),
      incarnation_(incarnation),
      buffers_(buffers),
      options_(options),
      min_clock_(plan.groups.size(), 0),
      updates_sent_(plan.tables.size(), 0) {}

ClientCore::~ClientCore() = default;

ClientCore::PreparedPush::PreparedPush() = default;
ClientCore::PreparedPush::~PreparedPush() = default;
ClientCore::PreparedPush::PreparedPush(PreparedPush&&) noexcept = default;
ClientCore::PreparedPush& ClientCore::PreparedPush::operator=(PreparedPush&&) noexcept = default;

void ClientCore::OnView(absl::Time now, std::shared_ptr<const RangeMap> view) {
  if (map_ != nullptr && view->view() <= map_->view()) return;
  map_ = std::move(view);
  packed_ranges_.assign(plan_.groups.size(), {});
  for (uint32_t id = 0; id < map_->ranges().size(); ++id) {
    packed_ranges_[plan_.tables[map_->range(id).table].group].push_back(id);
  }
  for (std::vector<uint32_t>& ids : packed_ranges_) {
    std::stable_sort(ids.begin(), ids.end(), [this](uint32_t a, uint32_t b) {
      return map_->range(a).owner < map_->range(b).owner;
    });
  }
  range_fill_.resize(map_->ranges().size());
  for (const std::unique_ptr<Request>& request : requests_) {
    for (Slice& slice : request->slices) {
      if (!slice.done && !slice.sent && slice.refused_view <= map_->view()) slice.send_at = now;
    }
    SendOpenSlices(now, request.get());
  }
}

// ---- packing ----------------------------------------------------------------------------------

std::unique_ptr<ClientCore::Request> ClientCore::NewRequest(const FrameHeader& header, bool push,
                                                            bool in_place,
                                                            absl::Span<const TableKeys> keys,
                                                            absl::Span<const size_t> floats) {
  TANDEM_CHECK(map_ != nullptr);
  if (spare_.empty()) spare_.push_back(std::make_unique<Request>());
  std::unique_ptr<Request> request = std::move(spare_.back());
  spare_.pop_back();
  request->push = push;
  request->in_place = in_place;
  request->closed_samples = 0;
  request->open_step = 0;
  request->header = header;
  request->header.sender = self_;
  request->header.incarnation = incarnation_;
  request->keys.assign(keys.begin(), keys.end());
  for (size_t i = 0; i < keys.size(); ++i) {
    const TablePlan& table = plan_.tables[keys[i].table];
    TANDEM_CHECK(table.group == header.group);
    TANDEM_CHECK(!in_place || !keys[i].may_repeat);
    const bool with_slots = (header.flags & kFlagWithSlots) != 0 && !keys[i].keys.empty();
    request->row_floats.push_back(static_cast<uint32_t>(
        with_slots ? floats[i] / keys[i].keys.size() : static_cast<size_t>(table.dim)));
  }
  Pack(request.get());
  return request;
}

// From now on it is under way.
ClientCore::Request* ClientCore::Enter(absl::Time now, std::unique_ptr<Request> request) {
  request->id = next_number_++;
  request->started = now;
  requests_.push_back(std::move(request));
  return requests_.back().get();
}

// Orders the keys by (owner, range), so that the keys of one frame are one run of bytes.
void ClientCore::Pack(Request* request) {
  size_t total = 0;
  for (const TableKeys& table : request->keys) total += table.keys.size();
  request->packed_keys = total > 0 ? buffers_.Alloc(total * sizeof(uint64_t)) : Buffer();
  if (!request->in_place) {
    request->source.resize(total);
    request->place.resize(total);
  }
  request->next_key = request->next_float = 0;
  key_range_.resize(total);
  key_rank_.resize(total);

  for (const uint32_t id : packed_ranges_[request->header.group]) range_fill_[id] = 0;
  size_t first = 0;
  for (const TableKeys& table : request->keys) {
    map_->FindAll(table.table, plan_.tables[table.table].salt, table.keys,
                  key_range_.data() + first, key_rank_.data() + first, range_fill_.data());
    first += table.keys.size();
  }
  CutIntoSlices(request);

  uint64_t* const packed = request->packed_keys.MutableAs<uint64_t>().data();
  uint32_t* const source = request->source.data();
  const bool in_place = request->in_place;
  const uint32_t* const begin = range_fill_.data();
  const uint32_t *range = key_range_.data(), *rank = key_rank_.data();
  for (const TableKeys& table : request->keys) {
    const uint64_t* const keys = table.keys.data();
    const uint32_t count = static_cast<uint32_t>(table.keys.size());
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t to = begin[range[i]] + rank[i];
      packed[to] = keys[i];
      if (!in_place) source[to] = i;
    }
    range += count;
    rank += count;
  }
  if (in_place) {  // whose old memory serves the next request
    request->range.swap(key_range_);
    request->rank.swap(key_rank_);
  }
}

// Makes the slices from the number of keys in each range, and room for their values; leaves in
// range_fill_ where the keys of each range begin.
void ClientCore::CutIntoSlices(Request* request) {
  const std::vector<uint32_t>& order = packed_ranges_[request->header.group];
  input_of_table_.assign(plan_.tables.size(), 0);
  for (uint32_t i = 0; i < request->keys.size(); ++i) input_of_table_[request->keys[i].table] = i;
  size_t offset = 0, floats = 0;
  for (const uint32_t id : order) {
    const size_t rows = range_fill_[id];
    range_fill_[id] = static_cast<uint32_t>(offset);
    if (rows == 0 && !request->push) continue;
    Slice slice;
    slice.range = id;
    slice.rows = slice.occurrences = static_cast<uint32_t>(rows);
    slice.source_offset = offset;
    slice.input = input_of_table_[map_->range(id).table];
    request->slices.push_back(slice);
    offset += rows;
    if (rows > 0) floats += rows * request->row_floats[slice.input] + kAlignFloats;
  }
  if (request->slices.empty()) {  // a read of nothing still asks how far the shards are
    Slice slice;
    slice.range = order.front();
    request->slices.push_back(slice);
  }
  request->open_slices = request->slices.size();
  if (request->push && floats > 0) request->packed_values = buffers_.Alloc(floats * sizeof(float));
}

// Puts the keys of a slice (each once) and its values behind those of the slices before it.
void ClientCore::PackSlice(Request* request, Slice* slice) {
  slice->packed = true;
  slice->key_offset = request->next_key;
  slice->float_offset = request->next_float;
  if (slice->rows == 0) return;
  uint64_t* const keys = request->packed_keys.MutableAs<uint64_t>().data();
  const absl::Span<const uint64_t> occurrences(keys + slice->source_offset, slice->occurrences);
  uint64_t* const to = keys + slice->key_offset;  // never behind what is still to be read
  if (request->keys[slice->input].may_repeat) {
    slice->rows = index_.Unique(occurrences, to, request->place.data() + slice->source_offset);
  } else if (to != occurrences.data()) {
    std::memmove(to, occurrences.data(), occurrences.size() * sizeof(uint64_t));
  }
  request->next_key += slice->rows;
  if (!request->push) return;
  if (!request->gradients.empty()) PackValues(request, *slice);
  request->next_float += size_t{slice->rows} * request->row_floats[slice->input];
}

void ClientCore::PackValues(Request* request, const Slice& slice) {
  const float* const rows = request->gradients[slice.input].data();
  const uint32_t* const source = request->source.data() + slice.source_offset;
  const size_t width = request->row_floats[slice.input];
  float* const to = request->packed_values.MutableAs<float>().data() + slice.float_offset;
  if (slice.repeats()) {
    MergeRows(rows, source, request->place.data() + slice.source_offset, slice.occurrences, width,
              to);
  } else {
    GatherRows(rows, source, slice.rows, width, to);
  }
}

// ---- asking -----------------------------------------------------------------------------------

uint64_t ClientCore::Pull(absl::Time now, uint32_t group, int64_t step,
                          absl::Span<const TableKeys> keys,
                          absl::Span<const absl::Span<float>> rows, uint8_t flags) {
  floats_.clear();
  for (const absl::Span<float>& row : rows) floats_.push_back(row.size());
  Request* const request =
      Enter(now, NewRequest(PullHeader(group, step, flags), false, false, keys, floats_));
  request->rows.assign(rows.begin(), rows.end());
  SendOpenSlices(now, request);
  return request->id;
}

uint64_t ClientCore::PullInPlace(absl::Time now, uint32_t group, int64_t step,
                                 absl::Span<const TableKeys> keys,
                                 absl::Span<PulledRows* const> rows, uint8_t flags) {
  TANDEM_CHECK((flags & kFlagWithSlots) == 0);
  Request* const request =
      Enter(now, NewRequest(PullHeader(group, step, flags), false, true, keys, {}));
  request->range_rows.resize(map_->ranges().size());
  for (PulledRows* const to : rows) to->Clear();
  request->kept_rows.assign(rows.begin(), rows.end());
  SendOpenSlices(now, request);
  return request->id;
}

uint64_t ClientCore::Push(absl::Time now, const PushInfo& info, absl::Span<const TableKeys> keys,
                          absl::Span<const absl::Span<const float>> values) {
  FrameHeader header;
  header.group = info.group;
  header.flags = info.flags;
  floats_.clear();
  for (const absl::Span<const float>& value : values) floats_.push_back(value.size());
  std::unique_ptr<Request> request = NewRequest(header, true, false, keys, floats_);
  request->gradients = values;
  return StartPush(now, info, std::move(request));
}

void ClientCore::PreparePush(uint32_t group, absl::Span<const TableKeys> keys, PreparedPush* push) {
  FrameHeader header;
  header.group = group;
  push->group_ = group;
  push->request_ = NewRequest(header, true, true, keys, {});
  Request& request = *push->request_;
  push->at_.resize(keys.size());
  for (size_t i = 0; i < keys.size(); ++i) push->at_[i].resize(keys[i].keys.size());
  range_values_.resize(map_->ranges().size());
  for (Slice& slice : request.slices) {
    PackSlice(&request, &slice);
    range_values_[slice.range] =
        request.packed_values.MutableAs<float>().data() + slice.float_offset;
  }
  size_t first = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    FindPlaces(request.range.data() + first, request.rank.data() + first, range_values_.data(),
               request.row_floats[i], push->at_[i].size(), push->at_[i].data());
    first += keys[i].keys.size();
  }
}

uint64_t ClientCore::Push(absl::Time now, const PushInfo& info, PreparedPush* push) {
  TANDEM_CHECK(push->ready() && push->group_ == info.group && info.flags == 0);
  return StartPush(now, info, std::move(push->request_));
}

uint64_t ClientCore::StartPush(absl::Time now, const PushInfo& info,
                               std::unique_ptr<Request> prepared) {
  Request* const request = Enter(now, std::move(prepared));
  FrameHeader& header = request->header;
  header.kind = FrameKind::kPush;
  header.first_step = info.first_step;
  header.step = info.step;
  header.samples = info.samples;
  header.clock_gap = info.clock_gap;
  header.in_flight = info.in_flight;
  const std::vector<int64_t>* const versions = FindVersions(info.group, info.step);
  for (Slice& slice : request->slices) {
    if (versions != nullptr) slice.version = (*versions)[slice.range];
    if (slice.rows > 0 && (info.flags & kFlagAssign) == 0) {
      ++updates_sent_[map_->range(slice.range).table];
    }
  }
  ForgetVersions(info.group, info.step);
  SendOpenSlices(now, request);
  for (const Slice& slice : request->slices) TANDEM_CHECK(slice.packed);
  request->gradients = {};  // all bytes are packed; the caller's memory is free
  request->keys.clear();
  return request->id;
}

ClientCore::Request* ClientCore::FindRequest(uint64_t id) {
  for (const std::unique_ptr<Request>& request : requests_) {
    if (request->id == id) return request.get();
  }
  return nullptr;
}

void ClientCore::Cancel(uint64_t id) {
  const auto it = std::find_if(requests_.begin(), requests_.end(),
                               [id](const auto& request) { return request->id == id; });
  if (it == requests_.end()) return;
  Request& request = **it;
  request.keys.clear();
  request.rows.clear();
  request.kept_rows.clear();
  request.row_floats.clear();
  request.slices.clear();
  request.packed_keys = Buffer();
  request.packed_values = Buffer();
  request.flights.clear();
  request.flight_slices.clear();
  spare_.push_back(std::move(*it));
  requests_.erase(it);
}

// Sends every slice that is neither done nor on its way.
void ClientCore::SendOpenSlices(absl::Time now, Request* request) {
  open_.clear();
  for (uint32_t i = 0; i < request->slices.size(); ++i) {
    const Slice& slice = request->slices[i];
    if (slice.done || slice.sent || slice.send_at > now) continue;
    open_.push_back({map_->range(slice.range).owner, i});
  }
  // In order already, unless the view has changed since they were packed.
  if (!std::is_sorted(open_.begin(), open_.end())) std::sort(open_.begin(), open_.end());
  for (size_t first = 0; first < open_.size();) {
    size_t end = first + 1;
    while (end < open_.size() && open_[end].first == open_[first].first) ++end;
    SendFrames(now, request, open_[first].first,
               absl::MakeConstSpan(open_).subspan(first, end - first), end < open_.size());
    first = end;
  }
}

// Sends slices of one owner in frames of about `frame_bytes` that are as equal as can be: while one
// is served another one travels, and a third is copied to its place.
void ClientCore::SendFrames(absl::Time now, Request* request, EndpointId to,
                            absl::Span<const std::pair<EndpointId, uint32_t>> slices, bool more) {
  const auto bytes_of = [request](uint32_t i) {
    const Slice& slice = request->slices[i];
    const size_t width = slice.rows > 0 ? request->row_floats[slice.input] : 0;
    return size_t{slice.rows} * width * sizeof(float);
  };
  size_t total = 0, bytes = 0;
  for (const auto& [owner, i] : slices) total += bytes_of(i);
  const size_t frame = total / (total / options_.frame_bytes + 1) + 1;
  size_t cut = frame;
  size_t first = request->flight_slices.size();
  for (size_t k = 0; k < slices.size(); ++k) {
    bytes += bytes_of(slices[k].second);
    request->flight_slices.push_back(slices[k].second);
    const bool last = k + 1 == slices.size();
    // Slices without rows after the last one with rows go with it.
    if (!last && (bytes < cut || bytes == total)) continue;
    SendFlight(now, request, to, first);
    first = request->flight_slices.size();
    cut = bytes + frame;
    if (frame_ready_ && (more || !last)) frame_ready_();
  }
}

// A flight of the slices from `first` on in flight_slices.
void ClientCore::SendFlight(absl::Time now, Request* request, EndpointId to, size_t first) {
  Flight& flight = request->flights.emplace_back();
  flight.number = next_number_++;
  flight.to = to;
  flight.first = first;
  flight.count = request->flight_slices.size() - first;
  flight.heard_at = now;
  flight.reconnect = options_.reconnect_after;
  AwaitAnswer(now, &flight);
  const absl::Span<const uint32_t> slices = SlicesOf(*request, flight);
  request->next_float = (request->next_float + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
  for (const uint32_t i : slices) {
    if (!request->slices[i].packed) PackSlice(request, &request->slices[i]);
  }
  flight.frame = BuildFrame(request, flight.number, slices);
  for (const uint32_t i : slices) request->slices[i].sent = true;
  (request->push ? counters_.push_bytes : counters_.pull_bytes) += flight.frame.TotalBytes();
  out_.push_back({to, flight.frame});
}

absl::Span<const uint32_t> ClientCore::SlicesOf(const Request& request,
                                                const Flight& flight) const {
  return absl::MakeConstSpan(request.flight_slices).subspan(flight.first, flight.count);
}

Frame ClientCore::BuildFrame(Request* request, uint64_t number, absl::Span<const uint32_t> slices) {
  FrameHeader header = request->header;
  header.request = number;
  header.view = map_->view();
  entries_.clear();
  size_t keys = 0, floats = 0;
  const Slice& first = request->slices[slices.front()];
  bool one_run = first.float_offset % kFrameAlignFloats == 0;  // not if it travels again, alone
  for (const uint32_t i : slices) {
    const Slice& slice = request->slices[i];
    SliceEntry e;
    e.range = slice.range;
    e.rows = slice.rows;
    e.version = slice.version;
    if (request->push && slice.rows > 0) e.row_floats = request->row_floats[slice.input];
    entries_.push_back(e);
    one_run = one_run && slice.key_offset == first.key_offset + keys &&
              (!request->push || slice.float_offset == first.float_offset + floats);
    keys += slice.rows;
    floats += size_t{slice.rows} * e.row_floats;
  }
  Buffer key_part, value_part;
  if (!one_run && keys > 0) {  // slices that travel again, from several places
    key_part = buffers_.Alloc(keys * sizeof(uint64_t));
    if (floats > 0) value_part = buffers_.Alloc(floats * sizeof(float));
    GatherParts(*request, slices, &key_part, &value_part);
  } else if (keys > 0) {
    key_part =
        request->packed_keys.Slice(first.key_offset * sizeof(uint64_t), keys * sizeof(uint64_t));
    if (floats > 0) {
      value_part =
          request->packed_values.Slice(first.float_offset * sizeof(float), floats * sizeof(float));
    }
  }
  return EncodeDataFrame(buffers_, header, entries_, std::move(key_part), std::move(value_part));
}

void ClientCore::GatherParts(const Request& request, absl::Span<const uint32_t> slices,
                             Buffer* keys, Buffer* values) {
  uint64_t* key_out = keys->MutableAs<uint64_t>().data();
  float* value_out = values->MutableAs<float>().data();
  for (const uint32_t i : slices) {
    const Slice& slice = request.slices[i];
    key_out = std::copy_n(request.packed_keys.As<uint64_t>().data() + slice.key_offset, slice.rows,
                          key_out);
    if (!request.push || slice.rows == 0) continue;
    value_out = std::copy_n(request.packed_values.As<float>().data() + slice.float_offset,
                            size_t{slice.rows} * request.row_floats[slice.input], value_out);
  }
}

// ---- answers ----------------------------------------------------------------------------------

ClientCore::Flight* ClientCore::FindFlight(uint64_t number, Request** request) {
  for (const std::unique_ptr<Request>& candidate : requests_) {
    std::vector<Flight>& flights = candidate->flights;
    const auto at =
        std::lower_bound(flights.begin(), flights.end(), number,
                         [](const Flight& flight, uint64_t n) { return flight.number < n; });
    if (at == flights.end() || at->number != number) continue;
    *request = candidate.get();
    return at->answered ? nullptr : &*at;
  }
  return nullptr;
}

void ClientCore::EndFlight(Request* request, Flight* flight) {
  flight->answered = true;
  flight->frame = Frame();
  if (request->open_slices > 0) return;
  if (!request->push && request->in_place) PlaceRows(*request);
  Finish(request, absl::OkStatus());
}

void ClientCore::OnFrame(absl::Time now, const ParsedFrame& frame) {
  const FrameHeader& h = frame.header;
  Request* request = nullptr;
  Flight* const flight = FindFlight(h.request, &request);
  if (flight == nullptr || h.sender != flight->to) return;  // late, doubled or cancelled
  flight->heard_at = now;
  AwaitAnswer(now, flight);
  if (h.kind == FrameKind::kWaiting) {
    const SliceEntry e = frame.entry_count > 0 ? frame.Entry(0) : SliceEntry();
    flight->waiting.text = absl::StrCat("waits for worker ", e.row_floats, " at step ", e.version);
    flight->waiting.waits_for = EndpointId::Worker(static_cast<int>(e.row_floats));
    return;
  }
  if (h.kind != FrameKind::kRows && h.kind != FrameKind::kAck) return;
  if ((h.kind == FrameKind::kAck) != request->push) return;
  // Infinite says nothing of the future: the shard has no range of the group just now, or everybody
  // is out of data and will be back in the next epoch.
  if (h.group < min_clock_.size() && h.first_step != kInfiniteClock) {
    min_clock_[h.group] = std::max(min_clock_[h.group], h.first_step);
  }
  if (request->push) {
    counters_.ack_bytes += frame.frame.TotalBytes();
    OnAck(now, request, flight, frame);
  } else {
    counters_.rows_bytes += frame.frame.TotalBytes();
    OnRows(now, request, flight, frame);
  }
}

void ClientCore::Refuse(absl::Time now, const ParsedFrame& frame, Slice* slice) {
  slice->sent = false;
  slice->refused_view = frame.header.view;
  // If the shard knows a newer view, wait for it; if it lags behind, give it a moment.
  const bool we_lag = frame.header.view > map_->view();
  slice->send_at = we_lag ? absl::InfiniteFuture() : now + options_.wrong_view_pause;
}

void ClientCore::CopyRows(const Request& request, const Slice& slice, const float* values) {
  const uint32_t* const source = request.source.data() + slice.source_offset;
  const size_t width = request.row_floats[slice.input];
  float* const rows = request.rows[slice.input].data();
  if (slice.repeats()) {
    const uint32_t* const place = request.place.data() + slice.source_offset;
    ScatterRows(
        values, [place](uint32_t i) { return size_t{place[i]}; }, source, slice.occurrences, width,
        rows);
  } else {
    ScatterRows(
        values, [](uint32_t i) { return size_t{i}; }, source, slice.rows, width, rows);
  }
}

// All have arrived.
void ClientCore::PlaceRows(const Request& request) {
  size_t first = 0;
  for (size_t i = 0; i < request.kept_rows.size(); ++i) {
    const size_t count = request.keys[i].keys.size();
    FindPlaces(request.range.data() + first, request.rank.data() + first, request.range_rows.data(),
               request.row_floats[i], count, request.kept_rows[i]->Places(count));
    first += count;
  }
}

void ClientCore::OnRows(absl::Time now, Request* request, Flight* flight,
                        const ParsedFrame& frame) {
  const absl::Span<const uint32_t> slices = SlicesOf(*request, *flight);
  if (frame.entry_count != slices.size()) {
    return Finish(request, absl::InternalError(absl::StrCat(flight->to.DebugString(), " answered ",
                                                            frame.entry_count,
                                                            " slices, asked for ", slices.size())));
  }
  const float* values = frame.values().As<float>().data();
  const bool evaluate = (request->header.flags & kFlagEvaluate) != 0;
  std::vector<int64_t>* const versions =
      evaluate ? nullptr : &VersionsOf(request->header.group, request->header.step);
  for (uint32_t i = 0; i < frame.entry_count; ++i) {
    const SliceEntry e = frame.Entry(i);
    Slice& slice = request->slices[slices[i]];
    if (e.status == SliceStatus::kWrongView) {
      Refuse(now, frame, &slice);
      continue;
    }
    const uint32_t width = slice.rows > 0 ? request->row_floats[slice.input] : e.row_floats;
    if (e.range != slice.range || e.rows != slice.rows || e.row_floats != width) {
      return Finish(request, absl::InternalError(absl::StrCat(
                                 flight->to.DebugString(), " answered range ", e.range, " with ",
                                 e.rows, " rows of ", e.row_floats, " floats; asked for range ",
                                 slice.range, ", ", slice.rows, " rows of ", width)));
    }
    if (slice.rows > 0 && request->in_place) {
      request->range_rows[slice.range] = values;
      request->kept_rows[slice.input]->Keep(frame.values());
    } else if (slice.rows > 0) {
      CopyRows(*request, slice, values);
    }
    values += size_t{e.rows} * e.row_floats;
    if (versions != nullptr) (*versions)[e.range] = e.version;
    slice.done = true;
    --request->open_slices;
    request->closed_samples = frame.header.samples;
  }
  EndFlight(request, flight);
}

void ClientCore::OnAck(absl::Time now, Request* request, Flight* flight, const ParsedFrame& frame) {
  uint32_t next = 0;
  for (const uint32_t i : SlicesOf(*request, *flight)) {
    Slice& slice = request->slices[i];
    const SliceEntry e = next < frame.entry_count ? frame.Entry(next) : SliceEntry();
    if (next >= frame.entry_count || e.range != slice.range) {
      slice.done = true;
      --request->open_slices;
      continue;
    }
    ++next;
    if (e.status == SliceStatus::kWrongView) {
      Refuse(now, frame, &slice);
      continue;
    }
    if (e.status == SliceStatus::kDropped && e.version > request->header.step &&
        e.version - request->header.step < kMaxStepsLate) {
      request->open_step = std::max(request->open_step, e.version);
      slice.done = true;
      --request->open_slices;
      continue;
    }
    return Finish(
        request,
        absl::FailedPreconditionError(absl::StrCat(
            "push of step ", request->header.step, " refused by ", map_->Describe(slice.range),
            e.status == SliceStatus::kOverBudget
                ? ": updates held by the policy would pass limits.held_bytes_per_shard"
                : ": against the protocol")));
  }
  EndFlight(request, flight);
}

const std::vector<int64_t>* ClientCore::FindVersions(uint32_t group, int64_t step) const {
  for (const VersionsRead& read : versions_) {
    if (read.group == group && read.step == step) return &read.versions;
  }
  return nullptr;
}

std::vector<int64_t>& ClientCore::VersionsOf(uint32_t group, int64_t step) {
  for (VersionsRead& read : versions_) {
    if (read.group == group && read.step == step) return read.versions;
  }
  if (versions_.size() >= kMaxVersions) {
    std::rotate(versions_.begin(), versions_.begin() + 1, versions_.end());
    spare_versions_.push_back(std::move(versions_.back()));
    versions_.pop_back();
  }
  if (spare_versions_.empty()) spare_versions_.emplace_back();
  VersionsRead read = std::move(spare_versions_.back());
  spare_versions_.pop_back();
  read.group = group;
  read.step = step;
  read.versions.assign(map_->ranges().size(), 0);
  versions_.push_back(std::move(read));
  return versions_.back().versions;
}

// Also those of steps that were read and never pushed (reads ahead at the end of an epoch).
void ClientCore::ForgetVersions(uint32_t group, int64_t step) {
  const auto forgotten = std::partition(
      versions_.begin(), versions_.end(),
      [&](const VersionsRead& read) { return read.group != group || read.step > step; });
  for (auto it = forgotten; it != versions_.end(); ++it) spare_versions_.push_back(std::move(*it));
  versions_.erase(forgotten, versions_.end());
}

void ClientCore::Finish(Request* request, absl::Status status) {
  Completion completion;
  completion.request = request->id;
  completion.status = std::move(status);
  completion.closed_samples = request->closed_samples;
  completion.open_step = request->open_step;
  completions_.push_back(std::move(completion));
  Cancel(request->id);
}

// ---- time -------------------------------------------------------------------------------------

void ClientCore::OnTick(absl::Time now) {
  ids_.clear();
  for (const std::unique_ptr<Request>& request : requests_) ids_.push_back(request->id);
  for (const uint64_t id : ids_) CheckTimes(now, FindRequest(id));  // which may end it
}

// It has been sent, or its shard has said that it waits: silence begins anew.
void ClientCore::AwaitAnswer(absl::Time now, Flight* flight) {
  flight->resend_at = now + options_.resend_after;
  flight->pause = 2 * options_.resend_after;
}

void ClientCore::CheckTimes(absl::Time now, Request* request) {
  for (Flight& flight : request->flights) {
    if (flight.answered) continue;
    if (now - flight.heard_at > options_.silence_limit) {
      const Slice& slice = request->slices[SlicesOf(*request, flight).front()];
      return Finish(request, absl::DeadlineExceededError(absl::StrCat(
                                 request->push ? "push" : "pull", " of step ", request->header.step,
                                 ": no answer for ", absl::ToInt64Seconds(now - flight.heard_at),
                                 " s from ", map_->Describe(slice.range))));
    }
    if (now < flight.resend_at) continue;
    flight.resend_at = now + flight.pause;
    flight.pause = std::min(2 * flight.pause, kMostPauses * options_.resend_after);
    ++counters_.frames_resent;
    out_.push_back({flight.to, flight.frame});
  }
  SendOpenSlices(now, request);
}

void ClientCore::OnLost(absl::Time now, EndpointId shard) {
  for (const std::unique_ptr<Request>& request : requests_) {
    for (Flight& flight : request->flights) {
      if (flight.answered || flight.to != shard) continue;
      flight.resend_at = std::min(flight.resend_at, now + flight.reconnect);
      flight.reconnect = std::min(2 * flight.reconnect, options_.resend_after);
    }
  }
}

Activity ClientCore::Waiting(absl::Time now) const {
  return requests_.empty() ? Activity() : WaitingOf(now, *requests_.front());
}

Activity ClientCore::Waiting(absl::Time now, uint64_t request) const {
  for (const std::unique_ptr<Request>& candidate : requests_) {
    if (candidate->id == request) return WaitingOf(now, *candidate);
  }
  return {};
}

Activity ClientCore::WaitingOf(absl::Time now, const Request& request) const {
  Activity out;
  out.text = absl::StrCat(request.push ? "push" : "pull", " of step ", request.header.step,
                          " since ", absl::ToInt64Seconds(now - request.started), " s");
  // Requests are under way nearly always; what is answered at once is no wait.
  const bool waits = now - request.started >= absl::Seconds(1);
  for (const Flight& flight : request.flights) {
    if (flight.answered) continue;
    const bool parked = !flight.waiting.text.empty();
    absl::StrAppend(&out.text, "; ", flight.to.DebugString(), " ",
                    parked ? flight.waiting.text : "is waited for");
    if (!waits || out.waits_for.role != Role::kNone) continue;
    out.waits_for = parked ? flight.waiting.waits_for : flight.to;
  }
  return out;
}

}  // namespace tandem
