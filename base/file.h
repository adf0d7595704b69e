// Whole files: read at once, or put in place at once so that a crash at any moment leaves the old
// one or the new one. What is in place when a call returns OK survives a loss of power.
//
// Output files that users name are replaced in the same way where they are regular files, and else
// written into.
//
// Errors name the file and what the system said: RESOURCE_EXHAUSTED when the disk is full,
// NOT_FOUND, PERMISSION_DENIED, else UNAVAILABLE. Any thread; one writer for each path.
#ifndef TANDEM_BASE_FILE_H_
#define TANDEM_BASE_FILE_H_

#include <string>
#include <system_error>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tandem {

absl::StatusOr<std::string> ReadWholeFile(const std::string& path);

// Either the whole file is at `path` afterwards, or what was there before. Until it is complete, it
// lies at PATH.tmp. After an error the new file may be at `path`, and only not be known to survive a
// loss of power.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view bytes);

// The last act of a writer that has made the file `temporary` piece by piece: puts it at `path`
// likewise. Requires: it is closed, and in the folder of `path`. It is gone afterwards, after an
// error as well.
absl::Status PutInPlace(const std::string& temporary, const std::string& path);

// OutputPlace says how to write a file that the user names, such as --out of `tandem predict`.
struct OutputPlace {
  std::string path;  // where the links of the name end; the file need not exist
  int fd =
      -1;  // the descriptor of this process that the name stands for (/dev/stdout, /dev/fd/3); -1: none
  bool replaced =
      false;  // a new file takes the place of the old one when it is complete, if there is one
};
// A regular file is replaced, unless it has other names, too, or may not be written. A device, a FIFO, a
// descriptor and any other file is written into, as by cp and tee.
OutputPlace FindOutput(const std::string& path);

// Writes to what a user has named (FindOutput). A file that is replaced keeps its mode, its owner and the
// links to it; where no new file can be made beside the old one or take its place, the old one is
// overwritten. A regular file is on the disk when the call returns OK. Waits for the reader of a FIFO.
absl::Status WriteOutput(const std::string& path, absl::string_view bytes);

// Makes the folder and those above it. One that is there already is no error.
absl::Status MakeFolder(const std::string& path);

// Why it cannot be made: the part of the path that is a link to nowhere, or no folder; else `error`.
std::string WhyNoFolder(const std::string& path, const std::error_code& error);

}  // namespace tandem

#endif  // TANDEM_BASE_FILE_H_
