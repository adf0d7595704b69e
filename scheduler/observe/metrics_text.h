// The status of a job as Prometheus text, for /metrics. docs/OBSERVE.md lists the metrics.
//
// Thread safety: any thread.
#ifndef TANDEM_SCHEDULER_OBSERVE_METRICS_TEXT_H_
#define TANDEM_SCHEDULER_OBSERVE_METRICS_TEXT_H_

#include <string>

#include "nlohmann/json.hpp"
#include "scheduler/observe/counter_file.h"

namespace tandem::scheduler {

// `status`: the JSON of scheduler/status.h, with the scheduler's own process. Names begin with
// `tandem_`; units are seconds and bytes. Labels have names of tables, processes and kinds, never
// keys, so their number depends on the job alone.
std::string MetricsText(const nlohmann::json& status, CounterFile* counters);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_OBSERVE_METRICS_TEXT_H_
