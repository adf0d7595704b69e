#include "tests/sim/proof/checked_world.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tests/sim/proof/toy_runner.h"

namespace tandem {

absl::StatusOr<std::unique_ptr<CheckedWorld>> CheckedWorld::New(
    const job::ResolvedJob& plan, const CheckedWorldOptions& options) {
  std::unique_ptr<CheckedWorld> world(new CheckedWorld(plan, options));
  TANDEM_RETURN_IF_ERROR(world->Init());
  return world;
}

CheckedWorld::CheckedWorld(const job::ResolvedJob& plan, const CheckedWorldOptions& options)
    : World(plan, WithRunner(options), this),
      explain_(options.explain),
      log_events_(options.log_events),
      checkpoints_(context()),
      server_checks_(context(), servers()) {
  if (!options.make_runner) MakeJudge(options);
}

sim::WorldOptions CheckedWorld::WithRunner(const sim::WorldOptions& options) {
  sim::WorldOptions with = options;
  if (options.make_runner) return with;
  with.make_runner = [this, evaluate = options.evaluate](const job::ResolvedJob& plan, int rank) {
    return ToyRunner::New(plan, rank, *model_, evaluate, *judge_);
  };
  return with;
}

void CheckedWorld::MakeJudge(const CheckedWorldOptions& options) {
  model_ = std::make_unique<ToyModel>(context().plan, options.model);
  Judge::Options judge;
  judge.explain = options.explain;
  judge.keep_ranges = options.log_events;
  judge.fail = [this](const std::string& what) { context().Fail(what); };
  judge.ledger = options.ledger;
  judge.step_of = [this](int rank) { return steps(rank); };
  judge_ = std::make_unique<Judge>(context().plan, *model_, std::move(judge));
  checkpoints_.set_judge(judge_.get());
  if (options.resume.has_value() && options.resume->delayed_finished) judge_->OnDelayedFinished();
}

// ---- events -----------------------------------------------------------------------------------

void CheckedWorld::OnResume(int rank, const TrainPosition& start) {
  if (judge_ != nullptr) judge_->Resume(rank, start);
}

void CheckedWorld::OnReplace(int rank, int64_t evaluations) {
  if (judge_ != nullptr) judge_->Replace(rank, evaluations);
}

void CheckedWorld::OnStep(int rank, int64_t step) {
  if (judge_ != nullptr) judge_->CheckGap(rank, step);
}

void CheckedWorld::OnPush(int rank, int64_t step) {
  if (judge_ != nullptr) judge_->OnPush(rank, step);
}

sim::SumObserver& CheckedWorld::sums() {
  if (judge_ != nullptr && judge_->quorum() != nullptr) return *judge_->quorum();
  return Observer::sums();
}

void CheckedWorld::OnRanges(const std::shared_ptr<const RangeMap>& ranges) {
  if (judge_ != nullptr) judge_->set_ranges(ranges);
}

void CheckedWorld::OnPushTaken(EndpointId shard, const ParsedFrame& push) {
  server_checks_.CountOpenSteps(shard, push);
}

void CheckedWorld::OnDelayedFinished() {
  if (judge_ != nullptr) judge_->OnDelayedFinished();
}

void CheckedWorld::AfterShard(EndpointId shard, const server::ShardEffects& effects) {
  if (log_events_) server_checks_.Log(shard, effects);
  if (judge_ != nullptr) {
    for (const server::UpdateRecord& record : effects.records) judge_->OnRecord(record);
    server_checks_.CheckSums(shard);
    server_checks_.CheckShares(shard);
  }
  server_checks_.CheckMemory(shard.index);
}

absl::Status CheckedWorld::OnRangeFile(const std::string& folder, const std::string& file,
                                       server::RangeImage image) {
  return checkpoints_.Add(folder, file, std::move(image));
}

absl::Status CheckedWorld::OnDenseFile(const std::string& folder, const std::string& bytes) {
  return checkpoints_.AddDense(folder, workers().dense(0).count(), bytes);
}

void CheckedWorld::OnCommit(const std::string& folder, const RangeMap& ranges, int64_t step,
                            const std::string& record) {
  checkpoints_.Commit(folder, ranges, step, record);
}

// ---- the end ----------------------------------------------------------------------------------

void CheckedWorld::OnEnd() {
  for (int rank = 0; rank < context().plan.workers(); ++rank) {
    if (workers().core(rank).finished()) continue;
    context().Fail(absl::StrCat("worker ", rank, " has not finished"));
  }
  if (context().plan.dense_table < 0) CheckReplicas();
  if (judge_ != nullptr) CheckFinalRows();
  CheckCounts();
  CheckSamples();
  CheckRowCounts();
  if (judge_ == nullptr) return;
  CheckEvaluations();
  if (judge_->quorum() != nullptr) CheckSumsMissed();
}

void CheckedWorld::CheckReplicas() {
  for (int rank = 1; rank < context().plan.workers(); ++rank) {
    if (DenseValues(rank) == DenseValues(0)) continue;
    context().Fail(absl::StrCat("dense parameters of workers 0 and ", rank, " differ"));
  }
}

void CheckedWorld::CheckFinalRows() {
  for (const auto& [table, key] : judge_->ledger().Rows()) {
    if (table == judge_->DenseTable()) continue;
    judge_->CheckEvaluated(0, table, key, Row(table, key), server_checks_.Version(table, key));
  }
  for (const job::TablePlan& table : context().plan.tables) {
    if (!table.frozen || server_checks_.RowCount(table.id) == 0) continue;
    context().Fail(absl::StrCat("frozen table ", table.name, " has ",
                                server_checks_.RowCount(table.id),
                                " rows; expected none, because only updates create rows"));
  }
  const bool on_servers = context().plan.dense_table >= 0;
  for (int rank = 0; rank < (on_servers ? 1 : context().plan.workers()); ++rank) {
    judge_->CheckDenseEvaluated(rank, DenseValues(rank));
  }
}

void CheckedWorld::CheckCounts() {
  for (const job::TablePlan& table : context().plan.tables) {
    const server::UpdateStats stats = Stats(table.id);
    const absl::optional<sim::ResumeFrom>& resume = context().options.resume;
    uint64_t sent = workers().updates_sent(table.id);
    if (parts().scheduler.vacated() > 0) {
      // The counts of a dead process are known only from its reports. This report is of the run.
      sent = report().updates_sent.at(table.name);
      for (int rank = 0; resume.has_value() && rank < resume->record.worker_size(); ++rank) {
        sent -= resume->record.worker(rank).updates(static_cast<int>(table.id));
      }
    }
    const uint64_t held = resume.has_value() ? resume->held[table.id] : 0;
    const uint64_t ended = stats.applied + stats.merged + stats.dropped;
    const uint64_t computed = judge_ == nullptr ? sent : judge_->computed(table.id);
    // A run that ends early keeps held-back updates for a resumed run.
    const absl::optional<BestEvaluation>& best = report().best;
    const bool may_hold = best.has_value() && best->stopped();
    const bool all_ended = ended == sent + held || (may_hold && ended < sent + held);
    if (sent == computed && stats.arrived == sent && all_ended &&
        stats.version_staleness.count == stats.applied + stats.merged) {
      continue;
    }
    context().Fail(absl::StrCat("table ", table.name, ": computed ", computed, ", sent ", sent,
                                ", arrived ", stats.arrived, ", applied ", stats.applied,
                                " + merged ", stats.merged, " + dropped ", stats.dropped,
                                ", measured ", stats.version_staleness.count));
  }
}

// Checks the samples that counted against a sum over the records of updates.
void CheckedWorld::CheckSamples() {
  if (judge_ == nullptr || !explain_) return;
  for (const job::TablePlan& table : context().plan.tables) {
    const server::SampleCounts is = Stats(table.id).samples, want = judge_->counted(table.id);
    const auto near = [](double a, double b) { return std::abs(a - b) <= 1e-9 * (1 + b); };
    if (is.sent == want.sent && is.labels_known && is.positives_sent == want.positives_sent &&
        near(is.applied, want.applied) && near(is.positives_applied, want.positives_applied)) {
      continue;
    }
    context().Fail(absl::StrCat("table ", table.name, ": counts ", is.applied, " of ", is.sent,
                                " samples, ", is.positives_applied, " of ", is.positives_sent,
                                " with label 1; its records have ", want.applied, " of ", want.sent,
                                " and ", want.positives_applied, " of ", want.positives_sent));
  }
}

// Checks that the admitted rows minus the evicted ones are the rows that exist, and that the report
// has the counts of the whole run. A move or a checkpoint may also bring more rows than AT_BUDGET
// has memory for. If the checkpoint has other ranges, it may bring more rows than LRU allows a
// range.
void CheckedWorld::CheckRowCounts() {
  const absl::optional<sim::ResumeFrom>& resume = context().options.resume;
  for (const job::TablePlan& table : context().plan.tables) {
    if (!table.has_row_rules()) continue;
    const server::RowCounts counts = server_checks_.Counts(table.id);
    const auto rows = static_cast<uint64_t>(server_checks_.RowCount(table.id));
    const uint64_t stayed = (resume.has_value() ? resume->rows[table.id] : 0) + counts.admitted;
    const Eviction::Kind kind = table.eviction.kind();
    const bool loses = (kind == Eviction::AT_BUDGET && (moves() > 0 || resume.has_value())) ||
                       (kind == Eviction::LRU && resume.has_value() && resume->other_ranges);
    const bool rows_add_up =
        loses ? rows + counts.evicted <= stayed : rows + counts.evicted == stayed;
    // A shard that gets a range at the end may apply its held updates after the report of the run.
    const bool reports_early =
        moves() > 0 && context().plan.groups[table.group].properties.delay > 0;
    Ledger::Ids ids;
    bool ids_add_up = true;
    if (judge_ != nullptr && explain_) {
      ids = judge_->ledger().ids(table.id);
      ids_add_up = counts.admitted + counts.refused <= ids.all && counts.to_fresh_rows <= ids.all;
      if (judge_->ledger().rules(table.id).certain()) {
        const RowReport& of_run = report().tables[table.id].row_counts();
        const Ledger::Ids ids_of_run = judge_->ledger().IdsOfRun(table.id);
        ids_add_up =
            ids_add_up && counts.admitted == ids.admitted && counts.refused == ids.refused &&
            (reports_early ||
             (of_run.admitted() == ids_of_run.admitted && of_run.refused() == ids_of_run.refused));
      }
    }
    if (rows_add_up && ids_add_up && counts.found <= counts.looked_up &&
        counts.came_back <= counts.sampled && counts.sampled <= counts.evicted) {
      continue;
    }
    context().Fail(absl::StrCat(
        "table ", table.name, ": has ", rows, " rows after ", moves(), " moves; resumed with ",
        stayed - counts.admitted, ", admitted ", counts.admitted, ", evicted ", counts.evicted,
        ", refused ", counts.refused, " of ", ids.all, " ids of folds, expected ", ids.admitted,
        " admitted and ", ids.refused, " refused if the rules are certain; to fresh rows ",
        counts.to_fresh_rows, ", sampled ", counts.sampled, ", came back ", counts.came_back,
        "; report of the run: ", report().tables[table.id].row_counts().ShortDebugString()));
  }
}

// Checks that the report contains the lateness of each gradient once.
void CheckedWorld::CheckSumsMissed() {
  uint64_t count = 0;
  double sum = 0;
  for (const Distribution& missed : report().dense_staleness_of) {
    count += missed.count();
    sum += missed.sum();
  }
  if (count == quorum().gradients() && sum == static_cast<double>(quorum().missed())) return;
  context().Fail(absl::StrCat("reported are ", count, " gradients that missed ", sum,
                              " sums, expected ", quorum().gradients(), " and ",
                              quorum().missed()));
}

void CheckedWorld::CheckEvaluations() {
  const bool every_epoch = context().plan.job.evaluation().every_epochs() == 1;
  const int64_t done = workers().core(0).epoch() + 1 - workers().first_epoch();
  const int epochs = every_epoch ? static_cast<int>(done) : 1;
  const int want = context().options.evaluate ? epochs : 0;
  if (workers().evaluations() == want) return;
  context().Fail(absl::StrCat(workers().evaluations(), " evaluations, expected ", want));
}

// ---- the model --------------------------------------------------------------------------------

std::vector<std::pair<uint32_t, uint64_t>> CheckedWorld::TrainedRows() const {
  return judge_ == nullptr ? std::vector<std::pair<uint32_t, uint64_t>>() : judge_->ledger().Rows();
}

std::vector<float> CheckedWorld::DenseValues(int rank) {
  const worker::DenseParameters& dense = workers().dense(rank);
  if (context().plan.dense_table < 0) return {dense.values().begin(), dense.values().end()};
  std::vector<float> values;
  for (const uint64_t block : dense.block_keys()) {
    const std::vector<float> row = Row(static_cast<uint32_t>(context().plan.dense_table), block);
    values.insert(values.end(), row.begin(), row.end());
  }
  values.resize(static_cast<size_t>(dense.count()));
  return values;
}

}  // namespace tandem
