// What a new user gets wrong: each mistake ends with one clear line on stderr and exit status 2,
// before any process is started. And the three text formats, each trained from its config.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr absl::Duration kLimit = absl::Seconds(60);

// How a command ended, its two streams apart.
struct Ended {
  int code = -1;
  std::string out, err;
};

class RefusalTest : public ::testing::Test {
 protected:
  // Runs build/bin/tandem with these arguments.
  Ended Tandem(const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {"/bin/sh", "-c",
                                     absl::StrCat("exec \"$0\" \"$@\" 2>", folder_.File("stderr")),
                                     ProgramPath("tandem")};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const RunResult result = RunProgram(argv, kLimit);
    EXPECT_FALSE(result.timed_out);
    return {result.exit_code, result.output, ReadTextFile(folder_.File("stderr"))};
  }

  std::string Write(const std::string& name, const std::string& text) {
    WriteTextFile(folder_.File(name), text);
    return folder_.File(name);
  }

  std::string Out() const { return folder_.File("out"); }

  // One line that holds all of `words`, exit 2, and nothing made or started.
  void ExpectRefused(const Ended& ended, const std::vector<std::string>& words) {
    EXPECT_EQ(ended.code, 2) << ended.out << ended.err;
    EXPECT_THAT(ended.out, IsEmpty());
    EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
    EXPECT_TRUE(absl::EndsWith(ended.err, "\n"));
    EXPECT_TRUE(absl::StartsWith(ended.err, "tandem")) << ended.err;
    for (const std::string& word : words) EXPECT_THAT(ended.err, HasSubstr(word));
    EXPECT_FALSE(fs::exists(Out() + "/logs")) << "processes were started";
  }

  // tandem run CONFIG --set ... --out DIR
  void ExpectRunRefused(const std::string& job, const std::vector<std::string>& set,
                        const std::vector<std::string>& words) {
    std::vector<std::string> arguments = {"run", job, "--out", Out()};
    for (const std::string& text : set) arguments.insert(arguments.end(), {"--set", text});
    SCOPED_TRACE(absl::StrCat("--set ", absl::StrJoin(set, " --set ")));
    ExpectRefused(Tandem(arguments), words);
  }

  // A job on `train`, a file of this test, in the format of configs/NAME.textproto.
  void ExpectDataRefused(const std::string& name, const std::string& train,
                         const std::vector<std::string>& words) {
    ExpectRunRefused(SourcePath(absl::StrCat("configs/", name, ".textproto")),
                     {"data.train=" + train, "data.test=" + train, "data.test_fraction=0"}, words);
  }

  const std::string libsvm_ = SourcePath("configs/libsvm.textproto");
  TemporaryFolder folder_;
};

// A row of Criteo's columns: label, 13 numbers, 26 ids.
std::string CriteoRow(const std::string& label, const std::string& first_number, int ids = 26) {
  std::string row = absl::StrCat(label, "\t", first_number);
  for (int i = 2; i <= 13; ++i) absl::StrAppend(&row, "\t", i);
  for (int i = 1; i <= ids; ++i) absl::StrAppend(&row, "\t", i, "abc");
  return row + "\n";
}
std::string GoodCriteoRows() {
  return CriteoRow("0", "1") + CriteoRow("1", "") + CriteoRow("0", "5");
}

TEST_F(RefusalTest, NoArgumentsPrintHelp) {
  const Ended ended = Tandem({});
  EXPECT_EQ(ended.code, 2);
  EXPECT_THAT(ended.out, HasSubstr("run"));
  EXPECT_THAT(ended.out, HasSubstr("datagen"));
  EXPECT_THAT(ended.err, IsEmpty());
}

TEST_F(RefusalTest, HelpIsNotAnError) {
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{"--help"}, {"run", "--help"}, {"datagen", "--help"}}) {
    const Ended ended = Tandem(arguments);
    EXPECT_EQ(ended.code, 0);
    EXPECT_THAT(ended.out, HasSubstr("--help"));
    EXPECT_THAT(ended.err, IsEmpty());
  }
}

TEST_F(RefusalTest, Version) {
  const Ended ended = Tandem({"--version"});
  EXPECT_EQ(ended.code, 0);
  EXPECT_TRUE(absl::StartsWith(ended.out, "tandem ")) << ended.out;
  EXPECT_EQ(std::count(ended.out.begin(), ended.out.end(), '\n'), 1);
}

