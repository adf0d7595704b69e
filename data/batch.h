// A mini-batch as the trainer sees it: unique keys per table, and which sample uses which.
#ifndef TANDEM_DATA_BATCH_H_
#define TANDEM_DATA_BATCH_H_

#include <cstdint>
#include <vector>

namespace tandem::data {

// One table's part of a batch. A cell is what one field of one sample contributes: the (weighted) sum
// of the rows of its keys. Cells are sample-major: cell s * fields + f.
struct SparseInput {
  uint32_t table = 0;
  int fields = 0;                 // cells a sample (F)
  std::vector<uint64_t> keys;     // unique, in order of first occurrence
  std::vector<uint32_t> index;    // occurrence -> index in `keys`
  std::vector<uint32_t> offsets;  // cell c has occurrences [offsets[c], offsets[c+1]);
                                  // empty: exactly one occurrence a cell
  std::vector<float> weights;     // factor per occurrence; empty: all 1
};

struct Batch {
  int64_t samples = 0;              // B; 0 = this worker has run out of data
  int numeric = 0;                  // numbers a sample (D)
  std::vector<float> numbers;       // [B, D]
  std::vector<float> labels;        // [B], 0 or 1; NaN: none, in an evaluation alone
  std::vector<SparseInput> sparse;  // one per table that has fields, by table id
  // Ranking evaluation: sizes of consecutive groups of samples; the first of each group is the
  // positive. Empty elsewhere.
  std::vector<uint32_t> groups;

  void Clear();  // keeps the memory
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_BATCH_H_
