// Copies of all rows of a range as they are at one moment, the mark of a checkpoint. RowTable
// copies the rows in slices while training continues (CopyRows). It copies a row that changes
// before its slice just before the change.
//
// One bit for each row number says that no copy is needed any more: the row is copied, or was
// created after the mark. Rows are numbered as in RowTable. The copies have no order.
//
// Candidates of the index (row_limits.h) have no number. The store copies them in order of hash, so
// one hash separates the copied candidates from the others. A set has the keys of those others that
// were changed or added since the mark.
//
// Memory: chunks that never move, so that adding a row never copies the others.
// Thread safety: none; first the shard's thread, later the thread that writes the file.
#ifndef TANDEM_SERVER_ROWS_ROW_COPIES_H_
#define TANDEM_SERVER_ROWS_ROW_COPIES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/synchronization/mutex.h"
#include "base/hash.h"
#include "server/rows/memory_budget.h"
#include "server/rows/row_limits.h"

namespace tandem::server {

// Memory blocks for copies, all of one size. A block that is given back is used again, because a
// new page costs the system more time than copying rows into it. So at most as many exist as were
// in use at the same time. After Close, each block is freed when it is given back.
//
// Thread safety: any thread.
class CopyBlocks {
 public:
  static constexpr size_t kBytes = size_t{256} << 10;

  // `budget`: counts the memory, and outlives the last block; null: none.
  explicit CopyBlocks(MemoryBudget* budget = nullptr) : counted_(budget, /*copies=*/true) {}

  std::unique_ptr<std::byte[]> Take() {
    absl::MutexLock lock(&mutex_);
    if (!free_.empty()) {
      std::unique_ptr<std::byte[]> block = std::move(free_.back());
      free_.pop_back();
      return block;
    }
    std::unique_ptr<std::byte[]> block(new std::byte[kBytes]);  // its bytes are not set
    Count(kBytes, 0);
    return block;
  }
  // Memory counts until it is free, so the budget never takes it for memory of the process.
  void Give(std::unique_ptr<std::byte[]> block) {
    absl::MutexLock lock(&mutex_);
    if (!closed_) return free_.push_back(std::move(block));
    Free(std::move(block), kBytes);
    Count(0, kBytes);
  }
  void Close() {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    const size_t bytes = free_.size() * kBytes;
    for (auto& block : free_) Free(std::move(block), kBytes);
    free_.clear();
    Count(0, bytes);
  }
  // Frees memory of copies, and gives its pages back to the system. malloc may keep them, and they
  // would count as memory of the process.
  static void Free(std::unique_ptr<std::byte[]> memory, size_t bytes);
  // Counts memory of copies that do not fit in a block.
  void CountOther(size_t taken, size_t given) {
    absl::MutexLock lock(&mutex_);
    Count(taken, given);
  }

 private:
  void Count(size_t taken, size_t given) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    bytes_ += taken;
    bytes_ -= given;
    counted_.Set(bytes_);
  }

  absl::Mutex mutex_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::unique_ptr<std::byte[]>> free_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;  // of all blocks, and of the other copies
  MemoryBudget::Part counted_ ABSL_GUARDED_BY(mutex_);
};

// Copies of `floats` floats, with a key each.
class CopyList {
 public:
  CopyList() = default;  // takes no copy
  CopyList(size_t floats, std::shared_ptr<CopyBlocks> blocks);

  // Returns the place of the new copy's floats.
  float* Add(uint64_t key) {
    const size_t at = size_ % chunk_rows_;
    if (at == 0) AddChunk();
    ++size_;
    const Chunk& chunk = chunks_.back();
    chunk.keys[at] = key;
    return chunk.floats + at * floats_;
  }

  size_t size() const { return size_; }
  size_t floats() const { return floats_; }  // of a copy
  uint64_t key(uint32_t i) const {
    const uint64_t chunk = ChunkOf(i);
    return chunks_[chunk].keys[i - chunk * chunk_rows_];
  }
  const float* row(uint32_t i) const {
    const uint64_t chunk = ChunkOf(i);
    return chunks_[chunk].floats + (i - chunk * chunk_rows_) * floats_;
  }

