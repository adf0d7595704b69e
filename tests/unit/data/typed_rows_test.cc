// Rows of cells with types become what the same rows in text become.
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "data/arrow_files.h"
#include "data/arrow_table.h"
#include "data/row.h"
#include "data/typed_cells.h"
#include "tests/test_seed.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

using data::TypedCell;
using Kind = data::TypedCell::Kind;
using ::testing::ElementsAre;

TypedCell Null() { return {}; }

TypedCell Text(absl::string_view text) {
  TypedCell cell;
  cell.kind = Kind::kText;
  cell.text = text;
  return cell;
}

TypedCell Whole(int64_t value, Kind kind = Kind::kInteger) {
  TypedCell cell;
  cell.kind = kind;
  cell.integer = value;
  return cell;
}

TypedCell Real(double value, Kind kind = Kind::kDouble) {
  TypedCell cell;
  cell.kind = kind;
  cell.number = value;
  return cell;
}

TypedCell List(std::vector<TypedCell> items) {
  TypedCell cell;
  cell.kind = Kind::kList;
  cell.items = std::move(items);
  return cell;
}

std::string RowOf(const std::vector<TypedCell>& cells) {
  std::string row;
  for (const TypedCell& cell : cells) data::AppendCell(cell, &row);
  return row;
}

std::string TextOf(TypedCell cell) {
  std::string buffer;
  return std::string(cell.Text(&buffer));
}

TEST(TypedCellTest, ATextIsThatOfACsvFile) {
  EXPECT_EQ(TextOf(Whole(-7)), "-7");
  EXPECT_EQ(TextOf(Whole(std::numeric_limits<int64_t>::min())), "-9223372036854775808");
  EXPECT_EQ(TextOf(Real(7)), "7");
  EXPECT_EQ(TextOf(Real(-0.5)), "-0.5");
  EXPECT_EQ(TextOf(Real(0.1f, Kind::kFloat)), "0.1");
  EXPECT_EQ(TextOf(Real(0.1f)), "0.10000000149011612");
  EXPECT_EQ(TextOf(Real(1.5e-7)), "1.5e-07");
  EXPECT_EQ(TextOf(Whole(1, Kind::kBool)), "True");
  EXPECT_EQ(TextOf(Whole(0, Kind::kBool)), "False");
  for (const TypedCell& missing : {Null(), Text(""), Real(std::nan(""))}) {
    EXPECT_TRUE(missing.IsMissing());
    EXPECT_EQ(TextOf(missing), "");
    EXPECT_TRUE(std::isnan(missing.Number()));
  }
}

TEST(TypedCellTest, ARowGivesItsCellsBack) {
  const std::string row = RowOf({Null(), Text(absl::string_view("a\0b", 3)), Whole(3, Kind::kBool),
                                 Real(2.5), List({Text("x"), Null(), Whole(-1)}), List({})});
  absl::string_view rest = row;
  TypedCell cell;
  std::string texts;
  while (!rest.empty()) {
    data::TakeCell(&rest, &cell);
    absl::StrAppend(&texts, static_cast<int>(cell.kind), ":",
                    cell.kind == Kind::kList
                        ? absl::StrJoin(cell.items, "+",
                                        [](std::string* out, const TypedCell& item) {
                                          absl::StrAppend(out, TextOf(item));
                                        })
                        : TextOf(cell),
                    " ");
  }
  EXPECT_EQ(texts,
            absl::StrCat("0: 1:", absl::string_view("a\0b", 3), " 5:True 4:2.5 7:x++-1 7: "));
}

Columns SomeColumns() {
  Columns columns;
  columns.set_label("y");
  for (const char* name : {"a", "b"}) columns.add_numeric(name);
  for (const char* name : {"c", "tags", "a"}) columns.add_categorical(name);
  columns.add_missing("?");
  columns.set_scale(Column::NONE);
  Column* const tags = columns.add_column();
  tags->set_name("tags");
  tags->set_pooling(Column::MEAN);
  tags->set_max_ids(3);
  return columns;
}

