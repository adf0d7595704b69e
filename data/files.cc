#include "data/files.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "data/arrow_files.h"
#include "job/row_shape.h"

namespace tandem::data {
namespace {

bool IsNameChar(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The name of the variable at the start of `rest` (after the dollar sign). Returns how many
// characters the name and its braces take; 0 if there is no name.
size_t VariableName(absl::string_view rest, absl::string_view* name) {
  if (!rest.empty() && rest[0] == '{') {
    const size_t close = rest.find('}');
    if (close == absl::string_view::npos) return 0;
    *name = rest.substr(1, close - 1);
    return close + 1;
  }
  size_t n = 0;
  while (n < rest.size() && IsNameChar(rest[n])) ++n;
  *name = rest.substr(0, n);
  return n;
}

bool Exists(const std::string& path) {
  struct stat info;
  return !path.empty() && stat(path.c_str(), &info) == 0;
}

// The path up to the name of the file, including the slash; "" if the path is a bare name.
std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

bool IsHidden(const std::string& path) {
  const size_t name = FolderOf(path).size();
  return name < path.size() && path[name] == '_';
}

// Replaces $NAME and ${NAME} by the value of the environment variable.
absl::StatusOr<std::string> ExpandEnvironment(absl::string_view path) {
  std::string out;
  for (size_t i = 0; i < path.size(); ++i) {
    absl::string_view name;
    const size_t taken = path[i] == '$' ? VariableName(path.substr(i + 1), &name) : 0;
    if (taken == 0) {
      out += path[i];
      continue;
    }
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr || *value == '\0') {
      return absl::InvalidArgumentError(
          absl::StrCat("'", path, "' uses $", name, ", which is not set; hint: export ", name,
                       "=DIRECTORY; a dollar sign of the name itself is [$]"));
    }
    out += value;
    i += taken;
  }
  return out;
}

// Expands "~/data" to a path below the home folder, as a shell does.
absl::StatusOr<std::string> ExpandHome(const std::string& path) {
  if (path != "~" && !absl::StartsWith(path, "~/")) return path;
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home != '\0') return home + path.substr(1);
  return absl::InvalidArgumentError(
      absl::StrCat("'", path,
                   "' is below the home folder, but HOME is not set; hint: write "
                   "the whole path"));
}

// The files that match, in byte order. glob's own order follows the locale of the node and could
// differ between nodes.
std::vector<std::string> Matches(const std::string& path) {
  const std::string folder = FolderOf(path);
  const std::string pattern =
      Exists(folder) ? absl::StrReplaceAll(folder, {{"[", "[[]"}, {"*", "[*]"}, {"?", "[?]"}}) +
                           path.substr(folder.size())
                     : path;
  glob_t found{};
  std::vector<std::string> files;
  if (glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found) == 0) {
    files.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  std::sort(files.begin(), files.end());
  return files;
}

// The files behind an address, such as s3://bucket/day-*.parquet.
absl::StatusOr<std::vector<std::string>> AddressedFiles(absl::string_view knob,
                                                        absl::string_view pattern) {
  const auto refuse = [knob](const absl::Status& why) {
    return absl::Status(why.code(), absl::StrCat(knob, ": ", why.message()));
  };
  const absl::StatusOr<std::string> address = ExpandEnvironment(pattern);
  if (!address.ok()) return refuse(address.status());
  absl::StatusOr<std::vector<std::string>> files = ExpandAddress(*address);
  if (!files.ok()) return refuse(files.status());
  if (*files == std::vector<std::string>{*address}) {
    const absl::StatusOr<AddressInfo> info = InfoOfAddress(*address);
    if (!info.ok()) return refuse(info.status());
    if (info->bytes < 0) files->clear();
  }
  if (!files->empty()) return files;
  return absl::NotFoundError(
      absl::StrCat(knob, ": there is no file ", *address, "; hint: list the bucket or folder"));
}

absl::Status CheckRegular(absl::string_view knob, const std::string& file) {
  struct stat info;
  if (stat(file.c_str(), &info) != 0) {
    const int error = errno;
    return CannotOpen(absl::StrCat(knob, ": cannot read ", file), error);
  }
  if (S_ISDIR(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(
        knob, ": ", file, " is a directory, expected a file; hint: write ", file, "/*"));
  }
  if (!S_ISREG(info.st_mode)) {
    const char* const kind = S_ISFIFO(info.st_mode)   ? "a pipe (FIFO)"
                             : S_ISSOCK(info.st_mode) ? "a socket"
                                                      : "a device";
    return absl::InvalidArgumentError(
        absl::StrCat(knob, ": ", file, " is ", kind,
                     ", expected a regular file; hint: rows are read several times, so write them "
                     "to a file first"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CannotOpen(absl::string_view what, int error) {
  const std::string text = absl::StrCat(what, ": ", std::strerror(error));
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  const bool path = error == ENOENT || error == ENOTDIR || error == ENAMETOOLONG || error == ELOOP;
  return absl::NotFoundError(
      absl::StrCat(text, path ? "; hint: check the path in the job file" : ""));
}

absl::StatusOr<std::string> ExpandName(const std::string& name) {
  if (Exists(name)) return name;
  const std::string folder = FolderOf(name);
  if (!Exists(folder)) {
    TANDEM_ASSIGN_OR_RETURN(const std::string path, ExpandHome(name));
    return ExpandEnvironment(path);
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string rest, ExpandEnvironment(name.substr(folder.size())));
  return folder + rest;
}

absl::StatusOr<std::vector<std::string>> ExpandFiles(absl::string_view knob,
                                                     absl::string_view pattern,
                                                     std::vector<std::string>* hidden) {
  if (IsAddress(pattern)) return AddressedFiles(knob, pattern);
  absl::StatusOr<std::string> path = ExpandName(std::string(pattern));
  if (!path.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(knob, ": ", path.status().message()));
  }
  std::vector<std::string> files;
  if (path->find_first_of("*?[") == std::string::npos || Exists(*path)) {
    files.push_back(*path);
  } else {
    for (std::string& file : Matches(*path)) {
      const bool passed_over = IsHidden(file) && !IsHidden(*path);
      if (!passed_over) files.push_back(std::move(file));
      if (passed_over && hidden != nullptr) hidden->push_back(std::move(file));
    }
  }
  if (files.empty()) {
    const bool only_hidden = !Matches(*path).empty();
    return absl::NotFoundError(absl::StrCat(knob, ": no file matches '", *path, "'",
                                            only_hidden ? ", but for names that begin with _" : "",
                                            "; hint: list the directory and correct the pattern"));
  }
  for (const std::string& file : files) TANDEM_RETURN_IF_ERROR(CheckRegular(knob, file));
  return files;
}

bool IsNamed(const std::vector<std::string>& patterns, absl::string_view file) {
  return std::any_of(patterns.begin(), patterns.end(), [file](const std::string& pattern) {
    const absl::StatusOr<std::string> path = ExpandName(pattern);
    return path.ok() && *path == file;
  });
}

absl::StatusOr<std::vector<std::string>> ExpandAllFiles(absl::string_view knob,
                                                        const std::vector<std::string>& patterns,
                                                        std::vector<std::string>* hidden) {
  std::vector<std::string> all;
  for (const std::string& pattern : patterns) {
    TANDEM_ASSIGN_OR_RETURN(std::vector<std::string> files, ExpandFiles(knob, pattern, hidden));
    all.insert(all.end(), files.begin(), files.end());
  }
  return all;
}

absl::StatusOr<std::vector<std::string>> FirstFiles(const Data& data) {
  if (data.train().empty()) {
    return ExpandAllFiles("data.test", {data.test().begin(), data.test().end()});
  }
  return ExpandAllFiles("data.train", {data.train().begin(), data.train().end()});
}

absl::StatusOr<std::vector<std::string>> FilesOfRows(const Data& data) {
  std::vector<std::string> all;
  const auto add = [&all](absl::string_view knob, const auto& names) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const auto files, ExpandAllFiles(knob, {names.begin(), names.end()}));
    for (const std::string& file : files) {
      if (std::find(all.begin(), all.end(), file) == all.end()) all.push_back(file);
    }
    return absl::OkStatus();
  };
  TANDEM_RETURN_IF_ERROR(add("data.train", data.train()));
  TANDEM_RETURN_IF_ERROR(add("data.validation.files", data.validation().files()));
  TANDEM_RETURN_IF_ERROR(add("data.test", data.test()));
  return all;
}

FileStamp StampOf(const std::string& file) {
  if (IsAddress(file)) {
    const AddressInfo info = InfoOfAddress(file).value_or(AddressInfo());
    constexpr int64_t kSecond = 1'000'000'000;
    return {info.bytes, info.changed_ns / kSecond, info.changed_ns % kSecond, 0};
  }
  struct stat info;
  if (stat(file.c_str(), &info) != 0) return FileStamp();
  return {info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec, info.st_ino};
}

namespace {

uint64_t HashOf(const FileStamp& stamp) {
  const uint64_t written =
      HashCombine(static_cast<uint64_t>(stamp.written_s), static_cast<uint64_t>(stamp.written_ns));
  return HashCombine(written, stamp.inode);
}

// The address without the options behind "?", which may name another endpoint of the same files.
std::string WithoutOptions(const std::string& name) {
  return IsAddress(name) ? name.substr(0, name.find('?')) : name;
}

// A hash of all bytes of a short file, and of evenly spread pieces of a longer one. Never 0.
absl::StatusOr<uint64_t> SampleOf(const std::string& file, uint64_t bytes) {
  constexpr uint64_t kPiece = uint64_t{16} << 10, kPieces = 64;
  const bool all = bytes <= kPiece * kPieces;
  uint64_t hash = 0;
  for (uint64_t i = 0; i < (all ? 1 : kPieces); ++i) {
    const uint64_t begin = all ? 0 : (bytes - kPiece) * i / (kPieces - 1);
    TANDEM_ASSIGN_OR_RETURN(const std::string piece,
                            ReadFilePart(file, begin, all ? bytes : kPiece));
    hash = HashCombine(hash, HashName(piece));
  }
  return std::max<uint64_t>(hash, 1);
}

}  // namespace

absl::StatusOr<std::vector<DataFile>> TrainingFiles(const Data& data) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          ExpandAllFiles("data.train", {data.train().begin(), data.train().end()}));
  std::vector<DataFile> files;
  for (const std::string& name : names) {
    const FileStamp stamp = StampOf(name);
    if (stamp.bytes < 0) {
      return absl::NotFoundError(absl::StrCat("data.train: ", name, ": ", std::strerror(errno)));
    }
    DataFile& file = files.emplace_back();
    file.set_name(std::filesystem::path(WithoutOptions(name)).filename().string());
    file.set_bytes(stamp.bytes);
    if (!IsAddress(name)) {
      TANDEM_ASSIGN_OR_RETURN(const uint64_t sample,
                              SampleOf(name, static_cast<uint64_t>(stamp.bytes)));
      file.set_sample(sample);
    } else {  // its bytes cost time and money
      file.set_sample(std::max<uint64_t>(HashOf(stamp), 1));
    }
    file.set_stamp(HashOf(stamp));
  }
  return files;
}

