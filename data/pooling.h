// Between unique rows and the cells a model reads: gather with pooling on the way in, merge of
// repeated ids on the way out. Plain loops in sample order, so the sums do not depend on the order
// of the unique keys, on threads or on the dense engine.
#ifndef TANDEM_DATA_POOLING_H_
#define TANDEM_DATA_POOLING_H_

#include "absl/types/span.h"
#include "data/batch.h"

namespace tandem::data {

// cells[c] = sum over occurrences o of cell c of weights[o] * rows[index[o]].
// rows: where the row of each key is, dim floats; cells: [samples * fields, dim].
void PoolRows(const SparseInput& input, int dim, absl::Span<const float* const> rows,
              absl::Span<float> cells);

// row_gradients[i] = sum over occurrences o of key i of weights[o] * cell_gradients[cell of o],
// added in order of o, starting from the first one. row_gradients: where that of each key goes.
void MergeGradients(const SparseInput& input, int dim, absl::Span<const float> cell_gradients,
                    absl::Span<float* const> row_gradients);

}  // namespace tandem::data

#endif  // TANDEM_DATA_POOLING_H_
