#include "tools/bench/machine.h"

#include <algorithm>
#include <fstream>
#include <thread>

#include "absl/strings/str_cat.h"

namespace tandem::bench {

std::string FirstLine(const std::string& path, absl::string_view prefix) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, prefix.size(), prefix.data(), prefix.size()) == 0) return line;
  }
  return "unknown";
}

std::string MachineLine() {
  const std::string cpu = FirstLine("/proc/cpuinfo", "model name");
  const std::string load = FirstLine("/proc/loadavg", "");
  return absl::StrCat(cpu.substr(std::min(cpu.size(), cpu.find(": ") + 2)), ", ",
                      std::thread::hardware_concurrency(), " cores, load ",
                      load.substr(0, load.find(' ')));
}

}  // namespace tandem::bench
