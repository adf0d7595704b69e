#include "base/file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/types/span.h"
#include "base/no_room.h"
#include "base/owned_fd.h"
#include "base/status_macros.h"

namespace tandem {
namespace {

absl::Status FileError(absl::string_view doing, const std::string& path, int error) {
  const std::string text = absl::StrCat(path, ": ", doing, ": ", std::strerror(error));
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return NoRoomError(text);
    case EFBIG:
      return absl::ResourceExhaustedError(text);
    case ENOENT:
      return absl::NotFoundError(text);
    case EACCES:
    case EPERM:
    case EROFS:
      return absl::PermissionDeniedError(text);
    default:
      return absl::UnavailableError(text);
  }
}

// `offset`: where in the file the bytes begin, for messages.
absl::Status WriteAll(int fd, const std::string& path, absl::string_view bytes, size_t offset = 0) {
  for (size_t done = 0; done < bytes.size();) {
    const ssize_t n = write(fd, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(absl::StrCat("write at offset ", offset + done), path, errno);
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

// Reads [offset, offset + bytes.size()) of an open file.
absl::Status ReadAt(int fd, const std::string& path, uint64_t offset, absl::Span<char> bytes) {
  for (size_t done = 0; done < bytes.size();) {
    const uint64_t at = offset + done;
    const ssize_t n = pread(fd, bytes.data() + done, bytes.size() - done, static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return FileError(absl::StrCat("read at offset ", at), path, errno);
    if (n == 0) {
      return absl::DataLossError(absl::StrCat(path, ": ends at offset ", at, " of ",
                                              offset + bytes.size(),
                                              ": it became shorter while being read"));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

// Opens a regular file for reading and sets its length.
absl::StatusOr<OwnedFd> OpenRegular(const std::string& path, uint64_t* bytes) {
  // Without O_NONBLOCK, open() of a FIFO waits for a writer.
  OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) return FileError("open", path, errno);
  struct stat info = {};
  if (fstat(file.get(), &info) != 0) return FileError("stat", path, errno);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(path + ": not a regular file");
  *bytes = static_cast<uint64_t>(info.st_size);
  return file;
}

// Waits until the bytes of an open output are on the disk. Some file systems have no fsync; an
// output there is as safe as it can be. Checkpoints use Flush, which refuses such a file system.
absl::Status FlushOpen(int fd, const std::string& path) {
  if (fsync(fd) == 0 || errno == EINVAL || errno == ENOSYS) return absl::OkStatus();
  return FileError("fsync", path, errno);
}

// Makes the temporary file `path` anew. Another user may have put a link there, which leads
// elsewhere. A process that was suspended may still write to an older file of that name. Only a
// pipe of this user stays, and gets the bytes.
absl::StatusOr<OwnedFd> OpenTemporary(const std::string& path) {
  constexpr int kMaxTries = 3;  // another process may make the same file
  for (int tries_left = kMaxTries;; --tries_left) {
    struct stat old = {};
    const bool there = lstat(path.c_str(), &old) == 0;
    const bool pipe = there && S_ISFIFO(old.st_mode) && old.st_uid == geteuid();
    if (there && !pipe) unlink(path.c_str());
    const int how = pipe ? O_NOFOLLOW : O_NOFOLLOW | O_CREAT | O_EXCL;
    OwnedFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC | how, 0644));
    if (file.get() >= 0) return file;
    if (errno != EEXIST || tries_left == 1) return FileError("open for writing", path, errno);
  }
}

absl::StatusOr<OwnedFd> OpenForWriting(const std::string& path) {
  OwnedFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOCTTY | O_CREAT | O_TRUNC, 0644));
  if (file.get() < 0) return FileError("open for writing", path, errno);
  return file;
}

// The bytes of a regular file are on the disk afterwards.
absl::Status Write(const std::string& path, absl::string_view bytes) {
  TANDEM_ASSIGN_OR_RETURN(OwnedFd file, OpenForWriting(path));
  TANDEM_RETURN_IF_ERROR(WriteAll(file.get(), path, bytes));
  struct stat info = {};
  if (fstat(file.get(), &info) == 0 && S_ISREG(info.st_mode)) {
    TANDEM_RETURN_IF_ERROR(FlushOpen(file.get(), path));
  }
  if (file.Close() != 0) return FileError("close", path, errno);
  return absl::OkStatus();
}

absl::Status Flush(const std::string& path, int flags) {
  OwnedFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | flags));
  if (file.get() < 0) return FileError("open", path, errno);
  if (fsync(file.get()) == 0) return absl::OkStatus();
  // Some file systems cannot flush a folder.
  const bool has_none = (errno == EINVAL || errno == ENOSYS) && (flags & O_DIRECTORY) != 0;
  return has_none ? absl::OkStatus() : FileError("fsync", path, errno);
}

// Flushes the folder, so that not only the bytes but also the new name survives a power failure.
absl::Status FlushFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  return FlushFolder(slash == std::string::npos ? "." : path.substr(0, std::max<size_t>(slash, 1)));
}

