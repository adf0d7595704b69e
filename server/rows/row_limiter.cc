#include "server/rows/row_limiter.h"

#include <algorithm>
#include <bit>

#include "base/hash.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace tandem::server {
namespace {

constexpr uint64_t kAdmission = HashName("admission");

// Entries that one call of Advance sweeps. Fewer than the smallest number wait for a later call,
// because each call has to find its place in the index. More than the largest are swept only if
// updates have had many absent ids. With AGE the entries are mostly those that came in the last
// two passes, so a pass visits at most about three entries for each of them.
constexpr size_t kMinSwept = 64;
constexpr size_t kMaxSwept = 4096;
constexpr size_t kSweptForEach = 4;

// Entries in a slice, and entries that a search for a victim reads at most.
constexpr size_t kSlice = 256;
constexpr size_t kMaxLooked = 4096;

// Versions that a pass of the sweep takes at most. Ages of rows therefore stay far below 2^32.
constexpr int64_t kLongestPass = int64_t{1} << 28;

int64_t LongestPass(const RowLimits& limits, const CandidateValues& values) {
  int64_t pass = kLongestPass;
  if (limits.counts()) pass = std::min(pass, CandidateValues::kMaxUnits / 2 * values.unit());
  return pass;
}

int64_t Pass(const RowLimits& limits, int64_t longest) {
  if (limits.max_age > 0) longest = std::min(longest, limits.max_age);
  if (limits.counts() && limits.within > 0) longest = std::min(longest, limits.within);
  return longest;
}

}  // namespace

RowLimiter::RowLimiter(const RowLimits& limits, uint64_t seed, PageArena* arena, RowCounts* counts)
    : limits_(limits),
      values_(limits.within),
      seed_(HashCombine(seed, kAdmission)),
      wanted_counts_(counts == nullptr ? &uncounted_ : counts),
      counts_(wanted_counts_),
      clocks_(/*weight_bytes=*/sizeof(uint32_t), /*slot_bytes=*/0, arena),
      longest_pass_(LongestPass(limits, values_)),
      pass_(Pass(limits, longest_pass_)) {}

StoreMemory RowLimiter::Memory() const {
  const size_t lists =
      row_victims_.entries.capacity() + candidate_victims_.entries.capacity() + seen_.capacity();
  return {.arena = clocks_.MemoryBytes(),
          .other = sizeof(*this) + (evicted_ == nullptr ? 0 : evicted_->MemoryBytes()) +
                   lists * sizeof(Entry) + created_.capacity() * sizeof(uint32_t)};
}

int64_t RowLimiter::AgeOf(const Entry& entry) const {
  return RowIndex::IsRow(entry.value) ? Age(entry.value, version_)
                                      : values_.Age(entry.value, version_);
}

absl::Status RowLimiter::Renumber(absl::Span<const uint32_t> old_numbers) {
  RowSlabs clocks(/*weight_bytes=*/sizeof(uint32_t), /*slot_bytes=*/0, clocks_.arena());
  if (limits_.evicts()) {
    TANDEM_RETURN_IF_ERROR(clocks.Reserve(old_numbers.size()));
    for (uint32_t row = 0; row < old_numbers.size(); ++row) {
      std::memcpy(clocks.Weights(row), clocks_.Weights(old_numbers[row]), sizeof(uint32_t));
    }
  }
  clocks_ = std::move(clocks);
  return absl::OkStatus();
}

// ---- updates and loads ------------------------------------------------------------------------

void RowLimiter::BeginUpdate(absl::Span<const int64_t> read_at) {
  read_at_ = read_at;
  created_.clear();
  may_be_fresh_ = evicted_ != nullptr && !read_at.empty() &&
                  *std::min_element(read_at.begin(), read_at.end()) < evicted_->newest();
}

void RowLimiter::CountIfFresh(size_t i, uint64_t hash) {
  if (read_at_.empty() || read_at_[i] >= evicted_->DiedAt(hash, version_)) return;
  ++counts_->to_fresh_rows;
}

bool RowLimiter::Admits(uint64_t key, uint32_t value, uint32_t* candidate) {
  *candidate = kNoRow;
  ++absent_ids_;
  if (limits_.probability < 1) {
    const uint64_t seed = HashCombine(HashCombine(seed_, key), static_cast<uint64_t>(version_));
    return Random(seed).Bernoulli(limits_.probability);
  }
  if (!limits_.counts()) return true;
  uint32_t count = 1;
  if (IsCandidate(value) && !values_.IsExpired(values_.Age(value, version_))) {
    count += CandidateValues::Count(value);
  }
  if (count >= static_cast<uint32_t>(limits_.threshold)) return true;
  *candidate = values_.Value(count, version_);
  return false;
}

void RowLimiter::OnCreated(size_t i, uint64_t hash, uint32_t row) {
  created_.push_back(row);
  if (evicted_ == nullptr) return;
  CountIfFresh(i, hash);
  if (evicted_->ComesBack(hash, version_)) ++counts_->came_back;
}

std::optional<uint32_t> RowLimiter::ValueOf(const Candidate& candidate) const {
  if (!limits_.counts() || values_.IsExpired(candidate.age)) return std::nullopt;
  const int64_t age = std::min<int64_t>(candidate.age, CandidateValues::kMaxUnits * values_.unit());
  return values_.Value(candidate.count, version_ - age);
}

void RowLimiter::CopyCandidate(uint64_t key, uint32_t value, RowCopies* copies) const {
  int64_t age = values_.Age(value, copies->version());
  if (values_.IsExpired(age)) return;
  age = std::min(age, CandidateValues::kMaxUnits * values_.unit());  // as after any sweep
  copies->AddCandidate({key, CandidateValues::Count(value), static_cast<uint32_t>(age)});
}

