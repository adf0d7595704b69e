#include "server/rows/held_updates.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::server {
namespace {

void PutNumber(std::string* out, uint64_t value) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The first number of the bytes names their layout. Earlier versions wrote layouts without the
// sample clock of a step and the positives of an update.
constexpr uint64_t kEarlierSteps = 0x2646c6568;    // "held", 2
constexpr uint64_t kEarlierBatches = 0x3646c6568;  // "held", 3
constexpr uint64_t kSteps = 0x4646c6568;           // "held", 4
constexpr uint64_t kBatches = 0x5646c6568;  // "held", 5: in batches, with the number of each read

struct Layout {
  bool in_batches = false;
  bool has_clock = true;
  bool has_sums = true;
};

constexpr uint64_t kSkipped = uint64_t{1} << 63;  // HeldStep::skipped, in the samples of the step

void PutSteps(std::string* out, const HeldQueue& steps, bool in_batches) {
  PutNumber(out, steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const HeldStep& step = steps[i];
    PutNumber(out, static_cast<uint64_t>(step.step));
    PutNumber(out, step.samples | (step.skipped ? kSkipped : 0));
    PutNumber(out, static_cast<uint64_t>(step.sample_clock));
    PutNumber(out, static_cast<uint64_t>(step.contributions));
    PutNumber(out, step.updates.size());
    for (const HeldUpdate& u : step.updates) {
      PutNumber(out, static_cast<uint64_t>(u.rank));
      PutNumber(out, static_cast<uint64_t>(u.step));
      PutNumber(out, u.samples);
      PutNumber(out, static_cast<uint64_t>(u.version_read));
      PutNumber(out, static_cast<uint64_t>(u.admitted_at));
      PutNumber(out, static_cast<uint64_t>(static_cast<int64_t>(u.clock_gap)));
      PutNumber(out, static_cast<uint64_t>(static_cast<int64_t>(u.in_flight)));
      PutNumber(out, u.positives);
      if (in_batches) {
        PutNumber(out, static_cast<uint64_t>(u.read_number));
        PutNumber(out, static_cast<uint64_t>(u.rows_before_sum));
      }
      PutNumber(out, u.keys.size() / sizeof(uint64_t));
      out->append(reinterpret_cast<const char*>(u.keys.data()), u.keys.size());
      out->append(reinterpret_cast<const char*>(u.values.data()), u.values.size());
    }
  }
}

// Reads numbers and byte strings. The error says at which offset the bytes end too early.
class Cursor {
 public:
  explicit Cursor(absl::string_view bytes) : bytes_(bytes) {}

  absl::Status Number(uint64_t* value) {
    TANDEM_RETURN_IF_ERROR(Need(sizeof *value));
    std::memcpy(value, bytes_.data() + at_, sizeof *value);
    at_ += sizeof *value;
    return absl::OkStatus();
  }
  absl::Status Signed(int64_t* value) {
    uint64_t number = 0;
    TANDEM_RETURN_IF_ERROR(Number(&number));
    *value = static_cast<int64_t>(number);
    return absl::OkStatus();
  }
  absl::Status Bytes(size_t count, BufferSource& source, Buffer* out) {
    TANDEM_RETURN_IF_ERROR(Need(count));
    *out = CopyToBuffer(source, {reinterpret_cast<const uint8_t*>(bytes_.data()) + at_, count});
    at_ += count;
    return absl::OkStatus();
  }
  size_t left() const { return bytes_.size() - at_; }

