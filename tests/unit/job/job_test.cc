// Jobs: what is refused and in which words, what overrides can do, what defaults come out, and that
// the plan is the same wherever it is computed.
#include "job/job.h"

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/hash.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "job/job_budget.h"
#include "job/resume_check.h"
#include "job/row_rules_check.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// The smallest job that stands; every test changes it by overrides or by text put in front of it.
constexpr char kJob[] = R"(name: "small"
seed: 7
cluster { workers: 2 servers: 2 }
data { format: CRITEO train: "train.tsv" }
table { name: "ids" dim: 4 }
dense { optimizer { learning_rate: 0.1 } }
model { dlrm { bottom: [8, 4] top: 8 } }
train { batch_size: 16 }
)";

Job MustParse(const std::string& text, const job::Overrides& overrides = {}) {
  const absl::StatusOr<Job> job = job::ParseJob(text, "job.textproto", overrides);
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? *job : Job();
}

job::ResolvedJob MustResolve(const job::Overrides& overrides) {
  const absl::StatusOr<job::ResolvedJob> plan = job::Resolve(MustParse(kJob, overrides));
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *plan : job::ResolvedJob();
}

// The one-line message with which a job is refused.
std::string Refusal(const std::string& text, const job::Overrides& overrides = {}) {
  const absl::StatusOr<Job> job = job::ParseJob(text, "job.textproto", overrides);
  EXPECT_FALSE(job.ok()) << "accepted:\n" << text;
  if (job.ok()) return "";
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  const std::string message(job.status().message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

std::string With(const std::string& from, const std::string& to) {
  const std::string text = absl::StrReplaceAll(kJob, {{from, to}});
  EXPECT_NE(text, kJob) << from;
  return text;
}

TEST(JobTextTest, AScheduleWithoutAnEndEndsWithTheJob) {
  const job::ResolvedJob plan =
      MustResolve({{"dense.optimizer.schedule", "{kind: COSINE}"}, {"train.max_steps", "100"}});
  for (const job::TablePlan& table : plan.tables) {  // which inherits it
    EXPECT_EQ(table.optimizer.schedule().total_samples(), 100 * 16 * 2) << table.name;
  }
}

TEST(JobTextTest, SmallestJobParses) {
  const Job job = MustParse(kJob);
  EXPECT_EQ(job.name(), "small");
  EXPECT_EQ(job.table(0).dim(), 4);
}

TEST(JobTextTest, UnknownFieldNamesPlaceAndNearestField) {
  EXPECT_EQ(Refusal(With("dim: 4", "dimm: 4")),
            "job.textproto:5:21: no field named \"dimm\" in tandem.Table; did you mean \"dim\"?");
  // The word itself is pointed at, also when it stands on a line of its own and after a tab.
  EXPECT_EQ(Refusal("# a comment\n\tsed: 3\n"),
            "job.textproto:2:2: no field named \"sed\" in tandem.Job; did you mean \"seed\"?");
}

// Two letters in the wrong order are one slip.
TEST(JobTextTest, SwappedLettersAreNear) {
  EXPECT_THAT(Refusal(With("batch_size: 16", "bacth_size: 16")),
              EndsWith("did you mean \"batch_size\"?"));
  EXPECT_THAT(Refusal(With("train {", "trian {")), EndsWith("did you mean \"train\"?"));
  EXPECT_THAT(Refusal(With("seed", "sede")), EndsWith("did you mean \"seed\"?"));
}

TEST(JobTextTest, AByteOrderMarkIsNoPartOfTheJob) {
  const Job job = MustParse(absl::StrCat("\xef\xbb\xbf", kJob));
  EXPECT_EQ(job.name(), "small");
}

TEST(JobTextTest, FieldOfAnotherMessageIsFound) {
  EXPECT_EQ(Refusal("workers: 2"),
            "job.textproto:1:1: no field named \"workers\" in tandem.Job; it is found at "
            "cluster.workers");
}

TEST(JobTextTest, FarFromEveryFieldListsThem) {
  EXPECT_THAT(
      Refusal(With("batch_size: 16", "zzzzzz: 16")),
      EndsWith("no field named \"zzzzzz\" in tandem.Train; its fields are batch_size, epochs, "
               "max_steps, prefetch_steps, max_inflight_pushes, evaluate_only, keep_best"));
}

TEST(JobTextTest, UnknownEnumValueListsTheAllowedOnes) {
  EXPECT_EQ(
      Refusal("policy { kind: SPP }"),
      "job.textproto:1:16: \"SPP\" is not a value of kind; one of BSP, SSP, ASP, FIXED_DELAY, "
      "BACKUP_WORKERS, STALENESS_AWARE, K_BATCH_ASYNC, GBA, DC_ASGD, DSSP, SYNC_SWITCH, KEY_VALUE, "
      "ESSP, COSINE_GATE, RINGMASTER, RINGLEADER, DELAY_ADAPTIVE, PLUGIN, RENNALA, "
      "ORDERED_MOMENTUM; did you mean SSP?");
  // The same field name in another message has other values.
  EXPECT_EQ(Refusal("dense { optimizer: < kind: SDG > }"),
            "job.textproto:1:28: \"SDG\" is not a value of kind; one of SGD, MOMENTUM, ADAGRAD, "
            "ROWWISE_ADAGRAD, ADAM, FTRL, AMSGRAD, RMSPROP, LION, PROGRAM, ADAMW, ROWWISE_ADAM, "
            "MUON; did you mean SGD?");
}

TEST(JobTextTest, ValuesInAnotherCaseAreNear) {
  EXPECT_THAT(Refusal("policy { kind: asp }"), EndsWith("; did you mean ASP?"));
  EXPECT_THAT(Refusal("dense { optimizer { kind: Rowwise_adagrad } }"),
              EndsWith("; did you mean ROWWISE_ADAGRAD?"));
  EXPECT_THAT(Refusal(With("batch_size: 16", "Batch: 16")),
              EndsWith("did you mean \"batch_size\"?"));
}

// Other notations, and what editors make of a job.
TEST(JobTextTest, OtherNotationsAreNamed) {
  const std::string protobuf = "a job or study is protobuf text, as in cluster { workers: 2 }";
  EXPECT_EQ(Refusal("{\"cluster\": {\"workers\": 2}}"),
            "job.textproto:1:1: this looks like JSON; " + protobuf);
  EXPECT_THAT(Refusal("\n[{}]"), HasSubstr("this looks like JSON; " + protobuf));
  EXPECT_THAT(Refusal("cluster:\n  workers: 2\n"), EndsWith(protobuf));
  EXPECT_THAT(Refusal("---\ncluster:\n"), EndsWith(protobuf));
  EXPECT_EQ(Refusal("name: \u201cx\u201d\n"),
            "job.textproto:1:7: typographic quotes (\u201c) around a text; write it in \"...\"");
  EXPECT_THAT(Refusal("name: \u2018x\u2019"), HasSubstr("typographic quotes"));
  EXPECT_THAT(Refusal("train {\n\u00a0 batch_size: 3 }"),
              HasSubstr("job.textproto:2:1: a no-break space"));
  EXPECT_THAT(Refusal("policy { kind: \"ASP\" }"), EndsWith("names stand without quotes"));
}

TEST(JobTextTest, BracesThatDoNotMatch) {
  EXPECT_EQ(Refusal("name: \"x\"\ntrain {\n  batch_size: 3\n"),
            "job.textproto:4:1: the text ends, but the { of line 2 is open; is its } missing?");
  EXPECT_THAT(Refusal("dense { optimizer {\n kind: SGD }\n"), HasSubstr("the { of line 1 is open"));
  EXPECT_EQ(Refusal("train { batch_size: 3 }\n}\n"),
            "job.textproto:2:1: there is no { that this } closes");
  EXPECT_THAT(Refusal("train {\n  batch_size: 3\ncluster { workers: 2 }\n"),
              EndsWith("it is found at cluster; or is a } missing, for the { of line 1?"));
}

TEST(OverrideTest, AValueForAFieldThatIsMadeOfFields) {
  const auto refusal = [](const std::string& path, const std::string& value) {
    return Refusal(kJob, {{path, value}});
  };
  EXPECT_EQ(refusal("policy", "asp"),
            "--set policy=asp: policy is made of fields; did you mean policy.kind=ASP?");
  EXPECT_THAT(refusal("table[0].optimizer", "ADAGARD"),
              EndsWith("did you mean table[0].optimizer.kind=ADAGRAD?"));
  EXPECT_THAT(refusal("train", "64"), HasSubstr("train is made of fields (batch_size, epochs"));
  EXPECT_THAT(refusal("train", "64"), EndsWith("as in train.batch_size=..."));
}

TEST(JobTextTest, OtherSyntaxErrorsSayWhere) {
  EXPECT_THAT(Refusal("train { batch_size: \"x\" }"),
              StartsWith("job.textproto:1:21: Expected integer"));
  EXPECT_THAT(Refusal("train {\n"), StartsWith("job.textproto:2:1: the text ends"));
  EXPECT_THAT(Refusal("seed: 1\nseed: 2"), StartsWith("job.textproto:2:"));
  EXPECT_THAT(Refusal("model { gmf {} dlrm {} }"), HasSubstr("another member of oneof"));
  EXPECT_THAT(Refusal("train { batch_size: 99999999999 }"), HasSubstr("out of range"));
}

TEST(JobTextTest, HugeTextIsRefused) {
  EXPECT_THAT(Refusal(std::string(3 << 20, '#')), HasSubstr("at most 1048576"));
}

TEST(JobTextTest, MissingFileIsNotFound) {
  const absl::StatusOr<Job> job = job::ReadJobFile("no/such/job.textproto", {});
  EXPECT_EQ(job.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(job.status().message(),
            "no/such/job.textproto: cannot open the job file: No such file or directory");
}

TEST(OverrideTest, SetsValuesEnumsStringsAndLists) {
  const Job job = MustParse(kJob, {{"train.batch_size", "64"},
                                   {"table[0].dim", "8"},
                                   {"model.dlrm.bottom", "[32, 8]"},
                                   {"policy.kind", "SSP"},
                                   {"policy.bound", "3"},
                                   {"name", "has a space"},
                                   {"data.train", "[\"a\", 'b']"},
                                   {"data.train[1]", "c"},
                                   {"table[0].frozen", "true"},
                                   {"dense.optimizer", "{kind: ADAM learning_rate: 1e-3}"}});
  EXPECT_EQ(job.train().batch_size(), 64);
  EXPECT_EQ(job.table(0).dim(), 8);
  EXPECT_THAT(job.model().dlrm().bottom(), ElementsAre(32, 8));
  EXPECT_EQ(job.policy().kind(), Policy::SSP);
  EXPECT_EQ(job.policy().bound(), 3);
  EXPECT_EQ(job.name(), "has a space");
  EXPECT_THAT(job.data().train(), ElementsAre("a", "c"));
  EXPECT_TRUE(job.table(0).frozen());
  EXPECT_EQ(job.dense().optimizer().kind(), Optimizer::ADAM);
}

TEST(OverrideTest, ReplacesAWholeMessage) {
  const std::string text = absl::StrCat(kJob, "policy { kind: SSP bound: 4 }");
  const Job job = MustParse(text, {{"policy", "{kind: ASP}"}});
  EXPECT_EQ(job.policy().kind(), Policy::ASP);
  EXPECT_FALSE(job.policy().has_bound());
}

TEST(OverrideTest, RefusesWhatItCannotFind) {
  const auto refusal = [](const std::string& path, const std::string& value) {
    return Refusal(kJob, {{path, value}});
  };
  EXPECT_EQ(refusal("train.bach_size", "64"),
            "--set train.bach_size=64: no field named \"bach_size\" in tandem.Train; did you mean "
            "\"batch_size\"?");
  EXPECT_EQ(refusal("batch_size", "64"),
            "--set batch_size=64: no field named \"batch_size\" in tandem.Job; it is found at "
            "train.batch_size");
  EXPECT_EQ(
      refusal("policy.kind", "SPP"),
      "--set policy.kind=SPP: \"SPP\" is not a value of kind; one of BSP, SSP, ASP, "
      "FIXED_DELAY, BACKUP_WORKERS, STALENESS_AWARE, K_BATCH_ASYNC, GBA, DC_ASGD, DSSP, "
      "SYNC_SWITCH, KEY_VALUE, ESSP, COSINE_GATE, "
      "RINGMASTER, RINGLEADER, DELAY_ADAPTIVE, PLUGIN, RENNALA, ORDERED_MOMENTUM; did you mean "
      "SSP?");
  EXPECT_EQ(refusal("table.dim", "8"), "--set table.dim=8: which table? write table[0]");
  EXPECT_EQ(refusal("table[1].dim", "8"),
            "--set table[1].dim=8: table[1]: the list has 1 entries, from 0");
  EXPECT_EQ(refusal("train[0].batch", "8"),
            "--set train[0].batch=8: train is not a list; drop the index");
  EXPECT_EQ(refusal("train.batch_size.x", "8"),
            "--set train.batch_size.x=8: batch_size is a value, it has no fields");
  EXPECT_EQ(refusal("table[x].dim", "8"),
            "--set table[x].dim=8: cannot read \"table[x]\"; write an index as in table[0].dim");
  EXPECT_EQ(refusal("train..batch", "8"),
            "--set train..batch=8: an empty name in the path; write it as in train.batch_size");
  EXPECT_THAT(refusal("train.batch_size", "many"), HasSubstr("Expected integer, got: many"));
  EXPECT_THAT(refusal("train.batch_size", ""), StartsWith("--set train.batch_size=: "));
  EXPECT_EQ(refusal("data.train[0]", "['a', 'b']"),
            "--set data.train[0]=['a', 'b']: an entry of a list takes one value");
}

TEST(OverrideTest, AValueCannotSetItsNeighbours) {
  EXPECT_EQ(Refusal(kJob, {{"train.batch_size", "64 epochs: 3"}}),
            "--set train.batch_size=64 epochs: 3: the value also sets epochs");
}

TEST(ContradictionTest, NamesTheLineThatSaidIt) {
  EXPECT_EQ(Refusal(With("dim: 4", "dim: -4")),
            "job.textproto:5:21: table[0].dim: -4, must be 1 to 65536");
  // A field that is not there is shown at the message it is missing from.
  EXPECT_THAT(Refusal(With("batch_size: 16", "")),
              StartsWith("job.textproto:8:1: train.batch_size: not set; "));
  // Nothing to point at.
  EXPECT_THAT(Refusal(With("train { batch_size: 16 }\n", "")),
              StartsWith("job.textproto: train.batch_size: not set"));
}

TEST(ContradictionTest, NamesTheOverrideThatSaidIt) {
  EXPECT_EQ(Refusal(kJob, {{"table[0].dim", "-1"}}),
            "--set table[0].dim=-1: table[0].dim: -1, must be 1 to 65536");
}

struct Contradiction {
  std::vector<std::pair<std::string, std::string>> set;
  std::string message;  // after the place
};

class ContradictionsTest : public ::testing::TestWithParam<Contradiction> {};

TEST_P(ContradictionsTest, IsRefusedWithThisMessage) {
  EXPECT_THAT(Refusal(kJob, GetParam().set), EndsWith(": " + GetParam().message));
}

// Of a job whose workers step by themselves.
job::Overrides Local(const std::string& synchroniser, const std::string& local_steps,
                     const job::Overrides& more = {}) {
  job::Overrides all = {{"dense.synchroniser", synchroniser},
                        {"dense.local_steps", absl::StrCat("{", local_steps, "}")}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

// A job whose table catches up, and its refusal. `optimizer`: more settings of the table.
Contradiction CatchUp(const std::string& optimizer, const job::Overrides& more,
                      const std::string& message) {
  job::Overrides all = {{"table[0].optimizer", absl::StrCat("{kind: ADAM learning_rate: 1 "
                                                            "catch_up: true ",
                                                            optimizer, "}")}};
  all.insert(all.end(), more.begin(), more.end());
  return {all, "table[0].optimizer.catch_up: " + message};
}

// Of a job whose dense sums do not wait for all.
job::Overrides Majority(const job::Overrides& more) {
  job::Overrides all = {{"dense.quorum", "MAJORITY"}, {"policy.kind", "ASP"}};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

INSTANTIATE_TEST_SUITE_P(
    Security, ContradictionsTest,
    ::testing::Values(
        Contradiction{{{"security.encrypt", "ALL"}, {"cluster.transport", "RDMA"}},
                      "cluster.transport: RDMA cannot be encrypted, but security.encrypt is ALL; "
                      "expected AUTO, ZMQ or SHM"},
        Contradiction{{{"security.encrypt", "ALL"}, {"dense.link", "TCP"}},
                      "dense.link: TCP cannot be encrypted, but security.encrypt is ALL; expected "
                      "ANY, ZMQ or SHM"}));

INSTANTIATE_TEST_SUITE_P(
    Quorums, ContradictionsTest,
    ::testing::Values(
        Contradiction{{{"dense.quorum_bound", "4"}},
                      "dense.quorum_bound: only with dense.quorum SOLO or MAJORITY, or "
                      "local_steps.quorum; leave it out"},
        Contradiction{
            Local("LOCAL_SGD", "sync_every: 4 quorum: 3"),
            "dense.local_steps.quorum: 3, must be 1 to the number of workers, 2; leave it "
            "out to wait for all"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 quorum: -1"),
                      "dense.local_steps.quorum: -1, must be 1 to the number of workers, 2; leave "
                      "it out to wait for all"},
        Contradiction{
            Local("EASGD", "sync_every: 4 quorum: 1"),
            "dense.local_steps.quorum: only for LOCAL_SGD, and the synchroniser is EASGD"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 grace_seconds: 1"),
                      "dense.local_steps.grace_seconds: 1 is how long a sync round waits after its "
                      "quorum has come, and there is no quorum; set it, or leave this out"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 quorum: 1 grace_seconds: -1"),
                      "dense.local_steps.grace_seconds: -1, must be at least 0"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 quorum: 1 warmup_steps: 9"),
                      "dense.local_steps.quorum: 1 not with warmup_steps: in the steps before it "
                      "workers wait for each other; leave one of them out"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 quorum: 1", {{"dense.quorum_bound", "-1"}}),
                      "dense.quorum_bound: -1, must be 1 to 1048576"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 quorum: 1", {{"reproducible", "true"}}),
                      "dense.local_steps.quorum: 1: which gradients are in a sum depends on time, "
                      "so the job cannot be reproducible or replayed; leave it out, or drop "
                      "reproducible and staleness.record_order"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 quorum: 1"),
                      "dense.local_steps.quorum: 1 does not wait for all workers, but table ids "
                      "under BSP does, in every step; give tables SSP, ASP or another policy that "
                      "does not"},
        Contradiction{Majority({{"dense.quorum_bound", "-1"}}),
                      "dense.quorum_bound: -1, must be 1 to 1048576"},
        Contradiction{Majority({{"dense.synchroniser", "SERVERS"}}),
                      "dense.quorum: MAJORITY is of sums of gradients, and the synchroniser is "
                      "SERVERS; leave it out"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4", {{"dense.quorum", "SOLO"}}),
                      "dense.quorum: SOLO is of sums of gradients, and the synchroniser is "
                      "LOCAL_SGD; leave it out"},
        Contradiction{Majority({{"dense.codec", "{kind: SIGN}"}}),
                      "dense.quorum: MAJORITY not with a codec; leave that out, or say ALL"},
        Contradiction{Majority({{"dense.bucket_bytes", "1000"}}),
                      "dense.quorum: MAJORITY not with buckets; leave that out, or say ALL"},
        Contradiction{
            Majority({{"dense.sharded_optimizer", "true"}}),
            "dense.quorum: MAJORITY not with a sharded optimizer; leave that out, or say ALL"},
        Contradiction{Majority({{"dense.wire_dtype", "BF16"}}),
                      "dense.quorum: MAJORITY not with a 16-bit wire; leave that out, or say ALL"},
        Contradiction{Majority({{"dense.device", "CUDA"}}),
                      "dense.quorum: MAJORITY not with device CUDA; leave that out, or say ALL"},
        Contradiction{Majority({{"model", "{script {file: 'm.pt'}}"}}),
                      "dense.quorum: MAJORITY steps the model while workers compute, and a module "
                      "of one's own has one copy of its parameters; say ALL"},
        Contradiction{Majority({{"staleness.record_order", "true"}}),
                      "dense.quorum: MAJORITY: which gradients are in a sum depends on time, so "
                      "the job cannot be reproducible or replayed; say ALL, or drop reproducible "
                      "and staleness.record_order"},
        Contradiction{Majority({{"policy.kind", "BSP"}}),
                      "dense.quorum: MAJORITY does not wait for all workers, but table ids under "
                      "BSP does, in every step; give tables SSP, ASP or another policy that does "
                      "not"},
        Contradiction{Majority({{"policy", "{kind: SYNC_SWITCH switch_step: 5}"}}),
                      "dense.quorum: MAJORITY does not wait for all workers, but table ids under "
                      "SYNC_SWITCH(5) does, in every step; give tables SSP, ASP or another policy "
                      "that does not"}));

INSTANTIATE_TEST_SUITE_P(
    StepTimes, ContradictionsTest,
    ::testing::Values(
        Contradiction{{{"fault_injection.slow_workers", "[{worker: 2 mean_seconds: 1}]"}},
                      "fault_injection.slow_workers[0].worker[0]: 2, but cluster.workers is 2, and "
                      "ranks count from "
                      "0; say 0 to 1, or none for all workers"},
        Contradiction{{{"fault_injection.slow_workers", "[{worker: [0, -1] mean_seconds: 1}]"}},
                      "fault_injection.slow_workers[0].worker[1]: -1, but cluster.workers is 2, "
                      "and ranks count "
                      "from 0; say 0 to 1, or none for all workers"},
        Contradiction{{{"fault_injection.slow_workers", "[{worker: [1, 1] mean_seconds: 1}]"}},
                      "fault_injection.slow_workers[0].worker[1]: 1 is named twice"},
        Contradiction{{{"fault_injection.slow_workers", "[{worker: 1}]"}},
                      "fault_injection.slow_workers[0].mean_seconds: not set; the seconds of a "
                      "step, such as 0.02"},
        Contradiction{
            {{"fault_injection.slow_workers", "[{mean_seconds: -1}]"}},
            "fault_injection.slow_workers[0].mean_seconds: -1, must be above 0 and at most 3600"},
        Contradiction{{{"fault_injection.slow_workers", "[{mean_seconds: nan}]"}},
                      "fault_injection.slow_workers[0].mean_seconds: nan, must be a finite number"},
        Contradiction{{{"fault_injection.slow_workers", "[{mean_seconds: 1e9}]"}},
                      "fault_injection.slow_workers[0].mean_seconds: 1e+09, must be above 0 and at "
                      "most 3600"},
        Contradiction{{{"fault_injection.slow_workers", "[{mean_seconds: 600}]"}},
                      "fault_injection.slow_workers[0].mean_seconds: steps of 600 s, and "
                      "limits.stall_timeout_seconds is 600, after which the job would end; raise "
                      "that limit, or lower this"},
        Contradiction{{{"fault_injection.slow_workers", "[{mean_seconds: 150 slow_share: 0.1}]"}},
                      "fault_injection.slow_workers[0].mean_seconds: steps of 750 s, and "
                      "limits.stall_timeout_seconds is 600, after which the job would end; raise "
                      "that limit, or lower this"},
        Contradiction{{{"fault_injection.slow_workers", "[{mean_seconds: 1 sigma: 0.5}]"}},
                      "fault_injection.slow_workers[0].sigma: only for LOGNORMAL, and the "
                      "distribution is CONSTANT"},
        Contradiction{{{"fault_injection.slow_workers",
                        "[{mean_seconds: 1 distribution: LOGNORMAL sigma: 5}]"}},
                      "fault_injection.slow_workers[0].sigma: 5, must be 0 to 4"},
        Contradiction{{{"fault_injection.slow_workers", "[{mean_seconds: 1 slow_share: 1.5}]"}},
                      "fault_injection.slow_workers[0].slow_share: 1.5, must be 0 to 1"},
        Contradiction{{{"fault_injection.slow_workers", "[{mean_seconds: 1 slow_factor: 4}]"}},
                      "fault_injection.slow_workers[0].slow_factor: set without slow_share; for a "
                      "worker that is "
                      "always slow, name it with a larger mean_seconds"},
        Contradiction{
            {{"fault_injection.slow_workers",
              "[{mean_seconds: 1 slow_share: 0.5 slow_factor: -1}]"}},
            "fault_injection.slow_workers[0].slow_factor: -1, must be above 0 and at most 1000"},
        Contradiction{{{"fault_injection.slow_workers", "[{distribution: TRACE}]"}},
                      "fault_injection.slow_workers[0].trace: not set; TRACE needs a file with the "
                      "seconds of a "
                      "step a line"},
        Contradiction{{{"fault_injection.slow_workers", "[{trace: 't' mean_seconds: 1}]"}},
                      "fault_injection.slow_workers[0].mean_seconds: not for TRACE, whose seconds "
                      "are in the file"},
        Contradiction{{{"fault_injection.slow_workers",
                        "[{trace: 't' distribution: EXPONENTIAL mean_seconds: 1}]"}},
                      "fault_injection.slow_workers[0].trace: only for TRACE, and the distribution "
                      "is EXPONENTIAL"},
        Contradiction{{{"fault_injection.slow_workers",
                        "[{trace: 't' distribution: EXPONENTIAL mean_seconds: 1}]"}},
                      "fault_injection.slow_workers[0].trace: only for TRACE, and the distribution "
                      "is EXPONENTIAL"},
        Contradiction{
            {{"fault_injection.slow_workers", "[{worker: 1 mean_seconds: 1}, {mean_seconds: 2}]"}},
            "fault_injection.slow_workers[0]: holds for no worker, because later entries replace "
            "it for all of its workers; put the entry for all workers first"}));

INSTANTIATE_TEST_SUITE_P(
    Policies, ContradictionsTest,
    ::testing::Values(
        Contradiction{
            {{"policy.kind", "SSP"}},
            "policy: SSP without a bound; say how many steps a worker may be ahead of the "
            "slowest one, such as bound: 4"},
        Contradiction{{{"table[0].policy.kind", "SSP"}},
                      "table[0].policy: SSP without a bound; say how many steps a worker may be "
                      "ahead of the slowest one, such as bound: 4"},
        Contradiction{{{"policy.kind", "FIXED_DELAY"}},
                      "policy: FIXED_DELAY without a delay; say how many steps lie between a "
                      "gradient and its update, such as delay: 2"},
        Contradiction{
            {{"policy", "{kind: ASP bound: 2}"}},
            "policy.bound: only for SSP, DSSP and ESSP, and the policy is ASP; say kind: SSP, DSSP "
            "or ESSP, or drop the bound"},
        Contradiction{
            {{"policy.bound", "2"}},
            "policy.bound: only for SSP, DSSP and ESSP, and the policy is BSP; say kind: SSP, DSSP "
            "or ESSP, or drop the bound"},
        Contradiction{{{"policy", "{kind: SSP bound: 2 cache_rows: 9}"}},
                      "policy.cache_rows: only for ESSP, and the policy is SSP; say kind: ESSP or "
                      "drop the cache_rows"},
        Contradiction{{{"policy", "{kind: ESSP bound: 2 cache_rows: -1}"}},

                      "policy.cache_rows: -1, must be at least 0"},
        Contradiction{{{"policy", "{kind: ESSP bound: 2}"}, {"staleness.record_order", "true"}},
                      "policy: ESSP(2) reads rows of several versions at the same time, which the "
                      "recorded order of updates does not contain, so it cannot be replayed; use "
                      "SSP, or drop staleness.record_order"},
        Contradiction{{{"policy", "{kind: SSP bound: 2 delay: 1}"}},
                      "policy.delay: only for FIXED_DELAY, and the policy is SSP; say kind: "
                      "FIXED_DELAY or drop the delay"},
        Contradiction{{{"policy", "{kind: SSP bound: -1}"}},
                      "policy.bound: -1, must be 0 to 1048576"},
        Contradiction{{{"policy", "{kind: FIXED_DELAY delay: -1}"}},
                      "policy.delay: -1, must be 0 to 1024"},
        Contradiction{
            {{"policy", "{kind: SSP bound: 2}"}, {"train.prefetch_steps", "3"}},
            "policy.bound: SSP(2) with train.prefetch_steps 3; a worker cannot read further ahead "
            "than its bound: raise bound or lower prefetch_steps"},
        Contradiction{
            {{"policy.async_scale", "INVERSE_WORKERS"}},
            "policy.async_scale: INVERSE_WORKERS is for SSP, ASP, STALENESS_AWARE, "
            "DC_ASGD, DSSP, SYNC_SWITCH, ESSP, COSINE_GATE, RINGMASTER, "
            "DELAY_ADAPTIVE and ORDERED_MOMENTUM; BSP already takes a mean of several updates"},
        Contradiction{{{"dense.synchroniser", "SERVERS"}, {"dense.quorum", "ALL"}},
                      "dense.quorum: ALL is of sums of gradients, and the synchroniser is SERVERS; "
                      "leave it out"},
        Contradiction{{{"policy.kind", "ASP"}, {"reproducible", "true"}},
                      "policy: ASP depends on the order in which updates arrive, so the job "
                      "cannot be reproducible; use BSP or FIXED_DELAY, or drop reproducible"},
        Contradiction{{{"policy.kind", "BACKUP_WORKERS"}},
                      "policy: BACKUP_WORKERS without backups; say how many of a step's updates "
                      "are not waited for, such as backups: 1"},
        Contradiction{{{"policy", "{kind: BACKUP_WORKERS backups: 2}"}, {"cluster.workers", "2"}},
                      "policy.backups: 2, must be 0 to 1"},
        Contradiction{{{"policy", "{kind: STALENESS_AWARE backups: 1}"}},
                      "policy.backups: only for BACKUP_WORKERS, and the policy is STALENESS_AWARE; "
                      "say kind: BACKUP_WORKERS or drop the backups"},
        Contradiction{{{"policy.kind", "K_BATCH_ASYNC"}},
                      "policy: K_BATCH_ASYNC without batches; say how many updates make one step, "
                      "such as batches: 4"},
        Contradiction{{{"policy", "{kind: K_BATCH_ASYNC batches: 0}"}},
                      "policy.batches: 0, must be 1 to 65536"},
        Contradiction{{{"policy", "{kind: K_BATCH_ASYNC batches: 2 token_gap: 1}"}},
                      "policy.token_gap: only for GBA, and the policy is K_BATCH_ASYNC; say kind: "
                      "GBA or drop the token_gap"},
        Contradiction{{{"policy", "{kind: RENNALA token_gap: 1}"}},
                      "policy.token_gap: only for GBA, and the policy is RENNALA; say kind: GBA or "
                      "drop the token_gap"},
        Contradiction{{{"policy", "{kind: ASP batches: 3}"}},
                      "policy.batches: only for K_BATCH_ASYNC, GBA and RENNALA, and the policy is "
                      "ASP; say kind: K_BATCH_ASYNC, GBA or RENNALA, or drop the batches"},
        Contradiction{{{"policy", "{kind: GBA token_gap: -1}"}},
                      "policy.token_gap: -1, must be 0 to 1048576"},
        Contradiction{
            {{"policy", "{kind: ORDERED_MOMENTUM}"}},
            "policy.kind: ORDERED_MOMENTUM needs updates that have every row, so it is for "
            "dense parameters on servers; say another policy here, and dense { synchroniser: "
            "SERVERS optimizer { kind: MOMENTUM learning_rate: 0.01 } policy { kind: "
            "ORDERED_MOMENTUM } }"},
        Contradiction{{{"table[0].policy", "{kind: ORDERED_MOMENTUM}"}},
                      "table[0].policy.kind: ORDERED_MOMENTUM needs updates that have every row, "
                      "so it is for dense parameters on servers; say another policy here, and "
                      "dense { synchroniser: SERVERS optimizer { kind: MOMENTUM learning_rate: "
                      "0.01 } policy { kind: ORDERED_MOMENTUM } }"},
        Contradiction{{{"dense.policy", "{kind: ORDERED_MOMENTUM}"}},
                      "dense.policy: only for synchroniser SERVERS; ALLREDUCE always takes every "
                      "step together"},
        Contradiction{
            {{"dense.synchroniser", "SERVERS"},
             {"dense.optimizer", "{kind: ADAM learning_rate: 0.1}"},
             {"dense.policy", "{kind: ORDERED_MOMENTUM}"}},
            "dense.optimizer.kind: policy ORDERED_MOMENTUM orders the momentum of MOMENTUM only, "
            "and the optimizer is ADAM; say kind: MOMENTUM, or another dense.policy, such as ASP"},
        Contradiction{{{"policy", "{kind: RINGMASTER max_delay: 0}"}},
                      "policy.max_delay: 0, must be 1 to 1048576"},
        Contradiction{{{"policy", "{kind: ASP max_delay: 3}"}},
                      "policy.max_delay: only for RINGMASTER, and the policy is ASP; say kind: "
                      "RINGMASTER or drop the max_delay"},
        Contradiction{{{"policy", "{kind: DELAY_ADAPTIVE full_rate_delay: 0}"}},
                      "policy.full_rate_delay: 0, must be 1 to 1048576"},
        Contradiction{{{"policy", "{kind: RINGMASTER full_rate_delay: 3}"}},
                      "policy.full_rate_delay: only for DELAY_ADAPTIVE, and the policy is "
                      "RINGMASTER; say kind: DELAY_ADAPTIVE or drop the full_rate_delay"},
        Contradiction{{{"policy.kind", "DC_ASGD"}},
                      "policy: DC_ASGD without a compensation; say lambda of the paper, which "
                      "weighs the change of a row since it was read, such as compensation: 0.04"},
        Contradiction{{{"policy", "{kind: DC_ASGD compensation: -1}"}},
                      "policy.compensation: -1, must be at least 0"},
        Contradiction{{{"policy", "{kind: DC_ASGD compensation: 1 mean_square_decay: 1}"}},
                      "policy.mean_square_decay: 1, must be at least 0 and below 1"},
        Contradiction{{{"policy", "{kind: ASP mean_square_decay: 0.9}"}},
                      "policy.mean_square_decay: only for DC_ASGD, and the policy is ASP; say "
                      "kind: DC_ASGD or drop the mean_square_decay"},
        Contradiction{{{"policy", "{kind: DSSP bound: 2}"}},
                      "policy: DSSP without an upper_bound; say how many steps a worker may be "
                      "ahead at most, such as upper_bound: 8"},
        Contradiction{{{"policy", "{kind: DSSP bound: 2 upper_bound: 1}"}},
                      "policy.upper_bound: 1, must be at least the bound, 2"},
        Contradiction{
            {{"policy", "{kind: DSSP bound: 2 upper_bound: 9}"}, {"train.prefetch_steps", "3"}},
            "policy.bound: DSSP(2, 9) with train.prefetch_steps 3; a worker cannot read further "
            "ahead than its bound: raise bound or lower prefetch_steps"},
        Contradiction{{{"policy.kind", "SYNC_SWITCH"}},
                      "policy: SYNC_SWITCH without a switch_step; say how many steps are taken "
                      "together before nobody waits any more, such as switch_step: 1000"},
        Contradiction{{{"policy", "{kind: SYNC_SWITCH switch_step: -1}"}},
                      "policy.switch_step: -1, must be 0 to 1099511627776"},
        Contradiction{{{"policy", "{kind: ASP switch_step: 9}"}},
                      "policy.switch_step: only for SYNC_SWITCH, and the policy is ASP; say kind: "
                      "SYNC_SWITCH or drop the switch_step"},
        Contradiction{{{"dense.policy.kind", "BSP"}},
                      "dense.policy: only for synchroniser SERVERS; ALLREDUCE always takes every "
                      "step together"},
        Contradiction{{{"dense.local_steps.sync_every", "4"}},
                      "dense.local_steps: only for LOCAL_SGD and EASGD, and the synchroniser is "
                      "ALLREDUCE"},
        Contradiction{
            {{"dense.synchroniser", "LOCAL_SGD"}},
            "dense.local_steps.sync_every: not set; say how many steps each worker takes by "
            "itself before the next sync round, such as sync_every: 8"},
        Contradiction{Local("LOCAL_SGD", "sync_every: -1"),
                      "dense.local_steps.sync_every: -1, must be 1 to 1048576"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 elasticity: 0.1"),
                      "dense.local_steps.elasticity: only for EASGD, and the synchroniser is "
                      "LOCAL_SGD"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 warmup_steps: -1"),
                      "dense.local_steps.warmup_steps: -1, must be at least 0"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 outer_learning_rate: -1"),
                      "dense.local_steps.outer_learning_rate: -1, must be above 0"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 outer_momentum: 1"),
                      "dense.local_steps.outer_momentum: 1, must be at least 0 and below 1"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 outer_optimizer: DELAYED_NESTEROV"),
                      "dense.local_steps.outer_optimizer: DELAYED_NESTEROV is a momentum; say "
                      "outer_momentum, such as outer_momentum: 0.9"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 outer_momentum: 0.9 momentum_rounds: 2"),
                      "dense.local_steps.momentum_rounds: only for outer_optimizer "
                      "DELAYED_NESTEROV; leave it out"},
        Contradiction{Local("LOCAL_SGD",
                            "sync_every: 4 outer_momentum: 0.9 outer_optimizer: DELAYED_NESTEROV "
                            "momentum_rounds: -1"),
                      "dense.local_steps.momentum_rounds: -1, must be 1 to 1048576"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4 outer_momentum: 0.9 heloco { turn: 0 }"),
                      "dense.local_steps.heloco: only for outer_optimizer HELOCO; leave it out"},
        Contradiction{Local("LOCAL_SGD",
                            "sync_every: 4 outer_momentum: 0.9 outer_optimizer: HELOCO "
                            "heloco { keep_cosine: 2 }"),
                      "dense.local_steps.heloco.keep_cosine: 2, must be 0 to 1"},
        Contradiction{Local("EASGD", "sync_every: 4 outer_optimizer: NESTEROV"),
                      "dense.local_steps.outer_optimizer: only for LOCAL_SGD, and the synchroniser "
                      "is EASGD"},
        Contradiction{Local("EASGD", "sync_every: 4 warmup_steps: 100"),
                      "dense.local_steps.warmup_steps: only for LOCAL_SGD, and the synchroniser is "
                      "EASGD"},
        Contradiction{Local("EASGD", "sync_every: 4 outer_momentum: 0.5"),
                      "dense.local_steps.outer_momentum: only for LOCAL_SGD, and the synchroniser "
                      "is EASGD"},
        Contradiction{Local("EASGD", "sync_every: 4 elasticity: 0.75"),
                      "dense.local_steps.elasticity: 0.75 x 2 workers is 1.5, must be at most 1: "
                      "otherwise each step moves the centre past the workers"},
        Contradiction{
            Local("LOCAL_SGD", "sync_every: 4", {{"dense.policy.kind", "ASP"}}),
            "dense.policy: only for synchroniser SERVERS; workers that step by themselves "
            "wait for nobody between sync rounds"},
        Contradiction{
            Local("LOCAL_SGD", "sync_every: 4", {{"dense.wire_dtype", "BF16"}}),
            "dense.wire_dtype: BF16; between workers under LOCAL_SGD whole models travel, as "
            "they are; leave it out"},
        Contradiction{Local("EASGD", "sync_every: 4", {{"dense.bucket_bytes", "1000"}}),
                      "dense.bucket_bytes: 1000; between workers under EASGD whole models travel, "
                      "as they are; leave it out"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4", {{"dense.codec", "{kind: SIGN}"}}),
                      "dense.codec: SIGN; between workers under LOCAL_SGD whole models travel, as "
                      "they are; leave it out"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4", {{"dense.sharded_optimizer", "true"}}),
                      "dense.sharded_optimizer: true, but each worker takes optimizer steps of its "
                      "own under LOCAL_SGD; leave it out"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4", {{"dense.device", "CUDA"}}),
                      "dense.device: CUDA needs gradients that are summed on the GPUs, and under "
                      "LOCAL_SGD there is no sum of gradients; use CPU, or ALLREDUCE"},
        Contradiction{Local("LOCAL_SGD", "sync_every: 4",
                            {{"reproducible", "true"}, {"dense.algorithm", "RING"}}),
                      "dense.algorithm: RING does not add in rank order, so the job cannot be "
                      "reproducible; use DIRECT"},
        Contradiction{{{"dense.synchroniser", "SERVERS"}, {"dense.algorithm", "RING"}},
                      "dense.algorithm: only for ALLREDUCE, and the synchroniser is SERVERS"},
        Contradiction{
            {{"dense.synchroniser", "SERVERS"}, {"dense.algorithm_rules", "allreduce:ring"}},
            "dense.algorithm_rules: only for ALLREDUCE, and the synchroniser is SERVERS"},
        Contradiction{{{"dense.synchroniser", "SERVERS"}, {"dense.calibration", "costs"}},
                      "dense.calibration: only for ALLREDUCE, and the synchroniser is SERVERS"},
        Contradiction{{{"dense.algorithm", "RING"}, {"dense.algorithm_rules", "allreduce:ring"}},
                      "dense.algorithm_rules: \"allreduce:ring\"; only with dense.algorithm AUTO"},
        Contradiction{{{"reproducible", "true"}, {"dense.calibration", "costs"}},
                      "dense.calibration: \"costs\"; in a reproducible job nothing depends on "
                      "measurements; leave it out"},
        Contradiction{
            {{"dense.algorithm", "RING"},
             {"dense.bucket_bytes", "-1"},
             {"dense.calibration", "costs"}},
            "dense.calibration: \"costs\"; the algorithm is RING and there are no buckets to "
            "choose, so nothing depends on what links cost; leave it out"},
        Contradiction{{{"staleness.record_order", "true"}, {"dense.calibration", "costs"}},
                      "dense.calibration: \"costs\"; the algorithm is DIRECT and there are no "
                      "buckets to choose, so nothing depends on what links cost; leave it out"},
        Contradiction{
            Local("LOCAL_SGD", "sync_every: 4",
                  {{"dense.algorithm", "RING"}, {"dense.calibration", "costs"}}),
            "dense.calibration: \"costs\"; the algorithm is RING and there are no buckets "
            "to choose, so nothing depends on what links cost; leave it out"},
        Contradiction{
            {{"dense.codec", "{error_feedback: false}"}},
            "dense.codec.error_feedback: false, but dense.codec.kind is not set, and whole "
            "gradients leave nothing out; set a kind, such as TOP_K, or leave it out"},
        Contradiction{{{"dense.device", "CUDA"}, {"dense.wire_dtype", "BF16"}},
                      "dense.device: CUDA not with a codec, a sharded optimizer, buckets or a "
                      "16-bit wire; leave these out"},
        Contradiction{{{"dense.device", "CUDA"}, {"dense.algorithm", "RING"}},
                      "dense.algorithm: RING; with dense.device CUDA gradients are summed on the "
                      "GPUs, in one way; leave it out"},
        Contradiction{
            {{"dense.device", "CUDA"}, {"dense.algorithm_rules", "allreduce:ring"}},
            "dense.algorithm_rules: \"allreduce:ring\"; with dense.device CUDA gradients are "
            "summed on the GPUs, in one way; leave it out"},
        Contradiction{{{"dense.device", "CUDA"}, {"dense.calibration", "costs"}},
                      "dense.calibration: \"costs\"; with dense.device CUDA gradients are summed "
                      "on the GPUs, in one way; leave it out"},
        Contradiction{{{"dense.device", "CUDA"}, {"reproducible", "true"}},
                      "dense.device: CUDA: models on a GPU may add in another order each "
                      "time, so the job cannot be reproducible; use CPU"},
        Contradiction{
            {{"dense.device", "CUDA"}, {"dense.synchroniser", "SERVERS"}, {"reproducible", "true"}},
            "dense.device: CUDA: models on a GPU may add in another order each "
            "time, so the job cannot be reproducible; use CPU"},
        Contradiction{{{"dense.bucket_bytes", "-2"}},
                      "dense.bucket_bytes: -2, must be -1 to 1073741824"},
        Contradiction{{{"reproducible", "true"}, {"dense.algorithm", "RING"}},
                      "dense.algorithm: RING does not add in rank order, so the job cannot be "
                      "reproducible; use DIRECT"}));

INSTANTIATE_TEST_SUITE_P(
    Tables, ContradictionsTest,
    ::testing::Values(
        Contradiction{{{"table", "[]"}},
                      "table: no tables; a job needs at least one, and ids that it reads (of "
                      "DELIMITED data a "
                      "column in data.columns.categorical)"},
        Contradiction{{{"table[0].dim", "0"}},
                      "table[0].dim: not set; say how many floats a row has, such as dim: 16"},
        Contradiction{{{"table[0].dim", "-8"}}, "table[0].dim: -8, must be 1 to 65536"},
        Contradiction{{{"table[0].name", ""}}, "table[0].name: not set; every table has a name"},
        Contradiction{
            {{"table[0].name", "dense"}},
            "table[0].name: \"dense\" is the table of dense parameters on servers; choose "
            "another name"},
        Contradiction{{{"table[0].name", "../x"}},
                      "table[0].name: \"../x\", must be letters, digits, _ and -"},
        Contradiction{{{"table", "[{name: 'a' dim: 4 field: 'x'}, {name: 'a' dim: 4}]"}},
                      "table[1].name: \"a\" is the name of two tables"},
        Contradiction{{{"table", "[{name: 'a' dim: 4}, {name: 'b' dim: 4}]"}},
                      "table[1]: tables \"a\" and \"b\" both take all remaining fields; list the "
                      "fields of one of them"},
        Contradiction{{{"table", "[{name: 'a' dim: 4 field: 'x'}, {name: 'b' dim: 4 field: 'x'}]"}},
                      "table[1].field[0]: field \"x\" is claimed by table \"a\" and by \"b\"; a "
                      "field has one table; hint: give the second table fields of its own, with "
                      "the same ids"},
        Contradiction{{{"table[0].expected_rows", "-1"}},
                      "table[0].expected_rows: -1, must be 1 to 1125899906842624"},
        Contradiction{
            {{"table[0].initializer.kind", "NORMAL"}},
            "table[0].initializer.scale: not set; NORMAL needs its deviation, such as 0.01"},
        Contradiction{{{"data.format", "NCF"},
                       {"model", "{mlp {hidden: 8}}"},
                       {"table[0].initializer", "{kind: ZERO}"}},
                      "table[0].initializer: every table begins with zeros, from which this model "
                      "cannot learn; leave it out, or say kind: NORMAL scale: 0.01"},
        Contradiction{{{"table[0].initializer", "{kind: ZERO scale: 1}"}},
                      "table[0].initializer.scale: 1, but ZERO has no scale"},
        Contradiction{{{"table[0].initializer", "{kind: CONSTANT scale: inf}"}},
                      "table[0].initializer.scale: inf, must be a finite number"},
        Contradiction{{{"table[0].initializer.scale", "-1"}},
                      "table[0].initializer.scale: -1, must be above 0"}));

INSTANTIATE_TEST_SUITE_P(
    Optimizers, ContradictionsTest,
    ::testing::Values(
        Contradiction{{{"dense.optimizer.learning_rate", "0"}},
                      "dense.optimizer.learning_rate: not set; it has no default, such as 0.01"},
        Contradiction{{{"table[0].optimizer.learning_rate", "-0.5"}},
                      "table[0].optimizer.learning_rate: -0.5, must be above 0; it has no default, "
                      "such as 0.01"},
        Contradiction{{{"dense.optimizer.schedule", "{kind: COSINE}"}},
                      "dense.optimizer.schedule.total_samples: not set, and COSINE needs its end; "
                      "set it to the samples of all epochs, or set train.max_steps"},
        Contradiction{{{"table[0].optimizer",
                        "{kind: SGD learning_rate: 1 schedule {kind: STEP "
                        "every_samples: 5}}"}},
                      "table[0].optimizer.schedule: factor: STEP needs it"},
        Contradiction{{{"dense.optimizer.schedule", "{kind: POLYNOMIAL total_samples: 3000}"},
                       {"train.max_steps", "100"}},
                      "dense.optimizer.schedule.total_samples: 3000, but the job trains 3200 "
                      "samples (train.max_steps 100), and the rate would stay at its end; leave it "
                      "out, which ends the schedule with the job"},
        Contradiction{
            {{"dense.optimizer.schedule", "{warmup_samples: 3200}"}, {"train.max_steps", "100"}},
            "dense.optimizer.schedule.warmup_samples: 3200, but the job ends after 3200 "
            "samples (train.max_steps 100); shorten the warm-up"},
        Contradiction{{{"dense.optimizer.schedule", "{warmup_samples: 32}"},
                       {"dense.quorum", "MAJORITY"},
                       {"policy.kind", "ASP"}},
                      "dense.optimizer.schedule: not with quorum MAJORITY: a sum of gradients of "
                      "several steps has no place in the schedule; give the tables schedules of "
                      "their own, or drop the quorum"},
        Contradiction{{{"staleness.row_share", "0.5"}},
                      "staleness.row_share: 0.5, but gradients are not measured; say gradients: "
                      "true, or remove it"},
        Contradiction{{{"dense.optimizer.learning_rate", "nan"}},
                      "dense.optimizer.learning_rate: nan, must be a finite number"},
        Contradiction{{{"dense.optimizer", "{kind: MOMENTUM learning_rate: 1 momentum: 1}"}},
                      "dense.optimizer.momentum: 1, must be at least 0 and below 1"},
        Contradiction{
            {{"dense.optimizer.momentum", "0.5"}},
            "dense.optimizer.momentum: only for MOMENTUM and MUON, and the optimizer is SGD"},
        Contradiction{{{"dense.optimizer", "{kind: ADAM learning_rate: 1 beta1: -0.1}"}},
                      "dense.optimizer.beta1: -0.1, must be at least 0 and below 1"},
        Contradiction{{{"dense.optimizer", "{kind: ADAM learning_rate: 1 beta2: nan}"}},
                      "dense.optimizer.beta2: nan, must be a finite number"},
        Contradiction{{{"dense.optimizer.beta1", "0.5"}},
                      "dense.optimizer.beta1: only for ADAM, AMSGRAD, ADAMW, ROWWISE_ADAM, "
                      "LION and MUON, and the optimizer is SGD"},
        Contradiction{{{"dense.optimizer.beta2", "0.5"}},
                      "dense.optimizer.beta2: only for ADAM, AMSGRAD, ADAMW, ROWWISE_ADAM, "
                      "RMSPROP, LION and MUON, and the optimizer is SGD"},
        Contradiction{
            {{"dense.optimizer.epsilon", "0.5"}},
            "dense.optimizer.epsilon: only for ADAGRAD, ROWWISE_ADAGRAD, ADAM, AMSGRAD, ADAMW, "
            "ROWWISE_ADAM, RMSPROP and MUON, and the optimizer is SGD"},
        Contradiction{{{"table[0].optimizer.step_count", "ROW"}},
                      "table[0].optimizer.step_count: only for ADAM, AMSGRAD, ADAMW and "
                      "ROWWISE_ADAM, and the optimizer is SGD"},
        Contradiction{
            {{"dense.optimizer", "{kind: ADAM learning_rate: 1 step_count: ROW}"}},
            "dense.optimizer.step_count: only for tables, since dense parameters are in "
            "each step; write table { optimizer { step_count: ROW } }, which inherits the rest"},
        Contradiction{{{"table[0].optimizer.catch_up", "true"}},
                      "table[0].optimizer.catch_up: only for ADAM, and the optimizer is SGD"},
        CatchUp("weight_decay: 0.1", {},
                "not with weight_decay, which only rows in a step get; leave one of them out"),
        CatchUp("beta1: 0.99 beta2: 0.98", {},
                "beta1 is 0.99 and beta2 0.98, so missed steps would grow; beta1 must be below the "
                "root of beta2"),
        CatchUp("schedule {kind: INVERSE_SQRT warmup_samples: 9}", {},
                "not with a schedule, because no row knows the rates of the steps that it missed; "
                "leave one of them out (a table without a kind of its own has the schedule of "
                "dense.optimizer)"),
        CatchUp("", {{"table[0].frozen", "true"}},
                "not for a frozen table, whose rows never move; leave one of them out"),
        CatchUp("", {{"table[0].eviction", "{kind: AGE versions: 100}"}},
                "not with eviction, because a row that begins anew has lost gradients of a dense "
                "Adam; leave one of them out"),
        CatchUp("", {{"table[0].admission", "{kind: COUNT threshold: 2}"}},
                "not with admission, because a row that begins late has lost gradients of a dense "
                "Adam; leave one of them out"),
        CatchUp(
            "", {{"policy", "{kind: SSP bound: 2}"}},
            "not with policy SSP(2), under which workers do not take each step together; say BSP "
            "or FIXED_DELAY"),
        Contradiction{{{"dense.optimizer.initial_accumulator", "0.5"}},
                      "dense.optimizer.initial_accumulator: only for ADAGRAD, ROWWISE_ADAGRAD and "
                      "FTRL, and the optimizer is SGD"},
        Contradiction{{{"dense.optimizer", "{kind: LION learning_rate: 1 epsilon: 1e-8}"}},
                      "dense.optimizer.epsilon: only for ADAGRAD, ROWWISE_ADAGRAD, ADAM, AMSGRAD, "
                      "ADAMW, ROWWISE_ADAM, RMSPROP and MUON, and the optimizer is LION"},
        Contradiction{{{"dense.optimizer", "{kind: RMSPROP learning_rate: 1 beta1: 0.5}"}},
                      "dense.optimizer.beta1: only for ADAM, AMSGRAD, ADAMW, ROWWISE_ADAM, "
                      "LION and MUON, and the optimizer is RMSPROP"},
        Contradiction{{{"table[0].optimizer", "{kind: ADAGRAD learning_rate: 1 l1: 1}"}},
                      "table[0].optimizer.l1: only for FTRL, and the optimizer is ADAGRAD"},
        Contradiction{{{"table[0].optimizer", "{kind: ADAGRAD learning_rate: 1 l2: 1}"}},
                      "table[0].optimizer.l2: only for FTRL, and the optimizer is ADAGRAD"},
        Contradiction{{{"table[0].optimizer", "{kind: ADAGRAD learning_rate: 1 ftrl_beta: 1}"}},
                      "table[0].optimizer.ftrl_beta: only for FTRL, and the optimizer is ADAGRAD"},
        Contradiction{{{"table[0].optimizer", "{kind: FTRL learning_rate: 1 ftrl_beta: -1}"}},
                      "table[0].optimizer.ftrl_beta: -1, must be above 0"},
        Contradiction{{{"table[0].optimizer", "{kind: ADAMW learning_rate: 1 catch_up: true}"}},
                      "table[0].optimizer.catch_up: only for ADAM, and the optimizer is ADAMW"},
        Contradiction{{{"table[0].optimizer",
                        "{kind: ADAM learning_rate: 1 catch_up: true step_count: ROW}"}},
                      "table[0].optimizer.catch_up: only with step_count TABLE: a row that counts "
                      "its own steps missed none"},
        Contradiction{
            {{"dense.optimizer", "{kind: ADAM learning_rate: 1 catch_up: true}"}},
            "dense.optimizer.catch_up: only for tables, since dense parameters are in each "
            "step; write table { optimizer { catch_up: true } }, which inherits the rest"},
        Contradiction{
            {{"dense.optimizer", "{kind: ADAMW learning_rate: 1 step_count: TABLE}"}},
            "dense.optimizer.step_count: only for tables, since dense parameters are in "
            "each step; write table { optimizer { step_count: TABLE } }, which inherits the rest"},
        Contradiction{{{"dense.optimizer.error_feedback", "1"}},
                      "dense.optimizer.error_feedback: only for synchroniser SERVERS, and it is "
                      "ALLREDUCE; leave it out"},
        Contradiction{{{"dense.optimizer.error_feedback", "1"}, {"dense.synchroniser", "SERVERS"}},
                      "dense.optimizer.error_feedback: only for dense.policy FIXED_DELAY, and it "
                      "is BSP; leave it out"},
        Contradiction{{{"dense",
                        "{synchroniser: SERVERS policy {kind: FIXED_DELAY delay: 2} "
                        "optimizer {learning_rate: 1 error_feedback: 1}}"}},
                      "dense.optimizer.error_feedback: 1, but the delay of dense.policy is 2; "
                      "make them the same"},
        Contradiction{{{"dense",
                        "{synchroniser: SERVERS policy {kind: FIXED_DELAY delay: 1} "
                        "optimizer {kind: FTRL learning_rate: 1 error_feedback: 1}}"}},
                      "dense.optimizer.error_feedback: not with FTRL, whose weights follow from "
                      "its state alone; leave it out"},
        Contradiction{{{"table[0].optimizer.error_feedback", "1"}},
                      "table[0].optimizer.error_feedback: only for dense.optimizer; leave it out"},
        Contradiction{{{"dense.optimizer", "{kind: MUON learning_rate: 1}"}},
                      "table[0].optimizer: MUON is for the matrices of dense parameters, and a "
                      "table has rows; say optimizer { kind: ADAMW learning_rate: 0.001 }, or "
                      "another one"},
        Contradiction{
            {{"dense", "{synchroniser: SERVERS optimizer {kind: MUON learning_rate: 1}}"}},
            "dense.optimizer.kind: MUON not with synchroniser SERVERS: it steps whole matrices on "
            "the processor of each worker, with the sum of all gradients; use ALLREDUCE without "
            "it, or ADAMW"},
        Contradiction{{{"dense",
                        "{synchroniser: LOCAL_SGD local_steps {sync_every: 4} "
                        "optimizer {kind: MUON learning_rate: 1}}"}},
                      "dense.optimizer.kind: MUON not with synchroniser LOCAL_SGD: it steps whole "
                      "matrices on the processor of each worker, with the sum of all gradients; "
                      "use ALLREDUCE without it, or ADAMW"},
        Contradiction{
            {{"dense", "{sharded_optimizer: true optimizer {kind: MUON learning_rate: 1}}"}},
            "dense.optimizer.kind: MUON not with a sharded optimizer: it steps whole matrices on "
            "the processor of each worker, with the sum of all gradients; use ALLREDUCE without "
            "it, or ADAMW"},
        Contradiction{{{"policy", "{kind: ASP}"},
                       {"dense", "{quorum: SOLO optimizer {kind: MUON learning_rate: 1}}"}},
                      "dense.optimizer.kind: MUON not with quorum SOLO: it steps whole matrices on "
                      "the processor of each worker, with the sum of all gradients; use ALLREDUCE "
                      "without it, or ADAMW"},
        Contradiction{{{"dense", "{device: CUDA optimizer {kind: MUON learning_rate: 1}}"}},
                      "dense.optimizer.kind: MUON not with device CUDA: it steps whole matrices on "
                      "the processor of each worker, with the sum of all gradients; use ALLREDUCE "
                      "without it, or ADAMW"},
        Contradiction{{{"dense.optimizer", "{kind: ROWWISE_ADAM learning_rate: 1}"}},
                      "dense.optimizer.kind: ROWWISE_ADAM has one second moment for a row, and "
                      "parameters of several layers share a block; use ADAM here, and write table "
                      "{ optimizer { kind: ROWWISE_ADAM learning_rate: 0.01 } }"},
        Contradiction{{{"dense.optimizer", "{kind: ADAGRAD learning_rate: 1 epsilon: -1}"}},
                      "dense.optimizer.epsilon: -1, must be at least 0"},
        Contradiction{{{"dense.optimizer.weight_decay", "-1"}},
                      "dense.optimizer.weight_decay: -1, must be at least 0"},
        Contradiction{{{"dense.optimizer.clip_norm", "inf"}},
                      "dense.optimizer.clip_norm: inf, must be a finite number"}));

INSTANTIATE_TEST_SUITE_P(
    Cluster, ContradictionsTest,
    ::testing::Values(
        Contradiction{{{"cluster.transport", "77"}},
                      "cluster.transport: 77, must be one of AUTO, ZMQ, SHM, RDMA"},
        Contradiction{{{"cluster.workers", "0"}}, "cluster.workers: 0, must be 1 to 1024"},
        Contradiction{{{"cluster.workers", "1025"}}, "cluster.workers: 1025, must be 1 to 1024"},
        Contradiction{{{"cluster.servers", "-1"}}, "cluster.servers: -1, must be 0 to 1024"},
        Contradiction{{{"cluster.shards_per_server", "256"}},
                      "cluster.shards_per_server: 256, must be 1 to 255"},
        Contradiction{{{"cluster.ranges_per_shard", "-1"}},
                      "cluster.ranges_per_shard: -1, must be 1 to 4096"},
        Contradiction{{{"cluster.servers", "1000"}, {"cluster.shards_per_server", "255"}},
                      "cluster.ranges_per_shard: servers (or workers) x shards_per_server x "
                      "ranges_per_shard is 2550000 ranges a table, at most 65536"},
        Contradiction{{{"cluster.threads_per_worker", "-1"}},
                      "cluster.threads_per_worker: -1, must be 1 to 1024"}));

constexpr char kShardedOf[] = "table[0].placement";

INSTANTIATE_TEST_SUITE_P(
    TablesOnWorkers, ContradictionsTest,
    ::testing::Values(
        Contradiction{{{"cluster.servers", "0"}},
                      "cluster.servers: 0, or not set, but table \"ids\" is on servers; say "
                      "servers: 1, or give the table placement: SHARDED"},
        Contradiction{
            {{"cluster.servers", "0"}, {kShardedOf, "SHARDED"}, {"dense.synchroniser", "SERVERS"}},
            "cluster.servers: 0, or not set, but dense.synchroniser is SERVERS; say "
            "servers: 1, or ALLREDUCE"},
        Contradiction{
            {{"cluster.servers", "0"}, {kShardedOf, "SHARDED"}, {"cluster.pin_servers", "true"}},
            "cluster.pin_servers: true, but the job has no servers; leave it out"},
        Contradiction{{{kShardedOf, "SHARDED"}, {"policy.kind", "ASP"}},
                      "table[0].placement: SHARDED, and the policy is ASP; workers that hold "
                      "the rows take every step together: say policy { kind: BSP }, or "
                      "synchroniser: SERVERS"},
        Contradiction{{{kShardedOf, "REPLICATED"}, {"staleness.record_order", "true"}},
                      "table[0].placement: REPLICATED: a read is of one copy and an update "
                      "goes to all, so no order says what was read; use SHARDED, or drop "
                      "staleness.record_order"},
        Contradiction{{{kShardedOf, "REPLICATED"},
                       {"dense",
                        "{synchroniser: EASGD local_steps {sync_every: 4} optimizer "
                        "{learning_rate: 0.1}}"}},
                      "table[0].placement: REPLICATED, and dense.synchroniser is EASGD, under "
                      "which workers step by themselves; use ALLREDUCE there, or SERVERS here"}));

// Only tables that workers hold are cut by workers.
TEST(TablesOnWorkersTest, ManyWorkersOfTablesOnServers) {
  const job::Overrides many = {
      {"cluster.workers", "1024"}, {"cluster.servers", "8"}, {"cluster.shards_per_server", "8"}};
  EXPECT_EQ(MustResolve(many).shards(), 64);
  job::Overrides sharded = many;
  sharded.push_back({kShardedOf, "SHARDED"});
  EXPECT_THAT(Refusal(kJob, sharded), HasSubstr("is 81920 ranges a table, at most 65536"));
}

// A view has all ranges of all tables, and is one message.
TEST(RangesTest, AreFewEnoughForAView) {
  std::string text = kJob;
  for (int t = 0; t < 8; ++t) {
    absl::StrAppend(&text, "table { name: \"t", t, "\" dim: 4 field: \"C", t + 1, "\" }\n");
  }
  job::Overrides ranges = {{"cluster.servers", "100"}, {"cluster.ranges_per_shard", "580"}};
  MustParse(text, ranges);  // 58,000 of each of nine tables
  ranges.push_back({"dense.synchroniser", "SERVERS"});
  EXPECT_THAT(
      Refusal(text, ranges),
      HasSubstr("cluster.ranges_per_shard: the sum over all tables of servers (or workers) x "
                "shards_per_server x ranges_per_shard is 580000 ranges, at most 524288"));
}

TEST(TablesOnWorkersTest, EachWorkerIsAServer) {
  const job::ResolvedJob plan =
      MustResolve({{"cluster.servers", "1"}, {"cluster.workers", "3"}, {kShardedOf, "SHARDED"}});
  EXPECT_EQ(plan.server_processes(), 1);
  EXPECT_EQ(plan.servers(), 4);
  EXPECT_EQ(plan.HoldersOf(plan.tables[0]).first, 1);
  EXPECT_EQ(plan.HoldersOf(plan.tables[0]).count, 3);
  EXPECT_EQ(plan.CopiesOf(plan.tables[0]), 1);
  const job::ResolvedJob copies =
      MustResolve({{"cluster.servers", "0"}, {kShardedOf, "REPLICATED"}});
  EXPECT_EQ(copies.servers(), 2);
  EXPECT_EQ(copies.CopiesOf(copies.tables[0]), 2);
  const job::ResolvedJob frozen = MustResolve(
      {{"cluster.servers", "0"}, {kShardedOf, "REPLICATED"}, {"table[0].frozen", "true"}});
  EXPECT_EQ(frozen.CopiesOf(frozen.tables[0]), 2);
  EXPECT_THAT(job::ResumeDifferences(plan.job, MustResolve({{"cluster.workers", "3"}}).job),
              ::testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    Training, ContradictionsTest,
    ::testing::Values(
        Contradiction{{{"train.batch_size", "0"}},
                      "train.batch_size: not set; the rows of a step on each worker, such as 1024"},
        Contradiction{{{"train.batch_size", "-1"}}, "train.batch_size: -1, must be 1 to 16777216"},
        Contradiction{{{"train.epochs", "-1"}},
                      "train.epochs: -1, must be at least 1; evaluate_only: true takes no step"},
        Contradiction{{{"train.epochs", "0"}},
                      "train.epochs: 0, must be at least 1; evaluate_only: true takes no step"},
        Contradiction{{{"train.max_steps", "-1"}}, "train.max_steps: -1, must be at least 0"},
        Contradiction{{{"train.prefetch_steps", "-1"}},
                      "train.prefetch_steps: -1, must be 0 to 1024"},
        Contradiction{{{"train.max_inflight_pushes", "-1"}},
                      "train.max_inflight_pushes: -1, must be 1 to 1024"},
        Contradiction{{{"train.keep_best", "{}"}},
                      "train.keep_best: needs rows to judge by that are no test rows; name them, "
                      "as in data { validation { last_fraction: 0.1 } }"},
        Contradiction{{{"train.keep_best.patience", "-1"}},
                      "train.keep_best.patience: -1, must be at least 0"},
        Contradiction{{{"evaluation.every_epochs", "-1"}},
                      "evaluation.every_epochs: -1, must be at least 0"},
        Contradiction{{{"evaluation.batch_size", "-1"}},
                      "evaluation.batch_size: -1, must be 1 to 16777216"},
        Contradiction{
            {{"data.format", "NCF"}, {"model", "{mlp {hidden: 8}}"}, {"evaluation.top_k", "-1"}},
            "evaluation.top_k: -1, must be 1 to 1048576"},
        Contradiction{{{"evaluation.top_k", "5"}},
                      "evaluation.top_k: 5; only for data.format NCF, whose test rows are ranked; "
                      "leave it out"},
        Contradiction{{{"limits.report_interval_seconds", "-1"}},
                      "limits.report_interval_seconds: -1, must be above 0"},
        Contradiction{{{"limits.stall_timeout_seconds", "nan"}},
                      "limits.stall_timeout_seconds: nan, must be a finite number"},
        Contradiction{{{"limits.startup_timeout_seconds", "-1"}},
                      "limits.startup_timeout_seconds: -1, must be above 0"},
        Contradiction{{{"limits.held_bytes_per_shard", "-1"}},
                      "limits.held_bytes_per_shard: -1, must be 1 to 1125899906842624"},
        Contradiction{{{"model", "{}"}},
                      "model: not set; one of logistic_regression, mlp, dlrm, gmf, neumf, program, "
                      "script, such as "
                      "dlrm {}"},
        Contradiction{{{"model.mlp.hidden", "[8, 0]"}},
                      "model.mlp.hidden[1]: 0, must be 1 to 65536"},
        Contradiction{{{"model.neumf.hidden", "[-8]"}},
                      "model.neumf.hidden[0]: -8, must be 1 to 65536"},
        Contradiction{
            {{"model.dlrm.bottom", "[]"}},
            "model.dlrm.bottom: not set; widths such as bottom: [64, 16], the last one dim"},
        Contradiction{{{"model.dlrm.bottom", "[8]"}},
                      "model.dlrm.bottom: the last width is 8 and table \"ids\" has dim 4; DLRM "
                      "multiplies them, so they must be equal"}));

INSTANTIATE_TEST_SUITE_P(
    DataSettings, ContradictionsTest,
    ::testing::Values(
        Contradiction{
            {{"data.format", "FORMAT_UNSPECIFIED"}},
            "data.format: not set; one of CRITEO, LIBSVM, DELIMITED, NCF, PARQUET, PROGRAM"},
        Contradiction{{{"data.train", "[]"}}, "data.train: no files to train on"},
        Contradiction{
            {{"data.columns.label", "0"}},
            "data.columns: only for formats DELIMITED and PARQUET; CRITEO has fixed columns"},
        Contradiction{
            {{"data.format", "DELIMITED"}},
            "data.columns: not set; format DELIMITED needs label, numeric and categorical"},
        Contradiction{{{"data.negatives.per_positive", "4"}},
                      "data.negatives: only for format NCF; CRITEO rows carry their label"},
        Contradiction{{{"data.format", "NCF"}, {"data.negatives.per_positive", "-4"}},
                      "data.negatives.per_positive: -4, must be 1 to 1000"},
        Contradiction{{{"data.format", "NCF"}, {"data.test", "x"}},
                      "data.negatives.test_negatives: not set, and test is; NCF ranks each row of "
                      "`test` against the candidates of this file"},
        Contradiction{{{"data.format", "NCF"}, {"data.negatives.test_negatives", "x"}},
                      "data.negatives.test_negatives: set, and test is not; NCF ranks each row of "
                      "`test` against the candidates of this file"},
        Contradiction{{{"data.format", "NCF"}, {"data.test_fraction", "0.5"}},
                      "data.test_fraction: not for NCF; its test rows come from `test`"},
        Contradiction{{{"data.test_fraction", "1"}},
                      "data.test_fraction: 1, must be at least 0 and below 1"},
        Contradiction{
            {{"data.test_fraction", "0.1"}, {"data.test", "x"}},
            "data.test_fraction: set together with `test`; keep the files or the fraction, "
            "not both"},
        Contradiction{{{"data.validation", "{}"}},
                      "data.validation: empty; say one of files, fraction and last_fraction"},
        Contradiction{{{"data.validation", "{fraction: 0.1 last_fraction: 0.1}"}},
                      "data.validation: set in more than one way; say one of files, fraction and "
                      "last_fraction"},
        Contradiction{{{"data.validation.fraction", "1"}},
                      "data.validation.fraction: 1, must be above 0 and below 1"},
        Contradiction{{{"data.format", "NCF"}, {"data.shuffle_buffer", "100"}},
                      "data.shuffle_buffer: 100; not for NCF, whose rows are all shuffled in each "
                      "epoch; leave it out"},
        Contradiction{{{"data.format", "NCF"}, {"data.validation.files", "x"}},
                      "data.validation: not for NCF, which ranks test rows against candidates"},
        Contradiction{{{"data.max_bad_rows", "-1"}}, "data.max_bad_rows: -1, must be at least 0"},
        Contradiction{{{"data.statistics", "{}"}},
                      "data.statistics: only for formats DELIMITED and PARQUET, whose columns are "
                      "standardised"},
        Contradiction{{{"data.format", "NCF"}, {"data.deal", "BLOCKS"}},
                      "data.deal: BLOCKS; not for NCF, whose rows are all in the memory of each "
                      "worker; leave it out"},
        Contradiction{{{"data.border", "[{row: 5}]"}},
                      "data.border: 1 of them, expected none or 3; tandem run writes it; leave it "
                      "out"},
        Contradiction{{{"data.shuffle_buffer", "-1"}},
                      "data.shuffle_buffer: -1, must be at least 0"},
        Contradiction{{{"data.max_rows", "-1"}}, "data.max_rows: -1, must be at least 0"}));

// Column specifications start from DELIMITED with a label and one input.
class ColumnsTest : public ::testing::TestWithParam<Contradiction> {};

TEST_P(ColumnsTest, IsRefusedWithThisMessage) {
  job::Overrides overrides = {{"data.format", "DELIMITED"},
                              {"data.columns.label", "0"},
                              {"data.columns.numeric", "[\"1\"]"}};
  MustParse(kJob, overrides);
  overrides.insert(overrides.end(), GetParam().set.begin(), GetParam().set.end());
  EXPECT_THAT(Refusal(kJob, overrides), EndsWith(": " + GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(
    Columns, ColumnsTest,
    ::testing::Values(
        Contradiction{{{"data.columns.delimiter", "a\"b"}},
                      "data.columns.delimiter: \"a\\\"b\", must be without quotes and line ends"},
        Contradiction{{{"data.columns.decimal", "x"}},
                      "data.columns.decimal: \"x\", must be \".\" or \",\""},
        Contradiction{
            {{"data.columns.decimal", ","},
             {"data.columns.delimiter", ","},
             {"data.columns.quotes", "NONE"}},
            "data.columns.decimal: \",\" separates the cells (data.columns.delimiter), and "
            "quotes are NONE"},
        Contradiction{{{"data.columns.label", ""}},
                      "data.columns.label: not set; say which column is the label"},
        Contradiction{{{"data.columns.label", "clicked"}},
                      "data.columns.label: column \"clicked\" is not a number from 0; set "
                      "columns.header: true if the first line has names"},
        Contradiction{{{"data.columns.label", "gr\xc3\xb6\xc3\x9f\x65\x01\xfc"}},
                      "data.columns.label: column \"gr\xc3\xb6\xc3\x9f\x65\\x01\\xfc\" is not a "
                      "number from 0; set columns.header: true if the first line has names"},
        Contradiction{{{"data.columns.numeric[0]", "-1"}},
                      "data.columns.numeric[0]: column \"-1\" is not a number from 0; set "
                      "columns.header: true if the first line has names"},
        Contradiction{{{"data.columns.categorical", "[\"2\", \"2\"]"}},
                      "data.columns.categorical[1]: column \"2\" is used twice"},
        Contradiction{{{"data.columns.categorical", "[\"0\"]"}},
                      "data.columns.categorical[0]: column \"0\" is used twice"},
        Contradiction{{{"data.columns.numeric", "[\"1\", \"0\"]"}},
                      "data.columns.numeric[1]: column \"0\" is used twice"},
        Contradiction{{{"data.columns.numeric", "[\"\"]"}},
                      "data.columns.numeric[0]: a column without a name"},
        Contradiction{{{"data.columns.positive", "[\"a\", \"b\"]"}, {"data.columns.negative", "b"}},
                      "data.columns.negative[0]: \"b\" counts as 1 by data.columns.positive; a "
                      "label counts as 1 or as 0"},
        Contradiction{{{"data.columns.column", "{missing: 'x'}"}},
                      "data.columns.column[0].name: not set; say which column is meant"},
        Contradiction{
            {{"data.columns.categorical", "2"}, {"data.columns.column", "{name: '2' log: true}"}},
            "data.columns.column[0]: \"2\" is categorical; fill, clip, log, date and scale are "
            "for numeric columns"},
        Contradiction{
            {{"data.columns.categorical", "2"}, {"data.columns.column", "{name: '2' date: '%Y'}"}},
            "data.columns.column[0]: \"2\" is categorical; fill, clip, log, date and "
            "scale are for numeric columns"},
        Contradiction{{{"data.columns.column", "{name: '1' date: 'dd.mm.yyyy'}"}},
                      "data.columns.column[0].date: \"dd.mm.yyyy\" is not the form of a date; "
                      "31.12.2024 is \"%d.%m.%Y\", 2024-12-31 12:05:06 is \"%Y-%m-%d %H:%M:%S\""},
        Contradiction{{{"data.columns.column", "{name: '1' date: '%Y %j'}"}},
                      "data.columns.column[0].date: \"%Y %j\" is not the form of a date; "
                      "31.12.2024 is \"%d.%m.%Y\", 2024-12-31 12:05:06 is \"%Y-%m-%d %H:%M:%S\""},
        Contradiction{
            {{"data.columns.column", "{name: '1' date_unit: DAYS}"}},
            "data.columns.column[0].date_unit: set without `date`, which says what a date "
            "looks like"},
        Contradiction{{{"data.columns.column", "{name: '1' separator: '|'}"}},
                      "data.columns.column[0]: \"1\" has a separator, but is not in "
                      "data.columns.categorical; cells of several ids are categorical"},
        Contradiction{{{"data.columns.categorical", "2"},
                       {"data.columns.column", "{name: '2' pooling: MEAN}"}},
                      "data.columns.column[0]: \"2\" has one id a cell; pooling and max_ids need "
                      "`separator`"},
        Contradiction{{{"data.format", "PARQUET"}, {"data.columns.quotes", "NONE"}},
                      "data.columns: delimiter, trim, quotes and decimal are for text; leave them "
                      "out"},
        Contradiction{{{"data.format", "PARQUET"},
                       {"data.columns.categorical", "2"},
                       {"data.columns.column", "{name: '2' max_ids: 3}"}},
                      "data.columns.column[0]: \"2\" has one id a cell; max_ids needs `pooling`, "
                      "which a list has, or `separator`"},
        Contradiction{{{"data.columns.column", "{name: '1' ids: RAW}"}},
                      "data.columns.column[0].ids: RAW, but \"1\" is not in "
                      "data.columns.categorical; numbers have no ids"},
        Contradiction{{{"data.train", "s3://bucket/rows.csv"}},
                      "data.train: \"s3://bucket/rows.csv\" is an address, which only format "
                      "PARQUET reads; copy it"},
        Contradiction{{{"data.columns.categorical", "2"},
                       {"data.columns.column", "{name: '2' separator: '|' max_ids: -1}"}},
                      "data.columns.column[0].max_ids: -1, must be 1 to 1048576"},
        Contradiction{{{"data.columns.categorical", "2"},
                       {"data.columns.quotes", "NONE"},
                       {"data.columns.column", "{name: '2' separator: '\\t'}"}},
                      "data.columns.column[0].separator: \"\\t\" separates the cells themselves "
                      "(data.columns.delimiter)"},
        Contradiction{{{"data.columns.column", "{name: '1' clip_min: 2 clip_max: 2}"}},
                      "data.columns.column[0].clip_max: 2, must be above clip_min, which is 2"},
        Contradiction{{{"data.columns.column", "{name: '1' fill: inf}"}},
                      "data.columns.column[0].fill: inf, must be a finite number"},
        Contradiction{{{"data.columns.statistics_rows", "-1"}},
                      "data.columns.statistics_rows: -1, must be at least 0"},
        Contradiction{{{"data.columns.statistics_rows", "5"}, {"data.columns.scale", "NONE"}},
                      "data.columns.statistics_rows: 5, but no numeric column has scale "
                      "STANDARDISE; leave it out"},
        Contradiction{{{"data.max_bad_rows", "5"}, {"data.columns.positive", "yes"}},
                      "data.columns.negative: not set, but data.max_bad_rows is; name the labels "
                      "that count as 0, so that a bad label is seen as one"},
        Contradiction{{{"data.statistics", "{column {name: '1' mean: nan}}"}},
                      "data.statistics.column[0].mean: nan, must be a finite number"},
        Contradiction{{{"data.columns.column", "{name: '0'}"}},
                      "data.columns.column[0].name: \"0\" is not in data.columns.numeric or "
                      "categorical"},
        Contradiction{{{"data.columns.column", "[{name: '1'}, {name: '1'}]"}},
                      "data.columns.column[1].name: \"1\" has a `column` already; put all into "
                      "that one"},
        Contradiction{{{"data.columns.numeric", "[]"}},
                      "data.columns: no numeric and no categorical column; a model needs inputs"}));

// `--set` takes a list where a list is due, and nowhere else.
TEST(OverrideTest, AListIsAListAndATextIsAText) {
  const job::Overrides delimited = {{"data.format", "DELIMITED"},
                                    {"data.columns.label", "0"},
                                    {"data.columns.numeric", "[\"1\"]"}};
  job::Overrides overrides = delimited;
  overrides.emplace_back("data.columns.missing", "[\"XX\",\"NA\"]");
  const Job job = MustParse(kJob, overrides);
  EXPECT_THAT(job.data().columns().missing(), ElementsAre("XX", "NA"));
  for (const auto& [path, refusal] :
       job::Overrides{{"data.columns.label", "is one text, not a list"},
                      {"name", "is one text, not a list"},
                      {"data.train[0]", "takes one value"}}) {
    overrides = delimited;
    overrides.emplace_back(path, "[\"XX\",\"NA\"]");
    EXPECT_THAT(Refusal(kJob, overrides), HasSubstr(refusal)) << path;
  }
  overrides = delimited;
  overrides.emplace_back("name", "\"[x]\"");
  EXPECT_EQ(MustParse(kJob, overrides).name(), "[x]");
}

TEST(ContradictionTest, ZerosAreNoFaultWhereNumbersOrOtherTablesWakeTheHiddenUnits) {
  const job::Overrides zeros = {{"model", "{mlp {hidden: 8}}"},
                                {"table[0].initializer", "{kind: ZERO}"}};
  MustParse(kJob, zeros);  // CRITEO has numbers
  MustParse(kJob, {{"data.format", "LIBSVM"},
                   {"table[0].dim", "1"},
                   {"model", "{logistic_regression {}}"},
                   {"table[0].initializer", "{kind: ZERO}"}});
}

TEST(ContradictionTest, AColumnMayBeANumberAndACategory) {
  const job::ResolvedJob plan = MustResolve({{"data.format", "DELIMITED"},
                                             {"data.columns.label", "0"},
                                             {"data.columns.numeric", "1"},
                                             {"data.columns.categorical", "1"},
                                             {"data.columns.column", "{name: '1' log: true}"}});
  EXPECT_EQ(plan.job.data().columns().column(0).max_ids(), 0);
}

TEST(DefaultsTest, LabelsThatTheJobDoesNotName) {
  const auto labels = [](const job::Overrides& more) {
    job::Overrides set = {{"data.format", "DELIMITED"},
                          {"data.columns.label", "0"},
                          {"data.columns.numeric", "[\"1\"]"},
                          {"data.columns.categorical", "2"}};
    set.insert(set.end(), more.begin(), more.end());
    return MustResolve(set).job.data().columns();
  };
  EXPECT_THAT(labels({}).positive(), ElementsAre("1", "True", "true", "TRUE"));
  EXPECT_THAT(labels({}).negative(), ElementsAre("0", "False", "false", "FALSE"));
  EXPECT_THAT(labels({{"data.columns.missing", "0"}}).negative(),
              ElementsAre("False", "false", "FALSE"));
  EXPECT_THAT(labels({{"data.columns.positive", "2"}}).negative(), ElementsAre())
      << "the data say which one";
  EXPECT_THAT(labels({{"data.columns.negative", "-1"}}).negative(), ElementsAre("-1"));
  EXPECT_THAT(labels({{"data.columns.negative", "1"}}).positive(),
              ElementsAre("True", "true", "TRUE"));
}

TEST(ContradictionTest, LibsvmTakesLabelsAlone) {
  const job::Overrides libsvm = {
      {"data.format", "LIBSVM"}, {"data.columns.positive", "2"}, {"model", "{mlp {hidden: [8]}}"}};
  MustParse(kJob, libsvm);
  job::Overrides more = libsvm;
  more.emplace_back("data.columns.label", "0");
  EXPECT_THAT(Refusal(kJob, more), HasSubstr("LIBSVM takes `positive` and `negative` alone"));
  EXPECT_THAT(Refusal(kJob, {{"data.format", "LIBSVM"}, {"data.columns.negative", "1"}}),
              HasSubstr("data.columns.positive: not set"));
}

TEST(ContradictionTest, DepthIsAllowedWhereReadsAreOnlyParked) {
  // BSP and fixed delay: a read may be sent early, it is parked until its version is there.
  EXPECT_EQ(MustResolve({{"train.prefetch_steps", "3"}}).job.train().prefetch_steps(), 3);
  MustResolve({{"train.prefetch_steps", "3"}, {"policy", "{kind: FIXED_DELAY delay: 1}"}});
  MustResolve({{"train.prefetch_steps", "3"}, {"policy", "{kind: ASP}"}});
  MustResolve({{"train.prefetch_steps", "3"}, {"policy", "{kind: SSP bound: 3}"}});
}

TEST(ContradictionTest, OnlyNeuMfReadsAFieldThroughTwoTables) {
  const std::pair<std::string, std::string> neumf = {"model", "{neumf {hidden: 8}}"};
  const std::string tables =
      "{name: 'a' dim: 4 field: 'user'}, {name: 'b' dim: 4 field: 'item'}, "
      "{name: 'c' dim: 4 field: 'user'}, {name: 'd' dim: 4 field: 'item'";
  MustResolve({neumf, {"table", absl::StrCat("[", tables, "}]")}});
  EXPECT_THAT(Refusal(kJob, {neumf, {"table", absl::StrCat("[", tables, " field: 'item'}]")}}),
              HasSubstr("field \"item\" is claimed by"));
}

TEST(ContradictionTest, OneWorkerMayBeAsynchronousAndReproducible) {
  MustResolve({{"cluster.workers", "1"}, {"policy.kind", "ASP"}, {"reproducible", "true"}});
}

TEST(ResolveTest, FillsDocumentedDefaults) {
  const job::ResolvedJob plan = MustResolve({});
  const Job& job = plan.job;
  EXPECT_EQ(plan.shards(), 2);
  EXPECT_EQ(job.cluster().ranges_per_shard(), 10);
  EXPECT_EQ(job.cluster().threads_per_worker(), 1);
  EXPECT_EQ(job.policy().kind(), Policy::BSP);
  EXPECT_EQ(job.policy().async_scale(), Policy::ONE);
  EXPECT_EQ(job.dense().synchroniser(), Dense::ALLREDUCE);
  EXPECT_EQ(job.dense().algorithm(), Dense::AUTO);
  EXPECT_EQ(job.dense().optimizer().kind(), Optimizer::SGD);
  EXPECT_EQ(job.train().epochs(), 1);
  EXPECT_EQ(job.train().max_inflight_pushes(), 4);
  EXPECT_EQ(job.evaluation().batch_size(), 4096);
  EXPECT_EQ(job.evaluation().top_k(), 0);  // nothing is ranked
  EXPECT_EQ(job.limits().report_interval_seconds(), 1);
  EXPECT_EQ(job.limits().stall_timeout_seconds(), 600);
  EXPECT_EQ(job.limits().held_bytes_per_shard(), int64_t{1} << 30);
  EXPECT_EQ(job.limits().startup_timeout_seconds(), 60);
  EXPECT_EQ(plan.tables[0].expected_rows, 1000000);
  EXPECT_EQ(plan.tables[0].initializer.kind(), Initializer::UNIFORM);
  EXPECT_EQ(plan.tables[0].initializer.scale(), 0.5);  // 1 / sqrt(4)
}

TEST(ResolveTest, OptimizerDefaultsByKind) {
  const Optimizer adam = MustResolve({{"dense.optimizer.kind", "ADAM"}}).job.dense().optimizer();
  EXPECT_EQ(adam.beta1(), 0.9);
  EXPECT_EQ(adam.beta2(), 0.999);
  EXPECT_EQ(adam.epsilon(), 1e-8);
  EXPECT_EQ(adam.momentum(), 0);
  EXPECT_EQ(MustResolve({{"dense.optimizer.kind", "MOMENTUM"}}).job.dense().optimizer().momentum(),
            0.9);
  EXPECT_EQ(MustResolve({{"dense.optimizer.kind", "ADAGRAD"}}).job.dense().optimizer().epsilon(),
            1e-8);
  const Optimizer lion = MustResolve({{"dense.optimizer.kind", "LION"}}).job.dense().optimizer();
  EXPECT_EQ(lion.beta1(), 0.9);
  EXPECT_EQ(lion.beta2(), 0.99);
  EXPECT_EQ(lion.epsilon(), 0);
  const Optimizer rms = MustResolve({{"dense.optimizer.kind", "RMSPROP"}}).job.dense().optimizer();
  EXPECT_EQ(rms.beta1(), 0);
  EXPECT_EQ(rms.beta2(), 0.99);
  EXPECT_EQ(rms.epsilon(), 1e-8);
  const Optimizer ftrl = MustResolve({{"dense.optimizer.kind", "FTRL"}}).job.dense().optimizer();
  EXPECT_EQ(ftrl.ftrl_beta(), 1);
  EXPECT_EQ(ftrl.l1(), 0);
  EXPECT_EQ(ftrl.beta2(), 0);
  const job::Overrides with_muon = {{"dense.optimizer.kind", "MUON"},
                                    {"table[0].optimizer", "{kind: ADAMW learning_rate: 1}"}};
  Optimizer muon = MustResolve(with_muon).job.dense().optimizer();
  EXPECT_EQ(muon.momentum(), 0.95);
  muon.clear_momentum();
  muon.set_kind(Optimizer::ADAM);
  EXPECT_EQ(muon.DebugString(), adam.DebugString());
  for (const char* kind : {"AMSGRAD", "ADAMW"}) {
    Optimizer same = MustResolve({{"dense.optimizer.kind", kind}}).job.dense().optimizer();
    same.set_kind(Optimizer::ADAM);
    EXPECT_EQ(same.DebugString(), adam.DebugString()) << kind;
  }
}

// A dense parameter is in each step.
TEST(ResolveTest, AdamOfATableCountsByTableUnlessTheJobSaysRow) {
  const auto count = [](const job::Overrides& overrides) {
    const job::ResolvedJob plan = MustResolve(overrides);
    EXPECT_EQ(plan.job.dense().optimizer().step_count(), Optimizer::STEP_COUNT_UNSPECIFIED);
    EXPECT_EQ(plan.job.table(0).optimizer().step_count(), plan.tables[0].optimizer.step_count());
    return plan.tables[0].optimizer.step_count();
  };
  EXPECT_EQ(count({}), Optimizer::STEP_COUNT_UNSPECIFIED) << "SGD";
  EXPECT_EQ(count({{"dense.optimizer.kind", "ADAM"}}), Optimizer::TABLE);
  for (const char* kind : {"ADAM", "AMSGRAD", "ADAMW", "ROWWISE_ADAM"}) {
    EXPECT_EQ(count({{"table[0].optimizer", absl::StrCat("{kind: ", kind, " learning_rate: 1}")}}),
              Optimizer::TABLE);
  }
  EXPECT_EQ(count({{"dense.optimizer.kind", "ADAM"}, {"table[0].optimizer.step_count", "ROW"}}),
            Optimizer::ROW);
}

TEST(ResolveTest, ReproducibleMeansDirect) {
  EXPECT_EQ(MustResolve({{"reproducible", "true"}}).job.dense().algorithm(), Dense::DIRECT);
  EXPECT_EQ(MustResolve({{"reproducible", "true"}}).job.data().deal(), Data::ROWS);
  EXPECT_EQ(MustResolve({}).job.data().deal(), Data::DEAL_UNSPECIFIED) << "the files decide";
}

TEST(ResolveTest, TablesInheritWhatTheyDoNotSay) {
  const job::ResolvedJob plan = MustResolve({{"dense.optimizer", "{kind: ADAM learning_rate: 0.5}"},
                                             {"table[0].optimizer.learning_rate", "0.25"},
                                             {"policy", "{kind: SSP bound: 4}"},
                                             {"table[0].policy.bound", "8"}});
  EXPECT_EQ(plan.tables[0].optimizer.kind(), Optimizer::ADAM);
  EXPECT_EQ(plan.tables[0].optimizer.learning_rate(), 0.25);
  EXPECT_EQ(job::PolicyName(plan.groups[0].policy), "SSP(8)");
}

TEST(ResolveTest, AKindOfItsOwnStandsAlone) {
  const job::ResolvedJob plan =
      MustResolve({{"policy", "{kind: SSP bound: 4 async_scale: INVERSE_WORKERS}"},
                   {"table[0].policy.kind", "ASP"}});
  EXPECT_EQ(job::PolicyName(plan.groups[0].policy), "ASP");
  EXPECT_EQ(plan.groups[0].policy.async_scale(), Policy::ONE);
}

TEST(ResolveTest, TablesAreNumberedAndSalted) {
  const job::ResolvedJob plan = MustResolve(
      {{"table", "[{name: 'user' dim: 4 field: 'C1'}, {name: 'rest' dim: 4 frozen: true}]"}});
  ASSERT_EQ(plan.tables.size(), 2u);
  EXPECT_EQ(plan.tables[0].id, 0u);
  EXPECT_EQ(plan.tables[1].id, 1u);
  EXPECT_THAT(plan.tables[0].fields, ElementsAre("C1"));
  EXPECT_TRUE(plan.tables[1].frozen);
  EXPECT_EQ(plan.tables[0].salt, HashCombine(7, HashName("user")));
  const std::set<uint64_t> distinct = {plan.tables[0].salt, plan.tables[0].seed,
                                       plan.tables[1].salt, plan.tables[1].seed};
  EXPECT_EQ(distinct.size(), 4u);
  EXPECT_EQ(plan.dense_table, -1);
}

TEST(ResolveTest, DenseTableComesLastAndSharesItsGroup) {
  const job::ResolvedJob plan = MustResolve({{"dense.synchroniser", "SERVERS"},
                                             {"policy.kind", "ASP"},
                                             {"table",
                                              "[{name: 'a' dim: 4 field: 'C1' policy {kind: BSP}},"
                                              " {name: 'b' dim: 4}]"}});
  ASSERT_EQ(plan.tables.size(), 3u);
  EXPECT_EQ(plan.dense_table, 2);
  EXPECT_TRUE(plan.tables[2].dense);
  EXPECT_EQ(plan.tables[2].name, job::kDenseTableName);
  EXPECT_EQ(plan.tables[2].dim, job::kDenseBlockFloats);
  ASSERT_EQ(plan.groups.size(), 2u);
  EXPECT_THAT(plan.groups[0].tables, ElementsAre(0u));
  EXPECT_THAT(plan.groups[1].tables, ElementsAre(1u, 2u));
  EXPECT_EQ(plan.tables[2].group, 1u);
}

TEST(ResolveTest, LockstepIfAnyPartIs) {
  EXPECT_TRUE(MustResolve({}).lockstep);
  EXPECT_TRUE(MustResolve({{"policy.kind", "ASP"}}).lockstep);  // dense by allreduce
  const std::pair<std::string, std::string> servers = {"dense.synchroniser", "SERVERS"};
  EXPECT_FALSE(MustResolve({{"policy.kind", "ASP"}, servers}).lockstep);
  EXPECT_FALSE(MustResolve({{"policy", "{kind: SSP bound: 1}"}, servers}).lockstep);
  EXPECT_TRUE(MustResolve({{"policy", "{kind: FIXED_DELAY delay: 1}"}, servers}).lockstep);
  EXPECT_TRUE(
      MustResolve({{"policy.kind", "ASP"}, servers, {"dense.policy.kind", "BSP"}}).lockstep);
}

TEST(ResolveTest, HashIsThatOfTheResolvedJob) {
  EXPECT_EQ(MustResolve({}).hash, MustResolve({}).hash);
  // Saying a default aloud changes nothing; changing anything does.
  EXPECT_EQ(MustResolve({}).hash, MustResolve({{"cluster.ranges_per_shard", "10"}}).hash);
  EXPECT_NE(MustResolve({}).hash, MustResolve({{"seed", "8"}}).hash);
  EXPECT_NE(MustResolve({}).hash, MustResolve({{"policy.kind", "ASP"}}).hash);
}

TEST(ResolveTest, ResolvedTextParsesToTheSamePlan) {
  const std::vector<job::Overrides> jobs = {
      {},
      {{"policy", "{kind: SSP bound: 4}"}, {"dense.synchroniser", "SERVERS"}},
      {{"policy", "{kind: FIXED_DELAY delay: 0}"}, {"reproducible", "true"}},
      {{"dense.optimizer.kind", "ADAM"}, {"table[0].policy.kind", "ASP"}},
      {{"data.format", "NCF"}, {"model", "{mlp {hidden: 8}}"}}};
  for (const job::Overrides& overrides : jobs) {
    const job::ResolvedJob plan = MustResolve(overrides);
    const std::string text = job::ResolvedText(plan);
    const absl::StatusOr<job::ResolvedJob> again = job::Resolve(MustParse(text));
    ASSERT_TRUE(again.ok()) << again.status() << "\n" << text;
    EXPECT_TRUE(google::protobuf::util::MessageDifferencer::Equals(plan.job, again->job)) << text;
    EXPECT_EQ(plan.hash, again->hash);
  }
}

TEST(ResolveTest, ResolvedTextNamesTheGroups) {
  EXPECT_THAT(job::ResolvedText(MustResolve({{"policy.kind", "ASP"}})),
              StartsWith("# Every default filled in.\n# ASP: ids\n# dense: ALLREDUCE(AUTO)\n"));
}

TEST(ResolveTest, WorkersThatStepByThemselvesHaveDefaults) {
  const job::ResolvedJob local = MustResolve(Local("LOCAL_SGD", "sync_every: 8"));
  EXPECT_EQ(local.job.dense().local_steps().outer_learning_rate(), 1);
  EXPECT_EQ(local.job.dense().local_steps().elasticity(), 0);
  EXPECT_EQ(job::DenseName(local.job.dense()), "LOCAL_SGD(8)");
  EXPECT_EQ(local.job.dense().local_steps().outer_optimizer(),
            LocalSteps::OUTER_OPTIMIZER_UNSPECIFIED);
  const auto outer = [](const std::string& set) {
    return MustResolve(Local("LOCAL_SGD", "sync_every: 8 outer_momentum: 0.9" + set))
        .job.dense()
        .local_steps();
  };
  EXPECT_EQ(outer("").outer_optimizer(), LocalSteps::NESTEROV);
  EXPECT_EQ(outer("").momentum_rounds(), 0);
  EXPECT_EQ(outer(" outer_optimizer: DELAYED_NESTEROV").momentum_rounds(), 2) << "the workers";
  EXPECT_FALSE(outer("").has_heloco());
  const HeLoCo heloco = outer(" outer_optimizer: HELOCO heloco { turn: 0 }").heloco();
  EXPECT_EQ(heloco.turn(), 0);
  EXPECT_EQ(heloco.shrink(), 1);
  const job::ResolvedJob elastic =
      MustResolve(Local("EASGD", "sync_every: 8", {{"policy.kind", "ASP"}}));
  EXPECT_EQ(elastic.job.dense().local_steps().elasticity(), 0.45);
  EXPECT_TRUE(elastic.lockstep);  // all take the same steps
  EXPECT_THAT(job::ResolvedText(elastic), HasSubstr("# dense: EASGD(8)\n"));
}

TEST(ResolveTest, SumsThatDoNotWaitForAllAreNoLockstep) {
  const job::ResolvedJob plan = MustResolve(Majority({}));
  EXPECT_EQ(plan.job.dense().quorum_bound(), 4);
  EXPECT_FALSE(plan.lockstep);
  EXPECT_TRUE(job::SumsByQuorum(plan.job));
  EXPECT_THAT(job::ResolvedText(plan), HasSubstr("# dense: ALLREDUCE(AUTO, MAJORITY)\n"));
  // One worker has nobody to wait for.
  const job::ResolvedJob alone = MustResolve(Majority({{"cluster.workers", "1"}}));
  EXPECT_FALSE(job::SumsByQuorum(alone.job));
  EXPECT_TRUE(alone.lockstep);
}

// A worker that skips steps cannot take part in what all count together.
TEST(ResolveTest, BackupWorkersRefuseALockstepPart) {
  const std::string kind = "{kind: BACKUP_WORKERS backups: 1}";
  const job::Overrides job = {{"policy", kind}, {"cluster.workers", "3"}};
  const auto refusal = [&](job::Overrides more) {
    job::Overrides all = job;
    all.insert(all.end(), more.begin(), more.end());
    const absl::StatusOr<Job> parsed = job::ParseJob(kJob, "job.textproto", all);
    return std::string(parsed.status().message());
  };
  EXPECT_THAT(refusal({}), HasSubstr("the dense part under ALLREDUCE(AUTO) needs every worker in "
                                     "every step; put the dense part on servers"));
  EXPECT_THAT(refusal(Local("LOCAL_SGD", "sync_every: 8")),
              HasSubstr("the dense part under LOCAL_SGD(8) needs every worker in every step"));
  EXPECT_THAT(
      refusal(Local("LOCAL_SGD", "sync_every: 8 quorum: 2")),
      HasSubstr("dense.local_steps.quorum: 2: in table ids under BACKUP_WORKERS(1) a "
                "worker that is late skips steps, and so sync rounds; give tables SSP, ASP or "
                "another policy under which each worker takes all its steps"));
  EXPECT_EQ(refusal({{"dense.quorum", "SOLO"}}), "") << "sums go by the numbers of steps";
  EXPECT_THAT(refusal({{"dense.synchroniser", "SERVERS"}, {"dense.policy.kind", "BSP"}}),
              HasSubstr("table dense under BSP needs every worker in every step"));
  EXPECT_THAT(refusal({{"dense.synchroniser", "SERVERS"},
                       {"dense.policy", "{kind: SYNC_SWITCH switch_step: 5}"}}),
              HasSubstr("table dense under SYNC_SWITCH(5) needs every worker in every step"));
  EXPECT_EQ(refusal({{"dense.synchroniser", "SERVERS"}}), "");
  EXPECT_EQ(refusal({{"dense.synchroniser", "SERVERS"}, {"dense.policy.kind", "ASP"}}), "");
  EXPECT_EQ(refusal({{"dense.synchroniser", "SERVERS"},
                     {"dense.policy", "{kind: SYNC_SWITCH switch_step: 0}"}}),
            "");
}

// ---- jobs of a program ----

constexpr char kProgramJob[] = R"(cluster { workers: 2 servers: 2 }
data { format: PROGRAM }
table { name: "ids" dim: 8 field: "city" field: "offer" optimizer { kind: SGD learning_rate: 0.1 } }
table { name: "history" dim: 4 ids_per_field: 20 optimizer { kind: SGD learning_rate: 0.1 } }
dense { optimizer { kind: PROGRAM } }
model { program {} }
train { batch_size: 16 }
)";

TEST(ProgramJobTest, TablesNameTheFieldsAndBoundTheIds) {
  const absl::StatusOr<job::ResolvedJob> plan = job::Resolve(MustParse(kProgramJob));
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->tables[0].fields, ElementsAre("city", "offer"));
  EXPECT_THAT(plan->tables[1].fields, ElementsAre("history"));
  EXPECT_EQ(job::MaxIdsOfBatch(*plan, plan->tables[0]), 16 * 2);
  EXPECT_EQ(job::MaxIdsOfBatch(*plan, plan->tables[1]), 16 * 20);
}

TEST(ProgramJobTest, ANumberOfTheScriptDecidesByItsName) {
  const char* const ndcg = "{metric: REPORTED name: 'ndcg' smaller_is_better: true}";
  const absl::StatusOr<Job> job =
      job::ParseJob(kProgramJob, "job.textproto", {{"train.keep_best", ndcg}});
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->train().keep_best().name(), "ndcg");
  EXPECT_THAT(Refusal(kJob, {{"train.keep_best", ndcg}, {"data.validation.fraction", "0.1"}}),
              HasSubstr("train.keep_best.metric: REPORTED needs a script"));
  for (const auto& [keep, message] :
       {std::pair("{metric: REPORTED}", "train.keep_best.name: is not set; say which number"),
        {"{name: 'ndcg'}", "train.keep_best.name: ndcg needs metric: REPORTED"},
        {"{smaller_is_better: true}", "train.keep_best.smaller_is_better: needs metric: "}}) {
    EXPECT_THAT(Refusal(kProgramJob, {{"train.keep_best", keep}}), HasSubstr(message));
  }
}

TEST(ProgramJobTest, IsRefusedWhereItContradictsItself) {
  const auto expect = [](const job::Overrides& overrides, const char* message) {
    EXPECT_THAT(Refusal(kProgramJob, overrides), HasSubstr(message));
  };
  expect({{"data.train", "a.tsv"}}, "data.train: not for format PROGRAM, whose batches come from");
  expect({{"data.shuffle_buffer", "5"}}, "data.shuffle_buffer: not for format PROGRAM");
  expect({{"model", "{mlp {}}"}, {"dense.optimizer", "{learning_rate: 1}"}},
         "model: this one reads rows of files, and data.format is PROGRAM");
  expect({{"data", "{format: CRITEO train: 'a'}"}, {"table[1]", "{name: 'b' dim: 4 field: 'C1'}"}},
         "table[1].optimizer: PROGRAM is for dense parameters");
  expect({{"data", "{format: CRITEO train: 'a'}"}, {"table[1].ids_per_field", "0"}},
         "data.format: CRITEO, but the model is a program's");
  expect({{"table[0].optimizer", "{}"}}, "table[0].optimizer: PROGRAM is for dense parameters");
  expect({{"table[0].ids_per_field", "-1"}}, "table[0].ids_per_field: -1, must be 1 to");
  expect({{"dense.optimizer.learning_rate", "0.1"}},
         "dense.optimizer: settings beside kind PROGRAM; the program makes its optimizer");
  expect({{"dense.synchroniser", "SERVERS"}},
         "dense.optimizer.kind: PROGRAM steps on copies of the parameters");
  expect({{"dense.sharded_optimizer", "true"}}, "dense.sharded_optimizer: cuts the slots");
  expect({{"dense", "{device: CUDA optimizer {learning_rate: 1}}"}},
         "dense.device: CUDA is for compiled models");
  EXPECT_THAT(Refusal(kJob, {{"table[0].ids_per_field", "2"}}),
              HasSubstr("table[0].ids_per_field: only for data.format PROGRAM"));
  EXPECT_THAT(Refusal(kJob, {{"dense.optimizer", "{kind: PROGRAM}"},
                             {"table[0].optimizer", "{kind: SGD learning_rate: 1}"}}),
              HasSubstr("PROGRAM is the optimizer of a program"));
}

TEST(ScriptJobTest, NeedsItsFileAndRowsOfFiles) {
  EXPECT_TRUE(job::Resolve(MustParse(kJob, {{"model", "{script {file: 'm.pt'}}"}})).ok());
  EXPECT_THAT(Refusal(kJob, {{"model", "{script {}}"}}),
              HasSubstr("model.script.file: not set; a module as torch.jit.save writes it"));
  EXPECT_THAT(
      Refusal(kJob, {{"model", "{script {file: 'm.pt'}}"}, {"dense.device", "CUDA"}}),
      HasSubstr("dense.device: CUDA is for compiled models; a module from a file computes"));
  EXPECT_THAT(Refusal(kProgramJob, {{"model", "{script {file: 'm.pt'}}"}}),
              HasSubstr("model: this one reads rows of files, and data.format is PROGRAM"));
}

// Its contents are compared where the file is opened.
TEST(ScriptJobTest, AFileMayLieElsewhereWhenARunGoesOn) {
  const auto with = [](const char* model) { return MustParse(kJob, {{"model", model}}); };
  const Job was = with("{script {file: 'm.pt'}}");
  EXPECT_THAT(job::ResumeDifferences(was, with("{script {file: 'n.pt'}}")), testing::IsEmpty());
  EXPECT_THAT(job::ResumeDifferences(was, with("{mlp {}}")), testing::Not(testing::IsEmpty()));
}

TEST(PolicyNameTest, AllKinds) {
  Policy policy;
  policy.set_kind(Policy::BSP);
  EXPECT_EQ(job::PolicyName(policy), "BSP");
  policy.set_kind(Policy::ASP);
  EXPECT_EQ(job::PolicyName(policy), "ASP");
  policy.set_kind(Policy::SSP);
  policy.set_bound(4);
  EXPECT_EQ(job::PolicyName(policy), "SSP(4)");
  policy.set_kind(Policy::FIXED_DELAY);
  policy.set_delay(2);
  EXPECT_EQ(job::PolicyName(policy), "FIXED_DELAY(2)");
  policy.set_kind(Policy::BACKUP_WORKERS);
  EXPECT_EQ(job::PolicyName(policy), "BACKUP_WORKERS") << "not resolved: without its knob";
  policy.set_backups(1);
  EXPECT_EQ(job::PolicyName(policy), "BACKUP_WORKERS(1)");
  policy.set_kind(Policy::K_BATCH_ASYNC);
  policy.set_batches(3);
  EXPECT_EQ(job::PolicyName(policy), "K_BATCH_ASYNC(3)");
}

// A batch is that of a synchronous step, wherever the policy stands.
TEST(JobDefaultsTest, BatchesCountTheWorkers) {
  const job::ResolvedJob plan = MustResolve({{"cluster.workers", "3"},
                                             {"policy", "{kind: GBA}"},
                                             {"dense.synchroniser", "SERVERS"},
                                             {"dense.policy", "{kind: GBA token_gap: 0}"}});
  const job::ResolvedJob fresh =
      MustResolve({{"cluster.workers", "3"}, {"policy", "{kind: RENNALA}"}});
  EXPECT_EQ(job::PolicyName(fresh.groups[0].policy), "RENNALA(3)");
  EXPECT_EQ(plan.job.table(0).policy().batches(), 3);
  EXPECT_EQ(plan.job.table(0).policy().token_gap(), 4);
  EXPECT_EQ(plan.job.dense().policy().batches(), 3);
  EXPECT_EQ(plan.job.dense().policy().token_gap(), 0);
  EXPECT_EQ(plan.groups[0].properties.batch, 3);
  EXPECT_EQ(job::PolicyName(plan.groups[0].policy), "GBA(3)");
  const job::ResolvedJob own = MustResolve({{"policy", "{kind: GBA batches: 7}"}});
  EXPECT_EQ(own.groups[0].properties.batch, 7);
}

TEST(JobDefaultsTest, DelaysCountFromTheWorkersOn) {
  const job::ResolvedJob plan = MustResolve({{"cluster.workers", "3"},
                                             {"policy", "{kind: RINGMASTER}"},
                                             {"dense.synchroniser", "SERVERS"},
                                             {"dense.policy", "{kind: DELAY_ADAPTIVE}"}});
  EXPECT_EQ(plan.job.table(0).policy().max_delay(), 3);
  EXPECT_EQ(plan.job.dense().policy().full_rate_delay(), 3);
  const job::ResolvedJob ordered = MustResolve(
      {{"dense",
        "{synchroniser: SERVERS policy {kind: ORDERED_MOMENTUM async_scale: INVERSE_WORKERS} "
        "optimizer {kind: MOMENTUM learning_rate: 0.1 clip_norm: 1}}"}});
  EXPECT_EQ(job::PolicyName(ordered.groups[1].policy), "ORDERED_MOMENTUM");
  const job::ResolvedJob own = MustResolve({{"policy", "{kind: RINGMASTER max_delay: 7}"}});
  EXPECT_EQ(job::PolicyName(own.groups[0].policy), "RINGMASTER(7)");
}

TEST(JobBudgetTest, TheMemoryOfAServerMayChangeWhenARunResumes) {
  const job::ResolvedJob more = MustResolve({{"cluster.memory_per_server", "1000000"}});
  EXPECT_EQ(more.job.cluster().memory_per_server(), 1'000'000);
  EXPECT_THAT(job::ResumeDifferences(MustResolve({}).job, more.job), ::testing::IsEmpty());
}

// The part that a server keeps free for a last checkpoint, and the rows that it expects.
TEST(JobBudgetTest, CountsTheEndOfAJobWhoseRowsFillTheMemory) {
  constexpr int64_t kFree = int64_t{16} << 30;
  const auto of = [](const job::Overrides& set, bool saves, int64_t free = int64_t{16} << 30) {
    return job::ReserveOf(MustResolve(set), free, saves).total();
  };
  const job::Overrides one = {{"cluster.ranges_per_shard", "10"}};
  const int64_t plain = of(one, false);
  EXPECT_GT(plain, kFree / 16);
  EXPECT_LT(plain, kFree / 8);
  EXPECT_GT(of({{"cluster.ranges_per_shard", "10"}, {"cluster.workers", "64"}}, false), plain);
  job::ResolvedJob evaluates = MustResolve(one);
  evaluates.job.mutable_train()->set_evaluate_only(true);
  EXPECT_EQ(job::ReserveOf(evaluates, kFree, true).total(), 0);
  EXPECT_EQ(job::MinFreeBytes(evaluates, true), 0);

  job::ResolvedJob plan = MustResolve({{"table[0].expected_rows", "100"}});
  job::TablePlan& table = plan.tables[0];
  EXPECT_EQ(job::RowsExpected(table), 100);
  const double row = job::BytesOfRow(plan, table);
  plan.groups[table.group].properties.mean_square_decay = 0.9;
  EXPECT_NEAR(job::BytesOfRow(plan, table) - row, 4.2 * table.dim, 0.1) << "its mean squares";
  plan.groups[table.group].properties.mean_square_decay = 0;
  table.eviction.set_kind(Eviction::LRU);
  table.eviction.set_max_rows(40);
  EXPECT_EQ(job::RowsExpected(table), 40);
  EXPECT_NEAR(job::BytesOfRow(plan, table) - row, 4, 0.5) << "its clock";
}

// Rows take what the reserve leaves, and the copies of a range of each shard fit in their part.
TEST(JobBudgetTest, ALastCheckpointFitsBesideAllRows) {
  for (const char* const ranges : {"1", "2", "10", "1000"}) {
    for (const char* const shards : {"1", "4"}) {
      SCOPED_TRACE(absl::StrCat(ranges, " ranges, ", shards, " shards"));
      const job::ResolvedJob plan = MustResolve(
          {{"cluster.ranges_per_shard", ranges}, {"cluster.shards_per_server", shards}});
      const int64_t least = job::MinFreeBytes(plan, /*saves=*/true);
      EXPECT_LT(job::MinFreeBytes(plan, /*saves=*/false), least);
      for (const int64_t free : {least, 2 * least, int64_t{16} << 30}) {
        const job::Reserve reserve = job::ReserveOf(plan, free, /*saves=*/true);
        const auto rows = static_cast<double>(free - reserve.total());
        EXPECT_GT(rows, 0.1 * static_cast<double>(free));
        EXPECT_GE(reserve.least, (int64_t{4} << 20) + job::kRoomToCopy * plan.shards_per_server());
        const job::TablePlan& table = plan.tables[0];
        const double copy = job::FloatsOfRow(plan, table) * 4 + 8 + job::kSortBytes;
        const double copied =
            rows / job::BytesOfRow(plan, table) * copy / plan.job.cluster().ranges_per_shard();
        EXPECT_GE(static_cast<double>(reserve.copies), copied);
      }
      const job::Reserve none = job::ReserveOf(plan, 2 * least, /*saves=*/false);
      EXPECT_EQ(none.copies, 0);
      EXPECT_LT(none.least, job::ReserveOf(plan, 2 * least, /*saves=*/true).least);
    }
  }
}

// Of the numbers that the job gives: rows of 4 floats with their keys are 24 bytes.
TEST(JobBudgetTest, CountsWhatPoliciesHold) {
  const auto plan = [](const std::string& table, const std::string& policy, const std::string& more,
                       const std::string& dense = "") {
    const absl::StatusOr<Job> job = job::ParseJob(
        absl::StrCat("name: \"b\" data { format: CRITEO train: \"x\" } table { name: \"t\" dim: 4 ",
                     table, " } policy { ", policy, " } model { mlp { hidden: [64, 32] } } ",
                     "dense { optimizer { learning_rate: 1 } ", dense, " } ", more),
        "b", {});
    return job.ok() ? job::Resolve(*job) : absl::StatusOr<job::ResolvedJob>(job.status());
  };
  const std::string train =
      "train { batch_size: 10 max_inflight_pushes: 1 } cluster { workers: 3 servers: 1 } ";
  EXPECT_EQ(job::HeldBytes(*plan("", "kind: BSP", train)), 3 * 2 * 260 * 24);
  EXPECT_EQ(job::HeldBytes(*plan("field: [\"C1\", \"C2\"]", "kind: BSP", train)), 3 * 2 * 20 * 24);
  EXPECT_EQ(job::HeldBytes(*plan("expected_rows: 50", "kind: FIXED_DELAY delay: 5", train)),
            3 * 7 * 260 * 24)
      << "expected_rows is a hint";
  EXPECT_EQ(job::HeldBytes(*plan("frozen: true", "kind: BSP", train)), 0);
  EXPECT_EQ(job::HeldBytes(*plan("", "kind: ASP", train)), 0);
  EXPECT_EQ(job::HeldBytes(*plan("", "kind: SSP bound: 4", train)), 0);
  EXPECT_EQ(job::HeldBytes(*plan("", "kind: K_BATCH_ASYNC batches: 5", train)), 5 * 260 * 24);
  EXPECT_EQ(job::HeldBytes(*plan("", "kind: GBA", train)), 3 * 260 * 24);
  // The rows of every read that may be under way.
  EXPECT_EQ(job::HeldBytes(*plan("", "kind: DC_ASGD compensation: 1", train)), 3 * 2 * 260 * 24);
  EXPECT_EQ(job::HeldBytes(*plan("", "kind: DC_ASGD compensation: 0", train)), 0);
  // 26 cells of 4 floats and 13 numbers into layers of 64, 32 and 1, with biases: 9,665 parameters.
  EXPECT_EQ(job::HeldBytes(*plan("frozen: true", "kind: BSP", train, "synchroniser: SERVERS")),
            3 * 2 * 10 * (8 + 4096));
  const auto refused = plan("", "kind: BSP", train + "limits { held_bytes_per_shard: 37439 }");
  EXPECT_THAT(
      std::string(refused.status().message()),
      HasSubstr("the policy may hold 37440 bytes on a shard (3 workers x (1 + in flight 1"));
  EXPECT_TRUE(plan("", "kind: BSP", train + "limits { held_bytes_per_shard: 37440 }").ok());
  const std::string small = train + "limits { held_bytes_per_shard: 1 }";
  EXPECT_THAT(std::string(plan("", "kind: K_BATCH_ASYNC batches: 5", small).status().message()),
              HasSubstr("(batches 5 x the largest push)"));
  EXPECT_THAT(std::string(plan("", "kind: DC_ASGD compensation: 1", small).status().message()),
              HasSubstr("(3 workers x (1 + prefetch_steps 0 + in flight 1) x the rows of the"));
}

TEST(EqualRangesTest, CoverEverythingAndDifferByAtMostOne) {
  EXPECT_THAT(job::EqualRanges(1), ElementsAre(0u));
  EXPECT_THAT(job::EqualRanges(4),
              ElementsAre(0u, uint64_t{1} << 62, uint64_t{1} << 63, uint64_t{3} << 62));
  for (const int count : {3, 7, 10, 1000, 40960}) {
    const std::vector<uint64_t> begins = job::EqualRanges(count);
    ASSERT_EQ(begins.size(), static_cast<size_t>(count));
    EXPECT_EQ(begins[0], 0u);
    uint64_t smallest = ~uint64_t{0}, largest = 0;
    for (int i = 0; i < count; ++i) {
      const uint64_t end = i + 1 < count ? begins[i + 1] : 0;  // 0 = 2^64
      const uint64_t width = end - begins[i];
      smallest = std::min(smallest, width);
      largest = std::max(largest, width);
    }
    EXPECT_LE(largest - smallest, 1u) << count;
  }
}

TEST(JobDefaultsTest, TheBestModelIsLookedForAfterEachEpoch) {
  const Job plain = MustResolve({}).job;
  EXPECT_EQ(plain.evaluation().every_epochs(), 0);
  const job::Overrides kept = {{"data.validation.fraction", "0.1"}, {"train.keep_best", "{}"}};
  const Job job = MustResolve(kept).job;
  EXPECT_EQ(job.evaluation().every_epochs(), 1);
  EXPECT_EQ(job.train().keep_best().metric(), KeepBest::AUC);
  job::Overrides evaluates = kept;
  evaluates.push_back({"train.evaluate_only", "true"});
  EXPECT_FALSE(MustResolve(evaluates).job.train().has_keep_best());
}

// Scores need no other rows, whatever the job says of them.
TEST(JobDefaultsTest, AJobThatOnlyScoresReadsTestFilesAlone) {
  const Job job = MustResolve({{"data.validation", "{fraction: 0.1}"},
                               {"data.test", "t"},
                               {"data.max_rows", "7"},
                               {"train.keep_best", "{}"},
                               {"fault_injection.slow_workers", "[{mean_seconds: 1}]"},
                               {"data.score_only", "true"}})
                      .job;
  EXPECT_TRUE(job.train().evaluate_only());
  EXPECT_TRUE(job.data().train().empty());
  EXPECT_FALSE(job.data().has_validation() || job.data().max_rows() > 0);
  EXPECT_EQ(job.fault_injection().slow_workers_size(), 0);
  EXPECT_THAT(Refusal(kJob, {{"data.score_only", "true"}}),
              HasSubstr("data.test: no files to score"));
}

// ---- a run that goes on ------------------------------------------------------------------------

TEST(ResolveTest, StepTimesHaveDefaults) {
  const Job job = MustResolve({{"fault_injection.slow_workers",
                                "[{mean_seconds: 1 slow_share: 0.1},"
                                " {worker: 0 distribution: LOGNORMAL mean_seconds: 1},"
                                " {worker: 1 trace: 't'}]"},
                               {"cluster.workers", "3"}})
                      .job;
  EXPECT_EQ(job.fault_injection().slow_workers(0).distribution(), SlowWorkers::CONSTANT);
  EXPECT_EQ(job.fault_injection().slow_workers(0).slow_factor(), 5);
  EXPECT_EQ(job.fault_injection().slow_workers(1).sigma(), 0.5);
  EXPECT_EQ(job.fault_injection().slow_workers(2).distribution(), SlowWorkers::TRACE);
}

TEST(ResumeCheckTest, ServersAndEndsMayChangeWhatIsComputedMayNot) {
  const auto resolved = [](const job::Overrides& overrides) { return MustResolve(overrides).job; };
  const Job was = resolved({});
  EXPECT_THAT(job::ResumeDifferences(was, was), ::testing::IsEmpty());
  const Job may = resolved({{"cluster.servers", "3"},
                            {"train.epochs", "7"},
                            {"train.max_steps", "900"},
                            {"dense.optimizer.learning_rate", "0.5"},
                            {"table[0].optimizer.learning_rate", "0.25"},
                            {"checkpoint.keep", "5"},
                            {"data.cache", "rows"},
                            {"data.readers", "2"},
                            {"evaluation.every_epochs", "2"},
                            {"limits.report_interval_seconds", "3"},
                            {"fault_injection.slow_workers", "[{mean_seconds: 1}]"},
                            {"name", "other"}});
  EXPECT_THAT(job::ResumeDifferences(was, may), ::testing::IsEmpty());
  EXPECT_THAT(job::AllDifferences(was, may),
              ::testing::IsSupersetOf({HasSubstr("cluster.servers: "), HasSubstr("train.epochs: "),
                                       HasSubstr("name: ")}));
  const job::Overrides kept = {{"data.validation.fraction", "0.1"}, {"train.keep_best", "{}"}};
  job::Overrides patient = kept, other = kept;
  patient.push_back({"train.keep_best.patience", "3"});
  other.push_back({"train.keep_best.metric", "LOGLOSS"});
  EXPECT_THAT(job::ResumeDifferences(resolved(kept), resolved(patient)), ::testing::IsEmpty());
  EXPECT_THAT(job::ResumeDifferences(resolved(kept), resolved(other)),
              ::testing::ElementsAre(HasSubstr("train.keep_best.metric: ")));
  const Job may_not = resolved(
      {{"train.batch_size", "999"}, {"seed", "99"}, {"table[0].initializer.scale", "0.25"}});
  EXPECT_THAT(job::ResumeDifferences(was, may_not),
              ::testing::UnorderedElementsAre(HasSubstr("train.batch_size: "), HasSubstr("seed"),
                                              HasSubstr("table[0].initializer.scale: ")));
}

// A job that does not name its deal has that of the run (data::AdoptDeal).
TEST(ResumeCheckTest, TheDealIsComparedIfBothJobsNameIt) {
  const Job open = MustResolve({}).job;
  const Job blocks = MustResolve({{"data.deal", "BLOCKS"}}).job;
  const Job rows = MustResolve({{"data.deal", "ROWS"}}).job;
  EXPECT_THAT(job::ResumeDifferences(blocks, open), ::testing::IsEmpty());
  EXPECT_THAT(job::ResumeDifferences(open, rows), ::testing::IsEmpty());
  EXPECT_THAT(job::ResumeDifferences(blocks, rows),
              ::testing::ElementsAre("data.deal: BLOCKS -> ROWS"));
  EXPECT_THAT(job::ReplayDifferences(blocks, rows),
              ::testing::ElementsAre("data.deal: BLOCKS -> ROWS"));
  const Job measured = MustResolve({{"data.border", "[{row: 5}, {row: 6}, {row: 7}]"},
                                    {"data.train_bytes", "8"},
                                    {"data.deal", "BLOCKS"}})
                           .job;
  EXPECT_THAT(job::AllDifferences(measured, blocks), ::testing::IsEmpty());
}

// The slots of a row have another meaning with `catch_up`.
TEST(ResumeCheckTest, ARunKeepsItsCatchUp) {
  const auto table = [](const std::string& more) {
    return MustResolve({{"table[0].optimizer", "{kind: ADAM learning_rate: 1 " + more + "}"}}).job;
  };
  EXPECT_THAT(job::ResumeDifferences(table("catch_up: true"), table("")),
              ::testing::ElementsAre("table[0].optimizer.catch_up: true is not set any more"));
  EXPECT_THAT(job::ResumeDifferences(table(""), table("catch_up: true")),
              ::testing::ElementsAre(HasSubstr("table[0].optimizer.catch_up: true")));
  Job faster = table("catch_up: true");
  faster.mutable_table(0)->mutable_optimizer()->set_learning_rate(2);
  EXPECT_THAT(job::ResumeDifferences(table("catch_up: true"), faster), ::testing::IsEmpty());
}

// Rows lose digits in another type. A replay may ask what another type would do.
TEST(ResumeCheckTest, ARunKeepsTheTypesOfItsRows) {
  const auto types = [](const std::string& row, const std::string& state) {
    return MustResolve({{"table[0].row_dtype", row}, {"table[0].state_dtype", state}}).job;
  };
  EXPECT_THAT(job::ResumeDifferences(MustResolve({}).job, types("F32", "F32")),
              ::testing::IsEmpty());
  EXPECT_THAT(job::ResumeDifferences(types("F32", "F32"), types("BF16", "F32")),
              ::testing::ElementsAre("table[0].row_dtype: F32 -> BF16"));
  EXPECT_THAT(job::ResumeDifferences(types("F16", "BF16"), types("F16", "F32")),
              ::testing::ElementsAre("table[0].state_dtype: BF16 -> F32"));
  EXPECT_THAT(job::ReplayDifferences(types("F32", "F32"), types("BF16", "BF16")),
              ::testing::IsEmpty());
  EXPECT_THAT(Refusal(kJob, {{"table[0].state_dtype", "F16"}}),
              HasSubstr("table[0].state_dtype: F16, whose smallest number is 6e-8"));
  for (const char* const initializer :
       {"{kind: CONSTANT scale: 65505}", "{kind: CONSTANT scale: -65505}",
        "{kind: NORMAL scale: 8000}", "{kind: UNIFORM scale: 65505}"}) {
    EXPECT_THAT(
        Refusal(kJob, {{"table[0].row_dtype", "F16"}, {"table[0].initializer", initializer}}),
        HasSubstr(", but F16 has no number above 65504"));
  }
  EXPECT_THAT(Refusal(kJob, {{"table[0].row_dtype", "INT8"},
                             {"table[0].initializer", "{kind: CONSTANT scale: 3.39e38}"}}),
              HasSubstr(", but INT8 has no number above 3.37"));
  EXPECT_THAT(Refusal(kJob, {{"table[0].state_dtype", "INT8"}}),
              HasSubstr("table[0].state_dtype: INT8, whose numbers share one scale"));
}

TEST(ResumeCheckTest, ARunKeepsItsHotRows) {
  const auto hot = [](const std::string& rule) {
    return MustResolve({{"table[0].row_dtype", "INT8"}, {"table[0].hot_rows", rule}}).job;
  };
  EXPECT_EQ(hot("{min_updates: 9}").table(0).hot_rows().dtype(), Table::F32);
  EXPECT_THAT(job::ResumeDifferences(hot("{min_updates: 9}"), hot("{min_updates: 8}")),
              ::testing::ElementsAre("table[0].hot_rows.min_updates: 9 -> 8"));
  EXPECT_THAT(job::ReplayDifferences(hot("{min_updates: 9}"), hot("{min_updates: 8 dtype: F16}")),
              ::testing::IsEmpty());
  const auto refusal = [](const char* type, const char* rule) {
    return Refusal(kJob, {{"table[0].row_dtype", type}, {"table[0].hot_rows", rule}});
  };
  EXPECT_THAT(refusal("INT8", "{}"), HasSubstr("table[0].hot_rows.min_updates: not set"));
  EXPECT_THAT(refusal("INT8", "{min_updates: 1000000}"), HasSubstr("must be 1 to 900000"));
  EXPECT_THAT(
      refusal("F32", "{min_updates: 9}"),
      HasSubstr("table[0].hot_rows.dtype: F32, but row_dtype is F32, which is not smaller"));
  EXPECT_THAT(refusal("INT8", "{min_updates: 9 dtype: INT8}"), HasSubstr("; say dtype: F32, or"));
  EXPECT_THAT(refusal("BF16", "{min_updates: 9 dtype: F16}"),
              HasSubstr("F16, but row_dtype is BF16, which is not smaller"));
}

// A run of an earlier version counted by row, and its job does not say so. A job that resumes a run
// and names no count has that of the run.
TEST(ResumeCheckTest, ARunKeepsItsStepCount) {
  const job::Overrides by_adam = {{"dense.optimizer.kind", "ADAM"}};
  Job earlier = MustResolve(by_adam).job;
  earlier.mutable_table(0)->mutable_optimizer()->clear_step_count();
  const job::Overrides settings = {{"table[0].optimizer.step_count", "ROW"}};
  EXPECT_EQ(job::EarlierSettings(earlier), settings);
  EXPECT_THAT(job::EarlierSettings(MustResolve(by_adam).job), ::testing::IsEmpty());
  EXPECT_THAT(job::EarlierSettings(MustResolve({}).job), ::testing::IsEmpty()) << "SGD";

  const auto kept = [&](const job::Overrides& overrides) {
    Job was = earlier;
    was.mutable_table(0)->mutable_optimizer()->set_step_count(Optimizer::ROW);
    Job is = MustParse(kJob, overrides);
    job::KeepStepCounts(was, &is);
    return job::ResumeDifferences(was, job::Resolve(is)->job);
  };
  EXPECT_THAT(kept(by_adam), ::testing::IsEmpty());
  Job by_row = MustResolve({{"dense.optimizer.kind", "ADAMW"}, settings[0]}).job;
  Job unsaid = MustParse(kJob, {{"dense.optimizer.kind", "ADAMW"}});
  job::KeepStepCounts(by_row, &unsaid);
  EXPECT_EQ(unsaid.table(0).optimizer().step_count(), Optimizer::ROW);
  EXPECT_THAT(kept({{"dense.optimizer.kind", "ADAM"}, {"table[0].optimizer.step_count", "TABLE"}}),
              ::testing::ElementsAre("table[0].optimizer.step_count: ROW -> TABLE"));
  EXPECT_THAT(kept({{"dense.optimizer.kind", "ADAM"},
                    {"table[0].optimizer", "{kind: ADAGRAD learning_rate: 1}"}}),
              ::testing::Contains("table[0].optimizer.kind: ADAM -> ADAGRAD"));
}

// ---- fields that had another name ----

TEST(RenamedFieldsTest, OldNamesAreRefusedWithTheNewOnes) {
  const std::pair<const char*, const char*> fields[] = {
      {"save.keep", "checkpoint"},
      {"service_time", "fault_injection.slow_workers"},
      {"data.skip_bad_rows", "max_bad_rows"},
      {"table[0].synchroniser", "placement"},
      {"table[0].state_floats", "extra_floats"},
      {"dense.wire", "wire_dtype"},
      {"dense.rules", "algorithm_rules"},
      {"dense.local_steps.every", "sync_every"},
      {"dense.local_steps.from_step", "warmup_steps"},
      {"dense.codec.without_feedback", "error_feedback"},
      {"train.batch", "batch_size"},
      {"train.depth", "prefetch_steps"},
      {"train.max_unacknowledged", "max_inflight_pushes"},
      {"evaluation.batch", "batch_size"},
      {"staleness.record", "record_updates"},
      {"staleness.order", "record_order"},
      {"limits.report_seconds", "report_interval_seconds"},
      {"limits.stall_limit_seconds", "stall_timeout_seconds"},
      {"limits.start_seconds", "startup_timeout_seconds"},
      {"policy.kind", "table { kind: KEY_VALUE }"},
  };
  for (const auto& [was, now] : fields) {
    const std::string value = std::string(was) == "policy.kind" ? "STORE" : "1";
    EXPECT_THAT(Refusal(kJob, {{was, value}}), HasSubstr(absl::StrCat("renamed to ", now)));
  }
  EXPECT_THAT(Refusal(absl::StrCat(kJob, "save { keep: 3 }\n")),
              ::testing::AllOf(HasSubstr("job.textproto:9:1"), EndsWith("renamed to checkpoint")));
}

// ---- tables that programs write ----

constexpr char kStore[] = "table { name: \"cache\" dim: 9 extra_floats: 2 kind: KEY_VALUE }\n";

TEST(StoreTest, StandsBesideTheTablesOfTheModel) {
  const absl::StatusOr<job::ResolvedJob> plan =
      job::Resolve(MustParse(absl::StrCat(kJob, kStore), {{"dense.synchroniser", "SERVERS"}}));
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->tables.size(), 3u);
  EXPECT_TRUE(plan->tables[0].of_model());
  EXPECT_TRUE(plan->tables[1].store);
  EXPECT_EQ(plan->tables[1].extra_floats, 2);
  EXPECT_EQ(plan->dense_table, 2);
  EXPECT_EQ(plan->model_tables(), 1u);
  ASSERT_EQ(plan->groups.size(), 2u) << "no step is taken for the last one";
  EXPECT_EQ(plan->trained_groups().size(), 1u);
  EXPECT_EQ(plan->tables[1].group, 1u);
  EXPECT_TRUE(plan->lockstep);
  // What is resolved says the same again.
  const absl::StatusOr<job::ResolvedJob> again = job::Resolve(MustParse(job::ResolvedText(*plan)));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->hash, plan->hash);
}

TEST(StoreTest, IsNoTrainedTable) {
  const std::string job = absl::StrCat(kJob, kStore);
  const std::pair<job::Overrides, const char*> refused[] = {
      {{{"table[1].field", "[\"C1\"]"}},
       "table[1].field: not for a KEY_VALUE table: the model of the job"},
      {{{"table[1].initializer.kind", "ZERO"}}, "table[1].initializer: not for a KEY_VALUE table"},
      {{{"table[1].optimizer.kind", "ADAM"}}, "table[1].optimizer: not for a KEY_VALUE table"},
      {{{"table[1].frozen", "true"}}, "table[1].frozen: not for a KEY_VALUE table"},
      {{{"table[1].ids_per_field", "2"}}, "table[1].ids_per_field: not for a KEY_VALUE table"},
      {{{"table[1].placement", "SHARDED"}}, "table[1].placement: SHARDED, but the rows of a"},
      {{{"table[1].hot_rows.min_updates", "5"}}, "table[1].hot_rows: not for a KEY_VALUE table"},
      {{{"table[1].row_dtype", "BF16"}}, "table[1].row_dtype: not for a KEY_VALUE table"},
      {{{"table[1].state_dtype", "BF16"}}, "table[1].state_dtype: not for a KEY_VALUE table"},
      {{{"table[1].extra_floats", "-1"}}, "table[1].extra_floats: -1, must be 0 to 262144"},
      {{{"table[1].policy.bound", "2"}}, "table[1].policy.bound: only for SSP"},
      {{{"table[0].extra_floats", "2"}}, "table[0].extra_floats: only for kind KEY_VALUE"},
      {{{"staleness.record_order", "true"}},
       "staleness.record_order: records what orders training"},
      {{{"policy.kind", "KEY_VALUE"}}, "policy.kind: KEY_VALUE trains nothing"},
      {{{"dense.synchroniser", "SERVERS"}, {"dense.policy.kind", "KEY_VALUE"}},
       "dense.policy.kind: KEY_VALUE is for"},
      {{{"cluster.servers", "0"}, {"table[0].placement", "SHARDED"}},
       "cluster.servers: 0, or not set, but the KEY_VALUE table \"cache\" is on servers; say "
       "servers: "
       "1"},
      {{{"table[0]", "{name: \"first\" dim: 4 kind: KEY_VALUE}"}},
       "table[0]: \"first\" is a KEY_VALUE table"},
  };
  for (const auto& [set, message] : refused) {
    EXPECT_THAT(Refusal(job, set), HasSubstr(absl::StrCat(": ", message)));
  }
  EXPECT_THAT(Refusal(absl::StrCat(job, "table { name: \"late\" dim: 4 field: \"C1\" }")),
              HasSubstr("table[2]: \"late\" stands behind the KEY_VALUE table \"cache\""));
  MustParse(job, {{"reproducible", "true"}});  // what is trained is
}

// ---- rows that come and go ----

TEST(RowRulesTest, DefaultsAreFilledIn) {
  EXPECT_FALSE(MustResolve({}).job.table(0).has_admission()) << "as jobs of earlier versions";
  EXPECT_FALSE(MustResolve({}).job.table(0).has_eviction());
  const job::ResolvedJob plan = MustResolve({{"table[0].admission", "{kind: COUNT threshold: 3}"},
                                             {"table[0].eviction", "{kind: AGE versions: 50}"}});
  const job::TablePlan& table = plan.tables[0];
  EXPECT_EQ(table.admission.threshold(), 3);
  EXPECT_EQ(table.admission.within_versions(), 50) << "that of the eviction";
  EXPECT_EQ(table.admission.unadmitted(), Admission::INITIAL);
  EXPECT_EQ(table.eviction.versions(), 50);
  const job::ResolvedJob never =
      MustResolve({{"table[0].admission", "{kind: COUNT threshold: 3 within_versions: 0}"},
                   {"table[0].eviction", "{kind: AGE versions: 50}"}});
  EXPECT_EQ(never.tables[0].admission.within_versions(), 0) << "0 is a value";
  const job::ResolvedJob lru =
      MustResolve({{"table[0].admission", "{kind: COUNT threshold: 3 unadmitted: ZERO}"},
                   {"table[0].eviction", "{kind: LRU max_rows: 70}"}});
  EXPECT_EQ(lru.tables[0].admission.within_versions(), 0);
  EXPECT_EQ(lru.tables[0].expected_rows, 70);
  const job::ResolvedJob budget = MustResolve({{"table[0].eviction.kind", "AT_BUDGET"}});
  EXPECT_EQ(budget.tables[0].eviction.kind(), Eviction::AT_BUDGET);
}

TEST(RowRulesTest, AFewRowsARangeGetAWarning) {
  const auto warnings = [](const std::string& eviction) {
    return job::WarnOfRowRules(MustResolve(
        {{"cluster", "{workers: 2 servers: 2}"}, {"table[0].eviction", "{" + eviction + "}"}}));
  };
  EXPECT_THAT(warnings("kind: LRU max_rows: 999"),
              ElementsAre(AllOf(HasSubstr("table ids: eviction.max_rows is 999, so each of its 20"),
                                HasSubstr("hint: set max_rows to 1000 or more"))));
  EXPECT_THAT(warnings("kind: LRU max_rows: 1000"), ::testing::IsEmpty());
  EXPECT_THAT(warnings("kind: AGE versions: 5"), ::testing::IsEmpty());
}

// A job that only evaluates reads all rows of a checkpoint, and ids without one as training did.
TEST(RowRulesTest, AnEvaluationKeepsAllRows) {
  const job::ResolvedJob plan =
      MustResolve({{"table[0].admission", "{kind: COUNT threshold: 3 unadmitted: ZERO}"},
                   {"table[0].eviction", "{kind: LRU max_rows: 70}"},
                   {"train.evaluate_only", "true"}});
  EXPECT_EQ(plan.tables[0].admission.kind(), Admission::NONE);
  EXPECT_EQ(plan.tables[0].admission.unadmitted(), Admission::ZERO);
  EXPECT_EQ(plan.tables[0].eviction.kind(), Eviction::KIND_UNSPECIFIED);
}

TEST(RowRulesTest, ContradictionsAreRefused) {
  const char* const kAdmission = "table[0].admission";
  const char* const kEviction = "table[0].eviction";
  const std::pair<const char*, const char*> lru = {kEviction, "{kind: LRU max_rows: 9}"};
  const std::pair<const char*, const char*> age = {kEviction, "{kind: AGE versions: 9}"};
  const std::pair<const char*, const char*> budget = {kEviction, "{kind: AT_BUDGET}"};
  const std::pair<const char*, const char*> count = {kAdmission, "{kind: COUNT threshold: 2}"};
  const std::pair<job::Overrides, const char*> refused[] = {
      {{{kAdmission, "{kind: COUNT}"}},
       "table[0].admission.threshold: not set; COUNT needs it, such as threshold: 2"},
      {{{kAdmission, "{kind: COUNT threshold: 101}"}},
       "table[0].admission.threshold: 101, must be 1 to 100"},
      {{{kAdmission, "{threshold: 2}"}},
       "table[0].admission.threshold: only for COUNT, and the kind is NONE"},
      {{{kAdmission, "{kind: PROBABILITY}"}},
       "table[0].admission.probability: not set; PROBABILITY needs it"},
      {{{kAdmission, "{kind: PROBABILITY probability: 1.5}"}},
       "table[0].admission.probability: 1.5, must be above 0 and at most 1"},
      {{{kAdmission, "{kind: PROBABILITY probability: 0.5 within_versions: 3}"}},
       "table[0].admission.within_versions: only for COUNT, and the kind is PROBABILITY"},
      {{{kAdmission, "{unadmitted: ZERO}"}},
       "table[0].admission.unadmitted: ZERO is for ids that stay without a row"},
      {{{kEviction, "{kind: AGE}"}},
       "table[0].eviction.versions: not set; AGE needs it, such as versions: 10000"},
      {{{kEviction, "{kind: AGE versions: 1073741825}"}},
       "table[0].eviction.versions: 1073741825, must be 1 to 1073741824"},
      {{{kEviction, "{kind: LRU versions: 5}"}},
       "table[0].eviction.versions: only for AGE, and the kind is LRU"},
      {{{kEviction, "{kind: LRU}"}}, "table[0].eviction.max_rows: not set; LRU needs it"},
      {{lru, {"reproducible", "true"}},
       "table[0].eviction.kind: LRU chooses among the rows of a key range"},
      {{budget, {"reproducible", "true"}},
       "table[0].eviction.kind: AT_BUDGET chooses among the rows of a key range"},
      {{budget, {"staleness.record_order", "true"}},
       "table[0].eviction.kind: AT_BUDGET depends on the memory of a server"},
      {{age, {"table[0].frozen", "true"}}, "table[0].eviction: not for a frozen table"},
      {{count, {"table[0].frozen", "true"}}, "table[0].admission: not for a frozen table"},
      {{count, {"table[0].placement", "REPLICATED"}},
       "table[0].admission: only for rows on servers, and the placement is REPLICATED"},
      {{lru, {"table[0].placement", "SHARDED"}},
       "table[0].eviction: only for rows on servers, and the placement is SHARDED"},
      {{age, {"policy", "{kind: DC_ASGD compensation: 1 mean_square_decay: 0.9}"}},
       "table[0].eviction: not under DC_ASGD with mean_square_decay"},
  };
  for (const auto& [set, message] : refused) {
    EXPECT_THAT(Refusal(kJob, set), HasSubstr(absl::StrCat(": ", message)));
  }
  const std::string store = absl::StrCat(kJob, kStore);
  EXPECT_THAT(Refusal(store, {{"table[1].eviction", "{kind: LRU max_rows: 9}"}}),
              HasSubstr("table[1].eviction: not for a KEY_VALUE table: programs erase its rows"));
  EXPECT_THAT(Refusal(store, {{"table[1].admission", "{kind: COUNT threshold: 2}"}}),
              HasSubstr("table[1].admission: not for a KEY_VALUE table: programs insert its rows"));
  // What stands: each kind, also beside the other rule, where nothing depends on time.
  MustParse(kJob, {count, age, {"reproducible", "true"}, {"staleness.record_order", "true"}});
  MustParse(kJob, {lru, {"staleness.record_order", "true"}});
  MustParse(kJob, {age, {"policy", "{kind: DC_ASGD compensation: 1}"}});
  MustParse(kJob, {budget, {kAdmission, "{unadmitted: ZERO}"}});
}

// A run that has filled its memory resumes with rules, and a replay may ask what others would do.
TEST(RowRulesTest, ARunMayResumeWithOtherRules) {
  const Job was = MustResolve({}).job;
  const Job is = MustResolve({{"table[0].admission", "{kind: COUNT threshold: 2}"},
                              {"table[0].eviction", "{kind: LRU max_rows: 9}"}})
                     .job;
  EXPECT_THAT(job::ResumeDifferences(was, is), ::testing::IsEmpty());
  EXPECT_THAT(job::ReplayDifferences(was, is), ::testing::IsEmpty());
  EXPECT_THAT(job::ModelDifferences(was, is), ::testing::SizeIs(2));
}

}  // namespace
}  // namespace tandem
