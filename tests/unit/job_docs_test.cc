// docs/JOB.md describes every field of the schema and no others, and every job in configs/ stands.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "google/protobuf/descriptor.h"
#include "gtest/gtest.h"
#include "job/job.h"
#include "tests/source_path.h"

namespace tandem {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

// As the second column of the tables has it: "int32", "list of string", "Policy", "Policy.Kind".
std::string TypeText(const FieldDescriptor& field) {
  std::string type = field.type_name();
  if (field.message_type() != nullptr) type = field.message_type()->name();
  if (field.enum_type() != nullptr) {
    type =
        absl::StrCat(field.enum_type()->containing_type()->name(), ".", field.enum_type()->name());
  }
  return field.is_repeated() ? absl::StrCat("list of ", type) : type;
}

void AddMessages(const Descriptor& message, std::map<std::string, const Descriptor*>* all) {
  if (!all->emplace(message.name(), &message).second) return;
  for (int i = 0; i < message.field_count(); ++i) {
    if (message.field(i)->message_type() != nullptr)
      AddMessages(*message.field(i)->message_type(), all);
  }
}

struct Row {
  std::string type, meaning;
};

// Heading "## Name" -> field -> row, for the tables "| `field` | type | default | meaning |".
std::map<std::string, std::map<std::string, Row>> ReadTables(const std::string& text) {
  std::map<std::string, std::map<std::string, Row>> tables;
  std::string heading;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    if (absl::StartsWith(line, "## ")) heading = std::string(line.substr(3));
    if (!absl::StartsWith(line, "| `")) continue;
    const std::vector<std::string> cells = absl::StrSplit(line, '|');
    EXPECT_EQ(cells.size(), 6u) << line;
    if (cells.size() != 6) continue;
    std::string name(absl::StripAsciiWhitespace(cells[1]));
    name = name.substr(1, name.size() - 2);
    EXPECT_EQ(tables[heading].count(name), 0u) << heading << "." << name << " is described twice";
    tables[heading][name] = {std::string(absl::StripAsciiWhitespace(cells[2])),
                             cells[3] + cells[4]};
    EXPECT_FALSE(absl::StripAsciiWhitespace(cells[3]).empty()) << line << ": no default";
    EXPECT_FALSE(absl::StripAsciiWhitespace(cells[4]).empty()) << line << ": no meaning";
  }
  return tables;
}

void ExpectDescribed(const FieldDescriptor& field, const Row& row) {
  EXPECT_EQ(row.type, TypeText(field)) << field.full_name();
  if (field.enum_type() == nullptr) return;
  for (int i = 0; i < field.enum_type()->value_count(); ++i) {
    const auto& value = *field.enum_type()->value(i);
    if (value.number() == 0) continue;  // "not set"
    EXPECT_TRUE(absl::StrContains(row.meaning, absl::StrCat("`", value.name(), "`")))
        << field.full_name() << " does not explain " << value.name();
  }
}

TEST(JobDocsTest, EveryFieldIsDescribedAndNothingElse) {
  const auto tables = ReadTables(ReadWholeFile(SourcePath("docs/JOB.md")).value());
  std::map<std::string, const Descriptor*> messages;
  AddMessages(*Job::descriptor(), &messages);
  for (const auto& [name, message] : messages) {
    const auto table = tables.find(name);
    const std::set<std::string> described = [&] {
      std::set<std::string> names;
      if (table == tables.end()) return names;
      for (const auto& [field, row] : table->second) names.insert(field);
      return names;
    }();
    std::set<std::string> wanted;
    for (int i = 0; i < message->field_count(); ++i) wanted.insert(message->field(i)->name());
    EXPECT_EQ(described, wanted) << "docs/JOB.md, section \"## " << name << "\"";
    if (described != wanted) continue;
    for (int i = 0; i < message->field_count(); ++i) {
      ExpectDescribed(*message->field(i), table->second.at(message->field(i)->name()));
    }
  }
  for (const auto& [name, table] : tables) {
    EXPECT_EQ(messages.count(name), 1u)
        << "docs/JOB.md describes " << name << ", which is no message";
  }
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
