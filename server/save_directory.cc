#include "server/save_directory.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "server/range_file.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;
constexpr char kSuffix[] = ".range";
constexpr char kDenseFile[] = "dense.part";
constexpr char kLatest[] = "LATEST";

// "emb.0000000000000000-1999999999999999.range"; the end is exclusive, 0 = 2^64.
std::string FileName(absl::string_view table, uint64_t begin, uint64_t end) {
  return absl::StrFormat("%s.%016x-%016x%s", table, begin, end, kSuffix);
}

struct RangeFileName {
  std::string path;
  uint64_t begin = 0, end = 0;
};

bool ParseHex(absl::string_view text, uint64_t* value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), *value, 16);
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

absl::Status MakeDirectory(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  if (!error) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(directory, ": cannot be made: ", error.message()));
}

// The files of one table in order of position; refuses gaps and overlaps.
absl::StatusOr<std::vector<RangeFileName>> FilesOf(const std::string& save,
                                                   const std::string& table) {
  std::vector<RangeFileName> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(save, error)) {
    const std::string name = entry.path().filename().string();
    absl::string_view rest = name;
    RangeFileName file;
    if (!absl::ConsumePrefix(&rest, absl::StrCat(table, ".")) ||
        !absl::ConsumeSuffix(&rest, kSuffix) || rest.size() != 33 ||
        !ParseHex(rest.substr(0, 16), &file.begin) || !ParseHex(rest.substr(17), &file.end)) {
      continue;
    }
    file.path = entry.path().string();
    files.push_back(file);
  }
  if (error) return absl::NotFoundError(absl::StrCat(save, ": ", error.message()));
  std::sort(files.begin(), files.end(),
            [](const auto& a, const auto& b) { return a.begin < b.begin; });
  uint64_t at = 0;
  for (const RangeFileName& file : files) {
    if (file.begin != at) {
      return absl::DataLossError(absl::StrFormat(
          "%s: begins at position %#x, want %#x: a file of table %s is missing or of another save",
          file.path, file.begin, at, table));
    }
    at = file.end;
  }
  if (files.empty() || at != 0) {
    return absl::NotFoundError(absl::StrFormat(
        "%s: no file of table %s for positions from %#x: is this a complete save of this model?",
        save, table, at));
  }
  return files;
}

bool Overlap(const RangeFileName& file, uint64_t begin, uint64_t end) {
  const uint64_t file_last = file.end - 1, last = end - 1;  // 0 - 1 is the last position
  return file.begin <= last && begin <= file_last;
}

}  // namespace

absl::Status SaveRanges(const std::string& directory, const std::vector<Range*>& ranges) {
  TANDEM_RETURN_IF_ERROR(MakeDirectory(directory));
  for (const Range* range : ranges) {
    if (range->table().plan->dense) continue;  // in the dense file, with the other dense parameters
    const RangeImage image = range->Image();
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(
        absl::StrCat(directory, "/", FileName(image.table, image.begin, image.end)),
        EncodeRange(image)));
  }
  return absl::OkStatus();
}

absl::Status LoadRanges(const std::string& save, const std::vector<Range*>& ranges) {
  TANDEM_ASSIGN_OR_RETURN(const std::string directory, ResolveSave(save));
  std::map<std::string, std::vector<RangeFileName>> files;
  std::map<std::string, std::vector<Range*>> readers;  // by file
  for (Range* range : ranges) {
    if (range->table().plan->dense) continue;
    const std::string& table = range->table().plan->name;
    if (files.count(table) == 0) {
      TANDEM_ASSIGN_OR_RETURN(files[table], FilesOf(directory, table));
    }
    for (const RangeFileName& file : files[table]) {
      if (Overlap(file, range->begin(), range->end())) readers[file.path].push_back(range);
    }
  }
  for (const auto& [path, wanted] : readers) {
    TANDEM_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(path));
    const auto image = DecodeRange({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    if (!image.ok()) {
      return absl::Status(image.status().code(),
                          absl::StrCat(path, ": ", image.status().message()));
    }
    for (Range* range : wanted) {
      if (const absl::Status loaded =
              LoadInto(*image, range->begin(), range->end(), &range->store());
          !loaded.ok()) {
        return absl::Status(loaded.code(), absl::StrCat(path, ": ", loaded.message()));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status SaveDenseFile(const std::string& directory, absl::string_view bytes) {
  TANDEM_RETURN_IF_ERROR(MakeDirectory(directory));
  return WriteFileAtomically(absl::StrCat(directory, "/", kDenseFile), bytes);
}

absl::StatusOr<std::string> DenseFilePath(const std::string& save) {
  TANDEM_ASSIGN_OR_RETURN(const std::string directory, ResolveSave(save));
  return absl::StrCat(directory, "/", kDenseFile);
}

absl::StatusOr<std::string> LoadDenseFile(const std::string& save) {
  TANDEM_ASSIGN_OR_RETURN(const std::string path, DenseFilePath(save));
  return ReadWholeFile(path);
}

absl::Status CommitSave(const std::string& directory) {
  const fs::path path(directory);
  const fs::path parent = path.parent_path();
  TANDEM_RETURN_IF_ERROR(
      WriteFileAtomically((parent / kLatest).string(), path.filename().string() + "\n"));
  std::error_code ignored;  // an old save that cannot be removed does no harm
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && absl::StartsWith(name, "step-") && entry.path() != path) {
      fs::remove_all(entry.path(), ignored);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ResolveSave(const std::string& path) {
  const std::string latest = absl::StrCat(path, "/", kLatest);
  std::error_code error;
  if (!fs::exists(latest, error)) {
    if (fs::exists(absl::StrCat(path, "/", kDenseFile), error)) return path;
    return absl::NotFoundError(absl::StrCat(path, ": no ", kLatest, " and no ", kDenseFile,
                                            ": is this the model/ folder of a finished run?"));
  }
  TANDEM_ASSIGN_OR_RETURN(const std::string name, ReadWholeFile(latest));
  return absl::StrCat(path, "/", absl::StripAsciiWhitespace(name));
}

}  // namespace tandem
