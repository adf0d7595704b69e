#include "server/limited_rows.h"

#include <algorithm>
#include <bit>

#include "base/hash.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "server/range_store.h"

namespace tandem::server {
namespace {

constexpr uint32_t kNoRow = RowIndex::kNoRow;
constexpr uint64_t kAdmission = HashName("admission");

// Entries that one call of Advance sweeps. Fewer than the smallest number wait for a later call,
// because each call has to find its place in the index. More than the largest are swept only if
// updates have had many absent ids. With AGE the entries are mostly those that came in the last
// two passes, so a pass visits at most about three entries for each of them.
constexpr size_t kLeastSwept = 64;
constexpr size_t kMostSwept = 4096;
constexpr size_t kSweptForEach = 4;

// How many keys before its use a bucket is prefetched.
constexpr size_t kAhead = 16;

// Entries in a slice, and entries that a search for a victim reads at most.
constexpr size_t kSlice = 256;
constexpr size_t kMostLooked = 4096;

// Ages of rows and passes of the sweep, in versions. An age stays far below 2^32: rows older
// than kMostRowAge get this age.
constexpr int64_t kMostRowAge = int64_t{1} << 30;
constexpr int64_t kLongestPass = int64_t{1} << 28;

bool IsCandidate(uint32_t value) { return !RowIndex::IsRow(value) && value != kNoRow; }

bool MayGrow(const RangeStore& store, size_t bytes) {
  return store.options().may_grow == nullptr || store.options().may_grow(bytes);
}

int64_t LongestPass(const RowLimits& limits, const CandidateValues& values) {
  int64_t pass = kLongestPass;
  if (limits.counts()) pass = std::min(pass, CandidateValues::kMostUnits / 2 * values.unit());
  return pass;
}

int64_t Pass(const RowLimits& limits, int64_t longest) {
  if (limits.most_age > 0) longest = std::min(longest, limits.most_age);
  if (limits.counts() && limits.within > 0) longest = std::min(longest, limits.within);
  return longest;
}

}  // namespace

LimitedRows::LimitedRows(const RowLimits& limits, RangeStore* store, RowCounts* counts)
    : limits_(limits),
      values_(limits.within),
      store_(store),
      index_(&store->index_),
      counts_(counts == nullptr ? &uncounted_ : counts),
      clocks_(/*dim=*/1, /*slots_per_row=*/0, store->arena_),
      longest_pass_(LongestPass(limits, values_)),
      pass_(Pass(limits, longest_pass_)) {}

StoreMemory LimitedRows::Memory() const {
  const size_t lists =
      row_victims_.entries.capacity() + candidate_victims_.entries.capacity() + seen_.capacity();
  return {.arena = clocks_.MemoryBytes(),
          .other = sizeof(*this) + (evicted_ == nullptr ? 0 : evicted_->MemoryBytes()) +
                   lists * sizeof(Entry) + created_.capacity() * sizeof(uint32_t)};
}

// Requires: room for the clock of the row, which Create makes.
void LimitedRows::SetAge(uint32_t row, int64_t age) {
  if (!limits_.evicts()) return;
  const auto clock = static_cast<uint32_t>(version_ - age);
  std::memcpy(clocks_.Weights(row), &clock, sizeof clock);
}

int64_t LimitedRows::AgeOf(const Entry& entry) const {
  return RowIndex::IsRow(entry.value) ? Age(entry.value) : values_.Age(entry.value, version_);
}

int64_t LimitedRows::PresentUntil(uint64_t key) const {
  const uint32_t value = index_->Find(key, index_->Hash(key));
  return IsPresent(value) ? DeathOf(value) - 1 : -1;
}

// ---- updates ----------------------------------------------------------------------------------

void LimitedRows::BeginUpdate(absl::Span<const uint64_t> keys, absl::Span<const int64_t> read_at) {
  keys_ = keys;
  read_at_ = read_at;
  created_.clear();
  may_be_fresh_ = evicted_ != nullptr && !read_at.empty() &&
                  *std::min_element(read_at.begin(), read_at.end()) < evicted_->newest();
}

void LimitedRows::Touch(size_t i, uint32_t row) {
  SetAge(row, 0);
  if (!may_be_fresh_) return;
  if (read_at_[i] < evicted_->DiedAt(index_->Hash(keys_[i]), version_)) ++counts_->to_fresh_rows;
}

// The key has a present row if the update contains the key twice.
absl::Status LimitedRows::Admit(size_t i, uint32_t* row_number) {
  const uint64_t key = keys_[i];
  const uint64_t hash = index_->Hash(key);
  ++absent_ids_;
  uint32_t value = index_->Find(key, hash);
  *row_number = value;
  if (IsPresent(value)) return absl::OkStatus();
  *row_number = kNoRow;
  if (RowIndex::IsRow(value)) {
    Evict(key, hash, value, DeathOf(value));
    value = kNoRow;
  }
  bool enters = false;
  TANDEM_RETURN_IF_ERROR(MayEnter(key, hash, value, &enters));
  if (!enters || !MakeRoomForRow(/*age=*/0, value != kNoRow)) {
    ++counts_->refused;
    return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(Create(key, hash, /*age=*/0, row_number));
  if (*row_number == kNoRow) {
    ++counts_->refused;
    return absl::OkStatus();
  }
  created_.push_back(*row_number);
  if (evicted_ == nullptr) return absl::OkStatus();
  if (!read_at_.empty() && read_at_[i] < evicted_->DiedAt(hash, version_)) {
    ++counts_->to_fresh_rows;
  }
  if (evicted_->ComesBack(hash, version_)) ++counts_->came_back;
  return absl::OkStatus();
}

// `value`: that of the key, a candidate or kNoRow. Counts the update if the id is not admitted.
absl::Status LimitedRows::MayEnter(uint64_t key, uint64_t hash, uint32_t value, bool* enters) {
  *enters = true;
  if (limits_.probability < 1) {
    const uint64_t seed = HashCombine(HashCombine(store_->options_.seed, kAdmission), key);
    *enters =
        Random(HashCombine(seed, static_cast<uint64_t>(version_))).Bernoulli(limits_.probability);
    return absl::OkStatus();
  }
  if (!limits_.counts()) return absl::OkStatus();
  uint32_t count = 1;
  if (IsCandidate(value) && !values_.IsExpired(values_.Age(value, version_))) {
    count += CandidateValues::Count(value);
  }
  if (count >= static_cast<uint32_t>(limits_.threshold)) return absl::OkStatus();
  *enters = false;
  if (!IsCandidate(value) && !MakeRoomForCandidate(/*age=*/0)) return absl::OkStatus();
  return PutCandidate(key, hash, value, values_.Value(count, version_));
}

// With AT_BUDGET a lack of memory is no error. Memory grows by pages, and other shards may take it
// after MayGrow. Then an evicted row makes room, or the key gets none.
absl::Status LimitedRows::Create(uint64_t key, uint64_t hash, uint32_t age, uint32_t* row_number) {
  // Everything that may fail comes first, so that a failure changes nothing.
  const auto make_room = [&](uint32_t value, uint32_t* row) {
    TANDEM_RETURN_IF_ERROR(store_->NextNumber(row));
    if (limits_.evicts()) TANDEM_RETURN_IF_ERROR(clocks_.Reserve(size_t{*row} + 1));
    return IsCandidate(value) ? absl::OkStatus() : index_->Insert(key, *row);
  };
  uint32_t value = index_->Find(key, hash), row = 0;
  absl::Status room = make_room(value, &row);
  if (limits_.at_budget && absl::IsResourceExhausted(room)) {
    if (!EvictOldest(/*rows=*/true, age)) return absl::OkStatus();
    room = make_room(value, &row);
    if (absl::IsResourceExhausted(room)) return absl::OkStatus();
  }
  TANDEM_RETURN_IF_ERROR(room);
  if (IsCandidate(value)) {
    BeforeCandidate(key, hash, value);
    index_->Set(key, hash, row);
    --candidates_;
  }
  store_->StartRow(key, row);
  SetAge(row, age);
  ++counts_->admitted;
  *row_number = row;
  return absl::OkStatus();
}

// `old`: the value that the key has now, a candidate or kNoRow.
absl::Status LimitedRows::PutCandidate(uint64_t key, uint64_t hash, uint32_t old, uint32_t value) {
  BeforeCandidate(key, hash, old);
  if (IsCandidate(old)) {
    index_->Set(key, hash, value);
    return absl::OkStatus();
  }
  absl::Status inserted = index_->Insert(key, value);
  if (limits_.at_budget && absl::IsResourceExhausted(inserted)) {  // as in Create
    const auto age = static_cast<uint32_t>(values_.Age(value, version_));
    const bool room = EvictOldest(/*rows=*/false, age) || EvictOldest(/*rows=*/true, age);
    if (room) inserted = index_->Insert(key, value);
    if (absl::IsResourceExhausted(inserted)) return absl::OkStatus();
  }
  if (inserted.ok()) ++candidates_;
  return inserted;
}

void LimitedRows::DropCandidate(uint64_t key, uint64_t hash, uint32_t value) {
  BeforeCandidate(key, hash, value);
  index_->Remove(key, hash);
  --candidates_;
}

// A copy in progress has each candidate as it was at the mark.
void LimitedRows::BeforeCandidate(uint64_t key, uint64_t hash, uint32_t value) {
  RowCopies* const copies = store_->copies_;
  if (copies == nullptr || !copies->MissesCandidate(key, hash)) return;
  copies->LeaveCandidate(key);
  if (IsCandidate(value)) CopyCandidate(key, value, copies);
}

void LimitedRows::Evict(uint64_t key, uint64_t hash, uint32_t row, int64_t died) {
  store_->BeforeChange({&key, 1}, {&row, 1});
  index_->Remove(key, hash);
  store_->free_.push_back(row);
  ++counts_->evicted;
  if (evicted_ == nullptr) {
    evicted_ = std::make_unique<EvictedKeys>(static_cast<size_t>(store_->size()));
  }
  if (evicted_->Add(hash, died, version_)) ++counts_->sampled;
  if (settings_.lists_evicted) evicted_list_.push_back(key);
}

// ---- rows and candidates that are set ---------------------------------------------------------

// Sets one row after the other, because a row may be evicted for the next one.
absl::Status LimitedRows::SetRows(absl::Span<const uint64_t> keys, absl::Span<const float> weights,
                                  absl::Span<const float> slots, absl::Span<const uint32_t> ages,
                                  bool loads) {
  const auto dim = static_cast<size_t>(store_->dim());
  const auto slots_per_row = static_cast<size_t>(store_->slots_per_row());
  RowCounts* const counts = counts_;
  const bool lists = settings_.lists_evicted;
  if (loads) {
    counts_ = &uncounted_;
    settings_.lists_evicted = false;
    loadable_ += settings_.load_share * static_cast<double>(keys.size());
  }
  absl::Status set;
  for (size_t i = 0; i < keys.size() && set.ok(); ++i) {
    if (i + kAhead < keys.size()) {
      RowIndex::Prefetch(index_->HomeOf(index_->Hash(keys[i + kAhead])));
    }
    const uint32_t age = ages.empty() ? 0 : ages[i];
    const bool shares = loads && settings_.load_share < 1 &&
                        static_cast<double>(store_->size()) >= std::max(loadable_, 1.0);
    if (shares && !EvictOldest(/*rows=*/true, age)) continue;
    uint32_t row = kNoRow;
    set = RowToSet(keys[i], age, &row);
    if (row == kNoRow) continue;
    std::copy_n(weights.data() + i * dim, dim, store_->rows_.Weights(row));
    if (slots.empty()) continue;
    std::copy_n(slots.data() + i * slots_per_row, slots_per_row, store_->rows_.Slots(row));
  }
  counts_ = counts;
  settings_.lists_evicted = lists;
  if (loads) evicted_ = nullptr;  // rows that were left out have not been evicted in this run
  return set;
}

// Sets *row_number to kNoRow if there is no room, or if a row of this age counts as absent.
absl::Status LimitedRows::RowToSet(uint64_t key, uint32_t age, uint32_t* row_number) {
  *row_number = kNoRow;
  if (limits_.most_age > 0 && age > limits_.most_age) return absl::OkStatus();
  age = std::min(age, static_cast<uint32_t>(kMostRowAge));
  const uint64_t hash = index_->Hash(key);
  const uint32_t value = index_->Find(key, hash);
  if (IsPresent(value)) {
    store_->BeforeChange({&key, 1}, {&value, 1});
    SetAge(value, age);
    *row_number = value;
    return absl::OkStatus();
  }
  const bool absent = RowIndex::IsRow(value);
  if (absent) Evict(key, hash, value, DeathOf(value));
  if (MakeRoomForRow(age, /*in_index=*/!absent && value != kNoRow)) {
    TANDEM_RETURN_IF_ERROR(Create(key, hash, age, row_number));
  }
  if (*row_number == kNoRow) ++counts_->refused;
  return absl::OkStatus();
}

absl::Status LimitedRows::SetCandidate(const Candidate& candidate) {
  if (!limits_.counts() || values_.IsExpired(candidate.age)) return absl::OkStatus();
  const uint64_t hash = index_->Hash(candidate.key);
  if (index_->Find(candidate.key, hash) != kNoRow || !MakeRoomForCandidate(candidate.age)) {
    return absl::OkStatus();
  }
  const int64_t age =
      std::min<int64_t>(candidate.age, CandidateValues::kMostUnits * values_.unit());
  return PutCandidate(candidate.key, hash, kNoRow, values_.Value(candidate.count, version_ - age));
}

// ---- copies -----------------------------------------------------------------------------------

// A row that a copy lacks has not been updated since the mark, so its clock is that of the mark.
void LimitedRows::CopyRow(uint64_t key, uint32_t row, RowCopies* copies) const {
  const uint32_t age =
      limits_.evicts() ? static_cast<uint32_t>(copies->version()) - ClockOf(row) : 0;
  if (limits_.most_age > 0 && age > limits_.most_age) return copies->Leave(row);
  float* const to = copies->Add(key, row);
  store_->CopyRow(row, to);
  std::memcpy(to + store_->dim() + store_->slots_per_row(), &age, sizeof age);
}

void LimitedRows::CopyCandidate(uint64_t key, uint32_t value, RowCopies* copies) const {
  int64_t age = values_.Age(value, copies->version());
  if (values_.IsExpired(age)) return;
  age = std::min(age, CandidateValues::kMostUnits * values_.unit());  // as after any sweep
  copies->AddCandidate({key, CandidateValues::Count(value), static_cast<uint32_t>(age)});
}

absl::Status LimitedRows::Renumber(absl::Span<const uint32_t> old_numbers) {
  RowSlabs clocks(/*dim=*/1, /*slots_per_row=*/0, store_->arena_);
  if (limits_.evicts()) {
    TANDEM_RETURN_IF_ERROR(clocks.Reserve(old_numbers.size()));
    for (uint32_t row = 0; row < old_numbers.size(); ++row) {
      std::memcpy(clocks.Weights(row), clocks_.Weights(old_numbers[row]), sizeof(uint32_t));
    }
  }
  clocks_ = std::move(clocks);
  return absl::OkStatus();
}

// ---- room -------------------------------------------------------------------------------------

// Makes room for a row whose last update is `age` versions ago. `in_index`: the key has a place in
// the index. An evicted row leaves its number and its place.
bool LimitedRows::MakeRoomForRow(uint32_t age, bool in_index) {
  if (limits_.most_rows > 0 && store_->size() >= limits_.most_rows) {
    return EvictOldest(/*rows=*/true, age);
  }
  if (!limits_.at_budget) return true;
  size_t bytes = 0;
  if (store_->free_.empty()) {
    const auto floats = static_cast<size_t>(store_->dim() + store_->slots_per_row());
    bytes += floats * sizeof(float) + sizeof(uint32_t);
  }
  if (!in_index && index_->MustGrow()) bytes += index_->GrowthBytes();
  return bytes == 0 || MayGrow(*store_, bytes) || EvictOldest(/*rows=*/true, age);
}

// A range has at most as many candidates as rows under LRU.
bool LimitedRows::MakeRoomForCandidate(uint32_t age) {
  if (limits_.most_rows > 0 && candidates_ >= limits_.most_rows) {
    return EvictOldest(/*rows=*/false, age);
  }
  if (!limits_.at_budget || !index_->MustGrow()) return true;
  if (MayGrow(*store_, index_->GrowthBytes())) return true;
  return EvictOldest(/*rows=*/false, age) || EvictOldest(/*rows=*/true, age);
}

// Evicts a row, or a candidate, that is older than `age`. False if none is found.
bool LimitedRows::EvictOldest(bool rows, uint32_t age) {
  Victims& victims = rows ? row_victims_ : candidate_victims_;
  if (victims.none_at == version_) return false;
  const auto most = std::min(static_cast<size_t>(index_->size()), kMostLooked);
  for (size_t looked = 0;;) {
    while (!victims.entries.empty()) {
      const Entry entry = victims.entries.back();
      const uint64_t hash = index_->Hash(entry.key);
      const bool unchanged = index_->Find(entry.key, hash) == entry.value &&
                             (!rows || ClockOf(entry.value) == entry.clock);
      if (unchanged && AgeOf(entry) <= age) return false;  // the oldest of its sample
      victims.entries.pop_back();
      if (!unchanged) continue;
      if (rows) {
        Evict(entry.key, hash, entry.value, version_ + 1);
      } else {
        DropCandidate(entry.key, hash, entry.value);
      }
      return true;
    }
    if (looked >= most) break;
    looked += FindVictims(rows, &victims);
  }
  victims.none_at = version_;
  return false;
}

// Reads the next slice and remembers the oldest quarter of its rows (or candidates), but none of
// the present version. Returns how many entries it has read, at least 1.
size_t LimitedRows::FindVictims(bool rows, Victims* victims) {
  const uint64_t slices =
      std::bit_floor(std::max<uint64_t>(1, static_cast<uint64_t>(index_->size()) / kSlice));
  const uint64_t width = slices == 1 ? 0 : ~uint64_t{0} / slices + 1;  // 0: all hashes
  const uint64_t begin = slices == 1 ? 0 : victims->cursor / width * width;
  victims->cursor = begin + width;  // 0 behind the last slice
  seen_.clear();
  size_t read = 0;
  index_->VisitHashes(begin, begin + width, [&](uint64_t key, uint32_t value) {
    ++read;
    if (RowIndex::IsRow(value) != rows) return;
    if (rows) PrefetchClock(value);
    seen_.push_back({key, value, 0});
  });
  const size_t quarter = (seen_.size() + 3) / 4;
  if (rows) {
    for (Entry& entry : seen_) entry.clock = ClockOf(entry.value);
  }
  const auto is_new = [this](const Entry& entry) { return AgeOf(entry) <= 0; };
  seen_.erase(std::remove_if(seen_.begin(), seen_.end(), is_new), seen_.end());
  const auto older = [this](const Entry& a, const Entry& b) {
    return std::pair(AgeOf(a), index_->Hash(a.key)) > std::pair(AgeOf(b), index_->Hash(b.key));
  };
  const auto kept = seen_.begin() + static_cast<std::ptrdiff_t>(std::min(seen_.size(), quarter));
  std::nth_element(seen_.begin(), kept, seen_.end(), older);
  std::sort(seen_.begin(), kept, older);
  victims->entries.assign(std::make_reverse_iterator(kept), seen_.rend());
  return std::max<size_t>(1, read);
}

// ---- the sweep --------------------------------------------------------------------------------

// A push of many empty steps may move the version by more than a pass may take. Then the sweep
// visits all entries while their ages are not ambiguous yet.
void LimitedRows::Advance(int64_t version) {
  const int64_t by = version - version_;
  if (!limits_.evicts() && !limits_.counts()) {
    version_ = version;
    return;
  }
  if (by > longest_pass_) {
    cursor_ = 0;
    do {
      Sweep(kMostSwept, by);
    } while (cursor_ != 0);
    version_ = pass_began_ = version;
    owed_ = 0;
    return;
  }
  version_ = version;
  const auto entries = static_cast<double>(std::max(index_->size(), pass_entries_));
  owed_ += static_cast<double>(by) * entries / static_cast<double>(pass_);
  const bool late = version_ - pass_began_ > longest_pass_;
  if (!late && owed_ < std::clamp(entries, 1.0, static_cast<double>(kLeastSwept))) return;
  const size_t most =
      std::min(static_cast<size_t>(owed_), kMostSwept + kSweptForEach * absent_ids_);
  absent_ids_ = 0;
  if (!late) {  // after the end of a pass, the next one owes each entry once at most
    const size_t rest = most - std::min(most, Sweep(most, 0));
    owed_ = static_cast<double>(std::min(rest, static_cast<size_t>(index_->size())));
    return;
  }
  do {
    Sweep(kMostSwept, 0);
  } while (cursor_ != 0);
  owed_ = 0;
}

// Visits about `most` entries. Returns the number of visited entries: fewer at the end of a pass.
// `ahead`: versions by which the clock will move after the sweep. The sweep adds it to each age.
size_t LimitedRows::Sweep(size_t most, int64_t ahead) {
  seen_.clear();
  cursor_ = index_->Scan(cursor_, most, [this](uint64_t key, uint32_t value) {
    if (RowIndex::IsRow(value)) PrefetchClock(value);
    seen_.push_back({key, value, 0});
  });
  for (const Entry& entry : seen_) SweepEntry(entry, ahead);
  if (cursor_ != 0) return seen_.size();
  pass_began_ = version_;
  pass_entries_ = index_->size();
  if (limits_.most_age > 0 && !settings_.keeps_numbers) store_->ShrinkIfSparse();
  return seen_.size();
}

void LimitedRows::SweepEntry(const Entry& entry, int64_t ahead) {
  const uint64_t hash = index_->Hash(entry.key);
  const int64_t age = AgeOf(entry) + ahead;
  if (!RowIndex::IsRow(entry.value)) {
    if (values_.IsExpired(age)) {
      DropCandidate(entry.key, hash, entry.value);
    } else if (limits_.within == 0 && age > CandidateValues::kMostUnits) {
      BeforeCandidate(entry.key, hash, entry.value);
      index_->Set(entry.key, hash,
                  values_.Value(CandidateValues::Count(entry.value),
                                version_ + ahead - CandidateValues::kMostUnits));
    }
  } else if (limits_.most_age > 0) {
    if (age > limits_.most_age) Evict(entry.key, hash, entry.value, DeathOf(entry.value));
  } else if (age > kMostRowAge) {
    store_->BeforeChange({&entry.key, 1}, {&entry.value, 1});
    SetAge(entry.value, kMostRowAge - ahead);
  }
}

}  // namespace tandem::server
