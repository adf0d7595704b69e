#include "client/request_packer.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "optim/dim_dispatch.h"

namespace tandem::client {
namespace {

constexpr size_t kAlignFloats = 16;      // 64 bytes, the alignment of buffers
constexpr size_t kFrameAlignFloats = 2;  // parts of a frame begin at multiples of 8 bytes
constexpr uint32_t kGatherAhead = 16;    // rows whose memory is prefetched before they are copied

// packed[i] = rows[source[i]] for `count` rows of `width` floats.
void GatherRows(const float* rows, const uint32_t* source, uint32_t count, size_t width,
                float* packed) {
  optim::DispatchDim(static_cast<int>(width), [&](auto dim) {
    const size_t n = static_cast<size_t>(dim);
    for (uint32_t i = 0; i < count; ++i) {
      __builtin_prefetch(rows + source[std::min(i + kGatherAhead, count - 1)] * n);
      std::memcpy(packed + i * n, rows + source[i] * n, n * sizeof(float));
    }
  });
}

// packed[place[i]] = the sum of its rows[source[i]], added in the order of i. Places are numbered
// by first occurrence.
void MergeRows(const float* rows, const uint32_t* source, const uint32_t* place, uint32_t count,
               size_t width, float* packed) {
  optim::DispatchDim(static_cast<int>(width), [&](auto dim) {
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

}  // namespace

void RequestPacker::OnView(std::shared_ptr<const RangeMap> view) {
  map_ = std::move(view);
  packed_ranges_.assign(plan_.groups.size(), {});
  for (uint32_t id = 0; id < map_->ranges().size(); ++id) {
    const RangeMap::Range& range = map_->range(id);
    if (range.copy != CopyRead(range.table)) continue;
    packed_ranges_[plan_.tables[range.table].group].push_back(id);
  }
  for (std::vector<uint32_t>& ids : packed_ranges_) {
    std::stable_sort(ids.begin(), ids.end(), [this](uint32_t a, uint32_t b) {
      return map_->range(a).owner < map_->range(b).owner;
    });
  }
  range_fill_.resize(map_->ranges().size());
}

// Orders the keys by (owner, range), so that the keys of one frame are contiguous bytes. The
// algorithm is a counting sort: FindAll counts the keys of each range, MakeSlices turns the counts
// into begins, and the last loop writes each key to its place.
void RequestPacker::Cut(ClientRequest* request) {
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
    map_->FindAll(table.table, CopyRead(table.table), plan_.tables[table.table].salt, table.keys,
                  key_range_.data() + first, key_rank_.data() + first, range_fill_.data());
    first += table.keys.size();
  }
  MakeSlices(request);

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
  if (in_place) {  // swapped, so that the old memory serves the next request
    request->range.swap(key_range_);
    request->rank.swap(key_rank_);
  }
}

// Makes the slices from the number of keys in each range, and allocates memory for their values.
// Leaves in range_fill_ where the keys of each range begin.
void RequestPacker::MakeSlices(ClientRequest* request) {
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
  if (request->slices.empty()) {  // a read without keys still asks how far the shards are
    Slice slice;
    slice.range = order.front();
    request->slices.push_back(slice);
  }
  if (request->push) AddOtherCopies(request);
  request->open_slices = request->slices.size();
  if (request->push && floats > 0) request->packed_values = buffers_.Alloc(floats * sizeof(float));
}

void RequestPacker::AddOtherCopies(ClientRequest* request) {
  const size_t own = request->slices.size();
  for (size_t i = 0; i < own; ++i) {
    const Slice slice = request->slices[i];
    const uint32_t table = map_->range(slice.range).table, copies = map_->Copies(table);
    if (copies == 1) continue;
    const uint32_t count = map_->RangeCount(table);
    const uint32_t first = slice.range - CopyRead(table) * count;
    for (uint32_t copy = 0; copy < copies; ++copy) {
      if (copy == CopyRead(table)) continue;
      Slice other = slice;
      other.range = first + copy * count;
      other.same_as = static_cast<int32_t>(i);
      request->slices.push_back(other);
    }
  }
}

void RequestPacker::AlignFloats(ClientRequest* request) {
  request->next_float = (request->next_float + kAlignFloats - 1) / kAlignFloats * kAlignFloats;
}

// Packs all slices of a push before its first frame, if a table has several copies. Why: frames go
// out by owner, and the copies of a table have many owners. Without this, a copy's slice would be
// packed before slices of other tables at later owners, although their keys lie before its keys in
// packed_keys. Packing moves keys forward in place, so it must go through them in order.
void RequestPacker::PackAheadOfCopies(ClientRequest* request) {
  if (request->slices.empty() || request->slices.back().same_as < 0) return;
  const Slice* before = nullptr;
  for (Slice& slice : request->slices) {
    if (slice.packed || slice.same_as >= 0) continue;
    const bool new_frame =
        before == nullptr || map_->range(before->range).owner != map_->range(slice.range).owner;
    if (new_frame) AlignFloats(request);
    PackSlice(request, &slice);
    before = &slice;
  }
}

// Puts the keys of a slice (each key once) and its values behind those of the slices packed before.
void RequestPacker::PackSlice(ClientRequest* request, Slice* slice) {
  if (slice->same_as >= 0) {
    Slice* const own = &request->slices[static_cast<size_t>(slice->same_as)];
    if (!own->packed) PackSlice(request, own);
    slice->packed = true;
    slice->rows = own->rows;
    slice->key_offset = own->key_offset;
    slice->float_offset = own->float_offset;
    return;
  }
  slice->packed = true;
  slice->key_offset = request->next_key;
  slice->float_offset = request->next_float;
  if (slice->rows == 0) return;
  uint64_t* const keys = request->packed_keys.MutableAs<uint64_t>().data();
  const absl::Span<const uint64_t> occurrences(keys + slice->source_offset, slice->occurrences);
  // never overtakes the keys that are still to be read
  uint64_t* const to = keys + slice->key_offset;
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

void RequestPacker::PackValues(ClientRequest* request, const Slice& slice) {
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

void RequestPacker::PackInPlace(ClientRequest* request, std::vector<std::vector<float*>>* at) {
  range_values_.resize(map_->ranges().size());
  for (Slice& slice : request->slices) {
    PackSlice(request, &slice);
    range_values_[slice.range] =
        request->packed_values.MutableAs<float>().data() + slice.float_offset;
  }
  at->resize(request->keys.size());
  size_t first = 0;
  for (size_t i = 0; i < at->size(); ++i) {
    const size_t count = request->keys[i].keys.size();
    (*at)[i].resize(count);
    request->FindPlaces(first, count, request->row_floats[i], range_values_.data(),
                        (*at)[i].data());
    first += count;
  }
}

Frame RequestPacker::MakeFrame(ClientRequest* request, uint64_t number,
                               absl::Span<const uint32_t> slices) {
  // Packing goes first, because it decides where keys and values begin. Values of a new frame begin
  // at an aligned place, so that the frame can be a view of them.
  AlignFloats(request);
  for (const uint32_t i : slices) {
    if (!request->slices[i].packed) PackSlice(request, &request->slices[i]);
  }
  FrameHeader header = request->header;
  header.request = number;
  header.view = map_->view();
  entries_.clear();
  size_t keys = 0, floats = 0;
  const Slice& first = request->slices[slices.front()];
  // false if slices travel again, alone
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

void RequestPacker::GatherParts(const ClientRequest& request, absl::Span<const uint32_t> slices,
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

}  // namespace tandem::client
