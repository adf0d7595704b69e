// Fuzzing the libsvm reader: any bytes give rows or one line of error. Input: the file.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parser = tandem::NewLibsvmParser(/*max_ids=*/100);
  tandem::ReadAllRows({reinterpret_cast<const char*>(data), size}, parser.get(), 0, 0);
  return 0;
}
