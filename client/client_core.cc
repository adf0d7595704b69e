#include "client/client_core.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "optim/row_rounding.h"
#include "policies/policy.h"

namespace tandem::client {
namespace {

// The number of steps whose read versions are remembered although nothing has been pushed for them:
// reads without pushes, and prefetched reads.
size_t MaxVersions(const job::ResolvedJob& plan) {
  const size_t ahead =
      plan.groups.size() * static_cast<size_t>(plan.job.train().prefetch_steps() + 2);
  return std::max<size_t>(1024, ahead);
}

// An open step that is further ahead than this of a late push is a protocol error.
constexpr int64_t kMaxStepsLate = int64_t{1} << 32;

FrameHeader PullHeader(uint32_t group, int64_t step, uint8_t flags) {
  FrameHeader header;
  header.kind = FrameKind::kPull;
  header.flags = flags;
  header.group = group;
  header.step = step;
  return header;
}

// The words of 4 bytes that each row of a slice takes on the wire.
uint32_t RowWords(const job::ResolvedJob& plan, const ClientRequest& request,
                  const ClientRequest::Slice& slice) {
  const Table::Dtype type = plan.tables[request.keys[slice.input].table].wire_dtype();
  return static_cast<uint32_t>(optim::WireWords(type, request.row_floats[slice.input]));
}

// The rows of a slice as floats, [rows, dim]: where they have arrived, or else in `expanded`.
const float* RowsAsFloats(const job::ResolvedJob& plan, const ClientRequest& request,
                          const ClientRequest::Slice& slice, const float* words,
                          BufferSource& buffers, Buffer* expanded) {
  if (slice.rows == 0) return words;
  const Table::Dtype type = plan.tables[request.keys[slice.input].table].wire_dtype();
  if (optim::ElementBytes(type) == sizeof(float)) return words;
  const size_t dim = request.row_floats[slice.input];
  *expanded = buffers.Alloc(slice.rows * dim * sizeof(float));
  float* const floats = expanded->MutableAs<float>().data();
  optim::ExpandWireRows(type, dim, slice.rows, words, floats);
  return floats;
}

}  // namespace

ClientCore::ClientCore(const job::ResolvedJob& plan, EndpointId self, uint64_t incarnation,
                       BufferSource& buffers, const Options& options)
    : plan_(plan),
      self_(self),
      incarnation_(incarnation),
      options_(options),
      times_{options.resend_after, options.reconnect_after},
      buffers_(buffers),
      packer_(plan, self.role == Role::kWorker ? self.index : 0u, buffers),
      cache_(plan),
      versions_(MaxVersions(plan)),
      min_clock_(plan.groups.size(), 0),
      updates_sent_(plan.tables.size(), 0) {}

ClientCore::~ClientCore() = default;

ClientCore::PreparedPush::PreparedPush() = default;
ClientCore::PreparedPush::~PreparedPush() = default;
ClientCore::PreparedPush::PreparedPush(PreparedPush&&) noexcept = default;
ClientCore::PreparedPush& ClientCore::PreparedPush::operator=(PreparedPush&&) noexcept = default;

// A new view sends refused slices again, to the owners that it names. A slice refused by a shard
// with an even newer view keeps waiting for that view. Slices in flight need nothing, although
// their range may have moved: the shard that has them answers with the result or with WRONG_VIEW,
// and a lost frame is resent by its clock.
void ClientCore::OnView(absl::Time now, std::shared_ptr<const RangeMap> view) {
  if (map() != nullptr && view->view() <= map()->view()) return;
  packer_.OnView(std::move(view));
  cache_.OnView(*map());
  for (const std::unique_ptr<Request>& request : requests_) {
    for (Slice& slice : request->slices) {
      if (!slice.done && !slice.sent && slice.refused_view <= map()->view()) slice.send_at = now;
    }
    SendOpenSlices(now, request.get());
  }
}

// ---- requests --------------------------------------------------------------------------------

std::unique_ptr<ClientRequest> ClientCore::NewRequest(const FrameHeader& header, bool push,
                                                      bool in_place,
                                                      absl::Span<const TableKeys> keys,
                                                      absl::Span<const size_t> floats) {
  TANDEM_CHECK(map() != nullptr);
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
    const job::TablePlan& table = plan_.tables[keys[i].table];
    TANDEM_CHECK(table.group == header.group);
    TANDEM_CHECK(!in_place || !keys[i].may_repeat);
    const bool with_slots = (header.flags & kFlagWithSlots) != 0 && !keys[i].keys.empty();
    request->row_floats.push_back(static_cast<uint32_t>(
        with_slots ? floats[i] / keys[i].keys.size() : static_cast<size_t>(table.dim)));
  }
  packer_.Cut(request.get());
  return request;
}

