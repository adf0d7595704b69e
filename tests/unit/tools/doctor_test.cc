// What `tandem doctor` makes of facts: a healthy host gives no problem, each thing that is broken
// gives a finding that names it and says what to do, and nothing else changes.
#include "tools/doctor/doctor.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/doctor/doctor_report.h"

namespace tandem {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr uint64_t kGiB = uint64_t{1} << 30;

job::ResolvedJob Plan(const std::string& cluster, int64_t expected_rows = 1'000'000) {
  const auto job = job::ParseJob(
      absl::StrCat("cluster { ", cluster, " } data { format: CRITEO train: \"x\" } ",
                   "table { name: \"ids\" dim: 16 expected_rows: ", expected_rows,
                   " optimizer { kind: ADAGRAD learning_rate: 0.1 } } ",
                   "dense { optimizer { learning_rate: 0.1 } } model { mlp { hidden: [8] } } ",
                   "train { batch_size: 64 }"),
      "test", {});
  TANDEM_CHECK_OK(job.status());
  auto plan = job::Resolve(*job);
  TANDEM_CHECK_OK(plan.status());
  return *std::move(plan);
}

doctor::RdmaPortFact GoodPort() {
  doctor::RdmaPortFact port;
  port.device = "mlx5_0";
  port.active = port.ethernet = true;
  port.mtu_bytes = port.max_mtu_bytes = 4096;
  port.gids = {{0, "fe80::1", "IB/RoCE v1", "eth0"},
               {3, "0000:0000:0000:0000:0000:ffff:0a00:0001", "RoCE v2", "eth0"}};
  return port;
}

doctor::HostFacts HealthyHost() {
  doctor::HostFacts host;
  host.name = "a";
  host.version = "1";
  host.kernel = "6.1.0";
  host.versions = {{"ZeroMQ", "4.3.4", "4.3.4"}};
  host.programs = {{"tandem-server", true, {}, {"libzmq.so.5.2.4"}}};
  host.cores = 16;
  host.memory_free_bytes = 64 * kGiB;
  host.open_files_soft = 1024;
  host.open_files_hard = 4096;
  host.rdma.ports = {GoodPort()};
  host.rdma.endpoint = "mlx5_0 port 1";
  return host;
}

// All but those that are fine.
std::vector<doctor::Finding> Complaints(std::vector<doctor::Finding> findings) {
  std::vector<doctor::Finding> bad;
  for (doctor::Finding& finding : findings) {
    if (finding.level != doctor::Severity::kOk) bad.push_back(std::move(finding));
  }
  return bad;
}

class HostTest : public ::testing::Test {
 protected:
  // That there is this one complaint, with advice, and that a healthy host has none.
  void ExpectOne(doctor::Severity level, const std::string& check, const std::string& words,
                 Cluster::Transport transport = Cluster::AUTO) {
    const doctor::JobNeeds needs = doctor::NeedsOf(plan_, plan_.servers(), plan_.workers());
    EXPECT_THAT(Complaints(doctor::ExamineHost(HealthyHost(), Cluster::AUTO, &needs_)), IsEmpty());
    const std::vector<doctor::Finding> bad =
        Complaints(doctor::ExamineHost(host_, transport, &needs));
    ASSERT_EQ(bad.size(), 1u);
    EXPECT_EQ(bad[0].level, level);
    EXPECT_EQ(bad[0].check, check);
    EXPECT_THAT(bad[0].found, HasSubstr(words));
    EXPECT_THAT(bad[0].advice, Not(IsEmpty()));
    EXPECT_THAT(absl::StrCat(bad[0].found, bad[0].advice), Not(HasSubstr("\n")));
  }

