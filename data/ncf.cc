#include "data/ncf.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "data/cells.h"
#include "data/files.h"

namespace tandem::data {
namespace {

constexpr int kDefaultPerPositive = 4;

// Parses an id. Ids count from 0, and items_ = largest id + 1 must fit in 32 bits, too.
bool ParseId(absl::string_view text, uint32_t* id) {
  uint64_t wide = 0;
  if (!ParseUnsigned(text, &wide) || wide >= std::numeric_limits<uint32_t>::max()) return false;
  *id = static_cast<uint32_t>(wide);
  return true;
}

absl::Status BadId(absl::string_view role, absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("the ", role, " is ", Quote(text),
                   ", expected a whole number from 0 to 4294967294; hint: rows are user, item, "
                   "rating, separated by tabs"));
}

bool IsPair(absl::string_view line) { return !Trimmed(line).empty(); }

// Parses the user and the item of a row. `cells` receives their texts.
absl::StatusOr<Interaction> ParsePair(absl::string_view line, bool commas,
                                      absl::Span<absl::string_view> cells) {
  const bool tabs = !commas || line.find('\t') != absl::string_view::npos;
  if (SplitCells(line, tabs ? '\t' : ',', cells) < 2) {
    return absl::InvalidArgumentError(
        "the row has 1 column, expected at least 2 (user, item, then a rating that is not used, "
        "separated by tabs); hint: other layouts are read with format: DELIMITED");
  }
  Interaction pair;
  if (!ParseId(cells[kNcfUser], &pair.user)) return BadId("user", cells[kNcfUser]);
  if (!ParseId(cells[kNcfItem], &pair.item)) return BadId("item", cells[kNcfItem]);
  return pair;
}

class PairParser final : public RowParser {
 public:
  bool IsRow(absl::string_view line) const override { return IsPair(line); }
  absl::Status Parse(absl::string_view line, Row* row) override {
    TANDEM_ASSIGN_OR_RETURN(const Interaction pair,
                            ParsePair(line, /*commas=*/true, absl::MakeSpan(cells_)));
    row->keys = {pair.user, pair.item};
    return absl::OkStatus();
  }
  absl::Span<const absl::string_view> texts() const override { return cells_; }

 private:
  std::array<absl::string_view, 2> cells_;
};

}  // namespace

absl::Status ReadRatings(LineReader* lines, std::vector<Interaction>* rows, bool commas) {
  const size_t before = rows->size();
  for (absl::string_view line;;) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, lines->Next(&line));
    if (!more) break;
    if (!IsPair(line)) continue;
    absl::string_view cells[2];
    const absl::StatusOr<Interaction> row = ParsePair(line, commas, absl::MakeSpan(cells));
    if (!row.ok()) return lines->Error(row.status().message());
    rows->push_back(*row);
  }
  if (rows->size() > before) return absl::OkStatus();
  return lines->FileError("the file is empty, expected rows; hint: remove it from the job");
}

std::unique_ptr<RowParser> NewPairParser() { return std::make_unique<PairParser>(); }

