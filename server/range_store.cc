#include "server/range_store.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "optim/dim_dispatch.h"
#include "optim/initializer.h"
#include "server/limited_rows.h"

namespace tandem::server {
namespace {

// Keys between one stage of the pipeline and the next. The distance is long enough to cover a cache
// miss, and short enough that a prefetched line is still in the second-level cache when it is used.
// 16 and 48 are no faster.
constexpr size_t kBlock = 32;

// Cap on expected_rows. A wrong hint costs at most 90 kB of memory, which each checkpoint reads.
constexpr int64_t kBelievedRows = 1 << 12;

// A range with fewer erased rows does not shrink.
constexpr size_t kLeastErased = 1024;

size_t Floats(int per_row, size_t rows) { return static_cast<size_t>(per_row) * rows; }

}  // namespace

RangeStore::RangeStore(const Options& options)
    : options_(options),
      slots_per_row_(options.optimizer->slots_per_row(options.dim)),
      own_arena_(options.arena == nullptr ? std::make_unique<PageArena>() : nullptr),
      arena_(options.arena == nullptr ? own_arena_.get() : options.arena),
      index_(options.salt, std::clamp<int64_t>(options.expected_rows, 0, kBelievedRows), arena_),
      rows_(options.dim, slots_per_row_, arena_) {
  if (options.limits.any()) {
    limits_ = std::make_unique<LimitedRows>(options.limits, this, options.counts);
  }
}

RangeStore::~RangeStore() = default;

int64_t RangeStore::size() const {
  return index_.size() - (limits_ == nullptr ? 0 : limits_->candidates());
}

// Everything that may fail comes first, so that a failure changes nothing.
absl::Status RangeStore::Add(uint64_t key, uint32_t* row_number) {
  uint32_t row = 0;
  TANDEM_RETURN_IF_ERROR(NextNumber(&row));
  TANDEM_RETURN_IF_ERROR(index_.Insert(key, row));
  StartRow(key, row);
  *row_number = row;
  return absl::OkStatus();
}

absl::Status RangeStore::NextNumber(uint32_t* row_number) {
  if (!free_.empty()) {
    *row_number = free_.back();
    return absl::OkStatus();
  }
  if (size() > int64_t{RowIndex::kLastRow}) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a range has at most ", int64_t{RowIndex::kLastRow} + 1, " rows"));
  }
  *row_number = static_cast<uint32_t>(size());
  return rows_.Reserve(size_t{*row_number} + 1);
}

void RangeStore::StartRow(uint64_t key, uint32_t row) {
  if (!free_.empty()) free_.pop_back();
  if (copies_ != nullptr) copies_->Leave(row);
  optim::InitRow(options_.initializer, options_.seed, key,
                 absl::MakeSpan(rows_.Weights(row), static_cast<size_t>(options_.dim)));
  options_.optimizer->InitSlots(
      options_.dim, absl::MakeSpan(rows_.Slots(row), static_cast<size_t>(slots_per_row_)));
}

// A block of keys in the pipeline under all batch calls. The pipeline has four stages, each one
// block behind the one before:
//   (1) hash the keys, prefetch their home buckets;
//   (2) find the row numbers of keys in their home bucket and prefetch those rows; for the others
//       (one key in twenty has overflowed, or is new) prefetch the next bucket;
//   (3) find the row numbers of the others with resolve(key, hash), prefetch those rows;
//   (4) use(index of the block's first key, block).
// The stages hand over pointers. Stage (3) may create rows, which moves the index and the rows in
// memory while other blocks are in other stages. A later stage sees this in the size of the index,
// or of the rows, and finds the pointers again. With limits (kLimits) a row number may also be the
// value of a candidate, and clocks of rows are prefetched; no row is created or erased before all
// blocks are done.
struct RangeStore::Block {
  absl::Span<const uint32_t> Rows() const { return {rows, keys.size()}; }
  absl::Span<float* const> Weights() const { return {weights, keys.size()}; }
  absl::Span<float* const> Slots() const { return {slots, keys.size()}; }
  void Hash(const RowIndex& index, absl::Span<const uint64_t> of) {
    keys = of;
    bucket_count = index.bucket_count();
    for (size_t i = 0; i < of.size(); ++i) {
      homes[i] = index.HomeOf(index.Hash(of[i]));
      RowIndex::Prefetch(homes[i]);
    }
  }
  ABSL_ATTRIBUTE_ALWAYS_INLINE void PointTo(const RowSlabs& from, size_t i, bool with_slots) {
    weights[i] = from.Weights(rows[i]);
    from.PrefetchWeights(weights[i]);
    if (!with_slots) return;
    slots[i] = from.Slots(rows[i]);
    from.PrefetchSlots(slots[i]);
  }

