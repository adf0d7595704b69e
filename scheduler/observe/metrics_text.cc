#include "scheduler/observe/metrics_text.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>

#include "absl/strings/str_cat.h"
#include "scheduler/observe/summary.h"

namespace tandem::scheduler {
namespace {

using nlohmann::json;
using prometheus::ClientMetric;
using prometheus::MetricType;
using Labels = std::vector<ClientMetric::Label>;

const json* Find(const json& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() ? nullptr : &*it;
}
// Collects metrics by name, in the order of their first values.
class Families {
 public:
  void Gauge(const char* name, const char* help, Labels labels, double value) {
    Add(name, help, MetricType::Gauge, std::move(labels))->gauge.value = value;
  }
  void Counter(const char* name, const char* help, Labels labels, double value) {
    Add(name, help, MetricType::Counter, std::move(labels))->counter.value = value;
  }
  // The member of `object`; nothing if it has none.
  void GaugeOf(const json& object, const char* member, const char* name, const char* help,
               Labels labels = {}) {
    const json* const value = Find(object, member);
    if (value == nullptr || !value->is_number()) return;
    Gauge(name, help, std::move(labels), value->get<double>());
  }
  // `distribution`: DistributionJson (summary.h). `bounds`: upper bounds, ascending.
  void Histogram(const char* name, const char* help, Labels labels, const json& distribution,
                 const std::vector<double>& bounds) {
    ClientMetric::Histogram& out =
        Add(name, help, MetricType::Histogram, std::move(labels))->histogram;
    out.sample_count = static_cast<uint64_t>(NumberOf(distribution, "count"));
    out.sample_sum = NumberOf(distribution, "mean") * static_cast<double>(out.sample_count);
    for (const double bound : bounds) out.bucket.push_back({0, bound});
    out.bucket.push_back({out.sample_count, std::numeric_limits<double>::infinity()});
    const json* const histogram = Find(distribution, "histogram");
    if (histogram == nullptr) return;
    for (const json& bucket : *histogram) {
      const double low = bucket[0].get<double>();
      for (size_t b = 0; b < bounds.size(); ++b) {
        if (low <= bounds[b]) out.bucket[b].cumulative_count += bucket[1].get<uint64_t>();
      }
    }
  }
  std::vector<prometheus::MetricFamily>& all() { return all_; }

 private:
  ClientMetric* Add(const char* name, const char* help, MetricType type, Labels labels) {
    const auto [at, is_new] = index_.try_emplace(name, all_.size());
    if (is_new) all_.push_back({name, help, type, {}});
    ClientMetric& metric = all_[at->second].metric.emplace_back();
    metric.label = std::move(labels);
    return &metric;
  }

