#include "client/row_cache.h"

#include <algorithm>

namespace tandem::client {

RowCache::RowCache(const job::ResolvedJob& plan)
    : plan_(plan), depth_(plan.job.train().prefetch_steps()), pushed_(plan.groups.size(), -1) {}

void RowCache::OnView(const RangeMap& map) {
  if (!ranges_.empty()) return;
  ranges_.resize(map.ranges().size());
  for (uint32_t id = 0; id < ranges_.size(); ++id) {
    const job::TablePlan& table = plan_.tables[map.range(id).table];
    ranges_[id].group = table.group;
    ranges_[id].dim = Keeps(table.group) ? static_cast<size_t>(table.dim) : 0;
    ranges_[id].frozen = table.frozen;
  }
}

// A row may be used if it contains enough steps of two kinds: of all workers (`clock`) and of this
// worker itself (`own`). The second does not matter for a row that has no later push of
// this worker.
const float* RowCache::Find(uint32_t id, uint64_t key, int64_t step, int64_t* version) const {
  const RangeRows& range = ranges_[id];
  const auto it = range.rows.find(key);
  if (it == range.rows.end()) return nullptr;
  const Row& row = it->second;
  // `told`: the last refresh covers this row, because the worker's last push of it is old enough.
  // `newer`: the row came after the last refresh, so it is at least as new as that refresh.
  const bool told = row.pushed < range.own - kRefreshLag;
  const bool newer = row.version >= range.version;
  const int64_t clock = told || newer ? std::max(row.clock, range.clock) : row.clock;
  const int64_t own = told || newer ? std::max(row.own, range.own) : row.own;
  if (clock < step - plan_.groups[range.group].properties.read_bound) return nullptr;
  if (own <= row.pushed && own < step - depth_) return nullptr;
  *version = told ? std::max(row.version, range.version) : row.version;
  return range.values.data() + row.place * range.dim;
}

void RowCache::OnPulled(uint32_t id, int64_t step, int64_t version, int64_t clock,
                        absl::Span<const uint64_t> keys, const float* rows) {
  RangeRows& range = ranges_[id];
  if (range.dim == 0 || version < range.min_pulled) return;
  Row row;
  row.version = version;
  row.clock = clock;
  row.own = std::max<int64_t>(0, step - depth_);
  for (size_t i = 0; i < keys.size(); ++i) Put(&range, keys[i], row, rows + i * range.dim);
}

// For a new row the cache does not know when the worker pushed it last. Put assumes the worker's
// latest push, which is the safe assumption.
void RowCache::Put(RangeRows* range, uint64_t key, const Row& row, const float* values) {
  const auto [it, added] = range->rows.try_emplace(key, row);
  Row& kept = it->second;
  if (added) {
    if (range->free.empty()) {
      kept.place = static_cast<uint32_t>(range->rows.size() - 1);
      range->values.resize(range->rows.size() * range->dim);
    } else {
      kept.place = range->free.back();
      range->free.pop_back();
    }
    kept.pushed = range->frozen ? -1 : pushed_[range->group];
  } else {
    if (row.version < kept.version) return;
    kept.version = row.version;
    kept.clock = std::max(kept.clock, row.clock);
    kept.own = std::max(kept.own, row.own);
  }
  std::copy_n(values, range->dim, range->values.data() + kept.place * range->dim);
}

void RowCache::Drop(RangeRows* range, uint64_t key) {
  const auto it = range->rows.find(key);
  if (it == range->rows.end()) return;
  range->free.push_back(it->second.place);
  range->rows.erase(it);
}

void RowCache::DropAll(RangeRows* range) {
  range->rows.clear();
  range->values.clear();
  range->free.clear();
}

// Pushes do not change a frozen row.
void RowCache::OnPushed(uint32_t id, int64_t step, absl::Span<const uint64_t> keys) {
  RangeRows& range = ranges_[id];
  if (range.frozen || range.rows.empty()) return;
  for (const uint64_t key : keys) {
    const auto it = range.rows.find(key);
    if (it != range.rows.end()) it->second.pushed = std::max(it->second.pushed, step);
  }
}

void RowCache::OnPushBegun(uint32_t group, int64_t step) {
  pushed_[group] = std::max(pushed_[group], step);
}

// Checks a REFRESH. The first entry names one range, with the rows that have changed. A second
// entry lists keys of rows that the server no longer reports.
bool RowCache::Sensible(const ParsedFrame& frame) const {
  const FrameHeader& h = frame.header;
  if (h.sender.role != Role::kServer || frame.entry_count < 1 || frame.entry_count > 2)
    return false;
  const SliceEntry first = frame.Entry(0);
  if (first.range >= ranges_.size() || ranges_[first.range].dim == 0) return false;
  const RangeRows& range = ranges_[first.range];
  if (h.group != range.group || h.step < 0 || h.samples == 0 || h.request == 0) return false;
  if (first.version < 0 || first.clock < 0) return false;
  if (first.rows > 0 && first.row_floats != range.dim) return false;
  if (frame.entry_count == 1) return true;
  const SliceEntry second = frame.Entry(1);
  return second.range == first.range && second.row_floats == 0;
}

bool RowCache::OnRefresh(const ParsedFrame& frame) {
  if (!Sensible(frame)) return false;
  const FrameHeader& h = frame.header;
  const SliceEntry e = frame.Entry(0);
  RangeRows& range = ranges_[e.range];
  const bool same = h.samples == range.view && h.incarnation == range.incarnation;
  if (h.samples < range.view || (same && h.request <= range.sequence))
    return true;  // late, or doubled
  if (!same || h.request != range.sequence + 1) {
    DropAll(&range);
    // Answers that the shard sent before this refresh may lack the changes that the missed refresh
    // brought. The same holds while frames of the new refresh are still in flight, so the limit is
    // set with its first frame.
    range.version = range.min_pulled = e.version;
    range.clock = range.own = -1;
  }
  range.view = h.samples;
  range.incarnation = h.incarnation;
  range.sequence = h.request;
  const absl::Span<const uint64_t> keys = frame.keys().As<uint64_t>();
  for (const uint64_t key : keys.subspan(e.rows)) Drop(&range, key);
  const bool more = (h.flags & kFlagMore) != 0;
  // With the last frame of a refresh, the shard has not yet sent any answer of this version
  // (ShardCore::ServeWaiting). But a drop between refreshes (kFlagMore) may name rows of an answer
  // of this version that was already sent and arrives only later. So do not keep such an answer.
  if (more && frame.entry_count == 2) {
    range.min_pulled = std::max(range.min_pulled, e.version + 1);
  }
  Row row;
  row.version = e.version;
  row.clock = e.clock;
  row.own = h.step;
  const float* const values = frame.values().As<float>().data();
  for (uint32_t i = 0; i < e.rows; ++i) Put(&range, keys[i], row, values + i * range.dim);
  if (more) return true;
  range.version = e.version;
  range.min_pulled = std::max(range.min_pulled, e.version);
  range.clock = e.clock;
  range.own = h.step;
  return true;
}

size_t RowCache::rows() const {
  size_t total = 0;
  for (const RangeRows& range : ranges_) total += range.rows.size();
  return total;
}

}  // namespace tandem::client
