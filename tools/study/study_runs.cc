#include "tools/study/study_runs.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "data/batch_source.h"
#include "google/protobuf/text_format.h"
#include "job/message_text.h"
#include "job/refuse.h"
#include "job/timing_plan.h"
#include "node/role_flags.h"
#include "node/transport_choice.h"
#include "xxhash.h"

namespace tandem::study {
namespace {

namespace fs = std::filesystem;
using google::protobuf::TextFormat;

constexpr size_t kMaxStudyBytes = 1 << 20;
constexpr size_t kMaxNameBytes = 80;
constexpr char kAlone[] = "job";  // name of the variation in a study without variations
constexpr char kLoss[] = "loss", kExcessLoss[] = "excess_loss";  // metrics
constexpr char kSteadySpeed[] = "steady_samples_per_second";
constexpr char kSecondsToTarget[] = "seconds_to_target";

// A form of the name that every file system accepts and shells need not quote.
std::string FolderName(absl::string_view name) {
  std::string safe;
  for (const char c : name) {
    const bool plain = absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_';
    if (plain) {
      safe += c;
    } else if (!safe.empty() && safe.back() != '-') {
      safe += '-';
    }
  }
  while (!safe.empty() && safe.back() == '-') safe.pop_back();
  return safe;
}

// The folder name of a value that is tried. If the name cannot show the whole value ("1" and "-1"),
// a hash tells the values apart.
std::string FolderOfValue(const std::string& value) {
  const std::string folder = FolderName(value).substr(0, kMaxNameBytes);
  if (folder == value) return folder;
  const uint64_t hash = XXH3_64bits(value.data(), value.size());
  return absl::StrCat(folder, folder.empty() ? "" : "-",
                      absl::Hex(hash & 0xffffffff, absl::kZeroPad8));
}

// The name of a value in variations: "policy={kind: SSP bound: 4}" is called "kind: SSP bound: 4".
std::string ValueName(absl::string_view value) {
  absl::string_view name = absl::StripAsciiWhitespace(value);
  if (absl::ConsumePrefix(&name, "{")) absl::ConsumeSuffix(&name, "}");
  return std::string(absl::StripAsciiWhitespace(name));
}

std::string LastStep(absl::string_view path) {
  return std::string(path.substr(path.rfind('.') + 1));  // npos + 1 = 0
}

// Reads a study and keeps its text, so that messages can point at a line.
class Reader {
 public:
  Reader(absl::string_view text, const std::string& file_name)
      : text_(text), file_name_(file_name) {}

  // Defaults are filled in before the checks, which expect them. Expand must follow CheckFields,
  // because it uses checked fields. Names and the number of runs are known only after Expand.
  absl::StatusOr<StudyRuns> Read() {
    absl::ConsumePrefix(&text_, "\xef\xbb\xbf");
    if (text_.size() > kMaxStudyBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          file_name_, ": ", text_.size(), " bytes, a study has at most ", kMaxStudyBytes));
    }
    TANDEM_RETURN_IF_ERROR(job::ParseMessageText(text_, file_name_, &plan_.study, &tree_));
    FillDefaults();
    TANDEM_RETURN_IF_ERROR(CheckFields());
    TANDEM_RETURN_IF_ERROR(Expand());
    TANDEM_RETURN_IF_ERROR(CheckNames());
    TANDEM_RETURN_IF_ERROR(CheckCount());
    return std::move(plan_);
  }

