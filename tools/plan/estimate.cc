#include "tools/plan/estimate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <limits>
#include <numeric>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "policies/properties.h"
#include "tools/plan/pace.h"
#include "worker/dense/local_sgd.h"

namespace tandem::plan {
namespace {

constexpr double kKeyBytes = 8, kFloatBytes = 4;
constexpr int kBound = 4;  // of the bounded strategy

// The traffic of one host in a step: bytes out and in, messages one after another, and the bytes
// that its link could have carried while it waited.
struct Traffic {
  double out = 0, in = 0, messages = 0, idle = 0;

  // Seconds for which the link is occupied.
  double OnLink(const Facts& facts) const {
    return facts.bytes_per_second > 0 ? (std::max(out, in) + idle) / facts.bytes_per_second : 0;
  }
  // The same if the host sends and receives in turn, and if it does both at the same time.
  double OneWay(const Facts& facts) const {
    return facts.bytes_per_second > 0 ? (out + in) / facts.bytes_per_second : 0;
  }
  double AtOnce(const Facts& facts) const {
    return facts.bytes_per_second > 0 ? std::max(out, in) / facts.bytes_per_second : 0;
  }
  double Waits(const Facts& facts) const { return messages * facts.latency_seconds; }
  double Seconds(const Facts& facts) const { return OnLink(facts) + Waits(facts); }
};
Traffic operator+(const Traffic& a, const Traffic& b) {
  return {a.out + b.out, a.in + b.in, a.messages + b.messages, a.idle + b.idle};
}

// Two kinds of traffic at the same time: they share a link, and the longer row of messages counts.
Traffic Beside(const Traffic& a, const Traffic& b) {
  return {a.out + b.out, a.in + b.in, std::max(a.messages, b.messages), a.idle + b.idle};
}

double DenseBytes(const Facts& facts) { return facts.dense_parameters * kFloatBytes; }

Table::Placement PlaceOf(const Strategy& strategy, const TableFacts& table) {
  return strategy.mixed ? table.place : strategy.tables;
}

// Whether tables are at `place`. A job without tables counts as one that has them at
// `strategy.tables`.
bool HasTables(const Facts& facts, const Strategy& strategy, Table::Placement place) {
  if (!strategy.mixed) return strategy.tables == place;
  return std::any_of(facts.tables.begin(), facts.tables.end(),
                     [place](const TableFacts& table) { return table.place == place; });
}

// Bytes of ids, of rows, and of gradients with their ids: all tables at one place, one step of
// a worker.
struct Touched {
  double keys = 0, rows = 0, gradients = 0;
};
Touched TouchedBy(const Facts& facts, const Strategy& strategy, Table::Placement place) {
  Touched out;
  for (const TableFacts& table : facts.tables) {
    if (PlaceOf(strategy, table) != place) continue;
    const double row = table.dim * kFloatBytes;
    out.keys += table.rows_a_step * kKeyBytes;
    out.rows += table.rows_a_step * row * table.pulled_share;
    out.gradients += table.rows_a_step * (kKeyBytes + row);
  }
  return out;
}

// An allreduce of the dense gradient, on the link of the busiest worker.
Traffic OfAllReduce(const Facts& facts, Dense::Algorithm algorithm) {
  const double p = facts.workers, bytes = facts.dense_parameters * facts.dense_wire_bytes;
  if (p == 1 || bytes == 0) return {};
  if (facts.dense_codec_bytes > 0) {  // an allgather
    const double others = (p - 1) * facts.dense_codec_bytes;
    return {others, others, p - 1};
  }
  const double share = 2 * (p - 1) / p * bytes, levels = std::ceil(std::log2(p));
  switch (algorithm) {
    case Dense::DIRECT:  // independent messages, twice
      return {share, share, 2};
    case Dense::DOUBLE_TREE: {  // two trees: a rank inside one of them is a leaf of the other
      const double most = p == 2 ? bytes : 2 * bytes;
      return {most, most, 2 * levels, p == 2 ? 0 : most * (1 / kFill - 1)};
    }
    case Dense::NAIVE:  // rank 0 receives all, then sends all
      return {(p - 1) * bytes, (p - 1) * bytes, 2, (p - 1) * bytes};
    default:  // RING
      return {share, share, 2 * (p - 1)};
  }
}

// Bytes that all processes together send. Every algorithm sends all gradients except one to the
// place where they are added, and the sum to all workers except one.
double SentByAllReduce(const Facts& facts) {
  const double p = facts.workers;
  if (facts.dense_codec_bytes > 0) return p * (p - 1) * facts.dense_codec_bytes;
  return 2 * (p - 1) * facts.dense_parameters * facts.dense_wire_bytes;
}

// The traffic of one host: pulls before a step computes, pushes after it, and the allreduce.
struct HostTraffic {
  Traffic read, write, allreduce;
  bool serves = false, works = false;

