#include "scheduler/reports.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::scheduler {
namespace {

constexpr int kFirstIntervals = 5;  // that may pass without a notice

int RankOf(const Node& node) { return node.role == Role::kWorker ? node.index : -1; }

}  // namespace

void Reports::Start(absl::Time now, absl::optional<absl::Time> since) {
  book_.Start(now, since);
  speed_.Start(now);
  next_progress_ = now + interval_;
  first_by_ = now + kFirstIntervals * interval_;
  next_shard_reports_ = now + shard_reports_;
}

absl::Status Reports::Add(absl::Time now, const Node& node, const Control& control,
                          SchedulerEffects* effects) {
  if (control.has_progress()) return AddProgress(now, node, control.progress(), effects);
  if (control.has_program_note()) return AddNote(node, control.program_note(), effects);
  if (control.has_shard_report()) return AddShardReport(node, control.shard_report());
  if (control.has_collectives()) return AddCollectives(node, control.collectives(), effects);
  if (control.has_worker_note()) return AddText(node, control.worker_note(), effects);
  AddPaths(node, control.paths(), effects);
  return absl::OkStatus();
}

absl::Status Reports::AddText(const Node& node, const WorkerNote& note, SchedulerEffects* effects) {
  constexpr size_t kMaxText = 1000;
  if (RankOf(node) != 0 || note.text().size() > kMaxText) {
    return absl::InvalidArgumentError(absl::StrCat("a note of ", note.text().size(),
                                                   " characters from ", node.Name(),
                                                   "; expected worker 0, and at most ", kMaxText));
  }
  effects->Warn(absl::StrCat(node.Name(), " ", note.text()));
  return absl::OkStatus();
}

absl::Status Reports::AddProgress(absl::Time now, const Node& node, const Progress& progress,
                                  SchedulerEffects* effects) {
  TANDEM_RETURN_IF_ERROR(book_.AddProgress(RankOf(node), progress));
  speed_.Add(now, node.index, progress);
  const std::string row_warning = book_.TakeRowWarning();
  if (!row_warning.empty()) effects->Warn(absl::StrCat("warning: ", row_warning));
  heard_[static_cast<size_t>(node.index)] = now;
  // The notice with all rows before an evaluation, or before the end of training, must come first.
  if (book_.TakeEpochsTrained() && book_.HasNewSamples()) SayInterval(now, effects);
  // A worker repeats an evaluation until it knows that the scheduler has received it.
  const bool again = progress.evaluation() == evaluation_ && evaluation_ != 0;
  if (!progress.evaluation_json().empty() && !again) {
    evaluation_ = progress.evaluation();
    effects->Notify(SchedulerNotice::Kind::kEvaluation, node.Name(), progress.evaluation_json());
  }
  return absl::OkStatus();
}

// The answer names the last note that arrived in order. The worker repeats a lost note and those
// after it.
absl::Status Reports::AddNote(const Node& node, const ProgramNote& note,
                              SchedulerEffects* effects) {
  TANDEM_ASSIGN_OR_RETURN(const JobBook::Noted noted, book_.AddNote(RankOf(node), note));
  if (noted == JobBook::Noted::kDropped) SayDropped(node.Name(), note.step(), effects);
  if (noted == JobBook::Noted::kTaken && !note.value().empty()) {
    SayReported(node.Name(), note.step(), {note.value().begin(), note.value().end()},
                {{"worker", node.index}}, effects);
  }
  Control control;
  control.mutable_command_done()->set_id(static_cast<uint64_t>(book_.LastNote(node.index)));
  effects->SendTo(node, control);
  return absl::OkStatus();
}

