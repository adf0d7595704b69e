#include "server/range.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/exhaustion.h"
#include "base/hash.h"
#include "base/memory_full.h"
#include "base/status_macros.h"
#include "job/job_budget.h"
#include "optim/fold.h"
#include "server/rows/row_limiter.h"

namespace tandem::server {
namespace {

constexpr uint32_t kNoRow = RowIndex::kNoRow;

constexpr float kSquareFloor = 1e-7f;  // added to a mean square before its root divides

// The share of [begin, end) in its table. End 0 means 2^64; unsigned subtraction gets that right.
// For a full table the subtraction gives 0, which means share 1.
double Share(uint64_t begin, uint64_t end) {
  const double width = static_cast<double>(end - begin);
  return width == 0 ? 1.0 : width / 0x1.0p64;
}

// The most rows of a range that a worker keeps: the range's share of `cache_rows`, rounded up,
// which makes it at least one (0, no bound, stays 0).
size_t MaxKept(const policies::Properties& policy, uint64_t begin, uint64_t end) {
  return static_cast<size_t>(std::ceil(Share(begin, end) * static_cast<double>(policy.cache_rows)));
}

// The limits of a range of the table.
RowLimits LimitsOf(const job::TablePlan& plan, uint64_t begin, uint64_t end) {
  RowLimits limits;
  if (plan.admission.kind() == Admission::COUNT) limits.threshold = plan.admission.threshold();
  if (plan.admission.kind() == Admission::PROBABILITY) {
    limits.probability = plan.admission.probability();
  }
  limits.within = plan.admission.within_versions();
  limits.zeros = plan.admission.unadmitted() == Admission::ZERO;
  if (plan.eviction.kind() == Eviction::AGE) limits.max_age = plan.eviction.versions();
  if (plan.eviction.kind() == Eviction::LRU) {
    limits.max_rows = static_cast<int64_t>(
        std::ceil(Share(begin, end) * static_cast<double>(plan.eviction.max_rows())));
  }
  limits.at_budget = plan.eviction.kind() == Eviction::AT_BUDGET;
  return limits;
}

RowTable::Options StoreOptions(TableContext* context, uint64_t begin, uint64_t end) {
  const TableContext& table = *context;
  RowTable::Options options;
  options.dim = table.plan->dim;
  options.salt = table.plan->salt;
  options.seed = table.plan->seed;
  options.initializer = table.plan->initializer;
  options.optimizer = table.optimizer;
  options.types = table.plan->types;
  options.table = table.plan->name;
  options.arena = table.arena;
  // With AT_BUDGET the index grows as its rows come: the memory for a large one may not be there.
  if (table.plan->eviction.kind() != Eviction::AT_BUDGET) {
    options.expected_rows =
        static_cast<int64_t>(Share(begin, end) * static_cast<double>(table.plan->expected_rows));
  }
  options.limits = LimitsOf(*table.plan, begin, end);
  options.may_grow = table.may_grow;
  options.counts = &context->stats.rows;
  return options;
}

// If the read of the update is known, sets scratch->rows_recorded and updates_as_read and returns
// true. The number of an absent row is kNoRow.
bool FindRecordedRows(const HeldUpdate& update, const PullTimes& reads, const RowTable& store,
                      FoldScratch* scratch) {
  const absl::Span<const uint64_t> keys = update.keys.As<uint64_t>();
  std::vector<uint32_t>& rows = scratch->rows_recorded;
  if (!reads.RowsOf(update.read, keys, &rows, &scratch->updates_as_read)) return false;
  // A row that was absent when it was read may exist now. With limits the number may belong
  // to another row now. Its earlier updates do not count.
  if (store.limited()) {
    scratch->rows.assign(rows.begin(), rows.end());
    store.Find(keys, absl::MakeSpan(rows));
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] != scratch->rows[i]) scratch->updates_as_read[i] = 0;
    }
  } else if (std::count(rows.begin(), rows.end(), kNoRow) > 0) {
    store.Find(keys, absl::MakeSpan(rows));
  }
  return true;
}

// The version of a read for RowLimiter.
int64_t KnownRead(const HeldUpdate& update) {
  return update.version_read == kReadByAnotherRun ? RowLimiter::kUnknownRead : update.version_read;
}

