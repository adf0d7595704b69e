#include "server/checkpoint/checkpoint_directory.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <system_error>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/damaged_checkpoint.h"
#include "base/file.h"
#include "base/owned_fd.h"
#include "base/status_macros.h"
#include "server/checkpoint/checkpoint_check.h"
#include "server/checkpoint/checkpoint_fence.h"
#include "server/checkpoint/range_copy.h"
#include "server/checkpoint/segment_file.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;
constexpr char kSuffix[] = ".range";
constexpr char kDenseFile[] = "dense.part";
constexpr char kRecordFile[] = "record.part";
// Table names in parts without rows. No table of a job has a name in parentheses.
constexpr char kRecordTable[] = "(record)";
constexpr char kWorkerTable[] = "(worker)";
constexpr char kProgramTable[] = "(program)";
constexpr char kManifest[] = "MANIFEST";
constexpr char kLatest[] = "LATEST";
// Tries to open a checkpoint of a running job. A try fails only if a whole new checkpoint replaces
// it.
constexpr int kMaxTries = 32;

std::string PathIn(absl::string_view folder, absl::string_view name) {
  return absl::StrCat(folder, "/", name);
}

absl::Status WithPath(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// The ranges and the parts of workers in the folder, in the order of a manifest. Opens each file
// once, and so does not open each range of a segment.
absl::StatusOr<std::vector<CheckpointFile>> FilesIn(const std::string& checkpoint) {
  std::vector<CheckpointFile> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(checkpoint, error)) {
    const std::string path = entry.path().string();
    CheckpointFile file;
    file.name = entry.path().filename().string();
    if (IsSegment(file.name)) {
      TANDEM_ASSIGN_OR_RETURN(std::vector<CheckpointFile> parts, ReadSegmentIndex(path));
      std::move(parts.begin(), parts.end(), std::back_inserter(files));
      continue;
    }
    if (!IsWorkerPart(file) && !absl::EndsWith(file.name, kSuffix)) continue;
    TANDEM_ASSIGN_OR_RETURN(const RangeFileEnds ends, ReadRangeFileEnds(path));
    file.table = ends.table;
    file.begin = ends.begin;
    file.end = ends.end;
    file.bytes = ends.bytes;
    file.rows = static_cast<int64_t>(ends.rows);
    file.checksum = ends.checksum;
    files.push_back(std::move(file));
  }
  if (error) return absl::NotFoundError(absl::StrCat(checkpoint, ": ", error.message()));
  SortFiles(&files);
  return files;
}

// Checks that the ranges of a table follow each other without gap or overlap, from position 0 to
// the end. `files`: in the order of a manifest.
absl::Status FilesCover(const std::string& checkpoint, const std::vector<CheckpointFile>& files,
                        const std::string& table) {
  uint64_t at = 0;
  bool any = false;
  auto file = std::partition_point(files.begin(), files.end(),
                                   [&](const CheckpointFile& f) { return f.table < table; });
  for (; file != files.end() && file->table == table; ++file) {
    if (file->name == kDenseFile) continue;
    if ((any && at == 0) || file->begin != at) {
      return absl::DataLossError(absl::StrFormat(
          "%s: begins at position %#x, expected %#x: a file of table %s is missing or "
          "was written twice",
          PathIn(checkpoint, file->name), file->begin, at, table));
    }
    at = file->end;
    any = true;
  }
  if (any && at == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "%s: no file of table %s for positions from %#x: do all servers reach this folder?",
      checkpoint, table, at));
}

bool IsDensePart(const CheckpointFile& file) { return file.name == kDenseFile; }

// Encodes opaque bytes as a range file, so that they are checked like the other files.
std::string EncodePart(absl::string_view table, absl::string_view bytes) {
  RangeImage image;
  image.table = std::string(table);
  image.dim = 1;
  image.held = std::string(bytes);
  return EncodeRange(image);
}

std::string WorkerFileName(int rank) { return absl::StrCat("worker-", rank, kWorkerPartSuffix); }
std::string ProgramFileName(int rank) { return absl::StrCat("program-", rank, kWorkerPartSuffix); }

// The folder of the checkpoint: `path` itself, or the folder that its LATEST names. For the folder
// of a run, its model/ is used.
absl::StatusOr<std::string> Resolve(const std::string& path) {
  std::error_code error;
  const std::string of_run = PathIn(path, "model");
  if (fs::exists(PathIn(of_run, kLatest), error)) return Resolve(of_run);
  const std::string latest = PathIn(path, kLatest);
  if (fs::exists(latest, error)) {
    TANDEM_ASSIGN_OR_RETURN(const std::string name, ReadWholeFile(latest));
    return PathIn(path, absl::StripAsciiWhitespace(name));
  }
  if (fs::exists(PathIn(path, kManifest), error)) return path;
  return absl::NotFoundError(
      absl::StrCat(path,
                   ": contains no checkpoint (LATEST or MANIFEST); hint: name the folder of a run "
                   "that has written one, its model/, or one checkpoint in that"));
}