absl::StatusOr<uint64_t> HashTrainingFiles(const Data& data) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          ExpandAllFiles("data.train", {data.train().begin(), data.train().end()}));
  uint64_t hash = 0;
  for (const std::string& name : names) {
    const FileStamp stamp = StampOf(name);
    hash = HashCombine(HashCombine(hash, static_cast<uint64_t>(stamp.bytes)), HashOf(stamp));
  }
  return names.empty() ? 0 : std::max<uint64_t>(hash, 1);
}

absl::Status CheckTrainingFilesUnchanged(uint64_t was, const Data& data) {
  if (was == 0) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const uint64_t is, HashTrainingFiles(data));
  if (is == was) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          ExpandAllFiles("data.train", {data.train().begin(), data.train().end()}));
  const auto last =
      std::max_element(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
        const FileStamp x = StampOf(a), y = StampOf(b);
        return std::tie(x.written_s, x.written_ns) < std::tie(y.written_s, y.written_ns);
      });
  return absl::FailedPreconditionError(absl::StrCat(
      "data.train: the files have changed since the run began; the one written last is ", *last,
      ", with ", StampOf(*last).bytes, " bytes now; hint: train on a copy that nobody writes to"));
}

absl::Status CheckSameFiles(const RunRecord& was, const Data& data,
                            std::vector<std::string>* warnings) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<DataFile> is, TrainingFiles(data));
  const auto text = [](const DataFile& file) {
    return absl::StrCat(file.name(), " of ", file.bytes(), " bytes");
  };
  const size_t before = static_cast<size_t>(was.train_size());
  for (size_t i = 0; i < std::max(is.size(), before); ++i) {
    const std::string then = i < before ? text(was.train(static_cast<int>(i))) : "nothing";
    const std::string now = i < is.size() ? text(is[i]) : "nothing";
    constexpr char kHint[] =
        "; hint: a resumed run needs its first training files; to train on other files, start a "
        "new run with --init-from";
    if (then != now) {
      return absl::FailedPreconditionError(absl::StrCat("data.train: file ", i, " was ", then,
                                                        " when the checkpoint was made, and is ",
                                                        now, " now", kHint));
    }
    const DataFile& file = was.train(static_cast<int>(i));
    if (file.sample() == 0) continue;  // of an earlier version
    if (file.sample() != is[i].sample()) {
      return absl::FailedPreconditionError(
          absl::StrCat("data.train: file ", i, ", ", now,
                       ", has other contents than when the run began", kHint));
    }
    if (file.stamp() != is[i].stamp() && warnings != nullptr) {
      warnings->push_back(absl::StrCat("data.train: file ", i, ", ", now,
                                       ", was written or copied since the run began; a sample of "
                                       "its bytes is the same; hint: check "
                                       "that the rows are the same"));
    }
  }
  return absl::OkStatus();
}

absl::Status AdoptDeal(const RunRecord& was, Data* data) {
  if (!job::HasRowsInLines(*data)) return absl::OkStatus();
  const Data::Deal dealt = was.blocks() ? Data::BLOCKS : Data::ROWS;
  if (data->deal() == Data::DEAL_UNSPECIFIED) data->set_deal(dealt);
  if (data->deal() == dealt) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "data.deal is ", Data::Deal_Name(data->deal()), ", but the run deals its rows by ",
      Data::Deal_Name(dealt), "; hint: data.deal: ", Data::Deal_Name(dealt)));
}

}  // namespace tandem::data
