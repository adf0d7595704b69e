// Rows that are dealt in blocks (data.deal: BLOCKS): each row is read by exactly one worker,
// wherever blocks are cut, and a worker reads little besides its own blocks.
#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/random.h"
#include "data/batch_source.h"
#include "data/row_data.h"
#include "data/row_source.h"
#include "data/shared_reader.h"
#include "data/statistics.h"
#include "tests/bytes_read.h"
#include "tests/test_seed.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// ---- rows of blocks that are cut anywhere -----------------------------------------------------

std::unique_ptr<data::RowParser> AnyParser(Data::Format format, bool header) {
  if (format == Data::LIBSVM) return data::NewLibsvmParser(/*max_ids=*/0);
  Columns columns;
  columns.set_delimiter(",");
  columns.set_header(header);
  columns.set_scale(Column::NONE);
  columns.set_label(header ? "h" : "0");
  columns.add_categorical(header ? "and\nso on" : "1");
  auto parser = data::NewDelimitedParser(columns);
  EXPECT_TRUE(parser.ok()) << parser.status();
  return *std::move(parser);
}

// Adds "FILE OFFSET TEXT" of each row.
void AddRows(data::RowWalk* walk, std::vector<std::string>* rows) {
  absl::string_view line;
  for (;;) {
    const absl::StatusOr<bool> more = walk->Next(&line);
    ASSERT_TRUE(more.ok()) << more.status();
    if (!*more) return;
    rows->push_back(absl::StrCat(walk->at().file, " ", walk->at().offset, " ", line));
  }
}

// A text of about `size` bytes. `quotes`: the chance of a quote at any place between two cells.
std::string AnyText(Random* random, Data::Format format, bool header, size_t size, double quotes) {
  const std::string end = random->Bernoulli(0.3) ? "\r\n" : "\n";
  std::string text = random->Bernoulli(0.2) ? "\xef\xbb\xbf" : "";
  for (int i = 0; i < 3 && random->Bernoulli(0.3); ++i) text += end;
  if (header) absl::StrAppend(&text, "h,\"and\nso on\"", end);
  if (!header && format == Data::DELIMITED) absl::StrAppend(&text, "first,row", end);
  const size_t longest = random->Bernoulli(0.1) ? 200'000 : 1 + random->Uniform(300);
  while (text.size() < size) {
    if (random->Bernoulli(0.05)) text += random->Bernoulli(0.5) ? end : "  " + end;
    if (format == Data::LIBSVM && random->Bernoulli(0.05)) absl::StrAppend(&text, "# no row", end);
    text += std::string(1 + random->Uniform(longest), 'x');
    for (int cell = 0; cell < 3; ++cell) {
      text += ",";
      if (format == Data::LIBSVM || !random->Bernoulli(quotes)) continue;
      switch (random->Uniform(5)) {
        case 0:
          absl::StrAppend(&text, "\"a, b\"");
          break;
        case 1:
          absl::StrAppend(&text, "\"of", end, end, "several \"\"lines\"\",", end, "\"");
          break;
        case 2:
          absl::StrAppend(&text, "\",\"");
          break;
        case 3:  // a quote within a cell; one that never ends
          absl::StrAppend(&text, random->Bernoulli(0.9) ? "5\" wide" : "\"");
          break;
        default:
          absl::StrAppend(&text, "\"", std::string(random->Uniform(longest), '\n'), "\"");
      }
    }
    text += end;
  }
  if (text.size() > end.size() && random->Bernoulli(0.5)) text.resize(text.size() - end.size());
  return text;
}

// Cuts [0, size) at random places, often at the ends of lines and next to each other.
std::vector<data::Block> Cut(Random* random, size_t file, const std::string& text, size_t cuts) {
  std::vector<int64_t> at = {0, static_cast<int64_t>(text.size())};
  for (size_t i = 0; i < cuts; ++i) {
    size_t place = random->Uniform(text.size() + 1);
    if (random->Bernoulli(0.4)) place = std::min(text.find('\n', place), text.size());
    if (random->Bernoulli(0.4)) place = std::min(place + 1, text.size());
    at.push_back(static_cast<int64_t>(place));
    if (random->Bernoulli(0.2)) at.push_back(static_cast<int64_t>(place));
  }
  std::sort(at.begin(), at.end());
  std::vector<data::Block> blocks;
  for (size_t i = 1; i < at.size(); ++i) blocks.push_back({file, at[i - 1], at[i], 0});
  return blocks;
}

