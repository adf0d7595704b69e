#include "node/launch_environment.h"

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace tandem::node {
namespace {

// Reads variables of one family.
class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  std::string Text(const char* name) const {
    const char* const value = environment_(name);
    return value == nullptr ? "" : value;
  }
  // The first of these variables that is set; empty: none.
  const char* FirstSet(const std::vector<const char*>& names) const {
    for (const char* name : names) {
      if (!Text(name).empty()) return name;
    }
    return nullptr;
  }
  absl::StatusOr<int> Number(const char* name) const {
    int number = 0;
    const std::string text = Text(name);
    if (absl::SimpleAtoi(text, &number) && number >= 0) return number;
    return absl::InvalidArgumentError(
        absl::StrCat(name, "=", text, ": expected a number, 0 or more"));
  }

 private:
  const Environment& environment_;
};

// A family: its name, the variables of rank and size (the first that is set counts), and the rest.
struct Family {
  const char* name;
  std::vector<const char*> rank, size;
  std::vector<const char*> local_rank, local_size;  // among the ranks on this host
  void (*complete)(const Variables& variables, Launch* launch);
};

void CompleteTandem(const Variables& v, Launch* launch) { launch->id = v.Text("TANDEM_LAUNCH_ID"); }

// torchrun calls a run "none" unless it is told another name. The address of its store differs.
void CompleteTorch(const Variables& v, Launch* launch) {
  launch->first_host = v.Text("MASTER_ADDR");
  if (v.Text("MASTER_PORT").empty()) return;
  launch->id = absl::StrCat("torch ", v.Text("TORCHELASTIC_RUN_ID"), " ", launch->first_host, ":",
                            v.Text("MASTER_PORT"));
  // Nodes may count restarts differently. On several nodes each restart has another port.
  if (launch->one_host) absl::StrAppend(&launch->id, " ", v.Text("TORCHELASTIC_RESTART_COUNT"));
}

void CompleteOpenMpi(const Variables& v, Launch* launch) {
  const char* const name = v.FirstSet({"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"});
  if (name == nullptr) return;
  launch->id = absl::StrCat("mpi ", v.Text("OMPI_MCA_orte_hnp_uri"), " ", v.Text(name));
}

void CompletePmi(const Variables& v, Launch* launch) {
  const std::string space = v.Text("PMIX_NAMESPACE");
  if (!space.empty()) launch->id = absl::StrCat("pmix ", space);
}

// A step on one node has all ranks on this host. SLURM_LAUNCH_NODE_IPADDR is the login node.
void CompleteSlurm(const Variables& v, Launch* launch) {
  launch->first_host = FirstOfHostList(v.Text("SLURM_STEP_NODELIST"));
  launch->one_host = v.Text("SLURM_STEP_NUM_NODES") == "1";
  if (const auto node = v.Number("SLURM_NODEID"); node.ok()) {
    launch->size_here = TasksOnNode(v.Text("SLURM_STEP_TASKS_PER_NODE"), *node);
  }
  if (v.Text("SLURM_JOB_ID").empty()) return;
  launch->id = absl::StrCat("slurm ", v.Text("SLURM_JOB_ID"), ".", v.Text("SLURM_STEP_ID"),
                            " restart ", v.Text("SLURM_RESTART_COUNT"));
}

// Pods of an Indexed Job are called NAME-INDEX. Their subdomain is that of the headless service.
void CompleteKubernetes(const Variables& v, Launch* launch) {
  const std::string host = v.Text("HOSTNAME");
  const std::string suffix = absl::StrCat("-", launch->rank);
  if (!absl::EndsWith(host, suffix)) return;
  launch->first_host = absl::StrCat(host.substr(0, host.size() - suffix.size()), "-0");
}

const Family kFamilies[] = {
    {"Tandem",
     {"TANDEM_RANK"},
     {"TANDEM_WORLD_SIZE"},
     {"TANDEM_LOCAL_RANK"},
     {"TANDEM_LOCAL_SIZE"},
     CompleteTandem},
    {"torch", {"RANK"}, {"WORLD_SIZE"}, {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE"}, CompleteTorch},
    {"Open MPI",
     {"OMPI_COMM_WORLD_RANK"},
     {"OMPI_COMM_WORLD_SIZE"},
     {"OMPI_COMM_WORLD_LOCAL_RANK"},
     {"OMPI_COMM_WORLD_LOCAL_SIZE"},
     CompleteOpenMpi},
    {"PMI",
     {"PMI_RANK", "PMIX_RANK"},
     {"PMI_SIZE"},
     {"MPI_LOCALRANKID"},
     {"MPI_LOCALNRANKS"},
     CompletePmi},
    {"Slurm",
     {"SLURM_PROCID"},
     {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     {"SLURM_LOCALID"},
     {},
     CompleteSlurm},
    {"Kubernetes", {"JOB_COMPLETION_INDEX"}, {"TANDEM_WORLD_SIZE"}, {}, {}, CompleteKubernetes},
};

// Finds the ranks on this host. Launchers give the ranks of a host consecutive numbers, unless the
// user sets another order. `local`: the name of the variable that has the rank within the host;
// null: no such variable is set.
void FindRanksHere(const char* local, const Variables& v, Launch* launch) {
  if (launch->one_host) {
    launch->first_here = 0;
    launch->size_here = launch->size;
    return;
  }
  const int place = local == nullptr ? -1 : v.Number(local).value_or(-1);
  launch->first_here = launch->rank - place;
  if (place >= 0 && place < launch->size_here && launch->first_here >= 0 &&
      launch->first_here + launch->size_here <= launch->size) {
    return;
  }
  launch->first_here = launch->rank;
  launch->size_here = 1;
}

// The rank of this family; nullopt: its variables are not all set.
absl::StatusOr<std::optional<Launch>> Read(const Family& family, const Variables& v) {
  const char* const rank = v.FirstSet(family.rank);
  const char* const size = v.FirstSet(family.size);
  // A batch script is no step: Slurm counts it as rank 0 of the ranks that srun will start.
  const bool batch = family.complete == CompleteSlurm &&
                     v.FirstSet({"SLURM_STEP_ID", "SLURM_STEP_NODELIST"}) == nullptr;
  if (rank == nullptr || size == nullptr || batch) return std::optional<Launch>();
  Launch launch;
  launch.family = family.name;
  TANDEM_ASSIGN_OR_RETURN(launch.rank, v.Number(rank));
  TANDEM_ASSIGN_OR_RETURN(launch.size, v.Number(size));
  if (launch.rank >= launch.size) {
    return absl::InvalidArgumentError(
        absl::StrCat(rank, "=", launch.rank, ": expected a rank below ", size, "=", launch.size));
  }
  if (const char* const local = v.FirstSet(family.local_size); local != nullptr) {
    TANDEM_ASSIGN_OR_RETURN(const int here, v.Number(local));
    launch.one_host = here == launch.size;
    launch.size_here = here;
  }
  launch.one_host = launch.one_host || launch.size == 1;
  family.complete(v, &launch);
  FindRanksHere(v.FirstSet(family.local_rank), v, &launch);
  return std::optional<Launch>(std::move(launch));
}

// Adds what a later family says. PMI of srun names neither the launch nor a host, but Slurm does.
void Complete(const Launch& other, Launch* launch) {
  if (other.rank != launch->rank || other.size != launch->size) {
    launch->others.push_back(
        absl::StrCat(other.family, " says rank ", other.rank, " of ", other.size));
    return;
  }
  if (launch->family != "PMI" || !launch->id.empty()) return;
  launch->id = other.id;
  launch->first_host = other.first_host;
  launch->one_host = launch->one_host || other.one_host;
  launch->first_here = other.first_here;
  launch->size_here = other.size_here;
}

}  // namespace

std::string Launch::DebugString() const {
  if (family.empty()) return "no launcher: this process starts all roles";
  std::string text = absl::StrCat("rank ", rank, " of ", size, ", from ", family);
  if (!others.empty()) absl::StrAppend(&text, "; ", absl::StrJoin(others, ", "), ", ignored");
  return text;
}

absl::StatusOr<Launch> FindLaunch(const Environment& environment, int parent) {
  const Variables variables(environment);
  std::optional<Launch> found;
  for (const Family& family : kFamilies) {
    const absl::StatusOr<std::optional<Launch>> launch = Read(family, variables);
    if (!found.has_value()) {
      TANDEM_RETURN_IF_ERROR(launch.status());
      found = *launch;
    } else if (launch.ok() && launch->has_value()) {
      Complete(**launch, &*found);
    }
  }
  if (!found.has_value()) {
    for (const char* rank : {"TANDEM_RANK", "JOB_COMPLETION_INDEX"}) {
      if (variables.Text(rank).empty()) continue;
      return absl::InvalidArgumentError(
          absl::StrCat(rank, " is set, but TANDEM_WORLD_SIZE, the number of ranks, is not"));
    }
    found.emplace();
    found->one_host = true;
  }
  // Agents that a person starts may have several parents.
  if (found->id.empty() && found->one_host && found->family != kFamilies[0].name) {
    found->id = absl::StrCat("parent ", parent);
  }
  return *found;
}

int TasksOnNode(const std::string& list, int node) {
  for (const absl::string_view group : absl::StrSplit(list, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(group, absl::MaxSplits("(x", 1));
    int tasks = 0, nodes = 1;
    if (!absl::SimpleAtoi(parts[0], &tasks)) return 0;
    if (parts.size() == 2 && !absl::SimpleAtoi(absl::StripSuffix(parts[1], ")"), &nodes)) return 0;
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return 0;
}

std::string FirstOfHostList(const std::string& list) {
  const size_t bracket = list.find_first_of("[,");
  if (bracket == std::string::npos || list[bracket] == ',') return list.substr(0, bracket);
  const size_t end = list.find_first_of("-,]", bracket);
  const size_t close = list.find(']', bracket);
  if (end == std::string::npos || close == std::string::npos) return "";
  const size_t next = std::min(list.find(',', close), list.size());
  return absl::StrCat(list.substr(0, bracket), list.substr(bracket + 1, end - bracket - 1),
                      list.substr(close + 1, next - close - 1));
}

int PortOfLaunch(const std::string& id) {
  constexpr int kFirst = 10000, kPorts = 20000;
  return kFirst + static_cast<int>(HashName(id) % kPorts);
}

}  // namespace tandem::node
