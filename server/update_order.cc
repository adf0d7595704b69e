#include "server/update_order.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

using Orders = std::map<uint32_t, std::vector<OrderEntry>>;

absl::Status ReadFile(const std::string& path, const std::function<bool(uint32_t range)>& wanted,
                      Orders* orders) {
  std::ifstream file(path, std::ios::binary);
  OrderFileHead head;
  if (!file.read(reinterpret_cast<char*>(&head), sizeof head) || !head.IsOurs()) {
    return absl::DataLossError(absl::StrCat(
        path, ": no order of updates of this version, expected one that begins with TNDMORD1"));
  }
  OrderEntry entry;
  while (file.read(reinterpret_cast<char*>(&entry), sizeof entry)) {
    if (wanted(entry.range)) (*orders)[entry.range].push_back(entry);
  }
  return absl::OkStatus();
}

bool IsPossible(const OrderEntry& entry, int workers) {
  constexpr int64_t kMost = int64_t{1} << 46;  // steps, as a range admits them
  return entry.worker < workers && entry.finished <= 1 && entry.step >= 0 && entry.step < kMost &&
         entry.steps > 0 && entry.steps <= entry.step + 1 &&
         (entry.steps == 1 || entry.rows == 0) &&
         (entry.rows == 0 || (entry.version_read >= 0 && entry.version_read <= entry.version));
}

// Each entry takes its worker from where the last one left it, and versions do not fall.
absl::Status CheckOrder(const std::string& folder, uint32_t range, int workers,
                        const std::vector<OrderEntry>& order) {
  std::map<uint16_t, int64_t> admitted;
  int64_t all = 0, version = 0;
  for (const OrderEntry& entry : order) {
    if (!IsPossible(entry, workers) || entry.version < version) {
      return absl::DataLossError(
          absl::StrCat(folder, ": the order of range ", range, " has an entry that no run of ",
                       workers, " workers writes: worker ", entry.worker, ", step ", entry.step,
                       ", version ", entry.version, ": is a file damaged?"));
    }
    version = entry.version;
    int64_t& of_worker = admitted[entry.worker];
    const bool follows = entry.admitted_before == all && entry.step >= of_worker &&
                         entry.step + 1 - entry.steps <= of_worker;
    if (!follows) {
      return absl::DataLossError(absl::StrCat(
          folder, ": the order of range ", range, " has a gap before step ", entry.step,
          " of worker ", entry.worker, ": was the run killed, or are files of it missing?"));
    }
    all += entry.step + 1 - of_worker;
    of_worker = entry.step + 1;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Orders> ReadOrder(const std::string& folder, int workers,
                                 const std::function<bool(uint32_t range)>& wanted) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (absl::EndsWith(entry.path().filename().string(), kOrderSuffix)) {
      files.push_back(entry.path().string());
    }
  }
  if (files.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder,
                     ": no order of updates (*.order) in it; hint: a run writes it with "
                     "--set staleness.order=true"));
  }
  std::sort(files.begin(), files.end());
  Orders orders;
  for (const std::string& file : files) TANDEM_RETURN_IF_ERROR(ReadFile(file, wanted, &orders));
  for (const auto& [range, order] : orders) {
    TANDEM_RETURN_IF_ERROR(CheckOrder(folder, range, workers, order));
  }
  return orders;
}

}  // namespace tandem::server
