#include "scheduler/observe/summary.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/distribution.h"
#include "proto/histogram.h"

namespace tandem::scheduler {
namespace {

using nlohmann::json;

constexpr double kMicrosecond = 1e-6;

// The kinds of staleness of a table, or of one worker's updates of it.
template <typename Message>
json KindsJson(const Message& updates) {
  return {{"clock_gap", DistributionJson(updates.clock_gap())},
          {"version_staleness", DistributionJson(updates.version_staleness())},
          {"row_staleness", DistributionJson(updates.row_staleness())},
          {"age", DistributionJson(updates.age(), kMicrosecond)}};
}

// The shares of samples that counted: of all, and of those with each label. Empty if no update has
// ended. Without the labels if they are not known, or if none is 1.
json DataAppliedJson(const SampleShare& samples) {
  json out = json::object();
  const auto add = [&out](const char* name, double applied, uint64_t sent) {
    if (sent > 0) out[name] = applied / static_cast<double>(sent);
  };
  add("share", samples.applied(), samples.sent());
  if (samples.positives_sent() == 0) return out;
  add("label_1", samples.positives_applied(), samples.positives_sent());
  add("label_0", samples.applied() - samples.positives_applied(),
      samples.sent() - std::min(samples.sent(), samples.positives_sent()));
  return out;
}

// The same of a table, with the share of each worker in jobs that count pairs.
json DataAppliedJson(const TableReport& table) {
  json out = DataAppliedJson(table.samples());
  if (out.empty()) return out;
  for (const WorkerUpdates& worker : table.worker()) {
    const json share = DataAppliedJson(worker.samples());
    out["by_worker"].push_back(share.empty() ? json() : share["share"]);
  }
  return out;
}

// [fewest updates that a row had, values, mean, largest], for each group of rows that has values.
json PopularityJson(const TableReport& table) {
  json out = json::array();
  for (int b = 0; b < table.by_popularity_size(); ++b) {
    const Distribution& d = table.by_popularity(b);
    if (d.count() == 0) continue;
    const uint64_t fewest = b == 0 ? 0 : uint64_t{1} << (b - 1);
    out.push_back({fewest, d.count(), d.sum() / static_cast<double>(d.count()), d.max()});
  }
  return out;
}

using GradientCells = google::protobuf::RepeatedPtrField<GradientStaleness>;

json CellJson(const GradientStaleness& cell) {
  const auto rows = static_cast<double>(cell.rows());
  json out = {{"rows", cell.rows()},
              {"missed_rows", cell.missed_rows()},
              {"distance", cell.distance_sum() / rows},
              {"update", cell.update_sum() / rows}};
  if (cell.missed_rows() > 0) {
    out["cosine"] = cell.cosine_sum() / static_cast<double>(cell.missed_rows());
  }
  return out;
}

json CellsJson(const GradientCells& cells) {
  json out = json::array();
  for (int b = 0; b < cells.size(); ++b) {
    if (cells[b].rows() == 0) continue;
    out.push_back(CellJson(cells[b]));
    out.back()["from"] = b == 0 ? 0 : uint64_t{1} << (b - 1);
  }
  return out;
}

json StalenessJson(const TableReport& table) {
  json out = KindsJson(table);
  out["in_flight_depth"] = DistributionJson(table.in_flight_depth());
  out["row_staleness_by_popularity"] = PopularityJson(table);
  json gradients = GradientsJson(table);
  if (!gradients.empty()) {
    gradients["by_staleness"] = CellsJson(table.gradients_by_staleness());
    gradients["by_popularity"] = CellsJson(table.gradients_by_popularity());
    out["gradients"] = std::move(gradients);
  }
  out["by_worker"] = json::array();
  for (const WorkerUpdates& worker : table.worker()) out["by_worker"].push_back(KindsJson(worker));
  return out;
}

// Adds the staleness of dense parameters whose sums do not wait for all workers (dense.quorum).
// There a version is the number of a sum.
void AddSumsMissed(const JobReport& report, json* dense) {
  Distribution all;
  json& by_worker = (*dense)["by_worker"] = json::array();
  for (const Distribution& missed : report.dense_staleness_of) {
    MergeDistribution(missed, &all);
    by_worker.push_back({{"version_staleness", DistributionJson(missed)}});
  }
  (*dense)["version_staleness"] = DistributionJson(all);
}

json StalenessJson(const job::ResolvedJob& plan, const JobReport& report) {
  json out = json::object();
  for (const TableReport& table : report.tables) out[table.table()] = StalenessJson(table);
  if (plan.dense_table < 0) {
    // Replicas that take each step together have neither a clock gap nor a version.
    json& dense =
        out[job::kDenseTableName] = {{"in_flight_depth", DistributionJson(report.in_flight_depth)}};
    if (job::SumsByQuorum(plan.job)) AddSumsMissed(report, &dense);
  }
  return out;
}

// The number of updates that workers have sent, by their own count. If they have none, the number
// that arrived.
uint64_t Sent(const JobReport& report, const TableReport& table) {
  const auto it = report.updates_sent.find(table.table());
  return it == report.updates_sent.end() ? table.sent() : it->second;
}

// Each update that arrived is applied, alone or merged with those of other workers in the same step
// (BSP, FIXED_DELAY), or dropped.
json UpdatesJson(const JobReport& report) {
  uint64_t sent = 0, arrived = 0;
  TableReport sum;
  for (const TableReport& table : report.tables) {
    MergeTableReport(table, &sum);
    sent += Sent(report, table);
  }
  arrived = sum.sent();
  return {{"sent", sent},
          {"arrived", arrived},
          {"applied", sum.applied() + sum.merged()},
          {"applied_merged", sum.merged()},
          {"dropped", sum.dropped()}};
}

// The placement of a table: "servers", or on workers "replicated" or "sharded".
std::string PlacementOf(const job::ResolvedJob& plan, absl::string_view table) {
  for (const job::TablePlan& planned : plan.tables) {
    if (planned.name != table) continue;
    return absl::AsciiStrToLower(Table::Placement_Name(planned.placement));
  }
  return "";
}

double Ratio(uint64_t part, uint64_t whole) {
  return static_cast<double>(part) / static_cast<double>(whole);
}

json RowCountsJson(const RowReport& rows) {
  json out = {{"candidates", rows.candidates()},
              {"looked_up", rows.looked_up()},
              {"found", rows.found()},
              {"admitted", rows.admitted()},
              {"evicted", rows.evicted()},
              {"refused", rows.refused()},
              {"sampled", rows.sampled()},
              {"came_back", rows.came_back()},
              {"to_fresh_rows", rows.to_fresh_rows()}};
  if (rows.looked_up() > 0) out["found_share"] = Ratio(rows.found(), rows.looked_up());
  if (rows.sampled() > 0) out["came_back_share"] = Ratio(rows.came_back(), rows.sampled());
  return out;
}

// The counts of rows only of tables with rules by which rows come and go.
json RowsJson(const TableReport& table) {
  json out = {{"rows", table.rows()}, {"memory_bytes", table.bytes()}};
  if (table.has_hot_rows()) out["hot_rows"] = table.hot_rows();
  if (table.has_row_counts()) out["row_counts"] = RowCountsJson(table.row_counts());
  return out;
}

void AddTimes(const WorkerTimes& times, json* worker) {
  (*worker)["steps"] = times.steps;
  (*worker)["computed_seconds"] = times.computed;
  (*worker)["fetched_seconds"] = times.fetched;
  (*worker)["slept_seconds"] = times.slept;
  (*worker)["paused_seconds"] = times.paused;
  if (times.shortest_read > 0) (*worker)["shortest_read_seconds"] = times.shortest_read;
}

// The time in evaluations and checkpoints in which nobody trained. It is the least of all workers:
// the last one to arrive does not wait for others.
double PausedSeconds(const JobReport& report) {
  const auto least = std::min_element(
      report.times_of.begin(), report.times_of.end(),
      [](const WorkerTimes& a, const WorkerTimes& b) { return a.paused < b.paused; });
  return least == report.times_of.end() ? 0 : least->paused;
}

// The time to join the allreduce before the first step. It is the least of all workers: the last
// one to arrive does not wait for others.
double StartSeconds(const JobReport& report) {
  double least = 0;
  for (const WorkerTimes& times : report.times_of) {
    if (times.joined > 0 && (least == 0 || times.joined < least)) least = times.joined;
  }
  return least;
}

json PathsJson(const JobReport& report) {
  json out = json::array();
  for (const auto& [ends, path] : report.paths) {
    out.push_back(
        {{"from", ends.first}, {"to", path.to()}, {"by", path.way()}, {"why", path.why()}});
    if (!path.purpose().empty()) out.back()["for"] = path.purpose();
  }
  return out;
}

// The transports that carried rows and gradients, each once. `only`: the one to name if no node has
// reported any, which means that there was no choice.
std::string Carriers(const JobReport& report, absl::string_view only) {
  std::set<std::string> ways;
  for (const auto& [ends, path] : report.paths) {
    if (path.purpose().empty()) ways.insert(path.way());
  }
  ways.insert(report.ways_left_out.begin(), report.ways_left_out.end());
  return ways.empty() ? std::string(only) : absl::StrJoin(ways, ", ");
}

// Where the summary has less than RESULTS.md says, because the job is large: a line each.
std::vector<std::string> LeftOut(const job::ResolvedJob& plan, const JobReport& report) {
  std::vector<std::string> lines;
  if (!report.updates_of.empty()) {
    lines.push_back(absl::StrCat(
        "staleness.TABLE.by_worker: the job has ", plan.workers() * plan.tables.size(),
        " pairs of a worker and a table, and statistics of each pair are kept for at most ",
        job::kMaxPairs, "; by_worker has the staleness of each worker over all tables"));
  }
  if (!report.waited.empty()) {
    lines.push_back(absl::StrCat("by_worker.waited_for: the job has ", plan.workers(),
                                 " workers, and waits are kept in pairs for at most ",
                                 job::kMaxWaitingInPairs,
                                 "; by_worker has waited_seconds and awaited_seconds"));
  }
  if (report.paths_left_out > 0) {
    lines.push_back(absl::StrCat("paths: the first ", JobBook::kMaxPaths, " are kept, and ",
                                 report.paths_left_out, " reports of others are left out"));
  }
  return lines;
}

json BestJson(const KeepBest& keep, const BestEvaluation& best) {
  return {{"metric", keep.metric() == KeepBest::REPORTED
                         ? keep.name()
                         : absl::AsciiStrToLower(KeepBest::Metric_Name(keep.metric()))},
          {"data", "validation"},
          {"value", best.value()},
          {"epoch", best.epoch() + 1},
          {"step", best.step()},
          {"stopped_early", best.stopped()}};
}

double NumberIn(const json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number() ? it->get<double>()
                                               : std::numeric_limits<double>::quiet_NaN();
}

// For example "dense 0.01, table ids 1e+06".
std::string LearningRates(const job::ResolvedJob& plan) {
  std::vector<std::string> rates;
  const Optimizer& dense = plan.job.dense().optimizer();
  if (dense.kind() != Optimizer::PROGRAM) {  // only the script knows its rate
    rates.push_back(absl::StrFormat("dense %g", dense.learning_rate()));
  }
  for (const Table& table : plan.job.table()) {
    rates.push_back(
        absl::StrFormat("table %s %g", table.name(), table.optimizer().learning_rate()));
  }
  return absl::StrJoin(rates, ", ");
}

}  // namespace

json GradientsJson(const TableReport& table) {
  GradientStaleness all;
  for (const GradientStaleness& cell : table.gradients_by_staleness()) {
    MergeGradients(cell, &all);
  }
  return all.rows() == 0 ? json::object() : CellJson(all);
}

json DistributionJson(const Distribution& d, double unit) {
  json out = {{"count", d.count()}};
  if (d.count() == 0) return out;
  out["mean"] = d.sum() / static_cast<double>(d.count()) * unit;
  out["max"] = d.max() * unit;
  json histogram = json::array();
  for (int b = 0; b < d.bucket_size(); ++b) {
    if (d.bucket(b) == 0) continue;
    const uint64_t low = HistogramLow(d.first_bucket() + static_cast<size_t>(b));
    histogram.push_back(
        {unit == 1 ? json(low) : json(static_cast<double>(low) * unit), d.bucket(b)});
  }
  out["histogram"] = std::move(histogram);
  return out;
}

json MemoryJson(const job::ResolvedJob& plan, const JobReport& report) {
  json out = json::array();
  for (size_t server = 0; server < report.memory_of.size(); ++server) {
    const ServerMemory& memory = report.memory_of[server];
    if (memory.limit == 0) continue;  // a simulated server, or one that has not reported
    const int of_worker = static_cast<int>(server) - plan.server_processes();
    out.push_back({{"process", of_worker < 0 ? absl::StrCat("server ", server)
                                             : absl::StrCat("worker ", of_worker)},
                   {"used_bytes", memory.used},
                   {"limit_bytes", memory.limit}});
  }
  return out;
}

json TablesJson(const job::ResolvedJob& plan, const JobReport& report) {
  json out = json::object();
  for (const TableReport& table : report.tables) {
    json& one = out[table.table()] = RowsJson(table);
    one["placement"] = PlacementOf(plan, table.table());
    one["updates"] = {{"sent", Sent(report, table)},
                      {"arrived", table.sent()},
                      {"applied", table.applied() + table.merged()},
                      {"applied_merged", table.merged()},
                      {"dropped", table.dropped()}};
    one["data_applied"] = DataAppliedJson(table);
  }
  return out;
}

json WorkersJson(const job::ResolvedJob& plan, const JobReport& report) {
  json out = json::array();
  for (size_t rank = 0; rank < report.samples_of.size(); ++rank) {
    const int64_t samples = report.samples_of[rank];
    uint64_t sent = 0, dropped = 0;
    SampleShare counted;
    for (size_t t = 0; t < report.tables.size(); ++t) {
      const TableReport& table = report.tables[t];
      const bool frozen = t < plan.tables.size() && plan.tables[t].frozen;
      if (frozen || rank >= static_cast<size_t>(table.worker_size())) continue;
      sent += table.worker(static_cast<int>(rank)).sent();
      dropped += table.worker(static_cast<int>(rank)).dropped();
      MergeSamples(table.worker(static_cast<int>(rank)).samples(), &counted);
    }
    if (rank < report.updates_of.size()) {
      sent = report.updates_of[rank].sent();
      dropped = report.updates_of[rank].dropped();
      counted = report.updates_of[rank].samples();
    }
    json worker = {{"samples", samples}, {"updates", sent}, {"dropped", dropped}};
    if (rank < report.skipped_steps_of.size() && report.skipped_steps_of[rank] > 0) {
      worker["skipped_steps"] = report.skipped_steps_of[rank];
    }
    if (report.samples > 0) {
      worker["share"] = static_cast<double>(samples) / static_cast<double>(report.samples);
    }
    if (sent > 0) {
      worker["dropped_share"] = static_cast<double>(dropped) / static_cast<double>(sent);
    }
    worker["data_applied"] = DataAppliedJson(counted);
    if (rank < report.times_of.size()) AddTimes(report.times_of[rank], &worker);
    worker["frames_resent"] =
        rank < report.frames_resent_of.size() ? report.frames_resent_of[rank] : 0;
    if (rank < report.waiting.size()) worker["waited_for"] = report.waiting[rank];
    if (rank < report.waited.size()) worker["waited_seconds"] = report.waited[rank];
    if (rank < report.awaited.size()) worker["awaited_seconds"] = report.awaited[rank];
    if (rank < report.updates_of.size()) worker["staleness"] = KindsJson(report.updates_of[rank]);
    out.push_back(std::move(worker));
  }
  return out;
}

std::vector<std::string> QualityWarnings(const job::ResolvedJob& plan, const json& summary) {
  constexpr double kFarAbove = 1.5, kSlack = 0.02;       // slack for few rows and rare labels
  constexpr double kAbove = 1.02, kLittleSlack = 0.005;  // above that of a constant prediction
  constexpr double kManyRows = 100;
  std::vector<std::string> warnings;
  const json eval = summary.value("eval", json::object());
  const std::string rows = eval.value("data", "test") + " rows";
  const Train& train = plan.job.train();
  const std::string lower = absl::StrCat("lower the learning rates (", LearningRates(plan), ")");
  const double logloss = NumberIn(eval, "logloss"), base = NumberIn(eval, "base_logloss");
  const double loss = NumberIn(summary, "training_loss");
  // The loss of a program may be another one than logloss.
  const bool own_loss = plan.job.model().has_program() || plan.job.model().has_script();
  const auto hint_of_logloss = [&](const std::string& otherwise) -> std::string {
    if (train.evaluate_only()) return "are these rows like those that the model was trained on?";
    if (own_loss || !(loss < base)) return otherwise;
    return "the training loss is lower, so the model has memorised its training rows: train fewer "
           "epochs (data.validation and train.keep_best), or leave out columns whose values do not "
           "occur again";
  };
  // At most one of the next four warnings, the most certain first. Scores that are not finite make
  // the logloss meaningless. The logloss of an evaluation says more than the training loss, so the
  // training loss counts only if there is none.
  if (eval.contains("scores_not_finite")) {
    warnings.push_back(
        absl::StrCat("scores of ", rows, " are not finite; hint: ",
                     train.evaluate_only() ? "had this model diverged in training?" : lower));
  } else if (logloss > kFarAbove * (base > 0 ? base : std::log(2.0)) + kSlack) {
    warnings.push_back(
        absl::StrFormat("logloss %.4g of %s is far above %.4g, that of always predicting the share "
                        "of ones; hint: %s",
                        logloss, rows, base, hint_of_logloss(lower)));
  } else if (base > 0 && logloss > kAbove * base + kLittleSlack) {
    warnings.push_back(absl::StrFormat(
        "logloss %.4g of %s is above %.4g, that of always predicting the share of ones, so the "
        "model predicts worse than a constant; hint: %s",
        logloss, rows, base,
        hint_of_logloss(
            "find the best epoch with data.validation and train.keep_best, or try other "
            "learning rates (" +
            LearningRates(plan) + ")")));
  } else if (std::isnan(logloss) && !own_loss && loss > kFarAbove * std::log(2.0) + kSlack) {
    warnings.push_back(absl::StrFormat(
        "training loss %.4g of the last epoch is far above %.4g, that of always predicting one "
        "half; hint: %s",
        loss, std::log(2.0), lower));
  }
  // Other jobs are warned of this before they start, when their data is checked.
  if (plan.job.model().has_program() && train.max_steps() == 0 && !train.evaluate_only() &&
      NumberIn(summary, "samples") >= kManyRows &&
      NumberIn(summary, "steps") == static_cast<double>(train.epochs())) {
    warnings.emplace_back(
        "each epoch was one step, since one batch holds all rows of a worker; hint: use a smaller "
        "batch");
  }
  return warnings;
}

json PolicyJson(const job::ResolvedJob& plan) {
  json out = json::object();
  for (const job::TablePlan& table : plan.tables) {
    out[table.name] = job::PolicyName(plan.groups[table.group].policy);
  }
  if (plan.dense_table < 0) {
    out[job::kDenseTableName] = job::DenseName(plan.job.dense());
  }
  return out;
}

json BuildJson() {
  json out = {
      {"version", TANDEM_VERSION}, {"type", TANDEM_BUILD_TYPE}, {"march", TANDEM_BUILD_MARCH}};
#if defined(__clang__)
  out["compiler"] = "clang " __clang_version__;
#else
  out["compiler"] = "g++ " __VERSION__;
#endif
  return out;
}

json EvaluationJson(absl::string_view text) {
  json parsed = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) return parsed;
  return {{"text", std::string(text)}};
}

