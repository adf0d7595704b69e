// The C interface of STORE tables: rows that programs read, assign, insert and erase whole, on the
// servers of a running job, for those that own their optimizer. capi/tandem.h includes this; what a
// STORE table is, and what is promised of it: docs/STORE.md.
//
// A row is tandem_store_row_floats floats, `dim` and then `state_floats` as the job has them, and
// means what the programs make of it. Keys are any 64-bit numbers; a row is there from the first
// write to its erasure. Calls take any number of keys, wait until all of it is done, and then have
// been seen by everybody. Several programs may write at the same time: of two writes of a row the one
// that arrives last stays, each counts once, and a row is never a mixture of two.
//
// Returns: as in capi/tandem.h: 0, or 1 and 0 where something is asked; -1 is an error with its text in
// tandem_error(): the job has ended or failed, a server has not answered in time, wrong arguments.
// After an error in the middle of a write some of its rows may be written; the call may be made again.
//
// Threads: any for a store, at the same time; one at a time for a scan. The store has threads of its
// own. A process that the program forks must not use the store.
//
// Memory: what a call is given is read or written before it returns, and is the caller's.
#ifndef TANDEM_CAPI_TANDEM_STORE_H_
#define TANDEM_CAPI_TANDEM_STORE_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tandem_store tandem_store;
typedef struct tandem_scan tandem_scan;

// Table `table` of the job whose scheduler listens at `scheduler` (tcp://HOST:PORT), as soon as the
// job has begun. Any process may, a worker of the job too. timeout_ms: how long this call, and each
// later one, may wait.
int tandem_store_open(const char* scheduler, const char* table, int64_t timeout_ms,
                      tandem_store** store);
int32_t tandem_store_dim(const tandem_store* store);
int32_t tandem_store_state_floats(const tandem_store* store);
int32_t tandem_store_row_floats(const tandem_store* store);  // the two together

// rows: [count, row_floats]; a row that is absent is not touched. found: [count], 1: it is there, 0: it
// is not; may be NULL.
int tandem_store_read(tandem_store* store, int64_t count, const int64_t* keys, float* rows,
                      uint8_t* found);
// rows: [count, row_floats]. Of a key that repeats the last row stays.
int tandem_store_assign(tandem_store* store, int64_t count, const int64_t* keys, const float* rows);
// The same for keys that are absent; the others keep their rows. Of a key that repeats the first row
// counts. inserted: [count], 1: it was absent; may be NULL.
int tandem_store_insert(tandem_store* store, int64_t count, const int64_t* keys, const float* rows,
                        uint8_t* inserted);
// erased: [count], 1: there was a row; may be NULL.
int tandem_store_erase(tandem_store* store, int64_t count, const int64_t* keys, uint8_t* erased);

// All rows of the table, some at a time, while others write. A row that is there from the first
// tandem_scan_next to the last comes once, as it is at one moment between them; one that is made or
// erased meanwhile comes once or not at all. `store` outlives the scan.
int tandem_scan_open(tandem_store* store, tandem_scan** scan);
// At most `most` rows: keys [most], rows [most, row_floats]; *count: how many. 1: there are some;
// 0: the end.
int tandem_scan_next(tandem_scan* scan, int64_t most, int64_t* keys, float* rows, int64_t* count);
void tandem_scan_free(tandem_scan* scan);

// No other call may be under way, and no scan be left.
void tandem_store_free(tandem_store* store);

// ---- rows of tables that the job trains ----

typedef struct tandem_reader tandem_reader;

// Joins the job of this scheduler as a reader, which changes nothing and which nobody waits for.
int tandem_reader_open(const char* scheduler, int64_t timeout_ms, tandem_reader** reader);
// The rows of `count` ids as they are at the moment, float [count, dim]; a row that nobody has
// touched has its first value.
int tandem_reader_read(tandem_reader* reader, const char* table, int64_t count, const int64_t* ids,
                       float* rows, int64_t timeout_ms);
void tandem_reader_free(tandem_reader* reader);

#ifdef __cplusplus
}
#endif

#endif  // TANDEM_CAPI_TANDEM_STORE_H_
