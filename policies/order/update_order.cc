#include "policies/order/update_order.h"

#include "absl/strings/str_cat.h"

namespace tandem::policies {
namespace {

// The most steps that a worker may push ahead of the oldest open one. No correct worker gets there,
// because its reads wait for the others.
constexpr int64_t kMaxOpenSteps = 4096;

// Versions count the steps of all workers; with this bound on steps they cannot overflow.
constexpr int64_t kMaxSteps = int64_t{1} << 46;

// Microseconds. Step times from files are clamped to it, since a file may contain any number.
constexpr int64_t kLongestStep = int64_t{24} * 3600 * 1'000'000;

}  // namespace

OrderState::OrderState(const UpdatePolicy& policy, const Options& options)
    : policy_(policy),
      properties_(policy.properties()),
      options_(options),
      clocks_(options.workers, properties_, &progress_) {
  if (properties_.measures_steps) progress_.paces.resize(progress_.workers.size());
  progress_.state.resize(properties_.state_bytes);
  if (properties_.counts_reads) {
    pulls_ = std::make_unique<PullSequence>(options.workers, options.reads);
  }
}

int64_t OrderState::NewestRead(const Update& update) const {
  return options_.other_copies ? std::max(progress_.version, update.step) : progress_.version;
}

// The order of the checks matters:
//   1. rank, incarnation, step numbers, version read: does the push make sense at all? Another
//      process of the same rank, for example, counts steps of its own.
//   2. duplicate: before the checks that depend on the state of the range. A resent push must be
//      acknowledged even if its range has moved on and would not accept the step any more.
//   3. early: the range needs the steps in between first. The checks below are about the next push
//      of a worker, so an early one must not reach them and be refused.
//   4. the policy's conditions on the next push.
Admission OrderState::Check(uint64_t incarnation, int64_t first, const Update& update,
                            bool has_rows) {
  if (update.rank < 0 || update.rank >= options_.workers) return Admission::kRefused;
  WorkerProgress& worker = progress_.workers[static_cast<size_t>(update.rank)];
  if (worker.incarnation == 0) worker.incarnation = incarnation;
  if (worker.incarnation != incarnation) return Admission::kRefused;
  const bool one_step = first == update.step;
  if (first > update.step || update.step >= kMaxSteps || (!one_step && has_rows)) {
    return Admission::kRefused;
  }
  // A worker cannot have read a version from the future. Such a number would spoil every mean.
  if (update.version_read < 0 || update.version_read > NewestRead(update)) {
    return Admission::kRefused;
  }
  if (update.step < worker.admitted) return Admission::kDuplicate;
  if (first > worker.admitted) return Admission::kEarly;
  if (properties_.lockstep && !one_step) return Admission::kRefused;
  const bool by_step = properties_.holds && properties_.batch == 0;
  if (by_step && one_step && update.step - progress_.version > kMaxOpenSteps) {
    return Admission::kRefused;
  }
  // The gradient belongs to a step after the switch (SYNC_SWITCH): its worker read other ranges
  // that have switched. This range has not switched yet, because pushes of other workers are still
  // on their way. The push waits until it has.
  if (update.samples > 0 && update.step >= properties_.switch_step &&
      progress_.version < properties_.switch_step) {
    return Admission::kEarly;
  }
  return Admission::kAdmitted;
}

int64_t OrderState::Count(int64_t now_us, int64_t first, bool finished, Update* update) {
  const bool one_step = first == update->step;
  const auto rank = static_cast<size_t>(update->rank);
  const int64_t steps = update->step + 1 - progress_.workers[rank].admitted;
  update->admitted_at = now_us;
  // In a job that takes steps together, a worker that has run out of data pushes empty steps.
  const bool nothing = one_step && update->samples == 0 && !update->skipped;
  clocks_.Admit(update->rank, update->step + 1,
                finished || (properties_.batch > 0 && options_.lockstep && nothing));
  if (!progress_.paces.empty()) {
    MeasureStep(&progress_.paces[rank], now_us, one_step && update->samples > 0);
  }
  return steps;
}

void OrderState::ForgetWorker(int rank) {
  progress_.workers[static_cast<size_t>(rank)].incarnation = 0;
  if (pulls_ != nullptr) pulls_->Forget(rank);
}

// ---- files ------------------------------------------------------------------------------------

void OrderState::EncodeMemory(std::string* out) const {
  if (pulls_ != nullptr) pulls_->Encode(out);
  for (const WorkerPace& pace : progress_.paces) {
    out->append(reinterpret_cast<const char*>(&pace.step_time), sizeof pace.step_time);
  }
  out->append(reinterpret_cast<const char*>(progress_.state.data()), progress_.state.size());
}

absl::Status OrderState::DecodeMemory(absl::string_view* bytes) {
  const size_t of_numbers = pulls_ == nullptr ? 0 : pulls_->EncodedBytes();
  const size_t needed =
      of_numbers + progress_.paces.size() * sizeof(int64_t) + progress_.state.size();
  if (bytes->size() < needed) {
    return absl::DataLossError(absl::StrCat("the memory of its policy has ", bytes->size(),
                                            " bytes, expected at least ", needed));
  }
  if (pulls_ != nullptr) pulls_->Decode(bytes->substr(0, of_numbers));
  bytes->remove_prefix(of_numbers);
  for (WorkerPace& pace : progress_.paces) {
    pace = {};
    bytes->copy(reinterpret_cast<char*>(&pace.step_time), sizeof pace.step_time);
    pace.step_time = std::clamp<int64_t>(pace.step_time, 0, kLongestStep);
    bytes->remove_prefix(sizeof pace.step_time);
  }
  bytes->copy(reinterpret_cast<char*>(progress_.state.data()), progress_.state.size());
  bytes->remove_prefix(progress_.state.size());
  return absl::OkStatus();
}

absl::Status OrderState::TakeProgress(const RangeProgress& progress) {
  if (progress.workers.size() != progress_.workers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("has the progress of ", progress.workers.size(),
                                                   " workers, expected ",
                                                   progress_.workers.size()));
  }
  bool good = progress.version >= 0 && progress.version <= kMaxSteps * options_.workers;
  for (const WorkerProgress& worker : progress.workers) {
    good = good && worker.admitted >= 0 && worker.admitted <= kMaxSteps && worker.applied >= 0 &&
           worker.applied <= worker.admitted;
    if (properties_.lockstep) good = good && worker.admitted >= progress.version;
  }
  if (!good) {
    return absl::DataLossError(
        absl::StrCat("the steps of its workers do not fit version ", progress.version));
  }
  progress_.version = progress.version;
  progress_.workers = progress.workers;
  clocks_.Reset();
  return absl::OkStatus();
}

