// What `tandem doctor` thinks of what it has found: facts in, findings out, nothing else. Each
// finding says in one line what is the case, and in one what to do about it.
//
// Thread safety: free functions without state.
// Not here: finding out (doctor_gather.h, doctor_peer.h), printing (doctor_report.h).
#ifndef TANDEM_DOCTOR_DOCTOR_H_
#define TANDEM_DOCTOR_DOCTOR_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "doctor/doctor_facts.h"
#include "job/job.h"

namespace tandem::doctor {

enum class Severity { kOk, kWarning, kProblem };

struct Finding {
  Severity level = Severity::kOk;
  std::string check;   // "open files"
  std::string found;   // one line
  std::string advice;  // one line; empty if nothing is to be done
};

// `servers` and `workers` are those of the job that run on the host. Memory and disk are those of
// tables that hold as many rows as the job expects.
JobNeeds NeedsOf(const job::JobPlan& plan, int servers, int workers);

// The host by itself, and against the job if there is one (null: none).
std::vector<Finding> ExamineHost(const HostFacts& host, Cluster::Transport transport,
                                 const JobNeeds* needs);
// What `tandem run` says before it starts anything, by the limits of the host alone. Problems: the job
// fails for sure. Warnings: it may. Nothing where all is well.
std::vector<Finding> ExamineStart(const HostFacts& host, Cluster::Transport transport,
                                  const JobNeeds& needs);
// A finding for the interpreter, each module that a script needs, and the library.
std::vector<Finding> ExaminePython(const PythonFact& python);
// For a job whose models compute on a GPU.
Finding ExamineDevice(const DeviceFact& device);
Finding ExamineData(const DataFact& data);
Finding ExamineFolder(const FolderFact& folder, uint64_t save_bytes);
Finding ExaminePort(const PortFact& port);

// Our side of a pair, for what must be equal or fit.
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

#endif  // TANDEM_DOCTOR_DOCTOR_H_
