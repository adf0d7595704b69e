#include "tools/study/figures.h"

#include <filesystem>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/process.h"
#include "base/run_program.h"

namespace tandem::study {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLimit = absl::Minutes(5);
constexpr int kNoMatplotlib = 3;  // exit status of the script

std::string LastLine(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(absl::StripAsciiWhitespace(text), '\n');
  return lines.back();
}

Figures ReadFigures(const std::string& folder) {
  Figures result;
  const auto listed = ReadWholeFile(folder + "/figures/figures.json");
  const auto list =
      listed.ok() ? nlohmann::json::parse(*listed, nullptr, false) : nlohmann::json::array();
  for (const auto& entry : list) {
    Figure figure = {entry.value("name", ""), entry.value("title", ""), entry.value("read", ""),
                     ""};
    const auto svg = ReadWholeFile(absl::StrCat(folder, "/figures/", figure.name, ".svg"));
    if (svg.ok()) figure.svg = *svg;
    result.figures.push_back(std::move(figure));
  }
  return result;
}

}  // namespace

std::string FigureScript() {
  return (fs::path(ProgramFolder()) / "../share/tandem/figures.py").lexically_normal().string();
}

Figures DrawFigures(const std::string& folder, const std::string& script) {
  const std::string log = folder + "/figures/log.txt";
  Figures none;
  if (const absl::Status made = MakeFolder(folder + "/figures"); !made.ok()) {
    none.missing = absl::StrCat("no figures: ", made.message());
    return none;
  }
  // Debian's matplotlib belongs to Debian's Python, and another `python3` may come first in PATH.
  // Try both.
  ProgramResult drawn;
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    ProgramCall call = {{python, script, folder}};
    call.with_errors = true;
    call.limit = kLimit;
    drawn = RunProgram(call);
    if (drawn.not_started == 0 && drawn.status != kNoMatplotlib) break;
  }
  if (drawn.ok()) return ReadFigures(folder);
  (void)WriteFileAtomically(log, drawn.output);
  none.missing =
      drawn.not_started != 0 || drawn.status == kNoMatplotlib
          ? "no figures: matplotlib is not installed; hint: apt-get install "
            "python3-matplotlib (or pip install matplotlib), then tandem compare --report-only "
            "FOLDER"
          : absl::StrCat("no figures: ", script, " failed: ", LastLine(drawn.output), "; see ",
                         log);
  return none;
}

}  // namespace tandem::study