// The rows of one step of the optimizer, each key once.
absl::Status FindRows(absl::Span<const uint64_t> keys, absl::Span<const int64_t> read_at,
                      absl::Span<uint32_t> rows, PullTimes* reads, RowTable* store) {
  TANDEM_RETURN_IF_ERROR(store->RowsForUpdate(keys, read_at, rows));
  if (reads->by_row()) reads->OnCreated(store->created());
  return absl::OkStatus();
}

// Gives the optimizer the gradients of one update. Counts the update for the staleness of its rows.
absl::Status PushRows(const HeldUpdate& update, absl::Span<const float> gradients, float scale,
                      const optim::OptimizerStep& step, PullTimes* reads, RowTable* store,
                      FoldScratch* scratch) {
  const absl::Span<const uint64_t> keys = update.keys.As<uint64_t>();
  const bool limited = store->limited();
  if (!reads->by_row() && !limited) return store->Push(keys, gradients, scale, step);
  std::vector<uint32_t>& rows = scratch->rows_recorded;
  rows.resize(keys.size());
  scratch->reads.assign(limited ? keys.size() : 0, KnownRead(update));
  TANDEM_RETURN_IF_ERROR(FindRows(keys, scratch->reads, absl::MakeSpan(rows), reads, store));
  store->ApplyToRows(keys, rows, gradients, scale, step);
  if (reads->by_row()) reads->CountUpdate(rows);
  return absl::OkStatus();
}

// False if a row could not be created. The table of the range then has the reason.
bool Created(const absl::Status& status, const Range& range, TableContext* table) {
  if (status.ok()) return true;
  table->failure.Update(NoMemoryFor(range, status));
  return false;
}

// Measures row staleness: for each row of the last FindRecordedRows, the updates since the read.
RowStaleness CountRows(const PullTimes& reads, const FoldScratch& scratch, Measure* staleness,
                       std::vector<Sum>* by_popularity) {
  RowStaleness out;
  by_popularity->resize(std::numeric_limits<uint32_t>::digits + 1);
  for (size_t i = 0; i < scratch.rows_recorded.size(); ++i) {
    const uint32_t row = scratch.rows_recorded[i];
    const uint32_t updates = reads.Updates(row);
    const uint32_t since = reads.UpdatesSince(row, scratch.updates_as_read[i]);
    staleness->Add(since);
    (*by_popularity)[static_cast<size_t>(std::bit_width(updates))].Add(since);
    out.sum += since;
    out.max = std::max(out.max, since);
  }
  out.rows = static_cast<uint32_t>(scratch.rows_recorded.size());
  return out;
}

// Adds to the statistics of the table and to those of the worker. Statistics of a worker over all
// tables leave out frozen ones, whose updates are never applied.
template <typename Add>
void AddToStats(TableContext* table, int rank, const Add& add) {
  TableStats& stats = table->stats;
  add(&stats.total);
  if (table->over_tables == nullptr) {
    add(&stats.workers[static_cast<size_t>(rank)]);
  } else if (!table->plan->frozen) {
    add(&(*table->over_tables)[static_cast<size_t>(rank)]);
  }
}

// Counts the staleness of the rows of an update, if the range measures it.
RowStaleness MeasureRows(const HeldUpdate& update, const PullTimes& reads, const RowTable& store,
                         FoldScratch* scratch, TableContext* table) {
  if (update.read == PullTimes::kUnknown || !reads.by_row()) return {};
  if (!FindRecordedRows(update, reads, store, scratch)) return {};
  Measure values;
  const RowStaleness rows = CountRows(reads, *scratch, &values, &table->stats.by_popularity);
  AddToStats(table, update.rank,
             [&values](UpdateStats* stats) { stats->row_staleness.Merge(values); });
  return rows;
}

// A step of OptimizerStep::settles for all rows.
void SettleRows(RowTable* store) {
  constexpr size_t kRows = 256;
  std::vector<uint64_t> keys;
  std::vector<uint32_t> rows;
  uint64_t cursor = 0;
  do {
    keys.clear();
    rows.clear();
    cursor = store->Scan(cursor, kRows, &keys, &rows);
    const std::vector<float> none(keys.size() * static_cast<size_t>(store->dim()));
    store->ApplyToRows(keys, rows, none, 0, {.settles = true});
  } while (cursor != 0);
}

}  // namespace

