// RangeMap is a view as cores use it: which shard owns which range, and which range contains a
// position. The map is immutable once built, and shared by reference.
#ifndef TANDEM_PROTO_RANGE_MAP_H_
#define TANDEM_PROTO_RANGE_MAP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "proto/endpoint.h"
#include "proto/wire.pb.h"

namespace tandem {

// The part of a job that a range map must agree with.
struct ClusterSizes {
  std::vector<std::string> tables;  // names, by id
  std::vector<int> copies;          // number of copies of each table's rows, by id; empty: one each
  int servers = 0;
  int shards_per_server = 0;
};

class RangeMap {
 public:
  struct Range {
    uint32_t table = 0;
    uint64_t begin = 0, end = 0;  // positions [begin, end); end 0 = 2^64
    EndpointId owner;
    uint32_t copy = 0;  // copy of the table to which the range belongs
  };

  // INVALID_ARGUMENT unless the ranges of each table cover its positions without gap or overlap, in
  // order, and each owner is an existing shard. A table with several copies has the ranges of each
  // copy, one copy after the other, with the same cuts.
  static absl::StatusOr<std::shared_ptr<const RangeMap>> FromView(const View& view,
                                                                  const ClusterSizes& sizes);

  uint32_t view() const { return view_; }
  // False if the view names another process as the worker of this rank. A process of an earlier
  // attempt may still send frames.
  bool MayBeWorker(int rank, uint64_t incarnation) const {
    const auto index = static_cast<size_t>(rank);
    return index >= workers_.size() || workers_[index] == incarnation;
  }
  // The incarnation of the worker of this rank; 0: the view does not name it.
  uint64_t IncarnationOf(int rank) const {
    const auto index = static_cast<size_t>(rank);
    return index < workers_.size() ? workers_[index] : 0;
  }
  const std::vector<Range>& ranges() const { return ranges_; }
  const Range& range(uint32_t id) const { return ranges_[id]; }

  // The id of the range that contains `position` of `table`, in its first copy.
  uint32_t Find(uint32_t table, uint64_t position) const {
    const Table& t = tables_[table];
    uint64_t i = Guess(position, t.count);
    const uint64_t* const begins = begins_.data() + t.first;
    while (begins[i] > position) --i;
    while (i + 1 < t.count && begins[i + 1] <= position) ++i;
    return t.first + static_cast<uint32_t>(i);
  }

  // For each key writes ids[i], the range of keys[i] in `copy` of `table` (whose salt is `salt`),
  // and ranks[i] = counts[id], and then increments counts[id]. Takes all keys of a request at once,
  // so that the processor can overlap them.
  void FindAll(uint32_t table, uint32_t copy, uint64_t salt, absl::Span<const uint64_t> keys,
               uint32_t* ids, uint32_t* ranks, uint32_t* counts) const;

  // The ranges of one copy of a table are numbered consecutively, and so are the copies of a table:
  // copy c has the ranges [first + c * count, first + (c + 1) * count).
  uint32_t FirstRange(uint32_t table) const { return tables_[table].first; }
  uint32_t RangeCount(uint32_t table) const { return tables_[table].count; }  // ranges of one copy
  uint32_t Copies(uint32_t table) const { return tables_[table].copies; }

  // For example "server 1 shard 0, table emb, positions [0x.., 0x..)".
  std::string Describe(uint32_t id) const;

 private:
  struct Table {
    uint32_t first = 0;
    uint32_t count = 0;  // ranges of one copy
    uint32_t copies = 1;
    bool equal = false;  // as EqualRanges cuts them: Guess is right for all positions
  };
  // The range that would contain `position` if there were `count` equal ranges, of which range i
  // begins at floor(2^64 i / count).
  static uint64_t Guess(uint64_t position, uint64_t count) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(position) * count + (count - 1)) >>
                                 64);
  }
  bool GuessIsRight(const Table& table) const;

  uint32_t view_ = 0;
  std::vector<uint64_t> workers_;  // incarnations by rank, as far as the view names them
  std::vector<Range> ranges_;
  std::vector<uint64_t> begins_;  // by range id
  std::vector<Table> tables_;
  std::vector<std::string> names_;  // of tables
};

}  // namespace tandem

#endif  // TANDEM_PROTO_RANGE_MAP_H_