  doctor::HostFacts host_ = HealthyHost();
  job::ResolvedJob plan_ = Plan("workers: 2 servers: 2");
  const doctor::JobNeeds needs_ = doctor::NeedsOf(plan_, 2, 2);
};

// What is said before a run: the least that it needs, and what a guess says beyond that.
TEST_F(HostTest, ARunIsRefusedForWhatFailsForSureAlone) {
  const auto examine = [this](const doctor::JobNeeds& needs) {
    return doctor::ExamineStart(host_, Cluster::AUTO, needs);
  };
  EXPECT_THAT(examine(needs_), IsEmpty());
  host_.cores = 1;  // slower, and no news
  EXPECT_THAT(examine(needs_), IsEmpty());
  host_.threads_left = 12;
  std::vector<doctor::Finding> found = examine(needs_);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].level, doctor::Severity::kProblem);
  EXPECT_THAT(found[0].found, HasSubstr("only 12 may be started"));
  host_.threads_left = doctor::kUnlimited;
  host_.open_files_soft = 16;
  found = examine(needs_);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_THAT(found[0].found, HasSubstr("the limit is 16"));
  host_.open_files_soft = 1024;
  host_.cores = 2;
  host_.memory_free_bytes = 8 * kGiB;
  const job::ResolvedJob large = Plan("workers: 100 servers: 1");
  found = examine(doctor::NeedsOf(large, 1, 100));
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].level, doctor::Severity::kWarning);
  EXPECT_THAT(found[0].found, HasSubstr("101 busy threads in 101 processes on 2 cores"));
  EXPECT_THAT(found[0].found, HasSubstr("limits.startup_timeout_seconds (60)"));
  EXPECT_EQ(found[1].level, doctor::Severity::kWarning);
  EXPECT_EQ(found[1].check, "memory");
}

TEST_F(HostTest, WithoutAJobOnlyTheHostIsJudged) {
  EXPECT_THAT(Complaints(doctor::ExamineHost(host_, Cluster::AUTO, nullptr)), IsEmpty());
}

TEST_F(HostTest, ADeviceThatIsDown) {
  host_.rdma.ports[0].active = false;
  ExpectOne(doctor::Severity::kWarning, "RDMA", "mlx5_0 port 1: the port is not active");
  ExpectOne(doctor::Severity::kProblem, "RDMA", "not active", Cluster::RDMA);
}

TEST_F(HostTest, NoRoceV2Gid) {
  host_.rdma.ports[0].gids.pop_back();
  ExpectOne(doctor::Severity::kWarning, "RDMA", "no RoCE v2 GID");
  ExpectOne(doctor::Severity::kProblem, "RDMA", "no RoCE v2 GID", Cluster::RDMA);
}

TEST_F(HostTest, ARoceV2GidOfNoIpv4Address) {
  host_.rdma.ports[0].gids[1].gid = "fe80:0000:0000:0000:90f1:b3ff:fe3b:c33e";
  ExpectOne(doctor::Severity::kWarning, "RDMA", "no RoCE v2 GID that belongs to an IPv4 address");
}

TEST_F(HostTest, TheGidIsNamedWithItsIndex) {
  const auto findings = doctor::ExamineHost(host_, Cluster::AUTO, nullptr);
  bool named = false;
  for (const doctor::Finding& finding : findings) {
    named = named || absl::StrContains(finding.found, "GID 3 10.0.0.1 on eth0");
  }
  EXPECT_TRUE(named);
}

TEST_F(HostTest, Iwarp) {
  host_.rdma.ports[0].iwarp = true;
  ExpectOne(doctor::Severity::kProblem, "RDMA", "iWARP", Cluster::RDMA);
}

TEST_F(HostTest, ASmallMtu) {
  host_.rdma.ports[0].mtu_bytes = 1024;
  ExpectOne(doctor::Severity::kWarning, "RDMA", "MTU 1024");
}

TEST_F(HostTest, InfiniBandNeedsNoRoceGid) {
  host_.rdma.ports[0].ethernet = false;
  host_.rdma.ports[0].gids.clear();
  EXPECT_THAT(Complaints(doctor::ExamineHost(host_, Cluster::RDMA, nullptr)), IsEmpty());
}

