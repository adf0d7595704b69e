// FindLaunch reads from the environment which rank of a launch this process is. Launchers (mpirun,
// srun, torchrun, Kubernetes) set variables of their own for each process that they start. Agents
// and groups without a job (capi/tandem_group.h) use it.
//
// Families of variables, the first complete one wins:
//   Tandem      TANDEM_RANK, TANDEM_WORLD_SIZE; TANDEM_LOCAL_RANK, TANDEM_LOCAL_SIZE,
//               TANDEM_LAUNCH_ID
//   torch       RANK, WORLD_SIZE; LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT,
//               TORCHELASTIC_*
//   Open MPI    OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE; OMPI_COMM_WORLD_LOCAL_*,
//               PMIX_NAMESPACE
//   PMI         PMI_RANK or PMIX_RANK, PMI_SIZE (MPICH, Intel MPI); MPI_LOCALRANKID,
//               MPI_LOCALNRANKS
//   Slurm       SLURM_PROCID, SLURM_STEP_NUM_TASKS or SLURM_NTASKS; SLURM_LOCALID, SLURM_NODEID,
//               SLURM_STEP_TASKS_PER_NODE, SLURM_STEP_NODELIST, ...
//   Kubernetes  JOB_COMPLETION_INDEX, and TANDEM_WORLD_SIZE for the number of pods
#ifndef TANDEM_NODE_LAUNCH_ENVIRONMENT_H_
#define TANDEM_NODE_LAUNCH_ENVIRONMENT_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::node {

struct Launch {
  std::string family;  // "Open MPI"; empty: no launcher, this process is alone
  int rank = 0, size = 1;
  bool one_host = false;  // all ranks are known to be on this host
  // The ranks [first_here, first_here + size_here) are on this host. If the variables do not
  // say more, the range has only `rank`.
  int first_here = 0, size_here = 1;
  // The same for all ranks of this launch, and another one in every other launch. Empty: unknown.
  std::string id;
  std::string first_host;           // where rank 0 probably is; empty: unknown
  std::vector<std::string> others;  // families that differ: "Slurm says rank 0 of 1"

  // "rank 2 of 4, from Open MPI; Slurm says rank 0 of 1, ignored".
  std::string DebugString() const;
};

// Returns the value of a variable; null: it is not set. For example std::getenv.
using Environment = std::function<const char*(const char* name)>;

// `parent`: the process number of the launcher, which stands for the identity of a launch on one
// host if the variables name none. INVALID_ARGUMENT: a variable is no number, or the rank is not
// below the size.
absl::StatusOr<Launch> FindLaunch(const Environment& environment, int parent);

// The number of tasks on a node by Slurm's list: 2 for node 3 of "4(x3),2". 0: the list is
// malformed or has no such node.
int TasksOnNode(const std::string& list, int node);

// The first name of a list of hosts as Slurm writes it: "n07" for "n[07-09,11],m1". Empty if the
// list is malformed.
std::string FirstOfHostList(const std::string& list);

// The port that belongs to the launch, the same for all ranks: 10000 to 29999, below the ports that
// systems give out by themselves.
int PortOfLaunch(const std::string& id);

}  // namespace tandem::node

#endif  // TANDEM_NODE_LAUNCH_ENVIRONMENT_H_