// Puts a request in flight. The request gets a number, and OnFrame and OnTick find it from now on.
ClientRequest* ClientCore::Enter(absl::Time now, std::unique_ptr<Request> request) {
  request->id = next_number_++;
  request->started = now;
  requests_.push_back(std::move(request));
  return requests_.back().get();
}

uint64_t ClientCore::Pull(absl::Time now, uint32_t group, int64_t step,
                          absl::Span<const TableKeys> keys,
                          absl::Span<const absl::Span<float>> rows, uint8_t flags) {
  Request* const request =
      Enter(now, NewRequest(PullHeader(group, step, flags), false, false, keys, {}));
  request->rows.assign(rows.begin(), rows.end());
  SendOpenSlices(now, request);
  return request->id;
}

uint64_t ClientCore::PullInPlace(absl::Time now, uint32_t group, int64_t step,
                                 absl::Span<const TableKeys> keys,
                                 absl::Span<PulledRows* const> rows, uint8_t flags) {
  if (options_.keep_rows && flags == 0 && cache_.Keeps(group)) {
    return PullMissing(now, PullHeader(group, step, kFlagKeep), keys, rows);
  }
  Request* const request =
      Enter(now, NewRequest(PullHeader(group, step, flags), false, true, keys, {}));
  request->range_rows.resize(map()->ranges().size());
  for (PulledRows* const to : rows) to->Clear();
  request->kept_rows.assign(rows.begin(), rows.end());
  SendOpenSlices(now, request);
  return request->id;
}

