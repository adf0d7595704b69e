#include "server/rows/row_table.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/diverged.h"
#include "base/status_macros.h"
#include "optim/dim_dispatch.h"
#include "optim/row_rounding.h"
#include "optim/update_count.h"

namespace tandem::server {
namespace {

// Keys between one stage of the pipeline and the next. The distance is long enough to cover a cache
// miss, and short enough that a prefetched line is still in the second-level cache when it is used.
// 16 and 48 are no faster.
constexpr size_t kBlock = 32;

// How many keys before its use a bucket of the index is prefetched while rows are set.
constexpr size_t kAhead = 16;

constexpr double kAnyRows = std::numeric_limits<double>::infinity();

size_t Floats(int per_row, size_t rows) { return static_cast<size_t>(per_row) * rows; }

}  // namespace

// A block of keys in the pipeline under all batch calls. The pipeline has four stages, each one
// block behind the one before:
//   (1) hash the keys, prefetch their home buckets;
//   (2) find the row numbers of keys in their home bucket and prefetch those rows; for the others
//       (one key in twenty has overflowed, or is new) prefetch the next bucket;
//   (3) find the row numbers of the others, or create them with resolve(key, &row); prefetch those
//       rows;
//   (4) use(index of the block's first key, block).
// The stages hand over pointers. Stage (3) may create rows, which moves the index and the rows in
// memory while other blocks are in other stages. A later stage sees this in the size of the index,
// or of the rows, and finds the pointers again. With limits (kLimits) a row number may also be the
// value of a candidate, and clocks of rows are prefetched; no row is created or erased before all
// blocks are done.
struct RowTable::Block {
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
  ABSL_ATTRIBUTE_ALWAYS_INLINE void PointTo(const RowTable& from, size_t i, bool with_slots) {
    weights[i] = from.WeightsOf(rows[i]);
    from.rows_.PrefetchWeights(weights[i]);
    if (!with_slots) return;
    slots[i] = from.SlotsOf(rows[i]);
    from.rows_.PrefetchSlots(slots[i]);
  }

