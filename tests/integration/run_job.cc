#include "tests/integration/run_job.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "base/clock.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kPoll = absl::Milliseconds(20);
// What `tandem run` may take to end its processes after SIGTERM, with room for a busy machine.
constexpr absl::Duration kEndGrace = absl::Seconds(15);

std::vector<std::string> RunCommandLine(const RunArguments& arguments) {
  std::vector<std::string> argv = {ProgramPath("tandem"), "run", arguments.job, "--out",
                                   arguments.out};
  // A test that disturbs a run looks at the first failure, unless it says otherwise.
  argv.insert(argv.end(), {"--set", "cluster.max_restarts=0"});
  for (const std::string& set : arguments.set) argv.insert(argv.end(), {"--set", set});
  if (!arguments.init_from.empty()) {
    argv.insert(argv.end(), {"--init-from", arguments.init_from});
  }
  if (!arguments.checkpoint) argv.push_back("--no-checkpoint");
  argv.insert(argv.end(), arguments.flags.begin(), arguments.flags.end());
  return argv;
}

std::string MadeFolder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  TANDEM_CHECK(!error);
  return path;
}

// The text of a file that may not be there.
std::string TextOf(const std::string& path) {
  // Read by hand: a file of /proc fails in the middle when its process ends, and streams throw
  // then.
  std::string text;
  std::FILE* const file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return text;
  char bytes[4096];
  for (size_t n; (n = std::fread(bytes, 1, sizeof bytes, file)) > 0;) text.append(bytes, n);
  std::fclose(file);
  return text;
}

// Calls `done` until it is true; false if `limit` passes.
template <typename Done>
bool WaitUntil(absl::Duration limit, Done done) {
  const absl::Time deadline = MonotonicNow() + limit;
  while (!done()) {
    if (MonotonicNow() >= deadline) return false;
    absl::SleepFor(kPoll);
  }
  return true;
}

// argv of a process, empty if it is gone or a zombie.
std::vector<std::string> CommandLineOf(pid_t pid) {
  std::vector<std::string> argv =
      absl::StrSplit(TextOf(absl::StrCat("/proc/", pid, "/cmdline")), '\0');
  while (!argv.empty() && argv.back().empty()) argv.pop_back();
  return argv;
}

bool Contains(const std::vector<std::string>& argv, const std::string& value) {
  return std::find(argv.begin(), argv.end(), value) != argv.end();
}

// "server-0" from the command line of a role.
std::string RoleName(const std::vector<std::string>& argv) {
  std::string name = fs::path(argv[0]).filename().string();
  if (!absl::StartsWith(name, "tandem-")) return "";
  name = name.substr(strlen("tandem-"));
  const auto index = std::find(argv.begin(), argv.end(), "--index");
  if (index != argv.end() && index + 1 != argv.end()) absl::StrAppend(&name, "-", *(index + 1));
  return name;
}

// "worker-1" if the process is a script in the place of a worker of this job, by its environment.
std::string ScriptName(pid_t pid, const std::string& job) {
  const std::vector<std::string> environment =
      absl::StrSplit(TextOf(absl::StrCat("/proc/", pid, "/environ")), '\0');
  if (!Contains(environment, "TANDEM_JOB=" + job)) return "";
  for (const std::string& variable : environment) {
    if (absl::StartsWith(variable, "TANDEM_INDEX=")) return "worker-" + variable.substr(13);
  }
  return "";
}

std::string LogsOf(const std::string& out) {
  std::string logs;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(out + "/logs", error)) {
    const std::string text = TextOf(entry.path().string());
    if (!text.empty()) absl::StrAppend(&logs, entry.path().filename().string(), ":\n", text, "\n");
  }
  return logs;
}

RunResult ResultOf(ChildProcess* process, absl::Duration limit) {
  RunResult result;
  result.timed_out = !process->WaitFor(limit);
  if (result.timed_out) {
    process->Signal(SIGTERM);
    if (!process->WaitFor(kEndGrace)) {
      process->Signal(SIGKILL);
      process->WaitFor(kEndGrace);
    }
  }
  result.exit_code = process->exit_code();
  result.signal = process->term_signal();
  result.output = process->Output();
  return result;
}

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (fs::temp_directory_path() / "tandem-test-XXXXXX").string();
  TANDEM_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  if (getenv("TANDEM_KEEP_TEST_FILES") != nullptr) return;
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string TemporaryFolder::File(absl::string_view name) const {
  return absl::StrCat(path_, "/", name);
}

void WriteTextFile(const std::string& path, absl::string_view text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(text.data(), static_cast<std::streamsize>(text.size()));
  file.close();
  TANDEM_CHECK(static_cast<bool>(file));
}

std::string ReadTextFile(const std::string& path) {
  TANDEM_CHECK(fs::exists(path));
  return TextOf(path);
}

std::string ProgramPath(absl::string_view name) {
  if (const char* folder = getenv("TANDEM_BIN_DIR"); folder != nullptr) {
    return absl::StrCat(folder, "/", name);
  }
  const fs::path self = fs::read_symlink("/proc/self/exe").parent_path();
  return absl::StrCat((self.parent_path() / "bin").string(), "/", name);
}

std::string RunResult::Measured() const {
  nlohmann::json measured = summary.value("eval", nlohmann::json::object());
  for (const char* when : {"data", "epoch", "step"}) measured.erase(when);
  return measured.dump();
}

std::string RunResult::DebugString() const {
  return absl::StrCat(timed_out ? "ended for lasting too long" : "", " exit code ", exit_code,
                      " signal ", signal, "\n", output, "\n", logs);
}