  std::vector<prometheus::MetricFamily> all_;
  std::map<std::string, size_t> index_;
};

// Buckets of staleness, in versions or steps: each is a whole number of the histogram's buckets
// (proto/histogram.h).
std::vector<double> CountBounds() {
  std::vector<double> bounds = {0, 1, 2, 3, 4, 5, 6, 7};
  for (int power = 4; power <= 12; ++power) bounds.push_back(std::ldexp(1, power) - 1);
  return bounds;
}

// Buckets of times, from 128 microseconds to about a minute. A bucket of the histogram begins at
// its bound, so the bound itself is just below.
std::vector<double> TimeBounds() {
  std::vector<double> bounds;
  for (int power = 7; power <= 26; ++power) bounds.push_back((std::ldexp(1, power) - 1) * 1e-6);
  return bounds;
}

void AddJob(const json& status, Families* out) {
  out->Gauge("tandem_info", "The name of the job and the version of the scheduler; always 1.",
             {{"name", TextOf(status, "job")}, {"version", TextOf(status["build"], "version")}}, 1);
  out->Gauge("tandem_ready", "1 while the job trains.", {}, TextOf(status, "state") == "running");
  out->Counter("tandem_samples_total", "Rows trained since the start of the run.", {},
               NumberOf(status, "samples"));
  out->Counter("tandem_steps_total", "Steps with rows that the worker furthest ahead has finished.",
               {}, NumberOf(status, "steps"));
  if (const json* const bytes = Find(status, "bytes")) {
    for (const auto& [kind, count] : bytes->items()) {
      out->Counter("tandem_traffic_bytes_total", "Bytes between processes, by kind of message.",
                   {{"kind", kind}}, count.get<double>());
    }
  }
}

void AddProgress(const json& progress, Families* out) {
  out->GaugeOf(progress, "epoch", "tandem_epoch", "Epoch of the worker furthest behind, from 1.");
  out->GaugeOf(progress, "done", "tandem_done_ratio", "Estimated share of the job that is done.");
  out->GaugeOf(progress, "seconds_left", "tandem_left_seconds", "Estimated time to the end.");
  out->GaugeOf(progress, "samples_per_second", "tandem_samples_per_second",
               "Rows trained in a second, in the last reporting interval.");
  const char* const kLoss = "tandem_training_loss";
  const char* const kLossHelp = "Mean loss of a row, over the last reporting interval.";
  out->GaugeOf(progress, "loss", kLoss, kLossHelp);
  if (!progress.value("loss_finite", true)) {
    out->Gauge(kLoss, kLossHelp, {}, std::numeric_limits<double>::quiet_NaN());
  }
  out->GaugeOf(progress, "auc", "tandem_training_auc", "AUC of the rows of the last interval.");
}

void AddEvaluation(const json& status, Families* out) {
  if (const json* const eval = Find(status, "eval")) {
    for (const auto& [measure, value] : eval->items()) {
      if (!value.is_number()) continue;
      out->Gauge("tandem_evaluation", "Result of the last evaluation.",
                 {{"measure", measure}, {"data", TextOf(*eval, "data")}}, value.get<double>());
    }
  }
  if (const json* const reported = Find(status, "reported")) {
    for (const auto& [name, value] : reported->items()) {
      if (!value.is_number()) continue;  // null: the program has reported no finite number
      out->Gauge("tandem_reported", "Last value that the program has reported by this name.",
                 {{"name", name}}, value.get<double>());
    }
  }
}

void AddRestarts(const json& restarts, Families* out) {
  out->Counter("tandem_restarts_total", "Times that roles were started again after a failure.", {},
               NumberOf(restarts, "count"));
  out->Counter("tandem_restart_seconds_total",
               "Time from failures to the next step that all workers have finished.", {},
               NumberOf(restarts, "seconds"));
  out->Counter("tandem_restart_steps_total", "Steps that were done a second time after a restart.",
               {}, NumberOf(restarts, "steps_again"));
}

void AddCheckpoint(const json& checkpoint, Families* out) {
  out->GaugeOf(checkpoint, "age_seconds", "tandem_checkpoint_age_seconds",
               "Time since the last checkpoint, or since the start.");
  out->GaugeOf(checkpoint, "period_seconds", "tandem_checkpoint_period_seconds",
               "Time between checkpoints as the job says; 0: none.");
  out->GaugeOf(checkpoint, "step", "tandem_checkpoint_step",
               "The last checkpoint has all steps before this one.");
  out->Gauge("tandem_checkpoint_failed", "1 if the last checkpoint could not be written.", {},
             checkpoint.contains("failure"));
}

void AddProcesses(const json& status, Families* out) {
  std::set<std::string> hosts;
  for (const json& node : status["nodes"]) {
    const std::string host = TextOf(node, "host"), state = TextOf(node, "state");
    const Labels process = {{"process", TextOf(node, "name")}};
    // A process that has left in order is not missed.
    if (state != "left") {
      out->Gauge("tandem_process_up", "1 if the scheduler hears the process.",
                 {{"process", TextOf(node, "name")}, {"host", host}},
                 state != "lost" && state != "silent");
    }
    out->GaugeOf(node, "memory_bytes", "tandem_process_resident_bytes",
                 "Memory of the process that is in RAM.", process);
    out->GaugeOf(node, "memory_estimate_bytes", "tandem_process_estimate_bytes",
                 "Memory that the process is expected to need.", process);
    out->GaugeOf(node, "memory_used_bytes", "tandem_process_memory_used_bytes",
                 "Memory of the server that is counted toward its limit.", process);
    out->GaugeOf(node, "memory_limit_bytes", "tandem_process_memory_limit_bytes",
                 "Memory that the server may use.", process);
    if (TextOf(node, "role") != "scheduler") {
      out->Gauge("tandem_process_step", "Step of the last heartbeat.", process,
                 NumberOf(node, "step"));
      out->Gauge("tandem_process_heard_seconds", "Time since the last message of the process.",
                 process, NumberOf(node, "heard_seconds"));
      out->Gauge("tandem_process_wait_seconds", "How long the process has waited for another one.",
                 process, NumberOf(node, "wait_seconds"));
      out->Gauge("tandem_process_holds_up_seconds",
                 "How long another process has waited for this one.", process,
                 NumberOf(node, "holds_up_seconds"));
    }
    if (NumberOf(node, "host_memory_bytes") <= 0 || !hosts.insert(host).second) continue;
    out->GaugeOf(node, "host_memory_bytes", "tandem_host_memory_bytes",
                 "Memory of the host, or of the control group that limits it.", {{"host", host}});
    out->GaugeOf(node, "host_available_bytes", "tandem_host_available_bytes",
                 "The part of it that is free.", {{"host", host}});
  }
}

void AddShards(const json& shards, Families* out) {
  for (const json& shard : shards) {
    const Labels labels = {{"process", TextOf(shard, "process")},
                           {"shard", absl::StrCat(static_cast<int64_t>(NumberOf(shard, "shard")))}};
    out->GaugeOf(shard, "ranges", "tandem_shard_ranges", "Key ranges of the shard.", labels);
    out->GaugeOf(shard, "rows", "tandem_shard_rows", "Rows of the shard.", labels);
    out->GaugeOf(shard, "memory_bytes", "tandem_shard_bytes", "Memory of its rows.", labels);
  }
}

void AddRowCounts(const std::string& table, const json& rows, Families* out) {
  const auto count = [&](const char* name, const char* help, const char* member) {
    out->Counter(name, help, {{"table", table}}, NumberOf(rows, member));
  };
  out->GaugeOf(rows, "candidates", "tandem_table_candidates",
               "Ids of the table that are on their way to a row.", {{"table", table}});
  count("tandem_ids_looked_up_total", "Ids of training reads.", "looked_up");
  count("tandem_ids_found_total", "Ids of training reads that had a row.", "found");
  count("tandem_ids_refused_total", "Ids of updates that got no row.", "refused");
  count("tandem_rows_admitted_total", "Rows that were created.", "admitted");
  count("tandem_rows_evicted_total", "Rows that were evicted.", "evicted");
  count("tandem_evicted_rows_sampled_total", "Evicted rows that were watched.", "sampled");
  count("tandem_evicted_rows_back_total", "Watched rows that came back soon.", "came_back");
  count("tandem_updates_to_fresh_rows_total",
        "Updates whose row was evicted and created between their pull and their application.",
        "to_fresh_rows");
}

// The shares of samples that counted, by label.
void AddDataApplied(const json& object, const char* name, const Labels& labels, Families* out) {
  const json* const shares = Find(object, "data_applied");
  if (shares == nullptr) return;
  for (const auto& [member, label] :
       {std::pair("share", "all"), std::pair("label_0", "0"), std::pair("label_1", "1")}) {
    Labels with = labels;
    with.push_back({"label", label});
    out->GaugeOf(*shares, member, name, "Share of the samples that counted.", with);
  }
}

void AddTables(const json& tables, Families* out) {
  const std::vector<double> counts = CountBounds(), times = TimeBounds();
  for (const auto& [name, table] : tables.items()) {
    const Labels labels = {{"table", name}};
    out->GaugeOf(table, "rows", "tandem_table_rows", "Rows of the table.", labels);
    out->GaugeOf(table, "memory_bytes", "tandem_table_bytes", "Memory of its rows.", labels);
    out->GaugeOf(table, "hot_rows", "tandem_table_hot_rows", "Rows of the table that are hot.",
                 labels);
    for (const char* outcome : {"applied", "dropped"}) {
      out->Counter("tandem_updates_total", "Updates that were applied, and that were dropped.",
                   {{"table", name}, {"outcome", outcome}}, NumberOf(table["updates"], outcome));
    }
    out->Counter("tandem_updates_arrived_total", "Updates that have arrived.", labels,
                 NumberOf(table["updates"], "arrived"));
    out->Histogram("tandem_version_staleness",
                   "Versions of a range between the pull and the application of an update.", labels,
                   table["version_staleness"], counts);
    out->Histogram("tandem_clock_gap", "Steps between a worker and the slowest one, at an update.",
                   labels, table["clock_gap"], counts);
    out->Histogram("tandem_update_age_seconds",
                   "Time between the pull and the application of an update.", labels, table["age"],
                   times);
    AddDataApplied(table, "tandem_data_applied_ratio", labels, out);
    if (const json* const gradients = Find(table, "gradients")) {
      out->GaugeOf(*gradients, "distance", "tandem_gradient_missed_distance",
                   "Mean change of a row between a pull and its update, relative to the row.",
                   labels);
      out->GaugeOf(*gradients, "cosine", "tandem_gradient_missed_cosine",
                   "Mean cosine of that change and the change by the update.", labels);
    }
    if (const json* const rows = Find(table, "row_counts")) AddRowCounts(name, *rows, out);
  }
}

void AddWorkers(const json& workers, Families* out) {
  for (size_t rank = 0; rank < workers.size(); ++rank) {
    const json& worker = workers[rank];
    const std::string name = absl::StrCat(rank);
    const Labels labels = {{"worker", name}};
    out->Counter("tandem_worker_samples_total", "Rows that the worker has trained.", labels,
                 NumberOf(worker, "samples"));
    out->Counter("tandem_worker_steps_total", "Steps with rows of the worker.", labels,
                 NumberOf(worker, "steps"));
    for (const char* part : {"computed", "fetched", "paused", "slept"}) {
      out->Counter("tandem_worker_seconds_total",
                   "Time of the worker: computing, pulling rows (fetched), in evaluations and "
                   "checkpoints (paused), and sleeping for slow_workers (slept).",
                   {{"worker", name}, {"part", part}},
                   NumberOf(worker, absl::StrCat(part, "_seconds").c_str()));
    }
    out->Counter("tandem_worker_frames_resent_total", "Requests sent again for lack of an answer.",
                 labels, NumberOf(worker, "frames_resent"));
    AddDataApplied(worker, "tandem_worker_data_applied_ratio", labels, out);
    for (const auto& [table, mean] : worker["staleness_mean"].items()) {
      out->Gauge("tandem_worker_staleness_mean", "Mean version staleness of the worker's updates.",
                 {{"worker", name}, {"table", table}}, mean.get<double>());
    }
  }
}

}  // namespace

std::string MetricsText(const json& status, CounterFile* counters) {
  Families families;
  AddJob(status, &families);
  if (const json* const progress = Find(status, "progress")) AddProgress(*progress, &families);
  AddEvaluation(status, &families);
  AddCheckpoint(status["checkpoint"], &families);
  if (status.contains("restarts")) AddRestarts(status["restarts"], &families);
  AddProcesses(status, &families);
  AddShards(status["shards"], &families);
  AddTables(status["tables"], &families);
  AddWorkers(status["by_worker"], &families);
  counters->Raise(&families.all());
  return prometheus::TextSerializer().Serialize(families.all());
}

}  // namespace tandem::scheduler
