#include "tests/sim/proof/judge.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"

namespace tandem {
namespace {

constexpr size_t kMaxFetched = 32;  // steps of a worker that are fetched and not computed

}  // namespace

Judge::Judge(const job::ResolvedJob& plan, const ToyModel& model, Options options)
    : plan_(plan),
      model_(model),
      options_(std::move(options)),
      ledger_(options_.ledger == nullptr ? std::make_shared<Ledger>(model) : options_.ledger),
      workers_(static_cast<size_t>(plan.workers())),
      computed_(plan.tables.size(), 0),
      counted_(plan.tables.size()) {
  for (const job::GroupPlan& group : plan.groups) {
    auto policy = policies::NewUpdatePolicy(group.policy, plan.workers());
    TANDEM_CHECK(policy.ok());  // the plan has been checked
    policies_.push_back(*std::move(policy));
  }
  if (!job::SumsByQuorum(plan.job)) return;
  QuorumJudge::Options quorum = QuorumJudge::OptionsOf(plan);
  quorum.values = quorum.values && options_.explain;
  quorum_ = std::make_unique<QuorumJudge>(model, quorum, options_.fail);
}

// ---- inputs -----------------------------------------------------------------------------------

void Judge::OnEpoch(int rank, int64_t epoch, int64_t first_step) {
  WorkerState& worker = workers_[static_cast<size_t>(rank)];
  worker.epoch = epoch;
  worker.epoch_first_step = first_step;
}

void Judge::OnFetch(int rank, int64_t step) {
  const bool lives =
      std::any_of(plan_.tables.begin(), plan_.tables.end(),
                  [this](const job::TablePlan& table) { return HasLives(table.id); });
  if (!lives) return;
  std::map<int64_t, std::map<uint32_t, int64_t>>& fetched =
      workers_[static_cast<size_t>(rank)].fetched;
  fetched[step] = versions_;
  while (fetched.size() > kMaxFetched) fetched.erase(fetched.begin());
}

void Judge::Resume(int rank, const TrainPosition& start) {
  WorkerState& worker = workers_[static_cast<size_t>(rank)];
  worker.clock = start.step();
  worker.epoch = start.epoch();
  worker.epoch_first_step = start.first_step();
}

void Judge::Replace(int rank, int64_t evaluations) {
  WorkerState& worker = workers_[static_cast<size_t>(rank)];
  worker.computed_dead = worker.computed;
  worker.evaluations = evaluations;
}

bool Judge::IsAgain(int rank, int64_t step, uint32_t table, absl::Span<const uint64_t> keys) {
  WorkerState& worker = workers_[static_cast<size_t>(rank)];
  worker.computed = std::max(worker.computed, step + 1);
  if (step >= worker.computed_dead) return false;
  for (const uint64_t key : keys) {
    if (ledger_->Has(table, key, rank, step)) continue;
    options_.fail(absl::StrCat("the new process of worker ", rank, " trains step ", step,
                               " on other rows: table ", table, " key ", key));
  }
  return true;
}

void Judge::OnPush(int rank, int64_t step) {
  int64_t& clock = workers_[static_cast<size_t>(rank)].clock;
  clock = std::max(clock, step + 1);
}

void Judge::OnUpdates(int rank, int64_t step, uint32_t table, absl::Span<const uint64_t> keys,
                      double norm) {
  const bool dense = table == DenseTable();
  if (IsAgain(rank, step, table, dense ? absl::Span<const uint64_t>() : keys)) return;
  std::set<uint32_t> ranges;
  for (const uint64_t key : keys) {
    const uint32_t range = map_->Find(table, Position(plan_.tables[table].salt, key));
    if (!dense) ledger_->Record(table, key, range, rank, step, norm);
    ranges.insert(range);
  }
  computed_[table] += ranges.size() * map_->Copies(table);  // each copy gets the update
  if (options_.keep_ranges) ranges_of_[{rank, step}].insert(ranges.begin(), ranges.end());
}

// Counts and tickets are in the first block. Replicas apply the whole sum.
void Judge::OnDenseUpdate(int rank, int64_t step, absl::Span<const uint64_t> blocks, double norm) {
  if (quorum_ != nullptr) return quorum_->OnCompute(rank, step, std::llround(norm));
  if (!JudgesDense()) return;
  const uint32_t table = DenseTable();
  const uint32_t range =
      DenseOnServers() ? map_->Find(table, Position(plan_.tables[table].salt, blocks[0])) : table;
  if (IsAgain(rank, step, table, {&ToyModel::kDenseKey, 1})) return;
  ledger_->Record(table, ToyModel::kDenseKey, range, rank, step, norm);
  if (!DenseOnServers()) return Settle(range, rank, step, 1 / norm, {ledger_->NewFold(), step});
  OnUpdates(rank, step, table, blocks, norm);
}

void Judge::OnRecord(const server::UpdateRecord& record) {
  if (!options_.explain) return;
  policies::RangeProgress progress;
  progress.version = record.version_applied;
  progress.workers.resize(workers_.size());
  policies::Update update;
  update.rank = record.worker;
  update.step = record.step;
  update.samples = record.samples;
  update.version_read = record.version_read;
  update.admitted_at = record.admitted_at;
  update.positives = model_.Label(record.worker) == 1 ? record.samples : 0;
  double share = 0;
  float counts = 0;
  if (record.fate != server::kFateDropped) {
    const policies::Group group(absl::MakeConstSpan(&update, 1), record.divided_by);
    const policies::Transform transform =
        policies_[plan_.tables[record.table].group]->OnApply(progress, update, group);
    share = static_cast<double>(transform.factor) * transform.rate /
            static_cast<double>(record.divided_by);
    counts = transform.share();
  }
  if (!plan_.tables[record.table].frozen) {
    counted_[record.table].Add(update, counts);
  }
  Ledger::Fold fold;
  if (record.fate != server::kFateDropped) fold = FoldOf(record);
  if (const auto range = FirstOfCopies(record)) {
    Settle(*range, record.worker, record.step, share, fold);
  }
}

// Updates of one step, or of one batch, are applied as one step of the optimizer.
Ledger::Fold Judge::FoldOf(const server::UpdateRecord& record) {
  const policies::Properties& policy = PropertiesOf(record.table);
  LastFold& last = folds_[record.range];
  const bool merged = record.fate == server::kFateMerged;
  const int64_t step = policy.batch > 0 ? 0 : record.step;
  const bool same =
      merged && last.merged && last.version == record.version_applied && last.step == step;
  if (!same) last = {merged, record.version_applied, step, ledger_->NewFold()};
  versions_[record.range] = record.version_applied;
  return {last.number, record.version_applied};
}

// Each copy of a table records the result of an update once. Rows may show the update after the
// first of these records.
std::optional<uint32_t> Judge::FirstOfCopies(const server::UpdateRecord& record) {
  const uint32_t copies = map_->Copies(record.table);
  if (copies == 1) return record.range;
  const uint32_t first = map_->FirstRange(record.table);
  const uint32_t range = first + (record.range - first) % map_->RangeCount(record.table);
  std::set<uint32_t>& told = told_[{range, record.worker, record.step}];
  if (!told.insert(record.range).second) {
    options_.fail(absl::StrCat("range ", record.range, " has taken the update of worker ",
                               record.worker, " for step ", record.step, " twice"));
  }
  const bool is_first = told.size() == 1;
  if (told.size() == copies) told_.erase({range, record.worker, record.step});
  return is_first ? std::make_optional(range) : std::nullopt;
}

void Judge::Settle(uint32_t range, int rank, int64_t step, double share, const Ledger::Fold& fold) {
  const absl::Status settled = ledger_->Settle(range, rank, step, share, fold);
  if (!settled.ok()) options_.fail(std::string(settled.message()));
}

uint32_t Judge::DenseTable() const {
  return DenseOnServers() ? static_cast<uint32_t>(plan_.dense_table) : ~uint32_t{0};
}

std::set<uint32_t> Judge::RangesOf(int rank, int64_t step) const {
  const auto it = ranges_of_.find({rank, step});
  return it == ranges_of_.end() ? std::set<uint32_t>() : it->second;
}

// ---- reads ------------------------------------------------------------------------------------

void Judge::CheckRead(int rank, int64_t step, uint32_t table, uint64_t key,
                      absl::Span<const float> row) {
  if (!options_.explain) return;
  if (HasLives(table)) return CheckLivesRead(rank, step, table, key, row);
  const auto taken = ledger_->Explain(table, key, row);
  if (!taken.ok()) {
    return options_.fail(
        absl::StrCat("worker ", rank, " step ", step,
                     " reads what nobody can explain: ", taken.status().message()));
  }
  if (plan_.tables[table].frozen) {
    const double seen = *std::max_element(taken->begin(), taken->end());
    if (seen > Ledger::kTolerance)
      options_.fail(absl::StrCat("frozen table ", table, " has changed"));
    return;
  }
  CheckBounds(rank, step, table, key, *taken);
}

void Judge::CheckDenseRead(int rank, int64_t step, absl::Span<const float> row) {
  if (quorum_ != nullptr) return quorum_->CheckRead(rank, row);
  if (!options_.explain || !JudgesDense()) return;
  const uint32_t table = DenseTable();
  const auto taken = ledger_->Explain(table, ToyModel::kDenseKey, row);
  if (!taken.ok()) {
    return options_.fail(absl::StrCat("worker ", rank, " step ", step,
                                      " has dense parameters that nobody ",
                                      "can explain: ", taken.status().message()));
  }
  if (DenseOnServers()) {
    CheckBounds(rank, step, table, ToyModel::kDenseKey, *taken);
  } else {
    CheckExact(rank, step, table, ToyModel::kDenseKey, *taken);
  }
}

void Judge::CheckExact(int reader, int64_t step, uint32_t table, uint64_t key,
                       const std::vector<double>& taken) {
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    const double want = ledger_->WeightBefore(table, key, rank, step);
    if (std::abs(taken[static_cast<size_t>(rank)] - want) <= Ledger::kTolerance) continue;
    return options_.fail(absl::StrCat("worker ", reader, " reads table ", table, " key ", key,
                                      " with ", taken[static_cast<size_t>(rank)], " of worker ",
                                      rank, ", expected exactly the ", want, " of steps below ",
                                      step));
  }
}

