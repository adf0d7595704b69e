// One key range as bytes: a file of a checkpoint, and the payload of a range move.
//
// Contents: table name, dim, optimizer name, [begin, end), stamp, progress (version and the
// exactly-once memory of each worker), keys, heads of rows, weights, slots, held updates; a
// checksum over everything. A table with limits (row_limits.h) also has the ages of its rows, and
// candidates. range_file.md describes the layout. Functions are pure functions of bytes, except the
// two that read parts of a file. checkpoint_directory.h says which files make up a checkpoint.
#ifndef TANDEM_SERVER_CHECKPOINT_RANGE_FILE_H_
#define TANDEM_SERVER_CHECKPOINT_RANGE_FILE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "optim/row_dtype.h"
#include "policies/policy.h"
#include "server/rows/row_table.h"

namespace tandem::server {

inline constexpr size_t kMaxNameBytes = 4096;  // of a table or an optimizer

struct RangeImage {
  std::string table;
  int dim = 0;
  int slots_per_row = 0;
  std::string optimizer;  // RowOptimizer::name()
  // In which files have the rows. `weights` and `slots` are floats in any case, and values of the
  // types: encoding rounds nothing. If types.state is not F32, the last `numbers_per_row` slots are
  // f32 in files, too; otherwise it is 0.
  optim::RowTypes types;
  int numbers_per_row = 0;
  uint64_t begin = 0, end = 0;  // positions; end 0 = 2^64
  // The steps of the optimizer (OptimizerSteps), and the stamp at which the optimizer began:
  // the optimizer has taken stamp - step_base steps. In files of formats 1 and 2 the stamp is the
  // version.
  int64_t stamp = 0, step_base = 0;
  policies::RangeProgress progress;
  std::vector<uint64_t> keys;         // in order of position
  std::vector<optim::RowHead> heads;  // [keys] if the types have heads, else empty
  std::vector<float> weights;         // [keys, dim]
  std::vector<float> slots;           // [keys, slots_per_row]
  bool limited = false;               // the table has limits; otherwise the next two are empty
  std::vector<uint32_t> ages;         // [keys]; versions since the last update
  std::vector<Candidate> candidates;  // in order of position
  std::string held;  // opaque: held updates, and memory of the policy (range_copy.cc)
  // The salt under which OrderByPosition has ordered rows and candidates. The order of a file is
  // only a promise of its bytes, under the salt of the run that wrote it.
  std::optional<uint64_t> ordered_under;
};

// Encodes a range section by section and hands the bytes to `sink` in pieces of 256 KiB, so an
// encoded range need not be in memory as a whole. The caller passes keys, heads (if the types have
// heads), weights of rows that are not hot, weights of hot rows, slots without numbers, numbers,
// ages and candidates (only if `limited`), and `held` of RangeImage, in this order, and calls
// EndSection after each. An array of 256 KiB or more goes to the sink as it is.
// The encoder ignores bytes that come after an error of the sink.
class RangeEncoder {
 public:
  struct Counts {
    uint64_t rows = 0, hot_rows = 0, candidates = 0, held_bytes = 0;
  };

  // Encodes the fields of `head` other than the arrays and `held`. Requires: names have at most
  // kMaxNameBytes; no candidates unless `limited`.
  RangeEncoder(const RangeImage& head, const Counts& counts, ByteSink sink);
  ~RangeEncoder();

  void Bytes(const void* data, size_t bytes) {
    if (bytes <= kPieceBytes - used_) [[likely]] {
      if (bytes > 0) std::memcpy(piece_.get() + used_, data, bytes);
      used_ += bytes;
    } else {
      BytesBeyondPiece(data, bytes);
    }
  }
  // The same for values of a type of RangeImage::types.
  void Floats(Table::Dtype type, absl::Span<const float> values);
  // The weights of one row of these types.
  void Weights(const optim::RowTypes& types, optim::RowHead head, absl::Span<const float> weights);
  void EndSection();  // pads
  // Adds the checksum. Returns the error of the sink, if there was one. Requires: all sections have
  // the lengths that follow from the arguments of the constructor.
  absl::Status Finish();

  uint64_t file_bytes() const { return file_bytes_; }

 private:
  static constexpr size_t kPieceBytes = size_t{256} << 10;
  struct Checksum;

  void BytesBeyondPiece(const void* data, size_t bytes);
  void Pass(const char* data, size_t bytes);

  const ByteSink sink_;
  const std::unique_ptr<char[]> piece_;
  const std::unique_ptr<Checksum> checksum_;
  uint64_t file_bytes_ = 0, passed_ = 0;  // passed to the sink
  size_t used_ = 0;                       // of the piece
  std::vector<int8_t> int8_row_;          // scratch of Weights
  absl::Status status_;
};

// Requires: heads, weights, slots and ages have the lengths that follow from keys, types, dim,
// slots_per_row and `limited`; names have at most kMaxNameBytes.
std::string EncodeRange(const RangeImage& image);
// DATA_LOSS or INVALID_ARGUMENT, with offsets and numbers, for bytes that are not a whole range.
absl::StatusOr<RangeImage> DecodeRange(absl::Span<const uint8_t> bytes);

// Assigns the rows of `image` whose position in the store is in [begin, end) (end 0 = 2^64). So
// files written by any number of ranges load into any other number. A store with limits also takes
// over ages and candidates. If the image has more rows than the limits allow, the store leaves out
// roughly the oldest rows. INVALID_ARGUMENT, before anything changes, if dim, slots, optimizer or
// table differ (the table only if the store knows its name). RESOURCE_EXHAUSTED: no memory for a
// row; some rows are there.
absl::Status LoadInto(const RangeImage& image, uint64_t begin, uint64_t end, RowTable* store);

// Orders rows and candidates by their positions under `salt`. LoadInto then finds the rows of a
// range without looking at the others. So all ranges of a job together need one look at each row.
// If the order changes, needs memory for another copy of the largest array and kOrderBytes a row.
inline constexpr size_t kOrderBytes = 16;
void OrderByPosition(uint64_t salt, RangeImage* image);

// The checksum at the end of the bytes of a range.
uint64_t StoredChecksum(absl::Span<const uint8_t> bytes);

// The fields from the beginning and the end of a file, read without the rows between.
struct RangeFileEnds {
  std::string table;
  uint64_t begin = 0, end = 0;
  uint64_t bytes = 0;  // length of the whole file
  uint64_t rows = 0;
  uint64_t checksum = 0;
};
// DATA_LOSS if the file is not whole; NOT_FOUND if there is none. The message names the file.
absl::StatusOr<RangeFileEnds> ReadRangeFileEnds(const std::string& path);
// The keys of the range file at [offset, offset + bytes) of a file, read without weights and slots.
// Does not verify the checksum. Errors as above.
absl::StatusOr<std::vector<uint64_t>> ReadRangeFileKeys(const std::string& path, uint64_t offset,
                                                        uint64_t bytes);

}  // namespace tandem::server

#endif  // TANDEM_SERVER_CHECKPOINT_RANGE_FILE_H_
