// From the text of a job file to a plan that every node agrees on.
//
// ParseJob checks syntax, unknown fields and contradictions, and says in one line which file, which
// line, what was expected and a hint. Resolve fills in defaults and numbers the tables and policy
// groups: a pure function of the job, so all nodes compute the same plan.
#ifndef TANDEM_JOB_JOB_H_
#define TANDEM_JOB_JOB_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "policies/properties.h"
#include "proto/job.pb.h"
#include "proto/range_map.h"

namespace tandem::job {

inline constexpr int kDenseBlockFloats = 1024;  // row length of the dense table on servers
inline constexpr char kDenseTableName[] = "dense";

// One table with every default filled in.
struct TablePlan {
  std::string name;
  uint32_t id = 0;     // index in JobPlan::tables
  uint64_t salt = 0;   // of Position(); from (seed, name)
  uint64_t seed = 0;   // of first values; from (seed, name)
  int dim = 0;         // floats a row, without slots
  bool dense = false;  // the table of dense blocks; its rows come from ASSIGN, not an initialiser
  bool frozen = false;
  bool store = false;    // policy STORE: rows are what programs write; the model does not read them
  int state_floats = 0;  // of a row of such a table, beside `dim`
  Table::Synchroniser synchroniser = Table::SERVERS;  // where its rows are
  int64_t expected_rows = 0;
  std::vector<std::string> fields;
  Initializer initializer;
  Optimizer optimizer;
  uint32_t group = 0;  // index in JobPlan::groups

  bool of_model() const { return !dense && !store; }
};

// Tables that share a policy: one push frame per shard and step.
struct GroupPlan {
  uint32_t id = 0;
  Policy policy;                    // its kind and the knobs of it are set
  policies::Properties properties;  // of that policy: what anybody but the policy itself looks at
  std::vector<uint32_t> tables;
};

struct JobPlan {
  Job job;                        // with defaults filled in
  uint64_t hash = 0;              // of the resolved job; nodes of one job agree on it
  std::vector<TablePlan> tables;  // as in the job; the dense table last, if it is on servers
  std::vector<GroupPlan> groups;  // that of STORE tables last, if there are any
  int dense_table = -1;           // index in `tables`, or -1 (dense replicas)
  // True if all workers take the same steps, those without data in name only (a lockstep policy, or
  // dense replicas whose sums wait for all): then the epoch ends at a step that says that the sum of n is 0.
  bool lockstep = false;

  // Those whose steps workers take: all but that of STORE tables.
  absl::Span<const GroupPlan> trained_groups() const;
  // Tables that the model reads; the first ones of `tables`.
  size_t model_tables() const;

  int workers() const { return job.cluster().workers(); }
  // True if some table is on the workers: each worker is a server too then, worker r the one of number
  // server_processes() + r, with as many shards as any other.
  bool workers_serve = false;
  int server_processes() const { return job.cluster().servers(); }
  // All that serve rows: processes of their own, then workers.
  int servers() const { return server_processes() + (workers_serve ? workers() : 0); }
  int shards_per_server() const { return job.cluster().shards_per_server(); }
  int shards() const { return servers() * shards_per_server(); }
  // The servers that rows of the table are dealt over: `count` from `first` on.
  struct Holders {
    int first = 0;
    int count = 0;
  };
  Holders HoldersOf(const TablePlan& table) const;
  // How many of them have each row.
  int CopiesOf(const TablePlan& table) const;
  ClusterSizes sizes() const;  // what views must agree with
  // The cluster as its endpoints see it: all that serve rows are servers.
  Cluster serving() const;
};

// `--set path=value`: path as in "train.batch" or "table[0].dim"; value in text format, where
// strings may go without quotes. A message or a list is replaced whole: "policy={kind: ASP}".
using Overrides = std::vector<std::pair<std::string, std::string>>;

// `file_name` is used in messages only.
absl::StatusOr<Job> ParseJob(absl::string_view text, absl::string_view file_name,
                             const Overrides& overrides);
absl::StatusOr<Job> ReadJobFile(const std::string& path, const Overrides& overrides);
// What ParseJob is given of a file.
absl::StatusOr<std::string> ReadJobText(const std::string& path);

// Contradictions are INVALID_ARGUMENT with a hint: SSP without a bound, depth above the bound, a
// negative dim, two tables that claim one field, ...
absl::StatusOr<JobPlan> Resolve(const Job& job);

// "BSP", "SSP(4)": UpdatePolicy::name().
std::string PolicyName(const Policy& policy);

// Whether evaluations may rank test rows, and so have HR@K and NDCG@K.
bool RanksItems(const Job& job);

// Whether replicas of the dense parameters take steps with sums of gradients that do not wait for all
// workers. With one worker there is nobody to wait for.
bool SumsByQuorum(const Job& job);
// By which field it is so: "dense.quorum: SOLO", "dense.local_steps.quorum: 3".
std::string QuorumText(const Job& job);

// "ALLREDUCE(AUTO)", "ALLREDUCE(AUTO, MAJORITY)"; of workers that step by themselves how many steps:
// "LOCAL_SGD(8)".
std::string DenseName(const Dense& dense);

// The resolved job as text, with its policy groups in comments. Parses to the same plan again.
std::string ResolvedText(const JobPlan& plan);

// Half-open intervals of positions that cut [0, 2^64) into `count` near-equal pieces; piece i is
// [result[i], result[i+1]), the last one ends at 2^64 (written 0).
std::vector<uint64_t> EqualRanges(int count);

}  // namespace tandem::job

#endif  // TANDEM_JOB_JOB_H_
