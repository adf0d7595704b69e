#include "scheduler/observe/output_files.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/file.h"

namespace tandem::scheduler {
namespace {

absl::Status FileError(absl::string_view what, const std::string& path, int error) {
  const std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(text)
                                            : absl::UnavailableError(text);
}

}  // namespace

namespace {

// Removes an unfinished last line. The process that wrote the file may have been killed.
void CutLastLine(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (!text.ok() || text->empty() || text->back() == '\n') return;
  std::error_code ignored;
  std::filesystem::resize_file(path, text->rfind('\n') + 1, ignored);  // npos + 1 is 0
}

}  // namespace

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Create(const std::string& dir,
                                                           const std::string& name, bool append) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return FileError("cannot make", dir, error.value());
  const std::string path = absl::StrCat(dir, "/", name);
  if (append) CutLastLine(path);
  std::FILE* const file = std::fopen(path.c_str(), append ? "ae" : "we");
  if (file == nullptr) return FileError("cannot write", path, errno);
  return std::unique_ptr<LineFile>(new LineFile(file, path));
}

LineFile::~LineFile() { std::fclose(file_); }

absl::Status LineFile::Append(absl::string_view line) {
  const std::string text = absl::StrCat(torn_ ? "\n" : "", line, "\n");
  const ssize_t bytes = write(fileno(file_), text.data(), text.size());
  if (bytes == static_cast<ssize_t>(text.size())) {
    torn_ = false;
    return absl::OkStatus();
  }
  torn_ = torn_ || bytes > 0;
  return FileError("cannot write", path_, bytes < 0 ? errno : ENOSPC);
}

}  // namespace tandem::scheduler
