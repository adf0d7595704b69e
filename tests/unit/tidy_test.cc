// House rules as a program: each test names the file and the line that breaks one.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem {
namespace {

namespace fs = std::filesystem;

using ::testing::ElementsAre;

constexpr size_t kColumns = 100;
constexpr absl::string_view kPackage = "python/tandem/";
constexpr size_t kMaxFunctionLines = 100;

struct SourceFile {
  std::string path;  // from the root of the tree, with '/'
  std::vector<std::string> lines;

  bool Is(absl::string_view extension) const { return absl::EndsWith(path, extension); }
};

fs::path Root() {
  const char* const dir = std::getenv("TANDEM_SOURCE_DIR");
  return dir == nullptr ? "." : dir;
}

// What a build or a run leaves behind is not ours to judge.
bool IsOurs(const fs::path& path, bool directory, int depth) {
  const std::string name = path.filename().string();
  if (name == ".ci" || !directory) return name != "compile_commands.json";
  if (name[0] == '.' || name == "__pycache__") return false;
  const bool top = depth == 0;
  return !top ||
         (!absl::StartsWith(name, "build") && !absl::StartsWith(name, "out") && name != "shared");
}

bool IsText(const std::string& path) {
  static constexpr absl::string_view kExtensions[] = {
      ".h", ".cc", ".proto", ".md", ".txt", ".cmake", ".textproto", ".py", ".sh", ".cu", ".cuh"};
  for (const absl::string_view extension : kExtensions) {
    if (absl::EndsWith(path, extension)) return true;
  }
  return path == "quickstart" || path == "check" || path == ".ci/run";
}

std::vector<SourceFile> ReadTree() {
  std::vector<SourceFile> files;
  const fs::path root = Root();
  for (auto it = fs::recursive_directory_iterator(root); it != fs::end(it); ++it) {
    const bool directory = it->is_directory();
    if (!IsOurs(it->path(), directory, it.depth())) {
      if (directory) it.disable_recursion_pending();
      continue;
    }
    const std::string path = fs::relative(it->path(), root).generic_string();
    if (directory || !IsText(path)) continue;
    std::ifstream in(it->path());
    std::stringstream text;
    text << in.rdbuf();
    files.push_back({path, absl::StrSplit(text.str(), '\n')});
  }
  return files;
}

// Searching a line for regular expressions takes 50 times as long.
bool HasOne(const std::string& line, const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(),
                     [&](const std::string& word) { return absl::StrContains(line, word); });
}

class TidyTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { tree_ = new std::vector<SourceFile>(ReadTree()); }
  static void TearDownTestSuite() {
    delete tree_;
    tree_ = nullptr;
  }
  // Calls `broken(file, line)` for every line of every file; what it accepts is reported.
  template <typename Broken>
  static void ExpectNoLine(const std::string& rule, const Broken& broken) {
    for (const SourceFile& file : *tree_) {
      for (size_t i = 0; i < file.lines.size(); ++i) {
        if (broken(file, file.lines[i])) {
          ADD_FAILURE() << file.path << ":" << i + 1 << ": " << rule << ": " << file.lines[i];
        }
      }
    }
  }
  static std::vector<SourceFile>* tree_;
};

std::vector<SourceFile>* TidyTest::tree_ = nullptr;

// Without this, a wrong TANDEM_SOURCE_DIR would pass every other test.
TEST_F(TidyTest, TheTreeIsThere) {
  std::set<std::string> paths;
  for (const SourceFile& file : *tree_) paths.insert(file.path);
  for (const char* path : {"CMakeLists.txt", "base/check.h", "proto/job.proto", "check"}) {
    EXPECT_EQ(paths.count(path), 1u) << path << " not found under " << Root();
  }
}

TEST_F(TidyTest, HeadersSayWhatTheyAreAndGuardThemselves) {
  for (const SourceFile& file : *tree_) {
    if (!file.Is(".h")) continue;
    EXPECT_TRUE(absl::StartsWith(file.lines[0], "// "))
        << file.path << " does not begin with a comment that says what it is";
    std::string guard = absl::StrCat("TANDEM_", absl::AsciiStrToUpper(file.path), "_");
    for (char& c : guard) c = absl::ascii_isalnum(c) ? c : '_';
    EXPECT_TRUE(absl::StrContains(absl::StrJoin(file.lines, "\n"), "#ifndef " + guard + "\n"))
        << file.path << ": the include guard should be " << guard;
  }
}

TEST_F(TidyTest, NothingIsLeftForLater) {
  // Put together here so that this file does not break its own rule.
  const std::vector<std::string> words = {absl::StrCat("TO", "DO"), absl::StrCat("FIX", "ME"),
                                          absl::StrCat("X", "XX")};
  const std::regex left(absl::StrCat("\\b(", absl::StrJoin(words, "|"), ")\\b"));
  ExpectNoLine("left for later", [&](const SourceFile&, const std::string& line) {
    return HasOne(line, words) && std::regex_search(line, left);
  });
}

