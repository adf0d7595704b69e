// The status of a job as lines of text, for `tandem status`.
//
// Thread safety: free functions without state.
#ifndef TANDEM_CLI_STATUS_VIEW_H_
#define TANDEM_CLI_STATUS_VIEW_H_

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace tandem::cli {

// The lines for a job that runs, from the JSON of scheduler/status.h. They may be wider than the
// terminal is.
std::vector<std::string> StatusLines(const nlohmann::json& status);

// The wait for room on the disk, and the ways out, from the member `checkpoint` of that JSON.
// Empty: no checkpoint waits.
std::string RoomText(const nlohmann::json& checkpoint);

// The lines for a run that has ended, from its summary.json.
std::vector<std::string> EndedLines(const nlohmann::json& summary);

// "finished", "stopped" or "failed", from a summary.json.
std::string EndOf(const nlohmann::json& summary);

}  // namespace tandem::cli

#endif  // TANDEM_CLI_STATUS_VIEW_H_
