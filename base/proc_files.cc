#include "base/proc_files.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace tandem {
namespace {

constexpr uint64_t kUnlimited = UINT64_MAX;

// The folder of the control group of version 1 that limits the memory of this process, and the
// folders above it. Empty without such a group.
std::vector<std::string> MemoryGroupsOfVersion1() {
  namespace fs = std::filesystem;
  const fs::path root = "/sys/fs/cgroup/memory";
  std::vector<std::string> all;
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // number:controllers:path
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    const bool memory =
        parts.size() == 3 && absl::StrContains(absl::StrCat(",", parts[1], ","), ",memory,");
    if (!memory) continue;
    // In a container the group is mounted at the root, and its path is that of the host.
    for (fs::path at = root.string() + parts[2]; at != at.parent_path(); at = at.parent_path()) {
      all.push_back(at.string());
      if (at == root) break;
    }
  }
  return all;
}

std::string ControlGroup() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "0::")) return absl::StrCat("/sys/fs/cgroup", line.substr(3));
  }
  return "/sys/fs/cgroup";
}

}  // namespace

std::string FirstLineOf(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

uint64_t NumberIn(const std::string& path, uint64_t otherwise) {
  uint64_t value = 0;
  return absl::SimpleAtoi(FirstLineOf(path), &value) ? value : otherwise;
}

uint64_t FieldOf(const std::string& path, absl::string_view key, uint64_t otherwise) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    absl::string_view rest = line;
    if (!absl::ConsumePrefix(&rest, key)) continue;
    const std::vector<std::string> words =
        absl::StrSplit(rest, absl::ByAnyChar(": \t"), absl::SkipEmpty());
    uint64_t value = 0;
    if (!words.empty() && absl::SimpleAtoi(words[0], &value)) return value;
  }
  return otherwise;
}

std::vector<std::string> ControlGroups() {
  namespace fs = std::filesystem;
  std::vector<std::string> all;
  const fs::path root = "/sys/fs/cgroup";
  for (fs::path at = ControlGroup(); at != at.parent_path(); at = at.parent_path()) {
    all.push_back(at.string());
    if (at == root) break;
  }
  return all;
}

uint64_t ResidentBytes() {
  const std::vector<std::string> words = absl::StrSplit(FirstLineOf("/proc/self/statm"), ' ');
  uint64_t pages = 0;
  if (words.size() < 2 || !absl::SimpleAtoi(words[1], &pages)) return 0;
  return pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

HostMemory MemoryOfHost() {
  constexpr uint64_t kKilobyte = 1024;
  HostMemory memory;
  memory.total = FieldOf("/proc/meminfo", "MemTotal", 0) * kKilobyte;
  memory.available = FieldOf("/proc/meminfo", "MemAvailable", 0) * kKilobyte;
  for (const std::string& group : ControlGroups()) {
    const uint64_t most = NumberIn(group + "/memory.max", kUnlimited);
    if (most == kUnlimited) continue;
    // Files that were read are counted as used, but they give way.
    uint64_t used = NumberIn(group + "/memory.current", 0);
    used -= std::min(used, FieldOf(group + "/memory.stat", "inactive_file", 0));
    memory.total = std::min(memory.total, most);
    memory.available = std::min(memory.available, most - std::min(most, used));
  }
  for (const std::string& group : MemoryGroupsOfVersion1()) {
    const uint64_t most = NumberIn(group + "/memory.limit_in_bytes", kUnlimited);
    if (most >= memory.total) continue;  // without a limit it is a very large number
    uint64_t used = NumberIn(group + "/memory.usage_in_bytes", 0);
    used -= std::min(used, FieldOf(group + "/memory.stat", "total_inactive_file", 0));
    memory.total = most;
    memory.available = std::min(memory.available, most - std::min(most, used));
  }
  return memory;
}

}  // namespace tandem
