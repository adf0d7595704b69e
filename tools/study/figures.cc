#include "tools/study/figures.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/process.h"

namespace tandem::study {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kLimit = absl::Minutes(5);
constexpr int kNoMatplotlib = 3;  // exit status of the script
constexpr int kNotRun = 127;

// Runs `python script folder`. Returns its exit status, kNotRun if it could not be started, or -1
// if it took too long.
int RunScript(const char* python, const std::string& script, const std::string& folder,
              const std::string& log) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  const char* const argv[] = {python, script.c_str(), folder.c_str(), nullptr};
  pid_t pid = 0;
  const int failed =
      posix_spawnp(&pid, python, &actions, nullptr, const_cast<char**>(argv), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) return kNotRun;
  const absl::Time deadline = MonotonicNow() + kLimit;
  for (int status = 0;;) {
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid) return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    if (ended < 0 && errno != EINTR) return -1;  // not our child: its exit status is unknown
    if (MonotonicNow() >= deadline) kill(pid, SIGKILL);
    absl::SleepFor(absl::Milliseconds(20));
  }
}

std::string LastLine(const std::string& path) {
  const auto text = ReadWholeFile(path);
  if (!text.ok()) return "";
  const std::vector<std::string> lines = absl::StrSplit(absl::StripAsciiWhitespace(*text), '\n');
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
  int code = kNotRun;
  for (const char* python : {"python3", "/usr/bin/python3"}) {
    code = RunScript(python, script, folder, log);
    if (code != kNotRun && code != kNoMatplotlib) break;
  }
  if (code == 0) return ReadFigures(folder);
  none.missing =
      code == kNotRun || code == kNoMatplotlib
          ? "no figures: matplotlib is not installed; hint: apt-get install "
            "python3-matplotlib (or pip install matplotlib), then tandem compare --report-only "
            "FOLDER"
          : absl::StrCat("no figures: ", script, " failed: ", LastLine(log), "; see ", log);
  return none;
}

}  // namespace tandem::study
