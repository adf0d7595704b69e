#include <stdint.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "capi/returns.h"
#include "capi/tandem_store.h"
#include "client/session.h"
#include "client/store_table.h"
#include "node/role_options.h"

struct tandem_store {
  tandem_store(std::unique_ptr<tandem::client::Session> opened, tandem::client::StoreTable its)
      : session(std::move(opened)), table(its) {}

  const std::unique_ptr<tandem::client::Session> session;
  tandem::client::StoreTable table;
};

struct tandem_reader {
  std::unique_ptr<tandem::client::Session> session;
};

struct tandem_scan {
  explicit tandem_scan(tandem_store* scanned) : store(scanned) {}

  tandem_store* const store;
  tandem::client::StoreTable::Cursor cursor;
  std::vector<uint64_t> keys;  // rows read from the table; those before `next` are given
  std::vector<float> rows;
  size_t next = 0;
};

namespace tandem::capi {
namespace {

// How many rows a scan reads from the servers at once, however few the program takes at a time:
// this many rows, or fewer if rows are long.
constexpr size_t kRowsAtOnce = 4096, kFloatsAtOnce = size_t{1} << 20;

absl::StatusOr<std::unique_ptr<client::Session>> OpenSession(const char* scheduler,
                                                             int64_t timeout_ms) {
  if (const std::string wrong = node::CheckAddress(scheduler); !wrong.empty()) {
    return absl::InvalidArgumentError("the scheduler's address: " + wrong);
  }
  SetUpHost();
  client::Session::Options options;
  options.scheduler = scheduler;
  options.open_within = absl::Milliseconds(timeout_ms);
  return client::Session::Open(options);
}

absl::Status Open(const char* scheduler, const char* table, int64_t timeout_ms,
                  tandem_store** store) {
  if (scheduler == nullptr || table == nullptr || store == nullptr) {
    return Missing("scheduler, table and store");
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<client::Session> session,
                          OpenSession(scheduler, timeout_ms));
  TANDEM_ASSIGN_OR_RETURN(
      const client::StoreTable opened,
      client::StoreTable::Open(session.get(), table, absl::Milliseconds(timeout_ms)));
  *store = new tandem_store(std::move(session), opened);
  return absl::OkStatus();
}

absl::Status ReadRows(tandem_reader* reader, const char* table, int64_t count, const int64_t* ids,
                      float* rows, int64_t timeout_ms) {
  if (count < 0) return absl::InvalidArgumentError(absl::StrCat(count, " ids; expected 0 or more"));
  if (table == nullptr || (count > 0 && (ids == nullptr || rows == nullptr))) {
    return Missing("table, ids and rows");
  }
  const auto keys = static_cast<size_t>(count);
  return reader->session->Read(table, {reinterpret_cast<const uint64_t*>(ids), keys},
                               {rows, keys * reader->session->RowFloats(table)},
                               absl::Milliseconds(timeout_ms));
}

struct Arguments {
  absl::Span<const uint64_t> keys;
  size_t floats = 0;  // floats of the rows of these keys
  size_t marks = 0;   // entries of found, inserted or erased
};

absl::StatusOr<Arguments> Check(const tandem_store& store, int64_t count, const int64_t* keys,
                                const float* rows, bool wants_rows, const uint8_t* marks) {
  if (count < 0)
    return absl::InvalidArgumentError(absl::StrCat(count, " keys; expected 0 or more"));
  if (count > 0 && keys == nullptr) return Missing("keys");
  if (count > 0 && wants_rows && rows == nullptr) return Missing("rows");
  Arguments checked;
  checked.keys = {reinterpret_cast<const uint64_t*>(keys), static_cast<size_t>(count)};
  checked.floats = wants_rows ? checked.keys.size() * store.table.row_floats() : 0;
  checked.marks = marks == nullptr ? 0 : checked.keys.size();
  return checked;
}

absl::StatusOr<bool> Next(tandem_scan* scan, int64_t most, int64_t* keys, float* rows,
                          int64_t* count) {
  if (most < 1) {
    return absl::InvalidArgumentError(absl::StrCat("most: ", most, " rows; expected 1 or more"));
  }
  if (keys == nullptr || rows == nullptr || count == nullptr) return Missing("keys, rows, count");
  *count = 0;
  const size_t width = scan->store->table.row_floats();
  if (scan->next == scan->keys.size()) {
    scan->next = 0;
    const size_t at_once = std::clamp<size_t>(kFloatsAtOnce / width, 1, kRowsAtOnce);
    TANDEM_ASSIGN_OR_RETURN(
        const bool more, scan->store->table.Scan(&scan->cursor, at_once, &scan->keys, &scan->rows));
    if (!more) return false;
  }
  const size_t taken = std::min(static_cast<size_t>(most), scan->keys.size() - scan->next);
  for (size_t i = 0; i < taken; ++i) keys[i] = static_cast<int64_t>(scan->keys[scan->next + i]);
  std::copy_n(scan->rows.data() + scan->next * width, taken * width, rows);
  scan->next += taken;
  *count = static_cast<int64_t>(taken);
  return true;
}

}  // namespace
}  // namespace tandem::capi

