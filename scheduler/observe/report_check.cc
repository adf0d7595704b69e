#include "scheduler/observe/report_check.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/distribution.h"

namespace tandem::scheduler {
namespace {

constexpr int kMaxPopularity = 64;
constexpr size_t kMaxBytesOfCount = 10;  // of a number in a message

absl::Status AtMost(int most, int have, const char* what) {
  if (have <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("report with ", have, " ", what, ", expected at most ", most));
}

absl::Status CheckBuckets(bool good) {
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError("report with a histogram of unknown buckets");
}

absl::Status CheckRows(const std::string& table, const RowReport& rows) {
  for (const uint64_t count :
       {rows.candidates(), rows.looked_up(), rows.found(), rows.admitted(), rows.evicted(),
        rows.refused(), rows.to_fresh_rows(), rows.sampled(), rows.came_back()}) {
    if (count <= static_cast<uint64_t>(ReportCheck::kMaxCount)) continue;
    return absl::InvalidArgumentError(absl::StrCat("report of table ", table, " with a count of ",
                                                   count, ", expected at most ",
                                                   ReportCheck::kMaxCount));
  }
  if (rows.found() <= rows.looked_up() && rows.came_back() <= rows.sampled() &&
      rows.sampled() <= rows.evicted()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("report of table ", table, " in which a part is more than its whole: found ",
                   rows.found(), " of ", rows.looked_up(), ", came back ", rows.came_back(), " of ",
                   rows.sampled(), " of ", rows.evicted(), " evicted"));
}

// No more samples can count than were sent.
absl::Status CheckSamples(const SampleShare& samples) {
  const auto good = [](double applied, uint64_t sent) {
    return sent <= static_cast<uint64_t>(ReportCheck::kMaxCount) && applied >= 0 &&
           applied <= static_cast<double>(sent) * (1 + 1e-6);
  };
  if (good(samples.applied(), samples.sent()) && samples.positives_sent() <= samples.sent() &&
      good(samples.positives_applied(), samples.positives_sent())) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "report in which ", samples.applied(), " of ", samples.sent(), " samples count, and ",
      samples.positives_applied(), " of ", samples.positives_sent(), " with label 1"));
}

// The message is a TableReport or a WorkerUpdates.
template <typename Message>
bool HasBuckets(const Message& updates) {
  return AreBuckets(updates.clock_gap()) && AreBuckets(updates.version_staleness()) &&
         AreBuckets(updates.age()) && AreBuckets(updates.row_staleness());
}

template <typename Messages>
bool AllHaveBuckets(const Messages& all) {
  return std::all_of(all.begin(), all.end(), [](const auto& one) { return HasBuckets(one); });
}

// As many cells as there are bit widths, with finite sums.
absl::Status CheckGradients(const google::protobuf::RepeatedPtrField<GradientStaleness>& cells) {
  constexpr int kMaxCells = 65;
  bool good = cells.size() <= kMaxCells;
  for (const GradientStaleness& cell : cells) {
    good = good && cell.missed_rows() <= cell.rows() &&
           cell.rows() <= static_cast<uint64_t>(ReportCheck::kMaxCount) &&
           std::isfinite(cell.cosine_sum()) && std::isfinite(cell.distance_sum()) &&
           std::isfinite(cell.update_sum());
  }
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError("report with invalid numbers of gradients");
}

absl::Status CheckSeconds(const google::protobuf::RepeatedField<double>& seconds) {
  const bool good = std::all_of(seconds.begin(), seconds.end(),
                                [](double value) { return value >= 0 && std::isfinite(value); });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError("report with an invalid time");
}