TEST_F(RefusalTest, CommandsAndFlags) {
  ExpectRefused(Tandem({"train"}), {"'train'", "run, agent"});
  ExpectRefused(Tandem({"--verbose"}), {"--verbose", "tandem --help"});
  ExpectRefused(Tandem({"run"}), {"tandem run: ", "job is required"});
  ExpectRefused(Tandem({"run", "--resume", "nowhere", "--", "--rate", "1"}),
                {"tandem run: --resume nowhere: nowhere/run: not there"});
  ExpectRefused(Tandem({"run", libsvm_, "--out", ""}), {"--out", "empty name"});
  ExpectRefused(Tandem({"run", libsvm_, "--out", Out(), "--epochs", "3"}), {"--epochs"});
  ExpectRefused(Tandem({"run", libsvm_, libsvm_, "--out", Out()}), {libsvm_});
}

// Not only jobs: what other commands are given, too, ends with 2 and one line.
TEST_F(RefusalTest, WhatOtherCommandsAreGiven) {
  const std::string file = Write("text", "some words\n");
  ExpectRefused(Tandem({"compare", "--report-only", file}),
                {"tandem compare: ", file, "is a file", "--out"});
  ExpectRefused(Tandem({"bench", "allreduce", "--ranks", "0"}), {"--ranks 0", "1 ranks or more"});
  ExpectRefused(Tandem({"bench", "allreduce", "--sizes", "4", "--type", "nope"}), {"type 'nope'"});
  ExpectRefused(Tandem({"bench", "allreduce", "--min", "1T", "--max", "1T"}),
                {"1099511627776 bytes", "this host has", "a smaller --max"});
  ExpectRefused(Tandem({"bench", "allreduce", "--max", "9000000000000000000"}), {"2^44 bytes"});
  ExpectRefused(Tandem({"run", libsvm_, "--trace", "-1"}),
                {"--trace: '-1', expected a number, 0 or"});
  ExpectRefused(Tandem({"predict", libsvm_, "--init-from", "x", "--data", "nowhere", "--out",
                        folder_.File("scores")}),
                {"tandem predict: --data: ", "nowhere", "No such file"});
  fs::create_directories(folder_.File("dumps"));
  Write("dumps/0.jsonl", "{\"event\": 1}\n");
  ExpectRefused(Tandem({"bench", "collectives-dump", folder_.File("dumps")}),
                {"0.jsonl: line 1: expected the first line of a rank's dump"});
}

TEST_F(RefusalTest, AnOutputThatCannotBeWrittenIsAFailure) {
  const std::string order("TNDMORD1\x40\0\0\0\0\0\0\0", 16);  // of no updates
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"inspect", Write("a.order", order)}, {"doctor"}, {"--version"}}) {
    std::vector<std::string> argv = {"/bin/sh", "-c", "exec \"$0\" \"$@\" > /dev/full",
                                     ProgramPath("tandem")};
    argv.insert(argv.end(), command.begin(), command.end());
    const RunResult full = RunProgram(argv, kLimit);
    EXPECT_EQ(full.exit_code, 1) << full.DebugString();
    EXPECT_THAT(full.output, HasSubstr("cannot be written"));
  }
}

TEST_F(RefusalTest, JobFile) {
  ExpectRunRefused(folder_.File("none.textproto"), {}, {"none.textproto", "No such file"});
  ExpectRunRefused(folder_.path(), {}, {folder_.path(), "is a folder, expected a job file"});
  ASSERT_EQ(mkfifo(folder_.File("fifo.textproto").c_str(), 0600), 0);
  ExpectRunRefused(folder_.File("fifo.textproto"), {}, {"is a FIFO, expected a job file"});
  ExpectRunRefused(Write("empty.textproto", ""), {}, {"empty.textproto", "cluster.workers"});
  ExpectRunRefused(Write("noise.textproto", "\x01\xff\xfe{{{"), {}, {"noise.textproto:1:"});
  const std::string unknown = Write("unknown.textproto", "name: \"x\"\ntrain { bacth_size: 3 }\n");
  ExpectRunRefused(unknown, {},
                   {"unknown.textproto:2:9", "bacth_size", "did you mean \"batch_size\"?"});
}

