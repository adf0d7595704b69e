#include "scheduler/output_files.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::scheduler {
namespace {

absl::Status FileError(absl::string_view what, const std::string& path, int error) {
  const std::string text = absl::StrCat(what, " ", path, ": ", std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? absl::ResourceExhaustedError(text)
                                            : absl::UnavailableError(text);
}

}  // namespace

absl::StatusOr<std::unique_ptr<LineFile>> LineFile::Create(const std::string& dir,
                                                           const std::string& name) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (error) return FileError("cannot make", dir, error.value());
  const std::string path = absl::StrCat(dir, "/", name);
  std::FILE* const file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return FileError("cannot write", path, errno);
  return std::unique_ptr<LineFile>(new LineFile(file, path));
}

LineFile::~LineFile() { std::fclose(file_); }

absl::Status LineFile::Append(absl::string_view line) {
  const bool written = std::fwrite(line.data(), 1, line.size(), file_) == line.size() &&
                       std::fputc('\n', file_) != EOF && std::fflush(file_) == 0;
  return written ? absl::OkStatus() : FileError("cannot write", path_, errno);
}

}  // namespace tandem::scheduler
