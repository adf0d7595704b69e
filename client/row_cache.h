// RowCache keeps rows at a worker, for tables whose policy says so (ESSP, Dai et al. 2015;
// policies/asynchronous.cc). Rows that a read brings are kept. Servers send a kept row again when
// it has changed, each time the slowest worker has completed another step (server/subscriptions.h).
// A read for step k takes from the cache the rows that are as new as SSP promises. Such a row
// contains all steps of every worker below k - bound and all of this worker's own steps below k -
// depth. Only the other rows are read from servers.
//
// The cache knows two things about a row. The first is about the row itself: the version of the
// range at which it was sent, and the clocks at that moment. The second is about its range: a
// refresh brings every row that has changed, so after the last refresh every kept row is as new as
// that refresh. Exceptions are rows that the worker pushed shortly before it (kRefreshLag) or
// pushes later; these rows wait for the next refresh. Refreshes are numbered. If one is missing, or
// if the range has moved to another shard, nothing is known about the kept rows any more, and the
// cache drops them. A lost refresh therefore costs reads, but no row is ever too old.
//
// Checkpoints do not contain the cache: a resumed run begins with an empty one.
//
// Thread safety: none; only the thread of its ClientCore uses it.
#ifndef TANDEM_CLIENT_ROW_CACHE_H_
#define TANDEM_CLIENT_ROW_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "absl/types/span.h"
#include "job/job.h"
#include "proto/frame.h"
#include "proto/range_map.h"

namespace tandem::client {

class RowCache {
 public:
  // `plan` must outlive the cache.
  explicit RowCache(const job::ResolvedJob& plan);

  // True if rows of tables of this group are kept.
  bool Keeps(uint32_t group) const { return plan_.groups[group].properties.keeps_rows; }
  // Sets the ranges. Call it before anything else. Later views have the same ranges.
  void OnView(const RangeMap& map);

  // Returns the row of `key` as a read for `step` may see it: `dim` floats, valid until the next
  // non-const call. Null: the row must be read from its server. *version becomes the version of the
  // range at which the row is known.
  const float* Find(uint32_t range, uint64_t key, int64_t step, int64_t* version) const;

  // Keeps rows that the answer to a read for `step` brought. `version` is that of the range, and
  // `clock` was its smallest clock then.
  void OnPulled(uint32_t range, int64_t step, int64_t version, int64_t clock,
                absl::Span<const uint64_t> keys, const float* rows);
  // Says that the worker's push of `step` has rows of these keys in the range.
  void OnPushed(uint32_t range, int64_t step, absl::Span<const uint64_t> keys);
  // Says that the worker's push of `step` is in flight, with or without rows.
  void OnPushBegun(uint32_t group, int64_t step);
  // Takes a REFRESH. A refresh that makes no sense is ignored and counts as lost; then the result
  // is false.
  bool OnRefresh(const ParsedFrame& frame);

  size_t rows() const;  // kept now

 private:
  struct Row {
    uint32_t place = 0;  // in `values`, counted in rows
    int64_t version = 0;
    int64_t clock = 0;    // the row contains all workers' steps below it
    int64_t own = 0;      // the row contains the worker's own steps below it
    int64_t pushed = -1;  // the worker's last push of this row, or a later step
  };
  struct RangeRows {
    uint32_t group = 0;
    size_t dim = 0;  // 0: rows of its table are not kept
    bool frozen = false;
    // From the last refresh.
    uint64_t view = 0, incarnation = 0, sequence = 0;
    int64_t version = -1, clock = -1, own = -1;
    // Answers of an older version are not kept. Such answers may lack changes that the last refresh
    // brought, or contain rows that the server has dropped from its list since it sent them.
    int64_t min_pulled = -1;
    std::unordered_map<uint64_t, Row> rows;
    std::vector<float> values;
    std::vector<uint32_t> free;  // places
  };

  bool Sensible(const ParsedFrame& frame) const;
  void Put(RangeRows* range, uint64_t key, const Row& row, const float* values);
  static void Drop(RangeRows* range, uint64_t key);
  static void DropAll(RangeRows* range);

  const job::ResolvedJob& plan_;
  const int64_t depth_;
  std::vector<RangeRows> ranges_;  // by id
  std::vector<int64_t> pushed_;    // by group: the last step whose push is in flight
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_ROW_CACHE_H_
