// BatchBuilder turns rows into a batch. For each table it lists the unique keys, in order of first
// occurrence, and for each cell the keys that it uses.
//
// The builder is on a worker's critical path. An id takes a few nanoseconds, and the builder
// allocates nothing once its memory has grown to the size of a batch.
//
// Thread safety: one thread at a time.
#ifndef TANDEM_DATA_BATCH_BUILDER_H_
#define TANDEM_DATA_BATCH_BUILDER_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "data/batch.h"
#include "data/row.h"

namespace tandem::data {

// Finds the unique keys of a list. The index is an open-addressing table of places in `keys`. To
// empty the index, base_ is raised, the number that the slots in use count from. A slot takes four
// bytes, so that the table of a usual batch stays in the processor's cache.
class KeyIndex {
 public:
  KeyIndex();

  // Overwrites both outputs. keys: the distinct values of `occurrences`, in order of first
  // occurrence. index[o]: the place of occurrences[o] in `keys`.
  void Unique(absl::Span<const uint64_t> occurrences, std::vector<uint64_t>* keys,
              std::vector<uint32_t>* index);
  // The same with arrays that have room for all occurrences; returns the number of keys. `keys` may
  // be the array of the occurrences, or begin before them.
  uint32_t Unique(absl::Span<const uint64_t> occurrences, uint64_t* keys, uint32_t* index);

 private:
  size_t Home(uint64_t key) const { return (key * 0x9e3779b97f4a7c15u) >> shift_; }
  size_t FindOrAdd(absl::Span<const uint64_t> occurrences, size_t o, uint64_t* keys,
                   uint32_t* index);
  void Clear(size_t occurrences);
  void Grow(const uint64_t* keys);

  std::vector<uint32_t> slots_;  // size: a power of two; at most half of them are in use
  int shift_;                    // 64 - log2(slots_.size())
  uint32_t base_ = 1;            // a slot in use holds base_ + place in `keys`
  uint32_t count_ = 0;           // slots in use
};

// The fields that feed one table.
struct TableLayout {
  uint32_t table = 0;       // id in the plan
  std::vector<int> fields;  // fields of the rows, one cell each
  bool bags = false;        // a cell may have any number of keys, so rows have offsets
  bool weighted = false;    // rows have weights
};

class BatchBuilder {
 public:
  BatchBuilder(int numeric, std::vector<TableLayout> tables);

  // Empties `batch`. The rows that are appended before Finish() then fill it.
  void Start(Batch* batch);
  void Append(const Row& row, Batch* batch);
  void Finish(Batch* batch);

 private:
  void AppendBags(const Row& row, size_t table, SparseInput* input);

  const int numeric_;
  const std::vector<TableLayout> tables_;
  // Occurrences per table, for the batch being built.
  std::vector<std::vector<uint64_t>> occurrences_;
  KeyIndex index_;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_BATCH_BUILDER_H_
