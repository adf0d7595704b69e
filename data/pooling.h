// Moves values between unique rows and the cells that a model reads. PoolRows gathers and pools
// rows into cells. MergeGradients merges the gradients of repeated ids. Both functions are plain
// loops in sample order, so the sums do not depend on the order of the unique keys, on threads or
// on the dense engine.
#ifndef TANDEM_DATA_POOLING_H_
#define TANDEM_DATA_POOLING_H_

#include "absl/types/span.h"
#include "data/batch.h"

namespace tandem::data {

// cells[c] = sum over occurrences o of cell c of weights[o] * rows[index[o]]. rows: pointers to the
// row of each key, dim floats. cells: [samples * fields, dim].
void PoolRows(const SparseInput& input, int dim, absl::Span<const float* const> rows,
              absl::Span<float> cells);

// row_gradients[i] = sum over occurrences o of key i of weights[o] * pooled_gradients[cell of o].
// The sum adds in the order of o, starting from the first occurrence. row_gradients: pointers to
// the result of each key.
void MergeGradients(const SparseInput& input, int dim, absl::Span<const float> pooled_gradients,
                    absl::Span<float* const> row_gradients);

}  // namespace tandem::data

#endif  // TANDEM_DATA_POOLING_H_
