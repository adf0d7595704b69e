// Arrays of Arrow's C interface, made by hand: every type, nulls, offsets and views as cells; what
// is refused or damaged; and streams that end, fail and are released.
#include "data/arrow_columns.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/test_seed.h"

namespace tandem {
namespace {

using data::ArrowColumn;
using data::ArrowStream;
using data::ArrowType;
using data::ReadArrowType;
using data::TypedCell;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Bytes of values, one after another.
template <typename T>
std::string Bytes(std::initializer_list<T> values) {
  std::string out;
  for (const T& value : values) out.append(reinterpret_cast<const char*>(&value), sizeof(T));
  return out;
}

// A bitmap, from the first bit on.
std::string Bits(const std::vector<bool>& bits) {
  std::string out(bits.size() / 8 + 1, '\0');
  for (size_t i = 0; i < bits.size(); ++i) {
    if (bits[i]) out[i / 8] = static_cast<char>(out[i / 8] | (1 << (i % 8)));
  }
  return out;
}

// A column: a schema and an array, which own their memory.
class Made {
 public:
  Made(std::string format, int64_t length, std::vector<std::string> buffers)
      : format_(std::move(format)), bytes_(std::move(buffers)) {
    for (const std::string& bytes : bytes_) buffers_.push_back(bytes.data());
    schema_.format = format_.c_str();
    schema_.name = "x";
    array_.length = length;
    array_.null_count = -1;
    array_.n_buffers = static_cast<int64_t>(buffers_.size());
    array_.buffers = buffers_.data();
  }
  // The buffer does not exist, such as the bitmap of a column without nulls.
  Made& Without(size_t buffer) {
    buffers_[buffer] = nullptr;
    return *this;
  }
  Made& Offset(int64_t offset) {
    array_.offset = offset;
    return *this;
  }
  Made& Items(Made* items) {
    schemas_ = &items->schema_;
    arrays_ = &items->array_;
    schema_.n_children = array_.n_children = 1;
    schema_.children = &schemas_;
    array_.children = &arrays_;
    return *this;
  }
  Made& Dictionary(Made* values) {
    schema_.dictionary = &values->schema_;
    array_.dictionary = &values->array_;
    return *this;
  }
  ArrowSchema& schema() { return schema_; }
  ArrowArray& array() { return array_; }

  // The cells as Shown, or the first error.
  std::vector<std::string> Cells();

