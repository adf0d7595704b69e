#include "tools/study/run_record.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "tools/study/json_value.h"

namespace tandem::study {
namespace {

using nlohmann::json;

constexpr char kBegin[] = "/study_run.json";
// Another name, since `tandem run` writes job.textproto.
constexpr char kJob[] = "/study_job.textproto";
constexpr char kEnd[] = "/study_end.json";
constexpr char kToTarget[] = "to_target.seconds";  // a number of a run
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

// The loss of a model that has learned nothing, per row. A run has diverged if its loss reaches
// twice this value, or twice its own initial loss.
constexpr double kLossOfKnowingNothing = 0.6931471805599453;
constexpr double kFarAbove = 2;
constexpr double kShareAtStart = 0.1;  // share of the samples before a run counts as steady
constexpr double kStepsAtStart = 2;    // steps whose rows are computed by then
constexpr double kPart = 0.1;          // share of the samples for the initial and the final loss

json ReadJson(const std::string& path) {
  std::ifstream file(path);
  return json::parse(file, nullptr, /*allow_exceptions=*/false);
}

void Flatten(const json& value, const std::string& path, std::map<std::string, double>* out) {
  if (value.is_number()) {
    (*out)[path] = value.get<double>();
  } else if (value.is_object()) {
    for (const auto& [name, inner] : value.items()) {
      Flatten(inner, path.empty() ? name : absl::StrCat(path, ".", name), out);
    }
  }
}

// The lines of metrics.jsonl: what a run reported while it ran.
struct Metrics {
  std::vector<CurvePoint> curve;
  std::vector<EvaluationPoint> evaluations;
  bool loss_lost = false;       // rows were trained on while the loss was not a number
  bool ends_evaluated = false;  // the last evaluation of the run is in `evaluations`
};

void AddProgress(const json& line, Metrics* metrics) {
  CurvePoint point;
  point.seconds = NumberIn(line, "seconds", 0.0);
  point.samples = NumberIn(line, "samples", 0.0);
  point.loss = NumberIn(line, "loss", kNaN);
  point.auc = NumberIn(line, "auc", kNaN);
  const double before = metrics->curve.empty() ? 0 : metrics->curve.back().samples;
  if (point.samples > before && std::isnan(point.loss)) metrics->loss_lost = true;
  if (point.samples > before) metrics->curve.push_back(point);
}

void AddEvaluation(const json& line, Metrics* metrics) {
  EvaluationPoint point;
  point.validation = TextIn(line, "data") == "validation";
  Flatten(line, "eval", &point.values);
  if (!metrics->curve.empty()) {
    point.seconds = metrics->curve.back().seconds;
    point.samples = metrics->curve.back().samples;
  }
  point.seconds = NumberIn(line, "seconds", point.seconds);
  point.samples = NumberIn(line, "trained_samples", point.samples);
  metrics->evaluations.push_back(std::move(point));
}

Metrics ReadMetrics(const std::string& path) {
  Metrics metrics;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    const json line = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!line.is_object()) continue;
    const std::string event = TextIn(line, "event");
    if (event == "progress") AddProgress(line, &metrics);
    if (event == "evaluation") AddEvaluation(line, &metrics);
  }
  // With train.keep_best a run has evaluations on validation rows and on test rows. A curve has
  // points of one kind only, and every epoch has a validation point, so keep those.
  const auto validation = [](const EvaluationPoint& point) { return point.validation; };
  std::vector<EvaluationPoint>& all = metrics.evaluations;
  metrics.ends_evaluated = !all.empty();
  if (std::any_of(all.begin(), all.end(), validation)) {
    metrics.ends_evaluated = validation(all.back());
    all.erase(std::remove_if(all.begin(), all.end(), std::not_fn(validation)), all.end());
  }
  return metrics;
}

// The mean loss over the rows [from, to); NaN if the curve has no loss for them.
double LossOver(const std::vector<CurvePoint>& curve, double from, double to) {
  double before = 0, rows = 0, sum = 0;
  for (const CurvePoint& point : curve) {
    const double of_it = std::min(point.samples, to) - std::max(before, from);
    before = point.samples;
    if (of_it <= 0 || !std::isfinite(point.loss)) continue;
    rows += of_it;
    sum += of_it * point.loss;
  }
  return rows > 0 ? sum / rows : kNaN;
}