TEST_F(HostTest, APortThatIsDownBesideOneThatIsNot) {
  doctor::RdmaPortFact down = GoodPort();
  down.port = 2;
  down.active = false;
  host_.rdma.ports.push_back(down);
  ExpectOne(doctor::Severity::kWarning, "RDMA", "port 2", Cluster::RDMA);
}

TEST_F(HostTest, NoDeviceMattersOnlyIfTheJobWantsIt) {
  host_.rdma = doctor::RdmaFacts();
  EXPECT_THAT(Complaints(doctor::ExamineHost(host_, Cluster::AUTO, &needs_)), IsEmpty());
  ExpectOne(doctor::Severity::kProblem, "RDMA", "there is no device", Cluster::RDMA);
  host_.rdma.unavailable = "this build has no RDMA";
  ExpectOne(doctor::Severity::kProblem, "RDMA", "this build has no RDMA", Cluster::RDMA);
  plan_.job.mutable_dense()->set_link(Dense::RDMA);
  ExpectOne(doctor::Severity::kProblem, "RDMA", "this build has no RDMA");
}

TEST_F(HostTest, AnEndpointThatCannotBeMade) {
  host_.rdma.endpoint.clear();
  host_.rdma.endpoint_error = "cannot register";
  ExpectOne(doctor::Severity::kWarning, "RDMA endpoint", "cannot register");
  ExpectOne(doctor::Severity::kProblem, "RDMA endpoint", "cannot register", Cluster::RDMA);
}

TEST_F(HostTest, LittleLockedMemory) {
  host_.locked_memory_limit = uint64_t{8} << 20;
  ExpectOne(doctor::Severity::kWarning, "locked memory", "the limit is 8.39 MB");
  ExpectOne(doctor::Severity::kProblem, "locked memory", "the limit is 8.39 MB", Cluster::RDMA);
  EXPECT_THAT(Complaints(doctor::ExamineHost(host_, Cluster::SHM, &needs_)), IsEmpty());
  host_.may_lock_all = true;
  EXPECT_THAT(Complaints(doctor::ExamineHost(host_, Cluster::RDMA, &needs_)), IsEmpty());
}

TEST_F(HostTest, FewOpenFiles) {
  host_.open_files_soft = 32;
  ExpectOne(doctor::Severity::kProblem, "open files", "the limit is 32");
  host_.open_files_hard = 40;
  ExpectOne(doctor::Severity::kProblem, "open files", "at most 40");
}

TEST_F(HostTest, TablesThatDoNotFit) {
  plan_ = Plan("workers: 2 servers: 2", int64_t{1} << 40);
  ExpectOne(doctor::Severity::kProblem, "memory", "68.7 GB free");
}

TEST_F(HostTest, TablesThatDoNotFitTheMemoryOfTheServers) {
  plan_ = Plan("workers: 2 servers: 2 memory_per_server: 100000000");
  ExpectOne(doctor::Severity::kProblem, "memory", "cluster.memory_per_server allows");
  const doctor::JobNeeds needs = doctor::NeedsOf(plan_, 2, 2);
  EXPECT_THAT(Complaints(doctor::ExamineHost(host_, Cluster::AUTO, &needs))[0].advice,
              StartsWith("a more exact expected_rows (now 1000000 of table ids), a larger"));
  plan_.tables[0].eviction.set_kind(Eviction::LRU);
  plan_.tables[0].eviction.set_max_rows(1000);
  EXPECT_LT(doctor::NeedsOf(plan_, 2, 2).table_bytes, uint64_t{1} << 20);
  plan_.tables[0].eviction.set_kind(Eviction::AT_BUDGET);
  EXPECT_LE(doctor::NeedsOf(plan_, 2, 2).table_bytes, uint64_t{200'000'000});
}