 private:
  std::string format_;
  std::vector<std::string> bytes_;
  std::vector<const void*> buffers_;
  ArrowSchema schema_ = {};
  ArrowArray array_ = {};
  ArrowSchema* schemas_ = nullptr;
  ArrowArray* arrays_ = nullptr;
};

// A cell with its kind, such as "int 7".
std::string Shown(const TypedCell& cell) {
  std::string buffer;
  switch (cell.kind) {
    case TypedCell::Kind::kNull:
      return "null";
    case TypedCell::Kind::kText:
      return absl::StrCat("text ", cell.text);
    case TypedCell::Kind::kInteger:
      return absl::StrCat("int ", cell.integer);
    case TypedCell::Kind::kFloat:
      return absl::StrCat("float ", cell.number);
    case TypedCell::Kind::kDouble:
      return absl::StrCat("double ", cell.number);
    case TypedCell::Kind::kBool:
      return cell.integer != 0 ? "true" : "false";
    case TypedCell::Kind::kTime:
      return absl::StrCat("time ", cell.number);
    case TypedCell::Kind::kList:
      return absl::StrCat("[",
                          absl::StrJoin(cell.items, ", ",
                                        [](std::string* out, const TypedCell& item) {
                                          absl::StrAppend(out, Shown(item));
                                        }),
                          "]");
  }
  return "";
}

std::vector<std::string> Made::Cells() {
  const absl::StatusOr<ArrowType> type = ReadArrowType(schema_);
  if (!type.ok()) return {std::string(type.status().message())};
  ArrowColumn column;
  const absl::Status set = column.Set(*type, array_, 0);
  if (!set.ok()) return {std::string(set.message())};
  std::vector<std::string> shown;
  TypedCell cell;
  for (int64_t row = 0; row < array_.length; ++row) {
    const absl::Status got = column.Get(row, &cell);
    shown.push_back(got.ok() ? Shown(cell) : std::string(got.message()));
  }
  return shown;
}

TEST(ArrowColumnsTest, IntegersOfEverySize) {
  const std::string none;
  EXPECT_THAT(Made("c", 2, {none, Bytes<int8_t>({-128, 127})}).Without(0).Cells(),
              ElementsAre("int -128", "int 127"));
  EXPECT_THAT(Made("C", 2, {none, Bytes<uint8_t>({0, 255})}).Without(0).Cells(),
              ElementsAre("int 0", "int 255"));
  EXPECT_THAT(Made("s", 2, {none, Bytes<int16_t>({-32768, 1})}).Without(0).Cells(),
              ElementsAre("int -32768", "int 1"));
  EXPECT_THAT(Made("S", 1, {none, Bytes<uint16_t>({65535})}).Without(0).Cells(),
              ElementsAre("int 65535"));
  EXPECT_THAT(Made("i", 1, {none, Bytes<int32_t>({-2147483647})}).Without(0).Cells(),
              ElementsAre("int -2147483647"));
  EXPECT_THAT(Made("I", 1, {none, Bytes<uint32_t>({4294967295})}).Without(0).Cells(),
              ElementsAre("int 4294967295"));
  EXPECT_THAT(Made("l", 1, {none, Bytes<int64_t>({std::numeric_limits<int64_t>::min()})})
                  .Without(0)
                  .Cells(),
              ElementsAre("int -9223372036854775808"));
  // Beyond an int64 the cell is text, of which the id is the same.
  EXPECT_THAT(Made("L", 2, {none, Bytes<uint64_t>({7, ~uint64_t{0}})}).Without(0).Cells(),
              ElementsAre("int 7", "text 18446744073709551615"));
}

TEST(ArrowColumnsTest, NullsAndOffsetsOfBits) {
  const std::string values = Bytes<int32_t>({0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  const std::string valid = Bits({1, 1, 0, 1, 1, 1, 1, 1, 0, 1});
  EXPECT_THAT(Made("i", 3, {valid, values}).Offset(1).Cells(),
              ElementsAre("int 1", "null", "int 3"));
  EXPECT_THAT(Made("i", 3, {valid, values}).Offset(7).Cells(),
              ElementsAre("int 7", "null", "int 9"));
  EXPECT_THAT(
      Made("b", 4, {Bits({1, 1, 1, 1, 1, 1, 1, 1, 0, 1}), Bits({0, 0, 0, 0, 0, 0, 1, 0, 1, 1})})
          .Offset(6)
          .Cells(),
      ElementsAre("true", "false", "null", "true"));
  EXPECT_THAT(Made("n", 2, {}).Cells(), ElementsAre("null", "null"));
  // A count of 0 says that the bitmap is not to be read.
  Made counted("i", 1, {Bits({0}), values});
  counted.array().null_count = 0;
  EXPECT_THAT(counted.Cells(), ElementsAre("int 0"));
}

TEST(ArrowColumnsTest, Floats) {
  EXPECT_THAT(Made("f", 3, {"", Bytes<float>({0.5f, -7, NAN})}).Without(0).Cells(),
              ElementsAre("float 0.5", "float -7", "float nan"));
  EXPECT_THAT(Made("g", 2, {"", Bytes<double>({1e300, -0.25})}).Without(0).Cells(),
              ElementsAre("double 1e+300", "double -0.25"));
  // 1, -2, the largest, the smallest normal and subnormal half floats, infinities, NaN and -0.
  Made halves("e", 9,
              {"", Bytes<uint16_t>(
                       {0x3c00, 0xc000, 0x7bff, 0x0400, 0x0001, 0x7c00, 0xfc00, 0x7e00, 0x8000})});
  EXPECT_THAT(halves.Without(0).Cells(),
              ElementsAre("float 1", "float -2", "float 65504", "float 6.10352e-05",
                          "float 5.96046e-08", "float inf", "float -inf", "float nan", "float -0"));
}

TEST(ArrowColumnsTest, TextOfEveryLayout) {
  const std::string data = "RomeOslo";
  EXPECT_THAT(Made("u", 3, {Bits({1, 1, 0}), Bytes<int32_t>({0, 4, 4, 8}), data}).Cells(),
              ElementsAre("text Rome", "text ", "null"));
  EXPECT_THAT(Made("z", 1, {"", Bytes<int32_t>({0, 4, 4, 8}), data}).Without(0).Offset(2).Cells(),
              ElementsAre("text Oslo"));
  EXPECT_THAT(Made("U", 2, {"", Bytes<int64_t>({4, 8, 8}), data}).Without(0).Cells(),
              ElementsAre("text Oslo", "text "));
  EXPECT_THAT(Made("Z", 1, {"", Bytes<int64_t>({0, 8}), data}).Without(0).Cells(),
              ElementsAre("text RomeOslo"));
  EXPECT_THAT(Made("w:4", 1, {"", data}).Without(0).Offset(1).Cells(), ElementsAre("text Oslo"));
  EXPECT_THAT(Made("u", 2, {"", Bytes<int32_t>({0, 0, 0}), ""}).Without(0).Without(2).Cells(),
              ElementsAre("text ", "text "));
  // Views: a short text is in its view, a long one in a buffer.
  const std::string longer = "a text of 20 letters";
  const auto view = [](const std::string& text, int32_t buffer, int32_t at) {
    std::string out = Bytes<int32_t>({static_cast<int32_t>(text.size())});
    if (text.size() <= 12) return out + text + std::string(12 - text.size(), '\0');
    return out + text.substr(0, 4) + Bytes<int32_t>({buffer, at});
  };
  const std::string views =
      view("Rome", 0, 0) + view("", 0, 0) + view(longer, 1, 3) + view("of 12 letter", 0, 0);
  const std::vector<std::string> cells = {"text Rome", "text ", "text " + longer,
                                          "text of 12 letter"};
  for (const char* const format : {"vu", "vz"}) {
    const std::string sizes = Bytes<int64_t>({1, 23});
    Made all(format, 4, {"", views, "?", "..." + longer, sizes});
    EXPECT_EQ(all.Without(0).Cells(), cells);
    EXPECT_THAT(
        Made(format, 1, {"", views, "?", "..." + longer, sizes}).Without(0).Offset(2).Cells(),
        ElementsAre("text " + longer));
  }
  EXPECT_THAT(Made("vu", 1, {"", view(longer, 1, 0), longer, Bytes<int64_t>({20})}).Cells(),
              ElementsAre("null"));  // its bit is 0
  EXPECT_THAT(
      Made("vu", 2, {"", view(longer, 1, 0) + view(longer, 0, -1), longer, Bytes<int64_t>({20})})
          .Without(0)
          .Cells(),
      ElementsAre("the array is damaged: a text is nowhere",
                  "the array is damaged: a text is nowhere"));
}

TEST(ArrowColumnsTest, DecimalsAreTheirNumbers) {
  const auto wide = [](std::initializer_list<__int128> values) { return Bytes<__int128>(values); };
  EXPECT_THAT(
      Made("d:9,2", 6, {"", wide({750, -5, 300, 0, -12345, 1})}).Without(0).Cells(),
      ElementsAre("text 7.50", "text -0.05", "text 3", "text 0", "text -123.45", "text 0.01"));
  EXPECT_THAT(Made("d:9,-2", 2, {"", wide({75, 0})}).Without(0).Cells(),
              ElementsAre("text 7500", "text 0"));
  EXPECT_THAT(Made("d:9,0,64", 2, {"", Bytes<int64_t>({-7, 12})}).Without(0).Cells(),
              ElementsAre("text -7", "text 12"));
  EXPECT_THAT(Made("d:5,3,32", 2, {Bits({1, 0}), Bytes<int32_t>({-1500, 1})}).Cells(),
              ElementsAre("text -1.500", "null"));
  const __int128 least = static_cast<__int128>(1) << 126;
  EXPECT_THAT(Made("d:38,0", 1, {"", wide({least * -2})}).Without(0).Cells(),
              ElementsAre("text -170141183460469231731687303715884105728"));
  EXPECT_THAT(Made("d:76,2,256", 0, {"", ""}).Cells(),
              ElementsAre(HasSubstr("has type d:76,2,256, expected numbers, booleans")));
}

TEST(ArrowColumnsTest, DatesAndTimes) {
  EXPECT_THAT(Made("tdD", 2, {"", Bytes<int32_t>({1, -1})}).Without(0).Cells(),
              ElementsAre("time 86400", "time -86400"));
  for (const auto& [format, value] : std::vector<std::pair<std::string, int64_t>>{
           {"tdm", 1500}, {"tsm:", 1500}, {"tsu:UTC", 1500000}, {"tsn:Europe/Rome", 1500000000}}) {
    EXPECT_THAT(Made(format, 1, {"", Bytes<int64_t>({value})}).Without(0).Cells(),
                ElementsAre("time 1.5"))
        << format;
  }
  EXPECT_THAT(Made("tss:", 1, {"", Bytes<int64_t>({-3})}).Without(0).Cells(),
              ElementsAre("time -3"));
}

TEST(ArrowColumnsTest, DictionariesAndLists) {
  Made names("u", 3, {Bits({1, 0, 1}), Bytes<int32_t>({0, 4, 4, 8}), "RomeOslo"});
  EXPECT_THAT(
      Made("c", 4, {Bits({1, 1, 0, 1}), Bytes<int8_t>({2, 1, 0, 0})}).Dictionary(&names).Cells(),
      ElementsAre("text Oslo", "null", "null", "text Rome"));
  EXPECT_THAT(
      Made("L", 1, {"", Bytes<uint64_t>({9, 2})}).Without(0).Offset(1).Dictionary(&names).Cells(),
      ElementsAre("text Oslo"));
  for (const int8_t wrong : {int8_t{3}, int8_t{-1}}) {
    EXPECT_THAT(Made("c", 1, {"", Bytes<int8_t>({wrong})}).Without(0).Dictionary(&names).Cells(),
                ElementsAre("the array is damaged: no such entry of its dictionary"));
  }
  Made places("c", 3, {"", Bytes<int8_t>({0, 2, 0})});
  places.Without(0).Dictionary(&names);
  EXPECT_THAT(
      Made("+l", 4, {Bits({1, 1, 0, 1}), Bytes<int32_t>({0, 2, 2, 2, 3})}).Items(&places).Cells(),
      ElementsAre("[text Rome, text Oslo]", "[]", "null", "[text Rome]"));
  Made numbers("i", 5, {Bits({1, 1, 1, 0, 1, 1}), Bytes<int32_t>({0, 1, 2, 3, 4, 5})});
  numbers.Offset(1);
  EXPECT_THAT(Made("+L", 2, {"", Bytes<int64_t>({0, 1, 3, 5})})
                  .Without(0)
                  .Offset(1)
                  .Items(&numbers)
                  .Cells(),
              ElementsAre("[int 2, null]", "[int 4, int 5]"));
  EXPECT_THAT(Made("+vl", 2, {"", Bytes<int32_t>({4, 0}), Bytes<int32_t>({1, 2})})
                  .Without(0)
                  .Items(&numbers)
                  .Cells(),
              ElementsAre("[int 5]", "[int 1, int 2]"));
  EXPECT_THAT(Made("+vL", 1, {"", Bytes<int64_t>({1}), Bytes<int64_t>({0})})
                  .Without(0)
                  .Items(&numbers)
                  .Cells(),
              ElementsAre("[]"));
  EXPECT_THAT(Made("+w:2", 1, {""}).Without(0).Offset(1).Items(&numbers).Cells(),
              ElementsAre("[null, int 4]"));
  // Damaged places of items.
  const std::string beyond = "the array is damaged: a list is beyond its items";
  for (const int64_t size : {int64_t{6}, int64_t{-1}, std::numeric_limits<int64_t>::max()}) {
    EXPECT_THAT(Made("+vL", 1, {"", Bytes<int64_t>({1}), Bytes<int64_t>({size})})
                    .Without(0)
                    .Items(&numbers)
                    .Cells(),
                ElementsAre(beyond));
  }
  EXPECT_THAT(Made("+l", 2, {"", Bytes<int32_t>({4, 2, 9})}).Without(0).Items(&numbers).Cells(),
              ElementsAre(beyond, beyond));
  EXPECT_THAT(Made("+w:2", 3, {""}).Without(0).Items(&numbers).Cells(),
              ElementsAre("[int 1, int 2]", "[null, int 4]", beyond));
}

TEST(ArrowColumnsTest, DamagedArraysAreRefused) {
  const std::string nowhere = "the array is damaged: a text is nowhere";
  EXPECT_THAT(Made("u", 2, {"", Bytes<int32_t>({4, 1, -1}), "Rome"}).Without(0).Cells(),
              ElementsAre(nowhere, nowhere));
  EXPECT_THAT(Made("U", 1, {"", Bytes<int64_t>({0, int64_t{1} << 40}), "Rome"}).Without(0).Cells(),
              ElementsAre(nowhere));
  EXPECT_THAT(Made("u", 1, {"", Bytes<int32_t>({0, 4}), ""}).Without(0).Without(2).Cells(),
              ElementsAre(nowhere));
  const std::string missing = "the array is damaged: a buffer is missing";
  EXPECT_THAT(Made("i", 1, {""}).Cells(), ElementsAre(missing));
  EXPECT_THAT(Made("u", 1, {"", Bytes<int32_t>({0, 4})}).Cells(), ElementsAre(missing));
  EXPECT_THAT(Made("i", 1, {"", ""}).Without(1).Cells(), ElementsAre(missing));
  Made list("+l", 1, {"", Bytes<int32_t>({0, 0})});
  EXPECT_THAT(list.Cells(), ElementsAre("the array is damaged: a list without items"));
  Made items("i", 0, {"", ""}), dictionary("c", 1, {"", Bytes<int8_t>({0})});
  list.Items(&items).array().n_children = 0;
  EXPECT_THAT(list.Cells(), ElementsAre("the array is damaged: a list without items"));
  dictionary.Dictionary(&items).array().dictionary = nullptr;
  EXPECT_THAT(dictionary.Cells(), ElementsAre("the array is damaged: its dictionary is missing"));
  EXPECT_THAT(Made("u", 0, {"", "", ""}).Dictionary(&items).Cells(),
              ElementsAre("the array is damaged: a dictionary whose numbers are no integers"));
}

TEST(ArrowColumnsTest, TypesThatCellsCannotHave) {
  for (const auto& [format, name] :
       std::vector<std::pair<std::string, std::string>>{{"+s", "struct"},
                                                        {"+m", "map"},
                                                        {"+ud:0,1", "union"},
                                                        {"+r", "run-end encoded"},
                                                        {"ttu", "time of day"},
                                                        {"tDs", "duration"},
                                                        {"tiM", "interval"},
                                                        {"w:x", "w:x"},
                                                        {"+w:-1", "+w:-1"},
                                                        {"d:9", "d:9"},
                                                        {"d:9,77", "d:9,77"},
                                                        {"tsx:", "tsx:"},
                                                        {"?", "?"}}) {
    EXPECT_THAT(Made(format, 0, {}).Cells(),
                ElementsAre(absl::StrCat("has type ", name,
                                         ", expected numbers, booleans, text, decimals, dates, "
                                         "dictionaries and lists of them")))
        << format;
  }
  Made numbers("i", 0, {"", ""}), inner("+l", 0, {"", Bytes<int32_t>({0})});
  inner.Items(&numbers);
  EXPECT_THAT(Made("+L", 0, {"", Bytes<int64_t>({0})}).Items(&inner).Cells(),
              ElementsAre(HasSubstr("has type list of lists, expected")));
}

TEST(ArrowColumnsTest, TextOfNumbersIsPythons) {
  TypedCell cell;
  std::string buffer;
  const auto text = [&](TypedCell::Kind kind, double number) {
    cell.kind = kind;
    cell.number = number;
    return std::string(cell.Text(&buffer));
  };
  for (const auto& [number, wanted] :
       std::vector<std::pair<double, std::string>>{{7, "7"},
                                                   {-0.0, "0"},
                                                   {0.1, "0.1"},
                                                   {1e-4, "0.0001"},
                                                   {-2e-4, "-0.0002"},
                                                   {9.9e-5, "9.9e-05"},
                                                   {1.5e-7, "1.5e-07"},
                                                   {123456.5, "123456.5"},
                                                   {4503599627370495.5, "4503599627370495.5"},
                                                   {0x1.0p63, "9223372036854775808"},
                                                   {-1e23, "-99999999999999991611392"},
                                                   {INFINITY, "inf"},
                                                   {-INFINITY, "-inf"},
                                                   {NAN, ""}}) {
    EXPECT_EQ(text(TypedCell::Kind::kDouble, number), wanted);
  }
  EXPECT_EQ(text(TypedCell::Kind::kDouble, 1.7976931348623157e308).size(), 309);
  EXPECT_EQ(text(TypedCell::Kind::kFloat, 0.1f), "0.1");
  EXPECT_EQ(text(TypedCell::Kind::kFloat, 2e-4f), "0.0002");
  EXPECT_EQ(text(TypedCell::Kind::kFloat, 1e20f), "100000002004087734272");
}

// ---- streams ----------------------------------------------------------------------------------

// A producer of batches of one column of integers. It counts what was not released.
class Producer {
 public:
  // Each batch has its rows behind `skipped` others.
  explicit Producer(std::vector<std::vector<int32_t>> batches, int64_t skipped = 0)
      : skipped_(skipped), batches_(std::move(batches)) {
    column_ = {};
    column_.format = "i";
    column_.name = "x";
    other_ = {};
    other_.format = "+m";
    other_.name = "other";
    columns_ = {&column_, &other_};
    stream_.private_data = this;
    stream_.get_schema = [](ArrowArrayStream* stream, ArrowSchema* out) {
      return Self(stream)->GetSchema(out);
    };
    stream_.get_next = [](ArrowArrayStream* stream, ArrowArray* out) {
      return Self(stream)->GetNext(out);
    };
    stream_.get_last_error = [](ArrowArrayStream* stream) { return Self(stream)->error_; };
    stream_.release = [](ArrowArrayStream* stream) {
      Self(stream)->live_ -= 1;
      stream->release = nullptr;
    };
  }
  ArrowArrayStream* stream() { return &stream_; }
  int live() const { return live_; }

  const char* format_ = "+s";
  const char* error_ = nullptr;
  int fail_schema_ = 0, fail_next_ = 0;  // errno; of the call behind the last batch
  int64_t null_rows_ = 0, columns_of_batch_ = 2, shorter_ = 0;

 private:
  static Producer* Self(ArrowArrayStream* stream) {
    return static_cast<Producer*>(stream->private_data);
  }

  int GetSchema(ArrowSchema* out) {
    if (fail_schema_ != 0) return fail_schema_;
    *out = {};
    out->format = format_;
    out->n_children = 2;
    out->children = columns_.data();
    out->private_data = this;
    out->release = [](ArrowSchema* schema) {
      static_cast<Producer*>(schema->private_data)->live_ -= 1;
      schema->release = nullptr;
    };
    ++live_;
    return 0;
  }

  int GetNext(ArrowArray* out) {
    *out = {};
    if (next_ == batches_.size()) return fail_next_;
    values_ = batches_[next_++];
    values_.insert(values_.begin(), static_cast<size_t>(skipped_), -1);
    numbers_[1] = values_.data();
    array_ = {};
    array_.length = static_cast<int64_t>(values_.size()) - shorter_;
    array_.n_buffers = 2;
    array_.buffers = numbers_;
    arrays_ = {&array_, &array_};
    out->length = static_cast<int64_t>(values_.size()) - skipped_;
    out->offset = skipped_;
    out->null_count = null_rows_;
    out->n_children = columns_of_batch_;
    out->children = arrays_.data();
    out->private_data = this;
    out->release = [](ArrowArray* array) {
      auto* const self = static_cast<Producer*>(array->private_data);
      self->live_ -= 1;
      std::fill(self->values_.begin(), self->values_.end(), -9);
      array->release = nullptr;
    };
    ++live_;
    return 0;
  }

  const int64_t skipped_;
  std::vector<std::vector<int32_t>> batches_;
  size_t next_ = 0;
  int live_ = 1;  // the stream itself
  ArrowArrayStream stream_ = {};
  ArrowSchema column_, other_;
  std::vector<ArrowSchema*> columns_;
  std::vector<int32_t> values_;
  const void* numbers_[2] = {nullptr, nullptr};
  ArrowArray array_;
  std::vector<ArrowArray*> arrays_;
};

// The values of all batches, or the error with which they end.
std::string ReadAll(Producer* producer, const std::vector<size_t>& wanted = {0}) {
  const auto stream = ArrowStream::Take("the table", producer->stream());
  if (!stream.ok()) return std::string(stream.status().message());
  EXPECT_EQ(producer->stream()->release, nullptr) << "the stream was taken";
  std::string shown;
  TypedCell cell;
  while (true) {
    const absl::StatusOr<bool> more = (*stream)->Next(wanted);
    if (!more.ok()) return absl::StrCat(shown, more.status().message());
    if (!*more) return shown;
    for (int64_t row = 0; row < (*stream)->rows(); ++row) {
      EXPECT_TRUE((*stream)->column(0).Get(row, &cell).ok());
      absl::StrAppend(&shown, cell.integer, " ");
    }
    absl::StrAppend(&shown, "| ");
  }
}

TEST(ArrowStreamTest, BatchesComeInOrderAndAreReleased) {
  for (const int64_t skipped : {0, 3}) {
    Producer producer({{1, 2}, {}, {3}, {4, 5, 6}}, skipped);
    EXPECT_EQ(ReadAll(&producer), "1 2 | 3 | 4 5 6 | ");
    EXPECT_EQ(producer.live(), 0);
    EXPECT_EQ(ReadAll(&producer), "the table: the stream was read before, and can be read once");
  }
  // One that is left in the middle.
  Producer producer(std::vector<std::vector<int32_t>>{{1, 2}, {3}});
  {
    auto stream = ArrowStream::Take("the table", producer.stream());
    ASSERT_TRUE(stream.ok() && (*stream)->Next({0}).ok());
    EXPECT_EQ(producer.live(), 3) << "a stream, its schema and a batch";
    EXPECT_THAT((*stream)->columns(), ElementsAre("x", "other"));
    EXPECT_EQ((*(*stream)->TypeOf(0))->name, "int32");
    EXPECT_THAT(std::string((*stream)->TypeOf(1).status().message()),
                HasSubstr("the table: column 'other' has type map, expected"));
  }
  EXPECT_EQ(producer.live(), 0);
}

TEST(ArrowStreamTest, ErrorsOfTheProducerAndDamagedBatches) {
  const auto ends = [](void (*change)(Producer*), const std::vector<size_t>& wanted = {0}) {
    Producer producer(std::vector<std::vector<int32_t>>{{1}, {2}});
    change(&producer);
    const std::string text = ReadAll(&producer, wanted);
    EXPECT_EQ(producer.live(), 0);
    return text;
  };
  EXPECT_EQ(ends([](Producer* p) { p->fail_next_ = EIO; }),
            "1 | 2 | the table: Input/output error");
  EXPECT_EQ(ends([](Producer* p) {
              p->fail_next_ = EIO;
              p->error_ = "row group 7 is torn\nin module x";
            }),
            "1 | 2 | the table: row group 7 is torn");
  EXPECT_EQ(ends([](Producer* p) {
              p->fail_schema_ = EINVAL;
              p->error_ = "no such query";
            }),
            "the table: no such query");
  EXPECT_EQ(ends([](Producer* p) { p->format_ = "i"; }),
            "the table: the stream is one column, expected a table with named columns");
  EXPECT_EQ(ends([](Producer* p) { p->null_rows_ = 1; }), "the table: a whole row is null");
  EXPECT_EQ(ends([](Producer* p) { p->columns_of_batch_ = 1; }),
            "the table: a batch has other columns than the stream");
  EXPECT_EQ(ends([](Producer* p) { p->shorter_ = 1; }),
            "the table: column 'x': it has fewer values than the batch has rows");
  EXPECT_THAT(ends([](Producer*) {}, {1}), HasSubstr("the table: column 'other' has type map"));
}

// Lists of nullable numbers, of random lengths and offsets, are the lists of which they were made.
TEST(ArrowColumnsTest, RandomListsAreRead) {
  Random random(TestSeed());
  for (int trial = 0; trial < 300; ++trial) {
    const int64_t offset = static_cast<int64_t>(random.Uniform(20));
    const int64_t item_offset = static_cast<int64_t>(random.Uniform(20));
    const int64_t rows = static_cast<int64_t>(random.Uniform(30));
    std::string ends = Bytes<int32_t>({0}), numbers(static_cast<size_t>(item_offset) * 8, '\0');
    std::vector<bool> valid, item_valid(static_cast<size_t>(item_offset));
    std::vector<std::string> wanted;
    int32_t items = 0;
    for (int64_t row = 0; row < offset + rows; ++row) {
      valid.push_back(random.Uniform(4) > 0);
      std::vector<std::string> list;
      for (uint64_t size = random.Uniform(4); size > 0; --size, ++items) {
        const auto value = static_cast<int64_t>(random.Next64());
        numbers += Bytes<int64_t>({value});
        item_valid.push_back(random.Uniform(4) > 0);
        list.push_back(item_valid.back() ? absl::StrCat("int ", value) : "null");
      }
      ends += Bytes<int32_t>({items});
      if (row < offset) continue;
      wanted.push_back(valid.back() ? absl::StrCat("[", absl::StrJoin(list, ", "), "]") : "null");
    }
    Made inner("l", items, {Bits(item_valid), numbers});
    inner.Offset(item_offset);
    EXPECT_EQ(Made("+l", rows, {Bits(valid), ends}).Offset(offset).Items(&inner).Cells(), wanted)
        << "trial " << trial << ", --seed=" << TestSeed();
  }
}

}  // namespace
}  // namespace tandem
