#include "tests/integration/small_job.h"

#include <sstream>

#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "data/datagen.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

constexpr char kJob[] = R"(
name: "small"
seed: 7
reproducible: true
cluster { workers: 3 servers: 2 }
data { format: CRITEO train: "FOLDER/train.tsv" test: "FOLDER/test.tsv" shuffle_buffer: 500 }
table {
  name: "some"
  dim: 8
  field: "C1" field: "C7" field: "C20"
  initializer { kind: UNIFORM scale: 0.05 }
  optimizer { kind: ADAGRAD learning_rate: 0.05 }
  expected_rows: 20000
}
table {
  name: "rest"
  dim: 8
  initializer { kind: NORMAL scale: 0.02 }
  optimizer { kind: ROWWISE_ADAGRAD learning_rate: 0.05 }
  expected_rows: 20000
}
policy { kind: BSP }
dense { optimizer { kind: ADAM learning_rate: 0.002 } }
model { dlrm { bottom: [24, 8] top: [32, 16] } }
train { batch_size: 24 }
limits { report_interval_seconds: 0.1 }
)";

}  // namespace

Settings Join(Settings a, const Settings& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

SmallJob::SmallJob(int64_t train_rows, int64_t test_rows) {
  data::DatagenOptions options;
  options.train = File("train.tsv");
  options.test = File("test.tsv");
  options.train_rows = train_rows;
  options.test_rows = test_rows;
  options.seed = TestSeed();
  std::ostringstream log;
  TANDEM_CHECK_OK(data::GenerateCriteo(options, log));
  WriteTextFile(File("job.textproto"), absl::StrReplaceAll(kJob, {{"FOLDER", folder_.path()}}));
}

RunArguments SmallJob::Arguments(const std::string& name, const Settings& set) const {
  RunArguments arguments;
  arguments.job = File("job.textproto");
  arguments.set = set;
  arguments.out = File(name);
  return arguments;
}

job::ResolvedJob SmallJob::Plan(const Settings& set) const {
  job::Overrides overrides;
  for (const std::string& text : set)
    overrides.push_back(absl::StrSplit(text, absl::MaxSplits('=', 1)));
  const absl::StatusOr<Job> job = job::ReadJobFile(File("job.textproto"), overrides);
  TANDEM_CHECK_OK(job.status());
  const absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*job);
  TANDEM_CHECK_OK(plan.status());
  return *plan;
}

}  // namespace tandem