// Reads rows of a table whose rows are kept: takes what the cache has and asks the servers for the
// rest. If the cache has everything, the read is done at once.
//
// The order matters. First all keys are looked up: the pointers that Find returns are valid only
// until the cache changes. Then the request enters requests_, because Finish looks it up there,
// even if nothing is sent. Then the cached rows are copied: a refresh may change the cache while
// the caller still uses the rows. Then the versions of the cached rows are noted, before any answer
// can arrive: a range whose rows are all cached gets no answer, and OnRows takes the older of both
// versions for a range that has cached and read rows. A read without any keys is sent nevertheless,
// because its answer says how far the shards are.
uint64_t ClientCore::PullMissing(absl::Time now, FrameHeader header,
                                 absl::Span<const TableKeys> keys,
                                 absl::Span<PulledRows* const> rows) {
  cached_.resize(keys.size());
  cached_rows_.clear();
  cached_floats_.clear();
  cached_versions_.assign(map()->ranges().size(), ClientRequest::kNoVersion);
  missing_.clear();
  size_t floats = 0, asked = 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const job::TablePlan& table = plan_.tables[keys[i].table];
    ClientRequest::CachedInput& input = cached_[i];
    input.missing.clear();
    input.missing_at.clear();
    input.cached_at.clear();
    asked += keys[i].keys.size();
    for (uint32_t k = 0; k < keys[i].keys.size(); ++k) {
      const uint64_t key = keys[i].keys[k];
      const uint32_t range = map()->Find(table.id, Position(table.salt, key));
      int64_t version = 0;
      const float* const row = cache_.Find(range, key, header.step, &version);
      if (row == nullptr) {
        input.missing.push_back(key);
        input.missing_at.push_back(k);
        continue;
      }
      input.cached_at.push_back(k);
      cached_rows_.push_back(row);
      cached_floats_.push_back(static_cast<size_t>(table.dim));
      floats += static_cast<size_t>(table.dim);
      cached_versions_[range] = std::min(cached_versions_[range], version);
    }
    missing_.push_back({keys[i].table, input.missing});
  }
  counters_.rows_asked += asked;
  counters_.rows_cached += cached_rows_.size();
  Request* const request = Enter(now, NewRequest(header, false, true, missing_, {}));
  request->range_rows.resize(map()->ranges().size());
  for (PulledRows* const to : rows) to->Clear();
  request->kept_rows.assign(rows.begin(), rows.end());
  request->asks_cache = true;
  request->cached.swap(cached_);  // moves the vectors; the spans in missing_ stay valid
  if (!cached_rows_.empty()) {
    request->cached_rows = buffers_.Alloc(floats * sizeof(float));
    float* to = request->cached_rows.MutableAs<float>().data();
    for (size_t i = 0; i < cached_rows_.size(); ++i) {
      to = std::copy_n(cached_rows_[i], cached_floats_[i], to);
    }
    request->cached_versions = cached_versions_;
    std::vector<int64_t>& versions =
        versions_.At(header.group, header.step, map()->ranges().size());
    for (size_t range = 0; range < versions.size(); ++range) {
      if (cached_versions_[range] != ClientRequest::kNoVersion) {
        versions[range] = cached_versions_[range];
      }
    }
  }
  const uint64_t id = request->id;  // Finish clears the request
  if (asked > 0 && cached_rows_.size() == asked) {
    request->PlaceRows();
    Finish(request, absl::OkStatus());
  } else {
    SendOpenSlices(now, request);
  }
  return id;
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
  packer_.PackInPlace(push->request_.get(), &push->at_);
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
  header.sample_clock = info.sample_clock;
  header.positives = info.positives;
  const std::vector<int64_t>* const versions = versions_.Find(info.group, info.step);
  for (Slice& slice : request->slices) {
    if (versions != nullptr) slice.version = (*versions)[request->RangeRead(slice)];
    if (slice.rows > 0 && (info.flags & kFlagAssign) == 0) {
      ++updates_sent_[map()->range(slice.range).table];
    }
  }
  versions_.Forget(info.group, info.step);
  packer_.PackAheadOfCopies(request);
  SendOpenSlices(now, request);
  for (const Slice& slice : request->slices) TANDEM_CHECK(slice.packed);
  if (cache_.Keeps(info.group)) {
    cache_.OnPushBegun(info.group, info.step);
    for (const Slice& slice : request->slices) {
      if (slice.rows == 0) continue;
      cache_.OnPushed(slice.range, info.step,
                      request->packed_keys.As<uint64_t>().subspan(slice.key_offset, slice.rows));
    }
  }
  request->gradients = {};  // all bytes are packed; the caller may free its memory
  request->keys.clear();
  return request->id;
}

ClientRequest* ClientCore::FindRequest(uint64_t id) {
  for (const std::unique_ptr<Request>& request : requests_) {
    if (request->id == id) return request.get();
  }
  return nullptr;
}

void ClientCore::Cancel(uint64_t id) { End(id, /*done=*/false); }

// A push that has not succeeded may be sent again for the same step with the versions that its rows
// were read at, so these go back to versions_.
void ClientCore::End(uint64_t id, bool done) {
  const auto it = std::find_if(requests_.begin(), requests_.end(),
                               [id](const auto& request) { return request->id == id; });
  if (it == requests_.end()) return;
  if (const Request& request = **it; request.push && !done) {
    std::vector<int64_t>& versions =
        versions_.At(request.header.group, request.header.step, map()->ranges().size());
    for (const Slice& slice : request.slices) versions[request.RangeRead(slice)] = slice.version;
  }
  (*it)->Clear();
  spare_.push_back(std::move(*it));
  requests_.erase(it);
}

// Sends every slice that is neither done nor in flight, and whose time to be sent has come. Slices
// of one owner travel together.
void ClientCore::SendOpenSlices(absl::Time now, Request* request) {
  open_.clear();
  for (uint32_t i = 0; i < request->slices.size(); ++i) {
    const Slice& slice = request->slices[i];
    if (slice.done || slice.sent || slice.send_at > now) continue;
    open_.push_back({map()->range(slice.range).owner, i});
  }
  // The slices are already in order, unless the view has changed since they were packed.
  if (!std::is_sorted(open_.begin(), open_.end())) std::sort(open_.begin(), open_.end());
  for (size_t first = 0; first < open_.size();) {
    size_t end = first + 1;
    while (end < open_.size() && open_[end].first == open_[first].first) ++end;
    SendFrames(now, request, open_[first].first,
               absl::MakeConstSpan(open_).subspan(first, end - first), end < open_.size());
    first = end;
  }
}

