#include "server/row_index.h"

#include <algorithm>
#include <utility>

namespace tandem::server {
namespace {

// At a load of .65 a key lies outside its home bucket 6 times in 100, at .54 (just grown) 3 times;
// that makes 20 to 24 bytes of index a row. At .75 pulls are a twentieth slower.
constexpr double kMaxLoad = 0.65;
constexpr double kGrowth = 1.2;

constexpr size_t kDiscardStep = 4 * GrowableMapping::kHugePage;

}  // namespace

RowIndex::RowIndex(uint64_t salt, int64_t expected) : salt_(salt) {
  Allocate(static_cast<uint64_t>(static_cast<double>(expected) / (kMaxLoad * kWidth)) + 1);
}

// Rounded up to whole pages: the rest of the last page would be paid for anyway.
void RowIndex::Allocate(uint64_t bucket_count) {
  mapping_ = GrowableMapping();
  mapping_.Reserve(bucket_count * sizeof(Bucket));
  bucket_count_ = mapping_.capacity() / sizeof(Bucket);
  size_limit_ = static_cast<int64_t>(static_cast<double>(bucket_count_ * kWidth) * kMaxLoad);
}

void RowIndex::Insert(uint64_t key, uint32_t row) {
  if (size_ >= size_limit_) Grow();
  InsertWithRoom(key, row);
  ++size_;
}

void RowIndex::InsertWithRoom(uint64_t key, uint32_t row) {
  uint64_t b = Home(Hash(key));
  while (buckets()[b].count == kWidth) b = Next(b);
  Bucket& bucket = buckets()[b];
  bucket.keys[bucket.count] = key;
  bucket.rows[bucket.count] = row;
  ++bucket.count;
}

// Front to back in both, and old pages are given back on the way, so that growing needs little more
// than the new index.
void RowIndex::Grow() {
  GrowableMapping old = std::move(mapping_);
  const uint64_t old_count = bucket_count_;
  mapping_ = GrowableMapping();
  Allocate(static_cast<uint64_t>(static_cast<double>(old_count) * kGrowth) + 1);
  const Bucket* const old_buckets = static_cast<const Bucket*>(old.data());
  constexpr uint64_t kStep = kDiscardStep / sizeof(Bucket);
  for (uint64_t begin = 0; begin < old_count; begin += kStep) {
    const uint64_t end = std::min(begin + kStep, old_count);
    for (uint64_t b = begin; b < end; ++b) {
      const Bucket& bucket = old_buckets[b];
      for (uint32_t i = 0; i < bucket.count; ++i) InsertWithRoom(bucket.keys[i], bucket.rows[i]);
    }
    old.Discard(begin * sizeof(Bucket), end * sizeof(Bucket));
  }
}

}  // namespace tandem::server
