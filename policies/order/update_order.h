// UpdateOrder decides what happens to the updates of a range. It admits pushes, holds, applies,
// folds or drops their updates, and moves the version, as the range's policy says. It has no rows,
// no gradients and no clock. server::Range uses it with a store, and the simulator of times counts
// and measures with it (tools/sim/timed_range.h). docs/ARCHITECTURE.md explains groups and ticks.
//
// UpdateOrder owns the progress of the workers, their clocks, the numbers of reads, the open groups
// and the delayed ones. It also loads, resumes, checks and encodes all of these.
//
// U is the type of an update. It derives from policies::Update. U::has_rows() says whether the
// update has rows in this range. U::kHasGradients is false for a simulation of times: without
// gradients there are no sums, so their order does not matter.
//
// UpdateOrder calls a sink, in this order. Each update of one step gets one of Apply, Keeps and
// Drop. An empty push over several steps that the policy holds gets none.
//
//   OnAdmit(u, first, finished)  The checks passed, and the progress does not count the push yet. A
//                                record belongs here: its entry has the version and the number of
//                                admitted steps before this push.
//   OnCounted(&u)                The progress counts the push. The sink may still write numbers
//                                into u.
//   Apply(u, transform)          The optimizer gets the update by itself.
//   Keeps(u) -> bool             The update joins a group, which counts it. True: the group also
//                                keeps it, until Fold.
//   Drop(u)                      The policy drops the update.
//   Fold(group)                  The optimizer gets the updates of a closed group as one step. The
//                                updates of a step are sorted by rank, if they have gradients.
//   OnVersion()                  The version moved. Rows changed by an Apply or a Fold before this
//                                call belong to the old version.
//
// FinishDelayed and FoldDue call Fold alone. Several ticks without a group call OnVersion once.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_POLICIES_ORDER_UPDATE_ORDER_H_
#define TANDEM_POLICIES_ORDER_UPDATE_ORDER_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/optional.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "policies/clocks.h"
#include "policies/order/held_groups.h"
#include "policies/order/pull_sequence.h"
#include "policies/policy.h"

namespace tandem::policies {

// Update::version_read of an update loaded from a checkpoint of another run. The other run counted
// the update, so this run does not.
inline constexpr int64_t kReadByAnotherRun = -1;

enum class Admission {
  kAdmitted,   // the update is held now, or was applied or dropped
  kLate,       // the push was admitted and dropped, and its worker skips steps because of that
  kDuplicate,  // the push was admitted before
  kEarly,      // an earlier step of this worker, or of others, is missing; nothing changed
  kRefused,    // the push violates the protocol
};

// The part of UpdateOrder that does not depend on the type of an update.
class OrderState {
 public:
  struct Options {
    int workers = 0;
    int reads = 1;          // reads of each worker whose updates may still be in flight
    bool lockstep = false;  // workers take steps together; without data they push empty steps
    // Workers read copies of their own, which may have closed steps that are still open here, but
    // only steps before the update's (REPLICATED tables).
    bool other_copies = false;
  };

  // The policy must outlive this.
  OrderState(const UpdatePolicy& policy, const Options& options);
  OrderState(const OrderState&) = delete;
  OrderState& operator=(const OrderState&) = delete;

  const UpdatePolicy& policy() const { return policy_; }
  const Properties& properties() const { return properties_; }
  const RangeProgress& progress() const { return progress_; }
  // The samples of the step that was closed last; 1 if all workers with data skipped it.
  uint64_t last_closed_samples() const { return last_closed_samples_; }
  // How an update of a group in Fold changes. An update of another run counts in full, because its
  // rank, step and version mean nothing to the policy of this run.
  Transform TransformOf(const Update& update, const Group& group) const {
    if (update.version_read == kReadByAnotherRun) return {};
    return policy_.OnApply(progress_, update, group);
  }
  bool HasAdmitted(int rank, int64_t step) const {
    return step < progress_.workers[static_cast<size_t>(rank)].admitted;
  }

  // Worker `rank` reads for `step`, which it has not pushed yet.
  void OnRead(int rank, int64_t step) {
    if (pulls_ != nullptr) pulls_->OnRead(rank, step);
  }
  // The process of worker `rank` has died. The next push sets the incarnation. The new process
  // repeats the reads of the steps that are not admitted: with the numbers of the old reads, a
  // policy would treat the new gradients as late.
  void ForgetWorker(int rank);

