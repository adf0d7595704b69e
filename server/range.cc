#include "server/range.h"

#include <algorithm>
#include <bit>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "optim/fold.h"

namespace tandem {
namespace {

constexpr uint32_t kNoRow = ~uint32_t{0};

// No honest worker is further ahead of a step that all must close together.
constexpr int64_t kMaxOpenSteps = 4096;

// Versions count the steps of all workers; with this bound on steps they cannot overflow.
constexpr int64_t kMaxSteps = int64_t{1} << 46;

RangeStore::Options StoreOptions(const TableContext& table, uint64_t begin, uint64_t end) {
  RangeStore::Options options;
  options.dim = table.plan->dim;
  options.salt = table.plan->salt;
  options.seed = table.plan->seed;
  options.initializer = table.plan->initializer;
  options.optimizer = table.optimizer;
  // end 0 is 2^64, which unsigned subtraction gets right (and a full table gives 0: share 1).
  const double width = static_cast<double>(end - begin);
  const double share = width == 0 ? 1.0 : width / 0x1.0p64;
  options.expected_rows =
      static_cast<int64_t>(share * static_cast<double>(table.plan->expected_rows));
  return options;
}

}  // namespace

void Measure::Add(double value) {
  ++count;
  sum += value;
  max = std::max(max, value);
}

Range::Range(uint32_t id, uint64_t begin, uint64_t end, TableContext* table, FoldScratch* scratch)
    : id_(id),
      begin_(begin),
      end_(end),
      table_(table),
      scratch_(scratch),
      store_(StoreOptions(*table, begin, end)) {
  progress_.workers.resize(static_cast<size_t>(table->workers));
}

Range::Admission Range::Admit(uint64_t incarnation, int64_t first, HeldUpdate update,
                              bool finished) {
  if (update.rank < 0 || update.rank >= table_->workers) return Admission::kRefused;
  WorkerProgress& worker = progress_.workers[static_cast<size_t>(update.rank)];
  if (worker.incarnation == 0) worker.incarnation = incarnation;
  if (worker.incarnation != incarnation) return Admission::kRefused;
  if (first > update.step || update.step >= kMaxSteps ||
      (first < update.step && !update.keys.empty())) {
    return Admission::kRefused;
  }
  // What was read is in the past; a number from the future would spoil every mean.
  if (update.version_read < 0 || update.version_read > progress_.version) {
    return Admission::kRefused;
  }
  if (update.step < worker.admitted) return Admission::kDuplicate;
  if (first > worker.admitted) return Admission::kEarly;
  if (table_->policy->Lockstep() &&
      (first != update.step || update.step - progress_.version > kMaxOpenSteps)) {
    return Admission::kRefused;
  }

  const int64_t steps = update.step + 1 - worker.admitted;
  worker.admitted = update.step + 1;
  worker.finished = finished;
  const bool has_rows = !update.keys.empty();
  if (has_rows) ++table_->stats.arrived;
  const UpdatePolicy& policy = *table_->policy;
  const Arrival arrival = policy.OnArrival(progress_, update.rank, update.step);
  if (arrival == Arrival::kHold) {
    Hold(std::move(update));
    CloseSteps();
    return Admission::kAdmitted;
  }
  if (has_rows) {
    if (arrival == Arrival::kDrop || table_->plan->frozen) {
      Count(update, progress_.version, kFateDropped);
    } else {
      ApplyOne(update);
      Count(update, progress_.version, kFateApplied);
    }
  }
  worker.applied = worker.admitted;
  progress_.version += steps;  // each is a tick, also those of an empty push over several
  return Admission::kAdmitted;
}

bool Range::AssignRows(absl::Span<const uint64_t> keys, absl::Span<const float> values,
                       bool with_slots) {
  if (progress_.version != 0) return false;
  for (const WorkerProgress& worker : progress_.workers) {
    if (worker.admitted != 0) return false;
  }
  const size_t dim = static_cast<size_t>(store_.dim());
  const size_t slots = with_slots ? static_cast<size_t>(store_.slots_per_row()) : 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const absl::Span<const float> row = values.subspan(i * (dim + slots), dim + slots);
    store_.Assign(keys.subspan(i, 1), row.first(dim), row.subspan(dim));
  }
  return true;
}