absl::Status CheckCounts(const Progress& progress) {
  for (const int64_t count :
       {progress.samples(), progress.loss_samples(), progress.step(), progress.trained_steps(),
        progress.skipped_steps(), progress.epoch(), progress.epochs_trained(),
        progress.epochs_to_first_judged(), progress.evaluations(), progress.trains_at().step()}) {
    if (count >= 0 && count <= ReportCheck::kMaxCount) continue;
    return absl::InvalidArgumentError(absl::StrCat("progress with a count of ", count,
                                                   ", expected 0 to ", ReportCheck::kMaxCount));
  }
  if (progress.frames_resent() > static_cast<uint64_t>(ReportCheck::kMaxCount)) {
    return absl::InvalidArgumentError("progress with an invalid count of resent frames");
  }
  for (const double seconds :
       {progress.slept_seconds(), progress.computed_seconds(), progress.fetched_seconds(),
        progress.paused_seconds(), progress.shortest_read_seconds(), progress.joined_seconds()}) {
    if (seconds >= 0 && std::isfinite(seconds)) continue;
    return absl::InvalidArgumentError("progress with an invalid time");
  }
  const BestEvaluation& best = progress.best();
  if (std::isfinite(best.value()) && best.epoch() >= 0 && best.epoch() <= ReportCheck::kMaxCount &&
      best.step() >= 0 && best.step() <= ReportCheck::kMaxCount) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("progress with an invalid best evaluation");
}

absl::Status CheckByteKinds(const google::protobuf::Map<std::string, uint64_t>& bytes) {
  constexpr int kMaxName = 64;
  for (const auto& [name, count] : bytes) {
    TANDEM_RETURN_IF_ERROR(
        AtMost(kMaxName, static_cast<int>(name.size()), "characters in a kind of traffic"));
  }
  return AtMost(ReportCheck::kMaxByteKinds, static_cast<int>(bytes.size()), "kinds of traffic");
}

}  // namespace

ReportCheck::ReportCheck(const job::ResolvedJob& plan)
    : workers_(plan.workers()),
      servers_(plan.servers()),
      shards_per_server_(plan.shards_per_server()),
      pairs_(plan.CountsPairs() ? workers_ : 0),
      totals_(plan.CountsPairs() ? 0 : workers_),
      waits_in_pairs_(plan.CountsWaitsInPairs() ? workers_ : 0),
      waits_(plan.CountsWaitsInPairs() ? 0 : workers_) {
  for (size_t id = 0; id < plan.tables.size(); ++id) {
    tables_[plan.tables[id].name] = static_cast<int>(id);
    has_row_rules_.push_back(plan.tables[id].has_row_rules());
  }
}

int ReportCheck::TableOf(const std::string& name) const {
  const auto it = tables_.find(name);
  return it == tables_.end() ? -1 : it->second;
}

absl::Status ReportCheck::Check(const Progress& progress) const {
  TANDEM_RETURN_IF_ERROR(CheckCounts(progress));
  TANDEM_RETURN_IF_ERROR(CheckByteKinds(progress.bytes()));
  TANDEM_RETURN_IF_ERROR(
      AtMost(static_cast<int>(tables_.size()), progress.updates_size(), "tables"));
  TANDEM_RETURN_IF_ERROR(CheckBuckets(AreBuckets(progress.in_flight_depth()) &&
                                      AreBuckets(progress.dense_staleness())));
  const size_t evaluation = progress.evaluation_json().size();
  const size_t bytes = progress.ByteSizeLong();
  const size_t most = kMaxProgressBytes + tables_.size() * kMaxBytesOfCount + evaluation;
  if (evaluation > kMaxEvaluationBytes || bytes > most) {
    return absl::InvalidArgumentError(absl::StrCat("progress of ", bytes, " bytes, of which ",
                                                   evaluation, " are an evaluation; expected ",
                                                   most, " and ", kMaxEvaluationBytes, " at most"));
  }
  return absl::OkStatus();
}

