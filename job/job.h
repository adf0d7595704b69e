// From the text of a job file to a plan that every node agrees on. The folder parses a job, fills
// in defaults, checks limits and contradictions, and bounds the memory that the job may need.
//
// ParseJob checks syntax, unknown fields and contradictions. Its errors name, in one line, the
// file, the line, what was expected and a hint. Resolve fills in defaults and numbers the tables
// and policy groups. Resolve is a pure function of the job, so all nodes compute the same plan.
#ifndef TANDEM_JOB_JOB_H_
#define TANDEM_JOB_JOB_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "optim/row_dtype.h"
#include "policies/properties.h"
#include "proto/job.pb.h"
#include "proto/range_map.h"

namespace tandem::job {

inline constexpr int kDenseBlockFloats = 1024;  // row length of the dense table on servers
inline constexpr char kDenseTableName[] = "dense";

// Limits of statistics, so that reports of servers and the records of checkpoints fit one control
// message and the scheduler's memory (ResolvedJob::CountsPairs, CountsWaitsInPairs).
inline constexpr int64_t kMaxPairs = 4096;
inline constexpr int kMaxWaitingInPairs = 256;

// One table with every default filled in.
struct TablePlan {
  std::string name;
  uint32_t id = 0;     // index in ResolvedJob::tables
  uint64_t salt = 0;   // salt of Position(); from (seed, name)
  uint64_t seed = 0;   // seed of initial values; from (seed, name)
  int dim = 0;         // floats in a row, without slots
  bool dense = false;  // the table of dense blocks; ASSIGN writes its rows, no initializer
  bool frozen = false;
  bool store = false;    // kind KEY_VALUE: programs write the rows; the model does not read them
  int extra_floats = 0;  // KEY_VALUE tables: floats of a row in addition to `dim`
  Table::Placement placement = Table::SERVERS;  // where the rows live
  optim::RowTypes types;                        // of rows as they are stored
  int64_t expected_rows = 0;
  std::vector<std::string> fields;
  Initializer initializer;
  Optimizer optimizer;
  Admission admission;
  Eviction eviction;   // none if the job only evaluates
  uint32_t group = 0;  // index in ResolvedJob::groups

  // How pulled rows travel: as they are stored. Tables with Optimizer::catch_up send F32, because
  // each pull computes the row. Tables with hot rows send F32, because their rows have two types.
  Table::Dtype wire_dtype() const {
    return optimizer.catch_up() || types.hot_updates > 0 ? Table::F32 : types.row;
  }
  bool of_model() const { return !dense && !store; }
  // Whether a rule keeps some ids without a row. A rule that admits every id is none.
  bool has_row_rules() const {
    return (admission.kind() == Admission::COUNT && admission.threshold() > 1) ||
           (admission.kind() == Admission::PROBABILITY && admission.probability() < 1) ||
           eviction.kind() > Eviction::NONE;
  }
};

// The tables that share a policy. Together they need one push frame for each shard and step.
struct GroupPlan {
  uint32_t id = 0;
  Policy policy;  // resolved: the kind and the fields that it needs are set
  // Properties of `policy`; other code reads these and not the kind.
  policies::Properties properties;
  std::vector<uint32_t> tables;
};

struct ResolvedJob {
  Job job;            // with defaults filled in
  uint64_t hash = 0;  // hash of the resolved job; equal on all nodes of a job
  // In the order of the job; the dense table, if on servers, comes last.
  std::vector<TablePlan> tables;
  std::vector<GroupPlan> groups;  // the group of KEY_VALUE tables, if there is one, comes last
  int dense_table = -1;           // index in `tables`; -1: dense replicas
  // True if all workers take the same steps, where a worker without data pushes n = 0. A lockstep
  // policy causes it, and so do dense replicas whose sums wait for all workers. The epoch then ends
  // at a step whose sum of n is 0.
  bool lockstep = false;

  // The groups whose tables are trained: all except the group of KEY_VALUE tables.
  absl::Span<const GroupPlan> trained_groups() const;
  // How many tables the model reads; these are the first ones of `tables`.
  size_t model_tables() const;

