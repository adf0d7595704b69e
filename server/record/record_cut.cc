#include "server/record/record_cut.h"

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace tandem::server {
namespace {

namespace fs = std::filesystem;

// Whether this is the name of a record file, with the suffix. Sets its server and its shard.
bool ParseName(absl::string_view name, int* server, int* shard) {
  if (!absl::ConsumeSuffix(&name, kRecordSuffix)) return false;
  const std::vector<absl::string_view> parts = absl::StrSplit(name, '-');
  return parts.size() == 4 && parts[0] == "server" && parts[2] == "shard" &&
         absl::SimpleAtoi(parts[1], server) && absl::SimpleAtoi(parts[3], shard);
}

}  // namespace

std::string RecordFileName(int server, int shard) {
  return absl::StrCat("server-", server, "-shard-", shard);
}

uint64_t RecordBytesAt(const RunRecord& run, const std::string& name) {
  if (run.record_bytes().empty()) return kAllRecords;
  const auto at = run.record_bytes().find(name);
  return at == run.record_bytes().end() ? 0 : at->second;
}

absl::Status CutOtherRecords(const std::string& folder, const RunRecord& run, int servers,
                             int shards) {
  std::error_code error;
  std::vector<std::pair<fs::path, uint64_t>> cuts;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    int server = 0, shard = 0;
    if (!ParseName(entry.path().filename().string(), &server, &shard)) continue;
    if (server < servers && shard < shards) continue;
    cuts.emplace_back(entry.path(), RecordBytesAt(run, RecordFileName(server, shard)));
  }
  for (const auto& [path, keep] : cuts) {
    const uint64_t bytes = fs::file_size(path, error);
    if (error || bytes <= keep) continue;
    if (keep == 0) {
      fs::remove(path, error);
    } else {
      fs::resize_file(path, keep, error);
    }
    if (error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("staleness records ", path.string(), ": cannot be cut at the checkpoint: ",
                       error.message(), "; hint: make the file writable"));
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::server