 private:
  std::string Place(absl::string_view path) {
    return job::PlaceInText(path, text_, file_name_, Study::descriptor(), &tree_);
  }
  template <typename... Parts>
  absl::Status Refused(absl::string_view path, const Parts&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(Place(path), ": ", path, ": ", parts...));
  }

  void FillDefaults() {
    Study& study = plan_.study;
    if (study.name().empty()) study.set_name(fs::path(file_name_).stem().string());
    if (study.seed().empty()) {
      for (const uint64_t seed : {1, 2, 3}) study.add_seed(seed);
    }
    if (study.target().metric().empty()) study.mutable_target()->set_metric("auc");
    if (study.has_simulate()) {
      Simulate& simulate = *study.mutable_simulate();
      if (simulate.step_seconds() == 0) simulate.set_step_seconds(0.01);
      if (simulate.latency_seconds() == 0) simulate.set_latency_seconds(0.0001);
    }
    if (study.has_network() && study.network().latency_seconds() == 0) {
      study.mutable_network()->set_latency_seconds(0.0002);
    }
    if (!study.has_tune()) return;
    if (study.tune().choose_by() == Tune::CHOOSE_BY_UNSPECIFIED) {
      study.mutable_tune()->set_choose_by(Tune::VALIDATION);
    }
    if (study.tune().seed().empty()) {
      const uint64_t last = *std::max_element(study.seed().begin(), study.seed().end());
      study.mutable_tune()->add_seed(last + 1);
      study.mutable_tune()->add_seed(last + 2);
    }
  }

  absl::Status CheckFields() {
    const Study& study = plan_.study;
    if (study.job().empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file_name_, ": job: not set, expected a job file, such as ",
                       "\"../quickstart.textproto\" (from the study's folder)"));
    }
    const fs::path folder = fs::path(file_name_).parent_path();
    plan_.job_file = (folder / study.job()).lexically_normal().string();
    TANDEM_RETURN_IF_ERROR(CheckPython(folder));
    const auto metric = MetricOf(study.target().metric());
    if (!metric.ok()) return Refused("target.metric", metric.status().message());
    plan_.metric = *metric;
    if (study.target().has_value() && !std::isfinite(study.target().value())) {
      return Refused("target.value", study.target().value(), ", must be a finite number");
    }
    if (study.target().has_value() && !plan_.metric.of_evaluation && plan_.metric.name != kLoss) {
      return Refused("target.value", study.target().value(),
                     ": a run cannot report when it is reached, because ", plan_.metric.name,
                     " is known only at its end; leave it out, or take a ",
                     "metric of quality or loss");
    }
    TANDEM_RETURN_IF_ERROR(CheckSeeds());
    TANDEM_RETURN_IF_ERROR(CheckBudget());
    TANDEM_RETURN_IF_ERROR(CheckSimulate());
    if (study.twin() && study.has_simulate()) {
      return Refused("twin",
                     "true, but runs of `simulate` are no live ones; leave one of both out");
    }
    TANDEM_RETURN_IF_ERROR(CheckNetwork());
    return study.has_tune() ? CheckTune() : absl::OkStatus();
  }

  absl::Status CheckPython(const fs::path& folder) {
    const Study& study = plan_.study;
    if (study.python().empty()) return absl::OkStatus();
    plan_.script = (folder / study.python()).lexically_normal().string();
    if (study.has_simulate() || study.twin()) {
      return Refused(
          "python", "a script runs live, and cannot be simulated; leave `simulate` and `twin` out");
    }
    if (study.has_network()) {
      return Refused("python", "a script chooses by itself where it listens; leave `network` out");
    }
    if (study.has_tune() && study.tune().choose_by() == Tune::VALIDATION) {
      return Refused(
          "tune.choose_by",
          "VALIDATION, but a script says itself which rows it evaluates on, and may take test "
          "rows; hint: choose_by: TRAINING_LOSS");
    }
    return absl::OkStatus();
  }

  absl::Status CheckSeeds() {
    std::set<uint64_t> seen;
    for (int i = 0; i < plan_.study.seed_size(); ++i) {
      const uint64_t seed = plan_.study.seed(i);
      if (!seen.insert(seed).second) {
        return Refused(absl::StrCat("seed[", i, "]"), seed,
                       " is there twice; effects are paired "
                       "by seed, so each counts once");
      }
    }
    for (int i = 0; i < plan_.study.tune().seed_size(); ++i) {
      if (seen.insert(plan_.study.tune().seed(i)).second) continue;
      return Refused(absl::StrCat("tune.seed[", i, "]"), plan_.study.tune().seed(i),
                     " is there twice, or reported too; hint: values are chosen on seeds of their "
                     "own, or the choice flatters the result");
    }
    return absl::OkStatus();
  }

  absl::Status CheckBudget() {
    const Budget& budget = plan_.study.budget();
    if (!(budget.seconds() >= 0) || !std::isfinite(budget.seconds())) {
      return Refused("budget.seconds", budget.seconds(), ", must be a finite number, not negative");
    }
    if (budget.runs() < 0) return Refused("budget.runs", budget.runs(), ", must not be negative");
    return absl::OkStatus();
  }

  absl::Status CheckSimulate() {
    const Simulate& simulate = plan_.study.simulate();
    TANDEM_RETURN_IF_ERROR(CheckNumbers({{"simulate.step_seconds", simulate.step_seconds()},
                                         {"simulate.latency_seconds", simulate.latency_seconds()},
                                         {"simulate.bytes_per_second", simulate.bytes_per_second()},
                                         {"simulate.seconds", simulate.seconds()},
                                         {"simulate.steps", static_cast<double>(simulate.steps())},
                                         {"simulate.step_bytes", simulate.step_bytes()},
                                         {"simulate.dense_bytes", simulate.dense_bytes()}}));
    if (plan_.metric.name == kSecondsToTarget && !(simulate.problem().until() > 0)) {
      return Refused("target.metric", kSecondsToTarget,
                     " exists only for problems that end at a loss; hint: simulate { problem { ",
                     "kind: TRIDIAGONAL until: 0.02 } }");
    }
    if (!simulate.has_problem()) {
      if (plan_.metric.name != kExcessLoss) return absl::OkStatus();
      return Refused("target.metric", plan_.metric.name,
                     " exists only for problems, whose least loss is ",
                     "known; hint: simulate { problem { kind: QUADRATIC } }");
    }
    if (simulate.problem().kind() != Problem::KIND_UNSPECIFIED) return absl::OkStatus();
    return Refused("simulate.problem",
                   "kind is not set, expected QUADRATIC, TRIDIAGONAL or CLICKS");
  }

  absl::Status CheckNumbers(const std::vector<std::pair<const char*, double>>& numbers) {
    for (const auto& [path, number] : numbers) {
      if (number >= 0 && std::isfinite(number)) continue;
      return Refused(path, number, ", must be a finite number, not negative");
    }
    return absl::OkStatus();
  }

  absl::Status CheckNetwork() {
    const Study& study = plan_.study;
    for (int i = 0; i < study.variation_size() && !study.has_network(); ++i) {
      if (!study.variation(i).colocate_servers()) continue;
      return Refused(absl::StrCat("variation[", i, "].colocate_servers"),
                     "true, but all is on one host; hint: network { bytes_per_second: 1.25e8 }");
    }
    if (!study.has_network()) return absl::OkStatus();
    const Network& network = study.network();
    TANDEM_RETURN_IF_ERROR(CheckNumbers({{"network.bytes_per_second", network.bytes_per_second()},
                                         {"network.latency_seconds", network.latency_seconds()},
                                         {"network.full_size", network.full_size()}}));
    if (network.bytes_per_second() == 0) {
      return Refused("network", "bytes_per_second is not set, expected a number more than 0");
    }
    if (study.has_simulate() || study.twin()) {
      return Refused("network",
                     "its hosts are for live runs without a twin; leave `simulate` and "
                     "`twin` out");
    }
    return absl::OkStatus();
  }

  // Each run has one of the study's seeds.
  absl::Status CheckField(const std::string& where, absl::string_view field) {
    if (field != "seed") return absl::OkStatus();
    return Refused(where, "seed is not for a variation, because each runs with each seed of the ",
                   "study; hint: seed: [1, 2, 3]");
  }

  absl::Status CheckTune() {
    const Tune& tune = plan_.study.tune();
    if (plan_.study.simulate().timing_only()) {
      return Refused("tune",
                     "with simulate.timing_only nothing is trained by which to choose a value; "
                     "hint: vary");
    }
    if (tune.path().empty()) {
      return Refused("tune",
                     "path is not set, expected a field of the job, such as "
                     "\"dense.optimizer.learning_rate\"");
    }
    TANDEM_RETURN_IF_ERROR(CheckField("tune.path", tune.path()));
    if (tune.value_size() < 2) {
      return Refused("tune.value", tune.value_size(), " given, a choice needs at least 2");
    }
    std::set<std::string> seen;
    for (int i = 0; i < tune.value_size(); ++i) {
      if (seen.insert(tune.value(i)).second) continue;
      return Refused(absl::StrCat("tune.value[", i, "]"), tune.value(i), " is there twice");
    }
    if (plan_.metric.of_evaluation && tune.choose_by() == Tune::METRIC) {
      return Refused("tune.choose_by",
                     "METRIC, but test rows are for the result alone; hint: ", "VALIDATION");
    }
    if (!plan_.metric.of_evaluation && tune.choose_by() == Tune::VALIDATION) {
      return Refused("tune.choose_by", plan_.metric.name,
                     " is not measured on validation rows; hint: choose_by: TRAINING_LOSS or "
                     "METRIC, or a target.metric of quality");
    }
    return absl::OkStatus();
  }

  // Expands the variations: every combination of a variation and one value of each `vary`.
  absl::Status Expand() {
    const Study& study = plan_.study;
    TANDEM_ASSIGN_OR_RETURN(const job::Overrides common, OverridesOf("set", study.set()));
    for (int i = 0; i < study.variation_size(); ++i) {
      const std::string path = absl::StrCat("variation[", i, "]");
      VariationPlan variation = {study.variation(i).name(), common, Place(path),
                                 study.variation(i).colocate_servers(), study.variation(i).among()};
      TANDEM_ASSIGN_OR_RETURN(const job::Overrides own,
                              OverridesOf(path + ".set", study.variation(i).set()));
      variation.set.insert(variation.set.end(), own.begin(), own.end());
      if (variation.name.empty()) return Refused(path, "it has no name");
      plan_.variations.push_back(std::move(variation));
    }
    const bool named = study.variation_size() > 0;
    if (!named)
      plan_.variations.push_back(
          {study.vary_size() > 0 ? "" : kAlone, common, file_name_, false, ""});
    for (int i = 0; i < study.vary_size(); ++i) {
      TANDEM_RETURN_IF_ERROR(Multiply(i, named || study.vary_size() > 1));
    }
    return absl::OkStatus();
  }

  // Multiplies the variations by the values of one `vary`. `with_field`: names begin with the
  // field, because a value alone would be ambiguous.
  absl::Status Multiply(int index, bool with_field) {
    const Vary& vary = plan_.study.vary(index);
    const std::string path = absl::StrCat("vary[", index, "]");
    if (vary.path().empty()) return Refused(path, "path is not set, expected a field of the job");
    TANDEM_RETURN_IF_ERROR(CheckField(path, vary.path()));
    if (vary.value().empty()) return Refused(path, "it has no value");
    std::vector<VariationPlan> product;
    for (const VariationPlan& base : plan_.variations) {
      for (int i = 0; i < vary.value_size(); ++i) {
        VariationPlan variation = base;
        const std::string value = ValueName(vary.value(i));
        const std::string name =
            with_field ? absl::StrCat(LastStep(vary.path()), "=", value) : value;
        variation.name = base.name.empty() ? name : absl::StrCat(base.name, " ", name);
        variation.place = Place(absl::StrCat(path, ".value[", i, "]"));
        variation.set.emplace_back(vary.path(), vary.value(i));
        product.push_back(std::move(variation));
        if (product.size() > kMaxRuns) {
          return Refused(path, "more than ", kMaxRuns, " variations");
        }
      }
    }
    plan_.variations = std::move(product);
    return absl::OkStatus();
  }

  absl::StatusOr<job::Overrides> OverridesOf(
      const std::string& path, const google::protobuf::RepeatedPtrField<std::string>& texts) {
    job::Overrides all;
    for (int i = 0; i < texts.size(); ++i) {
      const auto one = node::ParseOverrides({texts[i]});
      if (!one.ok()) {
        return Refused(absl::StrCat(path, "[", i, "]"), job::Quoted(texts[i]),
                       ", expected \"path=value\", as after --set");
      }
      for (const auto& [field, value] : *one) {
        TANDEM_RETURN_IF_ERROR(CheckField(absl::StrCat(path, "[", i, "]"), field));
      }
      all.insert(all.end(), one->begin(), one->end());
    }
    return all;
  }

  absl::Status CheckNames() {
    std::map<std::string, std::string> folders;  // folder -> name of its variation
    for (const VariationPlan& variation : plan_.variations) {
      const std::string folder = FolderName(variation.name);
      if (folder.empty() || folder.size() > kMaxNameBytes) {
        return absl::InvalidArgumentError(absl::StrCat(
            variation.place, ": variation ", job::Quoted(variation.name), " needs a name of 1 to ",
            kMaxNameBytes, " letters and digits; hint: variation { name: \"...\" set: \"...\" }"));
      }
      const auto [other, first] = folders.emplace(folder, variation.name);
      if (first) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(variation.place, ": variations ", job::Quoted(other->second), " and ",
                       job::Quoted(variation.name), " would have the same folder, ", folder,
                       "; give one of them another name"));
    }
    plan_.baseline = plan_.study.baseline();
    if (plan_.baseline.empty()) plan_.baseline = plan_.variations[0].name;
    for (const VariationPlan& variation : plan_.variations) {
      if (variation.name == plan_.baseline) return absl::OkStatus();
    }
    return Refused(
        "baseline", job::Quoted(plan_.baseline), " is no variation; there are ",
        absl::StrJoin(plan_.variations, ", ", [](std::string* out, const VariationPlan& variation) {
          absl::StrAppend(out, job::Quoted(variation.name));
        }));
  }

  absl::Status CheckCount() {
    const Study& study = plan_.study;
    const size_t tuned =
        plan_.tunes() ? study.tune().value_size() * study.tune().seed_size() + study.seed_size()
                      : 0;
    const size_t runs = plan_.variations.size() * (study.seed_size() + tuned);
    if (runs <= kMaxRuns) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(file_name_, ": ", runs, " runs, a study has at most ", kMaxRuns));
  }

  absl::string_view text_;
  const std::string file_name_;
  TextFormat::ParseInfoTree tree_;
  StudyRuns plan_;
};

