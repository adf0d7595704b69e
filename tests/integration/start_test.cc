// A job that starts from a checkpoint means by its numbers what that model meant by them: its means
// and deviations, its labels; or it is told the difference and does not start. What a job begins
// with and leaves behind belongs to all its nodes, started by hand or not.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "cli/launch/start_flags.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "node/role_flags.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr absl::Duration kStart = absl::Seconds(60);

constexpr char kJob[] = R"(
cluster { workers: 2 servers: 2 }
reproducible: true
data {
  format: DELIMITED train: "FOLDER/train.csv" test: "FOLDER/test.csv"
  columns { delimiter: "," header: true label: "taken" positive: "yes"
            numeric: ["age", "visits"] categorical: ["city", "offer"] }
}
table { name: "cities" dim: 4 field: "city" optimizer { kind: ADAGRAD learning_rate: 0.1 } }
table { name: "offers" dim: 4 field: "offer" optimizer { kind: ADAGRAD learning_rate: 0.1 } }
dense { optimizer { kind: ADAM learning_rate: 0.01 } }
model { mlp { hidden: [8] } }
train { batch_size: 8 epochs: 3 }
limits { report_interval_seconds: 0.1 }
)";

// Rows that can be learned: young people of the first cities take the offer. `shift` moves the
// ages.
std::string Rows(int rows, int shift) {
  std::string text = "age,city,visits,offer,taken\n";
  for (int i = 0; i < rows; ++i) {
    const int age = 20 + i * 7 % 50, city = i * 5 % 6;
    absl::StrAppend(&text, age + shift, ",c", city, ",", i % 13, ",o", i % 4, ",",
                    age + 5 * city < 50 ? "yes" : "no", "\n");
  }
  return text;
}

class StartTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = std::make_unique<TemporaryFolder>();
    WriteTextFile(folder_->File("train.csv"), Rows(200, 0));
    WriteTextFile(folder_->File("test.csv"), Rows(100, 0));
    WriteTextFile(folder_->File("shifted.csv"), Rows(200, 40));  // for other means
    std::string job = kJob;
    for (size_t at; (at = job.find("FOLDER")) != std::string::npos;) {
      job.replace(at, 6, folder_->path());
    }
    WriteTextFile(folder_->File("job.textproto"), job);
    trained_ = RunJob(Arguments("trained", {}));
  }
  static void TearDownTestSuite() { folder_.reset(); }
  void SetUp() override { ASSERT_TRUE(trained_.ok()) << trained_.DebugString(); }

  static RunArguments Arguments(const std::string& name, const std::vector<std::string>& set) {
    RunArguments arguments;
    arguments.job = folder_->File("job.textproto");
    arguments.out = folder_->File(name);
    arguments.set = set;
    return arguments;
  }
  static std::string Model() { return folder_->File("trained/model"); }

  // A run of the trained model.
  static RunResult From(const std::string& name, const std::vector<std::string>& set,
                        const std::vector<std::string>& flags = {}) {
    RunArguments arguments = Arguments(name, set);
    arguments.init_from = Model();
    arguments.flags = flags;
    return RunJob(arguments);
  }

  static std::unique_ptr<TemporaryFolder> folder_;
  static RunResult trained_;
};
std::unique_ptr<TemporaryFolder> StartTest::folder_;
RunResult StartTest::trained_;

TEST_F(StartTest, ACheckpointSaysWhatItsNumbersMean) {
  const absl::StatusOr<server::CheckpointReader> saved = server::CheckpointReader::Open(Model());
  ASSERT_TRUE(saved.ok()) << saved.status();
  EXPECT_EQ(saved->manifest().model, "mlp { hidden: 8 }");
  EXPECT_THAT(saved->manifest().data, HasSubstr("deviation: "));
  EXPECT_THAT(saved->manifest().data, HasSubstr("negative: \"no\"")) << "found, not said";
}

// A folder of checkpoints may be of a job that goes on saving: all of a run reads the one that was
// found first.
TEST_F(StartTest, TheCheckpointIsFoundOnce) {
  node::RoleFlags role;
  role.job = folder_->File("trained/job.textproto");
  const absl::StatusOr<job::ResolvedJob> plan = node::PlanOf(role);
  ASSERT_TRUE(plan.ok()) << plan.status();
  cli::StartFlags flags;
  flags.init_from = Model();
  const cli::StartReport report = cli::CheckStart(flags, *plan);
  EXPECT_EQ(report.checkpoint, server::CheckpointReader::Open(Model())->folder());
  EXPECT_THAT(report.checkpoint, HasSubstr("/step-"));
}