  absl::Span<const uint64_t> keys;
  const RowIndex::Bucket* homes[kBlock];
  uint64_t bucket_count;  // when `homes` were found
  uint32_t rows[kBlock];
  float* weights[kBlock];   // of each row that exists
  float* slots[kBlock];     // the same, if the slots are used
  size_t capacity;          // of the rows, when these pointers were found
  uint32_t others[kBlock];  // indices in this block
  size_t other_count;
};

template <bool kLimits>
inline void RangeStore::FindBlock(Block& block, bool with_slots) const {
  if (block.bucket_count != index_.bucket_count()) block.Hash(index_, block.keys);
  block.capacity = rows_.capacity();
  block.other_count = 0;
  for (size_t i = 0; i < block.keys.size(); ++i) {
    const uint32_t row = RowIndex::FindAtHome(block.keys[i], block.homes[i]);
    block.rows[i] = row;
    if (RowIndex::IsRow(row)) [[likely]] {
      block.PointTo(rows_, i, with_slots);
      if constexpr (kLimits) limits_->PrefetchClock(row);
    } else {
      index_.PrefetchNext(index_.Hash(block.keys[i]));
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

template <bool kLimits, typename Resolve, typename Use>
void RangeStore::ForEachBlock(absl::Span<const uint64_t> keys, bool with_slots, Resolve resolve,
                              Use use) const {
  Block blocks[4];
  const size_t count = (keys.size() + kBlock - 1) / kBlock;
  for (size_t t = 0; t < count + 3; ++t) {
    if (t >= 2 && t - 2 < count) {
      Block& block = blocks[(t - 2) % 4];
      for (size_t o = 0; o < block.other_count; ++o) {
        const uint32_t i = block.others[o];
        block.rows[i] = resolve(block.keys[i], index_.Hash(block.keys[i]));
        if (RowIndex::IsRow(block.rows[i])) block.PointTo(rows_, i, with_slots);
      }
    }
    if (t >= 1 && t - 1 < count) FindBlock<kLimits>(blocks[(t - 1) % 4], with_slots);
    if (t < count) blocks[t % 4].Hash(index_, keys.subspan(t * kBlock, kBlock));
    if (t >= 3) {
      Block& block = blocks[(t - 3) % 4];
      if (block.capacity != rows_.capacity()) [[unlikely]] {
        for (size_t i = 0; i < block.keys.size(); ++i) {
          if (RowIndex::IsRow(block.rows[i])) block.PointTo(rows_, i, with_slots);
        }
      }
      use((t - 3) * kBlock, const_cast<const Block&>(block));
    }
  }
}

// After a row could not be created, no further block is used and no further row is created.
template <typename Use>
absl::Status RangeStore::ForEachBlockCreating(absl::Span<const uint64_t> keys, Use use) {
  TANDEM_CHECK(limits_ == nullptr);
  absl::Status created;
  ForEachBlock<false>(
      keys, /*with_slots=*/true,
      [this, &created](uint64_t key, uint64_t hash) {
        uint32_t row = index_.Find(key, hash);
        if (row == RowIndex::kNoRow && created.ok()) [[unlikely]] {
          created = Add(key, &row);
        }
        return row;
      },
      [&created, &use](size_t first, const Block& block) {
        if (created.ok()) [[likely]] {
          use(first, block);
        }
      });
  return created;
}

template <bool kLimits, typename Use>
void RangeStore::ForEachBlockFinding(absl::Span<const uint64_t> keys, bool with_slots,
                                     Use use) const {
  ForEachBlock<kLimits>(
      keys, with_slots, [this](uint64_t key, uint64_t hash) { return index_.Find(key, hash); },
      use);
}

template <bool kLimits>
size_t RangeStore::PullRows(absl::Span<const uint64_t> keys, absl::Span<float> out) const {
  size_t absent = 0;
  const auto is_present = [this](uint32_t row) {
    return kLimits ? limits_->IsPresent(row) : row != RowIndex::kNoRow;
  };
  optim::DispatchDim(options_.dim, [&](auto dim) {
    ForEachBlockFinding<kLimits>(keys, false, [&](size_t first, const Block& block) {
      float* to = out.data() + Floats(dim, first);
      for (size_t i = 0; i < block.keys.size(); ++i, to += dim) {
        if (is_present(block.rows[i])) [[likely]] {
          std::memcpy(to, block.weights[i], Floats(dim, sizeof(float)));
          continue;
        }
        ++absent;
        if (kLimits && limits_->limits().zeros) {
          std::fill_n(to, Floats(dim, 1), 0.0f);
        } else {
          optim::InitRow(options_.initializer, options_.seed, block.keys[i],
                         absl::MakeSpan(to, Floats(dim, 1)));
        }
      }
    });
  });
  return absent;
}

size_t RangeStore::Pull(absl::Span<const uint64_t> keys, absl::Span<float> out) const {
  TANDEM_CHECK(out.size() == Floats(options_.dim, keys.size()));
  return limits_ == nullptr ? PullRows<false>(keys, out) : PullRows<true>(keys, out);
}

void RangeStore::ApplyBlock(absl::Span<float* const> weights, absl::Span<float* const> slots,
                            const float* gradients, float scale, int64_t step) {
  options_.optimizer->Apply(options_.dim, scale, step,
                            absl::MakeConstSpan(gradients, Floats(options_.dim, weights.size())),
                            weights, slots);
}

absl::Status RangeStore::Push(absl::Span<const uint64_t> keys, absl::Span<const float> gradients,
                              float scale, int64_t step) {
  TANDEM_CHECK(gradients.size() == Floats(options_.dim, keys.size()));
  if (limits_ != nullptr) {
    std::vector<uint32_t> rows(keys.size());
    TANDEM_RETURN_IF_ERROR(RowsForUpdate(keys, /*read_at=*/{}, absl::MakeSpan(rows)));
    ApplyToRows(keys, rows, gradients, scale, step);
    return absl::OkStatus();
  }
  return ForEachBlockCreating(keys, [&](size_t first, const Block& block) {
    const absl::Span<const float> from = gradients.subspan(Floats(options_.dim, first));
    PrefetchNextGradients(from, Floats(options_.dim, kBlock));
    BeforeChange(block.keys, block.Rows());
    ApplyBlock(block.Weights(), block.Slots(), from.data(), scale, step);
  });
}

void RangeStore::Find(absl::Span<const uint64_t> keys, absl::Span<uint32_t> row_numbers) const {
  TANDEM_CHECK(row_numbers.size() == keys.size());
  const auto copy = [&](size_t first, const Block& block) {
    std::copy_n(block.rows, block.keys.size(), row_numbers.data() + first);
  };
  if (limits_ == nullptr) return ForEachBlockFinding<false>(keys, true, copy);
  ForEachBlockFinding<true>(keys, true, copy);
  for (uint32_t& row : row_numbers) {
    if (!limits_->IsPresent(row)) row = RowIndex::kNoRow;
  }
}

absl::Status RangeStore::FindOrCreate(absl::Span<const uint64_t> keys,
                                      absl::Span<uint32_t> row_numbers) {
  TANDEM_CHECK(row_numbers.size() == keys.size());
  return ForEachBlockCreating(keys, [&](size_t first, const Block& block) {
    std::copy_n(block.rows, block.keys.size(), row_numbers.data() + first);
  });
}

// Has two phases. The first finds all keys, and sets the clocks of the present rows. The second
// decides about the other keys. The second may evict rows, but none whose clock the first has set,
// so the row numbers stay valid.
absl::Status RangeStore::RowsForUpdate(absl::Span<const uint64_t> keys,
                                       absl::Span<const int64_t> read_at,
                                       absl::Span<uint32_t> row_numbers) {
  TANDEM_CHECK(row_numbers.size() == keys.size());
  if (limits_ == nullptr) return FindOrCreate(keys, row_numbers);
  TANDEM_CHECK(read_at.empty() || read_at.size() == keys.size());
  limits_->BeginUpdate(keys, read_at);
  missing_.clear();
  ForEachBlockFinding<true>(keys, true, [&](size_t first, const Block& block) {
    BeforeChange(block.keys, block.Rows());
    for (size_t i = 0; i < block.keys.size(); ++i) {
      const uint32_t row = block.rows[i];
      const bool present = limits_->IsPresent(row);
      row_numbers[first + i] = present ? row : RowIndex::kNoRow;
      if (present) {
        limits_->Touch(first + i, row);
      } else {
        missing_.push_back(static_cast<uint32_t>(first + i));
      }
    }
  });
  for (size_t m = 0; m < missing_.size(); ++m) {
    if (m + kBlock < missing_.size()) {
      RowIndex::Prefetch(index_.HomeOf(index_.Hash(keys[missing_[m + kBlock]])));
    }
    TANDEM_RETURN_IF_ERROR(limits_->Admit(missing_[m], &row_numbers[missing_[m]]));
  }
  return absl::OkStatus();
}

void RangeStore::ApplyToRows(absl::Span<const uint64_t> keys,
                             absl::Span<const uint32_t> row_numbers,
                             absl::Span<const float> gradients, float scale, int64_t step) {
  TANDEM_CHECK(keys.size() == row_numbers.size());
  TANDEM_CHECK(gradients.size() == Floats(options_.dim, row_numbers.size()));
  BeforeChange(keys, row_numbers);
  float* weights[kBlock];
  float* slots[kBlock];
  const auto prefetch = [this](absl::Span<const uint32_t> rows) {
    for (const uint32_t row : rows) {
      if (RowIndex::IsRow(row)) rows_.Prefetch(row);
    }
  };
  prefetch(row_numbers.first(std::min(kBlock, row_numbers.size())));
  for (size_t first = 0; first < row_numbers.size(); first += kBlock) {
    if (first + kBlock < row_numbers.size()) prefetch(row_numbers.subspan(first + kBlock, kBlock));
    const absl::Span<const uint32_t> block = row_numbers.subspan(first, kBlock);
    for (size_t begin = 0, end = 0; begin < block.size(); begin = end + 1) {  // runs of rows
      for (end = begin; end < block.size() && RowIndex::IsRow(block[end]); ++end) {
        weights[end] = rows_.Weights(block[end]);
        slots[end] = rows_.Slots(block[end]);
      }
      if (begin == end) continue;
      ApplyBlock({weights + begin, end - begin}, {slots + begin, end - begin},
                 gradients.data() + Floats(options_.dim, first + begin), scale, step);
    }
  }
}

absl::Status RangeStore::Assign(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                                absl::Span<const float> slots) {
  const size_t dim = static_cast<size_t>(options_.dim);
  const size_t slots_per_row = static_cast<size_t>(slots_per_row_);
  TANDEM_CHECK(weights.size() == keys.size() * dim);
  TANDEM_CHECK(slots.empty() || slots.size() == keys.size() * slots_per_row);
  if (limits_ != nullptr) {
    return limits_->SetRows(keys, weights, slots, /*ages=*/{}, /*loads=*/false);
  }
  return ForEachBlockCreating(keys, [&](size_t first, const Block& block) {
    BeforeChange(block.keys, block.Rows());
    for (size_t i = 0; i < block.keys.size(); ++i) {
      std::copy_n(weights.data() + (first + i) * dim, dim, block.weights[i]);
      if (slots.empty()) continue;
      std::copy_n(slots.data() + (first + i) * slots_per_row, slots_per_row, block.slots[i]);
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
  TANDEM_CHECK(limits_ == nullptr);
  const uint32_t row = index_.Remove(key, index_.Hash(key));
  if (row == RowIndex::kNoRow) return false;
  BeforeChange({&key, 1}, {&row, 1});
  free_.push_back(row);
  ShrinkIfSparse();
  return true;
}

// When few rows remain, copies them to new memory and frees the old. Does nothing while a RowCopies
// is in progress, because it knows rows by their numbers. Without memory for the new rows nothing
// changes.
void RangeStore::ShrinkIfSparse() {
  if (free_.size() < kLeastErased || free_.size() < 2 * static_cast<size_t>(size())) return;
  if (copies_ != nullptr) return;
  RowIndex index(options_.salt, index_.size(), arena_);
  RowSlabs rows(options_.dim, slots_per_row_, arena_);
  std::vector<uint32_t> old_numbers;  // by new number
  old_numbers.reserve(static_cast<size_t>(size()));
  absl::Status moved = rows.Reserve(static_cast<size_t>(size()));
  index_.ForEach([&](uint64_t key, uint32_t row) {
    const bool is_row = RowIndex::IsRow(row);
    const uint32_t number = static_cast<uint32_t>(old_numbers.size());
    if (moved.ok()) moved = index.Insert(key, is_row ? number : row);
    if (!moved.ok() || !is_row) return;
    old_numbers.push_back(row);
    std::copy_n(rows_.Weights(row), options_.dim, rows.Weights(number));
    std::copy_n(rows_.Slots(row), slots_per_row_, rows.Slots(number));
  });
  if (moved.ok() && limits_ != nullptr) moved = limits_->Renumber(old_numbers);
  if (!moved.ok()) return;
  index_ = std::move(index);
  rows_ = std::move(rows);
  free_ = std::vector<uint32_t>();
}

uint64_t RangeStore::Scan(uint64_t cursor, size_t most, std::vector<uint64_t>* keys,
                          std::vector<uint32_t>* row_numbers) const {
  return index_.Scan(cursor, most, [&](uint64_t key, uint32_t row) {
    if (limits_ != nullptr && !limits_->IsPresent(row)) return;
    keys->push_back(key);
    row_numbers->push_back(row);
  });
}

RowCopies RangeStore::NewCopies(std::shared_ptr<CopyBlocks> blocks, size_t extra,
                                RowCopies::CopyExtra copy_extra) const {
  const auto floats = static_cast<size_t>(options_.dim + slots_per_row_);
  if (limits_ == nullptr) {
    return RowCopies(numbers(), floats, std::move(blocks), extra, std::move(copy_extra));
  }
  return RowCopies(numbers(), floats + 1, std::move(blocks), extra, std::move(copy_extra),
                   limits_->version());
}

uint64_t RangeStore::CopyRows(uint64_t cursor, size_t most, RowCopies* copies) const {
  std::vector<uint64_t> keys;
  std::vector<uint32_t> numbers;
  const size_t expected = std::min(most, static_cast<size_t>(index_.size())) + kBlock;
  keys.reserve(expected);
  numbers.reserve(expected);
  const uint64_t next = index_.Scan(cursor, most, [&](uint64_t key, uint32_t row) {
    if (!RowIndex::IsRow(row)) {
      if (copies->MissesCandidate(key, index_.Hash(key))) limits_->CopyCandidate(key, row, copies);
      return;
    }
    if (!copies->Misses(row)) return;
    keys.push_back(key);
    numbers.push_back(row);
  });
  copies->SetVisited(next);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kBlock < keys.size()) rows_.Prefetch(numbers[i + kBlock]);
    CopyMissing(keys[i], numbers[i], copies);
  }
  return next;
}

void RangeStore::CopyMissing(uint64_t key, uint32_t row_number, RowCopies* copies) const {
  if (limits_ != nullptr) return limits_->CopyRow(key, row_number, copies);
  CopyRow(row_number, copies->Add(key, row_number));
}

void RangeStore::SetAside(absl::Span<const uint64_t> keys, absl::Span<const uint32_t> row_numbers) {
  const size_t before = copies_->size();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (copies_->Misses(row_numbers[i])) CopyMissing(keys[i], row_numbers[i], copies_);
  }
  copies_->CountSetAside(copies_->size() - before);
}

StoreMemory RangeStore::Memory() const {
  StoreMemory memory = limits_ == nullptr ? StoreMemory() : limits_->Memory();
  memory.arena += index_.MemoryBytes() + rows_.MemoryBytes();
  memory.other += sizeof(*this) + (free_.capacity() + missing_.capacity()) * sizeof(uint32_t);
  return memory;
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