// Checks the length of a file by itself.
absl::Status CheckLength(const std::string& path, const CheckpointFile& file) {
  const uint64_t want = file.bytes;
  if (file.offset != 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": the manifest names offset ",
                                                   file.offset, " in a file that is no segment"));
  }
  std::error_code error;
  const uint64_t bytes = fs::file_size(path, error);
  if (error) {
    return absl::NotFoundError(
        absl::StrCat(path, ": ", error.message(), "; the manifest lists it"));
  }
  if (bytes == want) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": has ", bytes, " bytes, the manifest says ", want,
                                          ": is it cut short, or of another checkpoint?"));
}

// Checks that a segment has the parts that the manifest lists.
absl::Status CheckSegment(const std::string& path, std::vector<const CheckpointFile*> listed) {
  const absl::StatusOr<std::vector<CheckpointFile>> parts = ReadSegmentIndex(path);
  if (absl::IsNotFound(parts.status())) {
    return absl::NotFoundError(absl::StrCat(parts.status().message(), "; the manifest lists it"));
  }
  TANDEM_RETURN_IF_ERROR(parts.status());
  std::sort(listed.begin(), listed.end(),
            [](const CheckpointFile* a, const CheckpointFile* b) { return a->offset < b->offset; });
  const auto same = [](const CheckpointFile& part, const CheckpointFile* in_manifest) {
    CheckpointFile wanted = *in_manifest;
    wanted.rows = part.rows;  // Read compares the number
    return part == wanted;
  };
  if (std::equal(parts->begin(), parts->end(), listed.begin(), listed.end(), same)) {
    return absl::OkStatus();
  }
  return absl::DataLossError(
      absl::StrCat(path, ": has other ranges than the ", listed.size(),
                   " that the manifest lists: is it of another checkpoint?"));
}

absl::Status CheckParameters(const std::vector<CheckpointParameter>& saved,
                             const std::vector<CheckpointParameter>& model) {
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

}  // namespace

absl::Status WriteDenseFile(const std::string& checkpoint, absl::string_view bytes) {
  TANDEM_RETURN_IF_ERROR(MakeFolder(checkpoint));
  return WriteFileAtomically(PathIn(checkpoint, kDenseFile), bytes);
}

absl::Status WriteWorkerFile(const std::string& checkpoint, int rank, absl::string_view state) {
  TANDEM_RETURN_IF_ERROR(MakeFolder(checkpoint));
  return WriteFileAtomically(PathIn(checkpoint, WorkerFileName(rank)),
                             EncodePart(kWorkerTable, state));
}

absl::Status WriteProgramFile(const std::string& checkpoint, int rank, absl::string_view state) {
  TANDEM_RETURN_IF_ERROR(MakeFolder(checkpoint));
  return WriteFileAtomically(PathIn(checkpoint, ProgramFileName(rank)),
                             EncodePart(kProgramTable, state));
}

// Removes the manifest first: the rest is not a checkpoint, even if this process ends now.
void AbandonCheckpoint(const std::string& checkpoint) {
  std::error_code error;
  fs::remove(PathIn(checkpoint, kManifest), error);
  // Remaining files are not a checkpoint; the next commit tries again.
  if (!error) fs::remove_all(checkpoint, error);
}

// For example "emb.0000000000000000-1999999999999999.range". The end is exclusive, 0 = 2^64.
std::string RangeFileName(const RangeImage& head) {
  return absl::StrFormat("%s.%016x-%016x%s", head.table, head.begin, head.end, kSuffix);
}

