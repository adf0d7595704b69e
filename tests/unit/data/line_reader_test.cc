// Files and lines: names in the job become files, files become lines, and what is not a text file
// is refused with its name and line.
#include "data/line_reader.h"

#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "data/files.h"
#include "tests/test_seed.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> Lines(data::LineReader* reader, absl::Status* status) {
  std::vector<std::string> lines;
  for (absl::string_view line;;) {
    const absl::StatusOr<bool> more = reader->Next(&line);
    *status = more.status();
    if (!more.ok() || !*more) return lines;
    lines.emplace_back(line);
  }
}

std::vector<std::string> LinesOf(absl::string_view bytes) {
  data::LineReader reader("text", data::MemoryBytes(bytes));
  absl::Status status;
  std::vector<std::string> lines = Lines(&reader, &status);
  EXPECT_TRUE(status.ok()) << status;
  return lines;
}

absl::Status ErrorOf(const std::string& path) {
  auto reader = data::OpenLines(path);
  if (!reader.ok()) return reader.status();
  absl::Status status;
  Lines(reader->get(), &status);
  return status;
}

TEST(LineReaderTest, LineEndsOfBothKindsEmptyLinesAndAMissingLastEnd) {
  EXPECT_THAT(LinesOf("a\nb\r\n\n\r\nc"), ElementsAre("a", "b", "c"));
  EXPECT_THAT(LinesOf(""), ElementsAre());
  EXPECT_THAT(LinesOf("\n\n"), ElementsAre());
  EXPECT_THAT(LinesOf("\xef\xbb\xbfhead\n\xef\xbb\xbfrow\n"),
              ElementsAre("head", "\xef\xbb\xbfrow"));
}

TEST(LineReaderTest, LineNumbersCountEmptyLines) {
  data::LineReader reader("text", data::MemoryBytes("a\n\n\nb\n"));
  absl::string_view line;
  ASSERT_TRUE(*reader.Next(&line));
  EXPECT_EQ(reader.line_number(), 1);
  ASSERT_TRUE(*reader.Next(&line));
  EXPECT_EQ(reader.line_number(), 4);
  EXPECT_EQ(reader.Error("what").message(), "text:4: what");
}

