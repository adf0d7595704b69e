#include "cli/launch/resume_point.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "data/files.h"
#include "job/resume_check.h"
#include "models/script_file.h"
#include "server/checkpoint/checkpoint_fence.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

// Reads the file `run`: the number of the run, and how often it was resumed.
absl::Status ReadRun(const std::string& folder, ResumePoint* point) {
  const std::string path = folder + "/run";
  const absl::StatusOr<server::AttemptId> id = server::ReadAttempt(path);
  if (absl::IsNotFound(id.status())) {
    return absl::NotFoundError(absl::StrCat(
        path, ": not there; hint: name the output folder of a run that has begun to train"));
  }
  TANDEM_RETURN_IF_ERROR(id.status());
  point->run = id->run;
  point->attempt = id->attempt;
  return absl::OkStatus();
}

void ReadHowItEnded(const std::string& folder, ResumePoint* point) {
  const absl::StatusOr<std::string> text = ReadWholeFile(folder + "/summary.json");
  if (!text.ok()) return;
  const auto summary = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (!summary.is_object()) return;
  point->finished = !summary.contains("stopped") && !summary.contains("failed");
  const auto best = summary.find("best");
  if (best == summary.end() || !best->is_object()) return;
  const auto early = best->find("stopped_early");
  point->stopped_early =
      point->finished && early != best->end() && early->is_boolean() && early->get<bool>();
}

absl::Status HasProgramState(const std::string& checkpoint) {
  TANDEM_ASSIGN_OR_RETURN(const server::CheckpointReader saved,
                          server::CheckpointReader::Open(checkpoint));
  TANDEM_ASSIGN_OR_RETURN(const std::string state, saved.ReadProgramState(0));
  if (!state.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the program has saved nothing of where it stood; hint: begin with its model: --init-from ",
      checkpoint));
}

absl::Status HasSameModule(const std::string& checkpoint, const Script& script) {
  TANDEM_ASSIGN_OR_RETURN(const server::CheckpointReader saved,
                          server::CheckpointReader::Open(checkpoint));
  TANDEM_ASSIGN_OR_RETURN(const std::string bytes, saved.ReadProgramState(0));
  TANDEM_ASSIGN_OR_RETURN(const models::ModuleState was, models::ParseModuleState(bytes));
  TANDEM_ASSIGN_OR_RETURN(const models::ScriptFile is, models::ReadScriptFile(script));
  return models::CheckSameModule(was.contents, is.contents);
}

// Whether the limit was raised; 0: no limit.
bool More(int64_t was, int64_t is) { return was > 0 && (is == 0 || is > was); }

}  // namespace

bool HasResumePoint(const std::string& folder) {
  return FindResumePoint(folder, server::CheckpointSearch::WithoutRanges()).ok();
}

absl::StatusOr<ResumePoint> FindResumePoint(const std::string& folder,
                                            const server::CheckpointSearch& search) {
  ResumePoint point;
  TANDEM_RETURN_IF_ERROR(ReadRun(folder, &point));
  TANDEM_ASSIGN_OR_RETURN(
      const server::CheckpointReader saved,
      server::CheckpointReader::OpenNewest(folder + "/model", point.run, search, &point.damaged));
  point.checkpoint = saved.folder();
  point.step = saved.manifest().step;
  point.attempt = std::max(point.attempt, saved.manifest().attempt) + 1;
  TANDEM_ASSIGN_OR_RETURN(const std::string record, saved.ReadRecord());
  if (!point.record.ParseFromString(record)) {
    return absl::DataLossError(absl::StrCat(point.checkpoint, ": a record that cannot be read"));
  }
  const std::string job = folder + "/job.textproto";
  std::error_code error;
  if (fs::exists(job, error)) {
    TANDEM_ASSIGN_OR_RETURN(const Job written, job::ReadJobFile(job, {}));
    TANDEM_ASSIGN_OR_RETURN(point.job, job::ReadJobFile(job, job::EarlierSettings(written)));
  }
  ReadHowItEnded(folder, &point);
  return point;
}

absl::StatusOr<bool> HasCheckpoint(const std::string& folder) {
  ResumePoint point;
  TANDEM_RETURN_IF_ERROR(ReadRun(folder, &point));
  return server::HasCheckpointOf(folder + "/model", point.run);
}

ResumeReport CheckResume(const std::string& folder, const ResumePoint& point,
                         const job::ResolvedJob& plan) {
  const std::string where = absl::StrCat("--resume ", folder, ": ");
  ResumeReport report;
  const auto refuse = [&](absl::string_view line) {
    report.refused.push_back(absl::StrCat(where, line));
    return report;
  };
  if (plan.job.train().evaluate_only()) {
    return refuse("train.evaluate_only takes no step; hint: evaluate with --init-from");
  }
  if (plan.job.model().has_program()) {
    const absl::Status there = HasProgramState(point.checkpoint);
    if (!there.ok()) return refuse(there.message());
  }
  if (plan.job.model().has_script()) {
    const absl::Status same = HasSameModule(point.checkpoint, plan.job.model().script());
    if (!same.ok()) return refuse(same.message());
  }
  if (point.record.worker_size() != plan.workers()) {
    return refuse(absl::StrCat("the run has ", point.record.worker_size(), " workers, the job ",
                               plan.workers(),
                               "; hint: the number of servers may change, not that of workers"));
  }
  const absl::Status files = data::CheckSameFiles(point.record, plan.job.data(), &report.said);
  if (!files.ok()) return refuse(files.message());
  const auto& train = point.record.train();
  if (plan.job.data().format() == Data::NCF && !train.empty() && train.Get(0).sample() == 0) {
    report.said.push_back(absl::StrCat(
        where,
        "an earlier version began the run, which drew negatives from all ids up to the "
        "largest; from here on they are items of the training rows"));
  }
  Data data = plan.job.data();
  if (const absl::Status same = data::AdoptDeal(point.record, &data); !same.ok()) {
    return refuse(same.message());
  }
  if (!point.damaged.empty())
    report.said.push_back(absl::StrCat(where, "passed over: ", point.damaged));
  if (!point.job.has_value()) return report;
  const absl::StatusOr<job::ResolvedJob> was = job::Resolve(*point.job);
  if (!was.ok()) return refuse(absl::StrCat("its job: ", was.status().message()));
  for (const std::string& difference : job::ResumeDifferences(was->job, plan.job)) {
    refuse(absl::StrCat(difference,
                        "; hint: docs/CHECKPOINTS.md lists what may change when a run goes on"));
  }
  const Train &before = was->job.train(), &now = plan.job.train();
  const bool longer = now.epochs() > before.epochs() || More(before.max_steps(), now.max_steps());
  const bool patient = More(before.keep_best().patience(), now.keep_best().patience());
  // A run that stopped early counts as finished, too, so its own condition goes first.
  if (point.stopped_early && !patient) {
    refuse("no better model came in time; hint: to train on, raise train.keep_best.patience");
  } else if (point.finished && !point.stopped_early && !longer) {
    refuse("the run is finished; hint: to train on, raise train.epochs or train.max_steps");
  }
  for (const std::string& difference : job::AllDifferences(was->job, plan.job)) {
    report.said.push_back(absl::StrCat(where, "changed: ", difference));
  }
  return report;
}

}  // namespace tandem::cli
