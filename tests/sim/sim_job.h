// Jobs for the simulator, and a run that explains itself when it fails.
#ifndef TANDEM_TESTS_SIM_SIM_JOB_H_
#define TANDEM_TESTS_SIM_SIM_JOB_H_

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "job/job.h"
#include "tests/sim/proof/checked_world.h"

namespace tandem {

// Step times of a job, for SimJob::slow_workers.
inline constexpr char kExponential[] =
    "slow_workers { distribution: EXPONENTIAL mean_seconds: 0.01 } ";
inline constexpr char kLognormal[] =
    "slow_workers { distribution: LOGNORMAL mean_seconds: 0.01 sigma: 0.5 } ";
inline constexpr char kTransient[] =
    "slow_workers { mean_seconds: 0.01 slow_share: 0.05 slow_factor: 5 } ";
inline std::string FourTimesAsSlow(int rank) {
  return absl::StrCat("slow_workers { worker: ", rank, " mean_seconds: 0.04 } ");
}

// What the tests vary of a job; Text() is the job file.
struct SimJob {
  int workers = 3, servers = 2, shards_per_server = 1, ranges_per_shard = 3;
  std::string policy = "kind: BSP";  // of table "a", and of all without one of their own
  std::string second_policy;         // of table "b"
  std::string dense_policy;          // of dense parameters on servers
  bool second_table = true, second_frozen = false;
  std::string row_rules, second_row_rules;  // admission and eviction of tables "a" and "b"
  bool dense_on_servers = false;
  bool order = false;                // of updates is recorded
  std::string algorithm = "DIRECT";  // of an allreduce
  std::string dense;                 // of another synchroniser: all but the optimizer
  std::string optimizer = "kind: SGD learning_rate: 1";
  std::string dense_optimizer;  // more settings, of the optimizer of dense parameters alone
  // Optimizer::catch_up of tables "a" and "b".
  bool catch_up = false, second_catch_up = false;
  std::string placement;      // of tables; none: SERVERS
  std::string slow_workers;   // entries; none: each step takes WorldOptions::compute
  int patience = -1;          // of train.keep_best; -1: the job has none
  double report_seconds = 0;  // between two reports of a worker; 0: the default
  int depth = 0, epochs = 1, max_steps = 0, max_inflight_pushes = 4, evaluate_every = 0;

  std::string TableText(const std::string& name, int dim, const std::string& field,
                        const std::string& its_policy, bool frozen, const std::string& rules = "",
                        bool catches_up = false) const {
    return absl::StrCat("table { name: \"", name, "\" dim: ", dim, field, rules,
                        " initializer { kind: CONSTANT scale: 3 } optimizer { ", optimizer,
                        catches_up ? " catch_up: true } " : " } ",
                        its_policy.empty() ? "" : absl::StrCat("policy { ", its_policy, " } "),
                        placement.empty() ? "" : absl::StrCat("placement: ", placement, " "),
                        frozen ? "frozen: true " : "", "expected_rows: 64 }\n");
  }
  std::string DenseText() const {
    return absl::StrCat("dense { optimizer { ", optimizer, " ", dense_optimizer, " } ",
                        dense.empty() ? "synchroniser: " : "",
                        !dense.empty()     ? dense
                        : dense_on_servers ? "SERVERS "
                                           : absl::StrCat("ALLREDUCE algorithm: ", algorithm, " "),
                        dense_on_servers && !dense_policy.empty()
                            ? absl::StrCat("policy { ", dense_policy, " } ")
                            : "",
                        "}\n");
  }
  std::string Text() const {
    return absl::StrCat(
        "name: \"sim\" seed: 5\n", "cluster { workers: ", workers, " servers: ", servers,
        " shards_per_server: ", shards_per_server, " ranges_per_shard: ", ranges_per_shard, " }\n",
        "data { format: CRITEO train: \"none\"",
        patience < 0 ? "" : " validation { last_fraction: 0.5 }", " }\n",
        TableText("a", workers + 2, "", "", false, row_rules, catch_up),
        second_table ? TableText("b", workers + 3, " field: \"C1\"", second_policy, second_frozen,
                                 second_row_rules, second_catch_up)
                     : "",
        DenseText(), "policy { ", policy, " }\n", "model { mlp { hidden: [4] } }\n",
        "train { batch_size: 4 epochs: ", epochs, " max_steps: ", max_steps,
        " prefetch_steps: ", depth, " max_inflight_pushes: ", max_inflight_pushes,
        patience < 0 ? "" : absl::StrCat(" keep_best { patience: ", patience, " }"), " }\n",
        "evaluation { every_epochs: ", evaluate_every, " }\n",
        report_seconds > 0
            ? absl::StrCat("limits { report_interval_seconds: ", report_seconds, " }\n")
            : "",
        "staleness { record_updates: true record_order: ", order ? "true" : "false", " }\n",
        slow_workers.empty() ? "" : absl::StrCat("fault_injection { ", slow_workers, " }\n"));
  }
  job::ResolvedJob Plan() const {
    absl::StatusOr<Job> job = job::ParseJob(Text(), "sim.textproto", {});
    EXPECT_TRUE(job.ok()) << job.status() << "\n" << Text();
    absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*job);
    EXPECT_TRUE(plan.ok()) << plan.status() << "\n" << Text();
    return *plan;
  }
};

// A job and the world it runs in; they belong together because the world refers to the plan.
struct SimRun {
  SimRun(const SimJob& job, const CheckedWorldOptions& options) : plan(job.Plan()) {
    absl::StatusOr<std::unique_ptr<CheckedWorld>> made = CheckedWorld::New(plan, options);
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) world = *std::move(made);
    if (world != nullptr) status = world->Run();
    EXPECT_TRUE(status.ok()) << status << "\n"
                             << job.Text() << "last events:\n"
                             << (world == nullptr ? "" : world->TraceText());
  }
  bool ok() const { return status.ok(); }

  const job::ResolvedJob plan;
  std::unique_ptr<CheckedWorld> world;
  absl::Status status = absl::InternalError("not made");
};

// Options with as many batches for every worker.
inline CheckedWorldOptions EvenWorld(const SimJob& job, int batches, uint64_t seed) {
  CheckedWorldOptions options;
  options.seed = options.model.seed = seed;
  options.model.batches.assign(static_cast<size_t>(job.workers), batches);
  return options;
}

// How many seeds to try: `otherwise`, unless the environment says TANDEM_SIM_SEEDS=N; and never
// more than TANDEM_SIM_SEEDS_AT_MOST=N, for a build that is slow.
inline uint64_t SeedCount(uint64_t otherwise) {
  const char* const text = std::getenv("TANDEM_SIM_SEEDS");
  const char* const most = std::getenv("TANDEM_SIM_SEEDS_AT_MOST");
  const uint64_t seeds = text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
  return most == nullptr ? seeds : std::min<uint64_t>(seeds, std::strtoull(most, nullptr, 10));
}

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_SIM_JOB_H_