  // Appends the numbers of reads, the paces and the state, for a range move or a checkpoint. Of a
  // pace only the step time is written. The time of the last push is by this owner's clock, so it
  // means nothing to another owner.
  void EncodeMemory(std::string* out) const;
  // Removes them from the front of `bytes`. DATA_LOSS: too few bytes.
  absl::Status DecodeMemory(absl::string_view* bytes);

 protected:
  // Checks come first and change nothing but an unset incarnation, so that the caller can keep a
  // push answered kEarly and try it again. Returns kAdmitted if all pass.
  Admission Check(uint64_t incarnation, int64_t first, const Update& update, bool has_rows);
  // Counts steps [first, update->step] as admitted; returns their number.
  int64_t Count(int64_t now_us, int64_t first, bool finished, Update* update);
  // The newest version that a worker can have read for an update.
  int64_t NewestRead(const Update& update) const;
  // Takes over the version and the steps of a file. INVALID_ARGUMENT: another number of workers.
  // DATA_LOSS: numbers that Admit relies on are out of bounds or, in lockstep, a worker is behind
  // the version, so that its next step would belong to a group that is closed.
  absl::Status TakeProgress(const RangeProgress& progress);
  bool MayBeHeld(const Update& update) const;
  // Errors of files of one checkpoint that do not fit each other or themselves.
  absl::Status DoNotFit(absl::string_view what) const;
  absl::Status OtherProgress() const;
  static absl::Status OtherFile(size_t delayed, size_t other_delayed);
  static absl::Status OtherFile(size_t open, size_t delayed, size_t other_open,
                                size_t other_delayed);

  const UpdatePolicy& policy_;
  const Properties properties_;
  const Options options_;
  RangeProgress progress_;
  Clocks clocks_;                        // of progress_
  std::unique_ptr<PullSequence> pulls_;  // null unless the policy counts reads
  uint64_t last_closed_samples_ = 0;
};

template <typename U>
class UpdateOrder final : public OrderState {
 public:
  using OrderState::OrderState;

  const HeldGroups<U>& open() const { return open_; }  // by the ticks that will close them
  // The open group, if the policy has batches and one is open; else null. The caller may move
  // gradients from an update to another one.
  HeldGroup<U>* open_batch() {
    return properties_.batch == 0 || open_.empty() ? nullptr : &open_.front();
  }
  const HeldGroups<U>& delayed() const { return delayed_; }  // closed, not yet applied

  // Admits steps [first, update.step] of worker update.rank. Only a push without rows may cover
  // several steps (first < update.step). `finished`: the worker's clock counts as infinite until
  // its next push. `now_us` becomes update.admitted_at. After kDuplicate, kEarly and kRefused
  // nothing has changed but an unset incarnation.
  //
  // The policy sees the push already counted. The version moves last, because the policy decides
  // from what is held by then.
  template <typename Sink>
  Admission Admit(int64_t now_us, uint64_t incarnation, int64_t first, U&& update, bool finished,
                  Sink* sink) {
    Admission admission = Check(incarnation, first, update, update.has_rows());
    if (admission != Admission::kAdmitted) return admission;
    // The number of the read goes first, because a record of the order contains it.
    if (pulls_ != nullptr && (update.samples > 0 || update.skipped)) {
      const int64_t number = pulls_->Take(update.rank, update.step);
      if (update.read_number < 0) update.read_number = number;  // else known (TurnOrder)
    }
    sink->OnAdmit(update, first, finished);
    const bool one_step = first == update.step;
    Pushed pushed = {.steps = Count(now_us, first, finished, &update)};
    // An update without rows comes from no read of this range, so it is as new as the range.
    if (!update.has_rows()) update.version_read = progress_.version;
    sink->OnCounted(&update);
    const Arrival arrival = policy_.OnArrival(progress_, update);
    if (!progress_.state.empty()) {
      policy_.Remember(progress_, update, absl::MakeSpan(progress_.state));
    }
    switch (arrival) {
      case Arrival::kApply: {
        const Transform transform = policy_.OnApply(progress_, update);
        pushed.applied = update.samples > 0 && transform.factor != 0.0f ? 1 : 0;
        sink->Apply(update, transform);
        break;
      }
      case Arrival::kHold:
        // A push over several steps is empty and contributes to none of them.
        if (one_step) Hold(std::move(update), sink);
        break;
      case Arrival::kDrop:
        sink->Drop(update);
        if (properties_.skips && update.samples > 0) admission = Admission::kLate;
        break;
    }
    if (!properties_.holds) clocks_.ShowApplied();
    Tick(pushed, sink);
    return admission;
  }

