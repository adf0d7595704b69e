// Reads whole files, and writes files so that a crash at any moment leaves either the old file or
// the new one. A file that is in place when a call returns OK survives a power failure.
//
// Output files that users name are replaced in the same way if they are regular files, and
// otherwise written into.
//
// Errors name the file and the system's reason: RESOURCE_EXHAUSTED when the disk is full (with the
// mark of no_room.h), NOT_FOUND, PERMISSION_DENIED, otherwise UNAVAILABLE. Thread safety: any
// thread; one writer for each path.
#ifndef TANDEM_BASE_FILE_H_
#define TANDEM_BASE_FILE_H_

#include <cstdint>
#include <functional>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/owned_fd.h"

namespace tandem {

// Takes the bytes of a file, piece by piece, and returns an error if it cannot.
using ByteSink = std::function<absl::Status(absl::string_view bytes)>;

absl::StatusOr<std::string> ReadWholeFile(const std::string& path);
// The bytes [offset, offset + bytes) of a file. DATA_LOSS if the file ends before.
absl::StatusOr<std::string> ReadFilePart(const std::string& path, uint64_t offset, uint64_t bytes);

// Afterwards `path` has either the whole new file or its old contents. Until the new file is
// complete, it is at PATH.tmp. After an error the new file may be at `path`, but may not survive a
// power failure.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes);
// The same for contents that are not in memory as a whole: `contents` passes them to its sink. An
// error of `contents` is returned, and leaves the old file.
absl::Status WriteFileAtomically(const std::string& path,
                                 const std::function<absl::Status(ByteSink)>& contents);

// The same for a file that a caller writes step by step. The file is at PATH.tmp until Finish. The
// destructor removes a file that was not finished. One thread at a time.
class NewFile {
 public:
  static absl::StatusOr<NewFile> Create(const std::string& path);
  NewFile(NewFile&&) = default;
  NewFile& operator=(NewFile&&) = delete;
  ~NewFile();

  absl::Status Append(absl::string_view bytes);
  // Flushes the file and moves it to its path. The caller then calls FlushFolder, once for all new
  // files of a folder; before that call a power failure may take the file away again.
  absl::Status Finish();

 private:
  NewFile(std::string path, OwnedFd file) : path_(std::move(path)), file_(std::move(file)) {}
  std::string temporary() const { return path_ + ".tmp"; }

  std::string path_;
  OwnedFd file_;  // invalid after Finish
  uint64_t bytes_ = 0;
};
// Flushes a folder: the names in it survive a power failure.
absl::Status FlushFolder(const std::string& folder);

// The last step of a writer that has made the file `temporary` piece by piece: moves it to `path`
// with the same guarantee. Requires: `temporary` is closed and in the folder of `path`. Afterwards
// `temporary` is gone, also after an error.
absl::Status PutInPlace(const std::string& temporary, const std::string& path);

// How to write a file that the user names, such as --out of `tandem predict`.
struct OutputPlace {
  std::string path;  // where the links of the name end; the file need not exist
  // The descriptor of this process that the name means (/dev/stdout, /dev/fd/3); -1: none.
  int fd = -1;
  // True: a complete new file replaces the old one, if there is one.
  bool replaced = false;
};
// A regular file is replaced, unless it has other names, too, or is not writable. A device, a FIFO,
// a descriptor or any other file is written into, as cp and tee do.
OutputPlace FindOutput(const std::string& path);

// Writes to a file that a user has named (FindOutput). A replaced file keeps its mode, its owner
// and the links to it. If no new file can be made beside the old one or can replace it, the old one
// is overwritten. A regular file is on the disk when the call returns OK. The call waits for the
// reader of a FIFO.
absl::Status WriteOutput(const std::string& path, absl::string_view bytes);

// The bytes that this user may still write on the disk of this folder, as far as the file system
// knows; quotas are not counted. -1: not known.
int64_t FreeBytes(const std::string& folder);

// Makes the folder and its parents. A folder that exists already is no error.
absl::Status MakeFolder(const std::string& path);

// Makes a new folder that only this user can enter, PREFIX-XXXXXX in the system's folder for
// temporary files, and returns its path. PERMISSION_DENIED.
absl::StatusOr<std::string> MakeTemporaryFolder(absl::string_view prefix);

// Checks a folder with a fixed name in a place where other users can make folders. OK: only this
// user can have put files into it. NOT_FOUND. PERMISSION_DENIED: a link, no folder, a folder of
// another user, or one that other users may enter.
absl::Status CheckPrivateFolder(const std::string& path);

// Says why a folder cannot be made: the part of the path that is a broken link or not a folder;
// otherwise `error`.
std::string WhyNoFolder(const std::string& path, const std::error_code& error);

}  // namespace tandem

#endif  // TANDEM_BASE_FILE_H_