// The mean loss over the first and over the last tenth of the rows. A single interval may be so
// short that its loss is chance.
double LossAtStart(const std::vector<CurvePoint>& curve) {
  return curve.empty() ? kNaN : LossOver(curve, 0, kPart * curve.back().samples);
}
double LossAtEnd(const std::vector<CurvePoint>& curve) {
  if (curve.empty()) return kNaN;
  const double end = curve.back().samples;
  return LossOver(curve, (1 - kPart) * end, end);
}

// Removes the start from the times of a run. Joining the workers of an allreduce and measuring its
// links takes the same time for short and long runs, so it does not belong to a comparison.
void LeaveOutTheStart(StudyRun* run) {
  const double start = run->Number("start_seconds").value_or(0);
  const auto seconds = run->Number("seconds");
  if (!(start > 0) || !seconds.has_value() || *seconds <= start) return;
  run->numbers["seconds"] = *seconds - start;
  if (const auto samples = run->Number("samples"); samples.has_value()) {
    run->numbers["samples_per_second"] = *samples / (*seconds - start);
  }
  for (CurvePoint& point : run->curve) point.seconds = std::max(0.0, point.seconds - start);
  for (EvaluationPoint& point : run->evaluations) {
    point.seconds = std::max(0.0, point.seconds - start);
  }
}

// Whether the loss may have any scale: a module from a file and a script may use a loss of their
// own.
bool HasAnyLoss(const RunPlan& plan) {
  const absl::StatusOr<Job> job = job::ParseJob(plan.job_text, plan.name, {});
  return job.ok() && (job->model().has_script() || job->model().has_program());
}

// Whether the run reported no loss. A script need not report one, and then the loss is 0.
bool SaysNoLoss(const std::vector<CurvePoint>& curve) {
  return std::all_of(curve.begin(), curve.end(),
                     [](const CurvePoint& point) { return point.loss == 0; });
}

// Reads the result of a problem, which reports its own losses and whether it diverged. Returns why
// it diverged, or "".
std::string ReadProblem(const json& problem, StudyRun* run) {
  const double first = NumberIn(problem, "first_loss", kNaN);
  const double last = NumberIn(problem, "last_loss", kNaN);
  if (std::isfinite(last)) {
    run->numbers["loss"] = last;
    run->numbers["problem.excess_loss"] = last - NumberIn(problem, "least_loss", 0.0);
  }
  if (!BoolIn(problem, "diverged", false)) return "";
  return absl::StrFormat("its loss was %.3g over the last tenth of the steps, after %.3g at first",
                         last, first);
}

void ReadSummary(const json& summary, const Metrics& metrics, bool any_loss, StudyRun* run) {
  run->numbers = NumbersOf(summary);
  run->staleness = summary.value("staleness", json::object());
  run->by_worker = summary.value("by_worker", json::array());
  const json restarts = summary.value("restarts", json::array());
  run->restarts = static_cast<int>(restarts.size());
  const bool whole =
      !metrics.curve.empty() && metrics.curve.back().samples >= NumberIn(summary, "samples", 0.0);
  // The workers report end_loss by steps. The lines of metrics.jsonl depend on when they were
  // written, so they come second.
  const double loss = NumberIn(summary, "end_loss", whole ? LossAtEnd(metrics.curve) : kNaN);
  const bool said = !any_loss || !SaysNoLoss(metrics.curve);
  if (said && std::isfinite(loss)) run->numbers["loss"] = loss;
  const json policies = summary.value("policy", json::object());
  for (const auto& [table, policy] : policies.items()) {
    if (policy.is_string()) run->policy[table] = policy.get<std::string>();
  }
  const json simulated = summary.value("simulated", json::object());
  const json problem = simulated.is_object() ? simulated.value("problem", json()) : json();
  run->why = problem.is_object() ? ReadProblem(problem, run)
                                 : WhyDiverged(metrics.curve, metrics.loss_lost, any_loss, summary);
  run->state = run->why.empty() ? RunState::kComplete : RunState::kDiverged;
}