absl::Status Rename(const std::string& temporary, const std::string& path) {
  if (rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return FileError(absl::StrCat("rename from ", temporary), path, errno);
}

}  // namespace

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  uint64_t size = 0;
  TANDEM_ASSIGN_OR_RETURN(const OwnedFd file, OpenRegular(path, &size));
  std::string bytes(size, '\0');
  TANDEM_RETURN_IF_ERROR(ReadAt(file.get(), path, 0, absl::MakeSpan(bytes)));
  return bytes;
}

absl::StatusOr<std::string> ReadFilePart(const std::string& path, uint64_t offset, uint64_t bytes) {
  uint64_t size = 0;
  TANDEM_ASSIGN_OR_RETURN(const OwnedFd file, OpenRegular(path, &size));
  if (offset > size || bytes > size - offset) {
    return absl::DataLossError(absl::StrCat(path, ": has ", size, " bytes, expected ", bytes,
                                            " at offset ", offset, ": is it cut short?"));
  }
  std::string part(bytes, '\0');
  TANDEM_RETURN_IF_ERROR(ReadAt(file.get(), path, offset, absl::MakeSpan(part)));
  return part;
}

absl::Status FlushFolder(const std::string& folder) { return Flush(folder, O_DIRECTORY); }

// The order makes the replacement safe against power failures: first the bytes are on the disk,
// then the rename gives them their name, then the folder with the name is on the disk.
absl::Status PutInPlace(const std::string& temporary, const std::string& path) {
  absl::Status status = Flush(temporary, 0);
  if (status.ok()) status = Rename(temporary, path);
  if (!status.ok()) {
    unlink(temporary.c_str());
    return status;
  }
  return FlushFolderOf(path);
}

absl::StatusOr<NewFile> NewFile::Create(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(OwnedFd file, OpenTemporary(path + ".tmp"));
  return NewFile(path, std::move(file));
}

NewFile::~NewFile() {
  if (file_.valid()) unlink(temporary().c_str());
}

absl::Status NewFile::Append(absl::string_view bytes) {
  return WriteAll(file_.get(), temporary(), bytes, std::exchange(bytes_, bytes_ + bytes.size()));
}

// The order is that of PutInPlace.
absl::Status NewFile::Finish() {
  if (fsync(file_.get()) != 0) return FileError("fsync", temporary(), errno);
  absl::Status status =
      file_.Close() == 0 ? Rename(temporary(), path_) : FileError("close", temporary(), errno);
  if (!status.ok()) unlink(temporary().c_str());
  return status;
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes) {
  return WriteFileAtomically(path, [bytes](const ByteSink& sink) { return sink(bytes); });
}

absl::Status WriteFileAtomically(const std::string& path,
                                 const std::function<absl::Status(ByteSink)>& contents) {
  TANDEM_ASSIGN_OR_RETURN(NewFile file, NewFile::Create(path));
  TANDEM_RETURN_IF_ERROR(contents([&](absl::string_view bytes) { return file.Append(bytes); }));
  TANDEM_RETURN_IF_ERROR(file.Finish());
  return FlushFolderOf(path);
}

OutputPlace FindOutput(const std::string& path) {
  namespace fs = std::filesystem;
  constexpr int kMaxLinks = 40;  // as many as the kernel follows
  std::error_code error;
  const fs::path descriptors = fs::canonical("/proc/self/fd", error);
  OutputPlace place;
  place.path = path;
  for (int links = 0; links < kMaxLinks; ++links) {
    const fs::path at = place.path;
    const fs::path folder = fs::canonical(at.has_parent_path() ? at.parent_path() : ".", error);
    if (error) break;
    int fd = -1;
    if (folder == descriptors && absl::SimpleAtoi(at.filename().string(), &fd)) {
      place.fd = fd;
      return place;
    }
    const fs::path to = fs::read_symlink(at, error);
    if (error) break;
    place.path = (folder / to).string();
  }
  struct stat old = {};
  if (stat(place.path.c_str(), &old) != 0) {
    place.replaced = errno == ENOENT;
  } else {
    place.replaced = S_ISREG(old.st_mode) && old.st_nlink == 1 &&
                     faccessat(AT_FDCWD, place.path.c_str(), W_OK, AT_EACCESS) == 0;
  }
  return place;
}