using namespace tandem::capi;  // NOLINT: C functions follow

int tandem_store_open(const char* scheduler, const char* table, int64_t timeout_ms,
                      tandem_store** store) {
  return Call([&] { return Open(scheduler, table, timeout_ms, store); });
}

int32_t tandem_store_dim(const tandem_store* store) { return store->table.dim(); }
int32_t tandem_store_extra_floats(const tandem_store* store) { return store->table.extra_floats(); }
int32_t tandem_store_row_floats(const tandem_store* store) {
  return static_cast<int32_t>(store->table.row_floats());
}

int tandem_store_read(tandem_store* store, int64_t count, const int64_t* keys, float* rows,
                      uint8_t* found) {
  return CallOn(store, "store", [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const Arguments a, Check(*store, count, keys, rows, true, found));
    return store->table.Read(a.keys, {rows, a.floats}, {found, a.marks});
  });
}

int tandem_store_assign(tandem_store* store, int64_t count, const int64_t* keys,
                        const float* rows) {
  return CallOn(store, "store", [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const Arguments a, Check(*store, count, keys, rows, true, nullptr));
    return store->table.Assign(a.keys, {rows, a.floats});
  });
}

int tandem_store_insert(tandem_store* store, int64_t count, const int64_t* keys, const float* rows,
                        uint8_t* inserted) {
  return CallOn(store, "store", [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const Arguments a, Check(*store, count, keys, rows, true, inserted));
    return store->table.Insert(a.keys, {rows, a.floats}, {inserted, a.marks});
  });
}

int tandem_store_erase(tandem_store* store, int64_t count, const int64_t* keys, uint8_t* erased) {
  return CallOn(store, "store", [&]() -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const Arguments a, Check(*store, count, keys, nullptr, false, erased));
    return store->table.Erase(a.keys, {erased, a.marks});
  });
}

int tandem_scan_open(tandem_store* store, tandem_scan** scan) {
  return CallOn(store, "store", [&]() -> absl::Status {
    if (scan == nullptr) return Missing("scan");
    *scan = new tandem_scan(store);
    return absl::OkStatus();
  });
}

int tandem_scan_next(tandem_scan* scan, int64_t most, int64_t* keys, float* rows, int64_t* count) {
  return CallOn(scan, "scan", [&] { return Next(scan, most, keys, rows, count); });
}

void tandem_scan_free(tandem_scan* scan) { delete scan; }

void tandem_store_free(tandem_store* store) { delete store; }

int tandem_reader_open(const char* scheduler, int64_t timeout_ms, tandem_reader** reader) {
  return Call([&]() -> absl::Status {
    if (scheduler == nullptr || reader == nullptr) return Missing("scheduler and reader");
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<tandem::client::Session> session,
                            OpenSession(scheduler, timeout_ms));
    *reader = new tandem_reader{std::move(session)};
    return absl::OkStatus();
  });
}

int tandem_reader_read(tandem_reader* reader, const char* table, int64_t count, const int64_t* ids,
                       float* rows, int64_t timeout_ms) {
  return CallOn(reader, "reader",
                [&] { return ReadRows(reader, table, count, ids, rows, timeout_ms); });
}

void tandem_reader_free(tandem_reader* reader) { delete reader; }