struct StalenessKind {
  const char* name;
  const char* mean;
  // True: weigh tables by counts; false: tables count alike, since their counts depend on their
  // ranges.
  bool by_count;
};
constexpr StalenessKind kStaleness[] = {{"version_staleness", "version", false},
                                        {"in_flight_depth", "in_flight", false},
                                        {"row_staleness", "row", true},
                                        {"age", "age", false}};

// The mean over tables, or (`dense`) over dense parameters. nullopt if nothing was counted.
absl::optional<double> MeanStaleness(const StudyRun& run, const StalenessKind& kind, bool dense) {
  double weight = 0, sum = 0;
  const std::string suffix = absl::StrCat(".", kind.name, ".mean");
  for (const auto& [name, mean] : run.numbers) {
    if (!absl::StartsWith(name, "staleness.") || !absl::EndsWith(name, suffix)) continue;
    if (absl::StartsWith(name, "staleness.dense.") != dense) continue;
    const double count = run.Number(name.substr(0, name.size() - 4) + "count").value_or(0);
    if (count <= 0) continue;
    weight += kind.by_count ? count : 1;
    sum += kind.by_count ? count * mean : mean;
  }
  return weight > 0 ? absl::optional<double>(sum / weight) : absl::nullopt;
}

// Adds the means of staleness. Versions of dense parameters are steps or sums, unlike those of
// tables, so they have numbers of their own. If a run has only dense parameters, they stand for the
// run.
void AddStaleness(StudyRun* run) {
  std::map<std::string, double> added;
  for (const StalenessKind& kind : kStaleness) {
    const auto tables = MeanStaleness(*run, kind, /*dense=*/false);
    const auto dense = MeanStaleness(*run, kind, /*dense=*/true);
    if (tables.has_value() || dense.has_value()) {
      added[absl::StrCat("staleness.", kind.mean, "_mean")] = tables.has_value() ? *tables : *dense;
    }
    if (dense.has_value() && tables.has_value())
      added[absl::StrCat("staleness.dense_", kind.mean, "_mean")] = *dense;
  }
  double gap = -1;
  for (const auto& [name, number] : run->numbers) {
    if (!absl::StartsWith(name, "staleness.") || !absl::EndsWith(name, ".clock_gap.max")) continue;
    gap = std::max(gap, number);
  }
  if (gap >= 0) added["staleness.clock_gap_max"] = gap;
  run->numbers.insert(added.begin(), added.end());
}

// Adds the share of data applied of the worker whose data counted least.
void AddDataApplied(StudyRun* run) {
  double least = kNaN;
  for (const json& worker : run->by_worker) {
    if (!worker.is_object()) continue;
    const json shares = worker.value("data_applied", json::object());
    const double share = shares.is_object() ? NumberIn(shares, "share", kNaN) : kNaN;
    if (std::isfinite(share)) least = std::isfinite(least) ? std::min(least, share) : share;
  }
  if (std::isfinite(least)) run->numbers["data_applied.least_worker"] = least;
}

// The share of updates that policies dropped. Frozen tables drop all of their updates.
double DroppedShare(const StudyRun& run) {
  double updates = 0, dropped = 0;
  for (const json& worker : run.by_worker) {
    if (!worker.is_object()) continue;
    updates += NumberIn(worker, "updates", 0.0);
    dropped += NumberIn(worker, "dropped", 0.0);
  }
  return updates > 0 ? dropped / updates : 0;
}

void AddSpeeds(StudyRun* run) {
  // LeaveOutTheStart has already removed the start from `seconds`.
  const double trained =
      run->Number("seconds").value_or(0) - run->Number("paused_seconds").value_or(0);
  const auto samples = run->Number("samples");
  if (!samples.has_value() || trained <= 0) return;
  run->numbers["training_speed"] = *samples / trained;
  if (const auto speed = run->Number("samples_per_second"); speed.has_value()) {
    run->numbers["counted.speed"] = *speed * (1 - DroppedShare(*run));
  }
  const auto twin = run->Number("twin.training_speed");
  if (twin.has_value() && *samples > 0) run->numbers["twin.ratio"] = *twin * trained / *samples;
}

