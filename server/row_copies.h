// Copies of all rows of a range as they are at one moment, the mark of a checkpoint. RangeStore
// copies the rows in slices while training continues (CopyRows). It copies a row that changes
// before its slice just before the change.
//
// One bit for each row number says that no copy is needed any more: the row is copied, or was
// created after the mark. Rows are numbered as in RangeStore. The copies have no order.
//
// Memory: chunks that never move, so that adding a row never copies the others.
// Thread safety: none; first the shard's thread, later the thread that writes the file.
#ifndef TANDEM_SERVER_ROW_COPIES_H_
#define TANDEM_SERVER_ROW_COPIES_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace tandem::server {

class RowCopies {
 public:
  // Writes the floats of a row that are not in the store.
  using CopyExtra = std::function<void(uint32_t row, float* to)>;

  // Rows with numbers from `numbers` on do not exist yet. A copy has `floats` floats from the
  // store, and after them `extra` floats from `copy_extra`.
  RowCopies(size_t numbers, size_t floats, size_t extra = 0, CopyExtra copy_extra = nullptr)
      : numbers_(numbers),
        store_floats_(floats),
        floats_(floats + extra),
        chunk_rows_(std::max<size_t>(1, kChunkBytes / (floats_ * sizeof(float)))),
        copy_extra_(std::move(copy_extra)),
        done_((numbers + 63) / 64) {}

  // The row must be copied before it changes.
  bool Misses(uint32_t row) const {
    return row < numbers_ && (done_[row / 64] >> (row % 64) & 1) == 0;
  }
  // A new row gets this number. No row of the mark has this number any more.
  void OnCreated(uint32_t row) {
    if (row < numbers_) done_[row / 64] |= uint64_t{1} << (row % 64);
  }
  // Adds a row that is missing. Returns the place for the floats from the store.
  float* Add(uint64_t key, uint32_t row);
  // Counts rows that were copied because they were about to change.
  void CountSetAside(size_t rows) { set_aside_ += rows; }

  size_t size() const { return size_; }
  size_t floats() const { return floats_; }  // of a copy
  uint64_t key(size_t i) const { return chunks_[i / chunk_rows_].keys[i % chunk_rows_]; }
  const float* row(size_t i) const {
    return chunks_[i / chunk_rows_].floats.get() + i % chunk_rows_ * floats_;
  }
  // Memory of the rows that were copied because they were about to change.
  size_t set_aside_bytes() const {
    return set_aside_ * (floats_ * sizeof(float) + sizeof(uint64_t));
  }

 private:
  static constexpr size_t kChunkBytes = size_t{256} << 10;
  struct Chunk {
    std::vector<uint64_t> keys;
    std::unique_ptr<float[]> floats;
  };

  size_t numbers_, store_floats_, floats_, chunk_rows_;
  CopyExtra copy_extra_;
  std::vector<uint64_t> done_;  // a bit for each number
  std::vector<Chunk> chunks_;
  size_t size_ = 0, set_aside_ = 0;
};

inline float* RowCopies::Add(uint64_t key, uint32_t row) {
  OnCreated(row);
  const size_t at = size_++ % chunk_rows_;
  if (at == 0) {
    Chunk& chunk = chunks_.emplace_back();
    chunk.keys.reserve(chunk_rows_);
    chunk.floats.reset(new float[chunk_rows_ * floats_]);
  }
  chunks_.back().keys.push_back(key);
  float* const to = chunks_.back().floats.get() + at * floats_;
  if (copy_extra_ != nullptr) copy_extra_(row, to + store_floats_);
  return to;
}

}  // namespace tandem::server

#endif  // TANDEM_SERVER_ROW_COPIES_H_
