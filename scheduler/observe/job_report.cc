#include "scheduler/observe/job_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "proto/distribution.h"
#include "proto/program_note.h"

namespace tandem::scheduler {
namespace {

double Mean(const Distribution& d) {
  return d.count() == 0 ? 0.0 : d.sum() / static_cast<double>(d.count());
}

using Counts = google::protobuf::Map<std::string, uint64_t>;

void AddCounts(const Counts& from, std::map<std::string, uint64_t>* into) {
  for (const auto& [name, count] : from) (*into)[name] += count;
}

constexpr int64_t kMaxCount = ReportCheck::kMaxCount;

constexpr int64_t kMaxPlaces = 64;  // of a worker, in memory

// Merges the fields that reports of tables and of single workers share.
template <typename Message>
void MergeUpdates(const Message& from, Message* into) {
  into->set_sent(into->sent() + from.sent());
  into->set_applied(into->applied() + from.applied());
  into->set_merged(into->merged() + from.merged());
  into->set_dropped(into->dropped() + from.dropped());
  MergeSamples(from.samples(), into->mutable_samples());
  MergeDistribution(from.clock_gap(), into->mutable_clock_gap());
  MergeDistribution(from.version_staleness(), into->mutable_version_staleness());
  MergeDistribution(from.age(), into->mutable_age());
  MergeDistribution(from.row_staleness(), into->mutable_row_staleness());
}

void MergeRows(const TableReport& from, TableReport* into) {
  into->set_rows(into->rows() + from.rows());
  into->set_bytes(into->bytes() + from.bytes());
  if (from.has_hot_rows()) into->set_hot_rows(into->hot_rows() + from.hot_rows());
  if (!from.has_row_counts()) return;
  const RowReport& more = from.row_counts();
  RowReport& counts = *into->mutable_row_counts();
  counts.set_candidates(counts.candidates() + more.candidates());
  counts.set_looked_up(counts.looked_up() + more.looked_up());
  counts.set_found(counts.found() + more.found());
  counts.set_admitted(counts.admitted() + more.admitted());
  counts.set_evicted(counts.evicted() + more.evicted());
  counts.set_refused(counts.refused() + more.refused());
  counts.set_to_fresh_rows(counts.to_fresh_rows() + more.to_fresh_rows());
  counts.set_sampled(counts.sampled() + more.sampled());
  counts.set_came_back(counts.came_back() + more.came_back());
}

// Adds `from` to the workers `into`, by rank.
void AddWorkers(const google::protobuf::RepeatedPtrField<WorkerUpdates>& from,
                std::vector<WorkerUpdates>* into) {
  const size_t workers = std::min(into->size(), static_cast<size_t>(from.size()));
  for (size_t rank = 0; rank < workers; ++rank) {
    MergeUpdates(from[static_cast<int>(rank)], &(*into)[rank]);
  }
}

// Adds the seconds of `from` to a matrix.
void AddWaiting(const google::protobuf::RepeatedPtrField<Waiting>& from,
                std::vector<std::vector<double>>* into) {
  for (size_t rank = 0; rank < into->size() && rank < static_cast<size_t>(from.size()); ++rank) {
    std::vector<double>& row = (*into)[rank];
    const auto& seconds = from[static_cast<int>(rank)].seconds();
    for (size_t by = 0; by < row.size() && by < static_cast<size_t>(seconds.size()); ++by) {
      row[by] += seconds[static_cast<int>(by)];
    }
  }
}

// Adds the counters of the run before it was resumed. Current values (step, epoch) stay as they
// are.
void AddBefore(const Progress& before, Progress* progress) {
  progress->set_samples(progress->samples() + before.samples());
  progress->set_trained_steps(progress->trained_steps() + before.trained_steps());
  progress->set_skipped_steps(progress->skipped_steps() + before.skipped_steps());
  progress->set_slept_seconds(progress->slept_seconds() + before.slept_seconds());
  progress->set_computed_seconds(progress->computed_seconds() + before.computed_seconds());
  progress->set_fetched_seconds(progress->fetched_seconds() + before.fetched_seconds());
  progress->set_paused_seconds(progress->paused_seconds() + before.paused_seconds());
  progress->set_joined_seconds(progress->joined_seconds() + before.joined_seconds());
  progress->set_frames_resent(progress->frames_resent() + before.frames_resent());
  for (const auto& [kind, bytes] : before.bytes()) (*progress->mutable_bytes())[kind] += bytes;
  while (progress->updates_size() < before.updates_size()) progress->add_updates(0);
  for (int table = 0; table < before.updates_size(); ++table) {
    progress->set_updates(table, progress->updates(table) + before.updates(table));
  }
  MergeDistribution(before.in_flight_depth(), progress->mutable_in_flight_depth());
  MergeDistribution(before.dense_staleness(), progress->mutable_dense_staleness());
}

bool IsBehind(const Progress& a, const Progress& b) {
  return std::pair(a.epoch(), a.step()) < std::pair(b.epoch(), b.step());
}

// Converts a record that an earlier version may have written, and drops its current values.
// Earlier versions counted the updates of a worker by the name of the table, and kept histograms by
// popularity, which are not used. In every job they also kept numbers for each pair of a worker and
// a table, and of two workers. Adds these up if this version keeps only numbers of single workers.
RunRecord OfThisVersion(RunRecord record, const job::ResolvedJob& plan) {
  for (Progress& worker : *record.mutable_worker()) {
    const int tables = static_cast<int>(plan.tables.size());
    worker.mutable_updates()->Truncate(std::min(tables, worker.updates_size()));
    if (worker.updates_sent().empty()) continue;
    worker.clear_updates();
    for (const job::TablePlan& table : plan.tables) {
      const auto sent = worker.updates_sent().find(table.name);
      worker.add_updates(sent == worker.updates_sent().end() ? 0 : sent->second);
    }
    worker.clear_updates_sent();
  }
  for (TableReport& report : *record.mutable_table()) {
    for (Distribution& rows : *report.mutable_by_popularity()) rows.clear_bucket();
    // The shards report the same rows again.
    report.clear_rows();
    report.clear_hot_rows();
    report.clear_bytes();
    if (report.has_row_counts()) report.mutable_row_counts()->clear_candidates();
  }
  if (!plan.CountsPairs()) {
    std::vector<WorkerUpdates> updates(static_cast<size_t>(plan.workers()));
    AddWorkers(record.worker_updates(), &updates);
    for (TableReport& report : *record.mutable_table()) {
      const auto frozen = [&report](const job::TablePlan& table) {
        return table.frozen && table.name == report.table();
      };
      if (std::none_of(plan.tables.begin(), plan.tables.end(), frozen)) {
        AddWorkers(report.worker(), &updates);
      }
      report.clear_worker();
    }
    record.mutable_worker_updates()->Assign(updates.begin(), updates.end());
  }
  if (plan.CountsWaitsInPairs() || record.waiting().empty()) return record;
  for (google::protobuf::RepeatedField<double>* const seconds :
       {record.mutable_waited(), record.mutable_awaited()}) {
    seconds->Resize(plan.workers(), 0);
  }
  for (int rank = 0; rank < std::min(plan.workers(), record.waiting_size()); ++rank) {
    const auto& row = record.waiting(rank).seconds();
    for (int by = 0; by < std::min(plan.workers(), row.size()); ++by) {
      record.set_waited(rank, record.waited(rank) + row[by]);
      record.set_awaited(by, record.awaited(by) + row[by]);
    }
  }
  record.clear_waiting();
  return record;
}

void MergeCells(const google::protobuf::RepeatedPtrField<GradientStaleness>& from,
                google::protobuf::RepeatedPtrField<GradientStaleness>* into) {
  while (into->size() < from.size()) into->Add();
  for (int i = 0; i < from.size(); ++i) MergeGradients(from[i], into->Mutable(i));
}

// By rank: the largest value of the shards, and the value before the run was resumed. Reads of one
// step may wait on several shards at the same time.
template <typename Of>
std::vector<double> LongestOf(const std::vector<ShardReport>& shards, const Of& of,
                              const google::protobuf::RepeatedField<double>& before,
                              size_t workers) {
  std::vector<double> longest(workers);
  for (const ShardReport& shard : shards) {
    const auto& seconds = of(shard);
    for (size_t rank = 0; rank < workers && rank < static_cast<size_t>(seconds.size()); ++rank) {
      longest[rank] = std::max(longest[rank], seconds[static_cast<int>(rank)]);
    }
  }
  for (size_t rank = 0; rank < workers && rank < static_cast<size_t>(before.size()); ++rank) {
    longest[rank] += before[static_cast<int>(rank)];
  }
  return longest;
}

}  // namespace

void MergeGradients(const GradientStaleness& from, GradientStaleness* into) {
  into->set_rows(into->rows() + from.rows());
  into->set_missed_rows(into->missed_rows() + from.missed_rows());
  into->set_cosine_sum(into->cosine_sum() + from.cosine_sum());
  into->set_distance_sum(into->distance_sum() + from.distance_sum());
  into->set_update_sum(into->update_sum() + from.update_sum());
}

void MergeSamples(const SampleShare& from, SampleShare* into) {
  into->set_sent(into->sent() + from.sent());
  into->set_applied(into->applied() + from.applied());
  into->set_positives_sent(into->positives_sent() + from.positives_sent());
  into->set_positives_applied(into->positives_applied() + from.positives_applied());
}

void MergeTableReport(const TableReport& from, TableReport* into) {
  MergeRows(from, into);
  MergeUpdates(from, into);
  MergeDistribution(from.in_flight_depth(), into->mutable_in_flight_depth());
  while (into->by_popularity_size() < from.by_popularity_size()) into->add_by_popularity();
  for (int b = 0; b < from.by_popularity_size(); ++b) {
    MergeDistribution(from.by_popularity(b), into->mutable_by_popularity(b));
  }
  MergeCells(from.gradients_by_staleness(), into->mutable_gradients_by_staleness());
  MergeCells(from.gradients_by_popularity(), into->mutable_gradients_by_popularity());
  while (into->worker_size() < from.worker_size()) into->add_worker();
  for (int rank = 0; rank < from.worker_size(); ++rank) {
    MergeUpdates(from.worker(rank), into->mutable_worker(rank));
  }
}

JobBook::JobBook(const job::ResolvedJob& plan, const RunRecord& before)
    : epochs_(std::max(1, plan.job.train().epochs())),
      max_steps_(plan.job.train().max_steps()),
      lockstep_(plan.lockstep),
      pairs_(plan.CountsPairs()),
      waits_in_pairs_(plan.CountsWaitsInPairs()),
      check_(plan),
      before_(OfThisVersion(before, plan)),
      before_workers_(plan.workers()),
      max_places_(static_cast<size_t>(
          std::min<int64_t>(kMaxPlaces, plan.job.train().max_inflight_pushes() + 2))),
      places_(plan.workers()),
      shards_per_server_(plan.shards_per_server()),
      workers_(plan.workers()),
      shards_(plan.shards()) {
  for (const job::TablePlan& table : plan.tables) table_names_.push_back(table.name);
  evaluation_json_ = before_.evaluation_json();
  notes_.resize(workers_.size());
  for (const ReportedValue& value : before_.reported()) values_[value.name()] = value;
  for (int rank = 0; rank < std::min(plan.workers(), before_.worker_size()); ++rank) {
    before_workers_[static_cast<size_t>(rank)] = before_.worker(rank);
    Progress& worker = workers_[static_cast<size_t>(rank)];
    worker = before_.worker(rank);
    worker.clear_loss_sum();
    worker.clear_loss_samples();
    worker.clear_auc();
    reported_samples_ += worker.samples();
  }
}

void JobBook::Start(absl::Time now, absl::optional<absl::Time> since) {
  started_ = now;
  since_ = since.value_or(now - absl::Seconds(before_.seconds()));
}

absl::Status JobBook::AddProgress(int rank, const Progress& progress) {
  if (rank < 0 || rank >= static_cast<int>(workers_.size())) {
    return absl::InvalidArgumentError(absl::StrCat("progress of rank ", rank));
  }
  TANDEM_RETURN_IF_ERROR(check_.Check(progress));
  AddLoss(progress);
  Progress& worker = workers_[rank];
  NoteRows(rank, worker.first_rows(), progress.first_rows());
  NoteRows(rank, worker.epoch_rows(), progress.epoch_rows());
  const double loss_sum = worker.loss_sum() + progress.loss_sum();
  const int64_t loss_samples = std::min(kMaxCount, worker.loss_samples() + progress.loss_samples());
  const double auc = progress.auc() > 0 ? progress.auc() : worker.auc();
  worker = progress;
  const absl::optional<Progress>& before = before_workers_[static_cast<size_t>(rank)];
  if (before.has_value()) AddBefore(*before, &worker);
  worker.clear_evaluation_json();
  worker.set_loss_sum(loss_sum);
  worker.set_loss_samples(loss_samples);
  worker.set_auc(auc);
  if (progress.has_trains_at()) AddPlace(worker, &places_[static_cast<size_t>(rank)]);
  if (!progress.evaluation_json().empty() && !progress.evaluation_aside()) {
    evaluation_json_ = progress.evaluation_json();
  }
  return absl::OkStatus();
}

// A worker that stands still reports the same place again.
void JobBook::AddPlace(const Progress& worker, std::deque<Progress>* places) const {
  if (!places->empty() && places->back().trains_at().step() == worker.trains_at().step()) return;
  places->push_back(worker);
  if (places->size() > max_places_) places->pop_front();
}

absl::optional<WorkerStart> JobBook::StartOf(int rank, int64_t first_step) const {
  const std::deque<Progress>& places = places_[static_cast<size_t>(rank)];
  const auto last = std::find_if(places.rbegin(), places.rend(), [first_step](const Progress& p) {
    return p.trains_at().step() <= first_step;
  });
  if (last == places.rend()) return absl::nullopt;
  WorkerStart start;
  *start.mutable_position() = last->trains_at();
  start.set_first_step(first_step);
  start.set_evaluations(last->evaluations());
  if (last->has_best()) *start.mutable_best() = last->best();
  start.set_epochs_to_first_judged(last->epochs_to_first_judged());
  return start;
}

void JobBook::OnReplaced(int rank, const WorkerStart& start) {
  std::deque<Progress>& places = places_[static_cast<size_t>(rank)];
  while (!places.empty() && places.back().trains_at().step() > start.position().step()) {
    places.pop_back();
  }
  if (places.empty()) return;
  before_workers_[static_cast<size_t>(rank)] = places.back();
  notes_[static_cast<size_t>(rank)] = 0;
}

void JobBook::ForgetPlaces() {
  for (std::deque<Progress>& places : places_) places.clear();
}

// Fingerprints of the first rows and of a whole epoch never match each other, since they cover
// different rows.
void JobBook::NoteRows(int rank, uint64_t before, uint64_t now) {
  if (before == now) return;
  if (const auto it = ranks_by_rows_.find(before); it != ranks_by_rows_.end()) {
    it->second.erase(rank);
    if (it->second.empty()) ranks_by_rows_.erase(it);
  }
  if (now == 0) return;
  std::set<int>& same = ranks_by_rows_[now];
  same.insert(rank);
  if (same.size() < 2 || !row_warning_.empty()) return;
  row_warning_ =
      absl::StrCat("workers ", absl::StrJoin(same, ", "),
                   " train on the same rows, so that each row counts ", same.size(),
                   " times; hint: give each worker a part of them: "
                   "torch.utils.data.DistributedSampler(data, job.world_size, job.rank)");
}

std::string JobBook::TakeRowWarning() {
  return std::exchange(row_warning_taken_, !row_warning_.empty()) ? "" : row_warning_;
}

absl::StatusOr<JobBook::Noted> JobBook::AddNote(int rank, const ProgramNote& note) {
  if (rank < 0 || rank >= static_cast<int>(workers_.size())) {
    return absl::InvalidArgumentError(absl::StrCat("a program's note of rank ", rank));
  }
  if (note.number() != notes_[static_cast<size_t>(rank)] + 1) return Noted::kNotItsTurn;
  for (const auto& [name, value] : note.value()) {
    TANDEM_RETURN_IF_ERROR(CheckReportedName(name));
  }
  ++notes_[static_cast<size_t>(rank)];
  return AddValues(rank, note.step(), {note.value().begin(), note.value().end()}) ? Noted::kTaken
                                                                                  : Noted::kDropped;
}

bool JobBook::AddReduced(int64_t step, const std::map<std::string, double>& values) {
  return AddValues(/*rank=*/0, step, values);
}

bool JobBook::AddValues(int rank, int64_t step, const std::map<std::string, double>& values) {
  size_t names = values_.size();
  for (const auto& [name, value] : values) names += values_.count(name) == 0;
  if (names > std::max(kMaxReported, values_.size())) return false;
  for (const auto& [name, value] : values) {
    ReportedValue& last = values_[name];
    // Workers report at different times. The value of the later step counts; within a step, that of
    // the lower rank.
    const bool older =
        step < last.step() || (step == last.step() && rank > last.worker() && !last.name().empty());
    if (older) continue;
    last.set_name(name);
    last.set_value(value);
    last.set_step(step);
    last.set_worker(rank);
  }
  return true;
}

absl::Status JobBook::AddShardReport(const ShardReport& report) {
  TANDEM_RETURN_IF_ERROR(check_.Check(report));
  const int shard =
      static_cast<int>(report.server()) * shards_per_server_ + static_cast<int>(report.shard());
  ShardReport& kept = shards_[static_cast<size_t>(shard)];
  kept = report;
  kept.DiscardUnknownFields();  // nothing bounds them
  return absl::OkStatus();
}

void JobBook::AddLoss(const Progress& progress) {
  if (progress.epoch() > loss_epoch_) {
    loss_epoch_ = progress.epoch();
    epoch_loss_sum_ = epoch_loss_samples_ = 0;
  }
  if (progress.epoch() < loss_epoch_) return;
  epoch_loss_sum_ += progress.loss_sum();
  epoch_loss_samples_ += static_cast<double>(progress.loss_samples());
}

bool JobBook::AddPath(const std::string& from, const Path& path) {
  constexpr size_t kMaxText = 1000, kMaxWays = 16;
  const std::string& purpose = path.purpose();
  if (path.to().size() + path.way().size() + path.why().size() + purpose.size() > kMaxText) {
    return false;
  }
  const std::pair<std::string, std::string> ends = {
      from, purpose.empty() ? path.to() : absl::StrCat(path.to(), " for ", purpose)};
  if (paths_.size() < kMaxPaths || paths_.count(ends) > 0) {
    paths_[ends] = path;
    return true;
  }
  ++paths_left_out_;
  if (purpose.empty() && ways_left_out_.size() < kMaxWays) {
    ways_left_out_.insert(path.way());
  }
  return false;
}

absl::Status JobBook::SetCollectives(int rank, const Collectives& collectives) {
  constexpr size_t kMaxText = 64 << 10;
  if (rank != 0 || collectives.json().size() + collectives.line().size() > kMaxText) {
    return absl::InvalidArgumentError(
        absl::StrCat("choices for collectives from rank ", rank, ", of ", collectives.json().size(),
                     " characters; expected rank 0, and at most ", kMaxText));
  }
  collectives_json_ = collectives.json();
  return absl::OkStatus();
}

const Progress& JobBook::FurthestBehind() const {
  return *std::min_element(workers_.begin(), workers_.end(), IsBehind);
}

const Progress& JobBook::FurthestAhead() const {
  return *std::max_element(workers_.begin(), workers_.end(), IsBehind);
}

bool JobBook::HasNewSamples() const {
  int64_t samples = 0;
  for (const Progress& worker : workers_) samples += worker.samples();
  return samples > reported_samples_;
}

bool JobBook::TakeEpochsTrained() {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (const Progress& worker : workers_) least = std::min(least, worker.epochs_trained());
  if (least <= epochs_trained_) return false;
  epochs_trained_ = least;
  return true;
}

double JobBook::FractionDone() const {
  double epochs = 0, step = std::numeric_limits<double>::infinity();
  for (const Progress& worker : workers_) {
    epochs += static_cast<double>(worker.epoch()) + worker.epoch_fraction();
    step = std::min(step, static_cast<double>(worker.step()));
  }
  double done = epochs / static_cast<double>(workers_.size()) / static_cast<double>(epochs_);
  if (max_steps_ > 0) done = std::max(done, step / static_cast<double>(max_steps_));
  return std::isfinite(done) ? std::clamp(done, 0.0, 1.0) : 0.0;
}

void JobBook::AddStaleness(JobProgress* progress) const {
  SampleShare counted;
  for (const ShardReport& shard : shards_) {
    for (const TableReport& table : shard.table()) {
      const Distribution& staleness = table.version_staleness();
      if (staleness.count() > 0) {
        progress->staleness_mean = std::fmax(progress->staleness_mean, Mean(staleness));
        progress->staleness_max = std::fmax(progress->staleness_max, staleness.max());
      }
      const double gap = std::min(table.clock_gap().max(), static_cast<double>(kMaxCount));
      if (gap > 0)
        progress->clock_gap_max = std::max(progress->clock_gap_max, static_cast<int64_t>(gap));
      MergeSamples(table.samples(), &counted);
    }
  }
  if (counted.sent() > 0) {
    progress->data_applied = counted.applied() / static_cast<double>(counted.sent());
  }
}

void JobBook::AddLimitedTables(JobProgress* progress) const {
  std::vector<TableReport*> by_id(table_names_.size(), nullptr);
  progress->limited_tables.reserve(by_id.size());  // so that they do not move
  for (size_t id = 0; id < by_id.size(); ++id) {
    if (!check_.HasRowRules(static_cast<int>(id))) continue;
    by_id[id] = &progress->limited_tables.emplace_back();
    by_id[id]->set_table(table_names_[id]);
    by_id[id]->mutable_row_counts();
  }
  if (progress->limited_tables.empty()) return;
  const auto add = [&](const TableReport& report) {
    const int id = check_.TableOf(report.table());
    TableReport* const into = id < 0 ? nullptr : by_id[static_cast<size_t>(id)];
    if (into != nullptr) MergeRows(report, into);
  };
  for (const ShardReport& shard : shards_) {
    for (const TableReport& report : shard.table()) add(report);
  }
  for (const TableReport& before : before_.table()) add(before);
}

// Estimates the remaining time from the speed of about the last half of the time since the end of
// the first interval. The first interval contains the start of the job, and the first steps after
// it are often slower than later ones. Gives no estimate until enough time has passed.
void JobBook::AddTimeLeft(JobProgress* p) {
  constexpr double kFirstWindow = 10;  // seconds
  const Mark now = {p->seconds, p->done};
  if (begun_.done == 0) {
    begun_ = from_ = next_ = now;
    return;
  }
  const double since_begun = now.seconds - begun_.seconds;
  if (since_begun >= std::max(kFirstWindow, 2 * (next_.seconds - begun_.seconds))) {
    from_ = std::exchange(next_, now);
  }
  const double since = now.seconds - from_.seconds, done = now.done - from_.done;
  if (done <= 0 || since_begun < (begun_.seconds - Seconds(started_)) / 2) return;
  p->seconds_left = since * (1 - p->done) / done;
}

JobProgress JobBook::Interval(absl::Time now) {
  JobProgress p;
  p.seconds = Seconds(now);
  double loss_sum = 0, loss_samples = 0, auc_sum = 0;
  double with_auc = 0;
  // If all workers step together, the latest report holds for all of them.
  const Progress& at = lockstep_ ? FurthestAhead() : FurthestBehind();
  p.epoch = at.epoch();
  p.epoch_fraction = at.epoch_fraction();
  p.min_step = at.step();
  for (Progress& worker : workers_) {
    p.max_step = std::max(p.max_step, worker.step());
    p.samples += worker.samples();
    loss_sum += worker.loss_sum();
    loss_samples += static_cast<double>(worker.loss_samples());
    const double of_auc = worker.auc() > 0 ? static_cast<double>(worker.loss_samples()) : 0;
    auc_sum += of_auc * worker.auc();
    with_auc += of_auc;
    worker.clear_loss_sum();
    worker.clear_loss_samples();
    worker.clear_auc();
  }
  p.has_loss = loss_samples > 0;
  p.loss = loss_samples > 0 ? loss_sum / loss_samples : std::numeric_limits<double>::quiet_NaN();
  p.auc = with_auc > 0 ? auc_sum / with_auc : 0.0;
  p.done = FractionDone();
  AddTimeLeft(&p);
  AddStaleness(&p);
  AddLimitedTables(&p);
  reported_samples_ = p.samples;
  return p;
}

// Each shard reports its whole process.
std::vector<ServerMemory> JobBook::MemoryOf() const {
  const auto per_server = static_cast<size_t>(std::max(shards_per_server_, 1));
  std::vector<ServerMemory> out(shards_.size() / per_server);
  for (size_t i = 0; i < shards_.size(); ++i) {
    ServerMemory& server = out[i / per_server];
    server.used = std::max(server.used, shards_[i].memory_bytes());
    server.limit = std::max(server.limit, shards_[i].memory_limit());
  }
  return out;
}

JobReport JobBook::Total(absl::Time now) const {
  JobReport total;
  total.seconds = Seconds(now);
  if (epoch_loss_samples_ > 0) total.loss = epoch_loss_sum_ / epoch_loss_samples_;
  double end_sum = 0, end_samples = 0;
  for (const Progress& worker : workers_) {
    end_sum += worker.end_loss_sum();
    end_samples += worker.end_loss_samples();
  }
  if (end_samples > 0) total.end_loss = end_sum / end_samples;
  total.evaluation_json = evaluation_json_;
  if (!workers_.empty() && workers_[0].has_best()) total.best = workers_[0].best();
  for (const auto& [name, last] : values_) total.reported[name] = last.value();
  total.paths = paths_;
  total.paths_left_out = paths_left_out_;
  total.ways_left_out = ways_left_out_;
  total.collectives_json = collectives_json_;
  if (!row_warning_.empty()) total.warnings.push_back(row_warning_);
  for (const Progress& worker : workers_) {
    total.samples += worker.samples();
    total.max_step = std::max(total.max_step, worker.step());
    total.trained_steps = std::max(total.trained_steps, worker.trained_steps());
    total.skipped_steps_of.push_back(worker.skipped_steps());
    total.samples_of.push_back(worker.samples());
    total.times_of.push_back({worker.trained_steps(), worker.computed_seconds(),
                              worker.fetched_seconds(), worker.slept_seconds(),
                              worker.paused_seconds(), worker.shortest_read_seconds(),
                              worker.joined_seconds()});
    total.frames_resent_of.push_back(worker.frames_resent());
    MergeDistribution(worker.in_flight_depth(), &total.in_flight_depth);
    total.dense_staleness_of.push_back(worker.dense_staleness());
    AddCounts(worker.bytes(), &total.bytes);
    for (int table = 0; table < worker.updates_size(); ++table) {
      total.updates_sent[table_names_[static_cast<size_t>(table)]] += worker.updates(table);
    }
  }
  if (total.seconds > 0) total.samples_per_second = total.samples / total.seconds;
  total.tables = Tables();
  if (!pairs_) total.updates_of = UpdatesOf();
  if (waits_in_pairs_) {
    total.waiting = WaitingOf();
  } else {
    total.waited = Waited();
    total.awaited = Awaited();
  }
  total.memory_of = MemoryOf();
  const std::map<std::string, uint64_t> server_bytes = ServerBytes();
  total.bytes.insert(server_bytes.begin(), server_bytes.end());  // keeps what workers counted
  return total;
}

double JobBook::Seconds(absl::Time now) const { return absl::ToDoubleSeconds(now - since_); }

std::vector<TableReport> JobBook::Tables() const {
  std::vector<TableReport> tables;
  for (const std::string& name : table_names_) {
    const bool rules = check_.HasRowRules(static_cast<int>(tables.size()));
    TableReport& table = tables.emplace_back();
    table.set_table(name);
    if (rules) table.mutable_row_counts();
  }
  const auto add = [&](const TableReport& report) {
    const int table = check_.TableOf(report.table());
    if (table >= 0) MergeTableReport(report, &tables[static_cast<size_t>(table)]);
  };
  for (const ShardReport& shard : shards_) {
    for (const TableReport& report : shard.table()) add(report);
  }
  for (const TableReport& before : before_.table()) add(before);
  return tables;
}

std::vector<WorkerUpdates> JobBook::UpdatesOf() const {
  std::vector<WorkerUpdates> updates(workers_.size());
  for (const ShardReport& shard : shards_) AddWorkers(shard.worker(), &updates);
  AddWorkers(before_.worker_updates(), &updates);
  return updates;
}

std::map<std::string, uint64_t> JobBook::ServerBytes() const {
  std::map<std::string, uint64_t> bytes;
  for (const ShardReport& shard : shards_) AddCounts(shard.bytes(), &bytes);
  AddCounts(before_.server_bytes(), &bytes);
  return bytes;
}

// Reads of one step may wait on several shards at the same time. So each worker's row is taken from
// the shard where it waited longest.
std::vector<std::vector<double>> JobBook::WaitingOf() const {
  std::vector<std::vector<double>> most(workers_.size(), std::vector<double>(workers_.size()));
  const auto sum = [](const std::vector<double>& row) {
    return std::accumulate(row.begin(), row.end(), 0.0);
  };
  for (const ShardReport& shard : shards_) {
    std::vector<std::vector<double>> here(workers_.size(), std::vector<double>(workers_.size()));
    AddWaiting(shard.waiting(), &here);
    for (size_t rank = 0; rank < most.size(); ++rank) {
      if (sum(here[rank]) > sum(most[rank])) most[rank] = std::move(here[rank]);
    }
  }
  AddWaiting(before_.waiting(), &most);
  return most;
}

std::vector<double> JobBook::Waited() const {
  return LongestOf(
      shards_, [](const ShardReport& shard) -> auto& { return shard.waited(); }, before_.waited(),
      workers_.size());
}

std::vector<double> JobBook::Awaited() const {
  return LongestOf(
      shards_, [](const ShardReport& shard) -> auto& { return shard.awaited(); }, before_.awaited(),
      workers_.size());
}

RunRecord JobBook::Record(absl::Time now) const {
  RunRecord record;
  record.set_seconds(Seconds(now));
  for (const Progress& worker : workers_) {
    *record.add_worker() = worker;
    record.mutable_worker()->rbegin()->clear_trains_at();
  }
  for (TableReport& table : Tables()) *record.add_table() = std::move(table);
  if (!pairs_) {
    for (WorkerUpdates& worker : UpdatesOf()) *record.add_worker_updates() = std::move(worker);
  }
  if (waits_in_pairs_) {
    for (const std::vector<double>& row : WaitingOf()) {
      record.add_waiting()->mutable_seconds()->Assign(row.begin(), row.end());
    }
  } else {
    const std::vector<double> waited = Waited(), awaited = Awaited();
    record.mutable_waited()->Assign(waited.begin(), waited.end());
    record.mutable_awaited()->Assign(awaited.begin(), awaited.end());
  }
  for (const auto& [kind, bytes] : ServerBytes()) (*record.mutable_server_bytes())[kind] = bytes;
  record.set_evaluation_json(evaluation_json_);
  for (const auto& [name, last] : values_) *record.add_reported() = last;
  *record.mutable_record_bytes() = before_.record_bytes();  // also of servers that are no more
  for (const ShardReport& shard : shards_) {
    if (shard.record_bytes() == 0) continue;
    const std::string name = absl::StrCat("server-", shard.server(), "-shard-", shard.shard());
    (*record.mutable_record_bytes())[name] = shard.record_bytes();
  }
  return record;
}

}  // namespace tandem::scheduler
