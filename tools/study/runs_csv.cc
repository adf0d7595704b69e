#include "tools/study/runs_csv.h"

#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace tandem::study {
namespace {

std::string Cell(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  return absl::StrCat("\"", absl::StrReplaceAll(text, {{"\"", "\"\""}}), "\"");
}

// 15 digits: enough for most tools to read the same number again, without the noise of 17.
std::string Cell(double number) {
  return std::isfinite(number) ? absl::StrFormat("%.15g", number) : "";
}

}  // namespace

std::string RunsCsv(const std::vector<StudyRun>& runs) {
  std::set<std::string> columns;
  for (const StudyRun& run : runs) {
    for (const auto& [name, number] : run.numbers) columns.insert(name);
  }
  std::string csv = "run,variation,part,value,seed,state,why,wall_seconds,restarts,build";
  for (const std::string& name : columns) absl::StrAppend(&csv, ",", Cell(name));
  csv += "\n";
  for (const StudyRun& run : runs) {
    std::vector<std::string> cells = {Cell(run.name),
                                      Cell(run.variation),
                                      PartName(run.part),
                                      Cell(run.value),
                                      absl::StrCat(run.seed),
                                      StateName(run.state),
                                      Cell(run.why),
                                      run.wall_seconds > 0 ? Cell(run.wall_seconds) : "",
                                      absl::StrCat(run.restarts),
                                      Cell(run.build)};
    for (const std::string& name : columns) {
      const auto number = run.numbers.find(name);
      cells.push_back(number == run.numbers.end() ? "" : Cell(number->second));
    }
    absl::StrAppend(&csv, absl::StrJoin(cells, ","), "\n");
  }
  return csv;
}

}  // namespace tandem::study
