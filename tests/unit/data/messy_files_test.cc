// Files as people have them, read from one job each, against what pandas makes of the same file,
// cell by cell; and standardised numbers against scikit-learn's. Skipped where these are not
// installed (Debian: python3-pandas, python3-sklearn).
#include <sys/wait.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "data/cells.h"
#include "google/protobuf/text_format.h"
#include "tests/source_path.h"
#include "tests/test_seed.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

using nlohmann::json;

struct MessyFile {
  std::string name;
  std::vector<std::string> texts;  // of one file each
  std::string columns;             // in the job
  json pandas;                     // arguments of read_csv, and `missing`
  bool gzip = false;
};

class PandasTest : public ::testing::Test {
 protected:
  // The answer of messy_files.py; null if what it needs is not installed.
  json Ask(const json& question) const {
    std::ofstream(dir_.Path("question.json")) << question;
    // Debian's packages are those of Debian's interpreter, which need not be the first in PATH.
    for (const char* python : {"python3", "/usr/bin/python3"}) {
      const std::string command = absl::StrCat(
          python, " ", SourcePath("tests/unit/data/messy_files.py"), " <",
          dir_.Path("question.json"), " >", dir_.Path("answer.json"), " 2>", dir_.Path("errors"));
      const int status = std::system(command.c_str());
      if (WIFEXITED(status) && WEXITSTATUS(status) == 77) continue;
      EXPECT_EQ(status, 0) << command << ": " << ReadAll(dir_.Path("errors"));
      return json::parse(ReadAll(dir_.Path("answer.json")), nullptr, false);
    }
    return json();
  }

  job::ResolvedJob Plan(const MessyFile& file) {
    std::vector<std::string> paths;
    for (size_t i = 0; i < file.texts.size(); ++i) {
      const std::string name = absl::StrCat("file", i, file.gzip ? ".csv.gz" : ".csv");
      paths.push_back(file.gzip ? dir_.WriteGzip(name, file.texts[i])
                                : dir_.Write(name, file.texts[i]));
    }
    job::ResolvedJob plan = MakePlan(Data::DELIMITED, paths, 1, 1 << 20);
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(
        file.columns, plan.job.mutable_data()->mutable_columns()));
    return plan;
  }

  json Question(const job::ResolvedJob& plan, const MessyFile& file) const {
    const Columns& columns = plan.job.data().columns();
    const auto list = [](const auto& names) {
      return std::vector<std::string>(names.begin(), names.end());
    };
    json question = {{"label", columns.label()},
                     {"positive", list(columns.positive())},
                     {"numeric", list(columns.numeric())},
                     {"categorical", list(columns.categorical())},
                     {"files", list(plan.job.data().train())},
                     {"read", file.pandas},
                     {"missing", nullptr},
                     {"standardise", false}};
    if (question["positive"].empty()) question["positive"] = {"1", "True"};
    if (file.pandas.contains("missing")) {
      question["missing"] = file.pandas["missing"];
      question["read"].erase("missing");
    }
    return question;
  }

  const TempDir dir_;
};

class MessyFilesTest : public PandasTest, public ::testing::WithParamInterface<MessyFile> {};

data::Batch ReadWhole(const job::ResolvedJob& plan) {
  auto source = data::NewTrainSource(plan, 0);
  EXPECT_TRUE(source.ok()) << source.status();
  if (!source.ok()) return data::Batch();
  const std::vector<data::Batch> batches = ReadEpoch(source->get(), 0);
  return batches.empty() ? data::Batch() : batches[0];
}

