#include "server/range_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "optim/dim_dispatch.h"
#include "optim/initializer.h"

namespace tandem::server {
namespace {

// Keys between one stage of the pipeline and the next. The distance is long enough to cover a cache
// miss, and short enough that a prefetched line is still in the second-level cache when it is used.
// 16 and 48 are no faster.
constexpr size_t kBlock = 32;

constexpr int64_t kBelievedRows = 1 << 16;  // cap on expected_rows: a wrong hint costs <= 1.4 MB

size_t Floats(int per_row, size_t rows) { return static_cast<size_t>(per_row) * rows; }

}  // namespace

RangeStore::RangeStore(const Options& options)
    : options_(options),
      slots_per_row_(options.optimizer->slots_per_row(options.dim)),
      index_(options.salt, std::clamp<int64_t>(options.expected_rows, 0, kBelievedRows)),
      rows_(options.dim, slots_per_row_) {}

uint32_t RangeStore::Create(uint64_t key) {
  TANDEM_CHECK(index_.size() < int64_t{RowIndex::kNoRow} && "a range holds 2^32 - 1 rows at most");
  uint32_t row = static_cast<uint32_t>(index_.size());
  if (free_.empty()) {
    rows_.Reserve(size_t{row} + 1);
  } else {
    row = free_.back();
    free_.pop_back();
  }
  if (copies_ != nullptr) copies_->OnCreated(row);
  optim::InitRow(options_.initializer, options_.seed, key,
                 absl::MakeSpan(rows_.Weights(row), static_cast<size_t>(options_.dim)));
  options_.optimizer->InitSlots(
      options_.dim, absl::MakeSpan(rows_.Slots(row), static_cast<size_t>(slots_per_row_)));
  index_.Insert(key, row);
  return row;
}

// A block of keys in the pipeline under all batch calls. The pipeline has four stages, each one
// block behind the one before:
//   (1) hash the keys, prefetch their home buckets;
//   (2) find the row numbers of keys in their home bucket and prefetch those rows; for the others
//       (one key in twenty has overflowed, or is new) prefetch the next bucket;
//   (3) find the row numbers of the others with resolve(key, hash), prefetch those rows;
//   (4) use(index of the block's first key, row numbers).
// The stages hand over row numbers and hashes, never pointers. So stage (3) may create rows, which
// moves the index and the rows in memory, while other blocks are in other stages.
struct RangeStore::Block {
  absl::Span<const uint64_t> keys;
  uint64_t hashes[kBlock];
  uint32_t rows[kBlock];
  uint32_t others[kBlock];  // indices in this block
  size_t other_count;
};

inline void RangeStore::HashBlock(absl::Span<const uint64_t> keys, Block& block) const {
  block.keys = keys;
  for (size_t i = 0; i < keys.size(); ++i) {
    block.hashes[i] = index_.Hash(keys[i]);
    index_.Prefetch(block.hashes[i]);
  }
}

ABSL_ATTRIBUTE_ALWAYS_INLINE inline void RangeStore::PrefetchRow(uint32_t row,
                                                                 bool with_slots) const {
  rows_.PrefetchWeights(row);
  if (with_slots) rows_.PrefetchSlots(row);
}

inline void RangeStore::FindBlock(Block& block, bool with_slots) const {
  block.other_count = 0;
  for (size_t i = 0; i < block.keys.size(); ++i) {
    const uint32_t row = index_.FindAtHome(block.keys[i], block.hashes[i]);
    block.rows[i] = row;
    if (row != RowIndex::kNoRow) [[likely]] {
      PrefetchRow(row, with_slots);
    } else {
      index_.PrefetchNext(block.hashes[i]);
      block.others[block.other_count++] = static_cast<uint32_t>(i);
    }
  }
}

// Prefetches the gradients of the next block. Gradients are in the cache of the core that received
// them, which is nearly as far away as memory.
inline void PrefetchNextGradients(absl::Span<const float> from, size_t block_floats) {
  constexpr size_t kLine = 64 / sizeof(float);
  const size_t end = std::min(2 * block_floats, from.size());
  for (size_t i = block_floats; i < end; i += kLine) __builtin_prefetch(from.data() + i);
}

template <typename Resolve, typename Use>
void RangeStore::ForEachBlock(absl::Span<const uint64_t> keys, bool with_slots, Resolve resolve,
                              Use use) const {
  Block blocks[4];
  const size_t count = (keys.size() + kBlock - 1) / kBlock;
  for (size_t t = 0; t < count + 3; ++t) {
    if (t >= 2 && t - 2 < count) {
      Block& block = blocks[(t - 2) % 4];
      for (size_t o = 0; o < block.other_count; ++o) {
        const uint32_t i = block.others[o];
        block.rows[i] = resolve(block.keys[i], block.hashes[i]);
        if (block.rows[i] != RowIndex::kNoRow) PrefetchRow(block.rows[i], with_slots);
      }
    }
    if (t >= 1 && t - 1 < count) FindBlock(blocks[(t - 1) % 4], with_slots);
    if (t < count) HashBlock(keys.subspan(t * kBlock, kBlock), blocks[t % 4]);
    if (t >= 3) {
      const Block& block = blocks[(t - 3) % 4];
      use((t - 3) * kBlock, absl::MakeConstSpan(block.rows, block.keys.size()));
    }
  }
}

template <typename Use>
void RangeStore::ForEachBlockCreating(absl::Span<const uint64_t> keys, Use use) {
  ForEachBlock(
      keys, /*with_slots=*/true,
      [this](uint64_t key, uint64_t hash) {
        const uint32_t row = index_.Find(key, hash);
        if (row != RowIndex::kNoRow) [[likely]] {
          return row;
        }
        return Create(key);
      },
      use);
}

template <typename Use>
void RangeStore::ForEachBlockFinding(absl::Span<const uint64_t> keys, bool with_slots,
                                     Use use) const {
  ForEachBlock(
      keys, with_slots, [this](uint64_t key, uint64_t hash) { return index_.Find(key, hash); },
      use);
}

void RangeStore::Pull(absl::Span<const uint64_t> keys, absl::Span<float> out) const {
  TANDEM_CHECK(out.size() == Floats(options_.dim, keys.size()));
  optim::DispatchDim(options_.dim, [&](auto dim) {
    ForEachBlockFinding(keys, false, [&](size_t first, absl::Span<const uint32_t> rows) {
      float* to = out.data() + Floats(dim, first);
      for (size_t i = 0; i < rows.size(); ++i, to += dim) {
        if (rows[i] != RowIndex::kNoRow) [[likely]] {
          std::memcpy(to, rows_.Weights(rows[i], dim), Floats(dim, sizeof(float)));
        } else {
          optim::InitRow(options_.initializer, options_.seed, keys[first + i],
                         absl::MakeSpan(to, Floats(dim, 1)));
        }
      }
    });
  });
}

// Requires: rows.size() <= kBlock.
void RangeStore::ApplyBlock(absl::Span<const uint32_t> rows, const float* gradients, float scale) {
  float* weights[kBlock];
  float* slots[kBlock];
  for (size_t i = 0; i < rows.size(); ++i) {
    weights[i] = rows_.Weights(rows[i]);
    slots[i] = rows_.Slots(rows[i]);
  }
  options_.optimizer->Apply(
      options_.dim, scale, absl::MakeConstSpan(gradients, Floats(options_.dim, rows.size())),
      absl::MakeConstSpan(weights, rows.size()), absl::MakeConstSpan(slots, rows.size()));
}

void RangeStore::Push(absl::Span<const uint64_t> keys, absl::Span<const float> gradients,
                      float scale) {
  TANDEM_CHECK(gradients.size() == Floats(options_.dim, keys.size()));
  ForEachBlockCreating(keys, [&](size_t first, absl::Span<const uint32_t> rows) {
    const absl::Span<const float> from = gradients.subspan(Floats(options_.dim, first));
    PrefetchNextGradients(from, Floats(options_.dim, kBlock));
    BeforeChange(keys.subspan(first, rows.size()), rows);
    ApplyBlock(rows, from.data(), scale);
  });
}

void RangeStore::Find(absl::Span<const uint64_t> keys, absl::Span<uint32_t> row_numbers) const {
  TANDEM_CHECK(row_numbers.size() == keys.size());
  ForEachBlockFinding(keys, true, [&](size_t first, absl::Span<const uint32_t> rows) {
    std::copy(rows.begin(), rows.end(), row_numbers.data() + first);
  });
}

void RangeStore::FindOrCreate(absl::Span<const uint64_t> keys, absl::Span<uint32_t> row_numbers) {
  TANDEM_CHECK(row_numbers.size() == keys.size());
  ForEachBlockCreating(keys, [&](size_t first, absl::Span<const uint32_t> rows) {
    std::copy(rows.begin(), rows.end(), row_numbers.data() + first);
  });
}

void RangeStore::ApplyToRows(absl::Span<const uint64_t> keys,
                             absl::Span<const uint32_t> row_numbers,
                             absl::Span<const float> gradients, float scale) {
  TANDEM_CHECK(keys.size() == row_numbers.size());
  TANDEM_CHECK(gradients.size() == Floats(options_.dim, row_numbers.size()));
  BeforeChange(keys, row_numbers);
  for (const uint32_t row : row_numbers.first(std::min(kBlock, row_numbers.size()))) {
    PrefetchRow(row, true);
  }
  for (size_t first = 0; first < row_numbers.size(); first += kBlock) {
    if (first + kBlock < row_numbers.size()) {
      for (const uint32_t row : row_numbers.subspan(first + kBlock, kBlock)) PrefetchRow(row, true);
    }
    ApplyBlock(row_numbers.subspan(first, kBlock), gradients.data() + Floats(options_.dim, first),
               scale);
  }
}

void RangeStore::Assign(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                        absl::Span<const float> slots) {
  const size_t dim = static_cast<size_t>(options_.dim);
  const size_t slots_per_row = static_cast<size_t>(slots_per_row_);
  TANDEM_CHECK(weights.size() == keys.size() * dim);
  TANDEM_CHECK(slots.empty() || slots.size() == keys.size() * slots_per_row);
  ForEachBlockCreating(keys, [&](size_t first, absl::Span<const uint32_t> rows) {
    BeforeChange(keys.subspan(first, rows.size()), rows);
    for (size_t i = 0; i < rows.size(); ++i) {
      std::copy_n(weights.data() + (first + i) * dim, dim, rows_.Weights(rows[i]));
      if (slots.empty()) continue;
      std::copy_n(slots.data() + (first + i) * slots_per_row, slots_per_row, rows_.Slots(rows[i]));
    }
  });
}

void RangeStore::CopyRow(uint32_t row_number, float* out) const {
  std::copy_n(rows_.Weights(row_number), options_.dim, out);
  std::copy_n(rows_.Slots(row_number), slots_per_row_, out + options_.dim);
}

void RangeStore::SetRow(uint64_t key, uint32_t row_number, const float* values) {
  BeforeChange({&key, 1}, {&row_number, 1});
  std::copy_n(values, options_.dim, rows_.Weights(row_number));
  std::copy_n(values + options_.dim, slots_per_row_, rows_.Slots(row_number));
}

bool RangeStore::Erase(uint64_t key) {
  const uint32_t row = index_.Remove(key, index_.Hash(key));
  if (row == RowIndex::kNoRow) return false;
  BeforeChange({&key, 1}, {&row, 1});
  free_.push_back(row);
  return true;
}

uint64_t RangeStore::Scan(uint64_t cursor, size_t most, std::vector<uint64_t>* keys,
                          std::vector<uint32_t>* row_numbers) const {
  return index_.Scan(cursor, most, [&](uint64_t key, uint32_t row) {
    keys->push_back(key);
    row_numbers->push_back(row);
  });
}

RowCopies RangeStore::NewCopies(std::shared_ptr<CopyBlocks> blocks, size_t extra,
                                RowCopies::CopyExtra copy_extra) const {
  return RowCopies(numbers(), static_cast<size_t>(options_.dim + slots_per_row_), std::move(blocks),
                   extra, std::move(copy_extra));
}

uint64_t RangeStore::CopyRows(uint64_t cursor, size_t most, RowCopies* copies) const {
  std::vector<uint64_t> keys;
  std::vector<uint32_t> numbers;
  keys.reserve(most + kBlock);
  numbers.reserve(most + kBlock);
  const uint64_t next = index_.Scan(cursor, most, [&](uint64_t key, uint32_t row) {
    if (!copies->Misses(row)) return;
    keys.push_back(key);
    numbers.push_back(row);
  });
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kBlock < keys.size()) PrefetchRow(numbers[i + kBlock], true);
    CopyRow(numbers[i], copies->Add(keys[i], numbers[i]));
  }
  return next;
}

void RangeStore::SetAside(absl::Span<const uint64_t> keys, absl::Span<const uint32_t> row_numbers) {
  const size_t before = copies_->size();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!copies_->Misses(row_numbers[i])) continue;
    CopyRow(row_numbers[i], copies_->Add(keys[i], row_numbers[i]));
  }
  copies_->CountSetAside(copies_->size() - before);
}

size_t RangeStore::MemoryBytes() const {
  return sizeof(*this) + index_.MemoryBytes() + rows_.MemoryBytes(numbers()) +
         free_.capacity() * sizeof(uint32_t);
}

absl::Span<const float> RangeStore::Weights(uint32_t row_number) const {
  TANDEM_CHECK(row_number < numbers());
  return {rows_.Weights(row_number), static_cast<size_t>(options_.dim)};
}

absl::Span<const float> RangeStore::Slots(uint32_t row_number) const {
  TANDEM_CHECK(row_number < numbers());
  return {rows_.Slots(row_number), static_cast<size_t>(slots_per_row_)};
}

}  // namespace tandem::server