  Traffic all() const { return read + write + allreduce; }
};

// The two kinds of hosts. A strategy may have only one of them.
struct StepTraffic {
  HostTraffic worker;  // a host with only a worker
  HostTraffic server;  // a host with a server, and perhaps a worker as well
  bool any_worker = true, any_server = false;
  double sent = 0;  // over links by all processes together, divided by workers

  std::vector<const HostTraffic*> hosts() const {
    std::vector<const HostTraffic*> out;
    if (any_worker) out.push_back(&worker);
    if (any_server) out.push_back(&server);
    return out;
  }
};

// Bytes between a worker's step and servers: pull requests, their replies, and pushes.
struct Served {
  double asked = 0, answered = 0, pushed = 0;
};

// Adds the traffic with servers. Call it after the traffic between workers has been added.
void AddServers(const Facts& facts, const Strategy& strategy, const Served& step,
                StepTraffic* out) {
  const double p = facts.workers, m = strategy.servers;
  const double all = step.asked + step.answered + step.pushed;
  const HostTraffic among = out->worker;
  out->any_server = true;
  out->worker.read = Beside(among.read, {step.asked, step.answered, 2});
  out->worker.write = Beside(among.write, {step.pushed, 0, 1});
  if (!strategy.beside) {
    out->server.serves = true;
    out->server.read = {step.answered * p / m, step.asked * p / m, 0};
    out->server.write = {0, step.pushed * p / m, 0};
    out->sent += all;
    return;
  }
  // The link of a host with both carries the traffic of its worker with the other servers, of its
  // server with the other workers, and between workers.
  const double elsewhere = (m - 1) / m, served = (p - 1) / m;
  out->any_worker = m < p;
  out->server = among;
  out->server.serves = true;
  out->server.read =
      Beside(among.read, {step.asked * elsewhere + step.answered * served,
                          step.answered * elsewhere + step.asked * served, p > 1 ? 2.0 : 0.0});
  out->server.write =
      Beside(among.write, {step.pushed * elsewhere, step.pushed * served, p > 1 ? 1.0 : 0.0});
  out->sent += all * (p - 1) / p;
}

// Adds the traffic of each worker that comes from tables on workers.
void AddTablesOnWorkers(const Facts& facts, const Strategy& strategy, HostTraffic* worker) {
  const double p = facts.workers, others = (p - 1) / p;
  if (p == 1) return;
  if (HasTables(facts, strategy, Table::SHARDED)) {
    // A worker serves as many rows as it pulls.
    const Touched touched = TouchedBy(facts, strategy, Table::SHARDED);
    const double read = (touched.keys + touched.rows) * others;
    worker->serves = true;
    worker->read = {read, read, 2};
    worker->write = {touched.gradients * others, touched.gradients * others, 1};
  }
  if (HasTables(facts, strategy, Table::REPLICATED)) {
    const double sent = TouchedBy(facts, strategy, Table::REPLICATED).gradients * (p - 1);
    const double idle = p > 2 ? sent * (1 / kFill - 1) : 0;
    worker->write = Beside(worker->write, {sent, sent, 1, idle});
  }
}

// `steps_a_sum`: steps of a worker from one sum of dense replicas to the next.
StepTraffic TrafficOf(const Facts& facts, const Strategy& strategy, double steps_a_sum) {
  const double p = facts.workers;
  StepTraffic out;
  HostTraffic& worker = out.worker;
  worker.works = true;
  AddTablesOnWorkers(facts, strategy, &worker);
  out.sent = worker.read.out + worker.write.out;
  const Touched touched = TouchedBy(facts, strategy, Table::SERVERS);
  Served served = {touched.keys, touched.rows, touched.gradients};
  if (strategy.dense == Table::SERVERS) {
    served.answered += DenseBytes(facts);
    served.pushed += DenseBytes(facts);
  } else {
    // One of `steps_a_sum` steps has a sum. A mean step has this part of it.
    const Traffic whole = OfAllReduce(facts, strategy.algorithm);
    worker.allreduce = {whole.out / steps_a_sum, whole.in / steps_a_sum,
                        whole.messages / steps_a_sum, whole.idle / steps_a_sum};
    out.sent += SentByAllReduce(facts) / p / steps_a_sum;
  }
  if (strategy.uses_servers()) AddServers(facts, strategy, served, &out);
  return out;
}

// Seconds of a step without compute. serial: pulls, pushes and the allreduce follow one another
// as the strategy requires. least: the links need at least this, even if they do not wait for
// each other.
struct RestOfStep {
  double serial = 0, least = 0;
  bool servers = false;  // links of servers are the bottleneck
};

// For a host with only a worker. Pushes begin after the last pull.
double WorkingSeconds(const Facts& facts, const HostTraffic& host) {
  const double after = std::max({host.write.Seconds(facts), host.allreduce.Seconds(facts),
                                 (host.write + host.allreduce).OnLink(facts)});
  return host.read.Seconds(facts) + after;
}

// For a host that serves rows. Pushes of workers that have pulled all rows arrive while other
// workers still pull. Messages of the allreduce go at the same time as the push, as on any host.
double ServingSeconds(const Facts& facts, const HostTraffic& host) {
  const Traffic served = host.read + host.write;
  const double link = std::max(kOneWay * served.OneWay(facts), served.AtOnce(facts));
  const double waits =
      host.read.Waits(facts) + std::max(host.write.Waits(facts), host.allreduce.Waits(facts));
  return link + host.allreduce.OnLink(facts) + waits;
}

RestOfStep Rest(const Facts& facts, const Strategy& strategy, const StepTraffic& traffic) {
  RestOfStep rest;
  double read = 0, reduce = 0, together = 0;
  for (const HostTraffic* host : traffic.hosts()) {
    const double serial =
        host->serves ? ServingSeconds(facts, *host) : WorkingSeconds(facts, *host);
    const double link = host->all().OnLink(facts);
    if (std::max(serial, link) > together) rest.servers = host == &traffic.server;
    together = std::max({together, serial, link});
    rest.least = std::max(rest.least, link);
    read = std::max(read, host->read.Seconds(facts));
    reduce = std::max(reduce, host->allreduce.Seconds(facts));
  }
  if (strategy.bound == 0 || strategy.tables_on_workers()) {
    // The next pull waits for the pushes of all workers.
    rest.serial = std::max(together, reduce);
    rest.least = 0;
  } else {
    // No worker waits for a push. A worker that prefetches waits for no pull either.
    rest.serial = reduce + (facts.depth > 0 ? 0 : read);
  }
  return rest;
}

double MeanCompute(const Facts& facts) {
  double sum = 0, count = 0;
  for (const std::vector<double>& steps : facts.step_seconds) {
    sum += std::accumulate(steps.begin(), steps.end(), 0.0);
    count += static_cast<double>(steps.size());
  }
  return count > 0 ? sum / count : 0;
}

void AddMemory(const Facts& facts, const Strategy& strategy, Estimate* out) {
  for (const TableFacts& table : facts.tables) {
    const double bytes = table.rows * table.bytes_a_row;
    const Table::Placement place = PlaceOf(strategy, table);
    if (place == Table::SERVERS) out->server_memory += bytes / strategy.servers;
    if (place == Table::SHARDED) out->worker_memory += bytes / facts.workers;
    if (place == Table::REPLICATED) out->worker_memory += bytes;
  }
  const double dense = facts.dense_parameters * facts.dense_bytes_a_parameter;
  const double extra = strategy.kept_models * DenseBytes(facts);
  if (strategy.dense == Table::SERVERS) out->server_memory += (dense + extra) / strategy.servers;
  // With a sharded optimizer each worker keeps one share of the optimizer state.
  const double kept = facts.dense_slots_dealt && strategy.dense == Table::REPLICATED
                          ? DenseBytes(facts) + (dense - DenseBytes(facts)) / facts.workers
                          : dense;
  // Each worker has the state of the optimizer, too, if servers step: worker 0 assigns it to them.
  out->worker_memory += kept + extra;
  if (!strategy.quorum.has_value()) return;
  // Sums by quorum: the model that they update, and two gradients in flight. Sync rounds by quorum:
  // the common model, the model of the sums and its velocity, and three movements in flight.
  out->worker_memory +=
      strategy.quorum->count > 0 ? 6 * DenseBytes(facts) : kept + 2 * DenseBytes(facts);
}

std::string NameOf(Dense::Algorithm algorithm) {
  if (algorithm == Dense::DOUBLE_TREE) return "tree";
  return absl::AsciiStrToLower(Dense::Algorithm_Name(algorithm));
}

// Removes settings that the synchroniser of this place does not have.
Dense FitFor(Table::Placement place, const Dense& dense) {
  Dense fit = dense;
  fit.clear_local_steps();
  fit.mutable_optimizer()->clear_error_feedback();  // no strategy has a delay
  fit.clear_quorum();
  fit.clear_quorum_bound();
  // rules and calibration choose an algorithm, but the strategy has one already
  fit.clear_algorithm_rules();
  fit.clear_calibration();
  if (place == Table::REPLICATED) {
    fit.clear_policy();
    return fit;
  }
  fit.clear_algorithm();
  fit.clear_wire_dtype();
  fit.clear_bucket_bytes();
  fit.clear_link();
  fit.clear_codec();
  fit.clear_sharded_optimizer();
  return fit;
}

std::string PolicyText(absl::optional<int> bound) {
  if (!bound.has_value()) return "ASP";
  return *bound == 0 ? "BSP" : absl::StrCat("SSP(", *bound, ")");
}

// Whether updates are scaled by 1/workers. A policy without a kind takes its missing fields from
// `parent`, as in job_defaults.cc.
bool IsScaled(const Policy& parent, const Policy& policy) {
  const bool inherits = policy.kind() == Policy::POLICY_UNSPECIFIED &&
                        policy.async_scale() == Policy::ASYNC_SCALE_UNSPECIFIED;
  return (inherits ? parent : policy).async_scale() == Policy::INVERSE_WORKERS;
}

// The value for --set. BSP averages, so it has no scale.
std::string PolicySetting(absl::optional<int> bound, bool scaled) {
  const char* const scale = scaled ? " async_scale: INVERSE_WORKERS" : "";
  if (!bound.has_value()) return absl::StrCat("{kind: ASP", scale, "}");
  if (*bound == 0) return "{kind: BSP}";
  return absl::StrCat("{kind: SSP bound: ", *bound, scale, "}");
}

std::string ServersOf(const Strategy& strategy, const std::string& how) {
  const char* const where = strategy.beside         ? " beside, "
                            : strategy.servers == 1 ? " server, "
                                                    : " servers, ";
  return absl::StrCat(strategy.servers, where, how);
}

}  // namespace

bool IsModelled(Dense::Algorithm algorithm) {
  return std::count(std::begin(kAlgorithms), std::end(kAlgorithms), algorithm) > 0;
}

std::string Strategy::tables_name() const {
  if (mixed) return tables == Table::SERVERS ? ServersOf(*this, "mixed") : "mixed";
  if (tables == Table::SERVERS) return ServersOf(*this, PolicyText(bound));
  return absl::AsciiStrToLower(Table::Placement_Name(tables));
}

std::string Strategy::dense_name() const {
  if (dense == Table::REPLICATED && quorum.has_value()) {
    return absl::StrCat(NameOf(algorithm), ", ",
                        quorum->count > 0 ? absl::StrCat("every ", every, " of ", quorum->count)
                                          : Dense::Quorum_Name(quorum->quorum));
  }
  if (dense == Table::REPLICATED && every > 1) {
    return absl::StrCat(NameOf(algorithm), ", every ", every);
  }
  if (dense == Table::REPLICATED) return absl::StrCat("allreduce, ", NameOf(algorithm));
  return ServersOf(*this, PolicyText(bound));
}

std::vector<std::pair<std::string, std::string>> Strategy::Overrides(const Job& job) const {
  std::vector<std::pair<std::string, std::string>> out;
  out.emplace_back("cluster.servers", absl::StrCat(uses_servers() ? servers : 0));
  if (!uses_servers() && job.cluster().pin_servers()) {
    out.emplace_back("cluster.pin_servers", "false");
  }
  const absl::optional<int> at = uses_servers() ? bound : absl::optional<int>(0);
  const auto policy_for = [&](const Policy& own) {
    return PolicySetting(at, IsScaled(job.policy(), own));
  };
  out.emplace_back("policy", policy_for(job.policy()));
  for (int t = 0; t < job.table_size(); ++t) {
    const Table& table = job.table(t);
    if (table.policy().kind() == Policy::KEY_VALUE) continue;  // not trained
    const std::string path = absl::StrCat("table[", t, "].");
    if (table.has_policy()) out.emplace_back(path + "policy", policy_for(table.policy()));
    if (tables != Table::SERVERS || table.placement() > Table::SERVERS) {
      out.emplace_back(path + "placement", Table::Placement_Name(tables));
    }
  }
  const Dense fit = FitFor(dense, job.dense());
  if (fit.SerializeAsString() != job.dense().SerializeAsString()) {
    Dense text = fit;
    text.clear_synchroniser();  // set below, as is the algorithm
    text.clear_algorithm();
    out.emplace_back("dense", absl::StrCat("{", text.ShortDebugString(), "}"));
  }
  if (dense == Table::SERVERS) {
    out.emplace_back("dense.synchroniser", "SERVERS");
    if (fit.has_policy()) out.emplace_back("dense.policy", policy_for(fit.policy()));
    return out;
  }
  out.emplace_back("dense.synchroniser", "ALLREDUCE");
  // GPUs have only one algorithm, which is not one of the four.
  const bool own_algorithm = fit.device() == Dense::CUDA && algorithm == Dense::RING;
  if (!own_algorithm) out.emplace_back("dense.algorithm", Dense::Algorithm_Name(algorithm));
  return out;
}

std::string Estimate::limit() const {
  if (compute_seconds >= link_seconds && compute_seconds >= wait_seconds) return "computing";
  if (wait_seconds >= link_seconds) return "waiting for slower workers";
  return server_link_limits ? "the links of servers" : "the links of workers";
}

namespace {

// A sum by quorum is no part of a step: a step may wait for a sum, but a late sum waits for no
// step.
Pace PaceOf(const Facts& facts, const Strategy& strategy, double rest, Pacer* pacer) {
  Waits waits;
  waits.bound = strategy.lockstep() ? absl::optional<int>(0) : strategy.bound;
  if (strategy.dense != Table::REPLICATED) return pacer->Of(waits, rest);
  if (strategy.every > 1 || strategy.quorum.has_value()) waits.every = strategy.every;
  if (!strategy.quorum.has_value()) return pacer->Of(waits, rest);
  waits.quorum = strategy.quorum;
  return pacer->Of(waits, rest, OfAllReduce(facts, strategy.algorithm).Seconds(facts));
}

}  // namespace

Estimate EstimateStrategy(const Facts& facts, const Strategy& strategy, Pacer* pacer) {
  const bool by_quorum = strategy.dense == Table::REPLICATED && strategy.quorum.has_value();
  // The number of sums by quorum depends on the pace, so their traffic comes later.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  StepTraffic traffic = TrafficOf(facts, strategy, by_quorum ? kNever : strategy.every);
  RestOfStep rest = Rest(facts, strategy, traffic);
  const Pace pace = PaceOf(facts, strategy, rest.serial, pacer);
  if (by_quorum) {
    // The drawn steps may end before the first sum.
    const double steps_a_sum = pace.sums > 0 ? 1 / pace.sums : strategy.every;
    traffic = TrafficOf(facts, strategy, steps_a_sum);
    rest = Rest(facts, strategy, traffic);
  }
  Estimate out;
  out.strategy = strategy;
  const double workers = facts.workers;
  double steps = pace.steps_per_second;
  if (rest.least > 0 && steps > workers / rest.least) steps = workers / rest.least;
  out.samples_per_second = steps * facts.batch;
  out.compute_seconds = MeanCompute(facts);
  const double step_seconds = steps > 0 ? workers / steps : 0;
  out.link_seconds = std::min(std::max(rest.serial, rest.least - out.compute_seconds),
                              std::max(0.0, step_seconds - out.compute_seconds));
  const double waited = step_seconds - out.compute_seconds - out.link_seconds;
  out.wait_seconds = waited > 1e-9 ? waited : 0;  // less is rounding
  out.server_link_limits = rest.servers;
  for (const HostTraffic* host : traffic.hosts()) {
    const Traffic all = host->all();
    out.at_once_seconds = std::max(out.at_once_seconds, all.AtOnce(facts));
    out.one_way_seconds = std::max(out.one_way_seconds, all.OneWay(facts));
    const double bytes = std::max(all.out, all.in);
    if (host->works) out.worker_bytes = std::max(out.worker_bytes, bytes);
    if (host == &traffic.server) out.server_bytes = bytes;
  }
  out.bytes_a_sample = traffic.sent / facts.batch;  // all that is sent is received
  AddMemory(facts, strategy, &out);
  return out;
}

Estimate EstimateStrategy(const Facts& facts, const Strategy& strategy) {
  Pacer pacer(facts);
  return EstimateStrategy(facts, strategy, &pacer);
}

std::vector<Strategy> StrategiesOf(const Facts& facts) {
  std::set<int> servers = {1, (facts.workers + 1) / 2, facts.workers};
  if (facts.servers > 0) servers.insert(facts.servers);
  std::vector<Strategy> strategies;
  const auto add = [&](int m, bool beside) {
    for (const absl::optional<int> bound :
         {absl::optional<int>(0), absl::optional<int>(kBound), absl::optional<int>()}) {
      if (facts.dense_parameters > 0) {
        strategies.push_back({Table::SERVERS, Table::SERVERS, Dense::RING, m, bound, beside});
      }
      if (bound == kBound) continue;  // with an allreduce the bound is never reached: as ASP
      for (const Dense::Algorithm algorithm : kAlgorithms) {
        strategies.push_back({Table::SERVERS, Table::REPLICATED, algorithm, m, bound, beside});
      }
    }
  };
  for (const int m : servers) {
    add(m, false);
    if (facts.bytes_per_second > 0 && m <= facts.workers) add(m, true);
  }
  for (const Table::Placement place : {Table::SHARDED, Table::REPLICATED}) {
    for (const Dense::Algorithm algorithm : kAlgorithms) {
      strategies.push_back({place, Table::REPLICATED, algorithm, 0, 0});
    }
  }
  return strategies;
}

namespace {

// EASGD keeps its centre. LOCAL_SGD with an outer step keeps the common model and its velocity.
// Error feedback keeps the last updates.
int KeptModels(const job::ResolvedJob& plan) {
  const Dense::Synchroniser synchroniser = plan.job.dense().synchroniser();
  if (synchroniser == Dense::EASGD) return 1;
  if (synchroniser == Dense::SERVERS) return plan.job.dense().optimizer().error_feedback();
  return synchroniser == Dense::LOCAL_SGD && !worker::LocalSgd::OuterOf(plan).is_average() ? 2 : 0;
}

}  // namespace

Strategy StrategyOf(const job::ResolvedJob& plan, bool colocate_servers) {
  Strategy strategy;
  strategy.servers = plan.server_processes();
  strategy.beside = colocate_servers && strategy.servers > 0;
  strategy.dense = plan.dense_table >= 0 ? Table::SERVERS : Table::REPLICATED;
  // The strictest policy decides how far a worker may be ahead.
  int64_t bound = policies::kUnbounded;
  std::set<Table::Placement> places;
  for (const job::TablePlan& table : plan.tables) {
    if (table.store) continue;
    bound = std::min(bound, plan.groups[table.group].properties.clock_bound);
    if (!table.dense) places.insert(table.placement);
  }
  if (!places.empty()) strategy.tables = *places.begin();  // servers before workers
  strategy.mixed = places.size() > 1;
  strategy.bound = bound == policies::kUnbounded ? absl::optional<int>() : static_cast<int>(bound);
  const Dense& dense = plan.job.dense();
  if (dense.synchroniser() == Dense::LOCAL_SGD || dense.synchroniser() == Dense::EASGD) {
    strategy.every = static_cast<int>(dense.local_steps().sync_every());
  }
  if (job::SumsByQuorum(plan.job)) {
    strategy.quorum = worker::QuorumLeader::OptionsOf(plan);
  } else {
    strategy.kept_models = KeptModels(plan);
  }
  if (IsModelled(dense.algorithm())) strategy.algorithm = dense.algorithm();
  return strategy;
}

Facts WithWorkers(const Facts& facts, int workers) {
  Facts out = facts;
  out.workers = workers;
  out.step_seconds.clear();
  for (int r = 0; r < workers; ++r) {
    std::vector<double> steps = facts.step_seconds[static_cast<size_t>(r % facts.workers)];
    // Rotate, so that copies of a worker do not have the same time at the same step.
    const size_t by = static_cast<size_t>(r / facts.workers) * 37 % steps.size();
    std::rotate(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(by), steps.end());
    out.step_seconds.push_back(std::move(steps));
  }
  return out;
}

Facts WithSize(const Facts& facts, double times) {
  Facts out = facts;
  out.dense_parameters *= times;
  out.dense_codec_bytes *= times;
  out.bytes_per_second *= times;
  return out;
}

std::vector<Estimate> EstimateAll(const Facts& facts, const std::vector<Strategy>& strategies,
                                  Pacer* pacer) {
  std::vector<Estimate> out;
  for (const Strategy& strategy : strategies) {
    out.push_back(EstimateStrategy(facts, strategy, pacer));
  }
  std::stable_sort(out.begin(), out.end(), [](const Estimate& a, const Estimate& b) {
    return a.samples_per_second > b.samples_per_second;
  });
  return out;
}

}  // namespace tandem::plan
