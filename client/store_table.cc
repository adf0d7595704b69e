#include "client/store_table.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"

namespace tandem::client {
namespace {

constexpr size_t kRequestBytes = size_t{1} << 20;  // bytes of rows in a request
constexpr size_t kAtOnce = 4;                      // requests of one call in flight

}  // namespace

absl::StatusOr<StoreTable> StoreTable::Open(Session* session, absl::string_view name,
                                            absl::Duration within) {
  for (const job::TablePlan& table : session->plan().tables) {
    if (table.name != name) continue;
    if (table.store) return StoreTable(session, &table, within);
    return absl::FailedPreconditionError(
        absl::StrCat("table '", name,
                     "' is trained by the job; programs write only tables with kind: KEY_VALUE"));
  }
  return absl::NotFoundError(absl::StrCat("the job has no table '", name, "'"));
}

// Splits a call into requests of some keys each, a few of them in flight at a time. Requests that
// write the same row keep their order.
absl::Status StoreTable::Run(StoreRequest all) {
  all.table = plan_->id;
  const size_t width = row_floats();
  const size_t values = HasStoreValues(all.action) ? width : 0;
  const size_t rows = all.action == StoreAction::kRead ? width : 0;
  if (all.values.size() != all.keys.size() * values || all.rows.size() != all.keys.size() * rows ||
      (!all.found.empty() && all.found.size() != all.keys.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("table ", plan_->name, ": ", all.keys.size(), " keys with ",
                     std::max(all.values.size(), all.rows.size()), " floats of rows and ",
                     all.found.size(), " marks; expected ", all.keys.size() * width,
                     " floats, and no marks or ", all.keys.size()));
  }
  const size_t some = std::clamp<size_t>(kRequestBytes / (width * sizeof(float)), 1, kMaxStoreRows);
  const absl::Time deadline = MonotonicNow() + within_;
  std::deque<Future> under_way;
  absl::Status status;
  for (size_t first = 0; first < all.keys.size() && status.ok(); first += some) {
    StoreRequest part = all;
    part.keys = all.keys.subspan(first, some);
    const size_t count = part.keys.size();
    if (values > 0) part.values = all.values.subspan(first * width, count * width);
    if (rows > 0) part.rows = all.rows.subspan(first * width, count * width);
    if (!all.found.empty()) part.found = all.found.subspan(first, count);
    if (under_way.size() >= kAtOnce) {
      status = under_way.front().status();
      under_way.pop_front();
    }
    if (status.ok()) {
      under_way.push_back(session_->client().Store(part, deadline - MonotonicNow()));
    }
  }
  // Wait also after an error: a request in flight uses the caller's arrays until it ends.
  for (const Future& future : under_way) {
    if (!status.ok()) future.Cancel();
    if (const absl::Status& end = future.status(); status.ok()) status = end;
  }
  return status;
}

absl::Status StoreTable::Read(absl::Span<const uint64_t> keys, absl::Span<float> rows,
                              absl::Span<uint8_t> found) {
  StoreRequest request;
  request.action = StoreAction::kRead;
  request.keys = keys;
  request.rows = rows;
  request.found = found;
  return Run(request);
}

absl::Status StoreTable::Assign(absl::Span<const uint64_t> keys, absl::Span<const float> rows) {
  StoreRequest request;
  request.action = StoreAction::kAssign;
  request.keys = keys;
  request.values = rows;
  return Run(request);
}

absl::Status StoreTable::Insert(absl::Span<const uint64_t> keys, absl::Span<const float> rows,
                                absl::Span<uint8_t> inserted) {
  StoreRequest request;
  request.action = StoreAction::kInsert;
  request.keys = keys;
  request.values = rows;
  request.found = inserted;
  return Run(request);
}

absl::Status StoreTable::Erase(absl::Span<const uint64_t> keys, absl::Span<uint8_t> erased) {
  StoreRequest request;
  request.action = StoreAction::kErase;
  request.keys = keys;
  request.found = erased;
  return Run(request);
}

absl::StatusOr<bool> StoreTable::Scan(Cursor* cursor, size_t wanted, std::vector<uint64_t>* keys,
                                      std::vector<float>* rows) {
  keys->clear();
  rows->clear();
  wanted = std::max<size_t>(wanted, 1);
  const absl::Time deadline = MonotonicNow() + within_;
  while (keys->size() < wanted) {
    ScanPage page;
    StoreRequest request;
    request.table = plan_->id;
    request.action = StoreAction::kScan;
    request.range = cursor->range;
    request.cursor = cursor->at;
    request.wanted = wanted - keys->size();
    request.page = &page;
    TANDEM_RETURN_IF_ERROR(session_->client().Store(request, deadline - MonotonicNow()).status());
    if (cursor->range >= page.ranges) break;
    keys->insert(keys->end(), page.keys.begin(), page.keys.end());
    rows->insert(rows->end(), page.rows.begin(), page.rows.end());
    cursor->at = page.next;
    if (page.next == 0) ++cursor->range;
  }
  return !keys->empty();
}

}  // namespace tandem::client