// Adds the speed without the first tenth of the samples, and at least without the first step.
// Reading, assigning and measuring happen before and in the first step only. Rows count when they
// are computed, so the first step is over when the rows of the second step are counted.
void AddSteadySpeed(StudyRun* run) {
  if (run->curve.size() < 3) return;
  const CurvePoint& last = run->curve.back();
  const double steps = run->Number("steps").value_or(0);
  const double start = std::max(kShareAtStart, steps > kStepsAtStart ? kStepsAtStart / steps : 0);
  const auto first = std::find_if(run->curve.begin(), run->curve.end(), [&](const CurvePoint& p) {
    return p.samples >= start * last.samples;
  });
  if (first->samples >= last.samples || first->seconds >= last.seconds) return;
  const double speed = (last.samples - first->samples) / (last.seconds - first->seconds);
  run->numbers["steady.speed"] = speed;
  const auto rows = run->Number("model.step_rows"), model = run->Number("model.step_seconds");
  if (!rows.has_value() || !model.has_value()) return;
  run->numbers["steady.step_seconds"] = *rows / speed;
  run->numbers["model.ratio"] = *model * speed / *rows;
}

// The sum of the number with this ending over all tables; nullopt if no table has it.
absl::optional<double> SumOverTables(const StudyRun& run, absl::string_view ending) {
  absl::optional<double> sum;
  for (const auto& [name, number] : run.numbers) {
    if (!absl::StartsWith(name, "tables.") || !absl::EndsWith(name, ending)) continue;
    sum = sum.value_or(0) + number;
  }
  return sum;
}

void AddRows(StudyRun* run) {
  const auto memory = SumOverTables(*run, ".memory_bytes"), rows = SumOverTables(*run, ".rows");
  if (memory.value_or(0) > 0) run->numbers["memory_bytes"] = *memory;
  if (rows.has_value()) {
    // The rows of dense parameters on servers are blocks of them, not of ids.
    run->numbers["rows"] = *rows - run->Number("tables.dense.rows").value_or(0);
  }
  const auto looked_up = SumOverTables(*run, ".row_counts.looked_up");
  if (looked_up.value_or(0) > 0) {
    run->numbers["found_share"] = SumOverTables(*run, ".row_counts.found").value_or(0) / *looked_up;
  }
}

void AddBytes(StudyRun* run) {
  const auto samples = run->Number("samples");
  if (!samples.has_value() || *samples <= 0) return;
  std::map<std::string, double> added;
  double all = 0;
  for (const auto& [name, number] : run->numbers) {
    if (!absl::StartsWith(name, "bytes.")) continue;
    // Rows that a worker holds itself cross no socket.
    if (name != "bytes.within_worker") all += number / *samples;
    added[absl::StrCat("bytes_per_sample.", name.substr(6))] = number / *samples;
  }
  if (all > 0) added["bytes_per_sample.all"] = all;
  run->numbers.insert(added.begin(), added.end());
}

void AddTwin(const json& summary, StudyRun* run) {
  StudyRun twin;
  twin.numbers = NumbersOf(summary);
  AddStaleness(&twin);
  AddSpeeds(&twin);
  for (const auto& [from, to] : {std::pair("training_speed", "twin.training_speed"),
                                 std::pair("staleness.version_mean", "twin.version_mean")}) {
    if (const auto number = twin.Number(from); number.has_value()) run->numbers[to] = *number;
  }
}

// Handles a run without a companion (twin or model) that its study asks for. The run is repeated,
// unless the process has reported why the companion is missing.
void LacksSomething(const json& end, StudyRun* run) {
  run->state = RunState::kAbsent;
  if (!end.is_object() || BoolIn(end, "ok", true)) return;
  run->state = RunState::kFailed;
  run->why = TextIn(end, "why");
}

void ReadTwin(const std::string& folder, const json& end, StudyRun* run) {
  const json summary = ReadJson(TwinFolder(folder) + "/summary.json");
  if (summary.is_object() && !summary.contains("failed")) return AddTwin(summary, run);
  LacksSomething(end, run);
}

void ReadModel(const std::string& folder, const json& end, const BesideRun& beside, StudyRun* run) {
  const json model = ReadJson(ModelFile(folder));
  if (model.is_object()) {
    Flatten(model, "model", &run->numbers);
    run->model_curve = model.value("by_workers", json::array());
    for (const json& what : model.value("not_counted", json::array())) {
      if (what.is_string()) run->not_counted.push_back(what.get<std::string>());
    }
  } else if (beside.model) {
    LacksSomething(end, run);
  }
}