  absl::Span<const uint64_t> keys;
  const RowIndex::Bucket* homes[kBlock];
  uint64_t bucket_count;  // when `homes` were found
  uint32_t rows[kBlock];
  // Where each row that exists is stored, and its slots if they are used: as floats, unless the
  // format of the table says otherwise.
  float* weights[kBlock];
  float* slots[kBlock];
  size_t capacity;          // of the rows, when these pointers were found
  uint32_t others[kBlock];  // indices in this block
  size_t other_count;
};

template <bool kLimits>
inline void RowTable::FindBlock(Block& block, bool with_slots) const {
  if (block.bucket_count != index_.bucket_count()) block.Hash(index_, block.keys);
  block.capacity = rows_.capacity();
  block.other_count = 0;
  for (size_t i = 0; i < block.keys.size(); ++i) {
    const uint32_t row = RowIndex::FindAtHome(block.keys[i], block.homes[i]);
    block.rows[i] = row;
    if (RowIndex::IsRow(row)) [[likely]] {
      block.PointTo(*this, i, with_slots);
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

template <bool kLimits, typename Use, typename Resolve>
void RowTable::ForEachBlock(absl::Span<const uint64_t> keys, bool with_slots, Use use,
                            Resolve resolve) const {
  Block blocks[4];
  const size_t count = (keys.size() + kBlock - 1) / kBlock;
  for (size_t t = 0; t < count + 3; ++t) {
    if (t >= 2 && t - 2 < count) {
      Block& block = blocks[(t - 2) % 4];
      for (size_t o = 0; o < block.other_count; ++o) {
        const uint32_t i = block.others[o];
        block.rows[i] = index_.Find(block.keys[i], index_.Hash(block.keys[i]));
        if (block.rows[i] == kNoRow) resolve(block.keys[i], &block.rows[i]);
        if (RowIndex::IsRow(block.rows[i])) block.PointTo(*this, i, with_slots);
      }
    }
    if (t >= 1 && t - 1 < count) FindBlock<kLimits>(blocks[(t - 1) % 4], with_slots);
    if (t < count) blocks[t % 4].Hash(index_, keys.subspan(t * kBlock, kBlock));
    if (t >= 3) {
      Block& block = blocks[(t - 3) % 4];
      if (block.capacity != rows_.capacity()) [[unlikely]] {
        for (size_t i = 0; i < block.keys.size(); ++i) {
          if (RowIndex::IsRow(block.rows[i])) block.PointTo(*this, i, with_slots);
        }
      }
      use((t - 3) * kBlock, const_cast<const Block&>(block));
    }
  }
}

// After a row could not be created, no further block is used and no further row is created.
template <typename Use>
absl::Status RowTable::ForEachBlockCreating(absl::Span<const uint64_t> keys, Use use) {
  TANDEM_CHECK(limits_ == nullptr);
  absl::Status created;
  ForEachBlock<false>(
      keys, /*with_slots=*/true,
      [&created, &use](size_t first, const Block& block) {
        if (created.ok()) [[likely]] {
          use(first, block);
        }
      },
      [this, &created](uint64_t key, uint32_t* row) {
        if (created.ok()) created = Add(key, row);
      });
  return created;
}

// Fills `out` with the dim floats that a key without a row reads as.
template <bool kLimits>
void RowTable::FillAbsent(uint64_t key, float* out) const {
  if (kLimits && options_.limits.zeros) {
    std::fill_n(out, options_.dim, 0.0f);
  } else {
    format_.InitWeights(options_.initializer, options_.seed, key, out);
  }
}

template <bool kLimits, typename Copy>
size_t RowTable::PullRows(absl::Span<const uint64_t> keys, bool with_slots, absl::Span<float> out,
                          Copy copy) const {
  size_t absent = 0;
  const auto is_present = [this](uint32_t row) {
    return kLimits ? limits_->IsPresent(row) : row != kNoRow;
  };
  optim::DispatchDim(options_.dim, [&](auto dim) {
    ForEachBlock<kLimits>(keys, with_slots, [&](size_t first, const Block& block) {
      for (size_t i = 0; i < block.keys.size() && hot_ != nullptr; ++i) {
        if (is_present(block.rows[i])) hot_->Prefetch(block.weights[i]);
      }
      float* to = out.data() + Floats(dim, first);
      for (size_t i = 0; i < block.keys.size(); ++i, to += dim) {
        if (is_present(block.rows[i])) [[likely]] {
          copy(dim, block, i, to);
          continue;
        }
        ++absent;
        FillAbsent<kLimits>(block.keys[i], to);
      }
    });
  });
  return absent;
}

template <bool kLimits>
size_t RowTable::PullAs(absl::Span<const uint64_t> keys, absl::Span<float> out) const {
  if (options_.optimizer->catches_up()) {
    std::vector<float> slots(Floats(slots_per_row_, 1));
    return PullRows<kLimits>(
        keys, /*with_slots=*/true, out, [&](auto dim, const Block& block, size_t i, float* to) {
          ReadWeights(format_, hot_.get(), dim, block.weights[i], to);
          format_.ReadSlots(block.slots[i], slots.data());
          options_.optimizer->CatchUp(dim, settings_.steps_taken, to, slots.data(), to,
                                      /*out_slots=*/nullptr);
        });
  }
  if (format_.f32_weights()) {
    return PullRows<kLimits>(keys, /*with_slots=*/false, out,
                             [](auto dim, const Block& block, size_t i, float* to) {
                               std::memcpy(to, block.weights[i], Floats(dim, sizeof(float)));
                             });
  }
  return PullRows<kLimits>(keys, /*with_slots=*/false, out,
                           [this](auto dim, const Block& block, size_t i, float* to) {
                             ReadWeights(format_, hot_.get(), dim, block.weights[i], to);
                           });
}

size_t RowTable::Pull(absl::Span<const uint64_t> keys, absl::Span<float> out) const {
  TANDEM_CHECK(out.size() == Floats(options_.dim, keys.size()));
  return limits_ == nullptr ? PullAs<false>(keys, out) : PullAs<true>(keys, out);
}

template <bool kLimits>
size_t RowTable::PullStoredRows(absl::Span<const uint64_t> keys, size_t words, float* out) const {
  size_t absent = 0;
  std::vector<float> initial(Floats(options_.dim, 1));
  ForEachBlock<kLimits>(keys, /*with_slots=*/false, [&](size_t first, const Block& block) {
    float* to = out + first * words;
    for (size_t i = 0; i < block.keys.size(); ++i, to += words) {
      to[words - 1] = 0;  // may be longer than the row
      if (kLimits ? limits_->IsPresent(block.rows[i]) : block.rows[i] != kNoRow) [[likely]] {
        std::memcpy(to, static_cast<const void*>(block.weights[i]), format_.weight_bytes());
        continue;
      }
      ++absent;
      FillAbsent<kLimits>(block.keys[i], initial.data());
      format_.WriteWeights(initial.data(), to);
    }
  });
  return absent;
}

size_t RowTable::PullStored(absl::Span<const uint64_t> keys, size_t words,
                            absl::Span<float> out) const {
  TANDEM_CHECK(out.size() == keys.size() * words && !options_.optimizer->catches_up() &&
               hot_ == nullptr);
  TANDEM_CHECK(words * sizeof(float) >= format_.weight_bytes());
  return limits_ == nullptr ? PullStoredRows<false>(keys, words, out.data())
                            : PullStoredRows<true>(keys, words, out.data());
}

// Says which row its type, F16 or INT8, cannot hold.
std::string RowTable::Unstorable(uint64_t key, Table::Dtype type) const {
  const bool f16 = type == Table::F16;
  return absl::StrCat("table ", options_.table, ": the row of key ", key,
                      " has a weight that is not finite, or larger than ",
                      f16 ? optim::kMaxF16 : optim::kMaxInt8, ", which ", Table::Dtype_Name(type),
                      " cannot hold; hint: ", f16 ? "use BF16, or " : "");
}

// Makes a row hot. Returns false if there is no memory for it.
bool RowTable::MakeHot(void* stored) {
  const absl::Status made = hot_->Make(stored);
  if (!made.ok() && !options_.limits.at_budget) unstorable_.Update(made);
  return made.ok();
}

template <typename Dim>
void RowTable::StoreUpdated(Dim dim, uint64_t key, const float* from, int64_t stamp, void* stored) {
  using optim::RoundingBits;
  bool hot = false;
  if (hot_ != nullptr) {
    hot = format_.IsHot(stored);
    if (!hot) {
      const RoundingBits bits(options_.seed, stamp, key, RoundingBits::kUpdates);
      const uint8_t updates = optim::UpdateCount::Next(format_.Head(stored).updates, bits(0));
      format_.SetUpdates(updates, stored);
      if (optim::UpdateCount::Updates(updates) >= options_.types.hot_updates) {
        hot = MakeHot(stored);
      }
    }
  }
  const RoundingBits bits(options_.seed, stamp, key, RoundingBits::kWeights);
  const bool holds =
      hot ? optim::StoreRow(options_.types.hot, dim, from, bits, hot_->Weights(stored))
          : format_.WriteWeights(dim, from, bits, stored);
  if (holds) [[likely]] {
    return;
  }
  const Table::Dtype type = hot ? options_.types.hot : options_.types.row;
  unstorable_.Update(DivergedError(absl::StrCat(Unstorable(key, type), "lower the learning rate")));
}

// A row becomes hot if its head says so. A row that is hot stays hot.
void RowTable::StoreGiven(uint64_t key, const float* from, const optim::RowHead* head,
                          void* stored) {
  bool hot = hot_ != nullptr && format_.IsHot(stored);
  if (hot_ != nullptr && !hot && head != nullptr) {
    if (!head->hot()) format_.SetUpdates(head->updates, stored);
    if (head->hot()) {
      hot = MakeHot(stored);
      if (!hot) format_.SetUpdates(optim::UpdateCount::kLast, stored);
    }
  }
  const absl::Span<const float> row(from, Floats(options_.dim, 1));
  const bool holds =
      hot ? optim::StoreNearest(options_.types.hot, row, hot_->Weights(stored))
          : format_.WriteWeights(from, stored,
                                 head == nullptr ? optim::RowHead::kNoExponent : head->exponent);
  if (!holds) {
    const Table::Dtype type = hot ? options_.types.hot : options_.types.row;
    unstorable_.Update(absl::OutOfRangeError(absl::StrCat(Unstorable(key, type), "use F32")));
  }
}

// At most kBlock rows. Those that are not stored as floats are expanded, updated and stored again.
void RowTable::ApplyBlock(absl::Span<const uint64_t> keys, absl::Span<float* const> weights,
                          absl::Span<float* const> slots, const float* gradients, float scale,
                          const optim::OptimizerStep& step, Expanded* expanded) {
  const size_t rows = keys.size(), dim = Floats(options_.dim, 1), width = Floats(slots_per_row_, 1);
  const bool f32_weights = format_.f32_weights(), f32_slots = format_.f32_slots();
  const absl::Span<const float> all(gradients, rows * dim);
  if (f32_weights && f32_slots) [[likely]] {
    return options_.optimizer->Apply(options_.dim, scale, step, all, weights, slots);
  }
  float* w[kBlock];
  float* s[kBlock];
  if (!f32_weights) expanded->weights.resize(kBlock * dim);
  if (!f32_slots) expanded->slots.resize(kBlock * width);
  for (size_t i = 0; i < rows; ++i) {
    w[i] = f32_weights ? weights[i] : expanded->weights.data() + i * dim;
    s[i] = f32_slots ? slots[i] : expanded->slots.data() + i * width;
  }
  for (size_t i = 0; i < rows && hot_ != nullptr; ++i) hot_->Prefetch(weights[i]);
  if (!f32_weights) {
    optim::DispatchDim(options_.dim, [&](auto d) {
      for (size_t i = 0; i < rows; ++i) ReadWeights(format_, hot_.get(), d, weights[i], w[i]);
    });
  }
  for (size_t i = 0; i < rows && !f32_slots; ++i) format_.ReadSlots(slots[i], s[i]);
  options_.optimizer->Apply(options_.dim, scale, step, all, {w, rows}, {s, rows});
  if (!f32_weights) {
    optim::DispatchDim(options_.dim, [&](auto d) {
      for (size_t i = 0; i < rows; ++i) {
        StoreUpdated(d, keys[i], w[i], step.stamp, weights[i]);
      }
    });
  }
  for (size_t i = 0; i < rows && !f32_slots; ++i) {
    const optim::RoundingBits bits(options_.seed, step.stamp, keys[i], optim::RoundingBits::kState);
    format_.WriteSlots(s[i], bits, slots[i]);
  }
}

absl::Status RowTable::Push(absl::Span<const uint64_t> keys, absl::Span<const float> gradients,
                            float scale, const optim::OptimizerStep& step) {
  TANDEM_CHECK(gradients.size() == Floats(options_.dim, keys.size()));
  if (limits_ != nullptr) {
    std::vector<uint32_t> rows(keys.size());
    TANDEM_RETURN_IF_ERROR(RowsForUpdate(keys, /*read_at=*/{}, absl::MakeSpan(rows)));
    ApplyToRows(keys, rows, gradients, scale, step);
    return absl::OkStatus();
  }
  Expanded expanded;
  return ForEachBlockCreating(keys, [&](size_t first, const Block& block) {
    const absl::Span<const float> from = gradients.subspan(Floats(options_.dim, first));
    PrefetchNextGradients(from, Floats(options_.dim, kBlock));
    BeforeChange(block.keys, block.Rows());
    ApplyBlock(block.keys, block.Weights(), block.Slots(), from.data(), scale, step, &expanded);
  });
}

void RowTable::Find(absl::Span<const uint64_t> keys, absl::Span<uint32_t> row_numbers) const {
  TANDEM_CHECK(row_numbers.size() == keys.size());
  const auto copy = [&](size_t first, const Block& block) {
    std::copy_n(block.rows, block.keys.size(), row_numbers.data() + first);
  };
  if (limits_ == nullptr) return ForEachBlock<false>(keys, true, copy);
  ForEachBlock<true>(keys, true, copy);
  for (uint32_t& row : row_numbers) {
    if (!limits_->IsPresent(row)) row = kNoRow;
  }
}

absl::Status RowTable::FindOrCreate(absl::Span<const uint64_t> keys,
                                    absl::Span<uint32_t> row_numbers) {
  TANDEM_CHECK(row_numbers.size() == keys.size());
  return ForEachBlockCreating(keys, [&](size_t first, const Block& block) {
    std::copy_n(block.rows, block.keys.size(), row_numbers.data() + first);
  });
}

// Has two phases. The first finds all keys, and sets the clocks of the present rows. The second
// decides about the other keys. The second may evict rows, but none whose clock the first has set,
// so the row numbers stay valid.
absl::Status RowTable::RowsForUpdate(absl::Span<const uint64_t> keys,
                                     absl::Span<const int64_t> read_at,
                                     absl::Span<uint32_t> row_numbers) {
  TANDEM_CHECK(row_numbers.size() == keys.size());
  if (limits_ == nullptr) return FindOrCreate(keys, row_numbers);
  TANDEM_CHECK(read_at.empty() || read_at.size() == keys.size());
  limits_->BeginUpdate(read_at);
  missing_.clear();
  ForEachBlock<true>(keys, true, [&](size_t first, const Block& block) {
    BeforeChange(block.keys, block.Rows());
    for (size_t i = 0; i < block.keys.size(); ++i) {
      const uint32_t row = block.rows[i];
      const bool present = limits_->IsPresent(row);
      row_numbers[first + i] = present ? row : kNoRow;
      if (!present) {
        missing_.push_back(static_cast<uint32_t>(first + i));
        continue;
      }
      limits_->SetAge(row, 0);
      if (limits_->may_be_fresh()) {
        limits_->CountIfFresh(first + i, index_.Hash(block.keys[i]));
      }
    }
  });
  for (size_t m = 0; m < missing_.size(); ++m) {
    if (m + kBlock < missing_.size()) {
      RowIndex::Prefetch(index_.HomeOf(index_.Hash(keys[missing_[m + kBlock]])));
    }
    const size_t i = missing_[m];
    TANDEM_RETURN_IF_ERROR(Admit(i, keys[i], &row_numbers[i]));
  }
  return absl::OkStatus();
}

void RowTable::ApplyToRows(absl::Span<const uint64_t> keys, absl::Span<const uint32_t> row_numbers,
                           absl::Span<const float> gradients, float scale,
                           const optim::OptimizerStep& step) {
  TANDEM_CHECK(keys.size() == row_numbers.size());
  TANDEM_CHECK(gradients.size() == Floats(options_.dim, row_numbers.size()));
  BeforeChange(keys, row_numbers);
  Expanded expanded;
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
        weights[end] = WeightsOf(block[end]);
        slots[end] = SlotsOf(block[end]);
      }
      if (begin == end) continue;
      ApplyBlock(keys.subspan(first + begin, end - begin), {weights + begin, end - begin},
                 {slots + begin, end - begin},
                 gradients.data() + Floats(options_.dim, first + begin), scale, step, &expanded);
    }
  }
}

absl::Status RowTable::Assign(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                              absl::Span<const float> slots) {
  TANDEM_CHECK(weights.size() == Floats(options_.dim, keys.size()));
  TANDEM_CHECK(slots.empty() || slots.size() == Floats(slots_per_row_, keys.size()));
  return limited() ? SetRows(keys, weights, slots, /*ages=*/{}, /*heads=*/{}, kAnyRows)
                   : SetUnlimited(keys, weights, slots, /*heads=*/{});
}

absl::Status RowTable::SetUnlimited(absl::Span<const uint64_t> keys,
                                    absl::Span<const float> weights, absl::Span<const float> slots,
                                    absl::Span<const optim::RowHead> heads) {
  const size_t dim = Floats(options_.dim, 1), width = Floats(slots_per_row_, 1);
  TANDEM_RETURN_IF_ERROR(ForEachBlockCreating(keys, [&](size_t first, const Block& block) {
    BeforeChange(block.keys, block.Rows());
    for (size_t i = 0; i < block.keys.size(); ++i) {
      const size_t at = first + i;
      StoreGiven(block.keys[i], weights.data() + at * dim, heads.empty() ? nullptr : &heads[at],
                 block.weights[i]);
      if (!slots.empty()) format_.WriteSlots(slots.data() + at * width, block.slots[i]);
    }
  }));
  return unstorable_;
}

uint64_t RowTable::Scan(uint64_t cursor, size_t most, std::vector<uint64_t>* keys,
                        std::vector<uint32_t>* row_numbers) const {
  return index_.Scan(cursor, most, [&](uint64_t key, uint32_t row) {
    if (limits_ != nullptr && !limits_->IsPresent(row)) return;
    keys->push_back(key);
    row_numbers->push_back(row);
  });
}

uint64_t RowTable::CopyRows(uint64_t cursor, size_t most, RowCopies* copies) const {
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

// Creates the row of key i of an update. *row_number: kNoRow if the limits refuse the key. (The key
// already has a row if the update contains the key twice.)
absl::Status RowTable::Admit(size_t i, uint64_t key, uint32_t* row_number) {
  const uint64_t hash = index_.Hash(key);
  const uint32_t value = ValueOf(key, hash);
  *row_number = value;
  if (RowIndex::IsRow(value)) return absl::OkStatus();
  *row_number = kNoRow;
  uint32_t candidate = kNoRow;
  if (!limits_->Admits(key, value, &candidate)) {
    ++limits_->counts().refused;
    return candidate == kNoRow ? absl::OkStatus() : PutCandidate(key, hash, value, candidate, 0);
  }
  TANDEM_RETURN_IF_ERROR(Create(key, hash, value, /*age=*/0, row_number));
  if (*row_number != kNoRow) limits_->OnCreated(i, hash, *row_number);
  return absl::OkStatus();
}

absl::Status RowTable::Load(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                            absl::Span<const float> slots, absl::Span<const uint32_t> ages,
                            absl::Span<const optim::RowHead> heads) {
  if (!limited()) return SetUnlimited(keys, weights, slots, heads);
  loadable_ += settings_.load_share * static_cast<double>(keys.size());
  const double max_rows = settings_.load_share < 1 ? std::max(loadable_, 1.0) : kAnyRows;
  const bool lists = std::exchange(settings_.lists_evicted, false);
  limits_->BeginLoad();
  const absl::Status set = SetRows(keys, weights, slots, ages, heads, max_rows);
  limits_->EndLoad();
  settings_.lists_evicted = lists;
  return set;
}

// Sets one row after the other, because a row may be evicted for the next one. Leaves out rows for
// which there is no room, and rows that count as absent.
absl::Status RowTable::SetRows(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                               absl::Span<const float> slots, absl::Span<const uint32_t> ages,
                               absl::Span<const optim::RowHead> heads, double max_rows) {
  const auto dim = static_cast<size_t>(options_.dim);
  const auto slots_per_row = static_cast<size_t>(slots_per_row_);
  for (size_t i = 0; i < keys.size(); ++i) {
    if (i + kAhead < keys.size()) {
      RowIndex::Prefetch(index_.HomeOf(index_.Hash(keys[i + kAhead])));
    }
    uint32_t age = ages.empty() ? 0 : ages[i];
    const bool full = static_cast<double>(size()) >= max_rows;
    if (full && !EvictOldest(/*rows=*/true, age)) continue;
    if (limits_->IsTooOld(age)) continue;
    age = std::min(age, RowLimiter::kMaxRowAge);
    const uint64_t hash = index_.Hash(keys[i]);
    uint32_t row = ValueOf(keys[i], hash);
    if (RowIndex::IsRow(row)) {
      BeforeChange({&keys[i], 1}, {&row, 1});
      limits_->SetAge(row, age);
    } else {
      TANDEM_RETURN_IF_ERROR(Create(keys[i], hash, row, age, &row));
      if (row == kNoRow) continue;
    }
    StoreGiven(keys[i], weights.data() + i * dim, heads.empty() ? nullptr : &heads[i],
               WeightsOf(row));
    if (!slots.empty()) format_.WriteSlots(slots.data() + i * slots_per_row, SlotsOf(row));
  }
  return unstorable_;
}

StoreMemory RowTable::Memory() const {
  StoreMemory memory = limits_ == nullptr ? StoreMemory() : limits_->Memory();
  memory.arena += index_.MemoryBytes() + rows_.MemoryBytes();
  memory.other += sizeof(*this) + (free_.capacity() + missing_.capacity()) * sizeof(uint32_t);
  if (hot_ != nullptr) {
    memory.arena += hot_->MemoryBytes();
    memory.other += hot_->OtherBytes();
  }
  return memory;
}

}  // namespace tandem::server
