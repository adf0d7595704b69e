// Numbers that the system shows as files under /proc and /sys: memory of this process and of its
// host, and the control groups that limit it. Nothing here fails: a file that is missing gives the
// value that the caller names, or 0.
//
// Thread safety: any thread.
#ifndef TANDEM_BASE_PROC_FILES_H_
#define TANDEM_BASE_PROC_FILES_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace tandem {

// The first line of a file; empty: there is none.
std::string FirstLineOf(const std::string& path);
// The number that is the first line of a file.
uint64_t NumberIn(const std::string& path, uint64_t otherwise);
// The number in a line "Key:   number unit" of a file.
uint64_t FieldOf(const std::string& path, absl::string_view key, uint64_t otherwise);

// The folders of the control groups from that of this process up to the root. Each may set a limit.
std::vector<std::string> ControlGroups();

// Memory of this process that is in RAM, in bytes.
uint64_t ResidentBytes();

// Memory in bytes that the processes of this host, or of the tightest control group (of version 2
// or 1), may use: all of it, and the part that is still free.
struct HostMemory {
  uint64_t total = 0, available = 0;
};
HostMemory MemoryOfHost();

}  // namespace tandem

#endif  // TANDEM_BASE_PROC_FILES_H_
