#include "server/refresh_frames.h"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace tandem::server {
namespace {

// A buffer with the keys of both vectors, `first` before `second`.
Buffer KeysOf(absl::Span<const uint64_t> first, absl::Span<const uint64_t> second,
              BufferSource& buffers) {
  if (first.empty() && second.empty()) return Buffer();
  Buffer keys = buffers.Alloc((first.size() + second.size()) * sizeof(uint64_t));
  uint64_t* const to = keys.MutableAs<uint64_t>().data();
  std::copy_n(second.data(), second.size(), std::copy_n(first.data(), first.size(), to));
  return keys;
}

// Appends a frame that names dropped rows only. The flag MORE means that the frame says nothing
// about the other rows.
void AppendDropped(FrameHeader header, int rank, Range* range, BufferSource& buffers,
                   RefreshRows* rows, std::vector<Outgoing>* out) {
  Subscriptions& subscriptions = *range->subscriptions();
  const policies::RangeProgress& progress = range->progress();
  subscriptions.TakeDropped(rank, &rows->dropped);
  header.step = progress.workers[static_cast<size_t>(rank)].applied;
  header.flags = kFlagMore;
  header.request = subscriptions.NextNumber(rank);
  SliceEntry entries[2];
  entries[0].range = entries[1].range = range->id();
  entries[0].version = progress.version;
  entries[0].clock = progress.MinApplied();
  entries[1].rows = static_cast<uint32_t>(rows->dropped.size());
  out->push_back(
      {EndpointId::Worker(rank),
       EncodeDataFrame(buffers, header, entries, KeysOf({}, rows->dropped, buffers), Buffer())});
}

// Appends a whole refresh: one frame, or several if there are many changed rows. The last frame
// names the dropped rows.
void AppendRefresh(FrameHeader header, int rank, Range* range, BufferSource& buffers,
                   RefreshRows* rows, std::vector<Outgoing>* out) {
  Subscriptions& subscriptions = *range->subscriptions();
  const policies::RangeProgress& progress = range->progress();
  header.step = progress.workers[static_cast<size_t>(rank)].applied;
  std::vector<uint64_t>& changed = rows->changed;
  std::vector<uint64_t>& dropped = rows->dropped;
  subscriptions.Take(rank, header.step, &changed, &dropped);
  const size_t dim = static_cast<size_t>(range->store().dim());
  const size_t most = std::max<size_t>(1, kRefreshFrameBytes / (dim * sizeof(float)));
  bool last = false;
  for (size_t at = 0; !last; at += most) {
    const absl::Span<const uint64_t> some = absl::MakeConstSpan(changed).subspan(at, most);
    last = at + some.size() == changed.size();
    absl::Span<const uint64_t> forgotten;
    if (last) forgotten = dropped;
    header.flags = last ? 0 : kFlagMore;
    header.request = subscriptions.NextNumber(rank);
    SliceEntry entries[2];
    entries[0].range = entries[1].range = range->id();
    entries[0].rows = static_cast<uint32_t>(some.size());
    entries[0].row_floats = some.empty() ? 0 : static_cast<uint32_t>(dim);
    entries[0].version = progress.version;
    entries[0].clock = progress.MinApplied();
    entries[1].rows = static_cast<uint32_t>(forgotten.size());
    Buffer values;
    if (!some.empty()) {
      values = buffers.Alloc(some.size() * dim * sizeof(float));
      range->store().Pull(some, values.MutableAs<float>());
    }
    out->push_back(
        {EndpointId::Worker(rank),
         EncodeDataFrame(buffers, header, absl::MakeConstSpan(entries, forgotten.empty() ? 1 : 2),
                         KeysOf(some, forgotten, buffers), std::move(values))});
  }
}

}  // namespace

void AppendRefreshes(ShardRanges* ranges, BufferSource& buffers, RefreshRows* scratch,
                     std::vector<Outgoing>* out) {
  ranges->totals().TakeRefreshes(&scratch->ranges);
  for (const uint32_t id : scratch->ranges) {
    Range* const range = ranges->Find(id);
    if (range == nullptr) continue;  // moved away
    Subscriptions& subscriptions = *range->subscriptions();
    FrameHeader header = ranges->NewHeader();
    header.kind = FrameKind::kRefresh;
    header.group = range->table().plan->group;
    header.first_step = ranges->MinClock(header.group);
    header.samples = subscriptions.view();
    if (subscriptions.Grows(range->progress().MinApplied())) {
      for (int rank = 0; rank < range->table().workers; ++rank) {
        if (!subscriptions.Keeps(rank)) continue;
        AppendRefresh(header, rank, range, buffers, scratch, out);
      }
    }
    while (!subscriptions.MustForget().empty()) {
      AppendDropped(header, subscriptions.MustForget().front(), range, buffers, scratch, out);
    }
  }
}

}  // namespace tandem::server
