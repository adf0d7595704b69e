// Keys that a range has evicted lately, in a fixed size: a part of them, by hash. The keys answer
// two questions. Was an update computed from a row that has been evicted since? How many evicted
// rows come back soon?
//
// For the first question, each place has the key that was evicted last. A busy range therefore
// forgets keys early and counts too few. For the second question, each place takes a key and keeps
// it for kBackWithin versions, whether or not the key comes back. So the sample favours no key.
//
// The keys do not move with a range and are not part of a checkpoint.
//
// Thread safety: none needed; belongs to a range.
#ifndef TANDEM_SERVER_ROWS_EVICTED_KEYS_H_
#define TANDEM_SERVER_ROWS_EVICTED_KEYS_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/hash.h"

namespace tandem::server {

class EvictedKeys {
 public:
  static constexpr int64_t kBackWithin = 1000;  // versions; docs/RESULTS.md and OBSERVE.md say so

  // `rows`: about how many rows the range has. Takes 1 to 2 bytes a row, 1 KB to 64 KB in all.
  // RowLimiter::Memory counts them.
  explicit EvictedKeys(size_t rows) {
    const size_t places = std::clamp<size_t>(std::bit_ceil(rows / 16), 64, 4096);
    last_.resize(places);
    sample_.resize(places);
  }

  // A row has been evicted at `version`. `died`: the first version at which reads do not see it.
  // `hash`: RowIndex::Hash of its key. True if the key is now part of the sample.
  bool Add(uint64_t hash, int64_t died, int64_t version) {
    newest_ = std::max(newest_, died);
    const uint64_t mixed = Mix64(hash);
    const Entry entry = {MarkOf(mixed), static_cast<uint32_t>(died)};
    last_[PlaceOf(mixed)] = entry;
    Entry& sampled = sample_[PlaceOf(mixed)];
    if (sampled.mark != 0 && VersionsSince(sampled, version) <= kBackWithin) return false;
    sampled = entry;
    return true;
  }

  // The largest `died` so far; -1 before the first.
  int64_t newest() const { return newest_; }

  // The version from which on reads did not see the evicted row of a key; -1 if it is not known.
  int64_t DiedAt(uint64_t hash, int64_t version) const {
    const uint64_t mixed = Mix64(hash);
    const Entry& entry = last_[PlaceOf(mixed)];
    return entry.mark == MarkOf(mixed) ? version - VersionsSince(entry, version) : -1;
  }

  // The key gets a row. True if it is part of the sample and its row was evicted at most
  // kBackWithin versions ago; true only once for each eviction.
  bool ComesBack(uint64_t hash, int64_t version) {
    const uint64_t mixed = Mix64(hash);
    Entry& sampled = sample_[PlaceOf(mixed)];
    if (sampled.mark != MarkOf(mixed) || VersionsSince(sampled, version) > kBackWithin) {
      return false;
    }
    sampled.mark = kCameBack;
    return true;
  }

  size_t MemoryBytes() const { return (last_.size() + sample_.size()) * sizeof(Entry); }

 private:
  struct Entry {
    uint32_t mark = 0;  // of the key; 0: the place is free
    uint32_t died = 0;  // the low bits of the version
  };
  static constexpr uint32_t kCameBack = 2;  // no mark is even

  static uint32_t MarkOf(uint64_t mixed) { return static_cast<uint32_t>(mixed) | 1; }
  size_t PlaceOf(uint64_t mixed) const { return MulHigh(mixed, last_.size()); }
  // Signed: a row that is evicted now dies with the next version.
  static int64_t VersionsSince(const Entry& entry, int64_t version) {
    return static_cast<int32_t>(static_cast<uint32_t>(version) - entry.died);
  }

  std::vector<Entry> last_, sample_;
  int64_t newest_ = -1;
};

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_EVICTED_KEYS_H_
