#include "tests/integration/model_bits.h"

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "server/checkpoint/checkpoint_directory.h"

namespace tandem {
namespace {

absl::Status AddImage(const server::RangeImage& image, ModelBits* model) {
  const size_t dim = static_cast<size_t>(image.dim);
  const size_t slots = static_cast<size_t>(image.slots_per_row);
  auto& table = (*model)[image.table];
  for (size_t i = 0; i < image.keys.size(); ++i) {
    const auto weights = image.weights.begin() + static_cast<std::ptrdiff_t>(i * dim);
    const auto slot = image.slots.begin() + static_cast<std::ptrdiff_t>(i * slots);
    std::vector<float> row(weights, weights + image.dim);
    row.insert(row.end(), slot, slot + image.slots_per_row);
    if (!table.emplace(image.keys[i], std::move(row)).second) {
      return absl::DataLossError(
          absl::StrCat("table ", image.table, ": two files hold key ", image.keys[i]));
    }
  }
  return absl::OkStatus();
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::string RowDifference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return absl::StrCat(a.size(), " floats and ", b.size());
  size_t i = 0;
  while (std::memcmp(&a[i], &b[i], sizeof(float)) == 0) ++i;
  return absl::StrFormat("float %d: %a (%g) and %a (%g)", i, a[i], a[i], b[i], b[i]);
}

}  // namespace

absl::StatusOr<ModelBits> ReadCheckpoint(const std::string& checkpoint) {
  TANDEM_ASSIGN_OR_RETURN(const server::CheckpointReader saved,
                          server::CheckpointReader::Open(checkpoint));
  ModelBits model;
  for (const server::CheckpointFile& file : saved.manifest().files) {
    if (file.table.front() == '(') continue;  // no rows: the record, what codecs remember
    TANDEM_ASSIGN_OR_RETURN(const server::RangeImage image, saved.Read(file));
    TANDEM_RETURN_IF_ERROR(AddImage(image, &model));
  }
  return model;
}

std::string Difference(const ModelBits& expected, const ModelBits& actual) {
  std::string first;
  int64_t rows = 0, different = 0;
  const auto differ = [&](const std::string& table, uint64_t key, const std::string& what) {
    ++different;
    if (first.empty()) first = absl::StrCat("table ", table, ", key ", key, ": ", what);
  };
  for (const auto& [name, table] : expected) {
    if (actual.count(name) == 0) return absl::StrCat("no table ", name);
    const auto& other = actual.at(name);
    for (const auto& [key, row] : table) {
      ++rows;
      const auto it = other.find(key);
      if (it == other.end()) {
        differ(name, key, "absent");
      } else if (!SameBits(row, it->second)) {
        differ(name, key, RowDifference(row, it->second));
      }
    }
    for (const auto& [key, row] : other) {
      if (table.count(key) == 0) differ(name, key, "was not expected");
    }
  }
  if (actual.size() != expected.size()) return "other tables";
  return different == 0 ? "" : absl::StrCat(first, "; ", different, " of ", rows, " rows differ");
}

double DenseDistance(const ModelBits& a, const ModelBits& b) {
  double sum = 0;
  for (const auto& [block, row] : a.at("dense")) {
    const std::vector<float>& other = b.at("dense").at(block);
    for (size_t i = 0; i < row.size(); ++i) {
      sum += (static_cast<double>(row[i]) - other[i]) * (static_cast<double>(row[i]) - other[i]);
    }
  }
  return std::sqrt(sum);
}

}  // namespace tandem