TEST_P(MessyFilesTest, EveryCellIsWhatPandasReads) {
  job::ResolvedJob plan = Plan(GetParam());
  Columns* const columns = plan.job.mutable_data()->mutable_columns();
  columns->set_scale(Column::NONE);
  const data::Batch batch = ReadWhole(plan);
  const json expected = Ask(Question(plan, GetParam()));
  if (expected.is_null()) GTEST_SKIP() << "pandas or scikit-learn is not installed";
  ASSERT_EQ(static_cast<size_t>(batch.samples), expected["labels"].size());
  ASSERT_GT(batch.samples, 2);
  const size_t numeric = columns->numeric_size(), fields = columns->categorical_size();
  for (size_t row = 0; row < static_cast<size_t>(batch.samples); ++row) {
    EXPECT_EQ(batch.labels[row], expected["labels"][row].get<int>()) << "row " << row;
    for (size_t i = 0; i < numeric; ++i) {
      const json& cell = expected["numbers"][row][i];
      EXPECT_EQ(batch.numbers[row * numeric + i],
                cell.is_null() ? 0.0f : static_cast<float>(cell.get<double>()))
          << "row " << row << ", " << columns->numeric(static_cast<int>(i));
    }
    for (size_t f = 0; f < fields; ++f) {
      const json& cell = expected["texts"][row][f];
      const data::FieldHash hash(columns->categorical(static_cast<int>(f)));
      const data::SparseInput& input = batch.sparse[0];
      EXPECT_EQ(input.keys[input.index[row * fields + f]],
                cell.is_null() ? hash.missing() : hash.Key(cell.get<std::string>()))
          << "row " << row << ", field " << f << ": " << cell;
    }
  }
}

TEST_P(MessyFilesTest, StandardisedNumbersAreThoseOfScikitLearn) {
  const job::ResolvedJob plan = Plan(GetParam());
  const data::Batch batch = ReadWhole(plan);
  json question = Question(plan, GetParam());
  question["standardise"] = true;
  const json expected = Ask(question);
  if (expected.is_null()) GTEST_SKIP() << "pandas or scikit-learn is not installed";
  const size_t numeric = static_cast<size_t>(batch.numeric);
  ASSERT_EQ(batch.numbers.size(), expected["numbers"].size() * numeric);
  for (size_t i = 0; i < batch.numbers.size(); ++i) {
    const json& cell = expected["numbers"][i / numeric][i % numeric];
    EXPECT_NEAR(batch.numbers[i], cell.is_null() ? 0.0 : cell.get<double>(), 1e-6) << i;
  }
}

// Rows of two numbers and a text: far from unit scale, long-tailed, with gaps.
std::string ManyRows() {
  Random random(TestSeed());
  std::string text = "y,age,income,city\n";
  for (int i = 0; i < 2000; ++i) {
    absl::StrAppend(&text, random.Uniform(2), ",",
                    random.Uniform(10) == 0 ? "" : absl::StrCat(random.Uniform(90)), ",",
                    1.7e9 + random.Exponential() * 1e4, ",c", random.Uniform(9), "\n");
  }
  return text;
}

const std::string kHeader =
    "header: true delimiter: ',' label: 'y' numeric: ['age', 'income'] "
    "categorical: ['city'] ";

