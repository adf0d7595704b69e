// Judges the facts that `tandem doctor` has gathered: facts in, findings out. Each finding has a
// line that says what was found, and a line that says what to do about it.
//
// Thread safety: free functions without state.
// Not here: gathering facts (doctor_gather.h, doctor_peer.h), printing (doctor_report.h).
#ifndef TANDEM_TOOLS_DOCTOR_DOCTOR_H_
#define TANDEM_TOOLS_DOCTOR_DOCTOR_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "job/job.h"
#include "tools/doctor/doctor_facts.h"

namespace tandem::doctor {

enum class Severity { kOk, kWarning, kProblem };

struct Finding {
  Severity level = Severity::kOk;
  std::string check;   // "open files"
  std::string found;   // one line
  std::string advice;  // one line; empty if there is nothing to do
};

// The needs of `servers` servers and `workers` workers of the job on one host. Memory and disk
// space are for tables with the expected number of rows. `loads`: the job starts from a
// checkpoint, so frozen tables may have rows, too.
JobNeeds NeedsOf(const job::ResolvedJob& plan, int servers, int workers, bool loads = false);

// Judges the host alone, and also for the job if there is one (null: none).
std::vector<Finding> ExamineHost(const HostFacts& host, Cluster::Transport transport,
                                 const JobNeeds* needs);
// The findings of `tandem run` before it starts a process, from the limits of the host only.
// Problem: the job certainly fails. Warning: the job may fail. Empty if the job fits.
std::vector<Finding> ExamineStart(const HostFacts& host, Cluster::Transport transport,
                                  const JobNeeds& needs);
// A finding for the interpreter, each module that a script needs, and the library.
std::vector<Finding> ExaminePython(const PythonFact& python);
// For a job whose models compute on a GPU.
Finding ExamineDevice(const DeviceFact& device);
Finding ExamineData(const DataFact& data);
Finding ExamineFolder(const FolderFact& folder, uint64_t checkpoint_bytes);
Finding ExaminePort(const PortFact& port);

// Our side of a pair: values that must be equal on both sides, or fit together.
struct OurSide {
  std::string version, job_hash;
  int rdma_mtu_bytes = 0;
  bool rdma_active = false;
  Cluster::Transport transport = Cluster::AUTO;
};
OurSide OurSideOf(const HostFacts& host, Cluster::Transport transport, std::string job_hash);
std::vector<Finding> ExaminePair(const OurSide& ours, const PairFacts& pair);

// FAILED_PRECONDITION with the first problem, in a line; OK if there is none.
absl::Status FirstProblem(const std::vector<Finding>& findings);

const char* SeverityName(Severity level);  // "ok", "warning", "problem"

}  // namespace tandem::doctor

#endif  // TANDEM_TOOLS_DOCTOR_DOCTOR_H_