// The limit is that of each process that serves rows.
TEST_F(HostTest, TablesOnWorkersCountForTheirLimits) {
  const auto memory_fits = [this](const std::string& limit) {
    plan_ = Plan("workers: 4 servers: 1 memory_per_server: " + limit, 5'000'000);
    plan_.tables[0].placement = Table::SHARDED;
    plan_.workers_serve = true;
    const doctor::JobNeeds needs = doctor::NeedsOf(plan_, 1, 4);
    const auto bad = Complaints(doctor::ExamineHost(host_, Cluster::AUTO, &needs));
    return std::none_of(bad.begin(), bad.end(), [](const auto& f) { return f.check == "memory"; });
  };
  EXPECT_TRUE(memory_fits("400000000")) << "1.9 GB of rows and programs in five processes";
  EXPECT_FALSE(memory_fits("300000000"));
}

TEST_F(HostTest, TablesThatNearlyFit) {
  host_.memory_free_bytes = (needs_.table_bytes + needs_.held_bytes + needs_.process_bytes) + 1;
  ExpectOne(doctor::Severity::kWarning, "memory", "needed");
}

TEST_F(HostTest, MoreProcessesThanCores) {
  host_.cores = 2;
  ExpectOne(doctor::Severity::kWarning, "cores", "4 busy threads in 4 processes on 2 cores");
  plan_ = Plan("workers: 30 servers: 30");
  ExpectOne(doctor::Severity::kProblem, "cores", "60 busy threads in 60 processes on 2 cores");
}

TEST_F(HostTest, MoreThreadsThanMayBeStarted) {
  host_.threads_left = 10;
  ExpectOne(doctor::Severity::kProblem, "cores", "only 10 may still be started");
}

TEST_F(HostTest, WhatIsNotInstalled) {
  host_.programs[0].there = false;
  ExpectOne(doctor::Severity::kProblem, "programs", "tandem-server");
  host_.programs[0] = {"tandem-server", true, {"libfoo.so.1"}, {}};
  ExpectOne(doctor::Severity::kProblem, "programs", "libfoo.so.1");
  host_ = HealthyHost();
  host_.simulator = false;
  ExpectOne(doctor::Severity::kWarning, "simulator", "tandem-simulator is not built");
}

TEST_F(HostTest, OnlyScriptsDoWithoutTheWorkerProgram) {
  host_.programs[0] = {"tandem-worker", false, {}, {}};
  ExpectOne(doctor::Severity::kProblem, "programs", "tandem-worker");
  const std::vector<doctor::Finding> no_job =
      doctor::ExamineHost(host_, Cluster::AUTO, /*needs=*/nullptr);
  EXPECT_EQ(no_job[0].level, doctor::Severity::kWarning);
  EXPECT_THAT(no_job[0].advice, HasSubstr("TANDEM_WORKER"));
  plan_.job.mutable_model()->mutable_program();
  const doctor::JobNeeds needs = doctor::NeedsOf(plan_, 2, 2);
  EXPECT_THAT(Complaints(doctor::ExamineHost(host_, Cluster::AUTO, &needs)), IsEmpty());
}

// The one problem of a Python that is otherwise as scripts need it.
doctor::Finding ProblemOfPython(const std::string& part, const std::string& error,
                                const std::string& program = "/usr/bin/python3") {
  doctor::PythonFact python;
  python.interpreter = "python3";
  python.parts.push_back({"python", "3.11.2, " + program, ""});
  for (const char* const name : {"torch", "numpy", "tandem", "libtandem.so"}) {
    python.parts.push_back({name, "somewhere", name == part ? error : ""});
  }
  if (part.empty()) {
    python.error = error;
    python.parts.clear();
  }
  const std::vector<doctor::Finding> bad = Complaints(doctor::ExaminePython(python));
  TANDEM_CHECK(bad.size() == 1);
  EXPECT_EQ(bad[0].level, doctor::Severity::kProblem);
  const absl::Status first = doctor::FirstProblem(doctor::ExaminePython(python));
  EXPECT_EQ(first.message(),
            absl::StrCat(bad[0].check, ": ", bad[0].found, "; hint: ", bad[0].advice));
  return bad[0];
}

