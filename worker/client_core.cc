#include "worker/client_core.h"

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
constexpr uint32_t kRowsAhead = 16;      // rows whose memory is asked for before they are copied

// ids[i] = the range of keys[i]. A loop of its own: nothing in it waits for the key before.
void FindRanges(const RangeMap& map, uint32_t table, uint64_t salt, absl::Span<const uint64_t> keys,
                uint32_t* ids) {
  for (size_t i = 0; i < keys.size(); ++i) ids[i] = map.Find(table, Position(salt, keys[i]));
}

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

// rows[source[i]] = packed[i].
void ScatterRows(const float* packed, const uint32_t* source, uint32_t count, size_t width,
                 float* rows) {
  DispatchDim(static_cast<int>(width), [&](auto dim) {
    const size_t n = static_cast<size_t>(dim);
    for (uint32_t i = 0; i < count; ++i) {
      __builtin_prefetch(rows + source[std::min(i + kRowsAhead, count - 1)] * n, 1);
      std::memcpy(rows + source[i] * n, packed + i * n, n * sizeof(float));
    }
  });
}

}  // namespace

ClientCore::ClientCore(const JobPlan& plan, int rank, uint64_t incarnation, BufferSource& buffers,
                       const Options& options)
    : plan_(plan),
      rank_(rank),
      incarnation_(incarnation),
      buffers_(buffers),
      options_(options),
      min_clock_(plan.groups.size(), 0),
      updates_sent_(plan.tables.size(), 0) {}

ClientCore::~ClientCore() = default;

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
  for (auto& [id, request] : requests_) {
    for (Slice& slice : request->slices) {
      if (!slice.done && !slice.sent && slice.refused_view <= map_->view()) slice.send_at = now;
    }
    SendOpenSlices(now, request.get());
  }
}

// ---- packing ----------------------------------------------------------------------------------

std::unique_ptr<ClientCore::Request> ClientCore::NewRequest(absl::Time now,
                                                            const FrameHeader& header, bool push,
                                                            absl::Span<const TableKeys> keys,
                                                            absl::Span<const size_t> floats) {
  TANDEM_CHECK(map_ != nullptr);
  auto request = std::make_unique<Request>();
  request->id = next_number_++;
  request->push = push;
  request->started = now;
  request->header = header;
  request->header.sender = EndpointId::Worker(rank_);
  request->header.incarnation = incarnation_;
  request->keys.assign(keys.begin(), keys.end());
  for (size_t i = 0; i < keys.size(); ++i) {
    const TablePlan& table = plan_.tables[keys[i].table];
    TANDEM_CHECK(table.group == header.group);
    const bool with_slots = (header.flags & kFlagWithSlots) != 0 && !keys[i].keys.empty();
    request->row_floats.push_back(static_cast<uint32_t>(
        with_slots ? floats[i] / keys[i].keys.size() : static_cast<size_t>(table.dim)));
  }
  Pack(request.get());
  return request;
}