// `said`: who has reported, for metrics.jsonl.
void Reports::SayReported(const std::string& who, int64_t step,
                          const std::map<std::string, double>& values, nlohmann::json said,
                          SchedulerEffects* effects) {
  for (const auto& [name, value] : values) {
    if (std::isfinite(value) || std::exchange(warned_not_finite_, true)) continue;
    effects->Warn(absl::StrCat(who, ": the script has reported ", name, "=", value, " at step ",
                               step,
                               "; values that are not finite are null in metrics.jsonl and "
                               "summary.json"));
  }
  said["step"] = step;
  said["values"] = values;
  effects->Notify(SchedulerNotice::Kind::kReported, who,
                  said.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void Reports::SayDropped(const std::string& first, int64_t step, SchedulerEffects* effects) {
  if (std::exchange(names_dropped_, true)) return;
  effects->Warn(absl::StrCat("programs report more than ", JobBook::kMaxReported,
                             " names; reports with further names are dropped, first from ", first,
                             " at step ", step));
}

absl::Status Reports::AddShardReport(const Node& node, const ShardReport& report) {
  const bool own =
      node.role == Role::kServer && report.server() == static_cast<uint32_t>(node.index);
  if (own) return book_.AddShardReport(report);
  return absl::InvalidArgumentError(absl::StrCat("report of server ", report.server()));
}

void Reports::AddPaths(const Node& node, const Paths& paths, SchedulerEffects* effects) {
  for (const Path& path : paths.path()) {
    if (!book_.AddPath(node.Name(), path)) continue;
    effects->Log(absl::StrCat(node.Name(), " reaches ", path.to(),
                              path.purpose().empty() ? "" : absl::StrCat(" for ", path.purpose()),
                              " by ", path.way(), ": ", path.why()));
  }
}

absl::Status Reports::AddCollectives(const Node& node, const Collectives& collectives,
                                     SchedulerEffects* effects) {
  TANDEM_RETURN_IF_ERROR(book_.SetCollectives(RankOf(node), collectives));
  effects->Log(collectives.line());
  return absl::OkStatus();
}

// worker/evaluation_round.cc gives the barriers these names.
void Reports::OnRelease(const BarrierRelease& release, SchedulerEffects* effects) {
  if (absl::StartsWith(release.name(), "evaluation ")) evaluating_ = true;
  if (absl::StartsWith(release.name(), "evaluated ")) evaluating_ = false;
  if (release.value().empty()) return;
  const std::map<std::string, double> values(release.value().begin(), release.value().end());
  const auto workers = static_cast<int>(heard_.size());
  if (book_.AddReduced(release.max_value(), values)) {
    SayReported("all workers", release.max_value(), values, {{"workers", workers}}, effects);
  } else {
    SayDropped("all workers", release.max_value(), effects);
  }
}

void Reports::Tick(absl::Time now, SchedulerEffects* effects) {
  if (now < next_progress_) return;
  const bool late = std::any_of(heard_.begin(), heard_.end(), [&](absl::Time heard) {
    return heard < next_progress_ - interval_ / 2;
  });
  if (late && now < next_progress_ + interval_ / 2) return;
  const bool silent = std::any_of(heard_.begin(), heard_.end(),
                                  [](absl::Time heard) { return heard == absl::InfinitePast(); });
  if (!silent || now >= first_by_) SayInterval(now, effects);
  next_progress_ = std::max(next_progress_ + interval_, now);
}

void Reports::End(absl::Time now, SchedulerEffects* effects) {
  if (book_.HasNewSamples()) SayInterval(now, effects);
}

void Reports::SayInterval(absl::Time now, SchedulerEffects* effects) {
  last_ = book_.Interval(now);
  last_->samples_per_second = speed_.Take().value_or(std::numeric_limits<double>::quiet_NaN());
  last_->evaluating = evaluating_;
  if (evaluating_) last_->seconds_left = -1;  // the estimate would grow
  effects->Notify(SchedulerNotice::Kind::kProgress, "", "")->progress = *last_;
}

bool Reports::AskShards(absl::Time now, bool servers_are_busy) {
  const bool ask = shard_reports_ > absl::ZeroDuration() && !servers_are_busy;
  if (!ask || now < next_shard_reports_) return false;
  next_shard_reports_ = now + shard_reports_;
  return true;
}

}  // namespace tandem::scheduler
