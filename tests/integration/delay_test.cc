// What a delay of known length costs on a real model: with everything 16 steps late training goes
// nowhere, with the tables alone 16 steps late, and the dense layers in step, hardly anything is
// lost, untuned. A small edition of configs/studies/delay_{momentum,adam}.textproto;
// docs/STUDIES.md has the large one.
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "data/datagen.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using Settings = std::vector<std::string>;

class DelayTest : public ::testing::Test {
 protected:
  DelayTest() {
    data::DatagenOptions options;
    options.train = folder_.File("train.tsv");
    options.test = folder_.File("test.tsv");
    options.train_rows = 40'000;
    options.test_rows = 10'000;
    options.seed = TestSeed();
    std::ostringstream log;
    TANDEM_CHECK_OK(data::GenerateCriteo(options, log));
  }

  // AUC on test rows.
  double Auc(const std::string& name, const Settings& optimizers, const Settings& delay) {
    std::vector<std::string> argv = {ProgramPath("tandem"),
                                     "simulate",
                                     SourcePath("configs/quickstart.textproto"),
                                     "--no-checkpoint",
                                     "--out",
                                     folder_.File(name),
                                     "--set",
                                     "data.train=" + folder_.File("train.tsv"),
                                     "--set",
                                     "data.test=" + folder_.File("test.tsv")};
    const auto set = [&](const Settings& settings) {
      for (const std::string& text : settings) argv.insert(argv.end(), {"--set", text});
    };
    set({"cluster.workers=1", "cluster.servers=1", "train.prefetch_steps=0",
         "train.batch_size=128"});
    set(optimizers);
    set(delay);
    const RunResult run = RunProgram(argv);
    EXPECT_TRUE(run.ok()) << run.DebugString();
    if (!run.ok()) return 0;
    return nlohmann::json::parse(ReadTextFile(folder_.File(name) + "/summary.json"))["eval"]["auc"];
  }

  void ExpectThatTablesBearIt(const Settings& optimizers) {
    const Settings late = {"policy={kind: FIXED_DELAY delay: 16}"};
    const double together = Auc("together", optimizers, {"policy={kind: BSP}"});
    const double tables = Auc("tables", optimizers, late);
    Settings all_late = late;
    all_late.push_back("dense.synchroniser=SERVERS");
    const double all = Auc("all", optimizers, all_late);
    EXPECT_GT(together, 0.69);
    EXPECT_GE(tables, 0.975 * together);
    EXPECT_LE(tables, together) << "a delay gains nothing";
    EXPECT_LT(all, 0.85 * together) << "that cannot be said of dense layers";
    RecordProperty("auc", std::to_string(together) + ", tables late " + std::to_string(tables) +
                              ", all late " + std::to_string(all));
  }

  const TemporaryFolder folder_;
};

TEST_F(DelayTest, TablesBearWhatDenseLayersDoNotUnderMomentum) {
  ExpectThatTablesBearIt({"table[0].optimizer={kind: MOMENTUM learning_rate: 0.05 momentum: 0.9}",
                          "dense.optimizer={kind: MOMENTUM learning_rate: 0.01 momentum: 0.9}"});
}

TEST_F(DelayTest, TablesBearWhatDenseLayersDoNotUnderAdam) {
  ExpectThatTablesBearIt({"table[0].optimizer={kind: ADAM learning_rate: 0.005}",
                          "dense.optimizer={kind: ADAM learning_rate: 0.002}"});
}

}  // namespace
}  // namespace tandem