// The means of the training rows of then, whatever the job names as training rows now.
TEST_F(StartTest, EvaluationStandardisesAsTheTrainingDid) {
  const RunResult run =
      From("evaluated", {"train.evaluate_only=true", "data.train=" + folder_->File("shifted.csv")});
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_EQ(run.Measured(), trained_.Measured());
  EXPECT_GT(run.summary["eval"]["auc"].get<double>(), 0.9);
  EXPECT_EQ(run.summary["steps"], 0);
  EXPECT_FALSE(fs::exists(folder_->File("evaluated/model"))) << "nothing new to checkpoint";
}

TEST_F(StartTest, ADifferenceIsALineAndNothingStarts) {
  const RunResult run =
      From("refused", {"model={mlp {hidden: [32]}}", "table[0].dim=8",
                       "data.columns.numeric=[\"visits\", \"age\"]", "train.evaluate_only=true"});
  EXPECT_EQ(run.exit_code, 2) << run.DebugString();
  const std::vector<std::string> lines = absl::StrSplit(run.output, '\n', absl::SkipEmpty());
  ASSERT_EQ(lines.size(), 3u) << run.output;
  for (const std::string& line : lines) {
    EXPECT_TRUE(absl::StartsWith(line, "tandem run: --init-from " + Model() + ": ")) << line;
  }
  EXPECT_FALSE(fs::exists(folder_->File("refused/logs")));
}

TEST_F(StartTest, EvaluationNeedsAWholeModel) {
  const RunResult none = RunJob(Arguments("none", {"train.evaluate_only=true"}));
  EXPECT_EQ(none.exit_code, 2) << none.DebugString();
  EXPECT_THAT(none.output,
              HasSubstr("no model to evaluate; hint: name a saved one with --init-from"));
  const RunResult some = From("some", {"train.evaluate_only=true"}, {"--only-tables", "cities"});
  EXPECT_EQ(some.exit_code, 2) << some.DebugString();
  EXPECT_THAT(some.output, HasSubstr("needs the whole model"));
}

TEST_F(StartTest, AnotherOptimizerBeginsItsSlotsAndSaysSo) {
  const RunResult run = From("adam", {"table[0].optimizer={kind: ADAM learning_rate: 0.01}",
                                      "dense.optimizer={kind: SGD learning_rate: 0.0001}",
                                      "table[1].optimizer={kind: SGD learning_rate: 0.0001}"});
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_THAT(run.output,
              HasSubstr("the optimizer of table cities is adam(table), the checkpoint's is "
                        "adagrad: the optimizer state starts afresh"));
  EXPECT_THAT(run.output, HasSubstr("the optimizer of the dense parameters is sgd"));
  EXPECT_GT(run.summary["eval"]["auc"].get<double>(), 0.9) << "what was learned is still there";
}

// The checkpoint has no row of the frozen table. The job gives them their values, from its seed.
TEST_F(StartTest, AFrozenTableIsEvaluatedWithItsSeedOnly) {
  const RunResult frozen = RunJob(Arguments("frozen", {"table[0].frozen=true", "seed=3"}));
  ASSERT_TRUE(frozen.ok()) << frozen.DebugString();
  RunArguments again = Arguments("frozen-again", {"train.evaluate_only=true", "seed=3"});
  again.init_from = folder_->File("frozen");
  const RunResult same = RunJob(again);
  ASSERT_TRUE(same.ok()) << same.DebugString();
  EXPECT_EQ(same.Measured(), frozen.Measured());
  again.set.back() = "seed=4";
  again.out = folder_->File("frozen-other");
  const RunResult other = RunJob(again);
  EXPECT_EQ(other.exit_code, 2) << other.DebugString();
  EXPECT_THAT(other.output, HasSubstr("seed is 4 in the job, 3 in the checkpoint; hint: use the "
                                      "checkpoint's seed, since the checkpoint has no row of "
                                      "cities"));
  const RunResult trained = From("seed-4", {"train.evaluate_only=true", "seed=4"});
  EXPECT_TRUE(trained.ok()) << trained.DebugString();
}

TEST_F(StartTest, SomeTablesAlone) {
  const RunResult run = From("wider", {"model={mlp {hidden: [32]}}", "train.max_steps=1"},
                             {"--only-tables", "cities,offers"});
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const RunResult wrong =
      From("wrong", {"model={mlp {hidden: [32]}}"}, {"--only-tables", "citties"});
  EXPECT_EQ(wrong.exit_code, 2) << wrong.DebugString();
  EXPECT_THAT(wrong.output, HasSubstr("no table citties"));
}

// Daemons close all three streams. A pipe between the processes of a run must not get such a
// number.
TEST_F(StartTest, WithoutStandardStreams) {
  const std::string job = folder_->File("job.textproto"), out = folder_->File("closed");
  const RunResult run =
      RunProgram({"/bin/sh", "-c",
                  absl::StrCat(ProgramPath("tandem"), " run ", job, " --out ", out,
                               " --set limits.startup_timeout_seconds=20 <&- >&- 2>&-")});
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const auto summary = nlohmann::json::parse(ReadTextFile(out + "/summary.json"));
  EXPECT_EQ(summary["eval"].dump(), trained_.summary["eval"].dump());
}

