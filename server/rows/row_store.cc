#include "server/rows/row_store.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace tandem::server {
namespace {

// Cap on expected_rows. A wrong hint costs at most 90 kB of memory, which each checkpoint reads.
constexpr int64_t kBelievedRows = 1 << 12;

// A range with fewer erased rows does not shrink.
constexpr size_t kMinErased = 1024;

std::unique_ptr<HotRows> NewHotRows(const RowStore::Options& options,
                                    const optim::RowFormat& format, PageArena* arena) {
  return HotRows::New(format, options.limits.at_budget ? options.may_grow : nullptr, arena);
}

}  // namespace

RowStore::RowStore(const Options& options)
    : options_(options),
      slots_per_row_(options.optimizer->slots_per_row(options.dim)),
      format_(options.types, options.dim, *options.optimizer),
      own_arena_(options.arena == nullptr ? std::make_unique<PageArena>() : nullptr),
      arena_(options.arena == nullptr ? own_arena_.get() : options.arena),
      index_(options.salt, std::clamp<int64_t>(options.expected_rows, 0, kBelievedRows), arena_),
      rows_(format_.weight_bytes(), format_.slot_bytes(), arena_),
      hot_(NewHotRows(options_, format_, arena_)) {
  if (!options.limits.any()) return;
  limits_ = std::make_unique<RowLimiter>(options.limits, options.seed, arena_, options.counts);
}

// Everything that may fail comes first, so that a failure changes nothing.
absl::Status RowStore::Add(uint64_t key, uint32_t* row_number) {
  uint32_t row = 0;
  TANDEM_RETURN_IF_ERROR(NextNumber(&row));
  TANDEM_RETURN_IF_ERROR(index_.Insert(key, row));
  StartRow(key, row);
  *row_number = row;
  return absl::OkStatus();
}

absl::Status RowStore::NextNumber(uint32_t* row_number) {
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

void RowStore::StartRow(uint64_t key, uint32_t row) {
  if (!free_.empty()) free_.pop_back();
  if (copies_ != nullptr) copies_->Leave(row);
  std::vector<float> floats;  // those that are not stored as floats
  float *weights = WeightsOf(row), *slots = SlotsOf(row);
  if (!format_.f32_weights() || !format_.f32_slots()) {
    floats.resize(static_cast<size_t>(options_.dim + slots_per_row_));
    if (!format_.f32_weights()) weights = floats.data();
    if (!format_.f32_slots()) slots = floats.data() + options_.dim;
  }
  format_.InitWeights(options_.initializer, options_.seed, key, weights);
  options_.optimizer->InitSlots(options_.dim,
                                absl::MakeSpan(slots, static_cast<size_t>(slots_per_row_)));
  if (!format_.f32_weights()) format_.WriteWeights(weights, WeightsOf(row));
  if (!format_.f32_slots()) format_.WriteSlots(slots, SlotsOf(row));
  if (hot_ != nullptr) format_.SetUpdates(0, WeightsOf(row));
}

void RowStore::CopyRow(uint32_t row_number, float* out) const {
  ReadWeights(format_, hot_.get(), static_cast<size_t>(options_.dim), WeightsOf(row_number), out);
  format_.ReadSlots(SlotsOf(row_number), out + options_.dim);
}

void RowStore::SetRow(uint64_t key, uint32_t row_number, const float* values) {
  BeforeChange({&key, 1}, {&row_number, 1});
  format_.WriteWeights(values, WeightsOf(row_number));
  format_.WriteSlots(values + options_.dim, SlotsOf(row_number));
}

bool RowStore::Erase(uint64_t key) {
  TANDEM_CHECK(limits_ == nullptr);
  const uint64_t hash = index_.Hash(key);
  const uint32_t row = index_.Find(key, hash);
  if (row == kNoRow) return false;
  EraseRow(key, hash, row);
  ShrinkIfSparse();
  return true;
}

void RowStore::EraseRow(uint64_t key, uint64_t hash, uint32_t row) {
  BeforeChange({&key, 1}, {&row, 1});
  index_.Remove(key, hash);
  free_.push_back(row);
  if (hot_ != nullptr) hot_->Remove(WeightsOf(row));
}

// When few rows remain, copies them to new memory and frees the old. Does nothing while a RowCopies
// is in progress, because it knows rows by their numbers. Without memory for the new rows nothing
// changes.
void RowStore::ShrinkIfSparse() {
  if (free_.size() < kMinErased || free_.size() < 2 * static_cast<size_t>(size())) return;
  if (copies_ != nullptr) return;
  RowIndex index(options_.salt, index_.size(), arena_);
  RowSlabs rows(format_.weight_bytes(), format_.slot_bytes(), arena_);
  std::unique_ptr<HotRows> hot = NewHotRows(options_, format_, arena_);
  std::vector<uint32_t> old_numbers;  // by new number
  old_numbers.reserve(static_cast<size_t>(size()));
  absl::Status moved = rows.Reserve(static_cast<size_t>(size()));
  index_.ForEach([&](uint64_t key, uint32_t row) {
    const bool is_row = RowIndex::IsRow(row);
    const uint32_t number = static_cast<uint32_t>(old_numbers.size());
    if (moved.ok()) moved = index.Insert(key, is_row ? number : row);
    if (!moved.ok() || !is_row) return;
    old_numbers.push_back(row);
    std::memcpy(rows.Weights(number), WeightsOf(row), format_.weight_bytes());
    std::memcpy(rows.Slots(number), SlotsOf(row), format_.slot_bytes());
    if (hot == nullptr || !format_.IsHot(WeightsOf(row))) return;
    moved = hot->Move(*hot_, WeightsOf(row), rows.Weights(number));
  });
  if (moved.ok() && limits_ != nullptr) moved = limits_->Renumber(old_numbers);
  if (!moved.ok()) return;
  index_ = std::move(index);
  rows_ = std::move(rows);
  hot_ = std::move(hot);
  free_ = std::vector<uint32_t>();
}

RowCopies RowStore::NewCopies(std::shared_ptr<CopyBlocks> blocks, size_t extra,
                              RowCopies::CopyExtra copy_extra) const {
  return RowCopies(static_cast<size_t>(size()) + free_.size(), copied_floats(), std::move(blocks),
                   extra, std::move(copy_extra), limited() ? limits_->version() : 0);
}

// In a copy the head and the age are the bits of floats behind the slots. A row that `copies` lacks
// had no update since the mark, so the clock of the row is still the same.
void RowStore::CopyMissing(uint64_t key, uint32_t row_number, RowCopies* copies) const {
  const uint32_t age = limited() ? limits_->Age(row_number, copies->version()) : 0;
  if (limited() && limits_->IsTooOld(age)) return copies->Leave(row_number);
  float* to = copies->Add(key, row_number);
  CopyRow(row_number, to);
  to += options_.dim + slots_per_row_;
  if (options_.types.has_heads()) {
    const optim::RowHead head = format_.Head(WeightsOf(row_number));
    std::memcpy(to++, &head, sizeof head);
  }
  if (limited()) std::memcpy(to, &age, sizeof age);
}

void RowStore::SetAside(absl::Span<const uint64_t> keys, absl::Span<const uint32_t> row_numbers) {
  const size_t before = copies_->size();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (copies_->Misses(row_numbers[i])) CopyMissing(keys[i], row_numbers[i], copies_);
  }
  copies_->CountSetAside(copies_->size() - before);
}

