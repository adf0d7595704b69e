// What `cmake --install` puts under a prefix, moved to a temporary folder: the programs there train
// with a compiled model and with a script, and programs outside are built with it. Nothing of the
// build folder is used.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "data/cells.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/run_job.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
namespace fs = std::filesystem;

constexpr absl::Duration kBuildLimit = absl::Seconds(300);

class InstallTest : public ::testing::Test {
 protected:
  // Installed once for all tests of this program: with debugging symbols it is some hundred MB.
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    const RunResult installed =
        RunProgram({"/usr/bin/env", "DESTDIR=" + folder_->File("root"), TANDEM_CMAKE, "--install",
                    TANDEM_BUILD, "--prefix", "/opt/tandem", "--strip"},
                   kBuildLimit);
    ASSERT_TRUE(installed.ok()) << installed.DebugString();
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }

  static std::string Prefix() { return folder_->File("root/opt/tandem"); }
  static std::string Program(const char* name) { return absl::StrCat(Prefix(), "/bin/", name); }
  // As a user who has nothing but what is installed; in the test's folder.
  static RunResult Run(const std::vector<std::string>& command, absl::Duration limit = kRunLimit) {
    std::vector<std::string> argv = {"/usr/bin/env", "-C", folder_->path(), "-u",
                                     "PYTHONPATH",   "-u", "TANDEM_BIN_DIR"};
    argv.insert(argv.end(), command.begin(), command.end());
    return RunProgram(argv, limit);
  }

  // job.textproto and train.py, which says where its package is from.
  static void WriteScript() {
    WriteTextFile(
        folder_->File("job.textproto"),
        "cluster { workers: 1 servers: 1 }\ndata { format: PROGRAM }\nmodel { program {} }\n"
        "table { name: \"ids\" dim: 4 field: \"city\" optimizer { kind: SGD "
        "learning_rate: 0.1 } }\n"
        "dense { optimizer { kind: PROGRAM } }\ntrain { batch_size: 8 epochs: 2 }\n");
    WriteTextFile(folder_->File("train.py"), R"(
import torch, tandem
from tandem import _abi
job = tandem.init()
model = torch.nn.Linear(4, 1)
rows = tandem.EmbeddingBag("city")
optimizer = tandem.DistributedOptimizer(torch.optim.SGD(model.parameters(), .1), model)
loader = tandem.DataLoader([torch.arange(8).unsqueeze(1) + i for i in range(5)])
for _ in job.epochs():
    for ids in loader:
        optimizer.zero_grad()
        model(rows(ids[:, 0])).square().mean().backward()
        optimizer.step()
print(tandem.__file__, _abi.library()._name)
)");
  }

  static TemporaryFolder* folder_;
};

TemporaryFolder* InstallTest::folder_ = nullptr;

TEST_F(InstallTest, TheQuickstartJobTrains) {
  const RunResult data = Run({Program("tandem"), "datagen", "--out", "out/data/quickstart",
                              "--train-rows", "20000", "--test-rows", "4000"});
  ASSERT_TRUE(data.ok()) << data.DebugString();
  const RunResult run =
      Run({Program("tandem"), "run", Prefix() + "/share/tandem/configs/quickstart.textproto",
           "--out", "out/quickstart", "--set", "data.shuffle_buffer=4096"});
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const auto summary =
      nlohmann::json::parse(ReadTextFile(folder_->File("out/quickstart/summary.json")));
  EXPECT_EQ(summary["samples"], 20000);
  EXPECT_GT(summary["eval"]["auc"], 0.55) << summary["eval"].dump();
}

// No program and no library looks for others in the build folder, and no text names it.
TEST_F(InstallTest, NothingPointsBack) {
  int programs = 0, texts = 0;
  for (const auto& entry : fs::recursive_directory_iterator(Prefix())) {
    const std::string path = entry.path().string();
    EXPECT_FALSE(absl::StrContains(path, "__pycache__")) << path;
    if (!entry.is_regular_file() || entry.path().extension() == ".a") continue;
    std::string text = ReadTextFile(path);
    if (absl::StartsWith(text,
                         "\x7f"
                         "ELF")) {  // its strings have names of sources
      const RunResult read = RunProgram({"/usr/bin/readelf", "-d", path});
      ASSERT_TRUE(read.ok()) << read.DebugString();
      text = read.output;
      programs += entry.path().filename() == "libtandem_arrow.so" ? 0 : 1;  // not in each build
    } else {
      ++texts;
    }
    EXPECT_FALSE(absl::StrContains(text, TANDEM_BUILD)) << path;
  }
  EXPECT_EQ(programs, 6);  // five, and a library
  EXPECT_GT(texts, 100);
}

