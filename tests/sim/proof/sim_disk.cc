#include "tests/sim/proof/sim_disk.h"

#include <filesystem>
#include <utility>

#include "base/file.h"
#include "base/status_macros.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

absl::Status Died() { return absl::AbortedError("the process died while it wrote"); }

}  // namespace

absl::Status SimDisk::Begin(const job::ResolvedJob& plan, int64_t attempt,
                            const std::string& resumed_from) {
  plan_ = &plan;
  segments_.clear();
  attempt_ = attempt;
  resumed_from_ = resumed_from;
  TANDEM_RETURN_IF_ERROR(server::BeginAttempt(folder_, Head()));
  // The simulator resumes only from checkpoints that it has read.
  return resumed_from_.empty() ? absl::OkStatus() : server::AdoptCheckpoint(folder_, Head());
}

server::CheckpointHead SimDisk::Head() const {
  server::CheckpointHead head;
  head.attempt = attempt_;
  head.keep = plan_->job.checkpoint().keep();
  head.resumed_from = resumed_from_;
  return head;
}

void SimDisk::DieAt(Moment moment, int64_t number, std::function<void()> die) {
  moment_ = moment;
  wait_ = number;
  die_ = std::move(die);
}

std::string SimDisk::In(const std::string& folder) const {
  return folder_ + "/" + fs::path(folder).filename().string();
}

bool SimDisk::DiesAt(Moment moment) {
  if (die_ == nullptr || moment != moment_ || wait_-- > 0) return false;
  std::exchange(die_, nullptr)();
  return true;
}

// A file is written under another name first (NewFile), so that is what remains.
absl::Status SimDisk::Torn(const std::string& folder, const std::string& file,
                           const std::string& bytes) {
  TANDEM_RETURN_IF_ERROR(MakeFolder(folder));
  TANDEM_RETURN_IF_ERROR(
      WriteFileAtomically(folder + "/" + file + ".tmp", bytes.substr(0, bytes.size() / 2)));
  return Died();
}

// Damages the largest file beside the manifest.
absl::Status SimDisk::Damage(const std::string& folder, bool flips) {
  fs::path largest;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if (extension != ".segment" && extension != ".part") continue;
    if (largest.empty() || entry.file_size() > fs::file_size(largest)) largest = entry.path();
  }
  TANDEM_ASSIGN_OR_RETURN(std::string bytes, ReadWholeFile(largest.string()));
  if (flips) {
    bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  } else {
    bytes.resize(bytes.size() / 2);
  }
  return WriteFileAtomically(largest.string(), bytes);
}

// All servers write to one segment.
absl::Status SimDisk::WriteRange(const std::string& folder, const server::RangeImage& image,
                                 const std::string& bytes) {
  if (DiesAt(Moment::kFile)) return Torn(In(folder), "torn.segment", bytes);
  std::unique_ptr<server::SegmentWriter>& segments = segments_[folder];
  if (segments == nullptr) {
    segments = std::make_unique<server::SegmentWriter>(In(folder), "servers");
  }
  return segments->Add(image, image.keys.size(), [&](const ByteSink& sink) { return sink(bytes); });
}

absl::Status SimDisk::WriteDense(const std::string& folder, const std::string& bytes) {
  if (DiesAt(Moment::kFile)) return Torn(In(folder), "dense.part", bytes);
  return server::WriteDenseFile(In(folder), bytes);
}

absl::Status SimDisk::WriteWorker(const std::string& folder, int rank, const std::string& state,
                                  const std::string& /*program*/) {
  if (state.empty()) return absl::OkStatus();
  if (DiesAt(Moment::kFile)) return Torn(In(folder), "worker.part", state);
  return server::WriteWorkerFile(In(folder), rank, state);
}

absl::Status SimDisk::Commit(const std::string& folder, int64_t step, bool best,
                             const std::string& record) {
  if (const auto segments = segments_.extract(folder); !segments.empty()) {
    TANDEM_RETURN_IF_ERROR(segments.mapped()->Finish());
  }
  if (DiesAt(Moment::kBeforeManifest)) return Died();
  const bool dies = DiesAt(Moment::kBeforeLatest);
  const bool flips = DiesAt(Moment::kFlip), tears = DiesAt(Moment::kAfterCommit) || flips;
  const std::string before = folder_ + ".before";
  if (dies) {
    fs::remove_all(before);
    fs::copy(folder_, before, fs::copy_options::recursive);
  }
  server::CheckpointHead head = Head();
  head.step = step;
  head.best = best;
  head.record = record;
  TANDEM_RETURN_IF_ERROR(server::CommitCheckpoint(In(folder), *plan_, head, /*dense=*/{}));
  if (tears) {
    damaged_ = true;
    TANDEM_RETURN_IF_ERROR(Damage(In(folder), flips));
    return Died();
  }
  newest_ = Newest{attempt_, step};
  damaged_ = false;
  if (!dies) return absl::OkStatus();
  // Everything else is as it was: LATEST, and the checkpoints that the commit has removed.
  const std::string place = before + "/" + fs::path(folder).filename().string();
  fs::remove_all(place);
  fs::rename(In(folder), place);
  fs::remove_all(folder_);
  fs::rename(before, folder_);
  return Died();
}

}  // namespace tandem