namespace {

// The request number at the end of a checkpoint folder's name (CheckpointFolder). The checkpoint at
// the end of the job has none and counts as the last one.
uint64_t RequestOf(const std::string& folder) {
  const std::vector<std::string> parts = absl::StrSplit(fs::path(folder).filename().string(), '.');
  uint64_t request = 0;
  const bool has_one = parts.size() == 3 && absl::SimpleAtoi(parts[2], &request);
  return has_one ? request : std::numeric_limits<uint64_t>::max();
}

// True if checkpoint `a` of a run is newer than `b`. The attempt counts first: if the newest
// checkpoint is damaged, the next attempt begins with an older one and writes smaller steps again.
bool IsNewer(const Manifest& a, const std::string& a_folder, const Manifest& b,
             const std::string& b_folder) {
  // Of two checkpoints of the same step, the one requested later is newer.
  const uint64_t a_request = RequestOf(a_folder), b_request = RequestOf(b_folder);
  return std::tie(a.attempt, a.step, a_request) > std::tie(b.attempt, b.step, b_request);
}

absl::StatusOr<Manifest> ReadManifest(const std::string& folder) {
  const std::string path = PathIn(folder, kManifest);
  const absl::StatusOr<std::string> text = ReadWholeFile(path);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(
        path, ": missing: the checkpoint was not finished, or an older version wrote it"));
  }
  TANDEM_RETURN_IF_ERROR(text.status());
  absl::StatusOr<Manifest> manifest = ParseManifest(*text);
  if (!manifest.ok()) return WithPath(path, manifest.status());
  return manifest;
}

// `error`: why there may be more.
std::vector<std::string> CheckpointFoldersIn(const fs::path& parent, std::error_code* error) {
  std::vector<std::string> folders;
  std::error_code ignored;
  for (fs::directory_iterator entry(parent, *error), end; !*error && entry != end;
       entry.increment(*error)) {
    const std::string name = entry->path().filename().string();
    if (entry->is_directory(ignored) && absl::StartsWith(name, kCheckpointFolderPrefix)) {
      folders.push_back(entry->path().string());
    }
  }
  std::sort(folders.begin(), folders.end());
  return folders;
}
std::vector<std::string> CheckpointFoldersIn(const fs::path& parent) {
  std::error_code ignored;
  return CheckpointFoldersIn(parent, &ignored);
}

// In the name of each checkpoint folder of the run.
std::string NameOf(uint64_t run) { return absl::StrFormat(".%016x", run); }

// Removes a checkpoint unless somebody protects it (KeepCheckpoint), or may do so: after any error
// of the lock it stays. Then a later commit removes it. A checkpoint that cannot be removed only
// takes disk space. False: it stays. `lock_error`: receives the error of a lock that does not work.
bool RemoveCheckpoint(const std::string& folder, int* lock_error) {
  {
    // Open for writing, because an exclusive lock on NFS requires it.
    const OwnedFd manifest(open(PathIn(folder, kManifest).c_str(), O_RDWR | O_CLOEXEC));
    if (manifest.get() < 0 && errno != ENOENT) return false;
    if (manifest.get() >= 0 && flock(manifest.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK) *lock_error = errno;
      return false;
    }
    std::error_code error;
    fs::remove(PathIn(folder, kManifest), error);
    if (error) return false;
  }  // Nobody can protect it any more. NFS keeps an open file, and with it the folder.
  AbandonCheckpoint(folder);
  return true;
}

}  // namespace

void RemoveIncompleteCheckpoints(const std::string& model_folder) {
  for (const std::string& folder : CheckpointFoldersIn(model_folder)) {
    std::error_code error;
    if (!fs::exists(PathIn(folder, kManifest), error) && !error) AbandonCheckpoint(folder);
  }
}

namespace {

AttemptId IdOf(const CheckpointHead& head) { return {head.run, head.attempt}; }

// Tells which checkpoints are damaged: the attempt has passed over them when it resumed.
class PassedOver {
 public:
  PassedOver(const fs::path& model_folder, const CheckpointHead& head) : attempt_(head.attempt) {
    if (head.resumed_from.empty()) return;
    from_ = (model_folder / head.resumed_from).string();
    if (auto manifest = ReadManifest(from_); manifest.ok()) manifest_ = *std::move(manifest);
  }
  bool Has(const Manifest& manifest, const std::string& folder) const {
    return manifest_.has_value() && manifest.attempt < attempt_ &&
           IsNewer(manifest, folder, *manifest_, from_);
  }

