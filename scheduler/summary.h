// What a job leaves behind in words: DIR/summary.json, the lines of DIR/metrics.jsonl, and the same
// numbers as events for whoever watches. Field names are a promise to users; keep them.
#ifndef TANDEM_SCHEDULER_SUMMARY_H_
#define TANDEM_SCHEDULER_SUMMARY_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "job/job.h"
#include "nlohmann/json.hpp"
#include "scheduler/job_report.h"

namespace tandem::scheduler {

// `transport`: what carries frames where nobody reports another way, e.g. "ZeroMQ". Staleness and
// updates of a table come from the shards; of dense parameters by allreduce, from the workers. `resumed`:
// how often the run went on from a save; `stopped`: it was told to end, with the save to go on from.
// Means of nothing are absent.
nlohmann::json SummaryJson(const job::JobPlan& plan, const JobReport& report,
                           absl::string_view transport);

// What is most likely wrong with a model that has come to what the summary of its run says, a line each.
std::vector<std::string> QualityWarnings(const job::JobPlan& plan, const nlohmann::json& summary);

// One reporting interval. Numbers that are unknown are absent.
nlohmann::json ProgressJson(const JobProgress& progress);

// What rank 0 said of an evaluation, or {"text": ...} if it is not a JSON object.
nlohmann::json EvaluationJson(absl::string_view text);

// The policy that ran: "SSP(4)" of a table; of dense parameters by allreduce "ALLREDUCE(AUTO)".
nlohmann::json PolicyJson(const job::JobPlan& plan);

// Compiler, build type, processor type and version of this build.
nlohmann::json BuildJson();

// On one line. Bytes that are not UTF-8 are replaced, numbers that are not finite become null.
std::string OneLine(const nlohmann::json& json);
// The same, indented, for people.
std::string PrettyPrint(const nlohmann::json& json);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_SUMMARY_H_
