// A STORE table of a running job: rows that programs read, assign, insert and erase whole.
//
//   TANDEM_ASSIGN_OR_RETURN(const auto session, Session::Open("tcp://10.0.0.1:41231"));
//   TANDEM_ASSIGN_OR_RETURN(StoreTable items, StoreTable::Open(session.get(), "items"));
//   TANDEM_RETURN_IF_ERROR(items.Assign(keys, rows));
//
// A row is dim + state_floats floats of the program's choice. Calls take any number of keys; they
// travel some thousands at a time, and a row is changed or not, never in part. Each call waits until
// all of its rows are done. What it has written is then seen by everybody. When several programs
// write a row, the write that arrives last wins; each write counts once. After an error some rows of
// a call may have been written and others not: the call may be made again.
//
// Thread safety: any thread; two calls at the same time may come in any order.
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
  // `session` outlives the table. NOT_FOUND: the job has none of this name; FAILED_PRECONDITION: it
  // is not of policy STORE. `within`: how long a call may wait in total.
  static absl::StatusOr<StoreTable> Open(Session* session, absl::string_view name,
                                         absl::Duration within = absl::Seconds(60));

  int dim() const { return plan_->dim; }
  int state_floats() const { return plan_->state_floats; }
  size_t row_floats() const { return static_cast<size_t>(plan_->dim + plan_->state_floats); }

  // rows: [keys, row_floats]; those of absent keys stay as they are. found: [keys], 1 or 0; or empty.
  absl::Status Read(absl::Span<const uint64_t> keys, absl::Span<float> rows,
                    absl::Span<uint8_t> found);
  // rows: [keys, row_floats]. Of a key that repeats the last row counts.
  absl::Status Assign(absl::Span<const uint64_t> keys, absl::Span<const float> rows);
  // The same for keys that are absent; of one that repeats the first row counts. inserted: [keys],
  // or empty.
  absl::Status Insert(absl::Span<const uint64_t> keys, absl::Span<const float> rows,
                      absl::Span<uint8_t> inserted);
  // erased: [keys], or empty.
  absl::Status Erase(absl::Span<const uint64_t> keys, absl::Span<uint8_t> erased);

  // Where a scan stands; value-initialised: at the beginning.
  struct Cursor {
    uint64_t range = 0;  // of the table
    uint64_t at = 0;     // in the range
  };
  // Replaces *keys and *rows by about `wanted` rows (at least one, unless the end is reached) and
  // moves the cursor; false: there are no more. A row that is there from the first call of a scan to
  // its last comes once, in a state that it had at the time of the call that brought it; one that is
  // made or erased meanwhile comes once or not at all.
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