void Judge::CheckBounds(int reader, int64_t step, uint32_t table, uint64_t key,
                        const std::vector<double>& taken) {
  const policies::Properties& policy = PropertiesOf(table);
  if (policy.lockstep || step < policy.switch_step) {
    const int64_t bound = policy.lockstep ? policy.read_bound : 0;
    return CheckExact(reader, step - bound, table, key, taken);
  }
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    const int64_t since = SeenBelow(reader, step, rank, policy);
    const double least = ledger_->WeightBefore(table, key, rank, since);
    if (taken[static_cast<size_t>(rank)] >= least - Ledger::kTolerance) continue;
    return options_.fail(absl::StrCat("worker ", reader, " step ", step, " reads table ", table,
                                      " key ", key, " with ", taken[static_cast<size_t>(rank)],
                                      " of worker ", rank, ", expected at least ", least,
                                      ": that of steps below ", since));
  }
}

int64_t Judge::SeenBelow(int reader, int64_t step, int rank,
                         const policies::Properties& policy) const {
  int64_t since = policy.switch_step;  // updates at steps below this must be there
  if (policy.read_bound < policies::kUnbounded) since = step - policy.read_bound;
  // A worker's own pushes may still wait for their batch.
  if (rank != reader || policy.batch > 0) return since;
  return std::max(since, step - plan_.job.train().prefetch_steps());
}