 private:
  const int64_t attempt_;
  std::string from_;
  absl::optional<Manifest> manifest_;  // none: nothing is known
};

// The newest checkpoint of the run with Manifest::best. LATEST has to name it.
absl::optional<std::string> BestCheckpoint(const fs::path& model_folder,
                                           const CheckpointHead& head) {
  const PassedOver passed_over(model_folder, head);
  absl::optional<std::string> best;
  Manifest newest;
  for (const std::string& folder : CheckpointFoldersIn(model_folder)) {
    const absl::StatusOr<Manifest> manifest = ReadManifest(folder);
    if (!manifest.ok() || manifest->run != head.run || !manifest->best) continue;
    if (passed_over.Has(*manifest, folder)) continue;
    if (best.has_value() && !IsNewer(*manifest, folder, newest, *best)) continue;
    best = folder;
    newest = *manifest;
  }
  return best;
}

struct Removals {
  int removed = 0;
  std::string stay;  // as in CommitCheckpoint
};

// Removes other checkpoints in the model folder. Keeps `checkpoint`, the one named `latest`, and
// the `others` newest others of the run that are not damaged. Counts checkpoints that cannot be
// removed, because somebody reads them, among these others, but keeps at least the `least` newest.
// `committed`: `checkpoint` is new, so those of other runs and the damaged ones are not needed any
// more. A later attempt may begin meanwhile; from then on this one removes nothing.
Removals RemoveOtherCheckpoints(const std::string& checkpoint, const CheckpointHead& head,
                                const fs::path& latest, bool committed, int others, int least = 0) {
  struct Older {
    Manifest manifest;
    std::string folder;
  };
  std::vector<Older> older;
  const fs::path model_folder = fs::path(checkpoint).parent_path();
  int lock_error = 0;
  Removals result;
  const auto remove = [&](const std::string& folder) {
    const bool removed =
        CheckFence(model_folder.string(), IdOf(head)).ok() && RemoveCheckpoint(folder, &lock_error);
    result.removed += removed ? 1 : 0;
    return removed;
  };
  const PassedOver passed_over(model_folder, head);
  for (const std::string& folder : CheckpointFoldersIn(model_folder)) {
    if (fs::path(folder) == fs::path(checkpoint) || fs::path(folder).filename() == latest) continue;
    absl::StatusOr<Manifest> manifest = ReadManifest(folder);
    if (manifest.ok() && manifest->run == head.run && !passed_over.Has(*manifest, folder)) {
      older.push_back({*std::move(manifest), folder});
    } else if (committed ? !absl::IsUnavailable(manifest.status())  // only the disk has failed
                         : absl::IsNotFound(manifest.status())) {
      remove(folder);
    }
  }
  std::sort(older.begin(), older.end(), [](const Older& a, const Older& b) {
    return IsNewer(a.manifest, a.folder, b.manifest, b.folder);
  });
  int kept = std::max(others, least);
  for (int i = static_cast<int>(older.size()); i-- > kept;) {
    if (!remove(older[static_cast<size_t>(i)].folder)) kept = std::max(kept - 1, least);
  }
  if (lock_error != 0) {
    result.stay =
        absl::StrCat(model_folder.string(), ": older checkpoints stay, because their locks fail (",
                     std::strerror(lock_error), ") and another job may read them; hint: mount the ",
                     "file system with flock, or watch the disk and remove them by hand");
  }
  return result;
}

// Checks the parts that workers write: either all workers have written one, or none.
absl::Status CheckParts(const std::string& checkpoint, const job::ResolvedJob& plan,
                        const Manifest& manifest, absl::string_view table, absl::string_view what) {
  const auto files = std::count_if(manifest.files.begin(), manifest.files.end(),
                                   [&](const CheckpointFile& f) { return f.table == table; });
  if (files == 0 || files == plan.workers()) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(checkpoint, ": ", what, " of ", files,
                                          " workers, expected ", plan.workers(),
                                          ": can all write to this folder?"));
}

// Checks that the files are those of a whole checkpoint of the plan. Dense parameters on servers
// are in the files of their table.
absl::Status CheckFiles(const std::string& checkpoint, const job::ResolvedJob& plan,
                        const Manifest& manifest) {
  if (plan.dense_table < 0 &&
      std::none_of(manifest.files.begin(), manifest.files.end(), IsDensePart)) {
    return absl::DataLossError(absl::StrCat(PathIn(checkpoint, kDenseFile),
                                            ": is gone: does another run write checkpoints to ",
                                            fs::path(checkpoint).parent_path().string(), "?"));
  }
  for (const CheckpointTable& table : manifest.tables) {
    TANDEM_RETURN_IF_ERROR(FilesCover(checkpoint, manifest.files, table.name));
  }
  TANDEM_RETURN_IF_ERROR(CheckParts(checkpoint, plan, manifest, kWorkerTable, "codecs"));
  return CheckParts(checkpoint, plan, manifest, kProgramTable, "states of programs");
}

