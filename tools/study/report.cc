#include "tools/study/report.h"

#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "scheduler/observe/summary.h"
#include "tools/study/analysis.h"
#include "tools/study/figures.h"
#include "tools/study/manifest.h"
#include "tools/study/report_page.h"
#include "tools/study/runner.h"
#include "tools/study/runs_csv.h"

namespace tandem::study {

namespace fs = std::filesystem;

absl::StatusOr<ReportEnd> WriteReport(const std::string& folder, const std::string& script) {
  std::error_code error;
  if (fs::exists(folder, error) && !fs::is_directory(folder, error)) {
    return absl::NotFoundError(absl::StrCat(
        folder, ": is a file, expected the folder of a study: --out of tandem compare"));
  }
  const absl::StatusOr<Manifest> manifest = ReadManifest(folder);
  if (absl::IsNotFound(manifest.status())) {
    return absl::NotFoundError(absl::StrCat(
        folder, ": no study, there is no manifest.json; hint: tandem compare STUDY --out ",
        folder));
  }
  if (!manifest.ok()) return manifest.status();
  const std::vector<StudyRun> runs = ReadRuns(folder, *manifest);
  const Analysis analysis = Analyse(manifest->plan, manifest->chosen, runs, manifest->surroundings);
  // The figures are drawn from results.json, and the page contains the figures.
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(folder + "/runs.csv", RunsCsv(runs)));
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(
      folder + "/results.json", scheduler::PrettyPrint(ResultsJson(manifest->plan, analysis))));
  const Figures figures = DrawFigures(folder, script);
  TANDEM_RETURN_IF_ERROR(
      WriteFileAtomically(folder + "/report.html", ReportPage(*manifest, analysis, figures)));
  ReportEnd end;
  end.answer = analysis.answer;
  end.missing = figures.missing;
  std::set<std::string> seen;  // a tuned run may share its folder with an untuned one
  for (const StudyRun& run : runs) {
    if (!seen.insert(run.name).second) continue;
    end.complete += run.state == RunState::kComplete;
    end.diverged += run.state == RunState::kDiverged;
    end.failed += run.state == RunState::kFailed;
    end.absent += run.state == RunState::kAbsent;
  }
  std::set<std::string> collapsed;
  for (const Group& group : analysis.groups) {
    collapsed.insert(group.collapsed.begin(), group.collapsed.end());
  }
  end.collapsed = static_cast<int>(collapsed.size());
  return end;
}

}  // namespace tandem::study
