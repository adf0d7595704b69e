// A hash table from 64-bit keys to row numbers: open addressing over buckets of one cache line,
// each with room for five keys and their rows. A lookup nearly always reads one line, so a batch
// that prefetches its buckets pays one overlapped cache miss a key. Instead of a row number, a key
// may have a value above kLastRow, which means something to the caller alone (row_limits.h:
// candidates).
//
// The home bucket of a key is its hash scaled to the number of buckets. So buckets are in order of
// hash, whatever their number: growing reads the old ones and writes the new ones from front to
// back. The number need not be a power of two; the number grows by a fifth, so memory stays close
// to the use. A full bucket overflows into the next one, and a bucket with room ends a search.
// Therefore removing a key from a full bucket moves back a key that had overflowed past it. Any
// 64-bit key is valid: each bucket has a count, and no key is reserved to mean "empty".
//
// Thread safety: none needed; it belongs to one range.
#ifndef TANDEM_SERVER_ROWS_ROW_INDEX_H_
#define TANDEM_SERVER_ROWS_ROW_INDEX_H_

#include <cstddef>
#include <cstdint>

#include "absl/base/attributes.h"
#include "absl/status/status.h"
#include "base/hash.h"
#include "server/rows/growable_memory.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

namespace tandem::server {

class RowIndex {
 public:
  static constexpr uint32_t kNoRow = ~uint32_t{0};
  static constexpr uint32_t kLastRow = 0x7fffffff;
  static bool IsRow(uint32_t value) { return value <= kLastRow; }
  static constexpr uint32_t kWidth = 5;  // of a bucket
  struct alignas(64) Bucket {
    uint64_t keys[kWidth];
    uint32_t rows[kWidth];
    uint32_t count;  // keys and rows from here on are zero
  };

  // Takes no memory before the first key, and then has room for `expected` keys. `salt` is that of
  // Position(). `arena` outlives the index.
  RowIndex(uint64_t salt, int64_t expected, PageArena* arena);

  // The position of the key with its halves swapped. The top bits of a position select the range,
  // so inside one range they hardly differ; the low half does.
  uint64_t Hash(uint64_t key) const {
    const uint64_t position = Position(salt_, key);
    return position << 32 | position >> 32;
  }

  // The home bucket of a key with this hash. Valid while bucket_count() stays the same.
  const Bucket* HomeOf(uint64_t hash) const { return &At(Home(hash)); }
  uint64_t bucket_count() const { return bucket_count_; }

  // Starts loading a bucket. Always inlined; row_slabs.h says why.
  ABSL_ATTRIBUTE_ALWAYS_INLINE static void Prefetch(const Bucket* bucket) {
    __builtin_prefetch(bucket, 0, 2);
  }

  // The value of `key` if its home bucket holds it, else kNoRow. Requires: home ==
  // HomeOf(Hash(key)).
  static uint32_t FindAtHome(uint64_t key, const Bucket* home) {
    const uint32_t matches = Matches(*home, key);
    return matches != 0 ? home->rows[__builtin_ctz(matches)] : kNoRow;
  }

  // Starts loading the bucket after a key's home, where it may have overflowed to.
  ABSL_ATTRIBUTE_ALWAYS_INLINE void PrefetchNext(uint64_t hash) const {
    __builtin_prefetch(&At(Next(Home(hash))), 0, 2);
  }

  // The value of `key`, or kNoRow. Requires: hash == Hash(key).
  uint32_t Find(uint64_t key, uint64_t hash) const {
    for (uint64_t b = Home(hash);; b = Next(b)) {
      const Bucket& bucket = At(b);
      const uint32_t matches = Matches(bucket, key);
      if (matches != 0) [[likely]] {
        return bucket.rows[__builtin_ctz(matches)];
      }
      if (bucket.count < kWidth) return kNoRow;
    }
  }

  // RESOURCE_EXHAUSTED: nothing has changed. Requires: the key is absent, row != kNoRow.
  absl::Status Insert(uint64_t key, uint32_t row);
  // True if the next Insert takes more memory, and about how many bytes.
  bool MustGrow() const { return size_ >= size_limit_; }
  size_t GrowthBytes() const;

  // Changes the value of a key that is present. Requires: hash == Hash(key), row != kNoRow.
  void Set(uint64_t key, uint64_t hash, uint32_t row);

  // Removes `key`. Returns the value that it had, or kNoRow if it was absent. Requires: hash ==
  // Hash(key).
  uint32_t Remove(uint64_t key, uint64_t hash);