 private:
  absl::Status Need(size_t count) const {
    if (count <= left()) return absl::OkStatus();
    return absl::DataLossError(
        absl::StrCat("held updates: need ", count, " bytes at offset ", at_, ", have ", left()));
  }
  absl::string_view bytes_;
  size_t at_ = 0;
};

absl::Status GetUpdate(Cursor& cursor, int dim, const Layout& layout, BufferSource& source,
                       HeldUpdate* u) {
  int64_t rank = 0, gap = 0, in_flight = 0;
  uint64_t keys = 0;
  TANDEM_RETURN_IF_ERROR(cursor.Signed(&rank));
  TANDEM_RETURN_IF_ERROR(cursor.Signed(&u->step));
  TANDEM_RETURN_IF_ERROR(cursor.Number(&u->samples));
  TANDEM_RETURN_IF_ERROR(cursor.Signed(&u->version_read));
  TANDEM_RETURN_IF_ERROR(cursor.Signed(&u->admitted_at));
  TANDEM_RETURN_IF_ERROR(cursor.Signed(&gap));
  TANDEM_RETURN_IF_ERROR(cursor.Signed(&in_flight));
  if (layout.has_clock) {
    TANDEM_RETURN_IF_ERROR(cursor.Number(&u->positives));
  }
  if (layout.in_batches) TANDEM_RETURN_IF_ERROR(cursor.Signed(&u->read_number));
  if (layout.has_sums) TANDEM_RETURN_IF_ERROR(cursor.Signed(&u->rows_before_sum));
  TANDEM_RETURN_IF_ERROR(cursor.Number(&keys));
  if (keys > cursor.left() / sizeof(uint64_t)) {
    return absl::DataLossError(
        absl::StrCat("held updates: ", keys, " keys do not fit in ", cursor.left(), " bytes"));
  }
  u->rank = static_cast<int>(rank);
  u->clock_gap = static_cast<int32_t>(gap);
  u->in_flight = static_cast<int32_t>(in_flight);
  TANDEM_RETURN_IF_ERROR(cursor.Bytes(keys * sizeof(uint64_t), source, &u->keys));
  return cursor.Bytes(keys * static_cast<uint64_t>(dim) * sizeof(float), source, &u->values);
}

absl::Status GetSteps(Cursor& cursor, int dim, const Layout& layout, BufferSource& source,
                      HeldQueue* steps) {
  uint64_t count = 0;
  TANDEM_RETURN_IF_ERROR(cursor.Number(&count));
  for (uint64_t i = 0; i < count; ++i) {
    HeldStep& step = steps->Add();
    uint64_t updates = 0;
    TANDEM_RETURN_IF_ERROR(cursor.Signed(&step.step));
    TANDEM_RETURN_IF_ERROR(cursor.Number(&step.samples));
    step.skipped = (step.samples & kSkipped) != 0;
    step.samples &= ~kSkipped;
    if (layout.has_clock) TANDEM_RETURN_IF_ERROR(cursor.Signed(&step.sample_clock));
    TANDEM_RETURN_IF_ERROR(cursor.Signed(&step.contributions));
    TANDEM_RETURN_IF_ERROR(cursor.Number(&updates));
    for (uint64_t k = 0; k < updates; ++k) {
      HeldUpdate update;
      TANDEM_RETURN_IF_ERROR(GetUpdate(cursor, dim, layout, source, &update));
      step.updates.push_back(std::move(update));
    }
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeHeld(const HeldQueue& open, const HeldQueue& delayed, bool in_batches) {
  std::string out;
  PutNumber(&out, in_batches ? kBatches : kSteps);
  PutSteps(&out, open, in_batches);
  PutSteps(&out, delayed, in_batches);
  return out;
}

absl::Status DecodeHeld(absl::string_view bytes, int dim, BufferSource& source, HeldQueue* open,
                        HeldQueue* delayed, bool* in_batches) {
  open->Clear();
  delayed->Clear();
  if (in_batches != nullptr) *in_batches = false;
  if (bytes.empty()) return absl::OkStatus();
  Cursor cursor(bytes);
  uint64_t number = 0;
  TANDEM_RETURN_IF_ERROR(cursor.Number(&number));
  const bool earlier = number == kEarlierSteps || number == kEarlierBatches;
  if (!earlier && number != kSteps && number != kBatches) {
    return absl::DataLossError(absl::StrCat("held updates: layout ", absl::Hex(number),
                                            ", expected ", absl::Hex(kSteps), " or ",
                                            absl::Hex(kBatches)));
  }
  const Layout layout = {.in_batches = number != kSteps && number != kEarlierSteps,
                         .has_clock = !earlier,
                         .has_sums = number == kBatches};
  if (in_batches != nullptr) *in_batches = layout.in_batches;
  TANDEM_RETURN_IF_ERROR(GetSteps(cursor, dim, layout, source, open));
  TANDEM_RETURN_IF_ERROR(GetSteps(cursor, dim, layout, source, delayed));
  if (cursor.left() != 0) {
    return absl::DataLossError(absl::StrCat("held updates: ", cursor.left(), " bytes too many"));
  }
  return absl::OkStatus();
}

}  // namespace tandem::server