// LibTorch as Debian has it, without CUDA. With one that has it there is nothing to refuse.
TEST_F(RefusalTest, ADeviceThatLibTorchCannotUse) {
  const Ended ended = Tandem(
      {"run", libsvm_, "--out", Out(), "--set", "dense.device=CUDA", "--set", "train.max_steps=1"});
  if (ended.code == 0) GTEST_SKIP() << "this LibTorch has CUDA, and there is a GPU";
  ExpectRefused(ended, {"tandem run: dense.device: CUDA", "LibTorch has no CUDA", "use CPU"});
}

// On GPUs gradients are summed in one way: what is said of others is not passed over in silence.
TEST_F(RefusalTest, ChoicesThatAGpuJobDoesNotHave) {
  const std::string cuda = "dense.device=CUDA";
  ExpectRunRefused(libsvm_, {cuda, "dense.algorithm=SWING"}, {"dense.algorithm: SWING", "leave"});
  ExpectRunRefused(libsvm_, {cuda, "dense.algorithm_rules=allreduce:ring"},
                   {"dense.algorithm_rules", "leave it out"});
  ExpectRunRefused(libsvm_, {cuda, "reproducible=true"}, {"dense.device: CUDA", "use CPU"});
}

// What is said of the choice of algorithms is read before anything starts.
TEST_F(RefusalTest, RulesAndCostsOfCollectives) {
  ExpectRunRefused(libsvm_, {"dense.algorithm_rules=\"allreduce:magic\""},
                   {"dense.algorithm_rules", "at 10 ('magic')"});
  ExpectRunRefused(libsvm_, {"dense.calibration=/nowhere/costs"},
                   {"dense.calibration", "/nowhere/costs", "cannot be read"});
  ExpectRunRefused(libsvm_, {"dense.calibration=" + Write("costs", "message often\n")},
                   {"dense.calibration", "line 1: 'message often'"});
}

TEST_F(RefusalTest, Settings) {
  ExpectRunRefused(libsvm_, {"batch"}, {"--set batch", "path=value"});
  ExpectRunRefused(libsvm_, {"=3"}, {"path=value"});
  ExpectRunRefused(libsvm_, {"train.bacth_size=3"},
                   {"train.bacth_size=3", "did you mean \"batch_size\"?"});
  ExpectRunRefused(libsvm_, {"train.epochs=0"}, {"train.epochs=0", "at least 1"});
  ExpectRunRefused(libsvm_, {"train.epochs="}, {"--set train.epochs="});
  ExpectRunRefused(libsvm_, {"train.batch_size=many"}, {"train.batch_size=many", "many"});
  ExpectRunRefused(libsvm_, {"table[0].dim=-4"}, {"table[0].dim", "-4"});
  ExpectRunRefused(libsvm_, {"table[7].dim=4"}, {"table[7]"});
  ExpectRunRefused(libsvm_, {"policy.kind=SSP"}, {"SSP without a bound"});
  ExpectRunRefused(
      libsvm_,
      {"policy={kind: SSP bound: 1}", "dense.synchroniser=SERVERS", "train.prefetch_steps=2"},
      {"SSP(1)", "prefetch_steps 2"});
  ExpectRunRefused(libsvm_, {"cluster.workers=0"}, {"cluster.workers"});
  ExpectRunRefused(libsvm_, {"cluster.servers=-1"}, {"cluster.servers"});
}

// Traces of step times are read before anything starts.
TEST_F(RefusalTest, TracesOfStepTimes) {
  const auto with = [](const std::string& file) {
    return std::vector<std::string>{
        absl::StrCat("fault_injection.slow_workers=[{trace: '", file, "'}]")};
  };
  ExpectRunRefused(
      libsvm_, with("/nowhere/steps"),
      {"fault_injection.slow_workers[0].trace: cannot read /nowhere/steps", "check the path"});
  ExpectRunRefused(libsvm_, with(fs::temp_directory_path().string()), {"is a directory"});
  ExpectRunRefused(libsvm_, with("$TANDEM_NOT_SET/steps"), {"$TANDEM_NOT_SET", "not set"});
  ExpectRunRefused(
      libsvm_, with(Write("steps", "0.01\n10 ms\n")),
      {"fault_injection.slow_workers[0].trace: ", "steps:2: \"10 ms\"", "seconds from 0 to 3600"});
  ExpectRunRefused(libsvm_, with(Write("steps", "")), {"steps:1: an empty file"});
  ExpectRunRefused(libsvm_, with(Write("steps", "0.1\n700\n")),
                   {"steps:2: a step of 700 s", "limits.stall_timeout_seconds, 600"});
}

