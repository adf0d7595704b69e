// SharedReader holds what many workers in one process share of their data: the shape and the parts
// of the files, which are found once, and one pass over the files for all workers
// (data/row_dealer.h). If blocks are dealt, each worker reads its own. Each worker still gets the
// batches that it would have read alone.
//
// Thread safety: none; one thread makes and reads all sources that share one.
#ifndef TANDEM_DATA_SHARED_READER_H_
#define TANDEM_DATA_SHARED_READER_H_

#include <cstdint>
#include <memory>

#include "absl/types/optional.h"
#include "data/batch_source.h"
#include "data/ncf.h"
#include "data/row_data.h"
#include "data/row_dealer.h"

namespace tandem::data {

// Belongs to one job. The plan and the SharedReader must outlive the sources. Only the functions
// that construct sources use its fields.
struct SharedReader {
  struct Part {
    std::unique_ptr<RowDealers> dealers;  // null: no source has asked for it yet
    int64_t estimated_rows = 0;           // rows of one worker
  };
  Part train, test, validation;
  absl::optional<DataShape> shape;
  absl::optional<RowParts> parts;
  std::shared_ptr<NcfEpochs> epochs;
  std::shared_ptr<const RankingGroups> groups;
};

}  // namespace tandem::data

#endif  // TANDEM_DATA_SHARED_READER_H_
