#include "tools/sim/world.h"

#include "absl/strings/str_cat.h"
#include "base/diverged.h"
#include "base/status_macros.h"
#include "tools/sim/toy_runner.h"

namespace tandem::sim {
absl::StatusOr<std::unique_ptr<World>> World::New(const job::ResolvedJob& plan,
                                                  const WorldOptions& options) {
  std::unique_ptr<World> world(new World(plan, options));
  TANDEM_RETURN_IF_ERROR(world->Init());
  return world;
}

// Passes each arriving message to a server or a worker.
World::World(const job::ResolvedJob& plan, const WorldOptions& options)
    : context_(plan, options),
      frames_(context_,
              [this](EndpointId to, const ParsedFrame& frame) {
                if (to.role == Role::kServer) return servers_.OnFrame(to, frame);
                workers_.OnFrame(to.index, frame);
              }),
      scheduler_(
          context_,
          [this](EndpointId to, const Control& control) {
            if (to.role == Role::kServer) return servers_.OnControl(to.index, control);
            workers_.OnControl(to.index, control);
          },
          [this](int rank) {
            context_.processes.Replace(EndpointId::Worker(rank));
            workers_.Replace(rank);
            frames_.ArriveAgain(rank);
            scheduler_.Comes(EndpointId::Worker(rank));
          }),
      checkpoints_(context_),
      servers_(context_, scheduler_, frames_, checkpoints_),
      workers_(context_, scheduler_, frames_, servers_, checkpoints_) {}

absl::Status World::Init() {
  const worker::MakeTaskRunner& given = context_.options.make_runner;
  const worker::MakeTaskRunner make_runner = given ? given : MakeToy();
  TANDEM_RETURN_IF_ERROR(servers_.Init());
  return workers_.Init(make_runner);
}

worker::MakeTaskRunner World::MakeToy() {
  model_ = std::make_unique<ToyModel>(context_.plan, context_.options.model);
  Judge::Options judge;
  judge.explain = context_.options.explain;
  judge.keep_ranges = context_.options.log_events;
  judge.fail = [this](const std::string& what) { context_.Fail(what); };
  judge.ledger = context_.options.ledger;
  judge.step_of = [this](int rank) { return steps(rank); };
  judge_ = std::make_unique<Judge>(context_.plan, *model_, std::move(judge));
  context_.judge = judge_.get();
  const absl::optional<ResumeFrom>& resume = context_.options.resume;
  if (resume.has_value() && resume->delayed_finished) judge_->OnDelayedFinished();
  return [this](const job::ResolvedJob& plan, int rank) {
    return ToyRunner::New(plan, rank, *model_, context_.options.evaluate, *judge_);
  };
}

// ---- the run ----------------------------------------------------------------------------------

absl::Status World::Run() {
  Begin();
  while (!ended()) RunNext();
  return Finish();
}

void World::Begin() {
  scheduler_.Register();
  scheduler_.StartClock();
  servers_.StartClocks();
  workers_.StartClocks();
  frames_.StartCuts();
  scheduler_.StartAccidents();
}

absl::Status World::Finish() {
  const absl::Status& result = scheduler_.core().result();
  if (context_.failure.ok() && !result.ok()) {
    context_.Fail(absl::StrCat("the scheduler ends the job: ", result.message()));
  }
  // Moving ranges arrive, and stopped processes continue.
  const auto settled = [this] {
    return servers_.Settled(scheduler_.core().view().number()) && !context_.processes.AnyStopped();
  };
  while (context_.failure.ok() && !settled()) RunNext();
  if (context_.failure.ok()) CheckEnd();
  if (context_.failure.ok() || absl::IsCancelled(context_.failure)) return context_.failure;
  absl::Status failure = absl::InternalError(
      absl::StrCat(context_.failure.message(), "\n", workers_.WhoWaits(), servers_.WhoWaits()));
  if (IsDiverged(context_.failure)) MarkDiverged(&failure);
  return failure;
}

void World::RunNext() {
  context_.agenda.RunNext();
  ++event_count_;
  if (context_.options.stopped && context_.options.stopped()) {
    context_.failure = absl::CancelledError("stopped");
  }
  if (elapsed() <= context_.options.limit) return;
  context_.Fail(absl::StrCat("not ended after ", absl::FormatDuration(context_.options.limit)));
}

// ---- the end ----------------------------------------------------------------------------------

void World::CheckEnd() {
  for (int rank = 0; rank < context_.plan.workers(); ++rank) {
    if (workers_.core(rank).finished()) continue;
    context_.Fail(absl::StrCat("worker ", rank, " has not finished"));
  }
  if (context_.plan.dense_table < 0) CheckReplicas();
  if (judge_ != nullptr) CheckFinalRows();
  CheckCounts();
  CheckRowCounts();
  if (judge_ == nullptr) return;
  CheckEvaluations();
  if (judge_->quorum() != nullptr) CheckSumsMissed();
}

void World::CheckReplicas() {
  for (int rank = 1; rank < context_.plan.workers(); ++rank) {
    if (DenseValues(rank) == DenseValues(0)) continue;
    context_.Fail(absl::StrCat("dense parameters of workers 0 and ", rank, " differ"));
  }
}

void World::CheckFinalRows() {
  for (const auto& [table, key] : judge_->ledger().Rows()) {
    if (table == judge_->DenseTable()) continue;
    judge_->CheckEvaluated(0, table, key, Row(table, key), servers_.Version(table, key));
  }
  for (const job::TablePlan& table : context_.plan.tables) {
    if (!table.frozen || servers_.RowCount(table.id) == 0) continue;
    context_.Fail(absl::StrCat("frozen table ", table.name, " has ", servers_.RowCount(table.id),
                               " rows; expected none, because only updates create rows"));
  }
  const bool on_servers = context_.plan.dense_table >= 0;
  for (int rank = 0; rank < (on_servers ? 1 : context_.plan.workers()); ++rank) {
    judge_->CheckDenseEvaluated(rank, DenseValues(rank));
  }
}

void World::CheckCounts() {
  for (const job::TablePlan& table : context_.plan.tables) {
    const server::UpdateStats stats = Stats(table.id);
    const absl::optional<ResumeFrom>& resume = context_.options.resume;
    uint64_t sent = workers_.updates_sent(table.id);
    if (scheduler_.vacated() > 0) {
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
    context_.Fail(absl::StrCat("table ", table.name, ": computed ", computed, ", sent ", sent,
                               ", arrived ", stats.arrived, ", applied ", stats.applied,
                               " + merged ", stats.merged, " + dropped ", stats.dropped,
                               ", measured ", stats.version_staleness.count));
  }
}

// Checks that the admitted rows minus the evicted ones are the rows that exist, and that the report
// has the counts of the whole run. A move or a checkpoint may also bring more rows than AT_BUDGET
// has memory for. If the checkpoint has other ranges, it may bring more rows than LRU allows a
// range.
void World::CheckRowCounts() {
  const absl::optional<ResumeFrom>& resume = context_.options.resume;
  for (const job::TablePlan& table : context_.plan.tables) {
    if (!table.has_row_rules()) continue;
    const server::RowCounts counts = servers_.Counts(table.id);
    const auto rows = static_cast<uint64_t>(servers_.RowCount(table.id));
    const uint64_t stayed = (resume.has_value() ? resume->rows[table.id] : 0) + counts.admitted;
    const Eviction::Kind kind = table.eviction.kind();
    const bool loses = (kind == Eviction::AT_BUDGET && (moves() > 0 || resume.has_value())) ||
                       (kind == Eviction::LRU && resume.has_value() && resume->other_ranges);
    const bool rows_add_up =
        loses ? rows + counts.evicted <= stayed : rows + counts.evicted == stayed;
    // A shard that gets a range at the end may apply its held updates after the report of the run.
    const bool reports_early =
        moves() > 0 && context_.plan.groups[table.group].properties.delay > 0;
    Ledger::Ids ids;
    bool ids_add_up = true;
    if (judge_ != nullptr && context_.options.explain) {
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
    context_.Fail(absl::StrCat(
        "table ", table.name, ": has ", rows, " rows after ", moves(), " moves; resumed with ",
        stayed - counts.admitted, ", admitted ", counts.admitted, ", evicted ", counts.evicted,
        ", refused ", counts.refused, " of ", ids.all, " ids of folds, expected ", ids.admitted,
        " admitted and ", ids.refused, " refused if the rules are certain; to fresh rows ",
        counts.to_fresh_rows, ", sampled ", counts.sampled, ", came back ", counts.came_back,
        "; report of the run: ", report().tables[table.id].row_counts().ShortDebugString()));
  }
}

// Checks that the report contains the lateness of each gradient once.
void World::CheckSumsMissed() {
  uint64_t count = 0;
  double sum = 0;
  for (const Distribution& missed : report().dense_staleness_of) {
    count += missed.count();
    sum += missed.sum();
  }
  if (count == quorum().gradients() && sum == static_cast<double>(quorum().missed())) return;
  context_.Fail(absl::StrCat("reported are ", count, " gradients that missed ", sum,
                             " sums, expected ", quorum().gradients(), " and ", quorum().missed()));
}

void World::CheckEvaluations() {
  const bool every_epoch = context_.plan.job.evaluation().every_epochs() == 1;
  const int64_t done = workers_.core(0).epoch() + 1 - workers_.first_epoch();
  const int epochs = every_epoch ? static_cast<int>(done) : 1;
  const int want = context_.options.evaluate ? epochs : 0;
  if (workers_.evaluations() == want) return;
  context_.Fail(absl::StrCat(workers_.evaluations(), " evaluations, expected ", want));
}

// ---- the model --------------------------------------------------------------------------------

std::vector<std::pair<uint32_t, uint64_t>> World::TrainedRows() const {
  return judge_ == nullptr ? std::vector<std::pair<uint32_t, uint64_t>>() : judge_->ledger().Rows();
}

std::vector<float> World::DenseValues(int rank) {
  const worker::DenseParameters& dense = workers_.dense(rank);
  if (context_.plan.dense_table < 0) return {dense.values().begin(), dense.values().end()};
  std::vector<float> values;
  for (const uint64_t block : dense.block_keys()) {
    const std::vector<float> row = Row(static_cast<uint32_t>(context_.plan.dense_table), block);
    values.insert(values.end(), row.begin(), row.end());
  }
  values.resize(static_cast<size_t>(dense.count()));
  return values;
}

}  // namespace tandem::sim