// The curve of training rows. The value of an interval with few rows is chance and could reach a
// target by chance. Such an interval is joined with the next one; the last interval is joined with
// the one before it.
std::vector<QualityPoint> TrainingCurve(const std::vector<CurvePoint>& curve, bool loss) {
  struct Interval {
    double seconds = 0, samples = 0, rows = 0, sum = 0;
  };
  std::vector<Interval> intervals;
  std::vector<double> sizes;
  double before = 0;
  for (const CurvePoint& point : curve) {
    const double rows = point.samples - std::exchange(before, point.samples);
    const double value = loss ? point.loss : point.auc;
    if (!std::isfinite(value)) continue;
    intervals.push_back({point.seconds, point.samples, rows, rows * value});
    sizes.push_back(rows);
  }
  if (intervals.empty()) return {};
  std::sort(sizes.begin(), sizes.end());
  const double few = sizes[sizes.size() / 2] / 2;
  std::vector<Interval> joined;
  for (const Interval& interval : intervals) {
    const bool last = &interval == &intervals.back();
    const bool joins =
        !joined.empty() && (joined.back().rows < few || (last && interval.rows < few));
    if (!joins) joined.emplace_back();
    Interval& to = joined.back();
    to = {interval.seconds, interval.samples, to.rows + interval.rows, to.sum + interval.sum};
  }
  std::vector<QualityPoint> points;
  for (const Interval& interval : joined) {
    points.push_back({interval.seconds, interval.samples, interval.sum / interval.rows});
  }
  return points;
}

}  // namespace

std::vector<QualityPoint> QualityCurve(const Metric& metric, const StudyRun& run) {
  std::vector<QualityPoint> points;
  if (!IsOfTraining(metric, run)) {
    for (const EvaluationPoint& point : run.evaluations) {
      const auto value = point.values.find(metric.column);
      if (value == point.values.end()) continue;
      points.push_back({point.seconds, point.samples, value->second});
    }
    return points;
  }
  const bool loss = metric.name == "loss" || metric.name == "logloss";
  if (!loss && metric.name != "auc") return points;
  return TrainingCurve(run.curve, loss);
}

void AddDerivedNumbers(const StudyRuns& plan, StudyRun* run) {
  if (!run->counts() && run->state != RunState::kDiverged) return;
  AddStaleness(run);
  AddDataApplied(run);
  AddBytes(run);
  AddRows(run);
  AddSpeeds(run);
  AddSteadySpeed(run);
  if (!run->counts()) return;
  const auto solved = run->Number("simulated.problem.reached_seconds");
  if (plan.metric.column == kToTarget && solved.has_value()) run->numbers[kToTarget] = *solved;
  if (!plan.study.target().has_value()) return;
  const double target = plan.study.target().value();
  for (const QualityPoint& point : QualityCurve(plan.metric, *run)) {
    const bool reached =
        plan.metric.higher_is_better ? point.value >= target : point.value <= target;
    if (!reached) continue;
    run->numbers[kToTarget] = point.seconds;
    run->numbers["to_target.samples"] = point.samples;
    return;
  }
}

std::string StateName(RunState state) {
  switch (state) {
    case RunState::kAbsent:
      return "absent";
    case RunState::kComplete:
      return "complete";
    case RunState::kDiverged:
      return "diverged";
    case RunState::kFailed:
      return "failed";
  }
  return "";
}

absl::optional<double> StudyRun::Number(const std::string& column) const {
  const auto it = numbers.find(column);
  if (it == numbers.end() || !std::isfinite(it->second)) return absl::nullopt;
  return it->second;
}

std::string RunJobFile(const std::string& folder) { return absl::StrCat(folder, kJob); }

std::string ModelFile(const std::string& folder) { return absl::StrCat(folder, "/model.json"); }

std::string TwinFolder(const std::string& folder) { return absl::StrCat(folder, "/twin"); }