// What a policy may hold back must fit a shard, or the job does not start.
TEST_F(RefusalTest, HeldUpdatesThatDoNotFit) {
  ExpectRunRefused(libsvm_, {"policy={kind: BSP}", "limits.held_bytes_per_shard=100"},
                   {"limits.held_bytes_per_shard: 100", "2 workers x (1 + in flight 4 + delay 0)",
                    "raise it", "train.batch_size"});
  ExpectRunRefused(libsvm_,
                   {"policy={kind: FIXED_DELAY delay: 1000}", "limits.held_bytes_per_shard=100000"},
                   {"limits.held_bytes_per_shard: 100000", "delay 1000"});
}

TEST_F(RefusalTest, WhatAModelCannotReadIsSeenBeforeItIsMade) {
  ExpectRunRefused(libsvm_, {"model={dlrm {bottom: [8]}}", "table[0].dim=8"},
                   {"model.dlrm", "no numeric columns", "use mlp"});
}

// Where a role listens and whom it looks for is checked before it starts.
TEST_F(RefusalTest, Addresses) {
  // A port that is taken: by this test.
  const int taken = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof at;
  ASSERT_EQ(bind(taken, reinterpret_cast<sockaddr*>(&at), bytes), 0);
  ASSERT_EQ(listen(taken, 1), 0);
  ASSERT_EQ(getsockname(taken, reinterpret_cast<sockaddr*>(&at), &bytes), 0);
  const std::string port = absl::StrCat("tcp://127.0.0.1:", ntohs(at.sin_port));

  const auto refused = [&](const std::string& program, const std::vector<std::string>& flags,
                           const std::vector<std::string>& words) {
    std::vector<std::string> argv = {ProgramPath(program), "--job", libsvm_};
    argv.insert(argv.end(), flags.begin(), flags.end());
    SCOPED_TRACE(absl::StrJoin(argv, " "));
    const RunResult run = RunProgram(argv, kLimit);
    EXPECT_EQ(run.exit_code, 2) << run.DebugString();
    EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1) << run.output;
    for (const std::string& word : words) EXPECT_THAT(run.output, HasSubstr(word));
  };
  refused("tandem-scheduler", {"--bind", port}, {port, "in use", "another port"});
  refused("tandem-scheduler", {"--bind", "tcp://127.0.0.1:99999"}, {"99999", "up to 65535"});
  refused("tandem-scheduler", {"--bind", "tcp://127.0.0.1:http"}, {"a port is a number"});
  refused("tandem-scheduler", {"--bind", "tcp://::1:7000"},
          {"in brackets, as in tcp://[::1]:7000"});
  refused("tandem-scheduler", {"--bind", "tcp://[]:7000"}, {"is not tcp://HOST:PORT"});
  refused("tandem-scheduler", {"--bind", "tcp://[fe80::1]:7000"},
          {"names its network, as in tcp://[fe80::1%eth0]:7000"});
  refused("tandem-scheduler", {"--bind", "tcp://no.such.host.invalid:7000"},
          {"--bind", "no.such.host.invalid", "not known"});
  refused("tandem-scheduler", {"--bind", "tcp://[::]:*"}, {"--advertise"});
  refused("tandem-scheduler", {"--bind", "tcp://192.0.2.1:7000"}, {"192.0.2.1", "Cannot assign"});
  refused("tandem-scheduler", {"--bind", "tcp://0.0.0.0:*"}, {"0.0.0.0", "--advertise"});
  refused("tandem-server", {"--scheduler", "tcp://no.such.host.invalid:7000"},
          {"--scheduler", "no.such.host.invalid", "not known"});
  refused("tandem-worker", {"--scheduler", "tcp://127.0.0.1:70000"}, {"70000", "up to 65535"});
  refused("tandem-worker", {"--scheduler", port, "--bind", "tcp://*:0"}, {"--advertise"});
  close(taken);
}