// Sends the slices of one owner in frames of about `frame_bytes`, as equal in size as possible.
// While the shard serves one frame, the next one travels, and a third one is packed.
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
    // Slices without rows that follow the last slice with rows go into its frame.
    if (!last && (bytes < cut || bytes == total)) continue;
    SendFlight(now, request, to, first);
    first = request->flight_slices.size();
    cut = bytes + frame;
    if (frame_ready_ && (more || !last)) frame_ready_();
  }
}

// Sends one frame with the slices from `first` on in flight_slices.
void ClientCore::SendFlight(absl::Time now, Request* request, EndpointId to, size_t first) {
  Flight& flight = request->flights.emplace_back();
  flight.number = next_number_++;
  flight.to = to;
  flight.first = first;
  flight.count = request->flight_slices.size() - first;
  flight.clock.OnSent(now, times_);
  const absl::Span<const uint32_t> slices = request->SlicesOf(flight);
  flight.frame = packer_.MakeFrame(request, flight.number, slices);
  for (const uint32_t i : slices) request->slices[i].sent = true;
  CounterOf(to, request->push ? &counters_.push_bytes : &counters_.pull_bytes) +=
      flight.frame.TotalBytes();
  out_.push_back({to, flight.frame});
}

// Chooses the counter for bytes exchanged with a shard: `kind`, or within_bytes for shards of this
// worker's own process, since those bytes do not cross the network.
uint64_t& ClientCore::CounterOf(const EndpointId& shard, uint64_t* kind) {
  const bool own = plan_.workers_serve && self_.role == Role::kWorker &&
                   shard.index == plan_.server_processes() + self_.index;
  return own ? counters_.within_bytes : *kind;
}

// ---- answers ----------------------------------------------------------------------------------

