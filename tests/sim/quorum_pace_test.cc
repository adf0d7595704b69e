// What a plan says of sums and sync rounds that do not wait for all (tools/plan/quorum_pace.h)
// beside simulated worlds, where workers run: the same steps, drawn from the same seed.
#include "tools/plan/quorum_pace.h"

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "data/service_trace.h"
#include "gtest/gtest.h"
#include "tests/sim/sim_job.h"
#include "tests/test_seed.h"
#include "tools/plan/estimate.h"

namespace tandem {
namespace {

TEST(QuorumPaceTest, IsThatOfASimulatedWorld) {
  constexpr int kBatches = 400;
  const std::string sync_rounds =
      "synchroniser: LOCAL_SGD quorum_bound: 2 local_steps { sync_every: 4 quorum: 3 ";
  for (const std::string& dense :
       {std::string("synchroniser: ALLREDUCE quorum: SOLO quorum_bound: 4 "),
        std::string("synchroniser: ALLREDUCE quorum: MAJORITY quorum_bound: 4 "),
        sync_rounds + "} ", sync_rounds + "grace_seconds: 0.01 } "}) {
    SimJob job;
    job.workers = 6;
    job.policy = "kind: ASP";
    job.slow_workers = kExponential;
    job.dense = dense;
    CheckedWorldOptions options = EvenWorld(job, kBatches, TestSeed());
    options.service_seed = TestSeed();
    options.network.delay = options.network.jitter = absl::Microseconds(20);
    options.fetch = absl::Microseconds(1);
    options.evaluate = false;
    SimRun run(job, options);
    ASSERT_TRUE(run.ok()) << dense;
    plan::Facts facts;
    facts.workers = job.workers;
    for (int rank = 0; rank < job.workers; ++rank) {
      const auto times = data::OpenStepTimes(run.plan, TestSeed(), rank);
      ASSERT_TRUE(times.ok());
      std::vector<double>& steps = facts.step_seconds.emplace_back();
      for (int k = 0; k < kBatches; ++k) steps.push_back(absl::ToDoubleSeconds(times->Of(k)));
    }
    const plan::Strategy strategy = plan::StrategyOf(run.plan, /*colocate_servers=*/false);
    ASSERT_TRUE(strategy.quorum.has_value()) << dense;
    const plan::QuorumPace pace =
        plan::PaceOf(facts, *strategy.quorum, {strategy.every, absl::nullopt, 0, 0});
    const double steps = kBatches * job.workers;
    const double simulated = steps / absl::ToDoubleSeconds(run.world->elapsed());
    EXPECT_NEAR(pace.steps_per_second, simulated, 0.1 * simulated) << dense;
    EXPECT_LT(pace.sums * strategy.every, 1.0001) << dense;
  }
}

}  // namespace
}  // namespace tandem