// The start of a message about a variation, such as `variation "SSP": `. Empty if the study has
// only the job.
std::string Whose(const VariationPlan& variation) {
  return variation.name == kAlone ? ""
                                  : absl::StrCat("variation ", job::Quoted(variation.name), ": ");
}

absl::Status InVariation(const VariationPlan& variation, const absl::Status& why) {
  return absl::InvalidArgumentError(
      absl::StrCat(variation.place, ": ", Whose(variation), why.message()));
}

absl::StatusOr<job::ResolvedJob> PlanOfRun(const StudyRuns& plan, const VariationPlan& variation,
                                           const job::Overrides& set) {
  if (plan.study.simulate().timing_only()) {
    absl::StatusOr<job::ResolvedJob> timed =
        job::ParseJobForTiming(plan.base_job, plan.job_file, set);
    if (!timed.ok()) return InVariation(variation, timed.status());
    return timed;
  }
  const absl::StatusOr<Job> job = job::ParseJob(plan.base_job, plan.job_file, set);
  if (!job.ok()) return InVariation(variation, job.status());
  absl::StatusOr<job::ResolvedJob> resolved = job::Resolve(*job);
  if (!resolved.ok()) return InVariation(variation, resolved.status());
  return resolved;
}

// Changes a tuning run so that validation rows judge it. A job without test rows is evaluated on
// its validation rows, so the test rows are removed.
absl::Status AddValidation(const StudyRuns& plan, const VariationPlan& variation, const Data& data,
                           job::Overrides* set) {
  if (plan.study.tune().choose_by() != Tune::VALIDATION) return absl::OkStatus();
  if (!data::HasValidationRows(data)) {
    return InVariation(
        variation, absl::InvalidArgumentError(
                       "tune: the job has no validation rows to choose a value by, and test rows "
                       "are for the result "
                       "alone; hint: give it data.validation, or say choose_by: TRAINING_LOSS"));
  }
  if (!data::HasTestRows(data)) {
    return InVariation(
        variation, absl::InvalidArgumentError(
                       "tune: the job has no test rows, and the result would be measured on the "
                       "validation rows that the value was chosen by; hint: give it data.test"));
  }
  if (data.test_fraction() > 0) {
    return InVariation(variation,
                       absl::InvalidArgumentError("tune: the job takes its test rows off its "
                                                  "training rows (data.test_fraction), where they "
                                                  "would train while a value is chosen; hint: put "
                                                  "them into a file, and name it in data.test"));
  }
  if (!data.test().empty()) set->emplace_back("data.test", "[]");
  return absl::OkStatus();
}