 private:
  // A chunk gives its memory back. A chunk of very long rows does not fit in a block.
  struct GiveBack {
    GiveBack() : bytes(0) {}
    GiveBack(std::shared_ptr<CopyBlocks> owner, size_t other)
        : blocks(std::move(owner)), bytes(other) {}
    std::shared_ptr<CopyBlocks> blocks;
    size_t bytes;  // 0: it is a block
    void operator()(std::byte* memory) const {
      std::unique_ptr<std::byte[]> block(memory);
      if (bytes == 0) return blocks->Give(std::move(block));
      CopyBlocks::Free(std::move(block), bytes);
      blocks->CountOther(0, bytes);
    }
  };
  // The floats begin on a cache line. The keys follow them.
  struct Chunk {
    std::unique_ptr<std::byte[], GiveBack> memory;
    float* floats = nullptr;   // [chunk_rows_, floats_]
    uint64_t* keys = nullptr;  // [chunk_rows_]
  };

  // i / chunk_rows_, as RowSlabs::SlabOf.
  uint64_t ChunkOf(uint32_t i) const { return MulHigh(i, inverse_); }
  void AddChunk();

  size_t floats_ = 0;
  size_t chunk_rows_ = 2;  // at least 2, or inverse_ would not fit
  uint64_t inverse_ = 0;
  std::shared_ptr<CopyBlocks> blocks_;
  std::vector<Chunk> chunks_;
  size_t size_ = 0;
};

class RowCopies {
 public:
  // Writes the floats of a row that are not in the store.
  using CopyExtra = std::function<void(uint32_t row, float* to)>;

  RowCopies() = default;  // no row
  // Rows with numbers from `numbers` on do not exist yet. A copy has `floats` floats from the
  // store, and after them `extra` floats from `copy_extra`. `version`: of the range at the mark.
  // The memory comes from `blocks`.
  RowCopies(size_t numbers, size_t floats, std::shared_ptr<CopyBlocks> blocks, size_t extra = 0,
            CopyExtra copy_extra = nullptr, int64_t version = 0);

  // The row must be copied before it changes.
  bool Misses(uint32_t row) const {
    return row < numbers_ && (done_[row / 64] >> (row % 64) & 1) == 0;
  }
  // The row needs no copy, because it is new or counts as absent at the mark. No other row of the
  // mark has this number any more.
  void Leave(uint32_t row) {
    if (row < numbers_) done_[row / 64] |= uint64_t{1} << (row % 64);
  }
  // Adds a row that is missing. Returns the place for the floats from the store.
  float* Add(uint64_t key, uint32_t row);
  // Counts rows that were copied because they were about to change.
  void CountSetAside(size_t rows) { set_aside_ += rows; }

  // The candidate must be copied before it changes. `hash`: RowIndex::Hash of its key.
  bool MissesCandidate(uint64_t key, uint64_t hash) const {
    return hash >= visited_ && !changed_.contains(key);
  }
  // The candidate is about to change, or comes only now. Later calls do not copy it.
  void LeaveCandidate(uint64_t key) { changed_.insert(key); }
  void AddCandidate(const Candidate& candidate);
  // The candidates with smaller hashes are copied.
  void SetVisited(uint64_t hash) { visited_ = std::max(visited_, hash); }

  int64_t version() const { return version_; }
  size_t size() const { return rows_.size(); }  // rows
  size_t floats() const { return rows_.floats(); }
  const CopyList& rows() const { return rows_; }
  const CopyList& candidates() const { return candidates_; }
  static Candidate CandidateOf(const CopyList& candidates, uint32_t i);
  // Memory of what was copied, or remembered, because it was about to change.
  size_t set_aside_bytes() const {
    return set_aside_ * (floats() * sizeof(float) + sizeof(uint64_t)) +
           changed_.size() * 2 * sizeof(Candidate);
  }

 private:
  size_t numbers_ = 0, store_floats_ = 0;
  int64_t version_ = 0;
  CopyExtra copy_extra_;
  std::vector<uint64_t> done_;  // a bit for each number
  CopyList rows_, candidates_;
  size_t set_aside_ = 0;
  uint64_t visited_ = 0;                   // hashes of candidates below it are copied
  absl::flat_hash_set<uint64_t> changed_;  // keys of other candidates that need no copy
};

inline float* RowCopies::Add(uint64_t key, uint32_t row) {
  Leave(row);
  float* const to = rows_.Add(key);
  if (copy_extra_ != nullptr) copy_extra_(row, to + store_floats_);
  return to;
}

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROWS_ROW_COPIES_H_
