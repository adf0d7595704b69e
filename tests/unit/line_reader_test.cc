// Files and lines: names in the job become files, files become lines, and what is not a text file
// is refused with its name and line.
#include "data/line_reader.h"

#include "absl/strings/match.h"
#include "base/random.h"
#include "data/files.h"
#include "tests/test_seed.h"
#include "tests/unit/data_fixture.h"

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
  EXPECT_EQ(*data::ExpandEnvironment("$TANDEM_FILES_TEST/x"), "/some/where/x");
  EXPECT_EQ(*data::ExpandEnvironment("a${TANDEM_FILES_TEST}b"), "a/some/whereb");
  EXPECT_EQ(*data::ExpandEnvironment("cost$ 5 ${open"), "cost$ 5 ${open");
  ExpectOneLine(data::ExpandFiles("data.train", "$TANDEM_FILES_UNSET/x").status(),
                {"data.train", "$TANDEM_FILES_UNSET", "not set", "export TANDEM_FILES_UNSET="});
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
