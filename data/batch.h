// A mini-batch as the trainer sees it: the unique keys of each table, and which sample uses which
// keys. The folder turns data files into batches, checks the files before a run, and measures the
// quality of a model.
#ifndef TANDEM_DATA_BATCH_H_
#define TANDEM_DATA_BATCH_H_

#include <cstdint>
#include <vector>

namespace tandem::data {

// One table's part of a batch. A cell is what one field of one sample contributes to the model: the
// (weighted) sum of the rows of its keys. Cells are sample-major: field f of sample s is cell s *
// fields + f.
struct SparseInput {
  uint32_t table = 0;
  int fields = 0;               // F: cells per sample
  std::vector<uint64_t> keys;   // unique, in order of first occurrence
  std::vector<uint32_t> index;  // for each occurrence its index in `keys`
  // Cell c has the occurrences [offsets[c], offsets[c+1]). Empty: each cell has exactly one.
  std::vector<uint32_t> offsets;
  std::vector<float> weights;  // factor of each occurrence; empty: all 1
};

struct Batch {
  int64_t samples = 0;              // B; 0: this worker has run out of data
  int numeric = 0;                  // D: numbers per sample
  std::vector<float> numbers;       // [B, D]
  std::vector<float> labels;        // [B], 0 or 1; NaN: no label, in evaluations only
  std::vector<SparseInput> sparse;  // one for each table that has fields, by table id
  // For a ranking evaluation: the sizes of consecutive groups of samples. The first sample of each
  // group is its positive. Empty otherwise.
  std::vector<uint32_t> groups;

  void Clear();  // keeps the memory for the next batch
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_BATCH_H_
