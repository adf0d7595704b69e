#include "cli/describe_run.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "cli/console/describe_tables.h"
#include "data/batch_source.h"
#include "job/step_time.h"
#include "policies/policy.h"

namespace tandem::cli {
namespace {

// Says what asynchrony means in this job. The clock gap of a hybrid alone would mislead.
void NoteHybrid(const job::ResolvedJob& plan, bool dense_on_servers,
                std::vector<std::string>* lines) {
  bool asynchronous = false;
  for (const job::GroupPlan& group : plan.trained_groups()) {
    if (group.properties.holds && group.properties.switch_step == 0) continue;
    asynchronous = true;
    lines->push_back(absl::StrCat(job::PolicyName(group.policy), ": each worker's update counts ",
                                  group.policy.async_scale() == Policy::INVERSE_WORKERS
                                      ? "1/workers (async_scale: INVERSE_WORKERS)"
                                      : "in full (async_scale: ONE)"));
  }
  if (asynchronous && !dense_on_servers) {
    const Dense& dense = plan.job.dense();
    const std::string apart =
        job::SumsByQuorum(plan.job) && dense.has_local_steps()
            ? absl::StrCat("a worker is at most ",
                           Counted(static_cast<size_t>(dense.quorum_bound()), "sync round"),
                           " behind the others")
        : dense.has_local_steps()
            ? absl::StrCat("sync rounds keep workers within ",
                           Counted(static_cast<size_t>(dense.local_steps().sync_every()), "step"),
                           " of each other")
        : job::SumsByQuorum(plan.job)
            ? absl::StrCat("a worker is at most ",
                           Counted(static_cast<size_t>(dense.quorum_bound()), "step"),
                           " behind the sums of dense gradients, and they within one step of the "
                           "first")
            : "the allreduce keeps workers within one step of each other";
    lines->push_back(
        absl::StrCat("hybrid: ", apart, "; ", "nobody waits for table updates, and rows are read ",
                     plan.job.train().prefetch_steps(),
                     plan.job.train().prefetch_steps() == 1 ? " step ahead" : " steps ahead"));
  }
}

}  // namespace

std::string Counted(int64_t count, absl::string_view what) {
  return absl::StrCat(count, " ", what, count == 1 ? "" : "s");
}

std::vector<std::string> DescribeRun(const job::ResolvedJob& plan, const StartFlags& start) {
  std::vector<std::string> lines;
  const bool on_servers = plan.dense_table >= 0;
  lines.push_back(absl::StrCat(plan.job.name(), ": ", Counted(plan.workers(), "worker"), ", ",
                               Counted(plan.server_processes(), "server"), ", seed ",
                               plan.job.seed(), "; ", DescribeTables(plan)));
  NoteHybrid(plan, on_servers, &lines);
  if (plan.job.fault_injection().slow_workers_size() > 0) {
    lines.push_back(absl::StrCat("slow on purpose (fault_injection.slow_workers): ",
                                 job::DescribeStepTimes(plan.job)));
  }
  const Data& data = plan.job.data();
  const bool of_program = data.format() == Data::PROGRAM;  // the program may have test rows
  if (!of_program && !data::HasTestRows(data) && !data::HasValidationRows(data)) {
    lines.emplace_back(
        "nothing is evaluated, because the job has no test and no validation rows; hint: "
        "set data.test, data.test_fraction or data.validation");
  }
  if (start.resumed.has_value()) {
    lines.push_back(absl::StrCat("resumes at step ", WithCommas(start.resumed->step), ", from ",
                                 start.resumed->checkpoint));
  }
  return lines;
}

}  // namespace tandem::cli
