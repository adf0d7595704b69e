// The results of a job as JSON: DIR/summary.json, the lines of DIR/metrics.jsonl, and the same
// numbers as events for the program that started the job. Users rely on the field names; do not
// change them.
#ifndef TANDEM_SCHEDULER_SUMMARY_H_
#define TANDEM_SCHEDULER_SUMMARY_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "job/job.h"
#include "nlohmann/json.hpp"
#include "scheduler/job_report.h"

namespace tandem::scheduler {

// The contents of summary.json. `transport`: the name to write if no node has reported a transport,
// e.g. "ZeroMQ". Staleness and updates of a table come from the shards; those of dense parameters
// by allreduce come from the workers. The field `resumed` counts how often the run was resumed. The
// field `stopped` is there if the user has ended the run, and names the checkpoint to resume from.
// A mean without values is absent.
nlohmann::json SummaryJson(const job::ResolvedJob& plan, const JobReport& report,
                           absl::string_view transport);

// Likely faults of the model, judged by the summary of its run, a line each.
std::vector<std::string> QualityWarnings(const job::ResolvedJob& plan,
                                         const nlohmann::json& summary);

// One reporting interval. Unknown numbers are absent.
nlohmann::json ProgressJson(const JobProgress& progress);

// Parses the evaluation that rank 0 has reported. {"text": ...} if it is not a JSON object.
nlohmann::json EvaluationJson(absl::string_view text);

// The policy of each table, e.g. "SSP(4)"; for dense parameters by allreduce e.g.
// "ALLREDUCE(AUTO)".
nlohmann::json PolicyJson(const job::ResolvedJob& plan);

// Compiler, build type, processor type and version of this build.
nlohmann::json BuildJson();

// The JSON text on one line. Bytes that are not UTF-8 are replaced; numbers that are not finite
// become null.
std::string OneLine(const nlohmann::json& json);
// The same text, indented, for people.
std::string PrettyPrint(const nlohmann::json& json);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_SUMMARY_H_
