// Runs build/bin/tandem as a child process, as a user would: bounded in time, output captured, and
// nothing left behind. Programs are found through $TANDEM_BIN_DIR (CTest sets it).
//
// Thread safety: one thread for each object.
#ifndef TANDEM_TESTS_INTEGRATION_RUN_JOB_H_
#define TANDEM_TESTS_INTEGRATION_RUN_JOB_H_

#include <sys/types.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tests/source_path.h"

namespace tandem {

// A folder of its own under the system's folder for temporary files, removed at the end. With
// TANDEM_KEEP_TEST_FILES set it stays, for looking at what failed.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const;

 private:
  std::string path_;
};

// Aborts the test program if the file cannot be written or read.
void WriteTextFile(const std::string& path, absl::string_view text);
std::string ReadTextFile(const std::string& path);

// $TANDEM_BIN_DIR/NAME, or bin/NAME beside the folder of this test program.
std::string ProgramPath(absl::string_view name);

// What is given to `tandem run`.
struct RunArguments {
  std::string job;               // file
  std::vector<std::string> set;  // path=value
  std::string out;
  std::string init_from;
  bool checkpoint = true;
  std::vector<std::string> flags = {};                  // any others
  std::map<std::string, std::string> environment = {};  // added to ours
};

struct RunResult {
  bool timed_out = false;  // had to be ended
  int exit_code = -1;      // if it exited by itself
  int signal = 0;          // that killed it
  std::string output;      // stdout and stderr together
  nlohmann::json summary;  // OUT/summary.json; null if there is none
  // For messages of failed expectations: how it ended and what it said, and the logs of its roles.
  std::string DebugString() const;
  std::string logs;
  // What the last evaluation measured, without when and on which rows it did.
  std::string Measured() const;
  bool ok() const { return !timed_out && signal == 0 && exit_code == 0; }
};

// A child process under watch. The destructor ends it and waits for it.
class ChildProcess {
 public:
  // argv[0] is a path. The output goes to the file `output_path`.
  ChildProcess(const std::vector<std::string>& argv, const std::string& output_path,
               const std::map<std::string, std::string>& environment);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal);
  // True once it has ended; false if it has not within `limit`.
  bool WaitFor(absl::Duration limit);
  bool ended() const { return ended_; }
  // Valid once it has ended.
  int exit_code() const;  // -1 if a signal killed it
  int term_signal() const;
  std::string Output() const;  // so far
  // True once the output so far contains `text`; false if it ended or `limit` passed without.
  bool WaitForOutput(absl::string_view text, absl::Duration limit);

 private:
  const std::string output_path_;
  pid_t pid_ = -1;
  bool ended_ = false;
  int status_ = 0;
};

// `tandem run` under watch, with its roles.
class RunningJob {
 public:
  explicit RunningJob(const RunArguments& arguments);

  ChildProcess& driver() { return driver_; }
  // The processes of this run other than the driver, by name as the driver's logs are called:
  // "scheduler", "server-0", "worker-1". Those that have ended are absent.
  std::map<std::string, pid_t> Roles() const;
  // Waits until the role is there; 0 if it is not within `limit` or the run has ended.
  pid_t WaitForRole(const std::string& name, absl::Duration limit);
  // The last step of a worker that metrics.jsonl shows; -1: none yet.
  int64_t Step() const;
  // Waits until metrics.jsonl shows that a worker has reached `step`; false as above.
  bool WaitForStep(int64_t step, absl::Duration limit);
  // True once no process of this run, the driver included, is left.
  bool WaitForNobody(absl::Duration limit);
  // Waits for the end; ends the run if it lasts longer than `limit`.
  RunResult Finish(absl::Duration limit);

 private:
  const RunArguments arguments_;
  ChildProcess driver_;
};

// All of the above for a run that needs no attention.
inline constexpr absl::Duration kRunLimit = absl::Seconds(300);
RunResult RunJob(const RunArguments& arguments, absl::Duration limit = kRunLimit);

// Runs a program to its end.
RunResult RunProgram(const std::vector<std::string>& argv, absl::Duration limit = kRunLimit);

// A python3 with PyTorch and numpy; empty: there is none.
const std::string& PythonInterpreter();

// Runs it outside of a job, with the build's package; `folder`: where (empty: where we are).
RunResult RunPython(const std::vector<std::string>& arguments, const std::string& folder = "");

}  // namespace tandem

#endif  // TANDEM_TESTS_INTEGRATION_RUN_JOB_H_