// The rows of all files read in one go, and those of the blocks of several workers.
void ExpectEachRowOnce(Random* random, size_t size, double quotes, size_t cuts) {
  const TempDir dir;
  const Data::Format format = random->Bernoulli(0.3) ? Data::LIBSVM : Data::DELIMITED;
  const bool header = format == Data::DELIMITED && random->Bernoulli(0.5);
  std::vector<std::string> files;
  std::vector<data::Block> blocks;
  const size_t count = 1 + random->Uniform(3);
  for (size_t file = 0; file < count; ++file) {
    const std::string text = AnyText(random, format, header, random->Uniform(size), quotes);
    if (random->Uniform(6) == 0) {
      files.push_back(dir.WriteGzip(absl::StrCat(file, ".gz"), text));
      blocks.push_back({file, 0, data::kNoEnd, 0});
      continue;
    }
    files.push_back(dir.Write(absl::StrCat(file), text));
    for (const data::Block& block : Cut(random, file, text, cuts)) blocks.push_back(block);
  }
  const auto parser = AnyParser(format, header);
  std::vector<std::string> expected, rows, in_one;
  data::RowWalk all(&files, parser.get(), data::RowSelection());
  ASSERT_NO_FATAL_FAILURE(AddRows(&all, &expected));
  for (const data::Block& block : blocks) {
    data::RowWalk walk(&files, parser.get(), data::RowSelection(), {block});
    ASSERT_NO_FATAL_FAILURE(AddRows(&walk, &rows));
  }
  EXPECT_EQ(rows, expected);
  data::RowWalk walk(&files, parser.get(), data::RowSelection(), blocks);
  ASSERT_NO_FATAL_FAILURE(AddRows(&walk, &in_one));
  EXPECT_EQ(in_one, expected);
}

TEST(RowBlocksTest, EachRowIsInOneBlockWhereverFilesAreCut) {
  for (uint64_t i = 0; i < 300 && !HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("files ", i, ", --seed=", TestSeed()));
    Random random(HashCombine(TestSeed(), i));
    ExpectEachRowOnce(&random, 3000, random.Bernoulli(0.5) ? 0.3 : 0.02, 1 + random.Uniform(40));
  }
}

// Longer than a reader looks back at once, and longer than a row may be.
TEST(RowBlocksTest, EachRowIsInOneBlockOfLargeFilesWithFewQuotes) {
  constexpr double kQuotes[] = {0, 1e-5, 1e-4, 1e-3, 0.3};
  for (uint64_t i = 0; i < 10 && !HasFailure(); ++i) {
    SCOPED_TRACE(absl::StrCat("files ", i, ", --seed=", TestSeed()));
    Random random(HashCombine(TestSeed(), 1000 + i));
    ExpectEachRowOnce(&random, 2'500'000, kQuotes[i % 5], 6);
  }
}

// ---- whole jobs -------------------------------------------------------------------------------

// Rows whose only number is their place in the file.
std::string NumberedRows(int begin, int end) {
  std::string text;
  for (int i = begin; i < end; ++i) absl::StrAppend(&text, i % 2, ",", i, ",c", i % 7, "\n");
  return text;
}

job::ResolvedJob BlocksPlan(const std::vector<std::string>& files, int workers) {
  job::ResolvedJob plan = NumberedPlan(files, workers, /*batch=*/32);
  plan.job.mutable_data()->set_deal(Data::BLOCKS);
  return plan;
}

using MakeSource = absl::StatusOr<std::unique_ptr<data::BatchSource>> (*)(const job::ResolvedJob&,
                                                                          int, data::SharedReader*);

