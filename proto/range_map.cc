#include "proto/range_map.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/hash.h"

namespace tandem {

// Reads the ranges in the order of the view, in one pass, and checks each against those before it.
// The order of the checks:
//   1. table, server and shard exist: the rest uses them as indices.
//   2. the range continues its table: it is next to the table's ranges before it, and begins where
//      the last one ended, or at 0. A range that ends at 2^64 (end 0) ends a copy, and the next one
//      begins at 0 again. So the first such range says how many ranges a copy has (`count`), and
//      every later range must be cut as the same one of the first copy: FindAll finds ranges of
//      other copies by adding a multiple of `count`.
//   3. after all ranges: each table reaches 2^64 and has as many copies as the job says. That can
//      be known only at the end, since each copy could have been followed by another one.
absl::StatusOr<std::shared_ptr<const RangeMap>> RangeMap::FromView(const View& view,
                                                                   const ClusterSizes& sizes) {
  auto map = std::make_shared<RangeMap>();
  map->view_ = view.number();
  for (const Member& worker : view.worker()) map->workers_.push_back(worker.incarnation());
  map->names_ = sizes.tables;
  map->tables_.resize(sizes.tables.size());
  std::vector<uint32_t> ranges_met(sizes.tables.size(), 0);  // by table
  for (int i = 0; i < view.range_size(); ++i) {
    const RangeInfo& info = view.range(i);
    if (info.table() >= sizes.tables.size() ||
        info.server() >= static_cast<uint32_t>(sizes.servers) ||
        info.shard() >= static_cast<uint32_t>(sizes.shards_per_server)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "view ", view.number(), " range ", i, ": table ", info.table(), " on server ",
          info.server(), " shard ", info.shard(), " does not exist in this job"));
    }
    Table& table = map->tables_[info.table()];
    const auto copies =
        static_cast<uint32_t>(sizes.copies.empty() ? 1 : sizes.copies[info.table()]);
    uint32_t& met = ranges_met[info.table()];
    if (met == 0) table.first = static_cast<uint32_t>(i);
    const uint64_t want_begin = met == 0 ? 0 : map->ranges_.back().end;
    const bool consecutive = table.first + met == static_cast<uint32_t>(i);
    // The last range ended the first copy: now its number of ranges is known.
    if (met > 0 && want_begin == 0 && table.count == 0) table.count = met;
    const uint32_t copy = table.count == 0 ? 0 : met / table.count;
    const bool cut_alike =
        copy == 0 || (copy < copies && table.first + met % table.count < map->ranges_.size() &&
                      info.end() == map->ranges_[table.first + met % table.count].end);
    const bool empty = info.end() != 0 && info.end() <= info.begin();
    if (!consecutive || !cut_alike || empty || info.begin() != want_begin) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "view %u range %d [%#x, %#x) of table %s: expected ranges in order that begin at %#x",
          view.number(), i, info.begin(), info.end(), sizes.tables[info.table()], want_begin));
    }
    ++met;
    map->ranges_.push_back(
        {info.table(), info.begin(), info.end(),
         EndpointId::Shard(static_cast<int>(info.server()), static_cast<int>(info.shard())), copy});
    map->begins_.push_back(info.begin());
  }
  for (size_t t = 0; t < sizes.tables.size(); ++t) {
    Table& table = map->tables_[t];
    const uint32_t met = ranges_met[t];
    if (met == 0 || map->ranges_[table.first + met - 1].end != 0) {
      return absl::InvalidArgumentError(absl::StrCat("view ", view.number(),
                                                     ": the ranges of table ", sizes.tables[t],
                                                     " do not reach the last position"));
    }
    if (table.count == 0) table.count = met;
    table.copies = met / table.count;
    const int copies = sizes.copies.empty() ? 1 : sizes.copies[t];
    if (table.copies != static_cast<uint32_t>(copies)) {
      return absl::InvalidArgumentError(absl::StrCat("view ", view.number(), ": ", table.copies,
                                                     " copies of table ", sizes.tables[t],
                                                     ", expected ", copies));
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

void RangeMap::FindAll(uint32_t table, uint32_t copy, uint64_t salt,
                       absl::Span<const uint64_t> keys, uint32_t* ids, uint32_t* ranks,
                       uint32_t* counts) const {
  Table t = tables_[table];
  const uint32_t skipped = copy * t.count;
  t.first += skipped;
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
    fill([this, table, skipped](uint64_t p) { return skipped + Find(table, p); });
  }
}

std::string RangeMap::Describe(uint32_t id) const {
  const Range& r = ranges_[id];
  return absl::StrFormat("%s, table %s, positions [%#x, %#x)", r.owner.DebugString(),
                         names_[r.table], r.begin, r.end);
}

}  // namespace tandem