  // Applies all held updates before the last evaluation: the queue of a fixed delay, in order, and
  // an open batch, which no further update will join. First closes the batch, which is the newest
  // group and joins the queue at its end.
  template <typename Sink>
  void FinishDelayed(Sink* sink) {
    if (properties_.batch > 0) {
      if (!open_.empty()) CloseGroups(1, sink);
      ShowApplied();
    }
    for (; !delayed_.empty(); delayed_.DropFront()) sink->Fold(delayed_.front());
  }

  // ---- files ----

  // DATA_LOSS: earlier files of the table had another number of delayed steps.
  absl::Status CheckLoad(size_t steps) const {
    if (!loaded_steps_.has_value() || steps == *loaded_steps_) return absl::OkStatus();
    return OtherFile(steps, *loaded_steps_);
  }
  // Loads the groups that a checkpoint of another run held: `saved`, of which the last `batches`
  // are open batches. Call once for each file before any step of this run, then FoldDue.
  // `cut(update)` is the part of an update that belongs here.
  //
  // The files of a table have the same delayed steps, so each file adds to the steps of the first.
  // The open batch of each file stays a batch of its own: its mean is over other samples.
  template <typename Cut>
  absl::Status Load(const HeldGroups<U>& saved, size_t batches, const Cut& cut) {
    const size_t steps = saved.size() - batches;
    const bool first = !loaded_steps_.has_value();
    TANDEM_RETURN_IF_ERROR(CheckLoad(steps));
    loaded_steps_ = steps;
    for (size_t i = 0; i < saved.size(); ++i) {
      HeldGroup<U>& group = first || i >= steps ? delayed_.Add() : delayed_[i];
      group.step = static_cast<int64_t>(i) - static_cast<int64_t>(saved.size());  // before step 0
      group.samples = saved[i].samples;
      group.sample_clock = 0;  // the other run's clock is not this run's
      for (const U& update : saved[i].updates) {
        U part = cut(update);
        if (!part.has_rows() && !properties_.fold_by_worker) continue;
        part.step = group.step;
        part.version_read = kReadByAnotherRun;
        part.read_number = -1;
        if (i < steps) {
          group.Insert(std::move(part));
        } else {
          group.updates.push_back(std::move(part));
        }
      }
    }
    return absl::OkStatus();
  }
  // Folds the delayed groups beyond the delay, in order. After Load: the queue continues, so the
  // first step that closes here applies the oldest step of the queue.
  template <typename Sink>
  void FoldDue(Sink* sink) {
    while (static_cast<int64_t>(delayed_.size()) > properties_.delay) {
      sink->Fold(delayed_.front());
      delayed_.DropFront();
    }
  }

  // Resumes from a file of this run: its progress and the numbers of its workers, unchanged.
  // Call once for each file, before any step, then ResumeHeld.
  absl::Status ResumeProgress(RangeProgress progress) {
    // The first push of each worker will set its new incarnation.
    for (WorkerProgress& worker : progress.workers) worker.incarnation = 0;
    if (resumed_ && properties_.counts_applied) {
      progress.version = progress_.version = std::max(progress.version, progress_.version);
    }
    if (resumed_ && progress != progress_) return OtherProgress();
    return TakeProgress(progress);
  }
  // Adds the held updates of a file. The files may cut the table into other ranges than this run.
  // `join(part, &whole)` then joins the parts of one update, so that the update counts once.
  // `last_samples`: last_closed_samples() of the range that wrote the file.
  template <typename Cut, typename Join>
  absl::Status ResumeHeld(const HeldGroups<U>& open, const HeldGroups<U>& delayed,
                          uint64_t last_samples, const Cut& cut, const Join& join) {
    if (resumed_ && properties_.fold_by_worker && !SameUpdates(open, open_)) return OtherProgress();
    if (resumed_ && properties_.counts_applied && !SameBatches(open, open_)) return OtherProgress();
    if (resumed_ && (open.size() != open_.size() || delayed.size() != delayed_.size())) {
      return OtherFile(open.size(), delayed.size(), open_.size(), delayed_.size());
    }
    last_closed_samples_ = last_samples;
    AddGroups(open, cut, join, &open_);
    AddGroups(delayed, cut, join, &delayed_);
    return absl::OkStatus();
  }
  // Ends the resume from a file. DATA_LOSS: the held updates do not fit the progress.
  absl::Status FinishResume() {
    resumed_ = true;
    return CheckHeld();
  }
  bool resumed() const { return resumed_; }

