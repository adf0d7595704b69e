// Fuzzing the reader of delimited text: any bytes under several column specifications give rows or
// one line of error. Input: one byte that picks the specification, then the file.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const bool header = (data[0] & 1) != 0;
  tandem::Columns columns;
  columns.set_header(header);
  columns.set_log_transform((data[0] & 2) != 0);
  columns.set_delimiter((data[0] & 4) != 0 ? "," : "");
  columns.set_positive((data[0] & 8) != 0 ? "yes" : "");
  columns.set_missing((data[0] & 16) != 0 ? "?" : "");
  columns.set_label(header ? "y" : "0");
  columns.add_numeric(header ? "n" : "1");
  columns.add_categorical(header ? "c" : "2");
  columns.add_categorical(header ? "d" : "1");
  const auto parser = tandem::NewDelimitedParser(columns);
  TANDEM_CHECK(parser.ok());
  tandem::ReadAllRows({reinterpret_cast<const char*>(data) + 1, size - 1}, parser->get(), 1, 2);
  return 0;
}