TEST_F(InstallTest, AScriptTrainsWithTheInstalledPackage) {
  const std::string& python = PythonInterpreter();
  if (python.empty()) GTEST_SKIP() << "no python3 with torch and numpy here";
  WriteScript();
  const RunResult run = Run({"TANDEM_PYTHON=" + python, Program("tandem"), "run", "job.textproto",
                             "--python", "train.py", "--out", "out/script"});
  ASSERT_TRUE(run.ok()) << run.DebugString();
  const std::string log = ReadTextFile(folder_->File("out/script/logs/worker-0.log"));
  EXPECT_THAT(log, HasSubstr(Prefix() + "/share/tandem/python/tandem/__init__.py"));
  EXPECT_THAT(log, HasSubstr(Prefix() + "/lib"));
  // By hand: the package beside other Python packages is a link to the same.
  const RunResult by_hand =
      Run({"PYTHONPATH=" + Prefix() + "/lib/python3/dist-packages", python, "-c",
           "import tandem; from tandem import _abi; print(_abi.library()); "
           "print(tandem.load('out/script/model').tables['ids'].rows)"});
  EXPECT_TRUE(by_hand.ok()) << by_hand.DebugString();
  EXPECT_THAT(by_hand.output, HasSubstr("\n12\n"));
}

TEST_F(InstallTest, AWheelTrains) {
  const std::string& python = PythonInterpreter();
  if (python.empty()) GTEST_SKIP() << "no python3 with torch and numpy here";
  if (!Run({python, "-c", "import setuptools, pip, wheel"}).ok()) {
    GTEST_SKIP()
        << "python3 has no pip, setuptools or wheel (apt install python3-pip python3-wheel)";
  }
  const RunResult made =
      Run({"TANDEM_PYTHON=" + python, TANDEM_MAKE_WHEEL, TANDEM_BUILD, "wheels"});
  ASSERT_TRUE(made.ok()) << made.DebugString();
  const std::string wheel(absl::StripAsciiWhitespace(made.output));
  const std::string site = folder_->File("site");
  const RunResult installed = Run({python, "-m", "pip", "install", "--quiet", "--no-deps",
                                   "--no-index", "--target", site, wheel});
  ASSERT_TRUE(installed.ok()) << installed.DebugString();
  WriteScript();
  const RunResult run = Run({"TANDEM_PYTHON=" + python, "PYTHONPATH=" + site, site + "/bin/tandem",
                             "run", "job.textproto", "--python", "train.py", "--out", "out/wheel"});
  ASSERT_TRUE(run.ok()) << run.DebugString();
  EXPECT_THAT(ReadTextFile(folder_->File("out/wheel/logs/worker-0.log")),
              HasSubstr(site + "/tandem/_prefix/lib/libtandem.so"));
  const RunResult by_hand =
      Run({"PYTHONPATH=" + site, python, "-c",
           "import tandem; print(tandem.load('out/wheel').tables['ids'].rows, "
           "tandem.__file__)"});
  EXPECT_TRUE(by_hand.ok()) << by_hand.DebugString();
  EXPECT_THAT(by_hand.output, HasSubstr("12 " + site + "/tandem/__init__.py"));
}

TEST_F(InstallTest, ProgramsOutsideAreBuilt) {
  const std::string build = folder_->File("build");
  for (const std::vector<std::string>& step :
       {std::vector<std::string>{TANDEM_CMAKE, "-G", "Ninja", "-S", TANDEM_INSTALLED_SOURCE, "-B",
                                 build, absl::StrCat("-DCMAKE_PREFIX_PATH=", Prefix())},
        std::vector<std::string>{TANDEM_CMAKE, "--build", build}}) {
    const RunResult built = Run(step, kBuildLimit);
    ASSERT_TRUE(built.ok()) << built.DebugString();
  }
  const RunResult capi = Run({build + "/uses_capi"});
  EXPECT_TRUE(capi.ok()) << capi.DebugString();
  EXPECT_EQ(capi.output,
            absl::StrCat(static_cast<int64_t>(data::FieldHash("city").Key("7")), "\n"));
  const RunResult client = Run({build + "/uses_client"});
  EXPECT_TRUE(client.ok()) << client.DebugString();
  EXPECT_THAT(client.output, HasSubstr("no address"));
}

}  // namespace
}  // namespace tandem
