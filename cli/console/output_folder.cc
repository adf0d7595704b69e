#include "cli/console/output_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
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
#include "base/owned_fd.h"
#include "base/status_macros.h"
#include "server/checkpoint/checkpoint_directory.h"

namespace tandem::cli {
namespace {

namespace fs = std::filesystem;

constexpr char kLock[] = "lock";
constexpr char kModel[] = "model";
// Files that a run writes, and that the next run in the same folder removes.
constexpr const char* kResults[] = {"summary.json", "metrics.jsonl", "address", "http",
                                    "bad_rows.txt", "collectives",   "run",     "script.json",
                                    kStartFile,     "counters.json"};
// Files that the next run replaces.
constexpr const char* kReplaced[] = {kLock,  "job.textproto", "logs",
                                     kModel, "token",         "http_password"};

std::string PathIn(const std::string& folder, absl::string_view name) {
  return absl::StrCat(folder, "/", name);
}

constexpr int kTriesToLock = 100;
constexpr absl::Duration kBetweenTries = absl::Milliseconds(1);
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

absl::Status CannotWrite(const std::string& folder, int error) {
  const std::string text =
      absl::StrCat("--out ", folder, ": cannot be written: ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(text)
                                            : absl::PermissionDeniedError(text);
}

// Writes the name of this process, as the holder, to the lock file.
absl::Status WriteHolder(int fd, const std::string& folder) {
  const std::string holder = Holder(getpid()) + "\n";
  const bool written = ftruncate(fd, 0) == 0 && pwrite(fd, holder.data(), holder.size(), 0) > 0;
  return written ? absl::OkStatus() : CannotWrite(folder, errno);
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

absl::Status CheckResults(const std::string& folder) {
  for (const char* result : {"summary.json", "model/LATEST"}) {
    std::error_code error;
    if (!fs::exists(PathIn(folder, result), error)) continue;
    // The files of a failed run, except a model, may be replaced.
    if (result == absl::string_view("summary.json") && ReadSummary(folder).contains("failed")) {
      continue;
    }
    return absl::FailedPreconditionError(
        absl::StrCat("--out ", folder, ": an earlier run has left ", result,
                     " there; hint: name another folder, or say --overwrite to lose what it left"));
  }
  return absl::OkStatus();
}

// 0, or the error. A process in IsHeld has the lock for a moment, which is no reason to fail.
int Lock(int fd, const std::string& folder) {
  for (int tries_left = kTriesToLock;; --tries_left) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return 0;
    const int error = errno;
    if (error != EWOULDBLOCK || tries_left == 0 || OutputFolder::IsHeld(folder)) return error;
    absl::SleepFor(kBetweenTries);
  }
}

// Root may have made the folder or the link, but a folder such as /tmp is refused, too.
absl::Status CheckOwner(const std::string& folder) {
  struct stat link = {}, info = {};
  if (lstat(folder.c_str(), &link) != 0 || stat(folder.c_str(), &info) != 0) {
    return absl::OkStatus();  // Claim makes the folder, or says what is wrong with it
  }
  const auto refused = [&folder](absl::string_view what, uid_t user, absl::string_view such_as) {
    return absl::PermissionDeniedError(absl::StrCat("--out ", folder, ": ", what, " user ", user,
                                                    ", this process belongs to user ", geteuid(),
                                                    "; hint: name a folder of your own", such_as));
  };
  if (S_ISLNK(link.st_mode) && link.st_uid != geteuid() && link.st_uid != 0) {
    return refused("it is a link of", link.st_uid, "");
  }
  if (info.st_uid != geteuid() && (info.st_mode & S_IWOTH) != 0) {
    return refused("all users may write to it, and it belongs to", info.st_uid,
                   absl::StrCat(", such as ", folder, "/NAME"));
  }
  return absl::OkStatus();
}

}  // namespace

nlohmann::json ReadSummary(const std::string& folder) {
  const absl::StatusOr<std::string> text = ReadWholeFile(PathIn(folder, "summary.json"));
  if (!text.ok()) return nullptr;
  nlohmann::json summary = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  return summary.is_object() ? summary : nlohmann::json();
}

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
  TANDEM_RETURN_IF_ERROR(CheckOwner(path));
  if (IsHeld(path)) return IsOurParents(path) ? absl::OkStatus() : InUse(path);
  TANDEM_RETURN_IF_ERROR(CheckForeign(path));
  return overwrite ? absl::OkStatus() : CheckResults(path);
}

// A shared lock requires no more than reading, so other users may ask, too.
bool OutputFolder::IsHeld(const std::string& path) {
  const OwnedFd fd(open(PathIn(path, kLock).c_str(), O_RDONLY | O_CLOEXEC));
  return fd.valid() && flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

absl::StatusOr<OutputFolder> OutputFolder::Claim(const std::string& path, bool overwrite) {
  TANDEM_RETURN_IF_ERROR(Check(path, overwrite));
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat("--out ", path, ": cannot be made: ", WhyNoFolder(path, error)));
  }
  TANDEM_RETURN_IF_ERROR(CheckOwner(path));  // another user may have made it meanwhile
  const std::string lock = PathIn(path, kLock);
  // Open for writing, because an exclusive lock on NFS requires it.
  const int fd = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd < 0) return CannotWrite(path, errno);
  OutputFolder folder(path, fd);
  if (const int why = Lock(fd, path); why != 0) {
    if (why != EWOULDBLOCK) {
      return absl::PermissionDeniedError(
          absl::StrCat("--out ", path, ": cannot be locked: ", std::strerror(why),
                       "; hint: name a folder of another file system"));
    }
    if (!IsOurParents(path)) return InUse(path);
    close(std::exchange(folder.fd_, -1));
    return folder;
  }
  TANDEM_RETURN_IF_ERROR(folder.WriteInRoom([fd, &path] { return WriteHolder(fd, path); }));
  return folder;
}

absl::Status OutputFolder::WriteInRoom(const std::function<absl::Status()>& write) const {
  absl::Status written = write();
  if (!absl::IsResourceExhausted(written) || shared()) return written;
  server::RemoveIncompleteCheckpoints(PathIn(path_, kModel));
  return write();
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