absl::Status WriteManifest(const std::string& checkpoint, const job::ResolvedJob& plan,
                           const CheckpointHead& head,
                           const std::vector<CheckpointParameter>& dense) {
  Manifest manifest;
  manifest.run = head.run;
  manifest.attempt = head.attempt;
  manifest.best = head.best;
  manifest.job = plan.job.name();
  manifest.job_hash = plan.hash;
  manifest.step = head.step;
  manifest.dense = dense;
  DescribeMeaning(plan, &manifest);
  // The record is written before the files are listed, because the manifest lists it, too.
  if (!head.record.empty()) {
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(PathIn(checkpoint, kRecordFile),
                                               EncodePart(kRecordTable, head.record)));
  }
  TANDEM_ASSIGN_OR_RETURN(manifest.files, FilesIn(checkpoint));
  TANDEM_RETURN_IF_ERROR(CheckFiles(checkpoint, plan, manifest));
  return WriteFileAtomically(PathIn(checkpoint, kManifest), EncodeManifest(manifest));
}

}  // namespace

absl::Status CommitCheckpoint(const std::string& checkpoint, const job::ResolvedJob& plan,
                              const CheckpointHead& head,
                              const std::vector<CheckpointParameter>& dense, std::string* stay) {
  const fs::path folder = fs::path(checkpoint).parent_path();
  absl::Status written = CheckFence(folder.string(), IdOf(head));
  if (written.ok()) written = WriteManifest(checkpoint, plan, head, dense);
  if (!written.ok()) {
    AbandonCheckpoint(checkpoint);
    return written;
  }
  // A later attempt may have begun since, and may have resumed from this checkpoint, so it stays.
  TANDEM_RETURN_IF_ERROR(CheckFence(folder.string(), IdOf(head)));
  const bool may_have_best = plan.job.train().has_keep_best();
  const fs::path latest =
      fs::path(may_have_best ? BestCheckpoint(folder, head).value_or(checkpoint) : checkpoint)
          .filename();
  const absl::Status named =
      WriteFileAtomically((folder / kLatest).string(), latest.string() + "\n");
  if (!named.ok()) {
    // LATEST may name the new checkpoint although the disk reported an error. Then the folder must
    // stay, since LATEST must never name a missing checkpoint.
    const std::string stands = ReadWholeFile((folder / kLatest).string()).value_or("");
    if (stands != fs::path(checkpoint).filename().string() + "\n") AbandonCheckpoint(checkpoint);
    return named;
  }
  Removals removals =
      RemoveOtherCheckpoints(checkpoint, head, latest, /*committed=*/true, head.keep - 1);
  if (stay != nullptr) *stay = std::move(removals.stay);
  return absl::OkStatus();
}

absl::Status BeginAttempt(const std::string& model_folder, const CheckpointHead& head) {
  absl::Status raised = RaiseFence(model_folder, IdOf(head));
  // The unfinished checkpoint of an earlier attempt may have filled the disk.
  if (absl::IsResourceExhausted(raised)) {
    RemoveIncompleteCheckpoints(model_folder);
    raised = RaiseFence(model_folder, IdOf(head));
  }
  TANDEM_RETURN_IF_ERROR(raised);
  RemoveIncompleteCheckpoints(model_folder);
  return absl::OkStatus();
}

absl::Status AdoptCheckpoint(const std::string& model_folder, const CheckpointHead& head) {
  TANDEM_RETURN_IF_ERROR(CheckFence(model_folder, IdOf(head)));
  const std::string start = PathIn(model_folder, head.resumed_from);
  const std::string latest =
      fs::path(BestCheckpoint(model_folder, head).value_or(start)).filename().string();
  const std::string file = PathIn(model_folder, kLatest);
  if (ReadWholeFile(file).value_or("") != latest + "\n") {
    TANDEM_RETURN_IF_ERROR(WriteFileAtomically(file, latest + "\n"));
  }
  RemoveOtherCheckpoints(start, head, latest, /*committed=*/false, head.keep - 1);
  return absl::OkStatus();
}

absl::StatusOr<bool> HasCheckpointOf(const std::string& model_folder, uint64_t run) {
  std::error_code error;
  for (const std::string& folder : CheckpointFoldersIn(model_folder, &error)) {
    const bool named = absl::StrContains(fs::path(folder).filename().string(), NameOf(run));
    const absl::StatusOr<Manifest> manifest = ReadManifest(folder);
    if (manifest.ok() ? manifest->run == run : named && !absl::IsNotFound(manifest.status())) {
      return true;
    }
  }
  if (!error || error == std::errc::no_such_file_or_directory) return false;
  return absl::UnavailableError(absl::StrCat(model_folder, ": ", error.message()));
}

std::string ModelFolderOf(const std::string& checkpoint) {
  return fs::path(checkpoint).parent_path().string();
}