void UpdateStats::Merge(const UpdateStats& other) {
  arrived += other.arrived;
  applied += other.applied;
  merged += other.merged;
  dropped += other.dropped;
  samples.Merge(other.samples);
  clock_gap.Merge(other.clock_gap);
  version_staleness.Merge(other.version_staleness);
  age.Merge(other.age);
  row_staleness.Merge(other.row_staleness);
}

Range::Range(uint32_t id, uint64_t begin, uint64_t end, TableContext* table, FoldScratch* scratch,
             RangeTotals* totals)
    : id_(id),
      begin_(begin),
      end_(end),
      table_(table),
      scratch_(scratch),
      store_(StoreOptions(table, begin, end)),
      order_(*table->policy, {.workers = table->workers,
                              .reads = table->reads,
                              .lockstep = table->lockstep,
                              .other_copies = table->plan->placement == Table::REPLICATED}),
      pull_times_(table->workers, table->reads, table->record && !table->plan->frozen),
      part_(id, table->plan->group, totals) {
  if (table->over_tables == nullptr) {
    table_->stats.workers.resize(static_cast<size_t>(table->workers));
  }
  const policies::Properties& policy = order_.properties();
  if (policy.keeps_rows) {
    subscriptions_ = std::make_unique<Subscriptions>(table->workers, MaxKept(policy, begin, end));
    // With AGE rows are gone before they are evicted (Subscriptions::OnVersion).
    const int64_t max_age = store_.options().limits.max_age;
    store_.settings().lists_evicted = max_age == 0;
    subscriptions_->set_max_age(max_age);
  }
  store_.settings().keeps_numbers = pull_times_.by_row();
  if (policy.rows_as_read && !table->plan->frozen) {  // a frozen row is always as read
    pulled_row_snapshots_ =
        std::make_unique<PulledRowSnapshots>(store_.dim(), table->workers, table->reads);
    if (policy.mean_square_decay > 0) {
      mean_squares_ = std::make_unique<MeanSquares>(store_.dim());
    }
  }
  if (policy.fold_by_worker && !table->plan->frozen) {
    worker_sums_ = std::make_unique<WorkerSums>(
        store_.dim(), table->workers,
        [this](const HeldUpdate& update) {
          return MeasureRows(update, pull_times_, store_, scratch_, table_);
        },
        &scratch_->fold, &scratch_->held_sums);
  }
  if (policy.store) writes_ = std::make_unique<RowWrites>();
  if (table->gradient_share > 0) {
    const int reads = table->reads + static_cast<int>(policy.delay);
    gradients_ = std::make_unique<GradientMeter>(store_.dim(), table->workers, reads,
                                                 table->gradient_share, table->plan->seed);
  }
  Report();
}

// Updates the part of this range in the totals of the shard. Every method that changes held bytes
// or progress ends with this call. An update whose result cannot be stored is noted, too.
void Range::Report() {
  const bool refresh =
      subscriptions_ != nullptr && subscriptions_->OwesRefresh(progress().MinApplied());
  const absl::Status& unstorable = store_.unstorable();
  table_->failure.Update(absl::IsResourceExhausted(unstorable) ? NoMemoryFor(*this, unstorable)
                                                               : unstorable);
  part_.Set(held_bytes(), policies::FrontOf(progress(), order_.properties()), refresh);
}

Range::Admission Range::Admit(absl::Time now, uint64_t incarnation, int64_t first,
                              HeldUpdate update, bool finished) {
  const int rank = update.rank;
  const int64_t step = update.step;
  const Admission admission =
      order_.Admit(absl::ToUnixMicros(now), incarnation, first, std::move(update), finished, this);
  HeldStep* const open = worker_sums_ == nullptr ? nullptr : order_.open_batch();
  if (admission == Admission::kAdmitted && open != nullptr && !open->updates.empty()) {
    const HeldUpdate& last = open->updates.back();
    if (last.rank == rank && last.step == step && last.has_rows()) {
      held_bytes_ -= worker_sums_->OnHeld(open);
    }
  }
  if (admission == Admission::kAdmitted || admission == Admission::kLate) Report();
  return admission;
}

void Range::OnAdmit(const HeldUpdate& update, int64_t first, bool finished) {
  if (table_->order == nullptr) return;
  table_->order->push_back(EntryOf(ordered(), update, first, finished));
}

void Range::OnCounted(HeldUpdate* update) {
  now_us_ = update->admitted_at;
  if (!update->has_rows()) return;
  AddToStats(table_, update->rank, [](UpdateStats* stats) { ++stats->arrived; });
  update->read = pull_times_.Take(*update);
}

