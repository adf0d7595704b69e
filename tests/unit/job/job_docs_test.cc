// The tables of docs/JOB.md are the comments of proto/job.proto, and every job in configs/ stands.
// With TANDEM_WRITE=1 in the environment the first test writes the tables.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/descriptor.pb.h"
#include "gtest/gtest.h"
#include "job/field_check.h"
#include "job/job.h"
#include "tests/source_path.h"

namespace tandem {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;

// The lines of the page that stand before and after the tables.
constexpr char kBegin[] = "<!-- Written by job_docs_test from proto/job.proto: -->\n\n";
constexpr char kEnd[] = "<!-- End of the tables. -->\n";

// Reads the schema from its text, since the compiled one has no comments.
void ReadSchema(google::protobuf::DescriptorPool* pool) {
  const std::string out = absl::StrCat(testing::TempDir(), "/job_docs_test.", getpid());
  const std::string command =
      absl::StrCat("protoc --include_imports --include_source_info --descriptor_set_out=", out,
                   " -I'", SourcePath(""), "' proto/job.proto");
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  google::protobuf::FileDescriptorSet files;
  ASSERT_TRUE(files.ParseFromString(ReadWholeFile(out).value()));
  for (const auto& file : files.file()) ASSERT_NE(pool->BuildFile(file), nullptr) << file.name();
  std::filesystem::remove(out);
}

// The comment before the declaration of a message, field or value, or behind it, as one line.
template <typename Declared>
std::string Comment(const Declared& declared) {
  google::protobuf::SourceLocation location;
  EXPECT_TRUE(declared.GetSourceLocation(&location)) << declared.full_name();
  std::string text = location.leading_comments;
  if (text.empty()) text = location.trailing_comments;
  EXPECT_FALSE(absl::StrContains(text, "|")) << declared.full_name() << ": | ends a cell";
  return absl::StrJoin(absl::StrSplit(text, absl::ByAnyChar(" \n"), absl::SkipEmpty()), " ");
}

// "int32", "list of string", "Policy", "Policy.Kind".
std::string TypeText(const FieldDescriptor& field) {
  std::string type = field.type_name();
  if (field.message_type() != nullptr) type = field.message_type()->name();
  if (field.enum_type() != nullptr) {
    type =
        absl::StrCat(field.enum_type()->containing_type()->name(), ".", field.enum_type()->name());
  }
  return field.is_repeated() ? absl::StrCat("list of ", type) : type;
}

// " `BSP`: All workers ... `SSP`: ...". Value 0 of each enum means "not set".
std::string ValuesText(const EnumDescriptor& type) {
  std::string text;
  for (int i = 0; i < type.value_count(); ++i) {
    if (type.value(i)->number() == 0) continue;
    const std::string comment = Comment(*type.value(i));
    absl::StrAppend(&text, " `", type.value(i)->name(), comment.empty() ? "`." : "`: ", comment);
  }
  return text;
}

// The default of a field whose comment does not name one.
std::string ZeroText(const FieldDescriptor& field) {
  if (field.is_repeated() || field.has_presence()) return "–";
  if (field.type() == FieldDescriptor::TYPE_STRING) return "–";
  EXPECT_EQ(field.enum_type(), nullptr) << field.full_name() << ": the comment has no default";
  return field.type() == FieldDescriptor::TYPE_BOOL ? "false" : "0";
}

// " 1 to 255."
std::string BoundsSentence(const FieldDescriptor& field) {
  std::string text = job::BoundsText(field.options().GetExtension(must_be));
  if (text.empty()) return "";
  text[0] = absl::ascii_toupper(static_cast<unsigned char>(text[0]));
  return absl::StrCat(" ", text, ".");
}

// CheckFieldValues (job/field_check.cc) can read the field, or the field has nothing to check.
void ExpectCheckable(const FieldDescriptor& field) {
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return;
    case FieldDescriptor::CPPTYPE_INT64:
    case FieldDescriptor::CPPTYPE_DOUBLE:
    case FieldDescriptor::CPPTYPE_ENUM:
      EXPECT_FALSE(field.is_repeated()) << field.full_name() << ": see CheckValue";
      return;
    default:
      EXPECT_EQ(BoundsSentence(field), "") << field.full_name() << ": see CheckValue";
  }
}

