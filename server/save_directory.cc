#include "server/save_directory.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "server/range_file.h"
#include "server/save_check.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
constexpr char kSuffix[] = ".range";
constexpr char kDenseFile[] = "dense.part";
constexpr char kManifest[] = "MANIFEST";
constexpr char kLatest[] = "LATEST";
// To open a save of a job that goes on saving: each try has to lose a race against a whole save.
constexpr int kMostTries = 32;

std::string PathIn(absl::string_view folder, absl::string_view name) {
  return absl::StrCat(folder, "/", name);
}

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// What lies in the folder, by name.
absl::StatusOr<std::vector<SavedFile>> FilesIn(const std::string& save) {
  std::vector<SavedFile> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(save, error)) {
    SavedFile file;
    file.name = entry.path().filename().string();
    if (file.name != kDenseFile && !absl::EndsWith(file.name, kSuffix)) continue;
    TANDEM_ASSIGN_OR_RETURN(const RangeFileEnds ends, ReadRangeFileEnds(entry.path().string()));
    file.table = ends.table;
    file.begin = ends.begin;
    file.end = ends.end;
    file.bytes = ends.bytes;
    file.checksum = ends.checksum;
    files.push_back(std::move(file));
  }
  if (error) return absl::NotFoundError(absl::StrCat(save, ": ", error.message()));
  std::sort(files.begin(), files.end(),
            [](const SavedFile& a, const SavedFile& b) { return a.name < b.name; });
  return files;
}

// The files of a table follow each other without gap or overlap, from position 0 to the end.
absl::Status CheckCover(const std::string& save, const std::vector<SavedFile>& files,
                        const std::string& table) {
  uint64_t at = 0;
  bool any = false;
  for (const SavedFile& file : files) {  // by name, so each table's are in order of position
    if (file.table != table || file.name == kDenseFile) continue;
    if ((any && at == 0) || file.begin != at) {
      return absl::DataLossError(
          absl::StrFormat("%s: begins at position %#x, want %#x: a file of table %s is missing or "
                          "was written twice",
                          PathIn(save, file.name), file.begin, at, table));
    }
    at = file.end;
    any = true;
  }
  if (any && at == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%s: no file of table %s for positions from %#x: do all servers reach this folder?", save,
      table, at));
}

bool IsDensePart(const SavedFile& file) { return file.name == kDenseFile; }

bool Overlap(const SavedFile& file, uint64_t begin, uint64_t end) {
  const uint64_t file_last = file.end - 1, last = end - 1;  // 0 - 1 is the last position
  return file.begin <= last && begin <= file_last;
}

// The folder of the save: `path` itself, or the one that its LATEST names.
absl::StatusOr<std::string> Resolve(const std::string& path) {
  std::error_code error;
  const std::string latest = PathIn(path, kLatest);
  if (fs::exists(latest, error)) {
    TANDEM_ASSIGN_OR_RETURN(const std::string name, ReadWholeFile(latest));
    return PathIn(path, absl::StripAsciiWhitespace(name));
  }
  if (fs::exists(PathIn(path, kManifest), error)) return path;
  return absl::NotFoundError(absl::StrCat(path, ": no ", kLatest, " and no ", kManifest,
                                          ": is this the model/ folder of a finished run?"));
}

// Cheap, and enough to refuse a damaged copy before anything is started; Read looks at the bytes.
absl::Status CheckLength(const std::string& path, uint64_t want) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) {
    return absl::NotFoundError(
        absl::StrCat(path, ": ", error.message(), "; the manifest lists it"));
  }
  if (bytes == want) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": has ", bytes, " bytes, the manifest says ", want,
                                          ": cut short, or of another save?"));
}

absl::Status CheckParameters(const std::vector<SavedParameter>& saved,
                             const std::vector<SavedParameter>& model) {
  for (size_t i = 0; i < std::max(saved.size(), model.size()); ++i) {
    const std::string have = i < saved.size() ? DebugString(saved[i]) : "none";
    const std::string want = i < model.size() ? DebugString(model[i]) : "none";
    if (have == want) continue;
    return absl::InvalidArgumentError(absl::StrCat("dense parameter ", i, " is ", have,
                                                   ", the model's is ", want,
                                                   ": is it of another model?"));
  }
  return absl::OkStatus();
}