TEST_F(TidyTest, NoPathOfOneMachine) {
  const std::vector<std::string> folders = {absl::StrCat("/wo", "rk/"), absl::StrCat("/ho", "me/"),
                                            absl::StrCat("/ro", "ot/")};
  const std::regex absolute(
      absl::StrCat("(^|[^A-Za-z0-9_.}/])(", absl::StrJoin(folders, "|"), ")"));
  ExpectNoLine("a path of one machine", [&](const SourceFile&, const std::string& line) {
    return HasOne(line, folders) && std::regex_search(line, absolute);
  });
}

TEST_F(TidyTest, NoTabsNoTrailingSpace) {
  ExpectNoLine("tab or trailing space", [](const SourceFile& file, const std::string& line) {
    if (!file.Is(".h") && !file.Is(".cc")) return false;
    return absl::StrContains(line, '\t') || absl::EndsWith(line, " ");
  });
}

// The time of day may be set at any moment: it stamps what is read outside the process, and never
// measures (base/clock.h).
TEST_F(TidyTest, OnlyTimestampsReadTheTimeOfDay) {
  static const std::set<std::string> stamps = {
      "base/clock.h",                          // speaks of it
      "cli/console/output_folder.cc",          // names of folders, and since when one is in use
      "cmake/tsan_abseil.cc",                  // speaks of Abseil's waits
      "collectives/dump.cc",                   // when a dump was written
      "tools/doctor/doctor_peer.cc",           // compares the clocks of hosts
      "node/log.cc",                           // lines of the log
      "scheduler/scheduler_shell.cc",          // lines of the log
      "tools/study/manifest.cc",               // when a study began
      "tests/unit/tools/doctor_peer_test.cc",  // as doctor_peer.cc
      "tests/unit/tidy_test.cc",
      "tests/unit/client/wall_clock_test.cc",  // sets it
  };
  const std::vector<std::string> reads = {"absl::Now(",    "system_clock",  "gettimeofday",
                                          "time(nullptr)", "absl::CondVar", "WithDeadline("};
  ExpectNoLine("use base/clock.h", [&](const SourceFile& file, const std::string& line) {
    return (file.Is(".h") || file.Is(".cc")) && stamps.count(file.path) == 0 && HasOne(line, reads);
  });
  // In products alone: a test may wait longer when somebody sets the clock.
  ExpectNoLine("wait with CondVar of base/clock.h",
               [&](const SourceFile& file, const std::string& line) {
                 return !absl::StartsWith(file.path, "tests/") &&
                        absl::StrContains(line, absl::StrCat("With", "Timeout("));
               });
}

// Without a handler, dump() throws at a text that is not UTF-8, such as the name of a file.
TEST_F(TidyTest, JsonIsWrittenFromAnyText) {
  ExpectNoLine("dump() without error_handler_t::replace",
               [](const SourceFile& file, const std::string& line) {
                 return !absl::StartsWith(file.path, "tests/") && file.Is(".cc") &&
                        absl::StrContains(line, ".dump(") &&
                        !absl::StrContains(line, "error_handler_t::replace");
               });
}

size_t Indent(const std::string& line) { return line.find_first_not_of(' '); }

// The number of lines of the function whose opening brace ends line `start`; 0 if it is none.
size_t FunctionLines(const std::vector<std::string>& lines, size_t start) {
  static const std::regex opens(R"(\)( const| noexcept| override| final| mutable)*( -> .*)? \{$)");
  static const std::regex control(R"(^\s*(\} )?(if|else|for|while|switch|do|catch|foreach)\b)");
  const std::string& line = lines[start];
  if (!absl::EndsWith(line, "{") || !std::regex_search(line, opens)) return 0;
  if (std::regex_search(line, control)) return 0;
  size_t body = start + 1;
  while (body < lines.size() && lines[body].empty()) ++body;
  if (body == lines.size() || Indent(lines[body]) < 2) return 0;
  const size_t close = Indent(lines[body]) - 2;
  for (size_t i = body; i < lines.size(); ++i) {
    if (!lines[i].empty() && Indent(lines[i]) == close && lines[i][close] == '}') return i - start;
  }
  return 0;
}

TEST(FunctionLinesTest, CountsWhatItShould) {
  EXPECT_EQ(FunctionLines({"int F() {", "  if (x) {", "  }", "  return 1;", "}"}, 0), 4u);
  EXPECT_EQ(FunctionLines({"int F(int a,", "      int b) const {", "  return a;", "}"}, 1), 2u);
  EXPECT_EQ(FunctionLines({"  if (F()) {", "    G();", "  }"}, 0), 0u);
}