absl::Status ReportCheck::Check(const ShardReport& report) const {
  if (report.server() >= static_cast<uint32_t>(servers_) ||
      report.shard() >= static_cast<uint32_t>(shards_per_server_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("report of server ", report.server(), " shard ", report.shard()));
  }
  constexpr uint64_t kMaxMemory = uint64_t{1} << 62;
  if (report.memory_bytes() > kMaxMemory || report.memory_limit() > kMaxMemory) {
    return absl::InvalidArgumentError(
        absl::StrCat("report with memory_bytes ", report.memory_bytes(), " and memory_limit ",
                     report.memory_limit(), ", expected at most ", kMaxMemory));
  }
  TANDEM_RETURN_IF_ERROR(CheckTables(report));
  TANDEM_RETURN_IF_ERROR(CheckByteKinds(report.bytes()));
  TANDEM_RETURN_IF_ERROR(AtMost(totals_, report.worker_size(), "workers over all tables"));
  TANDEM_RETURN_IF_ERROR(CheckBuckets(AllHaveBuckets(report.worker())));
  for (const WorkerUpdates& worker : report.worker()) {
    TANDEM_RETURN_IF_ERROR(CheckSamples(worker.samples()));
  }
  return CheckWaits(report);
}

absl::Status ReportCheck::CheckTables(const ShardReport& report) const {
  TANDEM_RETURN_IF_ERROR(AtMost(static_cast<int>(tables_.size()), report.table_size(), "tables"));
  std::vector<bool> met(tables_.size());
  for (const TableReport& table : report.table()) {
    const int id = TableOf(table.table());
    if (id < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "report of a table that is not in the job (name of ", table.table().size(), " bytes)"));
    }
    if (met[static_cast<size_t>(id)]) {
      return absl::InvalidArgumentError(
          absl::StrCat("report with table ", table.table(), " twice"));
    }
    met[static_cast<size_t>(id)] = true;
    TANDEM_RETURN_IF_ERROR(AtMost(pairs_, table.worker_size(), "workers of a table"));
    TANDEM_RETURN_IF_ERROR(
        AtMost(kMaxPopularity, table.by_popularity_size(), "groups of rows by popularity"));
    TANDEM_RETURN_IF_ERROR(CheckGradients(table.gradients_by_staleness()));
    TANDEM_RETURN_IF_ERROR(CheckGradients(table.gradients_by_popularity()));
    bool buckets =
        HasBuckets(table) && AreBuckets(table.in_flight_depth()) && AllHaveBuckets(table.worker());
    for (const Distribution& rows : table.by_popularity()) {
      buckets = buckets && rows.bucket().empty();
    }
    TANDEM_RETURN_IF_ERROR(CheckBuckets(buckets));
    TANDEM_RETURN_IF_ERROR(CheckSamples(table.samples()));
    for (const WorkerUpdates& worker : table.worker()) {
      TANDEM_RETURN_IF_ERROR(CheckSamples(worker.samples()));
    }
    if (table.has_row_counts() && !HasRowRules(id)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "report with counts of rows of table ", table.table(), ", which has no rule for them"));
    }
    TANDEM_RETURN_IF_ERROR(CheckRows(table.table(), table.row_counts()));
    if (table.hot_rows() > table.rows()) {
      return absl::InvalidArgumentError(absl::StrCat("report of table ", table.table(), " with ",
                                                     table.hot_rows(), " hot rows of ",
                                                     table.rows()));
    }
  }
  return absl::OkStatus();
}

absl::Status ReportCheck::CheckWaits(const ShardReport& report) const {
  TANDEM_RETURN_IF_ERROR(AtMost(waits_in_pairs_, report.waiting_size(), "waits of workers"));
  for (const Waiting& waiting : report.waiting()) {
    TANDEM_RETURN_IF_ERROR(
        AtMost(waits_in_pairs_, waiting.seconds_size(), "waits of a worker for others"));
    TANDEM_RETURN_IF_ERROR(CheckSeconds(waiting.seconds()));
  }
  TANDEM_RETURN_IF_ERROR(AtMost(waits_, report.waited_size(), "workers that waited"));
  TANDEM_RETURN_IF_ERROR(AtMost(waits_, report.awaited_size(), "workers that others waited for"));
  TANDEM_RETURN_IF_ERROR(CheckSeconds(report.waited()));
  return CheckSeconds(report.awaited());
}

}  // namespace tandem::scheduler
