#include "tests/sim/proof/ledger.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem {

Ledger::Ledger(const ToyModel& model) : model_(model), ids_(model.plan().tables.size()) {
  for (const job::TablePlan& table : model.plan().tables) rules_.emplace_back(table);
  for (const RowRules& rules : rules_) untouched_.emplace_back(&rules, model.workers(), 0);
}

const RowLives& Ledger::Lives(uint32_t table, uint64_t key) const {
  const auto lives = lives_.find({table, key});
  return lives == lives_.end() ? untouched_[table] : lives->second;
}

void Ledger::Record(uint32_t table, uint64_t key, uint32_t range, int rank, int64_t step,
                    double norm) {
  std::vector<Updates>& workers = rows_[{table, key}];
  workers.resize(static_cast<size_t>(model_.workers()));
  Updates& updates = workers[static_cast<size_t>(rank)];
  TANDEM_CHECK(updates.empty() || updates.back().step < step);
  RowLives* lives = nullptr;
  if (table < rules_.size() && rules_[table].limited) {
    const auto of_row = lives_.try_emplace({table, key}, &rules_[table], model_.workers(), range);
    lives = &of_row.first->second;
  }
  updates.push_back({step, model_.Ticket(rank, step, key), table, norm, lives});
  open_[{range, rank, step}].push_back(&updates);
}

bool Ledger::Has(uint32_t table, uint64_t key, int rank, int64_t step) const {
  const Updates* const updates = Find(table, key, rank);
  return updates != nullptr && std::any_of(updates->begin(), updates->end(),
                                           [step](const One& one) { return one.step == step; });
}

absl::Status Ledger::Settle(uint32_t range, int rank, int64_t step, double share,
                            const Fold& fold) {
  const auto it = open_.find({range, rank, step});
  if (it == open_.end()) {
    return absl::InternalError(absl::StrCat("the update of worker ", rank, " for step ", step,
                                            " is settled in range ", range,
                                            ", but was before, or was never computed"));
  }
  for (Updates* const updates : it->second) {
    const auto one = std::lower_bound(updates->begin(), updates->end(), step,
                                      [](const One& a, int64_t b) { return a.step < b; });
    TANDEM_CHECK(one != updates->end() && one->step == step && one->weight < 0);
    one->weight = one->norm * share;
    if (one->lives == nullptr || share == 0) continue;
    if (!one->lives->Add(fold.number, fold.version, {rank, step, one->ticket, one->weight})) {
      continue;
    }
    Count(*one->lives, one->lives->size() - 1, one->table, &ids_[one->table]);
  }
  open_.erase(it);
  return absl::OkStatus();
}

void Ledger::Count(const RowLives& lives, size_t fold, uint32_t table, Ids* ids) const {
  ++ids->all;
  if (!rules_[table].certain()) return;
  ids->admitted += lives.Creates(fold) ? 1 : 0;
  ids->refused += lives.IsRefused(fold) ? 1 : 0;
}

Ledger::Ids Ledger::IdsOfRun(uint32_t table) const {
  Ids ids;
  for (const auto& [row, lives] : lives_) {
    for (size_t fold = 0; row.first == table && fold < lives.size(); ++fold) {
      Count(lives, fold, table, &ids);
    }
  }
  return ids;
}