// ---- limits: the changes that RowLimiter decides ------------------------------------------------

void RowStore::Advance(int64_t version) {
  if (!limited()) return;
  const bool passed =
      limits_->Advance(index_, version, [this](const RowLimiter::Entry& entry, uint32_t value) {
        if (value == kNoRow) return Remove(entry);
        if (RowIndex::IsRow(value)) return BeforeChange({&entry.key, 1}, {&value, 1});
        const uint64_t hash = index_.Hash(entry.key);
        BeforeCandidate(entry.key, hash, entry.value);
        index_.Set(entry.key, hash, value);
      });
  const bool shrinks = options_.limits.max_age > 0 && !settings_.keeps_numbers;
  if (passed && shrinks) ShrinkIfSparse();
}

int64_t RowStore::PresentUntil(uint64_t key) const {
  const uint32_t value = index_.Find(key, index_.Hash(key));
  return limits_->IsPresent(value) ? limits_->DeathOf(value) - 1 : -1;
}

absl::Status RowStore::SetCandidate(const Candidate& candidate) {
  const auto value = limited() ? limits_->ValueOf(candidate) : std::nullopt;
  const uint64_t hash = index_.Hash(candidate.key);
  if (!value.has_value() || index_.Find(candidate.key, hash) != kNoRow) return absl::OkStatus();
  return PutCandidate(candidate.key, hash, kNoRow, *value, candidate.age);
}

// The value of a key in the index, after a row that counts as absent is erased.
uint32_t RowStore::ValueOf(uint64_t key, uint64_t hash) {
  const uint32_t value = index_.Find(key, hash);
  if (!RowIndex::IsRow(value) || limits_->IsPresent(value)) return value;
  Remove({key, value});
  return kNoRow;
}