void Range::Hold(HeldUpdate update) {
  // Steps of a worker come in order, so the step is at most one past the last open one; a catch-up
  // push that skips steps cannot come here, since all workers take each step together.
  const int64_t index = update.step - progress_.version;
  TANDEM_CHECK(index >= 0);
  while (static_cast<int64_t>(open_.size()) <= index) {
    HeldStep& added = open_.Add();
    added.step = progress_.version + static_cast<int64_t>(open_.size()) - 1;
  }
  HeldStep& step = open_[static_cast<size_t>(index)];
  step.samples += update.samples;
  if (update.keys.empty()) return;
  held_bytes_ += update.Bytes();
  step.Insert(std::move(update));
}

void Range::CloseSteps() {
  const UpdatePolicy& policy = *table_->policy;
  while (!open_.empty() && policy.MayClose(progress_)) {
    last_closed_samples_ = open_.front().samples;
    delayed_.Take(&open_);
    while (static_cast<int64_t>(delayed_.size()) > policy.Delay()) {
      ApplyFold(delayed_.front());
      delayed_.DropFront();
    }
    ++progress_.version;
    for (WorkerProgress& worker : progress_.workers) worker.applied = progress_.version;
  }
}

void Range::FinishDelayed() {
  for (; !delayed_.empty(); delayed_.DropFront()) ApplyFold(delayed_.front());
}

void Range::ApplyOne(const HeldUpdate& update) {
  if (update.samples == 0) return;
  const float scale = FoldFactor(static_cast<double>(update.samples)) *
                      table_->policy->Scale(progress_, update.rank, update.step);
  store_.Push(update.keys.As<uint64_t>(), update.values.As<float>(), scale);
}

void Range::ApplyFold(const HeldStep& step) {
  const bool drop = table_->plan->frozen || step.samples == 0;
  for (const HeldUpdate& update : step.updates) {
    held_bytes_ -= update.Bytes();
    Count(update, progress_.version, drop ? kFateDropped : kFateMerged);
  }
  if (drop || step.updates.empty()) return;
  const float factor = FoldFactor(static_cast<double>(step.samples));
  if (step.updates.size() == 1) {  // a fold of one is that one
    const HeldUpdate& only = step.updates.front();
    store_.Push(only.keys.As<uint64_t>(), only.values.As<float>(), factor);
    return;
  }
  FoldUnion(step);
  store_.ApplyToRows(scratch_->union_rows, scratch_->sums, factor);
}

// Sums the contributions of each row in rank order, starting from a copy of the first one.
void Range::FoldUnion(const HeldStep& step) {
  FoldScratch& s = *scratch_;
  size_t total = 0;
  for (const HeldUpdate& u : step.updates) total += u.keys.size() / sizeof(uint64_t);
  const size_t slots = std::bit_ceil(2 * total);
  s.slot_row.assign(slots, kNoRow);
  s.slot_index.resize(slots);
  s.union_rows.clear();
  const size_t dim = static_cast<size_t>(store_.dim());
  s.sums.resize(total * dim);
  for (const HeldUpdate& u : step.updates) {
    const absl::Span<const uint64_t> keys = u.keys.As<uint64_t>();
    const float* values = u.values.As<float>().data();
    s.rows.resize(keys.size());
    store_.FindOrCreate(keys, absl::MakeSpan(s.rows));
    for (size_t i = 0; i < keys.size(); ++i, values += dim) {
      size_t at = Mix64(s.rows[i]) & (slots - 1);
      while (s.slot_row[at] != kNoRow && s.slot_row[at] != s.rows[i]) at = (at + 1) & (slots - 1);
      if (s.slot_row[at] == kNoRow) {
        s.slot_row[at] = s.rows[i];
        s.slot_index[at] = static_cast<uint32_t>(s.union_rows.size());
        std::copy_n(values, dim, s.sums.data() + s.union_rows.size() * dim);
        s.union_rows.push_back(s.rows[i]);
      } else {
        FoldAdd(s.sums.data() + s.slot_index[at] * dim, values, dim);
      }
    }
  }
  s.sums.resize(s.union_rows.size() * dim);
}

