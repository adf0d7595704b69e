// The text formats of one row a line: what a row becomes, and what is refused with which words.
#include "data/row.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "data/cells.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(CellsTest, NumbersFillTheWholeCellAndAreFinite) {
  float x = 0;
  for (const auto& [text, value] :
       std::vector<std::pair<std::string, float>>{{"0", 0},
                                                  {"17", 17},
                                                  {"-3", -3},
                                                  {"+1", 1},
                                                  {"2.5e1", 25},
                                                  {"16777216", 16777216},
                                                  {"1e-60", 0},
                                                  {"-0", 0}}) {
    EXPECT_TRUE(data::ParseNumber(text, &x)) << text;
    EXPECT_EQ(x, value) << text;
  }
  for (const char* text : {"", "+", "-", "+-1", "1 ", " 1", "1x", "nan", "inf", "-inf", "1e39",
                           "1e999", "0x10", "1,5"}) {
    EXPECT_FALSE(data::ParseNumber(text, &x)) << text;
  }
  EXPECT_TRUE(data::ParseNumber("-1e-400", &x)) << "as small as nothing";
  EXPECT_EQ(x, 0);
  double wide = 0;
  EXPECT_TRUE(data::ParseNumber("1e39", &wide));
  EXPECT_EQ(wide, 1e39);
  for (const char* text : {"1e39", "-1e39", "+1e39", "1e999", "179769313486e300"}) {
    EXPECT_TRUE(data::IsBeyondFloat(text)) << text;
  }
  for (const char* text : {"1e38", "1e-400", "inf", "nan", "", "x", "1e39x", "1e999 "}) {
    EXPECT_FALSE(data::IsBeyondFloat(text)) << text;
  }
}

std::vector<std::string> Split(absl::string_view line, absl::string_view delimiter) {
  std::vector<absl::string_view> cells(5);
  const size_t count = data::SplitCells(line, delimiter, absl::MakeSpan(cells));
  return {cells.begin(), cells.begin() + std::min(count, cells.size())};
}

TEST(CellsTest, DelimitersOfSeveralBytes) {
  EXPECT_THAT(Split("1::Heat: a film::x", "::"), ElementsAre("1", "Heat: a film", "x"));
  EXPECT_THAT(Split("::a::", "::"), ElementsAre("", "a", ""));
  EXPECT_THAT(Split(":::a", "::"), ElementsAre("", ":a"));
  EXPECT_THAT(Split("", "::"), ElementsAre(""));
  EXPECT_THAT(Split("a\x01z", "\x01"), ElementsAre("a", "z"));
}

TEST(CellsTest, ACellInQuotesMayGoOnInTheNextLine) {
  const auto ends = [](absl::string_view line, bool inside = false, bool trim = false) {
    return data::EndsInQuotes(line, ",", trim, inside);
  };
  for (const char* line : {"", "a,b", "\"a\",b", "5\" tall,b", "\"a\"\"b\",c", "\"\"", " \"a,b",
                           "\"a\"x\"y,b", "a,\"\"\"\""}) {
    EXPECT_FALSE(ends(line)) << line;
  }
  for (const char* line : {"\"", "\"a,b", "a,\"b", "\"a\"\"", "\"a\",\"b\"\",c", "\"\"\""}) {
    EXPECT_TRUE(ends(line)) << line;
  }
  EXPECT_TRUE(ends(" \"a,b", false, /*trim=*/true));
  EXPECT_TRUE(ends("a,b", true));
  EXPECT_FALSE(ends("a\",b", true));
  EXPECT_TRUE(ends("a\"\"", true));
  EXPECT_TRUE(ends("a\",\"b", true));
}

TEST(CellsTest, QuotedTextIsShortAndOneLine) {
  EXPECT_EQ(data::Quote("a\nb\x01"), "'a\\nb\\x01'");
  // Text of any language stays readable. What cannot be seen, or is no UTF-8, is escaped.
  EXPECT_EQ(data::Quote("gr\xc3\xb6\xc3\x9f"
                        "e \xe5\x8c\x97"),
            "'gr\xc3\xb6\xc3\x9f"
            "e \xe5\x8c\x97'");
  EXPECT_EQ(data::Quote("a\xc2\xa0"
                        "b\xe2\x80\xae\xc2\x9b"),
            "'a\\xc2\\xa0b\\xe2\\x80\\xae\\xc2\\x9b'");
  EXPECT_EQ(data::Quote("Z\xfcrich"), "'Z\\xfcrich'");
  EXPECT_EQ(data::Quote(std::string(39, 'a') + "\xc3\xb6"),
            absl::StrCat("'", std::string(39, 'a'), "...'"))
      << "no half of a character";
  EXPECT_LT(data::Quote(std::string(1000, 'x')).size(), 50u);
}

// The keys are part of every checkpoint: they may never change.
TEST(CellsTest, KeysAreStableAndDifferBetweenFields) {
  const data::FieldHash c1("C1"), c2("C2");
  EXPECT_EQ(c1.Key("68fd1e64"), 8601746594197418059u);
  EXPECT_EQ(c1.missing(), 985271929574167459u);
  EXPECT_EQ(c1.Key(uint64_t{7}), 18133586919704551601u);
  const std::set<uint64_t> all = {c1.Key("a"),  c2.Key("a"),  c1.Key("b"),
                                  c1.missing(), c2.missing(), c1.Key("")};
  EXPECT_EQ(all.size(), 6u);
}

std::vector<std::string> CriteoCells() {
  std::vector<std::string> cells = {"1"};
  for (int i = 1; i <= 13; ++i) cells.push_back(absl::StrCat(i));
  for (int f = 1; f <= 26; ++f) cells.push_back(absl::StrCat("v", f));
  return cells;
}

