// Estimates the time, traffic and memory of a step for a strategy: a placement of tables and dense
// parameters, a policy and a synchroniser. Messages follow the alpha-beta model (Hockney 1994).
// The simulator of times (pace.h) counts the waiting. A step takes its compute time and the rest of
// the model there. The model leaves out the time of servers and of switches, and processors that
// several processes share.
//
// Pure; any thread.
#ifndef TANDEM_TOOLS_PLAN_ESTIMATE_H_
#define TANDEM_TOOLS_PLAN_ESTIMATE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "job/job.h"
#include "proto/job.pb.h"
#include "tools/plan/facts.h"
#include "worker/dense/quorum_leader.h"

namespace tandem::plan {

class Pacer;

// Corrections of the alpha-beta model, fitted to measurements with four workers (docs/STUDIES.md).
// kOneWay: a host that serves rows mostly uses one direction of its link at a time, so its step
// takes at least the time of this share of the bytes that it sends and receives. kFill: the share
// of its links that a double tree of more than two ranks can use, and also gradients that each
// worker sends to all copies of a table.
inline constexpr double kOneWay = 0.83, kFill = 0.77;

// The algorithms of an allreduce that the model knows.
inline constexpr Dense::Algorithm kAlgorithms[] = {Dense::RING, Dense::DIRECT, Dense::DOUBLE_TREE,
                                                   Dense::NAIVE};
// Whether the model knows the algorithm. It counts all others as a ring.
bool IsModelled(Dense::Algorithm algorithm);

// One strategy: how to place, read and sum the parameters of a job.
struct Strategy {
  Table::Placement tables = Table::SERVERS;
  Table::Placement dense = Table::REPLICATED;  // SERVERS, or REPLICATED and an allreduce
  Dense::Algorithm algorithm = Dense::RING;    // for replicated dense parameters
  int servers = 1;
  // Steps that a worker may be ahead, for parameters on servers; nullopt: any number.
  absl::optional<int> bound = 0;
  // True: server i is on the host of worker i and shares its link, and messages between the two use
  // no link. False: each server has its own host. Requires: no more servers than workers.
  bool beside = false;
  int every = 1;  // steps between two sync rounds of dense replicas
  // Which workers a sum or sync round of dense replicas waits for; nullopt: all.
  absl::optional<worker::QuorumLeader::Options> quorum = absl::nullopt;
  // Tables are at several places, each at TableFacts::place. `tables` is SERVERS then if a table
  // is on servers. Proposed strategies are never mixed.
  bool mixed = false;
  // Models that each worker keeps in addition to its own, such as the centre of EASGD. If dense
  // parameters are on servers, the servers keep them as well. Not for sync rounds by quorum.
  int kept_models = 0;

  friend bool operator==(const Strategy&, const Strategy&) = default;
  bool uses_servers() const { return tables == Table::SERVERS || dense == Table::SERVERS; }
  bool tables_on_workers() const { return mixed || tables != Table::SERVERS; }  // some
  // Whether all workers take each step together, even if `bound` is not 0.
  bool lockstep() const {
    return tables_on_workers() ||
           (dense == Table::REPLICATED && every == 1 && !quorum.has_value()) ||
           (uses_servers() && bound == 0);
  }
  // "4 servers, ASP"; "4 beside, ASP" if `beside`; "4 servers, mixed" if `mixed`.
  std::string tables_name() const;
  // "allreduce, ring"; "ring, every 8" with sync rounds; "ring, SOLO" or "ring, every 8 of 2" with
  // a quorum.
  std::string dense_name() const;
  // The settings that make `job` run with this strategy: path and value, as after --set. Drops
  // settings that only another dense synchroniser has, such as a codec or local_steps. Updates keep
  // their async_scale unless they are averaged. The job may still refuse the settings.
  std::vector<std::pair<std::string, std::string>> Overrides(const Job& job) const;
};

struct Estimate {
  Strategy strategy;
  double samples_per_second = 0;
  // Bytes that the host of a worker, or of a server, sends or receives a step, whichever is more. A
  // host with both counts for both.
  double worker_bytes = 0, server_bytes = 0;
  double bytes_a_sample = 0;  // sent by all processes together
  // Parts of a mean step: on links, waiting for slower workers, and computing.
  double link_seconds = 0, wait_seconds = 0, compute_seconds = 0;
  // Seconds that the link of the busiest host needs for a step: if it sends and receives at the
  // same time, and if it sends and receives in turn. The real time is between the two, not counting
  // latencies and links that wait for other links.
  double at_once_seconds = 0, one_way_seconds = 0;
  double server_memory = 0, worker_memory = 0;  // bytes, of each

  std::string limit() const;  // takes most of a step: "computing", "the links of servers", ...
  bool server_link_limits = false;
};

// `pacer`: of facts with the same step times.
Estimate EstimateStrategy(const Facts& facts, const Strategy& strategy, Pacer* pacer);
Estimate EstimateStrategy(const Facts& facts, const Strategy& strategy);

// The model cannot tell two speeds apart whose ratio is smaller than this.
inline constexpr double kAlike = 1.05;

// The strategies to compare. Numbers of servers: 1, half as many as workers, as many as workers,
// and the job's. Servers have their own hosts; if links have a limit, also the hosts of workers.
// Tables on servers: BSP, SSP and ASP. Dense parameters: on servers, or replicated with each
// algorithm. Tables on workers: sharded and replicated, with each algorithm.
std::vector<Strategy> StrategiesOf(const Facts& facts);

// The strategy of the current job. From policies it takes only the bound on steps ahead, the
// strictest one if there are several. AUTO and algorithms other than the four count as a ring.
// NotCounted in tools/plan/advice.h reports what this leaves out.
Strategy StrategyOf(const job::ResolvedJob& plan, bool colocate_servers);

// The facts for `workers` workers. Each new worker has the compute times of an existing one.
Facts WithWorkers(const Facts& facts, int workers);
// The facts with `times` times the dense parameters, and links `times` times as fast.
Facts WithSize(const Facts& facts, double times);

// Estimates all `strategies`; the fastest comes first.
std::vector<Estimate> EstimateAll(const Facts& facts, const std::vector<Strategy>& strategies,
                                  Pacer* pacer);

}  // namespace tandem::plan

#endif  // TANDEM_TOOLS_PLAN_ESTIMATE_H_
