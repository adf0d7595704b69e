#include "data/batch.h"

namespace tandem::data {

void Batch::Clear() {
  samples = 0;
  numbers.clear();
  labels.clear();
  groups.clear();
  for (SparseInput& input : sparse) {
    input.keys.clear();
    input.index.clear();
    input.offsets.clear();
    input.weights.clear();
  }
}

}  // namespace tandem::data
