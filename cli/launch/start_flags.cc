#include "cli/launch/start_flags.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "data/batch_source.h"
#include "server/checkpoint/checkpoint_check.h"
#include "server/checkpoint/checkpoint_directory.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> Contradictions(const StartFlags& flags, const job::ResolvedJob& plan) {
  std::vector<std::string> lines;
  const bool evaluates = plan.job.train().evaluate_only();
  if (evaluates && flags.init_from.empty()) {
    lines.emplace_back(
        "train.evaluate_only: there is no model to evaluate; hint: name a saved one with "
        "--init-from");
  }
  const Data& data = plan.job.data();
  const bool of_program = data.format() == Data::PROGRAM;  // may bring test rows
  if (evaluates && !of_program && !data::HasTestRows(data) && !data::HasValidationRows(data)) {
    lines.emplace_back(
        "train.evaluate_only: there are no rows to evaluate on; hint: name them in data.test");
  }
  if (flags.only_tables.empty()) return lines;
  if (flags.init_from.empty()) {
    lines.emplace_back("--only-tables: of which checkpoint? hint: name it with --init-from");
  } else if (evaluates) {
    lines.emplace_back(
        "--only-tables: train.evaluate_only needs the whole model; hint: leave it out, or train");
  }
  return lines;
}

// Whether a file of the checkpoint has a row of the table. A file that cannot be read counts as one
// with rows: the servers read it again and say why.
bool HasRows(const server::CheckpointReader& saved, const std::string& table) {
  const std::vector<server::CheckpointFile>& files = saved.manifest().files;
  return std::any_of(files.begin(), files.end(), [&](const server::CheckpointFile& file) {
    if (file.table != table) return false;
    if (file.rows >= 0) return file.rows > 0;
    const auto keys = saved.ReadKeys(file);
    return !keys.ok() || !keys->empty();
  });
}

}  // namespace

void AddStartFlags(CLI::App* app, StartFlags* flags) {
  app->add_option(
      "--init-from", flags->init_from,
      "Checkpoint to start from (the folder of a run, its model/, or one checkpoint in that)");
  app->add_option("--only-tables", flags->only_tables,
                  "Take these tables of --init-from alone, and nothing else of it: a,b")
      ->delimiter(',')
      ->allow_extra_args(false);
  app->add_flag("!--no-checkpoint", flags->checkpoint, "Do not write OUT/model");
  app->add_option("--resume", flags->resume,
                  "Continue the run of this output folder from its newest whole checkpoint");
}

absl::Status FindResume(StartFlags* flags, std::string* out) {
  if (flags->resume.empty()) return absl::OkStatus();
  const std::string where = absl::StrCat("--resume ", flags->resume);
  const auto refuse = [&](absl::string_view flag) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": not with ", flag, ": the run continues as it was; leave one out"));
  };
  if (!flags->init_from.empty()) return refuse("--init-from");
  if (!flags->only_tables.empty()) return refuse("--only-tables");
  if (!flags->checkpoint) return refuse("--no-checkpoint");
  std::error_code error;
  if (!out->empty() && !fs::equivalent(*out, flags->resume, error)) {
    return refuse("another --out");
  }
  absl::StatusOr<ResumePoint> point = FindResumePoint(flags->resume, flags->search);
  if (!point.ok()) {
    return absl::Status(point.status().code(), absl::StrCat(where, ": ", point.status().message()));
  }
  *out = flags->resume;
  flags->init_from = point->checkpoint;
  flags->resumed = *std::move(point);
  return absl::OkStatus();
}

StartReport CheckStart(const StartFlags& flags, const job::ResolvedJob& plan) {
  StartReport report;
  report.refused = Contradictions(flags, plan);
  if (flags.resumed.has_value()) {
    ResumeReport resume = CheckResume(flags.resume, *flags.resumed, plan);
    report.refused.insert(report.refused.end(), resume.refused.begin(), resume.refused.end());
    report.said = std::move(resume.said);
  }
  if (flags.init_from.empty() || !report.refused.empty()) return report;
  const absl::StatusOr<server::CheckpointReader> saved =
      server::CheckpointReader::Open(flags.init_from);
  if (!saved.ok()) {
    report.refused.emplace_back(saved.status().message());
    return report;
  }
  report.checkpoint = saved->folder();
  absl::StatusOr<OwnedFd> kept = server::KeepCheckpoint(report.checkpoint);
  if (!kept.ok()) {
    report.refused.emplace_back(kept.status().message());
    return report;
  }
  report.kept = *std::move(kept);
  const server::CheckpointFit fit =
      server::CompareCheckpoint(saved->manifest(), plan, flags.only_tables,
                                [&](const std::string& table) { return HasRows(*saved, table); });
  const std::string where = flags.resumed.has_value()
                                ? absl::StrCat("--resume ", flags.resume, ": ")
                                : absl::StrCat("--init-from ", flags.init_from, ": ");
  for (const std::string& line : fit.refused) report.refused.push_back(where + line);
  for (const std::string& line : fit.said) report.said.push_back(where + line);
  if (flags.only_tables.empty()) report.description = saved->manifest().data;
  if (flags.only_tables.empty() && plan.dense_table < 0) {
    const absl::Status whole = saved->CheckDenseIsWhole();
    if (!whole.ok()) report.refused.push_back(absl::StrCat(where, whole.message()));
  }
  return report;
}

scheduler::ModelPaths PathsOf(const StartFlags& flags, const std::string& out,
                              const job::ResolvedJob& plan) {
  scheduler::ModelPaths paths;
  if (!flags.init_from.empty()) paths.init_from = fs::absolute(flags.init_from).string();
  paths.only_tables = flags.only_tables;
  if (flags.resumed.has_value()) {
    paths.resume = true;
    paths.run = flags.resumed->run;
    paths.attempt = flags.resumed->attempt;
    paths.step = flags.resumed->step;
    paths.before = flags.resumed->record;
  }
  const bool trains = !plan.job.train().evaluate_only();
  if (flags.checkpoint && trains && !out.empty())
    paths.checkpoint_folder = fs::absolute(out).string() + "/model";
  return paths;
}

}  // namespace tandem::cli
