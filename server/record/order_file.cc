#include "server/record/order_file.h"

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

using Take = std::function<absl::Status(const OrderEntry& entry)>;

absl::Status ReadFile(const std::string& path, const Take& take) {
  std::ifstream file(path, std::ios::binary);
  OrderFileHead head;
  if (!file.read(reinterpret_cast<char*>(&head), sizeof head) || !head.IsOurs()) {
    return absl::DataLossError(absl::StrCat(
        path, ": not an update order of this version, expected one that begins with TNDMORD1"));
  }
  OrderEntry entry;
  while (file.read(reinterpret_cast<char*>(&entry), sizeof entry)) {
    TANDEM_RETURN_IF_ERROR(take(entry));
  }
  if (file.gcount() == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(path, ": ends ", file.gcount(),
                                          " bytes into an entry of ", sizeof entry,
                                          ": is it cut short?"));
}

// Reads all order files of a folder, sorted by name.
absl::Status ReadFolder(const std::string& folder, const Take& take) {
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
                     "--set staleness.record_order=true"));
  }
  std::sort(files.begin(), files.end());
  for (const std::string& file : files) TANDEM_RETURN_IF_ERROR(ReadFile(file, take));
  return absl::OkStatus();
}

bool IsPossible(const OrderEntry& entry, int workers) {
  constexpr int64_t kMax = int64_t{1} << 46;  // steps, as a range admits them
  return entry.worker < workers && entry.finished <= 1 && entry.step >= 0 && entry.step < kMax &&
         entry.steps > 0 && entry.steps <= entry.step + 1 &&
         (entry.steps == 1 || entry.rows == 0) &&
         (entry.rows == 0 || (entry.version_read >= 0 && entry.version_read <= entry.version));
}

// Checks the order of one range, entry by entry: each entry continues where the last one of its
// worker ended, and versions do not decrease.
class RangeCheck {
 public:
  explicit RangeCheck(int workers) : admitted_(static_cast<size_t>(workers)) {}

  absl::Status Add(const std::string& folder, const OrderEntry& entry) {
    const auto workers = static_cast<int>(admitted_.size());
    if (!IsPossible(entry, workers) || entry.version < version_) {
      return absl::DataLossError(absl::StrCat(
          folder, ": the order of range ", entry.range, " has an entry that no run of ", workers,
          " workers writes: worker ", entry.worker, ", step ", entry.step, ", version ",
          entry.version, ": is a file damaged?"));
    }
    version_ = entry.version;
    int64_t& of_worker = admitted_[entry.worker];
    const bool follows = entry.admitted_before == all_ && entry.step >= of_worker &&
                         entry.step + 1 - entry.steps <= of_worker;
    if (!follows) {
      return absl::DataLossError(absl::StrCat(
          folder, ": the order of range ", entry.range, " has a gap before step ", entry.step,
          " of worker ", entry.worker, ": was the run killed, or are files of it missing?"));
    }
    all_ += entry.step + 1 - of_worker;
    of_worker = entry.step + 1;
    return absl::OkStatus();
  }

  // The number of admitted steps, by worker.
  const std::vector<int64_t>& admitted() const { return admitted_; }

 private:
  std::vector<int64_t> admitted_;
  int64_t all_ = 0, version_ = 0;
};

using RangeChecks = std::map<uint32_t, RangeCheck>;

absl::Status Check(const std::string& folder, int workers, const OrderEntry& entry,
                   RangeChecks* checks) {
  return checks->try_emplace(entry.range, workers).first->second.Add(folder, entry);
}

}  // namespace

OrderEntry EntryOf(const OrderedRange& range, const HeldUpdate& update, int64_t first,
                   bool finished) {
  OrderEntry entry;
  entry.range = range.id;
  entry.worker = static_cast<uint16_t>(update.rank);
  entry.finished = finished ? 1 : 0;
  entry.steps = static_cast<uint32_t>(update.step + 1 - first);
  entry.rows = static_cast<uint32_t>(update.keys.size() / sizeof(uint64_t));
  entry.step = update.step;
  entry.samples = update.samples;
  entry.version_read = update.version_read;
  entry.version = range.order.progress().version;
  entry.admitted_before = range.order.progress().Admitted();
  entry.read_number = update.read_number;
  return entry;
}

absl::StatusOr<Orders> ReadOrder(const std::string& folder, int workers,
                                 const std::function<bool(uint32_t range)>& wanted) {
  Orders orders;
  RangeChecks checks;
  TANDEM_RETURN_IF_ERROR(ReadFolder(folder, [&](const OrderEntry& entry) {
    if (!wanted(entry.range)) return absl::OkStatus();
    orders[entry.range].push_back(entry);
    return Check(folder, workers, entry, &checks);
  }));
  return orders;
}

absl::Status CheckWholeOrder(const std::string& folder, int workers,
                             const std::vector<uint32_t>& ranges) {
  RangeChecks checks;
  for (const uint32_t range : ranges) checks.try_emplace(range, workers);
  TANDEM_RETURN_IF_ERROR(ReadFolder(folder, [&](const OrderEntry& entry) {
    return checks.count(entry.range) > 0 ? Check(folder, workers, entry, &checks)
                                         : absl::OkStatus();
  }));
  int64_t last = 0;  // the largest of any worker in any range
  for (const auto& [range, check] : checks) {
    last = std::max(last, *std::max_element(check.admitted().begin(), check.admitted().end()));
  }
  for (const auto& [range, check] : checks) {
    const auto& admitted = check.admitted();
    const auto least = std::min_element(admitted.begin(), admitted.end());
    if (*least == last) continue;
    return absl::DataLossError(absl::StrCat(
        folder, ": the order of range ", range, " has ", *least, " of ", last, " steps of worker ",
        least - admitted.begin(), ": is a file cut short, or are some missing?"));
  }
  return absl::OkStatus();
}

}  // namespace tandem::server