namespace {

// Makes the file `temporary` with the mode and the owner of the file at `path`, if there is one.
// False: this is not possible, and `temporary` does not exist.
bool MakeReplacement(const std::string& temporary, const std::string& path, OwnedFd* file) {
  *file = OwnedFd(open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (file->get() < 0) return false;
  struct stat old = {}, now = {};
  if (stat(path.c_str(), &old) != 0) return true;
  if (fstat(file->get(), &now) == 0 &&
      ((old.st_uid == now.st_uid && old.st_gid == now.st_gid) ||
       fchown(file->get(), old.st_uid, old.st_gid) == 0) &&
      fchmod(file->get(), old.st_mode & 07777) == 0) {
    return true;
  }
  unlink(temporary.c_str());
  return false;
}

}  // namespace

// A replacement is written in the same order as by PutInPlace. If no replacement can be made, or it
// cannot take the old file's place, the old file is overwritten.
absl::Status WriteOutput(const std::string& path, absl::string_view bytes) {
  const OutputPlace place = FindOutput(path);
  if (place.fd >= 0) return WriteAll(place.fd, path, bytes);  // appends to what is there already
  if (!place.replaced) return Write(place.path, bytes);
  const std::string temporary = absl::StrCat(place.path, ".tmp", getpid());
  OwnedFd file;
  if (!MakeReplacement(temporary, place.path, &file)) {
    return Write(place.path, bytes);
  }
  absl::Status status = WriteAll(file.get(), path, bytes);
  if (status.ok()) status = FlushOpen(file.get(), path);  // open, as its mode may forbid to read it
  if (status.ok() && file.Close() != 0) status = FileError("close", path, errno);
  if (status.ok() && rename(temporary.c_str(), place.path.c_str()) == 0) {
    const absl::Status flushed = FlushFolderOf(place.path);
    // The folder cannot be opened.
    return absl::IsPermissionDenied(flushed) ? absl::OkStatus() : flushed;
  }
  const int error = errno;  // error of the rename, if `status` is OK
  unlink(temporary.c_str());
  if (!status.ok()) return status;
  // A mount point cannot be renamed over, nor another user's file in a folder like /tmp. Some file
  // systems cannot rename at all.
  const bool pinned = error == EBUSY || error == EXDEV || error == EPERM || error == EACCES ||
                      error == ENOSYS || error == EOPNOTSUPP || error == EINVAL;
  return pinned ? Write(place.path, bytes)
                : FileError(absl::StrCat("rename from ", temporary), path, error);
}

absl::StatusOr<std::string> MakeTemporaryFolder(absl::string_view prefix) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat(
        "no folder for temporary files: ", error.message(), "; hint: is TMPDIR a folder?"));
  }
  std::string folder = absl::StrCat(parent.string(), "/", prefix, "-XXXXXX");
  if (mkdtemp(folder.data()) != nullptr) return folder;
  return absl::PermissionDeniedError(
      absl::StrCat(folder, ": cannot be made: ", std::strerror(errno)));
}

absl::Status CheckPrivateFolder(const std::string& path) {
  struct stat info = {};
  if (lstat(path.c_str(), &info) != 0) return FileError("stat", path, errno);
  const char* const what = S_ISLNK(info.st_mode)   ? "is a link"
                           : S_ISDIR(info.st_mode) ? nullptr
                                                   : "is no folder";
  if (what != nullptr) return absl::PermissionDeniedError(absl::StrCat(path, ": ", what));
  if (info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(path, ": belongs to user ", info.st_uid,
                                                    ", this process to user ", geteuid()));
  }
  if ((info.st_mode & (S_IRWXG | S_IRWXO)) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrFormat("%s: other users have access to it (mode %03o), expected mode 700", path,
                      info.st_mode & 0777));
}

std::string WhyNoFolder(const std::string& path, const std::error_code& error) {
  namespace fs = std::filesystem;
  fs::path at;
  for (const fs::path& part : fs::path(path)) {
    at /= part;
    std::error_code ignored;
    const bool there = fs::exists(at, ignored);
    if (!there && fs::is_symlink(fs::symlink_status(at, ignored))) {
      return absl::StrCat(at.string(), " is a link to ", fs::read_symlink(at, ignored).string(),
                          ", which does not exist");
    }
    if (there && !fs::is_directory(at, ignored)) return at.string() + " is a file, not a folder";
  }
  return error.message();
}

int64_t FreeBytes(const std::string& folder) {
  struct statvfs disk = {};
  if (statvfs(folder.c_str(), &disk) != 0) return -1;
  return static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
}

absl::Status MakeFolder(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  std::vector<fs::path> missing;
  for (fs::path at = fs::path(path); !at.empty() && !fs::exists(at, error); at = at.parent_path()) {
    missing.push_back(at);
  }
  fs::create_directories(path, error);
  if (error.value() == ENOSPC || error.value() == EDQUOT) {
    return FileError("make the folder", path, error.value());
  }
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat(path, ": cannot be made: ", WhyNoFolder(path, error)));
  }
  for (const fs::path& made : missing) {
    const absl::Status flushed = FlushFolderOf(made.string());
    if (!flushed.ok()) return flushed;
  }
  return absl::OkStatus();
}

}  // namespace tandem