TEST(CriteoTest, ARowIsALabelNumbersAndKeys) {
  auto cells = CriteoCells();
  cells[2] = "-2";
  cells[3] = "";
  cells[14 + 5] = "";
  data::Row row;
  ASSERT_TRUE(data::NewCriteoParser()->Parse(absl::StrJoin(cells, "\t"), &row).ok());
  EXPECT_EQ(row.label, 1);
  ASSERT_EQ(row.numbers.size(), 13u);
  EXPECT_FLOAT_EQ(row.numbers[0], std::log(2.0f));
  EXPECT_FLOAT_EQ(row.numbers[1], -std::log(3.0f));
  EXPECT_EQ(row.numbers[2], 0);  // missing
  ASSERT_EQ(row.keys.size(), 26u);
  EXPECT_EQ(row.keys[0], data::FieldHash("C1").Key("v1"));
  EXPECT_EQ(row.keys[5], data::FieldHash("C6").missing());
  EXPECT_EQ(row.keys[25], data::FieldHash("C26").Key("v26"));
}

TEST(CriteoTest, BadRowsAreRefused) {
  auto parser = data::NewCriteoParser();
  data::Row row;
  auto cells = CriteoCells();
  cells.pop_back();
  ExpectOneLine(parser->Parse(absl::StrJoin(cells, "\t"), &row), {"39 columns", "expected 40"});
  cells.insert(cells.end(), {"a", "b"});
  ExpectOneLine(parser->Parse(absl::StrJoin(cells, "\t"), &row), {"41 columns", "expected 40"});
  cells.pop_back();
  cells[4] = "many";
  ExpectOneLine(parser->Parse(absl::StrJoin(cells, "\t"), &row),
                {"column 4 (I4)", "'many'", "expected a number"});
  for (const char* label : {"2", "", "-1", "01", "yes"}) {
    cells[0] = label;
    ExpectOneLine(parser->Parse(absl::StrJoin(cells, "\t"), &row),
                  {"the label", absl::StrCat("'", label, "'"), "0 or 1"});
  }
}

TEST(CriteoTest, RowsToScoreNeedNoLabel) {
  auto parser = data::NewCriteoParser(/*labels_optional=*/true);
  data::Row row, labelled;
  auto cells = CriteoCells();
  const std::string with = absl::StrJoin(cells, "\t");
  ASSERT_TRUE(parser->StartFile(with).ok());
  ASSERT_TRUE(parser->Parse(with, &labelled).ok());
  EXPECT_EQ(labelled.label, 1);
  cells[0] = "";
  ASSERT_TRUE(parser->Parse(absl::StrJoin(cells, "\t"), &row).ok());
  EXPECT_TRUE(std::isnan(row.label));
  cells.erase(cells.begin());
  const std::string without = absl::StrJoin(cells, "\t");
  ExpectOneLine(parser->Parse(without, &row), {"39 columns", "expected 40"});
  ASSERT_TRUE(parser->StartFile(without).ok());
  ASSERT_TRUE(parser->Parse(without, &row).ok());
  EXPECT_TRUE(std::isnan(row.label));
  EXPECT_EQ(row.numbers, labelled.numbers);
  EXPECT_EQ(row.keys, labelled.keys);
  ExpectOneLine(parser->Parse(with, &row), {"40 columns", "expected 39", "no label"});
}

TEST(LibsvmTest, RowsToScoreNeedNoLabel) {
  auto parser = data::NewLibsvmParser(/*max_ids=*/0, Columns(), /*labels_optional=*/true);
  data::Row row;
  ASSERT_TRUE(parser->Parse(" 3:0.5 7:1", &row).ok());
  EXPECT_TRUE(std::isnan(row.label));
  EXPECT_THAT(row.keys, ElementsAre(3u, 7u));
  ASSERT_TRUE(parser->Parse("0 3:0.5", &row).ok());
  EXPECT_EQ(row.label, 0);
  ExpectOneLine(parser->Parse("2 3:0.5", &row), {"the label is '2'"});
  ExpectOneLine(parser->Parse("3:x 4:1", &row), {"'3:x' is not index:value"});
}

TEST(LibsvmTest, PairsBecomeKeysAndWeights) {
  auto parser = data::NewLibsvmParser(/*max_ids=*/0);
  data::Row row;
  ASSERT_TRUE(parser->Parse("+1 3:0.5  18446744073709551615:-2\t7:1 # 9:9", &row).ok());
  EXPECT_EQ(row.label, 1);
  EXPECT_THAT(row.keys, ElementsAre(3u, 18446744073709551615u, 7u));
  EXPECT_THAT(row.weights, ElementsAre(0.5f, -2.0f, 1.0f));
  ASSERT_TRUE(parser->Parse("-1", &row).ok());
  EXPECT_EQ(row.label, 0);
  EXPECT_THAT(row.keys, IsEmpty());
}

TEST(LibsvmTest, CommentsBlankLinesAndQueriesArePassedOver) {
  auto parser = data::NewLibsvmParser(/*max_ids=*/0);
  for (const char* line : {"", " ", " \t ", "# made by a tool", "\t# 1 2:3"}) {
    EXPECT_FALSE(parser->IsRow(line)) << line;
  }
  EXPECT_TRUE(parser->IsRow(" 1 # 2"));
  data::Row row;
  ASSERT_TRUE(parser->Parse("1 qid:7 3:0.5 # 9:9", &row).ok());
  EXPECT_THAT(row.keys, ElementsAre(3u));
  ASSERT_TRUE(parser->Parse("0 qid:7", &row).ok());
  EXPECT_THAT(row.keys, IsEmpty());
}

