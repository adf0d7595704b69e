// `tandem doctor` as a user runs it: a healthy setting, and broken ones made for real, each in a
// process of its own so that nothing of the machine is changed. What takes hardware to break is in
// tests/unit/tools/doctor_test.cc, what takes a peer that lies in
// tests/unit/tools/doctor_peer_test.cc.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"
#include "tools/doctor/doctor_link.h"

namespace tandem {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::Duration kLimit = absl::Seconds(100);

struct Examined {
  int code = -1;
  std::string text;
  json report;

  // The findings of all hosts and pairs.
  std::vector<json> findings() const {
    std::vector<json> all;
    for (const char* part : {"hosts", "pairs"}) {
      if (!report.is_object()) continue;
      for (const json& one : report[part]) {
        all.insert(all.end(), one["findings"].begin(), one["findings"].end());
      }
    }
    return all;
  }
  std::string LevelOf(const std::string& check) const {
    std::string level = "none";
    for (const json& finding : findings()) {
      if (finding["check"] == check && level != "problem") level = finding["level"];
    }
    return level;
  }
};

class DoctorTest : public ::testing::Test {
 protected:
  DoctorTest() {
    std::string rows;
    for (int i = 0; i < 50; ++i) absl::StrAppend(&rows, i % 2, " 1:1 2:", i, "\n");
    WriteTextFile(folder_.File("train.svm"), rows);
    WriteTextFile(job_, absl::StrCat(R"(
        cluster { workers: 1 servers: 1 }
        data { format: LIBSVM train: ")",
                                     folder_.File("train.svm"), R"(" }
        table { name: "w" dim: 1 expected_rows: 100 }
        dense { optimizer { learning_rate: 0.1 } }
        model { logistic_regression {} }
        train { batch_size: 8 })"));
  }

  // tandem doctor ARGUMENTS --json, after what `before` does in the shell that becomes it.
  Examined Doctor(const std::vector<std::string>& arguments, const std::string& before = "") {
    std::vector<std::string> argv = {
        "/bin/sh", "-c",    absl::StrCat(before, " exec \"$0\" \"$@\""), ProgramPath("tandem"),
        "doctor",  "--json"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    const RunResult result = RunProgram(argv, kLimit);
    EXPECT_FALSE(result.timed_out) << result.output;
    Examined examined = {result.exit_code, result.output, nullptr};
    const size_t begin = result.output.find('{');
    if (begin != std::string::npos) {
      examined.report = json::parse(result.output.substr(begin), nullptr, false);
    }
    return examined;
  }

  // That the doctor calls this a problem, says what it found and what to do, and nothing else.
  void ExpectProblem(const Examined& examined, const std::string& check, const std::string& words) {
    EXPECT_EQ(examined.code, 1) << examined.text;
    for (const json& finding : examined.findings()) {
      if (finding["level"] != "problem") continue;
      EXPECT_EQ(finding["check"], check) << examined.text;
      EXPECT_THAT(finding["found"].get<std::string>(), HasSubstr(words));
      EXPECT_NE(finding["advice"], "");
    }
    EXPECT_EQ(examined.LevelOf(check), "problem") << examined.text;
  }

  // A doctor that listens, and its address.
  std::unique_ptr<ChildProcess> Listen(std::vector<std::string> arguments, std::string* address) {
    static int count = 0;
    const std::string output = folder_.File(absl::StrCat("listener-", count++));
    arguments.insert(arguments.begin(),
                     {ProgramPath("tandem"), "doctor", "--listen", "127.0.0.1:0"});
    auto child =
        std::make_unique<ChildProcess>(arguments, output, std::map<std::string, std::string>{});
    EXPECT_TRUE(child->WaitForOutput("port ", kLimit)) << child->Output();
    EXPECT_TRUE(child->WaitForOutput("\n", kLimit));
    const std::vector<std::string> words = absl::StrSplit(child->Output(), "port ");
    *address = absl::StrCat("127.0.0.1:", std::string(absl::StripAsciiWhitespace(words.back())));
    return child;
  }

  const TemporaryFolder folder_;
  const std::string job_ = folder_.File("job.textproto"), out_ = folder_.File("out");
};

// ---- healthy ----

TEST_F(DoctorTest, AHealthySetting) {
  const Examined examined = Doctor({job_, "--out", out_, "--bind", "tcp://127.0.0.1:*"});
  EXPECT_EQ(examined.code, 0) << examined.text;
  EXPECT_EQ(examined.report["problems"], 0);
  for (const char* check : {"programs", "versions", "memory", "open files", "shared memory", "data",
                            "output folder", "port"}) {
    EXPECT_EQ(examined.LevelOf(check), "ok") << check;
  }
  EXPECT_EQ(access(out_.c_str(), F_OK), -1) << "something was left behind";
}

TEST_F(DoctorTest, ThreeHealthyPlacesThroughOneOfThem) {
  std::string b, c;
  const auto first = Listen({job_}, &b), second = Listen({job_}, &c);
  const Examined examined = Doctor({job_, "--peer", b, "--peer", c});
  EXPECT_EQ(examined.code, 0) << examined.text;
  EXPECT_EQ(examined.report["hosts"].size(), 3u);
  ASSERT_EQ(examined.report["pairs"].size(), 4u) << examined.text;  // here-b, here-c, b-c, c-b
  for (const json& pair : examined.report["pairs"]) {
    EXPECT_EQ(pair["by"], "shared memory") << examined.text;
    EXPECT_LE(std::abs(pair["clock_offset_s"].get<double>()), pair["clock_error_s"].get<double>());
  }
  first->Signal(SIGTERM);
  ASSERT_TRUE(first->WaitFor(kLimit));
  EXPECT_EQ(first->exit_code(), 0);
}

TEST_F(DoctorTest, PeopleGetLinesWithoutColourInAFile) {
  const RunResult result = RunProgram({ProgramPath("tandem"), "doctor", job_}, kLimit);
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("this host"));
  EXPECT_THAT(result.output, HasSubstr("0 problems"));
  EXPECT_THAT(result.output, Not(HasSubstr("\x1b")));
}

TEST_F(DoctorTest, ARunningSchedulerIsReached) {
  const std::string log = folder_.File("scheduler");
  ChildProcess scheduler({ProgramPath("tandem-scheduler"), "--job", job_, "--out", out_, "--bind",
                          "tcp://127.0.0.1:*"},
                         log, {});
  ASSERT_TRUE(scheduler.WaitForOutput("tcp://127.0.0.1:", kLimit)) << scheduler.Output();
  const std::string output = scheduler.Output();
  const size_t at = output.find("tcp://127.0.0.1:");
  const std::string address =
      output.substr(at, output.find_first_not_of("0123456789", at + 16) - at);
  const Examined examined = Doctor({"--peer", address});
  EXPECT_EQ(examined.code, 0) << examined.text;
  EXPECT_EQ(examined.LevelOf("reach"), "ok") << examined.text;
}

// ---- broken ----

TEST_F(DoctorTest, FewOpenFiles) {
  ExpectProblem(Doctor({job_}, "ulimit -n 32;"), "open files", "the limit is 32");
}

// The job wants RDMA. What is said of devices depends on the machine; this does not.
TEST_F(DoctorTest, LittleLockedMemory) {
  const std::string drop =
      "ulimit -l 64; command -v setpriv >/dev/null && exec setpriv "
      "--bounding-set -ipc_lock --inh-caps -ipc_lock \"$0\" \"$@\";";
  const Examined examined = Doctor({job_, "--set", "cluster.transport=RDMA"}, drop);
  EXPECT_EQ(examined.code, 1);
  if (absl::StrContains(examined.text, "privileged beyond it")) {
    GTEST_SKIP() << "the privilege to lock memory cannot be dropped here";
  }
  EXPECT_EQ(examined.LevelOf("locked memory"), "problem") << examined.text;
  EXPECT_THAT(examined.text, HasSubstr("the limit is 65.5 kB"));
}

TEST_F(DoctorTest, APortThatIsTaken) {
  auto taken = doctor::DoctorListener::Bind("127.0.0.1:0");
  ASSERT_TRUE(taken.ok());
  const Examined examined =
      Doctor({job_, "--bind", absl::StrCat("tcp://127.0.0.1:", taken->port())});
  ExpectProblem(examined, "port", "Address already in use");
  EXPECT_THAT(examined.text, HasSubstr(absl::StrCat("pid ", getpid())));  // who has it
}

TEST_F(DoctorTest, AnAddressOfAnotherHost) {
  ExpectProblem(Doctor({job_, "--bind", "tcp://192.0.2.1:7000"}), "port", "Cannot assign");
}

TEST_F(DoctorTest, AMissingDataFile) {
  ExpectProblem(Doctor({job_, "--set", absl::StrCat("data.train=", folder_.File("gone.svm"))}),
                "data", "gone.svm");
}

// What a peer is missing is reported here.
TEST_F(DoctorTest, APeerWithoutTheData) {
  std::string address;
  const auto peer = Listen({job_}, &address);
  ASSERT_EQ(unlink(folder_.File("train.svm").c_str()), 0);
  const Examined examined = Doctor({job_, "--workers", "0", "--peer", address});
  ExpectProblem(examined, "data", "train.svm");
  EXPECT_EQ(examined.report["hosts"][1]["name"], address);
}

// A folder on a file system of 64 KiB that is full, seen by the doctor alone.
TEST_F(DoctorTest, AFullOutputFolder) {
  const std::string mount = folder_.File("small");
  ASSERT_EQ(mkdir(mount.c_str(), 0700), 0);
  const std::string fill = absl::StrCat("mount -t tmpfs -o size=64k tandem ", mount,
                                        " && head -c 65536 /dev/zero > ", mount, "/x; ");
  const std::string probe = absl::StrCat("unshare -m sh -c 'mount -t tmpfs tandem ", mount, "'");
  if (system(absl::StrCat(probe, " 2>/dev/null").c_str()) != 0) {
    GTEST_SKIP() << "no mounts of one's own here (unshare -m)";
  }
  const std::string before = absl::StrCat("[ -n \"$INSIDE\" ] || INSIDE=1 exec unshare -m sh -c '",
                                          fill, "exec \"$0\" \"$@\"' \"$0\" \"$@\";");
  ExpectProblem(Doctor({job_, "--out", mount}, before), "output folder", "No space left");
}

TEST_F(DoctorTest, AnOutputFolderThatIsAFile) {
  ExpectProblem(Doctor({job_, "--out", absl::StrCat(job_, "/out")}), "output folder",
                "is no folder");
}

TEST_F(DoctorTest, TablesThatExceedMemory) {
  ExpectProblem(Doctor({job_, "--set", "table[0].expected_rows=1000000000000"}), "memory",
                "TB needed");
}

TEST_F(DoctorTest, TooManyProcesses) {
  const Examined examined =
      Doctor({job_, "--set", "cluster.workers=1000", "--set", "cluster.servers=1000"},
             "ulimit -n 100000 2>/dev/null;");
  EXPECT_EQ(examined.code, 1);
  EXPECT_EQ(examined.LevelOf("cores"), "problem") << examined.text;
  EXPECT_THAT(examined.text, HasSubstr("2000 processes"));
}

// ---- scripts and GPUs ----

class DoctorScriptTest : public DoctorTest {
 protected:
  void SetUp() override {
    if (PythonInterpreter().empty()) GTEST_SKIP() << "no python3 with torch and numpy here";
    WriteTextFile(job_, R"(
        cluster { workers: 1 servers: 1 }
        data { format: PROGRAM }
        table { name: "w" dim: 1 expected_rows: 100 field: "x" }
        dense { optimizer { learning_rate: 0.1 } }
        model { program {} }
        train { batch_size: 8 })");
  }
  // `environment`: "NAME=VALUE ...", for this doctor alone.
  Examined Examine(const std::string& environment) {
    return Doctor(
        {job_}, absl::StrCat("export TANDEM_PYTHON=", PythonInterpreter(), " ", environment, ";"));
  }
  // Writes a shell script into the folder of the test and returns its path.
  std::string Script(const std::string& name, const std::string& text) {
    const std::string path = folder_.File(name);
    WriteTextFile(path, text);
    TANDEM_CHECK(chmod(path.c_str(), 0700) == 0);
    return path;
  }
};

TEST_F(DoctorScriptTest, AHealthyOne) {
  const Examined examined = Examine("");
  EXPECT_EQ(examined.code, 0) << examined.text;
  for (const char* check : {"Python", "torch", "numpy", "tandem", "libtandem.so", "simulator"}) {
    EXPECT_EQ(examined.LevelOf(check), "ok") << check << examined.text;
  }
}

TEST_F(DoctorScriptTest, NoPython) {
  ExpectProblem(Examine("TANDEM_PYTHON=" + folder_.File("nothing")), "Python", "not found");
  ExpectProblem(Examine("TANDEM_PYTHON=/bin/true"), "Python", "no output");
  ExpectProblem(Examine("TANDEM_PYTHON=" + job_), "Python", "Permission denied");
}

TEST_F(DoctorScriptTest, NoLibrary) {
  const Examined examined = Examine("TANDEM_LIBRARY=" + folder_.File("libtandem.so"));
  ExpectProblem(examined, "libtandem.so", "is not there");
  EXPECT_THAT(examined.text, HasSubstr("ninja -C build tandem_capi"));
}

TEST_F(DoctorScriptTest, ModulesThatAreMissingOrBroken) {
  // Neither PYTHONPATH nor packages of the system.
  const std::string bare =
      Script("bare", absl::StrCat("#!/bin/sh\nexec ", PythonInterpreter(), " -I -S \"$@\"\n"));
  const Examined examined = Examine("TANDEM_PYTHON=" + bare);
  EXPECT_EQ(examined.code, 1) << examined.text;
  for (const char* check : {"torch", "numpy", "tandem"}) {
    EXPECT_EQ(examined.LevelOf(check), "problem") << check << examined.text;
  }
  EXPECT_THAT(examined.text, HasSubstr("apt install python3-torch"));
  ASSERT_EQ(mkdir(folder_.File("torch").c_str(), 0700), 0);
  WriteTextFile(folder_.File("torch/__init__.py"), "raise OSError('libgomp.so.1 is gone')\n");
  ExpectProblem(Examine("PYTHONPATH=" + folder_.path()), "torch", "OSError: libgomp.so.1 is gone");
}

TEST_F(DoctorTest, NoSimulator) {
  const std::string copy = folder_.File("tandem");
  ASSERT_EQ(system(absl::StrCat("cp ", ProgramPath("tandem"), " ", copy).c_str()), 0);
  const RunResult result = RunProgram({copy, "doctor"}, kLimit);
  EXPECT_THAT(result.output, HasSubstr("ninja -C build tandem-simulator"));
}

// The machine has no GPU, or the build no LibTorch with CUDA.
TEST_F(DoctorTest, NoDevice) {
  const Examined examined = Doctor({job_, "--set", "dense.device=CUDA"});
  if (examined.LevelOf("dense.device") == "ok") GTEST_SKIP() << "a GPU that models can compute on";
  ExpectProblem(examined, "dense.device", "CUDA, but this");
}

// ---- wrong usage ----

TEST_F(DoctorTest, WrongUsage) {
  for (const std::vector<std::string>& wrong : std::vector<std::vector<std::string>>{
           {"--nonsense"},
           {"--peer", "no-port"},
           {"--listen", "nothing"},
           {"--listen", "0.0.0.0:0"},  // and what others are to call it?
           {"--set", "a=1"},
           {folder_.File("gone.textproto")},
           {job_, "--set", "seeed=1"}}) {
    const Examined examined = Doctor(wrong);
    EXPECT_EQ(examined.code, 2) << absl::StrJoin(wrong, " ") << ": " << examined.text;
    EXPECT_EQ(std::count(examined.text.begin(), examined.text.end(), '\n'), 1) << examined.text;
  }
}

}  // namespace
}  // namespace tandem
