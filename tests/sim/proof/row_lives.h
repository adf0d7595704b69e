// The lives of one row of a table with admission or eviction (docs/JOB.md, "Rows that come and
// go"). A life begins with the update that creates the row and ends when the row is evicted, and
// the next one begins from the initial value. So each value of the row is that of an absent row, or
// the initial value and the updates of one life. This class knows all updates of the row, in order,
// and which lives the rules of the table allow. It shares no code with the store.
//
// With an admission by COUNT and an eviction by AGE (or without these) the lives follow from the
// updates alone. With the other rules they also depend on draws, on other rows and on memory. Then
// the values must be those of some life that the rules allow.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TESTS_SIM_PROOF_ROW_LIVES_H_
#define TANDEM_TESTS_SIM_PROOF_ROW_LIVES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "job/job.h"

namespace tandem {

struct RowRules {
  explicit RowRules(const job::TablePlan& table);

  bool limited = false;  // the table has such a rule; otherwise nothing below matters
  int threshold = 1;     // of COUNT
  int64_t within = 0;    // of COUNT; 0: no limit
  bool draws = false;    // PROBABILITY
  int64_t max_age = 0;   // of AGE; 0: rows do not age
  bool chooses = false;  // LRU or AT_BUDGET
  bool zeros = false;    // what an absent row reads as; otherwise its initial value

  // Which rows there are follows from the updates alone.
  bool certain() const { return !draws && !chooses; }
};

class RowLives {
 public:
  // An update of one worker; `weight` as in Ledger.
  struct Part {
    int rank = 0;
    int64_t step = 0, ticket = 0;
    double weight = 0;
  };
  // When a row was read: at one of these versions of its range.
  struct Moment {
    int64_t least = 0, most = std::numeric_limits<int64_t>::max();
    static Moment At(int64_t version) { return {version, version}; }
  };
  enum class Want { kAny, kRow, kAbsent };  // whether the row must be there

  // `range`: that of the row. `rules` must outlive this.
  RowLives(const RowRules* rules, int workers, uint32_t range)
      : rules_(rules), workers_(workers), range_(range) {}

  // The range has taken an update of the row, in its fold `number`, at this version. Updates with
  // the same number are one step of the optimizer; they come one after the other. True if the
  // update is the first one of its fold.
  bool Add(int64_t number, int64_t version, const Part& part);
  // Forgets the folds from the first one on that has an update which `stays` denies.
  void Cut(const std::function<bool(const Part& part)>& stays);

  uint32_t range() const { return range_; }
  // A resumed run may have the row in another range.
  void set_range(uint32_t range) { range_ = range; }
  size_t size() const { return folds_.size(); }  // folds
  // Whether this fold (from 0) has created the row, or was refused. Requires: certain rules.
  bool Creates(size_t fold) const { return folds_[fold].born == fold; }
  bool IsRefused(size_t fold) const { return folds_[fold].born == kNoLife; }

  // AtLeast: the smallest number of first folds that contain all updates of each worker `rank` at
  // steps below below[rank]. AtMost: the largest number of first folds without any other update.
  size_t AtLeast(absl::Span<const int64_t> below) const;
  size_t AtMost(absl::Span<const int64_t> below) const;
  // The folds that came before the range had this version.
  size_t Before(int64_t version) const;

  // INTERNAL unless `row` is what a reader may see after the first `from` to `to` folds.
  absl::Status Check(absl::Span<const float> row, size_t from, size_t to, Moment moment,
                     Want want) const;

 private:
  static constexpr size_t kNoLife = std::numeric_limits<size_t>::max();
  struct Fold {
    int64_t number = 0, version = 0;
    // Only with certain rules. `born`: the fold that created the row which exists after this fold;
    // kNoLife: no row exists, and `count` is that of the candidate.
    size_t born = kNoLife;
    int count = 0;
    std::vector<Part> parts;
  };

  void Live(Fold* fold) const;
  bool MayBegin(size_t fold) const;
  bool IsAbsent(absl::Span<const float> row) const;
  bool IsLife(absl::Span<const float> row, size_t begin, size_t end) const;
  bool MaySee(absl::Span<const float> row, size_t seen, Moment moment, Want want) const;
  bool MaySeeAbsent(size_t seen, Moment moment) const;

  const RowRules* const rules_;
  const int workers_;
  uint32_t range_;
  std::vector<Fold> folds_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_PROOF_ROW_LIVES_H_
