// A small job on generated data that the integration tests share and vary with `--set`.
#ifndef TANDEM_TESTS_INTEGRATION_SMALL_JOB_H_
#define TANDEM_TESTS_INTEGRATION_SMALL_JOB_H_

#include <cstdint>
#include <string>
#include <vector>

#include "job/job.h"
#include "tests/integration/run_job.h"

namespace tandem {

using Settings = std::vector<std::string>;  // of `--set`

Settings Join(Settings a, const Settings& b);

class SmallJob {
 public:
  // Writes train.tsv, test.tsv and job.textproto into a folder of its own. The job: DLRM over two
  // tables of 8 floats, shuffled, 3 workers, 2 servers, everything synchronous and reproducible.
  SmallJob(int64_t train_rows, int64_t test_rows);

  // `tandem run` of the job with its fields changed, into the subfolder `name`.
  RunArguments Arguments(const std::string& name, const Settings& set) const;
  // What every process of such a run makes of the job. Aborts the test program if it is refused.
  job::ResolvedJob Plan(const Settings& set) const;

  std::string File(absl::string_view name) const { return folder_.File(name); }

 private:
  TemporaryFolder folder_;
};

}  // namespace tandem

#endif  // TANDEM_TESTS_INTEGRATION_SMALL_JOB_H_