// The slots of another optimizer mean nothing to this one: its own have first values.
void StartSlotsAfresh(const optim::RowOptimizer& optimizer, RangeImage* image) {
  if (image->optimizer == optimizer.name()) return;
  image->optimizer = optimizer.name();
  image->slots_per_row = optimizer.slots_per_row(image->dim);
  const auto slots = static_cast<size_t>(image->slots_per_row);
  image->slots.assign(image->keys.size() * slots, 0.0f);
  for (size_t i = 0; i < image->keys.size(); ++i) {
    optimizer.InitSlots(image->dim, absl::MakeSpan(image->slots).subspan(i * slots, slots));
  }
}

}  // namespace

absl::Status BeginSave(const std::string& save) {
  std::error_code error;
  fs::remove_all(save, error);
  if (error) {
    return absl::PermissionDeniedError(
        absl::StrCat(save, ": cannot be emptied: ", error.message()));
  }
  return MakeFolder(save);
}

absl::Status SaveDenseFile(const std::string& save, absl::string_view bytes) {
  return WriteFileAtomically(PathIn(save, kDenseFile), bytes);
}

bool IsSaved(const Range& range) {
  const policies::Properties policy = range.table().policy->properties();
  return !range.table().plan->dense || policy.delay > 0 || policy.batch > 0;
}

// "emb.0000000000000000-1999999999999999.range"; the end is exclusive, 0 = 2^64.
std::string RangeFileName(const RangeImage& head) {
  return absl::StrFormat("%s.%016x-%016x%s", head.table, head.begin, head.end, kSuffix);
}

absl::Status CommitSave(const std::string& save, const job::JobPlan& plan, uint64_t run,
                        int64_t step, const std::vector<SavedParameter>& dense) {
  Manifest manifest;
  manifest.run = run;
  manifest.job = plan.job.name();
  manifest.job_hash = plan.hash;
  manifest.step = step;
  manifest.dense = dense;
  DescribeMeaning(plan, &manifest);
  TANDEM_ASSIGN_OR_RETURN(manifest.files, FilesIn(save));
  if (std::none_of(manifest.files.begin(), manifest.files.end(), IsDensePart)) {
    return absl::DataLossError(absl::StrCat(PathIn(save, kDenseFile),
                                            ": is gone: does another run save into ",
                                            fs::path(save).parent_path().string(), "?"));
  }
  for (const SavedTable& table : manifest.tables) {
    TANDEM_RETURN_IF_ERROR(CheckCover(save, manifest.files, table.name));
  }
  TANDEM_RETURN_IF_ERROR(WriteFileAtomically(PathIn(save, kManifest), EncodeManifest(manifest)));

  const fs::path path(save), parent = path.parent_path();
  TANDEM_RETURN_IF_ERROR(
      WriteFileAtomically((parent / kLatest).string(), path.filename().string() + "\n"));
  std::error_code ignored;  // an old save that cannot be removed does no harm
  for (const auto& entry : fs::directory_iterator(parent, ignored)) {
    const std::string name = entry.path().filename().string();
    if (entry.is_directory() && absl::StartsWith(name, kSaveFolderPrefix) && entry.path() != path) {
      fs::remove_all(entry.path(), ignored);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SavedModel> SavedModel::Open(const std::string& path) {
  for (int tries_left = kMostTries;; --tries_left) {
    TANDEM_ASSIGN_OR_RETURN(const std::string folder, Resolve(path));
    absl::StatusOr<SavedModel> saved = OpenFolder(folder);
    if (saved.ok() || tries_left == 1) return saved;
    // A commit names the next save before it removes this one.
    TANDEM_ASSIGN_OR_RETURN(const std::string latest, Resolve(path));
    if (latest == folder) return saved;
  }
}

absl::StatusOr<SavedModel> SavedModel::OpenFolder(const std::string& folder) {
  const std::string manifest_path = PathIn(folder, kManifest);
  const absl::StatusOr<std::string> text = ReadWholeFile(manifest_path);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(
        manifest_path, ": not there: the save was not finished, or an older version wrote it"));
  }
  TANDEM_RETURN_IF_ERROR(text.status());
  absl::StatusOr<Manifest> manifest = ParseManifest(*text);
  if (!manifest.ok()) return WithPath(manifest_path, manifest.status());
  SavedModel saved(folder, *std::move(manifest));
  for (const SavedFile& file : saved.manifest_.files) {
    TANDEM_RETURN_IF_ERROR(CheckLength(saved.PathOf(file), file.bytes));
  }
  return saved;
}

absl::StatusOr<RangeImage> SavedModel::Read(const SavedFile& file) const {
  const std::string path = PathOf(file);
  TANDEM_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(path));
  const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  absl::StatusOr<RangeImage> image = DecodeRange(bytes);
  if (!image.ok()) return WithPath(path, image.status());
  if (const uint64_t checksum = StoredChecksum(bytes); checksum != file.checksum) {
    return absl::DataLossError(
        absl::StrFormat("%s: checksum %#x, the manifest says %#x: a file of another save?", path,
                        checksum, file.checksum));
  }
  return image;
}

