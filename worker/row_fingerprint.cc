#include "worker/row_fingerprint.h"

#include "base/hash.h"

namespace tandem::worker {
namespace {

// The hash of one sample's ids, in the order of tables and fields. Ids that are cells of their own
// do not say to which sample they belong, and there may be any number of them. Each sample then
// counts with an equal share.
uint64_t HashOfRow(const data::Batch& batch, size_t sample) {
  const auto samples = static_cast<size_t>(batch.samples);
  uint64_t hash = 0;
  for (const data::SparseInput& input : batch.sparse) {
    const size_t ids = input.index.size();
    size_t begin = sample * ids / samples, end = (sample + 1) * ids / samples;
    if (!input.offsets.empty()) {
      const auto fields = static_cast<size_t>(input.fields);
      begin = input.offsets[sample * fields];
      end = input.offsets[(sample + 1) * fields];
    }
    for (size_t o = begin; o < end; ++o) hash = HashCombine(hash, input.keys[input.index[o]]);
  }
  return hash;
}

}  // namespace

void RowFingerprint::Add(const data::Batch& batch) {
  if (over_) return;
  for (size_t s = 0; s < static_cast<size_t>(batch.samples); ++s) {
    const uint64_t row = HashOfRow(batch, s);
    if (!varied()) different_.insert(row);
    if (rows_++ < kFirstRows) first_ = HashCombine(first_, row);
    epoch_ += Mix64(row);
  }
}

void RowFingerprint::EndEpoch(bool whole) {
  if (over_) return;
  over_ = true;
  if (!whole) epoch_ = 0;
}

uint64_t RowFingerprint::first_rows() const { return rows_ >= kFirstRows && varied() ? first_ : 0; }

}  // namespace tandem::worker
