#include "cli/status_view.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text.h"
#include "cli/console/progress_view.h"
#include "scheduler/observe/summary.h"

namespace tandem::cli {
namespace {

using scheduler::NumberOf;
using scheduler::TextOf;

using nlohmann::json;
using Row = std::vector<std::string>;
constexpr int kAnyColumns = 1000;  // columns; the caller cuts lines

std::string CountOf(const json& object, const char* name) {
  return WithCommas(static_cast<int64_t>(NumberOf(object, name)));
}
const json& MemberOf(const json& object, const char* name) {
  static const json kNone = json::object();
  const auto it = object.find(name);
  return it != object.end() ? *it : kNone;
}

// Adds the rows, in columns. `align`: a letter for each column, l or r. The last one ends the line.
void AddColumns(const std::vector<Row>& rows, const std::string& align,
                std::vector<std::string>* lines) {
  std::vector<size_t> width(align.size(), 0);
  for (const Row& row : rows) {
    for (size_t c = 0; c < align.size(); ++c) width[c] = std::max(width[c], row[c].size());
  }
  for (const Row& row : rows) {
    std::string line;
    for (size_t c = 0; c < align.size(); ++c) {
      const std::string pad(width[c] - row[c].size(), ' ');
      absl::StrAppend(&line, c > 0 ? "  " : "", align[c] == 'r' ? pad : "", row[c],
                      align[c] == 'l' ? pad : "");
    }
    lines->push_back(std::string(absl::StripTrailingAsciiWhitespace(line)));
  }
}

std::string Doing(const json& node) {
  const std::string whom = TextOf(node, "waits_for");
  if (whom.empty()) return TextOf(node, "activity");
  return absl::StrFormat("waits for %s, %.1f s", whom, NumberOf(node, "wait_seconds"));
}

void AddNodes(const json& status, std::vector<std::string>* lines) {
  std::vector<Row> rows = {
      {"PROCESS", "HOST", "PID", "STATE", "STEP", "MEMORY", "ESTIMATE", "LIMIT", "DOES"}};
  for (const json& node : MemberOf(status, "nodes")) {
    const bool scheduler = TextOf(node, "role") == "scheduler";
    rows.push_back(
        {TextOf(node, "name"), TextOf(node, "host"),
         absl::StrCat(static_cast<int64_t>(NumberOf(node, "pid"))), TextOf(node, "state"),
         scheduler ? "" : CountOf(node, "step"), BytesText(NumberOf(node, "memory_bytes")),
         scheduler ? "" : BytesText(NumberOf(node, "memory_estimate_bytes")),
         node.contains("memory_limit_bytes") ? BytesText(NumberOf(node, "memory_limit_bytes")) : "",
         Doing(node)});
  }
  for (const json& name : MemberOf(status, "missing")) {
    rows.push_back({name.is_string() ? name.get<std::string>() : "", "", "", "missing", "", "", "",
                    "", "has not registered"});
  }
  AddColumns(rows, "llrlrrrrl", lines);
}

void AddShards(const json& status, std::vector<std::string>* lines) {
  std::vector<Row> rows = {{"SHARD", "RANGES", "ROWS", "MEMORY"}};
  for (const json& shard : MemberOf(status, "shards")) {
    rows.push_back({absl::StrCat(TextOf(shard, "process"), " shard ",
                                 static_cast<int64_t>(NumberOf(shard, "shard"))),
                    CountOf(shard, "ranges"), CountOf(shard, "rows"),
                    BytesText(NumberOf(shard, "memory_bytes"))});
  }
  if (rows.size() > 1) AddColumns(rows, "lrrr", lines);
}

// `staleness`: where the distributions of a table's version staleness and clock gap are.
void AddTables(const json& tables, const json& policy, const json& staleness,
               std::vector<std::string>* lines) {
  std::vector<Row> rows = {{"TABLE", "POLICY", "ROWS", "MEMORY", "UPDATES", "DROPPED",
                            "VERSION STALENESS", "MAX", "CLOCK GAP"}};
  for (const auto& [name, table] : tables.items()) {
    const json& updates = MemberOf(table, "updates");
    const json& measured = MemberOf(staleness, name.c_str());
    const json& stale = MemberOf(measured, "version_staleness");
    rows.push_back({name, TextOf(policy, name.c_str()), CountOf(table, "rows"),
                    BytesText(NumberOf(table, "memory_bytes")), CountOf(updates, "arrived"),
                    CountOf(updates, "dropped"), absl::StrFormat("%.2f", NumberOf(stale, "mean")),
                    absl::StrFormat("%.0f", NumberOf(stale, "max")),
                    absl::StrFormat("%.0f", NumberOf(MemberOf(measured, "clock_gap"), "max"))});
  }
  if (rows.size() > 1) AddColumns(rows, "llrrrrrrr", lines);
}

// For example "93.1%"; empty without a value.
std::string ShareOf(const json& object, const char* name) {
  return object.contains(name) ? absl::StrFormat("%.1f%%", 100 * NumberOf(object, name)) : "";
}

// The tables whose rows come and go by rules.
void AddRowCounts(const json& tables, std::vector<std::string>* lines) {
  std::vector<Row> rows = {{"TABLE", "CANDIDATES", "ADMITTED", "EVICTED", "REFUSED", "FOUND",
                            "CAME BACK", "TO FRESH ROWS"}};
  for (const auto& [name, table] : tables.items()) {
    const json& counts = MemberOf(table, "row_counts");
    if (counts.empty()) continue;
    rows.push_back({name, CountOf(counts, "candidates"), CountOf(counts, "admitted"),
                    CountOf(counts, "evicted"), CountOf(counts, "refused"),
                    ShareOf(counts, "found_share"), ShareOf(counts, "came_back_share"),
                    CountOf(counts, "to_fresh_rows")});
  }
  if (rows.size() == 1) return;
  lines->emplace_back();
  AddColumns(rows, "lrrrrrrr", lines);
}

std::string CheckpointLine(const json& checkpoint) {
  if (TextOf(checkpoint, "folder").empty()) return "checkpoint: this run writes none";
  std::string line = "checkpoint: ";
  if (checkpoint.contains("step")) {
    absl::StrAppend(&line, "step ", CountOf(checkpoint, "step"));
    if (checkpoint.contains("age_seconds")) {
      absl::StrAppend(&line, ", ", ClockTime(NumberOf(checkpoint, "age_seconds")), " ago");
    }
  } else {
    absl::StrAppend(&line, "none yet");
  }
  const double period = NumberOf(checkpoint, "period_seconds");
  if (period > 0) absl::StrAppend(&line, ", one every ", ClockTime(period));
  if (checkpoint.value("writing", false)) absl::StrAppend(&line, "; one is being written");
  if (const std::string room = RoomText(checkpoint); !room.empty()) {
    absl::StrAppend(&line, "; ", room);
  }
  absl::StrAppend(&line, "; in ", TextOf(checkpoint, "folder"));
  const std::string failure = TextOf(checkpoint, "failure");
  if (!failure.empty()) absl::StrAppend(&line, "; the last one failed: ", failure);
  return line;
}

std::string EvaluationLine(const json& eval) {
  const std::string text = ProgressView::FormatEvaluation(eval);
  return text.empty() ? ""
                      : absl::StrCat("evaluation on ", eval.value("data", "test"), " data: ", text);
}

}  // namespace

std::string RoomText(const json& checkpoint) {
  const json& room = MemberOf(checkpoint, "waits_for_room");
  if (room.empty()) return "";
  const bool known = NumberOf(room, "missing_bytes") > 0;
  return absl::StrCat(
      "NO ROOM for one for ", ClockTime(NumberOf(room, "seconds")),
      known ? absl::StrCat(", ", CountOf(room, "missing_bytes"), " bytes missing") : "",
      "; hint: free space, or tandem stop --now to end without it");
}

std::vector<std::string> StatusLines(const json& status) {
  const json& progress = MemberOf(status, "progress");
  std::vector<std::string> lines = {
      absl::StrCat(TextOf(status, "job"), ": ", TextOf(status, "state"))};
  if (!progress.empty()) lines.push_back(ProgressView::Format(progress, kAnyColumns));
  if (status.contains("failed")) {
    lines.push_back(absl::StrCat("failed: ", TextOf(status["failed"], "node"), ": ",
                                 TextOf(status["failed"], "reason")));
  }
  const std::string evaluation = EvaluationLine(MemberOf(status, "eval"));
  if (!evaluation.empty()) lines.push_back(evaluation);
  const json& restarts = MemberOf(status, "restarts");
  if (NumberOf(restarts, "count") > 0) {
    lines.push_back(absl::StrCat("restarts: ", CountOf(restarts, "count"), ", which have cost ",
                                 absl::StrFormat("%.1f", NumberOf(restarts, "seconds")), " s and ",
                                 CountOf(restarts, "steps_again"),
                                 " steps done again; the last one: ", TextOf(restarts, "last")));
  }
  lines.push_back(CheckpointLine(MemberOf(status, "checkpoint")));
  lines.emplace_back();
  AddNodes(status, &lines);
  lines.emplace_back();
  AddShards(status, &lines);
  lines.emplace_back();
  const json& tables = MemberOf(status, "tables");
  AddTables(tables, MemberOf(status, "policy"), tables, &lines);
  AddRowCounts(tables, &lines);
  return lines;
}

std::string EndOf(const json& summary) {
  if (summary.contains("failed")) return "failed";
  return summary.contains("stopped") ? "stopped" : "finished";
}

std::vector<std::string> EndedLines(const json& summary) {
  std::string first = absl::StrCat(TextOf(summary, "job"), ": ", EndOf(summary));
  if (summary.contains("failed")) {
    absl::StrAppend(&first, ": ", TextOf(summary["failed"], "node"), ": ",
                    TextOf(summary["failed"], "reason"));
  } else if (summary.contains("stopped")) {
    const json& stopped = summary["stopped"];
    absl::StrAppend(
        &first, ", ",
        stopped.contains("failure") ? absl::StrCat("no checkpoint: ", TextOf(stopped, "failure"))
        : NumberOf(stopped, "checkpointed_step") < 0
            ? "there is no checkpoint"
            : absl::StrCat("checkpoint at step ", CountOf(stopped, "checkpointed_step")));
  }
  std::vector<std::string> lines = {first};
  if (!TextOf(summary, "ended").empty()) {
    lines.push_back(absl::StrCat("from ", TextOf(summary, "started"), " to ",
                                 TextOf(summary, "ended"), " on ", TextOf(summary, "host")));
  }
  lines.push_back(absl::StrCat(CountOf(summary, "samples"), " samples, ", CountOf(summary, "steps"),
                               " steps in ", absl::StrFormat("%.1f", NumberOf(summary, "seconds")),
                               " s | ", CountOf(summary, "samples_per_second"), " samples/s"));
  if (summary.contains("training_loss")) {
    absl::StrAppend(&lines.back(),
                    absl::StrFormat(" | training loss %.4f", NumberOf(summary, "training_loss")));
  }
  const std::string evaluation = EvaluationLine(MemberOf(summary, "eval"));
  if (!evaluation.empty()) lines.push_back(evaluation);
  if (const size_t restarts = MemberOf(summary, "restarts").size(); restarts > 0) {
    lines.push_back(absl::StrCat("restarts: ", restarts));
  }
  lines.emplace_back();
  AddTables(MemberOf(summary, "tables"), MemberOf(summary, "policy"),
            MemberOf(summary, "staleness"), &lines);
  AddRowCounts(MemberOf(summary, "tables"), &lines);
  return lines;
}

}  // namespace tandem::cli
