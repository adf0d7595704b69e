#include "policies/clocks.h"

#include <algorithm>
#include <bit>

#include "base/check.h"

namespace tandem::policies {
namespace {

// The steps of a worker from step `from` on.
int64_t Beyond(int64_t admitted, int64_t from) { return std::max<int64_t>(0, admitted - from); }

}  // namespace

Clocks::Clocks(int workers, const Properties& properties, RangeProgress* progress)
    : progress_(*progress),
      holds_(properties.holds),
      by_step_(properties.holds && properties.batch == 0),
      switch_step_(properties.switch_step),
      leaves_(std::bit_ceil(static_cast<size_t>(std::max(1, workers)))),
      tree_(2 * leaves_) {
  TANDEM_CHECK(workers > 0);
  progress_.workers.assign(static_cast<size_t>(workers), WorkerProgress());
  progress_.clocks = this;
  is_behind_.resize(progress_.workers.size());
  behind_.reserve(progress_.workers.size());
  Reset();
}

// A checkpoint file may hold any `applied`. If the policy holds updates, the next ShowApplied
// therefore sets it anew for every worker.
void Clocks::Reset() {
  TANDEM_CHECK(progress_.workers.size() == is_behind_.size());
  live_ = 0;
  admitted_sum_ = beyond_sum_ = 0;
  behind_.clear();
  is_behind_.assign(is_behind_.size(), false);
  waiting_ = 0;
  shown_version_ = -1;
  for (size_t rank = 0; rank < progress_.workers.size(); ++rank) {
    const WorkerProgress& worker = progress_.workers[rank];
    live_ += worker.finished ? 0 : 1;
    admitted_sum_ += worker.admitted;
    beyond_sum_ += Beyond(worker.admitted, switch_step_);
    tree_[leaves_ + rank] = Of(worker);
    if (holds_) Expect(static_cast<int>(rank));
  }
  for (size_t n = leaves_ - 1; n > 0; --n) tree_[n] = Smaller(tree_[2 * n], tree_[2 * n + 1]);
}

Clocks::Least Clocks::Of(const WorkerProgress& worker) {
  Least least;
  least.admitted = worker.admitted;
  least.applied = worker.applied;
  if (!worker.finished) least.admitted_live = worker.admitted;
  if (!worker.finished) least.applied_live = worker.applied;
  return least;
}

Clocks::Least Clocks::Smaller(const Least& a, const Least& b) {
  return {std::min(a.admitted, b.admitted), std::min(a.applied, b.applied),
          std::min(a.admitted_live, b.admitted_live), std::min(a.applied_live, b.applied_live)};
}

// Carries the clocks of a worker up the tree.
void Clocks::Update(int rank) {
  size_t n = leaves_ + static_cast<size_t>(rank);
  tree_[n] = Of(progress_.workers[static_cast<size_t>(rank)]);
  for (n /= 2; n > 0; n /= 2) {
    const Least least = Smaller(tree_[2 * n], tree_[2 * n + 1]);
    if (tree_[n] == least) return;
    tree_[n] = least;
  }
}

// The next ShowApplied looks at this worker.
void Clocks::Expect(int rank) {
  if (is_behind_[static_cast<size_t>(rank)]) return;
  is_behind_[static_cast<size_t>(rank)] = true;
  behind_.push_back(rank);
}

void Clocks::Admit(int rank, int64_t admitted, bool finished) {
  WorkerProgress& worker = progress_.workers[static_cast<size_t>(rank)];
  live_ += (worker.finished ? 1 : 0) - (finished ? 1 : 0);
  admitted_sum_ += admitted - worker.admitted;
  beyond_sum_ += Beyond(admitted, switch_step_) - Beyond(worker.admitted, switch_step_);
  worker.admitted = admitted;
  worker.finished = finished;
  Expect(rank);
  Update(rank);
}

// A worker that stays behind has all closed steps shown. Its number changes with the version only.
void Clocks::ShowApplied() {
  const int64_t version = progress_.version;
  const bool all = !by_step_ || (switch_step_ > 0 && version >= switch_step_);
  size_t kept = version == shown_version_ ? waiting_ : 0;
  for (size_t i = kept; i < behind_.size(); ++i) {
    const int rank = behind_[i];
    WorkerProgress& worker = progress_.workers[static_cast<size_t>(rank)];
    worker.applied = all ? worker.admitted : std::min(worker.admitted, version);
    Update(rank);
    if (worker.applied < worker.admitted) {
      behind_[kept++] = rank;
    } else {
      is_behind_[static_cast<size_t>(rank)] = false;
    }
  }
  behind_.resize(kept);
  waiting_ = kept;
  shown_version_ = version;
}

// The first worker with the smallest clock, as RangeProgress::Slowest defines it; rank 0 if no
// worker has data.
int Clocks::Slowest() const {
  const int64_t least = tree_[1].admitted_live;
  if (least == kInfiniteClock) return 0;
  size_t n = 1;
  while (n < leaves_) n = tree_[2 * n].admitted_live == least ? 2 * n : 2 * n + 1;
  return static_cast<int>(n - leaves_);
}

}  // namespace tandem::policies
