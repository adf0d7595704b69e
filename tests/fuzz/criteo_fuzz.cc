// Fuzzing the Criteo reader: any bytes give rows or one line of error. Input: the file.
#include <cstddef>
#include <cstdint>

#include "job/row_shape.h"
#include "tests/fuzz/rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parser = tandem::data::NewCriteoParser();
  tandem::ReadAllRows({reinterpret_cast<const char*>(data), size}, parser.get(),
                      tandem::job::kCriteoNumbers, tandem::job::kCriteoFields);
  return 0;
}