// Checks that the job's evaluations have the metric.
absl::Status CheckMetric(const Metric& metric, const VariationPlan& variation, const Job& job) {
  const bool ranks = absl::StartsWith(metric.name, "hr_") || absl::StartsWith(metric.name, "ndcg_");
  if (!ranks) return absl::OkStatus();
  if (!job::RanksItems(job)) {
    return InVariation(variation, absl::InvalidArgumentError(absl::StrCat(
                                      "target.metric ", metric.name,
                                      ": the job's rows are not ranked, only those of data.format "
                                      "NCF are; hint: auc, logloss or accuracy")));
  }
  const int top_k = job.evaluation().top_k();
  if (absl::EndsWith(metric.name, absl::StrCat("_at_", top_k))) return absl::OkStatus();
  return InVariation(
      variation, absl::InvalidArgumentError(absl::StrCat("target.metric ", metric.name,
                                                         ": the job's evaluation.top_k is ", top_k,
                                                         "; hint: make the two the same")));
}

// Checks that the runs measure what the metric needs.
absl::Status CheckMeasured(const StudyRuns& plan, const VariationPlan& variation,
                           const Data& data) {
  const bool loss = plan.metric.column == kLoss || plan.metric.name == kExcessLoss;
  const bool steady = plan.metric.name == kSteadySpeed;
  if (plan.study.simulate().timing_only() && (loss || steady || plan.metric.of_evaluation)) {
    return InVariation(variation,
                       absl::InvalidArgumentError(absl::StrCat(
                           "target.metric ", plan.metric.name, ": with simulate.timing_only ",
                           steady ? "a run reports nothing before its end" : "nothing is trained",
                           "; hint: samples_per_second, seconds or version_staleness for the "
                           "metric")));
  }
  const bool rows = data::HasTestRows(data) || data::HasValidationRows(data) ||
                    data.format() == Data::PROGRAM;  // the script has rows of its own
  if (!plan.metric.of_evaluation || (rows && !plan.without_data())) return absl::OkStatus();
  return InVariation(
      variation,
      absl::InvalidArgumentError(absl::StrCat(
          "target.metric ", plan.metric.name,
          plan.without_data()
              ? ": a problem has no rows to evaluate on; hint: take loss or excess_loss"
              : ": the job has no rows to evaluate on; hint: name them in data.test, or take loss",
          ", samples_per_second or seconds for the metric")));
}

