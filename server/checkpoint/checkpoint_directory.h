// Checkpoints on disk. A checkpoint is one folder in the model folder: segments with the ranges of
// each shard (segment_file.h), a file for the dense part unless dense parameters are on servers,
// and a manifest (manifest.h). Earlier versions wrote a file for each range (range_file.md); all
// readers take both. The file LATEST in the model folder names the newest whole checkpoint.
//
// A checkpoint is written in two phases. In the first, each process writes its part: rank 0 the
// dense part; workers their codec's memory, if they have a codec, and the state of their program;
// servers their ranges, also those of dense parameters on servers. In the second, when
// all parts are on the disk, rank 0 commits: it writes the manifest, and then names the folder in
// LATEST. The order makes the checkpoint all or nothing. A process that dies before the manifest
// leaves a folder that nobody loads and that the next commit removes; LATEST still names the
// previous checkpoint. Older checkpoints are removed last, when the new one can be found.
//
// A job with train.keep_best keeps the model of its best evaluation. Once there is such a
// checkpoint, LATEST names it and it stays. The job's other checkpoints serve for resuming.
//
// There are two ways to use a checkpoint. LoadRanges begins a new run with the model of another
// one: steps, versions and clocks start at 0. Updates that FIXED_DELAY held back are neither lost
// nor applied early (Range::FinishLoad). The best checkpoint is an exception: it is the model that
// was evaluated, without the updates held back at that time. ResumeRanges resumes the same run
// exactly where it was.
//
// A process opens its initial checkpoint once, and all its threads share the reader
// (SharedCheckpoint). Its shards load their ranges together (checkpoint_load.h).
//
// Every error is one line that names the file, its fault and what was expected.
// Thread safety: any thread. Only one run writes to the folder of an unfinished checkpoint.
#ifndef TANDEM_SERVER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
#define TANDEM_SERVER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/buffer.h"
#include "base/owned_fd.h"
#include "job/job.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/range_file.h"

namespace tandem::server {

class Range;  // server/range.h

// ---- writing ----

// Each of the three Write...File functions makes the folder `checkpoint` if it does not exist.
// No two checkpoints use the same folder (CheckpointFolder).
absl::Status WriteDenseFile(const std::string& checkpoint, absl::string_view bytes);
// `state`: the memory of a worker's codec.
absl::Status WriteWorkerFile(const std::string& checkpoint, int rank, absl::string_view state);
// `state`: bytes of the program that drives a worker, which it gets back when the run resumes.
absl::Status WriteProgramFile(const std::string& checkpoint, int rank, absl::string_view state);
std::string RangeFileName(const RangeImage& head);

struct CheckpointHead {
  uint64_t run = 0;     // View.run
  int64_t attempt = 0;  // View.attempt
  int64_t step = 0;     // the checkpoint has all steps before this one
  int keep = 1;         // how many checkpoints of the run to keep, with this one
  // The folder of the checkpoint from which the attempt has resumed, without its path; empty: none.
  // Newer checkpoints of earlier attempts are damaged.
  std::string resumed_from;
  bool best = false;   // model of the best evaluation so far; replaces the previous best one
  std::string record;  // RunRecord; empty: none
};
// Commits a checkpoint whose files have all been written. Checks that each file is whole and that
// they cover every table of the plan. Writes the manifest and names the checkpoint in LATEST (or
// the best one, if the run has one). Only then removes other checkpoints: those of other runs,
// those that are not whole or are damaged (CheckpointHead::resumed_from), and those of this run
// except the best one and the newest. If the checkpoint cannot be committed, removes its folder;
// nothing else has changed then. FAILED_PRECONDITION: another run or a later attempt has begun
// (checkpoint_fence.h). If it has begun after the manifest was written, the folder stays, since
// that attempt may have resumed from it. `stay`: if not null, receives why older checkpoints could
// not be removed although nobody is known to read them: their locks fail (KeepCheckpoint).
absl::Status CommitCheckpoint(const std::string& checkpoint, const job::ResolvedJob& plan,
                              const CheckpointHead& head,
                              const std::vector<CheckpointParameter>& dense,
                              std::string* stay = nullptr);
// Begins an attempt, before any of its processes writes: no earlier attempt can commit from now on
// (checkpoint_fence.h). Then removes the checkpoints that earlier attempts have not completed. Uses
// run and attempt of `head`.
absl::Status BeginAttempt(const std::string& model_folder, const CheckpointHead& head);
// The servers have loaded head.resumed_from, so the checkpoint is whole. Does what its commit may
// not have done: names it, or the best one, in LATEST, and removes older ones. So not more than
// `head.keep` checkpoints, the best one and damaged ones are on the disk when the attempt writes
// its first. Uses run, attempt, keep and resumed_from of `head`.
absl::Status AdoptCheckpoint(const std::string& model_folder, const CheckpointHead& head);
// Removes the folder of a checkpoint that failed.
void AbandonCheckpoint(const std::string& checkpoint);
std::string ModelFolderOf(const std::string& checkpoint);
// A disk has no room for `checkpoint`. Removes now what its commit would remove, except for the
// newest whole checkpoint of the run. Returns how many it has removed.
int MakeRoom(const std::string& checkpoint, const CheckpointHead& head);
// Removes the folders of all checkpoints that were never completed. Requires: no process writes
// there.
void RemoveIncompleteCheckpoints(const std::string& model_folder);

// ---- reading ----

// Protects a checkpoint while a job reads its files: as long as the descriptor is open, no commit
// of the run that writes there removes the checkpoint. NOT_FOUND: the checkpoint is already gone.
absl::StatusOr<OwnedFd> KeepCheckpoint(const std::string& checkpoint);

// Whether the model folder has a checkpoint of `run` that was once complete. It need not be
// readable any more.
absl::StatusOr<bool> HasCheckpointOf(const std::string& model_folder, uint64_t run);

// Selects the checkpoint from which a run resumes.
struct CheckpointSearch {
  // Whether to read the ranges and to compare their checksums. Servers do both when they load a
  // range, all servers at the same time, and report damage (base/damaged_checkpoint.h). Other files
  // are small, and always read.
  bool reads_ranges = true;
  // Checkpoints to pass over: the name of the folder, and the fault that a server has reported.
  std::map<std::string, std::string> damaged;
  // Not empty: the name of the folder that another process has chosen. No file is read.
  std::string chosen;