TEST(PythonTest, EachPartThatAScriptNeeds) {
  doctor::Finding bad = ProblemOfPython("", "not found");
  EXPECT_EQ(bad.check, "Python");
  EXPECT_EQ(bad.found, "python3: not found");
  EXPECT_THAT(bad.advice, HasSubstr("TANDEM_PYTHON"));
  bad = ProblemOfPython("", "<no Python frame>");
  EXPECT_THAT(bad.advice, AllOf(HasSubstr("PYTHONHOME"), Not(HasSubstr("apt install"))));
  bad = ProblemOfPython("torch", "there is no module torch", "/opt/venv/bin/python3");
  EXPECT_THAT(bad.advice, HasSubstr("/opt/venv/bin/python3 -m pip install torch, or say in"));
  bad = ProblemOfPython("torch", "there is no module torch");
  EXPECT_EQ(bad.check, "torch");
  EXPECT_THAT(bad.advice, HasSubstr("apt install python3-torch"));
  bad = ProblemOfPython("torch", "ImportError: libgomp.so.1");
  EXPECT_EQ(bad.found, "python3: ImportError: libgomp.so.1");
  EXPECT_THAT(bad.advice, HasSubstr("python3 -c 'import torch'"));
  bad = ProblemOfPython("numpy", "there is no module numpy");
  EXPECT_THAT(bad.advice, HasSubstr("apt install python3-numpy"));
  bad = ProblemOfPython("tandem", "there is no module tandem");
  EXPECT_THAT(bad.advice, HasSubstr("PYTHONPATH"));
  bad = ProblemOfPython("libtandem.so",
                        "libtandem.so is not there; build it (ninja -C build tandem_capi); x");
  EXPECT_EQ(bad.found, "libtandem.so is not there");
  EXPECT_EQ(bad.advice, "build it (ninja -C build tandem_capi); x");
  bad = ProblemOfPython("libtandem.so", "OSError: libzmq.so.5: cannot open");
  EXPECT_THAT(bad.advice, HasSubstr("docs/HACKING.md"));
}

TEST(DeviceTest, NeedsABuildAndADevice) {
  EXPECT_EQ(doctor::ExamineDevice({true, ""}).level, doctor::Severity::kOk);
  const doctor::Finding build = doctor::ExamineDevice({false, ""});
  EXPECT_EQ(build.level, doctor::Severity::kProblem);
  EXPECT_THAT(build.advice, HasSubstr("-DTANDEM_TORCH_ROOT"));
  const doctor::Finding device = doctor::ExamineDevice({true, "no CUDA device: no driver"});
  EXPECT_EQ(device.level, doctor::Severity::kProblem);
  EXPECT_THAT(device.found, HasSubstr("no CUDA device: no driver"));
  EXPECT_THAT(device.advice, HasSubstr("nvidia-smi"));
}

TEST_F(HostTest, AnotherLibraryThanBuiltWith) {
  host_.versions[0].running = "4.2.0";
  ExpectOne(doctor::Severity::kWarning, "versions", "ZeroMQ 4.2.0, but built with 4.3.4");
}

TEST_F(HostTest, NoSealedMemory) {
  host_.shared_memory_error = "memfd: not permitted";
  ExpectOne(doctor::Severity::kWarning, "shared memory", "not permitted");
  ExpectOne(doctor::Severity::kProblem, "shared memory", "not permitted", Cluster::SHM);
}