TEST_F(TidyTest, FunctionsAreShort) {
  for (const SourceFile& file : *tree_) {
    if (!file.Is(".h") && !file.Is(".cc")) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      EXPECT_LE(FunctionLines(file.lines, i), kMaxFunctionLines)
          << file.path << ":" << i + 1 << ": " << file.lines[i];
    }
  }
}

// ---- Comments that a formatter has broken ----

bool IsCode(const SourceFile& file) {
  return file.Is(".h") || file.Is(".cc") || file.Is(".cu") || file.Is(".cuh") || file.Is(".proto");
}

// What a line that is a comment says, after "//" and its spaces; empty for any other line.
std::string CommentText(const std::string& line) {
  const size_t begin = Indent(line);
  if (begin == std::string::npos || line.compare(begin, 3, "// ") != 0) return "";
  const size_t text = line.find_first_not_of(' ', begin + 2);
  return text == std::string::npos ? "" : line.substr(text);
}

// One or two words in the middle of a sentence, left over from a line that had no room for them:
// what a formatter makes of a table or a list when it breaks comments.
bool IsLeftOver(const std::string& before, const std::string& line, const std::string& after) {
  const std::string text = CommentText(line);
  const std::vector<std::string> words = absl::StrSplit(text, ' ', absl::SkipEmpty());
  if (words.empty() || words.size() > 2 || CommentText(before).empty()) return false;
  if (before.size() + 1 + words[0].size() <= kColumns || CommentText(after).empty()) return false;
  const size_t begin = line.find(text);
  const bool set_off = begin > before.find(CommentText(before));  // an example, not running text
  const bool sentence_ends = text.find_last_of(".:;,?!)") == text.size() - 1;
  const bool code = text.find_first_of("{}()\"/") != std::string::npos;
  return !set_off && !sentence_ends && !code;
}

TEST(LeftOverTest, TellsWhatAFormatterLeavesFromTheEndOfAParagraph) {
  const std::string full =
      "//   Beat      may come on a connection of its own: any frame whose header names a member's";
  EXPECT_TRUE(IsLeftOver(full, "//   incarnation", "//             is that member's."));
  EXPECT_FALSE(IsLeftOver(full, "//   incarnation.", "//   - another item"));
  EXPECT_FALSE(IsLeftOver(full, "//   incarnation", "int x;"));
  EXPECT_FALSE(IsLeftOver("// Short.", "// incarnation", "// more"));
  EXPECT_FALSE(IsLeftOver(full, "//   incarnation and more", "// words"));
}

TEST_F(TidyTest, CommentsAreAsTheyWereWritten) {
  for (const SourceFile& file : *tree_) {
    if (!IsCode(file)) continue;
    for (size_t i = 1; i + 1 < file.lines.size(); ++i) {
      EXPECT_FALSE(IsLeftOver(file.lines[i - 1], file.lines[i], file.lines[i + 1]))
          << file.path << ":" << i + 1 << ": a formatter has broken this comment";
    }
  }
}

// A formatter for C++ takes the space after '#' and joins lines until nothing is left of a page.
TEST_F(TidyTest, PagesAreMarkdown) {
  const std::regex heading("^#+[^# ]");
  for (const SourceFile& file : *tree_) {
    if (!file.Is(".md")) continue;
    bool quoted = false;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      if (absl::StartsWith(file.lines[i], "```")) quoted = !quoted;
      EXPECT_FALSE(!quoted && std::regex_search(file.lines[i], heading))
          << file.path << ":" << i + 1 << ": a heading needs a space: " << file.lines[i];
    }
    EXPECT_FALSE(quoted) << file.path << ": ``` is not closed";
  }
}

// ---- Language of comments ----

// All but texts in another language, which stand in string literals.
TEST_F(TidyTest, LinesOfCodeHaveAtMost100Columns) {
  static const std::set<std::string> literals = {"tools/study/report_page.cc",
                                                 "tests/integration/script_test.cc",
                                                 "tests/unit/scheduler/scheduler_test.cc"};
  ExpectNoLine("more than 100 columns", [](const SourceFile& file, const std::string& line) {
    const bool python = file.Is(".py") && (absl::StartsWith(file.path, kPackage) ||
                                           absl::StartsWith(file.path, "examples/") ||
                                           absl::StartsWith(file.path, "tests/python/"));
    return (IsCode(file) || python) && line.size() > kColumns && literals.count(file.path) == 0 &&
           !absl::StartsWith(line, "#include");
  });
}

std::vector<std::string> Words(absl::string_view sentence) {
  std::vector<std::string> words;
  for (const absl::string_view part :
       absl::StrSplit(sentence, absl::ByAnyChar(" \t/-_()[]{}<>.,:;!?\"`=+*&|0123456789"),
                      absl::SkipEmpty())) {
    words.push_back(absl::AsciiStrToLower(part));
  }
  return words;
}

