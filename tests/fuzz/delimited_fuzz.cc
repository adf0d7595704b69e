// Fuzzing the reader of delimited text: any bytes under several column specifications give rows or
// one line of error. Input: two bytes that pick the specification, then the file.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const bool header = (data[0] & 1) != 0;
  tandem::Columns columns;
  columns.set_header(header);
  columns.set_log_transform((data[0] & 2) != 0);
  columns.set_delimiter((data[1] & 1) != 0 ? "::" : (data[0] & 4) != 0 ? "," : "");
  if ((data[1] & 2) != 0) columns.set_quotes(tandem::Columns::NONE);
  if ((data[1] & 4) != 0) columns.set_decimal(",");
  const bool bags = (data[1] & 8) != 0;
  columns.set_trim((data[0] & 32) != 0);
  if ((data[0] & 8) != 0) {
    columns.add_positive("yes");
    columns.add_positive(">50K.");
  }
  if ((data[0] & 64) != 0) columns.add_negative("no");
  if ((data[0] & 16) != 0) {
    columns.add_missing("?");
    columns.add_missing("NA");
    columns.add_column()->set_name(header ? "c" : "2");
    columns.mutable_column(0)->add_missing("none");
  }
  columns.set_label(header ? "y" : "0");
  if (bags) {
    tandem::Column* const many = columns.add_column();
    many->set_name(header ? "d" : "1");
    many->set_separator("|");
    many->set_pooling(tandem::Column::MEAN);
    many->set_max_ids(100);
  }
  if ((data[1] & 16) != 0) {
    tandem::Column* const date = columns.add_column();
    date->set_name(header ? "n" : "1");
    date->set_date("%d.%m.%Y");
  }
  columns.add_numeric(header ? "n" : "1");
  columns.add_categorical(header ? "c" : "2");
  columns.add_categorical(header ? "d" : "1");
  const absl::string_view file(reinterpret_cast<const char*>(data) + 2, size - 2);
  const auto parser = tandem::data::NewDelimitedParser(columns);
  TANDEM_CHECK(parser.ok());
  tandem::ReadAllRows(file, parser->get(), 1, 2, bags);
  // The same file, standardised.
  tandem::DataStatistics statistics;
  tandem::ColumnStatistics* const column = statistics.add_column();
  column->set_name(header ? "n" : "1");
  column->set_mean(3);
  column->set_deviation((data[0] & 128) != 0 ? 1e-300 : 0);
  columns.set_scale(tandem::Column::STANDARDISE);
  const auto scaling = tandem::data::NewDelimitedParser(columns, &statistics);
  TANDEM_CHECK(scaling.ok());
  tandem::ReadAllRows(file, scaling->get(), 1, 2, bags);
  return 0;
}