// The numbers of the rows of each worker. The workers of one process share a reader.
std::vector<std::vector<int>> NumbersOf(const job::ResolvedJob& plan, MakeSource make,
                                        data::SharedReader* shared = nullptr) {
  std::vector<std::vector<int>> numbers;
  for (int rank = 0; rank < plan.workers(); ++rank) {
    numbers.emplace_back();
    auto source = make(plan, rank, shared);
    EXPECT_TRUE(source.ok()) << source.status();
    if (!source.ok()) return numbers;
    for (const data::Batch& batch : ReadEpoch(source->get(), 0)) {
      for (const float x : batch.numbers) numbers.back().push_back(static_cast<int>(x));
    }
  }
  return numbers;
}

std::vector<int> Sorted(const std::vector<std::vector<int>>& numbers) {
  std::vector<int> all;
  for (const std::vector<int>& some : numbers) all.insert(all.end(), some.begin(), some.end());
  std::sort(all.begin(), all.end());
  return all;
}

std::vector<int> Iota(int begin, int end) {
  std::vector<int> numbers;
  for (int i = begin; i < end; ++i) numbers.push_back(i);
  return numbers;
}

TEST(RowBlocksTest, WorkersHaveAsManyRowsAndEachRowOnce) {
  const TempDir dir;
  const std::string head = "label,x,c\n";
  const std::vector<std::string> files = {
      dir.Write("a.csv", head + NumberedRows(0, 30'000)), dir.Write("b.csv", head),
      dir.WriteZstd("c.csv.zst", head + NumberedRows(30'000, 33'000)),
      dir.Write("d.csv", head + NumberedRows(33'000, 33'001)),
      dir.Write("e.csv", head + NumberedRows(33'001, 70'000))};
  for (const int workers : {1, 2, 7}) {
    job::ResolvedJob plan = BlocksPlan(files, workers);
    Columns* columns = plan.job.mutable_data()->mutable_columns();
    columns->set_header(true);
    columns->set_label("label");
    columns->set_numeric(0, "x");
    columns->set_categorical(0, "c");
    const std::vector<std::vector<int>> numbers = NumbersOf(plan, data::NewTrainSource);
    EXPECT_EQ(Sorted(numbers), Iota(0, 70'000));
    for (const std::vector<int>& some : numbers) {
      EXPECT_NEAR(static_cast<double>(some.size()) * workers, 70'000, 10'000);
      EXPECT_TRUE(std::is_sorted(some.begin(), some.end())) << "in the order of the files";
    }
    EXPECT_EQ(NumbersOf(plan, data::NewTrainSource), numbers) << "always the same share";
    data::SharedReader shared;
    EXPECT_EQ(NumbersOf(plan, data::NewTrainSource, &shared), numbers);
    plan.job.mutable_data()->set_shuffle_buffer(100);
    EXPECT_NE(NumbersOf(plan, data::NewTrainSource), numbers);
    EXPECT_EQ(Sorted(NumbersOf(plan, data::NewTrainSource)), Iota(0, 70'000));
  }
}

// The parts are those of a job that deals rows, but for the rows that are picked by chance.
TEST(RowBlocksTest, PartsOfTheTrainingFilesAreDealtToo) {
  const TempDir dir;
  const std::vector<std::string> files = {dir.Write("a.csv", NumberedRows(0, 400)),
                                          dir.Write("b.csv", NumberedRows(400, 1000))};
  job::ResolvedJob plan = BlocksPlan(files, 3);
  Data* const data = plan.job.mutable_data();
  data->set_max_rows(data::kNoEnd);
  EXPECT_EQ(Sorted(NumbersOf(plan, data::NewTrainSource)), Iota(0, 1000));
  data->set_max_rows(900);
  EXPECT_EQ(Sorted(NumbersOf(plan, data::NewTrainSource)), Iota(0, 900));
  data->set_test_fraction(0.2);
  data->mutable_validation()->set_last_fraction(0.5);
  for (const bool filled : {false, true}) {  // a worker gets the borders with its job
    if (filled) {
      ASSERT_TRUE(data::FillFromData("", &plan).ok());
    }
    EXPECT_EQ(data->border_size(), filled ? 3 : 0);
    EXPECT_EQ(Sorted(NumbersOf(plan, data::NewTrainSource)), Iota(0, 360));
    EXPECT_EQ(Sorted(NumbersOf(plan, data::NewValidationSource)), Iota(360, 720));
    EXPECT_EQ(Sorted(NumbersOf(plan, data::NewTestSource)), Iota(720, 900));
  }
  EXPECT_EQ(data->border(1).row(), 720);
  EXPECT_EQ(data->border(1).file(), 1);
  EXPECT_EQ(data->border(1).line(), 321);
  EXPECT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);

  data->clear_border();
  data->mutable_validation()->clear_last_fraction();
  data->mutable_validation()->set_fraction(0.3);
  const std::vector<int> validation = Sorted(NumbersOf(plan, data::NewValidationSource));
  std::vector<int> all = Sorted(NumbersOf(plan, data::NewTrainSource));
  EXPECT_NEAR(static_cast<double>(validation.size()), 216, 60);
  all.insert(all.end(), validation.begin(), validation.end());
  std::sort(all.begin(), all.end());
  EXPECT_EQ(all, Iota(0, 720));
  EXPECT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
  plan.job.mutable_cluster()->set_workers(5);
  EXPECT_EQ(Sorted(NumbersOf(plan, data::NewValidationSource)), validation)
      << "whatever the number of workers";
  EXPECT_EQ(data::MeasureStatistics(plan)->column(0).values(),
            static_cast<int64_t>(720 - validation.size()));
}

// One worker alone deals rows if nobody says otherwise, and would evaluate the model on rows that
// have trained it.
TEST(RowBlocksTest, RowsThatValidateAModelStayTheSame) {
  const TempDir dir;
  const auto plan_of = [file = dir.Write("a.csv", NumberedRows(0, 1000))](int workers) {
    job::ResolvedJob plan = BlocksPlan({file}, workers);
    plan.job.mutable_data()->clear_deal();
    plan.job.mutable_data()->mutable_validation()->set_fraction(0.3);
    return plan;
  };
  job::ResolvedJob blocks = plan_of(3), rows = plan_of(1);
  blocks.job.mutable_data()->set_deal(Data::BLOCKS);
  ASSERT_TRUE(data::FillFromData("", &blocks).ok());
  ASSERT_TRUE(data::FillFromData("", &rows).ok());
  const std::vector<int> picked = Sorted(NumbersOf(blocks, data::NewValidationSource));
  EXPECT_NE(Sorted(NumbersOf(rows, data::NewValidationSource)), picked);

  job::ResolvedJob later = plan_of(1);
  ASSERT_TRUE(data::FillFromData(data::DescribeData(blocks.job.data()), &later).ok());
  EXPECT_EQ(later.job.data().deal(), Data::BLOCKS);
  EXPECT_EQ(Sorted(NumbersOf(later, data::NewValidationSource)), picked);
  later = plan_of(3);
  ASSERT_TRUE(data::FillFromData(data::DescribeData(rows.job.data()), &later).ok());
  EXPECT_EQ(later.job.data().deal(), Data::ROWS);

  Data data = plan_of(3).job.data();  // a checkpoint of an earlier version
  ASSERT_TRUE(data::AdoptDescription(data::DescribeData(data), &data).ok());
  EXPECT_EQ(data.deal(), Data::ROWS);
  data.clear_deal();
  data.clear_validation();
  ASSERT_TRUE(data::AdoptDescription(data::DescribeData(blocks.job.data()), &data).ok());
  EXPECT_EQ(data.deal(), Data::DEAL_UNSPECIFIED) << "it does not matter";
}

// Without data.deal the files decide.
TEST(RowBlocksTest, SmallFilesAndFewCompressedFilesAreDealtByRows) {
  const TempDir dir;
  Random random(TestSeed());
  std::string text;  // some that does not become small when it is packed
  while (text.size() < 6'000'000) {
    absl::StrAppend(&text, random.Uniform(2), ",1,", absl::Hex(random.Uniform(~uint64_t{0})), "\n");
  }
  const std::string plain = dir.Write("a.csv", text), packed = dir.WriteGzip("a.csv.gz", text);
  const auto deal = [&](const std::vector<std::string>& files, int workers,
                        std::vector<std::string>* warnings) {
    job::ResolvedJob plan = BlocksPlan(files, workers);
    plan.job.mutable_data()->clear_deal();
    data::DataReport report;
    EXPECT_TRUE(data::CheckData(plan, &report).ok());
    for (const std::string& line : report.warnings) {
      if (absl::StrContains(line, "every worker reads all files")) warnings->push_back(line);
    }
    EXPECT_TRUE(data::FillFromData("", &plan).ok());
    return plan.job.data().deal();
  };
  std::vector<std::string> warnings;
  EXPECT_EQ(deal({plain}, 5, &warnings), Data::BLOCKS);
  EXPECT_EQ(deal({plain}, 6, &warnings), Data::ROWS) << "less than 1 MiB for each";
  EXPECT_EQ(deal({plain}, 1, &warnings), Data::ROWS) << "nothing to deal";
  EXPECT_EQ(deal({packed, packed}, 2, &warnings), Data::BLOCKS);
  EXPECT_EQ(deal({packed, packed, plain}, 4, &warnings), Data::ROWS) << "two have too much";
  ASSERT_THAT(warnings, SizeIs(1));
  EXPECT_THAT(warnings[0],
              HasSubstr("data.train: 2 compressed files for 4 workers cannot be dealt"));
  EXPECT_EQ(deal({packed}, 2, &warnings), Data::ROWS);
  ASSERT_THAT(warnings, SizeIs(2));
  EXPECT_THAT(warnings[1], HasSubstr("data.train: 1 compressed file for 2 workers"));

  job::ResolvedJob plan = BlocksPlan({packed}, 2);
  ExpectOneLine(data::CheckData(plan), {"data.deal: BLOCKS leaves a worker without a block",
                                        "1 compressed file for 2 workers", "hint"});
  plan.job.mutable_data()->set_score_only(true);
  plan.job.mutable_data()->clear_train();
  plan.job.mutable_data()->add_test(plain);
  const std::vector<std::vector<int>> scored = NumbersOf(plan, data::NewTestSource);
  EXPECT_LE(scored[0].size() - scored[1].size(), 1u) << "scores are in the order of the rows";
}

// A reader in the middle of a file does not know the number of a line, but messages have it.
TEST(RowBlocksTest, BadRowsAreSkippedOrNamedByTheirLine) {
  const TempDir dir;
  const std::string text = NumberedRows(0, 500) + "1,x,c\n" + NumberedRows(500, 900) + "1,y,c\n" +
                           NumberedRows(900, 999);
  job::ResolvedJob plan = BlocksPlan({dir.Write("x.csv", text)}, 3);
  plan.job.mutable_data()->set_max_bad_rows(1);
  EXPECT_EQ(Sorted(NumbersOf(plan, data::NewTrainSource)), Iota(0, 999));
  plan.job.mutable_data()->set_max_bad_rows(0);
  std::vector<std::string> errors;
  for (int rank = 0; rank < 3; ++rank) {
    auto source = *data::NewTrainSource(plan, rank);
    ASSERT_TRUE(source->StartEpoch(0).ok());
    data::Batch batch;
    absl::Status status;
    do {
      status = source->Next(&batch);
    } while (status.ok() && batch.samples > 0);
    if (!status.ok()) errors.emplace_back(status.message());
  }
  ASSERT_THAT(errors, SizeIs(2));
  EXPECT_THAT(errors[0], HasSubstr("x.csv:501: "));
  EXPECT_THAT(errors[0], HasSubstr("'x'"));
  EXPECT_THAT(errors[1], HasSubstr("x.csv:902: "));
  EXPECT_THAT(errors[1], HasSubstr("'y'"));
}

// Between the start of a job and that of its workers, or on another host.
TEST(RowBlocksTest, FilesOfAnotherSizeAreRefused) {
  const TempDir dir;
  job::ResolvedJob plan = BlocksPlan({dir.Write("a.csv", NumberedRows(0, 50))}, 2);
  ASSERT_TRUE(data::FillFromData("", &plan).ok());
  EXPECT_TRUE(data::NewTrainSource(plan, 0).ok());
  dir.Write("a.csv", NumberedRows(0, 51));
  ExpectOneLine(data::NewTrainSource(plan, 1).status(),
                {"data.train: the files have", "where the job was started", "hint"});
  data::ClearMeasured(plan.job.mutable_data());
  EXPECT_TRUE(data::NewTrainSource(plan, 1).ok());

  // Borders are places in the files, whatever the deal.
  plan.job.mutable_data()->set_deal(Data::ROWS);
  plan.job.mutable_data()->set_test_fraction(0.2);
  ASSERT_TRUE(data::FillFromData("", &plan).ok());
  EXPECT_TRUE(data::NewTestSource(plan, 0).ok());
  dir.Write("a.csv", NumberedRows(0, 52));
  ExpectOneLine(data::NewTestSource(plan, 0).status(), {"data.train: the files have", "hint"});
}

// The estimate looks at a sample that is not much larger than one read.
TEST(RowBlocksTest, EstimatesAreNearTheCount) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 100'000; ++i) absl::StrAppend(&text, i % 2, ",", 100'000 + i, ",c\n");
  const job::ResolvedJob plan = BlocksPlan({dir.Write("a.csv", text)}, 4);
  EXPECT_NEAR((*data::NewTrainSource(plan, 0))->EstimatedRows(), 25'000, 100);
}

TEST(RowBlocksTest, AFileThatChangesIsNoticedByWorkersThatDoNotReadIt) {
  const TempDir dir;
  const std::vector<std::string> files = {dir.Write("a.csv", NumberedRows(0, 50)),
                                          dir.WriteGzip("b.csv.gz", NumberedRows(50, 1000))};
  const job::ResolvedJob plan = BlocksPlan(files, 2);
  EXPECT_EQ(NumbersOf(plan, data::NewTrainSource)[1], Iota(0, 50));
  auto source = *data::NewTrainSource(plan, 0);
  EXPECT_THAT(ReadEpoch(source.get(), 0), ::testing::Not(IsEmpty()));
  dir.Write("a.csv", NumberedRows(0, 51));
  ExpectOneLine(source->StartEpoch(1), {"a.csv has changed since the run began", "hint"});
}

// One pass counts the rows, and one finds the border.
TEST(RowBlocksTest, OneBorderIsLookedForOnce) {
  if (BytesRead() < 0) GTEST_SKIP() << "/proc/self/io does not count";
  const TempDir dir;
  const std::string text = NumberedRows(0, 300'000);
  job::ResolvedJob plan = BlocksPlan({dir.Write("a.csv", text)}, 2);
  plan.job.mutable_data()->set_test_fraction(0.1);
  const auto parser = *data::NewRowParser(plan.job.data(), nullptr);
  const int64_t before = BytesRead();
  ASSERT_TRUE(data::FindRowParts(plan, parser.get()).ok());
  const auto read = static_cast<double>(BytesRead() - before);
  EXPECT_GE(read, 1.8 * static_cast<double>(text.size()));
  EXPECT_LE(read, 2.2 * static_cast<double>(text.size()));
}

TEST(RowBlocksTest, EightWorkersTogetherReadAFileOnce) {
  if (BytesRead() < 0) GTEST_SKIP() << "/proc/self/io does not count";
  const TempDir dir;
  std::string text;
  for (int i = 0; text.size() < size_t{32} << 20; ++i) {
    const char* const quote = i % 5 == 0 ? "\"" : "";
    absl::StrAppend(&text, i % 2, ",", i, ",", quote, std::string(150 + i % 100, 'c'), quote, "\n");
  }
  for (const bool quotes : {true, false}) {
    std::string lines = text;
    if (!quotes) lines.erase(std::remove(lines.begin(), lines.end(), '"'), lines.end());
    const std::string file = dir.Write("a.csv", lines);
    job::ResolvedJob plan = BlocksPlan({file}, 8);
    plan.job.mutable_data()->add_test(file);
    ASSERT_TRUE(data::FillFromData("", &plan).ok());
    for (const MakeSource make : {&data::NewTrainSource, &data::NewTestSource}) {
      const int64_t before = BytesRead();
      const std::vector<int> numbers = Sorted(NumbersOf(plan, make));
      const auto read = static_cast<double>(BytesRead() - before);
      EXPECT_EQ(numbers, Iota(0, static_cast<int>(numbers.size())));
      EXPECT_GE(read, static_cast<double>(lines.size()));
      EXPECT_LE(read, 1.1 * static_cast<double>(lines.size())) << (quotes ? "" : "no ") << "quotes";
    }
  }
}

}  // namespace
}  // namespace tandem