ClientRequest::Flight* ClientCore::FindFlight(uint64_t number, Request** request) {
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

// Ends a frame. The request is complete when all its slices are done; slices that this frame's
// shard refused keep it open.
void ClientCore::EndFlight(absl::Time now, Request* request, Flight* flight) {
  flight->answered = true;
  flight->frame = Frame();
  if (request->open_slices > 0) return;
  if (!request->push && request->in_place) request->PlaceRows();
  if (!request->push && (request->header.flags & kFlagEvaluate) == 0) {
    counters_.shortest_read = std::min(counters_.shortest_read, now - request->started);
  }
  Finish(request, absl::OkStatus());
}

// An infinite clock says nothing about the future: either the shard has no range of the group at
// the moment, or all workers are out of data and will return in the next epoch.
void ClientCore::NoteClock(const FrameHeader& h) {
  if (h.group >= min_clock_.size() || h.first_step == policies::kInfiniteClock) return;
  min_clock_[h.group] = std::max(min_clock_[h.group], h.first_step);
}

void ClientCore::OnFrame(absl::Time now, const ParsedFrame& frame) {
  const FrameHeader& h = frame.header;
  if (h.kind == FrameKind::kRefresh) {
    counters_.refresh_bytes += frame.frame.TotalBytes();
    if (map() == nullptr || !options_.keep_rows) return;
    if (cache_.OnRefresh(frame)) NoteClock(h);
    return;
  }
  const bool answer = h.kind == FrameKind::kRows || h.kind == FrameKind::kAck;
  if (answer && h.request < next_number_) {
    const bool ack = h.kind == FrameKind::kAck;
    (ack ? pushes_ : reads_).OnAnswer(now, h.sender, h.request);
    (ack ? reads_ : pushes_).OnOtherAnswer(now, h.request);
  }
  Request* request = nullptr;
  Flight* const flight = FindFlight(h.request, &request);
  if (flight == nullptr || h.sender != flight->to) return;  // late, doubled or cancelled
  if (h.kind == FrameKind::kWaiting) {
    flight->clock.OnWaiting(now, times_);
    const SliceEntry e = frame.entry_count > 0 ? frame.Entry(0) : SliceEntry();
    flight->waiting.text = absl::StrCat("waits for worker ", e.row_floats, " at step ", e.version);
    flight->waiting.waits_for = EndpointId::Worker(static_cast<int>(e.row_floats));
    return;
  }
  if (!answer) return;
  if ((h.kind == FrameKind::kAck) != request->push) return;
  NoteClock(h);
  if (request->push) {
    CounterOf(h.sender, &counters_.ack_bytes) += frame.frame.TotalBytes();
    OnAck(now, request, flight, frame);
  } else {
    CounterOf(h.sender, &counters_.rows_bytes) += frame.frame.TotalBytes();
    OnRows(now, request, flight, frame);
  }
}

void ClientCore::Refuse(absl::Time now, const ParsedFrame& frame, Slice* slice) {
  slice->sent = false;
  slice->refused_view = frame.header.view;
  // If the shard knows a newer view, wait for this view: OnView sends the slice then. If the
  // shard's view is older, give it a moment.
  const bool we_lag = frame.header.view > map()->view();
  slice->send_at = we_lag ? absl::InfiniteFuture() : now + options_.wrong_view_pause;
}

// Takes the answer to a read: one entry for each slice of the frame, in the same order. Any other
// shape would put rows into wrong places, so it fails the request.
void ClientCore::OnRows(absl::Time now, Request* request, Flight* flight,
                        const ParsedFrame& frame) {
  const absl::Span<const uint32_t> slices = request->SlicesOf(*flight);
  if (frame.entry_count != slices.size()) {
    return Finish(request, absl::InternalError(absl::StrCat(flight->to.DebugString(), " answered ",
                                                            frame.entry_count,
                                                            " slices, asked for ", slices.size())));
  }
  const float* words = frame.values().As<float>().data();
  const bool evaluate = (request->header.flags & kFlagEvaluate) != 0;
  std::vector<int64_t>* const versions =
      evaluate ? nullptr
               : &versions_.At(request->header.group, request->header.step, map()->ranges().size());
  for (uint32_t i = 0; i < frame.entry_count; ++i) {
    const SliceEntry e = frame.Entry(i);
    Slice& slice = request->slices[slices[i]];
    if (e.status == SliceStatus::kWrongView) {
      Refuse(now, frame, &slice);
      continue;
    }
    const uint32_t width = slice.rows > 0 ? RowWords(plan_, *request, slice) : e.row_floats;
    if (e.range != slice.range || e.rows != slice.rows || e.row_floats != width) {
      return Finish(request, absl::InternalError(absl::StrCat(
                                 flight->to.DebugString(), " answered range ", e.range, " with ",
                                 e.rows, " rows of ", e.row_floats, " words; asked for range ",
                                 slice.range, ", ", slice.rows, " rows of ", width)));
    }
    Buffer expanded;
    const float* const values = RowsAsFloats(plan_, *request, slice, words, buffers_, &expanded);
    if (slice.rows > 0 && request->in_place) {
      request->range_rows[slice.range] = values;
      request->kept_rows[slice.input]->Keep(expanded.data() == nullptr ? frame.values() : expanded);
      if ((request->header.flags & kFlagKeep) != 0) {
        cache_.OnPulled(slice.range, request->header.step, e.version, e.clock,
                        request->packed_keys.As<uint64_t>().subspan(slice.key_offset, slice.rows),
                        values);
      }
    } else if (slice.rows > 0) {
      request->CopyRows(slice, values);
    }
    words += size_t{e.rows} * e.row_floats;
    if (versions != nullptr) {
      const bool some_cached = !request->cached_versions.empty();
      (*versions)[e.range] =
          some_cached ? std::min(e.version, request->cached_versions[e.range]) : e.version;
    }
    slice.done = true;
    --request->open_slices;
    request->closed_samples = frame.header.samples;
  }
  EndFlight(now, request, flight);
}

// Takes the answer to a push. Entries name only exceptions, in the order of the frame's slices: a
// slice without an entry is held or applied. kDropped is normal under a policy that skips steps:
// the push came after its step had closed.
void ClientCore::OnAck(absl::Time now, Request* request, Flight* flight, const ParsedFrame& frame) {
  uint32_t next = 0;
  for (const uint32_t i : request->SlicesOf(*flight)) {
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
    if (plan_.groups[request->header.group].properties.skips && e.status == SliceStatus::kDropped &&
        e.version > request->header.step && e.version - request->header.step < kMaxStepsLate) {
      request->open_step = std::max(request->open_step, e.version);
      slice.done = true;
      --request->open_slices;
      continue;
    }
    return Finish(
        request,
        absl::FailedPreconditionError(absl::StrCat(
            "push of step ", request->header.step, " refused by ", map()->Describe(slice.range),
            e.status == SliceStatus::kOverBudget
                ? ": updates held by the policy would pass limits.held_bytes_per_shard"
                : ": the push or its answer is against the protocol")));
  }
  EndFlight(now, request, flight);
}

void ClientCore::Finish(Request* request, absl::Status status) {
  const bool done = status.ok();
  Completion completion;
  completion.request = request->id;
  completion.status = std::move(status);
  completion.closed_samples = request->closed_samples;
  completion.open_step = request->open_step;
  completions_.push_back(std::move(completion));
  End(request->id, done);
}

// ---- time -------------------------------------------------------------------------------------

// Works in two passes. First all frames look at the answers that have come: which frame may be sent
// again depends on the first silent frame of each shard over all requests. Only then does
// CheckTimes send frames again or fail requests. The second pass runs over a copy of the ids,
// because failing a request removes it from requests_.
void ClientCore::OnTick(absl::Time now) {
  const absl::Duration pause = pauses_.Tick(now);
  ids_.clear();
  reads_.Begin();
  pushes_.Begin();
  for (const std::unique_ptr<Request>& request : requests_) {
    ids_.push_back(request->id);
    ResendLine& line = request->push ? pushes_ : reads_;
    for (Flight& flight : request->flights) {
      if (flight.answered) continue;
      if (pause > absl::ZeroDuration()) flight.clock.Forgive(now, pause);
      line.Look(now, flight.to, flight.number, times_, &flight.clock);
    }
  }
  for (const uint64_t id : ids_) CheckTimes(now, FindRequest(id));  // may end the request
}

// Checks the silence limit before a resend: a request that fails needs no further frame. At the end
// sends the refused slices whose pause is over.
void ClientCore::CheckTimes(absl::Time now, Request* request) {
  const ResendLine& line = request->push ? pushes_ : reads_;
  for (Flight& flight : request->flights) {
    if (flight.answered) continue;
    if (flight.clock.quiet(now) > options_.silence_limit) {
      const Slice& slice = request->slices[request->SlicesOf(flight).front()];
      return Finish(request,
                    SilenceError(absl::StrCat(request->push ? "push" : "pull", " of step ",
                                              request->header.step, ": "),
                                 now, flight.clock, flight.to, map()->Describe(slice.range)));
    }
    if (!flight.clock.due(now)) continue;
    if (!line.MayAsk(flight.to, flight.number, flight.clock)) continue;
    flight.clock.OnSentAgain(now, times_);
    ++counters_.frames_resent;
    out_.push_back({flight.to, flight.frame});
  }
  SendOpenSlices(now, request);
}

void ClientCore::OnLost(absl::Time now, EndpointId shard, absl::string_view why) {
  for (const std::unique_ptr<Request>& request : requests_) {
    for (Flight& flight : request->flights) {
      if (flight.answered || flight.to != shard) continue;
      flight.clock.OnLostConnection(now, times_, why);
    }
  }
}

Activity ClientCore::Waiting(absl::Time now) const {
  return requests_.empty() ? Activity() : requests_.front()->Waiting(now);
}

Activity ClientCore::Waiting(absl::Time now, uint64_t request) const {
  for (const std::unique_ptr<Request>& candidate : requests_) {
    if (candidate->id == request) return candidate->Waiting(now);
  }
  return {};
}

}  // namespace tandem::client