absl::Status Ledger::ReturnTo(absl::Span<const int64_t> steps, const std::set<Slice>& held,
                              const RangeOf& range_of) {
  absl::Status lost;
  for (const Slice& slice : held) {
    if (slice.step < steps[static_cast<size_t>(slice.rank)]) continue;
    lost =
        absl::InternalError(absl::StrCat("the checkpoint holds the update of worker ", slice.rank,
                                         " for step ", slice.step, ", which the worker repeats"));
  }
  open_.clear();
  std::fill(ids_.begin(), ids_.end(), Ids());
  for (auto& [row, lives] : lives_) {
    const uint32_t range = range_of(row.first, row.second);
    lives.set_range(range);
    lives.Cut([&](const RowLives::Part& part) {
      return part.step < steps[static_cast<size_t>(part.rank)] &&
             held.count({range, part.rank, part.step}) == 0;
    });
  }
  for (auto& [row, workers] : rows_) {
    const uint32_t range = range_of(row.first, row.second);
    for (size_t rank = 0; rank < workers.size(); ++rank) {
      Updates& updates = workers[rank];
      while (!updates.empty() && updates.back().step >= steps[rank]) updates.pop_back();
      for (One& one : updates) {
        const Slice slice = {range, static_cast<int>(rank), one.step};
        if (held.count(slice) > 0) {
          one.weight = -1;
          open_[slice].push_back(&updates);
        } else if (one.weight < 0) {
          lost = absl::InternalError(absl::StrCat("the checkpoint has lost the update of worker ",
                                                  rank, " for step ", one.step, " of table ",
                                                  row.first, " key ", row.second));
        }
      }
    }
  }
  return lost;
}

const Ledger::Updates* Ledger::Find(uint32_t table, uint64_t key, int rank) const {
  const auto it = rows_.find({table, key});
  return it == rows_.end() ? nullptr : &it->second[static_cast<size_t>(rank)];
}

absl::StatusOr<std::vector<double>> Ledger::Explain(uint32_t table, uint64_t key,
                                                    absl::Span<const float> row) const {
  std::vector<double> taken;
  // `unsure`: the tickets of updates with so small a weight that the counts do not show whether the
  // row has them. RINGLEADER gives such weights.
  double want_tickets = 0, unsure = 0;
  for (int rank = 0; rank < model_.workers(); ++rank) {
    taken.push_back(ToyModel::kFirstCount - row[static_cast<size_t>(rank)]);
    const Updates* const updates = Find(table, key, rank);
    double weight = 0, tickets = 0;
    for (size_t i = 0; updates != nullptr && i < updates->size(); ++i) {
      const One& one = (*updates)[i];
      if (one.weight < 0 || weight + one.weight > taken.back() + kTolerance) break;
      const bool is_sure = weight < taken.back() - kTolerance;
      (is_sure ? tickets : unsure) += one.weight * static_cast<double>(one.ticket);
      weight += one.weight;
    }
    if (std::abs(weight - taken.back()) > kTolerance) {
      return absl::InternalError(absl::StrCat(
          "table ", table, " key ", key, ": holds ", taken.back(), " of worker ", rank,
          ", which its ", updates == nullptr ? 0 : updates->size(), " updates do not add up to"));
    }
    want_tickets += tickets;
  }
  const double tickets = ToyModel::kFirstCount - row[static_cast<size_t>(model_.ticket_element())];
  if (tickets < want_tickets - ToyModel::kTicketTolerance ||
      tickets > want_tickets + unsure + ToyModel::kTicketTolerance) {
    return absl::InternalError(absl::StrCat("table ", table, " key ", key, ": tickets add up to ",
                                            tickets, ", expected ", want_tickets,
                                            ": an update is lost and another doubled, or they came "
                                            "out of order"));
  }
  return taken;
}

double Ledger::WeightBefore(uint32_t table, uint64_t key, int rank, int64_t step) const {
  const Updates* const updates = Find(table, key, rank);
  double weight = 0;
  for (size_t i = 0; updates != nullptr && i < updates->size(); ++i) {
    const One& one = (*updates)[i];
    if (one.step < step && one.weight > 0) weight += one.weight;
  }
  return weight;
}

bool Ledger::AllSettled(uint32_t table, uint64_t key, int rank) const {
  const Updates* const updates = Find(table, key, rank);
  return updates == nullptr || std::all_of(updates->begin(), updates->end(),
                                           [](const One& one) { return one.weight >= 0; });
}

std::vector<std::pair<uint32_t, uint64_t>> Ledger::Rows() const {
  std::vector<std::pair<uint32_t, uint64_t>> rows;
  for (const auto& [row, updates] : rows_) rows.push_back(row);
  return rows;
}

}  // namespace tandem
