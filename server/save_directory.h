// Saved models on disk. One save is one folder under the model folder: a file for each range
// (range_file.md), one for the dense part, and a manifest (manifest.h). The file LATEST in the
// model folder names the newest whole save.
//
// Writing, in this order: one process makes the folder and writes the dense part; workers whose
// gradients go through a codec write what it remembers, all servers write their ranges, then the
// first process commits. A process that dies on the way leaves a folder without a manifest, which
// nobody loads and the next commit removes; LATEST still names the save before.
//
// A job with train.keep_best leaves the model of its best evaluation behind: once there is such a save,
// LATEST names it and it stays, and others are there to go on from.
//
// To begin with a save (LoadRanges) is to begin a run with what another one had: steps, versions and
// clocks start at 0. What FIXED_DELAY held back is neither lost nor applied early
// (Range::FinishLoad), but for a best save: what is kept is the model that was evaluated, without
// what was held back then. To go on from a save of the same run (ResumeRanges) is to stand where it stood.
//
// Every error is one line that names the file, what is wrong with it and what was expected.
// Any thread; the folder of a save under way belongs to one run.
#ifndef TANDEM_SERVER_SAVE_DIRECTORY_H_
#define TANDEM_SERVER_SAVE_DIRECTORY_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/owned_fd.h"
#include "job/job.h"
#include "server/manifest.h"
#include "server/range.h"

namespace tandem::server {

// ---- writing ----

// Make the folder `save`, if it is not there. No two saves have a folder of one name (SaveFolder).
absl::Status SaveDenseFile(const std::string& save, absl::string_view bytes);
// What the codec of a worker remembers.
absl::Status SaveWorkerFile(const std::string& save, int rank, absl::string_view state);
// What the program that drives a worker has to find again: bytes of its own.
absl::Status SaveProgramFile(const std::string& save, int rank, absl::string_view state);
std::string RangeFileName(const RangeImage& head);

struct SaveHead {
  uint64_t run = 0;     // View.run
  int64_t attempt = 0;  // View.attempt
  int64_t step = 0;     // the steps before it are in the save
  int keep = 1;         // so many saves of the run stay, with this one
  bool best = false;    // it is that of the best evaluation so far; then the one before is no more
  std::string record;   // RunRecord; empty: none
};
// All files of `save` are there. Checks that each is whole and that they cover every table of the
// plan, writes the manifest, names the save in LATEST (unless there is a best one), and only then
// removes saves beside it: those of other runs, those that are not whole, and of this run all but the
// best and the newest. What cannot be committed is removed, before anything else has changed.
absl::Status CommitSave(const std::string& save, const job::JobPlan& plan, const SaveHead& head,
                        const std::vector<SavedParameter>& dense);
// Removes what was written of a save that failed.
void AbandonSave(const std::string& save);

// ---- reading ----

// While the descriptor is open, no commit of the run that saves there removes the save: a job that
// begins with it reads its files for a while. NOT_FOUND: it is already gone.
absl::StatusOr<OwnedFd> KeepSave(const std::string& save);

// A whole save, open for reading.
class SavedModel {
 public:
  // `path`: a save, a model folder with a LATEST, or the folder of a run. Checks the manifest, and that every file is
  // there in its full length. The job may still run: if its next save takes the place of the one
  // being opened, that one is opened instead.
  static absl::StatusOr<SavedModel> Open(const std::string& path);

  // The newest whole save of `run` in the model folder; reads all of its files and compares checksums.
  // `damaged`: what is wrong with newer ones, in one line; empty: there are none. NOT_FOUND: no save
  // is whole; the message says of each what is wrong with it.
  static absl::StatusOr<SavedModel> OpenNewest(const std::string& model_folder, uint64_t run,
                                               std::string* damaged);

  const Manifest& manifest() const { return manifest_; }
  const std::string& folder() const { return folder_; }
  std::string PathOf(const SavedFile& file) const { return folder_ + "/" + file.name; }

  // The contents of one of its files; refuses bytes other than those that the manifest lists.
  absl::StatusOr<RangeImage> Read(const SavedFile& file) const;
  // Those of the dense part, which must be of a model with these parameters.
  absl::StatusOr<RangeImage> ReadDense(const std::vector<SavedParameter>& model) const;

  // Fills the ranges with their rows (not those of dense tables, which a worker assigns) and with
  // the steps that a fixed delay held back; those lie in memory from `source`. The files may have
  // cut the table into other ranges, under another salt. Refuses what is of another table,
  // dim; with another optimizer, slots start afresh. `only`: of these tables alone; none: of all.
  absl::Status LoadRanges(const std::vector<Range*>& ranges, const std::vector<std::string>& only,
                          BufferSource& source) const;

  // The same for the run that made the save, on any number of servers: rows (those of dense tables,
  // too), progress, and all that is held stand where they stood.
  absl::Status ResumeRanges(const std::vector<Range*>& ranges, BufferSource& source) const;
  // What was saved with CommitSave. NOT_FOUND: nothing was.
  absl::StatusOr<std::string> ReadRecord() const;
  // ... with SaveWorkerFile; empty: nothing was.
  absl::StatusOr<std::string> ReadWorkerState(int rank) const;
  // ... with SaveProgramFile; empty: nothing was.
  absl::StatusOr<std::string> ReadProgramState(int rank) const;

  // For a job without dense parameters on servers: refuses a save of one that had them there and
  // held some of their updates back.
  absl::Status CheckDenseIsWhole() const;

 private:
  SavedModel(std::string folder, Manifest manifest)
      : folder_(std::move(folder)), manifest_(std::move(manifest)) {}
  static absl::StatusOr<SavedModel> OpenFolder(const std::string& folder);
  absl::Status CheckBytes() const;
  bool HasTable(const std::string& table) const;
  const SavedFile* FindFile(const std::string& name) const;
  absl::StatusOr<std::string> ReadPart(const std::string& name) const;
  absl::Status ResumeDense(const std::vector<Range*>& ranges) const;
  absl::StatusOr<uint64_t> SaltOf(const std::string& table) const;

  std::string folder_;
  Manifest manifest_;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SAVE_DIRECTORY_H_
