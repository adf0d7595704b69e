#include "cli/cache_command.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <cstdio>

#include <CLI/CLI.hpp>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/owned_fd.h"
#include "base/status_macros.h"
#include "data/batch_source.h"
#include "data/cache_rows.h"
#include "data/files.h"
#include "data/statistics.h"
#include "job/job.h"
#include "job/row_shape.h"
#include "node/role_flags.h"
#include "node/role_options.h"

namespace tandem::cli {
namespace {

constexpr int kMaxZstdLevel = 19;

// The part of the job that describes the rows, with the label that counts as 0.
absl::StatusOr<Data> DataOf(const CacheFlags& flags) {
  node::RoleFlags role;
  role.job = flags.job;
  role.set = flags.set;
  TANDEM_ASSIGN_OR_RETURN(job::ResolvedJob job, node::PlanOf(role));
  Data data = job.job.data();
  if (data.score_only()) {
    return absl::InvalidArgumentError(
        "data.score_only is set, expected training rows; hint: tandem predict reads the files");
  }
  if (!job::HasRowsInLines(data)) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.format is ", Data::Format_Name(data.format()),
                     ", expected a format with a row a line; hint: other data need no cache"));
  }
  job.job.mutable_data()->clear_cache();
  TANDEM_RETURN_IF_ERROR(data::FindDataShape(job).status());
  TANDEM_ASSIGN_OR_RETURN(const std::string negative, data::FirstNegative(job.job.data()));
  if (!negative.empty()) data.mutable_columns()->add_negative(negative);
  return data;
}

void Print(const std::string& file, const data::CacheReport& report, double seconds) {
  std::string line = absl::StrFormat("%s: %d rows, %d bytes", file, report.rows, report.bytes);
  if (report.was_there) {
    absl::StrAppend(&line, ", is there already");
  } else {
    absl::StrAppendFormat(&line, ", %.1f s", seconds);
  }
  if (report.bad_rows > 0) absl::StrAppend(&line, ", ", report.bad_rows, " bad rows");
  if (!report.first_bad.empty()) absl::StrAppend(&line, "; the first: ", report.first_bad);
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

absl::Status Cache(const CacheFlags& flags) {
  TANDEM_ASSIGN_OR_RETURN(const Data data, DataOf(flags));
  const std::string named = flags.out.empty() ? data.cache() : flags.out;
  if (named.empty()) {
    return absl::InvalidArgumentError(
        "the job has no data.cache, expected a folder for the rows; hint: --out DIR");
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string folder,
                          data::CacheFolder(flags.out.empty() ? "data.cache" : "--out", named));
  TANDEM_RETURN_IF_ERROR(MakeFolder(folder));
  // Two commands at once would write the same temporary files. The later one finds valid caches.
  const OwnedFd lock(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  while (lock.valid() && flock(lock.get(), LOCK_EX) != 0 && errno == EINTR) {
  }
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> files, data::FilesOfRows(data));
  std::string negative;
  for (const std::string& file : files) {
    const absl::Time begin = MonotonicNow();
    TANDEM_ASSIGN_OR_RETURN(const data::CacheReport report,
                            data::MakeCache(data, file, folder, flags.zstd_level, negative));
    Print(file, report, absl::ToDoubleSeconds(MonotonicNow() - begin));
    if (negative.empty()) negative = report.negative;
  }
  if (data.cache() == named) return absl::OkStatus();
  std::printf("runs read it with --set 'data.cache=\"%s\"'\n", named.c_str());
  return absl::OkStatus();
}

}  // namespace

void AddCache(CLI::App* app, CacheFlags* flags) {
  CLI::App* const command = app->add_subcommand(
      "cache", "Parse the files of a job once, for faster runs (docs/CACHE.md)");
  command->add_option("job", flags->job, "Job file (protobuf text)")->required();
  node::AddSetFlag(command, &flags->set);
  command->add_option("--out", flags->out,
                      "Folder for the rows, a file for each data file; without: data.cache");
  command
      ->add_option("--zstd", flags->zstd_level,
                   "Pack the rows by zstd at this level, 1 to 19; without: not packed")
      ->check(CLI::Range(1, kMaxZstdLevel));
}

int CacheCommand(const CacheFlags& flags) {
  const absl::Status done = Cache(flags);
  const int code = node::Finish("tandem cache", done);
  const bool full = absl::IsResourceExhausted(done) || absl::IsUnavailable(done);
  return done.ok() || full ? code : node::kExitBadInput;
}

}  // namespace tandem::cli
