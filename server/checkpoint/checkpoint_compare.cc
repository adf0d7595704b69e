#include "server/checkpoint/checkpoint_compare.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::server {
namespace {

// True for files with rows or dense parameters. The other parts belong to the run.
bool IsOfTheModel(const CheckpointFile& file) { return !absl::StartsWith(file.table, "("); }

// The parts of a checkpoint that belong to the model. The key tells the same range of a table, or
// the same file of a worker, in another checkpoint, whichever file has it there.
using Parts = std::map<std::tuple<std::string, uint64_t, uint64_t, bool>, const CheckpointFile*>;
Parts PartsOf(const Manifest& manifest) {
  Parts parts;
  for (const CheckpointFile& file : manifest.files) {
    if (!IsOfTheModel(file)) continue;
    parts[{file.table, file.begin, file.end, IsWorkerPart(file)}] = &file;
  }
  return parts;
}

// Compares bits, so a NaN equals the same NaN.
bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

template <typename T>
void AddBits(const std::vector<T>& values, uint64_t* checksum) {
  *checksum = XXH3_64bits_withSeed(values.data(), values.size() * sizeof(T), *checksum);
}

// Describes the first difference. Empty if there is none.
std::string Difference(const RangeImage& a, const RangeImage& b) {
  if (a.keys != b.keys) {
    return absl::StrCat(a.keys.size(), " rows and ", b.keys.size(), ", with different keys");
  }
  if (SameBits(a.weights, b.weights)) {
    if (!SameBits(a.slots, b.slots)) return "the same weights, other optimizer state";
    if (a.ages != b.ages) return "the same rows, other ages";
    if (a.heads != b.heads) return "the same rows, other scales or counts of updates";
    return a.candidates == b.candidates ? "" : "the same rows, other candidates";
  }
  if (a.weights.size() != b.weights.size()) return "rows of different dim";
  const auto [x, y] =
      std::mismatch(a.weights.begin(), a.weights.end(), b.weights.begin(),
                    [](float p, float q) { return std::memcmp(&p, &q, sizeof(float)) == 0; });
  const size_t at = static_cast<size_t>(x - a.weights.begin());
  const size_t row = at / static_cast<size_t>(std::max(1, a.dim));
  return absl::StrCat("row of key ", row < a.keys.size() ? a.keys[row] : 0, " has ", *x, " and ",
                      *y);
}

}  // namespace

absl::StatusOr<ModelComparison> CompareModels(const CheckpointReader& a,
                                              const CheckpointReader& b) {
  ModelComparison result;
  const Parts of_a = PartsOf(a.manifest()), of_b = PartsOf(b.manifest());
  for (const auto& [key, file] : of_a) {
    const auto other = of_b.find(key);
    if (other == of_b.end()) {
      result.differences.push_back(absl::StrCat(b.folder(), ": has no ", DebugString(*file)));
      continue;
    }
    TANDEM_ASSIGN_OR_RETURN(const RangeImage left, a.Read(*file));
    TANDEM_ASSIGN_OR_RETURN(const RangeImage right, b.Read(*other->second));
    ++result.ranges;
    result.rows += static_cast<int64_t>(left.keys.size());
    AddBits(left.keys, &result.checksum);
    AddBits(left.weights, &result.checksum);
    AddBits(left.slots, &result.checksum);
    if (left.types.has_heads()) AddBits(left.heads, &result.checksum);
    if (left.limited) {
      AddBits(left.ages, &result.checksum);
      AddBits(left.candidates, &result.checksum);
    }
    const std::string difference = Difference(left, right);
    if (!difference.empty()) {
      result.differences.push_back(absl::StrCat(DebugString(*file), ": ", difference));
    }
  }
  for (const auto& [key, file] : of_b) {
    if (of_a.count(key) > 0) continue;
    result.differences.push_back(absl::StrCat(a.folder(), ": has no ", DebugString(*file)));
  }
  return result;
}

}  // namespace tandem::server