  int workers() const { return job.cluster().workers(); }
  // True if some table lives on the workers. Each worker is then a server, too: worker r is server
  // number server_processes() + r and has as many shards as any other server.
  bool workers_serve = false;
  int server_processes() const { return job.cluster().servers(); }
  // All servers: first the server processes, then the workers that serve rows.
  int servers() const { return server_processes() + (workers_serve ? workers() : 0); }
  int shards_per_server() const { return job.cluster().shards_per_server(); }
  int shards() const { return servers() * shards_per_server(); }
  // The servers that share the rows of a table: `count` servers, beginning with number `first`.
  struct Holders {
    int first = 0;
    int count = 0;
  };
  Holders HoldersOf(const TablePlan& table) const;
  // How many servers hold each row of the table.
  int CopiesOf(const TablePlan& table) const;

  // Whether updates are counted and measured for each pair of a worker and a table. Otherwise they
  // are for each worker over all tables, and for each table over all workers. Depends only on
  // numbers that stay when a run resumes.
  bool CountsPairs() const { return workers() * static_cast<int64_t>(tables.size()) <= kMaxPairs; }
  // Whether waits are counted for each pair of a waiting worker and the worker that it waits for.
  // Otherwise each worker has two numbers: how long it waited, and how long others waited for it.
  bool CountsWaitsInPairs() const { return workers() <= kMaxWaitingInPairs; }

  ClusterSizes sizes() const;  // the sizes that views must agree with
  // The cluster as endpoints see it: everything that serves rows counts as a server.
  Cluster serving() const;
};

// Values from `--set path=value`. A path looks like "train.batch_size" or "table[0].dim". The value
// is in text format, but strings may go without quotes. A message or a list is replaced as a whole:
// "policy={kind: ASP}".
using Overrides = std::vector<std::pair<std::string, std::string>>;

// Parses and checks the text of a job. `file_name` is used in messages only.
absl::StatusOr<Job> ParseJob(absl::string_view text, absl::string_view file_name,
                             const Overrides& overrides);
absl::StatusOr<Job> ReadJobFile(const std::string& path, const Overrides& overrides);
// Reads the text of a job file, for ParseJob.
absl::StatusOr<std::string> ReadJobText(const std::string& path);

// Fills in defaults and checks the job. Contradictions are INVALID_ARGUMENT with a hint: SSP
// without a bound, a depth above the bound, a negative dim, two tables that claim the same field,
// and others.
absl::StatusOr<ResolvedJob> Resolve(const Job& job);

// The name of a policy, for example "BSP" or "SSP(4)"; see UpdatePolicy::name().
std::string PolicyName(const Policy& policy);

// Whether evaluations may rank test rows, so that there are HR@K and NDCG@K.
bool RanksItems(const Job& job);

// Whether the dense replicas use sums of gradients, or sync rounds, that do not wait for all
// workers. Always false with one worker, which has nobody to wait for.
bool SumsByQuorum(const Job& job);
// Whether a part of the job has a policy of kind PLUGIN.
bool UsesPlugin(const Job& job);
// The field that makes SumsByQuorum true, with its value: "dense.quorum: SOLO",
// "dense.local_steps.quorum: 3".
std::string QuorumText(const Job& job);

// How the dense part is synchronised, in one word: "ALLREDUCE(AUTO)", "ALLREDUCE(AUTO, MAJORITY)".
// For LOCAL_SGD and EASGD the name has the steps between sync rounds: "LOCAL_SGD(8)".
std::string DenseName(const Dense& dense);

// The resolved job as text, with its policy groups in comments. Parsing the text gives the same
// plan again.
std::string ResolvedText(const ResolvedJob& plan);

// Cuts the positions [0, 2^64) into `count` near-equal half-open intervals. Interval i is
// [result[i], result[i+1]); the last one ends at 2^64 (written 0).
std::vector<uint64_t> EqualRanges(int count);

}  // namespace tandem::job

#endif  // TANDEM_JOB_JOB_H_
