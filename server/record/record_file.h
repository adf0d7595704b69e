// A file of fixed-size records. Its head names their layout (update_record.h, order_file.h).
//
// Thread safety: none needed; one thread.
#ifndef TANDEM_SERVER_RECORD_RECORD_FILE_H_
#define TANDEM_SERVER_RECORD_RECORD_FILE_H_

#include <fcntl.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/owned_fd.h"
#include "base/status_macros.h"

namespace tandem::server {

// Before Open, the file accepts records and discards them.
template <typename Record, typename Head>
class RecordFile {
 public:
  // `what` names the records in error messages.
  explicit RecordFile(std::string what) : what_(std::move(what)) {}
  ~RecordFile() {
    if (file_ != nullptr) std::fclose(file_);
  }
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  // Keeps at most the first `keep` bytes of the file, and appends to them; 0: the file begins anew.
  // A last record that is not whole is cut off, because the process that wrote it may have been
  // killed.
  absl::Status Open(const std::string& path, uint64_t keep) {
    path_ = path;
    std::error_code error;
    const uint64_t bytes = std::filesystem::file_size(path, error);
    const bool append = keep > 0 && !error && bytes >= sizeof(Head);
    bytes_ = sizeof(Head);
    if (append) {
      TANDEM_RETURN_IF_ERROR(CheckHead());
      const uint64_t kept = std::max<uint64_t>(std::min(bytes, keep), sizeof(Head));
      bytes_ = kept - (kept - sizeof(Head)) % sizeof(Record);
      std::filesystem::resize_file(path, bytes_, error);
      if (error) return Error("cannot be cut");
    }
    file_ = std::fopen(path.c_str(), append ? "abe" : "wbe");
    if (file_ == nullptr) return Error("cannot be opened");
    const Head head;
    if (append || std::fwrite(&head, sizeof head, 1, file_) == 1) return absl::OkStatus();
    return Error("cannot be written: disk full?");
  }
  absl::Status Append(absl::Span<const Record> records) {
    if (file_ == nullptr || records.empty()) return absl::OkStatus();
    const size_t written = std::fwrite(records.data(), sizeof(Record), records.size(), file_);
    bytes_ += written * sizeof(Record);
    return written == records.size() ? absl::OkStatus() : Error("cannot be written: disk full?");
  }
  absl::Status Flush() {
    return file_ == nullptr || std::fflush(file_) == 0 ? absl::OkStatus()
                                                       : Error("cannot be written: disk full?");
  }
  // A descriptor of the file, for fsync(2) by another thread; -1 before Open. The caller owns it.
  OwnedFd Descriptor() const {
    return OwnedFd(file_ == nullptr ? -1 : fcntl(fileno(file_), F_DUPFD_CLOEXEC, 0));
  }
  // The length of the file after Flush; 0 before Open.
  uint64_t bytes() const { return bytes_; }

 private:
  absl::Status CheckHead() const {
    Head head;
    std::ifstream file(path_, std::ios::binary);
    if (file.read(reinterpret_cast<char*>(&head), sizeof head) && head.IsOurs()) {
      return absl::OkStatus();
    }
    return absl::FailedPreconditionError(
        absl::StrCat(what_, " ", path_,
                     ": has another layout than this version writes; hint: move the file away"));
  }
  absl::Status Error(const char* why) const {
    return absl::ResourceExhaustedError(absl::StrCat(what_, " ", path_, ": ", why));
  }

  const std::string what_;
  std::string path_;
  std::FILE* file_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_RECORD_RECORD_FILE_H_