int MakeRoom(const std::string& checkpoint, const CheckpointHead& head) {
  const std::string model_folder = ModelFolderOf(checkpoint);
  const absl::StatusOr<std::string> text = ReadWholeFile(PathIn(model_folder, kLatest));
  if (!text.ok() && !absl::IsNotFound(text.status())) return 0;
  const std::string latest(absl::StripAsciiWhitespace(text.value_or("")));
  const absl::StatusOr<Manifest> manifest = ReadManifest(PathIn(model_folder, latest));
  // LATEST of an earlier attempt may name an old or damaged one. The best checkpoint stays beside
  // the newest ones.
  const bool is_newest = manifest.ok() && manifest->run == head.run && !manifest->best &&
                         (manifest->attempt == head.attempt || latest == head.resumed_from);
  const int others = std::max(head.keep - 1, 1) - (is_newest ? 1 : 0);
  return RemoveOtherCheckpoints(checkpoint, head, latest, /*committed=*/false, others,
                                is_newest ? 0 : 1)
      .removed;
}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(const std::string& path) {
  for (int tries_left = kMaxTries;; --tries_left) {
    TANDEM_ASSIGN_OR_RETURN(const std::string folder, Resolve(path));
    absl::StatusOr<CheckpointReader> saved = OpenFolder(folder);
    if (saved.ok() || tries_left == 1) return saved;
    // A commit names the next checkpoint before it removes this one. So if LATEST has not changed,
    // this one is damaged, and trying again is of no use.
    TANDEM_ASSIGN_OR_RETURN(const std::string latest, Resolve(path));
    if (latest == folder) return saved;
  }
}

absl::StatusOr<std::shared_ptr<const CheckpointReader>> SharedCheckpoint::Open(
    const std::string& path) {
  absl::MutexLock lock(&mutex_);
  if (reader_ == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(CheckpointReader opened, CheckpointReader::Open(path));
    reader_ = std::make_shared<const CheckpointReader>(std::move(opened));
  }
  return reader_;
}