// The values of one part: all values that are tried, the chosen one, or none.
std::vector<std::string> ValuesOf(const StudyRuns& plan, Part part, const std::string& variation,
                                  const std::map<std::string, std::string>& chosen) {
  if (part == Part::kUntuned) return {""};
  if (part == Part::kTuning) {
    return {plan.study.tune().value().begin(), plan.study.tune().value().end()};
  }
  const auto value = chosen.find(variation);
  if (value == chosen.end()) return {};  // no tried value has all its runs
  return {value->second};
}

// Checks that each server has a worker to share a host with, that no process chooses its address
// itself, and that the estimate can know the size of the model.
absl::Status CheckNetwork(const VariationPlan& variation, const job::ResolvedJob& job) {
  if (job.job.model().has_program()) {
    return InVariation(variation, absl::InvalidArgumentError(
                                      "network: not with a script for a model, which chooses by "
                                      "itself where it listens"));
  }
  if (job.job.model().has_script() && job.dense_table < 0 && job.workers() == 1) {
    return InVariation(
        variation,
        absl::InvalidArgumentError(
            "model.script: `network` estimates each run, and one worker sums no gradient "
            "that tells the dense parameters of the module; hint: cluster.workers=2, "
            "dense.synchroniser=SERVERS, or leave `network` out"));
  }
  if (const absl::Status apart = node::CheckHostsApart(job.job); !apart.ok()) {
    return InVariation(variation, apart);
  }
  if (!variation.colocate_servers || job.server_processes() <= job.workers()) {
    return absl::OkStatus();
  }
  return InVariation(
      variation, absl::InvalidArgumentError(
                     absl::StrCat("colocate_servers: ", job.server_processes(), " servers beside ",
                                  job.workers(), " workers, expected at most as many")));
}