// Splits "Description. Default: 4." and "Description. Must be set.".
std::string RowText(const FieldDescriptor& field) {
  ExpectCheckable(field);
  const std::string comment = Comment(field);
  absl::string_view meaning = comment;
  std::string fallback;
  const size_t at = meaning.rfind("Default: ");
  if (at != absl::string_view::npos) {
    fallback = std::string(absl::StripSuffix(meaning.substr(at + 9), "."));
    meaning = absl::StripSuffix(meaning.substr(0, at), " ");
  } else {
    fallback = absl::ConsumeSuffix(&meaning, "Must be set.") ? "must be set" : ZeroText(field);
    absl::ConsumeSuffix(&meaning, " ");
  }
  EXPECT_FALSE(meaning.empty()) << field.full_name() << " has no comment that says what it is";
  return absl::StrCat("| `", field.name(), "` | ", TypeText(field), " | ", fallback, " | ", meaning,
                      BoundsSentence(field),
                      field.enum_type() == nullptr ? "" : ValuesText(*field.enum_type()), " |\n");
}

std::string TableText(const Descriptor& message) {
  if (message.field_count() == 0) return "";
  std::string text = absl::StrCat("## ", message.name(), "\n\n");
  const std::string comment = Comment(message);
  if (!comment.empty()) absl::StrAppend(&text, comment, "\n\n");
  absl::StrAppend(&text, "| field | type | default | meaning |\n|---|---|---|---|\n");
  for (int i = 0; i < message.field_count(); ++i)
    absl::StrAppend(&text, RowText(*message.field(i)));
  return absl::StrCat(text, "\n");
}

TEST(JobDocsTest, TablesAreTheCommentsOfTheSchema) {
  google::protobuf::DescriptorPool pool;
  ASSERT_NO_FATAL_FAILURE(ReadSchema(&pool));
  const auto& schema = *pool.FindFileByName("proto/job.proto");
  const std::string path = SourcePath("docs/JOB.md");
  const std::string page = ReadWholeFile(path).value();
  const size_t begin = page.find(kBegin), end = page.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos) << kBegin << kEnd;
  std::string wanted = page.substr(0, begin) + kBegin;
  for (int i = 0; i < schema.message_type_count(); ++i)
    absl::StrAppend(&wanted, TableText(*schema.message_type(i)));
  absl::StrAppend(&wanted, page.substr(end));
  if (std::getenv("TANDEM_WRITE") != nullptr) std::ofstream(path) << wanted;
  EXPECT_EQ(ReadWholeFile(path).value(), wanted)
      << "To write the page: TANDEM_WRITE=1 TANDEM_SOURCE_DIR=$PWD build/tests/job_docs_test";
}

// An example of the page as a whole job: what it leaves out is added.
std::string Completed(const std::string& example) {
  std::string job = example;
  for (const auto& [name, text] :
       std::map<std::string, std::string>{{"cluster", "cluster { workers: 2 servers: 2 }"},
                                          {"data", "data { format: CRITEO train: 'train.tsv' }"},
                                          {"table", "table { name: 'rest' dim: 16 }"},
                                          {"dense", "dense { optimizer { learning_rate: 0.1 } }"},
                                          {"model", "model { mlp { hidden: 8 } }"},
                                          {"train", "train { batch_size: 16 }"}}) {
    if (!absl::StrContains(example, absl::StrCat("\n", name, " {")))
      absl::StrAppend(&job, text, "\n");
  }
  return job;
}

TEST(JobDocsTest, ExamplesStand) {
  const std::string text = ReadWholeFile(SourcePath("docs/JOB.md")).value();
  const std::vector<std::string> parts = absl::StrSplit(text, "```");
  int examples = 0;
  for (size_t i = 1; i < parts.size(); i += 2) {
    if (!absl::StartsWith(parts[i], "textproto\n")) continue;
    ++examples;
    const absl::StatusOr<Job> job = job::ParseJob(Completed(parts[i].substr(9)), "docs/JOB.md", {});
    EXPECT_TRUE(job.ok()) << job.status() << "\n" << parts[i];
  }
  EXPECT_GE(examples, 5);
}

TEST(ConfigsTest, EveryJobParsesAndResolves) {
  int jobs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SourcePath("configs"))) {
    if (entry.path().extension() != ".textproto") continue;
    ++jobs;
    const absl::StatusOr<Job> job = job::ReadJobFile(entry.path().string(), {});
    ASSERT_TRUE(job.ok()) << job.status();
    const absl::StatusOr<job::ResolvedJob> plan = job::Resolve(*job);
    EXPECT_TRUE(plan.ok()) << plan.status();
    EXPECT_EQ(job->name(), entry.path().stem().string()) << entry.path();
  }
  EXPECT_GE(jobs, 9);
}

}  // namespace
}  // namespace tandem
