#include "worker/row_fingerprint.h"

#include "base/hash.h"

namespace tandem::worker {
namespace {

// The hash of one sample's ids, in the order of tables and fields.
uint64_t HashOfRow(const data::Batch& batch, size_t sample) {
  uint64_t hash = 0;
  for (const data::SparseInput& input : batch.sparse) {
    const auto fields = static_cast<size_t>(input.fields);
    size_t begin = sample * fields, end = begin + fields;
    if (!input.offsets.empty()) {
      begin = input.offsets[begin];
      end = input.offsets[end];
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