absl::StatusOr<RunPlan> OneRun(const StudyRuns& plan, const VariationPlan& variation, Part part,
                               const std::string& value, uint64_t seed) {
  RunPlan run;
  run.variation = variation.name;
  run.part = part;
  run.value = value;
  run.seed = seed;
  run.name = FolderName(variation.name);
  run.set = variation.set;
  if (part != Part::kUntuned) {
    absl::StrAppend(&run.name, "-", PartName(part), "-", FolderOfValue(value));
    run.set.emplace_back(plan.study.tune().path(), value);
  }
  absl::StrAppend(&run.name, "-seed", seed);
  run.set.emplace_back("seed", absl::StrCat(seed));
  if (plan.study.record_staleness()) run.set.emplace_back("staleness.record_updates", "true");
  TANDEM_ASSIGN_OR_RETURN(job::ResolvedJob job, PlanOfRun(plan, variation, run.set));
  // AddValidation looks at the resolved job and changes its settings, so the job is resolved again.
  if (part == Part::kTuning) {
    TANDEM_RETURN_IF_ERROR(AddValidation(plan, variation, job.job.data(), &run.set));
    TANDEM_ASSIGN_OR_RETURN(job, PlanOfRun(plan, variation, run.set));
  }
  TANDEM_RETURN_IF_ERROR(CheckMetric(plan.metric, variation, job.job));
  TANDEM_RETURN_IF_ERROR(CheckMeasured(plan, variation, job.job.data()));
  run.job_hash = job.hash;
  // The hash must tell simulated runs from live runs of the same job, and from runs under other
  // assumptions.
  if (plan.study.has_simulate()) {
    run.job_hash = HashCombine(run.job_hash, HashName(plan.study.simulate().ShortDebugString()));
  }
  if (!plan.script.empty()) run.job_hash = HashCombine(run.job_hash, plan.script_hash);
  run.colocate_servers = variation.colocate_servers;
  if (plan.study.has_network()) {
    TANDEM_RETURN_IF_ERROR(CheckNetwork(variation, job));
    run.job_hash = HashCombine(
        run.job_hash,
        HashName(absl::StrCat(plan.study.network().bytes_per_second(), " ", run.colocate_servers)));
  }
  run.job_text = job::ResolvedText(job);
  return run;
}

