#include "server/record/gradient_meter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/hash.h"

namespace tandem::server {
namespace {

// About the bytes of an entry of the map, with its share of the buckets.
constexpr size_t kCountBytes = 40;
// Rows of a range whose updates are counted, the first ones that are updated.
constexpr size_t kMaxCounted = size_t{1} << 14;

uint64_t BelowOf(double share) {
  constexpr double kAll = 18446744073709551616.0;  // 2^64
  const double below = share * kAll;
  return below >= kAll ? std::numeric_limits<uint64_t>::max() : static_cast<uint64_t>(below);
}

double Dot(const float* a, const float* b, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

GradientSums::Cell& CellOf(uint64_t value, std::vector<GradientSums::Cell>* cells) {
  const auto index = static_cast<size_t>(std::bit_width(value));
  if (cells->size() <= index) cells->resize(index + 1);
  return (*cells)[index];
}

}  // namespace

void GradientSums::Cell::FillMessage(GradientStaleness* out) const {
  out->set_rows(rows);
  out->set_missed_rows(missed_rows);
  out->set_cosine_sum(cosine);
  out->set_distance_sum(distance);
  out->set_update_sum(update);
}

GradientMeter::GradientMeter(int dim, int workers, int reads, double share, uint64_t seed)
    : dim_(static_cast<size_t>(dim)),
      seed_(HashCombine(seed, HashName("gradient staleness"))),
      below_(BelowOf(share)),
      reads_(dim, workers, reads) {}

bool GradientMeter::Samples(uint64_t key) const { return Mix64(key ^ seed_) <= below_; }

void GradientMeter::OnRead(int rank, int64_t step, int64_t version, absl::Span<const uint64_t> keys,
                           absl::Span<const float> rows) {
  keys_.clear();
  rows_.clear();
  for (size_t i = 0; i < keys.size(); ++i) {
    if (!Samples(keys[i])) continue;
    keys_.push_back(keys[i]);
    const absl::Span<const float> row = rows.subspan(i * dim_, dim_);
    rows_.insert(rows_.end(), row.begin(), row.end());
  }
  reads_.Keep(rank, step, version, keys_, rows_);
}

void GradientMeter::BeforeStep(const HeldUpdate& update, int64_t version, const RowTable& store) {
  if (update.version_read == kReadByAnotherRun) return;
  keys_.clear();
  for (const uint64_t key : update.keys.As<uint64_t>()) {
    if (Samples(key)) keys_.push_back(key);
  }
  if (keys_.empty()) return;
  reads_.Find(update, keys_, &found_);
  rows_.resize(keys_.size() * dim_);
  store.Pull(keys_, absl::MakeSpan(rows_));
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (found_[i] == nullptr) continue;  // read from another owner, or before a resume
    entries_.push_back({keys_[i], std::max<int64_t>(0, version - update.version_read)});
    read_.insert(read_.end(), found_[i], found_[i] + dim_);
    before_.insert(before_.end(), rows_.begin() + static_cast<std::ptrdiff_t>(i * dim_),
                   rows_.begin() + static_cast<std::ptrdiff_t>((i + 1) * dim_));
  }
}

void GradientMeter::AfterStep(const RowTable& store, GradientSums* sums) {
  keys_.clear();
  for (const Entry& entry : entries_) keys_.push_back(entry.key);
  after_.resize(keys_.size() * dim_);
  if (!keys_.empty()) store.Pull(keys_, absl::MakeSpan(after_));
  for (size_t i = 0; i < entries_.size(); ++i) {
    float* const missed = read_.data() + i * dim_;
    float* const update = after_.data() + i * dim_;
    const float* const before = before_.data() + i * dim_;
    for (size_t j = 0; j < dim_; ++j) {
      missed[j] = before[j] - missed[j];
      update[j] -= before[j];
    }
    uint32_t* const updates = CountOf(entries_[i].key);
    const double length = std::sqrt(Dot(before, before, dim_));
    const double missed_length = std::sqrt(Dot(missed, missed, dim_));
    const double update_length = std::sqrt(Dot(update, update, dim_));
    // A row that overflows ends training elsewhere, and must not spoil the sums.
    const bool finite =
        std::isfinite(length) && std::isfinite(missed_length) && std::isfinite(update_length);
    if (length > 0 && finite) {
      GradientSums::Cell* const by_popularity =
          updates == nullptr ? nullptr : &CellOf(*updates, &sums->by_popularity);
      for (GradientSums::Cell* const cell :
           {&CellOf(static_cast<uint64_t>(entries_[i].staleness), &sums->by_staleness),
            by_popularity}) {
        if (cell == nullptr) continue;
        ++cell->rows;
        cell->distance += missed_length / length;
        cell->update += update_length / length;
        if (missed_length == 0 || update_length == 0) continue;
        ++cell->missed_rows;
        cell->cosine += Dot(missed, update, dim_) / (missed_length * update_length);
      }
    }
    if (updates != nullptr && *updates < std::numeric_limits<uint32_t>::max()) ++*updates;
  }
  entries_.clear();
  read_.clear();
  before_.clear();
}

// The count of updates of a row; null: too many other rows are counted.
uint32_t* GradientMeter::CountOf(uint64_t key) {
  const auto found = updates_.find(key);
  if (found != updates_.end()) return &found->second;
  return updates_.size() < kMaxCounted ? &updates_[key] : nullptr;
}

size_t GradientMeter::bytes() const { return reads_.bytes() + updates_.size() * kCountBytes; }

}  // namespace tandem::server
