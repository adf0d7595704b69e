#include "proto/range_map.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/hash.h"

namespace tandem {

absl::StatusOr<std::shared_ptr<const RangeMap>> RangeMap::FromView(const View& view,
                                                                   const ClusterSizes& sizes) {
  auto map = std::make_shared<RangeMap>();
  map->view_ = view.number();
  map->names_ = sizes.tables;
  map->tables_.resize(sizes.tables.size());
  for (int i = 0; i < view.range_size(); ++i) {
    const RangeInfo& info = view.range(i);
    if (info.table() >= sizes.tables.size() ||
        info.server() >= static_cast<uint32_t>(sizes.servers) ||
        info.shard() >= static_cast<uint32_t>(sizes.shards_per_server)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "view ", view.number(), " range ", i, ": table ", info.table(), " on server ",
          info.server(), " shard ", info.shard(), " is not of this job"));
    }
    Table& table = map->tables_[info.table()];
    const bool first_of_table = table.count == 0;
    if (first_of_table) table.first = static_cast<uint32_t>(i);
    const uint64_t want_begin = first_of_table ? 0 : map->ranges_.back().end;
    const bool consecutive = table.first + table.count == static_cast<uint32_t>(i);
    const bool after_the_last = !first_of_table && want_begin == 0;
    const bool empty = info.end() != 0 && info.end() <= info.begin();
    if (!consecutive || after_the_last || empty || info.begin() != want_begin) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "view %u range %d [%#x, %#x) of table %s: want ranges in order that begin at %#x",
          view.number(), i, info.begin(), info.end(), sizes.tables[info.table()], want_begin));
    }
    ++table.count;
    map->ranges_.push_back(
        {info.table(), info.begin(), info.end(),
         EndpointId::Shard(static_cast<int>(info.server()), static_cast<int>(info.shard()))});
    map->begins_.push_back(info.begin());
  }
  for (size_t t = 0; t < sizes.tables.size(); ++t) {
    Table& table = map->tables_[t];
    if (table.count == 0 || map->ranges_[table.first + table.count - 1].end != 0) {
      return absl::InvalidArgumentError(absl::StrCat("view ", view.number(),
                                                     ": the ranges of table ", sizes.tables[t],
                                                     " do not reach the last position"));
    }
    table.equal = map->GuessIsRight(table);
  }
  return std::shared_ptr<const RangeMap>(std::move(map));
}

bool RangeMap::GuessIsRight(const Table& table) const {
  for (uint32_t i = 0; i < table.count; ++i) {
    const Range& range = ranges_[table.first + i];
    if (Guess(range.begin, table.count) != i) return false;
    if (Guess(range.end - 1, table.count) != i) return false;  // end 0 is 2^64
  }
  return true;
}

void RangeMap::FindAll(uint32_t table, uint64_t salt, absl::Span<const uint64_t> keys,
                       uint32_t* ids, uint32_t* ranks, uint32_t* counts) const {
  const Table t = tables_[table];
  const auto fill = [&](auto find) {
    for (size_t i = 0; i < keys.size(); ++i) {
      const uint32_t id = find(Position(salt, keys[i]));
      ids[i] = id;
      ranks[i] = counts[id]++;
    }
  };
  if (t.equal) {
    fill([&t](uint64_t p) { return t.first + static_cast<uint32_t>(Guess(p, t.count)); });
  } else {
    fill([this, table](uint64_t p) { return Find(table, p); });
  }
}

std::string RangeMap::Describe(uint32_t id) const {
  const Range& r = ranges_[id];
  return absl::StrFormat("%s, table %s, positions [%#x, %#x)", r.owner.DebugString(),
                         names_[r.table], r.begin, r.end);
}

}  // namespace tandem