  // Takes over the state of a range that another owner encoded (a range move).
  absl::Status Restore(const RangeProgress& progress, HeldGroups<U> open, HeldGroups<U> delayed,
                       uint64_t last_samples) {
    TANDEM_RETURN_IF_ERROR(TakeProgress(progress));
    last_closed_samples_ = last_samples;
    open_ = std::move(open);
    delayed_ = std::move(delayed);
    return absl::OkStatus();
  }
  // Call it after Restore. DATA_LOSS: as FinishResume.
  absl::Status CheckHeld() {
    bool good = properties_.holds || (open_.empty() && delayed_.empty());
    int64_t next = progress_.version;
    for (size_t i = 0; i < open_.size(); ++i) good = good && open_[i].step == next++;
    for (const auto* groups : {&open_, &delayed_}) {
      for (size_t i = 0; i < groups->size(); ++i) {
        for (const U& update : (*groups)[i].updates) good = good && MayBeHeld(update);
      }
    }
    if (!good) return DoNotFit("held updates");
    FindWorkersInOpen();
    return absl::OkStatus();
  }

 private:
  template <typename Sink>
  void Hold(U&& update, Sink* sink) {
    // The steps of a worker come in order, so the group is at most one past the last open one,
    // unless the worker has skipped steps.
    const int64_t index = properties_.batch > 0 ? 0 : update.step - progress_.version;
    TANDEM_CHECK(index >= 0);
    while (static_cast<int64_t>(open_.size()) <= index) {
      HeldGroup<U>& added = open_.Add();
      added.step = progress_.version + static_cast<int64_t>(open_.size()) - 1;
    }
    HeldGroup<U>& group = open_[static_cast<size_t>(index)];
    group.samples += update.samples;
    if (update.samples > 0) group.sample_clock = std::max(group.sample_clock, update.sample_clock);
    group.skipped |= update.skipped;
    if (update.samples > 0 || (update.skipped && properties_.batch > 0)) ++group.contributions;
    const int rank = update.rank;
    const bool weighs = properties_.fold_by_worker && !update.has_rows();
    if (sink->Keeps(update) || weighs) group.updates.push_back(std::move(update));
    if (properties_.fold_by_worker) workers_in_open_.Add(rank);
  }

  // Whether the open group has an update of each worker that still has data.
  bool FromAll() const {
    if (open_.empty() || workers_in_open_.size() < progress_.Live()) return false;
    for (size_t rank = 0; rank < progress_.workers.size(); ++rank) {
      if (!progress_.workers[rank].finished && !workers_in_open_.has(rank)) return false;
    }
    return true;
  }
  void FindWorkersInOpen() {
    workers_in_open_.Clear();
    if (!properties_.fold_by_worker || open_.empty()) return;
    for (const U& update : open_.front().updates) {
      if (update.version_read != kReadByAnotherRun) workers_in_open_.Add(update.rank);
    }
  }

  // Moves the version as far as the policy says. Closing a group changes what is buffered, so the
  // policy is asked again. `applied` is set last, because it follows from the version and from the
  // groups that are still open.
  template <typename Sink>
  void Tick(Pushed pushed, Sink* sink) {
    for (;;) {
      const Buffered buffered = {static_cast<int64_t>(open_.size()),
                                 open_.empty() ? 0 : open_.front().contributions,
                                 properties_.fold_by_worker && FromAll()};
      const int64_t ticks = policy_.Ticks(progress_, buffered, pushed);
      if (ticks == 0) break;
      pushed = {};
      if (!properties_.holds) return MoveVersion(ticks, sink);
      CloseGroups(ticks, sink);
    }
    ShowApplied();
  }

  // Each tick folds before the version moves: an update is as stale as the version at which the
  // rows change. A closed group joins the delayed ones first, because a delay of 0 applies it at
  // once.
  template <typename Sink>
  void CloseGroups(int64_t ticks, Sink* sink) {
    for (; ticks > 0; --ticks) {
      if (open_.empty()) {  // the closed steps have no contributions
        last_closed_samples_ = 0;
        return MoveVersion(ticks, sink);
      }
      // A step that all workers with data have skipped does not look like the end of their data.
      last_closed_samples_ =
          std::max<uint64_t>(open_.front().samples, open_.front().skipped ? 1 : 0);
      if (U::kHasGradients && properties_.batch == 0) open_.front().SortByRank();
      delayed_.Take(&open_);
      workers_in_open_.Clear();
      FoldDue(sink);
      MoveVersion(1, sink);
    }
  }

