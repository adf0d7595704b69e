#include "cli/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "base/status_macros.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kLock[] = "lock";
constexpr char kModel[] = "model";
// Files that a run writes, and that the next run in the same folder removes.
constexpr const char* kResults[] = {"summary.json", "metrics.jsonl", "address",
                                    "http",         "bad_rows.txt",  "collectives",
                                    "run",          "script.json",   kStartFile};
// Files that the next run replaces.
constexpr const char* kReplaced[] = {kLock,  "job.textproto", "logs",
                                     kModel, "token",         "http_password"};

std::string PathIn(const std::string& folder, absl::string_view name) {
  return absl::StrCat(folder, "/", name);
}

constexpr char kProcess[] = "process ";

// "process 123 on HOST since ", and then the time: "2026-01-31 14:25:01".
std::string HolderPrefix(pid_t pid) {
  char host[256] = "";
  (void)gethostname(host, sizeof host - 1);
  return absl::StrCat(kProcess, pid, " on ", host, " since ");
}
std::string Holder(pid_t pid) {
  return absl::StrCat(HolderPrefix(pid),
                      absl::FormatTime("%Y-%m-%d %H:%M:%S", absl::Now(), absl::LocalTimeZone()));
}

// The text of the lock file, which names the holder.
std::string HolderOf(const std::string& folder) {
  std::ifstream file(PathIn(folder, kLock));
  std::string line;
  std::getline(file, line);
  return line;
}

absl::Status InUse(const std::string& folder) {
  const std::string holder = HolderOf(folder);
  return absl::FailedPreconditionError(
      absl::StrCat("--out ", folder, ": another run writes into it (",
                   holder.empty() ? "it has only begun" : holder,
                   "); hint: name another folder, or wait for its end"));
}

bool IsOurParents(const std::string& folder) {
  return absl::StartsWith(HolderOf(folder), HolderPrefix(getppid()));
}

// Whether a run has written into the folder. Its lock shows this, or (older versions) its job file.
bool IsOfARun(const std::string& folder) {
  if (absl::StartsWith(HolderOf(folder), kProcess)) return true;
  std::ifstream job(PathIn(folder, "job.textproto"));
  std::string line;
  std::getline(job, line);
  return line == "# Every default filled in.";
}

// A run replaces the files of earlier runs. If no run has used the folder, files with the same
// names belong to the user, for example because the folder contains their sources. Refuse to
// replace these.
absl::Status CheckForeign(const std::string& folder) {
  if (IsOfARun(folder)) return absl::OkStatus();
  std::vector<const char*> names(std::begin(kResults), std::end(kResults));
  names.insert(names.end(), std::begin(kReplaced), std::end(kReplaced));
  for (const char* name : names) {
    std::error_code error;
    if (!fs::exists(PathIn(folder, name), error)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("--out ", folder, ": there is a ", name,
                     " that no run has left; hint: name a folder for runs alone"));
  }
  return absl::OkStatus();
}

// Whether the summary is of a failed run, whose files (except a model) may be replaced.
bool SaysOfAFailure(const std::string& summary) {
  const absl::StatusOr<std::string> text = ReadWholeFile(summary);
  if (!text.ok()) return false;
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  return json.is_object() && json.contains("failed");
}

absl::Status CheckResults(const std::string& folder) {
  for (const char* result : {"summary.json", "model/LATEST"}) {
    std::error_code error;
    if (!fs::exists(PathIn(folder, result), error)) continue;
    if (result == absl::string_view("summary.json") && SaysOfAFailure(PathIn(folder, result))) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("--out ", folder, ": an earlier run has left ", result,
                     " there; hint: name another folder, or say --overwrite to lose what it left"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string NewFolderName(absl::string_view name) {
  std::string safe(name);
  std::replace_if(
      safe.begin(), safe.end(),
      [](unsigned char c) { return !absl::ascii_isalnum(c) && c != '_' && c != '-'; }, '_');
  // The process id keeps the folders of runs apart that start in the same second.
  return absl::StrCat("out/", safe, "-",
                      absl::FormatTime("%Y%m%d-%H%M%S", absl::Now(), absl::LocalTimeZone()), "-",
                      getpid());
}

absl::Status OutputFolder::Check(const std::string& path, bool overwrite) {
  if (path.empty()) {
    return absl::InvalidArgumentError(
        "--out: an empty name; hint: leave --out out, and a folder "
        "under out/ is made");
  }
  // Open for writing, because an exclusive lock on NFS requires it.
  const int fd = open(PathIn(path, kLock).c_str(), O_RDWR | O_CLOEXEC);
  if (fd >= 0) {
    const bool free = flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
    close(fd);
    if (!free) return IsOurParents(path) ? absl::OkStatus() : InUse(path);
  }
  TANDEM_RETURN_IF_ERROR(CheckForeign(path));
  return overwrite ? absl::OkStatus() : CheckResults(path);
}

absl::StatusOr<OutputFolder> OutputFolder::Claim(const std::string& path, bool overwrite) {
  TANDEM_RETURN_IF_ERROR(Check(path, overwrite));
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat("--out ", path, ": cannot be made: ", WhyNoFolder(path, error)));
  }
  const std::string lock = PathIn(path, kLock);
  const int fd = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("--out ", path, ": cannot be written: ", std::strerror(errno)));
  }
  OutputFolder folder(path, fd);
  if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return absl::PermissionDeniedError(
          absl::StrCat("--out ", path, ": cannot be locked: ", std::strerror(errno),
                       "; hint: name a folder of another file system"));
    }
    if (!IsOurParents(path)) return InUse(path);
    close(std::exchange(folder.fd_, -1));
    return folder;
  }
  const std::string holder = Holder(getpid()) + "\n";
  if (ftruncate(fd, 0) != 0 || write(fd, holder.data(), holder.size()) < 0) {
    return absl::PermissionDeniedError(
        absl::StrCat("--out ", path, ": cannot be written: ", std::strerror(errno)));
  }
  return folder;
}

void OutputFolder::Clear(bool keep_model) const {
  std::error_code ignored;
  for (const char* name : kResults) fs::remove_all(PathIn(path_, name), ignored);
  if (!keep_model) fs::remove_all(PathIn(path_, kModel), ignored);
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    const std::string name = entry.path().filename().string();
    const bool trace = absl::StartsWith(name, "trace-") && absl::EndsWith(name, ".json");
    const bool record = absl::StartsWith(name, "server-") &&
                        (absl::EndsWith(name, ".updates") || absl::EndsWith(name, ".order"));
    if (trace || record) fs::remove(entry.path(), ignored);
  }
}

void OutputFolder::ClearForResume() const {
  std::error_code ignored;
  for (const char* name : {"summary.json", "address", "http"})
    fs::remove(PathIn(path_, name), ignored);
}

OutputFolder::OutputFolder(OutputFolder&& other) noexcept
    : path_(std::move(other.path_)), fd_(std::exchange(other.fd_, -1)) {}

OutputFolder::~OutputFolder() {
  if (fd_ >= 0) close(fd_);
}

bool IsInside(const std::string& path, const std::string& folder) {
  if (path.empty()) return false;
  std::error_code error;
  const fs::path inner = fs::weakly_canonical(path, error);
  const fs::path outer = fs::weakly_canonical(folder, error);
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace tandem::cli