  static CheckpointSearch WithoutRanges() {
    CheckpointSearch search;
    search.reads_ranges = false;
    return search;
  }
};

// A whole checkpoint, open for reading: its manifest is in memory. A reader never changes, so any
// number of threads may use it at the same time. Each call that reads a file or a part of it reads
// it anew.
class CheckpointReader {
 public:
  // `path`: a checkpoint, a model folder with a LATEST, or the folder of a run. Checks the
  // manifest, that every file exists with its full length, and the index of each segment. The job
  // that writes there may still run. If its next checkpoint replaces the one being opened, opens
  // the new one instead.
  static absl::StatusOr<CheckpointReader> Open(const std::string& path);

  // The newest whole checkpoint of `run` in the model folder. `damaged`: the faults of newer
  // checkpoints, in one line; empty if there are none. NOT_FOUND: no checkpoint is whole; the
  // message names the fault of each.
  static absl::StatusOr<CheckpointReader> OpenNewest(const std::string& model_folder, uint64_t run,
                                                     const CheckpointSearch& search,
                                                     std::string* damaged);

  const Manifest& manifest() const { return manifest_; }
  const std::string& folder() const { return folder_; }
  std::string PathOf(const CheckpointFile& file) const { return folder_ + "/" + file.name; }
  // For messages: the path, and which range of a segment.
  std::string PlaceOf(const CheckpointFile& file) const;

  // The contents of a range or of a worker's part. Reads no other range of a segment. Refuses bytes
  // that differ from the manifest. Every error is one of a damaged checkpoint
  // (base/damaged_checkpoint.h).
  absl::StatusOr<RangeImage> Read(const CheckpointFile& file) const;
  // Only the keys. Does not verify the checksum.
  absl::StatusOr<std::vector<uint64_t>> ReadKeys(const CheckpointFile& file) const;
  // The dense parameters, from the dense part or from the files of servers, with keys in order.
  // They must be those of `model`.
  absl::StatusOr<RangeImage> ReadDense(const std::vector<CheckpointParameter>& model) const;

  // CheckpointLoad for the ranges of one thread: begins a new run, or resumes the run that wrote
  // the checkpoint.
  absl::Status LoadRanges(const std::vector<Range*>& ranges, const std::vector<std::string>& only,
                          BufferSource& source) const;
  absl::Status ResumeRanges(const std::vector<Range*>& ranges, BufferSource& source) const;

  // The file of the dense part; null if dense parameters were on servers.
  const CheckpointFile* dense_part() const;
  bool HasTable(const std::string& table) const;
  // The salt of the table's positions. NOT_FOUND names the tables that there are.
  absl::StatusOr<uint64_t> SaltOf(const std::string& table) const;
  // DATA_LOSS unless the table's files have all of its positions, each once.
  absl::Status CheckCover(const std::string& table) const;
  // CheckpointHead::record of CommitCheckpoint. NOT_FOUND if there is none.
  absl::StatusOr<std::string> ReadRecord() const;
  // The state written by WriteWorkerFile. Empty if there is none.
  absl::StatusOr<std::string> ReadWorkerState(int rank) const;
  // The state written by WriteProgramFile. Empty if there is none.
  absl::StatusOr<std::string> ReadProgramState(int rank) const;

  // For a job whose dense parameters are not on servers. Refuses a checkpoint of a job that had
  // them there and held back some of their updates.
  absl::Status CheckDenseIsWhole() const;

 private:
  CheckpointReader(std::string folder, Manifest manifest)
      : folder_(std::move(folder)), manifest_(std::move(manifest)) {}
  static absl::StatusOr<CheckpointReader> OpenFolder(const std::string& folder);
  absl::Status CheckFiles() const;
  absl::Status CheckBytes(bool ranges) const;
  absl::StatusOr<RangeImage> ReadChecked(const CheckpointFile& file) const;
  const CheckpointFile* FindFile(const std::string& name) const;
  absl::StatusOr<std::string> ReadPart(const std::string& name) const;
  absl::StatusOr<RangeImage> JoinDense() const;

  std::string folder_;
  Manifest manifest_;
};

// The checkpoint with which a process begins. The first thread that needs it opens it, and all get
// the same reader, even if the path names a newer checkpoint by then.
//
// Thread safety: any thread.
class SharedCheckpoint {
 public:
  // Waits while another thread opens the checkpoint. Requires: the same path in all calls.
  absl::StatusOr<std::shared_ptr<const CheckpointReader>> Open(const std::string& path);

 private:
  absl::Mutex mutex_;
  std::shared_ptr<const CheckpointReader> reader_ ABSL_GUARDED_BY(mutex_);  // null: not yet open
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_CHECKPOINT_CHECKPOINT_DIRECTORY_H_