namespace {

// Parses "(user,item)".
bool ParsePositive(absl::string_view text, Interaction* pair) {
  if (text.size() < 2 || text.front() != '(' || text.back() != ')') return false;
  text = text.substr(1, text.size() - 2);
  const size_t comma = text.find(',');
  return comma != absl::string_view::npos && ParseId(text.substr(0, comma), &pair->user) &&
         ParseId(text.substr(comma + 1), &pair->item);
}

absl::Status ParseGroup(const LineReader& lines, absl::string_view line, RankingGroups* groups) {
  size_t tab = std::min(line.find('\t'), line.size());
  Interaction positive;
  if (!ParsePositive(line.substr(0, tab), &positive)) {
    return lines.Error(absl::StrCat("the row begins with ", Quote(line.substr(0, tab)),
                                    ", expected (user,item); hint: see "
                                    "data.negatives.test_negatives"));
  }
  while (tab < line.size()) {
    const size_t begin = tab + 1;
    tab = std::min(line.find('\t', begin), line.size());
    uint32_t item = 0;
    if (!ParseId(line.substr(begin, tab - begin), &item)) {
      return lines.Error(BadId("candidate", line.substr(begin, tab - begin)).message());
    }
    if (item != positive.item) groups->items.push_back(item);
  }
  if (groups->items.size() == groups->offsets.back()) {
    return lines.Error(
        "the row has no item to rank against, expected (user,item) and then item "
        "ids; hint: they are separated by tabs");
  }
  groups->positives.push_back(positive);
  groups->offsets.push_back(groups->items.size());
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadRankingGroups(LineReader* lines, RankingGroups* groups) {
  const size_t before = groups->size();
  for (absl::string_view line;;) {
    TANDEM_ASSIGN_OR_RETURN(const bool more, lines->Next(&line));
    if (!more) break;
    if (Trimmed(line).empty()) continue;
    TANDEM_RETURN_IF_ERROR(ParseGroup(*lines, line, groups));
  }
  if (groups->size() > before) return absl::OkStatus();
  return lines->FileError("the file is empty, expected rows; hint: remove it from the job");
}

namespace {

uint64_t PairKey(uint32_t user, uint32_t item) { return uint64_t{user} << 32 | item; }

}  // namespace

absl::StatusOr<NcfEpochs> NcfEpochs::Create(std::vector<Interaction> positives, int per_positive,
                                            uint64_t seed) {
  TANDEM_CHECK(per_positive >= 0);
  NcfEpochs epochs;
  epochs.positives_ = std::move(positives);
  epochs.per_positive_ = static_cast<uint32_t>(per_positive);
  epochs.seed_ = HashCombine(seed, HashName("negatives"));
  if (epochs.rows() > std::numeric_limits<uint32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat("an epoch has ", epochs.rows(), " rows with its negatives, expected at most ",
                     std::numeric_limits<uint32_t>::max(), "; hint: set data.max_rows"));
  }
  for (const Interaction& row : epochs.positives_) {
    epochs.items_.push_back(row.item);
    epochs.known_.insert(PairKey(row.user, row.item));
  }
  std::sort(epochs.items_.begin(), epochs.items_.end());
  epochs.items_.erase(std::unique(epochs.items_.begin(), epochs.items_.end()), epochs.items_.end());
  if (per_positive > 0) TANDEM_RETURN_IF_ERROR(epochs.CheckUsers());
  return epochs;
}

absl::Status NcfEpochs::CheckUsers() const {
  absl::flat_hash_map<uint32_t, uint32_t> count;
  for (const uint64_t key : known_) ++count[static_cast<uint32_t>(key >> 32)];
  for (const auto& [user, known] : count) {
    if (known < items_.size()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("user ", user, " has all ", items_.size(),
                     " items of the training rows, so no negative can be drawn; hint: remove that "
                     "user's rows"));
  }
  return absl::OkStatus();
}

void NcfEpochs::StartEpoch(int64_t epoch) {
  if (epoch_ == epoch) return;  // another worker that shares the epochs has started it
  epoch_ = epoch;
  epoch_seed_ = HashCombine(seed_, static_cast<uint64_t>(epoch));
  order_.resize(rows());
  std::iota(order_.begin(), order_.end(), 0u);
  Random random(HashCombine(epoch_seed_, HashName("order")));
  for (size_t i = order_.size(); i > 1; --i) std::swap(order_[i - 1], order_[random.Uniform(i)]);
}

uint32_t NcfEpochs::DrawNegative(uint32_t user, uint64_t draw) const {
  // The loop ends, since CheckUsers has made sure that each user lacks an item.
  for (uint64_t attempt = 0;; ++attempt) {
    const uint64_t word = HashCombine(HashCombine(epoch_seed_, draw), attempt);
    const uint32_t item = items_[MulHigh(word, items_.size())];
    if (!known_.contains(PairKey(user, item))) return item;
  }
}

Interaction NcfEpochs::At(int64_t r, bool* positive) const {
  const uint32_t draw = order_[r];
  Interaction row = positives_[draw / (1 + per_positive_)];
  *positive = draw % (1 + per_positive_) == 0;
  if (!*positive) row.item = DrawNegative(row.user, draw);
  return row;
}

namespace {

// Fills rows of user and item, with hashed ids. All sources below use it.
class NcfRows {
 public:
  NcfRows() : user_("user"), item_("item") { row_.keys.resize(2); }
  const Row& Fill(const Interaction& pair, bool positive) {
    row_.label = positive ? 1.0f : 0.0f;
    row_.keys[kNcfUser] = user_.Key(uint64_t{pair.user});
    row_.keys[kNcfItem] = item_.Key(uint64_t{pair.item});
    return row_;
  }

 private:
  const FieldHash user_, item_;
  Row row_;
};

// A source of items: rows of an epoch, or groups of candidates. Items are dealt to the workers in
// turn. A batch takes whole items of this worker until it is full.
class NcfSource : public BatchSource {
 public:
  NcfSource(BatchBuilder builder, int64_t batch, int rank, int workers)
      : rank_(rank), workers_(workers), builder_(std::move(builder)), batch_(batch) {}