// A worker that has skipped steps reads later ones with what it had fetched for an earlier one.
int64_t Judge::VersionAtFetch(int rank, int64_t step, uint32_t range) const {
  const auto& fetched = workers_[static_cast<size_t>(rank)].fetched;
  const auto later = fetched.upper_bound(step);
  if (later == fetched.begin()) return 0;
  const std::map<uint32_t, int64_t>& versions = std::prev(later)->second;
  const auto version = versions.find(range);
  return version == versions.end() ? 0 : version->second;
}

// A read of a policy that takes steps together is at the version of its step. Otherwise it is later
// than the moment at which the worker began to read, unless the worker has kept the row.
void Judge::CheckLivesRead(int rank, int64_t step, uint32_t table, uint64_t key,
                           absl::Span<const float> row) {
  const policies::Properties& policy = PropertiesOf(table);
  const RowLives& lives = ledger_->Lives(table, key);
  const bool together = policy.lockstep || step < policy.switch_step;
  std::vector<int64_t> below;
  for (int other = 0; other < plan_.workers(); ++other) {
    below.push_back(policy.lockstep ? step - policy.read_bound
                    : together      ? step
                                    : SeenBelow(rank, step, other, policy));
  }
  RowLives::Moment moment;
  if (policy.lockstep) {
    moment = RowLives::Moment::At(step);
  } else if (!policy.keeps_rows) {
    moment.least = VersionAtFetch(rank, step, lives.range());
  }
  const size_t most = together ? lives.AtMost(below) : lives.size();
  const absl::Status checked =
      lives.Check(row, lives.AtLeast(below), most, moment, RowLives::Want::kAny);
  if (checked.ok()) return;
  options_.fail(absl::StrCat("worker ", rank, " step ", step, " reads table ", table, " key ", key,
                             ", which ", checked.message()));
}

