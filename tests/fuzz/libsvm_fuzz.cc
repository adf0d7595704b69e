// Fuzzing the libsvm reader: any bytes give rows or one line of error, with labels of the usual
// kinds and with those that a job names. Input: the file.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view file(reinterpret_cast<const char*>(data), size);
  tandem::ReadAllRows(file, tandem::data::NewLibsvmParser(/*max_ids=*/100).get(), 0, 0);
  tandem::Columns columns;
  columns.add_positive("2");
  columns.add_positive("b");
  tandem::ReadAllRows(file, tandem::data::NewLibsvmParser(/*max_ids=*/0, columns).get(), 0, 0);
  return 0;
}