void Range::Drop(const HeldUpdate& update) {
  if (update.has_rows()) Count(update, update.samples, kFateDropped, 0);
  ForgetRead(update);
}

// Notes the rows that are gone for the workers that keep them.
void Range::OnVersion() {
  if (!store_.limited()) return;
  const int64_t version = progress().version;
  store_.Advance(version);
  if (subscriptions_ == nullptr) return;
  subscriptions_->OnChanged(store_.TakeEvicted());
  subscriptions_->OnVersion(version, [this](uint64_t key) { return store_.PresentUntil(key); });
}

absl::Status LoadRows(const RangeImage& image, Range* range) {
  const absl::Status loaded = LoadInto(image, range->begin(), range->end(), &range->store());
  return absl::IsResourceExhausted(loaded) ? NoMemoryFor(*range, loaded) : loaded;
}

absl::Status NoMemoryFor(const Range& range, const absl::Status& why) {
  const bool has_hot = range.table().plan->types.hot_updates > 0;
  const char* const hot = has_hot ? ", or for a hot row," : "";
  return MemoryFullError(absl::StrCat(
      "table ", range.table().plan->name, ": no memory for another row", hot, " of range ",
      range.id(), ", whose ", range.store().size(), " rows take ", range.store().Memory().bytes(),
      " bytes; ", why.message(), "; ",
      IsMemoryFull(why) ? absl::StrCat("hint: ", job::kWaysToFit)
                        : absl::StrCat(MemoryLimitHint(), "; or use fewer rows, or more servers")));
}

std::string NearlyFullText(const std::vector<Range*>& ranges, const MemoryBudget& budget) {
  struct Part {
    int64_t rows = 0;
    size_t bytes = 0;
  };
  std::map<const job::TablePlan*, Part> parts;
  for (const Range* const range : ranges) {
    Part& part = parts[range->table().plan];
    part.rows += range->store().size();
    part.bytes += range->store().Memory().bytes();
  }
  const auto largest = std::max_element(
      parts.begin(), parts.end(),
      [](const auto& a, const auto& b) { return a.second.bytes < b.second.bytes; });
  const std::string table =
      largest == parts.end()
          ? "no table has rows"
          : absl::StrCat("table ", largest->first->name, ": ", largest->second.rows, " rows take ",
                         largest->second.bytes, " bytes of this shard");
  return absl::StrCat(table, "; the server uses ", budget.used(), " of ", budget.limit(),
                      " bytes, and the rest is for a last checkpoint");
}

bool Range::AssignRows(absl::Span<const uint64_t> keys, absl::Span<const float> values,
                       bool with_slots) {
  if (progress().version != 0 || progress().Admitted() != 0) return false;
  const size_t dim = static_cast<size_t>(store_.dim());
  const size_t slots = with_slots ? static_cast<size_t>(store_.slots_per_row()) : 0;
  for (size_t i = 0; i < keys.size(); ++i) {
    const absl::Span<const float> row = values.subspan(i * (dim + slots), dim + slots);
    const absl::Status set = store_.Assign(keys.subspan(i, 1), row.first(dim), row.subspan(dim));
    if (!Created(set, *this, table_)) break;
  }
  if (subscriptions_ != nullptr) subscriptions_->OnChanged(keys);
  return true;
}

void Range::ForgetWorker(int rank) {
  order_.ForgetWorker(rank);
  pull_times_.Forget(rank);
  if (pulled_row_snapshots_ != nullptr) {
    pulled_row_snapshots_->Forget(rank, std::numeric_limits<int64_t>::max());
  }
  if (gradients_ != nullptr) gradients_->Forget(rank, std::numeric_limits<int64_t>::max());
  if (subscriptions_ != nullptr) subscriptions_->Forget(rank);
  Report();
}