// Lines of all lengths around the size of a read come back whole.
TEST(LineReaderTest, LinesThatCrossReadsAreWhole) {
  Random random(TestSeed());
  std::string text;
  std::vector<std::string> expected;
  for (int i = 0; i < 300; ++i) {
    const char letter = static_cast<char>('a' + i % 26);
    expected.emplace_back(1 + random.Uniform(i % 10 == 0 ? 300'000 : 200), letter);
    text += expected.back() + "\n";
  }
  EXPECT_EQ(LinesOf(text), expected);
  const TempDir dir;
  for (const std::string& path :
       {dir.Write("plain.txt", text), dir.WriteGzip("packed.gz", text),
        dir.WriteGzip("gzip_without_a_name", text), dir.WriteZstd("packed.zst", text),
        dir.WriteZstd("zstd_without_a_name", text)}) {
    auto reader = data::OpenLines(path);
    ASSERT_TRUE(reader.ok());
    absl::Status status;
    EXPECT_EQ(Lines(reader->get(), &status), expected) << path;
    EXPECT_TRUE(status.ok());
  }
}

TEST(LineReaderTest, ALineMayBeAsLongAsTheBoundAndNoLonger) {
  const std::string longest(data::kMaxLineBytes, 'x');
  EXPECT_THAT(LinesOf(longest + "\nb\n"), ElementsAre(longest, "b"));
  for (const char* end : {"", "\nb\n"}) {
    const std::string text = "a\n" + longest + "x" + end;
    data::LineReader reader("text", data::MemoryBytes(text));
    absl::Status status;
    EXPECT_THAT(Lines(&reader, &status), ElementsAre("a"));
    ExpectOneLine(status, {"text:2: ", "longer than 1048576 bytes", "hint"});
  }
}

TEST(LineReaderTest, LinesArePutTogetherAndTakenApart) {
  data::LineReader reader("text", data::MemoryBytes("\xef\xbb\xbf"
                                                    "a\r\n\nb\nc\r\nd"));
  absl::string_view line;
  ASSERT_TRUE(*reader.Next(&line));
  ASSERT_TRUE(*reader.Extend(&line));
  EXPECT_EQ(line, "a\r\n");
  ASSERT_TRUE(*reader.Extend(&line));
  EXPECT_EQ(line, "a\r\n\nb") << "line ends as they are in the file";
  EXPECT_EQ(reader.line_number(), 1);
  reader.Retract(&line);
  EXPECT_EQ(line, "a");
  ASSERT_TRUE(*reader.Next(&line));
  EXPECT_EQ(line, "b");
  EXPECT_EQ(reader.line_number(), 3);
  ASSERT_TRUE(*reader.Extend(&line));
  EXPECT_EQ(line, "b\nc");
  ASSERT_TRUE(*reader.Next(&line));
  EXPECT_EQ(line, "d");
  EXPECT_EQ(reader.line_number(), 5);
  EXPECT_FALSE(*reader.Extend(&line)) << "the file is over";
  EXPECT_EQ(line, "d");
  reader.Retract(&line);
  EXPECT_EQ(line, "d");
  EXPECT_FALSE(*reader.Next(&line));
}

TEST(LineReaderTest, LinesAreFoundFromAnyByte) {
  const TempDir dir;
  const std::string text = "a\n\nbc\r\nd";
  auto reader = *data::OpenLines(dir.Write("x.txt", text));
  absl::string_view line;
  struct Found {
    const char* line;
    int64_t offset, number;
  };
  const std::vector<Found> at = {{"a", 0, 1}, {"bc", 3, 3}, {"bc", 3, 3}, {"bc", 3, 3}, {"d", 7, 4},
                                 {"d", 7, 4}, {"d", 7, 4},  {"d", 7, 4},  {"", 0, 0},   {"", 0, 0}};
  for (size_t offset = 0; offset < at.size(); ++offset) {
    SCOPED_TRACE(offset);
    ASSERT_TRUE(reader->SeekLine(static_cast<int64_t>(offset)).ok());
    const absl::StatusOr<bool> more = reader->Next(&line);
    ASSERT_TRUE(more.ok()) << more.status();
    ASSERT_EQ(*more, at[offset].number > 0);
    if (!*more) continue;
    EXPECT_EQ(line, at[offset].line);
    EXPECT_EQ(reader->line_offset(), at[offset].offset);
    ExpectOneLine(reader->Error("what"), {absl::StrCat("x.txt:", at[offset].number, ": what")});
  }
  ASSERT_TRUE(reader->Seek(3, 3).ok());
  ASSERT_TRUE(*reader->Next(&line));
  EXPECT_EQ(reader->line_number(), 3);
  EXPECT_EQ(reader->next_offset(), 7);
}

// Lines of a huge file are not counted for a message.
TEST(LineReaderTest, AMessageAboutALineFarBehindHasItsByte) {
  const TempDir dir;
  const std::string path = dir.Write("x.txt", "");
  std::ofstream file(path, std::ios::binary);  // with a hole, which takes no room
  const int64_t far = (int64_t{1} << 30) + 10;
  file.seekp(far);
  file << "\nx\ny\n";
  file.close();
  auto reader = *data::OpenLines(path);
  absl::string_view line;
  ASSERT_TRUE(reader->SeekLine(far + 1).ok());
  ASSERT_TRUE(*reader->Next(&line));
  ASSERT_TRUE(*reader->Next(&line));
  EXPECT_EQ(line, "y");
  EXPECT_EQ(reader->line_number(), 0);
  ExpectOneLine(reader->Error("what"), {absl::StrCat("x.txt, byte ", far + 3, ": what")});
}

// Over many reads of the file, and no further than a line may be long.
TEST(LineReaderTest, LinesThatArePutTogetherCrossReads) {
  Random random(TestSeed());
  std::string text;
  while (text.size() < 3 * data::kMaxLineBytes) {
    text += std::string(random.Uniform(30'000), 'x') + "\n";
  }
  text += "end\n";
  data::LineReader reader("text", data::MemoryBytes(text));
  absl::string_view line;
  size_t at = 0;
  while (*reader.Next(&line)) {
    while (text[at] == '\n') ++at;
    const std::string first(line);
    const int64_t lines = static_cast<int64_t>(random.Uniform(90));
    bool more = true;
    for (int64_t i = 0; i < lines && more; ++i) more = *reader.Extend(&line);
    ASSERT_EQ(line, text.substr(at, line.size())) << "--seed=" << TestSeed();
    ASSERT_LE(line.size(), data::kMaxLineBytes);
    if (random.Bernoulli(0.5)) {
      reader.Retract(&line);
      ASSERT_EQ(line, first);
    }
    at += line.size() + 1;
  }
  EXPECT_EQ(at, text.size());
}

TEST(LineReaderTest, TextsOfOtherKindsAreNamed) {
  const TempDir dir;
  for (const absl::string_view mark :
       {absl::string_view("\xff\xfe"), absl::string_view("\xfe\xff")}) {
    const std::string text = absl::StrCat(mark, absl::string_view("a\0,\0b\0\n\0", 8));
    ExpectOneLine(ErrorOf(dir.Write("a.csv", text)), {"a.csv: ", "UTF-16", "iconv"});
  }
  ExpectOneLine(ErrorOf(dir.Write("mac.csv", "a,b\r1,2\r3,4\r")),
                {"mac.csv: ", "one line", "CR", "tr "});
  ExpectOneLine(ErrorOf(dir.Write("mac.csv", std::string(200, 'x') + "\r" +
                                                 std::string(data::kMaxLineBytes, 'x'))),
                {"longer than", "tr "});
  EXPECT_THAT(LinesOf("a\rb\nc\r\r\n"), ElementsAre("a\rb", "c")) << "here and there: text";
}

TEST(LineReaderTest, NulBytesAreRefused) {
  data::LineReader reader("text", data::MemoryBytes(absl::string_view("a\nb\0c\n", 6)));
  absl::Status status;
  EXPECT_THAT(Lines(&reader, &status), ElementsAre("a"));
  ExpectOneLine(status, {"text:2: ", "NUL", "hint"});
}

TEST(LineReaderTest, DamagedFilesAreNamed) {
  const TempDir dir;
  ExpectOneLine(ErrorOf(dir.Path("none.tsv")), {"none.tsv: ", "No such file", "hint"});
  ExpectOneLine(ErrorOf(dir.Write("plain.gz", "a\nb\n")),
                {"plain.gz:1: ", "not gzip data", "hint"});

  Random random(TestSeed());
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(random.Next64()) + "\n";
  std::string packed = ReadAll(dir.WriteGzip("whole.gz", text));
  ExpectOneLine(ErrorOf(dir.Write("cut.gz", packed.substr(0, packed.size() / 2))),
                {"cut.gz:", "end too early", "hint"});
  packed[packed.size() / 2] = static_cast<char>(packed[packed.size() / 2] ^ 0x55);
  ExpectOneLine(ErrorOf(dir.Write("bad.gz", packed)), {"bad.gz:", "damaged", "hint"});
}

TEST(LineReaderTest, MembersOfGzipFollowOneAnotherAndNothingElseDoes) {
  const TempDir dir;
  const std::string first = ReadAll(dir.WriteGzip("a.gz", "a\nb")),
                    empty = ReadAll(dir.WriteGzip("e", ""));
  const std::string second = ReadAll(dir.WriteGzip("b.gz", "c\nd\n"));
  absl::Status status;
  for (const std::string& tail : {std::string(), std::string(300'000, '\0')}) {
    auto reader = *data::OpenLines(dir.Write("both.gz", first + empty + second + tail));
    EXPECT_THAT(Lines(reader.get(), &status), ElementsAre("a", "bc", "d"));
    EXPECT_TRUE(status.ok()) << status;
  }
  for (const std::string& tail : {std::string("e\nf\n"), std::string("\0\0x", 3)}) {
    ExpectOneLine(ErrorOf(dir.Write("tail.gz", second + tail)),
                  {"tail.gz:", "after 1 gzip member", "from byte", "hint"});
  }
  ExpectOneLine(ErrorOf(dir.Write("half.gz", first + second.substr(0, 12))),
                {"half.gz:", "end too early", "hint"});
}

// pzstd begins with a frame that holds no data, and files may be appended to one another.
TEST(LineReaderTest, FramesOfZstdFollowOneAnother) {
  const TempDir dir;
  const std::string empty_frame("\x50\x2a\x4d\x18\x04\0\0\0abcd", 12);
  const std::string a = ReadAll(dir.WriteZstd("a.zst", "a\nb"));
  const std::string b = ReadAll(dir.WriteZstd("b.zst", "c\nd\n"));
  auto reader = data::OpenLines(dir.Write("all", empty_frame + a + empty_frame + b));
  ASSERT_TRUE(reader.ok()) << reader.status();
  absl::Status status;
  EXPECT_THAT(Lines(reader->get(), &status), ElementsAre("a", "bc", "d"));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ((*reader)->Progress(), 1.0);
}

TEST(LineReaderTest, DamagedZstdFilesAreNamed) {
  const TempDir dir;
  ExpectOneLine(ErrorOf(dir.Write("plain.zst", "a\nb, and some more\n")),
                {"plain.zst:1: ", "not zstd data", "hint"});
  ExpectOneLine(ErrorOf(dir.Write("empty.zst", "")), {"empty.zst:1: ", "end too early", "hint"});

  Random random(TestSeed());
  std::string text;
  for (int i = 0; i < 100'000; ++i) text += std::to_string(random.Next64()) + "\n";
  std::string packed = ReadAll(dir.WriteZstd("whole.zst", text));
  for (const size_t size : {size_t{3}, size_t{6}, packed.size() / 2, packed.size() - 1}) {
    ExpectOneLine(ErrorOf(dir.Write("cut.zst", packed.substr(0, size))),
                  {"cut.zst:", "end too early", "hint"});
  }
  ExpectOneLine(ErrorOf(dir.Write("tail.zst", packed + "no frame")),
                {"tail.zst:", "damaged", "hint"});
  packed[4] = static_cast<char>(packed[4] ^ 0x08);  // a reserved bit of the header
  ExpectOneLine(ErrorOf(dir.Write("bad.zst", packed)), {"bad.zst:", "damaged", "hint"});
}

TEST(FilesTest, VariablesAreReplaced) {
  setenv("TANDEM_FILES_TEST", "/some/where", 1);
  unsetenv("TANDEM_FILES_UNSET");
  EXPECT_EQ(*data::ExpandName("$TANDEM_FILES_TEST/x"), "/some/where/x");
  EXPECT_EQ(*data::ExpandName("a${TANDEM_FILES_TEST}b"), "a/some/whereb");
  EXPECT_EQ(*data::ExpandName("cost$ 5 ${open"), "cost$ 5 ${open");
  ExpectOneLine(
      data::ExpandFiles("data.train", "$TANDEM_FILES_UNSET/x").status(),
      {"data.train", "$TANDEM_FILES_UNSET", "not set", "export TANDEM_FILES_UNSET=", "[$]"});
}

// A file or folder that is there is what its name means.
TEST(FilesTest, NamesThatStandAsTheyAre) {
  const TempDir dir;
  unsetenv("b");
  const auto expand = [](const std::string& name) { return data::ExpandFiles("data.train", name); };
  std::filesystem::create_directory(dir.Path("part[1] $b"));
  for (const char* name : {"a[1].csv", "a$b.csv", "a*.csv", "~", "a'b c.csv", "part[1] $b/x.csv",
                           "part[1] $b/y.csv", "a1.csv"}) {
    EXPECT_THAT(*expand(dir.Write(name, "x\n")), ElementsAre(dir.Path(name)));
  }
  EXPECT_THAT(*expand(dir.Path("part[1] $b/*.csv")),
              ElementsAre(dir.Path("part[1] $b/x.csv"), dir.Path("part[1] $b/y.csv")));
  EXPECT_THAT(*expand(dir.Path("a[[]1].csv")), ElementsAre(dir.Path("a[1].csv")));
  EXPECT_THAT(*expand(dir.Path("a[$]b.csv")), ElementsAre(dir.Path("a$b.csv")));
  const char* const home = getenv("HOME");
  const std::string kept = home == nullptr ? "" : home;
  setenv("HOME", dir.Path("").c_str(), 1);
  EXPECT_THAT(*expand("~/a1.csv"), ElementsAre(dir.Path("/a1.csv")));
  EXPECT_EQ(*data::ExpandName("~/no/folder"), dir.Path("/no/folder"));
  EXPECT_THAT(*expand("~/a[1].*"), ElementsAre(dir.Path("/a1.csv")));
  setenv("HOME", "", 1);
  ExpectOneLine(expand("~/a1.csv").status(), {"data.train", "'~/a1.csv'", "HOME is not set"});
  setenv("HOME", kept.c_str(), 1);
  EXPECT_TRUE(data::IsNamed({dir.Path("*"), dir.Path("a[1].csv")}, dir.Path("a[1].csv")));
  EXPECT_FALSE(data::IsNamed({dir.Path("*")}, dir.Path("a1.csv")));
}

TEST(FilesTest, WildcardsPassOverWhatIsNoData) {
  const TempDir dir;
  for (const char* name : {"_SUCCESS", "_metadata", ".part-0.crc", "part-0", "part-1"}) {
    dir.Write(name, "x\n");
  }
  std::filesystem::create_directory(dir.Path("_temporary"));
  std::vector<std::string> hidden;
  EXPECT_THAT(*data::ExpandFiles("data.train", dir.Path("*"), &hidden),
              ElementsAre(dir.Path("part-0"), dir.Path("part-1")));
  EXPECT_THAT(hidden,
              ElementsAre(dir.Path("_SUCCESS"), dir.Path("_metadata"), dir.Path("_temporary")));
  EXPECT_THAT(*data::ExpandFiles("data.train", dir.Path("_[Sm]*")),
              ElementsAre(dir.Path("_SUCCESS"), dir.Path("_metadata")));
  ExpectOneLine(data::ExpandFiles("data.train", dir.Path("?[Sm]*")).status(),
                {"no file matches", "begin with _"});
}

TEST(FilesTest, WhatCannotBeReadTwiceIsRefused) {
  const TempDir dir;
  ASSERT_EQ(mkfifo(dir.Path("pipe").c_str(), 0600), 0);
  for (const std::string& name : {dir.Path("pipe"), std::string("/dev/null")}) {
    ExpectOneLine(data::ExpandFiles("data.train", name).status(),
                  {"data.train", name, "expected a regular file", "hint"});
  }
}

TEST(FilesTest, AResumedRunDealsAsBefore) {
  RunRecord was;
  Data data;
  data.set_format(Data::CRITEO);
  ASSERT_TRUE(data::AdoptDeal(was, &data).ok());
  EXPECT_EQ(data.deal(), Data::ROWS) << "runs of earlier versions";
  was.set_blocks(true);
  ExpectOneLine(data::AdoptDeal(was, &data),
                {"data.deal is ROWS", "by BLOCKS", "hint: data.deal: BLOCKS"});
  data.clear_deal();
  ASSERT_TRUE(data::AdoptDeal(was, &data).ok());
  EXPECT_EQ(data.deal(), Data::BLOCKS);
  data.set_format(Data::NCF);
  data.clear_deal();
  ASSERT_TRUE(data::AdoptDeal(RunRecord(), &data).ok());
  EXPECT_EQ(data.deal(), Data::DEAL_UNSPECIFIED);
}

TEST(FilesTest, GlobsAreSortedAndEmptyOnesRefused) {
  const TempDir dir;
  for (const char* name : {"b.tsv", "a.tsv", "B.tsv", "c.txt"}) dir.Write(name, "x\n");
  EXPECT_THAT(*data::ExpandFiles("data.train", dir.Path("*.tsv")),
              ElementsAre(dir.Path("B.tsv"), dir.Path("a.tsv"), dir.Path("b.tsv")));
  EXPECT_THAT(*data::ExpandAllFiles("data.train", {dir.Path("c.txt"), dir.Path("[ab].tsv")}),
              ElementsAre(dir.Path("c.txt"), dir.Path("a.tsv"), dir.Path("b.tsv")));
  ExpectOneLine(data::ExpandFiles("data.test", dir.Path("*.gz")).status(),
                {"data.test", "no file matches", "*.gz", "hint"});
  ExpectOneLine(data::ExpandFiles("data.test", dir.Path("none")).status(),
                {"data.test", "none", "No such file", "hint"});
  ExpectOneLine(data::ExpandFiles("data.test", dir.Path("")).status(),
                {"data.test", "is a directory", "hint"});
}

}  // namespace
}  // namespace tandem