// At an evaluation rows contain all pushes, except those that a fixed delay holds back. The last
// evaluation contains these, too.
void Judge::CheckEvaluated(int rank, uint32_t table, uint64_t key, absl::Span<const float> row,
                           int64_t version) {
  if (!options_.explain) return;
  absl::StatusOr<std::vector<double>> taken;
  if (!HasLives(table)) taken = ledger_->Explain(table, key, row);
  if (!HasLives(table) && !taken.ok()) {
    return options_.fail(
        absl::StrCat("evaluation at worker ", rank, ": ", taken.status().message()));
  }
  const bool on_servers = table < plan_.tables.size();
  if (on_servers && plan_.tables[table].frozen) return;
  int64_t delay = 0;
  if (on_servers && !delayed_finished_) {
    delay = PropertiesOf(table).delay;
  }
  // No batch may be open.
  for (int other = 0; on_servers && table != DenseTable() && other < plan_.workers(); ++other) {
    if (PropertiesOf(table).batch == 0 || ledger_->AllSettled(table, key, other)) continue;
    return options_.fail(absl::StrCat("evaluation at worker ", rank, ": an update of worker ",
                                      other, " for table ", table, " key ", key, " is still held"));
  }
  const int64_t all = std::numeric_limits<int64_t>::max();
  const int64_t below = delay == 0 ? all : options_.step_of(rank) - delay;
  if (!HasLives(table)) return CheckExact(rank, below, table, key, *taken);
  const RowLives& lives = ledger_->Lives(table, key);
  RowLives::Moment moment;
  if (version >= 0) moment = RowLives::Moment::At(version);
  const std::vector<int64_t> of_all(workers_.size(), below);
  const absl::Status checked =
      lives.Check(row, lives.AtLeast(of_all), lives.AtMost(of_all), moment, RowLives::Want::kAny);
  if (checked.ok()) return;
  options_.fail(absl::StrCat("evaluation at worker ", rank, ": table ", table, " key ", key, " ",
                             checked.message()));
}

std::vector<int64_t> Judge::SavedBelow(const policies::RangeProgress& progress,
                                       uint32_t table) const {
  const policies::Properties& policy = PropertiesOf(table);
  const bool by_step = policy.holds && policy.batch == 0;
  const bool switched = policy.switch_step > 0 && progress.version >= policy.switch_step;
  const int64_t delay = delayed_finished_ ? 0 : policy.delay;
  std::vector<int64_t> below;
  for (const policies::WorkerProgress& worker : progress.workers) {
    below.push_back(worker.admitted);
    if (by_step && !switched) below.back() = std::min(below.back(), progress.version - delay);
  }
  return below;
}