// Staleness is counted first, because the push itself counts as an update of its rows. The read is
// forgotten last, because counting and compensation look at it.
void Range::Apply(const HeldUpdate& update, const policies::Transform& transform) {
  const bool drop = table_->plan->frozen || transform.factor == 0.0f;
  if (!table_->plan->frozen && update.samples > 0) steps_.Count(&store_);
  if (update.keys.empty()) return;
  Count(update, update.samples, drop ? kFateDropped : kFateApplied, drop ? 0 : transform.share());
  if (!drop && update.samples > 0) {
    const float scale = optim::FoldFactor(static_cast<double>(update.samples)) * transform.factor;
    if (gradients_ != nullptr) gradients_->BeforeStep(update, progress().version, store_);
    Created(PushRows(update, Transformed(update, 1.0f, transform.compensation), scale,
                     steps_.At(table_->schedule.get(), update.sample_clock, transform),
                     &pull_times_, &store_, scratch_),
            *this, table_);
    if (gradients_ != nullptr) gradients_->AfterStep(store_, &table_->stats.gradients);
  }
  if (subscriptions_ != nullptr) {
    subscriptions_->OnUpdate(update.rank, update.step, update.keys.As<uint64_t>(), !drop);
  }
  ForgetRead(update);
}

// A worker that keeps rows computes its update from these rows and from rows that it kept earlier.
// There is no single moment of reading, so the time of such a read is not remembered.
void Range::RememberRead(absl::Time now, int rank, int64_t step, absl::Span<const uint64_t> keys,
                         absl::Span<const float> rows, bool kept) {
  if (rank < 0 || rank >= table_->workers || keys.empty()) return;
  if (kept && subscriptions_ != nullptr) {
    subscriptions_->OnRead(rank, step, keys);
    return Report();
  }
  // If the worker has pushed the step already, this read is a late copy of an earlier one. No
  // update will come from it.
  const bool awaited = !HasAdmitted(*this, rank, step);
  if (pulled_row_snapshots_ != nullptr) {
    pulled_row_snapshots_->Keep(rank, step, progress().version, keys, rows);
    Report();
  }
  if (!awaited) return;
  if (gradients_ != nullptr) {
    gradients_->OnRead(rank, step, progress().version, keys, rows);
    Report();
  }
  order_.OnRead(rank, step);
  std::vector<uint32_t>& numbers = scratch_->rows;
  numbers.resize(pull_times_.by_row() ? keys.size() : 0);
  if (pull_times_.by_row()) store_.Find(keys, absl::MakeSpan(numbers));
  pull_times_.OnRead(rank, step, progress().version, absl::ToUnixMicros(now),
                     pull_times_.by_row() ? keys : absl::Span<const uint64_t>(), numbers);
}

// Frees the read that the update came from. The update has been applied or dropped.
void Range::ForgetRead(const HeldUpdate& update) {
  pull_times_.Drop(update.read);
  if (update.version_read == kReadByAnotherRun) return;
  if (gradients_ != nullptr) gradients_->Forget(update.rank, update.step);
  if (pulled_row_snapshots_ != nullptr) pulled_row_snapshots_->Forget(update.rank, update.step);
}

bool Range::Keeps(const HeldUpdate& update) {
  if (!update.has_rows()) return false;
  if (table_->plan->frozen) {  // the update counts for its step, but no row will change
    ForgetRead(update);
    Count(update, update.samples, kFateDropped, 0);
    return false;
  }
  held_bytes_ += update.Bytes();
  return true;
}

void Range::FinishDelayed() {
  order_.FinishDelayed(this);
  if (table_->optimizer->settles()) SettleRows(&store_);
  Report();
}

// All updates are counted before the fold and forgotten after it, for the reasons of Apply.
void Range::Fold(HeldStep& step) {
  std::vector<uint64_t>& divisors = scratch_->divisors;
  if (worker_sums_ == nullptr) {
    divisors.assign(step.updates.size(), step.samples);
  } else {
    held_bytes_ -= worker_sums_->Close(&step, &divisors);
  }
  const bool drop = table_->plan->frozen || step.samples == 0;
  const policies::Group group = step.View();
  for (size_t i = 0; i < step.updates.size(); ++i) {
    const HeldUpdate& update = step.updates[i];
    held_bytes_ -= update.Bytes();
    if (update.rows() == 0) continue;  // it only has a part in the weight of its worker
    const policies::Transform transform = order_.TransformOf(update, group);
    const bool nothing = drop || transform.factor == 0.0f;
    Count(update, divisors[i], nothing ? kFateDropped : kFateMerged,
          nothing ? 0 : transform.share());
    if (gradients_ != nullptr && !nothing) {
      gradients_->BeforeStep(update, progress().version, store_);
    }
  }
  if (!drop) steps_.Count(&store_);
  if (!drop && !step.updates.empty()) FoldInto(step);
  if (gradients_ != nullptr) gradients_->AfterStep(store_, &table_->stats.gradients);
  for (const HeldUpdate& update : step.updates) ForgetRead(update);
}