  template <typename Sink>
  void MoveVersion(int64_t ticks, Sink* sink) {
    progress_.version += ticks;
    sink->OnVersion();
  }

  // Sets `applied`, the steps of each worker whose updates readers see. Updates in an open batch
  // are not visible yet; while a batch is open the numbers stay as they are.
  void ShowApplied() {
    if (!properties_.holds || (properties_.batch > 0 && !open_.empty())) return;
    clocks_.ShowApplied();
    // No worker has data and nothing is held, so no read is in flight. Some reads may have had no
    // push. Numbering restarts, so that read numbers and batches agree again.
    if (pulls_ != nullptr && progress_.Live() == 0) {
      pulls_->Restart(progress_.version * properties_.batch);
    }
  }

  // Adds the parts of saved updates that `cut` returns to the groups of files read earlier, or to
  // new groups if this is the first file. Updates of another run are not joined, because they do
  // not count and several updates of one worker may have the same step.
  template <typename Cut, typename Join>
  void AddGroups(const HeldGroups<U>& saved, const Cut& cut, const Join& join,
                 HeldGroups<U>* groups) {
    for (size_t i = 0; i < saved.size(); ++i) {
      HeldGroup<U>& group = resumed_ ? (*groups)[i] : groups->Add();
      group.step = saved[i].step;
      group.samples = saved[i].samples;
      // The batches of two files may have other updates, so their clocks may differ.
      group.sample_clock = std::max(group.sample_clock, saved[i].sample_clock);
      group.skipped |= saved[i].skipped;
      group.contributions = saved[i].contributions;
      for (const U& update : saved[i].updates) {
        U part = cut(update);
        if (!part.has_rows() && !properties_.fold_by_worker) continue;
        const auto other = std::find_if(
            group.updates.begin(), group.updates.end(),
            [&part](const U& u) { return u.rank == part.rank && u.step == part.step; });
        if (other != group.updates.end() && part.version_read != kReadByAnotherRun) {
          other->version_read = std::min(other->version_read, part.version_read);
          join(part, &*other);
        } else if (properties_.batch > 0) {
          group.updates.push_back(std::move(part));
        } else {
          group.Insert(std::move(part));
        }
      }
    }
  }

  // Whether the groups belong to the same versions and have as many updates and samples. Their
  // updates may then differ: each row was in one of the ranges alone, and keeps its divisor.
  static bool SameBatches(const HeldGroups<U>& a, const HeldGroups<U>& b) {
    bool same = a.size() == b.size();
    for (size_t i = 0; same && i < a.size(); ++i) {
      same = a[i].step == b[i].step && a[i].samples == b[i].samples &&
             a[i].contributions == b[i].contributions;
    }
    return same;
  }

  // Whether the groups have the same updates, maybe in another order.
  static bool SameUpdates(const HeldGroups<U>& a, const HeldGroups<U>& b) {
    const auto names = [](const HeldGroups<U>& groups) {
      std::vector<std::tuple<size_t, int, int64_t>> all;
      for (size_t i = 0; i < groups.size(); ++i) {
        for (const U& update : groups[i].updates) all.emplace_back(i, update.rank, update.step);
      }
      std::sort(all.begin(), all.end());
      return all;
    };
    return a.size() == b.size() && names(a) == names(b);
  }

  // A set of ranks.
  class Ranks {
   public:
    void Add(int rank) {
      const auto at = static_cast<size_t>(rank);
      if (at >= has_.size()) has_.resize(at + 1);
      if (!has_[at]) ++size_;
      has_[at] = true;
    }
    void Clear() {
      if (size_ > 0) has_.assign(has_.size(), false);
      size_ = 0;
    }
    int size() const { return size_; }
    bool has(size_t rank) const { return rank < has_.size() && has_[rank]; }

   private:
    std::vector<bool> has_;
    int size_ = 0;
  };

  Ranks workers_in_open_;                // with fold_by_worker: with updates in the open group
  HeldGroups<U> open_;                   // groups that ticks version, version + 1, ... will close
  HeldGroups<U> delayed_;                // closed, not yet applied
  absl::optional<size_t> loaded_steps_;  // delayed steps of the loaded files; nullopt: none loaded
  bool resumed_ = false;                 // a file of this run was taken over
};

}  // namespace tandem::policies

#endif  // TANDEM_POLICIES_ORDER_UPDATE_ORDER_H_
