#include "tools/study/runner.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "tools/study/runs_csv.h"
#include "tools/study/statistics.h"

namespace tandem::study {
namespace {

namespace fs = std::filesystem;

bool IsOver(const StudyRun& run) { return run.state != RunState::kAbsent; }

class Runner {
 public:
  Runner(const RunnerOptions& options, Manifest* manifest, RunLauncher* launcher)
      : options_(options), manifest_(*manifest), launcher_(*launcher) {}

  // Untuned runs come first, since they are useful even if the study is stopped early. Tuning runs
  // come before tuned runs, whose jobs depend on the values chosen.
  absl::StatusOr<StudyEnd> Run() {
    total_ = CountAll();
    Reread();
    for (const Part part : {Part::kUntuned, Part::kTuning, Part::kTuned}) {
      if (part != Part::kUntuned && !manifest_.plan.tunes()) break;
      if (part == Part::kTuned) TANDEM_RETURN_IF_ERROR(AddTunedRuns());
      TANDEM_ASSIGN_OR_RETURN(const StudyEnd end, RunPart(part));
      if (end != StudyEnd::kDone) return end;
    }
    return StudyEnd::kDone;
  }

 private:
  // The number of all runs, with the runs of values that are not chosen yet.
  size_t CountAll() const {
    const Study& study = manifest_.plan.study;
    const size_t tuned =
        manifest_.plan.tunes()
            ? study.tune().value_size() * study.tune().seed_size() + study.seed_size()
            : 0;
    return manifest_.plan.variations.size() * (study.seed_size() + tuned);
  }

  void Reread() {
    for (const RunPlan& run : manifest_.runs) {
      if (options_.stop->load()) break;
      launcher_.Renew(run, RunFolder(options_.folder, run.name));
    }
    runs_ = ReadRuns(options_.folder, manifest_);
  }

  // Adds the tuned runs. A tuned run whose job equals an untuned one shares its folder, so that the
  // job is not run twice.
  absl::Status AddTunedRuns() {
    manifest_.chosen = ChooseValues(manifest_.plan, runs_);
    TANDEM_ASSIGN_OR_RETURN(std::vector<RunPlan> tuned,
                            RunsOf(manifest_.plan, Part::kTuned, manifest_.chosen));
    std::map<uint64_t, std::string> untuned;
    std::vector<RunPlan>& all = manifest_.runs;
    all.erase(std::remove_if(all.begin(), all.end(),
                             [](const RunPlan& run) { return run.part == Part::kTuned; }),
              all.end());
    for (const RunPlan& run : all) {
      if (run.part == Part::kUntuned) untuned[run.job_hash] = run.name;
    }
    for (RunPlan& run : tuned) {
      if (const auto same = untuned.find(run.job_hash); same != untuned.end()) {
        run.name = same->second;
      }
      all.push_back(std::move(run));
    }
    for (const auto& [variation, value] : manifest_.chosen) {
      options_.say(absl::StrCat("tuned: ", variation, " takes ", manifest_.plan.study.tune().path(),
                                "=", value));
    }
    TANDEM_RETURN_IF_ERROR(WriteManifest(options_.folder, manifest_));
    Reread();
    return absl::OkStatus();
  }

  absl::StatusOr<StudyEnd> RunPart(Part part) {
    for (size_t i = 0; i < manifest_.runs.size(); ++i) {
      if (manifest_.runs[i].part != part) continue;
      const bool again = runs_[i].state == RunState::kFailed && options_.retry_failed &&
                         retried_.insert(runs_[i].name).second;
      if (IsOver(runs_[i]) && !again) continue;
      if (options_.stop->load()) return StudyEnd::kStopped;
      if (BeyondBudget(manifest_.runs[i])) return StudyEnd::kBudget;
      TANDEM_ASSIGN_OR_RETURN(const bool stopped, RunOne(i));
      if (stopped) return StudyEnd::kStopped;
    }
    return StudyEnd::kDone;
  }

  absl::StatusOr<bool> RunOne(size_t i) {
    const RunPlan& run = manifest_.runs[i];
    const std::string folder = RunFolder(options_.folder, run.name);
    std::error_code error;
    fs::remove_all(folder, error);  // the remains of a run that was cut off
    if (error) {
      return absl::PermissionDeniedError(
          absl::StrCat(folder, ": cannot be removed: ", error.message()));
    }
    TANDEM_RETURN_IF_ERROR(MakeFolder(folder));
    TANDEM_RETURN_IF_ERROR(WriteRunBegin(folder, run, options_.build()));
    const std::string caption = absl::StrCat("[", CountOver() + 1, "/", total_, "] ", Title(run));
    const RunLauncher::End end = launcher_.Launch(run, folder, caption, SecondsLeft());
    if (end.stopped) return true;
    TANDEM_RETURN_IF_ERROR(WriteRunEnd(folder, end.seconds, end.ok, end.why));
    for (size_t same = 0; same < runs_.size(); ++same) {
      if (runs_[same].name != run.name) continue;
      runs_[same] = ReadRun(manifest_.runs[same], folder, BesideRunOf(manifest_.plan.study));
      AddDerivedNumbers(manifest_.plan, &runs_[same]);
    }
    options_.say(absl::StrCat(caption, ": ", Result(runs_[i]), TimeLeft()));
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(options_.folder + "/runs.csv", RunsCsv(runs_)));
    return false;
  }

