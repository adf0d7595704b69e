#include "plan/estimate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"

namespace tandem::plan {
namespace {

constexpr double kKeyBytes = 8, kFloatBytes = 4;
constexpr int kBound = 4;               // of the bounded way
constexpr double kLeastSeconds = 1e-9;  // of all steps, where nothing takes any time

// What one process sends and receives a step, and how many messages one after another.
struct Traffic {
  double out = 0, in = 0, messages = 0;

  // That the link is taken.
  double OnLink(const Facts& facts) const {
    return facts.bytes_per_second > 0 ? std::max(out, in) / facts.bytes_per_second : 0;
  }
  double Seconds(const Facts& facts) const {
    return OnLink(facts) + messages * facts.latency_seconds;
  }
};
Traffic operator+(const Traffic& a, const Traffic& b) {
  return {a.out + b.out, a.in + b.in, a.messages + b.messages};
}

double DenseBytes(const Facts& facts) { return facts.dense_parameters * kFloatBytes; }

// Of all tables in one step of one worker: ids, rows, and gradients with their ids.
struct Touched {
  double keys = 0, rows = 0, gradients = 0;
};
Touched TouchedBy(const Facts& facts) {
  Touched out;
  for (const TableFacts& table : facts.tables) {
    const double row = table.dim * kFloatBytes;
    out.keys += table.rows_a_step * kKeyBytes;
    out.rows += table.rows_a_step * row;
    out.gradients += table.rows_a_step * (kKeyBytes + row);
  }
  return out;
}

// An allreduce of the dense gradient, on the link of the busiest worker.
Traffic OfAllReduce(const Facts& facts, AllReduce algorithm) {
  const double p = facts.workers, bytes = DenseBytes(facts);
  if (p == 1) return {};
  const double share = 2 * (p - 1) / p * bytes, levels = std::ceil(std::log2(p));
  switch (algorithm) {
    case AllReduce::kRing:
      return {share, share, 2 * (p - 1)};
    case AllReduce::kDirect:  // independent messages, twice
      return {share, share, 2};
    case AllReduce::kTree: {  // of two trees: a rank inside one of them is a leaf of the other
      const double most = p == 2 ? bytes : 2 * bytes;
      return {most, most, 2 * levels};
    }
    case AllReduce::kNaive:  // rank 0 receives all, then sends all
      return {2 * (p - 1) * bytes, 0, 2};
  }
  return {};
}

// What is asked for before a step computes, and what is sent after it; of a worker and of the servers'
// side of it, which is that of all workers over all servers.
struct StepTraffic {
  Traffic read, write, server_read, server_write, allreduce;
  double sent = 0;  // to and from servers, of a worker: over links, both directions
};

// What a step has to do with servers: bytes that a worker asks in, is answered and pushes.
struct Served {
  double asked = 0, answered = 0, pushed = 0;
};

void AddServers(const Facts& facts, const Way& way, const Served& step, StepTraffic* out) {
  const double p = facts.workers, m = way.servers;
  const double all = step.asked + step.answered + step.pushed;
  if (!way.beside) {
    out->read = out->read + Traffic{step.asked, step.answered, 2};
    out->write = out->write + Traffic{step.pushed, 0, 1};
    out->server_read = {step.answered * p / m, step.asked * p / m, 0};
    out->server_write = {0, step.pushed * p / m, 0};
    out->sent = all;
    return;
  }
  // The link of a host with both: what its worker has to do with the other servers, and its server with
  // the other workers.
  const double elsewhere = (m - 1) / m, served = (p - 1) / m;
  out->server_read = {step.asked * elsewhere + step.answered * served,
                      step.answered * elsewhere + step.asked * served, p > 1 ? 2.0 : 0.0};
  out->server_write = {step.pushed * elsewhere, step.pushed * served, p > 1 ? 1.0 : 0.0};
  if (m < p) {  // there are hosts with a worker alone
    out->read = out->read + Traffic{step.asked, step.answered, 2};
    out->write = out->write + Traffic{step.pushed, 0, 1};
  }
  out->sent = all * (p - 1) / p;
}

StepTraffic OfWay(const Facts& facts, const Way& way) {
  const double p = facts.workers, others = (p - 1) / p;
  const Touched touched = TouchedBy(facts);
  StepTraffic out;
  Served served;
  switch (way.tables) {
    case Place::kServers:
      served = {touched.keys, touched.rows, touched.gradients};
      break;
    case Place::kSharded:
      if (p == 1) break;
      // Each is asked for as much as it asks for.
      out.read = {(touched.keys + touched.rows) * others, (touched.keys + touched.rows) * others,
                  2};
      out.write = {touched.gradients * others, touched.gradients * others, 1};
      break;
    case Place::kReplicated:
      if (p == 1) break;
      out.write = {touched.gradients * (p - 1), touched.gradients * (p - 1), 1};
      break;
  }
  if (way.dense == Place::kServers) {
    served.answered += DenseBytes(facts);
    served.pushed += DenseBytes(facts);
  } else {
    out.allreduce = OfAllReduce(facts, way.algorithm);
  }
  if (way.uses_servers()) AddServers(facts, way, served, &out);
  return out;
}

// Beside what a step computes, if nothing of it overlaps; and the least that links leave of it if all
// does.
struct RestOfStep {
  double serial = 0, least = 0;
  bool servers = false;  // their links are the narrower ones
};

RestOfStep Rest(const Facts& facts, const Way& way, const StepTraffic& traffic) {
  const double read = std::max(traffic.read.Seconds(facts), traffic.server_read.Seconds(facts));
  const double write = std::max(traffic.write.Seconds(facts), traffic.server_write.Seconds(facts));
  const double reduce = traffic.allreduce.Seconds(facts);
  // A server that is beside a worker shares the link of its allreduce.
  const Traffic beside = way.beside && way.uses_servers() ? traffic.allreduce : Traffic{};
  const double worker = (traffic.read + traffic.write + traffic.allreduce).OnLink(facts);
  const double server = (traffic.server_read + traffic.server_write + beside).OnLink(facts);
  RestOfStep rest;
  rest.servers = server > worker;
  if (way.bound == 0 || !way.uses_servers()) {
    // The next read waits for what all have sent. The allreduce goes on beside the push, on one link.
    rest.serial = read + std::max({write, reduce, (traffic.write + traffic.allreduce).OnLink(facts),
                                   (traffic.server_write + beside).OnLink(facts)});
    rest.serial = std::max({rest.serial, worker, server});
  } else {
    // Nobody waits for a push, and a worker that reads ahead for no read.
    rest.serial = reduce + (facts.depth > 0 ? 0 : read);
    rest.least = std::max(worker, server);
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

void AddMemory(const Facts& facts, const Way& way, Estimate* out) {
  double tables = 0;
  for (const TableFacts& table : facts.tables) tables += table.rows * table.bytes_a_row;
  const double dense = facts.dense_parameters * facts.dense_bytes_a_parameter;
  if (way.tables == Place::kServers) out->server_memory += tables / way.servers;
  if (way.tables == Place::kSharded) out->worker_memory += tables / facts.workers;
  if (way.tables == Place::kReplicated) out->worker_memory += tables;
  if (way.dense == Place::kServers) out->server_memory += dense / way.servers;
  out->worker_memory += way.dense == Place::kServers ? DenseBytes(facts) : dense;
}

const char* NameOf(AllReduce algorithm) {
  switch (algorithm) {
    case AllReduce::kRing:
      return "ring";
    case AllReduce::kDirect:
      return "direct";
    case AllReduce::kTree:
      return "tree";
    case AllReduce::kNaive:
      return "naive";
  }
  return "";
}

const char* FieldOf(AllReduce algorithm) {
  switch (algorithm) {
    case AllReduce::kRing:
      return "RING";
    case AllReduce::kDirect:
      return "DIRECT";
    case AllReduce::kTree:
      return "DOUBLE_TREE";
    case AllReduce::kNaive:
      return "NAIVE";
  }
  return "";
}

std::string PolicyText(absl::optional<int> bound) {
  if (!bound.has_value()) return "ASP";
  return *bound == 0 ? "BSP" : absl::StrCat("SSP(", *bound, ")");
}

std::string ServersOf(const Way& way) {
  const char* const where = way.beside         ? " beside, "
                            : way.servers == 1 ? " server, "
                                               : " servers, ";
  return absl::StrCat(way.servers, where, PolicyText(way.bound));
}

}  // namespace

std::string Way::tables_name() const {
  if (tables == Place::kSharded) return "sharded";
  if (tables == Place::kReplicated) return "replicated";
  return ServersOf(*this);
}

std::string Way::dense_name() const {
  if (dense == Place::kReplicated) return absl::StrCat("allreduce, ", NameOf(algorithm));
  return ServersOf(*this);
}

std::vector<std::pair<std::string, std::string>> Way::Overrides(const Job& job) const {
  std::vector<std::pair<std::string, std::string>> out;
  out.emplace_back("cluster.servers", absl::StrCat(uses_servers() ? servers : 0));
  const absl::optional<int> at = uses_servers() ? bound : absl::optional<int>(0);
  const std::string policy = !at.has_value() ? "{kind: ASP}"
                             : *at == 0      ? "{kind: BSP}"
                                             : absl::StrCat("{kind: SSP bound: ", *at, "}");
  out.emplace_back("policy", policy);
  const char* const place = tables == Place::kSharded      ? "SHARDED"
                            : tables == Place::kReplicated ? "REPLICATED"
                                                           : "SERVERS";
  for (int t = 0; t < job.table_size(); ++t) {
    const Table& table = job.table(t);
    if (table.policy().kind() == Policy::STORE) continue;  // no part of the training
    const std::string path = absl::StrCat("table[", t, "].");
    if (table.has_policy()) out.emplace_back(path + "policy", policy);
    if (tables != Place::kServers || table.synchroniser() > Table::SERVERS) {
      out.emplace_back(path + "synchroniser", place);
    }
  }
  if (dense == Place::kServers) {
    out.emplace_back("dense.synchroniser", "SERVERS");
    if (job.dense().has_policy()) out.emplace_back("dense.policy", policy);
  } else {
    out.emplace_back("dense.synchroniser", "ALLREDUCE");
    out.emplace_back("dense.algorithm", FieldOf(algorithm));
  }
  return out;
}

std::string Estimate::limit() const {
  if (compute_seconds >= link_seconds && compute_seconds >= wait_seconds) return "computing";
  if (wait_seconds >= link_seconds) return "waiting for slower workers";
  return server_link_limits ? "the links of servers" : "the links of workers";
}

double StepsPerSecond(const Facts& facts, absl::optional<int> bound, double rest) {
  const size_t workers = facts.step_seconds.size();
  const size_t steps = workers == 0 ? 0 : facts.step_seconds[0].size();
  if (steps == 0) return 0;
  if (!bound.has_value()) {
    double sum = 0;
    for (const std::vector<double>& of : facts.step_seconds) {
      const double took = std::accumulate(of.begin(), of.end(), rest * static_cast<double>(steps));
      sum += static_cast<double>(steps) / std::max(took, kLeastSeconds);
    }
    return sum;
  }
  std::vector<double> end(workers, 0);
  std::vector<double> slowest;  // by step: when the last worker had ended it
  const auto ahead = static_cast<size_t>(*bound);
  for (size_t k = 0; k < steps; ++k) {
    const double released = k >= 1 + ahead ? slowest[k - 1 - ahead] : 0;
    for (size_t r = 0; r < workers; ++r) {
      end[r] = std::max(end[r], released) + facts.step_seconds[r][k] + rest;
    }
    slowest.push_back(*std::max_element(end.begin(), end.end()));
  }
  return static_cast<double>(workers * steps) / std::max(slowest.back(), kLeastSeconds);
}

Estimate EstimateWay(const Facts& facts, const Way& way) {
  const StepTraffic traffic = OfWay(facts, way);
  const RestOfStep rest = Rest(facts, way, traffic);
  Estimate out;
  out.way = way;
  const absl::optional<int> bound = way.lockstep() ? absl::optional<int>(0) : way.bound;
  const double workers = facts.workers;
  double steps = StepsPerSecond(facts, bound, rest.serial);
  if (rest.least > 0 && steps > workers / rest.least) steps = workers / rest.least;
  out.samples_per_second = steps * facts.batch;
  out.compute_seconds = MeanCompute(facts);
  const double step_seconds = steps > 0 ? workers / steps : 0;
  out.link_seconds = std::min(std::max(rest.serial, rest.least - out.compute_seconds),
                              std::max(0.0, step_seconds - out.compute_seconds));
  const double waited = step_seconds - out.compute_seconds - out.link_seconds;
  out.wait_seconds = waited > 1e-9 ? waited : 0;  // less is rounding
  out.server_link_limits = rest.servers;
  Traffic worker = traffic.read + traffic.write + traffic.allreduce;
  Traffic server = traffic.server_read + traffic.server_write;
  if (way.beside && way.uses_servers()) {
    server = server + traffic.allreduce;
    if (way.servers == facts.workers) worker = server;  // every host has both
  }
  out.worker_bytes = std::max(worker.out, worker.in);
  out.server_bytes = std::max(server.out, server.in);
  // All that is sent is received: what workers send each, and servers to them. Whatever the algorithm,
  // an allreduce sends each gradient but one to where it is added, and the sum back to all but one.
  const double p = workers;
  const double reduced = way.dense == Place::kReplicated ? 2 * (p - 1) / p * DenseBytes(facts) : 0;
  const double among = way.uses_servers() ? traffic.sent : traffic.read.out + traffic.write.out;
  const double sent = among + reduced;
  out.bytes_a_sample = sent / facts.batch;
  AddMemory(facts, way, &out);
  return out;
}

std::vector<Way> WaysOf(const Facts& facts) {
  std::set<int> servers = {1, (facts.workers + 1) / 2, facts.workers};
  if (facts.servers > 0) servers.insert(facts.servers);
  std::vector<Way> ways;
  constexpr AllReduce kAlgorithms[] = {AllReduce::kRing, AllReduce::kDirect, AllReduce::kTree,
                                       AllReduce::kNaive};
  const auto add = [&](int m, bool beside) {
    for (const absl::optional<int> bound :
         {absl::optional<int>(0), absl::optional<int>(kBound), absl::optional<int>()}) {
      if (facts.dense_parameters > 0) {
        ways.push_back({Place::kServers, Place::kServers, AllReduce::kRing, m, bound, beside});
      }
      if (bound == kBound) continue;  // beside an allreduce it is ASP with a bound that never holds
      for (const AllReduce algorithm : kAlgorithms) {
        ways.push_back({Place::kServers, Place::kReplicated, algorithm, m, bound, beside});
      }
    }
  };
  for (const int m : servers) {
    add(m, false);
    if (facts.bytes_per_second > 0 && m <= facts.workers) add(m, true);
  }
  for (const Place place : {Place::kSharded, Place::kReplicated}) {
    for (const AllReduce algorithm : kAlgorithms) {
      ways.push_back({place, Place::kReplicated, algorithm, 0, 0});
    }
  }
  return ways;
}

Way WayOf(const job::JobPlan& plan, bool servers_beside_workers) {
  Way way;
  way.servers = plan.server_processes();
  way.beside = servers_beside_workers && way.servers > 0;
  way.dense = plan.dense_table >= 0 ? Place::kServers : Place::kReplicated;
  const auto policy_of = [&plan](const job::TablePlan& table) -> absl::optional<int> {
    const Policy& policy = plan.groups[table.group].policy;
    if (policy.kind() == Policy::BSP) return 0;
    return policy.kind() == Policy::SSP ? absl::optional<int>(policy.bound()) : absl::nullopt;
  };
  for (const job::TablePlan& table : plan.tables) {
    if (table.store) continue;
    way.bound = policy_of(table);
    if (table.dense) continue;
    if (table.synchroniser == Table::SHARDED) way.tables = Place::kSharded;
    if (table.synchroniser == Table::REPLICATED) way.tables = Place::kReplicated;
  }
  switch (plan.job.dense().algorithm()) {
    case Dense::DIRECT:
      way.algorithm = AllReduce::kDirect;
      break;
    case Dense::DOUBLE_TREE:
      way.algorithm = AllReduce::kTree;
      break;
    case Dense::NAIVE:
      way.algorithm = AllReduce::kNaive;
      break;
    default:
      way.algorithm = AllReduce::kRing;
  }
  return way;
}

Facts WithWorkers(const Facts& facts, int workers) {
  Facts out = facts;
  out.workers = workers;
  out.step_seconds.clear();
  for (int r = 0; r < workers; ++r) {
    std::vector<double> steps = facts.step_seconds[static_cast<size_t>(r % facts.workers)];
    // Not the same draws at the same step.
    const size_t by = static_cast<size_t>(r / facts.workers) * 37 % steps.size();
    std::rotate(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(by), steps.end());
    out.step_seconds.push_back(std::move(steps));
  }
  return out;
}

std::vector<Estimate> EstimateAll(const Facts& facts, const std::vector<Way>& ways) {
  std::vector<Estimate> out;
  for (const Way& way : ways) out.push_back(EstimateWay(facts, way));
  std::stable_sort(out.begin(), out.end(), [](const Estimate& a, const Estimate& b) {
    return a.samples_per_second > b.samples_per_second;
  });
  return out;
}

}  // namespace tandem::plan