json ProgressJson(const JobProgress& p) {
  json out = {{"seconds", p.seconds},
              {"epoch", p.epoch + 1},
              {"epoch_fraction", p.epoch_fraction},
              {"min_step", p.min_step},
              {"max_step", p.max_step},
              {"samples", p.samples},
              {"done", p.done},
              {"clock_gap_max", p.clock_gap_max}};
  if (std::isfinite(p.samples_per_second)) out["samples_per_second"] = p.samples_per_second;
  if (p.evaluating) out["evaluating"] = true;
  if (std::isfinite(p.staleness_mean)) {
    out["staleness_mean"] = p.staleness_mean;
    out["staleness_max"] = p.staleness_max;
  }
  if (std::isfinite(p.data_applied)) out["data_applied_share"] = p.data_applied;
  if (std::isfinite(p.loss)) out["loss"] = p.loss;
  if (p.has_loss && !std::isfinite(p.loss)) out["loss_finite"] = false;
  if (p.auc > 0) out["auc"] = p.auc;
  if (p.seconds_left >= 0) out["seconds_left"] = p.seconds_left;
  for (const TableReport& table : p.limited_tables) out["tables"][table.table()] = RowsJson(table);
  return out;
}

json SummaryJson(const job::ResolvedJob& plan, const JobReport& report,
                 absl::string_view transport) {
  json out = {{"job", plan.job.name()},
              {"seed", plan.job.seed()},
              {"workers", plan.workers()},
              {"servers", plan.server_processes()},
              {"shards_per_server", plan.shards_per_server()},
              {"policy", PolicyJson(plan)},
              {"reproducible", plan.job.reproducible()},
              {"transport", Carriers(report, transport)},
              {"steps", report.trained_steps},
              {"closing_steps", report.max_step - report.trained_steps},
              {"samples", report.samples},
              {"seconds", report.seconds},
              {"samples_per_second", report.samples_per_second},
              {"start_seconds", StartSeconds(report)},
              {"paused_seconds", PausedSeconds(report)},
              {"eval", json::object()},
              {"staleness", StalenessJson(plan, report)},
              {"updates", UpdatesJson(report)},
              {"tables", TablesJson(plan, report)},
              {"by_worker", WorkersJson(plan, report)},
              {"memory", MemoryJson(plan, report)},
              {"bytes", report.bytes},
              {"frames_resent", std::accumulate(report.frames_resent_of.begin(),
                                                report.frames_resent_of.end(), uint64_t{0})},
              {"paths", PathsJson(report)},
              {"build", BuildJson()}};
  SampleShare counted;
  for (const TableReport& table : report.tables) MergeSamples(table.samples(), &counted);
  out["data_applied"] = DataAppliedJson(counted);
  if (const Data::Deal deal = plan.job.data().deal(); deal != Data::DEAL_UNSPECIFIED) {
    out["deal"] = Data::Deal_Name(deal);
  }
  if (!report.collectives_json.empty()) {
    out["collectives"] = EvaluationJson(report.collectives_json);
  }
  if (const std::vector<std::string> lines = LeftOut(plan, report); !lines.empty()) {
    out["left_out"] = lines;
  }
  if (std::isfinite(report.loss)) out["training_loss"] = report.loss;
  if (std::isfinite(report.end_loss)) out["end_loss"] = report.end_loss;
  if (report.best.has_value()) {
    out["best"] = BestJson(plan.job.train().keep_best(), *report.best);
  }
  if (!report.reported.empty()) out["reported"] = report.reported;
  const int64_t skipped =
      std::accumulate(report.skipped_steps_of.begin(), report.skipped_steps_of.end(), int64_t{0});
  if (skipped > 0) out["skipped_steps"] = skipped;
  if (report.attempts > 0) out["resumed"] = report.attempts;
  if (report.stop.has_value()) {
    out["stopped"] = {{"checkpointed_step", report.stop->checkpointed_step}};
    if (!report.stop->failure.empty()) out["stopped"]["failure"] = report.stop->failure;
  }
  if (!report.evaluation_json.empty()) out["eval"] = EvaluationJson(report.evaluation_json);
  // The warnings come last, because they judge the fields above.
  std::vector<std::string> warnings = report.warnings;
  for (std::string& line : QualityWarnings(plan, out)) warnings.push_back(std::move(line));
  if (!warnings.empty()) out["warnings"] = warnings;
  return out;
}

double NumberOf(const json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_number() ? it->get<double>() : 0;
}

std::string TextOf(const json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

std::string OneLine(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string PrettyPrint(const json& value) {
  return value.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace tandem::scheduler
