// Writes a job's course as an event file for TensorBoard: scalars at each reporting interval and
// evaluation, and histograms of staleness.
//
//   record := uint64 length, uint32 masked crc of it, bytes of an Event, uint32 masked crc of them
//
// All numbers are little-endian; the crc is CRC-32C. A file that is cut off in a record is read up
// to the record before.
//
// Thread safety: none; one thread.
#ifndef TANDEM_SCHEDULER_OBSERVE_TENSORBOARD_H_
#define TANDEM_SCHEDULER_OBSERVE_TENSORBOARD_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/owned_fd.h"
#include "nlohmann/json.hpp"
#include "proto/tensorboard.pb.h"

namespace tandem::scheduler {

class TensorBoardFile {
 public:
  // Makes `folder` if it is absent, and a new file there. `now`: the time of day. TensorBoard drops
  // `first_step` and later steps from earlier files of the folder: an earlier attempt of the run
  // may have gone beyond the checkpoint from which this attempt resumes.
  static absl::StatusOr<std::unique_ptr<TensorBoardFile>> Create(const std::string& folder,
                                                                 absl::Time now,
                                                                 int64_t first_step);

  // `progress`: ProgressJson (summary.h). Its step is the one of the worker furthest ahead.
  absl::Status AddProgress(absl::Time now, const nlohmann::json& progress);
  // `evaluation`: as in metrics.jsonl.
  absl::Status AddEvaluation(absl::Time now, const nlohmann::json& evaluation);
  // `reported`: values of a program, by name.
  absl::Status AddReported(absl::Time now, int64_t step, const nlohmann::json& values);
  // `tables`: the tables of a status (status.h). Adds the distributions of their staleness.
  absl::Status AddTables(absl::Time now, int64_t step, const nlohmann::json& tables);

  const std::string& path() const { return path_; }

 private:
  TensorBoardFile(OwnedFd file, std::string path)
      : file_(std::move(file)), path_(std::move(path)) {}
  // A record that cannot be written whole is left out.
  absl::Status Write(const tensorboard::Event& event);

  const OwnedFd file_;
  const std::string path_;
  off_t size_ = 0;  // of the whole records
};

// The checksum of the records: CRC-32C, rotated and shifted.
uint32_t MaskedCrc32c(absl::string_view bytes);

}  // namespace tandem::scheduler

#endif  // TANDEM_SCHEDULER_OBSERVE_TENSORBOARD_H_
