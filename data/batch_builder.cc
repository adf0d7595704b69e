#include "data/batch_builder.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem::data {
namespace {

constexpr int kFirstBits = 13;    // log2 of the slots to start with
constexpr size_t kPrefetch = 16;  // how many occurrences ahead the table is prefetched

}  // namespace

KeyIndex::KeyIndex() : slots_(size_t{1} << kFirstBits), shift_(64 - kFirstBits) {}

void KeyIndex::Unique(absl::Span<const uint64_t> occurrences, std::vector<uint64_t>* keys,
                      std::vector<uint32_t>* index) {
  keys->resize(occurrences.size());
  index->resize(occurrences.size());
  keys->resize(Unique(occurrences, keys->data(), index->data()));
}

uint32_t KeyIndex::Unique(absl::Span<const uint64_t> occurrences, uint64_t* keys, uint32_t* index) {
  Clear(occurrences.size());
  size_t done = 0;
  while ((done = FindOrAdd(occurrences, done, keys, index)) < occurrences.size()) Grow(keys);
  return count_;
}

// Continues with occurrence `o` until all occurrences are done or the table is half full. Returns
// how many are done. The loop works on local variables: with members the compiler would have to
// reload them after every store.
size_t KeyIndex::FindOrAdd(absl::Span<const uint64_t> occurrences, size_t o, uint64_t* keys,
                           uint32_t* index) {
  uint32_t* const slots = slots_.data();
  const size_t mask = slots_.size() - 1, size = occurrences.size();
  const uint64_t* const ids = occurrences.data();
  const uint32_t base = base_, most = static_cast<uint32_t>(slots_.size() / 2);
  uint32_t count = count_;
  for (; o < size && count < most; ++o) {
    __builtin_prefetch(&slots[Home(ids[std::min(o + kPrefetch, size - 1)])], 1);
    const uint64_t id = ids[o];
    size_t at = Home(id);
    uint32_t place = slots[at] - base;  // a free slot wraps around, beyond any count
    while (place < count && keys[place] != id) {
      at = (at + 1) & mask;
      place = slots[at] - base;
    }
    if (place >= count) {
      place = count++;
      slots[at] = base + place;
      keys[place] = id;
    }
    index[o] = place;
  }
  count_ = count;
  return o;
}

// Frees every slot: the slots in use hold numbers below the new base.
void KeyIndex::Clear(size_t occurrences) {
  TANDEM_CHECK(occurrences < ~uint32_t{0} / 2);
  base_ += count_;
  count_ = 0;
  if (base_ < ~uint32_t{0} / 2) return;
  std::fill(slots_.begin(), slots_.end(), 0);  // before the numbers run out
  base_ = 1;
}

void KeyIndex::Grow(const uint64_t* keys) {
  slots_.assign(slots_.size() * 2, 0);
  --shift_;
  const size_t mask = slots_.size() - 1;
  for (uint32_t i = 0; i < count_; ++i) {
    size_t at = Home(keys[i]);
    while (slots_[at] >= base_) at = (at + 1) & mask;
    slots_[at] = base_ + i;
  }
}

BatchBuilder::BatchBuilder(int numeric, std::vector<TableLayout> tables)
    : numeric_(numeric), tables_(std::move(tables)), occurrences_(tables_.size()) {}

void BatchBuilder::Start(Batch* batch) {
  batch->Clear();
  batch->numeric = numeric_;
  batch->sparse.resize(tables_.size());
  for (size_t t = 0; t < tables_.size(); ++t) {
    batch->sparse[t].table = tables_[t].table;
    batch->sparse[t].fields = static_cast<int>(tables_[t].fields.size());
    if (tables_[t].bags) batch->sparse[t].offsets.push_back(0);
    occurrences_[t].clear();
  }
}

void BatchBuilder::Append(const Row& row, Batch* batch) {
  ++batch->samples;
  batch->labels.push_back(row.label);
  batch->numbers.insert(batch->numbers.end(), row.numbers.begin(), row.numbers.end());
  for (size_t t = 0; t < tables_.size(); ++t) {
    if (tables_[t].bags) {
      AppendBags(row, t, &batch->sparse[t]);
      continue;
    }
    for (const int field : tables_[t].fields) {
      occurrences_[t].push_back(row.keys[row.begin(static_cast<size_t>(field))]);
    }
  }
}

void BatchBuilder::AppendBags(const Row& row, size_t table, SparseInput* input) {
  std::vector<uint64_t>& to = occurrences_[table];
  for (const int field : tables_[table].fields) {
    const auto begin = row.offsets[field], end = row.offsets[field + 1];
    to.insert(to.end(), row.keys.begin() + begin, row.keys.begin() + end);
    if (tables_[table].weighted) {
      input->weights.insert(input->weights.end(), row.weights.begin() + begin,
                            row.weights.begin() + end);
    }
    input->offsets.push_back(static_cast<uint32_t>(to.size()));
  }
}

void BatchBuilder::Finish(Batch* batch) {
  for (size_t t = 0; t < tables_.size(); ++t) {
    index_.Unique(occurrences_[t], &batch->sparse[t].keys, &batch->sparse[t].index);
  }
}

}  // namespace tandem::data