// Gives the optimizer the mean gradient of a step. If each update has a divisor of its own, the sum
// of the updates is that mean.
void Range::FoldInto(const HeldStep& step) {
  const bool by_worker = worker_sums_ != nullptr;
  const float factor = by_worker ? 1.0f : optim::FoldFactor(static_cast<double>(step.samples));
  if (!by_worker && step.updates.size() == 1) {  // nothing to add up
    const HeldUpdate& only = step.updates.front();
    const policies::Transform transform = order_.TransformOf(only, step.View());
    if (transform.factor == 0.0f) return;
    Created(PushRows(only, Transformed(only, transform.factor, transform.compensation), factor,
                     steps_.At(table_->schedule.get(), step.sample_clock, transform), &pull_times_,
                     &store_, scratch_),
            *this, table_);
    return;
  }
  const optim::OptimizerStep of_fold = FoldUnion(step);
  const KeyedSums& fold = scratch_->fold;
  std::vector<uint32_t>& rows = scratch_->union_rows;
  rows.resize(fold.keys().size());
  const absl::Status found =
      FindRows(fold.keys(), fold.reads(), absl::MakeSpan(rows), &pull_times_, &store_);
  if (!Created(found, *this, table_)) return;
  store_.ApplyToRows(fold.keys(), rows, fold.sums(), factor, of_fold);
  if (pull_times_.by_row()) pull_times_.CountUpdate(rows);
}

// The gradient sums of an update after its policy's transform, [keys, dim].
absl::Span<const float> Range::Transformed(const HeldUpdate& update, float factor,
                                           float compensation) {
  const absl::Span<const float> values = update.values.As<float>();
  const bool compensate = compensation != 0.0f && pulled_row_snapshots_ != nullptr &&
                          update.samples > 0 && update.version_read != kReadByAnotherRun;
  if (factor == 1.0f && !compensate) return values;
  std::vector<float>& transformed = scratch_->transformed;
  transformed.assign(values.begin(), values.end());
  if (compensate) Compensate(update, compensation);
  for (float& value : transformed) value *= factor;
  return transformed;
}

// Adds the compensation of a late gradient (policies::Transform) to scratch_->transformed. The
// formula is for the mean gradient g / n. The result is multiplied by n again, because updates
// carry sums.
void Range::Compensate(const HeldUpdate& update, float compensation) {
  const absl::Span<const float> values = update.values.As<float>();
  const absl::Span<const uint64_t> keys = update.keys.As<uint64_t>();
  const size_t dim = static_cast<size_t>(store_.dim());
  const float n = static_cast<float>(update.samples);
  FoldScratch& s = *scratch_;
  s.rows_now.resize(values.size());
  store_.Pull(keys, absl::MakeSpan(s.rows_now));
  pulled_row_snapshots_->Find(update, keys, &s.rows_read);
  if (mean_squares_ != nullptr) {
    s.rows_squared.resize(keys.size());
    const absl::Status found = store_.FindOrCreate(keys, absl::MakeSpan(s.rows_squared));
    if (!Created(found, *this, table_)) return;
    store_.BeforeChange(keys, s.rows_squared);
    mean_squares_->Reserve(static_cast<size_t>(store_.size()));
  }
  const float decay = static_cast<float>(order_.properties().mean_square_decay);
  float of_sums = compensation / n;
  for (size_t i = 0; i < values.size(); ++i) {
    if (mean_squares_ != nullptr) {
      float& square = mean_squares_->Row(s.rows_squared[i / dim])[i % dim];
      square = decay * square + (1 - decay) * (values[i] / n) * (values[i] / n);
      of_sums = compensation / n / std::sqrt(square + kSquareFloor);
    }
    const float* const read = s.rows_read[i / dim];
    if (read == nullptr) continue;
    s.transformed[i] += of_sums * values[i] * values[i] * (s.rows_now[i] - read[i % dim]);
  }
}

