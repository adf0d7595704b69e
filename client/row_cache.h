// Rows that a worker keeps of tables whose policy says so (ESSP, Dai et al. 2015; policies/
// asynchronous.cc). What a read brings is kept; servers send a kept row again when it has changed, each
// time the slowest worker has come a step further (server/subscriptions.h). A read for step k takes
// from here the rows that hold what SSP promises it, all steps of everybody below k - bound and all
// of the worker's own below k - depth, and reads only the others.
//
// What is known of a row is of two kinds. Its own: as of which version of the range it was sent, and
// the clocks of that moment. And that of its range: a refresh brings all that has changed, so with the
// last one every row that is here is of its moment, but for rows that the worker had pushed shortly
// before (kRefreshLag) or pushes later: those wait for the next one. Refreshes are numbered; if one is
// missing, or the range has come to another shard, nothing more is known of what is here, and it is
// dropped. A refresh that is lost for good so costs a read, and never a row that is too old.
//
// Nothing of this is saved: a run that goes on begins with an empty cache.
//
// Thread safety: none; it belongs to the thread of its ClientCore.
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
  // `plan` outlives the cache.
  explicit RowCache(const job::JobPlan& plan);

  // Are rows of tables of this group kept?
  bool Keeps(uint32_t group) const { return plan_.groups[group].properties.keeps_rows; }
  // Before anything else. Views that follow have the same ranges.
  void OnView(const RangeMap& map);

  // The row of `key` as a read for `step` may see it, `dim` floats, valid until the next call that
  // is not const; null: it must be read. *version: of the range, as of which the row is known.
  const float* Find(uint32_t range, uint64_t key, int64_t step, int64_t* version) const;

  // A read for `step` has been answered: these rows of the range, at its `version`, when `clock` was
  // its smallest.
  void OnPulled(uint32_t range, int64_t step, int64_t version, int64_t clock,
                absl::Span<const uint64_t> keys, const float* rows);
  // The worker's push of `step` has rows of these keys in the range.
  void OnPushed(uint32_t range, int64_t step, absl::Span<const uint64_t> keys);
  // ... and is under way, whatever rows it has.
  void OnPushBegun(uint32_t group, int64_t step);
  // A REFRESH. One that makes no sense is ignored; what it may have brought is then missed as if it had
  // been lost. False: it was ignored.
  bool OnRefresh(const ParsedFrame& frame);

  size_t rows() const;  // kept now

 private:
  struct Row {
    uint32_t place = 0;  // in `values`, in rows
    int64_t version = 0;
    int64_t clock = 0;    // steps of everybody below it are in the row
    int64_t own = 0;      // ... and the worker's own below this
    int64_t pushed = -1;  // the worker's last push of this row, or a later step
  };
  struct RangeRows {
    uint32_t group = 0;
    size_t dim = 0;  // 0: rows of its table are not kept
    bool frozen = false;
    // Of the last refresh.
    uint64_t view = 0, incarnation = 0, sequence = 0;
    int64_t version = -1, clock = -1, own = -1;
    // Answers of an older version are not kept: they may lack what the last refresh brought, or have rows that
    // the server has dropped since it sent them.
    int64_t least_pulled = -1;
    std::unordered_map<uint64_t, Row> rows;
    std::vector<float> values;
    std::vector<uint32_t> free;  // places
  };

  bool Sensible(const ParsedFrame& frame) const;
  void Put(RangeRows* range, uint64_t key, const Row& row, const float* values);
  static void Drop(RangeRows* range, uint64_t key);
  static void DropAll(RangeRows* range);

  const job::JobPlan& plan_;
  const int64_t depth_;
  std::vector<RangeRows> ranges_;  // by id
  std::vector<int64_t> pushed_;    // by group: the last step whose push is under way
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_ROW_CACHE_H_