// Does the sentence begin with a relative word, or with a pronoun without a noun ("What no strategy
// has ...", "Of shm, each")? A reader has to read such a sentence twice.
bool IsHard(absl::string_view sentence) {
  static const std::set<std::string> hard = {
      "what", "of",    "who",   "whose", "whom", "whatever", "whoever", "those", "it",  "that",
      "this", "these", "which", "they",  "such", "none",     "neither", "all",   "both"};
  static const std::set<std::string> with_noun = {"this", "these", "that", "those",
                                                  "all",  "both",  "such", "none"};
  static const std::set<std::string> verbs = {
      "is",    "are",    "was",    "were",  "has",   "have",  "had",   "does", "do",
      "did",   "goes",   "go",     "comes", "come",  "can",   "may",   "must", "will",
      "would", "should", "stands", "makes", "make",  "takes", "take",  "says", "say",
      "gives", "give",   "holds",  "hold",  "needs", "need",  "means", "mean"};
  const std::vector<std::string> words = Words(sentence);
  if (words.size() < 3 || hard.count(words[0]) == 0) return false;
  return with_noun.count(words[0]) == 0 || verbs.count(words[1]) == 1;
}

TEST(HardSentenceTest, BeginsWithoutANoun) {
  EXPECT_TRUE(IsHard("Of what has ended, copies the results."));
  EXPECT_TRUE(IsHard("It has come round."));
  EXPECT_TRUE(IsHard("This is the one."));
  EXPECT_FALSE(IsHard("This range holds rows."));
  EXPECT_FALSE(IsHard("The shard keeps the read."));
}

// Blocks of whole-line comments, each as one text.
std::vector<std::string> CommentBlocks(const SourceFile& file) {
  std::vector<std::string> blocks(1);
  for (const std::string& line : file.lines) {
    const std::string text = CommentText(line);
    if (!text.empty()) {
      absl::StrAppend(&blocks.back(), blocks.back().empty() ? "" : " ", text);
    } else if (!blocks.back().empty()) {
      blocks.emplace_back();
    }
  }
  return blocks;
}

// The share may fall and must not rise: lower the bound when it has fallen.
TEST_F(TidyTest, CommentsNameTheirSubject) {
  constexpr double kMaxHard = 0.02;
  int sentences = 0, hard = 0;
  std::string found;
  static const std::regex end(R"(([.;:!?])\s+)");
  for (const SourceFile& file : *tree_) {
    if (!IsCode(file) || absl::StartsWith(file.path, "tests/")) continue;
    for (const std::string& block : CommentBlocks(file)) {
      const std::string split = std::regex_replace(block, end, "$1\n");
      for (const absl::string_view sentence : absl::StrSplit(split, '\n')) {
        if (Words(sentence).size() < 3) continue;
        ++sentences;
        if (!IsHard(sentence)) continue;
        ++hard;
        absl::StrAppend(&found, file.path, ": ", sentence.substr(0, 80), "\n");
      }
    }
  }
  EXPECT_GT(sentences, 5000);
  EXPECT_LE(hard, kMaxHard * sentences)
      << hard << " of " << sentences << " sentences begin with a word that is not a noun:\n"
      << found;
}

// ---- Floors ----

// The folder of a file as the root CMakeLists.txt lists it: "server", "tools/sim".
std::string FolderOf(const std::string& path) {
  const size_t outer = absl::StartsWith(path, "tools/") ? sizeof("tools") : 0;
  return path.substr(0, path.find('/', outer));
}

// The folders of the tree from the ground up: the add_subdirectory lines of the root.
std::vector<std::string> Floors(const SourceFile& cmake) {
  static const std::regex line(R"(^add_subdirectory\(((?:\w+/)?\w+)\)$)");
  std::vector<std::string> floors;
  for (const std::string& text : cmake.lines) {
    if (std::smatch m; std::regex_match(text, m, line)) floors.push_back(m[1]);
  }
  return floors;
}

TEST_F(TidyTest, AFolderIncludesOnlyFoldersBelowIt) {
  std::map<std::string, size_t> floor;
  for (const SourceFile& file : *tree_) {
    if (file.path != "CMakeLists.txt") continue;
    for (const std::string& folder : Floors(file)) floor.emplace(folder, floor.size());
  }
  ASSERT_GT(floor.size(), 10u);
  static const std::regex include(R"re(^#include "([\w/]+\.\w+)")re");
  // The floor of a path's folder, or of the folder around it; end() if neither has a floor.
  const auto floor_of = [&floor](std::string path) {
    auto found = floor.end();
    while (found == floor.end() && absl::StrContains(path, "/")) {
      path.resize(path.rfind('/'));
      found = floor.find(path);
    }
    return found;
  };
  for (const SourceFile& file : *tree_) {
    const auto own = floor_of(file.path);
    if (!IsCode(file) || own == floor.end()) continue;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      std::smatch m;
      if (!std::regex_search(file.lines[i], m, include)) continue;
      const auto used = floor_of(m[1]);
      const bool of_tests = absl::StartsWith(m[1].str(), "tests/");
      EXPECT_TRUE(!of_tests && (used == floor.end() || used->second <= own->second))
          << file.path << ":" << i + 1 << ": " << own->first << "/ stands before "
          << "what it includes in the root CMakeLists.txt: " << file.lines[i];
    }
  }
}