// An even share of the tables goes with the servers of a host, wherever they are.
TEST(NeedsTest, FollowWhatRunsOnTheHost) {
  const job::ResolvedJob plan = Plan("workers: 4 servers: 4 shards_per_server: 2");
  const doctor::JobNeeds all = doctor::NeedsOf(plan, 4, 4), one = doctor::NeedsOf(plan, 1, 0);
  // 16 weights and 16 accumulators a row, and more for its place.
  EXPECT_GT(all.table_bytes, uint64_t{128'000'000});
  EXPECT_LT(all.table_bytes, uint64_t{200'000'000});
  EXPECT_NEAR(static_cast<double>(one.table_bytes) * 4, static_cast<double>(all.table_bytes), 4);
  EXPECT_EQ(one.processes, 1);
  EXPECT_EQ(one.busy_threads, 2);
  EXPECT_EQ(one.checkpoint_bytes, uint64_t{136'000'000});
  EXPECT_GT(all.files_of_process, one.files_of_process);
}

// Only updates and checkpoints create rows. A copy of a frozen table at each worker is as cheap.
TEST(NeedsTest, AFrozenTableHasRowsFromACheckpointOnly) {
  for (const Table::Placement placement : {Table::SERVERS, Table::REPLICATED}) {
    job::ResolvedJob plan = Plan("workers: 4 servers: 4");
    plan.tables[0].placement = placement;
    const doctor::JobNeeds trained = doctor::NeedsOf(plan, 4, 4);
    EXPECT_GT(trained.table_bytes, 0u);
    plan.tables[0].frozen = true;
    const doctor::JobNeeds frozen = doctor::NeedsOf(plan, 4, 4);
    EXPECT_EQ(frozen.table_bytes, 0u);
    EXPECT_EQ(frozen.checkpoint_bytes, 0u);
    const doctor::JobNeeds loaded = doctor::NeedsOf(plan, 4, 4, /*loads=*/true);
    EXPECT_EQ(loaded.table_bytes, trained.table_bytes);
    EXPECT_EQ(loaded.checkpoint_bytes, trained.checkpoint_bytes);
  }
}

TEST(FolderTest, FullOrNearlyFull) {
  EXPECT_EQ(doctor::ExamineFolder({"out", "", 100}, 100).level, doctor::Severity::kOk);
  EXPECT_EQ(doctor::ExamineFolder({"out", "", 99}, 100).level, doctor::Severity::kProblem);
  EXPECT_EQ(doctor::ExamineFolder({"out", "is full", 99}, 0).level, doctor::Severity::kProblem);
}

// ---- pairs ----

class PairTest : public ::testing::Test {
 protected:
  PairTest() {
    pair_.answer = doctor::PairFacts::Answer::kDoctor;
    pair_.to = "b:7";
    pair_.version = "1";
    pair_.job_hash = "77";
    pair_.rdma_active = true;
    pair_.rdma_mtu_bytes = 4096;
    pair_.way = "RDMA";
    pair_.has_clock = true;
    pair_.clock_error_s = 0.001;
  }
  void ExpectOne(doctor::Severity level, const std::string& check, const std::string& words) {
    const doctor::OurSide ours = doctor::OurSideOf(HealthyHost(), Cluster::AUTO, "77");
    const std::vector<doctor::Finding> bad = Complaints(doctor::ExaminePair(ours, pair_));
    ASSERT_EQ(bad.size(), 1u);
    EXPECT_EQ(bad[0].level, level);
    EXPECT_EQ(bad[0].check, check);
    EXPECT_THAT(bad[0].found, HasSubstr(words));
    EXPECT_THAT(bad[0].advice, Not(IsEmpty()));
  }
  doctor::PairFacts pair_;
};

TEST_F(PairTest, AHealthyOne) {
  const doctor::OurSide ours = doctor::OurSideOf(HealthyHost(), Cluster::AUTO, "77");
  EXPECT_THAT(Complaints(doctor::ExaminePair(ours, pair_)), IsEmpty());
}

TEST_F(PairTest, WhateverElseAnswers) {
  for (const auto answer :
       {doctor::PairFacts::Answer::kRefused, doctor::PairFacts::Answer::kSilent,
        doctor::PairFacts::Answer::kGarbage, doctor::PairFacts::Answer::kUnreachable}) {
    pair_.answer = answer;
    pair_.detail = "this happened";
    ExpectOne(doctor::Severity::kProblem, "reach", "this happened");
  }
}

