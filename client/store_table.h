// StoreTable is a KEY_VALUE table of a running job: programs read, assign, insert and erase rows.
//
//   TANDEM_ASSIGN_OR_RETURN(const auto session, Session::Open("tcp://10.0.0.1:41231"));
//   TANDEM_ASSIGN_OR_RETURN(StoreTable items, StoreTable::Open(session.get(), "items"));
//   TANDEM_RETURN_IF_ERROR(items.Assign(keys, rows));
//
// A row is dim + extra_floats floats, whose meaning the program chooses. A call takes any number of
// keys, which travel some thousands at a time. A row is changed completely or not at all. Each call
// waits until all of its rows are done; from then on everybody sees what it has written. When
// several programs write a row, the write that arrives last wins; each write counts once. After an
// error some rows of a call may have been written and others not; the call may be repeated.
//
// Thread safety: any thread; two calls at the same time may take effect in either order.
#ifndef TANDEM_CLIENT_STORE_TABLE_H_
#define TANDEM_CLIENT_STORE_TABLE_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "client/session.h"

namespace tandem::client {

class StoreTable {
 public:
  // `session` must outlive the table. NOT_FOUND: the job has no table of this name.
  // FAILED_PRECONDITION: the table's kind is not KEY_VALUE. `within`: the longest wait of a call.
  static absl::StatusOr<StoreTable> Open(Session* session, absl::string_view name,
                                         absl::Duration within = absl::Seconds(60));

  int dim() const { return plan_->dim; }
  int extra_floats() const { return plan_->extra_floats; }
  size_t row_floats() const { return static_cast<size_t>(plan_->dim + plan_->extra_floats); }

  // rows: [keys, row_floats]; rows of absent keys stay as they are.
  // found: [keys], 1 or 0; may be empty.
  absl::Status Read(absl::Span<const uint64_t> keys, absl::Span<float> rows,
                    absl::Span<uint8_t> found);
  // rows: [keys, row_floats]. If a key repeats, its last row counts.
  absl::Status Assign(absl::Span<const uint64_t> keys, absl::Span<const float> rows);
  // Like Assign, but only for absent keys. If a key repeats, its first row counts. inserted:
  // [keys], 1 or 0; may be empty.
  absl::Status Insert(absl::Span<const uint64_t> keys, absl::Span<const float> rows,
                      absl::Span<uint8_t> inserted);
  // erased: [keys], 1 or 0; may be empty.
  absl::Status Erase(absl::Span<const uint64_t> keys, absl::Span<uint8_t> erased);

  // The position of a scan. A value-initialised cursor is at the beginning.
  struct Cursor {
    uint64_t range = 0;  // number of a range of the table
    uint64_t at = 0;     // position in the range
  };
  // Replaces *keys and *rows by about `wanted` rows (at least one, unless the end is reached) and
  // moves the cursor. Returns false if there are no more rows. A row that exists during the whole
  // scan comes exactly once, in a state that it had during the call that returned it. A row that is
  // created or erased meanwhile comes once or not at all.
  absl::StatusOr<bool> Scan(Cursor* cursor, size_t wanted, std::vector<uint64_t>* keys,
                            std::vector<float>* rows);

 private:
  StoreTable(Session* session, const job::TablePlan* plan, absl::Duration within)
      : session_(session), plan_(plan), within_(within) {}
  absl::Status Run(StoreRequest all);

  Session* session_;
  const job::TablePlan* plan_;
  absl::Duration within_;
};

}  // namespace tandem::client

#endif  // TANDEM_CLIENT_STORE_TABLE_H_