TEST(LibsvmTest, RowsOfTooManyIdsAreRefused) {
  data::Row row;
  auto parser = data::NewLibsvmParser(/*max_ids=*/2);
  EXPECT_TRUE(parser->Parse("1 1:1 2:1", &row).ok());
  ExpectOneLine(parser->Parse("1 1:1 2:1 3:1", &row), {"3 ids", "at most 2", "data.max_ids"});
}

TEST(LibsvmTest, BadRowsAreRefused) {
  data::Row row;
  for (const char* label : {"2", "0.5", "x", "# nothing"}) {
    ExpectOneLine(data::NewLibsvmParser(/*max_ids=*/0)->Parse(absl::StrCat(label, " 1:1"), &row),
                  {"the label", "'1'", "'-1'", "'False'", "data.columns", "hint"});
  }
  for (const char* pair :
       {"1", "1:", ":1", "-1:1", "18446744073709551616:1", "1:x", "1:nan", "qid:x", "1:1 qid:3"}) {
    ExpectOneLine(data::NewLibsvmParser(/*max_ids=*/0)->Parse(absl::StrCat("1 ", pair), &row),
                  {absl::StrCat("'", absl::StripPrefix(pair, "1:1 "), "'"), "index:value", "hint"});
  }
  ExpectOneLine(data::NewLibsvmParser(0)->Parse("1 4:1e39", &row),
                {"'4:1e39'", "range of a float"});
  ExpectOneLine(data::NewLibsvmParser(0)->Parse("1 2:4:1", &row), {"'2:4:1'", "field:index:value"});
  ExpectOneLine(data::NewLibsvmParser(0)->Parse("1 3:1,4:1", &row), {"'3:1,4:1'", "not by commas"});
  auto parser = data::NewLibsvmParser(/*max_ids=*/0);
  ASSERT_TRUE(parser->Parse("0 1:1", &row).ok());
  ExpectOneLine(parser->Parse("-1 1:1", &row),
                {"the label is '-1'", "'0' (0)", "written in one way", "hint"});
}

TEST(LibsvmTest, LabelsOfOtherKinds) {
  const auto label = [](data::RowParser* parser, absl::string_view line) {
    data::Row row;
    const absl::Status status = parser->Parse(line, &row);
    EXPECT_TRUE(status.ok()) << status;
    return row.label;
  };
  auto words = data::NewLibsvmParser(/*max_ids=*/0);
  EXPECT_EQ(label(words.get(), "False 1:1"), 0);
  EXPECT_EQ(label(words.get(), "True 1:1"), 1);
  auto decimals = data::NewLibsvmParser(/*max_ids=*/0);
  EXPECT_EQ(label(decimals.get(), "-1.0 1:1"), 0);
  EXPECT_EQ(label(decimals.get(), "+1 1:1"), 1);
  EXPECT_EQ(label(decimals.get(), "-1 1:1"), 0);
  Columns columns;
  columns.add_positive("2");
  columns.add_negative("1");
  auto classes = data::NewLibsvmParser(/*max_ids=*/0, columns);
  EXPECT_EQ(label(classes.get(), "1 1:1"), 0);
  EXPECT_EQ(label(classes.get(), "2 1:1"), 1);
  data::Row row;
  ExpectOneLine(classes->Parse("0 1:1", &row), {"the label is '0'", "'2'", "'1' (0)"});
}

Columns NamedColumns() {
  Columns columns;
  columns.set_delimiter(",");
  columns.set_header(true);
  columns.set_label("y");
  columns.add_positive("yes");
  columns.add_numeric("age");
  columns.add_categorical("city");
  columns.add_categorical("job");
  columns.add_missing("?");
  return columns;
}

TEST(DelimitedTest, ColumnsAreFoundByName) {
  auto parser = *data::NewDelimitedParser(NamedColumns());
  EXPECT_TRUE(parser->has_header());
  ASSERT_TRUE(parser->StartFile("job,unused,age,y,city").ok());
  data::Row row;
  ASSERT_TRUE(parser->Parse("clerk,x,41.5,yes,?", &row).ok());
  EXPECT_EQ(row.label, 1);
  EXPECT_THAT(row.numbers, ElementsAre(41.5f));
  EXPECT_THAT(row.keys,
              ElementsAre(data::FieldHash("city").missing(), data::FieldHash("job").Key("clerk")));
  ASSERT_TRUE(parser->Parse(",x,?,no,Rome", &row).ok());
  EXPECT_EQ(row.label, 0);
  EXPECT_THAT(row.numbers, ElementsAre(0.0f));
  EXPECT_THAT(row.keys,
              ElementsAre(data::FieldHash("city").Key("Rome"), data::FieldHash("job").missing()));
  // The next file may order its columns otherwise.
  ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
  ASSERT_TRUE(parser->Parse("no,7,Rome,clerk", &row).ok());
  EXPECT_THAT(row.numbers, ElementsAre(7.0f));
}

TEST(DelimitedTest, ColumnsAreFoundByNumberAndTransformed) {
  Columns columns;
  columns.set_label("2");
  columns.add_numeric("0");
  columns.add_categorical("1");
  columns.set_log_transform(true);
  auto parser = *data::NewDelimitedParser(columns);
  ASSERT_TRUE(parser->StartFile("1\ta\t0").ok());
  data::Row row;
  ASSERT_TRUE(parser->Parse("-3\ta\t1", &row).ok());
  EXPECT_EQ(row.label, 1);  // the default of `positive` is "1"
  EXPECT_FLOAT_EQ(row.numbers[0], -std::log(4.0f));
  EXPECT_THAT(row.keys, ElementsAre(data::FieldHash("1").Key("a")));
}