// The version says which batches the checkpoint has: each batch is another version.
void Judge::CheckLivesSaved(const policies::RangeProgress& progress, uint32_t table, uint64_t key,
                            absl::Span<const float> row) {
  const RowLives& lives = ledger_->Lives(table, key);
  const std::vector<int64_t> below = SavedBelow(progress, table);
  const bool batches = PropertiesOf(table).batch > 0;
  const size_t from = batches ? lives.Before(progress.version) : lives.AtLeast(below);
  const size_t to = batches ? from : lives.AtMost(below);
  const absl::Status checked =
      lives.Check(row, from, to, RowLives::Moment::At(progress.version),
                  row.empty() ? RowLives::Want::kAbsent : RowLives::Want::kRow);
  if (checked.ok()) return;
  options_.fail(absl::StrCat("checkpoint at version ", progress.version, ": table ", table, " key ",
                             key, " ", checked.message()));
}

// An open batch, and updates that a fixed delay holds back, are in the checkpoint beside the rows.
void Judge::CheckSaved(const policies::RangeProgress& progress, uint32_t table, uint64_t key,
                       absl::Span<const float> row) {
  if (!options_.explain) return;
  if (table == DenseTable() && key != 0) return;
  if (HasLives(table)) return CheckLivesSaved(progress, table, key, row);
  const uint64_t known = table == DenseTable() ? ToyModel::kDenseKey : key;
  const std::vector<float> initial(static_cast<size_t>(plan_.tables[table].dim),
                                   ToyModel::kFirstCount);
  const auto taken =
      ledger_->Explain(table, known, row.empty() ? absl::MakeConstSpan(initial) : row);
  if (!taken.ok()) {
    return options_.fail(absl::StrCat("checkpoint: ", taken.status().message()));
  }
  const std::vector<int64_t> saved = SavedBelow(progress, table);
  double all = 0;  // the weight of all workers
  for (int rank = 0; rank < plan_.workers(); ++rank) {
    const int64_t below = saved[static_cast<size_t>(rank)];
    const double most = ledger_->WeightBefore(table, known, rank, below);
    all += most;
    const double has = (*taken)[static_cast<size_t>(rank)];
    const bool enough = PropertiesOf(table).batch > 0 || has >= most - Ledger::kTolerance;
    if (enough && has <= most + Ledger::kTolerance) continue;
    return options_.fail(absl::StrCat("checkpoint: table ", table, " key ", key, " has ", has,
                                      " of worker ", rank, ", expected ", most,
                                      ": that of steps below ", below));
  }
  if (row.empty() || all > 0 || table == DenseTable()) return;
  options_.fail(absl::StrCat("checkpoint: table ", table, " key ", key,
                             " has a row, but no update created it"));
}

void Judge::CheckDenseSaved(int64_t step, absl::Span<const float> row) {
  if (!options_.explain || !JudgesDense()) return;
  const auto taken = ledger_->Explain(DenseTable(), ToyModel::kDenseKey, row);
  if (!taken.ok()) {
    return options_.fail(absl::StrCat("checkpoint: ", taken.status().message()));
  }
  CheckExact(/*reader=*/0, step, DenseTable(), ToyModel::kDenseKey, *taken);
}

void Judge::CheckGap(int rank, int64_t step) {
  int64_t bound = policies::kUnbounded;
  for (const job::GroupPlan& group : plan_.groups) {
    bound = std::min(bound, group.properties.clock_bound);
    if (step < group.properties.switch_step) bound = 0;
  }
  for (size_t other = 0; other < workers_.size(); ++other) {
    const WorkerState& worker = workers_[other];
    const bool has_data = worker.epoch == workers_[static_cast<size_t>(rank)].epoch &&
                          worker.clock - worker.epoch_first_step < model_.options().batches[other];
    if (has_data && step - worker.clock > bound) {
      options_.fail(absl::StrCat("worker ", rank, " starts step ", step, " while worker ", other,
                                 " has pushed ", worker.clock, ", bound ", bound));
    }
  }
}

}  // namespace tandem