// Adds up the contributions to each key in the order of the updates, starting from a copy of the
// first one. The updates of a step are in rank order, which gives the same bits in every run. Keys
// are in the order in which they first occur, which is the order in which rows are created. The
// rate of the fold is that of the step's sample clock, times the smallest one of the policy.
optim::OptimizerStep Range::FoldUnion(const HeldStep& step) {
  size_t total = 0;
  for (const HeldUpdate& u : step.updates) total += u.keys.size() / sizeof(uint64_t);
  KeyedSums& fold = scratch_->fold;
  fold.Start(total, static_cast<size_t>(store_.dim()), store_.limited());
  const policies::Group group = step.View();
  float rate = std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < step.updates.size(); ++i) {
    const HeldUpdate& u = step.updates[i];
    policies::Transform transform = order_.TransformOf(u, group);
    if (transform.factor == 0.0f) continue;
    if (worker_sums_ != nullptr) {
      transform.factor *= optim::FoldFactor(static_cast<double>(scratch_->divisors[i]));
    }
    rate = std::min(rate, transform.rate);
    const absl::Span<const float> values = Transformed(u, transform.factor, transform.compensation);
    fold.Add(u.keys.As<uint64_t>(), values.data(), KnownRead(u));
  }
  return steps_.At(table_->schedule.get(), step.sample_clock,
                   {.rate = std::isfinite(rate) ? rate : 1});
}

// Counts the update and measures its staleness. Call it before the update is applied.
void Range::Count(const HeldUpdate& update, uint64_t divided_by, UpdateFate fate, float share) {
  if (update.version_read == kReadByAnotherRun) return;
  UpdateRecord record;
  const bool counts = fate != kFateDropped;
  const bool timed = counts && update.read != PullTimes::kUnknown;
  RowStaleness rows = update.row_staleness;
  if (timed) {
    record.age = std::max<int64_t>(0, now_us_ - pull_times_.ReadAt(update.read));
    if (update.rows_before_sum < 0) {
      rows = MeasureRows(update, pull_times_, store_, scratch_, table_);
    }
  }
  table_->stats.in_flight.Add(update.in_flight);
  AddToStats(table_, update.rank, [&](UpdateStats* stats) {
    (fate == kFateApplied  ? stats->applied
     : fate == kFateMerged ? stats->merged
                           : stats->dropped) += 1;
    if (!table_->plan->frozen) stats->samples.Add(update, share);
    stats->clock_gap.Add(update.clock_gap);
    if (counts) stats->version_staleness.Add(progress().version - update.version_read);
    if (timed) stats->age.Add(record.age);
  });
  if (!table_->record) return;
  record.step = update.step;
  record.version_read = update.version_read;
  record.version_applied = progress().version;
  record.samples = update.samples;
  record.range = id_;
  record.table = table_->plan->id;
  record.rows = static_cast<uint32_t>(update.rows());
  record.worker = static_cast<uint16_t>(update.rank);
  record.fate = fate;
  record.clock_gap = update.clock_gap;
  record.in_flight = update.in_flight;
  record.admitted_at = update.admitted_at;
  record.divided_by = divided_by;
  record.row_staleness_sum = rows.sum;
  record.row_staleness_max = rows.max;
  record.rows_measured = rows.rows;
  table_->records->push_back(record);
}

// ---- copies -----------------------------------------------------------------------------------

// A checkpoint has an empty PulledRowSnapshots, because a resumed run pulls its rows again.
RangeCopy Range::Copy(bool for_move, std::shared_ptr<CopyBlocks> blocks) const {
  RangeCopy copy;
  copy.head.table = table_->plan->name;
  copy.head.optimizer = table_->optimizer->name();
  copy.head.dim = store_.dim();
  copy.head.slots_per_row = store_.slots_per_row();
  copy.head.types = store_.options().types;
  if (optim::ElementBytes(copy.head.types.state) < sizeof(float)) {
    copy.head.numbers_per_row = table_->optimizer->numbers_per_row();
  }
  copy.head.begin = begin_;
  copy.head.end = end_;
  copy.head.stamp = steps_.stamp;
  copy.head.step_base = steps_.base;
  copy.head.progress = progress();
  copy.head.progress.clocks = nullptr;  // owned by the range, and keep changing
  copy.head.limited = store_.limited();
  copy.salt = table_->plan->salt;
  copy.last_samples = order_.last_closed_samples();
  copy.open = order_.open();
  copy.delayed = order_.delayed();
  copy.in_batches = order_.properties().batch > 0;
  order_.EncodeMemory(&copy.memory_before);
  if (pulled_row_snapshots_ != nullptr) {
    const PulledRowSnapshots none(store_.dim(), table_->workers, table_->reads);
    copy.memory_after = (for_move ? *pulled_row_snapshots_ : none).Encode();
  }
  if (writes_ != nullptr) writes_->Encode(&copy.memory_after);
  const size_t dim = static_cast<size_t>(store_.dim());
  copy.has_squares = mean_squares_ != nullptr;
  copy.rows = !copy.has_squares
                  ? store_.NewCopies(std::move(blocks))
                  : store_.NewCopies(std::move(blocks), dim, [this](uint32_t row, float* to) {
                      mean_squares_->CopyRow(row, to);
                    });
  return copy;
}