  std::string Title(const RunPlan& run) const {
    const std::string value =
        run.part == Part::kUntuned
            ? ""
            : absl::StrCat(" ", PartName(run.part), " ", manifest_.plan.study.tune().path(), "=",
                           run.value);
    return absl::StrCat(run.variation, value, " seed ", run.seed);
  }

  std::string Result(const StudyRun& run) const {
    if (run.state == RunState::kFailed) return absl::StrCat("failed: ", run.why);
    std::string text;
    if (run.state == RunState::kDiverged) text = absl::StrCat("diverged: ", run.why, "; ");
    const Metric& metric = manifest_.plan.metric;
    if (const auto value = run.Number(metric.column); value.has_value() && !metric.as_ratio) {
      absl::StrAppendFormat(&text, "%s %.4f, ", metric.label, *value);
    }
    if (const auto speed = run.Number("samples_per_second"); speed.has_value()) {
      absl::StrAppendFormat(&text, "%.0f samples/s, ", *speed);
    }
    absl::StrAppendFormat(&text, "%.1f s", run.wall_seconds);
    if (run.restarts > 0) absl::StrAppend(&text, ", restarts: ", run.restarts);
    return text;
  }

  // How many runs of the study are done. A tuned run may share its folder with an untuned one; both
  // count.
  size_t CountOver() const { return std::count_if(runs_.begin(), runs_.end(), IsOver); }

  std::set<std::string> FoldersOver() const {
    std::set<std::string> folders;
    for (const StudyRun& run : runs_) {
      if (IsOver(run)) folders.insert(run.name);
    }
    return folders;
  }

  double Spent() const {
    // Seconds of a simulated run are virtual, so they do not count.
    const bool live = !manifest_.plan.study.has_simulate();
    std::map<std::string, double> by_folder;
    for (const StudyRun& run : runs_) {
      if (!IsOver(run)) continue;
      by_folder[run.name] = std::max(run.wall_seconds, live ? SecondsOf(run) : 0.0);
    }
    double sum = 0;
    for (const auto& [name, seconds] : by_folder) sum += seconds;
    return sum;
  }

  static double SecondsOf(const StudyRun& run) { return run.Number("seconds").value_or(0); }

  double MeanSeconds() const {
    const size_t over = FoldersOver().size();
    return over == 0 ? 0 : Spent() / static_cast<double>(over);
  }

  double SecondsLeft() const {
    return MeanSeconds() * static_cast<double>(total_ - std::min(total_, CountOver()));
  }

  std::string TimeLeft() const {
    const double left = SecondsLeft();
    return left <= 0 ? "" : absl::StrCat("; about ", ClockTime(left), " left");
  }

  bool BeyondBudget(const RunPlan& next) const {
    const Budget& budget = manifest_.plan.study.budget();
    const std::set<std::string> folders = FoldersOver();
    const size_t begun = folders.size() + (folders.count(next.name) > 0 ? 0 : 1);
    if (budget.runs() > 0 && begun > static_cast<size_t>(budget.runs())) return true;
    return budget.seconds() > 0 && Spent() + MeanSeconds() > budget.seconds();
  }

  const RunnerOptions& options_;
  Manifest& manifest_;
  RunLauncher& launcher_;
  std::vector<StudyRun> runs_;  // in the order of manifest_.runs
  std::set<std::string> retried_;
  size_t total_ = 0;
};

// The mean over tuning seeds of the number that judges a value, so that more is better. nullopt if
// a run does not count: a mean over fewer seeds would not be comparable.
absl::optional<double> Judge(const StudyRuns& plan, const std::string& variation,
                             const std::string& value, const std::vector<StudyRun>& runs) {
  const bool by_loss = plan.study.tune().choose_by() == Tune::TRAINING_LOSS;
  std::vector<double> values;
  for (const StudyRun& run : runs) {
    if (run.part != Part::kTuning || run.variation != variation || run.value != value) continue;
    const auto number = run.Number(by_loss ? "loss" : plan.metric.column);
    if (!run.counts() || !number.has_value()) return absl::nullopt;
    const bool higher = !by_loss && plan.metric.higher_is_better;
    values.push_back(higher ? *number : -*number);
  }
  if (values.size() != static_cast<size_t>(plan.study.tune().seed_size())) return absl::nullopt;
  return SpreadOf(values).mean;
}

}  // namespace

std::string RunFolder(const std::string& folder, const std::string& run) {
  return absl::StrCat(folder, "/runs/", run);
}

std::vector<StudyRun> ReadRuns(const std::string& folder, const Manifest& manifest) {
  std::vector<StudyRun> runs;
  for (const RunPlan& run : manifest.runs) {
    runs.push_back(ReadRun(run, RunFolder(folder, run.name), BesideRunOf(manifest.plan.study)));
    AddDerivedNumbers(manifest.plan, &runs.back());
  }
  return runs;
}

std::map<std::string, std::string> ChooseValues(const StudyRuns& plan,
                                                const std::vector<StudyRun>& runs) {
  std::map<std::string, std::string> chosen;
  for (const VariationPlan& variation : plan.variations) {
    absl::optional<double> best;
    for (const std::string& value : plan.study.tune().value()) {
      const auto judged = Judge(plan, variation.name, value, runs);
      if (!judged.has_value() || (best.has_value() && *judged <= *best)) continue;
      best = judged;
      chosen[variation.name] = value;
    }
  }
  return chosen;
}

absl::StatusOr<StudyEnd> RunStudy(const RunnerOptions& options, Manifest* manifest,
                                  RunLauncher* launcher) {
  return Runner(options, manifest, launcher).Run();
}

}  // namespace tandem::study
