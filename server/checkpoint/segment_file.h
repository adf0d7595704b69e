// Segment files: the ranges that one shard writes for a checkpoint, in a few files. A segment is a
// series of range files (range_file.h) with an index behind them. The price of a new file, above
// all the wait for the disk, is paid once for each 256 MB and not for each range.
// server/checkpoint/range_file.md describes the layout.
//
// Any number of threads may read parts of the same segment at the same time.
#ifndef TANDEM_SERVER_CHECKPOINT_SEGMENT_FILE_H_
#define TANDEM_SERVER_CHECKPOINT_SEGMENT_FILE_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "server/checkpoint/manifest.h"
#include "server/checkpoint/range_file.h"

namespace tandem::server {

// Writes the segments of one shard. A segment is at NAME.tmp until it is whole. The destructor
// removes an unfinished segment.
//
// Thread safety: one thread at a time.
class SegmentWriter {
 public:
  // The segments in `folder` are NAME-0.segment, NAME-1.segment and so on. A new one begins when
  // one has `full_bytes` or more.
  SegmentWriter(std::string folder, std::string name, uint64_t full_bytes = uint64_t{256} << 20)
      : folder_(std::move(folder)), name_(std::move(name)), full_bytes_(full_bytes) {}

  // Adds a range with so many rows. `contents` passes the bytes of its range file to the sink.
  // Makes the folder if it does not exist. After an error the writer is of no more use.
  absl::Status Add(const RangeImage& head, uint64_t rows,
                   const std::function<absl::Status(ByteSink)>& contents);
  // Finishes the last segment. All segments are on the disk afterwards.
  absl::Status Finish();

 private:
  absl::Status Append(absl::string_view bytes);
  absl::Status EndSegment();

  const std::string folder_, name_;
  const uint64_t full_bytes_;
  int segments_ = 0;
  std::optional<NewFile> file_;  // none: no segment is open
  // The open segment:
  uint64_t bytes_ = 0;
  std::vector<CheckpointFile> parts_;
};

bool IsSegment(absl::string_view name);
// Parts begin at multiples of it, and zeros are between them.
inline constexpr uint64_t kSegmentAlign = 64;

// The parts of a segment, in their order, read from its index. DATA_LOSS if the segment is cut
// short or its index was changed; the parts themselves are not read. Messages name the file.
absl::StatusOr<std::vector<CheckpointFile>> ReadSegmentIndex(const std::string& path);

// The bytes of one part. Does not compare the checksum of the part (DecodeRange).
absl::StatusOr<std::string> ReadSegmentPart(const std::string& path, const CheckpointFile& part);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_CHECKPOINT_SEGMENT_FILE_H_