  // Calls visit(key, row) for keys in order of their home buckets, starting at the hash `cursor`,
  // until `most` keys or a few more have been visited. Returns the cursor of the next call, 0 at
  // the end. A key that is present from the first call (cursor 0) to the last is visited once,
  // whatever is inserted and removed between calls. Any other key is visited once or not at all.
  template <typename Visit>
  uint64_t Scan(uint64_t cursor, size_t most, Visit visit) const {
    size_t visited = 0;
    uint64_t end = Home(cursor);  // this call covers home buckets below `end`
    do {
      ++end;
      visited += At(end - 1).count;
    } while (end < bucket_count_ && visited < most);
    const uint64_t next = end < bucket_count_ ? FirstHash(end) : 0;
    VisitHashes(cursor, next, visit);
    return next;
  }

  // Calls visit(key, row) for the keys with hashes in [begin, end), end 0 = 2^64.
  template <typename Visit>
  void VisitHashes(uint64_t begin, uint64_t end, Visit visit) const {
    // These keys are in their home buckets, or in later ones with only full buckets between.
    uint64_t b = Home(begin);
    const uint64_t homes = Home(end - 1) + 1 - b;
    for (uint64_t read = 1; read <= bucket_count_; ++read, b = Next(b)) {
      const Bucket& bucket = At(b);
      for (uint32_t i = 0; i < bucket.count; ++i) {
        const uint64_t hash = Hash(bucket.keys[i]);
        if (hash >= begin && (end == 0 || hash < end)) visit(bucket.keys[i], bucket.rows[i]);
      }
      if (read >= homes && bucket.count < kWidth) break;
    }
  }

  int64_t size() const { return size_; }
  size_t MemoryBytes() const { return memory_.resident(); }

  // Calls visit(key, row) for every key, in no particular order.
  template <typename Visit>
  void ForEach(Visit visit) const {
    for (uint64_t b = 0; b < bucket_count_; ++b) {
      const Bucket& bucket = At(b);
      for (uint32_t i = 0; i < bucket.count; ++i) visit(bucket.keys[i], bucket.rows[i]);
    }
  }

 private:
  static_assert(sizeof(Bucket) == 64);
  static constexpr uint64_t kSegment = PageArena::kHugePage / sizeof(Bucket);  // of memory_

  // A bit mask of the keys in the bucket that equal `key`. There are no branches, because no branch
  // predictor can guess which of the five places holds a key.
  static uint32_t Matches(const Bucket& bucket, uint64_t key) {
#ifdef __AVX2__
    const __m256i wanted = _mm256_set1_epi64x(static_cast<int64_t>(key));
    const __m256i first = _mm256_load_si256(reinterpret_cast<const __m256i*>(bucket.keys));
    uint32_t equal = static_cast<uint32_t>(
        _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpeq_epi64(wanted, first))));
    equal |= static_cast<uint32_t>(bucket.keys[4] == key) << 4;
#else
    uint32_t equal = 0;
    for (uint32_t i = 0; i < kWidth; ++i) {
      equal |= static_cast<uint32_t>(bucket.keys[i] == key) << i;
    }
#endif
    return equal & ((1u << bucket.count) - 1);
  }

  static const uintptr_t* EmptyTable();
  static Bucket& BucketOf(const uintptr_t* table, uint64_t b) {
    return *reinterpret_cast<Bucket*>(table[b / kSegment] + b * sizeof(Bucket));
  }
  Bucket& At(uint64_t b) const { return BucketOf(table_, b); }
  uint64_t Home(uint64_t hash) const { return MulHigh(hash, bucket_count_); }
  uint64_t Next(uint64_t b) const { return b + 1 == bucket_count_ ? 0 : b + 1; }
  // How many buckets a search passes from `from` to `to`.
  uint64_t Distance(uint64_t from, uint64_t to) const {
    return to >= from ? to - from : to + bucket_count_ - from;
  }
  // The smallest hash whose home is bucket b > 0.
  uint64_t FirstHash(uint64_t b) const;
  absl::Status Grow();
  void InsertWithRoom(uint64_t key, uint32_t row);
  void TakeOut(uint64_t b, uint32_t i);

  uint64_t salt_;
  uint64_t first_buckets_;  // their number after the first key
  GrowableMemory memory_;
  const uintptr_t* table_;     // of memory_, or of one empty bucket that nobody writes
  uint64_t bucket_count_ = 1;  // at least 1, so that searches end
  int64_t size_ = 0;
  int64_t size_limit_ = 0;  // grow before the next key
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_ROW_INDEX_H_