TEST_F(PairTest, MtusThatDiffer) {
  pair_.rdma_mtu_bytes = 1024;
  ExpectOne(doctor::Severity::kWarning, "RDMA MTU", "ours is 4096, its is 1024");
}

TEST_F(PairTest, RdmaThatIsNotUsed) {
  pair_.way = "ZeroMQ";
  pair_.why = "no RDMA: it broke";
  ExpectOne(doctor::Severity::kWarning, "transport", "no RDMA: it broke");
}

TEST_F(PairTest, FramesThatDoNotGetThrough) {
  pair_.way_error = "no answer to a frame";
  ExpectOne(doctor::Severity::kProblem, "transport", "no answer to a frame");
}

// An error bound that covers the difference excuses it.
TEST_F(PairTest, AClockThatIsWrong) {
  pair_.clock_offset_s = -3600;
  ExpectOne(doctor::Severity::kProblem, "clock", "3600.000 s behind ours");
  pair_.clock_offset_s = 0.5;
  ExpectOne(doctor::Severity::kWarning, "clock", "500.0 ms ahead of ours");
  pair_.clock_error_s = 0.45;
  const doctor::OurSide ours = doctor::OurSideOf(HealthyHost(), Cluster::AUTO, "77");
  EXPECT_THAT(Complaints(doctor::ExaminePair(ours, pair_)), IsEmpty());
}

TEST_F(PairTest, AnotherVersionOrJob) {
  pair_.job_hash = "78";
  ExpectOne(doctor::Severity::kProblem, "job", "another job");
  pair_.version = "2";
  ExpectOne(doctor::Severity::kProblem, "version", "it has Tandem 2, we have 1");
}

// ---- what is printed ----

doctor::DoctorReport SomeReport() {
  doctor::DoctorReport report;
  report.hosts.push_back(
      {"here",
       "a",
       {{doctor::Severity::kOk, "cores", "enough", ""},
        {doctor::Severity::kProblem, "memory",
         std::string(30, 'w') + std::string(200, ' ') + "and more words than fit on one line " +
             std::string(60, 'v'),
         "do something about it, in words that do not fit on one line either"}}});
  doctor::PairReport pair;
  pair.facts.from = "here";
  pair.facts.to = "b:7";
  pair.findings = {{doctor::Severity::kWarning, "clock\x1b[2J", "it is \x1b[31m wrong", "set it"}};
  report.pairs.push_back(pair);
  return report;
}

TEST(ReportTest, LinesFitTheTerminal) {
  const std::string text = doctor::ReportText(SomeReport(), {80, false});
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    EXPECT_LE(line.size(), 87u) << line;  // the longest word begins at its column
    EXPECT_FALSE(absl::EndsWith(line, " "));
  }
  EXPECT_THAT(text, HasSubstr("1 problem, 1 warning, 1 ok"));
  EXPECT_THAT(text, HasSubstr("here -> b:7"));
}

// What another host says is not let through to the terminal as it is.
TEST(ReportTest, NoControlCharacters) {
  const std::string text = doctor::ReportText(SomeReport(), {80, false});
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(ReportTest, ColourIsOnlyColour) {
  std::string colourful = doctor::ReportText(SomeReport(), {80, true});
  EXPECT_THAT(colourful, HasSubstr("\x1b[1;31mproblem\x1b[0m"));
}

TEST(ReportTest, JsonSaysTheSame) {
  const auto json = nlohmann::json::parse(doctor::ReportJson(SomeReport()));
  EXPECT_EQ(json["problems"], 1);
  EXPECT_EQ(json["warnings"], 1);
  EXPECT_EQ(json["hosts"][0]["findings"][1]["level"], "problem");
  EXPECT_EQ(json["pairs"][0]["to"], "b:7");
}

}  // namespace
}  // namespace tandem