TEST(DelimitedTest, BadColumnsAreRefused) {
  auto parser = *data::NewDelimitedParser(NamedColumns());
  ExpectOneLine(parser->StartFile("y,age,town,job"),
                {"no column 'city'", "data.columns.categorical", "'town'", "hint"});
  ExpectOneLine(parser->StartFile("y;age;city;job"),
                {"no column 'y'", "data.columns.delimiter: \";\""});
  Columns columns;
  columns.set_label("y");
  ExpectOneLine((*data::NewDelimitedParser(columns))->StartFile("1\t2"),
                {"data.columns.label", "'y'", "number", "header: true"});
  columns.set_label("2");
  ExpectOneLine((*data::NewDelimitedParser(columns))->StartFile("1\t2"),
                {"2 columns", "expected", "hint"});
  ExpectOneLine((*data::NewDelimitedParser(columns))->StartFile("1,2,3"),
                {"1 columns", "data.columns.delimiter: \",\""});
  ExpectOneLine(data::NewDelimitedParser(Columns()).status(), {"data.columns.label is not set"});
}

// RFC 4180, whatever separates the cells.
TEST(DelimitedTest, QuotedCells) {
  auto parser = *data::NewDelimitedParser(NamedColumns());
  ASSERT_TRUE(parser->StartFile("y,\"age\",city,job").ok());
  data::Row row;
  ASSERT_TRUE(parser->Parse(R"("yes","41.5","Rome, Italy","a ""b"" c")", &row).ok());
  EXPECT_EQ(row.label, 1);
  EXPECT_THAT(row.numbers, ElementsAre(41.5f));
  EXPECT_THAT(row.keys, ElementsAre(data::FieldHash("city").Key("Rome, Italy"),
                                    data::FieldHash("job").Key("a \"b\" c")));
  ASSERT_TRUE(parser->Parse(R"(no,"","""",x"y")", &row).ok());
  EXPECT_THAT(row.numbers, ElementsAre(0.0f));
  EXPECT_THAT(row.keys,
              ElementsAre(data::FieldHash("city").Key("\""), data::FieldHash("job").Key("x\"y\"")));
  ASSERT_TRUE(parser->Parse(R"(no,1,"Rome","")", &row).ok());
  EXPECT_THAT(row.keys,
              ElementsAre(data::FieldHash("city").Key("Rome"), data::FieldHash("job").missing()));
  ExpectOneLine(parser->Parse(R"(no,1,"Rome,x)", &row),
                {"'\\\"Rome,x'", "does not end", "quotes: NONE"});
  ExpectOneLine(parser->Parse(R"(no,1,"Rome"",x)", &row), {"does not end"});
  ExpectOneLine(parser->Parse(R"(no,1,"Rome"x,y)", &row), {"text follows the closing quote"});
  ExpectOneLine(parser->Parse(R"(no,1,"a,b",x,y)", &row), {"5 columns", "expected 4"});
  Columns tabs = NamedColumns();
  tabs.set_delimiter("\t");
  parser = *data::NewDelimitedParser(tabs);
  ASSERT_TRUE(parser->StartFile("\"y\"\tage\tcity\tjob").ok());
  ASSERT_TRUE(parser->Parse("no\t1\t\"Ro\tme\"\tx", &row).ok());
  EXPECT_EQ(row.keys[0], data::FieldHash("city").Key("Ro\tme"));
  tabs.set_trim(true);
  parser = *data::NewDelimitedParser(tabs);
  ASSERT_TRUE(parser->StartFile("y\tage\tcity\tjob").ok());
  ASSERT_TRUE(parser->Parse("no\t\t \"Rome\" \t x ", &row).ok()) << "a tab separates";
  EXPECT_EQ(row.keys[0], data::FieldHash("city").Key("Rome"));
  EXPECT_EQ(row.keys[1], data::FieldHash("job").Key("x"));
  tabs.set_trim(false);
  tabs.set_quotes(Columns::NONE);
  parser = *data::NewDelimitedParser(tabs);
  ASSERT_TRUE(parser->StartFile("y\tage\tcity\tjob").ok());
  ASSERT_TRUE(parser->Parse("no\t1\t\"Rome\tx", &row).ok());
  EXPECT_EQ(row.keys[0], data::FieldHash("city").Key("\"Rome"));
  EXPECT_FALSE(parser->EndsInQuotes("no\t1\t\"Rome\tx", false));
}

data::Row ParseRow(data::RowParser* parser, absl::string_view line) {
  data::Row row;
  const absl::Status status = parser->Parse(line, &row);
  EXPECT_TRUE(status.ok()) << status;
  return row;
}

TEST(DelimitedTest, SeveralSpellingsOfMissingForAllAndByColumn) {
  Columns columns = NamedColumns();
  columns.add_missing("NA");
  Column* const age = columns.add_column();
  age->set_name("age");
  age->add_missing("-1");
  Column* const city = columns.add_column();
  city->set_name("city");
  city->add_missing("nowhere");
  auto parser = *data::NewDelimitedParser(columns);
  ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
  const uint64_t no_city = data::FieldHash("city").missing(),
                 no_job = data::FieldHash("job").missing();
  for (const char* line : {"no,,,", "no,?,?,?", "no,NA,NA,NA"}) {
    const data::Row row = ParseRow(parser.get(), line);
    EXPECT_THAT(row.numbers, ElementsAre(0.0f)) << line;
    EXPECT_THAT(row.keys, ElementsAre(no_city, no_job)) << line;
  }
  const data::Row row = ParseRow(parser.get(), "no,-1,nowhere,nowhere");
  EXPECT_THAT(row.numbers, ElementsAre(0.0f));
  EXPECT_THAT(row.keys, ElementsAre(no_city, data::FieldHash("job").Key("nowhere")));
}

absl::Status ErrorOf(const Columns& columns, absl::string_view line) {
  auto parser = *data::NewDelimitedParser(columns);
  EXPECT_TRUE(parser->StartFile("y;age;city;job").ok());
  data::Row row;
  return parser->Parse(line, &row);
}

TEST(DelimitedTest, DecimalCommas) {
  Columns columns = NamedColumns();
  columns.set_delimiter(";");
  columns.set_scale(Column::NONE);
  ExpectOneLine(ErrorOf(columns, "no;2,61;Rome;x"), {"'2,61'", "data.columns.decimal"});
  ExpectOneLine(ErrorOf(columns, "no;1,052;Rome;x"), {"'1,052'", "thousands"});
  for (const char* cell : {"1,234,567.5", "1.234,50", "1.234.567"}) {
    ExpectOneLine(ErrorOf(columns, absl::StrCat("no;", cell, ";Rome;x")), {"thousands"});
  }
  columns.set_decimal(",");
  auto parser = *data::NewDelimitedParser(columns);
  ASSERT_TRUE(parser->StartFile("y;age;city;job").ok());
  for (const auto& [text, value] : std::vector<std::pair<std::string, float>>{
           {"2,5", 2.5f}, {"-,5", -0.5f}, {"7", 7}, {"1,5e1", 15}, {"?", 0}}) {
    EXPECT_THAT(ParseRow(parser.get(), absl::StrCat("no;", text, ";Rome;x")).numbers,
                ElementsAre(value))
        << text;
  }
  ExpectOneLine(ErrorOf(columns, "no;2.5;Rome;x"), {"'2.5'", "has a point"});
  for (const char* cell : {"1,000,000", "1.234,50", "1.234.567", "1.234"}) {
    ExpectOneLine(ErrorOf(columns, absl::StrCat("no;", cell, ";Rome;x")), {"thousands"});
  }
}

TEST(DelimitedTest, DatesAreNumbersSince1970) {
  Columns columns = NamedColumns();
  columns.set_delimiter(";");
  columns.set_scale(Column::NONE);
  Column* const day = columns.add_column();
  day->set_name("age");
  const auto number = [&](const char* form, Column::DateUnit unit, absl::string_view cell) {
    day->set_date(form);
    day->set_date_unit(unit);
    auto parser = *data::NewDelimitedParser(columns);
    EXPECT_TRUE(parser->StartFile("y;age;city;job").ok());
    return ParseRow(parser.get(), absl::StrCat("no;", cell, ";Rome;x")).numbers[0];
  };
  EXPECT_EQ(number("%d.%m.%Y", Column::DAYS, "31.12.2024"), 20088);
  EXPECT_EQ(number("%Y-%m-%d", Column::DATE_UNIT_UNSPECIFIED, "1969-12-31"), -1);
  EXPECT_EQ(number("%Y%m%d", Column::DAYS, "20241231"), 20088);
  EXPECT_EQ(number("%m/%d/%y", Column::DAYS, "12/31/24"), 20088);
  EXPECT_EQ(number("%d %b %Y", Column::DAYS, "31 Dec 2024"), 20088);
  EXPECT_EQ(number("%s", Column::SECONDS, "4096"), 4096);
  EXPECT_EQ(number("%H:%M:%E*S", Column::SECONDS, "00:01:01.5"), 61.5);
  EXPECT_EQ(number("%Y-%m-%d %H:%M", Column::DAYS, "1970-01-02 12:00"), 1.5);
  EXPECT_EQ(number("%Y-%m-%dT%H:%M:%S", Column::SECONDS, "1970-01-01T00:01:01"), 61);
  EXPECT_EQ(number("%Y-%m-%d %H:%M %z", Column::SECONDS, "1970-01-01 01:00 +0100"), 0);
  EXPECT_EQ(number("%d.%m.%Y", Column::DAYS, "?"), 0) << "missing";
  for (const char* cell : {"2024-12-31", "31.13.2024", "31.12.2024 x", "20088", "infinite-past"}) {
    day->set_date("%d.%m.%Y");
    ExpectOneLine(ErrorOf(columns, absl::StrCat("no;", cell, ";Rome;x")),
                  {"column 'age'", cell, "expected a date like 31.12.2024", "hint"});
  }
}

TEST(DelimitedTest, CellsOfSeveralIds) {
  Columns columns = NamedColumns();
  Column* const city = columns.add_column();
  city->set_name("city");
  city->set_separator("|");
  city->set_max_ids(3);
  auto parser = *data::NewDelimitedParser(columns);
  ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
  const data::FieldHash cities("city"), jobs("job");
  data::Row row = ParseRow(parser.get(), "no,1,Rome|Oslo|Rome,x|y");
  EXPECT_THAT(row.keys, ElementsAre(cities.Key("Rome"), cities.Key("Oslo"), cities.Key("Rome"),
                                    jobs.Key("x|y")));
  EXPECT_THAT(row.offsets, ElementsAre(0, 3, 4));
  EXPECT_THAT(row.weights, IsEmpty());
  EXPECT_THAT(parser->texts(), ElementsAre("Rome", "Oslo", "Rome", "x|y"));
  for (const char* cell : {"", "?", "|", "||", "?|?"}) {
    row = ParseRow(parser.get(), absl::StrCat("no,1,", cell, ",x"));
    EXPECT_THAT(row.keys, ElementsAre(cities.missing(), jobs.Key("x"))) << cell;
    EXPECT_THAT(row.offsets, ElementsAre(0, 1, 2));
  }
  row = ParseRow(parser.get(), "no,1,|Rome|?,x");
  EXPECT_THAT(row.keys, ElementsAre(cities.Key("Rome"), jobs.Key("x")));
  ExpectOneLine(parser->Parse("no,1,a|b|c|d,x", &row),
                {"column 'city' has 4 values in 'a|b|c|d'", "at most 3", "max_ids"});
  city->set_pooling(Column::MEAN);
  city->set_separator(", ");
  parser = *data::NewDelimitedParser(columns);
  ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
  row = ParseRow(parser.get(), "no,1,\"Rome, Oslo\",x");
  EXPECT_THAT(row.keys, ElementsAre(cities.Key("Rome"), cities.Key("Oslo"), jobs.Key("x")));
  EXPECT_THAT(row.weights, ElementsAre(0.5f, 0.5f, 1.0f));
}

TEST(DelimitedTest, AColumnMayBeANumberAndACategory) {
  Columns columns = NamedColumns();
  columns.add_categorical("age");
  auto parser = *data::NewDelimitedParser(columns);
  ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
  const data::Row row = ParseRow(parser.get(), "no,41,Rome,x");
  EXPECT_THAT(row.numbers, ElementsAre(41.0f));
  EXPECT_EQ(row.keys[2], data::FieldHash("age").Key("41"));
}

TEST(DelimitedTest, NumbersBeyondAFloat) {
  Columns columns = NamedColumns();
  columns.set_delimiter(";");
  columns.set_scale(Column::NONE);
  for (const char* cell : {"1e39", "-1e39", "1e999"}) {
    ExpectOneLine(ErrorOf(columns, absl::StrCat("no;", cell, ";Rome;x")),
                  {"column 'age'", cell, "range of a float", "clip_max"});
  }
  columns.add_column()->set_name("age");
  columns.mutable_column(0)->set_clip_max(100);
  auto parser = *data::NewDelimitedParser(columns);
  ASSERT_TRUE(parser->StartFile("y;age;city;job").ok());
  EXPECT_THAT(ParseRow(parser.get(), "no;1e39;Rome;x").numbers, ElementsAre(100.0f));
}

// The hint names the cause.
TEST(DelimitedTest, HintsOfNumbersThatAreNone) {
  Columns columns = NamedColumns();
  columns.set_delimiter(";");
  for (const auto& [cell, hint] :
       std::vector<std::pair<std::string, std::string>>{{"old", "data.columns.missing"},
                                                        {"true", "data.columns.categorical"},
                                                        {"2024-05-01", "date of its `column`"},
                                                        {"12:30", "date of its `column`"},
                                                        {"+-5", "a number stands alone"},
                                                        {"5-", "a number stands alone"},
                                                        {"12 %", "without a unit"},
                                                        {"0x1f", "data.columns.categorical"},
                                                        {" 12", "data.columns.trim"}}) {
    ExpectOneLine(ErrorOf(columns, absl::StrCat("no;", cell, ";Rome;x")),
                  {"'age'", "expected a number", hint});
  }
}

TEST(DelimitedTest, AHeaderThatTheJobDoesNotKnowOfAndTheReverse) {
  Columns columns;
  columns.set_delimiter(",");
  columns.set_label("2");
  columns.add_numeric("0");
  columns.add_categorical("1");
  data::Row row;
  const auto first = [&](absl::string_view line) {
    auto parser = *data::NewDelimitedParser(columns);
    EXPECT_TRUE(parser->StartFile(line).ok());
    return parser->Parse(line, &row);
  };
  ExpectOneLine(first("age,city,y"), {"column '2' is 'y'", "data.columns.header: true"});
  columns.add_positive("y");
  ExpectOneLine(first("age,city,y"), {"column '0' is 'age'", "data.columns.header: true"});
  auto parser = *data::NewDelimitedParser(NamedColumns());
  ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
  ASSERT_TRUE(parser->Parse("no,36,Rome,x", &row).ok());
  ExpectOneLine(parser->Parse("y,age,city,job", &row), {"column 'y' is 'y'", "repeats the header"});
  const absl::Status label = parser->Parse("y,36,Rome,x", &row);
  ExpectOneLine(label, {"column 'y' is 'y'", "data.columns.positive"});
  ExpectOneLine((*data::NewDelimitedParser(NamedColumns()))->StartFile("no,36,Rome,x"),
                {"no column 'y'", "is it a row?", "data.columns.header"});
}

TEST(DelimitedTest, BlankLinesAreNoRows) {
  Columns columns = NamedColumns();
  auto parser = *data::NewDelimitedParser(columns);
  EXPECT_FALSE(parser->IsRow("  \t"));
  EXPECT_TRUE(parser->IsRow(",,,")) << "a row without a label, which is refused";
  columns.set_delimiter("\t");
  parser = *data::NewDelimitedParser(columns);
  EXPECT_FALSE(parser->IsRow("  "));
  EXPECT_TRUE(parser->IsRow("\t\t"));
  EXPECT_FALSE(data::NewCriteoParser()->IsRow("  "));
}

TEST(DelimitedTest, BlanksAroundCellsAreTrimmedIfTheJobSaysSo) {
  Columns columns = NamedColumns();
  auto parser = *data::NewDelimitedParser(columns);
  ExpectOneLine(parser->StartFile("y, age, city, job"), {"no column 'age'", "' age'", "trim"});
  ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
  data::Row row;
  ExpectOneLine(parser->Parse("no, 41,Rome,x", &row), {"'age'", "' 41'", "data.columns.trim"});
  ASSERT_TRUE(parser->Parse("yes,41, Rome,x", &row).ok());
  EXPECT_EQ(row.keys[0], data::FieldHash("city").Key(" Rome"));
  ExpectOneLine(parser->Parse("yes, 41, \"Rome, Italy\",x", &row), {"5 columns", "trim"});
  columns.set_trim(true);
  parser = *data::NewDelimitedParser(columns);
  ASSERT_TRUE(parser->StartFile("y , age,\tcity,\"job\"").ok());
  row = ParseRow(parser.get(), " yes,\t41 , Rome ,x ");
  EXPECT_EQ(row.label, 1);
  EXPECT_THAT(row.numbers, ElementsAre(41.0f));
  EXPECT_THAT(row.keys,
              ElementsAre(data::FieldHash("city").Key("Rome"), data::FieldHash("job").Key("x")));
  // A quote after a blank; what it protects stays as it is.
  row = ParseRow(parser.get(), R"(no, 41 , "Rome, Italy" ,"?")");
  EXPECT_THAT(row.keys, ElementsAre(data::FieldHash("city").Key("Rome, Italy"),
                                    data::FieldHash("job").missing()));
  row = ParseRow(parser.get(), R"(no, "4e1", " Rome", "")");
  EXPECT_THAT(row.numbers, ElementsAre(40.0f));
  EXPECT_THAT(row.keys,
              ElementsAre(data::FieldHash("city").Key(" Rome"), data::FieldHash("job").missing()));
  row = ParseRow(parser.get(), "no, ,   , ? ");
  EXPECT_THAT(row.keys,
              ElementsAre(data::FieldHash("city").missing(), data::FieldHash("job").missing()));
}

TEST(DelimitedTest, LabelsAreMapped) {
  Columns columns = NamedColumns();
  for (const char* text : {"1", "True", ">50K."}) columns.add_positive(text);
  for (const char* text : {"no", "-1", "<=50K."}) columns.add_negative(text);
  auto parser = *data::NewDelimitedParser(columns);
  ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
  for (const char* text : {"yes", "1", "+1", "1.0", "1e0", "True", ">50K."}) {
    EXPECT_EQ(ParseRow(parser.get(), absl::StrCat(text, ",1,a,b")).label, 1) << text;
  }
  for (const char* text : {"no", "-1", "-1.00", "<=50K."}) {
    EXPECT_EQ(ParseRow(parser.get(), absl::StrCat(text, ",1,a,b")).label, 0) << text;
  }
  data::Row row;
  for (const char* text : {"0", "true", "", "No"}) {
    ExpectOneLine(parser->Parse(absl::StrCat(text, ",1,a,b"), &row),
                  {absl::StrCat("the label in column 'y' is '", text, "'"), "'yes' or '1'",
                   "'no' or '-1' or '<=50K.' (0)", "data.columns.negative"});
  }
}

// Without a word in the job.
TEST(DelimitedTest, LabelsOfOneAndTrueCountAsOne) {
  Columns columns = NamedColumns();
  columns.clear_positive();
  for (const auto& [zero, one] : std::vector<std::pair<std::string, std::string>>{
           {"0", "1"}, {"0.0", "1.0"}, {"-0", "+1"}, {"False", "True"}, {"false", "true"}}) {
    auto parser = *data::NewDelimitedParser(columns);
    ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
    EXPECT_EQ(ParseRow(parser.get(), zero + ",1,a,b").label, 0);
    EXPECT_EQ(ParseRow(parser.get(), one + ",1,a,b").label, 1);
    data::Row row;
    EXPECT_FALSE(parser->Parse("2,1,a,b", &row).ok());
  }
  // Other labels are named by the job, whatever the first row has.
  for (const char* label : {"2", "5", "-1", "n", "click", "yes"}) {
    auto parser = *data::NewDelimitedParser(columns);
    ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
    data::Row row;
    ExpectOneLine(parser->Parse(absl::StrCat(label, ",1,a,b"), &row),
                  {absl::StrCat("column 'y' is '", label, "'"), "'1'", "'0'", "(0)",
                   "data.columns.positive"});
  }
}

TEST(LabelsTest, ALabelBetweenTheClassesIsNoLabel) {
  Columns columns = NamedColumns();
  for (const char* positive : {"", "1", "yes"}) {
    columns.clear_positive();
    if (*positive != '\0') columns.add_positive(positive);
    for (const char* label : {"0.25", ".5", "9.9e-1"}) {
      auto parser = *data::NewDelimitedParser(columns);
      ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
      data::Row row;
      ExpectOneLine(parser->Parse(absl::StrCat(label, ",1,a,b"), &row),
                    {absl::StrCat("column 'y' is '", label, "'"), "no labels between"});
    }
  }
}

// With and without a word in the job on which labels count as 1, in all formats.
TEST(LabelsTest, AMissingLabelIsNoLabel) {
  data::Row row;
  for (const char* text : {"", "nan", "NaN", "-nan", "NA", "n/a", "#N/A", "<NA>", "NaT", "null",
                           "NULL", "None", "?", "\\N", "missing", "  ", "unknown"}) {
    for (const bool positive : {false, true}) {
      Columns columns = NamedColumns();
      columns.clear_positive();
      if (positive) columns.add_positive("yes");
      columns.add_missing("unknown");
      auto parser = *data::NewDelimitedParser(columns);
      ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
      ExpectOneLine(parser->Parse(absl::StrCat(text, ",1,a,b"), &row),
                    {"column 'y' is '", "a label is never missing", "data.columns.negative"});
      columns.add_negative(text);
      if (*text == '\0') continue;
      parser = *data::NewDelimitedParser(columns);
      ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
      EXPECT_TRUE(parser->Parse(absl::StrCat(text, ",1,a,b"), &row).ok()) << "the job names it";
    }
  }
  for (const char* text : {"nan", "NA", "?"}) {
    Columns columns;
    const std::string line = absl::StrCat(text, " 1:1");
    ExpectOneLine(data::NewLibsvmParser(0, columns)->Parse(line, &row), {"never missing"});
    columns.add_positive("2");
    ExpectOneLine(data::NewLibsvmParser(0, columns)->Parse(line, &row), {"never missing"});
  }
  auto blanks = *data::NewDelimitedParser(NamedColumns());
  ASSERT_TRUE(blanks->StartFile("y,age,city,job").ok());
  EXPECT_FALSE(blanks->Parse(" nan ,1,a,b", &row).ok());
  Columns zeros = NamedColumns();
  zeros.clear_positive();
  zeros.add_missing("0");
  auto parser = *data::NewDelimitedParser(zeros);
  ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
  ExpectOneLine(parser->Parse("0,1,a,b", &row), {"column 'y' is '0'", "never missing"});
}

TEST(DelimitedTest, ANameThatTwoColumnsHaveIsRefused) {
  auto parser = *data::NewDelimitedParser(NamedColumns());
  ExpectOneLine(parser->StartFile("y,age,city,job,age"),
                {"2 columns 'age'", "data.columns.numeric", "expected one", "hint"});
  EXPECT_TRUE(parser->StartFile("y,age,city,job,x,x").ok()) << "nobody reads x";
}

TEST(DelimitedTest, SemicolonsSeparateQuotedCellsToo) {
  Columns columns = NamedColumns();
  columns.set_delimiter(";");
  auto parser = *data::NewDelimitedParser(columns);
  ASSERT_TRUE(parser->StartFile(R"("age";"y";"city";"job")").ok());
  const data::Row row = ParseRow(parser.get(), R"(58;"yes";"a;b";"clerk")");
  EXPECT_EQ(row.label, 1);
  EXPECT_THAT(row.keys,
              ElementsAre(data::FieldHash("city").Key("a;b"), data::FieldHash("job").Key("clerk")));
}

TEST(DelimitedTest, RowsToScoreNeedNoLabel) {
  Columns columns = NamedColumns();
  columns.add_missing("none");
  auto parser = *data::NewDelimitedParser(columns, nullptr, /*labels_optional=*/true);
  ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
  EXPECT_EQ(ParseRow(parser.get(), "yes,1,Rome,x").label, 1);
  for (const char* missing : {"", " ", "NA", "nan", "none"}) {
    EXPECT_TRUE(std::isnan(ParseRow(parser.get(), absl::StrCat(missing, ",1,Rome,x")).label))
        << missing;
  }
  data::Row row;
  ASSERT_TRUE(parser->Parse("no,1,Rome,x", &row).ok());
  ExpectOneLine(parser->Parse("maybe,1,Rome,x", &row), {"column 'y' is 'maybe'", "'yes'", "'no'"});
  ASSERT_TRUE(parser->StartFile("job,city,age").ok()) << "no column of labels";
  row = ParseRow(parser.get(), "x,Rome,3");
  EXPECT_TRUE(std::isnan(row.label));
  EXPECT_THAT(row.keys,
              ElementsAre(data::FieldHash("city").Key("Rome"), data::FieldHash("job").Key("x")));
  EXPECT_EQ(parser->texts()[0], "Rome");
  EXPECT_EQ(parser->ShownIf([](absl::string_view cell) { return cell == "yes"; }), "");
  ExpectOneLine(parser->StartFile("job,city,age, y"), {"no column 'y'", "trim"});
  ExpectOneLine(parser->StartFile("y,age,city,job,y"), {"2 columns 'y'"});
}

// Without a header a file lacks the label if it has a column less than the job reads.
TEST(DelimitedTest, NumberedColumnsOfRowsToScoreAreThoseBesideTheLabel) {
  for (const char* label : {"0", "1", "2"}) {
    Columns columns;
    columns.set_delimiter(",");
    columns.set_label(label);
    for (const char* other : {"0", "1", "2"}) {
      if (label != absl::string_view(other)) columns.add_categorical(other);
    }
    auto parser = *data::NewDelimitedParser(columns, nullptr, /*labels_optional=*/true);
    ASSERT_TRUE(parser->StartFile("a,b").ok());
    data::Row row;
    ASSERT_TRUE(parser->Parse("a,b", &row).ok());
    EXPECT_TRUE(std::isnan(row.label));
    EXPECT_EQ(parser->texts()[0], "a") << label;
    EXPECT_EQ(parser->texts()[1], "b") << label;
    ASSERT_TRUE(parser->StartFile("1,1,1").ok());
    ASSERT_TRUE(parser->Parse("1,1,1", &row).ok());
    EXPECT_EQ(row.label, 1) << label;
    EXPECT_FALSE(parser->StartFile("1").ok());
    EXPECT_FALSE((*data::NewDelimitedParser(columns))->StartFile("a,b").ok());
  }
}

TEST(DelimitedTest, BadRowsAreRefused) {
  auto parser = *data::NewDelimitedParser(NamedColumns());
  ASSERT_TRUE(parser->StartFile("y,age,city,job").ok());
  data::Row row;
  ExpectOneLine(parser->Parse("no,1,Rome", &row), {"3 columns", "expected 4", "header"});
  ExpectOneLine(parser->Parse("no,1,Rome,x,y", &row), {"5 columns", "expected 4", "header"});
  ExpectOneLine(parser->Parse("no,old,Rome,x", &row), {"'age'", "'old'", "expected a number"});
  ASSERT_TRUE(parser->Parse("no,1,Rome,x", &row).ok());
  ExpectOneLine(parser->Parse("maybe,1,Rome,x", &row),
                {"column 'y' is 'maybe'", "'yes'", "'no'", "data.columns.positive"});
  ExpectOneLine(parser->Parse(",1,Rome,x", &row), {"column 'y' is ''", "'yes'", "hint"});
}

}  // namespace
}  // namespace tandem
