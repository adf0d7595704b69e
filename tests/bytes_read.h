// How much a test has read, for tests that compare it with the size of a file.
#ifndef TANDEM_TESTS_BYTES_READ_H_
#define TANDEM_TESTS_BYTES_READ_H_

#include <cstdint>
#include <fstream>
#include <string>

namespace tandem {

// Bytes that this process, and the children that it has waited for, have read; -1: unknown.
inline int64_t BytesRead() {
  std::ifstream in("/proc/self/io");
  std::string name;
  int64_t bytes = -1;
  while (in >> name >> bytes) {
    if (name == "rchar:") return bytes;
  }
  return -1;
}

}  // namespace tandem

#endif  // TANDEM_TESTS_BYTES_READ_H_