// ---- by hand ----------------------------------------------------------------------------------

TEST_F(StartTest, ARoleDoesNotTakeWhatBelongsToTheJob) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"tandem-server", "--init-from", Model()},
        {"tandem-worker", "--init-from", Model()},
        {"tandem-worker", "--checkpoint", folder_->File("half")}}) {
    std::vector<std::string> argv = {ProgramPath(more[0]), "--job", folder_->File("job.textproto"),
                                     "--scheduler", "tcp://127.0.0.1:1"};
    argv.insert(argv.end(), more.begin() + 1, more.end());
    const RunResult run = RunProgram(argv);
    EXPECT_EQ(run.exit_code, 2) << run.DebugString();
    EXPECT_THAT(run.output,
                HasSubstr(more[1] + ": belongs to the job; give it to tandem-scheduler"));
  }
}

// What differs is said by name, at the node that was refused.
TEST_F(StartTest, ANodeWithAnotherJobSaysWhatDiffers) {
  const std::string job = folder_->File("job.textproto");
  ChildProcess scheduler({ProgramPath("tandem-scheduler"), "--job", job},
                         folder_->File("scheduler.txt"), {});
  ASSERT_TRUE(scheduler.WaitForOutput("\"address\":", kStart)) << scheduler.Output();
  const std::string output = scheduler.Output();
  const size_t at = output.find("tcp://");
  const std::string address = output.substr(at, output.find('"', at) - at);
  const RunResult other = RunProgram({ProgramPath("tandem-server"), "--job", job, "--scheduler",
                                      address, "--set", "train.batch_size=17"});
  EXPECT_EQ(other.exit_code, 1) << other.DebugString();
  EXPECT_THAT(other.output,
              HasSubstr("the job files differ; changes from the scheduler's job to this "
                        "one: train.batch_size: "));
  EXPECT_THAT(other.output, HasSubstr(" -> 17"));
  scheduler.Signal(SIGTERM);
  EXPECT_TRUE(scheduler.WaitFor(kStart)) << scheduler.Output();
}

bool HasIpv6() {
  sockaddr_in6 at = {};
  at.sin6_family = AF_INET6;
  at.sin6_addr = in6addr_loopback;
  const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const bool has = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0;
  close(fd);
  return has;
}

// The scheduler alone is told; all nodes do it, with the bits that `tandem run` gives. They meet by
// IPv6 if there is any.
TEST_F(StartTest, TheSchedulerTellsAll) {
  const RunResult expected = From("on", {});
  ASSERT_TRUE(expected.ok()) << expected.DebugString();
  const std::string job = folder_->File("job.textproto"), out = folder_->File("by-hand");
  const std::string bind = HasIpv6() ? "tcp://[::1]:*" : "tcp://localhost:*";
  ChildProcess scheduler({ProgramPath("tandem-scheduler"), "--job", job, "--out", out,
                          "--init-from", Model(), "--bind", bind},
                         folder_->File("scheduler.txt"), {});
  ASSERT_TRUE(scheduler.WaitForOutput("\"address\":", kStart)) << scheduler.Output();
  const std::string address = ReadTextFile(out + "/address");
  std::vector<std::unique_ptr<ChildProcess>> nodes;
  for (int i = 0; i < 4; ++i) {
    nodes.push_back(std::make_unique<ChildProcess>(
        std::vector<std::string>{ProgramPath(i < 2 ? "tandem-server" : "tandem-worker"), "--job",
                                 job, "--scheduler", address.substr(0, address.find('\n')),
                                 "--bind", bind, "--index", absl::StrCat(i % 2)},
        folder_->File(absl::StrCat("node-", i, ".txt")),
        std::map<std::string, std::string>{{"OMP_NUM_THREADS", "1"}}));
  }
  ASSERT_TRUE(scheduler.WaitFor(kRunLimit)) << scheduler.Output();
  EXPECT_EQ(scheduler.exit_code(), 0) << scheduler.Output();
  for (const auto& node : nodes) {
    ASSERT_TRUE(node->WaitFor(kStart)) << node->Output();
    EXPECT_EQ(node->exit_code(), 0) << node->Output();
  }
  const auto summary = nlohmann::json::parse(ReadTextFile(out + "/summary.json"));
  EXPECT_EQ(summary["eval"].dump(), expected.summary["eval"].dump());
  const absl::StatusOr<server::CheckpointReader> saved =
      server::CheckpointReader::Open(out + "/model");
  ASSERT_TRUE(saved.ok()) << saved.status();
  const absl::StatusOr<server::CheckpointReader> same =
      server::CheckpointReader::Open(folder_->File("on/model"));
  EXPECT_EQ(saved->manifest().data, same->manifest().data) << "statistics of the first training";
}

}  // namespace
}  // namespace tandem
