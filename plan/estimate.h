// What a step would take, move and keep in memory if tables and dense parameters were placed and
// synchronised so or so: the alpha-beta model (Hockney 1994) for what travels, and for who waits for
// whom the recurrence
//
//   end(r, k) = max(end(r, k - 1), max over workers j of end(j, k - 1 - s)) + compute(r, k) + rest
//
// of workers that may be s steps ahead of the slowest: s = 0 is a step that all take together, no s at
// all is ASP. Where sums do not wait for all, quorum_pace.h says it. What it leaves out: the time of servers, of switches, and processors that are shared.
//
// Pure; any thread.
#ifndef TANDEM_PLAN_ESTIMATE_H_
#define TANDEM_PLAN_ESTIMATE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/types/optional.h"
#include "job/job.h"
#include "plan/facts.h"
#include "plan/quorum_pace.h"
#include "proto/job.pb.h"

namespace tandem::plan {

// What no alpha-beta model says, chosen so that it meets what was measured with four workers
// (docs/STUDIES.md). Where rows are served, the two ways of a link are used one after the other most of the
// time: of the bytes that such a host sends and receives this share takes a time of its own. And a double
// tree of more than two ranks, and gradients that go from each worker to all copies of a table, fill this
// share of their links.
inline constexpr double kOneWay = 0.83, kFill = 0.77;

enum class AllReduce { kRing, kDirect, kTree, kNaive };

// One way to run a job.
struct Way {
  Place tables = Place::kServers;
  Place dense = Place::kReplicated;
  AllReduce algorithm = AllReduce::kRing;  // of replicated dense parameters
  int servers = 1;
  // Of what is on servers: how many steps a worker may be ahead; none: any number.
  absl::optional<int> bound = 0;
  // Server i is on the host of worker i, and shares its link; what both exchange takes none. False: each
  // has a host of its own. Requires: no more servers than workers.
  bool beside = false;
  int every =
      1;  // of dense replicas: they meet after so many steps, and step by themselves between
  // Of dense replicas: their sums, or meetings, wait for no more.
  absl::optional<Quorum> quorum = absl::nullopt;
  // Tables are at more than one place: each at its own (TableFacts::place). `tables` is kServers
  // then if any is there. No way that is proposed is so.
  bool mixed = false;
  // Of replicas that meet and wait for all: models that each worker keeps beside its own, as the
  // centre of EASGD.
  int kept_models = 0;

  friend bool operator==(const Way&, const Way&) = default;
  bool uses_servers() const { return tables == Place::kServers || dense == Place::kServers; }
  bool tables_on_workers() const { return mixed || tables != Place::kServers; }  // some
  // Whether all take each step together, whatever `bound` says.
  bool lockstep() const {
    return tables_on_workers() ||
           (dense == Place::kReplicated && every == 1 && !quorum.has_value()) ||
           (uses_servers() && bound == 0);
  }
  // "4 servers, ASP"; of servers beside workers "4 beside, ASP"; of several places "4 servers, mixed".
  std::string tables_name() const;
  // "allreduce, ring"; of replicas that meet "ring, every 8"; with a quorum "ring, SOLO", "ring, every 8 of 2".
  std::string dense_name() const;
  // What makes `job` one that runs so: path and value, as after --set. What only another synchroniser of its
  // dense part has, such as a codec or a place to meet, is left out. Updates keep their async_scale
  // where they are not a mean. The job may still refuse it.
  std::vector<std::pair<std::string, std::string>> Overrides(const Job& job) const;
};

struct Estimate {
  Way way;
  double samples_per_second = 0;
  // Bytes that the host of a worker, or of a server, sends and receives a step: the larger of both
  // directions. One with both is either.
  double worker_bytes = 0, server_bytes = 0;
  double bytes_a_sample = 0;  // sent by all processes together
  // Seconds of a mean step that are not computed: on links, and waiting for slower workers.
  double link_seconds = 0, wait_seconds = 0, compute_seconds = 0;
  // What the link of the busiest host takes for a step: if all that it sends goes beside what it receives,
  // and if nothing does. What links need is between the two, but for latencies and where a link must
  // wait for another.
  double at_once_seconds = 0, one_way_seconds = 0;
  double server_memory = 0, worker_memory = 0;  // bytes, of each

  std::string limit()
      const;  // what most of a step goes to: "computing", "the links of servers", ...
  bool server_link_limits = false;
};

Estimate EstimateWay(const Facts& facts, const Way& way);

// What the model cannot tell apart: speeds of less than this ratio.
inline constexpr double kAlike = 1.05;

// Every way that is worth a look: both places of dense parameters with 1, half as many
// and as many servers as workers, apart and, where links have a limit, beside them; each algorithm, tables
// on servers in step, bounded and without waiting, and on the workers.
std::vector<Way> WaysOf(const Facts& facts);

// Where the job has the rows of a table.
Place PlaceOf(const job::TablePlan& table);

// The way that the job takes as it is. Of policies only how far workers may be ahead of each other counts,
// and of several the strictest; an algorithm that is AUTO, or none of the four, is taken for a ring
// (plan/advice.h, NotCounted, says what that leaves out).
Way WayOf(const job::JobPlan& plan, bool servers_beside_workers);

// As many workers as `workers`, each of which computes as one of those there are.
Facts WithWorkers(const Facts& facts, int workers);
// So many times the dense parameters, over links so many times as fast.
Facts WithSize(const Facts& facts, double times);

// The fastest first.
std::vector<Estimate> EstimateAll(const Facts& facts, const std::vector<Way>& ways);

// Steps a second of all workers together if each may be `bound` steps ahead, and `rest` seconds come to
// each step beside what it computes.
// Beside that all wait for each other after every `meet_every` steps; 0: never.
double StepsPerSecond(const Facts& facts, absl::optional<int> bound, double rest,
                      int meet_every = 0);

}  // namespace tandem::plan

#endif  // TANDEM_PLAN_ESTIMATE_H_