// Orders the keys by (owner, range), so that the keys of one frame are one run of bytes.
void ClientCore::Pack(Request* request) {
  size_t total = 0;
  for (const TableKeys& table : request->keys) total += table.keys.size();
  request->packed_keys = total > 0 ? buffers_.Alloc(total * sizeof(uint64_t)) : Buffer();
  request->source.resize(total);
  key_range_.resize(total);

  const std::vector<uint32_t>& order = packed_ranges_[request->header.group];
  for (const uint32_t id : order) range_fill_[id] = 0;
  size_t at = 0;
  for (const TableKeys& table : request->keys) {
    FindRanges(*map_, table.table, plan_.tables[table.table].salt, table.keys,
               key_range_.data() + at);
    at += table.keys.size();
  }
  for (const uint32_t id : key_range_) ++range_fill_[id];
  std::vector<uint32_t> input_of_table(plan_.tables.size(), 0);
  for (uint32_t i = 0; i < request->keys.size(); ++i) input_of_table[request->keys[i].table] = i;

  size_t key_offset = 0, float_offset = 0;
  EndpointId owner;
  for (const uint32_t id : order) {
    const size_t rows = range_fill_[id];
    range_fill_[id] = key_offset;
    if (rows == 0 && !request->push) continue;
    if (map_->range(id).owner != owner) {  // parts of frames begin aligned
      owner = map_->range(id).owner;
      float_offset = (float_offset + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
    }
    Slice slice;
    slice.range = id;
    slice.rows = static_cast<uint32_t>(rows);
    slice.key_offset = key_offset;
    slice.float_offset = float_offset;
    slice.input = input_of_table[map_->range(id).table];
    request->slices.push_back(slice);
    key_offset += rows;
    if (rows > 0) float_offset += rows * request->row_floats[slice.input];
  }
  if (request->slices.empty()) {  // a read of nothing still asks how far the shards are
    Slice slice;
    slice.range = order.front();
    request->slices.push_back(slice);
  }
  request->open_slices = request->slices.size();

  uint64_t* const packed = request->packed_keys.MutableAs<uint64_t>().data();
  at = 0;
  for (const TableKeys& table : request->keys) {
    uint32_t* const source = request->source.data();
    size_t* const fill = range_fill_.data();
    const uint32_t* const range = key_range_.data() + at;
    for (size_t i = 0; i < table.keys.size(); ++i) {
      const size_t to = fill[range[i]]++;
      packed[to] = table.keys[i];
      source[to] = static_cast<uint32_t>(i);
    }
    at += table.keys.size();
  }
}

void ClientCore::PackValues(Request* request, absl::Span<const absl::Span<const float>> values) {
  size_t floats = 0;
  for (const Slice& slice : request->slices) {
    if (slice.rows == 0) continue;
    floats = slice.float_offset + size_t{slice.rows} * request->row_floats[slice.input];
  }
  if (floats == 0) return;
  request->packed_values = buffers_.Alloc(floats * sizeof(float));
  for (const Slice& slice : request->slices) {
    if (slice.rows == 0) continue;
    float* const out = request->packed_values.MutableAs<float>().data() + slice.float_offset;
    const size_t width = request->row_floats[slice.input];
    GatherRows(values[slice.input].data(), request->source.data() + slice.key_offset, slice.rows,
               width, out);
  }
}

// ---- asking -----------------------------------------------------------------------------------

uint64_t ClientCore::Pull(absl::Time now, uint32_t group, int64_t step,
                          absl::Span<const TableKeys> keys,
                          absl::Span<const absl::Span<float>> rows, uint8_t flags) {
  FrameHeader header;
  header.kind = FrameKind::kPull;
  header.flags = flags;
  header.group = group;
  header.step = step;
  std::vector<size_t> floats;
  for (const absl::Span<float>& row : rows) floats.push_back(row.size());
  std::unique_ptr<Request> request = NewRequest(now, header, false, keys, floats);
  request->rows.assign(rows.begin(), rows.end());
  const uint64_t id = request->id;
  Request* const raw = (requests_[id] = std::move(request)).get();
  SendOpenSlices(now, raw);
  return id;
}

uint64_t ClientCore::Push(absl::Time now, const PushInfo& info, absl::Span<const TableKeys> keys,
                          absl::Span<const absl::Span<const float>> values) {
  FrameHeader header;
  header.kind = FrameKind::kPush;
  header.flags = info.flags;
  header.group = info.group;
  header.first_step = info.first_step;
  header.step = info.step;
  header.samples = info.samples;
  header.clock_gap = info.clock_gap;
  header.in_flight = info.in_flight;
  std::vector<size_t> floats;
  for (const absl::Span<const float>& value : values) floats.push_back(value.size());
  std::unique_ptr<Request> request = NewRequest(now, header, true, keys, floats);
  PackValues(request.get(), values);
  const auto versions = versions_.find({info.group, info.step});
  for (Slice& slice : request->slices) {
    if (versions != versions_.end()) slice.version = versions->second[slice.range];
    if (slice.rows > 0 && (info.flags & kFlagAssign) == 0) {
      ++updates_sent_[map_->range(slice.range).table];
    }
  }
  // Also those of steps that were read and never pushed (reads ahead at the end of an epoch).
  versions_.erase(versions_.lower_bound({info.group, 0}),
                  versions_.upper_bound({info.group, info.step}));
  request->keys.clear();  // all bytes are packed; the caller's memory is free
  const uint64_t id = request->id;
  Request* const raw = (requests_[id] = std::move(request)).get();
  SendOpenSlices(now, raw);
  return id;
}

void ClientCore::Cancel(uint64_t request) {
  const auto it = requests_.find(request);
  if (it == requests_.end()) return;
  for (const auto& [number, flight] : it->second->flights) request_of_frame_.erase(number);
  requests_.erase(it);
}

// Sends every slice that is neither done nor on its way, in frames of about `frame_bytes`: while
// one is served another one travels, and a third is copied to its place.
void ClientCore::SendOpenSlices(absl::Time now, Request* request) {
  std::map<EndpointId, std::vector<uint32_t>> by_owner;
  for (uint32_t i = 0; i < request->slices.size(); ++i) {
    Slice& slice = request->slices[i];
    if (slice.done || slice.sent || slice.send_at > now) continue;
    by_owner[map_->range(slice.range).owner].push_back(i);
  }
  for (const auto& [owner, slices] : by_owner) {
    size_t first = 0, bytes = 0;
    for (size_t i = 0; i < slices.size(); ++i) {
      const Slice& slice = request->slices[slices[i]];
      if (slice.rows > 0) {
        bytes += size_t{slice.rows} * request->row_floats[slice.input] * sizeof(float);
      }
      if (bytes < options_.frame_bytes && i + 1 < slices.size()) continue;
      SendFlight(now, request, owner, absl::MakeSpan(slices).subspan(first, i + 1 - first));
      first = i + 1;
      bytes = 0;
    }
  }
}

void ClientCore::SendFlight(absl::Time now, Request* request, EndpointId to,
                            absl::Span<const uint32_t> slices) {
  const uint64_t number = next_number_++;
  Flight& flight = request->flights[number];
  flight.to = to;
  flight.frame = BuildFrame(request, number, slices);
  flight.slices.assign(slices.begin(), slices.end());
  flight.sent_at = flight.heard_at = now;
  for (const uint32_t i : flight.slices) request->slices[i].sent = true;
  request_of_frame_[number] = request->id;
  (request->push ? counters_.push_bytes : counters_.pull_bytes) += flight.frame.TotalBytes();
  out_.push_back({to, flight.frame});
}

Frame ClientCore::BuildFrame(Request* request, uint64_t number, absl::Span<const uint32_t> slices) {
  FrameHeader header = request->header;
  header.request = number;
  header.view = map_->view();
  entries_.clear();
  size_t keys = 0, floats = 0;
  const Slice& first = request->slices[slices.front()];
  bool one_run = first.float_offset % kFrameAlignFloats == 0;
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
  if (one_run && keys > 0) {
    key_part =
        request->packed_keys.Slice(first.key_offset * sizeof(uint64_t), keys * sizeof(uint64_t));
    if (floats > 0) {
      value_part =
          request->packed_values.Slice(first.float_offset * sizeof(float), floats * sizeof(float));
    }
  } else if (keys > 0) {  // slices that travel again, from several places
    key_part = buffers_.Alloc(keys * sizeof(uint64_t));
    if (floats > 0) value_part = buffers_.Alloc(floats * sizeof(float));
    uint64_t* key_out = key_part.MutableAs<uint64_t>().data();
    float* value_out = value_part.MutableAs<float>().data();
    for (const uint32_t i : slices) {
      const Slice& slice = request->slices[i];
      key_out = std::copy_n(request->packed_keys.As<uint64_t>().data() + slice.key_offset,
                            slice.rows, key_out);
      if (!request->push || slice.rows == 0) continue;
      value_out = std::copy_n(request->packed_values.As<float>().data() + slice.float_offset,
                              size_t{slice.rows} * request->row_floats[slice.input], value_out);
    }
  }
  return EncodeDataFrame(buffers_, header, entries_, std::move(key_part), std::move(value_part));
}

// ---- answers ----------------------------------------------------------------------------------

void ClientCore::OnFrame(absl::Time now, const ParsedFrame& frame) {
  const FrameHeader& h = frame.header;
  const auto owner = request_of_frame_.find(h.request);
  if (owner == request_of_frame_.end()) return;  // late, doubled or cancelled
  Request* const request = requests_.at(owner->second).get();
  Flight* const flight = &request->flights.at(h.request);
  if (h.sender != flight->to) return;
  flight->heard_at = now;
  if (h.kind == FrameKind::kWaiting) {
    const SliceEntry e = frame.entry_count > 0 ? frame.Entry(0) : SliceEntry();
    flight->waiting = absl::StrCat("waits for worker ", e.row_floats, " at step ", e.version);
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
  ScatterRows(values, request.source.data() + slice.key_offset, slice.rows,
              request.row_floats[slice.input], request.rows[slice.input].data());
}

void ClientCore::OnRows(absl::Time now, Request* request, Flight* flight,
                        const ParsedFrame& frame) {
  if (frame.entry_count != flight->slices.size()) {
    return Finish(request, absl::InternalError(absl::StrCat(
                               flight->to.DebugString(), " answered ", frame.entry_count,
                               " slices, asked for ", flight->slices.size())));
  }
  const float* values = frame.values().As<float>().data();
  const bool evaluate = (request->header.flags & kFlagEvaluate) != 0;
  for (uint32_t i = 0; i < frame.entry_count; ++i) {
    const SliceEntry e = frame.Entry(i);
    Slice& slice = request->slices[flight->slices[i]];
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
    if (slice.rows > 0) CopyRows(*request, slice, values);
    values += size_t{e.rows} * e.row_floats;
    if (!evaluate) VersionsOf(request->header.group, request->header.step)[e.range] = e.version;
    slice.done = true;
    --request->open_slices;
    request->closed_samples = frame.header.samples;
  }
  request_of_frame_.erase(frame.header.request);
  request->flights.erase(frame.header.request);
  if (request->open_slices == 0) Finish(request, absl::OkStatus());
}

void ClientCore::OnAck(absl::Time now, Request* request, Flight* flight, const ParsedFrame& frame) {
  uint32_t next = 0;
  for (const uint32_t i : flight->slices) {
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
    return Finish(request,
                  absl::FailedPreconditionError(absl::StrCat(
                      "push of step ", request->header.step, " refused by ",
                      map_->Describe(slice.range, plan_),
                      e.status == SliceStatus::kOverBudget
                          ? ": updates held by the policy would pass limits.held_bytes_per_shard"
                          : ": against the protocol")));
  }
  request_of_frame_.erase(frame.header.request);
  request->flights.erase(frame.header.request);
  if (request->open_slices == 0) Finish(request, absl::OkStatus());
}

std::vector<int64_t>& ClientCore::VersionsOf(uint32_t group, int64_t step) {
  std::vector<int64_t>& versions = versions_[{group, step}];
  versions.resize(map_->ranges().size(), 0);
  return versions;
}

void ClientCore::Finish(Request* request, absl::Status status) {
  Completion completion;
  completion.request = request->id;
  completion.status = std::move(status);
  completion.closed_samples = request->closed_samples;
  completions_.push_back(std::move(completion));
  Cancel(request->id);
}

// ---- time -------------------------------------------------------------------------------------

void ClientCore::OnTick(absl::Time now) {
  std::vector<Request*> all;
  for (auto& [id, request] : requests_) all.push_back(request.get());
  for (Request* request : all) CheckTimes(now, request);
}

void ClientCore::CheckTimes(absl::Time now, Request* request) {
  for (auto& [number, flight] : request->flights) {
    if (now - flight.heard_at > options_.silence_limit) {
      const Slice& slice = request->slices[flight.slices.front()];
      return Finish(request, absl::DeadlineExceededError(absl::StrCat(
                                 request->push ? "push" : "pull", " of step ", request->header.step,
                                 ": no answer for ", absl::ToInt64Seconds(now - flight.heard_at),
                                 " s from ", map_->Describe(slice.range, plan_))));
    }
    if (now - std::max(flight.sent_at, flight.heard_at) > options_.resend_after) {
      flight.sent_at = now;
      ++counters_.frames_resent;
      out_.push_back({flight.to, flight.frame});
    }
  }
  SendOpenSlices(now, request);
}

std::string ClientCore::Waiting(absl::Time now) const {
  if (requests_.empty()) return "";
  const Request& request = *requests_.begin()->second;
  std::string out = absl::StrCat(request.push ? "push" : "pull", " of step ", request.header.step,
                                 " since ", absl::ToInt64Seconds(now - request.started), " s");
  for (const auto& [number, flight] : request.flights) {
    absl::StrAppend(&out, "; ", flight.to.DebugString(),
                    flight.waiting.empty() ? " is waited for" : absl::StrCat(" ", flight.waiting));
  }
  return out;
}

}  // namespace tandem