absl::StatusOr<OwnedFd> KeepCheckpoint(const std::string& checkpoint) {
  // A shared lock requires no more than reading, on NFS too. So other users' checkpoints, and those
  // on read-only file systems, can be protected.
  const std::string manifest = PathIn(checkpoint, kManifest);
  OwnedFd fd(open(manifest.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0 && errno != ENOENT)
    return absl::NotFoundError(absl::StrCat(manifest, ": ", std::strerror(errno)));
  // The checkpoint may be about to be removed (RemoveCheckpoint holds the lock). Other errors are
  // ignored, since not every file system has locks: RemoveCheckpoint gets the same ones.
  const bool removed =
      fd.get() < 0 || (flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK);
  std::error_code error;
  if (removed || !fs::exists(manifest, error)) {
    return absl::NotFoundError(absl::StrCat(
        checkpoint, ": its run has just replaced it by a newer checkpoint; hint: try again"));
  }
  return fd;
}

absl::StatusOr<CheckpointReader> CheckpointReader::OpenFolder(const std::string& folder) {
  TANDEM_ASSIGN_OR_RETURN(Manifest manifest, ReadManifest(folder));
  CheckpointReader saved(folder, std::move(manifest));
  TANDEM_RETURN_IF_ERROR(saved.CheckFiles());
  return saved;
}

// Checks lengths, and the indexes of segments. The check is cheap and refuses an incomplete copy
// before the job starts. Read checks the bytes.
absl::Status CheckpointReader::CheckFiles() const {
  std::map<std::string, std::vector<const CheckpointFile*>> segments;
  for (const CheckpointFile& file : manifest_.files) {
    if (IsSegment(file.name)) {
      segments[PathOf(file)].push_back(&file);
    } else {
      TANDEM_RETURN_IF_ERROR(CheckLength(PathOf(file), file));
    }
  }
  for (const auto& [path, listed] : segments) {
    TANDEM_RETURN_IF_ERROR(CheckSegment(path, listed));
  }
  return absl::OkStatus();
}

std::string CheckpointReader::PlaceOf(const CheckpointFile& file) const {
  if (!IsSegment(file.name)) return PathOf(file);
  return absl::StrCat(PathOf(file), ": ", DebugString(file), " at offset ", file.offset);
}

absl::StatusOr<CheckpointReader> CheckpointReader::OpenNewest(const std::string& model_folder,
                                                              uint64_t run,
                                                              const CheckpointSearch& search,
                                                              std::string* damaged) {
  if (!search.chosen.empty()) return OpenFolder(PathIn(model_folder, search.chosen));
  std::vector<CheckpointReader> checkpoints;  // of the run, the newest first
  std::vector<std::string> wrong;
  const std::string of_run = NameOf(run);
  for (const std::string& folder : CheckpointFoldersIn(model_folder)) {
    absl::StatusOr<CheckpointReader> saved = OpenFolder(folder);
    // A manifest of another run makes the other files look wrong.
    const absl::StatusOr<Manifest> manifest = ReadManifest(folder);
    if (manifest.ok() && manifest->run != run &&
        absl::StrContains(fs::path(folder).filename().string(), of_run)) {
      wrong.push_back(absl::StrFormat("%s: is of run %016x, its folder of run %016x",
                                      PathIn(folder, kManifest), manifest->run, run));
    } else if (!saved.ok()) {
      wrong.emplace_back(saved.status().message());
    } else if (saved->manifest().run == run) {
      checkpoints.push_back(*std::move(saved));
    }
  }
  std::sort(checkpoints.begin(), checkpoints.end(),
            [](const CheckpointReader& a, const CheckpointReader& b) {
              return IsNewer(a.manifest_, a.folder_, b.manifest_, b.folder_);
            });
  for (CheckpointReader& saved : checkpoints) {
    const auto known = search.damaged.find(fs::path(saved.folder_).filename().string());
    if (known != search.damaged.end()) {
      wrong.push_back(known->second);
      continue;
    }
    const absl::Status whole = saved.CheckBytes(search.reads_ranges);
    if (!whole.ok()) {
      wrong.emplace_back(whole.message());
      continue;
    }
    *damaged = absl::StrJoin(wrong, "; ");
    return std::move(saved);
  }
  return absl::NotFoundError(absl::StrCat(model_folder, ": no whole checkpoint of the run",
                                          wrong.empty() ? "" : "; ", absl::StrJoin(wrong, "; ")));
}

absl::Status CheckpointReader::CheckBytes(bool ranges) const {
  for (const CheckpointFile& file : manifest_.files) {
    if (!ranges && !IsWorkerPart(file)) continue;
    TANDEM_RETURN_IF_ERROR(Read(file).status());
  }
  return absl::OkStatus();
}

absl::StatusOr<RangeImage> CheckpointReader::Read(const CheckpointFile& file) const {
  absl::StatusOr<RangeImage> image = ReadChecked(file);
  if (image.ok()) return image;
  // Other errors may be of this host alone, such as one of its network file system.
  const absl::Status& why = image.status();
  if (!absl::IsDataLoss(why) && !absl::IsNotFound(why) && !absl::IsInvalidArgument(why)) return why;
  return DamagedCheckpointError(image.status(), fs::path(folder_).filename().string());
}

absl::StatusOr<RangeImage> CheckpointReader::ReadChecked(const CheckpointFile& file) const {
  const std::string path = PathOf(file), place = PlaceOf(file);
  TANDEM_ASSIGN_OR_RETURN(const std::string text,
                          IsSegment(file.name) ? ReadSegmentPart(path, file) : ReadWholeFile(path));
  const absl::Span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  absl::StatusOr<RangeImage> image = DecodeRange(bytes);
  if (!image.ok()) return WithPath(place, image.status());
  if (const uint64_t checksum = StoredChecksum(bytes); checksum != file.checksum) {
    return absl::DataLossError(
        absl::StrFormat("%s: checksum %#x, the manifest says %#x: is it of another checkpoint?",
                        place, checksum, file.checksum));
  }
  if (file.rows >= 0 && static_cast<size_t>(file.rows) != image->keys.size()) {
    return absl::DataLossError(
        absl::StrCat(place, ": has ", image->keys.size(), " rows, the manifest says ", file.rows));
  }
  return image;
}

absl::StatusOr<std::vector<uint64_t>> CheckpointReader::ReadKeys(const CheckpointFile& file) const {
  return ReadRangeFileKeys(PathOf(file), file.offset, file.bytes);
}

absl::StatusOr<RangeImage> CheckpointReader::ReadDense(
    const std::vector<CheckpointParameter>& model) const {
  if (const absl::Status same = CheckParameters(manifest_.dense, model); !same.ok()) {
    return WithPath(PathIn(folder_, kManifest), same);
  }
  if (const CheckpointFile* const file = FindFile(kDenseFile); file != nullptr) return Read(*file);
  if (!HasTable(job::kDenseTableName)) {
    return absl::DataLossError(
        absl::StrCat(PathIn(folder_, kManifest), ": does not list ", kDenseFile));
  }
  return JoinDense();
}

// The blocks of dense parameters that servers have written, in order of their keys.
absl::StatusOr<RangeImage> CheckpointReader::JoinDense() const {
  RangeImage joined;
  struct Block {
    absl::Span<const float> weights, slots;
  };
  std::vector<RangeImage> images;
  std::map<uint64_t, Block> blocks;
  TANDEM_RETURN_IF_ERROR(CheckCover(job::kDenseTableName));
  for (const CheckpointFile& file : manifest_.files) {
    if (file.table != job::kDenseTableName) continue;
    TANDEM_ASSIGN_OR_RETURN(images.emplace_back(), Read(file));
  }
  for (const RangeImage& image : images) {
    const auto dim = static_cast<size_t>(image.dim);
    const auto slots = static_cast<size_t>(image.slots_per_row);
    for (size_t i = 0; i < image.keys.size(); ++i) {
      blocks[image.keys[i]] = {absl::MakeConstSpan(image.weights).subspan(i * dim, dim),
                               absl::MakeConstSpan(image.slots).subspan(i * slots, slots)};
    }
  }
  joined.table = images[0].table;
  joined.dim = images[0].dim;
  joined.slots_per_row = images[0].slots_per_row;
  joined.optimizer = images[0].optimizer;
  for (const auto& [key, block] : blocks) {
    joined.keys.push_back(key);
    joined.weights.insert(joined.weights.end(), block.weights.begin(), block.weights.end());
    joined.slots.insert(joined.slots.end(), block.slots.begin(), block.slots.end());
  }
  return joined;
}

absl::StatusOr<uint64_t> CheckpointReader::SaltOf(const std::string& table) const {
  std::vector<std::string> names;
  for (const CheckpointTable& saved : manifest_.tables) {
    if (saved.name == table) return saved.salt;
    names.push_back(saved.name);
  }
  return absl::NotFoundError(absl::StrCat(PathIn(folder_, kManifest), ": no table ", table,
                                          ", it has ", absl::StrJoin(names, ", "),
                                          ": is this a checkpoint of this model?"));
}

bool CheckpointReader::HasTable(const std::string& table) const {
  return std::any_of(manifest_.tables.begin(), manifest_.tables.end(),
                     [&](const CheckpointTable& saved) { return saved.name == table; });
}

const CheckpointFile* CheckpointReader::dense_part() const { return FindFile(kDenseFile); }

absl::Status CheckpointReader::CheckCover(const std::string& table) const {
  return FilesCover(folder_, manifest_.files, table);
}

const CheckpointFile* CheckpointReader::FindFile(const std::string& name) const {
  const auto at = std::find_if(manifest_.files.begin(), manifest_.files.end(),
                               [&](const CheckpointFile& file) { return file.name == name; });
  return at == manifest_.files.end() ? nullptr : &*at;
}

absl::StatusOr<std::string> CheckpointReader::ReadRecord() const {
  const CheckpointFile* const file = FindFile(kRecordFile);
  if (file == nullptr) {
    return absl::NotFoundError(
        absl::StrCat(folder_, ": no ", kRecordFile,
                     ": an older version wrote the checkpoint, and no run can resume from it"));
  }
  TANDEM_ASSIGN_OR_RETURN(RangeImage image, Read(*file));
  return std::move(image.held);
}

absl::StatusOr<std::string> CheckpointReader::ReadWorkerState(int rank) const {
  return ReadPart(WorkerFileName(rank));
}

absl::StatusOr<std::string> CheckpointReader::ReadProgramState(int rank) const {
  return ReadPart(ProgramFileName(rank));
}

absl::StatusOr<std::string> CheckpointReader::ReadPart(const std::string& name) const {
  const CheckpointFile* const file = FindFile(name);
  if (file == nullptr) return std::string();
  TANDEM_ASSIGN_OR_RETURN(RangeImage image, Read(*file));
  return std::move(image.held);
}

absl::Status CheckpointReader::CheckDenseIsWhole() const {
  if (manifest_.best) return absl::OkStatus();
  HeapBufferSource source;
  for (const CheckpointFile& file : manifest_.files) {
    if (file.table != job::kDenseTableName || IsDensePart(file)) continue;
    TANDEM_ASSIGN_OR_RETURN(const RangeImage image, Read(file));
    HeldQueue delayed;
    TANDEM_RETURN_IF_ERROR(DecodeQueue(image, source, &delayed));
    if (delayed.empty()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        PlaceOf(file), ": has ", delayed.size(),
        " delayed steps of the dense parameters, which were on servers; hint: keep them there ",
        "(dense.synchroniser: SERVERS)"));
  }
  return absl::OkStatus();
}

}  // namespace tandem::server