// The rooms of a folder are floors, too: docs/ARCHITECTURE.md names them from the ground up.
TEST_F(TidyTest, ARoomIncludesOnlyRoomsBelowIt) {
  static const std::map<std::string, std::vector<std::string>> rooms = {
      {"server", {"server/rows/", "server/record/", "server/checkpoint/", "server/"}},
      {"scheduler",
       {"scheduler/observe/", "scheduler/state/", "scheduler/failure/", "scheduler/"}}};
  static const std::regex include(R"re(^#include "((?:server|scheduler)/[^"]+)")re");
  size_t includes = 0;
  for (const SourceFile& file : *tree_) {
    const auto folder = rooms.find(FolderOf(file.path));
    if (!IsCode(file) || folder == rooms.end()) continue;
    const auto floor_of = [&folder](const std::string& path) {
      return std::find_if(folder->second.begin(), folder->second.end(),
                          [&](const std::string& room) { return absl::StartsWith(path, room); });
    };
    for (const std::string& line : file.lines) {
      std::smatch m;
      if (!std::regex_search(line, m, include) || FolderOf(m[1]) != folder->first) continue;
      ++includes;
      EXPECT_LE(floor_of(m[1]), floor_of(file.path)) << file.path << ": " << line;
    }
  }
  EXPECT_GT(includes, 200u);
}

// ---- Modules of the Python package ----

using Imports = std::map<std::string, std::set<std::string>>;  // by module

// The modules of the package that a line imports, wherever in its file it stands.
std::vector<std::string> ImportedModules(const std::string& line) {
  static const std::regex of_module(R"(^\s*(?:from|import) tandem\.(\w+))");
  static const std::regex of_package(R"(^\s*from tandem import ([^#]*))");
  std::smatch m;
  if (!absl::StrContains(line, "import")) return {};
  if (std::regex_search(line, m, of_module)) return {m[1]};
  if (!std::regex_search(line, m, of_package)) return {};
  std::vector<std::string> names;
  for (const absl::string_view name : absl::StrSplit(m[1].str(), ',')) {
    const std::vector<std::string> words = absl::StrSplit(name, ' ', absl::SkipEmpty());
    if (!words.empty()) names.push_back(words[0]);  // "serving as plain"
  }
  return names;
}

// The modules that are in a circle of imports, or import one that is.
std::vector<std::string> InCircles(Imports imports) {
  for (size_t before = 0; before != imports.size();) {
    before = imports.size();
    for (auto it = imports.begin(); it != imports.end();) {
      bool blocked = false;
      for (const std::string& used : it->second) blocked |= imports.count(used) == 1;
      it = blocked ? std::next(it) : imports.erase(it);
    }
  }
  std::vector<std::string> names;
  for (const auto& [name, used] : imports) names.push_back(name);
  return names;
}

// The name behind a private attribute of another file that the line uses; empty if there is none.
// `text`: the whole file. Names of other packages are allowed, and classes in comments.
std::string ForeignPrivate(const std::string& line, const std::string& text) {
  static const std::set<std::string> of_others = {"_exit", "_name", "_rand"};
  static const std::regex attribute(R"((\w+|\))\.(_[a-z]\w*))");
  static const std::regex import(R"(^\s*from tandem\.\w+ import [^#]*\b(_\w+))");
  if (!HasOne(line, {"import", "._"})) return "";
  if (std::smatch m; std::regex_search(line, m, import)) return m[1];
  const auto end = std::sregex_iterator();
  for (auto it = std::sregex_iterator(line.begin(), line.end(), attribute); it != end; ++it) {
    const std::string owner = (*it)[1], name = (*it)[2];
    const bool own =
        std::regex_search(text, std::regex(absl::StrCat("(self\\.|def |\n *)", name, "\\b")));
    const bool module = owner == "tandem";  // from tandem._abi import
    if (owner != "self" && !own && !module && of_others.count(name) == 0) return name;
  }
  return "";
}

TEST(PythonModulesTest, FindsCirclesAndForeignPrivateNames) {
  EXPECT_THAT(ImportedModules("        from tandem.data import DataLoader"), ElementsAre("data"));
  EXPECT_THAT(ImportedModules("from tandem import _abi, serving as plain"),
              ElementsAre("_abi", "serving"));
  EXPECT_THAT(ImportedModules("    import torch"), ElementsAre());
  EXPECT_THAT(InCircles({{"a", {"b", "torch"}}, {"b", {"c"}}, {"c", {"b"}}, {"d", {}}}),
              ElementsAre("a", "b", "c"));
  EXPECT_THAT(InCircles({{"a", {"b"}}, {"b", {"c"}}, {"c", {}}}), ElementsAre());
  const std::string text = "class A:\n    def _end(self):\n        self._job = 1\n";
  EXPECT_EQ(ForeignPrivate("x = self._a + job._cells[0]", text), "_cells");
  EXPECT_EQ(ForeignPrivate("current_tables()._find(1)", text), "_find");
  EXPECT_EQ(ForeignPrivate("from tandem.store import Store, _Caller", text), "_Caller");
  EXPECT_EQ(ForeignPrivate("other._job, other._end()  # as data._Loop", text), "");
  EXPECT_EQ(ForeignPrivate("from tandem._abi import Error", text), "");
}

TEST_F(TidyTest, PythonModulesFormNoCircleAndKeepTheirPrivateNames) {
  Imports imports;
  for (const SourceFile& file : *tree_) {
    if (!absl::StartsWith(file.path, kPackage) || absl::EndsWith(file.path, "__init__.py"))
      continue;
    const std::string name =
        file.path.substr(kPackage.size(), file.path.size() - kPackage.size() - 3);
    const std::string text = absl::StrJoin(file.lines, "\n");
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      for (const std::string& used : ImportedModules(line)) {
        if (used != name) imports[name].insert(used);
      }
      EXPECT_EQ(ForeignPrivate(line, text), "")
          << file.path << ":" << i + 1 << ": a private name of another module: " << line;
    }
  }
  EXPECT_GT(imports.size(), 15u);
  EXPECT_THAT(InCircles(imports), ElementsAre()) << "these modules import each other in a circle";
}

// ---- Methods of a class ----

constexpr int kMaxMethods = 40;

// The code without what could hold a brace that is none: comments, strings, characters, macros.
std::string Bare(const SourceFile& file) {
  static const std::regex raw(R"re(R"(\w*)\([^]*?\)\1")re");
  static const std::regex quoted(R"re("(\\.|[^"\\\n])*"|'(\\.|[^'\\\n])+'|//[^\n]*)re");
  static const std::regex macro(R"re((^|\n)[ ]*#([^\n]*\\\n)*[^\n]*)re");
  std::string text = absl::StrJoin(file.lines, "\n");
  if (absl::StrContains(text, "R\"")) text = std::regex_replace(text, raw, "\"\"");
  text = std::regex_replace(text, quoted, "0");
  return std::regex_replace(text, macro, "\n");
}

// A declaration without the arguments of templates.
std::string WithoutTemplates(std::string text) {
  static const std::regex arguments(R"(<[^<>;{}]*>)");
  for (std::string before; before != text;) {
    before = text;
    text = std::regex_replace(text, arguments, "");
  }
  return text;
}

// The name of the class that a '{' after `head` opens; empty if it opens something else.
std::string ClassName(const std::string& head) {
  static const std::regex opens(
      R"((?:^|\s)(?:class|struct|enum|union)\s+(\w+)(?:\s+final)?\s*(?::[^:][^]*)?$)");
  if (!HasOne(head, {"class", "struct", "enum", "union"})) return "";
  std::smatch m;
  const std::string text = WithoutTemplates(head);
  if (text.find('(') != std::string::npos || !std::regex_search(text, m, opens)) return "";
  return m[1];
}

// Is this, inside a class, the declaration of a function?
bool DeclaresFunction(const std::string& declaration) {
  static const std::regex other(
      R"(^(using|typedef|friend|static_assert|enum|struct|class|union)\b)");
  static const std::regex access(R"(\b(public|private|protected)\s*:)");
  static const std::regex name(R"((\w+|operator\s*[^\s\w(]+)\s*\()");
  static const std::regex annotation(R"(^[A-Z0-9_]+$)");
  std::string text = WithoutTemplates(std::regex_replace(declaration, access, " "));
  text = std::string(absl::StripAsciiWhitespace(text));
  std::smatch m;
  if (std::regex_search(text, other) || !std::regex_search(text, m, name)) return false;
  const std::string before = m.prefix();
  return !std::regex_match(std::string(m[1]), annotation) && !absl::StrContains(before, '=');
}

// How many functions each class of a file declares.
std::map<std::string, int> CountMethods(const SourceFile& file) {
  std::map<std::string, int> methods;
  std::vector<std::string> open;  // names of classes, or "" for other braces
  std::string text;               // since the last declaration ended
  const auto declaration_ends = [&] {
    if (!open.empty() && !open.back().empty()) methods[open.back()] += DeclaresFunction(text);
  };
  for (const char c : Bare(file)) {
    if (c == '{') {
      const std::string name = ClassName(text);
      if (name.empty()) declaration_ends();
      open.push_back(name);
    } else if (c == '}') {
      if (!open.empty()) open.pop_back();
    } else if (c == ';') {
      declaration_ends();
    } else {
      text += c;
      continue;
    }
    text.clear();
  }
  return methods;
}

TEST(CountMethodsTest, CountsWhatItShould) {
  const SourceFile file = {
      "a.h",
      {"template <typename T>", "class Box final : public Shape<T> {",
       " public:", "  explicit Box(int x = F(1)) : x_(x) {}  // not F();", "  ~Box() override;",
       "  std::function<void(int)> f_;", "  bool operator==(const Box&) const = default;",
       "  struct Inner { int g() const { return \"};\"[0]; } };",
       "  int guarded_ ABSL_GUARDED_BY(mutex_) = 0;", "  using T = void(int);",
       "  int x_ = Default(), y_{Other()};", "};"}};
  const std::map<std::string, int> methods = CountMethods(file);
  EXPECT_EQ(methods.at("Box"), 3);
  EXPECT_EQ(methods.at("Inner"), 1);
}

TEST_F(TidyTest, ClassesAreNarrow) {
  for (const SourceFile& file : *tree_) {
    if ((!file.Is(".h") && !file.Is(".cc")) || absl::StartsWith(file.path, "tests/")) continue;
    for (const auto& [name, methods] : CountMethods(file)) {
      EXPECT_LE(methods, kMaxMethods) << file.path << ": " << name
                                      << " has more methods than it may: make objects of its parts";
    }
  }
}

// ---- One definition ----

// The types that a file defines at namespace scope, each with its namespaces before it. Those of
// anonymous namespaces may use a name again, and are left out.
std::set<std::string> SharedTypes(const SourceFile& file) {
  static const std::regex opens(R"(\bnamespace\s*([\w:]*)\s*$)");
  struct Scope {
    std::string prefix;
    bool shared;
  };
  std::set<std::string> types;
  std::vector<Scope> open = {{"", true}};
  std::string text;  // since the last declaration ended
  for (const char c : Bare(file)) {
    if (c == '{') {
      const Scope scope = open.back();
      std::smatch m;
      if (absl::StrContains(text, "namespace") && std::regex_search(text, m, opens)) {
        open.push_back({absl::StrCat(scope.prefix, m[1].str(), "::"), scope.shared && m[1] != ""});
      } else {
        const std::string name = ClassName(text);
        if (scope.shared && !name.empty()) types.insert(scope.prefix + name);
        open.push_back({"", false});
      }
    } else if (c == '}') {
      if (open.size() > 1) open.pop_back();
    } else if (c != ';') {
      text += c;
      continue;
    }
    text.clear();
  }
  return types;
}

TEST(SharedTypesTest, FindsWhatTheLinkerSees) {
  const SourceFile file = {
      "a.h",
      {"namespace a {", "class B;", "struct C { struct In { int x; }; };",
       "enum class E : int { kOne };", "template <typename T>", "class F final : public G<T> {};",
       "void H() { struct Here {}; }", "namespace {", "struct Hidden {};", "}  // namespace",
       "namespace b {", "union U { int x; };", "}", "}"}};
  EXPECT_EQ(SharedTypes(file), (std::set<std::string>{"a::C", "a::E", "a::F", "a::b::U"}));
}

// Two types of one name in one namespace are one type to the linker: whichever inline function it
// meets first it takes for both. The compiler says nothing as long as no source sees the two.
TEST_F(TidyTest, ATypeIsDefinedOnce) {
  std::map<std::string, std::string> defined_in;
  for (const SourceFile& file : *tree_) {
    if (!IsCode(file) || file.Is(".proto")) continue;
    for (const std::string& type : SharedTypes(file)) {
      const auto [at, first] = defined_in.emplace(type, file.path);
      EXPECT_TRUE(first) << file.path << " defines " << type << ", and so does " << at->second;
    }
  }
  EXPECT_GT(defined_in.size(), 300u);
}

// ---- A namespace a folder ----

// The namespace of a file's own declarations. The ground (base/, proto/, which generated code
// shares) and the tests are in `tandem` itself.
std::string NamespaceOf(const std::string& path) {
  const std::string folder = FolderOf(path);
  const bool ground = folder == "base" || folder == "proto" || folder == "tests";
  return ground ? "tandem" : absl::StrCat("tandem::", absl::StripPrefix(folder, "tools/"));
}

// Other folders' namespaces are opened to name their types, and for nothing else.
TEST_F(TidyTest, AFolderHasANamespace) {
  static const std::regex opens(R"(^namespace (tandem[\w:]*) \{$)");
  static const std::regex declares(R"(^((class|struct|enum class) [\w: ]+;|)( *//.*)?$)");
  size_t own = 0;
  for (const SourceFile& file : *tree_) {
    if (!file.Is(".h") && !file.Is(".cc") && !file.Is(".cu") && !file.Is(".cuh")) continue;
    const std::string* other = nullptr;
    std::string name;
    for (size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      std::smatch m;
      if (std::regex_match(line, m, opens)) {
        name = m[1];
        if (name == NamespaceOf(file.path)) ++own;
        other = name == NamespaceOf(file.path) ? nullptr : &name;
      } else if (other != nullptr && line.starts_with("}")) {
        other = nullptr;
      } else if (other != nullptr) {
        EXPECT_TRUE(std::regex_match(line, declares))
            << file.path << ":" << i + 1 << ": defines something in namespace " << *other
            << "; its folder's is " << NamespaceOf(file.path);
      }
    }
  }
  EXPECT_GT(own, 500u);
}

// Dead files: a source that no target names.
TEST_F(TidyTest, EverySourceIsBuilt) {
  std::set<std::string> words;  // of all CMake files
  for (const SourceFile& file : *tree_) {
    if (!file.Is("CMakeLists.txt") && !file.Is(".cmake")) continue;
    const std::string text = absl::StrJoin(file.lines, " ");
    for (const absl::string_view word : absl::StrSplit(text, absl::ByAnyChar(" ()/}\";"))) {
      words.emplace(word);
    }
  }
  for (const SourceFile& file : *tree_) {
    if (!file.Is(".cc") && !file.Is(".cu")) continue;
    const fs::path path = file.path;
    // Tests may be listed by the name of their target alone.
    const bool test =
        absl::StartsWith(file.path, "tests/") && words.count(path.stem().string()) > 0;
    EXPECT_TRUE(test || words.count(path.filename().string()) > 0)
        << file.path << " is in no CMakeLists.txt";
  }
}

// [text](target): relative targets exist.
TEST_F(TidyTest, LinksInPagesLeadSomewhere) {
  const std::regex link(R"(\]\(([^)#\s]+)(#[^)]*)?\))");
  for (const SourceFile& file : *tree_) {
    if (!file.Is(".md")) continue;
    const std::string text = absl::StrJoin(file.lines, "\n");
    for (std::sregex_iterator it(text.begin(), text.end(), link), end; it != end; ++it) {
      const std::string target = (*it)[1];
      if (absl::StrContains(target, "://")) continue;
      const fs::path path = Root() / fs::path(file.path).parent_path() / target;
      EXPECT_TRUE(fs::exists(path))
          << file.path << " links to " << target << ", which is not there";
    }
  }
}

// A page that names a file of ours (folder/name.ext) names one that is there. Names in capitals
// stand for what a reader puts in.
TEST_F(TidyTest, FilesThatPagesNameAreThere) {
  std::set<std::string> folders;
  for (const SourceFile& file : *tree_) folders.insert(file.path.substr(0, file.path.find('/')));
  const std::regex name(
      R"((^|[^\w./$-])((\w+)/[\w./-]*\.(h|cc|md|proto|py|sh|cmake|textproto))\b)");
  const std::regex placeholder("[A-Z]{3}|/my\\.");
  for (const SourceFile& file : *tree_) {
    if (!file.Is(".md")) continue;
    const std::string text = absl::StrJoin(file.lines, "\n");
    for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it) {
      const std::string path = (*it)[2];
      if (folders.count((*it)[3]) == 0 || std::regex_search(path, placeholder)) continue;
      EXPECT_TRUE(fs::exists(Root() / path) || fs::exists(Root() / "tests" / path) ||
                  fs::exists(Root() / "collectives" / path))
          << file.path << " names " << path << ", which is not there";
    }
  }
}

// The same for folders: `folder/`. The first word tells ours from folders that a program makes.
TEST_F(TidyTest, FoldersThatPagesNameAreThere) {
  std::set<std::string> folders, names;  // "collectives/links/", "collectives" and "links"
  for (const SourceFile& file : *tree_) {
    for (fs::path path = fs::path(file.path).parent_path(); !path.empty();
         path = path.parent_path()) {
      folders.insert(absl::StrCat("/", path.string(), "/"));
      names.insert(path.filename().string());
    }
  }
  const std::regex name(R"(`(([\w-]+( [\w-]+)?)/([\w-]+/)*)`)");
  const std::regex placeholder("[A-Z]{3}");
  for (const SourceFile& file : *tree_) {
    if (!file.Is(".md")) continue;
    const std::string text = absl::StrJoin(file.lines, "\n");
    for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it) {
      const std::string folder = absl::StrCat("/", (*it)[1].str());
      if (names.count((*it)[2]) == 0 && !absl::StrContains(folder, " ")) continue;
      if (std::regex_search(folder, placeholder)) continue;
      const bool there = std::any_of(folders.begin(), folders.end(), [&](const std::string& one) {
        return absl::EndsWith(one, folder);
      });
      EXPECT_TRUE(there) << file.path << " names " << (*it)[0] << ", which is not there";
    }
  }
}

}  // namespace
}  // namespace tandem
