// Reads the MovieLens split of "Neural Collaborative Filtering" (He et al., WWW 2017): implicit
// feedback with new negatives in each epoch, and one held-out item per user, which is ranked
// against given candidates.
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

// Appends the rows of "user item [anything]", separated by tabs. `commas`: a line without a tab may
// be separated by commas. A line of blanks and tabs is no row.
absl::Status ReadRatings(LineReader* lines, std::vector<Interaction>* rows, bool commas = false);
// A parser of the same rows, with `commas`. Its texts() are the user and the item as they are
// written.
std::unique_ptr<RowParser> NewPairParser();

// Groups for ranking. Group g is a positive and the items [offsets[g], offsets[g+1]) that it is
// ranked against.
struct RankingGroups {
  std::vector<Interaction> positives;
  std::vector<size_t> offsets = {0};
  std::vector<uint32_t> items;
  size_t size() const { return positives.size(); }
};

// Appends the groups of "(user,item) item item ...", separated by tabs. A candidate that equals the
// positive is left out.
absl::Status ReadRankingGroups(LineReader* lines, RankingGroups* groups);

// The training rows of one epoch: each positive and `per_positive` negatives for it, all shuffled.
// Negatives are uniform over the items of the training rows, except for the items of the user's own
// rows. Row r of an epoch is the same for any number of workers.
class NcfEpochs {
 public:
  // INVALID_ARGUMENT if a user has all items, so that no negative can be drawn, or if the epoch is
  // too long for 32-bit row numbers.
  static absl::StatusOr<NcfEpochs> Create(std::vector<Interaction> positives, int per_positive,
                                          uint64_t seed);

  void StartEpoch(int64_t epoch);
  int64_t epoch() const { return epoch_; }  // the epoch started last; -1: none
  int64_t rows() const { return static_cast<int64_t>(positives_.size()) * (1 + per_positive_); }
  // Row `r` of the started epoch, in shuffled order. Requires 0 <= r < rows().
  Interaction At(int64_t r, bool* positive) const;
  size_t items() const { return items_.size(); }  // different ones

 private:
  NcfEpochs() = default;
  absl::Status CheckUsers() const;
  uint32_t DrawNegative(uint32_t user, uint64_t draw) const;

  std::vector<Interaction> positives_;
  absl::flat_hash_set<uint64_t> known_;  // user << 32 | item
  std::vector<uint32_t> items_;          // each once, ascending
  uint32_t per_positive_ = 0;
  uint64_t seed_ = 0;
  int64_t epoch_ = -1;
  uint64_t epoch_seed_ = 0;
  std::vector<uint32_t> order_;  // order of the epoch: row -> positive * (1 + per_positive) + draw
};

// Load what the sources of a job with format NCF read.
absl::StatusOr<NcfEpochs> LoadNcfEpochs(const job::ResolvedJob& plan);
absl::StatusOr<RankingGroups> LoadRankingGroups(const job::ResolvedJob& plan);
// The test rows of a job with data.score_only: pairs without labels, which nothing is ranked
// against. Reads all files, in their order.
absl::StatusOr<std::vector<Interaction>> LoadPairs(const Data& data);
// Pairs are dealt to workers one by one.
std::unique_ptr<BatchSource> NewNcfPairSource(std::vector<Interaction> pairs, BatchBuilder builder,
                                              int64_t batch, int rank, int workers);
// Test groups are dealt to workers one by one. Sources may share epochs and groups as long as all
// of them are in the same epoch.
std::unique_ptr<BatchSource> NewNcfTrainSource(std::shared_ptr<NcfEpochs> epochs,
                                               BatchBuilder builder, int64_t batch, int rank,
                                               int workers);
std::unique_ptr<BatchSource> NewNcfTestSource(std::shared_ptr<const RankingGroups> groups,
                                              BatchBuilder builder, int64_t batch, int rank,
                                              int workers);

}  // namespace tandem::data

#endif  // TANDEM_DATA_NCF_H_
