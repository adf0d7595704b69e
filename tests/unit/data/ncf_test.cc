// The NCF protocol: each positive once an epoch with fresh negatives of its user, the same epoch
// for any number of workers, and ranking groups without the positive among its candidates.
#include "data/ncf.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "absl/strings/str_cat.h"
#include "data/cells.h"
#include "data/metrics.h"
#include "tests/test_seed.h"
#include "tests/unit/data/data_fixture.h"

namespace tandem {
namespace {

using ::testing::ElementsAre;

absl::StatusOr<std::vector<data::Interaction>> Ratings(absl::string_view text) {
  data::LineReader lines("ratings", data::MemoryBytes(text));
  std::vector<data::Interaction> rows;
  const absl::Status status = data::ReadRatings(&lines, &rows);
  if (!status.ok()) return status;
  return rows;
}

absl::StatusOr<data::RankingGroups> Groups(absl::string_view text) {
  data::LineReader lines("candidates", data::MemoryBytes(text));
  data::RankingGroups groups;
  const absl::Status status = data::ReadRankingGroups(&lines, &groups);
  if (!status.ok()) return status;
  return groups;
}

TEST(NcfTextTest, RatingsAreUserAndItem) {
  const auto rows = Ratings("3\t7\t5\n4\t0\n4294967294\t2\t1\t9999\n");
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_THAT(*rows, ElementsAre(data::Interaction{3, 7}, data::Interaction{4, 0},
                                 data::Interaction{4294967294, 2}));
  ExpectOneLine(Ratings("1\t2\n3\n").status(), {"ratings:2: ", "1 column", "at least 2", "hint"});
  ExpectOneLine(Ratings("1\tx\n").status(), {"ratings:1: ", "the item is 'x'", "hint"});
  ExpectOneLine(Ratings("-1\t2\n").status(), {"ratings:1: ", "the user is '-1'", "hint"});
  ExpectOneLine(Ratings("1\t4294967295\n").status(), {"ratings:1: ", "the item", "4294967294"});
  ExpectOneLine(Ratings("").status(), {"ratings: ", "empty"});
  ExpectOneLine(Ratings(" \t\n  \n").status(), {"ratings: ", "empty"});
}

TEST(NcfSourceTest, PairsAreScoredInTheirOrder) {
  const TempDir dir;
  job::ResolvedJob plan = MakePlan(Data::NCF, {}, 2, 8);
  plan.job.mutable_data()->add_test(dir.Write("a", "3,7\n4\t0\t5\n"));
  plan.job.mutable_data()->add_test(dir.Write("b", "3,0\n"));
  plan.job.mutable_data()->set_score_only(true);
  EXPECT_EQ(data::CheckData(plan), absl::OkStatus());
  auto source = *data::NewTestSource(plan, 0);
  const data::Batch batch = ReadEpoch(source.get(), 0).at(0);
  EXPECT_EQ(batch.samples, 2);
  EXPECT_TRUE(batch.groups.empty() && std::isnan(batch.labels[0]) && std::isnan(batch.labels[1]));
  const data::FieldHash user("user"), item("item");
  EXPECT_THAT(batch.sparse[0].keys,
              ElementsAre(user.Key(uint64_t{3}), item.Key(uint64_t{7}), item.Key(uint64_t{0})));
  plan.job.mutable_data()->add_test(dir.Write("c", "3;0\n"));
  ExpectOneLine(data::CheckData(plan), {"c:1: ", "1 column", "at least 2"});
}

TEST(NcfTextTest, CandidatesEqualToThePositiveAreLeftOut) {
  const auto groups = Groups("(0,25)\t1\t25\t3\n(1,2)\t9\n");
  ASSERT_TRUE(groups.ok()) << groups.status();
  EXPECT_THAT(groups->positives, ElementsAre(data::Interaction{0, 25}, data::Interaction{1, 2}));
  EXPECT_THAT(groups->offsets, ElementsAre(0, 2, 3));
  EXPECT_THAT(groups->items, ElementsAre(1, 3, 9));
  for (const char* bad : {"0,25\t1", "(0,25\t1", "(0 25)\t1", "(a,1)\t2", "(,)\t2", "()\t1"}) {
    ExpectOneLine(Groups(bad).status(), {"candidates:1: ", "expected (user,item)", "hint"});
  }
  ExpectOneLine(Groups("(0,1)\t2\n(0,1)\tx\n").status(), {"candidates:2: ", "'x'"});
  ExpectOneLine(Groups("(0,1)\n").status(), {"candidates:1: ", "no item to rank against"});
  ExpectOneLine(Groups("(0,1)\t1\n").status(), {"candidates:1: ", "no item to rank against"});
  ExpectOneLine(Groups("").status(), {"candidates: ", "empty"});
}

// Users 0 to 4; user u has the items that are not a multiple of u + 2, of 20.
std::vector<data::Interaction> SmallRatings() {
  std::vector<data::Interaction> rows;
  for (uint32_t user = 0; user < 5; ++user) {
    for (uint32_t item = 0; item < 20; ++item) {
      if (item % (user + 2) != 0) rows.push_back({user, item});
    }
  }
  return rows;
}

struct EpochRow {
  data::Interaction pair;
  bool positive;
  friend bool operator==(const EpochRow&, const EpochRow&) = default;
};

std::vector<EpochRow> Epoch(data::NcfEpochs* epochs, int64_t epoch) {
  epochs->StartEpoch(epoch);
  std::vector<EpochRow> rows(epochs->rows());
  for (size_t r = 0; r < rows.size(); ++r) rows[r].pair = epochs->At(r, &rows[r].positive);
  return rows;
}

TEST(NcfEpochsTest, EachPositiveOnceWithNegativesOfItsUser) {
  const auto ratings = SmallRatings();
  auto epochs = data::NcfEpochs::Create(ratings, 4, TestSeed());
  ASSERT_TRUE(epochs.ok()) << epochs.status();
  EXPECT_EQ(epochs->items(), 19u);
  std::map<std::pair<uint32_t, uint32_t>, int> positives, negatives;
  for (const EpochRow& row : Epoch(&*epochs, 3)) {
    ++(row.positive ? positives : negatives)[{row.pair.user, row.pair.item}];
  }
  EXPECT_EQ(positives.size(), ratings.size());
  int drawn = 0;
  for (const auto& [pair, count] : positives) EXPECT_EQ(count, 1);
  for (const auto& [pair, count] : negatives) {
    EXPECT_EQ(pair.second % (pair.first + 2), 0u) << "a row of user " << pair.first;
    EXPECT_LT(pair.second, 20u);
    drawn += count;
  }
  EXPECT_EQ(drawn, static_cast<int>(ratings.size()) * 4);
}

TEST(NcfEpochsTest, NegativesAreUniformOverTheOtherItems) {
  auto epochs = *data::NcfEpochs::Create(SmallRatings(), 4, TestSeed());
  std::map<uint32_t, int> drawn;  // of user 0, who lacks the nine even items of other users
  int all = 0;
  for (int epoch = 0; epoch < 500; ++epoch) {
    for (const EpochRow& row : Epoch(&epochs, epoch)) {
      if (row.positive || row.pair.user != 0) continue;
      ++drawn[row.pair.item];
      ++all;
    }
  }
  ASSERT_EQ(all, 20'000);
  double chi_square = 0;
  for (uint32_t item = 2; item < 20; item += 2) {
    chi_square += (drawn[item] - 20'000 / 9.0) * (drawn[item] - 20'000 / 9.0) / (20'000 / 9.0);
  }
  EXPECT_LT(chi_square, 40) << "8 degrees of freedom; 1 in 10^5 is above, --seed=" << TestSeed();
}

// Ids of items may have gaps, and need not begin at 0: what no row has is no item.
TEST(NcfEpochsTest, NegativesAreItemsOfTheRows) {
  auto epochs = *data::NcfEpochs::Create({{1, 7}, {1, 70}, {2, 700}, {2, 7}}, 9, TestSeed());
  EXPECT_EQ(epochs.items(), 3u);
  for (const EpochRow& row : Epoch(&epochs, 0)) {
    if (row.positive) continue;
    EXPECT_EQ(row.pair.item, row.pair.user == 1 ? 700u : 70u);
  }
  ExpectOneLine(data::NcfEpochs::Create({{1, 7}, {1, 70}, {2, 7}}, 4, 1).status(),
                {"user 1 has all 2 items", "hint"});
}

TEST(NcfEpochsTest, EpochsDifferAndRepeat) {
  auto epochs = *data::NcfEpochs::Create(SmallRatings(), 4, 1);
  const auto first = Epoch(&epochs, 0), second = Epoch(&epochs, 1);
  EXPECT_EQ(Epoch(&epochs, 0), first) << "whatever came between";
  const auto negatives = [](const std::vector<EpochRow>& rows) {
    std::multiset<std::pair<uint32_t, uint32_t>> set;
    for (const EpochRow& row : rows) {
      if (!row.positive) set.insert({row.pair.user, row.pair.item});
    }
    return set;
  };
  EXPECT_NE(negatives(first), negatives(second)) << "fresh negatives each epoch";
  auto other = *data::NcfEpochs::Create(SmallRatings(), 4, 2);
  EXPECT_NE(negatives(Epoch(&other, 0)), negatives(first));
  // The order is a shuffle of the whole epoch: positives are spread, not where the file has them.
  size_t early = 0;
  for (size_t r = 0; r < first.size() / 2; ++r) early += first[r].pair.user < 2 ? 1 : 0;
  size_t all = 0;
  for (const EpochRow& row : first) all += row.pair.user < 2 ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(early), static_cast<double>(all) / 2, 25);
}

TEST(NcfEpochsTest, AUserWithAllItemsIsRefused) {
  ExpectOneLine(data::NcfEpochs::Create({{0, 0}, {0, 1}, {1, 0}}, 4, 1).status(),
                {"user 0 has all 2 items", "hint"});
  EXPECT_TRUE(data::NcfEpochs::Create({{0, 0}, {0, 1}, {1, 0}}, 0, 1).ok())
      << "no negatives, no problem";
}

// (label, user key, item key) of every sample.
using Triples = std::multiset<std::tuple<float, uint64_t, uint64_t>>;

void AddTriples(const std::vector<data::Batch>& batches, Triples* triples) {
  for (const data::Batch& batch : batches) {
    const data::SparseInput& ids = batch.sparse[0];
    for (int64_t s = 0; s < batch.samples; ++s) {
      triples->insert(
          {batch.labels[s], ids.keys[ids.index[2 * s]], ids.keys[ids.index[2 * s + 1]]});
    }
  }
}

TEST(NcfSourceTest, TheUnionOverWorkersIsTheSameForAnyNumber) {
  const TempDir dir;
  std::string text;
  for (const data::Interaction& row : SmallRatings())
    absl::StrAppend(&text, row.user, "\t", row.item, "\t5\n");
  const std::string file = dir.Write("train.rating", text);
  Triples one;
  for (const int workers : {1, 2, 3, 7}) {
    const job::ResolvedJob plan = MakePlan(Data::NCF, {file}, workers, 16);
    ASSERT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
    Triples all;
    for (int rank = 0; rank < workers; ++rank) {
      auto source = *data::NewTrainSource(plan, rank);
      const auto batches = ReadEpoch(source.get(), 5);
      AddTriples(batches, &all);
      int64_t rows = 0;
      for (const data::Batch& batch : batches) rows += batch.samples;
      EXPECT_EQ(rows, source->EstimatedRows());
    }
    if (workers == 1) one = all;
    EXPECT_EQ(all, one) << workers << " workers";
  }
  EXPECT_EQ(one.size(), SmallRatings().size() * 5);
}

TEST(NcfSourceTest, TestGroupsAreWholeAndDealtToWorkers) {
  const TempDir dir;
  job::ResolvedJob plan = MakePlan(Data::NCF, {dir.Write("train", "0\t1\n1\t2\n2\t0\n")}, 2, 16);
  plan.job.mutable_data()->mutable_negatives()->set_test_negatives(
      dir.Write("negative", "(0,5)\t1\t2\t3\n(1,6)\t6\t2\n(2,7)\t1\t2\n"));
  plan.job.mutable_data()->add_test(dir.Write("test", "0\t5\t1\n1\t6\t1\n2\t7\t1\n"));
  plan.job.mutable_evaluation()->set_batch_size(1);
  ASSERT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
  const auto first = ReadEpoch((*data::NewTestSource(plan, 0)).get(), 0);
  ASSERT_EQ(first.size(), 2u) << "a group is never cut";
  EXPECT_THAT(first[0].groups, ElementsAre(4));
  EXPECT_THAT(first[0].labels, ElementsAre(1, 0, 0, 0));
  EXPECT_EQ(first[0].sparse[0].keys[1], data::FieldHash("item").Key(uint64_t{5}))
      << "the positive first";
  EXPECT_THAT(first[1].groups, ElementsAre(3));
  const auto second = ReadEpoch((*data::NewTestSource(plan, 1)).get(), 0);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_THAT(second[0].groups, ElementsAre(2)) << "without the candidate that is the positive";
}

TEST(NcfSourceTest, FilesOfDifferentSplitsAreRefused) {
  const TempDir dir;
  job::ResolvedJob plan = MakePlan(Data::NCF, {dir.Write("train", "0\t1\n1\t0\n")}, 1, 16);
  plan.job.mutable_data()->add_test(dir.Write("test", "0\t5\t1\n1\t7\t1\n"));
  ExpectOneLine(data::CheckData(plan), {"data.negatives.test_negatives", "hint"});
  plan.job.mutable_data()->mutable_negatives()->set_test_negatives(
      dir.Write("negative", "(0,5)\t1\n(1,6)\t2\n"));
  ExpectOneLine(data::CheckData(plan), {"their row 2 differs", "hint"});
  dir.Write("negative", "(0,5)\t1\n");
  ExpectOneLine(data::CheckData(plan), {"2 rows", "hint"});
  dir.Write("negative", "(0,5)\t1\n(1,7)\t2\n");
  EXPECT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
  plan.job.mutable_data()->set_test_fraction(0.1);
  ExpectOneLine(data::CheckData(plan), {"data.test_fraction", "NCF"});
}

// The real split: its counts, and item popularity ranked through our own metrics, which is known to
// give HR@10 .4538 and NDCG@10 .2545.
TEST(NcfSourceTest, RealMovieLens) {
  if (std::getenv("TANDEM_DATA") == nullptr) GTEST_SKIP() << "TANDEM_DATA is not set";
  job::ResolvedJob plan =
      MakePlan(Data::NCF, {"$TANDEM_DATA/ncf-ml-1m/ml-1m.train.rating"}, 2, 256);
  plan.job.mutable_data()->add_test("$TANDEM_DATA/ncf-ml-1m/ml-1m.test.rating");
  plan.job.mutable_data()->mutable_negatives()->set_test_negatives(
      "$TANDEM_DATA/ncf-ml-1m/ml-1m.test.negative");
  ASSERT_TRUE(data::CheckData(plan).ok()) << data::CheckData(plan);
  const data::NcfEpochs epochs = *data::LoadNcfEpochs(plan);
  EXPECT_EQ(epochs.rows(), 4'970'845);
  EXPECT_EQ(epochs.items(), 3'704u);
  const data::RankingGroups groups = *data::LoadRankingGroups(plan);
  EXPECT_EQ(groups.size(), 6'040u);
  size_t without_one = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    without_one += groups.offsets[g + 1] - groups.offsets[g] < 99 ? 1 : 0;
  }
  EXPECT_EQ(without_one, 156u);

  // Popularity, counted over the positives of one epoch of both workers.
  std::map<uint64_t, float> popularity;
  for (int rank = 0; rank < 2; ++rank) {
    auto source = *data::NewTrainSource(plan, rank);
    for (const data::Batch& batch : ReadEpoch(source.get(), 0)) {
      const data::SparseInput& ids = batch.sparse[0];
      for (int64_t s = 0; s < batch.samples; ++s) {
        if (batch.labels[s] == 1) popularity[ids.keys[ids.index[2 * s + 1]]] += 1;
      }
    }
  }
  data::EvaluationPart part;
  for (int rank = 0; rank < 2; ++rank) {
    auto source = *data::NewTestSource(plan, rank);
    for (const data::Batch& batch : ReadEpoch(source.get(), 0)) {
      const data::SparseInput& ids = batch.sparse[0];
      std::vector<float> scores;
      for (int64_t s = 0; s < batch.samples; ++s) {
        scores.push_back(popularity[ids.keys[ids.index[2 * s + 1]]]);
      }
      data::AddBatch(batch, scores, 10, &part);
    }
  }
  const data::EvaluationResult result = data::Summarise(part);
  EXPECT_EQ(result.groups, 6'040);
  EXPECT_NEAR(result.hit_rate, 0.4538, 0.001);
  EXPECT_NEAR(result.ndcg, 0.2545, 0.001);
}

}  // namespace
}  // namespace tandem