// ---- rows and candidates that leave -----------------------------------------------------------

void RowLimiter::OnEvicted(uint64_t hash, uint32_t row, int64_t rows) {
  ++counts_->evicted;
  if (evicted_ == nullptr) evicted_ = std::make_unique<EvictedKeys>(static_cast<size_t>(rows));
  if (evicted_->Add(hash, DeathOf(row), version_)) ++counts_->sampled;
}

std::optional<RowLimiter::Entry> RowLimiter::Oldest(const RowIndex& index, bool rows,
                                                    uint32_t age) {
  Victims& victims = rows ? row_victims_ : candidate_victims_;
  if (victims.none_at == version_) return std::nullopt;
  const auto most = std::min(static_cast<size_t>(index.size()), kMaxLooked);
  for (size_t looked = 0;;) {
    while (!victims.entries.empty()) {
      const Entry entry = victims.entries.back();
      const uint64_t hash = index.Hash(entry.key);
      const bool unchanged = index.Find(entry.key, hash) == entry.value &&
                             (!rows || ClockOf(entry.value) == entry.clock);
      if (unchanged && AgeOf(entry) <= age) return std::nullopt;  // the oldest of its sample
      victims.entries.pop_back();
      if (unchanged) return entry;
    }
    if (looked >= most) break;
    looked += FindVictims(index, rows, &victims);
  }
  victims.none_at = version_;
  return std::nullopt;
}

// Reads the next slice and remembers the oldest quarter of its rows (or candidates), but none of
// the present version. Returns how many entries it has read, at least 1.
size_t RowLimiter::FindVictims(const RowIndex& index, bool rows, Victims* victims) {
  const uint64_t slices =
      std::bit_floor(std::max<uint64_t>(1, static_cast<uint64_t>(index.size()) / kSlice));
  const uint64_t width = slices == 1 ? 0 : ~uint64_t{0} / slices + 1;  // 0: all hashes
  const uint64_t begin = slices == 1 ? 0 : victims->cursor / width * width;
  victims->cursor = begin + width;  // 0 behind the last slice
  seen_.clear();
  size_t read = 0;
  index.VisitHashes(begin, begin + width, [&](uint64_t key, uint32_t value) {
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
  const auto older = [&](const Entry& a, const Entry& b) {
    return std::pair(AgeOf(a), index.Hash(a.key)) > std::pair(AgeOf(b), index.Hash(b.key));
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
bool RowLimiter::Advance(const RowIndex& index, int64_t version, Change change) {
  const int64_t by = version - version_;
  if (!limits_.evicts() && !limits_.counts()) {
    version_ = version;
    return false;
  }
  if (by > longest_pass_) {
    cursor_ = 0;
    do {
      Sweep(index, kMaxSwept, by, change);
    } while (cursor_ != 0);
    version_ = pass_began_ = version;
    owed_ = 0;
    return true;
  }
  version_ = version;
  const auto entries = static_cast<double>(std::max(index.size(), pass_entries_));
  owed_ += static_cast<double>(by) * entries / static_cast<double>(pass_);
  const bool late = version_ - pass_began_ > longest_pass_;
  if (!late && owed_ < std::clamp(entries, 1.0, static_cast<double>(kMinSwept))) return false;
  const size_t most = std::min(static_cast<size_t>(owed_), kMaxSwept + kSweptForEach * absent_ids_);
  absent_ids_ = 0;
  if (!late) {  // after the end of a pass, the next one owes each entry once at most
    const size_t rest = most - std::min(most, Sweep(index, most, 0, change));
    owed_ = static_cast<double>(std::min(rest, static_cast<size_t>(index.size())));
    return cursor_ == 0;
  }
  do {
    Sweep(index, kMaxSwept, 0, change);
  } while (cursor_ != 0);
  owed_ = 0;
  return true;
}

// Visits about `most` entries. Returns the number of visited entries: fewer at the end of a pass.
// `ahead`: versions by which the clock will move after the sweep. The sweep adds it to each age.
size_t RowLimiter::Sweep(const RowIndex& index, size_t most, int64_t ahead, Change change) {
  seen_.clear();
  cursor_ = index.Scan(cursor_, most, [this](uint64_t key, uint32_t value) {
    if (RowIndex::IsRow(value)) PrefetchClock(value);
    seen_.push_back({key, value, 0});
  });
  for (const Entry& entry : seen_) SweepEntry(entry, ahead, change);
  if (cursor_ != 0) return seen_.size();
  pass_began_ = version_;
  pass_entries_ = index.size();
  return seen_.size();
}

void RowLimiter::SweepEntry(const Entry& entry, int64_t ahead, Change change) {
  const int64_t age = AgeOf(entry) + ahead;
  if (!RowIndex::IsRow(entry.value)) {
    if (values_.IsExpired(age)) {
      change(entry, kNoRow);
    } else if (limits_.within == 0 && age > CandidateValues::kMaxUnits) {
      change(entry, values_.Value(CandidateValues::Count(entry.value),
                                  version_ + ahead - CandidateValues::kMaxUnits));
    }
  } else if (limits_.max_age > 0) {
    if (age > limits_.max_age) change(entry, kNoRow);
  } else if (age > kMaxRowAge) {
    change(entry, entry.value);
    SetAge(entry.value, int64_t{kMaxRowAge} - ahead);
  }
}

}  // namespace tandem::server
