// Saved models on disk. One save is one folder under the model folder: a file for each range
// (range_file.md), one for the dense part, and a manifest (manifest.h). The file LATEST in the
// model folder names the newest whole save.
//
// Writing, in this order: one process begins the save and writes the dense part, all servers write
// their ranges, then the first one commits. A process that dies on the way leaves a folder without
// a manifest, which nobody loads and the next commit removes; LATEST still names the save before.
//
// To go on from a save is to begin a run with what the other one had: steps, versions and clocks
// start at 0. What FIXED_DELAY held back is neither lost nor applied early (Range::FinishLoad).
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
#include "job/job.h"
#include "server/manifest.h"
#include "server/range.h"

namespace tandem::server {

// ---- writing ----

// Makes the folder `save`, empty: what lies there is of a save that was not finished.
absl::Status BeginSave(const std::string& save);
absl::Status SaveDenseFile(const std::string& save, absl::string_view bytes);
// Does a save have a file of the range? Of dense tables only where updates are held back: their
// rows are in the dense part, and the file has none.
bool IsSaved(const Range& range);
std::string RangeFileName(const RangeImage& head);

// All files of `save` are there. Checks that each is whole and that they cover every table of the
// plan, writes the manifest, names the save in LATEST, and removes the other saves beside it.
absl::Status CommitSave(const std::string& save, const job::JobPlan& plan, uint64_t run,
                        int64_t step, const std::vector<SavedParameter>& dense);

// ---- reading ----

// A whole save, open for reading.
class SavedModel {
 public:
  // `path`: a save, or a model folder with a LATEST. Checks the manifest, and that every file is
  // there in its full length. The job may still run: if its next save takes the place of the one
  // being opened, that one is opened instead.
  static absl::StatusOr<SavedModel> Open(const std::string& path);

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

  // For a job without dense parameters on servers: refuses a save of one that had them there and
  // held some of their updates back.
  absl::Status CheckDenseIsWhole() const;

 private:
  SavedModel(std::string folder, Manifest manifest)
      : folder_(std::move(folder)), manifest_(std::move(manifest)) {}
  static absl::StatusOr<SavedModel> OpenFolder(const std::string& folder);
  bool HasTable(const std::string& table) const;
  absl::StatusOr<uint64_t> SaltOf(const std::string& table) const;

  std::string folder_;
  Manifest manifest_;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_SAVE_DIRECTORY_H_