// The job without the fields that cannot make it unfit to start. Jobs with the same key need one
// check.
std::string KeyOfCheck(const Job& job) {
  Job key = job;
  key.clear_seed();
  key.clear_policy();
  key.mutable_dense()->clear_optimizer();
  key.mutable_dense()->clear_policy();
  for (Table& table : *key.mutable_table()) {
    table.clear_policy();
    table.clear_optimizer();
  }
  return key.SerializeAsString();
}

}  // namespace

absl::StatusOr<Metric> MetricOf(absl::string_view name) {
  static const auto* const fixed = new std::vector<Metric>{
      {"auc", "eval.auc", "AUC", true, true, false},
      {"logloss", "eval.logloss", "logloss", false, true, false},
      {"normalised_entropy", "eval.normalised_entropy", "normalised entropy", false, true, false},
      {"accuracy", "eval.accuracy", "accuracy", true, true, false},
      {kLoss, kLoss, "training loss", false, false, false},
      {kExcessLoss, "problem.excess_loss", "loss above the least", false, false, false},
      {"version_staleness", "staleness.version_mean", "mean version staleness", false, false,
       false},
      {"samples_per_second", "samples_per_second", "samples/s", true, false, true},
      {kSteadySpeed, "steady.speed", "samples/s after the start", true, false, true},
      {"counted_samples_per_second", "counted.speed", "samples/s that count", true, false, true},
      {"seconds", "seconds", "seconds", false, false, true},
      {kSecondsToTarget, "to_target.seconds", "seconds to the target", false, false, true},
  };
  for (const Metric& metric : *fixed) {
    if (metric.name == name) return metric;
  }
  for (const auto& [prefix, label] : {std::pair("hr_at_", "HR@"), std::pair("ndcg_at_", "NDCG@")}) {
    absl::string_view k = name;
    int number = 0;
    if (!absl::ConsumePrefix(&k, prefix) || !absl::SimpleAtoi(k, &number) || number < 1) continue;
    return Metric{
        std::string(name), absl::StrCat("eval.", name), absl::StrCat(label, k), true, true, false};
  }
  return absl::InvalidArgumentError(absl::StrCat(
      job::Quoted(name), ", expected one of auc, logloss, normalised_entropy, accuracy, hr_at_K, ",
      "ndcg_at_K, loss, excess_loss, version_staleness, samples_per_second, "
      "steady_samples_per_second, ",
      "counted_samples_per_second, seconds, seconds_to_target"));
}

std::string StudyRuns::BaselineAmong(absl::string_view among) const {
  std::string first;
  for (const VariationPlan& variation : variations) {
    if (variation.among != among) continue;
    if (first.empty() || variation.name == baseline) first = variation.name;
  }
  return first;
}