  absl::Status StartEpoch(int64_t /*epoch*/) override {
    next_ = rank_;
    return absl::OkStatus();
  }

  absl::Status Next(Batch* batch) override {
    builder_.Start(batch);
    for (; batch->samples < batch_ && next_ < items(); next_ += workers_) AppendItem(next_, batch);
    builder_.Finish(batch);
    return absl::OkStatus();
  }

  // Rows are skipped only in training, where an item is a row.
  absl::StatusOr<int64_t> Skip(int64_t rows) override {
    const int64_t left = next_ < items() ? (items() - next_ + workers_ - 1) / workers_ : 0;
    rows = std::min(rows, left);
    next_ += rows * workers_;
    return rows;
  }

 protected:
  virtual int64_t items() const = 0;
  virtual void AppendItem(int64_t item, Batch* batch) = 0;
  void Append(const Interaction& pair, bool positive, Batch* batch) {
    builder_.Append(rows_.Fill(pair, positive), batch);
  }

  const int rank_, workers_;

 private:
  BatchBuilder builder_;
  NcfRows rows_;
  const int64_t batch_;
  // The next item; before an epoch starts, none.
  int64_t next_ = std::numeric_limits<int64_t>::max();
};

class NcfTrainSource final : public NcfSource {
 public:
  NcfTrainSource(std::shared_ptr<NcfEpochs> epochs, BatchBuilder builder, int64_t batch, int rank,
                 int workers)
      : NcfSource(std::move(builder), batch, rank, workers), epochs_(std::move(epochs)) {}

  absl::Status StartEpoch(int64_t epoch) override {
    epoch_ = epoch;
    epochs_->StartEpoch(epoch);
    return NcfSource::StartEpoch(epoch);
  }
  int64_t EstimatedRows() const override {
    return (epochs_->rows() - rank_ + workers_ - 1) / workers_;
  }

 private:
  int64_t items() const override { return epochs_->rows(); }
  void AppendItem(int64_t row, Batch* batch) override {
    bool positive = false;
    TANDEM_CHECK(epochs_->epoch() == epoch_);  // no sharer has started another epoch
    const Interaction pair = epochs_->At(row, &positive);
    Append(pair, positive, batch);
  }

  const std::shared_ptr<NcfEpochs> epochs_;
  int64_t epoch_ = -1;
};

class NcfTestSource final : public NcfSource {
 public:
  NcfTestSource(std::shared_ptr<const RankingGroups> groups, BatchBuilder builder, int64_t batch,
                int rank, int workers)
      : NcfSource(std::move(builder), batch, rank, workers), groups_(std::move(groups)) {}

  int64_t EstimatedRows() const override {
    return static_cast<int64_t>(groups_->size() + groups_->items.size()) / workers_;
  }

 private:
  int64_t items() const override { return static_cast<int64_t>(groups_->size()); }
  void AppendItem(int64_t item, Batch* batch) override {
    const size_t g = static_cast<size_t>(item);
    Interaction pair = groups_->positives[g];
    Append(pair, true, batch);
    for (size_t i = groups_->offsets[g]; i < groups_->offsets[g + 1]; ++i) {
      pair.item = groups_->items[i];
      Append(pair, false, batch);
    }
    batch->groups.push_back(
        static_cast<uint32_t>(1 + groups_->offsets[g + 1] - groups_->offsets[g]));
  }

  const std::shared_ptr<const RankingGroups> groups_;
};

class NcfPairSource final : public NcfSource {
 public:
  NcfPairSource(std::vector<Interaction> pairs, BatchBuilder builder, int64_t batch, int rank,
                int workers)
      : NcfSource(std::move(builder), batch, rank, workers), pairs_(std::move(pairs)) {}

  int64_t EstimatedRows() const override { return items() / workers_; }

 private:
  int64_t items() const override { return static_cast<int64_t>(pairs_.size()); }
  void AppendItem(int64_t item, Batch* batch) override {
    Append(pairs_[static_cast<size_t>(item)], false, batch);
    batch->labels.back() = kNoLabel;
  }

