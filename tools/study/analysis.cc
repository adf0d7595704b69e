#include "tools/study/analysis.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "tools/study/json_value.h"

namespace tandem::study {
namespace {

using nlohmann::json;

Metric Speed() { return *MetricOf("samples_per_second"); }
// The time or the samples to the target. `of`: "seconds" or "samples"; `rows`: result of
// RowsOfCurves.
Metric ToTarget(const std::string& of, const std::string& rows) {
  return {
      of + "_to_target",
      "to_target." + of,
      absl::StrCat(of, " to the target", rows.empty() ? "" : absl::StrCat(" on ", rows, " rows")),
      false,
      false,
      true};
}

// The value of a metric for a model that has learned nothing; nullopt if it depends on the data.
// For the ranking metrics, 0 is the value of a model that gives all items the same score. A model
// with random scores is a little better.
absl::optional<double> OfKnowingNothing(absl::string_view column) {
  if (column == "eval.auc") return 0.5;
  const bool ranks =
      absl::StartsWith(column, "eval.hr_at_") || absl::StartsWith(column, "eval.ndcg_at_");
  return ranks ? absl::optional<double>(0) : absl::nullopt;
}

// The column that tells whether runs have learned anything: the study's metric if it can tell, else
// another one that the runs have; "" if none can.
std::string ColumnOfLearning(const StudyRuns& plan, const std::vector<Group>& groups) {
  if (OfKnowingNothing(plan.metric.column).has_value()) return plan.metric.column;
  for (const Group& group : groups) {
    for (const auto& [column, spread] : group.spreads) {
      if (OfKnowingNothing(column).has_value()) return column;
    }
  }
  return "";
}

// Finds the runs that have learned next to nothing. A finite loss does not show this, and a mean
// over seeds hides it. A run is compared with the best run among the same variations, so the check
// needs one run that has learned something.
void MarkCollapsed(const StudyRuns& plan, std::vector<Group>* groups) {
  // Least gain of the best run; share of it that counts as little.
  constexpr double kSomething = 0.1, kLittle = 0.2;
  const std::string column = ColumnOfLearning(plan, *groups);
  if (column.empty()) return;
  const double nothing = *OfKnowingNothing(column);
  std::map<std::string, double> best;  // best value, by `among`
  for (const Group& group : *groups) {
    const Spread* const spread = group.Find(column);
    if (spread == nullptr) continue;
    double& most = best.emplace(group.among, nothing).first->second;
    most = std::max(most, spread->max);
  }
  for (Group& group : *groups) {
    const double learned = best[group.among] - nothing;
    if (learned < kSomething) continue;
    for (const StudyRun& run : group.runs) {
      const auto value = run.Number(column);
      if (!run.counts() || !value.has_value()) continue;
      if (*value - nothing < kLittle * learned) group.collapsed.insert(run.name);
    }
  }
}

// The rows that the curves of the metric are measured on, if some are not test rows: "training" or
// "validation".
std::string RowsOfCurves(const Metric& metric, const std::vector<Group>& groups) {
  if (!metric.of_evaluation) return "";
  std::string rows;
  for (const Group& group : groups) {
    for (const StudyRun& run : group.runs) {
      if (!run.counts() || QualityCurve(metric, run).empty()) continue;
      if (IsOfTraining(metric, run)) return "training";
      if (run.evaluations.back().validation) rows = "validation";
    }
  }
  return rows;
}

// The measures in which variations are compared. The metric of the question comes first.
std::vector<Metric> MeasuresOf(const StudyRuns& plan, const std::vector<Group>& groups) {
  std::vector<Metric> measures = {plan.metric};
  if (plan.metric.name != Speed().name) measures.push_back(Speed());
  if (plan.study.target().has_value()) {
    const std::string rows = RowsOfCurves(plan.metric, groups);
    for (const char* of : {"seconds", "samples"}) measures.push_back(ToTarget(of, rows));
  }
  return measures;
}

std::string PolicyText(const StudyRun& run) {
  return absl::StrJoin(run.policy, ", ", [](std::string* out, const auto& table) {
    absl::StrAppend(out, table.first, " ", table.second);
  });
}

// Whether the column is a time, speed or size. Such numbers are never negative and are compared as
// factors.
bool IsAmount(absl::string_view column) {
  return column == "seconds" || column == "samples_per_second" || column == "memory_bytes" ||
         column == "rows" || absl::EndsWith(column, "training_speed") || column == "twin.ratio" ||
         absl::EndsWith(column, ".speed") || absl::EndsWith(column, "step_seconds") ||
         column == "model.ratio" || absl::StartsWith(column, "to_target.") ||
         absl::EndsWith(column, "age_mean") || absl::StartsWith(column, "bytes_per_sample.");
}

Spread SpreadOfColumn(const std::string& column, const std::vector<double>& numbers) {
  const bool positive =
      std::all_of(numbers.begin(), numbers.end(), [](double number) { return number > 0; });
  if (IsAmount(column) && positive) return SpreadOfPositive(numbers);
  Spread spread = SpreadOf(numbers);
  const bool share = absl::StartsWith(column, "data_applied.");
  if (IsAmount(column) || share || absl::StartsWith(column, "staleness.")) {
    spread.low = std::max(spread.low, 0.0);
  }
  if (share) spread.high = std::min(spread.high, 1.0);
  return spread;
}

void Count(Group* group) {
  std::map<std::string, std::vector<double>> values;
  for (const StudyRun& run : group->runs) {
    if (run.state == RunState::kComplete) ++group->complete;
    if (run.state == RunState::kDiverged) ++group->diverged;
    if (run.state == RunState::kFailed) ++group->failed;
    if (run.state == RunState::kAbsent) ++group->absent;
    if (!run.policy.empty()) group->policy = PolicyText(run);
    if (!run.counts()) continue;
    for (const auto& [column, number] : run.numbers) {
      if (std::isfinite(number)) values[column].push_back(number);
    }
  }
  for (const auto& [column, numbers] : values) {
    group->spreads[column] = SpreadOfColumn(column, numbers);
  }
}

std::vector<Group> GroupsOf(const StudyRuns& plan, const std::vector<StudyRun>& runs) {
  std::vector<Group> groups;
  for (const Part part : {Part::kUntuned, Part::kTuned}) {
    for (const VariationPlan& variation : plan.variations) {
      Group group;
      group.variation = variation.name;
      group.among = variation.among;
      group.part = part;
      for (const StudyRun& run : runs) {
        if (run.variation != variation.name || run.part != part) continue;
        group.runs.push_back(run);
        group.value = run.value;
      }
      if (group.runs.empty()) continue;
      Count(&group);
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

const Group* FindGroup(const std::vector<Group>& groups, const std::string& variation, Part part) {
  for (const Group& group : groups) {
    if (group.variation == variation && group.part == part) return &group;
  }
  return nullptr;
}

// Compares two groups in one measure. The order of the steps decides what may be claimed. First,
// only seeds that came to an end in both groups are paired, so that the effect of a seed cancels.
// Then a comparison in which some runs diverged or missed the target ends without a verdict. Last,
// a verdict is given only if the interval of the effect excludes "no effect".
Comparison Compare(const Group& a, const Group& b, const Metric& measure) {
  Comparison comparison;
  comparison.variation = a.variation;
  comparison.against = b.variation;
  comparison.part = a.part;
  comparison.against_part = b.part;
  comparison.measure = measure;
  const bool to_target = absl::StartsWith(measure.column, "to_target.");
  const auto diverged = [](const StudyRun& run) { return run.state == RunState::kDiverged; };
  const auto has_say = [&](const StudyRun& run) { return run.counts() || diverged(run); };
  std::vector<double> of_a, of_b;
  for (const StudyRun& run : a.runs) {
    for (const StudyRun& other : b.runs) {
      if (run.seed != other.seed || !has_say(run) || !has_say(other)) continue;
      const auto x = run.Number(measure.column), y = other.Number(measure.column);
      ++comparison.paired;
      comparison.diverged += !to_target && diverged(run);
      comparison.against_diverged += !to_target && diverged(other);
      comparison.reached += x.has_value();
      comparison.against_reached += y.has_value();
      if (!x.has_value() || !y.has_value()) continue;
      if (measure.as_ratio && (*x <= 0 || *y <= 0)) continue;
      of_a.push_back(*x);
      of_b.push_back(*y);
    }
  }
  if (!to_target) comparison.reached = comparison.against_reached = comparison.paired;
  // The runs that reached the target or did not diverge are a biased sample.
  if (comparison.lost() || comparison.censored()) return comparison;
  comparison.effect = measure.as_ratio ? RatioOf(of_a, of_b) : DifferenceOf(of_a, of_b);
  if (comparison.effect.resolved) {
    const bool higher = comparison.effect.mean > (measure.as_ratio ? 1 : 0);
    comparison.verdict = higher == measure.higher_is_better ? 1 : -1;
  }
  return comparison;
}

std::vector<Comparison> ComparisonsOf(const StudyRuns& plan, const std::vector<Group>& groups) {
  std::vector<Comparison> all;
  for (const Metric& measure : MeasuresOf(plan, groups)) {
    for (const Group& group : groups) {
      const Group* const base = FindGroup(groups, plan.BaselineOf(group.variation), group.part);
      if (base == nullptr || base == &group) continue;
      all.push_back(Compare(group, *base, measure));
    }
  }
  return all;
}

std::vector<Comparison> GainsOf(const StudyRuns& plan, const std::vector<Group>& groups) {
  std::vector<Comparison> all;
  for (const Group& group : groups) {
    const Group* const untuned = FindGroup(groups, group.variation, Part::kUntuned);
    if (group.part != Part::kTuned || untuned == nullptr) continue;
    all.push_back(Compare(group, *untuned, plan.metric));
  }
  return all;
}

std::vector<Trial> TrialsOf(const StudyRuns& plan, const std::map<std::string, std::string>& chosen,
                            const std::vector<StudyRun>& runs) {
  std::vector<Trial> trials;
  const bool by_loss = plan.study.tune().choose_by() == Tune::TRAINING_LOSS;
  for (const VariationPlan& variation : plan.variations) {
    for (const std::string& value : plan.study.tune().value()) {
      Trial trial;
      trial.variation = variation.name;
      trial.value = value;
      std::vector<double> numbers;
      for (const StudyRun& run : runs) {
        if (run.part != Part::kTuning || run.variation != trial.variation || run.value != value) {
          continue;
        }
        const auto number = run.Number(by_loss ? "loss" : plan.metric.column);
        if (run.counts() && number.has_value()) {
          numbers.push_back(*number);
        } else {
          ++trial.lost;
        }
      }
      trial.spread = SpreadOf(numbers);
      const auto choice = chosen.find(variation.name);
      trial.chosen = choice != chosen.end() && choice->second == value;
      trials.push_back(std::move(trial));
    }
  }
  return trials;
}

// ---- words ------------------------------------------------------------------------------------

// Three significant digits; effects are not known more precisely.
std::string Short(double value) { return absl::StrFormat("%.3g", value); }

// A factor with three significant digits, or with more if that many are needed to tell it from 1:
// "2.13", "0.99983".
std::string ShortFactor(double factor) {
  constexpr int kMaxDigits = 9;
  std::string text;
  for (int digits = 3; digits <= kMaxDigits; ++digits) {
    text = absl::StrFormat("%.*g", digits, factor);
    if (text != "1") break;
  }
  return text;
}

// How large a difference may be that the interval of the effect does not exclude, as a difference
// or as a factor above 1.
double Room(const Comparison& comparison) {
  const Effect& effect = comparison.effect;
  return comparison.measure.as_ratio ? std::max(effect.high, 1 / effect.low)
                                     : std::max(effect.high, -effect.low);
}

// Joins names for a sentence: "a", "a and b", "a, b and c".
std::string List(const std::vector<std::string>& names) {
  if (names.size() < 2) return names.empty() ? "" : names[0];
  const std::vector<std::string> first(names.begin(), names.end() - 1);
  return absl::StrCat(absl::StrJoin(first, ", "), " and ", names.back());
}

std::string Seeds(size_t count) { return absl::StrCat(count, count == 1 ? " seed" : " seeds"); }

// The name of a variation without the part that all variations of its set share: "ring" for "ring,
// 1 MB" among "1 MB".
std::string NameAmong(absl::string_view variation, const std::string& among) {
  absl::string_view name = variation;
  if (among.empty()) return std::string(name);
  for (const absl::string_view between : {", ", " "}) {
    if (absl::ConsumePrefix(&name, absl::StrCat(among, between))) break;
    if (absl::ConsumeSuffix(&name, absl::StrCat(between, among))) break;
  }
  return std::string(name);
}

// The parts of an answer, and how detailed it is.
struct Answer {
  const StudyRuns& plan;
  Part part;
  const std::vector<Group>& groups;
  const std::vector<Comparison>& comparisons;
  bool brief;  // many variations: leave intervals and speed to the tables
};

// The sentence part about one measure, for the variations that are compared with `against`: "ASP is
// lower by 0.01 (...), no difference is seen for SSP; if there is one, it is below 0.002 AUC".
// Variations are sorted by what can be said of them: a variation whose runs all diverged has no
// effect to report, then come variations of which some did, comparisons without paired seeds,
// resolved effects, and last the two kinds of unresolved effects. Only "resolved" claims an order.
std::string Clause(const Answer& answer, const Metric& measure, const std::string& among,
                   const std::string& against) {
  std::vector<std::string> resolved, open, few, unknown, diverged, lost, same;
  const Comparison* widest = nullptr;  // the interval of `open` that leaves room for the most
  for (const Comparison& comparison : answer.comparisons) {
    if (comparison.part != answer.part || comparison.measure.name != measure.name ||
        comparison.against != against) {
      continue;
    }
    const std::string name = NameAmong(comparison.variation, among);
    const Group* const group = FindGroup(answer.groups, comparison.variation, answer.part);
    if (group != nullptr && group->complete == 0 && group->diverged > 0) {
      diverged.push_back(name);
    } else if (comparison.lost()) {
      lost.push_back(absl::StrCat(name, " has ", comparison.Words()));
    } else if (comparison.effect.seeds == 0) {
      unknown.push_back(name);
    } else if (comparison.verdict != 0) {
      const std::string words = comparison.Words();
      resolved.push_back(
          absl::StrCat(name, " is ", answer.brief ? words.substr(0, words.find(" (")) : words));
    } else if (comparison.same()) {
      same.push_back(name);
    } else if (comparison.effect.low < comparison.effect.high) {
      open.push_back(name);
      if (widest == nullptr || Room(comparison) > Room(*widest)) widest = &comparison;
    } else {
      few.push_back(name);
    }
  }
  std::vector<std::string> parts;
  if (!resolved.empty()) parts.push_back(List(resolved));
  if (!same.empty()) {
    parts.push_back(absl::StrCat(List(same), same.size() == 1 ? " shows" : " show",
                                 " no difference, in any seed"));
  }
  if (!open.empty()) {
    parts.push_back(
        absl::StrCat("no difference is seen for ", List(open), "; if there is one, it is below ",
                     measure.as_ratio ? absl::StrCat("a factor of ", ShortFactor(Room(*widest)))
                                      : absl::StrCat(Short(Room(*widest)), " ", measure.label)));
  }
  if (!few.empty()) {
    parts.push_back(absl::StrCat(List(few), few.size() == 1 ? " has" : " have", " too few seeds"));
  }
  if (!lost.empty()) parts.push_back(absl::StrJoin(lost, ", "));
  if (!diverged.empty()) parts.push_back(absl::StrCat(List(diverged), " diverged"));
  if (!unknown.empty()) parts.push_back(absl::StrCat(List(unknown), " cannot be compared"));
  return absl::StrJoin(parts, ", ");
}

// Whether a tuning run is still to be done. A study may have got more values or seeds since its
// values were chosen.
bool IsTuning(const StudyRun& run) {
  return run.part == Part::kTuning && run.state == RunState::kAbsent;
}

// The part that the answer speaks of. Tuned runs are used only if all tuning runs are done and
// every variation has all its tuned runs, none failed or missing.
Part PartOfAnswer(const StudyRuns& plan, const std::vector<Group>& groups,
                  const std::vector<StudyRun>& runs) {
  if (std::any_of(runs.begin(), runs.end(), IsTuning)) return Part::kUntuned;
  for (const VariationPlan& variation : plan.variations) {
    const Group* const group = FindGroup(groups, variation.name, Part::kTuned);
    const bool whole = group != nullptr && group->complete > 0 && group->failed == 0 &&
                       group->absent == 0 &&
                       group->runs.size() == static_cast<size_t>(plan.study.seed_size());
    if (!whole) return Part::kUntuned;
  }
  return Part::kTuned;
}

// Explains why complete runs have no value of the metric, with a hint; "" if the reason is not
// known.
std::string WhyNoValue(const Metric& metric, const Group& group) {
  constexpr double kLines = 20;  // so many progress lines are enough
  constexpr double kShortest = 0.05;
  if (metric.column != "steady.speed") return "";
  for (const StudyRun& run : group.runs) {
    const auto seconds = run.Number("seconds");
    if (!run.counts() || !seconds.has_value()) continue;
    return absl::StrFormat(
        ": a run of %.3g s has %d progress lines, too few to leave out its start; hint: set: "
        "\"limits.report_interval_seconds=%.2g\"",
        *seconds, run.curve.size(), std::max(kShortest, *seconds / kLines));
  }
  return "";
}

// The answer for one set of variations that are compared with each other.
std::string AnswerAmong(const Answer& answer, const std::string& among) {
  const Metric& metric = answer.plan.metric;
  const std::string baseline = answer.plan.BaselineAmong(among);
  const std::string name = NameAmong(baseline, among);
  const Group* const base = FindGroup(answer.groups, baseline, answer.part);
  const Spread* const spread = base == nullptr ? nullptr : base->Find(metric.column);
  if (spread == nullptr) {
    return absl::StrCat("There is no answer: no run of ", name,
                        ", with which all are compared, has come to its end with a value of ",
                        metric.label, base == nullptr ? "" : WhyNoValue(metric, *base), ".");
  }
  const std::string mean = absl::StrFormat("%.4g", spread->mean);
  std::string text = absl::StrCat(answer.part == Part::kTuned ? "Tuned, " : "", name, " reaches ",
                                  metric.label, " ", mean, " (mean of ", Seeds(spread->count), ")");
  const std::string quality = Clause(answer, metric, among, baseline);
  if (!quality.empty()) absl::StrAppend(&text, "; against it, ", quality);
  if (metric.name != Speed().name && !answer.brief) {
    const std::string speed = Clause(answer, Speed(), among, baseline);
    if (!speed.empty()) absl::StrAppend(&text, "; in samples/s, ", speed);
  }
  return text + ".";
}

// The answer of the study: a line for each set of variations that are compared with each other.
std::string AnswerOf(const StudyRuns& plan, Part part, const std::vector<Group>& groups,
                     const std::vector<Comparison>& comparisons) {
  constexpr size_t kMaxInFull = 12;  // variations; with more, the answer is brief
  const Answer answer = {plan, part, groups, comparisons, plan.variations.size() > kMaxInFull};
  return absl::StrJoin(plan.Amongs(), "\n", [&](std::string* out, const std::string& among) {
    absl::StrAppend(out, among.empty() ? "" : absl::StrCat("Among ", among, ": "),
                    AnswerAmong(answer, among));
  });
}

std::string NameOfGroup(const Group& group) {
  return absl::StrCat(group.variation, group.part == Part::kTuned ? " (tuned)" : "");
}

// Adds one note for all groups whose runs have all diverged, if there are more than a few of them.
// Returns the names of these groups.
std::set<std::string> NoteDiverged(const std::vector<Group>& groups,
                                   std::vector<std::string>* notes) {
  constexpr size_t kFew = 3;
  std::set<std::string> all;
  std::vector<std::string> names;  // in the study's order
  for (const Group& group : groups) {
    if (group.diverged == 0 || static_cast<size_t>(group.diverged) < group.runs.size()) continue;
    names.push_back(NameOfGroup(group));
    all.insert(names.back());
  }
  if (names.size() <= kFew) return {};
  notes->push_back(absl::StrCat("All runs of ", names.size(),
                                " variations diverged; they are in no mean and no interval: ",
                                absl::StrJoin(names, "; "), "."));
  return all;
}

// Adds notes about runs that do not count, for one group. Skips the divergence of groups in
// `together`, which share a note.
void NoteLost(const Group& group, const std::set<std::string>& together,
              std::vector<std::string>* notes) {
  const std::string whose = NameOfGroup(group);
  const size_t all = group.runs.size();
  if (group.diverged > 0 && !together.contains(whose)) {
    notes->push_back(absl::StrCat(whose, ": ", group.diverged, " of ", all,
                                  " runs diverged; they are in no mean and no interval."));
  }
  if (!group.collapsed.empty()) {
    notes->push_back(absl::StrCat(whose, ": ", group.collapsed.size(), " of ", all,
                                  " runs collapsed (", absl::StrJoin(group.collapsed, ", "),
                                  "): next to nothing learned, by a loss that is a ",
                                  "number all the same. The mean and the interval are with ",
                                  group.collapsed.size() == 1 ? "it." : "them."));
  }
  std::vector<std::string> restarted;
  for (const StudyRun& run : group.runs) {
    if (run.counts() && run.restarts > 0) restarted.push_back(run.name);
  }
  if (!restarted.empty()) {
    notes->push_back(absl::StrCat(
        whose, ": ", restarted.size(), " of ", all, " runs had a restart or a replaced worker (",
        absl::StrJoin(restarted, ", "),
        "); their speeds and times include what that cost; hint: remove their folders in runs/ and "
        "compare again."));
  }
  if (group.failed > 0) {
    notes->push_back(absl::StrCat(whose, ": ", group.failed, " of ", all, " runs failed."));
  }
  if (group.absent > 0) {
    notes->push_back(
        absl::StrCat(whose, ": ", group.absent, " of ", all, " runs are not done yet."));
  }
}

// Adds a note if the runs are of several builds. Builds may differ in speed and in behaviour, so
// such a comparison is accidental.
void NoteBuilds(const std::vector<Group>& groups, std::vector<std::string>* notes) {
  std::map<std::string, int> runs;
  for (const Group& group : groups) {
    for (const StudyRun& run : group.runs) {
      if (run.counts() && !run.build.empty()) ++runs[run.build];
    }
  }
  if (runs.size() < 2) return;
  notes->push_back(absl::StrCat(
      "The runs are of ", runs.size(), " builds of Tandem: ",
      absl::StrJoin(runs, ", ",
                    [](std::string* out, const auto& build) {
                      absl::StrAppend(out, build.second, build.second == 1 ? " run" : " runs",
                                      " of ", build.first);
                    }),
      ". Differences, of speed above all, may be those of the builds; runs.csv names the "
      "build of each run."));
}

// Adds a note if the curve of quality does not come from evaluations on test rows.
void NoteRowsOfCurves(const StudyRuns& plan, const Analysis& analysis,
                      std::vector<std::string>* notes) {
  const std::string& rows = analysis.curve_rows;
  if (rows.empty()) return;
  const std::string what =
      absl::StrCat("What is shown of ", plan.metric.label,
                   " on the way, and the time and samples to a target, is of ", rows, " rows");
  if (rows == "validation") {
    notes->push_back(absl::StrCat(what, ", by which train.keep_best chooses; at the end stands ",
                                  "what the chosen model has on test rows."));
    return;
  }
  notes->push_back(absl::StrCat("Each run was evaluated once, at its end. ", what,
                                ", each scored before it was trained on; ",
                                "evaluation.every_epochs gives it on test rows."));
}

// A prediction of the speed of live runs: the column of the live speed, the column of the predicted
// speed, and how a note about the prediction begins.
struct Foretold {
  const char *live, *told, *what;
};
constexpr Foretold kForetold[] = {
    {"training_speed", "twin.training_speed",
     "Twins, simulated with the times that the live runs took, are"},
    {"steady.speed", "model.speed", "What the model of tandem plan says is"}};

struct Speeds {
  const Group* group;
  double live, told;

  double off() const { return std::max(live, told) / std::min(live, told) - 1; }
};

// The live and predicted speeds of the groups that are compared with each other, in their order.
std::vector<Speeds> SpeedsAmong(const std::string& among, const std::vector<Group>& groups,
                                const Foretold& foretold) {
  std::vector<Speeds> all;
  for (const Group& group : groups) {
    const Spread* const live = group.Find(foretold.live);
    const Spread* const told = group.Find(foretold.told);
    if (group.among != among || live == nullptr || told == nullptr) continue;
    all.push_back({&group, live->mean, told->mean});
  }
  return all;
}

// The sorted names, fastest first: "ring = direct, naive". "=" stands between two that cannot be
// told apart.
template <typename Alike>
std::string Ranked(const std::vector<Speeds>& sorted, Alike alike) {
  std::string out;
  for (size_t i = 0; i < sorted.size(); ++i) {
    if (i > 0) absl::StrAppend(&out, alike(sorted[i - 1], sorted[i]) ? " = " : ", ");
    absl::StrAppend(&out, sorted[i].group->variation);
  }
  return out;
}

// The order of the variations by live speed, and the predicted order.
std::string OrderOf(std::vector<Speeds> all, const Foretold& foretold) {
  std::stable_sort(all.begin(), all.end(),
                   [](const Speeds& a, const Speeds& b) { return a.live > b.live; });
  const Metric speed = {"speed", foretold.live, "", true, false, true};
  const std::string live = Ranked(all, [&](const Speeds& a, const Speeds& b) {
    return !Compare(*a.group, *b.group, speed).effect.resolved;
  });
  std::stable_sort(all.begin(), all.end(),
                   [](const Speeds& a, const Speeds& b) { return a.told > b.told; });
  constexpr double kAlike = 1.05;
  const std::string told =
      Ranked(all, [](const Speeds& a, const Speeds& b) { return a.told < b.told * kAlike; });
  return absl::StrCat("Fastest first, = where seeds do not tell two apart: ", live,
                      "; foretold, = within 5 %: ", told, ".");
}

// Adds notes about the prediction: its largest error, and whether variations whose live speeds
// differ by more than that error are predicted in the right order.
void NoteForetold(const StudyRuns& plan, const std::vector<Group>& groups, const Foretold& foretold,
                  std::vector<std::string>* notes) {
  for (const std::string& among : plan.Amongs()) {
    const std::vector<Speeds> all = SpeedsAmong(among, groups, foretold);
    if (all.empty()) continue;
    const Speeds& worst = *std::max_element(
        all.begin(), all.end(), [](const Speeds& a, const Speeds& b) { return a.off() < b.off(); });
    std::vector<std::string> swapped;
    for (const Speeds& a : all) {
      for (const Speeds& b : all) {
        if (a.live > b.live * (1 + worst.off()) && a.told <= b.told) {
          swapped.push_back(absl::StrCat(a.group->variation, " and ", b.group->variation));
        }
      }
    }
    notes->push_back(absl::StrFormat(
        "%s%s off by %.1f %% in speed at most (%s). Variations whose live speeds differ by more "
        "%s%s",
        among.empty() ? "" : absl::StrCat("Among ", among, ": "), foretold.what, 100 * worst.off(),
        worst.group->variation,
        swapped.empty()
            ? "stand in the same order."
            : absl::StrCat("stand in another order: ", absl::StrJoin(swapped, "; "), "."),
        all.size() > 2 ? absl::StrCat(" ", OrderOf(all, foretold)) : ""));
  }
}

// Adds notes about the simplifications of the model in these jobs. Each is noted once, with the
// variations that it affects.
void NoteNotCounted(const std::vector<Group>& groups, std::vector<std::string>* notes) {
  std::map<std::string, std::set<std::string>> whose;
  for (const Group& group : groups) {
    for (const StudyRun& run : group.runs) {
      for (const std::string& what : run.not_counted) whose[what].insert(group.variation);
    }
  }
  for (const auto& [what, variations] : whose) {
    notes->push_back(absl::StrCat("The cost model leaves out: ", what, " (",
                                  absl::StrJoin(variations, ", "), ")."));
  }
}

// Whether each update of a worker is a step of the optimizer by itself (docs/POLICIES.md).
bool AppliesOneByOne(const Group& group) {
  constexpr absl::string_view kNames[] = {
      "ASP",         "SSP",         "ESSP",       "DSSP",           "DC_ASGD",
      "COSINE_GATE", "SYNC_SWITCH", "RINGMASTER", "DELAY_ADAPTIVE", "ORDERED_MOMENTUM"};
  for (const StudyRun& run : group.runs) {
    for (const auto& [table, policy] : run.policy) {
      const absl::string_view name = absl::string_view(policy).substr(0, policy.find('('));
      if (std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames)) return true;
    }
  }
  return false;
}

// Whether a step of the optimizer is a mean of more or fewer updates than there are workers.
bool HasOtherBatches(const Group& group) {
  constexpr absl::string_view kNames[] = {"K_BATCH_ASYNC", "GBA", "RENNALA"};
  for (const StudyRun& run : group.runs) {
    for (const auto& [table, policy] : run.policy) {
      const absl::string_view name = absl::string_view(policy).substr(0, policy.find('('));
      if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) continue;
      if (policy != absl::StrCat(name, "(", run.by_worker.size(), ")")) return true;
    }
  }
  return false;
}

// Adds a note if some of the variations make more steps of the optimizers with the same rate.
void NoteSteps(const StudyRuns& plan, const std::vector<Group>& groups,
               std::vector<std::string>* notes) {
  if (plan.tunes() || plan.study.simulate().timing_only()) return;
  for (const std::string& among : plan.Amongs()) {
    std::vector<std::string> more, once;
    size_t workers = 0;
    for (const Group& group : groups) {
      if (group.among != among || group.policy.empty()) continue;
      const bool one_by_one = AppliesOneByOne(group);
      if (!one_by_one && HasOtherBatches(group)) continue;
      (one_by_one ? more : once).push_back(NameAmong(group.variation, among));
      for (const StudyRun& run : group.runs) workers = std::max(workers, run.by_worker.size());
    }
    if (more.empty() || once.empty() || workers < 2) continue;
    notes->push_back(absl::StrCat(
        among.empty() ? "Where " : absl::StrCat("Among ", among, ": where "), List(once),
        once.size() == 1 ? " takes" : " take", " one step with the mean of ", workers, " workers, ",
        List(more), more.size() == 1 ? " takes " : " take ", workers,
        " steps, each with the whole learning rate unless the policy has async_scale: ",
        "INVERSE_WORKERS. No rate was tuned, so the learning rate may cause a difference in "
        "quality",
        "; hint: tune { path: \"dense.optimizer.learning_rate\" }"));
  }
}

// Adds a note if the machine was busy. The load was measured before the first run, so the study
// itself did not cause it.
void NoteLoad(const StudyRuns& plan, const json& surroundings, std::vector<std::string>* notes) {
  const json machine = surroundings.value("machine", json::object());
  const double load = NumberIn(machine, "load", 0.0), cores = NumberIn(machine, "cores", 0.0);
  if (plan.study.has_simulate() || !(cores > 0) || load <= cores) return;
  notes->push_back(
      absl::StrFormat("The machine was busy when the study began: load %.1f on %.0f "
                      "cores. Speeds and times are "
                      "those of the remaining capacity; hint: measure on an idle machine.",
                      load, cores));
}

std::vector<std::string> NotesOf(const StudyRuns& plan, const Analysis& analysis,
                                 const json& surroundings) {
  std::vector<std::string> notes;
  for (const Foretold& foretold : kForetold) NoteForetold(plan, analysis.groups, foretold, &notes);
  NoteNotCounted(analysis.groups, &notes);
  const std::set<std::string> diverged = NoteDiverged(analysis.groups, &notes);
  for (const Group& group : analysis.groups) NoteLost(group, diverged, &notes);
  NoteBuilds(analysis.groups, &notes);
  NoteSteps(plan, analysis.groups, &notes);
  NoteLoad(plan, surroundings, &notes);
  NoteRowsOfCurves(plan, analysis, &notes);
  if (plan.tunes() && analysis.part != Part::kTuned) {
    notes.push_back(
        "Not every value has been tried, or not every variation has all its tuned runs: the "
        "answer, "
        "and the figures that show one part, are of the untuned ones.");
  }
  const size_t seeds = plan.study.seed_size();
  if (seeds < kEnoughSeeds && plan.variations.size() > 1) {
    notes.push_back(
        absl::StrCat("With ", Seeds(seeds),
                     ", a difference counts as resolved only if its 95 % interval leaves "
                     "out \"no difference\"; with ",
                     kEnoughSeeds,
                     " or more, intervals get narrow enough to see "
                     "smaller ones."));
  }
  if (analysis.comparisons.size() > 1) {
    notes.push_back(absl::StrCat(
        "Each interval stands for itself: of 20 comparisons without any effect, one would look "
        "resolved by chance. There are ",
        analysis.comparisons.size(), " here."));
  }
  return notes;
}

// ---- for figures ------------------------------------------------------------------------------

json SpreadJson(const Spread& spread) {
  return {{"count", spread.count},        {"mean", spread.mean}, {"low", spread.low},
          {"high", spread.high},          {"min", spread.min},   {"max", spread.max},
          {"deviation", spread.deviation}};
}

json RunJson(const StudyRuns& plan, const StudyRun& run) {
  json quality = json::array(), loss = json::array();
  for (const QualityPoint& point : QualityCurve(plan.metric, run)) {
    quality.push_back({point.seconds, point.samples, point.value});
  }
  for (const CurvePoint& point : run.curve) {
    if (std::isfinite(point.loss)) loss.push_back({point.seconds, point.samples, point.loss});
  }
  return {
      {"name", run.name},           {"seed", run.seed},          {"state", StateName(run.state)},
      {"numbers", run.numbers},     {"quality", quality},        {"loss", loss},
      {"staleness", run.staleness}, {"by_worker", run.by_worker}};
}

json GroupJson(const StudyRuns& plan, const Group& group) {
  json runs = json::array(), spreads = json::object();
  for (const StudyRun& run : group.runs) runs.push_back(RunJson(plan, run));
  for (const auto& [column, spread] : group.spreads) spreads[column] = SpreadJson(spread);
  const auto with_model =
      std::find_if(group.runs.begin(), group.runs.end(),
                   [](const StudyRun& run) { return !run.model_curve.empty(); });
  return {{"variation", group.variation},
          {"among", group.among},
          {"part", PartName(group.part)},
          {"value", group.value},
          {"policy", group.policy},
          {"runs", runs},
          {"collapsed", group.collapsed},
          {"model_curve", with_model == group.runs.end() ? json::array() : with_model->model_curve},
          {"spreads", spreads}};
}

json ComparisonJson(const Comparison& comparison) {
  return {
      {"variation", comparison.variation},      {"part", PartName(comparison.part)},
      {"against", comparison.against},          {"against_part", PartName(comparison.against_part)},
      {"measure", comparison.measure.label},    {"ratio", comparison.measure.as_ratio},
      {"seeds", comparison.effect.seeds},       {"mean", comparison.effect.mean},
      {"low", comparison.effect.low},           {"high", comparison.effect.high},
      {"resolved", comparison.effect.resolved}, {"words", comparison.Words()}};
}

}  // namespace

const Spread* Group::Find(const std::string& column) const {
  const auto it = spreads.find(column);
  return it == spreads.end() ? nullptr : &it->second;
}

std::string Comparison::Words() const {
  if (lost()) {
    const std::string of_against =
        absl::StrCat(against_diverged, " of ", paired, " runs of ", against, " diverged");
    return absl::StrCat(
        "no verdict: ",
        diverged == 0 ? of_against : absl::StrCat(diverged, " of ", paired, " runs diverged"),
        diverged > 0 && against_diverged > 0 ? absl::StrCat(", and ", of_against) : "");
  }
  if (censored()) {
    return absl::StrCat("no verdict: the target was reached in ", reached, " of ", paired,
                        " runs, in ", against_reached, " of ", paired, " of ", against);
  }
  if (effect.seeds == 0) return "no seed is complete in both";
  if (effect.seeds == 1) return "not resolved (one seed)";
  if (same()) return "no difference in any seed";
  if (measure.as_ratio) {
    const std::string interval =
        absl::StrCat(" (", ShortFactor(effect.low), " to ", ShortFactor(effect.high), ")");
    if (verdict == 0) return absl::StrCat("not resolved", interval);
    return absl::StrCat(ShortFactor(effect.mean), " times as much", interval);
  }
  const std::string interval = absl::StrFormat(" (%+.3g to %+.3g)", effect.low, effect.high);
  if (verdict == 0) return absl::StrCat("not resolved", interval);
  return absl::StrCat(effect.mean > 0 ? "higher" : "lower", " by ", Short(std::abs(effect.mean)),
                      interval);
}

Analysis Analyse(const StudyRuns& plan, const std::map<std::string, std::string>& chosen,
                 const std::vector<StudyRun>& runs, const json& surroundings) {
  Analysis analysis;
  analysis.groups = GroupsOf(plan, runs);
  MarkCollapsed(plan, &analysis.groups);
  analysis.curve_rows = RowsOfCurves(plan.metric, analysis.groups);
  analysis.comparisons = ComparisonsOf(plan, analysis.groups);
  analysis.tuned_gains = GainsOf(plan, analysis.groups);
  if (plan.tunes()) analysis.trials = TrialsOf(plan, chosen, runs);
  analysis.part = PartOfAnswer(plan, analysis.groups, runs);
  analysis.answer = AnswerOf(plan, analysis.part, analysis.groups, analysis.comparisons);
  analysis.notes = NotesOf(plan, analysis, surroundings);
  return analysis;
}

json ResultsJson(const StudyRuns& plan, const Analysis& analysis) {
  json groups = json::array(), comparisons = json::array(), gains = json::array();
  for (const Group& group : analysis.groups) groups.push_back(GroupJson(plan, group));
  for (const Comparison& c : analysis.comparisons) comparisons.push_back(ComparisonJson(c));
  for (const Comparison& c : analysis.tuned_gains) gains.push_back(ComparisonJson(c));
  json study = {{"name", plan.study.name()},
                {"part", PartName(analysis.part)},
                {"question", plan.study.question()},
                {"baseline", plan.Amongs().size() > 1 ? "the baseline" : plan.baseline},
                {"metric",
                 {{"name", plan.metric.name},
                  {"column", plan.metric.column},
                  {"label", plan.metric.label},
                  {"higher_is_better", plan.metric.higher_is_better},
                  {"of_evaluation", plan.metric.of_evaluation},
                  {"curve_rows", analysis.curve_rows}}}};
  if (plan.study.target().has_value()) study["target"] = plan.study.target().value();
  return {{"study", study},   {"answer", analysis.answer},  {"notes", analysis.notes},
          {"groups", groups}, {"comparisons", comparisons}, {"tuned_gains", gains}};
}

}  // namespace tandem::study