// Creates the row of a key whose value is a candidate or kNoRow. Sets *row_number to kNoRow if
// there is no room. With AT_BUDGET a lack of memory is no error. Memory grows by pages, and other
// shards may take it after may_grow. Then an evicted row makes room, or the key gets none.
absl::Status RowStore::Create(uint64_t key, uint64_t hash, uint32_t value, uint32_t age,
                              uint32_t* row_number) {
  const RowLimits& limits = options_.limits;
  const bool in_index = value != kNoRow;  // an evicted row leaves its number and its place
  const auto evict = [&] { return EvictOldest(/*rows=*/true, age); };
  *row_number = kNoRow;
  bool room = true;
  if (limits.max_rows > 0 && size() >= limits.max_rows) {
    room = evict();
  } else if (limits.at_budget) {
    size_t bytes = free_.empty() ? format_.row_bytes() + sizeof(uint32_t) : 0;  // with the clock
    if (!in_index && index_.MustGrow()) bytes += index_.GrowthBytes();
    room = bytes == 0 || MayGrow(bytes) || evict();
  }
  // Everything that may fail comes first, so that a failure changes nothing.
  uint32_t row = 0;
  const auto reserve = [&] {
    TANDEM_RETURN_IF_ERROR(NextNumber(&row));
    TANDEM_RETURN_IF_ERROR(limits_->Reserve(size_t{row} + 1));
    return in_index ? absl::OkStatus() : index_.Insert(key, row);
  };
  absl::Status reserved = room ? reserve() : absl::OkStatus();
  if (limits.at_budget && absl::IsResourceExhausted(reserved)) {
    room = evict();
    if (room) reserved = reserve();
    room = room && !absl::IsResourceExhausted(reserved);
  }
  if (!room) {
    ++limits_->counts().refused;
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(reserved);
  if (in_index) {
    BeforeCandidate(key, hash, value);
    index_.Set(key, hash, row);
    --candidates_;
  }
  StartRow(key, row);
  limits_->SetAge(row, age);
  ++limits_->counts().admitted;
  *row_number = row;
  return absl::OkStatus();
}

// Sets the value of a candidate. `old`: its value now. If it is kNoRow, a candidate whose last
// update is `age` versions ago may find no room. A range has at most as many candidates as rows
// under LRU.
absl::Status RowStore::PutCandidate(uint64_t key, uint64_t hash, uint32_t old, uint32_t value,
                                    uint32_t age) {
  const RowLimits& limits = options_.limits;
  const auto evict = [&] {
    return EvictOldest(/*rows=*/false, age) ||
           (limits.at_budget && EvictOldest(/*rows=*/true, age));
  };
  if (old == kNoRow) {
    const bool full = limits.max_rows > 0 && candidates_ >= limits.max_rows;
    const bool lacks = limits.at_budget && index_.MustGrow() && !MayGrow(index_.GrowthBytes());
    if ((full || lacks) && !evict()) return absl::OkStatus();
  }
  BeforeCandidate(key, hash, old);
  if (old != kNoRow) {
    index_.Set(key, hash, value);
    return absl::OkStatus();
  }
  absl::Status inserted = index_.Insert(key, value);
  if (limits.at_budget && absl::IsResourceExhausted(inserted)) {  // as in Create
    if (evict()) inserted = index_.Insert(key, value);
    if (absl::IsResourceExhausted(inserted)) return absl::OkStatus();
  }
  if (inserted.ok()) ++candidates_;
  return inserted;
}

// A copy in progress has each candidate as it was at the mark.
void RowStore::BeforeCandidate(uint64_t key, uint64_t hash, uint32_t value) {
  if (copies_ == nullptr || !copies_->MissesCandidate(key, hash)) return;
  copies_->LeaveCandidate(key);
  if (RowLimiter::IsCandidate(value)) limits_->CopyCandidate(key, value, copies_);
}

// Evicts a row, or drops a candidate.
void RowStore::Remove(const RowLimiter::Entry& entry) {
  const uint64_t hash = index_.Hash(entry.key);
  if (RowIndex::IsRow(entry.value)) {
    EraseRow(entry.key, hash, entry.value);
    if (settings_.lists_evicted) evicted_list_.push_back(entry.key);
    return limits_->OnEvicted(hash, entry.value, size());
  }
  BeforeCandidate(entry.key, hash, entry.value);
  index_.Remove(entry.key, hash);
  --candidates_;
}

// Removes a row, or a candidate, that is older than `age`. False if none is found.
bool RowStore::EvictOldest(bool rows, uint32_t age) {
  const auto oldest = limits_->Oldest(index_, rows, age);
  if (oldest.has_value()) Remove(*oldest);
  return oldest.has_value();
}

}  // namespace tandem::server