  const std::vector<Interaction> pairs_;
};

// Reads the pairs of all files. A file that a wildcard found may be empty.
template <typename Names>
absl::StatusOr<std::vector<Interaction>> ReadRatingFiles(absl::string_view knob,
                                                         const Names& patterns,
                                                         bool commas = false) {
  const std::vector<std::string> names(patterns.begin(), patterns.end());
  TANDEM_ASSIGN_OR_RETURN(const auto files, ExpandAllFiles(knob, names));
  std::vector<Interaction> rows;
  for (const std::string& file : files) {
    std::error_code ignored;
    if (std::filesystem::file_size(file, ignored) == 0 && !IsNamed(names, file)) continue;
    TANDEM_ASSIGN_OR_RETURN(auto lines, OpenLines(file));
    TANDEM_RETURN_IF_ERROR(ReadRatings(lines.get(), &rows, commas));
  }
  return rows;
}

// The test rows must repeat the pairs of the candidate file. Otherwise the files belong to
// different splits.
absl::Status CheckTestRows(const Data& data, const RankingGroups& groups) {
  TANDEM_ASSIGN_OR_RETURN(auto rows, ReadRatingFiles("data.test", data.test()));
  const size_t common = std::min(rows.size(), groups.size());
  size_t g = 0;
  while (g < common && rows[g] == groups.positives[g]) ++g;
  if (g == rows.size() && g == groups.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "data.test has ", rows.size(), " rows and data.negatives.test_negatives ", groups.size(),
      g < common ? absl::StrCat(", and their row ", g + 1, " differs") : "",
      ", expected the same (user, item) pairs in the same order; hint: do both files belong to one "
      "split?"));
}

}  // namespace

absl::StatusOr<NcfEpochs> LoadNcfEpochs(const job::ResolvedJob& plan) {
  const Data& data = plan.job.data();
  TANDEM_ASSIGN_OR_RETURN(auto rows, ReadRatingFiles("data.train", data.train()));
  if (rows.empty()) return absl::InvalidArgumentError("data.train: there is no row in these files");
  const size_t limit = data.max_rows() > 0 ? data.max_rows() : rows.size();
  rows.resize(std::min(rows.size(), limit));
  const int asked = data.negatives().per_positive();
  if (asked < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("data.negatives.per_positive is ", asked, ", expected a positive number"));
  }
  const int per_positive = asked == 0 ? kDefaultPerPositive : asked;
  auto epochs = NcfEpochs::Create(std::move(rows), per_positive, plan.job.seed());
  if (epochs.ok()) return epochs;
  return absl::InvalidArgumentError(absl::StrCat(data.train(0), ": ", epochs.status().message()));
}

absl::StatusOr<RankingGroups> LoadRankingGroups(const job::ResolvedJob& plan) {
  const Data& data = plan.job.data();
  RankingGroups groups;
  if (data.negatives().test_negatives().empty()) {
    if (data.test().empty()) return groups;
    return absl::InvalidArgumentError(
        "data.test is set without data.negatives.test_negatives, expected a file of candidates to "
        "rank against; hint: ml-1m.test.negative");
  }
  TANDEM_ASSIGN_OR_RETURN(
      auto files, ExpandFiles("data.negatives.test_negatives", data.negatives().test_negatives()));
  for (const std::string& file : files) {
    TANDEM_ASSIGN_OR_RETURN(auto lines, OpenLines(file));
    TANDEM_RETURN_IF_ERROR(ReadRankingGroups(lines.get(), &groups));
  }
  if (!data.test().empty()) TANDEM_RETURN_IF_ERROR(CheckTestRows(data, groups));
  return groups;
}

absl::StatusOr<std::vector<Interaction>> LoadPairs(const Data& data) {
  return ReadRatingFiles("data.test", data.test(), /*commas=*/true);
}

std::unique_ptr<BatchSource> NewNcfPairSource(std::vector<Interaction> pairs, BatchBuilder builder,
                                              int64_t batch, int rank, int workers) {
  return std::make_unique<NcfPairSource>(std::move(pairs), std::move(builder), batch, rank,
                                         workers);
}

std::unique_ptr<BatchSource> NewNcfTrainSource(std::shared_ptr<NcfEpochs> epochs,
                                               BatchBuilder builder, int64_t batch, int rank,
                                               int workers) {
  return std::make_unique<NcfTrainSource>(std::move(epochs), std::move(builder), batch, rank,
                                          workers);
}

std::unique_ptr<BatchSource> NewNcfTestSource(std::shared_ptr<const RankingGroups> groups,
                                              BatchBuilder builder, int64_t batch, int rank,
                                              int workers) {
  return std::make_unique<NcfTestSource>(std::move(groups), std::move(builder), batch, rank,
                                         workers);
}

}  // namespace tandem::data