// Addresses of live pages and of running jobs.
TEST_F(RefusalTest, AddressesToLookAt) {
  const auto refused = [](std::vector<std::string> argv, const std::string& what) {
    argv.insert(argv.begin(), ProgramPath("tandem"));
    SCOPED_TRACE(absl::StrJoin(argv, " "));
    const RunResult run = RunProgram(argv, kLimit);
    EXPECT_EQ(run.exit_code, 2) << run.DebugString();
    EXPECT_EQ(std::count(run.output.begin(), run.output.end(), '\n'), 1) << run.output;
    EXPECT_THAT(run.output, HasSubstr(what));
  };
  for (const char* port : {"65536", "70000", "4294967297", "-1", "http"}) {
    refused({"run", libsvm_, "--http", absl::StrCat("127.0.0.1:", port)}, "up to 65535");
  }
  refused({"run", libsvm_, "--http", "nowhere"}, "'nowhere' is not HOST:PORT");
  refused({"status", "tcp://127.0.0.1"}, "is not tcp://HOST:PORT");
  refused({"stop", "tcp://127.0.0.1:99999"}, "up to 65535");
}

TEST_F(RefusalTest, SetTakesOneValueSoTheJobMayFollow) {
  const std::string job = folder_.File("none.textproto");
  ExpectRefused(Tandem({"run", "--set", "train.batch_size=8", job, "--out", Out()}),
                {"none.textproto", "No such file"});
}

TEST_F(RefusalTest, OutputFolder) {
  const std::string file = Write("file", "");
  const std::string csv = SourcePath("configs/data/example_train.libsvm");
  const std::string test = SourcePath("configs/data/example_test.libsvm");
  const std::vector<std::string> data = {"--set", "data.train=" + csv, "--set",
                                         "data.test=" + test};
  for (const std::string& out : {file, file + "/below"}) {
    std::vector<std::string> arguments = {"run", libsvm_, "--out", out};
    arguments.insert(arguments.end(), data.begin(), data.end());
    ExpectRefused(Tandem(arguments), {"--out " + out, "cannot be made: ", file + " is a file"});
  }
  const std::string link = folder_.File("link");
  fs::create_symlink("nowhere", link);
  std::vector<std::string> arguments = {"run", libsvm_, "--out", link};
  arguments.insert(arguments.end(), data.begin(), data.end());
  ExpectRefused(Tandem(arguments), {link + " is a link to nowhere, which does not exist"});
}

// A job that asks for more than this host's devices have (none, or queues for fewer peers).
TEST_F(RefusalTest, ATransportThatThisHostDoesNotHave) {
  ExpectRefused(Tandem({"run", SourcePath("configs/quickstart.textproto"), "--out", Out(), "--set",
                        "cluster.transport=RDMA", "--set", "cluster.workers=1000"}),
                {"cluster.transport: RDMA: "});
}

TEST_F(RefusalTest, CheckpointReader) {
  ExpectRefused(Tandem({"run", libsvm_, "--out", Out(), "--init-from", folder_.File("none")}),
                {folder_.File("none")});
  ExpectRefused(Tandem({"run", libsvm_, "--out", Out(), "--init-from", folder_.path()}),
                {folder_.path(), "model/"});
}

TEST_F(RefusalTest, Datagen) {
  const std::string file = Write("file", "");
  ExpectRefused(Tandem({"datagen"}), {"tandem datagen: ", "--out is required"});
  ExpectRefused(Tandem({"datagen", "--out", file + "/x"}), {file, "cannot be made"});
  ExpectRefused(Tandem({"datagen", "--out", Out(), "--train-rows", "many"}), {"many"});
  ExpectRefused(Tandem({"datagen", "--out", Out(), "--train-rows", "-3"}), {"-3"});
  ExpectRefused(Tandem({"datagen", "--out", Out(), "--test-rows", "0"}), {"0 test rows"});
}