absl::StatusOr<RangeImage> SavedModel::ReadDense(const std::vector<SavedParameter>& model) const {
  const auto file = std::find_if(manifest_.files.begin(), manifest_.files.end(), IsDensePart);
  if (file == manifest_.files.end()) {
    return absl::DataLossError(
        absl::StrCat(PathIn(folder_, kManifest), ": does not list ", kDenseFile));
  }
  if (const absl::Status same = CheckParameters(manifest_.dense, model); !same.ok()) {
    return WithPath(PathOf(*file), same);
  }
  return Read(*file);
}

absl::StatusOr<uint64_t> SavedModel::SaltOf(const std::string& table) const {
  std::vector<std::string> names;
  for (const SavedTable& saved : manifest_.tables) {
    if (saved.name == table) return saved.salt;
    names.push_back(saved.name);
  }
  return absl::NotFoundError(absl::StrCat(PathIn(folder_, kManifest), ": no table ", table,
                                          ", it has ", absl::StrJoin(names, ", "),
                                          ": is this a save of this model?"));
}

bool SavedModel::HasTable(const std::string& table) const {
  return std::any_of(manifest_.tables.begin(), manifest_.tables.end(),
                     [&](const SavedTable& saved) { return saved.name == table; });
}

absl::Status SavedModel::LoadRanges(const std::vector<Range*>& ranges,
                                    const std::vector<std::string>& only,
                                    BufferSource& source) const {
  std::map<const SavedFile*, std::vector<Range*>> readers;  // a file is read once
  for (Range* range : ranges) {
    const job::TablePlan& table = *range->table().plan;
    if (!only.empty() && std::count(only.begin(), only.end(), table.name) == 0) continue;
    if (table.dense && !HasTable(table.name)) continue;  // nothing of it was held back
    TANDEM_ASSIGN_OR_RETURN(const uint64_t salt, SaltOf(table.name));
    for (const SavedFile& file : manifest_.files) {
      if (file.table != table.name || IsDensePart(file)) continue;
      // Under another salt (the job has another seed) its rows may be anywhere.
      if (salt == table.salt && !Overlap(file, range->begin(), range->end())) continue;
      readers[&file].push_back(range);
    }
  }
  for (const auto& [file, wanted] : readers) {
    TANDEM_ASSIGN_OR_RETURN(RangeImage image, Read(*file));
    StartSlotsAfresh(*wanted[0]->table().optimizer, &image);
    for (Range* range : wanted) {
      const absl::Status loaded = range->LoadSaved(image, source);
      if (!loaded.ok()) return WithPath(PathOf(*file), loaded);
    }
  }
  for (Range* range : ranges) range->FinishLoad();
  return absl::OkStatus();
}

absl::Status SavedModel::CheckDenseIsWhole() const {
  HeapBufferSource source;
  for (const SavedFile& file : manifest_.files) {
    if (file.table != job::kDenseTableName || IsDensePart(file)) continue;
    TANDEM_ASSIGN_OR_RETURN(const RangeImage image, Read(file));
    HeldQueue delayed;
    TANDEM_RETURN_IF_ERROR(SavedQueue(image, source, &delayed));
    if (delayed.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        PathOf(file), ": holds back ", delayed.size(),
        " steps of the dense parameters, which were on servers: go on with them there ",
        "(dense.synchroniser: SERVERS)"));
  }
  return absl::OkStatus();
}

}  // namespace tandem::server
