// Runs that are killed and go on.
#ifndef TANDEM_TESTS_INTEGRATION_KILL_AND_RESUME_H_
#define TANDEM_TESTS_INTEGRATION_KILL_AND_RESUME_H_

#include <signal.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "cli/launch/resume_point.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"

namespace tandem {

// The step of the newest whole checkpoint of the run in folder `out`; -1: there is none.
inline int64_t CheckpointStep(const std::string& out) {
  const absl::StatusOr<cli::ResumePoint> point = cli::FindResumePoint(out, {});
  return point.ok() ? point->step : -1;
}

// False if the run ends or the limit passes without.
inline bool WaitForCheckpointAfter(RunningJob* job, const std::string& out, int64_t step) {
  const absl::Time deadline = MonotonicNow() + kRunLimit;
  while (CheckpointStep(out) <= step && MonotonicNow() < deadline) {
    if (job->driver().WaitFor(absl::Milliseconds(5))) break;
  }
  return CheckpointStep(out) > step;
}

// Overwrites bytes in the middle of the largest file with rows, which servers read, and returns it.
inline std::string DamageRanges(const std::string& checkpoint) {
  namespace fs = std::filesystem;
  fs::path largest;
  for (const auto& entry : fs::directory_iterator(checkpoint)) {
    const std::string extension = entry.path().extension().string();
    if (extension.empty() || extension == ".part") continue;
    if (largest.empty() || entry.file_size() > fs::file_size(largest)) largest = entry.path();
  }
  std::fstream bytes(largest, std::ios::binary | std::ios::in | std::ios::out);
  bytes.seekp(static_cast<std::streamoff>(fs::file_size(largest) / 2));
  bytes.write("damaged", 7);
  return largest.string();
}

// kill -9 of everything, in any order.
inline void KillAll(RunningJob* job) {
  const auto roles = job->Roles();
  job->driver().Signal(SIGKILL);
  for (const auto& [name, pid] : roles) kill(pid, SIGKILL);
  ASSERT_TRUE(job->WaitForNobody(absl::Seconds(20)));
}

inline RunArguments Resumed(RunArguments arguments) {
  arguments.flags.insert(arguments.flags.begin(), {"--resume", arguments.out});
  return arguments;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_INTEGRATION_KILL_AND_RESUME_H_