TEST_F(RefusalTest, FilesOfData) {
  for (const char* config : {"criteo_small", "libsvm", "delimited"}) {
    ExpectDataRefused(config, folder_.File("none.txt"), {"none.txt", "No such file"});
    ExpectDataRefused(config, folder_.File("none*.txt"), {"no file matches"});
    ExpectDataRefused(config, Write("empty.txt", ""), {"empty.txt", "empty"});
    ExpectDataRefused(config, folder_.path(), {"is a directory"});
    ExpectDataRefused(config, "/dev/zero", {"/dev/zero is a device, expected a regular file"});
  }
  // Nobody writes into it: whoever opened it would wait for ever.
  const std::string pipe = folder_.File("pipe");
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  ExpectDataRefused("libsvm", pipe, {"data.train: ", pipe, "is a pipe (FIFO)", "regular file"});
  const std::string rows = Write("rows.svm", "+1 3:1\n-1 4:1\n");
  ExpectRunRefused(libsvm_, {"data.train=" + rows, "data.test=" + pipe}, {"data.test: ", pipe});
  ExpectRunRefused(
      libsvm_,
      {"data.train=" + rows, "data.test=" + rows, "data.validation={files: \"" + pipe + "\"}"},
      {"data.validation", pipe});
  ExpectRunRefused(libsvm_, {"fault_injection.slow_workers=[{trace: '" + pipe + "'}]"},
                   {"fault_injection.slow_workers[0].trace", pipe});
  ExpectRunRefused(
      SourcePath("configs/delimited.textproto"),
      {"data.train=" + SourcePath("configs/data/example_train.csv"),
       "data.test=" + SourcePath("configs/data/example_test.csv"), "data.columns.label=take"},
      {"has no column 'take'", "did you mean 'taken'?"});
  ExpectDataRefused("delimited",
                    Write("header.csv", "age,city,device,visits,minutes,offer,taken\n"),
                    {"header.csv", "no rows"});
}

TEST_F(RefusalTest, RowsOfCriteo) {
  const std::string good = GoodCriteoRows();
  ExpectDataRefused("criteo_small", Write("a.tsv", good + CriteoRow("0", "1", 25)),
                    {"a.tsv:4", "39 columns", "expected 40"});
  ExpectDataRefused("criteo_small", Write("a.tsv", good + CriteoRow("0", "1x")),
                    {"a.tsv:4", "'1x'", "expected a number"});
  ExpectDataRefused("criteo_small", Write("a.tsv", good + CriteoRow("2", "1")),
                    {"a.tsv:4", "label", "'2'", "0 or 1"});
  ExpectDataRefused("criteo_small", Write("a.tsv", CriteoRow("0", "1")),
                    {"1 rows for 2 workers", "cluster.workers"});
}

// A process that may start no threads, or open no files: said before anything is started.
TEST_F(RefusalTest, LimitsOfTheSystem) {
  const std::string job = SourcePath("configs/delimited.textproto");
  const std::string set = absl::StrCat(
      " --set data.train=", SourcePath("configs/data/example_train.csv"),
      " --set data.test=", SourcePath("configs/data/example_test.csv"), " --out ", Out());
  const auto under = [&](const std::string& limit, const std::string& as) {
    const std::string command =
        absl::StrCat(limit, "; exec ", as, ProgramPath("tandem"), " run ", job, set);
    return RunProgram({"/bin/bash", "-c", command}, kLimit);
  };
  const RunResult files = under("ulimit -n 20", "");
  EXPECT_EQ(files.exit_code, 2) << files.DebugString();
  EXPECT_THAT(files.output, HasSubstr("open files: a process needs at least"));
  if (geteuid() != 0) GTEST_SKIP() << "a limit of processes needs a user of its own";
  fs::permissions(folder_.path(), fs::perms::all);
  const RunResult threads =
      under("ulimit -u 12", "setpriv --reuid 65531 --regid 65534 --clear-groups ");
  if (absl::StrContains(threads.output, "Permission denied")) {
    GTEST_SKIP() << "another user cannot read the programs here";
  }
  EXPECT_EQ(threads.exit_code, 2) << threads.DebugString();
  EXPECT_THAT(threads.output, HasSubstr("only 12 may be started; hint: raise ulimit -u"));
}

// A column on its own: the file is checked for 64 MiB before the start, so this row is met in
// training.
TEST_F(RefusalTest, BadRowBehindTheCheckNamesWorkerFileAndLine) {
  std::string block;
  while (block.size() < (size_t{1} << 20)) block += GoodCriteoRows();
  const auto block_rows = std::count(block.begin(), block.end(), '\n');
  std::string text;
  for (int i = 0; i < 65; ++i) text += block;
  const std::string file = Write("deep.tsv", text + CriteoRow("0", "1", 3) + block);
  const std::string place = absl::StrCat("deep.tsv:", 65 * block_rows + 1);
  const Ended ended =
      Tandem({"run", SourcePath("configs/criteo_small.textproto"), "--out", Out(),
              "--no-checkpoint", "--set", "data.train=" + file, "--set", "data.test_fraction=0",
              "--set", "model={logistic_regression {}}", "--set", "table[0].dim=1", "--set",
              "train={batch_size: 8192 epochs: 1}"});
  EXPECT_EQ(ended.code, 1) << ended.out << ended.err;
  EXPECT_EQ(std::count(ended.err.begin(), ended.err.end(), '\n'), 1) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("failed: worker "));
  EXPECT_THAT(ended.err, HasSubstr(place + ": the row has 17 columns, expected 40"));
}