// The number of a cell as a text, in one of the types that it may have.
TypedCell SomeNumber(Random* random, std::string* text) {
  switch (random->Uniform(5)) {
    case 0:
      *text = random->Uniform(2) == 0 ? "" : "?";
      return text->empty() ? Null() : Text("?");
    case 1: {
      const auto value = static_cast<int64_t>(random->Uniform(2001)) - 1000;
      *text = absl::StrCat(value);
      return Whole(value);
    }
    case 2: {
      const double value = std::exp(20 * random->NextDouble() - 10);
      const TypedCell cell = Real(value);
      *text = TextOf(cell);
      return cell;
    }
    case 3:
      *text = random->Uniform(2) == 0 ? "1.5" : "-7";
      return Text(*text == "-7" ? "-7" : "1.5");
    default:
      *text = "";
      return Real(std::nan(""));
  }
}

TEST(TypedRowsTest, AreTheRowsOfTheSameText) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(seed);
  Random random(seed);
  Columns text_columns = SomeColumns();
  text_columns.set_delimiter(",");
  text_columns.set_header(true);
  text_columns.mutable_column(0)->set_separator(";");
  auto typed = *data::NewParquetParser(SomeColumns());
  auto text = *data::NewDelimitedParser(text_columns);
  ASSERT_TRUE(typed->StartFile("").ok());
  ASSERT_TRUE(text->StartFile("y,a,b,c,tags").ok());
  for (int i = 0; i < 2000; ++i) {
    std::string a, b;
    const TypedCell number_a = SomeNumber(&random, &a), number_b = SomeNumber(&random, &b);
    const bool label = random.Bernoulli(0.5);
    std::vector<TypedCell> items;
    std::vector<std::string> names;
    for (uint64_t n = random.Uniform(4); n > 0; --n) {
      const auto item = static_cast<int64_t>(random.Uniform(4));
      items.push_back(item == 0 ? Null() : Whole(item));
      names.push_back(item == 0 ? "" : absl::StrCat(item));
    }
    const TypedCell city = random.Bernoulli(0.2) ? Null() : Text("Rome");
    // The cells of label, numbers and ids, in the order of the parser.
    const std::string row =
        RowOf({random.Bernoulli(0.5) ? Whole(label ? 1 : 0, Kind::kBool) : Whole(label ? 1 : 0),
               number_a, number_b, city, List(items), number_a});
    const std::string line = absl::StrCat(label ? "1," : "False,", a, ",", b, ",", TextOf(city),
                                          ",", absl::StrJoin(names, ";"));
    data::Row of_cells, of_text;
    ASSERT_TRUE(typed->Parse(row, &of_cells).ok());
    ASSERT_TRUE(text->Parse(line, &of_text).ok()) << line;
    ASSERT_EQ(of_cells.label, of_text.label);
    ASSERT_EQ(of_cells.numbers, of_text.numbers) << line;
    ASSERT_EQ(of_cells.keys, of_text.keys) << line;
    ASSERT_EQ(of_cells.offsets, of_text.offsets);
    ASSERT_EQ(of_cells.weights, of_text.weights);
    ASSERT_EQ(std::vector<std::string>(typed->texts().begin(), typed->texts().end()),
              std::vector<std::string>(text->texts().begin(), text->texts().end()));
  }
}

TEST(TypedRowsTest, TimesAreNumbersInTheUnitOfTheColumn) {
  Columns columns;
  columns.set_label("y");
  for (const char* name : {"day", "second"}) columns.add_numeric(name);
  columns.set_scale(Column::NONE);
  Column* const second = columns.add_column();
  second->set_name("second");
  second->set_date_unit(Column::SECONDS);
  auto parser = *data::NewParquetParser(columns);
  ASSERT_TRUE(parser->StartFile("").ok());
  data::Row row;
  const TypedCell noon = Real(86400 * 1.5, Kind::kTime);
  ASSERT_TRUE(parser->Parse(RowOf({Whole(1), noon, noon}), &row).ok());
  EXPECT_THAT(row.numbers, ElementsAre(1.5f, 129600.0f));
}