std::string StudyRuns::BaselineOf(absl::string_view variation) const {
  for (const VariationPlan& one : variations) {
    if (one.name == variation) return BaselineAmong(one.among);
  }
  return baseline;
}

std::vector<std::string> StudyRuns::Amongs() const {
  std::vector<std::string> out;
  for (const VariationPlan& variation : variations) {
    if (std::find(out.begin(), out.end(), variation.among) == out.end()) {
      out.push_back(variation.among);
    }
  }
  return out;
}

std::string PartName(Part part) {
  switch (part) {
    case Part::kTuning:
      return "tuning";
    case Part::kUntuned:
      return "untuned";
    case Part::kTuned:
      return "tuned";
  }
  return "";
}

absl::StatusOr<Part> PartOf(absl::string_view name) {
  for (const Part part : {Part::kTuning, Part::kUntuned, Part::kTuned}) {
    if (PartName(part) == name) return part;
  }
  return absl::InvalidArgumentError(absl::StrCat(job::Quoted(name), " is no part of a study"));
}

absl::StatusOr<StudyRuns> ParseStudy(absl::string_view text, const std::string& file_name) {
  return Reader(text, file_name).Read();
}

absl::StatusOr<StudyRuns> ParseStudyWithJob(absl::string_view text, const std::string& file_name) {
  TANDEM_ASSIGN_OR_RETURN(StudyRuns plan, ParseStudy(text, file_name));
  absl::StatusOr<std::string> job = job::ReadJobText(plan.job_file);
  if (!job.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(file_name, ": job: ", job.status().message()));
  }
  plan.base_job = *std::move(job);
  if (plan.script.empty()) return plan;
  const absl::StatusOr<std::string> script = ReadWholeFile(plan.script);
  if (!script.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_name, ": python: ", script.status().message()));
  }
  plan.script_hash = XXH3_64bits(script->data(), script->size());
  return plan;
}

absl::StatusOr<StudyRuns> ReadStudyFile(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  return ParseStudyWithJob(text, path);
}

absl::StatusOr<std::vector<RunPlan>> RunsOf(const StudyRuns& plan, Part part,
                                            const std::map<std::string, std::string>& chosen) {
  std::vector<RunPlan> runs;
  const auto& seeds = part == Part::kTuning ? plan.study.tune().seed() : plan.study.seed();
  for (const uint64_t seed : seeds) {
    for (const VariationPlan& variation : plan.variations) {
      for (const std::string& value : ValuesOf(plan, part, variation.name, chosen)) {
        TANDEM_ASSIGN_OR_RETURN(RunPlan run, OneRun(plan, variation, part, value, seed));
        runs.push_back(std::move(run));
      }
    }
  }
  return runs;
}

absl::Status CheckAllRuns(const StudyRuns& plan, const JobCheck& check) {
  std::vector<Part> parts = {Part::kUntuned};
  if (plan.tunes()) parts.push_back(Part::kTuning);
  std::set<std::string> checked;
  for (const Part part : parts) {
    TANDEM_RETURN_IF_ERROR(RunsOf(plan, part, {}).status());
  }
  for (const VariationPlan& variation : plan.variations) {
    for (const Part part : parts) {
      for (const std::string& value : ValuesOf(plan, part, variation.name, {})) {
        // Check the job of the run as well: a tuning run is evaluated on other rows than the tuned
        // run whose value it chooses.
        const Part last = part == Part::kTuning ? Part::kTuned : part;
        const uint64_t seed = plan.study.seed(0);
        TANDEM_ASSIGN_OR_RETURN(const RunPlan run, OneRun(plan, variation, last, value, seed));
        TANDEM_ASSIGN_OR_RETURN(const job::ResolvedJob job, PlanOfRun(plan, variation, run.set));
        // Jobs without data are cheap to check, and the check depends on the policy, which the key
        // leaves out. Check each of them.
        if (!plan.without_data() && !checked.insert(KeyOfCheck(job.job)).second) continue;
        if (const absl::Status fit = check(job); !fit.ok()) return InVariation(variation, fit);
      }
    }
  }
  return absl::OkStatus();
}

std::string StudyText(const Study& study) {
  std::string text;
  TANDEM_CHECK(TextFormat::PrintToString(study, &text));
  return text;
}

}  // namespace tandem::study