std::string Range::Encode(uint64_t* left_out) const {
  RangeCopy copy = Copy(/*for_move=*/true, std::make_shared<CopyBlocks>());
  store_.CopyRows(0, std::numeric_limits<size_t>::max(), &copy.rows);
  if (left_out != nullptr) *left_out = static_cast<uint64_t>(store_.size()) - copy.rows.size();
  return std::move(copy).Encode();
}

absl::Status Range::DecodeMemory(absl::string_view bytes, bool same_range) {
  TANDEM_RETURN_IF_ERROR(Named(order_.DecodeMemory(&bytes)));
  if (mean_squares_ != nullptr) {
    const absl::Status decoded = mean_squares_->Decode(begin_, end_, &store_, &bytes);
    if (absl::IsResourceExhausted(decoded)) return NoMemoryFor(*this, decoded);
    TANDEM_RETURN_IF_ERROR(decoded);
  }
  // Rows as read belong to the keys of the old range. A resumed job reads its rows anew.
  if (!same_range) return absl::OkStatus();
  if (pulled_row_snapshots_ != nullptr) return pulled_row_snapshots_->Decode(bytes);
  if (writes_ != nullptr) return writes_->Decode(bytes);
  if (bytes.empty()) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat("range ", id_, ": ", bytes.size(), " bytes too many after its held updates"));
}

// The same error with the number of the range.
absl::Status Range::Named(const absl::Status& status) const {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("range ", id_, ": ", status.message()));
}

// The progress is checked before it is taken over, and the held updates are compared with it
// afterwards. The paces are a part of the policy's memory, so they come from DecodeMemory.
absl::Status Range::Restore(const RangeImage& image, BufferSource& source) {
  store_.StartAt(image.progress.version);
  TANDEM_RETURN_IF_ERROR(LoadRows(image, this));
  uint64_t numbers[2] = {};
  if (image.held.size() < sizeof numbers) {
    return absl::DataLossError(absl::StrCat("range ", id_, ": the held updates have ",
                                            image.held.size(), " bytes, expected at least ",
                                            sizeof numbers));
  }
  image.held.copy(reinterpret_cast<char*>(numbers), sizeof numbers);
  const absl::string_view rest = absl::string_view(image.held).substr(sizeof numbers);
  if (numbers[1] > rest.size()) {
    return absl::DataLossError(absl::StrCat("range ", id_, ": held updates of ", numbers[1],
                                            " bytes, but only ", rest.size(), " bytes follow"));
  }
  HeldQueue open, delayed;
  bool in_batches = false;
  TANDEM_RETURN_IF_ERROR(
      DecodeHeld(rest.substr(0, numbers[1]), store_.dim(), source, &open, &delayed, &in_batches));
  if (in_batches != (order_.properties().batch > 0)) {
    return absl::DataLossError(
        absl::StrCat("range ", id_, ": its held updates are of another policy"));
  }
  TANDEM_RETURN_IF_ERROR(
      Named(order_.Restore(image.progress, std::move(open), std::move(delayed), numbers[0])));
  steps_.Continue(image, &store_);
  TANDEM_RETURN_IF_ERROR(DecodeMemory(rest.substr(numbers[1]), /*same_range=*/true));
  TANDEM_RETURN_IF_ERROR(Named(order_.CheckHeld()));
  held_bytes_ = 0;
  for (const auto* steps : {&order_.open(), &order_.delayed()}) {
    for (size_t i = 0; i < steps->size(); ++i) {
      for (const HeldUpdate& update : (*steps)[i].updates) held_bytes_ += update.Bytes();
    }
  }
  Report();
  return absl::OkStatus();
}

}  // namespace tandem::server
