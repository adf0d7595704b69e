#include "sim/ledger.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace tandem {
namespace {

// A mean over a sum of n that is no power of two rounds; far less than this in a test's length.
constexpr double kTolerance = 0.05;

}  // namespace

void Ledger::Record(uint32_t table, uint64_t key, int rank, int64_t step) {
  std::vector<Updates>& workers = rows_[{table, key}];
  workers.resize(static_cast<size_t>(model_.workers()));
  Updates& updates = workers[static_cast<size_t>(rank)];
  TANDEM_CHECK(updates.steps.empty() || updates.steps.back() < step);
  const int64_t before = updates.tickets.empty() ? 0 : updates.tickets.back();
  updates.steps.push_back(step);
  updates.tickets.push_back(before + model_.Ticket(rank, step, key));
}

const Ledger::Updates* Ledger::Find(uint32_t table, uint64_t key, int rank) const {
  const auto it = rows_.find({table, key});
  return it == rows_.end() ? nullptr : &it->second[static_cast<size_t>(rank)];
}

absl::StatusOr<std::vector<int64_t>> Ledger::Explain(uint32_t table, uint64_t key,
                                                     absl::Span<const float> row) const {
  std::vector<int64_t> counts;
  int64_t want_tickets = 0;
  for (int rank = 0; rank < model_.workers(); ++rank) {
    const double taken = ToyModel::kFirstCount - row[static_cast<size_t>(rank)];
    const int64_t count = std::llround(taken);
    const Updates* const updates = Find(table, key, rank);
    const int64_t known = updates == nullptr ? 0 : static_cast<int64_t>(updates->steps.size());
    if (std::abs(taken - static_cast<double>(count)) > kTolerance || count < 0 || count > known) {
      return absl::InternalError(absl::StrCat("table ", table, " key ", key, ": holds ", taken,
                                              " updates of worker ", rank, ", which computed ",
                                              known));
    }
    counts.push_back(count);
    if (count > 0) want_tickets += updates->tickets[static_cast<size_t>(count) - 1];
  }
  const double tickets = ToyModel::kFirstCount - row[static_cast<size_t>(model_.ticket_element())];
  if (std::abs(tickets - static_cast<double>(want_tickets)) > kTolerance) {
    return absl::InternalError(absl::StrCat("table ", table, " key ", key, ": tickets add up to ",
                                            tickets, ", want ", want_tickets,
                                            ": an update is lost and another doubled, or they came "
                                            "out of order"));
  }
  return counts;
}

int64_t Ledger::CountBefore(uint32_t table, uint64_t key, int rank, int64_t step) const {
  const Updates* const updates = Find(table, key, rank);
  if (updates == nullptr) return 0;
  return std::lower_bound(updates->steps.begin(), updates->steps.end(), step) -
         updates->steps.begin();
}

std::vector<std::pair<uint32_t, uint64_t>> Ledger::Rows() const {
  std::vector<std::pair<uint32_t, uint64_t>> rows;
  for (const auto& [row, updates] : rows_) rows.push_back(row);
  return rows;
}

}  // namespace tandem