absl::Status WriteRunBegin(const std::string& folder, const RunPlan& plan,
                           const std::string& build) {
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(RunJobFile(folder), plan.job_text));
  const json begin = {{"job_hash", plan.job_hash}, {"build", build}};
  return WriteFileAtomically(absl::StrCat(folder, kBegin),
                             begin.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

absl::Status WriteRunEnd(const std::string& folder, double wall_seconds, bool ok,
                         const std::string& why) {
  const json end = {{"ok", ok}, {"wall_seconds", wall_seconds}, {"why", why}};
  return WriteFileAtomically(absl::StrCat(folder, kEnd),
                             end.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
}

std::map<std::string, double> NumbersOf(const json& summary) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : summary.items()) {
    if (name == "collectives" || name == "seed" || name == "paths") continue;
    Flatten(value, name, &numbers);
  }
  return numbers;
}

// The order is from the surest sign to the weakest: a loss or a score that is not a number, then a
// loss far above its start. For the last sign, a run that is too short for a curve is judged by its
// test rows.
std::string WhyDiverged(const std::vector<CurvePoint>& curve, bool loss_lost, bool any_loss,
                        const json& summary) {
  if (loss_lost) return "its loss was no number";
  const json eval = summary.value("eval", json::object());
  if (eval.is_object() && BoolIn(eval, "scores_not_finite", false)) {
    return "its scores of test rows were no numbers";
  }
  if (curve.empty()) {  // A run shorter than a reporting interval has only its result on test rows.
    const double logloss = eval.is_object() ? NumberIn(eval, "logloss", 0.0) : 0;
    if (any_loss || !(logloss > kFarAbove * kLossOfKnowingNothing)) return "";
    return absl::StrFormat(
        "its logloss on test rows was %.3g; that of a model without knowledge is %.3g", logloss,
        kLossOfKnowingNothing);
  }
  const double first = LossAtStart(curve);
  const double last = NumberIn(summary, "end_loss", LossAtEnd(curve));
  const double bar = kFarAbove * (any_loss ? first : std::min(first, kLossOfKnowingNothing));
  if (!(last > bar)) return "";
  return absl::StrFormat(
      "its loss was %.3g over the last tenth of the samples, after %.3g over the first", last,
      first);
}

BesideRun BesideRunOf(const Study& study) { return {study.twin(), study.has_network()}; }

// Reads a run in an order in which each file vouches for the next. The begin file must be of this
// job; otherwise the folder belongs to another run. The summary must be complete; otherwise the end
// file tells whether the run failed or was cut off. Only then the metrics and the companions are
// read. LeaveOutTheStart comes last, because it shifts all times that were read before.
StudyRun ReadRun(const RunPlan& plan, const std::string& folder, const BesideRun& beside) {
  StudyRun run;
  run.name = plan.name;
  run.variation = plan.variation;
  run.part = plan.part;
  run.value = plan.value;
  run.seed = plan.seed;
  const json begin = ReadJson(folder + kBegin);
  if (!begin.is_object() || begin.value("job_hash", json()) != plan.job_hash) return run;
  run.build = TextIn(begin, "build");
  const json end = ReadJson(folder + kEnd);
  if (end.is_object()) run.wall_seconds = NumberIn(end, "wall_seconds", 0.0);
  const json summary = ReadJson(folder + "/summary.json");
  // A run that was stopped or failed may have a summary, too. The summary then says so.
  if (!summary.is_object() || !summary.contains("samples") || summary.contains("stopped") ||
      summary.contains("failed")) {
    if (end.is_object() && !BoolIn(end, "ok", true)) {
      run.why = TextIn(end, "why");
      const json failed = summary.is_object() ? summary.value("failed", json()) : json();
      const bool diverged = failed.is_object() && BoolIn(failed, "diverged", false);
      run.state = diverged ? RunState::kDiverged : RunState::kFailed;
    }
    return run;
  }
  const Metrics metrics = ReadMetrics(folder + "/metrics.jsonl");
  ReadSummary(summary, metrics, HasAnyLoss(plan), &run);
  if (beside.twin) ReadTwin(folder, end, &run);
  ReadModel(folder, end, beside, &run);
  run.curve = metrics.curve;
  run.evaluations = metrics.evaluations;
  if (metrics.ends_evaluated) {  // the evaluation is after the last interval
    run.evaluations.back().seconds = NumberIn(summary, "seconds", run.evaluations.back().seconds);
    run.evaluations.back().samples = NumberIn(summary, "samples", run.evaluations.back().samples);
  }
  LeaveOutTheStart(&run);
  return run;
}

}  // namespace tandem::study