ChildProcess::ChildProcess(const std::vector<std::string>& argv, const std::string& output_path,
                           const std::map<std::string, std::string>& environment)
    : output_path_(output_path) {
  std::vector<char*> args;
  for (const std::string& arg : argv) args.push_back(const_cast<char*>(arg.c_str()));
  args.push_back(nullptr);
  const int fd = open(output_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  TANDEM_CHECK(fd >= 0);
  const pid_t parent = getpid();
  pid_ = fork();
  TANDEM_CHECK(pid_ >= 0);
  if (pid_ == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // CTest may kill this test
    if (getppid() != parent) _exit(1);
    for (const auto& [key, value] : environment) setenv(key.c_str(), value.c_str(), 1);
    dup2(fd, STDOUT_FILENO);
    dup2(fd, STDERR_FILENO);
    execv(args[0], args.data());
    dprintf(STDERR_FILENO, "cannot run %s: %s\n", args[0], strerror(errno));
    _exit(127);
  }
  close(fd);
}

ChildProcess::~ChildProcess() {
  if (ended_) return;
  Signal(SIGTERM);
  if (!WaitFor(kEndGrace)) {
    Signal(SIGKILL);
    WaitFor(kEndGrace);
  }
}

void ChildProcess::Signal(int signal) {
  if (!ended_) kill(pid_, signal);
}

bool ChildProcess::WaitFor(absl::Duration limit) {
  return WaitUntil(limit, [this] {
    if (!ended_ && waitpid(pid_, &status_, WNOHANG) == pid_) ended_ = true;
    return ended_;
  });
}

int ChildProcess::exit_code() const {
  return ended_ && WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
}

int ChildProcess::term_signal() const {
  return ended_ && WIFSIGNALED(status_) ? WTERMSIG(status_) : 0;
}

std::string ChildProcess::Output() const { return TextOf(output_path_); }

bool ChildProcess::WaitForOutput(absl::string_view text, absl::Duration limit) {
  WaitUntil(limit,
            [&] { return absl::StrContains(Output(), text) || WaitFor(absl::ZeroDuration()); });
  return absl::StrContains(Output(), text);
}

RunningJob::RunningJob(const RunArguments& arguments)
    : arguments_(arguments),
      driver_(RunCommandLine(arguments), MadeFolder(arguments.out) + "/output.txt",
              arguments.environment) {}

std::map<std::string, pid_t> RunningJob::Roles() const {
  std::map<std::string, pid_t> roles;
  const std::string job = arguments_.out + "/job.textproto";  // each role is given this file
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    int pid = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &pid)) continue;
    if (const std::string script = ScriptName(pid, job); !script.empty()) roles[script] = pid;
    const std::vector<std::string> argv = CommandLineOf(pid);
    if (!Contains(argv, job)) continue;
    if (const std::string name = RoleName(argv); !name.empty()) roles[name] = pid;
  }
  return roles;
}

pid_t RunningJob::WaitForRole(const std::string& name, absl::Duration limit) {
  pid_t pid = 0;
  WaitUntil(limit, [&] {
    const std::map<std::string, pid_t> roles = Roles();
    if (const auto it = roles.find(name); it != roles.end()) pid = it->second;
    return pid != 0 || driver_.WaitFor(absl::ZeroDuration());
  });
  return pid;
}

int64_t RunningJob::Step() const {
  int64_t step = -1;
  std::istringstream lines(TextOf(arguments_.out + "/metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, false);
    if (json.is_object()) step = std::max(step, json.value("max_step", int64_t{-1}));
  }
  return step;
}

bool RunningJob::WaitForStep(int64_t step, absl::Duration limit) {
  bool reached = false;
  WaitUntil(limit, [&] {
    reached = Step() >= step;
    return reached || driver_.WaitFor(absl::ZeroDuration());
  });
  return reached;
}

bool RunningJob::WaitForNobody(absl::Duration limit) {
  return WaitUntil(limit, [&] { return driver_.WaitFor(absl::ZeroDuration()) && Roles().empty(); });
}

RunResult RunningJob::Finish(absl::Duration limit) {
  RunResult result = ResultOf(&driver_, limit);
  result.summary = nlohmann::json::parse(TextOf(arguments_.out + "/summary.json"), nullptr, false);
  if (!result.summary.is_object()) result.summary = nullptr;
  result.logs = LogsOf(arguments_.out);
  return result;
}

RunResult RunJob(const RunArguments& arguments, absl::Duration limit) {
  return RunningJob(arguments).Finish(limit);
}

RunResult RunProgram(const std::vector<std::string>& argv, absl::Duration limit) {
  TemporaryFolder folder;
  ChildProcess process(argv, folder.File("output.txt"), {});
  return ResultOf(&process, limit);
}

const std::string& PythonInterpreter() {
  static const std::string* const found = [] {
    if (const char* const chosen = std::getenv("TANDEM_TEST_PYTHON"); chosen != nullptr) {
      return new std::string(chosen);
    }
    for (const char* const path : {"/usr/bin/python3", "/usr/local/bin/python3"}) {
      const std::string probe = absl::StrCat(
          path,
          " -c 'import importlib.util as u, sys; sys.exit(not (u.find_spec(\"torch\") and "
          "u.find_spec(\"numpy\")))' >/dev/null 2>&1");
      if (std::system(probe.c_str()) == 0) return new std::string(path);
    }
    return new std::string();
  }();
  return *found;
}

RunResult RunPython(const std::vector<std::string>& arguments, const std::string& folder) {
  const std::string package =
      (fs::path(ProgramPath("tandem")).parent_path().parent_path() / "python").string();
  std::vector<std::string> argv = {"/usr/bin/env", "-C", folder.empty() ? "." : folder,
                                   "PYTHONPATH=" + package, PythonInterpreter()};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  return RunProgram(argv);
}

}  // namespace tandem