INSTANTIATE_TEST_SUITE_P(
    Files, MessyFilesTest,
    ::testing::Values(
        MessyFile{"SpacesAfterCommas",
                  {"y, age, income, city\n1, 41, 2.5, Rome\n0, 5, -1, New York\n0, , 3, \n"},
                  kHeader + "trim: true",
                  {{"skipinitialspace", true}}},
        MessyFile{
            "QuotesAfterSpaces",
            {"\"y\", \"age\", \"income\", \"city\"\n1, \"41\", 2.5, \"Rome, Italy\"\n0, 5, -1, "
             "\"a \"\"b\"\" c\"\n0, 1, 2, \"\"\n"},
            kHeader + "trim: true",
            {{"skipinitialspace", true}}},
        MessyFile{
            "Quotes",
            {"y,age,income,city\n1,\"41\",2.5,\"Rome, Italy\"\n0,5,-1,\"a \"\"b\"\" c\"\n0,1,2,"
             "x\"y\n"},
            kHeader,
            json::object()},
        MessyFile{"LineBreaksInQuotes",
                  {"y\tage\t\"income\"\tcity\r\n1\t\"41\"\t2.5\t\"Rome\nItaly\"\r\n"
                   "0\t5\t-1\t\"a\r\n\r\n\"\"b\"\"\tc\"\r\n0\t1\t2\t\"x\"\"y\"\r\n"},
                  "header: true label: 'y' numeric: ['age', 'income'] categorical: ['city']",
                  {{"sep", "\t"}}},
        MessyFile{"Crlf",
                  {"y,age,income,city\r\n1,41,2.5,Rome\r\n0,5,-1,Oslo\r\n\r\n0,,3,\r\n"},
                  kHeader,
                  json::object()},
        MessyFile{"ByteOrderMark",
                  {"\xef\xbb\xbfy,age,income,city\n1,41,2.5,Z\xc3\xbcrich\n0,5,-1,Oslo\n0,1,1,x\n"},
                  kHeader,
                  {{"encoding", "utf-8-sig"}}},
        MessyFile{"FourSpellingsOfMissing",
                  {"y,age,income,city\n1,?,2.5,NA\n0,NA,-1,-\n0,-,null,?\n1,,3,\n0,7,8,null\n"},
                  kHeader + "missing: ['?', 'NA', '-', 'null']",
                  {{"missing", {"", "?", "NA", "-", "null"}}}},
        MessyFile{"MissingByColumn",
                  {"y,age,income,city\n1,-1,-1,Rome\n0,unknown,4,unknown\n0,5,6,none\n1,7,8,-1\n"},
                  kHeader + "column { name: 'age' missing: ['-1', 'unknown'] } "
                            "column { name: 'city' missing: 'none' }",
                  {{"missing", {{"age", {"", "-1", "unknown"}}, {"city", {"", "none"}}}}}},
        MessyFile{
            "Exponents",
            {"y,age,income,city\n1,4.1e1,2.5E+3,1e3\n0,-5e-2,+1,1E3\n0,.5,1.,x\n1,1e-30,0,x\n"},
            kHeader,
            json::object()},
        MessyFile{"LabelsOneAndTwo",
                  {"y,age,income,city\n1,41,2.5,a\n2,5,-1,b\n2,1,1,c\n"},
                  kHeader + "positive: '2' negative: '1'",
                  json::object()},
        MessyFile{"LabelsTrueAndFalse",
                  {"y,age,income,city\nTrue,41,2.5,a\nFalse,5,-1,b\nTrue,1,1,c\n"},
                  kHeader,
                  json::object()},
        MessyFile{
            "LabelsOfTwoSpellings",
            {"y;\"age\";income;\"city\"\n>50K;41;2.5;\"a\"\n<=50K.;5;-1;\"b;c\"\n>50K.;1;1;\"\"\n"},
            "header: true delimiter: ';' label: 'y' numeric: ['age', 'income'] categorical: "
            "'city' positive: ['>50K', '>50K.'] negative: ['<=50K', '<=50K.']",
            {{"sep", ";"}}},
        MessyFile{"ReorderedHeaders",
                  {"y,age,income,city\n1,41,2.5,a\n0,5,-1,b\n",
                   "city,income,unused,y,age\nunseen,7,x,1,6\na,9,x,0,8\n"},
                  kHeader,
                  json::object()},
        MessyFile{"NoHeader",
                  {"0\t1\ta\tx\n1\t2.5\tb\tx\n0\t\t\tx\n"},
                  "label: '0' numeric: '1' categorical: '2'",
                  {{"sep", "\t"}, {"header", nullptr}}},
        MessyFile{"AnAllMissingColumn",
                  {"y,age,income,city\n1,,2.5,a\n0,,-1,b\n0,,1,c\n"},
                  kHeader,
                  json::object()},
        MessyFile{"ManyRows", {ManyRows()}, kHeader, json::object()},
        MessyFile{"Gzip", {ManyRows(), ManyRows()}, kHeader, json::object(), true}),
    [](const auto& file) { return file.param.name; });

// What `cat a.gz b.gz` makes.
TEST_F(PandasTest, SeveralGzipMembers) {
  dir_.WriteGzip("a.gz", "y,age,income,city\n1,41,2.5,a\n0,5,");
  dir_.WriteGzip("b.gz", "-1,b\n0,1,1,c\n");
  const std::string both = ReadAll(dir_.Path("a.gz")) + ReadAll(dir_.Path("b.gz"));
  const MessyFile file{"", {both}, kHeader, {{"compression", "gzip"}}};
  job::ResolvedJob plan = Plan(file);
  plan.job.mutable_data()->mutable_columns()->set_scale(Column::NONE);
  const data::Batch batch = ReadWhole(plan);
  EXPECT_EQ(batch.numbers, (std::vector<float>{41, 2.5, 5, -1, 1, 1}));
  const json expected = Ask(Question(plan, file));
  if (expected.is_null()) GTEST_SKIP() << "pandas or scikit-learn is not installed";
  EXPECT_EQ(expected["numbers"], json::parse("[[41.0, 2.5], [5.0, -1.0], [1.0, 1.0]]"));
}

}  // namespace
}  // namespace tandem