TEST(TypedRowsTest, RawIdsAreTheNumbersThemselves) {
  Columns columns;
  columns.set_label("y");
  columns.add_categorical("item");
  Column* const item = columns.add_column();
  item->set_name("item");
  item->set_ids(Column::RAW);
  auto typed = *data::NewParquetParser(columns);
  columns.set_delimiter(",");
  columns.set_header(true);
  auto text = *data::NewDelimitedParser(columns);
  ASSERT_TRUE(typed->StartFile("").ok() && text->StartFile("y,item").ok());
  data::Row row;
  for (const auto& [written, id] : std::vector<std::pair<std::string, uint64_t>>{
           {"12", 12}, {"-1", ~uint64_t{0}}, {"18446744073709551615", ~uint64_t{0}}}) {
    ASSERT_TRUE(text->Parse("1," + written, &row).ok()) << written;
    EXPECT_THAT(row.keys, ElementsAre(id));
    ASSERT_TRUE(typed->Parse(RowOf({Whole(1), Text(written)}), &row).ok());
    EXPECT_THAT(row.keys, ElementsAre(id));
  }
  ASSERT_TRUE(typed->Parse(RowOf({Whole(1), Null()}), &row).ok());
  ExpectOneLine(
      text->Parse("1,1.5", &row),
      {"column 'item' is '1.5', expected a whole number of 64 bits", "hint: ids: HASHED"});
  ExpectOneLine(typed->Parse(RowOf({Whole(1), Text("-x")}), &row), {"column 'item' is '-x'"});
}

TEST(TypedRowsTest, BadCellsAreRefused) {
  auto parser = *data::NewParquetParser(SomeColumns());
  ASSERT_TRUE(parser->StartFile("").ok());
  data::Row row;
  const TypedCell x = Text("x"), one = Whole(1), none = List({});
  ExpectOneLine(parser->Parse(RowOf({Whole(2), one, one, x, none, one}), &row),
                {"the label in column 'y' is '2'"});
  ExpectOneLine(parser->Parse(RowOf({one, x, one, x, none, one}), &row),
                {"column 'a' is 'x', expected a number"});
  ExpectOneLine(parser->Parse(RowOf({one, one, Real(INFINITY), x, none, one}), &row),
                {"column 'b' is 'inf', expected a number"});
  ExpectOneLine(parser->Parse(RowOf({one, one, one, x, List({x, x, x, x}), one}), &row),
                {"column 'tags' has 4 values, expected at most 3"});
}

TEST(ArrowTableTest, IsReadAsItWasMade) {
  data::ArrowTable table(3);
  table.AddText("city", {"Rome", "", "Oslo"});
  table.AddDoubles("score", {.5, 1, -2});
  ArrowArrayStream made = std::move(table).ToStream();
  auto stream = *data::ArrowStream::Take("table", &made);
  EXPECT_EQ(made.release, nullptr);
  EXPECT_THAT(stream->columns(), ElementsAre("city", "score"));
  EXPECT_EQ((*stream->TypeOf(0))->name, "text");
  ASSERT_TRUE(*stream->Next({1, 0}));
  ASSERT_EQ(stream->rows(), 3);
  TypedCell cell;
  std::string read;
  for (int64_t row = 0; row < 3; ++row) {
    for (size_t column : {0, 1}) {
      ASSERT_TRUE(stream->column(column).Get(row, &cell).ok());
      absl::StrAppend(&read, TextOf(cell), column == 0 ? " " : ", ");
    }
  }
  EXPECT_EQ(read, "0.5 Rome, 1 , -2 Oslo, ");
  EXPECT_FALSE(*stream->Next({1, 0}));
  ExpectOneLine(data::ArrowStream::Take("table", &made).status(), {"table: the stream was read"});
}

}  // namespace
}  // namespace tandem