// The run that wrote a checkpoint may have had any number of workers.
bool OrderState::MayBeHeld(const Update& update) const {
  const bool saved = update.version_read == kReadByAnotherRun;
  return update.rank >= 0 && (saved || update.rank < options_.workers) &&
         (saved || update.version_read >= 0) && update.version_read <= NewestRead(update);
}

absl::Status OrderState::DoNotFit(absl::string_view what) const {
  return absl::DataLossError(absl::StrCat(what, " do not fit version ", progress_.version));
}

absl::Status OrderState::OtherProgress() const {
  if (properties_.batch > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("has an open batch of other updates than another file of its table, and ",
                     policy_.name(), " cannot join the two"));
  }
  return absl::DataLossError(
      "its workers are at other steps than in another file of its table: is one of another "
      "checkpoint?");
}

absl::Status OrderState::OtherFile(size_t delayed, size_t other_delayed) {
  return absl::DataLossError(absl::StrCat("has ", delayed,
                                          " delayed steps, another file of its table ",
                                          other_delayed, ": is one of another checkpoint?"));
}

absl::Status OrderState::OtherFile(size_t open, size_t delayed, size_t other_open,
                                   size_t other_delayed) {
  return absl::DataLossError(absl::StrCat(
      "has ", open, " open and ", delayed, " delayed steps, another file of its table ", other_open,
      " and ", other_delayed, ": is one of another checkpoint?"));
}

}  // namespace tandem::policies