TEST_F(RefusalTest, MissingProgramIsNamed) {
  const std::string copy = folder_.File("bin/tandem");
  fs::create_directory(folder_.File("bin"));
  fs::copy_file(ProgramPath("tandem"), copy);
  const std::string data = SourcePath("configs/data/example_train.libsvm");
  const std::string test = SourcePath("configs/data/example_test.libsvm");
  const RunResult result = RunProgram({copy, "run", libsvm_, "--out", Out(), "--set",
                                       "data.train=" + data, "--set", "data.test=" + test},
                                      kLimit);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.output, HasSubstr("bin/tandem-scheduler is not there; hint: install"));
  EXPECT_EQ(std::count(result.output.begin(), result.output.end(), '\n'), 1) << result.output;
  WriteTextFile(folder_.File("build.ninja"), "");  // now it is a build folder
  const RunResult simulated = RunProgram({copy, "simulate", libsvm_, "--out", Out()}, kLimit);
  EXPECT_EQ(simulated.exit_code, 1);
  EXPECT_THAT(simulated.output, HasSubstr("tandem-simulator is not built; hint: ninja -C"));
  const std::string study = Write(
      "study.textproto",
      absl::StrCat("name: 's' question: 'q?' job: '", libsvm_,
                   "' seed: 1 simulate {}\n"
                   "set: 'data.train=",
                   data, "' set: 'data.test=", test,
                   "'\n"
                   "variation { name: 'a' } variation { name: 'b' set: 'train.batch_size=8' }\n"));
  const RunResult compared = RunProgram({copy, "compare", study, "--out", Out()}, kLimit);
  EXPECT_EQ(compared.exit_code, 2);
  EXPECT_THAT(compared.output, HasSubstr("tandem-simulator is not built; hint: ninja -C"));
}

// ---- What must work ---------------------------------------------------------------------------

class FormatTest : public RefusalTest {
 protected:
  // Trains and returns the AUC.
  double Train(const std::string& job, const std::vector<std::string>& set) {
    RunArguments arguments;
    arguments.job = job;
    arguments.set = set;
    arguments.out = Out();
    const RunResult result = RunJob(arguments);
    EXPECT_TRUE(result.ok()) << result.DebugString();
    if (!result.ok()) return 0;
    EXPECT_THAT(result.output, HasSubstr("done: "));
    EXPECT_THAT(result.output, Not(HasSubstr("registered")));  // for the log, not for the screen
    EXPECT_GT(result.summary.value("samples", 0), 0);
    return result.summary["eval"].value("auc", 0.0);
  }
  static std::string Data(const char* name) {
    return SourcePath(absl::StrCat("configs/data/", name));
  }
};

TEST_F(FormatTest, Libsvm) {
  EXPECT_GT(Train(libsvm_, {"data.train=" + Data("example_train.libsvm"),
                            "data.test=" + Data("example_test.libsvm")}),
            0.8);
}

TEST_F(FormatTest, Delimited) {
  EXPECT_GT(Train(SourcePath("configs/delimited.textproto"),
                  {"data.train=" + Data("example_train.csv"),
                   "data.test=" + Data("example_test.csv"), "train.epochs=8"}),
            0.75);
}

TEST_F(FormatTest, Criteo) {
  const RunResult made = RunProgram({ProgramPath("tandem"), "datagen", "--out", folder_.path(),
                                     "--train-rows", "20000", "--test-rows", "4000"});
  ASSERT_TRUE(made.ok()) << made.DebugString();
  EXPECT_GT(Train(SourcePath("configs/quickstart.textproto"),
                  {"data.train=" + folder_.File("train.tsv"),
                   "data.test=" + folder_.File("test.tsv"), "train.batch_size=128"}),
            0.55);
}

}  // namespace
}  // namespace tandem
