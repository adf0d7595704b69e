// The disk of a simulated run whose processes die. Checkpoints are written in the folders and by
// the functions of live runs (server/checkpoint/checkpoint_directory.h), on a real disk. A process
// can die in the middle of a file, or in the middle of a commit.
//
// Thread safety: none; one thread.
#ifndef TANDEM_TESTS_SIM_PROOF_SIM_DISK_H_
#define TANDEM_TESTS_SIM_PROOF_SIM_DISK_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/optional.h"
#include "job/job.h"
#include "server/checkpoint/checkpoint_directory.h"
#include "server/checkpoint/segment_file.h"
#include "tools/sim/checkpoint_files.h"

namespace tandem {

class SimDisk final : public sim::CheckpointFiles {
 public:
  enum class Moment {
    kFile,            // half of a file is written, and is not in its place yet
    kBeforeManifest,  // all files are written
    kBeforeLatest,    // the checkpoint is whole, but LATEST names another one
    kAfterCommit,     // the commit is complete, but a loss of power cuts a file to half
    kFlip,            // the commit is complete, but then a bit of a file is wrong
  };

  // `model_folder` holds the checkpoints.
  explicit SimDisk(std::string model_folder) : folder_(std::move(model_folder)) {}

  // An attempt begins. `resumed_from`: its checkpoint, a folder without its path (empty: none).
  // `plan` must outlive the attempt.
  absl::Status Begin(const job::ResolvedJob& plan, int64_t attempt,
                     const std::string& resumed_from);
  // The process that writes dies at this moment of write (or commit) number `number`, from 0.
  // `die` is called once. An earlier call is forgotten.
  void DieAt(Moment moment, int64_t number, std::function<void()> die);
  void DieNoMore() { die_ = nullptr; }

  // The attempt and step of the newest checkpoint that is whole, as the calls of Commit say.
  struct Newest {
    int64_t attempt = 0, step = 0;
    friend bool operator==(const Newest&, const Newest&) = default;
  };
  const absl::optional<Newest>& newest() const { return newest_; }
  // Newer checkpoints are there, but are damaged.
  bool damaged() const { return damaged_; }
  const std::string& folder() const { return folder_; }

  absl::Status WriteRange(const std::string& folder, const server::RangeImage& image,
                          const std::string& bytes) override;
  absl::Status WriteDense(const std::string& folder, const std::string& bytes) override;
  absl::Status WriteWorker(const std::string& folder, int rank, const std::string& state,
                           const std::string& program) override;
  absl::Status Commit(const std::string& folder, int64_t step, bool best,
                      const std::string& record) override;
  void Abandon(const std::string& folder) override {
    segments_.erase(folder);
    server::AbandonCheckpoint(In(folder));
  }

 private:
  server::CheckpointHead Head() const;
  std::string In(const std::string& folder) const;
  bool DiesAt(Moment moment);
  absl::Status Torn(const std::string& folder, const std::string& file, const std::string& bytes);
  absl::Status Damage(const std::string& folder, bool flips);

  const job::ResolvedJob* plan_ = nullptr;
  const std::string folder_;
  int64_t attempt_ = 0;
  std::string resumed_from_;
  std::map<std::string, std::unique_ptr<server::SegmentWriter>> segments_;  // by folder
  absl::optional<Newest> newest_;
  bool damaged_ = false;
  Moment moment_ = Moment::kFile;
  int64_t wait_ = 0;           // writes or commits before the one
  std::function<void()> die_;  // null: nobody dies
};

}  // namespace tandem

#endif  // TANDEM_TESTS_SIM_PROOF_SIM_DISK_H_
