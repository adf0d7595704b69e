// The results of a job as JSON: DIR/summary.json, the lines of DIR/metrics.jsonl, and the same
// numbers as events for the program that started the job. Users rely on the field names; do not
// change them.
#ifndef TANDEM_SCHEDULER_OBSERVE_SUMMARY_H_
#define TANDEM_SCHEDULER_OBSERVE_SUMMARY_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "job/job.h"
#include "nlohmann/json.hpp"
#include "proto/wire.pb.h"
#include "scheduler/observe/job_report.h"

namespace tandem::scheduler {

// The contents of summary.json. `transport`: the name to write if no node has reported a transport,
// e.g. "ZeroMQ". Staleness and updates of a table come from the shards; those of dense parameters
// by allreduce come from the workers. The field `resumed` counts how often the run was resumed. The
// field `stopped` is there if the user has ended the run, and names the checkpoint to resume from.
// A mean without values is absent.
nlohmann::json SummaryJson(const job::ResolvedJob& plan, const JobReport& report,
                           absl::string_view transport);

// The counts of a distribution, its mean and maximum, and the smallest value and the count of each
// bucket that is not empty. `unit`: the factor from the distribution's numbers to those of the
// output.
nlohmann::json DistributionJson(const Distribution& distribution, double unit = 1);
// The measured effect of staleness on the gradients of a table's sampled rows: how many were
// measured, and means over them (GradientStaleness in proto/wire.proto). Empty if none was
// measured.
nlohmann::json GradientsJson(const TableReport& table);
// By name: rows, placement, memory and updates of each table, the share of its data that counted
// (`data_applied`), and if it has rules by which rows come and go, the counts of that
// (`row_counts`).
nlohmann::json TablesJson(const job::ResolvedJob& plan, const JobReport& report);
// An entry for each worker: its share of the data, its updates sent and dropped, the share of its
// data that counted, and whom its reads waited for. All but the first leave out updates of frozen
// tables, since those are never applied. In
// large jobs also the staleness of its updates of all other tables.
nlohmann::json WorkersJson(const job::ResolvedJob& plan, const JobReport& report);

// A member of a JSON object. 0 or empty if there is none, or if it is of another kind.
double NumberOf(const nlohmann::json& object, const char* name);
std::string TextOf(const nlohmann::json& object, const char* name);

// Likely faults of the model, judged by the summary of its run, a line each.
std::vector<std::string> QualityWarnings(const job::ResolvedJob& plan,
                                         const nlohmann::json& summary);

// One reporting interval. Unknown numbers are absent. `tables` has the rows of tables with rules by
// which rows come and go, and is absent in other jobs.
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

#endif  // TANDEM_SCHEDULER_OBSERVE_SUMMARY_H_
