// Fuzzing the readers of the NCF files: any bytes as ratings and as ranking candidates give rows or
// one line of error; small data also go through an epoch with negatives. Input: either file.
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "data/ncf.h"
#include "tests/fuzz/rows.h"

namespace tandem {
namespace {

void ReadAsRatings(absl::string_view bytes) {
  data::LineReader lines("fuzz", data::MemoryBytes(bytes));
  std::vector<data::Interaction> rows;
  if (const absl::Status status = data::ReadRatings(&lines, &rows); !status.ok()) {
    return CheckError(status);
  }
  TANDEM_CHECK(!rows.empty());
  // A user who has nearly all of very many items would make drawing slow, not wrong.
  absl::flat_hash_set<uint32_t> items;
  absl::flat_hash_set<std::pair<uint32_t, uint32_t>> known;
  for (const data::Interaction& row : rows) {
    items.insert(row.item);
    known.insert({row.user, row.item});
  }
  if (items.size() > 1000) return;
  auto epochs = data::NcfEpochs::Create(std::move(rows), 2, 1);
  if (!epochs.ok()) return;
  epochs->StartEpoch(0);
  int64_t positives = 0;
  for (int64_t r = 0; r < epochs->rows(); ++r) {
    bool positive = false;
    const data::Interaction row = epochs->At(r, &positive);
    TANDEM_CHECK(items.contains(row.item));
    TANDEM_CHECK(known.contains({row.user, row.item}) == positive);
    positives += positive ? 1 : 0;
  }
  TANDEM_CHECK(positives * 3 == epochs->rows());
}

void ReadAsCandidates(absl::string_view bytes) {
  data::LineReader lines("fuzz", data::MemoryBytes(bytes));
  data::RankingGroups groups;
  if (const absl::Status status = data::ReadRankingGroups(&lines, &groups); !status.ok()) {
    return CheckError(status);
  }
  TANDEM_CHECK(groups.offsets.size() == groups.size() + 1);
  TANDEM_CHECK(groups.offsets.back() == groups.items.size());
}

}  // namespace
}  // namespace tandem

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  tandem::ReadAsRatings(bytes);
  tandem::ReadAsCandidates(bytes);
  return 0;
}
