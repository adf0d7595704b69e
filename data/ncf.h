// The MovieLens split of "Neural Collaborative Filtering" (He et al., WWW 2017): implicit feedback
// with fresh negatives each epoch, and one held-out item per user ranked against given candidates.
#ifndef TANDEM_DATA_NCF_H_
#define TANDEM_DATA_NCF_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "data/batch_builder.h"
#include "data/batch_source.h"
#include "data/line_reader.h"
#include "data/row.h"

namespace tandem::data {

// Field numbers in Row::keys.
inline constexpr int kNcfUser = 0, kNcfItem = 1;

struct Interaction {
  uint32_t user = 0;
  uint32_t item = 0;
  friend bool operator==(const Interaction&, const Interaction&) = default;
};

// Appends the rows of "user item [anything]", tab separated. `commas`: or, in a line without a tab,
// separated by commas. A line of blanks and tabs is no row.
absl::Status ReadRatings(LineReader* lines, std::vector<Interaction>* rows, bool commas = false);
// Reads the same rows, with `commas`: texts() are the user and the item as they are written.
std::unique_ptr<RowParser> NewPairParser();

// Ranking groups: the positive, then items [offsets[g], offsets[g+1]) to rank it against.
struct RankingGroups {
  std::vector<Interaction> positives;
  std::vector<size_t> offsets = {0};
  std::vector<uint32_t> items;
  size_t size() const { return positives.size(); }
};

// Appends the groups of "(user,item) item item ...", tab separated. A candidate that is the
// positive itself is left out.
absl::Status ReadRankingGroups(LineReader* lines, RankingGroups* groups);

// Training rows of one epoch: each positive and `per_positive` negatives drawn for it, uniform over
// the items that are not in that user's rows, all shuffled. Row r of an epoch is the same whatever
// the number of workers.
class NcfEpochs {
 public:
  // INVALID_ARGUMENT if a user has all items (there is no negative to draw), or the epoch is too
  // long for 32-bit row numbers.
  static absl::StatusOr<NcfEpochs> Create(std::vector<Interaction> positives, int per_positive,
                                          uint64_t seed);

  void StartEpoch(int64_t epoch);
  int64_t epoch() const { return epoch_; }  // that was started last; -1: none
  int64_t rows() const { return static_cast<int64_t>(positives_.size()) * (1 + per_positive_); }
  // Row `r` of the epoch, in shuffled order. Requires 0 <= r < rows() and a started epoch.
  Interaction At(int64_t r, bool* positive) const;
  uint32_t items() const { return items_; }  // item ids are below

 private:
  NcfEpochs() = default;
  absl::Status CheckUsers() const;
  uint32_t DrawNegative(uint32_t user, uint64_t draw) const;

  std::vector<Interaction> positives_;
  absl::flat_hash_set<uint64_t> known_;  // user << 32 | item
  uint32_t per_positive_ = 0;
  uint32_t items_ = 0;
  uint64_t seed_ = 0;
  int64_t epoch_ = -1;
  uint64_t epoch_seed_ = 0;
  std::vector<uint32_t> order_;  // of the epoch: row -> positive * (1 + per_positive) + draw
};

// The sources of a job with format NCF. Test groups are dealt to workers one by one.
absl::StatusOr<NcfEpochs> LoadNcfEpochs(const job::JobPlan& plan);
absl::StatusOr<RankingGroups> LoadRankingGroups(const job::JobPlan& plan);
// With data.score_only the test rows are pairs, without labels and without others to rank them against. Of
// all files in their order.
absl::StatusOr<std::vector<Interaction>> LoadPairs(const Data& data);
// Pairs are dealt to workers one by one.
std::unique_ptr<BatchSource> NewNcfPairSource(std::vector<Interaction> pairs, BatchBuilder builder,
                                              int64_t batch, int rank, int workers);
// Sources may share what they read, as long as all of them are in the same epoch.
std::unique_ptr<BatchSource> NewNcfTrainSource(std::shared_ptr<NcfEpochs> epochs,
                                               BatchBuilder builder, int64_t batch, int rank,
                                               int workers);
std::unique_ptr<BatchSource> NewNcfTestSource(std::shared_ptr<const RankingGroups> groups,
                                              BatchBuilder builder, int64_t batch, int rank,
                                              int workers);

}  // namespace tandem::data

#endif  // TANDEM_DATA_NCF_H_
