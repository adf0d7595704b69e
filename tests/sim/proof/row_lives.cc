#include "tests/sim/proof/row_lives.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/sim/proof/ledger.h"
#include "tests/sim/proof/toy_model.h"

namespace tandem {

RowRules::RowRules(const job::TablePlan& table)
    : limited(table.has_row_rules()),
      draws(table.admission.kind() == Admission::PROBABILITY),
      chooses(table.eviction.kind() == Eviction::LRU ||
              table.eviction.kind() == Eviction::AT_BUDGET),
      zeros(table.admission.unadmitted() == Admission::ZERO) {
  if (table.admission.kind() == Admission::COUNT) {
    threshold = table.admission.threshold();
    within = table.admission.within_versions();
  }
  if (table.eviction.kind() == Eviction::AGE) max_age = table.eviction.versions();
}

bool RowLives::Add(int64_t number, int64_t version, const Part& part) {
  const bool first = folds_.empty() || folds_.back().number != number;
  if (first) {
    Fold fold;
    fold.number = number;
    fold.version = version;
    if (rules_->certain()) Live(&fold);
    folds_.push_back(std::move(fold));
  }
  folds_.back().parts.push_back(part);
  return first;
}

// Certain rules: what becomes of the row in a fold that is about to be added.
void RowLives::Live(Fold* fold) const {
  fold->born = folds_.size();
  fold->count = 1;
  if (!folds_.empty()) {
    const Fold& last = folds_.back();
    const int64_t age = fold->version - last.version;
    const bool too_old = rules_->max_age > 0 && age > rules_->max_age;
    if (last.born != kNoLife && !too_old) {
      fold->born = last.born;
      return;
    }
    const bool counts = last.born == kNoLife && (rules_->within == 0 || age <= rules_->within);
    if (counts) fold->count += last.count;
  }
  if (fold->count < rules_->threshold) fold->born = kNoLife;
}

void RowLives::Cut(const std::function<bool(const Part& part)>& stays) {
  const auto first = std::find_if(folds_.begin(), folds_.end(), [&](const Fold& fold) {
    return !std::all_of(fold.parts.begin(), fold.parts.end(), stays);
  });
  folds_.erase(first, folds_.end());
}

size_t RowLives::AtLeast(absl::Span<const int64_t> below) const {
  size_t least = 0;
  for (size_t i = 0; i < folds_.size(); ++i) {
    for (const Part& part : folds_[i].parts) {
      if (part.step < below[static_cast<size_t>(part.rank)]) least = i + 1;
    }
  }
  return least;
}

size_t RowLives::AtMost(absl::Span<const int64_t> below) const {
  for (size_t i = 0; i < folds_.size(); ++i) {
    for (const Part& part : folds_[i].parts) {
      if (part.step >= below[static_cast<size_t>(part.rank)]) return i;
    }
  }
  return folds_.size();
}

size_t RowLives::Before(int64_t version) const {
  size_t count = 0;
  while (count < folds_.size() && folds_[count].version < version) ++count;
  return count;
}

// ---- what may be read -------------------------------------------------------------------------

absl::Status RowLives::Check(absl::Span<const float> row, size_t from, size_t to, Moment moment,
                             Want want) const {
  for (size_t seen = from; seen <= to; ++seen) {
    if (MaySee(row, seen, moment, want)) return absl::OkStatus();
  }
  std::string folds;
  for (const Fold& fold : folds_) {
    absl::StrAppend(&folds, "\n  version ", fold.version, ":");
    for (const Part& part : fold.parts) {
      absl::StrAppend(&folds, " worker ", part.rank, " step ", part.step, " weight ", part.weight,
                      " ticket ", part.ticket);
    }
    if (!rules_->certain()) continue;
    absl::StrAppend(&folds, fold.born == kNoLife ? ", refused" : "",
                    fold.born != kNoLife && &fold == &folds_[fold.born] ? ", a new row" : "");
  }
  return absl::InternalError(absl::StrCat(
      want == Want::kAbsent ? "is absent" : absl::StrCat("is [", absl::StrJoin(row, " "), "]"),
      ", which is no value of one life after ", from, " to ", to,
      " of its folds, at a version from ", moment.least, " to ", moment.most, folds));
}

// A row is there after `seen` folds from the last of them, at version L, until the next one, at
// version N. A fold at version v is seen from version v + 1 on, or from v on if it is one of those
// that end a run (FinishDelayed).
bool RowLives::MaySee(absl::Span<const float> row, size_t seen, Moment moment, Want want) const {
  if (want != Want::kRow && IsAbsent(row) && MaySeeAbsent(seen, moment)) return true;
  if (want == Want::kAbsent || seen == 0) return false;
  const Fold& last = folds_[seen - 1];
  const int64_t least = std::max(moment.least, last.version);
  if (seen < folds_.size() && folds_[seen].version < least) return false;
  if (moment.most < last.version) return false;
  const int64_t max_age = rules_->max_age;
  if (max_age > 0 && least - last.version > max_age) return false;
  if (rules_->certain()) return last.born != kNoLife && IsLife(row, last.born, seen);
  for (size_t begin = seen; begin-- > 0;) {
    const int64_t age = begin + 1 < seen ? folds_[begin + 1].version - folds_[begin].version : 0;
    if (max_age > 0 && age > max_age) return false;
    if (MayBegin(begin) && IsLife(row, begin, seen)) return true;
  }
  return false;
}

bool RowLives::MaySeeAbsent(size_t seen, Moment moment) const {
  const int64_t next =
      seen < folds_.size() ? folds_[seen].version : std::numeric_limits<int64_t>::max();
  if (next < moment.least) return false;
  if (seen == 0) return true;
  const Fold& last = folds_[seen - 1];
  if (moment.most < last.version) return false;
  if (!rules_->certain() || last.born == kNoLife) return true;
  return rules_->max_age > 0 && std::min(moment.most, next) - last.version > rules_->max_age;
}

// Whether a row may have begun with this fold, if the rules are not certain.
bool RowLives::MayBegin(size_t fold) const {
  const auto before = static_cast<size_t>(rules_->threshold - 1);
  if (fold < before) return false;
  for (size_t i = fold - before; i < fold; ++i) {
    const int64_t age = folds_[i + 1].version - folds_[i].version;
    if (rules_->within > 0 && age > rules_->within) return false;
  }
  return true;
}

bool RowLives::IsAbsent(absl::Span<const float> row) const {
  const float value = rules_->zeros ? 0.0f : ToyModel::kFirstCount;
  return std::all_of(row.begin(), row.end(), [value](float x) { return x == value; });
}

bool RowLives::IsLife(absl::Span<const float> row, size_t begin, size_t end) const {
  std::vector<double> weights(static_cast<size_t>(workers_));
  double tickets = 0;
  for (size_t i = begin; i < end; ++i) {
    for (const Part& part : folds_[i].parts) {
      weights[static_cast<size_t>(part.rank)] += part.weight;
      tickets += part.weight * static_cast<double>(part.ticket);
    }
  }
  const auto taken = [row](size_t element) {
    return static_cast<double>(ToyModel::kFirstCount - row[element]);
  };
  for (size_t rank = 0; rank < weights.size(); ++rank) {
    if (std::abs(taken(rank) - weights[rank]) > Ledger::kTolerance) return false;
  }
  return std::abs(taken(weights.size()) - tickets) <= ToyModel::kTicketTolerance;
}

}  // namespace tandem