void Range::Count(const HeldUpdate& update, int64_t version_applied, UpdateFate fate) {
  if (update.version_read == kReadByAnotherRun) return;
  TableStats& stats = table_->stats;
  (fate == kFateApplied ? stats.applied : fate == kFateMerged ? stats.merged : stats.dropped) += 1;
  stats.clock_gap.Add(update.clock_gap);
  stats.version_staleness.Add(static_cast<double>(version_applied - update.version_read));
  stats.in_flight.Add(update.in_flight);
  if (!table_->record) return;
  UpdateRecord record;
  record.step = update.step;
  record.version_read = update.version_read;
  record.version_applied = version_applied;
  record.samples = update.samples;
  record.range = id_;
  record.table = table_->plan->id;
  record.rows = static_cast<uint32_t>(update.keys.size() / sizeof(uint64_t));
  record.worker = static_cast<uint16_t>(update.rank);
  record.fate = fate;
  record.clock_gap = update.clock_gap;
  record.in_flight = update.in_flight;
  table_->records->push_back(record);
}

RangeImage Range::Head() const {
  RangeImage head;
  head.table = table_->plan->name;
  head.optimizer = table_->optimizer->name();
  head.dim = store_.dim();
  head.slots_per_row = store_.slots_per_row();
  head.begin = begin_;
  head.end = end_;
  head.progress = progress_;
  head.keys = store_.SortedKeys();
  head.held = absl::StrCat(std::string(reinterpret_cast<const char*>(&last_closed_samples_),
                                       sizeof last_closed_samples_),
                           EncodeHeld(open_, delayed_));
  return head;
}

RangeImage Range::Image() const {
  RangeImage image = Head();
  image.weights.resize(image.keys.size() * static_cast<size_t>(image.dim));
  image.slots.resize(image.keys.size() * static_cast<size_t>(image.slots_per_row));
  CopyRows(store_, image.keys, absl::MakeSpan(image.weights), absl::MakeSpan(image.slots));
  return image;
}

// What admission relies on: nothing is open for workers that are behind the version.
absl::Status Range::CheckProgress(const RangeProgress& progress) const {
  const bool lockstep = table_->policy->Lockstep();
  bool good = progress.version >= 0 && progress.version <= kMaxSteps * table_->workers;
  for (const WorkerProgress& worker : progress.workers) {
    good = good && worker.admitted >= 0 && worker.admitted <= kMaxSteps && worker.applied >= 0 &&
           worker.applied <= worker.admitted;
    if (lockstep) good = good && worker.admitted >= progress.version;
  }
  if (good) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("range ", id_, ": progress at version ", progress.version,
                                          " contradicts itself"));
}

absl::Status Range::CheckHeld() const {
  bool good = table_->policy->Lockstep() || (open_.empty() && delayed_.empty());
  int64_t next = progress_.version;
  for (size_t i = 0; i < open_.size(); ++i) good = good && open_[i].step == next++;
  for (const auto* steps : {&open_, &delayed_}) {
    for (size_t i = 0; i < steps->size(); ++i) {
      for (const HeldUpdate& update : (*steps)[i].updates) {
        const bool saved = update.version_read == kReadByAnotherRun;  // by any number of workers
        good = good && update.rank >= 0 && (saved || update.rank < table_->workers) &&
               (saved || update.version_read >= 0) && update.version_read <= progress_.version;
      }
    }
  }
  if (good) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("range ", id_, ": held updates do not fit version ", progress_.version));
}

absl::Status Range::Restore(const RangeImage& image, BufferSource& source) {
  TANDEM_RETURN_IF_ERROR(LoadInto(image, begin_, end_, &store_));
  if (image.progress.workers.size() != progress_.workers.size()) {
    return absl::InvalidArgumentError(absl::StrCat("range ", id_, ": progress of ",
                                                   image.progress.workers.size(), " workers, want ",
                                                   progress_.workers.size()));
  }
  if (image.held.size() < sizeof last_closed_samples_) {
    return absl::DataLossError(absl::StrCat("range ", id_, ": held part of ", image.held.size(),
                                            " bytes, want at least ", sizeof last_closed_samples_));
  }
  TANDEM_RETURN_IF_ERROR(CheckProgress(image.progress));
  progress_ = image.progress;
  image.held.copy(reinterpret_cast<char*>(&last_closed_samples_), sizeof last_closed_samples_);
  TANDEM_RETURN_IF_ERROR(
      DecodeHeld(absl::string_view(image.held).substr(sizeof last_closed_samples_), store_.dim(),
                 source, &open_, &delayed_));
  TANDEM_RETURN_IF_ERROR(CheckHeld());
  held_bytes_ = 0;
  for (const auto* steps : {&open_, &delayed_}) {
    for (size_t i = 0; i < steps->size(); ++i) {
      for (const HeldUpdate& update : (*steps)[i].updates) held_bytes_ += update.Bytes();
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem
